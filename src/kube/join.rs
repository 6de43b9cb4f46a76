//! First conversation with a server of k3s that this machine wants to join: its CA is compared with the token before anything is sent.

use std::time::Duration;

use ring::digest::{SHA256, digest};
use smol::io::{AsyncReadExt, AsyncWriteExt};

use crate::{
    core::{
        k3s::{
            join::{Server, Token, doubts},
            version_in,
        },
        time::{Now, Wall},
        url::Url,
        words::hex,
    },
    error::{Error, Result, Retry},
    net::{
        deadline,
        dial::{Dialer, Route, Target},
        head::Head,
        tls::{Clock, Roots, Settings, Tls, Verification},
    },
};

/// Time for one question.
const WITHIN: Duration = Duration::from_secs(15);
/// A bundle of certificates is a few KB.
const ANSWER_BYTES_MAX: u64 = 256 * 1024;

/// An answer of a server.
struct Answer {
    head: Head,
    body: Vec<u8>,
}

fn unreachable(target: &Target) -> Error {
    let authority = target.authority();
    Error::new(format!("cannot reach the server {authority}"))
        .fix(format!("is it a server of k3s, and is its port open to this machine? Try: curl -k https://{authority}/ping"))
        .retry(Retry::Soon)
}

/// Asks the server who it is, compares its CA with the token, and only then shows it the token.
///
/// # Errors
/// It cannot be reached, its CA is another one, or it does not accept the token.
pub async fn look(url: &Url, token: &Token, clock: Clock, now: fn() -> Now) -> Result<Server> {
    let target = Target::new(&url.host, url.port);
    let blind = Settings {
        roots: Roots::ExtraOnly,
        verification: Verification::Opportunistic,
        ..Settings::default()
    };
    let answer = ask(&target, &blind, clock, ("/cacerts", None)).await?;
    if answer.head.status != 200 || answer.body.is_empty() {
        return Err(
            Error::new(format!("{} is no server of k3s", url.authority()))
                .why(format!("it answers {} to /cacerts", answer.head.status))
                .fix(
                    "name the address of the server, with its port: --server https://ADDRESS:6443",
                ),
        );
    }
    let found = hex(digest(&SHA256, &answer.body).as_ref());
    if found != token.ca_sha256 {
        return Err(Error::new(format!(
            "the server {} is not the one that made this token",
            url.authority()
        ))
        .why(format!(
            "its CA has the hash {found}, the token names {}",
            token.ca_sha256
        ))
        .why("the token was not sent")
        .fix("is this the right address? Else make a new token on the server: sudo pipeops-agent k3s token"));
    }
    let mut server = Server {
        time: time(&answer.head),
        now: now().wall,
        version: None,
    };
    if !doubts(&server).is_empty() {
        // With a wrong clock no certificate proves anything.
        return Ok(server);
    }
    let proven = Settings {
        roots: Roots::ExtraOnly,
        extra_ca_pem: Some(answer.body),
        ..Settings::default()
    };
    let authorization = token.authorization();
    let question = ("/version", Some(authorization.reveal()));
    let answer = ask(&target, &proven, clock, question).await?;
    match answer.head.status {
        200 => {
            let text = String::from_utf8_lossy(&answer.body);
            let words = text.replace(['"', ',', ':'], " ");
            server.version = version_in(&words);
            Ok(server)
        }
        401 => Err(Error::new("the server does not accept this token")
            .why("it has ended, was revoked, or is of another server")
            .fix("make a new one on the server: sudo pipeops-agent k3s token")),
        status => Err(unreachable(&target)
            .why(format!("it answers {status} {}", answer.head.reason))
            .fix("look at it there: sudo pipeops-agent k3s status")
            .retry(Retry::Soon)),
    }
}

fn time(head: &Head) -> Option<Wall> {
    let since = httpdate::parse_http_date(head.header("date")?).ok()?;
    let since = since.duration_since(std::time::UNIX_EPOCH).ok()?;
    Some(Wall::from_millis(i64::try_from(since.as_millis()).ok()?))
}

async fn ask(
    target: &Target,
    settings: &Settings,
    clock: Clock,
    (path, authorization): (&str, Option<&str>),
) -> Result<Answer> {
    let failed = |error: &(dyn std::error::Error + 'static)| unreachable(target).because(error);
    let tls = Tls::new(settings, clock).map_err(|error| failed(&error))?;
    let route = Route::direct(target).with_tls(Some(&tls));
    let dialled = Dialer::default().dial(&route, WITHIN).await;
    let mut stream = dialled.map_err(|error| failed(&error))?;
    let authorization =
        authorization.map_or_else(String::new, |value| format!("Authorization: {value}\r\n"));
    // HTTP/1.0: the answer comes in one piece, and ends with the connection.
    let request = format!(
        "GET {path} HTTP/1.0\r\nHost: {}\r\n{authorization}\r\n",
        target.authority()
    );
    let talk = async {
        stream.write_all(request.as_bytes()).await?;
        stream.flush().await?;
        let mut bytes = Vec::new();
        match (&mut stream)
            .take(ANSWER_BYTES_MAX)
            .read_to_end(&mut bytes)
            .await
        {
            // A server that leaves without a word of TLS has said all where the head has its length.
            Err(error) if error.kind() != std::io::ErrorKind::UnexpectedEof => Err(error),
            Ok(_) | Err(_) => Ok(bytes),
        }
    };
    let talk = deadline(WITHIN, talk).await;
    let bytes = talk
        .map_err(|elapsed| failed(&elapsed))?
        .map_err(|error: std::io::Error| failed(&error))?;
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
    let parts = end.and_then(|end| bytes.split_at_checked(end + 4));
    let answer = parts.and_then(|(head, body)| {
        let head = Head::parse(head)?;
        let length = head.header("content-length").map(str::parse::<usize>);
        let is_whole = length.is_none_or(|length| length == Ok(body.len()));
        is_whole.then(|| Answer {
            head,
            body: body.to_vec(),
        })
    });
    answer.ok_or_else(|| unreachable(target).why("it does not answer as a server of HTTP does"))
}

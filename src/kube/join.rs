//! First conversation with a server of k3s that this machine wants to join: its CA is compared with
//! the token before anything is sent.

use std::time::Duration;

use ring::digest::{SHA256, digest};
use smol::io::{AsyncReadExt, AsyncWriteExt};

use crate::{
    core::{
        k3s::{
            Role,
            join::{Server, Token, doubts},
            servers, version_in,
        },
        time::{Now, Wall},
        url::Url,
        words::hex,
    },
    error::{Error, Result, Retry},
    net::{
        deadline,
        dial::{Dialer, Route},
        head::Head,
        target::Target,
        tls::{Clock, Roots, Settings, Tls, Verification},
    },
};

/// Time for one question.
const WITHIN: Duration = Duration::from_secs(15);
/// A bundle of certificates is a few KB.
const ANSWER_BYTES_MAX: usize = 256 * 1024;

/// An answer of a server.
struct Answer {
    head: Head,
    body: Vec<u8>,
}

/// State of a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum End {
    /// More may come.
    Open,
    /// Nothing more comes.
    Closed,
}

impl Answer {
    /// A whole answer; `None`: it is none, or not whole yet.
    fn parse(bytes: &[u8], end: End) -> Option<Self> {
        let head_end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
        let (head, body) = bytes.split_at_checked(head_end + 4)?;
        let head = Head::parse(head)?;
        let length = head.header("content-length").map(str::parse::<usize>);
        let is_whole = length.map_or(end == End::Closed, |length| length == Ok(body.len()));
        is_whole.then(|| Self {
            head,
            body: body.to_vec(),
        })
    }
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
pub async fn look(
    url: &Url,
    (token, role): (&Token, Role),
    clock: Clock,
    now: fn() -> Now,
) -> Result<Server> {
    let target = Target::new(&url.host, url.port);
    let blind = Settings {
        roots: Roots::ExtraOnly,
        verification: Verification::Opportunistic,
        ..Settings::default()
    };
    let answer = ask(&target, &blind, clock, ("/cacerts", None)).await?;
    if answer.head.status != 200 || answer.body.is_empty() {
        return Err(
            Error::new(format!("{} is not a k3s server", url.authority()))
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
        shared: None,
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
    let authorization = token.authorization(role);
    let question = ("/version", Some(authorization.reveal()));
    let answer = ask(&target, &proven, clock, question).await?;
    match answer.head.status {
        200 => {
            let text = String::from_utf8_lossy(&answer.body);
            let words = text.replace(['"', ',', ':'], " ");
            server.version = version_in(&words);
            if role == Role::Server {
                let ask = |path| ask(&target, &proven, clock, (path, question.1));
                server.shared = servers::shared(&ask("/v1-k3s/config").await?.body);
                if let Some(shared) = &mut server.shared {
                    // Keys of the cluster, which k3s itself fetches: only whether there are some.
                    shared.has_etcd = ask("/v1-k3s/server-bootstrap").await?.head.status == 200;
                }
            }
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
        let (mut bytes, mut piece) = (Vec::new(), [0; 4096]);
        while bytes.len() < ANSWER_BYTES_MAX && Answer::parse(&bytes, End::Open).is_none() {
            let read = match stream.read(&mut piece).await {
                // A server may leave without a word of TLS: the length in the head says whether
                // that was all.
                Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => 0,
                read => read?,
            };
            if read == 0 {
                break;
            }
            bytes.extend_from_slice(piece.get(..read).unwrap_or_default());
        }
        Ok(bytes)
    };
    let talk = deadline(WITHIN, talk).await;
    let bytes = talk
        .map_err(|elapsed| failed(&elapsed))?
        .map_err(|error: std::io::Error| failed(&error))?;
    let answer = Answer::parse(&bytes, End::Closed);
    answer.ok_or_else(|| unreachable(target).why("it does not answer as a server of HTTP does"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_an_answer_is_none() {
        let head = "HTTP/1.0 200 OK\r\nContent-Length: 4\r\n\r\n";
        let body = |text: &str, end| {
            let answer = Answer::parse(text.as_bytes(), end)?;
            String::from_utf8(answer.body).ok()
        };
        assert_eq!(
            body(&format!("{head}test"), End::Open).as_deref(),
            Some("test")
        );
        for text in [
            format!("{head}tes"),
            format!("{head}tests"),
            "HTTP/1.0 200".to_owned(),
        ] {
            assert_eq!(body(&text, End::Closed), None, "{text}");
        }
        let open = "HTTP/1.0 200 OK\r\n\r\ntest";
        assert_eq!(body(open, End::Open), None);
        assert_eq!(body(open, End::Closed).as_deref(), Some("test"));
    }
}

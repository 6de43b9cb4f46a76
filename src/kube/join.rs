//! First conversation with a server of k3s that this machine wants to join: its CA is compared with
//! the token before anything is sent.
//!
//! Permissions of the paths: `pkg/server/handlers/router.go` of k3s.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use ring::digest::{SHA256, digest};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use smol::io::{AsyncReadExt, AsyncWriteExt};

use crate::{
    core::{
        format::hex,
        k3s::{
            Role,
            join::{Credential, Server, Token, doubts},
            servers, version_in,
        },
        time::{Now, Wall},
        url::Url,
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
    let ca = trusted(url, &answer, token)?;
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
        extra_ca_pem: Some(ca),
        ..Settings::default()
    };
    let ask = async |path, role| {
        let authorization = token.authorization(role);
        ask(
            &target,
            &proven,
            clock,
            (path, Some(authorization.reveal())),
        )
        .await
    };
    // The API, which tells the version, knows bootstrap tokens only.
    let is_known_to_api = matches!(token.credential, Credential::Bootstrap(_));
    let path = if is_known_to_api {
        "/version"
    } else {
        "/v1-k3s/config"
    };
    // To k3s a server is a node, too, until it asks for the keys of the cluster.
    let answer = ask(path, Role::Worker).await?;
    match answer.head.status {
        200 if is_known_to_api => {
            let text = String::from_utf8_lossy(&answer.body);
            server.version = version_in(&text.replace(['"', ',', ':'], " "));
        }
        200 if role == Role::Server => {
            server.shared = servers::shared(&answer.body);
            if let Some(shared) = &mut server.shared {
                // Keys of the cluster, which k3s itself fetches: only whether there are some.
                let keys = ask("/v1-k3s/server-bootstrap", role).await?;
                shared.has_etcd = keys.head.status == 200;
            }
        }
        200 => {}
        401 => {
            return Err(Error::new("the server does not accept this token")
                .why("it has expired, was revoked, or belongs to another server; or the servers have an agent-token of their own")
                .fix("make a new one on the server: sudo pipeops-agent k3s token"));
        }
        status => {
            return Err(unreachable(&target)
                .why(format!(
                    "it answers {status} {} to {path}",
                    answer.head.reason
                ))
                .fix("inspect it there: sudo pipeops-agent k3s status")
                .retry(Retry::Soon));
        }
    }
    Ok(server)
}

/// The CA of a server, where the token is of it.
fn trusted(url: &Url, answer: &Answer, token: &Token) -> Result<Vec<u8>> {
    if answer.head.status != 200 || answer.body.is_empty() {
        return Err(
            Error::new(format!("{} is not a k3s server", url.authority()))
                .why(format!("it answers {} to /cacerts", answer.head.status))
                .fix(
                    "name the address of the server, with its port: --server https://ADDRESS:6443",
                ),
        );
    }
    root(&answer.body, &token.ca_sha256).ok_or_else(|| {
        Error::new(format!(
            "the server {} is not the one that made this token",
            url.authority()
        ))
        .why(format!(
            "its CA has the hash {}, the token names {}",
            hex(digest(&SHA256, &answer.body).as_ref()),
            token.ca_sha256
        ))
        .why("the token was not sent")
        .fix("is this the right address? Else make a new token on the server: sudo pipeops-agent k3s token")
    })
}

/// The certificate that a hash of a token is of, as PEM: the only one of a bundle as it stands, or
/// one of several by its DER, as k3s counts it. Only that one vouches for the server, since anybody
/// can add others.
fn root(bundle: &[u8], sha256: &str) -> Option<Vec<u8>> {
    let is_named = |bytes: &[u8]| hex(digest(&SHA256, bytes).as_ref()) == sha256;
    if is_named(bundle) {
        return Some(bundle.to_vec());
    }
    let mut certificates = CertificateDer::pem_slice_iter(bundle).flatten();
    let root = certificates.find(|certificate| is_named(certificate))?;
    let text = BASE64.encode(&root);
    Some(format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n").into_bytes())
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
    fn a_token_names_the_file_of_one_certificate_or_the_root_of_several() {
        let pem = |der: &[u8]| {
            let text = BASE64.encode(der);
            format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")
        };
        let sum = |bytes: &[u8]| hex(digest(&SHA256, bytes).as_ref());
        let one = format!("# of the cluster\n{}", pem(b"root"));
        assert_eq!(
            root(one.as_bytes(), &sum(one.as_bytes())).as_deref(),
            Some(one.as_bytes())
        );
        let several = [&b"intermediate"[..], b"root", b"another"]
            .map(pem)
            .concat();
        // Nobody else's certificate comes with it.
        assert_eq!(
            root(several.as_bytes(), &sum(b"root")),
            Some(pem(b"root").into_bytes())
        );
        for unnamed in [sum(b"absent"), sum(b"")] {
            assert_eq!(root(several.as_bytes(), &unnamed), None);
        }
        assert_eq!(root(b"", &sum(b"root")), None);
    }

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

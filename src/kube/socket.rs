//! WebSockets as a client: to the API server (exec, attach) and to an application behind a service.

use std::fmt;
use std::time::Duration;

use async_tungstenite::WebSocketStream;
use async_tungstenite::tungstenite::handshake::client::generate_key;
use async_tungstenite::tungstenite::handshake::derive_accept_key;
use async_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::http::response::Parts;
use hyper::{Method, Request, Response};

use super::client::{Client, Identity};
use super::error::Error;
use super::upgraded::{Upgraded, UpgradedStream};
use crate::net::Body;

/// The largest message. exec sends at most 32 KiB; applications seldom more than a megabyte, and
/// the largest message of the link is 32 MiB with base64 in it.
const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// Size of the read buffer; the default of 128 KiB would be most of an idle exec's memory.
const READ_BUFFER_BYTES: usize = 8 * 1024;

/// Written and not yet taken by the kernel: more than one largest message would mean that the
/// caller does not wait.
const WRITE_BUFFER_BYTES_MAX: usize = 2 * MESSAGE_BYTES_MAX;

/// Subprotocols offered at once. The API server knows five.
const PROTOCOLS_MAX: usize = 32;

/// An open WebSocket.
pub struct Socket {
    /// Messages both ways; `split` gives the two halves.
    pub messages: WebSocketStream<UpgradedStream>,
    /// The subprotocol that the peer chose, out of those offered.
    pub protocol: Option<String>,
    /// The head of the answer.
    pub head: Box<Parts>,
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Socket({:?})", self.protocol)
    }
}

/// The answer to the handshake.
#[derive(Debug)]
pub enum Opened {
    Open(Box<Socket>),
    /// Any answer but 101, with its body.
    Refused(Response<Body>),
}

/// Request to upgrade.
#[derive(Debug)]
pub struct Ask<'a> {
    /// Path and query, as they are sent.
    pub path: &'a str,
    /// Headers of the caller; those of the handshake itself are replaced.
    pub headers: HeaderMap,
    /// Subprotocols, the preferred one first.
    pub protocols: &'a [String],
}

/// Opens a WebSocket to the API server, under an identity.
/// [`open_socket`](super::services::open_socket) opens one to a service.
///
/// # Errors
/// As [`Client::upgrade`], or a handshake that is not one.
pub async fn open(
    client: &Client,
    identity: &Identity,
    ask: Ask<'_>,
    limit: Duration,
) -> Result<Opened, Error> {
    let key = generate_key();
    let request = handshake(&ask, &key)?;
    let answer = client.upgrade(request, identity, limit).await?;
    opened(answer, &ask, &key).await
}

/// Opens a WebSocket from the answer to its handshake.
pub(super) async fn opened(answer: Upgraded, ask: &Ask<'_>, key: &str) -> Result<Opened, Error> {
    let (head, stream) = match answer {
        Upgraded::Refused(response) => return Ok(Opened::Refused(response)),
        Upgraded::Switched(head, stream) => (head, stream),
    };
    let protocol = checked(&head.headers, key, ask.protocols).map_err(|why| Error::Broken {
        call: format!("WebSocket {}", super::calls::without_query(ask.path)),
        why: why.to_owned(),
    })?;
    let config = WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER_BYTES)
        .write_buffer_size(0)
        .max_write_buffer_size(WRITE_BUFFER_BYTES_MAX)
        .max_message_size(Some(MESSAGE_BYTES_MAX))
        .max_frame_size(Some(MESSAGE_BYTES_MAX));
    let messages = WebSocketStream::from_raw_socket(stream, Role::Client, Some(config)).await;
    Ok(Opened::Open(Box::new(Socket {
        messages,
        protocol,
        head,
    })))
}

/// Request for the upgrade.
pub(super) fn handshake(ask: &Ask<'_>, key: &str) -> Result<Request<Body>, Error> {
    let bad = |error: hyper::http::Error| {
        Error::BadRequest(format!("the WebSocket cannot be asked for: {error}"))
    };
    let mut request = Request::builder()
        .method(Method::GET)
        .uri(ask.path)
        .body(Body::empty())
        .map_err(bad)?;
    let headers = request.headers_mut();
    for (name, value) in &ask.headers {
        let is_of_the_handshake = name.as_str().starts_with("sec-websocket-");
        if !is_of_the_handshake && name != header::CONTENT_LENGTH {
            headers.append(name, value.clone());
        }
    }
    let value = |text: &str| HeaderValue::from_str(text).map_err(|error| bad(error.into()));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(
        header::SEC_WEBSOCKET_VERSION,
        HeaderValue::from_static("13"),
    );
    headers.insert(header::SEC_WEBSOCKET_KEY, value(key)?);
    if ask.protocols.len() > PROTOCOLS_MAX {
        return Err(Error::BadRequest(format!(
            "more than {PROTOCOLS_MAX} subprotocols"
        )));
    }
    if !ask.protocols.is_empty() {
        // A subprotocol is a token, like a header's name: a comma or a space in one would make two
        // of it.
        if let Some(odd) = ask
            .protocols
            .iter()
            .find(|name| HeaderName::from_bytes(name.as_bytes()).is_err())
        {
            return Err(Error::BadRequest(format!(
                "the subprotocol {odd:?} is not a token"
            )));
        }
        headers.insert(
            header::SEC_WEBSOCKET_PROTOCOL,
            value(&ask.protocols.join(", "))?,
        );
    }
    Ok(request)
}

/// Checks the headers of a 101 (RFC 6455, 4.1).
fn checked(
    headers: &HeaderMap,
    key: &str,
    offered: &[String],
) -> Result<Option<String>, &'static str> {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    if !text(header::UPGRADE).is_some_and(|value| value.eq_ignore_ascii_case("websocket")) {
        return Err("the answer switches to another protocol");
    }
    if text(header::SEC_WEBSOCKET_ACCEPT).map(str::trim)
        != Some(derive_accept_key(key.as_bytes()).as_str())
    {
        return Err("the answer belongs to another handshake");
    }
    if headers.contains_key(header::SEC_WEBSOCKET_EXTENSIONS) {
        return Err("the answer has an extension that was not offered");
    }
    match text(header::SEC_WEBSOCKET_PROTOCOL).map(str::trim) {
        None => Ok(None),
        Some(chosen) if offered.iter().any(|one| one == chosen) => Ok(Some(chosen.to_owned())),
        Some(_) => Err("the answer chose a subprotocol that was not offered"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(pairs: &[(&'static str, String)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    #[test]
    fn only_an_answer_to_our_handshake_opens() {
        let offered = ["v4.channel.k8s.io".to_owned()];
        let good = [
            ("upgrade", "WebSocket".to_owned()),
            ("sec-websocket-accept", derive_accept_key(b"key")),
        ];
        assert_eq!(checked(&answer(&good), "key", &offered), Ok(None));
        assert!(checked(&answer(&good), "other", &offered).is_err());
        assert!(checked(&answer(&good[1..]), "key", &offered).is_err());
        for (name, value, is_good) in [
            ("sec-websocket-protocol", "v4.channel.k8s.io", true),
            ("sec-websocket-protocol", "v5.channel.k8s.io", false),
            ("sec-websocket-extensions", "permessage-deflate", false),
        ] {
            let mut more = good.to_vec();
            more.push((name, value.to_owned()));
            assert_eq!(
                checked(&answer(&more), "key", &offered).is_ok(),
                is_good,
                "{value}"
            );
        }
    }

    #[test]
    fn a_caller_cannot_forge_the_handshake() {
        let headers = answer(&[
            ("sec-websocket-key", "forged".to_owned()),
            ("sec-websocket-extensions", "permessage-deflate".to_owned()),
            ("x-own", "kept".to_owned()),
        ]);
        let protocols = ["a".to_owned(), "b".to_owned()];
        let ask = Ask {
            path: "/exec?command=sh",
            headers: headers.clone(),
            protocols: &protocols,
        };
        let request = handshake(&ask, "key").unwrap();
        let of = |name: &str| {
            request
                .headers()
                .get(name)
                .and_then(|value| value.to_str().ok())
        };
        assert_eq!(of("sec-websocket-key"), Some("key"));
        assert_eq!(of("sec-websocket-extensions"), None);
        assert_eq!(of("sec-websocket-protocol"), Some("a, b"));
        assert_eq!(of("x-own"), Some("kept"));
        let odd = ["a, b".to_owned()];
        let ask = Ask {
            path: "/",
            headers,
            protocols: &odd,
        };
        assert!(handshake(&ask, "key").is_err());
    }
}

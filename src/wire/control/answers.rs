//! The agent's messages of proxied exchanges. Every function returns one whole message, ready to be
//! sent as text.

use std::fmt::Write as _;

use base64::Engine;
use litemap::LiteMap;
use serde::{Serialize, Serializer};

use super::{fields::BASE64, outbound::message};
use crate::{
    core::{proxy::HeaderList, time::Wall},
    wire::json::object,
};

#[derive(Serialize)]
struct Nothing {}

/// `backpressure`: a frame for an application WebSocket was dropped.
pub fn backpressure(stream_id: &str, now: Wall) -> String {
    #[derive(Serialize)]
    struct Payload<'a> {
        reason: &'a str,
        request_id: &'a str,
    }
    let payload = Payload {
        reason: "channel_full",
        request_id: stream_id,
    };
    message("backpressure", stream_id, payload, now)
}

#[derive(Serialize)]
struct ErrorPayload<'a> {
    error: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    request_id: &'a str,
}

/// `proxy_error`: the whole answer to a buffered request.
pub fn proxy_error(request_id: &str, error: &str, now: Wall) -> String {
    message(
        "proxy_error",
        request_id,
        ErrorPayload {
            error,
            request_id: "",
        },
        now,
    )
}

/// `proxy_error` of an exec, attach or port-forward stream, which repeats the id in its payload.
pub fn stream_error(stream_id: &str, error: &str, now: Wall) -> String {
    message(
        "proxy_error",
        stream_id,
        ErrorPayload {
            error,
            request_id: stream_id,
        },
        now,
    )
}

/// `proxy_response_abort`: the end of a streamed answer that failed.
pub fn proxy_response_abort(request_id: &str, error: &str, now: Wall) -> String {
    message(
        "proxy_response_abort",
        request_id,
        ErrorPayload {
            error,
            request_id: "",
        },
        now,
    )
}

pub fn proxy_response_end(request_id: &str, now: Wall) -> String {
    message("proxy_response_end", request_id, Nothing {}, now)
}

/// Headers as the wire has them: names in Go's canonical form, `null` when there are none.
#[derive(Serialize)]
#[serde(transparent)]
struct Headers {
    #[serde(serialize_with = "named")]
    by_name: LiteMap<String, Vec<String>>,
}

fn named<S: Serializer>(
    by_name: &LiteMap<String, Vec<String>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    if by_name.is_empty() {
        serializer.serialize_none()
    } else {
        object(by_name, serializer)
    }
}

impl Headers {
    fn new(list: &HeaderList) -> Self {
        let mut by_name: LiteMap<String, Vec<String>> = LiteMap::new();
        for (name, values) in list {
            by_name
                .entry(canonical(name))
                .or_default()
                .extend(values.iter().cloned());
        }
        Self { by_name }
    }
}

/// `content-type` as `Content-Type`: what Go's map look-ups on the other side expect.
fn canonical(name: &str) -> String {
    let mut is_first = true;
    name.chars()
        .map(|character| {
            let cased = if is_first {
                character.to_ascii_uppercase()
            } else {
                character.to_ascii_lowercase()
            };
            is_first = character == '-';
            cased
        })
        .collect()
}

/// The headers as JSON text, for the binary response.
pub fn header_object(headers: &HeaderList) -> String {
    serde_json::to_string(&Headers::new(headers)).unwrap_or_default()
}

/// `proxy_response_header`: the begin of a streamed answer.
pub fn proxy_response_header(
    request_id: &str,
    status: u16,
    headers: &HeaderList,
    now: Wall,
) -> String {
    #[derive(Serialize)]
    struct Payload {
        headers: Headers,
        status: u16,
    }
    let payload = Payload {
        headers: Headers::new(headers),
        status,
    };
    message("proxy_response_header", request_id, payload, now)
}

/// `proxy_response_chunk`. Written by hand: this is the one message that carries bulk.
pub fn proxy_response_chunk(request_id: &str, data: &[u8], now: Wall) -> String {
    let mut text = opening("proxy_response_chunk", request_id, data.len());
    text.push_str("\"data\":\"");
    BASE64.encode_string(data, &mut text);
    // Writing into a string does not fail.
    let written = write!(text, "\",\"encoding\":\"base64\",\"size\":{}", data.len());
    debug_assert!(written.is_ok(), "a string takes everything");
    text.push_str(&closing(now));
    text
}

fn opening(kind: &str, request_id: &str, raw_bytes: usize) -> String {
    let id = serde_json::to_string(request_id).unwrap_or_default();
    let mut text = String::with_capacity(raw_bytes.saturating_mul(4) / 3 + id.len() + 192);
    text.push_str("{\"type\":\"");
    text.push_str(kind);
    text.push('"');
    if !request_id.is_empty() {
        text.push_str(",\"request_id\":");
        text.push_str(&id);
    }
    text.push_str(",\"payload\":{");
    text
}

fn closing(now: Wall) -> String {
    format!("}},\"timestamp\":\"{}\"}}", now.rfc3339())
}

/// Encoding of the body of a `proxy_response`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Encoding {
    /// Base64 of the body.
    Base64,
    /// Base64 of a gzip stream of the body.
    Gzip,
}

/// A `proxy_response` in one piece; `body` is what `encoding` says, before base64.
pub fn proxy_response(
    request_id: &str,
    status: u16,
    headers: &HeaderList,
    body: (&[u8], Encoding),
    now: Wall,
) -> String {
    let (body, encoding) = body;
    if body.is_empty() {
        #[derive(Serialize)]
        struct Payload {
            headers: Headers,
            status: u16,
        }
        let payload = Payload {
            headers: Headers::new(headers),
            status,
        };
        return message("proxy_response", request_id, payload, now);
    }
    let ResponseParts { opening, closing } =
        ResponseParts::new(request_id, status, headers, encoding, now);
    let mut text = opening;
    text.reserve(body.len().saturating_mul(4) / 3 + closing.len() + 4);
    BASE64.encode_string(body, &mut text);
    text.push_str(&closing);
    text
}

/// A `proxy_response` that is sent in parts: `opening`, base64 of the body (cut at multiples of
/// three bytes), `closing`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ResponseParts {
    /// Everything before the base64.
    pub opening: String,
    /// Everything after it.
    pub closing: String,
}

impl ResponseParts {
    /// The parts around a body.
    pub fn new(
        request_id: &str,
        status: u16,
        headers: &HeaderList,
        encoding: Encoding,
        now: Wall,
    ) -> Self {
        let mut start = opening("proxy_response", request_id, 0);
        start.push_str("\"body\":\"");
        let encoding = match encoding {
            Encoding::Base64 => "base64",
            Encoding::Gzip => "gzip",
        };
        let headers = header_object(headers);
        let end = closing(now);
        Self {
            opening: start,
            closing: format!(
                "\",\"encoding\":\"{encoding}\",\"headers\":{headers},\"status\":{status}{end}"
            ),
        }
    }

    /// The base64 text of a part of the body.
    pub fn body(part: &[u8]) -> String {
        BASE64.encode(part)
    }
}

/// Everything before the body of a binary response (docs/protocol.md, Buffered responses). `None`
/// where the id does not fit its length field.
pub fn binary_response_head(
    request_id: &str,
    status: u16,
    headers: &HeaderList,
) -> Option<Vec<u8>> {
    let headers = header_object(headers);
    let mut head = Vec::with_capacity(request_id.len() + headers.len() + 10);
    head.extend(u16::try_from(request_id.len()).ok()?.to_be_bytes());
    head.extend(request_id.as_bytes());
    head.extend(u32::from(status).to_be_bytes());
    head.extend(u32::try_from(headers.len()).ok()?.to_be_bytes());
    head.extend(headers.as_bytes());
    Some(head)
}

fn framed(opcode: u8, payload: &[u8]) -> String {
    let mut framed = Vec::with_capacity(payload.len() + 1);
    framed.push(opcode);
    framed.extend(payload);
    BASE64.encode(framed)
}

/// `proxy_websocket_data` of an application WebSocket.
pub fn app_socket_data(stream_id: &str, opcode: u8, payload: &[u8], now: Wall) -> String {
    #[derive(Serialize)]
    struct Payload<'a> {
        data: String,
        message_type: u8,
        request_id: &'a str,
        stream_id: &'a str,
    }
    let payload = Payload {
        data: framed(opcode, payload),
        message_type: opcode,
        request_id: stream_id,
        stream_id,
    };
    message("proxy_websocket_data", stream_id, payload, now)
}

/// `proxy_websocket_data` of exec, attach or port-forward.
pub fn kube_socket_data(stream_id: &str, opcode: u8, payload: &[u8], now: Wall) -> String {
    #[derive(Serialize)]
    struct Payload<'a> {
        data: String,
        stream_id: &'a str,
    }
    let payload = Payload {
        data: framed(opcode, payload),
        stream_id,
    };
    message("proxy_websocket_data", stream_id, payload, now)
}

/// `proxy_websocket_close`: the end of a stream, whoever ended it.
pub fn socket_close(stream_id: &str, now: Wall) -> String {
    #[derive(Serialize)]
    struct Payload<'a> {
        stream_id: &'a str,
    }
    message(
        "proxy_websocket_close",
        stream_id,
        Payload { stream_id },
        now,
    )
}

/// `tcp_tunnel_close`: how a legacy tunnel is refused.
pub fn tcp_tunnel_close(request_id: &str, error: &str, now: Wall) -> String {
    #[derive(Serialize)]
    struct Payload<'a> {
        error: &'a str,
        reason: &'a str,
    }
    let payload = Payload {
        error,
        reason: "connection_failed",
    };
    message("tcp_tunnel_close", request_id, payload, now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::control::{Inbound, decode};
    use expect_test::{Expect, expect};
    use proptest::prelude::*;

    const NOW: Wall = Wall::from_millis(1_781_589_028_123);

    fn is(message: &str, wanted: &Expect) {
        wanted.assert_eq(&message.replace(r#""timestamp":"2026-06-16T05:50:28.123Z"}"#, "NOW"));
    }

    fn headers() -> HeaderList {
        vec![("content-type".to_owned(), vec!["text/plain".to_owned()])]
    }

    #[test]
    fn buffered_answers_are_as_the_protocol_has_them() {
        let body = (b"hello".as_slice(), Encoding::Base64);
        is(
            &proxy_response("pr-82", 200, &headers(), body, NOW),
            &expect![[
                r#"{"type":"proxy_response","request_id":"pr-82","payload":{"body":"aGVsbG8=","encoding":"base64","headers":{"Content-Type":["text/plain"]},"status":200},NOW"#
            ]],
        );
        let nothing = (b"".as_slice(), Encoding::Base64);
        is(
            &proxy_response("pr-82", 204, &Vec::new(), nothing, NOW),
            &expect![[
                r#"{"type":"proxy_response","request_id":"pr-82","payload":{"headers":null,"status":204},NOW"#
            ]],
        );
        is(
            &proxy_error("pr-82", "a \"b\"", NOW),
            &expect![[
                r#"{"type":"proxy_error","request_id":"pr-82","payload":{"error":"a \"b\""},NOW"#
            ]],
        );
    }

    #[test]
    fn streamed_answers_are_as_the_protocol_has_them() {
        is(
            &proxy_response_header("pr-81", 200, &headers(), NOW),
            &expect![[
                r#"{"type":"proxy_response_header","request_id":"pr-81","payload":{"headers":{"Content-Type":["text/plain"]},"status":200},NOW"#
            ]],
        );
        is(
            &proxy_response_chunk("pr-81", b"{\"kind\":", NOW),
            &expect![[
                r#"{"type":"proxy_response_chunk","request_id":"pr-81","payload":{"data":"eyJraW5kIjo=","encoding":"base64","size":8},NOW"#
            ]],
        );
        is(
            &proxy_response_end("pr-81", NOW),
            &expect![[r#"{"type":"proxy_response_end","request_id":"pr-81","payload":{},NOW"#]],
        );
        is(
            &proxy_response_abort("pr-81", "x", NOW),
            &expect![[
                r#"{"type":"proxy_response_abort","request_id":"pr-81","payload":{"error":"x"},NOW"#
            ]],
        );
    }

    #[test]
    fn frames_of_websockets_are_as_the_protocol_has_them() {
        is(
            &app_socket_data("ws-5", 1, b"hello", NOW),
            &expect![[
                r#"{"type":"proxy_websocket_data","request_id":"ws-5","payload":{"data":"AWhlbGxv","message_type":1,"request_id":"ws-5","stream_id":"ws-5"},NOW"#
            ]],
        );
        is(
            &kube_socket_data("ex-9", 2, b"x", NOW),
            &expect![[
                r#"{"type":"proxy_websocket_data","request_id":"ex-9","payload":{"data":"Ang=","stream_id":"ex-9"},NOW"#
            ]],
        );
        is(
            &socket_close("ex-9", NOW),
            &expect![[
                r#"{"type":"proxy_websocket_close","request_id":"ex-9","payload":{"stream_id":"ex-9"},NOW"#
            ]],
        );
        is(
            &stream_error("ex-9", "no", NOW),
            &expect![[
                r#"{"type":"proxy_error","request_id":"ex-9","payload":{"error":"no","request_id":"ex-9"},NOW"#
            ]],
        );
        is(
            &backpressure("ws-5", NOW),
            &expect![[
                r#"{"type":"backpressure","request_id":"ws-5","payload":{"reason":"channel_full","request_id":"ws-5"},NOW"#
            ]],
        );
        is(
            &tcp_tunnel_close("t-1", "no", NOW),
            &expect![[
                r#"{"type":"tcp_tunnel_close","request_id":"t-1","payload":{"error":"no","reason":"connection_failed"},NOW"#
            ]],
        );
    }

    #[test]
    fn the_binary_response_is_the_example_of_the_protocol() {
        let mut message = binary_response_head("req-7", 200, &headers()).unwrap();
        message.extend(b"BODY");
        let wanted = [
            b"\x00\x05req-7\x00\x00\x00\xc8\x00\x00\x00\x1f".as_slice(),
            br#"{"Content-Type":["text/plain"]}BODY"#,
        ];
        assert_eq!(message, wanted.concat());
        assert_eq!(
            binary_response_head(&"x".repeat(70_000), 200, &headers()),
            None
        );
    }

    #[test]
    fn a_response_in_parts_is_the_same_message() {
        let body: Vec<u8> = (0..=255).collect();
        let parts = ResponseParts::new("id", 200, &headers(), Encoding::Base64, NOW);
        let pieces: String = body.chunks(3).map(ResponseParts::body).collect();
        let whole = proxy_response("id", 200, &headers(), (&body, Encoding::Base64), NOW);
        assert_eq!([parts.opening, pieces, parts.closing].concat(), whole);
    }

    #[test]
    fn names_of_headers_are_in_the_canonical_form_of_go() {
        for (name, wanted) in [
            ("content-type", "Content-Type"),
            ("SEC-WEBSOCKET-ACCEPT", "Sec-Websocket-Accept"),
            ("etag", "Etag"),
            ("x--y", "X--Y"),
        ] {
            assert_eq!(canonical(name), wanted);
        }
        let twice = vec![
            ("a".to_owned(), vec!["1".to_owned()]),
            ("A".to_owned(), vec!["2".to_owned()]),
        ];
        assert_eq!(header_object(&twice), r#"{"A":["1","2"]}"#);
        assert_eq!(header_object(&Vec::new()), "null");
    }

    proptest! {
        #[test]
        fn whatever_is_said_can_be_decoded(id in "\\PC{0,40}", text in "\\PC{0,80}", data: Vec<u8>, status: u16) {
            let headers = vec![("x-a".to_owned(), vec![text.clone()])];
            for message in [
                proxy_error(&id, &text, NOW),
                stream_error(&id, &text, NOW),
                proxy_response_abort(&id, &text, NOW),
                proxy_response_end(&id, NOW),
                proxy_response_header(&id, status, &headers, NOW),
                proxy_response_chunk(&id, &data, NOW),
                proxy_response(&id, status, &headers, (&data, Encoding::Gzip), NOW),
                app_socket_data(&id, 2, &data, NOW),
                kube_socket_data(&id, 1, &data, NOW),
                socket_close(&id, NOW),
                backpressure(&id, NOW),
                tcp_tunnel_close(&id, &text, NOW),
            ] {
                let decoded = decode(message.as_bytes());
                prop_assert!(decoded.is_ok(), "{message}");
            }
        }

        #[test]
        fn frames_come_back_as_they_were_sent(id in "[a-z]{1,9}", data in proptest::collection::vec(any::<u8>(), 1..200)) {
            let message = app_socket_data(&id, 2, &data, NOW);
            let Ok(Inbound::Proxy(super::super::ProxyMessage::SocketData(read))) = decode(message.as_bytes()) else {
                panic!("{message}");
            };
            prop_assert_eq!(read.application_id, Some(id));
            prop_assert_eq!(&read.data.unwrap()[1..], data.as_slice());
        }
    }
}

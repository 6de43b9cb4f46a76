//! The messages of proxied exchanges: requests, their bodies, cancels and the frames of WebSockets.

use std::borrow::Cow;

use hyper::body::Bytes;
use serde_json::value::RawValue;

use super::{
    BODY_BYTES_MAX, ID_BYTES_MAX,
    fields::{Field, Fields, Unusable, base64, go_duration, string},
};
use crate::core::{
    proxy::{Asked, Limit, Scheme},
    time::Wall,
};

/// A message that belongs to proxied exchanges.
#[derive(Debug)]
pub enum ProxyMessage {
    /// A request to run against the cluster.
    Request(Box<ProxyRequest>),
    /// A request that cannot be used as it was sent; it gets an answer all the same.
    Unusable {
        /// The id to answer under; empty where there was none.
        id: String,
        /// In which form it expects the answer.
        answer: Answer,
        /// What is wrong, for the answer.
        reason: String,
    },
    /// A piece of a request body.
    Chunk {
        /// Whose body.
        request_id: String,
        /// The bytes; `None` where they could not be decoded, which ends the request: a body with a hole must not arrive.
        data: Option<Bytes>,
    },
    /// The end of a request body.
    BodyEnd {
        /// Whose body.
        request_id: String,
    },
    /// Stop this request.
    Cancel {
        /// Which one.
        request_id: String,
    },
    /// The obsolete `proxy_stream_data`: dropped and counted.
    StreamData,
    /// Open exec, attach or port-forward.
    SocketStart(Box<SocketStart>),
    /// A WebSocket frame for a backend.
    SocketData(SocketData),
    /// The client of a WebSocket is gone.
    SocketClose {
        /// Candidates for the stream's id in the order in which they count.
        ids: Vec<String>,
    },
    /// A legacy TCP tunnel is asked for.
    TcpTunnelStart {
        /// The id to refuse it under.
        request_id: String,
    },
    /// Data or close of a legacy tunnel that we never opened: dropped and counted.
    TunnelStray,
    /// A message without the id that it needs: dropped and counted.
    Nameless,
}

/// In which form an answer is expected.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Answer {
    /// One `proxy_response` or `proxy_error`.
    Buffered,
    /// `proxy_response_header`, chunks and an end, or an abort.
    Streaming,
    /// `proxy_error` that repeats the id in its payload, then a close.
    Socket,
}

/// A `proxy_request`.
#[derive(Debug)]
pub struct ProxyRequest {
    /// Echoed in every answer.
    pub request_id: String,
    /// What is asked for.
    pub asked: Asked,
    /// Where its body is.
    pub body: RequestBody,
    /// [`Answer::Buffered`] or [`Answer::Streaming`].
    pub answer: Answer,
}

/// Where the body of a request is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum RequestBody {
    /// There is none.
    None,
    /// In the message.
    Inline(Bytes),
    /// In the next binary message.
    NextBinary,
    /// In `proxy_request_chunk` messages.
    Chunked,
}

/// A `proxy_websocket_start`.
#[derive(Debug)]
pub struct SocketStart {
    /// Names the stream in all its messages.
    pub stream_id: String,
    /// What is asked for; always a GET upgrade.
    pub asked: Asked,
}

/// A WebSocket frame for a backend.
#[derive(Debug)]
pub struct SocketData {
    /// The stream of exec, attach or port-forward that this may belong to.
    pub stream_id: Option<String>,
    /// The application WebSocket that it otherwise belongs to.
    pub application_id: Option<String>,
    /// Opcode and payload; `None` where they could not be decoded, which ends the stream.
    pub data: Option<Bytes>,
    /// The opcode beside the data.
    pub message_type: Option<u8>,
}

/// Reads the message of a proxy type; `None` for any other type.
pub(super) fn understand(
    kind: &str,
    envelope_id: &str,
    fields: &Fields<'_>,
) -> Option<ProxyMessage> {
    let named = |message: fn(String) -> ProxyMessage| {
        id(envelope_id).map_or(ProxyMessage::Nameless, message)
    };
    Some(match kind {
        "proxy_request" => request(envelope_id, fields),
        "proxy_request_chunk" => chunk(envelope_id, fields),
        "proxy_request_stream_end" => named(|request_id| ProxyMessage::BodyEnd { request_id }),
        "proxy_cancel" => named(|request_id| ProxyMessage::Cancel { request_id }),
        "proxy_stream_data" => ProxyMessage::StreamData,
        "proxy_websocket_start" | "ws_start" => socket_start(envelope_id, fields),
        "proxy_websocket_data" | "ws_data" => socket_data(envelope_id, fields),
        "proxy_websocket_close" | "ws_close" => socket_close(envelope_id, fields),
        "tcp_tunnel_start" => named(|request_id| ProxyMessage::TcpTunnelStart { request_id }),
        "tcp_tunnel_data" | "tcp_tunnel_close" | "udp_tunnel_data" => ProxyMessage::TunnelStray,
        _ => return None,
    })
}

/// Splits a binary message with a request body (5.3) into request id and body. `None` where it is too short for its own length.
pub fn binary_body(message: &[u8]) -> Option<(&str, &[u8])> {
    let (length, rest) = message.split_first_chunk::<2>()?;
    let (id, body) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
    Some((std::str::from_utf8(id).ok()?, body))
}

fn id(text: &str) -> Option<String> {
    (!text.is_empty() && text.len() <= ID_BYTES_MAX).then(|| text.to_owned())
}

fn request(envelope_id: &str, fields: &Fields<'_>) -> ProxyMessage {
    let answer = if fields.is_true(Field::SupportsResponseStreaming) {
        Answer::Streaming
    } else {
        Answer::Buffered
    };
    if envelope_id.is_empty() {
        return ProxyMessage::Nameless;
    }
    let Some(request_id) = id(envelope_id) else {
        return too_long(envelope_id, answer);
    };
    match asked(fields).and_then(|asked| Ok((asked, body(fields)?))) {
        Ok((asked, body)) => ProxyMessage::Request(Box::new(ProxyRequest {
            request_id,
            asked,
            body,
            answer,
        })),
        Err(Unusable(reason)) => ProxyMessage::Unusable {
            id: request_id,
            answer,
            reason,
        },
    }
}

/// The answer still has to say whose it is; beyond the limit of the binary frames there is nobody to answer.
fn too_long(id: &str, answer: Answer) -> ProxyMessage {
    if id.len() > usize::from(u16::MAX) {
        return ProxyMessage::Nameless;
    }
    ProxyMessage::Unusable {
        id: id.to_owned(),
        answer,
        reason: format!("the id is longer than {ID_BYTES_MAX} bytes"),
    }
}

fn asked(fields: &Fields<'_>) -> Result<Asked, Unusable> {
    let text = |name, bytes_max| {
        let text: Option<Cow<'_, str>> = fields.text(name, bytes_max)?;
        Ok::<_, Unusable>(text.map(Cow::into_owned).unwrap_or_default())
    };
    Ok(Asked {
        method: text(Field::Method, 64)?,
        path: text(Field::Path, 16 * 1024)?,
        query: text(Field::Query, 32 * 1024)?,
        headers: fields.headers()?,
        scheme: if text(Field::Scheme, 64)? == "https" {
            Scheme::Https
        } else {
            Scheme::Http
        },
        namespace: text(Field::Namespace, 1024)?,
        service: text(Field::ServiceName, 1024)?,
        port: fields.integer(Field::ServicePort).unwrap_or(0),
        is_websocket: fields.is_true(Field::IsWebSocket) || fields.is_true(Field::IsWebSocketCamel),
        protocol: text(Field::Protocol, 4096)?,
        limit: limit(fields),
    })
}

fn limit(fields: &Fields<'_>) -> Limit {
    let deadline = fields.word(Field::Deadline);
    if let Some(wall) = deadline.as_deref().and_then(Wall::parse_rfc3339) {
        return Limit::Deadline(wall);
    }
    let timeout = match fields.integer(Field::Timeout) {
        Some(millis) => u64::try_from(millis)
            .ok()
            .map(std::time::Duration::from_millis),
        None => fields.word(Field::Timeout).as_deref().and_then(go_duration),
    };
    timeout
        .filter(|timeout| !timeout.is_zero())
        .map_or(Limit::Default, Limit::Timeout)
}

fn body(fields: &Fields<'_>) -> Result<RequestBody, Unusable> {
    if fields.is_true(Field::UseStreaming) || fields.is_true(Field::Streaming) {
        return Ok(RequestBody::Chunked);
    }
    if fields.is_true(Field::BodyBinary) {
        return Ok(RequestBody::NextBinary);
    }
    let Some(raw) = fields.raw(Field::Body) else {
        return Ok(RequestBody::None);
    };
    let bytes = match raw.get().as_bytes().first() {
        Some(b'"') => inline_text(fields, raw)?,
        Some(b'{' | b'[') => compact(raw.get()),
        _ => return Ok(RequestBody::None),
    };
    if bytes.len() > BODY_BYTES_MAX {
        return Err(body_too_large());
    }
    if bytes.is_empty() {
        return Ok(RequestBody::None);
    }
    Ok(RequestBody::Inline(Bytes::from(bytes)))
}

fn body_too_large() -> Unusable {
    Unusable(format!(
        "the request body is larger than {BODY_BYTES_MAX} bytes; send it in proxy_request_chunk messages"
    ))
}

fn inline_text(fields: &Fields<'_>, raw: &RawValue) -> Result<Vec<u8>, Unusable> {
    // Escapes can make the text in the message six times as long as what it says, but then it is no sensible sender.
    if raw.get().len() > BODY_BYTES_MAX * 3 / 2 {
        return Err(body_too_large());
    }
    let text = string(raw)
        .ok_or_else(|| Unusable("the request body is not a valid JSON string".to_owned()))?;
    let encoding = fields.word(Field::BodyEncoding).unwrap_or_default();
    if encoding.eq_ignore_ascii_case("base64") {
        return base64(&text)
            .ok_or_else(|| Unusable("the request body is not standard base64".to_owned()));
    }
    Ok(text.into_owned().into_bytes())
}

/// Removes the white space between the tokens of valid JSON.
fn compact(json: &str) -> Vec<u8> {
    let mut compact = Vec::with_capacity(json.len());
    let (mut is_string, mut is_escaped) = (false, false);
    for byte in json.bytes() {
        if is_string {
            is_string = is_escaped || byte != b'"';
            is_escaped = !is_escaped && byte == b'\\';
        } else if byte == b'"' {
            is_string = true;
        } else if byte.is_ascii_whitespace() {
            continue;
        }
        compact.push(byte);
    }
    compact
}

/// Decoded bytes of a `data` (or, in the alias, `chunk`) field. `None` where the field is there and cannot be decoded.
fn data(fields: &Fields<'_>, names: &[Field]) -> Option<Bytes> {
    let raw = names
        .iter()
        .filter_map(|name| fields.raw(*name))
        .find(|raw| raw.get().starts_with('"'));
    let Some(raw) = raw else {
        return Some(Bytes::new());
    };
    base64(&string(raw)?).map(Bytes::from)
}

fn chunk(envelope_id: &str, fields: &Fields<'_>) -> ProxyMessage {
    let Some(request_id) = id(envelope_id) else {
        return ProxyMessage::Nameless;
    };
    ProxyMessage::Chunk {
        request_id,
        data: data(fields, &[Field::Data, Field::Chunk]),
    }
}

fn socket_start(envelope_id: &str, fields: &Fields<'_>) -> ProxyMessage {
    let sent = fields.text(Field::StreamId, usize::from(u16::MAX));
    let Some(sent) = sent.ok().flatten().filter(|id| !id.is_empty()) else {
        return ProxyMessage::Unusable {
            id: id(envelope_id).unwrap_or_default(),
            answer: Answer::Buffered,
            reason: "missing stream_id".to_owned(),
        };
    };
    let Some(stream_id) = id(&sent) else {
        return too_long(&sent, Answer::Socket);
    };
    match asked(fields) {
        Ok(asked) => ProxyMessage::SocketStart(Box::new(SocketStart { stream_id, asked })),
        Err(Unusable(reason)) => ProxyMessage::Unusable {
            id: stream_id,
            answer: Answer::Socket,
            reason,
        },
    }
}

fn payload_id(fields: &Fields<'_>, name: Field) -> Option<String> {
    let text = fields.text(name, ID_BYTES_MAX).ok().flatten()?;
    id(&text)
}

fn socket_data(envelope_id: &str, fields: &Fields<'_>) -> ProxyMessage {
    let stream_id = payload_id(fields, Field::StreamId);
    let application_id = payload_id(fields, Field::RequestId)
        .or_else(|| stream_id.clone())
        .or_else(|| id(envelope_id));
    if application_id.is_none() {
        return ProxyMessage::Nameless;
    }
    ProxyMessage::SocketData(SocketData {
        stream_id,
        application_id,
        data: data(fields, &[Field::Data]),
        message_type: fields
            .integer(Field::MessageType)
            .and_then(|kind| u8::try_from(kind).ok()),
    })
}

fn socket_close(envelope_id: &str, fields: &Fields<'_>) -> ProxyMessage {
    let ids: Vec<String> = [
        payload_id(fields, Field::RequestId),
        payload_id(fields, Field::StreamId),
        id(envelope_id),
    ]
    .into_iter()
    .flatten()
    .collect();
    if ids.is_empty() {
        return ProxyMessage::Nameless;
    }
    ProxyMessage::SocketClose { ids }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        core::proxy::HeaderList,
        wire::control::{Inbound, decode},
    };
    use proptest::prelude::*;
    use std::time::Duration;

    fn message(text: &str) -> ProxyMessage {
        match decode(text.as_bytes()) {
            Ok(Inbound::Proxy(message)) => message,
            other => panic!("{text}: {other:?}"),
        }
    }

    fn request(payload: &str) -> ProxyRequest {
        let text = format!(r#"{{"type":"proxy_request","request_id":"r","payload":{payload}}}"#);
        match message(&text) {
            ProxyMessage::Request(request) => *request,
            other => panic!("{payload}: {other:?}"),
        }
    }

    fn unusable(payload: &str) -> String {
        let text = format!(r#"{{"type":"proxy_request","request_id":"r","payload":{payload}}}"#);
        match message(&text) {
            ProxyMessage::Unusable { reason, .. } => reason,
            other => panic!("{payload}: {other:?}"),
        }
    }

    #[test]
    fn the_examples_of_the_protocol_are_read() {
        let first = request(
            r#"{"method":"GET","path":"/api/v1/namespaces/default/pods","query":"limit=50&watch=false",
                "headers":{"Accept":["application/json"],"Authorization":["Bearer eyJ"]},"supports_response_streaming":true,"timeout":30000}"#,
        );
        assert_eq!(first.answer, Answer::Streaming);
        assert_eq!(first.asked.query, "limit=50&watch=false");
        assert_eq!(first.asked.limit, Limit::Timeout(Duration::from_secs(30)));
        assert_eq!(first.asked.headers[1].1, ["Bearer eyJ"]);
        let second = request(
            r#"{"method":"POST","path":"/login","scheme":"https","namespace":"pipeops-system","service_name":"traefik","service_port":80,
                "headers":{"Host":["app.example.com"],"Content-Type":["application/json"]},"body":"eyJ1IjoiYSJ9","body_encoding":"base64"}"#,
        );
        assert_eq!(second.answer, Answer::Buffered);
        assert_eq!(
            (second.asked.scheme, second.asked.port),
            (Scheme::Https, 80)
        );
        assert_eq!(
            second.body,
            RequestBody::Inline(Bytes::from_static(br#"{"u":"a"}"#))
        );
    }

    #[test]
    fn values_of_the_wrong_type_are_absent() {
        let read = request(
            r#"{"method":5,"path":null,"query":["a"],"headers":"x","service_port":"80","namespace":{"a":1},"timeout":true,
                "supports_response_streaming":"true","is_websocket":1,"body":7,"use_streaming":"yes","deadline":5}"#,
        );
        let nothing = request("{}");
        assert_eq!(read.asked, nothing.asked);
        assert_eq!(
            (read.body, read.answer),
            (RequestBody::None, Answer::Buffered)
        );
        assert_eq!(nothing.asked.limit, Limit::Default);
    }

    #[test]
    fn headers_are_strings_or_arrays_of_strings_and_the_last_of_two_counts() {
        let read = request(
            r#"{"headers":{"A":"1","B":["2",3,{"x":[4]},"5"],"C":7,"A":"6","d\u0041":["\n"]}}"#,
        );
        let wanted: HeaderList = [
            ("B", vec!["2", "5"]),
            ("C", vec![]),
            ("A", vec!["6"]),
            ("dA", vec!["\n"]),
        ]
        .into_iter()
        .map(|(name, values)| {
            (
                name.to_owned(),
                values.into_iter().map(str::to_owned).collect(),
            )
        })
        .collect();
        assert_eq!(read.asked.headers, wanted);
    }

    #[test]
    fn numbers_are_doubles_cut_towards_zero() {
        for (number, wanted) in [
            ("80", 80),
            ("80.9", 80),
            ("-1.9", -1),
            ("8e1", 80),
            ("1e300", 0),
            ("-0.0", 0),
            ("65536.0", 65_536),
        ] {
            let read = request(&format!(r#"{{"service_port":{number}}}"#));
            assert_eq!(read.asked.port, wanted, "{number}");
        }
    }

    #[test]
    fn time_limits_are_read_in_all_their_forms() {
        for (payload, wanted) in [
            (
                r#"{"timeout":1500.7}"#,
                Limit::Timeout(Duration::from_millis(1500)),
            ),
            (
                r#"{"timeout":"1m30s"}"#,
                Limit::Timeout(Duration::from_secs(90)),
            ),
            (
                r#"{"timeout":"1.5h"}"#,
                Limit::Timeout(Duration::from_secs(5400)),
            ),
            (
                r#"{"timeout":"250ms"}"#,
                Limit::Timeout(Duration::from_millis(250)),
            ),
            (r#"{"timeout":"0"}"#, Limit::Default),
            (r#"{"timeout":"-5s"}"#, Limit::Default),
            (r#"{"timeout":-5}"#, Limit::Default),
            (r#"{"timeout":"5"}"#, Limit::Default),
            (r#"{"timeout":"soon"}"#, Limit::Default),
            (
                r#"{"timeout":5000,"deadline":"1970-01-01T00:00:01.5Z"}"#,
                Limit::Deadline(Wall::from_millis(1500)),
            ),
            (
                r#"{"timeout":5000,"deadline":"noon"}"#,
                Limit::Timeout(Duration::from_secs(5)),
            ),
        ] {
            assert_eq!(request(payload).asked.limit, wanted, "{payload}");
        }
    }

    #[test]
    fn bodies_are_read_in_all_their_forms() {
        for (payload, wanted) in [
            (r#"{"body":"a\u00fc"}"#, RequestBody::Inline("aü".into())),
            (
                r#"{"body":"YQ==","body_encoding":"Base64"}"#,
                RequestBody::Inline("a".into()),
            ),
            (
                r#"{"body":"Y\r\nQ==","body_encoding":"base64"}"#,
                RequestBody::Inline("a".into()),
            ),
            (
                r#"{"body":"YQ==","body_encoding":"hex"}"#,
                RequestBody::Inline("YQ==".into()),
            ),
            (
                r#"{"body":{ "b" : [ 1 , "x \" y" ] } }"#,
                RequestBody::Inline(r#"{"b":[1,"x \" y"]}"#.into()),
            ),
            (r#"{"body":""}"#, RequestBody::None),
            (r#"{"body":null}"#, RequestBody::None),
            (r#"{"body":"x","streaming":true}"#, RequestBody::Chunked),
            (
                r#"{"body":"x","body_binary":true}"#,
                RequestBody::NextBinary,
            ),
        ] {
            assert_eq!(request(payload).body, wanted, "{payload}");
        }
        for payload in [
            r#"{"body":"YQ","body_encoding":"base64"}"#,
            r#"{"body":"Y_==","body_encoding":"base64"}"#,
            r#"{"body":"\ud800"}"#,
        ] {
            assert!(unusable(payload).contains("body"), "{payload}");
        }
    }

    #[test]
    fn what_is_too_much_is_named_and_not_stored() {
        let many: Vec<String> = (0..300_000)
            .map(|number| format!("\"h{number}\":\"v\""))
            .collect();
        let text = format!(r#"{{"headers":{{{}}}}}"#, many.join(","));
        assert!(unusable(&text).starts_with("headers are more than"));
        let text = format!(
            r#"{{"headers":{{"a":[{}]}}}}"#,
            "\"\",".repeat(300_000) + "\"\""
        );
        assert!(unusable(&text).starts_with("headers are more than"));
        let text = format!(r#"{{"body":"{}"}}"#, "x".repeat(9 << 20));
        assert!(unusable(&text).starts_with("the request body is larger"));
        let text = format!(
            r#"{{"type":"proxy_request","request_id":"{}","payload":{{}}}}"#,
            "i".repeat(600)
        );
        assert!(matches!(message(&text), ProxyMessage::Unusable { id, .. } if id.len() == 600));
        let text = text.replace(&"i".repeat(600), &"i".repeat(70_000));
        assert!(matches!(message(&text), ProxyMessage::Nameless));
    }

    #[test]
    fn a_binary_body_says_whose_it_is() {
        assert_eq!(
            binary_body(b"\x00\x02idbody"),
            Some(("id", b"body".as_slice()))
        );
        assert_eq!(binary_body(b"\x00\x02id"), Some(("id", b"".as_slice())));
        for short in [b"".as_slice(), b"\x00", b"\x00\x03id", b"\x00\x01\xff"] {
            assert_eq!(binary_body(short), None);
        }
    }

    #[test]
    fn the_id_of_a_frame_is_looked_for_where_the_protocol_says() {
        for (text, stream, application) in [
            (
                r#"{"type":"ws_data","request_id":"e","payload":{"data":"AQ=="}}"#,
                None,
                Some("e"),
            ),
            (
                r#"{"type":"ws_data","request_id":"e","payload":{"stream_id":"s","data":"AQ=="}}"#,
                Some("s"),
                Some("s"),
            ),
            (
                r#"{"type":"proxy_websocket_data","request_id":"e","payload":{"request_id":"p","stream_id":"s"}}"#,
                Some("s"),
                Some("p"),
            ),
        ] {
            let ProxyMessage::SocketData(read) = message(text) else {
                panic!("{text}");
            };
            assert_eq!(
                (read.stream_id.as_deref(), read.application_id.as_deref()),
                (stream, application)
            );
        }
        assert!(matches!(
            message(r#"{"type":"ws_data","payload":{"data":"AQ=="}}"#),
            ProxyMessage::Nameless
        ));
    }

    /// JSON of any shape, with the protocol's own names in it.
    fn json() -> impl Strategy<Value = String> {
        let name = prop_oneof![
            Just("headers"),
            Just("body"),
            Just("timeout"),
            Just("service_port"),
            Just("data"),
            Just("stream_id"),
            Just("path"),
            Just("x"),
        ];
        let leaf = prop_oneof![
            Just("null".to_owned()),
            Just("true".to_owned()),
            any::<f64>().prop_filter_map("finite", |n| n.is_finite().then(|| n.to_string())),
            "[ -~]{0,12}".prop_map(|text| serde_json::to_string(&text).unwrap()),
            Just("\"\\ud800\"".to_owned()),
        ];
        leaf.prop_recursive(4, 24, 4, move |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4)
                    .prop_map(|items| format!("[{}]", items.join(","))),
                proptest::collection::vec((name.clone(), inner), 0..5).prop_map(|members| {
                    let members: Vec<String> = members
                        .into_iter()
                        .map(|(name, value)| format!("\"{name}\":{value}"))
                        .collect();
                    format!("{{{}}}", members.join(","))
                }),
            ]
        })
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_decoder_panic(bytes: Vec<u8>) {
            let decoded = decode(&bytes);
            prop_assert!(decoded.is_ok() || !decoded.unwrap_err().reason.is_empty());
            prop_assert!(binary_body(&bytes).is_none_or(|(id, body)| id.len() + body.len() + 2 == bytes.len()));
        }

        #[test]
        fn every_object_with_a_proxy_type_is_a_proxy_message(payload in json(), kind in prop_oneof![
            Just("proxy_request"), Just("proxy_request_chunk"), Just("ws_start"), Just("ws_data"), Just("ws_close"), Just("proxy_cancel"),
        ]) {
            let text = format!(r#"{{"payload":{payload},"type":"{kind}","request_id":"r"}}"#);
            let is_object = payload.starts_with('{') || payload == "null";
            match decode(text.as_bytes()) {
                Ok(Inbound::Proxy(_)) => prop_assert!(is_object),
                Ok(other) => prop_assert!(false, "{other:?}"),
                Err(_) => prop_assert!(!is_object, "{text}"),
            }
        }
    }
}

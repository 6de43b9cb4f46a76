//! The messages of proxied exchanges: requests, their bodies, cancels and the frames of WebSockets.

use std::borrow::Cow;

use hyper::body::Bytes;
use serde_json::value::RawValue;

use super::{
    BODY_BYTES_MAX, ID_BYTES_MAX,
    fields::{Field, Fields, Unusable, base64, go_duration, string},
};
use crate::core::{
    proxy::{Limit, RawRequest, Scheme},
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
        answer: AnswerForm,
        /// Problem, for the answer.
        reason: String,
    },
    /// A piece of a request body.
    Chunk {
        /// Request of the body.
        request_id: String,
        /// The bytes; `None` where they could not be decoded, which ends the request: a body with a
        /// hole must not arrive.
        data: Option<Bytes>,
    },
    /// The end of a request body.
    BodyEnd {
        /// Request of the body.
        request_id: String,
    },
    /// Stop this request.
    Cancel {
        /// Request to stop.
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
pub enum AnswerForm {
    /// One `proxy_response` or `proxy_error`.
    Buffered,
    /// `proxy_response_header`, chunks and an end, or an abort.
    Streaming,
    /// `proxy_error` that repeats the id in its payload, then a close.
    Socket,
}

#[derive(Debug)]
pub struct ProxyRequest {
    /// Echoed in every answer.
    pub request_id: String,
    /// The request.
    pub asked: RawRequest,
    /// Location of the body.
    pub body: RequestBody,
    /// [`AnswerForm::Buffered`] or [`AnswerForm::Streaming`].
    pub answer: AnswerForm,
}

/// Location of the body of a request.
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
    /// The request; always a GET upgrade.
    pub asked: RawRequest,
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

/// Splits a binary message with a request body (docs/protocol.md, Requests) into request id and
/// body. `None` where it is shorter than its own length field says.
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
        AnswerForm::Streaming
    } else {
        AnswerForm::Buffered
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

/// The answer still has to say whose it is; beyond the limit of the binary frames there is nobody
/// to answer.
fn too_long(id: &str, answer: AnswerForm) -> ProxyMessage {
    if id.len() > usize::from(u16::MAX) {
        return ProxyMessage::Nameless;
    }
    ProxyMessage::Unusable {
        id: id.to_owned(),
        answer,
        reason: format!("the id is longer than {ID_BYTES_MAX} bytes"),
    }
}

fn asked(fields: &Fields<'_>) -> Result<RawRequest, Unusable> {
    let text = |name, bytes_max| {
        let text: Option<Cow<'_, str>> = fields.text(name, bytes_max)?;
        Ok::<_, Unusable>(text.map(Cow::into_owned).unwrap_or_default())
    };
    Ok(RawRequest {
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
    // Escapes can make the text in the message six times as long as what it says, but then it is no
    // sensible sender.
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

/// Decoded bytes of a `data` (or, in the alias, `chunk`) field. `None` where the field is there and
/// cannot be decoded.
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
            answer: AnswerForm::Buffered,
            reason: "missing stream_id".to_owned(),
        };
    };
    let Some(stream_id) = id(&sent) else {
        return too_long(&sent, AnswerForm::Socket);
    };
    match asked(fields) {
        Ok(asked) => ProxyMessage::SocketStart(Box::new(SocketStart { stream_id, asked })),
        Err(Unusable(reason)) => ProxyMessage::Unusable {
            id: stream_id,
            answer: AnswerForm::Socket,
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
mod tests;

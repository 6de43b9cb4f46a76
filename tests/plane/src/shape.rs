//! The shapes of the wire: the envelope, the binary frames, and answers decoded from all forms.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::Read;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::read::MultiGzDecoder;
use hyper::body::Bytes;
use hyper::http::response::Parts;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::clock;

/// A message from an agent, its payload not yet parsed.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Envelope<'a> {
    #[serde(borrow, rename = "type")]
    pub(crate) kind: Cow<'a, str>,
    #[serde(default, borrow)]
    pub(crate) request_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(crate) payload: &'a RawValue,
    #[serde(borrow)]
    pub(crate) timestamp: Cow<'a, str>,
}

/// `proxy_response_chunk`, the one message that must be parsed fast.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Chunk<'a> {
    #[serde(borrow)]
    pub(crate) data: Cow<'a, str>,
    #[serde(borrow)]
    pub(crate) encoding: Cow<'a, str>,
    pub(crate) size: usize,
}

/// A whole `proxy_response_chunk` in one pass: these are nearly all the bytes of a session.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChunkMessage<'a> {
    #[serde(borrow, rename = "type")]
    pub(crate) kind: Cow<'a, str>,
    #[serde(borrow)]
    pub(crate) request_id: Cow<'a, str>,
    #[serde(borrow)]
    pub(crate) payload: Chunk<'a>,
    #[serde(borrow)]
    pub(crate) timestamp: Cow<'a, str>,
}

impl<'a> ChunkMessage<'a> {
    /// Reads a message that is probably one; what is not goes the slower way.
    pub(crate) fn guess(data: &'a [u8]) -> Option<Self> {
        const KIND: &[u8] = b"\"proxy_response_chunk\"";
        // The type comes first in what agents send, but nothing may depend on it.
        let start = data.get(..64).unwrap_or_default();
        if !start.windows(KIND.len()).any(|part| part == KIND) {
            return None;
        }
        let message: Self = serde_json::from_slice(data).ok()?;
        (message.kind == "proxy_response_chunk").then_some(message)
    }
}

/// The head of an answer: `proxy_response_header`, or the first part of the other forms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The HTTP status.
    pub status: u16,
    /// Names as the agent wrote them (in lower case, from a stream), with all their values.
    pub headers: BTreeMap<String, Vec<String>>,
}

impl Head {
    /// The first value of a header, whatever the case of its name.
    pub fn header(&self, name: &str) -> Option<&str> {
        let (_, values) = self
            .headers
            .iter()
            .find(|(key, _)| key.eq_ignore_ascii_case(name))?;
        values.first().map(String::as_str)
    }

    /// Reads `status` and `headers` (an object of arrays, or `null`).
    pub(crate) fn of(status: Option<&Value>, headers: Option<&Value>) -> Result<Self, String> {
        let status = status
            .and_then(Value::as_u64)
            .and_then(|status| u16::try_from(status).ok())
            .filter(|status| (100..1000).contains(status))
            .ok_or("status is no HTTP status")?;
        let headers = match headers {
            None => return Err("headers are missing".to_owned()),
            Some(Value::Null) => BTreeMap::new(),
            Some(value) => BTreeMap::deserialize(value)
                .map_err(|error| format!("headers are no object of string arrays: {error}"))?,
        };
        Ok(Self { status, headers })
    }
}

impl From<&Parts> for Head {
    fn from(parts: &Parts) -> Self {
        let mut headers: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (name, value) in &parts.headers {
            let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
            headers
                .entry(name.as_str().to_owned())
                .or_default()
                .push(value);
        }
        Self {
            status: parts.status.as_u16(),
            headers,
        }
    }
}

/// A message to an agent as JSON text.
pub(crate) fn message(kind: &str, request_id: Option<&str>, payload: Value) -> Vec<u8> {
    let mut envelope = Map::new();
    envelope.insert("type".to_owned(), kind.into());
    if let Some(id) = request_id {
        envelope.insert("request_id".to_owned(), id.into());
    }
    envelope.insert("payload".to_owned(), payload);
    envelope.insert("timestamp".to_owned(), clock::rfc3339().into());
    Value::Object(envelope).to_string().into_bytes()
}

/// The payload of a stream's data message: opcode byte and bytes in base64.
pub(crate) fn framed(stream_id: &str, opcode: u8, data: &[u8]) -> Value {
    let mut bytes = Vec::with_capacity(data.len().saturating_add(1));
    bytes.push(opcode);
    bytes.extend_from_slice(data);
    json!({
        "request_id": stream_id,
        "stream_id": stream_id,
        "data": STANDARD.encode(&bytes),
        "message_type": opcode,
    })
}

/// Decodes standard base64 with padding, the only one on this wire.
pub(crate) fn base64(text: &str) -> Result<Bytes, String> {
    STANDARD
        .decode(text)
        .map(Bytes::from)
        .map_err(|error| format!("not standard base64: {error}"))
}

/// A request body as the binary message that follows its `proxy_request`.
pub(crate) fn body_frame(id: &str, body: &[u8]) -> Vec<u8> {
    let id = id.as_bytes();
    let mut frame = Vec::with_capacity(body.len().saturating_add(id.len()).saturating_add(2));
    frame.extend_from_slice(&u16::try_from(id.len()).unwrap_or(u16::MAX).to_be_bytes());
    frame.extend_from_slice(id);
    frame.extend_from_slice(body);
    frame
}

/// The large binary answer of the buffered mode.
#[derive(Debug)]
pub(crate) struct BinaryAnswer<'a> {
    pub(crate) id: &'a str,
    pub(crate) head: Head,
    pub(crate) body: &'a [u8],
}

impl<'a> BinaryAnswer<'a> {
    /// Reads `u16 id, u32 status, u32 headers, body`.
    pub(crate) fn parse(frame: &'a [u8]) -> Result<Self, String> {
        let short = || "a binary message is no answer: it is too short".to_owned();
        let (id_bytes, rest) = frame.split_first_chunk::<2>().ok_or_else(short)?;
        let (id, rest) = rest
            .split_at_checked(u16::from_be_bytes(*id_bytes).into())
            .ok_or_else(short)?;
        let id = std::str::from_utf8(id)
            .map_err(|error| format!("the id of a binary answer is no text: {error}"))?;
        let (status, rest) = rest.split_first_chunk::<4>().ok_or_else(short)?;
        let (headers_bytes, rest) = rest.split_first_chunk::<4>().ok_or_else(short)?;
        let headers_bytes = usize::try_from(u32::from_be_bytes(*headers_bytes))
            .map_err(|error| error.to_string())?;
        let (headers, body) = rest.split_at_checked(headers_bytes).ok_or_else(short)?;
        let headers: Value = serde_json::from_slice(headers)
            .map_err(|error| format!("the headers of a binary answer are no JSON: {error}"))?;
        let status = Value::from(u32::from_be_bytes(*status));
        Ok(Self {
            id,
            head: Head::of(Some(&status), Some(&headers))?,
            body,
        })
    }

    /// The body, with one layer of gzip undone where the agent added it. The frame does not say
    /// so: the magic number does, unless the backend's own `Content-Length` fits what came.
    pub(crate) fn body(&self) -> Bytes {
        let raw = || Bytes::copy_from_slice(self.body);
        if !self.body.starts_with(&[0x1f, 0x8b]) {
            return raw();
        }
        let announced = self
            .head
            .header("content-length")
            .and_then(|length| length.parse::<usize>().ok());
        if announced == Some(self.body.len()) {
            return raw();
        }
        let Ok(once) = gunzip(self.body) else {
            return raw();
        };
        // A backend that said gzip itself: only a second layer below the first shows that the
        // agent added one.
        let is_own = self
            .head
            .header("content-encoding")
            .is_some_and(|encoding| encoding.contains("gzip"));
        if is_own && announced != Some(once.len()) && !once.starts_with(&[0x1f, 0x8b]) {
            return raw();
        }
        once
    }
}

/// 256 MiB: what one compressed answer may become.
const GUNZIP_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// Undoes gzip.
pub(crate) fn gunzip(data: &[u8]) -> Result<Bytes, String> {
    let mut out = Vec::new();
    let mut decoder = MultiGzDecoder::new(data).take(GUNZIP_BYTES_MAX);
    let bytes = decoder
        .read_to_end(&mut out)
        .map_err(|error| format!("broken gzip: {error}"))?;
    if u64::try_from(bytes).is_ok_and(|bytes| bytes >= GUNZIP_BYTES_MAX) {
        return Err("the unpacked body is too large".to_owned());
    }
    Ok(out.into())
}

/// Decodes `proxy_response`: the head and the body.
pub(crate) fn buffered_answer(payload: &Value) -> Result<(Head, Bytes), String> {
    let head = Head::of(payload.get("status"), payload.get("headers"))?;
    let body = match (payload.get("body"), payload.get("encoding")) {
        (None, None) => Bytes::new(),
        (Some(Value::String(body)), Some(Value::String(encoding))) => match encoding.as_str() {
            "base64" => base64(body)?,
            "gzip" => gunzip(&base64(body)?)?,
            other => return Err(format!("unknown encoding {other:?}")),
        },
        _ => return Err("body and encoding are not two strings".to_owned()),
    };
    Ok((head, body))
}

/// Decodes the data of a stream's message: the opcode byte and what follows.
pub(crate) fn unframed(payload: &Value) -> Result<(u8, Bytes), String> {
    let text = payload
        .get("data")
        .and_then(Value::as_str)
        .ok_or("data is no string")?;
    let data = base64(text)?;
    let opcode = *data.first().ok_or("data is empty: the opcode is missing")?;
    Ok((opcode, data.slice(1..)))
}

/// Decodes `%XX`; a path on this wire is a decoded one (docs/protocol.md, Requests).
pub(crate) fn percent_decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((first, after)) = rest.split_first() {
        let hex = (*first == b'%')
            .then(|| after.split_at_checked(2))
            .flatten()
            .and_then(|(hex, after)| {
                let hex = std::str::from_utf8(hex).ok()?;
                Some((u8::from_str_radix(hex, 16).ok()?, after))
            });
        let (byte, after) = hex.unwrap_or((*first, after));
        out.push(byte);
        rest = after;
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn the_documented_binary_answer_is_read() {
        let mut frame = vec![0, 5];
        frame.extend(b"req-7");
        frame.extend([0, 0, 0, 0xc8, 0, 0, 0, 0x1f]);
        frame.extend(br#"{"Content-Type":["text/plain"]}BODY"#);
        let answer = BinaryAnswer::parse(&frame).unwrap();
        assert_eq!((answer.id, answer.head.status), ("req-7", 200));
        assert_eq!(answer.head.header("content-type"), Some("text/plain"));
        assert_eq!(&answer.body()[..], b"BODY");
        for cut in 0..frame.len() - 4 {
            assert!(BinaryAnswer::parse(&frame[..cut]).is_err(), "cut at {cut}");
        }
    }

    fn gzip(data: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap()
    }

    fn binary_body(headers: &str, body: &[u8]) -> Bytes {
        let mut frame = vec![0, 1, b'r', 0, 0, 0, 200];
        frame.extend(u32::try_from(headers.len()).unwrap().to_be_bytes());
        frame.extend(headers.as_bytes());
        frame.extend(body);
        BinaryAnswer::parse(&frame).unwrap().body()
    }

    #[test]
    fn gzip_in_a_binary_answer_is_undone_exactly_once() {
        let plain = b"some text some text some text";
        let once = gzip(plain);
        let twice = gzip(&once);
        assert_eq!(binary_body("null", &once), &plain[..]);
        let own = r#"{"Content-Encoding":["gzip"]}"#;
        assert_eq!(binary_body(own, &once), once);
        assert_eq!(binary_body(own, &twice), once);
        let length = format!(r#"{{"Content-Length":["{}"]}}"#, once.len());
        assert_eq!(binary_body(&length, &once), once, "a .gz file as it is");
    }

    #[test]
    fn buffered_answers_are_read_in_every_encoding() {
        let plain = json!({"status": 204, "headers": null});
        assert_eq!(buffered_answer(&plain).unwrap().1, Bytes::new());
        let packed = STANDARD.encode(gzip(b"hello"));
        let packed = json!({"status": 200, "headers": {}, "body": packed, "encoding": "gzip"});
        assert_eq!(buffered_answer(&packed).unwrap().1, &b"hello"[..]);
        for bad in [
            json!({"status": 200}),
            json!({"status": 20, "headers": null}),
            json!({"status": 200, "headers": {"A": "b"}}),
            json!({"status": 200, "headers": null, "body": "aGk"}),
            json!({"status": 200, "headers": null, "body": "aGk", "encoding": "base64"}),
            json!({"status": 200, "headers": null, "body": "", "encoding": "zstd"}),
        ] {
            assert!(buffered_answer(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_path_is_decoded_and_broken_escapes_stay() {
        assert_eq!(percent_decode("/a%20b%2Fc%C3%A9"), "/a b/cé");
        assert_eq!(percent_decode("/100%/%zz%4"), "/100%/%zz%4");
    }
}

//! Lenient reader of one message: its known fields as raw JSON, without a tree.

use std::{borrow::Cow, fmt, time::Duration};

use base64::{
    Engine,
    alphabet::STANDARD,
    engine::{GeneralPurpose, GeneralPurposeConfig},
};
use serde::{
    Deserialize, Deserializer,
    de::{self, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

use crate::{core::proxy::HeaderList, wire::json};

/// Standard base64 with padding; bits behind the last byte are not looked at, as in Go.
pub(super) const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

/// Nesting beyond this makes a message undecodable, as in Go's decoder. It also bounds the memory
/// that skipping a value takes.
const DEPTH_MAX: u32 = 10_000;

macro_rules! known {
    ($($name:literal $variant:ident),* $(,)?) => {
        /// The payload fields that any message has a use for.
        #[derive(Clone, Copy, Debug, Eq, PartialEq)]
        pub(super) enum Field { $(#[doc = $name] $variant),* }

        const NAMES: &[(&str, Field)] = &[$(($name, Field::$variant)),*];
    };
}

known! {
    "args" Args,
    "body" Body,
    "body_binary" BodyBinary,
    "body_encoding" BodyEncoding,
    "chunk" Chunk,
    "cluster_id" ClusterId,
    "cluster_uuid" ClusterUuid,
    "data" Data,
    "deadline" Deadline,
    "epoch" Epoch,
    "error" Error,
    "from" From,
    "gateway_ws_url" GatewayWsUrl,
    "headers" Headers,
    "id" Id,
    "isWebSocket" IsWebSocketCamel,
    "is_websocket" IsWebSocket,
    "issued_at" IssuedAt,
    "limits" Limits,
    "message_type" MessageType,
    "method" Method,
    "name" Label,
    "namespace" Namespace,
    "path" Path,
    "protocol" Protocol,
    "query" Query,
    "request_id" RequestId,
    "scheme" Scheme,
    "service_name" ServiceName,
    "service_port" ServicePort,
    "status" Status,
    "stream" Stream,
    "stream_id" StreamId,
    "streaming" Streaming,
    "streams" Streams,
    "supports_response_streaming" SupportsResponseStreaming,
    "timeout" Timeout,
    "to" To,
    "tunnel_id" TunnelId,
    "use_streaming" UseStreaming,
    "use_yamux" UseYamux,
    "verb" CommandVerb,
    "version" Version,
    "yamux_config" YamuxConfig,
    // Members of `yamux_config`.
    "connection_timeout_seconds" ConnectionTimeoutSeconds,
    "keep_alive_interval_seconds" KeepAliveIntervalSeconds,
    "max_stream_window_size" MaxStreamWindowSize,
    // A member of `limits`.
    "batch_bytes_max" BatchBytesMax,
}

impl Field {
    fn find(name: &str) -> Option<Self> {
        NAMES
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, name)| *name)
    }
}

/// The known fields of one object, each as the text of its JSON value. Of two fields of one name
/// the last counts.
#[derive(Debug, Default)]
pub(super) struct Fields<'a> {
    found: Vec<(Field, &'a RawValue)>,
}

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object or null")
            }

            fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
                Ok(Fields::default())
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = Fields::default();
                while let Some(key) = map.next_key::<Key<'de>>()? {
                    let Some(name) = Field::find(&key.0) else {
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    };
                    let value = map.next_value()?;
                    // At most one entry a known name, so the list stays short whatever is sent.
                    fields.found.retain(|(other, _)| *other != name);
                    fields.found.push((name, value));
                }
                Ok(fields)
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

/// An object key, borrowed where it has no escapes.
pub(super) struct Key<'a>(pub(super) Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Key<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Key<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key")
            }

            fn visit_borrowed_str<E: de::Error>(self, key: &'de str) -> Result<Self::Value, E> {
                Ok(Key(Cow::Borrowed(key)))
            }

            fn visit_str<E: de::Error>(self, key: &str) -> Result<Self::Value, E> {
                Ok(Key(Cow::Owned(key.to_owned())))
            }
        }
        deserializer.deserialize_str(Reader)
    }
}

/// Reason why a field that is there cannot be used.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Unusable(pub(super) String);

impl<'a> Fields<'a> {
    /// The members of an object; none where it is anything else.
    pub(super) fn of_object(raw: Option<&'a RawValue>) -> Self {
        raw.and_then(|raw| json::read(raw.get()).ok())
            .unwrap_or_default()
    }

    /// The raw value of a field.
    pub(super) fn raw(&self, name: Field) -> Option<&'a RawValue> {
        self.found
            .iter()
            .find(|(found, _)| *found == name)
            .map(|(_, raw)| *raw)
    }

    /// A string of at most `bytes_max` bytes as written in JSON; absent where it is no string.
    pub(super) fn text(
        &self,
        name: Field,
        bytes_max: usize,
    ) -> Result<Option<Cow<'a, str>>, Unusable> {
        let Some(raw) = self.raw(name) else {
            return Ok(None);
        };
        if !raw.get().starts_with('"') {
            return Ok(None);
        }
        if raw.get().len() > bytes_max.saturating_add(2) {
            let name = NAMES.iter().find(|(_, known)| *known == name);
            let name = name.map_or("a field", |(name, _)| *name);
            return Err(Unusable(format!("{name} is longer than {bytes_max} bytes")));
        }
        Ok(string(raw))
    }

    /// A short string, absent where it is empty, too long or no string.
    pub(super) fn word(&self, name: Field) -> Option<String> {
        self.text(name, 4096)
            .ok()
            .flatten()
            .filter(|text| !text.is_empty())
            .map(Cow::into_owned)
    }

    /// Returns whether a boolean field says `true`.
    pub(super) fn is_true(&self, name: Field) -> bool {
        self.raw(name).is_some_and(|raw| raw.get() == "true")
    }

    /// A number, as the double that every number of the protocol is.
    pub(super) fn number(&self, name: Field) -> Option<f64> {
        let raw = self.raw(name)?.get();
        if raw.starts_with('"') {
            return None;
        }
        json::read(raw).ok()
    }

    /// A number, truncated towards zero; absent beyond 2^53, where doubles stop being exact.
    pub(super) fn integer(&self, name: Field) -> Option<i64> {
        let number = self.number(name)?.trunc();
        (number.abs() < 9_007_199_254_740_992.0)
            .then(|| format!("{number:.0}").parse().ok())
            .flatten()
    }

    /// The headers: an object of strings or arrays of strings.
    pub(super) fn headers(&self) -> Result<HeaderList, Unusable> {
        let Some(raw) = self.raw(Field::Headers) else {
            return Ok(HeaderList::default());
        };
        if !raw.get().starts_with('{') {
            return Ok(HeaderList::default());
        }
        let Headers { list, is_too_much } = json::read(raw.get()).unwrap_or_default();
        if is_too_much {
            return Err(Unusable(format!(
                "headers are more than {HEADER_VALUES_MAX} values or {HEADER_BYTES_MAX} bytes"
            )));
        }
        Ok(list)
    }
}

/// The text of a JSON string; `None` for other values and for lone surrogates.
pub(super) fn string(raw: &RawValue) -> Option<Cow<'_, str>> {
    let inner = raw.get().strip_prefix('"')?.strip_suffix('"')?;
    if inner.contains('\\') {
        return json::read(raw.get()).ok().map(Cow::Owned);
    }
    Some(Cow::Borrowed(inner))
}

/// Decodes standard base64 with padding. Line breaks inside it are tolerated, as Go does.
pub(super) fn base64(text: &str) -> Option<Vec<u8>> {
    if text.contains(['\r', '\n']) {
        return BASE64.decode(text.replace(['\r', '\n'], "")).ok();
    }
    BASE64.decode(text).ok()
}

/// Header values that one request may carry.
const HEADER_VALUES_MAX: usize = 256;
/// Bytes of header names and values that one request may carry.
const HEADER_BYTES_MAX: usize = 64 * 1024;

/// Headers while they are read. Where there is too much, the rest is skipped instead of stored.
#[derive(Default)]
struct Headers {
    list: HeaderList,
    is_too_much: bool,
}

impl<'de> Deserialize<'de> for Headers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Headers;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut budget = Budget::default();
                let mut list = HeaderList::default();
                while let Some(name) = map.next_key::<Key<'de>>()? {
                    let raw: &RawValue = map.next_value()?;
                    let Some(values) = budget.values(&name.0, raw) else {
                        continue;
                    };
                    // Of two equal names the last counts, as in a Go map.
                    list.retain(|(other, _)| *other != name.0);
                    list.push((name.0.into_owned(), values));
                }
                Ok(Headers {
                    list,
                    is_too_much: budget.is_spent,
                })
            }
        }
        deserializer.deserialize_map(Reader)
    }
}

/// Remaining budget for stored headers.
#[derive(Default)]
struct Budget {
    names: usize,
    values: usize,
    bytes: usize,
    is_spent: bool,
}

impl Budget {
    fn values(&mut self, name: &str, raw: &RawValue) -> Option<Vec<String>> {
        self.names += 1;
        self.bytes = self.bytes.saturating_add(name.len());
        self.is_spent |= self.names > HEADER_VALUES_MAX || self.bytes > HEADER_BYTES_MAX;
        if self.is_spent {
            return None;
        }
        let mut values = Vec::new();
        if raw.get().starts_with('[') {
            let mut reader = serde_json::Deserializer::from_str(raw.get());
            reader
                .deserialize_seq(Values {
                    budget: self,
                    values: &mut values,
                })
                .ok()?;
        } else {
            self.add(raw, &mut values);
        }
        Some(values)
    }

    fn add(&mut self, raw: &RawValue, values: &mut Vec<String>) {
        if !raw.get().starts_with('"') || self.is_spent {
            return;
        }
        self.values += 1;
        self.bytes = self.bytes.saturating_add(raw.get().len());
        self.is_spent |= self.values > HEADER_VALUES_MAX || self.bytes > HEADER_BYTES_MAX;
        if !self.is_spent {
            values.extend(string(raw).map(Cow::into_owned));
        }
    }
}

struct Values<'b> {
    budget: &'b mut Budget,
    values: &'b mut Vec<String>,
}

impl<'de> Visitor<'de> for Values<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while let Some(item) = items.next_element::<&'de RawValue>()? {
            self.budget.add(item, self.values);
        }
        Ok(())
    }
}

/// Returns whether the brackets nest no deeper than a decoder should follow. One pass, no memory.
pub(super) fn is_shallow(message: &str) -> bool {
    let (mut depth, mut is_string, mut is_escaped) = (0_u32, false, false);
    for byte in message.bytes() {
        if is_string {
            if is_escaped {
                is_escaped = false;
            } else if byte == b'\\' {
                is_escaped = true;
            } else if byte == b'"' {
                is_string = false;
            }
            continue;
        }
        match byte {
            b'"' => is_string = true,
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > DEPTH_MAX {
            return false;
        }
    }
    true
}

/// Reads a Go duration (`1m30s`, `250ms`, `1.5h`). Negative ones are zero: their time is over.
/// `None` for anything else.
pub(super) fn go_duration(text: &str) -> Option<Duration> {
    let (is_negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    if rest.is_empty() || rest.len() > 64 {
        return None;
    }
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at_checked(end)?;
        let number: f64 = number.parse().ok()?;
        let units = [
            ("ns", 1e-9),
            ("us", 1e-6),
            ("µs", 1e-6),
            ("μs", 1e-6),
            ("ms", 1e-3),
            ("s", 1.0),
            ("m", 60.0),
            ("h", 3600.0),
        ];
        let (unit, scale) = units.iter().find(|(unit, _)| tail.starts_with(unit))?;
        seconds += number * scale;
        rest = tail.strip_prefix(unit)?;
    }
    if is_negative {
        return Some(Duration::ZERO);
    }
    Duration::try_from_secs_f64(seconds).ok()
}

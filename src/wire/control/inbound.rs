//! Messages of the control plane.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{self, IgnoredAny, MapAccess, Visitor},
};
use serde_json::value::RawValue;

use super::{
    ID_BYTES_MAX, command,
    edge::{self, EdgeHello},
    fields::{Field, Fields, Key, is_shallow, string},
    proxied::{self, ProxyMessage},
};
use crate::{
    core::{
        command::RawCommand,
        outbox::{Acknowledgement, Stream},
        time::Wall,
    },
    wire::json,
};

/// One control message.
#[derive(Debug)]
pub enum Inbound {
    /// The answer to `register`.
    RegisterSuccess(RegisterSuccess),
    /// The control plane is still at it. It does not extend the wait.
    RegisterInProgress,
    /// A heartbeat arrived. Not every control plane says so.
    HeartbeatAck,
    /// The gateway offers yamux.
    GatewayHello(GatewayHello),
    /// The control plane knows the extension.
    EdgeHello(EdgeHello),
    /// It says that it has records; `None`: it does not say which.
    EdgeAck(Option<(Stream, Acknowledgement)>),
    /// It wants something done; `None`: under no id.
    EdgeCommand(Option<Box<RawCommand>>),
    /// Answer with `pong` under the same id.
    Ping {
        /// Echoed in the `pong`.
        request_id: Option<String>,
    },
    /// An answer to a ping that we never send.
    Pong,
    /// A refusal or a diagnostic in free text.
    Error {
        /// At most 4 KiB of it.
        text: String,
        /// Id of the request that it answers, if it names one.
        request_id: Option<String>,
    },
    /// Everything that belongs to proxied exchanges.
    Proxy(ProxyMessage),
    /// A type that this version does not know: answered once a type and connection.
    Unknown {
        /// The type as sent, at most 128 bytes of it.
        kind: String,
        /// The id as sent.
        request_id: Option<String>,
    },
}

/// Reason why a message is dropped: it gets no answer and the connection stays.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Undecodable {
    /// Problem with the message; never contains the message itself.
    pub reason: String,
}

impl fmt::Display for Undecodable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for Undecodable {}

/// The payload of `register_success`. Empty strings are absent.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct RegisterSuccess {
    /// Must be the id of the `register` message.
    pub request_id: Option<String>,
    /// Without it the registration failed.
    pub cluster_id: Option<String>,
    /// The gateway's name for the cluster; falls back to `cluster_id`.
    pub cluster_uuid: Option<String>,
    /// For the log.
    pub name: Option<String>,
    /// For the log.
    pub status: Option<String>,
    /// Gateway to connect to; absent: stay here.
    pub gateway_ws_url: Option<String>,
}

/// The payload of `gateway_hello`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GatewayHello {
    /// `false`: ignore the message, no answer.
    pub use_yamux: bool,
    /// Bytes that a stream's receive window should have.
    pub max_stream_window_bytes: Option<u64>,
    /// Seconds between keep-alives.
    pub keep_alive_interval_s: Option<f64>,
    /// Seconds for writes and dials.
    pub connection_timeout_s: Option<f64>,
}

/// Reads one message, from a text frame or from a binary one while yamux is not active.
pub fn decode(message: &[u8]) -> Result<Inbound, Undecodable> {
    let text =
        std::str::from_utf8(message).map_err(|error| undecodable(format!("not UTF-8: {error}")))?;
    if !is_shallow(text) {
        return Err(undecodable("nested too deeply"));
    }
    let envelope: Envelope<'_> = json::read(text)
        .map_err(|error| undecodable(format!("no control message: {}", position(&error))))?;
    Ok(understand(&envelope))
}

fn undecodable(reason: impl Into<String>) -> Undecodable {
    Undecodable {
        reason: reason.into(),
    }
}

/// The kind and place of a JSON error without the quoted content, which may hold secrets.
fn position(error: &serde_json::Error) -> String {
    format!(
        "{:?} error at line {} column {}",
        error.classify(),
        error.line(),
        error.column()
    )
    .to_lowercase()
}

fn understand(envelope: &Envelope<'_>) -> Inbound {
    let fields = &envelope.payload;
    let request_id = envelope.request_id();
    match envelope.kind.as_ref() {
        "register_success" => Inbound::RegisterSuccess(RegisterSuccess {
            request_id,
            cluster_id: fields.word(Field::ClusterId),
            cluster_uuid: fields.word(Field::ClusterUuid),
            name: fields.word(Field::Label),
            status: fields.word(Field::Status),
            gateway_ws_url: fields.word(Field::GatewayWsUrl),
        }),
        "register_in_progress" => Inbound::RegisterInProgress,
        "heartbeat_ack" => Inbound::HeartbeatAck,
        "gateway_hello" => Inbound::GatewayHello(gateway_hello(fields)),
        "edge_hello" => Inbound::EdgeHello(EdgeHello::of(fields)),
        "edge_ack" => Inbound::EdgeAck(edge::acknowledgement(fields)),
        "edge_command" => Inbound::EdgeCommand(command::command(fields).map(Box::new)),
        "ping" => Inbound::Ping { request_id },
        "pong" => Inbound::Pong,
        "error" => Inbound::Error {
            text: fields
                .text(Field::Error, ERROR_BYTES_MAX)
                .ok()
                .flatten()
                .map_or_else(String::new, |text| cut(&text, 4096)),
            request_id,
        },
        kind => proxied::understand(kind, &envelope.request_id, fields).map_or_else(
            || Inbound::Unknown {
                kind: cut(kind, 128),
                request_id,
            },
            Inbound::Proxy,
        ),
    }
}

fn gateway_hello(fields: &Fields<'_>) -> GatewayHello {
    let config = Fields::of_object(fields.raw(Field::YamuxConfig));
    let positive = |name| config.number(name).filter(|number| *number > 0.0);
    GatewayHello {
        use_yamux: fields.is_true(Field::UseYamux),
        max_stream_window_bytes: config
            .integer(Field::MaxStreamWindowSize)
            .and_then(|bytes| u64::try_from(bytes).ok())
            .filter(|bytes| *bytes > 0),
        keep_alive_interval_s: positive(Field::KeepAliveIntervalSeconds),
        connection_timeout_s: positive(Field::ConnectionTimeoutSeconds),
    }
}

/// Longest text of an error that is looked at.
const ERROR_BYTES_MAX: usize = 256 * 1024;

fn cut(text: &str, bytes_max: usize) -> String {
    text.get(..text.floor_char_boundary(bytes_max))
        .unwrap_or_default()
        .to_owned()
}

/// The outermost object: keys match in any case, of two equal ones the last counts.
struct Envelope<'a> {
    kind: Cow<'a, str>,
    request_id: Cow<'a, str>,
    payload: Fields<'a>,
}

impl Envelope<'_> {
    fn request_id(&self) -> Option<String> {
        let id = self.request_id.as_ref();
        (!id.is_empty() && id.len() <= ID_BYTES_MAX).then(|| id.to_owned())
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Envelope<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Envelope<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut envelope = Envelope {
                    kind: Cow::Borrowed(""),
                    request_id: Cow::Borrowed(""),
                    payload: Fields::default(),
                };
                while let Some(key) = map.next_key::<Key<'de>>()? {
                    let is = |name: &str| key.0.eq_ignore_ascii_case(name);
                    if is("type") {
                        text_or_null(map.next_value()?, &mut envelope.kind)?;
                    } else if is("request_id") {
                        text_or_null(map.next_value()?, &mut envelope.request_id)?;
                    } else if is("payload") {
                        envelope.payload = map.next_value()?;
                    } else if is("timestamp") {
                        stamp_or_null(map.next_value()?)?;
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(envelope)
            }
        }
        deserializer.deserialize_map(Reader)
    }
}

/// `null` leaves what was there, as in Go.
fn text_or_null<'a, E: de::Error>(raw: &'a RawValue, text: &mut Cow<'a, str>) -> Result<(), E> {
    if raw.get() == "null" {
        return Ok(());
    }
    *text = string(raw).ok_or_else(|| E::custom("not a string"))?;
    Ok(())
}

fn stamp_or_null<E: de::Error>(raw: &RawValue) -> Result<(), E> {
    let is_fine = raw.get() == "null"
        || string(raw).is_some_and(|text| text.len() < 64 && Wall::parse_rfc3339(&text).is_some());
    if is_fine {
        return Ok(());
    }
    Err(E::custom("not a time stamp"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(text: &str) -> String {
        match decode(text.as_bytes()) {
            Ok(Inbound::Unknown { kind, .. }) => format!("unknown {kind}"),
            Ok(Inbound::Ping { request_id }) => {
                format!("ping {}", request_id.unwrap_or_default())
            }
            Ok(other) => format!("{other:?}"),
            Err(_) => "undecodable".to_owned(),
        }
    }

    #[test]
    fn the_envelope_is_read_by_the_rules_of_the_protocol() {
        for (text, wanted) in [
            (r#"{"type":"ping","request_id":"p"}"#, "ping p"),
            (
                r#"{"TYPE":"ping","Request_ID":"p","Payload":null}"#,
                "ping p",
            ),
            (
                r#"{"type":"ping","payload":{},"timestamp":"2026-06-16T05:50:28.123456789+02:00"}"#,
                "ping ",
            ),
            (
                r#"{"type":"ping","timestamp":null,"request_id":null}"#,
                "ping ",
            ),
            (
                r#"{"payload":{"x":[1,{"y":2}]},"more":[[]],"type":"ping"}"#,
                "ping ",
            ),
            (r#"{"type":"a","type":"ping"}"#, "ping "),
            (r#"{"type":"pi\u006eg"}"#, "ping "),
            (r#"{"type":""}"#, "unknown "),
            (r"{}", "unknown "),
            (r#"{"type":"frobnicate"}"#, "unknown frobnicate"),
            (r#"{"type":"ping","payload":[]}"#, "undecodable"),
            (r#"{"type":"ping","payload":"x"}"#, "undecodable"),
            (r#"{"type":"ping","payload":1}"#, "undecodable"),
            (r#"{"type":"ping","payload":true}"#, "undecodable"),
            (r#"{"type":"ping","timestamp":"noon"}"#, "undecodable"),
            (r#"{"type":"ping","timestamp":5}"#, "undecodable"),
            (r#"{"type":7}"#, "undecodable"),
            (r#"{"type":"ping","request_id":7}"#, "undecodable"),
            (r#"{"type":"ping"} x"#, "undecodable"),
            (r#"{"type":"ping""#, "undecodable"),
            (r#"["type","ping"]"#, "undecodable"),
            ("", "undecodable"),
            ("null", "undecodable"),
        ] {
            assert_eq!(kind(text), wanted, "{text}");
        }
        assert!(decode(b"{\"type\":\"\xff\"}").is_err());
    }

    #[test]
    fn nesting_of_any_depth_is_survived() {
        for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
            for depth in [1000, 100_000] {
                let inner = if open == "[" { "" } else { "1" };
                let text = format!(
                    r#"{{"type":"ping","payload":{{"x":{}{inner}{},"headers":0}}}}"#,
                    open.repeat(depth),
                    close.repeat(depth)
                );
                assert_eq!(decode(text.as_bytes()).is_ok(), depth < 10_000, "{depth}");
            }
        }
    }

    #[test]
    fn a_registration_is_read_with_wrong_types_as_absent() {
        let text = r#"{"type":"register_success","request_id":"r","payload":
            {"cluster_id":"c","cluster_uuid":"","name":5,"status":null,"gateway_ws_url":"wss://g/ws","x":1}}"#;
        let Ok(Inbound::RegisterSuccess(success)) = decode(text.as_bytes()) else {
            panic!("not a registration");
        };
        assert_eq!(
            success,
            RegisterSuccess {
                request_id: Some("r".to_owned()),
                cluster_id: Some("c".to_owned()),
                gateway_ws_url: Some("wss://g/ws".to_owned()),
                ..RegisterSuccess::default()
            }
        );
    }

    #[test]
    fn a_gateway_hello_keeps_positive_numbers_only() {
        let text = r#"{"type":"gateway_hello","payload":{"use_yamux":true,"yamux_config":
            {"max_stream_window_size":262144.9,"keep_alive_interval_seconds":-1,"connection_timeout_seconds":"30"}}}"#;
        let Ok(Inbound::GatewayHello(hello)) = decode(text.as_bytes()) else {
            panic!("not a hello");
        };
        assert_eq!(
            hello,
            GatewayHello {
                use_yamux: true,
                max_stream_window_bytes: Some(262_144),
                keep_alive_interval_s: None,
                connection_timeout_s: None,
            }
        );
    }

    #[test]
    fn what_is_wrong_is_said_without_quoting_the_message() {
        let error = decode(br#"{"type":"ping","payload":"secret"}"#).unwrap_err();
        assert!(!error.reason.contains("secret"), "{error}");
        assert!(error.reason.contains("column"), "{error}");
    }
}

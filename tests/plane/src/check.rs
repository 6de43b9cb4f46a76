//! Checks of an agent's messages, field by field (docs/protocol.md).
//!
//! Each function returns the sentences that say what is wrong; none means that all is well.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Text,
    Filled,
    Whole,
    Flag,
    Object,
    Texts,
    List,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    Always,
    Maybe,
}

type Field = (&'static str, Shape, Presence);

use Presence::{Always, Maybe};
use Shape::{Filled, Flag, List, Object, Text, Texts, Whole};

const REGISTER: &[Field] = &[
    ("agent_id", Filled, Always),
    ("name", Filled, Always),
    ("k8s_version", Text, Always),
    ("hostname", Text, Always),
    ("agent_version", Filled, Always),
    ("server_ip", Filled, Always),
    ("region", Filled, Always),
    ("cloud_provider", Filled, Always),
    ("tunnel_port_config", Object, Always),
    ("labels", Texts, Always),
    ("server_specs", Object, Always),
    ("features", Object, Always),
    ("metadata", Texts, Maybe),
    ("cluster_id", Filled, Maybe),
    ("k8s_service_token", Filled, Maybe),
];

const TUNNEL_PORTS: &[Field] = &[
    ("kubernetes_api", Whole, Maybe),
    ("kubelet", Whole, Maybe),
    ("agent_http", Whole, Maybe),
];

const SERVER_SPECS: &[Field] = &[
    ("cpu_cores", Whole, Maybe),
    ("memory_gb", Whole, Maybe),
    ("disk_gb", Whole, Maybe),
    ("os", Filled, Maybe),
];

// `supports_edge` is this project's offer of the extension; everything else is as it was.
const FEATURES: &[Field] = &[
    ("supports_streaming", Flag, Always),
    ("supports_binary_protocol", Flag, Always),
    ("supports_compression", Flag, Always),
    ("supports_websocket_proxy", Flag, Always),
    ("supports_gateway", Flag, Always),
    ("supports_response_streaming", Flag, Always),
    ("supports_edge", Flag, Maybe),
];

const HEARTBEAT: &[Field] = &[
    ("cluster_id", Filled, Always),
    ("agent_id", Filled, Always),
    ("status", Filled, Always),
    ("tunnel_status", Filled, Always),
    ("metadata", Object, Always),
    ("prometheus_url", Filled, Maybe),
    ("prometheus_username", Text, Maybe),
    ("prometheus_password", Text, Maybe),
    ("prometheus_ssl", Flag, Maybe),
    ("loki_url", Filled, Maybe),
    ("loki_username", Text, Maybe),
    ("loki_password", Text, Maybe),
    ("loki_ssl", Flag, Maybe),
    ("grafana_url", Filled, Maybe),
    ("grafana_username", Text, Maybe),
    ("grafana_password", Text, Maybe),
    ("grafana_ssl", Flag, Maybe),
    ("opencost_base_url", Filled, Maybe),
    ("opencost_username", Text, Maybe),
    ("opencost_password", Text, Maybe),
    ("worker_join", Object, Maybe),
];

const HEARTBEAT_METADATA: &[Field] = &[
    ("agent_version", Filled, Always),
    ("k8s_version", Text, Always),
    ("k8s_nodes", Whole, Always),
    ("k8s_pods", Whole, Always),
    ("cpu_usage", Filled, Always),
    ("memory_usage", Filled, Always),
    ("is_private", Flag, Always),
    ("gateway_routes", Whole, Always),
];

const FALLBACK: &[Field] = &[
    ("agent_version", Filled, Always),
    ("unknown_type", Text, Always),
    ("original_request_id", Filled, Maybe),
    ("supported_types", List, Always),
    ("fallback_mode", Filled, Always),
    ("protocol_version", Filled, Always),
    ("timestamp", Filled, Always),
];

/// The payload's fields of the messages that have no rules besides.
fn simple(kind: &str) -> Option<&'static [Field]> {
    Some(match kind {
        "pong" => &[("timestamp", Filled, Always)],
        "gateway_hello_ack" => &[("use_yamux", Flag, Always)],
        "edge_hello_ack" => &[("version", Whole, Always)],
        "edge_command_ack" => &[
            ("id", Filled, Always),
            ("state", Filled, Always),
            ("error", Filled, Maybe),
            ("fix", Filled, Maybe),
        ],
        "edge_batch" => &[
            ("agent_id", Filled, Always),
            ("stream", Filled, Always),
            ("epoch", Whole, Always),
            ("from", Whole, Always),
            ("to", Whole, Always),
            ("encoding", Filled, Always),
            ("data", Filled, Always),
            ("part", Whole, Maybe),
            ("parts", Whole, Maybe),
        ],
        "edge_gap" => &[
            ("agent_id", Filled, Always),
            ("stream", Filled, Always),
            ("epoch", Whole, Always),
            ("from", Whole, Always),
            ("to", Whole, Always),
            ("reason", Filled, Always),
        ],
        "protocol_fallback" => FALLBACK,
        "backpressure" => &[("request_id", Filled, Always), ("reason", Filled, Always)],
        "proxy_error" => &[("error", Filled, Always), ("request_id", Filled, Maybe)],
        "proxy_response" => &[
            ("status", Whole, Always),
            ("body", Filled, Maybe),
            ("encoding", Filled, Maybe),
            ("headers", Object, Maybe),
        ],
        "proxy_response_header" => &[("status", Whole, Always), ("headers", Object, Maybe)],
        "proxy_response_end" => &[],
        "proxy_response_abort" => &[("error", Filled, Always)],
        "proxy_websocket_data" => &[
            ("stream_id", Filled, Always),
            ("data", Filled, Always),
            ("request_id", Filled, Maybe),
            ("message_type", Whole, Maybe),
        ],
        "proxy_websocket_close" => &[("stream_id", Filled, Always), ("request_id", Filled, Maybe)],
        _ => return None,
    })
}

/// Checks the payload of any message but `register` and `heartbeat`; an unknown `type` is wrong.
pub(crate) fn payload(kind: &str, payload: &Value) -> Vec<String> {
    match simple(kind) {
        Some(known) => fields(kind, payload, known),
        None => vec![format!("unknown type {kind:?}")],
    }
}

/// Checks `register` (docs/protocol.md, Registration).
pub(crate) fn register(request_id: Option<&str>, payload: &Value) -> Vec<String> {
    let mut wrong = fields("register", payload, REGISTER);
    if request_id.is_none_or(str::is_empty) {
        wrong.push("register has no request_id".to_owned());
    }
    for (name, known) in [
        ("tunnel_port_config", TUNNEL_PORTS),
        ("server_specs", SERVER_SPECS),
        ("features", FEATURES),
    ] {
        if let Some(inner) = payload.get(name) {
            wrong.extend(fields(&format!("register.{name}"), inner, known));
        }
    }
    let metadata = |name| payload.get("metadata").and_then(|data| data.get(name));
    let expected = if payload.get("cluster_id").is_some() {
        "resume"
    } else {
        "fresh"
    };
    if let Some(mode) = metadata("registration_mode")
        && mode != expected
    {
        wrong.push(format!("registration_mode is {mode}, not {expected}"));
    }
    wrong
}

/// Checks `heartbeat` (docs/protocol.md, Heartbeats) against the session's cluster.
pub(crate) fn heartbeat(
    request_id: Option<&str>,
    payload: &Value,
    cluster_id: Option<&str>,
) -> Vec<String> {
    let mut wrong = fields("heartbeat", payload, HEARTBEAT);
    if request_id.is_some() {
        wrong.push("heartbeat has a request_id".to_owned());
    }
    if let Some(metadata) = payload.get("metadata") {
        wrong.extend(fields("heartbeat.metadata", metadata, HEARTBEAT_METADATA));
    }
    match cluster_id {
        None => wrong.push("heartbeat before any registration".to_owned()),
        Some(expected) => {
            if payload.get("cluster_id").and_then(Value::as_str) != Some(expected) {
                wrong.push(format!("heartbeat is not for cluster {expected}"));
            }
        }
    }
    let status = payload.get("status").and_then(Value::as_str);
    if !matches!(
        status,
        Some("healthy" | "reconnecting" | "disconnected") | None
    ) {
        wrong.push(format!("heartbeat has an unknown status {status:?}"));
    }
    for prefix in ["prometheus", "loki", "grafana"] {
        let parts = ["url", "username", "password", "ssl"];
        let there = parts.iter().filter(|part| {
            let name = format!("{prefix}_{part}");
            payload.get(&name).is_some()
        });
        if !matches!(there.count(), 0 | 4) {
            wrong.push(format!("heartbeat has some {prefix} fields but not all"));
        }
    }
    wrong
}

/// Checks the query of a gateway handshake (docs/protocol.md, Endpoints).
pub(crate) fn gateway_query(query: &BTreeMap<String, String>) -> Vec<String> {
    let mut wrong = Vec::new();
    for name in ["agent_version", "cluster_uuid"] {
        if query.get(name).is_none_or(String::is_empty) {
            wrong.push(format!("gateway handshake without {name}"));
        }
    }
    for name in [
        "supports_binary",
        "supports_response_streaming",
        "supports_streaming",
        "supports_websocket",
        "supports_yamux",
    ] {
        if query.get(name).map(String::as_str) != Some("true") {
            wrong.push(format!("gateway handshake without {name}=true"));
        }
    }
    if query
        .get("supports_edge")
        .is_some_and(|value| value != "true")
    {
        wrong.push("gateway handshake with another supports_edge than true".to_owned());
    }
    wrong
}

/// Checks the envelope's timestamp: RFC 3339 with an offset.
pub(crate) fn timestamp(text: &str) -> Option<String> {
    let wrong = || Some(format!("timestamp {text:?} is not RFC 3339"));
    let Some((date_time, rest)) = text.split_at_checked(19) else {
        return wrong();
    };
    let fits = date_time
        .bytes()
        .enumerate()
        .all(|(place, byte)| match place {
            4 | 7 => byte == b'-',
            10 => byte == b'T',
            13 | 16 => byte == b':',
            _ => byte.is_ascii_digit(),
        });
    let offset = match rest.strip_prefix('.') {
        Some(fraction) => fraction.trim_start_matches(|c: char| c.is_ascii_digit()),
        None => rest,
    };
    let is_offset = offset == "Z"
        || (offset.len() == 6
            && offset.starts_with(['+', '-'])
            && offset.as_bytes().get(3) == Some(&b':'));
    if fits && is_offset { None } else { wrong() }
}

fn fields(what: &str, payload: &Value, known: &[Field]) -> Vec<String> {
    let Value::Object(object) = payload else {
        return vec![format!("{what} is no object")];
    };
    let mut wrong = unknown(what, object, known);
    for (name, shape, presence) in known {
        match object.get(*name) {
            None if *presence == Always => {
                wrong.push(format!("{what} has no {name}"));
            }
            None => {}
            Some(value) if fits(*shape, value) => {}
            // The one field that may be null: an answer without headers (docs/protocol.md, Buffered
            // responses).
            Some(Value::Null) if *name == "headers" => {}
            Some(value) => wrong.push(format!("{what}.{name} is no {shape:?}: {value}")),
        }
    }
    wrong
}

fn unknown(what: &str, object: &Map<String, Value>, known: &[Field]) -> Vec<String> {
    object
        .keys()
        .filter(|key| !known.iter().any(|(name, ..)| name == key))
        .map(|key| format!("{what} has an unknown field {key:?}"))
        .collect()
}

fn fits(shape: Shape, value: &Value) -> bool {
    match shape {
        Text => value.is_string(),
        Filled => value.as_str().is_some_and(|text| !text.is_empty()),
        Whole => value.is_u64() || value.is_i64(),
        Flag => value.is_boolean(),
        Object => value.is_object(),
        List => value.is_array(),
        Texts => value
            .as_object()
            .is_some_and(|object| object.values().all(Value::is_string)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn good_register() -> Value {
        json!({
            "agent_id": "agent-1", "name": "edge", "k8s_version": "v1.34.4", "hostname": "h",
            "agent_version": "0.1.0", "server_ip": "192.0.2.1", "region": "DE",
            "cloud_provider": "agent", "labels": {"hostname": "h"},
            "tunnel_port_config": {"kubernetes_api": 6443, "kubelet": 10250, "agent_http": 8080},
            "server_specs": {"cpu_cores": 2, "os": "Debian"},
            "features": {"supports_streaming": true, "supports_binary_protocol": true,
                "supports_compression": true, "supports_websocket_proxy": true,
                "supports_gateway": true, "supports_response_streaming": true},
            "metadata": {"agent_mode": "vm-agent", "registration_mode": "fresh"},
        })
    }

    #[test]
    fn a_register_of_the_documented_form_passes() {
        assert_eq!(register(Some("r"), &good_register()), Vec::<String>::new());
    }

    #[test]
    fn each_departure_from_the_documented_form_is_named() {
        let alter = |change: fn(&mut Map<String, Value>)| {
            let mut payload = good_register();
            change(payload.as_object_mut().unwrap());
            register(Some("r"), &payload).join("; ")
        };
        assert!(alter(|p| drop(p.remove("region"))).contains("no region"));
        assert!(alter(|p| drop(p.insert("x".into(), 1.into()))).contains("unknown field \"x\""));
        assert!(alter(|p| drop(p.insert("labels".into(), json!({"a": 1})))).contains("labels"));
        assert!(alter(|p| drop(p.insert("cluster_id".into(), "c".into()))).contains("resume"));
        assert!(!register(None, &good_register()).is_empty());
    }

    #[test]
    fn timestamps_are_rfc_3339() {
        for good in [
            "2026-06-16T05:50:28.123456789Z",
            "2026-06-16T05:50:28Z",
            "2026-06-16T05:50:28.1+02:00",
        ] {
            assert_eq!(timestamp(good), None);
        }
        for bad in ["", "2026-06-16 05:50:28Z", "2026-06-16T05:50:28", "now"] {
            assert!(timestamp(bad).is_some(), "{bad}");
        }
    }
}

//! What the agent says. Every function returns one whole message, ready to be sent as text.

use std::{collections::BTreeMap, fmt::Write as _};

use base64::Engine;
use serde::Serialize;

use super::fields::BASE64;
use crate::core::{proxy::HeaderList, time::Wall};

/// The types that `protocol_fallback` lists, as the existing agent does.
pub const SUPPORTED_TYPES: [&str; 17] = [
    "register_success",
    "register_in_progress",
    "heartbeat_ack",
    "pong",
    "ping",
    "proxy_request",
    "proxy_request_chunk",
    "proxy_request_stream_end",
    "proxy_cancel",
    "proxy_stream_data",
    "proxy_websocket_start",
    "proxy_websocket_data",
    "proxy_websocket_close",
    "ws_start",
    "ws_data",
    "ws_close",
    "error",
];

#[derive(Serialize)]
struct Envelope<'a, P> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    request_id: &'a str,
    payload: P,
    timestamp: String,
}

fn message<P: Serialize>(kind: &str, request_id: &str, payload: P, now: Wall) -> String {
    let envelope = Envelope {
        kind,
        request_id,
        payload,
        timestamp: now.rfc3339(),
    };
    // Structs of strings, numbers and string maps always serialise; there is no writer that could fail.
    serde_json::to_string(&envelope).unwrap_or_default()
}

#[derive(Serialize)]
struct Nothing {}

/// The facts of `register`. Fields are written in the order of their names, as the existing agent does.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Registration {
    /// The agent's own id.
    pub agent_id: String,
    /// Version of this program.
    pub agent_version: String,
    /// Detected provider; `agent` where unknown.
    pub cloud_provider: String,
    /// The id being registered again; empty: a fresh registration.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cluster_id: String,
    /// What this agent can do.
    pub features: Features,
    /// The host's name; may be empty.
    pub hostname: String,
    /// A Kubernetes bearer token for the control plane; empty: none is given.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub k8s_service_token: String,
    /// `gitVersion` of the API server.
    pub k8s_version: String,
    /// Configured labels.
    pub labels: BTreeMap<String, String>,
    /// `agent_mode`, `registration_mode`, `registration_timestamp`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// The configured cluster name.
    pub name: String,
    /// Configured or detected; `unknown-country` where unknown.
    pub region: String,
    /// Configured, or the link's local address.
    pub server_ip: String,
    /// What the machine has.
    pub server_specs: ServerSpecs,
    /// Constants that the existing agent sends.
    pub tunnel_port_config: TunnelPorts,
}

/// The six abilities of 1.3.
#[derive(Clone, Copy, Debug, Serialize)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "the protocol has six booleans here"
)]
pub struct Features {
    /// Binary bodies and responses.
    pub supports_binary_protocol: bool,
    /// The gzip label of buffered responses.
    pub supports_compression: bool,
    /// The gateway redirect.
    pub supports_gateway: bool,
    /// `proxy_response_header`, chunks and end.
    pub supports_response_streaming: bool,
    /// Request bodies in chunks.
    pub supports_streaming: bool,
    /// WebSockets.
    pub supports_websocket_proxy: bool,
}

impl Default for Features {
    fn default() -> Self {
        Self {
            supports_binary_protocol: true,
            supports_compression: true,
            supports_gateway: true,
            supports_response_streaming: true,
            supports_streaming: true,
            supports_websocket_proxy: true,
        }
    }
}

/// What the machine has; zero and empty members are left out.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ServerSpecs {
    /// Logical processors.
    #[serde(skip_serializing_if = "is_zero")]
    pub cpu_cores: u64,
    /// Size of the root file system in GiB, rounded down.
    #[serde(skip_serializing_if = "is_zero")]
    pub disk_gb: u64,
    /// Memory in GiB, rounded down.
    #[serde(skip_serializing_if = "is_zero")]
    pub memory_gb: u64,
    /// `PRETTY_NAME` of os-release.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub os: String,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde hands out references"
)]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Ports that the existing agent always names.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct TunnelPorts {
    agent_http: u16,
    kubelet: u16,
    kubernetes_api: u16,
}

impl Default for TunnelPorts {
    fn default() -> Self {
        Self {
            agent_http: 8080,
            kubelet: 10_250,
            kubernetes_api: 6443,
        }
    }
}

/// `register`.
pub fn register(request_id: &str, facts: &Registration, now: Wall) -> String {
    message("register", request_id, facts, now)
}

/// The numbers of one heartbeat. No credentials ride in it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Heartbeat {
    /// The cluster's id.
    pub cluster_id: String,
    /// The agent's id.
    pub agent_id: String,
    /// `healthy`, `reconnecting` or `disconnected`.
    pub status: String,
    /// `connected` or `disconnected`.
    pub tunnel_status: String,
    /// Version of this program.
    pub agent_version: String,
    /// `gitVersion` of the API server.
    pub k8s_version: String,
    /// Nodes in the cluster.
    pub k8s_nodes: u64,
    /// Pods in the cluster.
    pub k8s_pods: u64,
    /// Processor time used since the last beat, in percent of all processors; `None`: not known yet, and not sent.
    pub cpu_percent: Option<f64>,
    /// Memory in use in percent; `None`: not known, and not sent.
    pub memory_percent: Option<f64>,
    /// Whether the host has no public address.
    pub is_private: bool,
    /// Ingress routes that are registered.
    pub gateway_routes: u64,
}

#[derive(Serialize)]
struct Beat<'a> {
    agent_id: &'a str,
    cluster_id: &'a str,
    metadata: BeatMetadata<'a>,
    status: &'a str,
    tunnel_status: &'a str,
}

#[derive(Serialize)]
struct BeatMetadata<'a> {
    agent_version: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_usage: Option<String>,
    gateway_routes: u64,
    is_private: bool,
    k8s_nodes: u64,
    k8s_pods: u64,
    k8s_version: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_usage: Option<String>,
}

/// `heartbeat`.
pub fn heartbeat(beat: &Heartbeat, now: Wall) -> String {
    let percent = |value: f64| format!("{value:.1}%");
    let payload = Beat {
        agent_id: &beat.agent_id,
        cluster_id: &beat.cluster_id,
        metadata: BeatMetadata {
            agent_version: &beat.agent_version,
            cpu_usage: beat.cpu_percent.map(percent),
            gateway_routes: beat.gateway_routes,
            is_private: beat.is_private,
            k8s_nodes: beat.k8s_nodes,
            k8s_pods: beat.k8s_pods,
            k8s_version: &beat.k8s_version,
            memory_usage: beat.memory_percent.map(percent),
        },
        status: &beat.status,
        tunnel_status: &beat.tunnel_status,
    };
    message("heartbeat", "", payload, now)
}

/// `pong`, the answer to `ping`.
pub fn pong(request_id: Option<&str>, now: Wall) -> String {
    #[derive(Serialize)]
    struct Payload {
        timestamp: String,
    }
    let payload = Payload {
        timestamp: now.rfc3339(),
    };
    message("pong", request_id.unwrap_or_default(), payload, now)
}

/// `gateway_hello_ack`: yamux is on from here. Create the session before sending it.
pub fn gateway_hello_ack(now: Wall) -> String {
    #[derive(Serialize)]
    struct Payload {
        use_yamux: bool,
    }
    message("gateway_hello_ack", "", Payload { use_yamux: true }, now)
}

/// `protocol_fallback`, once for each unknown type and connection.
pub fn protocol_fallback(
    unknown_type: &str,
    original_request_id: Option<&str>,
    now: Wall,
) -> String {
    #[derive(Serialize)]
    struct Payload<'a> {
        // Literally this name, whatever the program is called: control planes know agents of this protocol by it.
        agent_version: &'a str,
        fallback_mode: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        original_request_id: Option<&'a str>,
        protocol_version: &'a str,
        supported_types: &'a [&'a str],
        timestamp: String,
        unknown_type: &'a str,
    }
    let seconds = Wall::from_millis(now.millis().div_euclid(1000).saturating_mul(1000)).rfc3339();
    let payload = Payload {
        agent_version: "pipeops-k8-agent",
        fallback_mode: "legacy_proxy",
        original_request_id,
        protocol_version: "1.0",
        supported_types: &SUPPORTED_TYPES,
        timestamp: seconds.replace(".000Z", "Z"),
        unknown_type,
    };
    message("protocol_fallback", "", payload, now)
}

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

/// `proxy_response_end`.
pub fn proxy_response_end(request_id: &str, now: Wall) -> String {
    message("proxy_response_end", request_id, Nothing {}, now)
}

/// Headers as the wire has them: names in Go's canonical form, `null` when there are none.
#[derive(Serialize)]
#[serde(transparent)]
struct Headers {
    by_name: Option<BTreeMap<String, Vec<String>>>,
}

impl Headers {
    fn new(list: &HeaderList) -> Self {
        let mut by_name: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (name, values) in list {
            by_name
                .entry(canonical(name))
                .or_default()
                .extend(values.iter().cloned());
        }
        Self {
            by_name: (!by_name.is_empty()).then_some(by_name),
        }
    }
}

/// `content-type` as `Content-Type`: what Go's map look-ups on the other side expect.
fn canonical(name: &str) -> String {
    let mut is_first = true;
    name.chars()
        .map(|letter| {
            let cased = if is_first {
                letter.to_ascii_uppercase()
            } else {
                letter.to_ascii_lowercase()
            };
            is_first = letter == '-';
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

/// How the body of a `proxy_response` is packed.
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

/// A `proxy_response` that is sent in parts: `opening`, base64 of the body (cut at multiples of three bytes), `closing`.
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

/// Everything before the body of the large binary response (5.5). `None` where the id does not fit its length field.
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

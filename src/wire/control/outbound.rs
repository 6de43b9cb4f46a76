//! Messages of the agent. Every function returns one whole message, ready to be sent as text.

use litemap::LiteMap;
use serde::{Serialize, Serializer};

use crate::{
    core::{secret::Secret, time::Wall},
    wire::json::object,
};

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

pub(super) fn message<P: Serialize>(kind: &str, request_id: &str, payload: P, now: Wall) -> String {
    let envelope = Envelope {
        kind,
        request_id,
        payload,
        timestamp: now.rfc3339(),
    };
    // Structs of strings, numbers and string maps always serialise; there is no writer that could
    // fail.
    serde_json::to_string(&envelope).unwrap_or_default()
}

/// The facts of `register`. Fields are written in the order of their names, as the existing agent
/// does.
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
    /// Abilities of this agent.
    pub features: Features,
    /// The host's name; may be empty.
    pub hostname: String,
    /// Token that the control plane presents in requests for the Kubernetes API; `None`: it gets
    /// none.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "revealed")]
    pub k8s_service_token: Option<Secret>,
    /// `gitVersion` of the API server.
    pub k8s_version: String,
    /// Configured labels.
    #[serde(serialize_with = "object")]
    pub labels: LiteMap<String, String>,
    /// `agent_mode`, `registration_mode`, `registration_timestamp`.
    #[serde(skip_serializing_if = "LiteMap::is_empty", serialize_with = "object")]
    pub metadata: LiteMap<String, String>,
    /// The configured cluster name.
    pub name: String,
    /// Configured or detected; `unknown-country` where unknown.
    pub region: String,
    /// Configured, or the link's local address.
    pub server_ip: String,
    /// Hardware of the machine.
    pub server_specs: ServerSpecs,
    /// Constants that the existing agent sends.
    pub tunnel_port_config: TunnelPorts,
}

/// Writes a secret as it is: into the message that carries it.
#[expect(clippy::ref_option, reason = "the signature that serde wants")]
fn revealed<S: Serializer>(secret: &Option<Secret>, serializer: S) -> Result<S::Ok, S::Error> {
    secret.as_ref().map(Secret::reveal).serialize(serializer)
}

/// Abilities in a registration, among them the offer of the extension.
#[derive(Clone, Copy, Debug, Serialize)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "the protocol has booleans here"
)]
pub struct Features {
    /// Binary bodies and responses.
    pub supports_binary_protocol: bool,
    /// The gzip label of buffered responses.
    pub supports_compression: bool,
    /// The extension: streams of HTTP, records, commands.
    pub supports_edge: bool,
    /// The gateway redirect.
    pub supports_gateway: bool,
    /// `proxy_response_header`, chunks and end.
    pub supports_response_streaming: bool,
    /// Request bodies in chunks.
    pub supports_streaming: bool,
    pub supports_websocket_proxy: bool,
}

impl Default for Features {
    fn default() -> Self {
        Self {
            supports_binary_protocol: true,
            supports_compression: true,
            supports_edge: true,
            supports_gateway: true,
            supports_response_streaming: true,
            supports_streaming: true,
            supports_websocket_proxy: true,
        }
    }
}

/// Hardware of the machine; zero and empty members are left out.
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
    /// Processor time used since the last beat, in percent of all processors; `None`: not known
    /// yet, and not sent.
    pub cpu_percent: Option<f64>,
    /// Memory in use in percent; `None`: not known, and not sent.
    pub memory_percent: Option<f64>,
    /// True if the host has no public address.
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

/// `edge_hello_ack`: the version of the extension that holds from here on.
pub fn edge_hello_ack(version: u32, now: Wall) -> String {
    #[derive(Serialize)]
    struct Payload {
        version: u32,
    }
    message("edge_hello_ack", "", Payload { version }, now)
}

/// `protocol_fallback`, once for each unknown type and connection.
pub fn protocol_fallback(
    unknown_type: &str,
    original_request_id: Option<&str>,
    now: Wall,
) -> String {
    #[derive(Serialize)]
    struct Payload<'a> {
        // Literally this name, whatever the program is called: control planes know agents of this
        // protocol by it.
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

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};

    /// 2026-06-16T05:50:28.123Z
    const NOW: Wall = Wall::from_millis(1_781_589_028_123);

    fn is(message: &str, wanted: &Expect) {
        wanted.assert_eq(&message.replace(r#""timestamp":"2026-06-16T05:50:28.123Z"}"#, "NOW"));
    }

    #[test]
    fn a_registration_is_written_as_the_protocol_has_it() {
        let facts = Registration {
            agent_id: "agent-3f1c9a0be2d47788".to_owned(),
            agent_version: "0.1.0".to_owned(),
            cloud_provider: "hetzner".to_owned(),
            cluster_id: "7d1f0b52".to_owned(),
            hostname: "box".to_owned(),
            k8s_service_token: Some(Secret::new("handle")),
            k8s_version: "v1.31.4+k3s1".to_owned(),
            labels: LiteMap::from_iter([("env".to_owned(), "prod".to_owned())]),
            metadata: LiteMap::from_iter([("agent_mode".to_owned(), "vm-agent".to_owned())]),
            name: "edge-1".to_owned(),
            region: "DE".to_owned(),
            server_ip: "203.0.113.7".to_owned(),
            server_specs: ServerSpecs {
                cpu_cores: 4,
                os: "Alpine".to_owned(),
                ..ServerSpecs::default()
            },
            ..Registration::default()
        };
        is(
            &register("req_1", &facts, NOW),
            &expect![[
                r#"{"type":"register","request_id":"req_1","payload":{"agent_id":"agent-3f1c9a0be2d47788","agent_version":"0.1.0","cloud_provider":"hetzner","cluster_id":"7d1f0b52","features":{"supports_binary_protocol":true,"supports_compression":true,"supports_edge":true,"supports_gateway":true,"supports_response_streaming":true,"supports_streaming":true,"supports_websocket_proxy":true},"hostname":"box","k8s_service_token":"handle","k8s_version":"v1.31.4+k3s1","labels":{"env":"prod"},"metadata":{"agent_mode":"vm-agent"},"name":"edge-1","region":"DE","server_ip":"203.0.113.7","server_specs":{"cpu_cores":4,"os":"Alpine"},"tunnel_port_config":{"agent_http":8080,"kubelet":10250,"kubernetes_api":6443}},NOW"#
            ]],
        );
        is(
            &register("req_1", &Registration::default(), NOW),
            &expect![[
                r#"{"type":"register","request_id":"req_1","payload":{"agent_id":"","agent_version":"","cloud_provider":"","features":{"supports_binary_protocol":true,"supports_compression":true,"supports_edge":true,"supports_gateway":true,"supports_response_streaming":true,"supports_streaming":true,"supports_websocket_proxy":true},"hostname":"","k8s_version":"","labels":{},"name":"","region":"","server_ip":"","server_specs":{},"tunnel_port_config":{"agent_http":8080,"kubelet":10250,"kubernetes_api":6443}},NOW"#
            ]],
        );
    }

    #[test]
    fn a_heartbeat_has_real_numbers_or_none() {
        let beat = Heartbeat {
            cluster_id: "c".to_owned(),
            agent_id: "a".to_owned(),
            status: "healthy".to_owned(),
            tunnel_status: "connected".to_owned(),
            cpu_percent: Some(12.34),
            k8s_nodes: 1,
            k8s_pods: 23,
            ..Heartbeat::default()
        };
        is(
            &heartbeat(&beat, NOW),
            &expect![[
                r#"{"type":"heartbeat","payload":{"agent_id":"a","cluster_id":"c","metadata":{"agent_version":"","cpu_usage":"12.3%","gateway_routes":0,"is_private":false,"k8s_nodes":1,"k8s_pods":23,"k8s_version":""},"status":"healthy","tunnel_status":"connected"},NOW"#
            ]],
        );
    }

    #[test]
    fn the_small_control_messages_are_as_the_protocol_has_them() {
        is(
            &pong(Some("p-1"), NOW),
            &expect![[r#"{"type":"pong","request_id":"p-1","payload":{NOW,NOW"#]],
        );
        is(
            &pong(None, NOW),
            &expect![[r#"{"type":"pong","payload":{NOW,NOW"#]],
        );
        is(
            &gateway_hello_ack(NOW),
            &expect![[r#"{"type":"gateway_hello_ack","payload":{"use_yamux":true},NOW"#]],
        );
        is(
            &protocol_fallback("frobnicate", Some("x-1"), NOW),
            &expect![[
                r#"{"type":"protocol_fallback","payload":{"agent_version":"pipeops-k8-agent","fallback_mode":"legacy_proxy","original_request_id":"x-1","protocol_version":"1.0","supported_types":["register_success","register_in_progress","heartbeat_ack","pong","ping","proxy_request","proxy_request_chunk","proxy_request_stream_end","proxy_cancel","proxy_stream_data","proxy_websocket_start","proxy_websocket_data","proxy_websocket_close","ws_start","ws_data","ws_close","error"],"timestamp":"2026-06-16T05:50:28Z","unknown_type":"frobnicate"},NOW"#
            ]],
        );
    }
}

//! Messages between agent and control plane, byte by byte where the agent writes it.

use std::collections::BTreeSet;

use pipeops_agent::{
    core::{
        outbox::{Loss, Range, Row, Stream},
        secret::Secret,
        time::Wall,
    },
    wire::control::{
        About, BATCH_BYTES_MAX, Encoding, Features, Heartbeat, Messages, Records, Registration,
        ServerSpecs, TunnelPorts, app_socket_data, backpressure, binary_response_head, decode,
        edge_gap, edge_hello_ack, gateway_hello_ack, heartbeat, kube_socket_data, pong,
        protocol_fallback, proxy_error, proxy_response, proxy_response_abort, proxy_response_chunk,
        proxy_response_end, proxy_response_header, register, socket_close, stream_error,
        tcp_tunnel_close,
    },
    wire::edge::{bodies, rows},
};
use serde_json::{Map, Value, json};

use super::hold;

const NOW: Wall = Wall::from_millis(1_781_589_028_123);

fn registration() -> Registration {
    let text = str::to_owned;
    Registration {
        agent_id: text("agent-1"),
        agent_version: text("0.1.0"),
        cloud_provider: text("hetzner"),
        cluster_id: text("c-1"),
        features: Features::default(),
        hostname: text("box"),
        k8s_service_token: Some(Secret::new("token")),
        k8s_version: text("v1.31.4+k3s1"),
        labels: [(text("label"), text("value"))].into_iter().collect(),
        metadata: [(text("name"), text("value"))].into_iter().collect(),
        name: text("edge"),
        region: text("DE"),
        server_ip: text("203.0.113.7"),
        server_specs: ServerSpecs {
            cpu_cores: 4,
            disk_gb: 32,
            memory_gb: 8,
            os: text("Alpine"),
        },
        tunnel_port_config: TunnelPorts::default(),
    }
}

fn edge() -> Vec<String> {
    let range = Range::new(3, 9).unwrap();
    let about = |stream| About {
        agent_id: "agent-1",
        stream,
        epoch: 5,
        range,
    };
    let batch = |records, data: &[u8], bytes_max| {
        let messages = Messages::new(about(Stream::Metrics), records, data, bytes_max).unwrap();
        messages.get(0, NOW)
    };
    let mut lines = vec![
        edge_hello_ack(1, NOW),
        batch(Records::Samples, b"abc", BATCH_BYTES_MAX),
        batch(Records::Rows, b"abc", BATCH_BYTES_MAX),
        batch(Records::Rows, &[7; 400], 512),
    ];
    for loss in [Loss::Budget, Loss::Damaged, Loss::Retention] {
        lines.push(edge_gap(about(Stream::Audit), loss, NOW));
    }
    let asked = bodies::AuditBody {
        who: "control-plane",
        what: "GET /version",
        verdict: "permitted",
        why: "read",
        outcome: Some("200"),
        received_bytes: Some(1),
        sent_bytes: Some(2),
        duration_ms: Some(3),
        count: Some(4),
    };
    let body = bodies::asked(&asked);
    lines.push(body.clone());
    let row = Row {
        sequence: 7,
        at: NOW,
        body,
    };
    let mut plain = String::new();
    let packed = rows(&[row]);
    let mut reader = flate2::read::DeflateDecoder::new(packed.as_slice());
    std::io::Read::read_to_string(&mut reader, &mut plain).unwrap();
    lines.push(plain.trim_end().to_owned());
    lines
}

#[test]
fn what_the_agent_says_stays() {
    let headers = vec![("content-type".to_owned(), vec!["text/plain".to_owned()])];
    let beat = Heartbeat {
        cluster_id: "c-1".to_owned(),
        agent_id: "agent-1".to_owned(),
        status: "healthy".to_owned(),
        tunnel_status: "connected".to_owned(),
        agent_version: "0.1.0".to_owned(),
        k8s_version: "v1".to_owned(),
        k8s_nodes: 1,
        k8s_pods: 2,
        cpu_percent: Some(12.34),
        memory_percent: Some(56.78),
        is_private: true,
        gateway_routes: 3,
    };
    let body = |encoding| (b"hello".as_slice(), encoding);
    let mut lines = vec![
        register("r-1", &registration(), NOW),
        register("r-1", &Registration::default(), NOW),
        heartbeat(&beat, NOW),
        heartbeat(&Heartbeat::default(), NOW),
        pong(Some("p-1"), NOW),
        pong(None, NOW),
        gateway_hello_ack(NOW),
        protocol_fallback("frobnicate", Some("x-1"), NOW),
        proxy_response("p-1", 200, &headers, body(Encoding::Base64), NOW),
        proxy_response("p-1", 200, &headers, body(Encoding::Gzip), NOW),
        proxy_response("p-1", 204, &Vec::new(), (b"", Encoding::Base64), NOW),
        proxy_error("p-1", "why", NOW),
        proxy_response_header("p-1", 200, &headers, NOW),
        proxy_response_chunk("p-1", b"hello", NOW),
        proxy_response_end("p-1", NOW),
        proxy_response_abort("p-1", "why", NOW),
        app_socket_data("w-1", 1, b"hello", NOW),
        kube_socket_data("e-1", 2, b"hello", NOW),
        socket_close("e-1", NOW),
        stream_error("e-1", "why", NOW),
        backpressure("w-1", NOW),
        tcp_tunnel_close("t-1", "why", NOW),
    ];
    let head = binary_response_head("p-1", 200, &headers).unwrap();
    lines.push(format!("binary response: {}", head.escape_ascii()));
    lines.extend(edge());
    hold("said-by-the-agent.txt", lines);
}

/// Every field that a message of the control plane may have, with a value that can be used.
fn fields() -> Map<String, Value> {
    const FIELDS: &str = r#"{
        "agent_id": "agent-1", "batch_bytes_max": 9000, "body": "aGVsbG8=", "body_binary": true, "body_encoding": "base64",
        "chunk": "aGVsbG8=", "cluster_id": "c-1", "cluster_uuid": "u-1", "data": "AWhlbGxv",
        "deadline": "2026-06-16T05:50:28Z", "epoch": 5, "error": "why", "from": 3, "gateway_ws_url": "wss://g.example/ws",
        "headers": {"accept": ["*/*"]}, "isWebSocket": true, "is_websocket": true, "limits": {"batch_bytes_max": 9000},
        "message_type": 1, "method": "PUT", "name": "edge", "namespace": "shop", "path": "/version", "protocol": "http",
        "query": "a=b", "reason": "why", "request_id": "other", "scheme": "https", "service_name": "web", "service_port": 81,
        "status": "ok", "stream": "metrics", "stream_id": "s-1", "streaming": true, "streams": ["metrics"],
        "supports_response_streaming": true, "timeout": "7s", "to": 9, "tunnel_id": "t-1", "use_streaming": true,
        "use_yamux": true, "version": 1,
        "yamux_config": {"connection_timeout_seconds": 7, "keep_alive_interval_seconds": 8, "max_stream_window_size": 9000}
    }"#;
    serde_json::from_str(FIELDS).unwrap()
}

/// Reading of a message, as text that differs where the meaning does.
fn understood(kind: &str, id: Option<&str>, payload: &Map<String, Value>) -> String {
    let message = json!({ "type": kind, "request_id": id, "payload": payload });
    format!("{:?}", decode(message.to_string().as_bytes()))
}

/// The fields that change what a message means, in a message that has all of them or none besides.
fn read_by(kind: &str) -> BTreeSet<String> {
    let all = fields();
    let mut found = BTreeSet::new();
    for id in [Some("id-1"), None] {
        for (name, value) in &all {
            let mut without = all.clone();
            without.remove(name);
            let alone = Map::from_iter([(name.clone(), value.clone())]);
            let is_missed = understood(kind, id, &without) != understood(kind, id, &all);
            let is_noticed = understood(kind, id, &alone) != understood(kind, id, &Map::new());
            if is_missed || is_noticed {
                found.insert(name.clone());
            }
        }
    }
    let whole = found.clone();
    let objects = all
        .iter()
        .filter_map(|(name, value)| Some((name, value.as_object()?)));
    // Of the headers every one is read.
    for (name, members) in objects.filter(|(name, _)| whole.contains(*name) && *name != "headers") {
        for member in members.keys() {
            let mut without = all.clone();
            without[name].as_object_mut().unwrap().remove(member);
            let id = Some("id-1");
            if understood(kind, id, &without) != understood(kind, id, &all) {
                found.insert(format!("{name}.{member}"));
            }
        }
    }
    found
}

#[test]
fn what_the_control_plane_says_is_understood_as_before() {
    let unknown = understood("frobnicate", None, &Map::new());
    assert!(unknown.contains("frobnicate"));
    let lines = [
        "register_success",
        "register_in_progress",
        "heartbeat_ack",
        "gateway_hello",
        "edge_hello",
        "edge_ack",
        "ping",
        "pong",
        "error",
        "proxy_request",
        "proxy_request_chunk",
        "proxy_request_stream_end",
        "proxy_cancel",
        "proxy_stream_data",
        "proxy_websocket_start",
        "ws_start",
        "proxy_websocket_data",
        "ws_data",
        "proxy_websocket_close",
        "ws_close",
        "tcp_tunnel_start",
        "tcp_tunnel_data",
        "tcp_tunnel_close",
        "udp_tunnel_data",
    ];
    let lines = lines.map(|kind| {
        // A type that is not known is repeated in what is made of it.
        let is_known = understood(kind, None, &Map::new()) != unknown.replace("frobnicate", kind);
        assert!(is_known, "{kind}");
        let names: Vec<_> = read_by(kind).into_iter().collect();
        format!("{kind}: {}", names.join(", "))
            .trim_end()
            .to_owned()
    });
    hold("understood-by-the-agent.txt", lines);
}

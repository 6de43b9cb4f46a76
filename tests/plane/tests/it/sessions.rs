//! Sessions, requests and streams.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::agent::{Agent, LIMIT, b64, unb64};
use plane::{
    BodyForm, Bytes, Carrier, Failed, Last, Mode, Opcode, Options, Plane, ProxyRequest, Received,
    Redirect, RegisterReply, Role, StreamRequest, Upgrade,
};
use serde_json::json;

pub(crate) fn plane() -> Plane {
    Plane::start(Options {
        plaintext_listen: Some("127.0.0.1:0".parse().unwrap()),
        ..Options::default()
    })
    .unwrap()
}

/// A plane with an agent that is on its gateway.
pub(crate) fn linked() -> (Plane, Agent, String) {
    let plane = plane();
    let mut agent = Agent::dial_controller(&plane).unwrap();
    let reply = agent.register();
    let cluster = reply["payload"]["cluster_id"].as_str().unwrap().to_owned();
    assert!(reply["payload"]["gateway_ws_url"].is_string());
    agent.close();
    let mut agent = Agent::dial_gateway(&plane, &cluster).unwrap();
    agent.heartbeat(&cluster);
    assert_eq!(agent.next_json()["type"], "heartbeat_ack");
    let ready = plane.wait_ready(LIMIT).unwrap();
    assert_eq!(
        (ready.role, ready.cluster_id.as_deref()),
        (Role::Gateway, Some(&*cluster))
    );
    (plane, agent, cluster)
}

/// Sends raw HTTP to the plain listener and gives what comes back, to the end.
pub(crate) fn http(plane: &Plane, head: &str, body: &[u8]) -> String {
    let mut socket = http_open(plane, head, body);
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

pub(crate) fn http_open(plane: &Plane, head: &str, body: &[u8]) -> TcpStream {
    let address = plane.plaintext_url().unwrap().trim_start_matches("http://");
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    let head = head.replace("TOKEN", plane.user_token());
    socket
        .write_all(format!("{head}\r\n\r\n").as_bytes())
        .unwrap();
    socket.write_all(body).unwrap();
    socket
}

pub(crate) fn get(cluster: &str, path: &str) -> String {
    format!(
        "GET /api/v1/clusters/agent/{cluster}/proxy{path} HTTP/1.1\r\nHost: plane\r\n\
         Authorization: Bearer TOKEN\r\nConnection: close"
    )
}

#[test]
fn an_agent_registers_goes_to_the_gateway_and_beats() {
    let (plane, _agent, _cluster) = linked();
    assert_eq!(plane.violations(), Vec::<String>::new());
    let handshakes = plane.handshakes();
    assert_eq!(handshakes.len(), 2);
    assert!(
        handshakes
            .iter()
            .all(|h| h.is_authorized && h.status == 101)
    );
}

#[test]
fn a_streamed_answer_reaches_an_http_client_in_order() {
    let (plane, mut agent, cluster) = linked();
    let head = get(&cluster, "/api/v1/nodes%20x?limit=5&a=b");
    let client = std::thread::scope(|scope| {
        let client = scope.spawn(|| http(&plane, &head, b""));
        let request = agent.next_json();
        assert_eq!(request["type"], "proxy_request");
        let payload = &request["payload"];
        assert_eq!(payload["path"], "/api/v1/nodes x");
        assert_eq!(payload["query"], "limit=5&a=b");
        assert_eq!(
            payload["headers"]["Authorization"],
            json!(["Bearer k8s-token"])
        );
        assert_eq!(payload["headers"]["host"], json!(null));
        assert_eq!(payload["supports_response_streaming"], true);
        let id = request["request_id"].as_str().unwrap();
        agent.head(
            id,
            200,
            &json!({"Content-Type": ["text/plain"], "Connection": ["close"]}),
        );
        agent.chunk(id, b"hello ");
        agent.chunk(id, b"world");
        agent.send("proxy_response_end", Some(id), &json!({}));
        client.join().unwrap()
    });
    assert!(client.starts_with("HTTP/1.1 200 OK"), "{client}");
    assert!(
        client.contains("hello ") && client.contains("world"),
        "{client}"
    );
    assert_eq!(plane.violations(), Vec::<String>::new());
}

#[test]
fn a_client_without_the_users_token_is_refused() {
    let (plane, _agent, cluster) = linked();
    let head = get(&cluster, "/version").replace("TOKEN", "wrong");
    let answer = http(&plane, &head, b"");
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    assert!(answer.contains("\"kind\":\"Status\""));
    let other = http(&plane, &get("other-cluster", "/version"), b"");
    assert!(other.starts_with("HTTP/1.1 503"), "{other}");
}

#[test]
fn bodies_travel_in_all_forms() {
    let (mut plane, mut agent, _cluster) = linked();
    for form in [
        BodyForm::Base64,
        BodyForm::Text,
        BodyForm::Json,
        BodyForm::Chunks,
        BodyForm::OldChunks,
        BodyForm::Frame,
    ] {
        plane.set(|b| {
            b.carrier = if form == BodyForm::Text {
                Carrier::Binary
            } else {
                Carrier::Text
            }
        });
        let body = br#"{"a":[1,2]}"#;
        let request = ProxyRequest {
            method: "POST".into(),
            body: Bytes::from_static(body),
            body_form: form,
            mode: Mode::Buffered,
            ..ProxyRequest::get("/x")
        };
        let answer = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| plane.request(request, LIMIT));
            let request = agent.next_json();
            let id = request["request_id"].as_str().unwrap().to_owned();
            let payload = &request["payload"];
            let came: Vec<u8> = match form {
                BodyForm::Base64 | BodyForm::Auto => {
                    assert_eq!(payload["body_encoding"], "base64");
                    unb64(payload["body"].as_str().unwrap())
                }
                BodyForm::Text => payload["body"].as_str().unwrap().into(),
                BodyForm::Json => payload["body"].to_string().into(),
                BodyForm::Chunks | BodyForm::OldChunks => {
                    let name = if form == BodyForm::Chunks {
                        "data"
                    } else {
                        "chunk"
                    };
                    let chunk = agent.next_json();
                    assert_eq!(chunk["type"], "proxy_request_chunk");
                    assert_eq!(agent.next_json()["type"], "proxy_request_stream_end");
                    unb64(chunk["payload"][name].as_str().unwrap())
                }
                BodyForm::Frame => {
                    assert_eq!(payload["body_size"], 11);
                    let frame = agent.next_binary();
                    let id_bytes = usize::from(u16::from_be_bytes([frame[0], frame[1]]));
                    assert_eq!(&frame[2..2 + id_bytes], id.as_bytes());
                    frame[2 + id_bytes..].to_vec()
                }
            };
            assert_eq!(came, body, "{form:?}");
            let reply =
                json!({"status": 201, "headers": null, "body": b64(b"ok"), "encoding": "base64"});
            agent.send("proxy_response", Some(&id), &reply);
            waiting.join().unwrap().unwrap()
        });
        assert_eq!(answer.head.status, 201);
        assert_eq!(answer.body.read_all(LIMIT).unwrap(), b"ok");
    }
    assert_eq!(plane.violations(), Vec::<String>::new());
}

#[test]
fn a_large_binary_answer_is_decoded() {
    let (plane, mut agent, _cluster) = linked();
    let request = ProxyRequest {
        mode: Mode::Buffered,
        ..ProxyRequest::get("/big")
    };
    let body = vec![b'x'; 50_000];
    let answer = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| plane.request(request, LIMIT));
        let id = agent.next_json()["request_id"].as_str().unwrap().to_owned();
        let mut frame = u16::try_from(id.len()).unwrap().to_be_bytes().to_vec();
        frame.extend(id.as_bytes());
        frame.extend([0, 0, 0, 200, 0, 0, 0, 4]);
        frame.extend(b"null");
        frame.extend(&body);
        agent.send_binary(frame);
        waiting.join().unwrap().unwrap()
    });
    assert_eq!(answer.body.read_all(LIMIT).unwrap(), body);
    assert_eq!(plane.violations(), Vec::<String>::new());
}

#[test]
fn errors_and_aborts_reach_the_caller() {
    let (plane, mut agent, cluster) = linked();
    let failed = std::thread::scope(|scope| {
        let request = ProxyRequest {
            mode: Mode::Buffered,
            ..ProxyRequest::get("/x")
        };
        let waiting = scope.spawn(|| plane.request(request, LIMIT));
        let id = agent.next_json()["request_id"].as_str().unwrap().to_owned();
        agent.send("proxy_error", Some(&id), &json!({"error": "no backend"}));
        waiting.join().unwrap().unwrap_err()
    });
    assert_eq!(failed, Failed::Error("no backend".into()));
    let head = get(&cluster, "/x");
    let answer = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| http(&plane, &head, b""));
        let id = agent.next_json()["request_id"].as_str().unwrap().to_owned();
        agent.send(
            "proxy_response_abort",
            Some(&id),
            &json!({"error": "context deadline exceeded"}),
        );
        waiting.join().unwrap()
    });
    assert!(answer.starts_with("HTTP/1.1 504"), "{answer}");
    assert_eq!(plane.violations(), Vec::<String>::new());
}

#[test]
fn a_client_that_leaves_cancels_its_request() {
    let (plane, mut agent, cluster) = linked();
    let socket = http_open(&plane, &get(&cluster, "/watch?watch=true"), b"");
    let id = agent.next_json()["request_id"].as_str().unwrap().to_owned();
    agent.head(&id, 200, &json!({}));
    drop(socket);
    let cancel = agent.next_json();
    assert_eq!(
        (&cancel["type"], &cancel["request_id"]),
        (&json!("proxy_cancel"), &json!(id))
    );
    agent.chunk(
        &id,
        b"late messages of a cancelled request are no violation",
    );
    agent.send("pong", None, &json!({"timestamp": "2026-06-16T05:50:28Z"}));
    plane
        .wait_for(0, LIMIT, |frame| frame.is_from_agent("pong"))
        .unwrap();
    assert_eq!(plane.violations(), Vec::<String>::new());
}

#[test]
fn exec_of_a_client_gets_its_channels_back() {
    let (plane, mut agent, cluster) = linked();
    let head = get(&cluster, "/api/v1/namespaces/default/pods/web/exec?command=sh&stdin=true")
        .replace("Connection: close", "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: v5.channel.k8s.io");
    let mut socket = http_open(&plane, &head, b"");
    let answer = read_head(&mut socket);
    assert!(answer.starts_with("HTTP/1.1 101"), "{answer}");
    assert!(
        answer
            .to_lowercase()
            .contains("sec-websocket-protocol: v5.channel.k8s.io")
    );
    assert!(answer.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
    let start = agent.next_json();
    assert_eq!(start["type"], "ws_start");
    assert_eq!(
        start["payload"]["headers"]["Authorization"],
        json!(["Bearer k8s-token"])
    );
    assert_eq!(start["payload"]["protocol"], "v5.channel.k8s.io");
    let id = start["payload"]["stream_id"].as_str().unwrap().to_owned();
    // Standard input of the client, then the close of its channel.
    socket.write_all(b"\x82\x83\0\0\0\0\0hi").unwrap();
    assert_eq!(agent.stream_data(&id), b"\x02\0hi");
    socket.write_all(b"\x82\x82\0\0\0\0\xff\0").unwrap();
    assert_eq!(agent.stream_data(&id), b"\x02\xff\0");
    let data = |bytes: &[u8]| json!({"stream_id": id, "data": b64(bytes)});
    agent.send("proxy_websocket_data", Some(&id), &data(b"\x01output"));
    let status = br#"{"metadata":{},"status":"Success"}"#;
    agent.send(
        "proxy_websocket_data",
        Some(&id),
        &data(&[b"\x01", &status[..]].concat()),
    );
    agent.send(
        "proxy_websocket_close",
        Some(&id),
        &json!({"stream_id": id}),
    );
    let mut rest = Vec::new();
    socket.read_to_end(&mut rest).unwrap();
    let mut expected = b"\x82\x07\x01output\x82\x23\x03".to_vec();
    expected.extend(status);
    expected.extend(b"\x88\x02\x03\xe8");
    assert_eq!(rest, expected);
    assert_eq!(plane.violations(), Vec::<String>::new());
}

pub(crate) fn read_head(socket: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        socket.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

#[test]
fn an_applications_websocket_is_carried_both_ways() {
    let (plane, mut agent, cluster) = linked();
    let head = get(&cluster, "/api/v1/namespaces/shop/services/echo:80/proxy/ws")
        .replace("Connection: close", "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==");
    let mut socket = http_open(&plane, &head, b"");
    let request = agent.next_json();
    let payload = &request["payload"];
    assert_eq!(
        (&payload["service_name"], &payload["service_port"]),
        (&json!("echo"), &json!(80))
    );
    assert_eq!(
        (&payload["path"], &payload["is_websocket"]),
        (&json!("/ws"), &json!(true))
    );
    let id = request["request_id"].as_str().unwrap().to_owned();
    agent.head(&id, 101, &json!({"Upgrade": ["websocket"]}));
    agent.send("proxy_response_end", Some(&id), &json!({}));
    let hello =
        json!({"request_id": id, "stream_id": id, "data": b64(b"\x01hello"), "message_type": 1});
    agent.send("proxy_websocket_data", Some(&id), &hello);
    assert!(read_head(&mut socket).starts_with("HTTP/1.1 101"));
    let mut frame = [0; 7];
    socket.read_exact(&mut frame).unwrap();
    assert_eq!(&frame, b"\x81\x05hello");
    socket.write_all(b"\x81\x83\0\0\0\0abc").unwrap();
    assert_eq!(agent.stream_data(&id), b"\x01abc");
    socket.write_all(b"\x88\x82\0\0\0\0\x03\xe8").unwrap();
    assert_eq!(agent.next_json()["type"], "ws_close");
    assert_eq!(plane.violations(), Vec::<String>::new());
}

#[test]
fn a_stream_of_the_library_ends_with_the_agents_close() {
    let (plane, mut agent, _cluster) = linked();
    let request = StreamRequest {
        path: "/api/v1/namespaces/d/pods/p/exec".into(),
        ..StreamRequest::default()
    };
    let stream = plane.stream(request).unwrap();
    let id = agent.next_json()["payload"]["stream_id"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(stream.send(1, b"ls", LIMIT));
    assert_eq!(agent.stream_data(&id), b"\x01ls");
    agent.send(
        "proxy_error",
        Some(&id),
        &json!({"request_id": id, "error": "failed to connect to K8s API: x"}),
    );
    agent.send(
        "proxy_websocket_close",
        Some(&id),
        &json!({"stream_id": id}),
    );
    let failed = Failed::Error("failed to connect to K8s API: x".into());
    assert_eq!(stream.receive(LIMIT), Some(Received::Failed(failed)));
    assert_eq!(stream.receive(LIMIT), Some(Received::Closed));
    assert_eq!(stream.receive(LIMIT), None);
    assert_eq!(plane.violations(), Vec::<String>::new());
}

#[test]
fn the_register_replies_are_as_set() {
    let mut plane = plane();
    plane.set(|b| {
        b.announces_progress = true;
        b.redirect = Redirect::None;
    });
    let mut agent = Agent::dial_controller(&plane).unwrap();
    agent.send_register();
    assert_eq!(agent.next_json()["type"], "register_in_progress");
    let first = agent.next_json();
    assert_eq!(first["payload"]["gateway_ws_url"], json!(null));
    plane.set(|b| b.announces_progress = false);
    for (reply, check) in [
        (RegisterReply::Cluster("mine".into()), "mine"),
        (RegisterReply::Success, "mine"),
    ] {
        plane.set(|b| b.register = reply);
        assert_eq!(agent.register()["payload"]["cluster_id"], check);
    }
    plane.set(|b| b.register = RegisterReply::NoCluster);
    assert_eq!(agent.register()["payload"]["cluster_id"], json!(null));
    plane.set(|b| b.register = RegisterReply::Error("cluster not found".into()));
    assert_eq!(agent.register()["type"], "error");
    plane.set(|b| b.register = RegisterReply::WrongRequestId);
    assert_ne!(agent.register()["request_id"], "req_1");
    plane.set(|b| b.register = RegisterReply::NoRequestId);
    assert_eq!(agent.register()["request_id"], json!(null));
}

#[test]
fn handshakes_are_rejected_as_set_or_without_the_token() {
    let mut plane = plane();
    plane.set(|b| b.controller = Upgrade::Reject(503));
    assert_eq!(Agent::dial_controller(&plane).unwrap_err(), 503);
    plane.set(|b| b.controller = Upgrade::Accept);
    plane.set_token("another");
    assert!(Agent::dial_controller(&plane).is_ok());
    assert_eq!(
        Agent::dial(&plane, "/api/v1/clusters/agent/ws", "wrong").unwrap_err(),
        401
    );
    assert_eq!(Agent::dial_gateway(&plane, "unknown").unwrap_err(), 403);
}

#[test]
fn what_is_against_the_protocol_is_noted() {
    let (plane, mut agent, cluster) = linked();
    let expect = |what: &'static str| {
        plane
            .until(LIMIT, move |view| {
                view.violations
                    .iter()
                    .any(|v| v.what.contains(what))
                    .then_some(())
            })
            .unwrap_or_else(|| panic!("no violation with {what:?}: {:?}", plane.violations()));
    };
    agent.send_text("not json");
    expect("no envelope");
    agent.send("frobnicate", None, &json!({}));
    expect("unknown type");
    agent.send("proxy_response_end", Some("nobody"), &json!({}));
    expect("unknown id");
    agent.send_binary(vec![0]);
    expect("too short");
    agent.send("heartbeat", None, &json!({"cluster_id": cluster}));
    expect("heartbeat has no agent_id");
    assert_eq!(agent.next_json()["type"], "heartbeat_ack");
    let _waiting = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| plane.request(ProxyRequest::get("/x"), LIMIT));
        let id = agent.next_json()["request_id"].as_str().unwrap().to_owned();
        agent.head(&id, 200, &json!({}));
        agent.send(
            "proxy_response_chunk",
            Some(&id),
            &json!({"data": "aGk=", "encoding": "base64", "size": 3}),
        );
        expect("says 3 bytes and has 2");
        agent.send("proxy_response_end", Some(&id), &json!({}));
        agent.chunk(&id, b"x");
        expect("after its end");
        waiting.join().unwrap()
    });
}

#[test]
fn pings_are_answered_unless_told_otherwise() {
    let (mut plane, mut agent, _cluster) = linked();
    agent.ping(b"1");
    assert_eq!(agent.next_pong(), b"1");
    plane.set(|b| b.answers_pings = false);
    agent.ping(b"2");
    plane.ping(Some("p-1"));
    assert_eq!(agent.next_json()["type"], "ping", "no pong comes first");
    let frames = plane.frames();
    let count = |opcode| frames.iter().filter(|f| f.opcode == opcode).count();
    assert_eq!((count(Opcode::Ping), count(Opcode::Pong)), (2, 1));
}

#[test]
fn messages_come_in_fragments_or_as_they_are() {
    let (mut plane, mut agent, _cluster) = linked();
    plane.set(|b| {
        b.fragment_bytes = Some(7);
        b.carrier = Carrier::Binary;
    });
    plane.error("cluster not registered");
    assert_eq!(
        agent.next_json()["payload"]["error"],
        "cluster not registered"
    );
    plane.send_text(r#"{"type":"x""#.trim());
    plane.send_frame(Opcode::Text, br#"{"type":"#, Last::No);
    plane.send_frame(Opcode::Continuation, br#""half"}"#, Last::Yes);
    assert_eq!(agent.next_text(), r#"{"type":"x""#);
    assert_eq!(agent.next_text(), r#"{"type":"half"}"#);
    plane.send_bytes(b"\x83\x01x");
    assert!(agent.is_broken(), "there is no opcode 3");
    drop(agent);
    plane.wait_gone(LIMIT).unwrap();
}

#[test]
fn rest_calls_are_answered_and_recorded() {
    let mut plane = plane();
    let call = |plane: &Plane, method: &str, path: &str, body: &str| {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n\
             Connection: close\r\nContent-Length: {}",
            plane.token(),
            body.len()
        );
        let answer = http(plane, &head, body.as_bytes());
        answer.split(' ').nth(1).unwrap().parse::<u16>().unwrap()
    };
    let tunnels = "/api/v1/clusters/agent/c-1/tunnels";
    assert_eq!(
        call(&plane, "POST", "/api/v1/gateway/routes/sync", "{}"),
        200
    );
    assert_eq!(call(&plane, "POST", tunnels, r#"{"tunnel_id":"t"}"#), 201);
    assert_eq!(call(&plane, "POST", &format!("{tunnels}/sync"), "{}"), 200);
    assert_eq!(call(&plane, "DELETE", &format!("{tunnels}/t"), ""), 204);
    assert_eq!(
        call(&plane, "GET", "/api/v1/public/ip-intel/192.0.2.1", ""),
        200
    );
    assert_eq!(call(&plane, "GET", "/nothing", ""), 404);
    plane.set(|b| b.rest.status = Some(500));
    assert_eq!(
        call(&plane, "POST", "/api/v1/gateway/routes/register", "{}"),
        500
    );
    let calls = plane.rest_calls();
    assert_eq!(calls.len(), 7);
    assert_eq!(calls[1].body, Some(json!({"tunnel_id": "t"})));
    assert!(calls.iter().all(|call| call.is_authorized));
}

//! Upgrades of any protocol, as raw bytes.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use plane::{Cut, Plane, Sessions, StreamChange};

use super::fake::{pattern, streaming};
use super::until_no_stream_is_open;
use crate::sessions::{get, http_open, read_head};

fn open(plane: &Plane, cluster: &str, path: &str, headers: &str) -> TcpStream {
    let head = get(cluster, path).replace("Connection: close", headers);
    http_open(plane, &head, b"")
}

const SPDY: &str = "Connection: Upgrade\r\nUpgrade: SPDY/3.1";

#[test]
fn an_upgrade_of_any_protocol_passes_with_its_bytes() {
    let (plane, fake, cluster) = streaming();
    let websocket = "Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\
        Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
        Sec-WebSocket-Protocol: SPDY/3.1+portforward.k8s.io";
    for headers in [SPDY, websocket] {
        let mut socket = open(&plane, &cluster, "/upgrade", headers);
        let head = read_head(&mut socket);
        assert!(head.starts_with("HTTP/1.1 101"), "{head}");
        let seen = fake.request("/upgrade");
        assert_eq!(seen["connection"], "Upgrade");
        assert_eq!(seen["authorization"], "Bearer k8s-token");
        if headers == SPDY {
            assert!(head.contains("upgrade: SPDY/3.1"), "{head}");
        } else {
            assert!(head.contains("sec-websocket-protocol: SPDY/3.1+portforward.k8s.io"));
            assert_eq!(seen["sec-websocket-key"], "dGhlIHNhbXBsZSBub25jZQ==");
        }
        let data = pattern(0, 3_000_000);
        std::thread::scope(|scope| {
            let mut writing = socket.try_clone().unwrap();
            let sent = &data;
            scope.spawn(move || writing.write_all(sent).unwrap());
            let mut back = vec![0; data.len()];
            socket.read_exact(&mut back).unwrap();
            assert!(back == data, "other bytes");
        });
        drop(socket);
        let total = fake.upgraded();
        assert_eq!(total, data.len());
    }
    until_no_stream_is_open(&plane);
    assert_eq!(plane.violations(), Vec::<String>::new());
}

#[test]
fn the_agents_end_is_the_clients_end() {
    let (plane, _fake, cluster) = streaming();
    let mut socket = open(&plane, &cluster, "/upgrade", SPDY);
    read_head(&mut socket);
    socket.write_all(b"last words").unwrap();
    socket.shutdown(std::net::Shutdown::Write).unwrap();
    let mut all = Vec::new();
    socket.read_to_end(&mut all).unwrap();
    assert_eq!(all, b"last words", "what came before the end passes");
}

#[test]
fn a_client_that_leaves_ends_its_upgrade_at_the_agent() {
    let (plane, fake, cluster) = streaming();
    let mut socket = open(&plane, &cluster, "/upgrade", SPDY);
    read_head(&mut socket);
    socket.write_all(b"x").unwrap();
    socket.read_exact(&mut [0]).unwrap();
    drop(socket);
    assert_eq!(fake.upgraded(), 1);
    until_no_stream_is_open(&plane);
}

#[test]
fn a_reset_and_a_lost_session_break_the_clients_connection() {
    let (plane, _fake, cluster) = streaming();
    let mut reset = open(&plane, &cluster, "/upgrade?reset", SPDY);
    read_head(&mut reset);
    let mut lost = open(&plane, &cluster, "/upgrade", SPDY);
    read_head(&mut lost);
    reset.write_all(b"x").unwrap();
    let error = reset.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    plane.cut(Sessions::Newest, Cut::Reset);
    let error = lost.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    let changes: Vec<_> = plane.stream_events().iter().map(|e| e.change).collect();
    assert!(changes.contains(&StreamChange::ResetByAgent), "{changes:?}");
    assert!(changes.contains(&StreamChange::Lost), "{changes:?}");
}

#[test]
fn a_refused_upgrade_is_an_answer() {
    let (plane, _fake, cluster) = streaming();
    let mut socket = open(&plane, &cluster, "/version", SPDY);
    let head = read_head(&mut socket);
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    socket.read_exact(&mut [0; 7]).unwrap();
}

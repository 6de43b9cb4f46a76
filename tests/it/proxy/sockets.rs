//! exec and its kin, and the server's side of every WebSocket.

use std::rc::Rc;

use async_tungstenite::{
    WebSocketStream,
    tungstenite::{Message, handshake::derive_accept_key, protocol::Role},
};
use futures_rustls::server::TlsStream;
use http_body_util::{BodyExt, Empty};
use hyper::{Request, Response, body::Incoming};
use serde_json::json;
use smol::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    stream::StreamExt,
};
use smol_hyper::rt::FuturesIo;

use super::bench::{Answered, Bench, Counted, HANDLE, Seen, base64, bytes, pattern, with_bench};

/// Accepts a WebSocket, or refuses it with 403.
pub(crate) fn accept(mut request: Request<Incoming>, seen: &Rc<Seen>) -> Response<Answered> {
    let nothing: Answered = Box::pin(Empty::new().map_err(|never| match never {}));
    let header = |name: &str| {
        let value = request.headers().get(name)?;
        Some(value.to_str().ok()?.to_owned())
    };
    if request.uri().path().ends_with("refuse") {
        return Response::builder().status(403).body(nothing).unwrap();
    }
    assert!(header("sec-websocket-extensions").is_none());
    let mut response = Response::builder()
        .status(101)
        .header("upgrade", "websocket")
        .header("connection", "Upgrade")
        .header(
            "sec-websocket-accept",
            derive_accept_key(header("sec-websocket-key").unwrap().as_bytes()),
        );
    if let Some(offered) = header("sec-websocket-protocol") {
        let first = offered.split(',').next().unwrap().trim().to_owned();
        response = response.header("sec-websocket-protocol", first);
    }
    let is_exec = request.uri().path().ends_with("exec");
    if is_exec {
        assert_eq!(
            header("authorization").as_deref(),
            Some("Bearer narrow-token")
        );
    }
    let counted = Counted::new(seen, |seen| &seen.bodies);
    let upgrade = hyper::upgrade::on(&mut request);
    seen.spawn(async move {
        let _counted = counted;
        let Ok(upgraded) = upgrade.await else {
            return;
        };
        match upgraded.downcast::<FuturesIo<TlsStream<TcpStream>>>() {
            Ok(parts) => serve(parts.io.into_inner(), is_exec).await,
            Err(upgraded) => {
                let parts = upgraded.downcast::<FuturesIo<TcpStream>>().unwrap();
                serve(parts.io.into_inner(), is_exec).await;
            }
        }
    });
    response.body(nothing).unwrap()
}

async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin, is_exec: bool) {
    let mut socket = WebSocketStream::from_raw_socket(stream, Role::Server, None).await;
    while let Some(Ok(message)) = socket.next().await {
        let answer = match message {
            Message::Binary(data) if is_exec => match data.split_first() {
                Some((0, b"exit\n")) => {
                    let status = [b"\x03", br#"{"status":"Success"}"#.as_slice()].concat();
                    let sent = socket.send(Message::Binary(status.into())).await;
                    drop(sent);
                    break;
                }
                Some((0, input)) => Message::Binary([b"\x01", input].concat().into()),
                Some((4, size)) => Message::Binary([b"\x02", size].concat().into()),
                _ => Message::Binary(data),
            },
            Message::Text(text) if text.as_str() == "bye" => break,
            Message::Text(text) if text.as_str() == "deaf" => std::future::pending().await,
            Message::Text(text) if text.as_str() == "big" => {
                Message::Binary(pattern(100_000).into())
            }
            Message::Text(_) | Message::Binary(_) => message,
            Message::Ping(_) | Message::Pong(_) | Message::Close(_) | Message::Frame(_) => continue,
        };
        if socket.send(answer).await.is_err() {
            return;
        }
    }
    let closed = socket.close(None).await;
    drop(closed);
}

const EXEC: &str = "/api/v1/namespaces/shop/pods/web-0/exec";

fn start(bench: &Bench, id: &str) {
    bench.say(&json!({"type": "ws_start", "request_id": id, "payload": {"stream_id": id, "path": EXEC,
        "query": "command=sh&stdin=true", "protocol": "v4.channel.k8s.io", "headers": {"authorization": [format!("Bearer {HANDLE}")]}}}));
}

fn frame(bench: &Bench, id: &str, opcode: u8, payload: &[u8]) {
    let data = base64([&[opcode], payload].concat());
    bench.say(&json!({"type": "proxy_websocket_data", "payload": {"stream_id": id, "data": data}}));
}

/// The next frame of a stream, as opcode and bytes.
async fn output(bench: &Bench, id: &str) -> Vec<u8> {
    let payload = bench.expect("proxy_websocket_data", id).await;
    assert_eq!(payload["stream_id"], id);
    assert!(payload.get("message_type").is_none());
    bytes(&payload["data"])
}

#[test]
fn exec_carries_stdin_stdout_and_resize_and_ends_with_one_close() {
    with_bench(async |bench| {
        start(&bench, "x");
        frame(&bench, "x", 1, b"ls\n");
        assert_eq!(output(&bench, "x").await, b"\x01ls\n");
        frame(&bench, "x", 2, b"\x04{\"Width\":80}");
        assert_eq!(output(&bench, "x").await, b"\x01{\"Width\":80}");
        frame(&bench, "x", 1, b"exit\n");
        assert_eq!(output(&bench, "x").await, b"\x01{\"status\":\"Success\"}");
        let payload = bench.expect("proxy_websocket_close", "x").await;
        assert_eq!(payload, json!({"stream_id": "x"}));
        bench.until_idle().await;
        assert_eq!(bench.outlet.load(), (0, 0), "nothing comes after the close");
    });
}

#[test]
fn frames_arrive_in_the_order_in_which_they_were_sent() {
    with_bench(async |bench| {
        start(&bench, "x");
        for number in 0..90 {
            frame(&bench, "x", 1, format!("{number}").as_bytes());
        }
        for number in 0..90 {
            assert_eq!(
                output(&bench, "x").await,
                format!("\u{1}{number}").as_bytes()
            );
        }
        bench.say(&json!({"type": "ws_close", "payload": {"stream_id": "x"}}));
        bench.expect("proxy_websocket_close", "x").await;
        bench.until_idle().await;
    });
}

#[test]
fn every_way_to_end_a_stream_ends_in_exactly_one_close() {
    with_bench(async |bench| {
        for (end, is_by_force) in [
            (
                json!({"type": "ws_close", "payload": {"stream_id": "x"}}),
                false,
            ),
            (
                json!({"type": "proxy_websocket_close", "request_id": "x", "payload": {"stream_id": "x"}}),
                false,
            ),
            (json!({"type": "proxy_cancel", "request_id": "x"}), false),
            (
                json!({"type": "ws_data", "payload": {"stream_id": "x", "data": "%"}}),
                true,
            ),
            (
                json!({"type": "ws_data", "payload": {"stream_id": "x", "data": base64(b"\x08")}}),
                false,
            ),
        ] {
            start(&bench, "x");
            frame(&bench, "x", 1, b"a");
            output(&bench, "x").await;
            bench.say(&end);
            if is_by_force {
                let payload = bench.expect("proxy_error", "x").await;
                assert_eq!(payload["request_id"], "x");
            }
            bench.expect("proxy_websocket_close", "x").await;
            bench.until_idle().await;
            assert_eq!(bench.outlet.load(), (0, 0));
        }
    });
}

#[test]
fn a_refused_stream_is_an_error_and_a_close() {
    with_bench(async |bench| {
        for (payload, wanted) in [
            (
                json!({"stream_id": "x", "path": "/api/v1/refuse"}),
                "failed to connect to K8s API: refused (status: 403)",
            ),
            (
                json!({"stream_id": "x", "path": "/metrics"}),
                "invalid path: must be a Kubernetes API path",
            ),
            (
                json!({"stream_id": "x", "path": "/api/v1/%2e%2e/x"}),
                "invalid path: must be a Kubernetes API path",
            ),
        ] {
            bench.say(
                &json!({"type": "proxy_websocket_start", "request_id": "y", "payload": payload}),
            );
            let error = bench.expect("proxy_error", "x").await;
            assert_eq!(error, json!({"error": wanted, "request_id": "x"}));
            bench.expect("proxy_websocket_close", "x").await;
        }
        bench.say(&json!({"type": "ws_start", "request_id": "y", "payload": {"path": EXEC}}));
        assert_eq!(
            bench.expect("proxy_error", "y").await,
            json!({"error": "missing stream_id"})
        );
        bench.until_idle().await;
    });
}

#[test]
fn a_start_under_a_living_id_does_not_touch_the_stream() {
    with_bench(async |bench| {
        start(&bench, "x");
        frame(&bench, "x", 1, b"a");
        output(&bench, "x").await;
        start(&bench, "x");
        assert_eq!(bench.proxy.load().dropped_messages, 1);
        frame(&bench, "x", 1, b"b");
        assert_eq!(output(&bench, "x").await, b"\x01b");
        bench.proxy.session_lost();
    });
}

#[test]
fn too_much_input_ends_a_stream_instead_of_leaving_a_hole() {
    with_bench(async |bench| {
        start(&bench, "x");
        for _ in 0..200 {
            frame(&bench, "x", 1, b"flood");
        }
        loop {
            let super::bench::Message::Text(message) = bench.next().await else {
                panic!("binary");
            };
            match message["type"].as_str().unwrap() {
                "proxy_websocket_data" => {}
                "proxy_error" => break,
                other => panic!("{other}"),
            }
        }
        bench.expect("proxy_websocket_close", "x").await;
        bench.until_idle().await;
    });
}

#[test]
fn a_request_for_exec_is_answered_with_101_before_its_first_data() {
    with_bench(async |bench| {
        for is_streaming in [true, false] {
            bench.ask("x", json!({"path": EXEC, "query": "command=sh", "supports_response_streaming": is_streaming,
                "headers": {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Protocol": "v4.channel.k8s.io"}}));
            frame(&bench, "x", 1, b"early");
            let head = if is_streaming {
                let head = bench.expect("proxy_response_header", "x").await;
                bench.expect("proxy_response_end", "x").await;
                head
            } else {
                bench.expect("proxy_response", "x").await
            };
            assert_eq!(head["status"], 101);
            assert_eq!(
                head["headers"]["Sec-Websocket-Protocol"],
                json!(["v4.channel.k8s.io"])
            );
            assert_eq!(output(&bench, "x").await, b"\x01early");
            bench.say(&json!({"type": "ws_close", "request_id": "x"}));
            bench.expect("proxy_websocket_close", "x").await;
            bench.until_idle().await;
        }
    });
}

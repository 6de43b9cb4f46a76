//! Requests and WebSockets to a service.

use serde_json::{Value, json};

use super::bench::{Bench, base64, bytes, pattern, with_bench};

/// A `proxy_request` to the service; `None` where this machine has no address that a Pod could
/// have.
fn to_service(bench: &Bench, path: &str, more: &Value) -> Option<Value> {
    if bench.seen.application.get().is_none() {
        eprintln!("skipped: this machine has no address but loopback");
        return None;
    }
    let mut payload =
        json!({"path": path, "namespace": "shop", "service_name": "web", "service_port": 80});
    payload.as_object_mut()?.extend(more.as_object()?.clone());
    Some(payload)
}

#[test]
fn a_request_to_a_service_keeps_what_is_the_applications_business() {
    with_bench(async |bench| {
        let more = json!({"method": "POST", "query": "b=2&a=1;x&flag", "scheme": "http", "body": "hello",
            "headers": {"Host": "shop.example.com", "Authorization": "Bearer users", "Cookie": "a=b", "Connection": "close, X-Gone", "X-Gone": "1"}});
        let Some(payload) = to_service(&bench, "/app/v1/a%2Fb//c", &more) else {
            return;
        };
        bench.ask("s", payload);
        let payload = bench.expect("proxy_response", "s").await;
        let seen: Value = serde_json::from_slice(&bytes(&payload["body"])).unwrap();
        assert_eq!(seen["uri"], "/app/v1/a%2Fb//c?b=2&a=1;x&flag");
        assert_eq!(seen["body"], "hello");
        let headers = &seen["headers"];
        assert_eq!(headers["authorization"], json!(["Bearer users"]));
        assert_eq!(headers["cookie"], json!(["a=b"]));
        assert_eq!(headers["host"], json!(["shop.example.com"]));
        assert_eq!(headers["x-gone"], Value::Null);
        bench.until_idle().await;
    });
}

#[test]
fn a_service_that_is_not_there_is_a_service_request_that_failed() {
    with_bench(async |bench| {
        let Some(mut payload) = to_service(&bench, "/app/v1/echo", &json!({})) else {
            return;
        };
        payload["service_port"] = json!(81);
        bench.ask("s", payload);
        let error = bench.expect("proxy_error", "s").await["error"].clone();
        assert!(
            error
                .as_str()
                .unwrap()
                .starts_with("service request failed:"),
            "{error}"
        );
        bench.until_idle().await;
    });
}

/// Opens the application's WebSocket.
async fn opened(bench: &Bench, id: &str) -> bool {
    let Some(payload) = to_service(
        bench,
        "/app/v1/ws",
        &json!({"is_websocket": true, "protocol": "chat, other",
        "supports_response_streaming": true}),
    ) else {
        return false;
    };
    bench.ask(id, payload);
    let head = bench.expect("proxy_response_header", id).await;
    assert_eq!(head["status"], 101);
    assert_eq!(head["headers"]["Upgrade"], json!(["websocket"]));
    assert_eq!(head["headers"]["Connection"], json!(["Upgrade"]));
    assert_eq!(head["headers"]["Sec-Websocket-Protocol"], json!(["chat"]));
    bench.expect("proxy_response_end", id).await;
    true
}

fn frame(bench: &Bench, id: &str, opcode: u8, payload: &[u8]) {
    let data = base64([&[opcode], payload].concat());
    bench.say(
        &json!({"type": "ws_data", "request_id": id, "payload": {"stream_id": id, "data": data}}),
    );
}

#[test]
fn an_applications_websocket_carries_frames_both_ways_and_says_when_the_backend_ends() {
    with_bench(async |bench| {
        if !opened(&bench, "a").await {
            return;
        }
        for (opcode, text) in [(1_u8, "hello"), (2, "bytes"), (1, "")] {
            frame(&bench, "a", opcode, text.as_bytes());
            let payload = bench.expect("proxy_websocket_data", "a").await;
            assert_eq!(payload["message_type"], opcode);
            assert_eq!(
                (&payload["stream_id"], &payload["request_id"]),
                (&json!("a"), &json!("a"))
            );
            assert_eq!(
                bytes(&payload["data"]),
                [&[opcode], text.as_bytes()].concat()
            );
        }
        // The unframed form, labelled beside the data.
        bench.say(&json!({"type": "proxy_websocket_data", "payload": {"request_id": "a", "data": base64("plain"), "message_type": 1}}));
        let payload = bench.expect("proxy_websocket_data", "a").await;
        assert_eq!(bytes(&payload["data"]), b"\x01plain");
        frame(&bench, "a", 1, b"big");
        let payload = bench.expect("proxy_websocket_data", "a").await;
        assert_eq!(bytes(&payload["data"])[1..], pattern(100_000));
        frame(&bench, "a", 1, b"bye");
        bench.expect("proxy_websocket_close", "a").await;
        bench.until_idle().await;
    });
}

#[test]
fn a_close_of_the_caller_reaches_the_applications_backend() {
    with_bench(async |bench| {
        for close in [
            json!({"type": "ws_close", "request_id": "a"}),
            json!({"type": "proxy_websocket_close", "payload": {"stream_id": "a"}}),
            json!({"type": "proxy_cancel", "request_id": "a"}),
        ] {
            if !opened(&bench, "a").await {
                return;
            }
            assert_eq!(bench.proxy.load().sockets, 1);
            bench.say(&close);
            bench.until_idle().await;
        }
    });
}

#[test]
fn frames_for_a_backend_that_does_not_read_are_dropped_and_said_so() {
    with_bench(async |bench| {
        if !opened(&bench, "a").await {
            return;
        }
        frame(&bench, "a", 1, b"deaf");
        let piece = vec![7; 200_000];
        // The kernel takes some megabytes before the queue fills.
        let mut sent = 0;
        while bench.proxy.load().dropped_messages == 0 {
            frame(&bench, "a", 2, &piece);
            sent += 1;
            assert!(sent < 500, "nothing is ever full");
            smol::future::yield_now().await;
        }
        let payload = bench.expect("backpressure", "a").await;
        assert_eq!(payload["reason"], "channel_full");
        bench.proxy.session_lost();
        bench
            .until("over", |bench| bench.proxy.load().long_running == 0)
            .await;
    });
}

#[test]
fn a_refused_handshake_is_passed_on() {
    with_bench(async |bench| {
        for is_streaming in [true, false] {
            let more = json!({"is_websocket": true, "supports_response_streaming": is_streaming});
            let Some(payload) = to_service(&bench, "/app/v1/refuse", &more) else {
                return;
            };
            bench.ask("r", payload);
            let kind = if is_streaming {
                assert_eq!(
                    bench.expect("proxy_response_header", "r").await["status"],
                    403
                );
                "proxy_response_abort"
            } else {
                "proxy_error"
            };
            let error = bench.expect(kind, "r").await["error"].clone();
            let error = error.as_str().unwrap();
            assert!(
                error.starts_with("failed to connect to service WebSocket:"),
                "{error}"
            );
            assert!(error.contains("(status: 403)"), "{error}");
            bench.until_idle().await;
        }
    });
}

//! Plain requests.

use std::collections::BTreeSet;

use pipeops_agent::core::policy::Level;
use serde_json::{Value, json};

use super::bench::{Bench, HANDLE, Message, base64, bytes, pattern, with_bench, with_level};

/// The payload of a buffered answer that echoes a request.
async fn echoed(bench: &Bench, id: &str) -> Value {
    let payload = bench.expect("proxy_response", id).await;
    assert_eq!(payload["status"], 200);
    serde_json::from_slice(&bytes(&payload["body"])).unwrap()
}

/// Collects a streamed answer; how it ended.
async fn streamed(bench: &Bench, id: &str) -> (Vec<u8>, String) {
    let mut body = Vec::new();
    loop {
        let Message::Text(message) = bench.next().await else {
            panic!("binary in a streamed answer");
        };
        assert_eq!(message["request_id"], id);
        let payload = &message["payload"];
        match message["type"].as_str().unwrap() {
            "proxy_response_chunk" => {
                let piece = bytes(&payload["data"]);
                assert_eq!(payload["size"], piece.len());
                assert!(!piece.is_empty());
                body.extend(piece);
            }
            "proxy_response_end" => return (body, String::new()),
            "proxy_response_abort" => {
                return (body, payload["error"].as_str().unwrap().to_owned());
            }
            other => panic!("unexpected {other}"),
        }
    }
}

#[test]
fn a_small_answer_is_one_message_with_the_headers_of_the_wire() {
    with_bench(async |bench| {
        bench.ask("a", json!({"path": "/api/v1/bytes/500"}));
        let payload = bench.expect("proxy_response", "a").await;
        assert_eq!(payload["status"], 200);
        assert_eq!(payload["encoding"], "base64");
        assert_eq!(bytes(&payload["body"]), pattern(500));
        let headers = payload["headers"].as_object().unwrap();
        assert_eq!(headers["Content-Type"], json!(["application/octet-stream"]));
        assert_eq!(headers["X-Two"], json!(["1", "2"]));
        assert!(!headers.contains_key("Keep-Alive"));
        assert!(!headers.contains_key("Transfer-Encoding"));
        bench.until_idle().await;
    });
}

#[test]
fn text_is_packed_where_that_helps_and_only_there() {
    with_bench(async |bench| {
        bench.ask("text", json!({"path": "/api/v1/text/5000"}));
        let payload = bench.expect("proxy_response", "text").await;
        assert_eq!(payload["encoding"], "gzip");
        let mut unpacked = Vec::new();
        std::io::Read::read_to_end(
            &mut flate2::read::GzDecoder::new(bytes(&payload["body"]).as_slice()),
            &mut unpacked,
        )
        .unwrap();
        assert_eq!(unpacked, vec![b'a'; 5000]);
        for path in ["noise/5000", "text/1000", "bytes/5000"] {
            bench.ask(path, json!({"path": format!("/api/v1/{path}")}));
            let payload = bench.expect("proxy_response", path).await;
            assert_eq!(payload["encoding"], "base64", "{path}");
        }
    });
}

#[test]
fn a_large_answer_is_one_binary_message() {
    with_bench(async |bench| {
        for length in [10_240, 40_000, 70_000, 20_000_000] {
            bench.ask("b", json!({"path": format!("/api/v1/bytes/{length}")}));
            let Message::Binary(message) = bench.next().await else {
                panic!("not binary: {length}");
            };
            let (head, rest) = message.split_at(7);
            assert_eq!(head, [0, 1, b'b', 0, 0, 0, 200]);
            let (count, rest) = rest.split_first_chunk::<4>().unwrap();
            let count = usize::try_from(u32::from_be_bytes(*count)).unwrap();
            let headers: Value = serde_json::from_slice(&rest[..count]).unwrap();
            assert_eq!(headers["X-Two"], json!(["1", "2"]));
            assert_eq!(rest[count..], pattern(length), "{length}");
            bench.until_idle().await;
        }
    });
}

#[test]
fn what_looks_packed_is_never_sent_where_packing_is_guessed() {
    with_bench(async |bench| {
        for length in [20_000, 200_000] {
            bench.ask("g", json!({"path": format!("/api/v1/gzip/{length}")}));
            let payload = bench.expect("proxy_response", "g").await;
            assert_eq!(payload["encoding"], "base64");
            assert_eq!(bytes(&payload["body"])[2..], pattern(length));
        }
    });
}

#[test]
fn an_answer_that_is_too_large_for_one_message_names_the_streaming_mode() {
    with_bench(async |bench| {
        bench.ask("e", json!({"path": "/api/v1/endless"}));
        let payload = bench.expect("proxy_error", "e").await;
        let text = payload["error"].as_str().unwrap();
        assert!(text.contains("supports_response_streaming"), "{text}");
        bench.until_idle().await;
        let left = std::fs::read_dir(bench.directory()).unwrap().count();
        assert_eq!(left, 1, "only the kubeconfig is left in the directory");
    });
}

#[test]
fn a_streamed_answer_comes_in_order_and_ends() {
    with_bench(async |bench| {
        bench.ask(
            "s",
            json!({"path": "/api/v1/bytes/1000000", "supports_response_streaming": true}),
        );
        let head = bench.expect("proxy_response_header", "s").await;
        assert_eq!(head["status"], 200);
        assert_eq!(head["headers"]["X-Two"], json!(["1", "2"]));
        let (body, error) = streamed(&bench, "s").await;
        assert_eq!((body == pattern(1_000_000), error.as_str()), (true, ""));
        bench.until_idle().await;
    });
}

#[test]
fn an_answer_that_breaks_is_aborted_or_an_error() {
    with_bench(async |bench| {
        bench.ask(
            "s",
            json!({"path": "/api/v1/cut/100", "supports_response_streaming": true}),
        );
        bench.expect("proxy_response_header", "s").await;
        let (body, error) = streamed(&bench, "s").await;
        assert_eq!(body.len(), 100);
        assert!(
            error.starts_with("kubernetes API request failed:"),
            "{error}"
        );
        bench.ask("b", json!({"path": "/api/v1/cut/100"}));
        let payload = bench.expect("proxy_error", "b").await;
        let text = payload["error"].as_str().unwrap();
        assert!(text.starts_with("kubernetes API request failed:"), "{text}");
        bench.until_idle().await;
    });
}

#[test]
fn an_event_of_a_watch_is_not_held_back_for_the_next() {
    with_bench(async |bench| {
        bench.ask(
            "w",
            json!({"path": "/api/v1/watch", "query": "watch=true", "supports_response_streaming": true}),
        );
        bench.expect("proxy_response_header", "w").await;
        for event in ["one\n", "two\n"] {
            bench.event(event);
            let chunk = bench.expect("proxy_response_chunk", "w").await;
            assert_eq!(bytes(&chunk["data"]), event.as_bytes());
        }
        assert_eq!(bench.proxy.load().long_running, 1);
        bench.say(&json!({"type": "proxy_cancel", "request_id": "w"}));
        bench.until_idle().await;
    });
}

#[test]
fn the_request_arrives_as_the_delegates_and_without_what_belongs_to_one_connection() {
    with_bench(async |bench| {
        bench.ask(
            "h",
            json!({"method": "get", "path": "//api/v1/p%6Fds", "query": "b=2&a=1;x&f", "headers": {
                "Authorization": [format!("Bearer {HANDLE}")], "Connection": ["X-Drop"], "x-drop": ["1"],
                "Host": "evil", "X-Keep": ["1", 5, "2"], "Content-Length": ["77"], "Upgrade": "h2c", "X-Remote-User": "admin",
                "Wrong": {"a": 1}}}),
        );
        let seen = echoed(&bench, "h").await;
        assert_eq!(seen["method"], "GET");
        assert_eq!(seen["uri"], "/api/v1/pods?b=2&a=1;x&f");
        let headers = seen["headers"].as_object().unwrap();
        assert_eq!(headers["authorization"], json!(["Bearer narrow-token"]));
        assert_eq!(headers["x-keep"], json!(["1", "2"]));
        let names: BTreeSet<&str> = headers.keys().map(String::as_str).collect();
        assert_eq!(names, BTreeSet::from(["authorization", "host", "x-keep"]));
        assert!(
            headers["host"][0]
                .as_str()
                .unwrap()
                .starts_with("127.0.0.1:")
        );
    });
}

#[test]
fn an_authorization_of_the_callers_own_is_refused() {
    with_bench(async |bench| {
        for authorization in [
            json!("Bearer stolen"),
            json!(["Bearer stolen", "Bearer other"]),
            json!("Basic eDp5"),
            json!(format!("bearer {HANDLE}")),
        ] {
            bench.ask(
                "own",
                json!({"path": "/api/v1/pods", "headers": {"authorization": authorization}}),
            );
            let payload = bench.expect("proxy_error", "own").await;
            let error = payload["error"].as_str().unwrap();
            assert!(error.contains("Authorization"), "{error}");
        }
        assert_eq!(bench.seen.requests.get(), 0);
    });
}

#[test]
fn every_form_of_request_body_arrives() {
    with_bench(async |bench| {
        let post = |body: Value| {
            let mut payload = json!({"method": "POST", "path": "/api/v1/echo"});
            payload
                .as_object_mut()
                .unwrap()
                .extend(body.as_object().unwrap().clone());
            payload
        };
        bench.ask("text", post(json!({"body": "grüße"})));
        assert_eq!(echoed(&bench, "text").await["body"], "grüße");
        bench.ask(
            "base64",
            post(json!({"body": base64("abc"), "body_encoding": "BASE64"})),
        );
        let seen = echoed(&bench, "base64").await;
        assert_eq!(
            (&seen["body"], &seen["headers"]["content-length"]),
            (&json!("abc"), &json!(["3"]))
        );
        bench.ask("object", post(json!({"body": {"b": [1, "x y"]}})));
        assert_eq!(echoed(&bench, "object").await["body"], r#"{"b":[1,"x y"]}"#);
        bench.ask("number", post(json!({"body": 5})));
        assert_eq!(echoed(&bench, "number").await["body_bytes"], 0);
        bench.ask("binary", post(json!({"body_binary": true})));
        assert!(bench.proxy.awaits_binary());
        assert!(!bench.proxy.binary_body(b"{}"), "this is no body");
        assert!(
            !bench.proxy.binary_body(b"\x00\x05other..."),
            "this is another's"
        );
        assert!(
            bench
                .proxy
                .binary_body(&[b"\x00\x06binary".as_slice(), &pattern(100_000)].concat())
        );
        assert!(!bench.proxy.awaits_binary());
        let seen = echoed(&bench, "binary").await;
        assert_eq!(
            (&seen["body_bytes"], &seen["is_pattern"]),
            (&json!(100_000), &json!(true))
        );
        for (id, flag, data) in [
            ("c1", "use_streaming", "data"),
            ("c2", "streaming", "chunk"),
        ] {
            let mut body = json!({"body": "replaced"});
            body[flag] = json!(true);
            bench.ask(id, post(body));
            for piece in pattern(100_000).chunks(30_000) {
                let mut payload = json!({});
                payload[data] = json!(base64(piece));
                bench.say(
                    &json!({"type": "proxy_request_chunk", "request_id": id, "payload": payload}),
                );
            }
            bench.say(&json!({"type": "proxy_request_stream_end", "request_id": id}));
            let seen = echoed(&bench, id).await;
            assert_eq!(
                (&seen["body_bytes"], &seen["is_pattern"]),
                (&json!(100_000), &json!(true))
            );
        }
        bench.until_idle().await;
    });
}

#[test]
fn a_request_that_cannot_be_used_gets_an_answer_and_harms_nobody() {
    with_bench(async |bench| {
        for (payload, wanted) in [
            (json!({"path": "/"}), "no route"),
            (json!({"path": "/api/v1/../x"}), "invalid path:"),
            (
                json!({"path": "/api/v1/x", "method": "GET /x HTTP/1.1\r\n"}),
                "invalid method",
            ),
            (
                json!({"path": "/api/v1/x", "query": "a\nb"}),
                "invalid query string:",
            ),
            (
                json!({"path": "/api/v1/x", "headers": {"a b": "c"}}),
                "invalid header name",
            ),
            (
                json!({"path": "/api/v1/x", "headers": {"a": "b\r\nc: d"}}),
                "invalid value",
            ),
            (
                json!({"path": "/api/v1/x", "body": "%%", "body_encoding": "base64"}),
                "the request body is not standard base64",
            ),
            (json!({"path": "x".repeat(20_000)}), "path is longer than"),
            (
                json!({"path": "/api/v1/x", "headers": {"a": vec!["b"; 300]}}),
                "headers are more than",
            ),
            (
                json!({"path": "/api/v1/x", "headers": {"a": "b".repeat(70_000)}}),
                "headers are more than",
            ),
            (
                json!({"path": "/api/v1/x", "body": "b".repeat(9 << 20)}),
                "the request body is larger than",
            ),
            (
                json!({"path": "/api/v1/x", "deadline": "2020-01-01T00:00:00Z"}),
                "context deadline exceeded",
            ),
        ] {
            bench.ask("u", payload.clone());
            let error = bench.expect("proxy_error", "u").await["error"].clone();
            assert!(
                error.as_str().unwrap().starts_with(wanted),
                "{error}: {wanted}"
            );
            let mut payload = payload;
            payload["supports_response_streaming"] = json!(true);
            bench.ask("u", payload);
            let error = bench.expect("proxy_response_abort", "u").await["error"].clone();
            assert!(
                error.as_str().unwrap().starts_with(wanted),
                "{error}: {wanted}"
            );
            bench.until_idle().await;
        }
        assert_eq!(bench.seen.requests.get(), 0, "nothing of that went out");
        bench.ask("ok", json!({"path": "/api/v1/echo"}));
        echoed(&bench, "ok").await;
    });
}

#[test]
fn messages_that_belong_to_nothing_are_counted_and_dropped() {
    with_bench(async |bench| {
        for message in [
            json!({"type": "proxy_request", "payload": {"path": "/api"}}),
            json!({"type": "proxy_request_chunk", "request_id": "?", "payload": {"data": ""}}),
            json!({"type": "proxy_request_chunk", "payload": {"data": ""}}),
            json!({"type": "proxy_request_stream_end", "request_id": "?"}),
            json!({"type": "proxy_cancel", "request_id": "?"}),
            json!({"type": "proxy_cancel"}),
            json!({"type": "proxy_stream_data", "request_id": "?", "payload": {"data": "eA=="}}),
            json!({"type": "ws_data", "request_id": "?", "payload": {"data": "AXg="}}),
            json!({"type": "proxy_websocket_close", "request_id": "?"}),
            json!({"type": "ws_close"}),
            json!({"type": "tcp_tunnel_data", "request_id": "?"}),
            json!({"type": "udp_tunnel_data"}),
        ] {
            let before = bench.proxy.load().dropped_messages;
            bench.say(&message);
            assert_eq!(bench.proxy.load().dropped_messages, before + 1, "{message}");
        }
        bench.say(&json!({"type": "tcp_tunnel_start", "request_id": "t", "payload": {"gateway_port": 22}}));
        let payload = bench.expect("tcp_tunnel_close", "t").await;
        assert_eq!(payload["reason"], "connection_failed");
    });
}

#[test]
fn a_cancel_ends_the_connection_and_frees_the_place() {
    with_bench(async |bench| {
        for payload in [
            json!({"path": "/api/v1/hang"}),
            json!({"path": "/api/v1/endless", "supports_response_streaming": true}),
        ] {
            bench.ask("c", payload);
            bench
                .until("it runs", |bench| bench.seen.bodies.get() == 1)
                .await;
            bench.say(&json!({"type": "proxy_cancel", "request_id": "c"}));
            bench.until_idle().await;
            bench
                .until("closed", |bench| bench.seen.connections.get() == 0)
                .await;
        }
    });
}

#[test]
fn a_lost_session_ends_everything() {
    with_bench(async |bench| {
        for number in 0..20 {
            bench.ask(&format!("s{number}"), json!({"path": "/api/v1/hang"}));
            bench.ask(
                &format!("l{number}"),
                json!({"path": "/api/v1/watch", "query": "watch", "supports_response_streaming": true}),
            );
        }
        bench
            .until("they run", |bench| bench.seen.bodies.get() == 28)
            .await;
        bench.outlet.lose();
        bench.proxy.session_lost();
        bench
            .until("closed", |bench| bench.seen.connections.get() == 0)
            .await;
        bench
            .until("no place is taken", |bench| {
                let load = bench.proxy.load();
                (
                    load.exchanges,
                    load.short_running,
                    load.short_waiting,
                    load.long_running,
                ) == (0, 0, 0, 0)
            })
            .await;
    });
}

#[test]
fn a_slow_reader_makes_the_server_wait_and_delays_nobody() {
    with_bench(async |bench| {
        bench.ask(
            "slow",
            json!({"path": "/api/v1/endless", "supports_response_streaming": true}),
        );
        bench.expect("proxy_response_header", "slow").await;
        // More than a small answer, so that the rest counts as bulk.
        for _ in 0..6 {
            bench.expect("proxy_response_chunk", "slow").await;
        }
        // Nothing is read, until the server stops being asked for more.
        let mut before = 0;
        loop {
            smol::Timer::after(std::time::Duration::from_millis(300)).await;
            let now = bench.seen.polled_bytes.get();
            if now == before {
                break;
            }
            before = now;
        }
        assert!(
            before < 16 << 20,
            "{before} bytes wait between server and lane"
        );
        let (lanes, queued) = bench.outlet.load();
        assert_eq!(lanes, 1);
        assert!(queued <= 8 * 32 * 1024, "{queued}");
        bench.ask("quick", json!({"path": "/api/v1/bytes/10"}));
        bench
            .until("the answer waits to be sent", |bench| {
                bench.outlet.load().1 > queued
            })
            .await;
        let Message::Text(first) = bench.next().await else {
            panic!("binary");
        };
        assert_eq!(first["request_id"], "quick", "small answers go before bulk");
        bench.say(&json!({"type": "proxy_cancel", "request_id": "slow"}));
        bench.until_idle().await;
    });
}

#[test]
fn too_many_requests_are_told_to_come_back() {
    with_bench(async |bench| {
        for number in 0..24 {
            bench.ask(&format!("{number}"), json!({"path": "/api/v1/hang"}));
        }
        bench.ask("busy", json!({"path": "/api/v1/echo"}));
        let error = bench.expect("proxy_error", "busy").await["error"].clone();
        assert!(error.as_str().unwrap().starts_with("busy"), "{error}");
        bench
            .until("eight run", |bench| bench.seen.bodies.get() == 8)
            .await;
        let load = bench.proxy.load();
        assert_eq!((load.short_running, load.short_waiting), (8, 16));
        bench.say(&json!({"type": "proxy_cancel", "request_id": "0"}));
        bench
            .until("the next takes the place", |bench| {
                bench.seen.requests.get() == 9
            })
            .await;
        // Watches have their own places.
        bench.ask(
            "w",
            json!({"path": "/api/v1/watch", "query": "watch=1", "supports_response_streaming": true}),
        );
        bench.expect("proxy_response_header", "w").await;
        bench.proxy.session_lost();
    });
}

#[test]
fn request_bodies_have_one_limit_for_all() {
    with_bench(async |bench| {
        let upload = |id: &str| {
            bench.ask(
                id,
                json!({"method": "POST", "path": "/api/v1/echo", "use_streaming": true}),
            );
        };
        let chunk = |id: &str| {
            bench.say(&json!({"type": "proxy_request_chunk", "request_id": id,
                "payload": {"data": base64(vec![0; 1 << 20])}}));
        };
        upload("one");
        upload("two");
        for _ in 0..7 {
            chunk("one");
        }
        chunk("two");
        chunk("two");
        let error = bench.expect("proxy_error", "two").await["error"].clone();
        assert!(error.as_str().unwrap().starts_with("busy"), "{error}");
        assert!(bench.proxy.load().held_body_bytes <= 8 << 20);
        bench.say(&json!({"type": "proxy_cancel", "request_id": "one"}));
        bench.until_idle().await;
        // A server that reads the body notices that its sender is gone.
        bench
            .until("closed", |bench| bench.seen.connections.get() == 0)
            .await;
    });
}

#[test]
fn a_body_with_a_hole_ends_its_request() {
    with_bench(async |bench| {
        bench.ask(
            "x",
            json!({"method": "PUT", "path": "/api/v1/echo", "streaming": true}),
        );
        bench.say(
            &json!({"type": "proxy_request_chunk", "request_id": "x", "payload": {"data": "AAA"}}),
        );
        let error = bench.expect("proxy_error", "x").await["error"].clone();
        assert!(error.as_str().unwrap().contains("base64"), "{error}");
        bench.until_idle().await;
    });
}

#[test]
fn a_second_request_under_a_living_id_does_not_touch_the_first() {
    with_bench(async |bench| {
        bench.ask(
            "i",
            json!({"path": "/api/v1/watch", "query": "watch", "supports_response_streaming": true}),
        );
        bench.expect("proxy_response_header", "i").await;
        bench.ask("i", json!({"path": "/api/v1/echo"}));
        bench.ask(
            "i",
            json!({"path": "/", "supports_response_streaming": true}),
        );
        assert_eq!(bench.proxy.load().dropped_messages, 2);
        bench.event("still\n");
        let chunk = bench.expect("proxy_response_chunk", "i").await;
        assert_eq!(bytes(&chunk["data"]), b"still\n");
        bench.say(&json!({"type": "proxy_cancel", "request_id": "i"}));
        bench.until_idle().await;
        bench.ask("i", json!({"path": "/api/v1/echo"}));
        echoed(&bench, "i").await;
    });
}

#[test]
fn a_callers_time_limit_ends_the_exchange() {
    with_bench(async |bench| {
        bench.ask("t", json!({"path": "/api/v1/hang", "timeout": 100}));
        let error = bench.expect("proxy_error", "t").await["error"].clone();
        assert!(
            error
                .as_str()
                .unwrap()
                .contains("context deadline exceeded"),
            "{error}"
        );
        bench.ask(
            "s",
            json!({"path": "/api/v1/watch", "query": "watch", "timeout": "150ms", "supports_response_streaming": true}),
        );
        bench.expect("proxy_response_header", "s").await;
        let (_, error) = streamed(&bench, "s").await;
        assert!(error.contains("context deadline exceeded"), "{error}");
        bench.until_idle().await;
    });
}

#[test]
fn a_refusal_by_the_level_names_the_setting() {
    for level in [Level::Managed, Level::ReadOnly, Level::Off] {
        with_level(level, async |bench| {
            bench.ask("r", json!({"path": "/api/v1/echo"}));
            let error = bench.expect("proxy_error", "r").await["error"].clone();
            assert!(error.as_str().unwrap().contains("access.level"), "{error}");
            bench.say(&json!({"type": "ws_start", "request_id": "x", "payload": {
                "stream_id": "x", "path": "/api/v1/namespaces/kube-system/pods/b/exec"}}));
            let payload = bench.expect("proxy_error", "x").await;
            assert_eq!(payload["request_id"], "x");
            assert!(payload["error"].as_str().unwrap().contains("access.level"));
            bench.expect("proxy_websocket_close", "x").await;
            assert_eq!(bench.seen.requests.get(), 0);
        });
    }
}

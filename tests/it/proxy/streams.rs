//! HTTP on streams: the same server behind the same gate, asked by hyper over the yamux crate.

use std::{cell::RefCell, rc::Rc, time::Duration};

use http_body_util::{BodyExt, Empty, Full, StreamBody, combinators::BoxBody};
use hyper::{
    Request, Response, StatusCode,
    body::{Bytes, Frame as HttpFrame, Incoming},
    client::conn::http1::{SendRequest, handshake},
};
use pipeops_agent::{
    core::policy::{Level, Rules},
    executor::Executor,
    link::outlet::Frame,
    tasks::proxy::Load,
};
use serde_json::{Value, json};
use smol::{
    Task, Timer,
    io::{AsyncReadExt, AsyncWriteExt},
    net::unix::UnixStream,
    stream,
};
use smol_hyper::rt::FuturesIo;
use yamux::Stream;

use super::bench::{Bench, HANDLE, Message, PATIENCE, pattern, with_bench, with_level};
use crate::mux::crate_peer::Peer;

type Sent = BoxBody<Bytes, std::convert::Infallible>;

const KUBERNETES: &[u8] = &[2, 3, 0, 0, 0, 0, 0, 0, 0, 0];

fn service_header(kind: u8) -> Vec<u8> {
    let mut header = vec![2, kind, 0, 80];
    for text in ["web", "shop", "id-1"] {
        header.extend(u16::try_from(text.len()).unwrap().to_be_bytes());
        header.extend(text.as_bytes());
    }
    header
}

/// Runs a test with the streams of a session that has begun.
async fn with_streams(bench: &Bench, test: impl AsyncFnOnce(&Caller)) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    bench.proxy.open_streams(&bench.outlet);
    let caller = Caller {
        peer: Peer::start(&bench.seen.executor, theirs),
        executor: Rc::clone(&bench.seen.executor),
        connections: RefCell::default(),
    };
    let (mut reader, mut writer) = (ours.clone(), ours);
    let inbound = async {
        let mut buffer = vec![0; 16 * 1024];
        loop {
            let count = reader.read(&mut buffer).await.unwrap_or(0);
            if count == 0 {
                return;
            }
            let message = Bytes::copy_from_slice(&buffer[..count]);
            assert!(bench.proxy.stream_bytes(&message));
        }
    };
    let outbound = async {
        while let Some(frame) =
            std::future::poll_fn(|context| bench.outlet.poll_next(context)).await
        {
            let Frame::Binary(bytes) = frame else {
                panic!("{frame:?} on a session without JSON");
            };
            assert!(bytes.len() <= 32 * 1024 + 12, "{} bytes", bytes.len());
            writer.write_all(&bytes).await.unwrap();
        }
    };
    let carried = async {
        smol::future::zip(inbound, outbound).await;
        std::future::pending::<()>().await;
    };
    let test = async {
        test(&caller).await;
    };
    let late = async {
        Timer::after(PATIENCE).await;
        panic!("too late; load {:?}", bench.proxy.load());
    };
    smol::future::or(test, smol::future::or(carried, late)).await;
}

struct Caller {
    peer: Peer,
    executor: Rc<Executor>,
    /// Connections that go on by themselves for as long as their answers are read.
    connections: RefCell<Vec<Task<()>>>,
}

/// One stream on which hyper speaks.
struct Connection {
    sender: SendRequest<Sent>,
    task: Task<()>,
}

impl Caller {
    async fn connect(&self, header: &[u8]) -> Connection {
        let stream = self.peer.open(header).await;
        let (sender, connection) = handshake(FuturesIo::new(stream)).await.unwrap();
        let task = self.executor.spawn(async move {
            drop(connection.await);
        });
        Connection { sender, task }
    }

    async fn get(&self, path: &str) -> Response<Incoming> {
        let mut connection = self.connect(KUBERNETES).await;
        let answer = connection.ask(request("GET", path, &[], "")).await;
        self.connections.borrow_mut().push(connection.task);
        answer
    }
}

impl Connection {
    async fn ask(&mut self, request: Request<Sent>) -> Response<Incoming> {
        self.sender.ready().await.unwrap();
        self.sender.send_request(request).await.unwrap()
    }
}

fn request(
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &'static str,
) -> Request<Sent> {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let body = if body.is_empty() {
        Empty::new().boxed()
    } else {
        Full::new(Bytes::from_static(body.as_bytes())).boxed()
    };
    request.body(body).unwrap()
}

async fn whole(answer: Response<Incoming>) -> Vec<u8> {
    answer
        .into_body()
        .collect()
        .await
        .unwrap()
        .to_bytes()
        .to_vec()
}

async fn echoed(answer: Response<Incoming>) -> Value {
    assert_eq!(answer.status(), StatusCode::OK);
    serde_json::from_slice(&whole(answer).await).unwrap()
}

#[test]
fn requests_follow_each_other_on_one_stream_as_the_delegate() {
    with_bench(async |bench| {
        with_streams(&bench, async |caller| {
            let mut connection = caller.connect(KUBERNETES).await;
            let handle = format!("Bearer {HANDLE}");
            let headers = [
                ("host", "evil"),
                ("authorization", handle.as_str()),
                ("connection", "keep-alive, x-drop"),
                ("x-drop", "1"),
                ("x-keep", "1"),
                ("x-keep", "2"),
                ("x-remote-user", "admin"),
            ];
            let seen = echoed(
                connection
                    .ask(request("GET", "//api/v1/p%6Fds?b=2&a=1;x&f", &headers, ""))
                    .await,
            )
            .await;
            assert_eq!(seen["uri"], "/api/v1/pods?b=2&a=1;x&f");
            assert_eq!(
                seen["headers"]["authorization"],
                json!(["Bearer narrow-token"])
            );
            assert_eq!(seen["headers"]["x-keep"], json!(["1", "2"]));
            for gone in ["x-drop", "x-remote-user", "connection"] {
                assert!(seen["headers"].get(gone).is_none(), "{seen}");
            }
            let seen = echoed(
                connection
                    .ask(request("POST", "/api/v1/pods", &[], "a body"))
                    .await,
            )
            .await;
            assert_eq!(
                (&seen["method"], &seen["body"]),
                (&json!("POST"), &json!("a body"))
            );
            let answer = connection
                .ask(request("GET", "/api/v1/bytes/300000", &[], ""))
                .await;
            assert_eq!(answer.headers().get_all("x-two").iter().count(), 2);
            assert!(answer.headers().get("keep-alive").is_none());
            assert!(whole(answer).await == pattern(300_000));
        })
        .await;
    });
}

#[test]
fn a_body_arrives_in_pieces_and_an_answer_as_it_was() {
    with_bench(async |bench| {
        with_streams(&bench, async |caller| {
            let pieces = pattern(3_000_000);
            let frames = pieces
                .chunks(40_000)
                .map(|piece| Ok(HttpFrame::data(Bytes::copy_from_slice(piece))))
                .collect::<Vec<_>>();
            let request = Request::post("/api/v1/pods")
                .body(BodyExt::boxed(StreamBody::new(stream::iter(frames))))
                .unwrap();
            let mut connection = caller.connect(KUBERNETES).await;
            let seen = echoed(connection.ask(request).await).await;
            assert_eq!(seen["body_bytes"], 3_000_000);
            assert_eq!(seen["is_pattern"], true);
            let answer = whole(caller.get("/api/v1/bytes/9000000").await).await;
            assert!(answer == pattern(9_000_000));
        })
        .await;
        bench.proxy.session_lost();
        bench
            .until("nothing is held", |bench| {
                Load {
                    requests: 0,
                    ..bench.proxy.load()
                } == Load::default()
            })
            .await;
    });
}

#[test]
fn a_reader_that_does_not_read_stops_its_server_and_nobody_else() {
    with_bench(async |bench| {
        with_streams(&bench, async |caller| {
            let mut held = Vec::new();
            // More than may run at once: an answer that flows takes nobody's turn.
            for _ in 0..20 {
                held.push(caller.get("/api/v1/endless").await);
            }
            let mut before = usize::MAX;
            while before != bench.seen.polled_bytes.get() {
                before = bench.seen.polled_bytes.get();
                Timer::after(Duration::from_millis(100)).await;
            }
            let seen = echoed(caller.get("/api/v1/pods").await).await;
            assert_eq!(seen["method"], "GET");
            drop(held);
            bench
                .until("the server is let go", |bench| bench.seen.bodies.get() == 0)
                .await;
        })
        .await;
    });
}

#[test]
fn an_event_of_a_watch_arrives_at_once_and_a_cancel_ends_the_watch() {
    with_bench(async |bench| {
        with_streams(&bench, async |caller| {
            let mut answer = caller.get("/api/v1/watch/pods?watch=true").await;
            for event in ["one", "two"] {
                bench.event(event);
                let frame = answer.body_mut().frame().await.unwrap().unwrap();
                assert_eq!(frame.into_data().unwrap(), event);
            }
            assert_eq!(bench.proxy.load().long_running, 1);
            drop(answer);
            bench
                .until("the watch is over", |bench| {
                    bench.seen.bodies.get() == 0 && bench.proxy.load().long_running == 0
                })
                .await;
        })
        .await;
    });
}

#[test]
fn a_request_that_waits_for_its_answer_is_given_up_with_its_stream() {
    with_bench(async |bench| {
        with_streams(&bench, async |caller| {
            let mut stream = caller.peer.open(KUBERNETES).await;
            // A second request lies in the buffer while the first one waits.
            let two = "GET /api/v1/hang HTTP/1.1\r\nhost: x\r\n\r\n".repeat(2);
            stream.write_all(two.as_bytes()).await.unwrap();
            bench
                .until("it hangs", |bench| bench.seen.bodies.get() == 1)
                .await;
            drop(stream);
            bench
                .until("it is given up", |bench| {
                    bench.seen.bodies.get() == 0 && bench.proxy.load().streams == 0
                })
                .await;
        })
        .await;
    });
}

#[test]
fn an_answer_that_breaks_is_not_taken_for_the_whole() {
    with_bench(async |bench| {
        with_streams(&bench, async |caller| {
            let mut connection = caller.connect(KUBERNETES).await;
            let asked = request("GET", "/api/v1/cut/1000", &[], "");
            // The head may be lost with the rest.
            if let Ok(answer) = connection.sender.send_request(asked).await {
                assert!(answer.into_body().collect().await.is_err());
            }
        })
        .await;
    });
}

#[test]
fn refusals_are_status_objects_that_kubectl_prints() {
    with_bench(async |bench| {
        with_streams(&bench, async |caller| {
            for (text, code, word) in [
                (
                    "GET /api/v1/x HTTP/1.1\r\nauthorization: Bearer own",
                    403,
                    "foreign_tokens",
                ),
                ("GET http://h/api/v1/x HTTP/1.1\r\na: b", 400, "whole URL"),
                ("CONNECT h:1 HTTP/1.1\r\na: b", 400, "URL"),
                ("GET /api/../secrets HTTP/1.1\r\na: b", 400, "path"),
                ("GET /metrics HTTP/1.1\r\na: b", 400, "route"),
                ("GET /api/v1/x HTTP/1.1\r\na: \u{80}\u{81}", 502, ""),
                (
                    "GET /api/v1/x HTTP/1.1\r\nconnection: upgrade\r\nupgrade: h2c",
                    400,
                    "upgrade",
                ),
            ] {
                let mut stream = caller.peer.open(KUBERNETES).await;
                let request = format!("{text}\r\nhost: x\r\nconnection: close\r\n\r\n");
                stream.write_all(request.as_bytes()).await.unwrap();
                let mut answer = String::new();
                stream.read_to_string(&mut answer).await.unwrap();
                if code == 502 {
                    // What is UTF-8 passes.
                    assert!(answer.starts_with("HTTP/1.1 200 "), "{text}: {answer}");
                    continue;
                }
                assert!(
                    answer.starts_with(&format!("HTTP/1.1 {code} ")),
                    "{text}: {answer}"
                );
                let (_, body) = answer.split_once("\r\n\r\n").unwrap();
                let status: Value = serde_json::from_str(body).unwrap();
                assert_eq!(
                    (&status["kind"], &status["code"]),
                    (&json!("Status"), &json!(code))
                );
                assert!(
                    status["message"].as_str().unwrap().contains(word),
                    "{text}: {body}"
                );
            }
        })
        .await;
    });
    with_level(Level::Off, async |bench| {
        with_streams(&bench, async |caller| {
            let answer = caller.get("/api/v1/pods").await;
            assert_eq!(answer.status(), StatusCode::FORBIDDEN);
            let body = String::from_utf8(whole(answer).await).unwrap();
            assert!(body.contains("access.level"), "{body}");
            assert_eq!(bench.seen.requests.get(), 0);
        })
        .await;
    });
}

#[test]
fn stricter_rules_cut_what_runs() {
    with_bench(async |bench| {
        with_streams(&bench, async |caller| {
            let mut watch = caller.get("/api/v1/watch/pods?watch=true").await;
            bench.event("one");
            assert!(watch.body_mut().frame().await.unwrap().is_ok());
            let off = Rules {
                level: Level::Off,
                ..Rules::default()
            };
            assert_eq!(bench.proxy.set_rules(off), 1);
            assert!(watch.body_mut().frame().await.unwrap().is_err());
            let answer = caller.get("/api/v1/pods").await;
            assert_eq!(answer.status(), StatusCode::FORBIDDEN);
            bench
                .until("nothing runs", |bench| bench.seen.bodies.get() == 0)
                .await;
        })
        .await;
    });
    with_bench(async |bench| {
        bench.ask("w", json!({"path": "/api/v1/watch/pods", "query": "watch=true", "supports_response_streaming": true}));
        bench.expect("proxy_response_header", "w").await;
        bench.proxy.set_rules(Rules {
            level: Level::Off,
            ..Rules::default()
        });
        let payload = bench.expect("proxy_response_abort", "w").await;
        assert!(
            payload["error"].as_str().unwrap().contains("access.level"),
            "{payload}"
        );
        bench.until_idle().await;
    });
}

#[test]
fn a_withdrawal_does_not_end_the_next_request_of_its_stream() {
    with_bench(async |bench| {
        with_streams(&bench, async |caller| {
            let mut connection = caller.connect(KUBERNETES).await;
            let rules = |level| Rules {
                level,
                ..Rules::default()
            };
            let withdrawn = async {
                bench
                    .until("it hangs", |bench| bench.seen.bodies.get() == 1)
                    .await;
                bench.proxy.set_rules(rules(Level::Off));
            };
            let asked = connection.ask(request("GET", "/api/v1/hang", &[], ""));
            let (answer, ()) = smol::future::zip(asked, withdrawn).await;
            assert_eq!(answer.status(), StatusCode::FORBIDDEN);
            whole(answer).await;
            bench.proxy.set_rules(rules(Level::Full));
            let asked = request("GET", "/api/v1/watch/pods?watch=true", &[], "");
            let mut watch = connection.ask(asked).await;
            // Longer than an answer may take to end once its permission was withdrawn.
            Timer::after(Duration::from_millis(1_500)).await;
            bench.event("one");
            let event = watch.body_mut().frame().await;
            assert!(matches!(event, Some(Ok(_))), "{event:?}");
        })
        .await;
    });
}

#[test]
fn an_upgrade_passes_through_as_it_is() {
    use async_tungstenite::{client_async, tungstenite::Message as Ws};
    use smol::stream::StreamExt;
    with_bench(async |bench| {
        with_streams(&bench, async |caller| {
            let stream: Stream = caller.peer.open(KUBERNETES).await;
            let request = Request::get("ws://x/api/v1/namespaces/shop/pods/web-0/exec?command=sh")
                .header("host", "x")
                .header("connection", "Upgrade")
                .header("upgrade", "websocket")
                .header("sec-websocket-version", "13")
                .header("sec-websocket-key", "AAAAAAAAAAAAAAAAAAAAAA==")
                .header("sec-websocket-protocol", "v5.channel.k8s.io")
                .body(())
                .unwrap();
            let uri = request.uri().path_and_query().unwrap().to_string();
            assert!(uri.starts_with("/api/"));
            let (mut socket, head) = client_async(request, stream).await.unwrap();
            assert_eq!(
                head.headers()["sec-websocket-protocol"],
                "v5.channel.k8s.io"
            );
            assert_eq!(bench.proxy.load().long_running, 1);
            socket.send(Ws::binary(&b"\0exit\n"[..])).await.unwrap();
            while let Some(Ok(message)) = socket.next().await {
                assert!(!message.is_text(), "{message}");
            }
            bench
                .until("it is over", |bench| {
                    bench.seen.bodies.get() == 0 && bench.proxy.load().streams == 0
                })
                .await;
        })
        .await;
    });
}

#[test]
fn a_service_is_reached_and_no_credential_of_ours_goes_there() {
    with_bench(async |bench| {
        if bench.seen.application.get().is_none() {
            println!("skipped: this machine has no address but loopback");
            return;
        }
        with_streams(&bench, async |caller| {
            let mut connection = caller.connect(&service_header(4)).await;
            let headers = [
                ("host", "shop.example.com"),
                ("authorization", "Bearer users"),
            ];
            let seen = echoed(
                connection
                    .ask(request("GET", "/api/v1/pods", &headers, ""))
                    .await,
            )
            .await;
            assert_eq!(seen["headers"]["authorization"], json!(["Bearer users"]));
            assert_eq!(seen["headers"]["host"], json!(["shop.example.com"]));
        })
        .await;
    });
}

#[test]
fn a_stream_that_is_for_nothing_ends_and_the_session_stays() {
    with_bench(async |bench| {
        with_streams(&bench, async |caller| {
            for header in [&[9_u8, 9][..], &[2, 7, 0, 0], b"GET / HTTP/1.1\r\n\r\n"] {
                let mut stream = caller.peer.open(header).await;
                let mut rest = Vec::new();
                // A reset is an error or an end: both are over.
                drop(stream.read_to_end(&mut rest).await);
                assert!(rest.is_empty(), "{rest:?}");
            }
            let mut tunnel = caller.peer.open(&service_header(1)).await;
            let mut word = Vec::new();
            tunnel.read_to_end(&mut word).await.unwrap();
            assert_eq!(word[0], 1);
            let text: Value = serde_json::from_slice(&word[3..]).unwrap();
            assert!(
                text["fix"].as_str().unwrap().contains("port-forward"),
                "{text}"
            );
            assert_eq!(
                echoed(caller.get("/api/v1/pods").await).await["method"],
                "GET"
            );
            bench
                .until("all are let go", |bench| bench.proxy.load().streams <= 1)
                .await;
        })
        .await;
    });
}

#[test]
fn json_goes_on_beside_streams_without_binary_messages() {
    with_bench(async |bench| {
        bench.proxy.open_streams(&bench.outlet);
        bench.ask("large", json!({"path": "/api/v1/bytes/100000"}));
        let Message::Text(answer) = bench.next().await else {
            panic!("a binary message among frames of streams");
        };
        assert_eq!(answer["type"], "proxy_response");
        assert!(super::bench::bytes(&answer["payload"]["body"]) == pattern(100_000));
        bench.ask(
            "body",
            json!({"path": "/api/v1/pods", "method": "POST", "body_binary": true}),
        );
        let payload = bench.expect("proxy_error", "body").await;
        assert!(
            payload["error"].as_str().unwrap().contains("base64"),
            "{payload}"
        );
    });
}

/// Opens a stream and does something hostile with it, in every state that a stream can be in.
async fn misuse(caller: &Caller, random: &mut fastrand::Rng, held: &mut Vec<Stream>) {
    let paths = [
        "/api/v1/endless",
        "/api/v1/hang",
        "/api/v1/bytes/100000",
        "/api/v1/watch/x?watch=1",
    ];
    let path = paths[random.usize(..paths.len())];
    let whole = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
    let mut bytes = KUBERNETES.to_vec();
    match random.u8(..8) {
        // Cut in the header of the stream or of the request, or garbage in place of either.
        0 => bytes.truncate(random.usize(1..10)),
        1 => bytes.extend(&whole.as_bytes()[..random.usize(..whole.len())]),
        2 => bytes = (0..random.usize(1..200)).map(|_| random.u8(..)).collect(),
        // Pipelined far ahead.
        3 => bytes.extend(whole.repeat(random.usize(1..50)).as_bytes()),
        // A body that never comes, or comes wrongly.
        4 => {
            bytes.extend(b"POST /api/v1/x HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\nab")
        }
        5 => bytes
            .extend(b"POST /api/v1/x HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz"),
        _ => bytes.extend(whole.as_bytes()),
    }
    let mut stream = caller.peer.open(&bytes).await;
    match random.u8(..4) {
        // Dropped: a reset.
        0 => {}
        // Half closed, and then left alone or dropped.
        1 => {
            drop(stream.close().await);
            if random.bool() {
                held.push(stream);
            }
        }
        // Read a little.
        2 => {
            let mut some = [0; 100];
            let read = async { stream.read(&mut some).await.map(drop) };
            let late = async {
                Timer::after(Duration::from_millis(1)).await;
                Ok(())
            };
            drop(smol::future::or(read, late).await);
        }
        // Never read.
        _ => held.push(stream),
    }
    // Below what the crate takes to be too many, and above what the agent serves at once.
    if held.len() > 140 {
        held.drain(..70);
    }
}

#[test]
fn streams_that_are_misused_in_every_way_cost_their_bounds_and_nobody_else() {
    with_bench(async |bench| {
        with_streams(&bench, async |caller| {
            let mut random = fastrand::Rng::with_seed(20_261_121);
            let mut held = Vec::new();
            for round in 0..2_000 {
                misuse(caller, &mut random, &mut held).await;
                let load = bench.proxy.load();
                assert!(load.streams <= 128, "{load:?}");
                assert!(
                    load.long_running <= 64 && load.short_running <= 8,
                    "{load:?}"
                );
                if round % 500 == 499 {
                    held.clear();
                    let seen = echoed(caller.get("/api/v1/pods").await).await;
                    assert_eq!(seen["method"], "GET");
                }
            }
            held.clear();
        })
        .await;
        bench.proxy.session_lost();
        bench
            .until("nothing is left", |bench| {
                Load {
                    requests: 0,
                    ..bench.proxy.load()
                } == Load::default()
                    && bench.seen.bodies.get() == 0
            })
            .await;
    });
}

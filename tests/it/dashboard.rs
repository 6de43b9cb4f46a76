//! The local API on its socket, spoken to byte by byte.

use std::{
    cell::Cell, net::SocketAddr, os::unix::fs::PermissionsExt, path::Path, rc::Rc, time::Duration,
};

use pipeops_agent::{
    core::{
        authorization::{Role, View},
        policy::Level,
    },
    dashboard::{
        Answering, Answers, ApiRequest, CONNECTIONS_MAX, From, Hub, Rejection, Reply, Server,
        Session, Site,
    },
    executor::Executor,
    files::Jobs,
    host::clock,
    wire::{
        api::{AccessChange, AccessReport, AccessRequest, ErrorBody, Row, SessionReport, Status},
        exposition,
    },
};
use smol::{
    Task,
    future::{FutureExt, block_on},
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, unix::UnixStream},
};

/// What stands behind the server: it counts how often its status was asked for, and remembers a
/// level.
#[derive(Default)]
struct Agent {
    asked: Cell<u64>,
    level: Cell<Level>,
}

/// The question to which the machine gives no answer.
const NOT_READ: u64 = 3;

impl Answers for Agent {
    fn status(&self) -> Status {
        self.asked.set(self.asked.get() + 1);
        Status {
            version: "1.2.3".to_owned(),
            uptime_s: self.asked.get(),
            rows: vec![Row {
                title: "Agent".to_owned(),
                value: "version 1.2.3".to_owned(),
                ..Row::default()
            }],
            ..Status::default()
        }
    }

    fn session(&self, _cookie: &str) -> Option<Session> {
        None
    }

    fn report(&self, asked: &ApiRequest) -> SessionReport {
        SessionReport {
            role: asked.caller.role.as_str().to_owned(),
            ..SessionReport::default()
        }
    }

    fn turned_away(&self, _why: Rejection) {}

    fn accept_failed(&self, error: &std::io::Error) -> Duration {
        panic!("{error}");
    }

    fn accepted(&self) {}

    fn answer(self: Rc<Self>, view: View, asked: ApiRequest) -> Answering {
        Box::pin(async move {
            if view == View::Metrics {
                return self.metrics();
            }
            if view == View::Status {
                return Reply::json(&self.status());
            }
            if view == View::SetAccess {
                return self.set_access(&asked);
            }
            assert_eq!(view, View::Access);
            Reply::json(&AccessReport {
                level: self.level.get().as_str().to_owned(),
                ..AccessReport::default()
            })
        })
    }
}

impl Agent {
    fn metrics(&self) -> Reply {
        self.asked.set(self.asked.get() + 1);
        if self.asked.get() == NOT_READ {
            return Reply::unavailable("not now", Some("later"));
        }
        let page = format!("asked_total {}\n", self.asked.get());
        Reply::whole(exposition::CONTENT_TYPE, page)
    }

    fn set_access(&self, asked: &ApiRequest) -> Reply {
        let pid = i32::try_from(std::process::id()).ok();
        let From::Socket(peer) = asked.caller.from else {
            panic!("nobody changes anything over the port here");
        };
        assert_eq!(Some(peer.pid), pid);
        let request: AccessRequest = serde_json::from_slice(&asked.body).unwrap();
        self.level.set(Level::from_word(&request.level).unwrap());
        Reply::json(&AccessChange {
            level: request.level,
            ..AccessChange::default()
        })
    }
}

/// The server while it serves.
type Serving = Cell<Option<Task<()>>>;

fn site() -> Rc<Site> {
    let answers = Rc::new(Agent::default());
    Rc::new(Site::new(answers, Role::Anonymous, Rc::new(Hub::new(0))))
}

fn on_socket(path: &Path) -> pipeops_agent::error::Result<Server> {
    block_on(Server::on_socket(path, &Jobs::default()))
}

/// Runs `conversation` against a server at `agent.sock` in a directory of its own.
fn with_server<F: Future<Output = ()>>(conversation: impl FnOnce(Rc<Path>, Rc<Serving>) -> F) {
    let directory = tempfile::tempdir().unwrap();
    let path: Rc<Path> = directory.path().join("run/agent.sock").into();
    let executor = Rc::new(Executor::new());
    let server = on_socket(&path).unwrap();
    let for_server = Rc::clone(&executor);
    let serving = async move { server.serve(for_server, site()).await };
    let task = executor.spawn(async move { match serving.await {} });
    let serving = Rc::new(Cell::new(Some(task)));
    let conversation = conversation(path, Rc::clone(&serving));
    block_on(executor.run(async { conversation.or(overdue()).await }));
}

async fn overdue() {
    smol::Timer::after(Duration::from_secs(30)).await;
    panic!("the conversation did not end in 30 s");
}

async fn say(path: &Path, request: &str) -> String {
    let mut stream = UnixStream::connect(path).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    heard(&mut stream).await
}

/// Everything until the server closes.
async fn heard(stream: &mut (impl AsyncReadExt + Unpin)) -> String {
    let mut answer = Vec::new();
    // A reset after the answer is the server's way of not reading on.
    let _end = stream.read_to_end(&mut answer).await;
    String::from_utf8(answer).unwrap()
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
}

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").unwrap().1
}

#[test]
fn the_status_is_read_over_the_socket() {
    with_server(|path, _server| async move {
        for n in 1..4 {
            let answer = say(&path, &get("/api/v1/status")).await;
            assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
            assert!(
                answer.contains("content-type: application/json\r\n"),
                "{answer}"
            );
            assert!(answer.contains("cache-control: no-store\r\n"), "{answer}");
            let status: Status = serde_json::from_str(body(&answer)).unwrap();
            assert_eq!((status.version.as_str(), status.uptime_s), ("1.2.3", n));
        }
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o660);
        let run = std::fs::metadata(path.parent().unwrap()).unwrap();
        assert_eq!(run.permissions().mode() & 0o777, 0o750);
    });
}

#[test]
fn metrics_are_text_and_a_machine_that_does_not_answer_is_said() {
    with_server(|path, _server| async move {
        for n in 1..NOT_READ {
            let answer = say(&path, &get("/metrics")).await;
            assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
            let kind = "content-type: text/plain; version=0.0.4; charset=utf-8\r\n";
            assert!(answer.contains(kind), "{answer}");
            assert_eq!(body(&answer), format!("asked_total {n}\n"));
        }
        let answer = say(&path, &get("/metrics")).await;
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
        let told: ErrorBody = serde_json::from_str(body(&answer)).unwrap();
        assert!(told.fix.is_some());
    });
}

/// Runs `conversation` against a port of the loopback interface.
fn with_port<F: Future<Output = ()>>(conversation: impl FnOnce(SocketAddr) -> F) {
    let executor = Rc::new(Executor::new());
    let port = block_on(Server::on_port("127.0.0.1:0".parse().unwrap())).unwrap();
    let address = port.address().unwrap();
    let for_port = Rc::clone(&executor);
    let serving = async move { port.serve(for_port, site()).await };
    let task = executor.spawn(async move { match serving.await {} });
    block_on(executor.run(async { conversation(address).or(overdue()).await }));
    drop(task);
}

async fn call(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    heard(&mut stream).await
}

#[test]
fn the_port_answers_under_names_of_this_machine_and_shows_how_it_is() {
    with_port(|address| async move {
        let get =
            |line: &str, host: &str| format!("{line} HTTP/1.1\r\n{host}connection: close\r\n\r\n");
        let here = format!("host: {address}\r\n");
        let answer = call(address, &get("GET /metrics", &here)).await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert_eq!(body(&answer), "asked_total 1\n");
        assert!(
            !answer.to_lowercase().contains("access-control"),
            "{answer}"
        );
        for (line, host, code) in [
            ("HEAD /metrics", "host: localhost\r\n", "200"),
            ("GET /metrics", "host: evil.example\r\n", "421"),
            (
                "GET /metrics",
                "host: localhost\r\nhost: evil.example\r\n",
                "421",
            ),
            ("GET /metrics", "host: \u{e9}\r\n", "421"),
            ("GET /metrics", "", "421"),
            (
                "GET http://evil.example/metrics",
                "host: localhost\r\n",
                "421",
            ),
            ("GET http://localhost/metrics", "host: localhost\r\n", "503"),
            ("GET /api/v1/status", "host: localhost\r\n", "200"),
            ("GET /api/v1/access", "host: localhost\r\n", "401"),
            ("POST /api/v1/access", "host: localhost\r\n", "401"),
            ("POST /metrics", "host: localhost\r\n", "405"),
            ("OPTIONS *", "host: localhost\r\n", "404"),
            ("CONNECT localhost:1", "host: localhost\r\n", "404"),
        ] {
            let answer = call(address, &get(line, host)).await;
            let wanted = format!("HTTP/1.1 {code} ");
            assert!(answer.starts_with(&wanted), "{line} {host:?}: {answer}");
        }
    });
}

#[test]
fn a_port_that_others_could_reach_or_have_is_refused() {
    let bind = |address: &str| block_on(Server::on_port(address.parse().unwrap()));
    for open in ["0.0.0.0:0", "[::]:0", "203.0.113.7:7480"] {
        let error = bind(open).unwrap_err();
        assert!(error.sentence().contains("other machines"), "{error}");
    }
    let taken = bind("127.0.0.1:0").unwrap();
    let error = bind(&taken.address().unwrap().to_string()).unwrap_err();
    assert!(error.fix.unwrap().contains("dashboard.listen"));
}

#[test]
fn several_requests_use_one_connection() {
    with_server(|path, _server| async move {
        let mut stream = UnixStream::connect(&*path).await.unwrap();
        let two = "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n".to_owned() + &get("/healthz");
        stream.write_all(two.as_bytes()).await.unwrap();
        let answers = heard(&mut stream).await;
        assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 2, "{answers}");
        assert_eq!(answers.matches(r#"{"state":"ok"}"#).count(), 2, "{answers}");
    });
}

#[test]
fn what_is_not_there_or_not_allowed_is_said_in_json() {
    with_server(|path, _server| async move {
        let post = "POST /api/v1/status HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
        let huge = format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", "a".repeat(100_000));
        let large = "GET /healthz HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999\r\n\r\nabc";
        for (request, code) in [
            (get("/nowhere").as_str(), "404"),
            (&get("/api/v1/status?x=1"), "200"),
            (post, "405"),
            (large, "413"),
            (&huge, "4"),
            ("nonsense\r\n\r\n", "400"),
            ("GET /healthz HTTP/1.1\r\nbad header\r\n\r\n", "400"),
            (
                "GET /healthz HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nx",
                "400",
            ),
            ("\u{16}\u{3}\u{1}\u{0}\r\n\r\n", "400"),
        ] {
            let mut stream = UnixStream::connect(&*path).await.unwrap();
            // A server that has seen enough closes while this is still being written.
            let _written = stream.write_all(request.as_bytes()).await;
            let answer = heard(&mut stream).await;
            let head: String = request.chars().take(40).collect();
            assert!(
                answer.starts_with(&format!("HTTP/1.1 {code}")),
                "{head:?}: {answer}"
            );
        }
        assert!(say(&path, &get("/healthz")).await.contains("200 OK"));
    });
}

fn post(body: &str, more: &str) -> String {
    format!(
        "POST /api/v1/access HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n{more}\r\n{body}",
        body.len()
    )
}

#[test]
fn a_level_is_set_by_post_and_by_nothing_else() {
    const JSON: &str = "content-type: application/json\r\n";
    with_server(|path, _server| async move {
        let off = r#"{"level":"off"}"#;
        let long = format!("{}{off}", " ".repeat(2000));
        let chunked = format!(
            "POST /api/v1/access HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n{JSON}\r\nf\r\n{off}\r\n0\r\n\r\n",
        );
        for (request, code) in [
            (post(off, ""), "415"),
            (post(off, "content-type: text/plain\r\n"), "415"),
            (post(&long, JSON), "413"),
            (chunked, "411"),
            (get("/api/v1/access?level=off"), "200"),
            (post(off, JSON).replace("POST", "PUT"), "405"),
        ] {
            let answer = say(&path, &request).await;
            assert!(
                answer.starts_with(&format!("HTTP/1.1 {code} ")),
                "{request:.200}: {answer}"
            );
            assert!(
                !answer.to_lowercase().contains("access-control"),
                "{answer}"
            );
        }
        let level = |answer: String| {
            let report: AccessReport = serde_json::from_str(body(&answer)).unwrap();
            report.level
        };
        assert_eq!(level(say(&path, &get("/api/v1/access")).await), "managed");
        let answer = say(&path, &post(off, JSON)).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert_eq!(level(say(&path, &get("/api/v1/access")).await), "off");
    });
}

#[test]
fn a_body_that_does_not_come_is_not_awaited_for_ever() {
    with_server(|path, _server| async move {
        let began = clock::now().mono;
        let mut slow = UnixStream::connect(&*path).await.unwrap();
        let head = post("", "content-type: application/json\r\n").replace("length: 0", "length: 9");
        slow.write_all(head.as_bytes()).await.unwrap();
        assert!(say(&path, &get("/healthz")).await.contains("200 OK"));
        let answer = heard(&mut slow).await;
        assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
        let took = clock::now().mono.since(began);
        assert!(took < Duration::from_secs(20), "after {took:?}");
    });
}

#[test]
fn a_slow_head_is_cut_and_others_are_served_meanwhile() {
    with_server(|path, _server| async move {
        let began = clock::now().mono;
        let mut slow = UnixStream::connect(&*path).await.unwrap();
        slow.write_all(b"GET /healthz HTTP/1.1\r\nx-slow: ")
            .await
            .unwrap();
        assert!(say(&path, &get("/healthz")).await.contains("200 OK"));
        let cut = heard(&mut slow).await;
        assert!(!cut.contains("200 OK"), "{cut}");
        let took = clock::now().mono.since(began);
        assert!(took < Duration::from_secs(10), "cut after {took:?}");
    });
}

#[test]
fn where_all_places_are_taken_the_longest_silent_one_gives_up_its_own() {
    with_server(|path, _server| async move {
        let mut viewers = Vec::new();
        for _ in 0..=CONNECTIONS_MAX {
            let mut viewer = UnixStream::connect(&*path).await.unwrap();
            // Served, and kept open.
            let request = "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n";
            viewer.write_all(request.as_bytes()).await.unwrap();
            let mut first = [0; 12];
            viewer.read_exact(&mut first).await.unwrap();
            assert_eq!(&first, b"HTTP/1.1 200");
            viewers.push(viewer);
        }
        let last = viewers.pop().unwrap();
        // The first of them was let go at once, and the rest is still there.
        let rest = heard(&mut viewers.remove(0)).await;
        assert!(rest.ends_with("{\"state\":\"ok\"}\n"), "{rest}");
        let mut last = last;
        let again = get("/healthz");
        last.write_all(again.as_bytes()).await.unwrap();
        assert!(heard(&mut last).await.contains("HTTP/1.1 200 OK"));
    });
}

#[test]
fn one_viewer_too_many_is_told_and_served_once_another_left() {
    with_server(|path, _server| async move {
        let mut viewers = Vec::new();
        for _ in 0..CONNECTIONS_MAX {
            let mut viewer = UnixStream::connect(&*path).await.unwrap();
            // Its body does not come: it is being answered for five seconds.
            let head = post("", "content-type: application/json\r\n");
            let head = head.replace("length: 0", "length: 9");
            viewer.write_all(head.as_bytes()).await.unwrap();
            viewers.push(viewer);
        }
        let refused = say(&path, &get("/healthz")).await;
        assert!(refused.starts_with("HTTP/1.1 503 "), "{refused}");
        let told: serde_json::Value = serde_json::from_str(body(&refused)).unwrap();
        assert!(told["error"].as_str().unwrap().contains("too many"));
        viewers.truncate(CONNECTIONS_MAX - 1);
        while !say(&path, &get("/healthz")).await.contains("200 OK") {
            smol::future::yield_now().await;
        }
    });
}

#[test]
fn a_viewer_that_never_reads_disturbs_nobody() {
    with_server(|path, _server| async move {
        let mut mute = UnixStream::connect(&*path).await.unwrap();
        let many = "GET /api/v1/status HTTP/1.1\r\nhost: x\r\n\r\n".repeat(2000);
        // Written until both buffers are full.
        let flood = async { drop(mute.write_all(many.as_bytes()).await) };
        let pause = async {
            smol::Timer::after(Duration::from_millis(300)).await;
        };
        flood.or(pause).await;
        assert!(say(&path, &get("/healthz")).await.contains("200 OK"));
    });
}

#[test]
fn the_socket_goes_with_the_server() {
    with_server(|path, server| async move {
        assert!(path.exists());
        assert!(server.take().unwrap().cancel().await.is_none());
        assert!(!path.exists());
        assert!(UnixStream::connect(&*path).await.is_err());
    });
}

#[test]
fn the_socket_of_a_dead_agent_is_replaced_and_that_of_a_living_one_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agent.sock");
    // The listener is gone and its path is left, as after kill -9.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let living = on_socket(&path).unwrap();
    let error = on_socket(&path).unwrap_err();
    assert!(
        error.sentence().contains("another agent answers"),
        "{error}"
    );
    assert!(error.fix.is_some());
    drop(living);
    drop(on_socket(&path).unwrap());
    assert!(!path.exists());
}

#[test]
fn what_is_not_a_socket_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agent.sock");
    pipeops_agent::files::replace(&path, b"mine", 0o600).unwrap();
    let error = on_socket(&path).unwrap_err();
    assert!(error.sentence().contains("it is not a socket"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), b"mine");
    let missing = directory.path().join("no/such/agent.sock");
    assert!(on_socket(&missing).is_err());
    let long = directory.path().join("x".repeat(120));
    let error = on_socket(&long).unwrap_err();
    assert!(error.fix.is_some_and(|fix| fix.contains("100 characters")));
}

#[test]
fn the_page_and_its_files_say_that_nobody_else_may_use_them() {
    with_port(|address| async move {
        let get = |path: &str, more: &str| {
            format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{more}connection: close\r\n\r\n")
        };
        let page = call(address, &get("/", "")).await;
        assert!(
            page.contains("<dt>Agent</dt><dd>version 1.2.3</dd>"),
            "{page}"
        );
        let plain = call(address, &get("/assets/app.css", "")).await;
        assert!(
            plain.contains("content-type: text/css; charset=utf-8\r\n"),
            "{plain}"
        );
        assert!(!plain.contains("content-encoding"), "{plain}");
        let refused = call(address, &get("/api/v1/access", "")).await;
        for answer in [&page, &plain, &refused] {
            for header in [
                "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
                "x-frame-options: DENY",
                "x-content-type-options: nosniff",
                "referrer-policy: no-referrer",
                "cross-origin-opener-policy: same-origin",
                "cross-origin-resource-policy: same-origin",
            ] {
                assert_eq!(
                    answer.matches(&format!("{header}\r\n")).count(),
                    1,
                    "{header}: {answer}"
                );
            }
        }
        assert!(!page.contains("unsafe-"), "{page}");
        let (_, rest) = plain.split_once("etag: ").unwrap();
        let tag = rest.split("\r\n").next().unwrap();
        let had = format!("if-none-match: {tag}\r\n");
        let again = call(address, &get("/assets/app.css", &had)).await;
        assert!(again.starts_with("HTTP/1.1 304 "), "{again}");
        assert_eq!(body(&again), "");
        for outside in [
            "/assets/../secret",
            "/assets/%2e%2e%2fx",
            "/assets/..%5cx",
            "/assets//etc/passwd",
            "/../etc/passwd",
            "/assets/app.css/",
        ] {
            let answer = call(address, &get(outside, "")).await;
            assert!(answer.starts_with("HTTP/1.1 404 "), "{outside}: {answer}");
        }
    });
}

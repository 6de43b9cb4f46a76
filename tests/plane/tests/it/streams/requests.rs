//! Requests of HTTP clients over streams.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::time::Duration;

use plane::{Cut, Plane, Sessions, StreamChange};

use super::fake::{pattern, streaming};
use crate::agent::LIMIT;
use crate::sessions::{get, http, http_open, read_head};

/// Waits until so many streams are open.
fn wait_open(plane: &Plane, count: usize) {
    let reached = plane.until(LIMIT, move |view| {
        let open: usize = view.sessions.iter().map(|s| s.streams_open).sum();
        (open == count).then_some(())
    });
    let sessions = plane.sessions();
    reached.unwrap_or_else(|| panic!("not {count} open streams: {sessions:?}"));
}

/// Waits for something to happen to a stream.
fn wait_change(plane: &Plane, change: StreamChange) {
    let seen = plane.until(LIMIT, move |view| {
        let mut events = view.stream_events.iter();
        events.any(|event| event.change == change).then_some(())
    });
    let events = plane.stream_events();
    seen.unwrap_or_else(|| panic!("no {change:?}: {events:?}"));
}

#[test]
fn a_request_passes_as_it_is_and_its_stream_is_used_again() {
    let (plane, fake, cluster) = streaming();
    let head = get(&cluster, "/api/v1/a%2Fb//c/../d?x=%20&y");
    let head = format!("{head}, X-Own\r\nX-Own: no\r\nImpersonate-User: someone\r\nX-Kept: yes");
    for _ in 0..3 {
        let answer = http(&plane, &head, b"");
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
        assert!(answer.contains("x-twice: a\r\nx-twice: b"), "{answer}");
        assert!(answer.contains("content-length: 7"), "{answer}");
        let headers = fake.request("/api/v1/a%2Fb//c/../d?x=%20&y");
        assert_eq!(headers["authorization"], "Bearer k8s-token");
        assert_eq!(headers["host"], "kubernetes.default.svc");
        assert_eq!(headers["impersonate-user"], "someone");
        assert_eq!(headers["x-kept"], "yes");
        assert!(!headers.contains_key("connection") && !headers.contains_key("x-own"));
    }
    let session = plane.sessions().remove(0);
    assert_eq!((session.streams_open, session.streams_opened), (1, 1));
    let events = plane.stream_events();
    let event = &events[0];
    let seen = (event.stream, event.change, event.target.as_str());
    assert_eq!(seen, (2, StreamChange::Opened, "kubernetes"));
    assert_eq!(plane.violations(), Vec::<String>::new());
}

#[test]
fn a_service_gets_a_stream_of_its_own_without_any_token() {
    let (plane, fake, cluster) = streaming();
    for (service, scheme) in [("web:80", None), ("https:web:80", Some("https"))] {
        let path = format!("/api/v1/namespaces/shop/services/{service}/proxy/a%2Fb?c");
        let head = get(&cluster, &path) + "\r\nX-PipeOps-Scheme: gopher";
        let answer = http(&plane, &head, b"");
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
        let headers = fake.request("/a%2Fb?c");
        assert!(!headers.contains_key("authorization"));
        let said = headers
            .get("x-pipeops-scheme")
            .map(|value| value.to_str().unwrap());
        assert_eq!(said, scheme);
        assert_eq!(headers["host"], "web.shop.svc:80");
    }
    assert_eq!(plane.stream_events()[0].target, "service shop/web:80");
    assert_eq!(plane.sessions()[0].streams_opened, 1);
    http(&plane, &get(&cluster, "/version"), b"");
    let header = fake.header();
    assert!(header.starts_with(b"\x02\x03\0\0\0\0\0\0"), "{header:?}");
    assert_eq!(plane.sessions()[0].streams_opened, 2);
}

#[test]
fn answers_without_a_body_and_with_trailers_pass() {
    let (plane, _fake, cluster) = streaming();
    let none = http(&plane, &get(&cluster, "/none"), b"");
    assert!(
        none.starts_with("HTTP/1.1 204") && none.ends_with("\r\n\r\n"),
        "{none}"
    );
    let head = get(&cluster, "/big?1000").replacen("GET", "HEAD", 1);
    let only_head = http(&plane, &head, b"");
    assert!(only_head.contains("content-length: 1000"), "{only_head}");
    assert!(only_head.ends_with("\r\n\r\n"), "{only_head}");
    let head = get(&cluster, "/trailers").replace("close", "close, te\r\nTE: trailers");
    let trailers = http(&plane, &head, b"");
    assert!(trailers.ends_with("0\r\nx-sum: 45\r\n\r\n"), "{trailers}");
}

#[test]
fn a_stream_that_the_agent_closed_meanwhile_is_no_error() {
    let (plane, _fake, cluster) = streaming();
    http(&plane, &get(&cluster, "/version"), b"");
    // On a stream that was used before, the agent's end drops it without an answer.
    let answer = http(&plane, &get(&cluster, "/second"), b"");
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    assert_eq!(plane.sessions()[0].streams_opened, 2);
    let answer = http(&plane, &get(&cluster, "/close"), b"");
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    wait_open(&plane, 0);
}

#[test]
fn an_idle_stream_is_finished_after_some_seconds() {
    let (plane, _fake, cluster) = streaming();
    http(&plane, &get(&cluster, "/version"), b"");
    wait_change(&plane, StreamChange::FinishedByPlane);
    wait_open(&plane, 0);
    let events = plane.stream_events();
    let changes: Vec<_> = events.iter().map(|event| event.change).collect();
    let [opened, by_plane, by_agent] = changes[..] else {
        panic!("{changes:?}");
    };
    assert_eq!(opened, StreamChange::Opened);
    assert_eq!(by_plane, StreamChange::FinishedByPlane);
    assert_eq!(by_agent, StreamChange::FinishedByAgent);
}

/// 64 MiB, of which a bounded part may be under way.
const BULK: u64 = 64 * 1024 * 1024;

/// Window (256 KiB, tuned to the distance: nothing reads, so it hardly grows), buffers of hyper
/// and of the kernel on both connections.
const UNDER_WAY_MAX: u64 = 16 * 1024 * 1024;

/// Waits until a counter stands still.
fn settled(read: impl Fn() -> u64) -> u64 {
    let mut before = read();
    loop {
        // Nothing can be waited for but that nothing happens.
        let pause = smol::Timer::after(Duration::from_millis(300));
        smol::block_on(pause);
        let now = read();
        if now == before && now > 0 {
            return now;
        }
        before = now;
    }
}

#[test]
fn a_slow_reader_holds_the_agent_back_and_nobody_else() {
    let (plane, fake, cluster) = streaming();
    let mut slow = http_open(&plane, &get(&cluster, &format!("/big?{BULK}")), b"");
    let head = read_head(&mut slow);
    assert!(head.contains(&format!("content-length: {BULK}")), "{head}");
    let produced = settled(|| fake.shared.produced.load(Ordering::Relaxed));
    assert!(
        produced < UNDER_WAY_MAX,
        "{produced} bytes were made for nobody"
    );
    let answer = http(&plane, &get(&cluster, "/version"), b"");
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    plane.ping(Some("p"));
    plane
        .wait_for(0, LIMIT, |frame| frame.is_from_agent("pong"))
        .unwrap();
    let (mut at, mut buffer) = (0, vec![0; 256 * 1024]);
    while at < BULK {
        let bytes = slow.read(&mut buffer).unwrap();
        assert!(bytes > 0, "the body ended at {at}");
        assert!(buffer[..bytes] == pattern(at, bytes), "other bytes at {at}");
        at += u64::try_from(bytes).unwrap();
    }
    assert_eq!(plane.violations(), Vec::<String>::new());
}

#[test]
fn an_upload_waits_for_the_agent_and_arrives_whole() {
    let (plane, fake, cluster) = streaming();
    let head = get(&cluster, "/upload?wait").replacen("GET", "POST", 1);
    let head = format!("{head}\r\nContent-Length: {BULK}");
    let mut socket = http_open(&plane, &head, b"");
    let sent = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        let mut writing = socket.try_clone().unwrap();
        let sent = &sent;
        scope.spawn(move || {
            let mut at = 0;
            while at < BULK {
                writing.write_all(&pattern(at, 64 * 1024)).unwrap();
                at += 64 * 1024;
                sent.store(at, Ordering::Relaxed);
            }
        });
        let early = settled(|| sent.load(Ordering::Relaxed));
        assert!(early < UNDER_WAY_MAX, "{early} bytes were taken for nobody");
        smol::block_on(fake.go.send(())).unwrap();
        let answer = read_head(&mut socket);
        assert!(answer.contains(&format!("x-bytes: {BULK}")), "{answer}");
        assert!(answer.contains("x-right: true"), "{answer}");
    });
    let head = get(&cluster, "/upload").replacen("GET", "PUT", 1);
    let head = format!("{head}\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue");
    let answer = http(&plane, &head, b"3\r\n\0\0\0\r\n2\r\n\0\0\r\n0\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 100 Continue"), "{answer}");
    assert!(answer.contains("x-bytes: 5"), "{answer}");
    assert!(!fake.request("/upload").contains_key("expect"));
    assert_eq!(plane.violations(), Vec::<String>::new());
}

#[test]
fn a_client_that_leaves_resets_its_stream() {
    let (plane, fake, cluster) = streaming();
    for path in ["/hang", "/watch"] {
        let mut socket = http_open(&plane, &get(&cluster, path), b"");
        fake.request(path);
        if path == "/watch" {
            read_head(&mut socket);
        }
        drop(socket);
        fake.dropped(path);
        wait_open(&plane, 0);
    }
    let head = get(&cluster, "/upload").replacen("GET", "POST", 1);
    let head = format!("{head}\r\nContent-Length: 1000000");
    let socket = http_open(&plane, &head, &[0; 1000]);
    fake.request("/upload");
    drop(socket);
    fake.dropped("/upload");
    wait_open(&plane, 0);
    let events = plane.stream_events();
    let resets = events
        .iter()
        .filter(|e| e.change == StreamChange::ResetByPlane);
    assert_eq!(resets.count(), 3);
    assert_eq!(plane.violations(), Vec::<String>::new());
}

/// Reads to the end or to the error; says whether a chunked body came whole.
fn is_whole(mut socket: TcpStream) -> bool {
    let mut answer = Vec::new();
    // An error is one way to be broken.
    let _result = socket.read_to_end(&mut answer);
    answer.ends_with(b"0\r\n\r\n")
}

#[test]
fn a_stream_that_the_agent_resets_breaks_the_answer() {
    let (plane, _fake, cluster) = streaming();
    let mut socket = http_open(&plane, &get(&cluster, "/fail"), b"");
    assert!(read_head(&mut socket).starts_with("HTTP/1.1 200 OK"));
    assert!(!is_whole(socket));
    wait_change(&plane, StreamChange::ResetByAgent);
    wait_open(&plane, 0);
    let answer = http(&plane, &get(&cluster, "/trailers"), b"");
    assert!(answer.ends_with("0\r\n\r\n"), "{answer}");
}

#[test]
fn a_lost_session_breaks_what_is_under_way() {
    for cut in [Cut::Reset, Cut::Fin] {
        let (plane, fake, cluster) = streaming();
        let mut watching = http_open(&plane, &get(&cluster, "/watch"), b"");
        read_head(&mut watching);
        let hanging = http_open(&plane, &get(&cluster, "/hang"), b"");
        fake.request("/hang");
        plane.cut(Sessions::Newest, cut);
        assert!(!is_whole(watching));
        let mut answer = String::new();
        let mut hanging = hanging;
        hanging.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 502"), "{answer}");
        assert!(answer.contains("connection ended"), "{answer}");
        wait_change(&plane, StreamChange::Lost);
        plane.wait_gone(LIMIT).unwrap();
    }
}

#[test]
fn more_requests_than_streams_wait_for_a_place() {
    let (plane, fake, cluster) = streaming();
    let mut sockets: Vec<TcpStream> = (0..150)
        .map(|_| http_open(&plane, &get(&cluster, "/watch"), b""))
        .collect();
    wait_open(&plane, 120);
    let opened = settled(|| plane.sessions()[0].streams_opened);
    assert_eq!(opened, 120);
    // As soon as some are gone the others get their places.
    drop(sockets.drain(..60));
    wait_open(&plane, 90);
    drop(sockets);
    wait_open(&plane, 0);
    let answer = http(&plane, &get(&cluster, "/version"), b"");
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    assert_eq!(plane.violations(), Vec::<String>::new());
    drop(fake);
}

//! A receiver that answers as it is told, and real samples on a real disk.

#![expect(
    clippy::disallowed_types,
    reason = "the receiver of a test runs in threads of its own"
)]

use std::{
    cell::RefCell,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    rc::Rc,
    sync::{Arc, Mutex},
};

use smol::block_on;

use super::*;
use crate::{
    core::{
        health::Severity,
        series::{Key, Point, Series, Tick},
        time::{Mono, Now, Wall},
    },
    executor::Executor,
    net::{dial::Dialer, proxy::Proxies, target::Target},
    outside::{
        post::{Address, HttpClient},
        transport::Transport,
    },
    store::telemetry::{Options, Telemetry},
    wire::remote_write::reader::read,
};

/// 2026-01-01T00:00:00Z.
const NEW_YEAR_MS: i64 = 1_767_225_600_000;
const SERIES: usize = 20;

/// A sample as it arrived: series, milliseconds since the new year, value.
type Arrived = (String, i64, f64);

/// Reaction of the server to a request.
#[derive(Clone, Debug)]
enum Reply {
    /// An answer with this head and body.
    Answer(&'static str, &'static str),
    /// A head, and then bytes for ever.
    Endless(&'static str),
    /// A head, and then nothing.
    Stuck(&'static str),
    /// Bytes that are not HTTP.
    Garbage,
    /// Nothing at all.
    Silence,
    /// The connection is closed.
    Close,
}

const TAKEN: Reply = Reply::Answer("204 No Content", "");

fn status(head: &'static str) -> Reply {
    Reply::Answer(head, "")
}

type Judge = dyn Fn(&[Arrived], usize) -> Reply + Send + Sync;

#[derive(Default)]
struct Received {
    requests: usize,
    connections: usize,
    heads: Vec<String>,
    /// Accepted samples, in the order of their arrival.
    taken: Vec<Arrived>,
    labels: Vec<Vec<(String, String)>>,
    largest_bytes: usize,
}

/// The receiver. `judge` gets the samples of a request and its number.
struct Server {
    port: u16,
    seen: Arc<Mutex<Received>>,
}

impl Server {
    #[expect(
        clippy::disallowed_methods,
        reason = "a server of a test blocks in a thread of its own"
    )]
    fn start(judge: impl Fn(&[Arrived], usize) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::new(Mutex::new(Received::default()));
        let (shared, judge): (_, Arc<Judge>) = (Arc::clone(&seen), Arc::new(judge));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                shared.lock().unwrap().connections += 1;
                let (shared, judge) = (Arc::clone(&shared), Arc::clone(&judge));
                std::thread::spawn(move || serve(stream, &shared, &judge));
            }
        });
        Self { port, seen }
    }

    fn taken(&self) -> Vec<Arrived> {
        self.seen.lock().unwrap().taken.clone()
    }

    fn requests(&self) -> usize {
        self.seen.lock().unwrap().requests
    }
}

/// Answers the requests of one connection.
fn serve(stream: TcpStream, seen: &Mutex<Received>, judge: &Arc<Judge>) -> Option<()> {
    let mut writer = stream.try_clone().ok()?;
    let mut reader = BufReader::new(stream);
    loop {
        let (head, body) = request(&mut reader)?;
        let arrived = samples_of(&body);
        let number = {
            let mut seen = seen.lock().unwrap();
            seen.heads.push(head);
            seen.largest_bytes = seen.largest_bytes.max(body.len());
            seen.requests += 1;
            seen.requests
        };
        let reply = judge(&arrived, number);
        match reply {
            Reply::Answer(head, text) => {
                if head.starts_with('2') {
                    let mut seen = seen.lock().unwrap();
                    seen.taken.extend(arrived);
                    seen.labels.extend(labels_of(&body));
                }
                let length = text.len();
                write!(
                    writer,
                    "HTTP/1.1 {head}\r\nContent-Length: {length}\r\n\r\n{text}"
                )
                .ok()?;
            }
            Reply::Endless(head) => {
                seen.lock().unwrap().taken.extend(arrived);
                write!(writer, "HTTP/1.1 {head}\r\n\r\n").ok()?;
                loop {
                    writer.write_all(&[b'x'; 4096]).ok()?;
                }
            }
            Reply::Stuck(head) => {
                seen.lock().unwrap().taken.extend(arrived);
                write!(writer, "HTTP/1.1 {head}\r\nContent-Length: 10\r\n\r\nx").ok()?;
            }
            Reply::Garbage => writer.write_all(b"220 mail.example ESMTP\r\n").ok()?,
            Reply::Silence => {}
            Reply::Close => return None,
        }
    }
}

fn request(reader: &mut impl BufRead) -> Option<(String, Vec<u8>)> {
    let mut head = String::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if line == "\r\n" {
            break;
        }
        head.push_str(&line);
    }
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("content-length").then_some(value)
    });
    let mut body = vec![0; length?.parse().ok()?];
    reader.read_exact(&mut body).ok()?;
    Some((head, body))
}

fn samples_of(body: &[u8]) -> Vec<Arrived> {
    let all = read(body).into_iter().flat_map(|series| {
        let number = series.labels.iter().find(|label| label.name == "number");
        let number = number.unwrap().value.clone();
        let samples = series.samples.into_iter();
        samples.map(move |one| (number.clone(), one.timestamp - NEW_YEAR_MS, one.value))
    });
    all.collect()
}

fn labels_of(body: &[u8]) -> Vec<Vec<(String, String)>> {
    let all = read(body).into_iter().map(|series| {
        let labels = series.labels.into_iter();
        labels.map(|label| (label.name, label.value)).collect()
    });
    all.collect()
}

fn now() -> Now {
    Now::default()
}

fn point(number: usize, elapsed_ms: u64) -> Point {
    let number = number.to_string();
    Point {
        series: Series {
            key: Key::new("measured", &[("number", &number)]).unwrap(),
            digits: 2,
        },
        value: i64::try_from(elapsed_ms).unwrap(),
    }
}

/// An agent with samples on its disk.
struct Agent {
    _folder: tempfile::TempDir,
    telemetry: Telemetry,
    shared_state: Rc<SharedState>,
    executor: Rc<Executor>,
    minutes: u64,
    /// Everything that was measured.
    measured: Vec<Arrived>,
    authorization: RefCell<Result<Option<Secret>, Error>>,
}

impl Agent {
    fn new(minutes: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = Options {
            disk_bytes_max: 64 << 20,
            boot_id: "boot".to_owned(),
            epoch: 7,
        };
        let opening = Telemetry::open(folder.path(), options, now());
        let (telemetry, _) = block_on(opening).unwrap();
        let mut new = Self {
            _folder: folder,
            telemetry,
            shared_state: Rc::new(SharedState::new(now)),
            executor: Rc::new(Executor::new()),
            minutes: 0,
            measured: Vec::new(),
            authorization: RefCell::new(Ok(None)),
        };
        new.measure(minutes);
        new
    }

    fn measure(&mut self, minutes: u64) {
        for _ in 0..minutes {
            for tick in 0..4 {
                let elapsed_ms = self.minutes * 60_000 + tick * 15_000 + 1;
                let at = Now {
                    mono: Mono::since_boot(Duration::from_millis(elapsed_ms)),
                    wall: Wall::from_millis(NEW_YEAR_MS + i64::try_from(elapsed_ms).unwrap()),
                };
                let points = (0..SERIES)
                    .map(|number| point(number, elapsed_ms))
                    .collect();
                let value = f64::from(u32::try_from(elapsed_ms).unwrap()) / 100.0;
                let ms = i64::try_from(elapsed_ms).unwrap();
                let measured = (0..SERIES).map(|number| (number.to_string(), ms, value));
                self.measured.extend(measured);
                let tick = Tick {
                    at,
                    clock_is_set: true,
                    points,
                };
                block_on(self.telemetry.handle().take(tick)).unwrap();
            }
            self.minutes += 1;
            let elapsed = Duration::from_secs(self.minutes * 60);
            let now = Now {
                mono: Mono::since_boot(elapsed),
                wall: Wall::from_millis(NEW_YEAR_MS + i64::try_from(elapsed.as_millis()).unwrap()),
            };
            block_on(self.telemetry.handle().flush(now, true)).unwrap();
        }
    }

    fn receiver(port: u16) -> RemoteWriteClient {
        RemoteWriteClient(HttpClient {
            address: Address {
                target: Target::new("127.0.0.1", port),
                path: "/api/v1/write?x=1".to_owned(),
                host: format!("127.0.0.1:{port}"),
            },
            transport: Transport {
                dialer: Dialer::default(),
                proxies: Proxies::default(),
                tls: None,
                user_agent: "pipeops-agent/test".to_owned(),
                clock: || Mono::since_boot(Duration::ZERO),
            },
            answer_within: Duration::from_secs(20),
            line: RefCell::default(),
        })
    }

    /// One delivery; the error as a person reads it, and how long until the next.
    fn deliver(&self, receiver: RemoteWriteClient) -> Result<(), (String, Duration)> {
        let authorization = || -> Authorization {
            Box::pin(std::future::ready(self.authorization.borrow().clone()))
        };
        let labels = || {
            Some(LiteMap::from_iter([(
                "site".to_owned(),
                "berlin".to_owned(),
            )]))
        };
        let (_flushed, flushed) = channel::bounded(1);
        let mut delivery = Delivery::new(DeliveryDependencies {
            samples: self.telemetry.handle(),
            receiver,
            authorization: &authorization,
            labels: &labels,
            flushed,
            shared_state: &self.shared_state,
        });
        let ended = block_on(self.executor.run(delivery.drain()));
        delivery.report_refused();
        ended.map_err(|stop| {
            let outcome = match &stop {
                Stop::Failed(error, _) | Stop::Wrong(error) => error.to_string(),
                Stop::Disk(failure) => failure.to_string(),
                Stop::Nameless => "nameless".to_owned(),
            };
            (outcome, delivery.stopped(stop))
        })
    }

    fn deliver_to(&self, server: &Server) -> Result<(), (String, Duration)> {
        self.deliver(Self::receiver(server.port))
    }

    /// All that was measured, in order.
    fn everything(&self) -> Vec<Arrived> {
        sorted(self.measured.clone())
    }

    fn condition(&self, id: &str) -> Option<String> {
        self.shared_state
            .with_conditions(|all| all.get(id).map(|one| one.sentence.clone()))
    }

    /// Number of records that the receiver does not have, by the disk.
    fn backlog(&self) -> u64 {
        let handle = self.telemetry.handle();
        let asked = handle.position(DESTINATION.to_owned(), Stream::Metrics);
        let (_, cursor) = block_on(asked).unwrap();
        let holdings = block_on(handle.stock(Stream::Metrics)).unwrap();
        cursor.backlog(holdings.last)
    }
}

fn sorted(mut samples: Vec<Arrived>) -> Vec<Arrived> {
    samples.sort_by(|one, other| one.partial_cmp(other).unwrap());
    samples
}

#[test]
fn every_sample_arrives_once_and_in_time_over_one_connection() {
    let mut agent = Agent::new(90);
    agent.authorization = RefCell::new(Ok(Some(Secret::new("Bearer s3cret"))));
    let server = Server::start(|_, _| TAKEN);
    agent.deliver_to(&server).unwrap();
    assert_eq!(sorted(server.taken()), agent.everything());
    for number in 0..SERIES {
        let of = number.to_string();
        let times = server.taken().into_iter().filter(|one| one.0 == of);
        assert!(times.map(|one| one.1).is_sorted());
    }
    {
        let seen = server.seen.lock().unwrap();
        assert_eq!(seen.connections, 1);
        assert!(seen.largest_bytes < 32 * 1024, "{}", seen.largest_bytes);
        let head = &seen.heads[0].to_ascii_lowercase();
        for line in [
            "post /api/v1/write?x=1 http/1.1",
            "authorization: bearer s3cret",
            "content-encoding: snappy",
            "content-type: application/x-protobuf",
            "x-prometheus-remote-write-version: 0.1.0",
            "user-agent: pipeops-agent/test",
        ] {
            assert!(head.contains(line), "{head}");
        }
        let labels: Vec<_> = seen.labels[0]
            .iter()
            .map(|(name, _)| name.as_str())
            .collect();
        assert_eq!(labels, ["__name__", "number", "site"]);
    }
    // The next delivery begins behind the last.
    let requests = server.requests();
    agent.deliver_to(&server).unwrap();
    assert_eq!((server.requests(), agent.backlog()), (requests, 0));
    agent.measure(1);
    agent.deliver_to(&server).unwrap();
    assert_eq!(sorted(server.taken()), agent.everything());
}

#[test]
fn a_sample_that_is_refused_costs_only_itself() {
    let agent = Agent::new(30);
    let bad = ("7".to_owned(), 300_001, 3000.01);
    let judged = bad.clone();
    let server = Server::start(move |samples, _| {
        if samples.contains(&judged) {
            Reply::Answer("400 Bad Request", "out of order sample\n")
        } else {
            TAKEN
        }
    });
    agent.deliver_to(&server).unwrap();
    let mut wanted = agent.measured.clone();
    wanted.retain(|sample| *sample != bad);
    let mut taken = sorted(server.taken());
    taken.dedup();
    assert_eq!(taken, sorted(wanted));
    let condition = agent.condition(REFUSED).unwrap();
    assert!(condition.contains("has rejected 1 samples"), "{condition}");
    assert!(
        condition.contains("400 Bad Request: out of order sample"),
        "{condition}"
    );
    assert_eq!(agent.backlog(), 0);
    assert_eq!(agent.condition(UNREACHED), None);
}

#[test]
fn what_is_too_old_is_counted_and_the_rest_arrives() {
    let agent = Agent::new(90);
    let floor = 60 * 60_000;
    let server = Server::start(move |samples, _| {
        if samples.iter().any(|sample| sample.1 < floor) {
            Reply::Answer("400 Bad Request", "out of bounds")
        } else {
            TAKEN
        }
    });
    agent.deliver_to(&server).unwrap();
    let mut wanted = agent.measured.clone();
    wanted.retain(|sample| sample.1 >= floor);
    let mut taken = sorted(server.taken());
    taken.dedup();
    assert_eq!(taken, sorted(wanted));
    let condition = agent.condition(REFUSED).unwrap();
    assert!(
        condition.contains(&format!("rejected {} samples", 60 * 4 * SERIES)),
        "{condition}"
    );
    assert_eq!(agent.backlog(), 0);
    assert!(server.requests() < 200, "{}", server.requests());
}

#[test]
fn a_receiver_that_is_busy_is_asked_again_when_it_says() {
    let agent = Agent::new(2);
    for (head, at_least, at_most) in [
        ("503 Service Unavailable\r\nRetry-After: 120", 120, 120),
        ("429 Too Many Requests\r\nRetry-After: 999999999", 600, 600),
        ("429 Too Many Requests\r\nRetry-After: 0", 5, 5),
        ("500 Internal Server Error\r\nRetry-After: soon", 5, 7),
        ("502 Bad Gateway", 5, 7),
    ] {
        let server = Server::start(move |_, _| status(head));
        let (_, wait) = agent.deliver_to(&server).unwrap_err();
        assert!(
            (at_least..=at_most).contains(&wait.as_secs()),
            "{head} {wait:?}"
        );
        assert_eq!((server.requests(), agent.backlog()), (1, 2));
    }
    let server = Server::start(|_, number| {
        if number == 2 {
            status("503 Busy")
        } else {
            TAKEN
        }
    });
    drop(agent.deliver_to(&server));
    agent.deliver_to(&server).unwrap();
    assert_eq!(
        (sorted(server.taken()), agent.backlog()),
        (agent.everything(), 0)
    );
}

#[test]
fn what_somebody_must_change_is_told_with_what_to_do() {
    let agent = Agent::new(2);
    for (reply, reason) in [
        (status("401 Unauthorized"), "bearer_token_file"),
        (
            Reply::Answer("403 Forbidden", "no \u{7}scope\nfor you"),
            "403 Forbidden: no scope\nfix: put",
        ),
        (status("404 Not Found"), "check telemetry.remote_write.url"),
        (
            status("301 Moved\r\nLocation: https://other.example/w"),
            "redirects to \"https://other.example/w\"",
        ),
        (status("302 Found"), "redirects to \"\""),
        (
            status("415 Unsupported Media Type"),
            "check telemetry.remote_write.url",
        ),
        // What the TLS port of a Go server says to http.
        (
            Reply::Answer(
                "400 Bad Request",
                "Client sent an HTTP request to an HTTPS server.",
            ),
            "does not accept remote write",
        ),
    ] {
        let server = Server::start(move |_, _| reply.clone());
        let (error, wait) = agent.deliver_to(&server).unwrap_err();
        assert!(error.contains(reason), "{error}");
        assert!(wait >= Duration::from_secs(30), "{error} {wait:?}");
        assert!(agent.condition(UNREACHED).is_some());
        assert_eq!(agent.backlog(), 2, "nothing is settled: {error}");
    }
    let server = Server::start(|_, _| TAKEN);
    agent.deliver_to(&server).unwrap();
    assert_eq!(agent.condition(UNREACHED), None);
    assert_eq!(agent.backlog(), 0);
}

#[test]
fn a_receiver_that_becomes_another_server_keeps_what_waits() {
    let agent = Agent::new(300);
    let is_first = std::sync::atomic::AtomicBool::new(true);
    let server = Server::start(move |_, _| {
        if is_first.swap(false, std::sync::atomic::Ordering::Relaxed) {
            TAKEN
        } else {
            Reply::Answer("400 Bad Request", "sent to HTTPS port")
        }
    });
    let (error, _) = agent.deliver_to(&server).unwrap_err();
    assert!(error.contains("does not accept remote write"), "{error}");
    let (taken, backlog) = (server.taken().len(), agent.backlog());
    assert!(taken > 0 && backlog > 100, "{taken} {backlog}");
}

#[test]
fn a_broken_receiver_costs_neither_time_nor_memory_nor_samples() {
    let agent = Agent::new(2);
    for (reply, reason) in [
        (Reply::Garbage, "samples do not reach 127.0.0.1"),
        (Reply::Close, "samples do not reach 127.0.0.1"),
        (Reply::Endless("500 Internal Server Error"), "500 Internal"),
        (Reply::Silence, "no answer within"),
    ] {
        let server = Server::start(move |_, _| reply.clone());
        let mut receiver = Agent::receiver(server.port);
        receiver.0.answer_within = Duration::from_secs(2);
        let (error, _) = agent.deliver(receiver).unwrap_err();
        assert!(error.contains(reason), "{error}");
        assert_eq!(agent.backlog(), 2);
    }
    // The head says that it has them; what follows does not matter.
    for reply in [Reply::Endless("200 OK"), Reply::Stuck("200 OK")] {
        let agent = Agent::new(2);
        let server = Server::start(move |_, _| reply.clone());
        agent.deliver_to(&server).unwrap();
        assert_eq!(
            (sorted(server.taken()), agent.backlog()),
            (agent.everything(), 0)
        );
    }
}

#[test]
fn a_connection_that_was_closed_meanwhile_is_made_again() {
    let agent = Agent::new(90);
    // It closes its connection in place of every third answer.
    let server = Server::start(|_, number| if number % 3 == 0 { Reply::Close } else { TAKEN });
    while agent.deliver_to(&server).is_err() {}
    let mut taken = sorted(server.taken());
    taken.dedup();
    assert_eq!(taken, agent.everything());
    assert!(server.seen.lock().unwrap().connections > 1);
}

#[test]
fn a_secret_that_cannot_be_read_and_a_missing_name_hold_everything_up() {
    let agent = Agent::new(1);
    let server = Server::start(|_, _| TAKEN);
    *agent.authorization.borrow_mut() = Err(Error::new("cannot read the token in /run/token"));
    let (error, _) = agent.deliver_to(&server).unwrap_err();
    assert_eq!(error, "cannot read the token in /run/token");
    assert_eq!((server.requests(), agent.backlog()), (0, 1));
}

#[test]
fn a_receiver_that_is_away_is_worth_a_condition_at_the_second_try() {
    let agent = Agent::new(1);
    let gone = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = gone.local_addr().unwrap().port();
    drop(gone);
    let authorization = || -> Authorization { Box::pin(std::future::ready(Ok(None))) };
    let labels = || Some(LiteMap::new());
    let (_flushed, flushed) = channel::bounded(1);
    let mut delivery = Delivery::new(DeliveryDependencies {
        samples: agent.telemetry.handle(),
        receiver: Agent::receiver(port),
        authorization: &authorization,
        labels: &labels,
        flushed,
        shared_state: &agent.shared_state,
    });
    let mut waits = Vec::new();
    for attempt in 0..4 {
        let stop = block_on(agent.executor.run(delivery.drain())).unwrap_err();
        waits.push(delivery.stopped(stop).as_secs());
        assert_eq!(agent.condition(UNREACHED).is_some(), attempt > 0);
    }
    assert!(waits.is_sorted() && waits[3] >= 40, "{waits:?}");
    let severity = agent
        .shared_state
        .with_conditions(|all| all.get(UNREACHED).map(|one| one.severity));
    assert_eq!(severity, Some(Severity::Warning));
}

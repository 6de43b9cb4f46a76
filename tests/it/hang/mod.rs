//! A disk that hangs, with the real program: it is told in time, and holds up nothing but what has to be on it first.

mod disk;
mod supervised;

use std::{
    os::unix::net::UnixDatagram,
    path::Path,
    time::{Duration, Instant},
};

use plane::{Failed, Options, Plane, ProxyRequest};

use self::disk::{Disk, what_is_missing};
use crate::{
    access::api::Api,
    agent::{Agent, SOON, clock, put, until},
    store::{CHILD, again, said},
};

/// The condition.
const HUNG: &str = "store.hung";
/// The promise: from the first moment of the hang to the condition.
const TOLD_WITHIN: Duration = Duration::from_secs(10);
/// Longest time of a refusal once the hang is known.
const AT_ONCE: Duration = Duration::from_secs(3);
/// A busy machine, for everything that is no promise.
const LONG: Duration = Duration::from_secs(60);
const MOUNTS: [&str; 4] = ["unshare", "--mount", "--propagation", "private"];
/// Plain reads while the disk hangs.
const READS: usize = 100;

/// An agent whose state lies on a disk that can hang, with everybody it talks to.
struct Bench {
    agent: Agent,
    plane: Plane,
    manager: UnixDatagram,
    _api: Api,
}

impl Bench {
    fn new(state: &Path) -> Self {
        let plane = Plane::start(Options::default()).unwrap();
        let api = Api::start();
        let agent = Agent::new(&plane);
        let folder = agent.folder().to_owned();
        put(&folder.join("kubeconfig"), &api.kubeconfig());
        let manager = UnixDatagram::bind(folder.join("notify.sock")).unwrap();
        manager.set_nonblocking(true).unwrap();
        let path = |name: &str| folder.join(name).display().to_string();
        let agent = agent
            .with("PIPEOPS_STATE_DIR", state.display().to_string())
            .with("KUBECONFIG", path("kubeconfig"))
            .with("NOTIFY_SOCKET", path("notify.sock"))
            .with("WATCHDOG_USEC", "1000000")
            .with("PIPEOPS_AGENT_HEARTBEAT_INTERVAL_CONNECTED", "5s");
        Self {
            agent,
            plane,
            manager,
            _api: api,
        }
    }

    /// Status and body of an answer; of a refusal 0 and its text.
    fn ask(&self, method: &str, target: &str) -> (u16, String) {
        let request = ProxyRequest {
            method: method.to_owned(),
            ..ProxyRequest::get(target)
        };
        match self.plane.request(request, LONG) {
            Ok(answer) => {
                let code = answer.head.status;
                let body = answer.body.read_all(LONG).unwrap();
                (code, String::from_utf8(body).unwrap())
            }
            Err(Failed::Error(text) | Failed::Aborted(text)) => (0, text),
            Err(other) => panic!("{method} {target}: {other}"),
        }
    }

    /// A call whose audit row comes before it. The API server has no such thing, which is an answer.
    fn write(&self, name: &str) -> (u16, String) {
        self.ask(
            "DELETE",
            &format!("/api/v1/namespaces/shop/configmaps/{name}"),
        )
    }

    /// Messages to the service manager since the last call.
    fn told(&self) -> Vec<String> {
        let mut message = [0; 8192];
        let mut told = Vec::new();
        while let Ok(length) = self.manager.recv(&mut message) {
            told.push(String::from_utf8_lossy(&message[..length]).into_owned());
        }
        told
    }

    fn beats(&self) -> usize {
        let beats = self.plane.look(|view| view.heartbeats.len());
        beats.unwrap()
    }

    fn is_hung(&self) -> bool {
        let status = self.agent.status();
        let conditions = status["conditions"].as_array().unwrap();
        conditions.iter().any(|condition| condition["id"] == HUNG)
    }
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let begun: Instant = clock();
    let done = work();
    (done, clock() - begun)
}

/// Runs a test in mounts of its own; returns what it said, or nothing where it cannot run here.
fn in_own_mounts(test: &str) -> Option<String> {
    if let Some(why) = what_is_missing() {
        println!("{why}");
        return None;
    }
    let directory = tempfile::tempdir().unwrap();
    let told = said(again(test, directory.path(), &MOUNTS));
    for figure in told.lines().filter(|line| line.starts_with("figure: ")) {
        println!("{figure}");
    }
    assert!(told.contains("1 passed"), "{told}");
    Some(told)
}

#[test]
fn a_disk_that_hangs_is_told_in_time_and_holds_up_nothing_else() {
    const TEST: &str = "hang::a_disk_that_hangs_is_told_in_time_and_holds_up_nothing_else";
    match std::env::var_os(CHILD) {
        Some(directory) => hang_in_mid_run(Path::new(&directory)),
        None => drop(in_own_mounts(TEST)),
    }
}

fn hang_in_mid_run(directory: &Path) {
    let disk = Disk::new(directory);
    let mut bench = Bench::new(&disk.path().join("state"));
    bench.agent.start();
    bench.agent.until_linked();
    assert_eq!(bench.ask("GET", "/version").0, 200);
    assert_eq!(bench.write("before").0, 404);
    let beats = bench.beats();
    bench.told();

    let frozen = disk.freeze();
    // Nobody knows yet that the disk hangs: the call waits for its row, and not for ever.
    let (code, text) = bench.write("early");
    let refused = frozen.lasts();
    assert_eq!(code, 503, "{text}");
    assert!(text.contains("the disk does not answer"), "{text}");
    assert!(bench.is_hung(), "refused, and not told");
    println!("figure: from the freeze to the condition and the first refusal: {refused:.1?}");
    assert!(refused < TOLD_WITHIN, "{refused:?}");

    goes_on_beside_the_hang(&bench);
    until("heartbeats go on", LONG, || {
        (bench.beats() > beats).then_some(())
    });
    assert!(bench.agent.status()["link"]["state"] == "ready");
    assert!(bench.is_hung(), "the disk hangs for {:?}", frozen.lasts());

    drop(frozen);
    let ((), thawed) = timed(|| until("no condition", LONG, || (!bench.is_hung()).then_some(())));
    println!("figure: from the thaw to the end of the condition: {thawed:.1?}");
    until("a write works", LONG, || {
        (bench.write("after").0 == 404).then_some(())
    });
    let rows = until("the audit answers", LONG, || {
        let (code, body) = bench.agent.get("/api/v1/changes")?;
        (code == 200).then_some(body)
    });
    assert!(rows.contains("configmaps/before"), "{rows}");
    assert!(rows.contains("the disk answered too late"), "{rows}");
    assert_eq!(bench.plane.violations(), Vec::<String>::new());
    assert!(bench.agent.stop().success());
}

/// Everything that needs no disk works as it always does.
fn goes_on_beside_the_hang(bench: &Bench) {
    let ((code, text), took) = timed(|| bench.write("late"));
    assert_eq!(code, 503, "{text}");
    assert!(text.contains("the disk does not answer"), "{text}");
    assert!(took < AT_ONCE, "{took:?}");

    let (code, ready) = bench.agent.get("/readyz").unwrap();
    assert_eq!(code, 503, "{ready}");
    assert!(ready.contains("does not answer"), "{ready}");
    let status = bench.agent.view("/api/v1/status");
    let conditions = status["conditions"].as_array().unwrap();
    let condition = conditions.iter().find(|it| it["id"] == HUNG).unwrap();
    assert!(
        condition["fix"].as_str().unwrap().contains("dmesg"),
        "{condition}"
    );
    let (_, printed) = bench.agent.cli(&["status"]);
    assert!(printed.contains("does not answer"), "{printed}");
    until("STATUS=", LONG, || {
        let told = bench.told().concat();
        told.contains("does not answer").then_some(())
    });
    let pings = || {
        bench
            .told()
            .iter()
            .filter(|told| told.contains("WATCHDOG=1"))
            .count()
    };
    until("pings go on", LONG, || (pings() > 0).then_some(()));

    let (page, took) = timed(|| bench.agent.get("/").unwrap());
    assert_eq!(page.0, 200);
    println!("figure: the page while the disk hangs: {took:.1?}");
    let mut took: Vec<_> = (0..READS)
        .map(|_| {
            let (answer, took) = timed(|| bench.ask("GET", "/version"));
            assert_eq!(answer.0, 200, "{answer:?}");
            took
        })
        .collect();
    took.sort();
    let (p50, longest) = (took[READS / 2], took[READS - 1]);
    println!(
        "figure: plain reads while the disk hangs: p50 {p50:.1?}, max {longest:.1?} of {READS}"
    );
    assert!(p50 < Duration::from_secs(1), "{p50:?}");
}

/// Moments of a hang after a write was asked for, in milliseconds: during its call, its row, its sync, and after it.
const MOMENTS_MS: [u64; 10] = [0, 1, 2, 4, 8, 16, 32, 64, 128, 512];

#[test]
fn what_was_acknowledged_outlives_a_hang_at_any_moment() {
    const TEST: &str = "hang::what_was_acknowledged_outlives_a_hang_at_any_moment";
    match std::env::var_os(CHILD) {
        Some(directory) => hang_at_ten_moments(Path::new(&directory)),
        None => drop(in_own_mounts(TEST)),
    }
}

fn hang_at_ten_moments(directory: &Path) {
    // Short ones are over before anybody calls them a hang; `make torture` has them at length.
    let is_long = std::env::var_os("PIPEOPS_TORTURE").is_some();
    let length = Duration::from_millis(if is_long { 15_000 } else { 600 });
    let disk = Disk::new(directory);
    let mut bench = Bench::new(&disk.path().join("state"));
    bench.agent.start();
    bench.agent.until_linked();
    let mut acknowledged = Vec::new();
    for (number, moment) in MOMENTS_MS.into_iter().enumerate() {
        let name = format!("moment-{number}");
        let answer = std::thread::scope(|scope| {
            let call = scope.spawn(|| bench.write(&name));
            let begun = clock();
            until("the moment", LONG, || {
                (clock() - begun >= Duration::from_millis(moment)).then_some(())
            });
            let frozen = disk.freeze();
            until("the hang was long enough", LONG, || {
                assert_eq!(bench.ask("GET", "/version").0, 200);
                (frozen.lasts() >= length).then_some(())
            });
            drop(frozen);
            call.join().unwrap()
        });
        if answer.0 == 404 {
            acknowledged.push(name);
        } else {
            assert!(is_long, "{answer:?}");
        }
        until("a write works again", LONG, || {
            (bench.write("between").0 == 404).then_some(())
        });
    }
    assert!(!acknowledged.is_empty());
    bench.agent.kill();
    bench.agent.start();
    let (code, rows) = until("the audit answers", LONG, || {
        bench
            .agent
            .get("/api/v1/changes")
            .filter(|(code, _)| *code == 200)
    });
    for name in &acknowledged {
        assert!(rows.contains(name), "{name} is lost ({code}): {rows}");
    }
    assert!(bench.agent.stop().success());
    println!(
        "figure: {} writes acknowledged around 10 hangs, none lost",
        acknowledged.len()
    );
}

#[test]
fn a_main_loop_that_stands_still_sends_no_sign_of_life() {
    let folder = tempfile::tempdir().unwrap();
    let mut bench = Bench::new(&folder.path().join("state"));
    bench.agent.start();
    let pings = |bench: &Bench| {
        let told = bench.told();
        told.iter().filter(|told| *told == "WATCHDOG=1").count()
    };
    let mut seen = 0;
    until("two pings", SOON, || {
        seen += pings(&bench);
        (seen > 1).then_some(())
    });
    bench.agent.signal(nix::sys::signal::Signal::SIGSTOP);
    let stopped = clock();
    until("what was on its way has come", SOON, || {
        pings(&bench);
        (clock() - stopped > Duration::from_millis(500)).then_some(())
    });
    until("two limits have passed", SOON, || {
        (clock() - stopped > Duration::from_millis(2_500)).then_some(())
    });
    assert_eq!(pings(&bench), 0);
    bench.agent.signal(nix::sys::signal::Signal::SIGCONT);
    until("a ping", SOON, || (pings(&bench) > 0).then_some(()));
    assert!(bench.agent.stop().success());
}

//! A disk that hangs, with the real program: it is told in time, and holds up nothing but what has
//! to be on it first.

mod disk;
mod passthrough;
mod supervised;

use std::{
    os::unix::{fs::MetadataExt, net::UnixDatagram},
    path::Path,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use plane::{Cut, Failed, Options, Plane, ProxyRequest, Sessions};

use self::{disk::Disk, passthrough::Passthrough};
use crate::{
    access::api::Api,
    agent::{Agent, SOON, clock, put, until, until_every},
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
            .with("PIPEOPS_DASHBOARD_LISTEN", "127.0.0.1:0")
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

    /// A call whose audit row comes before it. The API server has no such thing, which is an
    /// answer.
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
fn in_own_mounts(test: &str, missing: Option<&str>) -> Option<String> {
    if let Some(why) = missing {
        println!("{why}");
        return None;
    }
    let directory = tempfile::tempdir().unwrap();
    let told = said(again(test, directory.path(), &MOUNTS));
    // The first one stands behind the name of the test.
    let figures = told.lines().filter_map(|line| line.split_once("figure: "));
    for (_, figure) in figures {
        println!("figure: {figure}");
    }
    assert!(told.contains("1 passed"), "{told}");
    Some(told)
}

#[test]
fn a_disk_that_hangs_is_told_in_time_and_holds_up_nothing_else() {
    const TEST: &str = "hang::a_disk_that_hangs_is_told_in_time_and_holds_up_nothing_else";
    match std::env::var_os(CHILD) {
        Some(directory) => hang_in_mid_run(Path::new(&directory)),
        None => drop(in_own_mounts(TEST, disk::what_is_missing())),
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

    answers_at_once("the page while the disk hangs", || {
        bench.agent.get("/").unwrap().0
    });
    answers_at_once("plain reads while the disk hangs", || {
        bench.ask("GET", "/version").0
    });
}

/// Asks many times; half of the answers have to come within a second on a busy machine.
fn answers_at_once(what: &str, ask: impl Fn() -> u16) {
    let mut took: Vec<_> = (0..READS)
        .map(|_| {
            let (code, took) = timed(&ask);
            assert_eq!(code, 200, "{what}");
            took
        })
        .collect();
    took.sort();
    let (p50, longest) = (took[READS / 2], took[READS - 1]);
    println!("figure: {what}: p50 {p50:.1?}, max {longest:.1?} of {READS}");
    assert!(p50 < Duration::from_secs(1), "{p50:?}");
}

/// A moment at which the disk begins to hang: what the agent is asked for, and how many
/// milliseconds after the order to freeze, which takes some itself.
struct Moment {
    what: &'static str,
    after_ms: u64,
    /// Returns whether the agent acknowledged it.
    act: fn(&Bench, name: &str) -> bool,
}

/// Writes before the hang, as it begins and in it; then everything else that reads or writes a
/// file.
const MOMENTS: [Moment; 13] = [
    moment("nothing", 0, |_, _| false),
    moment("a plain read", 0, |bench, _| {
        bench.ask("GET", "/version").0 == 200
    }),
    moment("a write, 0 ms", 0, acknowledges_write),
    moment("a write, 4 ms", 4, acknowledges_write),
    moment("a write, 8 ms", 8, acknowledges_write),
    moment("a write, 64 ms", 64, acknowledges_write),
    moment("a stricter level", 8, |bench, _| {
        bench.agent.cli(&["access", "managed"]).0 == 0
    }),
    moment("a looser level", 8, |bench, _| {
        bench.agent.cli(&["access", "full"]).0 == 0
    }),
    moment("a session that begins", 16, |bench, _| {
        bench.plane.cut(Sessions::All, Cut::Reset);
        bench.agent.until("it links again", LONG, linked_as);
        true
    }),
    moment("a question about the past", 16, |bench, _| {
        let answer = bench.agent.get("/api/v1/series");
        answer.is_some_and(|(code, _)| code == 200)
    }),
    moment("a bundle", 16, |bench, _| {
        bench.agent.cli(&["bundle", "--list"]).0 == 0
    }),
    moment("a login", 16, |bench, _| {
        bench.agent.cli(&["dashboard", "open"]).0 == 0
    }),
    moment("the doctor", 16, |bench, _| {
        // Exit code 1 says that it found something, which it may.
        bench.agent.cli(&["doctor"]).0 < 2
    }),
];

const fn moment(what: &'static str, after_ms: u64, act: fn(&Bench, name: &str) -> bool) -> Moment {
    Moment {
        what,
        after_ms,
        act,
    }
}

fn acknowledges_write(bench: &Bench, name: &str) -> bool {
    bench.write(name).0 == 404
}

#[test]
fn what_was_acknowledged_outlives_a_hang_at_any_moment() {
    const TEST: &str = "hang::what_was_acknowledged_outlives_a_hang_at_any_moment";
    match std::env::var_os(CHILD) {
        Some(directory) => hang_at_each_moment(Path::new(&directory)),
        None => drop(in_own_mounts(TEST, disk::what_is_missing())),
    }
}

fn hang_at_each_moment(directory: &Path) {
    // Short ones are over before anybody calls them a hang; `make torture` has them at length.
    let is_long = std::env::var_os("PIPEOPS_TORTURE").is_some();
    let length = Duration::from_millis(if is_long { 15_000 } else { 600 });
    let disk = Disk::new(directory);
    let mut bench = Bench::new(&disk.path().join("state"));
    bench.agent.start();
    let me = bench.agent.until("it links", LONG, linked_as);
    let mut acknowledged = Vec::new();
    for (number, moment) in MOMENTS.iter().enumerate() {
        let name = format!("moment-{number}");
        let is_acknowledged = std::thread::scope(|scope| {
            let act = scope.spawn(|| {
                pause(Duration::from_millis(moment.after_ms));
                (moment.act)(&bench, &name)
            });
            hold(&disk, length);
            act.join().unwrap()
        });
        println!(
            "figure: a hang during {}: acknowledged: {is_acknowledged}",
            moment.what
        );
        if is_acknowledged && moment.what.starts_with("a write") {
            acknowledged.push(name);
        } else if !is_long && moment.what != "nothing" {
            assert!(is_acknowledged, "{} failed in a short hang", moment.what);
        }
        works_again(&bench, &me);
    }
    assert!(!acknowledged.is_empty());

    // A stop, and a start, both of which a thaw lets come to their end.
    bench.agent.signal(Signal::SIGTERM);
    hold(&disk, length);
    assert!(bench.agent.wait_end(LONG).success());
    bench.agent.start();
    pause(Duration::from_millis(4));
    hold(&disk, length);
    works_again(&bench, &me);

    bench.agent.kill();
    bench.agent.start();
    works_again(&bench, &me);
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
        "figure: {} writes acknowledged around {} hangs, none lost",
        acknowledged.len(),
        MOMENTS.len() + 2
    );
}

/// Makes the disk hang for so long. The agent may be starting or ending meanwhile.
fn hold(disk: &Disk, length: Duration) {
    let frozen = disk.freeze();
    until("the hang was long enough", LONG, || {
        (frozen.lasts() >= length).then_some(())
    });
}

fn pause(length: Duration) {
    let begun = clock();
    until_every(Duration::from_millis(1), "the moment", LONG, || {
        (clock() - begun >= length).then_some(())
    });
}

/// The agent is linked as who it was, and writes are carried out.
fn works_again(bench: &Bench, me: &serde_json::Value) {
    assert_eq!(&bench.agent.until("it links", LONG, linked_as), me);
    assert!(bench.plane.wait_ready(LONG).is_some());
    until("a write works again", LONG, || {
        acknowledges_write(bench, "between").then_some(())
    });
}

#[test]
fn a_start_on_a_disk_that_hangs_shows_the_page_and_links_as_who_it_was() {
    const TEST: &str = "hang::a_start_on_a_disk_that_hangs_shows_the_page_and_links_as_who_it_was";
    match std::env::var_os(CHILD) {
        Some(directory) => start_on_a_hung_disk(Path::new(&directory)),
        None => drop(in_own_mounts(TEST, disk::what_is_missing())),
    }
}

fn start_on_a_hung_disk(directory: &Path) {
    let disk = Disk::new(directory);
    let mut bench = Bench::new(&disk.path().join("state"));

    // Nobody knows who this agent is: it shows the page and waits.
    let frozen = disk.freeze();
    let page = started(&mut bench);
    println!("figure: from the start on a disk that hangs to the page: {page:.1?}");
    assert!(page < AT_ONCE, "{page:?}");
    bench.agent.until_condition(HUNG, LONG);
    let told = frozen.lasts();
    println!("figure: from the start on a disk that hangs to the condition: {told:.1?}");
    assert!(told < TOLD_WITHIN, "{told:?}");
    tells_what_it_waits_for(&bench);
    let (_, printed) = bench.agent.cli(&["status"]);
    assert!(printed.contains("dmesg"), "{printed}");
    assert_eq!(bench.plane.sessions().len(), 0);
    assert!(bench.is_hung(), "the disk hangs for {:?}", frozen.lasts());
    let socket = || std::fs::metadata(bench.agent.folder().join("agent.sock")).map(|it| it.ino());
    let opened = socket().unwrap();
    drop(frozen);
    let (me, took) = timed(|| bench.agent.until("it links", LONG, linked_as));
    assert_eq!(
        socket().unwrap(),
        opened,
        "the socket was closed in between"
    );
    println!("figure: from the thaw to the link of a new agent: {took:.1?}");
    assert_eq!(bench.write("before").0, 404);
    bench.agent.kill();

    // The small file with its identity can be read, and nothing can be written.
    let frozen = disk.freeze();
    started(&mut bench);
    let again = bench.agent.until("it links", LONG, linked_as);
    let took = frozen.lasts();
    println!("figure: from the start on a disk that hangs to the link: {took:.1?}");
    assert_eq!(again, me);
    assert_eq!(bench.ask("GET", "/version").0, 200);
    let (code, text) = bench.write("while");
    assert_eq!(code, 503, "{text}");
    assert!(text.contains("the disk does not answer"), "{text}");
    assert!(bench.is_hung(), "the disk hangs for {:?}", frozen.lasts());
    drop(frozen);
    until("a write works", LONG, || {
        (bench.write("after").0 == 404).then_some(())
    });
    let rows = until("the audit answers", LONG, || {
        let (code, body) = bench.agent.get("/api/v1/changes")?;
        (code == 200).then_some(body)
    });
    for name in ["before", "after"] {
        assert!(rows.contains(&format!("configmaps/{name}")), "{rows}");
    }
    bench.agent.until("no condition is left", LONG, |status| {
        let left = status["conditions"].as_array()?;
        let is_ours = |it: &serde_json::Value| it["id"].as_str().unwrap().starts_with("store.");
        (!left.iter().any(is_ours)).then_some(())
    });
    assert_eq!(bench.agent.status()["agent_id"], me);
    assert_eq!(bench.plane.violations(), Vec::<String>::new());
    assert!(bench.agent.stop().success());
}

#[test]
fn a_disk_that_cannot_be_read_holds_up_nothing_that_does_not_read_it() {
    const TEST: &str = "hang::a_disk_that_cannot_be_read_holds_up_nothing_that_does_not_read_it";
    match std::env::var_os(CHILD) {
        Some(directory) => hang_of_reads(Path::new(&directory)),
        None => drop(in_own_mounts(TEST, passthrough::what_is_missing())),
    }
}

fn hang_of_reads(directory: &Path) {
    let disk = Passthrough::new(directory);
    let mut bench = Bench::new(&disk.path().join("state"));
    bench.agent.start();
    let me = bench.agent.until("it links", LONG, linked_as);
    assert_eq!(bench.write("before").0, 404);

    // In mid-run.
    let stopped = disk.stop();
    let (code, text) = bench.write("early");
    let refused = stopped.lasts();
    assert_eq!(code, 503, "{text}");
    println!("figure: from reads that hang to the condition and the first refusal: {refused:.1?}");
    assert!(bench.is_hung() && refused < TOLD_WITHIN, "{refused:?}");
    assert_eq!(bench.ask("GET", "/version").0, 200);
    assert_eq!(bench.agent.get("/").unwrap().0, 200);
    drop(stopped);
    until("a write works", LONG, || {
        (bench.write("between").0 == 404).then_some(())
    });
    bench.agent.kill();

    // Before the start: nothing is known of this agent.
    let stopped = disk.stop();
    let page = started(&mut bench);
    println!("figure: from the start with reads that hang to the page: {page:.1?}");
    assert!(page < AT_ONCE, "{page:?}");
    bench.agent.until_condition(HUNG, LONG);
    tells_what_it_waits_for(&bench);
    let lasted = stopped.lasts();
    drop(stopped);
    let (again, took) = timed(|| bench.agent.until("it links", LONG, linked_as));
    println!("figure: from the end of a hang of {lasted:.1?} to the link: {took:.1?}");
    assert_eq!(again, me);
    let rows = until("the audit answers", LONG, || {
        let (code, body) = bench.agent.get("/api/v1/changes")?;
        (code == 200).then_some(body)
    });
    for name in ["before", "between"] {
        assert!(rows.contains(&format!("configmaps/{name}")), "{rows}");
    }
    assert!(bench.agent.stop().success());
}

/// Starts it; returns the time until there is a page.
fn started(bench: &mut Bench) -> Duration {
    let begun = clock();
    bench.agent.start();
    until("the page", LONG, || {
        bench.agent.get("/").filter(|(code, _)| *code == 200)
    });
    clock() - begun
}

fn linked_as(status: &serde_json::Value) -> Option<serde_json::Value> {
    (status["link"]["state"] == "ready").then(|| status["agent_id"].clone())
}

/// A start that is held up says so everywhere, and the service manager hears that it is alive.
fn tells_what_it_waits_for(bench: &Bench) {
    const SENTENCE: &str = "the agent waits for it before it links";
    let (code, ready) = bench.agent.get("/readyz").unwrap();
    assert_eq!(code, 503, "{ready}");
    assert!(ready.contains(SENTENCE), "{ready}");
    let (_, page) = bench.agent.get("/").unwrap();
    assert!(page.contains(SENTENCE) && page.contains("dmesg"), "{page}");
    let (code, refusal) = bench.agent.get("/api/v1/changes").unwrap();
    assert_eq!(code, 503, "{refusal}");
    let mut told = String::new();
    until("READY=1, STATUS= and signs of life", LONG, || {
        told += &bench.told().join("\n");
        let is_told = |word| told.contains(word);
        ["READY=1", SENTENCE, "WATCHDOG=1"]
            .into_iter()
            .all(is_told)
            .then_some(())
    });
}

#[test]
fn a_start_waits_for_settings_that_cannot_be_read_and_ends_when_it_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let mut bench = Bench::new(&folder.path().join("state"));
    // Whoever reads it waits until somebody writes.
    let settings = bench.agent.folder().join("config.toml");
    let hang = || {
        std::fs::remove_file(&settings).unwrap();
        nix::unistd::mkfifo(&settings, nix::sys::stat::Mode::S_IRWXU).unwrap();
    };
    hang();
    started(&mut bench);
    let condition = bench.agent.until_condition("files.hung", LONG);
    let sentence = condition["sentence"].as_str().unwrap();
    assert!(sentence.contains("the settings"), "{sentence}");
    tells_what_it_waits_for(&bench);
    // Commands read the settings as well, and give up before somebody thinks that they hang too.
    let ((_, printed), took) = timed(|| bench.agent.cli(&["status"]));
    assert!(printed.contains("the agent waits for it"), "{printed}");
    println!("figure: status while the settings cannot be read: {took:.1?}");
    let (code, printed) = bench.agent.cli(&["config", "check"]);
    assert!(printed.contains("its disk does not answer"), "{printed}");
    assert_eq!(code, 1, "{printed}");
    assert_eq!(bench.plane.sessions().len(), 0);
    put(
        &settings,
        "[agent]\nheartbeat_interval_connected = \"6s\"\n",
    );
    let ((), took) = timed(|| drop(bench.agent.until("it links", LONG, linked_as)));
    println!("figure: from settings that can be read to the link: {took:.1?}");
    assert!(bench.agent.stop().success());

    hang();
    started(&mut bench);
    assert!(bench.agent.stop().success());
    assert!(!bench.agent.log().contains("panicked"));
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
    bench.agent.signal(Signal::SIGSTOP);
    let stopped = clock();
    until("what was on its way has come", SOON, || {
        pings(&bench);
        (clock() - stopped > Duration::from_millis(500)).then_some(())
    });
    until("two limits have passed", SOON, || {
        (clock() - stopped > Duration::from_millis(2_500)).then_some(())
    });
    assert_eq!(pings(&bench), 0);
    bench.agent.signal(Signal::SIGCONT);
    until("a ping", SOON, || (pings(&bench) > 0).then_some(()));
    assert!(bench.agent.stop().success());
}

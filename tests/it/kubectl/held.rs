//! Long-lived requests (watch, follow, exec) in both forms side by side. `make soak` looks for
//! longer than every time-out on the way, and adds a client library's informer.

use std::time::{Duration, Instant};

use super::{
    bench::{Bench, Form},
    running::Running,
};
use crate::{
    agent::{SOON, clock, command},
    cluster::kubectl,
};

/// Where the objects are that these tests change.
const NAMESPACE: &str = "default";
/// How often an object changes that somebody watches.
const CHANGED_EVERY: Duration = Duration::from_secs(10);
/// A descriptor or two come and go with connections that are kept for the next request.
const DESCRIPTORS_MORE: usize = 8;

/// What `make soak` sets.
#[expect(
    clippy::disallowed_methods,
    reason = "variables that make a test longer and give it one more client"
)]
fn set(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// How long everything is held.
fn held_for() -> Duration {
    let seconds = set("PIPEOPS_TEST_HELD_S");
    Duration::from_secs(seconds.map_or(5, |seconds| seconds.parse().unwrap()))
}

#[test]
fn what_is_held_over_streams_lives_as_long_as_somebody_looks() {
    hold(Form::Streams);
}

#[test]
fn what_is_held_in_json_lives_as_long_as_somebody_looks() {
    hold(Form::Json);
}

fn hold(form: Form) {
    let Some(mut bench) = Bench::calm() else {
        return;
    };
    bench.use_form(form);
    let before = bench.used();
    let name = format!("held-{form:?}").to_lowercase();
    let quiet = Quiet::start(&bench, &name);
    let mut log = Log::start(&bench);
    let mut informer = Informer::start(&bench, &name);
    bench.went(form, &before);
    let descriptors = bench.descriptors();
    let (began, mut changed) = (clock(), clock());
    while clock() < began + held_for() {
        log.goes_on();
        if clock() >= changed + CHANGED_EVERY {
            changed = clock();
            informer.iter_mut().for_each(Informer::sees_a_change);
        }
    }
    quiet.still_watches();
    log.command.interrupt();
    log.command.ends(SOON);
    informer.into_iter().for_each(Informer::ends);
    let (descriptors, now) = (descriptors, bench.descriptors());
    assert!(
        now <= descriptors + DESCRIPTORS_MORE,
        "{descriptors} descriptors became {now}"
    );
    bench.nothing_is_left();
    assert_eq!(bench.agent.status()["link"]["outages"], 0);
    assert_eq!(bench.plane.violations(), Vec::<String>::new());
    println!(
        "{form:?}: held for {:?}, {} lines of the log, at most {} kB of memory",
        clock() - began,
        log.read,
        bench.memory_peak_kb()
    );
}

/// A watch by kubectl in which nothing happens.
struct Quiet {
    command: Running,
    name: String,
}

impl Quiet {
    fn start(bench: &Bench, name: &str) -> Self {
        // Unasked the API server ends a watch after half an hour to an hour, and `kubectl get -w`
        // with it.
        let seconds = held_for().as_secs() + 600;
        let path = format!(
            "/api/v1/namespaces/{NAMESPACE}/secrets?watch=true&timeoutSeconds={seconds}&fieldSelector=metadata.name%3D{name}"
        );
        Self {
            command: Running::start(bench.kubectl(&["get", "--raw", &path])),
            name: name.to_owned(),
        }
    }

    /// What happens after a long silence arrives.
    fn still_watches(mut self) {
        let ended = self.command.child.try_wait().unwrap();
        assert!(ended.is_none(), "the quiet watch: {ended:?}");
        let create = ["create", "secret", "generic", &self.name, "-n", NAMESPACE];
        kubectl(&create);
        self.command.line("the secret", |line| {
            line.contains("\"ADDED\"") && line.contains(&self.name)
        });
        kubectl(&["delete", "secret", &self.name, "-n", NAMESPACE]);
        self.command
            .line("its end", |line| line.contains("\"DELETED\""));
        self.command.interrupt();
        self.command.ends(SOON);
    }
}

/// A log that is followed.
struct Log {
    command: Running,
    last: u64,
    read: u64,
}

impl Log {
    fn start(bench: &Bench) -> Self {
        let follow = ["logs", "-f", "logger", "-n", "fixtures", "--tail=1"];
        let command = Running::start(bench.kubectl(&follow));
        let last = Self::next(&command);
        Self {
            command,
            last,
            read: 1,
        }
    }

    fn next(command: &Running) -> u64 {
        let line = command.line("a line of the log", |line| line.starts_with("line "));
        let number = line.split(' ').nth(1).and_then(|n| n.parse().ok());
        number.unwrap_or_else(|| panic!("{line}"))
    }

    fn goes_on(&mut self) {
        let next = Self::next(&self.command);
        assert_eq!(next, self.last + 1, "no line is lost and none comes twice");
        (self.last, self.read) = (next, self.read + 1);
    }
}

/// client-go's informer of one `ConfigMap`: the program in `tests/cluster/clients`.
struct Informer {
    command: Running,
    name: String,
    version: u64,
    began: Instant,
}

impl Informer {
    /// `None` where nobody gave the tests one.
    fn start(bench: &Bench, name: &str) -> Option<Self> {
        let mut program = command(set("PIPEOPS_TEST_INFORMER")?);
        let letter = ["create", "configmap", name, "-n", NAMESPACE];
        kubectl(&[&letter[..], &["--from-literal=letter=0"]].concat());
        program.arg(bench.kubeconfig()).args([NAMESPACE, name]);
        let informer = Self {
            command: Running::start(program),
            name: name.to_owned(),
            version: 0,
            began: clock(),
        };
        informer.says("list");
        informer.says("added 0");
        Some(informer)
    }

    /// The next thing that it says of the object, where nothing went wrong before.
    fn says(&self, wanted: &str) {
        self.command.line(wanted, |line| {
            // A watch begins, and ends when the API server was asked to end it.
            if line.starts_with("watch ") || line.starts_with("ended ") {
                println!("informer of {}: {line}", self.name);
                return false;
            }
            assert_eq!(line, wanted, "informer of {}", self.name);
            true
        });
    }

    fn sees_a_change(&mut self) {
        self.version += 1;
        let patch = format!("{{\"data\":{{\"letter\":\"{}\"}}}}", self.version);
        let object = ["configmap", &self.name, "-n", NAMESPACE];
        kubectl(&[&["patch"], &object[..], &["--patch", &patch]].concat());
        self.says(&format!("updated {}", self.version));
    }

    fn ends(mut self) {
        kubectl(&["delete", "configmap", &self.name, "-n", NAMESPACE]);
        self.says(&format!("deleted {}", self.version));
        self.command.interrupt();
        self.command.ends(SOON);
        let held = clock() - self.began;
        println!(
            "informer of {}: {} changes in {held:?}",
            self.name, self.version
        );
    }
}

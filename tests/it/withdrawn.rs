//! Changes during a running call: every way into a managed namespace against every way of taking
//! access back, on a real cluster.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use plane::{Failed, ProxyRequest, Response, Service, Streams};
use serde_json::Value;

use crate::{
    agent::{SOON, clock, until},
    cluster::{kubectl, variable},
    kubectl::running::Running,
    rights::Bench,
};

/// Promise after a change of the level.
const OF_LEVEL: Duration = Duration::from_secs(5);
/// Promise after a change of labels.
const OF_LABEL: Duration = Duration::from_secs(10);
/// Promise after a change of the account's rights: a look every 10 s, and the API server believes a
/// token for 10 s longer.
const OF_RIGHTS: Duration = Duration::from_secs(30);
/// Pieces that a call must still bring to count as untouched: one each 100 ms, for longer than the
/// interval between two looks.
const PIECES: usize = 70;
/// Looks in a row that find the long calls alone.
const QUIET_LOOKS: u32 = 5;
/// An answer that does not end by itself.
const ENDLESS: &str = "drip?n=100000&ms=100";

/// What a call relies on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Relies {
    /// A level above `off`.
    Level,
    /// A managed namespace.
    Namespace,
    /// A managed namespace, and the rights of the account there.
    Rights,
}

/// A long call: its name, the line of kubectl, and what it relies on.
type LongCall = (&'static str, &'static str, Relies);

/// Long calls; `NS` is the managed namespace.
const CALLS: &[LongCall] = &[
    (
        "watch of Pods",
        "get --raw /api/v1/pods?watch=true&timeoutSeconds=600",
        Relies::Level,
    ),
    ("followed log", "logs -f web -n NS", Relies::Level),
    (
        "watch of Secrets",
        "get --raw /api/v1/namespaces/NS/secrets?watch=true&timeoutSeconds=600",
        Relies::Rights,
    ),
    ("exec", "exec web -n NS -- sleep 600", Relies::Rights),
    ("attach", "attach web -n NS", Relies::Rights),
    (
        "port-forward",
        "port-forward pod/web -n NS :8080",
        Relies::Rights,
    ),
    (
        "proxy to a Pod",
        "get --raw /api/v1/namespaces/NS/pods/web:8080/proxy/drip?n=100000&ms=100",
        Relies::Rights,
    ),
    ("service", "", Relies::Namespace),
];

/// A way of taking access back: its name, what it ends, how soon, and how it is done and undone.
struct Change {
    name: &'static str,
    ends: fn(&str, Relies) -> bool,
    /// True if the agent ends the calls; otherwise they end by themselves.
    is_withdrawal: bool,
    within: Duration,
    apply: fn(&Bench),
    undo: fn(&Bench),
}

const CHANGES: &[Change] = &[
    Change {
        name: "level read-only",
        ends: |_, relies| relies != Relies::Level,
        is_withdrawal: true,
        within: OF_LEVEL,
        apply: |bench| level(bench, "read-only"),
        undo: |bench| level(bench, "managed"),
    },
    Change {
        name: "level off",
        ends: |_, _| true,
        is_withdrawal: true,
        within: OF_LEVEL,
        apply: |bench| level(bench, "off"),
        undo: |bench| level(bench, "managed"),
    },
    Change {
        name: "namespace not managed",
        ends: |_, relies| relies != Relies::Level,
        is_withdrawal: true,
        within: OF_LABEL,
        apply: |bench| label(bench, "pipeops.io/managed-"),
        undo: |bench| label(bench, "pipeops.io/managed=true"),
    },
    Change {
        name: "namespace enforces less",
        ends: |_, relies| relies != Relies::Level,
        is_withdrawal: true,
        within: OF_LABEL,
        apply: |bench| label(bench, "pod-security.kubernetes.io/enforce=privileged"),
        undo: |bench| label(bench, "pod-security.kubernetes.io/enforce=baseline"),
    },
    Change {
        name: "binding removed",
        ends: |_, relies| relies == Relies::Rights,
        is_withdrawal: true,
        within: OF_RIGHTS,
        apply: |bench| {
            kubectl(&["delete", "rolebinding", "pipeops-cp", "-n", &bench.managed]);
        },
        // The agent makes it again when a call needs it.
        undo: |_| {},
    },
    Change {
        name: "account removed",
        ends: |_, relies| relies == Relies::Rights,
        is_withdrawal: true,
        within: OF_RIGHTS,
        apply: |bench| {
            kubectl(&["delete", "serviceaccount", "pipeops-cp", "-n", bench.own()]);
        },
        undo: |bench| {
            kubectl(&["create", "serviceaccount", "pipeops-cp", "-n", bench.own()]);
        },
    },
    Change {
        name: "Pod deleted",
        // A port-forward ends when somebody uses it.
        ends: |name, _| !name.starts_with("watch") && name != "port-forward",
        is_withdrawal: false,
        within: OF_RIGHTS,
        apply: |bench| {
            let namespace = ["-n", bench.managed.as_str()];
            let delete = ["delete", "pod", "web", "--force", "--grace-period=0"];
            kubectl(&[&delete[..], &namespace].concat());
        },
        undo: run,
    },
];

fn level(bench: &Bench, level: &str) {
    let (code, told) = bench.agent().cli(&["access", level]);
    assert_eq!(code, 0, "{told}");
}

fn label(bench: &Bench, label: &str) {
    kubectl(&["label", "--overwrite", "namespace", &bench.managed, label]);
}

/// A call that runs.
enum Held {
    Kubectl(Running),
    Service(Box<Response>),
}

impl Held {
    fn has_ended(&mut self) -> bool {
        match self {
            Self::Kubectl(running) => running.child.try_wait().unwrap().is_some(),
            Self::Service(response) => loop {
                match response.body.next(Duration::from_millis(1)) {
                    Some(Ok(_)) => {}
                    Some(Err(Failed::Late)) => return false,
                    Some(Err(_)) | None => return true,
                }
            },
        }
    }
}

/// A Pod that serves, with its service, in the managed namespace.
fn serve(bench: &Bench) {
    run(bench);
    let expose = ["expose", "pod", "web", "--port=8080"];
    kubectl(&[&expose[..], &["-n", &bench.managed]].concat());
}

fn run(bench: &Bench) {
    let image = format!("--image={}", variable("IMAGE"));
    let namespace = ["-n", bench.managed.as_str()];
    let run = ["run", "web", &image, "--image-pull-policy=Never"];
    let how = ["--port=8080"];
    kubectl(&[&run[..], &how, &namespace, &["--", "serve"]].concat());
    let ready = ["wait", "pod/web", "--for=condition=Ready", "--timeout=60s"];
    kubectl(&[&ready[..], &namespace].concat());
}

fn service(bench: &Bench) -> ProxyRequest {
    ProxyRequest {
        service: Some(Service {
            namespace: bench.managed.clone(),
            name: "web".to_owned(),
            port: 8080,
            scheme: None,
        }),
        ..ProxyRequest::get(&format!("/{ENDLESS}"))
    }
}

fn begin(bench: &mut Bench, line: &str) -> Held {
    if line.is_empty() {
        let request = service(bench);
        let response = until("the service answers", SOON, || {
            let response = bench.plane().request(request.clone(), SOON).ok()?;
            (response.head.status == 200).then_some(response)
        });
        return Held::Service(Box::new(response));
    }
    let line = line.replace("NS", &bench.managed);
    let words: Vec<&str> = line.split(' ').collect();
    Held::Kubectl(Running::start(bench.kubectl(&words)))
}

/// Long calls that this form can carry.
fn carried(streams: Streams) -> Vec<LongCall> {
    let all = CALLS.iter().copied();
    all.filter(|(name, ..)| streams == Streams::Preferred || *name != "port-forward")
        .collect()
}

/// These calls, running.
fn begin_all(bench: &mut Bench, wanted: &[LongCall]) -> BTreeMap<&'static str, Held> {
    // What was allowed a moment ago may have to be learnt again by the API server.
    let managed = bench.managed.clone();
    until("the namespace can be entered", SOON, || {
        let output = bench.ask(&["exec", "web", "-n", &managed, "--", "true"]);
        output.status.success().then_some(())
    });
    let begun = |(name, line, _): &LongCall| (*name, begin(bench, line));
    let mut calls: BTreeMap<_, _> = wanted.iter().map(begun).collect();
    // kubectl looks at the Pod before it enters: what runs is what the audit has without an end.
    let mut entered = vec!["watch secrets", "exec into", "attach to"];
    if calls.contains_key("port-forward") {
        entered.push("port-forward to");
    }
    let mut quiet = 0;
    until("all calls run", SOON, || {
        for (name, held) in &mut calls {
            if let Held::Kubectl(running) = held
                && running.child.try_wait().unwrap().is_some()
            {
                panic!("{name}: {}", running.rest());
            }
        }
        let rows = ended(bench);
        let runs = |words: &&str| {
            let mut rows = rows.iter();
            rows.any(|(what, outcome)| what.starts_with(*words) && outcome == "running")
        };
        // No more and no less, several times: until then kubectl still asks before its call begins.
        let exchanges = bench.agent().status()["load"]["exchanges"].as_u64();
        let is_whole = exchanges == u64::try_from(wanted.len()).ok();
        quiet = if is_whole { quiet + 1 } else { 0 };
        (quiet >= QUIET_LOOKS && entered.iter().all(runs)).then_some(())
    });
    calls
}

/// Newest rows of the audit: what was asked, and how it ended.
fn ended(bench: &Bench) -> Vec<(String, String)> {
    let (_, text) = bench.agent().cli(&["changes", "--json"]);
    let shown: Value = serde_json::from_str(&text).unwrap();
    let text = |row: &Value, name: &str| row[name].as_str().unwrap_or_default().to_owned();
    let rows = shown["changes"].as_array().unwrap().iter();
    rows.map(|row| (text(row, "what"), text(row, "outcome")))
        .collect()
}

/// Applies a change and waits until exactly the calls have ended that relied on it.
fn try_change(bench: &mut Bench, all: &[LongCall], change: &Change) {
    let mut calls = begin_all(bench, all);
    let began = clock();
    (change.apply)(bench);
    let mut ended_after: BTreeMap<&str, Duration> = BTreeMap::new();
    let wanted: Vec<&str> = all
        .iter()
        .filter(|(name, _, relies)| (change.ends)(name, *relies))
        .map(|(name, _, _)| *name)
        .collect();
    until(change.name, change.within + SOON, || {
        for (name, held) in &mut calls {
            if !ended_after.contains_key(name) && held.has_ended() {
                ended_after.insert(name, clock() - began);
            }
        }
        let is_over = wanted.iter().all(|name| ended_after.contains_key(name));
        is_over.then_some(())
    });
    println!("{}: {ended_after:?}", change.name);
    for (name, after) in &ended_after {
        let is_wanted = wanted.contains(name) || !change.is_withdrawal;
        let last_words = || match calls.get(name) {
            Some(Held::Kubectl(running)) => running.rest(),
            Some(Held::Service(_)) | None => String::new(),
        };
        assert!(is_wanted, "{}: {name} ended: {}", change.name, last_words());
        assert!(
            *after <= change.within + Duration::from_secs(1),
            "{}: {name} ended after {after:?}",
            change.name
        );
    }
    if !change.is_withdrawal {
        return (change.undo)(bench);
    }
    let exec = |(what, outcome): &(String, String)| what.contains("exec") && outcome == "withdrawn";
    let mut rows = Vec::new();
    let deadline = clock() + SOON;
    while !rows.iter().any(exec) {
        assert!(clock() < deadline, "{}: {rows:?}", change.name);
        rows = ended(bench);
    }
    drop(calls);
    (change.undo)(bench);
}

fn every_change(streams: Streams, changes: &[&str]) {
    let Some(mut bench) = Bench::at("managed") else {
        return;
    };
    bench.plane().set(|behaviour| behaviour.streams = streams);
    if streams == Streams::Preferred {
        assert!(bench.plane().wait_streams(SOON).is_some());
    }
    serve(&bench);
    let calls = carried(streams);
    for change in CHANGES {
        if changes.is_empty() || changes.contains(&change.name) {
            try_change(&mut bench, &calls, change);
        }
    }
    nothing_ends_by_what_changes_nothing(&mut bench, &calls);
}

/// An annotation is a change of the namespace that withdraws nothing, and so is a level that was
/// set again.
fn nothing_ends_by_what_changes_nothing(bench: &mut Bench, all: &[LongCall]) {
    let mut calls = begin_all(bench, all);
    kubectl(&[
        "annotate",
        "namespace",
        &bench.managed,
        "a=b",
        "--overwrite",
    ]);
    level(bench, "managed");
    let Some(Held::Service(response)) = calls.get_mut("service") else {
        panic!("no service");
    };
    for _ in 0..PIECES {
        let piece = response.body.next(SOON);
        assert!(matches!(piece, Some(Ok(_))), "{piece:?}");
    }
    for (name, held) in &mut calls {
        assert!(!held.has_ended(), "{name} ended");
    }
}

#[test]
fn running_calls_over_streams_end_with_what_they_rely_on() {
    every_change(Streams::Preferred, &[]);
}

#[test]
fn running_calls_in_json_end_with_what_they_rely_on() {
    every_change(
        Streams::Off,
        &["level read-only", "level off", "namespace not managed"],
    );
}

#[test]
fn calls_that_began_under_full_are_judged_by_the_stricter_level() {
    let Some(mut bench) = Bench::at("full") else {
        return;
    };
    let managed = bench.managed.clone();
    let watch = |namespace: &str| {
        let path = "secrets?watch=true&timeoutSeconds=600";
        ProxyRequest::get(&format!("/api/v1/namespaces/{namespace}/{path}"))
    };
    let mut foreign = bench.plane().request(watch("fixtures"), SOON).unwrap();
    let mut shop = bench.plane().request(watch(&managed), SOON).unwrap();
    assert_eq!((foreign.head.status, shop.head.status), (200, 200));
    let began = clock();
    level(&bench, "managed");
    let end = until_over(&mut foreign, began, OF_LEVEL);
    println!("a watch in a namespace that is not managed ended after {end:?}");
    assert!(is_open(&mut shop), "what the new level permits goes on");
}

fn is_open(response: &mut Response) -> bool {
    matches!(
        response.body.next(Duration::from_millis(1)),
        Some(Ok(_) | Err(Failed::Late))
    )
}

fn until_over(response: &mut Response, began: Instant, limit: Duration) -> Duration {
    loop {
        let left = (began + limit).saturating_duration_since(clock());
        match response.body.next(left) {
            Some(Ok(_)) => {}
            Some(Err(Failed::Late)) => panic!("it still runs {limit:?} later"),
            Some(Err(_)) | None => return clock() - began,
        }
    }
}

/// How often each figure is taken: `PIPEOPS_TEST_TRIES`.
#[expect(
    clippy::disallowed_methods,
    reason = "the variable that makes a test of a measurement"
)]
fn tries() -> usize {
    let tries = std::env::var("PIPEOPS_TEST_TRIES");
    tries.map_or(2, |tries| tries.parse().unwrap())
}

type Step = fn(&Bench);

#[test]
fn from_withdrawal_to_cut_takes_seconds_at_most() {
    let Some(mut bench) = Bench::at("managed") else {
        return;
    };
    let path = format!("/api/v1/namespaces/{}/secrets", bench.managed);
    let watch = format!("{path}?watch=true&timeoutSeconds=600");
    let kinds: [(&str, Duration, Step, Step); 2] = [
        (
            "from a stricter level to the cut",
            OF_LEVEL,
            |bench| level(bench, "read-only"),
            |bench| level(bench, "managed"),
        ),
        (
            "from a removed label to the cut",
            OF_LABEL,
            |bench| label(bench, "pipeops.io/managed-"),
            |bench| label(bench, "pipeops.io/managed=true"),
        ),
    ];
    for (name, limit, apply, undo) in kinds {
        let mut taken: Vec<Duration> = (0..tries())
            .map(|_| {
                let mut response = until("the watch is allowed", SOON, || {
                    let request = ProxyRequest::get(&watch);
                    let response = bench.plane().request(request, SOON).ok()?;
                    (response.head.status == 200).then_some(response)
                });
                let began = clock();
                apply(&bench);
                let after = until_over(&mut response, began, limit);
                undo(&bench);
                after
            })
            .collect();
        taken.sort();
        println!(
            "figure: {name}: p50 {:.1?}, max {:.1?} of {}",
            taken[taken.len() / 2],
            taken[taken.len() - 1],
            taken.len()
        );
    }
}

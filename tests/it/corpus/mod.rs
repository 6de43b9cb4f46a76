//! Recorded rollouts: scenarios in `tests/data/rollouts`, each a manifest with the verdict that it
//! must get, recorded from a real cluster and judged again here. `make corpus` records them anew
//! and judges them live.

mod live;
mod perturbed;
mod rivals;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use pipeops_agent::{
    core::rollout::{self, JudgedRollout, RolloutVerdict},
    wire::rollout::read,
};

/// A scenario: the head of its file, and its manifests.
struct Scenario {
    name: String,
    /// Verdict, and its cause where there is one.
    expected: (RolloutVerdict, Option<String>),
    /// Seconds that are recorded.
    run_s: u64,
    soak_s: u64,
    deadline_s: u64,
    /// Label of the namespace.
    label: Option<String>,
    /// Object that is there before.
    before: Option<String>,
    /// What custom resources come to say about themselves: second, object and status.
    says: Vec<(u64, String, String)>,
    /// Commands of kubectl in the course of it, by their second.
    does: Vec<(u64, String)>,
    /// True if it changes the node, or needs it for itself.
    is_alone: bool,
    /// Command of kubectl that changes the node before, and the one that restores it.
    node: Option<(String, String)>,
    /// Seconds from which and until which the kubelet is stopped.
    stops: Option<(u64, u64)>,
    /// Manifests that are applied one after the other; the last one is recorded.
    versions: Vec<String>,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/rollouts")
}

fn names(ending: &str) -> BTreeSet<String> {
    let files = std::fs::read_dir(folder()).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    names
        .filter_map(|name| name.strip_suffix(ending).map(str::to_owned))
        .collect()
}

impl Scenario {
    fn read(name: &str) -> Self {
        let text = std::fs::read_to_string(folder().join(format!("{name}.yaml"))).unwrap();
        let field = |field: &str| {
            let start = format!("# {field}: ");
            let line = text.lines().find_map(|line| line.strip_prefix(&start));
            line.map(|value| value.trim().to_owned())
        };
        let number = |name: &str| field(name).unwrap().parse().unwrap();
        let says = text.lines().filter_map(|line| {
            let mut words = line.strip_prefix("# says: ")?.splitn(3, ' ');
            let at = words.next()?.parse().unwrap();
            Some((at, words.next()?.to_owned(), words.next()?.to_owned()))
        });
        let does = text.lines().filter_map(|line| {
            let (at, command) = line.strip_prefix("# does: ")?.split_once(' ')?;
            Some((at.parse().unwrap(), command.to_owned()))
        });
        let node = field("node").map(|node| (node, field("restore").unwrap()));
        let stops = field("stops").map(|stops| {
            let (from, until) = stops.split_once(' ').unwrap();
            (from.parse().unwrap(), until.parse().unwrap())
        });
        let expected = field("expect").unwrap();
        let (verdict, cause) = match expected.split_once(' ') {
            Some((verdict, cause)) => (verdict, Some(cause.to_owned())),
            None => (expected.as_str(), None),
        };
        Self {
            name: name.to_owned(),
            expected: (RolloutVerdict::of(verdict).unwrap(), cause),
            run_s: number("run"),
            soak_s: number("soak"),
            deadline_s: number("deadline"),
            label: field("label"),
            before: field("before"),
            says: says.collect(),
            does: does.collect(),
            is_alone: field("alone").is_some() || node.is_some() || stops.is_some(),
            node,
            stops,
            versions: text.split("#--- next\n").map(str::to_owned).collect(),
        }
    }

    /// Why a judgement is not the expected one.
    fn differs(&self, last: &JudgedRollout) -> Option<String> {
        let cause = last
            .finding
            .as_ref()
            .map(|found| found.cause.id().to_owned());
        let is_same = (last.verdict, &cause) == (self.expected.0, &self.expected.1);
        (!is_same).then(|| format!("{}: {:?} expected, but {last:#?}", self.name, self.expected))
    }
}

/// The steps of a recording: what was said when.
fn judged(text: &str) -> Vec<(u64, JudgedRollout)> {
    let recording = read(text).unwrap();
    let frames = recording.frames().map(Result::unwrap);
    let steps = rollout::replay(&recording.scope, frames);
    let seconds = |(at, step): (pipeops_agent::core::time::Mono, JudgedRollout)| {
        (at.elapsed_since_boot().as_secs(), step)
    };
    steps.into_iter().map(seconds).collect()
}

#[test]
fn every_recorded_rollout_gets_its_verdict() {
    let scenarios = names(".yaml");
    assert_eq!(
        scenarios,
        names(".jsonl"),
        "make corpus records what is missing"
    );
    let mut wrong = Vec::new();
    for name in &scenarios {
        let text = std::fs::read_to_string(folder().join(format!("{name}.jsonl"))).unwrap();
        let steps = judged(&text);
        let (_, last) = steps.last().expect("an observation");
        wrong.extend(Scenario::read(name).differs(last));
        if last.verdict == RolloutVerdict::Bad {
            let found = last.finding.as_ref().expect("a bad verdict has a cause");
            for (what, text) in [
                ("sentence", &last.sentence),
                ("fix", &found.fix),
                ("object", &found.object),
            ] {
                if text.is_empty() {
                    wrong.push(format!("{name}: no {what}"));
                }
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {} are wrong:\n{}",
        wrong.len(),
        scenarios.len(),
        wrong.join("\n")
    );
}

#[test]
fn the_log_of_before_is_asked_for_where_a_container_is_started_again() {
    for (name, is_previous) in [("job-failed", false), ("crash-exit-1", true)] {
        let text = std::fs::read_to_string(folder().join(format!("{name}.jsonl"))).unwrap();
        let found = judged(&text)
            .into_iter()
            .filter_map(|(_, step)| step.finding);
        let logs = found.filter(|found| found.fix.contains("pipeops-agent logs"));
        let fixes: Vec<_> = logs.map(|found| found.fix).collect();
        assert!(!fixes.is_empty(), "{name}");
        let is_right = |fix: &String| fix.contains("--previous") == is_previous;
        assert!(fixes.iter().all(is_right), "{fixes:?}");
    }
}

#[test]
fn the_command_line_judges_a_recording_as_the_library_does() {
    for (name, code, word) in [
        ("healthy", 0, "\"good\""),
        ("crash-exit-1", 1, "\"container.crash-loop\""),
        ("image-refused", 2, "\"waiting\""),
    ] {
        let output = crate::agent::command(env!("CARGO_BIN_EXE_pipeops-agent"))
            .env_clear()
            .args(["apps", "replay", "--json"])
            .arg(folder().join(format!("{name}.jsonl")))
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(code), "{name}: {text}");
        assert!(text.contains(word), "{name}: {text}");
    }
}

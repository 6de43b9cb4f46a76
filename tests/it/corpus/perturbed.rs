//! Recorded rollouts as they go on a slow machine with a bad link: looks that are missed, an API
//! that goes away, long pauses, and Pods beside them that have ended before. A healthy one must
//! never be called bad; a broken one keeps its cause.

use std::time::Duration;

use fastrand::Rng;
use pipeops_agent::core::{
    rollout::{JudgedRollout, Object, Observation, RolloutVerdict, replay},
    time::Mono,
};
use serde_json::{Value, json};

use super::{Scenario, folder, names, read};

type Frames = Vec<(Mono, Option<Observation>)>;

/// Runs of all healthy recordings together.
const RUNS: u64 = 1_000;
/// Runs of each broken recording.
const RUNS_BROKEN: u64 = 4;
const HOUR_S: u64 = 3_600;
/// Longest wait for the look after one that is missed.
const MISSED: Duration = Duration::from_secs(2);

/// What happens to one recording.
struct Trouble {
    rng: Rng,
    deadline_s: u64,
    soak_s: u64,
}

impl Trouble {
    /// The same rollout, with trouble that says nothing about the app.
    fn befall(&mut self, frames: &Frames) -> Frames {
        let ended_before = self.rng.bool().then(|| self.rng.u64(3..50));
        let first = frames.iter().find_map(|(_, seen)| seen.clone());
        let (mut later_s, mut all) = (0, Frames::new());
        for (place, (at, seen)) in frames.iter().enumerate() {
            // A look that is missed: the next one is not far.
            let next = frames.get(place + 1).map(|(next, _)| next.since(*at));
            let is_short = next.is_some_and(|gap| gap < MISSED);
            if place > 0 && is_short && self.rng.u8(..4) == 0 {
                continue;
            }
            let seen = match (seen, ended_before, &first) {
                (Some(seen), Some(count), Some(first)) => Some(after_a_reboot(seen, first, count)),
                _ => seen.clone(),
            };
            all.push((at.after(Duration::from_secs(later_s)), seen.clone()));
            if self.rng.u8(..8) == 0 {
                // The API goes away, for seconds or for an hour.
                let away_s = self.rng.u64(1..HOUR_S);
                all.push((at.after(Duration::from_secs(later_s + 1)), None));
                later_s += 1 + away_s;
                all.push((at.after(Duration::from_secs(later_s)), seen));
            }
        }
        let (end, seen) = all.last().cloned().expect("a recording has frames");
        let rest = Duration::from_secs(self.deadline_s + 2 * self.soak_s + 30);
        all.push((end.after(rest), seen));
        all
    }
}

/// The Pods that were there at first have ended before, as after a number of reboots.
fn after_a_reboot(seen: &Observation, first: &Observation, count: u64) -> Observation {
    let mut all = Observation::default();
    for object in seen.all() {
        // One that the kubelet did not know yet has no past.
        let was_there = first.get(&object.key()).is_some_and(|before| {
            uid(before) == uid(object)
                && before
                    .value()
                    .pointer("/status/containerStatuses")
                    .is_some()
        });
        if object.key().kind != "Pod" || !was_there {
            all.add(object.clone());
            continue;
        }
        let mut value = object.value().clone();
        let statuses = value.pointer_mut("/status/containerStatuses");
        for status in statuses
            .and_then(|list| list.as_array_mut())
            .into_iter()
            .flatten()
        {
            let before = status["restartCount"].as_u64().unwrap_or(0);
            status["restartCount"] = json!(before + count);
            if before == 0 && status.pointer("/lastState/terminated").is_none() {
                status["lastState"] = json!({"terminated": {"exitCode": 255, "reason": "Error"}});
            }
        }
        all.add(Object::recorded(&value));
    }
    all
}

fn uid(object: &Object) -> Value {
    object.value()["metadata"]["uid"].clone()
}

fn judged(name: &str, seed: u64) -> Vec<JudgedRollout> {
    let text = std::fs::read_to_string(folder().join(format!("{name}.jsonl"))).unwrap();
    let recording = read(&text).unwrap();
    let mut trouble = Trouble {
        rng: Rng::with_seed(seed),
        deadline_s: recording.scope.deadline.as_secs(),
        soak_s: recording.scope.soak.as_secs(),
    };
    let frames: Frames = recording.frames().map(Result::unwrap).collect();
    let steps = replay(&recording.scope, trouble.befall(&frames));
    steps.into_iter().map(|(_, step)| step).collect()
}

#[test]
fn a_thousand_healthy_rollouts_in_trouble_raise_no_alarm() {
    let healthy: Vec<_> = names(".yaml")
        .into_iter()
        .map(|name| Scenario::read(&name))
        .filter(|scenario| scenario.expected.0 == RolloutVerdict::Good)
        .collect();
    let mut wrong = Vec::new();
    for (run, scenario) in (0..RUNS).zip(healthy.iter().cycle()) {
        let steps = judged(&scenario.name, run);
        let alarm = steps
            .iter()
            .find(|step| step.verdict == RolloutVerdict::Bad);
        let last = steps.last().expect("a judgement");
        if let Some(step) = alarm {
            wrong.push(format!("{}, seed {run}: {step:?}", scenario.name));
        } else if last.verdict != RolloutVerdict::Good {
            wrong.push(format!(
                "{}, seed {run}, at the end: {last:?}",
                scenario.name
            ));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {RUNS} are wrong:\n{}",
        wrong.len(),
        wrong.iter().take(5).cloned().collect::<Vec<_>>().join("\n")
    );
}

#[test]
fn a_broken_rollout_in_trouble_keeps_its_cause() {
    let mut wrong = Vec::new();
    let mut runs = 0;
    for name in names(".yaml") {
        let scenario = Scenario::read(&name);
        if scenario.expected.0 != RolloutVerdict::Bad {
            continue;
        }
        for seed in 0..RUNS_BROKEN {
            runs += 1;
            let steps = judged(&name, seed);
            wrong.extend(scenario.differs(steps.last().expect("a judgement")));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {runs} are wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

//! Verdicts of other tools on the recorded rollouts: the published rules of `kubectl rollout
//! status`, of kstatus (by which Flux waits) and of Argo CD, on the same observations. The table
//! stands in `docs/apps.md`.

use pipeops_agent::{
    core::rollout::{Object, Observation, RolloutVerdict},
    wire::rollout::{Recording, read},
};
use serde_json::Value;

use super::{Scenario, folder, judged, names};

/// What a tool says of an object, or of all objects of a rollout.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Says {
    Failed,
    Waits,
    Works,
    /// It has no rule for the kind.
    Nothing,
}

/// A tool: its name, and what it says of one object.
struct Tool {
    name: &'static str,
    /// Judges an object that is there, of the given generation.
    judge: fn(&Value, u64) -> Says,
    /// What it says where it has a rule for none of the objects.
    without: Says,
    /// True if the first word is the last one: the command ends with it.
    is_over: bool,
}

const TOOLS: [Tool; 3] = [
    Tool {
        name: "`kubectl rollout status`",
        judge: kubectl,
        // It ends with an error: there is no status viewer.
        without: Says::Waits,
        is_over: true,
    },
    Tool {
        name: "kstatus (Flux)",
        judge: kstatus,
        without: Says::Works,
        is_over: false,
    },
    Tool {
        name: "Argo CD",
        judge: argo,
        without: Says::Works,
        is_over: false,
    },
];

fn number(object: &Value, pointer: &str) -> u64 {
    object.pointer(pointer).and_then(Value::as_u64).unwrap_or(0)
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    let text = object.pointer(pointer).and_then(Value::as_str);
    text.unwrap_or_default()
}

/// Pods that are wanted: one where nothing is said.
fn wanted(object: &Value) -> u64 {
    let wanted = object.pointer("/spec/replicas").and_then(Value::as_u64);
    wanted.unwrap_or(1)
}

/// Status and reason of a condition.
fn condition<'a>(object: &'a Value, name: &str) -> Option<(&'a str, &'a str)> {
    let conditions = object.pointer("/status/conditions")?.as_array()?;
    let found = conditions.iter().find(|one| text(one, "/type") == name)?;
    Some((text(found, "/status"), text(found, "/reason")))
}

fn is_true(object: &Value, name: &str) -> bool {
    condition(object, name).is_some_and(|(status, _)| status == "True")
}

fn is_past_its_deadline(object: &Value) -> bool {
    condition(object, "Progressing").is_some_and(|(_, reason)| reason == "ProgressDeadlineExceeded")
}

const fn works_if(is_so: bool) -> Says {
    if is_so { Says::Works } else { Says::Waits }
}

fn kubectl(object: &Value, generation: u64) -> Says {
    let status = |name: &str| number(object, &format!("/status/{name}"));
    let is_seen = status("observedGeneration") >= generation;
    match text(object, "/kind") {
        "Deployment" if is_past_its_deadline(object) => Says::Failed,
        "Deployment" => works_if(is_seen && is_rolled_out(object)),
        "StatefulSet" => works_if(is_seen && is_set_rolled_out(object)),
        "DaemonSet" => works_if(is_seen && is_on_all_nodes(object)),
        _ => Says::Nothing,
    }
}

/// The rule for Deployments that kubectl and Argo CD share.
fn is_rolled_out(object: &Value) -> bool {
    let status = |name: &str| number(object, &format!("/status/{name}"));
    let updated = status("updatedReplicas");
    updated >= wanted(object)
        && status("replicas") <= updated
        && status("availableReplicas") >= updated
}

fn is_set_rolled_out(object: &Value) -> bool {
    number(object, "/status/readyReplicas") >= wanted(object)
        && text(object, "/status/currentRevision") == text(object, "/status/updateRevision")
}

fn is_on_all_nodes(object: &Value) -> bool {
    let status = |name: &str| number(object, &format!("/status/{name}"));
    let nodes = status("desiredNumberScheduled");
    status("updatedNumberScheduled") >= nodes && status("numberAvailable") >= nodes
}

fn kstatus(object: &Value, generation: u64) -> Says {
    let status = |name: &str| number(object, &format!("/status/{name}"));
    let is_seen = object.pointer("/status/observedGeneration").is_none()
        || status("observedGeneration") >= generation;
    if !is_seen || is_true(object, "Reconciling") {
        return Says::Waits;
    }
    if is_true(object, "Stalled") {
        return Says::Failed;
    }
    let wanted = wanted(object);
    match text(object, "/kind") {
        "Deployment" if is_past_its_deadline(object) => Says::Failed,
        "Deployment" => {
            let new = condition(object, "Progressing")
                .is_some_and(|(_, reason)| reason == "NewReplicaSetAvailable");
            let counts = ["replicas", "updatedReplicas", "readyReplicas"];
            works_if(
                counts.iter().all(|name| status(name) >= wanted)
                    && status("replicas") <= wanted
                    && status("availableReplicas") >= status("updatedReplicas")
                    && is_true(object, "Available")
                    && new,
            )
        }
        "StatefulSet" => works_if(
            status("replicas") == wanted
                && status("currentReplicas") >= wanted
                && is_set_rolled_out(object),
        ),
        "DaemonSet" => {
            let nodes = status("desiredNumberScheduled");
            works_if(
                status("observedGeneration") > 0
                    && status("currentNumberScheduled") >= nodes
                    && status("numberReady") >= nodes
                    && is_on_all_nodes(object),
            )
        }
        // Flux reads Jobs by a rule of its own: complete or failed.
        "Job" if is_true(object, "Failed") => Says::Failed,
        "Job" => works_if(is_true(object, "Complete")),
        "PersistentVolumeClaim" => works_if(text(object, "/status/phase") == "Bound"),
        _ => works_if(condition(object, "Ready").is_none_or(|(status, _)| status == "True")),
    }
}

fn argo(object: &Value, generation: u64) -> Says {
    let status = |name: &str| number(object, &format!("/status/{name}"));
    let is_seen = status("observedGeneration") >= generation;
    match text(object, "/kind") {
        "Deployment" if is_seen && is_past_its_deadline(object) => Says::Failed,
        "Deployment" => works_if(is_seen && is_rolled_out(object)),
        "StatefulSet" => works_if(is_seen && is_set_rolled_out(object)),
        "DaemonSet" => works_if(is_seen && is_on_all_nodes(object)),
        "Job" if is_true(object, "Failed") => Says::Failed,
        "Job" => works_if(is_true(object, "Complete")),
        "PersistentVolumeClaim" if text(object, "/status/phase") == "Lost" => Says::Failed,
        "PersistentVolumeClaim" => works_if(text(object, "/status/phase") == "Bound"),
        // Of an Ingress it waits for the address, which no load balancer gave it in the recordings.
        _ => Says::Nothing,
    }
}

/// What a tool says of all objects of a rollout.
fn of_all(tool: &Tool, recording: &Recording<'_>, seen: &Observation) -> Says {
    let targets = recording.scope.targets.iter();
    let all: Vec<_> = targets
        .map(|(key, generation)| {
            let object = seen.get(key).map(Object::value);
            object.map_or(Says::Waits, |object| (tool.judge)(object, *generation))
        })
        .collect();
    [Says::Failed, Says::Waits, Says::Works]
        .into_iter()
        .find(|says| all.contains(says))
        .unwrap_or(tool.without)
}

/// What a tool says in the course of a recording, with the second.
fn course(tool: &Tool, recording: &Recording<'_>) -> Vec<(u64, Says)> {
    let mut course: Vec<(u64, Says)> = Vec::new();
    for (at, seen) in recording.frames().map(Result::unwrap) {
        let Some(seen) = seen else { continue };
        let says = of_all(tool, recording, &seen);
        if course.last().is_none_or(|(_, last)| *last != says) {
            course.push((at.elapsed_since_boot().as_secs(), says));
        }
        if tool.is_over && says != Says::Waits {
            break;
        }
    }
    course
}

/// A line of the table.
#[derive(Default)]
struct Row {
    name: &'static str,
    /// Broken rollouts that are called broken at the end.
    bad: usize,
    /// Seconds until then.
    bad_after_s: Vec<u64>,
    /// Broken rollouts that are called a success at some moment.
    praised: usize,
    /// Working rollouts that are called a success at the end.
    good: usize,
    /// Rollouts that work, or wait for something outside, and are called broken at some moment.
    blamed: usize,
}

impl Row {
    fn note(&mut self, expected: RolloutVerdict, course: &[(u64, Says)]) {
        let (at, end) = *course.last().expect("a recording has observations");
        let ever = |says: Says| course.iter().any(|(_, said)| *said == says);
        if expected == RolloutVerdict::Bad {
            if end == Says::Failed {
                self.bad += 1;
                self.bad_after_s.push(at);
            }
            self.praised += usize::from(ever(Says::Works));
        } else {
            let is_good = expected == RolloutVerdict::Good && end == Says::Works;
            self.good += usize::from(is_good);
            self.blamed += usize::from(ever(Says::Failed));
        }
    }

    fn line(&mut self) -> String {
        self.bad_after_s.sort_unstable();
        let seconds = match self.bad_after_s.as_slice() {
            [] => "–".to_owned(),
            [all @ .., longest] => {
                let half = all.get(all.len() / 2).unwrap_or(longest);
                format!("{half} s, {longest} s")
            }
        };
        let Self {
            name,
            bad,
            praised,
            good,
            blamed,
            ..
        } = self;
        format!("| {name} | {bad} | {seconds} | {praised} | {good} | {blamed} |\n")
    }
}

fn ours(name: &str) -> Vec<(u64, Says)> {
    let recording = std::fs::read_to_string(folder().join(format!("{name}.jsonl"))).unwrap();
    let says = |verdict| {
        if verdict == RolloutVerdict::Bad {
            Says::Failed
        } else if verdict == RolloutVerdict::Good {
            Says::Works
        } else {
            Says::Waits
        }
    };
    let mut course: Vec<_> = judged(&recording)
        .into_iter()
        .map(|(at, step)| (at, says(step.verdict)))
        .collect();
    course.dedup_by_key(|(_, says)| *says);
    course
}

#[test]
fn what_other_tools_say_of_the_same_rollouts_stands_in_the_documentation() {
    let mut own = Row {
        name: "`pipeops-agent apps`",
        ..Row::default()
    };
    let mut others = TOOLS.each_ref().map(|tool| Row {
        name: tool.name,
        ..Row::default()
    });
    let mut all = Vec::new();
    for name in names(".yaml") {
        let (expected, _) = Scenario::read(&name).expected;
        all.push(expected);
        let text = std::fs::read_to_string(folder().join(format!("{name}.jsonl"))).unwrap();
        let recording = read(&text).unwrap();
        own.note(expected, &ours(&name));
        for (row, tool) in others.iter_mut().zip(&TOOLS) {
            row.note(expected, &course(tool, &recording));
        }
    }
    let count = |verdict| all.iter().filter(|one| **one == verdict).count();
    let (broken, working) = (count(RolloutVerdict::Bad), count(RolloutVerdict::Good));
    assert_eq!(
        (own.bad, own.praised, own.good, own.blamed),
        (broken, 0, working, 0)
    );
    let mut table = format!(
        "| | broken: said so (of {broken}) | within (half of these, all) | broken: called a success on the way | \
         working: said so (of {working}) | working or held up from outside: called broken (of {}) |\n|---|---|---|---|---|---|\n",
        all.len() - broken
    );
    table += &own.line();
    table.extend(others.iter_mut().map(Row::line));
    let page = std::fs::read_to_string(folder().join("../../../docs/apps.md")).unwrap();
    assert!(
        page.contains(&table),
        "docs/apps.md needs this table:\n{table}"
    );
}

//! The recorder: every scenario on the real cluster, a few at a time.

use std::{collections::BTreeMap, path::Path, time::Duration};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use pipeops_agent::{
    core::apps::{Kind, kind_of},
    core::rollout::{Died, Key, Object, Observation, POLL_INTERVAL, Scope, died, last_lines},
    kube::{Client, Identity},
    tasks::apps::observe::{log_query, observe},
    wire::rollout::Recorder,
};
use serde_json::Value;
use smol::lock::Mutex;

use super::{Scenario, folder, judged, names};
use crate::{
    agent::{clock, put},
    cluster::{admin, alone, calm, define, kubectl, leave, set_status, variable},
    kube::{Executor, real::client_of},
};

/// Scenarios at a time: two cores can start the containers of so many.
const AT_A_TIME: usize = 8;

/// Scenarios to record, of those that need the node for themselves or of the others: all, or those
/// that the variable names; without it nothing is recorded.
fn wanted(is_alone: bool) -> Vec<Scenario> {
    let Some(wanted) = std::env::var_os("PIPEOPS_CORPUS") else {
        return Vec::new();
    };
    let wanted = wanted.into_string().unwrap();
    let is_wanted = |name: &String| wanted == "all" || wanted.split(',').any(|part| part == name);
    let scenarios = names(".yaml")
        .into_iter()
        .filter(is_wanted)
        .map(|name| Scenario::read(&name));
    scenarios
        .filter(|scenario| scenario.is_alone == is_alone)
        .collect()
}

#[test]
fn the_scenarios_are_recorded_and_judged() {
    let left = wanted(false);
    if left.is_empty() {
        return;
    }
    let Some(_guard) = calm() else { return };
    prepare();
    let count = left.len();
    let left = Mutex::new(left);
    let wrong = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                loop {
                    let next = left.lock_blocking().pop();
                    let Some(scenario) = next else { break };
                    let differs = recorded(&scenario);
                    wrong.lock_blocking().extend(differs);
                }
            });
        }
    });
    none_is_wrong(&wrong.lock_blocking(), count);
}

#[test]
fn the_scenarios_that_need_the_node_for_themselves_are_recorded_and_judged() {
    let scenarios = wanted(true);
    if scenarios.is_empty() {
        return;
    }
    let Some(_guard) = alone() else { return };
    prepare();
    let wrong: Vec<_> = scenarios.iter().flat_map(recorded).collect();
    none_is_wrong(&wrong, scenarios.len());
}

/// Starts what the scenarios share.
fn prepare() {
    const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/corpus");
    kubectl(&["apply", "-f", &format!("{FOLDER}/registry.yaml")]);
    define(
        Path::new(&format!("{FOLDER}/widget.yaml")),
        &["widgets.corpus.example.com", "helmcharts.helm.cattle.io"],
    );
    kubectl(&[
        "wait",
        "--for=condition=Ready",
        "pod/registry",
        "pod/images",
        "-n",
        "fixtures",
        "--timeout=60s",
    ]);
}

/// Records a scenario. Returns why the judgement is not the expected one, where it is not.
fn recorded(scenario: &Scenario) -> Vec<String> {
    let name = &scenario.name;
    let text = record(scenario);
    let steps = judged(&text);
    put(&folder().join(format!("{name}.jsonl")), &text);
    let (at, last) = steps.last().unwrap();
    println!(
        "{name}: {} after {at} s: {}",
        last.verdict.as_str(),
        last.sentence
    );
    scenario.differs(last).into_iter().collect()
}

fn none_is_wrong(wrong: &[String], count: usize) {
    assert!(
        wrong.is_empty(),
        "{} of {count} are wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

fn record(scenario: &Scenario) -> String {
    let namespace = format!("corpus-{}", scenario.name);
    kubectl(&["create", "namespace", &namespace]);
    if let Some(label) = &scenario.label {
        kubectl(&["label", "namespace", &namespace, label]);
    }
    let files = tempfile::tempdir().unwrap();
    let file = files.path().join("manifest.yaml");
    let path = file.to_str().unwrap();
    if let Some(before) = &scenario.before {
        put(&file, before);
        kubectl(&["-n", &namespace, "apply", "-f", path]);
        // The controller of quotas has to count first.
        std::thread::park_timeout(Duration::from_secs(3));
    }
    let (last, earlier) = scenario.versions.split_last().unwrap();
    for version in earlier {
        put(&file, &here(version));
        kubectl(&["-n", &namespace, "apply", "-f", path]);
        kubectl(&[
            "-n",
            &namespace,
            "rollout",
            "status",
            "--timeout=90s",
            "-f",
            path,
        ]);
    }
    if let Some((change, _)) = &scenario.node {
        in_words(change);
    }
    put(&file, &here(last));
    kubectl(&["-n", &namespace, "apply", "-f", path]);
    let applied = kubectl(&["-n", &namespace, "get", "-f", path, "-o", "json"]);
    let text = watch(scenario, &namespace, targets(&applied));
    if let Some((_, restore)) = &scenario.node {
        in_words(restore);
    }
    leave(&namespace);
    text
}

/// A manifest with the address of the node of this cluster.
fn here(manifest: &str) -> String {
    manifest.replace("NODE_ADDRESS", &variable("NODE_ADDRESS"))
}

/// A command of kubectl.
fn in_words(command: &str) {
    kubectl(&command.split(' ').collect::<Vec<_>>());
}

/// Stops the kubelet, or lets it go on.
fn signal_kubelet(signal: Signal) {
    let pid = variable("KUBELET_PID").parse().unwrap();
    kill(Pid::from_raw(pid), signal).unwrap();
}

/// Changes of the cluster in the course of a scenario.
struct Course<'a> {
    scenario: &'a Scenario,
    /// Second up to which it has happened.
    until: u64,
}

impl Course<'_> {
    /// Does what is due.
    fn go_on(&mut self, namespace: &str, second: u64) {
        let due = self.until..=second;
        let Scenario {
            says, does, stops, ..
        } = self.scenario;
        for (_, object, status) in says.iter().filter(|(at, ..)| due.contains(at)) {
            set_status(namespace, object, status);
        }
        for (_, command) in does.iter().filter(|(at, _)| due.contains(at)) {
            in_words(command);
        }
        if let Some((from, until)) = stops {
            if due.contains(from) {
                signal_kubelet(Signal::SIGSTOP);
            }
            if due.contains(until) {
                signal_kubelet(Signal::SIGCONT);
            }
        }
        self.until = second + 1;
    }
}

fn targets(applied: &str) -> (BTreeMap<Key, u64>, Vec<Kind>) {
    let applied: Value = serde_json::from_str(applied).unwrap();
    let objects = match applied["items"].as_array() {
        Some(items) => items.clone(),
        None => vec![applied],
    };
    let target = |object: Value| {
        let text = |pointer: &str| {
            object
                .pointer(pointer)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let (api_version, name) = (text("/apiVersion"), text("/kind"));
        let custom = || {
            let (group, _) = api_version.split_once('/')?;
            let plural = format!("{}s.{group}", name.to_lowercase());
            Kind::custom(&api_version, &plural)
        };
        let kind = kind_of(&api_version, &name).or_else(custom).unwrap();
        let key = Key {
            kind: kind.name.to_string(),
            namespace: text("/metadata/namespace"),
            name: text("/metadata/name"),
        };
        let generation = object["metadata"]["generation"].as_u64().unwrap_or(0);
        ((key, generation), kind)
    };
    objects.into_iter().map(target).unzip()
}

fn watch(
    scenario: &Scenario,
    namespace: &str,
    (targets, kinds): (BTreeMap<Key, u64>, Vec<Kind>),
) -> String {
    let scope = Scope {
        targets,
        deadline: Duration::from_secs(scenario.deadline_s),
        soak: Duration::from_secs(scenario.soak_s),
    };
    let executor = Executor::default();
    let client = client_of(&executor, &admin());
    let mut recorder = Recorder::default();
    let mut text = Recorder::scope(&scope) + "\n";
    let mut heard = BTreeMap::new();
    let mut course = Course { scenario, until: 0 };
    let begun = clock();
    smol::block_on(executor.run(async {
        loop {
            let at = clock().duration_since(begun);
            course.go_on(namespace, at.as_secs());
            let seen = observe(&client, &Identity::Agent, namespace, &kinds).await;
            let mut seen: Option<Observation> = seen.ok();
            if let Some(seen) = &mut seen {
                hear(&client, (&scope, &mut heard), seen).await;
            }
            if at.as_secs() >= scenario.run_s {
                text.push_str(&(Recorder::end(at) + "\n"));
                break;
            }
            text.extend(recorder.line(at, seen.as_ref()).map(|line| line + "\n"));
            smol::Timer::after(POLL_INTERVAL).await;
        }
    }));
    text
}

/// Adds the last lines of containers that died, asked for once, as the agent does.
async fn hear(
    client: &Client,
    (scope, heard): (&Scope, &mut BTreeMap<Died, Object>),
    seen: &mut Observation,
) {
    for died in died(scope, seen) {
        if !heard.contains_key(&died) {
            let Died { namespace, pod, .. } = &died;
            let query = log_query(&died);
            let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}/log?{query}");
            let within = Duration::from_secs(5);
            let Ok(bytes) = client.read_as(&Identity::Agent, &path, within).await else {
                continue;
            };
            let lines = died.wrote(&last_lines(&bytes, true, &[]));
            heard.insert(died.clone(), lines);
        }
        seen.add(heard[&died].clone());
    }
}

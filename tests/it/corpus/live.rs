//! The recorder: every scenario on the real cluster, a few at a time.

use std::{collections::BTreeMap, path::Path, time::Duration};

use pipeops_agent::{
    core::apps::{Kind, kind_of},
    core::rollout::{Died, Key, LOOK_EVERY, Object, Observation, Scope, died, last_lines},
    kube::{Client, Identity},
    tasks::apps::observe::{log_query, observe},
    wire::rollout::Recorder,
};
use serde_json::Value;
use smol::lock::Mutex;

use super::{Scenario, folder, judged, names};
use crate::{
    agent::{clock, put},
    cluster::{admin, calm, define, kubectl, leave},
    kube::{Executor, real::client_of},
};

/// Scenarios at a time: two cores can start the containers of so many.
const AT_A_TIME: usize = 8;

/// Records all scenarios, or those that the variable names; without it nothing is recorded.
#[test]
fn the_scenarios_are_recorded_and_judged() {
    let Some(wanted) = std::env::var_os("PIPEOPS_CORPUS") else {
        return;
    };
    let Some(_guard) = calm() else { return };
    let wanted = wanted.into_string().unwrap();
    let is_wanted = |name: &String| wanted == "all" || wanted.split(',').any(|part| part == name);
    kubectl(&[
        "apply",
        "-f",
        concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/corpus/registry.yaml"),
    ]);
    let definitions = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/corpus/widget.yaml");
    define(
        Path::new(definitions),
        &["widgets.corpus.example.com", "helmcharts.helm.cattle.io"],
    );
    kubectl(&[
        "wait",
        "--for=condition=Ready",
        "pod/registry",
        "-n",
        "fixtures",
        "--timeout=60s",
    ]);
    let left: Vec<_> = names(".yaml").into_iter().filter(is_wanted).collect();
    let count = left.len();
    let left = Mutex::new(left);
    let wrong = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                loop {
                    let next = left.lock_blocking().pop();
                    let Some(name) = next else { break };
                    let scenario = Scenario::read(&name);
                    let text = record(&scenario);
                    let steps = judged(&text);
                    put(&folder().join(format!("{name}.jsonl")), &text);
                    let (at, last) = steps.last().unwrap();
                    println!(
                        "{name}: {} after {at} s: {}",
                        last.verdict.as_str(),
                        last.sentence
                    );
                    wrong.lock_blocking().extend(scenario.differs(last));
                }
            });
        }
    });
    let wrong = wrong.lock_blocking();
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
        put(&file, version);
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
    put(&file, last);
    kubectl(&["-n", &namespace, "apply", "-f", path]);
    let applied = kubectl(&["-n", &namespace, "get", "-f", path, "-o", "json"]);
    let text = watch(scenario, &namespace, targets(&applied));
    leave(&namespace);
    text
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
    let mut says = scenario.says.iter().peekable();
    let begun = clock();
    smol::block_on(executor.run(async {
        loop {
            let at = clock().duration_since(begun);
            if let Some((_, object, status)) = says.next_if(|(second, ..)| at.as_secs() >= *second)
            {
                let patch = [
                    "patch",
                    object,
                    "--subresource=status",
                    "--type=merge",
                    "-p",
                    status,
                ];
                kubectl(&[&["-n", namespace], patch.as_slice()].concat());
            }
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
            smol::Timer::after(LOOK_EVERY).await;
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

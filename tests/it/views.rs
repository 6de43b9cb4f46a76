//! Views of the running agent: of the machine, of a real cluster, of what happened, and
//! which side is broken.

use std::time::Duration;

use plane::{Cut, Options, Plane, Record, Sessions};
use serde_json::Value;

use crate::{
    agent::{Agent, SOON, until},
    cluster::{admin, calm, kubectl},
};

/// A rollout of the fixtures, or an image that is there already.
const ROLLOUT: Duration = Duration::from_secs(60);

fn names(list: &Value) -> Vec<&str> {
    let items = list.as_array().unwrap().iter();
    items.filter_map(|item| item["name"].as_str()).collect()
}

fn agent_of_the_cluster(plane: &Plane) -> Agent {
    let kubeconfig = admin().display().to_string();
    let mut agent = Agent::new(plane)
        .with("KUBECONFIG", kubeconfig)
        .with("PIPEOPS_TELEMETRY_INTERVAL", "5s");
    agent.start();
    agent.until("the cluster is watched", ROLLOUT, |status| {
        (status["cluster"]["state"] == "ready").then_some(())
    });
    agent
}

/// Runs a script as a Pod, in place of what an earlier run of the test left of it.
fn run_anew(name: &str, restart: &str, script: &str) {
    kubectl(&[
        "-n",
        "fixtures",
        "delete",
        "pod",
        name,
        "--ignore-not-found",
        "--wait=true",
    ]);
    kubectl(&[
        "-n",
        "fixtures",
        "run",
        name,
        "--image=pipeops-test.invalid/testpod:1",
        "--image-pull-policy=Never",
        restart,
        "--grace-period=1",
        "--command",
        "--",
        "sh",
        "-c",
        script,
    ]);
}

#[test]
fn nodes_namespaces_workloads_and_pods_of_a_real_cluster_are_shown() {
    let Some(_guard) = calm() else { return };
    let plane = Plane::start(Options::default()).unwrap();
    let agent = agent_of_the_cluster(&plane);
    let report = until("the cluster is shown", ROLLOUT, || {
        let report = agent.view("/api/v1/cluster");
        (report["state"] == "ready" && names(&report["namespaces"]).contains(&"fixtures"))
            .then_some(report)
    });
    let node = &report["nodes"][0];
    assert_eq!(node["ready"], true, "{node}");
    assert!(
        node["cpu_cores"].as_f64().unwrap() >= 1.0 && node["age_s"].is_u64(),
        "{node}"
    );
    assert!(
        names(&report["namespaces"]).contains(&"fixtures"),
        "{report}"
    );

    let workloads = agent.view("/api/v1/cluster/workloads?namespace=fixtures");
    let echo = workloads["workloads"].as_array().unwrap().iter();
    let echo = echo.clone().find(|one| one["name"] == "echo").unwrap();
    assert_eq!(
        (&echo["kind"], &echo["wanted"]),
        (&Value::from("Deployment"), &Value::from(2))
    );

    let pods = agent.view("/api/v1/cluster/pods?namespace=fixtures&contains=echo-");
    let shown = names(&pods["pods"]);
    assert!(
        shown.len() >= 2 && shown.iter().all(|name| name.starts_with("echo-")),
        "{shown:?}"
    );
    let everywhere = agent.view("/api/v1/cluster/pods");
    assert!(
        names(&everywhere["pods"]).contains(&"logger"),
        "{everywhere}"
    );

    for query in ["namespace=..", "namespace=a/b", "namespace=fixtures%2f.."] {
        let (code, body) = agent.get(&format!("/api/v1/cluster/pods?{query}")).unwrap();
        assert_eq!(code, 400, "{query}: {body}");
    }
}

#[test]
fn a_log_is_shown_tame_and_a_container_that_is_not_there_is_said() {
    let Some(_guard) = calm() else { return };
    let plane = Plane::start(Options::default()).unwrap();
    let agent = agent_of_the_cluster(&plane);
    let name = "views-hostile";
    // A line with commands for a terminal, one of a megabyte, one that is no text, and script.
    let script = r"printf '\033[2J\033[31mred\033[0m<script>alert(1)</script>\n'; head -c 1000000 /dev/zero | tr '\0' x; printf '\n\377\376end\n'; sleep 600";
    run_anew(name, "--restart=Never", script);
    let path = format!("/api/v1/cluster/logs?namespace=fixtures&pod={name}&tail=100");
    let text = until("the log is there", ROLLOUT, || {
        let (code, text) = agent.get(&path)?;
        (code == 200 && text.contains("end")).then_some(text)
    });
    kubectl(&["-n", "fixtures", "delete", "pod", name, "--wait=false"]);
    let lines: Vec<_> = text.lines().collect();
    assert!(
        lines[0].ends_with("red<script>alert(1)</script>"),
        "{:?}",
        lines[0]
    );
    assert!(
        lines.iter().all(|line| line.len() < 5000),
        "a line is not bounded"
    );
    assert!(
        !text.contains('\u{1b}') && text.contains("\u{fffd}\u{fffd}end"),
        "{:?}",
        lines.last()
    );
    let (code, body) = agent
        .get("/api/v1/cluster/logs?namespace=fixtures&pod=nobody")
        .unwrap();
    assert_eq!(code, 404, "{body}");
}

#[test]
fn a_container_without_a_log_is_told_by_what_happened_to_its_pod() {
    let Some(_guard) = calm() else { return };
    let plane = Plane::start(Options::default()).unwrap();
    let agent = agent_of_the_cluster(&plane);
    let pod = |name: &str, image: &str, containers: &[&str]| {
        let containers: Vec<Value> = containers
            .iter()
            .map(|name| {
                serde_json::json!({
                    "name": name, "image": image, "imagePullPolicy": "Never", "command": ["sleep", "600"],
                })
            })
            .collect();
        serde_json::json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": "fixtures" },
            "spec": { "terminationGracePeriodSeconds": 1, "containers": containers },
        })
    };
    let pods = [
        pod("views-no-image", "pipeops-test.invalid/missing:1", &["app"]),
        pod(
            "views-two",
            "pipeops-test.invalid/testpod:1",
            &["web", "sidecar"],
        ),
    ];
    let file = agent.folder().join("pods.json");
    let list = serde_json::json!({ "apiVersion": "v1", "kind": "List", "items": pods });
    crate::agent::put(&file, &list.to_string());
    let names = ["views-no-image", "views-two"];
    let delete = |wait: &str| {
        let mut words = vec![
            "-n",
            "fixtures",
            "delete",
            "pod",
            "--ignore-not-found",
            wait,
        ];
        words.extend(names);
        kubectl(&words);
    };
    delete("--wait=true");
    kubectl(&["apply", "-f", file.to_str().unwrap()]);
    let told = |name: &str, word: &str| {
        until("the refusal has its reason", ROLLOUT, || {
            let pod = format!("fixtures/{name}");
            let (code, told) = agent.cli(&["logs", "--pod", &pod]);
            (code == 2 && told.contains(word)).then_some(told)
        })
    };
    // Before that it is only being created.
    let missing = told("views-no-image", "pipeops-test.invalid/missing:1");
    assert!(
        missing.contains("the container has not started, so there is no log: ")
            && missing.contains("; the newest event of its Pod: ")
            && missing.contains("fix: kubectl -n fixtures describe pod views-no-image"),
        "{missing}"
    );
    assert!(!missing.contains("container=NAME"), "{missing}");
    let several = told("views-two", "several containers");
    assert!(
        several.contains("web, sidecar") && several.contains("fix: --container web"),
        "{several}"
    );
    delete("--wait=false");
}

#[test]
fn a_lost_session_is_an_outage_with_an_end_and_the_time_line_has_it() {
    let plane = Plane::start(Options::default()).unwrap();
    let agent = Agent::start_for(&plane);
    agent.until_linked();
    plane.cut(Sessions::All, Cut::Reset);
    agent.until("the session was lost", SOON, |status| {
        (status["link"]["outages"] == 1).then_some(())
    });
    agent.until_linked();
    // Events are on disk with the next flush, which is a minute away at most.
    let link = until("the outage is kept", Duration::from_secs(90), || {
        let link = agent.view("/api/v1/link");
        link["outages"][0]["to"].is_string().then_some(link)
    });
    assert_eq!(link["outages"].as_array().unwrap().len(), 1, "{link}");
    let events = agent.view("/api/v1/events?source=agent&limit=500");
    let reasons: Vec<_> = events["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| &event["reason"])
        .collect();
    assert!(
        reasons.iter().any(|reason| *reason == "link.lost"),
        "{reasons:?}"
    );
    let none = agent.view("/api/v1/events?source=cluster");
    assert_eq!(none["events"].as_array().unwrap().len(), 0);
    let (code, _) = agent.get("/api/v1/events?severity=loud").unwrap();
    assert_eq!(code, 400);
}

#[test]
fn what_was_measured_is_a_chart_with_common_times() {
    let plane = Plane::start(Options::default()).unwrap();
    let mut agent = Agent::new(&plane).with("PIPEOPS_TELEMETRY_INTERVAL", "5s");
    agent.start();
    agent.until_linked();
    let key = "host_load1";
    let values = until("a minute was flushed", Duration::from_secs(100), || {
        let values = agent.view(&format!(
            "/api/v1/series/values?key={key}&key=nothing&points=100"
        ));
        (!values["times"].as_array()?.is_empty()).then_some(values)
    });
    assert_eq!(values["series"].as_array().unwrap().len(), 1, "{values}");
    let column = &values["series"][0];
    assert_eq!(
        column["mean"].as_array().unwrap().len(),
        values["times"].as_array().unwrap().len()
    );
    let list = agent.view("/api/v1/series");
    let keys: Vec<_> = list["series"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["key"])
        .collect();
    assert!(keys.iter().any(|one| *one == key), "{keys:?}");
    for query in [
        "",
        "key=a&from=5&to=4",
        "key=a&points=1",
        "key=a&from=x",
        &"key=a&".repeat(17),
    ] {
        let (code, body) = agent
            .get(&format!("/api/v1/series/values?{query}"))
            .unwrap();
        assert_eq!(code, 400, "{query}: {body}");
    }
}

#[test]
fn the_ladder_says_which_side_is_broken() {
    let plane = Plane::start(Options::default()).unwrap();
    let mut agent = Agent::new(&plane);
    agent.start();
    agent.until_linked();
    let outcome = |diagnosis: &Value, id: &str| {
        let steps = diagnosis["steps"].as_array().unwrap().clone();
        let step = steps.into_iter().find(|step| step["id"] == id).unwrap();
        step["outcome"].as_str().unwrap().to_owned()
    };
    let works = agent.view("/api/v1/diagnosis");
    for id in ["dns", "tcp", "tls", "http"] {
        assert_eq!(outcome(&works, id), "ok", "{works}");
    }
    drop(plane);
    // The answer before is given again for a while.
    let broken = until("it is the control plane", Duration::from_secs(30), || {
        let diagnosis = agent.view("/api/v1/diagnosis");
        (diagnosis["side"] == "control plane").then_some(diagnosis)
    });
    assert_eq!(outcome(&broken, "tcp"), "failed", "{broken}");
    assert_eq!(outcome(&broken, "http"), "skipped", "{broken}");
}

#[test]
fn every_setting_is_shown_with_its_origin_and_without_secrets() {
    let plane = Plane::start(Options::default()).unwrap();
    let agent = Agent::start_for(&plane);
    agent.until_linked();
    let report = agent.view("/api/v1/settings");
    let settings = report["settings"].as_array().unwrap();
    let named = |key: &str| settings.iter().find(|one| one["key"] == key).unwrap();
    assert_eq!(named("pipeops.cluster_name")["value"], "test");
    assert!(
        named("pipeops.cluster_name")["origin"]
            .as_str()
            .unwrap()
            .contains("PIPEOPS_CLUSTER_NAME")
    );
    assert_eq!(named("pipeops.region")["is_default"], true);
    assert!(!report.to_string().contains(plane.token()));
    let lines = agent.view("/api/v1/logs?tail=5");
    let lines = lines["lines"].as_array().unwrap();
    assert!(
        lines.len() == 5 && lines.iter().all(|line| line["text"].is_string()),
        "{lines:?}"
    );
    let cards = agent.view("/api/v1/host");
    let cards: Vec<_> = cards["figures"]
        .as_array()
        .unwrap()
        .iter()
        .map(|card| card["id"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(
        cards,
        ["link", "k3s", "node", "disk", "clock", "power", "backlog"]
    );
}

#[test]
fn what_the_doctor_found_is_told_and_without_a_root_helper_nothing_is_repaired() {
    let plane = Plane::start(Options::default()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("keeper.sock").display().to_string();
    let mut agent = Agent::new(&plane).with("PIPEOPS_KEEPER_SOCKET", socket);
    agent.start();
    agent.until_linked();
    let doctor = agent.view("/api/v1/problems");
    let checks = doctor["checks"].as_array().unwrap();
    assert!(!checks.is_empty());
    for check in checks {
        let outcome = check["outcome"].as_str().unwrap();
        assert!(
            ["ok", "problem", "unknown", "skipped"].contains(&outcome),
            "{check}"
        );
    }
    let host = agent.view("/api/v1/host");
    assert_eq!(host["environment"], doctor["environment"]);
    let (code, body) = agent.post("/api/v1/problems/limits.inotify/fix", "{}");
    assert_eq!(code, 503, "{body}");
    assert!(
        body.contains("the root helper is not running") && body.contains("sudo"),
        "{body}"
    );
    let changes = agent.view("/api/v1/changes");
    let asked = &changes["changes"][0];
    assert_eq!(
        (&asked["what"], &asked["outcome"]),
        (&Value::from("fix limits.inotify"), &Value::from("failed"))
    );
}

#[test]
fn what_a_container_wrote_before_it_failed_reaches_the_control_plane() {
    let Some(_guard) = calm() else { return };
    let plane = Plane::start(Options::default()).unwrap();
    let _agent = agent_of_the_cluster(&plane);
    let name = "views-failing";
    run_anew(
        name,
        "--restart=Always",
        "echo no disk to be found; sleep 1; exit 3",
    );
    // Its second start, the question, the flush of that minute.
    let line = until("its line has come", Duration::from_secs(150), || {
        let records = plane.records();
        let logs = records
            .sources
            .iter()
            .filter(|(source, _)| source.stream == "logs");
        let mut lines = logs.flat_map(|(_, received)| received.records.values());
        lines.find_map(|record| match record {
            Record::Row { body, .. } => {
                let is_of_it = body["subject"].as_str()?.contains(name);
                is_of_it.then(|| body.clone())
            }
            Record::Minute(_) | Record::Gap { .. } => None,
        })
    });
    kubectl(&["-n", "fixtures", "delete", "pod", name, "--wait=false"]);
    assert_eq!(line["subject"], "fixtures/views-failing/views-failing");
    assert_eq!(line["text"], "no disk to be found");
}

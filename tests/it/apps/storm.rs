//! A storm: ten thousand Pods of others that wear the marks of an app, while that app is deployed,
//! changed, fought over and removed. Not a byte of theirs changes. And what an app costs the API
//! server while nothing happens.

use super::*;
use crate::descriptors::used;

/// Objects of others.
const OTHERS: usize = 10_000;
/// Creations at once.
const AT_ONCE: usize = 4;
/// Changes of the app.
const CHANGES: usize = 10;
/// Bytes that a watched Pod may cost the agent.
const POD_BYTES_MAX: usize = 512;
/// Changes of Pods of others that the agent has to take, and the processor time of one at most.
const UPDATES: usize = 3_000;
const UPDATE_US_MAX: usize = 4_000;
/// Calls an hour at most of an agent with an app of two watched kinds, and those for the app, in
/// somewhat more than one turn of the watches.
const CALLS_MAX: u64 = 2_800;
const APP_CALLS_MAX: u64 = 120;
const TURN: Duration = Duration::from_secs(600);
/// For ten thousand creations, and for the agent to hear of them.
const LONG: Duration = Duration::from_secs(1_200);

/// Pods that never leave their gate, and so cost a node nothing.
fn others(of: std::ops::Range<usize>) -> String {
    let items: Vec<_> = of
        .map(|number| {
            json!({
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": format!("theirs-{number}"),
                    "labels": {
                        "theirs": "yes",
                        "part": format!("{}", number * AT_ONCE / UPDATES),
                        "app.kubernetes.io/name": "web",
                        "app.kubernetes.io/managed-by": "pipeops-agent",
                    },
                    "annotations": {"pipeops.io/created-by": "0123456789abcdef0123456789abcdef"},
                },
                "spec": {
                    "schedulingGates": [{"name": "example.com/never"}],
                    "terminationGracePeriodSeconds": 0,
                    "containers": [{"name": "theirs", "image": IMAGE}],
                },
            })
        })
        .collect();
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

fn create_others(bench: &Bench) {
    let each = OTHERS / AT_ONCE;
    std::thread::scope(|scope| {
        for part in 0..AT_ONCE {
            let file = bench.agent.folder().join(format!("theirs-{part}.json"));
            put(&file, &others(part * each..(part + 1) * each));
            let namespace = bench.namespace.as_str();
            scope.spawn(move || {
                let file = file.display().to_string();
                kubectl(&["-n", namespace, "create", "-f", &file]);
            });
        }
    });
}

/// Changes Pods of others as fast as some clients can, and says what that costs the agent.
fn storm(bench: &Bench) {
    let (began, before) = (clock(), used(bench.agent.pid()));
    std::thread::scope(|scope| {
        for part in 0..AT_ONCE {
            let namespace = bench.namespace.as_str();
            scope.spawn(move || {
                let part = format!("--selector=part={part}");
                kubectl(&["-n", namespace, "label", "pods", &part, "storm=yes"]);
            });
        }
    });
    let took_ms = usize::try_from((clock() - began).as_millis()).unwrap();
    // What came last is taken within moments.
    pass(Duration::from_secs(2));
    let spent_ms = usize::try_from(used(bench.agent.pid()) - before).unwrap() * 10;
    let each_us = spent_ms * 1_000 / UPDATES;
    println!(
        "{UPDATES} changes of Pods, {} a second: {each_us} us of processor time each, {} thousandths of a core",
        UPDATES * 1_000 / took_ms,
        spent_ms * 1_000 / took_ms,
    );
    assert!(each_us <= UPDATE_US_MAX, "{each_us} us");
}

/// Lets time pass in which nothing is to happen.
fn pass(time: Duration) {
    let began = clock();
    until_every(Duration::from_secs(1), "time passes", time * 2, || {
        (clock() - began >= time).then_some(())
    });
}

/// Everything of theirs, with the fields' owners and the versions.
fn theirs(bench: &Bench) -> String {
    kubectl(&[
        "-n",
        &bench.namespace,
        "get",
        "pods",
        "--selector=theirs=yes",
        "--show-managed-fields",
        "-o",
        "json",
    ])
}

/// Anonymous memory of the agent in bytes: what it allocated.
fn anonymous(bench: &Bench) -> usize {
    let file = format!("/proc/{}/smaps_rollup", bench.agent.pid());
    let text = std::fs::read_to_string(file).unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Anonymous:"));
    let number = line.unwrap().trim().trim_end_matches(" kB");
    number.parse::<usize>().unwrap() * 1024
}

/// Ten minutes with the creations, so this runs with the other long ones: make torture.
#[test]
fn ten_thousand_objects_of_others_stay_as_they_are() {
    if std::env::var_os("PIPEOPS_TORTURE").is_none() {
        return;
    }
    let Some(bench) = Bench::new() else { return };
    bench.bind();
    let pods = |status: &Value| status["cluster"]["pods"].as_u64();
    bench.agent.until("the cluster is seen", SOON, pods);
    let before = anonymous(&bench);
    create_others(&bench);
    // Those of tests that run beside this one come and go.
    let all = u64::try_from(OTHERS).unwrap();
    bench
        .agent
        .until("the agent sees all of them", LONG, |status| {
            (pods(status)? >= all).then_some(())
        });
    let each = anonymous(&bench).saturating_sub(before) / OTHERS;
    println!("{each} bytes for each of {OTHERS} Pods");
    let (code, said) = bench.apply("web", &deployment("web", ""));
    assert_eq!(code, 0, "{said}");
    storm(&bench);
    let as_created = theirs(&bench);

    let map = |value: usize| {
        format!(
            "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: settings}}\ndata: {{value: \"{value}\"}}\n"
        )
    };
    for change in 0..CHANGES {
        let (code, said) = bench.apply("web", &(deployment("web", "") + &map(change)));
        assert_eq!(code, 0, "{said}");
        let name = "configmap/settings";
        let namespace = bench.namespace.as_str();
        let get = ["-n", namespace, "get", name, "--ignore-not-found"];
        let wanted = change.to_string();
        until_every(Duration::from_millis(500), "it is written", LONG, || {
            let value = kubectl(&[&get[..], &["-o", "jsonpath={.data.value}"]].concat());
            (value == wanted).then_some(())
        });
        // Somebody who fights for a field, and somebody who takes the object away.
        let fight = format!("{{\"data\": {{\"value\": \"robot-{change}\"}}}}");
        kubectl(&["-n", namespace, "patch", name, "--type=merge", "-p", &fight]);
        if change % 3 == 0 {
            kubectl(&["-n", namespace, "delete", name]);
        }
    }
    // Their names are no way in either: a manifest that names one of them is refused.
    let (code, said) = bench.apply(
        "thief",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: theirs-7}\nspec: {containers: [{name: theirs, image: other}]}\n",
    );
    assert_eq!(code, 2, "{said}");
    let (code, said) = bench.apps(&["remove", "web"]);
    assert_eq!(code, 0, "{said}");
    until_every(Duration::from_secs(1), "it is removed", LONG, || {
        bench.objects("deployments").is_empty().then_some(())
    });
    assert!(theirs(&bench) == as_created, "an object of others changed");
    assert!(each <= POD_BYTES_MAX, "{each} bytes for a Pod");
}

/// Counts the calls of these accounts, of which the API server keeps a number for each flow.
struct Flow(String);

impl Flow {
    fn new(namespace: &str) -> Self {
        let all = json!(["*"]);
        let flow = json!({
            "apiVersion": "flowcontrol.apiserver.k8s.io/v1",
            "kind": "FlowSchema",
            "metadata": {"name": namespace},
            "spec": {
                "matchingPrecedence": 50,
                "priorityLevelConfiguration": {"name": "workload-high"},
                "rules": [{
                    "subjects": [{"kind": "ServiceAccount", "serviceAccount": {"name": "*", "namespace": namespace}}],
                    "resourceRules": [{
                        "verbs": all, "apiGroups": all, "resources": all, "namespaces": all, "clusterScope": true,
                    }],
                    "nonResourceRules": [{"verbs": all, "nonResourceURLs": all}],
                }],
            },
        });
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("flow.json");
        put(&file, &flow.to_string());
        kubectl(&["create", "-f", &file.display().to_string()]);
        Self(namespace.to_owned())
    }

    fn calls(&self) -> u64 {
        let page = kubectl(&["get", "--raw", "/metrics"]);
        let head = "apiserver_flowcontrol_dispatched_requests_total{";
        let ours = format!("flow_schema=\"{}\"", self.0);
        let lines = page
            .lines()
            .filter(|line| line.starts_with(head) && line.contains(&ours));
        let count = |line: &str| line.rsplit_once(' ')?.1.parse::<u64>().ok();
        lines.filter_map(count).sum()
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        kubectl(&["delete", "flowschema", &self.0]);
    }
}

#[test]
fn an_app_at_rest_costs_few_calls() {
    if std::env::var_os("PIPEOPS_TORTURE").is_none() {
        return;
    }
    let (Some(bench), Some(without)) = (Bench::new(), Bench::new()) else {
        return;
    };
    bench.bind();
    let map = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: page}\n";
    let (code, said) = bench.apply("web", &(deployment("web", "") + map));
    assert_eq!(code, 0, "{said}");
    until_every(Duration::from_secs(1), "it is good", LONG, || {
        (bench.why("web").1["verdict"] == "good").then_some(())
    });
    let flows = [&bench, &without].map(|bench| Flow::new(bench.accounts.namespace()));
    let before = flows.each_ref().map(Flow::calls);
    pass(TURN);
    let each = [0, 1].map(|index| flows[index].calls() - before[index]);
    let [with, without] = each.map(|calls| calls * 3_600 / TURN.as_secs());
    println!("{with} calls an hour with an app of two watched kinds, {without} without one");
    assert!(with <= CALLS_MAX, "{with}");
    assert!(with <= without + APP_CALLS_MAX, "{with}");
}

//! Matrix of stock kubectl commands and access levels: each level against verbs, resources and
//! namespaces, on a real API server.

use serde_json::json;

use crate::{
    agent::{SOON, output_text, put},
    cluster::{kubectl, variable},
    rights::Bench,
};

/// The levels, in the order of the columns.
const LEVELS: [&str; 4] = ["full", "managed", "read-only", "off"];

/// A command and, for each level, whether it works. `SHOP` is a managed namespace with a Pod
/// `shell` and a ConfigMap `there`; `fixtures` is somebody else's.
const MATRIX: &[(&str, [bool; 4])] = &[
    ("get --raw /version", [true, true, true, false]),
    ("get nodes", [true, true, true, false]),
    ("get pods -A", [true, true, true, false]),
    ("get configmaps -n fixtures", [true, true, true, false]),
    ("describe pod shell -n fixtures", [true, true, true, false]),
    (
        "logs logger -n fixtures --tail=1",
        [true, true, true, false],
    ),
    ("auth can-i get pods", [true, true, true, false]),
    ("get secrets -A", [true, false, false, false]),
    ("get secrets -n fixtures", [true, false, false, false]),
    ("get secrets -n SHOP", [true, true, false, false]),
    ("get secrets -n SHOP -o name", [true, true, false, false]),
    ("create configmap made -n SHOP", [true, true, false, false]),
    (
        "annotate configmap there -n SHOP a=b",
        [true, true, false, false],
    ),
    ("delete configmap there -n SHOP", [true, true, false, false]),
    (
        "create deployment d --image=x -n SHOP --dry-run=server",
        [true, true, false, false],
    ),
    (
        "run raw --image=x --privileged -n SHOP --dry-run=server",
        [false, false, false, false],
    ),
    ("exec shell -n SHOP -- true", [true, true, false, false]),
    (
        "get --raw /api/v1/namespaces/SHOP/pods/shell:8080/proxy/",
        [true, true, false, false],
    ),
    (
        "create configmap made -n fixtures --dry-run=server",
        [true, false, false, false],
    ),
    (
        "annotate pod shell -n fixtures a=b --overwrite --dry-run=server",
        [true, false, false, false],
    ),
    (
        "delete pod nothing -n fixtures --ignore-not-found",
        [true, false, false, false],
    ),
    (
        "exec shell -n fixtures -- true",
        [true, false, false, false],
    ),
    (
        "get --raw /api/v1/namespaces/fixtures/services/echo:80/proxy/hello",
        [true, false, false, false],
    ),
    (
        "get --raw /api/v1/nodes/bench/proxy/healthz",
        [true, false, false, false],
    ),
    (
        "create role r --verb=get --resource=pods -n SHOP --dry-run=server",
        [true, false, false, false],
    ),
    (
        "create rolebinding r --clusterrole=view --user=x -n SHOP --dry-run=server",
        [true, false, false, false],
    ),
    (
        "create clusterrole r --verb=get --resource=pods --dry-run=server",
        [true, false, false, false],
    ),
    ("create token default -n SHOP", [true, false, false, false]),
    (
        "create quota q --hard=pods=1 -n SHOP --dry-run=server",
        [true, false, false, false],
    ),
    (
        "create priorityclass p --value=1 --dry-run=server",
        [true, false, false, false],
    ),
    (
        "create namespace new-of-SHOP --dry-run=server",
        [true, true, false, false],
    ),
    (
        "create namespace kube-new --dry-run=server",
        [true, false, false, false],
    ),
    (
        "label namespace SHOP a=b --dry-run=server",
        [true, false, false, false],
    ),
    (
        "delete namespace nothing --ignore-not-found",
        [true, false, false, false],
    ),
    (
        "get pods -A --as=x --as-group=system:masters",
        [true, false, false, false],
    ),
];

/// Returns whether a command failed because somebody refused it: any other failure, of the link for
/// one, proves nothing about the level. kubectl keeps the agent's sentence to itself where it asks
/// what there is at all, so it counts whether the agent refused something meanwhile.
fn is_refusal(level: &str, by_agent: bool, said: &str) -> bool {
    let is_told = said.contains("refused by the agent: ") || said.contains("(Forbidden)");
    match level {
        "off" => by_agent && is_told,
        _ => (by_agent && is_told) || said.contains("is forbidden: "),
    }
}

/// Asks for everything at one level.
fn everything_at(level: &str) {
    let Some(bench) = Bench::at(level) else {
        return;
    };
    let column = LEVELS.iter().position(|known| *known == level).unwrap();
    let shop = bench.managed.clone();
    // What is refused has to be there: else kubectl fails before it asks for the change.
    kubectl(&["create", "configmap", "there", "-n", &shop]);
    let image = format!("--image={}", variable("IMAGE"));
    kubectl(&[
        "run",
        "shell",
        "-n",
        &shop,
        &image,
        "--image-pull-policy=Never",
        "--port=8080",
    ]);
    let wait = format!("--timeout={}s", SOON.as_secs());
    kubectl(&[
        "wait",
        "pod/shell",
        "-n",
        &shop,
        "--for=condition=Ready",
        &wait,
    ]);
    let mut wrong = Vec::new();
    for (line, works) in MATRIX {
        let line = line.replace("SHOP", &shop);
        let arguments: Vec<&str> = line.split(' ').collect();
        let before = bench.refusals(level);
        let output = bench.ask(&arguments);
        let is_right = if works[column] {
            output.status.success()
        } else {
            let by_agent = bench.refusals(level) > before;
            !output.status.success() && is_refusal(level, by_agent, &output_text(&output))
        };
        if !is_right {
            wrong.push(format!(
                "{line}: {}: {}",
                output.status,
                output_text(&output)
            ));
        }
    }
    assert!(wrong.is_empty(), "at {level}:\n{}", wrong.join("\n"));
}

#[test]
fn full_permits_what_the_cluster_does() {
    everything_at("full");
}

#[test]
fn managed_reads_and_changes_what_is_managed() {
    everything_at("managed");
}

#[test]
fn read_only_reads_and_sees_no_secret() {
    everything_at("read-only");
}

#[test]
fn off_permits_nothing() {
    everything_at("off");
}

#[test]
fn the_agent_itself_refuses_to_change_a_protected_network_policy() {
    let Some(bench) = Bench::at("managed") else {
        return;
    };
    let shop = &bench.managed;
    let folder = tempfile::tempdir().unwrap();
    for (name, labels) in [
        ("fence", json!({"pipeops.io/protected": "true"})),
        ("own", json!({})),
    ] {
        let policy = json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"name": name, "namespace": shop, "labels": labels},
            "spec": {"podSelector": {}},
        });
        let file = folder.path().join(name);
        put(&file, &policy.to_string());
        kubectl(&["create", "-f", &file.display().to_string()]);
    }
    let all = format!("/apis/networking.k8s.io/v1/namespaces/{shop}/networkpolicies");
    for line in [
        format!("delete networkpolicy fence -n {shop}"),
        format!("label networkpolicy fence pipeops.io/protected- -n {shop}"),
        format!("delete --raw {all}"),
    ] {
        let output = bench.ask(&line.split(' ').collect::<Vec<_>>());
        let told = output_text(&output);
        let refusal = "refused by the agent: the NetworkPolicy fence";
        assert!(told.contains(refusal), "{line}: {told}");
    }
    let output = bench.ask(&["annotate", "networkpolicy", "own", "a=b", "-n", shop]);
    assert!(output.status.success(), "{}", output_text(&output));
    kubectl(&["get", "networkpolicy", "fence", "own", "-n", shop]);
}

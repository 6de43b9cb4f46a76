//! Last lines of a container that died, as evidence of a verdict: without the values of any Secret
//! that the app reads.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Bench, IMAGE, SEED, SOON, holds};
use crate::{agent::until_every, cluster::kubectl};

/// A value of a Secret that is not the app's.
const FOREIGN: &str = "f0reign-77ab";
/// A value that a probe puts out. The telemetry keeps the cluster's events as they are, and so this
/// one, too.
const PROBED: &str = "pr0bed-31cd";

fn job(name: &str) -> String {
    // On one stream: containerd reads the two in any order.
    let script = "exec 2>&1; echo first; echo our key is $OWN; echo their key is $FOREIGN; cat /etc/app.conf";
    let env = |name: &str, secret: &str| {
        format!("{{name: {name}, valueFrom: {{secretKeyRef: {{name: {secret}, key: key}}}}}}")
    };
    format!(
        "apiVersion: batch/v1\nkind: Job\nmetadata: {{name: {name}}}\nspec:\n  backoffLimit: 0\n  template:\n    spec:\n      \
         restartPolicy: Never\n      containers:\n      - name: migrate\n        image: {IMAGE}\n        imagePullPolicy: Never\n        \
         command: [sh, -c, \"{script}\"]\n        env: [{}, {}]\n---\napiVersion: v1\nkind: Secret\nmetadata: {{name: {name}}}\n\
         stringData: {{key: {SEED}}}\n",
        env("OWN", name),
        env("FOREIGN", "theirs"),
    )
}

#[test]
fn what_a_container_wrote_before_it_died_is_shown_without_secrets() {
    let Some(mut bench) = Bench::new() else {
        return;
    };
    bench.bind();
    let literal = format!("--from-literal=key={FOREIGN}");
    kubectl(&[
        "-n",
        &bench.namespace,
        "create",
        "secret",
        "generic",
        "theirs",
        &literal,
    ]);
    let (code, said) = bench.apply("migrate", &job("migrate"));
    assert_eq!(code, 0, "{said}");
    let (code, why) = bench.until_verdict("migrate", "bad");
    assert_eq!((code, &why["cause"]), (1, &json!("job.failed")), "{why:#}");
    let evidence = why["evidence"].as_str().unwrap();
    let lines: Vec<_> = evidence.lines().skip(1).collect();
    assert_eq!(
        lines,
        [
            "first",
            "our key is (hidden)",
            "their key is (hidden)",
            "cat: can't open '/etc/app.conf': No such file or directory",
        ],
        "{why:#}"
    );
    let sentence = why["sentence"].as_str().unwrap();
    assert!(
        sentence.ends_with(
            "its container migrate ended with exit code 1 (a failure of the program); its last lines speak of a file that is missing"
        ),
        "{sentence}"
    );
    let (_, said) = bench.apps(&["why", "migrate"]);
    assert!(said.contains("\n    our key is (hidden)\n"), "{said}");
    let ended = "container migrate terminated Error 1";
    let (_, inputs) = said.split_once("\n  inputs of this verdict:\n").unwrap();
    assert!(inputs.contains(ended), "{said}");
    // The record, which outlives the agent, has the same. A verdict is shown before it is written.
    let each = Duration::from_millis(500);
    let kept = until_every(each, "the verdict is in the record", SOON, || {
        let record = bench.record("migrate");
        let kept = record["revisions"][0]["evidence"].as_str()?.to_owned();
        let inputs = record["revisions"][0]["inputs"].to_string();
        (!kept.is_empty()).then_some((kept, inputs))
    });
    assert_eq!(kept.0, evidence);
    assert!(kept.1.contains(ended), "{}", kept.1);
    of_a_probe(&bench);
    says_why_it_shows_none(&bench);
    for text in [SEED, FOREIGN, PROBED] {
        assert!(!bench.agent.log().contains(text));
    }
    bench.agent.stop();
    for app in ["migrate", "probed", "again"] {
        std::fs::remove_file(bench.agent.folder().join(format!("{app}.yaml"))).unwrap();
    }
    for text in [SEED, FOREIGN, "our key is"] {
        assert_eq!(holds(bench.agent.folder(), text), Vec::<String>::new());
    }
}

/// What a probe puts out is shown like what a container writes.
fn of_a_probe(bench: &Bench) {
    let literal = format!("--from-literal=key={PROBED}");
    kubectl(&[
        "-n",
        &bench.namespace,
        "create",
        "secret",
        "generic",
        "probe",
        &literal,
    ]);
    let manifest = format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: probed}}\nspec:\n  selector: {{matchLabels: {{app: probed}}}}\n  template:\n    \
         metadata: {{labels: {{app: probed}}}}\n    spec:\n      terminationGracePeriodSeconds: 1\n      containers:\n      - name: web\n        image: {IMAGE}\n        \
         imagePullPolicy: Never\n        command: [sh, -c, \"exec sleep 3600\"]\n        \
         env: [{{name: OWN, valueFrom: {{secretKeyRef: {{name: probe, key: key}}}}}}]\n        \
         readinessProbe: {{periodSeconds: 1, timeoutSeconds: 20, exec: {{command: [sh, -c, \"echo I know $OWN; exit 1\"]}}}}\n"
    );
    let (code, said) = bench.apply("probed", &manifest);
    assert_eq!(code, 0, "{said}");
    let evidence = until_every(Duration::from_millis(500), "the probe speaks", SOON, || {
        let (_, why) = bench.why("probed");
        let evidence = why["evidence"].as_str()?.to_owned();
        assert!(!why.to_string().contains(PROBED), "{why:#}");
        Some(evidence)
    });
    assert_eq!(
        evidence,
        "Unhealthy: Readiness probe failed: I know (hidden)"
    );
    assert_eq!(bench.apps(&["remove", "probed"]).0, 0);
}

/// The role of an older manifest may not read logs.
fn says_why_it_shows_none(bench: &Bench) {
    let role = format!("pipeops-apps-deploy.{}", bench.accounts.namespace());
    let found = kubectl(&["get", "clusterrole", &role, "-o", "json"]);
    let mut found: Value = serde_json::from_str(&found).unwrap();
    found["rules"]
        .as_array_mut()
        .unwrap()
        .retain(|rule| rule["resources"] != json!(["pods/log"]));
    let rules = json!({"rules": found["rules"]}).to_string();
    kubectl(&["patch", "clusterrole", &role, "--type=merge", "-p", &rules]);
    let (code, said) = bench.apply("again", &job("again"));
    assert_eq!(code, 0, "{said}");
    let (_, why) = bench.until_verdict("again", "bad");
    let evidence = why["evidence"].as_str().unwrap();
    assert!(
        evidence.contains(
            "\nits last lines are not shown: the account pipeops-apps may not get pods/log in the namespace"
        ) && evidence.contains("kubectl apply -f -"),
        "{why:#}"
    );
}

//! Contents of the record of an app: objects that were taken over, Jobs that have succeeded, and
//! revisions of which none becomes good.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Bench, SOON, config_map, drift::LOOK, half_written::is_changed, job};
use crate::{
    agent::{put, until_every},
    cluster::{kubectl, leave_object},
};

/// Time for a version to be written and to soak.
const SOAKED: Duration = Duration::from_secs(180);

/// Deploys an app, and takes over what others made of it.
fn adopts(bench: &Bench, app: &str, manifests: &str) {
    let file = bench.agent.folder().join("adopted.yaml");
    put(&file, manifests);
    let file = file.display().to_string();
    let words = [
        "apply",
        "-f",
        &file,
        "--app",
        app,
        "--namespace",
        &bench.namespace,
        "--adopt",
    ];
    let (code, said) = bench.apps(&words);
    assert_eq!(code, 0, "{said}");
}

fn deploys(bench: &Bench, app: &str, manifests: &str) {
    let (code, said) = bench.apply(app, manifests);
    assert_eq!(code, 0, "{said}");
}

#[test]
fn going_back_leaves_what_was_adopted_since_as_it_is() {
    let Some(mut bench) = Bench::new() else {
        return;
    };
    bench.bind();
    deploys(&bench, "web", &config_map("web", "one"));
    bench.until_verdict("web", "soaking");
    bench.are_good(&["web"]);
    for name in ["theirs", "waiting"] {
        kubectl(&["-n", &bench.namespace, "create", "configmap", name]);
    }
    let both = format!(
        "{}---\n{}",
        config_map("web", "two"),
        config_map("theirs", "ours")
    );
    adopts(&bench, "web", &both);
    bench.until_verdict("web", "soaking");
    let (code, said) = bench.apps(&["cancel", "web"]);
    assert_eq!(code, 0, "{said}");
    until_every(LOOK, "it went back", SOAKED, || {
        let record = bench.record("web");
        (record["change"]["stage"] == "over" && record["running"] == 1).then_some(())
    });
    assert_eq!(bench.get("configmap/web", "{.data.value}"), "one");
    assert_eq!(bench.get("configmap/theirs", "{.data.value}"), "ours");
    let record = bench.record("web");
    assert_eq!(
        record["inventory"].as_array().unwrap().len(),
        1,
        "{record:#}"
    );

    // What was to be adopted and was never written is not removed with the app: it is not its own.
    for name in ["a", "b", "c", "d", "e", "f", "g", "h", "i"] {
        deploys(&bench, name, &config_map(name, "one"));
    }
    let both = format!(
        "{}---\n{}",
        config_map("late", "one"),
        config_map("waiting", "ours")
    );
    adopts(&bench, "late", &both);
    bench.until_verdict("late", "waiting");
    let (code, said) = bench.apps(&["cancel", "late"]);
    assert_eq!(code, 0, "{said}");
    let record = bench.record("late");
    assert_eq!(record["inventory"], json!([]), "{record:#}");
    assert!(bench.objects("configmaps").contains("waiting"));
}

#[test]
fn a_job_that_succeeded_is_not_run_again_once_its_ttl_has_it_deleted() {
    let Some(bench) = Bench::new() else { return };
    bench.bind();
    let once = job("true").replace(
        "backoffLimit: 0",
        "backoffLimit: 0\n  ttlSecondsAfterFinished: 0",
    );
    let version = |value: &str| format!("{}---\n{once}", config_map("settings", value));
    deploys(&bench, "web", &version("one"));
    bench.until_verdict("web", "soaking");
    until_every(LOOK, "the Job is gone", SOON, || {
        bench.objects("jobs").is_empty().then_some(())
    });
    let (code, said) = bench.apps(&["cancel", "web"]);
    assert_eq!(code, 0, "{said}");
    deploys(&bench, "web", &version("two"));
    until_every(LOOK, "revision 2 is judged", SOON, || {
        let (_, why) = bench.why("web");
        (why["revision"] == 2 && why["verdict"] == "soaking").then_some(())
    });
    let record = bench.record("web");
    let entries = record["inventory"].as_array().unwrap();
    let entry = entries.iter().find(|it| it["kind"] == "Job").unwrap();
    assert_eq!(
        (&entry["ran"], &entry["done"]),
        (&json!(1), &json!(2)),
        "{record:#}"
    );
}

#[test]
fn revisions_of_which_none_becomes_good_are_forgotten_as_well() {
    let Some(bench) = Bench::new() else { return };
    bench.bind();
    for number in 1..=13 {
        deploys(&bench, "web", &config_map("web", &format!("v{number}")));
    }
    let record = bench.record("web");
    let revisions = record["revisions"].as_array().unwrap();
    assert!(revisions.len() <= 12, "{record:#}");
    let numbers: Vec<_> = revisions.iter().map(|it| &it["number"]).collect();
    assert_eq!(numbers.last(), Some(&&json!(13)));
    let own = bench.accounts.namespace();
    let kept = kubectl(&["-n", own, "get", "secrets", "-o", "name"]);
    let kept = kept.lines().filter(|it| it.contains("pipeops-app.web.r"));
    assert_eq!(kept.count(), revisions.len());
}

/// Deploys a second version of an app while the API server does not manage to answer a write, and
/// returns what has it answer again.
fn is_written_in_vain(bench: &mut Bench, hook: &'static str) -> impl FnOnce() + use<> {
    deploys(bench, "web", &config_map("web", "one"));
    bench.until_verdict("web", "soaking");
    bench.are_good(&["web"]);
    kubectl(&["-n", &bench.namespace, "create", "configmap", "probe"]);
    // Dry runs are let in.
    let fails: Value = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": hook}, "webhooks": [{"name": "fails.example.com", "sideEffects": "None",
            "admissionReviewVersions": ["v1"], "failurePolicy": "Fail", "timeoutSeconds": 1,
            "clientConfig": {"url": "https://127.0.0.1:1/"},
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": bench.namespace}},
            "matchConditions": [{"name": "real", "expression": "request.dryRun != true"}],
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["configmaps"]}]}]});
    let file = bench.agent.folder().join("hook.json");
    put(&file, &fails.to_string());
    kubectl(&["apply", "-f", &file.display().to_string()]);
    until_every(LOOK, "writes fail", SOON, || {
        (!is_changed(bench)).then_some(())
    });
    deploys(bench, "web", &config_map("web", "two"));
    bench.until_verdict("web", "blind");
    move || leave_object(&["validatingwebhookconfiguration", hook])
}

#[test]
fn a_change_whose_write_the_api_server_cannot_answer_is_cancelled() {
    let Some(mut bench) = Bench::new() else {
        return;
    };
    bench.bind();
    let answers_again = is_written_in_vain(&mut bench, "fails-writes");
    let (code, said) = bench.apps(&["cancel", "web"]);
    answers_again();
    assert!(
        code == 0 && said.contains("revision 1 is put back"),
        "{said}"
    );
    until_every(LOOK, "it went back", SOAKED, || {
        let record = bench.record("web");
        (record["change"]["stage"] == "over" && record["running"] == 1).then_some(())
    });
    assert_eq!(bench.get("configmap/web", "{.data.value}"), "one");
}

#[test]
fn a_change_whose_record_somebody_else_writes_goes_on_with_what_they_wished() {
    let Some(mut bench) = Bench::new() else {
        return;
    };
    bench.bind();
    let answers_again = is_written_in_vain(&mut bench, "fails-writes-too");
    bench.change_record("web", |record| record["paused"] = json!(true));
    answers_again();
    until_every(LOOK, "it is written", SOAKED, || {
        let (_, why) = bench.why("web");
        assert_eq!(why["change"]["state"], "under way", "{why:#}");
        (why["verdict"] == "soaking").then_some(())
    });
    assert_eq!(bench.get("configmap/web", "{.data.value}"), "two");
    assert_eq!(bench.record("web")["paused"], true);
}

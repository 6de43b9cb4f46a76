//! A write that fails after an object was created: the object stays the app's, and a Job that was
//! written is not run again.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Bench, SOON, deployment, job};
use crate::{
    agent::{command, put, until_every},
    cluster::{admin, kubectl, leave_object, variable},
};

const LOOK: Duration = Duration::from_millis(200);

/// Has the API server refuse every change of a ConfigMap of the namespace, but not its creation.
fn refuse_changes(bench: &Bench, name: &str) {
    refuse(bench, name, ("UPDATE", "false"));
    kubectl(&["-n", &bench.namespace, "create", "configmap", "probe"]);
    until_every(LOOK, "changes are refused", SOON, || {
        (!is_changed(bench)).then_some(())
    });
}

/// Has the API server refuse what is done to ConfigMaps of the namespace unless this is so.
pub(super) fn refuse(bench: &Bench, name: &str, rule: (&str, &str)) {
    refuse_in(bench, name, ((&bench.namespace, "configmaps"), rule));
}

/// Has the API server refuse what is done to a kind in a namespace unless this is so.
pub(super) fn refuse_in(
    bench: &Bench,
    name: &str,
    ((namespace, kind), (done, unless)): ((&str, &str), (&str, &str)),
) {
    let group = "admissionregistration.k8s.io/v1";
    let here = json!({"matchLabels": {"kubernetes.io/metadata.name": namespace}});
    let all = json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": [done], "resources": [kind]}]);
    let all = json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": group, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name},
            "spec": {"matchConstraints": {"resourceRules": all}, "validations": [{"expression": unless}]}},
        {"apiVersion": group, "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": name},
            "spec": {"policyName": name, "validationActions": ["Deny"], "matchResources": {"namespaceSelector": here}}}]});
    let file = bench.agent.folder().join("policy.json");
    put(&file, &all.to_string());
    kubectl(&["apply", "-f", &file.display().to_string()]);
}

/// Returns whether a ConfigMap of the namespace can be changed.
pub(super) fn is_changed(bench: &Bench) -> bool {
    let patch = json!({"data": {"at": fastrand::u64(..).to_string()}}).to_string();
    let tried = command(variable("KUBECTL"))
        .arg("--kubeconfig")
        .arg(admin())
        .args(["-n", &bench.namespace, "patch", "configmap", "probe", "-p"])
        .arg(patch)
        .output();
    tried.unwrap().status.success()
}

pub(super) fn leave_policy(name: &str) {
    for kind in [
        "validatingadmissionpolicybinding",
        "validatingadmissionpolicy",
    ] {
        leave_object(&[kind, name]);
    }
}

#[test]
fn an_object_of_a_write_that_failed_is_written_and_removed_as_ours() {
    let Some(bench) = Bench::new() else { return };
    bench.bind();
    let policy = format!("half-written.{}", bench.namespace);
    let map = |value: &str| {
        format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: settings}}\ndata: {{value: {value}}}\n"
        )
    };
    let fails = |app: &str| {
        refuse_changes(&bench, &policy);
        let (code, said) = bench.apply(app, &map("one"));
        assert_eq!(code, 0, "{said}");
        until_every(LOOK, "it failed", SOON, || {
            let (_, why) = bench.why(app);
            (why["change"]["state"] == "failed").then_some(())
        });
        let created = bench.get("configmap/settings", "{.data.value}");
        assert_eq!(created, "one", "it was created");
        leave_policy(&policy);
        until_every(LOOK, "changes are let through", SOON, || {
            is_changed(&bench).then_some(())
        });
        kubectl(&["-n", &bench.namespace, "delete", "configmap", "probe"]);
    };
    fails("web");
    let (code, said) = bench.apply("web", &map("two"));
    assert_eq!(code, 0, "{said}");
    until_every(LOOK, "it is written", SOON, || {
        (bench.get("configmap/settings", "{.data.value}") == "two").then_some(())
    });
    let (code, said) = bench.apps(&["remove", "web"]);
    assert_eq!(code, 0, "{said}");
    let is_gone = || (!bench.objects("configmaps").contains("settings")).then_some(());
    until_every(LOOK, "it is removed", SOON, is_gone);

    // One that nobody could look for either is found by its nonce.
    fails("page");
    bench.change_record("page", |record| {
        let entry = &mut record["inventory"][0];
        assert_ne!(entry["uid"], "", "it was found at once");
        entry["uid"] = json!("");
        entry["nonce"] = Value::from(nonce(&bench));
    });
    let (code, said) = bench.apps(&["remove", "page"]);
    assert_eq!(code, 0, "{said}");
    until_every(LOOK, "it is removed", SOON, is_gone);
}

fn nonce(bench: &Bench) -> String {
    let nonce = bench.get(
        "configmap/settings",
        "{.metadata.annotations.pipeops\\.io/created-by}",
    );
    assert!(!nonce.is_empty(), "it carries the nonce of its creation");
    nonce
}

/// Lets the account into the namespace, but to no Deployment.
fn bind_without_deployments(bench: &Bench) {
    let own = bench.accounts.namespace();
    let whole = format!("pipeops-apps-deploy.{own}");
    let whole = kubectl(&["get", "clusterrole", &whole, "-o", "json"]);
    let mut role: Value = serde_json::from_str(&whole).unwrap();
    for rule in role["rules"].as_array_mut().unwrap() {
        let resources = rule["resources"].as_array_mut().unwrap();
        resources.retain(|resource| resource != "deployments");
    }
    role["kind"] = json!("Role");
    role["metadata"] = json!({"name": "less", "namespace": bench.namespace});
    let file = bench.agent.folder().join("role.json");
    put(&file, &role.to_string());
    kubectl(&["create", "-f", &file.display().to_string()]);
    let account = format!("--serviceaccount={own}:pipeops-apps");
    let words = [
        "create",
        "rolebinding",
        "pipeops-apps",
        "--role=less",
        &account,
    ];
    kubectl(&[&["-n", &bench.namespace], &words[..]].concat());
}

fn leave_binding(bench: &Bench) {
    kubectl(&[
        "-n",
        &bench.namespace,
        "delete",
        "rolebinding",
        "pipeops-apps",
    ]);
}

#[test]
fn a_job_of_a_write_that_waits_for_rights_runs_once() {
    // The intent, the content, the record, the step, the inventory; then the Job and its note.
    const JOB_IS_WRITTEN: usize = 7;
    let bench = Bench::prepared(|agent| {
        let file = agent.folder().join("cut").display().to_string();
        agent.with("PIPEOPS_TEST_CUT_FILE", file)
    });
    let Some(mut bench) = bench else { return };
    bench.bind();
    let file = bench.agent.folder().join("cut");
    put(&file, &"x".repeat(JOB_IS_WRITTEN));
    bench.apply("web", &(deployment("web", "") + "---\n" + &job("true")));
    bench.agent.wait_end(SOON);
    std::fs::remove_file(&file).unwrap();
    assert_eq!(bench.objects("deployments"), "", "it was not cut that late");
    let uid = bench.get("job/once", "{.metadata.uid}");
    leave_binding(&bench);
    bind_without_deployments(&bench);
    bench.agent.start();
    bench.agent.until_linked();
    // Until the first look it waits without a cause.
    until_every(LOOK, "web waits for rights", SOON, || {
        let (_, why) = bench.why("web");
        (why["verdict"] == "waiting" && why["cause"] == "access.refused").then_some(())
    });
    leave_binding(&bench);
    bench.bind();
    bench.until_verdict("web", "soaking");
    assert_eq!(bench.get("job/once", "{.metadata.uid}"), uid);
}

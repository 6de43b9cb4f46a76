//! A write that fails after its object was created: the object stays the app's.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Bench, SOON};
use crate::{
    agent::{command, put, until_every},
    cluster::{admin, kubectl, leave_object, variable},
};

const LOOK: Duration = Duration::from_millis(200);

/// Has the API server refuse every change of a ConfigMap of the namespace, but not its creation.
fn refuse_changes(bench: &Bench, name: &str) {
    let group = "admissionregistration.k8s.io/v1";
    let here = json!({"matchLabels": {"kubernetes.io/metadata.name": bench.namespace}});
    let maps = json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["configmaps"]}]);
    let all = json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": group, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name},
            "spec": {"matchConstraints": {"resourceRules": maps}, "validations": [{"expression": "false"}]}},
        {"apiVersion": group, "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": name},
            "spec": {"policyName": name, "validationActions": ["Deny"], "matchResources": {"namespaceSelector": here}}}]});
    let file = bench.agent.folder().join("policy.json");
    put(&file, &all.to_string());
    kubectl(&["apply", "-f", &file.display().to_string()]);
    kubectl(&["-n", &bench.namespace, "create", "configmap", "probe"]);
    until_every(LOOK, "changes are refused", SOON, || {
        (!is_changed(bench)).then_some(())
    });
}

/// Returns whether a ConfigMap of the namespace can be changed.
fn is_changed(bench: &Bench) -> bool {
    let patch = json!({"data": {"at": fastrand::u64(..).to_string()}}).to_string();
    let tried = command(variable("KUBECTL"))
        .arg("--kubeconfig")
        .arg(admin())
        .args(["-n", &bench.namespace, "patch", "configmap", "probe", "-p"])
        .arg(patch)
        .output();
    tried.unwrap().status.success()
}

fn leave_policy(name: &str) {
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

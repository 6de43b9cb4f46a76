//! Charts on the real cluster, which knows their definition and has no controller that installs
//! them: from root alone, and never back by themselves. The definition stays, because several
//! tests use it.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, chown},
    time::Duration,
};

use serde_json::{Value, json};

use super::{Bench, SOON, deployment};
use crate::{
    agent::{put, until_every},
    cluster::{self, kubectl},
};

const LOOK: Duration = Duration::from_millis(300);
const DEFINITION: &str = "helmcharts.helm.cattle.io";

pub(super) fn define() {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let version = json!({"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": schema}});
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": DEFINITION},
        "spec": {"group": "helm.cattle.io", "scope": "Namespaced", "versions": [version],
            "names": {"kind": "HelmChart", "plural": "helmcharts", "singular": "helmchart"}}});
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("definition.json");
    put(&file, &definition.to_string());
    cluster::define(&file, &[DEFINITION]);
}

fn chart(name: &str, version: &str, more: &str) -> String {
    format!(
        "apiVersion: helm.cattle.io/v1\nkind: HelmChart\nmetadata: {{name: {name}}}\n\
         spec: {{failurePolicy: abort, repo: \"https://charts.example\", chart: web, version: {version}{more}}}\n"
    )
}

/// Returns a chart of a namespace.
pub(super) fn manifest(name: &str, namespace: &str) -> String {
    chart(name, "1.2.3", "").replace(
        &format!("{{name: {name}}}"),
        &format!("{{name: {name}, namespace: {namespace}}}"),
    )
}

impl Bench {
    fn version(&self) -> String {
        self.get("helmchart/web", "{.spec.version}")
    }

    /// Somebody who is not root deploys.
    fn as_operator(&self, words: &[&str]) -> (i32, String) {
        self.agent.cli_as(65_534, 0, &[&["apps"], words].concat())
    }

    fn does_as_operator(&self, app: &str, manifests: &str) -> (i32, String) {
        let file = self.agent.folder().join(format!("{app}.yaml"));
        put(&file, manifests);
        chown(&file, Some(65_534), None).unwrap();
        let file = file.display().to_string();
        self.as_operator(&["apply", "-f", &file, "--namespace", &self.namespace])
    }
}

#[test]
fn a_chart_is_deployed_by_root_alone_and_never_goes_back_by_itself() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let Some(bench) = Bench::prepared(|agent| {
        let folder = agent.folder().join("apps");
        fs::create_dir_all(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        agent
            .with("PIPEOPS_APPS_FOLDER", folder.display().to_string())
            .with("PIPEOPS_APPS_OPERATORS", "nobody")
            .with("PIPEOPS_TEST_SOAK_MS", "1000")
    }) else {
        return;
    };
    bench.bind();
    define();
    let first = chart("web", "1.2.3", "");
    is_refused(&bench, &first);
    let (code, said) = bench.apply("web", &first);
    assert_eq!(code, 0, "{said}");
    let (_, why) = bench.until_verdict("web", "good");
    let sentence = why["sentence"].as_str().unwrap();
    assert!(
        sentence.ends_with("is applied, readiness unknown"),
        "{why:#}"
    );
    others_leave_it_alone(&bench);
    stays_as_it_is(&bench);
    comes_from_the_folder(&bench);
    let (code, said) = bench.apps(&["remove", "web"]);
    assert_eq!(code, 0, "{said}");
    assert_eq!(
        bench.objects("helmcharts"),
        "helmchart.helm.cattle.io/other\n"
    );
}

/// Refused charts, and refused users.
fn is_refused(bench: &Bench, first: &str) {
    let refused = |manifests: &str, why: &str| {
        let (code, said) = bench.apply("web", manifests);
        assert!(code == 2 && said.contains(why), "{manifests}: {said}");
        said
    };
    refused(
        &first.replace("abort", "reinstall"),
        "spec.failurePolicy is not abort",
    );
    refused(
        &first.replace("1.2.3", "\"~1.2\""),
        "spec.version is not one exact version",
    );
    refused(&first.replace("https", "http"), "verified TLS");
    let system = chart("web", "1.2.3", ", targetNamespace: kube-system");
    refused(&system, "kube-system belongs to the cluster");
    let (code, said) = bench.does_as_operator("web", first);
    assert!(code == 2 && said.contains("only root deploys"), "{said}");
    let managed = "pipeops.io/managed";
    let label = |value: &str| kubectl(&["label", "namespace", &bench.namespace, value]);
    label(&format!("{managed}=true"));
    refused(
        first,
        "the control plane may run Pods in the managed namespace",
    );
    label(&format!("{managed}-"));
    let said = refused(first, "may not get helmcharts in the namespace");
    Bench::does(said.split_once("fix: ").unwrap().1.trim_end());
}

/// Whoever else deploys cannot change it, nor use the account by which it is installed.
fn others_leave_it_alone(bench: &Bench) {
    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web}\n";
    let pods = deployment("page", "").replace(
        "spec:\n      term",
        "spec:\n      serviceAccountName: helm-web\n      term",
    );
    for ((code, said), why) in [
        (bench.does_as_operator("web", map), "HelmChart"),
        (bench.as_operator(&["remove", "web"]), "HelmChart"),
        (
            bench.as_operator(&["rollback", "web", "--to", "1"]),
            "HelmChart",
        ),
        (
            bench.does_as_operator("page", &pods),
            "its Pods run as helm-web",
        ),
    ] {
        assert!(code == 2 && said.contains(why), "{said}");
    }
    assert_eq!(bench.version(), "1.2.3");
}

/// Neither a version that fails nor what a person changes is put back.
fn stays_as_it_is(bench: &Bench) {
    let status = json!({"status": {"conditions": [
        {"type": "Failed", "status": "True", "reason": "Job failed", "message": "too many retries"}]}});
    let patch = |words: &[&str], patch: &Value| {
        let patch = patch.to_string();
        let all = [
            "-n",
            &bench.namespace,
            "patch",
            "helmchart/web",
            "--type=merge",
            "-p",
            &patch,
        ];
        kubectl(&[&all, words].concat());
    };
    patch(&["--subresource=status"], &status);
    let (code, said) = bench.apply("web", &chart("web", "1.2.4", ""));
    assert_eq!(code, 0, "{said}");
    let (_, why) = bench.until_verdict("web", "bad");
    assert_eq!(why["cause"], "chart.failed", "{why:#}");
    assert_eq!(why["evidence"], "Job failed: too many retries", "{why:#}");
    let why = until_every(LOOK, "the change is over", SOON, || {
        let (_, why) = bench.why("web");
        (why["change"]["state"] == "failed").then_some(why)
    });
    let said = why["change"]["why"].as_str().unwrap();
    assert!(
        said.contains("it is not rolled back automatically, because HelmChart"),
        "{said}"
    );
    assert_eq!(bench.version(), "1.2.4");
    patch(
        &["--subresource=status"],
        &json!({"status": {"conditions": []}}),
    );
    let (code, said) = bench.apps(&["rollback", "web", "--to", "1", "--wait"]);
    assert_eq!(code, 0, "{said}");
    assert_eq!(bench.version(), "1.2.3");
    patch(
        &["--field-manager=person"],
        &json!({"spec": {"version": "1.2.5"}}),
    );
    let condition = bench.agent.until_condition("apps.drift", SOON);
    let sentence = condition["sentence"].as_str().unwrap();
    assert!(
        sentence.contains("spec.version of HelmChart") && sentence.contains("person"),
        "{sentence}"
    );
    assert_eq!(bench.version(), "1.2.5");
}

fn comes_from_the_folder(bench: &Bench) {
    let file = bench.agent.folder().join("apps/other.yaml");
    put(&file, &manifest("other", &bench.namespace));
    until_every(LOOK, "it is deployed", SOON, || {
        bench.apps(&["list"]).1.contains("other").then_some(())
    });
    bench.until_verdict("other", "good");
}

//! Accounts with a managed namespace and one that is not, and what is tried there.

use std::{
    io::Write,
    process::{Output, Stdio},
};

use serde_json::{Value, json};

use crate::{
    accounts::{Accounts, GrantScope},
    agent::{SOON, output_text, until},
    cluster::{Held, calm, kubectl, leave, variable},
};

/// Who refuses.
pub(super) const RBAC: &str = "cannot ";
pub(super) const POD_SECURITY: &str = "violates PodSecurity";
pub(super) const LOCK: &str = "ValidatingAdmissionPolicy 'pipeops-cp-lock.";

/// The accounts, a managed namespace that they are let into, and one that is not managed.
pub(super) struct Bench {
    pub(super) managed: String,
    pub(super) plain: String,
    pub(super) accounts: Accounts,
    _cluster: Held,
}

impl Bench {
    pub(super) fn new() -> Option<Self> {
        let held = calm()?;
        let accounts = Accounts::new(GrantScope::Managed);
        let (managed, plain) = (
            format!("managed-of-{}", accounts.namespace()),
            format!("plain-of-{}", accounts.namespace()),
        );
        for namespace in [&managed, &plain] {
            kubectl(&["create", "namespace", namespace]);
        }
        let bench = Self {
            managed,
            plain,
            accounts,
            _cluster: held,
        };
        bench.manage(&bench.managed);
        Some(bench)
    }

    /// What the agent does for a namespace with these labels.
    pub(super) fn manage(&self, namespace: &str) {
        let labels = [
            "pipeops.io/managed=true",
            "pod-security.kubernetes.io/enforce=baseline",
        ];
        kubectl(&["label", "namespace", namespace, labels[0], labels[1]]);
        let own = self.accounts.namespace();
        let (role, account) = (
            format!("--clusterrole=pipeops-managed.{own}"),
            format!("--serviceaccount={own}:pipeops-cp"),
        );
        kubectl(&[
            "create",
            "rolebinding",
            "pipeops-cp",
            "-n",
            namespace,
            &role,
            &account,
        ]);
        until("the binding is in force", SOON, || {
            let output = self.ask(&["auth", "can-i", "create", "pods", "-n", namespace]);
            output.status.success().then_some(())
        });
    }

    pub(super) fn ask(&self, arguments: &[&str]) -> Output {
        self.accounts.run(arguments)
    }

    /// Creates this object.
    pub(super) fn create(&self, object: &Value) -> Output {
        let mut kubectl = self.accounts.kubectl(&["create", "-f", "-"]);
        let mut child = kubectl
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(object.to_string().as_bytes()).unwrap();
        drop(stdin);
        child.wait_with_output().unwrap()
    }

    pub(super) fn works(&self, arguments: &[&str]) -> String {
        let output = self.ask(arguments);
        assert!(
            output.status.success(),
            "{arguments:?}: {}",
            output_text(&output)
        );
        output_text(&output)
    }

    pub(super) fn object(&self, kind: &str, more: &Value) -> Value {
        let (version, kind) = kind.rsplit_once('/').unwrap_or(("v1", kind));
        let mut object = json!({
            "apiVersion": version, "kind": kind,
            "metadata": {"name": "attempt", "namespace": self.managed},
        });
        for (key, value) in more.as_object().unwrap() {
            object[key] = value.clone();
        }
        object
    }

    pub(super) fn pod(&self, spec: &Value) -> Value {
        let mut container = json!({
            "name": "main", "image": variable("IMAGE"), "imagePullPolicy": "Never", "command": ["testpod", "pause"],
        });
        let mut whole = json!({"terminationGracePeriodSeconds": 1});
        for (key, value) in spec.as_object().unwrap() {
            match key.strip_prefix("container.") {
                Some(key) => container[key] = value.clone(),
                None => whole[key] = value.clone(),
            }
        }
        whole["containers"] = json!([container]);
        self.object("Pod", &json!({"spec": whole}))
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        for namespace in [&self.managed, &self.plain] {
            leave(namespace);
        }
    }
}

impl Bench {
    /// Command lines that must be refused.
    pub(super) fn all_refused(&self, by: &str, lines: &[(&str, String)]) {
        let attempts = lines.iter().map(|(what, line)| {
            let words: Vec<&str> = line.split(' ').collect();
            (*what, self.ask(&words), by)
        });
        refused(attempts.collect());
    }

    /// Objects whose creation must be refused.
    pub(super) fn none_created(&self, by: &str, objects: &[(&str, Value)]) {
        let attempts = objects
            .iter()
            .map(|(what, object)| (*what, self.create(object), by));
        refused(attempts.collect());
    }
}

/// Each was refused, by whom it should be.
fn refused(attempts: Vec<(&str, Output, &str)>) {
    let mut wrong = Vec::new();
    for (what, output, by) in attempts {
        let said = output_text(&output);
        if output.status.success() || !said.contains(by) {
            wrong.push(format!("{what}: {said}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

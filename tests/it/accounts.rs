//! The accounts of one agent in the shared cluster, made as its users make them: with what the
//! program prints.
//!
//! Every set has a namespace of its own, and the API server judges each set by itself. So tests of
//! different levels run side by side and none stands in another's way; a test that changes its set
//! changes nobody else's.

use std::{
    path::PathBuf,
    process::{Command, Output, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use crate::{
    agent::{command, output_text, program, put, until},
    cluster::{admin, kubectl, variable},
};

/// The API server learns of a policy within a second or so, on a machine with other things to do.
const LEARNT_WITHIN: Duration = Duration::from_secs(30);

/// How far the control plane reaches.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum GrantScope {
    /// Reads, and managed namespaces.
    Managed,
    /// Everything.
    Full,
}

/// Both accounts with their roles and policies. They go when this is dropped.
pub(crate) struct Accounts {
    namespace: String,
    reach: GrantScope,
    folder: tempfile::TempDir,
}

impl Accounts {
    /// New ones, in force.
    pub(crate) fn new(reach: GrantScope) -> Self {
        let new = Self::planned(reach);
        new.apply(&new.manifest(&[]));
        new.until_in_force();
        new
    }

    /// New ones that are not in the cluster yet.
    pub(crate) fn planned(reach: GrantScope) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        Self {
            // Those of the run before may still be on their way out.
            namespace: format!("agent-{}-{number}", std::process::id()),
            reach,
            folder: tempfile::tempdir().unwrap(),
        }
    }

    /// Their namespace: `agent.namespace` of the agent that uses them.
    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// What the program prints for them.
    pub(crate) fn manifest(&self, more: &[&str]) -> String {
        let mut rbac = command(program());
        rbac.env_clear()
            .args(["rbac", "--namespace", &self.namespace]);
        if self.reach == GrantScope::Full {
            rbac.arg("--full");
        }
        let output = rbac.args(more).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Gives a manifest to `kubectl apply`; returns what it says.
    pub(crate) fn apply(&self, manifest: &str) -> String {
        let file = self.folder.path().join("manifest.yaml");
        put(&file, manifest);
        kubectl(&["apply", "-f", &file.display().to_string()])
    }

    fn until_in_force(&self) {
        match self.reach {
            // A namespace without labels: refused by the policy, or made in thought only.
            GrantScope::Managed => until("the policy is in force", LEARNT_WITHIN, || {
                let output = self.run(&["create", "namespace", "probe", "--dry-run=server"]);
                output_text(&output)
                    .contains("ValidatingAdmissionPolicy")
                    .then_some(())
            }),
            GrantScope::Full => until("the binding is in force", LEARNT_WITHIN, || {
                let output = self.run(&["auth", "can-i", "*", "*", "--all-namespaces"]);
                output.status.success().then_some(())
            }),
        }
    }

    /// A kubeconfig that holds a token of one of the accounts and nothing else.
    pub(crate) fn kubeconfig(&self, account: &str) -> PathBuf {
        let path = self.folder.path().join(format!("{account}.yaml"));
        if !path.exists() {
            put(&path, &of_token(&self.token(account)));
        }
        path
    }

    /// A token of one of the accounts.
    pub(crate) fn token(&self, account: &str) -> String {
        let token = kubectl(&["create", "token", account, "--namespace", &self.namespace]);
        token.trim().to_owned()
    }

    /// Stock kubectl as the control plane's account, straight to the API server.
    pub(crate) fn kubectl(&self, arguments: &[&str]) -> Command {
        self.kubectl_as("pipeops-cp", arguments)
    }

    /// The same as either of the accounts.
    pub(crate) fn kubectl_as(&self, account: &str, arguments: &[&str]) -> Command {
        let mut kubectl = command(variable("KUBECTL"));
        kubectl.arg("--kubeconfig").arg(self.kubeconfig(account));
        kubectl
            .arg("--cache-dir")
            .arg(self.folder.path().join("cache"));
        kubectl.args(arguments);
        kubectl
    }

    /// Runs it to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.kubectl(arguments)
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }
}

impl Drop for Accounts {
    fn drop(&mut self) {
        let file = self.folder.path().join("manifest.yaml");
        put(&file, &self.manifest(&[]));
        // The cluster may be broken by its test; it goes down with the tests anyway.
        command(variable("KUBECTL"))
            .arg("--kubeconfig")
            .arg(admin())
            .args([
                "delete",
                "--wait=false",
                "--ignore-not-found",
                "--request-timeout=5s",
                "-f",
            ])
            .arg(file)
            .output()
            .ok();
    }
}

/// A kubeconfig for the shared cluster that holds this token.
pub(crate) fn of_token(token: &str) -> String {
    let cluster = crate::cluster::cluster().expect("a cluster");
    format!(
        "apiVersion: v1\nkind: Config\nclusters:\n- name: c\n  cluster:\n    server: {}\n    certificate-authority: {}\n\
         users:\n- name: u\n  user: {{token: {token}}}\ncontexts:\n- name: c\n  context: {{cluster: c, user: u}}\ncurrent-context: c\n",
        variable("API_SERVER"),
        cluster.join("server/tls/server-ca.crt").display(),
    )
}

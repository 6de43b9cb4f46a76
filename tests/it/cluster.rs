//! The test clusters: one real Kubernetes for all tests of this process that leave it as it is,
//! another one for those that break theirs, each brought up by the first test that needs it.
//!
//! Without one, a test says why and ends; whoever runs the tests decides whether that is
//! a failure.

use std::{
    cell::Cell,
    path::{Path, PathBuf},
    process::Output,
    sync::OnceLock,
    time::Duration,
};

use serde_json::Value;
use smol::lock::{Mutex, MutexGuard};

use crate::agent::until_every;

thread_local! {
    /// True if the test of this thread has a cluster for itself.
    static IS_ALONE: Cell<bool> = const { Cell::new(false) };
}

/// The cluster of the test that runs in this thread; it goes down with the process.
pub(crate) fn cluster() -> Option<&'static Path> {
    static OF_ALL: OnceLock<Option<PathBuf>> = OnceLock::new();
    static OF_ONE: OnceLock<Option<PathBuf>> = OnceLock::new();
    let (cluster, name) = if IS_ALONE.get() {
        (&OF_ONE, "cluster-alone")
    } else {
        (&OF_ALL, "cluster")
    };
    cluster.get_or_init(|| start(name)).as_deref()
}

#[expect(
    clippy::disallowed_methods,
    reason = "a test that starts its counterpart"
)]
pub(crate) fn command(verb: &str, directory: &Path, more: &[&str]) -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cluster/cluster");
    std::process::Command::new(script)
        .arg(verb)
        .arg(directory)
        .args(more)
        .output()
        .expect("the script of the cluster runs")
}

/// A command of the cluster's script that must succeed.
pub(crate) fn must(verb: &str, more: &[&str]) {
    must_in(cluster().expect("a cluster"), verb, more);
}

/// The same from a thread that runs no test.
pub(crate) fn must_in(directory: &Path, verb: &str, more: &[&str]) {
    let output = command(verb, directory, more);
    assert!(
        output.status.success(),
        "{verb}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The kubeconfig of the administrator, with a client certificate, as k3s writes it.
pub(crate) fn admin() -> PathBuf {
    cluster().expect("a cluster").join("kubeconfig.yaml")
}

/// A variable of the cluster's `env`.
pub(crate) fn variable(name: &str) -> String {
    let path = cluster().expect("a cluster").join("env");
    let text = std::fs::read_to_string(path).unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    line.unwrap_or_else(|| panic!("{name} in {text}"))
        .to_owned()
}

/// The administrator's kubectl, which must succeed; returns what it printed. A namespace that it
/// makes can take Pods.
pub(crate) fn kubectl(arguments: &[&str]) -> String {
    let text = run(arguments);
    if let ["create", "namespace", name, ..] = arguments {
        // The API server refuses Pods until the controller manager has made this account.
        let account = [
            "wait",
            "--for=create",
            "serviceaccount/default",
            "--timeout=60s",
        ];
        run(&[&account[..], &["-n", name]].concat());
    }
    text
}

/// Merges a patch into the status of an object, as its controller would.
pub(crate) fn set_status(namespace: &str, object: &str, patch: &str) {
    kubectl(&[
        "-n",
        namespace,
        "patch",
        object,
        "--subresource=status",
        "--type=merge",
        "-p",
        patch,
    ]);
}

/// Applies a file with definitions of custom resources, and waits until the API server serves
/// these. (`kubectl wait` and a filter of jsonpath fail where a definition has no conditions yet.)
pub(crate) fn define(file: &Path, definitions: &[&str]) {
    kubectl(&["apply", "-f", &file.display().to_string()]);
    for name in definitions {
        let what = format!("{name} is served");
        until_every(
            Duration::from_millis(200),
            &what,
            Duration::from_secs(60),
            || {
                let text = kubectl(&["get", "crd", name, "-o", "json"]);
                let definition: Value = serde_json::from_str(&text).unwrap();
                let conditions = definition["status"]["conditions"].as_array()?;
                let established = |condition: &Value| {
                    condition["type"] == "Established" && condition["status"] == "True"
                };
                conditions.iter().any(established).then_some(())
            },
        );
    }
}

/// Deletes a namespace at the end of a test, without waiting for it, and whether or not the cluster
/// still answers.
pub(crate) fn leave(namespace: &str) {
    leave_object(&["namespace", namespace]);
}

/// Deletes an object in the same way.
pub(crate) fn leave_object(object: &[&str]) {
    crate::agent::command(variable("KUBECTL"))
        .arg("--kubeconfig")
        .arg(admin())
        .arg("delete")
        .args(object)
        .args(["--wait=false", "--ignore-not-found"])
        .output()
        .ok();
}

fn run(arguments: &[&str]) -> String {
    let output = crate::agent::command(variable("KUBECTL"))
        .arg("--kubeconfig")
        .arg(admin())
        .args(arguments)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "kubectl {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

fn start(name: &str) -> Option<PathBuf> {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let owner = std::process::id().to_string();
    let up = command("up", &directory, &["--owner", &owner]);
    if up.status.code() == Some(75) {
        // The caller of the tests looks for this line and decides whether it is a failure.
        println!("{}", String::from_utf8_lossy(&up.stdout).trim());
        return None;
    }
    assert!(
        up.status.success(),
        "up: {}",
        String::from_utf8_lossy(&up.stderr)
    );
    let fixtures = command("fixtures", &directory, &[]);
    assert!(
        fixtures.status.success(),
        "fixtures: {}",
        String::from_utf8_lossy(&fixtures.stderr)
    );
    Some(directory)
}

/// A cluster that a test may use for as long as it holds this.
pub(crate) struct Held(Option<MutexGuard<'static, ()>>);

impl Drop for Held {
    fn drop(&mut self) {
        if self.0.is_some() {
            IS_ALONE.set(false);
        }
    }
}

/// The cluster beside others that leave it as it is; `None` where there is none.
pub(crate) fn calm() -> Option<Held> {
    cluster()?;
    Some(Held(None))
}

/// The cluster for one test that breaks it, or counts what goes on there; `None` where there is
/// none.
pub(crate) fn alone() -> Option<Held> {
    static ALONE: Mutex<()> = Mutex::new(());
    let guard = ALONE.lock_blocking();
    IS_ALONE.set(true);
    let held = Held(Some(guard));
    cluster()?;
    Some(held)
}

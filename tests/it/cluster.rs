//! The test cluster: one real Kubernetes for all tests of this process, brought up by the first that needs it.
//!
//! Where none can be had, a test says why and ends; whoever runs the tests decides whether that is a failure.

use std::{
    path::{Path, PathBuf},
    process::Output,
    sync::{OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

/// One cluster for the process; it goes down with it.
pub(crate) fn cluster() -> Option<&'static Path> {
    static CLUSTER: OnceLock<Option<PathBuf>> = OnceLock::new();
    CLUSTER.get_or_init(start).as_deref()
}

/// Calm tests share the cluster, the others have it for themselves.
static CALM: RwLock<()> = RwLock::new(());

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
    let directory = cluster().expect("a cluster");
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

/// The administrator's kubectl, which must succeed; returns what it printed. A namespace that it makes can take Pods.
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

/// Deletes a namespace at the end of a test, without waiting for it, and whether or not the cluster still answers.
pub(crate) fn leave(namespace: &str) {
    let delete = ["delete", "namespace", namespace];
    crate::agent::command(variable("KUBECTL"))
        .arg("--kubeconfig")
        .arg(admin())
        .args(delete)
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

fn start() -> Option<PathBuf> {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cluster");
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

pub(crate) struct Shared<'a>(#[expect(dead_code, reason = "held")] Lock<'a>);

#[expect(dead_code, reason = "held")]
enum Lock<'a> {
    Calm(RwLockReadGuard<'a, ()>),
    Alone(RwLockWriteGuard<'a, ()>),
}

/// The cluster beside others that leave it as it is; `None` where there is none.
pub(crate) fn calm() -> Option<Shared<'static>> {
    cluster()?;
    let guard = CALM
        .read()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    Some(Shared(Lock::Calm(guard)))
}

/// The cluster for one test that breaks it; `None` where there is none.
pub(crate) fn alone() -> Option<Shared<'static>> {
    cluster()?;
    let guard = CALM
        .write()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    Some(Shared(Lock::Alone(guard)))
}

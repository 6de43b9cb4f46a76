//! The agent's credential for k3s.

use std::os::unix::fs::PermissionsExt;

use nix::unistd::getgid;

use super::{super::k3s::Connect, *};
use crate::core::k3s::connect::{DIRECTORY, KUBECONFIG, TIMER, UNIT};

/// Answer of a k3s that knows the account.
const KNOWN: &str = "echo serviceaccount/pipeops-agent";
const ACCOUNT: &str = "kind: ServiceAccount\nmetadata:\n  name: pipeops-agent\n";

/// A machine with a k3s that runs and knows, or does not know, the agent's account.
fn machine(knows_account: &str) -> Tree {
    let k3s = format!(
        "case \"$*\" in\n\
         *readyz*) [ ! -e k3s-is-down ];;\n\
         *'get serviceaccount'*) {knows_account};;\n\
         *'apply -f'*) for file; do :; done; cat \"$file\" >> applied; echo ... >> applied;;\n\
         *'config view'*) echo 'https://127.0.0.1:6443 Q0E=';;\n\
         *'create token'*) echo \"token-$*\" | tr -d ' ';;\n\
         *) exit 1;;\n\
         esac"
    );
    Tree::in_memory()
        .with("run/systemd/system/x", "")
        .with("etc/systemd/system/other.service", "")
        .program("k3s", &k3s)
        .with("usr/local/bin/k3s", "")
        .program("systemctl", "")
}

fn wanted() -> Connect {
    Connect {
        namespace: "pipeops-system".to_owned(),
        manifest: format!("{ACCOUNT}\n---\nkind: Namespace\n"),
        group: getgid().as_raw(),
        program: "/usr/bin/pipeops-agent".to_owned(),
    }
}

#[test]
fn the_agent_gets_a_token_of_its_own_that_nobody_else_can_read() {
    let tree = machine(":");
    let before = tree.snapshot();
    let done = tree.keeper().k3s_connect(&wanted(), "root").unwrap();
    assert_eq!(done.outcome, "done", "{done:?}");
    // The rights come first, where the account is missing: it says that they are there.
    let both = format!("kind: Namespace\n...\n{ACCOUNT}...\n");
    assert_eq!(tree.read("applied").unwrap(), both);
    let text = tree.read(KUBECONFIG.trim_start_matches('/')).unwrap();
    assert!(
        text.contains("createtokenpipeops-agent--duration=168h"),
        "{text}"
    );
    let mode = |path: &str| {
        let path = tree.root().join(path.trim_start_matches('/'));
        path.metadata().unwrap().permissions().mode() & 0o7777
    };
    assert_eq!((mode(DIRECTORY), mode(KUBECONFIG)), (0o2750, 0o640));
    let unit = tree.read(UNIT.trim_start_matches('/')).unwrap();
    assert!(
        unit.contains("\"/usr/bin/pipeops-agent\" k3s connect --renew"),
        "{unit}"
    );
    let calls = tree.read("calls").unwrap();
    assert!(
        calls.contains("systemctl start pipeops-k3s-connect.timer"),
        "{calls}"
    );

    // Again: a new credential, and no second change.
    let again = tree.keeper().k3s_connect(&wanted(), "root").unwrap();
    assert_eq!((again.outcome.as_str(), &again.change), ("done", &None));

    // The way back leaves nothing of it.
    let undone = tree.keeper().undo(&done.change.unwrap(), "root").unwrap();
    assert_eq!(undone.outcome, "undone", "{undone:?}");
    std::fs::remove_file(tree.root().join("applied")).unwrap();
    assert_eq!(tree.snapshot(), before);
}

#[test]
fn rights_that_are_there_are_left_alone() {
    let tree = machine(KNOWN);
    tree.keeper().k3s_renew(&wanted()).unwrap();
    assert_eq!(tree.read("applied"), None);
    assert!(tree.read(KUBECONFIG.trim_start_matches('/')).is_some());
    assert_eq!(tree.read(TIMER.trim_start_matches('/')), None);
}

#[test]
fn a_k3s_that_does_not_answer_leaves_the_credential_of_before() {
    let tree = machine(KNOWN);
    tree.keeper().k3s_renew(&wanted()).unwrap();
    let before = tree.snapshot();
    tree.put("k3s-is-down", "", 0o644);
    let error = tree.keeper().k3s_renew(&wanted()).unwrap_err();
    assert!(error.sentence().contains("does not answer"), "{error}");
    let error = tree.keeper().k3s_connect(&wanted(), "root").unwrap_err();
    assert!(error.to_string().contains("k3s status"), "{error}");
    std::fs::remove_file(tree.root().join("k3s-is-down")).unwrap();
    assert_eq!(tree.snapshot(), before);
}

#[test]
fn with_openrc_a_service_that_sleeps_renews_it() {
    let tree = machine(KNOWN)
        .with("run/openrc/softlevel", "default")
        .with("etc/init.d/other", "")
        .with("etc/runlevels/default/other", "")
        .program("rc-service", "");
    std::fs::remove_dir_all(tree.root().join("run/systemd")).unwrap();
    let before = tree.snapshot();
    let done = tree.keeper().k3s_connect(&wanted(), "root").unwrap();
    assert_eq!(done.outcome, "done", "{done:?}");
    let service = tree.read("etc/init.d/pipeops-k3s-connect").unwrap();
    assert!(service.contains("k3s connect --renew"), "{service}");
    let calls = tree.read("calls").unwrap();
    assert!(
        calls.contains("rc-service pipeops-k3s-connect start"),
        "{calls}"
    );
    let again = tree.keeper().k3s_connect(&wanted(), "root").unwrap();
    assert_eq!(again.change, None);
    let undone = tree.keeper().undo(&done.change.unwrap(), "root").unwrap();
    assert_eq!(undone.outcome, "undone", "{undone:?}");
    assert_eq!(tree.snapshot(), before);
}

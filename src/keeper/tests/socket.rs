//! The gate of the socket: what the agent may have changed.

use super::{
    super::server::{Peer, act},
    *,
};

const CHECK: &str = "limits.inotify";

fn agent(repair: bool) -> Peer {
    let allowed = Allowed {
        repair,
        ..Allowed::default()
    };
    Peer::agent(998, allowed)
}

fn ask(tree: &Tree, verb: &str, peer: &Peer) -> Result<String> {
    let asked =
        format!("{{\"verb\":\"{verb}\",\"check\":\"{CHECK}\",\"change\":\"limits-inotify-1\"}}");
    act(&tree.keeper(), asked.as_bytes(), peer)
}

#[test]
fn an_agent_without_repair_in_keeper_allow_repairs_nothing_and_undoes_nothing() {
    let tree = inotify();
    tree.keeper().fix(CHECK, "the agent (uid 998)").unwrap();
    let before = tree.snapshot();
    for verb in ["fix", "undo"] {
        let refused = ask(&tree, verb, &agent(false)).unwrap_err();
        assert!(refused.sentence().contains("keeper.allow"), "{refused}");
        assert!(refused.fix.is_some());
    }
    assert_eq!(tree.snapshot(), before);
    // It may look.
    for verb in ["plan", "changes", "inspect"] {
        ask(&tree, verb, &agent(false)).unwrap();
    }
}

#[test]
fn an_agent_undoes_its_own_repairs_and_not_those_of_root() {
    let tree = inotify();
    tree.keeper().fix(CHECK, "root (sudo, admin)").unwrap();
    let before = tree.snapshot();
    let refused = ask(&tree, "undo", &agent(true)).unwrap_err();
    assert!(
        refused.sentence().contains("root (sudo, admin)"),
        "{refused}"
    );
    assert!(
        refused
            .to_string()
            .contains("sudo pipeops-agent undo limits-inotify-1"),
        "{refused}"
    );
    assert_eq!(tree.snapshot(), before);

    let tree = inotify();
    assert!(
        ask(&tree, "fix", &agent(true))
            .unwrap()
            .contains("limits-inotify-1")
    );
    let undone = ask(&tree, "undo", &agent(true)).unwrap();
    assert!(undone.contains("\"undone\""), "{undone}");
}

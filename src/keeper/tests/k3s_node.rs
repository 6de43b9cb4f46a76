//! Cordon and drain of the node, as the API answers.

use std::time::Duration;

use super::{
    super::k3s::{Maintenance, Node},
    k3s_life::{VERSION, cut_everywhere, good, install},
    *,
};

/// Pods of the node: one that moves, with a volume that is lost, and one that stays.
const PODS: &str =
    "shop|web-1|ReplicaSet||Running|cache\\nkube-system|svc-1|DaemonSet||Running|\\n";

/// A cluster; where `held` is there, a budget holds a Pod.
fn machine(pods: &str) -> Tree {
    let tree = good();
    install(&tree).unwrap();
    tree.program(
        "k3s",
        &format!(
            "case \"$*\" in\n\
             *--version*) echo 'k3s version {VERSION} (x)';;\n\
             *'get pods'*) printf '{pods}';;\n\
             *'get nodes'*) printf 'box|||True\\npi|||Unknown\\nnas|true||True\\n';;\n\
             *'get node '*) printf '{VERSION}|True|2099-01-01T00:00:00Z|'; [ ! -e cordoned ] || printf true;;\n\
             *' drain '*) [ ! -e held ] || {{ echo 'error when evicting pods/\"web-1\" -n \"shop\" (will retry after 5s): Cannot evict pod as it would violate the disruption budget.' >&2; exit 1; }}; touch drained;;\n\
             *uncordon*) rm -f cordoned;;\n\
             *cordon*) touch cordoned;;\n\
             esac"
        ),
    )
}

fn wanted(maintenance: Maintenance) -> Node {
    Node {
        maintenance,
        ignored: Vec::new(),
        program: "/usr/bin/pipeops-agent".to_owned(),
    }
}

fn drain(tree: &Tree) -> Result<Done> {
    let maintenance = Maintenance::Drain(Duration::from_secs(30));
    tree.keeper().k3s_node(&wanted(maintenance), "root")
}

fn is_there(tree: &Tree, name: &str) -> bool {
    tree.root().join(name).exists()
}

#[test]
fn a_drain_names_what_goes_and_what_is_lost_and_its_undo_takes_pods_again() {
    let tree = machine(PODS);
    let maintenance = Maintenance::Drain(Duration::from_secs(30));
    let plan = tree.keeper().k3s_node_plan(&wanted(maintenance)).unwrap();
    let steps: Vec<_> = plan.steps.iter().map(|step| &*step.does).collect();
    assert!(steps.contains(&"evict shop/web-1"), "{steps:?}");
    assert!(plan.warned[0].what.contains("cache"), "{plan:?}");
    assert_eq!(plan.warned[1].id, "drain.alone");
    assert!(!is_there(&tree, "cordoned"));
    let done = drain(&tree).unwrap();
    assert_eq!(done.outcome, "done", "{done:?}");
    assert!(is_there(&tree, "cordoned") && is_there(&tree, "drained"));
    let undone = tree.keeper().undo(&done.change.unwrap(), "root").unwrap();
    assert_eq!(undone.outcome, "undone", "{undone:?}");
    assert!(!is_there(&tree, "cordoned"));
}

#[test]
fn a_pod_without_a_controller_holds_a_drain_up_unless_it_may_end() {
    let tree = machine("default|shell|||Running|\\n");
    let refused = drain(&tree).unwrap_err();
    assert!(refused.sentence().contains("default/shell"), "{refused:?}");
    assert!(refused.fix.unwrap().contains("--ignore drain.bare"));
    assert!(!is_there(&tree, "cordoned"));
    let wanted = Node {
        ignored: vec!["drain.bare".to_owned()],
        ..wanted(Maintenance::Drain(Duration::from_secs(30)))
    };
    assert_eq!(
        tree.keeper().k3s_node(&wanted, "root").unwrap().outcome,
        "done"
    );
    assert!(tree.calls().contains("--force"));
}

#[test]
fn a_drain_that_a_budget_holds_is_undone_and_names_the_pod() {
    let tree = machine(PODS).with("held", "");
    let done = drain(&tree).unwrap();
    assert_eq!(done.outcome, "failed");
    assert!(done.sentence.contains("shop/web-1"), "{done:?}");
    assert!(!is_there(&tree, "cordoned"));
}

#[test]
fn a_drain_that_was_cut_off_anywhere_is_finished_or_undone() {
    for is_held in [false, true] {
        let prepared = || {
            let tree = machine(PODS);
            if is_held {
                tree.put("held", "", 0o644);
            }
            tree
        };
        cut_everywhere(2, prepared, drain, |tree, at| {
            // Cut before the intent was on disk, nothing has happened.
            if !is_held && !is_there(tree, "drained") {
                drain(tree).unwrap();
            }
            assert_eq!(is_there(tree, "cordoned"), !is_held, "{at}");
            assert_eq!(is_there(tree, "drained"), !is_held, "{at}");
        });
    }
}

#[test]
fn a_machine_without_k3s_is_told_apart_from_a_node_that_does_not_answer() {
    let error = good().keeper().k3s_node_plan(&wanted(Maintenance::Cordon));
    let error = error.unwrap_err();
    assert_eq!(error.what, "there is no k3s on this machine");
}

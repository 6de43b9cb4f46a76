//! A worker that joins and leaves, cut off at writes of the journal.

use std::time::Duration;

use super::{
    super::k3s::{Install, InviteRequest, Join, Leave},
    k3s_life::{VERSION, assert_same, cut_everywhere, good, install, wanted},
    *,
};
use crate::core::{
    k3s::{
        Role,
        join::{Server, Token},
        texts::InstallOptions,
    },
    time::Wall,
};

const CREDENTIAL: &str = "abc123.0123456789abcdef";
const SERVER: &str = "https://192.0.2.10:6443";

fn joining(tree: &Tree) -> Install {
    let token = format!("K10{}::{CREDENTIAL}", "a".repeat(64));
    Install {
        options: InstallOptions {
            server: Some(SERVER.to_owned()),
            ..InstallOptions::default()
        },
        join: Some(Join {
            token: Token::parse(&token).unwrap(),
            server: Server {
                time: None,
                now: Wall::default(),
                version: VERSION.parse().ok(),
                shared: None,
            },
            address: SERVER.to_owned(),
        }),
        connects: false,
        ..wanted(tree)
    }
}

fn join(tree: &Tree) -> Result<Done> {
    tree.keeper().k3s_install(&joining(tree), "root")
}

fn leaving(worker: Option<&str>, ignored: &[&str]) -> Leave {
    Leave {
        worker: worker.map(str::to_owned),
        within: Duration::from_secs(30),
        ignored: ignored.iter().map(|id| (*id).to_owned()).collect(),
        program: "/usr/bin/pipeops-agent".to_owned(),
    }
}

/// From now on the API says that these Pods run on the node.
fn runs(tree: Tree, pods: &str) -> Tree {
    tree.program(
        "k3s",
        &format!(
            "case \"$*\" in\n\
             *--version*) echo 'k3s version {VERSION} (x)';;\n\
             *'get pods'*) printf '{pods}';;\n\
             *'get pv'*) printf 'pvc-1|shop/db|1Gi|/storage/1|pi|\\n';;\n\
             *'get nodes'*unschedulable*) printf 'box|||True\\npi|||True\\n';;\n\
             *'get node '*) printf '{VERSION}|True|2099-01-01T00:00:00Z|';;\n\
             *'delete node'*) touch forgotten;;\n\
             *'delete secret'*) [ -e forgotten ] && touch nameless;;\n\
             *' drain '*) touch drained;;\n\
             esac"
        ),
    )
}

#[test]
fn a_join_that_was_cut_off_anywhere_is_whole_or_gone() {
    let (before, after) = {
        let tree = good();
        let before = tree.snapshot();
        let plan = tree.keeper().k3s_install_plan(&joining(&tree)).unwrap();
        assert!(
            plan.does.contains(SERVER) && plan.refused.is_empty(),
            "{plan:?}"
        );
        assert_eq!(join(&tree).unwrap().outcome, "done");
        assert!(
            tree.read("etc/rancher/k3s/join-token")
                .unwrap()
                .contains(CREDENTIAL)
        );
        assert!(tree.calls().contains("start --no-block k3s-agent"));
        (before, tree.snapshot())
    };
    cut_everywhere(3, good, join, |tree, at| {
        if tree.snapshot() == before {
            assert_eq!(join(tree).unwrap().outcome, "done", "{at}");
        }
        assert_same(&tree.snapshot(), &after, at);
    });
}

#[test]
fn a_worker_that_leaves_keeps_the_data_of_volumes() {
    let tree = good();
    let before = tree.snapshot();
    join(&tree).unwrap();
    let volume = "var/lib/rancher/k3s/storage/pvc-1/data";
    tree.put(volume, "mine", 0o644);
    let tree = runs(tree, "shop|web-1|ReplicaSet||Running|\\n");
    let refused = tree.keeper().k3s_leave(&leaving(None, &[]), "root");
    let refused = refused.unwrap_err();
    assert!(refused.sentence().contains("shop/web-1"), "{refused:?}");
    assert!(refused.fix.unwrap().contains("node leave box"));
    let wanted = leaving(None, &["leave.pods"]);
    let plan = tree.keeper().k3s_leave_plan(&wanted).unwrap();
    assert!(
        plan.warned
            .iter()
            .any(|found| found.what.contains("storage/pvc-1")),
        "{plan:?}"
    );
    assert_eq!(
        tree.keeper().k3s_leave(&wanted, "root").unwrap().outcome,
        "done"
    );
    assert_eq!(tree.read(volume).as_deref(), Some("mine"));
    std::fs::remove_dir_all(tree.root().join("var/lib/rancher")).unwrap();
    let tree = tree.program("k3s", "");
    let mut after = tree.snapshot();
    let mut before = before;
    for snapshot in [&mut after, &mut before] {
        snapshot.retain(|name, _| name != "usr/sbin/k3s");
    }
    assert_same(&after, &before, "");
}

#[test]
fn a_server_moves_the_pods_of_a_worker_before_it_forgets_it() {
    let tree = good();
    install(&tree).unwrap();
    let tree = runs(tree, "shop|web-1|ReplicaSet||Running|\\n");
    let is_there = |name: &str| tree.root().join(name).exists();
    let own = tree.keeper().k3s_leave(&leaving(Some("box"), &[]), "root");
    assert!(own.unwrap_err().sentence().contains("this server itself"));
    let none = tree.keeper().k3s_leave(&leaving(None, &[]), "root");
    assert!(none.unwrap_err().fix.unwrap().contains("node leave NAME"));
    let wanted = leaving(Some("pi"), &[]);
    let plan = tree.keeper().k3s_leave_plan(&wanted).unwrap();
    assert!(
        plan.warned
            .iter()
            .any(|found| found.what.contains("shop/db")),
        "{plan:?}"
    );
    assert!(!is_there("drained"));
    assert_eq!(
        tree.keeper().k3s_leave(&wanted, "root").unwrap().outcome,
        "done"
    );
    for done in ["drained", "forgotten", "nameless"] {
        assert!(is_there(done), "{done}: {}", tree.calls());
    }
}

#[test]
fn a_worker_sends_to_its_server_what_only_a_server_can_do() {
    let tree = good();
    join(&tree).unwrap();
    let error = tree.keeper().k3s_admin().unwrap_err();
    assert!(error.sentence().contains(SERVER), "{error:?}");
    let status = tree.keeper().k3s_status(None).unwrap();
    assert_eq!(status.server.as_deref(), Some(SERVER));
}

#[test]
fn a_port_of_the_settings_is_the_one_that_others_are_told() {
    let tree = good();
    install(&tree).unwrap();
    let server = |address: &str| {
        let wanted = InviteRequest {
            lifetime: "1h".to_owned(),
            address: Some(address.to_owned()),
            role: Role::Worker,
        };
        let plan = tree.keeper().k3s_invite_plan(&wanted).unwrap();
        let (_, server) = plan.does.split_once("joins ").unwrap();
        server.split(',').next().unwrap().to_owned()
    };
    assert_eq!(server("192.0.2.10"), "https://192.0.2.10:6443");
    tree.put(
        "etc/rancher/k3s/config.yaml",
        "https-listen-port: 7443\n",
        0o600,
    );
    for (address, wanted) in [
        ("192.0.2.10", "https://192.0.2.10:7443"),
        ("192.0.2.10:8443", "https://192.0.2.10:8443"),
        ("2001:db8::1", "https://[2001:db8::1]:7443"),
        ("[2001:db8::1]:8443", "https://[2001:db8::1]:8443"),
        ("box.lan", "https://box.lan:7443"),
    ] {
        assert_eq!(server(address), wanted);
        // As another server is asked to forget this one.
        assert_eq!(tree.keeper().system.server_at(address), wanted);
    }
}

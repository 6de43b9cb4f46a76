//! Upgrades of k3s: to the next version, and back when it does not come up.

use super::{
    super::k3s::{Program, Upgrade},
    k3s_backup::{cluster, wanted as wanted_backup, words, write},
    k3s_life::{VERSION, assert_same, cut_everywhere, good, source, starts},
    *,
};

const PATCH: &str = "v1.34.9+k3s1";
const MINOR: &str = "v1.35.0+k3s1";

/// A cluster whose k3s is of the version that its program names, and a release of another version.
fn machine(next: &str) -> Tree {
    let tree = cluster(good());
    tree.put("usr/local/bin/k3s", VERSION, 0o755);
    tree.put("release/k3s.next", next, 0o644);
    let k3s = "cd \"${0%/usr/sbin/*}\" || exit 9\nv=$(cat usr/local/bin/k3s)\n\
         case $1 in --version) echo \"k3s version $v (x)\";; \
         kubectl) [ -d run/k3s ] || exit 1; case \"$*\" in *plans*|*control-plane*) exit 1;; esac; \
         printf \"$v|True|2099-01-01T00:00:00Z|\";; esac";
    tree.put("usr/sbin/k3s", &format!("#!/bin/sh\n{k3s}\n"), 0o755);
    let said = format!("#!/bin/sh\necho 'k3s version {next} (x)'\n");
    tree.put("usr/sbin/k3s.next", &said, 0o755);
    starts(
        &tree,
        "mkdir -p run/k3s; if [ -e broken ] && grep -q \"$(cat broken)\" usr/local/bin/k3s; then rm -r run/k3s; fi",
    );
    tree
}

fn wanted(tree: &Tree) -> Upgrade {
    Upgrade {
        binary: Program::Here(source(tree, "k3s.next")),
        images: Vec::new(),
        version: None,
        ignored: crate::core::doctor::checks()
            .map(|check| check.id.to_owned())
            .chain(["disk.room", "cgroup.v1"].map(str::to_owned))
            .collect(),
        backup: wanted_backup(),
        within: std::time::Duration::ZERO,
        program: "/usr/bin/pipeops-agent".to_owned(),
        built: Wall::default(),
    }
}

fn upgrade(tree: &Tree) -> Result<Done> {
    tree.keeper().k3s_upgrade(&wanted(tree), "root")
}

fn version(tree: &Tree) -> String {
    tree.read("usr/local/bin/k3s").unwrap()
}

/// All but the backup that an upgrade makes first.
fn snapshot(tree: &Tree) -> Snapshot {
    let mut all = tree.snapshot();
    all.retain(|name, _| !name.starts_with("var/backups"));
    all
}

#[test]
fn an_upgrade_is_backed_up_ready_and_can_be_undone() {
    for next in [PATCH, MINOR] {
        let tree = machine(next);
        let before = tree.snapshot();
        let plan = tree.keeper().k3s_upgrade_plan(&wanted(&tree)).unwrap();
        assert!(plan.refused.is_empty(), "{plan:?}");
        assert_eq!(plan.warned.len(), usize::from(next == MINOR), "{plan:?}");
        assert_same(&tree.snapshot(), &before, "a plan");
        let before = snapshot(&tree);

        let done = upgrade(&tree).unwrap();
        assert_eq!(done.outcome, "done", "{done:?}");
        assert_eq!(version(&tree), next);
        let status = tree.keeper().k3s_status(None).unwrap();
        assert_eq!(status.backups[0].version.as_deref(), Some(VERSION));
        assert!(
            upgrade(&tree)
                .unwrap_err()
                .sentence()
                .contains("installed already")
        );

        write(&tree, "later");
        let undone = tree.keeper().undo(&done.change.unwrap(), "root").unwrap();
        assert_eq!(undone.outcome, "undone", "{undone:?}");
        assert_eq!(version(&tree), VERSION);
        // The old version does not read what the next minor version wrote.
        let kept: &[&str] = if next == MINOR {
            &["first"]
        } else {
            &["first", "later"]
        };
        assert_eq!(words(&tree), kept);
        if next == MINOR {
            let state = |all: &mut Snapshot| all.remove("var/lib/rancher/k3s/server/db/state.db");
            let (mut now, mut then) = (snapshot(&tree), before);
            assert!(state(&mut now).is_some() && state(&mut then).is_some());
            assert_same(&now, &then, "undone");
        }
    }
}

/// The machine, with another node and Pods on this one; what is asked of the node is in `asked`.
fn machine_of_two(next: &str, pods: &str) -> Tree {
    let tree = machine(next);
    let k3s = format!(
        "cd \"${{0%/usr/sbin/*}}\" || exit 9\nv=$(cat usr/local/bin/k3s)\n\
         case $1 in --version) echo \"k3s version $v (x)\";; \
         kubectl) [ -d run/k3s ] || exit 1; case \"$*\" in *plans*|*control-plane*) exit 1;; \
         *'get nodes'*) printf 'box|||True\\npi|||True\\n';; *'get pods'*) printf '{pods}';; \
         *uncordon*) echo uncordon >>asked;; *cordon*) echo cordon >>asked;; \
         *' drain '*) echo drain >>asked; [ ! -e held ] || exit 1;; \
         *) printf \"$v|True|2099-01-01T00:00:00Z|\";; esac;; esac"
    );
    tree.put("usr/sbin/k3s", &format!("#!/bin/sh\n{k3s}\n"), 0o755);
    tree
}

#[test]
fn pods_move_before_a_minor_upgrade_where_another_node_takes_them() {
    const PODS: &str = "shop|web-1|ReplicaSet||Running|cache\\n";
    let asked = |tree: &Tree| tree.read("asked").unwrap_or_default();
    let warned = |tree: &Tree| {
        let plan = tree.keeper().k3s_upgrade_plan(&wanted(tree)).unwrap();
        plan.warned.into_iter().map(|it| it.id).collect::<Vec<_>>()
    };
    let tree = machine_of_two(MINOR, PODS);
    assert_eq!(warned(&tree), ["upgrade.drain", "drain.empty-dir"]);
    assert_eq!(asked(&tree), "", "a plan");
    assert_eq!(upgrade(&tree).unwrap().outcome, "done");
    assert_eq!(asked(&tree), "cordon\ndrain\nuncordon\n");

    // The old version is there again, and its node is open.
    let tree = machine_of_two(MINOR, PODS);
    tree.put("broken", MINOR, 0o644);
    assert_eq!(upgrade(&tree).unwrap().outcome, "failed");
    assert_eq!(asked(&tree), "cordon\ndrain\nuncordon\n");
    assert_eq!(version(&tree), VERSION);

    // A budget that holds Pods ends it before anything stops.
    let tree = machine_of_two(MINOR, PODS);
    tree.put("held", "", 0o644);
    assert_eq!(upgrade(&tree).unwrap().outcome, "failed");
    assert_eq!(asked(&tree), "cordon\ndrain\nuncordon\n");
    assert_eq!(version(&tree), VERSION);

    for (next, pods) in [(PATCH, PODS), (MINOR, "shop|alone|||Running|\\n")] {
        let tree = machine_of_two(next, pods);
        assert!(!warned(&tree).contains(&"upgrade.drain".to_owned()));
        assert_eq!(upgrade(&tree).unwrap().outcome, "done");
        assert_eq!(asked(&tree), "", "{next}: {pods}");
    }
    let tree = machine_of_two(MINOR, PODS);
    let mut stays = wanted(&tree);
    stays.ignored.push("upgrade.drain".to_owned());
    let done = tree.keeper().k3s_upgrade(&stays, "root").unwrap();
    assert_eq!((done.outcome.as_str(), asked(&tree).as_str()), ("done", ""));
}

#[test]
fn a_version_that_does_not_come_up_ends_on_the_old_one_that_is_ready() {
    for next in [PATCH, MINOR] {
        let tree = machine(next);
        tree.put("broken", next, 0o644);
        let before = snapshot(&tree);
        let done = upgrade(&tree).unwrap();
        assert_eq!(done.outcome, "failed", "{done:?}");
        assert!(done.sentence.contains("reverted"), "{done:?}");
        assert_eq!(version(&tree), VERSION);
        assert!(tree.keeper().k3s_status(None).unwrap().is_ready);
        let (mut now, mut then) = (snapshot(&tree), before);
        for all in [&mut now, &mut then] {
            assert!(
                all.remove("var/lib/rancher/k3s/server/db/state.db")
                    .is_some()
            );
        }
        assert_same(&now, &then, next);
        assert_eq!(words(&tree), ["first"]);
    }
}

#[test]
fn a_step_that_kubernetes_does_not_support_is_refused() {
    for (next, word) in [
        ("v1.36.0+k3s1", "skips a minor version"),
        ("v1.34.3+k3s1", "older"),
        (VERSION, "installed already"),
    ] {
        let tree = machine(next);
        let before = tree.snapshot();
        let refused = upgrade(&tree).unwrap_err();
        assert!(refused.sentence().contains(word), "{refused:?}");
        assert!(refused.fix.is_some());
        assert_same(&tree.snapshot(), &before, next);
    }
    let tree = machine(PATCH);
    std::fs::remove_dir_all(tree.root().join("run/k3s")).unwrap();
    let refused = upgrade(&tree).unwrap_err();
    assert!(refused.fix.unwrap().contains("--ignore upgrade.node"));
}

#[test]
fn an_upgrade_that_was_cut_off_anywhere_is_whole_or_gone() {
    for broken in [false, true] {
        let prepared = || {
            let tree = machine(MINOR);
            if broken {
                tree.put("broken", MINOR, 0o644);
            }
            tree
        };
        cut_everywhere(9, prepared, upgrade, |tree, at| {
            // Cut before the intent was on disk, nothing has happened.
            if !broken && version(tree) == VERSION {
                assert_eq!(upgrade(tree).unwrap().outcome, "done", "{at}");
            }
            assert_eq!(version(tree), if broken { VERSION } else { MINOR }, "{at}");
            assert!(tree.keeper().k3s_status(None).unwrap().is_ready, "{at}");
            assert_eq!(words(tree), ["first"], "{at}");
            let left = tree.read("etc/systemd/system/pipeops-k3s-resume.service");
            assert_eq!(left, None, "{at}");
        });
    }
}

#[test]
fn an_etcd_whose_servers_cannot_be_counted_is_not_upgraded_without_a_word() {
    let tree = machine(PATCH);
    std::fs::create_dir_all(
        tree.root()
            .join("var/lib/rancher/k3s/server/db/etcd/member/wal"),
    )
    .unwrap();
    let ids = |wanted: &Upgrade| {
        let plan = tree.keeper().k3s_upgrade_plan(wanted).unwrap();
        let ids = plan.refused.into_iter().map(|finding| finding.id);
        ids.collect::<Vec<_>>()
    };
    assert_eq!(ids(&wanted(&tree)), ["upgrade.servers"]);
    let before = tree.snapshot();
    let refused = upgrade(&tree).unwrap_err();
    assert!(
        refused.to_string().contains("--ignore upgrade.servers"),
        "{refused}"
    );
    assert_same(&tree.snapshot(), &before, "refused");
    let mut forced = wanted(&tree);
    forced.ignored.push("upgrade.servers".to_owned());
    assert!(ids(&forced).is_empty());
    // Before the etcd that repairs its members.
    tree.put("usr/local/bin/k3s", "v1.33.6+k3s1", 0o755);
    assert_eq!(ids(&forced), ["upgrade.etcd"]);
}

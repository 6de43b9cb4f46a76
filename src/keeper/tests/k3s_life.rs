//! Installation and removal of k3s, cut off at every write of the journal.

use std::{
    os::unix::fs::{MetadataExt, symlink},
    time::Duration,
};

use super::{
    super::{
        journal::cut,
        k3s::{Install, Program, Source, Uninstall},
    },
    *,
};
use crate::core::{
    k3s::{proxy::Proxy, texts::InstallOptions, watch::PROGRESS},
    url::ProxyUrl,
};

pub(super) const VERSION: &str = "v1.34.4+k3s1";

/// A machine with systemd. `start` is what happens when k3s is started, and `node` what its API
/// says.
fn machine(start: &str, state: &str, ready: &str) -> Tree {
    let systemctl = format!(
        "case \"$*\" in\n\
         *pipeops*) ;;\n\
         enable*) mkdir -p etc/systemd/system/multi-user.target.wants; ln -sf ../k3s.service etc/systemd/system/multi-user.target.wants/k3s.service;;\n\
         disable*) rm -f etc/systemd/system/multi-user.target.wants/k3s.service;;\n\
         start*) {start};;\n\
         show*) printf 'ActiveState={state}\\nNRestarts=0\\n';;\n\
         esac"
    );
    // What it says is of tomorrow, so that it is never older than the start.
    let k3s = format!(
        "case $1 in --version) echo 'k3s version {VERSION} (x)';; \
         kubectl) [ -d run/k3s ] && printf '{VERSION}|{ready}|2099-01-01T00:00:00Z|';; esac"
    );
    Tree::in_memory()
        .with("run/systemd/system/x", "")
        .with(
            "etc/systemd/system/multi-user.target.wants/other.service",
            "",
        )
        .with("proc/sys/kernel/hostname", "box\n")
        .with(
            "proc/meminfo",
            "MemTotal: 950000 kB\nMemAvailable: 500000 kB\n",
        )
        .with("usr/local/bin/other", "")
        .with("var/lib/other", "")
        .with("release/k3s", "this is k3s")
        .with("release/images", "these are images")
        .program("systemctl", &systemctl)
        .program("k3s", &k3s)
        .program("k3s-killall.sh", "rm -rf run/k3s")
        .program(
            "journalctl",
            "echo 'level=fatal msg=\"no default routes found\"'",
        )
}

/// From now on a start of k3s does this.
pub(super) fn starts(tree: &Tree, script: &str) {
    let other = machine(script, "active", "True");
    let program = "usr/sbin/systemctl";
    tree.put(program, &other.read(program).unwrap(), 0o755);
}

const STARTS: &str = "mkdir -p run/k3s var/lib/kubelet/pods var/lib/rancher/k3s/server/db/etcd etc/rancher/node; echo db >var/lib/rancher/k3s/server/db/state.db; echo box >var/lib/rancher/k3s/server/db/etcd/name; echo p >etc/rancher/node/password; echo k >etc/rancher/k3s/k3s.yaml";

pub(super) fn good() -> Tree {
    machine(STARTS, "active", "True")
}

pub(super) fn source(tree: &Tree, name: &str) -> Source {
    let path = tree.root().join("release").join(name);
    let sum = crate::files::sum(&path).unwrap().unwrap();
    Source {
        path,
        sha256: sum.sha256,
        name: name.to_owned(),
    }
}

pub(super) fn wanted(tree: &Tree) -> Install {
    Install {
        binary: Program::Here(source(tree, "k3s")),
        images: vec![source(tree, "images")],
        version: VERSION.parse().ok(),
        options: InstallOptions::default(),
        registries: None,
        ignored: crate::core::doctor::checks()
            .map(|check| check.id.to_owned())
            .chain(["disk.room".to_owned(), "disk.noexec".to_owned()])
            .collect(),
        reuses_data: false,
        join: None,
        proxy: None,
        within: Duration::ZERO,
        program: "/usr/bin/pipeops-agent".to_owned(),
        connects: true,
        built: Wall::default(),
    }
}

fn removal(keeps_data: bool) -> Uninstall {
    Uninstall {
        takes_found: false,
        keeps_data,
        program: "/usr/bin/pipeops-agent".to_owned(),
    }
}

pub(super) fn install(tree: &Tree) -> Result<Done> {
    tree.keeper().k3s_install(&wanted(tree), "root")
}

/// Two trees are the same; where not, only what differs is told.
pub(super) fn assert_same(found: &Snapshot, wanted: &Snapshot, at: &str) {
    let differ = |one: &Snapshot, other: &Snapshot| {
        let names = one
            .iter()
            .filter(|(name, content)| other.get(*name) != Some(content));
        names.map(|(name, _)| name.clone()).collect::<Vec<_>>()
    };
    let (more, less) = (differ(found, wanted), differ(wanted, found));
    assert!(
        more.is_empty() && less.is_empty(),
        "{at}: there is {more:?}, and there was {less:?}"
    );
}

/// Borders of the journal's writes of that work.
pub(super) fn borders<T>(tree: &Tree, work: impl Fn(&Tree) -> Result<T>) -> u32 {
    const MANY: u32 = 1_000_000;
    cut::at(Some(MANY));
    work(tree).unwrap();
    MANY - cut::left().unwrap()
}

#[test]
fn an_installation_is_ready_and_its_removal_leaves_what_was_there() {
    let tree = good();
    let before = tree.snapshot();
    let plan = tree.keeper().k3s_install_plan(&wanted(&tree)).unwrap();
    assert!(plan.refused.is_empty(), "{plan:?}");
    assert!(
        plan.warned
            .iter()
            .any(|finding| finding.id == "memory.parts"),
        "{plan:?}"
    );
    assert_same(&tree.snapshot(), &before, "");
    let done = install(&tree).unwrap();
    assert_eq!(done.outcome, "done", "{done:?}");
    assert!(done.undo.unwrap().contains("k3s uninstall"));
    assert_eq!(
        tree.read("usr/local/bin/k3s").as_deref(),
        Some("this is k3s")
    );
    assert!(
        tree.read("etc/rancher/k3s/config.yaml.d/50-pipeops-agent.yaml")
            .unwrap()
            .contains("traefik")
    );
    assert!(
        tree.read("etc/systemd/system/pipeops-k3s-resume.service")
            .is_none()
    );
    let id = done.change.unwrap();
    assert!(
        tree.keeper()
            .undo(&id, "root")
            .unwrap_err()
            .sentence()
            .contains("k3s uninstall")
    );
    let status = tree.keeper().k3s_status(None).unwrap();
    assert_eq!(
        (status.managed.as_str(), status.is_ready),
        ("installed", true),
        "{status:?}"
    );
    assert!(install(&tree).unwrap_err().sentence().contains("already"));
    let plan = tree.keeper().k3s_uninstall_plan(&removal(false)).unwrap();
    assert!(
        plan.steps
            .iter()
            .any(|step| step.does == "remove /var/lib/kubelet"),
        "{plan:?}"
    );
    assert_eq!(
        tree.keeper()
            .k3s_uninstall(&removal(false), "root")
            .unwrap()
            .outcome,
        "done"
    );
    assert_same(&tree.snapshot(), &before, "");
    assert_eq!(tree.keeper().k3s_status(None).unwrap().managed, "none");
    assert!(
        tree.keeper()
            .k3s_uninstall(&removal(false), "root")
            .is_err()
    );
}

#[test]
fn the_password_of_a_proxy_is_in_one_file_of_roots_and_goes_with_k3s() {
    let tree = good();
    let before = tree.snapshot();
    let wanted = Install {
        proxy: Some(Proxy {
            url: ProxyUrl::parse("http://me:hunter2@proxy.lan:3128").unwrap(),
            direct: Vec::new(),
        }),
        ..wanted(&tree)
    };
    let plan = tree.keeper().k3s_install_plan(&wanted).unwrap();
    let told = plan.warned.iter().find(|found| found.id == "k3s.proxy");
    assert!(told.unwrap().what.contains("10.43.0.0/16"), "{plan:?}");
    assert!(!format!("{plan:?}").contains("hunter2"), "{plan:?}");
    let done = tree.keeper().k3s_install(&wanted, "root").unwrap();
    assert_eq!(done.outcome, "done", "{done:?}");
    let path = "etc/rancher/k3s-proxy.env";
    assert!(tree.read(path).unwrap().contains("hunter2"));
    let mode = std::fs::metadata(tree.root().join(path)).unwrap().mode();
    assert_eq!(mode & 0o777, 0o600);
    let journal = std::fs::read_dir(tree.root().join("var/keeper")).unwrap();
    for entry in journal.flatten() {
        let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
        assert!(!text.contains("hunter2"), "{entry:?}");
    }
    let done = tree
        .keeper()
        .k3s_uninstall(&removal(false), "root")
        .unwrap();
    assert_eq!(done.outcome, "done", "{done:?}");
    assert_same(&tree.snapshot(), &before, "");
}

#[test]
fn ports_that_a_public_address_would_expose_are_named() {
    let public = "Local:\n|-- 203.0.113.7\n /32 host LOCAL\n|-- 10.0.0.7\n /32 host LOCAL\n";
    for (trie, node_ip, told) in [
        (public, None, Some("203.0.113.7")),
        (public, Some("10.0.0.7"), None),
        (&public.replace("203.0.113", "192.168.1"), None, None),
        ("", Some("2001:db8::7"), Some("2001:db8::7")),
    ] {
        let tree = good().with("proc/net/fib_trie", trie);
        let mut wanted = wanted(&tree);
        wanted.options.node_ip = node_ip.map(str::to_owned);
        let plan = tree.keeper().k3s_install_plan(&wanted).unwrap();
        let found = plan.warned.iter().find(|it| it.id == "network.public");
        assert_eq!(found.is_some(), told.is_some(), "{node_ip:?} {plan:?}");
        let (what, told) = (found.map_or("", |it| &it.what), told.unwrap_or_default());
        assert!(what.starts_with(told), "{what}");
        assert!(told.is_empty() || what.contains("6443 (API)") && what.contains("8472/udp"));
    }
}

#[test]
fn k3s_and_the_agent_are_protected_from_the_end_of_memory_where_nobody_minds() {
    for is_wanted in [true, false] {
        let tree = good().with("usr/lib/systemd/system/pipeops-agent.service", "");
        let before = tree.snapshot();
        let mut wanted = wanted(&tree);
        if !is_wanted {
            wanted.ignored.push("memory.protect".to_owned());
        }
        let plan = tree.keeper().k3s_install_plan(&wanted).unwrap();
        let is_told = plan.warned.iter().any(|it| it.id == "memory.protect");
        assert_eq!(is_told, is_wanted, "{plan:?}");
        let done = tree.keeper().k3s_install(&wanted, "root").unwrap();
        assert_eq!(done.outcome, "done", "{done:?}");
        for (unit, score) in [("k3s", "-999"), ("pipeops-agent", "-500")] {
            let path = format!("etc/systemd/system/{unit}.service.d/50-pipeops-k3s.conf");
            let text = tree.read(&path).unwrap_or_default();
            let line = format!("OOMScoreAdjust={score}\n");
            assert_eq!(text.contains(&line), is_wanted, "{unit}: {text}");
        }
        let done = tree
            .keeper()
            .k3s_uninstall(&removal(false), "root")
            .unwrap();
        assert_eq!(done.outcome, "done", "{done:?}");
        assert_same(&tree.snapshot(), &before, "");
    }
}

#[test]
fn a_k3s_of_somebody_else_is_removed_only_where_that_is_said() {
    let tree = good();
    install(&tree).unwrap();
    std::fs::remove_file(tree.root().join("var/keeper/k3s.managed")).unwrap();
    let installed = tree.snapshot();
    let refused = tree.keeper().k3s_uninstall(&removal(false), "root");
    let refused = refused.unwrap_err();
    assert!(
        refused.sentence().contains("did not install it"),
        "{refused:?}"
    );
    assert!(refused.fix.unwrap().contains("--found --dry-run"));
    assert_same(&tree.snapshot(), &installed, "refused");
    let wanted = Uninstall {
        takes_found: true,
        ..removal(false)
    };
    let done = tree.keeper().k3s_uninstall(&wanted, "root").unwrap();
    assert_eq!(done.outcome, "done");
}

#[test]
fn the_data_stays_where_that_is_wanted_and_is_never_taken_for_an_empty_place() {
    let tree = good();
    install(&tree).unwrap();
    tree.keeper().k3s_uninstall(&removal(true), "root").unwrap();
    assert!(
        tree.read("var/lib/rancher/k3s/server/db/state.db")
            .is_some()
    );
    assert!(
        tree.read("usr/local/bin/k3s").is_none()
            && tree.read("etc/rancher/node/password").is_some()
    );
    assert!(
        install(&tree)
            .unwrap_err()
            .fix
            .unwrap()
            .contains("--reuse-data")
    );
    let again = Install {
        reuses_data: true,
        ..wanted(&tree)
    };
    assert_eq!(
        tree.keeper().k3s_install(&again, "root").unwrap().outcome,
        "done"
    );
}

#[test]
fn an_installation_that_does_not_become_ready_is_undone_with_the_reason() {
    let tree = machine(STARTS, "failed", "False");
    let before = tree.snapshot();
    let done = install(&tree).unwrap();
    assert_eq!(done.outcome, "failed");
    assert!(
        done.sentence.contains("no default routes found"),
        "{done:?}"
    );
    assert_same(&tree.snapshot(), &before, "");
}

#[test]
fn a_wait_that_begins_late_takes_what_the_running_kubelet_has_reported() {
    // As one that goes on after an interruption: the next report comes within five minutes.
    for (job, outcome) in [("", "done"), ("\\nJob=7", "failed")] {
        let state = format!("active{job}\\nExecMainStartTimestampMonotonic=1");
        let tree = machine(STARTS, &state, "True");
        let reported = Wall::from_millis(clock::now().wall.millis() - 5000).rfc3339();
        let program = tree.read("usr/sbin/k3s").unwrap();
        let program = program.replace("2099-01-01T00:00:00Z", &reported);
        tree.put("usr/sbin/k3s", &program, 0o755);
        assert_eq!(install(&tree).unwrap().outcome, outcome, "{state}");
    }
}

#[test]
fn a_log_directory_that_is_open_to_its_group_is_no_obstacle() {
    for (mode, is_trusted) in [(0o775, true), (0o777, false)] {
        let tree = good();
        let logs = tree.root().join("var/log");
        std::fs::create_dir_all(logs.join("pods")).unwrap();
        std::fs::set_permissions(&logs, std::fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(
            install(&tree).is_ok_and(|done| done.outcome == "done"),
            is_trusted,
            "{mode:o}"
        );
        if is_trusted {
            // The group exchanges what is removed for a link.
            std::fs::remove_dir(logs.join("pods")).unwrap();
            tree.put("home/kept", "", 0o600);
            symlink(tree.root().join("home"), logs.join("pods")).unwrap();
            let removed = tree.keeper().k3s_uninstall(&removal(false), "root");
            assert_eq!(removed.unwrap().outcome, "done");
            assert!(tree.read("home/kept").is_some());
        }
    }
}

#[test]
fn a_program_with_another_hash_or_version_is_not_installed() {
    let tree = good();
    let before = tree.snapshot();
    let other = |change: fn(&mut Install)| {
        let mut wanted = wanted(&tree);
        change(&mut wanted);
        tree.keeper()
            .k3s_install(&wanted, "root")
            .unwrap_err()
            .sentence()
    };
    let with_hash = |wanted: &mut Install| {
        if let Program::Here(source) = &mut wanted.binary {
            source.sha256 = "0".repeat(64);
        }
    };
    assert!(other(with_hash).contains("SHA-256"));
    assert!(other(|wanted| wanted.version = "v1.34.5+k3s1".parse().ok()).contains("v1.34.5"));
    assert!(
        other(|wanted| wanted.options.data_dir = Some("/var/../x".to_owned()))
            .contains("data directory")
    );
    assert!(
        other(|wanted| wanted.options.node_name = Some("No".to_owned())).contains("name of a node")
    );
    assert!(
        other(|wanted| wanted.options.node_labels = vec!["a\nb: c".to_owned()])
            .contains("single word")
    );
    assert_same(&tree.snapshot(), &before, "");
}

/// Cuts that work off at borders of the journal's writes, and goes on as the next start does. Of
/// each kind of border, which follow each other in steps of five, every `stride`th is tried.
pub(super) fn cut_everywhere(
    stride: usize,

    prepared: impl Fn() -> Tree,
    work: impl Fn(&Tree) -> Result<Done>,
    judge: impl Fn(&Tree, &str),
) {
    let last = borders(&prepared(), &work);
    assert!(last > 15, "{last}");
    for border in (0..last).step_by(stride) {
        let tree = prepared();
        cut::at(Some(border));
        work(&tree).unwrap_err();
        // At times another one while it is taken up again.
        if border % 4 == 0 {
            cut::at(Some(border % 7));
            drop(tree.keeper().k3s_resume());
        }
        cut::at(None);
        tree.keeper().k3s_resume().unwrap();
        judge(&tree, &format!("cut at border {border} of {last}"));
    }
}

#[test]
fn an_installation_that_was_cut_off_anywhere_is_whole_or_gone() {
    let (before, after) = {
        let tree = good();
        let before = tree.snapshot();
        install(&tree).unwrap();
        (before, tree.snapshot())
    };
    cut_everywhere(1, good, install, |tree, at| {
        let found = tree.snapshot();
        if found == before {
            // Nothing had been written down yet.
            assert_eq!(
                tree.keeper()
                    .k3s_install(&wanted(tree), "root")
                    .unwrap()
                    .outcome,
                "done",
                "{at}"
            );
        }
        assert_same(&tree.snapshot(), &after, at);
    });
}

#[test]
fn an_installation_that_fails_and_was_cut_off_anywhere_leaves_nothing() {
    let make = || machine(STARTS, "failed", "False");
    let before = make().snapshot();
    cut_everywhere(3, make, install, |tree, at| {
        assert_same(&tree.snapshot(), &before, at)
    });
}

#[test]
fn a_removal_that_was_cut_off_anywhere_comes_to_its_end() {
    let before = good().snapshot();
    let installed = || {
        let tree = good();
        install(&tree).unwrap();
        tree
    };
    let remove = |tree: &Tree| tree.keeper().k3s_uninstall(&removal(false), "root");
    cut_everywhere(3, installed, remove, |tree, at| {
        if tree.snapshot() != before {
            remove(tree).unwrap();
        }
        assert_same(&tree.snapshot(), &before, at);
    });
}

#[test]
fn a_removal_that_was_killed_at_its_last_writes_tells_of_no_step() {
    let group = Some(nix::unistd::Gid::effective().as_raw());
    let remove = |tree: &Tree| {
        let keeper = tree.keeper().shown_to(group);
        keeper.k3s_uninstall(&removal(false), "root")
    };
    let installed = || {
        let tree = good();
        install(&tree).unwrap();
        let doing = tree.root().join(PROGRESS.trim_start_matches('/'));
        (tree, doing)
    };
    let last = borders(&installed().0, remove);
    for border in last - 6..last {
        let (tree, doing) = installed();
        cut::gone_by_the_end(Some(doing.clone()));
        cut::at(Some(border));
        remove(&tree).unwrap_err();
        cut::at(None);
        if tree.keeper().changes().unwrap()[0].outcome == "running" {
            // A process that is killed leaves what one that is cut off here takes back.
            tree.put(PROGRESS.trim_start_matches('/'), "{}", 0o640);
        }
        tree.keeper().shown_to(group).k3s_resume().unwrap();
        cut::gone_by_the_end(None);
        assert!(
            !doing.parent().unwrap().exists(),
            "cut at {border} of {last}"
        );
    }
}

#[test]
fn a_plan_reports_an_interrupted_change_and_leaves_it_to_the_command_itself() {
    let tree = good();
    cut::at(Some(5));
    drop(install(&tree));
    cut::at(None);
    let (before, calls) = (tree.snapshot(), tree.calls());
    let refused = tree.keeper().k3s_install_plan(&wanted(&tree)).unwrap_err();
    assert!(refused.sentence().contains("k3s-install-1"), "{refused}");
    assert!(refused.to_string().contains("k3s resume"), "{refused}");
    assert_same(&tree.snapshot(), &before, "a plan");
    assert_eq!(tree.calls(), calls);
    assert_eq!(tree.keeper().k3s_resume().unwrap().len(), 1);
}

#[test]
fn an_enforcing_selinux_without_its_policy_holds_an_installation_up() {
    let tree = good().with("sys/fs/selinux/enforce", "1");
    let mut wanted = wanted(&tree);
    let ids = |wanted: &Install| {
        let plan = tree.keeper().k3s_install_plan(wanted).unwrap();
        plan.refused.into_iter().map(|it| it.id).collect::<Vec<_>>()
    };
    assert!(ids(&wanted).is_empty());
    wanted.ignored.retain(|id| id != "system.selinux");
    assert_eq!(ids(&wanted), ["system.selinux"]);
    let before = tree.snapshot();
    let refused = tree.keeper().k3s_install(&wanted, "root").unwrap_err();
    assert!(refused.to_string().contains("k3s-selinux"), "{refused}");
    assert!(
        refused.to_string().contains("--ignore system.selinux"),
        "{refused}"
    );
    assert_same(&tree.snapshot(), &before, "refused");
    tree.put("usr/share/selinux/packages/k3s.pp", "", 0o644);
    assert!(ids(&wanted).is_empty());
    // What it installs gets the labels of the policy.
    let tree = tree.program("restorecon", "");
    let done = tree.keeper().k3s_install(&wanted, "root").unwrap();
    assert_eq!(done.outcome, "done", "{done:?}");
    assert!(tree.calls().contains("restorecon /usr/local/bin/k3s\n"));
}

#[test]
fn a_web_server_is_not_cut_off_by_an_ingress_that_nobody_asked_for() {
    let listening = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
        0: 00000000:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 777 1 0 100 0 0 10 0\n";
    let tree = good().with("proc/self/net/tcp", listening);
    let wanted = |change: &dyn Fn(&mut Install)| {
        let mut wanted = wanted(&tree);
        wanted.ignored.retain(|id| id != "network.web-ports");
        wanted.options.has_all_parts = true;
        change(&mut wanted);
        let plan = tree.keeper().k3s_install_plan(&wanted).unwrap();
        let ids = |all: Vec<crate::wire::keeper::Finding>| {
            all.into_iter().any(|it| it.id == "network.web-ports")
        };
        (ids(plan.refused), ids(plan.warned))
    };
    assert_eq!(wanted(&|_| {}), (true, false));
    for part in ["traefik", "servicelb", "metrics-server,traefik"] {
        let change = |wanted: &mut Install| wanted.options.disable.push(part.to_owned());
        assert_eq!(wanted(&change), (false, false), "{part}");
    }
    // With little memory it comes without.
    assert_eq!(
        wanted(&|wanted| wanted.options.has_all_parts = false),
        (false, false)
    );
    // Somebody knows.
    let change = |wanted: &mut Install| wanted.ignored.push("network.web-ports".to_owned());
    assert_eq!(wanted(&change), (false, true));
    tree.put("etc/rancher/k3s/config.yaml", "disable: [traefik]\n", 0o600);
    assert_eq!(wanted(&|_| {}), (false, false));
}

/// An installation with its data on a disk of the user's, which is a directory that is there.
pub(super) fn on_disk(ignored: &str) -> (Tree, Install) {
    let tree = machine(
        &STARTS.replace("var/lib/rancher/k3s", "mnt/ssd"),
        "active",
        "True",
    )
    .with("mnt/ssd/photos/one", "a photo")
    .with("mnt/ssd/data/films/one", "a film");
    let mut wanted = wanted(&tree);
    wanted.options.data_dir = Some("/mnt/ssd".to_owned());
    wanted.ignored.push(ignored.to_owned());
    (tree, wanted)
}

#[test]
fn a_data_directory_with_files_of_others_is_refused_with_a_place_beside_them() {
    let (tree, wanted) = on_disk("");
    let before = tree.snapshot();
    let refused = tree.keeper().k3s_install(&wanted, "root").unwrap_err();
    assert!(
        refused
            .sentence()
            .contains("/mnt/ssd/data/films, /mnt/ssd/photos"),
        "{refused:?}"
    );
    assert!(refused.fix.unwrap().contains("--data-dir /mnt/ssd/k3s"));
    assert_same(&tree.snapshot(), &before, "refused");
    // In a directory with a name of k3s' they would go with it.
    let (tree, wanted) = on_disk("disk.mixed");
    tree.put("mnt/ssd/server/minecraft/world", "a world", 0o644);
    let refused = tree.keeper().k3s_install(&wanted, "root").unwrap_err();
    assert!(
        refused.sentence().contains("/mnt/ssd/server has files"),
        "{refused:?}"
    );
    assert!(refused.fix.unwrap().contains("--data-dir /mnt/ssd/k3s"));
}

#[test]
fn the_disk_of_the_data_directory_is_judged_and_no_other_one() {
    let (network, local) = ("nfs4 10.0.0.1:/pi rw", "ext4 /dev/sda1 rw");
    for (root, disk, is_refused) in [(network, local, false), (local, network, true)] {
        let (tree, mut wanted) = on_disk("disk.mixed");
        let mounts = format!("21 1 0:5 / / rw - {root}\n22 21 0:6 / /mnt/ssd rw - {disk}\n");
        tree.put("proc/self/mountinfo", &mounts, 0o644);
        wanted.ignored.retain(|id| id != "disk.network-root");
        let plan = tree.keeper().k3s_install_plan(&wanted).unwrap();
        let found = plan.refused.iter().map(|finding| finding.what.as_str());
        let found: Vec<_> = found.filter(|what| what.contains("nfs4")).collect();
        assert_eq!(!found.is_empty(), is_refused, "{found:?}");
        assert!(
            found.iter().all(|what| what.contains("/mnt/ssd is on")),
            "{found:?}"
        );
    }
}

#[test]
fn a_removal_leaves_files_of_others_in_the_data_directory() {
    let (tree, wanted) = on_disk("disk.mixed");
    let before = tree.snapshot();
    let done = tree.keeper().k3s_install(&wanted, "root").unwrap();
    assert_eq!(done.outcome, "done", "{done:?}");
    let program = format!("mnt/ssd/data/{}/bin/k3s", "0a".repeat(32));
    tree.put(&program, "unpacked", 0o755);
    tree.put("mnt/ssd/storage/pvc-1_shop_db/file", "of a Pod", 0o644);
    let plan = tree.keeper().k3s_uninstall_plan(&removal(false)).unwrap();
    let stays = plan
        .warned
        .iter()
        .find(|found| found.id == "uninstall.others");
    assert!(stays.unwrap().what.contains("/mnt/ssd/photos"), "{plan:?}");
    let done = tree
        .keeper()
        .k3s_uninstall(&removal(false), "root")
        .unwrap();
    assert_eq!(done.outcome, "done", "{done:?}");
    assert_same(&tree.snapshot(), &before, "");
}

#[test]
fn an_installation_that_fails_leaves_nothing_in_a_directory_that_was_there() {
    let tree = machine(STARTS, "failed", "False").with("var/lib/rancher/k3s/lost+found/x", "");
    let before = tree.snapshot();
    assert_eq!(install(&tree).unwrap().outcome, "failed");
    assert_same(&tree.snapshot(), &before, "");
}

#[test]
fn a_place_that_another_runtime_uses_by_now_stays() {
    let tree = good().with("proc/813/comm", "containerd\n").with(
        "proc/813/cmdline",
        "containerd\0-c\0/var/lib/rancher/k3s/agent/etc/containerd/config.toml\0",
    );
    install(&tree).unwrap();
    let shared = [
        "run/containerd/containerd.sock",
        "var/lib/cni/results/podman-x",
        "run/netns/vpn",
    ];
    for path in shared {
        tree.put(path, "", 0o644);
    }
    let stays = || {
        let plan = tree.keeper().k3s_uninstall_plan(&removal(false)).unwrap();
        let stays = plan
            .warned
            .into_iter()
            .filter(|found| found.id == "uninstall.shared");
        stays.map(|found| found.what).collect::<Vec<_>>()
    };
    // k3s' own containerd is no sign of another.
    assert_eq!(stays().len(), 2, "{:?}", stays());
    tree.put("proc/812/comm", "dockerd\n", 0o644);
    let found = stays();
    assert_eq!(found.len(), 3, "{found:?}");
    assert!(
        found[2].contains("/var/lib/cni stays: Docker runs (process 812"),
        "{found:?}"
    );
    let done = tree
        .keeper()
        .k3s_uninstall(&removal(false), "root")
        .unwrap();
    assert_eq!(done.outcome, "done", "{done:?}");
    for path in shared {
        assert!(tree.read(path).is_some(), "{path}");
    }
    assert!(
        tree.read("var/lib/rancher/k3s/server/db/state.db")
            .is_none()
    );
}

#[test]
fn settings_that_were_there_before_k3s_outlive_it() {
    let tree = good();
    for (path, text) in [
        ("config.yaml", "write-kubeconfig-mode: \"0600\"\n"),
        ("registries.yaml", "mirrors: {}\n"),
        ("config.yaml.d/10-mine.yml", "node-name: alpha\n"),
    ] {
        tree.put(&format!("etc/rancher/k3s/{path}"), text, 0o600);
    }
    let before = tree.snapshot();
    let plan = tree.keeper().k3s_install_plan(&wanted(&tree)).unwrap();
    assert!(format!("{plan:?}").contains("alpha"), "{plan:?}");
    install(&tree).unwrap();
    tree.keeper()
        .k3s_uninstall(&removal(false), "root")
        .unwrap();
    assert_same(&tree.snapshot(), &before, "");
}

#[test]
fn a_data_directory_of_the_settings_is_refused_as_that_of_the_options_is() {
    let tree = good();
    let file = "etc/rancher/k3s/config.yaml";
    tree.put(file, "data-dir: \"/mnt/My Disk/k3s\"\n", 0o600);
    let refused = install(&tree).unwrap_err();
    assert!(
        refused.sentence().contains("/mnt/My Disk/k3s"),
        "{refused:?}"
    );
    tree.put(file, "data-dir: /mnt/disk/k3s/\n", 0o600);
    install(&tree).unwrap();
}

#[test]
fn settings_that_cannot_be_read_are_refused_with_their_line() {
    let tree = good();
    let text = "node-label: a=b\ndata-dir: &data /srv/k3s\ndefault-local-storage-path: *data\n";
    tree.put("etc/rancher/k3s/config.yaml.d/a.yaml", text, 0o600);
    let refused = install(&tree).unwrap_err();
    let sentence = refused.sentence();
    assert!(
        sentence.contains("config.yaml.d/a.yaml") && sentence.contains("line 2"),
        "{refused:?}"
    );
    assert!(refused.fix.is_some());
}

use std::time::Duration;

use super::{install::ROTATION, resume::RESUME_UNIT, *};
use crate::core::k3s::{
    BINARY, DROP_IN, KILLALL, MADE, connect,
    runtimes::Use,
    servers::Datastore,
    step::{Drain, Staged, Step, When},
    texts::{InstallOptions, drop_in},
};

fn staged(name: &str) -> Staged {
    Staged {
        path: format!("/staged/{name}"),
        sha256: "a".repeat(64),
        bytes: 7,
    }
}

fn wanted() -> Install {
    Install {
        init: Init::Systemd,
        role: Role::Server,
        token: None,
        proxy: None,
        binary: staged("k3s"),
        version: "v1.34.4+k3s1".parse().unwrap(),
        images: vec![("images.tar".to_owned(), staged("images"))],
        data_dir: "/mnt/ssd/k3s".to_owned(),
        node: "pi".to_owned(),
        drop_in: drop_in(&InstallOptions::default(), &[], 1 << 40),
        registries: None,
        program: "/usr/bin/pipeops-agent".to_owned(),
        connects: false,
        protected: Vec::new(),
        note: ("/note".to_owned(), String::new()),
    }
}

fn made(steps: &[Step]) -> Vec<&str> {
    let made = steps.iter().filter_map(|step| match step {
        Step::Made { path } => Some(path.as_str()),
        Step::Directory { .. }
        | Step::File { .. }
        | Step::Copy { .. }
        | Step::Link { .. }
        | Step::Run { .. }
        | Step::Ready { .. }
        | Step::Move { .. }
        | Step::Datastore { .. }
        | Step::Cordon { .. }
        | Step::Drain { .. }
        | Step::Gone { .. } => None,
    });
    made.collect()
}

fn at(steps: &[Step], found: impl Fn(&Step) -> bool) -> usize {
    steps.iter().position(found).unwrap()
}

#[test]
fn what_was_there_before_is_not_removed_by_the_undo() {
    let there = [
        "/mnt",
        "/mnt/ssd",
        "/var/lib/kubelet",
        "/usr/local/bin",
        "/usr/local/bin/kubectl",
    ];
    let is_there = |path: &str| there.contains(&path);
    let steps = install(&wanted(), &is_there);
    let made = made(&steps);
    assert!(
        !made.contains(&"/var/lib/kubelet") && made.contains(&"/run/k3s"),
        "{made:?}"
    );
    assert!(made.contains(&"/mnt/ssd/k3s"), "{made:?}");
    let touched = |wanted: &str| {
        steps.iter().any(|step| {
                matches!(step, Step::Directory { path } | Step::Link { path, .. } if path == wanted)
            })
    };
    assert!(
        !touched("/mnt/ssd") && !touched("/usr/local/bin/kubectl"),
        "{steps:?}"
    );
    assert!(
        touched("/etc/rancher/k3s/config.yaml.d") && touched("/usr/local/bin/ctr"),
        "{steps:?}"
    );
}

#[test]
fn nothing_starts_before_everything_is_in_its_place_and_the_way_back_stands() {
    let steps = install(&wanted(), &|_| false);
    let start = at(
        &steps,
        |step| matches!(step, Step::Run { forth, .. } if forth.contains(&"start".to_owned())),
    );
    let ready = at(&steps, |step| matches!(step, Step::Ready { .. }));
    for path in [
        BINARY,
        DROP_IN,
        KILLALL,
        Role::Server.uninstall_script(),
        Role::Server.unit_path(),
        RESUME_UNIT,
        "/note",
    ] {
        let written = at(
            &steps,
            |step| matches!(step, Step::File { path: found, .. } | Step::Copy { path: found, .. } if found == path),
        );
        assert!(written < start && start < ready, "{path}");
    }
    // With the data directory, and the three files of the watch in memory.
    let last = made(&steps).len();
    assert_eq!(last, MADE.len() + 4);
    assert!(
        steps
            .iter()
            .all(|step| !matches!(step, Step::Made { path } if path == "/"))
    );
}

#[test]
fn openrc_finds_its_data_directory_and_a_log_that_is_rotated() {
    let wanted = Install {
        init: Init::OpenRc,
        // From the network k3s has no archive of images.
        images: Vec::new(),
        ..wanted()
    };
    let steps = install(&wanted, &|_| false);
    let data = at(
        &steps,
        |step| matches!(step, Step::Directory { path } if path == "/mnt/ssd/k3s"),
    );
    let undone = at(
        &steps,
        |step| matches!(step, Step::Made { path } if path == "/mnt/ssd/k3s"),
    );
    let rotated = at(&steps, |step| {
        matches!(step, Step::File { path, content, .. }
                if path == ROTATION && content.contains("/var/log/k3s.log {"))
    });
    let start = at(
        &steps,
        |step| matches!(step, Step::Run { forth, .. } if forth.contains(&"start".to_owned())),
    );
    assert!(undone < data && data < start && rotated < start);
    let all = made(&steps);
    assert!(
        all.contains(&"/var/log/k3s.log.1") && all.contains(&"/var/log/k3s.log.2"),
        "{all:?}"
    );
}

#[test]
fn a_node_goes_before_its_password_and_its_pods_before_both() {
    let drain = Drain {
        within: Duration::from_secs(60),
        is_forced: false,
        pods: Vec::new(),
    };
    let wanted = NodeRemoval {
        node: Some(Node {
            init: Init::Systemd,
            program: "/usr/bin/pipeops-agent".to_owned(),
            data_dir: "/d".to_owned(),
            node: "pi".to_owned(),
            is_cordoned: false,
            drain: Some(drain),
        }),
        init: Init::Systemd,
        program: "/usr/bin/pipeops-agent".to_owned(),
        data_dir: "/d".to_owned(),
        worker: "pi".to_owned(),
        api: None,
    };
    let steps = remove_node(&wanted);
    let ran = |word: &str| {
        at(
            &steps,
            |step| matches!(step, Step::Run { forth, .. } if forth.iter().any(|part| part == word)),
        )
    };
    let drained = at(&steps, |step| matches!(step, Step::Drain { .. }));
    assert!(drained < ran("node") && ran("node") < ran("secret"));
}

fn upgraded(datastore: Datastore, servers: usize, kind: Kind) -> Vec<Step> {
    upgrade(&wanted_upgrade(datastore, servers, kind))
}

fn wanted_upgrade(datastore: Datastore, servers: usize, kind: Kind) -> Upgrade {
    Upgrade {
        init: Init::Systemd,
        role: Role::Server,
        program: "/usr/bin/pipeops-agent".to_owned(),
        data_dir: "/d".to_owned(),
        node: "pi".to_owned(),
        is_enabled: true,
        from: "v1.34.4+k3s1".parse().unwrap(),
        to: "v1.35.1+k3s1".parse().unwrap(),
        kind,
        binary: staged("k3s"),
        before: staged("before"),
        images: Vec::new(),
        servers,
        datastore,
        drain: None,
    }
}

#[test]
fn pods_move_before_an_upgrade_and_the_node_takes_pods_again_in_the_end_in_both_ways() {
    let drain = Drain {
        within: Duration::from_secs(60),
        is_forced: false,
        pods: Vec::new(),
    };
    let steps = upgrade(&Upgrade {
        drain: Some(drain),
        ..wanted_upgrade(Datastore::Etcd, 2, Kind::Minor)
    });
    let ran = |word: &str| {
        at(
            &steps,
            |step| matches!(step, Step::Run { forth, .. } if forth.iter().any(|part| part == word)),
        )
    };
    let ready = |wanted: When| {
        at(
            &steps,
            |step| matches!(step, Step::Ready { when, .. } if *when == wanted),
        )
    };
    let cordoned = at(&steps, |step| matches!(step, Step::Cordon { .. }));
    let drained = at(&steps, |step| matches!(step, Step::Drain { .. }));
    assert!(cordoned < drained && drained < ran("stop"));
    assert!(ready(When::Forth) < ran("uncordon"));
    // The undo goes from the end: the old version is Ready before its node is opened.
    assert!(cordoned < ready(When::Back));
}

#[test]
fn only_the_datastore_of_a_single_server_is_put_back_and_only_several_have_a_lease() {
    let kept = |steps: &[Step]| {
        steps.iter().find_map(|step| {
            let Step::Datastore { path, .. } = step else {
                return None;
            };
            Some(path.clone())
        })
    };
    for (datastore, servers, kind, wanted) in [
        (
            Datastore::Sqlite,
            1,
            Kind::Minor,
            Some("/d/server/db/state.db"),
        ),
        (Datastore::Sqlite, 1, Kind::Patch, None),
        (Datastore::Etcd, 1, Kind::Minor, Some("/d/server/db/etcd")),
        (Datastore::Etcd, 2, Kind::Minor, None),
        // Nobody could count them.
        (Datastore::Etcd, 0, Kind::Minor, None),
    ] {
        let steps = upgraded(datastore, servers, kind);
        assert_eq!(kept(&steps).as_deref(), wanted, "{datastore:?} {servers}");
        let is_given_back = |words: &[String]| words.iter().any(|word| word == "lease");
        let leases = steps.iter().filter(|step| {
                matches!(step, Step::Run { forth, back } if is_given_back(forth) || is_given_back(back))
            });
        assert_eq!(leases.count(), if servers > 1 { 2 } else { 0 });
    }
    // Forth at the end, back before nothing else than the service of the resume.
    let steps = upgraded(Datastore::Etcd, 3, Kind::Patch);
    let given_back = at(
        &steps,
        |step| matches!(step, Step::Run { back, .. } if back.iter().any(|word| word == "lease")),
    );
    let first_wait = at(&steps, |step| matches!(step, Step::Ready { .. }));
    assert!(given_back < first_wait);
}

#[test]
fn a_datastore_that_etcd_3_5_does_not_read_any_more_is_kept_for_the_undo() {
    let keeps = |from: &str, to: &str, datastore, servers| {
        let wanted = Upgrade {
            from: from.parse().unwrap(),
            to: to.parse().unwrap(),
            ..wanted_upgrade(datastore, servers, Kind::Patch)
        };
        let steps = upgrade(&wanted);
        steps
            .iter()
            .any(|step| matches!(step, Step::Datastore { .. }))
    };
    let (before, with_it) = ("v1.33.12+k3s1", "v1.33.13+k3s1");
    assert!(keeps(before, with_it, Datastore::Etcd, 1));
    assert!(!keeps(before, with_it, Datastore::Etcd, 2));
    assert!(!keeps(before, with_it, Datastore::Sqlite, 1));
    assert!(!keeps(with_it, "v1.33.14+k3s1", Datastore::Etcd, 1));
}

#[test]
fn k3s_does_not_start_at_boot_while_a_change_has_stopped_it() {
    let command = |step: &Step, word: &str| {
        let Step::Run { forth, back } = step else {
            return [false; 2];
        };
        let is_it = |words: &[String]| {
            let of_k3s = words.last().is_some_and(|last| last == "k3s");
            words == [KILLALL] && word == "stop" || of_k3s && words.iter().any(|it| it == word)
        };
        [is_it(forth), is_it(back)]
    };
    let positions = |steps: &[Step], word: &str, way: usize| {
        let all = steps.iter().enumerate();
        let found = all.filter(|(_, step)| command(step, word)[way]);
        found.map(|(at, _)| at).collect::<Vec<_>>()
    };
    let in_order = |steps: &[Step], words: [&str; 4], way: usize| {
        let at: Vec<_> = words.map(|word| positions(steps, word, way)).concat();
        assert_eq!(at.len(), 4, "{steps:#?}");
        assert!(at.is_sorted(), "{at:?} of {steps:#?}");
    };
    let restored = restore(&of_etcd(), &|_: &str| true);
    let upgraded = upgraded(Datastore::Sqlite, 1, Kind::Minor);
    for steps in [&restored, &upgraded] {
        in_order(steps, ["disable", "stop", "enable", "start"], 0);
    }
    // The way back runs from the end.
    for steps in [&restored, &upgraded] {
        in_order(steps, ["start", "enable", "stop", "disable"], 1);
    }
    // One that nobody starts at boot stays so.
    let by_hand = Restore {
        is_enabled: false,
        ..of_etcd()
    };
    let steps = restore(&by_hand, &|_: &str| true);
    assert!(positions(&steps, "enable", 0).is_empty());
}

fn of_etcd() -> Restore {
    Restore {
        init: Init::Systemd,
        program: "/usr/bin/pipeops-agent".to_owned(),
        data_dir: "/d".to_owned(),
        node: "pi".to_owned(),
        is_enabled: true,
        version: "v1.34.4+k3s1".parse().unwrap(),
        items: vec!["token".to_owned(), "tls".to_owned()],
        there: vec!["tls".to_owned(), "db/etcd".to_owned()],
        settings: vec![SettingsFile {
            path: "/etc/rancher/k3s/config.yaml".to_owned(),
            content: Content::Text(String::new()),
        }],
        datastore: Datastore::Etcd,
        options: vec!["--node-ip=10.0.0.2".to_owned()],
    }
}

#[test]
fn etcd_is_reset_to_the_snapshot_between_the_settings_and_the_start() {
    let steps = restore(&of_etcd(), &|_| true);
    let ran = |word: &str| {
        at(
            &steps,
            |step| matches!(step, Step::Run { forth, .. } if forth.iter().any(|part| part.contains(word))),
        )
    };
    let aside = at(
        &steps,
        |step| matches!(step, Step::Move { from, to } if from == "/d/server/db/etcd" && to == "/d/server/before-restore/db/etcd"),
    );
    let text = at(
        &steps,
        |step| matches!(step, Step::File { path, .. } if path.ends_with("config.yaml")),
    );
    let made = at(
        &steps,
        |step| matches!(step, Step::Made { path } if path == "/d/server/db/etcd"),
    );
    let reset =
        ran("--cluster-reset-restore-path=/d/server/restoring/data/server/db/etcd-snapshot");
    assert!(aside < made && text < reset && made < reset && reset < ran("start"));
    assert_eq!(ran("--node-ip=10.0.0.2"), reset);
    // The snapshot is a file, whatever bucket the settings name.
    assert_eq!(ran("--etcd-s3=false"), reset);
}

#[test]
fn the_agent_gets_a_credential_of_the_cluster_that_is_there() {
    let steps = restore(&of_etcd(), &|_| true);
    let ready = |wanted: When| {
        at(
            &steps,
            |step| matches!(step, Step::Ready { when, .. } if *when == wanted),
        )
    };
    let again = |command: &[String]| command.join(" ") == connect::again(Init::Systemd);
    let made = at(
        &steps,
        |step| matches!(step, Step::Run { forth, .. } if again(forth)),
    );
    let made_back = at(
        &steps,
        |step| matches!(step, Step::Run { back, .. } if again(back)),
    );
    // An undo goes from the end.
    assert!(ready(When::Forth) < made && made_back < ready(When::Back));
    let steps = restore(&of_etcd(), &|_| false);
    let is_such =
        |step: &Step| matches!(step, Step::Run { forth, back } if again(forth) || again(back));
    assert!(!steps.iter().any(is_such));
}

#[test]
fn a_removal_takes_what_k3s_made_and_leaves_what_it_is_asked_to() {
    let mut wanted = Uninstall {
        init: Init::Systemd,
        role: Role::Server,
        data_dir: "/mnt/ssd/k3s".to_owned(),
        program: "/usr/bin/pipeops-agent".to_owned(),
        note: "/note".to_owned(),
        kept: vec!["/var/lib/cni".to_owned()],
        shared: vec![Use {
            path: "/run/netns",
            why: String::new(),
        }],
        keep: Keep::Nothing,
        links: Vec::new(),
        data: vec!["/mnt/ssd/k3s".to_owned()],
    };
    let all = trees(&wanted, &|_| true);
    assert!(
        all.contains(&"/mnt/ssd/k3s".to_owned()) && all.contains(&"/etc/rancher/k3s".to_owned())
    );
    for kept in ["/var/lib/cni", "/run/netns"] {
        assert!(!all.contains(&kept.to_owned()), "{all:?}");
    }
    assert!(all.contains(&"/run/containerd".to_owned()), "{all:?}");
    wanted.keep = Keep::Data;
    let some = trees(&wanted, &|_| true);
    assert!(some.contains(&"/var/lib/kubelet".to_owned()));
    assert!(
        !some
            .iter()
            .any(|path| path.starts_with("/mnt") || path.starts_with("/etc/rancher")),
        "{some:?}"
    );
    let steps = uninstall(&wanted, &|_| true);
    let killed = at(
        &steps,
        |step| matches!(step, Step::Run { forth, .. } if forth == &[KILLALL]),
    );
    let disabled = at(
        &steps,
        |step| matches!(step, Step::Run { forth, .. } if forth.iter().any(|word| word == "disable")),
    );
    assert!(disabled < killed);
    let gone = at(
        &steps,
        |step| matches!(step, Step::Gone { path, .. } if path == "/var/lib/kubelet"),
    );
    assert!(killed < gone);
}

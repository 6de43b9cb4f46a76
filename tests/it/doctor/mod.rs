//! The doctor: every check on a tree that has the problem and on its healthy twin, and some
//! provoked for real.

use std::collections::BTreeSet;

use pipeops_agent::{
    core::{
        doctor::{self, CheckOutcome, CheckResult, Judgement, checks},
        environment::{Environment, READS},
        facts::Fact,
        repair::Repair,
    },
    wire::api,
};

mod cases;
mod real;
mod repairs;
mod tree;

use tree::{RawCommand, healthy};

#[test]
fn on_a_healthy_machine_it_finds_nothing() {
    for (name, tree) in healthy() {
        let said = tree.said();
        assert_eq!(said.problems(), Vec::<String>::new(), "{name}");
    }
}

#[test]
fn every_check_fires_on_its_problem_and_names_what_is_there() {
    let mut fired = BTreeSet::new();
    let mut wrong = Vec::new();
    for case in cases::all() {
        let said = case.tree.said();
        let verdict = said.of(case.id);
        if verdict.outcome != CheckOutcome::Problem {
            wrong.push(format!("{}: {verdict:?}", case.id));
            continue;
        }
        let fix = verdict.fix.as_deref().unwrap_or_default();
        let told = format!("{}\n{fix}\n{}", verdict.seen, verdict.commands.join("\n"));
        let missing = case.words.iter().filter(|word| !told.contains(*word));
        wrong.extend(missing.map(|word| format!("{}: no {word} in {told}", case.id)));
        wrong.extend(names_what_is_not_there(&said, verdict));
        fired.insert(case.id);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    let all: BTreeSet<_> = checks().map(|check| check.id).collect();
    let never: Vec<_> = all.difference(&fired).collect();
    assert!(never.is_empty(), "no case for {never:?}");
}

#[test]
fn each_environment_is_called_what_it_is() {
    let environments = [
        (
            "Debian GNU/Linux 12 (bookworm), systemd, bare, apt, Raspberry Pi firmware, /boot/firmware/cmdline.txt",
            0,
        ),
        (
            "Ubuntu 24.04.1 LTS, systemd, bare, apt, GRUB, /etc/default/grub",
            0,
        ),
        (
            "Rocky Linux 9.4, systemd, bare, dnf, GRUB, /etc/default/grub",
            0,
        ),
        (
            "Alpine Linux v3.20, OpenRC, bare, apk, extlinux, /etc/update-extlinux.conf",
            0,
        ),
        (
            "Debian GNU/Linux 12 (bookworm), systemd, lxc, apt, host, ",
            1,
        ),
        (
            "Debian GNU/Linux 12 (bookworm), systemd, wsl2, apt, Windows, ",
            1,
        ),
    ];
    for ((name, tree), (words, notes)) in healthy().into_iter().zip(environments) {
        let told = api::Environment::from(&tree.said().environment);
        let seen = [
            told.distribution.unwrap(),
            told.init,
            told.virtualisation,
            told.package_manager,
            told.boot_loader,
            told.boot_file.unwrap_or_default(),
        ];
        assert_eq!(seen.join(", "), words, "{name}");
        assert_eq!(
            told.cgroup.unwrap(),
            "2: cpuset, cpu, io, memory, hugetlb, pids"
        );
        assert_eq!(told.page_size_bytes, Some(4096));
        assert_eq!(told.notes.len(), notes, "{name}");
    }
    let board = api::Environment::from(&tree::raspberry_pi().said().environment).board;
    assert_eq!(board.unwrap(), "Raspberry Pi 4 Model B Rev 1.4");
}

/// A fix is of use only where it names files of this very machine; a file that it makes has its
/// folder, or it makes that too.
fn names_what_is_not_there(said: &RawCommand, verdict: &CheckResult) -> Vec<String> {
    let fix = verdict.fix.as_deref().unwrap_or_default();
    let text = format!("{fix} {}", verdict.commands.join(" "));
    let mut wrong = Vec::new();
    if fix.is_empty() || text.contains(['{', '}']) {
        wrong.push(format!("{}: {text}", verdict.check.id));
    }
    for path in paths(&text) {
        let here = said.root.path().join(path.trim_start_matches('/'));
        let is_there = |path: &std::path::Path| {
            path.exists() || path.parent().is_some_and(std::path::Path::is_dir)
        };
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let makes = |command: &String| {
            let made = command.strip_prefix("sudo mkdir -p ");
            made.is_some_and(|made| made == folder || made == path)
        };
        if !is_there(&here) && !verdict.commands.iter().any(makes) {
            wrong.push(format!("{}: {path} is not there: {text}", verdict.check.id));
        }
    }
    wrong
}

/// Words that are paths on this machine. Those of a host, of Windows and of networks are not, nor
/// are patterns.
fn paths(text: &str) -> Vec<&str> {
    let words = text.split(|sign: char| sign.is_whitespace() || "\"'();,<>=|&".contains(sign));
    let words = words.map(|word| word.trim_end_matches(['.', ':']));
    words
        .filter(|word| {
            word.starts_with('/') && word.len() > 1 && !word.contains(['*', '$', '[', '\\', '^'])
        })
        .filter(|word| {
            ["/etc/pve/", "/dev/"]
                .iter()
                .all(|other| !word.starts_with(other))
        })
        .collect()
}

/// What a check says that it reads is what root's helper and an honest "not seen" go by.
#[test]
fn a_check_reads_what_it_says_and_nothing_else() {
    let mut wrong = Vec::new();
    for case in cases::all() {
        let said = case.tree.said();
        let check = said.of(case.id).check;
        let mut facts = said.facts;
        let own: Vec<_> = check.reads.iter().chain(READS).collect();
        facts.found.retain(|name, _| {
            let is_asked = !name.contains('/') || name.starts_with("write ");
            is_asked || own.iter().any(|pattern| fits(pattern, name))
        });
        let judged = (check.judge)(&facts, &said.environment);
        if !matches!(judged, Judgement::Problem(_)) {
            wrong.push(format!("{}: {judged:?}", case.id));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

fn fits(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((before, after)) => name
            .strip_prefix(before)
            .is_some_and(|rest| rest.ends_with(after)),
    }
}

#[test]
fn one_cause_is_one_finding() {
    let tree = tree::raspberry_pi()
        .with("sys/fs/cgroup/cgroup.controllers", "cpuset cpu pids\n")
        .without("sys/fs/cgroup/system.slice")
        .with("proc/self/net/tcp", "")
        .failing("kubeconfig", "no file\nwrite it")
        .failing("kubernetes api", "refused\nstart it");
    let said = tree.said();
    assert_eq!(
        said.problems(),
        ["cgroup.memory: the kernel was started without the memory controller"]
    );
    for id in ["k3s.service", "k3s.kubeconfig", "k3s.api"] {
        let verdict = said.of(id);
        assert_eq!(verdict.outcome, CheckOutcome::Skipped, "{id}");
        assert_eq!(verdict.because, Some("cgroup.memory"), "{id}");
    }
}

#[test]
fn what_only_root_sees_is_unknown_and_root_completes_it() {
    let config = "/etc/rancher/k3s/config.yaml";
    let mut facts = tree::ubuntu().said().facts;
    facts.found.insert(config.to_owned(), Fact::Forbidden);
    let environment = Environment::of(&facts);
    let of = |facts: &_, id: &str| {
        let verdicts = doctor::judge(facts, &environment);
        let verdict = verdicts.into_iter().find(|verdict| verdict.check.id == id);
        let verdict = verdict.unwrap();
        (verdict.outcome, verdict.seen, verdict.needs_root)
    };
    let unseen = (CheckOutcome::Unknown, doctor::NEEDS_ROOT.to_owned(), true);
    assert_eq!(of(&facts, "network.overlap"), unseen);
    let text = Fact::Text("cluster-cidr: 192.168.0.0/16\n".to_owned());
    facts.complete([(config.to_owned(), text)].into());
    let (outcome, seen, needs_root) = of(&facts, "network.overlap");
    assert_eq!(
        (outcome, needs_root),
        (CheckOutcome::Problem, false),
        "{seen}"
    );
}

#[test]
fn the_table_is_in_order_and_says_everything() {
    assert!(checks().count() >= 45);
    let mut before = BTreeSet::new();
    for check in checks() {
        assert!(before.insert(check.id), "{} is there twice", check.id);
        for cause in check.after {
            assert!(before.contains(cause), "{} stands before {cause}", check.id);
        }
        let (room, what) = check.id.split_once('.').unwrap();
        assert!(!room.is_empty() && !what.is_empty());
        for text in [check.title, check.why] {
            assert!(!text.is_empty() && !text.ends_with('.'), "{text}");
        }
    }
    for repair in Repair::ALL {
        assert!(before.contains(repair.check()), "{}", repair.check());
    }
}

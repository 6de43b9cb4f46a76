//! The doctor: every check on a tree that has the problem and on its healthy twin, and some provoked for real.

use std::collections::BTreeSet;

use pipeops_agent::{
    core::preflight::{Outcome, Verdict, checks},
    wire::api,
};

mod cases;
mod tree;

use tree::{Said, healthy};

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
    for case in cases::all() {
        let said = case.tree.said();
        let verdict = said.of(case.id);
        let told = format!("{}: {verdict:?}", case.id);
        assert_eq!(verdict.outcome, Outcome::Problem, "{told}");
        for word in case.words {
            let all = format!(
                "{}\n{}\n{}",
                verdict.seen,
                verdict.fix.as_deref().unwrap_or_default(),
                verdict.commands.join("\n")
            );
            assert!(all.contains(word), "{}: no {word} in {all}", case.id);
        }
        names_what_is_there(&said, verdict);
        fired.insert(case.id);
    }
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

/// A fix is of use only where it names files of this very machine; a file that it makes has its folder.
fn names_what_is_there(said: &Said, verdict: &Verdict) {
    let fix = verdict.fix.as_deref().unwrap_or_default();
    assert!(!fix.is_empty() && !fix.contains(['{', '}']), "{verdict:?}");
    let text = format!("{fix} {}", verdict.commands.join(" "));
    for path in paths(&text) {
        let here = said.root.path().join(path.trim_start_matches('/'));
        let has_folder = here.parent().is_some_and(std::path::Path::is_dir);
        assert!(
            here.exists() || has_folder,
            "{}: {path} is not there: {text}",
            verdict.check.id
        );
    }
    for command in &verdict.commands {
        assert!(!command.contains(['{', '}']), "{command}");
    }
}

/// Words that are paths on this machine. Those of a host, of Windows and of networks are not, nor are patterns.
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

#[test]
fn the_table_is_in_order_and_says_everything() {
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
    let automatic = checks().filter(|check| check.automatic.is_some());
    let automatic: BTreeSet<_> = automatic.map(|check| check.id).collect();
    let closed = [
        "cgroup.memory",
        "clock.sync",
        "kernel.modules",
        "limits.inotify",
    ];
    assert_eq!(automatic, closed.into());
}

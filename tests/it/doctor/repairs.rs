//! Repairs: what the doctor prints for a person and what the root helper does leave the same
//! machine behind.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::unix::fs::PermissionsExt,
    path::Path,
};

use pipeops_agent::{
    core::{doctor::CheckOutcome, repair::Repair},
    keeper::Keeper,
};

use super::tree::{RELEASE, RawCommand, Tree, raspberry_pi, ubuntu};
use crate::agent::{command, put};

const SWAPS: &str = "Filename Type Size Used Priority\n/dev/mmcblk0p3 partition 102396 2048 -2\n";
const PI_MOUNTS: &str = "21 1 179:2 / / rw,noatime - ext4 /dev/mmcblk0p2 rw\n22 21 179:1 / /boot/firmware rw - vfat /dev/mmcblk0p1 rw\n";

/// A machine for every way in which a repair is done.
fn machines() -> Vec<(&'static str, Tree)> {
    let without_memory = |tree: Tree| {
        tree.with("sys/fs/cgroup/cgroup.controllers", "cpuset cpu io pids\n")
            .with("proc/self/mountinfo", PI_MOUNTS)
    };
    let pi = || raspberry_pi().with("proc/self/mountinfo", PI_MOUNTS);
    let swapping = || {
        pi().with("proc/swaps", SWAPS).with(
            "proc/meminfo",
            "MemTotal: 900000 kB\nMemAvailable: 500000 kB\n",
        )
    };
    vec![
        ("cgroup.memory", without_memory(raspberry_pi())),
        (
            "cgroup.memory",
            without_memory(raspberry_pi()).with(
                "boot/firmware/cmdline.txt",
                "root=/dev/sda2 cgroup_memory=1 ",
            ),
        ),
        (
            "cgroup.memory",
            without_memory(ubuntu()).with("boot/grub/grub.cfg", "linux /vmlinuz\n"),
        ),
        (
            "limits.inotify",
            ubuntu()
                .with("proc/sys/fs/inotify/max_user_instances", "128\n")
                .with("proc/sys/fs/inotify/max_user_watches", "600000\n"),
        ),
        (
            "network.manager",
            ubuntu()
                .with("sys/fs/cgroup/system.slice/NetworkManager.service/", "")
                .with("etc/NetworkManager/NetworkManager.conf", "[main]\n")
                .with("run/NetworkManager/x", ""),
        ),
        (
            "swap.card",
            swapping().with("etc/dphys-swapfile", "").with(
                "etc/systemd/system/multi-user.target.wants/dphys-swapfile.service",
                "",
            ),
        ),
        ("swap.card", swapping().with("etc/dphys-swapfile", "")),
        (
            "swap.card",
            swapping().with("etc/rpi/swap.conf", "[Main]\n"),
        ),
        (
            "kernel.modules",
            raspberry_pi()
                .with("proc/modules", "overlay 1 0 - Live 0x0\n")
                .with("sys/module/overlay/x", ""),
        ),
        ("clock.sync", raspberry_pi().without("run/systemd/timesync")),
        (
            "log.journal",
            raspberry_pi()
                .with("etc/systemd/journald.conf", "#SystemMaxUse=\n")
                .with_space("/", |space| space.size = 32_000_000_000),
        ),
    ]
}

/// Programs of the machine: each notes its call and has the effect that matters, below the root in
/// `ROOT` or beside itself.
const PROGRAMS: [(&str, &str); 6] = [
    ("nmcli", ""),
    ("systemctl", ""),
    ("modprobe", "mkdir -p sys/module/$1"),
    (
        "timedatectl",
        "case \"$*\" in *=NTP) cat ntp 2>/dev/null || echo no;; *CanNTP) echo yes;; *true) echo yes > ntp;; esac",
    ),
    (
        "update-grub",
        "cat etc/default/grub.d/*.cfg >> boot/grub/grub.cfg",
    ),
    (
        "dphys-swapfile",
        "echo 'Filename Type Size Used Priority' > proc/swaps",
    ),
];

fn program(root: &Path, name: &str, script: &str) {
    let path = root.join("usr/sbin").join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    put(
        &path,
        &format!(
            "#!/bin/sh\ncd \"${{0%/usr/sbin/*}}\" || exit 9\n\
             case \"$*\" in show*) ;; *) echo \"{name} $*\" >> calls;; esac\n{script}\n"
        ),
    );
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
}

/// Every file of a machine with its content, and the programs that were called.
fn left(root: &Path) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut open = vec![root.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            let name = path.strip_prefix(root).unwrap().display().to_string();
            if path.is_dir() {
                open.push(path);
            } else if !name.starts_with("usr/") && path.extension().is_none_or(|it| it != "bak") {
                let text = String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned();
                all.insert(name, text);
            }
        }
    }
    all
}

/// A machine with its programs, and what the doctor says of it.
fn machine(tree: &Tree) -> RawCommand {
    let said = tree.said();
    for (name, script) in PROGRAMS {
        program(said.root.path(), name, script);
    }
    said
}

/// Types commands, with paths of the machine below its root.
fn type_in(root: &Path, commands: &[String]) {
    let shown = root.display();
    let mut lines = format!(
        "set -e\nPATH={shown}/usr/sbin:/usr/bin:/bin\nsudo() {{ \"$@\"; }}\nreboot() {{ :; }}\n\
         sysctl() {{ name=$(echo \"${{2%=*}}\" | tr . /); echo \"${{2#*=}}\" > {shown}/proc/sys/$name; }}\n"
    );
    for command in commands {
        let mut line = command.clone();
        for folder in ["etc", "boot", "proc", "sys", "media"] {
            line = line.replace(&format!(" /{folder}/"), &format!(" {shown}/{folder}/"));
        }
        lines.push_str(&line);
        lines.push('\n');
    }
    let output = command("sh").args(["-c", &lines]).output().unwrap();
    assert!(
        output.status.success(),
        "{lines}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn what_is_typed_by_hand_and_what_the_helper_does_leave_the_same_behind() {
    let mut tried = BTreeSet::new();
    for (check, tree) in machines() {
        let by_hand = machine(&tree);
        let verdict = by_hand.of(check);
        assert_eq!(
            verdict.outcome,
            CheckOutcome::Problem,
            "{check}: {verdict:?}"
        );
        let recipe = verdict.recipe.as_ref().expect(check);
        assert!(!verdict.commands.is_empty(), "{check}");
        let before = left(by_hand.root.path());
        type_in(by_hand.root.path(), &verdict.commands);

        let by_helper = machine(&tree);
        let journal = tempfile::tempdir().unwrap();
        let keeper = Keeper::new(by_helper.root.path(), &journal.path().join("keeper"));
        let plan = keeper.plan(check).unwrap();
        assert_eq!(
            (&plan.does, &plan.leaves, &plan.undo),
            (&recipe.does, &recipe.leaves, &recipe.undo),
            "{check}"
        );
        let done = keeper.fix(check, "root").unwrap();
        assert_eq!(done.outcome, "done", "{check}: {done:?}");

        let after = left(by_hand.root.path());
        assert_ne!(after, before, "{check}: nothing was changed");
        assert_eq!(after, left(by_helper.root.path()), "{check}");
        tried.insert(check);
    }
    let all: BTreeSet<_> = Repair::ALL.into_iter().map(Repair::check).collect();
    assert_eq!(tried, all);
}

#[test]
fn a_repair_is_offered_only_where_the_helper_would_do_it() {
    let no_repair = [
        ("swap.card", raspberry_pi().with("proc/swaps", SWAPS)),
        // A time server that does not answer is not reached by switching on what is on.
        (
            "clock.sync",
            raspberry_pi()
                .without("run/systemd/timesync")
                .with("run/systemd/timesync/waiting", ""),
        ),
        (
            "cgroup.memory",
            super::tree::rocky().with("sys/fs/cgroup/cgroup.controllers", "cpu pids\n"),
        ),
        (
            "cgroup.memory",
            super::tree::lxc().with("sys/fs/cgroup/cgroup.controllers", "cpu pids\n"),
        ),
        (
            "kernel.modules",
            raspberry_pi().with_words(
                &format!("lib/modules/{RELEASE}/modules.dep"),
                "veth",
                "other",
            ),
        ),
    ];
    for (check, tree) in no_repair {
        let said = tree.said();
        let verdict = said.of(check);
        assert_eq!(
            verdict.outcome,
            CheckOutcome::Problem,
            "{check}: {verdict:?}"
        );
        assert_eq!(verdict.recipe, None, "{check}");
        assert!(verdict.fix.is_some(), "{check}");
    }
}

//! Checks of logs: disk errors in the kernel's log, and the size of the others.

#![expect(
    clippy::items_after_statements,
    reason = "an advice stands where it is given"
)]

use super::{Advice, Check, Fact, Facts, Judgement, Problem, ok};
use crate::core::{
    environment::{Environment, Init},
    health::Severity::{Critical, Note, Warning},
    repair::{recipe, settled},
};

const KERNEL_LOG: &str = "/dev/kmsg";
const LOG: &[&str] = &[KERNEL_LOG];
/// Kernel messages of a failing disk,
pub(super) const IO_ERRORS: [&str; 5] = [
    "I/O error",
    "critical medium error",
    "EXT4-fs error",
    "mmc0: timeout",
    "Buffer I/O",
];
/// when an adapter does not answer,
pub(super) const USB: [&str; 2] = ["uas_eh_abort_handler", "uas_eh_device_reset"];
/// and when the power was cut.
pub(super) const UNCLEAN: [&str; 4] = [
    "recovery complete",
    "corrupted or uncleanly shut down",
    "recovering journal",
    "not properly unmounted",
];
const MOUNTS: &str = "/proc/self/mountinfo";

/// The table.
pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "disk.kernel-log",
        title: "Disk errors in the kernel log",
        severity: Critical,
        after: &["disk.errors"],
        reads: LOG,
        why: "the disk, its cable or its power supply is failing",
        judge: io_errors,
    },
    Check {
        id: "disk.usb",
        title: "USB disks",
        severity: Warning,
        after: &[],
        reads: LOG,
        why: "an adapter that is incompatible with UAS repeatedly hangs for half a minute",
        judge: usb,
    },
    Check {
        id: "disk.unclean",
        title: "Last shutdown",
        severity: Note,
        after: &[],
        reads: LOG,
        why: "the power was cut while files were being written",
        judge: unclean,
    },
    Check {
        id: "log.journal",
        title: "Size of the journal",
        severity: Note,
        after: &[],
        reads: &[
            settled::JOURNAL[0],
            settled::JOURNAL[1],
            settled::JOURNAL[2],
            settled::JOURNAL[3],
            "/var/log/journal/",
            MOUNTS,
        ],
        why: "without a limit the journal uses a tenth of the disk, up to 4 GB, and writes all the time",
        judge: journal,
    },
    Check {
        id: "log.rotation",
        title: "Rotation of the k3s log",
        severity: Warning,
        after: &[],
        reads: &[
            "stat /var/log/k3s.log",
            "stat /usr/sbin/logrotate",
            "/run/openrc/",
        ],
        why: "the log grows until the disk is full",
        judge: rotation,
    },
];
/// The last line of the kernel's log with one of these words is the problem.
fn in_log(facts: &Facts, words: &[&str], clean: &str, advice: &'static Advice) -> Judgement {
    let text = match facts.found.get(KERNEL_LOG) {
        Some(Fact::Text(text)) => text,
        Some(Fact::Forbidden) => return Judgement::Unknown(super::NEEDS_ROOT.to_owned()),
        Some(Fact::Missing | Fact::Failed(_)) | None => {
            return Judgement::NotHere("the kernel log is not readable here");
        }
    };
    // Images that programs mount are no disks of this machine.
    let line = text
        .lines()
        .rfind(|line| !line.contains("(loop") && words.iter().any(|word| line.contains(word)));
    match line {
        // `6,1234,98765,-;text`
        Some(line) => {
            Problem::new(line.split_once(';').map_or(line, |(_, text)| text), advice).into()
        }
        None => ok(clean),
    }
}

fn io_errors(facts: &Facts, _: &Environment) -> Judgement {
    const ADVICE: Advice = Advice {
        fix: "make a backup, try another cable and power supply, and replace the disk or card",
        commands: &["sudo dmesg -T | grep -iE 'i/o error|mmc' | tail"],
    };
    in_log(facts, &IO_ERRORS, "none since the machine started", &ADVICE)
}

fn usb(facts: &Facts, _: &Environment) -> Judgement {
    const ADVICE: Advice = Advice {
        fix: "find the adapter's VID:PID with lsusb and disable UAS for it, replacing VID:PID below: {kernel usb-storage.quirks=VID:PID:u}",
        commands: &["lsusb"],
    };
    in_log(facts, &USB, "no hangs since the machine started", &ADVICE)
}

fn unclean(facts: &Facts, _: &Environment) -> Judgement {
    const ADVICE: Advice = Advice {
        fix: "check that k3s recovered; a small UPS or a reliable power supply prevents this",
        commands: &["{log k3s}", "sudo /usr/local/bin/k3s kubectl get nodes"],
    };
    in_log(
        facts,
        &UNCLEAN,
        "it was clean, as far as the kernel log shows",
        &ADVICE,
    )
}

fn journal(facts: &Facts, environment: &Environment) -> Judgement {
    if environment.init != Init::Systemd {
        return Judgement::NotHere("systemd-journald is not in use");
    }
    let mut files = settled::JOURNAL.iter().flat_map(|name| facts.each(name));
    if files.any(|(_, text)| settled::limits_journal(text)) {
        return ok("it is limited");
    }
    if !facts.has("/var/log/journal/") {
        return ok("it is kept in memory");
    }
    const SMALL: u64 = 64_000_000_000;
    match facts.disk_of("/var/log/journal") {
        Some((_, disk)) if disk.space.size >= SMALL => return ok("no limit, on a large disk"),
        Some(_) => {}
        None => return Judgement::NotHere("the host manages the disk"),
    }
    const ADVICE: Advice = Advice {
        fix: "limit it with a file in /etc/systemd/journald.conf.d",
        commands: &[],
    };
    Problem::new("no limit, on a small disk", &ADVICE)
        .repaired_by(Some(recipe::journal()))
        .into()
}

fn rotation(facts: &Facts, environment: &Environment) -> Judgement {
    if environment.init != Init::OpenRc || !facts.has("stat /var/log/k3s.log") {
        return Judgement::NotHere("k3s does not log to a file");
    }
    if facts.has("stat /usr/sbin/logrotate") {
        return ok("logrotate is installed");
    }
    const ADVICE: Advice = Advice {
        fix: "install logrotate; the configuration for k3s comes with k3s",
        commands: &["{install logrotate}"],
    };
    Problem::new(
        "/var/log/k3s.log grows, and logrotate is not installed",
        &ADVICE,
    )
    .into()
}

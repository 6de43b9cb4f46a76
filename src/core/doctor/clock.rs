//! Checks of the clock and of the machine's unique ids.

#![expect(
    clippy::items_after_statements,
    reason = "an advice stands where it is given"
)]

use super::{Advice, Check, Facts, Judgement, Problem, ok, unread};
use crate::core::{
    environment::{Environment, Init, Virtualisation},
    health::Severity::{Critical, Note, Warning},
    repair::recipe,
    time::{DAY_MS, Wall},
};

/// Files whose time of change keeps the time on boards without a battery, so that it cannot be
/// later than now. Other files prove nothing: they come from backups and other machines.
const STAMPS: [&str; 2] = [
    "stat /var/lib/systemd/timesync/clock",
    "stat /etc/fake-hwclock.data",
];
/// The stamp of a file that is written this very moment may be a little ahead, and so may one from
/// before a time server set the clock back by seconds.
const SLACK_MS: i64 = 60_000;

/// The table.
pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "clock.wrong",
        title: "Clock",
        severity: Critical,
        after: &[],
        reads: &STAMPS,
        why: "TLS certificates are rejected when the clock is wrong: no connection to the control plane, no image pulls, and k3s creates unusable certificates at its first start",
        judge: clock,
    },
    Check {
        id: "clock.sync",
        title: "Time synchronization",
        severity: Warning,
        after: &[],
        reads: &[
            "/run/systemd/timesync/",
            "/sys/fs/cgroup/system.slice/",
            "/proc/*/comm",
        ],
        why: "without synchronization the clock drifts, which breaks certificates and the order of measurements",
        judge: clock_sync,
    },
    Check {
        id: "clock.battery",
        title: "Real-time clock",
        severity: Note,
        after: &[],
        reads: &[
            "/sys/class/rtc/",
            "stat /etc/fake-hwclock.data",
            "stat /var/lib/systemd/timesync/clock",
        ],
        why: "without a real-time clock the machine starts in the past after a power cut, until a time server answers",
        judge: battery,
    },
    Check {
        id: "host.name",
        title: "Host name",
        severity: Warning,
        after: &[],
        reads: &[
            "/proc/sys/kernel/hostname",
            "/etc/rancher/k3s/config.yaml",
            "/etc/rancher/k3s/",
        ],
        why: "two nodes with the same name evict each other from the cluster, and Kubernetes only accepts lower-case names",
        judge: host_name,
    },
    Check {
        id: "host.machine-id",
        title: "Machine ID",
        severity: Warning,
        after: &[],
        reads: &["/etc/machine-id", "/var/lib/dbus/machine-id"],
        why: "machines with the same ID get the same address from DHCP and are mistaken for each other; without one, services fail",
        judge: machine_id,
    },
];

/// Returns whether a clock that shows `now` is certainly wrong, where it was `passed` before.
pub fn is_behind(now: Wall, passed: Wall) -> bool {
    now.millis() < passed.millis().saturating_sub(SLACK_MS)
}

fn clock(facts: &Facts, environment: &Environment) -> Judgement {
    let stamp = |name: &'static str| {
        let seconds: i64 = facts.word(name)?.rsplit(' ').next()?.parse().ok()?;
        Some((
            name.strip_prefix("stat ").unwrap_or(name),
            Wall::from_millis(seconds.saturating_mul(1000)),
        ))
    };
    let built = ("this program was built", facts.built);
    let stamps = STAMPS.iter().filter_map(|name| stamp(name));
    let newest = stamps.chain([built]).max_by_key(|(_, at)| *at);
    let (what, at) = newest.unwrap_or(built);
    const ADVICE: Advice = Advice {
        fix: "synchronize it with a time server; without internet access, set it by hand, in UTC",
        commands: &[
            "sudo timedatectl set-ntp true",
            "sudo date -u -s \"YYYY-MM-DD HH:MM:SS\"",
        ],
    };
    const BY_HAND: Advice = Advice {
        fix: "synchronize it with a time server; without internet access, set it by hand, in UTC",
        commands: &[
            "sudo rc-update add ntpd default && sudo rc-service ntpd start",
            "sudo date -u -s \"YYYY-MM-DD HH:MM:SS\"",
        ],
    };
    if !is_behind(facts.now, at) {
        let day = facts.now.rfc3339();
        return ok(day);
    }
    let days = (at.millis() - facts.now.millis()) / DAY_MS;
    let seen = format!(
        "it shows {}, {days} days before {what} ({})",
        facts.now.rfc3339(),
        at.rfc3339()
    );
    const OF_HOST: Advice = Advice {
        fix: "this container uses the clock of its host: synchronize it there, or set it there by hand, in UTC",
        commands: &[],
    };
    let advice = if environment.virtualisation.is_container() {
        &OF_HOST
    } else if facts.has("/run/openrc/") {
        &BY_HAND
    } else {
        &ADVICE
    };
    Problem::new(seen, advice).into()
}

fn clock_sync(facts: &Facts, environment: &Environment) -> Judgement {
    if environment.virtualisation.is_container() {
        return Judgement::NotHere("the host manages the clock");
    }
    const SYSTEMD: Advice = Advice {
        fix: "enable time synchronization in systemd",
        commands: &[],
    };
    // It runs, so that nothing is to be switched on.
    const SILENT: Advice = Advice {
        fix: "allow it to reach a time server (UDP port 123); without internet access, set NTP= in /etc/systemd/timesyncd.conf to a local one (many routers are), then restart it",
        commands: &["timedatectl timesync-status", "{restart systemd-timesyncd}"],
    };
    const OPENRC: Advice = Advice {
        fix: "run an NTP client",
        commands: &["{enable ntpd}"],
    };
    if facts.has("/run/systemd/timesync/") {
        if facts
            .names("/run/systemd/timesync/")
            .any(|name| name == "synchronized")
        {
            return ok("systemd-timesyncd is synchronized");
        }
        return Problem::new(
            "systemd-timesyncd has not reached a time server since it started",
            &SILENT,
        )
        .into();
    }
    let client = ["chronyd", "ntpd", "ntpsec", "openntpd", "systemd-timesyn"];
    if let Some(name) = client.iter().find(|name| facts.has_process(name)) {
        return ok(format!("{name} runs"));
    }
    if environment.virtualisation == Virtualisation::Wsl2 {
        return Judgement::NotHere("Windows manages the clock");
    }
    let (advice, recipe) = if environment.init == Init::OpenRc {
        (&OPENRC, None)
    } else {
        (&SYSTEMD, Some(recipe::clock()))
    };
    Problem::new("no time synchronization is running", advice)
        .repaired_by(recipe)
        .into()
}

fn battery(facts: &Facts, environment: &Environment) -> Judgement {
    if environment.virtualisation != Virtualisation::Bare {
        return Judgement::NotHere("the host provides the clock");
    }
    if facts.names("/sys/class/rtc/").next().is_some() {
        return ok("present");
    }
    const ADVICE: Advice = Advice {
        fix: "add a clock module (DS3231), or save the time across restarts with the package fake-hwclock",
        commands: &["{install fake-hwclock}"],
    };
    if facts.has("stat /etc/fake-hwclock.data") || facts.has("stat /var/lib/systemd/timesync/clock")
    {
        return ok("none; the last known time is saved on disk");
    }
    Problem::new(
        "there is none, and nothing saves the time across restarts",
        &ADVICE,
    )
    .into()
}

fn host_name(facts: &Facts, environment: &Environment) -> Judgement {
    let Some(name) = facts.word("/proc/sys/kernel/hostname") else {
        return unread(facts, "/proc/sys/kernel/hostname");
    };
    // The name of the machine, written down in the settings, is none of its own.
    let is_own = facts
        .k3s_setting("node-name")
        .is_some_and(|own| own != name);
    if is_own || facts.k3s_setting("with-node-id").as_deref() == Some("true") {
        return ok(format!("{name}; k3s has a name of its own"));
    }
    const OF_IMAGES: [&str; 11] = [
        "raspberrypi",
        "ubuntu",
        "debian",
        "localhost",
        "localhost.localdomain",
        "dietpi",
        "alpine",
        "fedora",
        "archlinux",
        "armbian",
        "orangepi",
    ];
    const SYSTEMD: Advice = Advice {
        fix: "choose a unique name: lower-case letters, digits and dashes",
        commands: &["sudo hostnamectl set-hostname NAME"],
    };
    const OTHER: Advice = Advice {
        fix: "choose a unique name: lower-case letters, digits and dashes",
        commands: &[
            "echo NAME | sudo tee /etc/hostname",
            "sudo hostname -F /etc/hostname",
        ],
    };
    let is_dns = name.bytes().all(|byte| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.')
    });
    let seen = if OF_IMAGES.contains(&name) {
        format!("{name}: every machine with this image has it")
    } else if !is_dns || name.len() > 63 || name.starts_with('-') || name.ends_with('-') {
        format!("{name}: not a valid node name in Kubernetes")
    } else {
        return ok(name);
    };
    let advice = if environment.init == Init::Systemd {
        &SYSTEMD
    } else {
        &OTHER
    };
    Problem::new(seen, advice).into()
}

fn machine_id(facts: &Facts, environment: &Environment) -> Judgement {
    let id = facts
        .word("/etc/machine-id")
        .or_else(|| facts.word("/var/lib/dbus/machine-id"));
    const SYSTEMD: Advice = Advice {
        fix: "create a new one, then restart the machine",
        commands: &[
            "sudo rm -f /etc/machine-id",
            "sudo systemd-machine-id-setup",
            "sudo reboot",
        ],
    };
    const OTHER: Advice = Advice {
        fix: "create one",
        commands: &["tr -d - < /proc/sys/kernel/random/uuid | sudo tee /etc/machine-id"],
    };
    let is_good = |id: &str| id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let seen = match id {
        Some(id) if is_good(id) => return ok("present"),
        Some("uninitialized") => {
            "it was never created: the first boot of this system did not finish"
        }
        Some(_) => "/etc/machine-id is not an id",
        None if environment.init == Init::Systemd => "there is none",
        None => return Judgement::NotHere("this system has none and needs none"),
    };
    let advice = if environment.init == Init::Systemd {
        &SYSTEMD
    } else {
        &OTHER
    };
    Problem::new(seen, advice).into()
}

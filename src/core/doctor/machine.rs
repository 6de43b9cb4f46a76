//! Checks of the machine: board, virtualization, memory and power supply.

#![expect(
    clippy::items_after_statements,
    reason = "an advice stands where it is given"
)]

use super::{Advice, Check, Facts, Judgement, Problem, ok, unknown, unread};
use crate::core::{
    environment::{Environment, Init, Virtualisation},
    health::Severity::{Critical, Note, Warning},
    procfs::{self, kernel::throttled},
};

const GIB: u64 = 1 << 30;

/// The table.
pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "system.architecture",
        title: "Processor",
        severity: Critical,
        after: &[],
        reads: &["/proc/sys/kernel/arch"],
        why: "k3s is built for amd64, arm64 and ARMv7; images of the platform for amd64 and arm64",
        judge: architecture,
    },
    Check {
        id: "system.userland",
        title: "64-bit userland",
        severity: Warning,
        after: &["system.architecture"],
        reads: &["elf /bin/sh", "/proc/sys/kernel/arch"],
        why: "arm64 packages do not install, and the helpers of k3s (iptables, mount) have another architecture than k3s itself",
        judge: userland,
    },
    Check {
        id: "system.container",
        title: "Container privileges",
        severity: Critical,
        after: &[],
        reads: &["stat /dev/kmsg", "/proc/self/mountinfo"],
        why: "the kubelet needs /dev/kmsg, and kube-proxy needs a writable /proc/sys",
        judge: container,
    },
    Check {
        id: "system.wsl",
        title: "Windows Subsystem for Linux",
        severity: Warning,
        after: &[],
        reads: &["/etc/wsl.conf", "/run/systemd/system/"],
        why: "without systemd nothing starts or supervises the agent and k3s here",
        judge: wsl,
    },
    Check {
        id: "system.nas",
        title: "NAS system",
        severity: Note,
        after: &[],
        reads: &[],
        why: "NAS systems discard changes outside their volumes and have kernels of their own",
        judge: nas,
    },
    Check {
        id: "system.restart",
        title: "Restart required",
        severity: Note,
        after: &["kernel.restart"],
        reads: &["stat /run/reboot-required", "/run/reboot-required.pkgs"],
        why: "upgrades take effect only after a restart",
        judge: restart,
    },
    Check {
        id: "system.selinux",
        title: "SELinux",
        severity: Critical,
        after: &[],
        reads: &[
            "/sys/fs/selinux/enforce",
            "/usr/share/selinux/packages/",
            "stat /usr/local/bin/k3s",
        ],
        why: "while SELinux is enforcing, k3s containers fail without its policy",
        judge: selinux,
    },
    Check {
        id: "memory.size",
        title: "Memory",
        severity: Warning,
        after: &[],
        reads: &["/proc/meminfo"],
        why: "a k3s server uses half a gigabyte itself, and when memory runs out the kernel kills processes",
        judge: memory_size,
    },
    Check {
        id: "memory.pressure",
        title: "Memory pressure",
        severity: Warning,
        after: &["memory.size"],
        reads: &["/proc/pressure/memory"],
        why: "programs stall while the kernel reclaims memory",
        judge: pressure,
    },
    Check {
        id: "memory.killed",
        title: "Out-of-memory kills",
        severity: Warning,
        after: &["memory.size"],
        reads: &["/proc/vmstat"],
        why: "k3s sets no memory limits by default, so the kernel chose which processes to kill",
        judge: killed,
    },
    Check {
        id: "power.supply",
        title: "Power supply of the Raspberry Pi",
        severity: Critical,
        after: &[],
        reads: &["/sys/bus/platform/drivers/raspberrypi-firmware/*/get_throttled"],
        why: "under-voltage corrupts cards and disks",
        judge: supply,
    },
    Check {
        id: "power.heat",
        title: "Temperature",
        severity: Warning,
        after: &[],
        reads: &["/sys/class/thermal/*/temp"],
        why: "a hot processor is throttled",
        judge: heat,
    },
];

fn architecture(facts: &Facts, environment: &Environment) -> Judgement {
    const ADVICE: Advice = Advice {
        fix: "use this machine to monitor a cluster on another one (agent.kubeconfig), or use a board with a 64-bit processor",
        commands: &[],
    };
    match environment.architecture.as_deref() {
        None => unread(facts, "/proc/sys/kernel/arch"),
        Some(name @ ("x86_64" | "aarch64" | "armv7l")) => ok(name),
        Some(name) => {
            let problem = Problem::new(format!("k3s is not built for {name}"), &ADVICE);
            problem.into()
        }
    }
}

fn userland(facts: &Facts, environment: &Environment) -> Judgement {
    const ADVICE: Advice = Advice {
        fix: "install the 64-bit image of {distribution}; an in-place upgrade is not supported",
        commands: &[],
    };
    match facts.word("elf /bin/sh") {
        Some("32") if environment.is_64_bit() => {
            Problem::new("a 64-bit kernel with a 32-bit userland", &ADVICE).into()
        }
        Some(bits) => ok(format!("{bits} bit")),
        None => unread(facts, "elf /bin/sh"),
    }
}

fn container(facts: &Facts, environment: &Environment) -> Judgement {
    if !environment.virtualisation.is_container()
        || environment.virtualisation == Virtualisation::Pod
    {
        return Judgement::NotHere("this is not a container");
    }
    let has_log = facts.is_there("stat /dev/kmsg") != Some(false);
    let is_settable = !facts
        .mounted_at("/proc/sys")
        .is_some_and(|mount| mount.has("ro"));
    const LXC: Advice = Advice {
        fix: "on the host, in the container's configuration (Proxmox: /etc/pve/lxc/ID.conf): features: nesting=1,keyctl=1; lxc.apparmor.profile: unconfined; lxc.cgroup2.devices.allow: a; lxc.mount.auto: proc:rw sys:rw; lxc.mount.entry: /dev/kmsg dev/kmsg none bind,create=file; then restart the container. A virtual machine needs none of this",
        commands: &[],
    };
    const OTHER: Advice = Advice {
        fix: "install the agent and k3s on the machine that runs this container",
        commands: &[],
    };
    let seen = match (has_log, is_settable) {
        (true, true) => return ok("/dev/kmsg exists, and /proc/sys is writable"),
        (false, true) => "/dev/kmsg is missing",
        (true, false) => "/proc/sys is read-only",
        (false, false) => "/dev/kmsg is missing and /proc/sys is read-only",
    };
    let advice = if environment.virtualisation == Virtualisation::Lxc {
        &LXC
    } else {
        &OTHER
    };
    Problem::new(seen, advice).into()
}

fn wsl(facts: &Facts, environment: &Environment) -> Judgement {
    const WSL1: Advice = Advice {
        fix: "in Windows: wsl --set-version NAME 2",
        commands: &[],
    };
    const SYSTEMD: Advice = Advice {
        fix: "add systemd=true below [boot] in /etc/wsl.conf, then in Windows: wsl --shutdown",
        commands: &["printf '[boot]\\nsystemd=true\\n' | sudo tee -a /etc/wsl.conf"],
    };
    match environment.virtualisation {
        Virtualisation::Wsl1 => {
            Problem::new("version 1 has no Linux kernel: k3s cannot run", &WSL1)
                .severity(Critical)
                .into()
        }
        Virtualisation::Wsl2 if environment.init == Init::Systemd => ok("version 2 with systemd"),
        Virtualisation::Wsl2 => {
            let text = facts.text("/etc/wsl.conf").unwrap_or_default();
            let is_asked = text
                .lines()
                .any(|line| line.replace(' ', "") == "systemd=true");
            const PENDING: Advice = Advice {
                fix: "in Windows: wsl --shutdown, then start it again",
                commands: &[],
            };
            let advice = if is_asked { &PENDING } else { &SYSTEMD };
            Problem::new("systemd is not running", advice).into()
        }
        Virtualisation::Bare
        | Virtualisation::Vm
        | Virtualisation::Lxc
        | Virtualisation::Docker
        | Virtualisation::Pod
        | Virtualisation::Container => Judgement::NotHere("this is not Windows"),
    }
}

fn nas(_: &Facts, environment: &Environment) -> Judgement {
    const ADVICE: Advice = Advice {
        fix: "run k3s in a virtual machine on the NAS, with its disk on a volume; the agent can monitor it from outside (agent.kubeconfig)",
        commands: &[],
    };
    match environment.nas {
        None => Judgement::NotHere("this is not a NAS"),
        Some(nas) => Problem::new(
            format!("{}: k3s is not supported on it", nas.as_str()),
            &ADVICE,
        )
        .into(),
    }
}

fn restart(facts: &Facts, _: &Environment) -> Judgement {
    if !facts.has("stat /run/reboot-required") {
        return ok("none");
    }
    const ADVICE: Advice = Advice {
        fix: "restart the machine at a convenient time; applications are down for some minutes",
        commands: &["sudo reboot"],
    };
    let packages = facts.text("/run/reboot-required.pkgs").unwrap_or_default();
    let packages: Vec<_> = packages.lines().take(4).collect();
    let seen = if packages.is_empty() {
        "the system requests it".to_owned()
    } else {
        packages.join(", ")
    };
    Problem::new(seen, &ADVICE).into()
}

fn selinux(facts: &Facts, _: &Environment) -> Judgement {
    if facts.word("/sys/fs/selinux/enforce") != Some("1") {
        return Judgement::NotHere("SELinux is not enforcing");
    }
    if facts
        .names("/usr/share/selinux/packages/")
        .any(|name| name.starts_with("k3s.pp"))
    {
        return ok("the k3s policy is installed");
    }
    if !facts.has("stat /usr/local/bin/k3s") {
        return Judgement::NotHere("k3s is not installed");
    }
    const ADVICE: Advice = Advice {
        fix: "install the package k3s-selinux from rpm.rancher.io, set selinux: true in /etc/rancher/k3s/config.yaml and restart k3s",
        commands: &["{install k3s-selinux}", "{restart k3s}"],
    };
    Problem::new(
        "SELinux is enforcing, but the k3s policy is not installed",
        &ADVICE,
    )
    .into()
}

fn memory_size(facts: &Facts, _: &Environment) -> Judgement {
    let Some(total) = facts.reading.memory.total else {
        return unread(facts, "/proc/meminfo");
    };
    let seen = format!("{} MB", total / 1_000_000);
    const AGENT: Advice = Advice {
        fix: "join this machine to another server as an agent, or disable what is not needed: set disable: [traefik, servicelb, metrics-server] in /etc/rancher/k3s/config.yaml; compressed swap (zram) helps",
        commands: &[],
    };
    const TOO_SMALL: Advice = Advice {
        fix: "there is not enough memory for k3s: use this machine to monitor a cluster on another one (agent.kubeconfig)",
        commands: &[],
    };
    // Boards have a little less than their name says: firmware and the graphics take some.
    if total < GIB / 2 * 8 / 10 {
        Problem::new(seen, &TOO_SMALL).severity(Critical).into()
    } else if total < GIB * 9 / 10 {
        Problem::new(seen, &AGENT).into()
    } else if total < GIB * 17 / 10 {
        Problem::new(seen, &AGENT).severity(Note).into()
    } else {
        ok(seen)
    }
}

/// Percent of the last minute in which some program stood still, in hundredths.
fn pressure(facts: &Facts, _: &Environment) -> Judgement {
    let Some(text) = facts.text("/proc/pressure/memory") else {
        return Judgement::NotHere("this kernel does not measure it (psi=1)");
    };
    let some = procfs::memory::pressure(text).find(|line| line.kind == "some");
    let Some(percent) = some.and_then(|line| line.minute_percent) else {
        return unread(facts, "/proc/pressure/memory");
    };
    let seen = format!("programs stalled for {percent} % of the last minute");
    if percent < 10 {
        return ok(seen);
    }
    const ADVICE: Advice = Advice {
        fix: "find what uses the memory, set a limit, or move it to another machine",
        commands: &[
            "ps -eo rss,comm --sort=-rss | head",
            "sudo /usr/local/bin/k3s kubectl top pods -A --sort-by=memory",
        ],
    };
    Problem::new(seen, &ADVICE).into()
}

fn killed(facts: &Facts, _: &Environment) -> Judgement {
    const ADVICE: Advice = Advice {
        fix: "set memory limits for the workloads, and let the kubelet evict Pods first: set kubelet-arg: [\"eviction-hard=memory.available<100Mi,nodefs.available<10%\"] in /etc/rancher/k3s/config.yaml",
        commands: &["sudo dmesg | grep -i 'killed process' | tail -n 5"],
    };
    match facts.reading.oom_kills {
        None => unread(facts, "/proc/vmstat"),
        Some(0) => ok("none since the machine started"),
        Some(count) => Problem::new(format!("{count} since the machine started"), &ADVICE).into(),
    }
}

fn supply(facts: &Facts, environment: &Environment) -> Judgement {
    let mut flags = facts.each("/sys/bus/platform/drivers/raspberrypi-firmware/*/get_throttled");
    let flags = flags.find_map(|(_, text)| throttled(text));
    const ADVICE: Advice = Advice {
        fix: "use the official power supply (5.1 V; 3 A for a Pi 4, 5 A for a Pi 5) with its own cable, and a powered hub for disks",
        commands: &[],
    };
    match flags {
        None if environment.is_raspberry_pi() => unknown("the firmware does not report it"),
        None => Judgement::NotHere("no power supply reports its state"),
        Some(flags) if flags.is_under_voltage => {
            Problem::new("the voltage is too low right now", &ADVICE).into()
        }
        Some(flags) if flags.was_under_voltage => {
            let seen = "the voltage has been too low since the machine started";
            Problem::new(seen, &ADVICE).severity(Warning).into()
        }
        Some(_) => ok("no under-voltage since the machine started"),
    }
}

fn heat(facts: &Facts, _: &Environment) -> Judgement {
    let processors = facts.reading.temperatures_milli.iter().filter(|(name, _)| {
        ["cpu", "coretemp", "k10temp", "soc", "x86_pkg"]
            .iter()
            .any(|part| name.contains(part))
    });
    let Some((name, hottest)) = processors.max_by_key(|(_, milli)| **milli) else {
        return Judgement::NotHere("the processor has no temperature sensor");
    };
    let seen = format!("{} °C ({name})", hottest / 1000);
    if *hottest < 80_000 {
        return ok(seen);
    }
    const ADVICE: Advice = Advice {
        fix: "improve the cooling: a fan or heat sink, no closed case",
        commands: &[],
    };
    Problem::new(seen, &ADVICE).into()
}

//! Checks of the kernel: command line, control groups, modules and limits.

#![expect(
    clippy::items_after_statements,
    reason = "an advice stands where it is given"
)]

use super::{Advice, Check, Facts, Judgement, Problem, ok, unknown, unread};
use crate::core::{
    environment::{Environment, Init, Loader, Packages},
    health::Severity::{Critical, Warning},
    repair::{
        Recipe,
        recipe::{self, memory_in_grub, memory_in_line},
    },
};

const IN_A_CONTAINER: &str = "the host of this container provides the kernel";
const NO_RASPBERRY_PI: &str = "this is not a Raspberry Pi";
/// Files with the kernel's words, whose text is worth a look.
const BOOT_FILES: [&str; 6] = [
    "/boot/firmware/cmdline.txt",
    "/boot/cmdline.txt",
    "/media/mmcblk0p1/cmdline.txt",
    "/etc/default/grub",
    "/boot/extlinux/extlinux.conf",
    "/boot/armbianEnv.txt",
];
/// Modules that k3s and its network need, besides vxlan.
const MODULES: [&str; 5] = [
    "module overlay",
    "module br_netfilter",
    "module nf_conntrack",
    "module veth",
    "module bridge",
];

/// The table.
pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "boot.partition",
        title: "Boot partition",
        severity: Warning,
        after: &[],
        reads: &["/proc/self/mountinfo", "/proc/cmdline", "/etc/fstab"],
        why: "the firmware never sees changes that are made while the boot partition is not mounted",
        judge: boot_partition,
    },
    Check {
        id: "boot.cmdline",
        title: "Kernel command line in one line",
        severity: Warning,
        after: &["boot.partition"],
        reads: &[
            "/boot/firmware/cmdline.txt",
            "/boot/cmdline.txt",
            "/media/mmcblk0p1/cmdline.txt",
        ],
        why: "the firmware reads the first line only and ignores all others",
        judge: boot_line,
    },
    Check {
        id: "cgroup.version",
        title: "cgroup version",
        severity: Warning,
        after: &[],
        reads: &[
            "/sys/fs/cgroup/cgroup.controllers",
            "/proc/self/mountinfo",
            "/proc/cgroups",
            "stat /etc/rc.conf",
        ],
        why: "Kubernetes 1.35 and later does not start on cgroup v1, so an upgrade of k3s would stop this node",
        judge: group_version,
    },
    Check {
        id: "cgroup.controllers",
        title: "cgroup controllers",
        severity: Critical,
        after: &[],
        reads: &[
            "/sys/fs/cgroup/cgroup.controllers",
            "/proc/self/mountinfo",
            "/proc/cgroups",
            "stat /etc/rc.conf",
        ],
        why: "k3s does not start without the controllers cpu, cpuset and pids",
        judge: controllers,
    },
    Check {
        id: "cgroup.memory",
        title: "Memory controller",
        severity: Critical,
        after: &["boot.partition", "boot.cmdline"],
        reads: &[
            "/sys/fs/cgroup/cgroup.controllers",
            "/proc/self/mountinfo",
            "/proc/cgroups",
            "/proc/cmdline",
            BOOT_FILES[0],
            BOOT_FILES[1],
            BOOT_FILES[2],
            BOOT_FILES[3],
            BOOT_FILES[4],
            BOOT_FILES[5],
        ],
        why: "k3s cannot start without it: its service restarts every five seconds",
        judge: memory,
    },
    Check {
        id: "kernel.restart",
        title: "Running kernel",
        severity: Warning,
        after: &[],
        reads: &["/proc/sys/kernel/osrelease", "/lib/modules/"],
        why: "an upgrade removed the modules of the running kernel, so it cannot load any",
        judge: upgraded,
    },
    Check {
        id: "kernel.modules",
        title: "Kernel modules",
        severity: Warning,
        after: &["kernel.restart"],
        reads: &[
            MODULES[0],
            MODULES[1],
            MODULES[2],
            MODULES[3],
            MODULES[4],
            "stat /usr/local/bin/k3s",
            "/etc/modules-load.d/*",
        ],
        why: "without them containers have no file system or no network",
        judge: modules,
    },
    Check {
        id: "kernel.vxlan",
        title: "Kernel module vxlan",
        severity: Warning,
        after: &["kernel.restart"],
        reads: &[
            "module vxlan",
            "/proc/sys/kernel/osrelease",
            "/etc/rancher/k3s/config.yaml",
            "/etc/rancher/k3s/",
        ],
        why: "k3s connects Pods across nodes with VXLAN, and stops when it cannot create the interface",
        judge: vxlan,
    },
    Check {
        id: "kernel.page-size",
        title: "Memory page size",
        severity: Warning,
        after: &[],
        reads: &["page size"],
        why: "many images (Redis, MongoDB, everything that uses jemalloc) crash on pages of 16 KiB",
        judge: page_size,
    },
    Check {
        id: "limits.inotify",
        title: "inotify limits",
        severity: Warning,
        after: &[],
        reads: &[
            "/proc/sys/fs/inotify/max_user_instances",
            "/proc/sys/fs/inotify/max_user_watches",
            "/etc/sysctl.d/",
        ],
        why: "when they are exhausted, Pods and kubectl logs -f fail with \"too many open files\"",
        judge: inotify,
    },
    Check {
        id: "limits.files",
        title: "Open files",
        severity: Critical,
        after: &[],
        reads: &["/proc/sys/fs/file-nr"],
        why: "at the limit no program on this machine can open a file",
        judge: open_files,
    },
];

fn boot_partition(facts: &Facts, environment: &Environment) -> Judgement {
    if environment.loader != Loader::RaspberryPi {
        return Judgement::NotHere(NO_RASPBERRY_PI);
    }
    if facts.kernel_words().any(|word| word == "root=/dev/nfs") {
        return Judgement::NotHere("this Raspberry Pi boots from the network");
    }
    let fstab = facts.text("/etc/fstab").unwrap_or_default();
    let wanted = ["/boot/firmware", "/boot"].into_iter().find(|path| {
        fstab.lines().any(|line| {
            !line.starts_with('#') && line.split_ascii_whitespace().nth(1) == Some(path)
        })
    });
    let Some(path) = wanted else {
        return Judgement::NotHere("/etc/fstab has no boot partition");
    };
    if let Some(mount) = facts.mounted_at(path) {
        return ok(format!("{} is mounted at {path}", mount.device));
    }
    const ADVICE: Advice = Advice {
        fix: "mount it, and check the disk if that fails: sudo dmesg | tail",
        commands: &["sudo mount {about}"],
    };
    Problem::new(format!("{path} is in /etc/fstab but not mounted"), &ADVICE)
        .about(path)
        .into()
}

fn boot_line(facts: &Facts, environment: &Environment) -> Judgement {
    let (Loader::RaspberryPi, Some(file)) = (environment.loader, &environment.boot_file) else {
        return Judgement::NotHere(NO_RASPBERRY_PI);
    };
    let Some(text) = facts.text(file) else {
        return unread(facts, file);
    };
    let lines = text.lines().filter(|line| !line.trim().is_empty()).count();
    if lines <= 1 && !text.contains('\r') {
        return ok(format!("{file} has one line"));
    }
    const ADVICE: Advice = Advice {
        fix: "join all lines of {boot} into one, then restart the machine",
        commands: &[
            "sudo cp {boot} {boot}.bak",
            "tr -s '\\r\\n' ' ' < {boot}.bak | sudo tee {boot}",
            "sudo reboot",
        ],
    };
    let seen = if lines > 1 {
        format!("{file} has {lines} lines")
    } else {
        format!("{file} was saved on Windows: its line ends with a carriage return")
    };
    Problem::new(seen, &ADVICE).into()
}

const UNIFIED: Advice = Advice {
    fix: "{kernel systemd.unified_cgroup_hierarchy=1}",
    commands: &["{kernel systemd.unified_cgroup_hierarchy=1}"],
};
const UNIFIED_OPENRC: Advice = Advice {
    fix: "set rc_cgroup_mode=\"unified\" in /etc/rc.conf, start the service cgroups at boot, then restart the machine",
    commands: &[
        "sudo sed -i.bak 's/^#*rc_cgroup_mode=.*/rc_cgroup_mode=\"unified\"/' /etc/rc.conf",
        "sudo rc-update add cgroups boot",
        "sudo reboot",
    ],
};
const ON_THE_HOST: Advice = Advice {
    fix: "on the host of this container: delegate the controller {about} to it, or use a virtual machine",
    commands: &[],
};

fn group_version(_: &Facts, environment: &Environment) -> Judgement {
    match environment.cgroup_version {
        None => unknown("no cgroup file system is mounted"),
        Some(1) => {
            let advice = if environment.init == Init::OpenRc {
                &UNIFIED_OPENRC
            } else {
                &UNIFIED
            };
            Problem::new("this system uses cgroup v1", advice).into()
        }
        Some(version) => ok(format!("version {version}")),
    }
}

fn controllers(_: &Facts, environment: &Environment) -> Judgement {
    let Some(version) = environment.cgroup_version else {
        const ADVICE: Advice = Advice {
            fix: "mount the cgroup file system: systemd does it, OpenRC does it with its service cgroups",
            commands: &[],
        };
        let advice = if environment.init == Init::OpenRc {
            &UNIFIED_OPENRC
        } else {
            &ADVICE
        };
        return Problem::new("no cgroup file system is mounted", advice).into();
    };
    let missing = ["cpu", "cpuset", "pids"]
        .into_iter()
        .filter(|name| !environment.controllers.iter().any(|has| has == name));
    let missing: Vec<_> = missing.collect();
    if missing.is_empty() {
        return ok(environment.controllers.join(", "));
    }
    const BY_KERNEL: Advice = Advice {
        fix: "{kernel cgroup_enable=cpuset}",
        commands: &["{kernel cgroup_enable=cpuset}"],
    };
    let advice = match environment.init {
        _ if environment.virtualisation.is_container() => &ON_THE_HOST,
        Init::OpenRc if version == 2 => &UNIFIED_OPENRC,
        Init::OpenRc | Init::Systemd | Init::Other => &BY_KERNEL,
    };
    let missing = missing.join(", ");
    Problem::new(format!("missing: {missing}"), advice)
        .about(missing)
        .into()
}

fn memory(facts: &Facts, environment: &Environment) -> Judgement {
    if environment.cgroup_version.is_none() {
        return unknown("no cgroup file system is mounted");
    }
    if environment.controllers.iter().any(|name| name == "memory") {
        return ok("it is enabled");
    }
    if environment.virtualisation.is_container() {
        let seen = "this container has no memory controller";
        return Problem::new(seen, &ON_THE_HOST).about("memory").into();
    }
    const ENABLE: &str = "cgroup_enable=memory";
    let has = |text: &str| text.contains(ENABLE);
    const MISSING: Advice = Advice {
        fix: "{kernel cgroup_memory=1 cgroup_enable=memory}",
        commands: &["{kernel cgroup_memory=1 cgroup_enable=memory}"],
    };
    const PENDING: Advice = Advice {
        fix: "restart the machine; if that changes nothing, the machine does not boot with {boot}",
        commands: &["sudo reboot"],
    };
    const BROKEN: Advice = Advice {
        fix: "this kernel does not know the parameter, or was built without the controller: upgrade the system and restart it",
        commands: &["{upgrade}", "sudo reboot"],
    };
    let asked = facts.kernel_words().any(|word| word == ENABLE);
    let text = environment
        .boot_file
        .as_ref()
        .and_then(|file| facts.text(file));
    if asked {
        let seen = "the memory controller is missing although the kernel command line asks for it";
        return Problem::new(seen, &BROKEN).into();
    }
    if text.is_some_and(has) {
        let seen = "the boot file asks for the memory controller, but the running kernel was not started with it";
        return Problem::new(seen, &PENDING).into();
    }
    const REPAIRED: Advice = Advice {
        fix: "enable it on the kernel command line, then restart the machine: append \"cgroup_memory=1 cgroup_enable=memory\" to the single line of {boot}",
        commands: &[],
    };
    const REPAIRED_GRUB: Advice = Advice {
        fix: "enable it with a drop-in file for GRUB, then restart the machine",
        commands: &[],
    };
    let recipe = memory_recipe(environment, text);
    let advice = match (&recipe, environment.loader) {
        (None, _) => &MISSING,
        (Some(_), Loader::Grub) => &REPAIRED_GRUB,
        (Some(_), _) => &REPAIRED,
    };
    let seen = "the kernel was started without the memory controller";
    Problem::new(seen, advice).repaired_by(recipe).into()
}

/// The repair, where the root helper knows how this boot loader gets its words.
fn memory_recipe(environment: &Environment, text: Option<&str>) -> Option<Recipe> {
    match (environment.loader, environment.packages) {
        (Loader::RaspberryPi, _) => {
            let file = environment.boot_file.as_deref()?;
            memory_in_line(file, text?).ok().flatten()
        }
        (Loader::Grub, Packages::Apt) => Some(memory_in_grub()),
        _ => None,
    }
}

fn upgraded(facts: &Facts, environment: &Environment) -> Judgement {
    if environment.virtualisation.is_container() {
        return Judgement::NotHere(IN_A_CONTAINER);
    }
    let Some(release) = facts.word("/proc/sys/kernel/osrelease") else {
        return unread(facts, "/proc/sys/kernel/osrelease");
    };
    if facts.names("/lib/modules/").next().is_none() {
        return Judgement::NotHere("this kernel has no modules on disk");
    }
    if facts.names("/lib/modules/").any(|name| name == release) {
        return ok(format!("{release}, and its modules are installed"));
    }
    const ADVICE: Advice = Advice {
        fix: "restart the machine to boot the installed kernel",
        commands: &["sudo reboot"],
    };
    Problem::new(
        format!("kernel {release} is running, but /lib/modules has no directory for it"),
        &ADVICE,
    )
    .into()
}

/// State of a module: `loaded`, `built in`, `there`, `absent`.
fn state<'a>(facts: &'a Facts, module: &str) -> Option<&'a str> {
    facts.word(module)
}

fn modules(facts: &Facts, environment: &Environment) -> Judgement {
    let in_state = |wanted: &str| -> Vec<&str> {
        let of = MODULES
            .iter()
            .filter(|module| state(facts, module) == Some(wanted));
        of.filter_map(|module| module.strip_prefix("module "))
            .collect()
    };
    if MODULES.iter().all(|module| state(facts, module).is_none()) {
        return Judgement::NotHere("this kernel has no modules on disk");
    }
    let absent = in_state("absent");
    if !absent.is_empty() {
        const ADVICE: Advice = Advice {
            fix: "this kernel was built without {about}: install the kernel of the distribution, with all its modules",
            commands: &["{upgrade}"],
        };
        const ON_HOST: Advice = Advice {
            fix: "on the host of this container: sudo modprobe -a {about}",
            commands: &[],
        };
        let advice = if environment.virtualisation.is_container() {
            &ON_HOST
        } else {
            &ADVICE
        };
        let absent = absent.join(" ");
        return Problem::new(format!("this kernel has no {absent}"), advice)
            .about(absent)
            .into();
    }
    // What is there is loaded when somebody asks for it; only of these two k3s asks in vain where
    // it may not load modules.
    let unloaded: Vec<_> = in_state("there")
        .into_iter()
        .filter(|name| recipe::MODULES.contains(name))
        .collect();
    let is_listed = |name: &&str| {
        facts
            .each("/etc/modules-load.d/*")
            .any(|(_, text)| text.lines().any(|line| line.trim() == *name))
    };
    if unloaded.iter().all(is_listed) || !facts.has("stat /usr/local/bin/k3s") {
        return ok("all are loaded");
    }
    const ADVICE: Advice = Advice {
        fix: "load them now, and at every boot with a file in /etc/modules-load.d",
        commands: &[],
    };
    Problem::new(format!("not loaded: {}", unloaded.join(" ")), &ADVICE)
        .repaired_by(Some(recipe::kernel_modules(&unloaded)))
        .into()
}

fn vxlan(facts: &Facts, environment: &Environment) -> Judgement {
    if facts
        .k3s_setting("flannel-backend")
        .is_some_and(|backend| backend != "vxlan")
    {
        return Judgement::NotHere("k3s uses another flannel-backend");
    }
    match state(facts, "module vxlan") {
        None => return Judgement::NotHere("this kernel has no modules on disk"),
        Some("absent") => {}
        Some(state) => return ok(state),
    }
    const UBUNTU_PI: Advice = Advice {
        fix: "install the extra modules of Ubuntu for the Raspberry Pi, then restart the machine",
        commands: &["{install linux-modules-extra-raspi}", "sudo reboot"],
    };
    const UBUNTU: Advice = Advice {
        fix: "install the extra modules of Ubuntu",
        commands: &["sudo apt install linux-modules-extra-{about}"],
    };
    const RED_HAT: Advice = Advice {
        fix: "install the extra modules of the kernel, then restart the machine",
        commands: &["{install kernel-modules-extra}", "sudo reboot"],
    };
    const OTHER: Advice = Advice {
        fix: "this kernel was built without VXLAN: if all nodes are in one network, set flannel-backend: host-gw in /etc/rancher/k3s/config.yaml; else install the kernel of the distribution",
        commands: &[
            "echo 'flannel-backend: host-gw' | sudo tee -a /etc/rancher/k3s/config.yaml",
            "{restart k3s}",
        ],
    };
    let advice = if environment.is("ubuntu") && environment.is_raspberry_pi() {
        &UBUNTU_PI
    } else if environment.is("ubuntu") {
        &UBUNTU
    } else if environment.is("rhel") || environment.is("fedora") {
        &RED_HAT
    } else {
        &OTHER
    };
    let release = facts.word("/proc/sys/kernel/osrelease").unwrap_or_default();
    Problem::new("this kernel has no vxlan", advice)
        .about(release)
        .into()
}

fn page_size(facts: &Facts, environment: &Environment) -> Judgement {
    let Some(bytes) = environment.page_size_bytes else {
        return unread(facts, "page size");
    };
    if bytes <= 4096 {
        return ok(format!("{bytes} bytes"));
    }
    const RASPBERRY_PI: Advice = Advice {
        fix: "add kernel=kernel8.img to {firmware}, then restart the machine: that kernel uses pages of 4 KiB",
        commands: &[
            "echo 'kernel=kernel8.img' | sudo tee -a {firmware}",
            "sudo reboot",
        ],
    };
    const OTHER: Advice = Advice {
        fix: "boot a kernel with pages of 4 KiB if the distribution has one; else use images that support pages of {about} bytes",
        commands: &[],
    };
    let advice = if environment.is_raspberry_pi() {
        &RASPBERRY_PI
    } else {
        &OTHER
    };
    let about = bytes.to_string();
    Problem::new(format!("{} KiB", bytes / 1024), advice)
        .about(about)
        .into()
}

fn inotify(facts: &Facts, _: &Environment) -> Judgement {
    let number = |what: &str| facts.number(&format!("/proc/sys/fs/inotify/{what}"));
    let (Some(instances), Some(watches)) =
        (number("max_user_instances"), number("max_user_watches"))
    else {
        return unread(facts, "/proc/sys/fs/inotify/max_user_instances");
    };
    let seen = format!("{instances} instances and {watches} watches per user");
    if instances > 128 && watches >= 65_536 {
        return ok(seen);
    }
    const ADVICE: Advice = Advice {
        fix: "raise both limits with a file in /etc/sysctl.d",
        commands: &[],
    };
    Problem::new(seen, &ADVICE)
        .repaired_by(recipe::inotify(instances, watches))
        .into()
}

fn open_files(facts: &Facts, _: &Environment) -> Judgement {
    let Some((open, most)) = facts.reading.files else {
        return unread(facts, "/proc/sys/fs/file-nr");
    };
    let seen = format!("{open} of {most}");
    if open < most / 10 * 8 {
        return ok(seen);
    }
    const ADVICE: Advice = Advice {
        fix: "find the program that opens them, and restart it",
        commands: &[
            "sudo sh -c 'for p in /proc/[0-9]*; do echo \"$(ls $p/fd | wc -l) $(cat $p/comm)\"; done' | sort -n | tail",
        ],
    };
    Problem::new(seen, &ADVICE).into()
}

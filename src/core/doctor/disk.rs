//! Checks of disks: mounts, free space, wear, health, and unnecessary writes.

#![expect(
    clippy::items_after_statements,
    reason = "an advice stands where it is given"
)]

use super::{Advice, Check, Facts, Judgement, Problem, facts::version, ok, unread};
use crate::core::{
    environment::Environment,
    health::Severity::{Critical, Note, Warning},
    procfs::memory::swaps,
    repair::{recipe, swaps_on_card},
};

/// Directory of all k3s data, unless its settings have another one.
const K3S: &str = "/var/lib/rancher/k3s";
const MEGABYTE: u64 = 1_000_000;
const GIGABYTE: u64 = 1_000 * MEGABYTE;
const MOUNTS: &str = "/proc/self/mountinfo";

/// Services that start with the machine.
const WANTS: &str = "/etc/systemd/system/multi-user.target.wants/";

/// The table.
pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "disk.volatile",
        title: "Persistent root file system",
        severity: Critical,
        after: &[],
        reads: &[MOUNTS, "/proc/cmdline"],
        why: "everything that is installed or written is lost at a restart, and uses memory until then",
        judge: volatile,
    },
    Check {
        id: "disk.network-root",
        title: "k3s data on a local disk",
        severity: Critical,
        after: &[],
        reads: &[MOUNTS],
        why: "containers need overlayfs, which does not work on network mounts",
        judge: network_root,
    },
    Check {
        id: "disk.read-only",
        title: "Writable file systems",
        severity: Critical,
        after: &["disk.volatile"],
        reads: &[MOUNTS],
        why: "nothing can be saved; the kernel remounts a file system read-only after disk errors",
        judge: read_only,
    },
    Check {
        id: "disk.errors",
        title: "File system errors",
        severity: Critical,
        after: &["disk.read-only"],
        reads: &["/sys/fs/ext4/*/errors_count"],
        why: "files may be damaged already, and more will be",
        judge: errors,
    },
    Check {
        id: "disk.space",
        title: "Free disk space",
        severity: Warning,
        after: &["disk.read-only"],
        reads: &[MOUNTS],
        why: "below 5 % Kubernetes evicts Pods and deletes images, and databases stop when the disk is full",
        judge: space,
    },
    Check {
        id: "disk.inodes",
        title: "Free inodes",
        severity: Critical,
        after: &["disk.space"],
        reads: &[MOUNTS],
        why: "no file can be created although there is free space",
        judge: inodes,
    },
    Check {
        id: "disk.wear",
        title: "Wear of the SD card",
        severity: Warning,
        after: &[],
        reads: &[
            "/sys/block/*/device/life_time",
            "/sys/block/*/device/pre_eol_info",
        ],
        why: "a worn card becomes read-only or loses data",
        judge: wear,
    },
    Check {
        id: "disk.card",
        title: "k3s data on an SD card",
        severity: Note,
        after: &["disk.network-root"],
        reads: &[
            MOUNTS,
            "/sys/block/*/device/type",
            "/var/lib/rancher/k3s/server/db/etcd/",
        ],
        why: "even an idle k3s wears out a card within a year, and a slow card stops it; etcd does not work on cards",
        judge: card,
    },
    Check {
        id: "disk.zfs",
        title: "ZFS below k3s",
        severity: Critical,
        after: &[],
        reads: &[MOUNTS, "/sys/module/zfs/version"],
        why: "containers need overlayfs, which ZFS supports since 2.2",
        judge: zfs,
    },
    Check {
        id: "swap.card",
        title: "Swap on an SD card",
        severity: Warning,
        after: &[],
        reads: &[
            "/proc/swaps",
            MOUNTS,
            "stat /etc/dphys-swapfile",
            "stat /etc/rpi/swap.conf",
            WANTS,
        ],
        why: "swapping wears out the card and delays the Kubernetes API by seconds",
        judge: swap,
    },
];
fn volatile(facts: &Facts, environment: &Environment) -> Judgement {
    if environment.virtualisation.is_container() {
        return Judgement::NotHere("the host provides the root file system of this container");
    }
    let Some(root) = facts.mounted_at("/") else {
        return unread(facts, MOUNTS);
    };
    const RASPBERRY_PI: Advice = Advice {
        fix: "disable the overlay, then restart the machine",
        commands: &["sudo raspi-config nonint disable_overlayfs", "sudo reboot"],
    };
    const OVERLAYROOT: Advice = Advice {
        fix: "disable overlayroot in /etc/overlayroot.conf, or mount a persistent partition at /var/lib/rancher, /etc/rancher and /var/lib/pipeops-agent",
        commands: &[],
    };
    const MEMORY: Advice = Advice {
        fix: "mount a persistent partition at /var/lib/rancher, /etc/rancher and /var/lib/pipeops-agent",
        commands: &[],
    };
    let is_asked = facts
        .kernel_words()
        .any(|word| word == "boot=overlay" || word.starts_with("overlayroot="));
    match root.kind {
        "overlay" if environment.is_raspberry_pi() => Problem::new(
            "the root file system is an overlay in memory",
            &RASPBERRY_PI,
        )
        .into(),
        "overlay" if is_asked => {
            Problem::new("the root file system is an overlay in memory", &OVERLAYROOT).into()
        }
        "overlay" | "tmpfs" | "rootfs" | "ramfs" => Problem::new(
            format!("the root file system is in memory ({})", root.kind),
            &MEMORY,
        )
        .into(),
        kind => ok(format!("{} on {}", kind, root.device)),
    }
}

/// Directory of all k3s data.
fn data_dir(facts: &Facts) -> String {
    let set = || facts.k3s_values("data-dir").pop();
    let known = facts.data_dir.clone().or_else(set);
    known.unwrap_or_else(|| K3S.to_owned())
}

/// Directory above it, at which a disk with the data is mounted.
fn above(data_dir: &str) -> &str {
    let (above, _) = data_dir.rsplit_once('/').unwrap_or_default();
    if above.is_empty() { data_dir } else { above }
}

/// Folders that must not be without room.
fn folders(data_dir: &str) -> [&str; 5] {
    [
        "/",
        data_dir,
        "/var/lib/kubelet",
        "/var/log",
        "/var/lib/pipeops-agent",
    ]
}

fn network_root(facts: &Facts, _: &Environment) -> Judgement {
    let folder = data_dir(facts);
    let Some(mount) = facts.mount_of(&folder) else {
        return unread(facts, MOUNTS);
    };
    const ADVICE: Advice = Advice {
        fix: "mount a local or iSCSI disk at {about}, in /etc/fstab",
        commands: &[],
    };
    if matches!(
        mount.kind,
        "nfs" | "nfs4" | "cifs" | "smb3" | "9p" | "fuse.sshfs"
    ) {
        return Problem::new(
            format!("{folder} is on {} ({})", mount.device, mount.kind),
            &ADVICE,
        )
        .about(above(&folder))
        .into();
    }
    ok(format!("{} on {}", mount.kind, mount.device))
}

fn read_only(facts: &Facts, _: &Environment) -> Judgement {
    const ADVICE: Advice = Advice {
        fix: "look for disk errors, repair the file system at the next boot, and replace the disk if errors return: sudo dmesg | tail",
        commands: &["sudo mount -o remount,rw {about}"],
    };
    // The option of the file system itself: a service manager shows many of them read-only to one
    // program alone.
    let data_dir = data_dir(facts);
    let broken = folders(&data_dir).into_iter().find_map(|folder| {
        let mount = facts.mount_of(folder)?;
        mount
            .super_options
            .split(',')
            .any(|option| option == "ro")
            .then_some(mount)
    });
    match broken {
        Some(mount) if mount.kind != "squashfs" => Problem::new(
            format!("{} ({}) is read-only", mount.point, mount.device),
            &ADVICE,
        )
        .about(mount.point)
        .into(),
        Some(_) | None => ok("all are writable"),
    }
}

fn errors(facts: &Facts, _: &Environment) -> Judgement {
    const ADVICE: Advice = Advice {
        fix: "make a backup, repair the file system at the next boot, and replace the disk if errors return",
        commands: &[
            "sudo dmesg | grep -i {about} | tail",
            "sudo tune2fs -C 100 -c 1 /dev/{about}",
            "sudo reboot",
        ],
    };
    let broken = facts
        .each("/sys/fs/ext4/*/errors_count")
        .find(|(_, count)| count.trim() != "0");
    match broken {
        Some((disk, count)) => Problem::new(
            format!("{disk}: {} errors since its last repair", count.trim()),
            &ADVICE,
        )
        .about(disk)
        .into(),
        None => ok("none"),
    }
}

fn space(facts: &Facts, _: &Environment) -> Judgement {
    const ADVICE: Advice = Advice {
        fix: "free space on {about}: unused images (they are pulled again when needed), the journal, old packages",
        commands: &[
            "sudo du -xh {about} | sort -h | tail -n 20",
            "sudo /usr/local/bin/k3s crictl rmi --prune",
            "sudo journalctl --vacuum-size=100M",
        ],
    };
    let mut disks = Vec::new();
    let mut worst = None;
    let data_dir = data_dir(facts);
    for folder in folders(&data_dir) {
        let Some((path, disk)) = facts.disk_of(folder) else {
            continue;
        };
        let space = disk.space;
        let percent = space.available.saturating_mul(100) / space.size.max(1);
        let seen = format!(
            "{path}: {} MB free ({percent} %)",
            space.available / MEGABYTE
        );
        let severity = if percent < 5 || space.available < 256 * MEGABYTE {
            Critical
        } else if percent < 15 && space.available < 10 * GIGABYTE {
            Warning
        } else {
            Note
        };
        if !disks.contains(&seen) {
            disks.push(seen.clone());
        }
        if severity > Note
            && worst
                .as_ref()
                .is_none_or(|(before, _, _)| *before < severity)
        {
            worst = Some((severity, seen, path));
        }
    }
    match worst {
        Some((severity, seen, path)) => Problem::new(seen, &ADVICE)
            .severity(severity)
            .about(path)
            .into(),
        None if disks.is_empty() => Judgement::NotHere("the host manages the disks"),
        None => ok(disks.join(", ")),
    }
}

fn inodes(facts: &Facts, _: &Environment) -> Judgement {
    const ADVICE: Advice = Advice {
        fix: "find the directory with very many files on {about}, often a cache or a mail queue, and delete what is not needed",
        commands: &["sudo du --inodes -x {about} | sort -n | tail -n 20"],
    };
    let data_dir = data_dir(facts);
    let full = folders(&data_dir).into_iter().find_map(|folder| {
        let (path, disk) = facts.disk_of(folder)?;
        let space = disk.space;
        let is_full = space.inodes > 0 && space.inodes_free.saturating_mul(20) < space.inodes;
        is_full.then_some((path, space))
    });
    match full {
        Some((path, space)) => Problem::new(
            format!(
                "{path}: {} of {} inodes are free",
                space.inodes_free, space.inodes
            ),
            &ADVICE,
        )
        .about(path)
        .into(),
        None => ok("enough"),
    }
}

fn wear(facts: &Facts, _: &Environment) -> Judgement {
    const ADVICE: Advice = Advice {
        fix: "make a backup now and replace {about}; then move the k3s data to an SSD",
        commands: &[],
    };
    let mut is_told = false;
    for (name, disk) in &facts.reading.disks {
        let used = disk.life_used_tenths;
        let spare = disk.pre_eol.unwrap_or(0);
        is_told |= used.is_some();
        let used = used.unwrap_or(0);
        if used >= 9 || spare >= 2 {
            let severity = if used > 10 || spare >= 3 {
                Critical
            } else {
                Warning
            };
            return Problem::new(
                format!("{name}: {} % of its life is used", (used * 10).min(100)),
                &ADVICE,
            )
            .severity(severity)
            .about(name)
            .into();
        }
    }
    if is_told {
        ok("less than 90 % of its lifetime is used")
    } else {
        Judgement::NotHere("no card here reports its wear")
    }
}

/// `mmcblk0` of `/dev/mmcblk0p2`, where that is a card and no soldered chip.
fn card_of<'a>(facts: &'a Facts, device: &'a str) -> Option<&'a str> {
    let name = device.strip_prefix("/dev/")?;
    let disk = name.split_once('p').map_or(name, |(disk, _)| disk);
    let mut types = facts.each("/sys/block/*/device/type");
    let is_card = types.any(|(name, kind)| name == disk && kind.trim() == "SD");
    (disk.starts_with("mmcblk") && is_card).then_some(disk)
}

fn card(facts: &Facts, _: &Environment) -> Judgement {
    let folder = data_dir(facts);
    let Some(mount) = facts.mount_of(&folder) else {
        return unread(facts, MOUNTS);
    };
    let Some(card) = card_of(facts, mount.device) else {
        return Judgement::NotHere("the k3s data is not on an SD card");
    };
    const ADVICE: Advice = Advice {
        fix: "move the data to an SSD: stop k3s, copy {about}, mount the SSD there in /etc/fstab, start k3s",
        commands: &[
            "{stop k3s}",
            "sudo mkdir -p /mnt/ssd",
            "sudo rsync -aHAX {about}/ /mnt/ssd/",
            "{start k3s}",
        ],
    };
    if facts
        .names("/var/lib/rancher/k3s/server/db/etcd/")
        .any(|name| name == "member")
    {
        return Problem::new(format!("etcd is on the card {card}"), &ADVICE)
            .severity(Critical)
            .about(above(&folder))
            .into();
    }
    Problem::new(format!("{folder} is on the card {card}"), &ADVICE)
        .about(above(&folder))
        .into()
}

fn zfs(facts: &Facts, _: &Environment) -> Judgement {
    let folder = data_dir(facts);
    let mount = facts.mount_of(&folder);
    if mount.is_none_or(|mount| mount.kind != "zfs") {
        return Judgement::NotHere("the k3s data is not on ZFS");
    }
    const ADVICE: Advice = Advice {
        fix: "upgrade to OpenZFS 2.2 or later, or mount an ext4 volume at {about}: zfs create -V 50G POOL/k3s",
        commands: &["{upgrade}"],
    };
    match facts.word("/sys/module/zfs/version") {
        None => ok("this depends on the ZFS of the host"),
        Some(text) if version(text).is_some_and(|version| version >= (2, 2)) => ok(text),
        Some(text) => Problem::new(format!("OpenZFS {text}"), &ADVICE)
            .about(above(&folder))
            .into(),
    }
}

fn swap(facts: &Facts, _: &Environment) -> Judgement {
    let Some(table) = facts.text("/proc/swaps") else {
        return Judgement::NotHere("this kernel does not support swap");
    };
    let mounts = facts.text(MOUNTS).unwrap_or_default();
    let Some(path) = swaps_on_card(table, mounts).first().map(|swap| swap.path) else {
        return ok(if swaps(table).next().is_none() {
            "no swap"
        } else {
            "no swap is on a card"
        });
    };
    const DPHYS: Advice = Advice {
        fix: "disable the swap file permanently and use compressed memory instead (package zram-tools)",
        commands: &[],
    };
    const RPI_SWAP: Advice = Advice {
        fix: "configure rpi-swap to use compressed memory only, then restart the machine",
        commands: &[],
    };
    const OTHER: Advice = Advice {
        fix: "disable it, and remove its line from /etc/fstab",
        commands: &[
            "sudo swapoff {about}",
            "sudo sed -i.bak '\\#^{about}[[:space:]]#s/^/#/' /etc/fstab",
        ],
    };
    let (advice, recipe) = if facts.has("stat /etc/rpi/swap.conf") {
        (&RPI_SWAP, Some(recipe::rpi_swap()))
    } else if facts.has("stat /etc/dphys-swapfile") {
        let is_enabled = facts
            .names(WANTS)
            .any(|name| name == "dphys-swapfile.service");
        (&DPHYS, Some(recipe::swap_file(path, is_enabled)))
    } else {
        (&OTHER, None)
    };
    Problem::new(format!("{path} is on the card"), advice)
        .about(path)
        .repaired_by(recipe)
        .into()
}

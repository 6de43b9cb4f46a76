//! The machine, its clock, its disks and its logs.

#![expect(clippy::too_many_lines, reason = "tables")]

use super::{
    super::tree::{ELF_32, Tree, alpine, lxc, raspberry_pi, rocky, ubuntu, wsl},
    Case, MOUNTS, case,
};

pub(super) fn machine() -> Vec<Case> {
    const FLAGS: &str = "sys/bus/platform/drivers/raspberrypi-firmware/soc:firmware/get_throttled";
    let small = |megabytes: u64| {
        let kilobytes = megabytes * 1000;
        raspberry_pi().with(
            "proc/meminfo",
            &format!("MemTotal: {kilobytes} kB\nMemAvailable: 1 kB\n"),
        )
    };
    vec![
        case(
            "system.architecture",
            raspberry_pi().with("proc/sys/kernel/arch", "armv6l\n"),
            &["armv6l"],
        ),
        case(
            "system.userland",
            raspberry_pi().with("bin/sh", ELF_32),
            &["32-bit", "Debian GNU/Linux 12"],
        ),
        case(
            "system.container",
            lxc().without("dev/kmsg"),
            &["/dev/kmsg is missing", "lxc.mount.entry"],
        ),
        case(
            "system.container",
            lxc().with_words(
                MOUNTS,
                "\n32 22",
                "\n90 23 0:22 /sys /proc/sys ro,relatime - proc proc rw\n32 22",
            ),
            &["/proc/sys is read-only"],
        ),
        case(
            "system.wsl",
            wsl().without("run/systemd").with("etc/wsl.conf", ""),
            &["/etc/wsl.conf", "wsl --shutdown"],
        ),
        case(
            "system.nas",
            ubuntu().with("etc/synoinfo.conf", ""),
            &["Synology", "virtual machine"],
        ),
        case(
            "system.restart",
            ubuntu()
                .with("run/reboot-required", "")
                .with("run/reboot-required.pkgs", "libc6\n"),
            &["libc6"],
        ),
        case(
            "system.selinux",
            rocky().with("sys/fs/selinux/enforce", "1"),
            &["sudo dnf install k3s-selinux", "sudo systemctl restart k3s"],
        ),
        case("memory.size", small(300), &["not enough memory for k3s"]),
        case("memory.size", small(900), &["servicelb"]),
        case(
            "memory.pressure",
            ubuntu().with(
                "proc/pressure/memory",
                "some avg10=1.00 avg60=31.12 avg300=0.08 total=0\n",
            ),
            &["31 %"],
        ),
        case(
            "memory.killed",
            ubuntu().with("proc/vmstat", "oom_kill 3\n"),
            &["3 since", "eviction-hard"],
        ),
        case(
            "power.supply",
            raspberry_pi().with(FLAGS, "50005\n"),
            &["right now"],
        ),
        case(
            "power.supply",
            raspberry_pi().with(FLAGS, "50000\n"),
            &["since the machine started"],
        ),
        case(
            "power.heat",
            raspberry_pi().with("sys/class/hwmon/hwmon0/temp1_input", "84000\n"),
            &["84 °C"],
        ),
    ]
}

pub(super) fn clock() -> Vec<Case> {
    vec![
        case(
            "clock.wrong",
            raspberry_pi().at("1970-01-01T00:01:00Z"),
            &["1970", "sudo timedatectl set-ntp true"],
        ),
        case(
            "clock.wrong",
            alpine().at("2020-01-01T00:00:00Z"),
            &["rc-service ntpd start"],
        ),
        case(
            "clock.sync",
            raspberry_pi()
                .without("run/systemd/timesync")
                .with("run/systemd/timesync/waiting", ""),
            &[
                "sudo systemctl restart systemd-timesyncd",
                "/etc/systemd/timesyncd.conf",
            ],
        ),
        case(
            "clock.sync",
            alpine().without("proc/78"),
            &["rc-update add ntpd"],
        ),
        case(
            "clock.battery",
            raspberry_pi().without("var/lib/systemd"),
            &["sudo apt install fake-hwclock"],
        ),
        case(
            "host.name",
            raspberry_pi().with("proc/sys/kernel/hostname", "raspberrypi\n"),
            &["every machine", "hostnamectl"],
        ),
        case(
            "host.name",
            alpine().with("proc/sys/kernel/hostname", "My_Box\n"),
            &["not a valid node name", "/etc/hostname"],
        ),
        case(
            "host.machine-id",
            ubuntu().with("etc/machine-id", ""),
            &["systemd-machine-id-setup"],
        ),
        case(
            "host.machine-id",
            ubuntu().with("etc/machine-id", "uninitialized\n"),
            &["never created"],
        ),
    ]
}

fn with_root(tree: Tree, kind: &str, options: &str) -> Tree {
    let old = "28 1 8:2 / / rw,noatime shared:1 - ext4 /dev/sda2 rw\n";
    let new = format!("28 1 8:2 / / rw,noatime shared:1 - {kind} /dev/sda2 {options}\n");
    tree.with_words(MOUNTS, old, &new)
}

fn on_card(tree: Tree) -> Tree {
    tree.with_words(
        MOUNTS,
        "/var/lib/rancher rw,noatime shared:14 - ext4 /dev/sda2",
        "/var/lib/rancher rw,noatime shared:14 - ext4 /dev/mmcblk0p2",
    )
    .with("sys/block/mmcblk0/device/type", "SD\n")
}

pub(super) fn disk() -> Vec<Case> {
    let swap = "Filename Type Size Used Priority\n/dev/mmcblk0p3 partition 1 0 -2\n";
    vec![
        case(
            "disk.volatile",
            with_root(raspberry_pi(), "overlay", "rw"),
            &["raspi-config nonint disable_overlayfs"],
        ),
        case(
            "disk.volatile",
            ubuntu()
                .with_words(
                    MOUNTS,
                    "- ext4 /dev/nvme0n1p2 rw",
                    "- overlay overlayroot rw",
                )
                .with("proc/cmdline", "overlayroot=tmpfs\n")
                .with("etc/overlayroot.conf", ""),
            &["/etc/overlayroot.conf"],
        ),
        case(
            "disk.volatile",
            ubuntu().with_words(MOUNTS, "- ext4 /dev/nvme0n1p2 rw", "- tmpfs tmpfs rw"),
            &["in memory (tmpfs)", "/var/lib/rancher"],
        ),
        case(
            "disk.network-root",
            ubuntu().with_words(MOUNTS, "- ext4 /dev/nvme0n1p2 rw", "- nfs nas:/root rw"),
            &["nas:/root"],
        ),
        case(
            "disk.read-only",
            with_root(raspberry_pi(), "ext4", "ro"),
            &["sudo mount -o remount,rw /"],
        ),
        case(
            "disk.errors",
            raspberry_pi().with("sys/fs/ext4/sda2/errors_count", "4\n"),
            &["sda2: 4 errors", "tune2fs"],
        ),
        case(
            "disk.space",
            raspberry_pi().with_space("/", |space| space.available = space.size / 50),
            &["(1 %)", "crictl rmi --prune"],
        ),
        case(
            "disk.space",
            raspberry_pi().with_space("/", |space| space.available = 200_000_000),
            &["200 MB free"],
        ),
        case(
            "disk.inodes",
            raspberry_pi().with_space("/", |space| space.inodes_free = 10),
            &["10 of 7733248", "--inodes"],
        ),
        case(
            "disk.wear",
            raspberry_pi().with("sys/block/mmcblk0/device/life_time", "0x0b 0x02\n"),
            &["100 %", "mmcblk0"],
        ),
        case(
            "disk.card",
            // With SQLite, too.
            on_card(raspberry_pi()).with("var/lib/rancher/k3s/server/db/etcd/name", "pi-1\n"),
            &[
                "/var/lib/rancher/k3s is on the card",
                "rsync",
                "sudo systemctl stop k3s",
            ],
        ),
        case(
            "disk.card",
            on_card(raspberry_pi()).with("var/lib/rancher/k3s/server/db/etcd/member/", ""),
            &["etcd is on the card"],
        ),
        case(
            "disk.zfs",
            ubuntu()
                .with_words(MOUNTS, "- ext4 /dev/nvme0n1p2 rw", "- zfs rpool/ROOT rw")
                .with("sys/module/zfs/version", "2.1.11-1\n"),
            &["OpenZFS 2.1.11", "zfs create"],
        ),
        case(
            "swap.card",
            raspberry_pi()
                .with("proc/swaps", swap)
                .with("etc/dphys-swapfile", ""),
            &["dphys-swapfile swapoff"],
        ),
        case(
            "swap.card",
            raspberry_pi()
                .with("proc/swaps", swap)
                .with("etc/rpi/swap.conf", ""),
            &["/etc/rpi/swap.conf.d", "Mechanism=zram"],
        ),
        case(
            "swap.card",
            raspberry_pi().with("proc/swaps", swap),
            &["sudo swapoff /dev/mmcblk0p3", "/etc/fstab"],
        ),
    ]
}

pub(super) fn logs() -> Vec<Case> {
    let log = |line: &str| {
        raspberry_pi().with(
            "dev/kmsg",
            &format!("6,1,1,-;Linux version 6.6\n3,2,2,-;{line}\n"),
        )
    };
    vec![
        case(
            "disk.kernel-log",
            log("blk_update_request: I/O error, dev sda, sector 12"),
            &["I/O error, dev sda"],
        ),
        case(
            "disk.usb",
            log("sd 0:0:0:0: uas_eh_abort_handler 0 uas-tag 5"),
            &["usb-storage.quirks", "/boot/firmware/cmdline.txt"],
        ),
        case(
            "disk.unclean",
            log("EXT4-fs (sda2): recovery complete"),
            &["recovery complete", "journalctl -u k3s"],
        ),
        case(
            "log.journal",
            raspberry_pi()
                .with("etc/systemd/journald.conf", "#SystemMaxUse=\n")
                .with_space("/", |space| space.size = 32_000_000_000),
            &["SystemMaxUse=100M", "/etc/systemd/journald.conf.d"],
        ),
        case(
            "log.rotation",
            alpine()
                .without("usr/sbin/logrotate")
                .with("var/log/k3s.log", ""),
            &["sudo apk add logrotate"],
        ),
    ]
}

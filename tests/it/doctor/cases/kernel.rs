//! The kernel.

#![expect(clippy::too_many_lines, reason = "tables")]

use super::{
    super::tree::{RELEASE, Tree, alpine, lxc, raspberry_pi, rocky, ubuntu, wsl},
    CONTROLLERS, Case, MOUNTS, case,
};

fn without_memory(tree: Tree) -> Tree {
    tree.with(CONTROLLERS, "cpuset cpu io pids\n")
}

fn version_1(tree: Tree) -> Tree {
    tree.without(CONTROLLERS)
        .with_words(MOUNTS, "cgroup2 cgroup2 rw", "cgroup cgroup rw")
        .with("proc/cgroups", "#subsys_name hierarchy num_cgroups enabled\ncpuset 1 1 1\ncpu 2 1 1\nmemory 3 1 1\npids 4 1 1\n")
}

pub(super) fn kernel() -> Vec<Case> {
    let unmounted =
        "60 28 8:1 / /boot/firmware rw,relatime shared:12 - vfat /dev/sda1 rw,errors=remount-ro\n";
    let dep = format!("lib/modules/{RELEASE}/modules.dep");
    let vxlan = "kernel/drivers/net/vxlan/vxlan.ko.xz:\n";
    vec![
        case(
            "boot.partition",
            raspberry_pi().with_words(MOUNTS, unmounted, ""),
            &["sudo mount /boot/firmware"],
        ),
        case(
            "boot.cmdline",
            raspberry_pi().with(
                "boot/firmware/cmdline.txt",
                "console=tty1\ncgroup_enable=memory\n",
            ),
            &["2 lines", "/boot/firmware/cmdline.txt"],
        ),
        case(
            "boot.cmdline",
            raspberry_pi().with("boot/firmware/cmdline.txt", "console=tty1\r\n"),
            &["Windows"],
        ),
        case(
            "cgroup.version",
            version_1(ubuntu()),
            &[
                "GRUB_CMDLINE_LINUX",
                "sudo update-grub",
                "systemd.unified_cgroup_hierarchy=1",
            ],
        ),
        case(
            "cgroup.version",
            version_1(rocky()),
            &["sudo grubby --update-kernel=ALL"],
        ),
        case(
            "cgroup.version",
            version_1(alpine()),
            &["/etc/rc.conf", "rc-update add cgroups boot"],
        ),
        case(
            "cgroup.controllers",
            ubuntu().with(CONTROLLERS, "cpu memory pids\n"),
            &["missing: cpuset", "cgroup_enable=cpuset"],
        ),
        case(
            "cgroup.controllers",
            alpine().with(CONTROLLERS, "memory\n"),
            &["cpu, cpuset, pids", "/etc/rc.conf"],
        ),
        case(
            "cgroup.controllers",
            lxc().with(CONTROLLERS, "cpu memory\n"),
            &["on the host of this container"],
        ),
        case(
            "cgroup.memory",
            without_memory(raspberry_pi()),
            &[
                "/boot/firmware/cmdline.txt",
                "cgroup_memory=1 cgroup_enable=memory",
                "sudo reboot",
            ],
        ),
        case(
            "cgroup.memory",
            without_memory(raspberry_pi())
                .without("boot/firmware")
                .with_words(MOUNTS, "/boot/firmware", "/boot")
                .with("etc/fstab", "/dev/sda1 /boot vfat defaults 0 2\n")
                .with("boot/cmdline.txt", "console=tty1\n"),
            &["single line of /boot/cmdline.txt"],
        ),
        case(
            "cgroup.memory",
            without_memory(raspberry_pi()).with(
                "boot/firmware/cmdline.txt",
                "console=tty1 cgroup_enable=memory\n",
            ),
            &["was not started with it", "sudo reboot"],
        ),
        case(
            "cgroup.memory",
            without_memory(raspberry_pi()).with(
                "proc/cmdline",
                "cgroup_disable=memory console=tty1 cgroup_enable=memory\n",
            ),
            &["sudo apt update && sudo apt full-upgrade"],
        ),
        case(
            "cgroup.memory",
            without_memory(alpine()),
            &["/etc/update-extlinux.conf", "sudo update-extlinux"],
        ),
        case(
            "cgroup.memory",
            without_memory(lxc()),
            &["on the host of this container"],
        ),
        case(
            "cgroup.memory",
            without_memory(wsl()),
            &[".wslconfig", "wsl --shutdown"],
        ),
        case(
            "cgroup.memory",
            without_memory(ubuntu())
                .without("etc/default/grub")
                .with("boot/armbianEnv.txt", "verbosity=1\n"),
            &["extraargs", "/boot/armbianEnv.txt"],
        ),
        case(
            "cgroup.memory",
            without_memory(ubuntu())
                .without("etc/default/grub")
                .with("boot/extlinux/extlinux.conf", "append root=1\n"),
            &["/boot/extlinux/extlinux.conf"],
        ),
        case(
            "cgroup.memory",
            without_memory(ubuntu())
                .without("etc/default/grub")
                .with("boot/loader/entries/arch.conf", "options root=1\n"),
            &["/boot/loader/entries/arch.conf"],
        ),
        case(
            "kernel.restart",
            raspberry_pi()
                .without("lib/modules")
                .with("lib/modules/6.6.62/modules.dep", ""),
            &[RELEASE, "sudo reboot"],
        ),
        case(
            "kernel.modules",
            raspberry_pi().with("proc/modules", "overlay 1 0 - Live 0x0\n"),
            &[
                "not loaded: br_netfilter nf_conntrack",
                "/etc/modules-load.d/",
            ],
        ),
        case(
            "kernel.modules",
            raspberry_pi().with_words(&dep, "veth", "other"),
            &["no veth"],
        ),
        case(
            "kernel.vxlan",
            raspberry_pi()
                .with("etc/os-release", "ID=ubuntu\nVERSION_ID=22.04\n")
                .with_words(&dep, vxlan, ""),
            &["sudo apt install linux-modules-extra-raspi"],
        ),
        case(
            "kernel.vxlan",
            raspberry_pi().with_words(&dep, vxlan, ""),
            &["host-gw", "sudo systemctl restart k3s"],
        ),
        case(
            "kernel.vxlan",
            rocky().with_words("lib/modules/6.8.0-45-generic/modules.dep", vxlan, ""),
            &["sudo dnf install kernel-modules-extra"],
        ),
        case(
            "kernel.page-size",
            raspberry_pi()
                .with("page size", "16384")
                .with("proc/device-tree/model", "Raspberry Pi 5 Model B Rev 1.0\0"),
            &["16 KiB", "kernel=kernel8.img", "/boot/firmware/config.txt"],
        ),
        case(
            "limits.inotify",
            ubuntu().with("proc/sys/fs/inotify/max_user_instances", "128\n"),
            &["128 instances", "/etc/sysctl.d/"],
        ),
        case(
            "limits.files",
            ubuntu().with("proc/sys/fs/file-nr", "90000\t0\t100000\n"),
            &["90000 of 100000"],
        ),
    ]
}

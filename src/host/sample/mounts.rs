//! Mounts from `/proc/self/mountinfo` (proc_pid_mountinfo(5)): file systems that are worth
//! measuring and can be queried without blocking.

use std::collections::BTreeSet;

use litemap::LiteMap;

use crate::core::{
    order::{GatherExt as _, OrderExt as _},
    procfs::mounts::{Mount, mounts, unescaped},
    rates::FileSystem,
};

/// File systems that are kept, those with the shortest paths.
const KEPT_MAX: usize = 32;
/// Kinds that lie on a disk of this machine. Their kernels answer how full they are from memory.
const LOCAL: [&str; 17] = [
    "bcachefs", "btrfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "hfsplus", "jffs2", "jfs",
    "nilfs2", "ntfs3", "reiserfs", "ubifs", "vfat", "xfs", "zfs",
];
/// Kinds that hold nothing, or never anything but all that they can, and that no way through them
/// waits. Every other kind may ask somebody who is gone: a server, a program in user space.
const HARMLESS: [&str; 25] = [
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "cramfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "erofs",
    "fusectl",
    "hugetlbfs",
    "mqueue",
    "nsfs",
    "overlay",
    "proc",
    "pstore",
    "ramfs",
    "rootfs",
    "securityfs",
    "squashfs",
    "sysfs",
    "tmpfs",
    "tracefs",
];
/// In-memory file systems worth measuring: when they are full, programs break.
const OF_MEMORY: [&str; 5] = ["/", "/run", "/tmp", "/var/log", "/var/tmp"];
/// Below these, mounts are plumbing, or belong to containers and Pods.
const PLUMBING: [&str; 8] = [
    "/dev/",
    "/etc/",
    "/proc/",
    "/sys/",
    "/kubelet/",
    "/containerd/",
    "/containers/storage/",
    "/docker/",
];

/// Mounts of one mountinfo.
#[derive(Debug, Default)]
pub(super) struct Mounts {
    /// The file systems, by the path where they are mounted, not asked yet.
    pub(super) file_systems: LiteMap<String, FileSystem>,
    /// True if `/proc` shows not all processes.
    pub(super) hides_processes: bool,
}

/// Reads the whole file. `None` where it has not one line of the documented form.
pub(super) fn read(mountinfo: &str) -> Option<Mounts> {
    let mut mounts: Vec<_> = mounts(mountinfo).collect();
    if mounts.is_empty() {
        return None;
    }
    let has_option =
        |mount: &Mount<'_>, is_it: fn(&str) -> bool| mount.super_options.split(',').any(is_it);
    let hides_processes = mounts.iter().any(|mount| {
        let hides = |option: &str| {
            option
                .strip_prefix("hidepid=")
                .is_some_and(|how| !matches!(how, "0" | "off"))
        };
        mount.point == "/proc" && mount.kind == "proc" && has_option(mount, hides)
    });
    let risky: BTreeSet<String> = mounts
        .iter()
        .filter(|mount| !LOCAL.contains(&mount.kind) && !HARMLESS.contains(&mount.kind))
        .map(|mount| mount.point.clone().into_owned())
        .gather();
    // Of a disk that is mounted twice the shortest path is the one that people know. The sort keeps
    // the order of what is equally long, and of two at one path the later one covers the other:
    // both have their turn, and the second replaces the first.
    mounts.retain(|mount| is_wanted(mount) && !is_behind(&mount.point, &risky));
    mounts.order_by_key(|mount| mount.point.len());
    let mut seen = LiteMap::new_vec();
    let mut file_systems = LiteMap::new();
    for mount in mounts {
        let path = mount.point.clone().into_owned();
        let first = seen.entry(mount.number).or_insert_with(|| path.clone());
        if *first != path || (file_systems.len() >= KEPT_MAX && !file_systems.contains_key(&path)) {
            continue;
        }
        let file_system = FileSystem {
            // Of the file system itself: the service manager shows many of them read-only to one
            // program alone.
            is_read_only: has_option(&mount, |option| option == "ro"),
            device: unescaped(mount.device).into_owned(),
            kind: mount.kind.to_owned(),
            ..FileSystem::default()
        };
        file_systems.insert(path, file_system);
    }
    Some(Mounts {
        file_systems,
        hides_processes,
    })
}

fn is_wanted(mount: &Mount<'_>) -> bool {
    let path = mount.point.as_ref();
    let is_kind = match mount.kind {
        "tmpfs" => OF_MEMORY.contains(&path),
        // The root of a container, or of a system that keeps its card as it is.
        "overlay" => path == "/",
        kind => LOCAL.contains(&kind),
    };
    is_kind && !PLUMBING.iter().any(|plumbing| path.contains(plumbing))
}

/// Returns whether one of these paths is the same, or on the way to it.
fn is_behind(path: &str, risky: &BTreeSet<String>) -> bool {
    risky.iter().any(|before| {
        let rest = path.strip_prefix(before.trim_end_matches('/'));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(mountinfo: &str) -> Vec<String> {
        let mounts = read(mountinfo).unwrap();
        mounts
            .file_systems
            .into_iter()
            .map(|(key, _)| key)
            .collect()
    }

    #[test]
    fn disks_are_kept_once_and_by_the_path_that_people_know() {
        let mountinfo = "\
            21 1 8:2 / / rw,relatime shared:1 - ext4 /dev/sda2 rw\n\
            22 21 8:2 /var/lib/x /srv/deep/x rw shared:1 - ext4 /dev/sda2 rw\n\
            23 21 0:5 / /dev rw - devtmpfs devtmpfs rw\n\
            24 21 0:30 / /run rw,nosuid shared:5 - tmpfs tmpfs rw,size=1k\n\
            25 24 0:31 / /run/lock rw - tmpfs tmpfs rw\n\
            26 21 8:1 / /boot/firmware ro,relatime - vfat /dev/sda1 rw\n\
            27 21 0:44 /@home /home rw - btrfs /dev/sdb1 rw,subvol=/@home\n\
            28 21 8:16 / /media/My\\040Disk ro - xfs /dev/sdc ro\n\
            29 21 7:0 / /snap/core/1 ro - squashfs /dev/loop0 ro\n\
            30 21 8:32 / /var/lib/kubelet/pods/a/volumes/b rw - ext4 /dev/sdd rw\n\
            31 21 0:60 / /var/lib/docker/overlay2/a/merged rw - overlay overlay rw\n\
            32 21 8:2 /etc/hosts /etc/hosts rw - ext4 /dev/sda2 rw\n";
        assert_eq!(
            kept(mountinfo),
            ["/", "/boot/firmware", "/home", "/media/My Disk", "/run"]
        );
        let mounts = read(mountinfo).unwrap().file_systems;
        // The mount is read-only to us alone; the file system is not.
        assert!(!mounts.get("/boot/firmware").unwrap().is_read_only);
        assert!(mounts.get("/media/My Disk").unwrap().is_read_only);
    }

    #[test]
    fn nothing_on_or_behind_a_network_is_asked() {
        let mountinfo = "\
            21 1 8:2 / / rw - ext4 /dev/sda2 rw\n\
            22 21 0:40 / /nfs rw - nfs4 server:/ rw\n\
            23 22 8:17 / /nfs/inside rw - ext4 /dev/sdb1 rw\n\
            24 21 8:18 / /nfsdisk rw - ext4 /dev/sdb2 rw\n\
            25 21 0:41 / /boot rw - autofs systemd-1 rw\n\
            26 25 8:1 / /boot rw - vfat /dev/sda1 rw\n\
            27 21 0:42 / /mnt/c rw - 9p drvfs rw\n\
            28 21 0:43 / /cloud rw - fuse.rclone remote: rw\n";
        assert_eq!(kept(mountinfo), ["/", "/nfsdisk"]);
        // A machine that boots from the network: nothing of it can be asked safely.
        let netboot =
            "21 1 0:9 / / rw - nfs server:/pi rw\n22 21 8:1 / /data rw - ext4 /dev/sda rw\n";
        assert_eq!(kept(netboot), [""; 0]);
    }

    #[test]
    fn what_covers_another_mount_at_its_path_counts() {
        let mountinfo = "\
            21 1 0:2 / / rw - rootfs rootfs rw\n\
            22 21 8:2 / / rw - ext4 /dev/old rw\n\
            23 22 8:3 / / ro - ext4 /dev/new ro\n";
        let mounts = read(mountinfo).unwrap().file_systems;
        assert_eq!(
            (mounts.len(), mounts.get("/").unwrap().device.as_str()),
            (1, "/dev/new")
        );
    }

    #[test]
    fn a_thousand_mounts_are_bounded_and_the_root_is_among_them() {
        use std::fmt::Write;
        let mut mountinfo = String::new();
        for n in 0..1000 {
            writeln!(mountinfo, "{n} 1 8:{n} / /data/{n} rw - ext4 /dev/x{n} rw").unwrap();
        }
        mountinfo.push_str("2000 1 9:1 / / rw - ext4 /dev/root rw\n");
        let kept = kept(&mountinfo);
        assert_eq!(kept.len(), KEPT_MAX);
        assert!(kept.contains(&"/".to_owned()));
    }

    #[test]
    fn hidden_processes_are_noticed() {
        let hides = |options: &str| {
            let line = format!("22 27 0:21 / /proc rw - proc proc {options}\n");
            read(&line).unwrap().hides_processes
        };
        assert!(hides("rw,hidepid=invisible") && hides("rw,gid=4,hidepid=2"));
        assert!(!hides("rw") && !hides("rw,hidepid=0") && !hides("rw,hidepid=off"));
    }
}

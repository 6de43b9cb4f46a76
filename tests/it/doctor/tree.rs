//! Healthy machines as trees of files, made of the captured ones, and what the doctor says of them
//! when something is changed.

use std::{collections::BTreeMap, fs, path::Path};

use pipeops_agent::{
    core::{
        doctor::{CheckOutcome, CheckResult, judge},
        environment::Environment,
        facts::{Fact, Facts},
        rates::Space,
        time::Wall,
    },
    host::{clock, doctor, sample},
};

use crate::trees::named;

pub(super) const RELEASE: &str = "6.6.51+rpt-rpi-v8";
/// The beginning of a program of 64 bit.
pub(super) const ELF_64: &str = "\u{7f}ELF\u{2}";
pub(super) const ELF_32: &str = "\u{7f}ELF\u{1}";

/// A machine: its files by path (with a slash at the end: an empty folder), and what no file says.
#[derive(Clone)]
pub(super) struct Tree {
    files: BTreeMap<String, String>,
    spaces: BTreeMap<String, Space>,
    /// Facts that are not found on disk.
    asked: BTreeMap<String, Fact>,
    now: Option<Wall>,
}

/// What the doctor said of a tree.
pub(super) struct RawCommand {
    pub(super) facts: Facts,
    pub(super) environment: Environment,
    pub(super) verdicts: Vec<CheckResult>,
    /// Every path of the tree.
    pub(super) root: tempfile::TempDir,
}

impl Tree {
    fn of(captured: &str, more: &[(&str, &str)]) -> Self {
        let machine = named(captured);
        let tree = Self {
            files: machine.first,
            spaces: machine.spaces,
            asked: BTreeMap::new(),
            now: None,
        };
        more.iter()
            .fold(tree, |tree, (path, content)| tree.with(path, content))
    }

    /// With this file, in the place of another one. A path with a slash at its end is a folder.
    pub(super) fn with(mut self, path: &str, content: &str) -> Self {
        self.files.insert(path.to_owned(), content.to_owned());
        self
    }

    /// With other words in a file.
    pub(super) fn with_words(mut self, path: &str, old: &str, new: &str) -> Self {
        let content = self.files.get_mut(path);
        let content = content.unwrap_or_else(|| panic!("no {path}"));
        assert!(content.contains(old), "{path} has no {old}");
        *content = content.replace(old, new);
        self
    }

    /// Without what is at and below a path.
    pub(super) fn without(mut self, path: &str) -> Self {
        let before = self.files.len();
        self.files.retain(|file, _| {
            file != path && !file.starts_with(&format!("{}/", path.trim_end_matches('/')))
        });
        assert!(self.files.len() < before, "no {path}");
        self
    }

    /// With so much room in a file system.
    pub(super) fn with_space(mut self, path: &str, change: impl FnOnce(&mut Space)) -> Self {
        change(self.spaces.get_mut(path).unwrap());
        self
    }

    /// With an answer that is not on disk.
    pub(super) fn answering(mut self, name: &str, answer: &str) -> Self {
        self.asked
            .insert(name.to_owned(), Fact::Text(answer.to_owned()));
        self
    }

    /// With the sentence and the fix of a failure that is not on disk.
    pub(super) fn failing(mut self, name: &str, told: &str) -> Self {
        self.asked
            .insert(name.to_owned(), Fact::Failed(told.to_owned()));
        self
    }

    /// At another time.
    pub(super) fn at(mut self, stamp: &str) -> Self {
        self.now = Wall::parse_rfc3339(stamp);
        self
    }

    pub(super) fn facts(&self, root: &Path) -> Facts {
        for (path, content) in &self.files {
            let path = root.join(path);
            if path.to_str().unwrap().ends_with('/') {
                fs::create_dir_all(&path).unwrap();
                continue;
            }
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            crate::agent::put(&path, content);
        }
        let mut facts = Facts {
            now: self.now.unwrap_or_else(|| clock::now().wall),
            built: pipeops_agent::net::tls::build_date(),
            reading: sample::read_below(root, &|path| self.spaces.get(path).copied()),
            ..Facts::default()
        };
        doctor::read(root, doctor::names(), |name, fact| {
            facts.found.insert(name, fact);
            true
        });
        let state = doctor::state(root, Path::new("/var/lib/pipeops-agent"));
        facts.found.extend([state]);
        facts.found.extend(self.asked.clone());
        facts
    }

    /// What the doctor says of it.
    pub(super) fn said(&self) -> RawCommand {
        let root = tempfile::tempdir().unwrap();
        let facts = self.facts(root.path());
        let environment = Environment::of(&facts);
        let verdicts = judge(&facts, &environment);
        RawCommand {
            facts,
            environment,
            verdicts,
            root,
        }
    }
}

impl RawCommand {
    pub(super) fn of(&self, id: &str) -> &CheckResult {
        let verdict = self.verdicts.iter().find(|verdict| verdict.check.id == id);
        verdict.unwrap_or_else(|| panic!("no check {id}"))
    }

    /// What is wrong, as `id: seen`.
    pub(super) fn problems(&self) -> Vec<String> {
        let problems = self
            .verdicts
            .iter()
            .filter(|verdict| verdict.outcome == CheckOutcome::Problem);
        problems
            .map(|verdict| format!("{}: {}", verdict.check.id, verdict.seen))
            .collect()
    }
}

const LINUX: &[(&str, &str)] = &[
    ("bin/sh", ELF_64),
    ("etc/machine-id", "0123456789abcdef0123456789abcdef\n"),
    ("etc/modules-load.d/", ""),
    ("etc/sysctl.d/", ""),
    ("etc/hostname", "berry\n"),
    ("page size", "4096"),
    ("proc/cmdline", "console=tty1 root=PARTUUID=1 rootwait\n"),
    (
        "proc/modules",
        "overlay 1 0 - Live 0x0\nbr_netfilter 1 0 - Live 0x0\nnf_conntrack 1 0 - Live 0x0\n",
    ),
    ("proc/sys/fs/inotify/max_user_instances", "8192\n"),
    ("proc/sys/fs/inotify/max_user_watches", "524288\n"),
    ("proc/sys/kernel/hostname", "berry\n"),
    (
        "proc/pressure/memory",
        "some avg10=0.00 avg60=0.12 avg300=0.08 total=0\nfull avg10=0.00 avg60=0.05 avg300=0.02 total=0\n",
    ),
    ("proc/vmstat", "oom_kill 0\n"),
    (
        "sys/fs/cgroup/cgroup.controllers",
        "cpuset cpu io memory hugetlb pids\n",
    ),
    ("usr/bin/env", ELF_64),
    ("etc/resolv.conf", "nameserver 192.168.1.1\nsearch house\n"),
    ("etc/passwd", "root:x:0:0::/root:/bin/sh\n"),
    ("etc/rancher/node/password", "x"),
    ("proc/self/net/fib_trie", FIB_TRIE),
    ("proc/self/net/route", ROUTES),
    ("proc/self/net/tcp", PORTS),
    (
        "proc/swaps",
        "Filename Type Size Used Priority\n/dev/zram0 partition 1 0 100\n",
    ),
    ("sys/class/net/eth0/mtu", "1500\n"),
    ("sys/class/net/eth0/operstate", "up\n"),
    ("var/lib/pipeops-agent/", ""),
    ("var/log/journal/", ""),
    ("tmp/", ""),
    ("usr/sbin/iptables-nft", ELF_64),
    ("usr/sbin/ip6tables-nft", ELF_64),
];

/// 192.168.1.20/24 with a router at its first address.
const ROUTES: &str = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n\
    eth0 00000000 0101A8C0 0003 0 0 100 00000000 0 0 0\neth0 0001A8C0 00000000 0001 0 0 100 00FFFFFF 0 0 0\n\
    cni0 00002A0A 00000000 0001 0 0 0 00FFFFFF 0 0 0\n";
const FIB_TRIE: &str = "Local:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 127.0.0.1\n        /32 host LOCAL\n     |-- 192.168.1.20\n        /32 host LOCAL\n";
/// 6443 (192B) is listened on by root.
const PORTS: &str = "sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode\n\
    0: 0100007F:192B 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 4711 1\n";

const SYSTEMD: &[(&str, &str)] = &[
    ("run/systemd/system/", ""),
    ("run/systemd/timesync/synchronized", ""),
    ("var/lib/systemd/timesync/clock", ""),
    ("sys/fs/cgroup/system.slice/k3s.service/", ""),
    (
        "etc/systemd/journald.conf",
        "[Journal]\nSystemMaxUse=100M\n",
    ),
];

const K3S: &[(&str, &str)] = &[
    ("usr/local/bin/k3s", ELF_64),
    ("etc/systemd/system/k3s.service", "[Service]\n"),
    (
        "etc/rancher/k3s/config.yaml",
        "write-kubeconfig-mode: \"0600\"\n",
    ),
];

const MODULES: &str = "kernel/fs/overlayfs/overlay.ko.xz:\nkernel/net/bridge/br_netfilter.ko.xz: kernel/net/bridge/bridge.ko.xz\n\
    kernel/net/bridge/bridge.ko.xz:\nkernel/net/netfilter/nf_conntrack.ko.xz:\nkernel/drivers/net/vxlan/vxlan.ko.xz:\n\
    kernel/drivers/net/veth.ko.xz:\n";

fn all(lists: &[&[(&'static str, &'static str)]]) -> Vec<(&'static str, &'static str)> {
    lists.concat()
}

fn with_kernel(tree: Tree, release: &str, architecture: &str) -> Tree {
    let folder = format!("lib/modules/{release}");
    tree.with("proc/sys/kernel/osrelease", &format!("{release}\n"))
        .with("proc/sys/kernel/arch", &format!("{architecture}\n"))
        .with(&format!("{folder}/modules.dep"), MODULES)
        .with(
            &format!("{folder}/modules.builtin"),
            "kernel/net/8021q/8021q.ko\n",
        )
}

/// A Raspberry Pi 4 with Raspberry Pi OS 12 and k3s, where all is well.
pub(super) fn raspberry_pi() -> Tree {
    let own: &[_] = &[
        ("proc/device-tree/model", "Raspberry Pi 4 Model B Rev 1.4\0"),
        (
            "etc/os-release",
            "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nVERSION_ID=\"12\"\nID=debian\n",
        ),
        (
            "etc/fstab",
            "proc /proc proc defaults 0 0\nPARTUUID=1-01 /boot/firmware vfat defaults 0 2\n",
        ),
        (
            "boot/firmware/cmdline.txt",
            "console=tty1 root=PARTUUID=1 rootwait\n",
        ),
        ("boot/firmware/config.txt", "arm_64bit=1\n"),
        ("usr/bin/apt-get", ELF_64),
    ];
    let tree = Tree::of("raspberry-pi-4", &all(&[LINUX, SYSTEMD, K3S, own]));
    with_kernel(tree, RELEASE, "aarch64")
}

/// A server with Ubuntu 24.04 and GRUB.
pub(super) fn ubuntu() -> Tree {
    let own: &[_] = &[
        (
            "etc/os-release",
            "PRETTY_NAME=\"Ubuntu 24.04.1 LTS\"\nVERSION_ID=\"24.04\"\nID=ubuntu\nID_LIKE=debian\n",
        ),
        ("etc/default/grub", "GRUB_CMDLINE_LINUX=\"\"\n"),
        ("sys/class/dmi/id/sys_vendor", "Intel\n"),
        ("sys/class/dmi/id/product_name", "NUC11\n"),
        ("sys/class/rtc/rtc0/", ""),
        ("usr/bin/apt-get", ELF_64),
        ("run/systemd/timesync/synchronized", ""),
        // One of its disks is broken in the captured tree.
        ("sys/block/sda/size", "1\n"),
    ];
    let tree = Tree::of("x86-nas", &all(&[LINUX, SYSTEMD, K3S, own])).with_words(
        "proc/self/mountinfo",
        "/dev/mapper/vg0-pool ro",
        "/dev/mapper/vg0-pool rw",
    );
    with_kernel(tree, "6.8.0-45-generic", "x86_64")
}

/// The same machine with Rocky Linux 9.
pub(super) fn rocky() -> Tree {
    ubuntu()
        .with("etc/os-release", "PRETTY_NAME=\"Rocky Linux 9.4\"\nVERSION_ID=\"9.4\"\nID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n")
        .without("usr/bin/apt-get")
        .with("usr/bin/dnf", ELF_64)
}

/// The same machine with Alpine, which has OpenRC and extlinux.
pub(super) fn alpine() -> Tree {
    ubuntu()
        .with(
            "etc/os-release",
            "PRETTY_NAME=\"Alpine Linux v3.20\"\nVERSION_ID=3.20.3\nID=alpine\n",
        )
        .without("usr/bin/apt-get")
        .without("etc/default/grub")
        .without("run/systemd")
        .without("sys/fs/cgroup/system.slice")
        .without("etc/systemd")
        .without("var/lib/systemd")
        .with("sbin/apk", ELF_64)
        .with("run/openrc/softlevel", "default")
        .with(
            "etc/update-extlinux.conf",
            "default_kernel_opts=\"quiet\"\n",
        )
        .with("etc/rc.conf", "#rc_cgroup_mode=\"hybrid\"\n")
        .with("etc/init.d/k3s", "#!/sbin/openrc-run\n")
        .with("proc/77/comm", "k3s-server\n")
        .with("proc/78/comm", "ntpd\n")
        .with("usr/sbin/logrotate", ELF_64)
}

/// A system container of Proxmox that may do all that k3s needs.
pub(super) fn lxc() -> Tree {
    let own: &[_] = &[
        (
            "etc/os-release",
            "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nVERSION_ID=\"12\"\nID=debian\n",
        ),
        ("run/systemd/container", "lxc\n"),
        ("dev/kmsg", ""),
        ("usr/bin/apt-get", ELF_64),
    ];
    let tree = Tree::of("lxc", &all(&[LINUX, SYSTEMD, K3S, own]));
    tree.with("proc/sys/kernel/osrelease", "6.8.12-2-pve\n")
        .with("proc/sys/kernel/arch", "x86_64\n")
}

/// Debian under Windows.
pub(super) fn wsl() -> Tree {
    let own: &[_] = &[
        (
            "etc/os-release",
            "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nVERSION_ID=\"12\"\nID=debian\n",
        ),
        ("etc/wsl.conf", "[boot]\nsystemd=true\n"),
        ("usr/bin/apt-get", ELF_64),
    ];
    let tree = Tree::of("wsl2", &all(&[LINUX, SYSTEMD, K3S, own]));
    tree.with(
        "proc/sys/kernel/osrelease",
        "5.15.153.1-microsoft-standard-WSL2\n",
    )
    .with("proc/sys/kernel/arch", "x86_64\n")
}

/// All of them, by name.
pub(super) fn healthy() -> [(&'static str, Tree); 6] {
    [
        ("raspberry-pi", raspberry_pi()),
        ("ubuntu", ubuntu()),
        ("rocky", rocky()),
        ("alpine", alpine()),
        ("lxc", lxc()),
        ("wsl", wsl()),
    ]
}

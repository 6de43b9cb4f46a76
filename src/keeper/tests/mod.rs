//! The keeper on trees that stand for machines, with small scripts in the place of their programs.

use std::{collections::BTreeMap, os::unix::fs::PermissionsExt};

use super::*;

mod journal;
mod k3s_adopt;
mod k3s_backup;
mod k3s_connect;
mod k3s_join;
mod k3s_kubeconfig;
mod k3s_life;
mod k3s_node;
mod k3s_pins;
mod k3s_scripts;
mod k3s_upgrade;
mod k3s_watch;
mod socket;
mod update_life;

/// A machine of a test.
struct Tree(tempfile::TempDir);

type Snapshot = BTreeMap<String, (u32, Option<Vec<u8>>)>;

impl Tree {
    fn new() -> Self {
        Self::below(tempfile::tempdir().unwrap())
    }

    /// In memory where that is possible: for tests that write very often.
    fn in_memory() -> Self {
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        Self::below(folder.unwrap())
    }

    fn below(folder: tempfile::TempDir) -> Self {
        for name in ["etc", "usr", "proc", "run", "boot", "var"] {
            make(&folder.path().join(name));
        }
        Self(folder)
    }

    fn root(&self) -> &Path {
        self.0.path()
    }

    fn with(self, path: &str, text: &str) -> Self {
        self.put(path, text, 0o644);
        self
    }

    fn put(&self, path: &str, text: &str, mode: u32) {
        let path = self.root().join(path);
        let parents: Vec<_> = path.ancestors().skip(1).collect();
        for parent in parents.into_iter().rev() {
            if parent.starts_with(self.root()) {
                make(parent);
            }
        }
        crate::files::replace(&path, text.as_bytes(), mode).unwrap();
    }

    /// A program that writes down how it was called, and then does this below the tree's root.
    fn program(self, name: &str, script: &str) -> Self {
        let text = format!(
            "#!/bin/sh\ncd \"${{0%/usr/sbin/*}}\" || exit 9\necho \"{name} $*\" >> calls\n{script}\n"
        );
        self.put(&format!("usr/sbin/{name}"), &text, 0o755);
        self
    }

    fn calls(&self) -> String {
        std::fs::read_to_string(self.root().join("calls")).unwrap_or_default()
    }

    fn read(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.root().join(path)).ok()
    }

    fn keeper(&self) -> Keeper {
        Keeper::new(self.root(), &self.root().join("var/keeper"))
    }

    /// Everything but what the keeper and the programs wrote down.
    fn snapshot(&self) -> Snapshot {
        let mut all = Snapshot::new();
        let mut open = vec![self.root().to_owned()];
        while let Some(folder) = open.pop() {
            for entry in std::fs::read_dir(&folder).unwrap().flatten() {
                let path = entry.path();
                let name = path
                    .strip_prefix(self.root())
                    .unwrap()
                    .display()
                    .to_string();
                if name == "var/keeper" || name == "calls" {
                    continue;
                }
                let metadata = std::fs::symlink_metadata(&path).unwrap();
                let content = metadata.is_file().then(|| std::fs::read(&path).unwrap());
                if metadata.is_dir() {
                    open.push(path);
                }
                all.insert(name, (metadata.permissions().mode(), content));
            }
        }
        all
    }
}

fn make(path: &Path) {
    if std::fs::create_dir(path).is_ok() {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
}

const PI_MOUNTS: &str = "21 1 179:2 / / rw,noatime - ext4 /dev/mmcblk0p2 rw\n22 21 179:1 / /boot/firmware rw - vfat /dev/mmcblk0p1 rw\n";
const PI_LINE: &str = "console=tty1 root=PARTUUID=1-02 rootwait\n";

fn pi() -> Tree {
    Tree::new()
        .with("sys/fs/cgroup/cgroup.controllers", "cpuset cpu io pids\n")
        .with("proc/self/mountinfo", PI_MOUNTS)
        .with("proc/cmdline", "console=tty1 cgroup_disable=memory\n")
        .with("boot/firmware/cmdline.txt", PI_LINE)
}

fn inotify() -> Tree {
    Tree::new()
        .with("proc/sys/fs/inotify/max_user_instances", "128\n")
        .with("proc/sys/fs/inotify/max_user_watches", "1000000\n")
}

fn systemd() -> Tree {
    let tree = Tree::new().with("run/systemd/system/x", "");
    tree.program("systemctl", "true")
}

fn grub() -> Tree {
    Tree::new()
        .with("sys/fs/cgroup/cgroup.controllers", "cpu pids\n")
        .with("etc/default/grub", "GRUB_TIMEOUT=5\n")
        .with("boot/grub/grub.cfg", "linux /vmlinuz\n")
        .program(
            "update-grub",
            "{ echo linux /vmlinuz; cat etc/default/grub.d/*.cfg; } > boot/grub/grub.cfg 2>/dev/null; chmod 644 boot/grub/grub.cfg",
        )
}

fn modules() -> Tree {
    Tree::new()
        .with("proc/sys/kernel/osrelease", "6.1.0\n")
        .with("lib/modules/6.1.0/modules.builtin", "kernel/fs/overlayfs/overlay.ko\n")
        .with(
            "lib/modules/6.1.0/modules.dep",
            "kernel/net/bridge/br_netfilter.ko.xz: kernel/net/bridge/bridge.ko.xz\nkernel/net/netfilter/nf_conntrack.ko:\n",
        )
        .with("sys/module/x", "")
        .program("modprobe", "mkdir -p sys/module/$1")
}

fn network_manager() -> Tree {
    Tree::new()
        .with("etc/NetworkManager/NetworkManager.conf", "[main]\n")
        .with("run/NetworkManager/x", "")
        .program("nmcli", "true")
}

fn clock() -> Tree {
    systemd().with("ntp", "no\n").program(
        "timedatectl",
        "case \"$*\" in *=NTP) cat ntp;; *CanNTP) echo yes;; *true) echo yes > ntp;; *false) echo no > ntp;; esac",
    )
}

fn swap() -> Tree {
    systemd()
        .with("proc/self/mountinfo", PI_MOUNTS)
        .with("proc/meminfo", "MemTotal: 900000 kB\nMemAvailable: 500000 kB\n")
        .with("proc/swaps", "Filename Type Size Used Priority\n/var/swap file 102396 2048 -2\n")
        .with(
            "etc/systemd/system/multi-user.target.wants/dphys-swapfile.service",
            "",
        )
        .program(
            "dphys-swapfile",
            "echo 'Filename Type Size Used Priority' > proc/swaps; [ $1 = swapoff ] || echo '/var/swap file 102396 2048 -2' >> proc/swaps",
        )
}

fn rpi_swap() -> Tree {
    Tree::new().with("etc/rpi/swap.conf", "[Main]\n#Mechanism=auto\n")
}

/// A machine for every repair, with a file and what must stand in it then.
fn machines() -> [(&'static str, Tree, &'static str, &'static str); 9] {
    [
        (
            "cgroup.memory",
            pi(),
            "boot/firmware/cmdline.txt",
            "rootwait cgroup_memory=1 cgroup_enable=memory\n",
        ),
        (
            "cgroup.memory",
            grub(),
            "boot/grub/grub.cfg",
            "cgroup_enable=memory",
        ),
        (
            "limits.inotify",
            inotify(),
            "proc/sys/fs/inotify/max_user_instances",
            "8192\n",
        ),
        (
            "network.manager",
            network_manager(),
            "etc/NetworkManager/conf.d/90-pipeops-k3s.conf",
            "interface-name:cni*",
        ),
        ("swap.card", swap(), "proc/swaps", "Priority\n"),
        (
            "swap.card",
            rpi_swap(),
            "etc/rpi/swap.conf.d/90-pipeops.conf",
            "Mechanism=zram\n",
        ),
        (
            "kernel.modules",
            modules(),
            "etc/modules-load.d/90-pipeops-k3s.conf",
            "br_netfilter\nnf_conntrack\n",
        ),
        ("clock.sync", clock(), "ntp", "yes\n"),
        (
            "log.journal",
            systemd(),
            "etc/systemd/journald.conf.d/90-pipeops.conf",
            "SystemMaxUse=100M",
        ),
    ]
}

#[test]
fn every_repair_is_done_once_and_taken_back_to_what_was_there() {
    for (check, tree, path, text) in machines() {
        // Folders that a distribution has; what is missing beside them is made, and taken away
        // again.
        for folder in ["etc/sysctl.d", "etc/modules-load.d", "etc/systemd"] {
            make(&tree.root().join(folder));
        }
        let before = tree.snapshot();
        let keeper = tree.keeper();
        let plan = keeper.plan(check).unwrap();
        assert!(
            plan.is_needed && !plan.leaves.is_empty() && !plan.undo.is_empty(),
            "{plan:?}"
        );
        assert_eq!(tree.snapshot(), before, "{check}: a plan changes nothing");

        let done = keeper.fix(check, "root").unwrap();
        assert_eq!(
            (&*done.outcome, &done.sentence),
            ("done", &plan.does),
            "{check}"
        );
        assert_eq!(done.remains, plan.remains);
        let id = done.change.clone().unwrap();
        assert_eq!(done.undo.unwrap(), format!("sudo pipeops-agent undo {id}"));
        let now = tree.read(path).unwrap();
        assert!(now.contains(text), "{check}: {now}");
        let after = tree.snapshot();

        let again = keeper.fix(check, "root").unwrap();
        assert_eq!(
            (&*again.outcome, again.change),
            ("done", Some(id.clone())),
            "{check}"
        );
        assert_eq!(tree.snapshot(), after, "{check}: done once");

        let undone = keeper.undo(&id, "the agent (uid 990)").unwrap();
        assert_eq!(undone.outcome, "undone", "{check}: {undone:?}");
        let mut left = tree.snapshot();
        // A module stays loaded until the next start, and says so.
        left.retain(|name, _| !name.starts_with("sys/module/") || before.contains_key(name));
        assert_eq!(left, before, "{check}: {}", tree.calls());
        assert_eq!(keeper.undo(&id, "root").unwrap().outcome, "undone");
        let changes = keeper.changes().unwrap();
        assert_eq!(changes.len(), 1, "{check}");
        assert_eq!(changes[0].outcome, "undone");
        assert_eq!(
            changes[0].why.as_deref(),
            Some("undone by the agent (uid 990)")
        );
    }
}

/// Group and extended attributes of a file.
fn attributes(path: &Path) -> crate::files::Attributes {
    crate::files::Attributes::of(path).unwrap()
}

#[test]
fn a_fix_and_its_undo_keep_group_and_extended_attributes() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: giving a file to another group takes root");
        return;
    }
    let tree = pi();
    let path = tree.root().join("boot/firmware/cmdline.txt");
    std::os::unix::fs::chown(&path, None, Some(4)).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    let file = std::fs::File::open(&path).unwrap();
    let set = |name: &str, value: &[u8]| {
        rustix::fs::fsetxattr(&file, name, value, rustix::fs::XattrFlags::empty())
    };
    if set("user.noted-by", b"ansible\0\xff").is_err() {
        println!("skipped: the temporary directory has no extended attributes");
        return;
    }
    // A label as SELinux has it: any kernel keeps the bytes for root.
    set("security.selinux", b"system_u:object_r:etc_t:s0\0").unwrap();
    let before = attributes(&path);
    assert_eq!((before.group, before.mode), (Some(4), 0o640));
    assert_eq!(before.extended.len(), 2, "{before:?}");

    let content = tree.read("boot/firmware/cmdline.txt");
    let done = tree.keeper().fix("cgroup.memory", "root").unwrap();
    assert_ne!(tree.read("boot/firmware/cmdline.txt"), content, "{done:?}");
    assert_eq!(attributes(&path), before, "after the fix");
    let undone = tree.keeper().undo(&done.change.unwrap(), "root").unwrap();
    assert_eq!(undone.outcome, "undone");
    assert_eq!(tree.read("boot/firmware/cmdline.txt"), content);
    assert_eq!(attributes(&path), before, "after the undo");
}

#[test]
fn a_record_of_an_earlier_version_is_undone_without_what_it_does_not_know() {
    let text = r#"{"copy":"0001-x.0.before","sha256":"00","mode":416}"#;
    let before: crate::wire::keeper::Before = serde_json::from_str(text).unwrap();
    assert_eq!((before.group, before.attributes.len()), (None, 0));
}

#[test]
fn what_somebody_changed_since_is_left_alone() {
    let tree = pi();
    let keeper = tree.keeper();
    let id = keeper.fix("cgroup.memory", "root").unwrap().change.unwrap();
    let mine = "console=tty1 root=PARTUUID=1-02 cgroup_enable=memory quiet\n";
    tree.put("boot/firmware/cmdline.txt", mine, 0o644);
    let error = keeper.undo(&id, "root").unwrap_err();
    assert!(
        error.sentence().contains("changed by something else"),
        "{error}"
    );
    let fix = error.fix.unwrap();
    let (_, rest) = fix.split_once(" is in ").unwrap();
    let copy = rest.split(':').next().unwrap();
    assert_eq!(std::fs::read_to_string(copy).unwrap(), PI_LINE);
    assert_eq!(
        tree.read("boot/firmware/cmdline.txt").as_deref(),
        Some(mine)
    );
    let changes = keeper.changes().unwrap();
    assert_eq!(
        (&*changes[0].outcome, changes[0].undo.possible),
        ("done", true)
    );

    // Who put it back by hand did what undo would have done.
    tree.put("boot/firmware/cmdline.txt", PI_LINE, 0o644);
    assert_eq!(keeper.undo(&id, "root").unwrap().outcome, "undone");
    assert_eq!(
        tree.read("boot/firmware/cmdline.txt").as_deref(),
        Some(PI_LINE)
    );
}

#[test]
fn the_line_is_left_alone_where_it_is_not_on_the_boot_partition() {
    let unmounted = pi().with(
        "proc/self/mountinfo",
        "21 1 179:2 / / rw - ext4 /dev/mmcblk0p2 rw\n",
    );
    let read_only = pi().with(
        "proc/self/mountinfo",
        "21 1 179:2 / / rw,noatime - ext4 /dev/mmcblk0p2 rw\n22 21 179:1 / /boot/firmware ro - vfat /dev/mmcblk0p1 rw\n",
    );
    let two_lines = pi().with("boot/firmware/cmdline.txt", "root=/dev/sda1\nquiet=1\n");
    let windows = pi().with("boot/firmware/cmdline.txt", "root=/dev/sda1\r\n");
    let network = Tree::new().with("sys/fs/cgroup/cgroup.controllers", "cpu\n");
    for (tree, word) in [
        (unmounted, "sudo mount /boot/firmware"),
        (read_only, "remount,rw /boot/firmware"),
        (two_lines, "one single line"),
        (windows, "sed -i"),
        (network, "TFTP"),
    ] {
        let before = tree.snapshot();
        let error = tree.keeper().fix("cgroup.memory", "root").unwrap_err();
        assert!(error.to_string().contains(word), "{error}");
        assert_eq!(tree.snapshot(), before);
        assert!(tree.keeper().changes().unwrap().is_empty());
    }
}

#[test]
fn a_line_that_waits_for_its_reboot_is_told_from_one_that_the_kernel_ignores() {
    let line = "root=/dev/sda1 cgroup_memory=1 cgroup_enable=memory\n";
    let waits = pi().with("boot/firmware/cmdline.txt", line);
    let plan = waits.keeper().plan("cgroup.memory").unwrap();
    assert!(!plan.is_needed && plan.does.contains("reboot"), "{plan:?}");
    let ignored = pi()
        .with("boot/firmware/cmdline.txt", line)
        .with("proc/cmdline", line);
    let error = ignored.keeper().plan("cgroup.memory").unwrap_err();
    assert!(error.to_string().contains("full-upgrade"), "{error}");
    let works = pi().with("sys/fs/cgroup/cgroup.controllers", "cpu memory\n");
    assert!(!works.keeper().plan("cgroup.memory").unwrap().is_needed);
}

#[test]
fn a_step_that_fails_takes_all_back() {
    let tree = modules().program("modprobe", "echo 'Operation not permitted' >&2; exit 1");
    make(&tree.root().join("etc/modules-load.d"));
    let before = tree.snapshot();
    let done = tree.keeper().fix("kernel.modules", "root").unwrap();
    assert_eq!(done.outcome, "failed");
    assert!(
        done.sentence.contains("it failed and was reverted"),
        "{}",
        done.sentence
    );
    assert!(
        done.sentence.contains("Operation not permitted"),
        "{}",
        done.sentence
    );
    assert_eq!(done.undo, None);
    assert_eq!(tree.snapshot(), before);

    // A program that says that all is well and did nothing is found out.
    let tree = modules().program("modprobe", "true");
    let done = tree.keeper().fix("kernel.modules", "root").unwrap();
    assert!(done.sentence.contains("had no effect"), "{}", done.sentence);
}

#[test]
fn swap_that_does_not_fit_into_memory_stays() {
    let tree = swap().with(
        "proc/meminfo",
        "MemTotal: 900000 kB\nMemAvailable: 2500 kB\n",
    );
    let error = tree.keeper().fix("swap.card", "root").unwrap_err();
    assert!(error.to_string().contains("memory"), "{error}");
    assert_eq!(tree.calls(), "");
}

#[test]
fn a_directory_that_others_could_write_to_is_not_believed() {
    let tree = inotify();
    let directory = tree.root().join("var/keeper");
    std::fs::create_dir(&directory).unwrap();
    for mode in [0o755, 0o770, 0o707] {
        std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(mode)).unwrap();
        let error = tree.keeper().fix("limits.inotify", "root").unwrap_err();
        assert!(
            error.to_string().contains("its contents are not trusted"),
            "{error}"
        );
        assert!(tree.keeper().changes().is_err());
    }
}

#[test]
fn root_does_not_write_where_others_lead_it() {
    let tree = inotify();
    let folder = tree.root().join("etc/sysctl.d");
    std::fs::create_dir(&folder).unwrap();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777)).unwrap();
    let error = tree.keeper().fix("limits.inotify", "root").unwrap_err();
    assert!(
        error
            .to_string()
            .contains("users other than root can change"),
        "{error}"
    );
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", folder.join("90-pipeops-inotify.conf")).unwrap();
    let error = tree.keeper().fix("limits.inotify", "root").unwrap_err();
    assert!(error.to_string().contains("not a regular file"), "{error}");
}

#[test]
fn one_change_at_a_time() {
    let tree = inotify();
    let keeper = tree.keeper();
    let held = keeper.open().unwrap();
    let error = keeper.fix("limits.inotify", "root").unwrap_err();
    assert!(
        error.to_string().contains("another change is under way"),
        "{error}"
    );
    drop(held);
    assert_eq!(
        keeper.fix("limits.inotify", "root").unwrap().outcome,
        "done"
    );
}

#[test]
fn only_what_is_on_the_list_is_done() {
    let keeper = Keeper::new(Path::new("/nowhere"), Path::new("/nowhere/keeper"));
    for check in ["", "../../etc/passwd", "disk.full", &"x".repeat(10_000)] {
        let error = keeper.fix(check, "root").unwrap_err();
        assert!(error.to_string().len() < 400, "{error}");
    }
    let tree = inotify();
    let error = tree.keeper().undo("../lock", "root").unwrap_err();
    assert!(error.sentence().contains("there is no change"), "{error}");
}

#[test]
fn changes_that_were_taken_back_are_forgotten_some_day_and_numbers_never_repeat() {
    let tree = inotify();
    make(&tree.root().join("etc/sysctl.d"));
    let keeper = tree.keeper();
    for n in 1..=103 {
        let id = keeper
            .fix("limits.inotify", "root")
            .unwrap()
            .change
            .unwrap();
        assert_eq!(id, format!("limits-inotify-{n}"));
        keeper.undo(&id, "root").unwrap();
    }
    assert_eq!(keeper.changes().unwrap().len(), 100);
}

/// Every state in which a power cut can leave the journal, beside every state of the machine that
/// goes with it.
#[test]
fn a_change_that_was_cut_off_anywhere_is_brought_to_its_end() {
    for make_tree in [pi, inotify, grub, modules, network_manager, clock, swap] {
        let (check, finished) = {
            let tree = make_tree();
            let repair = Repair::ALL
                .into_iter()
                .find(|repair| {
                    tree.keeper()
                        .plan(repair.check())
                        .is_ok_and(|plan| plan.is_needed)
                })
                .unwrap();
            tree.keeper().fix(repair.check(), "root").unwrap();
            (repair.check(), tree.snapshot())
        };
        let acts = {
            let tree = make_tree();
            let system = System::new(tree.root());
            let Planned::Work(recipe) = repairs::plan(repair_of(check).unwrap(), &system).unwrap()
            else {
                panic!("{check}");
            };
            repairs::acts(&recipe, &system).unwrap().len()
        };
        for system in 0..acts {
            for state in [StepState::Intended, StepState::Acted, StepState::Verified] {
                for is_acted in [false, true] {
                    if !is_acted && state != StepState::Intended {
                        continue;
                    }
                    let tree = make_tree();
                    cut_off(&tree, check, (system, state), is_acted);
                    let ended = tree.keeper().resume().unwrap();
                    assert_eq!(ended.len(), 1);
                    assert_eq!(
                        ended[0].outcome, "done",
                        "{check} {system} {state:?}: {ended:?}"
                    );
                    assert_eq!(tree.snapshot(), finished, "{check} {system} {state:?}");
                    assert!(tree.keeper().resume().unwrap().is_empty());
                }
            }
        }
    }
}

/// Brings a change to this step and no further.
fn cut_off(tree: &Tree, check: &str, (system, state): (usize, StepState), is_acted: bool) {
    let keeper = tree.keeper();
    let journal = keeper.open().unwrap();
    let Planned::Work(recipe) = repairs::plan(repair_of(check).unwrap(), &keeper.system).unwrap()
    else {
        panic!("{check}");
    };
    let mut record = Record {
        number: 1,
        acts: repairs::acts(&recipe, &keeper.system).unwrap(),
        ..Record::new(check, "root", Wall::default(), recipe.does)
    };
    journal.keep_copies(&mut record, &keeper.system).unwrap();
    for act in &record.acts[..system] {
        keeper.system.act(act).unwrap();
        record.steps.push(StepState::Done.as_str().to_owned());
    }
    if is_acted {
        keeper.system.act(&record.acts[system]).unwrap();
    }
    record.steps.push(state.as_str().to_owned());
    journal.write(&record).unwrap();
}

#[test]
fn an_interrupted_change_that_meets_what_somebody_else_did_leaves_that_alone() {
    let tree = pi();
    cut_off(&tree, "cgroup.memory", (0, StepState::Intended), false);
    let mine = "root=/dev/sda1 mine=1\n";
    tree.put("boot/firmware/cmdline.txt", mine, 0o644);
    let ended = tree.keeper().resume().unwrap();
    assert_eq!(ended[0].outcome, "failed");
    assert_eq!(
        tree.read("boot/firmware/cmdline.txt").as_deref(),
        Some(mine)
    );
}

#[test]
fn facts_of_a_machine_hold_no_secret() {
    let tree = Tree::new()
        .with("etc/rancher/k3s/config.yaml", "token: K10verysecret\ncluster-cidr: 10.52.0.0/16\n")
        .with("var/lib/rancher/k3s/server/token", "K10verysecret\n")
        .with("var/lib/rancher/k3s/server/tls/client-admin.key", "verysecret\n")
        .with("var/lib/rancher/k3s/server/tls/broken.crt", "")
        .with("dev/kmsg", "4,1,1000,-;EXT4-fs error (device sda2)\n6,2,2000,-;usb 1-1: new\n12,3,1,-;EXT4-fs error: said by anybody\n")
        .program("iptables-save", "printf '*filter\\n-A A -j B\\n-A A -j B\\n'");
    let facts = tree.keeper().inspect().facts;
    let text = format!("{facts:?}");
    assert!(!text.contains("verysecret"), "{text}");
    let fact = |name: &str| facts.get(name).cloned().flatten();
    assert_eq!(
        fact("/etc/rancher/k3s/config.yaml").as_deref(),
        Some("cluster-cidr: 10.52.0.0/16")
    );
    assert_eq!(
        fact("/dev/kmsg").as_deref(),
        Some("4,1,1000,-;EXT4-fs error (device sda2)")
    );
    assert_eq!(fact("iptables duplicates").as_deref(), Some("1"));
    assert!(
        fact("stat /var/lib/rancher/k3s/server/tls/broken.crt")
            .unwrap()
            .contains(" 0 ")
    );
    assert_eq!(facts.get("stat /etc/rancher/node/password"), Some(&None));
}

#[test]
fn a_helper_that_nobody_asks_ends_where_its_service_manager_listens() {
    let tree = Tree::new();
    let keeper = tree.keeper();
    let server = Server::bind(&tree.root().join("run/keeper.sock"), Allowed::default()).unwrap();
    let idle = std::time::Duration::from_millis(20);
    // It comes back, which without an idle time it would not.
    smol::block_on(server.serve(&keeper, idle));
}

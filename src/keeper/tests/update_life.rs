//! Updates on a tree, with a power cut at each write.

use std::{cell::Cell, time::Duration};

use super::{super::journal::cut, *};
use crate::{
    core::{
        doctor::UPDATE_TAKEN_BACK,
        time::Mono,
        update::{
            list::List,
            trial::{AgentStatus, Cause},
        },
    },
    keeper::update::{NewProgram, PROGRAM, PreviousPackage, Watched, services},
    wire::keeper::{IndexNote, PackageKind, ServiceFile, UpdateNote, UpdateStep},
};

/// Fault of the new program.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Fault {
    None,
    Silent,
    Store,
    Link,
}

/// The agent that runs whatever program is in place, in a time of its own.
struct Agent<'a> {
    tree: &'a Tree,
    fault: Fault,
    now: Cell<Duration>,
}

impl Watched for Agent<'_> {
    fn seen(&self) -> AgentStatus {
        let program = self.tree.read("usr/bin/pipeops-agent");
        let (version, fault) = match program.as_deref() {
            Some("old") => ("0.1.0", Fault::None),
            Some("new") => ("0.1.1", self.fault),
            other => panic!("half a program: {other:?}"),
        };
        if fault == Fault::Silent {
            return AgentStatus::default();
        }
        AgentStatus {
            version: Some(version.to_owned()),
            up: Duration::from_secs(3600),
            stores: fault != Fault::Store,
            is_linked: fault != Fault::Link,
            is_in_safe_mode: false,
        }
    }

    fn wait(&self, time: Duration) -> Mono {
        self.now.set(self.now.get() + time);
        Mono::since_boot(self.now.get())
    }
}

fn tree() -> Tree {
    let tree = Tree::in_memory()
        .program("prev", "echo pipeops-agent 0.1.0")
        .program("next", &next())
        .program("systemctl", MANAGER)
        .with("download", "new");
    tree.put("run/systemd/system/any", "", 0o644);
    tree.put("etc/systemd/system/any", "", 0o644);
    tree.put("usr/bin/pipeops-agent", "old", 0o755);
    for file in services::own() {
        if file.path.starts_with("/etc/systemd") && !file.path.contains("timer") {
            tree.put(file.path.trim_start_matches('/'), &file.text, file.mode);
        }
    }
    tree.put(SOCKET, "by hand", 0o644);
    tree.put(PLACED, "/etc/systemd/system/pipeops-agent.service\n", 0o644);
    tree
}

/// A service manager that knows which service a boot starts, and runs none.
const MANAGER: &str =
    "case $1 in enable) : > enabled ;; disable) rm -f enabled ;; is-active) exit 3 ;; esac";
const AGENT: &str = "etc/systemd/system/pipeops-agent.service";
const SOCKET: &str = "etc/systemd/system/pipeops-keeper.socket";
const DROPPED: &str = "etc/systemd/system/pipeops-agent-update.service";
const ADDED: &str = "etc/systemd/system/pipeops-added.service";
const PLACED: &str = "usr/share/pipeops-agent/placed";

/// The new program: other units, one fewer and one more, and files that no version may bring.
fn next() -> String {
    let mut files = services::own();
    files.retain(|file| file.path != format!("/{DROPPED}"));
    for file in &mut files {
        file.text.push_str("# new");
    }
    let more = [
        (format!("/{ADDED}"), 0o644),
        ("/etc/systemd/system/sshd.service".to_owned(), 0o644),
        (
            "/etc/systemd/system/pipeops-x/../../shadow".to_owned(),
            0o644,
        ),
        ("/etc/systemd/system/pipeops-bad.service".to_owned(), 0o4755),
        ("/etc/init.d/pipeops-other".to_owned(), 0o755),
    ];
    files.extend(more.map(|(path, mode)| ServiceFile {
        path,
        mode,
        text: "new".to_owned(),
    }));
    let json = serde_json::to_string(&files)
        .unwrap()
        .replace('\'', "\\u0027");
    format!("[ $1 = version ] && echo pipeops-agent 0.1.1 || printf %s '{json}'")
}

/// Checks that the units belong to the program that is in place, and that the owner's stayed.
fn assert_services(tree: &Tree, is_new: bool) {
    let agent = tree.read(AGENT).unwrap();
    assert_eq!(agent.ends_with("# new"), is_new);
    assert_eq!(tree.read(SOCKET).as_deref(), Some("by hand"));
    assert_eq!(tree.read(DROPPED).is_some(), !is_new);
    assert_eq!(tree.read(ADDED).is_some(), is_new);
    let removed = "etc/systemd/system/pipeops-agent-update.timer";
    for other in [
        removed,
        "etc/systemd/system/sshd.service",
        "etc/systemd/system/pipeops-bad.service",
        "etc/init.d/pipeops-other",
        "etc/shadow",
    ] {
        assert_eq!(tree.read(other), None, "{other}");
    }
    let placed = tree.read(PLACED).unwrap();
    assert!(!is_new || placed.lines().any(|line| line == format!("/{ADDED}")));
}

fn agent(tree: &Tree, fault: Fault) -> Agent<'_> {
    Agent {
        tree,
        fault,
        now: Cell::new(Duration::from_secs(5)),
    }
}

fn new(tree: &Tree) -> NewProgram {
    NewProgram {
        file: tree.root().join("download"),
        sha256: "11507a0e2f5e69d5dfa40a62a1bd7b6ee57e6bcd85c67c9b8431b36fff21c437".to_owned(),
        version: "0.1.1".to_owned(),
        previous: "0.1.0".to_owned(),
        was_linked: true,
        within: Duration::from_secs(30),
        package: None,
    }
}

const UNIT: &str = "etc/systemd/system/pipeops-update.service";

/// Checks the invariants that hold after every update, however it ended.
fn assert_over(tree: &Tree, fault: Fault) -> UpdateNote {
    let program = tree.read("usr/bin/pipeops-agent").unwrap();
    let wanted = if fault == Fault::None { "new" } else { "old" };
    assert_eq!(program, wanted, "{fault:?}");
    // A package brings its units itself.
    let is_packaged = tree.read("installed").is_some();
    assert_services(tree, fault == Fault::None && !is_packaged);
    assert_eq!(tree.read(UNIT), None, "its service stays");
    assert_eq!(tree.keeper().update_under_way().unwrap(), None);
    tree.keeper().update_note().unwrap()
}

#[test]
fn a_good_version_stays_and_a_bad_one_goes_and_only_its_own_fault_bans_it() {
    for fault in [Fault::None, Fault::Silent, Fault::Store, Fault::Link] {
        let tree = tree();
        tree.keeper().stage_update(&new(&tree)).unwrap();
        tree.put("run/pipeops-agent/starts", "4 0", 0o600);
        assert_eq!(
            tree.read("usr/bin/pipeops-agent").unwrap(),
            "old",
            "staged only"
        );
        let unit = tree.read(UNIT).unwrap();
        assert!(unit.contains("/update/prev\" update --finish"), "{unit}");
        let reserve = tree.root().join("var/keeper/update/reserve");
        assert!(std::fs::metadata(&reserve).unwrap().len() > 1 << 20);
        tree.keeper().finish_update(&agent(&tree, fault)).unwrap();
        assert_eq!(tree.read("run/pipeops-agent/starts"), None, "old crashes");
        let note = assert_over(&tree, fault);
        let last = note.last.unwrap();
        assert_eq!(last.is_kept, fault == Fault::None);
        let (banned, cause): (&[&str], _) = match fault {
            Fault::None => (&[], None),
            Fault::Silent => (&["0.1.1"], Some(Cause::Silent)),
            Fault::Store => (&["0.1.1"], Some(Cause::Store)),
            Fault::Link => (&[], Some(Cause::Link)),
        };
        assert_eq!(note.banned, banned);
        assert_eq!(last.why.as_deref(), cause.map(Cause::as_str));
        // The doctor has it from here.
        let facts = tree.keeper().inspect().facts;
        let fact = facts.get(UPDATE_TAKEN_BACK).cloned().flatten();
        assert_eq!(fact.is_some(), cause.is_some(), "{fault:?}");
        if let (Some(fact), Some(cause)) = (fact, cause) {
            assert!(fact.starts_with("0.1.1 was tried and rolled back at "));
            assert!(fact.ends_with(cause.as_str()), "{fact}");
        }
        assert_eq!(note.not_before_ms > 0, fault == Fault::Link, "a day");
        let restarts = tree
            .calls()
            .matches("restart --no-block pipeops-agent")
            .count();
        assert_eq!(restarts, if fault == Fault::None { 1 } else { 2 });
        // A version that failed may be what fills the disk: it is stopped first.
        let is_stopped = tree.calls().contains("stop pipeops-agent");
        assert_eq!(is_stopped, fault != Fault::None);
        assert!(!reserve.exists(), "room is kept for ever");
        assert!(tree.keeper().resume().unwrap().is_empty(), "no change");
    }
}

#[test]
fn the_newest_list_is_remembered_and_what_it_withdrew() {
    let tree = tree();
    let list = |sequence, keys, withdrawn: &[&str]| {
        let mut list = List::default();
        list.sequence = sequence;
        list.keys = keys;
        list.withdrawn = withdrawn.iter().map(|it| it.parse().unwrap()).collect();
        list
    };
    let see = |sequence, list: &List| {
        tree.keeper().update_list_seen(sequence, list).unwrap();
        let note = tree.keeper().update_note().unwrap();
        (note.sequence, note.keys, note.withdrawn)
    };
    let known = || vec!["0.1.1".to_owned()];
    assert_eq!(see(7, &list(7, 0, &["0.1.1"])), (7, 0, known()));
    // An older one, one that was named, and one that forgets.
    assert_eq!(see(5, &list(5, 0, &[])), (7, 0, known()));
    assert_eq!(see(0, &list(9, 0, &[])), (7, 0, known()));
    tree.keeper().stage_update(&new(&tree)).unwrap();
    tree.keeper()
        .finish_update(&agent(&tree, Fault::Link))
        .unwrap();
    assert_eq!(see(7, &list(7, 0, &[])), (7, 0, known()));
    assert_eq!(see(8, &list(8, 0, &[])), (8, 0, Vec::new()), "taken back");
}

#[test]
fn a_list_from_far_ahead_blocks_later_ones_for_a_day_and_none_of_a_new_key() {
    let tree = tree();
    let keeper = tree.keeper();
    let see = |sequence, keys| {
        let mut list = List::default();
        list.sequence = sequence;
        list.keys = keys;
        keeper.update_list_seen(sequence, &list).unwrap();
        keeper.update_note().unwrap().sequence
    };
    let seconds = || u64::try_from(now().millis()).unwrap() / 1000;
    let (before, seen, after) = (seconds(), see(u64::MAX, 0), seconds());
    let day = 86_400;
    assert!((before + day..=after + day).contains(&seen), "{seen}");
    assert_eq!(see(5, 1), 5, "another key");
    assert_eq!(see(0, 2), 0, "and another, in a list that was named");
    let note = IndexNote {
        sequence: u64::MAX,
        keys: 1,
    };
    keeper.k3s_index_seen(note).unwrap();
    let index = keeper.k3s_index().unwrap();
    assert!(index.sequence <= seconds() + day, "{index:?}");
    assert_eq!(index.keys, 1);
}

#[test]
fn a_power_cut_at_any_write_leaves_one_of_the_two_programs_and_the_next_boot_ends_the_update() {
    for fault in [Fault::None, Fault::Silent, Fault::Link] {
        let mut borders = 0;
        for border in 0.. {
            let tree = tree();
            cut::at(Some(border));
            let staged = tree.keeper().stage_update(&new(&tree));
            let result =
                staged.and_then(|_update| tree.keeper().finish_update(&agent(&tree, fault)));
            let is_past = cut::left() != Some(0) || result.is_ok();
            cut::at(None);
            if is_past {
                break;
            }
            borders += 1;
            // The boot starts the service, where it was made.
            if tree.read(UNIT).is_some() && tree.read("enabled").is_some() {
                tree.keeper().finish_update(&agent(&tree, fault)).unwrap();
                assert_over(&tree, fault);
            } else if tree.keeper().update_note().unwrap().last.is_some() {
                tree.keeper().update_under_way().unwrap().map_or_else(
                    || drop(assert_over(&tree, fault)),
                    |update| assert!(update.why.is_none() == (fault == Fault::None)),
                );
            }
            // Nothing is left in the way of another update.
            tree.keeper().stage_update(&new(&tree)).unwrap();
            let staged = tree.keeper().update_under_way().unwrap().unwrap();
            assert_eq!((staged.step, staged.starts), (UpdateStep::Staged, 0));
        }
        assert!(borders > 15, "{borders}");
    }
}

/// Like OpenRC's, which fails where a service is not in the runlevel.
const RC_UPDATE: &str = "mkdir -p etc/runlevels/default; link=etc/runlevels/default/$2
case $1 in add) ln -sf /etc/init.d/$2 $link ;; delete) rm $link ;; esac";

#[test]
fn a_helper_that_runs_on_gets_the_program_that_stays() {
    for (manager, restarts) in [("run/systemd/system/any", 0), ("run/openrc/any", 1)] {
        for fault in [Fault::None, Fault::Link] {
            let tree = tree()
                .program("rc-update", RC_UPDATE)
                .program("rc-service", "");
            std::fs::remove_dir_all(tree.root().join("run/systemd")).unwrap();
            tree.put(manager, "", 0o644);
            tree.put("etc/init.d/any", "", 0o755);
            tree.keeper().stage_update(&new(&tree)).unwrap();
            tree.keeper().finish_update(&agent(&tree, fault)).unwrap();
            let calls = tree.calls();
            let helper = "rc-service --ifstarted pipeops-keeper restart";
            assert_eq!(calls.matches(helper).count(), restarts, "{calls}");
            assert_eq!(calls.contains("systemctl"), restarts == 0, "{calls}");
        }
    }
}

#[test]
fn an_update_that_lost_its_service_before_its_last_write_is_ended_by_the_next_one() {
    let managers = [
        ("run/systemd/system/any", UNIT),
        ("run/openrc/any", "etc/init.d/pipeops-update"),
    ];
    for (manager, service) in managers {
        for fault in [Fault::None, Fault::Link] {
            let tree = tree()
                .program("rc-update", RC_UPDATE)
                .program("rc-service", "case $2 in status) exit 3 ;; esac");
            std::fs::remove_dir_all(tree.root().join("run/systemd")).unwrap();
            tree.put(manager, "", 0o644);
            tree.put("etc/init.d/any", "", 0o755);
            tree.keeper().stage_update(&new(&tree)).unwrap();
            let text = tree.read(service).unwrap();
            let record = "var/keeper/update/update.json";
            let kept = tree.read(record).unwrap();
            tree.keeper().finish_update(&agent(&tree, fault)).unwrap();
            // Neither the end of the record nor that of the service reached the disk.
            let step = if fault == Fault::None {
                "kept"
            } else {
                "returned"
            };
            tree.put(service, &text, 0o755);
            tree.put(record, &kept.replace("staged", step), 0o600);
            // While the service runs, it is for it to end.
            let running = tree.program("systemctl", "").program("rc-service", "");
            let refusal = running.keeper().stage_update(&new(&running)).unwrap_err();
            assert!(refusal.sentence().contains("under way"), "{refusal}");
            let tree = running
                .program("systemctl", MANAGER)
                .program("rc-service", "case $2 in status) exit 3 ;; esac");
            tree.keeper().stage_update(&new(&tree)).unwrap();
            let staged = tree.keeper().update_under_way().unwrap().unwrap();
            assert_eq!((staged.step, staged.starts), (UpdateStep::Staged, 0));
            let last = tree.keeper().update_note().unwrap().last.unwrap();
            assert_eq!(last.is_kept, fault == Fault::None);
        }
    }
}

/// The file of the program becomes a third one while the second is on trial.
struct Replaced<'a>(Agent<'a>);
impl Watched for Replaced<'_> {
    fn seen(&self) -> AgentStatus {
        self.0.tree.put("usr/bin/pipeops-agent", "third", 0o755);
        AgentStatus {
            version: Some("0.3.0".to_owned()),
            ..AgentStatus::default()
        }
    }
    fn wait(&self, time: Duration) -> Mono {
        self.0.wait(time)
    }
}

#[test]
fn a_version_that_is_installed_during_a_trial_stays() {
    let tree = tree().program("pipeops-agent", "echo pipeops-agent 0.3.0");
    tree.keeper().stage_update(&new(&tree)).unwrap();
    let agent = Replaced(agent(&tree, Fault::None));
    tree.keeper().finish_update(&agent).unwrap();
    assert_eq!(tree.read("usr/bin/pipeops-agent").unwrap(), "third");
    assert_eq!(tree.read(UNIT), None, "its service stays");
    assert_eq!(tree.keeper().update_under_way().unwrap(), None);
    let note = tree.keeper().update_note().unwrap();
    assert_eq!(note.banned, Vec::<String>::new());
    assert_eq!(note.not_before_ms, 0);
    let why = note.last.unwrap().why.unwrap();
    assert!(why.contains("another version was installed"), "{why}");
}

#[test]
fn a_version_that_a_disk_damages_during_its_trial_goes_back() {
    let tree = tree().program("pipeops-agent", "kill -s SEGV $$");
    tree.keeper().stage_update(&new(&tree)).unwrap();
    let agent = Replaced(agent(&tree, Fault::None));
    tree.keeper().finish_update(&agent).unwrap();
    assert_eq!(tree.read("usr/bin/pipeops-agent").unwrap(), "old");
    let last = tree.keeper().update_note().unwrap().last.unwrap();
    assert!(!last.is_kept);
}

#[test]
fn a_previous_version_that_somebody_installs_during_a_trial_bans_nothing() {
    let tree = tree().program("pipeops-agent", "echo pipeops-agent 0.1.0");
    tree.keeper().stage_update(&new(&tree)).unwrap();
    let agent = Back(agent(&tree, Fault::None));
    tree.keeper().finish_update(&agent).unwrap();
    assert_eq!(tree.read("usr/bin/pipeops-agent").unwrap(), "old");
    assert_eq!(tree.keeper().update_note().unwrap().banned, [""; 0]);
}

/// Somebody goes back while the new version is on trial.
struct Back<'a>(Agent<'a>);
impl Watched for Back<'_> {
    fn seen(&self) -> AgentStatus {
        self.0.tree.put("usr/bin/pipeops-agent", "old", 0o755);
        self.0.seen()
    }
    fn wait(&self, time: Duration) -> Mono {
        self.0.wait(time)
    }
}

#[test]
fn a_package_that_somebody_installs_while_an_update_waits_stays() {
    let newer = "printf '0.3.0\n' > installed; echo 'cannot downgrade' >&2; exit 100";
    let tree = packaged(PackageKind::Deb)
        .program("apt-get", newer)
        .program("pipeops-agent", "echo pipeops-agent 0.3.0");
    tree.keeper()
        .stage_update(&package(&tree, PackageKind::Deb))
        .unwrap();
    tree.keeper()
        .finish_update(&agent(&tree, Fault::None))
        .unwrap();
    assert_eq!(tree.read("installed").unwrap(), "0.3.0\n");
    let why = tree.keeper().update_note().unwrap().last.unwrap().why;
    assert_eq!(why.unwrap(), "another version was installed meanwhile");
}

#[test]
fn an_update_that_was_stopped_goes_on() {
    let tree = tree().program("systemctl", &format!("echo $* >> calls\n{MANAGER}"));
    assert_eq!(tree.keeper().continue_update().unwrap(), None);
    tree.keeper().stage_update(&new(&tree)).unwrap();
    // Its service never began: the next update takes its place.
    assert_eq!(tree.keeper().continue_update().unwrap(), None);
    let boot = std::panic::AssertUnwindSafe(|| tree.keeper().finish_update(&Cut));
    assert!(std::panic::catch_unwind(boot).is_err());
    let started = || tree.read("calls").unwrap().matches("start").count();
    let before = started();
    let update = tree.keeper().continue_update().unwrap().unwrap();
    assert_eq!((update.version.as_str(), update.starts), ("0.1.1", 1));
    assert!(started() > before);
    // It runs now.
    let before = started();
    let tree = tree.program("systemctl", "echo $* >> calls");
    assert!(tree.keeper().continue_update().unwrap().is_some());
    assert_eq!(tree.read("calls").unwrap().matches("start").count(), before);
}

#[test]
fn an_update_whose_service_just_began_is_not_replaced_by_another() {
    let tree = tree();
    tree.keeper().stage_update(&new(&tree)).unwrap();
    // It has written nothing down yet.
    let running = tree.program("systemctl", "");
    let refusal = running.keeper().stage_update(&new(&running)).unwrap_err();
    assert!(refusal.sentence().contains("under way"), "{refusal}");
    // Cut off before it began.
    let tree = running.program("systemctl", MANAGER);
    tree.keeper().stage_update(&new(&tree)).unwrap();
}

/// The power fails at the first look.
struct Cut;
impl Watched for Cut {
    fn seen(&self) -> AgentStatus {
        panic!("power cut");
    }
    fn wait(&self, _: Duration) -> Mono {
        Mono::since_boot(Duration::ZERO)
    }
}

#[test]
fn a_machine_that_goes_down_again_and_again_gets_its_old_version() {
    let tree = tree();
    tree.keeper().stage_update(&new(&tree)).unwrap();
    for _ in 0..3 {
        let keeper = tree.keeper();
        let boot = std::panic::AssertUnwindSafe(|| keeper.finish_update(&Cut));
        assert!(std::panic::catch_unwind(boot).is_err());
        assert_eq!(tree.read("usr/bin/pipeops-agent").unwrap(), "new");
    }
    tree.keeper()
        .finish_update(&agent(&tree, Fault::None))
        .unwrap();
    let note = assert_over(&tree, Fault::Silent);
    assert_eq!(note.banned, Vec::<String>::new(), "the power failed");
}

#[test]
fn an_agent_runs_while_its_previous_version_cannot_be_put_back() {
    let tree = tree();
    tree.keeper().stage_update(&new(&tree)).unwrap();
    let prev = "var/keeper/update/prev";
    let program = tree.read(prev).unwrap();
    tree.put(prev, "damaged", 0o755);
    let error = tree
        .keeper()
        .finish_update(&agent(&tree, Fault::Store))
        .unwrap_err();
    assert!(error.sentence().contains("SHA-256"), "{error}");
    assert_eq!(tree.read("usr/bin/pipeops-agent").unwrap(), "new");
    let calls = tree.calls();
    let (_, since_stop) = calls.rsplit_once("stop pipeops-agent\n").unwrap();
    assert!(
        since_stop.ends_with("restart --no-block pipeops-agent\n"),
        "{calls}"
    );
    tree.put(prev, &program, 0o755);
    tree.keeper()
        .finish_update(&agent(&tree, Fault::Store))
        .unwrap();
    assert_over(&tree, Fault::Store);
}

#[test]
fn where_selinux_is_in_use_the_copy_that_runs_the_update_has_the_label_of_the_program() {
    const LABEL: &str = "security.selinux";
    let tree = tree();
    let path = |name: &str| tree.root().join(name);
    let program = path("usr/bin/pipeops-agent");
    let flags = rustix::fs::XattrFlags::empty();
    if let Err(error) = rustix::fs::lsetxattr(&program, LABEL, b"bin", flags) {
        println!("impossible here: a label of SELinux: {error}");
        return;
    }
    let label = |name: &str| {
        let mut label = [0; 16];
        let length = rustix::fs::lgetxattr(path(name), LABEL, &mut label);
        length.map(|length| label[..length].to_vec())
    };
    tree.keeper().stage_update(&new(&tree)).unwrap();
    let copy = "var/keeper/update/prev";
    label(copy).unwrap_err();
    tree.put("sys/fs/selinux/enforce", "1", 0o644);
    tree.keeper().stage_update(&new(&tree)).unwrap();
    assert_eq!(label(copy).unwrap(), b"bin");
    // Without a label to copy the service would not start: nothing begins.
    rustix::fs::lremovexattr(&program, LABEL).unwrap();
    let refusal = tree.keeper().stage_update(&new(&tree)).unwrap_err();
    assert!(refusal.sentence().contains("for SELinux"), "{refusal}");
}

#[test]
fn what_is_not_the_program_of_the_list_or_does_not_run_changes_nothing() {
    let tree = tree();
    let refused = |tree: &Tree, new: &NewProgram| {
        let error = tree.keeper().stage_update(new).unwrap_err();
        assert_eq!(tree.read("usr/bin/pipeops-agent").unwrap(), "old");
        assert_eq!(tree.read(UNIT), None);
        error.sentence()
    };
    let other = NewProgram {
        sha256: "0".repeat(64),
        ..new(&tree)
    };
    assert!(refused(&tree, &other).contains("SHA-256"));
    let liar = NewProgram {
        version: "0.1.2".to_owned(),
        ..new(&tree)
    };
    assert!(refused(&tree, &liar).contains("is not pipeops-agent 0.1.2"));
    let broken = tree.program("next", "exit 1");
    assert!(refused(&broken, &new(&broken)).contains("does not run"));
    let loose = self::tree();
    let program = loose.root().join(PROGRAM.trim_start_matches('/'));
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o777)).unwrap();
    assert!(refused(&loose, &new(&loose)).contains("cannot trust"));
}

/// A machine where a package manager has the program. Each of its tools installs the version that
/// its file names, as a package manager would, and apt-get refuses to do so over half a package.
fn packaged(kind: PackageKind) -> Tree {
    const INSTALL: &str = "for file in \"$@\"; do :; done; cut -d' ' -f2 \"$file\" > half; printf %s \"$(cut -d' ' -f1 \"$file\")\" > usr/bin/pipeops-agent.new; chmod 755 usr/bin/pipeops-agent.new; mv usr/bin/pipeops-agent.new usr/bin/pipeops-agent; mv half installed";
    let careful =
        format!("[ ! -e half ] || {{ echo 'dpkg was interrupted' >&2; exit 100; }}\n{INSTALL}");
    let tree = tree()
        .with("installed", "0.1.0\n")
        .with("package", "new 0.1.1\n")
        .with("before", "old 0.1.0\n");
    match kind {
        PackageKind::Deb => tree
            .program("apt-get", &careful)
            .program("dpkg", &format!("[ $1 != --search ] || exit 0\n[ ! -e locked ] || {{ rm locked; echo 'dpkg: error: dpkg frontend lock was locked by another process with pid 7' >&2; exit 2; }}\n{INSTALL}"))
            .program("dpkg-deb", "echo pipeops-agent $(cut -d' ' -f2 $3)-1")
            .program("dpkg-query", "if [ -e half ]; then echo install half-configured $(cat half)-1; else echo $(cat want 2>/dev/null || echo install) installed $(cat installed)-1; fi"),
        PackageKind::Rpm => tree
            .program("dnf", &format!("[ ! -e locked ] || {{ cat locked >&2; rm locked; exit 1; }}\n{careful}"))
            .program("rpm", &format!("case \"$*\" in *--file*) exit 0 ;; *--package*) echo pipeops-agent $(cut -d' ' -f2 $5); exit ;; --query*) cat half installed 2>/dev/null; exit 0 ;; esac\n{INSTALL}")),
    }
}

/// Sums of `package` and `before`.
fn package(tree: &Tree, kind: PackageKind) -> NewProgram {
    let sum = |name: &str| {
        crate::files::sum(&tree.root().join(name))
            .unwrap()
            .unwrap()
            .sha256
    };
    NewProgram {
        file: tree.root().join("package"),
        sha256: sum("package"),
        package: Some(PreviousPackage {
            kind,
            file: tree.root().join("before"),
            sha256: sum("before"),
        }),
        ..new(tree)
    }
}

#[test]
fn a_package_goes_through_its_manager_and_comes_back_the_same_way() {
    for kind in [PackageKind::Deb, PackageKind::Rpm] {
        for fault in [Fault::None, Fault::Silent, Fault::Link] {
            let tree = packaged(kind);
            assert_eq!(tree.keeper().package_kind(), Some(kind));
            tree.keeper().stage_update(&package(&tree, kind)).unwrap();
            assert_eq!(tree.read("installed").unwrap(), "0.1.0\n", "staged only");
            tree.keeper().finish_update(&agent(&tree, fault)).unwrap();
            let note = assert_over(&tree, fault);
            let wanted = if fault == Fault::None {
                "0.1.1\n"
            } else {
                "0.1.0\n"
            };
            assert_eq!(
                tree.read("installed").unwrap(),
                wanted,
                "{kind:?} {fault:?}"
            );
            assert_eq!(note.last.unwrap().is_kept, fault == Fault::None);
            let calls = tree.calls();
            let (forward, back) = match kind {
                PackageKind::Deb => ("apt-get install --yes", "dpkg --install"),
                PackageKind::Rpm => ("dnf install --assumeyes", "rpm --upgrade --oldpackage"),
            };
            assert!(calls.contains(forward), "{calls}");
            assert_eq!(calls.contains(back), fault != Fault::None, "{calls}");
            for name in ["next", "prev"] {
                let kept = ["deb", "rpm"].map(|kind| format!("var/keeper/update/{name}.{kind}"));
                assert!(
                    kept.iter().all(|path| tree.read(path).is_none()),
                    "a copy stays"
                );
            }
        }
    }
}

#[test]
fn a_power_cut_in_a_package_manager_is_mended_by_the_tool_below_it() {
    for (kind, fault) in [
        (PackageKind::Deb, Fault::None),
        (PackageKind::Deb, Fault::Silent),
        (PackageKind::Rpm, Fault::Silent),
    ] {
        let tree = packaged(kind);
        tree.keeper().stage_update(&package(&tree, kind)).unwrap();
        let cut = std::panic::AssertUnwindSafe(|| tree.keeper().finish_update(&Cut));
        assert!(std::panic::catch_unwind(cut).is_err());
        // It was cut while the program was there and the package was not.
        tree.put("installed", "0.1.0\n", 0o644);
        tree.put("half", "0.1.1\n", 0o644);
        let record = "var/keeper/update/update.json";
        let back = tree.read(record).unwrap().replace("trying", "staged");
        tree.put(record, &back, 0o600);
        tree.keeper().finish_update(&agent(&tree, fault)).unwrap();
        assert_over(&tree, fault);
        assert_eq!(tree.read("half"), None, "{kind:?} {fault:?}");
    }
}

#[test]
fn a_lock_is_waited_for_and_a_hold_or_another_package_changes_nothing() {
    let tree = packaged(PackageKind::Deb).with("locked", "");
    tree.keeper()
        .stage_update(&package(&tree, PackageKind::Deb))
        .unwrap();
    tree.keeper()
        .finish_update(&agent(&tree, Fault::Silent))
        .unwrap();
    assert_over(&tree, Fault::Silent);
    let calls = tree.calls();
    assert_eq!(calls.matches("dpkg --install").count(), 2);
    // The agent runs while another package manager is waited for.
    assert!(!calls.contains(" stop pipeops-agent\n"), "{calls}");

    // dnf 5 waits for nobody; the other words are rpm's before another failure.
    for (said, attempts) in [
        (
            "Failed to obtain rpm transaction lock. Another one runs.",
            2,
        ),
        ("warning: waiting for transaction lock on .rpm.lock", 1),
    ] {
        let tree = packaged(PackageKind::Rpm).with("locked", said);
        tree.keeper()
            .stage_update(&package(&tree, PackageKind::Rpm))
            .unwrap();
        tree.keeper()
            .finish_update(&agent(&tree, Fault::None))
            .unwrap();
        let calls = tree.calls();
        assert_eq!(calls.matches("dnf install").count(), attempts, "{said}");
    }

    let refused = |tree: &Tree, new: &NewProgram| {
        let error = tree.keeper().stage_update(new).unwrap_err();
        assert_eq!(tree.read("usr/bin/pipeops-agent").unwrap(), "old");
        assert_eq!(tree.read(UNIT), None);
        error.sentence()
    };
    let held = packaged(PackageKind::Deb).with("want", "hold");
    let refusal = refused(&held, &package(&held, PackageKind::Deb));
    assert!(refusal.contains("is held at 0.1.0"), "{refusal}");
    let other = packaged(PackageKind::Rpm).with("package", "new 0.1.2\n");
    let refusal = refused(&other, &package(&other, PackageKind::Rpm));
    assert!(
        refusal.contains("the package of 0.1.1 is pipeops-agent 0.1.2"),
        "{refusal}"
    );
    let damaged = packaged(PackageKind::Deb);
    let mut new = package(&damaged, PackageKind::Deb);
    damaged.put("before", "old 0.1.0 \n", 0o644);
    assert!(refused(&damaged, &new).contains("SHA-256"));
    new.previous = "0.0.9".to_owned();
    assert!(
        refused(&damaged.program("prev", "echo pipeops-agent 0.0.9"), &new)
            .contains("its package manager has 0.1.0")
    );
}

#[test]
fn a_package_manager_that_refuses_leaves_the_previous_version_and_says_why() {
    let tree = packaged(PackageKind::Deb)
        .program("apt-get", "echo 'E: Unmet dependencies.' >&2; exit 100");
    tree.keeper()
        .stage_update(&package(&tree, PackageKind::Deb))
        .unwrap();
    tree.keeper()
        .finish_update(&agent(&tree, Fault::None))
        .unwrap();
    let last = assert_over(&tree, Fault::Silent).last.unwrap();
    assert!(last.why.unwrap().contains("E: Unmet dependencies."));
    assert!(
        !tree.calls().contains("dpkg --install"),
        "nothing was changed"
    );
}

#[test]
fn an_agent_is_stopped_if_nobody_starts_it_again() {
    for (state, is_stopped) in [
        ("inactive", true),
        ("active", false),
        ("activating", false),
        ("failed", false),
    ] {
        let tree = tree().program("systemctl", &format!("echo {state}"));
        assert_eq!(tree.keeper().agent_is_stopped(), is_stopped, "{state}");
    }
    let tree = tree();
    std::fs::remove_dir_all(tree.root().join("run/systemd")).unwrap();
    assert!(!tree.keeper().agent_is_stopped(), "nobody knows");
    tree.put("run/openrc/softlevel", "default", 0o644);
    assert!(tree.keeper().agent_is_stopped());
    tree.put("run/openrc/started/pipeops-agent", "", 0o644);
    assert!(!tree.keeper().agent_is_stopped());
}

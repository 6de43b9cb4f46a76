//! Updates on a tree, with a power cut at each write.

use std::{cell::Cell, time::Duration};

use super::{super::journal::cut, *};
use crate::{
    core::{
        preflight::UPDATE_TAKEN_BACK,
        time::Mono,
        update::trial::{Cause, Seen},
    },
    keeper::update::{NewProgram, PROGRAM, Watched},
    wire::keeper::UpdateNote,
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
    fn seen(&self) -> Seen {
        let program = self.tree.read("usr/bin/pipeops-agent");
        let (version, fault) = match program.as_deref() {
            Some("old") => ("0.1.0", Fault::None),
            Some("new") => ("0.1.1", self.fault),
            other => panic!("half a program: {other:?}"),
        };
        if fault == Fault::Silent {
            return Seen::default();
        }
        Seen {
            version: Some(version.to_owned()),
            up: Duration::from_secs(3600),
            stores: fault != Fault::Store,
            is_linked: fault != Fault::Link,
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
        .program("next", "echo pipeops-agent 0.1.1")
        .program("systemctl", "")
        .with("download", "new");
    tree.put("run/systemd/system/any", "", 0o644);
    tree.put("etc/systemd/system/any", "", 0o644);
    tree.put("usr/bin/pipeops-agent", "old", 0o755);
    tree
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
        sequence: 7,
        keys: 1,
        was_linked: true,
        within: Duration::from_secs(30),
    }
}

const UNIT: &str = "etc/systemd/system/pipeops-update.service";

/// Checks the invariants that hold after every update, however it ended.
fn assert_over(tree: &Tree, fault: Fault) -> UpdateNote {
    let program = tree.read("usr/bin/pipeops-agent").unwrap();
    let wanted = if fault == Fault::None { "new" } else { "old" };
    assert_eq!(program, wanted, "{fault:?}");
    assert_eq!(tree.read(UNIT), None, "its service stays");
    assert_eq!(tree.keeper().update_under_way().unwrap(), None);
    tree.keeper().update_note().unwrap()
}

#[test]
fn a_good_version_stays_and_a_bad_one_goes_and_only_its_own_fault_bans_it() {
    for fault in [Fault::None, Fault::Silent, Fault::Store, Fault::Link] {
        let tree = tree();
        tree.keeper().stage_update(&new(&tree)).unwrap();
        assert_eq!(
            tree.read("usr/bin/pipeops-agent").unwrap(),
            "old",
            "staged only"
        );
        let unit = tree.read(UNIT).unwrap();
        assert!(unit.contains("/update/prev\" update --finish"), "{unit}");
        tree.keeper().finish_update(&agent(&tree, fault)).unwrap();
        let note = assert_over(&tree, fault);
        assert_eq!((note.sequence, note.keys), (7, 1));
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
            assert!(fact.starts_with("0.1.1 was tried and taken back at "));
            assert!(fact.ends_with(cause.as_str()), "{fact}");
        }
        assert_eq!(note.not_before_ms > 0, fault == Fault::Link, "a day");
        let restarts = tree
            .calls()
            .matches("restart --no-block pipeops-agent")
            .count();
        assert_eq!(restarts, if fault == Fault::None { 1 } else { 2 });
    }
}

#[test]
fn a_power_cut_at_any_write_leaves_one_of_the_two_programs_and_the_next_boot_ends_the_update() {
    for fault in [Fault::None, Fault::Silent, Fault::Link] {
        let mut borders = 0;
        for border in 0.. {
            let tree = tree();
            cut::at(Some(border));
            let staged = tree.keeper().stage_update(&new(&tree));
            let result = staged.and_then(|()| tree.keeper().finish_update(&agent(&tree, fault)));
            let is_past = cut::left() != Some(0) || result.is_ok();
            cut::at(None);
            if is_past {
                break;
            }
            borders += 1;
            // The boot starts the service, where it was made.
            if tree.read(UNIT).is_some() {
                tree.keeper().finish_update(&agent(&tree, fault)).unwrap();
                assert_over(&tree, fault);
            } else if tree.keeper().update_note().unwrap().last.is_some() {
                assert_over(&tree, fault);
            }
            // Nothing is left in the way of another update.
            if tree.read("usr/bin/pipeops-agent").unwrap() == "old" {
                tree.keeper().stage_update(&new(&tree)).unwrap();
            }
        }
        assert!(borders > 15, "{borders}");
    }
}

/// The power fails at the first look.
struct Cut;
impl Watched for Cut {
    fn seen(&self) -> Seen {
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
    assert_eq!(note.banned, ["0.1.1"]);
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

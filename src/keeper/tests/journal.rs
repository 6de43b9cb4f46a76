//! The keeper's journal: what it believes, what it forgets, and what a change does that fails or is
//! cut off on its way back.

use nix::unistd::{geteuid, getuid};

use super::{super::journal::cut, *};

fn kept(tree: &Tree) -> Vec<String> {
    let folder = std::fs::read_dir(tree.root().join("var/keeper")).unwrap();
    let names = folder.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.collect()
}

fn run(forth: &[&str]) -> Act {
    Act::Run {
        forth: forth.iter().map(|word| (*word).to_owned()).collect(),
        back: Vec::new(),
        seen: None,
    }
}

#[test]
fn a_journal_of_another_user_is_not_believed() {
    if !geteuid().is_root() {
        println!("skipped: giving a directory to another user takes root");
        return;
    }
    let tree = inotify();
    let keeper = tree.keeper();
    keeper.fix("limits.inotify", "root").unwrap();
    let directory = tree.root().join("var/keeper");
    std::os::unix::fs::chown(&directory, Some(getuid().as_raw() + 65_534), None).unwrap();
    let error = keeper.changes().unwrap_err();
    assert!(error.to_string().contains("not trusted"), "{error}");
}

#[test]
fn a_record_that_cannot_be_read_stops_everything_and_a_half_written_one_nothing() {
    let tree = inotify();
    let keeper = tree.keeper();
    let half = ".0001-limits-inotify.json.00ff00ff00ff00ff.unfinished";
    keeper.open().unwrap();
    tree.put(&format!("var/keeper/{half}"), "{", 0o600);
    let done = keeper.fix("limits.inotify", "root").unwrap();
    assert_eq!(done.outcome, "done");
    assert!(!kept(&tree).contains(&half.to_owned()));

    // The note about updates lies beside them.
    tree.put("var/keeper/updates.json", "{\"banned\": []}", 0o600);
    assert_eq!(keeper.changes().unwrap().len(), 1);
    assert!(keeper.resume().unwrap().is_empty());
    // One that comes and goes while somebody reads.
    let record = std::fs::read(tree.root().join("var/keeper/0001-limits-inotify.json")).unwrap();
    let other = tree.root().join("var/keeper/0007-limits-inotify.json");
    std::thread::scope(|scope| {
        let flips = scope.spawn(|| {
            for _ in 0..200 {
                crate::files::replace(&other, &record, 0o600).unwrap();
                std::fs::remove_file(&other).unwrap();
            }
        });
        while !flips.is_finished() {
            assert!((1..=2).contains(&keeper.changes().unwrap().len()));
        }
    });
    tree.put("var/keeper/0002-of-a-newer-version.json", "{}", 0o600);
    let id = done.change.unwrap();
    for refused in [
        keeper.changes().map(drop),
        keeper.resume().map(drop),
        keeper.fix("log.journal", "root").map(drop),
        keeper.undo(&id, "root").map(drop),
    ] {
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("0002-of-a-newer-version.json"), "{error}");
    }
}

#[test]
fn a_record_that_could_not_be_read_again_is_not_written() {
    let tree = Tree::new();
    let keeper = tree.keeper();
    let act = Act::File {
        path: "/etc/long".to_owned(),
        content: "x".repeat(1024 * 1024),
        mode: 0o600,
        before: None,
    };
    let record = Record::new("k3s.test", "root", Wall::default(), String::new());
    let refused = keeper.begin(&keeper.open().unwrap(), record, vec![act]);
    let refused = refused.unwrap_err();
    assert!(
        refused.sentence().contains("cannot be read again"),
        "{refused}"
    );
    assert!(refused.fix.is_some());
    assert!(keeper.changes().unwrap().is_empty());
    assert_eq!(tree.read("etc/long"), None);
}

#[test]
fn a_file_that_changes_while_its_copy_is_made_is_left_alone() {
    let tree = pi();
    let keeper = tree.keeper();
    let Planned::Work(recipe) =
        repairs::plan(repair_of("cgroup.memory").unwrap(), &keeper.system).unwrap()
    else {
        panic!("nothing to do");
    };
    let acts = repairs::acts(&recipe, &keeper.system).unwrap();
    let mine = "root=/dev/sda1 mine=1\n";
    tree.put("boot/firmware/cmdline.txt", mine, 0o644);
    let record = Record::new("cgroup.memory", "root", Wall::default(), recipe.does);
    let error = keeper.begin(&keeper.open().unwrap(), record, acts);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("is being changed right now"), "{error}");
    assert_eq!(
        tree.read("boot/firmware/cmdline.txt").as_deref(),
        Some(mine)
    );
    assert!(keeper.changes().unwrap().is_empty());
}

#[test]
fn what_can_be_taken_back_is_kept_and_what_was_goes_with_its_copies() {
    let tree = Tree::in_memory()
        .with("sys/fs/cgroup/cgroup.controllers", "cpu io pids\n")
        .with("proc/self/mountinfo", PI_MOUNTS)
        .with("proc/cmdline", "console=tty1\n")
        .with("boot/firmware/cmdline.txt", PI_LINE)
        .with("etc/rpi/swap.conf", "[Main]\n#Mechanism=auto\n");
    let keeper = tree.keeper();
    let kept_change = keeper.fix("swap.card", "root").unwrap().change.unwrap();
    for _ in 0..102 {
        let done = keeper.fix("cgroup.memory", "root").unwrap();
        keeper.undo(&done.change.unwrap(), "root").unwrap();
    }
    let names = kept(&tree);
    for name in &names {
        let kept = tree.root().join("var/keeper").join(name);
        let mode = std::fs::metadata(kept).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    let count = |ending: &str| names.iter().filter(|name| name.ends_with(ending)).count();
    assert_eq!((count(".json"), count(".before")), (101, 100));
    let undone = keeper.undo(&kept_change, "root").unwrap();
    assert_eq!(undone.outcome, "undone");
}

#[test]
fn a_change_without_a_way_back_ends_where_it_fails() {
    let tree = Tree::new().program("false", "exit 1");
    let keeper = tree.keeper();
    let record = Record {
        is_one_way: true,
        ..Record::new(
            "k3s.remove",
            "root",
            Wall::default(),
            "removes it".to_owned(),
        )
    };
    let path = "/etc/made".to_owned();
    let acts = vec![Act::Directory { path }, run(&["false"]), run(&["false"])];
    let again = record.clone();
    let done = keeper.begin(&keeper.open().unwrap(), record, acts).unwrap();
    assert_eq!((&*done.outcome, done.undo), ("failed", None));
    assert!(tree.root().join("etc/made").is_dir(), "it has no way back");
    assert_eq!(tree.calls().lines().count(), 1, "{}", tree.calls());
    assert!(keeper.resume().unwrap().is_empty(), "it is over");

    let done = keeper.begin(&keeper.open().unwrap(), again, Vec::new());
    let error = keeper.undo(&done.unwrap().change.unwrap(), "root");
    let error = error.unwrap_err().to_string();
    assert!(error.contains("it cannot be undone"), "{error}");
}

#[test]
fn what_was_interrupted_comes_first() {
    // Everything was done and nothing written of it: whoever asks hears of that change.
    let tree = pi();
    cut_off(&tree, "cgroup.memory", (0, StepState::Intended), true);
    let done = tree.keeper().fix("cgroup.memory", "root").unwrap();
    assert_eq!(done.change.as_deref(), Some("cgroup-memory-1"));

    // Another one is taken back, and this one is brought to its end before.
    let tree = inotify();
    cut_off(&tree, "limits.inotify", (0, StepState::Acted), true);
    let error = tree.keeper().undo("unknown-7", "root").unwrap_err();
    assert!(error.to_string().contains("no change"), "{error}");
    assert_eq!(tree.keeper().changes().unwrap()[0].outcome, "done");

    // A step in a word of another version is done again.
    let tree = pi();
    cut_off(&tree, "cgroup.memory", (0, StepState::Intended), false);
    let path = tree.root().join("var/keeper/0001-cgroup-memory.json");
    let record = std::fs::read_to_string(&path).unwrap();
    tree.put(
        "var/keeper/0001-cgroup-memory.json",
        &record.replace("\"intended\"", "\"half way\""),
        0o600,
    );
    assert_eq!(tree.keeper().resume().unwrap()[0].outcome, "done");
    let line = tree.read("boot/firmware/cmdline.txt").unwrap();
    assert!(line.contains("cgroup_enable=memory"), "{line}");
}

#[test]
fn an_undo_leaves_what_others_put_there_and_none_of_its_own_halves() {
    let tree = inotify();
    let keeper = tree.keeper();
    let id = keeper
        .fix("limits.inotify", "root")
        .unwrap()
        .change
        .unwrap();
    let value = "proc/sys/fs/inotify/max_user_instances";
    tree.put(value, "9999\n", 0o644);
    tree.put("etc/sysctl.d/50-mine.conf", "a=b\n", 0o644);
    let half = "etc/sysctl.d/.90-pipeops-inotify.conf.00ff00ff00ff00ff.unfinished";
    tree.put(half, "fs", 0o600);
    let undone = keeper.undo(&id, "root").unwrap();
    assert_eq!(undone.outcome, "undone", "{undone:?}");
    assert_eq!(tree.read(value).as_deref(), Some("9999\n"));
    let mut left = std::fs::read_dir(tree.root().join("etc/sysctl.d")).unwrap();
    let left = left.next().map(|entry| entry.unwrap().file_name());
    assert_eq!(left, Some("50-mine.conf".into()));
    assert_eq!(tree.read(half), None);
}

#[test]
fn a_copy_that_is_not_what_was_kept_is_not_put_back() {
    let tree = pi();
    let keeper = tree.keeper();
    let id = keeper.fix("cgroup.memory", "root").unwrap().change.unwrap();
    let now = tree.read("boot/firmware/cmdline.txt");
    tree.put("var/keeper/0001-cgroup-memory.0.before", "root=\n", 0o600);
    let undone = keeper.undo(&id, "root").unwrap();
    assert_eq!(undone.outcome, "failed");
    let sentence = &undone.sentence;
    assert!(sentence.contains("is not what was kept"), "{sentence}");
    assert_eq!(tree.read("boot/firmware/cmdline.txt"), now);
}

/// On the way back nothing of somebody else is overwritten; whether the change was whole decides if
/// that is a failure.
#[test]
fn on_its_way_back_a_change_tells_what_it_did_from_what_it_met() {
    let mine = "mine\n";
    // Done, and changed since: the way back ends there, and says so after the first reason.
    let tree = modules().program(
        "modprobe",
        "echo mine > etc/modules-load.d/90-pipeops-k3s.conf; echo 'no such module' >&2; exit 1",
    );
    make(&tree.root().join("etc/modules-load.d"));
    let done = tree.keeper().fix("kernel.modules", "root").unwrap();
    let file = "etc/modules-load.d/90-pipeops-k3s.conf";
    assert_eq!(tree.read(file).as_deref(), Some(mine));
    let sentence = &done.sentence;
    assert!(sentence.starts_with("it stopped halfway: "), "{sentence}");
    let (first, then) = sentence.split_once("; and then: ").unwrap();
    assert!(first.contains("no such module"), "{sentence}");
    assert!(then.contains("changed by something else"), "{sentence}");

    // Met before it did anything: nothing of it is ours, and all of it is taken back.
    let tree = pi();
    cut_off(&tree, "cgroup.memory", (0, StepState::Intended), false);
    tree.put("boot/firmware/cmdline.txt", mine, 0o644);
    let ended = tree.keeper().resume().unwrap();
    let sentence = &ended[0].sentence;
    assert!(
        sentence.starts_with("it failed and was reverted: "),
        "{sentence}"
    );
    assert_eq!(
        tree.read("boot/firmware/cmdline.txt").as_deref(),
        Some(mine)
    );
}

#[test]
fn a_way_back_that_was_cut_off_anywhere_goes_on_where_it_was() {
    // Each way back is written down before the next one begins, so at most the one that was cut off
    // is done twice.
    let way_back = |tree: &Tree, border| {
        let before = tree.snapshot();
        let keeper = tree.keeper();
        let id = keeper.fix("swap.card", "root").unwrap().change.unwrap();
        let forth = tree.calls().lines().count();
        cut::at(border);
        let undone = keeper.undo(&id, "root");
        cut::at(None);
        let is_whole = undone.is_ok();
        let resumed = tree.keeper().resume().unwrap();
        let ended = undone.ok().or_else(|| resumed.into_iter().next());
        // The power may fail after the last write: then it is over, and nobody is told.
        assert!(ended.is_none_or(|ended| ended.outcome == "undone"));
        assert_eq!(tree.snapshot(), before, "{border:?}: {}", tree.calls());
        let changes = tree.keeper().changes().unwrap();
        assert_eq!(changes[0].outcome, "undone", "{border:?}");
        (is_whole, tree.calls().lines().count() - forth)
    };
    let (_, calls) = way_back(&swap(), None);
    assert!(calls > 1, "{calls} calls cannot be told apart");
    for border in 0..100 {
        let (is_whole, again) = way_back(&swap(), Some(border));
        assert!(
            again <= calls + 2,
            "{border}: {again} calls instead of {calls}"
        );
        if is_whole {
            return;
        }
    }
    panic!("it never came to its end");
}

#[test]
fn a_step_is_written_down_before_it_is_done() {
    let tree = Tree::new().program("look", "cat var/keeper/*.json >> seen; echo , >> seen");
    let keeper = tree.keeper();
    let acts = vec![run(&["look"]), run(&["look"])];
    let record = Record::new("log.journal", "root", Wall::default(), "looks".to_owned());
    let done = keeper.begin(&keeper.open().unwrap(), record, acts).unwrap();
    assert_eq!(done.outcome, "done");
    let seen = format!("[{}{{}}]", tree.read("seen").unwrap());
    let seen: Vec<serde_json::Value> = serde_json::from_str(&seen).unwrap();
    let steps: Vec<_> = seen[..2].iter().map(|one| one["steps"].clone()).collect();
    let wanted = [
        serde_json::json!(["intended"]),
        serde_json::json!(["done", "intended"]),
    ];
    assert_eq!(steps, wanted);
}

#[test]
fn a_sandbox_leaves_a_change_of_k3s_to_a_process_that_has_none() {
    let tree = inotify();
    let record = Record {
        number: 1,
        acts: vec![Act::Directory {
            path: "/etc/made".to_owned(),
        }],
        ..Record::new(
            "k3s.install",
            "root",
            Wall::default(),
            "makes it".to_owned(),
        )
    };
    tree.keeper().open().unwrap().write(&record).unwrap();
    let made = || tree.root().join("etc/made").exists();
    let sandbox = tree.keeper().in_sandbox();
    assert!(sandbox.resume().unwrap().is_empty());
    // It holds up nothing that the sandbox can do.
    let fixed = sandbox.fix("limits.inotify", "root").unwrap();
    assert_eq!(fixed.outcome, "done");
    assert!(!made());
    assert_eq!(tree.keeper().resume().unwrap()[0].outcome, "done");
    assert!(made());
    let refused = sandbox
        .undo("k3s-install-1", "root")
        .unwrap_err()
        .to_string();
    assert!(refused.contains("from here"), "{refused}");
    assert!(made());
    let undone = tree.keeper().undo("k3s-install-1", "root").unwrap();
    assert_eq!((&*undone.outcome, made()), ("undone", false));
}

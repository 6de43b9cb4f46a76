//! The work whose disk is cut, and what must be true of it afterwards.

use std::{
    collections::BTreeSet,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _},
    path::Path,
};

use pipeops_agent::{
    core::{
        audit::Effect,
        journal::{ChangeEnd, ChangeStep, Intent, Journal, Outcome, StepState},
        outbox::{Body, Range, Stream},
    },
    files,
    keeper::Keeper,
    store::{Handle, Stored},
};

use crate::store::{at, entry, identity, open};

const CHECK: &str = "cgroup.memory";
const LINE: &str = "boot/firmware/cmdline.txt";
const BEFORE: &str = "console=tty1 root=PARTUUID=1-02 rootwait\n";
/// The group of the file that is repaired: not root's.
const GROUP: u32 = 4;
/// Audit rows of a round.
const ROWS: u64 = 3;

/// Something that was done: it began after this many events of the disk, and was acknowledged after
/// that many.
#[derive(Clone, Debug)]
pub(super) struct Done {
    what: What,
    pub(super) begun: usize,
    pub(super) acknowledged: usize,
}

#[derive(Clone, Debug, Eq, PartialEq)]
enum What {
    /// The identity of this generation is kept.
    Identity(u64),
    /// The note says this.
    Note(u64),
    /// The row with this number says `PUT /n`.
    Row(i64, u64),
    /// The change is under way and its step is intended.
    Begun(u64),
    /// The change is over.
    Finished(u64),
    /// The keeper's repair was made (odd) or taken back (even) for the so manyth time.
    Keeper(u64),
}

struct Log<C> {
    count: C,
    done: Vec<Done>,
}

impl<C: Fn() -> usize> Log<C> {
    async fn add(&mut self, work: impl AsyncFnOnce() -> What) {
        let begun = (self.count)();
        let what = work().await;
        let acknowledged = (self.count)();
        self.done.push(Done {
            what,
            begun,
            acknowledged,
        });
    }
}

/// Works in `place`; `count` says how many events its disk has had.
pub(super) async fn work(place: &Path, rounds: u64, count: impl Fn() -> usize) -> Vec<Done> {
    let mut log = Log {
        count,
        done: Vec::new(),
    };
    machine(place);
    let (mut store, mut handle, _) = open(&place.join("state")).await;
    let (mut row, mut repair) = (0, 0);
    for round in 1..=rounds {
        log.add(async || {
            let kept = handle.keep_identity(identity(round), at(1)).await;
            assert_eq!(kept, Ok(Stored::OnDisk));
            What::Identity(round)
        })
        .await;
        log.add(async || {
            handle
                .keep_note("round", Some(round.to_string()))
                .await
                .unwrap();
            What::Note(round)
        })
        .await;
        for _ in 0..ROWS {
            row += 1;
            log.add(async || audited(&handle, row).await).await;
        }
        change(&mut log, &handle, round).await;
        for _ in 0..2 {
            repair += 1;
            log.add(async || repaired(place, repair)).await;
        }
        if round.is_multiple_of(3) {
            // The log goes into the database, and the next start reads what is there.
            store.close().await.unwrap();
            (store, handle, _) = open(&place.join("state")).await;
        }
    }
    store.close().await.unwrap();
    log.done
}

async fn audited(handle: &Handle, row: u64) -> What {
    let begun = handle
        .audit_begin(entry(&format!("PUT /{row}")), at(2))
        .await;
    let ticket = begun.unwrap();
    // Every third has no end when the power goes, or for ever.
    if !row.is_multiple_of(3) {
        let ended = handle.audit_end(ticket, "200".to_owned(), Effect::default());
        ended.await.unwrap();
    }
    What::Row(ticket.number(), row)
}

async fn change<C: Fn() -> usize>(log: &mut Log<C>, handle: &Handle, round: u64) {
    let lock = Journal::new().lock(&format!("change-{round}")).unwrap();
    log.add(async || {
        let intent = Intent {
            origin: "control-plane".to_owned(),
            kind: "deploy".to_owned(),
            body: "x".repeat(20_000),
        };
        handle.begin_change(&lock, intent, at(3)).await.unwrap();
        let step = ChangeStep {
            position: 0,
            name: "apply".to_owned(),
            state: StepState::Intended,
            undo: Some("delete".to_owned()),
            detail: None,
        };
        handle.intend_step(&lock, step, at(3)).await.unwrap();
        What::Begun(round)
    })
    .await;
    log.add(async || {
        for state in [StepState::Acted, StepState::Verified, StepState::Done] {
            let advanced = handle.advance_step(&lock, (0, state), None, at(4));
            advanced.await.unwrap();
        }
        let finished = handle.finish_change(&lock, ChangeEnd::new(Outcome::Done), at(5));
        finished.await.unwrap();
        What::Finished(round)
    })
    .await;
}

/// A board whose kernel was started without the memory controller.
fn machine(place: &Path) {
    let root = place.join("root");
    for (path, content) in [
        ("sys/fs/cgroup/cgroup.controllers", "cpuset cpu io pids\n"),
        (
            "proc/self/mountinfo",
            "21 1 179:2 / / rw,noatime - ext4 /dev/mmcblk0p2 rw\n22 21 179:1 / /boot/firmware rw - vfat /dev/mmcblk0p1 rw\n",
        ),
        ("proc/cmdline", "console=tty1 cgroup_disable=memory\n"),
        (LINE, BEFORE),
    ] {
        let path = root.join(path);
        let mut folders = std::fs::DirBuilder::new();
        let folder = path.parent().unwrap();
        folders.recursive(true).mode(0o755).create(folder).unwrap();
        files::replace(&path, content.as_bytes(), 0o640).unwrap();
    }
    std::os::unix::fs::chown(root.join(LINE), None, Some(GROUP)).unwrap();
    // It was there before the agent came.
    nix::unistd::syncfs(std::fs::File::open(place).unwrap()).unwrap();
}

fn keeper(place: &Path) -> Keeper {
    Keeper::new(&place.join("root"), &place.join("keeper"))
}

fn repaired(place: &Path, repair: u64) -> What {
    let keeper = keeper(place);
    if repair % 2 == 1 {
        assert_eq!(keeper.fix(CHECK, "root").unwrap().outcome, "done");
    } else {
        let newest = keeper.changes().unwrap().remove(0).id;
        assert_eq!(keeper.undo(&newest, "root").unwrap().outcome, "undone");
    }
    What::Keeper(repair)
}

/// The last of its kind that was acknowledged before a cut, and the last that was begun; 0 where
/// there is none.
fn range(done: &[Done], place: usize, of: impl Fn(&What) -> Option<u64>) -> (u64, u64) {
    let last = |is: &dyn Fn(&Done) -> bool| {
        let all = done.iter().filter(|done| is(done));
        all.filter_map(|done| of(&done.what)).max().unwrap_or(0)
    };
    (
        last(&|done| done.acknowledged <= place),
        last(&|done| done.begun < place),
    )
}

/// Starts again after a cut behind `place` events, and finds what was acknowledged.
pub(super) async fn check(disk: &Path, done: &[Done], place: usize, what: &str) {
    let (store, handle, loaded) = open(&disk.join("state")).await;
    assert!(
        loaded.conditions.is_empty(),
        "{what}: {:?}",
        loaded.conditions
    );

    let (least, most) = range(done, place, |what| {
        let What::Identity(generation) = what else {
            return None;
        };
        Some(*generation)
    });
    let copies = [&loaded.database, &loaded.file].into_iter().flatten();
    let newest = copies.map(|copy| copy.generation).max().unwrap_or(0);
    assert!(
        (least..=most).contains(&newest),
        "{what}: identity {newest}, not {least}..={most}"
    );

    let (least, most) = range(done, place, |what| {
        let What::Note(round) = what else {
            return None;
        };
        Some(*round)
    });
    assert!(!loaded.notes.is_unreadable, "{what}");
    let note = loaded
        .notes
        .get("round")
        .map_or(0, |note| note.parse().unwrap());
    assert!(
        (least..=most).contains(&note),
        "{what}: note {note}, not {least}..={most}"
    );

    rows(&handle, done, place, what).await;
    changes(&handle, done, place, what).await;
    // And it goes on.
    handle
        .audit_begin(entry("PUT /after"), at(9))
        .await
        .unwrap();
    assert!(handle.tend(at(9)).await.unwrap().is_empty(), "{what}");
    store.close().await.unwrap();
    keeps(disk, done, place, what);
}

/// Every acknowledged row is there, none is there twice, and each is delivered once.
async fn rows(handle: &Handle, done: &[Done], place: usize, what: &str) {
    let rows = handle.recent_audit(100_000).await.unwrap();
    let there: BTreeSet<_> = rows
        .iter()
        .map(|row| (row.number, row.entry.what().to_owned()))
        .collect();
    let named: BTreeSet<_> = there.iter().map(|(_, what)| what).collect();
    assert_eq!(
        (named.len(), there.len()),
        (rows.len(), rows.len()),
        "{what}: a row is there twice"
    );
    for done in done.iter().filter(|done| done.acknowledged <= place) {
        if let What::Row(number, row) = done.what {
            assert!(
                there.contains(&(number, format!("PUT /{row}"))),
                "{what}: row {row} is lost"
            );
        }
    }
    let last = handle.stock(Stream::Audit).await.unwrap().last;
    let Some(all) = Range::new(1, last) else {
        assert!(rows.is_empty(), "{what}: rows that nobody is told of");
        return;
    };
    let mut told = BTreeSet::new();
    let mut from = all.from();
    while let Some(range) = Range::new(from, last) {
        let batch = handle.read(Stream::Audit, range, usize::MAX).await.unwrap();
        let Body::Rows(batch_rows) = batch.body else {
            panic!("{what}: {:?} is a gap", batch.range);
        };
        from = batch.range.to() + 1;
        for row in batch_rows {
            let body: serde_json::Value = serde_json::from_str(&row.body).unwrap();
            let is_new = told.insert(body["what"].as_str().unwrap().to_owned());
            assert!(is_new, "{what}: {body} is told twice");
        }
    }
    let named: BTreeSet<_> = there.into_iter().map(|(_, what)| what).collect();
    assert_eq!(told, named, "{what}: what is told is what is there");
}

async fn changes(handle: &Handle, done: &[Done], place: usize, what: &str) {
    let changes = handle.recent_changes(1_000).await.unwrap();
    for done in done.iter().filter(|done| done.acknowledged <= place) {
        let (round, is_over) = match done.what {
            What::Begun(round) => (round, false),
            What::Finished(round) => (round, true),
            What::Identity(_) | What::Note(_) | What::Row(..) | What::Keeper(_) => continue,
        };
        let id = format!("change-{round}");
        let mut found = changes.iter().filter(|change| change.id == id);
        let change = found
            .next()
            .unwrap_or_else(|| panic!("{what}: {id} is lost"));
        assert!(found.next().is_none(), "{what}: {id} is there twice");
        assert_eq!(change.intent.body.len(), 20_000, "{what}: {id}");
        assert_eq!(change.steps.len(), 1, "{what}: {id}");
        if is_over {
            let ended = change.ended.as_ref().map(|(_, ending)| ending.outcome);
            assert_eq!(ended, Some(Outcome::Done), "{what}: {id}");
            assert_eq!(change.steps[0].state, StepState::Done, "{what}: {id}");
        }
    }
}

/// What the keeper began is finished or taken back, and its file is whole either way.
fn keeps(disk: &Path, done: &[Done], place: usize, what: &str) {
    let keeper = keeper(disk);
    keeper
        .resume()
        .unwrap_or_else(|error| panic!("{what}: {error:?}"));
    let (least, most) = range(done, place, |what| {
        let What::Keeper(repair) = what else {
            return None;
        };
        Some(*repair)
    });
    let changes = keeper.changes().unwrap();
    let begun = [least, most].map(|repair| usize::try_from(repair.div_ceil(2)).unwrap());
    assert!(
        (begun[0]..=begun[1]).contains(&changes.len()),
        "{what}: {} changes, not {begun:?}",
        changes.len()
    );
    assert!(
        changes.iter().all(|change| change.outcome != "running"),
        "{what}: {changes:?}"
    );
    let in_force = changes
        .iter()
        .filter(|change| change.outcome == "done")
        .count();
    let path = disk.join("root").join(LINE);
    let content = std::fs::read_to_string(&path).unwrap();
    let metadata = std::fs::metadata(&path).unwrap();
    assert_eq!(
        (metadata.permissions().mode() & 0o7777, metadata.gid()),
        (0o640, GROUP),
        "{what}"
    );
    let is_repaired = content.contains("cgroup_enable=memory");
    assert!(is_repaired || content == BEFORE, "{what}: {content:?}");
    assert_eq!(
        usize::from(is_repaired),
        in_force,
        "{what}: {content:?} {changes:?}"
    );
    // An odd one is a repair, an even one its undo.
    let may_be = (least..=most).any(|repair| (repair % 2 == 1) == is_repaired);
    assert!(may_be, "{what}: {is_repaired}, not {least}..={most}");
    let folder = std::fs::read_dir(path.parent().unwrap()).unwrap();
    assert_eq!(folder.count(), 1, "{what}: something is left beside {LINE}");
}

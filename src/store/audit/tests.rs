//! The audit in memory and on a disk that is away, slow or hangs.

use super::*;
use crate::store::Store;
use smol::block_on;

fn entry() -> AuditEntry {
    AuditEntry::new("control-plane", "PUT /", AuditDecision::Permitted, "full")
}

fn end(waiting: &mut Waiting, number: i64) {
    waiting.end(number, "200".to_owned(), Effect::default());
}

#[test]
fn ends_of_rows_on_disk_are_kept_however_long_the_disk_is_away() {
    let mut waiting = Waiting::new(Wall::default());
    let on_disk: Vec<_> = (0..70)
        .map(|_| waiting.begin(entry(), Wall::default()))
        .collect();
    waiting.rows.clear();
    waiting.written = waiting.next - 1;
    // The disk is away: their ends come, and then thousands of calls.
    for number in &on_disk {
        end(&mut waiting, *number);
    }
    for _ in 0..5_000 {
        let number = waiting.begin(entry(), Wall::default());
        end(&mut waiting, number);
        waiting.bound();
    }
    let ended: Vec<_> = waiting.ends.iter().map(|(number, _, _)| *number).collect();
    assert_eq!(ended[..70], on_disk);
    assert_eq!(
        (waiting.rows.len(), ended.len()),
        (WAITING_MAX, WAITING_MAX + 70)
    );
    let first = waiting.rows.front().unwrap().0;
    assert_eq!(ended[70], first, "the others are those of rows that wait");
    assert!(waiting.open.is_empty());
}

#[test]
fn rows_without_an_end_are_bounded() {
    let mut waiting = Waiting::new(Wall::default());
    for _ in 0..OPEN_MAX + 9 {
        waiting.begin(entry(), Wall::default());
    }
    assert_eq!((waiting.open.len(), waiting.ends.len()), (OPEN_MAX, 9));
}

fn sums(count: usize) -> Vec<Sum> {
    let sum = Sum {
        minute: Wall::default(),
        entry: entry(),
        count: 1,
        effect: Effect::default(),
    };
    vec![sum; count]
}

#[test]
fn sums_are_bounded_in_memory_and_on_disk_and_what_was_lost_stays_told() {
    let directory = tempfile::tempdir().unwrap();
    let now = Wall::default();
    let (store, _) = block_on(Store::open(directory.path(), now)).unwrap();
    let handle = store.handle();
    let other = Connection::open(directory.path().join(crate::store::DATABASE)).unwrap();
    // Somebody else holds the database for longer than the store waits.
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    block_on(handle.audit_sums(sums(WAITING_MAX + 5))).unwrap();
    other.execute_batch("ROLLBACK").unwrap();
    for _ in 0..2 {
        block_on(handle.audit_sums(sums(1))).unwrap();
        let conditions = block_on(handle.tend(now)).unwrap();
        let sentences = conditions.iter().map(|it| it.sentence.as_str());
        let sentences: Vec<_> = sentences.collect();
        assert!(
            sentences.iter().any(|it| it.starts_with("5 audit")),
            "{sentences:?}"
        );
    }
    other
        .execute_batch(
            "WITH RECURSIVE n(i) AS (SELECT 2000 UNION ALL SELECT i + 1 FROM n WHERE i < 22000)
             INSERT INTO audit_sum SELECT i, 0, '', '', 'permitted', '', 1, 0, 0, 0 FROM n",
        )
        .unwrap();
    block_on(handle.tend(now)).unwrap();
    let left = "SELECT count(*), max(sequence) FROM audit_sum";
    let left: (i64, i64) = other
        .query_row(left, [], |row| Ok((row.get(0)?, row.get(1)?)))
        .unwrap();
    assert_eq!(left, (SUMS_MAX, 22_000));
    block_on(store.close()).unwrap();
}

#[test]
fn ends_are_written_by_the_dozen_and_not_only_with_the_next_row() {
    let directory = tempfile::tempdir().unwrap();
    let now = Wall::default();
    let (store, _) = block_on(Store::open(directory.path(), now)).unwrap();
    let handle = store.handle();
    let other = Connection::open(directory.path().join(crate::store::DATABASE)).unwrap();
    let begun: Vec<_> = (0..ENDS_MAX)
        .map(|_| block_on(handle.audit_begin(entry(), now)).unwrap())
        .collect();
    for ticket in begun {
        block_on(handle.audit_end(ticket, "200".to_owned(), Effect::default())).unwrap();
    }
    let ended = "SELECT count(*) FROM audit WHERE sequence IS NOT NULL";
    let ended: u32 = other.query_row(ended, [], |row| row.get(0)).unwrap();
    assert_eq!(usize::try_from(ended), Ok(ENDS_MAX));
    block_on(store.close()).unwrap();
}

#[test]
fn a_row_whose_end_was_lost_is_delivered_after_a_day_and_not_only_by_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let (store, _) = block_on(Store::open(directory.path(), Wall::default())).unwrap();
    let handle = store.handle();
    let ticket = block_on(handle.audit_begin(entry(), Wall::default())).unwrap();
    let last = || {
        let stream = crate::core::outbox::Stream::Audit;
        block_on(handle.stock(stream)).unwrap().last
    };
    for _ in 1..OPEN_CHECKS_MAX {
        block_on(handle.tend(Wall::default())).unwrap();
    }
    assert_eq!(last(), 0, "it may still run");
    block_on(handle.tend(Wall::default())).unwrap();
    assert_eq!(last(), 1);
    // What comes after that changes nothing of what was told.
    block_on(handle.audit_end(ticket, "200".to_owned(), Effect::default())).unwrap();
    let rows = block_on(handle.recent_audit(9)).unwrap();
    assert_eq!((rows.len(), rows[0].ended.is_none(), last()), (1, true, 1));
    block_on(store.close()).unwrap();
}

/// A store whose thread does nothing until something comes through the gate.
fn held(directory: &std::path::Path) -> (Store, crate::files::Jobs, smol::channel::Sender<()>) {
    let jobs = crate::files::Jobs::default();
    let (store, opening) = Store::begin(directory, Wall::default(), jobs.clone()).unwrap();
    block_on(opening.everything()).unwrap();
    let (gate, opened) = smol::channel::bounded(1);
    let hold = move |_: &mut Disk| {
        opened.recv_blocking().ok();
        Ok(())
    };
    let handle = store.handle();
    let hold = handle.post.queue(hold);
    // Asked, and not waited for.
    block_on(smol::future::poll_once(hold));
    (store, jobs, gate)
}

#[test]
fn a_call_whose_row_came_too_late_gets_its_end() {
    let directory = tempfile::tempdir().unwrap();
    let (store, jobs, gate) = held(directory.path());
    let handle = store.handle();
    let begun = block_on(smol::future::zip(
        handle.audit_begin_call(entry(), Wall::default()),
        async { jobs.store_hangs(true) },
    ));
    assert_eq!(begun.0, Err(Failure::Hung));
    gate.try_send(()).unwrap();
    jobs.store_hangs(false);
    let rows = block_on(handle.recent_audit(9)).unwrap();
    let ends: Vec<_> = rows.iter().map(|row| row.ended.clone()).collect();
    let late = (
        "cancelled: the disk answered too late".to_owned(),
        Effect::default(),
    );
    assert_eq!(ends, [Some(late)]);
    block_on(store.close()).unwrap();
}

#[test]
fn a_disk_that_hangs_is_not_asked_for_the_row_of_a_call() {
    let directory = tempfile::tempdir().unwrap();
    let (store, jobs, gate) = held(directory.path());
    let handle = store.handle();
    jobs.store_hangs(true);
    let refused = block_on(handle.audit_begin_call(entry(), Wall::default()));
    assert_eq!(refused, Err(Failure::Hung));
    gate.try_send(()).unwrap();
    jobs.store_hangs(false);
    assert_eq!(block_on(handle.recent_audit(9)).unwrap(), []);
    block_on(store.close()).unwrap();
}

#[test]
fn a_commit_returns_once_the_disk_has_it() {
    let directory = tempfile::tempdir().unwrap();
    let (store, _) = block_on(Store::open(directory.path(), Wall::default())).unwrap();
    let mode = |connection: &Connection| {
        connection.pragma_query_value(None, "synchronous", |row| row.get::<_, i64>(0))
    };
    let mode = block_on(store.handle().post.call(move |disk| disk.read(mode)));
    // 2: FULL. What is acknowledged outlives a power cut.
    assert_eq!(mode, Ok(2));
    block_on(store.close()).unwrap();
}

//! Faults of the file and of its disk: nothing is lost without a word, nothing is written twice,
//! and nothing is shown under a wrong name.

use rusqlite::Connection;

use super::{kept::Device, *};
use crate::core::retention::{Bounds, Resolution};

fn execute(place: &Path, statement: &str) {
    let file = Connection::open(place.join(DATABASE)).unwrap();
    file.execute_batch(statement).unwrap();
}

fn event(number: u64) -> Event {
    let at = Wall::from_millis(i64::try_from(number).unwrap());
    Event {
        number,
        what: EventContent {
            source: Source::Cluster,
            severity: Severity::Warning,
            subject: "Pod/shop/web".to_owned(),
            reason: "BackOff".to_owned(),
            message: "again".to_owned(),
        },
        first: at,
        last: at,
        count: 1,
    }
}

#[test]
fn minutes_that_cannot_be_read_are_told_as_a_gap_once_their_hour_is_over() {
    let mut place = Machine::new();
    place.live(10);
    place.close();
    execute(
        place.path(),
        "UPDATE minute SET block = x'00' WHERE sequence IN (1, 4)",
    );
    place.open();
    place.live(60);
    let gaps = place.stock(Stream::Metrics).gaps;
    let gaps: Vec<_> = gaps.iter().map(|gap| (gap.range, gap.loss)).collect();
    let damaged = [1, 4].map(|at| (Range::new(at, at).unwrap(), Loss::Damaged));
    assert_eq!(gaps, damaged);
    let (got, gaps) = deliver(&place, "plane", Order::OldestFirst);
    assert_eq!(gaps, damaged);
    place.model.drain(12..16);
    place.model.drain(0..4);
    assert_eq!(got, place.model);
}

#[test]
fn rows_that_are_missing_are_told_as_damage() {
    let mut place = Machine::new();
    let handle = place.handle();
    block_on(handle.note_events((1..=10).map(event).collect())).unwrap();
    place.flush();
    execute(
        place.path(),
        "DELETE FROM event WHERE sequence IN (1, 2, 3, 7)",
    );
    let all = Range::new(1, 10).unwrap();
    let mut rest = Some(all);
    let mut found = Vec::new();
    while let Some(range) = rest {
        let batch = block_on(handle.read(Stream::Events, range, 10_000)).unwrap();
        let rows = match batch.body {
            Body::Rows(rows) => rows.iter().map(|row| row.sequence).collect(),
            Body::Gap(Loss::Damaged) => Vec::new(),
            Body::Gap(_) | Body::Samples(_) => panic!("{:?}", batch.range),
        };
        rest = Range::new(batch.range.to() + 1, all.to());
        found.push(((batch.range.from(), batch.range.to()), rows));
    }
    let wanted = [
        ((1, 3), vec![]),
        ((4, 6), vec![4, 5, 6]),
        ((7, 7), vec![]),
        ((8, 10), vec![8, 9, 10]),
    ];
    assert_eq!(found, wanted);
}

#[test]
fn rows_wait_for_the_disk_up_to_a_bound_and_those_that_went_are_counted() {
    let mut place = Machine::new();
    place.close();
    execute(place.path(), "ALTER TABLE gap RENAME TO away");
    assert_eq!(place.open()[0].id, "telemetry.unwritable");
    let handle = place.handle();
    block_on(handle.note_events((1..=1_003).map(event).collect())).unwrap();
    let line = LogLine {
        at: Wall::default(),
        subject: "shop/web-0/app".to_owned(),
        text: String::new(),
    };
    block_on(handle.note_logs(vec![line; 1_002])).unwrap();
    execute(place.path(), "ALTER TABLE away RENAME TO gap");
    let conditions = block_on(handle.tend(place.now())).unwrap();
    assert_eq!(conditions[0].id, "telemetry.lost");
    assert!(conditions[0].sentence.starts_with("5 "), "{conditions:?}");
    place.flush();
    for stream in [Stream::Events, Stream::Logs] {
        let rows = block_on(handle.recent(stream, None, 2_000)).unwrap();
        assert_eq!(rows.len(), 1_000, "{stream:?}");
    }
    let oldest = block_on(handle.read(Stream::Events, Range::new(1, 1).unwrap(), 1)).unwrap();
    let Body::Rows(rows) = oldest.body else {
        panic!("events are rows");
    };
    assert_eq!(rows[0].at, Wall::from_millis(4));
}

#[test]
fn a_commit_that_was_reported_as_failed_is_not_written_twice() {
    let mut device = Device::new(Bounds::default(), 64 << 20);
    device.live_until(3, &["one"]);
    let written = device.tick(&["one"]);
    device.minute(&["one"]);
    // As after a commit whose report was an error: what is on disk waits in memory as well, in
    // front of what was measured since.
    device.archive.take(&written);
    device.archive.take(&device.tick(&["one"]));
    device
        .archive
        .database
        .stay_away(crate::error::Error::new("the commit failed"));
    device.archive.tend(device.now());
    device.archive.flush(device.now(), true).unwrap();
    assert_eq!(device.values("one", None), [1, 2, 3, 4, 5]);
}

#[test]
fn nothing_is_removed_while_nobody_knows_what_was_delivered() {
    let mut bounds = Bounds::default();
    bounds.kept_minutes[0] = 60;
    let mut device = Device::new(bounds, 64 << 20);
    device.archive.position("plane".to_owned(), Stream::Metrics);
    device.live_until(5, &["one"]);
    let place = device.directory.path().to_owned();
    execute(&place, "ALTER TABLE cursor RENAME TO away");
    device.start("boot-1");
    device.live_until(200, &["one"]);
    let hours = [(1, 60), (61, 120), (121, 180)];
    assert_eq!(device.chunks(Resolution::Raw), hours);
    // Now it is known that somebody still waits for them.
    execute(&place, "ALTER TABLE away RENAME TO cursor");
    device.live_until(205, &["one"]);
    assert_eq!(device.chunks(Resolution::Raw), hours);
    assert_eq!(device.archive.holdings(Stream::Metrics).gaps, []);
}

#[test]
fn a_number_that_a_series_got_later_names_nothing_from_before_it() {
    let mut place = Machine::new();
    place.live(60);
    place.close();
    // A part of the hour that is over has the number of a series which came after it.
    execute(
        place.path(),
        "UPDATE series SET key = replace(key, 'one', 'late'), born = 61, seen = 61 WHERE key LIKE 'one%'",
    );
    place.open();
    let batch = block_on(
        place
            .handle()
            .read(Stream::Metrics, Range::new(1, 60).unwrap(), 100_000),
    );
    let Body::Samples(samples) = batch.unwrap().body else {
        panic!("an hour has samples");
    };
    let names = |name: &str| {
        samples
            .series
            .iter()
            .any(|(_, known)| known.key.name() == name)
    };
    assert!(names("two") && !names("late"), "{:?}", samples.series);
    assert_eq!(samples.block.columns.len(), 1);
    assert_eq!(place.newest("late"), None);
    place.tick_of(&["late"]);
    place.flush();
    assert!(place.newest("late").is_some());
}

#[test]
fn a_flush_returns_once_the_disk_has_it() {
    let mut device = Device::new(Bounds::default(), 64 << 20);
    let mode = device.archive.database.read(|connection| {
        connection.pragma_query_value(None, "synchronous", |row| row.get::<_, i64>(0))
    });
    // 2: FULL.
    assert_eq!(mode, Ok(2));
}

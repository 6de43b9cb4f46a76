use std::{path::Path, time::Duration};

use smol::block_on;

use super::*;
use crate::core::{
    event::{EventContent, Source},
    health::Severity,
    outbox::{Acknowledgement, Body, Loss, Next, Order, Outbox},
    series::{
        Aggregate, Key, Point, Select, Series,
        steps::{Cell, Steps},
    },
    time::{Mono, Wall},
};

mod bounded;
mod clock;
mod faults;
mod kept;

const MINUTE_MS: i64 = 60_000;
/// 2026-01-01T00:00:00Z.
const NEW_YEAR_MS: i64 = 1_767_225_600_000;

fn series(name: &str) -> Series {
    Series {
        key: Key::new(name, &[("host", "pi")]).unwrap(),
        digits: 0,
    }
}

/// Times and values.
type Samples = Vec<(i64, i64)>;

/// An agent with its clocks, which measures two series and remembers what it measured.
struct Machine {
    directory: tempfile::TempDir,
    telemetry: Option<Telemetry>,
    boot: u32,
    mono_ms: i64,
    offset_ms: i64,
    clock_is_set: bool,
    options: Options,
    /// All that was flushed: when, and the value of `one`.
    model: Samples,
    unflushed: Samples,
}

impl Machine {
    fn new() -> Self {
        let mut new = Self {
            directory: tempfile::tempdir().unwrap(),
            telemetry: None,
            boot: 0,
            mono_ms: 0,
            offset_ms: NEW_YEAR_MS,
            clock_is_set: true,
            options: Options {
                disk_bytes_max: 64 << 20,
                boot_id: String::new(),
                epoch: 77,
            },
            model: Vec::new(),
            unflushed: Vec::new(),
        };
        new.reboot();
        new
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn now(&self) -> Now {
        Now {
            mono: Mono::since_boot(Duration::from_millis(self.mono_ms.unsigned_abs())),
            wall: Wall::from_millis(self.mono_ms + self.offset_ms),
        }
    }

    fn open(&mut self) -> Vec<Condition> {
        let (telemetry, conditions) = block_on(Telemetry::open(
            self.path().to_owned(),
            self.options.clone(),
            self.now(),
        ))
        .unwrap();
        self.telemetry = Some(telemetry);
        conditions
    }

    fn close(&mut self) {
        block_on(self.telemetry.take().unwrap().close()).unwrap();
    }

    /// The machine starts again: what was not flushed is gone.
    fn reboot(&mut self) {
        if self.telemetry.is_some() {
            self.close();
        }
        self.unflushed.clear();
        self.boot += 1;
        self.offset_ms += self.mono_ms;
        self.mono_ms = 5_000;
        self.options.boot_id = format!("boot-{}", self.boot);
        self.open();
    }

    fn handle(&self) -> Handle {
        self.telemetry.as_ref().unwrap().handle()
    }

    fn tick(&mut self) {
        let now = self.now();
        let value = self.mono_ms / 1000 % 977 - 300;
        let points = vec![
            Point {
                series: series("one"),
                value,
            },
            Point {
                series: series("two"),
                value: 5,
            },
        ];
        let tick = Tick {
            at: now,
            clock_is_set: self.clock_is_set,
            points,
        };
        block_on(self.handle().take(tick)).unwrap();
        self.unflushed.push((now.wall.millis(), value));
        self.mono_ms += 15_000;
    }

    /// One tick of series with these names, with values that no packing makes small.
    fn tick_of(&mut self, names: &[&str]) {
        let noise = |index: i64| {
            let mixed = (self.mono_ms ^ (index << 40)).wrapping_mul(0x2545_f491_4f6c_dd1d);
            (mixed ^ (mixed >> 29)).wrapping_mul(0x2545_f491_4f6c_dd1d) >> 34
        };
        let points = (0..).zip(names).map(|(index, name)| Point {
            series: series(name),
            value: noise(index),
        });
        let tick = Tick {
            at: self.now(),
            clock_is_set: true,
            points: points.collect(),
        };
        block_on(self.handle().take(tick)).unwrap();
        self.mono_ms += 60_000;
    }

    /// The newest value of a series.
    fn newest(&self, name: &str) -> Option<(Wall, i64)> {
        let query = Query {
            select: Select::Matching(name.to_owned(), Vec::new()),
            from: Wall::from_millis(i64::MIN),
            to: Wall::from_millis(i64::MAX),
            step: None,
        };
        let lines = block_on(self.handle().query(query)).unwrap();
        let aggregate = lines.first()?.aggregates.last().copied()?;
        Some((aggregate.at, aggregate.mean))
    }

    fn flush(&mut self) {
        block_on(self.handle().flush(self.now(), self.clock_is_set)).unwrap();
        self.model.append(&mut self.unflushed);
    }

    /// Lives for so many minutes.
    fn live(&mut self, minutes: u32) {
        for minute in 0..minutes {
            for _ in 0..4 {
                self.tick();
            }
            self.flush();
            if minute % 7 == 0 {
                block_on(self.handle().tend(self.now())).unwrap();
            }
        }
        block_on(self.handle().tend(self.now())).unwrap();
    }

    fn query(&self, step: Option<Duration>) -> Vec<Aggregate> {
        self.query_between(i64::MIN, i64::MAX, step)
    }

    fn query_between(&self, from: i64, to: i64, step: Option<Duration>) -> Vec<Aggregate> {
        let query = Query {
            select: Select::Matching("one".to_owned(), vec![("host".to_owned(), "pi".to_owned())]),
            from: Wall::from_millis(from),
            to: Wall::from_millis(to),
            step,
        };
        let mut lines = block_on(self.handle().query(query)).unwrap();
        lines.pop().map_or_else(Vec::new, |line| line.aggregates)
    }

    /// The first series of the list.
    fn list(&self, limit: usize) -> Page {
        let search = Search {
            limit,
            ..Search::default()
        };
        block_on(self.handle().series(search)).unwrap()
    }

    fn stock(&self, stream: Stream) -> StreamState {
        block_on(self.handle().stock(stream)).unwrap()
    }
}

/// Expected answer to a query with this step.
fn expected(model: &[(i64, i64)], step_ms: i64) -> Vec<Aggregate> {
    let mut steps = Steps::default();
    for (at, value) in model {
        steps.add(*at, step_ms, Cell::of(*value));
    }
    let aggregate = |(at, cell): (i64, Cell)| Aggregate {
        at: Wall::from_millis(at),
        min: cell.min,
        mean: cell.mean,
        max: cell.max,
        count: cell.count,
    };
    steps.iter().map(aggregate).collect()
}

/// The same, where means were taken of means: each may be off by one for each level.
fn assert_alike(answered: &[Aggregate], expected: &[Aggregate]) {
    assert_eq!(answered.len(), expected.len());
    for (one, two) in answered.iter().zip(expected) {
        assert_eq!(
            (one.at, one.min, one.max, one.count),
            (two.at, two.min, two.max, two.count)
        );
        assert!(one.mean.abs_diff(two.mean) <= 3, "{one:?} {two:?}");
    }
}

/// Everything that a destination gets, the samples of `one` in order.
fn deliver(place: &Machine, destination: &str, order: Order) -> (Samples, Vec<(Range, Loss)>) {
    let handle = place.handle();
    let (mut samples, mut gaps) = (Vec::new(), Vec::new());
    block_on(async {
        let (epoch, cursor) = handle
            .position(destination.to_owned(), Stream::Metrics)
            .await
            .unwrap();
        let mut outbox = Outbox::new(epoch, order, cursor);
        loop {
            let holdings = handle.stock(Stream::Metrics).await.unwrap();
            assert_eq!(holdings.epoch, epoch);
            let Some(next) = outbox.next(holdings.view(), 0, Mono::default()) else {
                break;
            };
            let range = match next {
                Next::Records(range) => range,
                Next::Gap(gap) => gap.range,
            };
            let batch = handle.read(Stream::Metrics, range, 4_000).await.unwrap();
            match batch.body {
                Body::Samples(found) => {
                    let number = found
                        .series
                        .iter()
                        .find_map(|(number, known)| (*known == series("one")).then_some(*number));
                    let block = found.block;
                    for (of, column) in &block.columns {
                        let ticks = block.ticks.iter().zip(column);
                        samples.extend(
                            ticks
                                .filter(|_| Some(*of) == number)
                                .filter_map(|(tick, value)| {
                                    Some((block.wall_ms(*tick), (*value)?))
                                }),
                        );
                    }
                }
                Body::Gap(loss) => gaps.push((batch.range, loss)),
                Body::Rows(_) => panic!("samples are no rows"),
            }
            outbox.sent(batch.range, Mono::default());
            let said = Acknowledgement {
                epoch,
                from: batch.range.from(),
                to: batch.range.to(),
            };
            outbox.acknowledge(said, holdings.last).unwrap();
            handle
                .settle(
                    destination.to_owned(),
                    Stream::Metrics,
                    epoch,
                    outbox.cursor().clone(),
                )
                .await
                .unwrap();
        }
    });
    samples.sort_unstable();
    (samples, gaps)
}

#[test]
fn days_are_answered_at_every_step_from_whatever_level_has_them() {
    let mut place = Machine::new();
    place.live(900);
    place.reboot();
    place.live(4_000);
    let model = place.model.clone();
    let minutes = place.query(Some(Duration::from_secs(60)));
    assert_alike(&minutes, &expected(&model, MINUTE_MS));
    let quarters = place.query(Some(Duration::from_secs(900)));
    assert_alike(&quarters, &expected(&model, 15 * MINUTE_MS));
    let days = place.query(Some(Duration::from_secs(86_400)));
    assert_alike(&days, &expected(&model, 1_440 * MINUTE_MS));
    // Single values of the last two days, and steps of a minute before them.
    let all = place.query(None);
    let single: Vec<_> = all
        .iter()
        .filter(|aggregate| aggregate.count == 1)
        .collect();
    assert!(
        single.len() > 2_880 * 4 && single.len() < 3_100 * 4,
        "{}",
        single.len()
    );
    let counted: u32 = all.iter().map(|aggregate| aggregate.count).sum();
    assert_eq!(usize::try_from(counted).unwrap(), model.len());
    let last = model[model.len() - 40].0;
    let some = place.query_between(last, i64::MAX, None);
    assert_eq!(some.len(), 40);
    assert_eq!(some[3].mean, model[model.len() - 37].1);
    place.close();
    let reader = TelemetryReader::open(place.path()).unwrap();
    let always = Wall::from_millis(i64::MIN);
    assert_eq!(reader.series(&Select::All, always).unwrap().len(), 2);
    let later = Wall::from_millis(model[model.len() - 1].0 + 10 * 86_400_000);
    assert_eq!(reader.series(&Select::All, later).unwrap(), []);
}

#[test]
fn what_is_not_delivered_stays_and_what_is_goes_after_its_time() {
    let mut place = Machine::new();
    place.live(10);
    let (got, gaps) = deliver(&place, "plane", Order::NewestFirst);
    assert_eq!((got, gaps), (place.model.clone(), vec![]));
    place.live(3_500);
    // Nobody acknowledged: nothing of the days is gone.
    let from = place.model[40].0;
    let (got, gaps) = deliver(&place, "plane", Order::NewestFirst);
    assert!(gaps.is_empty());
    let new: Vec<_> = place
        .model
        .iter()
        .copied()
        .filter(|(at, _)| *at >= from)
        .collect();
    assert_eq!(got, new);
    place.live(61);
    assert_eq!(place.stock(Stream::Metrics).gaps.len(), 1);
    // One that comes later is told what it missed, and a restart forgets nothing of that.
    place.reboot();
    let gaps_before = place.stock(Stream::Metrics).gaps;
    let (got, gaps) = deliver(&place, "late", Order::OldestFirst);
    assert_eq!(gaps, [(gaps_before[0].range, Loss::Retention)]);
    let gone = usize::try_from(gaps_before[0].range.count()).unwrap();
    assert_eq!(got, place.model[gone * 4..]);
    place.live(1);
    let (again, _) = deliver(&place, "late", Order::OldestFirst);
    assert_eq!(again, place.model[place.model.len() - 4..]);
}

#[test]
fn what_was_acknowledged_is_known_again_when_the_file_comes_late() {
    let mut place = Machine::new();
    place.live(10);
    deliver(&place, "plane", Order::NewestFirst);
    place.flush();
    let position = |place: &Machine| {
        block_on(place.handle().position("plane".to_owned(), Stream::Metrics)).unwrap()
    };
    let known = position(&place);
    assert_eq!(known.1.floor(), 11);
    place.close();
    let other = rusqlite::Connection::open(place.path().join(DATABASE)).unwrap();
    other
        .execute_batch("PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE;")
        .unwrap();
    assert_eq!(place.open().len(), 1, "another program has it");
    assert_eq!(position(&place).0, 0);
    drop(other);
    block_on(place.handle().tend(place.now())).unwrap();
    assert_eq!(position(&place), known);
}

#[test]
fn a_board_that_starts_in_1970_gets_its_times_when_the_clock_is_set() {
    let mut place = Machine::new();
    place.live(3);
    // Off for an hour, and its clock begins at zero.
    place.reboot();
    let true_offset = place.offset_ms + 3_600_000;
    (place.offset_ms, place.clock_is_set) = (0, false);
    place.live(130);
    assert_eq!(
        place.stock(Stream::Metrics).last,
        3,
        "the others wait for the clock"
    );
    // Until then it counts as later than what was before it.
    let guessed = place.query(None);
    let later = guessed
        .iter()
        .filter(|aggregate| aggregate.at.millis() > place.model[11].0);
    assert_eq!(later.count() + 12, place.model.len());
    let unset = place.model.split_off(12);
    (place.offset_ms, place.clock_is_set) = (true_offset, true);
    place.live(70);
    let set: Vec<_> = unset
        .iter()
        .map(|(at, value)| (at + true_offset, *value))
        .collect();
    place.model.splice(12..12, set);
    let (got, gaps) = deliver(&place, "plane", Order::OldestFirst);
    assert!(gaps.is_empty());
    assert_eq!(got, place.model);
    let minutes = place.query(Some(Duration::from_secs(60)));
    assert_alike(&minutes, &expected(&place.model, MINUTE_MS));
}

#[test]
fn a_clock_that_jumps_loses_and_doubles_nothing() {
    let mut place = Machine::new();
    for by in [0, 10 * 365 * 86_400_000, -9 * 365 * 86_400_000, 7_000] {
        place.offset_ms += by;
        place.live(400);
    }
    let (mut got, gaps) = deliver(&place, "plane", Order::NewestFirst);
    let mut model = place.model.clone();
    model.sort_unstable();
    got.sort_unstable();
    assert!(gaps.is_empty());
    assert_eq!(got.len(), model.len());
    let values = |all: &[(i64, i64)]| all.iter().map(|(_, value)| *value).collect::<Vec<_>>();
    assert_eq!(values(&got), values(&model));
    let counted: u32 = place
        .query(Some(Duration::from_secs(900)))
        .iter()
        .map(|aggregate| aggregate.count)
        .sum();
    assert_eq!(usize::try_from(counted).unwrap(), model.len());
}

#[test]
fn a_spent_budget_takes_the_oldest_single_values_and_says_what_is_missing() {
    let mut place = Machine::new();
    place.close();
    place.options.disk_bytes_max = 40 << 10;
    place.open();
    drop(deliver(&place, "plane", Order::NewestFirst));
    place.live(4_000);
    let conditions = block_on(place.handle().tend(place.now())).unwrap();
    assert_eq!(
        conditions.iter().map(|found| found.id).collect::<Vec<_>>(),
        ["telemetry.thinned"]
    );
    let (got, gaps) = deliver(&place, "plane", Order::NewestFirst);
    let lost: u64 = gaps.iter().map(|(range, _)| range.count()).sum();
    assert!(gaps.iter().all(|(_, loss)| *loss == Loss::Budget));
    assert!(lost > 500);
    assert_eq!(got, place.model[usize::try_from(lost).unwrap() * 4..]);
    let counted: u32 = place
        .query(Some(Duration::from_secs(60)))
        .iter()
        .map(|aggregate| aggregate.count)
        .sum();
    assert!(counted > 0);
    let used = std::fs::metadata(place.path().join(DATABASE))
        .unwrap()
        .len();
    assert!(used < 128 << 10, "{used}");
}

#[test]
fn a_damaged_file_is_moved_aside_and_begins_another_epoch() {
    let mut place = Machine::new();
    place.live(5);
    drop(deliver(&place, "plane", Order::NewestFirst));
    place.live(1);
    let before = place.stock(Stream::Metrics).epoch;
    place.close();
    let path = place.path().join(DATABASE);
    let length = usize::try_from(std::fs::metadata(&path).unwrap().len()).unwrap();
    crate::files::replace(&path, &vec![0x5a; length], crate::files::PRIVATE).unwrap();
    let conditions = place.open();
    assert_eq!(
        conditions.iter().map(|found| found.id).collect::<Vec<_>>(),
        ["telemetry.damaged"]
    );
    place.model.clear();
    place.live(3);
    let holdings = place.stock(Stream::Metrics);
    assert_eq!((holdings.epoch != before, holdings.last), (true, 3));
    let (got, _) = deliver(&place, "plane", Order::NewestFirst);
    assert_eq!(got, place.model);
    // An acknowledgement that is late for the file before says nothing of this one.
    let late = Cursor::of(Range::new(1, 2));
    let handle = place.handle();
    let settled = handle.settle("plane".to_owned(), Stream::Metrics, before, late);
    block_on(settled).unwrap();
    let (again, _) = deliver(&place, "plane", Order::NewestFirst);
    assert_eq!(again, []);
}

#[test]
fn damage_that_is_met_later_costs_no_more_than_what_was_there() {
    for part in 1..6 {
        let mut place = Machine::new();
        place.live(200);
        place.close();
        let path = place.path().join(DATABASE);
        let length = std::fs::metadata(&path).unwrap().len() / 6;
        let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        let rubbish = vec![0x5a; usize::try_from(length).unwrap()];
        std::os::unix::fs::FileExt::write_all_at(&file, &rubbish, part * length).unwrap();
        place.open();
        // Whoever meets it first sees an error or a gap; then all is well.
        let query = Query {
            select: Select::All,
            from: Wall::from_millis(i64::MIN),
            to: Wall::from_millis(i64::MAX),
            step: None,
        };
        drop(block_on(place.handle().query(query)));
        place.tick();
        drop(block_on(place.handle().flush(place.now(), true)));
        drop(block_on(place.handle().tend(place.now())));
        place.unflushed.clear();
        place.model.clear();
        place.live(2);
        let (got, _) = deliver(&place, "plane", Order::NewestFirst);
        assert!(got.ends_with(&place.model), "{part}");
    }
}

#[test]
fn events_and_lines_are_kept_under_their_quota_and_delivered() {
    let mut place = Machine::new();
    let handle = place.handle();
    let event = |index: i64| Event {
        number: u64::try_from(index).unwrap(),
        what: EventContent {
            source: Source::Cluster,
            severity: Severity::Warning,
            subject: "Pod/shop/web".to_owned(),
            reason: "BackOff".to_owned(),
            message: "again \"and\" again".to_owned(),
        },
        first: Wall::from_millis(index),
        last: Wall::from_millis(index),
        count: 2,
    };
    block_on(handle.position("plane".to_owned(), Stream::Events)).unwrap();
    for batch in 0..30 {
        block_on(
            handle.note_events(
                (0..1_000)
                    .map(|index| event(batch * 1_000 + index))
                    .collect(),
            ),
        )
        .unwrap();
        place.flush();
    }
    block_on(handle.tend(place.now())).unwrap();
    let holdings = place.stock(Stream::Events);
    assert_eq!(holdings.last, 30_000);
    let gone = Range::new(1, 10_000).unwrap();
    assert_eq!(
        holdings
            .gaps
            .iter()
            .map(|gap| (gap.range, gap.loss))
            .collect::<Vec<_>>(),
        [(gone, Loss::Budget)]
    );
    let all = Range::new(1, 30_000).unwrap();
    let gap = block_on(handle.read(Stream::Events, all, 10_000)).unwrap();
    assert_eq!((gap.range, gap.body), (gone, Body::Gap(Loss::Budget)));
    let rest = Range::new(10_001, 30_000).unwrap();
    let batch = block_on(handle.read(Stream::Events, rest, 10_000)).unwrap();
    let Body::Rows(rows) = batch.body else {
        panic!("events are rows");
    };
    assert_eq!(rows[0].at, Wall::from_millis(10_000));
    assert!(rows.iter().map(|row| row.body.len()).sum::<usize>() <= 10_000);
    assert!(
        rows[0].body.contains(r#""message":"again \"and\" again""#),
        "{}",
        rows[0].body
    );
    let backlog = block_on(handle.backlog()).unwrap();
    assert_eq!(
        backlog,
        [Backlog {
            destination: "plane".to_owned(),
            stream: Stream::Events,
            records: 30_000,
            oldest: Some(Wall::from_millis(10_000)),
        }]
    );
}

#[test]
fn a_file_that_cannot_be_read_is_a_condition_until_it_can() {
    let mut place = Machine::new();
    place.live(3);
    place.close();
    let path = place.path().join(DATABASE);
    let rename = |from: &str, to: &str| {
        let file = rusqlite::Connection::open(&path).unwrap();
        file.execute_batch(&format!("ALTER TABLE {from} RENAME TO {to}"))
            .unwrap();
    };
    rename("gap", "gap_away");
    let conditions = place.open();
    assert_eq!(
        conditions
            .iter()
            .map(|condition| condition.id)
            .collect::<Vec<_>>(),
        ["telemetry.unwritable"]
    );
    // What comes meanwhile waits in memory.
    place.tick();
    assert!(block_on(place.handle().flush(place.now(), true)).is_err());
    rename("gap_away", "gap");
    assert_eq!(block_on(place.handle().tend(place.now())).unwrap(), []);
    place.flush();
    assert_alike(&place.query(None), &expected(&place.model, 1));
}

#[test]
fn a_value_of_a_second_ago_is_in_the_answer_and_once_after_the_flush() {
    let mut place = Machine::new();
    place.tick();
    let early = place.list(10);
    assert_eq!(early.total, 2, "both are known before anything is written");
    let by_key = |place: &Machine| {
        let keys = early.series.iter().map(|listed| listed.key.clone());
        let query = Query {
            select: Select::Keys(keys.collect()),
            from: Wall::from_millis(i64::MIN),
            to: Wall::from_millis(i64::MAX),
            step: None,
        };
        let lines = block_on(place.handle().query(query)).unwrap();
        lines
            .iter()
            .map(|line| line.aggregates.len())
            .collect::<Vec<_>>()
    };
    let values = |place: &Machine| {
        let aggregates = place.query(None).into_iter();
        aggregates
            .map(|aggregate| (aggregate.at.millis(), aggregate.mean, aggregate.count))
            .collect::<Vec<_>>()
    };
    let (at, value) = place.unflushed[0];
    assert_eq!(values(&place), [(at, value, 1)]);
    assert_eq!(by_key(&place), [1, 1]);

    place.flush();
    assert_eq!(values(&place), [(at, value, 1)], "once, not twice");
    assert_eq!(by_key(&place), [1, 1]);

    place.tick();
    let (next, other) = place.unflushed[0];
    assert_eq!(values(&place), [(at, value, 1), (next, other, 1)]);
    // A step that lies in both is one.
    let whole = place.query(Some(Duration::from_secs(86_400)));
    assert_eq!(
        whole.iter().map(|aggregate| aggregate.count).sum::<u32>(),
        2
    );
    place.flush();
    assert_eq!(values(&place), [(at, value, 1), (next, other, 1)]);

    // A start anew finds its series on disk again, before its first flush.
    place.close();
    place.open();
    place.tick();
    assert_eq!(values(&place).len(), 3);
    assert_eq!(place.list(10).series.len(), 2);
}

#[test]
fn more_series_than_there_is_room_for_are_counted() {
    let place = Machine::new();
    let points = (0..2_100)
        .map(|index| Point {
            series: series(&format!("s{index}")),
            value: index,
        })
        .collect();
    let tick = Tick {
        at: place.now(),
        clock_is_set: true,
        points,
    };
    block_on(place.handle().take(tick)).unwrap();
    block_on(place.handle().flush(place.now(), true)).unwrap();
    assert_eq!(place.list(5_000).total, 2_000);
    assert_eq!(place.list(700).series.len(), 700);
    let conditions = block_on(place.handle().tend(place.now())).unwrap();
    assert_eq!(conditions[0].id, "telemetry.too-many-series");
    let batch = block_on(
        place
            .handle()
            .read(Stream::Metrics, Range::new(1, 1).unwrap(), 100),
    );
    let Body::Samples(samples) = batch.unwrap().body else {
        panic!("a minute has samples");
    };
    assert_eq!(
        (samples.series.len(), samples.block.columns.len()),
        (2_000, 2_000)
    );
}

#[test]
fn a_hole_between_finished_hours_loses_no_record_after_it() {
    let mut place = Machine::new();
    place.live(200);
    place.close();
    // A page of the middle hour went bad, and its record of the loss is one of those that there was
    // no room for.
    let file = rusqlite::Connection::open(place.path().join(DATABASE)).unwrap();
    let middle =
        "number = (SELECT number FROM chunk WHERE level = 0 ORDER BY number LIMIT 1 OFFSET 1)";
    let hole: (u64, u64) = file
        .query_row(
            &format!("SELECT sequence_from, sequence_to FROM chunk WHERE {middle}"),
            [],
            |row| Ok((row.get::<_, u32>(0)?.into(), row.get::<_, u32>(1)?.into())),
        )
        .unwrap();
    file.execute(&format!("DELETE FROM chunk WHERE {middle}"), [])
        .unwrap();
    drop(file);
    place.open();
    let (got, gaps) = deliver(&place, "plane", Order::OldestFirst);
    let hole = Range::new(hole.0, hole.1).unwrap();
    assert_eq!(gaps, [(hole, Loss::Damaged)]);
    let lost = usize::try_from(hole.count()).unwrap() * 4;
    assert_eq!(got.len() + lost, place.model.len());
}

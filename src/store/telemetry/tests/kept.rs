//! Minutes, levels, series and boots live as long as they are said to, and not a minute less.

use super::*;
use crate::core::retention::{Bounds, Resolution};

use super::super::{archive::Archive, chunk, series as stored_series};

/// The archive itself, with bounds of a test, one tick and one flush a minute.
pub(super) struct Device {
    pub(super) directory: tempfile::TempDir,
    pub(super) archive: Archive,
    options: Options,
    bounds: Bounds,
    /// Minutes since the first boot, and those before this one.
    minute: u64,
    booted_at: u64,
}

impl Device {
    pub(super) fn new(bounds: Bounds, disk_bytes_max: u64) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let options = Options {
            disk_bytes_max,
            boot_id: "boot-1".to_owned(),
            epoch: 7,
        };
        let now = now(0, 0);
        let mut archive = Archive::open(directory.path().to_owned(), options.clone(), now).0;
        archive.bounds = bounds;
        Self {
            directory,
            archive,
            options,
            bounds,
            minute: 0,
            booted_at: 0,
        }
    }

    pub(super) fn now(&self) -> Now {
        now(self.minute, self.booted_at)
    }

    /// What is measured now: the number of the minute, and the same for each series.
    pub(super) fn tick(&self, names: &[&str]) -> Tick {
        let value = i64::try_from(self.minute).unwrap() + 1;
        let points = names.iter().map(|name| Point {
            series: series(name),
            value,
        });
        Tick {
            at: self.now(),
            clock_is_set: true,
            points: points.collect(),
        }
    }

    /// One minute that is written.
    pub(super) fn minute(&mut self, names: &[&str]) {
        self.archive.take(&self.tick(names));
        self.archive.flush(self.now(), true).unwrap();
        self.minute += 1;
    }

    /// Minutes until there are so many, each with its upkeep.
    pub(super) fn live_until(&mut self, minute: u64, names: &[&str]) {
        while self.minute < minute {
            self.minute(names);
            self.archive.tend(self.now());
        }
    }

    /// The agent starts again, in a boot of this name.
    pub(super) fn start(&mut self, boot_id: &str) -> Vec<Condition> {
        crate::store::thread::Owned::close(&mut self.archive);
        if self.options.boot_id != boot_id {
            self.booted_at = self.minute;
            boot_id.clone_into(&mut self.options.boot_id);
        }
        let place = self.directory.path().to_owned();
        let (archive, conditions) = Archive::open(place, self.options.clone(), self.now());
        self.archive = archive;
        self.archive.bounds = self.bounds;
        conditions
    }

    /// First and last minute of the chunks of a level.
    pub(super) fn chunks(&mut self, level: Resolution) -> Vec<(u64, u64)> {
        let of = "level = ?1 ORDER BY sequence_from, number";
        let list =
            |connection: &rusqlite::Connection| chunk::list(connection, of, [level.number()]);
        let chunks = self.archive.database.read(list).unwrap();
        let range = |chunk: &chunk::Chunk| (chunk.minutes.from(), chunk.minutes.to());
        chunks.iter().map(range).collect()
    }

    /// The values of a series, of steps of a minute the mean.
    pub(super) fn values(&mut self, name: &str, step: Option<u64>) -> Vec<i64> {
        let query = Query {
            select: Select::Matching(name.to_owned(), Vec::new()),
            from: Wall::from_millis(i64::MIN),
            to: Wall::from_millis(i64::MAX),
            step: step.map(Duration::from_secs),
        };
        let mut lines = self.archive.query(&query).unwrap();
        let aggregates = lines.pop().map_or_else(Vec::new, |line| line.aggregates);
        aggregates.iter().map(|aggregate| aggregate.mean).collect()
    }

    /// Number of series on disk.
    fn count(&mut self) -> usize {
        self.archive.database.read(stored_series::count).unwrap()
    }

    /// Number of parts on disk that have the number of a series.
    fn parts(&mut self, number: u32) -> usize {
        let parts = self.archive.database.read(|connection| {
            let mut count = 0;
            for chunk in chunk::list(connection, "level >= ?1", [0])? {
                let series = chunk.series(connection)?;
                count += series.iter().filter(|one| **one == number).count();
            }
            Ok(count)
        });
        parts.unwrap()
    }

    fn number(&mut self, name: &str) -> Option<u32> {
        let select = Select::Matching(name.to_owned(), Vec::new());
        let found = self
            .archive
            .database
            .read(|connection| stored_series::select(connection, &select, 0));
        found.unwrap().first().map(|stored| stored.known.number)
    }
}

fn now(minute: u64, booted_at: u64) -> Now {
    Now {
        mono: Mono::since_boot(Duration::from_secs((minute - booted_at) * 60 + 7)),
        wall: Wall::from_millis(NEW_YEAR_MS + i64::try_from(minute).unwrap() * MINUTE_MS),
    }
}

/// Single values are kept for so many minutes, the rest for as long as ever.
fn kept(minutes: u64) -> Bounds {
    let mut bounds = Bounds::default();
    bounds.kept_minutes[0] = minutes;
    bounds
}

const ROOM: u64 = 64 << 20;

#[test]
fn a_level_goes_when_its_time_is_over_and_not_a_minute_earlier() {
    let mut device = Device::new(kept(120), ROOM);
    device.live_until(179, &["one"]);
    assert_eq!(device.chunks(Resolution::Raw), [(1, 60), (61, 120)]);
    device.live_until(180, &["one"]);
    assert_eq!(device.chunks(Resolution::Raw), [(61, 120), (121, 180)]);
}

#[test]
fn an_hour_becomes_one_chunk_of_each_level_once() {
    let mut device = Device::new(Bounds::default(), ROOM);
    // Nobody tends for two hours, so that three are waiting.
    for _ in 0..130 {
        device.minute(&["one"]);
    }
    device.live_until(185, &["one"]);
    let hours = [(1, 60), (61, 120), (121, 180)];
    assert_eq!(device.chunks(Resolution::Raw), hours);
    assert_eq!(device.chunks(Resolution::Minutes), hours);
    let all: Vec<_> = (1..=185).collect();
    assert_eq!(device.values("one", None), all);
    assert_eq!(device.values("one", Some(60)), all);
}

#[test]
fn the_newest_hour_stays_whatever_the_budget_is() {
    let mut device = Device::new(Bounds::default(), 1);
    device.live_until(119, &["one"]);
    assert_eq!(device.values("one", None), (61..=119).collect::<Vec<_>>());
    assert_eq!(device.chunks(Resolution::Raw), []);
    let gaps = device.archive.holdings(Stream::Metrics).gaps;
    let gaps: Vec<_> = gaps.iter().map(|gap| (gap.range, gap.loss)).collect();
    assert_eq!(gaps, [(Range::new(1, 60).unwrap(), Loss::Budget)]);
}

#[test]
fn a_series_stays_while_it_is_measured_or_a_sample_of_it_is_in_the_journal() {
    // The budget takes every chunk at once: nothing but the journal has samples, and after each
    // hour not even that.
    let mut device = Device::new(Bounds::default(), 1);
    device.live_until(65, &["one", "two"]);
    for minute in 66..=119 {
        device.live_until(minute, &["two"]);
        assert_eq!(device.count(), 2, "{minute}");
    }
    assert_eq!(device.values("one", None), [61, 62, 63, 64, 65]);
    for minute in 120..=190 {
        device.live_until(minute, &["two"]);
        assert_eq!(device.count(), 1, "{minute}");
    }
    assert!(device.values("one", None).is_empty());
    assert_eq!(device.values("two", None), (181..=190).collect::<Vec<_>>());
}

#[test]
fn too_many_series_go_only_once_their_single_values_are_over_and_with_all_their_parts() {
    let bounds = Bounds {
        series_max: 1,
        ..kept(120)
    };
    let mut device = Device::new(bounds, ROOM);
    device.live_until(5, &["one", "two"]);
    let number = device.number("one").unwrap();
    // A receiver may still have to get its single values.
    device.live_until(179, &["two"]);
    assert_eq!((device.count(), device.parts(number)), (2, 2));
    assert_eq!(device.values("one", Some(60)), [1, 2, 3, 4, 5]);
    device.live_until(180, &["two"]);
    assert!(device.values("one", Some(60)).is_empty());
    assert_eq!((device.count(), device.parts(number)), (1, 0));
    assert_eq!(
        device.values("two", Some(60)),
        (1..=180).collect::<Vec<_>>()
    );
}

#[test]
fn of_too_many_series_those_stay_that_are_measured_or_in_the_journal() {
    // Single values go at once, and only the journal says that these are still there.
    let bounds = Bounds {
        series_max: 1,
        ..kept(0)
    };
    let mut device = Device::new(bounds, ROOM);
    device.live_until(63, &["one", "two", "three"]);
    for minute in 64..=119 {
        device.live_until(minute, &["two", "three"]);
        assert_eq!(device.count(), 3, "{minute}");
    }
    assert_eq!(device.values("one", None), (1..=63).collect::<Vec<_>>());
    for minute in 120..=190 {
        device.live_until(minute, &["two", "three"]);
        assert_eq!(device.count(), 2, "{minute}");
    }
    assert_eq!(device.values("two", None), (1..=190).collect::<Vec<_>>());
}

#[test]
fn as_many_boots_are_known_as_may_be() {
    let bounds = Bounds {
        boots_max: 4,
        ..Bounds::default()
    };
    let mut device = Device::new(bounds, ROOM);
    for boot in 1..=7 {
        device.start(&format!("boot-{boot}"));
        let minute = device.minute + 2;
        device.live_until(minute, &["one"]);
        assert_eq!(device.archive.contents.boots.count(), boot.min(4));
    }
}

#[test]
fn a_minute_that_is_missing_ends_a_chunk_and_is_told() {
    let mut place = Machine::new();
    place.live(50);
    let file = rusqlite::Connection::open(place.path().join(DATABASE)).unwrap();
    file.execute("DELETE FROM minute WHERE sequence = 30", [])
        .unwrap();
    drop(file);
    place.live(20);
    let (got, gaps) = deliver(&place, "plane", Order::OldestFirst);
    assert_eq!(gaps, [(Range::new(30, 30).unwrap(), Loss::Damaged)]);
    place.model.drain(29 * 4..30 * 4);
    assert_eq!(got, place.model);
}

#[test]
fn the_same_hour_of_two_boots_is_two_chunks() {
    let mut place = Machine::new();
    place.live(10);
    place.reboot();
    place.live(80);
    let (got, gaps) = deliver(&place, "plane", Order::OldestFirst);
    assert_eq!((got, gaps), (place.model.clone(), vec![]));
    assert_alike(&place.query(None), &expected(&place.model, 1));
}

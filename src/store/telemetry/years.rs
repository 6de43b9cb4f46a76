//! Test (`make torture`): years of a machine in minutes: Pods that come and go, reboots, and what
//! is left of them. The file, the memory and the answers stay as they are once the bounds are
//! reached, and no value is ever shown under the name of another series.

use std::{path::Path, time::Duration};

use super::{Options, archive::Archive, series::NUMBER_MAX};
use crate::core::{
    outbox::{Body, Range, Stream},
    retention::Bounds,
    series::{Key, Point, Query, Search, Select, Series, Tick},
    time::{Mono, Now, Wall},
};

const NEW_YEAR_MS: i64 = 1_767_225_600_000;
const DAY: u64 = 1_440;
/// A Pod every five minutes.
const POD_EVERY: u64 = 5;
/// A reboot every nine days and some hours.
const BOOT_EVERY: u64 = 9 * DAY + 365;
/// Series of a Pod.
const OF_POD: [&str; 3] = [
    "cluster_pod_cpu_cores",
    "cluster_pod_memory_working_set_bytes",
    "cluster_pod_filesystem_used_bytes",
];

struct Machine<'a> {
    directory: &'a Path,
    archive: Archive,
    bounds: Bounds,
    /// Minutes between two flushes.
    every: u64,
    minute: u64,
    boot: u64,
    booted_at: u64,
}

fn series(name: &str, labels: &[(&str, &str)]) -> Series {
    Series {
        key: Key::new(name, labels).unwrap(),
        digits: 0,
    }
}

/// The values of a Pod say which it is.
fn pod(number: u64) -> impl Iterator<Item = Point> {
    let name = format!("report-{number}");
    let point = move |(place, metric): (i64, &&str)| Point {
        series: series(metric, &[("namespace", "shop"), ("pod", &name)]),
        value: i64::try_from(number).unwrap() * 10 + place,
    };
    (0..)
        .zip(&OF_POD)
        .map(point)
        .collect::<Vec<_>>()
        .into_iter()
}

impl<'a> Machine<'a> {
    fn new(directory: &'a Path, bounds: Bounds, every: u64) -> Self {
        let mut machine = Self {
            directory,
            archive: Archive::open(directory.to_owned(), options(0), now(0, 0)).0,
            bounds,
            every,
            minute: 0,
            boot: 0,
            booted_at: 0,
        };
        machine.archive.bounds = bounds;
        machine
    }

    fn now(&self) -> Now {
        now(self.minute, self.booted_at)
    }

    fn reboot(&mut self) {
        crate::store::thread::Owned::close(&mut self.archive);
        self.boot += 1;
        self.booted_at = self.minute;
        self.archive = Archive::open(self.directory.to_owned(), options(self.boot), self.now()).0;
        self.archive.bounds = self.bounds;
    }

    fn minute(&mut self) {
        if self.minute > 0 && self.minute.is_multiple_of(BOOT_EVERY) {
            self.reboot();
        }
        let host = ["host_load1", "host_memory_available_bytes"].map(|name| Point {
            series: series(name, &[]),
            value: i64::try_from(self.minute % 977).unwrap(),
        });
        // A Deployment that is rolled out once a day.
        let web = format!("web-{}", self.minute / DAY);
        let web = Point {
            series: series(OF_POD[0], &[("namespace", "shop"), ("pod", &web)]),
            value: -i64::try_from(self.minute / DAY).unwrap(),
        };
        // It lives for two minutes.
        let report = (self.minute % POD_EVERY < 2).then(|| pod(self.minute / POD_EVERY));
        self.archive.take(&Tick {
            at: self.now(),
            clock_is_set: true,
            points: host
                .into_iter()
                .chain([web])
                .chain(report.into_iter().flatten())
                .collect(),
        });
        self.archive.flush(self.now(), true).unwrap();
        self.minute += self.every;
        if self.minute.is_multiple_of(15 * self.every) {
            let conditions = self.archive.tend(self.now());
            assert!(conditions.is_empty(), "{conditions:?}");
        }
    }

    fn live(&mut self, minutes: u64) {
        for _ in 0..minutes / self.every {
            self.minute();
        }
    }

    /// Every value of a Pod that is still there, over all steps: whether it is its own.
    fn check_names(&mut self) -> usize {
        let mut count = 0;
        for (place, metric) in (0..).zip(OF_POD) {
            for step in [None, Some(900), Some(86_400)] {
                let span = step.map_or(2 * DAY, |_| 6 * 366 * DAY);
                for line in self.ask(metric, span, step) {
                    let pod = line.known.series.key.label("pod").unwrap().to_owned();
                    let (kind, number) = pod.split_once('-').unwrap();
                    let number: i64 = number.parse().unwrap();
                    let value = match kind {
                        "web" => -number,
                        _ => number * 10 + place,
                    };
                    for aggregate in &line.aggregates {
                        assert_eq!(
                            (aggregate.min, aggregate.max),
                            (value, value),
                            "{pod} {metric} {step:?}"
                        );
                        count += 1;
                    }
                }
            }
        }
        count
    }

    fn ask(
        &mut self,
        metric: &str,
        minutes: u64,
        step: Option<u64>,
    ) -> Vec<crate::core::series::Line> {
        let to = self.now().wall;
        let back = i64::try_from(minutes * 60_000).unwrap();
        let query = Query {
            select: Select::Matching(metric.to_owned(), Vec::new()),
            from: Wall::from_millis(to.millis() - back),
            to,
            step: step.map(Duration::from_secs),
        };
        self.archive.query(&query).unwrap()
    }

    /// Current figures.
    fn measure(&mut self) -> Figures {
        self.archive.tend(self.now());
        let length = std::fs::metadata(self.directory.join(super::DATABASE))
            .unwrap()
            .len();
        let begun = instant();
        let list = Search {
            limit: 500,
            ..Search::default()
        };
        let listed = self.archive.series(&list).unwrap();
        let listed_at = instant();
        for (metric, minutes, step) in [
            ("host_load1", 60, 30),
            ("host_load1", 7 * DAY, 3_600),
            ("host_load1", 5 * 366 * DAY, 604_800),
        ] {
            assert!(!self.ask(metric, minutes, Some(step)).is_empty());
        }
        Figures {
            bytes: length,
            series: listed.total,
            rows: self.archive.contents.series,
            boots: self.archive.contents.boots.count(),
            list: listed_at.duration_since(begun),
            queries: instant().duration_since(listed_at),
            memory_kb: memory_kb(),
        }
    }
}

#[derive(Debug)]
struct Figures {
    bytes: u64,
    series: usize,
    rows: usize,
    boots: usize,
    list: Duration,
    /// An hour, a week and five years of one series.
    queries: Duration,
    memory_kb: u64,
}

#[expect(
    clippy::disallowed_methods,
    reason = "it measures how long answers take"
)]
fn instant() -> std::time::Instant {
    std::time::Instant::now()
}

fn memory_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("Pss:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn options(boot: u64) -> Options {
    Options {
        disk_bytes_max: 256 << 20,
        boot_id: format!("boot-{boot}"),
        epoch: 3,
    }
}

fn now(minute: u64, booted_at: u64) -> Now {
    let since_boot = Duration::from_secs((minute - booted_at) * 60 + 7);
    Now {
        mono: Mono::since_boot(since_boot),
        wall: Wall::from_millis(NEW_YEAR_MS + i64::try_from(minute * 60_000).unwrap()),
    }
}

/// A directory in memory, where there is one: it is about what is written, not about the disk.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap())
}

#[test]
fn numbers_boots_and_bytes_are_given_back_while_pods_come_and_go() {
    let directory = directory();
    // Everything is over sooner, so that it is over in some seconds.
    let bounds = Bounds {
        kept_minutes: [180, 1_500, 2 * DAY, 3 * DAY],
        series_max: 700,
        boots_max: 4,
    };
    let mut machine = Machine::new(directory.path(), bounds, 1);
    // The circle of numbers closes on the way.
    machine.minute();
    machine.archive.numbers.go_on_behind(NUMBER_MAX - 300);
    let mut middle = None;
    for quarter in 0..16 {
        machine.live(DAY / 4 - 1);
        machine.reboot();
        machine.live(1);
        if quarter == 9 {
            middle = Some(machine.measure());
        }
    }
    assert!(machine.check_names() > 2_000);
    let (middle, end) = (middle.unwrap(), machine.measure());
    // A Pod every five minutes for four days would be 3,456 series.
    assert!(end.series <= 700 + 64 && end.rows <= 700 + 64, "{end:?}");
    assert!(end.boots <= 4, "{end:?}");
    assert!(
        end.bytes <= middle.bytes + middle.bytes / 8,
        "{middle:?} {end:?}"
    );
}

#[test]
fn a_number_is_not_given_again_while_a_sample_has_it() {
    let directory = directory();
    let bounds = Bounds {
        kept_minutes: [180, 1_500, 2 * DAY, 3 * DAY],
        ..Bounds::default()
    };
    let mut machine = Machine::new(directory.path(), bounds, 1);
    machine.live(3 * DAY);
    // From the first one on that has no series: those in between that still have a sample are
    // passed over.
    machine.archive.numbers.go_on_behind(NUMBER_MAX);
    machine.live(DAY);
    machine.check_names();
    // What is delivered names its columns by their own series, too.
    let last = machine.archive.holdings(Stream::Metrics).last;
    let mut from = machine.archive.holdings(Stream::Metrics).gaps[0].range.to() + 1;
    let mut count = 0;
    while let Some(range) = Range::new(from, last) {
        let batch = machine
            .archive
            .read(Stream::Metrics, range, 50_000)
            .unwrap();
        from = batch.range.to() + 1;
        let Body::Samples(samples) = batch.body else {
            panic!("{:?}", batch.range);
        };
        for (number, column) in &samples.block.columns {
            let named = samples.series.iter().find(|(of, _)| of == number).unwrap();
            let Some(pod) = named
                .1
                .key
                .label("pod")
                .and_then(|pod| pod.strip_prefix("report-"))
            else {
                continue;
            };
            let pod: i64 = pod.parse().unwrap();
            for value in column.iter().flatten() {
                assert_eq!(value / 10, pod);
                count += 1;
            }
        }
    }
    assert!(count > 100, "{count}");
}

#[test]
fn a_series_that_comes_back_when_its_samples_are_nearly_gone_keeps_its_number() {
    let directory = directory();
    let bounds = Bounds {
        kept_minutes: [60, 180, 2 * DAY, 3 * DAY],
        ..Bounds::default()
    };
    let mut machine = Machine::new(directory.path(), bounds, 1);
    let back = |machine: &mut Machine<'_>| {
        machine.archive.take(&Tick {
            at: machine.now(),
            clock_is_set: true,
            points: pod(99_999).collect(),
        });
    };
    back(&mut machine);
    for _ in 0..12 {
        machine.live(300);
        back(&mut machine);
        machine.minute();
        machine.archive.tend(machine.now());
        let lines = machine.ask(OF_POD[1], 5, None);
        let values = lines
            .iter()
            .flat_map(|line| &line.aggregates)
            .map(|aggregate| aggregate.mean);
        assert!(values.into_iter().any(|value| value == 999_991));
    }
    machine.check_names();
}

/// Minutes between two flushes of the five years. Retention counts flushes: with a fifth of each
/// bound these are the same years in a fifth of the time.
const EVERY: u64 = 5;

#[test]
fn five_years_of_pods_and_reboots_leave_size_memory_and_answers_as_they_were() {
    if std::env::var_os("PIPEOPS_TORTURE").is_none() {
        println!("five years take some minutes: make torture");
        return;
    }
    let directory = directory();
    let kept = Bounds::default().kept_minutes;
    let bounds = Bounds {
        kept_minutes: kept.map(|minutes| minutes / EVERY),
        ..Bounds::default()
    };
    let mut machine = Machine::new(directory.path(), bounds, EVERY);
    let mut figures = Vec::new();
    for year in 0..5 {
        machine.live(366 * DAY);
        let now = machine.measure();
        println!("year {}: {now:?}", year + 1);
        figures.push(now);
    }
    assert!(machine.check_names() > 10_000);
    let (second, fifth) = (&figures[1], &figures[4]);
    assert!(fifth.series <= 10_000 + 64, "{fifth:?}");
    // Every level but that of six hours is full after a year, and that one is small.
    assert!(
        fifth.bytes <= second.bytes + second.bytes / 10,
        "{figures:?}"
    );
    assert!(fifth.memory_kb <= second.memory_kb + 4_096, "{figures:?}");
    let slack = Duration::from_millis(50);
    assert!(fifth.queries <= second.queries * 2 + slack, "{figures:?}");
    assert!(fifth.list <= second.list * 2 + slack, "{figures:?}");
}

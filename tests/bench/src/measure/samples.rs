//! Cost of samples on a card, and the speed of queries: the archive itself, through
//! simulated days, on an ext4 image of its own whose block device counts what is written.

use std::path::{Path, PathBuf};
use std::time::Duration;

use pipeops_agent::core::outbox::{Body, Range, Stream};
use pipeops_agent::core::series::{Key, Point, Query, Select, Series, Tick};
use pipeops_agent::core::time::{Mono, Now, Wall};
use pipeops_agent::store::telemetry::{DATABASE, Handle, Options, Telemetry};
use smol::block_on;

use super::{Bench, Group, Results};
use crate::agent::Kind;
use crate::os;
use crate::table::{Figure, Measured};

pub(crate) const SAMPLES: Group = Group {
    name: "samples",
    about: "three simulated days of 100 series at 15 s, and a year of four at a minute (takes two minutes)",
    figures: &[
        Figure::new("written to the disk a day, 100 series", "MB"),
        Figure::new("the same with a row a sample", "MB"),
        Figure::new("a sample at rest", "bytes"),
        Figure::new("the same with a row a sample, at rest", "bytes"),
        Figure::new("a series of 24 h", "ms"),
        Figure::new("a series of 30 d", "ms"),
        Figure::new("a series of 1 y", "ms"),
        Figure::new("read for delivery, times real time", "x"),
    ],
    measure,
};

const SERIES: u64 = 100;
const DAY_MINUTES: u64 = 1_440;
const NEW_YEAR_MS: i64 = 1_767_225_600_000;
/// What the block layer counts in, whatever the disk does.
const SECTOR_BYTES: u64 = 512;

fn measure(_: &mut Bench) -> Results {
    vec![(Kind::Ours, measured())]
}

fn measured() -> Result<Vec<Measured>, String> {
    let disk = Disk::new()?;
    let ours = disk.written(|folder| block_on(days(folder, 3)))?;
    let at_rest = length(&disk.path("mount/state").join(DATABASE))?;
    let obvious = disk.written(row_a_sample)?;
    let obvious_at_rest = length(&disk.path("mount/obvious.db"))?;
    let samples = 3 * DAY_MINUTES * 4 * SERIES;
    let year = block_on(year())?;
    let each = |bytes: u64, samples: u64| Measured::new(os::float(bytes) / os::float(samples), "");
    let mut rows = vec![
        Measured::new(
            os::float(ours) / 3e6,
            "sectors of the loop device; ext4's own journal is among them",
        ),
        Measured::new(os::float(obvious) / 1e6, "one transaction a tick, one day"),
        each(at_rest, samples),
        each(obvious_at_rest, DAY_MINUTES * 4 * SERIES),
    ];
    rows.extend(year);
    Ok(rows)
}

/// A value of a series: a third of them noisy, a third drifting, a third nearly always the same, as
/// those of a host are.
fn value(series: u64, tick: u64) -> i64 {
    let mixed = (tick ^ (series << 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    let value = match series % 3 {
        0 => mixed % 2_000,
        1 => 4_000_000 + tick / 40 * 4_096 + (mixed % 4) * 4_096,
        _ => u64::from(mixed.is_multiple_of(200)) + series,
    };
    i64::try_from(value).unwrap_or(0)
}

fn now(tick: u64, every_s: u64) -> Now {
    let mono = Duration::from_secs(tick * every_s);
    Now {
        mono: Mono::since_boot(mono),
        wall: Wall::from_millis(NEW_YEAR_MS + i64::try_from(mono.as_millis()).unwrap_or(0)),
    }
}

fn tick(number: u64, every_s: u64, series: u64) -> Result<Tick, String> {
    let points = (0..series).map(|series| {
        let device = format!("device-{series}");
        let key = Key::new("host_bench_bytes_per_second", &[("device", &device)])
            .map_err(|error| error.to_string())?;
        Ok(Point {
            series: Series { key, digits: 1 },
            value: value(series, number),
        })
    });
    Ok(Tick {
        at: now(number, every_s),
        clock_is_set: true,
        points: points.collect::<Result<_, String>>()?,
    })
}

async fn open(folder: PathBuf) -> Result<Telemetry, String> {
    let options = Options {
        disk_bytes_max: 1 << 30,
        boot_id: "bench".to_owned(),
        epoch: 1,
    };
    let opened = Telemetry::open(folder, options, now(0, 1)).await;
    Ok(opened.map_err(|error| error.sentence())?.0)
}

/// Lives for so many days at 15 s. The agent looks after its files twice a minute; once does the
/// same here.
async fn days(folder: &Path, days: u64) -> Result<(), String> {
    let telemetry = open(folder.join("state")).await?;
    let handle = telemetry.handle();
    let told = |failure: pipeops_agent::store::Failure| failure.to_string();
    for minute in 0..days * DAY_MINUTES {
        for quarter in 1..=4 {
            let tick = tick(minute * 4 + quarter, 15, SERIES)?;
            handle.take(tick).await.map_err(told)?;
        }
        let now = now(minute * 4 + 4, 15);
        handle.flush(now, true).await.map_err(told)?;
        handle.tend(now).await.map_err(told)?;
    }
    telemetry.close().await.map_err(told)
}

/// The schema that comes to mind first, through one day, as safe as ours: each tick is on the disk
/// when it is written.
fn row_a_sample(folder: &Path) -> Result<(), String> {
    let told = |error: rusqlite::Error| error.to_string();
    let mut database = rusqlite::Connection::open(folder.join("obvious.db")).map_err(told)?;
    database
        .execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
            CREATE TABLE sample (series INTEGER, at INTEGER, value REAL, PRIMARY KEY (series, at)) WITHOUT ROWID;",
        )
        .map_err(told)?;
    for number in 1..=DAY_MINUTES * 4 {
        let transaction = database.transaction().map_err(told)?;
        for series in 0..u32::try_from(SERIES).unwrap_or(0) {
            let at = now(number, 15).wall.millis();
            let row = rusqlite::params![
                series,
                at,
                os::float(value(u64::from(series), number).unsigned_abs())
            ];
            transaction
                .prepare_cached("INSERT INTO sample VALUES (?1, ?2, ?3)")
                .and_then(|mut insert| insert.execute(row))
                .map_err(told)?;
        }
        transaction.commit().map_err(told)?;
    }
    database.close().map_err(|(_, error)| told(error))
}

/// Queries over a year of four series at a minute, in memory, and how fast its raw part is read for
/// a receiver.
async fn year() -> Result<Vec<Measured>, String> {
    let told = |failure: pipeops_agent::store::Failure| failure.to_string();
    let folder = PathBuf::from("/dev/shm").join(format!("pipeops-bench-{}", std::process::id()));
    let telemetry = open(folder.clone()).await?;
    let handle = telemetry.handle();
    let minutes = 365 * DAY_MINUTES;
    for minute in 1..=minutes {
        handle.take(tick(minute, 60, 4)?).await.map_err(told)?;
        let now = now(minute, 60);
        handle.flush(now, true).await.map_err(told)?;
        if minute % 30 == 0 {
            handle.tend(now).await.map_err(told)?;
        }
    }
    let end = now(minutes, 60).wall.millis();
    let mut rows = Vec::new();
    for (days, step_s) in [(1, 60), (30, 900), (365, 21_600)] {
        rows.push(asked(&handle, end, days, step_s).await?);
    }
    rows.push(delivered(&handle, minutes).await?);
    telemetry.close().await.map_err(told)?;
    // What is left of it is in memory, and goes with the next start of the machine.
    drop(std::fs::remove_dir_all(folder));
    Ok(rows)
}

async fn asked(handle: &Handle, end: i64, days: i64, step_s: u64) -> Result<Measured, String> {
    let mut took = Vec::new();
    let mut count = 0;
    for _ in 0..9 {
        let query = Query {
            select: Select::Matching(
                "host_bench_bytes_per_second".to_owned(),
                vec![("device".to_owned(), "device-1".to_owned())],
            ),
            from: Wall::from_millis(end - days * 86_400_000),
            to: Wall::from_millis(end),
            step: Some(Duration::from_secs(step_s)),
        };
        let start = os::now();
        let lines = handle
            .query(query)
            .await
            .map_err(|failure| failure.to_string())?;
        took.push(os::since(start).as_secs_f64() * 1e3);
        count = lines.first().map_or(0, |line| line.aggregates.len());
    }
    took.sort_by(f64::total_cmp);
    let median = took.get(took.len() / 2).copied().unwrap_or_default();
    Ok(Measured::new(
        median,
        format!("{count} steps of {step_s} s"),
    ))
}

async fn delivered(handle: &Handle, last: u64) -> Result<Measured, String> {
    let first = last - 2 * DAY_MINUTES + 61;
    let start = os::now();
    let mut from = first;
    while let Some(range) = Range::new(from, last) {
        let batch = handle.read(Stream::Metrics, range, 20_000).await;
        let batch = batch.map_err(|failure| failure.to_string())?;
        if !matches!(batch.body, Body::Samples(_)) {
            return Err(format!("{range:?} is not there"));
        }
        from = batch.range.to() + 1;
    }
    let took = os::since(start).as_secs_f64().max(1e-9);
    let real = os::float(last - first + 1) * 60.0;
    Ok(Measured::new(real / took, "from the disk, without a link"))
}

fn length(path: &Path) -> Result<u64, String> {
    let metadata = std::fs::metadata(path);
    Ok(metadata
        .map_err(|error| format!("cannot look at {}: {error}", path.display()))?
        .len())
}

/// An ext4 image, mounted; unmounted and removed when dropped.
struct Disk {
    folder: PathBuf,
}

impl Disk {
    fn new() -> Result<Self, String> {
        let folder =
            std::env::temp_dir().join(format!("pipeops-bench-disk-{}", std::process::id()));
        let disk = Self { folder };
        let mount = disk.path("mount");
        std::fs::create_dir_all(&mount).map_err(|error| error.to_string())?;
        let (image, mount) = (disk.path("image"), mount.display().to_string());
        let image = image.display().to_string();
        for words in [
            vec!["truncate", "-s", "512M", &image],
            vec!["mkfs.ext4", "-q", &image],
            vec!["mount", "-o", "loop", &image, &mount],
        ] {
            run(&words)?;
        }
        Ok(disk)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// What reaches the block device while something writes below the mount, in bytes.
    fn written(&self, work: impl FnOnce(&Path) -> Result<(), String>) -> Result<u64, String> {
        let mount = self.path("mount");
        run(&["sync", "-f", &mount.display().to_string()])?;
        let before = self.sectors()?;
        work(&mount)?;
        run(&["sync", "-f", &mount.display().to_string()])?;
        Ok((self.sectors()?.saturating_sub(before)) * SECTOR_BYTES)
    }

    /// Sectors written so far: the seventh number of the kernel's block statistics.
    fn sectors(&self) -> Result<u64, String> {
        let mount = self.path("mount").display().to_string();
        let device = run(&["findmnt", "-n", "-o", "SOURCE", &mount])?;
        let device = device.trim().trim_start_matches("/dev/");
        let text = std::fs::read_to_string(format!("/sys/block/{device}/stat"))
            .map_err(|error| format!("{device} has no statistics: {error}"))?;
        let sectors = text
            .split_whitespace()
            .nth(6)
            .and_then(|word| word.parse().ok());
        sectors.ok_or_else(|| format!("{device} has odd statistics: {text}"))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        drop(run(&["umount", &self.path("mount").display().to_string()]));
        drop(std::fs::remove_dir_all(&self.folder));
    }
}

fn run(words: &[&str]) -> Result<String, String> {
    let (program, arguments) = words.split_first().ok_or("no program")?;
    let output = os::program(program).args(arguments).output();
    let output = output.map_err(|error| format!("cannot run {program}: {error}"))?;
    if !output.status.success() {
        let told = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{words:?}: {}", told.trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

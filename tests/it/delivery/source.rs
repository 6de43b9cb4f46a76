//! Records made before a delivery: written into the files of an agent that
//! does not run, and known here.

use std::{collections::BTreeMap, path::Path, time::Duration};

use pipeops_agent::{
    core::{
        audit::{AuditDecision, AuditEntry, Effect, Sum},
        event::{Event, EventContent, LogLine, Source as Told},
        health::Severity,
        journal::{ChangeEnd, Intent, Journal, Outcome},
        outbox::Stream,
        series::{Key, Point, Series, Tick},
        time::{Mono, Now, Wall},
    },
    host::clock,
    store::{
        Handle, Store,
        telemetry::{self, Options, Telemetry},
    },
    tasks::link::deliver::DESTINATION,
};
use plane::{Record, Records};
use smol::block_on;

const SERIES: u64 = 10;
const TICKS: u64 = 4;
const ROWS: u64 = 400;
const SUMS: u64 = 100;
const CHANGES: u64 = 100;
/// Rows of events and of log lines that are kept.
const LINES_MAX: u64 = 8_000;

/// What is on disk.
pub(super) struct Source {
    minutes: u64,
    lines: u64,
    /// The wall clock when the machine was booted, as far as the samples know.
    booted: Wall,
}

/// A number that looks like any other, and is always the same.
fn noise(seed: u64) -> u64 {
    let mixed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 20
}

fn text(kind: u64, seed: u64) -> String {
    let words = (0..12).map(|word| format!("{:x}", noise((seed << 8) + (kind << 4) + word)));
    words.collect::<Vec<_>>().join(" ")
}

fn value(series: u64, minute: u64, tick: u64) -> Option<i64> {
    let number = noise((minute << 16) + (tick << 8) + series);
    // A value in ten is missing.
    (!number.is_multiple_of(10)).then(|| i64::try_from(number % 100_000).unwrap())
}

fn series(number: u64) -> Series {
    Series {
        key: Key::new("test_value", &[("series", &number.to_string())]).unwrap(),
        digits: u8::try_from(number % 4).unwrap(),
    }
}

fn millis(minute: u64, tick: u64) -> u64 {
    minute * 60_000 + tick * 60_000 / TICKS
}

impl Source {
    /// Writes so many minutes into a state directory.
    pub(super) fn write(directory: &Path, minutes: u64) -> Self {
        let ago = i64::try_from((minutes + 5) * 60_000).unwrap();
        let source = Self {
            minutes,
            lines: minutes.min(LINES_MAX),
            booted: Wall::from_millis(clock::now().wall.millis() - ago),
        };
        block_on(source.write_samples(directory));
        block_on(source.write_state(directory));
        source
    }

    fn at(&self, millis: u64) -> Now {
        Now {
            mono: Mono::since_boot(Duration::from_millis(millis)),
            wall: Wall::from_millis(self.booted.millis() + i64::try_from(millis).unwrap()),
        }
    }

    async fn write_samples(&self, directory: &Path) {
        let options = Options {
            disk_bytes_max: 256 << 20,
            boot_id: "a boot that is over".to_owned(),
            epoch: 12_345,
        };
        let opened = Telemetry::open(directory, options, self.at(0)).await;
        let (telemetry, conditions) = opened.unwrap();
        assert_eq!(conditions, []);
        let handle = telemetry.handle();
        for stream in Stream::ALL {
            let destination = DESTINATION.to_owned();
            handle.position(destination, stream).await.unwrap();
        }
        let every = self.minutes.div_ceil(self.lines);
        let mut lines = 0;
        for minute in 1..=self.minutes {
            for tick in 0..TICKS {
                handle.take(self.tick(minute, tick)).await.unwrap();
            }
            if (minute - 1) % every == 0 || self.minutes - minute < self.lines - lines {
                lines += 1;
                self.note(&handle, lines, minute).await;
            }
            let now = self.at(millis(minute, TICKS));
            handle.flush(now, true).await.unwrap();
            if minute % 60 == 0 {
                assert_eq!(handle.tend(now).await.unwrap(), []);
            }
        }
        assert_eq!(lines, self.lines);
        telemetry.close().await.unwrap();
    }

    fn tick(&self, minute: u64, tick: u64) -> Tick {
        let points = (0..SERIES).filter_map(|number| {
            Some(Point {
                series: series(number),
                value: value(number, minute, tick)?,
            })
        });
        Tick {
            at: self.at(millis(minute, tick)),
            clock_is_set: true,
            points: points.collect(),
        }
    }

    async fn note(&self, handle: &telemetry::Handle, line: u64, minute: u64) {
        let at = self.at(millis(minute, 0)).wall;
        let event = Event {
            number: line,
            what: EventContent {
                source: Told::Cluster,
                severity: Severity::Warning,
                subject: "Pod/shop/web-0".to_owned(),
                reason: "BackOff".to_owned(),
                message: text(1, line),
            },
            first: at,
            last: at,
            count: 1,
        };
        handle.note_events(vec![event]).await.unwrap();
        let said = LogLine {
            at,
            subject: "shop/web-0/app".to_owned(),
            text: text(2, line),
        };
        handle.note_logs(vec![said]).await.unwrap();
    }

    async fn write_state(&self, directory: &Path) {
        let (store, loaded) = Store::open(directory, self.booted).await.unwrap();
        assert_eq!(loaded.conditions, []);
        let handle = store.handle();
        for row in 1..=ROWS {
            self.ask(&handle, row).await;
        }
        handle.tend(self.booted).await.unwrap();
        let sums = (ROWS + 1..=ROWS + SUMS).map(|sum| Sum {
            minute: self.booted,
            entry: entry(sum),
            count: sum,
            effect: Effect::default(),
        });
        handle.audit_sums(sums.collect()).await.unwrap();
        for number in 1..=CHANGES {
            let lock = Journal::new().lock(&format!("change {number}")).unwrap();
            let ending = ChangeEnd::new(Outcome::Done).why(text(4, number));
            handle
                .begin_change(&lock, Intent::default(), self.booted)
                .await
                .unwrap();
            handle
                .finish_change(&lock, ending, self.booted)
                .await
                .unwrap();
        }
        store.close().await.unwrap();
    }

    async fn ask(&self, handle: &Handle, row: u64) {
        let ticket = handle.audit_begin(entry(row), self.booted).await.unwrap();
        let effect = Effect {
            sent_bytes: row,
            ..Effect::default()
        };
        let ended = handle.audit_end(ticket, "200".to_owned(), effect).await;
        ended.unwrap();
    }

    /// How many records there are of each stream.
    pub(super) fn counts(&self) -> BTreeMap<&'static str, u64> {
        BTreeMap::from([
            ("metrics", self.minutes),
            ("events", self.lines),
            ("logs", self.lines),
            ("audit", ROWS + SUMS),
            ("outcomes", CHANGES),
        ])
    }

    /// Compares each record with what was written.
    pub(super) fn check(&self, records: &Records, agent_id: &str) {
        for (stream, count) in self.counts() {
            let mut of = records
                .sources
                .iter()
                .filter(|(source, _)| source.stream == stream);
            let (Some((source, received)), None) = (of.next(), of.next()) else {
                panic!("{stream} came from more than one epoch, or from none");
            };
            assert_eq!(source.agent_id, agent_id);
            for sequence in 1..=count {
                let record = &received.records[&sequence];
                self.check_one(stream, sequence, record);
            }
        }
    }

    fn check_one(&self, stream: &str, sequence: u64, record: &Record) {
        match record {
            Record::Minute(minute) => {
                let ticks: Vec<u64> = (0..TICKS).map(|tick| millis(sequence, tick)).collect();
                assert_eq!(minute.ticks, ticks, "minute {sequence}");
                assert!(minute.clock_is_set);
                assert_eq!(minute.wall_offset_ms, self.booted.millis());
                for number in 0..SERIES {
                    let known = series(number);
                    let wanted: Vec<_> = (0..TICKS)
                        .map(|tick| value(number, sequence, tick))
                        .collect();
                    let line = minute
                        .lines
                        .iter()
                        .find(|(key, ..)| *key == known.key.to_string());
                    match line {
                        Some((_, digits, values)) => {
                            assert_eq!((*digits, values), (known.digits, &wanted), "{sequence}");
                        }
                        None => assert!(wanted.iter().all(Option::is_none), "{sequence}"),
                    }
                }
            }
            Record::Row { body, .. } => {
                let (name, wanted) = match stream {
                    "events" => ("message", text(1, sequence)),
                    "logs" => ("text", text(2, sequence)),
                    "audit" => ("what", format!("PUT /{}", text(3, sequence))),
                    _ => ("why", text(4, sequence)),
                };
                assert_eq!(body[name], wanted, "{stream} {sequence}");
            }
            Record::Gap { reason } => panic!("{stream} {sequence} is lost: {reason}"),
        }
    }
}

/// Returns whether there are so many records of each stream, from the first on.
pub(super) fn are_in(counts: &BTreeMap<&'static str, u64>, records: &Records) -> bool {
    counts.iter().all(|(stream, count)| {
        records.sources.iter().any(|(source, received)| {
            source.stream == *stream
                && received.records.contains_key(count)
                && received.missing().iter().all(|(from, _)| from > count)
        })
    })
}

fn entry(number: u64) -> AuditEntry {
    let what = format!("PUT /{}", text(3, number));
    AuditEntry::new("control-plane", &what, AuditDecision::Permitted, "full")
}

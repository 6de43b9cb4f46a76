//! Samples on a real disk: read by the command line, written through I/O errors and power cuts.

mod command;
mod faults;
mod month;
mod power;

use std::{path::Path, time::Duration};

use pipeops_agent::{
    core::{
        health::Condition,
        outbox::{Acknowledgement, Body, Loss, Next, Order, Outbox, Range, Stream},
        series::{Key, Point, Series, Tick},
        time::{Mono, Now, Wall},
    },
    store::telemetry::{Handle, Options, Telemetry},
};

/// 2026-01-01T00:00:00Z.
const NEW_YEAR_MS: i64 = 1_767_225_600_000;
/// Ticks of a minute.
const TICKS: u64 = 4;
/// Who gets the samples.
const PLANE: &str = "plane";

fn series(name: &str) -> Series {
    Series {
        key: Key::new(name, &[("device", "sd\"a")]).unwrap(),
        digits: 1,
    }
}

/// The moment of a tick: one each quarter of a minute. An hour since boot is over with the
/// fortieth.
fn now(tick: u64) -> Now {
    let since = Duration::from_secs(tick * 15);
    Now {
        mono: Mono::since_boot(Duration::from_secs(3_000) + since),
        wall: Wall::from_millis(NEW_YEAR_MS + i64::try_from(since.as_millis()).unwrap()),
    }
}

async fn open(directory: &Path, boot: &str, tick: u64) -> (Telemetry, Vec<Condition>) {
    let options = Options {
        disk_bytes_max: 64 << 20,
        boot_id: boot.to_owned(),
        epoch: 5,
    };
    Telemetry::open(directory, options, now(tick))
        .await
        .unwrap()
}

/// Takes a tick: its number is the value of one series, ten others come with it.
async fn take(handle: &Handle, number: u64) {
    let value = i64::try_from(number).unwrap();
    let others = (0..10).map(|index| Point {
        series: series(&format!("other_{index}")),
        value: value * index % 1009,
    });
    let points = others.chain([Point {
        series: series("number"),
        value,
    }]);
    let tick = Tick {
        at: now(number),
        clock_is_set: true,
        points: points.collect(),
    };
    handle.take(tick).await.unwrap();
}

/// Lives from one tick on for so many minutes and says after each flush up to which tick all is on
/// disk. What was flushed is acknowledged by its receiver, a minute later.
async fn live(handle: &Handle, mut tick: u64, minutes: u64) -> u64 {
    let (epoch, cursor) = handle
        .position(PLANE.to_owned(), Stream::Metrics)
        .await
        .unwrap();
    let mut outbox = Outbox::new(epoch, Order::OldestFirst, cursor);
    for _ in 0..minutes {
        for _ in 0..TICKS {
            take(handle, tick).await;
            tick += 1;
        }
        acknowledge(handle, &mut outbox).await;
        if handle.flush(now(tick), true).await.is_ok() {
            println!("told flushed {}", tick - 1);
        }
        handle.tend(now(tick)).await.unwrap();
    }
    tick
}

async fn acknowledge(handle: &Handle, outbox: &mut Outbox) {
    let holdings = handle.stock(Stream::Metrics).await.unwrap();
    let Some(Next::Records(range)) = outbox.next(holdings.view(), 0, Mono::default()) else {
        return;
    };
    outbox.sent(range, Mono::default());
    let said = Acknowledgement {
        epoch: outbox.epoch(),
        from: range.from(),
        to: range.to(),
    };
    if outbox.acknowledge(said, holdings.last).is_ok() {
        let cursor = outbox.cursor().clone();
        handle
            .settle(PLANE.to_owned(), Stream::Metrics, outbox.epoch(), cursor)
            .await
            .unwrap();
    }
}

/// Opens what is left after the machine went down, and finds each tick up to `told` once, and maybe
/// a few more.
async fn check(directory: &Path, told: u64, what: &str) {
    let (telemetry, conditions) = open(directory, "the boot after", told + 1).await;
    assert!(conditions.is_empty(), "{what}: {conditions:?}");
    let handle = telemetry.handle();
    let holdings = handle.stock(Stream::Metrics).await.unwrap();
    let mut ticks = Vec::new();
    let mut from = 1;
    while let Some(range) = Range::new(from, holdings.last) {
        let batch = handle.read(Stream::Metrics, range, 20_000).await.unwrap();
        from = batch.range.to() + 1;
        let samples = match batch.body {
            Body::Samples(samples) => samples,
            // It was acknowledged and kept for two days.
            Body::Gap(Loss::Retention) => continue,
            body @ (Body::Rows(_) | Body::Gap(_)) => {
                panic!("{what}: {:?} {body:?} of {holdings:?}", batch.range)
            }
        };
        let number = samples
            .series
            .iter()
            .find_map(|(number, known)| (known.key.name() == "number").then_some(*number));
        let column = samples
            .block
            .columns
            .into_iter()
            .find(|(of, _)| Some(*of) == number);
        ticks.extend(column.unwrap().1.into_iter().flatten());
    }
    let first = ticks.first().copied().unwrap_or(1);
    let last = ticks.last().copied().unwrap_or(0);
    assert_eq!(ticks, (first..=last).collect::<Vec<_>>(), "{what}");
    assert!(first == 1 || !holdings.gaps.is_empty(), "{what}: {first}");
    assert!(
        last >= i64::try_from(told).unwrap(),
        "{what}: {last} of {told}"
    );
    // Nobody has what was never on disk.
    let (epoch, cursor) = handle
        .position(PLANE.to_owned(), Stream::Metrics)
        .await
        .unwrap();
    assert_eq!(epoch, holdings.epoch, "{what}");
    assert!(
        cursor.floor() <= holdings.last + 1,
        "{what}: {cursor:?} {holdings:?}"
    );
    // And it goes on.
    take(&handle, told + 2).await;
    handle.flush(now(told + 2), true).await.unwrap();
    let after = handle.stock(Stream::Metrics).await.unwrap();
    assert_eq!(after.last, holdings.last + 1, "{what}");
    telemetry.close().await.unwrap();
}

/// The last number that the child told of.
fn told(text: &str) -> u64 {
    let last = text
        .rsplit("told flushed ")
        .next()
        .filter(|rest| rest.len() < text.len());
    last.map_or(0, |rest| {
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().unwrap()
    })
}

//! A month in a drawer: weeks off line with restarts and kills, then a link that is cut, whose
//! receiver restarts, and whose acknowledgements get lost. What was flushed arrives, each record
//! once in effect.

use std::{collections::BTreeMap, path::Path};

use pipeops_agent::{
    core::{
        event::{Event, EventContent, Source},
        health::Severity,
        outbox::{Acknowledgement, Batch, Body, Next, Order, Outbox, Stream},
        time::Mono,
    },
    store::telemetry::{Handle, Telemetry},
};
use smol::block_on;

use super::{TICKS, now, open, take};

/// Days off line in a test, and in `make torture`.
const DAYS: [u64; 2] = [2, 30];
const DAY_MINUTES: u64 = 1_440;
const STREAMS: [Stream; 2] = [Stream::Metrics, Stream::Events];

/// Random numbers that are the same in each run.
struct Dice(u64);

impl Dice {
    fn one_in(&mut self, count: u64) -> bool {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33).is_multiple_of(count)
    }
}

/// What a receiver has on its own disk: records by what they are known by.
#[derive(Default)]
struct Receiver {
    records: BTreeMap<(Stream, u64, u64), Vec<i64>>,
    seen_again: u64,
}

impl Receiver {
    fn keep(&mut self, stream: Stream, epoch: u64, batch: &Batch) {
        let records: Vec<(u64, Vec<i64>)> = match &batch.body {
            Body::Samples(samples) => {
                let number = samples
                    .series
                    .iter()
                    .find_map(|(number, known)| (known.key.name() == "number").then_some(*number));
                let minutes = samples.block.minutes.iter().map(|(sequence, _)| {
                    let minute = samples.block.cut(*sequence, *sequence);
                    let column = minute
                        .columns
                        .into_iter()
                        .find(|(of, _)| Some(*of) == number);
                    (*sequence, column.unwrap().1.into_iter().flatten().collect())
                });
                minutes.collect()
            }
            Body::Rows(rows) => rows
                .iter()
                .map(|row| {
                    let body: serde_json::Value = serde_json::from_str(&row.body).unwrap();
                    (row.sequence, vec![body["count"].as_i64().unwrap()])
                })
                .collect(),
            Body::Gap(loss) => panic!("{stream:?} {:?}: {loss:?}", batch.range),
        };
        assert_eq!(u64::try_from(records.len()).unwrap(), batch.range.count());
        for (sequence, values) in records {
            let known = self
                .records
                .insert((stream, epoch, sequence), values.clone());
            if let Some(known) = known {
                assert_eq!(known, values, "the same record is the same");
                self.seen_again += 1;
            }
        }
    }

    /// All values of a stream in the order of their records.
    fn values(&self, stream: Stream) -> Vec<i64> {
        let records = self.records.iter().filter(|((of, _, _), _)| *of == stream);
        records.flat_map(|(_, values)| values.clone()).collect()
    }
}

/// The machine, with what was flushed so far.
struct Machine<'a> {
    directory: &'a Path,
    telemetry: Option<Telemetry>,
    tick: u64,
    flushed: BTreeMap<Stream, Vec<i64>>,
    starts: u64,
}

impl Machine<'_> {
    fn handle(&self) -> Handle {
        self.telemetry.as_ref().unwrap().handle()
    }

    /// Starts again on the same boot; what was not flushed is gone.
    async fn restart(&mut self) {
        if let Some(telemetry) = self.telemetry.take() {
            telemetry.close().await.unwrap();
        }
        let (telemetry, conditions) = open(self.directory, "boot", self.tick).await;
        assert!(conditions.is_empty(), "{conditions:?}");
        self.telemetry = Some(telemetry);
        self.starts += 1;
    }

    async fn minute(&mut self, dice: &mut Dice) {
        let handle = self.handle();
        let first = self.tick;
        for _ in 0..TICKS {
            take(&handle, self.tick).await;
            self.tick += 1;
        }
        let at = now(self.tick);
        let has_event = dice.one_in(10);
        if has_event {
            handle.note_events(vec![event(self.tick)]).await.unwrap();
        }
        if dice.one_in(500) {
            // Killed before the flush.
            return self.restart().await;
        }
        handle.flush(at, true).await.unwrap();
        let ticks = (first..self.tick).map(|tick| i64::try_from(tick).unwrap());
        self.flushed
            .entry(Stream::Metrics)
            .or_default()
            .extend(ticks);
        if has_event {
            let count = i64::try_from(self.tick).unwrap();
            self.flushed.entry(Stream::Events).or_default().push(count);
        }
        if dice.one_in(3) {
            handle.tend(at).await.unwrap();
        }
        if dice.one_in(700) {
            self.restart().await;
        }
    }
}

fn event(tick: u64) -> Event {
    Event {
        number: tick,
        what: EventContent {
            source: Source::Agent,
            severity: Severity::Note,
            subject: "link".to_owned(),
            reason: "link.refused".to_owned(),
            message: format!("tick {tick}"),
        },
        first: now(tick).wall,
        last: now(tick).wall,
        count: u32::try_from(tick).unwrap(),
    }
}

/// One session: batches until it is cut, or nothing is left. Returns whether anything was left.
async fn session(machine: &Machine<'_>, receiver: &mut Receiver, dice: &mut Dice) -> bool {
    let handle = machine.handle();
    for stream in STREAMS {
        let (epoch, cursor) = handle.position("plane".to_owned(), stream).await.unwrap();
        let mut outbox = Outbox::new(epoch, Order::NewestFirst, cursor);
        loop {
            let holdings = handle.stock(stream).await.unwrap();
            let Some(next) = outbox.next(holdings.view(), 0, Mono::default()) else {
                break;
            };
            assert!(matches!(next, Next::Records(_)), "{next:?}");
            let batch = handle.read(stream, next.range(), 24_000).await.unwrap();
            outbox.sent(batch.range, Mono::default());
            if dice.one_in(40) {
                // Cut on the way up.
                return true;
            }
            receiver.keep(stream, epoch, &batch);
            if dice.one_in(40) {
                // Durable there, and the acknowledgement is lost with the link.
                return true;
            }
            let said = Acknowledgement {
                epoch,
                from: batch.range.from(),
                to: batch.range.to(),
            };
            outbox.acknowledge(said, holdings.last).unwrap();
            let settled = outbox.cursor().clone();
            handle
                .settle("plane".to_owned(), stream, epoch, settled)
                .await
                .unwrap();
        }
    }
    false
}

#[test]
fn a_month_off_line_arrives_once_through_cuts_kills_and_lost_acknowledgements() {
    let days = DAYS[usize::from(std::env::var_os("PIPEOPS_TORTURE").is_some())];
    let directory = tempfile::tempdir().unwrap();
    let mut machine = Machine {
        directory: directory.path(),
        telemetry: None,
        tick: 1,
        flushed: BTreeMap::new(),
        starts: 0,
    };
    let (mut receiver, mut dice) = (Receiver::default(), Dice(11));
    let mut cuts = 0_u64;
    block_on(async {
        machine.restart().await;
        for stream in STREAMS {
            machine
                .handle()
                .position("plane".to_owned(), stream)
                .await
                .unwrap();
        }
        for _ in 0..days * DAY_MINUTES {
            machine.minute(&mut dice).await;
        }
        // The link is back, and not a good one; the machine lives on, and is killed now and then.
        while session(&machine, &mut receiver, &mut dice).await || cuts < 60 {
            cuts += 1;
            for _ in 0..5 {
                machine.minute(&mut dice).await;
            }
            if dice.one_in(8) {
                machine.restart().await;
            }
        }
        machine.telemetry.take().unwrap().close().await.unwrap();
    });
    for stream in STREAMS {
        assert_eq!(
            receiver.values(stream),
            machine.flushed[&stream],
            "{stream:?}"
        );
    }
    assert!(
        receiver.seen_again > 0,
        "lost acknowledgements are sent again"
    );
    println!(
        "{days} days, {} records, {} starts, {cuts} cuts, {} records sent again",
        receiver.records.len(),
        machine.starts,
        receiver.seen_again
    );
}

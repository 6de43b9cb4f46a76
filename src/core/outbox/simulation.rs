//! Thirty days of minutes over a link that is cut, to a receiver that restarts, from an agent that
//! is killed. All in memory.
//!
//! Invariants, after each step: a cursor never has what the receiver does not have on disk, it has
//! at most sixteen ranges, and at the end every record is at the receiver, or told of by a gap.

use super::*;
use std::collections::BTreeMap;

const EPOCH: u64 = 3;
/// A month.
const MINUTES: u64 = 30 * 24 * 60;

#[derive(Default)]
struct Receiver {
    /// Times that each record was stored: 1, or a duplicate was not recognized.
    durable: BTreeMap<u64, u32>,
    gaps: BTreeMap<u64, u32>,
    duplicates: u64,
}

impl Receiver {
    fn store(&mut self, next: Next) {
        let (kept, range) = match next {
            Next::Records(range) => (&mut self.durable, range),
            Next::Gap(gap) => (&mut self.gaps, gap.range),
        };
        for sequence in range.from()..=range.to() {
            if kept.contains_key(&sequence) {
                self.duplicates += 1;
            } else {
                *kept.entry(sequence).or_default() += 1;
            }
        }
    }

    fn knows(&self, sequence: u64) -> bool {
        self.durable.contains_key(&sequence) || self.gaps.contains_key(&sequence)
    }
}

struct World {
    random: fastrand::Rng,
    now: Mono,
    last: u64,
    outbox: Outbox,
    /// Last flush of the agent.
    on_disk: Cursor,
    gaps: Vec<Gap>,
    deleted_below: u64,
    receiver: Receiver,
    is_linked: bool,
    cuts: u32,
    kills: u32,
    batches: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        Self {
            random: fastrand::Rng::with_seed(seed),
            now: Mono::default(),
            last: 0,
            outbox: Outbox::new(EPOCH, Order::NewestFirst, Cursor::default()),
            on_disk: Cursor::default(),
            gaps: Vec::new(),
            deleted_below: 1,
            receiver: Receiver::default(),
            is_linked: false,
            cuts: 0,
            kills: 0,
            batches: 0,
        }
    }

    fn chance(&mut self, one_in: u32) -> bool {
        self.random.u32(..one_in) == 0
    }

    /// A minute is flushed with the cursor, and what all destinations have is deleted.
    fn minute(&mut self) {
        self.now = self.now.after(Duration::from_secs(60));
        self.last += 1;
        self.on_disk = self.outbox.cursor().clone();
        self.deleted_below = self.deleted_below.max(self.on_disk.floor());
        if self.chance(20_000) {
            self.spend_the_budget();
        }
    }

    /// The oldest tenth goes, whether it was delivered or not.
    fn spend_the_budget(&mut self) {
        let to = self.deleted_below + self.last.saturating_sub(self.deleted_below) / 10;
        let Some(gone) = Range::new(self.deleted_below, to) else {
            return;
        };
        let missing = self.on_disk.missing(gone);
        self.gaps.extend(missing.into_iter().map(|range| Gap {
            range,
            loss: Loss::Budget,
        }));
        self.deleted_below = to + 1;
    }

    fn kill(&mut self) {
        self.kills += 1;
        self.is_linked = false;
        self.outbox = Outbox::new(EPOCH, Order::NewestFirst, self.on_disk.clone());
    }

    fn cut(&mut self) {
        self.cuts += 1;
        self.is_linked = false;
        self.outbox.session_lost();
    }

    /// One batch, with what can go wrong on its way and back.
    fn exchange(&mut self) -> bool {
        let stock = StreamView {
            last: self.last,
            gaps: &self.gaps,
        };
        let jitter = self.random.u16(..);
        let Some(next) = self.outbox.next(stock, jitter, self.now) else {
            let Some(until) = self.outbox.until(self.now) else {
                return false;
            };
            self.now = until;
            return true;
        };
        self.batches += 1;
        let sent = match next {
            Next::Records(all) => {
                let count = self.random.u64(1..=400);
                let to = all.to().min(all.from() + count - 1);
                assert!(all.from() >= self.deleted_below, "{all:?} is deleted");
                Next::Records(Range::new(all.from(), to).unwrap())
            }
            Next::Gap(gap) => Next::Gap(gap),
        };
        self.outbox.sent(sent.range(), self.now);
        match self.random.u32(..60) {
            // Lost on its way, with the session or in a receiver that restarts before it has it on
            // disk.
            0 | 1 => self.cut(),
            // On disk there, and the acknowledgement is lost.
            2 | 3 => self.receiver.store(sent),
            4 => {
                self.receiver.store(sent);
                self.cut();
            }
            5 => {
                self.receiver.store(sent);
                self.kill();
            }
            6 => self.hear_nonsense(sent.range()),
            _ => {
                self.receiver.store(sent);
                let (from, to) = (sent.range().from(), sent.range().to());
                let said = Acknowledgement {
                    epoch: EPOCH,
                    from,
                    to,
                };
                self.outbox.acknowledge(said, self.last).unwrap();
            }
        }
        self.check();
        true
    }

    fn hear_nonsense(&mut self, sent: Range) {
        let before = self.outbox.cursor().clone();
        let (from, to) = (sent.from(), sent.to());
        for (epoch, from, to) in [
            (EPOCH + 1, from, to),
            (EPOCH, from, self.last + 5),
            (EPOCH, to + 1, from),
            (EPOCH, from.saturating_sub(1), to),
            (EPOCH, from, to + 1),
        ] {
            let said = Acknowledgement { epoch, from, to };
            self.outbox.acknowledge(said, self.last).unwrap_err();
        }
        assert_eq!(*self.outbox.cursor(), before);
    }

    fn check(&self) {
        let cursor = self.outbox.cursor();
        assert!(cursor.ranges().count() <= RANGES_MAX);
        for range in cursor.ranges() {
            for sequence in [range.from(), range.to()] {
                assert!(self.receiver.knows(sequence), "{sequence} never arrived");
            }
        }
    }

    fn check_end(&self) {
        assert_eq!(self.outbox.cursor().floor(), self.last + 1);
        for sequence in 1..=self.last {
            assert!(self.receiver.knows(sequence), "{sequence} never arrived");
        }
        assert!(self.receiver.durable.values().all(|stored| *stored == 1));
    }
}

#[test]
fn thirty_days_arrive_once_whatever_happens_on_the_way() {
    for seed in 0..20 {
        let mut world = World::new(seed);
        while world.last < MINUTES {
            world.minute();
            let one_in = if world.is_linked { 60 } else { 120 };
            if world.chance(one_in) {
                if world.is_linked {
                    world.cut();
                } else {
                    world.is_linked = true;
                }
            }
            let mut exchanges = 0;
            while world.is_linked && exchanges < 20 && world.exchange() {
                exchanges += 1;
            }
        }
        for _ in 0..100_000 {
            world.is_linked = true;
            if !world.exchange() {
                break;
            }
        }
        world.check_end();
        let (cuts, kills) = (world.cuts, world.kills);
        assert!(cuts > 100 && kills > 10, "{cuts} cuts and {kills} kills");
        assert!(world.receiver.duplicates > 0 && world.batches > 1000);
    }
}

#[test]
fn thirty_days_of_backlog_are_delivered_after_one_long_outage() {
    let mut world = World::new(1);
    while world.last < MINUTES {
        world.minute();
    }
    let mut batches = 0;
    while world.exchange() {
        batches += 1;
        assert!(batches < 100_000, "it never ends");
    }
    world.check_end();
}

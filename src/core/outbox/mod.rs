//! Outbox: which records of a stream to send next to a destination, what an acknowledgement
//! settles, and what may be deleted.
//!
//! A record has a sequence (1, 2, 3 …) within an epoch of its stream. It is sent until its
//! destination says that it is durable there, however often that takes: the receiver knows a record
//! by (agent, stream, epoch, sequence), so it arrives once in effect. Where records are kept and
//! how they travel is not known here.

use std::time::Duration;

use crate::core::{backoff::Backoff, time::Mono};

mod batch;
mod cursor;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

pub use batch::{Backlog, Batch, Body, Row, Samples, Stream, StreamState};
pub use cursor::{Cursor, RANGES_MAX, Range};

/// Timeout of an acknowledgement. A receiver with a slow disk needs seconds; pings watch the link
/// itself.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(30);
const RETRY_FIRST: Duration = Duration::from_secs(5);
const RETRY_LONGEST: Duration = Duration::from_secs(300);

/// In which order a destination is served.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Order {
    /// The newest record first, so that people see what is; then the past from its oldest end.
    NewestFirst,
    /// As it happened: for receivers that refuse what is older than what they have.
    OldestFirst,
}

/// Reasons why records will never come.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Loss {
    /// The disk budget was spent before they could be delivered.
    Budget,
    /// They cannot be read any more.
    Damaged,
    /// They were kept as long as such records are, and nobody waited for them.
    Retention,
}

impl Loss {
    /// The loss of that word.
    pub fn of(word: &str) -> Option<Self> {
        [Self::Budget, Self::Damaged, Self::Retention]
            .into_iter()
            .find(|loss| loss.as_str() == word)
    }

    /// The word on the wire and on disk.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Budget => "disk budget",
            Self::Damaged => "damaged",
            Self::Retention => "kept long enough",
        }
    }
}

/// Records that will never come. It is delivered and acknowledged in their place.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Gap {
    pub range: Range,
    /// The reason.
    pub loss: Loss,
}

/// Stored records of a stream.
#[derive(Clone, Copy, Debug)]
pub struct StreamView<'a> {
    /// The newest record on disk; 0 where there was none yet.
    pub last: u64,
    /// Gaps, in order and without overlaps.
    pub gaps: &'a [Gap],
}

/// Next item to send.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Next {
    /// As many of these as fit into one message, from the first on; say with [`Outbox::sent`] how
    /// many those were.
    Records(Range),
    Gap(Gap),
}

impl Next {
    #[cfg(feature = "internals")]
    pub const fn range(self) -> Range {
        match self {
            Self::Records(range) => range,
            Self::Gap(gap) => gap.range,
        }
    }
}

/// An acknowledgement, as it was received.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Acknowledgement {
    /// The epoch that it is about.
    pub epoch: u64,
    /// The first record.
    pub from: u64,
    /// The last record.
    pub to: u64,
}

/// Reasons why an acknowledgement was ignored. What it was about is sent again.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Ignored {
    /// Its end is before its beginning, or it begins with 0.
    NoRange,
    /// It is about another epoch.
    Epoch,
    /// It is about records that do not exist yet.
    Future,
    /// It is about records that were not sent in the last batch.
    NotSent,
    /// It would need one range more than are kept: only parts out of the middle of a batch do.
    TooMany,
}

/// The batch that was sent last.
#[derive(Clone, Copy, Debug)]
struct Flight {
    range: Range,
    until: Mono,
}

/// One stream on its way to one destination: at most one batch is in flight.
#[derive(Debug)]
pub struct Outbox {
    epoch: u64,
    order: Order,
    cursor: Cursor,
    flight: Option<Flight>,
    not_before: Mono,
    backoff: Backoff,
}

impl Outbox {
    /// An outbox that goes on behind what was acknowledged before. A cursor of another epoch counts
    /// for nothing: begin with [`Cursor::default`] then.
    pub fn new(epoch: u64, order: Order, cursor: Cursor) -> Self {
        Self {
            epoch,
            order,
            cursor,
            flight: None,
            not_before: Mono::default(),
            backoff: Backoff::new(RETRY_FIRST, RETRY_LONGEST),
        }
    }

    /// The epoch that all its records belong to.
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Acknowledged records, to be stored on disk.
    pub const fn cursor(&self) -> &Cursor {
        &self.cursor
    }

    /// Returns the next item to send; `None` while a batch is in flight, during a wait
    /// ([`Outbox::until`]), or if all is settled. `jitter` is a random number for the wait after a
    /// missing acknowledgement.
    pub fn next(&mut self, stock: StreamView<'_>, jitter: u16, now: Mono) -> Option<Next> {
        if let Some(flight) = self.flight {
            if now < flight.until {
                return None;
            }
            self.flight = None;
            self.not_before = now.after(self.backoff.next(jitter));
        }
        if now < self.not_before {
            return None;
        }
        let range = self
            .newest(stock.last)
            .or_else(|| self.cursor.oldest_missing(stock.last))?;
        Some(cut_at_gaps(range, stock.gaps))
    }

    /// The newest record, where it goes first. Not where that would make one range too many: the
    /// past then goes first, and ranges merge.
    fn newest(&self, last: u64) -> Option<Range> {
        let newest = Range::new(last, last)?;
        let is_first = self.order == Order::NewestFirst
            && !self.cursor.is_settled(last)
            && self.cursor.has_room(newest);
        is_first.then_some(newest)
    }

    /// A batch of these records, or a gap in their place, went out.
    pub fn sent(&mut self, range: Range, now: Mono) {
        self.flight = Some(Flight {
            range,
            until: now.after(ACKNOWLEDGED_WITHIN),
        });
    }

    /// Takes an acknowledgement. Only the range that was sent last is accepted, in whole or in
    /// part.
    pub fn acknowledge(&mut self, said: Acknowledgement, last: u64) -> Result<Range, Ignored> {
        let settled = self.believe(said, last);
        if settled.is_ok() {
            self.backoff.reset();
        }
        settled
    }

    fn believe(&mut self, said: Acknowledgement, last: u64) -> Result<Range, Ignored> {
        let range = Range::new(said.from, said.to).ok_or(Ignored::NoRange)?;
        if said.epoch != self.epoch {
            return Err(Ignored::Epoch);
        }
        if range.to() > last {
            return Err(Ignored::Future);
        }
        let flight = self.flight.ok_or(Ignored::NotSent)?;
        if !flight.range.holds(range) {
            return Err(Ignored::NotSent);
        }
        if !self.cursor.settle(range) {
            return Err(Ignored::TooMany);
        }
        if self.cursor.missing(flight.range).is_empty() {
            self.flight = None;
        }
        Ok(range)
    }

    /// The session is over: what was in flight is sent again in the next one, at once.
    pub fn session_lost(&mut self) {
        self.flight = None;
        self.not_before = Mono::default();
    }

    /// Time until which nothing is sent, unless an acknowledgement comes; `None`: ask now.
    pub fn until(&self, now: Mono) -> Option<Mono> {
        let until = self.flight.map_or(self.not_before, |flight| flight.until);
        (until > now).then_some(until)
    }
}

/// The beginning of a range up to where a gap begins or ends.
fn cut_at_gaps(range: Range, gaps: &[Gap]) -> Next {
    let touched = gaps
        .iter()
        .find_map(|gap| gap.range.common(range).map(|common| (common, gap.loss)));
    match touched {
        None => Next::Records(range),
        Some((common, loss)) if common.from() == range.from() => Next::Gap(Gap {
            range: common,
            loss,
        }),
        Some((common, _)) => {
            Next::Records(Range::new(range.from(), common.from() - 1).unwrap_or(range))
        }
    }
}

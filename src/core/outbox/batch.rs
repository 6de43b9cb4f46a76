//! What is delivered: streams, and the records that go out in one message.

use super::{Gap, Loss, Range, Stock};
use crate::core::{
    series::{Series, block::Block},
    time::Wall,
};

/// Gaps of one stream that are told apart.
const GAPS_MAX: usize = 64;

/// What is delivered. Each has sequences of its own.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Stream {
    /// Samples: a record is all that was measured within a minute.
    Metrics,
    /// What happened in the cluster and to the agent.
    Events,
    /// Lines of failing containers.
    Logs,
    /// What was asked of this machine.
    Audit,
    /// How changes ended.
    Outcomes,
}

impl Stream {
    /// All of them, the most urgent first: a person waits for an outcome, nobody for a log line of last week.
    pub const ALL: [Self; 5] = [
        Self::Outcomes,
        Self::Metrics,
        Self::Events,
        Self::Audit,
        Self::Logs,
    ];

    /// The word on the wire, on disk and for people.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Metrics => "metrics",
            Self::Events => "events",
            Self::Logs => "logs",
            Self::Audit => "audit",
            Self::Outcomes => "outcomes",
        }
    }

    /// The stream of that word.
    pub fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|stream| stream.word() == word)
    }
}

/// Records `range` of a stream, all there are in it, or why there are none.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Batch {
    /// Which.
    pub range: Range,
    /// What they say.
    pub body: Body,
}

/// What the records of a batch say.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Body {
    /// The minutes of the range.
    Samples(Samples),
    /// One for each record of the range, in order.
    Rows(Vec<Row>),
    /// They will never come.
    Gap(Loss),
}

/// Samples that explain themselves: whoever gets them need not know anything that was sent before.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Samples {
    /// The series of the block's columns, by the number that they have there.
    pub series: Vec<(u32, Series)>,
    /// The samples, all of one boot. Its wall clock is the best that is known now; `clock_is_set` says whether it is more than a guess.
    pub block: Block,
}

/// A record that is not of samples.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Row {
    /// Its number in the stream.
    pub sequence: u64,
    /// When it was, by the best clock that was there.
    pub at: Wall,
    /// What it says: a JSON object.
    pub body: String,
}

/// What waits for a destination.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Backlog {
    /// For whom.
    pub destination: String,
    /// Of which stream.
    pub stream: Stream,
    /// How many records; those that are gone and must be told of are counted.
    pub records: u64,
    /// When the oldest of them was, where that is known.
    pub oldest: Option<Wall>,
}

/// What there is of a stream now: [`Stock`] with what it borrows.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Holdings {
    /// What the sequences belong to: it changes when the stream begins anew.
    pub epoch: u64,
    /// The newest record that may go out; 0 where there was none yet.
    pub last: u64,
    /// What is gone, in order and without overlaps.
    pub gaps: Vec<Gap>,
}

impl Holdings {
    /// The same for [`super::Outbox::next`].
    pub fn stock(&self) -> Stock<'_> {
        Stock {
            last: self.last,
            gaps: &self.gaps,
        }
    }

    /// Notes that records are gone. Gaps that meet and have the same reason become one; where there are too many the oldest two do.
    pub fn lose(&mut self, range: Range, loss: Loss) {
        match self.gaps.last_mut() {
            Some(last) if last.loss == loss && last.range.to() + 1 == range.from() => {
                last.range = Range::new(last.range.from(), range.to()).unwrap_or(last.range);
            }
            Some(_) | None => self.gaps.push(Gap { range, loss }),
        }
        self.gaps.sort_by_key(|gap| gap.range);
        while self.gaps.len() > GAPS_MAX {
            let first = self.gaps.remove(0);
            if let Some(next) = self.gaps.first_mut() {
                next.range = Range::new(first.range.from(), next.range.to()).unwrap_or(next.range);
            }
        }
    }
}

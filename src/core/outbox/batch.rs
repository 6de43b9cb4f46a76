//! Streams, and the records that go out in one message.

use super::{Gap, Loss, Range, StreamView};
use crate::core::{
    order::OrderExt as _,
    series::{Series, block::Block},
    time::Wall,
};

/// Maximum number of gap records of one stream. More than that takes damage in 64 separate places.
const GAPS_MAX: usize = 64;

/// Stream of records. Each has sequences of its own.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Stream {
    /// Samples: a record is all that was measured within a minute.
    Metrics,
    /// Events of the cluster and the agent.
    Events,
    /// Lines of failing containers.
    Logs,
    /// Requests to this machine.
    Audit,
    /// Outcomes of changes.
    Outcomes,
}

impl Stream {
    /// All of them, the most urgent first: a person waits for an outcome, nobody for a log line of
    /// last week.
    pub const ALL: [Self; 5] = [
        Self::Outcomes,
        Self::Metrics,
        Self::Events,
        Self::Audit,
        Self::Logs,
    ];

    /// The word on the wire, on disk and for people.
    pub const fn as_str(self) -> &'static str {
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
        Self::ALL.into_iter().find(|stream| stream.as_str() == word)
    }
}

/// Records `range` of a stream, all there are in it, or why there are none.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Batch {
    pub range: Range,
    /// Content of the records.
    pub body: Body,
}

/// Content of the records of a batch.
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
    /// The samples, all of one boot. Its wall clock is the best that is known now; `clock_is_set`
    /// says whether it is more than a guess.
    pub block: Block,
}

/// A record that is not of samples.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Row {
    /// Its number in the stream.
    pub sequence: u64,
    /// Time when it was, by the best clock that was there.
    pub at: Wall,
    /// Content: a JSON object.
    pub body: String,
}

/// Undelivered data of a destination.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Backlog {
    /// Destination.
    pub destination: String,
    /// Stream.
    pub stream: Stream,
    /// Number of records, including gaps that must be reported.
    pub records: u64,
    /// Time when the oldest of them was, where that is known.
    pub oldest: Option<Wall>,
}

/// Stored records of a stream: an owned [`StreamView`].
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct StreamState {
    /// Epoch of the sequences: it changes when the stream starts over.
    pub epoch: u64,
    /// The newest record that may go out; 0 where there was none yet.
    pub last: u64,
    /// Gaps, in order and without overlaps.
    pub gaps: Vec<Gap>,
}

impl StreamState {
    /// The same for [`super::Outbox::next`].
    pub fn view(&self) -> StreamView<'_> {
        StreamView {
            last: self.last,
            gaps: &self.gaps,
        }
    }

    /// Notes that records are gone. Records that are gone already keep their reason.
    ///
    /// Invariant: gaps are in order, do not overlap, are at most [`GAPS_MAX`], and hold no record
    /// that was not passed to this function.
    pub fn lose(&mut self, range: Range, loss: Loss) {
        let mut from = range.from();
        let mut new = Vec::new();
        for known in &self.gaps {
            new.extend(Range::new(from, range.to().min(known.range.from() - 1)));
            from = from.max(known.range.to() + 1);
        }
        new.extend(Range::new(from, range.to()));
        self.gaps
            .extend(new.into_iter().map(|range| Gap { range, loss }));
        self.gaps.order_by_key(|gap| gap.range);
        self.merge(|one, next| one.loss == next.loss);
        if self.gaps.len() > GAPS_MAX {
            self.merge(|_, _| true);
        }
        while self.gaps.len() > GAPS_MAX {
            // Not merged with its neighbour: the records between the two are still here. A gap that
            // is not on the list is found when its records are read, as damage, so a damaged one
            // loses nothing by it.
            let shortest = self
                .gaps
                .iter()
                .enumerate()
                .min_by_key(|(_, gap)| (gap.loss != Loss::Damaged, gap.range.count()));
            let place = shortest.map_or(0, |(place, _)| place);
            self.gaps.remove(place);
        }
    }

    /// Joins neighbours without a record between them, where `may` says so. The reason is that of
    /// the later one.
    fn merge(&mut self, may: impl Fn(&Gap, &Gap) -> bool) {
        let mut merged: Vec<Gap> = Vec::with_capacity(self.gaps.len());
        for gap in self.gaps.drain(..) {
            match merged.last_mut() {
                Some(last) if last.range.to() + 1 == gap.range.from() && may(last, &gap) => {
                    last.range =
                        Range::new(last.range.from(), gap.range.to()).unwrap_or(last.range);
                    last.loss = gap.loss;
                }
                Some(_) | None => merged.push(gap),
            }
        }
        self.gaps = merged;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const LOSSES: [Loss; 3] = [Loss::Budget, Loss::Damaged, Loss::Retention];

    fn range(from: u64, to: u64) -> Range {
        Range::new(from, to).unwrap()
    }

    fn records(gaps: &[Gap]) -> BTreeSet<u64> {
        let ranges = gaps.iter().map(|gap| gap.range);
        ranges.flat_map(|range| range.from()..=range.to()).collect()
    }

    #[test]
    fn more_gaps_than_are_kept_never_declare_a_record_between_them_lost() {
        let mut holdings = StreamState::default();
        // Every third record is damaged; the two after it are still here.
        for third in 0..200 {
            holdings.lose(range(third * 3 + 1, third * 3 + 1), Loss::Damaged);
            assert!(holdings.gaps.len() <= GAPS_MAX);
            let lost = records(&holdings.gaps);
            assert!(lost.iter().all(|record| record % 3 == 1), "{lost:?}");
        }
        assert_eq!(holdings.gaps.len(), GAPS_MAX);
    }

    #[test]
    fn what_retention_takes_around_a_damaged_record_keeps_both_reasons() {
        let mut holdings = StreamState::default();
        holdings.lose(range(11, 11), Loss::Damaged);
        holdings.lose(range(1, 20), Loss::Retention);
        holdings.lose(range(21, 30), Loss::Retention);
        let gaps: Vec<_> = holdings
            .gaps
            .iter()
            .map(|gap| (gap.range, gap.loss))
            .collect();
        let wanted = [
            (range(1, 10), Loss::Retention),
            (range(11, 11), Loss::Damaged),
            (range(12, 30), Loss::Retention),
        ];
        assert_eq!(gaps, wanted);
    }

    #[test]
    fn neighbours_of_different_reasons_are_merged_before_anything_is_forgotten() {
        let mut holdings = StreamState::default();
        for record in 1..=400_u64 {
            let loss = LOSSES[usize::from(record % 2 == 0)];
            holdings.lose(range(record, record), loss);
        }
        assert_eq!(records(&holdings.gaps), (1..=400).collect());
    }

    proptest! {
        #[test]
        fn gaps_hold_what_was_lost_in_order_and_nothing_else(
            lost in prop::collection::vec((1_u64..900, 0_u64..9, 0_usize..3), 0..300)
        ) {
            let mut holdings = StreamState::default();
            let mut model = BTreeSet::new();
            let mut most = 0;
            for (from, more, loss) in lost {
                holdings.lose(range(from, from + more), LOSSES[loss]);
                model.extend(from..=from + more);
                let gaps = &holdings.gaps;
                prop_assert!(gaps.len() <= GAPS_MAX);
                prop_assert!(gaps.windows(2).all(|two| two[0].range.to() < two[1].range.from()));
                let said = records(gaps);
                prop_assert!(said.is_subset(&model));
                // All of it, as long as there was room for each place.
                let places = model.iter().filter(|record| !model.contains(&(*record + 1))).count();
                most = most.max(places);
                if most <= GAPS_MAX {
                    prop_assert_eq!(&said, &model);
                }
            }
        }
    }
}

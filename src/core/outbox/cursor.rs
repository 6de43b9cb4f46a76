//! Acknowledged records of one stream at one destination: a floor below which all is settled, and
//! ranges above it.

use crate::core::order::OrderExt as _;

/// Ranges that a cursor has at most, the one below the floor counted: what is kept on disk stays
/// small whatever the link does.
pub const RANGES_MAX: usize = 16;
/// Islands above the floor.
const ISLANDS_MAX: usize = RANGES_MAX - 1;

/// Records `from..=to` of a stream. Never empty; sequences begin with 1.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Range {
    from: u64,
    to: u64,
}

impl Range {
    /// A range, where it is one. The end of the numbers is left out, so that there is always a next
    /// one.
    pub const fn new(from: u64, to: u64) -> Option<Self> {
        if from == 0 || from > to || to == u64::MAX {
            return None;
        }
        Some(Self { from, to })
    }

    /// Number of the first record.
    pub const fn from(self) -> u64 {
        self.from
    }

    /// Number of the last record.
    pub const fn to(self) -> u64 {
        self.to
    }

    /// Number of records.
    pub const fn count(self) -> u64 {
        self.to - self.from + 1
    }

    /// Returns whether all of `other` lies in it.
    pub const fn holds(self, other: Self) -> bool {
        self.from <= other.from && other.to <= self.to
    }

    /// Intersection.
    pub fn common(self, other: Self) -> Option<Self> {
        Self::new(self.from.max(other.from), self.to.min(other.to))
    }

    /// Returns whether the two make one range.
    const fn touches(self, other: Self) -> bool {
        self.from <= other.to + 1 && other.from <= self.to + 1
    }
}

/// Records that need not be sent again.
///
/// Invariant: islands are in order, do not touch each other nor the floor, and are at most
/// [`RANGES_MAX`] less one.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Cursor {
    floor: u64,
    islands: Vec<Range>,
}

impl Default for Cursor {
    fn default() -> Self {
        Self {
            floor: 1,
            islands: Vec::new(),
        }
    }
}

impl Cursor {
    /// The cursor of these ranges, as they were on disk. What does not fit is left out: it is sent
    /// again.
    pub fn of(ranges: impl IntoIterator<Item = Range>) -> Self {
        let mut cursor = Self::default();
        for range in ranges {
            cursor.settle(range);
        }
        cursor
    }

    /// All ranges in order, to be kept on disk: at most [`RANGES_MAX`].
    pub fn ranges(&self) -> impl Iterator<Item = Range> {
        Range::new(1, self.floor - 1)
            .into_iter()
            .chain(self.islands.iter().copied())
    }

    /// The first record that is not settled: all before it may be deleted.
    #[cfg(feature = "internals")]
    pub const fn floor(&self) -> u64 {
        self.floor
    }

    /// Returns whether a record need not be sent any more.
    pub fn is_settled(&self, sequence: u64) -> bool {
        sequence < self.floor
            || Range::new(sequence, sequence)
                .is_some_and(|one| self.islands.iter().any(|island| island.holds(one)))
    }

    /// Returns whether this range could be settled without one range too many.
    pub fn has_room(&self, range: Range) -> bool {
        range.from <= self.floor
            || self.islands.len() < ISLANDS_MAX
            || self.islands.iter().any(|island| island.touches(range))
    }

    /// Settles a range; `false` where there is no room for it, and nothing was changed.
    pub fn settle(&mut self, range: Range) -> bool {
        if !self.has_room(range) {
            return false;
        }
        let mut whole = range;
        self.islands.retain(|island| {
            let is_apart = !island.touches(whole);
            if !is_apart {
                whole.from = whole.from.min(island.from);
                whole.to = whole.to.max(island.to);
            }
            is_apart
        });
        if whole.from <= self.floor {
            self.floor = self.floor.max(whole.to + 1);
        } else {
            self.islands.push(whole);
            self.islands.order();
        }
        true
    }

    /// The parts of a range that are not settled, in order: what a gap must tell of when the range
    /// is deleted.
    pub fn missing(&self, range: Range) -> Vec<Range> {
        let mut missing = Vec::new();
        let mut from = range.from.max(self.floor);
        for island in &self.islands {
            missing.extend(Range::new(from, range.to.min(island.from - 1)));
            from = from.max(island.to + 1);
        }
        missing.extend(Range::new(from, range.to));
        missing
    }

    /// Number of unsettled records up to `last`.
    pub fn backlog(&self, last: u64) -> u64 {
        let all = Range::new(1, last).map_or_else(Vec::new, |all| self.missing(all));
        all.into_iter().map(Range::count).sum()
    }

    /// The oldest records that are not settled, up to the first that is.
    pub fn oldest_missing(&self, last: u64) -> Option<Range> {
        let to = self
            .islands
            .first()
            .map_or(last, |island| last.min(island.from - 1));
        Range::new(self.floor, to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn range(from: u64, to: u64) -> Range {
        Range::new(from, to).unwrap()
    }

    #[test]
    fn what_is_no_range_is_none() {
        for (from, to) in [(0, 5), (6, 5), (1, u64::MAX), (u64::MAX, u64::MAX)] {
            assert_eq!(Range::new(from, to), None);
        }
        assert_eq!(range(3, 7).count(), 5);
        assert_eq!(range(3, 7).common(range(6, 9)), Some(range(6, 7)));
        assert_eq!(range(3, 7).common(range(8, 9)), None);
    }

    #[test]
    fn ranges_that_meet_become_one() {
        let mut cursor = Cursor::of([range(5, 6), range(9, 9), range(7, 8)]);
        assert_eq!(cursor.ranges().collect::<Vec<_>>(), [range(5, 9)]);
        assert_eq!(cursor.backlog(10), 5);
        assert!(cursor.settle(range(1, 4)));
        assert_eq!(cursor.floor(), 10);
        assert_eq!(cursor.ranges().collect::<Vec<_>>(), [range(1, 9)]);
    }

    #[test]
    fn a_seventeenth_range_is_refused_and_one_that_merges_is_not() {
        let mut cursor = Cursor::of([range(1, 1)]);
        for island in 1..=15 {
            assert!(cursor.settle(range(island * 10, island * 10)));
        }
        assert_eq!(cursor.ranges().count(), RANGES_MAX);
        let before = cursor.clone();
        for seventeenth in [range(1000, 1000), range(3, 3)] {
            assert!(!cursor.settle(seventeenth), "{seventeenth:?}");
            assert_eq!(cursor, before);
        }
        assert!(cursor.settle(range(2, 3)), "beside the floor");
        assert!(cursor.settle(range(151, 152)), "beside an island");
        assert!(cursor.settle(range(11, 19)), "between two");
        assert!(cursor.settle(range(1000, 1000)), "there is room again");
        assert_eq!(cursor.ranges().count(), RANGES_MAX);
    }

    proptest! {
        #[test]
        fn a_cursor_is_the_set_of_what_was_settled(
            settled in prop::collection::vec((1_u64..120, 0_u64..9), 0..60)
        ) {
            let mut cursor = Cursor::default();
            let mut model = BTreeSet::new();
            for (from, more) in settled {
                let range = range(from, from + more);
                if cursor.settle(range) {
                    model.extend(range.from..=range.to);
                }
                prop_assert!(cursor.ranges().count() <= RANGES_MAX);
            }
            for sequence in 1..140 {
                prop_assert_eq!(cursor.is_settled(sequence), model.contains(&sequence));
            }
            let missing: Vec<u64> = cursor
                .missing(range(1, 139))
                .into_iter()
                .flat_map(|part| part.from..=part.to)
                .collect();
            let wanted: Vec<u64> = (1..140).filter(|one| !model.contains(one)).collect();
            prop_assert_eq!(cursor.backlog(139), u64::try_from(wanted.len()).unwrap());
            prop_assert_eq!(missing, wanted);
            prop_assert_eq!(Cursor::of(cursor.ranges()), cursor);
        }
    }
}

//! Joins and splits blocks, minute by minute.

use super::block::{Block, Column};
use litemap::LiteMap;

/// Offsets of the clock that differ by less are the same one: clocks are slewed a little all the
/// time.
const SAME_CLOCK_MS: u64 = 1_000;

impl Block {
    /// Returns whether `other` is of the same boot and by the same clock, so that both can be one
    /// block.
    pub const fn is_like(&self, other: &Self) -> bool {
        self.boot == other.boot
            && self.clock_is_set == other.clock_is_set
            && self.wall_offset_ms.abs_diff(other.wall_offset_ms) < SAME_CLOCK_MS
    }

    /// One block of several that are alike, in their order. The clock is that of the first.
    pub fn joined(blocks: &[Self]) -> Self {
        let mut whole = Self::default();
        if let Some(first) = blocks.first() {
            (whole.boot, whole.wall_offset_ms, whole.clock_is_set) =
                (first.boot, first.wall_offset_ms, first.clock_is_set);
        }
        let mut columns: LiteMap<u32, Column> = LiteMap::new();
        for block in blocks {
            for (series, values) in &block.columns {
                let column = columns.entry(*series).or_default();
                column.resize(whole.ticks.len(), None);
                column.extend_from_slice(values);
            }
            whole.ticks.extend_from_slice(&block.ticks);
            whole.minutes.extend_from_slice(&block.minutes);
        }
        whole.columns = columns
            .into_iter()
            .map(|(series, mut column)| {
                column.resize(whole.ticks.len(), None);
                (series, column)
            })
            .collect();
        whole
    }

    /// The minutes `from..=to` alone. Series without a value in them are left out.
    #[must_use]
    pub fn cut(&self, from: u64, to: u64) -> Self {
        let (mut begin, mut end, mut position) = (0, 0, 0_usize);
        let mut minutes = Vec::new();
        for (sequence, ticks) in &self.minutes {
            let next = position.saturating_add(usize::try_from(*ticks).unwrap_or(usize::MAX));
            if (from..=to).contains(sequence) {
                if minutes.is_empty() {
                    begin = position;
                }
                minutes.push((*sequence, *ticks));
                end = next;
            }
            position = next;
        }
        let part = |values: &[Option<i64>]| values.get(begin..end).unwrap_or_default().to_vec();
        let columns = self.columns.iter().filter_map(|(series, column)| {
            let column = part(column);
            column
                .iter()
                .any(Option::is_some)
                .then_some((*series, column))
        });
        Self {
            boot: self.boot,
            wall_offset_ms: self.wall_offset_ms,
            clock_is_set: self.clock_is_set,
            ticks: self.ticks.get(begin..end).unwrap_or_default().to_vec(),
            minutes,
            columns: columns.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minute(sequence: u64, series: &[(u32, i64)]) -> Block {
        let columns = series
            .iter()
            .map(|(series, value)| (*series, vec![Some(*value), None]));
        Block {
            boot: 1,
            wall_offset_ms: 500,
            clock_is_set: true,
            ticks: vec![sequence * 60_000, sequence * 60_000 + 15_000],
            minutes: vec![(sequence, 2)],
            columns: columns.collect(),
        }
    }

    #[test]
    fn what_was_joined_is_cut_into_the_same_minutes() {
        let minutes = [
            minute(4, &[(1, 10), (2, 20)]),
            minute(5, &[(2, 21)]),
            minute(6, &[(3, 30)]),
        ];
        let whole = Block::joined(&minutes);
        assert_eq!(whole.ticks.len(), 6);
        assert_eq!(
            whole.columns[1],
            (2, vec![Some(20), None, Some(21), None, None, None])
        );
        for (minute, sequence) in minutes.iter().zip(4..) {
            assert_eq!(whole.cut(sequence, sequence), *minute);
        }
        assert_eq!(whole.cut(4, 5), Block::joined(&minutes[..2]));
        assert!(whole.cut(7, 9).ticks.is_empty());
    }

    #[test]
    fn another_clock_or_boot_is_not_alike() {
        let one = minute(1, &[]);
        for (change, is_like) in [(0, true), (999, true), (1_000, false), (-40_000, false)] {
            let other = Block {
                wall_offset_ms: one.wall_offset_ms + change,
                ..one.clone()
            };
            assert_eq!(one.is_like(&other), is_like, "{change}");
        }
        assert!(!one.is_like(&Block {
            boot: 2,
            ..one.clone()
        }));
        assert!(!one.is_like(&Block {
            clock_is_set: false,
            ..one.clone()
        }));
    }
}

//! Downsampling: minimum, mean, maximum and count per step of time.

use super::block::Column;
use litemap::LiteMap;

/// Values of a series over one step.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Cell {
    /// The smallest value.
    pub min: i64,
    /// The mean, rounded to the nearest.
    pub mean: i64,
    /// The largest value.
    pub max: i64,
    /// Number of values: at least one.
    pub count: u32,
}

impl Cell {
    /// One value.
    pub const fn of(value: i64) -> Self {
        Self {
            min: value,
            mean: value,
            max: value,
            count: 1,
        }
    }

    /// Both together.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        let (one, two) = (i128::from(self.count), i128::from(other.count));
        let all = (one + two).max(1);
        let sum = i128::from(self.mean) * one + i128::from(other.mean) * two;
        // Half up, so that the sign does not matter for what the mean of two halves is.
        let mean = (2 * sum + all).div_euclid(2 * all);
        Self {
            min: self.min.min(other.min),
            mean: i64::try_from(mean).unwrap_or(self.mean),
            max: self.max.max(other.max),
            count: self.count.saturating_add(other.count),
        }
    }
}

/// Cells of one series by the beginning of their step, in milliseconds since 1970.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Steps {
    cells: LiteMap<i64, Cell>,
}

impl Steps {
    /// Adds values of a moment to the step that it lies in. Steps begin at whole multiples of their
    /// length.
    pub fn add(&mut self, at_ms: i64, step_ms: i64, cell: Cell) {
        let begin = at_ms.saturating_sub(at_ms.rem_euclid(step_ms.max(1)));
        self.cells
            .entry(begin)
            .and_modify(|known| *known = known.with(cell))
            .or_insert(cell);
    }

    /// The cells in order.
    pub fn iter(&self) -> impl Iterator<Item = (i64, Cell)> {
        self.cells.iter().map(|(at, cell)| (*at, *cell))
    }

    /// The beginning of the first and of the last step.
    pub fn bounds(&self) -> Option<(i64, i64)> {
        Some((*self.cells.first()?.0, *self.cells.last()?.0))
    }

    /// `count` steps from `begin` on as columns: how many values, mean, and how far the smallest
    /// and the largest are from it.
    pub fn columns(&self, begin: i64, step_ms: i64, count: usize) -> [Column; 4] {
        let mut columns: [Column; 4] = Default::default();
        let mut at = begin;
        for _ in 0..count {
            let cell = self.cells.get(&at);
            let values = cell.map(|cell| {
                [
                    i64::from(cell.count),
                    cell.mean,
                    cell.mean.wrapping_sub(cell.min),
                    cell.max.wrapping_sub(cell.mean),
                ]
            });
            for (index, column) in columns.iter_mut().enumerate() {
                column.push(values.and_then(|values| values.get(index).copied()));
            }
            at = at.saturating_add(step_ms);
        }
        columns
    }
}

/// Reads what [`Steps::columns`] wrote: the beginning of each step that has values, and those.
pub fn cells(columns: &[Column], begin: i64, step_ms: i64) -> Vec<(i64, Cell)> {
    let [counts, means, below, above] = columns else {
        return Vec::new();
    };
    let rows = counts.iter().zip(means).zip(below.iter().zip(above));
    let mut at = begin;
    let mut found = Vec::new();
    for ((count, mean), (below, above)) in rows {
        if let (Some(count), Some(mean), Some(below), Some(above)) = (count, mean, below, above) {
            let cell = Cell {
                min: mean.wrapping_sub(*below),
                mean: *mean,
                max: mean.wrapping_add(*above),
                count: u32::try_from(*count).unwrap_or(u32::MAX),
            };
            found.push((at, cell));
        }
        at = at.saturating_add(step_ms);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_step_knows_the_smallest_mean_and_largest() {
        let mut steps = Steps::default();
        for (at, value) in [(-1, 7), (0, 1), (15_000, 2), (59_999, -9), (60_000, 5)] {
            steps.add(at, 60_000, Cell::of(value));
        }
        let cell = |min, mean, max, count| Cell {
            min,
            mean,
            max,
            count,
        };
        let all: Vec<_> = steps.iter().collect();
        assert_eq!(
            all,
            [
                (-60_000, cell(7, 7, 7, 1)),
                (0, cell(-9, -2, 2, 3)),
                (60_000, cell(5, 5, 5, 1)),
            ]
        );
        assert_eq!(steps.bounds(), Some((-60_000, 60_000)));
    }

    proptest! {
        #[test]
        fn cells_are_read_back_as_they_were_written(
            values in prop::collection::vec((0_i64..50, any::<i32>()), 1..80)
        ) {
            let mut steps = Steps::default();
            for (step, value) in values {
                steps.add(step * 900_000 + 17, 900_000, Cell::of(i64::from(value)));
            }
            let columns = steps.columns(0, 900_000, 50);
            prop_assert_eq!(cells(&columns, 0, 900_000), steps.iter().collect::<Vec<_>>());
        }

        #[test]
        fn the_mean_of_parts_is_near_the_mean_of_all(values in prop::collection::vec(any::<i32>(), 1..60)) {
            let whole = values.iter().map(|value| Cell::of(i64::from(*value))).reduce(Cell::with).unwrap();
            let sum: i64 = values.iter().map(|value| i64::from(*value)).sum();
            let mean = sum / i64::try_from(values.len()).unwrap();
            // Half of the last digit for each of the additions.
            prop_assert!(whole.mean.abs_diff(mean) <= u64::try_from(values.len()).unwrap());
            prop_assert_eq!(whole.max, i64::from(*values.iter().max().unwrap()));
            prop_assert_eq!(whole.min, i64::from(*values.iter().min().unwrap()));
        }
    }
}

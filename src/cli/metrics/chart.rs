//! Charts in a terminal: Braille patterns, two points wide and four high each.

use std::time::Duration;

use crate::core::{
    series::{Aggregate, Line, decimal},
    time::Wall,
};

/// Rows of a chart, in characters.
const ROWS: usize = 8;
/// Points of a character.
const DOTS: (usize, usize) = (2, 4);
/// The narrowest and the widest chart, in characters.
const WIDTHS: (usize, usize) = (40, 200);
/// Width left of the chart: the longest value and a space.
const MARGIN: usize = 12;
/// The bit of each point of a character, row by row (Unicode, block Braille Patterns).
const BITS: [[u32; 2]; 4] = [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]];

/// Width and time range of a chart.
#[derive(Debug)]
pub(super) struct Area {
    from: Wall,
    to: Wall,
    width: usize,
}

impl Area {
    /// A chart of this time range on a terminal of this width.
    pub(super) fn new(from: Wall, to: Wall, columns: usize) -> Self {
        let width = columns.saturating_sub(MARGIN).clamp(WIDTHS.0, WIDTHS.1);
        Self { from, to, width }
    }

    /// Duration of one point.
    pub(super) fn step(&self) -> Duration {
        let points = i64::try_from(self.points()).unwrap_or(1);
        let span = self.to.millis().saturating_sub(self.from.millis());
        Duration::from_millis(u64::try_from(span / points).unwrap_or(0).max(1))
    }

    const fn points(&self) -> usize {
        self.width * DOTS.0
    }

    /// The rows of a chart, with the largest and the smallest value at its side and the time below.
    pub(super) fn draw(&self, line: &Line, words: impl Fn(&str) -> String) -> Vec<String> {
        let low = line
            .aggregates
            .iter()
            .map(|aggregate| aggregate.min)
            .min()
            .unwrap_or(0);
        let high = line
            .aggregates
            .iter()
            .map(|aggregate| aggregate.max)
            .max()
            .unwrap_or(0);
        let mut dots = vec![vec![0_u32; self.width]; ROWS];
        for aggregate in &line.aggregates {
            let Some(column) = self.column(aggregate) else {
                continue;
            };
            let (bottom, top) = (row(aggregate.min, low, high), row(aggregate.max, low, high));
            for row in bottom..=top {
                set(&mut dots, column, row);
            }
        }
        let digits = line.known.series.digits;
        let label = |value| words(&decimal(value, digits));
        let mut rows: Vec<String> = dots
            .iter()
            .enumerate()
            .map(|(index, cells)| {
                let label = match index {
                    0 => label(high),
                    _ if index + 1 == ROWS => label(low),
                    _ => String::new(),
                };
                let cells: String = cells
                    .iter()
                    .map(|bits| char::from_u32(0x2800 + bits).unwrap_or(' '))
                    .collect();
                format!("{label:>width$} {cells}", width = MARGIN - 1)
            })
            .collect();
        rows.push(self.times());
        rows
    }

    /// The point that a value belongs to.
    fn column(&self, aggregate: &Aggregate) -> Option<usize> {
        let since = aggregate
            .at
            .millis()
            .saturating_sub(self.from.millis())
            .max(0);
        let span = self.to.millis().saturating_sub(self.from.millis()).max(1);
        let points = i128::try_from(self.points()).ok()?;
        let column = i128::from(since) * points / i128::from(span);
        usize::try_from(column)
            .ok()
            .filter(|column| *column < self.points())
    }

    fn times(&self) -> String {
        let short = |wall: Wall| {
            let text = wall.rfc3339();
            text.get(..16).unwrap_or(&text).replace('T', " ")
        };
        let (from, to) = (short(self.from), format!("{} UTC", short(self.to)));
        let gap = self.width.saturating_sub(from.chars().count());
        format!("{:margin$}{from}{to:>gap$}", "", margin = MARGIN)
    }
}

/// The row of a value, counted in points from below.
fn row(value: i64, low: i64, high: i64) -> usize {
    let rows = i128::try_from(ROWS * DOTS.1 - 1).unwrap_or(0);
    let span = (i128::from(high) - i128::from(low)).max(1);
    let up = (i128::from(value) - i128::from(low)) * rows / span;
    usize::try_from(up).unwrap_or(0)
}

fn set(dots: &mut [Vec<u32>], column: usize, row: usize) {
    let from_top = (ROWS * DOTS.1 - 1).saturating_sub(row);
    let bit = BITS
        .get(from_top % DOTS.1)
        .and_then(|bits| bits.get(column % DOTS.0));
    let cell = dots
        .get_mut(from_top / DOTS.1)
        .and_then(|cells| cells.get_mut(column / DOTS.0));
    if let (Some(bit), Some(cell)) = (bit, cell) {
        *cell |= bit;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::series::{Key, Known, Series};

    #[test]
    fn a_ramp_goes_from_one_corner_to_the_other_and_a_gap_is_empty() {
        let area = Area::new(Wall::from_millis(0), Wall::from_millis(8_000_000), 52);
        assert_eq!(area.step(), Duration::from_secs(100));
        let aggregates = (0..80)
            .filter(|index| !(40..60).contains(index))
            .map(|index| Aggregate {
                at: Wall::from_millis(index * 100_000),
                min: index,
                mean: index,
                max: index,
                count: 1,
            });
        let line = Line {
            known: Known {
                number: 1,
                series: Series {
                    key: Key::new("x", &[]).unwrap(),
                    digits: 1,
                },
            },
            aggregates: aggregates.collect(),
        };
        let rows = area.draw(&line, str::to_owned);
        let cells = |row: usize| rows[row].chars().skip(MARGIN).collect::<Vec<_>>();
        let is_empty = |cell: char| cell == '\u{2800}';
        assert_eq!(rows[0].split_whitespace().next(), Some("7.9"));
        assert_eq!(rows[ROWS - 1].split_whitespace().next(), Some("0"));
        assert!(!is_empty(cells(0)[39]) && !is_empty(cells(ROWS - 1)[0]));
        for column in 0..40 {
            let marks = (0..ROWS)
                .filter(|row| !is_empty(cells(*row)[column]))
                .count();
            let is_gap = (20..30).contains(&column);
            assert_eq!(marks == 0, is_gap, "{column}\n{}", rows.join("\n"));
        }
        assert_eq!(
            rows[ROWS].trim_start(),
            "1970-01-01 00:00    1970-01-01 02:13 UTC"
        );
    }
}

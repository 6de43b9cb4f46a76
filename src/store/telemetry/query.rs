//! Queries of people: a series over any period at any step, from the levels that still have it,
//! each moment once.

use std::collections::BTreeMap;

use rusqlite::Connection;

use super::{
    boots::Boots,
    chunk::{self, Chunk},
    compact, journal,
    series::{self, Stored},
    unsigned,
};
use crate::core::{
    order::{GatherExt as _, OrderExt as _},
    retention::Resolution,
    series::{
        Aggregate, Known, Line, Query,
        block::Block,
        steps::{Cell, Steps},
    },
    time::Wall,
};

/// Values of one answer at most: a chart has a thousand, an export goes on where the last one
/// ended.
const SPOTS_MAX: usize = 100_000;

/// Result of a query.
#[derive(Debug)]
pub(super) enum Answered {
    Lines(Vec<Line>),
    /// More than [`SPOTS_MAX`] values.
    TooMany,
}

/// Samples that are not on disk yet.
#[derive(Debug, Default)]
pub(super) struct Fresh {
    /// Series that are meant and have no number there yet.
    pub(super) series: Vec<Known>,
    /// The newest ticks.
    pub(super) block: Block,
}

/// Answers a question by what is on disk and what comes there with the next flush. The connection
/// must be in a transaction where somebody else may write.
pub(super) fn answer(
    connection: &Connection,
    boots: &Boots,
    query: &Query,
    fresh: Fresh,
) -> rusqlite::Result<Answered> {
    let stored = series::select(connection, &query.select, 0)?;
    let mut wanted: Vec<Known> = stored.iter().map(|stored| stored.known.clone()).collect();
    wanted.extend(fresh.series);
    let level = Resolution::for_step(query.step);
    let span = (query.from.millis(), query.to.millis());
    let mut answer = Answer {
        level,
        span,
        found: wanted
            .iter()
            .map(|known| (known.number, SeriesValues::default()))
            .gather(),
        count: 0,
    };
    for of in Resolution::ALL {
        let at: Vec<_> = stored
            .iter()
            .filter(|stored| stored.level(level) == of)
            .collect();
        if !at.is_empty() && !answer.chunks(connection, boots, &at, of)? {
            return Ok(Answered::TooMany);
        }
    }
    let journal = journal::all(connection, boots)?;
    let written = journal.into_iter().filter_map(|minute| minute.block);
    for block in written.chain([fresh.block]) {
        answer.block(&block);
    }
    let step_ms = query
        .step
        .map(|step| i64::try_from(step.as_millis()).unwrap_or(i64::MAX).max(1));
    let lines = wanted.into_iter().filter_map(|known| {
        let aggregates = answer.found.remove(&known.number)?.aggregates(step_ms);
        (!aggregates.is_empty()).then_some(Line { known, aggregates })
    });
    Ok(Answered::Lines(lines.collect()))
}

/// An answer that is being put together.
struct Answer {
    /// The level that fits the step that was asked for.
    level: Resolution,
    span: (i64, i64),
    found: BTreeMap<u32, SeriesValues>,
    count: usize,
}

impl Answer {
    /// Takes what chunks have of some series, those of level `of` where there are any. `false`: it
    /// is too much.
    fn chunks(
        &mut self,
        connection: &Connection,
        boots: &Boots,
        series: &[&Stored],
        of: Resolution,
    ) -> rusqlite::Result<bool> {
        let mut heads = Heads::default();
        for chunk in plan(connection, of, self.span)? {
            let head = heads.of(connection, boots, &chunk)?;
            for stored in series {
                if stored.born > chunk.minutes.to() {
                    continue;
                }
                let number = stored.known.number;
                for (at, cell) in compact::values(connection, &chunk, number, head)? {
                    self.take(number, at, cell, chunk.level);
                }
                if self.count > SPOTS_MAX {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Takes the values of a block that is not in a chunk yet.
    fn block(&mut self, block: &Block) {
        for (number, column) in &block.columns {
            for (tick, value) in block.ticks.iter().zip(column) {
                if let Some(value) = value {
                    self.take(
                        *number,
                        block.wall_ms(*tick),
                        Cell::of(*value),
                        Resolution::Raw,
                    );
                }
            }
        }
    }

    fn take(&mut self, number: u32, at: i64, cell: Cell, is: Resolution) {
        if at >= self.span.0
            && at < self.span.1
            && let Some(found) = self.found.get_mut(&number)
        {
            self.count = self.count.saturating_add(1);
            found.add(at, cell, (self.level, is));
        }
    }
}

/// Values found of one series: single values as they are, steps of the wanted level merged.
#[derive(Default)]
struct SeriesValues {
    single: Vec<(i64, Cell)>,
    steps: Steps,
}

impl SeriesValues {
    fn add(&mut self, at: i64, cell: Cell, (wanted, is): (Resolution, Resolution)) {
        match wanted.step_ms() {
            // Finer than wanted, or as wanted: both halves of a step that lies in two pieces are
            // one.
            Some(step_ms) if is <= wanted => self.steps.add(at, step_ms, cell),
            _ => self.single.push((at, cell)),
        }
    }

    fn aggregates(self, step_ms: Option<i64>) -> Vec<Aggregate> {
        let mut all = self.single;
        all.extend(self.steps.iter());
        if let Some(step_ms) = step_ms {
            let mut steps = Steps::default();
            for (at, cell) in all {
                steps.add(at, step_ms, cell);
            }
            all = steps.iter().collect();
        }
        all.order_by_key(|(at, _)| *at);
        all.into_iter()
            .map(|(at, cell)| Aggregate {
                at: Wall::from_millis(at),
                min: cell.min,
                mean: cell.mean,
                max: cell.max,
                count: cell.count,
            })
            .collect()
    }
}

/// The ticks of a chunk of single values, read once for all its series.
#[derive(Default)]
struct Heads {
    current: Option<Block>,
}

impl Heads {
    fn of(
        &mut self,
        connection: &Connection,
        boots: &Boots,
        chunk: &Chunk,
    ) -> rusqlite::Result<Option<&Block>> {
        self.current = match chunk.level {
            Resolution::Raw => Some(chunk.ticks(connection, boots)?.unwrap_or_default()),
            Resolution::Minutes | Resolution::Quarters | Resolution::SixHours => None,
        };
        Ok(self.current.as_ref())
    }
}

/// The chunks that have each minute of a span once: of the wanted level; of finer ones what is not
/// in it yet; of coarser ones what is gone from it already.
fn plan(
    connection: &Connection,
    wanted: Resolution,
    (from, to): (i64, i64),
) -> rusqlite::Result<Vec<Chunk>> {
    // A chunk is at most thirty days long, and a few hours more where the clock was set in it.
    const LONGEST_MS: i64 = 40 * 86_400_000;
    let all = chunk::list(
        connection,
        "wall_from < ?2 AND wall_from > ?1 - ?4 AND wall_to > ?1 AND (level >= ?3 OR is_rolled = 0)
        ORDER BY wall_from",
        [from, to, wanted.number(), LONGEST_MS],
    )?;
    let mut chosen = Vec::new();
    // Minutes up to here are in what was chosen of a coarser level.
    let mut covered = 0;
    for level in Resolution::ALL.into_iter().rev() {
        let finer = Resolution::ALL
            .into_iter()
            .rev()
            .find(|finer| *finer < level);
        let begin = match finer {
            Some(finer) if level > wanted => first_minute(connection, finer)?,
            _ => u64::MAX,
        };
        let mut reached = covered;
        for chunk in all.iter().filter(|chunk| chunk.level == level) {
            let is_wanted = level <= wanted || chunk.minutes.from() < begin;
            if is_wanted && chunk.minutes.from() > covered {
                chosen.push(*chunk);
                reached = reached.max(chunk.minutes.to());
            }
        }
        if level > wanted {
            covered = reached;
        }
    }
    chosen.order_by_key(|chunk| chunk.wall.0);
    Ok(chosen)
}

/// The first minute that a level or a finer one has. Where there is none, all is in the coarser
/// ones.
fn first_minute(connection: &Connection, level: Resolution) -> rusqlite::Result<u64> {
    let first: Option<i64> = connection
        .prepare_cached("SELECT min(sequence_from) FROM chunk WHERE level = ?1")?
        .query_row([level.number()], |row| row.get(0))?;
    Ok(first.map_or(u64::MAX, unsigned))
}

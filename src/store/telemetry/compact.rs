//! Compaction: minutes of the journal become an hour, hours become steps of a minute, those of a
//! day steps of a quarter of an hour, those of thirty days steps of six hours. One transaction
//! each.

use rusqlite::{Connection, Transaction};

use super::{
    boots::Boots,
    chunk::{self, Chunk},
    journal, series,
};
use crate::core::{
    order::OrderExt as _,
    outbox::Range,
    retention::Resolution,
    series::{
        block::Block,
        steps::{Cell, Steps},
    },
};

/// Chunks that become one at most.
const GROUP_MAX: usize = 64;

/// Compaction that is due.
#[derive(Debug)]
pub(super) enum Compaction {
    /// These minutes are an hour that is over.
    Hour(Range, Block),
    /// This minute cannot be read.
    Damaged(Range),
    /// These chunks become one of the next level.
    Roll(Resolution, Vec<Chunk>),
}

/// Next compaction that is due. `now_hour` is the running boot and its hour: its minutes stay in
/// the journal.
pub(super) fn next(
    connection: &Connection,
    boots: &Boots,
    now_hour: (u32, u64),
) -> rusqlite::Result<Option<Compaction>> {
    if let Some(hour) = hour(connection, boots, now_hour)? {
        return Ok(Some(hour));
    }
    for level in [Resolution::Raw, Resolution::Minutes, Resolution::Quarters] {
        if let Some(chunks) = group(connection, level, now_hour.0)? {
            return Ok(Some(Compaction::Roll(level, chunks)));
        }
    }
    Ok(None)
}

fn hour(
    connection: &Connection,
    boots: &Boots,
    now_hour: (u32, u64),
) -> rusqlite::Result<Option<Compaction>> {
    let Some(all) = journal::bounds(connection)? else {
        return Ok(None);
    };
    // To look at the first is enough, nearly always.
    let is_over = |block: &Block| (block.boot, journal::hour(block)) != now_hour;
    if journal::get(connection, all.from())?.is_some_and(|first| !is_over(&first)) {
        return Ok(None);
    }
    let mut blocks: Vec<Block> = Vec::new();
    let mut range = None;
    for minute in journal::list(connection, boots, all)? {
        let Some(one) = Range::new(minute.sequence, minute.sequence) else {
            continue;
        };
        let Some(block) = minute.block else {
            if range.is_none() {
                return Ok(Some(Compaction::Damaged(one)));
            }
            break;
        };
        let goes_on = match (blocks.first(), range) {
            (Some(first), Some(so_far)) => {
                first.is_like(&block)
                    && journal::hour(first) == journal::hour(&block)
                    && Range::to(so_far) + 1 == one.from()
            }
            _ => true,
        };
        if !goes_on {
            break;
        }
        let from = range.unwrap_or(one).from();
        range = Range::new(from, one.to());
        blocks.push(block);
    }
    Ok(range.map(|range| Compaction::Hour(range, Block::joined(&blocks))))
}

/// The oldest chunks of a level that become one chunk of the next, where their span is over.
fn group(
    connection: &Connection,
    level: Resolution,
    boot: u32,
) -> rusqlite::Result<Option<Vec<Chunk>>> {
    // Where the clock of a chunk is not known yet it cannot be put into steps of time. It never
    // will be of a boot that is over.
    let condition = format!(
        "level = ?1 AND is_rolled = 0 AND (boot IS NULL OR boot != {boot}) ORDER BY sequence_from LIMIT {GROUP_MAX}"
    );
    let waiting = chunk::list(connection, &condition, [level.number()])?;
    let Some(first) = waiting.first() else {
        return Ok(None);
    };
    let Some(span) = level.span_ms() else {
        return Ok(Some(vec![*first]));
    };
    let day = first.wall.0.div_euclid(span);
    let count = waiting
        .iter()
        .take_while(|chunk| chunk.wall.0.div_euclid(span) == day)
        .count();
    // The span is over when something of another one is there. A machine that boots all the time
    // has more pieces than that.
    let is_over = count < waiting.len() || count >= GROUP_MAX;
    Ok(is_over.then(|| waiting.into_iter().take(count).collect()))
}

/// Carries a compaction out.
pub(super) fn compact(
    transaction: &Transaction<'_>,
    boots: &Boots,
    compaction: &Compaction,
) -> rusqlite::Result<()> {
    match compaction {
        Compaction::Hour(range, block) => {
            chunk::insert_raw(transaction, block, *range)?;
            journal::delete(transaction, *range)
        }
        Compaction::Damaged(range) => journal::delete(transaction, *range),
        Compaction::Roll(level, chunks) => roll(transaction, boots, *level, chunks),
    }
}

fn roll(
    transaction: &Transaction<'_>,
    boots: &Boots,
    level: Resolution,
    chunks: &[Chunk],
) -> rusqlite::Result<()> {
    let (Some(first), Some(last), Some(next)) = (chunks.first(), chunks.last(), level.coarser())
    else {
        return Ok(());
    };
    let Some(step_ms) = next.step_ms() else {
        return Ok(());
    };
    let mut numbers = Vec::new();
    for chunk in chunks {
        numbers.extend(chunk.series(transaction)?);
    }
    numbers.order();
    numbers.dedup();
    let ticks = match level {
        Resolution::Raw => first.ticks(transaction, boots)?,
        Resolution::Minutes | Resolution::Quarters | Resolution::SixHours => None,
    };
    let mut series = Vec::with_capacity(numbers.len());
    for stored in series::of_numbers(transaction, numbers)? {
        if !stored.is_kept(next, last.minutes.to()) {
            continue;
        }
        let number = stored.known.number;
        let mut steps = Steps::default();
        for chunk in chunks
            .iter()
            .filter(|chunk| stored.born <= chunk.minutes.to())
        {
            for (at, cell) in values(transaction, chunk, number, ticks.as_ref())? {
                steps.add(at, step_ms, cell);
            }
        }
        series.push((number, steps));
    }
    let minutes = Range::new(first.minutes.from(), last.minutes.to()).unwrap_or(first.minutes);
    chunk::insert_steps(transaction, (next, step_ms), minutes, &series)?;
    for chunk in chunks {
        chunk::set_rolled(transaction, chunk)?;
    }
    Ok(())
}

/// The values of one series in a chunk of any level; `ticks` are those of a chunk of single values.
pub(super) fn values(
    connection: &Connection,
    chunk: &Chunk,
    series: u32,
    ticks: Option<&Block>,
) -> rusqlite::Result<Vec<(i64, Cell)>> {
    let Some(block) = ticks else {
        return chunk.steps(connection, series);
    };
    let column = chunk.column(connection, series, block.ticks.len())?;
    let values = block.ticks.iter().zip(column.unwrap_or_default());
    Ok(values
        .filter_map(|(tick, value)| Some((block.wall_ms(*tick), Cell::of(value?))))
        .collect())
}

//! Records for delivery, wherever they are by now: minutes of the journal and of finished hours,
//! events, log lines.

use std::collections::BTreeMap;

use rusqlite::Connection;

use super::{boots::Boots, chunk, journal, rows, series, signed, unsigned};
use crate::core::{
    order::GatherExt as _,
    outbox::{Batch, Body, Loss, Range, Samples, Stream, StreamState},
    retention::Resolution,
    series::block::Block,
    time::Wall,
};

/// The first records of a range, as far as they fit into so many bytes: at least one. What is gone
/// is said as a gap.
pub(super) fn read(
    connection: &Connection,
    boots: &Boots,
    (stream, holdings): (Stream, &StreamState),
    range: Range,
    bytes_max: usize,
) -> rusqlite::Result<Batch> {
    for gap in &holdings.gaps {
        if let Some(common) = gap.range.common(range) {
            if common.from() == range.from() {
                return Ok(lost(common, gap.loss));
            }
            let before = Range::new(range.from(), common.from() - 1).unwrap_or(range);
            return read_whole(connection, boots, stream, before, bytes_max);
        }
    }
    read_whole(connection, boots, stream, range, bytes_max)
}

fn read_whole(
    connection: &Connection,
    boots: &Boots,
    stream: Stream,
    range: Range,
    bytes_max: usize,
) -> rusqlite::Result<Batch> {
    let Some(table) = rows::table(stream) else {
        return minutes(connection, boots, range, bytes_max);
    };
    let found = rows::list(connection, table, range, bytes_max)?;
    let (Some(first), Some(last)) = (found.first(), found.last()) else {
        return Ok(lost(range, Loss::Damaged));
    };
    if first.sequence > range.from() {
        let missing = Range::new(range.from(), first.sequence - 1).unwrap_or(range);
        return Ok(lost(missing, Loss::Damaged));
    }
    Ok(Batch {
        range: Range::new(range.from(), last.sequence).unwrap_or(range),
        body: Body::Rows(found),
    })
}

const fn lost(range: Range, loss: Loss) -> Batch {
    Batch {
        range,
        body: Body::Gap(loss),
    }
}

fn minutes(
    connection: &Connection,
    boots: &Boots,
    range: Range,
    bytes_max: usize,
) -> rusqlite::Result<Batch> {
    let holding = chunk::list(
        connection,
        "level = 0 AND sequence_from <= ?1 AND sequence_to >= ?1 ORDER BY sequence_from DESC LIMIT 1",
        [signed(range.from())],
    )?;
    let (range, block) = match holding.first() {
        Some(chunk) => {
            let all = Range::new(range.from(), range.to().min(chunk.minutes.to())).unwrap_or(range);
            let Some(block) = chunk.block(connection, boots)? else {
                return Ok(lost(all, Loss::Damaged));
            };
            // Minutes are about equally large.
            let each = chunk.bytes(connection)? / chunk.minutes.count();
            let fit = u64::try_from(bytes_max).unwrap_or(u64::MAX) / each.max(1);
            let to = all.to().min(all.from().saturating_add(fit.max(1) - 1));
            let part = Range::new(all.from(), to).unwrap_or(all);
            (part, block.cut(part.from(), part.to()))
        }
        None => match from_journal(
            connection,
            boots,
            before_next(connection, range)?,
            bytes_max,
        )? {
            Ok(found) => found,
            Err(missing) => return Ok(lost(missing, Loss::Damaged)),
        },
    };
    let mut block = block;
    let numbers = block.columns.iter().map(|(number, _)| *number);
    let series: BTreeMap<_, _> = series::of_numbers(connection, numbers)?
        .into_iter()
        .filter(|stored| stored.born <= range.to())
        .map(|stored| (stored.known.number, stored.known.series))
        .gather();
    // A column without a name, or under the number of a series that came later, says nothing.
    block
        .columns
        .retain(|(number, _)| series.contains_key(number));
    let series = series.into_iter().collect();
    Ok(Batch {
        range,
        body: Body::Samples(Samples { series, block }),
    })
}

/// The part of a range before the next finished hour: what follows a hole in the finished hours is
/// not in the journal.
fn before_next(connection: &Connection, range: Range) -> rusqlite::Result<Range> {
    let next: Option<i64> = connection
        .prepare_cached(
            "SELECT min(sequence_from) FROM chunk WHERE level = 0 AND sequence_from > ?1",
        )?
        .query_row([signed(range.from())], |row| row.get(0))?;
    let to = next.map_or(u64::MAX, |next| unsigned(next).saturating_sub(1));
    Ok(Range::new(range.from(), range.to().min(to)).unwrap_or(range))
}

/// Minutes of the journal that are alike, or those at the beginning that are not there.
fn from_journal(
    connection: &Connection,
    boots: &Boots,
    range: Range,
    bytes_max: usize,
) -> rusqlite::Result<Result<(Range, Block), Range>> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut next = range.from();
    let mut bytes = 0_usize;
    let minutes = journal::list(connection, boots, range)?;
    if minutes.is_empty() {
        return Ok(Err(range));
    }
    for minute in minutes {
        if blocks.is_empty() && minute.sequence > next {
            return Ok(Err(Range::new(next, minute.sequence - 1).unwrap_or(range)));
        }
        let Some(block) = minute.block.filter(|_| minute.sequence == next) else {
            break;
        };
        bytes = bytes.saturating_add(minute.bytes);
        let is_too_much =
            bytes > bytes_max || blocks.first().is_some_and(|one| !one.is_like(&block));
        if is_too_much && !blocks.is_empty() {
            break;
        }
        blocks.push(block);
        next = next.saturating_add(1);
    }
    if blocks.is_empty() {
        // The first one is damaged.
        return Ok(Err(Range::new(range.from(), range.from()).unwrap_or(range)));
    }
    let found = Range::new(range.from(), next - 1).unwrap_or(range);
    Ok(Ok((found, Block::joined(&blocks))))
}

/// Returns when a record was, as far as that is known.
pub(super) fn wall(
    connection: &Connection,
    boots: &Boots,
    stream: Stream,
    sequence: u64,
) -> rusqlite::Result<Option<Wall>> {
    if let Some(table) = rows::table(stream) {
        return rows::wall(connection, table, sequence);
    }
    let chunk = chunk::list(
        connection,
        "level = 0 AND sequence_to >= ?1 ORDER BY sequence_from LIMIT 1",
        [signed(sequence)],
    )?;
    if let Some(chunk) = chunk.first() {
        return Ok(Some(Wall::from_millis(chunk.wall.0)));
    }
    let mut block = journal::get(connection, sequence)?;
    if let Some(block) = &mut block {
        boots.set_clock(block);
    }
    Ok(block.and_then(|block| {
        let first = block.ticks.first()?;
        Some(Wall::from_millis(block.wall_ms(*first)))
    }))
}

/// The moment after the newest sample, as far as that is known.
pub(super) fn end(
    connection: &Connection,
    boots: &Boots,
    last: u64,
) -> rusqlite::Result<Option<i64>> {
    // The newest may be damaged.
    let minutes = match Range::new(last.saturating_sub(60).max(1), last) {
        Some(newest) => journal::list(connection, boots, newest)?,
        None => Vec::new(),
    };
    let mut blocks = minutes.iter().rev().filter_map(|one| one.block.as_ref());
    let tick = blocks.find_map(|block| Some(block.wall_ms(*block.ticks.last()?)));
    if let Some(tick) = tick {
        return Ok(Some(tick.saturating_add(1)));
    }
    let newest = "level = ?1 ORDER BY sequence_from DESC LIMIT 1";
    let chunks = chunk::list(connection, newest, [Resolution::Raw.number()])?;
    Ok(chunks.first().map(|chunk| chunk.wall.1))
}

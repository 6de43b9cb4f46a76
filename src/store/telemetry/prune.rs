//! Retention: deletes records that are old enough and delivered, and, when the disk budget is
//! spent, the oldest of the finest level.

use rusqlite::{Connection, Transaction};

use super::{
    chunk::{self, Chunk},
    cursors::Cursors,
    journal, rows, unsigned,
};
use crate::core::{
    outbox::{Loss, Range, Stream},
    retention::{Bounds, Resolution},
};

/// Chunks that go in one transaction.
const CHUNKS_MAX: usize = 24;

/// Unit of deletion in one transaction.
#[derive(Debug)]
pub(super) enum Cut {
    /// These chunks; the minutes of single values are lost for this reason.
    Chunks(Vec<Chunk>, Loss),
    /// These minutes of the journal: the budget is so small that nothing else is left.
    Minutes(Range),
    /// These rows of a stream.
    Rows(Stream, Range, Loss),
}

/// Next deletion. `last` is the newest minute.
pub(super) fn next(
    connection: &Connection,
    cursors: &Cursors,
    (epoch, last): (u64, u64),
    (bounds, budget_bytes): (&Bounds, u64),
) -> rusqlite::Result<Option<Cut>> {
    for level in Resolution::ALL {
        let old = aged(
            connection,
            level,
            last.saturating_sub(bounds.kept_minutes(level)),
        )?;
        let free = old
            .into_iter()
            .take_while(|chunk| {
                level != Resolution::Raw || !cursors.want(Stream::Metrics, epoch, chunk.minutes)
            })
            .collect::<Vec<_>>();
        if !free.is_empty() {
            return Ok(Some(Cut::Chunks(free, Loss::Retention)));
        }
    }
    for stream in [Stream::Events, Stream::Logs] {
        if let Some(table) = rows::table(stream)
            && let Some(range) =
                rows::over_quota(connection, table, rows::last(connection, table)?)?
        {
            let loss = if cursors.want(stream, epoch, range) {
                Loss::Budget
            } else {
                Loss::Retention
            };
            return Ok(Some(Cut::Rows(stream, range, loss)));
        }
    }
    let over = used_bytes(connection)?.saturating_sub(budget_bytes);
    if over == 0 {
        return Ok(None);
    }
    for level in Resolution::ALL {
        let oldest = chunk::list(
            connection,
            "level = ?1 ORDER BY sequence_from LIMIT ?2",
            [
                level.number(),
                super::signed(u64::try_from(CHUNKS_MAX).unwrap_or(24)),
            ],
        )?;
        if !oldest.is_empty() {
            let cut = enough(connection, oldest, over)?;
            return Ok(Some(Cut::Chunks(cut, Loss::Budget)));
        }
    }
    // The newest hour stays, whatever the budget is: it is what a person looks for first.
    let kept = last.saturating_sub(60);
    Ok(journal::bounds(connection)?
        .and_then(|all| Range::new(all.from(), kept.min(all.to())))
        .map(Cut::Minutes))
}

/// Oldest chunks that together take at least this many bytes: no more goes than has to.
fn enough(
    connection: &Connection,
    mut chunks: Vec<Chunk>,
    bytes: u64,
) -> rusqlite::Result<Vec<Chunk>> {
    let (mut count, mut taken) = (0, 0_u64);
    for chunk in &chunks {
        taken = taken.saturating_add(chunk.bytes(connection)?);
        count += 1;
        if taken >= bytes {
            break;
        }
    }
    chunks.truncate(count);
    Ok(chunks)
}

/// The oldest chunks of a level whose minutes are all at most `until`. Single values that are not
/// in steps yet stay.
fn aged(connection: &Connection, level: Resolution, until: u64) -> rusqlite::Result<Vec<Chunk>> {
    let mut old = chunk::list(
        connection,
        "level = ?1 ORDER BY sequence_from LIMIT ?2",
        [
            level.number(),
            super::signed(u64::try_from(CHUNKS_MAX).unwrap_or(24)),
        ],
    )?;
    let count = old
        .iter()
        .take_while(|chunk| {
            chunk.minutes.to() <= until && (chunk.is_rolled || level.coarser().is_none())
        })
        .count();
    old.truncate(count);
    Ok(old)
}

/// Size of the database, without its free pages.
fn used_bytes(connection: &Connection) -> rusqlite::Result<u64> {
    used_and_whole_bytes(connection).map(|(used, _)| used)
}

/// The same, and with what is free in it.
pub(super) fn used_and_whole_bytes(connection: &Connection) -> rusqlite::Result<(u64, u64)> {
    let number = |pragma: &str| {
        connection
            .pragma_query_value(None, pragma, |row| row.get(0))
            .map(unsigned)
    };
    let (pages, size) = (number("page_count")?, number("page_size")?);
    let used = pages.saturating_sub(number("freelist_count")?);
    Ok((used.saturating_mul(size), pages.saturating_mul(size)))
}

/// Carries a cut out.
pub(super) fn cut(transaction: &Transaction<'_>, cut: &Cut) -> rusqlite::Result<()> {
    match cut {
        Cut::Chunks(chunks, _) => {
            for chunk in chunks {
                chunk::delete(transaction, chunk)?;
            }
            Ok(())
        }
        Cut::Minutes(range) => journal::delete(transaction, *range),
        Cut::Rows(stream, range, _) => match rows::table(*stream) {
            Some(table) => rows::delete(transaction, table, *range),
            None => Ok(()),
        },
    }
}

impl Cut {
    /// Records lost by it, their stream, and the reason.
    pub(super) fn lost(&self) -> Option<(Stream, Range, Loss)> {
        match self {
            Self::Chunks(chunks, loss) => {
                let (first, last) = (chunks.first()?, chunks.last()?);
                if first.level != Resolution::Raw {
                    return None;
                }
                let range = Range::new(first.minutes.from(), last.minutes.to())?;
                Some((Stream::Metrics, range, *loss))
            }
            Self::Minutes(range) => Some((Stream::Metrics, *range, Loss::Budget)),
            Self::Rows(stream, range, loss) => Some((*stream, *range, *loss)),
        }
    }
}

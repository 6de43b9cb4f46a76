//! Chunks of finished samples: one row of shared data and one per series, so that a query unpacks
//! only its series.

use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};

use super::{boots::Boots, series, signed, unsigned};
use crate::core::{
    outbox::Range,
    retention::Resolution,
    series::{
        block::{Block, Column, decode_columns, encode_columns},
        steps::{Cell, Steps, cells},
    },
};

/// Parts of one chunk: a series has 16 bits.
const PARTS: i64 = 1 << 16;
/// Columns of a part that has steps.
const STEP_COLUMNS: usize = 4;

/// Common fields of the parts of a chunk.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Chunk {
    pub(super) number: i64,
    pub(super) level: Resolution,
    /// The minutes that are in it.
    pub(super) minutes: Range,
    /// From its first moment to the one after its last, in milliseconds since 1970.
    pub(super) wall: (i64, i64),
    /// True if a chunk of the next level has it, too.
    pub(super) is_rolled: bool,
}

const SELECT: &str =
    "SELECT number, level, sequence_from, sequence_to, wall_from, wall_to, is_rolled FROM chunk";

/// The chunks that a condition is true of; it may go on with an order.
pub(super) fn list(
    connection: &Connection,
    condition: &str,
    values: impl rusqlite::Params,
) -> rusqlite::Result<Vec<Chunk>> {
    let mut statement = connection.prepare_cached(&format!("{SELECT} WHERE {condition}"))?;
    let rows = statement.query_map(values, read)?;
    rows.filter_map(Result::transpose).collect()
}

/// A row; `None` where it is not what this program writes.
fn read(row: &Row<'_>) -> rusqlite::Result<Option<Chunk>> {
    let level = Resolution::of(row.get(1)?);
    let minutes = Range::new(unsigned(row.get(2)?), unsigned(row.get(3)?));
    let (Some(level), Some(minutes)) = (level, minutes) else {
        return Ok(None);
    };
    Ok(Some(Chunk {
        number: row.get(0)?,
        level,
        minutes,
        wall: (row.get(4)?, row.get(5)?),
        is_rolled: row.get(6)?,
    }))
}

/// Writes single values. `block` has the clock that is known now.
pub(super) fn insert_raw(
    transaction: &Transaction<'_>,
    block: &Block,
    minutes: Range,
) -> rusqlite::Result<()> {
    let wall = |tick: Option<&u64>| tick.map_or(0, |tick| block.wall_ms(*tick));
    let head = Block {
        columns: Vec::new(),
        ..block.clone()
    };
    let chunk = Chunk {
        number: 0,
        level: Resolution::Raw,
        minutes,
        wall: (
            wall(block.ticks.first()),
            wall(block.ticks.last()).saturating_add(1),
        ),
        is_rolled: false,
    };
    // A chunk whose clock is not known is moved once it is: see boots::write.
    let boot = (!block.clock_is_set).then_some(block.boot);
    let number = insert(transaction, chunk, boot, Some(&head.encode()))?;
    let mut part = PartWriter::of(transaction, number)?;
    for (series, column) in &block.columns {
        part.put(*series, std::slice::from_ref(column))?;
    }
    let last = block.columns.iter();
    series::saw(
        transaction,
        last.filter_map(|(series, column)| Some((*series, last_minute(block, column)?))),
    )
}

/// The minute of the last value of a column.
fn last_minute(block: &Block, column: &Column) -> Option<u64> {
    let place = column.iter().rposition(Option::is_some)?;
    let mut end = 0_usize;
    block.minutes.iter().find_map(|(sequence, ticks)| {
        end = end.saturating_add(usize::try_from(*ticks).unwrap_or(usize::MAX));
        (place < end).then_some(*sequence)
    })
}

/// Writes steps of a level. Its minutes are those of the chunks that it was made of.
pub(super) fn insert_steps(
    transaction: &Transaction<'_>,
    (level, step_ms): (Resolution, i64),
    minutes: Range,
    series: &[(u32, Steps)],
) -> rusqlite::Result<()> {
    let bounds = series.iter().filter_map(|(_, steps)| steps.bounds());
    let Some((begin, last)) = bounds.reduce(|one, two| (one.0.min(two.0), one.1.max(two.1))) else {
        return Ok(());
    };
    let chunk = Chunk {
        number: 0,
        level,
        minutes,
        wall: (begin, last.saturating_add(step_ms)),
        is_rolled: false,
    };
    let number = insert(transaction, chunk, None, None)?;
    let mut part = PartWriter::of(transaction, number)?;
    for (series, steps) in series {
        part.put(
            *series,
            &steps.columns(begin, step_ms, chunk.length(step_ms)),
        )?;
    }
    Ok(())
}

fn insert(
    transaction: &Transaction<'_>,
    chunk: Chunk,
    boot: Option<u32>,
    ticks: Option<&[u8]>,
) -> rusqlite::Result<i64> {
    transaction
        .prepare_cached(
            "INSERT INTO chunk (level, sequence_from, sequence_to, wall_from, wall_to, boot, is_rolled, ticks)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, 0, ?7)",
        )?
        .execute(params![
            chunk.level.number(),
            signed(chunk.minutes.from()),
            signed(chunk.minutes.to()),
            chunk.wall.0,
            chunk.wall.1,
            boot,
            ticks
        ])?;
    Ok(transaction.last_insert_rowid())
}

/// Writes the parts of one chunk.
struct PartWriter<'a> {
    statement: rusqlite::CachedStatement<'a>,
    first: i64,
}

impl<'a> PartWriter<'a> {
    fn of(transaction: &'a Transaction<'_>, chunk: i64) -> rusqlite::Result<Self> {
        let statement =
            transaction.prepare_cached("INSERT INTO part (number, columns) VALUES (?1, ?2)")?;
        Ok(Self {
            statement,
            first: chunk * PARTS,
        })
    }

    fn put(&mut self, series: u32, columns: &[Column]) -> rusqlite::Result<()> {
        let number = self.first + i64::from(series);
        self.statement
            .execute(params![number, encode_columns(columns)])
            .map(drop)
    }
}

/// Says that a chunk is contained in one of the next level.
pub(super) fn set_rolled(transaction: &Transaction<'_>, chunk: &Chunk) -> rusqlite::Result<()> {
    transaction
        .prepare_cached("UPDATE chunk SET is_rolled = 1 WHERE number = ?1")?
        .execute([chunk.number])
        .map(drop)
}

/// Deletes the parts that series have in a chunk.
pub(super) fn delete_parts(
    transaction: &Transaction<'_>,
    chunk: &Chunk,
    series: impl IntoIterator<Item = u32>,
) -> rusqlite::Result<()> {
    let mut delete = transaction.prepare_cached("DELETE FROM part WHERE number = ?1")?;
    for number in series {
        delete.execute([chunk.number * PARTS + i64::from(number)])?;
    }
    Ok(())
}

/// Deletes a chunk and its parts.
pub(super) fn delete(transaction: &Transaction<'_>, chunk: &Chunk) -> rusqlite::Result<()> {
    let first = chunk.number * PARTS;
    transaction
        .prepare_cached("DELETE FROM part WHERE number BETWEEN ?1 AND ?2")?
        .execute([first, first + PARTS - 1])?;
    transaction
        .prepare_cached("DELETE FROM chunk WHERE number = ?1")?
        .execute([chunk.number])
        .map(drop)
}

impl Chunk {
    /// Number of steps.
    fn length(&self, step_ms: i64) -> usize {
        let steps = self.wall.1.saturating_sub(self.wall.0) / step_ms.max(1);
        usize::try_from(steps).unwrap_or(0)
    }

    /// The series that have a part.
    pub(super) fn series(&self, connection: &Connection) -> rusqlite::Result<Vec<u32>> {
        let first = self.number * PARTS;
        connection
            .prepare_cached("SELECT number - ?1 FROM part WHERE number BETWEEN ?1 AND ?2")?
            .query_map([first, first + PARTS - 1], |row| row.get(0))?
            .collect()
    }

    /// Number of bytes of the parts.
    pub(super) fn bytes(&self, connection: &Connection) -> rusqlite::Result<u64> {
        let first = self.number * PARTS;
        let query =
            "SELECT ifnull(sum(length(columns)), 0) FROM part WHERE number BETWEEN ?1 AND ?2";
        connection
            .prepare_cached(query)?
            .query_row([first, first + PARTS - 1], |row| row.get(0))
            .map(unsigned)
    }

    /// Ticks, clock and minutes of single values, without any value. `None` where they cannot be
    /// read.
    pub(super) fn ticks(
        &self,
        connection: &Connection,
        boots: &Boots,
    ) -> rusqlite::Result<Option<Block>> {
        let packed: Option<Vec<u8>> = connection
            .prepare_cached("SELECT ticks FROM chunk WHERE number = ?1")?
            .query_row([self.number], |row| row.get(0))
            .optional()?
            .flatten();
        let mut block = packed.and_then(|packed| Block::decode(&packed).ok());
        if let Some(block) = &mut block {
            boots.set_clock(block);
        }
        Ok(block)
    }

    /// The values of one series at the ticks. A part that cannot be read is none.
    pub(super) fn column(
        &self,
        connection: &Connection,
        series: u32,
        ticks: usize,
    ) -> rusqlite::Result<Option<Column>> {
        let columns = self.columns(connection, series, 1, ticks)?;
        Ok(columns.into_iter().next())
    }

    /// The steps of one series that have values.
    pub(super) fn steps(
        &self,
        connection: &Connection,
        series: u32,
    ) -> rusqlite::Result<Vec<(i64, Cell)>> {
        let Some(step_ms) = self.level.step_ms() else {
            return Ok(Vec::new());
        };
        let columns = self.columns(connection, series, STEP_COLUMNS, self.length(step_ms))?;
        Ok(cells(&columns, self.wall.0, step_ms))
    }

    fn columns(
        &self,
        connection: &Connection,
        series: u32,
        count: usize,
        length: usize,
    ) -> rusqlite::Result<Vec<Column>> {
        let packed: Option<Vec<u8>> = connection
            .prepare_cached("SELECT columns FROM part WHERE number = ?1")?
            .query_row([self.number * PARTS + i64::from(series)], |row| row.get(0))
            .optional()?;
        let columns = packed.and_then(|packed| decode_columns(&packed, count, length).ok());
        Ok(columns.unwrap_or_default())
    }

    /// All of it. `None` where its ticks cannot be read.
    pub(super) fn block(
        &self,
        connection: &Connection,
        boots: &Boots,
    ) -> rusqlite::Result<Option<Block>> {
        let Some(mut block) = self.ticks(connection, boots)? else {
            return Ok(None);
        };
        for series in self.series(connection)? {
            if let Some(column) = self.column(connection, series, block.ticks.len())? {
                block.columns.push((series, column));
            }
        }
        Ok(Some(block))
    }
}

//! The newest samples: ticks in memory until the flush, then one row a minute.

use std::collections::{BTreeMap, VecDeque};

use rusqlite::{Connection, OptionalExtension, Transaction, params};

use super::{boots::Boots, signed, unsigned};
use crate::core::{
    outbox::Range,
    series::block::{Block, Column},
};

/// Ticks that wait for the disk at most: an hour at 15 s.
const WAITING_MAX: usize = 240;
const HOUR_MS: u64 = 3_600_000;

/// Values of one moment, by the numbers that their series have until the flush.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) mono_ms: u64,
    /// Wall clock, and whether it was trusted.
    pub(super) wall_ms: i64,
    pub(super) clock_is_set: bool,
    pub(super) values: Vec<(u32, i64)>,
}

/// Samples that are not on disk yet.
#[derive(Debug, Default)]
pub(super) struct Pending {
    ticks: VecDeque<Waiting>,
    /// Ticks that went because the disk did not come back in time.
    pub(super) lost: u64,
}

impl Pending {
    /// Takes a tick. Over the bound the oldest goes, and is counted.
    pub(super) fn take(&mut self, tick: Waiting) {
        if self.ticks.len() >= WAITING_MAX {
            self.ticks.pop_front();
            self.lost = self.lost.saturating_add(1);
        }
        self.ticks.push_back(tick);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ticks.is_empty()
    }

    /// The wall clock minus the clock since boot, by the newest tick, and whether it can be
    /// believed.
    pub(super) fn clock(&self) -> (i64, bool) {
        let newest = self.ticks.back();
        newest.map_or((0, false), |tick| {
            let offset = tick.wall_ms.saturating_sub(signed(tick.mono_ms));
            (offset, tick.clock_is_set)
        })
    }

    /// They are on disk.
    pub(super) fn written(&mut self) {
        self.ticks.clear();
    }

    /// Drops what is on disk already: a commit that was reported as failed may have been one.
    pub(super) fn drop_until(&mut self, mono_ms: u64) {
        self.ticks.retain(|tick| tick.mono_ms > mono_ms);
    }

    /// The ticks as a minute of a boot, with this clock and the numbers that the series have on
    /// disk.
    pub(super) fn block(
        &self,
        (boot, sequence): (u32, u64),
        (offset, is_set): (i64, bool),
        on_disk: &BTreeMap<u32, u32>,
    ) -> Block {
        let mut columns: BTreeMap<u32, Column> = BTreeMap::new();
        for (index, tick) in self.ticks.iter().enumerate() {
            for (local, value) in &tick.values {
                let Some(series) = on_disk.get(local) else {
                    continue;
                };
                let column = columns.entry(*series).or_default();
                // A series twice in one tick: the first counts.
                if column.len() <= index {
                    column.resize(index, None);
                    column.push(Some(*value));
                }
            }
        }
        for column in columns.values_mut() {
            column.resize(self.ticks.len(), None);
        }
        Block {
            boot,
            wall_offset_ms: offset,
            clock_is_set: is_set,
            ticks: self.ticks.iter().map(|tick| tick.mono_ms).collect(),
            minutes: vec![(
                sequence,
                u32::try_from(self.ticks.len()).unwrap_or(u32::MAX),
            )],
            columns: columns.into_iter().collect(),
        }
    }
}

/// Writes a minute.
pub(super) fn insert(
    transaction: &Transaction<'_>,
    sequence: u64,
    block: &[u8],
) -> rusqlite::Result<()> {
    transaction
        .prepare_cached("INSERT INTO minute (sequence, block) VALUES (?1, ?2)")?
        .execute(params![signed(sequence), block])
        .map(drop)
}

/// A minute of the journal.
pub(super) struct Minute {
    pub(super) sequence: u64,
    /// `None` where it cannot be read.
    pub(super) block: Option<Block>,
    /// Size on disk.
    pub(super) bytes: usize,
}

/// Minutes of the journal from one on, in order, with the best clock that is known: at most an hour
/// of them.
pub(super) fn list(
    connection: &Connection,
    boots: &Boots,
    range: Range,
) -> rusqlite::Result<Vec<Minute>> {
    let mut statement = connection.prepare_cached(
        "SELECT sequence, block FROM minute WHERE sequence BETWEEN ?1 AND ?2 ORDER BY sequence LIMIT 720",
    )?;
    let rows = statement.query_map([signed(range.from()), signed(range.to())], |row| {
        let packed: Vec<u8> = row.get(1)?;
        let mut block = Block::decode(&packed).ok();
        if let Some(block) = &mut block {
            boots.set_clock(block);
        }
        Ok(Minute {
            sequence: unsigned(row.get(0)?),
            block,
            bytes: packed.len(),
        })
    })?;
    rows.collect()
}

/// All minutes of the journal, as [`list`] gives them.
pub(super) fn all(connection: &Connection, boots: &Boots) -> rusqlite::Result<Vec<Minute>> {
    match bounds(connection)? {
        Some(all) => list(connection, boots, all),
        None => Ok(Vec::new()),
    }
}

/// The first and the last minute of the journal.
pub(super) fn bounds(connection: &Connection) -> rusqlite::Result<Option<Range>> {
    let (first, last): (Option<i64>, Option<i64>) = connection
        .prepare_cached(
            "SELECT (SELECT min(sequence) FROM minute), (SELECT max(sequence) FROM minute)",
        )?
        .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(first
        .zip(last)
        .and_then(|(first, last)| Range::new(unsigned(first), unsigned(last))))
}

/// One minute as it is.
pub(super) fn get(connection: &Connection, sequence: u64) -> rusqlite::Result<Option<Block>> {
    let packed: Option<Vec<u8>> = connection
        .prepare_cached("SELECT block FROM minute WHERE sequence = ?1")?
        .query_row([signed(sequence)], |row| row.get(0))
        .optional()?;
    Ok(packed.and_then(|packed| Block::decode(&packed).ok()))
}

/// Deletes minutes that are in a chunk now, or damaged.
pub(super) fn delete(transaction: &Transaction<'_>, range: Range) -> rusqlite::Result<()> {
    transaction
        .prepare_cached("DELETE FROM minute WHERE sequence BETWEEN ?1 AND ?2")?
        .execute([signed(range.from()), signed(range.to())])
        .map(drop)
}

/// Hour since boot in which a block begins: chunks end with it.
pub(super) fn hour(block: &Block) -> u64 {
    block.ticks.first().map_or(0, |tick| tick / HOUR_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tick(mono_ms: u64, values: &[(u32, i64)]) -> Waiting {
        Waiting {
            mono_ms,
            wall_ms: 0,
            clock_is_set: true,
            values: values.to_vec(),
        }
    }

    fn block(pending: &Pending) -> Block {
        let on_disk = BTreeMap::from([(1, 11), (2, 12)]);
        pending.block((1, 1), (0, true), &on_disk)
    }

    #[test]
    fn an_hour_waits_for_the_disk_and_what_is_more_is_counted() {
        let mut pending = Pending::default();
        for at in 0..243 {
            pending.take(tick(at, &[]));
        }
        let ticks = block(&pending).ticks;
        assert_eq!((ticks.len(), ticks[0], pending.lost), (240, 3, 3));
        // A commit that was reported as failed had the tick of that moment.
        pending.drop_until(200);
        assert_eq!(block(&pending).ticks[0], 201);
    }

    #[test]
    fn columns_have_a_value_or_none_for_each_tick() {
        let mut pending = Pending::default();
        pending.take(tick(1, &[(1, 5), (1, 6), (3, 7)]));
        pending.take(tick(2, &[(2, 8)]));
        pending.take(tick(3, &[(2, 9), (1, 4)]));
        let wanted = vec![
            (11, vec![Some(5), None, Some(4)]),
            (12, vec![None, Some(8), Some(9)]),
        ];
        assert_eq!(block(&pending).columns, wanted);
    }
}

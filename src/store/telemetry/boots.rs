//! Boots, and the wall clock of each: a board without a battery-backed clock learns it from the
//! network.

use std::collections::BTreeMap;

use rusqlite::{Connection, Transaction, params};

use super::{signed, unsigned};
use crate::core::{order::GatherExt as _, series::block::Block};

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Boot {
    /// A guess at wall clock minus the clock since boot.
    pub(super) guess_ms: i64,
    /// Offset of the wall clock once it was trusted.
    pub(super) wall_offset_ms: Option<i64>,
    /// Its first minute; 0: an earlier version began it.
    pub(super) sequence_from: u64,
}

/// All boots that samples are of.
#[derive(Clone, Debug, Default)]
pub(super) struct Boots {
    rows: BTreeMap<u32, Boot>,
}

impl Boots {
    /// Those on disk.
    pub(super) fn load(connection: &Connection) -> rusqlite::Result<Self> {
        let mut statement = connection
            .prepare_cached("SELECT number, guess_ms, wall_offset_ms, sequence_from FROM boot")?;
        let rows = statement.query_map([], |row| {
            let boot = Boot {
                guess_ms: row.get(1)?,
                wall_offset_ms: row.get(2)?,
                sequence_from: unsigned(row.get(3)?),
            };
            Ok((row.get(0)?, boot))
        })?;
        let rows = rows.collect::<rusqlite::Result<Vec<_>>>()?;
        Ok(Self {
            rows: rows.into_iter().gather(),
        })
    }

    /// The number of a boot that is there already.
    pub(super) fn number(connection: &Connection, id: &str) -> rusqlite::Result<Option<u32>> {
        let mut statement = connection.prepare_cached("SELECT number FROM boot WHERE id = ?1")?;
        let mut found = statement.query_map([id], |row| row.get(0))?;
        found.next().transpose()
    }

    /// The number that the next boot gets.
    pub(super) fn next(&self) -> u32 {
        self.rows
            .last_key_value()
            .map_or(1, |(last, _)| last.saturating_add(1))
    }

    /// The moments at which boots began whose clock is known.
    pub(super) fn offsets(&self) -> impl Iterator<Item = i64> {
        self.rows.values().filter_map(|boot| boot.wall_offset_ms)
    }

    pub(super) fn get(&self, number: u32) -> Option<Boot> {
        self.rows.get(&number).copied()
    }

    pub(super) fn put(&mut self, number: u32, boot: Boot) {
        self.rows.insert(number, boot);
    }

    /// The boots that end before the minute `floor`, and the oldest where there are more than
    /// `count_max`. The newest is never among them.
    pub(super) fn over(&self, floor: u64, count_max: usize) -> Vec<u32> {
        let ended = self.rows.iter().zip(self.rows.values().skip(1));
        let surplus = self.rows.len().saturating_sub(count_max);
        let gone = ended.enumerate().filter(|(place, (_, next))| {
            *place < surplus || (next.sequence_from > 0 && next.sequence_from <= floor)
        });
        gone.map(|(_, ((number, _), _))| *number).collect()
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.rows.len()
    }

    pub(super) fn remove(&mut self, number: u32) {
        self.rows.remove(&number);
    }

    /// Gives a block the best wall clock that is known of its moment.
    pub(super) fn set_clock(&self, block: &mut Block) {
        if block.clock_is_set {
            return;
        }
        if let Some(boot) = self.get(block.boot) {
            block.clock_is_set = boot.wall_offset_ms.is_some();
            block.wall_offset_ms = boot.wall_offset_ms.unwrap_or(boot.guess_ms);
        }
    }
}

/// Removes boots.
pub(super) fn delete(transaction: &Transaction<'_>, numbers: &[u32]) -> rusqlite::Result<()> {
    let mut delete = transaction.prepare_cached("DELETE FROM boot WHERE number = ?1")?;
    for number in numbers {
        delete.execute([number])?;
    }
    Ok(())
}

/// Writes a boot. Where its clock is known by now, the chunks from before that moment are put in
/// their place.
pub(super) fn write(
    transaction: &Transaction<'_>,
    (number, id): (u32, &str),
    boot: Boot,
) -> rusqlite::Result<()> {
    transaction
        .prepare_cached(
            "INSERT INTO boot (number, id, guess_ms, wall_offset_ms, sequence_from) VALUES (?1, ?2, ?3, ?4, ?5)
            ON CONFLICT DO UPDATE SET wall_offset_ms = ?4",
        )?
        .execute(params![
            number,
            id,
            boot.guess_ms,
            boot.wall_offset_ms,
            signed(boot.sequence_from)
        ])?;
    let Some(offset) = boot.wall_offset_ms else {
        return Ok(());
    };
    let by = offset.saturating_sub(boot.guess_ms);
    // Only chunks of single values have a boot, and only while their clock is not set.
    transaction
        .prepare_cached(
            "UPDATE chunk SET wall_from = wall_from + ?2, wall_to = wall_to + ?2, boot = NULL
            WHERE level = 0 AND boot = ?1",
        )?
        .execute(params![number, by])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_goes_once_every_minute_of_it_is_gone_and_the_newest_never() {
        let mut boots = Boots::default();
        // An earlier version began the first one, and nobody knows its first minute.
        for (number, sequence_from) in [(1, 0), (2, 11), (3, 21), (4, 31)] {
            let boot = Boot {
                guess_ms: 0,
                wall_offset_ms: None,
                sequence_from,
            };
            boots.put(number, boot);
        }
        assert!(boots.over(10, 9).is_empty());
        assert_eq!(boots.over(11, 9), [1]);
        assert_eq!(boots.over(20, 9), [1]);
        assert_eq!(boots.over(21, 9), [1, 2]);
        assert_eq!(boots.over(u64::MAX, 9), [1, 2, 3]);
        assert!(boots.over(0, 4).is_empty());
        assert_eq!(boots.over(0, 3), [1]);
        assert_eq!(boots.over(0, 0), [1, 2, 3]);
        assert_eq!(boots.next(), 5);
    }
}

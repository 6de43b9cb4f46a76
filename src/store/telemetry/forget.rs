//! Deletes series and boots whose last sample is gone, and the least useful ended series when there
//! are too many.

use std::collections::BTreeSet;

use rusqlite::{Connection, Transaction, params};

use super::{boots::Boots, chunk, journal, series::SEEN_EVERY, signed, unsigned};
use crate::core::{
    order::GatherExt as _,
    retention::{Bounds, Resolution},
};

/// Series that go in one transaction.
pub(super) const BATCH: usize = 256;
/// Series above which even those go that a receiver has not got yet: a few thousand numbers have to
/// be free for what is measured now.
const KNOWN_MAX: usize = 60_000;

/// A series that goes, with its first and last minute.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gone {
    number: u32,
    born: u64,
    seen: u64,
}

/// The first minute that the journal and each level still have; `i64::MAX` where they have none.
#[derive(Clone, Copy, Debug)]
struct Floors {
    journal: i64,
    levels: [i64; 4],
}

impl Floors {
    fn read(connection: &Connection) -> rusqlite::Result<Self> {
        let mut levels = [i64::MAX; 4];
        for (level, floor) in Resolution::ALL.into_iter().zip(&mut levels) {
            let first: Option<i64> = connection
                .prepare_cached("SELECT min(sequence_from) FROM chunk WHERE level = ?1")?
                .query_row([level.number()], |row| row.get(0))?;
            *floor = first.unwrap_or(i64::MAX);
        }
        let journal = journal::bounds(connection)?;
        Ok(Self {
            journal: journal.map_or(i64::MAX, |all| signed(all.from())),
            levels,
        })
    }

    /// The first minute up to a level.
    fn up_to(self, level: Resolution) -> i64 {
        let levels = Resolution::ALL.into_iter().zip(self.levels);
        let up_to = levels.filter(|(of, _)| *of <= level);
        up_to.map(|(_, floor)| floor).fold(self.journal, i64::min)
    }
}

/// The last minute in which a series may have been.
fn last_minute() -> String {
    format!("seen + iif(seen - born < {SEEN_EVERY}, 0, {SEEN_EVERY})")
}

/// Series of which no sample is left, a batch of them. Those in `live` are measured now.
pub(super) fn dead(connection: &Connection, live: &BTreeSet<u32>) -> rusqlite::Result<Vec<Gone>> {
    let floors = Floors::read(connection)?;
    let mut query = connection.prepare_cached(&format!(
        "SELECT number, born, seen FROM series WHERE {} <
         CASE WHEN seen - born < ?1 THEN ?2 WHEN seen - born < ?3 THEN ?4 ELSE ?5 END LIMIT ?6",
        last_minute()
    ))?;
    let rows = query.query_map(
        params![
            signed(Resolution::Quarters.life_minutes()),
            floors.up_to(Resolution::Minutes),
            signed(Resolution::SixHours.life_minutes()),
            floors.up_to(Resolution::Quarters),
            floors.up_to(Resolution::SixHours),
            limit()
        ],
        gone,
    )?;
    unused(connection, rows.collect::<rusqlite::Result<_>>()?, live)
}

/// Those that are not measured now and have no sample in the journal, where `seen` does not tell.
fn unused(
    connection: &Connection,
    mut found: Vec<Gone>,
    live: &BTreeSet<u32>,
) -> rusqlite::Result<Vec<Gone>> {
    if !found.is_empty() {
        let in_journal = in_journal(connection)?;
        found.retain(|gone| !live.contains(&gone.number) && !in_journal.contains(&gone.number));
    }
    Ok(found)
}

/// Series that go before their time, a batch of them, and whether they are more than delivery
/// allows: `known` are more than there may be.
pub(super) fn excess(
    connection: &Connection,
    (known, series_max): (usize, usize),
    live: &BTreeSet<u32>,
) -> rusqlite::Result<(Vec<Gone>, bool)> {
    let is_hard = known > KNOWN_MAX;
    // What single values may still have to be delivered of stays.
    let until = if is_hard {
        i64::MAX
    } else {
        Floors::read(connection)?.up_to(Resolution::Raw)
    };
    let mut query = connection.prepare_cached(&format!(
        "SELECT number, born, seen FROM series WHERE {} < ?1
         ORDER BY seen - born >= ?2, key NOT GLOB 'cluster_pod_*', seen LIMIT ?3",
        last_minute()
    ))?;
    let values = params![until, signed(Resolution::Quarters.life_minutes()), limit()];
    let rows = query.query_map(values, gone)?;
    let mut found = unused(connection, rows.collect::<rusqlite::Result<_>>()?, live)?;
    // Some more than needed, so that it is not a batch with each new Pod.
    found.truncate(known.saturating_sub(series_max).saturating_add(BATCH / 4));
    Ok((found, is_hard))
}

fn limit() -> i64 {
    i64::try_from(BATCH).unwrap_or(0)
}

fn gone(row: &rusqlite::Row<'_>) -> rusqlite::Result<Gone> {
    Ok(Gone {
        number: row.get(0)?,
        born: unsigned(row.get(1)?),
        seen: unsigned(row.get(2)?),
    })
}

/// The numbers that minutes of the journal have.
fn in_journal(connection: &Connection) -> rusqlite::Result<BTreeSet<u32>> {
    let minutes = journal::all(connection, &Boots::default())?;
    let blocks = minutes.iter().filter_map(|minute| minute.block.as_ref());
    Ok(blocks
        .flat_map(|block| block.columns.iter().map(|(number, _)| *number))
        .gather())
}

/// Removes series with whatever samples they still have; afterwards their numbers are free.
pub(super) fn series(transaction: &Transaction<'_>, gone: &[Gone]) -> rusqlite::Result<()> {
    let mut delete = transaction.prepare_cached("DELETE FROM series WHERE number = ?1")?;
    let (mut first, mut last) = (u64::MAX, 0);
    for one in gone {
        delete.execute([one.number])?;
        first = first.min(one.born);
        last = last.max(one.seen.saturating_add(SEEN_EVERY));
    }
    let chunks = chunk::list(
        transaction,
        "sequence_to >= ?1 AND sequence_from <= ?2",
        [signed(first), signed(last)],
    )?;
    for chunk in &chunks {
        let has = |one: &&Gone| {
            one.born <= chunk.minutes.to()
                && one.seen.saturating_add(SEEN_EVERY) >= chunk.minutes.from()
        };
        let numbers = gone.iter().filter(has).map(|one| one.number);
        chunk::delete_parts(transaction, chunk, numbers)?;
    }
    Ok(())
}

/// The boots that are known no more: no sample is left of them, or there are too many.
pub(super) fn boots(
    connection: &Connection,
    boots: &Boots,
    bounds: &Bounds,
) -> rusqlite::Result<Vec<u32>> {
    let floor = unsigned(Floors::read(connection)?.up_to(Resolution::SixHours));
    Ok(boots.over(floor, bounds.boots_max))
}

//! Series and their numbers: all on disk, those of this hour in memory.
//!
//! A number has 16 bits and is part of the key of every part of a chunk. It is free when no sample
//! uses it, and is assigned again after all numbers that were never used or have been free for
//! longer.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
};

use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};

use super::{signed, unsigned};
use crate::core::{
    order::{GatherExt as _, OrderExt as _},
    retention::Resolution,
    series::{Key, Known, Listed, Page, Search, Select, Series},
};

/// Maximum number of series that are measured at the same time.
pub(super) const LIVE_MAX: usize = 2_000;
/// The largest number: [`super::chunk`] has 16 bits for it.
pub(super) const NUMBER_MAX: u32 = 65_535;
/// Maximum lag of `seen` from the second day of a series on, in minutes.
pub(super) const SEEN_EVERY: u64 = 1_440;

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Its number in what waits for the disk.
    local: u32,
    /// Its number on disk, where it is known.
    on_disk: Option<u32>,
    was_seen: bool,
}

/// The series that are measured now. Their numbers on disk are found with the first flush: the disk
/// may not be there before.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    live: BTreeMap<Series, Entry>,
    next: u32,
    /// The number that was given last on disk; 0: not known yet.
    given: Cell<u32>,
    /// Values since the last flush for which there was no room in memory.
    refused: u64,
    /// The same of the flush before, and series for which there was no number.
    pub(super) refused_last: u64,
    pub(super) unnumbered_last: u64,
}

impl Numbers {
    /// The number of a series until the flush. `None` where there are too many.
    pub(super) fn local(&mut self, series: &Series) -> Option<u32> {
        if let Some(entry) = self.live.get_mut(series) {
            entry.was_seen = true;
            return Some(entry.local);
        }
        if self.live.len() >= LIVE_MAX {
            self.refused = self.refused.saturating_add(1);
            return None;
        }
        self.next = self.next.wrapping_add(1);
        let entry = Entry {
            local: self.next,
            on_disk: None,
            was_seen: true,
        };
        self.live.insert(series.clone(), entry);
        Some(entry.local)
    }

    /// The numbers on disk by those until the flush, of the minute `sequence`. Series that are new
    /// are written.
    pub(super) fn write(
        &self,
        transaction: &Transaction<'_>,
        sequence: u64,
    ) -> rusqlite::Result<BTreeMap<u32, u32>> {
        let mut numbers = BTreeMap::new();
        for (series, entry) in &self.live {
            let on_disk = match entry.on_disk {
                Some(number) => Some(number),
                None => self.find_or_insert(transaction, series, sequence)?,
            };
            numbers.extend(on_disk.map(|number| (entry.local, number)));
        }
        Ok(numbers)
    }

    fn find_or_insert(
        &self,
        transaction: &Transaction<'_>,
        series: &Series,
        sequence: u64,
    ) -> rusqlite::Result<Option<u32>> {
        if let Some(number) = find(transaction, series)? {
            // It is back: its number must not go while samples of now are in the journal.
            transaction
                .prepare_cached("UPDATE series SET seen = ?2 WHERE number = ?1 AND seen < ?2 - 60")?
                .execute(params![number, signed(sequence)])?;
            return Ok(Some(number));
        }
        let Some(number) = self.free(transaction)? else {
            return Ok(None);
        };
        transaction
            .prepare_cached(
                "INSERT INTO series (number, key, digits, born, seen) VALUES (?1, ?2, ?3, ?4, ?4)",
            )?
            .execute(params![
                number,
                series.key.to_string(),
                series.digits,
                signed(sequence)
            ])?;
        Ok(Some(number))
    }

    /// The next number that no series has, in a circle.
    fn free(&self, connection: &Connection) -> rusqlite::Result<Option<u32>> {
        if self.given.get() == 0 {
            let last: u32 = connection
                .prepare_cached("SELECT ifnull(max(number), 0) FROM series")?
                .query_row([], |row| row.get(0))?;
            self.given.set(last);
        }
        let mut is_taken = connection.prepare_cached("SELECT 1 FROM series WHERE number = ?1")?;
        for _ in 0..NUMBER_MAX {
            let next = self.given.get() % NUMBER_MAX + 1;
            self.given.set(next);
            if !is_taken.exists([next])? {
                return Ok(Some(next));
            }
        }
        Ok(None)
    }

    /// The numbers of those that are meant by the ones until the flush, and those of them that are
    /// not on disk yet: their number is one that none on disk has.
    pub(super) fn meant(
        &self,
        connection: &Connection,
        select: &Select,
    ) -> rusqlite::Result<(BTreeMap<u32, u32>, Vec<Known>)> {
        let (mut numbers, mut new) = (BTreeMap::new(), Vec::new());
        for (series, entry) in &self.live {
            if !is_meant(select, series) {
                continue;
            }
            let on_disk = match entry.on_disk {
                Some(number) => Some(number),
                None => find(connection, series)?,
            };
            let number = on_disk.unwrap_or_else(|| NUMBER_MAX.wrapping_add(entry.local));
            numbers.insert(entry.local, number);
            if on_disk.is_none() {
                let series = series.clone();
                new.push(Known { number, series });
            }
        }
        Ok((numbers, new))
    }

    /// The keys of those that are measured now.
    pub(super) fn live(&self) -> BTreeSet<String> {
        self.live
            .keys()
            .map(|series| series.key.to_string())
            .gather()
    }

    /// The numbers on disk of those that are measured now.
    pub(super) fn in_use(&self) -> BTreeSet<u32> {
        self.live
            .values()
            .filter_map(|entry| entry.on_disk)
            .gather()
    }

    /// These numbers are on disk now, and nothing waits that needs the others: those that were not
    /// measured since are forgotten.
    pub(super) fn written(&mut self, numbers: &BTreeMap<u32, u32>) {
        self.refused_last = std::mem::take(&mut self.refused);
        self.unnumbered_last = 0;
        self.live.retain(|_, entry| {
            entry.on_disk = numbers.get(&entry.local).copied();
            if entry.on_disk.is_none() {
                self.unnumbered_last = self.unnumbered_last.saturating_add(1);
            }
            std::mem::take(&mut entry.was_seen)
        });
    }

    /// The database was recreated: it knows none of them.
    pub(super) fn forget_disk(&mut self) {
        self.given.set(0);
        for entry in self.live.values_mut() {
            entry.on_disk = None;
        }
    }

    /// The next new series get the numbers behind this one.
    #[cfg(test)]
    pub(super) fn go_on_behind(&self, number: u32) {
        self.given.set(number);
    }
}

/// A series on disk.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub(super) known: Known,
    /// Its first minute. A chunk that ends before it was written under this number by another
    /// series.
    pub(super) born: u64,
    /// Its last minute, or up to [`SEEN_EVERY`] before that where it lasted longer than that.
    seen: u64,
}

impl Stored {
    /// Minimum life in minutes; exact up to a day.
    const fn life(&self) -> u64 {
        self.seen.saturating_sub(self.born)
    }

    /// The level that answers where `wanted` is asked for: a series that was too brief for it has
    /// finer steps only.
    pub(super) fn level(&self, wanted: Resolution) -> Resolution {
        let mut levels = Resolution::ALL.into_iter().rev();
        let kept = levels.find(|level| *level <= wanted && level.life_minutes() <= self.life());
        kept.unwrap_or(Resolution::Raw)
    }

    /// Returns whether it lasted long enough to be kept at a level, and had its number in a chunk
    /// with these last minutes.
    pub(super) fn is_kept(&self, level: Resolution, last: u64) -> bool {
        level.life_minutes() <= self.life() && self.born <= last
    }
}

fn find(connection: &Connection, series: &Series) -> rusqlite::Result<Option<u32>> {
    connection
        .prepare_cached("SELECT number FROM series WHERE key = ?1 AND digits = ?2")?
        .query_row(params![series.key.to_string(), series.digits], |row| {
            row.get(0)
        })
        .optional()
}

const SELECT: &str = "SELECT number, key, digits, born, seen FROM series";

/// The series of these numbers, in their order. A number that is not there is left out.
pub(super) fn of_numbers(
    connection: &Connection,
    numbers: impl IntoIterator<Item = u32>,
) -> rusqlite::Result<Vec<Stored>> {
    let mut statement = connection.prepare_cached(&format!("{SELECT} WHERE number = ?1"))?;
    let mut found = Vec::new();
    for number in numbers {
        found.extend(statement.query_row([number], read).optional()?.flatten());
    }
    Ok(found)
}

/// The series on disk that are meant, by number, of those that were there in the minute `since` or
/// later.
pub(super) fn select(
    connection: &Connection,
    select: &Select,
    since: u64,
) -> rusqlite::Result<Vec<Stored>> {
    let mut found = Vec::new();
    let mut take = |condition: &str, values: &[&str]| {
        let since = signed(since);
        let query = format!(
            "{SELECT} WHERE {condition} AND seen + iif(seen - born < {SEEN_EVERY}, 0, {SEEN_EVERY}) >= {since}"
        );
        let mut statement = connection.prepare_cached(&query)?;
        let mut rows = statement.query(rusqlite::params_from_iter(values))?;
        while let Some(row) = rows.next()? {
            found.extend(read(row)?.filter(|stored| is_meant(select, &stored.known.series)));
        }
        Ok::<_, rusqlite::Error>(())
    };
    match select {
        Select::All => take("1", &[])?,
        // '|' follows '{', with which labels begin.
        Select::Matching(name, _) => take(
            "(key = ?1 OR (key >= ?1 || '{' AND key < ?1 || '|'))",
            &[name],
        )?,
        Select::Keys(keys) => {
            for key in keys {
                take("key = ?1", &[key])?;
            }
        }
    }
    found.order_by_key(|stored| stored.known.number);
    found.dedup_by_key(|stored| stored.known.number);
    Ok(found)
}

/// Returns whether a series is among those that are meant.
fn is_meant(select: &Select, series: &Series) -> bool {
    match select {
        Select::All => true,
        Select::Keys(keys) => keys.contains(&series.key.to_string()),
        Select::Matching(name, labels) => {
            let has =
                |(label, value): &(String, String)| series.key.label(label) == Some(value.as_str());
            series.key.name() == name && labels.iter().all(has)
        }
    }
}

/// A row; `None` where it is not what this program writes.
fn read(row: &Row<'_>) -> rusqlite::Result<Option<Stored>> {
    let key: String = row.get(1)?;
    let Ok(key) = Key::parse(&key) else {
        return Ok(None);
    };
    let digits = row.get(2)?;
    Ok(Some(Stored {
        known: Known {
            number: row.get(0)?,
            series: Series { key, digits },
        },
        born: unsigned(row.get(3)?),
        seen: unsigned(row.get(4)?),
    }))
}

/// A part of the list of series, by the rows on disk and those that are measured now.
pub(super) fn list(
    connection: &Connection,
    live: &BTreeSet<String>,
    search: &Search,
) -> rusqlite::Result<Page> {
    let mut page = BTreeSet::new();
    let mut all = 0_usize;
    let mut before: Option<String> = None;
    let mut take = |key: &str| {
        // One series whose digits changed has two rows.
        if before.as_deref() == Some(key) {
            return;
        }
        before = Some(key.to_owned());
        let is_left_out = !search.without.is_empty() && key.starts_with(search.without);
        if is_left_out || !key.to_lowercase().contains(&search.contains) {
            return;
        }
        all = all.saturating_add(1);
        let listed = Listed {
            has_ended: !live.contains(key),
            key: key.to_owned(),
        };
        if search.after.as_ref().is_none_or(|after| listed > *after) {
            page.insert(listed);
            // One more than wanted says that there are more.
            if page.len() > search.limit.saturating_add(1) {
                page.pop_last();
            }
        }
    };
    let mut statement = connection.prepare_cached("SELECT key FROM series ORDER BY key")?;
    let mut rows = statement.query([])?;
    let mut new = live.iter().peekable();
    while let Some(row) = rows.next()? {
        let key: String = row.get(0)?;
        while let Some(early) = new.next_if(|early| **early < key) {
            take(early);
        }
        take(&key);
    }
    new.for_each(|key| take(key));
    let has_more = page.len() > search.limit;
    Ok(Page {
        series: page.into_iter().take(search.limit).collect(),
        total: all,
        has_more,
    })
}

/// Notes that series were there in these minutes.
pub(super) fn saw(
    transaction: &Transaction<'_>,
    last: impl IntoIterator<Item = (u32, u64)>,
) -> rusqlite::Result<()> {
    let mut update = transaction.prepare_cached(&format!(
        "UPDATE series SET seen = ?2
         WHERE number = ?1 AND seen < ?2 AND (seen - born < {SEEN_EVERY} OR ?2 - seen >= {SEEN_EVERY})"
    ))?;
    for (number, minute) in last {
        update.execute(params![number, signed(minute)])?;
    }
    Ok(())
}

/// Number of known series.
pub(super) fn count(connection: &Connection) -> rusqlite::Result<usize> {
    let count: i64 = connection.query_row("SELECT count(*) FROM series", [], |row| row.get(0))?;
    Ok(usize::try_from(count).unwrap_or(0))
}

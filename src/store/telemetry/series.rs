//! Series and their numbers: all on disk, those of this hour in memory.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};

use crate::core::series::{Key, Known, Select, Series};

/// Series that are measured at the same time.
pub(super) const LIVE_MAX: usize = 2_000;
/// The largest number: [`super::chunk`] has 16 bits for it.
const NUMBER_MAX: u32 = 65_535;

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Its number in what waits for the disk.
    local: u32,
    /// Its number on disk, where it is known.
    on_disk: Option<u32>,
    was_seen: bool,
}

/// The series that are measured now. Their numbers on disk are found with the first flush: the disk may not be there before.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    live: BTreeMap<Series, Entry>,
    next: u32,
    /// Values that were not kept, because there were too many series.
    pub(super) refused: u64,
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

    /// The numbers on disk by those until the flush. Series that are new are written.
    pub(super) fn write(
        &self,
        transaction: &Transaction<'_>,
    ) -> rusqlite::Result<BTreeMap<u32, u32>> {
        let mut numbers = BTreeMap::new();
        for (series, entry) in &self.live {
            let on_disk = match entry.on_disk {
                Some(number) => Some(number),
                None => find_or_insert(transaction, series)?,
            };
            numbers.extend(on_disk.map(|number| (entry.local, number)));
        }
        Ok(numbers)
    }

    /// The numbers of those that are meant by the ones until the flush, and those of them that are not on disk yet: their number is one that
    /// none on disk has. Where such a number is asked for and its series is on disk by now, the question is put right.
    pub(super) fn meant(
        &self,
        connection: &Connection,
        select: &mut Select,
    ) -> rusqlite::Result<(BTreeMap<u32, u32>, Vec<Known>)> {
        let (mut numbers, mut new) = (BTreeMap::new(), Vec::new());
        for (series, entry) in &self.live {
            let on_disk = match entry.on_disk {
                Some(number) => Some(number),
                None => find(connection, series)?,
            };
            let waiting = NUMBER_MAX.wrapping_add(entry.local);
            let number = on_disk.unwrap_or(waiting);
            if let Select::Numbers(wanted) = select {
                let early = wanted.iter_mut().filter(|wanted| **wanted == waiting);
                early.for_each(|wanted| *wanted = number);
            }
            if !is_meant(select, number, series) {
                continue;
            }
            numbers.insert(entry.local, number);
            if on_disk.is_none() {
                let series = series.clone();
                new.push(Known { number, series });
            }
        }
        Ok((numbers, new))
    }

    /// These numbers are on disk now, and nothing waits that needs the others: those that were not measured since are forgotten.
    pub(super) fn written(&mut self, numbers: &BTreeMap<u32, u32>) {
        self.live.retain(|_, entry| {
            entry.on_disk = numbers.get(&entry.local).copied();
            if entry.on_disk.is_none() {
                self.refused = self.refused.saturating_add(1);
            }
            std::mem::take(&mut entry.was_seen)
        });
    }

    /// The database began anew: it knows none of them.
    pub(super) fn forget_disk(&mut self) {
        for entry in self.live.values_mut() {
            entry.on_disk = None;
        }
    }
}

fn find_or_insert(transaction: &Transaction<'_>, series: &Series) -> rusqlite::Result<Option<u32>> {
    if let Some(number) = find(transaction, series)? {
        return Ok(Some(number));
    }
    let next: u32 = transaction
        .prepare_cached("SELECT ifnull(max(number), 0) + 1 FROM series")?
        .query_row([], |row| row.get(0))?;
    if next > NUMBER_MAX {
        return Ok(None);
    }
    transaction
        .prepare_cached("INSERT INTO series (number, key, digits) VALUES (?1, ?2, ?3)")?
        .execute(params![next, series.key.to_string(), series.digits])?;
    Ok(Some(next))
}

fn find(connection: &Connection, series: &Series) -> rusqlite::Result<Option<u32>> {
    connection
        .prepare_cached("SELECT number FROM series WHERE key = ?1 AND digits = ?2")?
        .query_row(params![series.key.to_string(), series.digits], |row| {
            row.get(0)
        })
        .optional()
}

/// The series of these numbers, in their order. A number that is not there is left out.
pub(super) fn of_numbers(
    connection: &Connection,
    numbers: impl IntoIterator<Item = u32>,
) -> rusqlite::Result<Vec<(u32, Series)>> {
    let mut statement =
        connection.prepare_cached("SELECT number, key, digits FROM series WHERE number = ?1")?;
    let mut found = Vec::new();
    for number in numbers {
        found.extend(statement.query_row([number], read).optional()?.flatten());
    }
    Ok(found)
}

/// The series on disk that are meant, by number.
pub(super) fn select(connection: &Connection, select: &Select) -> rusqlite::Result<Vec<Known>> {
    let mut statement =
        connection.prepare_cached("SELECT number, key, digits FROM series ORDER BY number")?;
    let mut rows = statement.query([])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let Some((number, series)) = read(row)? else {
            continue;
        };
        if is_meant(select, number, &series) {
            found.push(Known { number, series });
        }
    }
    Ok(found)
}

/// Whether a series is among those that are meant.
fn is_meant(select: &Select, number: u32, series: &Series) -> bool {
    match select {
        Select::All => true,
        Select::Numbers(numbers) => numbers.contains(&number),
        Select::Matching(name, labels) => {
            let has =
                |(label, value): &(String, String)| series.key.label(label) == Some(value.as_str());
            series.key.name() == name && labels.iter().all(has)
        }
    }
}

/// A row; `None` where it is not what this program writes.
fn read(row: &Row<'_>) -> rusqlite::Result<Option<(u32, Series)>> {
    let key: String = row.get(1)?;
    let Ok(key) = Key::parse(&key) else {
        return Ok(None);
    };
    let digits = row.get(2)?;
    Ok(Some((row.get(0)?, Series { key, digits })))
}

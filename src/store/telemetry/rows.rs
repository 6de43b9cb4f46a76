//! Events and log lines: one row each, under a quota of their own.

use std::collections::VecDeque;

use rusqlite::{Connection, Transaction, params};

use super::{signed, unsigned};
use crate::{
    core::{
        event::{Event, EventContent, LogLine},
        outbox::{Range, Row, Stream},
        time::Wall,
    },
    wire::record,
};

/// Rows that wait for the disk at most.
const WAITING_MAX: usize = 1_000;
/// Rows of each stream that are kept.
const KEPT_MAX: u64 = 20_000;

/// A row that is not on disk yet.
#[derive(Debug)]
struct Waiting {
    at: Wall,
    body: String,
    /// Event of the row, during the minute in which it may be repeated.
    event: Option<(u64, EventContent)>,
}

/// Rows of one stream that are not on disk yet. They have their sequences already: those behind the
/// last one on disk, in their order. Only where so many wait that the oldest have to go do the
/// others move up.
#[derive(Debug)]
pub(super) struct Rows {
    table: &'static str,
    waiting: VecDeque<Waiting>,
    /// Rows that went because the disk did not come back in time.
    pub(super) lost: u64,
}

impl Rows {
    /// Nothing waits.
    pub(super) const fn of(table: &'static str) -> Self {
        Self {
            table,
            waiting: VecDeque::new(),
            lost: 0,
        }
    }

    /// Takes events; one that waits already is replaced by what is known of it now. `last` is the
    /// last row on disk. Returns the sequence of each.
    pub(super) fn take_events(&mut self, events: &[Event], last: u64) -> Vec<u64> {
        for event in events {
            let (number, what) = (event.number, &event.what);
            let known = self.waiting.iter_mut().rev().find(|row| {
                let known = row.event.as_ref();
                known.is_some_and(|(known, known_what)| *known == number && known_what == what)
            });
            match known {
                Some(row) => (row.at, row.body) = (event.last, record::event(event)),
                None => self.take(Waiting {
                    at: event.last,
                    body: record::event(event),
                    event: Some((number, what.clone())),
                }),
            }
        }
        let place = |event: &Event| {
            let mut rows = self.numbered(last).rev();
            let found = rows.find_map(|(sequence, row)| {
                let (number, what) = row.event.as_ref()?;
                (*number == event.number && *what == event.what).then_some(sequence)
            });
            found.unwrap_or(last)
        };
        events.iter().map(place).collect()
    }

    /// Takes log lines.
    pub(super) fn take_lines(&mut self, lines: &[LogLine]) {
        for line in lines {
            self.take(Waiting {
                at: line.at,
                body: record::log_line(line),
                event: None,
            });
        }
    }

    /// Rows that wait, of sequences before one, the newest first. `last` is the last row on disk.
    pub(super) fn newest(&self, last: u64, before: Option<u64>, count_max: usize) -> Vec<Row> {
        let before = before.unwrap_or(u64::MAX);
        let numbered = self.numbered(last).rev();
        let wanted = numbered.filter(|(sequence, _)| *sequence < before);
        let row = |(sequence, row): (u64, &Waiting)| Row {
            sequence,
            at: row.at,
            body: row.body.clone(),
        };
        wanted.take(count_max).map(row).collect()
    }

    /// Waiting rows, with the sequences that they will have.
    fn numbered(&self, last: u64) -> impl DoubleEndedIterator<Item = (u64, &Waiting)> {
        self.waiting.iter().enumerate().map(move |(place, row)| {
            let place = u64::try_from(place).unwrap_or(u64::MAX);
            (last.saturating_add(place).saturating_add(1), row)
        })
    }

    fn take(&mut self, row: Waiting) {
        if self.waiting.len() >= WAITING_MAX {
            self.waiting.pop_front();
            self.lost = self.lost.saturating_add(1);
        }
        self.waiting.push_back(row);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Writes what waits behind `last`; returns the new last one.
    pub(super) fn write(&self, transaction: &Transaction<'_>, last: u64) -> rusqlite::Result<u64> {
        let mut insert = transaction.prepare_cached(&format!(
            "INSERT INTO {} (sequence, wall, body) VALUES (?1, ?2, ?3)",
            self.table
        ))?;
        let mut sequence = last;
        for row in &self.waiting {
            sequence = sequence.saturating_add(1);
            insert.execute(params![signed(sequence), row.at.millis(), row.body])?;
        }
        Ok(sequence)
    }

    /// They are on disk.
    pub(super) fn written(&mut self) {
        self.waiting.clear();
    }
}

/// The table of a stream; `None` for those that are not kept as rows here.
pub(super) const fn table(stream: Stream) -> Option<&'static str> {
    match stream {
        Stream::Events => Some("event"),
        Stream::Logs => Some("log"),
        Stream::Metrics | Stream::Audit | Stream::Outcomes => None,
    }
}

/// The last row.
pub(super) fn last(connection: &Connection, table: &str) -> rusqlite::Result<u64> {
    connection
        .prepare_cached(&format!("SELECT ifnull(max(sequence), 0) FROM {table}"))?
        .query_row([], |row| row.get(0))
        .map(unsigned)
}

/// The first rows of a range, as many as fit into so many bytes: at least one, where there is one.
pub(super) fn list(
    connection: &Connection,
    table: &str,
    range: Range,
    bytes_max: usize,
) -> rusqlite::Result<Vec<Row>> {
    let mut statement = connection.prepare_cached(&format!(
        "SELECT sequence, wall, body FROM {table} WHERE sequence BETWEEN ?1 AND ?2 ORDER BY sequence LIMIT 500"
    ))?;
    let mut rows = statement.query([signed(range.from()), signed(range.to())])?;
    let mut found: Vec<Row> = Vec::new();
    let mut bytes = 0_usize;
    while let Some(row) = rows.next()? {
        let row = Row {
            sequence: unsigned(row.get(0)?),
            at: Wall::from_millis(row.get(1)?),
            body: row.get(2)?,
        };
        bytes = bytes.saturating_add(row.body.len());
        let follows = found
            .last()
            .is_none_or(|last| last.sequence + 1 == row.sequence);
        if !follows || (bytes > bytes_max && !found.is_empty()) {
            break;
        }
        found.push(row);
    }
    Ok(found)
}

/// Returns when a row was.
pub(super) fn wall(
    connection: &Connection,
    table: &str,
    sequence: u64,
) -> rusqlite::Result<Option<Wall>> {
    let mut statement = connection.prepare_cached(&format!(
        "SELECT wall FROM {table} WHERE sequence >= ?1 ORDER BY sequence LIMIT 1"
    ))?;
    let mut found = statement.query_map([signed(sequence)], |row| row.get(0))?;
    Ok(found.next().transpose()?.map(Wall::from_millis))
}

/// The rows that are over the quota.
pub(super) fn over_quota(
    connection: &Connection,
    table: &str,
    last: u64,
) -> rusqlite::Result<Option<Range>> {
    let first: Option<i64> = connection
        .prepare_cached(&format!("SELECT min(sequence) FROM {table}"))?
        .query_row([], |row| row.get(0))?;
    let keep_from = last.saturating_sub(KEPT_MAX).saturating_add(1);
    Ok(first.and_then(|first| Range::new(unsigned(first), keep_from.saturating_sub(1))))
}

/// Deletes rows.
pub(super) fn delete(
    transaction: &Transaction<'_>,
    table: &str,
    range: Range,
) -> rusqlite::Result<()> {
    transaction
        .prepare_cached(&format!(
            "DELETE FROM {table} WHERE sequence BETWEEN ?1 AND ?2"
        ))?
        .execute([signed(range.from()), signed(range.to())])
        .map(drop)
}

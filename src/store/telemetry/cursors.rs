//! Cursors of the destinations, which decide what may not be deleted yet.

use std::collections::BTreeSet;

use litemap::LiteMap;
use rusqlite::{Connection, Transaction, params};

use super::{signed, unsigned};
use crate::core::outbox::{Cursor, Range, Stream};

/// Destinations times streams that are known at most.
const CURSORS_MAX: usize = 64;

/// Cursors of all destinations. They are written with the next flush: an acknowledgement that a power cut takes is asked for again.
#[derive(Debug, Default)]
pub(super) struct Cursors {
    known: LiteMap<(String, Stream), (u64, Cursor)>,
    /// Destinations that may still be on disk and are none any more.
    forgotten: BTreeSet<String>,
    is_dirty: bool,
}

impl Cursors {
    /// Those on disk.
    pub(super) fn load(connection: &Connection) -> rusqlite::Result<Self> {
        let mut statement =
            connection.prepare_cached("SELECT destination, stream, epoch, ranges FROM cursor")?;
        let mut rows = statement.query([])?;
        let mut known = LiteMap::new();
        while let Some(row) = rows.next()? {
            let (stream, ranges): (String, String) = (row.get(1)?, row.get(3)?);
            if let Some(stream) = Stream::of(&stream)
                && known.len() < CURSORS_MAX
            {
                let cursor = Cursor::of(ranges.split(' ').filter_map(range));
                known.insert((row.get(0)?, stream), (unsigned(row.get(2)?), cursor));
            }
        }
        Ok(Self {
            known,
            forgotten: BTreeSet::new(),
            is_dirty: false,
        })
    }

    /// Takes those that were on disk when that could be read at last. What was settled since is newer.
    pub(super) fn join(&mut self, found: Self) {
        for (key, at) in found.known {
            if self.forgotten.contains(&key.0) {
                self.is_dirty = true;
                continue;
            }
            let known = self.known.entry(key).or_insert_with(|| at.clone());
            if known.0 == 0 {
                *known = at;
            }
        }
    }

    /// Nobody waits for records under this name any more.
    pub(super) fn forget(&mut self, destination: &str) {
        let before = self.known.len();
        self.known.retain(|(known, _), _| known != destination);
        self.is_dirty |= self.known.len() < before;
        self.forgotten.insert(destination.to_owned());
    }

    /// Position of a destination in a stream: known from now on, whether it has anything or not.
    pub(super) fn position(
        &mut self,
        destination: String,
        stream: Stream,
        epoch: Option<u64>,
    ) -> (u64, Cursor) {
        self.forgotten.remove(&destination);
        let key = (destination, stream);
        let known = self.known.get(&key);
        match (known, epoch) {
            (Some((of, cursor)), None) => (*of, cursor.clone()),
            (Some((of, cursor)), Some(epoch)) if *of == epoch => (epoch, cursor.clone()),
            (_, epoch) => {
                let begin = (epoch.unwrap_or(0), Cursor::default());
                if self.known.len() < CURSORS_MAX || known.is_some() {
                    self.known.insert(key, begin.clone());
                    self.is_dirty = true;
                }
                begin
            }
        }
    }

    /// Keeps what a destination has.
    pub(super) fn settle(&mut self, destination: String, stream: Stream, at: (u64, Cursor)) {
        let key = (destination, stream);
        if self.known.get(&key) != Some(&at)
            && (self.known.len() < CURSORS_MAX || self.known.contains_key(&key))
        {
            self.known.insert(key, at);
            self.is_dirty = true;
        }
    }

    pub(super) const fn is_dirty(&self) -> bool {
        self.is_dirty
    }

    /// Writes those that are not on disk.
    pub(super) fn write(&self, transaction: &Transaction<'_>) -> rusqlite::Result<()> {
        if !self.is_dirty {
            return Ok(());
        }
        let mut delete = transaction.prepare_cached("DELETE FROM cursor WHERE destination = ?1")?;
        for destination in &self.forgotten {
            delete.execute([destination])?;
        }
        let mut upsert = transaction.prepare_cached(
            "INSERT INTO cursor (destination, stream, epoch, ranges) VALUES (?1, ?2, ?3, ?4)
            ON CONFLICT DO UPDATE SET epoch = ?3, ranges = ?4 WHERE epoch != ?3 OR ranges != ?4",
        )?;
        for ((destination, stream), (epoch, cursor)) in &self.known {
            let ranges: Vec<String> = cursor
                .ranges()
                .map(|range| format!("{}-{}", range.from(), range.to()))
                .collect();
            upsert.execute(params![
                destination,
                stream.as_str(),
                signed(*epoch),
                ranges.join(" ")
            ])?;
        }
        Ok(())
    }

    /// They are on disk.
    pub(super) const fn written(&mut self) {
        self.is_dirty = false;
    }

    /// The database began anew: destinations are kept, what they had of it is void.
    pub(super) fn begin_anew(&mut self, is_void: impl Fn(Stream) -> bool) {
        for ((_, stream), at) in &mut self.known {
            if is_void(*stream) {
                *at = (0, Cursor::default());
            }
        }
        self.is_dirty = true;
    }

    /// Returns whether some destination still has to get a record of this range.
    pub(super) fn want(&self, stream: Stream, epoch: u64, range: Range) -> bool {
        self.of(stream)
            .any(|(of, cursor)| of != epoch || !cursor.missing(range).is_empty())
    }

    fn of(&self, stream: Stream) -> impl Iterator<Item = (u64, &Cursor)> {
        self.known
            .iter()
            .filter(move |((_, of), _)| *of == stream)
            .map(|(_, (epoch, cursor))| (*epoch, cursor))
    }

    /// All: who, of which stream, what.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, Stream, u64, &Cursor)> {
        self.known
            .iter()
            .map(|((who, stream), (epoch, cursor))| (who.as_str(), *stream, *epoch, cursor))
    }
}

fn range(text: &str) -> Option<Range> {
    let (from, to) = text.split_once('-')?;
    Range::new(from.parse().ok()?, to.parse().ok()?)
}

//! Cached facts about the file, so that it need not be queried each time.

use rusqlite::Connection;

use super::{boots::Boots, cursors::Cursors, gaps, journal, read, rows, series, unsigned};
use crate::{
    core::outbox::{Backlog, Cursor, Range, Stream, StreamState},
    store::database::NotCommitted,
};

/// Cached knowledge about the file, to be read again whenever it is opened.
#[derive(Debug, Default)]
pub(super) struct Contents {
    pub(super) epoch: u64,
    pub(super) boots: Boots,
    /// Series that are known, at most.
    pub(super) series: usize,
    /// The number of the boot that runs; `None` where none of its samples are on disk.
    pub(super) boot: Option<u32>,
    pub(super) metrics: StreamState,
    /// The newest minute from before this boot.
    pub(super) before_boot: u64,
    pub(super) events: StreamState,
    pub(super) logs: StreamState,
}

impl Contents {
    /// Refuses to write into a file that is not the one that was read.
    pub(super) fn check(&self, connection: &Connection) -> Result<(), NotCommitted> {
        if epoch(connection)? == Some(self.epoch) {
            Ok(())
        } else {
            Err(NotCommitted::Conflict(
                "telemetry.db was recreated".to_owned(),
            ))
        }
    }

    /// Reads them; beside them, when the newest tick of this boot was.
    pub(super) fn load(
        connection: &Connection,
        boot_id: &str,
    ) -> rusqlite::Result<(Self, Option<u64>)> {
        let boots = Boots::load(connection)?;
        let boot = Boots::number(connection, boot_id)?;
        let journal = journal::bounds(connection)?;
        let holdings = |stream, last: u64| {
            let gaps = gaps::load(connection, stream)?;
            let gone = gaps.last().map_or(0, |gap| gap.range.to());
            Ok::<_, rusqlite::Error>(StreamState {
                epoch: 0,
                last: last.max(gone),
                gaps,
            })
        };
        let chunks: i64 =
            connection.query_row("SELECT ifnull(max(sequence_to), 0) FROM chunk", [], |row| {
                row.get(0)
            })?;
        let last = journal.map_or(0, Range::to).max(unsigned(chunks));
        let newest = match journal {
            Some(all) => journal::get(connection, all.to())?,
            None => None,
        };
        let newest = newest.filter(|block| Some(block.boot) == boot);
        let contents = Self {
            epoch: epoch(connection)?.unwrap_or(0),
            before_boot: before(connection, boot, last)?,
            boots,
            series: series::count(connection)?,
            boot,
            metrics: holdings(Stream::Metrics, last)?,
            events: holdings(Stream::Events, rows::last(connection, "event")?)?,
            logs: holdings(Stream::Logs, rows::last(connection, "log")?)?,
        };
        Ok((
            contents,
            newest.and_then(|block| block.ticks.last().copied()),
        ))
    }

    pub(super) const fn of(&self, stream: Stream) -> Option<&StreamState> {
        match stream {
            Stream::Metrics => Some(&self.metrics),
            Stream::Events => Some(&self.events),
            Stream::Logs => Some(&self.logs),
            Stream::Audit | Stream::Outcomes => None,
        }
    }

    pub(super) const fn of_mut(&mut self, stream: Stream) -> Option<&mut StreamState> {
        match stream {
            Stream::Metrics => Some(&mut self.metrics),
            Stream::Events => Some(&mut self.events),
            Stream::Logs => Some(&mut self.logs),
            Stream::Audit | Stream::Outcomes => None,
        }
    }

    /// Returns whether the wall clock of this boot is known.
    pub(super) fn clock_is_known(&self) -> bool {
        self.boot
            .and_then(|boot| self.boots.get(boot))
            .is_none_or(|boot| boot.wall_offset_ms.is_some())
    }
}

/// Epoch of the file's sequences.
fn epoch(connection: &Connection) -> rusqlite::Result<Option<u64>> {
    let mut statement = connection.prepare_cached("SELECT epoch FROM meta")?;
    let mut found = statement.query_map([], |row| row.get(0))?;
    Ok(found.next().transpose()?.map(unsigned))
}

/// The newest minute from before a boot. While its clock is not known all its chunks say that they
/// are of it.
fn before(connection: &Connection, boot: Option<u32>, last: u64) -> rusqlite::Result<u64> {
    let Some(boot) = boot else {
        return Ok(last);
    };
    let first: Option<i64> = connection.query_row(
        "SELECT min(sequence_from) FROM chunk WHERE boot = ?1",
        [boot],
        |row| row.get(0),
    )?;
    if let Some(first) = first {
        return Ok(unsigned(first).saturating_sub(1));
    }
    let Some(all) = journal::bounds(connection)? else {
        return Ok(last);
    };
    let minutes = journal::list(connection, &Boots::default(), all)?;
    let first = minutes.iter().find(|minute| {
        minute
            .block
            .as_ref()
            .is_some_and(|block| block.boot == boot)
    });
    Ok(first.map_or(last, |minute| minute.sequence.saturating_sub(1)))
}

/// Undelivered records of each destination, of the streams in this file.
pub(super) fn backlog(
    connection: &Connection,
    contents: &Contents,
    cursors: &Cursors,
) -> rusqlite::Result<Vec<Backlog>> {
    let mut found = Vec::new();
    for (destination, stream, epoch, cursor) in cursors.iter() {
        let Some(holdings) = contents.of(stream) else {
            continue;
        };
        // What a destination has of another epoch says nothing about this one.
        let none = Cursor::default();
        let cursor = if epoch == contents.epoch {
            cursor
        } else {
            &none
        };
        let oldest = match cursor.oldest_missing(holdings.last) {
            Some(missing) => read::wall(connection, &contents.boots, stream, missing.from())?,
            None => None,
        };
        found.push(Backlog {
            destination: destination.to_owned(),
            stream,
            records: cursor.backlog(holdings.last),
            oldest,
        });
    }
    Ok(found)
}

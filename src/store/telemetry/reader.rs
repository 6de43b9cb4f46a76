//! Read-only access to the files of an agent that need not run, for the command line.

use std::{
    fs::File,
    io::ErrorKind,
    path::{Path, PathBuf},
    time::Duration,
};

use rusqlite::{Connection, OpenFlags};

use super::{
    DATABASE,
    archive::lines,
    boots::Boots,
    chunk,
    contents::{Contents, backlog},
    cursors::Cursors,
    journal::{self, Minute},
    query::{self, Fresh},
    series, unsigned,
};
use crate::{
    core::{
        outbox::{Backlog, Stream, StreamState},
        retention::Resolution,
        series::{Known, Line, Query, Select},
        time::Wall,
    },
    error::{Error, Result},
    store::{schema, trouble},
};

const AS_ROOT: &str = "run it as root or as the agent's user: sudo pipeops-agent metrics …";

/// Read-only access to `telemetry.db`. Calls wait for the disk.
#[derive(Debug)]
pub struct TelemetryReader {
    connection: Connection,
    contents: Contents,
    cursors: Cursors,
    path: PathBuf,
}

/// Samples of one level.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct StoredLevel {
    /// Their resolution.
    pub level: Resolution,
    /// The first.
    pub from: Wall,
    /// The last.
    pub to: Wall,
    /// Their size.
    pub bytes: u64,
}

impl TelemetryReader {
    /// Opens the database in `directory`, whether an agent uses it or not.
    pub fn open(directory: &Path) -> Result<Self> {
        let path = directory.join(DATABASE);
        match File::open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(Error::new(format!("{} is not there", path.display()))
                    .fix("name the agent's state directory: PIPEOPS_STATE_DIR, or --config with its file; the first samples are written a minute after the first start"));
            }
            Err(error) => {
                let error = Error::new(format!("cannot read {}", path.display())).because(&error);
                return Err(error.fix(AS_ROOT));
            }
            Ok(_) => {}
        }
        let cannot = |error: rusqlite::Error| trouble::explain(&path, &error).fix(AS_ROOT);
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&path, flags).map_err(cannot)?;
        if !schema::is_usable(&connection, schema::TELEMETRY.len()).map_err(cannot)? {
            let version = schema::version(&connection).map_err(cannot)?;
            return Err(Error::new(format!(
                "{} has schema {version}, this program knows {}",
                path.display(),
                schema::TELEMETRY.len()
            ))
            .fix("use the program that wrote it, or start the agent once with this one"));
        }
        let (contents, _) = Contents::load(&connection, "").map_err(cannot)?;
        let cursors = Cursors::load(&connection).map_err(cannot)?;
        Ok(Self {
            connection,
            contents,
            cursors,
            path,
        })
    }

    /// Values over a time.
    pub fn query(&self, query: &Query) -> Result<Vec<Line>> {
        let boots = &self.contents.boots;
        let answer = || {
            // One state of the file for the whole answer: an agent may forget series and give their
            // numbers to others meanwhile.
            let transaction = self.connection.unchecked_transaction()?;
            query::answer(&transaction, boots, query, Fresh::default())
        };
        let answered = answer().map_err(|error| self.explain(&error))?;
        Ok(lines(answered)?)
    }

    /// The series that are meant, of those that were there since a moment. Of the days around it
    /// there may be some that ended before.
    pub fn series(&self, select: &Select, since: Wall) -> Result<Vec<Known>> {
        let select = || {
            let transaction = self.connection.unchecked_transaction()?;
            let first: Option<i64> = transaction.query_row(
                "SELECT min(sequence_from) FROM chunk WHERE wall_to > ?1",
                [since.millis()],
                |row| row.get(0),
            )?;
            let journal = journal::all(&transaction, &self.contents.boots)?;
            let is_since = walls(&journal).is_some_and(|(_, last)| last >= since.millis());
            let journal = journal.first().filter(|_| is_since);
            let journal = journal.map(|minute| minute.sequence);
            let first = first.map(unsigned).into_iter().chain(journal).min();
            series::select(&transaction, select, first.unwrap_or(u64::MAX))
        };
        let found = select().map_err(|error| self.explain(&error))?;
        Ok(found.into_iter().map(|stored| stored.known).collect())
    }

    /// Undelivered records of each destination, on disk.
    pub fn backlog(&self) -> Result<Vec<Backlog>> {
        backlog(&self.connection, &self.contents, &self.cursors)
            .map_err(|error| self.explain(&error))
    }

    /// Stored records of a stream in this file.
    pub fn holdings(&self, stream: Stream) -> StreamState {
        let mut holdings = self.contents.of(stream).cloned().unwrap_or_default();
        holdings.epoch = self.contents.epoch;
        holdings
    }

    /// Resolutions of the samples, and the period of each.
    pub fn levels(&self) -> Result<Vec<StoredLevel>> {
        levels(&self.connection, &self.contents.boots).map_err(|error| self.explain(&error))
    }

    /// A time cut into pieces of about this length, without those in which there is nothing.
    pub fn pieces(&self, (from, to): (Wall, Wall), length: Duration) -> Result<Vec<(Wall, Wall)>> {
        let Some((begin, end)) = self.bounds()? else {
            return Ok(Vec::new());
        };
        let length = i64::try_from(length.as_millis()).unwrap_or(i64::MAX).max(1);
        let end = to.min(Wall::from_millis(end.millis().saturating_add(1)));
        let mut at = from.max(begin);
        let mut pieces = Vec::new();
        while at < end {
            // On whole multiples, so that no step lies in two pieces.
            let next = at
                .millis()
                .div_euclid(length)
                .saturating_add(1)
                .saturating_mul(length);
            let next = Wall::from_millis(next).min(end);
            pieces.push((at, next));
            at = next;
        }
        Ok(pieces)
    }

    /// Returns when the first and the last sample were.
    fn bounds(&self) -> Result<Option<(Wall, Wall)>> {
        bounds(&self.connection, &self.contents.boots).map_err(|error| self.explain(&error))
    }

    fn explain(&self, error: &rusqlite::Error) -> Error {
        trouble::explain(&self.path, error)
    }
}

fn levels(connection: &Connection, boots: &Boots) -> rusqlite::Result<Vec<StoredLevel>> {
    let mut found = Vec::new();
    for level in Resolution::ALL {
        let chunks = chunk::list(connection, "level = ?1", [level.number()])?;
        let mut bytes = 0;
        for chunk in &chunks {
            bytes += chunk.bytes(connection)?;
        }
        let mut from = chunks.iter().map(|chunk| chunk.wall.0).min();
        let mut to = chunks.iter().map(|chunk| chunk.wall.1).max();
        if level == Resolution::Raw {
            let journal = journal::all(connection, boots)?;
            let lengths = journal.iter().map(|minute| minute.bytes);
            bytes += u64::try_from(lengths.sum::<usize>()).unwrap_or(0);
            let walls = walls(&journal);
            from = walls.map(|walls| walls.0).into_iter().chain(from).min();
            to = walls.map(|walls| walls.1).into_iter().chain(to).max();
        }
        if let (Some(from), Some(to)) = (from, to) {
            found.push(StoredLevel {
                level,
                from: Wall::from_millis(from),
                to: Wall::from_millis(to),
                bytes,
            });
        }
    }
    Ok(found)
}

/// Returns when the first and the last tick of the journal were.
fn walls(journal: &[Minute]) -> Option<(i64, i64)> {
    let blocks = journal.iter().filter_map(|minute| minute.block.as_ref());
    let walls = blocks.flat_map(|block| block.ticks.iter().map(|tick| block.wall_ms(*tick)));
    Some((walls.clone().min()?, walls.max()?))
}

fn bounds(connection: &Connection, boots: &Boots) -> rusqlite::Result<Option<(Wall, Wall)>> {
    let (from, to): (Option<i64>, Option<i64>) = connection
        .prepare_cached("SELECT min(wall_from), max(wall_to) FROM chunk")?
        .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let journal = walls(&journal::all(connection, boots)?);
    let from = journal.map(|walls| walls.0).into_iter().chain(from).min();
    let to = journal.map(|walls| walls.1).into_iter().chain(to).max();
    Ok(from
        .zip(to)
        .map(|(from, to)| (Wall::from_millis(from), Wall::from_millis(to))))
}

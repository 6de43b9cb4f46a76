//! The files of an agent that need not run: the same questions, for the command line. Nothing is written.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags};

use super::{
    DATABASE,
    archive::lines,
    contents::{Contents, backlog},
    cursors::Cursors,
    query, series,
};
use crate::{
    core::{
        outbox::Backlog,
        series::{Known, Line, Query, Select},
    },
    error::{Error, Result},
    store::{schema, trouble},
};

/// What can be read of `telemetry.db`. Calls wait for the disk.
#[derive(Debug)]
pub struct Reader {
    connection: Connection,
    contents: Contents,
    cursors: Cursors,
    path: PathBuf,
}

impl Reader {
    /// Opens the database in `directory`, whether an agent uses it or not.
    pub fn open(directory: &Path) -> Result<Self> {
        let path = directory.join(DATABASE);
        if !path.exists() {
            return Err(Error::new(format!("{} is not there", path.display()))
                .fix("name the agent's state directory: PIPEOPS_STATE_DIR, or --config with its file; the first samples are written a minute after the first start"));
        }
        let cannot = |error: rusqlite::Error| {
            trouble::explain(&path, &error)
                .fix("run it as root or as the agent's user: sudo pipeops-agent metrics …")
        };
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&path, flags).map_err(cannot)?;
        let version: i64 = connection
            .pragma_query_value(None, "user_version", |row| row.get(0))
            .map_err(cannot)?;
        if usize::try_from(version).ok() != Some(schema::TELEMETRY.len()) {
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
        let answered = query::answer(&self.connection, &self.contents.boots, query)
            .map_err(|error| self.explain(&error))?;
        Ok(lines(answered)?)
    }

    /// The series that are meant.
    pub fn series(&self, select: &Select) -> Result<Vec<Known>> {
        series::select(&self.connection, select).map_err(|error| self.explain(&error))
    }

    /// What waits for each destination, by what is on disk.
    pub fn backlog(&self) -> Result<Vec<Backlog>> {
        backlog(&self.connection, &self.contents, &self.cursors)
            .map_err(|error| self.explain(&error))
    }

    fn explain(&self, error: &rusqlite::Error) -> Error {
        trouble::explain(&self.path, error)
    }
}

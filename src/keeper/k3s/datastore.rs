//! The datastore of k3s as a file: a consistent copy while k3s runs, and its check.
//!
//! kine keeps all objects of the cluster in one SQLite database. It is read here, and never
//! written.

use std::{fs::OpenOptions, os::unix::fs::OpenOptionsExt, path::Path, time::Duration};

use rusqlite::{
    Connection, OpenFlags,
    backup::{self, StepResult},
};

use crate::{
    error::{Error, Result, Retry},
    files::{self, PRIVATE},
};

/// Time that another program may hold the database up.
const BUSY_FOR: Duration = Duration::from_secs(30);

/// Copies the datastore, which may be in use, and checks the copy. Returns the last revision in it.
pub(super) fn copy(from: &Path, to: &Path) -> Result<i64> {
    let cannot = || format!("cannot copy the datastore {}", from.display());
    // Made here, so that it never has another mode; SQLite takes an empty file.
    drop(std::fs::remove_file(to));
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(PRIVATE)
        .open(to)
        .map_err(|error| files::explain(cannot(), &error))?;
    let flags = OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let copied = (|| -> rusqlite::Result<StepResult> {
        let source = Connection::open_with_flags(from, flags | OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        source.busy_timeout(BUSY_FOR)?;
        let mut target =
            Connection::open_with_flags(to, flags | OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        // All pages in one step, from one moment: a step that another process writes beside would
        // have the copy begin again.
        let step = backup::Backup::new(&source, &mut target)?.step(-1)?;
        // No log beside it: the copy is one file.
        target.pragma_update_and_check(None, "journal_mode", "DELETE", |_| Ok(()))?;
        Ok(step)
    })();
    match copied {
        Ok(StepResult::Done) => {}
        Ok(_) => {
            return Err(Error::new(cannot())
                .why("k3s held it for half a minute")
                .fix("try again")
                .retry(Retry::Soon));
        }
        Err(error) => return Err(Error::new(cannot()).because(&error)),
    }
    file.sync_all()
        .map_err(|error| files::explain(cannot(), &error))?;
    check(to)
}

/// Reads all of a copy. Returns the last revision in it.
pub(super) fn check(path: &Path) -> Result<i64> {
    let damaged = || {
        Error::new(format!("the datastore {} is damaged", path.display())).fix(
            "look at the disk: dmesg | tail; then restore a backup: sudo pipeops-agent k3s status lists them",
        )
    };
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let read = (|| -> rusqlite::Result<(String, Option<i64>)> {
        let connection = Connection::open_with_flags(path, flags)?;
        let verdict: String =
            connection.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
        let revision: Option<i64> =
            connection.query_row("SELECT max(id) FROM kine", [], |row| row.get(0))?;
        Ok((verdict, revision))
    })();
    match read {
        Ok((verdict, revision)) if verdict == "ok" => Ok(revision.unwrap_or(0)),
        Ok((verdict, _)) => Err(damaged().why(verdict)),
        Err(error) => Err(damaged().because(&error)),
    }
}

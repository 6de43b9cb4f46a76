//! The datastore of k3s as a file: a consistent copy while k3s runs, and its check.
//!
//! kine keeps all objects of the cluster in one SQLite database. It is read here, and never
//! written. etcd writes a snapshot by itself.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Seek, SeekFrom},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    time::Duration,
};

use rusqlite::{
    Connection, ErrorCode, OpenFlags,
    backup::{self, StepResult},
};

use crate::{
    core::format::hex,
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
            "check the disk: dmesg | tail; then restore a backup: sudo pipeops-agent k3s status lists them",
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

/// Longest datastore that is checked while it is in use: a slow card reads it in half a minute.
pub(super) const CHECKED_BYTES_MAX: u64 = 256 << 20;

/// Damage of a datastore that is in use; `None`: there is none, or it cannot be read now.
pub(super) fn damage(path: &Path) -> Option<String> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let read = (|| -> rusqlite::Result<String> {
        let connection = Connection::open_with_flags(path, flags)?;
        connection.busy_timeout(Duration::from_secs(5))?;
        connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
    })();
    match read {
        Ok(verdict) => (verdict != "ok").then_some(verdict),
        Err(error) => {
            let is_damage = matches!(
                error.sqlite_error_code(),
                Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
            );
            is_damage.then(|| error.to_string())
        }
    }
}

/// Bytes of the SHA-256 at the end of a snapshot of etcd.
const SUM_BYTES: u64 = 32;
/// The magic number of bbolt, etcd's database, behind the head of its first page.
const BOLT: ([u8; 4], u64) = ([0xed, 0xda, 0x0c, 0xed], 16);

/// Reads all of a snapshot of etcd, which ends with the hash of what is before it.
pub(super) fn check_snapshot(path: &Path) -> Result<()> {
    let damaged = || {
        Error::new(format!("the snapshot of etcd {} is damaged", path.display()))
            .fix("try again; if it was compressed: set etcd-snapshot-compress: false in /etc/rancher/k3s/config.yaml")
    };
    let read = || -> io::Result<bool> {
        let mut file = File::open(path)?;
        let Some(bytes) = file.metadata()?.len().checked_sub(SUM_BYTES) else {
            return Ok(false);
        };
        let (mut magic, mut sum) = ([0; 4], [0; 32]);
        file.seek(SeekFrom::Start(BOLT.1))?;
        file.read_exact(&mut magic)?;
        file.seek(SeekFrom::Start(bytes))?;
        file.read_exact(&mut sum)?;
        file.rewind()?;
        let found = files::pass(file.take(bytes), &mut io::sink(), bytes, &mut |_| {})?;
        Ok(magic == BOLT.0 && found.sha256 == hex(&sum))
    };
    match read() {
        Ok(true) => Ok(()),
        Ok(false) => Err(damaged().why("its content does not have the hash at its end")),
        Err(error) => Err(damaged().because(&error)),
    }
}

#[cfg(test)]
mod tests {
    use ring::digest::{SHA256, digest};

    use super::*;

    #[test]
    fn a_page_that_was_not_written_whole_is_damage_and_a_busy_datastore_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.db");
        let writer = Connection::open(&path).unwrap();
        let fill = "PRAGMA journal_mode = WAL; CREATE TABLE kine (id INTEGER PRIMARY KEY, name TEXT);
            WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000)
            INSERT INTO kine (name) SELECT 'a name of some length ' || i FROM n;
            PRAGMA wal_checkpoint(TRUNCATE); BEGIN IMMEDIATE; INSERT INTO kine (name) VALUES ('x');";
        writer.execute_batch(fill).unwrap();
        assert_eq!(damage(&path), None);
        drop(writer);
        let mut content = std::fs::read(&path).unwrap();
        let middle = content.len() / 8192 * 4096;
        content[middle..middle + 512].fill(0xff);
        files::replace(&path, &content, PRIVATE).unwrap();
        assert!(damage(&path).is_some());
        files::replace(&path, b"something else, of some length", PRIVATE).unwrap();
        assert!(damage(&path).is_some());
        assert_eq!(damage(&folder.path().join("none")), None);
    }

    #[test]
    fn a_snapshot_of_etcd_is_taken_whole_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("snapshot");
        let mut content = vec![0; 4096];
        content[16..20].copy_from_slice(&BOLT.0);
        let is_fine = |content: &[u8], sum: &[u8]| {
            files::replace(&path, &[content, sum].concat(), PRIVATE).unwrap();
            check_snapshot(&path).is_ok()
        };
        let sum = digest(&SHA256, &content);
        assert!(is_fine(&content, sum.as_ref()));
        assert!(!is_fine(&content[1..], sum.as_ref()), "shorter");
        assert!(!is_fine(&content, &[]), "without its hash");
        assert!(!is_fine(&[], b"PK"), "something else");
        content[17] = 0;
        let sum = digest(&SHA256, &content);
        assert!(!is_fine(&content, sum.as_ref()), "no database");
    }
}

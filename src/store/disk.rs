//! The files of the store and what may be wrong with them: opened, found damaged and moved aside, full, gone, and back again.
//!
//! It runs on the store's thread alone and knows no table but by the transactions that it is given.

use std::{
    fs::{File, OpenOptions, Permissions},
    io::Write,
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use nix::{fcntl::Flock, sys::statvfs::statvfs};
use rusqlite::{Connection, ErrorCode, OpenFlags, Transaction, TransactionBehavior, limits::Limit};

use super::{
    Failure, Loaded, audit,
    identity::{self, KeptIdentity},
    journal,
    notes::{self, Notes},
    schema::{self, Migrated},
};
use crate::{
    core::{
        health::{Condition, Severity},
        time::Wall,
    },
    error::{Error, Result, Retry},
    files,
};

/// The name of the database in the state directory.
pub const DATABASE: &str = "state.db";
/// The name of the small file that has the identity once more.
pub const IDENTITY: &str = "identity.json";
/// The name of the small file with notes.
pub(super) const NOTES: &str = "notes.json";
/// Every condition that the store reports.
pub const CONDITIONS: [&str; 6] = [FULL, UNWRITABLE, NEWER, DAMAGED, AUDIT_LOST, OTHER_IDENTITY];

const FULL: &str = "store.full";
const UNWRITABLE: &str = "store.unwritable";
const NEWER: &str = "store.newer";
const DAMAGED: &str = "store.damaged";
const AUDIT_LOST: &str = "store.audit-lost";
const OTHER_IDENTITY: &str = "store.other-identity";

/// Room that is given up when the disk is full, so that the state can still be written: 200 changes of identity or 100 audit rows.
const RESERVE: &str = "reserve";
const RESERVE_BYTES: usize = 1 << 20;
/// Free space above which the reserve is taken (again).
const RESERVE_FREE_BYTES: u64 = 4 << 20;
/// A disk with less free space is full: SQLite asks for its log in pieces of 32 KiB.
const FULL_FREE_BYTES: u64 = 256 * 1024;
/// Damaged databases that are kept. The newest say most.
const DAMAGED_MAX: usize = 3;
/// The longest value in any column: an intent with its manifests.
const VALUE_BYTES_MAX: i32 = 4 << 20;

/// Why a transaction was not committed.
#[derive(Debug)]
pub(super) enum Refusal {
    /// SQLite or the disk.
    Sql(rusqlite::Error),
    /// What is on disk does not allow it.
    Conflict(String),
}

impl From<rusqlite::Error> for Refusal {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

#[derive(Debug)]
enum Home {
    Open(Connection),
    /// It cannot be opened; tried again with each `tend`.
    Away(Error),
    /// A newer program wrote it: hands off.
    Newer(Error),
}

/// Everything that the store's thread has.
#[derive(Debug)]
pub(super) struct Disk {
    directory: PathBuf,
    lock: Option<Flock<File>>,
    home: Home,
    /// The latest wall clock that anybody told.
    wall: Wall,
    /// Why the last write failed, where it did.
    trouble: Option<Error>,
    is_full: bool,
    pub(super) identity: KeptIdentity,
    pub(super) audit: audit::Waiting,
    pub(super) notes: Notes,
}

impl Disk {
    /// Opens what is there.
    pub(super) fn open(directory: PathBuf, lock: Option<Flock<File>>, now: Wall) -> (Self, Loaded) {
        let mut disk = Self {
            directory,
            lock,
            home: Home::Away(Error::new("not opened yet")),
            wall: now,
            trouble: None,
            is_full: false,
            identity: KeptIdentity::default(),
            audit: audit::Waiting::new(now),
            notes: Notes::default(),
        };
        // What cannot be removed is tried again by the next start; it takes room and does no harm.
        drop(files::remove_unfinished(&disk.directory));
        disk.reopen();
        disk.notes = notes::read(&disk.directory);
        let file = match identity::read_file(&disk.directory) {
            Ok(file) => file,
            Err(newer) => {
                disk.home = Home::Newer(newer);
                None
            }
        };
        let database = disk.read(identity::select).ok().flatten();
        disk.identity = KeptIdentity::found(database.as_ref(), file.as_ref());
        let conditions = disk.conditions();
        let loaded = Loaded {
            database,
            file,
            notes: disk.notes.clone(),
            conditions,
        };
        (disk, loaded)
    }

    /// Runs `work` in one transaction that is on disk when this returns.
    pub(super) fn write<T>(
        &mut self,
        work: impl Fn(&Transaction<'_>) -> std::result::Result<T, Refusal>,
    ) -> std::result::Result<T, Failure> {
        // Mended at most three times: by a new look at what seemed damaged, by moving it aside, by giving up the reserve.
        for attempt in 0..4 {
            let refusal = match transact(self.connection()?, &work) {
                Ok(value) => {
                    self.trouble = None;
                    return Ok(value);
                }
                Err(refusal) => refusal,
            };
            let error = match refusal {
                Refusal::Conflict(why) => return Err(Failure::Conflict(why)),
                Refusal::Sql(error) => error,
            };
            if !self.mend(&error, attempt) {
                let error = explain(&self.directory.join(DATABASE), &error);
                self.trouble = Some(error.clone());
                return Err(Failure::Disk(error));
            }
        }
        Err(Failure::Disk(Error::new("cannot mend state.db")))
    }

    /// Reads without writing.
    pub(super) fn read<T>(
        &mut self,
        work: impl Fn(&Connection) -> rusqlite::Result<T>,
    ) -> std::result::Result<T, Failure> {
        for attempt in 0..3 {
            let error = match work(self.connection()?) {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            if !is_damage(&error) || !self.mend(&error, attempt) {
                return Err(Failure::Disk(explain(
                    &self.directory.join(DATABASE),
                    &error,
                )));
            }
        }
        Err(Failure::Disk(Error::new("cannot mend state.db")))
    }

    /// See [`super::Handle::tend`].
    pub(super) fn tend(&mut self, now: Wall) -> Vec<Condition> {
        self.wall = now;
        // After an I/O error the connection's idea of the files may be wrong: it is made anew.
        if self.trouble.is_some() || matches!(self.home, Home::Away(_)) {
            self.reopen();
        }
        self.reserve();
        self.settle();
        let thinned = self.write(|transaction| {
            audit::thin(transaction)?;
            journal::thin(transaction)
        });
        // Its failure is remembered as trouble, where it is one.
        drop(thinned);
        self.conditions()
    }

    /// Writes what waits and copies the write-ahead log into the database.
    pub(super) fn close(&mut self) {
        self.settle();
        if let Home::Open(connection) = &self.home {
            // Where it fails, the next start reads the log: nothing is lost.
            drop(connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())));
        }
        self.home = Home::Away(Error::new("the store is closed"));
    }

    /// The latest time that anybody told.
    pub(super) fn saw(&mut self, wall: Wall) {
        self.wall = wall;
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Whether a newer program wrote what is there.
    pub(super) const fn newer(&self) -> Option<&Error> {
        match &self.home {
            Home::Newer(error) => Some(error),
            Home::Open(_) | Home::Away(_) => None,
        }
    }

    /// Writes what waited for the disk. What fails waits on.
    fn settle(&mut self) {
        identity::settle(self);
        audit::settle(self);
    }

    fn connection(&mut self) -> std::result::Result<&mut Connection, Failure> {
        match &mut self.home {
            Home::Open(connection) => Ok(connection),
            Home::Away(error) | Home::Newer(error) => Err(Failure::Disk(error.clone())),
        }
    }

    /// Does what helps against an error. `false` where nothing does.
    fn mend(&mut self, error: &rusqlite::Error, attempt: u32) -> bool {
        if !is_damage(error) {
            return is_full(error, &self.directory) && self.give_up_reserve();
        }
        // SQLite says "corrupt" for a read that failed, too: only what is damaged at a second look is given up.
        if attempt > 0 {
            self.home = Home::Away(Error::new("being replaced"));
            if let Err(error) = self.move_aside() {
                self.home = Home::Away(error);
                return false;
            }
        }
        self.reopen();
        matches!(self.home, Home::Open(_))
    }

    /// Gives up the reserve where the disk is full. `false` where that changes nothing.
    pub(super) fn make_room(&mut self) -> bool {
        free_bytes(&self.directory).is_some_and(|free| free < FULL_FREE_BYTES)
            && self.give_up_reserve()
    }

    fn give_up_reserve(&mut self) -> bool {
        self.is_full = true;
        std::fs::remove_file(self.directory.join(RESERVE)).is_ok()
    }

    /// Opens the database, where a newer program has not been at work.
    fn reopen(&mut self) {
        if matches!(self.home, Home::Newer(_)) {
            return;
        }
        self.home = match self.opened() {
            Ok(home) => home,
            Err(error) => Home::Away(error),
        };
        if matches!(self.home, Home::Open(_)) {
            self.trouble = None;
            let newest = self.read(audit::newest).unwrap_or_default();
            self.audit.start_after(newest);
            self.reserve();
        }
    }

    fn opened(&mut self) -> Result<Home> {
        // The old connection first: its locks would be in the way of the new one.
        self.home = Home::Away(Error::new("being opened"));
        files::create_directory(&self.directory)?;
        if self.lock.is_none() {
            self.lock = super::lock(&self.directory)?;
        }
        let path = self.directory.join(DATABASE);
        let cannot = |error| explain(&path, &error);
        for _ in 0..2 {
            match open_database(&path) {
                Ok(home) => return Ok(home),
                // Looked at twice before it is given up: a read that failed looks like damage.
                Err(error) if is_damage(&error) => {}
                Err(error) => return Err(cannot(error)),
            }
        }
        self.move_aside()?;
        open_database(&path).map_err(cannot)
    }

    /// Makes way for an empty database.
    fn move_aside(&mut self) -> Result<()> {
        move_aside(&self.directory, self.wall)?;
        self.identity.is_in_database = false;
        Ok(())
    }

    /// Takes the reserve where there is room for it.
    fn reserve(&mut self) {
        let path = self.directory.join(RESERVE);
        let length = std::fs::metadata(&path).map_or(0, |metadata| metadata.len());
        if length >= u64::try_from(RESERVE_BYTES).unwrap_or(u64::MAX) {
            self.is_full = false;
            return;
        }
        if self.newer().is_some() {
            return;
        }
        let has_room = free_bytes(&self.directory).is_some_and(|free| free >= RESERVE_FREE_BYTES);
        self.is_full = !has_room || fill_reserve(&path).is_err_and(|error| is_no_room(&error));
    }

    fn conditions(&self) -> Vec<Condition> {
        let mut found = Vec::new();
        let mut say = |id, severity, error: Error| {
            found.push(Condition {
                id,
                severity,
                since: self.wall,
                sentence: error.sentence(),
                fix: error.fix,
            });
        };
        match (&self.home, &self.trouble) {
            (Home::Newer(error), _) => say(NEWER, Severity::Critical, error.clone()),
            (Home::Away(error), _) | (Home::Open(_), Some(error)) => {
                let sentence = format!(
                    "{}; the agent goes on from memory, and no change can begin",
                    error.sentence()
                );
                let what = Error::new(sentence);
                let fix = error.fix.clone();
                say(UNWRITABLE, Severity::Critical, Error { fix, ..what });
            }
            (Home::Open(_), None) => {}
        }
        if self.is_full {
            say(FULL, Severity::Warning, full(&self.directory));
        }
        if let Some(newest) = damaged(&self.directory).pop() {
            let path = self.directory.join(newest);
            say(
                DAMAGED,
                Severity::Warning,
                Error::new(format!(
                    "the database was damaged and begun anew; what was in it is in {}",
                    path.display()
                ))
                .fix(format!(
                    "check the disk (dmesg | grep -i error); once it is not needed any more: rm {}*",
                    path.display()
                )),
            );
        }
        if let Some(lost) = self.audit.lost_in_words() {
            say(AUDIT_LOST, Severity::Warning, Error::new(lost));
        }
        if let Some(other) = self.identity.other_in_words() {
            say(
                OTHER_IDENTITY,
                Severity::Warning,
                Error::new(other).fix("restart the agent to go on as the one on disk"),
            );
        }
        found
    }
}

fn transact<T>(
    connection: &mut Connection,
    work: impl Fn(&Transaction<'_>) -> std::result::Result<T, Refusal>,
) -> std::result::Result<T, Refusal> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let value = work(&transaction)?;
    transaction.commit()?;
    Ok(value)
}

fn open_database(path: &Path) -> rusqlite::Result<Home> {
    // Made here and not by SQLite, so that it never has another mode, whatever the umask is. The log gets the same.
    let made = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(files::PRIVATE)
        .open(path);
    if let Ok(file) = made {
        // A file of another owner keeps its mode; SQLite then says what it cannot do.
        drop(file.set_permissions(Permissions::from_mode(files::PRIVATE)));
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags)?;
    set_up(&connection)?;
    if let Migrated::Newer { file, program } = schema::migrate(&mut connection)? {
        let error = Error::new(format!(
            "{} is from a newer pipeops-agent (schema {file}, this program knows {program})",
            path.display()
        ))
        .fix("install the newer pipeops-agent again, or move the file away to begin anew");
        return Ok(Home::Newer(error));
    }
    Ok(Home::Open(connection))
}

fn set_up(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, VALUE_BYTES_MAX)?;
    connection.busy_timeout(std::time::Duration::from_secs(2))?;
    // FULL: what was answered is on disk after a power cut. 256 pages: the log stays at about 1 MiB.
    connection.execute_batch(
        "PRAGMA journal_mode = WAL;
         PRAGMA synchronous = FULL;
         PRAGMA foreign_keys = ON;
         PRAGMA trusted_schema = OFF;
         PRAGMA wal_autocheckpoint = 256;
         PRAGMA journal_size_limit = 1048576;
         PRAGMA cache_size = -256;
         PRAGMA temp_store = MEMORY;",
    )?;
    // The database is small: to read all of it takes milliseconds, and damage is found before it is built on.
    let verdict: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if verdict == "ok" {
        return Ok(());
    }
    // A page that could not be read now is not a damaged one: the database must not be given up for a passing error.
    let code = if verdict.contains("error code=") {
        rusqlite::ffi::SQLITE_IOERR
    } else {
        rusqlite::ffi::SQLITE_CORRUPT
    };
    Err(rusqlite::Error::SqliteFailure(
        rusqlite::ffi::Error::new(code),
        Some(verdict),
    ))
}

fn is_damage(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
    )
}

/// A full disk shows as an I/O error where SQLite needs room for its shared memory.
fn is_full(error: &rusqlite::Error, directory: &Path) -> bool {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => true,
        Some(ErrorCode::SystemIoFailure | ErrorCode::CannotOpen) => {
            free_bytes(directory).is_some_and(|free| free < FULL_FREE_BYTES)
        }
        Some(_) | None => false,
    }
}

/// Whether an I/O error says that there is no room.
fn is_no_room(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded)
}

fn full(directory: &Path) -> Error {
    Error::new(format!(
        "the disk that holds {} is full",
        directory.display()
    ))
    .fix(format!(
        "make room: df -h {}; du -xh / | sort -h | tail",
        directory.display()
    ))
    .retry(Retry::Later)
}

fn explain(path: &Path, error: &rusqlite::Error) -> Error {
    let directory = path.parent().unwrap_or(path);
    if is_full(error, directory) {
        return full(directory).because(error);
    }
    let explained = Error::new(format!("cannot use {}", path.display())).because(error);
    match error.sqlite_error_code() {
        Some(ErrorCode::ReadOnly) => explained
            .fix("the file system is read-only or the file belongs to another user: dmesg | tail; ls -l")
            .retry(Retry::Later),
        Some(ErrorCode::SystemIoFailure) => explained
            .fix("the disk reports errors: dmesg | tail; replace the card or disk")
            .retry(Retry::Later),
        Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => explained
            .fix("check that the directory exists, is mounted and belongs to the agent's user")
            .retry(Retry::Later),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => explained
            .fix("another program holds the database: fuser -v on the file")
            .retry(Retry::Soon),
        Some(_) | None => explained,
    }
}

/// Renames the database and its log, so that they can be looked at, and a new one can begin.
fn move_aside(directory: &Path, wall: Wall) -> Result<()> {
    let stamp: String = wall
        .rfc3339()
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .collect();
    let what = || format!("cannot move the damaged {DATABASE} aside");
    let aside = directory.join(format!("{DATABASE}.damaged-{stamp}"));
    for ending in ["-wal", "-shm", ""] {
        let from = directory.join(format!("{DATABASE}{ending}"));
        let mut to = aside.clone().into_os_string();
        to.push(ending);
        match std::fs::rename(&from, PathBuf::from(to)) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(files::explain(what(), &error)),
        }
    }
    files::sync_directory(directory).map_err(|error| files::explain(what(), &error))?;
    let all = damaged(directory);
    for old in all.iter().rev().skip(DAMAGED_MAX) {
        for ending in ["", "-wal", "-shm"] {
            // What cannot be removed is tried again with the next damaged one.
            drop(std::fs::remove_file(
                directory.join(format!("{old}{ending}")),
            ));
        }
    }
    Ok(())
}

/// The names of damaged databases that were moved aside, the oldest first.
fn damaged(directory: &Path) -> Vec<String> {
    let prefix = format!("{DATABASE}.damaged-");
    let mut names: Vec<_> = std::fs::read_dir(directory)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| {
            name.starts_with(&prefix) && !name.ends_with("-wal") && !name.ends_with("-shm")
        })
        .collect();
    names.sort();
    names
}

fn free_bytes(directory: &Path) -> Option<u64> {
    let space = statvfs(directory).ok()?;
    #[expect(
        clippy::useless_conversion,
        reason = "the fields have 32 bit on 32-bit machines"
    )]
    let (block, available) = (
        u64::from(space.fragment_size()),
        u64::from(space.blocks_available()),
    );
    Some(available.saturating_mul(block))
}

/// Writes the reserve for real: a hole would take no room.
fn fill_reserve(path: &Path) -> std::io::Result<()> {
    // A half-written one is removed first; a missing one is no error.
    drop(std::fs::remove_file(path));
    let filled = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(files::PRIVATE)
        .open(path)
        .and_then(|mut file| {
            let piece = [0xa5; 4096];
            for _ in 0..RESERVE_BYTES / piece.len() {
                file.write_all(&piece)?;
            }
            file.sync_all()
        });
    if filled.is_err() {
        drop(std::fs::remove_file(path));
    }
    filled
}

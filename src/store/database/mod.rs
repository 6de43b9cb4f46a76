//! One database file and its failures: open, damaged and moved aside, full, gone, back again.
//!
//! It knows no table except through the transactions that it is given.

use std::{
    fs::{OpenOptions, Permissions},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior, limits::Limit};

use super::{
    Failure,
    quarantine::{self, Copies},
    reserve::Reserve,
    schema::{self, Migrated},
    trouble,
};
use crate::{
    core::time::Wall,
    error::{Error, Result},
    files,
};

/// The longest value in any column: an intent with its manifests.
const VALUE_BYTES_MAX: i32 = 4 << 20;
/// Time that another program may hold the file.
const BUSY_FOR: Duration = Duration::from_secs(2);

/// Common settings of all files of one kind.
#[derive(Debug)]
pub(super) struct Form {
    /// The name of the file in the state directory.
    pub(super) file: &'static str,
    /// The steps from an empty file to the schema of this program.
    pub(super) migrations: &'static [&'static str],
    /// Pragmas that decide how it is written.
    pub(super) pragmas: &'static str,
    /// True if all of it is read when it is opened, so that damage is found before it is built on:
    /// for small ones.
    pub(super) is_checked: bool,
    /// Damaged ones that are kept, before the owner says otherwise.
    pub(super) damaged: Copies,
}

/// Reasons why a transaction was not committed.
#[derive(Debug)]
pub(super) enum NotCommitted {
    /// SQLite or the disk.
    Sql(rusqlite::Error),
    /// The content on disk does not allow it.
    Conflict(String),
}

impl From<rusqlite::Error> for NotCommitted {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

#[derive(Debug)]
enum Home {
    Open(Connection),
    /// It cannot be opened; tried again with each [`Database::recover`].
    Away(Error),
    /// A newer program wrote it: hands off.
    Newer(Error),
}

/// State of a database.
#[derive(Debug)]
pub(super) enum DatabaseState<'a> {
    /// It was written the last time that was tried.
    Well,
    /// It cannot be opened or written, for this reason.
    Unwritable(&'a Error),
    /// A newer program wrote it.
    Newer(&'a Error),
}

/// One file.
#[derive(Debug)]
pub(super) struct Database {
    directory: PathBuf,
    form: &'static Form,
    home: Home,
    /// Latest known wall clock.
    wall: Wall,
    /// Reason why the last write failed, where it did.
    trouble: Option<Error>,
    /// Room to give up when the disk is full.
    reserve: Option<Reserve>,
    was_replaced: bool,
    /// Damaged ones that are kept.
    damaged: Copies,
    /// True if a damaged one was larger than that and is gone.
    has_removed_damaged: bool,
}

impl Database {
    /// A database that is not opened yet.
    pub(super) fn new(
        directory: PathBuf,
        form: &'static Form,
        reserve: Option<Reserve>,
        now: Wall,
    ) -> Self {
        Self {
            directory,
            form,
            home: Home::Away(Error::new("not opened yet")),
            wall: now,
            trouble: None,
            reserve,
            was_replaced: false,
            damaged: form.damaged,
            has_removed_damaged: false,
        }
    }

    /// Lets damaged ones take no more than so many bytes, from now on.
    pub(super) fn bound_damaged(&mut self, bytes: u64) {
        self.damaged.bytes = bytes;
        quarantine::bound(&self.directory, self.form.file, self.damaged);
    }

    /// Size of the damaged files.
    pub(super) fn damaged_bytes(&self) -> u64 {
        quarantine::bytes(&self.directory, self.form.file)
    }

    /// Returns whether a damaged one was too large to be kept, since the start.
    pub(super) const fn has_removed_damaged(&self) -> bool {
        self.has_removed_damaged
    }

    /// Rewrites the database into a new file without its free pages, which takes as much room as it
    /// has then. `false`: somebody reads it now.
    ///
    /// The new file takes the place of the old one in one step, and only where no log is left that
    /// belongs to the old one.
    pub(super) fn rebuild(&mut self) -> std::result::Result<bool, Failure> {
        let path = self.path();
        let new = self
            .directory
            .join(format!(".{}.rebuilt{}", self.form.file, files::UNFINISHED));
        let rebuilt = self.connection().and_then(|connection| {
            let made = make_compact(connection, &new);
            made.map_err(|error| Failure::Disk(trouble::explain(&path, &error)))
        });
        let is_alone = match rebuilt {
            Ok(is_alone) => is_alone,
            Err(failure) => {
                drop(std::fs::remove_file(&new));
                return Err(failure);
            }
        };
        let log = self.directory.join(format!("{}-wal", self.form.file));
        if !is_alone || log.exists() {
            drop(std::fs::remove_file(&new));
            self.reopen();
            return Ok(false);
        }
        self.home = Home::Away(Error::new("being rebuilt"));
        let put =
            std::fs::rename(&new, &path).and_then(|()| files::sync_directory(&self.directory));
        self.reopen();
        put.map(|()| true).map_err(|error| {
            Failure::Disk(files::explain(
                format!("cannot rebuild {}", path.display()),
                &error,
            ))
        })
    }

    /// Runs `work` in one transaction that is on disk when this returns.
    pub(super) fn write<T>(
        &mut self,
        work: impl Fn(&Transaction<'_>) -> std::result::Result<T, NotCommitted>,
    ) -> std::result::Result<T, Failure> {
        // Mended at most three times: by a new look at what seemed damaged, by moving it aside, by
        // giving up the reserve.
        for attempt in 0..4 {
            let refusal = match transact(self.connection()?, &work) {
                Ok(value) => {
                    self.trouble = None;
                    return Ok(value);
                }
                Err(refusal) => refusal,
            };
            let error = match refusal {
                NotCommitted::Conflict(why) => return Err(Failure::Conflict(why)),
                NotCommitted::Sql(error) => error,
            };
            if !self.mend(&error, attempt) {
                let error = self.explain(&error);
                self.trouble = Some(error.clone());
                return Err(Failure::Disk(error));
            }
        }
        Err(self.unrecoverable())
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
            if !trouble::is_damage(&error) || !self.mend(&error, attempt) {
                return Err(Failure::Disk(self.explain(&error)));
            }
        }
        Err(self.unrecoverable())
    }

    /// Copies the write-ahead log into the database and lets go of it.
    pub(super) fn close(&mut self) {
        if let Home::Open(connection) = &self.home {
            // Where it fails, the next start reads the log: nothing is lost.
            drop(connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())));
        }
        self.home = Home::Away(Error::new("the store is closed"));
    }

    /// Sets the latest known time.
    pub(super) const fn set_latest_time(&mut self, wall: Wall) {
        self.wall = wall;
    }

    /// Latest known time.
    pub(super) const fn wall(&self) -> Wall {
        self.wall
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Current state.
    pub(super) const fn state(&self) -> DatabaseState<'_> {
        match (&self.home, &self.trouble) {
            (Home::Newer(error), _) => DatabaseState::Newer(error),
            (Home::Away(error), _) | (Home::Open(_), Some(error)) => {
                DatabaseState::Unwritable(error)
            }
            (Home::Open(_), None) => DatabaseState::Well,
        }
    }

    /// Returns whether it is open.
    const fn is_open(&self) -> bool {
        matches!(self.home, Home::Open(_))
    }

    /// Returns whether a newer program wrote what is there.
    pub(super) const fn newer(&self) -> Option<&Error> {
        match &self.home {
            Home::Newer(error) => Some(error),
            Home::Open(_) | Home::Away(_) => None,
        }
    }

    /// Returns whether an empty database took the place of a damaged one since this was asked last.
    pub(super) const fn was_replaced(&mut self) -> bool {
        std::mem::replace(&mut self.was_replaced, false)
    }

    /// The damaged one that was moved aside last.
    pub(super) fn newest_damaged(&self) -> Option<PathBuf> {
        let newest = quarantine::damaged(&self.directory, self.form.file).pop()?;
        Some(self.directory.join(newest))
    }

    /// Lays hands off, because a newer program has been at work here.
    pub(super) fn leave_to_newer(&mut self, error: Error) {
        self.home = Home::Newer(error);
    }

    /// Does not open it for now.
    pub(super) fn stay_away(&mut self, error: Error) {
        self.home = Home::Away(error);
    }

    /// Opens it again where it is not open or the last write failed: after an I/O error the
    /// connection's idea of the files may be wrong. Returns whether it was opened now.
    pub(super) fn recover(&mut self) -> bool {
        let is_due = self.trouble.is_some() || matches!(self.home, Home::Away(_));
        if is_due {
            self.reopen();
        }
        is_due && self.is_open()
    }

    /// Opens the database, where a newer program has not been at work.
    fn reopen(&mut self) {
        if self.newer().is_some() {
            return;
        }
        self.home = match self.opened() {
            Ok(home) => home,
            Err(error) => Home::Away(error),
        };
        if self.is_open() {
            self.trouble = None;
            self.take_reserve();
        }
    }

    /// Takes the reserve where there is room for it.
    pub(super) fn take_reserve(&mut self) {
        if self.newer().is_none()
            && let Some(reserve) = &mut self.reserve
        {
            reserve.take();
        }
    }

    /// Returns whether the disk is so full that the reserve is gone.
    pub(super) fn is_full(&self) -> bool {
        self.reserve.as_ref().is_some_and(Reserve::is_spent)
    }

    /// Gives up the reserve where the disk is full. `false` where that changes nothing.
    pub(super) fn make_room(&mut self) -> bool {
        trouble::has_no_room(&self.directory) && self.give_up_reserve()
    }

    fn connection(&mut self) -> std::result::Result<&mut Connection, Failure> {
        match &mut self.home {
            Home::Open(connection) => Ok(connection),
            Home::Away(error) | Home::Newer(error) => Err(Failure::Disk(error.clone())),
        }
    }

    /// Does what helps against an error. `false` where nothing does.
    fn mend(&mut self, error: &rusqlite::Error, attempt: u32) -> bool {
        if !trouble::is_damage(error) {
            return trouble::is_full(error, &self.directory) && self.give_up_reserve();
        }
        // SQLite says "corrupt" for a read that failed, too: only what is damaged at a second look
        // is given up.
        if attempt > 0 {
            self.home = Home::Away(Error::new("being replaced"));
            if let Err(error) = self.move_aside() {
                self.home = Home::Away(error);
                return false;
            }
        }
        self.reopen();
        self.is_open()
    }

    fn give_up_reserve(&mut self) -> bool {
        self.reserve.as_mut().is_some_and(Reserve::give_up)
    }

    fn opened(&mut self) -> Result<Home> {
        // The old connection first: its locks would be in the way of the new one.
        self.home = Home::Away(Error::new("being opened"));
        files::create_directory(&self.directory)?;
        for _ in 0..2 {
            match open(&self.path(), self.form) {
                Ok(home) => return Ok(home),
                // Looked at twice before it is given up: a read that failed looks like damage.
                Err(error) if trouble::is_damage(&error) => {}
                Err(error) => return Err(self.explain(&error)),
            }
        }
        self.move_aside()?;
        open(&self.path(), self.form).map_err(|error| self.explain(&error))
    }

    /// Makes way for an empty database.
    fn move_aside(&mut self) -> Result<()> {
        let is_kept =
            quarantine::move_aside(&self.directory, self.form.file, self.damaged, self.wall)?;
        self.has_removed_damaged |= !is_kept;
        self.was_replaced = true;
        Ok(())
    }

    fn path(&self) -> PathBuf {
        self.directory.join(self.form.file)
    }

    fn explain(&self, error: &rusqlite::Error) -> Error {
        trouble::explain(&self.path(), error)
    }

    fn unrecoverable(&self) -> Failure {
        Failure::Disk(Error::new(format!("cannot mend {}", self.form.file)))
    }
}

/// Writes a compact copy, and lets go of the log. `false`: another program has the database open,
/// and so the log.
fn make_compact(connection: &Connection, new: &Path) -> rusqlite::Result<bool> {
    let cannot = |error: std::io::Error| rusqlite::Error::ToSqlConversionFailure(Box::new(error));
    // Made here, so that it never has another mode; SQLite takes an empty file.
    drop(std::fs::remove_file(new));
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(files::PRIVATE)
        .open(new)
        .map_err(cannot)?;
    let name = new.to_string_lossy();
    connection.execute("VACUUM INTO ?1", [name.as_ref()])?;
    file.sync_all().map_err(cannot)?;
    // A log that stayed would be taken for one of the new file. Without other readers this removes
    // it.
    let mode = connection.pragma_update_and_check(None, "journal_mode", "DELETE", |row| {
        row.get::<_, String>(0)
    });
    match mode {
        Ok(mode) => Ok(mode == "delete"),
        Err(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy) => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

fn transact<T>(
    connection: &mut Connection,
    work: impl Fn(&Transaction<'_>) -> std::result::Result<T, NotCommitted>,
) -> std::result::Result<T, NotCommitted> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let value = work(&transaction)?;
    transaction.commit()?;
    Ok(value)
}

fn open(path: &Path, form: &Form) -> rusqlite::Result<Home> {
    // Made here and not by SQLite, so that it never has another mode, whatever the umask is. The
    // log gets the same.
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
    connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, VALUE_BYTES_MAX)?;
    connection.busy_timeout(BUSY_FOR)?;
    connection.execute_batch(form.pragmas)?;
    if form.is_checked {
        check(&connection)?;
    }
    if let Migrated::Newer { file, program } = schema::migrate(&mut connection, form.migrations)? {
        let error = Error::new(format!(
            "{} is from a newer pipeops-agent (schema {file}, this program knows {program})",
            path.display()
        ))
        .fix(
            "install the newer pipeops-agent again, or move the file away to start with a new one",
        );
        return Ok(Home::Newer(error));
    }
    Ok(Home::Open(connection))
}

/// Reads all of the database.
fn check(connection: &Connection) -> rusqlite::Result<()> {
    judged(connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?)
}

/// The verdict of a check.
fn judged(verdict: String) -> rusqlite::Result<()> {
    if verdict == "ok" {
        return Ok(());
    }
    // A page that could not be read now is not a damaged one: the database must not be given up for
    // a passing error.
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

#[cfg(test)]
mod tests;

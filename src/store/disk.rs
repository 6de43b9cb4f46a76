//! State of the store thread: `state.db`, the writes that wait for it, and the small files next to
//! it.

use std::{
    fs::File,
    path::{Path, PathBuf},
};

use nix::fcntl::Flock;
use rusqlite::{Connection, Transaction};

pub(super) use super::database::NotCommitted;
use super::{
    Failure, Loaded, audit, clock,
    database::{Database, DatabaseState, Form},
    identity::{self, StoredIdentity},
    journal,
    notes::{self, Notes},
    quarantine::Copies,
    reserve::Reserve,
    schema,
    thread::Owned,
    trouble,
};
use crate::{
    core::{
        health::{Condition, Severity},
        time::Wall,
    },
    error::Error,
    files,
};

/// The name of the database in the state directory.
pub const DATABASE: &str = "state.db";
/// The name of the small file that has the identity once more.
pub const IDENTITY: &str = "identity.json";
/// The name of the clock record.
pub const CLOCK: &str = "clock";
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

static FORM: Form = Form {
    file: DATABASE,
    migrations: &schema::STATE,
    // FULL: what was answered is on disk after a power cut. 256 pages: the log stays at about 1
    // MiB.
    pragmas: "PRAGMA journal_mode = WAL;
         PRAGMA synchronous = FULL;
         PRAGMA foreign_keys = ON;
         PRAGMA trusted_schema = OFF;
         PRAGMA wal_autocheckpoint = 256;
         PRAGMA journal_size_limit = 1048576;
         PRAGMA cache_size = -256;
         PRAGMA temp_store = MEMORY;",
    // To read all of it takes milliseconds.
    is_checked: true,
    damaged: Copies {
        count: 3,
        bytes: 64 << 20,
    },
};

/// Everything that the store's thread has.
#[derive(Debug)]
pub(super) struct Disk {
    database: Database,
    lock: Option<Flock<File>>,
    pub(super) identity: StoredIdentity,
    pub(super) audit: audit::Waiting,
    /// True if the rows that earlier processes left without an end were numbered.
    pub(super) are_old_rows_over: bool,
    pub(super) notes: Notes,
}

impl Disk {
    /// Opens what is there. `report` gets what the small files say before anything is written,
    /// where an identity is among them.
    pub(super) fn open(
        directory: PathBuf,
        lock: Option<Flock<File>>,
        now: Wall,
        report: impl FnOnce(Loaded),
    ) -> (Self, Loaded) {
        let clock = clock::read(&directory);
        let notes = notes::read(&directory);
        if let Ok(Some(identity)) = identity::read_file(&directory) {
            report(Loaded {
                // Not read yet, which is not the same as not there: the copy stands for both.
                database: Some(identity.clone()),
                file: Some(identity),
                notes: notes.clone(),
                clock,
                conditions: Vec::new(),
            });
        }
        // What cannot be removed is tried again by the next start; it takes room and does no harm.
        drop(files::remove_unfinished(&directory));
        let reserve = Reserve::new(directory.clone());
        let mut disk = Self {
            database: Database::new(directory, &FORM, Some(reserve), now),
            lock,
            identity: StoredIdentity::default(),
            audit: audit::Waiting::new(now),
            are_old_rows_over: false,
            notes,
        };
        disk.recover();
        let file = match identity::read_file(disk.directory()) {
            Ok(file) => file,
            Err(newer) => {
                disk.database.leave_to_newer(newer);
                None
            }
        };
        let database = disk.read(identity::select).ok().flatten();
        disk.identity = StoredIdentity::found(database.as_ref(), file.as_ref());
        let conditions = disk.conditions();
        let loaded = Loaded {
            database,
            file,
            notes: disk.notes.clone(),
            clock,
            conditions,
        };
        (disk, loaded)
    }

    /// Runs `work` in one transaction that is on disk when this returns.
    pub(super) fn write<T>(
        &mut self,
        work: impl Fn(&Transaction<'_>) -> Result<T, NotCommitted>,
    ) -> Result<T, Failure> {
        let written = self.database.write(work);
        self.check_replaced();
        written
    }

    /// Reads without writing.
    pub(super) fn read<T>(
        &mut self,
        work: impl Fn(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, Failure> {
        let read = self.database.read(work);
        self.check_replaced();
        read
    }

    /// See [`super::Handle::tend`].
    pub(super) fn tend(&mut self, now: Wall) -> Vec<Condition> {
        self.database.set_latest_time(now);
        self.recover();
        self.database.take_reserve();
        self.audit.expire_open();
        self.settle();
        let pruned = self.write(|transaction| {
            audit::prune(transaction)?;
            journal::prune(transaction)
        });
        // Its failure is remembered as trouble, where it is one.
        drop(pruned);
        self.conditions()
    }

    /// Records the latest known wall clock.
    pub(super) const fn set_latest_time(&mut self, wall: Wall) {
        self.database.set_latest_time(wall);
    }

    pub(super) fn directory(&self) -> &Path {
        self.database.directory()
    }

    /// Returns whether a newer program wrote what is there.
    pub(super) const fn newer(&self) -> Option<&Error> {
        self.database.newer()
    }

    /// Gives up the reserve where the disk is full. `false` where that changes nothing.
    pub(super) fn make_room(&mut self) -> bool {
        self.database.make_room()
    }

    /// Opens what is not open, once nobody else uses it.
    fn recover(&mut self) {
        if self.lock.is_none() {
            // The directory may not have been there before.
            drop(files::create_directory(self.directory()));
            match super::lock(self.directory()) {
                Ok(lock) => self.lock = lock,
                Err(error) => return self.database.stay_away(error),
            }
        }
        if self.database.recover() {
            let newest = self.read(audit::newest).unwrap_or_default();
            self.audit.start_after(newest);
            if !self.are_old_rows_over {
                self.are_old_rows_over = self.write(audit::end_old_rows).is_ok();
            }
        }
    }

    fn check_replaced(&mut self) {
        if self.database.was_replaced() {
            self.identity.is_in_database = false;
        }
    }

    /// Writes what waited for the disk. What fails waits on.
    fn settle(&mut self) {
        identity::settle(self);
        audit::settle(self);
    }

    fn conditions(&self) -> Vec<Condition> {
        let mut found = Vec::new();
        let mut say = |id, severity, error: Error| {
            found.push(Condition {
                id,
                severity,
                since: self.database.wall(),
                sentence: error.sentence(),
                fix: error.fix,
            });
        };
        match self.database.state() {
            DatabaseState::Newer(error) => say(NEWER, Severity::Critical, error.clone()),
            DatabaseState::Unwritable(error) => {
                let sentence = format!(
                    "{}; the agent continues from memory, and no change can begin",
                    error.sentence()
                );
                let what = Error::new(sentence);
                let fix = error.fix.clone();
                say(UNWRITABLE, Severity::Critical, Error { fix, ..what });
            }
            DatabaseState::Well => {}
        }
        if self.database.is_full() {
            say(FULL, Severity::Warning, trouble::full(self.directory()));
        }
        if self.database.has_removed_damaged() {
            say(
                DAMAGED,
                Severity::Warning,
                Error::new("the database was damaged and has been recreated; the damaged file was too large to keep")
                    .fix("check the disk: dmesg | grep -i error"),
            );
        } else if let Some(path) = self.database.newest_damaged() {
            say(
                DAMAGED,
                Severity::Warning,
                Error::new(format!(
                    "the database was damaged and has been recreated; the damaged file is {}",
                    path.display()
                ))
                .fix(format!(
                    "check the disk (dmesg | grep -i error); when it is no longer needed: rm {}*",
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
                Error::new(other).fix("restart the agent to continue with the identity on disk"),
            );
        }
        found
    }
}

impl Owned for Disk {
    /// Writes what waits and copies the write-ahead log into the database.
    fn close(&mut self) {
        self.settle();
        self.database.close();
    }
}

//! Journal of the keeper: a file for each change in a directory that only root can access, replaced
//! whole before and after every step.
//!
//! It needs no database: changes are few, and a person who has nothing but a rescue shell can read
//! them.

use std::{
    fs::OpenOptions,
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use nix::{
    fcntl::{Flock, FlockArg},
    unistd::geteuid,
};

use super::system::System;
use crate::{
    core::{journal::Outcome, order::OrderExt as _},
    error::{Error, Result, Retry},
    files::{self, PRIVATE},
    wire::keeper::{Act, Record},
};

/// Changes that nobody can take back, or did already, and that are still told of.
const PAST_MAX: usize = 100;
/// Longest new record: a restore with a thousand files of settings, or many contents of files,
/// escaped.
const NEW_RECORD_BYTES_MAX: usize = 1024 * 1024;
/// Longest record that is read, and one that grew by the words of its steps.
const RECORD_BYTES_MAX: usize = 2 * NEW_RECORD_BYTES_MAX;

/// The journal, to be read.
#[derive(Debug)]
pub(super) struct Journal {
    directory: PathBuf,
}

/// The journal in the hand of the only one that changes things now.
#[derive(Debug)]
pub(super) struct LockedJournal {
    journal: Journal,
    _lock: Flock<std::fs::File>,
}

impl std::ops::Deref for LockedJournal {
    type Target = Journal;

    fn deref(&self) -> &Journal {
        &self.journal
    }
}

impl Journal {
    /// The journal in `directory`, which is made where it is missing. A directory that others could
    /// have written to is not believed.
    pub(super) fn open(directory: &Path) -> Result<Self> {
        files::create_directory(directory)?;
        let cannot = || format!("cannot use {}", directory.display());
        let metadata = std::fs::symlink_metadata(directory)
            .map_err(|error| files::explain(cannot(), &error))?;
        let for_others = metadata.permissions().mode() & 0o077;
        let is_private =
            metadata.is_dir() && metadata.uid() == geteuid().as_raw() && for_others == 0;
        if !is_private {
            return Err(Error::new(cannot())
                .why("users other than root can access it, so its contents are not trusted")
                .fix(format!(
                    "inspect it; then: sudo rm -r {}",
                    directory.display()
                )));
        }
        Ok(Self {
            directory: directory.to_owned(),
        })
    }

    /// Takes the right to change things. It ends with this process at the latest.
    pub(super) fn lock(self) -> Result<LockedJournal> {
        let cannot = || format!("cannot lock {}", self.directory.display());
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(PRIVATE)
            .open(self.directory.join("lock"))
            .map_err(|error| files::explain(cannot(), &error))?;
        let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| {
            Error::new(cannot())
                .why("another change is under way")
                .because(&errno)
                .fix("wait until it is over: sudo pipeops-agent changes")
                .retry(Retry::Soon)
        })?;
        files::remove_unfinished(&self.directory)?;
        Ok(LockedJournal {
            journal: self,
            _lock: lock,
        })
    }

    /// Returns whether somebody has [`Self::lock`] now.
    pub(super) fn is_locked(&self) -> bool {
        let lock = std::fs::File::open(self.directory.join("lock"));
        lock.is_ok_and(|lock| Flock::lock(lock, FlockArg::LockSharedNonblock).is_err())
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// All changes, the oldest first.
    pub(super) fn records(&self) -> Result<Vec<Record>> {
        let cannot = || format!("cannot read {}", self.directory.display());
        let entries =
            std::fs::read_dir(&self.directory).map_err(|error| files::explain(cannot(), &error))?;
        let mut records = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| files::explain(cannot(), &error))?;
            if is_record(&entry.file_name().to_string_lossy()) {
                // Who does not hold the lock may meet one that is being removed.
                records.extend(read(&entry.path())?);
            }
        }
        records.order_by_key(|record| record.number);
        Ok(records)
    }

    fn name(record: &Record) -> String {
        format!("{:04}-{}", record.number, record.check.replace('.', "-"))
    }
}

/// Returns whether a file is a record, by the name that [`Journal::name`] gives it: notes about
/// other things lie beside them.
fn is_record(name: &str) -> bool {
    let number = name
        .strip_suffix(".json")
        .and_then(|name| name.split_once('-'));
    number
        .is_some_and(|(number, _)| number.len() >= 4 && number.bytes().all(|b| b.is_ascii_digit()))
}

/// Reads a record; `None` where it is gone.
fn read(path: &Path) -> Result<Option<Record>> {
    let Some(content) = files::read_if_there(path, RECORD_BYTES_MAX)? else {
        return Ok(None);
    };
    serde_json::from_slice(&content).map(Some).map_err(|error| {
        Error::new(format!("cannot understand {}", path.display()))
            .because(&error)
            .fix("it was written by a newer version, or is damaged; if you move it away, its change can no longer be undone")
    })
}

impl LockedJournal {
    /// A number that no change has had.
    pub(super) fn next_number(&self) -> Result<u64> {
        let records = self.records()?;
        let last = records.last().map_or(0, |record| record.number);
        Ok(last.saturating_add(1))
    }

    /// Keeps copies of the files that a change is about to replace, before anything speaks of them.
    pub(super) fn keep_copies(&self, record: &mut Record, system: &System) -> Result<()> {
        let name = Journal::name(record);
        for (position, act) in record.acts.iter_mut().enumerate() {
            let Act::File {
                path,
                before: Some(before),
                ..
            } = act
            else {
                continue;
            };
            before.copy = format!("{name}.{position}.before");
            let found = system.found(path)?;
            let Some(found) = found.filter(|found| found.sha256() == before.sha256) else {
                return Err(Error::new(format!("{path} is being changed right now"))
                    .fix("try again")
                    .retry(Retry::Soon));
            };
            files::replace(&self.directory.join(&before.copy), &found.content, PRIVATE)?;
        }
        Ok(())
    }

    /// Writes how far a change is.
    pub(super) fn write(&self, record: &Record) -> Result<()> {
        let path = self
            .directory
            .join(format!("{}.json", Journal::name(record)));
        let content = serde_json::to_vec_pretty(record)
            .map_err(|error| Error::new("cannot write a change down").because(&error))?;
        let bytes_max = if record.steps.is_empty() {
            NEW_RECORD_BYTES_MAX
        } else {
            RECORD_BYTES_MAX
        };
        // Written, it could not be read again, and nothing of the journal could.
        if content.len() > bytes_max {
            return Err(Error::new("cannot write a change down")
                .why(format!(
                    "its record has {} bytes, and one of more than {bytes_max} cannot be read again",
                    content.len()
                ))
                .fix("nothing was changed; report it with: sudo pipeops-agent bundle"));
        }
        #[cfg(test)]
        cut::before(record)?;
        files::replace(&path, &content, PRIVATE)?;
        #[cfg(test)]
        cut::after()?;
        Ok(())
    }

    /// Removes the oldest changes that were taken back, or that have no way back and are over, such
    /// as repairs of k3s. What can be taken back is never forgotten, nor is the newest: it has the
    /// last number.
    pub(super) fn prune(&self) -> Result<()> {
        let is_past = |record: &Record| {
            let is_undone = record.outcome.as_deref() == Some(Outcome::Undone.as_str());
            is_undone || (record.is_one_way && record.outcome.is_some())
        };
        let past: Vec<_> = self.records()?.into_iter().filter(is_past).collect();
        let too_many = past.len().saturating_sub(PAST_MAX);
        for record in past.iter().take(too_many) {
            let name = Journal::name(record);
            let copies = record.acts.iter().filter_map(|act| {
                let Act::File { before, .. } = act else {
                    return None;
                };
                Some(before.as_ref()?.copy.clone())
            });
            for file in copies.chain([format!("{name}.json")]) {
                // A copy that stays takes room and does no harm.
                drop(std::fs::remove_file(self.directory.join(file)));
            }
        }
        Ok(())
    }
}

/// A power cut of a test, at one of the journal's writes.
#[cfg(test)]
pub(super) mod cut {
    use std::{
        cell::{Cell, RefCell},
        path::PathBuf,
    };

    use crate::{
        core::journal::StepState,
        error::{Error, Result},
        wire::keeper::Record,
    };

    thread_local! {
        /// Borders of writes that are left: after each write, and before those that tell of an act.
        static LEFT: Cell<Option<u32>> = const { Cell::new(None) };
        /// Path that is gone when an outcome is written.
        static GONE: RefCell<Option<PathBuf>> = const { RefCell::new(None) };
    }

    /// The power fails at that border of a write; `None`: never.
    pub(in super::super) fn at(border: Option<u32>) {
        LEFT.set(border);
    }

    /// Nothing may be there when an outcome is written: a process that is killed after that write
    /// removes nothing.
    pub(in super::super) fn gone_by_the_end(path: Option<PathBuf>) {
        GONE.set(path);
    }

    /// Borders that are left.
    pub(in super::super) fn left() -> Option<u32> {
        LEFT.get()
    }

    /// Before a write that tells of what was just done. Before any other the disk is what it was
    /// after the last one.
    pub(super) fn before(record: &Record) -> Result<()> {
        let is_over = record.outcome.is_some();
        GONE.with_borrow(|gone| {
            let left = gone.as_ref().filter(|path| is_over && path.exists());
            assert_eq!(left, None, "{record:?}");
        });
        let words = [StepState::Acted.as_str(), StepState::Undone.as_str()];
        if record
            .steps
            .iter()
            .any(|step| words.contains(&step.as_str()))
        {
            pass()
        } else {
            Ok(())
        }
    }

    pub(in super::super) fn after() -> Result<()> {
        pass()
    }

    fn pass() -> Result<()> {
        match LEFT.get() {
            Some(0) => Err(Error::new("power cut")),
            left => {
                LEFT.set(left.map(|left| left - 1));
                Ok(())
            }
        }
    }
}

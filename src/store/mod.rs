//! Adapter for the disk: `state.db`, one thread, typed calls. No SQL outside this module.
//!
//! The disk may be full, read-only, broken or gone: that is a condition, never an exit. Then the
//! identity lives in memory and is written when the disk is back, audit rows wait in a bounded
//! queue, and changes are refused, because an intent must be on disk before its first effect.
//! Decisions are elsewhere: the identity in `core::identity`, the audit in `core::audit`.

use std::{fmt, path::PathBuf};

use nix::fcntl::{Flock, FlockArg};
use smol::{
    channel::{Receiver, Sender},
    future::FutureExt as _,
};

use crate::{
    core::{
        health::Condition,
        identity::Identity,
        stall::{FIX, Job},
        time::Wall,
    },
    error::{Error, Result, Retry},
    files::{self, Jobs},
};

mod audit;
mod clock;
mod commands;
mod database;
mod disk;
mod identity;
mod journal;
mod notes;
mod quarantine;
mod reserve;
mod schema;
mod streams;
pub mod telemetry;
mod thread;
mod trouble;

pub use audit::{AuditRow, Ticket};
pub use commands::CommandHistory;
pub use disk::{CLOCK, CONDITIONS, DATABASE, IDENTITY};
pub use identity::Stored;
pub use journal::Begun;
pub use notes::Notes;

use disk::Disk;
use thread::{ANSWER_DEADLINE, Listed, Post, Thread};

/// Reasons why a call did not do what was asked.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Failure {
    /// Too many calls wait already.
    Busy,
    /// The disk did not answer in time. What was asked may still happen.
    Slow,
    /// The disk is known to hang.
    Hung,
    /// The store was closed.
    Closed,
    /// The disk refused.
    Disk(Error),
    /// The request does not fit the content on disk: a step out of order, a change that is over.
    Conflict(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy => f.write_str("too many writes wait for the disk"),
            Self::Slow => write!(
                f,
                "the disk did not answer for {} s",
                ANSWER_DEADLINE.as_secs()
            ),
            Self::Hung => f.write_str("the disk does not answer"),
            Self::Closed => f.write_str("the store is closed"),
            Self::Disk(error) => f.write_str(&error.sentence()),
            Self::Conflict(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Failure {}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        let text = failure.to_string();
        match failure {
            Failure::Disk(error) => error,
            Failure::Busy => Self::new(text).retry(Retry::Soon),
            Failure::Slow => Self::new(text)
                .fix("dmesg | tail; a card that hangs is about to fail")
                .retry(Retry::Later),
            Failure::Hung => Self::new(text).fix(FIX).retry(Retry::Later),
            Failure::Closed | Failure::Conflict(_) => Self::new(text),
        }
    }
}

/// Content on disk at the start.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Loaded {
    /// The identity in the database.
    pub database: Option<Identity>,
    /// The identity in the small file beside it.
    pub file: Option<Identity>,
    /// Notes: the access level set on this machine, and names that others know us by.
    pub notes: Notes,
    /// A time that has certainly been: the first moment of a certificate that was verified.
    pub clock: Option<Wall>,
    /// Problems with the disk.
    pub conditions: Vec<Condition>,
}

/// Progress of opening the store.
#[derive(Debug)]
enum OpeningProgress {
    /// Content of the small files; the database is not open yet.
    Files(Loaded),
    /// Everything; the store is open.
    Everything(Loaded),
}

/// A store that is being opened.
#[derive(Debug)]
pub struct Opening {
    found: Receiver<Result<OpeningProgress>>,
    jobs: Jobs,
}

impl Opening {
    /// Waits for what is on disk: for everything, or, where the disk hangs, for what the small
    /// files say about this agent. While they cannot be read, and where there is no identity among
    /// them, it waits on: nobody knows then who this agent is.
    pub async fn loaded(self) -> Result<Loaded> {
        let files = match self.next().await? {
            OpeningProgress::Everything(loaded) => {
                self.answered();
                return Ok(loaded);
            }
            OpeningProgress::Files(loaded) => loaded,
        };
        let hung = async {
            self.jobs.until_hung().await;
            Ok(OpeningProgress::Files(files))
        };
        match self.next().or(hung).await? {
            OpeningProgress::Everything(loaded) => {
                self.answered();
                Ok(loaded)
            }
            OpeningProgress::Files(loaded) => Ok(loaded),
        }
    }

    /// The store is open, so its disk answers: nobody waits for the next look at it.
    fn answered(&self) {
        self.jobs.store_hangs(false);
    }

    /// Waits for everything.
    #[cfg(feature = "internals")]
    async fn everything(self) -> Result<Loaded> {
        loop {
            if let OpeningProgress::Everything(loaded) = self.next().await? {
                return Ok(loaded);
            }
        }
    }

    async fn next(&self) -> Result<OpeningProgress> {
        let found = self.found.recv().await;
        found.map_err(|_closed| Failure::Closed)?
    }
}

/// The store's owner: closing it writes what is queued and ends the thread.
#[derive(Debug)]
pub struct Store {
    thread: Thread<Disk>,
}

/// The way to the store's thread, for whoever needs it.
#[derive(Clone, Debug)]
pub struct Handle {
    post: Post<Disk>,
}

impl Store {
    /// Opens what is in `directory`, which is made where it is missing (its parent is not).
    ///
    /// Fails only where another agent uses that directory, or no thread can be had. Everything else
    /// is a condition.
    #[cfg(feature = "internals")]
    pub async fn open(directory: impl Into<PathBuf>, now: Wall) -> Result<(Self, Loaded)> {
        let (store, opening) = Self::begin(directory, now, Jobs::default())?;
        let late = async {
            smol::Timer::after(ANSWER_DEADLINE).await;
            Err(Failure::Slow.into())
        };
        let loaded = opening.everything().or(late).await?;
        Ok((store, loaded))
    }

    /// Begins to open what is in `directory`, and waits for nothing: what is asked before it is
    /// open waits in the queue. What the thread does stands in the list of `jobs`.
    pub fn begin(directory: impl Into<PathBuf>, now: Wall, jobs: Jobs) -> Result<(Self, Opening)> {
        let directory = directory.into();
        let open = move |found: &Sender<Result<OpeningProgress>>| {
            // There is room for both parts.
            let report = |part| drop(found.try_send(part));
            match locked(&directory) {
                Ok(lock) => {
                    let files = |loaded| report(Ok(OpeningProgress::Files(loaded)));
                    let (disk, loaded) = Disk::open(directory, lock, now, files);
                    report(Ok(OpeningProgress::Everything(loaded)));
                    Some(disk)
                }
                Err(error) => {
                    report(Err(error));
                    None
                }
            }
        };
        let listed = Listed {
            jobs: jobs.clone(),
            job: Job::State,
        };
        let (thread, found) = Thread::start("store", listed, open)?;
        Ok((Self { thread }, Opening { found, jobs }))
    }

    /// The way to the thread.
    pub fn handle(&self) -> Handle {
        Handle {
            post: self.thread.post(),
        }
    }

    /// Writes what is queued, copies the log into the database and ends the thread. Later calls are
    /// told `Closed`.
    pub async fn close(self) -> std::result::Result<(), Failure> {
        self.thread.close().await
    }
}

impl Handle {
    /// Looks after the disk: writes what waits, opens again what was broken, thins what is over its
    /// quota. Call it every half minute. Returns all conditions that hold; those of [`CONDITIONS`]
    /// that are not among them do not.
    pub async fn tend(&self, now: Wall) -> std::result::Result<Vec<Condition>, Failure> {
        self.call(move |disk| Ok(disk.tend(now))).await
    }

    /// Returns whether the disk is known to hang: then nothing that has to be on disk first can
    /// begin.
    pub fn is_hung(&self) -> bool {
        self.post.is_hung()
    }

    /// Waits while the disk is known to hang.
    pub async fn until_answering(&self) {
        self.post.until_answering().await;
    }

    /// Asks for something that is refused while the disk hangs.
    async fn call<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Disk) -> std::result::Result<T, Failure> + Send + 'static,
    ) -> std::result::Result<T, Failure> {
        self.post.call(job).await
    }

    /// Hands over something that must not get lost: it is done when the disk answers again, whoever
    /// waits for it.
    async fn queue<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Disk) -> std::result::Result<T, Failure> + Send + 'static,
    ) -> std::result::Result<T, Failure> {
        self.post.queue(job).await
    }
}

/// Returns whether the store makes files of this name in its directory: databases with what SQLite
/// keeps beside them, copies of damaged ones, and the small files.
pub fn is_own_file(name: &str) -> bool {
    let is_beside = |file: &str| {
        let rest = name.strip_prefix(file);
        rest.is_some_and(|rest| {
            matches!(rest, "" | "-wal" | "-shm" | "-journal") || rest.starts_with(".damaged-")
        })
    };
    is_beside(DATABASE)
        || is_beside(telemetry::DATABASE)
        || [IDENTITY, CLOCK, disk::NOTES, reserve::FILE].contains(&name)
}

/// Makes the directory where it is missing, and locks it.
fn locked(directory: &std::path::Path) -> Result<Option<Flock<std::fs::File>>> {
    // Even the attempt to make what is there waits for a frozen disk.
    if !directory.is_dir() {
        // Its failure shows again, and stays to be seen, when the files in it are opened.
        drop(files::create_directory(directory));
    }
    lock(directory)
}

/// Two agents on one directory would each undo what the other writes. The lock goes with the
/// process, however that ends.
fn lock(directory: &std::path::Path) -> Result<Option<Flock<std::fs::File>>> {
    let Ok(opened) = std::fs::File::open(directory) else {
        // It is not there: nobody uses it.
        return Ok(None);
    };
    match Flock::lock(opened, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Some(lock)),
        Err((_, nix::errno::Errno::EWOULDBLOCK)) => {
            Err(Error::new(format!("another pipeops-agent uses {}", directory.display())).fix(
                "stop it: sudo systemctl stop pipeops-agent (with OpenRC: sudo rc-service pipeops-agent stop); or give this one its own directory: PIPEOPS_STATE_DIR",
            ))
        }
        // A file system that cannot lock.
        Err(_) => Ok(None),
    }
}

//! The party disk: `state.db`, one thread, typed calls. No SQL outside this room.
//!
//! The disk may be full, read-only, broken or gone: that is a condition, never an exit. Then the identity lives in memory and is
//! written when the disk comes back, audit rows wait in a bounded queue, and changes are refused, because an intent must be on
//! disk before its first effect. It does not decide who the agent is (`core::identity`) nor what is written down (`core::audit`).

use std::{fmt, path::PathBuf, thread::JoinHandle, time::Duration};

use nix::fcntl::{Flock, FlockArg};
use smol::channel::{Receiver, Sender, TrySendError, bounded};
use smol::future::FutureExt;

use crate::{
    core::{health::Condition, identity::Identity, time::Wall},
    error::{Error, Result, Retry},
    files,
};

mod audit;
mod disk;
mod identity;
mod journal;
mod notes;
mod schema;

pub use audit::{AuditRow, Ticket};
pub use disk::{CONDITIONS, DATABASE, IDENTITY};
pub use identity::Kept;
pub use journal::Begun;
pub use notes::Notes;

use disk::Disk;

/// Calls that wait for the thread at most; more are told `Busy`. One takes 5 to 50 ms on an SD card, so the last of 64 waits 3 s.
const QUEUE: usize = 64;
/// How long a call waits for its answer. A disk that hangs (a dying card, a network file system) holds the thread, not the caller.
const ANSWER_DEADLINE: Duration = Duration::from_secs(30);
/// How long a stop waits for what is queued.
const CLOSE_DEADLINE: Duration = Duration::from_secs(8);

/// Why a call did not do what was asked.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Failure {
    /// Too many calls wait already.
    Busy,
    /// The disk did not answer in time. What was asked may still happen.
    Slow,
    /// The store was closed.
    Closed,
    /// The disk refused.
    Disk(Error),
    /// What was asked does not fit what is on disk: a step out of order, a change that is over.
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
            Failure::Closed | Failure::Conflict(_) => Self::new(text),
        }
    }
}

/// What was on disk at the start.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Loaded {
    /// The identity in the database.
    pub database: Option<Identity>,
    /// The identity in the small file beside it.
    pub file: Option<Identity>,
    /// What was switched here by hand, and what others know us by.
    pub notes: Notes,
    /// What is wrong with the disk.
    pub conditions: Vec<Condition>,
}

type Job = Box<dyn FnOnce(&mut Disk) + Send>;

enum Order {
    Run(Job),
    Close,
}

/// The store's owner: closing it writes what is queued and ends the thread.
#[derive(Debug)]
pub struct Store {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

/// The way to the store's thread, for whoever needs it.
#[derive(Clone)]
pub struct Handle {
    orders: Sender<Order>,
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle")
            .field("queued", &self.orders.len())
            .finish()
    }
}

impl Store {
    /// Opens what is in `directory`, which is made where it is missing (its parent is not).
    ///
    /// Fails only where another agent uses that directory, or no thread can be had. Everything else is a condition.
    pub async fn open(directory: impl Into<PathBuf>, now: Wall) -> Result<(Self, Loaded)> {
        let directory = directory.into();
        // Its failure shows again, and stays to be seen, when the files in it are opened.
        drop(files::create_directory(&directory));
        let lock = lock(&directory)?;
        let (orders, queue) = bounded(QUEUE);
        let (loaded, first) = bounded(1);
        let thread = std::thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || {
                let (mut disk, found) = Disk::open(directory, lock, now);
                // Nobody waits any more where the opener gave up: then the queue is closed too.
                drop(loaded.send_blocking(found));
                run(&mut disk, &queue);
            })
            .map_err(|error| Error::new("cannot start the store's thread").because(&error))?;
        let store = Self {
            handle: Handle { orders },
            thread: Some(thread),
        };
        let loaded = async { first.recv().await.ok() }
            .or(expired(ANSWER_DEADLINE))
            .await;
        let Some(loaded) = loaded else {
            return Err(Failure::Slow.into());
        };
        Ok((store, loaded))
    }

    /// The way to the thread.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Writes what is queued, copies the log into the database and ends the thread. Later calls are told `Closed`.
    pub async fn close(mut self) -> std::result::Result<(), Failure> {
        let Some(thread) = self.thread.take() else {
            return Ok(());
        };
        let orders = self.handle.orders.clone();
        let closed = async move {
            // Queued behind everything that was asked before.
            if orders.send(Order::Close).await.is_err() {
                return Some(());
            }
            orders.close();
            smol::unblock(move || thread.join().is_ok())
                .await
                .then_some(())
        };
        closed
            .or(expired(CLOSE_DEADLINE))
            .await
            .ok_or(Failure::Slow)
    }
}

impl Handle {
    /// Looks after the disk: writes what waits, opens again what was broken, thins what is over its quota. Call it every half minute.
    /// Returns all conditions that hold; those of [`CONDITIONS`] that are not among them do not.
    pub async fn tend(&self, now: Wall) -> std::result::Result<Vec<Condition>, Failure> {
        self.call(move |disk| Ok(disk.tend(now))).await
    }

    /// Queues a job and waits for its answer.
    async fn call<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Disk) -> std::result::Result<T, Failure> + Send + 'static,
    ) -> std::result::Result<T, Failure> {
        let (answer, answered) = bounded(1);
        let order = Order::Run(Box::new(move |disk| {
            // The caller may have gone: what it asked for is done all the same.
            drop(answer.try_send(job(disk)));
        }));
        self.orders.try_send(order).map_err(|error| match error {
            TrySendError::Full(_) => Failure::Busy,
            TrySendError::Closed(_) => Failure::Closed,
        })?;
        let waited = async { Some(answered.recv().await) }
            .or(expired(ANSWER_DEADLINE))
            .await;
        match waited {
            None => Err(Failure::Slow),
            // The thread ended before it came to this job.
            Some(Err(_)) => Err(Failure::Closed),
            Some(Ok(answer)) => answer,
        }
    }
}

/// The thread: one job after the other, until it is closed or everybody who could ask is gone.
fn run(disk: &mut Disk, queue: &Receiver<Order>) {
    while let Ok(order) = queue.recv_blocking() {
        match order {
            Order::Run(job) => job(disk),
            Order::Close => break,
        }
    }
    disk.close();
}

/// Two agents on one directory would each undo what the other writes. The lock goes with the process, however that ends.
fn lock(directory: &std::path::Path) -> Result<Option<Flock<std::fs::File>>> {
    let Ok(opened) = std::fs::File::open(directory) else {
        // It is not there: nobody uses it.
        return Ok(None);
    };
    match Flock::lock(opened, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Some(lock)),
        Err((_, nix::errno::Errno::EWOULDBLOCK)) => {
            Err(Error::new(format!("another pipeops-agent uses {}", directory.display())).fix(
                "stop it (systemctl stop pipeops-agent), or give this one a directory of its own: PIPEOPS_STATE_DIR",
            ))
        }
        // A file system that cannot lock.
        Err(_) => Ok(None),
    }
}

async fn expired<T>(deadline: Duration) -> Option<T> {
    smol::Timer::after(deadline).await;
    None
}

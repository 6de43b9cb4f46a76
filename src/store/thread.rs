//! Thread that owns one database, and the queue in front of it: one job after the other.
//!
//! It knows nothing of databases. Each has its own thread, so that pruning samples never delays an
//! audit row.

use std::{fmt, thread::JoinHandle, time::Duration};

use smol::channel::{Receiver, Sender, TrySendError, bounded};
use smol::future::FutureExt;

use super::Failure;
use crate::{
    core::stall::Job,
    error::{Error, Result},
    executor,
    files::{GivenUp, Jobs},
};

/// Calls that wait for a thread at most; more are told `Busy`. One takes 5 to 50 ms on an SD card,
/// so the last of 64 waits 3 s.
const QUEUED_CALLS_MAX: usize = 64;
/// Messages in which a thread reports its progress while it opens.
const PROGRESS_MESSAGES_MAX: usize = 2;
/// Deadline of a call. A disk that hangs (a dying card, a network file system) holds the thread,
/// not the caller.
pub(super) const ANSWER_DEADLINE: Duration = Duration::from_secs(30);
/// Time that a stop waits for queued jobs.
const CLOSE_DEADLINE: Duration = Duration::from_secs(8);

/// State that a thread owns.
pub(super) trait Owned {
    /// Writes what waits. Nothing comes after it.
    fn close(&mut self);
}

type Work<T> = Box<dyn FnOnce(&mut T) + Send>;

enum Order<T> {
    Run(Work<T>),
    Close,
}

/// The list of jobs that a thread keeps up to date, and the kind of its own.
#[derive(Clone, Debug)]
pub(super) struct Listed {
    pub(super) jobs: Jobs,
    pub(super) job: Job,
}

/// The thread's owner.
pub(super) struct Thread<T> {
    post: Post<T>,
    thread: JoinHandle<()>,
}

/// The way to the thread, for whoever needs it.
pub(super) struct Post<T> {
    orders: Sender<Order<T>>,
    jobs: Jobs,
}

impl<T> Clone for Post<T> {
    fn clone(&self) -> Self {
        Self {
            orders: self.orders.clone(),
            jobs: self.jobs.clone(),
        }
    }
}

impl<T> fmt::Debug for Post<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Post")
            .field("queued", &self.orders.len())
            .finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Thread<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Thread").field(&self.post).finish()
    }
}

impl<T: Owned + 'static> Thread<T> {
    /// Starts a thread that opens what it owns, and reports what it finds meanwhile, in
    /// [`PROGRESS_MESSAGES_MAX`] parts at most. What is asked before it is open waits in the queue.
    /// The thread ends where nothing can be opened.
    pub(super) fn start<L: Send + 'static>(
        name: &str,
        listed: Listed,
        open: impl FnOnce(&Sender<L>) -> Option<T> + Send + 'static,
    ) -> Result<(Self, Receiver<L>)> {
        let (orders, queue) = bounded(QUEUED_CALLS_MAX);
        let (report, found) = bounded(PROGRESS_MESSAGES_MAX);
        let jobs = listed.jobs.clone();
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                let begun = listed.jobs.begin(listed.job);
                let opened = open(&report);
                drop((begun, report));
                if let Some(mut owned) = opened {
                    run(&mut owned, &queue, &listed);
                }
            })
            .map_err(|error| {
                Error::new(format!("cannot start the {name} thread")).because(&error)
            })?;
        let post = Post { orders, jobs };
        Ok((Self { post, thread }, found))
    }

    /// The way to the thread.
    pub(super) fn post(&self) -> Post<T> {
        self.post.clone()
    }

    /// Does what is queued, closes what the thread owns and ends it. Later calls are told `Closed`.
    pub(super) async fn close(self) -> std::result::Result<(), Failure> {
        let Self { post, thread } = self;
        let jobs = post.jobs.clone();
        let closed = async move {
            // Queued behind everything that was asked before.
            if post.orders.send(Order::Close).await.is_err() {
                return Some(());
            }
            post.orders.close();
            executor::unblock(move || thread.join().is_ok())
                .await
                .then_some(())
        };
        let late = async {
            jobs.give_up(CLOSE_DEADLINE).await;
            None
        };
        closed.or(late).await.ok_or(Failure::Slow)
    }
}

impl<T: 'static> Post<T> {
    /// Returns whether the disk is known to hang.
    pub(super) fn is_hung(&self) -> bool {
        self.jobs.is_store_hung()
    }

    /// Waits while the disk is known to hang.
    pub(super) async fn until_answering(&self) {
        self.jobs.until_answering().await;
    }

    /// Queues a job and waits for its answer. A disk that is known to hang is not asked.
    pub(super) async fn call<A: Send + 'static>(
        &self,
        job: impl FnOnce(&mut T) -> std::result::Result<A, Failure> + Send + 'static,
    ) -> std::result::Result<A, Failure> {
        if self.jobs.is_store_hung() {
            return Err(Failure::Hung);
        }
        self.queue(job).await
    }

    /// Queues a job and waits for its answer. Where the disk hangs nobody waits for it, and it is
    /// done once the disk answers.
    pub(super) async fn queue<A: Send + 'static>(
        &self,
        job: impl FnOnce(&mut T) -> std::result::Result<A, Failure> + Send + 'static,
    ) -> std::result::Result<A, Failure> {
        self.queue_or_undo(job, |_, _| ()).await
    }

    /// As [`Post::queue`]; `undo` is given what came of a job whose caller did not wait for it.
    pub(super) async fn queue_or_undo<A: Send + 'static>(
        &self,
        job: impl FnOnce(&mut T) -> std::result::Result<A, Failure> + Send + 'static,
        undo: impl FnOnce(&mut T, A) + Send + 'static,
    ) -> std::result::Result<A, Failure> {
        let (answer, answered) = bounded(1);
        let order = Order::Run(Box::new(move |owned: &mut T| {
            // The caller may have gone: what it asked for is done all the same.
            if let Err(unread) = answer.try_send(job(owned))
                && let Ok(done) = unread.into_inner()
            {
                undo(owned, done);
            }
        }));
        self.orders.try_send(order).map_err(|error| match error {
            TrySendError::Full(_) => Failure::Busy,
            TrySendError::Closed(_) => Failure::Closed,
        })?;
        let answer = async { Ok(answered.recv().await) };
        let given_up = async { Err(self.jobs.give_up(ANSWER_DEADLINE).await) };
        match answer.or(given_up).await {
            Err(GivenUp::Hung) => Err(Failure::Hung),
            Err(GivenUp::Late) => Err(Failure::Slow),
            // The thread ended before it came to this job.
            Ok(Err(_)) => Err(Failure::Closed),
            Ok(Ok(answer)) => answer,
        }
    }
}

/// The thread: one job after the other, until it is closed or everybody who could ask is gone.
fn run<T: Owned>(owned: &mut T, queue: &Receiver<Order<T>>, listed: &Listed) {
    while let Ok(order) = queue.recv_blocking() {
        let _begun = listed.jobs.begin(listed.job);
        match order {
            Order::Run(job) => job(owned),
            Order::Close => break,
        }
    }
    owned.close();
}

//! Registry of disk jobs: each job reports its begin and end here.
//!
//! It knows neither the time nor what a stall is (`core::stall`). It stores the result, so that
//! nothing else waits for a disk that hangs.

use std::{
    sync::{
        Arc, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use litemap::LiteMap;
use smol::{Timer, future::FutureExt as _};

use crate::{
    core::stall::{FIX, Job},
    error::{Error, Retry},
    executor,
};

#[expect(clippy::disallowed_types, reason = "threads begin and end jobs")]
type Lock<T> = std::sync::Mutex<T>;

/// Interval between looks at whether a wait has become pointless.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Time after which the caller of a job in the blocking pool goes on without it.
const RUN_WITHIN: Duration = Duration::from_secs(10);
/// Jobs of one kind that may be left behind in the blocking pool: each holds a thread for as long
/// as its disk hangs.
const LEFT_MAX: usize = 3;

/// The jobs that are under way. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Jobs(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    running: Lock<Running>,
    is_store_hung: AtomicBool,
}

#[derive(Debug, Default)]
struct Running {
    last: u64,
    jobs: LiteMap<u64, Job>,
}

/// A job that is under way, until it is dropped.
#[derive(Debug)]
pub struct Begun {
    jobs: Jobs,
    number: u64,
}

/// The end of a wait that brought no answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum GivenUp {
    /// The state directory does not answer.
    Hung,
    /// The time was over.
    Late,
}

impl Jobs {
    /// A job begins.
    pub fn begin(&self, job: Job) -> Begun {
        let mut running = self.lock();
        running.last = running.last.wrapping_add(1);
        let number = running.last;
        running.jobs.insert(number, job);
        drop(running);
        Begun {
            jobs: self.clone(),
            number,
        }
    }

    /// Everything under way, oldest first.
    pub fn running(&self) -> Vec<(u64, Job)> {
        let running = self.lock();
        running.jobs.iter().map(|(at, job)| (*at, *job)).collect()
    }

    /// Number of jobs of a kind that are under way.
    pub fn count(&self, job: Job) -> usize {
        self.lock()
            .jobs
            .values()
            .filter(|kind| **kind == job)
            .count()
    }

    /// Keeps the verdict on the state directory.
    pub fn store_hangs(&self, is_hung: bool) {
        self.0.is_store_hung.store(is_hung, Ordering::Relaxed);
    }

    /// True while the state directory does not answer.
    pub fn is_store_hung(&self) -> bool {
        self.0.is_store_hung.load(Ordering::Relaxed)
    }

    /// Waits until waiting for the state directory is pointless: for so long, or until it is known
    /// to hang.
    pub async fn give_up(&self, limit: Duration) -> GivenUp {
        let mut left = limit;
        while !self.is_store_hung() {
            if left.is_zero() {
                return GivenUp::Late;
            }
            let wait = left.min(POLL_INTERVAL);
            Timer::after(wait).await;
            left = left.saturating_sub(wait);
        }
        GivenUp::Hung
    }

    /// Waits until the state directory is known to hang.
    pub async fn until_hung(&self) {
        while !self.is_store_hung() {
            Timer::after(POLL_INTERVAL).await;
        }
    }

    /// Waits while the state directory does not answer.
    pub async fn until_answering(&self) {
        while self.is_store_hung() {
            Timer::after(POLL_INTERVAL).await;
        }
    }

    /// Does blocking work on files in the blocking pool. Fails where the disk does not answer in
    /// time; the work may go on then.
    pub async fn run<T: Send + 'static>(
        &self,
        job: Job,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Error> {
        self.run_within(RUN_WITHIN, job, work).await
    }

    /// Does blocking work as [`Jobs::run`] does, with a deadline of the caller's.
    pub async fn run_within<T: Send + 'static>(
        &self,
        limit: Duration,
        job: Job,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Error> {
        if self.count(job) >= LEFT_MAX {
            return Err(unanswered(job));
        }
        let begun = self.begin(job);
        let work = executor::unblock(move || {
            let _begun = begun;
            work()
        });
        let done = async { Some(work.await) };
        let late = async {
            Timer::after(limit).await;
            None
        };
        done.or(late).await.ok_or_else(|| unanswered(job))
    }

    /// Does blocking work on files in the blocking pool, for as long as it takes: for what nothing
    /// can begin without. A condition says what is waited for, and who waits goes on to serve and
    /// to listen for the end.
    pub async fn run_to_end<T: Send + 'static>(
        &self,
        job: Job,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let begun = self.begin(job);
        executor::unblock(move || {
            let _begun = begun;
            work()
        })
        .await
    }

    fn lock(&self) -> MutexGuard<'_, Running> {
        self.0
            .running
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        self.jobs.lock().jobs.remove(&self.number);
    }
}

fn unanswered(job: Job) -> Error {
    Error::new(format!("cannot read {}", job.as_str()))
        .why("its disk does not answer")
        .fix(FIX)
        .retry(Retry::Later)
}

#[cfg(test)]
mod tests {
    use super::*;
    use smol::block_on;

    #[test]
    fn a_job_is_under_way_until_it_is_dropped() {
        let jobs = Jobs::default();
        let (first, second) = (jobs.begin(Job::State), jobs.begin(Job::Touch));
        assert_eq!(jobs.running().len(), 2);
        drop(first);
        assert_eq!((jobs.count(Job::State), jobs.count(Job::Touch)), (0, 1));
        drop(second);
        assert!(jobs.running().is_empty());
    }

    #[test]
    fn waiting_ends_with_the_verdict_or_with_the_time() {
        let jobs = Jobs::default();
        let late = block_on(jobs.give_up(Duration::from_millis(10)));
        assert_eq!(late, GivenUp::Late);
        jobs.store_hangs(true);
        let hung = block_on(jobs.give_up(Duration::from_secs(3600)));
        assert_eq!(hung, GivenUp::Hung);
    }

    #[test]
    fn jobs_that_hang_do_not_use_up_the_threads() {
        let jobs = Jobs::default();
        assert_eq!(block_on(jobs.run(Job::Secret, || 7)).unwrap(), 7);
        let left: Vec<_> = (0..LEFT_MAX).map(|_| jobs.begin(Job::Secret)).collect();
        let refused = block_on(jobs.run(Job::Secret, || 7)).unwrap_err();
        assert!(refused.sentence().contains("does not answer"), "{refused}");
        assert_eq!(block_on(jobs.run(Job::Kubeconfig, || 8)).unwrap(), 8);
        drop(left);
        assert_eq!(block_on(jobs.run(Job::Secret, || 9)).unwrap(), 9);
    }
}

//! Runs tasks on the main thread, and blocking work in the pool of threads.
//!
//! Both box what they are given: the compiler builds the scheduling around a task once for each
//! type of future, about four kilobytes every time, and a box makes them one type.

use std::{
    any::Any,
    future::Future,
    marker::PhantomData,
    pin::{Pin, pin},
    task::{Context, Poll},
    time::Duration,
};

use smol::{
    LocalExecutor, Task,
    future::{self, BoxedLocal},
};

/// Polls within [`BURST`] that make the executor busy.
const BUSY_POLLS: u32 = 32;
/// Time in which polls are counted.
const BURST: Duration = Duration::from_millis(100);
/// Time without a poll after which the executor is at rest again.
const REST_AFTER: Duration = Duration::from_millis(250);

/// The executor of the main thread.
#[derive(Debug, Default)]
pub struct Executor(LocalExecutor<'static>);

impl Executor {
    /// Makes an executor without tasks.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts a task, which ends when its handle is dropped.
    pub fn spawn<T: 'static>(&self, work: impl Future<Output = T> + 'static) -> Task<T> {
        let work: BoxedLocal<T> = Box::pin(work);
        self.0.spawn(work)
    }

    /// Runs the tasks until a future ends, which is the one that is run for.
    pub async fn run<T>(&self, until: impl Future<Output = T>) -> T {
        self.0.run(until).await
    }

    /// Runs the tasks on this thread until a future ends. `clock` reads a clock that never goes
    /// back.
    ///
    /// Two threads can wait for events. At rest the thread of the reactor does, and this one sleeps
    /// until a task can go on: two wake-ups for an event. Under load this thread waits itself,
    /// which spares a download a fifth of its time; it is no way to rest, because the thread of the
    /// reactor then looks ten times after each event whether it is needed.
    pub fn block_on<T>(&self, clock: fn() -> Duration, until: impl Future<Output = T>) -> T {
        let mut work = pin!(self.0.run(until));
        let mut pace = Pace::new(clock());
        loop {
            let is_busy = pace.is_busy;
            let mut until_pace_changes = |context: &mut Context<'_>| {
                let polled = work.as_mut().poll(context).map(Some);
                if polled.is_pending() && pace.changes(clock()) {
                    Poll::Ready(None)
                } else {
                    polled
                }
            };
            let turn = future::poll_fn(&mut until_pace_changes);
            let ended = if is_busy {
                smol::block_on(turn)
            } else {
                future::block_on(turn)
            };
            if let Some(ended) = ended {
                return ended;
            }
        }
    }

    /// Runs one step of one task. False where none can go on.
    #[cfg(test)]
    pub fn try_tick(&self) -> bool {
        self.0.try_tick()
    }
}

/// Load of the executor: how close together its polls are.
#[derive(Debug)]
struct Pace {
    is_busy: bool,
    last: Duration,
    /// Start of the time in which `polls` are counted.
    since: Duration,
    polls: u32,
}

impl Pace {
    const fn new(now: Duration) -> Self {
        Self {
            is_busy: false,
            last: now,
            since: now,
            polls: 0,
        }
    }

    /// Counts a poll. True where the executor becomes busy by it, or was at rest before it.
    fn changes(&mut self, now: Duration) -> bool {
        let was_busy = self.is_busy;
        let rested = now.saturating_sub(self.last);
        self.last = now;
        if now.saturating_sub(self.since) > BURST {
            self.since = now;
            self.polls = 0;
        }
        self.polls = self.polls.saturating_add(1);
        self.is_busy = if was_busy {
            rested < REST_AFTER
        } else {
            self.polls >= BUSY_POLLS
        };
        self.is_busy != was_busy
    }
}

/// Blocking work under way. Work that has not begun is forgotten when this is dropped.
#[derive(Debug)]
pub struct Unblocked<T> {
    task: Task<AnyResult>,
    result: PhantomData<fn() -> T>,
}

type AnyResult = Box<dyn Any + Send>;

/// Begins blocking work in the pool of threads.
///
/// The pool is for what waits for a name server, a password hash or another program; files have
/// [`crate::files::Jobs`].
#[expect(clippy::disallowed_methods, reason = "the one place")]
pub fn unblock<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Unblocked<T> {
    let work: Box<dyn FnOnce() -> AnyResult + Send> = Box::new(move || Box::new(work()));
    Unblocked {
        task: smol::unblock(work),
        result: PhantomData,
    }
}

impl<T: 'static> Future for Unblocked<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        Pin::new(&mut self.task).poll(context).map(|result| {
            *result
                .downcast()
                .unwrap_or_else(|_| unreachable!("the work gives what it was asked for"))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, rc::Rc};

    use super::*;

    /// Polls every `step` milliseconds; how many until the pace changes.
    fn polls_until_change(pace: &mut Pace, step: u64) -> Option<u32> {
        (1..=1_000).find(|_| {
            let now = pace.last + Duration::from_millis(step);
            pace.changes(now)
        })
    }

    #[test]
    fn many_polls_in_a_short_time_are_load() {
        let mut pace = Pace::new(Duration::from_secs(9));
        assert_eq!(polls_until_change(&mut pace, 10), None);
        assert_eq!(polls_until_change(&mut pace, 2), Some(BUSY_POLLS));
        assert!(pace.is_busy);
    }

    #[test]
    fn load_ends_with_a_pause() {
        let mut pace = Pace::new(Duration::ZERO);
        polls_until_change(&mut pace, 1).unwrap();
        assert_eq!(polls_until_change(&mut pace, 249), None);
        assert_eq!(polls_until_change(&mut pace, 250), Some(1));
        assert!(!pace.is_busy);
        // One poll after a pause is no load.
        assert_eq!(polls_until_change(&mut pace, 250), None);
    }

    #[test]
    fn no_task_is_lost_between_rest_and_load() {
        let executor = Executor::new();
        let (load, rest) = (Rc::new(Cell::new(0)), Duration::from_millis(260));
        let counted = Rc::clone(&load);
        let work = async move {
            for _ in 0..3 {
                // Each is a poll of its own: the timer is waited for.
                for _ in 0..100 {
                    smol::Timer::after(Duration::from_micros(50)).await;
                    counted.set(counted.get() + 1);
                }
                smol::Timer::after(rest).await;
            }
        };
        let work = executor.spawn(work);
        let started = crate::host::clock::awake();
        executor.block_on(crate::host::clock::awake, work);
        assert_eq!(load.get(), 300);
        assert!(crate::host::clock::awake().saturating_sub(started) >= 3 * rest);
    }
}

//! Runs tasks on the main thread, and blocking work in the pool of threads.
//!
//! Both box what they are given: the compiler builds the scheduling around a task once for each
//! type of future, about four kilobytes every time, and a box makes them one type.

use std::{
    any::Any,
    future::Future,
    marker::PhantomData,
    pin::Pin,
    task::{Context, Poll},
};

use smol::{LocalExecutor, Task};

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
        let work: Pin<Box<dyn Future<Output = T>>> = Box::pin(work);
        self.0.spawn(work)
    }

    /// Runs the tasks until a future ends, which is the one that is run for.
    pub async fn run<T>(&self, until: impl Future<Output = T>) -> T {
        self.0.run(until).await
    }

    /// Runs one step of one task. False where none can go on.
    #[cfg(test)]
    pub fn try_tick(&self) -> bool {
        self.0.try_tick()
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

//! Wake-ups between tasks of the one thread: a bell that wakes, and an inbox with a size.
//!
//! Neither may cross a thread, and neither has a deadline of its own: the waiter brings one.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Wakes everybody who waits for something to become different.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    rung: Cell<u64>,
    waiting: RefCell<Vec<Waker>>,
}

impl Bell {
    /// Wakes every waiter.
    pub(crate) fn ring(&self) {
        self.rung.set(self.rung.get().wrapping_add(1));
        for waker in self.waiting.take() {
            waker.wake();
        }
    }

    /// Waits until `level` gives something; it is asked again after each ring.
    pub(crate) async fn until<T>(&self, mut level: impl FnMut() -> Option<T>) -> T {
        poll_fn(|context| {
            if let Some(reached) = level() {
                return Poll::Ready(reached);
            }
            self.remember(context);
            Poll::Pending
        })
        .await
    }

    /// Wakes this task at the next ring.
    pub(crate) fn remember(&self, context: &Context<'_>) {
        let mut waiting = self.waiting.borrow_mut();
        if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
            waiting.push(context.waker().clone());
        }
    }
}

/// A queue between two tasks that knows how many bytes wait in it.
#[derive(Debug)]
pub(crate) struct Inbox<T> {
    items: RefCell<VecDeque<(T, usize)>>,
    bytes: Cell<usize>,
    is_closed: Cell<bool>,
    bell: Bell,
}

impl<T> Default for Inbox<T> {
    fn default() -> Self {
        Self {
            items: RefCell::default(),
            bytes: Cell::new(0),
            is_closed: Cell::new(false),
            bell: Bell::default(),
        }
    }
}

impl<T> Inbox<T> {
    /// Adds an item; dropped when the inbox is closed. The producer keeps the bound by waiting
    /// for [`Inbox::below`].
    pub(crate) fn push(&self, item: T, bytes: usize) {
        if self.is_closed.get() {
            return;
        }
        self.items.borrow_mut().push_back((item, bytes));
        self.bytes.set(self.bytes.get().saturating_add(bytes));
        self.bell.ring();
    }

    /// Takes the oldest item, or `None` once the inbox is closed and empty.
    pub(crate) async fn pop(&self) -> Option<T> {
        poll_fn(|context| self.poll_pop(context)).await
    }

    /// As [`Inbox::pop`], for hand-written futures.
    pub(crate) fn poll_pop(&self, context: &Context<'_>) -> Poll<Option<T>> {
        if let Some(item) = self.try_pop() {
            return Poll::Ready(Some(item));
        }
        if self.is_closed.get() {
            return Poll::Ready(None);
        }
        self.bell.remember(context);
        Poll::Pending
    }

    /// Takes the oldest item if there is one.
    pub(crate) fn try_pop(&self) -> Option<T> {
        let (item, bytes) = self.items.borrow_mut().pop_front()?;
        self.bytes.set(self.bytes.get().saturating_sub(bytes));
        self.bell.ring();
        Some(item)
    }

    /// Waits until fewer than `bytes_max` bytes wait, or the inbox is closed.
    pub(crate) async fn below(&self, bytes_max: usize) {
        poll_fn(|context| self.poll_below(context, bytes_max)).await;
    }

    /// As [`Inbox::below`], for hand-written futures.
    pub(crate) fn poll_below(&self, context: &Context<'_>, bytes_max: usize) -> Poll<()> {
        if self.bytes.get() < bytes_max || self.is_closed.get() {
            return Poll::Ready(());
        }
        self.bell.remember(context);
        Poll::Pending
    }

    /// Nothing more comes in; what waits can still be taken.
    pub(crate) fn close(&self) {
        self.is_closed.set(true);
        self.bell.ring();
    }

    /// Closes and forgets what waits: the reader is gone.
    pub(crate) fn abandon(&self) {
        self.items.borrow_mut().clear();
        self.bytes.set(0);
        self.close();
    }

    /// Bytes that wait.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.get()
    }
}

/// Runs `future` for at most `limit`.
pub(crate) async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    smol::future::or(async { Some(future.await) }, async {
        smol::Timer::after(limit).await;
        None
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inbox_counts_its_bytes_and_ends_after_the_last_item() {
        let inbox = Inbox::default();
        inbox.push("a", 3);
        inbox.push("b", 4);
        inbox.close();
        inbox.push("late", 1);
        assert_eq!(inbox.bytes(), 7);
        smol::block_on(async {
            assert_eq!(inbox.pop().await, Some("a"));
            assert_eq!(inbox.bytes(), 4);
            assert_eq!(inbox.pop().await, Some("b"));
            assert_eq!(inbox.pop().await, None);
        });
    }
}

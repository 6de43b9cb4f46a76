//! Sign of life of the API server: the time of its last byte, and whether it is taken to be silent.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::task::{Poll, Waker};

use super::error::Error;
use crate::core::time::{Mono, Now};

/// Time of the last byte of an API server, written by every connection to it.
pub struct Heard {
    now: fn() -> Now,
    last: Cell<Option<Mono>>,
    silence: RefCell<Option<Error>>,
    /// Calls that got no answer.
    failures: Cell<u64>,
    /// Grows when trying again makes sense: the API server answers again, or the agent's access or
    /// its rights have changed.
    chances: Cell<u64>,
    wakers: RefCell<Vec<Waker>>,
}

impl fmt::Debug for Heard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Heard({:?})", self.last.get())
    }
}

impl Heard {
    pub(super) fn new(now: fn() -> Now) -> Rc<Self> {
        Rc::new(Self {
            now,
            last: Cell::new(None),
            silence: RefCell::default(),
            failures: Cell::new(0),
            chances: Cell::new(0),
            wakers: RefCell::default(),
        })
    }

    /// Notes that a byte came.
    pub(super) fn byte(&self) {
        self.last.set(Some((self.now)().mono));
        if self.silence.borrow().is_some() {
            self.silence.replace(None);
            self.try_again();
        }
    }

    /// Notes that a call got no answer.
    pub(super) fn failed(&self) {
        self.failures.set(self.failures.get().wrapping_add(1));
        self.wake();
    }

    /// Time of the last byte; `None` where none came yet.
    pub fn last(&self) -> Option<Mono> {
        self.last.get()
    }

    /// Calls that got no answer since the start.
    pub fn failures(&self) -> u64 {
        self.failures.get()
    }

    /// The error of the call for which the API server is taken to be silent; `None`: it answers.
    pub fn silence(&self) -> Option<Error> {
        self.silence.borrow().clone()
    }

    /// Marks the API server as silent, which ends every watch; the next byte unmarks it.
    pub fn set_silent(&self, why: Error) {
        self.silence.replace(Some(why));
        self.wake();
    }

    /// Makes watches that wait after a failure try again now.
    pub fn try_again(&self) {
        self.chances.set(self.chances.get().wrapping_add(1));
        self.wake();
    }

    /// Number of the chances so far, for [`Heard::chance`].
    pub fn chances(&self) -> u64 {
        self.chances.get()
    }

    /// Waits until trying again makes sense, counted from `seen`.
    pub async fn chance(&self, seen: u64) {
        self.until(|| self.chances.get() != seen).await;
    }

    /// Waits until the API server is taken to be silent.
    pub async fn silenced(&self) {
        self.until(|| self.silence.borrow().is_some()).await;
    }

    /// Waits until a call got no answer, counted from `seen`, or `was_silent` is not true any more.
    pub async fn changed(&self, seen: u64, was_silent: bool) {
        let is_silent = || self.silence.borrow().is_some();
        self.until(|| self.failures.get() != seen || is_silent() != was_silent)
            .await;
    }

    async fn until(&self, level: impl Fn() -> bool) {
        std::future::poll_fn(|context| {
            if level() {
                return Poll::Ready(());
            }
            let mut wakers = self.wakers.borrow_mut();
            // One for each task, however often it asks.
            if !wakers.iter().any(|known| known.will_wake(context.waker())) {
                wakers.push(context.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }

    fn wake(&self) {
        let wakers = self.wakers.take();
        wakers.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smol::future;

    #[test]
    fn a_byte_ends_a_silence_and_is_a_chance_to_try_again() {
        let heard = Heard::new(Now::default);
        assert_eq!(heard.last(), None);
        let seen = heard.chances();
        heard.set_silent(Error::BadRequest("no answer".to_owned()));
        smol::block_on(heard.silenced());
        heard.byte();
        assert_eq!(heard.silence(), None);
        assert_eq!(heard.last(), Some(Mono::default()));
        smol::block_on(heard.chance(seen));
    }

    #[test]
    fn who_waits_is_woken_by_what_it_waits_for_and_by_nothing_else() {
        let heard = Heard::new(Now::default);
        let mut waits = std::pin::pin!(heard.changed(heard.failures(), false));
        assert_eq!(smol::block_on(future::poll_once(&mut waits)), None);
        heard.byte();
        heard.try_again();
        assert_eq!(smol::block_on(future::poll_once(&mut waits)), None);
        heard.failed();
        assert_eq!(smol::block_on(future::poll_once(&mut waits)), Some(()));
    }
}

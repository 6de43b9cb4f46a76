//! Slots for concurrent proxied requests. Short requests wait a little for their turn, long ones do
//! not wait.

use std::{collections::VecDeque, time::Duration};

use crate::core::time::Mono;

/// Short requests that run at once.
const SHORT_RUNNING_MAX: usize = 8;
/// Short requests that wait at most.
const SHORT_WAITING_MAX: usize = 16;
/// Maximum wait of a short request for a slot.
pub const WAIT_MAX: Duration = Duration::from_secs(30);
/// Watches, followed logs and WebSockets that run at once.
const LONG_RUNNING_MAX: usize = 64;

/// The two classes of requests.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Class {
    /// Expected to be over soon.
    Short,
    /// Watches, followed logs, WebSockets.
    Long,
}

/// Answer to a request for a slot.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Admission {
    Run,
    /// It waits until it may run, at most until then.
    Wait(Mono),
    /// It is refused: too many.
    Busy,
}

/// The slots of one session. Requests are named by numbers that their owner chooses.
///
/// Invariant: nobody waits while a short slot is free.
#[derive(Debug, Default)]
pub struct Slots {
    short: Vec<u64>,
    long: Vec<u64>,
    waiting: VecDeque<u64>,
}

impl Slots {
    /// A request asks for a slot.
    pub fn ask(&mut self, request: u64, class: Class, now: Mono) -> Admission {
        match class {
            Class::Long if self.long.len() < LONG_RUNNING_MAX => {
                self.long.push(request);
                Admission::Run
            }
            Class::Long => Admission::Busy,
            Class::Short if self.short.len() < SHORT_RUNNING_MAX => {
                self.short.push(request);
                Admission::Run
            }
            Class::Short if self.waiting.len() < SHORT_WAITING_MAX => {
                self.waiting.push_back(request);
                Admission::Wait(now.after(WAIT_MAX))
            }
            Class::Short => Admission::Busy,
        }
    }

    /// A request is over, was cancelled or waited too long. Returns the one that runs now in its
    /// place.
    pub fn leave(&mut self, request: u64) -> Option<u64> {
        self.long.retain(|other| *other != request);
        self.waiting.retain(|other| *other != request);
        let before = self.short.len();
        self.short.retain(|other| *other != request);
        if self.short.len() == before {
            return None;
        }
        let next = self.waiting.pop_front()?;
        self.short.push(next);
        Some(next)
    }

    /// Short ones running, short ones waiting, long ones running.
    pub fn load(&self) -> (usize, usize, usize) {
        (self.short.len(), self.waiting.len(), self.long.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_run_sixteen_wait_and_the_next_is_told_to_come_back() {
        let mut slots = Slots::default();
        let now = Mono::since_boot(Duration::from_secs(5));
        let mut ask = |request| slots.ask(request, Class::Short, now);
        assert!((0..8).all(|request| ask(request) == Admission::Run));
        assert!((8..24).all(|request| ask(request) == Admission::Wait(now.after(WAIT_MAX))));
        assert_eq!(ask(24), Admission::Busy);
        assert_eq!(slots.load(), (8, 16, 0));
    }

    #[test]
    fn the_longest_waiting_takes_the_place_of_the_one_that_left() {
        let mut slots = Slots::default();
        for request in 0..11 {
            slots.ask(request, Class::Short, Mono::default());
        }
        assert_eq!(slots.leave(9), None, "a waiting one leaves no place");
        assert_eq!(slots.leave(3), Some(8));
        assert_eq!(slots.leave(8), Some(10));
        assert_eq!(slots.leave(0), None);
        assert_eq!(slots.leave(0), None, "leaving twice frees nothing twice");
        assert_eq!(slots.load(), (7, 0, 0));
    }

    #[test]
    fn long_ones_have_their_own_places_and_do_not_wait() {
        let mut slots = Slots::default();
        for request in 0..64 {
            assert_eq!(
                slots.ask(request, Class::Long, Mono::default()),
                Admission::Run
            );
        }
        assert_eq!(slots.ask(64, Class::Long, Mono::default()), Admission::Busy);
        assert_eq!(slots.ask(65, Class::Short, Mono::default()), Admission::Run);
        assert_eq!(slots.leave(7), None);
        assert_eq!(slots.ask(66, Class::Long, Mono::default()), Admission::Run);
    }
}

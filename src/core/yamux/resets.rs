//! Streams whose RST waits to be sent, and those that got one: bounded, whatever the peer sends.

use std::collections::{BTreeSet, VecDeque};

/// Resets that wait. A peer that opens streams without reading our answers gets none beyond this.
pub(super) const WAITING_MAX: usize = 1024;
/// Streams that are remembered as already answered.
const ANSWERED_MAX: usize = 256;

/// The answers of RST.
#[derive(Debug)]
pub(super) struct Resets {
    waiting: BTreeSet<u32>,
    /// The last ids that were answered: what the peer had under way when it was reset is not
    /// answered again.
    answered: VecDeque<u32>,
    unanswered: u64,
}

impl Resets {
    pub(super) const fn new() -> Self {
        Self {
            waiting: BTreeSet::new(),
            answered: VecDeque::new(),
            unanswered: 0,
        }
    }

    /// RST for a stream that we had, which must go out. There are no more of these than slots.
    pub(super) fn end(&mut self, id: u32) {
        self.waiting.insert(id);
        self.answered.retain(|answered| *answered != id);
        if self.answered.len() >= ANSWERED_MAX {
            self.answered.pop_front();
        }
        self.answered.push_back(id);
    }

    /// RST for something that the peer sent, if there is room.
    pub(super) fn refuse(&mut self, id: u32) {
        if self.is_full() {
            self.unanswered += 1;
        } else {
            self.end(id);
        }
    }

    /// RST for data of a stream that does not exist; once. The session's own id is no stream.
    pub(super) fn refuse_once(&mut self, id: u32) {
        if id != 0 && !self.answered.contains(&id) {
            self.refuse(id);
        }
    }

    /// The id names a new stream, which has had no answer.
    pub(super) fn forget(&mut self, id: u32) {
        self.answered.retain(|answered| *answered != id);
    }

    /// Returns whether the RST of this id has not gone out.
    pub(super) fn is_waiting(&self, id: u32) -> bool {
        self.waiting.contains(&id)
    }

    /// Returns whether nothing more should be begun that may need an RST.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() >= WAITING_MAX
    }

    /// The next one to go out.
    pub(super) fn next(&mut self) -> Option<u32> {
        self.waiting.pop_first()
    }

    /// Number of waiting resets.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Number of resets that were dropped for lack of space.
    pub(super) const fn unanswered(&self) -> u64 {
        self.unanswered
    }

    /// Drops all that wait.
    pub(super) fn clear(&mut self) {
        self.waiting.clear();
    }
}

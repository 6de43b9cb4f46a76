//! One stream: its two windows and how far each side has come.

use super::{StreamKey, WINDOW, frame::Flags};

/// Invariant: `receive_window + buffered + owed == WINDOW`. What the peer may still send, what lies
/// here and what has been consumed without being granted again are parts of one window.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) serial: u64,
    /// Bytes that we may still send.
    pub(super) send_window: u32,
    /// Bytes that the peer may still send.
    receive_window: u32,
    /// Received and not consumed.
    buffered: u32,
    /// Consumed and not granted again.
    owed: u32,
    /// Number of the last consumption (at first: of the opening), to find the stream that was left
    /// alone the longest.
    pub(super) last_read: u64,
    /// True until a frame has carried the ACK.
    needs_ack: bool,
    pub(super) finished_here: bool,
    pub(super) finished_there: bool,
}

impl Stream {
    pub(super) const fn new(serial: u64) -> Self {
        Self {
            serial,
            send_window: WINDOW,
            receive_window: WINDOW,
            buffered: 0,
            owed: 0,
            last_read: serial,
            needs_ack: true,
            finished_here: false,
            finished_there: false,
        }
    }

    /// The name of the stream, given its id.
    pub(super) const fn key(&self, id: u32) -> StreamKey {
        StreamKey {
            serial: self.serial,
            id,
        }
    }

    /// ACK for the first frame of the stream, and nothing for later ones.
    pub(super) fn take_ack(&mut self) -> Flags {
        if std::mem::take(&mut self.needs_ack) {
            Flags::ACK
        } else {
            Flags::NONE
        }
    }

    /// Bytes received and not consumed.
    pub(super) const fn buffered(&self) -> u32 {
        self.buffered
    }

    /// Returns whether the peer may send so much now.
    pub(super) const fn may_receive(&self, bytes: u32) -> bool {
        bytes <= self.receive_window
    }

    /// Bytes have come that were allowed.
    pub(super) fn receive(&mut self, bytes: u32) {
        self.receive_window -= bytes;
        self.buffered += bytes;
        self.check();
    }

    /// Bytes were read; says how many of them had been there.
    pub(super) fn consume(&mut self, bytes: u32, serial: u64) -> u32 {
        debug_assert!(bytes <= self.buffered, "only what is there is consumed");
        let bytes = bytes.min(self.buffered);
        self.buffered -= bytes;
        self.owed += bytes;
        self.last_read = serial;
        self.check();
        bytes
    }

    /// Returns whether a window update is due: at half a window, as every implementation does it,
    /// so that the peer need not wait.
    pub(super) const fn owes(&self) -> bool {
        self.owed >= WINDOW / 2 && !self.finished_there
    }

    /// Grants again what was consumed; says how much that is.
    pub(super) fn grant(&mut self) -> u32 {
        let delta = std::mem::take(&mut self.owed);
        self.receive_window += delta;
        self.check();
        delta
    }

    fn check(&self) {
        debug_assert_eq!(
            u64::from(self.receive_window) + u64::from(self.buffered) + u64::from(self.owed),
            u64::from(WINDOW),
            "a window is what may come, what is here and what is owed"
        );
    }
}

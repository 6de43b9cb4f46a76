//! Received and unread bytes of one stream.

use std::collections::VecDeque;

use hyper::body::Bytes;

/// A smaller part of a message is copied together with its neighbours.
const COPIED_BELOW: usize = 2 * 1024;
/// Copied bytes that become one piece.
const CHUNK_BYTES: usize = 8 * 1024;

/// Received bytes in order.
///
/// A piece that is a slice of a message keeps the whole message in memory, and each piece costs its
/// own bookkeeping. So only a slice that is large, and at least half of its message, is kept as it
/// is: what lies here is at most twice what the machine has counted, also when a peer sends its
/// window byte by byte.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    pieces: VecDeque<Bytes>,
    tail: Vec<u8>,
}

impl Inbox {
    /// Adds `part`, which is a slice of a message of `message` bytes.
    pub(super) fn push(&mut self, part: Bytes, message: usize) {
        if part.len() >= COPIED_BELOW && part.len().saturating_mul(2) >= message {
            self.close_tail();
            self.pieces.push_back(part);
            return;
        }
        self.tail.extend_from_slice(&part);
        if self.tail.len() >= CHUNK_BYTES {
            self.close_tail();
        }
    }

    /// Fills the buffer as far as there is data; says how far.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> usize {
        let mut done = 0;
        while let Some(room) = buffer.get_mut(done..).filter(|room| !room.is_empty()) {
            let piece = self.peek();
            let count = piece.len().min(room.len());
            if count == 0 {
                break;
            }
            let (Some(to), Some(from)) = (room.get_mut(..count), piece.get(..count)) else {
                break;
            };
            to.copy_from_slice(from);
            self.skip(count);
            done += count;
        }
        done
    }

    /// The next bytes, which stay here; empty when there are none.
    pub(super) fn peek(&mut self) -> &[u8] {
        if self.pieces.is_empty() {
            self.close_tail();
        }
        self.pieces.front().map_or(&[], |piece| piece)
    }

    /// Drops bytes that [`Self::peek`] has shown.
    pub(super) fn skip(&mut self, count: usize) {
        if let Some(piece) = self.pieces.front_mut() {
            debug_assert!(count <= piece.len(), "only what was shown is skipped");
            *piece = piece.split_off(count.min(piece.len()));
            if piece.is_empty() {
                self.pieces.pop_front();
            }
        }
    }

    fn close_tail(&mut self) {
        if !self.tail.is_empty() {
            self.pieces.push_back(std::mem::take(&mut self.tail).into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_out_in_the_order_in_which_they_came() {
        let mut inbox = Inbox::default();
        let sent: Vec<u8> = (0..40_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        let mut rest = Bytes::from(sent.clone());
        for size in [1, 5000, 3, 9000, 2, 2, 2048, 20_000] {
            inbox.push(rest.split_to(size), size);
        }
        let length = sent.len() - rest.len();
        let mut read = vec![0; length];
        assert_eq!(inbox.read(&mut read[..7]), 7);
        assert_eq!(inbox.read(&mut read[7..]), length - 7);
        assert_eq!(read, sent[..length]);
        assert_eq!(inbox.read(&mut [0; 4]), 0);
    }

    #[test]
    fn a_small_part_does_not_hold_a_large_message() {
        let mut inbox = Inbox::default();
        let message = Bytes::from(vec![7; 1 << 20]);
        inbox.push(message.slice(..64), message.len());
        inbox.push(message.slice(100..5000), message.len());
        assert!(message.is_unique(), "only copies lie in the inbox");
        inbox.push(message.slice(..), message.len());
        assert!(!message.is_unique());
    }

    #[test]
    fn a_window_sent_byte_by_byte_lies_in_few_pieces() {
        let mut inbox = Inbox::default();
        for _ in 0..256 * 1024 {
            inbox.push(Bytes::from_static(b"x"), 13);
        }
        assert!(inbox.pieces.len() <= 32);
        let held: usize = inbox.pieces.iter().map(Bytes::len).sum();
        assert_eq!(held + inbox.tail.len(), 256 * 1024);
    }
}

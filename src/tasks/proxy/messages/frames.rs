//! WebSocket frames on their way to a backend: an ordered queue with two bounds, filled without
//! waiting.

use std::{
    cell::RefCell,
    collections::VecDeque,
    future::poll_fn,
    rc::Rc,
    task::{Poll, Waker},
};

use hyper::body::Bytes;

/// Frames that wait for one backend.
const FRAMES_MAX: usize = 100;
/// Bytes that wait for one backend.
const BYTES_MAX: usize = 1 << 20;
/// Kind of a stream: it decides on the form of its messages and on its end.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::tasks::proxy) enum StreamKind {
    /// An application's WebSocket.
    Application,
    /// exec, attach or port-forward.
    Kubernetes,
}

/// The opcodes that the wire carries (RFC 6455, 5.2).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::tasks::proxy) enum Opcode {
    Text,
    Binary,
    Close,
    Ping,
    Pong,
}

impl Opcode {
    pub(in crate::tasks::proxy) fn of(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Text,
            2 => Self::Binary,
            8 => Self::Close,
            9 => Self::Ping,
            10 => Self::Pong,
            _ => return None,
        })
    }
}

/// One frame for the backend.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(in crate::tasks::proxy) struct FrameIn {
    pub(in crate::tasks::proxy) opcode: Opcode,
    pub(in crate::tasks::proxy) payload: Bytes,
}

impl FrameIn {
    /// Reads a framed payload: the opcode, then the bytes. Senders that leave the opcode out and
    /// say it beside the data are understood where that is not ambiguous (docs/protocol.md,
    /// WebSockets of services).
    pub(in crate::tasks::proxy) fn of(data: &Bytes, message_type: Option<u8>) -> Option<Self> {
        if let Some(opcode) = data.first().and_then(|first| Opcode::of(*first)) {
            return Some(Self {
                opcode,
                payload: data.slice(1..),
            });
        }
        Some(Self {
            opcode: message_type.and_then(Opcode::of)?,
            payload: data.clone(),
        })
    }
}

/// Result of queueing a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::tasks::proxy) enum Queued {
    /// It will be written.
    Taken,
    /// The queue is full.
    Full,
    /// The WebSocket is closing.
    Closing,
}

/// End of a queue.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(in crate::tasks::proxy) enum QueueEnd {
    /// The control plane closed it.
    Closed,
    /// It cannot go on.
    Failed(String),
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<FrameIn>,
    bytes: usize,
    received_bytes: u64,
    end: Option<QueueEnd>,
    writer: Option<Waker>,
    watcher: Option<Waker>,
}

/// The queue of one WebSocket.
#[derive(Debug, Default)]
pub(in crate::tasks::proxy) struct Frames {
    state: RefCell<State>,
}

impl Frames {
    pub(in crate::tasks::proxy) fn new() -> Rc<Self> {
        Rc::default()
    }

    /// Queues a frame.
    pub(in crate::tasks::proxy) fn push(&self, frame: FrameIn) -> Queued {
        let mut state = self.state.borrow_mut();
        if state.end.is_some() {
            return Queued::Closing;
        }
        let bytes = state.bytes.saturating_add(frame.payload.len());
        if state.queue.len() >= FRAMES_MAX || bytes > BYTES_MAX {
            return Queued::Full;
        }
        state.bytes = bytes;
        let length = u64::try_from(frame.payload.len()).unwrap_or(u64::MAX);
        state.received_bytes = state.received_bytes.saturating_add(length);
        state.queue.push_back(frame);
        state.wake();
        Queued::Taken
    }

    /// Bytes that came in so far.
    pub(in crate::tasks::proxy) fn received_bytes(&self) -> u64 {
        self.state.borrow().received_bytes
    }

    /// The control plane wants no more: what is queued is still written.
    pub(in crate::tasks::proxy) fn close(&self) {
        self.end(QueueEnd::Closed);
    }

    /// The stream cannot go on: what is queued is not written any more.
    pub(in crate::tasks::proxy) fn fail(&self, why: String) {
        self.end(QueueEnd::Failed(why));
    }

    fn end(&self, end: QueueEnd) {
        let mut state = self.state.borrow_mut();
        if state.end.is_some() {
            return;
        }
        if matches!(end, QueueEnd::Failed(_)) {
            state.queue.clear();
            state.bytes = 0;
        }
        state.end = Some(end);
        state.wake();
    }

    /// Waits until it has ended, whatever is queued.
    pub(in crate::tasks::proxy) async fn ended(&self) {
        poll_fn(|context| {
            let mut state = self.state.borrow_mut();
            if state.end.is_some() {
                return Poll::Ready(());
            }
            state.watcher = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// The next frame; how it ended when there is none any more.
    pub(in crate::tasks::proxy) async fn next(&self) -> Result<FrameIn, QueueEnd> {
        poll_fn(|context| {
            let mut state = self.state.borrow_mut();
            if let Some(frame) = state.queue.pop_front() {
                state.bytes = state.bytes.saturating_sub(frame.payload.len());
                return Poll::Ready(Ok(frame));
            }
            if let Some(end) = &state.end {
                return Poll::Ready(Err(end.clone()));
            }
            state.writer = Some(context.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl State {
    fn wake(&mut self) {
        for waker in [self.writer.take(), self.watcher.take()]
            .into_iter()
            .flatten()
        {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smol::future::block_on;

    fn frame(bytes: usize) -> FrameIn {
        FrameIn {
            opcode: Opcode::Binary,
            payload: Bytes::from(vec![0; bytes]),
        }
    }

    #[test]
    fn both_bounds_hold() {
        let many = Frames::default();
        assert!((0..FRAMES_MAX).all(|_| many.push(frame(1)) == Queued::Taken));
        assert_eq!(many.push(frame(1)), Queued::Full);
        let large = Frames::default();
        assert_eq!(large.push(frame(BYTES_MAX)), Queued::Taken);
        assert_eq!(large.push(frame(1)), Queued::Full);
        block_on(large.next()).unwrap();
        assert_eq!(large.push(frame(1)), Queued::Taken);
    }

    #[test]
    fn a_close_lets_what_is_queued_go_and_a_failure_does_not() {
        let closed = Frames::default();
        closed.push(frame(1));
        closed.close();
        closed.fail("late".to_owned());
        assert_eq!(closed.push(frame(1)), Queued::Closing);
        assert!(block_on(closed.next()).is_ok());
        assert_eq!(block_on(closed.next()), Err(QueueEnd::Closed));
        let failed = Frames::default();
        failed.push(frame(1));
        failed.fail("x".to_owned());
        assert_eq!(
            block_on(failed.next()),
            Err(QueueEnd::Failed("x".to_owned()))
        );
    }

    #[test]
    fn framed_data_is_read_and_unframed_data_where_it_is_labelled() {
        let of = |data: &'static [u8], kind| FrameIn::of(&Bytes::from_static(data), kind);
        let frame = |opcode, payload: &'static [u8]| {
            Some(FrameIn {
                opcode,
                payload: Bytes::from_static(payload),
            })
        };
        assert_eq!(of(b"\x01hello", None), frame(Opcode::Text, b"hello"));
        assert_eq!(of(b"\x02", Some(1)), frame(Opcode::Binary, b""));
        assert_eq!(of(b"hello", Some(1)), frame(Opcode::Text, b"hello"));
        assert_eq!(of(b"", Some(9)), frame(Opcode::Ping, b""));
        assert_eq!(of(b"hello", None), None);
        assert_eq!(of(b"", None), None);
        assert_eq!(of(b"hello", Some(7)), None);
    }
}

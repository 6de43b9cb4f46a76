//! Outlet of a session: any task puts frames into lanes, the pump takes the next one. All on one
//! thread.
//!
//! An outlet belongs to one session. When the session ends it is *lost*: everything queued is
//! dropped and every sender is notified, so that no response goes out on another session than its
//! request came in on.

use std::{
    cell::RefCell,
    fmt,
    future::poll_fn,
    rc::Rc,
    task::{Context, Poll, Waker},
};

use hyper::body::Bytes;
use litemap::LiteMap;

use crate::core::lanes::{LaneId, Lanes, Purpose, Refused, Weight};

/// One WebSocket frame or whole message on its way out.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Frame {
    /// A whole text message.
    Text(String),
    /// A whole binary message.
    Binary(Bytes),
    /// A part of a message that is too large to be held in memory.
    Part {
        /// Text or binary, and whether it is the first part.
        kind: Fragment,
        /// The payload of this part.
        data: Bytes,
        /// True if the message ends here.
        is_last: bool,
    },
}

/// Part of a message that a frame is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fragment {
    /// The first of a text message.
    FirstText,
    /// The first of a binary message.
    FirstBinary,
    /// Any later one.
    Next,
}

impl Weight for Frame {
    fn weight(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Binary(data) | Self::Part { data, .. } => data.len(),
        }
    }

    fn ends_message(&self) -> bool {
        match self {
            Self::Text(_) | Self::Binary(_) => true,
            Self::Part { is_last, .. } => *is_last,
        }
    }

    fn broken_end() -> Self {
        Self::Part {
            kind: Fragment::Next,
            data: Bytes::new(),
            is_last: true,
        }
    }
}

/// The session that this outlet belonged to is over.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Lost;

#[derive(Default)]
struct Shared {
    lanes: Lanes<Frame>,
    pump: Option<Waker>,
    waiting: LiteMap<LaneId, Waker>,
    is_lost: bool,
    carries_streams: bool,
}

impl Shared {
    fn lose(&mut self) {
        self.is_lost = true;
        self.lanes = Lanes::new();
        for (_, waker) in std::mem::take(&mut self.waiting) {
            waker.wake();
        }
        self.wake_pump();
    }

    fn wake_pump(&mut self) {
        if let Some(waker) = self.pump.take() {
            waker.wake();
        }
    }
}

/// A handle on the outgoing side of one session; clones share it.
#[derive(Clone, Default)]
pub struct Outlet {
    shared: Rc<RefCell<Shared>>,
}

impl fmt::Debug for Outlet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outlet")
            .field("is_lost", &self.shared.borrow().is_lost)
            .finish_non_exhaustive()
    }
}

impl Outlet {
    /// The outlet of a new session.
    pub fn new() -> Self {
        Self::default()
    }

    /// Queues a control message in front of all answers. Where even these do not get out any more
    /// the session is dead, and lost here.
    pub fn control(&self, text: String) {
        let mut shared = self.shared.borrow_mut();
        if shared.is_lost {
            return;
        }
        match shared.lanes.push_control(Frame::Text(text)) {
            Ok(()) => shared.wake_pump(),
            Err(Refused::Full(_) | Refused::NoLane) => shared.lose(),
        }
    }

    /// From here on binary messages of this session are frames of streams, and nothing else.
    pub fn carry_streams(&self) {
        self.shared.borrow_mut().carries_streams = true;
    }

    /// Opens a lane for the answers of one exchange.
    pub fn open(&self) -> Lane {
        self.open_for(Purpose::Answer)
    }

    /// Opens a lane with the lowest priority, for one frame: it sends when all others are empty.
    pub fn open_background(&self) -> Lane {
        self.open_for(Purpose::Background)
    }

    fn open_for(&self, purpose: Purpose) -> Lane {
        let id = self.shared.borrow_mut().lanes.open(purpose);
        Lane {
            id,
            shared: Rc::clone(&self.shared),
        }
    }

    /// Ends the session for all who hold this outlet.
    pub fn lose(&self) {
        self.shared.borrow_mut().lose();
    }

    /// Returns whether the session is over.
    #[cfg(feature = "internals")]
    pub fn is_lost(&self) -> bool {
        self.shared.borrow().is_lost
    }

    /// The next frame for the socket; `None` when the outlet is lost. For the pump only.
    pub fn poll_next(&self, context: &mut Context<'_>) -> Poll<Option<Frame>> {
        let mut shared = self.shared.borrow_mut();
        if shared.is_lost {
            return Poll::Ready(None);
        }
        let Some((frame, room)) = shared.lanes.next_frame() else {
            shared.pump = Some(context.waker().clone());
            return Poll::Pending;
        };
        if let Some(waker) = room.and_then(|id| shared.waiting.remove(&id)) {
            waker.wake();
        }
        Poll::Ready(Some(frame))
    }

    /// Open lanes and bytes that wait in them, for leak tests and the status.
    pub fn load(&self) -> (usize, usize) {
        let shared = self.shared.borrow();
        (shared.lanes.open_count(), shared.lanes.queued_bytes())
    }
}

/// The way out for one exchange. Dropping it drops what is still queued; [`Lane::finish`] lets that
/// go out.
pub struct Lane {
    id: LaneId,
    shared: Rc<RefCell<Shared>>,
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lane").field(&self.id).finish()
    }
}

impl Lane {
    /// Returns whether binary messages of the session belong to streams.
    pub fn carries_streams(&self) -> bool {
        self.shared.borrow().carries_streams
    }

    /// Queues a frame; waits while this lane is full. The wait ends with room, or with the session.
    pub async fn send(&mut self, frame: Frame) -> Result<(), Lost> {
        let mut held = Some(frame);
        poll_fn(|context| {
            let mut shared = self.shared.borrow_mut();
            let Some(frame) = held.take() else {
                return Poll::Ready(Ok(()));
            };
            if shared.is_lost {
                return Poll::Ready(Err(Lost));
            }
            match shared.lanes.push(self.id, frame) {
                Ok(()) => {
                    shared.wake_pump();
                    Poll::Ready(Ok(()))
                }
                Err(Refused::Full(frame)) => {
                    held = Some(frame);
                    shared.waiting.insert(self.id, context.waker().clone());
                    Poll::Pending
                }
                Err(Refused::NoLane) => Poll::Ready(Err(Lost)),
            }
        })
        .await
    }

    /// Waits until all that was queued has gone out.
    pub async fn drained(&mut self) -> Result<(), Lost> {
        poll_fn(|context| {
            let mut shared = self.shared.borrow_mut();
            if shared.is_lost {
                return Poll::Ready(Err(Lost));
            }
            if shared.lanes.is_empty(self.id) {
                return Poll::Ready(Ok(()));
            }
            shared.waiting.insert(self.id, context.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Lets what is queued go out and closes the lane.
    pub fn finish(self) {
        let mut shared = self.shared.borrow_mut();
        shared.lanes.finish(self.id);
        shared.wake_pump();
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        let mut shared = self.shared.borrow_mut();
        shared.waiting.remove(&self.id);
        shared.lanes.abort_unfinished(self.id);
        shared.wake_pump();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smol::future::{block_on, poll_once, zip};

    fn next(outlet: &Outlet) -> Option<Frame> {
        block_on(poll_once(poll_fn(|context| outlet.poll_next(context)))).flatten()
    }

    fn text(text: &str) -> Frame {
        Frame::Text(text.to_owned())
    }

    #[test]
    fn a_sender_waits_while_its_lane_is_full_and_goes_on_when_there_is_room() {
        let outlet = Outlet::new();
        let mut lane = outlet.open();
        let sent = async {
            for number in 0..20 {
                lane.send(text(&number.to_string())).await.unwrap();
            }
        };
        let taken = async {
            for number in 0..20 {
                let frame = poll_fn(|context| outlet.poll_next(context)).await;
                assert_eq!(frame, Some(text(&number.to_string())));
            }
        };
        block_on(zip(sent, taken));
    }

    #[test]
    fn a_finished_lane_still_sends_and_a_dropped_one_does_not() {
        let outlet = Outlet::new();
        let (mut finished, mut dropped) = (outlet.open(), outlet.open());
        block_on(finished.send(text("kept"))).unwrap();
        block_on(dropped.send(text("gone"))).unwrap();
        finished.finish();
        drop(dropped);
        assert_eq!(next(&outlet), Some(text("kept")));
        assert_eq!(next(&outlet), None);
        assert_eq!(outlet.load(), (0, 0));
    }

    #[test]
    fn a_background_lane_tells_when_its_frame_is_out() {
        let outlet = Outlet::new();
        let (mut records, mut answer) = (outlet.open_background(), outlet.open());
        block_on(records.send(text("records"))).unwrap();
        block_on(answer.send(text("answer"))).unwrap();
        assert_eq!(block_on(poll_once(records.drained())), None);
        assert_eq!(next(&outlet), Some(text("answer")));
        assert_eq!(block_on(poll_once(records.drained())), None);
        assert_eq!(next(&outlet), Some(text("records")));
        assert_eq!(block_on(poll_once(records.drained())), Some(Ok(())));
        outlet.lose();
        assert_eq!(block_on(records.drained()), Err(Lost));
    }

    #[test]
    fn losing_the_session_tells_every_waiting_sender() {
        let outlet = Outlet::new();
        let mut lane = outlet.open();
        let sent = async { while lane.send(text("x")).await.is_ok() {} };
        block_on(zip(sent, async { outlet.lose() }));
        assert!(outlet.is_lost());
        assert_eq!(outlet.load().1, 0);
    }
}

//! yamux over the binary messages of one session: [`Mux::receive`] takes what comes, frames go out
//! through lanes.
//!
//! Each stream has a lane of its own, so the bulk of one delays no other and no small answer; what
//! belongs to no stream's data (windows, resets, pongs) has one too, which is always small. A
//! [`MuxStream`] is an ordinary `AsyncRead` and `AsyncWrite`.
//!
//! It is not `Send`, like the outlet and everything else that lives on the one executor thread.
//! hyper asks for `Send` only in `with_upgrades()`, which hands a stream to another task; a server
//! that ends with `without_shutdown()` gets its stream back in the same task after a 101, and needs
//! neither a lock nor a second copy of the bytes.

use std::{
    cell::RefCell,
    collections::{BTreeSet, VecDeque},
    fmt,
    future::poll_fn,
    io,
    pin::pin,
    rc::Rc,
    task::{Context, Poll, Waker},
};

use hyper::body::Bytes;
use litemap::LiteMap;

use crate::core::yamux::{
    Event, GoAway, Load, MuxLimits, Received, ResetReason, StreamKey, Yamux,
    frame::{HEADER_BYTES, Unreadable},
};
use crate::link::outlet::{Frame, Lane, Lost, Outlet};

mod inbox;
mod stream;

pub use stream::{HeaderError, MuxStream, StreamWatch};

use inbox::Inbox;

/// Control frames of one message at most: 341 of them, so that a wave of resets is a few messages
/// and not thousands.
const CONTROL_MESSAGE_BYTES: usize = 4 * 1024;
/// Bytes through one control lane before it is replaced. A lane turns into bulk at 64 KiB, and a
/// window update that waits behind bulk stops a stream that could run.
const CONTROL_LANE_BYTES: usize = 32 * 1024;

/// Reasons why a mux is over.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MuxEnd {
    /// The session that carried it is lost, or another mux took its place.
    SessionLost,
    /// The peer sent bytes that are no frame. It was notified, and everything that it sends from
    /// now on is skipped.
    FramingLost(Unreadable),
}

impl fmt::Display for MuxEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SessionLost => f.write_str("the session to the control plane ended"),
            Self::FramingLost(Unreadable::Version(version)) => {
                write!(f, "the peer sent a yamux frame of version {version}, not 0")
            }
            Self::FramingLost(Unreadable::Kind(kind)) => {
                write!(f, "the peer sent a yamux frame of the unknown type {kind}")
            }
        }
    }
}

impl std::error::Error for MuxEnd {}

/// End of the peer's half of a stream.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StreamEnd {
    /// The peer sends no more; it may still read.
    Finished,
    /// The stream is over in both directions.
    Reset(ResetReason),
    /// The mux is over.
    Over(MuxEnd),
}

impl StreamEnd {
    /// Error for a reader or writer, if the stream is broken and not only finished.
    fn error(self) -> Option<io::Error> {
        match self {
            Self::Finished => None,
            Self::Reset(reason) => Some(io::Error::new(
                io::ErrorKind::ConnectionReset,
                reason.to_string(),
            )),
            Self::Over(over) => Some(io::Error::new(io::ErrorKind::ConnectionAborted, over)),
        }
    }
}

/// State that the driver keeps for a stream that somebody holds, or will accept.
#[derive(Debug, Default)]
struct Port {
    inbox: Inbox,
    end: Option<StreamEnd>,
    /// `None` before the stream is accepted, and after it was closed.
    lane: Option<Lane>,
    /// A frame that has no room in the lane yet. The driver moves it, so that a writer may go away
    /// after its write.
    held: Option<Bytes>,
    is_accepted: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
    watcher: Option<Waker>,
}

impl Port {
    fn end(&mut self, end: StreamEnd) {
        if matches!(self.end, None | Some(StreamEnd::Finished)) {
            self.end = Some(end);
        }
        if end != StreamEnd::Finished {
            // Nobody may read on after a reset, and nothing of it goes out any more.
            self.inbox = Inbox::default();
            self.held = None;
            self.lane = None;
            wake(&mut self.writer);
        }
        wake(&mut self.reader);
        wake(&mut self.watcher);
    }

    /// Moves the held frame into the lane; whoever `context` is, is woken when there is room.
    fn flush(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Lost>> {
        let (Some(frame), Some(lane)) = (&self.held, &mut self.lane) else {
            return Poll::Ready(Ok(()));
        };
        let sent = pin!(lane.send(Frame::Binary(frame.clone()))).poll(context);
        if sent.is_ready() {
            self.held = None;
            wake(&mut self.writer);
        }
        sent
    }
}

fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}

fn remember(slot: &mut Option<Waker>, context: &Context<'_>) {
    match slot {
        Some(waker) => waker.clone_from(context.waker()),
        None => *slot = Some(context.waker().clone()),
    }
}

#[derive(Debug)]
struct State {
    machine: Yamux,
    ports: LiteMap<StreamKey, Port>,
    /// Opened and not accepted yet; at most as many as there are slots.
    waiting: VecDeque<StreamKey>,
    /// Ports with a held frame.
    stuck: BTreeSet<StreamKey>,
    acceptor: Option<Waker>,
    driver: Option<Waker>,
    over: Option<MuxEnd>,
}

impl State {
    fn apply(&mut self, event: Event, message: &Bytes, rest: &[u8]) {
        match event {
            Event::Opened(key) => {
                self.ports.insert(key, Port::default());
                self.waiting.push_back(key);
                wake(&mut self.acceptor);
            }
            Event::Data(key, at) => {
                if let (Some(port), Some(part)) = (self.ports.get_mut(&key), rest.get(at)) {
                    port.inbox.push(message.slice_ref(part), message.len());
                    wake(&mut port.reader);
                }
            }
            Event::Room(key) => {
                if let Some(port) = self.ports.get_mut(&key) {
                    wake(&mut port.writer);
                }
            }
            Event::Finished(key) => self.end(key, StreamEnd::Finished),
            Event::Reset(key, reason) => self.end(key, StreamEnd::Reset(reason)),
            // We open no streams, so nothing changes; those that run go on.
            Event::GoAway(GoAway::Normal) => {}
            Event::GoAway(reason) => log::debug!("mux: the peer goes away: {reason:?}"),
            Event::Ended(unreadable) => self.end_all(MuxEnd::FramingLost(unreadable)),
        }
    }

    fn end(&mut self, key: StreamKey, end: StreamEnd) {
        let Some(port) = self.ports.get_mut(&key) else {
            return;
        };
        port.end(end);
        if end != StreamEnd::Finished {
            self.stuck.remove(&key);
        }
        if end != StreamEnd::Finished && !port.is_accepted {
            // Nobody has seen it, so nobody else gives its slot back.
            self.ports.remove(&key);
            self.waiting.retain(|other| *other != key);
            self.machine.release(key);
        }
    }

    fn end_all(&mut self, over: MuxEnd) {
        if self.over.is_some() {
            return;
        }
        self.over = Some(over);
        let keys: Vec<StreamKey> = self.ports.keys().copied().collect();
        for key in keys {
            self.end(key, StreamEnd::Over(over));
        }
        wake(&mut self.acceptor);
        wake(&mut self.driver);
    }

    /// Moves the held frames of all streams that wait for room in their lanes.
    fn flush_stuck(&mut self, context: &mut Context<'_>) -> Result<(), Lost> {
        let mut lost = Ok(());
        let ports = &mut self.ports;
        self.stuck.retain(|key| {
            let Some(port) = ports.get_mut(key) else {
                return false;
            };
            match port.flush(context) {
                Poll::Pending => true,
                Poll::Ready(sent) => {
                    lost = lost.and(sent);
                    false
                }
            }
        });
        lost
    }

    /// Takes a frame for a stream whose held place is free.
    fn send(&mut self, key: StreamKey, frame: Bytes) -> io::Result<()> {
        let Some(port) = self.ports.get_mut(&key) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        debug_assert!(port.held.is_none(), "one frame is held at a time");
        port.held = Some(frame);
        // Room is reported to the driver: it is there as long as the session, the writer may be
        // gone.
        let waker = self.driver.clone().unwrap_or_else(|| Waker::noop().clone());
        match port.flush(&mut Context::from_waker(&waker)) {
            Poll::Ready(Ok(())) => Ok(()),
            Poll::Ready(Err(Lost)) => {
                self.end_all(MuxEnd::SessionLost);
                Err(io::Error::new(
                    io::ErrorKind::ConnectionAborted,
                    MuxEnd::SessionLost,
                ))
            }
            Poll::Pending => {
                self.stuck.insert(key);
                Ok(())
            }
        }
    }

    /// Control frames for one message.
    fn control(&mut self) -> Option<Bytes> {
        let mut message = Vec::new();
        while message.len() + HEADER_BYTES <= CONTROL_MESSAGE_BYTES {
            let Some(head) = self.machine.next_control() else {
                break;
            };
            message.extend_from_slice(&head);
        }
        (!message.is_empty()).then(|| message.into())
    }

    fn wake_driver(&mut self) {
        if self.machine.has_control() {
            wake(&mut self.driver);
        }
    }
}

/// The lane for what belongs to no stream's data.
struct ControlLane {
    lane: Lane,
    sent_bytes: usize,
    held: Option<Bytes>,
}

impl ControlLane {
    fn new(outlet: &Outlet) -> Self {
        Self {
            lane: outlet.open(),
            sent_bytes: 0,
            held: None,
        }
    }

    /// Sends what the machine has; ready when there is no more.
    fn flush(
        &mut self,
        state: &mut State,
        outlet: &Outlet,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Lost>> {
        loop {
            if self.held.is_none() {
                self.held = state.control();
            }
            let Some(message) = self.held.clone() else {
                return Poll::Ready(Ok(()));
            };
            let bytes = message.len();
            let sent = pin!(self.lane.send(Frame::Binary(message))).poll(context);
            if sent != Poll::Ready(Ok(())) {
                return sent;
            }
            self.held = None;
            self.sent_bytes += bytes;
            if self.sent_bytes > CONTROL_LANE_BYTES {
                std::mem::replace(self, Self::new(outlet)).lane.finish();
            }
        }
    }
}

/// All streams of one session. Clones share it.
#[derive(Clone, Debug)]
pub struct Mux {
    state: Rc<RefCell<State>>,
    outlet: Outlet,
}

impl Mux {
    /// A mux for the session that the outlet belongs to. [`Self::drive`] has to run.
    pub fn new(limits: MuxLimits, outlet: Outlet) -> Self {
        let state = State {
            machine: Yamux::new(limits),
            ports: LiteMap::new(),
            waiting: VecDeque::new(),
            stuck: BTreeSet::new(),
            acceptor: None,
            driver: None,
            over: None,
        };
        Self {
            state: Rc::new(RefCell::new(state)),
            outlet,
        }
    }

    /// Takes the payload of one binary message. Where messages begin and end means nothing.
    pub fn receive(&self, message: &Bytes) {
        let mut state = self.state.borrow_mut();
        if matches!(state.over, Some(MuxEnd::SessionLost)) {
            return;
        }
        let mut at = 0;
        loop {
            let rest = message.get(at..).unwrap_or_default();
            let Received { used, event } = state.machine.receive(rest);
            let Some(event) = event else { break };
            state.apply(event, message, rest);
            at += used;
        }
        state.wake_driver();
    }

    /// The next stream that the peer opened; `None` when the mux is over.
    pub async fn accept(&self) -> Option<MuxStream> {
        poll_fn(|context| {
            let mut state = self.state.borrow_mut();
            let state = &mut *state;
            while let Some(key) = state.waiting.pop_front() {
                if let Some(port) = state.ports.get_mut(&key) {
                    port.is_accepted = true;
                    port.lane = Some(self.outlet.open());
                    return Poll::Ready(Some(MuxStream::new(self.clone(), key)));
                }
            }
            if state.over.is_some() {
                return Poll::Ready(None);
            }
            remember(&mut state.acceptor, context);
            Poll::Pending
        })
        .await
    }

    /// Moves frames into their lanes until the mux is over; says why. One task runs this as long as
    /// the session lives.
    pub async fn drive(&self) -> MuxEnd {
        let mut control = ControlLane::new(&self.outlet);
        let over = poll_fn(|context| {
            let mut state = self.state.borrow_mut();
            remember(&mut state.driver, context);
            let stuck = state.flush_stuck(context);
            let flushed = control.flush(&mut state, &self.outlet, context);
            if stuck.is_err() || matches!(flushed, Poll::Ready(Err(Lost))) {
                state.end_all(MuxEnd::SessionLost);
            }
            match state.over {
                Some(MuxEnd::SessionLost) => Poll::Ready(MuxEnd::SessionLost),
                // The last thing that goes out is the GoAway.
                Some(over) if flushed.is_ready() => Poll::Ready(over),
                Some(MuxEnd::FramingLost(_)) | None => Poll::Pending,
            }
        })
        .await;
        control.lane.finish();
        over
    }

    /// The session is lost, or another mux takes over: all streams end with an error.
    pub fn session_lost(&self) {
        self.state.borrow_mut().end_all(MuxEnd::SessionLost);
    }

    /// Current load, and numbers of refusals.
    pub fn load(&self) -> Load {
        self.state.borrow().machine.load()
    }
}

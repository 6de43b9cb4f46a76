//! Recording of frames, handshakes, REST calls, heartbeats, and what broke the protocol.
//!
//! Everything here is bounded; the oldest goes first.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::bell::Bell;
use crate::clock;
use crate::ws::Opcode;

/// Which of the two WebSocket endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// `/api/v1/clusters/agent/ws`
    Controller,
    /// `/ws`
    Gateway,
}

/// Who sent a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// The agent.
    FromAgent,
    /// The plane.
    ToAgent,
}

/// One message or control frame on a session.
#[derive(Clone, Debug)]
pub struct Frame {
    /// Counts up from 0 over all sessions of a plane's start.
    pub number: u64,
    /// Since the plane was started.
    pub at: Duration,
    /// Counts the sessions, from 1.
    pub session: u64,
    /// The endpoint of the session.
    pub role: Role,
    /// Who sent it.
    pub direction: Direction,
    /// What it is in WebSocket terms.
    pub opcode: Opcode,
    /// The envelope's `type`; empty where there is none.
    pub kind: Cow<'static, str>,
    /// The envelope's `request_id` (or the id in a binary body or answer); empty without one.
    pub id: String,
    /// Bytes of the message.
    pub bytes: usize,
    /// The message itself, when it is text of at most 4 KiB.
    pub text: Option<String>,
}

impl Frame {
    /// The message as JSON, when its text was kept.
    pub fn json(&self) -> Option<Value> {
        serde_json::from_str(self.text.as_deref()?).ok()
    }

    /// Returns whether the agent sent a message of this `type`.
    pub fn is_from_agent(&self, kind: &str) -> bool {
        self.direction == Direction::FromAgent && self.kind == kind
    }
}

/// A WebSocket handshake that an agent tried.
#[derive(Clone, Debug)]
pub struct Handshake {
    /// Since the plane was started.
    pub at: Duration,
    /// The endpoint.
    pub role: Role,
    /// The decoded query.
    pub query: BTreeMap<String, String>,
    /// Header names in lower case, without `authorization`.
    pub headers: BTreeMap<String, String>,
    /// True if the bearer token was the right one.
    pub is_authorized: bool,
    /// What was answered; 0 for no answer.
    pub status: u16,
}

/// A call of a REST endpoint.
#[derive(Clone, Debug)]
pub struct RestCall {
    /// Since the plane was started.
    pub at: Duration,
    /// The method.
    pub method: String,
    /// The path with its query.
    pub path: String,
    /// True if the bearer token was the right one.
    pub is_authorized: bool,
    /// The body, if it was JSON.
    pub body: Option<Value>,
    /// What was answered.
    pub status: u16,
}

/// Something that an agent did against the protocol.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Since the plane was started.
    pub at: Duration,
    /// The session, counted from 1; 0 for a handshake or a REST call.
    pub session: u64,
    /// What, with the reason.
    pub what: String,
}

/// Something that happened to a stream of yamux, as the wire has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamEvent {
    /// Since the plane was started.
    pub at: Duration,
    /// The session, counted from 1.
    pub session: u64,
    /// The stream's id.
    pub stream: u32,
    /// What the plane opened it for: `kubernetes`, `service <namespace>/<name>:<port>`, `test`.
    pub target: String,
    /// What happened.
    pub change: StreamChange,
}

/// What may happen to a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StreamChange {
    /// Its first frame went out.
    Opened,
    /// The plane finished its half (FIN).
    FinishedByPlane,
    /// The agent finished its half (FIN).
    FinishedByAgent,
    /// The plane reset it (RST).
    ResetByPlane,
    /// The agent reset it (RST).
    ResetByAgent,
    /// It was open when its session ended.
    Lost,
}

/// Frames larger than this are recorded without their text.
const TEXT_BYTES_MAX: usize = 4 * 1024;

/// Handshakes, REST calls, violations, heartbeats and events of streams that are kept.
const OTHERS_MAX: usize = 10_000;

/// Everything that was recorded since the start.
#[derive(Debug)]
pub(crate) struct Record {
    started: Instant,
    frames_max: usize,
    next_number: Cell<u64>,
    pub(crate) frames: RefCell<VecDeque<Frame>>,
    pub(crate) handshakes: RefCell<VecDeque<Handshake>>,
    pub(crate) rest_calls: RefCell<VecDeque<RestCall>>,
    pub(crate) violations: RefCell<VecDeque<Violation>>,
    pub(crate) heartbeats: RefCell<VecDeque<Value>>,
    pub(crate) registrations: RefCell<VecDeque<Value>>,
    pub(crate) streams: RefCell<VecDeque<StreamEvent>>,
    /// Rung after every entry of any kind, and whenever a session begins or ends.
    pub(crate) bell: Bell,
}

/// What there is to say about a frame besides where it was.
#[derive(Debug)]
pub(crate) struct Note<'a> {
    pub(crate) opcode: Opcode,
    pub(crate) kind: Cow<'static, str>,
    pub(crate) id: &'a str,
    pub(crate) data: &'a [u8],
}

impl Record {
    pub(crate) fn new(frames_max: usize) -> Self {
        Self {
            started: clock::now(),
            frames_max,
            next_number: Cell::new(0),
            frames: RefCell::default(),
            handshakes: RefCell::default(),
            rest_calls: RefCell::default(),
            violations: RefCell::default(),
            heartbeats: RefCell::default(),
            registrations: RefCell::default(),
            streams: RefCell::default(),
            bell: Bell::default(),
        }
    }

    /// The time since the start.
    pub(crate) fn at(&self) -> Duration {
        clock::now().saturating_duration_since(self.started)
    }

    /// The number that the next frame gets.
    pub(crate) fn next_number(&self) -> u64 {
        self.next_number.get()
    }

    pub(crate) fn frame(&self, session: u64, role: Role, direction: Direction, note: Note<'_>) {
        let number = self.next_number.get();
        self.next_number.set(number.wrapping_add(1));
        let is_text = note.opcode == Opcode::Text || !note.kind.is_empty();
        let text = (is_text && note.data.len() <= TEXT_BYTES_MAX)
            .then(|| String::from_utf8_lossy(note.data).into_owned());
        let frame = Frame {
            number,
            at: self.at(),
            session,
            role,
            direction,
            opcode: note.opcode,
            kind: note.kind,
            id: note.id.to_owned(),
            bytes: note.data.len(),
            text,
        };
        log::trace!(
            "session {session}: {direction:?} {:?} {} {} bytes={}",
            frame.opcode,
            frame.kind,
            frame.id,
            frame.bytes
        );
        keep(&self.frames, frame, self.frames_max);
        self.bell.ring();
    }

    pub(crate) fn handshake(&self, handshake: Handshake) {
        keep(&self.handshakes, handshake, OTHERS_MAX);
        self.bell.ring();
    }

    pub(crate) fn rest_call(&self, call: RestCall) {
        keep(&self.rest_calls, call, OTHERS_MAX);
        self.bell.ring();
    }

    pub(crate) fn heartbeat(&self, payload: Value) {
        keep(&self.heartbeats, payload, OTHERS_MAX);
        self.bell.ring();
    }

    pub(crate) fn registration(&self, payload: Value) {
        keep(&self.registrations, payload, OTHERS_MAX);
        self.bell.ring();
    }

    pub(crate) fn stream(&self, event: StreamEvent) {
        log::trace!(
            "session {}: stream {} ({}): {:?}",
            event.session,
            event.stream,
            event.target,
            event.change
        );
        keep(&self.streams, event, OTHERS_MAX);
        self.bell.ring();
    }

    pub(crate) fn violation(&self, session: u64, what: impl Into<String>) {
        let violation = Violation {
            at: self.at(),
            session,
            what: what.into(),
        };
        log::warn!(
            "session {session}: against the protocol: {}",
            violation.what
        );
        keep(&self.violations, violation, OTHERS_MAX);
        self.bell.ring();
    }
}

fn keep<T>(list: &RefCell<VecDeque<T>>, item: T, max: usize) {
    let mut list = list.borrow_mut();
    if list.len() >= max {
        list.pop_front();
    }
    list.push_back(item);
}

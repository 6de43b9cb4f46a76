//! Exchanges in progress on a session: proxied requests and streams, seen from the plane.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::rc::Rc;

use hyper::body::Bytes;

use crate::bell::Inbox;
use crate::options::Mode;
use crate::shape::Head;

/// A part of an answer, in the order head, chunks, end.
#[derive(Debug)]
pub(crate) enum Part {
    Head(Head),
    Chunk(Bytes),
    End,
    Failed(Failed),
}

/// Why a request or a stream came to nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failed {
    /// No agent of that cluster is connected.
    NotConnected,
    /// The agent sent `proxy_error` (buffered mode, Kubernetes streams).
    Error(String),
    /// The agent sent `proxy_response_abort` (streaming mode).
    Aborted(String),
    /// The session ended first.
    Lost(String),
    /// The plane's own deadline passed.
    Late,
    /// The reader was too slow for what the plane keeps ([`Overflow::Cancel`](crate::Overflow)).
    Overflow,
    /// The agent's answer cannot be read.
    Unreadable(String),
    /// The agent reset the stream.
    Reset,
    /// The agent has agreed to no streams.
    NoStreams,
    /// The plane was stopped.
    Stopped,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotConnected => f.write_str("no agent of this cluster is connected"),
            Self::Error(text) => write!(f, "the agent could not do it: {text}"),
            Self::Aborted(text) => write!(f, "the agent gave up: {text}"),
            Self::Lost(text) => write!(f, "the agent's connection ended: {text}"),
            Self::Overflow => f.write_str("it was read too slowly"),
            Self::Late => f.write_str("the agent did not answer in time"),
            Self::Unreadable(text) => write!(f, "the agent's answer cannot be read: {text}"),
            Self::Reset => f.write_str("the agent reset the stream"),
            Self::NoStreams => f.write_str("the agent has agreed to no streams"),
            Self::Stopped => f.write_str("the control plane was stopped"),
        }
    }
}

impl std::error::Error for Failed {}

/// How far an answer has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Progress {
    #[default]
    Nothing,
    Head,
    Ended,
}

/// One proxied request.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) mode: Mode,
    pub(crate) progress: Cell<Progress>,
    pub(crate) inbox: Inbox<Part>,
}

impl Exchange {
    pub(crate) fn new(mode: Mode) -> Rc<Self> {
        Rc::new(Self {
            mode,
            progress: Cell::default(),
            inbox: Inbox::default(),
        })
    }

    /// The answer ends here.
    pub(crate) fn finish(&self, part: Part) {
        self.progress.set(Progress::Ended);
        self.inbox.push(part, 0);
        self.inbox.close();
    }
}

/// What a stream brings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// A frame: the WebSocket opcode (1 text, 2 binary) and its bytes.
    Data {
        /// The opcode.
        opcode: u8,
        /// The bytes.
        data: Bytes,
    },
    /// The agent closed the stream.
    Closed,
    /// The stream failed.
    Failed(Failed),
}

/// One of the two kinds of WebSockets (docs/protocol.md, WebSockets of services and of the
/// Kubernetes API).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamKind {
    Application,
    Kubernetes,
}

/// One stream of WebSocket frames.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) kind: StreamKind,
    pub(crate) inbox: Inbox<Received>,
}

impl Stream {
    pub(crate) fn new(kind: StreamKind) -> Rc<Self> {
        Rc::new(Self {
            kind,
            inbox: Inbox::default(),
        })
    }

    /// The stream ends here.
    pub(crate) fn finish(&self, last: Received) {
        self.inbox.push(last, 0);
        self.inbox.close();
    }
}

/// Why an id is no longer under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gone {
    /// The agent ended it: nothing may come any more.
    Ended,
    /// The plane gave it up, or its session was lost: late messages are normal.
    GivenUp,
}

/// The ids that were under way, the newest 10,000 of them.
#[derive(Debug, Default)]
pub(crate) struct Past {
    order: RefCell<VecDeque<String>>,
    ids: RefCell<BTreeMap<String, Gone>>,
}

const PAST_MAX: usize = 10_000;

impl Past {
    pub(crate) fn add(&self, id: &str, gone: Gone) {
        let mut order = self.order.borrow_mut();
        let mut ids = self.ids.borrow_mut();
        if ids.insert(id.to_owned(), gone).is_some() {
            return;
        }
        order.push_back(id.to_owned());
        if order.len() > PAST_MAX
            && let Some(oldest) = order.pop_front()
        {
            ids.remove(&oldest);
        }
    }

    pub(crate) fn get(&self, id: &str) -> Option<Gone> {
        self.ids.borrow().get(id).copied()
    }
}

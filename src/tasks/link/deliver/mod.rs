//! Delivery of records to the control plane, one batch per stream at a time.
//!
//! [`crate::core::outbox`] decides what goes out next and what an acknowledgement settles. A
//! delivery begins with the session that agrees on it and ends with that session; the next one
//! continues behind what was settled. Nothing here ends a session, whatever a receiver answers.

mod databases;
mod session;
#[cfg(test)]
mod tests;

use litemap::LiteMap;
use std::{
    cell::{Cell, RefCell},
    fmt,
    future::Future,
    rc::Rc,
};

use smol::{
    Task,
    channel::{Receiver, Sender, bounded},
};

use crate::{
    core::{
        health::Severity,
        outbox::{Acknowledgement, Batch, Cursor, Range, Stream, StreamState},
    },
    executor::Executor,
    link::outlet::{Lane, Outlet},
    store::Failure,
    tasks::state::SharedState,
    wire::control::EdgeHello,
};

pub use databases::{DESTINATION, Databases};
use session::Session;

/// Words that wait for the session. An honest receiver says one for each stream; of one that
/// floods, the rest is counted and dropped.
const WORDS_MAX: usize = 64;
/// Acknowledgements that are ignored in a row before it is worth a condition. A few come late after
/// every cut.
const IGNORED_MAX: u32 = 10;
/// Number of unacknowledged attempts before it is a condition.
const IN_VAIN_MAX: u32 = 3;

const IGNORED: &str = "delivery.ignored";
const IN_VAIN: &str = "delivery.unacknowledged";

/// Storage of records, and of the positions of the control plane.
pub trait RecordStore {
    /// Epoch and cursor as they were settled last.
    fn position(&self, stream: Stream) -> impl Future<Output = Result<(u64, Cursor), Failure>>;
    /// Stored records.
    fn holdings(&self, stream: Stream) -> impl Future<Output = Result<StreamState, Failure>>;
    /// The first records of a range, as far as they fit into so many bytes: at least one.
    fn read(
        &self,
        stream: Stream,
        range: Range,
        bytes_max: usize,
    ) -> impl Future<Output = Result<Batch, Failure>>;
    /// Keeps what the control plane has.
    fn settle(
        &self,
        stream: Stream,
        at: (u64, Cursor),
    ) -> impl Future<Output = Result<(), Failure>>;
}

/// Message to a session.
#[derive(Clone, Copy, Debug)]
enum Word {
    /// The control plane says that it has records.
    Acknowledged(Stream, Acknowledgement),
    /// There may be new records.
    Look,
}

/// State that a session shares with the next one.
#[derive(Debug)]
struct Shared {
    state: Rc<SharedState>,
    /// Acknowledgements that were ignored since one was not.
    ignored: Cell<u32>,
    /// Number of batches of a stream since the last acknowledgement.
    in_vain: RefCell<LiteMap<Stream, u32>>,
}

impl Shared {
    fn ignore(&self) {
        let count = self.ignored.get().saturating_add(1);
        self.ignored.set(count);
        if count >= IGNORED_MAX {
            self.state.report(
                IGNORED,
                Severity::Warning,
                "the control plane acknowledges records that it was not sent; that is ignored, and what it was sent is sent again",
                None,
            );
        }
    }

    fn sent(&self, stream: Stream) {
        let mut in_vain = self.in_vain.borrow_mut();
        let count = in_vain.entry(stream).or_default();
        *count = count.saturating_add(1);
        if *count > IN_VAIN_MAX {
            self.state.report(
                IN_VAIN,
                Severity::Warning,
                "the control plane takes records and does not say that it has them; they stay here and are sent again",
                None,
            );
        }
    }

    fn acknowledged(&self, stream: Stream) {
        self.ignored.set(0);
        self.state.clear(IGNORED);
        let mut in_vain = self.in_vain.borrow_mut();
        in_vain.remove(&stream);
        self.clear_unless(&in_vain);
    }

    /// Forgets streams that are not wanted any more.
    fn asked_for(&self, streams: &[Stream]) {
        let mut in_vain = self.in_vain.borrow_mut();
        in_vain.retain(|stream, _| streams.contains(stream));
        self.clear_unless(&in_vain);
    }

    fn clear_unless(&self, in_vain: &LiteMap<Stream, u32>) {
        if in_vain.values().all(|count| *count <= IN_VAIN_MAX) {
            self.state.clear(IN_VAIN);
        }
    }
}

/// Agreement of both sides.
struct Agreement {
    agent_id: String,
    streams: Vec<Stream>,
    bytes_max: usize,
    lane: Lane,
    words: Receiver<Word>,
}

type Start = Box<dyn Fn(Agreement) -> Task<()>>;

/// The delivery of one session after another.
pub struct Delivery {
    agent_id: Box<dyn Fn() -> String>,
    shared: Rc<Shared>,
    start: Start,
    running: RefCell<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    words: Sender<Word>,
    _task: Task<()>,
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("running", &self.running)
            .finish_non_exhaustive()
    }
}

impl Delivery {
    /// No session yet. Records go out as those of who this agent is when a session begins.
    pub fn new(
        store: impl RecordStore + Clone + 'static,
        agent_id: impl Fn() -> String + 'static,
        state: Rc<SharedState>,
        executor: Rc<Executor>,
    ) -> Self {
        let shared = Rc::new(Shared {
            state,
            ignored: Cell::new(0),
            in_vain: RefCell::default(),
        });
        let known = Rc::clone(&shared);
        let start = move |agreement: Agreement| {
            let session = Session::new(store.clone(), Rc::clone(&known), agreement);
            executor.spawn(session.run())
        };
        Self {
            agent_id: Box::new(agent_id),
            shared,
            start: Box::new(start),
            running: RefCell::default(),
        }
    }

    /// The control plane says what it takes. What it said before does not count any more.
    pub fn begin(&self, hello: &EdgeHello, outlet: &Outlet) {
        self.session_lost();
        self.shared.asked_for(&hello.streams);
        let Some(bytes_max) = hello.batch_bytes_max.filter(|_| !hello.streams.is_empty()) else {
            return;
        };
        let (words, waiting) = bounded(WORDS_MAX);
        let task = (self.start)(Agreement {
            agent_id: (self.agent_id)(),
            streams: hello.streams.clone(),
            bytes_max,
            lane: outlet.open_background(),
            words: waiting,
        });
        self.running.replace(Some(Running { words, _task: task }));
    }

    /// The control plane says that it has records; `None`: it does not say which.
    pub fn acknowledged(&self, said: Option<(Stream, Acknowledgement)>) {
        let is_taken = said.is_some_and(|(stream, said)| {
            let running = self.running.borrow();
            let words = running.as_ref().map(|running| &running.words);
            words.is_some_and(|words| words.try_send(Word::Acknowledged(stream, said)).is_ok())
        });
        if !is_taken {
            self.shared.ignore();
        }
    }

    /// There may be new records: they were flushed.
    pub fn look(&self) {
        if let Some(running) = self.running.borrow().as_ref() {
            let sent = running.words.try_send(Word::Look);
            debug_assert!(
                sent.is_ok() || running.words.is_full(),
                "then there is something to look at"
            );
        }
    }

    /// The session is over.
    pub fn session_lost(&self) {
        let running = self.running.replace(None);
        drop(running);
    }
}

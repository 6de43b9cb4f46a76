//! The agreement on streams: the extension first, then yamux (docs/protocol.md, Agreement on
//! yamux).
//!
//! An agent offers both; where it does not, or the plane is told to do without, nothing of this
//! is said and every request is JSON.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use hyper::body::Bytes;
use serde_json::{Value, json};
use smol::Timer;
use smol::channel::Sender;

use crate::batch::Intake;
use crate::bell::Bell;
use crate::mux::Mux;
use crate::options::Streams;
use crate::session::Session;
use crate::world::World;

/// The version of the extension that the plane speaks.
const VERSION: u64 = 1;

/// 10 s: how long requests wait for the agreement before they go as JSON.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// How far one of the two agreements has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Step {
    /// Nothing was said.
    #[default]
    Unasked,
    /// The agent is to answer.
    Asked,
    /// It agreed.
    Agreed,
    /// It has not answered in time, or refused. A later answer counts.
    Unanswered,
}

/// What one session has agreed on.
#[derive(Debug, Default)]
pub(crate) struct Edge {
    is_offered: Cell<bool>,
    extension: Cell<Step>,
    yamux: Cell<Step>,
    mux: RefCell<Option<Rc<Mux>>>,
    /// A test that speaks yamux itself.
    taker: RefCell<Option<Sender<Bytes>>>,
    /// Records on their way in.
    pub(crate) intake: Intake,
    bell: Bell,
}

impl Edge {
    /// The agent offered the extension.
    pub(crate) fn offer(&self) {
        self.is_offered.set(true);
    }

    /// Returns whether the extension was asked for.
    pub(crate) fn is_asked(&self) -> bool {
        self.extension.get() != Step::Unasked
    }

    /// Returns whether JSON must go as text: a binary message is yamux from the agent's answer on,
    /// and when it answers is not known here.
    pub(crate) fn is_text_only(&self) -> bool {
        self.yamux.get() != Step::Unasked
    }

    /// Returns whether a binary message of the agent is yamux.
    pub(crate) fn is_yamux(&self) -> bool {
        // What belongs to a session of yamux that has ended still comes for a while.
        let is_ours = self.yamux.get() == Step::Agreed || self.mux.borrow().is_some();
        is_ours || self.taker.borrow().is_some()
    }

    /// Binary messages go to a test from here on, and the plane's own yamux ends.
    pub(crate) fn give_away(&self, taker: Sender<Bytes>) {
        self.taker.replace(Some(taker));
        if let Some(mux) = self.mux() {
            mux.lose("a test speaks yamux itself");
        }
    }

    /// Waits until it is known whether there will be streams.
    pub(crate) async fn settled(&self) {
        let is_settled = || {
            let is_waiting = match self.extension.get() {
                Step::Asked => true,
                Step::Agreed => self.yamux.get() == Step::Asked,
                Step::Unasked | Step::Unanswered => false,
            };
            (!is_waiting).then_some(())
        };
        self.bell.until(is_settled).await;
    }

    /// The session of yamux that runs, whatever was agreed on besides.
    pub(crate) fn mux(&self) -> Option<Rc<Mux>> {
        let mux = self.mux.borrow().as_ref().map(Rc::clone);
        mux.filter(|mux| !mux.is_over())
    }

    /// The session of yamux for requests.
    pub(crate) fn streams(&self) -> Option<Rc<Mux>> {
        self.mux().filter(|_| self.extension.get() == Step::Agreed)
    }

    /// Streams that are open, and that ever were.
    pub(crate) fn count(&self) -> (usize, u64) {
        let mux = self.mux.borrow();
        mux.as_ref().map_or((0, 0), |mux| mux.count())
    }

    /// The session has ended.
    pub(crate) fn lose(&self, why: &str) {
        let mux = self.mux.borrow().as_ref().map(Rc::clone);
        if let Some(mux) = mux {
            mux.lose(why);
        }
        self.set(&self.extension, Step::Unanswered);
        self.set(&self.yamux, Step::Unanswered);
    }

    fn set(&self, step: &Cell<Step>, to: Step) {
        step.set(to);
        self.bell.ring();
    }
}

/// Starts the agreement, where the agent offered it, the plane wants it, and it has not begun.
pub(crate) fn begin(world: &Rc<World>, session: &Rc<Session>) {
    let is_wanted = world.behaviour(|behaviour| behaviour.streams) == Streams::Preferred;
    let edge = &session.edge;
    if is_wanted && edge.is_offered.get() && edge.extension.get() == Step::Unasked {
        let (takes, bytes) =
            world.behaviour(|behaviour| (behaviour.takes.clone(), behaviour.batch_bytes_max));
        let limits = bytes.map_or_else(|| json!({}), |bytes| json!({ "batch_bytes_max": bytes }));
        let payload = json!({ "version": VERSION, "streams": takes, "limits": limits });
        edge.intake.begin(takes, bytes);
        hello(world, session, payload);
    }
}

/// Sends `edge_hello`.
pub(crate) fn hello(world: &Rc<World>, session: &Rc<Session>, payload: Value) {
    session.send(world, "edge_hello", None, payload);
    session.edge.set(&session.edge.extension, Step::Asked);
    expect(world, session, |edge| &edge.extension, "edge_hello_ack");
}

/// The agent's `edge_hello_ack`.
pub(crate) fn hello_ack(world: &Rc<World>, session: &Rc<Session>, payload: &Value) {
    let edge = &session.edge;
    if !matches!(edge.extension.get(), Step::Asked | Step::Unanswered) {
        let what = "an edge_hello_ack without an edge_hello";
        return world.record.violation(session.number, what);
    }
    if payload.get("version").and_then(Value::as_u64) != Some(VERSION) {
        let what = format!("edge_hello_ack is not for version {VERSION}: {payload}");
        world.record.violation(session.number, what);
        return edge.set(&edge.extension, Step::Unanswered);
    }
    edge.set(&edge.extension, Step::Agreed);
    if edge.yamux.get() == Step::Unasked {
        let own = world.behaviour(|behaviour| behaviour.gateway_hello.clone());
        gateway_hello(world, session, own.unwrap_or_else(yamux_hello));
    }
}

/// The agent does not know a message.
pub(crate) fn unknown(world: &World, session: &Session, kind: &str) {
    let edge = &session.edge;
    if kind == "edge_hello" && edge.extension.get() == Step::Asked {
        let what = "the agent offered the extension and does not know edge_hello";
        world.record.violation(session.number, what);
        edge.set(&edge.extension, Step::Unanswered);
    }
}

/// The windows that the agent grants; the plane's own are tuned by the crate.
fn yamux_hello() -> Value {
    json!({
        "use_yamux": true,
        "yamux_config": {
            "max_stream_window_size": 262_144,
            "keep_alive_interval_seconds": 30,
            "connection_timeout_seconds": 30,
        },
    })
}

/// Sends `gateway_hello`. A session of yamux that runs ends with it: another takes its place.
pub(crate) fn gateway_hello(world: &Rc<World>, session: &Rc<Session>, payload: Value) {
    let is_asking = payload.get("use_yamux") == Some(&Value::Bool(true));
    let edge = &session.edge;
    if is_asking {
        if let Some(mux) = edge.mux() {
            mux.lose("another gateway_hello was sent");
        }
        edge.set(&edge.yamux, Step::Asked);
    }
    session.send(world, "gateway_hello", None, payload);
    if is_asking {
        expect(world, session, |edge| &edge.yamux, "gateway_hello_ack");
    }
}

/// The agent's `gateway_hello_ack`: binary messages are yamux from here on.
pub(crate) fn gateway_hello_ack(world: &Rc<World>, session: &Rc<Session>, payload: &Value) {
    let edge = &session.edge;
    if !matches!(edge.yamux.get(), Step::Asked | Step::Unanswered) {
        let what = "a gateway_hello_ack without a gateway_hello";
        return world.record.violation(session.number, what);
    }
    if payload.get("use_yamux") != Some(&Value::Bool(true)) {
        let what = format!("gateway_hello_ack without use_yamux: {payload}");
        world.record.violation(session.number, what);
        return edge.set(&edge.yamux, Step::Unanswered);
    }
    if edge.taker.borrow().is_none() {
        let mux = Mux::start(world, session);
        edge.mux.borrow_mut().replace(mux);
    }
    edge.set(&edge.yamux, Step::Agreed);
    world.record.bell.ring();
    if edge.streams().is_some() {
        log::info!("session {}: requests go over streams", session.number);
    }
}

/// Takes a binary message that is yamux. Without a session of it the bytes are passed over.
pub(crate) async fn take(session: &Session, data: Bytes) {
    let taker = session.edge.taker.borrow().clone();
    if let Some(taker) = taker {
        // Where the test is over nobody misses it.
        drop(taker.send(data).await);
    } else if let Some(mux) = session.edge.mux() {
        mux.take(data).await;
    }
}

/// Waits for an answer in the background; requests wait for it no longer than that.
fn expect(
    world: &Rc<World>,
    session: &Rc<Session>,
    step: fn(&Edge) -> &Cell<Step>,
    answer: &'static str,
) {
    let (waiting, session) = (Rc::clone(world), Rc::clone(session));
    world.tasks.spawn(async move {
        Timer::after(ANSWER_LIMIT).await;
        let edge = &session.edge;
        if step(edge).get() == Step::Asked {
            edge.set(step(edge), Step::Unanswered);
            if edge.is_offered.get() {
                let what = format!("no {answer} within {} s", ANSWER_LIMIT.as_secs());
                waiting.record.violation(session.number, what);
            }
        }
    });
}

//! One agent's WebSocket: what is under way on it, what waits to be written, and its two loops.
//!
//! `inbound` handles the agent's messages.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::pending;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use serde_json::Value;
use smol::Timer;
use smol::future::or;
use smol::io::{AsyncWrite, AsyncWriteExt};

use crate::bell::{Inbox, within};
use crate::edge::Edge;
use crate::exchange::{Exchange, Failed, Gone, Part, Received, Stream};
use crate::inbound;
use crate::net::{Conn, Flow, Gate};
use crate::options::Carrier;
use crate::record::{Direction, Note, Role};
use crate::shape;
use crate::world::{Security, World};
use crate::ws::{self, Fault, Last, Opcode};

/// 1 MiB: what waits to be written to one agent before producers wait.
const OUTBOX_BYTES_MAX: usize = 1024 * 1024;

/// 256 KiB: what is put together for one write.
const WRITE_BYTES_MAX: usize = 256 * 1024;

/// Something for the writer.
#[derive(Debug)]
pub(crate) enum Out {
    /// Whole frames, not to be interleaved with anything.
    Frames(Vec<u8>),
    /// The writer ends.
    End,
}

/// One agent's WebSocket.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) number: u64,
    pub(crate) role: Role,
    pub(crate) security: Security,
    pub(crate) gate: Gate,
    pub(crate) cluster_id: RefCell<Option<String>>,
    pub(crate) exchanges: RefCell<BTreeMap<String, Rc<Exchange>>>,
    pub(crate) streams: RefCell<BTreeMap<String, Rc<Stream>>>,
    /// What was agreed on beside JSON.
    pub(crate) edge: Edge,
    is_open: Cell<bool>,
    is_redirected: Cell<bool>,
    /// Set while the reader waits for a slow client: silence is then the plane's own.
    pub(crate) is_holding: Cell<bool>,
    /// What the last heartbeat said, in a line.
    pub(crate) heartbeat: RefCell<String>,
    outbox: Inbox<Out>,
}

impl Session {
    pub(crate) fn new(
        number: u64,
        role: Role,
        security: Security,
        gate: Gate,
        cluster_id: Option<String>,
    ) -> Rc<Self> {
        Rc::new(Self {
            number,
            role,
            security,
            gate,
            cluster_id: RefCell::new(cluster_id),
            exchanges: RefCell::default(),
            streams: RefCell::default(),
            edge: Edge::default(),
            is_open: Cell::new(true),
            is_redirected: Cell::new(false),
            is_holding: Cell::new(false),
            heartbeat: RefCell::default(),
            outbox: Inbox::default(),
        })
    }

    /// Returns whether requests for this cluster (any, without an id) can go over this session.
    pub(crate) fn carries(&self, cluster_id: Option<&str>) -> bool {
        let own = self.cluster_id.borrow();
        self.is_open.get()
            && !self.is_redirected.get()
            && own
                .as_deref()
                .is_some_and(|own| cluster_id.is_none_or(|wanted| wanted == own))
    }

    /// The agent was told to go to the gateway: nothing is sent here any more.
    pub(crate) fn redirected(&self) {
        self.is_redirected.set(true);
    }

    /// Waits until little enough waits to be written.
    pub(crate) async fn room(&self) {
        self.outbox.below(OUTBOX_BYTES_MAX).await;
    }

    /// Returns whether less than `bytes_max` waits to be written.
    pub(crate) fn poll_room(&self, context: &Context<'_>, bytes_max: usize) -> Poll<()> {
        self.outbox.poll_below(context, bytes_max)
    }

    /// Sends a JSON message in the carrier and the fragments that are set.
    pub(crate) fn send(&self, world: &World, kind: &'static str, id: Option<&str>, data: Value) {
        let text = shape::message(kind, id, data);
        let frames = self.encode(world, Cow::Borrowed(kind), id.unwrap_or_default(), &text);
        self.push(frames);
    }

    /// Sends a JSON message and, right behind it, its binary body.
    pub(crate) fn send_with_body(&self, world: &World, id: &str, data: Value, body: &[u8]) {
        let text = shape::message("proxy_request", Some(id), data);
        let mut frames = self.encode(world, Cow::Borrowed("proxy_request"), id, &text);
        let body = shape::body_frame(id, body);
        self.note(world, Opcode::Binary, Cow::Borrowed(""), id, &body);
        let fragment = world.behaviour(|behaviour| behaviour.fragment_bytes);
        ws::put_message(&mut frames, Opcode::Binary, &body, fragment);
        self.push(frames);
    }

    fn encode(&self, world: &World, kind: Cow<'static, str>, id: &str, text: &[u8]) -> Vec<u8> {
        let (carrier, fragment) =
            world.behaviour(|behaviour| (behaviour.carrier, behaviour.fragment_bytes));
        let opcode = match carrier {
            Carrier::Binary if !self.edge.is_text_only() => Opcode::Binary,
            Carrier::Text | Carrier::Binary => Opcode::Text,
        };
        self.note(world, opcode, kind, id, text);
        let mut frames = Vec::new();
        ws::put_message(&mut frames, opcode, text, fragment);
        frames
    }

    /// Sends bytes of yamux as a message.
    pub(crate) fn send_yamux(&self, world: &World, data: &[u8]) {
        self.note(world, Opcode::Binary, Cow::Borrowed(""), "", data);
        let fragment = world.behaviour(|behaviour| behaviour.fragment_bytes);
        let mut frames = Vec::new();
        ws::put_message(&mut frames, Opcode::Binary, data, fragment);
        self.push(frames);
    }

    /// Sends one frame as it is.
    pub(crate) fn send_frame(&self, world: &World, opcode: Opcode, data: &[u8], last: Last) {
        self.note(world, opcode, Cow::Borrowed(""), "", data);
        let mut frames = Vec::new();
        ws::put_frame(&mut frames, opcode, data, last);
        self.push(frames);
    }

    /// Writes bytes as they are, framed or not.
    pub(crate) fn send_bytes(&self, bytes: Vec<u8>) {
        self.push(bytes);
    }

    /// Sends a close frame; the session ends when the agent answers it, or hangs up.
    pub(crate) fn close(&self, world: &World, code: u16, reason: &str) {
        let data = ws::close_payload(code, reason);
        self.send_frame(world, Opcode::Close, &data, Last::Yes);
    }

    fn push(&self, frames: Vec<u8>) {
        let bytes = frames.len();
        self.outbox.push(Out::Frames(frames), bytes);
    }

    fn note(&self, world: &World, opcode: Opcode, kind: Cow<'static, str>, id: &str, data: &[u8]) {
        world.record.frame(
            self.number,
            self.role,
            Direction::ToAgent,
            Note {
                opcode,
                kind,
                id,
                data,
            },
        );
    }

    /// Forgets a request or stream; `Gone` says what late messages mean.
    pub(crate) fn forget(&self, world: &World, id: &str, gone: Gone) {
        let exchange = self.exchanges.borrow_mut().remove(id).is_some();
        let stream = self.streams.borrow_mut().remove(id).is_some();
        if exchange || stream {
            world.past.add(id, gone);
        }
    }

    /// Ends everything that was under way.
    fn lose(&self, world: &World, why: &str) {
        self.is_open.set(false);
        self.outbox.abandon();
        self.edge.lose(why);
        let failed = Failed::Lost(why.to_owned());
        for (id, exchange) in self.exchanges.take() {
            exchange.finish(Part::Failed(failed.clone()));
            world.past.add(&id, Gone::GivenUp);
        }
        for (id, stream) in self.streams.take() {
            stream.finish(Received::Failed(failed.clone()));
            world.past.add(&id, Gone::GivenUp);
        }
    }
}

/// Runs a session to its end. `read_before` came with the handshake.
pub(crate) async fn run(world: &Rc<World>, session: &Rc<Session>, conn: Conn, read_before: &[u8]) {
    let number = session.number;
    world
        .sessions
        .borrow_mut()
        .insert(number, Rc::clone(session));
    world.record.bell.ring();
    let (read, mut write) = smol::io::split(conn);
    let mut reader = ws::Reader::new(read, read_before, world.options.message_bytes_max);
    let received = reader.counter();
    let why = {
        let mut writer = pin!(write_all(session, &mut write));
        let is_written = Cell::new(false);
        let reading = async {
            loop {
                let message = match reader.next().await {
                    Ok(message) => message,
                    Err(fault) => return ended_by(world, session, &fault),
                };
                if let Some(why) = inbound::take(world, session, message).await {
                    return why;
                }
            }
        };
        let why = or(
            reading,
            or(
                async {
                    let fault = (&mut writer).await;
                    is_written.set(true);
                    format!("writing failed: {fault}")
                },
                silence(world, session, &received),
            ),
        )
        .await;
        session.is_open.set(false);
        // The answer to a close frame, and whatever waits before it, still goes out.
        session.outbox.push(Out::End, 0);
        if !is_written.get() {
            within(Duration::from_secs(2), &mut writer).await;
        }
        why
    };
    world.sessions.borrow_mut().remove(&number);
    session.lose(world, &why);
    log::info!("session {number} ({:?}): ended: {why}", session.role);
    world.record.bell.ring();
    // A silent connection stays open until somebody cuts it: that is what it is for.
    while session.gate.flow() == Flow::Silent {
        Timer::after(Duration::from_millis(100)).await;
    }
    within(Duration::from_secs(1), write.close()).await;
}

fn ended_by(world: &World, session: &Session, fault: &Fault) -> String {
    if let Fault::Protocol(what) = fault {
        world.record.violation(session.number, *what);
        session.close(world, 1002, what);
    }
    fault.to_string()
}

/// Returns once the agent has sent nothing for too long; looked at every second at least, so
/// that a changed limit holds soon.
async fn silence(world: &World, session: &Session, received: &Rc<Cell<u64>>) -> String {
    let mut before = received.get();
    let mut quiet = Duration::ZERO;
    loop {
        let limit = world.behaviour(|behaviour| behaviour.silence_max);
        let step = (limit / 4).min(Duration::from_secs(1));
        Timer::after(step).await;
        let now = received.get();
        quiet = if now == before && !session.is_holding.get() {
            quiet.saturating_add(step)
        } else {
            Duration::ZERO
        };
        before = now;
        if quiet >= limit {
            session.close(world, 1001, "silent for too long");
            return format!("nothing came for {} ms", limit.as_millis());
        }
    }
}

/// Writes what the outbox holds, in few large writes, until the end marker or a fault.
async fn write_all(session: &Session, write: &mut (impl AsyncWrite + Unpin)) -> io::Error {
    let mut buffer = Vec::with_capacity(WRITE_BYTES_MAX);
    loop {
        buffer.clear();
        let mut next = session.outbox.pop().await;
        let mut is_end = next.is_none();
        while let Some(out) = next {
            match out {
                Out::Frames(frames) => buffer.extend_from_slice(&frames),
                Out::End => {
                    is_end = true;
                    break;
                }
            }
            if buffer.len() >= WRITE_BYTES_MAX {
                break;
            }
            next = session.outbox.try_pop();
        }
        let written = async {
            write.write_all(&buffer).await?;
            write.flush().await
        };
        if let Err(error) = written.await {
            return error;
        }
        if is_end {
            return io::ErrorKind::BrokenPipe.into();
        }
    }
}

/// Never returns; for a handshake that gets no answer.
pub(crate) async fn never<T>() -> T {
    pending().await
}

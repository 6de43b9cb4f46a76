//! Proxied calls: requests of the control plane, run against the cluster, answered through lanes.
//!
//! Every call is one task; dropping it closes its connection to the cluster, so cancel, lost
//! session and stop are the same act. [`Proxy::deliver`] never waits: bodies and frames go into
//! bounded queues. `core::policy` decides what is permitted, `core::proxy` where it goes.

mod admission;
mod audit;
mod authorization;
mod bodies;
mod body;
mod deadline;
mod denial;
mod entry;
mod gate;
pub mod level;
mod messages;
mod owner;
mod revalidation;
mod streams;
mod upstream;

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

use hyper::body::Bytes;
use smol::{
    Task,
    channel::{Sender, TrySendError, bounded},
};

use super::{audit::AuditWriter, rights::delegate::Delegate};
use crate::{
    core::{
        audit::AuditEntry,
        policy::Rules,
        proxy::{CallTarget, Form, RawRequest, route, route_stream},
    },
    executor::Executor,
    files::Spool,
    host::clock,
    kube::Client,
    link::outlet::{Frame, Outlet},
    wire::control::{
        self, AnswerForm, ProxyMessage, ProxyRequest, RequestBody, SocketData, SocketStart,
        binary_body,
    },
};

use admission::AdmissionQueue;
use audit::Audit;
use authorization::{Admitted, Denied};
use body::{Budget, Pipe, Pushed, busy_with_bodies};
use denial::Denial;
use messages::{
    exchange::{self, Exchange, Source},
    frames::{FrameIn, Frames, Queued, StreamKind},
    socket::SocketExchange,
    table::{Inlet, Running, Table},
};
use streams::Streams;

/// Refusals that wait for the socket; more are dropped. Their senders broke the rules and flood us
/// at the same time.
const REFUSALS_MAX: usize = 64;

/// Components of the proxy.
#[derive(Debug)]
pub struct ProxyDependencies {
    /// Runs the exchanges.
    pub executor: Rc<Executor>,
    /// The way into the cluster; `None`: there is no cluster.
    pub client: Option<Client>,
    /// The account that calls run under; `None`: there is no cluster.
    pub delegate: Option<Rc<Delegate>>,
    /// Rules of the owner.
    pub rules: Rules,
    /// Spool of large buffered answers.
    pub spool: Spool,
}

/// All proxied exchanges of one session after another.
#[derive(Debug)]
pub struct Proxy {
    shared: Rc<Shared>,
    refusals: RefCell<Option<Refusals>>,
    streams: RefCell<Option<Streams>>,
    _tasks: [Task<()>; 2],
}

/// State that all exchanges share.
#[derive(Debug)]
struct Shared {
    dependencies: ProxyDependencies,
    rules: Rc<Cell<Rules>>,
    audit: Rc<Audit>,
    admission: Rc<AdmissionQueue>,
    budget: Budget,
    table: RefCell<Table>,
    /// Requests since the start, of every form.
    requests: Cell<u64>,
}

/// The one lane for answers to messages that started nothing.
#[derive(Debug)]
struct Refusals {
    queue: Sender<(Option<AuditEntry>, String)>,
    _task: Task<()>,
}

/// Load of the proxy, for tests and the status.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Load {
    /// Requests of every form since the start, also those that were refused.
    pub requests: u64,
    /// Exchanges of every form that are not over.
    pub exchanges: usize,
    /// WebSockets among them.
    pub sockets: usize,
    /// Streams that the control plane has opened.
    pub streams: usize,
    /// Short requests that run.
    pub short_running: usize,
    /// Short requests that wait for their turn.
    pub short_waiting: usize,
    /// Watches, followed logs and WebSockets that run.
    pub long_running: usize,
    /// Bytes of request bodies in memory, with what each piece costs.
    pub held_body_bytes: usize,
    /// Bytes of buffered answers on disk.
    pub spooled_bytes: u64,
    /// Messages that were dropped without an answer since the start.
    pub dropped_messages: u64,
}

/// First message of an exchange.
#[derive(Debug)]
enum Work {
    Plain(Source),
    Socket(StreamKind, Rc<Frames>),
}

impl Proxy {
    /// A proxy without exchanges.
    #[cfg(feature = "internals")]
    pub fn new(dependencies: ProxyDependencies) -> Self {
        Self::with_audit(dependencies, None)
    }

    /// A proxy that writes down what it does: writes and exec before they have an effect, and not
    /// at all where that fails.
    pub fn audited(dependencies: ProxyDependencies, audit_writer: AuditWriter) -> Self {
        Self::with_audit(dependencies, Some(audit_writer))
    }

    fn with_audit(dependencies: ProxyDependencies, audit_writer: Option<AuditWriter>) -> Self {
        let rules = Rc::new(Cell::new(dependencies.rules));
        let audit = Audit::new(audit_writer, Rc::clone(&rules));
        let executor = Rc::clone(&dependencies.executor);
        if let Some(delegate) = &dependencies.delegate {
            delegate.set_level(dependencies.rules.level);
        }
        let keeping = executor.spawn(Rc::clone(&audit).keep());
        let shared = Rc::new(Shared {
            dependencies,
            rules,
            audit,
            admission: Rc::default(),
            budget: Budget::default(),
            table: RefCell::default(),
            requests: Cell::new(0),
        });
        let revalidation = executor.spawn(revalidation::keep(Rc::clone(&shared)));
        Self {
            shared,
            refusals: RefCell::new(None),
            streams: RefCell::new(None),
            _tasks: [keeping, revalidation],
        }
    }

    /// Writes what is still to be written into the audit: for the stop.
    pub async fn flush_audit(&self) {
        self.shared.audit.write_sums().await;
    }

    /// Takes one message. Its answers go through `outlet`, the session's that it came in on.
    pub fn deliver(&self, message: ProxyMessage, outlet: &Outlet) {
        match message {
            ProxyMessage::Request(request) => self.request(*request, outlet),
            ProxyMessage::Unusable { id, answer, reason } => {
                self.refuse(&id, answer, &reason, outlet);
            }
            ProxyMessage::Chunk { request_id, data } => self.chunk(&request_id, data),
            ProxyMessage::BodyEnd { request_id } => match self.pipe(&request_id) {
                Some(pipe) => pipe.complete(),
                None => self.drop_message("the end of an unknown request's body"),
            },
            ProxyMessage::Cancel { request_id } => self.cancel(&request_id),
            ProxyMessage::SocketStart(start) => self.start_socket(*start, outlet),
            ProxyMessage::SocketData(data) => self.socket_data(&data, outlet),
            ProxyMessage::SocketClose { ids } => self.close_socket(&ids),
            ProxyMessage::TcpTunnelStart { request_id } => {
                let text = "legacy tunnels are not supported by this agent";
                let message = control::tcp_tunnel_close(&request_id, text, clock::now().wall);
                self.send(message, outlet);
            }
            ProxyMessage::StreamData => self.drop_message("obsolete proxy_stream_data"),
            ProxyMessage::TunnelStray => self.drop_message("data of a legacy tunnel"),
            ProxyMessage::Nameless => self.drop_message("a message without a usable id"),
        }
    }

    /// Returns whether a request waits for the binary message that holds its body.
    #[cfg(feature = "internals")]
    pub fn awaits_binary(&self) -> bool {
        self.shared.table.borrow().awaited.is_some()
    }

    /// Offers a binary message as the body of the request that waits for one. `false`: it is not
    /// that body, and may be anything else.
    pub fn binary_body(&self, message: &[u8]) -> bool {
        let mut table = self.shared.table.borrow_mut();
        let Some(awaited) = &table.awaited else {
            return false;
        };
        let Some((id, body)) = binary_body(message) else {
            return false;
        };
        if id != awaited {
            return false;
        }
        let pipe = table
            .entries
            .get(id)
            .and_then(|entry| entry.inlet.pipe().cloned());
        table.awaited = None;
        drop(table);
        if let Some(pipe) = pipe
            && pipe.push(Bytes::copy_from_slice(body)) == Pushed::Taken
        {
            pipe.complete();
        }
        true
    }

    /// The session is over: all its exchanges end, and their connections to the cluster with them.
    pub fn session_lost(&self) {
        let entries = self.shared.table.borrow_mut().take_all();
        // Dropped here, when nothing is borrowed: each task's end looks into the table.
        drop(entries);
        self.refusals.replace(None);
        let streams = self.streams.replace(None);
        drop(streams);
    }

    /// Current load.
    pub fn load(&self) -> Load {
        let table = self.shared.table.borrow();
        let (short_running, short_waiting, long_running) = self.shared.admission.load();
        let streams = self.streams.borrow();
        Load {
            requests: self.shared.requests.get(),
            exchanges: self.shared.admission.count(),
            streams: streams.as_ref().map_or(0, Streams::open_count),
            sockets: table.sockets(),
            short_running,
            short_waiting,
            long_running,
            held_body_bytes: self.shared.budget.held_bytes(),
            spooled_bytes: self.shared.dependencies.spool.used_bytes(),
            dropped_messages: table.dropped_messages,
        }
    }

    fn request(&self, request: ProxyRequest, outlet: &Outlet) {
        let ProxyRequest {
            request_id,
            asked,
            body,
            answer,
        } = request;
        if self.shared.table.borrow().entries.contains_key(&request_id) {
            // An answer under this id would be taken for the answer to the request that runs.
            self.drop_message("a request under the id of one that runs");
            return;
        }
        let admitted = match self.shared.admit(&asked, route) {
            Ok(admitted) => admitted,
            Err(denied) => return self.deny(&request_id, answer, denied, outlet),
        };
        if matches!(admitted.call.form, Form::Socket(_)) {
            let kind = match admitted.call.target {
                CallTarget::Kubernetes(_) => StreamKind::Kubernetes,
                CallTarget::Service(_) => StreamKind::Application,
            };
            let work = Work::Socket(kind, Frames::new());
            return self.begin(request_id, admitted, work, answer, outlet);
        }
        let source = match self.source(body, &asked) {
            Ok(source) => source,
            Err(text) => return self.refuse(&request_id, answer, &text, outlet),
        };
        if matches!(source, Source::NextBinary(_)) {
            self.await_binary(&request_id);
        }
        self.begin(request_id, admitted, Work::Plain(source), answer, outlet);
    }

    /// Source of the body of a request, with room for it if it is there already.
    fn source(&self, body: RequestBody, asked: &RawRequest) -> Result<Source, String> {
        let pipe = || Pipe::new(&self.shared.budget);
        Ok(match body {
            RequestBody::None => Source::None,
            RequestBody::Inline(bytes) => {
                let held = self.shared.budget.take(bytes.len());
                Source::Inline(bytes, held.ok_or_else(busy_with_bodies)?)
            }
            RequestBody::NextBinary if self.streams.borrow().is_some() => {
                return Err(
                    "binary messages are yamux frames now: send the body in base64 or in chunks"
                        .to_owned(),
                );
            }
            RequestBody::NextBinary => Source::NextBinary(pipe()),
            RequestBody::Chunked => Source::Chunked {
                pipe: pipe(),
                length: exchange::declared_length(&asked.headers),
            },
        })
    }

    /// The next binary message belongs to this request. One that waited before has lost its own.
    fn await_binary(&self, request_id: &str) {
        let mut table = self.shared.table.borrow_mut();
        let before = table.awaited.replace(request_id.to_owned());
        let pipe = before.and_then(|id| table.entries.get(&id)?.inlet.pipe().cloned());
        drop(table);
        if let Some(pipe) = pipe {
            pipe.fail("the binary message with the request body did not come".to_owned());
        }
    }

    /// Starts the task of an exchange, or says that there are too many.
    fn begin(
        &self,
        id: String,
        admitted: Admitted,
        work: Work,
        answer: AnswerForm,
        outlet: &Outlet,
    ) {
        let pass = match self.shared.admission.ask(&admitted.call) {
            Ok(pass) => pass,
            Err(denial) => return self.refuse(&id, answer, &denial.text, outlet),
        };
        let mut table = self.shared.table.borrow_mut();
        let number = table.next_number();
        let slot = self.shared.slot(&id, number);
        let limits = admitted.call.limits(clock::now());
        let outlet = outlet.clone();
        let executor = &self.shared.dependencies.executor;
        let (inlet, task) = match work {
            Work::Plain(source) => {
                let inlet = source.pipe().map_or(Inlet::None, Inlet::Body);
                let exchange = Exchange {
                    slot,
                    pass,
                    admitted,
                    limits,
                    answer,
                    outlet,
                };
                (inlet, executor.spawn(exchange.run(source)))
            }
            Work::Socket(kind, frames) => {
                let inlet = Inlet::Frames(kind, Rc::clone(&frames));
                let exchange = SocketExchange {
                    slot,
                    pass,
                    limits,
                    answer,
                    outlet,
                    kind,
                    frames,
                };
                (inlet, executor.spawn(exchange.run(admitted)))
            }
        };
        let entry = Running {
            number,
            inlet,
            _task: task,
        };
        table.entries.insert(id, entry);
    }

    fn chunk(&self, request_id: &str, data: Option<Bytes>) {
        let Some(pipe) = self.pipe(request_id) else {
            return self.drop_message("a piece of an unknown request's body");
        };
        match data {
            Some(piece) => match pipe.push(piece) {
                Pushed::Taken | Pushed::NoRoom => {}
                Pushed::Stray => self.drop_message("a piece of a body that is no longer read"),
            },
            None => pipe.fail("a piece of the request body is not standard base64".to_owned()),
        }
    }

    /// The way into a chunked body.
    fn pipe(&self, request_id: &str) -> Option<Rc<Pipe>> {
        let table = self.shared.table.borrow();
        table.entries.get(request_id)?.inlet.pipe().cloned()
    }

    fn cancel(&self, id: &str) {
        if let Some((_, frames)) = self.frames(&[id]) {
            // A stream of the API says that it is over, whoever ends it.
            return frames.close();
        }
        let entry = self.shared.table.borrow_mut().entries.remove(id);
        match entry {
            Some(entry) => drop(entry),
            None => self.drop_message("a cancel of an unknown request"),
        }
    }

    fn start_socket(&self, start: SocketStart, outlet: &Outlet) {
        let SocketStart { stream_id, asked } = start;
        if self.shared.table.borrow().entries.contains_key(&stream_id) {
            // An error under this id would end the stream that lives.
            return self.drop_message("a start under the id of a stream that lives");
        }
        match self.shared.admit(&asked, route_stream) {
            Ok(admitted) => {
                let work = Work::Socket(StreamKind::Kubernetes, Frames::new());
                self.begin(stream_id, admitted, work, AnswerForm::Socket, outlet);
            }
            Err(denied) => self.deny(&stream_id, AnswerForm::Socket, denied, outlet),
        }
    }

    /// The first of these that is a living WebSocket.
    fn frames(&self, ids: &[&str]) -> Option<(StreamKind, Rc<Frames>)> {
        let table = self.shared.table.borrow();
        let entry = |id: &&str| table.entries.get(*id)?.inlet.frames();
        ids.iter()
            .find_map(entry)
            .map(|(kind, frames)| (kind, Rc::clone(frames)))
    }

    fn socket_data(&self, data: &SocketData, outlet: &Outlet) {
        let ids = [&data.stream_id, &data.application_id].map(|id| id.as_deref().unwrap_or(""));
        let Some((kind, frames)) = self.frames(&ids) else {
            return self.drop_message("a frame of an unknown WebSocket");
        };
        let Some(bytes) = &data.data else {
            return frames.fail("a frame is not standard base64".to_owned());
        };
        let frame = match kind {
            StreamKind::Application => FrameIn::of(bytes, data.message_type),
            StreamKind::Kubernetes => FrameIn::of(bytes, None),
        };
        let Some(frame) = frame else {
            return self.drop_message("a frame without an opcode");
        };
        match (frames.push(frame), kind) {
            (Queued::Taken, _) => {}
            (Queued::Closing, _) => self.drop_message("a frame of a WebSocket that is closing"),
            (Queued::Full, StreamKind::Application) => {
                self.drop_message("a frame for a backend that is too slow");
                let id = data.application_id.as_deref().unwrap_or_default();
                self.send(control::backpressure(id, clock::now().wall), outlet);
            }
            // Terminals and tunnels with a hole in them are worse than none.
            (Queued::Full, StreamKind::Kubernetes) => {
                frames.fail("busy: too many frames wait for the stream's backend".to_owned());
            }
        }
    }

    fn close_socket(&self, ids: &[String]) {
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        match self.frames(&ids) {
            Some((_, frames)) => frames.close(),
            None => self.drop_message("the close of an unknown WebSocket"),
        }
    }

    /// Answers a request that may not run. Its row in the audit is written before the answer.
    fn deny(&self, id: &str, answer: AnswerForm, denied: Denied, outlet: &Outlet) {
        let Denied {
            denial: Denial { text, .. },
            row,
        } = denied;
        self.answer_refused(id, answer, (row, &text), outlet);
    }

    /// Answers a message that starts nothing.
    fn refuse(&self, id: &str, answer: AnswerForm, reason: &str, outlet: &Outlet) {
        self.answer_refused(id, answer, (None, reason), outlet);
    }

    fn answer_refused(
        &self,
        id: &str,
        answer: AnswerForm,
        refused: (Option<AuditEntry>, &str),
        outlet: &Outlet,
    ) {
        let (row, reason) = refused;
        let now = clock::now().wall;
        match answer {
            AnswerForm::Buffered => {
                self.send_after(row, control::proxy_error(id, reason, now), outlet);
            }
            AnswerForm::Streaming => {
                let message = control::proxy_response_abort(id, reason, now);
                self.send_after(row, message, outlet);
            }
            AnswerForm::Socket => {
                self.send_after(row, control::stream_error(id, reason, now), outlet);
                self.send(control::socket_close(id, now), outlet);
            }
        }
    }

    fn send(&self, message: String, outlet: &Outlet) {
        self.send_after(None, message, outlet);
    }

    /// Queues a message in the lane of refusals. They do not go in front as control messages: a
    /// flood of them would push the session's own aside, and end it.
    fn send_after(&self, row: Option<AuditEntry>, message: String, outlet: &Outlet) {
        let mut refusals = self.refusals.borrow_mut();
        let mut said = (row, message);
        if let Some(refusals) = refusals.as_ref() {
            match refusals.queue.try_send(said) {
                Ok(()) => return,
                Err(TrySendError::Full(_)) => return self.drop_message("too many refusals wait"),
                Err(TrySendError::Closed(back)) => said = back,
            }
        }
        let (queue, waiting) = bounded::<(Option<AuditEntry>, String)>(REFUSALS_MAX);
        let mut lane = outlet.open();
        let audit = Rc::clone(&self.shared.audit);
        let task = self.shared.dependencies.executor.spawn(async move {
            while let Ok((row, message)) = waiting.recv().await {
                if let Some(row) = row {
                    audit.refused(row).await;
                }
                if lane.send(Frame::Text(message)).await.is_err() {
                    return;
                }
            }
        });
        if queue.try_send(said).is_err() {
            self.drop_message("too many refusals wait");
        }
        *refusals = Some(Refusals { queue, _task: task });
    }

    fn drop_message(&self, what: &str) {
        let mut table = self.shared.table.borrow_mut();
        table.dropped_messages = table.dropped_messages.saturating_add(1);
        log::debug!("proxy: dropped {what}; dropped={}", table.dropped_messages);
    }
}

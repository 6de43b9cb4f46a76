//! Uplink: the loop that carries out the decisions of `core::link` on the network, the store and
//! the proxy.

use std::{
    cell::RefCell,
    collections::VecDeque,
    future::{Future, poll_fn},
    pin::pin,
    rc::Rc,
    task::Poll,
    time::Duration,
};

use hyper::body::Bytes;
use smol::{
    Task, Timer,
    channel::Receiver,
    future::{self, BoxedLocal},
};

use super::{
    super::lease_gate::LeaseGate, commands::Commands, deliver::Delivery, registration::Registrar,
};
use crate::{
    core::{
        health::Severity,
        link::{
            DIAL_DEADLINE, DialFailure, Endpoint, Holder, Input, Link, LinkCommand, LinkState,
            LinkStatus, Membership, Message, Output,
        },
        time::{Mono, Now, Wall},
        url::Url,
        verdict::sentences,
    },
    error::{Error, Result},
    executor::Executor,
    link::{
        dial::{Caller, Failure},
        session::{Event, MessageKind, Session},
    },
    tasks::{
        proxy::Proxy,
        state::{LINK_LOST, SharedState},
    },
    wire::{
        control::{self, Inbound},
        handshake::DialTarget,
    },
};

/// Interval at which a rejected token is read again, to see whether it was replaced.
const TOKEN_POLL_INTERVAL: Duration = Duration::from_secs(5);
/// Messages in a row before other tasks get a turn.
const MESSAGES_A_TURN: u32 = 32;
/// A link that is away for less is not worth a condition: control planes restart.
const QUIET_FAILURES: u32 = 1;
/// Fix of a gateway that cannot be reached.
const GATEWAY_FIX: &str = "pipeops-agent link shows the step that fails";

/// The version of the extension that this program speaks.
const EDGE_VERSION: u32 = 1;

/// Reads the token; called before each dial, so that a replaced file is picked up.
pub type TokenSource = Rc<dyn Fn() -> TokenRead>;
/// A token that is being read.
pub type TokenRead = BoxedLocal<Result<String>>;
/// Reads what opens a session.
pub type CallerSource = Box<dyn Fn() -> BoxedLocal<Rc<Caller>>>;
/// Keeps a membership on disk; reports its own failures.
pub type SaveMembership = Box<dyn Fn(Membership) -> BoxedLocal<()>>;

/// Keeps the first moment of a verified certificate on disk. `None` where there is nothing to
/// write.
pub type SaveCertificateTime = Box<dyn Fn(Wall) -> Option<BoxedLocal<()>>>;

/// Components that the uplink needs.
#[expect(missing_debug_implementations, reason = "it holds functions")]
pub struct UplinkDependencies {
    /// The control plane's address.
    pub api_url: Url,
    /// Opens sessions, with the certificates as they are now.
    pub caller: CallerSource,
    /// Reads the token.
    pub token: TokenSource,
    /// Keeps what a registration brought.
    pub keep: SaveMembership,
    /// Keeps what the certificate of a session proves about the time.
    pub certified: SaveCertificateTime,
    /// Makes registrations and heartbeats.
    pub registrar: Rc<Registrar>,
    /// Answers proxied requests.
    pub proxy: Rc<Proxy>,
    /// Sends records.
    pub delivery: Rc<Delivery>,
    /// Takes commands.
    pub edge_commands: Rc<Commands>,
    /// State to which the link reports.
    pub shared_state: Rc<SharedState>,
    /// Permission to link.
    pub lease_gate: Rc<LeaseGate>,
    /// Commands from other tasks.
    pub commands: Receiver<LinkCommand>,
    /// Runs what must not hold the loop up.
    pub executor: Rc<Executor>,
}

type Dial = BoxedLocal<std::result::Result<Session, Failure>>;

struct Uplink {
    dependencies: UplinkDependencies,
    link: Link,
    dial: Option<Dial>,
    session: Option<Session>,
    /// Close frames and writes to disk under way; the newest last.
    background: VecDeque<Task<()>>,
    last_token: Rc<RefCell<Option<String>>>,
    /// Recoveries that were told.
    recoveries: u64,
    /// Looks whether the token was replaced.
    token_read: Option<TokenRead>,
    pinged: Option<Mono>,
    counted: (u64, u64),
    decode_failures: u64,
    /// True if the last failed dial was of a gateway that the rules of this machine do not admit.
    is_gateway_refused: bool,
}

/// Event that ended a wait.
enum Wakeup {
    Dialed(Box<std::result::Result<Session, Failure>>),
    Session(Event),
    Command(LinkCommand),
    Token(Result<String>),
    Time,
}

/// Holds the link until it is told to stop.
pub async fn run(dependencies: UplinkDependencies, link: Link) {
    let mut uplink = Uplink {
        dependencies,
        link,
        dial: None,
        session: None,
        background: VecDeque::new(),
        last_token: Rc::default(),
        recoveries: 0,
        token_read: None,
        pinged: None,
        counted: (0, 0),
        decode_failures: 0,
        is_gateway_refused: false,
    };
    uplink.run_loop().await;
    for task in uplink.background {
        task.await;
    }
}

impl Uplink {
    async fn run_loop(&mut self) {
        let mut timer = Timer::never();
        let mut timer_at = None;
        let mut in_a_row = 0;
        loop {
            let until = self.carry_out_all();
            self.publish_status();
            if self.link.state() == LinkState::Closed {
                return;
            }
            if timer_at != Some(until) {
                timer.set_after(until.since(self.now().mono));
                timer_at = Some(until);
            }
            let wakeup = self.wait(&mut timer).await;
            if matches!(wakeup, Wakeup::Time) {
                timer_at = None;
            }
            self.handle_wakeup(wakeup);
            in_a_row += 1;
            if in_a_row >= MESSAGES_A_TURN {
                in_a_row = 0;
                future::yield_now().await;
            }
        }
    }

    fn now(&self) -> Now {
        self.dependencies.shared_state.now()
    }

    /// Waits for the first thing that happens. Time and commands first: a busy socket must not
    /// starve them. The lease gate before all: a process that was stopped, or a machine that slept,
    /// looks at it before its socket.
    async fn wait(&mut self, timer: &mut Timer) -> Wakeup {
        let time = async {
            timer.await;
            Wakeup::Time
        };
        let command = async {
            match self.dependencies.commands.recv().await {
                Ok(command) => Wakeup::Command(command),
                // Whoever could ask for something is gone: the agent stops.
                Err(_) => Wakeup::Command(LinkCommand::Stop),
            }
        };
        let dialed = async {
            match self.dial.as_mut() {
                Some(dial) => Wakeup::Dialed(Box::new(dial.await)),
                None => future::pending().await,
            }
        };
        let token = async {
            match self.token_read.as_mut() {
                Some(look) => Wakeup::Token(look.await),
                None => future::pending().await,
            }
        };
        let session = async {
            match self.session.as_mut() {
                Some(session) => Wakeup::Session(session.next().await),
                None => future::pending().await,
            }
        };
        let mut first = pin!(future::or(
            time,
            future::or(command, future::or(future::or(dialed, token), session))
        ));
        let is_held = self.link.is_held_by(Holder::Lease);
        let (lease_gate, shared_state) = (
            &self.dependencies.lease_gate,
            &self.dependencies.shared_state,
        );
        poll_fn(|context| {
            if !is_held && !lease_gate.is_open(shared_state.now().mono) {
                return Poll::Ready(Wakeup::Time);
            }
            first.as_mut().poll(context)
        })
        .await
    }

    /// Applies the state of the lease gate to the link.
    fn apply_lease_gate(&mut self, now: Now) {
        let is_held = self.link.is_held_by(Holder::Lease);
        if self.dependencies.lease_gate.is_open(now.mono) {
            if is_held {
                self.link.handle(Input::Release(Holder::Lease), now);
            }
            return;
        }
        if !is_held {
            // Not even a close frame: it would take along what waits to be written.
            self.dial = None;
            self.drop_session();
        }
        let why = self.dependencies.lease_gate.why();
        self.link.handle(Input::Hold(Holder::Lease, why), now);
    }

    fn handle_wakeup(&mut self, wakeup: Wakeup) {
        let now = self.now();
        match wakeup {
            Wakeup::Time => self.start_token_read(),
            Wakeup::Token(token) => {
                self.token_read = None;
                self.compare_token(token, now);
            }
            Wakeup::Command(LinkCommand::Register) => self.link.handle(Input::RegisterAgain, now),
            Wakeup::Command(LinkCommand::CheckLeaseGate) => {}
            Wakeup::Command(LinkCommand::AdoptClusterId(id)) => {
                self.link.handle(Input::AdoptClusterId(id), now)
            }
            Wakeup::Command(LinkCommand::Hold(why)) => {
                self.link.handle(Input::Hold(Holder::GoAgent, why), now);
            }
            Wakeup::Command(LinkCommand::Release) => {
                self.link.handle(Input::Release(Holder::GoAgent), now);
            }
            Wakeup::Command(LinkCommand::Stop) => self.link.handle(Input::Stop, now),
            Wakeup::Dialed(answer) => {
                self.dial = None;
                match *answer {
                    Ok(session) => self.opened(session, now),
                    Err(failure) => self.failed(failure, now),
                }
            }
            Wakeup::Session(Event::Message(data, kind)) => {
                self.dependencies.shared_state.link.borrow_mut().heard = Some(now.mono);
                self.message(&data, kind, now);
            }
            Wakeup::Session(Event::Ping) => {
                self.dependencies.shared_state.link.borrow_mut().heard = Some(now.mono);
                self.link.handle(Input::Heard, now);
            }
            Wakeup::Session(Event::Pong) => {
                let round_trip = self.pinged.take().map(|pinged| now.mono.since(pinged));
                let mut view = self.dependencies.shared_state.link.borrow_mut();
                view.round_trip = round_trip;
                view.heard = Some(now.mono);
                drop(view);
                self.link.handle(Input::Heard, now);
            }
            Wakeup::Session(Event::Ended(ending)) => {
                match ending.owed {
                    Some((code, reason)) => self.close(code, reason),
                    None => self.drop_session(),
                }
                self.link.handle(Input::Lost(ending.why), now);
            }
        }
    }

    fn opened(&mut self, session: Session, now: Now) {
        let mut view = self.dependencies.shared_state.link.borrow_mut();
        view.local_ip = session.local_ip();
        view.heard = Some(now.mono);
        drop(view);
        let since = session.certified_since();
        if let Some(written) = since.and_then(|since| (self.dependencies.certified)(since)) {
            self.spawn(written);
        }
        self.session = Some(session);
        self.counted = (0, 0);
        self.dependencies.registrar.link_fix(None);
        self.link.handle(Input::Connected, now);
    }

    fn failed(&mut self, failure: Failure, now: Now) {
        let Failure { kind, error } = failure;
        self.dependencies.registrar.link_fix(error.fix.clone());
        self.is_gateway_refused = kind == DialFailure::NotAdmitted;
        self.link
            .handle(Input::DialFailed(kind, error.sentence()), now);
    }

    /// Everything the machine wants now; returns until when it then waits.
    fn carry_out_all(&mut self) -> Mono {
        loop {
            let now = self.now();
            self.apply_lease_gate(now);
            if self.session.as_mut().is_some_and(Session::takes_part) {
                self.dependencies.shared_state.link.borrow_mut().heard = Some(now.mono);
                self.link.handle(Input::Heard, now);
            }
            match self.link.poll(now) {
                Output::Wait(until, _) => {
                    let until = until.min(
                        self.dependencies
                            .lease_gate
                            .until(now.mono)
                            .unwrap_or(until),
                    );
                    return if self.watches_token() {
                        until.min(now.mono.after(TOKEN_POLL_INTERVAL))
                    } else {
                        until
                    };
                }
                Output::Dial(endpoint) => self.start_dial(&endpoint, now),
                Output::Send(message) => self.send(message, now),
                Output::Ping => {
                    self.pinged = Some(now.mono);
                    if let Some(session) = self.session.as_mut() {
                        session.ping();
                    }
                }
                Output::Persist(membership) => {
                    let kept = (self.dependencies.keep)(membership);
                    self.spawn(kept);
                }
                Output::Registered => {
                    self.dependencies
                        .shared_state
                        .link
                        .borrow_mut()
                        .registrations += 1;
                    self.dependencies.registrar.registered();
                }
                Output::Close { code, reason } => self.close(code, reason),
                Output::Log(line) => log::info!("{line}"),
            }
        }
    }

    fn start_dial(&mut self, endpoint: &Endpoint, now: Now) {
        let version = self.dependencies.registrar.version();
        let target = match endpoint {
            Endpoint::Controller => Ok(DialTarget::controller(&self.dependencies.api_url)),
            Endpoint::Gateway(known) => {
                let url = known.gateway_url.as_deref().unwrap_or_default();
                DialTarget::gateway(url, &known.cluster_uuid, version)
            }
        };
        let unusable = |error| Failure {
            kind: match endpoint {
                Endpoint::Controller => DialFailure::Network,
                Endpoint::Gateway(_) => DialFailure::NotAdmitted,
            },
            error,
        };
        let prepared = target
            .map_err(|why| {
                Error::new("the control plane named a gateway that cannot be used")
                    .why(why)
                    .fix("if this lasts, tell the support of the control plane: the agent asks for another one by itself")
            })
            .and_then(|target| self.dependencies.registrar.allows(&target).map(|()| target))
            .map_err(unusable);
        match prepared {
            Ok(target) => {
                self.dependencies.shared_state.link.borrow_mut().address = Some(target.origin());
                let caller = (self.dependencies.caller)();
                let (read, last) = ((self.dependencies.token)(), Rc::clone(&self.last_token));
                self.dial = Some(Box::pin(async move {
                    let token = read.await;
                    *last.borrow_mut() = token.as_ref().ok().cloned();
                    let token = token.map_err(|error| Failure {
                        kind: DialFailure::Network,
                        error,
                    })?;
                    caller.await.call(&target, &token, DIAL_DEADLINE).await
                }));
            }
            Err(failure) => self.failed(failure, now),
        }
    }

    /// Returns whether a new token would help now.
    fn watches_token(&self) -> bool {
        matches!(self.link.state(), LinkState::Refused | LinkState::Waiting)
    }

    fn start_token_read(&mut self) {
        if self.watches_token() && self.token_read.is_none() {
            self.token_read = Some((self.dependencies.token)());
        }
    }

    fn compare_token(&mut self, read: Result<String>, now: Now) {
        let Ok(token) = read else {
            return;
        };
        if !self.watches_token() || self.last_token.borrow().as_ref() == Some(&token) {
            return;
        }
        *self.last_token.borrow_mut() = Some(token);
        log::info!("link: the token has changed");
        self.link.handle(Input::TokenChanged, now);
    }

    fn send(&mut self, message: Message, now: Now) {
        let Some(session) = &self.session else {
            return;
        };
        let text = match message {
            Message::Register {
                request_id,
                cluster_id,
            } => {
                let registrar = self.dependencies.registrar.registration(
                    cluster_id,
                    session.local_ip(),
                    now.wall,
                );
                control::register(&request_id, &registrar, now.wall)
            }
            Message::Heartbeat { cluster_id } => {
                let beat = self
                    .dependencies
                    .registrar
                    .heartbeat(cluster_id, session.local_ip());
                let mut view = self.dependencies.shared_state.link.borrow_mut();
                view.last_heartbeat = Some(now.wall);
                view.heartbeats += 1;
                control::heartbeat(&beat, now.wall)
            }
            Message::Pong { request_id } => control::pong(request_id.as_deref(), now.wall),
            Message::Fallback {
                unknown_type,
                request_id,
            } => {
                log::info!(
                    "link: unknown message type {unknown_type:?}; answered with protocol_fallback"
                );
                control::protocol_fallback(&unknown_type, request_id.as_deref(), now.wall)
            }
        };
        session.outlet().control(text);
    }

    fn message(&mut self, data: &Bytes, kind: MessageKind, now: Now) {
        let proxy = &self.dependencies.proxy;
        if kind == MessageKind::Binary && (proxy.binary_body(data) || proxy.stream_bytes(data)) {
            self.link.handle(Input::Heard, now);
            return;
        }
        match control::decode(data) {
            Ok(inbound) => self.inbound(inbound, now),
            Err(undecodable) => {
                self.link.handle(Input::Heard, now);
                self.decode_failures += 1;
                // The first few tell what is wrong; a peer that sends nothing else must not fill
                // the log.
                if self.decode_failures.is_power_of_two() {
                    log::warn!(
                        "link: a message was dropped: {undecodable} count={}",
                        self.decode_failures
                    );
                }
            }
        }
    }

    fn inbound(&mut self, inbound: Inbound, now: Now) {
        let input = match inbound {
            Inbound::Proxy(message) => {
                if let Some(session) = &self.session {
                    self.dependencies.proxy.deliver(message, session.outlet());
                }
                Input::Heard
            }
            Inbound::RegisterSuccess(success) => {
                let membership = success.cluster_id.map(|cluster_id| Membership {
                    cluster_uuid: success.cluster_uuid.unwrap_or_else(|| cluster_id.clone()),
                    cluster_id,
                    gateway_url: success.gateway_ws_url,
                });
                Input::RegisterSuccess {
                    request_id: success.request_id,
                    membership,
                }
            }
            Inbound::RegisterInProgress => Input::RegisterInProgress,
            Inbound::Error { text, request_id } => Input::Refusal { request_id, text },
            Inbound::Ping { request_id } => Input::Ping { request_id },
            Inbound::Unknown { kind, request_id } => Input::Unknown {
                message_type: kind,
                request_id,
            },
            Inbound::GatewayHello(hello) => {
                if let Some(session) = &self.session
                    && hello.use_yamux
                {
                    // The streams first: their first bytes may follow the acknowledgement at once.
                    self.dependencies.proxy.open_streams(session.outlet());
                    let text = control::gateway_hello_ack(now.wall);
                    session.outlet().control(text);
                }
                Input::Heard
            }
            Inbound::EdgeHello(hello) => {
                if let Some(session) = &self.session
                    && hello.version > 0
                {
                    let text = control::edge_hello_ack(hello.version.min(EDGE_VERSION), now.wall);
                    session.outlet().control(text);
                    self.dependencies.delivery.begin(&hello, session.outlet());
                    self.dependencies.edge_commands.begin(session.outlet());
                }
                Input::Heard
            }
            Inbound::EdgeAck(ack) => {
                self.dependencies.delivery.acknowledged(ack);
                Input::Heard
            }
            Inbound::EdgeCommand(command) => {
                if self.dependencies.edge_commands.take(command) {
                    Input::Heard
                } else {
                    Input::Unknown {
                        message_type: "edge_command".to_owned(),
                        request_id: None,
                    }
                }
            }
            Inbound::HeartbeatAck | Inbound::Pong => Input::Heard,
        };
        self.link.handle(input, now);
    }

    fn close(&mut self, code: u16, reason: &'static str) {
        self.dial = None;
        let Some(session) = self.session.take() else {
            return;
        };
        self.session_lost();
        self.spawn(Box::pin(session.close(code, reason)));
    }

    fn drop_session(&mut self) {
        if self.session.take().is_some() {
            self.session_lost();
        }
    }

    fn session_lost(&mut self) {
        self.dependencies.proxy.session_lost();
        self.dependencies.delivery.session_lost();
        self.dependencies.edge_commands.session_lost();
        self.pinged = None;
    }

    fn spawn(&mut self, work: BoxedLocal<()>) {
        self.background.retain(|task| !task.is_finished());
        // Each ends by its own deadline; so many at once means that the disk hangs, and then the
        // oldest must not wait for ever.
        if self.background.len() >= 16 {
            self.background.pop_front();
        }
        let task = self.dependencies.executor.spawn(work);
        self.background.push_back(task);
    }

    /// Shows the state on the shared state, and says what is wrong.
    fn publish_status(&mut self) {
        let now = self.now();
        let status = self.link.status(now);
        let outages = self.link.outages();
        let mut view = self.dependencies.shared_state.link.borrow_mut();
        if let Some(session) = &self.session {
            let traffic = session.traffic();
            view.received_bytes += traffic.bytes_in.saturating_sub(self.counted.0);
            view.sent_bytes += traffic.bytes_out.saturating_sub(self.counted.1);
            self.counted = (traffic.bytes_in, traffic.bytes_out);
            (view.lanes, view.queued_bytes) = session.outlet().load();
        } else {
            (view.lanes, view.queued_bytes) = (0, 0);
        }
        let is_news = view
            .status
            .as_ref()
            .is_none_or(|old| old.state != status.state || old.why != status.why);
        let is_lost_again = self.link.losses() > view.outages;
        let is_back = self.link.recoveries() > self.recoveries;
        self.recoveries = self.link.recoveries();
        view.outages = self.link.losses();
        view.last_outage_why = outages
            .back()
            .filter(|_| view.outages > 0)
            .map(|outage| outage.why.clone());
        view.cluster_id = self.link.membership().map(|known| known.cluster_id.clone());
        view.status = Some(status.clone());
        // An event is delivered: of an address that the control plane chose it has nothing.
        let why = if status.is_about_gateway {
            sentences::GATEWAY_FAILED.to_owned()
        } else {
            view.last_outage_why.clone().unwrap_or_default()
        };
        drop(view);
        let shared_state = &self.dependencies.shared_state;
        if is_lost_again {
            shared_state.happened(
                LINK_LOST,
                Severity::Warning,
                format!("the session was lost: {why}"),
            );
        }
        if is_back {
            shared_state.happened(
                LINK_LOST,
                Severity::Note,
                "over: the control plane is reached".to_owned(),
            );
        }
        if is_news {
            self.report_conditions(&status);
        }
    }

    fn report_conditions(&self, status: &LinkStatus) {
        let shared_state = &self.dependencies.shared_state;
        let fix = self.dependencies.registrar.known_link_fix();
        if matches!(status.state, LinkState::Ready | LinkState::Closed) {
            shared_state.clear("link.down");
            shared_state.clear("link.refused");
            shared_state.clear("link.held");
            // Files that could not be read were not needed.
            shared_state.clear("link.settings");
            return;
        }
        if let Some(holder) = status.held_by {
            shared_state.clear("link.down");
            shared_state.clear("link.refused");
            if holder == Holder::Lease {
                // Whoever asks for the Lease says what that means.
                return shared_state.clear("link.held");
            }
            shared_state.report(
                "link.held",
                Severity::Warning,
                sentences::link_held(&status.why),
                None,
            );
            return;
        }
        shared_state.clear("link.held");
        if status.is_refused {
            shared_state.clear("link.down");
            let sentence = sentences::link_refused(&status.why);
            return shared_state.report("link.refused", Severity::Critical, sentence, fix);
        }
        shared_state.clear("link.refused");
        if status.is_about_gateway {
            // Nothing of the failure itself: a condition becomes an event that is delivered, and
            // the control plane chose the address. Status and log have it, and so has a fix, which
            // is not part of an event.
            if status.failures > QUIET_FAILURES {
                let fix = fix.filter(|_| self.is_gateway_refused);
                let fix = fix.unwrap_or_else(|| GATEWAY_FIX.to_owned());
                let sentence = sentences::GATEWAY_FAILED;
                shared_state.report("link.down", Severity::Warning, sentence, Some(fix));
            }
        } else if status.failures > QUIET_FAILURES {
            let sentence = sentences::link_down(&status.why);
            shared_state.report("link.down", Severity::Warning, sentence, fix);
        }
    }
}

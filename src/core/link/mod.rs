//! State machine of the session with the control plane: when to connect where, what to send, when
//! to give a connection up.
//!
//! It knows neither WebSockets nor TLS nor the clock, and stores no identity: its owner persists
//! what must survive a restart. It follows docs/protocol.md (Registration, Heartbeats,
//! Reconnecting) and differs from the Go agent where that loses a machine: a rejected token never
//! erases the cluster id, a lost gateway leads back to the controller, every controller connection
//! registers, a server that accepts and drops connections is met with a growing back-off, and a
//! refusal of the registration ends the wait for it at once.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use litemap::LiteMap;

use crate::core::{
    backoff::Backoff,
    format::one_line,
    time::{Mono, Now, Wall, in_words},
};

mod holds;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
mod types;

pub use holds::Holder;
pub use types::{
    DialFailure, Endpoint, Input, LinkCommand, LinkState, LinkStatus, Membership, Message, Outage,
    Output, Settings,
};

/// The first retry comes fast, since most losses are short (docs/protocol.md, Reconnecting).
const RETRY_FIRST: Duration = Duration::from_millis(500);
const RETRY_LONGEST: Duration = Duration::from_secs(60);
/// A refused token seldom becomes valid in seconds, and asking all the time looks like an attack.
const REFUSED_FIRST: Duration = Duration::from_secs(10);
const REFUSED_LONGEST: Duration = Duration::from_secs(300);
/// A longer `Retry-After` is a mistake or an attack: nobody wants a box to be away for a week.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(900);
/// DNS, TCP, TLS and upgrade together (docs/protocol.md, Reconnecting).
pub const DIAL_DEADLINE: Duration = Duration::from_secs(30);
/// Wait for the answer to `register` (docs/protocol.md, Registration).
const REGISTER_WAIT: Duration = Duration::from_secs(30);
/// Longest wait after `register_in_progress` (docs/protocol.md, Registration).
const REGISTER_WAIT_LONGEST: Duration = Duration::from_secs(120);
/// Duration after which a session counts as stable: the next loss starts with a short wait again.
const STABLE_AFTER: Duration = Duration::from_secs(60);
/// So many dials of a gateway in a row may fail before the controller is asked for a new one.
const GATEWAY_FAILURES_MAX: u32 = 3;
/// Time for which a gateway is kept although the controller, which did not answer, needs a new
/// registration: leaving ends running requests.
const OWED_FOR: Duration = Duration::from_secs(900);
/// Distinct unknown message types that are answered on one connection; more are only counted.
const UNKNOWN_TYPES_MAX: usize = 64;
/// Outages that are remembered for the status.
const OUTAGES_MAX: usize = 32;
/// Output requests that wait at most. They are drained after every input, so a handful is normal.
const OUTPUTS_MAX: usize = 512;

#[derive(Clone, Debug)]
enum State {
    /// Nothing is open; the next dial is due at `until`.
    Waiting { until: Mono },
    /// The token was refused; the next dial is due at `until`.
    Refused { until: Mono },
    /// A dial is under way.
    Dialing { endpoint: Endpoint, until: Mono },
    /// On a controller socket, the answer to `register` is awaited.
    Registering {
        request_id: String,
        is_fresh: bool,
        /// Number of requested registrations that it fulfils.
        sent: u32,
        began: Mono,
        until: Mono,
    },
    /// All is well.
    Ready(Ready),
    /// Another agent has the link, or may have it.
    Held,
    /// Stopped.
    Closed,
}

#[derive(Clone, Debug)]
struct Ready {
    endpoint: Endpoint,
    cluster_id: String,
    since: Mono,
    heard: Mono,
    next_ping: Mono,
    next_heartbeat: Mono,
}

/// The machine. See the module.
#[derive(Debug)]
pub struct Link {
    settings: Settings,
    state: State,
    membership: Option<Membership>,
    /// True if the next dial goes to the gateway of `membership`.
    prefers_gateway: bool,
    gateway_failures: u32,
    backoff: Backoff,
    refused: Backoff,
    failures: u32,
    /// True if `why` is the refused token.
    is_refused: bool,
    why: String,
    /// True if `why` is the failed dial of a gateway.
    is_about_gateway: bool,
    /// Empty in every state but [`State::Held`].
    holds: LiteMap<Holder, String>,
    unknown_types: BTreeSet<String>,
    outages: VecDeque<Outage>,
    losses: u64,
    /// Outages that ended, with that of the start.
    recoveries: u64,
    /// Beginning of the outage, or of a registration in a session that goes on.
    paused_at: Mono,
    up_since: Wall,
    registrations: u32,
    /// Time when a ready link was last told that it is not registered.
    forgotten_at: Option<Mono>,
    /// Registrations that were requested, and how many of them were sent.
    wanted_registrations: u32,
    sent_registrations: u32,
    outputs: VecDeque<Output>,
    random: fastrand::Rng,
}

impl Link {
    /// A link that dials at its first poll: the gateway of a known membership, else the controller.
    pub fn new(settings: Settings, membership: Option<Membership>, seed: u64, now: Now) -> Self {
        let prefers_gateway = membership
            .as_ref()
            .is_some_and(|known| known.gateway_url.is_some())
            && !settings.registers_first;
        let wanted_registrations = u32::from(settings.registers_first);
        let outage = Outage {
            began: now.wall,
            length: None,
            why: "not connected yet".to_owned(),
        };
        Self {
            settings,
            state: State::Waiting { until: now.mono },
            membership,
            prefers_gateway,
            gateway_failures: 0,
            backoff: Backoff::new(RETRY_FIRST, RETRY_LONGEST),
            refused: Backoff::new(REFUSED_FIRST, REFUSED_LONGEST),
            failures: 0,
            is_refused: false,
            why: outage.why.clone(),
            is_about_gateway: false,
            holds: LiteMap::new(),
            unknown_types: BTreeSet::new(),
            outages: VecDeque::from([outage]),
            losses: 0,
            recoveries: 0,
            paused_at: now.mono,
            up_since: now.wall,
            registrations: 0,
            forgotten_at: None,
            wanted_registrations,
            sent_registrations: 0,
            outputs: VecDeque::new(),
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// Its state, without what belongs to it.
    pub const fn state(&self) -> LinkState {
        match self.state {
            State::Waiting { .. } => LinkState::Waiting,
            State::Refused { .. } => LinkState::Refused,
            State::Dialing { .. } => LinkState::Dialing,
            State::Registering { .. } => LinkState::Registering,
            State::Ready(_) => LinkState::Ready,
            State::Held => LinkState::StandingBy,
            State::Closed => LinkState::Closed,
        }
    }

    /// Returns whether requests can be answered.
    pub const fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready(_))
    }

    /// Identity of this cluster at the control plane, if known.
    pub const fn membership(&self) -> Option<&Membership> {
        self.membership.as_ref()
    }

    /// Number of times that an established link was lost.
    pub const fn losses(&self) -> u64 {
        self.losses
    }

    /// Number of outages that ended, with that of the start.
    pub const fn recoveries(&self) -> u64 {
        self.recoveries
    }

    /// The last outages, the newest last.
    pub const fn outages(&self) -> &VecDeque<Outage> {
        &self.outages
    }

    /// State of the link, for people.
    pub fn status(&self, now: Now) -> LinkStatus {
        let (endpoint, until) = match &self.state {
            State::Waiting { until } | State::Refused { until } => ("", Some(*until)),
            State::Dialing { endpoint, .. } => (endpoint.as_str(), None),
            State::Registering { .. } => ("controller", None),
            State::Ready(ready) => (ready.endpoint.as_str(), None),
            State::Held | State::Closed => ("", None),
        };
        let since = match self.outages.back() {
            Some(outage) if outage.length.is_none() => outage.began,
            Some(_) | None => self.up_since,
        };
        LinkStatus {
            state: self.state(),
            since,
            why: if self.is_ready() {
                String::new()
            } else {
                self.why.clone()
            },
            endpoint,
            next_attempt: until.map(|until| until.since(now.mono)),
            failures: self.failures,
            is_refused: self.is_refused,
            held_by: self.holds.first().map(|(holder, _)| *holder),
            is_about_gateway: self.is_about_gateway,
        }
    }

    /// Takes what happened. What follows from it is asked for by the next calls of [`Link::poll`].
    pub fn handle(&mut self, input: Input, now: Now) {
        if matches!(self.state, State::Closed) {
            return;
        }
        match input {
            Input::Connected => self.connected(now),
            Input::DialFailed(failure, why) => self.dial_failed(failure, why, now),
            Input::Lost(why) => self.lost(why, now),
            Input::Heard => self.heard(now),
            Input::RegisterSuccess {
                request_id,
                membership,
            } => {
                self.register_success(request_id.as_deref(), membership, now);
            }
            Input::RegisterInProgress => self.register_in_progress(now),
            Input::Refusal { request_id, text } => self.refusal(request_id.as_deref(), &text, now),
            Input::Ping { request_id } => {
                self.heard(now);
                self.send(Message::Pong { request_id });
            }
            Input::Unknown {
                message_type,
                request_id,
            } => self.unknown(message_type, request_id, now),
            Input::TokenChanged => self.token_changed(now),
            Input::RegisterAgain => self.register_again(now),
            Input::Hold(holder, why) => self.suspend(holder, why, now),
            Input::Release(holder) => self.release(holder, now),
            Input::AdoptClusterId(cluster_id) => self.adopt_cluster_id(cluster_id),
            Input::Stop => self.stop(),
        }
    }

    /// Returns the next action; call until it is [`Output::Wait`].
    pub fn poll(&mut self, now: Now) -> Output {
        if self.outputs.is_empty() {
            self.time_passed(now);
        }
        if let Some(output) = self.outputs.pop_front() {
            return output;
        }
        let (until, what) = match &self.state {
            State::Waiting { until } => (*until, "the next attempt"),
            State::Refused { until } => (*until, "the next attempt with a refused token"),
            State::Dialing { until, .. } => (*until, "the end of the dial"),
            State::Registering { until, .. } => (*until, "the answer to the registration"),
            State::Ready(ready) => {
                let dead = ready.heard.after(self.settings.dead_after);
                let next = ready.next_ping.min(ready.next_heartbeat).min(dead);
                (
                    self.leaves_at(ready)
                        .map_or(next, |leaves| leaves.min(next)),
                    "the next ping or heartbeat",
                )
            }
            State::Held => (
                now.mono.after(Duration::from_secs(3600)),
                "the end of the hold",
            ),
            State::Closed => (now.mono.after(Duration::from_secs(3600)), "nothing: closed"),
        };
        Output::Wait(until, what)
    }

    fn time_passed(&mut self, now: Now) {
        if self.is_to_leave(now) {
            return self.leave("registers again", now);
        }
        match &mut self.state {
            State::Waiting { until } | State::Refused { until } if now.mono >= *until => {
                self.dial(now)
            }
            State::Dialing { until, .. } if now.mono >= *until => {
                self.push(Output::Close {
                    code: 1001,
                    reason: "dial took too long",
                });
                let why = format!("no connection within {}", in_words(DIAL_DEADLINE));
                self.dial_failed(DialFailure::Network, why, now);
            }
            State::Registering { until, began, .. } if now.mono >= *until => {
                let why = format!(
                    "no answer to the registration for {}",
                    in_words(now.mono.since(*began))
                );
                self.give_up("no answer to register", why, now);
            }
            State::Ready(ready) => {
                let silence = now.mono.since(ready.heard);
                if silence >= self.settings.dead_after {
                    let why = format!("nothing heard for {}", in_words(silence));
                    self.give_up("peer is silent", why, now);
                    return;
                }
                let (is_ping_due, is_beat_due) = (
                    now.mono >= ready.next_ping,
                    now.mono >= ready.next_heartbeat,
                );
                // From now, not from when it was due: after a suspend one ping is enough.
                if is_ping_due {
                    ready.next_ping = now.mono.after(self.settings.ping_every);
                }
                if is_beat_due {
                    ready.next_heartbeat = now.mono.after(self.settings.heartbeat_every);
                }
                let cluster_id = ready.cluster_id.clone();
                if is_ping_due {
                    self.push(Output::Ping);
                }
                if is_beat_due {
                    self.send(Message::Heartbeat { cluster_id });
                }
            }
            State::Waiting { .. }
            | State::Refused { .. }
            | State::Dialing { .. }
            | State::Registering { .. }
            | State::Held
            | State::Closed => {}
        }
    }

    fn dial(&mut self, now: Now) {
        let gateway = self
            .membership
            .as_ref()
            .filter(|known| known.gateway_url.is_some());
        let endpoint = match gateway {
            Some(known) if self.prefers_gateway => Endpoint::Gateway(known.clone()),
            Some(_) | None => Endpoint::Controller,
        };
        self.push(Output::Dial(endpoint.clone()));
        self.transition(
            State::Dialing {
                endpoint,
                until: now.mono.after(DIAL_DEADLINE),
            },
            "",
        );
    }

    fn connected(&mut self, now: Now) {
        let State::Dialing { endpoint, .. } = &self.state else {
            return;
        };
        self.unknown_types.clear();
        match endpoint.clone() {
            Endpoint::Controller => self.register(now, RegistrationKind::Known),
            Endpoint::Gateway(known) => {
                self.ready(Endpoint::Gateway(known.clone()), known.cluster_id, now)
            }
        }
    }

    fn register(&mut self, now: Now, kind: RegistrationKind) {
        if self.is_ready() {
            self.paused_at = now.mono;
        }
        self.registrations = self.registrations.wrapping_add(1);
        // Shaped like the ids of the Go agent, with a counter in place of nanoseconds.
        let number = u64::from(self.registrations % 1_000_000);
        let request_id = format!(
            "req_{}{number:06}_{}",
            now.wall.millis(),
            self.settings.agent_id
        );
        let cluster_id = match kind {
            RegistrationKind::Known => self
                .membership
                .as_ref()
                .map(|known| known.cluster_id.clone()),
            RegistrationKind::Fresh => None,
        };
        let is_fresh = cluster_id.is_none();
        self.send(Message::Register {
            request_id: request_id.clone(),
            cluster_id,
        });
        let until = now.mono.after(REGISTER_WAIT);
        self.transition(
            State::Registering {
                request_id,
                is_fresh,
                sent: self.wanted_registrations,
                began: now.mono,
                until,
            },
            "",
        );
    }

    fn register_success(
        &mut self,
        request_id: Option<&str>,
        membership: Option<Membership>,
        now: Now,
    ) {
        self.heard(now);
        let State::Registering {
            request_id: awaited,
            sent,
            ..
        } = &self.state
        else {
            return;
        };
        if request_id != Some(awaited.as_str()) {
            return;
        }
        let sent = *sent;
        let Some(membership) = membership.filter(|new| !new.cluster_id.is_empty()) else {
            let why = "the answer to the registration names no cluster".to_owned();
            return self.give_up("no cluster_id", why, now);
        };
        if self.membership.as_ref() != Some(&membership) {
            self.push(Output::Persist(membership.clone()));
            self.membership = Some(membership.clone());
        }
        self.sent_registrations = sent;
        self.push(Output::Registered);
        if self.owes_registration() {
            return self.register(now, RegistrationKind::Known);
        }
        if membership.gateway_url.is_some() {
            self.prefers_gateway = true;
            self.gateway_failures = 0;
            self.push(Output::Close {
                code: 1000,
                reason: "",
            });
            self.dial(now);
        } else {
            self.prefers_gateway = false;
            self.ready(Endpoint::Controller, membership.cluster_id, now);
        }
    }

    /// Returns whether the controller is still to hear what changed.
    const fn owes_registration(&self) -> bool {
        self.wanted_registrations != self.sent_registrations
    }

    /// Returns when a gateway is left to tell the controller.
    fn leaves_at(&self, ready: &Ready) -> Option<Mono> {
        let is_gateway = matches!(ready.endpoint, Endpoint::Gateway(_));
        (is_gateway && self.owes_registration()).then(|| ready.since.after(OWED_FOR))
    }

    fn is_to_leave(&self, now: Now) -> bool {
        let State::Ready(ready) = &self.state else {
            return false;
        };
        self.leaves_at(ready)
            .is_some_and(|leaves| now.mono >= leaves)
    }

    fn register_again(&mut self, now: Now) {
        self.wanted_registrations = self.wanted_registrations.wrapping_add(1);
        match &self.state {
            State::Ready(Ready {
                endpoint: Endpoint::Controller,
                ..
            }) => self.register(now, RegistrationKind::Known),
            State::Ready(_)
            | State::Dialing {
                endpoint: Endpoint::Gateway(_),
                ..
            } => self.leave("registers again", now),
            // The next dial goes there, or the one under way does, or the answer that is awaited is
            // followed by another registration.
            State::Waiting { .. }
            | State::Refused { .. }
            | State::Dialing { .. }
            | State::Registering { .. }
            | State::Held
            | State::Closed => self.prefers_gateway = false,
        }
    }

    /// Goes from the gateway to the controller, at once and of our own will: no outage.
    fn leave(&mut self, reason: &'static str, now: Now) {
        self.log("link: leaving the gateway: the controller has to hear what changed".to_owned());
        self.push(Output::Close { code: 1000, reason });
        self.prefers_gateway = false;
        self.paused_at = now.mono;
        self.dial(now);
    }

    fn register_in_progress(&mut self, now: Now) {
        self.heard(now);
        if let State::Registering { began, until, .. } = &mut self.state {
            *until = now
                .mono
                .after(REGISTER_WAIT)
                .min(began.after(REGISTER_WAIT_LONGEST));
        }
    }

    fn refusal(&mut self, request_id: Option<&str>, text: &str, now: Now) {
        self.heard(now);
        let lower = text.to_lowercase();
        // The two phrases of docs/protocol.md, Registration: errors carry no code.
        let is_unknown_cluster =
            lower.contains("not registered") || lower.contains("cluster not found");
        let said = excerpt(text);
        match &self.state {
            State::Registering {
                is_fresh: false, ..
            } if is_unknown_cluster => {
                // The id stays on disk until a success brings another: free text must not be able
                // to erase it.
                self.log(format!("link: the control plane does not know this cluster ({said}); registering afresh"));
                self.register(now, RegistrationKind::Fresh);
            }
            State::Registering {
                request_id: awaited,
                ..
            } if is_unknown_cluster || request_id == Some(awaited.as_str()) => {
                self.give_up(
                    "registration refused",
                    format!("the registration was refused: {said}"),
                    now,
                );
            }
            State::Ready(ready) if is_unknown_cluster => match ready.endpoint {
                Endpoint::Controller if !self.was_just_forgotten(now) => {
                    self.forgotten_at = Some(now.mono);
                    self.register(now, RegistrationKind::Known);
                }
                Endpoint::Controller => {
                    let why = format!("registered, but the control plane says: {said}");
                    self.give_up("register again", why, now);
                }
                Endpoint::Gateway(_) => {
                    self.prefers_gateway = false;
                    self.give_up("register again", format!("the gateway says: {said}"), now);
                }
            },
            State::Waiting { .. }
            | State::Refused { .. }
            | State::Dialing { .. }
            | State::Registering { .. }
            | State::Ready(_)
            | State::Held
            | State::Closed => self.log(format!("link: the control plane says: {said}")),
        }
    }

    /// Returns whether the control plane forgot this cluster a moment ago as well.
    fn was_just_forgotten(&self, now: Now) -> bool {
        self.forgotten_at
            .is_some_and(|at| now.mono.since(at) < STABLE_AFTER)
    }

    fn unknown(&mut self, message_type: String, request_id: Option<String>, now: Now) {
        self.heard(now);
        if self.unknown_types.len() >= UNKNOWN_TYPES_MAX
            || !self.unknown_types.insert(message_type.clone())
        {
            return;
        }
        self.send(Message::Fallback {
            unknown_type: message_type,
            request_id,
        });
    }

    fn heard(&mut self, now: Now) {
        let State::Ready(ready) = &mut self.state else {
            return;
        };
        ready.heard = now.mono;
        if now.mono.since(ready.since) >= STABLE_AFTER {
            self.backoff.reset();
        }
    }

    fn ready(&mut self, endpoint: Endpoint, cluster_id: String, now: Now) {
        let word = endpoint.as_str();
        self.gateway_failures = 0;
        self.failures = 0;
        self.refused.reset();
        self.is_refused = false;
        let length = now.mono.since(self.paused_at);
        if let Some(outage) = self
            .outages
            .back_mut()
            .filter(|outage| outage.length.is_none())
        {
            outage.length = Some(length);
            self.up_since = now.wall;
            self.recoveries += 1;
        }
        let ready = Ready {
            endpoint,
            cluster_id: cluster_id.clone(),
            since: now.mono,
            heard: now.mono,
            next_ping: now.mono.after(self.settings.ping_every),
            next_heartbeat: now.mono.after(self.settings.heartbeat_every),
        };
        self.transition(
            State::Ready(ready),
            &format!("on the {word}, after {}", in_words(length)),
        );
        self.send(Message::Heartbeat { cluster_id });
    }

    fn dial_failed(&mut self, failure: DialFailure, why: String, now: Now) {
        let State::Dialing { endpoint, .. } = &self.state else {
            return;
        };
        let was_gateway = matches!(endpoint, Endpoint::Gateway(_));
        self.failures = self.failures.saturating_add(1);
        self.begin_outage(why, now);
        self.is_about_gateway = was_gateway;
        self.is_refused = failure == DialFailure::Refused && !was_gateway;
        if was_gateway {
            self.gateway_failures = self.gateway_failures.saturating_add(1);
        }
        match failure {
            // The controller may name another gateway; the rules will not change their mind about
            // this one.
            DialFailure::NotAdmitted => {
                self.prefers_gateway = false;
                let wait = self.retry_wait();
                self.wait(wait, now);
            }
            DialFailure::Refused if was_gateway => {
                // The gateway may only have lost sight of us: the controller decides whether the
                // token is good.
                self.prefers_gateway = false;
                let wait = self.retry_wait();
                self.wait(wait, now);
            }
            DialFailure::Refused => {
                let wait = self.refused.next(self.random.u16(..));
                self.wait_refused(wait, now);
            }
            DialFailure::Status(_, retry_after) => {
                self.switch_endpoint(was_gateway);
                let asked = retry_after.unwrap_or_default().min(RETRY_AFTER_MAX);
                let wait = self.retry_wait().max(asked);
                self.wait(wait, now);
            }
            DialFailure::Network => {
                self.switch_endpoint(was_gateway);
                let wait = self.retry_wait();
                self.wait(wait, now);
            }
        }
    }

    /// A gateway that fails again and again may have moved; a controller that fails says nothing
    /// about the gateway.
    fn switch_endpoint(&mut self, was_gateway: bool) {
        if was_gateway && self.gateway_failures >= GATEWAY_FAILURES_MAX {
            self.prefers_gateway = false;
            self.gateway_failures = 0;
        } else if !was_gateway {
            self.prefers_gateway = true;
        }
    }

    fn lost(&mut self, why: String, now: Now) {
        match self.state {
            State::Registering { .. } | State::Ready(_) => {
                self.down(why, now);
                let wait = self.retry_wait();
                self.wait(wait, now);
            }
            State::Waiting { .. }
            | State::Refused { .. }
            | State::Dialing { .. }
            | State::Held
            | State::Closed => {}
        }
    }

    /// Ends the open socket from our side and tries again later.
    fn give_up(&mut self, reason: &'static str, why: String, now: Now) {
        self.push(Output::Close { code: 1001, reason });
        self.lost(why, now);
    }

    /// Notes that the link is down.
    fn down(&mut self, why: String, now: Now) {
        if !self.is_ready() {
            self.failures = self.failures.saturating_add(1);
        }
        self.begin_outage(why, now);
        self.is_about_gateway = false;
        self.is_refused = false;
    }

    /// Notes why the link is down, and since now where it was up: also while it registers again or
    /// goes to another endpoint by itself.
    fn begin_outage(&mut self, why: String, now: Now) {
        self.why = why;
        let is_down = |outage: &Outage| outage.length.is_none();
        if self.outages.back().is_some_and(is_down) {
            return;
        }
        if self.outages.len() >= OUTAGES_MAX {
            self.outages.pop_front();
        }
        self.losses += 1;
        self.paused_at = now.mono;
        self.outages.push_back(Outage {
            began: now.wall,
            length: None,
            why: self.why.clone(),
        });
    }

    fn retry_wait(&mut self) -> Duration {
        self.backoff.next(self.random.u16(..))
    }

    fn wait(&mut self, wait: Duration, now: Now) {
        let why = format!("{}; next attempt in {}", self.why, in_words(wait));
        self.transition(
            State::Waiting {
                until: now.mono.after(wait),
            },
            &why,
        );
    }

    fn wait_refused(&mut self, wait: Duration, now: Now) {
        let why = format!("{}; next attempt in {}", self.why, in_words(wait));
        self.transition(
            State::Refused {
                until: now.mono.after(wait),
            },
            &why,
        );
    }

    fn token_changed(&mut self, now: Now) {
        match &mut self.state {
            State::Refused { until } | State::Waiting { until } => {
                *until = now.mono;
                self.refused.reset();
            }
            // A link that is up was let in with the old token and stays; the new one is used from
            // the next dial on.
            State::Dialing { .. }
            | State::Registering { .. }
            | State::Ready(_)
            | State::Held
            | State::Closed => {}
        }
    }

    fn stop(&mut self) {
        self.end_socket("agent stops");
        self.holds.clear();
        self.transition(State::Closed, "stopped");
    }

    fn end_socket(&mut self, reason: &'static str) {
        match self.state {
            State::Dialing { .. } | State::Registering { .. } | State::Ready(_) => {
                self.push(Output::Close { code: 1000, reason });
            }
            State::Waiting { .. } | State::Refused { .. } | State::Held | State::Closed => {}
        }
    }

    fn send(&mut self, message: Message) {
        match self.state {
            State::Registering { .. } | State::Ready(_) => self.push(Output::Send(message)),
            // The registration is sent while the state is still that of the dial which just ended.
            State::Dialing { .. } if matches!(message, Message::Register { .. }) => {
                self.push(Output::Send(message))
            }
            State::Waiting { .. }
            | State::Refused { .. }
            | State::Dialing { .. }
            | State::Held
            | State::Closed => {}
        }
    }

    fn transition(&mut self, state: State, why: &str) {
        let from = self.state();
        self.state = state;
        let to = self.state();
        if from != to {
            let why = if why.is_empty() {
                String::new()
            } else {
                format!(" ({why})")
            };
            self.log(format!("link: {} -> {}{why}", from.as_str(), to.as_str()));
        }
    }

    fn log(&mut self, line: String) {
        self.push(Output::Log(line));
    }

    fn push(&mut self, output: Output) {
        debug_assert!(
            self.outputs.len() < OUTPUTS_MAX,
            "the owner polls after every input"
        );
        if self.outputs.len() < OUTPUTS_MAX {
            self.outputs.push_back(output);
        }
    }
}

/// Registration with or without the known cluster id.
#[derive(Clone, Copy, Debug)]
enum RegistrationKind {
    Known,
    Fresh,
}

/// Foreign text for a log line: one line, at most 200 characters.
fn excerpt(text: &str) -> String {
    one_line(text, 200)
}

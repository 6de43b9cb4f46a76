//! Inputs, outputs and states of the link.

use std::time::Duration;

use super::Holder;
use crate::core::time::{Mono, Wall};

/// Request to the link from another part of the agent.
#[derive(Debug)]
pub enum LinkCommand {
    /// Keep the link down while the Go agent runs; the text says why.
    Hold(String),
    /// The Go agent is gone.
    Release,
    /// Register again: the content of the registration has changed.
    Register,
    /// Adopt the cluster id under which another agent of this cluster is registered.
    AdoptClusterId(String),
    /// Check the lease gate again.
    CheckLeaseGate,
    /// Close the session and end the task.
    Stop,
}

/// Settings of the link.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Goes into the id of a registration.
    pub agent_id: String,
    /// Between two heartbeats of a ready link.
    pub heartbeat_every: Duration,
    /// Between two WebSocket pings of a ready link.
    pub ping_every: Duration,
    /// Silence after which a peer counts as dead. With 50 s and a ping every 10 s, five pings were
    /// not answered.
    pub dead_after: Duration,
    /// True if the controller is to hear a registration even where a gateway is known: the control
    /// plane lacks what it says.
    pub registers_first: bool,
}

impl Settings {
    /// The intervals of the protocol.
    pub fn new(agent_id: impl Into<String>) -> Self {
        Self {
            agent_id: agent_id.into(),
            heartbeat_every: Duration::from_secs(30),
            ping_every: Duration::from_secs(10),
            dead_after: Duration::from_secs(50),
            registers_first: false,
        }
    }
}

/// Address to connect to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Endpoint {
    /// The API host: registration happens there.
    Controller,
    /// The host that a registration named.
    Gateway(Membership),
}

impl Endpoint {
    pub(super) const fn as_str(&self) -> &'static str {
        match self {
            Self::Controller => "controller",
            Self::Gateway(_) => "gateway",
        }
    }
}

/// Identity of this cluster at the control plane. Worth keeping across restarts.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Membership {
    /// Names the cluster in heartbeats and REST calls.
    pub cluster_id: String,
    /// Names it at the gateway; the same as `cluster_id` unless the control plane said otherwise.
    pub cluster_uuid: String,
    /// The gateway's address; `None` where the controller's socket is all there is.
    pub gateway_url: Option<String>,
}

/// Reasons why a dial failed, as far as it matters here.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DialFailure {
    /// HTTP 401 or 403: the token is not accepted (now).
    Refused,
    /// Any other HTTP status, with its `Retry-After` where it gave one.
    Status(u16, Option<Duration>),
    /// DNS, TCP, proxy, TLS or a broken answer.
    Network,
    /// The rules of this machine do not admit the gateway's address. Nothing was sent.
    NotAdmitted,
}

/// Inputs of the machine.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Input {
    /// The dial that was asked for succeeded: the WebSocket is open.
    Connected,
    /// The dial that was asked for failed; the text says why.
    DialFailed(DialFailure, String),
    /// The open socket ended; the text says why.
    Lost(String),
    /// Anything was received, be it a pong: the peer lives.
    Heard,
    /// `register_success`. Without membership it lacked the cluster id.
    RegisterSuccess {
        /// Request id of the message.
        request_id: Option<String>,
        /// Identity of the cluster in the answer.
        membership: Option<Membership>,
    },
    RegisterInProgress,
    /// `error`.
    Refusal {
        /// Request id of the message.
        request_id: Option<String>,
        /// Free text.
        text: String,
    },
    /// Application-level `ping`.
    Ping {
        /// To be echoed.
        request_id: Option<String>,
    },
    /// A message of an unknown type.
    Unknown {
        /// Type of the message.
        message_type: String,
        /// Request id of the message.
        request_id: Option<String>,
    },
    /// The token is another one now.
    TokenChanged,
    /// Facts of the registration changed.
    RegisterAgain,
    /// No link is wanted for now, because of this.
    Hold(Holder, String),
    /// The reason of [`Input::Hold`] is gone.
    Release(Holder),
    /// Another agent of this cluster says what the control plane calls it.
    AdoptClusterId(String),
    /// The end: say good-bye and stay closed.
    Stop,
}

/// Messages to send.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Message {
    Register {
        /// Awaited in the answer.
        request_id: String,
        /// The id that is being registered again; `None` for a fresh registration.
        cluster_id: Option<String>,
    },
    /// `heartbeat` for this cluster id.
    Heartbeat {
        /// The current cluster id.
        cluster_id: String,
    },
    Pong {
        /// As in the ping.
        request_id: Option<String>,
    },
    /// `protocol_fallback`.
    Fallback {
        /// The type that is not known.
        unknown_type: String,
        /// The id of the message that had it.
        request_id: Option<String>,
    },
}

/// Requests of the machine to its owner.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Output {
    /// Open a WebSocket; answer with [`Input::Connected`] or [`Input::DialFailed`].
    Dial(Endpoint),
    /// Send on the open socket.
    Send(Message),
    /// Send an empty WebSocket ping.
    Ping,
    /// Keep this on disk.
    Persist(Membership),
    /// The control plane has taken what the last registration said.
    Registered,
    /// Close the socket (or stop dialling) and forget it; no [`Input::Lost`] is expected for it.
    Close {
        /// WebSocket close code.
        code: u16,
        /// Short text for the peer's log.
        reason: &'static str,
    },
    /// A line for the log, once for each transition.
    Log(String),
    /// Nothing until then, and what is waited for.
    Wait(Mono, &'static str),
}

/// State of the link, without what belongs to it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum LinkState {
    /// No control plane is configured.
    Off,
    /// The agent has just started: nothing was tried yet.
    #[default]
    Starting,
    /// Nothing is open; the next dial is planned.
    Waiting,
    /// The token was refused; the next dial is planned.
    Refused,
    /// A dial is under way.
    Dialing,
    /// The answer to the registration is awaited.
    Registering,
    /// Requests can be answered.
    Ready,
    /// Another agent of the cluster has the link, or may have it.
    StandingBy,
    /// The agent stops.
    Closed,
}

impl LinkState {
    const ALL: [Self; 9] = [
        Self::Off,
        Self::Starting,
        Self::Waiting,
        Self::Refused,
        Self::Dialing,
        Self::Registering,
        Self::Ready,
        Self::StandingBy,
        Self::Closed,
    ];

    /// Its word in logs, in the local API, in metrics and in tests.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Starting => "starting",
            Self::Waiting => "waiting",
            Self::Refused => "refused",
            Self::Dialing => "dialing",
            Self::Registering => "registering",
            Self::Ready => "ready",
            Self::StandingBy => "standing by",
            Self::Closed => "closed",
        }
    }

    /// The state of this word; `None`: there is none.
    pub fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == word)
    }
}

/// A time without a link.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Outage {
    /// Time when it began.
    pub began: Wall,
    /// Duration; `None` while it lasts.
    pub length: Option<Duration>,
    /// Reason why it began.
    pub why: String,
}

/// State of the link, for people.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LinkStatus {
    pub state: LinkState,
    /// Since when the link is up, or down.
    pub since: Wall,
    /// Reason why it is not up; empty where it is.
    pub why: String,
    /// Endpoint that is connected or dialled: `controller`, `gateway`, or empty.
    pub endpoint: &'static str,
    /// Time to the next attempt.
    pub next_attempt: Option<Duration>,
    /// Dials that failed since the link was last up.
    pub failures: u32,
    /// True if a refused token is the reason.
    pub is_refused: bool,
    /// Holder of the link, if there is one.
    pub held_by: Option<Holder>,
    /// True if `why` tells of a gateway, whose address the control plane chose: it must not hear
    /// what is at that address.
    pub is_about_gateway: bool,
}

//! Interface between the server and the agent. The agent's side of it is in `tasks`.

use std::{io, net::IpAddr, rc::Rc, time::Duration};

use hyper::body::Bytes;
use smol::future::BoxedLocal;

use super::{Peer, Reply, assets::Cache};
use crate::{
    core::{
        authorization::{Role, Transport, View},
        proxy::{query_value, query_values},
    },
    wire::api::{SessionReport, Status},
};

/// An answer that is being made.
pub type Answering = BoxedLocal<Reply>;

/// Provider of the answers. A view is a line in `core::authorization::ROUTES` and an arm of
/// [`Answers::answer`].
pub trait Answers: 'static {
    /// Status of everything.
    fn status(&self) -> Status;

    /// Session of the cookie with this value.
    fn session(&self, cookie: &str) -> Option<Session>;

    /// Session report for the requester.
    fn report(&self, request: &ApiRequest) -> SessionReport;

    /// A connection was rejected before its request.
    fn turned_away(&self, why: Rejection);

    /// The kernel refused to hand a connection over. Returns the time until the next try.
    fn accept_failed(&self, error: &io::Error) -> Duration;

    /// A connection was handed over.
    fn accepted(&self);

    /// Answers a request in good form, of somebody who may. The server gives up the wait for it
    /// after [`super::ANSWER_WITHIN`], or later where it takes a download or tries an app.
    fn answer(self: Rc<Self>, view: View, request: ApiRequest) -> Answering;
}

/// Reasons to reject a connection before its request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Rejection {
    /// All slots were taken, or this one was held by an idle connection that had to give it up.
    Full,
    /// A head, or what comes before it on an encrypted connection, was begun and did not end in
    /// time.
    Slow,
    /// It is no HTTP, or more of it than is read.
    Unreadable,
}

/// Session of a logged-in user.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Session {
    pub role: Role,
    /// Name in the audit.
    pub name: String,
}

/// Request with its requester.
#[derive(Debug)]
pub struct ApiRequest {
    /// Part of the path for `{id}`; empty where there is none.
    pub id: String,
    /// The body; empty for what is only read.
    pub body: Bytes,
    /// Requester.
    pub caller: Caller,
    /// The value of the session's cookie, as it was sent.
    pub cookie: Option<String>,
    /// Without `?`.
    pub(super) query: String,
    /// Cached version and accepted encodings.
    pub(super) cache: Cache,
    /// `Last-Event-ID`, where there is one.
    pub last_event_id: Option<u64>,
}

impl ApiRequest {
    /// The first value of a field in the query. `None` where it is missing, empty or not UTF-8.
    pub fn value(&self, name: &str) -> Option<String> {
        let value = query_value(&self.query, name)?.into_owned();
        String::from_utf8(value)
            .ok()
            .filter(|text| !text.is_empty())
    }

    /// All values of a field, in their order.
    pub fn values(&self, name: &str) -> Vec<String> {
        query_values(&self.query, name)
            .filter_map(|value| String::from_utf8(value.into_owned()).ok())
            .collect()
    }

    /// A number in the query: `fallback` where it is missing, `None` where it is none or not within
    /// the bounds.
    pub fn number(
        &self,
        name: &str,
        fallback: i64,
        bounds: std::ops::RangeInclusive<i64>,
    ) -> Option<i64> {
        match self.value(name) {
            None => Some(fallback),
            Some(text) => text.parse().ok().filter(|number| bounds.contains(number)),
        }
    }
}

/// Requester.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Caller {
    pub role: Role,
    /// Origin.
    pub from: From,
    /// The name of its session, where it has logged in.
    pub session: Option<String>,
}

/// Origin of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum From {
    /// The socket: this process.
    Socket(Peer),
    /// The port: this address, and whether it came encrypted.
    Port {
        /// The address at the other end.
        address: IpAddr,
        /// True if by TLS.
        is_encrypted: bool,
    },
}

impl From {
    /// The way it came.
    pub const fn transport(self) -> Transport {
        match self {
            Self::Socket(_) => Transport::Socket,
            Self::Port { address, .. } if address.is_loopback() => Transport::Port,
            Self::Port { .. } => Transport::Network,
        }
    }

    /// Returns whether it came by TLS.
    pub const fn is_encrypted(self) -> bool {
        matches!(
            self,
            Self::Port {
                is_encrypted: true,
                ..
            }
        )
    }
}

impl Caller {
    /// Returns whether it is root of this machine: more than an operator, by the word of the
    /// kernel.
    pub const fn is_root(&self) -> bool {
        matches!(self.from, From::Socket(Peer { uid: 0, .. }))
    }

    /// The process at the other end of the socket; `None`: it came another way.
    pub const fn peer(&self) -> Option<Peer> {
        match self.from {
            From::Socket(peer) => Some(peer),
            From::Port { .. } => None,
        }
    }

    /// Returns whether it is an operator who has logged in on the page.
    pub fn is_operator_of_page(&self) -> bool {
        matches!(self.from, From::Port { .. }) && self.role == Role::Operator
    }

    /// Description for the audit: `uid 0, pid 4711`, `session 3f2a (operator), from 192.0.2.7`.
    pub fn in_words(&self) -> String {
        match (self.from, &self.session) {
            (From::Socket(peer), _) => format!("uid {}, pid {}", peer.uid, peer.pid),
            (From::Port { address, .. }, Some(name)) => {
                format!("session {name} ({}), from {address}", self.role.as_str())
            }
            (From::Port { address, .. }, None) => format!("somebody from {address}"),
        }
    }
}

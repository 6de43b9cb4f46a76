//! Adapter for local viewers: HTTP on the Unix socket of the command line, and on a port for
//! browsers and Prometheus.
//!
//! It serves what it is given and decides nothing: authorization is in
//! [`core::authorization`](crate::core::authorization).

mod answers;
mod assets;
mod certificate;
mod connection;
mod connections;
mod hub;
mod page;
mod peer;
mod reply;
mod server;
mod site;
mod socket;

/// Name of the certificate that the dashboard makes for itself, with its key, in the agent's
/// folder.
pub const OWN_FILE: &str = "dashboard.pem";

pub use answers::{Answering, Answers, ApiRequest, Caller, From, Rejection, Session};
pub use certificate::{Loaded, Origin, Shown, Time};
pub use connections::CONNECTIONS_MAX;
pub use hub::{Hub, NoTopics, Topic, Topics, Watch};
pub use hyper::{
    StatusCode,
    body::Bytes,
    header::{self, HeaderName},
};
pub use peer::Peer;
pub use reply::{Flow, Reply};
pub use server::Server;
pub use site::{ANSWER_WITHIN, COOKIE, COOKIE_TLS, FLOWS_MAX, Site};

//! One proxied request: what was asked, whether it makes sense, and where it goes. It knows neither frames nor connections.

use std::time::Duration;

use crate::core::time::Wall;

/// Header names as sent, each with its values.
pub type HeaderList = Vec<(String, Vec<String>)>;

/// How a target service is spoken to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Scheme {
    /// In the clear.
    Http,
    /// By TLS.
    Https,
}

/// The time limit that the caller set.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Limit {
    /// None: the default to the head of the response, then idle limits.
    Default,
    /// Until then; may be over already.
    Deadline(Wall),
    /// So long from now.
    Timeout(Duration),
}

/// What is asked for, as it was sent.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Asked {
    /// Empty: GET.
    pub method: String,
    /// Decoded path.
    pub path: String,
    /// Raw query without `?`.
    pub query: String,
    /// Request headers.
    pub headers: HeaderList,
    /// How the service is spoken to.
    pub scheme: Scheme,
    /// Namespace of the service; empty: none.
    pub namespace: String,
    /// Name of the service; empty: none.
    pub service: String,
    /// Port of the service; 0: none.
    pub port: i64,
    /// Whether the caller says that it is a WebSocket.
    pub is_websocket: bool,
    /// Subprotocols; not blank: it is a WebSocket.
    pub protocol: String,
    /// The caller's time limit.
    pub limit: Limit,
}

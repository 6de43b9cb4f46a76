//! The reference control plane of pipeops-agent.
//!
//! It speaks the other end of the wire as the protocol says it, shares no code with the agent,
//! and so is the check of it: every frame that an agent sends is compared with the protocol, and
//! every way in which a control plane may behave can be set while it runs. It also serves each
//! cluster's API to stock kubectl: over streams of yamux where the agent offers them, else in
//! JSON messages. It is a way to try the agent and to test it, not a control
//! plane for production: it keeps one token for all agents and one for all users.
//!
//! Start with [`Plane::start`].

mod agents;
mod api;
mod batch;
mod bell;
mod bridge;
mod check;
mod clock;
mod commands;
mod edge;
mod exchange;
mod framing;
mod handles;
mod header;
mod http;
mod inbound;
mod json;
mod mux;
mod net;
mod options;
mod plane;
mod pool;
mod raw;
mod record;
mod records;
mod relay;
mod request;
mod rest;
mod session;
mod shape;
mod state;
mod stream_table;
mod streams;
mod thread;
mod transport;
mod unpack;
mod wire;
mod world;
mod ws;

pub use exchange::{Failed, Received};
pub use handles::{Body, Response, StreamHandle};
pub use header::StreamHeader;
pub use hyper::body::Bytes;
pub use json::StreamRequest;
pub use options::{
    Acknowledging, Behaviour, BodyForm, Carrier, ClientCertificates, Mode, Options, Overflow,
    Redirect, RegisterReply, RestReply, Services, Spelling, Streams, Upgrade,
};
pub use plane::{Cut, Plane, SessionInfo, Sessions, View};
pub use raw::{BinaryMessages, RawStream};
pub use record::{
    Direction, Frame, Handshake, RestCall, Role, StreamChange, StreamEvent, Violation,
};
pub use records::{Minute, Received as ReceivedRecords, Record, Records, Source};
pub use request::{ProxyRequest, Service};
pub use shape::Head;
pub use state::{Cluster, Failure};
pub use ws::{Last, Opcode};

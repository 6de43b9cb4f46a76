//! Options of a plane, and its behaviour while it runs.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

/// What a plane is started with. None of it changes while it runs.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where to listen with TLS; port 0 means any free one. A later address with port 0 takes
    /// the port of the first (`127.0.0.1:0` and `[::1]:0` then share a port).
    pub listen: Vec<SocketAddr>,
    /// A listener of its own for the gateway's `/ws`, so that the redirect goes elsewhere.
    /// Without it `/ws` is served at [`Options::listen`].
    pub gateway_listen: Option<SocketAddr>,
    /// The same as [`Options::listen`] but without TLS, for tests of plain addresses.
    pub plaintext_listen: Option<SocketAddr>,
    /// Where certificates, tokens and known clusters are kept. Without it they live as long as
    /// the [`Plane`](crate::Plane), restarts included.
    pub state_dir: Option<PathBuf>,
    /// The PipeOps token that agents must show; without it one is kept or generated.
    pub token: Option<String>,
    /// True if clients must show the plane's own client certificate.
    pub client_certificates: ClientCertificates,
    /// How many frames the record keeps.
    pub record_frames_max: usize,
    /// The largest message taken from an agent, in bytes.
    pub message_bytes_max: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            listen: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 0))],
            gateway_listen: None,
            plaintext_listen: None,
            state_dir: None,
            token: None,
            client_certificates: ClientCertificates::Ignored,
            record_frames_max: 20_000,
            // The protocol names no limit; a buffered answer of the agent is at most 32 MiB,
            // a third more in base64.
            message_bytes_max: 64 * 1024 * 1024,
        }
    }
}

/// True if TLS asks clients for a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientCertificates {
    /// No.
    Ignored,
    /// The handshake fails without [`Plane::client_certificate`](crate::Plane::client_certificate).
    Required,
}

/// How the plane behaves; every part may be changed at any time and holds from the next event
/// that it is about.
#[derive(Clone, Debug)]
pub struct Behaviour {
    /// What a handshake at the controller's address gets.
    pub controller: Upgrade,
    /// What a handshake at the gateway's address gets.
    pub gateway: Upgrade,
    /// What `register` gets.
    pub register: RegisterReply,
    /// How long the reply to `register` waits.
    pub register_delay: Duration,
    /// True if `register_in_progress` comes before the reply.
    pub announces_progress: bool,
    /// True if and where `register_success` redirects.
    pub redirect: Redirect,
    /// How JSON is carried to the agent.
    pub carrier: Carrier,
    /// Cuts every message to the agent into fragments of so many bytes.
    pub fragment_bytes: Option<usize>,
    /// True if WebSocket pings get their pong.
    pub answers_pings: bool,
    /// True if a heartbeat gets a `heartbeat_ack`.
    pub acknowledges_heartbeats: bool,
    /// True if requests go over streams where the agent offers them. What was begun goes on in
    /// the form that it was begun in.
    pub streams: Streams,
    /// The payload of the `gateway_hello` that asks for yamux. With one that is set here, it also
    /// follows each gateway handshake of an agent that is not asked for streams.
    pub gateway_hello: Option<Value>,
    /// The streams of records that `edge_hello` offers to take. None: a plane that knows streams of
    /// HTTP and no records.
    pub takes: Vec<&'static str>,
    /// The largest message with records that `edge_hello` asks for.
    pub batch_bytes_max: Option<u64>,
    /// What records get.
    pub acknowledging: Acknowledging,
    /// A session without any frame for so long is closed.
    pub silence_max: Duration,
    /// What the REST endpoints answer.
    pub rest: RestReply,
    /// How proxied requests of HTTP clients are sent to the agent.
    pub mode: Mode,
    /// How bodies of HTTP clients' requests are sent to the agent.
    pub body: BodyForm,
    /// True if `…/services/<name>:<port>/proxy/…` becomes the service triple of `proxy_request`
    /// instead of a path of the Kubernetes API.
    pub services: Services,
    /// How messages about streams are spelled.
    pub spelling: Spelling,
    /// Bytes of one answer that wait in memory for a slow reader. 0 is no spool at all.
    pub spool_bytes_max: usize,
    /// What happens when more would wait.
    pub overflow: Overflow,
    /// What `proxy_request` says about `timeout`, if anything.
    pub timeout_ms: Option<u64>,
    /// How long an HTTP client waits for the head of the answer before it gets 504.
    pub answer_deadline: Duration,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            controller: Upgrade::Accept,
            gateway: Upgrade::Accept,
            register: RegisterReply::Success,
            register_delay: Duration::ZERO,
            announces_progress: false,
            redirect: Redirect::Gateway,
            carrier: Carrier::Text,
            fragment_bytes: None,
            answers_pings: true,
            acknowledges_heartbeats: true,
            streams: Streams::Preferred,
            gateway_hello: None,
            takes: vec!["metrics", "events", "logs", "audit", "outcomes"],
            batch_bytes_max: None,
            acknowledging: Acknowledging::Prompt,
            // Agents ping every 10 s; the existing control plane is said to drop one after 60 s.
            silence_max: Duration::from_secs(45),
            rest: RestReply::default(),
            mode: Mode::Streaming,
            body: BodyForm::Auto,
            services: Services::Triple,
            spelling: Spelling::Short,
            spool_bytes_max: 16 * 1024 * 1024,
            overflow: Overflow::StopReading,
            timeout_ms: None,
            answer_deadline: Duration::from_secs(120),
        }
    }
}

/// What carries requests to an agent that offers the extension.
///
/// What only messages have (an answer in one message, another form of the body than
/// [`BodyForm::Auto`], a `timeout`, further fields) makes a request go as a message in any case,
/// and so do [`Plane::stream`](crate::Plane::stream) and
/// [`Plane::websocket`](crate::Plane::websocket).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Streams {
    /// HTTP on streams.
    Preferred,
    /// JSON messages, as for every other agent.
    Off,
}

/// What records get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acknowledging {
    /// They are kept, and their acknowledgement goes out at once.
    Prompt,
    /// The same, after so long.
    After(Duration),
    /// The same, in two halves, the newer one first.
    Halves,
    /// They are kept, and no acknowledgement goes out.
    Never,
    /// They are kept, and the connection is reset before the acknowledgement.
    CutAfter,
    /// They are lost, with the connection.
    CutBefore,
    /// They are kept, and what goes out is about one record more on each side.
    WrongRange,
    /// They are kept, and what goes out is about records that cannot exist yet.
    Future,
    /// They are kept, and what goes out is about another epoch.
    OtherEpoch,
    /// They are kept, and what goes out is an acknowledgement of nothing that can be understood.
    Garbage,
}

/// What a WebSocket handshake gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upgrade {
    /// 101, or 401 without the right token.
    Accept,
    /// This status, whatever the token.
    Reject(u16),
    /// This status, with `Retry-After` in seconds.
    RejectFor(u16, u32),
    /// No answer at all; the connection stays open.
    Silence,
}

/// What `register` gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegisterReply {
    /// `register_success` with the agent's cluster id.
    Success,
    /// `register_success` with this id, whatever was known.
    Cluster(String),
    /// `register_success` without `cluster_id`.
    NoCluster,
    /// An `error` message.
    Error(String),
    /// `register_success` under another `request_id`.
    WrongRequestId,
    /// `register_success` without `request_id`.
    NoRequestId,
    /// Nothing.
    Silence,
}

/// The `gateway_ws_url` of `register_success`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Redirect {
    /// None: the agent stays on the controller's connection.
    None,
    /// The plane's own gateway.
    Gateway,
    /// This address.
    To(String),
}

/// How JSON travels to the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// In text messages, as gateways do.
    Text,
    /// In binary messages, as the real controller does.
    Binary,
}

/// What the REST endpoints answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RestReply {
    /// This status instead of success.
    pub status: Option<u16>,
    /// After this long.
    pub delay: Duration,
}

/// How an answer is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// `supports_response_streaming: true`: head, chunks, end.
    #[default]
    Streaming,
    /// One message holds everything.
    Buffered,
}

/// How a request's body travels to the agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyForm {
    /// In the request when its length is known and at most 64 KiB, else in chunks.
    #[default]
    Auto,
    /// `body` with `body_encoding: "base64"`.
    Base64,
    /// `body` as plain text (a body that is not UTF-8 is sent as base64).
    Text,
    /// `body` as a JSON object or array (a body that is neither is sent as base64).
    Json,
    /// `proxy_request_chunk` messages with `data`.
    Chunks,
    /// `proxy_request_chunk` messages with the older `chunk`, announced with `streaming`.
    OldChunks,
    /// A binary message that follows the request.
    Frame,
}

/// How service addresses of the Kubernetes API's own proxy are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Services {
    /// As namespace, service name, port and path.
    Triple,
    /// As any other path of the Kubernetes API.
    Path,
}

/// How messages about streams are spelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spelling {
    /// `ws_start`, `ws_data`, `ws_close`, as gateways do.
    Short,
    /// `proxy_websocket_start`, `proxy_websocket_data`, `proxy_websocket_close`.
    Long,
}

/// What happens when an answer is read more slowly than it comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overflow {
    /// The plane stops reading the WebSocket, with everything else on it: all the back-pressure
    /// that the JSON form has.
    StopReading,
    /// The request is cancelled and its reader gets an error.
    Cancel,
}

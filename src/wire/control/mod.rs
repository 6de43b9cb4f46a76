//! Control messages, both ways: one JSON object in one WebSocket message, and two binary layouts.
//!
//! Reading is lenient where the protocol is (a value of the wrong type counts as absent) and strict
//! where memory is at stake: no tree is built, unknown fields are skipped, every stored list and
//! string has a cap. Messages are acted on elsewhere.

mod answers;
mod command;
mod edge;
mod fields;
mod inbound;
mod outbound;
mod proxied;

pub use answers::{
    Encoding, ResponseParts, app_socket_data, backpressure, binary_response_head, header_object,
    kube_socket_data, proxy_error, proxy_response, proxy_response_abort, proxy_response_chunk,
    proxy_response_end, proxy_response_header, socket_close, stream_error, tcp_tunnel_close,
};
pub use command::{CommandAnswer, edge_command_ack};
pub use edge::{About, BATCH_BYTES_MAX, EdgeHello, Messages, Records, edge_gap};
pub use inbound::{GatewayHello, Inbound, RegisterSuccess, Undecodable, decode};
pub use outbound::{
    Features, Heartbeat, Registration, SUPPORTED_TYPES, ServerSpecs, TunnelPorts, edge_hello_ack,
    gateway_hello_ack, heartbeat, pong, protocol_fallback, register,
};
pub use proxied::{
    AnswerForm, ProxyMessage, ProxyRequest, RequestBody, SocketData, SocketStart, binary_body,
};

/// The longest request id or stream id that is kept, in bytes: with it a chunk message stays within
/// one frame of 32 KiB.
pub const ID_BYTES_MAX: usize = 512;
/// The largest request body in one message, decoded, in bytes.
pub const BODY_BYTES_MAX: usize = 8 * 1024 * 1024;

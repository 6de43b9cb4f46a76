//! The proxy against a real server over TLS: every form of body and answer, limits, cancels, and
//! whatever a hostile control plane sends.

mod audit;
mod bench;
mod plain;
mod services;
mod sockets;
mod streams;

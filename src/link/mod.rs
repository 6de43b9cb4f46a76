//! Adapter for the control plane: dial (DNS, TCP, TLS, upgrade under one deadline), session,
//! outlet.

pub mod dial;
mod gateway;
pub mod mux;
pub mod outlet;
pub mod probe;
pub mod session;

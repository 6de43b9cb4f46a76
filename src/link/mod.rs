//! The party control plane: dial (DNS, TCP, TLS, upgrade under one deadline), pump, outlet.

pub mod outlet;

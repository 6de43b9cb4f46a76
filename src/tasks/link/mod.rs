//! Session with the control plane: uplink, lease, registration, delivery of records.

pub mod commands;
pub mod deliver;
pub mod lease;
pub mod registration;
pub mod takeover;
pub mod uplink;

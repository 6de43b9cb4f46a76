//! Telemetry: samples, events and last words, from their source to the archive and to receivers.

pub mod cluster;
pub mod events;
pub mod last_words;
pub mod liveness;
pub mod notify;
pub mod observe;
pub mod publisher;
pub mod remote_write;
pub mod sample;

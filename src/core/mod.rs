//! Decisions: pure functions and small machines. No clock, no I/O, no threads, no randomness of their own.

pub mod access;
pub mod audit;
pub mod backoff;
pub mod cluster;
pub mod door;
pub mod environment;
pub mod event;
pub mod health;
pub mod identity;
pub mod journal;
pub mod lanes;
pub mod lease;
pub mod link;
pub mod namespace;
pub mod outbox;
pub mod policy;
pub mod preflight;
pub mod proxy;
pub mod rates;
pub mod retention;
pub mod secret;
pub mod series;
pub mod sieve;
pub mod time;
pub mod yamux;

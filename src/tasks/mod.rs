//! Introductions: short loops that introduce a machine of `core` to one or more parties.

pub mod access;
pub mod board;
pub mod cluster;
pub mod credential;
pub mod delegate;
pub mod deliver;
pub mod doctor;
pub mod doorman;
pub mod events;
pub mod facts;
pub mod keeper;
pub mod last_words;
pub mod lease;
pub mod live;
pub mod local;
pub mod metrics;
pub mod observe;
pub mod permit;
pub mod proxy;
pub mod remote_write;
pub mod rights;
pub mod sample;
pub mod status;
pub mod takeover;
pub mod uplink;
pub mod views;

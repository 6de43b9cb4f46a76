//! Adapter for Linux: clock, randomness, `/proc` and `/sys`, files, processes, signals, the service
//! manager.

#[cfg(test)]
mod captured;
pub mod clock;
pub mod doctor;
pub mod exec;
pub mod facts;
pub mod folder;
pub mod git;
pub mod manifests;
pub mod network;
pub mod notify;
pub mod random;
pub mod sample;
pub mod signals;
pub mod users;

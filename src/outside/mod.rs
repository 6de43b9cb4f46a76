//! Adapter for all other servers: those that a setting names and that know nothing of this agent.
//! One call after the other, each with a deadline and a cap on its response; redirects are never
//! followed.
//!
//! It decides neither when a call is made nor what it contains.

pub mod download;
pub mod notify;
pub mod post;
pub mod remote_write;
pub mod s3;
pub mod transport;

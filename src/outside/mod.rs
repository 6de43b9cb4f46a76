//! The party of all the rest: servers that a setting names and that know nothing of this agent. One call after the other, each with a
//! deadline and a cap on what is read of its answer; a redirect is never followed.
//!
//! It decides neither when a call is made nor what is in it.

pub mod notify;
pub mod post;
pub mod remote_write;

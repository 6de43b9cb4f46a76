//! The party local viewer: HTTP on the Unix socket that the command line speaks to.
//!
//! It shows what it is given and decides nothing. It listens on no network address.

mod answers;
mod peer;
mod routes;
mod server;

pub use answers::{Answers, Refused};
pub use peer::{Peer, Role};
pub use server::{CONNECTIONS_MAX, Server};

//! The party local viewer: HTTP on the Unix socket that the command line speaks to, and one page on a port of the loopback interface.
//!
//! It shows what it is given and decides nothing. It listens on no address that another machine can reach.

mod answers;
mod connections;
mod peer;
mod port;
mod routes;
mod server;

pub use answers::{Answers, Refused};
pub use connections::CONNECTIONS_MAX;
pub use peer::{Peer, Role};
pub use port::Port;
pub use server::Server;

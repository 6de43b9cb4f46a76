//! The streams of a session, against two foreign implementations of yamux and against frames made by hand.

mod bench;
mod by_hand;
mod crate_peer;
mod go_peer;
mod http;

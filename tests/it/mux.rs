//! The streams of a session, against two foreign implementations of yamux and against frames made
//! by hand.

mod bench;
mod by_hand;
pub(crate) mod crate_peer;
mod go_peer;

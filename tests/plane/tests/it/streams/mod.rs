//! Requests over streams of yamux, with an agent's end that is made of other parts than the
//! agent: the `yamux` crate and hyper.

mod agreement;
mod fake;
mod raw;
mod requests;
mod upgrades;

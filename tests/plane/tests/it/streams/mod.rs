//! Requests over streams of yamux, with an agent's end that is made of other parts than the
//! agent: the `yamux` crate and hyper.

mod agreement;
mod fake;
mod raw;
mod requests;
mod upgrades;

use plane::Plane;

use crate::agent::LIMIT;

/// Waits until every stream that the control plane opened has ended.
fn until_no_stream_is_open(plane: &Plane) {
    let ended = plane.until(LIMIT, |view| {
        let mut sessions = view.sessions.iter();
        sessions.all(|s| s.streams_open == 0).then_some(())
    });
    ended.expect("all streams end");
}

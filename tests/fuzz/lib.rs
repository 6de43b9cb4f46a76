//! The agent's `core` for the fuzz targets: it knows nothing of ours, so it builds by itself, in seconds and without SQLite and TLS.

#[path = "../../src/core/mod.rs"]
pub mod core;

#[path = "../hostile/invariants.rs"]
mod invariants;
#[path = "../hostile/model.rs"]
mod model;

/// Asserts everything that holds of a line of `tests/hostile`: `METHOD PATH?QUERY`, where the method `WS` is a WebSocket.
pub fn request(line: &str) {
    let (method, target) = line.split_once(' ').unwrap_or(("GET", line));
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let is_websocket = method == "WS";
    let method = if is_websocket { "GET" } else { method };
    let _ = invariants::hold(method, path, query, is_websocket);
}

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

/// Asserts what holds of every request at the door: a line is `WAY ROLE METHOD PATH HOST ORIGIN SITE TYPE COOKIE`, with spaces between.
pub fn door(line: &str) {
    use core::door::{self, Fault, Request, Role, Way, Whence};
    let mut words = line.split(' ');
    let mut next = || words.next().unwrap_or_default();
    let way = match next() {
        "socket" => Way::Socket,
        "network" => Way::Network,
        _ => Way::Port,
    };
    let is_encrypted = way == Way::Network;
    let role = match next() {
        "operator" => Role::Operator,
        "viewer" => Role::Viewer,
        "anonymous" => Role::Anonymous,
        _ => Role::Nobody,
    };
    let (method, path, host) = (next(), next(), next());
    let text = |word: &'static str, given: &str| {
        if given == word {
            None
        } else {
            Some(given.to_owned())
        }
    };
    let (origin, site, kind) = (text("-", next()), text("-", next()), text("-", next()));
    let cookie = next();
    let request = Request {
        way,
        is_encrypted,
        also_here: &[],
        method,
        path,
        hosts: &[host],
        origin: origin.as_deref(),
        fetch_site: site.as_deref(),
        content_type: kind.as_deref(),
        has_body: false,
        role,
    };
    match door::judge(&request) {
        Ok((route, id)) => {
            assert!(role >= route.least(way), "{line}");
            assert!(!id.contains('/') && !id.contains(".."), "{line}");
            if way != Way::Socket {
                assert!(door::is_here(host, &[]), "{line}");
                assert!(route.whence == Whence::Anywhere, "{line}");
                assert!(
                    origin.is_none_or(|origin| door::is_same_origin(&origin, host, is_encrypted)),
                    "{line}"
                );
            }
        }
        Err(Fault::Method(allowed)) => {
            assert!(!allowed.split(", ").any(|one| one == method), "{line}")
        }
        Err(_) => {}
    }
    if let Some(value) = door::cookie(cookie, "session") {
        assert!(cookie.contains(value), "{line}");
    }
}

//! Which request gets which answer. Everything that is wrong with a request is found here, before anybody is asked.

use hyper::{Method, StatusCode};
use serde::Serialize;

use super::{
    answers::{Answers, Refused},
    peer::{Peer, Role},
};
use crate::{
    core::{access::Inquiry, policy::Level, proxy::query_value},
    wire::{
        api::{ACCESS_PATH, AccessWish, DECISION_PATH, HEALTH_PATH, Health, Refusal, STATUS_PATH},
        exposition::{self, METRICS_PATH},
    },
};

/// The longest body of a request: a level, with room for what comes.
pub(super) const BODY_BYTES_MAX: usize = 1024;

/// An answer: always whole.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) code: StatusCode,
    pub(super) content_type: &'static str,
    pub(super) body: Vec<u8>,
    /// The methods that would have been right.
    pub(super) allow: Option<&'static str>,
}

/// What of a request decides about its answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<'a> {
    pub(super) method: &'a Method,
    pub(super) path: &'a str,
    /// Without `?`.
    pub(super) query: &'a str,
    pub(super) content_type: Option<&'a str>,
    /// Whether it brings a body.
    pub(super) has_body: bool,
}

/// What is to be done for a request.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum Route {
    Health,
    Status,
    Metrics,
    Access,
    Decision(Inquiry),
    /// Its body says what.
    SetAccess,
}

/// Finds the route of a request, or says what is wrong with it.
pub(super) fn route(asked: Asked<'_>, role: Role) -> Result<Route, Answer> {
    let is_read = matches!(*asked.method, Method::GET | Method::HEAD);
    let route = match asked.path {
        HEALTH_PATH if is_read => Route::Health,
        STATUS_PATH if is_read => Route::Status,
        METRICS_PATH if is_read => Route::Metrics,
        ACCESS_PATH if is_read => Route::Access,
        DECISION_PATH if is_read => Route::Decision(inquiry(asked.query)?),
        ACCESS_PATH if *asked.method == Method::POST => Route::SetAccess,
        ACCESS_PATH => {
            return Err(wrong_method(
                "this is read, and set by POST",
                "GET, HEAD, POST",
            ));
        }
        HEALTH_PATH | STATUS_PATH | METRICS_PATH | DECISION_PATH => {
            return Err(wrong_method("this can only be read", "GET, HEAD"));
        }
        _ => {
            return Err(refusal(
                StatusCode::NOT_FOUND,
                "there is nothing at this path",
                Some("GET /api/v1/status"),
            ));
        }
    };
    match route {
        Route::SetAccess => may_change(asked, role)?,
        Route::Health | Route::Status | Route::Metrics | Route::Access | Route::Decision(_)
            if asked.has_body =>
        {
            return Err(refusal(
                StatusCode::PAYLOAD_TOO_LARGE,
                "this takes no body",
                Some("send the request without one"),
            ));
        }
        Route::Health | Route::Status | Route::Metrics | Route::Access | Route::Decision(_) => {}
    }
    Ok(route)
}

/// Looks at a request that came over the network, where there is one route: [`metrics`].
///
/// `hosts` are the names under which the asker knows this machine. A page of a stranger in a browser here can give this machine a name of
/// its own, and then read what it answers under it (DNS rebinding): no name but those that mean this machine everywhere is answered.
pub(super) fn admit(asked: Asked<'_>, hosts: &[&str]) -> Result<(), Answer> {
    if hosts.is_empty() || !hosts.iter().all(|host| is_here(host)) {
        return Err(refusal(
            StatusCode::MISDIRECTED_REQUEST,
            "this machine is not known under that name here",
            Some("ask for localhost, 127.0.0.1 or [::1]"),
        ));
    }
    if asked.path != METRICS_PATH {
        return Err(refusal(
            StatusCode::NOT_FOUND,
            "there is nothing at this path",
            Some("GET /metrics; everything else is on the socket: pipeops-agent status"),
        ));
    }
    route(asked, Role::Viewer).map(drop)
}

/// Whether a `Host` names this machine: with any port, or none.
fn is_here(host: &str) -> bool {
    let (name, port) = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((name, "")) => (name, Some("0")),
        Some((name, rest)) => (name, rest.strip_prefix(':')),
        None => match host.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (host, Some("0")),
        },
    };
    let is_name = name.eq_ignore_ascii_case("localhost") || matches!(name, "127.0.0.1" | "::1");
    is_name && port.is_some_and(|port| port.parse::<u16>().is_ok())
}

/// What must be true of every request that changes something.
fn may_change(asked: Asked<'_>, role: Role) -> Result<(), Answer> {
    match role {
        Role::Operator => {}
        Role::Viewer => {
            return Err(refusal(
                StatusCode::FORBIDDEN,
                "only root and the agent's own user change something here",
                Some("do it as root, with sudo"),
            ));
        }
    }
    // No page in a browser can send this type elsewhere without being asked for it first.
    let kind = asked
        .content_type
        .map(|kind| kind.split(';').next().unwrap_or_default().trim());
    if kind.is_some_and(|kind| kind.eq_ignore_ascii_case("application/json")) {
        return Ok(());
    }
    Err(refusal(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "the body must be JSON",
        Some("content-type: application/json"),
    ))
}

/// The request that `?method=…&path=…` tells of.
fn inquiry(query: &str) -> Result<Inquiry, Answer> {
    let field = |name| {
        let value = query_value(query, name).map(|value| String::from_utf8(value.into_owned()));
        match value {
            Some(Ok(text)) if !text.is_empty() => Ok(text),
            _ => Err(refusal(
                StatusCode::BAD_REQUEST,
                "the query names no method and no path in UTF-8",
                Some("?method=GET&path=/api/v1/pods, with escapes where a query needs them"),
            )),
        }
    };
    Ok(Inquiry {
        method: field("method")?,
        target: field("path")?,
    })
}

/// Gets the answer to a request in good form. `body` is empty but for those that bring one.
pub(super) async fn answer<A: Answers>(
    route: Route,
    body: &[u8],
    peer: Peer,
    answers: &A,
) -> Answer {
    match route {
        Route::Health => json(StatusCode::OK, &Health::default()),
        Route::Status => json(StatusCode::OK, &answers.status()),
        Route::Metrics => metrics(answers).await,
        Route::Access => json(StatusCode::OK, &answers.access().await),
        Route::Decision(inquiry) => json(StatusCode::OK, &answers.decision(inquiry).await),
        Route::SetAccess => match wanted(body) {
            Err(answer) => answer,
            Ok(level) => match answers.set_access(level, peer).await {
                Ok(change) => json(StatusCode::OK, &change),
                Err(Refused::Forbidden(refusal)) => json(StatusCode::FORBIDDEN, &refusal),
                Err(Refused::Conflict(refusal)) => json(StatusCode::CONFLICT, &refusal),
            },
        },
    }
}

/// The page for a Prometheus.
pub(super) async fn metrics<A: Answers>(answers: &A) -> Answer {
    match answers.metrics().await {
        Some(page) => Answer {
            code: StatusCode::OK,
            content_type: exposition::CONTENT_TYPE,
            body: page.into_bytes(),
            allow: None,
        },
        None => refusal(
            StatusCode::SERVICE_UNAVAILABLE,
            "the machine's counters cannot be read right now",
            Some("pipeops-agent status says why"),
        ),
    }
}

/// The level in a body.
fn wanted(body: &[u8]) -> Result<Level, Answer> {
    let fix = Some(r#"{"level":"read-only"}; the levels are full, managed, read-only and off"#);
    let wish: AccessWish = serde_json::from_slice(body).map_err(|error| {
        let text = format!("the body says no level: {error}");
        refusal(StatusCode::BAD_REQUEST, &text, fix)
    })?;
    Level::from_word(&wish.level)
        .ok_or_else(|| refusal(StatusCode::BAD_REQUEST, "there is no such level", fix))
}

fn wrong_method(text: &str, allow: &'static str) -> Answer {
    Answer {
        allow: Some(allow),
        ..refusal(StatusCode::METHOD_NOT_ALLOWED, text, None)
    }
}

/// An answer that says what is wrong.
pub(super) fn refusal(code: StatusCode, error: &str, fix: Option<&str>) -> Answer {
    let refusal = Refusal {
        error: error.to_owned(),
        fix: fix.map(str::to_owned),
    };
    json(code, &refusal)
}

fn json(code: StatusCode, shape: &impl Serialize) -> Answer {
    // The shapes have text keys and finite numbers only, so this does not fail; were it to, the viewer sees an empty 500.
    let (code, mut body) = match serde_json::to_vec(shape) {
        Ok(body) => (code, body),
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, Vec::new()),
    };
    body.push(b'\n');
    Answer {
        code,
        content_type: "application/json",
        body,
        allow: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: Option<&str> = Some("application/json; charset=utf-8");

    fn asked<'a>(method: &'a Method, target: &'a str) -> Asked<'a> {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        Asked {
            method,
            path,
            query,
            content_type: None,
            has_body: false,
        }
    }

    fn code(asked: Asked<'_>, role: Role) -> u16 {
        match route(asked, role) {
            Ok(_) => 200,
            Err(answer) => {
                assert_eq!(answer.allow.is_some(), answer.code == 405, "{asked:?}");
                let body: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
                assert!(body["error"].is_string(), "{asked:?}");
                answer.code.as_u16()
            }
        }
    }

    #[test]
    fn each_request_gets_its_route_or_what_is_wrong_with_it() {
        for (method, target, has_body, wanted) in [
            (Method::GET, "/api/v1/status", false, 200),
            (Method::HEAD, "/api/v1/status", false, 200),
            (Method::GET, "/healthz", false, 200),
            (Method::GET, "/metrics", false, 200),
            (Method::GET, "/metrics", true, 413),
            (Method::POST, "/metrics", false, 405),
            (Method::GET, "/api/v1/access", false, 200),
            (Method::GET, "/", false, 404),
            (Method::POST, "/nowhere", true, 404),
            (Method::GET, "/api/v1/status/", false, 404),
            (Method::GET, "//api/v1/status", false, 404),
            (Method::GET, "/api/v1/../v1/status", false, 404),
            (Method::GET, "/API/v1/status", false, 404),
            (Method::POST, "/api/v1/access/decision", true, 405),
            (Method::POST, "/api/v1/access/", true, 404),
            (Method::POST, "/api/v1/status", false, 405),
            (Method::PUT, "/api/v1/access", true, 405),
            (Method::DELETE, "/healthz", true, 405),
            (Method::GET, "/api/v1/status", true, 413),
            (Method::GET, "/api/v1/access", true, 413),
            (
                Method::GET,
                "/api/v1/access/decision?method=GET&path=/version",
                false,
                200,
            ),
            (
                Method::GET,
                "/api/v1/access/decision?method=GET&path=",
                false,
                400,
            ),
            (
                Method::GET,
                "/api/v1/access/decision?path=/version",
                false,
                400,
            ),
            (
                Method::GET,
                "/api/v1/access/decision?method=GET&path=%ff",
                false,
                400,
            ),
            (
                Method::GET,
                "/api/v1/access/decision?method=GET&path=%",
                false,
                400,
            ),
        ] {
            let asked = Asked {
                has_body,
                ..asked(&method, target)
            };
            assert_eq!(code(asked, Role::Viewer), wanted, "{method} {target}");
        }
    }

    #[test]
    fn the_port_answers_one_path_and_only_under_names_of_this_machine() {
        let code = |method: Method, target, hosts: &[&str]| {
            let admitted = admit(asked(&method, target), hosts);
            admitted.map_or_else(|answer| answer.code.as_u16(), |()| 200)
        };
        for host in [
            "localhost",
            "LocalHost:7480",
            "127.0.0.1",
            "127.0.0.1:65535",
            "[::1]",
            "[::1]:80",
        ] {
            assert_eq!(code(Method::GET, "/metrics", &[host]), 200, "{host}");
        }
        for host in [
            "",
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example:7480",
            "127.0.0.2",
            "0.0.0.0:7480",
            "[::1]evil.example",
            "[::1",
            "::1",
            "localhost:",
            "localhost:99999",
            "localhost:80:80",
            "user@localhost",
            "2130706433",
        ] {
            assert_eq!(code(Method::GET, "/metrics", &[host]), 421, "{host}");
        }
        assert_eq!(code(Method::GET, "/metrics", &[]), 421);
        let two = ["localhost", "evil.example"];
        assert_eq!(code(Method::GET, "/metrics", &two), 421);
        for (method, target, wanted) in [
            (Method::HEAD, "/metrics?x=1", 200),
            (Method::POST, "/metrics", 405),
            (Method::GET, "/", 404),
            (Method::GET, "/api/v1/status", 404),
            (Method::POST, "/api/v1/access", 404),
            (Method::GET, "/healthz", 404),
            (Method::GET, "/metrics/", 404),
            (Method::GET, "/Metrics", 404),
        ] {
            assert_eq!(code(method, target, &["localhost"]), wanted, "{target}");
        }
    }

    #[test]
    fn only_operators_change_something_and_in_json_only() {
        for (role, content_type, wanted) in [
            (Role::Operator, JSON, 200),
            (Role::Operator, Some("Application/JSON"), 200),
            (Role::Operator, Some("text/plain"), 415),
            (Role::Operator, Some("application/jsonp"), 415),
            (
                Role::Operator,
                Some("application/x-www-form-urlencoded"),
                415,
            ),
            (Role::Operator, None, 415),
            (Role::Viewer, JSON, 403),
        ] {
            let asked = Asked {
                content_type,
                has_body: true,
                ..asked(&Method::POST, ACCESS_PATH)
            };
            assert_eq!(code(asked, role), wanted, "{role:?} {content_type:?}");
        }
    }

    #[test]
    fn a_path_with_a_query_of_its_own_is_asked_about_with_escapes() {
        let target = "/api/v1/access/decision?method=get&path=%2Fapi%2Fv1%2Fpods%3Fwatch%3D1%26x";
        let route = route(asked(&Method::GET, target), Role::Viewer).unwrap();
        let inquiry = Inquiry {
            method: "get".to_owned(),
            target: "/api/v1/pods?watch=1&x".to_owned(),
        };
        assert_eq!(route, Route::Decision(inquiry));
    }

    #[test]
    fn a_body_says_one_level_and_nothing_else() {
        assert_eq!(
            wanted(br#"{"level":"read-only"}"#).unwrap(),
            Level::ReadOnly
        );
        for body in [
            "",
            "{}",
            "\"off\"",
            r#"{"level":"Off"}"#,
            r#"{"level":null}"#,
            r#"{"level":"off","level":"full"}"#,
            r#"{"level":"off","until":"tomorrow"}"#,
            r#"{"level":"off"} "#,
            r#"{"level":"off"}{}"#,
        ] {
            let is_fine = body == "{\"level\":\"off\"} ";
            assert_eq!(wanted(body.as_bytes()).is_ok(), is_fine, "{body}");
        }
    }
}

//! Which request gets which answer.

use hyper::{Method, StatusCode};
use serde::Serialize;

use crate::wire::api::{HEALTH_PATH, Health, Refusal, STATUS_PATH, Status};

/// An answer: always JSON, always whole.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) code: StatusCode,
    pub(super) body: Vec<u8>,
    /// The methods that would have been right.
    pub(super) allow: Option<&'static str>,
}

/// What of a request decides about its answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<'a> {
    pub(super) method: &'a Method,
    pub(super) path: &'a str,
    /// Whether it brings a body, of which no route has a use.
    pub(super) has_body: bool,
}

/// The answer to a request.
pub(super) fn answer(asked: Asked<'_>, status: &dyn Fn() -> Status) -> Answer {
    if !matches!(asked.path, STATUS_PATH | HEALTH_PATH) {
        return refusal(
            StatusCode::NOT_FOUND,
            "there is nothing at this path",
            Some("GET /api/v1/status"),
        );
    }
    if !matches!(*asked.method, Method::GET | Method::HEAD) {
        let refused = refusal(
            StatusCode::METHOD_NOT_ALLOWED,
            "this can only be read",
            None,
        );
        return Answer {
            allow: Some("GET, HEAD"),
            ..refused
        };
    }
    if asked.has_body {
        return refusal(
            StatusCode::PAYLOAD_TOO_LARGE,
            "this takes no body",
            Some("send the request without one"),
        );
    }
    match asked.path {
        STATUS_PATH => json(StatusCode::OK, &status()),
        _ => json(StatusCode::OK, &Health::default()),
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
        body,
        allow: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> Status {
        Status {
            version: "1.2.3".to_owned(),
            ..Status::default()
        }
    }

    #[test]
    fn each_request_gets_its_answer() {
        for (method, path, has_body, code) in [
            (Method::GET, "/api/v1/status", false, 200),
            (Method::HEAD, "/api/v1/status", false, 200),
            (Method::GET, "/healthz", false, 200),
            (Method::GET, "/", false, 404),
            (Method::POST, "/nowhere", true, 404),
            (Method::GET, "/api/v1/status/", false, 404),
            (Method::GET, "//api/v1/status", false, 404),
            (Method::GET, "/api/v1/../v1/status", false, 404),
            (Method::GET, "/API/v1/status", false, 404),
            (Method::POST, "/api/v1/status", false, 405),
            (Method::DELETE, "/healthz", true, 405),
            (Method::GET, "/api/v1/status", true, 413),
        ] {
            let asked = Asked {
                method: &method,
                path,
                has_body,
            };
            let answer = answer(asked, &status);
            assert_eq!(answer.code, code, "{method} {path}");
            assert_eq!(answer.allow.is_some(), code == 405, "{method} {path}");
            let body: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
            assert_eq!(body.get("error").is_some(), code >= 400, "{method} {path}");
        }
    }

    #[test]
    fn the_status_is_what_the_agent_says() {
        let asked = Asked {
            method: &Method::GET,
            path: STATUS_PATH,
            has_body: false,
        };
        let answer = answer(asked, &status);
        assert_eq!(
            serde_json::from_slice::<Status>(&answer.body).unwrap(),
            status()
        );
    }
}

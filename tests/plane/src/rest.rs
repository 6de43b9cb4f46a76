//! Stubs of the REST endpoints that the Go agent calls, recording everything.

use std::rc::Rc;
use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use hyper::body::{Body, Incoming};
use hyper::{Method, Request, Response, StatusCode};
use serde_json::{Value, json};
use smol::Timer;

use crate::bell::within;
use crate::http::{self, Reply};
use crate::record::RestCall;
use crate::world::World;

/// 4 MiB: the largest body that is recorded.
const BODY_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Answers a call, and records it.
pub(crate) async fn answer(world: &Rc<World>, request: Request<Incoming>) -> Response<Reply> {
    let is_authorized = http::is_bearer(request.headers(), &world.state.borrow().token);
    let method = request.method().clone();
    let path = request
        .uri()
        .path_and_query()
        .map(ToString::to_string)
        .unwrap_or_default();
    let body = if request.body().is_end_stream() {
        None
    } else {
        read(request).await
    };
    let reply = world.behaviour(|behaviour| behaviour.rest);
    let (status, answer) = match reply.status {
        Some(status) => (status, json!({ "error": "as the test wants it" })),
        None => endpoint(&method, &path, is_authorized, body.as_ref()),
    };
    world.record.rest_call(RestCall {
        at: world.record.at(),
        method: method.to_string(),
        path,
        is_authorized,
        body,
        status,
    });
    Timer::after(reply.delay).await;
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let body = if answer.is_null() {
        String::new()
    } else {
        answer.to_string()
    };
    http::whole(status, "application/json", body)
}

async fn read(request: Request<Incoming>) -> Option<Value> {
    let body = Limited::new(request.into_body(), BODY_BYTES_MAX).collect();
    let body = within(Duration::from_secs(30), body).await?.ok()?;
    serde_json::from_slice(&body.to_bytes()).ok()
}

fn endpoint(
    method: &Method,
    path: &str,
    is_authorized: bool,
    body: Option<&Value>,
) -> (u16, Value) {
    if let Some(ip) = path.strip_prefix("/api/v1/public/ip-intel/") {
        // Blank fields count as "nothing known", which is the truth about a loopback address.
        let known = json!({"ip": ip, "country_code": "", "region": "", "cloud_provider": ""});
        return (200, json!({ "success": true, "data": known }));
    }
    if !is_authorized {
        return (401, json!({ "error": "a bearer token is needed" }));
    }
    let tunnels = path
        .strip_prefix("/api/v1/clusters/agent/")
        .and_then(|rest| rest.split_once('/'))
        .and_then(|(_, below)| below.strip_prefix("tunnels"));
    match (method, path, tunnels) {
        (
            &Method::POST,
            "/api/v1/gateway/routes/register"
            | "/api/v1/gateway/routes/sync"
            | "/api/v1/gateway/routes/unregister",
            _,
        ) => (200, json!({ "success": true })),
        (&Method::POST, _, Some("")) => (201, registered(body)),
        (&Method::GET, _, Some("")) => (200, json!([])),
        (&Method::POST, _, Some("/sync")) => {
            let tunnels = body.and_then(|body| body.get("tunnels"));
            let accepted = tunnels.cloned().unwrap_or_else(|| json!([]));
            (200, json!({ "accepted": accepted, "rejected": [] }))
        }
        (&Method::DELETE, _, Some(id)) if id.len() > 1 => (204, Value::Null),
        _ => (404, json!({ "error": "no such endpoint" })),
    }
}

/// A tunnel's registration with the public end that the plane gave it.
fn registered(body: Option<&Value>) -> Value {
    let mut answer = body.cloned().unwrap_or_else(|| json!({}));
    if let Some(object) = answer.as_object_mut() {
        object.insert("tunnel_port".to_owned(), 15_432.into());
        object.insert("tunnel_endpoint".to_owned(), "localhost:15432".into());
    }
    answer
}

//! A cluster's API for HTTP clients: stock kubectl, curl, browsers.
//!
//! Requests below `/api/v1/clusters/agent/<cluster id>/proxy` are checked for the plane's own
//! user token and go to the cluster's agent. What the answers mean is not looked at.

use std::rc::Rc;
use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Request, Response, StatusCode};
use serde_json::json;

use crate::bell::within;
use crate::bridge;
use crate::exchange::Failed;
use crate::http::{self, Reply};
use crate::json::{self, INLINE_BYTES_MAX, Live, Source, Upload};
use crate::net::Gate;
use crate::options::{BodyForm, Mode, Services};
use crate::relay;
use crate::request::{ProxyRequest, Service};
use crate::session::Session;
use crate::shape::{Head, percent_decode};
use crate::transport::{self, Transport};
use crate::world::World;

/// 8 MiB: the largest body that is collected before it is sent.
const BODY_BYTES_MAX: usize = 8 * 1024 * 1024;

/// What an HTTP client asked for.
#[derive(Debug)]
pub(crate) struct Asked<'a> {
    /// The cluster.
    pub(crate) cluster: &'a str,
    /// The path below the cluster's, as the client wrote it; may be empty.
    pub(crate) path: String,
    /// The client's connection.
    pub(crate) gate: &'a Gate,
}

/// Answers a request of an HTTP client.
pub(crate) async fn answer(
    world: &Rc<World>,
    gate: &Gate,
    cluster: &str,
    request: Request<Incoming>,
) -> Response<Reply> {
    if !http::is_bearer(request.headers(), &world.state.borrow().user_token) {
        let message = "the bearer token is not that of the control plane's user";
        return status(StatusCode::UNAUTHORIZED, message);
    }
    let prefix = format!("{}{cluster}/proxy", http::CLUSTERS);
    let Some(path) = request.uri().path().strip_prefix(&prefix) else {
        return status(StatusCode::BAD_REQUEST, "the path leaves the cluster");
    };
    let asked = Asked {
        cluster,
        path: path.to_owned(),
        gate,
    };
    let is_for_messages = world.behaviour(|behaviour| {
        behaviour.mode != Mode::Streaming
            || behaviour.body != BodyForm::Auto
            || behaviour.timeout_ms.is_some()
    });
    let transport = if is_for_messages {
        transport::json(world, Some(cluster)).map(Transport::Json)
    } else {
        transport::to(world, Some(cluster)).await
    };
    match transport {
        Ok(Transport::Streams(mux)) => relay::answer(world, &mux, &asked, request).await,
        Ok(Transport::Json(session)) => messages(world, session, &asked, request).await,
        Err(failed) => failure(&failed),
    }
}

/// Answers a request by messages.
async fn messages(
    world: &Rc<World>,
    session: Rc<Session>,
    asked: &Asked<'_>,
    request: Request<Incoming>,
) -> Response<Reply> {
    let mut proxied = ProxyRequest {
        cluster_id: Some(asked.cluster.to_owned()),
        method: request.method().to_string(),
        path: below(&asked.path),
        query: request.uri().query().unwrap_or_default().to_owned(),
        headers: forwarded(request.headers()),
        body_form: world.behaviour(|behaviour| behaviour.body),
        mode: world.behaviour(|behaviour| behaviour.mode),
        timeout_ms: world.behaviour(|behaviour| behaviour.timeout_ms),
        ..ProxyRequest::default()
    };
    if let Some((service, path)) = service(world, &proxied.path) {
        proxied.service = Some(service);
        proxied.path = path;
    } else if let Some(value) = token(world, asked.cluster) {
        proxied.headers.push(("Authorization".to_owned(), value));
    }
    if request.headers().contains_key(header::UPGRADE) {
        return bridge::answer(world, session, proxied, request).await;
    }
    let limit = world.behaviour(|behaviour| behaviour.answer_deadline);
    match within(limit, proxy(world, session, proxied, request)).await {
        Some(response) => response,
        None => failure(&Failed::Late),
    }
}

/// The `Authorization` of requests for a cluster's Kubernetes API, where its agent gave a token.
pub(crate) fn token(world: &World, cluster: &str) -> Option<String> {
    let token = world.cluster(cluster)?.k8s_service_token?;
    Some(format!("Bearer {token}"))
}

async fn proxy(
    world: &Rc<World>,
    session: Rc<Session>,
    mut proxied: ProxyRequest,
    request: Request<Incoming>,
) -> Response<Reply> {
    let live = if request.body().is_end_stream() {
        json::open(world, session, &proxied, Source::Request).await
    } else if comes_in_pieces(&proxied, request.body()) {
        let live = json::open(world, session, &proxied, Source::Upload).await;
        let pump = pump(request.into_body(), live.upload());
        live.pumped(world.tasks.own(pump))
    } else {
        let body = Limited::new(request.into_body(), BODY_BYTES_MAX).collect();
        proxied.body = match body.await {
            Ok(body) => body.to_bytes(),
            Err(error) => {
                let message = format!("cannot read the request's body: {error}");
                return status(StatusCode::PAYLOAD_TOO_LARGE, &message);
            }
        };
        json::open(world, session, &proxied, Source::Request).await
    };
    match live.head().await {
        Ok(head) => response(&head, live, proxied.mode),
        Err(failed) => failure(&failed),
    }
}

fn comes_in_pieces(proxied: &ProxyRequest, body: &Incoming) -> bool {
    match proxied.body_form {
        BodyForm::Chunks | BodyForm::OldChunks => true,
        BodyForm::Auto => {
            let inline_max = u64::try_from(INLINE_BYTES_MAX).unwrap_or(u64::MAX);
            body.size_hint()
                .exact()
                .is_none_or(|exact| exact > inline_max)
        }
        BodyForm::Base64 | BodyForm::Text | BodyForm::Json | BodyForm::Frame => false,
    }
}

/// Sends a client's body piece by piece. A body that breaks off is never ended: the request is
/// cancelled when its client is gone.
async fn pump(mut body: Incoming, upload: Upload) {
    while let Some(frame) = body.frame().await {
        match frame.map(hyper::body::Frame::into_data) {
            Ok(Ok(data)) => upload.send(&data).await,
            Ok(Err(_trailers)) => {}
            Err(error) => {
                log::debug!("a client's body broke off: {error}");
                return;
            }
        }
    }
    upload.end();
}

/// The decoded path of a message, always absolute.
fn below(path: &str) -> String {
    let path = percent_decode(path);
    if path.is_empty() {
        "/".to_owned()
    } else {
        path
    }
}

/// Headers of one connection, which go no further (RFC 9110, 7.6.1).
pub(crate) const HOP_BY_HOP: [&str; 10] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "trailers",
    "transfer-encoding",
    "upgrade",
];

/// What of a client's headers goes to the cluster. Not `Authorization`, which is for the plane,
/// and not `Host`, which is the plane's and would be looked up among the cluster's ingresses.
fn forwarded(headers: &HeaderMap) -> Vec<(String, String)> {
    headers
        .iter()
        .filter(|(name, _)| {
            let name = name.as_str();
            !HOP_BY_HOP.contains(&name)
                && !matches!(name, "authorization" | "host" | "content-length")
                && !http::has_word(headers, header::CONNECTION, name)
                && (name == "sec-websocket-protocol" || !name.starts_with("sec-websocket-"))
        })
        .map(|(name, value)| {
            let value = String::from_utf8_lossy(value.as_bytes());
            (name.as_str().to_owned(), value.into_owned())
        })
        .collect()
}

/// The service that a path of the Kubernetes API's own proxy names, where such are asked
/// themselves, and the path there.
pub(crate) fn service(world: &World, path: &str) -> Option<(Service, String)> {
    match world.behaviour(|behaviour| behaviour.services) {
        Services::Triple => named_service(path),
        Services::Path => None,
    }
}

/// Reads `/api/v1/namespaces/<ns>/services/[http:|https:]<name>:<port>/proxy[/<path>]`. A port
/// that is no number stays with the Kubernetes API, which knows the names.
fn named_service(path: &str) -> Option<(Service, String)> {
    let rest = path.strip_prefix("/api/v1/namespaces/")?;
    let (namespace, rest) = rest.split_once("/services/")?;
    let (target, below) = rest.split_once('/')?;
    let path = match below.strip_prefix("proxy")? {
        "" => "/",
        below if below.starts_with('/') => below,
        _ => return None,
    };
    let (scheme, target) = match target.split_once(':')? {
        (scheme @ ("http" | "https"), rest) if rest.contains(':') => (Some(scheme), rest),
        _ => (None, target),
    };
    let (name, port) = target.split_once(':')?;
    // Anything but names is the Kubernetes API's to refuse.
    let is_name = |text: &str| {
        text.bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'))
    };
    if !is_name(namespace) || !is_name(name) {
        return None;
    }
    let service = Service {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        port: port.parse().ok()?,
        scheme: scheme.map(str::to_owned),
    };
    Some((service, path.to_owned()))
}

/// The agent's answer for the client.
fn response(head: &Head, live: Live, mode: Mode) -> Response<Reply> {
    let status_code = StatusCode::from_u16(head.status)
        .ok()
        .filter(|status| !status.is_informational());
    let Some(status_code) = status_code else {
        let message = format!("the agent answered with status {}", head.status);
        return status(StatusCode::BAD_GATEWAY, &message);
    };
    let mut response = Response::new(Reply::Json(live));
    *response.status_mut() = status_code;
    for (name, values) in &head.headers {
        let Ok(name) = HeaderName::from_bytes(name.as_bytes()) else {
            continue;
        };
        // A buffered body may have been unpacked: its length is then another one.
        let is_length = name == header::CONTENT_LENGTH && mode == Mode::Buffered;
        if HOP_BY_HOP.contains(&name.as_str()) || is_length {
            continue;
        }
        for value in values {
            if let Ok(value) = HeaderValue::from_str(value) {
                response.headers_mut().append(&name, value);
            }
        }
    }
    response
}

/// A failure as the Kubernetes API reports one.
pub(crate) fn failure(failed: &Failed) -> Response<Reply> {
    let code = match failed {
        Failed::NotConnected | Failed::Stopped => StatusCode::SERVICE_UNAVAILABLE,
        Failed::Late => StatusCode::GATEWAY_TIMEOUT,
        Failed::Error(text) | Failed::Aborted(text) if text.contains("deadline") => {
            StatusCode::GATEWAY_TIMEOUT
        }
        Failed::Error(_)
        | Failed::Aborted(_)
        | Failed::Lost(_)
        | Failed::Overflow
        | Failed::Reset
        | Failed::NoStreams
        | Failed::Unreadable(_) => StatusCode::BAD_GATEWAY,
    };
    status(code, &failed.to_string())
}

/// A Kubernetes `Status` object, which kubectl prints.
pub(crate) fn status(code: StatusCode, message: &str) -> Response<Reply> {
    http::whole(code, "application/json", status_text(code, message))
}

/// The text of a `Status` object.
pub(crate) fn status_text(code: StatusCode, message: &str) -> Bytes {
    let reason = match code {
        StatusCode::UNAUTHORIZED => "Unauthorized",
        StatusCode::SERVICE_UNAVAILABLE => "ServiceUnavailable",
        StatusCode::GATEWAY_TIMEOUT => "Timeout",
        _ => "InternalError",
    };
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code.as_u16(),
    })
    .to_string()
    .into()
}

/// 30 s: how long a client's upgrade may take on its own connection.
pub(crate) const UPGRADE_DEADLINE: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_addresses_become_triples() {
        let read = |path| {
            named_service(path).map(|(s, path)| (s.namespace, s.name, s.port, s.scheme, path))
        };
        assert_eq!(
            read("/api/v1/namespaces/shop/services/web:80/proxy/a/b"),
            Some(("shop".into(), "web".into(), 80, None, "/a/b".into()))
        );
        assert_eq!(
            read("/api/v1/namespaces/shop/services/https:web:443/proxy"),
            Some((
                "shop".into(),
                "web".into(),
                443,
                Some("https".into()),
                "/".into()
            ))
        );
        for other in [
            "/api/v1/namespaces/shop/services/web",
            "/api/v1/namespaces/shop/services/web:http/proxy/",
            "/api/v1/namespaces/shop/services/web:80/proxyx",
            "/api/v1/namespaces/shop/services/web/proxy/",
            "/api/v1/namespaces/shop/pods/web:80/proxy/",
            "/api/v1/namespaces/shop/pods/x/services/web:80/proxy/",
            "/api/v1/namespaces/sh%6fp/services/web:80/proxy/",
        ] {
            assert_eq!(read(other), None, "{other}");
        }
    }
}

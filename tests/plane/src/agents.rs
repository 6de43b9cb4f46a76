//! The two endpoints that agents dial: the controller's and the gateway's.

use std::collections::BTreeMap;
use std::rc::Rc;

use hyper::body::Incoming;
use hyper::header::{self, HeaderValue};
use hyper::{Request, Response, StatusCode};

use crate::check;
use crate::edge;
use crate::http::{self, Peer, Reply};
use crate::options::Upgrade;
use crate::record::{Handshake, Role};
use crate::session::{self, Session};
use crate::shape::percent_decode;
use crate::world::World;

/// `GET /api/v1/clusters/agent/ws`
pub(crate) async fn controller(
    world: &Rc<World>,
    peer: &Peer,
    request: Request<Incoming>,
) -> Response<Reply> {
    let wanted = world.behaviour(|behaviour| behaviour.controller);
    handshake(world, peer, request, (Role::Controller, wanted)).await
}

/// `GET /ws`
pub(crate) async fn gateway(
    world: &Rc<World>,
    peer: &Peer,
    request: Request<Incoming>,
) -> Response<Reply> {
    let wanted = world.behaviour(|behaviour| behaviour.gateway);
    handshake(world, peer, request, (Role::Gateway, wanted)).await
}

async fn handshake(
    world: &Rc<World>,
    peer: &Peer,
    mut request: Request<Incoming>,
    (role, wanted): (Role, Upgrade),
) -> Response<Reply> {
    let query = decoded(request.uri().query().unwrap_or_default());
    let is_authorized = http::is_bearer(request.headers(), &world.state.borrow().token);
    let key = http::websocket_key(request.headers()).cloned();
    let cluster = (role == Role::Gateway)
        .then(|| query.get("cluster_uuid").cloned())
        .flatten();
    let offers = |name: &str| query.get(name).is_some_and(|value| value == "true");
    let is_edge = role == Role::Gateway && offers("supports_edge") && offers("supports_yamux");
    let (status, retry_after_s) = match wanted {
        Upgrade::Silence => (0, None),
        Upgrade::Reject(status) => (status, None),
        Upgrade::RejectFor(status, seconds) => (status, Some(seconds)),
        Upgrade::Accept if key.is_none() => (400, None),
        Upgrade::Accept if !is_authorized => (401, None),
        Upgrade::Accept => match (role, &cluster) {
            (Role::Gateway, None) => (403, None),
            // A gateway knows the clusters: an unknown one must register at the controller.
            (Role::Gateway, Some(id)) if world.cluster(id).is_none() => (403, None),
            _ => (101, None),
        },
    };
    note(world, role, &request, (query, is_authorized, status));
    log::info!("handshake at the {role:?}: {status}");
    match (status, key) {
        (0, _) => session::never().await,
        (101, Some(key)) => {
            let on = hyper::upgrade::on(&mut request);
            let session = Session::new(
                world.number(),
                role,
                peer.security,
                peer.gate.clone(),
                cluster,
            );
            if is_edge {
                session.edge.offer();
            }
            upgrade(world, session, on);
            http::switching(&key, None)
        }
        _ => refusal(status, retry_after_s),
    }
}

fn refusal(status: u16, retry_after_s: Option<u32>) -> Response<Reply> {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = http::text(status, "no WebSocket for this request\n");
    if let Some(seconds) = retry_after_s {
        let headers = response.headers_mut();
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

fn note(
    world: &World,
    role: Role,
    request: &Request<Incoming>,
    (query, is_authorized, status): (BTreeMap<String, String>, bool, u16),
) {
    let headers = request
        .headers()
        .iter()
        .filter(|(name, _)| *name != header::AUTHORIZATION)
        .map(|(name, value)| {
            let value = String::from_utf8_lossy(value.as_bytes());
            (name.as_str().to_owned(), value.into_owned())
        })
        .collect();
    if role == Role::Gateway {
        for wrong in check::gateway_query(&query) {
            world.record.violation(0, wrong);
        }
    }
    if !request.headers().contains_key(header::AUTHORIZATION) {
        world
            .record
            .violation(0, "a handshake without Authorization");
    }
    world.record.handshake(Handshake {
        at: world.record.at(),
        role,
        query,
        headers,
        is_authorized,
        status,
    });
}

fn upgrade(world: &Rc<World>, session: Rc<Session>, on: hyper::upgrade::OnUpgrade) {
    let running = Rc::clone(world);
    world.tasks.spawn(async move {
        let role = session.role;
        match http::upgraded(on).await {
            Ok((conn, read_before)) => {
                log::info!("session {} ({role:?}): open", session.number);
                if role == Role::Gateway {
                    greet(&running, &session);
                }
                session::run(&running, &session, conn, &read_before).await;
            }
            Err(error) => log::warn!("session {}: no upgrade: {error}", session.number),
        }
    });
}

/// What a gateway says first.
fn greet(world: &Rc<World>, session: &Rc<Session>) {
    edge::begin(world, session);
    let hello = world.behaviour(|behaviour| behaviour.gateway_hello.clone());
    // With the extension it comes once that is agreed on.
    if let Some(hello) = hello.filter(|_| !session.edge.is_asked()) {
        edge::gateway_hello(world, session, hello);
    }
}

/// The decoded pairs of a query; the last of a name stays.
fn decoded(query: &str) -> BTreeMap<String, String> {
    query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let plain = |text: &str| percent_decode(&text.replace('+', " "));
            (plain(name), plain(value))
        })
        .collect()
}

//! The listeners, and which part of the plane a request is for.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_tungstenite::tungstenite::handshake::derive_accept_key;
use futures_rustls::TlsAcceptor;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use smol::Timer;
use smol::net::{TcpListener, TcpStream};
use smol::stream::StreamExt;
use smol_hyper::rt::{FuturesIo, SmolTimer};

use crate::agents;
use crate::api;
use crate::bell::within;
use crate::json::Live;
use crate::net::{Conn, Gate, Gated};
use crate::rest;
use crate::streams::{self, BUFFER_BYTES_MAX};
use crate::world::{Security, World};

/// Which endpoints a listener has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoints {
    All,
    Gateway,
}

/// One listener.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) socket: TcpListener,
    pub(crate) security: Security,
    pub(crate) endpoints: Endpoints,
}

/// What a request's connection is.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) gate: Gate,
    pub(crate) security: Security,
    endpoints: Endpoints,
}

/// Accepts connections for ever.
pub(crate) async fn accept(world: Rc<World>, listener: Listener, tls: Arc<rustls::ServerConfig>) {
    let acceptor = TlsAcceptor::from(tls);
    let mut incoming = listener.socket.incoming();
    while let Some(accepted) = incoming.next().await {
        let socket = match accepted {
            Ok(socket) => socket,
            Err(error) => {
                log::warn!("cannot accept: {error}");
                // Out of file descriptors: the next try must not spin.
                Timer::after(Duration::from_millis(50)).await;
                continue;
            }
        };
        let gate = Gate::default();
        let number = world.number();
        world.gates.borrow_mut().insert(number, gate.clone());
        let peer = Peer {
            gate,
            security: listener.security,
            endpoints: listener.endpoints,
        };
        let (serving, acceptor) = (Rc::clone(&world), acceptor.clone());
        world.tasks.spawn(async move {
            if let Err(error) = serve(&serving, socket, peer, &acceptor).await {
                log::debug!("connection {number}: {error}");
            }
            serving.gates.borrow_mut().remove(&number);
        });
    }
}

async fn serve(
    world: &Rc<World>,
    socket: TcpStream,
    peer: Peer,
    acceptor: &TlsAcceptor,
) -> Result<(), Box<dyn std::error::Error>> {
    socket.set_nodelay(true)?;
    let gated = Gated::new(socket, peer.gate.clone());
    let conn = match peer.security {
        Security::Plaintext => Conn::Plain(gated),
        Security::Tls => {
            let handshake = within(Duration::from_secs(10), acceptor.accept(gated)).await;
            let tls = handshake.ok_or("the TLS handshake took too long")??;
            Conn::Tls(Box::new(tls))
        }
    };
    let service = service_fn(|request| {
        let (world, peer) = (Rc::clone(world), peer.clone());
        async move { Ok::<_, Infallible>(route(&world, &peer, request).await) }
    });
    http1::Builder::new()
        .timer(SmolTimer::new())
        .max_buf_size(BUFFER_BYTES_MAX)
        .header_read_timeout(Duration::from_secs(90))
        .serve_connection(FuturesIo::new(conn), service)
        .with_upgrades()
        .await?;
    Ok(())
}

/// What follows `/api/v1/clusters/agent/` belongs to one cluster.
pub(crate) const CLUSTERS: &str = "/api/v1/clusters/agent/";

async fn route(world: &Rc<World>, peer: &Peer, request: Request<Incoming>) -> Response<Reply> {
    let path = request.uri().path();
    if path == "/ws" {
        return agents::gateway(world, peer, request).await;
    }
    if peer.endpoints == Endpoints::Gateway {
        return text(StatusCode::NOT_FOUND, "only /ws is served here\n");
    }
    let Some(rest) = path.strip_prefix(CLUSTERS) else {
        return rest::answer(world, request).await;
    };
    if rest == "ws" {
        return agents::controller(world, peer, request).await;
    }
    match rest.split_once('/') {
        Some((cluster, below)) if below == "proxy" || below.starts_with("proxy/") => {
            let cluster = cluster.to_owned();
            api::answer(world, &peer.gate, &cluster, request).await
        }
        _ => rest::answer(world, request).await,
    }
}

/// The body of an answer.
#[derive(Debug)]
pub(crate) enum Reply {
    Whole(Option<Bytes>),
    /// From messages.
    Json(Live),
    /// From a stream.
    Stream(Box<streams::Answer>),
}

impl Body for Reply {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match self.get_mut() {
            Self::Whole(data) => Poll::Ready(data.take().map(|data| Ok(Frame::data(data)))),
            Self::Json(live) => live
                .poll_data(context)
                .map(|next| next.map(|data| data.map(Frame::data).map_err(io::Error::other))),
            Self::Stream(answer) => answer
                .poll_part(context)
                .map(|next| next.map(|part| part.map_err(io::Error::other))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(data) => data.is_none(),
            Self::Json(_) => false,
            Self::Stream(answer) => answer.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(data) => {
                let bytes = data.as_ref().map_or(0, Bytes::len);
                SizeHint::with_exact(u64::try_from(bytes).unwrap_or(u64::MAX))
            }
            Self::Json(_) => SizeHint::new(),
            Self::Stream(answer) => answer.size_hint(),
        }
    }
}

/// An answer with a whole body.
pub(crate) fn whole(
    status: StatusCode,
    kind: &'static str,
    body: impl Into<Bytes>,
) -> Response<Reply> {
    let body = body.into();
    let mut response = Response::new(Reply::Whole((!body.is_empty()).then_some(body)));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// An answer in plain text.
pub(crate) fn text(status: StatusCode, body: &'static str) -> Response<Reply> {
    whole(status, "text/plain; charset=utf-8", body)
}

/// Returns whether the request carries this bearer token.
pub(crate) fn is_bearer(headers: &HeaderMap, token: &str) -> bool {
    headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split_once(' '))
        .is_some_and(|(scheme, shown)| {
            scheme.eq_ignore_ascii_case("bearer") && shown.trim() == token
        })
}

/// Returns whether a header is a list that has this word.
pub(crate) fn has_word(headers: &HeaderMap, name: header::HeaderName, word: &str) -> bool {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|part| part.trim().eq_ignore_ascii_case(word))
}

/// Returns whether this is a WebSocket handshake that can be answered, and its key.
pub(crate) fn websocket_key(headers: &HeaderMap) -> Option<&HeaderValue> {
    let is_handshake = has_word(headers, header::UPGRADE, "websocket")
        && has_word(headers, header::CONNECTION, "upgrade")
        && headers
            .get(header::SEC_WEBSOCKET_VERSION)
            .is_some_and(|version| version == "13");
    headers
        .get(header::SEC_WEBSOCKET_KEY)
        .filter(|_| is_handshake)
}

/// 101 for a handshake with this key.
pub(crate) fn switching(key: &HeaderValue, protocol: Option<&str>) -> Response<Reply> {
    let mut response = Response::new(Reply::Whole(None));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    let accept = derive_accept_key(key.as_bytes());
    if let Ok(accept) = HeaderValue::from_str(&accept) {
        headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    }
    if let Some(Ok(protocol)) = protocol.map(HeaderValue::from_str) {
        headers.insert(header::SEC_WEBSOCKET_PROTOCOL, protocol);
    }
    response
}

/// The connection behind an upgraded request, and what was already read from it.
pub(crate) async fn upgraded(on: hyper::upgrade::OnUpgrade) -> Result<(Conn, Bytes), String> {
    let upgraded = on.await.map_err(|error| error.to_string())?;
    let parts = upgraded
        .downcast::<FuturesIo<Conn>>()
        .map_err(|_other| "the connection is of another kind".to_owned())?;
    Ok((parts.io.into_inner(), parts.read_buf))
}

//! Choice of the transport of a request: HTTP on a stream where the agent agreed to that, else
//! messages of JSON.

use std::rc::Rc;
use std::task::{Context, Poll};

use hyper::body::Bytes;

use crate::exchange::Failed;
use crate::json::{self, Live, Source};
use crate::mux::Mux;
use crate::options::Streams;
use crate::request::ProxyRequest;
use crate::session::Session;
use crate::shape::Head;
use crate::streams;
use crate::world::World;

/// A way to an agent.
#[derive(Debug)]
pub(crate) enum Transport {
    /// Messages on its WebSocket.
    Json(Rc<Session>),
    /// Streams of yamux.
    Streams(Rc<Mux>),
}

/// The preferred way to a cluster's agent (any, without an id), if one is connected. Waits while
/// the two still agree on it.
pub(crate) async fn to(world: &World, cluster_id: Option<&str>) -> Result<Transport, Failed> {
    let session = json(world, cluster_id)?;
    if world.behaviour(|behaviour| behaviour.streams) == Streams::Off {
        return Ok(Transport::Json(session));
    }
    session.edge.settled().await;
    match session.edge.streams() {
        Some(mux) => Ok(Transport::Streams(mux)),
        None if session.carries(cluster_id) => Ok(Transport::Json(session)),
        None => Err(Failed::NotConnected),
    }
}

/// The way by messages.
pub(crate) fn json(world: &World, cluster_id: Option<&str>) -> Result<Rc<Session>, Failed> {
    world.session(cluster_id).ok_or(Failed::NotConnected)
}

/// The session of yamux, whether requests go over it or not.
pub(crate) async fn mux(world: &World, cluster_id: Option<&str>) -> Result<Rc<Mux>, Failed> {
    let session = json(world, cluster_id)?;
    session.edge.settled().await;
    session.edge.mux().ok_or(Failed::NoStreams)
}

/// Sends a request whose body is in it, and waits for the head of its answer.
pub(crate) async fn request(
    world: &Rc<World>,
    request: &ProxyRequest,
) -> Result<(Head, Answer), Failed> {
    let cluster_id = request.cluster_id.as_deref();
    let transport = if request.is_for_messages() {
        Transport::Json(json(world, cluster_id)?)
    } else {
        to(world, cluster_id).await?
    };
    match transport {
        Transport::Json(session) => {
            let live = json::open(world, session, request, Source::Request).await;
            let head = live.head().await?;
            Ok((head, Answer::Json(live)))
        }
        Transport::Streams(mux) => {
            let (target, request) = request.http().map_err(Failed::Unreadable)?;
            let (response, lane) = streams::send(world, &mux, &target, request).await?;
            let (head, body) = response.into_parts();
            let answer = streams::Answer::new(world, &mux, body, lane);
            Ok((Head::from(&head), Answer::Stream(answer)))
        }
    }
}

/// The body of an answer under way; dropping it cancels the request.
#[derive(Debug)]
pub(crate) enum Answer {
    Json(Live),
    Stream(streams::Answer),
}

impl Answer {
    /// The next piece of the body; `None` at its end.
    pub(crate) fn poll_data(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Failed>>> {
        let answer = match self {
            Self::Json(live) => return live.poll_data(context),
            Self::Stream(answer) => answer,
        };
        loop {
            let Poll::Ready(part) = answer.poll_part(context) else {
                return Poll::Pending;
            };
            match part.map(|part| part.map(hyper::body::Frame::into_data)) {
                Some(Ok(Err(_trailers))) => {}
                Some(Ok(Ok(data))) => return Poll::Ready(Some(Ok(data))),
                Some(Err(failed)) => return Poll::Ready(Some(Err(failed))),
                None => return Poll::Ready(None),
            }
        }
    }
}

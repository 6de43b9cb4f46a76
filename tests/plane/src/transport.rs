//! What carries a request to an agent. There is one way, and room for a second beside it.

use std::rc::Rc;
use std::task::{Context, Poll};

use hyper::body::Bytes;

use crate::exchange::{Failed, Received};
use crate::json::{self, Live, LiveStream, Source, StreamRequest, Upload};
use crate::request::ProxyRequest;
use crate::session::Session;
use crate::shape::Head;
use crate::world::World;

/// A way to an agent.
#[derive(Debug)]
pub(crate) enum Transport {
    /// Messages on its WebSocket.
    Json(Rc<Session>),
}

/// The way to a cluster's agent (any, without an id), if one is connected.
pub(crate) fn to(world: &World, cluster_id: Option<&str>) -> Result<Transport, Failed> {
    world
        .session(cluster_id)
        .map(Transport::Json)
        .ok_or(Failed::NotConnected)
}

impl Transport {
    /// Sends a request whose body is in it.
    pub(crate) async fn request(self, world: &Rc<World>, request: &ProxyRequest) -> Answer {
        match self {
            Self::Json(session) => {
                Answer::Json(json::open(world, session, request, Source::Request).await)
            }
        }
    }

    /// Sends a request whose body comes in pieces, by the future that `pump` makes.
    pub(crate) async fn upload<F>(
        self,
        world: &Rc<World>,
        request: &ProxyRequest,
        pump: impl FnOnce(Upload) -> F,
    ) -> Answer
    where
        F: Future<Output = ()> + 'static,
    {
        match self {
            Self::Json(session) => {
                let live = json::open(world, session, request, Source::Upload).await;
                let pump = world.tasks.own(pump(live.upload()));
                Answer::Json(live.pumped(pump))
            }
        }
    }

    /// Starts a Kubernetes stream.
    pub(crate) async fn start(self, world: &Rc<World>, request: &StreamRequest) -> Duplex {
        match self {
            Self::Json(session) => Duplex::Json(json::start(world, session, request).await),
        }
    }

    /// Opens an application's WebSocket.
    pub(crate) async fn websocket(
        self,
        world: &Rc<World>,
        request: &ProxyRequest,
    ) -> Result<(Head, Duplex), (Option<Head>, Failed)> {
        match self {
            Self::Json(session) => json::websocket(world, session, request)
                .await
                .map(|(head, stream)| (head, Duplex::Json(stream))),
        }
    }
}

/// An answer under way; dropping it cancels the request.
#[derive(Debug)]
pub(crate) enum Answer {
    Json(Live),
}

impl Answer {
    /// Waits for the head.
    pub(crate) async fn head(&self) -> Result<Head, Failed> {
        match self {
            Self::Json(live) => live.head().await,
        }
    }

    /// The next piece of the body; `None` at its end.
    pub(crate) fn poll_data(&self, context: &Context<'_>) -> Poll<Option<Result<Bytes, Failed>>> {
        match self {
            Self::Json(live) => live.poll_data(context),
        }
    }
}

/// Frames in both directions; dropping it closes the stream.
#[derive(Debug)]
pub(crate) enum Duplex {
    Json(LiveStream),
}

impl Duplex {
    /// Sends a frame.
    pub(crate) async fn send(&self, opcode: u8, data: &[u8]) {
        match self {
            Self::Json(stream) => stream.send(opcode, data).await,
        }
    }

    /// The next thing that comes; `None` after the end.
    pub(crate) async fn receive(&self) -> Option<Received> {
        match self {
            Self::Json(stream) => stream.receive().await,
        }
    }
}

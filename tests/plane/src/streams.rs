//! The stream transport: HTTP/1.1 with keep-alive on yamux streams, as it is.
//!
//! Nothing is collected: bodies are polled as fast as the other side takes them, and a stream's
//! window is what holds the agent back. Dropping an answer, or the future that waits for one,
//! resets its stream.

use std::error::Error;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{self, HeaderValue};
use hyper::{Method, Request, Response};
use smol::Task;

use crate::bell::within;
use crate::exchange::Failed;
use crate::header::StreamHeader;
use crate::mux::Mux;
use crate::wire::{End, Fate};
use crate::world::World;

/// 64 KiB: what hyper keeps of one connection in each direction.
pub(crate) const BUFFER_BYTES_MAX: usize = 64 * 1024;

/// 1 s: how long a request's body may go on after its answer before its stream is given up.
const REST_LIMIT: Duration = Duration::from_secs(1);

/// Where a stream's requests go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// The Kubernetes API.
    Kubernetes,
    /// A port of a service.
    Service {
        namespace: String,
        name: String,
        port: u16,
    },
}

impl Target {
    fn header(&self, id: String) -> Vec<u8> {
        let header = match self {
            Self::Kubernetes => StreamHeader::kubernetes(&id),
            Self::Service {
                namespace,
                name,
                port,
            } => StreamHeader::service(namespace, name, *port),
        };
        StreamHeader { id, ..header }.bytes()
    }

    /// What the record says.
    fn text(&self) -> String {
        match self {
            Self::Kubernetes => "kubernetes".to_owned(),
            Self::Service {
                namespace,
                name,
                port,
            } => format!("service {namespace}/{name}:{port}"),
        }
    }

    /// The `Host` of requests: HTTP/1.1 wants one, and the client's own is the plane's.
    pub(crate) fn host(&self) -> Option<HeaderValue> {
        let host = match self {
            Self::Kubernetes => return Some(HeaderValue::from_static("kubernetes.default.svc")),
            Self::Service {
                namespace,
                name,
                port,
            } => format!("{name}.{namespace}.svc:{port}"),
        };
        HeaderValue::from_str(&host).ok()
    }
}

/// The body of a request.
#[derive(Debug)]
pub(crate) enum Outgoing {
    /// All of it; `None` for no body.
    Whole(Option<Bytes>),
    /// As its client sends it.
    Streamed(Incoming),
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match self.get_mut() {
            Self::Whole(data) => Poll::Ready(data.take().map(|data| Ok(Frame::data(data)))),
            Self::Streamed(body) => Pin::new(body).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(data) => data.is_none(),
            Self::Streamed(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(data) => {
                let bytes = data.as_ref().map_or(0, Bytes::len);
                SizeHint::with_exact(u64::try_from(bytes).unwrap_or(u64::MAX))
            }
            Self::Streamed(body) => body.size_hint(),
        }
    }
}

/// A stream with HTTP on it. Dropping it resets the stream.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) target: Target,
    pub(crate) sender: SendRequest<Outgoing>,
    /// Reads and writes.
    pub(crate) task: Task<()>,
    fate: Arc<Fate>,
}

/// Sends a request and waits for the head of its answer.
pub(crate) async fn send(
    world: &Rc<World>,
    mux: &Rc<Mux>,
    target: &Target,
    request: Request<Outgoing>,
) -> Result<(Response<Incoming>, Lane), Failed> {
    if let Some(copy) = repeatable(&request)
        && let Some(mut lane) = mux.pool.take(target)
    {
        let before = lane.fate.received();
        match lane.sender.send_request(copy).await {
            Ok(response) => return Ok((response, lane)),
            Err(error) if lane.fate.received() != before => {
                return Err(failed(mux, &lane.fate, &error));
            }
            // The agent closed it before it saw the request.
            Err(error) => log::debug!("a stream that was used again had ended: {error}"),
        }
    }
    let mut lane = open(world, mux, target).await?;
    let sent = lane.sender.send_request(request).await;
    let response = sent.map_err(|error| failed(mux, &lane.fate, &error))?;
    Ok((response, lane))
}

/// A copy of a request that may be sent twice: it is safe, and has no body. Others get a stream
/// of their own, which costs no waiting.
fn repeatable(request: &Request<Outgoing>) -> Option<Request<Outgoing>> {
    let is_safe = [Method::GET, Method::HEAD, Method::OPTIONS].contains(request.method());
    let is_upgrade = request.headers().contains_key(header::UPGRADE);
    if !is_safe || is_upgrade || !request.body().is_end_stream() {
        return None;
    }
    let mut copy = Request::new(Outgoing::Whole(None));
    copy.method_mut().clone_from(request.method());
    copy.uri_mut().clone_from(request.uri());
    copy.headers_mut().clone_from(request.headers());
    Some(copy)
}

async fn open(world: &Rc<World>, mux: &Rc<Mux>, target: &Target) -> Result<Lane, Failed> {
    let id = world.request_id("st");
    let wire = mux.open(target.text(), &target.header(id)).await?;
    let fate = Arc::clone(&wire.fate);
    let (sender, connection) = http1::Builder::new()
        .max_buf_size(BUFFER_BYTES_MAX)
        .handshake(wire)
        .await
        .map_err(|error| failed(mux, &fate, &error))?;
    let task = world.tasks.own(async move {
        if let Err(error) = connection.with_upgrades().await {
            log::debug!("a stream ended: {}", text(&error));
        }
    });
    Ok(Lane {
        target: target.clone(),
        sender,
        task,
        fate,
    })
}

/// Why a request failed, as far as its stream knows.
fn failed(mux: &Mux, fate: &Fate, error: &hyper::Error) -> Failed {
    match fate.end() {
        End::Lost => mux.lost(),
        End::Reset => Failed::Reset,
        End::Open | End::Finished => Failed::Unreadable(text(error)),
    }
}

/// An error with its cause: hyper says what happened in the one and why in the other.
fn text(error: &hyper::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

/// The body of an answer. Its stream goes back to the pool at its end.
#[derive(Debug)]
pub(crate) struct Answer {
    world: Rc<World>,
    mux: Rc<Mux>,
    body: Incoming,
    lane: Option<Lane>,
}

impl Answer {
    pub(crate) fn new(world: &Rc<World>, mux: &Rc<Mux>, body: Incoming, lane: Lane) -> Self {
        let mut answer = Self {
            world: Rc::clone(world),
            mux: Rc::clone(mux),
            body,
            lane: Some(lane),
        };
        if answer.body.is_end_stream() {
            answer.release();
        }
        answer
    }

    /// The next part of the body; `None` at its end.
    pub(crate) fn poll_part(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Failed>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        let frame = frame.map(|frame| {
            frame.map_err(|error| match &self.lane {
                Some(lane) => failed(&self.mux, &lane.fate, &error),
                None => Failed::Unreadable(text(&error)),
            })
        });
        match &frame {
            Some(Err(_)) => self.lane = None,
            None => self.release(),
            Some(Ok(_)) if self.body.is_end_stream() => self.release(),
            Some(Ok(_)) => {}
        }
        Poll::Ready(frame)
    }

    pub(crate) fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }

    /// Gives the stream back, once hyper is done with the request too.
    fn release(&mut self) {
        let Some(mut lane) = self.lane.take() else {
            return;
        };
        let (world, mux) = (Rc::clone(&self.world), Rc::clone(&self.mux));
        self.world.tasks.spawn(async move {
            let ready = within(REST_LIMIT, lane.sender.ready()).await;
            if matches!(ready, Some(Ok(()))) {
                mux.pool.put(&world, &mux, lane);
            } else if ready.is_some() {
                // It was closed by the agent, or with `Connection: close`: hyper says so to it.
                within(REST_LIMIT, lane.task).await;
            }
        });
    }
}

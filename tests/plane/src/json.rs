//! The JSON transport: a proxied request as messages on a session (docs/protocol.md, Proxying with
//! JSON messages).

use std::cell::Cell;
use std::rc::Rc;
use std::task::{Context, Poll};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::body::Bytes;
use serde_json::{Map, Value, json};
use smol::Task;

use crate::exchange::{Exchange, Failed, Gone, Part, Progress, Received, Stream, StreamKind};
use crate::options::{BodyForm, Spelling};
use crate::request::{self, ProxyRequest};
use crate::session::Session;
use crate::shape::{self, Head};
use crate::world::World;

/// 64 KiB: bodies of known length up to here go with the request.
pub(crate) const INLINE_BYTES_MAX: usize = 64 * 1024;

/// 32 KiB: the largest piece of a request's body in one message.
const PIECE_BYTES_MAX: usize = 32 * 1024;

/// Where a request's body comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// It is in the request.
    Request,
    /// The caller sends pieces through [`Upload`].
    Upload,
}

/// A request under way; dropping it cancels it.
#[derive(Debug)]
pub(crate) struct Live {
    world: Rc<World>,
    session: Rc<Session>,
    pub(crate) id: String,
    exchange: Rc<Exchange>,
    upload: Upload,
    /// Sends the body; it ends with the request.
    pump: Option<Task<()>>,
}

/// Sends a request a body in pieces.
#[derive(Clone, Debug)]
pub(crate) struct Upload {
    world: Rc<World>,
    session: Rc<Session>,
    id: Rc<str>,
    form: BodyForm,
    is_open: Rc<Cell<bool>>,
}

impl Upload {
    /// Sends one piece, waiting while too much waits to be written.
    pub(crate) async fn send(&self, data: &[u8]) {
        for piece in data.chunks(PIECE_BYTES_MAX) {
            self.session.room().await;
            let name = match self.form {
                BodyForm::OldChunks => "chunk",
                BodyForm::Auto
                | BodyForm::Base64
                | BodyForm::Text
                | BodyForm::Json
                | BodyForm::Chunks
                | BodyForm::Frame => "data",
            };
            let mut payload = Map::new();
            payload.insert(name.to_owned(), STANDARD.encode(piece).into());
            self.message("proxy_request_chunk", Value::Object(payload));
        }
    }

    /// The body is complete.
    pub(crate) fn end(&self) {
        if self.is_open.replace(false) {
            self.message("proxy_request_stream_end", json!({}));
        }
    }

    fn message(&self, kind: &'static str, payload: Value) {
        self.session
            .send(&self.world, kind, Some(&self.id), payload);
    }
}

/// Sends a request.
pub(crate) async fn open(
    world: &Rc<World>,
    session: Rc<Session>,
    request: &ProxyRequest,
    source: Source,
) -> Live {
    session.room().await;
    let id = world.request_id("pr");
    let exchange = Exchange::new(request.mode);
    session
        .exchanges
        .borrow_mut()
        .insert(id.clone(), Rc::clone(&exchange));
    let is_upload = is_upload(request, source);
    let live = Live {
        upload: Upload {
            world: Rc::clone(world),
            session: Rc::clone(&session),
            id: id.as_str().into(),
            form: request.body_form,
            is_open: Rc::new(Cell::new(is_upload)),
        },
        world: Rc::clone(world),
        session: Rc::clone(&session),
        id: id.clone(),
        exchange,
        pump: None,
    };
    let mut payload = request.payload();
    if is_upload {
        let name = match request.body_form {
            BodyForm::OldChunks => "streaming",
            BodyForm::Auto
            | BodyForm::Base64
            | BodyForm::Text
            | BodyForm::Json
            | BodyForm::Chunks
            | BodyForm::Frame => "use_streaming",
        };
        payload.insert(name.to_owned(), true.into());
    } else if !request.body.is_empty() {
        if request.body_form == BodyForm::Frame && !session.edge.is_text_only() {
            payload.insert("body_binary".to_owned(), true.into());
            payload.insert("body_size".to_owned(), request.body.len().into());
            let payload = request.finish(payload);
            session.send_with_body(world, &id, payload, &request.body);
            return live;
        }
        put_inline(&mut payload, request);
    }
    session.send(world, "proxy_request", Some(&id), request.finish(payload));
    if is_upload && source == Source::Request {
        let (upload, body) = (live.upload(), request.body.clone());
        return live.pumped(world.tasks.own(async move {
            upload.send(&body).await;
            upload.end();
        }));
    }
    live
}

fn is_upload(request: &ProxyRequest, source: Source) -> bool {
    source == Source::Upload
        || match request.body_form {
            BodyForm::Chunks | BodyForm::OldChunks => true,
            BodyForm::Auto => request.body.len() > INLINE_BYTES_MAX,
            BodyForm::Base64 | BodyForm::Text | BodyForm::Json | BodyForm::Frame => false,
        }
}

fn put_inline(payload: &mut Map<String, Value>, request: &ProxyRequest) {
    let json = || {
        serde_json::from_slice::<Value>(&request.body)
            .ok()
            .filter(|value| value.is_object() || value.is_array())
    };
    let inline = match request.body_form {
        BodyForm::Text => std::str::from_utf8(&request.body).ok().map(Value::from),
        BodyForm::Json => json(),
        BodyForm::Auto
        | BodyForm::Base64
        | BodyForm::Chunks
        | BodyForm::OldChunks
        | BodyForm::Frame => None,
    };
    let body = inline.unwrap_or_else(|| {
        payload.insert("body_encoding".to_owned(), "base64".into());
        STANDARD.encode(&request.body).into()
    });
    payload.insert("body".to_owned(), body);
}

impl Live {
    /// For the pieces of the body.
    pub(crate) fn upload(&self) -> Upload {
        self.upload.clone()
    }

    /// Gives the request the task that sends its body.
    pub(crate) fn pumped(mut self, pump: Task<()>) -> Self {
        self.pump = Some(pump);
        self
    }

    /// Waits for the head.
    pub(crate) async fn head(&self) -> Result<Head, Failed> {
        match self.exchange.inbox.pop().await {
            Some(Part::Head(head)) => Ok(head),
            Some(Part::Failed(failed)) => Err(failed),
            Some(Part::Chunk(_) | Part::End) => {
                Err(Failed::Unreadable("it has no head".to_owned()))
            }
            None => Err(Failed::Stopped),
        }
    }

    /// The next piece of the body; `None` at its end.
    pub(crate) fn poll_data(&self, context: &Context<'_>) -> Poll<Option<Result<Bytes, Failed>>> {
        self.exchange
            .inbox
            .poll_pop(context)
            .map(|part| match part {
                Some(Part::Chunk(data)) => Some(Ok(data)),
                Some(Part::Failed(failed)) => Some(Err(failed)),
                Some(Part::Head(_)) => Some(Err(Failed::Unreadable("a second head".to_owned()))),
                Some(Part::End) | None => None,
            })
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.exchange.inbox.abandon();
        // An answer may end before its request's body did: the agent then still waits for it.
        let is_unsent = self.upload.is_open.replace(false);
        if is_unsent || self.exchange.progress.get() != Progress::Ended {
            self.session.forget(&self.world, &self.id, Gone::GivenUp);
            self.session
                .send(&self.world, "proxy_cancel", Some(&self.id), json!({}));
        }
    }
}

/// A stream under way; dropping it closes it.
#[derive(Debug)]
pub(crate) struct LiveStream {
    world: Rc<World>,
    session: Rc<Session>,
    id: String,
    stream: Rc<Stream>,
}

/// What a Kubernetes stream (exec, attach) starts with.
#[derive(Clone, Debug, Default)]
pub struct StreamRequest {
    /// The cluster; without it the newest session takes the request.
    pub cluster_id: Option<String>,
    /// The decoded path.
    pub path: String,
    /// The raw query without `?`.
    pub query: String,
    /// Headers in order.
    pub headers: Vec<(String, String)>,
    /// The subprotocols, separated by commas.
    pub protocol: String,
}

/// Starts a Kubernetes stream. There is no message of success: data simply comes.
pub(crate) async fn start(
    world: &Rc<World>,
    session: Rc<Session>,
    request: &StreamRequest,
) -> LiveStream {
    session.room().await;
    let id = world.request_id("ex");
    let live = LiveStream::new(world, &session, id, StreamKind::Kubernetes);
    let payload = json!({
        "stream_id": live.id,
        "method": "GET",
        "path": request.path,
        "query": request.query,
        "headers": request::headers(&request.headers),
        "protocol": request.protocol,
    });
    let kind = live.spelled("ws_start", "proxy_websocket_start");
    session.send(world, kind, Some(&live.id), payload);
    live
}

/// Opens an application's WebSocket: the head of the answer says whether it is one.
pub(crate) async fn websocket(
    world: &Rc<World>,
    session: Rc<Session>,
    request: &ProxyRequest,
) -> Result<(Head, LiveStream), (Option<Head>, Failed)> {
    let mut request = request.clone();
    request.extra.insert("is_websocket".to_owned(), true.into());
    let live = open(world, Rc::clone(&session), &request, Source::Request).await;
    // The agent may send data right behind the 101.
    let stream = LiveStream::new(world, &session, live.id.clone(), StreamKind::Application);
    let head = match live.head().await {
        Ok(head) => head,
        Err(failed) => {
            stream.never_was();
            return Err((None, failed));
        }
    };
    if head.status == 101 {
        let ended = std::future::poll_fn(|context| live.poll_data(context)).await;
        return match ended {
            None => Ok((head, stream)),
            Some(Ok(_)) => Err((
                None,
                Failed::Unreadable("a body came with the 101".to_owned()),
            )),
            Some(Err(failed)) => Err((None, failed)),
        };
    }
    stream.never_was();
    let why = match std::future::poll_fn(|context| live.poll_data(context)).await {
        Some(Err(failed)) => failed,
        Some(Ok(_)) | None => Failed::Unreadable("a refusal without proxy_response_abort".into()),
    };
    Err((Some(head), why))
}

impl LiveStream {
    fn new(world: &Rc<World>, session: &Rc<Session>, id: String, kind: StreamKind) -> Self {
        let stream = Stream::new(kind);
        session
            .streams
            .borrow_mut()
            .insert(id.clone(), Rc::clone(&stream));
        Self {
            world: Rc::clone(world),
            session: Rc::clone(session),
            id,
            stream,
        }
    }

    /// Forgets a stream that did not come to be; nothing is sent about it.
    fn never_was(&self) {
        self.session.streams.borrow_mut().remove(&self.id);
    }

    fn spelled(&self, short: &'static str, long: &'static str) -> &'static str {
        match self.world.behaviour(|behaviour| behaviour.spelling) {
            Spelling::Short => short,
            Spelling::Long => long,
        }
    }

    /// Sends a frame, waiting while too much waits to be written.
    pub(crate) async fn send(&self, opcode: u8, data: &[u8]) {
        self.session.room().await;
        let kind = self.spelled("ws_data", "proxy_websocket_data");
        let payload = shape::framed(&self.id, opcode, data);
        self.session
            .send(&self.world, kind, Some(&self.id), payload);
    }

    /// The next thing that the stream brings; `None` after its end.
    pub(crate) async fn receive(&self) -> Option<Received> {
        self.stream.inbox.pop().await
    }
}

impl Drop for LiveStream {
    fn drop(&mut self) {
        self.stream.inbox.abandon();
        let is_open = self.session.streams.borrow().contains_key(&self.id);
        if is_open {
            self.session.forget(&self.world, &self.id, Gone::GivenUp);
            let kind = self.spelled("ws_close", "proxy_websocket_close");
            let payload = json!({ "stream_id": self.id, "request_id": self.id });
            self.session
                .send(&self.world, kind, Some(&self.id), payload);
        }
    }
}

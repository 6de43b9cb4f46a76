//! An agent's end: agrees to streams and serves HTTP on them.

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::thread::JoinHandle;

use async_tungstenite::WebSocketStream;
use async_tungstenite::tungstenite::Message;
use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header::HeaderMap;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use plane::Plane;
use serde_json::{Value, json};
use smol::channel::{Receiver, Sender, bounded};
use smol::future::{or, pending, poll_fn};
use smol::io::{AsyncReadExt, AsyncWriteExt};
use smol::net::TcpStream;
use smol::net::unix::UnixStream;
use smol::stream::StreamExt;
use smol::{LocalExecutor, Task};
use smol_hyper::rt::FuturesIo;
use yamux::{Config, Connection, Mode};

use crate::agent::{Agent, LIMIT, b64};
use crate::sessions::plane;

/// What the agent's end saw.
#[derive(Debug)]
pub(crate) enum Seen {
    /// The header of a stream.
    Header(Vec<u8>),
    /// A request on a stream.
    Request(String, HeaderMap),
    /// A request as a message.
    Message(Value),
    /// What answered this path was dropped before it was done.
    Dropped(String),
    /// Bytes that an upgraded stream got until it ended.
    Upgraded(usize),
}

/// How it answers to the hellos.
#[derive(Clone, Debug)]
pub(crate) struct Manners {
    /// The type and the payload of the answer to `edge_hello`, if any.
    pub(crate) edge: Option<(&'static str, Value)>,
}

impl Default for Manners {
    fn default() -> Self {
        Self {
            edge: Some(("edge_hello_ack", json!({ "version": 1 }))),
        }
    }
}

/// What tests and the agent's end share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Bytes of bodies that hyper took.
    pub(crate) produced: AtomicU64,
    /// Bytes of bodies that were read.
    pub(crate) consumed: AtomicU64,
    seen: Sender<Seen>,
    /// `/upload?wait` begins to read with each item.
    go: Receiver<()>,
}

/// A running end. It ends with its session, or when it is dropped.
#[derive(Debug)]
pub(crate) struct Fake {
    seen: Receiver<Seen>,
    pub(crate) go: Sender<()>,
    pub(crate) shared: Arc<Shared>,
    stop: Sender<()>,
    thread: Option<JoinHandle<()>>,
}

impl Fake {
    pub(crate) fn start(agent: Agent, manners: Manners) -> Self {
        let (seen_in, seen) = bounded(10_000);
        let (go, go_out) = bounded(16);
        let (stop, stopped) = bounded::<()>(1);
        let shared = Arc::new(Shared {
            produced: AtomicU64::new(0),
            consumed: AtomicU64::new(0),
            seen: seen_in,
            go: go_out,
        });
        let serving = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .spawn(move || {
                let executor = Rc::new(LocalExecutor::new());
                let session = session(&executor, agent.into_socket(), manners, serving);
                let stopped = async { while stopped.recv().await.is_ok() {} };
                smol::block_on(executor.run(or(session, stopped)));
            })
            .unwrap();
        Self {
            seen,
            go,
            shared,
            stop,
            thread: Some(thread),
        }
    }

    /// The next thing seen that `pick` wants; the others are passed over.
    pub(crate) fn next<T>(&self, pick: impl Fn(Seen) -> Option<T>) -> T {
        smol::block_on(or(
            async {
                loop {
                    let seen = self.seen.recv().await.expect("the agent's end runs");
                    if let Some(picked) = pick(seen) {
                        return picked;
                    }
                }
            },
            async {
                smol::Timer::after(LIMIT).await;
                panic!("it was not seen within 10 s");
            },
        ))
    }

    /// Waits for the drop of what answered a path.
    pub(crate) fn dropped(&self, path: &str) {
        self.next(|seen| matches!(seen, Seen::Dropped(other) if other == path).then_some(()));
    }

    /// The headers of the next request of a path on a stream.
    pub(crate) fn request(&self, target: &str) -> HeaderMap {
        self.next(|seen| {
            let Seen::Request(other, headers) = seen else {
                return None;
            };
            (other == target).then_some(headers)
        })
    }

    /// The header of the next stream.
    pub(crate) fn header(&self) -> Vec<u8> {
        self.next(|seen| {
            let Seen::Header(header) = seen else {
                return None;
            };
            Some(header)
        })
    }

    /// The next request that came as a message.
    pub(crate) fn message(&self) -> Value {
        self.next(|seen| {
            let Seen::Message(message) = seen else {
                return None;
            };
            Some(message)
        })
    }

    /// How many bytes the next upgraded stream had brought when it ended.
    pub(crate) fn upgraded(&self) -> usize {
        self.next(|seen| {
            let Seen::Upgraded(total) = seen else {
                return None;
            };
            Some(total)
        })
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.stop.close();
        if let Some(thread) = self.thread.take()
            && !std::thread::panicking()
        {
            thread.join().unwrap();
        }
    }
}

/// A plane with such an end on its gateway, which agreed to streams.
pub(crate) fn streaming() -> (Plane, Fake, String) {
    let (plane, agent, cluster) = offered();
    let fake = Fake::start(agent, Manners::default());
    let ready = plane.wait_streams(LIMIT).unwrap();
    assert_eq!(ready.cluster_id.as_deref(), Some(&*cluster));
    (plane, fake, cluster)
}

/// A plane with an agent on its gateway that offered the extension.
pub(crate) fn offered() -> (Plane, Agent, String) {
    let plane = plane();
    let (agent, cluster) = offer(&plane);
    (plane, agent, cluster)
}

pub(crate) fn offer(plane: &Plane) -> (Agent, String) {
    let mut agent = Agent::dial_controller(plane).unwrap();
    let reply = agent.register_edge();
    let cluster = reply["payload"]["cluster_id"].as_str().unwrap().to_owned();
    agent.close();
    (Agent::dial_edge(plane, &cluster).unwrap(), cluster)
}

enum Event {
    Out(Message),
    In(Message),
}

/// One session of yamux. Another takes its place at the next hello.
struct Yamux {
    pipe: UnixStream,
    outgoing: Receiver<Message>,
    _tasks: [Task<()>; 2],
}

impl Yamux {
    fn start(executor: &Rc<LocalExecutor<'static>>, shared: &Arc<Shared>) -> Self {
        let (pipe, theirs) = UnixStream::pair().unwrap();
        let (out, outgoing) = bounded(4);
        let served = serve(Rc::clone(executor), theirs, Arc::clone(shared));
        Self {
            _tasks: [
                executor.spawn(carry(pipe.clone(), out)),
                executor.spawn(served),
            ],
            pipe,
            outgoing,
        }
    }
}

async fn session(
    executor: &Rc<LocalExecutor<'static>>,
    mut socket: WebSocketStream<TcpStream>,
    manners: Manners,
    shared: Arc<Shared>,
) {
    let mut yamux: Option<Yamux> = None;
    loop {
        let event = or(
            async {
                match &yamux {
                    Some(yamux) => yamux.outgoing.recv().await.ok().map(Event::Out),
                    None => pending().await,
                }
            },
            async { socket.next().await?.ok().map(Event::In) },
        );
        match event.await {
            None => return,
            Some(Event::Out(message)) => {
                if socket.send(message).await.is_err() {
                    return;
                }
            }
            Some(Event::In(Message::Binary(data))) => {
                let yamux = yamux.as_mut().expect("no binary message before the ack");
                // It may have given up: the session goes on.
                let _closed = yamux.pipe.write_all(&data).await;
            }
            Some(Event::In(Message::Text(text))) => {
                let message: Value = serde_json::from_str(&text).unwrap();
                for (kind, id, payload) in answers(&message, &manners, &shared) {
                    if kind == "gateway_hello_ack" {
                        yamux = Some(Yamux::start(executor, &shared));
                    }
                    let text = envelope(kind, id, &payload);
                    if socket.send(Message::text(text)).await.is_err() {
                        return;
                    }
                }
            }
            Some(Event::In(_)) => {}
        }
    }
}

fn envelope(kind: &str, id: Option<&str>, payload: &Value) -> String {
    let mut message =
        json!({"type": kind, "payload": payload, "timestamp": "2026-06-16T05:50:28.1Z"});
    if let Some(id) = id {
        message["request_id"] = id.into();
    }
    message.to_string()
}

type Answer<'a> = (&'static str, Option<&'a str>, Value);

fn answers<'a>(message: &'a Value, manners: &Manners, shared: &Shared) -> Vec<Answer<'a>> {
    let id = message["request_id"].as_str();
    match message["type"].as_str().unwrap() {
        "edge_hello" => {
            let answer = manners.edge.clone();
            answer
                .map(|(kind, payload)| (kind, None, payload))
                .into_iter()
                .collect()
        }
        "gateway_hello" if message["payload"]["use_yamux"] == true => {
            vec![("gateway_hello_ack", None, json!({ "use_yamux": true }))]
        }
        "proxy_request" => {
            shared
                .seen
                .try_send(Seen::Message(message.clone()))
                .unwrap();
            let body = b64(b"message");
            vec![
                (
                    "proxy_response_header",
                    id,
                    json!({"status": 200, "headers": null}),
                ),
                (
                    "proxy_response_chunk",
                    id,
                    json!({"data": body, "encoding": "base64", "size": 7}),
                ),
                ("proxy_response_end", id, json!({})),
            ]
        }
        "ping" => vec![("pong", id, json!({"timestamp": "2026-06-16T05:50:28Z"}))],
        _ => Vec::new(),
    }
}

/// What yamux writes goes out as binary messages.
async fn carry(mut pipe: UnixStream, out: Sender<Message>) {
    let mut buffer = vec![0; 32 * 1024];
    while let Ok(bytes @ 1..) = pipe.read(&mut buffer).await {
        let data = Bytes::copy_from_slice(&buffer[..bytes]);
        if out.send(Message::Binary(data)).await.is_err() {
            return;
        }
    }
    // Messages go on without it: the channel must not end.
    pending().await
}

async fn serve(executor: Rc<LocalExecutor<'static>>, pipe: UnixStream, shared: Arc<Shared>) {
    let mut connection = Connection::new(pipe, Config::default(), Mode::Client);
    let mut tasks = Vec::new();
    while let Some(Ok(stream)) = poll_fn(|context| connection.poll_next_inbound(context)).await {
        tasks.retain(|task: &Task<()>| !task.is_finished());
        tasks.push(executor.spawn(http(stream, Arc::clone(&shared))));
    }
}

async fn http(mut stream: yamux::Stream, shared: Arc<Shared>) {
    let mut header = vec![0; 4];
    if stream.read_exact(&mut header).await.is_err() {
        return;
    }
    for _ in 0..3 {
        let mut length = [0; 2];
        stream.read_exact(&mut length).await.unwrap();
        let mut text = vec![0; u16::from_be_bytes(length).into()];
        stream.read_exact(&mut text).await.unwrap();
        header.extend(length);
        header.extend(text);
    }
    shared.seen.try_send(Seen::Header(header)).unwrap();
    let count = Rc::new(AtomicU64::new(0));
    let service = service_fn(|request| {
        let number = count.fetch_add(1, Ordering::Relaxed);
        answer(request, number, Arc::clone(&shared))
    });
    // An error is a client that is gone, or what a test wants.
    let _result = http1::Builder::new()
        .max_buf_size(16 * 1024)
        .serve_connection(FuturesIo::new(stream), service)
        .with_upgrades()
        .await;
}

/// Tells that an answer was dropped before it was done.
struct Guard {
    path: String,
    shared: Arc<Shared>,
    is_done: bool,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.is_done {
            let _full = self.shared.seen.try_send(Seen::Dropped(self.path.clone()));
        }
    }
}

async fn answer(
    mut request: Request<Incoming>,
    number: u64,
    shared: Arc<Shared>,
) -> Result<Response<Produced>, io::Error> {
    let target = request.uri().to_string();
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let seen = Seen::Request(target.clone(), request.headers().clone());
    shared.seen.try_send(seen).unwrap();
    let mut guard = Guard {
        path: path.to_owned(),
        shared: Arc::clone(&shared),
        is_done: false,
    };
    let produced = |bytes, finish| Produced {
        bytes,
        finish,
        ..Produced::nothing(&shared)
    };
    let mut response = match path {
        "/big" => Response::new(produced(query.parse().unwrap(), Finish::End)),
        "/hang" => pending().await,
        "/watch" => Response::new(produced(10, Finish::Hang)),
        "/fail" => Response::new(produced(10, Finish::Fail)),
        "/trailers" => Response::new(produced(10, Finish::Trailers)),
        "/upload" => upload(request, query, &shared).await?,
        "/upgrade" => upgrade(&mut request, query, &shared),
        "/second" if number > 0 => return Err(io::Error::other("only the first is answered")),
        _ => Response::new(produced(7, Finish::End)),
    };
    match response.body().finish {
        Finish::Hang => response.body_mut().guard = Some(guard),
        Finish::End | Finish::Fail | Finish::Trailers => guard.is_done = true,
    }
    let headers = response.headers_mut();
    headers.append("x-twice", "a".parse().unwrap());
    headers.append("x-twice", "b".parse().unwrap());
    match path {
        "/close" => drop(headers.insert("connection", "close".parse().unwrap())),
        "/trailers" => drop(headers.insert("trailer", "x-sum".parse().unwrap())),
        "/none" => {
            response.body_mut().bytes = 0;
            *response.status_mut() = StatusCode::NO_CONTENT;
        }
        _ => {}
    }
    Ok(response)
}

async fn upload(
    request: Request<Incoming>,
    query: &str,
    shared: &Arc<Shared>,
) -> Result<Response<Produced>, io::Error> {
    if query == "wait" {
        shared.go.recv().await.unwrap();
    }
    let mut body = request.into_body();
    let (mut at, mut is_right) = (0, true);
    while let Some(frame) = body.frame().await {
        let data = frame.map_err(io::Error::other)?.into_data().unwrap();
        is_right = is_right && data == pattern(at, data.len());
        at += u64::try_from(data.len()).unwrap();
        shared.consumed.store(at, Ordering::Relaxed);
    }
    let mut response = Response::new(Produced::nothing(shared));
    let headers = response.headers_mut();
    headers.insert("x-bytes", at.into());
    headers.insert("x-right", is_right.to_string().parse().unwrap());
    Ok(response)
}

/// Echoes until the end; with `reset` in the query, until the first bytes.
fn upgrade(
    request: &mut Request<Incoming>,
    query: &str,
    shared: &Arc<Shared>,
) -> Response<Produced> {
    let mut response = Response::new(Produced::nothing(shared));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert("connection", "Upgrade".parse().unwrap());
    headers.insert("upgrade", request.headers()["upgrade"].clone());
    if let Some(protocol) = request.headers().get("sec-websocket-protocol") {
        headers.insert("sec-websocket-protocol", protocol.clone());
    }
    let on = hyper::upgrade::on(request);
    let (is_reset, shared) = (query == "reset", Arc::clone(shared));
    // The stream is Send, and the test's own: its task may run anywhere.
    let echo = async move {
        let upgraded = on.await.unwrap();
        let parts = upgraded.downcast::<FuturesIo<yamux::Stream>>().unwrap();
        let mut stream = parts.io.into_inner();
        stream.write_all(&parts.read_buf).await.unwrap();
        let mut total = parts.read_buf.len();
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(bytes @ 1..) = stream.read(&mut buffer).await {
            total += bytes;
            if is_reset || stream.write_all(&buffer[..bytes]).await.is_err() {
                break;
            }
        }
        if !is_reset {
            let _gone = stream.close().await;
        }
        let _full = shared.seen.try_send(Seen::Upgraded(total));
    };
    std::thread::Builder::new()
        .spawn(move || smol::block_on(echo))
        .unwrap();
    response
}

/// How a body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    End,
    Hang,
    Fail,
    Trailers,
}

/// A body that is made as it is taken.
pub(crate) struct Produced {
    bytes: u64,
    at: u64,
    finish: Finish,
    has_paused: bool,
    shared: Arc<Shared>,
    guard: Option<Guard>,
}

impl Produced {
    fn nothing(shared: &Arc<Shared>) -> Self {
        Self {
            bytes: 0,
            at: 0,
            finish: Finish::End,
            has_paused: false,
            shared: Arc::clone(shared),
            guard: None,
        }
    }
}

/// Bytes of a body in which places far from each other differ.
pub(crate) fn pattern(at: u64, length: usize) -> Vec<u8> {
    (at..)
        .take(length)
        .map(|place| u8::try_from(place / 1000 % 251).unwrap())
        .collect()
}

impl Body for Produced {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let left = self.bytes - self.at;
        if left > 0 {
            let length = left.min(16 * 1024);
            let data = pattern(self.at, usize::try_from(length).unwrap());
            self.at += length;
            self.shared.produced.fetch_add(length, Ordering::Relaxed);
            return Poll::Ready(Some(Ok(Frame::data(data.into()))));
        }
        match self.finish {
            Finish::End => Poll::Ready(None),
            Finish::Hang => Poll::Pending,
            // hyper flushes what it has when nothing comes for a moment.
            Finish::Fail if !self.has_paused => {
                self.has_paused = true;
                context.waker().wake_by_ref();
                Poll::Pending
            }
            Finish::Fail => Poll::Ready(Some(Err(io::Error::other("as the test wants it")))),
            Finish::Trailers => {
                self.finish = Finish::End;
                let mut trailers = HeaderMap::new();
                trailers.insert("x-sum", "45".parse().unwrap());
                Poll::Ready(Some(Ok(Frame::trailers(trailers))))
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self.finish {
            Finish::End => SizeHint::with_exact(self.bytes - self.at),
            Finish::Hang | Finish::Fail | Finish::Trailers => SizeHint::new(),
        }
    }
}

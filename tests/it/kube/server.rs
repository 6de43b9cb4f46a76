//! A server of HTTP over TLS that answers as it is told, remembers what it was asked, and counts
//! its connections.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use async_tungstenite::WebSocketStream;
use async_tungstenite::tungstenite::handshake::derive_accept_key;
use async_tungstenite::tungstenite::protocol::Role;
use futures_rustls::TlsAcceptor;
use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use rustls::ServerConfig;
use smol::Task;
use smol::io::{AsyncRead, AsyncWrite};
use smol::net::{TcpListener, TcpStream};
use smol_hyper::rt::FuturesIo;

use super::Executor;
use super::certificates::{Authority, Valid};

/// What follows the head of an answer.
#[derive(Clone, Debug)]
pub(super) enum Then {
    Send(Vec<u8>),
    /// Nothing more, and no end.
    Hang,
    /// Nothing for one turn, so that what came before is written.
    Breathe,
    /// The connection is cut in the middle of the body.
    Cut,
}

/// What the server does with a request.
#[derive(Clone, Debug)]
pub(super) enum Reply {
    /// A status and a body of parts.
    Answer(u16, Vec<Then>),
    /// No answer at all.
    Silence,
    /// The connection is closed without an answer.
    Close,
    /// 101, then every message comes back.
    Echo,
}

pub(super) fn json(status: u16, body: &str) -> Reply {
    Reply::Answer(status, vec![Then::Send(body.as_bytes().to_vec())])
}

/// What a request looked like.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) uri: String,
    pub(super) headers: HeaderMap,
    /// True if the connection showed a client certificate.
    pub(super) certificate: bool,
    /// Which connection it came over.
    pub(super) connection: usize,
    pub(super) body: Vec<u8>,
}

impl Seen {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

#[derive(Default)]
struct State {
    tls: RefCell<Option<Arc<ServerConfig>>>,
    script: RefCell<BTreeMap<String, VecDeque<Reply>>>,
    seen: RefCell<Vec<Seen>>,
    accepted: Cell<usize>,
    open: Cell<usize>,
    tasks: RefCell<BTreeMap<usize, Task<()>>>,
}

pub(super) struct Server {
    address: SocketAddr,
    state: Rc<State>,
    _accept: Task<()>,
}

impl Server {
    pub(super) async fn tls(executor: &Executor, authority: &Authority) -> Self {
        Self::start(executor, Some(authority.server(Valid::Now))).await
    }

    pub(super) async fn start(executor: &Executor, tls: Option<Arc<ServerConfig>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let state = Rc::new(State::default());
        *state.tls.borrow_mut() = tls;
        let accept = executor.spawn(accept(listener, Rc::clone(&state), Rc::clone(executor)));
        Self {
            address,
            state,
            _accept: accept,
        }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next answers to `METHOD /path` (without the query), in order; the last one stays.
    pub(super) fn on(&self, call: &str, replies: impl IntoIterator<Item = Reply>) {
        let replies = replies.into_iter().collect();
        self.state
            .script
            .borrow_mut()
            .insert(call.to_owned(), replies);
    }

    pub(super) fn seen(&self) -> Vec<Seen> {
        self.state.seen.borrow().clone()
    }

    pub(super) fn open(&self) -> usize {
        self.state.open.get()
    }

    /// Cuts every connection.
    pub(super) fn cut(&self) {
        self.state.tasks.borrow_mut().clear();
    }

    pub(super) fn show(&self, tls: Arc<ServerConfig>) {
        *self.state.tls.borrow_mut() = Some(tls);
    }
}

struct Open(Rc<State>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.set(self.0.open.get() - 1);
    }
}

async fn accept(listener: TcpListener, state: Rc<State>, executor: Executor) {
    loop {
        let Ok((tcp, _)) = listener.accept().await else {
            return;
        };
        let number = state.accepted.get();
        state.accepted.set(number + 1);
        state.open.set(state.open.get() + 1);
        let open = Open(Rc::clone(&state));
        let task = connection(tcp, number, Rc::clone(&state), Rc::clone(&executor));
        let task = executor.spawn(async move {
            task.await;
            drop(open);
        });
        state.tasks.borrow_mut().insert(number, task);
    }
}

async fn connection(tcp: TcpStream, number: usize, state: Rc<State>, executor: Executor) {
    let tls = state.tls.borrow().clone();
    match tls {
        None => speak(tcp, number, false, state, executor).await,
        Some(tls) => {
            let Ok(stream) = TlsAcceptor::from(tls).accept(tcp).await else {
                return;
            };
            let certificate = stream.get_ref().1.peer_certificates().is_some();
            speak(stream, number, certificate, state, executor).await;
        }
    }
}

async fn speak<S>(stream: S, number: usize, certificate: bool, state: Rc<State>, executor: Executor)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let close = Rc::new(Cell::new(false));
    let echoes: Rc<RefCell<Vec<Task<()>>>> = Rc::default();
    let service = service_fn(|request: Request<Incoming>| {
        let (state, close) = (Rc::clone(&state), Rc::clone(&close));
        let (executor, echoes) = (Rc::clone(&executor), Rc::clone(&echoes));
        async move {
            answer(
                request,
                number,
                certificate,
                &state,
                &close,
                (&executor, &echoes),
            )
            .await
        }
    });
    let mut serving = std::pin::pin!(
        hyper::server::conn::http1::Builder::new()
            .serve_connection(FuturesIo::new(stream), service)
            .with_upgrades()
    );
    std::future::poll_fn(|cx| {
        if serving.as_mut().poll(cx).is_ready() || close.get() {
            return Poll::Ready(());
        }
        Poll::Pending
    })
    .await;
    // After an upgrade the connection lives in its echo.
    let echoes = std::mem::take(&mut *echoes.borrow_mut());
    for echo in echoes {
        echo.await;
    }
}

async fn answer(
    mut request: Request<Incoming>,
    number: usize,
    certificate: bool,
    state: &State,
    close: &Cell<bool>,
    (executor, echoes): (&Executor, &RefCell<Vec<Task<()>>>),
) -> Result<Response<Parts>, io::Error> {
    let call = format!("{} {}", request.method(), request.uri().path());
    let mut seen = Seen {
        uri: request.uri().to_string(),
        headers: request.headers().clone(),
        certificate,
        connection: number,
        body: Vec::new(),
    };
    let reply = {
        let mut script = state.script.borrow_mut();
        match script.get_mut(&call) {
            Some(replies) if replies.len() > 1 => replies.pop_front(),
            Some(replies) => replies.front().cloned(),
            None => None,
        }
    };
    let missing = json(
        404,
        r#"{"kind":"Status","reason":"NotFound","message":"not here","code":404}"#,
    );
    let reply = reply.unwrap_or(missing);
    if let Reply::Echo = reply {
        state.seen.borrow_mut().push(seen.clone());
        let upgrade = hyper::upgrade::on(&mut request);
        let task = executor.spawn(async move {
            if let Ok(upgraded) = upgrade.await {
                echo(upgraded).await;
            }
        });
        echoes.borrow_mut().push(task);
        return Ok(switching(&seen));
    }
    if let Ok(body) = request.into_body().collect().await {
        seen.body = body.to_bytes().to_vec();
    }
    state.seen.borrow_mut().push(seen);
    let (status, parts) = match reply {
        Reply::Answer(status, parts) => (status, parts),
        Reply::Silence => std::future::pending().await,
        Reply::Close | Reply::Echo => {
            close.set(true);
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
    };
    let mut response = Response::new(Parts(parts.into()));
    *response.status_mut() = StatusCode::from_u16(status).expect("a status");
    Ok(response)
}

fn switching(seen: &Seen) -> Response<Parts> {
    let mut response = Response::new(Parts(VecDeque::new()));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let accept = derive_accept_key(
        seen.header("sec-websocket-key")
            .unwrap_or_default()
            .as_bytes(),
    );
    let first = seen
        .header("sec-websocket-protocol")
        .and_then(|list| list.split(',').next());
    let mut pairs = vec![
        ("connection", "Upgrade".to_owned()),
        ("upgrade", "websocket".to_owned()),
        ("sec-websocket-accept", accept),
    ];
    if let Some(first) = first {
        pairs.push(("sec-websocket-protocol", first.to_owned()));
    }
    for (name, value) in pairs {
        let value = HeaderValue::from_str(&value).expect("a value");
        response
            .headers_mut()
            .insert(HeaderName::from_static(name), value);
    }
    response
}

async fn echo(upgraded: hyper::upgrade::Upgraded) {
    use smol::stream::StreamExt;
    let stream = FuturesIo::new(upgraded);
    let mut socket = WebSocketStream::from_raw_socket(Both(stream), Role::Server, None).await;
    while let Some(Ok(message)) = socket.next().await {
        if (message.is_text() || message.is_binary()) && socket.send(message).await.is_err() {
            return;
        }
    }
}

/// hyper's traits turned into smol's.
struct Both(FuturesIo<hyper::upgrade::Upgraded>);

impl AsyncRead for Both {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut room = hyper::rt::ReadBuf::new(buffer);
        let upgraded = Pin::new(self.0.get_mut());
        let polled = hyper::rt::Read::poll_read(upgraded, cx, room.unfilled());
        polled.map_ok(|()| room.filled().len())
    }
}

impl AsyncWrite for Both {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        hyper::rt::Write::poll_write(Pin::new(self.0.get_mut()), cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        hyper::rt::Write::poll_flush(Pin::new(self.0.get_mut()), cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        hyper::rt::Write::poll_shutdown(Pin::new(self.0.get_mut()), cx)
    }
}

/// A body of parts.
struct Parts(VecDeque<Then>);

impl Body for Parts {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match self.0.front() {
            None => Poll::Ready(None),
            Some(Then::Hang) => Poll::Pending,
            Some(Then::Breathe) => {
                self.0.pop_front();
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Some(Then::Cut) => Poll::Ready(Some(Err(io::ErrorKind::ConnectionAborted.into()))),
            Some(Then::Send(_)) => match self.0.pop_front() {
                Some(Then::Send(bytes)) => Poll::Ready(Some(Ok(Frame::data(bytes.into())))),
                _ => Poll::Ready(None),
            },
        }
    }
}

//! Fixture of the proxy tests: an API server of our own over TLS, the proxy, and the
//! outlet that its answers come out of.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    future::poll_fn,
    io,
    net::{IpAddr, SocketAddr},
    path::Path,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use super::sockets;
use base64::{Engine, engine::general_purpose::STANDARD};
use futures_rustls::TlsAcceptor;
use http_body_util::{BodyExt, Full};
use hyper::{
    Request, Response,
    body::{Body, Bytes, Frame as HttpFrame, Incoming},
    service::service_fn,
};
use pipeops_agent::{
    core::{
        namespace::OwnNamespace,
        policy::{Level, PodSecurity, Rules},
        secret::Secret,
        time::Wall,
    },
    executor::Executor,
    files::Spool,
    host::clock,
    kube::{
        Client, Settings,
        kubeconfig::Source,
        rbac::{GrantScope, Manifest},
    },
    link::outlet::{Fragment, Frame, Outlet},
    net::{dial::Dialer, proxy::Proxies, tls::Clock},
    store::Handle,
    tasks::{
        proxy::{Load, Proxy, ProxyDependencies},
        rights::{credential::Credential, delegate::Delegate},
    },
    wire::control::{Inbound, decode},
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use smol::net::TcpListener;
use smol_hyper::rt::FuturesIo;

/// How long a test waits for anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// What the control plane was given in place of a token.
pub(crate) const HANDLE: &str = "a-handle";

/// What the API server saw and does.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) executor: Rc<Executor>,
    /// WebSockets that are served.
    sockets: RefCell<Vec<smol::Task<()>>>,
    /// Where the application listens.
    pub(crate) application: Cell<Option<SocketAddr>>,
    /// Connections that are open.
    pub(crate) connections: Cell<usize>,
    /// Answers whose bodies are still held by the server.
    pub(crate) bodies: Cell<usize>,
    /// Bytes of endless answers that were asked for by the connection.
    pub(crate) polled_bytes: Cell<usize>,
    /// Events that watches are still to give.
    events: RefCell<Vec<String>>,
    waiting: RefCell<Option<Waker>>,
    /// Requests that arrived.
    pub(crate) requests: Cell<usize>,
}

/// Everything that a test talks to.
pub(crate) struct Bench {
    pub(crate) proxy: Proxy,
    pub(crate) outlet: Outlet,
    pub(crate) seen: Rc<Seen>,
    client: Client,
    directory: tempfile::TempDir,
}

/// Runs a test on an executor with an API server behind the proxy.
pub(crate) fn with_bench(test: impl AsyncFnOnce(Bench)) {
    with_level(Level::Full, test);
}

/// The same with another access level.
pub(crate) fn with_level(level: Level, test: impl AsyncFnOnce(Bench)) {
    let executor: Rc<Executor> = Rc::default();
    let server = Rc::clone(&executor);
    smol::block_on(executor.run(async {
        let seen = Rc::new(Seen {
            executor: Rc::clone(&server),
            ..Seen::default()
        });
        let directory = tempfile::tempdir().unwrap();
        let _server = serve(&server, directory.path(), Rc::clone(&seen)).await;
        let _application = serve_application(&server, Rc::clone(&seen)).await;
        let client = Client::new(
            &Settings {
                source: Source::Files(vec![directory.path().join("kubeconfig")]),
                proxies: Proxies::default(),
                clock: Clock::new(|| clock::now().wall, Wall::default()),
                now: clock::now,
                jobs: pipeops_agent::files::Jobs::default(),
            },
            Dialer::default(),
            Rc::clone(&server),
        );
        let proxy = Proxy::new(parts(&server, &client, level, directory.path()));
        test(Bench {
            proxy,
            outlet: Outlet::new(),
            seen,
            client,
            directory,
        })
        .await;
    }));
}

fn parts(
    executor: &Rc<Executor>,
    client: &Client,
    level: Level,
    directory: &Path,
) -> ProxyDependencies {
    ProxyDependencies {
        executor: Rc::clone(executor),
        client: Some(client.clone()),
        delegate: Some(Rc::new(Delegate::new(
            client.clone(),
            Manifest::new(
                OwnNamespace::default(),
                PodSecurity::Baseline,
                GrantScope::Managed,
            ),
            Rc::new(Credential::of_handle(Secret::new(HANDLE))),
        ))),
        rules: Rules {
            level,
            ..Rules::default()
        },
        spool: Spool::new(directory),
    }
}

impl Bench {
    /// Writes down what is done from here on.
    pub(crate) fn audit(&mut self, level: Level, store: Handle) {
        let executor = &self.seen.executor;
        let parts = parts(executor, &self.client, level, self.directory());
        self.proxy = Proxy::audited(parts, store.into());
    }

    /// Delivers a message as the control plane would send it.
    pub(crate) fn say(&self, message: &Value) {
        let Ok(Inbound::Proxy(message)) = decode(message.to_string().as_bytes()) else {
            panic!("not for the proxy: {message}");
        };
        self.proxy.deliver(message, &self.outlet);
    }

    /// Lets a watch give an event.
    pub(crate) fn event(&self, event: &str) {
        self.seen.events.borrow_mut().push(event.to_owned());
        if let Some(waker) = self.seen.waiting.take() {
            waker.wake();
        }
    }

    /// Delivers a `proxy_request`.
    pub(crate) fn ask(&self, id: &str, payload: impl Into<Value>) {
        let payload: Value = payload.into();
        self.say(&json!({"type": "proxy_request", "request_id": id, "payload": payload}));
    }

    /// The next whole message that goes out.
    pub(crate) async fn next(&self) -> Message {
        let mut parts: Option<(bool, Vec<u8>)> = None;
        loop {
            let frame = self.frame().await;
            match frame {
                Frame::Text(text) => {
                    assert!(parts.is_none(), "a message inside another");
                    assert!(text.len() <= 32 * 1024, "{} bytes", text.len());
                    return Message::Text(serde_json::from_str(&text).unwrap());
                }
                Frame::Binary(data) => {
                    assert!(parts.is_none(), "a message inside another");
                    return Message::Binary(data.to_vec());
                }
                Frame::Part {
                    kind,
                    data,
                    is_last,
                } => {
                    assert!(data.len() <= 40 * 1024, "{} bytes", data.len());
                    match kind {
                        Fragment::FirstText => parts = Some((true, data.to_vec())),
                        Fragment::FirstBinary => parts = Some((false, data.to_vec())),
                        Fragment::Next => parts.as_mut().unwrap().1.extend(&data),
                    }
                    if is_last {
                        let (is_text, data) = parts.unwrap();
                        return if is_text {
                            Message::Text(serde_json::from_slice(&data).unwrap())
                        } else {
                            Message::Binary(data)
                        };
                    }
                }
            }
        }
    }

    /// The next frame that goes out.
    pub(crate) async fn frame(&self) -> Frame {
        let frame = poll_fn(|context| self.outlet.poll_next(context));
        smol::future::or(frame, async {
            smol::Timer::after(PATIENCE).await;
            panic!("nothing came out; load {:?}", self.proxy.load());
        })
        .await
        .expect("the outlet is lost")
    }

    /// The next message, which must be JSON of this type and id; its payload.
    pub(crate) async fn expect(&self, kind: &str, id: &str) -> Value {
        let Message::Text(message) = self.next().await else {
            panic!("a binary message instead of {kind}");
        };
        assert_eq!(message["type"], kind, "{message}");
        assert_eq!(message["request_id"], id, "{message}");
        message["payload"].clone()
    }

    /// Waits until a level is reached.
    pub(crate) async fn until(&self, what: &str, level: impl Fn(&Self) -> bool) {
        let deadline = clock::now().mono.after(PATIENCE);
        while !level(self) {
            assert!(
                clock::now().mono < deadline,
                "not reached: {what}; load {:?}, connections {}, bodies {}",
                self.proxy.load(),
                self.seen.connections.get(),
                self.seen.bodies.get(),
            );
            smol::Timer::after(Duration::from_millis(2)).await;
        }
    }

    /// Waits until nothing of any exchange is left. The lane of refusals stays open once there was
    /// one.
    pub(crate) async fn until_idle(&self) {
        self.until("idle", |bench| {
            let load = bench.proxy.load();
            let idle = Load {
                requests: load.requests,
                dropped_messages: load.dropped_messages,
                ..Load::default()
            };
            let (lanes, queued) = bench.outlet.load();
            load == idle && lanes <= 1 && queued == 0 && bench.seen.bodies.get() == 0
        })
        .await;
    }

    /// Where the state is.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }
}

/// One message of the agent.
#[derive(Debug)]
pub(crate) enum Message {
    Text(Value),
    Binary(Vec<u8>),
}

/// The bytes of a base64 field.
pub(crate) fn bytes(value: &Value) -> Vec<u8> {
    STANDARD.decode(value.as_str().unwrap()).unwrap()
}

/// Base64 of some bytes.
pub(crate) fn base64(bytes: impl AsRef<[u8]>) -> String {
    STANDARD.encode(bytes)
}

/// Bytes that repeat after a prime number of them, so that a piece in the wrong place shows.
pub(crate) fn pattern(length: usize) -> Vec<u8> {
    (0..length)
        .map(|at| u8::try_from(at % 251).unwrap())
        .collect()
}

async fn serve(executor: &Rc<Executor>, directory: &Path, seen: Rc<Seen>) -> smol::Task<()> {
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let authority = STANDARD.encode(made.cert.pem());
    let kubeconfig = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: it\nclusters:\n- name: it\n  cluster:\n    server: https://127.0.0.1:{port}\n    certificate-authority-data: {authority}\ncontexts:\n- name: it\n  context:\n    cluster: it\n    user: it\nusers:\n- name: it\n  user:\n    token: agents-own-token\n"
    );
    pipeops_agent::files::replace(&directory.join("kubeconfig"), kubeconfig.as_bytes(), 0o600)
        .unwrap();
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![CertificateDer::from(made.cert.der().to_vec())],
            PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap(),
        )
        .unwrap();
    let acceptor = TlsAcceptor::from(std::sync::Arc::new(config));
    let inner = Rc::clone(executor);
    executor.spawn(async move {
        let mut connections = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, seen) = (acceptor.clone(), Rc::clone(&seen));
            connections.push(inner.spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else {
                    return;
                };
                let _open = Counted::new(&seen, |seen| &seen.connections);
                let service = service_fn(|request| answer(request, Rc::clone(&seen)));
                let served = hyper::server::conn::http1::Builder::new()
                    .serve_connection(FuturesIo::new(stream), service)
                    .with_upgrades()
                    .await;
                drop(served);
            }));
        }
    })
}

impl Seen {
    /// Serves a WebSocket.
    pub(crate) fn spawn(&self, served: impl Future<Output = ()> + 'static) {
        self.sockets.borrow_mut().push(self.executor.spawn(served));
    }
}

/// Counts itself in one of the counters while it lives.
pub(crate) struct Counted {
    seen: Rc<Seen>,
    counter: fn(&Seen) -> &Cell<usize>,
}

impl Counted {
    pub(crate) fn new(seen: &Rc<Seen>, counter: fn(&Seen) -> &Cell<usize>) -> Self {
        let count = counter(seen);
        count.set(count.get() + 1);
        Self {
            seen: Rc::clone(seen),
            counter,
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let count = (self.counter)(&self.seen);
        count.set(count.get() - 1);
    }
}

/// A body that counts itself while it lives.
struct Living {
    kind: Kind,
    seen: Rc<Seen>,
    _counted: Counted,
}

enum Kind {
    /// So many bytes, all at once or in pieces of 64 KiB.
    Bytes(Vec<u8>),
    /// Never ends.
    Endless,
    /// One event of the list whenever there is one; ends never.
    Events,
    /// Some bytes; then, when they are out, an error.
    Cut(usize, bool),
}

impl Body for Living {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<HttpFrame<Bytes>, io::Error>>> {
        let seen = Rc::clone(&self.seen);
        let piece = match &mut self.kind {
            Kind::Bytes(bytes) if bytes.is_empty() => return Poll::Ready(None),
            Kind::Bytes(bytes) => {
                let rest = bytes.split_off(bytes.len().min(64 * 1024));
                std::mem::replace(bytes, rest)
            }
            Kind::Endless => vec![b'x'; 64 * 1024],
            Kind::Events => {
                let mut events = seen.events.borrow_mut();
                if events.is_empty() {
                    seen.waiting.replace(Some(context.waker().clone()));
                    return Poll::Pending;
                }
                events.remove(0).into_bytes()
            }
            Kind::Cut(0, true) => return Poll::Ready(Some(Err(io::Error::other("cut")))),
            Kind::Cut(0, is_out) => {
                *is_out = true;
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            Kind::Cut(left, _) => vec![b'c'; std::mem::take(left)],
        };
        seen.polled_bytes.set(seen.polled_bytes.get() + piece.len());
        Poll::Ready(Some(Ok(HttpFrame::data(piece.into()))))
    }
}

/// The body of any answer.
pub(crate) type Answered = Pin<Box<dyn Body<Data = Bytes, Error = io::Error>>>;

async fn answer(
    request: Request<Incoming>,
    seen: Rc<Seen>,
) -> Result<Response<Answered>, io::Error> {
    if request
        .uri()
        .path()
        .ends_with("/serviceaccounts/pipeops-cp/token")
    {
        let token = json!({"status": {"token": "narrow-token"}});
        // Closed, so that tests which count connections count those of the calls.
        let answer = Response::builder().header("connection", "close");
        return Ok(answer.body(whole(&token)).unwrap());
    }
    seen.requests.set(seen.requests.get() + 1);
    let segments: Vec<String> = request
        .uri()
        .path()
        .split('/')
        .skip(3)
        .map(str::to_owned)
        .collect();
    let number = || segments[1].parse::<usize>().unwrap();
    let living = |kind| -> Answered {
        Box::pin(Living {
            kind,
            seen: Rc::clone(&seen),
            _counted: Counted::new(&seen, |seen| &seen.bodies),
        })
    };
    if request.headers().contains_key("sec-websocket-key") {
        return Ok(sockets::accept(request, &seen));
    }
    let (content_type, body) = match segments[0].as_str() {
        "bytes" => (
            "application/octet-stream",
            living(Kind::Bytes(pattern(number()))),
        ),
        "text" => ("text/plain", living(Kind::Bytes(vec![b'a'; number()]))),
        "noise" => ("text/plain", living(Kind::Bytes(noise(number())))),
        "gzip" => {
            let mut body = vec![0x1f, 0x8b];
            body.extend(pattern(number()));
            ("application/x-gzip", living(Kind::Bytes(body)))
        }
        "endless" => ("text/plain", living(Kind::Endless)),
        "watch" => ("application/json", living(Kind::Events)),
        "cut" => ("text/plain", living(Kind::Cut(number(), false))),
        "refused" => {
            let status = u16::try_from(number()).unwrap();
            let status_object = whole(&json!({"kind": "Status", "code": status}));
            let refused = Response::builder().status(status).body(status_object);
            return Ok(refused.unwrap());
        }
        "hang" => {
            let _held = Counted::new(&seen, |seen| &seen.bodies);
            std::future::pending().await
        }
        "namespaces" | "v1" if segments.contains(&"services".to_owned()) => {
            let service = json!({"spec": {"type": "ClusterIP", "ports": [{"port": 80}]}});
            ("application/json", whole(&service))
        }
        "v1" => ("application/json", whole(&slices(&seen))),
        _ => ("application/json", echo(request).await?),
    };
    Ok(Response::builder()
        .header("content-type", content_type)
        .header("x-two", "1")
        .header("x-two", "2")
        .header("keep-alive", "timeout=5")
        .body(body)
        .unwrap())
}

/// The slices of a service: one ready Pod, at the address of the application.
fn slices(seen: &Seen) -> Value {
    let address = seen.application.get().expect("an application");
    let target = json!({"kind": "Pod", "namespace": "shop", "name": "web-0"});
    json!({"metadata": {}, "items": [{"addressType": "IPv4",
        "endpoints": [{"addresses": [address.ip().to_string()], "conditions": {"ready": true}, "targetRef": target}],
        "ports": [{"port": address.port(), "protocol": "TCP"}]}]})
}

/// Says what arrived.
async fn echo(request: Request<Incoming>) -> io::Result<Answered> {
    let (head, body) = request.into_parts();
    let mut headers: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, value) in &head.headers {
        let value = value.to_str().unwrap_or("?").to_owned();
        headers.entry(name.to_string()).or_default().push(value);
    }
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let text = json!({
        "method": head.method.as_str(),
        "uri": head.uri.to_string(),
        "headers": headers,
        "body": String::from_utf8_lossy(&body.slice(..body.len().min(100))),
        "body_bytes": body.len(),
        "is_pattern": *body == *pattern(body.len()),
    });
    Ok(whole(&text))
}

/// A body of JSON.
fn whole(json: &Value) -> Answered {
    let full = Full::new(Bytes::from(json.to_string()));
    Box::pin(full.map_err(|never| match never {}))
}

/// The application behind the service `shop/web`, on an address of this machine that is not
/// loopback: a Pod has none of those.
async fn serve_application(executor: &Rc<Executor>, seen: Rc<Seen>) -> Option<smol::Task<()>> {
    let address = own_address()?;
    let listener = TcpListener::bind((address, 0)).await.unwrap();
    seen.application.set(Some(listener.local_addr().unwrap()));
    let inner = Rc::clone(executor);
    Some(executor.spawn(async move {
        let mut connections = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            let seen = Rc::clone(&seen);
            connections.push(inner.spawn(async move {
                let _open = Counted::new(&seen, |seen| &seen.connections);
                let service = service_fn(|request| answer(request, Rc::clone(&seen)));
                let served = hyper::server::conn::http1::Builder::new()
                    .serve_connection(FuturesIo::new(stream), service)
                    .with_upgrades()
                    .await;
                drop(served);
            }));
        }
    }))
}

fn own_address() -> Option<IpAddr> {
    let interfaces = nix::ifaddrs::getifaddrs().unwrap();
    let mut addresses = interfaces.filter_map(|interface| {
        let address = interface.address?;
        Some(IpAddr::V4(address.as_sockaddr_in()?.ip()))
    });
    addresses.find(|address| !address.is_loopback())
}

/// Text that no compressor makes smaller.
fn noise(length: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(7);
    (0..length).map(|_| random.u8(..)).collect()
}

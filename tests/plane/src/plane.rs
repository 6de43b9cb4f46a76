//! The handle of a running plane, for tests and for the program.
//!
//! All calls block the calling thread and have a deadline; the plane itself runs on a thread of
//! its own, whose state nobody else touches.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};
use smol::channel::{Sender, bounded};

use crate::bell::within;
use crate::edge;
use crate::exchange::Failed;
use crate::handles::{Body, Response, StreamHandle};
use crate::json::{self, StreamRequest};
use crate::net::{Ending, Flow};
use crate::options::{Behaviour, Options, Streams};
use crate::record::{Frame, Handshake, RestCall, Role, StreamEvent, Violation};
use crate::records::Records;
use crate::request::ProxyRequest;
use crate::session::Session;
use crate::shape::Head;
use crate::state::{self, Access, Cluster, Failure, State};
use crate::thread::{self, Job, Parts};
use crate::transport;
use crate::world::{Addresses, Security, World};
use crate::ws::{Last, Opcode};

/// A control plane. Dropping it stops it.
#[derive(Debug)]
pub struct Plane {
    options: Options,
    behaviour: Behaviour,
    state: State,
    records: Records,
    addresses: Addresses,
    urls: Urls,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    jobs: Sender<Job>,
    thread: JoinHandle<Option<(State, Records)>>,
}

#[derive(Debug, Default)]
struct Urls {
    api: String,
    gateway: String,
    plaintext: Option<String>,
}

/// How to end or spoil a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cut {
    /// TCP RST.
    Reset,
    /// TCP FIN without a close frame.
    Fin,
    /// A close frame with this code and reason; the agent's answer ends the connection.
    Close(u16, String),
    /// Nothing is read or written any more, but the socket stays open.
    BlackHole,
    /// At most so many bytes a second are read.
    Slow(u32),
    /// As it was before [`Cut::BlackHole`] or [`Cut::Slow`].
    Heal,
}

/// Which sessions something is done to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sessions {
    /// The newest.
    Newest,
    /// All.
    All,
}

/// One session, as it is at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionInfo {
    /// Its number, unique for a start of the plane.
    pub number: u64,
    /// Its endpoint.
    pub role: Role,
    /// The cluster, once it is known.
    pub cluster_id: Option<String>,
    /// True if requests can go over it.
    pub is_ready: bool,
    /// Requests under way.
    pub requests: usize,
    /// Streams under way in messages.
    pub streams: usize,
    /// True if requests can go over streams of yamux.
    pub has_streams: bool,
    /// Streams of yamux that are open: under way, waiting for their next request, or ending.
    pub streams_open: usize,
    /// Streams of yamux that were ever opened.
    pub streams_opened: u64,
}

/// Everything that was recorded, for [`Plane::until`].
#[derive(Debug)]
pub struct View<'a> {
    /// Frames, the oldest first.
    pub frames: &'a VecDeque<Frame>,
    /// Handshakes, the oldest first.
    pub handshakes: &'a VecDeque<Handshake>,
    /// REST calls, the oldest first.
    pub rest_calls: &'a VecDeque<RestCall>,
    /// Payloads of heartbeats, the oldest first.
    pub heartbeats: &'a VecDeque<Value>,
    /// Payloads of `register`, the oldest first.
    pub registrations: &'a VecDeque<Value>,
    /// What happened to streams of yamux, the oldest first.
    pub stream_events: &'a VecDeque<StreamEvent>,
    /// What broke the protocol, the oldest first.
    pub violations: &'a VecDeque<Violation>,
    /// What agents delivered.
    pub records: &'a Records,
    /// The open sessions.
    pub sessions: &'a [SessionInfo],
}

/// 10 s: a call that only looks at the plane's state.
const CALL_LIMIT: Duration = Duration::from_secs(10);

impl Plane {
    /// Starts a plane.
    pub fn start(options: Options) -> Result<Self, Failure> {
        if let Some(dir) = &options.state_dir {
            std::fs::create_dir_all(dir)
                .map_err(|error| Failure::new(format!("cannot make {}: {error}", dir.display())))?;
        }
        let records = Records::load(options.state_dir.as_deref())?;
        let mut state = State::load_or_new(options.state_dir.as_deref())?;
        if let Some(token) = &options.token {
            state.token.clone_from(token);
        }
        let mut plane = Self {
            options,
            behaviour: Behaviour::default(),
            state,
            records,
            addresses: Addresses::default(),
            urls: Urls::default(),
            running: None,
        };
        plane.start_again()?;
        Ok(plane)
    }

    /// Starts a stopped plane on the same addresses, with the same state and behaviour.
    pub fn start_again(&mut self) -> Result<(), Failure> {
        self.stop();
        let listeners = thread::bind(&self.options, &mut self.addresses)?;
        let parts = Parts {
            options: self.options.clone(),
            addresses: self.addresses.clone(),
            kept: (self.state.clone(), std::mem::take(&mut self.records)),
            behaviour: self.behaviour.clone(),
            listeners,
        };
        let (jobs, queue) = bounded::<Job>(64);
        let thread = std::thread::Builder::new()
            .name("plane".to_owned())
            .spawn(move || thread::run(parts, &queue))
            .map_err(|error| Failure::new(format!("cannot start a thread: {error}")))?;
        self.running = Some(Running { jobs, thread });
        let urls = self.call(|world| Urls {
            api: world.api_url(),
            gateway: world.gateway_url(Security::Tls),
            plaintext: world
                .addresses
                .plaintext
                .map(|address| format!("http://{address}")),
        });
        self.urls = urls.ok_or_else(|| Failure::new("the plane's thread ended at once"))?;
        self.write_files()
    }

    /// What people and agents read: the CA, the token, the addresses.
    fn write_files(&self) -> Result<(), Failure> {
        let Some(dir) = &self.options.state_dir else {
            return Ok(());
        };
        self.state.save(dir)?;
        let public = |name: &str, text: &str| {
            state::replace(&dir.join(name), text.as_bytes(), Access::Everybody)
        };
        public("ca.pem", &self.state.ca_pem)?;
        public("api_url", &self.urls.api)?;
        public("gateway_url", &self.urls.gateway)?;
        let token = dir.join("token");
        state::replace(&token, self.state.token.as_bytes(), Access::Owner)
    }

    /// Stops the plane: its sockets are closed, without close frames.
    pub fn stop(&mut self) {
        let Some(running) = self.running.take() else {
            return;
        };
        drop(running.jobs);
        match running.thread.join() {
            Ok(Some((state, records))) => (self.state, self.records) = (state, records),
            Ok(None) => {}
            Err(_) => log::error!("the plane's thread panicked"),
        }
    }

    /// Stops the plane as a crash of its machine would: every connection is reset.
    pub fn kill(&mut self) {
        self.call(|world| world.cut_all(Ending::Reset));
        self.stop();
    }

    /// `https://127.0.0.1:PORT`
    pub fn api_url(&self) -> &str {
        &self.urls.api
    }

    /// `wss://127.0.0.1:PORT/ws`
    pub fn gateway_url(&self) -> &str {
        &self.urls.gateway
    }

    /// `http://127.0.0.1:PORT`, with [`Options::plaintext_listen`].
    pub fn plaintext_url(&self) -> Option<&str> {
        self.urls.plaintext.as_deref()
    }

    /// Where kubectl and curl find a cluster.
    pub fn cluster_url(&self, cluster_id: &str) -> String {
        format!("{}/api/v1/clusters/agent/{cluster_id}/proxy", self.urls.api)
    }

    /// The certificate of the plane's own CA.
    pub fn ca_pem(&self) -> &str {
        &self.state.ca_pem
    }

    /// A client certificate of the plane's own CA, and its key.
    pub fn client_certificate(&self) -> (&str, &str) {
        (&self.state.client_pem, &self.state.client_key_pem)
    }

    /// The token that agents must show.
    pub fn token(&self) -> &str {
        &self.state.token
    }

    /// From now on agents must show another token.
    pub fn set_token(&mut self, token: &str) {
        token.clone_into(&mut self.state.token);
        let token = token.to_owned();
        self.call(move |world| world.state.borrow_mut().token = token);
    }

    /// The token that HTTP clients of [`Plane::cluster_url`] must show.
    pub fn user_token(&self) -> &str {
        &self.state.user_token
    }

    /// A kubeconfig for a cluster.
    pub fn kubeconfig(&self, cluster_id: &str) -> String {
        let url = self.cluster_url(cluster_id);
        state::kubeconfig(&url, &self.state.ca_pem, &self.state.user_token, cluster_id)
    }

    /// The clusters that registered, now or in an earlier start.
    pub fn clusters(&self) -> Vec<Cluster> {
        self.call(|world| world.state.borrow().clusters.clone())
            .unwrap_or_else(|| self.state.clusters.clone())
    }

    /// Forgets every cluster, as a control plane that lost its database.
    pub fn forget_clusters(&mut self) {
        self.state.clusters.clear();
        self.call(|world| world.state.borrow_mut().clusters.clear());
    }

    /// What agents delivered, now or in an earlier start.
    pub fn records(&self) -> Records {
        self.call(|world| world.records.borrow().clone())
            .unwrap_or_else(|| self.records.clone())
    }

    /// Changes the behaviour; it holds over restarts.
    pub fn set(&mut self, change: impl FnOnce(&mut Behaviour)) {
        change(&mut self.behaviour);
        let behaviour = self.behaviour.clone();
        self.call(move |world| {
            let is_without = behaviour.streams == Streams::Off;
            *world.behaviour.borrow_mut() = behaviour;
            let sessions: Vec<_> = world.sessions.borrow().values().map(Rc::clone).collect();
            if is_without {
                let waiting = sessions.iter().filter_map(|session| session.edge.mux());
                waiting.for_each(|mux| mux.pool.clear());
            }
            for session in sessions.iter().filter(|session| session.carries(None)) {
                edge::begin(world, session);
            }
        });
    }

    /// Waits until `level` gives something, looking again after each event.
    pub fn until<T, F>(&self, limit: Duration, mut level: F) -> Option<T>
    where
        T: Send + 'static,
        F: FnMut(&View<'_>) -> Option<T> + Send + 'static,
    {
        self.run(limit, |world| async move {
            let look = || look(&world, &mut level);
            world.record.bell.until(look).await
        })
    }

    /// What `look` makes of everything recorded.
    pub fn look<T, F>(&self, mut look: F) -> Option<T>
    where
        T: Send + 'static,
        F: FnMut(&View<'_>) -> T + Send + 'static,
    {
        self.call(move |world| self::look(world, |view| Some(look(view))))?
    }

    /// The number that the next frame gets: for [`Plane::wait_for`].
    pub fn mark(&self) -> u64 {
        self.call(|world| world.record.next_number())
            .unwrap_or_default()
    }

    /// Waits for a frame with a number from `mark` on (0: any that is still recorded).
    pub fn wait_for(
        &self,
        mark: u64,
        limit: Duration,
        mut is_it: impl FnMut(&Frame) -> bool + Send + 'static,
    ) -> Option<Frame> {
        let mut seen = mark;
        self.until(limit, move |view| {
            let first = view.frames.front().map_or(0, |frame| frame.number);
            let skip = usize::try_from(seen.saturating_sub(first)).unwrap_or(usize::MAX);
            for frame in view.frames.iter().skip(skip) {
                seen = frame.number + 1;
                if is_it(frame) {
                    return Some(frame.clone());
                }
            }
            None
        })
    }

    /// Waits for a session that can carry requests.
    pub fn wait_ready(&self, limit: Duration) -> Option<SessionInfo> {
        self.until(limit, |view| {
            view.sessions.iter().rev().find(|s| s.is_ready).cloned()
        })
    }

    /// Waits until no session is open.
    pub fn wait_gone(&self, limit: Duration) -> Option<()> {
        self.until(limit, |view| view.sessions.is_empty().then_some(()))
    }

    /// All recorded frames.
    pub fn frames(&self) -> Vec<Frame> {
        self.look(|view| view.frames.iter().cloned().collect())
            .unwrap_or_default()
    }

    /// All recorded handshakes.
    pub fn handshakes(&self) -> Vec<Handshake> {
        self.look(|view| view.handshakes.iter().cloned().collect())
            .unwrap_or_default()
    }

    /// All recorded REST calls.
    pub fn rest_calls(&self) -> Vec<RestCall> {
        self.look(|view| view.rest_calls.iter().cloned().collect())
            .unwrap_or_default()
    }

    /// All that agents did against the protocol.
    pub fn violations(&self) -> Vec<String> {
        self.look(|view| view.violations.iter().map(|v| v.what.clone()).collect())
            .unwrap_or_default()
    }

    /// The open sessions.
    pub fn sessions(&self) -> Vec<SessionInfo> {
        self.look(|view| view.sessions.to_vec()).unwrap_or_default()
    }

    /// Ends or spoils connections of agents.
    pub fn cut(&self, sessions: Sessions, cut: Cut) {
        self.each(sessions, move |world, session| match &cut {
            Cut::Reset => session.gate.set(Flow::Cut(Ending::Reset)),
            Cut::Fin => session.gate.set(Flow::Cut(Ending::Fin)),
            Cut::Close(code, reason) => session.close(world, *code, reason),
            Cut::BlackHole => session.gate.set(Flow::Silent),
            Cut::Slow(bytes_per_s) => session.gate.set(Flow::Slow(*bytes_per_s)),
            Cut::Heal => session.gate.set(Flow::Open),
        });
    }

    /// Sends the newest session a message in the carrier that is set.
    pub fn send(&self, kind: &'static str, request_id: Option<&str>, payload: Value) {
        let id = request_id.map(str::to_owned);
        self.each(Sessions::Newest, move |world, session| {
            session.send(world, kind, id.as_deref(), payload.clone());
        });
    }

    /// Sends the newest session one frame as it is: any text, any bytes, unfinished messages.
    pub fn send_frame(&self, opcode: Opcode, data: &[u8], last: Last) {
        let data = data.to_vec();
        self.each(Sessions::Newest, move |world, session| {
            session.send_frame(world, opcode, &data, last);
        });
    }

    /// Sends the newest session a text message as it is.
    pub fn send_text(&self, text: &str) {
        self.send_frame(Opcode::Text, text.as_bytes(), Last::Yes);
    }

    /// Sends the newest session a binary message as it is. Beside yamux it comes between two
    /// frames of it.
    pub fn send_binary(&self, data: &[u8]) {
        self.send_frame(Opcode::Binary, data, Last::Yes);
    }

    /// Writes bytes to the newest session that need not be WebSocket frames.
    pub fn send_bytes(&self, bytes: &[u8]) {
        let bytes = bytes.to_vec();
        self.each(Sessions::Newest, move |_world, session| {
            session.send_bytes(bytes.clone());
        });
    }

    /// Sends an `error` message.
    pub fn error(&self, text: &str) {
        self.send("error", None, json!({ "error": text }));
    }

    /// Sends a `ping` message.
    pub fn ping(&self, request_id: Option<&str>) {
        self.send("ping", request_id, json!({}));
    }

    /// Sends a request and waits for the head of its answer.
    pub fn request(&self, request: ProxyRequest, limit: Duration) -> Result<Response, Failed> {
        let (chunks, body) = bounded(8);
        self.run(limit, |world| async move {
            let (head, mut answer) = transport::request(&world, &request).await?;
            world.tasks.spawn(async move {
                while let Some(chunk) = poll_fn(|context| answer.poll_data(context)).await {
                    // A dropped body ends the request: it is cancelled with `answer`.
                    if chunks.send(chunk).await.is_err() {
                        break;
                    }
                }
            });
            Ok(head)
        })
        .unwrap_or(Err(Failed::Late))
        .map(|head| Response {
            head,
            body: Body { chunks: body },
        })
    }

    /// Starts a Kubernetes stream (exec, attach) in messages.
    pub fn stream(&self, request: StreamRequest) -> Result<StreamHandle, Failed> {
        let (handle, ends) = StreamHandle::pair();
        self.run(CALL_LIMIT, |world| async move {
            let session = transport::json(&world, request.cluster_id.as_deref())?;
            let stream = json::start(&world, session, &request).await;
            world.tasks.spawn(ends.carry(stream));
            Ok(handle)
        })
        .unwrap_or(Err(Failed::Late))
    }

    /// Opens an application's WebSocket in messages; gives the head of the answer too.
    pub fn websocket(
        &self,
        request: ProxyRequest,
        limit: Duration,
    ) -> Result<(Head, StreamHandle), Failed> {
        let (handle, ends) = StreamHandle::pair();
        self.run(limit, |world| async move {
            let session = transport::json(&world, request.cluster_id.as_deref())?;
            let opened = json::websocket(&world, session, &request).await;
            let (head, stream) = opened.map_err(|(_head, failed)| failed)?;
            world.tasks.spawn(ends.carry(stream));
            Ok((head, handle))
        })
        .unwrap_or(Err(Failed::Late))
    }

    fn each(&self, sessions: Sessions, act: impl Fn(&World, &Session) + Send + 'static) {
        self.call(move |world| match sessions {
            Sessions::Newest => {
                if let Some(session) = world.newest(None) {
                    act(world, &session);
                }
            }
            Sessions::All => {
                let all: Vec<_> = world.sessions.borrow().values().map(Rc::clone).collect();
                for session in all {
                    act(world, &session);
                }
            }
        });
    }

    /// Calls into the plane's thread; `None` when it is stopped.
    pub(crate) fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Rc<World>) -> T + Send + 'static,
    ) -> Option<T> {
        self.run(CALL_LIMIT, |world| async move { call(&world) })
    }

    /// Runs a future on the plane's thread; `None` when it is late or the plane is stopped.
    pub(crate) fn run<T, F>(
        &self,
        limit: Duration,
        make: impl FnOnce(Rc<World>) -> F + Send + 'static,
    ) -> Option<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let running = self.running.as_ref()?;
        let (sender, receiver) = bounded(1);
        let job: Job = Box::new(move |world| {
            let future = within(limit, make(Rc::clone(world)));
            world.tasks.spawn(async move {
                if let Some(made) = future.await {
                    // The caller waits for exactly this, or has given up.
                    drop(sender.send(made).await);
                }
            });
        });
        let call = async {
            running.jobs.send(job).await.ok()?;
            receiver.recv().await.ok()
        };
        // A plane that hangs must not hang its test.
        smol::block_on(within(limit + CALL_LIMIT, call)).flatten()
    }
}

impl Drop for Plane {
    fn drop(&mut self) {
        self.stop();
    }
}

fn look<T>(world: &World, mut look: impl FnMut(&View<'_>) -> Option<T>) -> Option<T> {
    let sessions: Vec<SessionInfo> = world
        .sessions
        .borrow()
        .values()
        .map(|session| {
            let (streams_open, streams_opened) = session.edge.count();
            SessionInfo {
                number: session.number,
                role: session.role,
                cluster_id: session.cluster_id.borrow().clone(),
                is_ready: session.carries(None),
                requests: session.exchanges.borrow().len(),
                streams: session.streams.borrow().len(),
                has_streams: session.edge.streams().is_some(),
                streams_open,
                streams_opened,
            }
        })
        .collect();
    look(&View {
        frames: &world.record.frames.borrow(),
        handshakes: &world.record.handshakes.borrow(),
        rest_calls: &world.record.rest_calls.borrow(),
        heartbeats: &world.record.heartbeats.borrow(),
        registrations: &world.record.registrations.borrow(),
        violations: &world.record.violations.borrow(),
        stream_events: &world.record.streams.borrow(),
        records: &world.records.borrow(),
        sessions: &sessions,
    })
}

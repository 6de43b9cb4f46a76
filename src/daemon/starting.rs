//! Startup: answers on the socket and the local port, and to the service manager, until the
//! databases are open.
//!
//! It answers from memory. The socket and the port stay open when the whole agent takes over, so
//! that nobody finds them closed; connections end, and clients come again.

use std::{
    cell::{Cell, RefCell},
    io,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    rc::Rc,
    time::Duration,
};

use smol::{
    Task, Timer,
    future::{self, FutureExt as _},
    lock::OnceCell,
};

use super::VERSION;
use crate::{
    config::{Loaded, Provisional, Settings},
    core::authorization::{Role, View},
    dashboard::{
        Answering, Answers, ApiRequest, Hub, Rejection, Reply, Server, Session, Site, StatusCode,
    },
    error::Result,
    executor::Executor,
    files::Jobs,
    host::{
        notify::Notifier,
        signals::{Signal, Signals},
    },
    tasks::{dashboard::status, machine::stall, state::SharedState},
    wire::api::{SessionReport, Status},
};

/// A start that is over by then needs no page of its own.
const TIMEOUT: Duration = Duration::from_millis(200);
/// Interval between tries to listen, and between words to the service manager.
const RETRY_WAIT: Duration = Duration::from_secs(2);

/// An agent that is not whole yet.
pub(super) struct Starting {
    pub(super) executor: Rc<Executor>,
    pub(super) shared_state: Rc<SharedState>,
    pub(super) jobs: Jobs,
    /// True once it took longer than [`TIMEOUT`].
    is_late: Cell<bool>,
    listeners: Rc<Listeners>,
}

/// Socket and port that were opened before the whole agent was there.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    socket: Slot<PathBuf>,
    port: Slot<SocketAddr>,
    /// Tasks that open them.
    tasks: RefCell<Vec<Task<()>>>,
}

/// A listener by its address; `None` in the cell: it could not be opened.
type Slot<A> = RefCell<Option<(A, Rc<OnceCell<Option<Server>>>)>>;

impl Listeners {
    /// Hands over the socket of this path. Any other is closed.
    pub(super) async fn take_socket(&self, path: &Path) -> Option<Server> {
        let opened = self.socket.take().filter(|(here, _)| here == path);
        taken(opened?.1).await
    }

    /// Hands over the port of this address. Any other is closed.
    pub(super) async fn take_port(&self, wanted: SocketAddr) -> Option<Server> {
        let opened = self.port.take().filter(|(here, _)| *here == wanted);
        taken(opened?.1).await
    }

    /// Closes the port.
    pub(super) fn close_port(&self) {
        self.port.take();
    }
}

/// A listener that may still be opened now: two that are opened at a time would take the path from
/// each other.
async fn taken(opened: Rc<OnceCell<Option<Server>>>) -> Option<Server> {
    opened.wait().await;
    Rc::into_inner(opened)?.into_inner().flatten()
}

/// Addresses of the page.
pub(super) struct Addresses {
    socket: PathBuf,
    /// The port on this machine: other machines need a certificate, which is on the disk.
    port: Option<SocketAddr>,
    anonymous: Role,
}

impl Addresses {
    /// Those that hold while the settings cannot be read.
    pub(super) fn provisional(known: &Provisional) -> Self {
        Self::new(known.socket.clone(), known.listen, known.shows_itself)
    }

    /// Those of settings with a mistake: as they say where they could be understood, else as
    /// without them.
    pub(super) fn unusable(loaded: &Loaded, known: &Provisional) -> Self {
        let (listen, shows_itself) = loaded.page().unwrap_or((known.listen, known.shows_itself));
        Self::new(loaded.socket().to_owned(), listen, shows_itself)
    }

    /// Returns whether there is a page on a port.
    pub(super) const fn has_port(&self) -> bool {
        self.port.is_some()
    }

    /// Those of the settings.
    pub(super) fn of(settings: &Settings) -> Self {
        let dashboard = &settings.dashboard;
        let socket = dashboard.socket.clone();
        Self::new(socket, dashboard.listen, dashboard.shows_itself)
    }

    fn new(socket: PathBuf, listen: Option<SocketAddr>, shows_itself: bool) -> Self {
        let here = |wanted: SocketAddr| match wanted.ip() {
            ip if ip.is_loopback() => wanted,
            _ => SocketAddr::new(Ipv4Addr::LOCALHOST.into(), wanted.port()),
        };
        Self {
            socket,
            port: listen.map(here),
            anonymous: if shows_itself {
                Role::Anonymous
            } else {
                Role::Nobody
            },
        }
    }
}

impl Starting {
    /// Listeners that this start has opened.
    pub(super) fn listeners(&self) -> Rc<Listeners> {
        Rc::clone(&self.listeners)
    }

    pub(super) fn new(executor: Rc<Executor>, shared_state: Rc<SharedState>, jobs: Jobs) -> Self {
        Self {
            executor,
            shared_state,
            jobs,
            is_late: Cell::new(false),
            listeners: Rc::default(),
        }
    }

    /// Watches over the disk until it is dropped; `directory` is the state directory, as soon as it
    /// is known.
    pub(super) fn watch(&self, directory: Option<PathBuf>) -> Task<()> {
        let state = Rc::clone(&self.shared_state);
        self.executor
            .spawn(stall::watch(self.jobs.clone(), directory, state))
    }

    /// Waits for what the agent cannot begin without. There is no deadline: a disk that hangs may
    /// answer at any time, and until then the page, `/readyz` and the service manager are told what
    /// is waited for. `None`: told to stop.
    pub(super) async fn until<T>(
        &self,
        work: impl Future<Output = T>,
        (addresses, notifier): (&Addresses, &Notifier),
        signals: &mut Signals,
    ) -> Option<T> {
        let work = async { Some(work.await) };
        let stopped = async {
            while signals.next().await == Some(Signal::Reload) {}
            None
        };
        let reported = async {
            self.serve(addresses, notifier).await;
            None
        };
        work.or(stopped).or(reported).await
    }

    /// Serves what is known so far, until it is dropped.
    async fn serve(&self, addresses: &Addresses, notifier: &Notifier) {
        if !self.is_late.get() {
            Timer::after(TIMEOUT).await;
            self.is_late.set(true);
        }
        let answers = Rc::new(Early(Rc::clone(&self.shared_state)));
        let site = Site::new(answers, addresses.anonymous, Rc::new(Hub::new(0)));
        let site = Rc::new(site);
        let on_socket = async {
            let slot = &self.listeners.socket;
            let bind = || {
                let (path, jobs) = (addresses.socket.clone(), self.jobs.clone());
                async move { Server::on_socket(&path, &jobs).await }
            };
            self.answer((slot, &addresses.socket), bind, &site).await;
        };
        let on_port = async {
            if let Some(port) = &addresses.port {
                let port = *port;
                let slot = &self.listeners.port;
                let bind = || Server::on_port(port);
                self.answer((slot, &port), bind, &site).await;
            }
        };
        // Whoever waits for the start of the service waits for this, and not for the disk.
        notifier.ready("starting");
        let reported = async {
            while notifier.is_heard() {
                Timer::after(RETRY_WAIT).await;
                notifier.status(&status::verdict(&self.shared_state).sentence);
            }
        };
        future::zip(future::zip(on_socket, on_port), reported).await;
    }

    /// Listens, as soon as that can be, and answers. Why it cannot is told by the whole agent,
    /// which tries the same.
    #[expect(clippy::infinite_loop, reason = "it serves until it is dropped")]
    async fn answer<A: Clone + PartialEq, F>(
        &self,
        (slot, address): (&Slot<A>, &A),
        bind: impl Fn() -> F,
        site: &Rc<Site>,
    ) where
        F: Future<Output = Result<Server>> + 'static,
    {
        loop {
            let opened = {
                let mut slot = slot.borrow_mut();
                match &*slot {
                    Some((here, opened)) if here == address => Rc::clone(opened),
                    _ => {
                        let opened = self.opening(bind());
                        *slot = Some((address.clone(), Rc::clone(&opened)));
                        opened
                    }
                }
            };
            if let Some(server) = opened.wait().await {
                let executor = Rc::clone(&self.executor);
                server.serve(executor, Rc::clone(site)).await;
            }
            slot.take();
            Timer::after(RETRY_WAIT).await;
        }
    }

    /// Opens a listener in a task of its own, so that it comes to its end whatever becomes of this
    /// start.
    fn opening(
        &self,
        bind: impl Future<Output = Result<Server>> + 'static,
    ) -> Rc<OnceCell<Option<Server>>> {
        let opened = Rc::new(OnceCell::new());
        let cell = Rc::clone(&opened);
        let work = async move {
            let bound = bind.await;
            if let Err(error) = &bound {
                log::debug!("{}", error.sentence());
            }
            // It is set here only.
            cell.set(bound.ok()).await.ok();
        };
        let mut tasks = self.listeners.tasks.borrow_mut();
        tasks.retain(|task| !task.is_finished());
        tasks.push(self.executor.spawn(work));
        opened
    }
}

/// Answers out of memory.
struct Early(Rc<SharedState>);

impl Answers for Early {
    fn status(&self) -> Status {
        status::of_start(&self.0, VERSION)
    }

    fn session(&self, _cookie: &str) -> Option<Session> {
        None
    }

    fn report(&self, request: &ApiRequest) -> SessionReport {
        SessionReport {
            role: request.caller.role.as_str().to_owned(),
            ..SessionReport::default()
        }
    }

    // Counted by the whole agent.
    fn turned_away(&self, _why: Rejection) {}

    fn accept_failed(&self, error: &io::Error) -> Duration {
        self.0.accept_failed(error)
    }

    fn accepted(&self) {
        self.0.accepted();
    }

    fn answer(self: Rc<Self>, view: View, _asked: ApiRequest) -> Answering {
        let status = self.status();
        Box::pin(async move {
            if view == View::Status {
                Reply::json(&status)
            } else if view == View::Ready {
                Reply::json(&status.readiness).with_code(StatusCode::SERVICE_UNAVAILABLE)
            } else {
                let fix = "pipeops-agent status says what it waits for";
                Reply::unavailable("the agent is starting", Some(fix))
            }
        })
    }
}

//! The first moments: what is said on the socket and on the port of this machine, and to the service manager, while a disk holds up the start.
//!
//! It answers from memory and hands nothing over: whoever watches is told to come again, and finds the whole agent at the same address.

use std::{
    cell::Cell,
    io,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    rc::Rc,
    time::Duration,
};

use smol::{
    LocalExecutor, Task, Timer,
    future::{self, FutureExt as _},
};

use super::VERSION;
use crate::{
    config::{Provisional, Settings},
    core::authorization::{Role, View},
    dashboard::{Answering, Answers, Asked, Away, Hub, Reply, Server, Session, Site, StatusCode},
    error::Result,
    files::Jobs,
    host::{
        notify::Notifier,
        signals::{Signals, Wish},
    },
    tasks::{dashboard::status, machine::stall, state::SharedState},
    wire::api::{SessionReport, Status},
};

/// A start that is over by then needs no page of its own.
const PATIENCE: Duration = Duration::from_millis(200);
/// Interval between tries to listen, and between words to the service manager.
const AGAIN: Duration = Duration::from_secs(2);

/// An agent that is not whole yet.
pub(super) struct Starting {
    pub(super) executor: Rc<LocalExecutor<'static>>,
    pub(super) shared_state: Rc<SharedState>,
    pub(super) jobs: Jobs,
    /// True once it took longer than [`PATIENCE`].
    is_late: Cell<bool>,
}

/// The ways to the page.
pub(super) struct Ways {
    socket: PathBuf,
    /// The port on this machine: other machines need a certificate, which is on the disk.
    port: Option<SocketAddr>,
    anonymous: Role,
}

impl Ways {
    /// Those that hold while the settings cannot be read.
    pub(super) fn provisional(known: &Provisional) -> Self {
        Self::new(known.socket.clone(), known.listen, known.shows_itself)
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
    pub(super) fn new(
        executor: Rc<LocalExecutor<'static>>,
        shared_state: Rc<SharedState>,
        jobs: Jobs,
    ) -> Self {
        Self {
            executor,
            shared_state,
            jobs,
            is_late: Cell::new(false),
        }
    }

    /// Watches over the disk until it is dropped; `directory` is the state directory, as soon as it is known.
    pub(super) fn watch(&self, directory: Option<PathBuf>) -> Task<()> {
        let state = Rc::clone(&self.shared_state);
        self.executor
            .spawn(stall::watch(self.jobs.clone(), directory, state))
    }

    /// Waits for what the agent cannot begin without. There is no deadline: a disk that hangs may answer at any time, and until then the page,
    /// `/readyz` and the service manager are told what is waited for. `None`: told to stop.
    pub(super) async fn until<T>(
        &self,
        work: impl Future<Output = T>,
        (ways, notifier): (&Ways, &Notifier),
        signals: &mut Signals,
    ) -> Option<T> {
        let work = async { Some(work.await) };
        let stopped = async {
            while signals.next().await == Some(Wish::Reload) {}
            None
        };
        let told = async {
            self.serve(ways, notifier).await;
            None
        };
        work.or(stopped).or(told).await
    }

    /// Serves what is known so far, until it is dropped.
    async fn serve(&self, ways: &Ways, notifier: &Notifier) {
        if !self.is_late.get() {
            Timer::after(PATIENCE).await;
            self.is_late.set(true);
        }
        let answers = Rc::new(Early(Rc::clone(&self.shared_state)));
        let site = Site::new(answers, ways.anonymous, Rc::new(Hub::new(0)));
        let site = Rc::new(site);
        let on_socket = async {
            let bind = async || Server::on_socket(&ways.socket, &self.jobs).await;
            let server = open(bind).await;
            server
                .serve(Rc::clone(&self.executor), Rc::clone(&site))
                .await;
        };
        let on_port = async {
            if let Some(port) = ways.port {
                let server = open(async || Server::on_port(port).await).await;
                server
                    .serve(Rc::clone(&self.executor), Rc::clone(&site))
                    .await;
            }
        };
        // Whoever waits for the start of the service waits for this, and not for the disk.
        notifier.ready("starting");
        let told = async {
            while notifier.is_heard() {
                Timer::after(AGAIN).await;
                notifier.status(&status::verdict(&self.shared_state).sentence);
            }
        };
        future::zip(future::zip(on_socket, on_port), told).await;
    }
}

/// Listens, as soon as that can be. Why it cannot is told by the whole agent, which tries the same.
async fn open(bind: impl AsyncFn() -> Result<Server>) -> Server {
    loop {
        match bind().await {
            Ok(server) => return server,
            Err(error) => log::debug!("{}", error.sentence()),
        }
        Timer::after(AGAIN).await;
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

    fn report(&self, asked: &Asked) -> SessionReport {
        SessionReport {
            role: asked.caller.role.as_str().to_owned(),
            ..SessionReport::default()
        }
    }

    // Counted by the whole agent.
    fn turned_away(&self, _why: Away) {}

    fn accept_failed(&self, error: &io::Error) -> Duration {
        self.0.accept_failed(error)
    }

    fn accepted(&self) {
        self.0.accepted();
    }

    fn answer(self: Rc<Self>, view: View, _asked: Asked) -> Answering {
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

//! The ways to the dashboard: the socket and the port. How other machines come in is in
//! [`super::dashboard_tls`].

use std::{net::SocketAddr, rc::Rc};

use smol::future;

use super::{Agent, TEND_EVERY};
use crate::{
    config::{Origin, Settings, keys::Secrecy},
    core::{authorization::Role, health::Severity},
    dashboard::{Answers as _, Server, Site},
    error::{Error, Result},
    host::clock,
    log,
    tasks::{
        dashboard::{
            handlers::{Local, Repairs, Sources},
            stream::Watcher,
            views::diagnosis::{self, Prober},
        },
        link::deliver::Databases,
        state::DashboardView,
    },
    wire::{
        api::{LogEntry, LogPage, SettingReport, SettingsReport},
        handshake::DialTarget,
    },
};

impl Agent {
    /// Answers local viewers on the socket and on the port.
    pub(super) async fn serve(self: Rc<Self>) {
        let anonymous = if self.settings.dashboard.shows_itself {
            Role::Anonymous
        } else {
            Role::Nobody
        };
        let local = self.local();
        let site = Site::new(Rc::<Local>::clone(&local), anonymous, self.stream.hub());
        let site = Rc::new(site);
        let lines_after = |seen| lines_after(&self.lines, seen);
        let watcher = Watcher {
            stream: &self.stream,
            status: &|| local.status(),
            now: &|| self.shared_state.now(),
            lines_after: &lines_after,
        };
        let reported = watcher.run();
        let served = future::zip(self.serve_socket(Rc::clone(&site)), self.serve_port(site));
        let examined = async {
            if self.mode.is_normal() {
                future::zip(self.publisher.run(), local.examine()).await;
            }
        };
        future::zip(future::zip(served, reported), examined).await;
    }

    async fn serve_socket(&self, site: Rc<Site>) {
        let path = &self.settings.dashboard.socket;
        let bind = async || Server::on_socket(path, &self.jobs).await;
        let server = match self.listeners.take_socket(path).await {
            Some(server) => server,
            None => self.open("dashboard.socket", bind).await,
        };
        server.serve(Rc::clone(&self.executor), site).await;
    }

    async fn serve_port(&self, site: Rc<Site>) {
        match self.settings.dashboard.listen {
            None => {}
            Some(listen) if listen.ip().is_loopback() => self.serve_here(listen, site).await,
            Some(listen) => self.serve_network(listen, site).await,
        }
    }

    /// Serves this machine alone.
    pub(super) async fn serve_here(&self, wanted: SocketAddr, site: Rc<Site>) {
        let bind = async || Server::on_port(wanted).await;
        let server = match self.listeners.take_port(wanted).await {
            Some(server) => server,
            None => self.open("dashboard.listen", bind).await,
        };
        if let Some(address) = server.address() {
            let url = format!("http://{address}");
            ::log::info!("dashboard at {url}/, Prometheus metrics at {url}/metrics");
            self.shared_state.dashboard.replace(DashboardView {
                urls: vec![url],
                certificate: None,
            });
        }
        server.serve(Rc::clone(&self.executor), site).await;
    }

    /// Whom the views ask.
    pub(super) fn sources(self: &Rc<Self>) -> Sources {
        let for_clock = Rc::clone(self);
        let lines = self.lines.clone();
        Sources {
            client: self.cluster.clone(),
            known: Rc::clone(&self.known),
            databases: Databases {
                has_control_plane: self.settings.pipeops.control_plane.is_some(),
                telemetry: self.telemetry.clone(),
                state: self.store.clone(),
            },
            prober: Prober::new(diagnosis::ProberDependencies {
                server: self.settings.pipeops.control_plane.as_ref().map(|server| {
                    diagnosis::Server {
                        target: DialTarget::controller(&server.api_url),
                        read: Box::new(self.for_diagnosis(server)),
                    }
                }),
                shared_state: Rc::clone(&self.shared_state),
                clock: clock::now,
            }),
            settings: settings(&self.settings),
            lines: Box::new(move |tail| page(&lines, tail)),
            clock_is_set: Box::new(move || for_clock.network.clock_is_set()),
            repairs: Repairs::new(self.look(), self.settings.keeper.socket.clone(), clock::now),
        }
    }

    /// Opens a way. One that cannot be had is a condition, and is tried again.
    pub(super) async fn open(
        &self,
        condition: &'static str,
        bind: impl AsyncFn() -> Result<Server>,
    ) -> Server {
        loop {
            match bind().await {
                Ok(server) => {
                    self.shared_state.clear(condition);
                    return server;
                }
                Err(error) => {
                    self.shared_state.report(
                        condition,
                        Severity::Warning,
                        error.sentence(),
                        error.fix,
                    );
                }
            }
            clock::tick(TEND_EVERY).await;
        }
    }
}

/// The newest of the remembered lines.
fn page(recent: &log::Recent, tail: usize) -> LogPage {
    let (mut lines, _) = lines_after(recent, 0);
    let surplus = lines.len().saturating_sub(tail);
    LogPage {
        lines: lines.split_off(surplus),
    }
}

fn lines_after(recent: &log::Recent, seen: u64) -> (Vec<LogEntry>, u64) {
    let (lines, written) = recent.lines_after(seen);
    let first = written.saturating_sub(u64::try_from(lines.len()).unwrap_or(0));
    let numbered = (first.saturating_add(1)..).zip(lines);
    (numbered.map(entry).collect(), written)
}

fn entry((id, line): (u64, log::Line)) -> LogEntry {
    LogEntry {
        id,
        at: line.at.rfc3339(),
        level: line.level.as_str().to_ascii_lowercase(),
        text: line.message,
    }
}

/// The settings as they were when the agent started.
fn settings(settings: &Settings) -> SettingsReport {
    let shown = settings.shown.iter().map(|setting| SettingReport {
        key: setting.key.path.to_owned(),
        value: setting.value.clone(),
        origin: setting.origin.to_string(),
        meaning: setting.key.doc.to_owned(),
        is_secret: setting.key.secrecy != Secrecy::Open,
        is_default: setting.origin == Origin::Default,
    });
    SettingsReport {
        settings: shown.collect(),
        warnings: settings.warnings.iter().map(Error::sentence).collect(),
    }
}

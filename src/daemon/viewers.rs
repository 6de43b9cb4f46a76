//! The ways to the dashboard: the socket and the port.

use std::rc::Rc;

use smol::{Timer, future};

use super::{Agent, TEND_EVERY};
use crate::{
    core::{door::Role, health::Severity},
    dashboard::{Server, Site},
    error::Result,
};

impl Agent {
    /// Answers local viewers on the socket and on the port.
    pub(super) async fn serve(self: Rc<Self>) {
        let anonymous = if self.settings.dashboard.shows_itself {
            Role::Anonymous
        } else {
            Role::Nobody
        };
        let site = Rc::new(Site::new(self.local(), anonymous, Vec::new()));
        future::zip(self.serve_socket(Rc::clone(&site)), self.serve_port(site)).await;
    }

    async fn serve_socket(&self, site: Rc<Site>) {
        let path = &self.settings.dashboard.socket;
        let server = self
            .open("dashboard.socket", async || Server::on_socket(path))
            .await;
        server.serve(Rc::clone(&self.executor), site).await;
    }

    async fn serve_port(&self, site: Rc<Site>) {
        let Some(wanted) = self.settings.dashboard.listen else {
            return;
        };
        let server = self
            .open("dashboard.listen", async || Server::on_port(wanted).await)
            .await;
        if let Some(address) = server.address() {
            log::info!(
                "the dashboard is at http://{address}/, for a Prometheus at http://{address}/metrics"
            );
        }
        server.serve(Rc::clone(&self.executor), site).await;
    }

    /// Opens a way. One that cannot be had is a condition, and is tried again.
    async fn open(
        &self,
        condition: &'static str,
        bind: impl AsyncFn() -> Result<Server>,
    ) -> Server {
        loop {
            match bind().await {
                Ok(server) => {
                    self.board.clear(condition);
                    return server;
                }
                Err(error) => {
                    self.board
                        .report(condition, Severity::Warning, error.sentence(), error.fix);
                }
            }
            Timer::after(TEND_EVERY).await;
        }
    }
}

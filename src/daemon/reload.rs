//! Files that the running agent reads again and again: certificates, tokens, passwords. In the
//! blocking pool, because their disk may hang.

use std::rc::Rc;

use smol::future;

use super::{Agent, TEND_EVERY, safe_mode::Start, wiring};
use crate::{
    config::{ControlPlane, Credentials},
    core::{health::Severity, stall::Job, url::Url},
    error::Result,
    host::clock,
    link::dial::Caller,
    outside::post::{Authorization, HttpClient},
    tasks::{
        dashboard::{handlers::Look, views::diagnosis},
        machine::doctor,
    },
    wire::handshake::DialTarget,
};

impl Agent {
    /// Opens sessions with the control plane, with the certificates as they are now.
    pub(super) async fn new_caller(&self, server: &ControlPlane) -> Result<Caller> {
        let (network, settings) = (self.network.clone(), self.settings.clone());
        let server = server.clone();
        let read = move || network.caller(&settings, &server);
        self.jobs.run(Job::Certificate, read).await.flatten()
    }

    /// Waits until a cluster appears on a machine that had none, and has the next start connect to
    /// it. It never returns where there is one, or where no service manager would start the agent
    /// again.
    pub(super) async fn restart_on_cluster(&self, start: &Start) {
        let around = &self.settings.surroundings;
        if self.cluster.is_some() || around.runtime_directory.is_none() {
            return future::pending().await;
        }
        loop {
            clock::tick(TEND_EVERY).await;
            let (named, around) = (self.settings.agent.kubeconfig.clone(), around.clone());
            let look = move || wiring::source(named.as_deref(), &around).is_some();
            if self.jobs.run(Job::Kubeconfig, look).await == Ok(true) {
                ::log::info!("a cluster appeared: starting again to connect to it");
                start.forget();
                return;
            }
        }
    }

    /// Credentials at a receiver, as they are now each time.
    pub(super) fn authorization(
        &self,
        credentials: Option<&Credentials>,
    ) -> impl Fn() -> Authorization + use<> {
        let (jobs, credentials) = (self.jobs.clone(), credentials.cloned());
        move || {
            let (jobs, credentials) = (jobs.clone(), credentials.clone());
            Box::pin(async move {
                let Some(credentials) = credentials else {
                    return Ok(None);
                };
                let read = jobs.run(Job::Secret, move || credentials.authorization());
                read.await.flatten().map(Some)
            })
        }
    }

    /// Speaks to a server that a setting names; what keeps it from being had is told under this
    /// condition.
    pub(super) async fn client(&self, url: &Url, unreached: &'static str) -> HttpClient {
        loop {
            let (network, settings) = (self.network.clone(), self.settings.clone());
            let of = url.clone();
            let read = move || network.client_tls(&settings, &of);
            match self.jobs.run(Job::Certificate, read).await.flatten() {
                Ok(tls) => return self.network.client(url, tls),
                Err(error) => self.shared_state.report(
                    unreached,
                    Severity::Warning,
                    error.sentence(),
                    error.fix,
                ),
            }
            clock::tick(TEND_EVERY).await;
        }
    }

    /// Credentials that the connectivity probe shows to the control plane; the token where it may
    /// be shown there.
    pub(super) fn for_diagnosis(
        self: &Rc<Self>,
        server: &ControlPlane,
    ) -> impl Fn() -> diagnosis::Reading + use<> {
        let (agent, server) = (Rc::clone(self), server.clone());
        move || {
            let (agent, server) = (Rc::clone(&agent), server.clone());
            Box::pin(async move {
                let caller = agent.new_caller(&server).await;
                let caller = caller.map_err(|error| error.sentence())?;
                let target = DialTarget::controller(&server.api_url);
                let is_allowed = agent.registrar.allows(&target).is_ok();
                let source = server.token.clone();
                let read = agent.jobs.run(Job::Secret, move || source.read()).await;
                let token = read.flatten().ok().filter(|_| is_allowed);
                Ok(diagnosis::Read { caller, token })
            })
        }
    }

    /// Looks at the machine, with the eyes of the root helper where there is one.
    pub(super) fn look(&self) -> Look {
        let (settings, jobs) = (self.settings.clone(), self.jobs.clone());
        Box::new(move || {
            let (settings, jobs) = (settings.clone(), jobs.clone());
            let (state_dir, keeper) = (
                settings.agent.state_dir.clone(),
                settings.keeper.socket.clone(),
            );
            Box::pin(async move {
                let read = move || super::doctor::subject(Ok(&settings), &settings.keeper.socket);
                let subject = jobs.run(Job::Certificate, read).await;
                let subject = subject
                    .unwrap_or_else(|error| doctor::DoctorTarget::unread(error, state_dir, keeper));
                doctor::run(&subject).await
            })
        })
    }
}

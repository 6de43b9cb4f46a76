//! What local viewers are told, and what they may set: the agent's side of the server on the socket.

use std::{rc::Rc, time::Duration};

use smol::{Timer, future::FutureExt as _};

use super::{
    access::Access, board::Board, facts::Facts, metrics, proxy::Proxy, sample::Sampler, status,
};
use crate::{
    core::{access::Inquiry, outbox::Backlog, policy::Level},
    dashboard::{Answers, Peer, Refused},
    store::{Failure, telemetry},
    wire::api::{AccessChange, AccessReport, Decision, Load, Status},
};

/// How long a Prometheus waits for what is on disk.
const BACKLOG_WITHIN: Duration = Duration::from_secs(2);

/// Everybody who knows something.
#[derive(Debug)]
pub struct Local {
    /// What is known right now.
    pub board: Rc<Board>,
    /// The machine.
    pub facts: Rc<Facts>,
    /// What runs.
    pub proxy: Rc<Proxy>,
    /// How strict this box is.
    pub access: Rc<Access>,
    /// What reads the machine.
    pub sampler: Rc<Sampler>,
    /// What it read, and what of it waits to be delivered.
    pub telemetry: telemetry::Handle,
}

impl Answers for Local {
    fn status(&self) -> Status {
        let load = self.proxy.load();
        let load = Load {
            exchanges: load.exchanges.try_into().unwrap_or(u64::MAX),
            waiting: load.short_waiting.try_into().unwrap_or(u64::MAX),
            streams: load.long_running.try_into().unwrap_or(u64::MAX),
            spooled_bytes: load.spooled_bytes,
            ..Load::default()
        };
        status::status(&self.board, &self.facts, self.access.in_short(), &load)
    }

    async fn metrics(&self) -> Option<String> {
        let reading = self.sampler.reading().await?;
        // A disk that does not answer hides what waits, not how the machine is.
        let backlog = self.telemetry.backlog().or(late());
        let backlog = backlog.await.unwrap_or_default();
        let (version, load) = (self.facts.version(), self.proxy.load());
        let page = metrics::page(&reading, &self.board, version, &load, backlog);
        Some(page)
    }

    async fn access(&self) -> AccessReport {
        self.access.report().await
    }

    async fn decision(&self, inquiry: Inquiry) -> Decision {
        self.access.decision(&inquiry).await
    }

    async fn set_access(&self, level: Level, peer: Peer) -> Result<AccessChange, Refused> {
        self.access.set(level, peer).await
    }
}

async fn late() -> Result<Vec<Backlog>, Failure> {
    Timer::after(BACKLOG_WITHIN).await;
    Err(Failure::Slow)
}

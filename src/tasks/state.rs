//! Shared state of all components: each task reports its part, the status and the heartbeat read
//! it.
//!
//! It keeps no history; what began and ended is counted until somebody takes it. One thread runs
//! everything, so the cells are borrowed for the length of a call only.

use std::cell::{Cell, RefCell};
use std::{io, net::IpAddr, rc::Rc, time::Duration};

use crate::core::{
    accept::Accepts,
    event::{Event, EventContent, Source, Tally},
    health::{Change, Condition, Conditions, Severity},
    k3s::backup::Kept,
    link::{LinkState, LinkStatus},
    rates::DiskSpace,
    time::{Mono, Now, Wall},
    verdict::Stage,
};
use crate::host::random;
use crate::kube::Heard;
use crate::wire::keeper::K3sStatus;

/// Condition of an agent that leaves the link to another one of its cluster.
pub const STANDBY: &str = "lease.standby";
/// The reason of events that a session was lost (warning), and that there is one again (note).
pub const LINK_LOST: &str = "link.lost";

/// The link as the uplink sees it.
#[derive(Clone, Debug, Default)]
pub struct LinkView {
    /// True if no control plane is configured.
    pub is_off: bool,
    /// The machine's own words; `None` before its first turn.
    pub status: Option<LinkStatus>,
    /// Times that the link was lost since the start.
    pub outages: u64,
    /// Reason why it was lost the last time.
    pub last_outage_why: Option<String>,
    /// Id of this cluster at the control plane.
    pub cluster_id: Option<String>,
    /// Registrations that the control plane took since the start.
    pub registrations: u64,
    /// Address of the link, or of the last attempt: `wss://host:port`.
    pub address: Option<String>,
    /// This machine's address on the way there.
    pub local_ip: Option<IpAddr>,
    /// Heartbeats that were queued since the start.
    pub heartbeats: u64,
    /// Time when the last heartbeat was queued.
    pub last_heartbeat: Option<Wall>,
    /// Between the last ping and its pong.
    pub round_trip: Option<Duration>,
    /// Payload bytes received since the start.
    pub received_bytes: u64,
    /// Payload bytes sent since the start.
    pub sent_bytes: u64,
    /// Time when the last message of the control plane came.
    pub heard: Option<Mono>,
    /// Open lanes.
    pub lanes: usize,
    /// Bytes that wait in them.
    pub queued_bytes: usize,
}

impl LinkView {
    /// State of the link, also before its machine's first turn.
    pub fn state(&self) -> LinkState {
        match &self.status {
            Some(status) => status.state,
            None if self.is_off => LinkState::Off,
            None => LinkState::Starting,
        }
    }
}

/// The cluster as its watches see it.
#[derive(Clone, Debug, Default)]
pub struct ClusterView {
    /// Address of the API server; `None`: no cluster is configured.
    pub server: Option<String>,
    /// `gitVersion` of the API server; kept while it does not answer.
    pub version: Option<String>,
    /// Reason why the API does not answer; `None` while it does.
    pub why: Option<String>,
    /// Nodes; `None` before the list was complete once.
    pub nodes: Option<u64>,
    /// Nodes whose Ready condition is true.
    pub nodes_ready: Option<u64>,
    /// Pods in all namespaces.
    pub pods: Option<u64>,
    /// Pods that run or should, and those of them that are not ready beyond their time to start.
    pub workloads: Option<(u64, u64)>,
    /// The last byte of the API server.
    pub heard: Option<Rc<Heard>>,
}

impl ClusterView {
    /// The time of the last byte of the API server.
    pub fn last_heard(&self) -> Option<Mono> {
        self.heard.as_ref()?.last()
    }
}

/// State of the dashboard, as its server reports it.
#[derive(Clone, Debug, Default)]
pub struct DashboardView {
    /// Addresses for browsers, best first: `https://192.0.2.7:7480`. Empty: only the socket.
    pub urls: Vec<String>,
    /// Certificate for other machines; `None`: not reachable from them.
    pub certificate: Option<CertificateView>,
}

/// Copies of backups of k3s, as their task sees them.
#[derive(Clone, Debug, Default)]
pub struct CopiesView {
    /// Address of the bucket.
    pub at: String,
    /// The newest there.
    pub newest: Option<Kept>,
    /// Number of copies of this node.
    pub count: usize,
    /// Length of all of them.
    pub bytes: u64,
    /// True if the server lets none be removed.
    pub keeps_all: bool,
    /// Time when the bucket was listed last.
    pub checked: Option<Wall>,
    /// Work that is under way.
    pub doing: Option<String>,
    /// Reason why the last try failed.
    pub why: Option<String>,
}

/// Certificate that the dashboard shows to other machines.
#[derive(Clone, Debug)]
pub struct CertificateView {
    /// SHA-256: `AB:CD:…`.
    pub fingerprint: String,
    /// Until when it holds, where it says so.
    pub until: Option<Wall>,
    /// True if it is self-signed.
    pub is_self_made: bool,
}

/// Connections that the dashboard rejected since the start, before there was a request.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct RejectedConnections {
    /// Rejected because all slots were in use.
    pub full: u64,
    /// Rejected because a request was not complete in time.
    pub slow: u64,
    /// Rejected because it was not HTTP.
    pub unreadable: u64,
}

/// The host's changing numbers.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostView {
    /// Share of the processor time in use since the reading before, over all processors.
    pub cpu_share: Option<f64>,
    /// Share of the memory in use.
    pub memory_share: Option<f64>,
}

#[derive(Debug)]
pub struct SharedState {
    clock: fn() -> Now,
    started: Now,
    conditions: RefCell<Conditions>,
    happened: RefCell<Tally>,
    /// Written by the uplink.
    pub link: RefCell<LinkView>,
    /// Written by the observer.
    pub cluster: RefCell<ClusterView>,
    /// Written by the server of the dashboard.
    pub dashboard: RefCell<DashboardView>,
    /// Written by the task that copies backups of k3s; `None`: none are copied.
    pub copies: RefCell<Option<CopiesView>>,
    /// k3s as root's watch saw it last; `None`: nobody watches. Shown, and nothing is decided by
    /// it.
    pub k3s: RefCell<Option<K3sStatus>>,
    /// Rejected connections, counted by the server of the dashboard.
    pub turned_away: Cell<RejectedConnections>,
    /// Written by the sampler.
    pub host: Cell<HostView>,
    /// Space at the root; written by the sampler.
    pub root: Cell<Option<DiskSpace>>,
    accepts: RefCell<Accepts>,
    accept_errors: Cell<u64>,
    /// Stage of the start; written by the daemon.
    pub stage: Cell<Stage>,
    /// Time when the doctor last checked this machine; written by its caller.
    pub examined: Cell<Option<Mono>>,
}

impl SharedState {
    /// Creates the state before anything was reported.
    pub fn new(clock: fn() -> Now) -> Self {
        Self {
            clock,
            started: clock(),
            conditions: RefCell::default(),
            happened: RefCell::default(),
            link: RefCell::default(),
            cluster: RefCell::default(),
            dashboard: RefCell::default(),
            k3s: RefCell::default(),
            copies: RefCell::default(),
            turned_away: Cell::default(),
            host: Cell::default(),
            root: Cell::default(),
            accepts: RefCell::default(),
            accept_errors: Cell::default(),
            stage: Cell::default(),
            examined: Cell::default(),
        }
    }

    /// Counts a connection to the dashboard that the kernel refused to hand over; returns the time
    /// until the next try.
    pub fn accept_failed(&self, error: &io::Error) -> Duration {
        self.accept_errors
            .set(self.accept_errors.get().saturating_add(1));
        let mut accepts = self.accepts.borrow_mut();
        let pause = accepts.failed(self.now().mono, random::jitter());
        if pause.is_news {
            log::warn!(
                "the dashboard cannot accept connections: {error}; fix: ls /proc/{}/fd says which descriptors are open; \
                 LimitNOFILE= of the service and fs.file-max say how many may be",
                std::process::id()
            );
        }
        pause.wait
    }

    /// A connection to the dashboard was handed over.
    pub fn accepted(&self) {
        if let Some(over) = self.accepts.borrow_mut().accepted(self.now().mono) {
            log::info!("the dashboard: {over}");
        }
    }

    /// Connections to the dashboard that the kernel refused to hand over since the start.
    pub const fn accept_errors(&self) -> u64 {
        self.accept_errors.get()
    }

    /// Returns when the agent started.
    pub const fn started(&self) -> Now {
        self.started
    }

    /// The clock that everything here is stamped with.
    pub fn now(&self) -> Now {
        (self.clock)()
    }

    /// Says that a condition holds. What is new gets a line in the log.
    pub fn report(
        &self,
        id: &'static str,
        severity: Severity,
        sentence: impl Into<String>,
        fix: Option<String>,
    ) {
        let sentence = sentence.into();
        let line = match &fix {
            Some(fix) => format!("{sentence}; fix: {fix}"),
            None => sentence.clone(),
        };
        let condition = Condition {
            id,
            severity,
            since: self.now().wall,
            sentence: sentence.clone(),
            fix,
        };
        let now = self.now().mono;
        let change = self.conditions.borrow_mut().report(condition, now);
        match change {
            Change::Same | Change::Varied => return,
            Change::Changed => {}
            Change::Began => self.happened(id, severity, sentence),
        }
        match severity {
            Severity::Note => log::info!("{line} condition={id}"),
            Severity::Warning => log::warn!("{line} condition={id}"),
            Severity::Critical => log::error!("{line} condition={id}"),
        }
    }

    /// Says that a condition no longer holds.
    pub fn clear(&self, id: &'static str) {
        if let Some(ended) = self.conditions.borrow_mut().clear(id) {
            let line = format!("resolved: {}", ended.sentence);
            log::info!("{line} condition={id}");
            self.happened(id, ended.severity, line);
        }
    }

    /// Takes out which conditions began and ended, and whatever else happened to this agent; `how`
    /// says up to where.
    pub fn take_events(&self, how: impl FnOnce(&mut Tally) -> Vec<Event>) -> Vec<Event> {
        how(&mut self.happened.borrow_mut())
    }

    /// Number of events dropped since the start because there were too many at once.
    pub fn dropped_events(&self) -> u64 {
        self.happened.borrow().dropped()
    }

    /// Says that something happened that is no condition.
    pub fn happened(&self, id: &str, severity: Severity, message: String) {
        let part = id.split('.').next().unwrap_or(id);
        let what = EventContent {
            source: Source::Agent,
            severity,
            subject: part.to_owned(),
            reason: id.to_owned(),
            message,
        };
        self.happened.borrow_mut().add(what, self.now().wall, 1);
    }

    /// Shows the conditions of one reporter that always says all of them: those of `ids` that are
    /// not among them do not hold.
    pub fn show_all(&self, ids: &[&'static str], holding: Vec<Condition>) {
        for id in ids {
            if !holding.iter().any(|condition| condition.id == *id) {
                self.clear(id);
            }
        }
        for Condition {
            id,
            severity,
            sentence,
            fix,
            ..
        } in holding
        {
            self.report(id, severity, sentence, fix);
        }
    }

    /// Returns whether this agent leaves the cluster to another one, as far as it knows.
    pub fn stands_by(&self) -> bool {
        self.with_conditions(|list| list.get(STANDBY).is_some())
    }

    /// Reads the list.
    pub fn with_conditions<T>(&self, read: impl FnOnce(&Conditions) -> T) -> T {
        read(&self.conditions.borrow())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_an_event_when_it_begins_and_when_it_ends_and_not_in_between() {
        let shared_state = SharedState::new(Now::default);
        shared_state.report("link.refused", Severity::Warning, "refused once", None);
        shared_state.report("link.refused", Severity::Warning, "refused twice", None);
        shared_state.clear("link.refused");
        shared_state.clear("link.refused");
        let events = shared_state.take_events(Tally::take);
        let said: Vec<_> = events
            .iter()
            .map(|event| (&*event.what.subject, &*event.what.message, event.count))
            .collect();
        let wanted = [
            ("link", "refused once", 1),
            ("link", "resolved: refused twice", 1),
        ];
        assert_eq!(said, wanted);
        assert!(
            events
                .iter()
                .all(|event| event.what.reason == "link.refused")
        );
        assert!(shared_state.take_events(Tally::take).is_empty());
    }
}

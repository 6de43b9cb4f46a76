//! Types of the local API: responses of the agent, as the command line reads them.
//!
//! Names are `snake_case` with the unit last and are stable: a field may be added, none changes its
//! meaning. An unknown value is `null`, never an invented number. Readers accept absent fields, so
//! that a command line of another version can query a running agent. States and severities are
//! text, not closed enums, for the same reason.

mod access;
mod cluster;
mod diagnosis;
mod doctor;
mod k3s;
mod lists;
mod rows;
mod series;
mod session;
mod verdict;

use serde::{Deserialize, Serialize};

pub use access::{
    ACCESS_PATH, AccessChange, AccessReport, AccessRequest, ByHand, Configured, DECISION_PATH,
    Decision, LastDay, Namespace, RefusedCall, Request, RequestCounts, Running, Service,
};
pub use cluster::{
    ClusterReport, NamespaceReport, NodeCondition, NodeReport, POD_LOGS_PATH, PodPage, PodReport,
    WorkloadPage, WorkloadReport,
};
pub use diagnosis::{DIAGNOSIS_PATH, Diagnosis, Figure, HOST_PATH, HostReport, Probe};
pub use doctor::{Automatic, Check, Doctor, Environment, Note, PROBLEMS_PATH};
pub use k3s::{K3S_PATH, K3sReport, copies_row, k3s_page, k3s_row, k3s_rows};
pub use lists::{
    CHANGES_PATH, ChangeList, Destination, EVENTS_PATH, EventPage, EventReport, LINK_PATH,
    LOGS_PATH, LinkReport, LogEntry, LogPage, Outage, STREAM_PATH, SettingReport, SettingsReport,
};
pub use rows::{Row, rows};
pub use series::{Column, Mark, SeriesHead, SeriesList, Values};
pub use session::{
    Login, LoginTokenRequest, NewToken, PASSWORD_PATH, PasswordReport, PasswordRequest,
    SESSIONS_PATH, SessionReport, SessionsEnded, TOKENS_PATH,
};
pub use verdict::{PartVerdict, Verdict};

pub use super::{
    backup::Copies,
    change::{ChangeReport, Undo},
};

use super::json::fields;
use crate::core::{health, time::Wall, verdict::cause};

/// Path of the status.
pub const STATUS_PATH: &str = "/api/v1/status";
/// The same by a person, who wants to have the machine looked at too.
pub const STATUS_FRESH_PATH: &str = "/api/v1/status?fresh=1";

/// Everything that `pipeops-agent status` and the overview page show.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct Status {
    /// The state of everything in one sentence without a full stop: that of the verdict.
    pub summary: String,
    /// The same with its code, its age, and the state of each part.
    pub verdict: Verdict,
    /// The version of the running agent.
    pub version: String,
    /// The agent's id, as the control plane knows it.
    pub agent_id: Option<String>,
    /// The cluster's id, given by the control plane with the first registration.
    pub cluster_id: Option<String>,
    /// The cluster's name from the settings.
    pub cluster_name: Option<String>,
    /// Time when the agent started: RFC 3339 in UTC, by the wall clock of that moment.
    pub started: String,
    /// Uptime of the agent, by the monotonic clock.
    pub uptime_s: u64,
    /// The kernel's id of this boot.
    pub boot_id: Option<String>,
    /// The link to the control plane.
    pub link: Link,
    pub cluster: Cluster,
    /// The machine.
    pub host: Host,
    /// Permissions of the control plane.
    pub access: Access,
    /// Address of the dashboard.
    pub dashboard: Dashboard,
    /// Current load of the agent.
    pub load: Load,
    /// Conditions, worst first.
    pub conditions: Vec<Condition>,
    /// The rest of it as people read it, in their order.
    pub rows: Vec<Row>,
    /// Readiness of each part of the agent.
    pub readiness: Readiness,
}

/// Readiness of the agent: the answer at `/readyz`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct Readiness {
    /// True if every part can.
    pub ready: bool,
    /// The state of everything in one sentence: the summary of [`Status`].
    pub sentence: String,
    /// The code of the verdict.
    pub code: String,
    /// The parts, always in the same order.
    pub parts: Vec<PartStatus>,
}

/// A part of the agent.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct PartStatus {
    /// Stable name: `link`, `cluster`, `store`, ….
    pub id: String,
    /// True if it can do what it is for.
    pub ready: bool,
    /// Reason why not; the sentence of the condition, where there is one.
    pub sentence: Option<String>,
}

/// The link to the control plane.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct Link {
    /// The word of a [`LinkState`](crate::core::link::LinkState), as in the log.
    pub state: String,
    /// Since when it is in that state: RFC 3339 in UTC.
    pub since: Option<String>,
    /// Reason why it is in that state, in words.
    pub why: Option<String>,
    /// The address that the link uses or tries next, without credentials.
    pub endpoint: Option<String>,
    /// Seconds until the next attempt, where one is planned.
    pub next_attempt_s: Option<f64>,
    /// Time when the last heartbeat went out: RFC 3339 in UTC.
    pub last_heartbeat: Option<String>,
    /// Round trip of the last answered ping.
    pub rtt_ms: Option<f64>,
    /// Sessions that were lost since the agent started.
    pub outages: u64,
    /// Reason why the last session was lost, in words.
    pub last_outage_why: Option<String>,
    /// Bytes of frames that came in since the agent started.
    pub received_bytes: u64,
    /// Bytes of frames that went out since the agent started.
    pub sent_bytes: u64,
}

/// State of the cluster, in one word.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ClusterState {
    /// No cluster is configured.
    None,
    /// The API has answered, and not everything was listed yet; or it was not asked yet.
    Connecting,
    /// The API answers.
    Ready,
    /// The API does not answer.
    Unreachable,
}

impl ClusterState {
    const ALL: [Self; 4] = [Self::None, Self::Connecting, Self::Ready, Self::Unreachable];

    /// Its word in the local API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Connecting => "connecting",
            Self::Ready => "ready",
            Self::Unreachable => "unreachable",
        }
    }

    /// The state of this word; `None`: there is none.
    pub fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == word)
    }
}

/// The cluster, as far as the Kubernetes API says.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct Cluster {
    /// The word of a [`ClusterState`]: `none`, `connecting`, `ready`, `unreachable`.
    pub state: String,
    /// The address of the API server.
    pub server: Option<String>,
    /// The version of the API server.
    pub version: Option<String>,
    /// All nodes.
    pub nodes: Option<u64>,
    /// Nodes that are ready.
    pub nodes_ready: Option<u64>,
    /// All pods.
    pub pods: Option<u64>,
    /// Pods that run or should.
    pub pods_expected: Option<u64>,
    /// Those of them that are not ready beyond their time to start.
    pub pods_not_ready: Option<u64>,
    /// Age of these numbers: time since the last byte of the API server; `null`: none came yet.
    pub age_s: Option<u64>,
    /// Reason why it is in that state, in words.
    pub why: Option<String>,
}

/// The machine.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct Host {
    /// The host's name.
    pub hostname: Option<String>,
    /// The distribution, as people call it.
    pub os: Option<String>,
    /// The kernel's release.
    pub kernel: Option<String>,
    /// The machine's architecture, as the kernel calls it.
    pub architecture: Option<String>,
    /// Processor cores that are on line.
    pub cores: Option<u64>,
    /// Memory in all.
    pub memory_bytes: Option<u64>,
    /// Memory that is in use and cannot be had back at once.
    pub memory_percent: Option<f64>,
    /// Share of all cores that was busy between the last two readings.
    pub cpu_percent: Option<f64>,
    /// Size of the file system at `/`.
    pub disk_bytes: Option<u64>,
    /// Share of it that is in use.
    pub disk_percent: Option<f64>,
    /// Time since the machine booted.
    pub uptime_s: Option<u64>,
    /// The address that the link uses, or would use.
    pub address: Option<String>,
}

/// Permissions of the control plane.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct Access {
    /// The level that holds: `full`, `managed`, `read-only` or `off`.
    pub level: String,
    /// The level of the configuration, where something stricter was set here by hand.
    pub tightened_from: Option<String>,
}

/// Address of the dashboard, and its exposure to other machines.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct Dashboard {
    /// Its addresses for browsers, the best first; none: it is on the socket alone.
    pub urls: Vec<String>,
    /// SHA-256 of its certificate, as browsers and openssl show it; `null`: only this machine
    /// reaches it.
    pub fingerprint: Option<String>,
    /// Until when the certificate holds: RFC 3339 in UTC.
    pub until: Option<String>,
    /// Origin of the certificate: made by the agent itself or not; `null`: there is none.
    pub is_self_made: Option<bool>,
    /// Connections rejected since the start, before there was a request.
    pub turned_away: TurnedAway,
}

/// Connections that ended before there was a request, by why.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct TurnedAway {
    /// All places were taken.
    pub full: u64,
    /// Connections that did not finish a request in time.
    pub slow: u64,
    /// It was no request.
    pub unreadable: u64,
}

/// Current load of the agent.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct Load {
    /// Proxied requests since the start, also those that were refused.
    pub requests: u64,
    /// Proxied requests under way.
    pub exchanges: u64,
    /// Proxied requests that wait for their turn.
    pub waiting: u64,
    /// Open lanes of the link.
    pub lanes: u64,
    /// Bytes that wait in them.
    pub queued_bytes: u64,
    /// Open streams (exec, application WebSockets).
    pub streams: u64,
    /// Bytes of large answers that wait on disk.
    pub spooled_bytes: u64,
}

/// One thing that is wrong.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct Condition {
    /// Stable id, `part.name`.
    pub id: String,
    /// `note`, `warning` or `critical`.
    pub severity: String,
    /// Time when it began: RFC 3339 in UTC.
    pub since: String,
    /// Problem and reason.
    pub sentence: String,
    /// Action for a person.
    pub fix: Option<String>,
    /// The condition that this one follows from, where that holds too.
    pub because: Option<String>,
}

impl From<&health::Condition> for Condition {
    fn from(condition: &health::Condition) -> Self {
        Self {
            because: None,
            id: condition.id.to_owned(),
            severity: condition.severity.as_str().to_owned(),
            since: stamp(condition.since),
            sentence: condition.sentence.clone(),
            fix: condition.fix.clone(),
        }
    }
}

/// A list of conditions as it is shown: the worst first.
pub fn conditions(list: &health::Conditions) -> Vec<Condition> {
    let shown = list.worst_first().into_iter().map(|condition| Condition {
        because: cause(list, condition.id).map(str::to_owned),
        ..Condition::from(condition)
    });
    shown.collect()
}

/// A stamp as the API writes it.
pub fn stamp(wall: Wall) -> String {
    wall.rfc3339()
}

/// A share as the API writes it: percent with one decimal, between 0 and 100. `None` where it is
/// not a number.
pub fn percent(share: f64) -> Option<f64> {
    share
        .is_finite()
        .then(|| (share.clamp(0.0, 1.0) * 1000.0).round() / 10.0)
}

/// The answer to "does the process work?": that there is an answer.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Health {
    /// Always `ok`.
    pub state: String,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            state: "ok".to_owned(),
        }
    }
}

/// Error body of every 4xx and 5xx.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct ErrorBody {
    /// Problem with the request or the agent.
    pub error: String,
    /// Action for the caller.
    pub fix: Option<String>,
}
fields!(ErrorBody { error, fix });

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{
        health::{Conditions, Severity},
        time::Mono,
    };

    fn condition(id: &'static str, severity: Severity) -> health::Condition {
        health::Condition {
            id,
            severity,
            since: Wall::from_millis(0),
            sentence: format!("{id} is wrong"),
            fix: None,
        }
    }

    #[test]
    fn conditions_are_shown_the_worst_first_with_their_cause() {
        let mut list = Conditions::default();
        list.report(condition("lease.rbac", Severity::Warning), Mono::default());
        list.report(condition("access.rbac", Severity::Warning), Mono::default());
        list.report(
            condition("link.refused", Severity::Critical),
            Mono::default(),
        );
        let shown = conditions(&list);
        let ids: Vec<_> = shown
            .iter()
            .map(|one| (one.id.as_str(), one.because.as_deref()))
            .collect();
        assert_eq!(
            ids,
            [
                ("link.refused", None),
                ("access.rbac", None),
                ("lease.rbac", Some("access.rbac")),
            ]
        );
    }

    #[test]
    fn a_reader_of_another_version_understands_what_it_knows() {
        let newer = r#"{"version":"9.9.9","agent_id":"agent-1","link":{"state":"ready","colour":"green"},"weather":[1]}"#;
        let status: Status = serde_json::from_str(newer).unwrap();
        assert_eq!(status.version, "9.9.9");
        assert_eq!(status.link.state, "ready");
        assert_eq!(status.host.cpu_percent, None);
    }

    #[test]
    fn what_is_not_known_is_null_and_what_is_known_comes_back() {
        let status = Status {
            version: "1.0.0".to_owned(),
            host: Host {
                cpu_percent: percent(0.1234),
                ..Host::default()
            },
            ..Status::default()
        };
        let text = serde_json::to_string(&status).unwrap();
        assert!(text.contains(r#""memory_percent":null"#), "{text}");
        assert!(text.contains(r#""cpu_percent":12.3"#), "{text}");
        assert_eq!(serde_json::from_str::<Status>(&text).unwrap(), status);
    }

    #[test]
    fn a_share_stays_between_nothing_and_all() {
        for (share, shown) in [
            (0.0, Some(0.0)),
            (0.001, Some(0.1)),
            (1.7, Some(100.0)),
            (-0.1, Some(0.0)),
            (f64::NAN, None),
        ] {
            assert_eq!(percent(share), shown);
        }
    }
}

//! Verdict: the state of everything as one code and one sentence, with a state for each part.
//!
//! `status`, the page, `/readyz`, the service manager and `doctor` show this and nothing else as
//! their first line.

pub mod sentences;
#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::core::order::OrderExt as _;

use super::{
    health::{Condition, Conditions, Severity},
    time::{Wall, in_words},
};

/// Condition of an API server that does not answer.
pub const UNREACHABLE: &str = "cluster.unreachable";
/// Condition of Pods that should serve and do not.
pub const PODS: &str = "workloads.not-ready";
/// Condition of what the doctor found on this machine.
pub const MACHINE: &str = "machine.doctor";
/// Code while nothing is wrong.
pub const OK: &str = "ok";
/// Code before the first session.
pub const CONNECTING: &str = "link.connecting";
/// Code of an agent that leaves the link to another one.
pub const STANDBY: &str = "link.standby";
/// Code of a part of which nothing is known yet.
pub const UNKNOWN: &str = "unknown";
/// Code of a part that is not there.
pub const NONE: &str = "none";
/// Stage of the start of the agent.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Stage {
    /// It is not whole yet: it says how it is, and nothing else.
    #[default]
    Starting,
    /// Everything runs.
    Running,
}

/// Conditions that follow from another one: one cause is one warning.
const FOLLOWS_FROM: [(&str, &str); 14] = [
    ("access.rbac", UNREACHABLE),
    ("access.rbac-differs", "access.rbac"),
    ("cluster.events-hidden", "access.rbac"),
    ("cluster.logs-hidden", "access.rbac"),
    ("cluster.node-not-ready", UNREACHABLE),
    ("cluster.refused", "access.rbac"),
    ("cluster.stats-unread", "access.rbac"),
    ("cluster.stats-unread", "cluster.node-not-ready"),
    ("cluster.stats-unread", UNREACHABLE),
    ("cluster.unwatched", UNREACHABLE),
    ("lease.rbac", "access.rbac"),
    ("lease.unreachable", UNREACHABLE),
    ("link.held", "identity.go-agent-runs"),
    (PODS, UNREACHABLE),
];

/// The condition that explains this one, where both hold.
pub fn cause(conditions: &Conditions, id: &str) -> Option<&'static str> {
    let of_this = FOLLOWS_FROM.iter().filter(|(follows, _)| *follows == id);
    of_this
        .map(|(_, cause)| *cause)
        .find(|cause| conditions.get(cause).is_some())
}

/// A part of what the agent looks after.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Part {
    /// The program itself: its databases, its dashboard, its identity.
    Agent,
    /// The session with the control plane.
    Link,
    /// The host.
    Machine,
    /// The Kubernetes API and the nodes.
    Cluster,
    /// The Pods.
    Workloads,
}

impl Part {
    /// All parts, in the order in which they are shown.
    pub const ALL: [Self; 5] = [
        Self::Agent,
        Self::Link,
        Self::Machine,
        Self::Cluster,
        Self::Workloads,
    ];

    /// The word in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Link => "link",
            Self::Machine => "machine",
            Self::Cluster => "cluster",
            Self::Workloads => "workloads",
        }
    }

    /// The part that a condition or a check belongs to.
    pub fn of(id: &str) -> Self {
        match id.split('.').next().unwrap_or(id) {
            "link" | "lease" => Self::Link,
            "cluster" | "k3s" => Self::Cluster,
            "workloads" | "apps" => Self::Workloads,
            "machine" | "clock" | "keeper" => Self::Machine,
            _ if id.starts_with("access.rbac") => Self::Cluster,
            _ => Self::Agent,
        }
    }
}

/// Severity.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Level {
    /// Nothing is wrong.
    Ok,
    /// Nothing is known yet, or there is nothing of the kind.
    Unknown,
    /// Worth knowing; nothing is broken.
    Note,
    /// Something is degraded, or will break.
    Warning,
    /// A person must act.
    Critical,
}

impl Level {
    /// The word in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Unknown => "unknown",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }
}

impl From<Severity> for Level {
    fn from(severity: Severity) -> Self {
        match severity {
            Severity::Note => Self::Note,
            Severity::Warning => Self::Warning,
            Severity::Critical => Self::Critical,
        }
    }
}

/// The session with the control plane.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Link {
    /// Connected.
    Ready,
    /// Another agent of the same cluster has it; the reason in words.
    StandingBy(String),
    /// Not connected.
    Away,
    /// No control plane is configured.
    Off,
}

/// Input of a verdict.
#[derive(Debug)]
pub struct Known<'a> {
    /// Everything that is wrong.
    pub conditions: &'a Conditions,
    /// The session with the control plane.
    pub link: Link,
    /// Time since the last byte of the control plane; `None` without a session.
    pub link_age: Option<Duration>,
    /// True if a cluster is configured.
    pub has_cluster: bool,
    /// Time since the last byte of the API server, or since the start where none came.
    pub cluster_age: Duration,
    /// Time since the doctor looked at this machine; `None`: not yet.
    pub machine_age: Option<Duration>,
    /// The time of the verdict.
    pub now: Wall,
}

/// The state of everything.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Verdict {
    /// Stable name: `ok`, `link.connecting`, `link.standby`, or the id of the worst condition.
    pub code: &'static str,
    /// The part that the sentence is about.
    pub part: Part,
    /// Severity.
    pub level: Level,
    /// The first line, without a full stop.
    pub sentence: String,
    /// Action for a person.
    pub fix: Option<String>,
    /// Time when it began, where something is wrong.
    pub since: Option<Wall>,
    /// Age of the knowledge behind the sentence.
    pub age: Option<Duration>,
    /// The parts, in the order of [`Part::ALL`].
    pub parts: [PartState; 5],
}

/// The state of a part.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PartState {
    pub part: Part,
    /// As in [`Verdict`]; `unknown` and `none` are possible too.
    pub code: &'static str,
    /// Severity.
    pub level: Level,
    /// The sentence of the worst condition.
    pub sentence: Option<String>,
    /// Time when that began.
    pub since: Option<Wall>,
    /// Age of what is known of this part.
    pub age: Option<Duration>,
}

impl Known<'_> {
    /// The verdict on what is known.
    pub fn verdict(&self) -> Verdict {
        let parts = Part::ALL.map(|part| self.state(part));
        let causes = causes(self.conditions);
        let mut wrong: Vec<_> = causes
            .into_iter()
            .filter(|condition| condition.severity > Severity::Note)
            .collect();
        wrong.order_by_key(|condition| (std::cmp::Reverse(condition.severity), rank(condition.id)));
        if let Some(worst) = wrong.first() {
            let part = Part::of(worst.id);
            let sentence = self.sentence(worst);
            return Verdict {
                code: worst.id,
                part,
                level: worst.severity.into(),
                sentence: sentences::with_count(&sentence, wrong.len() - 1),
                fix: worst.fix.clone(),
                since: Some(self.since(worst)),
                age: self.age(part),
                parts,
            };
        }
        let (code, part, level, sentence) = match &self.link {
            Link::Ready => (OK, Part::Agent, Level::Ok, sentences::OK.to_owned()),
            Link::Off => (OK, Part::Agent, Level::Ok, sentences::OK_ALONE.to_owned()),
            Link::StandingBy(why) => {
                let sentence = sentences::standing_by(why);
                (STANDBY, Part::Link, Level::Note, sentence)
            }
            Link::Away => {
                let sentence = sentences::CONNECTING.to_owned();
                (CONNECTING, Part::Link, Level::Unknown, sentence)
            }
        };
        let cluster = self.has_cluster.then_some(self.cluster_age);
        Verdict {
            code,
            part,
            level,
            sentence,
            fix: None,
            since: None,
            age: self.link_age.max(cluster),
            parts,
        }
    }

    fn state(&self, part: Part) -> PartState {
        let mut state = PartState {
            part,
            code: OK,
            level: Level::Ok,
            sentence: None,
            since: None,
            age: self.age(part),
        };
        let own = self.conditions.worst_first().into_iter();
        let own = own.filter(|condition| Part::of(condition.id) == part);
        if let Some(worst) = own.min_by_key(|condition| {
            let follows = cause(self.conditions, condition.id).is_some();
            (std::cmp::Reverse(condition.severity), follows)
        }) && worst.severity > Severity::Note
        {
            state.code = worst.id;
            state.level = worst.severity.into();
            state.sentence = Some(self.sentence(worst));
            state.since = Some(self.since(worst));
            return state;
        }
        let (code, level) = match part {
            Part::Cluster | Part::Workloads if !self.has_cluster => (NONE, Level::Unknown),
            Part::Machine if self.machine_age.is_none() => (UNKNOWN, Level::Unknown),
            Part::Link => match self.link {
                Link::Ready => (OK, Level::Ok),
                Link::StandingBy(_) => (STANDBY, Level::Note),
                Link::Away => (CONNECTING, Level::Unknown),
                Link::Off => (NONE, Level::Unknown),
            },
            Part::Agent | Part::Machine | Part::Cluster | Part::Workloads => (OK, Level::Ok),
        };
        (state.code, state.level) = (code, level);
        state
    }

    fn age(&self, part: Part) -> Option<Duration> {
        match part {
            Part::Agent => Some(Duration::ZERO),
            Part::Link => self.link_age,
            Part::Machine => self.machine_age,
            Part::Cluster | Part::Workloads => self.has_cluster.then_some(self.cluster_age),
        }
    }

    fn sentence(&self, condition: &Condition) -> String {
        if condition.id == UNREACHABLE {
            return sentences::cluster_silent(self.cluster_age);
        }
        condition.sentence.clone()
    }

    fn since(&self, condition: &Condition) -> Wall {
        if condition.id != UNREACHABLE {
            return condition.since;
        }
        let silence = i64::try_from(self.cluster_age.as_millis()).unwrap_or(i64::MAX);
        Wall::from_millis(self.now.millis().saturating_sub(silence))
    }
}

/// Conditions that no other one explains, the worst first.
pub fn causes(conditions: &Conditions) -> Vec<&Condition> {
    let mut all = conditions.worst_first();
    all.retain(|condition| cause(conditions, condition.id).is_none());
    all
}

/// Order among conditions of the same severity: without the API or the link everything else is
/// doubtful, and the machine's own problems rarely are the news.
fn rank(id: &str) -> u8 {
    match (id, Part::of(id)) {
        (UNREACHABLE, _) => 0,
        (_, Part::Link) => 1,
        (_, Part::Cluster) => 2,
        (_, Part::Agent) => 3,
        (_, Part::Workloads) => 4,
        (_, Part::Machine) => 5,
    }
}

/// A length of time that does not change each second for long: seconds up to a minute, then whole
/// minutes.
pub fn roughly(length: Duration) -> String {
    let seconds = length.as_secs();
    let rounded = if seconds < 60 {
        seconds.max(1)
    } else {
        seconds / 60 * 60
    };
    in_words(Duration::from_secs(rounded))
}

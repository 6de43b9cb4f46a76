//! What happened, what was done, and how it stands with the settings: lists for people.

use serde::{Deserialize, Serialize};

use super::Link;
use crate::wire::json::fields;

/// Where the time line is found: `?before=&limit=&source=&severity=`.
pub const EVENTS_PATH: &str = "/api/v1/events";
/// Where the agent's own log lines are found: `?tail=`.
pub const LOGS_PATH: &str = "/api/v1/logs";
/// Where what changes is told as it happens: `?topics=status,ticks,events,logs,changes`.
pub const STREAM_PATH: &str = "/api/v1/stream";
/// Where the history of the link is found.
pub const LINK_PATH: &str = "/api/v1/link";
/// Where the settings are found.
pub const SETTINGS_PATH: &str = "/api/v1/settings";
/// Where the list of what was done is found.
pub const CHANGES_PATH: &str = "/api/v1/changes";

/// A part of the time line, the newest first.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct EventPage {
    /// At most 500.
    pub events: Vec<EventReport>,
    /// `before=` of the next page; `null`: this is the last.
    pub next: Option<u64>,
}

/// Something that happened.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct EventReport {
    /// Its number; grows with time.
    pub id: u64,
    /// When it was last seen: RFC 3339 in UTC.
    pub at: String,
    /// `agent` or `cluster`.
    pub source: String,
    /// `note`, `warning` or `critical`.
    pub severity: String,
    /// What it happened to.
    pub subject: String,
    /// A word for it.
    pub reason: String,
    /// A sentence.
    pub message: String,
    /// How often within its minute.
    pub count: u32,
}
fields!(EventReport {
    id,
    at,
    source,
    severity,
    subject,
    reason,
    message,
    count
});

/// The agent's own newest log lines, the oldest first.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct LogPage {
    /// As many as were asked for, as far as they are remembered.
    pub lines: Vec<LogEntry>,
}

/// A log line.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct LogEntry {
    /// Its number since the agent started, from 1.
    pub id: u64,
    /// When: RFC 3339 in UTC.
    pub at: String,
    /// `error`, `warn`, `info`, `debug` or `trace`.
    pub level: String,
    /// What.
    pub text: String,
}

/// The link now, before, and what waits for it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct LinkReport {
    /// As in the status.
    pub link: Link,
    /// Times without a session, the newest first.
    pub outages: Vec<Outage>,
    /// What waits for whom.
    pub destinations: Vec<Destination>,
}

/// A time without a session.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct Outage {
    /// When it began: RFC 3339 in UTC.
    pub from: String,
    /// When it ended; `null`: it goes on, or the agent stopped meanwhile.
    pub to: Option<String>,
    /// Why, in words.
    pub why: String,
}

/// What waits of a stream for a receiver.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct Destination {
    /// The receiver.
    pub name: String,
    /// `metrics`, `events`, `logs`, `audit` or `outcomes`.
    pub stream: String,
    /// Records that wait.
    pub records: u64,
    /// How old the oldest of them is: RFC 3339 in UTC.
    pub oldest: Option<String>,
    /// Records that were removed before it had them.
    pub lost: u64,
}

/// All settings.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct SettingsReport {
    /// In the order of the documented file.
    pub settings: Vec<SettingReport>,
    /// What is doubtful about them.
    pub warnings: Vec<String>,
}

/// A setting.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct SettingReport {
    /// `section.key`.
    pub key: String,
    /// Its value; `null`: none. Secrets are `********`.
    pub value: Option<String>,
    /// Where it came from.
    pub origin: String,
    /// What it means.
    pub meaning: String,
    /// Whether its value is hidden.
    pub is_secret: bool,
    /// Whether nobody set it.
    pub is_default: bool,
}

/// What was done here, the newest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ChangeList {
    /// At most 200.
    pub changes: Vec<ChangeReport>,
}
fields!(ChangeList { changes });

/// Something that was done, or refused.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ChangeReport {
    /// Its id, for `pipeops-agent undo`.
    pub id: String,
    /// When: RFC 3339 in UTC.
    pub at: String,
    /// By whom.
    pub who: String,
    /// From where: `control plane`, `this machine`, an address.
    pub from: String,
    /// What.
    pub what: String,
    /// `done`, `failed`, `undone`, `refused` by the agent, `rejected` by the API server, `withdrawn` while it ran, `cancelled`, `link lost` or
    /// `running`.
    pub outcome: String,
    /// Why it ended so, in words.
    pub why: Option<String>,
    /// Whether and how it can be taken back.
    pub undo: Undo,
}
fields!(ChangeReport {
    id,
    at,
    who,
    from,
    what,
    outcome,
    why,
    undo
});

/// Whether and how something can be taken back.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Undo {
    /// Whether it can.
    pub possible: bool,
    /// What does it on the command line.
    pub command: Option<String>,
    /// Why it cannot.
    pub why_not: Option<String>,
}
fields!(Undo {
    possible,
    command,
    why_not
});

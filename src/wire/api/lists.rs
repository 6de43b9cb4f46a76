//! Events, changes and configuration: lists for people.

use serde::{Deserialize, Serialize};

use super::{ChangeReport, Link, Row};
use crate::wire::json::fields;

/// Path of the events: `?before=&limit=&source=&severity=`.
pub const EVENTS_PATH: &str = "/api/v1/events";
/// Path of the agent's own log: `?tail=`.
pub const LOGS_PATH: &str = "/api/v1/logs";
/// Path of the event stream: `?topics=status,ticks,events,logs,changes`.
pub const STREAM_PATH: &str = "/api/v1/stream";
/// Path of the link's history.
pub const LINK_PATH: &str = "/api/v1/link";
/// Path of the changes.
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
    /// Time when it was last seen: RFC 3339 in UTC.
    pub at: String,
    /// `agent` or `cluster`.
    pub source: String,
    /// `note`, `warning` or `critical`.
    pub severity: String,
    pub subject: String,
    /// A word for it.
    pub reason: String,
    /// A sentence.
    pub message: String,
    /// Occurrences within its minute.
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
    /// Time: RFC 3339 in UTC.
    pub at: String,
    /// `error`, `warn`, `info`, `debug` or `trace`.
    pub level: String,
    pub text: String,
}

/// The link now, before, and what waits for it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct LinkReport {
    /// As in the status.
    pub link: Link,
    /// Its row of the status.
    pub row: Row,
    /// Times without a session, the newest first.
    pub outages: Vec<Outage>,
    /// Undelivered data of each destination.
    pub destinations: Vec<Destination>,
}

/// A time without a session.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct Outage {
    /// Time when it began: RFC 3339 in UTC.
    pub from: String,
    /// Time when it ended; `null`: it goes on, or the agent stopped meanwhile.
    pub to: Option<String>,
    /// Reason in words.
    pub why: String,
}

/// Undelivered data of a stream for a destination.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct Destination {
    /// The receiver.
    pub name: String,
    /// `metrics`, `events`, `logs`, `audit` or `outcomes`.
    pub stream: String,
    /// Records that wait.
    pub records: u64,
    /// Time of the oldest of them: RFC 3339 in UTC.
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
    /// Warnings about the configuration.
    pub warnings: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct SettingReport {
    /// `section.key`.
    pub key: String,
    /// Its value; `null`: none. Secrets are `********`.
    pub value: Option<String>,
    pub origin: String,
    pub meaning: String,
    /// True if its value is hidden.
    pub is_secret: bool,
    /// True if nobody set it.
    pub is_default: bool,
}

/// Changes, newest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ChangeList {
    /// At most 200.
    pub changes: Vec<ChangeReport>,
}
fields!(ChangeList { changes });

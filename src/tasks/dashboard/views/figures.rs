//! Cards of the overview: one value each, with its age and source.

use std::time::Duration;

use super::newest;
use crate::{
    core::{
        format::joined,
        time::{Wall, in_words},
    },
    store::telemetry::Handle,
    tasks::link::deliver::Databases,
    wire::api::{Figure, Status},
};

/// Maximum age of the newest sample: two flushes and a bit.
const FRESH_MS: i64 = 180_000;

/// Sources of the view.
#[derive(Debug)]
pub struct View<'a> {
    pub status: &'a Status,
    pub samples: &'a Handle,
    /// Undelivered data.
    pub databases: &'a Databases,
    /// True if the wall clock may have been set since boot.
    pub clock_is_set: bool,
    pub now: Wall,
}

impl View<'_> {
    /// All cards.
    pub async fn figures(&self) -> Vec<Figure> {
        let power = self.power().await;
        let backlog = self.backlog().await;
        let age_s = self.status.cluster.age_s;
        vec![
            self.of_row("link", Some(0), card("link", "Link", "the session")),
            self.of_row("cluster", age_s, card("k3s", "Cluster", "API watches")),
            self.of_row("usage", Some(0), card("node", "Usage", "/proc")),
            self.of_row("disk", Some(0), card("disk", "Disk", "statvfs of /")),
            self.clock(),
            power,
            backlog,
        ]
    }

    /// Card of a row of the status.
    fn of_row(&self, row_id: &str, age_s: Option<u64>, card: Figure) -> Figure {
        let Some(row) = self.status.rows.iter().find(|row| row.id == row_id) else {
            return Figure {
                value: "unknown yet".to_owned(),
                state: "unknown".to_owned(),
                ..card
            };
        };
        let since = row.since.as_deref().and_then(Wall::parse_rfc3339);
        let since = since.map(|since| self.now.millis().saturating_sub(since.millis()));
        let since = since.and_then(|millis| u64::try_from(millis).ok());
        let since = since.map(|millis| format!("for {}", in_words(Duration::from_millis(millis))));
        let details: Vec<_> = since.into_iter().chain(row.details.clone()).collect();
        Figure {
            value: row.value.clone(),
            detail: Some(details.join(", ")).filter(|detail| !detail.is_empty()),
            age_s,
            state: row.state.clone(),
            ..card
        }
    }

    fn clock(&self) -> Figure {
        let (value, detail, state) = if self.clock_is_set {
            ("plausible", None, "ok")
        } else {
            (
                "not set since boot",
                Some("certificates and timestamps of samples depend on it".to_owned()),
                "warning",
            )
        };
        // To the second: a person compares it with the clock on the wall.
        let stamp = self.now.rfc3339();
        let now = stamp.split_once('.').map(|(second, _)| second);
        let now = now.map(|second| format!("{} UTC", second.replace('T', " ")));
        Figure {
            value: value.to_owned(),
            detail: joined([now, detail]),
            age_s: Some(0),
            state: state.to_owned(),
            ..card(
                "clock",
                "Clock",
                "build date, and the certificates of the control plane",
            )
        }
    }

    /// Under-voltage and throttling, where the board has a sensor for them.
    async fn power(&self) -> Figure {
        let voltage = self.newest("host_under_voltage").await;
        let throttled = self.newest("host_throttled").await;
        let at = [voltage, throttled]
            .into_iter()
            .flatten()
            .map(|(at, _)| at)
            .max();
        let is = |found: Option<(Wall, i64)>| found.is_some_and(|(_, value)| value > 0);
        let (value, detail, state) = match (at, is(voltage), is(throttled)) {
            (None, _, _) => ("no sensor", None, "unknown"),
            (_, true, _) => (
                "under-voltage",
                Some("use a stronger power supply and a short cable"),
                "critical",
            ),
            (_, false, true) => (
                "throttled",
                Some("the board is too hot, or its power supply is too weak"),
                "warning",
            ),
            (_, false, false) => ("fine", None, "ok"),
        };
        let age = at.map(|at| self.now.millis().saturating_sub(at.millis()) / 1000);
        Figure {
            value: value.to_owned(),
            detail: detail.map(str::to_owned),
            age_s: age.and_then(|age| u64::try_from(age).ok()),
            state: state.to_owned(),
            ..card("power", "Power", "firmware")
        }
    }

    async fn newest(&self, metric: &str) -> Option<(Wall, i64)> {
        let found = newest(self.samples, metric, self.now, FRESH_MS).await;
        found
            .first()
            .map(|(_, aggregate)| (aggregate.at, aggregate.max))
    }

    async fn backlog(&self) -> Figure {
        let waiting = self.databases.backlog().await.unwrap_or_default();
        let records = waiting
            .iter()
            .map(|one| one.records)
            .fold(0, u64::saturating_add);
        let oldest = waiting
            .iter()
            .filter(|one| one.records > 0)
            .filter_map(|one| one.oldest)
            .min();
        let age = oldest.map(|oldest| self.now.millis().saturating_sub(oldest.millis()));
        let age = age
            .and_then(|age| u64::try_from(age).ok())
            .map(Duration::from_millis);
        let value = match (records, waiting.is_empty()) {
            (_, true) => "no receiver".to_owned(),
            (0, false) => "none".to_owned(),
            (1, false) => "1 record".to_owned(),
            (records, false) => format!("{records} records"),
        };
        Figure {
            value,
            detail: age.map(|age| format!("oldest for {}", in_words(age))),
            age_s: Some(0),
            state: "ok".to_owned(),
            ..card("backlog", "Undelivered data", "telemetry.db and state.db")
        }
    }
}

fn card(id: &str, title: &str, source: &str) -> Figure {
    Figure {
        id: id.to_owned(),
        title: title.to_owned(),
        source: source.to_owned(),
        ..Figure::default()
    }
}

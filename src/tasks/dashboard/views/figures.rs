//! Cards of the overview: one value each, with its age and source.

use std::time::Duration;

use super::newest;
use crate::{
    core::{
        link::{OFF, STANDING_BY},
        time::{Wall, in_words},
        words::size,
    },
    store::telemetry::Handle,
    tasks::link::deliver::Databases,
    wire::api::{Figure, Status},
};

/// Maximum age of the newest sample: two flushes and a bit.
const FRESH_MS: i64 = 180_000;
/// Shares of the disk in use from which it is a warning, and worse.
const DISK_PERCENT: (f64, f64) = (85.0, 95.0);

/// Sources of the view.
#[derive(Debug)]
pub struct View<'a> {
    /// Status.
    pub status: &'a Status,
    /// Samples.
    pub samples: &'a Handle,
    /// Undelivered data.
    pub books: &'a Databases,
    /// True if the wall clock may have been set since boot.
    pub clock_is_set: bool,
    /// Now.
    pub now: Wall,
}

impl View<'_> {
    /// All cards.
    pub async fn figures(&self) -> Vec<Figure> {
        let power = self.power().await;
        let backlog = self.backlog().await;
        vec![
            self.link(),
            self.k3s(),
            self.node(),
            self.disk(),
            self.clock(),
            power,
            backlog,
        ]
    }

    fn age_s(&self, since: Option<&str>) -> Option<u64> {
        let since = Wall::parse_rfc3339(since?)?;
        u64::try_from(self.now.millis().saturating_sub(since.millis()) / 1000).ok()
    }

    fn link(&self) -> Figure {
        let link = &self.status.link;
        let rtt = link.rtt_ms.map(|rtt| format!("round trip {rtt:.1} ms"));
        let for_how_long = self
            .age_s(link.since.as_deref())
            .map(|age| format!("for {}", in_words(Duration::from_secs(age))));
        Figure {
            value: match link.state.as_str() {
                "ready" => "connected",
                OFF => "not configured",
                other => other,
            }
            .to_owned(),
            detail: joined([for_how_long, link.why.clone(), rtt]),
            age_s: Some(0),
            state: match link.state.as_str() {
                "ready" | STANDING_BY => "ok",
                OFF => "unknown",
                _ => "warning",
            }
            .to_owned(),
            ..card("link", "Control plane", "the session")
        }
    }

    fn k3s(&self) -> Figure {
        let cluster = &self.status.cluster;
        let (value, state) = match cluster.state.as_str() {
            "ready" => ("answers", "ok"),
            "none" => ("not configured", "unknown"),
            "connecting" => ("connecting", "unknown"),
            _ => ("does not answer", "critical"),
        };
        let broken = cluster.pods_not_ready.filter(|broken| *broken > 0);
        let is_short =
            broken.is_some() || (cluster.nodes.is_some() && cluster.nodes_ready < cluster.nodes);
        let nodes = cluster.nodes.zip(cluster.nodes_ready);
        let nodes = nodes.map(|(all, ready)| format!("{ready} of {all} nodes ready"));
        let pods = cluster.pods.map(|pods| match broken {
            Some(broken) => format!("{pods} pods, {broken} of them not ready"),
            None => format!("{pods} pods"),
        });
        Figure {
            value: value.to_owned(),
            detail: joined([nodes, pods, cluster.version.clone(), cluster.why.clone()]),
            age_s: cluster.age_s,
            state: if state == "ok" && is_short {
                "warning"
            } else {
                state
            }
            .to_owned(),
            ..card("k3s", "Kubernetes", "API watches")
        }
    }

    fn node(&self) -> Figure {
        let host = &self.status.host;
        let share = |name: &str, percent: Option<f64>| {
            percent.map(|percent| format!("{name} {percent:.0} %"))
        };
        let is_full = host.memory_percent.is_some_and(|percent| percent >= 92.0);
        let value = joined([
            share("CPU", host.cpu_percent),
            share("memory", host.memory_percent),
        ]);
        let up = host
            .uptime_s
            .map(|up| format!("up {}", in_words(Duration::from_secs(up))));
        let size = host.memory_bytes.map(|bytes| format!("of {}", size(bytes)));
        let state = match (&value, is_full) {
            (None, _) => "unknown",
            (Some(_), true) => "warning",
            (Some(_), false) => "ok",
        };
        Figure {
            value: value.unwrap_or_else(|| "unknown yet".to_owned()),
            detail: joined([size, up]),
            age_s: Some(0),
            state: state.to_owned(),
            ..card("node", "This machine", "/proc")
        }
    }

    fn disk(&self) -> Figure {
        let host = &self.status.host;
        let state = match host.disk_percent {
            None => "unknown",
            Some(percent) if percent >= DISK_PERCENT.1 => "critical",
            Some(percent) if percent >= DISK_PERCENT.0 => "warning",
            Some(_) => "ok",
        };
        let value = host
            .disk_percent
            .map(|percent| format!("{percent:.0} % used"));
        Figure {
            value: value.unwrap_or_else(|| "unknown".to_owned()),
            detail: host
                .disk_bytes
                .map(|bytes| format!("of {} at /", size(bytes))),
            age_s: Some(0),
            state: state.to_owned(),
            ..card("disk", "Disk", "statvfs of /")
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
        found.first().map(|(_, spot)| (spot.at, spot.max))
    }

    async fn backlog(&self) -> Figure {
        let waiting = self.books.backlog().await.unwrap_or_default();
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

/// The parts that are known, with commas between them.
fn joined<const N: usize>(parts: [Option<String>; N]) -> Option<String> {
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

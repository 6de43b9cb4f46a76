//! Rows of the status: its one wording. The command line and the page only lay them out.

use std::time::Duration;

use serde::Serialize;

use super::{Access, Cluster, ClusterState, Dashboard, Host, Link, Load, Readiness, Status};
use crate::{
    core::{
        format::{joined, size},
        link::LinkState,
        time::in_words,
        verdict::roughly,
    },
    wire::json::fields,
};

/// Age from which numbers of the cluster are shown with it.
const AGED_S: u64 = 10;
/// Share of the memory in use from which it is a warning.
const MEMORY_PERCENT: f64 = 92.0;
/// Shares of the disk in use from which it is a warning, and worse.
const DISK_PERCENT: (f64, f64) = (85.0, 95.0);

/// A row of the status, as people read it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Row {
    /// `link`, `cluster`, `k3s`, `host`, `usage`, `disk`, `access`, `traffic`, `agent`, `page` or
    /// `not_ready`.
    pub id: String,
    /// Its name for people.
    pub title: String,
    /// The answer in a few words.
    pub value: String,
    /// Since when it is so, where that matters: RFC 3339 in UTC.
    pub since: Option<String>,
    /// More about it, the most important first.
    pub details: Vec<String>,
    /// `ok`, `warning`, `critical`, or `unknown`, which is also for rows without a judgement.
    pub state: String,
}
fields!(Row {
    id,
    title,
    value,
    since,
    details,
    state
});

impl Row {
    fn new<const N: usize>(
        id: &str,
        value: impl Into<String>,
        details: [Option<String>; N],
    ) -> Self {
        let title = match id {
            "link" => "Link",
            "cluster" => "Cluster",
            "host" => "Host",
            "usage" => "Usage",
            "disk" => "Disk",
            "access" => "Access",
            "traffic" => "Traffic",
            "agent" => "Agent",
            "page" => "Dashboard",
            _ => "Not ready",
        };
        Self {
            id: id.to_owned(),
            title: title.to_owned(),
            value: value.into(),
            since: None,
            details: details.into_iter().flatten().collect(),
            state: "unknown".to_owned(),
        }
    }

    fn judged(mut self, state: &str) -> Self {
        state.clone_into(&mut self.state);
        self
    }
}

/// The rows of a status. Its conditions are shown above them: a reason that stands there is not
/// repeated.
pub fn rows(status: &Status) -> Vec<Row> {
    let causes = status.conditions.iter().filter(|it| it.because.is_none());
    let above = causes.map(|condition| condition.sentence.as_str());
    let above: Vec<_> = above.chain([status.summary.as_str()]).collect();
    let fresh = |why: &Option<String>| {
        let why = why.clone()?;
        (!above.iter().any(|sentence| sentence.contains(&why))).then_some(why)
    };
    let rows = [
        Some(link(&status.link, fresh)),
        Some(cluster(&status.cluster, fresh)),
        host(&status.host),
        usage(&status.host),
        disk(&status.host),
        access(&status.access),
        Some(traffic(&status.load, &status.link)),
        Some(agent(status)),
        page(&status.dashboard),
        not_ready(&status.readiness, fresh),
    ];
    rows.into_iter().flatten().collect()
}

fn link(link: &Link, fresh: impl Fn(&Option<String>) -> Option<String>) -> Row {
    let state = LinkState::of(&link.state);
    let is_off = state == Some(LinkState::Off);
    let (value, state) = match state {
        Some(LinkState::Ready) => ("connected", "ok"),
        Some(LinkState::Off) => ("not configured", "unknown"),
        Some(LinkState::StandingBy) => (LinkState::StandingBy.as_str(), "ok"),
        Some(other) => (other.as_str(), "warning"),
        None => ("unknown", "unknown"),
    };
    let next = link.next_attempt_s;
    let next = next.and_then(|wait| Duration::try_from_secs_f64(wait).ok());
    let is_told = link.last_outage_why == link.why;
    let last = fresh(&link.last_outage_why).filter(|_| !is_told);
    let row = Row::new(
        "link",
        value,
        [
            fresh(&link.why).filter(|_| !is_off),
            link.endpoint.clone(),
            next.map(|wait| format!("next attempt in {}", in_words(wait))),
            link.rtt_ms.map(|rtt| format!("round trip {rtt:.1} ms")),
            match (link.outages, last) {
                (0, _) => None,
                (1, Some(why)) => Some(format!("1 outage ({why})")),
                (1, None) => Some("1 outage".to_owned()),
                (count, Some(why)) => Some(format!("{count} outages (the last: {why})")),
                (count, None) => Some(format!("{count} outages")),
            },
        ],
    );
    Row {
        since: link.since.clone(),
        ..row.judged(state)
    }
}

fn cluster(cluster: &Cluster, fresh: impl Fn(&Option<String>) -> Option<String>) -> Row {
    let broken = cluster.pods_not_ready.filter(|broken| *broken > 0);
    let is_short =
        broken.is_some() || (cluster.nodes.is_some() && cluster.nodes_ready < cluster.nodes);
    let state = ClusterState::of(&cluster.state);
    let is_absent = state == Some(ClusterState::None);
    let (value, state) = match state {
        Some(ClusterState::Ready) if is_short => ("reachable", "warning"),
        Some(ClusterState::Ready) => ("reachable", "ok"),
        Some(ClusterState::None) => ("not configured", "unknown"),
        Some(ClusterState::Connecting) => ("connecting", "unknown"),
        Some(ClusterState::Unreachable) => ("unreachable", "critical"),
        None => ("unknown", "unknown"),
    };
    let hint = "set KUBECONFIG or agent.kubeconfig to use one".to_owned();
    let version = cluster.version.as_ref();
    let row = Row::new(
        "cluster",
        value,
        [
            fresh(&cluster.why),
            Some(hint).filter(|_| is_absent),
            numbers(cluster, broken),
            version.map(|version| format!("Kubernetes {version}")),
            cluster.server.clone(),
        ],
    );
    row.judged(state)
}

/// Nodes and Pods, with their age where it is more than that of a cluster that answers.
fn numbers(cluster: &Cluster, broken: Option<u64>) -> Option<String> {
    let nodes = cluster.nodes.map(|all| match cluster.nodes_ready {
        Some(ready) => format!("{ready} of {all} nodes ready"),
        None => format!("{all} nodes"),
    });
    let pods = cluster.pods.map(|pods| match broken {
        Some(broken) => format!("{pods} Pods, {broken} of them not ready"),
        None => format!("{pods} Pods"),
    });
    let age = cluster.age_s.filter(|age| *age >= AGED_S);
    let age = age.map(|age| format!("{} ago", roughly(Duration::from_secs(age))));
    let is_known = nodes.is_some() || pods.is_some();
    is_known.then(|| joined([nodes, pods, age]).unwrap_or_default())
}

fn host(host: &Host) -> Option<Row> {
    let name = host.hostname.clone()?;
    let cores = host.cores.map(|cores| match cores {
        1 => "1 core".to_owned(),
        _ => format!("{cores} cores"),
    });
    let kernel = host.kernel.as_ref().map(|it| format!("Linux {it}"));
    let up = host.uptime_s.map(Duration::from_secs);
    let up = up.map(|up| format!("up {}", in_words(up)));
    Some(Row::new(
        "host",
        name,
        [host.os.clone(), kernel, cores, host.address.clone(), up],
    ))
}

fn usage(host: &Host) -> Option<Row> {
    let cpu = host
        .cpu_percent
        .map(|percent| format!("CPU {percent:.0} %"));
    let memory = host.memory_percent;
    let is_full = memory.is_some_and(|percent| percent >= MEMORY_PERCENT);
    let memory = memory.map(|percent| match host.memory_bytes {
        Some(bytes) => format!("memory {percent:.0} % of {}", size(bytes)),
        None => format!("memory {percent:.0} %"),
    });
    let value = joined([cpu, memory]).unwrap_or_default();
    let row = Row::new("usage", value, []);
    (!row.value.is_empty()).then(|| row.judged(if is_full { "warning" } else { "ok" }))
}

fn disk(host: &Host) -> Option<Row> {
    let percent = host.disk_percent?;
    let state = match percent {
        _ if percent >= DISK_PERCENT.1 => "critical",
        _ if percent >= DISK_PERCENT.0 => "warning",
        _ => "ok",
    };
    let whole = host.disk_bytes;
    let whole = whole.map_or_else(String::new, |bytes| format!(" of {}", size(bytes)));
    Some(Row::new("disk", format!("{percent:.0} %{whole} used"), []).judged(state))
}

fn access(access: &Access) -> Option<Row> {
    let configured = access.tightened_from.as_ref();
    let by_hand = configured.map(|level| format!("set on this machine; configured: {level}"));
    let row = Row::new("access", access.level.clone(), [by_hand]);
    (!access.level.is_empty()).then_some(row)
}

fn traffic(load: &Load, link: &Link) -> Row {
    let some = |count: u64, unit: &str| (count > 0).then(|| format!("{count} {unit}"));
    let bytes = |count: u64, unit: &str| (count > 0).then(|| format!("{} {unit}", size(count)));
    let requests = match load.requests {
        1 => "1 request".to_owned(),
        count => format!("{count} requests"),
    };
    Row::new(
        "traffic",
        requests,
        [
            some(load.exchanges, "running"),
            some(load.waiting, "waiting"),
            some(load.streams, "streams"),
            bytes(load.queued_bytes, "queued"),
            bytes(load.spooled_bytes, "spooled"),
            Some(format!("{} in", size(link.received_bytes))),
            Some(format!("{} out", size(link.sent_bytes))),
        ],
    )
}

fn agent(status: &Status) -> Row {
    let cluster = match (&status.cluster_name, &status.cluster_id) {
        (Some(name), Some(id)) => Some(format!("cluster {name} ({id})")),
        (Some(name), None) if LinkState::of(&status.link.state) == Some(LinkState::Off) => {
            Some(name.clone())
        }
        (Some(name), None) => Some(format!("cluster {name}, not registered yet")),
        (None, Some(id)) => Some(format!("cluster {id}")),
        (None, None) => None,
    };
    let up = in_words(Duration::from_secs(status.uptime_s));
    Row::new(
        "agent",
        format!("version {}", status.version),
        [status.agent_id.clone(), cluster, Some(format!("up {up}"))],
    )
}

/// Addresses of the page, and the fingerprint to compare from another machine.
fn page(dashboard: &Dashboard) -> Option<Row> {
    let (first, others) = dashboard.urls.split_first()?;
    let fingerprint = dashboard.fingerprint.as_ref();
    let fingerprint = fingerprint.map(|it| format!("SHA-256 {it}"));
    let details = others.iter().cloned().chain(fingerprint).collect();
    Some(Row {
        details,
        ..Row::new("page", first.clone(), [])
    })
}

/// Parts that are not ready, with reasons that are not shown above.
fn not_ready(
    readiness: &Readiness,
    fresh: impl Fn(&Option<String>) -> Option<String>,
) -> Option<Row> {
    let parts = readiness.parts.iter().filter(|part| !part.ready);
    let mut parts = parts.filter_map(|part| match (&part.sentence, fresh(&part.sentence)) {
        (Some(_), None) => None,
        (Some(_), Some(why)) => Some(format!("{} ({why})", part.id)),
        (None, _) => Some(part.id.clone()),
    });
    let first = parts.next()?;
    Some(Row {
        details: parts.collect(),
        ..Row::new("not_ready", first, []).judged("warning")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::api::{Condition, PartStatus};

    fn row(status: &Status, id: &str) -> Option<String> {
        let row = rows(status).into_iter().find(|row| row.id == id)?;
        let parts = std::iter::once(row.value).chain(row.details);
        Some(parts.collect::<Vec<_>>().join(", "))
    }

    #[test]
    fn a_reason_that_stands_above_is_not_repeated() {
        let why = Some("connection refused".to_owned());
        let mut status = Status {
            link: Link {
                state: "waiting".to_owned(),
                why: why.clone(),
                outages: 2,
                last_outage_why: why,
                ..Link::default()
            },
            ..Status::default()
        };
        let once = "waiting, connection refused, 2 outages";
        assert_eq!(row(&status, "link").as_deref(), Some(once));
        status.conditions.push(Condition {
            sentence: "no control plane: connection refused".to_owned(),
            ..Condition::default()
        });
        assert_eq!(row(&status, "link").as_deref(), Some("waiting, 2 outages"));
        status.link.why = None;
        status.conditions.clear();
        let last = "waiting, 2 outages (the last: connection refused)";
        assert_eq!(row(&status, "link").as_deref(), Some(last));
    }

    #[test]
    fn standing_by_for_another_agent_is_no_fault() {
        let mut status = Status::default();
        for (state, judged) in [
            (LinkState::StandingBy, "ok"),
            (LinkState::Ready, "ok"),
            (LinkState::Waiting, "warning"),
        ] {
            state.as_str().clone_into(&mut status.link.state);
            let row = rows(&status).into_iter().find(|row| row.id == "link");
            assert_eq!(row.unwrap().state, judged, "{state:?}");
        }
    }

    #[test]
    fn numbers_of_a_cluster_that_is_silent_have_their_age() {
        let cluster = Cluster {
            state: "ready".to_owned(),
            nodes: Some(1),
            nodes_ready: Some(1),
            pods: Some(7),
            age_s: Some(40),
            ..Cluster::default()
        };
        let mut status = Status {
            cluster,
            ..Status::default()
        };
        let aged = "reachable, 1 of 1 nodes ready, 7 Pods, 40 s ago";
        assert_eq!(row(&status, "cluster").as_deref(), Some(aged));
        status.cluster.age_s = Some(3);
        let fresh = "reachable, 1 of 1 nodes ready, 7 Pods";
        assert_eq!(row(&status, "cluster").as_deref(), Some(fresh));
    }

    #[test]
    fn what_is_not_known_has_no_row() {
        let rows = rows(&Status::default());
        let ids: Vec<_> = rows.iter().map(|row| row.id.as_str()).collect();
        assert_eq!(ids, ["link", "cluster", "traffic", "agent"]);
    }

    #[test]
    fn a_level_that_was_tightened_here_names_the_configured_one() {
        let mut status = Status::default();
        status.access.level = "off".to_owned();
        assert_eq!(row(&status, "access").as_deref(), Some("off"));
        status.access.tightened_from = Some("managed".to_owned());
        let wanted = "off, set on this machine; configured: managed";
        assert_eq!(row(&status, "access").as_deref(), Some(wanted));
    }

    #[test]
    fn a_part_that_is_not_ready_is_named_with_its_reason() {
        let part = |id: &str, ready, sentence: Option<&str>| PartStatus {
            id: id.to_owned(),
            ready,
            sentence: sentence.map(str::to_owned),
        };
        let mut status = Status::default();
        status.readiness.parts = vec![
            part("link", false, Some("the token is refused")),
            part("store", true, None),
            part("identity", false, None),
        ];
        let wanted = "link (the token is refused), identity";
        assert_eq!(row(&status, "not_ready").as_deref(), Some(wanted));
        "the token is refused".clone_into(&mut status.summary);
        assert_eq!(row(&status, "not_ready").as_deref(), Some("identity"));
    }

    #[test]
    fn a_disk_is_judged_by_its_use() {
        let mut status = Status::default();
        status.host.disk_bytes = Some(32_000_000_000);
        for (percent, state) in [(84.9, "ok"), (85.0, "warning"), (95.0, "critical")] {
            status.host.disk_percent = Some(percent);
            let disk = disk(&status.host).unwrap();
            assert_eq!(disk.state, state, "{percent}");
            assert!(disk.value.ends_with(" % of 32.0 GB used"), "{}", disk.value);
        }
    }
}

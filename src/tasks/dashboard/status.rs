//! Shared state in the form of the local API.

use crate::{
    core::{
        health::{Conditions, Severity},
        link::{Holder, LinkState},
        rates::DiskSpace,
        time::Now,
        verdict::{Known, Link as Session, Verdict, sentences::NOT_CONFIGURED},
    },
    error::Error as Notified,
    tasks::{
        link::registration::Registrar,
        state::{ClusterView, DashboardView, HostView, LinkView, RejectedConnections, SharedState},
    },
    wire::api::{
        self, Access, Cluster, ClusterState, Dashboard, Host, Link, Load, PartStatus, Readiness,
        Status,
    },
};

/// Condition of settings that cannot be used.
pub const SETTINGS_CONDITION: &str = "agent.settings";

/// Everything that is known right now.
pub fn status(
    shared_state: &SharedState,
    registrar: &Registrar,
    access: Access,
    load: &Load,
) -> Status {
    let now = shared_state.now();
    let verdict = verdict(shared_state);
    let (link, cluster) = (shared_state.link.borrow(), shared_state.cluster.borrow());
    let link_shape = shape_of_link(&link);
    let status = with_rows(Status {
        summary: verdict.sentence.clone(),
        version: registrar.version().to_owned(),
        agent_id: Some(registrar.agent_id()).filter(|id| !id.is_empty()),
        cluster_id: link.cluster_id.clone(),
        cluster_name: Some(registrar.cluster_name()),
        started: api::stamp(shared_state.started().wall),
        uptime_s: now.mono.since(shared_state.started().mono).as_secs(),
        boot_id: crate::host::clock::boot_id(),
        cluster: shape_of_cluster(&cluster, now),
        host: shape_of_host(
            registrar,
            shared_state,
            link.local_ip.map(|address| address.to_string()),
        ),
        access,
        dashboard: shape_of_dashboard(
            &shared_state.dashboard.borrow(),
            shared_state.turned_away.get(),
        ),
        load: Load {
            lanes: count(link.lanes),
            queued_bytes: count(link.queued_bytes),
            ..load.clone()
        },
        conditions: shared_state.with_conditions(api::conditions),
        readiness: shared_state.with_conditions(|list| readiness(list, &verdict, &link)),
        link: link_shape,
        verdict: verdict.into(),
        rows: Vec::new(),
    });
    with_k3s(status, shared_state)
}

/// With the row of k3s behind that of the cluster, where it is managed.
fn with_k3s(mut status: Status, shared_state: &SharedState) -> Status {
    if let Some(seen) = shared_state.k3s.borrow().as_ref() {
        let cluster = status.rows.iter().position(|row| row.id == "cluster");
        let row = api::k3s_row(seen, shared_state.now().wall);
        status.rows.insert(cluster.map_or(0, |at| at + 1), row);
    }
    status
}

/// Status while the agent starts, or cannot because of its settings: how it is, and nothing about
/// this machine. Its databases are not open.
pub fn of_start(shared_state: &SharedState, version: &str) -> Status {
    let verdict = verdict(shared_state);
    let link = shared_state.link.borrow();
    let mut readiness = shared_state.with_conditions(|list| readiness(list, &verdict, &link));
    readiness.ready = false;
    let is_unusable = shared_state.with_conditions(|list| list.get(SETTINGS_CONDITION).is_some());
    let databases = |part: &&mut PartStatus| matches!(part.id.as_str(), "store" | "telemetry");
    for part in readiness.parts.iter_mut().filter(databases) {
        part.ready = false;
        let why = if is_unusable {
            "it is not open, because the settings cannot be used"
        } else {
            "it is not open yet, because the agent is starting"
        };
        part.sentence.get_or_insert_with(|| why.to_owned());
    }
    let uptime = shared_state.now().mono.since(shared_state.started().mono);
    with_rows(Status {
        summary: verdict.sentence.clone(),
        version: version.to_owned(),
        started: api::stamp(shared_state.started().wall),
        uptime_s: uptime.as_secs(),
        conditions: shared_state.with_conditions(api::conditions),
        readiness,
        link: shape_of_link(&link),
        verdict: verdict.into(),
        ..Status::default()
    })
}

fn with_rows(mut status: Status) -> Status {
    status.rows = api::rows(&status);
    status
}

/// The state of everything: the one verdict that everything shows.
pub fn verdict(shared_state: &SharedState) -> Verdict {
    let (link, cluster) = (shared_state.link.borrow(), shared_state.cluster.borrow());
    let now = shared_state.now();
    let heard = cluster
        .last_heard()
        .unwrap_or_else(|| shared_state.started().mono);
    shared_state.with_conditions(|conditions| {
        let known = Known {
            conditions,
            link: session(&link),
            link_age: link.heard.map(|heard| now.mono.since(heard)),
            has_cluster: cluster.server.is_some(),
            cluster_age: now.mono.since(heard),
            machine_age: shared_state.examined.get().map(|at| now.mono.since(at)),
            now: now.wall,
        };
        known.verdict()
    })
}

/// The parts that are always told of. Another one is where something is wrong with it.
const PARTS: [&str; 7] = [
    "link",
    "cluster",
    "store",
    "telemetry",
    "access",
    "identity",
    "dashboard",
];

fn readiness(list: &Conditions, verdict: &Verdict, link: &LinkView) -> Readiness {
    let mut parts: Vec<_> = PARTS.into_iter().map(part).collect();
    for condition in list.worst_first() {
        let id = condition.id.split('.').next().unwrap_or(condition.id);
        // A broken application or a full disk does not keep the agent from doing what it is for.
        if condition.severity <= Severity::Note || matches!(id, "workloads" | "machine") {
            continue;
        }
        let known = parts.iter().position(|part| part.id == id);
        let place = known.unwrap_or(parts.len());
        if known.is_none() {
            parts.push(part(id));
        }
        // The worst of a part comes first, and stays.
        if let Some(part) = parts.get_mut(place).filter(|part| part.ready) {
            part.ready = false;
            part.sentence = Some(condition.sentence.clone());
        }
    }
    if let Some(part) = parts.first_mut().filter(|part| part.ready)
        && session(link) == Session::Away
    {
        part.ready = false;
        part.sentence = Some(verdict.sentence.clone());
    }
    Readiness {
        ready: parts.iter().all(|part| part.ready),
        sentence: verdict.sentence.clone(),
        code: verdict.code.to_owned(),
        parts,
    }
}

fn part(id: &str) -> PartStatus {
    PartStatus {
        id: id.to_owned(),
        ready: true,
        sentence: None,
    }
}

/// Returns whether the link is there, or held by another agent of the same cluster.
fn session(link: &LinkView) -> Session {
    match &link.status {
        _ if link.is_off => Session::Off,
        Some(status) if status.state == LinkState::Ready => Session::Ready,
        Some(status) if status.held_by == Some(Holder::Lease) => {
            Session::StandingBy(status.why.clone())
        }
        Some(_) | None => Session::Away,
    }
}

fn shape_of_link(view: &LinkView) -> Link {
    let mut shape = Link {
        state: view.state().as_str().to_owned(),
        last_heartbeat: view.last_heartbeat.map(api::stamp),
        rtt_ms: view
            .round_trip
            .map(|time| (time.as_secs_f64() * 1e4).round() / 10.0),
        outages: view.outages,
        last_outage_why: view.last_outage_why.clone(),
        received_bytes: view.received_bytes,
        sent_bytes: view.sent_bytes,
        ..Link::default()
    };
    if view.is_off {
        shape.why = Some(NOT_CONFIGURED.to_owned());
    }
    if let Some(status) = &view.status {
        shape.since = Some(api::stamp(status.since));
        shape.why = Some(status.why.clone()).filter(|why| !why.is_empty());
        shape.endpoint.clone_from(&view.address);
        shape.next_attempt_s = status
            .next_attempt
            .map(|wait| (wait.as_secs_f64() * 10.0).round() / 10.0);
    }
    shape
}

fn shape_of_dashboard(view: &DashboardView, away: RejectedConnections) -> Dashboard {
    let certificate = view.certificate.as_ref();
    Dashboard {
        urls: view.urls.clone(),
        fingerprint: certificate.map(|shown| shown.fingerprint.clone()),
        until: certificate.and_then(|shown| shown.until).map(api::stamp),
        is_self_made: certificate.map(|shown| shown.is_self_made),
        turned_away: api::TurnedAway {
            full: away.full,
            slow: away.slow,
            unreadable: away.unreadable,
        },
    }
}

fn shape_of_cluster(view: &ClusterView, now: Now) -> Cluster {
    let silence = view.heard.as_ref().and_then(|heard| heard.silence());
    let why = silence
        .map(|error| Notified::from(&error).sentence())
        .or_else(|| view.why.clone());
    let known = view.nodes.is_some() && view.pods.is_some();
    let state = match (&view.server, &why, known) {
        (None, _, _) => ClusterState::None,
        (Some(_), Some(_), _) => ClusterState::Unreachable,
        (Some(_), None, true) => ClusterState::Ready,
        (Some(_), None, false) => ClusterState::Connecting,
    };
    Cluster {
        state: state.as_str().to_owned(),
        server: view.server.clone(),
        version: view.version.clone(),
        nodes: view.nodes,
        nodes_ready: view.nodes_ready,
        pods: view.pods,
        pods_expected: view.workloads.map(|(all, _)| all),
        pods_not_ready: view.workloads.map(|(_, broken)| broken),
        age_s: view
            .last_heard()
            .map(|heard| now.mono.since(heard).as_secs()),
        why,
    }
}

fn shape_of_host(
    registrar: &Registrar,
    shared_state: &SharedState,
    address: Option<String>,
) -> Host {
    let HostView {
        cpu_share,
        memory_share,
    } = registrar.read_host();
    let host = registrar.host();
    Host {
        hostname: host.hostname.clone(),
        os: host.os.clone(),
        kernel: host.kernel.clone(),
        architecture: host.architecture.clone(),
        cores: host.cores,
        memory_bytes: host.memory_bytes,
        memory_percent: memory_share.and_then(api::percent),
        cpu_percent: cpu_share.and_then(api::percent),
        disk_bytes: host.disk_bytes,
        disk_percent: shared_state
            .root
            .get()
            .and_then(DiskSpace::used_share)
            .and_then(api::percent),
        uptime_s: Some(shared_state.now().mono.elapsed_since_boot().as_secs()),
        address,
    }
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{
        health::Condition,
        time::{Mono, Wall},
    };

    fn wrong(id: &'static str, severity: Severity) -> Condition {
        Condition {
            id,
            severity,
            since: Wall::default(),
            sentence: format!("{id} is wrong"),
            fix: None,
        }
    }

    #[test]
    fn each_part_says_the_worst_that_is_wrong_with_it() {
        let mut list = Conditions::default();
        list.report(wrong("cluster.none", Severity::Note), Mono::default());
        list.report(wrong("store.full", Severity::Warning), Mono::default());
        list.report(wrong("store.damaged", Severity::Critical), Mono::default());
        list.report(wrong("lease.rbac", Severity::Warning), Mono::default());
        let verdict = Known {
            conditions: &list,
            link: Session::Away,
            link_age: None,
            has_cluster: true,
            cluster_age: std::time::Duration::ZERO,
            machine_age: None,
            now: Wall::default(),
        };
        let verdict = verdict.verdict();
        let readiness = readiness(&list, &verdict, &LinkView::default());
        let not: Vec<_> = readiness
            .parts
            .iter()
            .filter(|part| !part.ready)
            .map(|part| (part.id.as_str(), part.sentence.as_deref()))
            .collect();
        let sentence = "store.damaged is wrong; and 2 more conditions";
        assert_eq!(
            not,
            [
                ("link", Some(sentence)),
                ("store", Some("store.damaged is wrong")),
                ("lease", Some("lease.rbac is wrong")),
            ]
        );
        assert!(!readiness.ready);
        assert_eq!(readiness.sentence, sentence);
    }
}

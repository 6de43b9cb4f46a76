//! Shared state in the format of Prometheus.

use crate::{
    core::{health::Severity, order::GatherExt as _, outbox::Backlog, rates::Reading},
    tasks::{proxy::Load, state::SharedState},
    wire::exposition::{self, Agent, Cluster, Link},
};
use litemap::LiteMap;

/// The page of this moment.
pub fn page(
    reading: &Reading,
    shared_state: &SharedState,
    version: &str,
    load: &Load,
    backlog: Vec<Backlog>,
) -> String {
    let (link, cluster) = (shared_state.link.borrow(), shared_state.cluster.borrow());
    let away = shared_state.turned_away.get();
    let agent = Agent {
        version,
        started: shared_state.started().wall,
        link: Link {
            state: link.state(),
            outages: link.outages,
            registrations: link.registrations,
            heartbeats: link.heartbeats,
            last_heartbeat: link.last_heartbeat,
            round_trip_us: link
                .round_trip
                .and_then(|time| u64::try_from(time.as_micros()).ok()),
            received_bytes: link.received_bytes,
            sent_bytes: link.sent_bytes,
            queued_bytes: count(link.queued_bytes),
        },
        cluster: cluster.server.as_ref().map(|_| Cluster {
            is_up: cluster.why.is_none() && cluster.nodes.is_some(),
            nodes: cluster.nodes,
            nodes_ready: cluster.nodes_ready,
            pods: cluster.pods,
        }),
        conditions: conditions(shared_state),
        exchanges: count(load.exchanges),
        waiting: count(load.short_waiting),
        turned_away: [
            ("full", away.full),
            ("slow", away.slow),
            ("unreadable", away.unreadable),
        ],
        accept_errors: shared_state.accept_errors(),
        backlog,
    };
    exposition::page(&agent, reading)
}

/// Number of conditions of each severity, zero included.
fn conditions(shared_state: &SharedState) -> Vec<(&'static str, u64)> {
    let each = [Severity::Note, Severity::Warning, Severity::Critical];
    let mut counts: LiteMap<Severity, u64> =
        each.map(|severity| (severity, 0)).into_iter().gather();
    shared_state.with_conditions(|list| {
        for condition in list.worst_first() {
            *counts.entry(condition.severity).or_default() += 1;
        }
    });
    let words = counts.into_iter();
    words
        .map(|(severity, count)| (severity.as_str(), count))
        .collect()
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

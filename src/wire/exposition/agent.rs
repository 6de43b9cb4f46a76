//! The agent itself and a summary of its cluster.

use super::{
    MetricType::{self, Counter, Gauge},
    Page, flag, scaled, whole,
};
use crate::core::{link::LinkState, outbox::Backlog, rates::AgentUsage, time::Wall};

/// Figures of the agent itself.
#[derive(Clone, Debug, Default)]
pub struct Agent<'a> {
    pub version: &'a str,
    /// Time when it started.
    pub started: Wall,
    pub link: Link,
    /// The cluster, where one is configured.
    pub cluster: Option<Cluster>,
    /// Conditions that hold now, by the word of their severity.
    pub conditions: Vec<(&'static str, u64)>,
    /// Proxied requests under way.
    pub exchanges: u64,
    /// Proxied requests that wait for their turn.
    pub waiting: u64,
    /// Connections that the dashboard turned away before there was a request, by why.
    pub turned_away: [(&'static str, u64); 3],
    /// Connections to the dashboard that the kernel refused to hand over.
    pub accept_errors: u64,
    /// Undelivered data.
    pub backlog: Vec<Backlog>,
}

/// The link to the control plane.
#[derive(Clone, Debug, Default)]
pub struct Link {
    pub state: LinkState,
    /// Times that it was lost.
    pub outages: u64,
    /// Registrations that the control plane took.
    pub registrations: u64,
    /// Heartbeats that were sent.
    pub heartbeats: u64,
    /// Time when the last one was.
    pub last_heartbeat: Option<Wall>,
    /// Between the last ping and its pong, in microseconds.
    pub round_trip_us: Option<u64>,
    /// Payload bytes that came in.
    pub received_bytes: u64,
    /// Payload bytes that went out.
    pub sent_bytes: u64,
    /// Bytes that wait in its lanes.
    pub queued_bytes: u64,
}

/// The cluster as its watches see it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cluster {
    /// True if its API answers.
    pub is_up: bool,
    pub nodes: Option<u64>,
    /// Nodes that are ready.
    pub nodes_ready: Option<u64>,
    pub pods: Option<u64>,
}

pub(super) fn write(agent: &Agent<'_>, own: &AgentUsage, page: &mut Page) {
    const BUILD: (&str, MetricType, &str) = (
        "pipeops_agent_build_info",
        Gauge,
        "The version of the agent; the value is 1.",
    );
    page.family(
        BUILD,
        [([("version", agent.version)], Some("1".to_owned()))],
    );
    let of_conditions = agent
        .conditions
        .iter()
        .map(|(severity, count)| ([("severity", *severity)], whole(Some(*count))));
    page.family(
        (
            "pipeops_agent_conditions",
            Gauge,
            "What is wrong now, by severity.",
        ),
        of_conditions,
    );
    program(agent, own, page);
    let turned_away = agent.turned_away.iter().filter(|(why, _)| !why.is_empty());
    page.family(
        (
            "pipeops_agent_dashboard_turned_away_total",
            Counter,
            "Connections to the dashboard that ended before there was a request, by why.",
        ),
        turned_away.map(|(why, count)| ([("why", *why)], whole(Some(*count)))),
    );
    link(&agent.link, page);
    if let Some(known) = agent.cluster {
        cluster(known, page);
    }
    backlog(&agent.backlog, page);
}

fn backlog(backlog: &[Backlog], page: &mut Page) {
    fn labels(waiting: &Backlog) -> [(&str, &str); 2] {
        [
            ("destination", waiting.destination.as_str()),
            ("stream", waiting.stream.as_str()),
        ]
    }
    let records = backlog
        .iter()
        .map(|waiting| (labels(waiting), whole(Some(waiting.records))));
    let help = "Records that a destination has not acknowledged; one of samples is a minute.";
    page.family(("pipeops_agent_backlog_records", Gauge, help), records);
    let oldest = backlog
        .iter()
        .map(|waiting| (labels(waiting), waiting.oldest.and_then(seconds)));
    let name = "pipeops_agent_backlog_oldest_timestamp_seconds";
    page.family(
        (name, Gauge, "Timestamp of the oldest undelivered record."),
        oldest,
    );
}

fn program(agent: &Agent<'_>, own: &AgentUsage, page: &mut Page) {
    for (name, kind, help, value) in [
        (
            "pipeops_agent_start_time_seconds",
            Gauge,
            "Start time of the agent, by the clock at that time.",
            seconds(agent.started),
        ),
        (
            "pipeops_agent_memory_pss_bytes",
            Gauge,
            "Proportional set size (PSS) of the agent.",
            whole(own.pss),
        ),
        (
            "pipeops_agent_cpu_seconds_total",
            Counter,
            "Processor time of the agent.",
            scaled(own.cpu_us, 6),
        ),
        (
            "pipeops_agent_written_bytes_total",
            Counter,
            "Bytes the agent wrote to disk.",
            whole(own.written),
        ),
        (
            "pipeops_agent_wakeups_total",
            Counter,
            "Voluntary context switches of the agent's threads.",
            whole(own.wakeups),
        ),
        (
            "pipeops_agent_exchanges",
            Gauge,
            "Proxied requests under way.",
            whole(Some(agent.exchanges)),
        ),
        (
            "pipeops_agent_exchanges_waiting",
            Gauge,
            "Proxied requests that wait for their turn.",
            whole(Some(agent.waiting)),
        ),
        (
            "pipeops_agent_accept_errors_total",
            Counter,
            "Connections to the dashboard that the kernel did not hand over, mostly because descriptors ran out.",
            whole(Some(agent.accept_errors)),
        ),
    ] {
        page.one((name, kind, help), value);
    }
}

fn link(link: &Link, page: &mut Page) {
    page.family(
        (
            "pipeops_agent_link_state",
            Gauge,
            "The state of the link to the control plane; the value is 1.",
        ),
        [([("state", link.state.as_str())], Some("1".to_owned()))],
    );
    for (name, kind, help, value) in [
        (
            "pipeops_agent_link_up",
            Gauge,
            "Whether the link to the control plane is ready.",
            flag(Some(link.state == LinkState::Ready)),
        ),
        (
            "pipeops_agent_link_outages_total",
            Counter,
            "Times that the link was lost.",
            whole(Some(link.outages)),
        ),
        (
            "pipeops_agent_link_registrations_total",
            Counter,
            "Registrations that the control plane took.",
            whole(Some(link.registrations)),
        ),
        (
            "pipeops_agent_link_heartbeats_total",
            Counter,
            "Heartbeats that were sent.",
            whole(Some(link.heartbeats)),
        ),
        (
            "pipeops_agent_link_last_heartbeat_timestamp_seconds",
            Gauge,
            "When the last heartbeat was sent.",
            link.last_heartbeat.and_then(seconds),
        ),
        (
            "pipeops_agent_link_round_trip_seconds",
            Gauge,
            "Time between the last ping and its answer.",
            scaled(link.round_trip_us, 6),
        ),
        (
            "pipeops_agent_link_received_bytes_total",
            Counter,
            "Payload that came in over the link.",
            whole(Some(link.received_bytes)),
        ),
        (
            "pipeops_agent_link_sent_bytes_total",
            Counter,
            "Payload that went out over the link.",
            whole(Some(link.sent_bytes)),
        ),
        (
            "pipeops_agent_link_queued_bytes",
            Gauge,
            "Payload that waits to go out.",
            whole(Some(link.queued_bytes)),
        ),
    ] {
        page.one((name, kind, help), value);
    }
}

fn cluster(cluster: Cluster, page: &mut Page) {
    for (name, help, value) in [
        (
            "pipeops_cluster_up",
            "Whether the API of the cluster answers.",
            flag(Some(cluster.is_up)),
        ),
        (
            "pipeops_cluster_nodes",
            "Nodes of the cluster.",
            whole(cluster.nodes),
        ),
        (
            "pipeops_cluster_nodes_ready",
            "Nodes of the cluster that are ready.",
            whole(cluster.nodes_ready),
        ),
        (
            "pipeops_cluster_pods",
            "Pods in all namespaces.",
            whole(cluster.pods),
        ),
    ] {
        page.one((name, Gauge, help), value);
    }
}

fn seconds(wall: Wall) -> Option<String> {
    scaled(u64::try_from(wall.millis()).ok(), 3)
}

//! Usage of a cluster as series: nodes, Pods, and their numbers.
//!
//! The number of series is bounded whatever the size of the cluster: nodes, Pods (the largest and
//! those that had series before; the others as one sum) and namespaces each have a limit. Counters
//! become rates by the kubelet's own times, because it answers with readings that are some seconds
//! old.

mod phases;
pub mod pods;
#[cfg(test)]
mod tests;

use std::{cmp::Reverse, collections::BTreeSet, time::Duration};

use litemap::LiteMap;

pub use phases::{Counts, PHASES, Phases};

use super::{
    order::OrderExt as _,
    rates::{Points, per_second},
    series::Point,
    time::{Mono, Wall},
};

/// Nodes that are sampled: the first by name.
pub const NODES_MAX: usize = 50;
/// Pods that have series of their own.
pub const PODS_MAX: usize = 200;
/// Pods that may get series of their own at once: all of a full cluster, and half as many again
/// that take their place.
const NEW_MAX: u64 = 300;
/// Interval at which one more new Pod gets series of its own: twelve an hour, which is a CronJob
/// every five minutes. Each takes some of the 65,535 series numbers for at least two days.
const NEW_EVERY: Duration = Duration::from_secs(300);
/// Two readings of a counter further apart say nothing about the time between them.
const APART_MAX: Duration = Duration::from_secs(900);
/// Largest difference between the kubelet's clock and ours between two readings: its answer is up
/// to some 20 s old, twice.
const ASTRAY_MAX: Duration = Duration::from_secs(60);

/// Status of a node in the API.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Node {
    /// True if it takes Pods.
    pub is_ready: bool,
    /// Memory, disk and PID pressure.
    pub pressures: [bool; 3],
    /// Thousandths of cores for Pods.
    pub cpu_milli: Option<u64>,
    /// Bytes of memory for Pods.
    pub memory: Option<u64>,
    /// Pods that it takes.
    pub pods: Option<u64>,
}

/// Usage of a node or a Pod.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Usage {
    /// Billionths of a core: a rate already.
    pub cpu_nano: Option<u64>,
    /// Memory that cannot be taken from it without harm.
    pub working_set: Option<u64>,
    /// Counters of its network.
    pub network: Option<Network>,
    /// Bytes of its file system, and what of these is available: of nodes.
    pub file_system: Option<(u64, u64)>,
    /// Bytes of disk that it takes: of Pods.
    pub disk: Option<u64>,
}

/// Counters of a network.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Network {
    /// Time when they were read, by the kubelet's clock.
    pub at: Wall,
    /// Received and sent.
    pub bytes: [u64; 2],
}

/// Pod with its usage.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Pod {
    pub namespace: String,
    pub name: String,
    pub usage: Usage,
}

/// Summary API answer of a kubelet.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Summary {
    /// The node itself.
    pub node: Usage,
    pub pods: Vec<Pod>,
}

/// Input of one round of sampling.
#[derive(Debug, Default)]
pub struct Round {
    nodes: Vec<(String, Usage)>,
    pods: Vec<Pod>,
    rest: OtherPods,
}

/// Number of Pods without series of their own, by the reason.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Unlisted {
    /// Smaller than those with a series.
    pub small: usize,
    /// Over the limit of new series.
    pub new: usize,
}

/// Pods without series of their own.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct OtherPods {
    pods: usize,
    cpu_nano: u64,
    working_set: u64,
}

/// State between rounds.
#[derive(Debug)]
pub struct Cluster {
    /// Time when the last round was, and the counters of it: of nodes by name, of Pods by namespace
    /// and name.
    at: Mono,
    networks: LiteMap<(String, String), Network>,
    /// The Pods that had series of their own.
    chosen: BTreeSet<(String, String)>,
    /// Number of new Pods that may get series now, and the time from which that is counted.
    may_be_new: u64,
    counted_at: Mono,
}

impl Default for Cluster {
    fn default() -> Self {
        Self {
            at: Mono::default(),
            networks: LiteMap::default(),
            chosen: BTreeSet::default(),
            may_be_new: NEW_MAX,
            counted_at: Mono::default(),
        }
    }
}

impl Cluster {
    /// Adds the statistics of one kubelet.
    pub fn add(&self, round: &mut Round, node: &str, summary: Summary) {
        round.nodes.push((node.to_owned(), summary.node));
        round.pods.extend(summary.pods);
        self.choose(round, 2 * PODS_MAX);
    }

    /// The points of a round at `now`. Returns beside them how many Pods have no series of their
    /// own, and why.
    pub fn points(
        &mut self,
        mut round: Round,
        nodes: &LiteMap<String, Node>,
        counts: &[Counts],
        now: Mono,
    ) -> (Vec<Point>, Unlisted) {
        self.choose(&mut round, PODS_MAX);
        let small = round.rest.pods;
        self.admit(&mut round, now);
        let left = Unlisted {
            small,
            new: round.rest.pods - small,
        };
        let apart = now.since(self.at);
        let before = std::mem::take(&mut self.networks);
        self.at = now;
        let mut points = Points::default();
        for (name, node) in nodes.iter().take(NODES_MAX) {
            node_points(name, node, &mut points);
        }
        phases::points(counts, &mut points);
        for (name, usage) in &round.nodes {
            let labels = [("node", name.as_str())];
            used("cluster_node", &labels, usage, &mut points);
            let key = (String::new(), name.clone());
            self.network("cluster_node", (&before, apart), key, usage, &mut points);
        }
        self.chosen.clear();
        for pod in &round.pods {
            let labels = [("namespace", pod.namespace.as_str()), ("pod", &pod.name)];
            used("cluster_pod", &labels, &pod.usage, &mut points);
            self.chosen.insert(key(pod));
            let network = (&before, apart);
            self.network("cluster_pod", network, key(pod), &pod.usage, &mut points);
        }
        if round.rest.pods > 0 {
            let rest = Usage {
                cpu_nano: Some(round.rest.cpu_nano),
                working_set: Some(round.rest.working_set),
                ..Usage::default()
            };
            used("cluster_other_pods", &[], &rest, &mut points);
        }
        (points.list, left)
    }

    /// Lets new Pods have series of their own, the largest first, as long as there are not too many
    /// in too short a time.
    fn admit(&mut self, round: &mut Round, now: Mono) {
        let every = NEW_EVERY.as_secs();
        let more = now.since(self.counted_at).as_secs() / every;
        self.may_be_new = self.may_be_new.saturating_add(more).min(NEW_MAX);
        self.counted_at = self
            .counted_at
            .after(Duration::from_secs(more.saturating_mul(every)));
        let new = round
            .pods
            .iter()
            .filter(|pod| !self.chosen.contains(&key(pod)))
            .count();
        if u64::try_from(new).unwrap_or(u64::MAX) > self.may_be_new {
            self.sort(&mut round.pods);
        }
        let Round { pods, rest, .. } = round;
        pods.retain(|pod| {
            if self.chosen.contains(&key(pod)) {
                return true;
            }
            let may_have = self.may_be_new > 0;
            self.may_be_new = self.may_be_new.saturating_sub(1);
            if !may_have {
                rest.add(pod);
            }
            may_have
        });
    }

    /// Keeps the largest Pods.
    fn choose(&self, round: &mut Round, pods_max: usize) {
        if round.pods.len() <= pods_max {
            return;
        }
        self.sort(&mut round.pods);
        for pod in round.pods.drain(pods_max..) {
            round.rest.add(&pod);
        }
    }

    /// Puts the largest Pods first; what was kept before counts twice, so that two of a size do not
    /// change places each time.
    fn sort(&self, pods: &mut Vec<Pod>) {
        let sum = |of: fn(&Usage) -> Option<u64>| {
            let each = pods.iter().filter_map(|pod| of(&pod.usage));
            each.fold(1_u128, |sum, value| sum + u128::from(value))
        };
        let (cpu, memory) = (sum(|usage| usage.cpu_nano), sum(|usage| usage.working_set));
        let weighed = pods.drain(..).map(|pod| {
            let share = |part: Option<u64>, all| u128::from(part.unwrap_or(0)) * 1_000_000 / all;
            let usage = &pod.usage;
            let size = share(usage.cpu_nano, cpu).max(share(usage.working_set, memory));
            let weight = 1 + u128::from(self.chosen.contains(&key(&pod)));
            (Reverse(size * weight), pod)
        });
        let mut weighed: Vec<_> = weighed.collect();
        weighed.order_by_key(|(size, _)| *size);
        pods.extend(weighed.into_iter().map(|(_, pod)| pod));
    }

    /// The rates of a network; its counters are kept for the next round.
    fn network(
        &mut self,
        prefix: &str,
        (before, apart): (&LiteMap<(String, String), Network>, Duration),
        key: (String, String),
        usage: &Usage,
        points: &mut Points,
    ) {
        let Some(now) = usage.network else {
            return;
        };
        let rates = before
            .get(&key)
            .and_then(|before| rates(*before, now, apart));
        let name = format!("{prefix}_network_bytes_per_second");
        for (direction, rate) in ["receive", "transmit"]
            .iter()
            .zip(rates.unwrap_or_default())
        {
            let whose = match &key {
                (empty, node) if empty.is_empty() => [("node", node.as_str()), ("", "")],
                (namespace, pod) => [("namespace", namespace.as_str()), ("pod", pod.as_str())],
            };
            let labels = whose.iter().copied().filter(|(label, _)| !label.is_empty());
            let labels: Vec<_> = labels.chain([("direction", *direction)]).collect();
            points.add(&name, &labels, 0, rate);
        }
        self.networks.insert(key, now);
    }
}

impl OtherPods {
    fn add(&mut self, pod: &Pod) {
        let (cpu, memory) = (pod.usage.cpu_nano, pod.usage.working_set);
        self.pods += 1;
        self.cpu_nano = self.cpu_nano.saturating_add(cpu.unwrap_or(0));
        self.working_set = self.working_set.saturating_add(memory.unwrap_or(0));
    }
}

fn key(pod: &Pod) -> (String, String) {
    (pod.namespace.clone(), pod.name.clone())
}

/// Bytes a second. None where a counter went back, it is the same reading again, or the times
/// cannot be believed.
fn rates(before: Network, now: Network, apart: Duration) -> Option<[Option<u64>; 2]> {
    let millis = now.at.millis().checked_sub(before.at.millis())?;
    let time = Duration::from_millis(u64::try_from(millis).ok()?);
    let is_whole =
        time >= Duration::from_secs(1) && time <= APART_MAX && time.abs_diff(apart) <= ASTRAY_MAX;
    let ([one_in, one_out], [two_in, two_out]) = (before.bytes, now.bytes);
    let received = two_in.checked_sub(one_in).filter(|_| is_whole)?;
    let sent = two_out.checked_sub(one_out)?;
    Some([received, sent].map(|count| Some(per_second(count, time, 0))))
}

/// Points of the status of a node.
fn node_points(name: &str, node: &Node, points: &mut Points) {
    let labels = [("node", name)];
    let [memory, disk, pid] = node.pressures;
    for (name, value) in [
        ("cluster_node_ready", node.is_ready),
        ("cluster_node_memory_pressure", memory),
        ("cluster_node_disk_pressure", disk),
        ("cluster_node_pid_pressure", pid),
    ] {
        points.count(name, &labels, Some(u64::from(value)));
    }
    points.add(
        "cluster_node_allocatable_cpu_cores",
        &labels,
        3,
        node.cpu_milli,
    );
    points.count(
        "cluster_node_allocatable_memory_bytes",
        &labels,
        node.memory,
    );
    points.count("cluster_node_allocatable_pods", &labels, node.pods);
}

/// Series of usage, without network rates.
fn used(prefix: &str, labels: &[(&str, &str)], usage: &Usage, points: &mut Points) {
    let mut add = |what: &str, digits, value| {
        points.add(&format!("{prefix}_{what}"), labels, digits, value);
    };
    // Ten-thousandths of a core: less is noise.
    let cpu = usage
        .cpu_nano
        .map(|nano| nano.saturating_add(50_000) / 100_000);
    add("cpu_cores", 4, cpu);
    add("memory_working_set_bytes", 0, usage.working_set);
    add("filesystem_size_bytes", 0, usage.file_system.map(|of| of.0));
    add(
        "filesystem_available_bytes",
        0,
        usage.file_system.map(|of| of.1),
    );
    add("filesystem_used_bytes", 0, usage.disk);
}

//! Objects for people: more fields than the watches read, queried on demand and stored nowhere.

use super::Allocatable;
use crate::{
    core::{format::one_line, quantity, time::Wall},
    wire::{
        api::{NodeCondition, NodeReport, PodReport, WorkloadReport},
        json::fields,
    },
};

/// The longest reason that is shown: its end is cut.
const REASON_CHARS_MAX: usize = 300;

/// The head of an object, with its dates.
#[derive(Debug, Default)]
struct Head {
    name: String,
    namespace: String,
    creation_timestamp: Option<String>,
    deletion_timestamp: Option<String>,
    labels: litemap::LiteMap<String, String>,
}
fields!(Head {
    name,
    namespace,
    creation_timestamp: "creationTimestamp",
    deletion_timestamp: "deletionTimestamp",
    labels,
});

impl Head {
    fn age_s(&self, now: Wall) -> Option<u64> {
        let created = Wall::parse_rfc3339(self.creation_timestamp.as_deref()?)?;
        u64::try_from(now.millis().saturating_sub(created.millis()) / 1000).ok()
    }
}

#[derive(Debug, Default)]
pub struct Pod {
    metadata: Head,
    spec: PodSpec,
    status: PodStatus,
}
fields!(Pod {
    metadata,
    spec,
    status
});

#[derive(Debug, Default)]
struct PodSpec {
    node_name: Option<String>,
    containers: Vec<Named>,
    init_containers: Vec<Named>,
}
fields!(PodSpec {
    node_name: "nodeName",
    containers,
    init_containers: "initContainers"
});

#[derive(Debug, Default)]
struct Named {
    name: String,
}
fields!(Named { name });

#[derive(Debug, Default)]
struct PodStatus {
    phase: String,
    reason: Option<String>,
    message: Option<String>,
    conditions: Vec<Condition>,
    container_statuses: Vec<Container>,
    init_container_statuses: Vec<Container>,
}
fields!(PodStatus {
    phase,
    reason,
    message,
    conditions,
    container_statuses: "containerStatuses",
    init_container_statuses: "initContainerStatuses",
});

#[derive(Debug, Default)]
struct Condition {
    kind: String,
    status: String,
    message: String,
}
fields!(Condition {
    kind: "type",
    status,
    message
});

#[derive(Debug, Default)]
struct Container {
    name: String,
    ready: bool,
    restart_count: i64,
    state: State,
    last_state: State,
}
fields!(Container {
    name,
    ready,
    restart_count: "restartCount",
    state,
    last_state: "lastState"
});

#[derive(Debug, Default)]
struct State {
    waiting: Option<Waiting>,
    terminated: Option<Terminated>,
}
fields!(State {
    waiting,
    terminated
});

#[derive(Debug, Default)]
struct Waiting {
    reason: String,
    message: String,
}
fields!(Waiting { reason, message });

#[derive(Debug, Default)]
struct Terminated {
    reason: String,
    message: String,
    exit_code: i64,
    signal: i64,
}
fields!(Terminated {
    reason,
    message,
    exit_code: "exitCode",
    signal
});

impl Pod {
    /// Returns whether its name or its namespace has this in it.
    pub fn has(&self, part: &str) -> bool {
        self.metadata.name.contains(part) || self.metadata.namespace.contains(part)
    }

    /// Report for the dashboard.
    pub fn report(self, now: Wall) -> PodReport {
        let ready = self.status.container_statuses.iter().filter(|c| c.ready);
        let ready = format!("{}/{}", ready.count(), self.spec.containers.len());
        let all = || {
            let statuses = &self.status;
            statuses
                .container_statuses
                .iter()
                .chain(&statuses.init_container_statuses)
        };
        let counts = all().map(|container| u64::try_from(container.restart_count).unwrap_or(0));
        let phase = match self.metadata.deletion_timestamp {
            Some(_) => "Terminating".to_owned(),
            None => self.status.phase.clone(),
        };
        let names = self
            .spec
            .containers
            .iter()
            .chain(&self.spec.init_containers);
        PodReport {
            phase,
            ready,
            restarts: counts.fold(0, u64::saturating_add),
            last_reason: self.reason(&all().collect::<Vec<_>>()),
            age_s: self.metadata.age_s(now),
            containers: names.map(|container| container.name.clone()).collect(),
            node: self.spec.node_name,
            namespace: self.metadata.namespace,
            name: self.metadata.name,
        }
    }

    /// Returns why it does not run, or why a container of it ended the last time.
    fn reason(&self, containers: &[&Container]) -> Option<String> {
        let said = |reason: &Option<String>| reason.clone().filter(|text| !text.is_empty());
        let now = containers.iter().find_map(|one| one.now());
        let own = said(&self.status.reason).map(|reason| match said(&self.status.message) {
            Some(message) => format!("{reason}: {message}"),
            None => reason,
        });
        let before = || containers.iter().find_map(|one| one.before());
        let placed = || {
            let placed = self
                .status
                .conditions
                .iter()
                .find(|c| c.kind == "PodScheduled");
            placed
                .filter(|c| c.status == "False")
                .map(|c| c.message.clone())
        };
        let reason = own.or(now).or_else(placed).or_else(before)?;
        Some(cut(&reason))
    }
}

impl Container {
    /// Returns why it does not run now, where that is not simply its beginning or its proper end.
    fn now(&self) -> Option<String> {
        if let Some(waiting) = &self.state.waiting
            && !matches!(
                waiting.reason.as_str(),
                "" | "ContainerCreating" | "PodInitializing"
            )
        {
            return Some(with(&self.name, &waiting.reason, &waiting.message));
        }
        let ended = self.state.terminated.as_ref();
        ended
            .filter(|ended| ended.exit_code != 0)
            .map(|ended| ended.describe(&self.name))
    }

    /// Returns why it ended the last time.
    fn before(&self) -> Option<String> {
        let ended = self.last_state.terminated.as_ref()?;
        Some(ended.describe(&self.name))
    }
}

impl Terminated {
    fn describe(&self, container: &str) -> String {
        let how = match (self.reason.as_str(), self.signal) {
            ("OOMKilled", _) => "out of memory".to_owned(),
            (_, signal) if signal > 0 => format!("ended by signal {signal}"),
            (_, _) => format!("ended with exit code {}", self.exit_code),
        };
        with(container, &how, &self.message)
    }
}

fn with(container: &str, what: &str, message: &str) -> String {
    match message {
        "" => format!("{container}: {what}"),
        message => format!("{container}: {what}: {message}"),
    }
}

fn cut(text: &str) -> String {
    one_line(text, REASON_CHARS_MAX)
}

#[derive(Debug, Default)]
pub struct Node {
    metadata: Head,
    status: NodeStatus,
}
fields!(Node { metadata, status });

#[derive(Debug, Default)]
struct NodeStatus {
    conditions: Vec<Condition>,
    addresses: Vec<Address>,
    node_info: super::NodeVersions,
    allocatable: Allocatable,
}
fields!(NodeStatus {
    conditions,
    addresses,
    node_info: "nodeInfo",
    allocatable
});

#[derive(Debug, Default)]
struct Address {
    kind: String,
    address: String,
}
fields!(Address {
    kind: "type",
    address
});

impl Node {
    /// Report for the dashboard, without measurements.
    pub fn report(self, now: Wall) -> NodeReport {
        let age_s = self.metadata.age_s(now);
        let conditions = self.status.conditions.iter();
        let ready = conditions.clone().find(|c| c.kind == "Ready");
        let is_wrong = |c: &&Condition| match c.kind.as_str() {
            "Ready" => c.status != "True",
            _ => c.status == "True",
        };
        let internal = self
            .status
            .addresses
            .iter()
            .find(|a| a.kind == "InternalIP");
        NodeReport {
            ready: ready.map(|c| c.status == "True"),
            roles: roles(&self.metadata.labels),
            version: self.status.node_info.kubelet_version.clone(),
            address: internal.map(|a| a.address.clone()).unwrap_or_default(),
            conditions: conditions
                .filter(is_wrong)
                .map(|c| NodeCondition {
                    kind: c.kind.clone(),
                    text: cut(&c.message),
                })
                .collect(),
            cpu_cores: quantity::milli(&self.status.allocatable.cpu).map(thousandths),
            memory_bytes: quantity::whole(&self.status.allocatable.memory),
            age_s,
            name: self.metadata.name,
            ..NodeReport::default()
        }
    }
}

fn thousandths(milli: u64) -> f64 {
    f64::from(u32::try_from(milli).unwrap_or(u32::MAX)) / 1000.0
}

fn roles(labels: &litemap::LiteMap<String, String>) -> String {
    let names = labels.iter().filter_map(|(label, value)| {
        let role = label.strip_prefix("node-role.kubernetes.io/")?;
        (value != "false").then_some(role)
    });
    names.collect::<Vec<_>>().join(", ")
}

/// A Deployment, a StatefulSet or a DaemonSet.
#[derive(Debug, Default)]
pub struct Workload {
    metadata: Head,
    spec: WorkloadSpec,
    status: WorkloadStatus,
}
fields!(Workload {
    metadata,
    spec,
    status
});

#[derive(Debug, Default)]
struct WorkloadSpec {
    replicas: Option<u64>,
}
fields!(WorkloadSpec { replicas });

#[derive(Debug, Default)]
struct WorkloadStatus {
    ready_replicas: Option<u64>,
    desired_number_scheduled: Option<u64>,
    number_ready: Option<u64>,
}
fields!(WorkloadStatus {
    ready_replicas: "readyReplicas",
    desired_number_scheduled: "desiredNumberScheduled",
    number_ready: "numberReady",
});

impl Workload {
    /// Report for the dashboard.
    pub fn report(self, kind: &str, now: Wall) -> WorkloadReport {
        WorkloadReport {
            age_s: self.metadata.age_s(now),
            kind: kind.to_owned(),
            // A DaemonSet has no replicas; what is not said there means one elsewhere.
            wanted: match (self.status.desired_number_scheduled, self.spec.replicas) {
                (Some(wanted), _) | (None, Some(wanted)) => wanted,
                (None, None) => 1,
            },
            ready: self
                .status
                .number_ready
                .or(self.status.ready_replicas)
                .unwrap_or(0),
            namespace: self.metadata.namespace,
            name: self.metadata.name,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Wall = Wall::from_millis(1_781_589_028_000);

    fn pod(text: &str) -> PodReport {
        serde_json::from_str::<Pod>(text).unwrap().report(NOW)
    }

    #[test]
    fn a_pod_says_why_it_does_not_run() {
        let shown = pod(
            r#"{"metadata":{"name":"web-0","namespace":"shop","creationTimestamp":"2026-06-16T05:50:28Z"},
            "spec":{"nodeName":"pi","containers":[{"name":"app"},{"name":"side"}],"initContainers":null},
            "status":{"phase":"Running","containerStatuses":[
              {"name":"app","ready":false,"restartCount":7,"state":{"waiting":{"reason":"CrashLoopBackOff","message":"back-off 5m0s\u001b[2J"}},
               "lastState":{"terminated":{"exitCode":1,"reason":"Error"}}},
              {"name":"side","ready":true,"restartCount":1}]}}"#,
        );
        assert_eq!(
            (shown.ready.as_str(), shown.restarts, shown.age_s),
            ("1/2", 8, Some(0))
        );
        assert_eq!(
            shown.last_reason.as_deref(),
            Some("app: CrashLoopBackOff: back-off 5m0s [2J")
        );
        assert_eq!(shown.containers, ["app", "side"]);
    }

    #[test]
    fn what_ended_before_is_told_when_nothing_is_wrong_now() {
        let shown = pod(
            r#"{"status":{"phase":"Running","containerStatuses":[{"name":"app","ready":true,"state":{},
            "lastState":{"terminated":{"exitCode":137,"reason":"OOMKilled"}}}]}}"#,
        );
        assert_eq!(shown.last_reason.as_deref(), Some("app: out of memory"));
        let waits = pod(
            r#"{"status":{"phase":"Pending","conditions":[{"type":"PodScheduled","status":"False","message":"0/1 nodes are available"}]}}"#,
        );
        assert_eq!(
            waits.last_reason.as_deref(),
            Some("0/1 nodes are available")
        );
        let begins = pod(
            r#"{"metadata":{"deletionTimestamp":"2026-06-16T05:50:28Z"},"status":{"phase":"Pending","containerStatuses":[{"name":"a","state":{"waiting":{"reason":"ContainerCreating"}}}]}}"#,
        );
        assert_eq!(
            (begins.last_reason, begins.phase.as_str()),
            (None, "Terminating")
        );
    }

    #[test]
    fn a_node_says_what_is_wrong_with_it() {
        let node: Node = serde_json::from_str(
            r#"{"metadata":{"name":"pi","labels":{"node-role.kubernetes.io/control-plane":"true"}},
            "status":{"conditions":[{"type":"Ready","status":"Unknown","message":"silent"},{"type":"DiskPressure","status":"False"}],
            "addresses":[{"type":"Hostname","address":"pi"},{"type":"InternalIP","address":"10.0.0.2"}],
            "allocatable":{"cpu":"3900m","memory":"4Gi"}}}"#,
        )
        .unwrap();
        let shown = node.report(NOW);
        assert_eq!(shown.ready, Some(false));
        assert_eq!(shown.conditions.len(), 1);
        assert_eq!(
            (shown.address.as_str(), shown.roles.as_str()),
            ("10.0.0.2", "control-plane")
        );
        assert_eq!(
            (shown.cpu_cores, shown.memory_bytes),
            (Some(3.9), Some(4 << 30))
        );
    }

    #[test]
    fn a_daemon_set_counts_otherwise_than_the_others() {
        let read = |text: &str| serde_json::from_str::<Workload>(text).unwrap();
        let shown = read(r#"{"status":{"desiredNumberScheduled":3,"numberReady":2}}"#)
            .report("DaemonSet", NOW);
        assert_eq!((shown.wanted, shown.ready), (3, 2));
        let shown = read(r#"{"spec":{"replicas":0},"status":{}}"#).report("Deployment", NOW);
        assert_eq!((shown.wanted, shown.ready), (0, 0));
    }
}

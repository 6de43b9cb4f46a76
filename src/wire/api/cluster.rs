//! Cluster as the page shows it. Names come from the cluster: they are data wherever they are
//! shown.

use serde::{Deserialize, Serialize};

/// Path of a container's log: `?namespace=&pod=&container=&tail=&follow=&previous=`.
pub const POD_LOGS_PATH: &str = "/api/v1/cluster/logs";

/// Nodes and namespaces.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct ClusterReport {
    /// As in the status: `none`, `connecting`, `ready`, `unreachable`.
    pub state: String,
    /// Reason why it is in that state, in words.
    pub why: Option<String>,
    /// The moment that this is of: RFC 3339 in UTC. In the past where the cluster does not answer.
    pub at: String,
    /// All nodes, by name.
    pub nodes: Vec<NodeReport>,
    /// All namespaces with Pods, by name.
    pub namespaces: Vec<NamespaceReport>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct NodeReport {
    pub name: String,
    /// Readiness; `null`: the node does not report it.
    pub ready: Option<bool>,
    /// Roles: `control-plane, etcd`; empty: an agent.
    pub roles: String,
    /// The version of its kubelet.
    pub version: String,
    /// Its address inside the cluster's network.
    pub address: String,
    /// Conditions that are a problem.
    pub conditions: Vec<NodeCondition>,
    /// Cores for Pods.
    pub cpu_cores: Option<f64>,
    /// Share of them in use.
    pub cpu_percent: Option<f64>,
    /// Memory for Pods.
    pub memory_bytes: Option<u64>,
    /// Share of it in use.
    pub memory_percent: Option<f64>,
    /// Pods on it.
    pub pods: Option<u64>,
    /// Age of the node.
    pub age_s: Option<u64>,
}

/// Something that is wrong with a node.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct NodeCondition {
    /// Kubernetes' word for it: `DiskPressure`.
    pub kind: String,
    /// Message of the condition.
    pub text: String,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct NamespaceReport {
    pub name: String,
    pub pods: u64,
    /// Those that run and are ready.
    pub running: u64,
    /// Those that run and are not ready.
    pub not_ready: u64,
    /// Those that wait.
    pub pending: u64,
    /// Those that failed.
    pub failed: u64,
    /// Restarts of their containers.
    pub restarts: u64,
}

/// A page of Pods.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct PodPage {
    /// At most 200.
    pub pods: Vec<PodReport>,
    /// Asks for the next page; `null`: this is the last.
    #[serde(rename = "continue")]
    pub next: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct PodReport {
    pub namespace: String,
    pub name: String,
    /// `Pending`, `Running`, `Succeeded`, `Failed`, `Unknown`, or `Terminating`.
    pub phase: String,
    /// Containers that are ready, of all: `1/2`.
    pub ready: String,
    /// Restarts of its containers.
    pub restarts: u64,
    /// Reason why it waits or why a container last ended, in words.
    pub last_reason: Option<String>,
    pub node: Option<String>,
    pub age_s: Option<u64>,
    /// The names of its containers.
    pub containers: Vec<String>,
}

/// A page of workloads.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct WorkloadPage {
    /// At most 200.
    pub workloads: Vec<WorkloadReport>,
    /// Asks for the next page; `null`: this is the last.
    #[serde(rename = "continue")]
    pub next: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct WorkloadReport {
    pub namespace: String,
    pub name: String,
    /// `Deployment`, `StatefulSet` or `DaemonSet`.
    pub kind: String,
    /// Pods that it wants.
    pub wanted: u64,
    /// Pods of it that are ready.
    pub ready: u64,
    pub age_s: Option<u64>,
}

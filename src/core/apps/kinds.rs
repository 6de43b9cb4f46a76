//! Kinds that an app may have: where the API has them, and the order in which they are written.

use std::collections::BTreeSet;

/// A kind.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Kind {
    /// Group and version: `apps/v1`.
    pub api_version: &'static str,
    /// Kind: `Deployment`.
    pub name: &'static str,
    /// Plural in a path: `deployments`.
    pub plural: &'static str,
}

const fn kind(api_version: &'static str, name: &'static str, plural: &'static str) -> Kind {
    Kind {
        api_version,
        name,
        plural,
    }
}

/// All kinds, in the order in which they are written: what others read first, what leads to them
/// last.
const KINDS: [Kind; 15] = [
    kind("v1", "ServiceAccount", "serviceaccounts"),
    kind("v1", "Secret", "secrets"),
    kind("v1", "ConfigMap", "configmaps"),
    kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims"),
    kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies"),
    kind("v1", "Service", "services"),
    kind("batch/v1", "Job", "jobs"),
    kind("apps/v1", "Deployment", "deployments"),
    kind("apps/v1", "StatefulSet", "statefulsets"),
    kind("apps/v1", "DaemonSet", "daemonsets"),
    kind("batch/v1", "CronJob", "cronjobs"),
    kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets"),
    kind(
        "autoscaling/v2",
        "HorizontalPodAutoscaler",
        "horizontalpodautoscalers",
    ),
    kind("networking.k8s.io/v1", "Ingress", "ingresses"),
    kind("gateway.networking.k8s.io/v1", "HTTPRoute", "httproutes"),
];

/// Node: read for a verdict, by the agent itself.
pub const NODE: Kind = kind("v1", "Node", "nodes");

/// Kinds in a namespace that a verdict reads, each where the version has one of the second; always
/// where that is empty.
const READ: [(Kind, &[&str]); 10] = [
    (kind("v1", "Pod", "pods"), &[]),
    (kind("v1", "Event", "events"), &[]),
    (
        kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims"),
        &[],
    ),
    (
        kind("apps/v1", "Deployment", "deployments"),
        &["Deployment"],
    ),
    (
        kind("apps/v1", "ReplicaSet", "replicasets"),
        &["Deployment"],
    ),
    (
        kind("apps/v1", "StatefulSet", "statefulsets"),
        &["StatefulSet"],
    ),
    (kind("apps/v1", "DaemonSet", "daemonsets"), &["DaemonSet"]),
    (kind("batch/v1", "Job", "jobs"), &["Job", "CronJob"]),
    (kind("v1", "Service", "services"), &["Service", "Ingress"]),
    (
        kind("networking.k8s.io/v1", "Ingress", "ingresses"),
        &["Ingress"],
    ),
];

/// Kinds that a verdict on objects of these kinds reads, besides [`NODE`].
pub fn read_for<'a>(kinds: &'a BTreeSet<&str>) -> impl Iterator<Item = &'static Kind> + use<'a> {
    let is_read = |(_, users): &&(Kind, &[&str])| {
        users.is_empty() || users.iter().any(|user| kinds.contains(user))
    };
    READ.iter().filter(is_read).map(|(kind, _)| kind)
}

/// The kind with this name in this version of the API.
pub fn kind_of(api_version: &str, name: &str) -> Option<&'static Kind> {
    KINDS
        .iter()
        .find(|kind| kind.name == name && kind.api_version == api_version)
}

impl Kind {
    /// Place in the order.
    pub fn order(&self) -> usize {
        KINDS
            .iter()
            .position(|kind| kind == self)
            .unwrap_or(KINDS.len())
    }

    /// Path of an object, or of all where the name is empty. Without a namespace it is that of the
    /// whole cluster.
    pub fn path(&self, namespace: &str, name: &str) -> String {
        let root = if self.api_version == "v1" {
            "/api"
        } else {
            "/apis"
        };
        let mut path = format!("{root}/{}", self.api_version);
        let steps = [("/namespaces/", namespace), ("/", self.plural), ("/", name)];
        for (before, step) in steps.iter().filter(|(_, step)| !step.is_empty()) {
            path.push_str(before);
            path.push_str(step);
        }
        path
    }

    /// Returns whether objects of this kind hold data, and are never deleted with a version.
    pub fn is_kept(&self) -> bool {
        self.name == "PersistentVolumeClaim"
    }
}

/// Names that people take for one of ours.
pub(super) fn advice(api_version: &str, name: &str) -> String {
    if let Some(known) = KINDS.iter().find(|kind| kind.name == name) {
        return format!(
            "apiVersion: {} is the one that apps deploys, not {api_version:?}",
            known.api_version
        );
    }
    match name {
        "Namespace" => "create it first: kubectl create namespace NAME".to_owned(),
        "Role" | "RoleBinding" | "ClusterRole" | "ClusterRoleBinding" => {
            "rights are given by the cluster's owner: kubectl apply".to_owned()
        }
        "HelmChart" | "CustomResourceDefinition" => {
            "it is the business of the cluster's owner: kubectl apply".to_owned()
        }
        "Pod" | "ReplicaSet" => {
            "deploy it as a Deployment: a Pod alone is not started again".to_owned()
        }
        _ => format!("apply it with kubectl; apps deploys {}", names()),
    }
}

fn names() -> String {
    let names: Vec<_> = KINDS.iter().map(|kind| kind.name).collect();
    names.join(", ")
}

//! Tables of the policy: readable, changeable and enterable resources. Everything that is on none
//! of these lists is refused.
//!
//! Each list names API groups, the core's being empty, and in each group resources in their plural
//! and `resource/subresource`. `*` is every resource of the group, without its subresources.

use crate::core::proxy::KubePath;

/// A list.
pub(super) type Table = [(&'static str, &'static [&'static str])];

/// Reads that are free at every level but `off`: what is built into Kubernetes and holds no
/// Secrets, and what comes with k3s or is as common. Groups that are on no list may be served by
/// anybody and hold anything (the values of a HelmChart hold passwords), so they are read as
/// Secrets are.
pub(super) const READ: &Table = &[
    (
        "",
        &[
            "componentstatuses",
            "configmaps",
            "endpoints",
            "events",
            "limitranges",
            "namespaces",
            "nodes",
            "persistentvolumeclaims",
            "persistentvolumes",
            "pods",
            "pods/ephemeralcontainers",
            "pods/log",
            "pods/resize",
            "podtemplates",
            "replicationcontrollers",
            "resourcequotas",
            "serviceaccounts",
            "services",
        ],
    ),
    ("admissionregistration.k8s.io", &["*"]),
    ("apiextensions.k8s.io", &["*"]),
    ("apiregistration.k8s.io", &["*"]),
    ("apps", &["*"]),
    ("autoscaling", &["*"]),
    ("batch", &["*"]),
    ("certificates.k8s.io", &["*"]),
    ("coordination.k8s.io", &["*"]),
    ("discovery.k8s.io", &["*"]),
    ("events.k8s.io", &["*"]),
    ("flowcontrol.apiserver.k8s.io", &["*"]),
    ("internal.apiserver.k8s.io", &["*"]),
    ("networking.k8s.io", &["*"]),
    ("node.k8s.io", &["*"]),
    ("policy", &["*"]),
    ("rbac.authorization.k8s.io", &["*"]),
    ("resource.k8s.io", &["*"]),
    ("scheduling.k8s.io", &["*"]),
    ("storage.k8s.io", &["*"]),
    ("storagemigration.k8s.io", &["*"]),
    // Beside Kubernetes itself: metrics-server (`kubectl top`), gateways, snapshots, k3s, Traefik,
    // cert-manager.
    ("metrics.k8s.io", &["nodes", "pods"]),
    ("gateway.networking.k8s.io", &["*"]),
    ("snapshot.storage.k8s.io", &["*"]),
    ("k3s.cattle.io", &["*"]),
    ("traefik.io", TRAEFIK),
    ("traefik.containo.us", TRAEFIK),
    ("cert-manager.io", &["*"]),
];

/// Resources of Traefik except Middlewares, which hold passwords: headers with credentials, the
/// settings of plug-ins.
const TRAEFIK: &[&str] = &[
    "ingressroutes",
    "ingressroutetcps",
    "ingressrouteudps",
    "middlewaretcps",
    "serverstransports",
    "serverstransporttcps",
    "tlsoptions",
    "tlsstores",
    "traefikservices",
];

/// Parts of an object that are read like the object itself.
pub(super) const READ_PARTS: &[&str] = &["status", "scale"];

/// Resources that only reads at `managed` reach, and only in managed namespaces.
pub(super) const SECRET: &Table = &[
    ("", &["secrets"]),
    ("traefik.containo.us", &["middlewares"]),
    ("traefik.io", &["middlewares"]),
];

/// Questions about oneself that are asked by POST and change nothing: `kubectl auth can-i` and
/// `whoami`.
pub(super) const ASK: &Table = &[
    ("authentication.k8s.io", &["selfsubjectreviews"]),
    (
        "authorization.k8s.io",
        &["selfsubjectaccessreviews", "selfsubjectrulesreviews"],
    ),
];

/// Resources that may be changed in a managed namespace: those of Kubernetes' role `edit`, and the
/// parts of Pods that `kubectl debug` and an in-place resize need.
///
/// Not here, on purpose: `serviceaccounts/token` and everything of RBAC; quotas and limits, with
/// which an owner bounds a namespace; every `status`; endpoints and their slices (CVE-2021-25740:
/// they reach into other namespaces); `pods/binding`, which chooses a node; devices
/// (`resource.k8s.io`); custom resources whose controller acts with rights of its own, such as
/// HelmChart, which is cluster-admin.
pub(super) const CHANGE: &Table = &[
    (
        "",
        &[
            "configmaps",
            "events",
            "persistentvolumeclaims",
            "pods",
            "pods/ephemeralcontainers",
            "pods/eviction",
            "pods/resize",
            "replicationcontrollers",
            "replicationcontrollers/scale",
            "secrets",
            "serviceaccounts",
            "services",
        ],
    ),
    (
        "apps",
        &[
            "daemonsets",
            "deployments",
            "deployments/scale",
            "replicasets",
            "replicasets/scale",
            "statefulsets",
            "statefulsets/scale",
        ],
    ),
    ("autoscaling", &["horizontalpodautoscalers"]),
    ("batch", &["cronjobs", "jobs"]),
    ("coordination.k8s.io", &["leases"]),
    ("networking.k8s.io", &["ingresses", "networkpolicies"]),
    ("policy", &["poddisruptionbudgets"]),
    // Routes and certificates: their controllers act for the namespace that the object lies in.
    ("gateway.networking.k8s.io", &["grpcroutes", "httproutes"]),
    ("traefik.io", &["ingressroutes", "middlewares"]),
    ("cert-manager.io", &["certificates", "issuers"]),
];

/// Ways into what runs in a managed namespace.
pub(super) const ENTER: &Table = &[(
    "",
    &[
        "pods/attach",
        "pods/exec",
        "pods/portforward",
        "pods/proxy",
        "services/proxy",
    ],
)];

/// Paths without an object that may be read. `*` is one segment, `**` one or more.
pub(super) const PATHS: &[&str] = &[
    "/api",
    "/api/*",
    "/apis",
    "/apis/*",
    "/apis/*/*",
    "/version",
    "/openapi/v2",
    "/openapi/v3",
    "/openapi/v3/**",
    "/healthz",
    "/healthz/**",
    "/livez",
    "/livez/**",
    "/readyz",
    "/readyz/**",
];

/// Reasons why some resources are on no list. The first line that matches counts.
pub(super) const REASONS: &[(&str, &str, &str)] = &[
    (
        "",
        "serviceaccounts/token",
        "tokens of the cluster are never issued through the link",
    ),
    (
        "",
        "nodes/proxy",
        "the kubelet API is not limited to a namespace",
    ),
    (
        "",
        "namespaces",
        "through the link namespaces are created, but neither changed nor deleted",
    ),
    ("", "pods/binding", "the scheduler chooses the node"),
    (
        "rbac.authorization.k8s.io",
        "*",
        "rights are never granted through the link",
    ),
];

/// Returns whether a list names this resource, or this subresource of it.
pub(super) fn has(table: &Table, group: &str, resource: &str, subresource: &str) -> bool {
    table
        .iter()
        .filter(|(listed, _)| *listed == group)
        .flat_map(|(_, names)| *names)
        .any(|name| is(name, resource, subresource))
}

/// Returns whether a name of a list is this one.
pub(super) fn is(name: &str, resource: &str, subresource: &str) -> bool {
    match name.split_once('/') {
        Some((whole, part)) => whole == resource && part == subresource,
        None => subresource.is_empty() && (name == "*" || name == resource),
    }
}

/// Returns whether a path is on [`PATHS`].
pub(super) fn has_path(path: &KubePath) -> bool {
    PATHS.iter().any(|pattern| {
        let mut segments = path.segments();
        let mut wanted = pattern.split('/').skip(1);
        loop {
            match (wanted.next(), segments.next()) {
                (None, None) | (Some("**"), Some(_)) => return true,
                (Some(wanted), Some(segment)) if wanted == "*" || wanted == segment => {}
                _ => return false,
            }
        }
    })
}

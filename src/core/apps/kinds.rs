//! Kinds that an app may have: where the API has them, and the order in which they are written.

use std::borrow::Cow;

#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Kind {
    /// Group and version: `apps/v1`.
    pub api_version: Cow<'static, str>,
    /// Kind: `Deployment`; of custom resources plural and group, as `kubectl` takes them:
    /// `widgets.example.com`. No two kinds have the same.
    pub name: Cow<'static, str>,
    /// Plural in a path: `deployments`.
    pub plural: Cow<'static, str>,
}

const fn kind(api_version: &'static str, name: &'static str, plural: &'static str) -> Kind {
    Kind {
        api_version: Cow::Borrowed(api_version),
        name: Cow::Borrowed(name),
        plural: Cow::Borrowed(plural),
    }
}

/// All kinds, in the order in which they are written: what others read first, what leads to them
/// last.
static KINDS: [Kind; 17] = [
    kind("v1", "ServiceAccount", "serviceaccounts"),
    kind("v1", "Secret", "secrets"),
    kind("v1", "ConfigMap", "configmaps"),
    kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims"),
    kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies"),
    kind("helm.cattle.io/v1", "HelmChartConfig", "helmchartconfigs"),
    kind("helm.cattle.io/v1", "HelmChart", "helmcharts"),
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

/// Group of the Gateway API, whose routes come in several versions.
pub const GATEWAY: &str = "gateway.networking.k8s.io";
/// Routes of that group in any of its versions; written last.
const ROUTES: [(&str, &str); 4] = [
    ("GRPCRoute", "grpcroutes"),
    ("TCPRoute", "tcproutes"),
    ("TLSRoute", "tlsroutes"),
    ("UDPRoute", "udproutes"),
];

/// Group of the charts of k3s.
pub const CHARTS: &str = "helm.cattle.io";

/// Groups with everything below them that are no custom resources, or whose objects give rights or
/// run code as an administrator: never deployed as custom resources, whatever the settings say.
const RESERVED: [&str; 5] = [
    "cattle.io",
    "fluxcd.io",
    "k8s.io",
    "kubernetes.io",
    "pipeops.io",
];

/// Job: everything that it may read is written before it, and workloads after it.
pub static JOB: Kind = kind("batch/v1", "Job", "jobs");

/// Kinds that a verdict reads, each where the version has one of the second; always where that is
/// empty.
static READ: [(Kind, &[&str]); 13] = [
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
    (
        kind("batch/v1", "Job", "jobs"),
        &["Job", "CronJob", "HelmChart"],
    ),
    (
        kind("helm.cattle.io/v1", "HelmChart", "helmcharts"),
        &["HelmChart"],
    ),
    (kind("v1", "Service", "services"), &["Service", "Ingress"]),
    (
        kind("networking.k8s.io/v1", "Ingress", "ingresses"),
        &["Ingress"],
    ),
    (
        kind("networking.k8s.io/v1", "IngressClass", "ingressclasses"),
        &["Ingress"],
    ),
    (kind("v1", "Node", "nodes"), &[]),
];

/// Kinds that a verdict on objects of these kinds reads.
pub fn read_for(kinds: &[Kind]) -> Vec<Kind> {
    let is_used = |user: &&str| kinds.iter().any(|kind| kind.name == *user);
    let read = READ
        .iter()
        .filter(|(_, users)| users.is_empty() || users.iter().any(is_used));
    let mut read: Vec<_> = read.map(|(kind, _)| kind.clone()).collect();
    for kind in kinds.iter().filter(|kind| kind.is_custom()) {
        if !read.contains(kind) {
            read.push(kind.clone());
        }
    }
    read
}

/// The kind with this name in this version of the API, of those that are built in.
pub fn kind_of(api_version: &str, name: &str) -> Option<Kind> {
    let mut known = KINDS.iter();
    let known = known.find(|kind| kind.name == name && kind.api_version == api_version);
    known.cloned().or_else(|| {
        let (group, version) = api_version.split_once('/')?;
        let (name, plural) = ROUTES.iter().find(|(known, _)| *known == name)?;
        (group == GATEWAY && is_version(version)).then(|| Kind {
            api_version: Cow::Owned(api_version.to_owned()),
            ..kind("", name, plural)
        })
    })
}

/// Returns whether this is the name of a group whose custom resources root may allow: neither one
/// that is built in nor one that gives rights.
pub fn is_custom_group(group: &str) -> bool {
    let is_label = |label: &str| {
        let is_plain =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        (1..=63).contains(&label.len())
            && label.bytes().all(is_plain)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let is_below = |reserved: &&str| {
        let rest = group.strip_suffix(*reserved);
        rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    group.len() <= 253
        && group.contains('.')
        && group.split('.').all(is_label)
        && !RESERVED.iter().any(is_below)
}

/// `v1`, `v1beta2`.
fn is_version(version: &str) -> bool {
    let Some(rest) = version.strip_prefix('v') else {
        return false;
    };
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    rest.len() <= 20
        && rest.starts_with(|first: char| first.is_ascii_digit())
        && rest.bytes().all(is_plain)
}

impl Kind {
    /// A custom resource by its plural and group, `widgets.example.com`; `None`: it is none that
    /// apps may have.
    pub fn custom(api_version: &str, resource: &str) -> Option<Self> {
        let (plural, group) = resource.split_once('.')?;
        let (of_version, version) = api_version.split_once('/')?;
        let is_plain =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let is_one = group == of_version
            && is_custom_group(group)
            && is_version(version)
            && (1..=63).contains(&plural.len())
            && plural.bytes().all(is_plain);
        is_one.then(|| Self {
            api_version: Cow::Owned(api_version.to_owned()),
            name: Cow::Owned(resource.to_owned()),
            plural: Cow::Owned(plural.to_owned()),
        })
    }

    /// Group of the API; empty for the core.
    pub fn group(&self) -> &str {
        let group = self.api_version.split_once('/');
        group.map_or("", |(group, _)| group)
    }

    /// Returns whether it is a custom resource.
    pub fn is_custom(&self) -> bool {
        self.name.contains('.')
    }

    /// Returns whether it is a chart, which a controller of k3s installs with all rights, or values
    /// of one.
    pub fn is_chart(&self) -> bool {
        is_chart(&self.name)
    }

    /// Returns whether its objects belong to the whole cluster: the agent itself reads them for a
    /// verdict, because no account of an app sees them.
    pub fn is_of_cluster(&self) -> bool {
        matches!(&*self.name, "IngressClass" | "Node")
    }

    /// Returns whether the cluster has it only while its definition is there.
    pub fn is_defined(&self) -> bool {
        self.is_custom() || self.is_chart()
    }

    /// Returns whether its objects hold values that are shown to nobody.
    pub fn is_confidential(&self) -> bool {
        is_confidential(&self.name)
    }

    /// Place in the order. Custom resources come before what runs: some make the Secrets that it
    /// reads.
    pub fn order(&self) -> usize {
        let is_meant = |kind: &Self| kind == self || (self.is_custom() && kind.name == "Service");
        let place = KINDS.iter().position(is_meant);
        place.unwrap_or(KINDS.len())
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
        let steps = [
            ("/namespaces/", namespace),
            ("/", &self.plural),
            ("/", name),
        ];
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

fn is_chart(kind: &str) -> bool {
    matches!(kind, "HelmChart" | "HelmChartConfig")
}

/// Returns whether objects of a kind hold values that are shown to nobody.
pub(super) fn is_confidential(kind: &str) -> bool {
    kind == "Secret" || is_chart(kind)
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
            "rights are granted by the cluster's owner: kubectl apply".to_owned()
        }
        "CustomResourceDefinition" => {
            "it is the business of the cluster's owner: kubectl apply".to_owned()
        }
        "Pod" | "ReplicaSet" => {
            "deploy it as a Deployment: a Pod alone is not started again".to_owned()
        }
        _ => format!("apply it with kubectl; apps deploys {}", names()),
    }
}

/// Resource of an object that no role of the manifest lets the account have, as `kubectl` takes it;
/// `None`: there is one, or these are no names.
pub fn granted_apart(resource: &str, group: &str) -> Option<String> {
    let name = format!("{resource}.{group}");
    let is_route = group == GATEWAY && ROUTES.iter().any(|(_, plural)| *plural == resource);
    let is_chart = |kind: &Kind| kind.is_chart() && kind.plural == resource;
    let is_chart = group == CHARTS && KINDS.iter().any(is_chart);
    (is_route || is_chart || Kind::custom(&format!("{group}/v1"), &name).is_some()).then_some(name)
}

fn names() -> String {
    let known = KINDS.iter().map(|kind| &*kind.name);
    let names: Vec<_> = known.chain(ROUTES.map(|(name, _)| name)).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_built_in_or_gives_rights_is_no_custom_resource() {
        for group in [
            "",
            "apps",
            "batch",
            "k8s.io",
            "rbac.authorization.k8s.io",
            "admissionregistration.k8s.io",
            "apiregistration.k8s.io",
            "certificates.k8s.io",
            "apiextensions.k8s.io",
            "gateway.networking.k8s.io",
            "helm.cattle.io",
            "k3s.cattle.io",
            "upgrade.cattle.io",
            "helm.toolkit.fluxcd.io",
            "pipeops.io",
            "x.pipeops.io",
            "Example.com",
            "example..com",
            "-a.example.com",
            "a/b.example.com",
            "*.example.com",
        ] {
            assert!(!is_custom_group(group), "{group}");
        }
        for group in [
            "example.com",
            "cert-manager.io",
            "cluster.x-k8s.io",
            "mypipeops.io",
        ] {
            assert!(is_custom_group(group), "{group}");
        }
    }

    #[test]
    fn a_custom_resource_is_told_from_what_is_built_in_by_its_name() {
        let widget = Kind::custom("example.com/v1beta1", "widgets.example.com").unwrap();
        assert!(widget.is_custom() && widget.group() == "example.com");
        assert_eq!(
            widget.path("shop", "a"),
            "/apis/example.com/v1beta1/namespaces/shop/widgets/a"
        );
        for (api_version, resource) in [
            ("example.com/v1", "widgets.example.org"),
            ("example.com/../v1", "widgets.example.com"),
            ("example.com/v1/x", "widgets.example.com"),
            ("example.com/1", "widgets.example.com"),
            ("example.com/v1", "widgets/status.example.com"),
            ("example.com/v1", ".example.com"),
            ("v1", "secrets"),
            (
                "rbac.authorization.k8s.io/v1",
                "roles.rbac.authorization.k8s.io",
            ),
        ] {
            assert_eq!(Kind::custom(api_version, resource), None, "{resource}");
        }
    }

    #[test]
    fn rights_are_named_for_what_can_be_a_resource_only() {
        let of = |resource, group| granted_apart(resource, group);
        assert_eq!(
            of("widgets", "example.com").as_deref(),
            Some("widgets.example.com")
        );
        assert!(of("tcproutes", GATEWAY).is_some());
        for (resource, group) in [
            ("pods", ""),
            ("httproutes", GATEWAY),
            ("$(id)", "example.com"),
            ("widgets", "example.com; id"),
            ("roles", "rbac.authorization.k8s.io"),
        ] {
            assert_eq!(of(resource, group), None, "{resource}");
        }
    }

    #[test]
    fn routes_are_known_in_every_version_of_their_group() {
        let path = |api_version: &str, name: &str| {
            kind_of(api_version, name).map(|kind| kind.path("shop", "a"))
        };
        assert_eq!(
            path("gateway.networking.k8s.io/v1alpha2", "TCPRoute").as_deref(),
            Some("/apis/gateway.networking.k8s.io/v1alpha2/namespaces/shop/tcproutes/a")
        );
        assert!(path("gateway.networking.k8s.io/v1", "GRPCRoute").is_some());
        for (api_version, name) in [
            ("gateway.networking.k8s.io/v1", "Gateway"),
            ("gateway.networking.k8s.io/v1/../../x", "TCPRoute"),
            ("example.com/v1", "TCPRoute"),
        ] {
            assert_eq!(path(api_version, name), None, "{api_version}");
        }
    }
}

//! Names that a new namespace may not have, because it would inherit rights that exist for this
//! name.

use super::CONFIG;
use crate::core::proxy::Refusal;

/// Namespaces of well-known operators and of what belongs to a cluster. Their charts bind their
/// service accounts to roles of the whole cluster, before or after the namespace is made.
const SYSTEM: &[&str] = &[
    "argo",
    "argo-cd",
    "argo-events",
    "argo-rollouts",
    "argocd",
    "calico-apiserver",
    "calico-system",
    "cdi",
    "cert-manager",
    "cilium",
    "cilium-secrets",
    "crossplane-system",
    "external-dns",
    "external-secrets",
    "flux-system",
    "gatekeeper-system",
    "gpu-operator",
    "helm-controller",
    "ingress-nginx",
    "istio-operator",
    "istio-system",
    "keda",
    "knative-eventing",
    "knative-operator",
    "knative-serving",
    "kubernetes-dashboard",
    "kubevirt",
    "kyverno",
    "linkerd",
    "linkerd-viz",
    "local-path-storage",
    "longhorn-system",
    "metallb-system",
    "nfs-provisioner",
    "node-feature-discovery",
    "nvidia-device-plugin",
    "olm",
    "openebs",
    "operators",
    "rook-ceph",
    "sealed-secrets",
    "sonobuoy",
    "system-upgrade",
    "tekton-operator",
    "tekton-pipelines",
    "tigera-operator",
    "traefik",
    "traefik-system",
    "trident",
    "vault",
    "velero",
];

/// Beginnings of the names of whole families.
const FAMILIES: &[&str] = &["capi-", "cattle-", "fleet-", "openshift-", "rancher-"];

/// Subject of a binding.
#[derive(Clone, Copy, Debug)]
pub struct Bound<'a> {
    /// `ServiceAccount`, `User` or `Group`.
    pub kind: &'a str,
    pub name: &'a str,
    /// The namespace of a service account.
    pub namespace: &'a str,
}

/// Returns whether a name is that of a system namespace.
pub(super) fn is_system(name: &str) -> bool {
    SYSTEM.contains(&name) || FAMILIES.iter().any(|family| name.starts_with(family))
}

/// Returns whether a subject of a binding lies in the namespace of this name, now or as soon as
/// there is one.
pub fn lies_in(subject: Bound<'_>, namespace: &str) -> bool {
    match subject.kind {
        "ServiceAccount" => subject.namespace == namespace,
        "Group" => subject.name.strip_prefix("system:serviceaccounts:") == Some(namespace),
        "User" => {
            let account = subject.name.strip_prefix("system:serviceaccount:");
            account
                .and_then(|account| account.strip_prefix(namespace))
                .is_some_and(|rest| rest.starts_with(':'))
        }
        _ => false,
    }
}

/// Refuses to make a namespace for whose accounts this binding has waited. `binding` is its kind
/// and name.
pub fn inherits(namespace: &str, binding: &str) -> Refusal {
    Refusal(format!(
        "refused by the agent: create namespace {namespace}: {binding} already grants rights to its service accounts; fix: choose another name, or remove that binding on the box; or set access.level = \"full\" in {CONFIG}"
    ))
}

/// Refuses to make a namespace where it cannot be known who has waited for it.
pub fn unknown_bindings(namespace: &str, why: &str, mend: &str) -> Refusal {
    Refusal(format!(
        "refused by the agent: create namespace {namespace}: cannot check whether a binding already grants rights to that name: {why}; fix: {mend}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_lies_in_a_namespace_by_its_account_its_group_or_its_full_name() {
        for (kind, name, namespace, wanted) in [
            ("ServiceAccount", "default", "flux", true),
            ("ServiceAccount", "flux", "other", false),
            ("Group", "system:serviceaccounts:flux", "", true),
            ("Group", "system:serviceaccounts", "", false),
            ("Group", "system:serviceaccounts:flux-system", "", false),
            ("Group", "flux", "", false),
            ("User", "system:serviceaccount:flux:default", "", true),
            (
                "User",
                "system:serviceaccount:flux-system:default",
                "",
                false,
            ),
            ("User", "system:serviceaccount:flux", "", false),
            ("User", "flux", "flux", false),
        ] {
            let subject = Bound {
                kind,
                name,
                namespace,
            };
            assert_eq!(lies_in(subject, "flux"), wanted, "{subject:?}");
        }
    }

    #[test]
    fn system_namespaces_are_known_by_name_and_family() {
        for name in [
            "system-upgrade",
            "flux-system",
            "cattle-system",
            "cattle-x",
            "argocd",
        ] {
            assert!(is_system(name), "{name}");
        }
        for name in ["shop", "pos-system", "cattle", "my-argocd"] {
            assert!(!is_system(name), "{name}");
        }
        let sorted = SYSTEM.windows(2).all(|pair| pair[0] < pair[1]);
        assert!(sorted, "the list is sorted");
    }
}

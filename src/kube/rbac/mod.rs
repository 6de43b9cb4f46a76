//! Manifest of the agent's rights in a cluster. People read, `kubectl` applies and the agent
//! compares the same text.

pub mod check;

use crate::core::{
    namespace::OwnNamespace,
    packed::{script, unpacked},
    policy::{Expose, PodSecurity},
    yaml,
};

/// The account under which calls of the control plane run.
pub const ACCOUNT: &str = "pipeops-cp";
/// The account under which apps are deployed from this machine.
pub const APPS_ACCOUNT: &str = "pipeops-apps";
/// The role that root gives it in a namespace.
pub const APPS_ROLE: &str = "pipeops-apps-deploy";
/// The role that root may give it besides: to create namespaces and definitions of custom
/// resources.
pub const APPS_STAGE: &str = "pipeops-apps-stage";
/// Message of the admission policy for a Service that claims foreign addresses.
pub const CLAIMS_NO_ADDRESS: &str = "pipeops-cp claims no externalIPs for a Service";
/// The role that `pipeops-cp` has in managed namespaces.
pub const MANAGED: &str = "pipeops-managed";
/// The binding that makes `pipeops-cp` a cluster-admin, under `access.level = "full"` only.
pub const FULL_BINDING: &str = "pipeops-full";

/// `manifest.yaml` as `build.rs` compressed it.
const MANIFEST: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/rbac.yaml.gz"));
const FULL: &str = "src/kube/rbac/full.yaml";
const NODE_STATS: &str = "src/kube/rbac/node-stats.yaml";

/// Types of Services that everybody may make, as the manifest lists them.
const SERVICE_TYPES: &str = "['ClusterIP', 'ExternalName']";

/// Names of objects that belong to the whole cluster. Where the accounts are in another namespace,
/// its name follows theirs, so that two agents in one cluster do not change each other's.
const WIDE: [&str; 8] = [
    "pipeops-agent-cluster",
    "pipeops-agent-lock",
    "pipeops-agent-node-stats",
    APPS_ROLE,
    "pipeops-cp-cluster",
    "pipeops-cp-lock",
    "pipeops-full",
    MANAGED,
];

/// Scope of the rights of the control plane.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum GrantScope {
    /// Reads, and managed namespaces.
    Managed,
    /// The whole cluster.
    Full,
}

/// The manifest as it is for the usual namespace.
fn manifest() -> String {
    unpacked(MANIFEST)
}

/// The manifest for one agent.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Manifest {
    namespace: OwnNamespace,
    pod_security: PodSecurity,
    reach: GrantScope,
    expose: Expose,
}

impl Manifest {
    /// The manifest for accounts in this namespace. `pod_security` is what a managed namespace must
    /// enforce.
    pub const fn new(
        namespace: OwnNamespace,
        pod_security: PodSecurity,
        reach: GrantScope,
    ) -> Self {
        Self {
            namespace,
            pod_security,
            reach,
            expose: Expose {
                node_port: false,
                load_balancer: false,
            },
        }
    }

    /// The same, with Services of these types allowed.
    #[must_use]
    pub fn exposing(self, expose: Expose) -> Self {
        Self { expose, ..self }
    }

    /// The same, with the control plane kept to managed namespaces.
    #[must_use]
    pub fn managed(&self) -> Self {
        Self {
            reach: GrantScope::Managed,
            ..self.clone()
        }
    }

    /// Returns whether the control plane may do everything.
    pub fn is_full(&self) -> bool {
        self.reach == GrantScope::Full
    }

    /// Minimum Pod Security of a managed namespace.
    pub const fn pod_security(&self) -> PodSecurity {
        self.pod_security
    }

    /// Namespace of the accounts.
    pub const fn namespace(&self) -> &OwnNamespace {
        &self.namespace
    }

    /// The name that an object of the whole cluster has in this manifest.
    pub fn wide(&self, name: &str) -> String {
        if self.namespace.is_usual() {
            name.to_owned()
        } else {
            format!("{name}.{}", self.namespace)
        }
    }

    /// The account of the control plane, as the manifest has it.
    pub fn account(&self) -> Option<serde_json::Value> {
        let text = self.text();
        let mut all = text
            .split("\n---\n")
            .filter_map(|document| yaml::parse(document).ok());
        all.find(|object| {
            object.pointer("/kind").and_then(|kind| kind.as_str()) == Some("ServiceAccount")
                && object
                    .pointer("/metadata/name")
                    .and_then(|name| name.as_str())
                    == Some(ACCOUNT)
        })
    }

    /// The line that brings the cluster up to date.
    pub fn command(&self) -> String {
        format!("{} | kubectl apply -f -", self.program(self.reach))
    }

    /// Right to ask kubelets through the API server: apart from the manifest, because it is
    /// powerful and most can do without.
    pub fn node_stats(&self) -> String {
        let ours = "pipeops-agent rbac --node-stats";
        let theirs = self.node_stats_program();
        self.own(
            &script(NODE_STATS).replace(ours, &theirs),
            GrantScope::Managed,
        )
    }

    /// The line that applies that.
    pub fn node_stats_command(&self) -> String {
        format!("{} | kubectl apply -f -", self.node_stats_program())
    }

    fn node_stats_program(&self) -> String {
        if self.namespace.is_usual() {
            "pipeops-agent rbac --node-stats".to_owned()
        } else {
            format!(
                "pipeops-agent rbac --namespace {} --node-stats",
                self.namespace
            )
        }
    }

    /// The manifest as people and `kubectl` read it.
    pub fn text(&self) -> String {
        let mut text = self.own(&manifest(), self.reach);
        if self.reach == GrantScope::Full {
            let binding = format!("  policyName: {}\n", self.wide("pipeops-cp-lock"));
            text = text.replace(
                &format!("{binding}  validationActions: [Deny]\n"),
                &format!("{binding}  validationActions: [Audit]\n"),
            );
            text.push_str(&self.own(&script(FULL), GrantScope::Managed));
        }
        text
    }

    fn program(&self, reach: GrantScope) -> String {
        let mut line = "pipeops-agent rbac".to_owned();
        if !self.namespace.is_usual() {
            line = format!("{line} --namespace {}", self.namespace);
        }
        if self.pod_security != PodSecurity::default() {
            line = format!("{line} --pod-security {}", self.pod_security.as_str());
        }
        if !self.expose.words().is_empty() {
            line = format!("{line} --expose {}", self.expose.words().join(","));
        }
        match reach {
            GrantScope::Managed => line,
            GrantScope::Full => format!("{line} --full"),
        }
    }

    /// A text of ours for this namespace and this standard.
    fn own(&self, text: &str, reach: GrantScope) -> String {
        let program = self.program(reach);
        let mut text = text.replace("pipeops-agent rbac |", &format!("{program} |"));
        for (ours, theirs) in standards(self.pod_security) {
            text = text.replace(ours, theirs);
        }
        let mut types = vec!["ClusterIP", "ExternalName"];
        types.extend(self.expose.words());
        let types = format!("['{}']", types.join("', '"));
        text = text.replace(SERVICE_TYPES, &types);
        if self.namespace.is_usual() {
            return text;
        }
        text = renamed(&text, OwnNamespace::USUAL, self.namespace.as_str());
        for name in WIDE {
            text = renamed(&text, name, &self.wide(name));
        }
        text
    }
}

/// Replacements in the text for another standard than baseline.
const fn standards(asked: PodSecurity) -> &'static [(&'static str, &'static str)] {
    match asked {
        PodSecurity::Baseline => &[],
        PodSecurity::Restricted => &[
            ("['baseline', 'restricted']", "['restricted']"),
            ("enforce=baseline", "enforce=restricted"),
            (
                "enforce: baseline     (or restricted)",
                "enforce: restricted",
            ),
        ],
        PodSecurity::Privileged => &[
            (
                "['baseline', 'restricted']",
                "['', 'privileged', 'baseline', 'restricted']",
            ),
            ("enforce=baseline", "enforce=privileged, or none"),
            (
                "enforce: baseline     (or restricted)",
                "enforce: privileged   (or any other, or none)",
            ),
        ],
    }
}

/// Replaces a name, but not as part of a longer one.
fn renamed(text: &str, name: &str, by: &str) -> String {
    let goes_on = |character: Option<char>| {
        character.is_some_and(|character| character.is_ascii_alphanumeric() || character == '-')
    };
    let mut done = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(name) {
        done.push_str(before);
        let is_whole = !goes_on(done.chars().next_back()) && !goes_on(after.chars().next());
        done.push_str(if is_whole { by } else { name });
        rest = after;
    }
    done.push_str(rest);
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn manifest(namespace: &str, pod_security: PodSecurity, reach: GrantScope) -> Manifest {
        Manifest::new(OwnNamespace::parse(namespace).unwrap(), pod_security, reach)
    }

    fn objects(text: &str) -> Vec<Value> {
        let documents = text.split("\n---\n");
        documents.map(|text| yaml::parse(text).unwrap()).collect()
    }

    #[test]
    fn by_default_it_is_the_file_to_the_letter() {
        let ours = manifest(
            OwnNamespace::USUAL,
            PodSecurity::Baseline,
            GrantScope::Managed,
        );
        assert_eq!(ours.text(), include_str!("manifest.yaml"));
        assert_eq!(ours.command(), "pipeops-agent rbac | kubectl apply -f -");
        assert_eq!(ours.wide(MANAGED), "pipeops-managed");
    }

    #[test]
    fn the_account_of_the_control_plane_is_that_of_the_manifest() {
        let account = manifest("edge", PodSecurity::Baseline, GrantScope::Full).account();
        let account = account.unwrap();
        assert_eq!(account["metadata"]["namespace"], "edge");
        assert_eq!(account["automountServiceAccountToken"], false);
    }

    #[test]
    fn full_opens_the_second_lock_and_says_how_to_close_it() {
        let full = manifest(OwnNamespace::USUAL, PodSecurity::Baseline, GrantScope::Full);
        let text = full.text();
        assert_eq!(text.matches("validationActions: [Audit]").count(), 1);
        assert_eq!(text.matches("validationActions: [Deny]").count(), 1);
        assert!(text.contains("#     pipeops-agent rbac --full | kubectl apply -f -\n"));
        assert!(text.contains("`pipeops-agent rbac | kubectl apply -f -`"));
        let last = objects(&text).pop().unwrap();
        assert_eq!(last["metadata"]["name"], "pipeops-full");
        assert_eq!(last["roleRef"]["name"], "cluster-admin");
        assert_eq!(last["subjects"][0]["name"], ACCOUNT);
    }

    #[test]
    fn in_another_namespace_nothing_of_the_default_one_is_named() {
        let other = manifest("edge", PodSecurity::Restricted, GrantScope::Full);
        let text = other.text();
        assert!(
            !text.contains(OwnNamespace::USUAL) && !text.contains("baseline"),
            "{text}"
        );
        assert!(text.contains("rbac --namespace edge --pod-security restricted --full | kubectl"));
        let objects = objects(&text);
        assert_eq!(objects.len(), 17);
        for object in objects {
            let (name, kind) = (&object["metadata"]["name"], &object["kind"]);
            let name = name.as_str().unwrap();
            if kind == "Namespace" {
                assert_eq!(name, "edge");
            } else if let Some(namespace) = object["metadata"].get("namespace") {
                assert_eq!(namespace, "edge");
            } else {
                assert!(name.strip_suffix(".edge").is_some(), "{kind} {name}");
            }
        }
        let text = text + &other.node_stats();
        for name in WIDE {
            assert!(text.contains(&format!("{name}.edge")), "{name}");
        }
    }

    #[test]
    fn the_right_to_ask_kubelets_is_apart_and_only_given_to_the_agent() {
        let usual = manifest(OwnNamespace::USUAL, PodSecurity::Baseline, GrantScope::Full);
        assert_eq!(usual.node_stats(), include_str!("node-stats.yaml"));
        assert!(!usual.text().contains("[nodes/proxy]"));
        let other = manifest("edge", PodSecurity::Baseline, GrantScope::Managed);
        let text = other.node_stats();
        let line = "pipeops-agent rbac --namespace edge --node-stats | kubectl apply -f -";
        assert!(
            text.contains(line) && other.node_stats_command() == line,
            "{text}"
        );
        assert!(!text.contains(OwnNamespace::USUAL));
        let [role, binding] = objects(&text).try_into().unwrap();
        let name = "pipeops-agent-node-stats.edge";
        assert_eq!(role["metadata"]["name"], name);
        assert_eq!(binding["roleRef"]["name"], name);
        assert_eq!(binding["subjects"][0]["name"], "pipeops-agent");
    }

    #[test]
    fn only_whole_names_are_renamed() {
        assert_eq!(renamed("a-b a a: xa a.", "a", "c"), "a-b c c: xa c.");
    }
}

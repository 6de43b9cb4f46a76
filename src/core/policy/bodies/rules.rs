//! Fields and values that a body may not contain.

use serde_json::Value;

use super::{
    BodyKind, Expose,
    kinds::{ISSUER_ANNOTATIONS, LOCAL_VOLUMES},
    setting, text,
};

/// Something that a body asks for and may not. Two are the same where they ask for the same,
/// wherever in the object.
#[derive(Clone, Debug, Eq)]
pub struct Fault {
    rule: Rule,
    /// Rejected value.
    value: String,
    /// The field, for people.
    field: String,
}

impl PartialEq for Fault {
    fn eq(&self, other: &Self) -> bool {
        // The same name means another thing in another annotation.
        let is_same_place =
            self.field == other.field || !matches!(self.rule, Rule::Issuer | Rule::DefaultIssuer);
        is_same_place && (self.rule, &self.value) == (other.rule, &other.value)
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Rule {
    ExternalIp,
    ServiceType,
    Token,
    Issuer,
    DefaultIssuer,
    Volume,
    Device,
    Priority,
}

/// The longest value that is repeated in a refusal.
const SHOWN_CHARS_MAX: usize = 80;

impl Fault {
    /// The field and why it does not pass.
    pub(super) fn sentence(&self) -> String {
        let value: String = self.value.chars().take(SHOWN_CHARS_MAX).collect();
        let field = &self.field;
        match self.rule {
            Rule::ExternalIp => {
                format!("{field} is {value:?}, which takes over traffic to that address")
            }
            Rule::ServiceType => format!("{field} is {value:?}, which opens ports of the nodes"),
            Rule::Token => format!("{field} is {value:?}, which is a token that never expires"),
            Rule::Issuer => format!(
                "{field} is {value:?}: cluster-wide issuers are not allowed in managed namespaces"
            ),
            Rule::DefaultIssuer => {
                format!("{field} uses the default issuer, which may be a cluster-wide one")
            }
            Rule::Volume => format!("{field} mounts a network disk into the node"),
            Rule::Device => format!("{field} asks for {value:?}, a device of the node"),
            Rule::Priority => {
                format!("{field} is {value:?}, which preempts the cluster's own Pods")
            }
        }
    }

    /// Alternative that would be accepted.
    pub(super) fn fix(&self) -> String {
        match self.rule {
            Rule::ExternalIp => {
                "fix: leave externalIPs out; use an Ingress for the Service".to_owned()
            }
            Rule::ServiceType if Expose::TYPES.contains(&self.value.as_str()) => {
                format!("fix: use type ClusterIP, or {}", setting(&self.value))
            }
            Rule::ServiceType => "fix: use type ClusterIP".to_owned(),
            Rule::Token => {
                "fix: let Pods mount the projected token of their ServiceAccount".to_owned()
            }
            Rule::Issuer | Rule::DefaultIssuer => "fix: use an Issuer of the namespace".to_owned(),
            Rule::Volume => {
                "fix: use a PersistentVolumeClaim; create the PersistentVolume on the box"
                    .to_owned()
            }
            Rule::Device => "fix: run what needs it with kubectl on the box".to_owned(),
            Rule::Priority => {
                "fix: leave priorityClassName out, or use a class of your own".to_owned()
            }
        }
    }
}

/// Everything that a body asks for and may not.
pub(super) fn faults(expose: Expose, subject: BodyKind, object: &Value) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut add = |rule, field: String, value: String| {
        faults.push(Fault { rule, value, field });
    };
    match subject {
        BodyKind::Service => service(expose, object, &mut add),
        BodyKind::Secret => {
            let kind = text(object, "/type");
            if kind == "kubernetes.io/service-account-token" {
                add(Rule::Token, "type".to_owned(), kind.to_owned());
            }
        }
        BodyKind::Ingress => annotations(object, &mut add),
        BodyKind::Certificate => certificate(object, &mut add),
        BodyKind::Pod
        | BodyKind::Workload(_)
        | BodyKind::DaemonSet
        | BodyKind::Job
        | BodyKind::CronJob => {
            let path = subject.pod_spec().unwrap_or_default();
            if let Some(spec) = object.pointer(path) {
                let place = path.trim_start_matches('/').replace('/', ".");
                pod(spec, &place, &mut add);
            }
        }
    }
    faults
}

fn service(expose: Expose, object: &Value, add: &mut impl FnMut(Rule, String, String)) {
    for (place, address) in texts(object, "/spec/externalIPs").enumerate() {
        let field = format!("spec.externalIPs[{place}]");
        add(Rule::ExternalIp, field, address.to_owned());
    }
    let kind = text(object, "/spec/type");
    if !expose.allows(kind) {
        add(Rule::ServiceType, "spec.type".to_owned(), kind.to_owned());
    }
}

fn certificate(object: &Value, add: &mut impl FnMut(Rule, String, String)) {
    let kind = text(object, "/spec/issuerRef/kind");
    // Other groups name their issuers of the whole cluster as they like.
    if !matches!(kind, "" | "Issuer") {
        let name = text(object, "/spec/issuerRef/name");
        let group = text(object, "/spec/issuerRef/group");
        let value = format!("{kind} {name} {group}");
        let value = value.trim_end().to_owned();
        add(Rule::Issuer, "spec.issuerRef".to_owned(), value);
    }
}

fn annotations(object: &Value, add: &mut impl FnMut(Rule, String, String)) {
    let annotations = object.pointer("/metadata/annotations");
    for (name, value) in annotations.and_then(Value::as_object).into_iter().flatten() {
        let value = value.as_str().unwrap_or_default();
        let field = format!("metadata.annotations[{name:?}]");
        let mut listed = ISSUER_ANNOTATIONS.iter();
        let short = listed.find_map(|prefix| name.strip_prefix(prefix));
        match short.unwrap_or_default() {
            "cluster-issuer" => add(Rule::Issuer, field, value.to_owned()),
            "issuer-kind" if !matches!(value, "" | "Issuer") => {
                add(Rule::Issuer, field, value.to_owned());
            }
            // kubernetes.io/tls-acme itself: nothing is left of it.
            "" if name == "kubernetes.io/tls-acme" && value != "false" => {
                add(Rule::DefaultIssuer, field, value.to_owned());
            }
            _ => {}
        }
    }
}

fn pod(spec: &Value, place: &str, add: &mut impl FnMut(Rule, String, String)) {
    let priority = text(spec, "/priorityClassName");
    if priority.starts_with("system-") {
        let field = format!("{place}.priorityClassName");
        add(Rule::Priority, field, priority.to_owned());
    }
    for volume in objects(spec, "volumes") {
        let name = text(volume, "/name");
        for (source, value) in volume.as_object().into_iter().flatten() {
            let is_local = LOCAL_VOLUMES.contains(&source.as_str());
            if is_local || matches!(source.as_str(), "name" | "volumeSource") {
                continue;
            }
            let field = format!("{place}.volumes[{name:?}].{source}");
            add(Rule::Volume, field, format!("{name} {source} {value}"));
        }
    }
    resources(spec, &format!("{place}.resources"), add);
    for list in ["initContainers", "containers"] {
        for container in objects(spec, list) {
            let name = text(container, "/name");
            let field = format!("{place}.{list}[{name:?}].resources");
            resources(container, &field, add);
        }
    }
}

fn resources(of: &Value, field: &str, add: &mut impl FnMut(Rule, String, String)) {
    for list in ["limits", "requests"] {
        for name in texts(of, &format!("/resources/{list}")) {
            // cpu, memory, hugepages-2Mi and their like have no domain.
            if name.contains('/') {
                add(Rule::Device, format!("{field}.{list}"), name.to_owned());
            }
        }
    }
}

fn texts<'a>(value: &'a Value, path: &str) -> impl Iterator<Item = &'a str> {
    let list = value.pointer(path).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str)
}

fn objects<'a>(value: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    let list = value.get(name).and_then(Value::as_array);
    list.into_iter().flatten()
}

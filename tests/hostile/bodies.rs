//! Bodies, ordinary and hostile, each with what the policy makes of it. The policy's own tests and
//! those against a real API server read them.

use serde_json::Value;

/// One body of the list.
#[derive(Clone, Debug)]
pub(crate) struct Body {
    /// `services`.
    pub(crate) resource: &'static str,
    /// `/api/v1` or `/apis/GROUP/VERSION`.
    pub(crate) root: &'static str,
    /// `fine`, `no`, or a type of Service.
    pub(crate) verdict: &'static str,
    /// What a naive agent would let happen.
    pub(crate) naive: &'static str,
    /// The whole object, by the name `attempt`.
    pub(crate) object: Value,
}

/// Resource, root, version and kind.
const RESOURCES: &[(&str, &str, &str, &str)] = &[
    ("services", "/api/v1", "v1", "Service"),
    ("secrets", "/api/v1", "v1", "Secret"),
    ("pods", "/api/v1", "v1", "Pod"),
    (
        "replicationcontrollers",
        "/api/v1",
        "v1",
        "ReplicationController",
    ),
    ("daemonsets", "/apis/apps/v1", "apps/v1", "DaemonSet"),
    ("deployments", "/apis/apps/v1", "apps/v1", "Deployment"),
    ("replicasets", "/apis/apps/v1", "apps/v1", "ReplicaSet"),
    ("statefulsets", "/apis/apps/v1", "apps/v1", "StatefulSet"),
    ("jobs", "/apis/batch/v1", "batch/v1", "Job"),
    ("cronjobs", "/apis/batch/v1", "batch/v1", "CronJob"),
    (
        "ingresses",
        "/apis/networking.k8s.io/v1",
        "networking.k8s.io/v1",
        "Ingress",
    ),
    (
        "certificates",
        "/apis/cert-manager.io/v1",
        "cert-manager.io/v1",
        "Certificate",
    ),
];

/// Every body of the list.
pub(crate) fn bodies() -> Vec<Body> {
    let mut lines = include_str!("bodies.txt")
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut bodies = Vec::new();
    while let Some(line) = lines.next() {
        let [resource, verdict, naive]: [&str; 3] = line
            .split(" | ")
            .collect::<Vec<_>>()
            .try_into()
            .unwrap_or_else(|_| panic!("not three columns: {line}"));
        let (_, root, version, kind) = RESOURCES
            .iter()
            .find(|(known, ..)| *known == resource)
            .unwrap_or_else(|| panic!("no such resource: {line}"));
        let mut object: Value =
            serde_json::from_str(lines.next().expect("a body below its line")).expect(naive);
        object["apiVersion"] = (*version).into();
        object["kind"] = (*kind).into();
        object["metadata"]["name"] = "attempt".into();
        bodies.push(Body {
            resource,
            root,
            verdict,
            naive,
            object,
        });
    }
    bodies
}

/// A value in YAML, in blocks and without quotes wherever that is possible.
pub(crate) fn yaml(value: &Value) -> String {
    let mut text = String::new();
    block(value, 0, &mut text);
    text
}

fn block(value: &Value, depth: usize, text: &mut String) {
    let indent = "  ".repeat(depth);
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (key, value) in map {
                text.extend(["\n", &indent, key, ":"]);
                block(value, depth + 1, text);
            }
        }
        Value::Array(list) if !list.is_empty() => {
            for value in list {
                text.extend(["\n", &indent, "-"]);
                block(value, depth + 1, text);
            }
        }
        Value::String(plain)
            if plain.starts_with(|first: char| first.is_ascii_alphabetic())
                && !["true", "false", "null"].contains(&plain.as_str()) =>
        {
            text.extend([" ", plain]);
        }
        Value::Null
        | Value::Bool(_)
        | Value::Number(_)
        | Value::String(_)
        | Value::Array(_)
        | Value::Object(_) => text.extend([" ", &value.to_string()]),
    }
}

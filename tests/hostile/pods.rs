//! Pods, each with the strictest Pod Security Standard that it meets: one for every field that the
//! standards name. The policy's own tests judge them, and a test against a real API server compares
//! that with Pod Security admission.

use serde_json::{Value, json};

/// A standard that a Pod meets.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Standard {
    /// None but `privileged`.
    None,
    Baseline,
    Restricted,
}

/// One Pod of the list.
pub(crate) struct Pod {
    /// What is special about it.
    pub(crate) what: String,
    /// The strictest standard that it meets.
    pub(crate) meets: Standard,
    /// The whole object.
    pub(crate) object: Value,
}

/// A Pod that meets every standard.
fn hardened() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "attempt"},
        "spec": {
            "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "web", "image": "x",
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            }],
        },
    })
}

/// Every Pod of the list.
pub(crate) fn pods() -> Vec<Pod> {
    let lines = include_str!("pods.txt").lines();
    lines
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(pod)
        .collect()
}

fn pod(line: &str) -> Pod {
    let mut columns = line.split(" | ");
    let meets = match columns.next() {
        Some("none") => Standard::None,
        Some("baseline") => Standard::Baseline,
        Some("restricted") => Standard::Restricted,
        _ => panic!("no standard: {line}"),
    };
    let mut object = hardened();
    for column in columns {
        let (path, value) = column.split_once(' ').expect("a pointer and a value");
        let path = match path.strip_prefix('C') {
            Some(rest) => format!("/spec/containers/0{rest}"),
            None => path.to_owned(),
        };
        let value: Value = serde_json::from_str(value).expect(line);
        let (parent, name) = path.rsplit_once('/').expect("a pointer");
        let parent = object.pointer_mut(parent).expect("the parent of a field");
        let parent = parent.as_object_mut().expect("an object");
        if value.is_null() {
            parent.remove(name);
        } else {
            parent.insert(name.to_owned(), value);
        }
    }
    Pod {
        what: line.to_owned(),
        meets,
        object,
    }
}

//! Difference between an object as it is and as it would be.

use crate::core::order::OrderExt as _;

use serde_json::Value;

use super::{super::value::text, NONCE, kinds::is_confidential};

/// Fields of one object that are named; the rest is cut.
const FIELDS_MAX: usize = 100;

/// A field that would change. Values of Secrets and charts are not in it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Difference {
    /// Path: `spec.replicas`.
    pub field: String,
    /// Value now; null where there is none.
    pub from: Value,
    /// Value then.
    pub to: Value,
}

/// Differences between the live object and what a dry run makes of it, without what the API server
/// sets at each write.
pub fn differences(live: &Value, tried: &Value) -> Vec<Difference> {
    let is_confidential = [live, tried]
        .iter()
        .any(|object| is_confidential(text(object, "/kind")));
    let mut found = Vec::new();
    compare("", &unmarked(live), &unmarked(tried), &mut found);
    if is_confidential {
        for difference in &mut found {
            difference.from = hidden(&difference.from);
            difference.to = hidden(&difference.to);
        }
    }
    found
}

/// An object without the nonce under which it was created.
fn unmarked(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut)
        && let Some(annotations) = metadata
            .get_mut("annotations")
            .and_then(Value::as_object_mut)
        && annotations.remove(NONCE).is_some()
        && annotations.is_empty()
    {
        metadata.remove("annotations");
    }
    object
}

fn hidden(value: &Value) -> Value {
    if value.is_null() {
        Value::Null
    } else {
        Value::from("(hidden)")
    }
}

fn is_set_by_server(path: &str) -> bool {
    const FIELDS: [&str; 7] = [
        "status",
        "metadata.managedFields",
        "metadata.resourceVersion",
        "metadata.generation",
        "metadata.uid",
        "metadata.creationTimestamp",
        "metadata.selfLink",
    ];
    FIELDS.contains(&path)
}

fn compare(path: &str, from: &Value, to: &Value, found: &mut Vec<Difference>) {
    if from == to || is_set_by_server(path) || found.len() >= FIELDS_MAX {
        return;
    }
    let below = |name: &str| {
        if path.is_empty() {
            name.to_owned()
        } else {
            format!("{path}.{name}")
        }
    };
    match (from, to) {
        (Value::Object(from), Value::Object(to)) => {
            let mut names: Vec<_> = from.keys().chain(to.keys()).collect();
            names.order();
            names.dedup();
            for name in names {
                let value = |fields: &serde_json::Map<String, Value>| {
                    fields.get(name).cloned().unwrap_or_default()
                };
                compare(&below(name), &value(from), &value(to), found);
            }
        }
        (Value::Array(from), Value::Array(to)) if from.len() == to.len() => {
            for (index, (from, to)) in from.iter().zip(to).enumerate() {
                compare(&format!("{path}[{index}]"), from, to, found);
            }
        }
        _ => found.push(Difference {
            field: path.to_owned(),
            from: from.clone(),
            to: to.clone(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_fields_of_the_owner_are_compared() {
        let live = json!({"kind": "Deployment", "metadata": {"name": "a", "generation": 1, "annotations": {NONCE: "c1"}},
            "spec": {"replicas": 1, "list": [{"a": 1}, {"a": 2}]}, "status": {"replicas": 1}});
        let mut plain = live.clone();
        plain["metadata"] = json!({"name": "a"});
        assert_eq!(differences(&live, &plain), []);
        let mut tried = live.clone();
        tried["metadata"] = json!({"name": "a", "generation": 2, "annotations": {"x": "y"}});
        tried["spec"] = json!({"replicas": 2, "list": [{"a": 1}, {"a": 3}]});
        let found: Vec<_> = differences(&live, &tried)
            .into_iter()
            .map(|one| format!("{}: {} {}", one.field, one.from, one.to))
            .collect();
        assert_eq!(
            found,
            [
                "metadata.annotations: null {\"x\":\"y\"}",
                "spec.list[1].a: 2 3",
                "spec.replicas: 1 2"
            ]
        );
    }

    #[test]
    fn values_of_secrets_and_charts_are_not_shown() {
        for kind in ["Secret", "HelmChart", "HelmChartConfig"] {
            let of = |data: Value| json!({"kind": kind, "data": data});
            let found = differences(
                &of(json!({"p": "b2xk"})),
                &of(json!({"p": "bmV3", "q": "bmV3"})),
            );
            assert_eq!(found.len(), 2);
            let shown = format!("{found:?}");
            assert!(!shown.contains("b2xk") && !shown.contains("bmV3"), "{kind}");
            assert_eq!(found[1].from, Value::Null);
        }
    }
}

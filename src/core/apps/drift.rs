//! Drift between a good revision and the cluster: which heads differ, who changed them last, and
//! what is left to others.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use serde_json::Value;

use super::{
    App, MANAGER, Owner,
    managed_fields::{field_text, managed_fields},
};

/// A field that is left to somebody who changes it again and again, or an object that somebody
/// deletes again and again.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Contested {
    /// Object: `Deployment shop/web`.
    pub object: String,
    /// Path: `spec.replicas`; empty where the object is deleted.
    pub field: String,
    /// Field manager that takes it.
    pub by: String,
}

impl App {
    /// Returns whether drift of this app is repaired: it belongs to this machine, a good revision
    /// runs, no change is under way, and nobody asked to leave it alone.
    pub fn is_repaired(&self) -> bool {
        self.owner == Owner::Machine
            && self.running != 0
            && self.running == self.good
            && !self.is_paused
            && self.under_way().is_none()
    }

    /// Returns whether a field is left to others.
    pub fn leaves(&self, object: &str, field: &str) -> bool {
        let mut left = self.left.iter();
        left.any(|left| left.object == object && left.field == field)
    }
}

/// Hash of the fields of an object that are ours: another one when somebody takes a field, or gives
/// one back.
pub fn our_fields(object: &Value) -> u64 {
    let is_ours = |entry: &&Value| field_text(entry, "manager") == MANAGER;
    let mut hasher = DefaultHasher::new();
    for entry in managed_fields(object).iter().filter(is_ours) {
        let fields = entry.get("fieldsV1").map(Value::to_string);
        (field_text(entry, "operation"), fields).hash(&mut hasher);
    }
    hasher.finish()
}

/// The field manager that changed an object last, besides us and those who write its status.
pub fn last_changed_by(object: &Value) -> &str {
    let is_other = |entry: &&Value| {
        field_text(entry, "manager") != MANAGER && field_text(entry, "subresource") != "status"
    };
    let last = managed_fields(object)
        .iter()
        .filter(is_other)
        .max_by_key(|entry| field_text(entry, "time"));
    last.map_or("somebody", |entry| field_text(entry, "manager"))
}

/// Gives fields of an object that are left to others the value that they have.
pub fn keep_left(object: &mut Value, live: &Value, is_left: &dyn Fn(&str) -> bool) {
    keep("", object, live, is_left);
}

fn keep(path: &str, object: &mut Value, live: &Value, is_left: &dyn Fn(&str) -> bool) {
    match (object, live) {
        (Value::Object(fields), Value::Object(live)) => {
            let below = |name: &str| match path {
                "" => name.to_owned(),
                path => format!("{path}.{name}"),
            };
            fields.retain(|name, _| live.contains_key(name) || !is_left(&below(name)));
            for (name, value) in fields {
                let Some(live) = live.get(name) else {
                    continue;
                };
                let path = below(name);
                if is_left(&path) {
                    value.clone_from(live);
                } else {
                    keep(&path, value, live, is_left);
                }
            }
        }
        (Value::Array(values), Value::Array(live)) if values.len() == live.len() => {
            for (index, (value, live)) in values.iter_mut().zip(live).enumerate() {
                keep(&format!("{path}[{index}]"), value, live, is_left);
            }
        }
        (_, _) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_field_that_somebody_takes_changes_what_is_ours() {
        let of = |fields: Value, time: &str| {
            json!({"metadata": {"managedFields": [
                {"manager": MANAGER, "operation": "Apply", "fieldsV1": fields, "time": "1"},
                {"manager": "kubectl-edit", "operation": "Update", "fieldsV1": {}, "time": time},
                {"manager": "k3s", "operation": "Update", "subresource": "status", "fieldsV1": {}, "time": "9"},
            ]}})
        };
        let before = of(json!({"f:spec": {"f:replicas": {}}}), "2");
        let status = of(json!({"f:spec": {"f:replicas": {}}}), "3");
        assert_eq!(our_fields(&before), our_fields(&status));
        let taken = of(json!({"f:spec": {}}), "3");
        assert_ne!(our_fields(&before), our_fields(&taken));
        assert_eq!(last_changed_by(&taken), "kubectl-edit");
        assert_eq!(last_changed_by(&json!({})), "somebody");
    }

    #[test]
    fn what_is_left_keeps_its_value_and_nothing_else_does() {
        let live = json!({"spec": {"replicas": 5, "paused": true, "list": [{"a": 1, "b": 2}]}});
        let mut object = json!({"spec": {"replicas": 1, "paused": false, "list": [{"a": 7, "b": 8}], "gone": 1}});
        let left = ["spec.replicas", "spec.list[0].b", "spec.gone"];
        keep_left(&mut object, &live, &|field| left.contains(&field));
        let kept = json!({"spec": {"replicas": 5, "paused": false, "list": [{"a": 7, "b": 2}]}});
        assert_eq!(object, kept);
    }

    #[test]
    fn only_a_good_revision_of_this_machine_without_a_change_is_repaired() {
        let app = App {
            running: 2,
            good: 2,
            ..App::default()
        };
        assert!(app.is_repaired());
        for other in [
            App {
                good: 1,
                ..app.clone()
            },
            App {
                is_paused: true,
                ..app.clone()
            },
            App {
                owner: Owner::ControlPlane,
                ..app.clone()
            },
            App {
                change: Some(crate::core::apps::LastChange::default()),
                ..app
            },
            App::default(),
        ] {
            assert!(!other.is_repaired());
        }
    }
}

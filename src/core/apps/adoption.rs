//! Adoption of objects that others made: the field managers of `kubectl` become ours, and the
//! fields that go away by that.

use serde_json::{Map, Value};

use super::{MANAGER, managed_fields::field_text};

/// Managers of `kubectl apply`, and the one that the API server notes for fields from before the
/// first server-side apply.
const MANAGERS: [&str; 3] = ["kubectl-client-side-apply", "kubectl", "before-first-apply"];
/// Annotation in which `kubectl apply` keeps what it applied.
const LAST_APPLIED: &str = "f:kubectl.kubernetes.io/last-applied-configuration";
/// Fields of one object that are named; the rest is cut.
const FIELDS_MAX: usize = 100;

/// Returns whether the fields of an entry become ours.
fn is_taken(entry: &Value) -> bool {
    let manager = field_text(entry, "manager");
    (manager == MANAGER || MANAGERS.contains(&manager))
        && field_text(entry, "subresource").is_empty()
}

/// Managed fields of an adopted object: what `kubectl` applied counts as applied by us, so that a
/// field that our manifest does not have goes away; `None`: there is nothing to take over.
pub fn adopted(managed: &[Value]) -> Option<Vec<Value>> {
    let is_ours = |entry: &Value| field_text(entry, "manager") == MANAGER;
    let (taken, others): (Vec<_>, Vec<_>) = managed.iter().partition(|entry| is_taken(entry));
    let is_applied = |entry: &&Value| is_ours(entry) && field_text(entry, "operation") == "Apply";
    if taken.iter().all(is_applied) {
        return None;
    }
    let mut ours = Value::clone(taken.first()?);
    if let Value::Object(ours) = &mut ours {
        ours.insert("manager".to_owned(), Value::from(MANAGER));
        ours.insert("operation".to_owned(), Value::from("Apply"));
        ours.insert("fieldsV1".to_owned(), Value::Object(united(&taken)));
    }
    let mut fields: Vec<_> = others.into_iter().cloned().collect();
    fields.push(ours);
    Some(fields)
}

/// Fields that an adopted object has now and will not have, because nobody but `kubectl` wanted
/// them. `tried` are the managed fields after a dry run of our manifest.
pub fn lost(managed: &[Value], tried: &[Value]) -> Vec<String> {
    let taken: Vec<_> = managed.iter().filter(|entry| is_taken(entry)).collect();
    let is_kept = |entry: &&Value| !is_taken(entry) || field_text(entry, "manager") == MANAGER;
    let kept: Vec<_> = tried.iter().filter(is_kept).collect();
    let mut found = Vec::new();
    missing("", &united(&taken), &united(&kept), &mut found);
    found
}

/// Fields of several entries.
fn united(entries: &[&Value]) -> Map<String, Value> {
    let mut all = Map::new();
    for entry in entries {
        if let Some(Value::Object(fields)) = entry.get("fieldsV1") {
            unite(&mut all, fields);
        }
    }
    all
}

fn unite(all: &mut Map<String, Value>, fields: &Map<String, Value>) {
    for (name, below) in fields {
        let known = all
            .entry(name.clone())
            .or_insert_with(|| Value::Object(Map::new()));
        if let (Value::Object(known), Value::Object(below)) = (known, below) {
            unite(known, below);
        }
    }
}

fn missing(
    path: &str,
    from: &Map<String, Value>,
    to: &Map<String, Value>,
    found: &mut Vec<String>,
) {
    for (name, below) in from {
        if is_hidden(name) || found.len() >= FIELDS_MAX {
            continue;
        }
        let step = named(name);
        let path = match (path, step.starts_with('[')) {
            ("", _) => step,
            (path, true) => format!("{path}{step}"),
            (path, false) => format!("{path}.{step}"),
        };
        match (below, to.get(name)) {
            // A field that is ours as a whole has no parts.
            (Value::Object(below), Some(Value::Object(to))) if !to.is_empty() => {
                missing(&path, below, to, found);
            }
            (_, Some(_)) => {}
            (Value::Object(below), None)
                if below.contains_key(LAST_APPLIED) && below.keys().all(|name| is_hidden(name)) => {
            }
            (_, None) => found.push(path),
        }
    }
}

fn is_hidden(name: &str) -> bool {
    name == "." || name == LAST_APPLIED
}

/// A step of a path in managed fields, as people write it: `f:spec` is `spec`, `k:{"name":"web"}`
/// is `[name=web]`.
fn named(step: &str) -> String {
    let Some((kind, rest)) = step.split_once(':') else {
        return step.to_owned();
    };
    match (kind, serde_json::from_slice::<Value>(rest.as_bytes())) {
        ("f", _) => rest.to_owned(),
        (_, Ok(Value::Object(keys))) => {
            let pair = |(name, value): (&String, &Value)| match value.as_str() {
                Some(text) => format!("{name}={text}"),
                None => format!("{name}={value}"),
            };
            let pairs: Vec<_> = keys.iter().map(pair).collect();
            format!("[{}]", pairs.join(","))
        }
        (_, Ok(_) | Err(_)) => format!("[{rest}]"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn entry(manager: &str, operation: &str, fields: &Value) -> Value {
        json!({"manager": manager, "operation": operation, "apiVersion": "v1", "fieldsV1": fields})
    }

    #[test]
    fn what_kubectl_applied_becomes_ours_and_what_others_own_stays() {
        let theirs = entry(
            "controller",
            "Update",
            &json!({"f:spec": {"f:replicas": {}}}),
        );
        let mut status = entry("kubectl", "Update", &json!({"f:status": {}}));
        status["subresource"] = json!("status");
        let managed = [
            entry(
                "kubectl-client-side-apply",
                "Update",
                &json!({"f:data": {".": {}, "f:a": {}}}),
            ),
            theirs.clone(),
            entry("kubectl", "Apply", &json!({"f:data": {"f:b": {}}})),
            status.clone(),
        ];
        let fields = adopted(&managed).unwrap();
        let both = json!({"f:data": {".": {}, "f:a": {}, "f:b": {}}});
        assert_eq!(fields, [theirs, status, entry(MANAGER, "Apply", &both)]);
        assert_eq!(adopted(&fields), None);
        assert_eq!(adopted(&[]), None);
    }

    #[test]
    fn fields_that_go_away_are_named_before() {
        let container =
            |fields: Value| json!({"f:spec": {"f:containers": {"k:{\"name\":\"web\"}": fields}}});
        let managed = [
            entry(
                "kubectl-client-side-apply",
                "Update",
                &json!({
                    "f:metadata": {"f:annotations": {".": {}, LAST_APPLIED: {}}, "f:labels": {"f:team": {}, "f:tier": {}}},
                }),
            ),
            entry(
                "kubectl",
                "Apply",
                &container(json!({".": {}, "f:image": {}, "f:env": {"f:A": {}}})),
            ),
        ];
        let others = entry(
            "person",
            "Update",
            &json!({"f:metadata": {"f:labels": {"f:tier": {}}}}),
        );
        let ours = entry(
            MANAGER,
            "Apply",
            &container(json!({".": {}, "f:image": {}})),
        );
        let tried = [managed[0].clone(), managed[1].clone(), others, ours];
        assert_eq!(
            lost(&managed, &tried),
            ["metadata.labels.team", "spec.containers[name=web].env"]
        );
    }
}

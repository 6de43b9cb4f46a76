//! Values of Secrets that Pods may write into their logs, and the names of the Secrets that they
//! read.

use std::collections::BTreeSet;

use crate::core::order::OrderExt as _;

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::Value;

use super::{super::secret::Secret, Manifest};

/// Values of a Secret in every form in which they are printed: encoded, decoded, and line by line.
pub fn values(secret: &Value) -> Vec<Secret> {
    let texts = |field: &str| {
        let found = secret.get(field).and_then(Value::as_object);
        let all = found.into_iter().flat_map(|found| found.values());
        all.filter_map(Value::as_str)
    };
    let mut all: BTreeSet<String> = BTreeSet::new();
    for encoded in texts("data") {
        all.insert(encoded.to_owned());
        let decoded = STANDARD.decode(encoded).unwrap_or_default();
        add_lines(&String::from_utf8_lossy(&decoded), &mut all);
    }
    for text in texts("stringData") {
        all.insert(STANDARD.encode(text));
        add_lines(text, &mut all);
    }
    let mut all: Vec<_> = all.into_iter().filter(|value| !value.is_empty()).collect();
    // A value may be a part of another one.
    all.order_by_key(|value| std::cmp::Reverse(value.len()));
    all.into_iter().map(Secret::new).collect()
}

fn add_lines(text: &str, all: &mut BTreeSet<String>) {
    all.extend(text.lines().map(|line| line.trim().to_owned()));
}

/// Names of the Secrets of these manifests, and of those that their Pods read.
pub fn secret_names(manifests: &[Manifest]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for manifest in manifests {
        if manifest.kind.name == "Secret" {
            names.insert(manifest.name.clone());
        }
        if let Some(spec) = manifest.object.get("spec") {
            read_by(spec, &mut names);
        }
    }
    names
}

/// Collects the names of Secrets that variables and volumes refer to, wherever the template of the
/// Pods stands.
fn read_by(value: &Value, names: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (field, inner) in fields {
                let name = match field.as_str() {
                    "secretRef" | "secretKeyRef" => inner.get("name"),
                    // A volume names it by `secretName`, a part of a projected volume by `name`.
                    "secret" => inner.get("secretName").or_else(|| inner.get("name")),
                    _ => None,
                };
                names.extend(name.and_then(Value::as_str).map(str::to_owned));
                read_by(inner, names);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| read_by(item, names)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{super::parse, *};

    #[test]
    fn values_are_known_encoded_decoded_and_line_by_line() {
        let secret = json!({"data": {"a": STANDARD.encode("hunter2\nline two\n")}, "stringData": {"b": "plain"}});
        let values = values(&secret);
        let mut texts: Vec<_> = values.iter().map(Secret::reveal).collect();
        texts.sort_unstable();
        assert_eq!(
            texts,
            [
                "aHVudGVyMgpsaW5lIHR3bwo=",
                "cGxhaW4=",
                "hunter2",
                "line two",
                "plain"
            ]
        );
    }

    #[test]
    fn secrets_are_found_wherever_pods_read_them() {
        let text = "
apiVersion: v1
kind: Secret
metadata: {name: own}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: a}
spec:
  schedule: '@daily'
  jobTemplate:
    spec:
      template:
        spec:
          restartPolicy: Never
          containers:
          - name: c
            image: i
            env: [{name: A, valueFrom: {secretKeyRef: {name: one, key: k}}}]
            envFrom: [{secretRef: {name: two}}, {secretRef: {name: own}}, {configMapRef: {name: map}}]
          volumes:
          - {name: v, secret: {secretName: three}}
          - {name: w, projected: {sources: [{secret: {name: four}}]}}
";
        let names = secret_names(&parse(text, Some("shop")).unwrap());
        assert_eq!(
            names.into_iter().collect::<Vec<_>>(),
            ["four", "one", "own", "three", "two"]
        );
    }
}

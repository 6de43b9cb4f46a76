//! Values of Secrets that Pods may write into their logs, the names of the ConfigMaps and Secrets
//! that they read, and whether the content of one changed.

use std::collections::BTreeSet;

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Map, Value};

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
    let all = all.into_iter().filter(|value| !value.is_empty());
    all.map(Secret::new).collect()
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
        let read = read_names(manifest);
        let secrets = read.iter().filter_map(|name| name.strip_prefix("Secret/"));
        names.extend(secrets.map(str::to_owned));
    }
    names
}

/// ConfigMaps and Secrets that the Pods of a workload read: `ConfigMap/settings`.
pub(super) fn read_names(manifest: &Manifest) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    if let Some(spec) = manifest.object.get("spec") {
        read_by(spec, &mut names);
    }
    names
}

/// Collects what variables and volumes refer to, wherever the template of the Pods stands.
fn read_by(value: &Value, names: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (field, inner) in fields {
                let kind = match field.as_str() {
                    "secretRef" | "secretKeyRef" | "secret" => "Secret",
                    "configMapRef" | "configMapKeyRef" | "configMap" => "ConfigMap",
                    _ => "",
                };
                // A volume names a Secret by `secretName`, everything else by `name`.
                let name = inner.get("secretName").or_else(|| inner.get("name"));
                if let ("ConfigMap" | "Secret", Some(name)) = (kind, name.and_then(Value::as_str)) {
                    names.insert(format!("{kind}/{name}"));
                }
                read_by(inner, names);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| read_by(item, names)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Returns whether a ConfigMap or Secret has another content than in the version before. One that
/// was in no version before may have been there all the same.
pub(super) fn is_other_content(before: &[Manifest], manifest: &Manifest) -> bool {
    matches!(&*manifest.kind.name, "ConfigMap" | "Secret")
        && before
            .iter()
            .find(|before| before.is_same_object(manifest))
            .is_some_and(|before| content(before) != content(manifest))
}

/// Gives Secrets the values that they have in another version. Returns whether one had another.
pub fn take_values(manifests: &mut [Manifest], of: &[Manifest]) -> bool {
    let mut has_other = false;
    let secrets = manifests.iter_mut().filter(|it| it.kind.name == "Secret");
    for secret in secrets {
        let found = of.iter().find(|it| it.is_same_object(secret));
        if let Some(found) = found.filter(|found| content(found) != content(secret)) {
            secret.clone_from(found);
            has_other = true;
        }
    }
    has_other
}

/// Content of a ConfigMap or Secret by its keys, in whichever field it stands.
fn content(manifest: &Manifest) -> Map<String, Value> {
    let mut content = Map::new();
    // Texts of a Secret take the place of its data.
    for field in ["data", "binaryData", "stringData"] {
        let values = manifest.object.get(field).and_then(Value::as_object);
        for (key, value) in values.into_iter().flatten() {
            let text = value.as_str().filter(|_| field == "stringData");
            let value = text.map_or_else(|| value.clone(), |text| STANDARD.encode(text).into());
            content.insert(key.clone(), value);
        }
    }
    content
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
    fn the_content_is_what_is_compared_and_not_how_it_is_written() {
        let of = |kind: &str, fields: &str| {
            let text = format!("apiVersion: v1\nkind: {kind}\nmetadata: {{name: a}}\n{fields}\n");
            parse(&text, Some("shop")).unwrap()
        };
        let is_other = |kind: &str, before: &str, now: &str| {
            is_other_content(&of(kind, before), &of(kind, now)[0])
        };
        assert!(!is_other(
            "Secret",
            "stringData: {p: ok}",
            "data: {p: b2s=}"
        ));
        assert!(!is_other("Secret", "data: {}", "stringData: {}"));
        assert!(is_other(
            "Secret",
            "stringData: {p: ok}",
            "stringData: {p: other}"
        ));
        assert!(is_other("Secret", "data: {p: b2s=}", "data: {q: b2s=}"));
        assert!(!is_other(
            "ConfigMap",
            "data: {a: b}",
            "immutable: true\ndata: {a: b}"
        ));
        assert!(is_other("ConfigMap", "data: {a: b}", "data: {a: b, c: d}"));
        assert!(!is_other("Service", "data: {a: b}", "data: {a: c}"));
        assert!(!is_other_content(&[], &of("ConfigMap", "data: {a: b}")[0]));
    }

    #[test]
    fn secrets_take_the_values_of_another_version_and_nothing_else_does() {
        let of = |kind: &str, name: &str, value: &str| {
            let text = format!(
                "apiVersion: v1\nkind: {kind}\nmetadata: {{name: {name}}}\ndata: {{p: {value}}}\n"
            );
            parse(&text, Some("shop")).unwrap()
        };
        let all = |value: &str, own: &str| {
            let parts = [of("Secret", "key", value), of("ConfigMap", "key", value)];
            [parts.concat(), of("Secret", own, value)].concat()
        };
        let (mut back, today) = (all("b25l", "old"), all("dHdv", "new"));
        let before = back.clone();
        assert!(take_values(&mut back, &today));
        assert_eq!(back[0], today[0]);
        assert_eq!(back[1..], before[1..]);
        assert!(!take_values(&mut back, &today));
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

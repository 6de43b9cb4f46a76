//! The standard `restricted`: hardened Pods only. It comes on top of `baseline`.

use serde_json::Value;

use super::{Breach, breach, containers, contexts, field, is_true, list, text};

/// Sources of volumes that are allowed.
const VOLUMES: &[&str] = &[
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

const NON_ROOT: &str = "/securityContext/runAsNonRoot";
const SECCOMP: &str = "/securityContext/seccompProfile";

/// Every field that the standard forbids or misses.
pub(super) fn check(pod: &Value, found: &mut Vec<Breach>) {
    volumes(pod, found);
    root(pod, found);
    // Windows has none of these; the API server refuses them there.
    if text(pod, "/spec/os/name") == "windows" {
        return;
    }
    let pod_has_seccomp = pod.pointer(&format!("/spec{SECCOMP}")).is_some();
    for container in containers(pod) {
        let (place, value) = (container.place.as_str(), container.value);
        let mut forbid = |path: &str, value: &str| found.push(breach(field(place, path), value));
        let path = "/securityContext/allowPrivilegeEscalation";
        if value.pointer(path).and_then(Value::as_bool) != Some(false) {
            forbid(path, "not false");
        }
        let path = "/securityContext/capabilities/drop";
        if !list(value, path).any(|name| name == "ALL") {
            forbid(path, "without \"ALL\"");
        }
        let path = "/securityContext/capabilities/add";
        for name in list(value, path).filter(|name| *name != "NET_BIND_SERVICE") {
            forbid(path, &name.to_string());
        }
        if !pod_has_seccomp && value.pointer(SECCOMP).is_none() {
            forbid(SECCOMP, "not set");
        }
    }
}

fn volumes(pod: &Value, found: &mut Vec<Breach>) {
    for volume in list(pod, "/spec/volumes") {
        if VOLUMES.iter().any(|source| volume.get(source).is_some()) {
            continue;
        }
        let mut sources = volume.as_object().into_iter().flatten();
        let source = sources.find(|(key, _)| *key != "name");
        let source = source.map_or("no source", |(source, _)| source.as_str());
        let place = format!("spec.volumes[{:?}]", text(volume, "/name"));
        found.push(breach(place, source));
    }
}

fn root(pod: &Value, found: &mut Vec<Breach>) {
    for context in contexts(pod) {
        let path = NON_ROOT;
        if context.value.pointer(path).and_then(Value::as_bool) == Some(false) {
            found.push(breach(field(&context.place, path), "false"));
        }
        let path = "/securityContext/runAsUser";
        if context.value.pointer(path).and_then(Value::as_i64) == Some(0) {
            found.push(breach(field(&context.place, path), "0"));
        }
    }
    if is_true(pod, &format!("/spec{NON_ROOT}")) {
        return;
    }
    for container in containers(pod) {
        if container.value.pointer(NON_ROOT).is_none() {
            found.push(breach(field(&container.place, NON_ROOT), "not set"));
        }
    }
}

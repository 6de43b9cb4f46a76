//! Objects that belong to an app by their owners: its Pods, the most telling first, and its events.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    Key, Object, Observation,
    object::text,
    pods::{self, is_ready},
    state::is_leaving,
};
use crate::core::{order::OrderExt as _, time::Wall};

/// A Pod of an app.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PodLine {
    pub namespace: String,
    pub name: String,
    /// True if it is ready.
    pub is_ready: bool,
    /// Restarts of its containers.
    pub restarts: u64,
    /// Names of its containers, the most telling first: an init container that has not succeeded,
    /// then one that is not ready.
    pub containers: Vec<String>,
}

/// An event about an object of an app.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct EventLine {
    /// Last time at which it happened.
    pub at: Option<Wall>,
    /// Object: `Pod shop/web-7d4b9`.
    pub object: String,
    /// True if it is a warning.
    pub is_warning: bool,
    pub reason: String,
    pub message: String,
    /// Number of times.
    pub count: u64,
}

/// UIDs with those of everything that these objects own, however far down.
fn family(mut uids: BTreeSet<String>, seen: &Observation) -> BTreeSet<String> {
    loop {
        let children: Vec<_> = seen
            .all()
            .filter(|object| !uids.contains(object.uid()))
            .filter(|object| uids.iter().any(|uid| object.is_owned_by(uid)))
            .map(|object| object.uid().to_owned())
            .collect();
        if children.is_empty() {
            return uids;
        }
        uids.extend(children);
    }
}

/// Pods of the objects with these UIDs: first those that are not ready, last those that have done
/// their work, the newest first.
pub fn pods_of(uids: BTreeSet<String>, seen: &Observation) -> Vec<PodLine> {
    let uids = family(uids, seen);
    let mut pods: Vec<_> = seen
        .of_kind("Pod")
        .filter(|pod| uids.contains(pod.uid()))
        .collect();
    pods.order_by_key(|pod| {
        let made = Wall::parse_rfc3339(pod.text("/metadata/creationTimestamp"));
        let is_done = pod.text("/status/phase") == "Succeeded";
        (is_done, is_ready(pod), std::cmp::Reverse(made))
    });
    let line = |pod: &&Object| PodLine {
        namespace: pod.text("/metadata/namespace").to_owned(),
        name: pod.name().to_owned(),
        is_ready: is_ready(pod),
        restarts: pods::restarts(pod),
        containers: containers(pod),
    };
    pods.iter().map(line).collect()
}

/// Objects of a kind that belong to the object with this UID, the newest first.
pub fn owned<'a>(kind: &'static str, uid: &str, seen: &'a Observation) -> Vec<&'a Object> {
    let uids = family(BTreeSet::from([uid.to_owned()]), seen);
    let all = seen.of_kind(kind);
    let mut found: Vec<_> = all.filter(|object| uids.contains(object.uid())).collect();
    found.order_by_key(|object| {
        let made = Wall::parse_rfc3339(object.text("/metadata/creationTimestamp"));
        std::cmp::Reverse(made)
    });
    found
}

/// Images that the Pods of an object run: as their containers name them, and as the node does
/// (`imageID`).
pub fn images_of<'a>(key: &Key, seen: &'a Observation) -> Vec<(&'a str, &'a str)> {
    let Some(object) = seen.get(key) else {
        return Vec::new();
    };
    let uids = family(BTreeSet::from([object.uid().to_owned()]), seen);
    let pods = seen.of_kind("Pod");
    let pods = pods.filter(|pod| uids.contains(pod.uid()) && !is_leaving(pod));
    let mut images = Vec::new();
    for pod in pods {
        for (named, run) in [
            ("/spec/containers", "/status/containerStatuses"),
            ("/spec/initContainers", "/status/initContainerStatuses"),
        ] {
            for container in pod.list(named) {
                let name = text(container, "/name");
                let id = pod.list(run).find(|status| text(status, "/name") == name);
                let id = id.map_or("", |status| text(status, "/imageID"));
                if !id.is_empty() {
                    images.push((text(container, "/image"), id));
                }
            }
        }
    }
    images
}

fn containers(pod: &Object) -> Vec<String> {
    let name = |container: &Value| text(container, "/name").to_owned();
    let is_done = |status: &&Value| {
        let code = status.pointer("/state/terminated/exitCode");
        code.and_then(Value::as_u64) == Some(0) || status.get("ready") == Some(&Value::Bool(true))
    };
    // Before its turn comes an init container has neither run nor failed.
    let mut inits = pod.list("/status/initContainerStatuses");
    let first = inits.find(|status| !is_done(status)).map(name);
    let behind: Vec<_> = pod
        .list("/status/containerStatuses")
        .filter(|status| !is_done(status))
        .map(name)
        .collect();
    let mut names: Vec<_> = pod.list("/spec/containers").map(name).collect();
    names.order_by_key(|name| !behind.contains(name));
    first.into_iter().chain(names).collect()
}

/// Events about the objects with these UIDs, the oldest first.
pub fn events_of(uids: BTreeSet<String>, seen: &Observation) -> Vec<EventLine> {
    let uids = family(uids, seen);
    let line = |event: &Object| {
        let about = |field: &str| event.text(&format!("/involvedObject/{field}"));
        EventLine {
            at: event.moment(),
            object: format!("{} {}/{}", about("kind"), about("namespace"), about("name")),
            is_warning: event.text("/type") == "Warning",
            reason: event.text("/reason").to_owned(),
            message: event.text("/message").to_owned(),
            count: event
                .count("/count")
                .max(event.count("/series/count"))
                .max(1),
        }
    };
    let mut events: Vec<_> = seen
        .of_kind("Event")
        .filter(|event| uids.contains(event.text("/involvedObject/uid")))
        .map(line)
        .collect();
    events.order_by_key(|event| event.at);
    events
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn pods_and_events_of_an_app_are_found_by_their_owners() {
        let mut seen = Observation::default();
        let object = |uid: &str, owner: &str, made: &str, ready: &str| {
            json!({"metadata": {"name": uid, "namespace": "shop", "uid": uid, "creationTimestamp": made,
                "ownerReferences": [{"uid": owner}]}, "spec": {"containers": [{"name": "c"}]},
                "status": {"conditions": [{"type": "Ready", "status": ready}]}})
        };
        let mut add = |kind: &str, whole: &Value| seen.add(Object::reduced(kind, whole));
        add("ReplicaSet", &object("r", "d", "", ""));
        add("Pod", &object("new", "r", "2026-01-02T00:00:00Z", "True"));
        add("Pod", &object("old", "r", "2026-01-01T00:00:00Z", "True"));
        add(
            "Pod",
            &object("broken", "r", "2026-01-01T00:00:00Z", "False"),
        );
        add(
            "Pod",
            &object("foreign", "x", "2026-01-03T00:00:00Z", "False"),
        );
        let mut done = object("done", "d", "2026-01-04T00:00:00Z", "False");
        done["status"]["phase"] = json!("Succeeded");
        add("Pod", &done);
        for (name, uid) in [("e1", "broken"), ("e2", "d"), ("e3", "foreign")] {
            add(
                "Event",
                &json!({"metadata": {"name": name}, "lastTimestamp": "2026-01-01T00:00:00Z",
                "involvedObject": {"uid": uid, "kind": "Pod", "namespace": "shop", "name": uid}, "type": "Warning"}),
            );
        }
        let uids = BTreeSet::from(["d".to_owned()]);
        let names: Vec<_> = pods_of(uids.clone(), &seen)
            .into_iter()
            .map(|pod| pod.name)
            .collect();
        assert_eq!(names, ["broken", "new", "old", "done"]);
        let objects: Vec<_> = events_of(uids, &seen)
            .into_iter()
            .map(|event| event.object)
            .collect();
        assert_eq!(objects, ["Pod shop/broken", "Pod shop/d"]);
    }
    #[test]
    fn the_most_telling_container_comes_first() {
        let named = |inits: Value, mains: Value| {
            let whole = json!({"metadata": {"name": "p", "namespace": "shop", "uid": "p"},
                "spec": {"initContainers": [{"name": "fetch"}, {"name": "migrate"}], "containers": [{"name": "web"}, {"name": "sidecar"}]},
                "status": {"initContainerStatuses": inits, "containerStatuses": mains}});
            containers(&Object::reduced("Pod", &whole))
        };
        let ended = |name: &str, code: u64| json!({"name": name, "ready": code == 0, "state": {"terminated": {"exitCode": code}}});
        let waits = |name: &str| json!({"name": name, "ready": false, "state": {"waiting": {}}});
        let runs = |name: &str| json!({"name": name, "ready": true, "state": {"running": {}}});
        let inits = json!([ended("fetch", 0), ended("migrate", 2)]);
        let mains = json!([waits("web"), waits("sidecar")]);
        assert_eq!(named(inits, mains), ["migrate", "web", "sidecar"]);
        let inits = json!([ended("fetch", 0), ended("migrate", 0)]);
        let mains = json!([runs("web"), waits("sidecar")]);
        assert_eq!(named(inits, mains), ["sidecar", "web"]);
        assert_eq!(named(json!([]), json!([])), ["web", "sidecar"]);
    }
}

//! Inputs of a verdict, for people: what each object of a version reported, those that are behind
//! first. States and reasons only: what a program wrote is evidence, and hidden where it has to be.

use serde_json::Value;

use super::{
    ClusterView, Object, Observation, Scope,
    containers::{count_of, statuses},
    messages::events_about,
    object::text,
    pods::{is_ready, on_lost_node, restarts},
    workloads,
};
use crate::core::order::OrderExt as _;

/// Lines of inputs; the rest is counted.
const LINES_MAX: usize = 8;
/// Characters of a line.
const CHARS_MAX: usize = 120;

/// Inputs of a verdict on these objects, a line for each one, and for each Pod that is not ready or
/// was restarted; none where nothing is seen.
pub fn inputs(scope: &Scope, view: ClusterView<'_>) -> Vec<String> {
    let ClusterView::Seen(seen) = view else {
        return Vec::new();
    };
    let (mut lines, mut complete) = (Vec::new(), Vec::new());
    for (key, generation) in &scope.targets {
        let Some(target) = seen.get(key) else {
            // Of all other kinds no verdict reads anything.
            if is_read(&key.kind) {
                lines.push(format!("{} is not there", key.in_words()));
            }
            continue;
        };
        let state = workloads::state(target, *generation, seen);
        if state.is_complete {
            let says = if workloads::is_watched(&key.kind) {
                format!("{} ready", state.ready)
            } else {
                "applied".to_owned()
            };
            complete.push(format!("{}: {says}", key.in_words()));
        } else {
            lines.push(state.missing);
        }
        for pod in state.pods {
            lines.extend(of_pod(pod, seen));
        }
    }
    lines.append(&mut complete);
    let more = lines.len().saturating_sub(LINES_MAX);
    lines.truncate(LINES_MAX);
    for line in &mut lines {
        if let Some((end, _)) = line.char_indices().nth(CHARS_MAX) {
            line.truncate(end);
        }
    }
    if more > 0 {
        lines.push(format!("and {more} more"));
    }
    lines
}

/// Returns whether a verdict on an object of a kind reads that object.
fn is_read(kind: &str) -> bool {
    workloads::is_watched(kind) || matches!(kind, "Ingress" | "PersistentVolumeClaim" | "Service")
}

/// `Pod shop/web-1: Running; container c waiting CrashLoopBackOff, restarts 2; warning BackOff`, in
/// the words of the API; `None` where there is nothing to say.
fn of_pod(pod: &Object, seen: &Observation) -> Option<String> {
    if is_ready(pod) && restarts(pod) == 0 {
        return None;
    }
    if let Some(lost) = on_lost_node(pod, seen) {
        return Some(lost.sentence);
    }
    let mut said = format!("{}: {}", pod.in_words(), pod.text("/status/phase"));
    let mut add = |word: &str, text: &str| {
        if !text.is_empty() {
            said = format!("{said}{word} {text}");
        }
    };
    if let Some(scheduled) = pod.condition("PodScheduled")
        && text(scheduled, "/status") == "False"
    {
        add(",", text(scheduled, "/reason"));
    }
    for (status, _) in statuses(pod) {
        add("; container", text(status, "/name"));
        add("", &state_of(status.get("state")));
        if let Some(Value::Bool(false)) = status.get("ready") {
            add(",", "not ready");
        }
        if count_of(status) > 0 {
            add(", restarts", &count_of(status).to_string());
            add(", last", &state_of(status.get("lastState")));
        }
    }
    let warnings = events_about(pod, seen).filter(|event| event.text("/type") == "Warning");
    let mut reasons: Vec<_> = warnings.map(|event| event.text("/reason")).collect();
    reasons.order();
    reasons.dedup();
    for reason in reasons {
        add("; warning", reason);
    }
    Some(said)
}

/// `terminated Error 3`: name, reason and exit code of a state of a container.
fn state_of(state: Option<&Value>) -> String {
    let state = state.and_then(Value::as_object);
    let Some((name, detail)) = state.and_then(|state| state.iter().next()) else {
        return String::new();
    };
    let code = detail.get("exitCode").map(Value::to_string);
    let words = [name, text(detail, "/reason"), &code.unwrap_or_default()];
    words.join(" ").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, time::Duration};

    use serde_json::json;

    use super::{super::Key, *};

    fn key(kind: &str, name: &str) -> Key {
        Key {
            kind: kind.to_owned(),
            namespace: "shop".to_owned(),
            name: name.to_owned(),
        }
    }

    fn daemons(count: usize, is_node_ready: bool) -> (Scope, Observation) {
        let mut seen = Observation::default();
        let metadata = json!({"name": "web", "namespace": "shop", "uid": "d", "generation": 1});
        let status = json!({"observedGeneration": 1, "desiredNumberScheduled": count, "updatedNumberScheduled": count});
        let whole = json!({"metadata": metadata, "status": status});
        seen.add(Object::reduced("DaemonSet", &whole));
        for number in 0..count {
            let name = format!("web-{number}");
            let owners = json!([{"kind": "DaemonSet", "uid": "d"}]);
            let metadata =
                json!({"name": name, "namespace": "shop", "uid": name, "ownerReferences": owners});
            let end =
                json!({"terminated": {"reason": "Error", "exitCode": 3, "message": "s3cret"}});
            let container = json!({"name": "c", "ready": false, "restartCount": 2, "lastState": end,
                "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "s3cret"}}});
            let status = json!({"phase": "Running", "containerStatuses": [container]});
            let pod = json!({"metadata": metadata, "spec": {"nodeName": "n"}, "status": status});
            seen.add(Object::reduced("Pod", &pod));
        }
        let ready = if is_node_ready { "True" } else { "False" };
        let ready = json!([{"type": "Ready", "status": ready}]);
        let node = json!({"metadata": {"name": "n"}, "status": {"conditions": ready}});
        seen.add(Object::reduced("Node", &node));
        let targets = [
            ("ConfigMap", "unread"),
            ("DaemonSet", "web"),
            ("Deployment", "gone"),
        ];
        let scope = Scope {
            targets: BTreeMap::from(targets.map(|(kind, name)| (key(kind, name), 0))),
            deadline: Duration::from_secs(600),
            soak: Duration::from_secs(60),
        };
        (scope, seen)
    }

    #[test]
    fn inputs_are_states_and_reasons_without_the_words_of_a_program() {
        let of_node = |is_ready| {
            let (scope, seen) = daemons(1, is_ready);
            inputs(&scope, ClusterView::Seen(&seen))
        };
        let all = [
            "DaemonSet shop/web has 0 of 1 Pods available, 1 of the new version",
            "Pod shop/web-0: Running; container c waiting CrashLoopBackOff, not ready, restarts 2, last terminated Error 3",
            "Deployment shop/gone is not there",
        ];
        assert_eq!(of_node(true), all);
        let lost = "the node n, where Pod shop/web-0 runs, is not ready";
        assert_eq!(of_node(false), [all[0], lost, all[2]]);
    }

    #[test]
    fn an_object_that_has_no_readiness_of_its_own_is_applied() {
        let (mut scope, mut seen) = daemons(0, true);
        scope.targets = BTreeMap::from([(key("Service", "db"), 0)]);
        let metadata = json!({"name": "db", "namespace": "shop"});
        seen.add(Object::reduced("Service", &json!({"metadata": metadata})));
        let all = inputs(&scope, ClusterView::Seen(&seen));
        assert_eq!(all, ["Service shop/db: applied"]);
    }

    #[test]
    fn of_many_inputs_the_rest_is_counted() {
        let (scope, seen) = daemons(40, true);
        let all = inputs(&scope, ClusterView::Seen(&seen));
        assert_eq!(all.len(), LINES_MAX + 1);
        assert_eq!(all.last().unwrap(), "and 34 more");
    }
}

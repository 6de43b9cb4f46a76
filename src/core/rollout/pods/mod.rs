//! Pods of a version: what their containers, their probes, the scheduler and their node say.

mod container;
mod ends;
mod image;
mod probes;
mod scheduling;
mod volumes;

use serde_json::Value;

use self::{container::container, image::pulls, scheduling::scheduling, volumes::mounts};
pub(super) use self::{
    ends::{code_of, ends, has_ended, last_end},
    volumes::claim_findings,
};
use super::{
    Cause, Finding, Key, Object, Observation,
    containers::{count_of, statuses},
    earlier::Earlier,
    messages::evidence,
    object::{list, text},
    state::{has_failed, is_leaving},
};

/// Rejections of Pods of one controller after which it is in a loop.
const LOOP: usize = 3;

/// Restarts of all containers of a Pod.
pub(super) fn restarts(pod: &Object) -> u64 {
    let statuses = pod.list("/status/containerStatuses");
    let inits = pod.list("/status/initContainerStatuses");
    statuses.chain(inits).map(count_of).sum()
}
pub(super) fn is_ready(pod: &Object) -> bool {
    let condition = pod.condition("Ready");
    condition.is_some_and(|condition| text(condition, "/status") == "True")
}

/// Reasons why a Pod is not ready; none where it is.
pub(super) fn findings(pod: &Object, seen: &Observation, earlier: &Earlier) -> Vec<Finding> {
    if is_ready(pod) || pod.text("/status/phase") == "Succeeded" {
        return Vec::new();
    }
    // Its controller has another one in its place, which says how it is.
    if pod.text("/status/reason") == "Evicted" && earlier.has_failed(pod) {
        return Vec::new();
    }
    let mut found: Vec<_> = evicted(pod).into_iter().collect();
    found.extend(scheduling(pod, seen));
    for (status, part) in statuses(pod) {
        let before = earlier.ends(pod, text(status, "/name"));
        found.extend(container(pod, (status, part), before, seen));
    }
    if let Some(lost) = on_lost_node(pod, seen) {
        // What may pass is said of the time before, and nothing passes until the node is back.
        found.retain(|found| found.is_definite);
        found.push(lost);
    }
    if found.is_empty() {
        found.extend(mounts(pod, seen));
    }
    if found.is_empty() {
        found.extend(statuses(pod).find_map(|(status, _)| pulls(pod, status, seen)));
    }
    if found.is_empty() {
        found.extend(gate(pod));
    }
    found
}

/// A Pod whose containers are ready, and which waits for a condition that another program sets.
fn gate(pod: &Object) -> Option<Finding> {
    let ready = pod.condition("Ready")?;
    let (reason, message) = (text(ready, "/reason"), text(ready, "/message"));
    (reason == "ReadinessGatesNotReady").then(|| {
        let sentence = format!("{} is not ready: its readiness gate is closed", pod.in_words());
        let fix = "the controller that sets the condition has to run: read its log; or remove readinessGates from the Pod template";
        Finding {
            is_definite: false,
            ..definite(pod, Cause::ProbeReadiness, (sentence, evidence(reason, message), fix))
        }
    })
}

fn evicted(pod: &Object) -> Option<Finding> {
    if pod.text("/status/reason") != "Evicted" {
        return None;
    }
    let message = pod.text("/status/message");
    // Older kubelets also say of a node that lacks something which requests were exceeded.
    let is_own = !message.starts_with("The node ")
        && (message.contains("limit") || message.contains("exceeds"));
    let object = pod.in_words();
    Some(Finding {
        cause: if is_own {
            Cause::EvictedOwn
        } else {
            Cause::NodePressure
        },
        sentence: if is_own {
            format!("{object} was evicted: it used more disk than its limit")
        } else {
            format!("{object} was evicted: its node lacks disk, memory or process ids")
        },
        object,
        evidence: evidence("Evicted", message),
        fix: if is_own {
            "raise ephemeral-storage or sizeLimit, or write less".to_owned()
        } else {
            "free space on the node: pipeops-agent doctor".to_owned()
        },
        is_definite: is_own,
    })
}

/// A Pod of which the kubelet of its node has made no container, because it did not take it. One in
/// its place that starts says how it is, unless it comes after many that were rejected.
pub(super) fn rejected(pod: &Object, seen: &Observation) -> Option<Finding> {
    let reason = pod.text("/status/reason");
    let is_rejected = has_failed(pod) && reason != "Evicted" && statuses(pod).next().is_none();
    if !is_rejected || reason.is_empty() {
        return None;
    }
    let others = || seen.of_kind("Pod").filter(|other| is_of_same(pod, other));
    let alike =
        others().filter(|other| has_failed(other) && other.text("/status/reason") == reason);
    let is_loop = alike.count() >= LOOP;
    let starts = |other: &Object| {
        let is_taken = !is_loop || statuses(other).next().is_some();
        !has_failed(other) && !is_ready(other) && is_taken
    };
    if others().any(starts) {
        return None;
    }
    let sentence = format!("{} was rejected by its node", pod.in_words());
    let evidence = evidence(reason, pod.text("/status/message"));
    // No time helps where the kubelet never takes what the manifest wants.
    let is_for_good = matches!(reason, "SysctlForbidden" | "AppArmor" | "PodOSNotSupported");
    let fix = if is_for_good {
        "remove from the securityContext what the evidence names, or allow it on the node (k3s: --kubelet-arg)"
    } else {
        "read the evidence; kubectl describe the node shows what it has; the controller creates another Pod automatically"
    };
    Some(Finding {
        is_definite: is_loop && is_for_good,
        ..definite(pod, Cause::Schedule, (sentence, evidence, fix))
    })
}

/// Returns whether Pods of the version before end once others of the version of this one are
/// available, which have their place and start.
fn is_replacing(pod: &Object, seen: &Observation) -> bool {
    let Some(set) = set_of(pod, seen) else {
        return false;
    };
    let is_placed = |other: &&Object| {
        other.is_owned_by(set.uid())
            && other.uid() != pod.uid()
            && !other.text("/spec/nodeName").is_empty()
            && !has_failed(other)
    };
    let placed = seen.of_kind("Pod").filter(is_placed).count();
    let is_before = |other: &Object| {
        other.uid() != set.uid() && other.count("/status/replicas") > 0 && is_of_same(set, other)
    };
    u64::try_from(placed).is_ok_and(|placed| placed > set.count("/status/availableReplicas"))
        && seen.of_kind("ReplicaSet").any(is_before)
}

/// The set of a Pod of a Deployment.
fn set_of<'a>(pod: &Object, seen: &'a Observation) -> Option<&'a Object> {
    let mut sets = seen.of_kind("ReplicaSet");
    sets.find(|set| pod.is_owned_by(set.uid()))
}

/// Returns whether two objects have the same owner.
fn is_of_same(one: &Object, other: &Object) -> bool {
    let mut owners = one.list("/metadata/ownerReferences");
    owners.any(|owner| other.is_owned_by(text(owner, "/uid")))
}

/// Pods of the namespace of an object that are being deleted.
pub(super) fn leaving<'a>(
    object: &'a Object,
    seen: &'a Observation,
) -> impl Iterator<Item = &'a Object> {
    let namespace = object.text("/metadata/namespace");
    seen.of_kind("Pod")
        .filter(move |pod| pod.text("/metadata/namespace") == namespace && is_leaving(pod))
}

/// Trouble of the node of a Pod: it is lost; or, for a Pod that comes to every node, cordoned,
/// because it is about to be drained or is being worked on.
pub(super) fn on_lost_node(pod: &Object, seen: &Observation) -> Option<Finding> {
    let name = pod.text("/spec/nodeName");
    let key = Key {
        kind: "Node".to_owned(),
        namespace: String::new(),
        name: name.to_owned(),
    };
    let node = seen.get(&key)?;
    let condition = node.condition("Ready")?;
    let runs = format!("the node {name}, where {} runs,", pod.in_words());
    let found = |cause, sentence, evidence, fix: &str| Finding {
        cause,
        object: format!("Node {name}"),
        sentence,
        evidence,
        fix: fix.to_owned(),
        is_definite: false,
    };
    if text(condition, "/status") != "True" {
        return Some(found(
            Cause::NodeNotReady,
            format!("{runs} is not ready"),
            evidence(text(condition, "/reason"), text(condition, "/message")),
            "sudo pipeops-agent doctor on that machine; kubectl describe node",
        ));
    }
    let mut owners = pod.list("/metadata/ownerReferences");
    let is_everywhere = owners.any(|owner| text(owner, "/kind") == "DaemonSet");
    (is_everywhere && node.is("/spec/unschedulable")).then(|| {
        let fix = format!("kubectl uncordon {name}; it then continues automatically");
        let sentence = format!("{runs} is cordoned");
        found(Cause::NodeCordoned, sentence, String::new(), &fix)
    })
}

/// A finding for which waiting is pointless: its sentence, its evidence, its fix.
fn definite(
    object: &Object,
    cause: Cause,
    (sentence, evidence, fix): (String, String, &str),
) -> Finding {
    Finding {
        cause,
        object: object.in_words(),
        sentence,
        evidence,
        fix: fix.to_owned(),
        is_definite: true,
    }
}

/// Ports that the containers of a Pod declare, its sidecars included.
fn ports(pod: &Object) -> impl Iterator<Item = &Value> {
    ["/spec/containers", "/spec/initContainers"]
        .into_iter()
        .flat_map(|containers| pod.list(containers))
        .flat_map(|container| list(container, "/ports"))
}

/// Names of the ports that a Pod declares.
pub(super) fn named_ports(pod: &Object) -> impl Iterator<Item = &str> {
    ports(pod).map(|port| text(port, "/name"))
}

/// Numbers of the ports that a Pod declares.
pub(super) fn declared_ports(pod: &Object) -> impl Iterator<Item = u64> {
    ports(pod).filter_map(|port| port.get("containerPort")?.as_u64())
}

#[cfg(test)]
mod tests;

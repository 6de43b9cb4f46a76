//! Reasons why a Pod is not placed on a node.

use serde_json::Value;

use super::{
    Cause, Finding, Object, Observation, evidence, is_replacing, leaving, text,
    volumes::{VOLUME_FIX, of_claims},
};
use crate::core::{
    quantity,
    rollout::{
        containers::is_sidecar,
        messages::{SPREAD, VOLUME_IN_USE, is_beside_others, node_trouble, unschedulable},
    },
};

pub(super) fn scheduling(pod: &Object, seen: &Observation) -> Option<Finding> {
    let condition = pod.condition("PodScheduled");
    let refused = condition.filter(|condition| text(condition, "/status") == "False");
    let Some(refused) = refused else {
        // While its volumes are made, the scheduler says nothing of it.
        let is_placed = !pod.text("/spec/nodeName").is_empty();
        return of_claims(pod, seen).filter(|_| !is_placed);
    };
    let message = text(refused, "/message");
    let (cause, because) = unschedulable(message);
    if matches!(cause, Cause::StorageUnbound | Cause::StorageUnavailable)
        && let Some(found) = of_claims(pod, seen)
    {
        return Some(found);
    }
    let object = pod.in_words();
    // As long as others use it, it may become free.
    let is_too_large = resource_of(cause).map(|resource| !would_fit(pod, seen, resource));
    let trouble = match is_too_large {
        Some(true) => None,
        // It may fit on the node that is in trouble.
        Some(false) => node_trouble(message),
        // Newer schedulers do not name the taint.
        None if cause == Cause::ScheduleTaint => tainted(seen),
        None => None,
    };
    let (cause, because) = trouble.unwrap_or((cause, because));
    Some(Finding {
        cause,
        sentence: format!(
            "{object} is not placed: {because}{}",
            asked(pod, seen, cause)
        ),
        object,
        evidence: evidence(text(refused, "/reason"), message),
        fix: crowded_fix(cause, message)
            .unwrap_or_else(|| schedule_fix(cause))
            .to_owned(),
        // A claim that waits for its volume says what is wrong with it; what nobody knows may pass.
        is_definite: is_too_large.unwrap_or_else(|| {
            cause != Cause::Schedule
                && !message.contains("unbound immediate")
                && !may_be_freed(pod, (cause, message), seen)
        }),
    })
}

/// Returns whether a Pod that ends, or is about to, may still keep the port, the volume or the node
/// that another one waits for.
fn may_be_freed(pod: &Object, (cause, message): (Cause, &str), seen: &Observation) -> bool {
    let is_held = cause == Cause::SchedulePorts
        || is_beside_others(message)
        || message.contains(VOLUME_IN_USE);
    is_held && (leaving(pod, seen).next().is_some() || is_replacing(pod, seen))
}

/// Trouble of a node by its taints.
fn tainted(seen: &Observation) -> Option<(Cause, &'static str)> {
    let taints = seen
        .of_kind("Node")
        .flat_map(|node| node.list("/spec/taints"));
    let mut keys = taints.map(|taint| text(taint, "/key"));
    keys.find_map(node_trouble)
}

/// Action for a Pod that another one keeps from its place.
fn crowded_fix(cause: Cause, message: &str) -> Option<&'static str> {
    if cause == Cause::ScheduleAffinity && message.contains(SPREAD) {
        Some(
            "set whenUnsatisfiable: ScheduleAnyway, or give the nodes the label that topologyKey names",
        )
    } else if cause == Cause::ScheduleAffinity && is_beside_others(message) {
        Some(
            "lower replicas, or prefer (preferredDuringScheduling…) what the affinity requires; where a Pod keeps its own successor away: maxSurge: 0 and maxUnavailable: 1",
        )
    } else if cause == Cause::StorageUnbound && message.contains(VOLUME_IN_USE) {
        Some(
            "set strategy.type: Recreate, so that the Pod before ends first; or end the Pod that uses the volume",
        )
    } else {
        None
    }
}

fn schedule_fix(cause: Cause) -> &'static str {
    const FIXES: [(Cause, &str); 11] = [
        (
            Cause::ScheduleCpu,
            "lower resources.requests.cpu or replicas, or remove another app",
        ),
        (
            Cause::ScheduleMemory,
            "lower resources.requests.memory or replicas, or remove another app",
        ),
        (
            Cause::ScheduleTaint,
            "add a toleration for the taint that the evidence names, or: kubectl taint nodes NODE KEY-",
        ),
        (
            Cause::ScheduleAffinity,
            "correct nodeSelector or affinity, or label the node: kubectl label node NODE KEY=VALUE",
        ),
        (
            Cause::SchedulePorts,
            "use another hostPort, or a Service in its place; rolling updates with a hostPort need maxSurge: 0",
        ),
        (
            Cause::StorageUnbound,
            "kubectl get pvc,storageclass -A shows which claim waits and for what",
        ),
        (
            Cause::NodeNotReady,
            "kubectl describe nodes; pipeops-agent doctor",
        ),
        (
            Cause::NodePressure,
            "free disk or memory on the node: pipeops-agent doctor",
        ),
        (Cause::NodeCordoned, "kubectl uncordon NODE"),
        (Cause::StorageUnavailable, VOLUME_FIX),
        (
            Cause::Finalizer,
            "kubectl describe pvc -A names the Pods that use the claim; what was deleted by mistake has to be deployed again",
        ),
    ];
    let found = FIXES.iter().find(|(known, _)| *known == cause);
    found.map_or(
        "kubectl describe the Pod that the sentence names",
        |(_, fix)| fix,
    )
}

fn resource_of(cause: Cause) -> Option<&'static str> {
    if cause == Cause::ScheduleCpu {
        Some("cpu")
    } else if cause == Cause::ScheduleMemory {
        Some("memory")
    } else {
        None
    }
}

/// ` (4000m requested, the largest node has 2000m)`.
fn asked(pod: &Object, seen: &Observation, cause: Cause) -> String {
    let Some(resource) = resource_of(cause) else {
        return String::new();
    };
    let shown = |amount: u64| match resource {
        "cpu" => format!("{amount}m"),
        _ => format!("{} MiB", amount >> 20),
    };
    let wanted = shown(requested(pod, resource));
    match largest(seen, resource) {
        Some(largest) => format!(
            " ({wanted} requested, the largest node has {})",
            shown(largest)
        ),
        None => format!(" ({wanted} requested)"),
    }
}

fn would_fit(pod: &Object, seen: &Observation, resource: &str) -> bool {
    largest(seen, resource).is_none_or(|largest| requested(pod, resource) <= largest)
}

/// Request of a Pod, as the scheduler counts it: what runs at once, or the largest init container
/// with the sidecars that were started before it.
pub(super) fn requested(pod: &Object, resource: &str) -> u64 {
    // One for the whole Pod takes their place.
    let whole = pod.value().pointer("/spec/resources/requests");
    if let Some(whole) = whole.and_then(|whole| whole.get(resource)) {
        return quantity(whole, resource).unwrap_or(0);
    }
    let amount = |container: &Value| {
        let amount = container
            .pointer("/resources/requests")
            .and_then(|all| all.get(resource));
        let known = amount.and_then(|amount| quantity(amount, resource));
        known.unwrap_or(0)
    };
    let (mut sidecars, mut largest) = (0_u64, 0);
    for init in pod.list("/spec/initContainers") {
        let with_it = sidecars.saturating_add(amount(init));
        largest = with_it.max(largest);
        if is_sidecar(init) {
            sidecars = with_it;
        }
    }
    let mains = pod.list("/spec/containers").map(amount);
    mains.fold(sidecars, u64::saturating_add).max(largest)
}

fn largest(seen: &Observation, resource: &str) -> Option<u64> {
    let nodes = seen.of_kind("Node").filter_map(|node| {
        let amount = node.value().pointer("/status/allocatable")?.get(resource)?;
        quantity(amount, resource)
    });
    nodes.max()
}

/// Millicores or bytes; `None` where nobody knows what it means.
pub(super) fn quantity(amount: &Value, resource: &str) -> Option<u64> {
    let text = amount
        .as_str()
        .map_or_else(|| amount.to_string(), str::to_owned);
    if resource == "cpu" {
        quantity::milli(&text)
    } else {
        quantity::whole(&text)
    }
}

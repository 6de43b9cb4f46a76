//! Probes and hooks: a container that runs and is not ready, and one that the kubelet ends.

use serde_json::Value;

use super::{Cause, Finding, Object, Observation, definite};
use crate::core::{
    rollout::{
        containers::ContainerRole,
        messages::{container_of, evidence, newest},
        object::text,
    },
    time::Wall,
};

/// Action for a probe that fails.
const PROBE_FIX: &str = "correct path, port or timings of the probe, or what the program answers";

/// Cause, sentence, evidence and fix of a container that a probe has restarted.
pub(super) fn probed(
    name: &str,
    (cause, which, event): (Cause, &'static str, &Object),
) -> (Cause, (String, String, &'static str)) {
    let sentence =
        format!("container {name} keeps being restarted because its {which} probe fails");
    let evidence = evidence(event.text("/reason"), event.text("/message"));
    (cause, (sentence, evidence, PROBE_FIX))
}

/// The probe that had the kubelet end the container.
pub(super) fn killed_by<'a>(
    pod: &'a Object,
    container: (&str, &Value),
    seen: &'a Observation,
) -> Option<(Cause, &'static str, &'a Object)> {
    let killing = killing(pod, container, seen)?;
    let message = killing.text("/message");
    let (cause, which, prefix) = if message.contains("failed startup probe") {
        (Cause::ProbeStartup, "startup", "Startup probe")
    } else if message.contains("failed liveness probe") {
        (Cause::ProbeLiveness, "liveness", "Liveness probe")
    } else {
        return None;
    };
    let unhealthy = newest(pod, seen, |event| {
        event.text("/reason") == "Unhealthy" && event.text("/message").starts_with(prefix)
    });
    Some((cause, which, unhealthy.unwrap_or(killing)))
}

/// Event that the kubelet ended a container; none of an earlier one in its place.
fn killing<'a>(
    pod: &'a Object,
    (name, ended): (&str, &Value),
    seen: &'a Observation,
) -> Option<&'a Object> {
    let killing = newest(pod, seen, |event| {
        event.text("/reason") == "Killing" && container_of(event) == name
    });
    let begun = Wall::parse_rfc3339(text(ended, "/startedAt"));
    killing.filter(|event| event.moment() >= begun)
}

/// Returns whether the kubelet ended the container because its postStart hook failed.
pub(super) fn hook_failed(pod: &Object, container: (&str, &Value), seen: &Observation) -> bool {
    let killing = killing(pod, container, seen);
    killing.is_some_and(|event| event.text("/message") == "FailedPostStartHook")
}

/// A container that runs and is not ready.
pub(super) fn not_ready(
    pod: &Object,
    status: &Value,
    part: ContainerRole,
    seen: &Observation,
) -> Option<Finding> {
    let is_running = status.pointer("/state/running").is_some();
    if part == ContainerRole::Init || !is_running || status.get("ready") == Some(&Value::Bool(true))
    {
        return None;
    }
    let kind = match part {
        ContainerRole::Sidecar => "sidecar",
        ContainerRole::Init | ContainerRole::Main => "container",
    };
    let name = text(status, "/name");
    let event = newest(pod, seen, |event| {
        event.text("/reason") == "Unhealthy" && container_of(event) == name
    })?;
    let (cause, which) = match event.text("/message").split(' ').next() {
        Some("Startup") => (Cause::ProbeStartup, "startup"),
        Some("Liveness") => (Cause::ProbeLiveness, "liveness"),
        Some(_) | None => (Cause::ProbeReadiness, "readiness"),
    };
    let message = event.text("/message");
    // The kubelet's words for a name that none of the container's ports has.
    let unknown = message.split_once("strconv.Atoi: parsing \"");
    if let Some((port, _)) = unknown.and_then(|(_, rest)| rest.split_once('"')) {
        let sentence = format!(
            "{kind} {name} runs, but its {which} probe names the port {port:?}, which the container does not have"
        );
        let fix = "correct the port of the probe, or give a port of the container that name";
        return Some(definite(
            pod,
            cause,
            (sentence, evidence("Unhealthy", message), fix),
        ));
    }
    let sentence = format!("{kind} {name} runs, but its {which} probe fails");
    let evidence = evidence("Unhealthy", message);
    Some(Finding {
        // It may need its time: the deadline decides.
        is_definite: false,
        ..definite(pod, cause, (sentence, evidence, PROBE_FIX))
    })
}

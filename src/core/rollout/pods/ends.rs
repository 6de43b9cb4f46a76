//! Containers that end: by themselves, by a probe, or for lack of memory.

use serde_json::Value;

use super::{
    Cause, Finding, Object, Observation, definite, is_ready,
    probes::{hook_failed, killed_by, probed},
};
use crate::core::rollout::{
    containers::{ContainerRole, count_of, ends_of, statuses},
    earlier::Earlier,
    evidence::{ContainerLines, Trouble, trouble_suffix},
    messages::{FOREIGN, evidence, exit_code, start},
    object::text,
};

/// Restarts of a container after which it is in a loop.
const LOOP: u64 = 3;

pub(super) fn start_error(pod: &Object, name: &str, message: &str) -> Finding {
    if message.contains("OOM-killed") {
        return out_of_memory(pod, name, evidence("", message));
    }
    let known = start(message);
    let (cause, because, fix) = known.unwrap_or((
        Cause::ContainerStart,
        "the container runtime cannot start it",
        "read the evidence; it names what the container runtime refuses",
    ));
    let sentence = format!("container {name} cannot be started: {because}");
    Finding {
        // What nobody knows may pass: the deadline decides.
        is_definite: known.is_some(),
        ..definite(pod, cause, (sentence, evidence("", message), fix))
    }
}

/// End of a container that was to go on, or to succeed.
pub(in super::super) struct ContainerEnd<'a> {
    pub(in super::super) terminated: &'a Value,
    /// True once another one is in its place, or waited for.
    pub(in super::super) is_previous: bool,
}

/// The last end of a container that was to go on, or to succeed.
fn end<'a>(pod: &Object, status: &'a Value, part: ContainerRole) -> Option<ContainerEnd<'a>> {
    let now = status.pointer("/state/terminated");
    let terminated = now.or_else(|| status.pointer("/lastState/terminated"))?;
    // The node lost it, by a reboot for example: that says nothing about the program.
    if matches!(
        text(terminated, "/reason"),
        "Unknown" | "ContainerStatusUnknown"
    ) {
        return None;
    }
    let code = code_of(terminated);
    let goes_on = pod.text("/spec/restartPolicy") == "Always";
    let is_meant = match part {
        ContainerRole::Init => now.is_some() && code == 0,
        // With a Job its sidecars are ended, and not started again.
        ContainerRole::Sidecar => now.is_some() && !goes_on,
        // A Job ends by itself, and says how.
        ContainerRole::Main => code == 0 && !goes_on,
    };
    if is_meant {
        return None;
    }
    Some(ContainerEnd {
        terminated,
        is_previous: now.is_none(),
    })
}

/// Returns whether a container that was to go on, or to succeed, has ended since the change was
/// first seen.
pub(in super::super) fn has_ended(pod: &Object, earlier: &Earlier) -> bool {
    statuses(pod).any(|(status, part)| {
        let before = earlier.ends_before(pod, text(status, "/name"));
        ends_of(status) > before && end(pod, status, part).is_some()
    })
}

/// Exit code of a container that ended.
pub(in super::super) fn code_of(terminated: &Value) -> u64 {
    let code = terminated.get("exitCode").and_then(Value::as_u64);
    code.unwrap_or(0)
}

/// Time of the last end of a container of a Pod; empty where none has ended.
pub(in super::super) fn last_end(pod: &Object) -> &str {
    const ENDS: [&str; 2] = [
        "/state/terminated/finishedAt",
        "/lastState/terminated/finishedAt",
    ];
    let ends = statuses(pod).flat_map(|(status, _)| ENDS.map(|end| text(status, end)));
    ends.max().unwrap_or_default()
}

/// Ends of the containers of a Pod that only what they wrote explains.
pub(in super::super) fn ends<'a>(
    pod: &'a Object,
    seen: &Observation,
) -> Vec<(&'a Value, ContainerEnd<'a>)> {
    if is_ready(pod) || pod.text("/status/phase") == "Succeeded" {
        return Vec::new();
    }
    let is_open = |(status, end): &(&Value, ContainerEnd<'_>)| {
        let reason = text(end.terminated, "/reason");
        let is_known = matches!(reason, "OOMKilled" | "StartError" | "ContainerCannotRun");
        let container = (text(status, "/name"), end.terminated);
        !is_known && killed_by(pod, container, seen).is_none()
    };
    statuses(pod)
        .filter_map(|(status, part)| Some((status, end(pod, status, part)?)))
        .filter(is_open)
        .collect()
}

/// A container that ended, and one that ends again and again.
pub(super) fn ended(
    pod: &Object,
    (status, part): (&Value, ContainerRole),
    before: u64,
    seen: &Observation,
) -> Option<Finding> {
    let name = text(status, "/name");
    let count = count_of(status);
    let end = end(pod, status, part)?;
    let last = end.terminated;
    // An end of before the change proves nothing. It is shown while the kubelet waits because
    // of it.
    let is_new = ends_of(status) > before;
    let backs_off = text(status, "/state/waiting/reason") == "CrashLoopBackOff";
    if !is_new && end.is_previous && !backs_off {
        return None;
    }
    let again = count.saturating_sub(before);
    // A Job counts restarts against its backoffLimit itself.
    let goes_on = part == ContainerRole::Sidecar || pod.text("/spec/restartPolicy") == "Always";
    let (reason, message) = (text(last, "/reason"), text(last, "/message"));
    if reason == "StartError" || reason == "ContainerCannotRun" {
        let found = start_error(pod, name, message);
        return Some(Finding {
            is_definite: found.is_definite && is_new,
            ..found
        });
    }
    let restarts = if count == 1 { "restart" } else { "restarts" };
    let seen_of_it = evidence(
        reason,
        &format!("{count} {restarts}, exit code {} {message}", code_of(last)),
    );
    if reason == "OOMKilled" {
        return Some(Finding {
            // Killed once for its memory it will be killed again.
            is_definite: goes_on && again >= 1,
            ..out_of_memory(pod, name, seen_of_it)
        });
    }
    let found = if let Some(killed) = killed_by(pod, (name, last), seen) {
        let (cause, found) = probed(name, killed);
        definite(pod, cause, found)
    } else {
        let last_lines = ContainerLines::of(pod, name, last, seen);
        if last_lines.is_foreign_program() {
            let found = foreign(pod, (name, part), last_lines.below(seen_of_it));
            return Some(Finding {
                is_definite: is_new,
                ..found
            });
        }
        failed(pod, (name, part), (last, seen_of_it), (&last_lines, seen))
    };
    Some(Finding {
        is_definite: goes_on && again >= LOOP,
        ..found
    })
}

/// Cause of a container that ends by itself, and its words.
const fn kind_of(part: ContainerRole) -> (Cause, &'static str) {
    match part {
        ContainerRole::Init => (Cause::InitCrash, "init container"),
        ContainerRole::Sidecar => (Cause::CrashLoop, "sidecar"),
        ContainerRole::Main => (Cause::CrashLoop, "container"),
    }
}

/// A container whose program the kernel does not start.
fn foreign(pod: &Object, (name, part): (&str, ContainerRole), evidence: String) -> Finding {
    let (cause, because, fix) = FOREIGN;
    let (_, kind) = kind_of(part);
    let sentence = format!("{kind} {name} cannot be started: {because}");
    definite(pod, cause, (sentence, evidence, fix))
}

/// A container whose program ends by itself, or whose hook has it ended.
fn failed(
    pod: &Object,
    (name, part): (&str, ContainerRole),
    (ended, seen_of_it): (&Value, String),
    (last_lines, seen): (&ContainerLines<'_>, &Observation),
) -> Finding {
    let (cause, kind) = kind_of(part);
    let code = code_of(ended);
    if hook_failed(pod, (name, ended), seen) {
        let sentence = format!("{kind} {name} keeps being ended because its postStart hook fails");
        let fix = "correct lifecycle.postStart in the manifest; what it writes is in no log";
        return definite(pod, cause, (sentence, last_lines.below(seen_of_it), fix));
    }
    let trouble = last_lines.trouble();
    let cause = Trouble::cause_or(trouble, cause);
    let sentence = format!(
        "{kind} {name} keeps exiting, last with exit code {code} ({}){}",
        exit_code(code),
        trouble_suffix(trouble)
    );
    let fix = trouble.map_or_else(
        || read_log(pod, (name, part)),
        |trouble| trouble.fix.to_owned(),
    );
    definite(pod, cause, (sentence, last_lines.below(seen_of_it), &fix))
}

fn read_log(pod: &Object, (name, part): (&str, ContainerRole)) -> String {
    // One that is not started again has no log of before.
    let is_once = pod.text("/spec/restartPolicy") == "Never" && part != ContainerRole::Sidecar;
    format!(
        "read what it writes: pipeops-agent logs --pod {}/{} --container {name}{}",
        pod.text("/metadata/namespace"),
        pod.name(),
        if is_once { "" } else { " --previous" }
    )
}

/// A container that was killed for its memory: at its limit, or because the node had none left.
fn out_of_memory(pod: &Object, name: &str, evidence: String) -> Finding {
    let (cause, why, fix) = match memory_limit(pod, name) {
        "" => (
            Cause::NodePressure,
            "was killed because its node ran out of memory; it has no limit of its own".to_owned(),
            "free memory on the node (sudo pipeops-agent doctor), or set resources.limits.memory",
        ),
        limit => (
            Cause::Oom,
            format!("used more memory than its limit of {limit} and was killed"),
            "raise resources.limits.memory, or have the program use less",
        ),
    };
    let sentence = format!("container {name} {why}");
    definite(pod, cause, (sentence, evidence, fix))
}

/// Limit of the memory of a container, else that of its whole Pod; empty where it has none.
fn memory_limit<'a>(pod: &'a Object, name: &str) -> &'a str {
    const LIMIT: &str = "/resources/limits/memory";
    let mut containers = pod
        .list("/spec/containers")
        .chain(pod.list("/spec/initContainers"));
    let container = containers.find(|container| text(container, "/name") == name);
    match container.map_or("", |container| text(container, LIMIT)) {
        "" => pod.text("/spec/resources/limits/memory"),
        limit => limit,
    }
}

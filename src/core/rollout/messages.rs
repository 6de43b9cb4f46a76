//! Texts of kubelet, scheduler, registries and API server, and the causes that they mean.

use super::{Cause, Finding, Object, Observation, object::text};

/// The longest line of evidence.
const EVIDENCE_CHARS_MAX: usize = 400;

/// A line of evidence: a reason and a message, on one line and not too long.
pub(super) fn evidence(reason: &str, message: &str) -> String {
    let message = message.split_whitespace().collect::<Vec<_>>().join(" ");
    let line = match (reason, message.as_str()) {
        ("", message) => message.to_owned(),
        (reason, "") => reason.to_owned(),
        (reason, message) => format!("{reason}: {message}"),
    };
    let line: String = line.chars().filter(|letter| !letter.is_control()).collect();
    match line.char_indices().nth(EVIDENCE_CHARS_MAX) {
        Some((at, _)) => format!("{}…", line.get(..at).unwrap_or_default()),
        None => line,
    }
}

/// Events about an object; one of an earlier object of the same name is not.
pub(super) fn events_about<'a>(
    target: &'a Object,
    seen: &'a Observation,
) -> impl Iterator<Item = &'a Object> {
    seen.of_kind("Event").filter(move |event| {
        let uid = event.text("/involvedObject/uid");
        event.text("/involvedObject/kind") == target.kind()
            && event.text("/involvedObject/name") == target.name()
            && event.text("/involvedObject/namespace") == target.text("/metadata/namespace")
            && (uid.is_empty() || uid == target.uid())
    })
}

/// The newest event about an object for which `is_meant` holds.
pub(super) fn newest<'a>(
    target: &'a Object,
    seen: &'a Observation,
    is_meant: impl Fn(&Object) -> bool,
) -> Option<&'a Object> {
    events_about(target, seen)
        .filter(|event| is_meant(event))
        .max_by_key(|event| event.moment())
}

/// Cause of a failed pull, by the words of containerd, registries and the network.
pub(super) fn pull(message: &str) -> Cause {
    let lower = message.to_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    if has(&["toomanyrequests", "too many requests", "rate limit"]) {
        Cause::ImageRateLimited
    } else if has(&[
        "no match for platform",
        "no matching manifest",
        "does not match the specified platform",
    ]) {
        Cause::ImagePlatform
    } else if has(&["no space left on device"]) {
        Cause::ImageDisk
    } else if has(&[
        "dial tcp",
        "i/o timeout",
        "no such host",
        "connection refused",
        "connection reset",
        "tls handshake",
        "deadline exceeded",
        "network is unreachable",
        "server misbehaving",
        "x509:",
        "unexpected eof",
        "500 internal",
        "502 bad",
        "503 service",
        "504 gateway",
        "temporary failure",
        "http response to https",
    ]) {
        Cause::ImageUnreachable
    } else if has(&[
        "unauthorized",
        "authorization failed",
        "failed to authorize",
        "no basic auth",
        "forbidden",
        "access denied",
        "authentication required",
        "access to the resource is denied",
        "insufficient_scope",
    ]) {
        Cause::ImageUnauthorized
    } else if has(&["not found", "notfound", "manifest unknown", "name unknown"]) {
        Cause::ImageNotFound
    } else {
        Cause::ImageUnreachable
    }
}

/// Cause of a container that cannot be started, by the words of runc and the kubelet: the
/// explanation, and the fix.
pub(super) fn start(message: &str) -> (Cause, &'static str, &'static str) {
    if message.contains("exec format error") {
        return (
            Cause::ImagePlatform,
            "its program is built for another processor, or is a script without #!",
            "use an image for this node's processor: kubectl get nodes -L kubernetes.io/arch; a script needs a first line such as #!/bin/sh",
        );
    }
    if message.contains("permission denied") {
        return (
            Cause::ContainerStart,
            "its program may not be executed",
            "make the file executable in the image (chmod +x), or correct command in the manifest",
        );
    }
    if message.contains("executable file not found")
        || message.contains("no such file or directory")
    {
        return (
            Cause::ContainerStart,
            "its command, or a file that it names, is not in the image",
            "correct command, args or workingDir in the manifest, or add the file to the image",
        );
    }
    (
        Cause::ContainerStart,
        "the container runtime cannot start it",
        "read the evidence; it names what the container runtime refuses",
    )
}

/// Cause of a container whose settings the kubelet refuses, and the fix. One that it does not name
/// for certain is `ContainerStart`.
pub(super) fn config(message: &str) -> (Cause, &'static str) {
    let has = |words: &[&str]| words.iter().any(|word| message.contains(word));
    if has(&["non-root", "runAsNonRoot"]) {
        (
            Cause::ContainerUser,
            "set securityContext.runAsUser to a number other than 0, or use an image whose user is not root",
        )
    } else if has(&["not found", "find key", "non-existent"]) {
        (
            Cause::ConfigMissing,
            "create what is missing, or correct its name or key in the manifest",
        )
    } else {
        (
            Cause::ContainerStart,
            "correct in the manifest what the evidence names; the kubelet retries automatically",
        )
    }
}

/// Finding for Pods that the API server refuses to have made for `target`.
pub(super) fn refused(target: &Object, message: &str) -> Finding {
    let namespace = target.text("/metadata/namespace");
    let object = target.in_words();
    let (cause, sentence, fix) = if message.contains("exceeded quota")
        || message.contains("failed quota")
    {
        (
            Cause::Quota,
            format!(
                "{object} can make no more Pods: the quota of namespace {namespace} is used up, or wants a request or limit that is missing"
            ),
            format!(
                "lower requests, limits or replicas, or raise the quota: kubectl -n {namespace} describe resourcequota"
            ),
        )
    } else if ["maximum ", "minimum "]
        .iter()
        .any(|word| message.contains(word))
        && message.contains("usage per")
    {
        (
            Cause::LimitRange,
            format!("{object} can make no Pods: they break the limits of namespace {namespace}"),
            format!(
                "change requests and limits in the manifest, see: kubectl -n {namespace} describe limitrange"
            ),
        )
    } else if message.contains("serviceaccount") && message.contains("not found") {
        (
            Cause::ConfigMissing,
            format!("{object} cannot create Pods: their ServiceAccount does not exist"),
            "create the ServiceAccount, or correct serviceAccountName in the manifest".to_owned(),
        )
    } else if let Some(class) = ["PriorityClass", "RuntimeClass"]
        .into_iter()
        .find(|class| message.contains(class) && message.contains("found"))
    {
        (
            Cause::ConfigMissing,
            format!("{object} can make no Pods: their {class} does not exist"),
            format!(
                "correct the name of the {class} in the manifest, or have the cluster's owner create it"
            ),
        )
    } else if message.contains("metadata.labels") && message.contains("no more than 63") {
        (
            Cause::Admission,
            format!("{object} can make no Pods: its name is too long to be a label of theirs"),
            "shorten its name: that of a StatefulSet has at most 52 characters".to_owned(),
        )
    } else if message.contains("\" is invalid: ") {
        (
            Cause::Admission,
            format!("{object} cannot create Pods: the API server rejects them as invalid"),
            "correct in the manifest what the evidence names".to_owned(),
        )
    } else {
        (
            Cause::Admission,
            format!("{object} can make no Pods: a policy or a webhook of the cluster refuses them"),
            "change what the evidence names, or ask the owner of the policy".to_owned(),
        )
    };
    Finding {
        cause,
        object,
        sentence,
        evidence: evidence("FailedCreate", message),
        fix,
        is_definite: true,
    }
}

/// Cause of a Pod that no node takes, by the words of the scheduler. The first that fits: they
/// stand in the order in which a person would have to act.
pub(super) fn unschedulable(message: &str) -> (Cause, &'static str) {
    const NODE_TAINTS: [&str; 2] = [
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    ];
    const PRESSURE_TAINTS: [&str; 3] = [
        "node.kubernetes.io/disk-pressure",
        "node.kubernetes.io/memory-pressure",
        "node.kubernetes.io/pid-pressure",
    ];
    let has = |words: &[&str]| words.iter().any(|word| message.contains(word));
    if has(&["unbound immediate PersistentVolumeClaims"])
        || (has(&["persistentvolumeclaim"]) && has(&["not found"]))
    {
        (
            Cause::StorageUnbound,
            "a volume that it claims is not there",
        )
    } else if has(&["Insufficient cpu"]) {
        (
            Cause::ScheduleCpu,
            "no node has enough free CPU for its request",
        )
    } else if has(&["Insufficient memory"]) {
        (
            Cause::ScheduleMemory,
            "no node has enough free memory for its request",
        )
    } else if has(&["free ports"]) {
        (
            Cause::SchedulePorts,
            "the hostPort that it wants is taken on every node",
        )
    } else if has(&NODE_TAINTS) {
        (Cause::NodeNotReady, "no node is ready to take it")
    } else if has(&PRESSURE_TAINTS) {
        (
            Cause::NodePressure,
            "the node lacks disk, memory or process ids and accepts no new Pods",
        )
    } else if has(&[
        "node(s) were unschedulable",
        "node.kubernetes.io/unschedulable",
    ]) {
        (
            Cause::NodeCordoned,
            "the node is cordoned and accepts no Pods",
        )
    } else if has(&["untolerated taint"]) {
        (
            Cause::ScheduleTaint,
            "every node has a taint that it does not tolerate",
        )
    } else if has(&[
        "node affinity",
        "node selector",
        "pod affinity",
        "pod anti-affinity",
        "topology spread",
    ]) {
        (
            Cause::ScheduleAffinity,
            "no node matches its nodeSelector or affinity",
        )
    } else {
        (Cause::Schedule, "no node can take it")
    }
}

/// Meaning of an exit code, where it has one in general.
pub(super) const fn exit_code(code: u64) -> &'static str {
    match code {
        0 => "which means success: a service must not end by itself",
        1 => "a failure of the program",
        2 => "usually wrong arguments",
        126 => "the command may not be executed",
        127 => "the command was not found",
        128..=129 | 131..=133 | 135..=136 | 138 | 140..=142 => "it was ended by a signal",
        130 => "SIGINT",
        134 => "SIGABRT: the program gave up",
        137 => "SIGKILL: killed from outside, often for lack of memory",
        139 => "SIGSEGV: the program crashed",
        143 => "SIGTERM: it was asked to stop",
        _ => "a failure of the program",
    }
}

/// The name of a container that an event is about, by its field path: `spec.containers{web}`.
pub(super) fn container_of(event: &Object) -> &str {
    let path = text(event.value(), "/involvedObject/fieldPath");
    let inner = path.split_once('{').map(|(_, rest)| rest);
    inner
        .and_then(|rest| rest.strip_suffix('}'))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_setting_has_the_cause_that_the_kubelet_names() {
        for (message, wanted) in [
            ("secret \"creds\" not found", Cause::ConfigMissing),
            (
                "couldn't find key nope in ConfigMap shop/settings",
                Cause::ConfigMissing,
            ),
            (
                "container's runAsUser breaks non-root policy (pod: \"a_shop(1)\", container: web)",
                Cause::ContainerUser,
            ),
            (
                "container has runAsNonRoot and image will run as root (pod: \"a_shop(1)\", container: web)",
                Cause::ContainerUser,
            ),
            // After a start of the node; it goes on by itself.
            (
                "failed to sync configmap cache: timed out waiting for the condition",
                Cause::ContainerStart,
            ),
        ] {
            assert_eq!(config(message).0, wanted, "{message}");
        }
    }

    #[test]
    fn what_is_wrong_in_the_manifest_is_not_blamed_on_a_policy() {
        let target = serde_json::json!({"metadata": {"name": "db", "namespace": "shop"}});
        let target = Object::reduced("StatefulSet", &target);
        let fix = |message: &str| refused(&target, message).fix;
        assert_eq!(
            fix(
                "Pod \"db-0\" is invalid: metadata.labels: Invalid value: \"db-6d56796cdf\": must be no more than 63 characters"
            ),
            "shorten its name: that of a StatefulSet has at most 52 characters"
        );
        for class in [
            "no PriorityClass with name nope was found",
            "pod rejected: RuntimeClass \"gvisor\" not found",
        ] {
            let found = refused(&target, &format!("pods \"db-\" is forbidden: {class}"));
            assert_eq!(found.cause, Cause::ConfigMissing, "{class}");
        }
        assert_eq!(
            fix("Pod \"db-0\" is invalid: spec.hostname: Invalid value: \"-\""),
            "correct in the manifest what the evidence names"
        );
        assert_eq!(
            fix("pods \"db-0\" is forbidden: violates PodSecurity \"restricted:latest\""),
            "change what the evidence names, or ask the owner of the policy"
        );
    }
}

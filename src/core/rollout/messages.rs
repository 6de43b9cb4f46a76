//! Texts of kubelet, scheduler, registries and API server, and the causes that they mean.

use super::{Cause, Finding, Object, Observation, object::text};
use crate::core::format::is_unprintable;

/// The longest line of evidence.
const EVIDENCE_CHARS_MAX: usize = 400;

/// A line of evidence: a reason and a message, on one line and not too long.
pub(super) fn evidence(reason: &str, message: &str) -> String {
    let message = on_one_line(message);
    let line = match (reason, message.as_str()) {
        ("", message) => message.to_owned(),
        (reason, "") => reason.to_owned(),
        (reason, message) => format!("{reason}: {message}"),
    };
    let line: String = line
        .chars()
        .filter(|letter| !is_unprintable(*letter))
        .collect();
    match line.char_indices().nth(EVIDENCE_CHARS_MAX) {
        Some((at, _)) => format!("{}…", line.get(..at).unwrap_or_default()),
        None => line,
    }
}

/// A text with one space in the place of each white space.
pub(super) fn on_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
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

/// Cause of a failed pull, by the words of containerd, registries and the network; `None` where
/// nobody knows them.
pub(super) fn pull(message: &str) -> Option<Cause> {
    /// Parts of an image that containerd has lost on its node, by a power cut for example.
    const STORE: &[&str] = &[
        "parent snapshot",
        "missing parent",
        "failed to stat parent",
        "content store",
        "content digest sha256:",
    ];
    // These are words of the disk of the node where no registry denies something.
    let lower = message.to_lowercase().replace(": permission denied", "");
    let has = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    let cause = if has(&["toomanyrequests", "too many requests", "rate limit"]) {
        Cause::ImageRateLimited
    } else if has(&[
        "no match for platform",
        "no matching manifest",
        "no image found in ",
        "does not match the specified platform",
    ]) {
        Cause::ImagePlatform
    } else if has(&["docker.distribution.manifest.v1+"]) {
        Cause::ImageFormat
    } else if has(&["no space left on device"]) {
        Cause::ImageDisk
    } else if has(&["x509: ", "tls: failed to verify certificate"]) {
        let is_early =
            lower.contains("not yet valid: current time") && lower.contains(" is before ");
        if is_early {
            Cause::NodeClock
        } else {
            Cause::ImageCertificate
        }
    } else if has(&["http response to https"]) {
        Cause::ImagePlainHttp
    } else if is_unanswered(&lower) {
        Cause::ImageUnreachable
    } else if has(&[
        "unauthorized",
        "authorization failed",
        "failed to authorize",
        "no basic auth",
        "forbidden",
        "denied",
        "authentication required",
        "insufficient_scope",
    ]) {
        Cause::ImageUnauthorized
    } else if has(STORE) {
        Cause::NodeRuntime
    } else if has(&["not found", "notfound", "manifest unknown", "name unknown"]) {
        Cause::ImageNotFound
    } else {
        return None;
    };
    Some(cause)
}

/// Returns whether a pull failed because no registry, and no server of its tokens, has answered:
/// the network did, or something between.
fn is_unanswered(lower: &str) -> bool {
    const WORDS: [&str; 18] = [
        "dial tcp",
        "i/o timeout",
        "no such host",
        "connection refused",
        "connection reset",
        "tls handshake",
        "deadline exceeded",
        "network is unreachable",
        "server misbehaving",
        "unexpected eof",
        "500 internal",
        "502 bad",
        "503 service",
        "504 gateway",
        "temporary failure",
        // Before the words of Go's client, whatever they are.
        "failed to do request: ",
        "token: get \"",
        "token: post \"",
    ];
    WORDS.iter().any(|word| lower.contains(word))
        // Statuses of a proxy such as 522.
        || (lower.contains("unexpected status") && lower.contains(": 52"))
}

/// The platform for which an image is built, where the message of another one says so.
pub(super) fn platform_of(message: &str) -> Option<&str> {
    let (_, rest) = message.split_once("but its platform (")?;
    rest.split_once(')').map(|(platform, _)| platform)
}

/// A cause, its explanation, and the fix.
pub(super) type Explained = (Cause, &'static str, &'static str);

/// A program that is built for another processor.
pub(super) const FOREIGN: Explained = (
    Cause::ImagePlatform,
    "its program is built for another processor, or is a script without #!",
    "use an image for this node's processor: kubectl get nodes -L kubernetes.io/arch; a script needs a first line such as #!/bin/sh",
);

/// Cause of a container that cannot be made or started, by the words of runc, containerd and the
/// kubelet; `None` where they do not say for certain on which side it lies.
pub(super) fn start(message: &str) -> Option<Explained> {
    let lower = message.to_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    if has(&["exec format error"]) {
        return Some(FOREIGN);
    }
    // Before the words of the node: the app's own paths stand in these.
    if has(&[
        "exec: \"",
        "executable file",
        "exec container process",
        "chdir to cwd",
    ]) {
        return program(&lower);
    }
    let is_misfit = has(&["not a directory", "onto a file", "read-only file system"]);
    if has(&["error mounting \"/"]) && is_misfit {
        return Some((
            Cause::ContainerStart,
            "a volume cannot be mounted where the manifest wants it",
            "correct mountPath or subPath: a file goes where a file is, and nothing into a volume that is read-only",
        ));
    }
    if has(&["failed to mkdir \"/"]) && has(&["read-only file system"]) {
        return Some((
            Cause::ContainerStart,
            "a path of the node that it mounts is not there, and cannot be made in a read-only file system",
            "correct hostPath.path in the manifest, or create on the node what the evidence names",
        ));
    }
    if let Some(trouble) = of_node(&lower) {
        return Some(trouble);
    }
    has(&[
        "no command specified",
        "unable to find user",
        "absolute path",
    ])
    .then_some((
        Cause::ContainerStart,
        "its image or its manifest lacks a command, a user or a path",
        "correct command, runAsUser or workingDir in the manifest, or the image",
    ))
}

/// Cause of a program that is not executed.
fn program(lower: &str) -> Option<Explained> {
    if lower.contains("permission denied") {
        return Some((
            Cause::ContainerStart,
            "its program may not be executed",
            "make the file executable in the image (chmod +x), or correct command in the manifest",
        ));
    }
    let is_absent = [
        "not found",
        "no such file or directory",
        "is a directory",
        "not a directory",
    ];
    is_absent
        .iter()
        .any(|word| lower.contains(word))
        .then_some((
            Cause::ContainerStart,
            "its command, or a file that it names, is not in the image",
            "correct command, args or workingDir in the manifest, or add the file to the image",
        ))
}

/// Fix of a container runtime that does not do its work.
pub(super) const RUNTIME_FIX: &str = "sudo pipeops-agent doctor on that machine; journalctl -u k3s -n 50 (with OpenRC: tail -n 50 /var/log/k3s.log); the kubelet retries automatically";

/// Trouble of a node that makes no containers now.
fn of_node(lower: &str) -> Option<Explained> {
    const LACKS: &[&str] = &[
        "no space left on device",
        "disk quota exceeded",
        "too many open files",
        "cannot allocate memory",
        "resource temporarily unavailable",
    ];
    const RUNTIME: &[&str] = &[
        "deadline exceeded",
        "deadlineexceeded",
        "context canceled",
        "timed out",
        "failed to reserve",
        "is reserved for",
        "cgroup",
        "sandbox",
        "snapshot",
        "failed to start shim",
        "shim disconnected",
        "unpacking image",
        "rootfs component",
        "mount rootfs",
        "connection refused",
        "connection error",
        "transport is closing",
        "ttrpc",
        "code = unavailable",
        "no running task",
        "input/output error",
        "device or resource busy",
        "read-only file system",
        "from pipe: eof",
        "failed to sync ",
    ];
    let has = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    if has(LACKS) {
        return Some((
            Cause::NodePressure,
            "its node lacks disk, memory, process ids or open files",
            "free space or memory on the node: sudo pipeops-agent doctor; it then continues automatically",
        ));
    }
    has(RUNTIME).then_some((
        Cause::NodeRuntime,
        "the container runtime of its node is not able to",
        RUNTIME_FIX,
    ))
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
    } else if let Some((cause, _, fix)) = of_node(&message.to_lowercase()) {
        // After a start of the node, for example: it could not read a ConfigMap in time.
        (cause, fix)
    } else {
        (
            Cause::ContainerStart,
            "correct in the manifest what the evidence names; the kubelet retries automatically",
        )
    }
}

/// Finding for Pods that the API server does not let `target` make.
pub(super) fn refused(target: &Object, message: &str) -> Finding {
    let (is_decided, object) = (has_decided(message), target.in_words());
    let who = unanswered(message).filter(|_| !is_decided);
    let (cause, sentence, fix) = who.map_or_else(
        || refusal(target, message),
        |who| {
            (
                Cause::ApiTrouble,
                format!("{object} cannot create Pods now: {who}"),
                "it continues automatically; the API server and its webhooks: pipeops-agent doctor, kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations".to_owned(),
            )
        },
    );
    Finding {
        cause,
        object,
        sentence,
        evidence: evidence("FailedCreate", message),
        fix,
        // What nobody knows may pass: the deadline decides.
        is_definite: is_decided || cause != Cause::Admission,
    }
}

/// Cause, sentence and fix of a refusal of Pods.
fn refusal(target: &Object, message: &str) -> (Cause, String, String) {
    let namespace = target.text("/metadata/namespace");
    let object = target.in_words();
    if message.contains("exceeded quota") || message.contains("failed quota") {
        (
            Cause::Quota,
            format!(
                "{object} cannot create more Pods: the quota of namespace {namespace} is used up, or wants a request or limit that is missing"
            ),
            format!(
                "lower requests, limits or replicas, or raise the quota: kubectl -n {namespace} describe resourcequota"
            ),
        )
    } else if breaks_limits(message) {
        (
            Cause::LimitRange,
            format!("{object} cannot create Pods: they break the limits of namespace {namespace}"),
            format!(
                "change requests and limits in the manifest, see: kubectl -n {namespace} describe limitrange"
            ),
        )
    } else if message.contains("unable to create new content in namespace") {
        (
            Cause::Finalizer,
            format!("{object} cannot create Pods: namespace {namespace} is being deleted"),
            format!(
                "kubectl describe namespace {namespace} shows what keeps it; create it again once it is gone, and deploy again"
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
            format!("{object} cannot create Pods: their {class} does not exist"),
            format!(
                "correct the name of the {class} in the manifest, or have the cluster's owner create it"
            ),
        )
    } else if message.contains("metadata.labels") && message.contains("no more than 63") {
        (
            Cause::Admission,
            format!("{object} cannot create Pods: its name is too long to be a label of theirs"),
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
            format!(
                "{object} cannot create Pods: a policy or a webhook of the cluster refuses them"
            ),
            "change what the evidence names, or ask the owner of the policy".to_owned(),
        )
    }
}

/// Returns whether a Pod is refused for the limits of its namespace.
fn breaks_limits(message: &str) -> bool {
    let has = |word| message.contains(word);
    has("limit to request ratio") || (has("usage per") && (has("maximum ") || has("minimum ")))
}

/// Returns whether the API server has looked at an object and refuses it. The words of a policy or
/// webhook stand behind these, and may be any.
fn has_decided(message: &str) -> bool {
    let has = |words: &[&str]| words.iter().any(|word| message.contains(word));
    !has(EARLY)
        && has(&[
            "is forbidden: ",
            "\" is invalid: ",
            "denied the request",
            "denied request",
        ])
}

/// Words about something that comes by itself.
const EARLY: &[&str] = &[
    // Of a quota, and the account that Kubernetes makes, in a namespace that was made a moment ago.
    "status unknown for quota",
    "serviceaccount \"default\" not found",
    // Of an API server that has just started, and before it has read the rights of controllers.
    "is forbidden: not yet ready to handle request",
    "is forbidden: User \"system:",
];

/// The part of the API that did not answer for a Pod, or did so with another one.
fn unanswered(message: &str) -> Option<&'static str> {
    const COMES_FIRST: &str = "something else of the cluster has to be done first";
    const TROUBLES: [(&[&str], &str); 4] = [
        (
            &["failed calling webhook", "failed to call webhook"],
            "a webhook of the cluster does not answer",
        ),
        (EARLY, COMES_FIRST),
        (
            &[
                "object has been modified",
                "already exists",
                "being deleted",
            ],
            COMES_FIRST,
        ),
        (
            &[
                "etcdserver",
                "Internal error",
                "connection refused",
                "connection reset",
                "connection lost",
                "timeout",
                "timed out",
                "Timeout",
                "deadline exceeded",
                "context canceled",
                "too many requests",
                "unable to handle the request",
                "ServiceUnavailable",
                "rpc error",
                "database is locked",
                "EOF",
            ],
            "the API server is not able to answer",
        ),
    ];
    let has = |words: &[&str]| words.iter().any(|word| message.contains(word));
    TROUBLES
        .iter()
        .find(|(words, _)| has(words))
        .map(|(_, who)| *who)
}

/// Taints that Kubernetes, cloud providers and Cilium put on a node in trouble. Whoever deploys an
/// app sets none of these.
const NODE_TAINTS: [&str; 3] = [
    "node.kubernetes.io/",
    "node.cloudprovider.kubernetes.io/",
    "node.cilium.io/",
];

/// Trouble of nodes for which a Pod may have to wait, by the words of the scheduler.
pub(super) fn node_trouble(message: &str) -> Option<(Cause, &'static str)> {
    const PRESSURE: [&str; 3] = [
        "node.kubernetes.io/disk-pressure",
        "node.kubernetes.io/memory-pressure",
        "node.kubernetes.io/pid-pressure",
    ];
    const CORDONED: [&str; 2] = [
        "node(s) were unschedulable",
        "node.kubernetes.io/unschedulable",
    ];
    let has = |words: &[&str]| words.iter().any(|word| message.contains(word));
    if has(&PRESSURE) {
        Some((
            Cause::NodePressure,
            "the node lacks disk, memory or process ids and accepts no new Pods",
        ))
    } else if has(&CORDONED) {
        Some((
            Cause::NodeCordoned,
            "the node is cordoned and accepts no Pods",
        ))
    } else if has(&NODE_TAINTS) || has(&["no nodes available"]) {
        Some((Cause::NodeNotReady, "no node is ready to take it"))
    } else {
        None
    }
}

/// Returns whether the scheduler says of nodes that the Pods there keep another one away.
pub(super) fn is_beside_others(message: &str) -> bool {
    [
        "pod affinity",
        "pod anti-affinity",
        "existing pods anti-affinity",
        SPREAD,
    ]
    .iter()
    .any(|words| message.contains(words))
}

/// The scheduler's words for constraints on how Pods spread over nodes.
pub(super) const SPREAD: &str = "topology spread";

/// The scheduler's words for a volume that one Pod at a time may use.
pub(super) const VOLUME_IN_USE: &str = "ReadWriteOncePod access mode already in-use";

/// Words of the scheduler, the cause that they mean, and why no node takes the Pod.
type Reason = (&'static str, Cause, &'static str);

/// Resources of a node.
const OF_ROOM: [Reason; 2] = [
    (
        "Insufficient cpu",
        Cause::ScheduleCpu,
        "no node has enough free CPU for its request",
    ),
    (
        "Insufficient memory",
        Cause::ScheduleMemory,
        "no node has enough free memory for its request",
    ),
];

/// Reasons that lie before every node: gates, and claims whose volume is gone, goes, or does not
/// come.
const BEFORE_NODES: [Reason; 4] = [
    (
        "scheduling gates",
        Cause::Schedule,
        "its scheduling gates were not taken away yet",
    ),
    (
        "bound to non-existent persistentvolume",
        Cause::StorageUnavailable,
        "the volume that it claims is gone",
    ),
    (
        "is being deleted",
        Cause::Finalizer,
        "a volume claim of it is being deleted, and stays until no Pod uses it",
    ),
    (
        "binding volumes: ",
        Cause::StorageUnavailable,
        "a volume that it claims was not made in time",
    ),
];

/// Volumes and taints.
const OF_VOLUMES: [Reason; 5] = [
    (
        "bound to non-existent pv",
        Cause::StorageUnavailable,
        "the volume that it claims is gone",
    ),
    (
        "enough free storage",
        Cause::StorageUnavailable,
        "no node has room for the volume that it claims",
    ),
    // Before the next one: the volume may lie on the node that has the taint.
    (
        "untolerated taint",
        Cause::ScheduleTaint,
        "every node has a taint that it does not tolerate",
    ),
    (
        "find available persistent volumes to bind",
        Cause::StorageUnbound,
        "there is no volume that fits its claim, and none is made for it",
    ),
    (
        VOLUME_IN_USE,
        Cause::StorageUnbound,
        "another Pod uses its volume, whose access mode ReadWriteOncePod allows one only",
    ),
];

/// Cause of a Pod that no node takes, by the words of the scheduler. The first that fits: they
/// stand in the order in which a person would have to act.
pub(super) fn unschedulable(message: &str) -> (Cause, &'static str) {
    let has = |words: &str| message.contains(words);
    let first = |reasons: &'static [Reason]| {
        let found = reasons.iter().find(|(words, ..)| has(words));
        found.map(|(_, cause, because)| (*cause, *because))
    };
    if let Some(found) = first(&BEFORE_NODES) {
        return found;
    }
    if has("unbound immediate PersistentVolumeClaims")
        || (has("persistentvolumeclaim") && has("not found"))
    {
        return (
            Cause::StorageUnbound,
            "a volume that it claims is not there",
        );
    }
    first(&OF_ROOM)
        .or_else(|| node_trouble(message))
        .or_else(|| place(message))
        .or_else(|| first(&OF_VOLUMES))
        .or_else(|| affinity(message))
        .unwrap_or((Cause::Schedule, "no node can take it"))
}

/// A port that is taken, or a volume that lies elsewhere.
fn place(message: &str) -> Option<(Cause, &'static str)> {
    let is_elsewhere = OF_OTHER_NODES.iter().any(|words| message.contains(words));
    if message.contains("free ports") {
        Some((
            Cause::SchedulePorts,
            "the hostPort that it wants is taken on every node",
        ))
    } else if is_elsewhere && affinity(message).is_some() {
        Some((
            Cause::ScheduleAffinity,
            "its volume lies on a node, or in a zone, that its nodeSelector or affinity excludes",
        ))
    } else {
        is_elsewhere.then_some((
            Cause::StorageUnavailable,
            "its volume lies on a node, or in a zone, where no node can take it now",
        ))
    }
}

/// Nodes that a volume excludes. The second one since Kubernetes 1.34.
const OF_OTHER_NODES: [&str; 3] = [
    "volume node affinity",
    "PersistentVolume's node affinity",
    "no available volume zone",
];

/// Nodes that the Pod, or the Pods there, exclude.
fn affinity(message: &str) -> Option<(Cause, &'static str)> {
    let of_pod = OF_OTHER_NODES
        .iter()
        .fold(message.to_owned(), |text, words| text.replace(words, ""));
    let because = if message.contains(SPREAD) {
        "its topologySpreadConstraints leave it no node"
    } else if is_beside_others(message) {
        "its affinity rules about other Pods, or theirs about it, leave it no node"
    } else if of_pod.contains("node affinity") || of_pod.contains("node selector") {
        "no node matches its nodeSelector or affinity"
    } else {
        return None;
    };
    Some((Cause::ScheduleAffinity, because))
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
            ("secret \"sandbox\" not found", Cause::ConfigMissing),
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
            (
                "failed to sync configmap cache: timed out waiting for the condition",
                Cause::NodeRuntime,
            ),
            (
                "failed to prepare subPath for volumeMount \"a\"",
                Cause::ContainerStart,
            ),
        ] {
            assert_eq!(config(message).0, wanted, "{message}");
        }
    }

    #[test]
    fn a_container_that_its_node_cannot_make_is_not_the_fault_of_the_app() {
        const RUNC: &str = "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: ";
        let cause = |message: &str| start(message).map(|(cause, ..)| cause);
        for message in [
            "exec: \"/app/cgroup-sandbox\": stat /app/cgroup-sandbox: no such file or directory: unknown",
            "error during container init: exec: \"serve\": executable file not found in $PATH: unknown",
            "exec: \"/config/run.txt\": permission denied: unknown",
            "exec: \"/app\": is a directory: unknown",
            "chdir to cwd (\"/srv\") set in config.json failed: no such file or directory: unknown",
            "error mounting \"/var/lib/kubelet/pods/u/volumes/v\" to rootfs at \"/etc/hosts.d\": mount src=/v, dst=/etc/hosts.d: not a directory: unknown: Are you trying to mount a directory onto a file (or vice-versa)?",
        ] {
            let message = format!("{RUNC}{message}");
            assert_eq!(cause(&message), Some(Cause::ContainerStart), "{message}");
        }
        assert_eq!(
            cause(
                "failed to generate container \"c\" spec: failed to generate spec: no command specified"
            ),
            Some(Cause::ContainerStart)
        );
        assert_eq!(
            cause(&format!(
                "{RUNC}exec /app/server: exec format error: unknown"
            )),
            Some(Cause::ImagePlatform)
        );
        for message in [
            "context deadline exceeded",
            "rpc error: code = DeadlineExceeded desc = context deadline exceeded",
            "failed to reserve container name \"web_web-1_shop_u_0\": name \"web_web-1_shop_u_0\" is reserved for \"69b7\"",
            "rpc error: code = Unavailable desc = connection error: desc = \"transport: error while dialing: dial unix /run/k3s/containerd/containerd.sock: connect: connection refused\"",
            "failed to create containerd task: failed to start shim: start failed: fork/exec: no such file or directory",
            "failed to create containerd task: failed to mount rootfs component: input/output error",
            "failed to get sandbox container task: no running task found: task 69b7 not found: not found",
            "failed to create containerd container: error unpacking image: failed to extract layer sha256:aa: failed to get reader from content store: content digest sha256:bb: not found",
        ] {
            assert_eq!(cause(message), Some(Cause::NodeRuntime), "{message}");
        }
        let message = format!(
            "{RUNC}unable to apply cgroup configuration: mkdir /sys/fs/cgroup/kubepods: no such file or directory: unknown"
        );
        assert_eq!(cause(&message), Some(Cause::NodeRuntime));
        let absent = "failed to generate container \"ab\" spec: failed to generate spec: failed to mkdir \"/mnt/media\": mkdir /mnt/media: read-only file system";
        assert_eq!(cause(absent), Some(Cause::ContainerStart));
        for message in [
            "failed to create containerd container: write /var/lib/rancher/k3s: no space left on device",
            "failed to create containerd container: open /run/x: too many open files",
        ] {
            assert_eq!(cause(message), Some(Cause::NodePressure), "{message}");
        }
        for unknown in ["", "something new"] {
            assert_eq!(start(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn an_api_server_that_does_not_answer_has_refused_nothing() {
        let target = serde_json::json!({"metadata": {"name": "web", "namespace": "shop"}});
        let target = Object::reduced("ReplicaSet", &target);
        let found = |message: &str| {
            let found = refused(&target, message);
            (found.cause, found.is_definite)
        };
        for message in [
            "Error creating: Internal error occurred: failed calling webhook \"a.example\": failed to call webhook: Post \"https://a.shop.svc:443/?timeout=10s\": dial tcp 10.43.0.9:443: connect: connection refused",
            "Error creating: Internal error occurred: failed calling webhook \"serviceaccount.example\": failed to call webhook: service \"serviceaccount\" not found",
            "Error creating: etcdserver: request timed out",
            "Error creating: Internal error occurred: resource quota evaluation timed out",
            "Error creating: Post \"https://127.0.0.1:6444/api/v1/namespaces/shop/pods\": dial tcp 127.0.0.1:6444: connect: connection refused",
            "Error creating: Timeout: request did not complete within requested timeout - context deadline exceeded",
            "Error creating: pods \"web-1\" is forbidden: status unknown for quota: one, resources: pods",
            "Error creating: pods \"web-1-\" is forbidden: error looking up service account shop/default: serviceaccount \"default\" not found",
            "create Pod db-0 in StatefulSet db failed error: pods \"db-0\" already exists",
            "pods \"web-7b45fd49df-\" is forbidden: not yet ready to handle request",
            "pods is forbidden: User \"system:serviceaccount:kube-system:replicaset-controller\" cannot create resource \"pods\" in API group \"\" in the namespace \"shop\": RBAC: clusterrole.rbac.authorization.k8s.io \"system:controller:replicaset-controller\" not found",
            "Error creating: Operation cannot be fulfilled on resourcequotas \"one\": the object has been modified; please apply your changes to the latest version and try again",
        ] {
            assert_eq!(found(message).0, Cause::ApiTrouble, "{message}");
        }
        for message in [
            "Error creating: admission webhook \"a.example\" denied the request: the registry gave a timeout: connection refused",
            "Error creating: pods \"timeout-web-1\" is forbidden: violates PodSecurity \"baseline:latest\"",
            "Error creating: pods \"web-1\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: Internal error",
        ] {
            assert_eq!(found(message), (Cause::Admission, true), "{message}");
        }
        assert_eq!(
            found("Error creating: pods \"timeout-1\" is forbidden: exceeded quota: one"),
            (Cause::Quota, true)
        );
        assert_eq!(
            found(
                "Error creating: pods \"web-1-\" is forbidden: error looking up service account shop/web: serviceaccount \"web\" not found"
            ),
            (Cause::ConfigMissing, true)
        );
        let leaving = "pods \"web-7b45fd49df-\" is forbidden: unable to create new content in namespace shop because it is being terminated";
        assert_eq!(found(leaving).0, Cause::Finalizer);
        assert_eq!(
            found("Error creating: something new"),
            (Cause::Admission, false)
        );
    }

    #[test]
    fn a_pod_that_no_node_takes_is_blamed_on_what_the_scheduler_names() {
        let taint = |taint: &str| format!("1 node(s) had untolerated taint {{{taint}: }}");
        for (reasons, wanted) in [
            (taint("node.kubernetes.io/not-ready"), Cause::NodeNotReady),
            (taint("node.kubernetes.io/unreachable"), Cause::NodeNotReady),
            (
                taint("node.kubernetes.io/network-unavailable"),
                Cause::NodeNotReady,
            ),
            (
                taint("node.cloudprovider.kubernetes.io/uninitialized"),
                Cause::NodeNotReady,
            ),
            (
                taint("node.cilium.io/agent-not-ready"),
                Cause::NodeNotReady,
            ),
            (taint("node.kubernetes.io/disk-pressure"), Cause::NodePressure),
            (taint("node.kubernetes.io/memory-pressure"), Cause::NodePressure),
            (taint("node.kubernetes.io/pid-pressure"), Cause::NodePressure),
            ("1 node(s) were unschedulable".to_owned(), Cause::NodeCordoned),
            (
                format!(
                    "1 node(s) didn't have free ports for the requested pod ports, {}",
                    taint("node.kubernetes.io/unreachable")
                ),
                Cause::NodeNotReady,
            ),
            (
                taint("node-role.kubernetes.io/control-plane"),
                Cause::ScheduleTaint,
            ),
            (
                "1 node(s) didn't match Pod's node affinity/selector".to_owned(),
                Cause::ScheduleAffinity,
            ),
            (
                "1 node(s) had volume node affinity conflict".to_owned(),
                Cause::StorageUnavailable,
            ),
            (
                "1 node(s) didn't match Pod's node affinity/selector, 1 node(s) had volume node affinity conflict".to_owned(),
                Cause::ScheduleAffinity,
            ),
            ("1 Too many pods".to_owned(), Cause::Schedule),
        ] {
            let message = format!("0/2 nodes are available: {reasons}. preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.");
            assert_eq!(unschedulable(&message).0, wanted, "{message}");
        }
        let gated = "Scheduling is blocked due to non-empty scheduling gates";
        assert_eq!(
            unschedulable(gated),
            (
                Cause::Schedule,
                "its scheduling gates were not taken away yet"
            )
        );
        let none = "no nodes available to schedule pods";
        assert_eq!(unschedulable(none).0, Cause::NodeNotReady);
    }

    #[test]
    fn a_pod_that_a_volume_or_another_pod_keeps_away_is_blamed_on_it() {
        for (reasons, wanted) in [
            (
                "1 node(s) didn't match PersistentVolume's node affinity",
                Cause::StorageUnavailable,
            ),
            (
                "1 node(s) didn't match Pod's node affinity/selector, 1 node(s) didn't match PersistentVolume's node affinity",
                Cause::ScheduleAffinity,
            ),
            (
                "1 node(s) had no available volume zone",
                Cause::StorageUnavailable,
            ),
            (
                "2 node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)",
                Cause::StorageUnavailable,
            ),
            (
                "2 node(s) did not have enough free storage",
                Cause::StorageUnavailable,
            ),
            (
                "2 node(s) didn't find available persistent volumes to bind",
                Cause::StorageUnbound,
            ),
            (
                "1 node(s) had untolerated taint(s), 1 node(s) didn't find available persistent volumes to bind",
                Cause::ScheduleTaint,
            ),
            (
                "1 node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod",
                Cause::StorageUnbound,
            ),
            (
                "1 node(s) didn't match pod anti-affinity rules",
                Cause::ScheduleAffinity,
            ),
            (
                "1 node(s) didn't satisfy existing pods anti-affinity rules",
                Cause::ScheduleAffinity,
            ),
        ] {
            let message = format!(
                "0/2 nodes are available: {reasons}. no new claims to deallocate, preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."
            );
            assert_eq!(unschedulable(&message).0, wanted, "{message}");
        }
    }

    #[test]
    fn a_pull_that_fails_has_the_cause_that_the_registry_or_the_node_names() {
        for (message, wanted) in [
            (
                "failed to copy: httpReadSeeker: failed open: unexpected status code https://registry.example/v2/a/manifests/1: 429 Too Many Requests - Server message: toomanyrequests: You have reached your unauthenticated pull rate limit.",
                Cause::ImageRateLimited,
            ),
            (
                "failed to pull and unpack image \"a:1\": failed to extract layer: write /var/lib/rancher/k3s/agent/containerd: no space left on device",
                Cause::ImageDisk,
            ),
            (
                "failed to do request: Head \"https://registry.example/v2/a/manifests/1\": tls: failed to verify certificate: x509: certificate has expired or is not yet valid: current time 1970-01-01T00:02:11Z is before 2026-03-01T00:00:00Z",
                Cause::NodeClock,
            ),
            (
                "failed to do request: Head \"https://registry.example/v2/a/manifests/1\": tls: failed to verify certificate: x509: certificate has expired or is not yet valid: current time 2026-03-02T00:02:11Z is after 2026-03-01T00:00:00Z",
                Cause::ImageCertificate,
            ),
            (
                "failed to do request: Head \"https://registry.example/v2/a/manifests/1\": tls: failed to verify certificate: x509: certificate signed by unknown authority",
                Cause::ImageCertificate,
            ),
            (
                "failed to do request: Head \"https://registry.example:5000/v2/a/manifests/1\": http: server gave HTTP response to HTTPS client",
                Cause::ImagePlainHttp,
            ),
            (
                "failed to do request: Head \"https://registry.example/v2/a/manifests/1\": dial tcp 192.0.2.1:443: connect: connection refused",
                Cause::ImageUnreachable,
            ),
            (
                "no match for platform in manifest: not found",
                Cause::ImagePlatform,
            ),
            (
                "failed to unpack image on snapshotter overlayfs: not implemented: media type \"application/vnd.docker.distribution.manifest.v1+prettyjws\" is no longer supported since containerd v2.1, please rebuild the image as \"application/vnd.docker.distribution.manifest.v2+json\" or \"application/vnd.oci.image.manifest.v1+json\"",
                Cause::ImageFormat,
            ),
            (
                "no matching manifest for linux/arm64/v8 in the manifest list entries",
                Cause::ImagePlatform,
            ),
            (
                "no image found in manifest list for architecture \"arm64\", variant \"v8\", OS \"linux\"",
                Cause::ImagePlatform,
            ),
            (
                "failed to resolve image: denied: Permission \"repositories.downloadArtifacts\" denied on resource \"projects/a\" (or it may not exist)",
                Cause::ImageUnauthorized,
            ),
            (
                "failed to resolve image: unexpected status from HEAD request to https://registry.example/v2/a/manifests/1: denied: Permission denied for \"1\"",
                Cause::ImageUnauthorized,
            ),
            (
                "failed to resolve reference \"registry.example/acme/x509:1\": registry.example/acme/x509:1: not found",
                Cause::ImageNotFound,
            ),
        ] {
            assert_eq!(pull(message), Some(wanted), "{message}");
            assert_eq!(platform_of(message), None);
        }
        for unknown in [
            "Back-off pulling image \"a:1\"",
            "failed to extract layer: mkdir /var/lib/rancher: permission denied",
        ] {
            assert_eq!(pull(unknown), None, "{unknown}");
        }
        let other = "image with reference a:1 was found but its platform (linux/amd64) does not match the specified platform (linux/arm64/v8)";
        assert_eq!(pull(other), Some(Cause::ImagePlatform));
        assert_eq!(platform_of(other), Some("linux/amd64"));
    }

    #[test]
    fn a_token_server_that_does_not_answer_refuses_nothing() {
        let token = "failed to resolve reference \"docker.io/library/nginx:1.27\": failed to authorize: failed to fetch anonymous token: ";
        let url = "https://auth.docker.io/token?scope=repository%3Alibrary%2Fnginx%3Apull&service=registry.docker.io";
        let gets = format!("{token}Get \"{url}\": ");
        let status = format!("{token}unexpected status from GET request to {url}: ");
        for message in [
            format!("{gets}EOF"),
            format!(
                "{gets}read tcp 192.168.1.5:40122->98.85.153.80:443: read: connection timed out"
            ),
            format!("{gets}remote error: tls: internal error"),
            format!("{gets}http2: client connection lost"),
            format!("{status}503 Service Unavailable"),
            format!("{status}522 "),
            "failed to authorize: failed to fetch oauth token: Post \"https://ghcr.io/token\": EOF"
                .to_owned(),
            "failed to do request: Head \"https://registry.example/v2/a/manifests/1\": EOF"
                .to_owned(),
        ] {
            assert_eq!(pull(&message), Some(Cause::ImageUnreachable), "{message}");
        }
        for message in [
            format!("{status}401 Unauthorized"),
            format!("{status}403 Forbidden"),
            format!("{status}404 Not Found"),
            "Error response from daemon: Head \"https://ghcr.io/v2/a/manifests/1\": denied"
                .to_owned(),
        ] {
            assert_eq!(pull(&message), Some(Cause::ImageUnauthorized), "{message}");
        }
    }

    #[test]
    fn parts_of_an_image_that_its_node_has_lost_are_not_missing_in_the_registry() {
        for message in [
            "code = NotFound desc = failed to pull and unpack image \"a:1\": failed to prepare extraction snapshot \"extract-1 sha256:aa\": parent snapshot sha256:bb does not exist: not found",
            "failed to pull and unpack image \"a:1\": failed to extract layer sha256:aa: failed to get reader from content store: blob not found: not found",
            "failed to unpack image on snapshotter overlayfs: content digest sha256:bb: not found",
        ] {
            assert_eq!(pull(message), Some(Cause::NodeRuntime), "{message}");
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
        for limit in [
            "maximum memory usage per Container is 64Mi, but limit is 1Gi",
            "cpu max limit to request ratio per Container is 2, but provided ratio is 4.000000",
        ] {
            let found = refused(&target, &format!("pods \"db-0\" is forbidden: {limit}"));
            assert_eq!(found.cause, Cause::LimitRange, "{limit}");
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

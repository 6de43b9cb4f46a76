//! Pods of a version: what their containers, their probes, the scheduler and their node say.

use serde_json::Value;

use super::{
    Cause, Finding, Key, Object, Observation,
    containers::{ContainerRole, count_of, ends_of, is_sidecar, statuses},
    earlier::Earlier,
    evidence::{ContainerLines, Trouble, trouble_suffix},
    messages::{
        FOREIGN, RUNTIME_FIX, VOLUME_IN_USE, config, container_of, events_about, evidence,
        exit_code, is_beside_others, newest, node_trouble, platform_of, pull, start, unschedulable,
    },
    object::{list, text},
    state::has_failed,
};
use crate::core::time::Wall;

/// Restarts of a container after which it is in a loop.
const LOOP: u64 = 3;
/// Action for a probe that fails.
const PROBE_FIX: &str = "correct path, port or timings of the probe, or what the program answers";

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
    found
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
/// its place that starts says how it is.
pub(super) fn rejected(pod: &Object, seen: &Observation) -> Option<Finding> {
    let reason = pod.text("/status/reason");
    let is_rejected = has_failed(pod) && reason != "Evicted" && statuses(pod).next().is_none();
    let starts = |other: &Object| !has_failed(other) && !is_ready(other) && is_of_same(pod, other);
    if !is_rejected || reason.is_empty() || seen.of_kind("Pod").any(starts) {
        return None;
    }
    let sentence = format!("{} was rejected by its node", pod.in_words());
    let evidence = evidence(reason, pod.text("/status/message"));
    let fix = "read the evidence; kubectl describe the node shows what it has; the controller creates another Pod automatically";
    Some(Finding {
        is_definite: false,
        ..definite(pod, Cause::Schedule, (sentence, evidence, fix))
    })
}

fn scheduling(pod: &Object, seen: &Observation) -> Option<Finding> {
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

/// The first reason that the claims of a Pod have.
fn of_claims(pod: &Object, seen: &Observation) -> Option<Finding> {
    let volumes = pod.list("/spec/volumes");
    let names = volumes.map(|volume| text(volume, "/persistentVolumeClaim/claimName"));
    let claims = names.filter_map(|name| {
        seen.get(&Key {
            kind: "PersistentVolumeClaim".to_owned(),
            namespace: pod.text("/metadata/namespace").to_owned(),
            name: name.to_owned(),
        })
    });
    claims.flat_map(|claim| claim_findings(claim, seen)).next()
}

/// Returns whether a Pod that ends, or is about to, may still keep the port, the volume or the node
/// that another one waits for.
fn may_be_freed(pod: &Object, (cause, message): (Cause, &str), seen: &Observation) -> bool {
    let is_held = cause == Cause::SchedulePorts
        || is_beside_others(message)
        || message.contains(VOLUME_IN_USE);
    is_held && (leaving(pod, seen).next().is_some() || is_replacing(pod, seen))
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
    seen.of_kind("Pod").filter(move |pod| {
        pod.text("/metadata/namespace") == namespace
            && !pod.text("/metadata/deletionTimestamp").is_empty()
    })
}

/// Trouble of a node by its taints.
fn tainted(seen: &Observation) -> Option<(Cause, &'static str)> {
    let taints = seen
        .of_kind("Node")
        .flat_map(|node| node.list("/spec/taints"));
    let mut keys = taints.map(|taint| text(taint, "/key"));
    keys.find_map(node_trouble)
}

/// Action for a volume that is not there now.
const VOLUME_FIX: &str = "kubectl get pv,nodes -o wide shows where the volume lies; bring that node back, or restore the volume elsewhere; it then continues automatically";

/// Action for a Pod that another one keeps from its place.
fn crowded_fix(cause: Cause, message: &str) -> Option<&'static str> {
    if cause == Cause::ScheduleAffinity && is_beside_others(message) {
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
            "kubectl get pvc,storageclass shows which claim waits and for what",
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
            "kubectl describe pvc names the Pods that use the claim; what was deleted by mistake has to be deployed again",
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
fn requested(pod: &Object, resource: &str) -> u64 {
    // One for the whole Pod takes their place.
    let whole = pod.value().pointer("/spec/resources/requests");
    if let Some(whole) = whole.and_then(|whole| whole.get(resource)) {
        return quantity(whole, resource);
    }
    let amount = |container: &Value| {
        let amount = container
            .pointer("/resources/requests")
            .and_then(|all| all.get(resource));
        amount.map_or(0, |amount| quantity(amount, resource))
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
        Some(quantity(amount, resource))
    });
    nodes.max()
}

/// Millicores or bytes.
fn quantity(amount: &Value, resource: &str) -> u64 {
    let text = match amount {
        Value::String(text) => text.clone(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            amount.to_string()
        }
    };
    let digits = text
        .find(|letter: char| !letter.is_ascii_digit() && letter != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let thousandths: String = part.chars().chain("000".chars()).take(3).collect();
    let milli = whole
        .parse::<u64>()
        .unwrap_or(0)
        .saturating_mul(1000)
        .saturating_add(thousandths.parse().unwrap_or(0));
    if resource == "cpu" {
        return if unit == "m" { milli / 1000 } else { milli };
    }
    let factor: u64 = match unit {
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        "k" => 1000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "T" => 1_000_000_000_000,
        _ => 1,
    };
    (milli / 1000)
        .saturating_mul(factor)
        .saturating_add((milli % 1000).saturating_mul(factor / 1000))
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

/// Reasons of one container that had ended `before` times when the change was first seen.
fn container(
    pod: &Object,
    (status, part): (&Value, ContainerRole),
    before: u64,
    seen: &Observation,
) -> Option<Finding> {
    let name = text(status, "/name");
    let reason = text(status, "/state/waiting/reason");
    let message = text(status, "/state/waiting/message");
    let found = |cause, sentence: String, evidence: String, fix: &str| {
        Some(definite(pod, cause, (sentence, evidence, fix)))
    };
    match reason {
        "ErrImagePull"
        | "ImagePullBackOff"
        | "RegistryUnavailable"
        | "SignatureValidationFailed" => Some(image(pod, status, seen)),
        "ImageInspectError" => found(
            Cause::NodeRuntime,
            format!(
                "the container runtime of the node cannot read the image {} that it has",
                text(status, "/image")
            ),
            evidence(reason, message),
            RUNTIME_FIX,
        ),
        "InvalidImageName" => found(
            Cause::ImageInvalid,
            format!(
                "the name of the image of container {name} cannot be read: {}",
                text(status, "/image")
            ),
            evidence(reason, message),
            "correct image in the manifest; names are lower case: registry/name:tag",
        ),
        "ErrImageNeverPull" => found(
            Cause::ImageAbsent,
            format!(
                "the image {} is not on the node, and imagePullPolicy is Never",
                text(status, "/image")
            ),
            evidence(reason, message),
            "import the image on the node, or set imagePullPolicy: IfNotPresent",
        ),
        "CreateContainerConfigError" => {
            let (cause, fix) = config(message);
            let sentence = format!(
                "container {name} cannot be created: {}",
                kubelet_message(message)
            );
            let evidence = evidence(reason, message);
            Some(Finding {
                // What it does not name may pass.
                is_definite: cause != Cause::ContainerStart,
                ..definite(pod, cause, (sentence, evidence, fix))
            })
        }
        "CreateContainerError" | "RunContainerError" | "StartError" => {
            Some(start_error(pod, name, message))
        }
        _ => {
            ended(pod, (status, part), before, seen).or_else(|| not_ready(pod, status, part, seen))
        }
    }
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

/// Message of the kubelet without the Pod that it names in brackets.
fn kubelet_message(message: &str) -> String {
    let message = message.trim_start_matches('[').trim_end_matches(']');
    let message = message.split(" (pod: ").next().unwrap_or_default();
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn start_error(pod: &Object, name: &str, message: &str) -> Finding {
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

fn image(pod: &Object, status: &Value, seen: &Observation) -> Finding {
    const UNKNOWN: (&str, &str) = (
        "the image IMAGE cannot be pulled: see the evidence",
        "correct what the evidence names; the kubelet then retries automatically",
    );
    let name = text(status, "/name");
    let image = text(status, "/image");
    // The back-off names the error since Kubernetes 1.31; before that only the event does.
    let waiting = text(status, "/state/waiting/message");
    let is_pull = |event: &Object| {
        event.text("/reason") == "Failed"
            && event.text("/message").starts_with("Failed to pull image")
            && container_of(event) == name
    };
    let event = newest(pod, seen, is_pull).map(|event| event.text("/message"));
    let message = match event {
        Some(event) if waiting.starts_with("Back-off") => event,
        Some(_) | None => waiting,
    };
    // A name may be made of words that mean something.
    let is_whole = image.contains(['/', ':']);
    let known = if is_whole {
        pull(&message.replace(image, ""))
    } else {
        pull(message)
    };
    // Nobody knows that it is the app's.
    let cause = known.unwrap_or(Cause::ImageUnreachable);
    let (because, fix) = known.map_or(UNKNOWN, image_words);
    let mut sentence = because.replace("IMAGE", image);
    if let Some(there) = platform_of(message) {
        sentence = format!("{sentence}, but for {there}");
    }
    definite(pod, cause, (sentence, evidence("", message), fix))
}

/// An image that the node is pulling: the newest word on it is that the pull began.
fn pulls(pod: &Object, status: &Value, seen: &Observation) -> Option<Finding> {
    let name = text(status, "/name");
    status.pointer("/state/waiting")?;
    let is_meant = |event: &Object| {
        let reason = event.text("/reason");
        matches!(reason, "Pulling" | "Pulled" | "Failed" | "BackOff") && container_of(event) == name
    };
    let event = events_about(pod, seen)
        .filter(|event| is_meant(event))
        .max_by_key(|event| (event.moment(), event.text("/reason") != "Pulling"));
    let is_pull = event.map_or_else(
        || pulls_for_long(pod, seen),
        |event| event.text("/reason") == "Pulling",
    );
    if !is_pull {
        return None;
    }
    let since = event.and_then(Object::moment);
    let since = since.map_or_else(String::new, |since| {
        let since = since.rfc3339();
        let seconds = since.split('.').next().unwrap_or_default();
        format!(", since {seconds}Z")
    });
    let image = text(status, "/image");
    let sentence = format!("the node pulls the image {image} of container {name}{since}");
    let message = event.map_or("", |event| event.text("/message"));
    let evidence = evidence("Pulling", message);
    let fix =
        "wait: the link of the machine is slow, or the image is large; it continues automatically";
    Some(Finding {
        is_definite: false,
        ..definite(pod, Cause::ImagePulling, (sentence, evidence, fix))
    })
}

/// Returns whether a Pod has its sandbox and no event any more, because the API server deletes each
/// after an hour: everything else that keeps a container from starting is told again and again.
fn pulls_for_long(pod: &Object, seen: &Observation) -> bool {
    let sandbox = pod.condition("PodReadyToStartContainers");
    let runs = |(status, part): (&Value, ContainerRole)| {
        part == ContainerRole::Init && status.pointer("/state/running").is_some()
    };
    sandbox.is_some_and(|sandbox| text(sandbox, "/status") == "True")
        && events_about(pod, seen).next().is_none()
        && !statuses(pod).any(runs)
}

/// Sentence and fix of a pull that fails.
fn image_words(cause: Cause) -> (&'static str, &'static str) {
    const WORDS: [(Cause, &str, &str); 10] = [
        (
            Cause::ImageNotFound,
            "the image IMAGE does not exist in its registry",
            "correct the image or its tag, or push it; a private image may look missing without a pull secret",
        ),
        (
            Cause::ImageUnauthorized,
            "the registry refuses to give the image IMAGE: its name is wrong, or the pull secret is missing or wrong",
            "check the name first: many registries say so of an image that does not exist; for a private one create a pull secret (kubectl create secret docker-registry) and name it in imagePullSecrets",
        ),
        (
            Cause::ImagePlatform,
            "the image IMAGE is not built for the processor of this node",
            "build the image for this node's processor: kubectl get nodes -L kubernetes.io/arch",
        ),
        (
            Cause::ImageFormat,
            "the image IMAGE has a format that the container runtime of this node does not read any more",
            "build and push the image again with a current docker or podman",
        ),
        (
            Cause::ImageRateLimited,
            "the registry limits how often images are pulled, so IMAGE has to wait",
            "log in to the registry with a pull secret, or use a mirror; it then continues automatically",
        ),
        (
            Cause::NodeClock,
            "by the clock of the node, the certificate of the registry of IMAGE is not valid yet",
            "set the clock of the node: sudo timedatectl set-ntp true, or without a network: date -u -s 'YYYY-MM-DD HH:MM:SS'; it then continues automatically",
        ),
        (
            Cause::ImageCertificate,
            "the node does not accept the certificate of the registry of IMAGE",
            "where the registry has a CA of its own, name it on the node in /etc/rancher/k3s/registries.yaml (configs, tls, ca_file) and restart k3s; an expired certificate has to be renewed in the registry; it then continues automatically",
        ),
        (
            Cause::ImagePlainHttp,
            "the registry of IMAGE speaks HTTP, and the node asks it by HTTPS",
            "name it on the node in /etc/rancher/k3s/registries.yaml as a mirror whose endpoint begins with http://, and restart k3s; it then continues automatically",
        ),
        (
            Cause::ImageDisk,
            "the node has no room for the image IMAGE",
            "free space on the node: sudo pipeops-agent doctor",
        ),
        (
            Cause::NodeRuntime,
            "the container runtime of the node lacks parts of the image IMAGE that it had",
            RUNTIME_FIX,
        ),
    ];
    const UNREACHABLE: (&str, &str) = (
        "the registry of the image IMAGE cannot be reached from the node",
        "check the name of the registry, and the network and DNS of the machine: sudo pipeops-agent doctor; it then continues automatically",
    );
    let found = WORDS.iter().find(|(known, ..)| *known == cause);
    found.map_or(UNREACHABLE, |(_, sentence, fix)| (sentence, fix))
}

/// End of a container that was to go on, or to succeed.
pub(super) struct ContainerEnd<'a> {
    pub(super) terminated: &'a Value,
    /// True once another one is in its place, or waited for.
    pub(super) is_previous: bool,
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
pub(super) fn has_ended(pod: &Object, earlier: &Earlier) -> bool {
    statuses(pod).any(|(status, part)| {
        let before = earlier.ends_before(pod, text(status, "/name"));
        ends_of(status) > before && end(pod, status, part).is_some()
    })
}

/// Exit code of a container that ended.
pub(super) fn code_of(terminated: &Value) -> u64 {
    let code = terminated.get("exitCode").and_then(Value::as_u64);
    code.unwrap_or(0)
}

/// Ends of the containers of a Pod that only what they wrote explains.
pub(super) fn ends<'a>(pod: &'a Object, seen: &Observation) -> Vec<(&'a Value, ContainerEnd<'a>)> {
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
fn ended(
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
    let fix = trouble.map_or_else(|| read_log(pod, name), |trouble| trouble.fix.to_owned());
    definite(pod, cause, (sentence, last_lines.below(seen_of_it), &fix))
}

fn read_log(pod: &Object, name: &str) -> String {
    format!(
        "read what it writes: pipeops-agent logs --pod {}/{} --container {name} --previous",
        pod.text("/metadata/namespace"),
        pod.name()
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

/// Cause, sentence, evidence and fix of a container that a probe has restarted.
fn probed(
    name: &str,
    (cause, which, event): (Cause, &'static str, &Object),
) -> (Cause, (String, String, &'static str)) {
    let sentence =
        format!("container {name} keeps being restarted because its {which} probe fails");
    let evidence = evidence(event.text("/reason"), event.text("/message"));
    (cause, (sentence, evidence, PROBE_FIX))
}

/// The probe that had the kubelet end the container.
fn killed_by<'a>(
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
fn hook_failed(pod: &Object, container: (&str, &Value), seen: &Observation) -> bool {
    let killing = killing(pod, container, seen);
    killing.is_some_and(|event| event.text("/message") == "FailedPostStartHook")
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

/// A container that runs and is not ready.
fn not_ready(
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

/// Volumes and sandboxes that keep a container from being made.
fn mounts(pod: &Object, seen: &Observation) -> Option<Finding> {
    let is_failure = |event: &Object| {
        matches!(
            event.text("/reason"),
            "FailedMount" | "FailedAttachVolume" | "FailedCreatePodSandBox"
        )
    };
    // Sandbox and volumes are there before an image is pulled or a container made.
    let is_past = |event: &Object| {
        matches!(
            event.text("/reason"),
            "Pulling" | "Pulled" | "Created" | "Started"
        )
    };
    let event = events_about(pod, seen)
        .filter(|event| is_failure(event) || is_past(event))
        .max_by_key(|event| (event.moment(), is_past(event)))
        .filter(|event| is_failure(event))?;
    let (reason, message) = (event.text("/reason"), event.text("/message"));
    let object = pod.in_words();
    // Not a driver or a device that is not found.
    let is_named = ["configmap \"", "configmaps \"", "secret \"", "secrets \""]
        .iter()
        .any(|kind| message.contains(kind))
        // Kubernetes makes this one in each namespace, and is about to.
        && !message.contains("kube-root-ca.crt");
    let is_config =
        is_named && message.contains("not found") || message.contains("references non-existent");
    let is_path = message.contains("hostPath type check failed");
    let is_kept = reason == "FailedAttachVolume" && is_kept_by_another(pod, message, seen);
    let (cause, sentence, fix) = match reason {
        "FailedCreatePodSandBox" => sandbox(&object, message),
        "FailedMount" if is_config => (
            Cause::ConfigMissing,
            format!(
                "{object} cannot start: a volume needs a ConfigMap, a Secret or a key that does not exist"
            ),
            "create what the evidence names, or correct its name or key in the manifest",
        ),
        "FailedMount" if is_path => (
            Cause::StorageUnbound,
            format!(
                "{object} cannot start: a path of the node that it mounts is not what hostPath.type says"
            ),
            "create on the node what the evidence names, or correct path or type (DirectoryOrCreate) in the manifest",
        ),
        // It was mounted since.
        _ if statuses(pod).any(|(status, _)| status.pointer("/state/waiting").is_none()) => {
            return None;
        }
        _ if is_kept => (
            Cause::StorageUnbound,
            format!(
                "{object} cannot start: another Pod of its Deployment uses its volume on another node"
            ),
            "set strategy.type: Recreate and replicas: 1, so that the Pod before ends first; or use a volume that several nodes can mount (ReadWriteMany)",
        ),
        _ if message.contains("helper program") => (
            Cause::StorageUnavailable,
            format!("{object} cannot start: its node lacks the program that mounts a volume"),
            "install it on the node, with apt: sudo apt install nfs-common (NFS) or cifs-utils (SMB); it then continues automatically",
        ),
        _ => (
            Cause::StorageUnavailable,
            format!("{object} cannot start: a volume cannot be mounted on its node now"),
            VOLUME_FIX,
        ),
    };
    Some(Finding {
        is_definite: is_kept || (is_config && cause == Cause::ConfigMissing),
        ..definite(pod, cause, (sentence, evidence(reason, message), fix))
    })
}

/// Cause, sentence and fix of a Pod whose sandbox is not made.
fn sandbox(object: &str, message: &str) -> (Cause, String, &'static str) {
    let has = |words: &[&str]| words.iter().any(|word| message.contains(word));
    if has(&["no runtime for \""]) {
        (
            Cause::ConfigMissing,
            format!("{object} cannot start: its node has no runtime for its RuntimeClass"),
            "install the runtime that the evidence names on the node and restart k3s, or correct runtimeClassName in the manifest",
        )
    } else if has(&["failed to get sandbox image"]) {
        (
            Cause::NodeSandbox,
            format!("the node cannot pull the image that every Pod needs first, for {object}"),
            "check network and DNS of the machine: sudo pipeops-agent doctor; without a network, put the images of k3s into /var/lib/rancher/k3s/agent/images; it then continues automatically",
        )
    } else if has(&["network", "cni", "CNI"]) {
        (
            Cause::NodeSandbox,
            format!("the node cannot set up the network of {object}"),
            "sudo pipeops-agent doctor; journalctl -u k3s -n 50 (with OpenRC: tail -n 50 /var/log/k3s.log)",
        )
    } else {
        (
            Cause::NodeSandbox,
            format!("the container runtime of the node cannot make the sandbox of {object}"),
            RUNTIME_FIX,
        )
    }
}

/// Returns whether a Pod of the same Deployment keeps the volume of a Pod on another node, and
/// nothing ends it.
fn is_kept_by_another(pod: &Object, message: &str, seen: &Observation) -> bool {
    let Some((_, names)) = message.split_once("used by pod(s) ") else {
        return false;
    };
    let namespace = pod.text("/metadata/namespace");
    let is_deployed = |other: &Object| {
        let set = set_of(pod, seen).zip(set_of(other, seen));
        set.is_some_and(|(one, other)| is_of_same(one, other))
    };
    let mut others = seen.of_kind("Pod").filter(|other| {
        let mut names = names.split([',', ' ']);
        other.text("/metadata/namespace") == namespace && names.any(|name| name == other.name())
    });
    let stays = |other: &Object| {
        other.text("/metadata/deletionTimestamp").is_empty()
            && on_lost_node(other, seen).is_none()
            && is_deployed(other)
    };
    !is_replacing(pod, seen) && others.any(stays)
}

/// Reasons why a claim is not bound.
pub(super) fn claim_findings(claim: &Object, seen: &Observation) -> Vec<Finding> {
    let newest = |reasons: &[&str]| {
        newest(claim, seen, |event| {
            reasons.contains(&event.text("/reason"))
        })
    };
    let event = match claim.text("/status/phase") {
        "Pending" => newest(&["ProvisioningFailed", "FailedBinding"])
            .or_else(|| newest(&["ExternalProvisioning"])),
        "Lost" => newest(&["ClaimLost"]),
        _ => None,
    };
    let Some(event) = event else {
        return Vec::new();
    };
    let (reason, message) = (event.text("/reason"), event.text("/message"));
    let class = claim.text("/spec/storageClassName");
    let object = claim.in_words();
    let is_absent = message.contains("no storage class is set")
        || (message.contains("storageclass") && message.contains("not found"));
    let (cause, sentence, fix) = if is_absent && class.is_empty() {
        (
            Cause::StorageNoClass,
            format!("{object} names no storage class, and the cluster has no default one"),
            "set storageClassName, or make one the default: kubectl get storageclass",
        )
    } else if is_absent {
        (
            Cause::StorageNoClass,
            format!("{object} names the storage class {class:?}, which does not exist"),
            "correct storageClassName: kubectl get storageclass",
        )
    } else if message.to_lowercase().contains("access mode") {
        (
            Cause::StorageUnbound,
            format!("{object} wants an access mode that its storage class does not have"),
            "correct accessModes (ReadWriteOnce is common), or use another storage class",
        )
    } else if reason == "ClaimLost" {
        (
            Cause::StorageUnavailable,
            format!("{object} has lost its volume"),
            VOLUME_FIX,
        )
    } else if reason == "ExternalProvisioning" {
        (
            Cause::StorageUnavailable,
            format!("{object} has no volume yet: the provisioner has not made one"),
            "check the Pods of the provisioner that the evidence names: kubectl -n kube-system get pods; it then continues automatically",
        )
    } else if reason == "ProvisioningFailed" {
        (
            Cause::StorageUnavailable,
            format!("{object} has no volume yet: the provisioner does not manage to make one"),
            "read the evidence; for a full disk: sudo pipeops-agent doctor; it then continues automatically",
        )
    } else {
        (
            Cause::StorageUnbound,
            format!("{object} is not bound to a volume"),
            "kubectl describe pvc; kubectl get pv",
        )
    };
    vec![Finding {
        // A claim that nothing uses may go without its volume.
        is_definite: reason != "ExternalProvisioning",
        ..definite(claim, cause, (sentence, evidence(reason, message), fix))
    }]
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

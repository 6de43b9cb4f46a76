//! Images that a node cannot pull, or is pulling.

use serde_json::Value;

use super::{Cause, Finding, Object, Observation, definite};
use crate::core::rollout::{
    containers::{ContainerRole, statuses},
    messages::{RUNTIME_FIX, container_of, events_about, evidence, newest, platform_of, pull},
    object::text,
};

/// The kubelet's word for a pull secret that it does not find.
const NO_SECRET: &str = "FailedToRetrieveImagePullSecret";

pub(super) fn image(pod: &Object, status: &Value, seen: &Observation) -> Finding {
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
    if matches!(cause, Cause::ImageUnauthorized | Cause::ImageNotFound)
        && let Some(event) = newest(pod, seen, |event| event.text("/reason") == NO_SECRET)
    {
        let sentence = format!(
            "the registry refuses to give the image {image}: a pull secret of the Pod does not exist"
        );
        let missing = evidence(NO_SECRET, event.text("/message"));
        let evidence = format!("{missing}\n{}", evidence("", message));
        let fix = "create the pull secret that the evidence names, or correct its name in imagePullSecrets";
        return definite(pod, cause, (sentence, evidence, fix));
    }
    let mut sentence = because.replace("IMAGE", image);
    if let Some(there) = platform_of(message) {
        sentence = format!("{sentence}, but for {there}");
    }
    definite(pod, cause, (sentence, evidence("", message), fix))
}

/// An image that the node is pulling: the newest word on it is that the pull began.
pub(super) fn pulls(pod: &Object, status: &Value, seen: &Observation) -> Option<Finding> {
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
            "set the clock of the node: sudo timedatectl set-ntp true, or without a network: sudo date -u -s 'YYYY-MM-DD HH:MM:SS'; it then continues automatically",
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

//! Volumes, claims and sandboxes that keep the containers of a Pod from being made.

use super::{
    Cause, Finding, Key, Object, Observation, definite, is_leaving, is_of_same, is_replacing,
    on_lost_node, set_of,
};
use crate::core::rollout::{
    containers::statuses,
    messages::{RUNTIME_FIX, events_about, evidence, newest},
    object::text,
};

/// The first reason that the claims of a Pod have.
pub(super) fn of_claims(pod: &Object, seen: &Observation) -> Option<Finding> {
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

/// Action for a volume that is not there now.
pub(super) const VOLUME_FIX: &str = "kubectl describe pv names the node of each volume (Node Affinity); bring that node back, or restore the volume elsewhere; it then continues automatically";

/// Volumes and sandboxes that keep a container from being made.
pub(super) fn mounts(pod: &Object, seen: &Observation) -> Option<Finding> {
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
        _ => unmounted(&object, message),
    };
    Some(Finding {
        is_definite: is_kept || (is_config && cause == Cause::ConfigMissing),
        ..definite(pod, cause, (sentence, evidence(reason, message), fix))
    })
}

/// Cause, sentence and fix of a Pod with a volume that is not there now.
fn unmounted(object: &str, message: &str) -> (Cause, String, &'static str) {
    let has = |words: &str| message.contains(words);
    // A volume of the app has another name.
    if has("failed to sync ") || has("for volume \"kube-api-access-") {
        (
            Cause::NodeRuntime,
            format!("{object} cannot start yet: its node has not read what it mounts from the API"),
            "wait: it continues automatically; if it stays so: sudo pipeops-agent doctor on that machine",
        )
    } else if has("helper program") {
        (
            Cause::StorageUnavailable,
            format!("{object} cannot start: its node lacks the program that mounts a volume"),
            "install it on the node, with apt: sudo apt install nfs-common (NFS) or cifs-utils (SMB); it then continues automatically",
        )
    } else {
        (
            Cause::StorageUnavailable,
            format!("{object} cannot start: a volume cannot be mounted on its node now"),
            VOLUME_FIX,
        )
    }
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
        !is_leaving(other) && on_lost_node(other, seen).is_none() && is_deployed(other)
    };
    !is_replacing(pod, seen) && others.any(stays)
}

/// Words of provisioners, lower case, about what a claim wants and they never have; and the fix.
const UNSUPPORTED: [(&str, &str, &str); 3] = [
    (
        "access mode",
        "an access mode",
        "correct accessModes (ReadWriteOnce is common), or use another storage class",
    ),
    (
        "claim.spec.selector is not supported",
        "a selector",
        "remove selector from the claim, or use another storage class; the claim has to be created again",
    ),
    (
        "not support block volume",
        "a block volume",
        "remove volumeMode: Block from the claim, or use another storage class; the claim has to be created again",
    ),
];

/// Reasons why a claim is not bound.
pub(in super::super) fn claim_findings(claim: &Object, seen: &Observation) -> Vec<Finding> {
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
    let lower = message.to_lowercase();
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
    } else if let Some(&(_, wants, fix)) =
        UNSUPPORTED.iter().find(|(words, ..)| lower.contains(words))
    {
        (
            Cause::StorageUnbound,
            format!("{object} wants {wants} that its storage class does not have"),
            fix,
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
            format!("{object} has no volume yet: the provisioner cannot make one"),
            "read the evidence; for a full disk: sudo pipeops-agent doctor; it then continues automatically",
        )
    } else {
        (
            Cause::StorageUnbound,
            format!("{object} is not bound to a volume"),
            "kubectl describe pvc -A; kubectl get pv",
        )
    };
    vec![Finding {
        // A claim that nothing uses may go without its volume.
        is_definite: reason != "ExternalProvisioning",
        ..definite(claim, cause, (sentence, evidence(reason, message), fix))
    }]
}

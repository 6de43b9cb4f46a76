//! One container of a Pod: why it does not run, or is not ready.

use serde_json::Value;

use super::{
    Cause, Finding, Object, Observation, definite,
    ends::{ended, start_error},
    image::image,
    probes::not_ready,
};
use crate::core::rollout::{
    containers::ContainerRole,
    messages::{RUNTIME_FIX, config, evidence},
    object::text,
};

/// Reasons of one container that had ended `before` times when the change was first seen.
pub(super) fn container(
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
        "ErrImageNeverPull" if message.contains("proper credentials") => found(
            Cause::ImageUnauthorized,
            format!(
                "the image {} is on the node, and the Pod has no pull secret that may use it",
                text(status, "/image")
            ),
            evidence(reason, message),
            "name the pull secret of the image in imagePullSecrets",
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

/// Message of the kubelet without the Pod that it names in brackets.
fn kubelet_message(message: &str) -> String {
    let message = message.trim_start_matches('[').trim_end_matches(']');
    let message = message.split(" (pod: ").next().unwrap_or_default();
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}

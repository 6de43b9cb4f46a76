//! Containers of a Pod: their roles, and what their statuses count.

use serde_json::Value;

use super::{Object, object::text};

/// Part of a Pod that a container plays.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ContainerRole {
    Init,
    /// An init container that goes on beside the others (`restartPolicy: Always`).
    Sidecar,
    Main,
}

/// Statuses of all containers of a Pod, in the order in which they start.
pub(super) fn statuses(pod: &Object) -> impl Iterator<Item = (&Value, ContainerRole)> {
    let inits = pod.list("/status/initContainerStatuses").map(|status| {
        let mut inits = pod.list("/spec/initContainers");
        let init = inits.find(|init| text(init, "/name") == text(status, "/name"));
        let part = match init {
            Some(init) if is_sidecar(init) => ContainerRole::Sidecar,
            Some(_) | None => ContainerRole::Init,
        };
        (status, part)
    });
    let mains = pod.list("/status/containerStatuses");
    inits.chain(mains.map(|status| (status, ContainerRole::Main)))
}

/// Returns whether an init container goes on beside the others.
pub(super) fn is_sidecar(init: &Value) -> bool {
    text(init, "/restartPolicy") == "Always"
}

/// Restarts of one container.
pub(super) fn count_of(status: &Value) -> u64 {
    status
        .get("restartCount")
        .and_then(Value::as_u64)
        .unwrap_or(0)
}

/// Number of times that a container has ended. While it runs that is the number of its restarts;
/// else the last end has had none yet.
pub(super) fn ends_of(status: &Value) -> u64 {
    let is_over = status.pointer("/state/running").is_none()
        && ["/state/terminated", "/lastState/terminated"]
            .iter()
            .any(|state| status.pointer(state).is_some());
    count_of(status).saturating_add(u64::from(is_over))
}

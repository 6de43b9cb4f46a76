//! Pods: the fields that are counted and judged.

use std::time::Duration;

use super::{Metadata, Object};
use crate::{
    core::{
        cluster::pods::{Readiness, Trouble},
        time::Wall,
    },
    wire::json::fields,
};

/// A Pod, as far as it is counted.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Pod {
    /// The head.
    pub metadata: Metadata,
    /// Specification.
    pub spec: PodSpec,
    pub status: PodStatus,
}
fields!(Pod {
    metadata,
    spec,
    status
});

/// Placement of a Pod.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct PodSpec {
    /// The node that it is bound to; empty: none yet.
    pub node_name: String,
}
fields!(PodSpec {
    node_name: "nodeName"
});

/// Status of a Pod.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct PodStatus {
    /// `Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`.
    pub phase: String,
    /// `PodScheduled`, `Ready` and others.
    pub conditions: Vec<PodCondition>,
    pub container_statuses: Vec<ContainerStatus>,
    /// Those that run before them, or beside them.
    pub init_container_statuses: Vec<ContainerStatus>,
}
fields!(PodStatus {
    phase,
    conditions,
    container_statuses: "containerStatuses",
    init_container_statuses: "initContainerStatuses",
});

/// One condition of a Pod.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct PodCondition {
    /// `PodScheduled`, `Ready` and so on.
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// A word for programs.
    pub reason: String,
    /// Since when it is so.
    pub last_transition_time: Option<String>,
}
fields!(PodCondition {
    kind: "type",
    status,
    reason,
    last_transition_time: "lastTransitionTime",
});

/// Status of a container.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ContainerStatus {
    pub name: String,
    /// Number of restarts.
    pub restart_count: i64,
    /// Current state.
    pub state: ContainerState,
    /// Last termination.
    pub last_state: LastState,
}
fields!(ContainerStatus {
    name,
    state,
    restart_count: "restartCount",
    last_state: "lastState"
});

/// State of a container, as far as it waits.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ContainerState {
    /// Reason why it waits.
    pub waiting: Option<Waiting>,
}
fields!(ContainerState { waiting });

/// Reason why a container waits.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Waiting {
    /// A word for programs: `ImagePullBackOff`.
    pub reason: String,
}
fields!(Waiting { reason });

/// Last termination of a container.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct LastState {
    /// `None`: it has not ended yet.
    pub terminated: Option<Ended>,
}
fields!(LastState { terminated });

/// Termination of a container.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Ended {
    /// 0 where nothing was wrong.
    pub exit_code: i64,
}
fields!(Ended {
    exit_code: "exitCode"
});

impl Pod {
    /// Returns whether it serves, or why not and for how long.
    pub fn readiness(&self, now: Wall) -> Readiness {
        let ready = self.condition("Ready");
        let is_over = matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
            || ready.is_some_and(|ready| ready.reason == "PodCompleted");
        if is_over || self.metadata.deletion_timestamp.is_some() {
            return Readiness::NotExpected;
        }
        if ready.is_some_and(|ready| ready.status == "True") {
            return Readiness::Ready;
        }
        let placed = self.condition("PodScheduled");
        let is_unplaced = placed.is_some_and(|placed| placed.status == "False");
        let trouble = match self.waits() {
            Some(trouble) => trouble,
            // Somebody holds it back on purpose.
            None if placed.is_some_and(|placed| placed.reason == "SchedulingGated") => {
                return Readiness::NotExpected;
            }
            None if is_unplaced => Trouble::Unplaced,
            None if self.status.phase == "Running" => Trouble::Unready,
            None => Trouble::Starting,
        };
        let since = ready
            .and_then(|ready| ready.last_transition_time.as_deref())
            .or(self.metadata.creation_timestamp.as_deref())
            .and_then(Wall::parse_rfc3339);
        let age = since.map_or(0, |since| now.millis().saturating_sub(since.millis()));
        // A clock that differs: it begins now.
        let age = Duration::from_millis(u64::try_from(age).unwrap_or(0));
        Readiness::Not(trouble, age)
    }

    fn condition(&self, kind: &str) -> Option<&PodCondition> {
        let mut conditions = self.status.conditions.iter();
        conditions.find(|condition| condition.kind == kind)
    }

    /// The worst reason for which a container of it waits, where it is more than its beginning.
    fn waits(&self) -> Option<Trouble> {
        let status = &self.status;
        let all = status
            .container_statuses
            .iter()
            .chain(&status.init_container_statuses);
        let reasons = all.filter_map(|container| {
            let waiting = container.state.waiting.as_ref()?;
            match waiting.reason.as_str() {
                "ErrImagePull"
                | "ImagePullBackOff"
                | "InvalidImageName"
                | "ErrImageNeverPull"
                | "ImageInspectError"
                | "RegistryUnavailable"
                | "SignatureValidationFailed" => Some(Trouble::Image),
                "CreateContainerConfigError"
                | "CreateContainerError"
                | "RunContainerError"
                | "PreStartHookError"
                | "PostStartHookError" => Some(Trouble::Configuration),
                "CrashLoopBackOff" => Some(Trouble::Crash),
                _ => None,
            }
        });
        reasons.min()
    }

    /// Containers that were started again because they had failed.
    pub fn failed_containers(&self) -> impl Iterator<Item = &str> {
        let status = &self.status;
        let all = status
            .container_statuses
            .iter()
            .chain(&status.init_container_statuses);
        let has_failed = |container: &&ContainerStatus| {
            let ended = container.last_state.terminated.as_ref();
            container.restart_count > 0 && ended.is_some_and(|ended| ended.exit_code != 0)
        };
        all.filter(has_failed)
            .map(|container| container.name.as_str())
    }

    /// Number of restarts of its containers.
    pub fn restarts(&self) -> u32 {
        let status = &self.status;
        let all = status
            .container_statuses
            .iter()
            .chain(&status.init_container_statuses);
        let counts = all.map(|container| u32::try_from(container.restart_count).unwrap_or(0));
        counts.fold(0, u32::saturating_add)
    }
}

impl Object for Pod {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Wall = Wall::from_millis(1_781_589_028_000);

    fn readiness(text: &str) -> Readiness {
        serde_json::from_str::<Pod>(text).unwrap().readiness(NOW)
    }

    fn not(trouble: Trouble, age_s: u64) -> Readiness {
        Readiness::Not(trouble, Duration::from_secs(age_s))
    }

    #[test]
    fn a_pod_is_judged_by_what_its_kubelet_says() {
        for (text, wanted) in [
            (
                r#"{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}"#,
                Readiness::Ready,
            ),
            (
                r#"{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"False","reason":"ContainersNotReady","lastTransitionTime":"2026-06-16T04:50:28Z"}]}}"#,
                not(Trouble::Unready, 3600),
            ),
            (
                r#"{"status":{"phase":"Pending","containerStatuses":[{"name":"a","state":{"waiting":{"reason":"ContainerCreating"}}},{"name":"b","state":{"waiting":{"reason":"ImagePullBackOff"}}}]}}"#,
                not(Trouble::Image, 0),
            ),
            (
                r#"{"status":{"phase":"Pending","initContainerStatuses":[{"name":"a","state":{"waiting":{"reason":"CrashLoopBackOff"}}}]}}"#,
                not(Trouble::Crash, 0),
            ),
            (
                r#"{"metadata":{"creationTimestamp":"2026-06-16T05:49:28Z"},"status":{"phase":"Pending","conditions":[{"type":"PodScheduled","status":"False","reason":"Unschedulable"}]}}"#,
                not(Trouble::Unplaced, 60),
            ),
            (
                r#"{"status":{"phase":"Pending","conditions":[{"type":"PodScheduled","status":"False","reason":"SchedulingGated"}]}}"#,
                Readiness::NotExpected,
            ),
            (
                r#"{"metadata":{"creationTimestamp":"2036-06-16T05:49:28Z"},"status":{"phase":"Pending"}}"#,
                not(Trouble::Starting, 0),
            ),
        ] {
            assert_eq!(readiness(text), wanted, "{text}");
        }
    }

    #[test]
    fn a_pod_that_has_ended_or_is_being_deleted_is_not_expected_to_serve() {
        for text in [
            r#"{"status":{"phase":"Succeeded","conditions":[{"type":"Ready","status":"False","reason":"PodCompleted"}]}}"#,
            r#"{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"False","reason":"PodCompleted"}]}}"#,
            r#"{"status":{"phase":"Failed","reason":"Evicted"}}"#,
            r#"{"metadata":{"deletionTimestamp":"2026-06-16T05:50:28Z"},"status":{"phase":"Running","conditions":[{"type":"Ready","status":"False"}]}}"#,
        ] {
            assert_eq!(readiness(text), Readiness::NotExpected, "{text}");
        }
    }
}

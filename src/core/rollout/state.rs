//! State of one object of a version: what it reports about itself.

use super::{Finding, Object};

/// State of one object of the version.
#[derive(Debug, Default)]
pub(super) struct ObjectState<'a> {
    pub(super) is_complete: bool,
    pub(super) is_seen: bool,
    pub(super) is_paused: bool,
    /// 1 while it is a Job that runs, whose time only it knows.
    pub(super) open_jobs: u64,
    pub(super) readiness: Readiness,
    pub(super) ready: u64,
    pub(super) wanted: u64,
    pub(super) missing: String,
    pub(super) findings: Vec<Finding>,
    /// Pods of the newest version; of a Job, also those that are being deleted.
    pub(super) pods: Vec<&'a Object>,
    /// Pods that have failed as a whole.
    pub(super) failed: FailedPods,
}

/// Meaning of Pods that have failed.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum FailedPods {
    #[default]
    Tell,
    /// Pods of a Job that has others in their place, and counts them itself.
    Replaced,
}

/// Self-report of an object.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum Readiness {
    #[default]
    Reported,
    /// Nothing says whether it is ready.
    Unknown,
}

impl ObjectState<'_> {
    /// Pods that say how the version is.
    pub(super) fn heard(&self) -> impl Iterator<Item = &Object> {
        let is_meant = |pod: &&&Object| {
            !is_leaving(pod) && (self.failed == FailedPods::Tell || !has_failed(pod))
        };
        self.pods.iter().filter(is_meant).copied()
    }

    pub(super) fn applied() -> Self {
        Self {
            is_complete: true,
            is_seen: true,
            ..Self::default()
        }
    }
}

/// Returns whether a Pod is being deleted.
pub(super) fn is_leaving(pod: &Object) -> bool {
    !pod.text("/metadata/deletionTimestamp").is_empty()
}

/// Returns whether a Pod has failed as a whole.
pub(super) fn has_failed(pod: &Object) -> bool {
    pod.text("/status/phase") == "Failed"
}

/// Sentence on an object whose controller has not seen its version.
pub(super) fn waits(target: &Object) -> String {
    format!(
        "{} was not looked at by its controller yet",
        target.in_words()
    )
}

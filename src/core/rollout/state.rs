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
    /// Pods of the newest version.
    pub(super) pods: Vec<&'a Object>,
    /// True while it is a Job that has another Pod in the place of those that failed.
    pub(super) has_retried: bool,
}

/// Whether an object reports how it is.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum Readiness {
    #[default]
    Reported,
    /// Nothing says whether it is ready.
    Unknown,
}

impl ObjectState<'_> {
    /// Pods that say how the version is. A Job counts those that failed by itself.
    pub(super) fn heard(&self) -> impl Iterator<Item = &Object> {
        let is_meant = |pod: &&&Object| !self.has_retried || !has_failed(pod);
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

//! State of one object of a version: what it reports about itself.

use super::{Finding, Object};

/// State of one object of the version.
#[derive(Debug, Default)]
pub(super) struct ObjectState<'a> {
    pub(super) is_complete: bool,
    pub(super) is_seen: bool,
    pub(super) is_paused: bool,
    /// True if nothing says whether it is ready.
    pub(super) is_unknown: bool,
    pub(super) ready: u64,
    pub(super) wanted: u64,
    pub(super) missing: String,
    pub(super) findings: Vec<Finding>,
    /// Pods of the newest version.
    pub(super) pods: Vec<&'a Object>,
}

impl ObjectState<'_> {
    pub(super) fn applied() -> Self {
        Self {
            is_complete: true,
            is_seen: true,
            ..Self::default()
        }
    }
}

/// Sentence on an object whose controller has not seen its version.
pub(super) fn waits(target: &Object) -> String {
    format!(
        "{} was not looked at by its controller yet",
        target.in_words()
    )
}

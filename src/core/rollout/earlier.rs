//! Ends of containers from before a change: a reboot, or what the change does not touch, says
//! nothing about it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{
    Key, Object, Observation,
    containers::{ends_of, statuses},
    object::text,
    state::has_failed,
};
use crate::core::order::GatherExt as _;

/// Pods that had failed, and whose containers had ended, when a change was first seen. A Pod that
/// is created later has no earlier ends.
#[derive(Clone, Debug, Default)]
pub(super) struct Earlier {
    ends: BTreeMap<Key, PodBefore>,
    /// Ends that are not held against their programs; empty where there are none.
    forgiven: BTreeMap<Key, PodBefore>,
    /// UIDs of Pods that had failed as a whole: others run in their place.
    failed: BTreeSet<String>,
}

#[derive(Clone, Debug)]
struct PodBefore {
    uid: String,
    /// Ends of each container that had any.
    ends: Vec<(String, u64)>,
}

impl Earlier {
    /// Everything that has ended by now.
    pub(super) fn of(seen: &Observation) -> Self {
        Self::of_those(seen, |_| true)
    }

    /// Everything that has ended and been replaced by now: Pods that have failed, and ends of the
    /// containers that run.
    pub(super) fn replaced(seen: &Observation) -> Self {
        Self::of_those(seen, |status| status.pointer("/state/running").is_some())
    }

    fn of_those(seen: &Observation, is_meant: fn(&Value) -> bool) -> Self {
        let ended = |pod: &Object| {
            let ends: Vec<_> = statuses(pod)
                .filter(|(status, _)| is_meant(status))
                .map(|(status, _)| (text(status, "/name").to_owned(), ends_of(status)))
                .filter(|(_, ends)| *ends > 0)
                .collect();
            let uid = pod.uid().to_owned();
            (!ends.is_empty()).then(|| (pod.key(), PodBefore { uid, ends }))
        };
        let failed = seen.of_kind("Pod").filter(|pod| has_failed(pod));
        Self {
            ends: seen.of_kind("Pod").filter_map(ended).gather(),
            forgiven: BTreeMap::new(),
            failed: failed.map(|pod| pod.uid().to_owned()).gather(),
        }
    }

    /// Counts the ends that are seen now as ends from before the change.
    pub(super) fn exclude_past_ends(&mut self, seen: &Observation) {
        self.forgiven = Self::of(seen).ends;
    }

    /// Returns whether a Pod had failed before the change.
    pub(super) fn has_failed(&self, pod: &Object) -> bool {
        self.failed.contains(pod.uid())
    }

    /// Forgets Pods that are gone.
    pub(super) fn keep_those_of(&mut self, seen: &Observation) {
        let is_there = |key: &Key, before: &mut PodBefore| {
            let pod = seen.get(key);
            pod.is_some_and(|pod| pod.uid() == before.uid)
        };
        self.ends.retain(is_there);
        self.forgiven.retain(is_there);
    }

    /// Ends of a container before the change, and those that were forgiven.
    pub(super) fn ends(&self, pod: &Object, container: &str) -> u64 {
        let forgiven = ends_among(&self.forgiven, pod, container);
        forgiven.max(self.ends_before(pod, container))
    }

    /// Ends of a container before the change.
    pub(super) fn ends_before(&self, pod: &Object, container: &str) -> u64 {
        ends_among(&self.ends, pod, container)
    }
}

fn ends_among(known: &BTreeMap<Key, PodBefore>, pod: &Object, container: &str) -> u64 {
    // The key of every Pod is not made where nothing is known of any.
    if known.is_empty() {
        return 0;
    }
    let before = known.get(&pod.key());
    let before = before.filter(|before| before.uid == pod.uid());
    let mut all = before.into_iter().flat_map(|before| &before.ends);
    all.find(|(name, _)| name == container)
        .map_or(0, |(_, ends)| *ends)
}

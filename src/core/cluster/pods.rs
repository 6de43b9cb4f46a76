//! Pods that should be ready and are not, each with its problem and the time that it may take to
//! start.
//!
//! Completed Pods and Pods that are being deleted are no problem. At most [`KEPT_MAX`] Pods are
//! kept.

use std::{collections::BTreeMap, time::Duration};

use crate::core::{hash::id_hash, order::OrderExt as _, time::Mono};

/// Pods that are kept: some 200 bytes each.
const KEPT_MAX: usize = 500;
/// Longest time that stamps of the API are believed to lie back.
const AGE_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

/// Reason why a Pod is not ready, the worst first.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Trouble {
    /// Its image cannot be pulled.
    Image,
    /// A container of it cannot be created.
    Configuration,
    /// A container of it ends again and again.
    Crash,
    /// No node takes it.
    Unplaced,
    /// It has not started yet.
    Starting,
    /// It runs, and its readiness probe fails.
    Unready,
}

impl Trouble {
    /// The predicate of a sentence about the Pod.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Image => "cannot pull its image",
            Self::Configuration => "has a container that cannot be created",
            Self::Crash => "keeps crashing",
            Self::Unplaced => "fits on no node",
            Self::Starting => "has not started",
            Self::Unready => "runs but is not ready",
        }
    }

    /// Time that a Pod may be like this before it is a problem. Images of a gigabyte over a slow
    /// line take minutes; the first three are said by the kubelet after it tried.
    const fn grace(self) -> Duration {
        match self {
            Self::Image | Self::Configuration | Self::Crash => Duration::ZERO,
            Self::Unplaced => Duration::from_secs(60),
            Self::Unready => Duration::from_secs(120),
            Self::Starting => Duration::from_secs(300),
        }
    }
}

/// Readiness of a Pod as the API says it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Readiness {
    /// It has ended, is being deleted, or waits by the will of its owner.
    NotExpected,
    /// It serves.
    Ready,
    /// It does not, and how long that is so by the stamps of the API.
    Not(Trouble, Duration),
}

/// A Pod that is not ready.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct BrokenPod {
    pub namespace: String,
    pub name: String,
    /// The node that it is bound to; empty: none yet.
    pub node: String,
    /// The reason.
    pub trouble: Trouble,
    /// The beginning.
    pub since: Mono,
}

/// Pods that are not ready.
#[derive(Debug, Default)]
pub struct Pods(BTreeMap<u64, BrokenPod>);

/// Result of a look at all Pods.
#[derive(Debug, Default, Eq, PartialEq)]
pub struct UnreadyPods<'a> {
    /// Those that are a problem, the worst first, then by age.
    pub broken: Vec<&'a BrokenPod>,
    /// The moment at which another one becomes a problem.
    pub due: Option<Mono>,
    /// True if there may be more than are kept.
    pub is_full: bool,
}

impl Pods {
    /// Updates a Pod from the API. Returns whether anything changed.
    pub fn tell(
        &mut self,
        id: &str,
        (namespace, name, node): (&str, &str, &str),
        readiness: Readiness,
        now: Mono,
    ) -> bool {
        let id = id_hash(id);
        let Readiness::Not(trouble, age) = readiness else {
            return self.0.remove(&id).is_some();
        };
        let began = now.elapsed_since_boot().saturating_sub(age.min(AGE_MAX));
        let began = Mono::since_boot(began);
        if let Some(known) = self.0.get_mut(&id) {
            let is_other = known.trouble != trouble || known.node != node;
            known.trouble = trouble;
            node.clone_into(&mut known.node);
            known.since = known.since.min(began);
            return is_other;
        }
        if self.0.len() >= KEPT_MAX {
            return false;
        }
        let troubled = BrokenPod {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            node: node.to_owned(),
            trouble,
            since: began,
        };
        self.0.insert(id, troubled);
        true
    }

    /// A Pod is gone. Returns whether it was one of these.
    pub fn forget(&mut self, id: &str) -> bool {
        self.0.remove(&id_hash(id)).is_some()
    }

    /// Starts a new list: everything will be reported again.
    pub fn reset(&mut self) {
        self.0.clear();
    }

    /// The Pods that are a problem at `now`. Those of a node that is away are not: the node is.
    pub fn look(&self, now: Mono, is_away: impl Fn(&str) -> bool) -> UnreadyPods<'_> {
        let mut look = UnreadyPods {
            is_full: self.0.len() >= KEPT_MAX,
            ..UnreadyPods::default()
        };
        for pod in self.0.values().filter(|pod| !is_away(&pod.node)) {
            let due = pod.since.after(pod.trouble.grace());
            if due <= now {
                look.broken.push(pod);
            } else {
                look.due = Some(look.due.map_or(due, |known| known.min(due)));
            }
        }
        look.broken.order_by_key(|pod| (pod.trouble, pod.since));
        look
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u64) -> Mono {
        Mono::since_boot(Duration::from_secs(second))
    }

    fn tell(pods: &mut Pods, id: &str, trouble: Trouble, age: u64, now: u64) -> bool {
        let readiness = Readiness::Not(trouble, Duration::from_secs(age));
        pods.tell(id, ("demo", id, "pi"), readiness, at(now))
    }

    fn broken(pods: &Pods, now: u64) -> Vec<String> {
        let look = pods.look(at(now), |node| node == "away");
        let names = look.broken.iter().map(|pod| pod.name.clone());
        names.collect()
    }

    #[test]
    fn a_missing_image_is_a_problem_at_once_and_a_slow_start_is_not() {
        let mut pods = Pods::default();
        assert!(tell(&mut pods, "slow", Trouble::Starting, 0, 1000));
        assert!(tell(&mut pods, "web", Trouble::Image, 0, 1000));
        assert_eq!(broken(&pods, 1000), ["web"]);
        assert_eq!(pods.look(at(1000), |_| false).due, Some(at(1300)));
        assert_eq!(broken(&pods, 1300), ["web", "slow"]);
    }

    #[test]
    fn an_hour_unready_before_the_agent_started_counts() {
        let mut pods = Pods::default();
        tell(&mut pods, "web", Trouble::Unready, 3600, 5000);
        assert_eq!(broken(&pods, 5000), ["web"]);
        // A stamp of the future or of 1970 makes nothing of it, and the beginning stays.
        tell(&mut pods, "web", Trouble::Unready, 0, 5001);
        assert_eq!(broken(&pods, 5001), ["web"]);
    }

    #[test]
    fn what_is_ready_done_or_gone_is_no_problem() {
        let mut pods = Pods::default();
        for (id, readiness) in [("a", Readiness::Ready), ("b", Readiness::NotExpected)] {
            tell(&mut pods, id, Trouble::Crash, 0, 1);
            assert!(pods.tell(id, ("demo", id, ""), readiness, at(2)));
            assert!(!pods.tell(id, ("demo", id, ""), readiness, at(3)));
        }
        tell(&mut pods, "c", Trouble::Crash, 0, 1);
        assert!(pods.forget("c") && !pods.forget("c"));
        assert_eq!(broken(&pods, 9), Vec::<String>::new());
    }

    #[test]
    fn pods_of_a_node_that_is_away_are_the_nodes_problem() {
        let mut pods = Pods::default();
        let readiness = Readiness::Not(Trouble::Unready, AGE_MAX);
        pods.tell("x", ("demo", "x", "away"), readiness, at(9));
        assert_eq!(broken(&pods, 9), Vec::<String>::new());
    }

    #[test]
    fn memory_is_bounded_however_many_pods_are_broken() {
        let mut pods = Pods::default();
        for id in 0..10_000 {
            tell(&mut pods, &id.to_string(), Trouble::Crash, 0, 1);
        }
        assert_eq!(pods.0.len(), KEPT_MAX);
        assert!(pods.look(at(1), |_| false).is_full);
    }
}

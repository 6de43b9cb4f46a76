//! Number of Pods per namespace and phase, and of container restarts: a few bytes per Pod.

use std::collections::BTreeMap;

use super::pods::Readiness;
use crate::core::{hash::id_hash, order::OrderExt as _, rates::Points};

/// The phases of Pods, as Kubernetes calls them.
pub const PHASES: [&str; 5] = ["Pending", "Running", "Failed", "Succeeded", "Unknown"];
/// Phases that have a value also where it is zero: what went away must be seen to be gone.
const ALWAYS: usize = 3;
/// Maximum number of distinct Pods: about 25 bytes each. Further ones are not counted here.
const PODS_MAX: usize = 20_000;
/// Namespaces with series of their own: those with the most Pods. The others are one sum.
const NAMESPACES_MAX: usize = 50;
/// The label of that sum: no namespace can be called so.
const OTHERS: &str = "(others)";

/// The Pods of one namespace.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Counts {
    pub namespace: String,
    /// Pods in each of [`PHASES`].
    pub phases: [u32; 5],
    /// Starts of containers that had ended, since the counts were taken the last time.
    pub restarts: u64,
    /// Running Pods that are ready, and those that are not; told by [`Phases::by_namespace`] alone.
    pub running: [u32; 2],
}

/// State of one Pod.
#[derive(Clone, Copy, Debug)]
struct Pod {
    namespace: u16,
    phase: u8,
    readiness: Ready,
    restarts: u32,
}

/// Readiness of a Pod, as far as it is counted.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Ready {
    #[default]
    NotExpected,
    Yes,
    No,
}

/// All Pods.
#[derive(Debug, Default)]
pub struct Phases {
    pods: BTreeMap<u64, Pod>,
    /// From before a gap in what is told, until that is bridged.
    earlier: BTreeMap<u64, Pod>,
    counts: Vec<Counts>,
    is_complete: bool,
}

impl Phases {
    /// Starts a new list: every Pod will be reported again.
    pub fn reset(&mut self) {
        let known = std::mem::take(&mut self.pods);
        if self.is_complete {
            self.earlier = known;
        }
        self.is_complete = false;
        for counts in &mut self.counts {
            counts.phases = [0; 5];
        }
    }

    /// Ends the list: every Pod was reported.
    pub fn complete(&mut self) {
        self.earlier.clear();
        self.is_complete = true;
    }

    /// A Pod is there, or has changed. `id` is unique for ever. Returns how often containers of it
    /// were started again since it was told of before.
    pub fn tell(&mut self, id: &str, namespace: &str, phase: &str, restarts: u32) -> u32 {
        let id = id_hash(id);
        let known = self.pods.remove(&id);
        self.uncount(known);
        let Some(namespace) = self.place(namespace) else {
            return 0;
        };
        if self.pods.len() >= PODS_MAX {
            return 0;
        }
        let phase = PHASES.iter().position(|known| *known == phase);
        let phase = u8::try_from(phase.unwrap_or(PHASES.len() - 1)).unwrap_or_default();
        let pod = Pod {
            namespace,
            phase,
            readiness: known.map(|pod| pod.readiness).unwrap_or_default(),
            restarts,
        };
        let before = known.or_else(|| self.earlier.remove(&id));
        // Of a Pod that is new the starts are new too, but not of one that this agent has not seen
        // before.
        let before = before.map(|pod| pod.restarts);
        let before = before.unwrap_or(if self.is_complete { 0 } else { restarts });
        self.pods.insert(id, pod);
        let news = restarts.saturating_sub(before);
        if let Some((counts, index)) = self.slot(pod) {
            counts.restarts += u64::from(news);
            if let Some(phase) = counts.phases.get_mut(index) {
                *phase += 1;
            }
        }
        news
    }

    /// Notes whether a Pod is ready. Returns whether that is news.
    pub fn mark(&mut self, id: &str, readiness: Readiness) -> bool {
        let Some(pod) = self.pods.get_mut(&id_hash(id)) else {
            return false;
        };
        let ready = match readiness {
            Readiness::NotExpected => Ready::NotExpected,
            Readiness::Ready => Ready::Yes,
            Readiness::Not(..) => Ready::No,
        };
        std::mem::replace(&mut pod.readiness, ready) != ready
    }

    /// Pods that are ready or should be, and how many of them are not, however long; `None` until
    /// the list is complete.
    pub fn expected(&self) -> Option<(usize, usize)> {
        let count = |ready| {
            self.pods
                .values()
                .filter(|pod| pod.readiness == ready)
                .count()
        };
        let (yes, no) = (count(Ready::Yes), count(Ready::No));
        self.is_complete.then_some((yes + no, no))
    }

    /// A Pod is gone.
    pub fn forget(&mut self, id: &str) {
        let known = self.pods.remove(&id_hash(id));
        self.uncount(known);
    }

    /// The counts; what they say of restarts begins anew. `None` until all was told.
    pub fn take(&mut self) -> Option<Vec<Counts>> {
        if !self.is_complete {
            return None;
        }
        let counts = self.counts.clone();
        for counts in &mut self.counts {
            counts.restarts = 0;
        }
        Some(counts)
    }

    /// Pods by phase and restarts in all, by namespace, of what is there now.
    pub fn by_namespace(&self) -> Vec<Counts> {
        let mut counts = self.counts.clone();
        for counts in &mut counts {
            counts.restarts = 0;
        }
        for pod in self.pods.values() {
            if let Some(counts) = counts.get_mut(usize::from(pod.namespace)) {
                counts.restarts += u64::from(pod.restarts);
                let [ready, unready] = &mut counts.running;
                match (PHASES.get(usize::from(pod.phase)), pod.readiness) {
                    (Some(&"Running"), Ready::Yes) => *ready += 1,
                    (Some(&"Running"), Ready::No) => *unready += 1,
                    (_, Ready::NotExpected | Ready::Yes | Ready::No) => {}
                }
            }
        }
        counts.retain(|counts| counts.phases != [0; 5]);
        counts.order_by(|one, other| one.namespace.cmp(&other.namespace));
        counts
    }

    fn uncount(&mut self, pod: Option<Pod>) {
        if let Some((counts, index)) = pod.and_then(|pod| self.slot(pod))
            && let Some(phase) = counts.phases.get_mut(index)
        {
            *phase = phase.saturating_sub(1);
        }
    }

    fn slot(&mut self, pod: Pod) -> Option<(&mut Counts, usize)> {
        let counts = self.counts.get_mut(usize::from(pod.namespace))?;
        Some((counts, usize::from(pod.phase)))
    }

    /// The place of a namespace; a place that is empty is taken over.
    fn place(&mut self, namespace: &str) -> Option<u16> {
        let is_ours = |counts: &Counts| counts.namespace == namespace;
        let is_free = |counts: &Counts| counts.phases == [0; 5] && counts.restarts == 0;
        let found = self.counts.iter().position(is_ours);
        let index = found.or_else(|| self.counts.iter().position(is_free));
        let fresh = Counts {
            namespace: namespace.to_owned(),
            ..Counts::default()
        };
        match index.and_then(|index| self.counts.get_mut(index)) {
            Some(counts) if counts.namespace != namespace => *counts = fresh,
            Some(_) => {}
            None => self.counts.push(fresh),
        }
        u16::try_from(index.unwrap_or(self.counts.len() - 1)).ok()
    }
}

/// The points of the largest namespaces, and of the others together.
pub(super) fn points(counts: &[Counts], points: &mut Points) {
    let pods = |counts: &Counts| {
        counts
            .phases
            .iter()
            .map(|count| u64::from(*count))
            .sum::<u64>()
    };
    let mut order: Vec<_> = counts
        .iter()
        .filter(|counts| pods(counts) + counts.restarts > 0)
        .collect();
    order.order_by_key(|counts| (std::cmp::Reverse(pods(counts)), &counts.namespace));
    let mut others = Counts {
        namespace: OTHERS.to_owned(),
        ..Counts::default()
    };
    for (index, counts) in order.iter().enumerate() {
        if index < NAMESPACES_MAX {
            of_namespace(counts, points);
            continue;
        }
        others.restarts += counts.restarts;
        for (sum, count) in others.phases.iter_mut().zip(counts.phases) {
            *sum = sum.saturating_add(count);
        }
    }
    if order.len() > NAMESPACES_MAX {
        of_namespace(&others, points);
    }
}

fn of_namespace(counts: &Counts, points: &mut Points) {
    let namespace = ("namespace", counts.namespace.as_str());
    for (index, (phase, count)) in PHASES.iter().zip(counts.phases).enumerate() {
        if count > 0 || index < ALWAYS {
            let labels = [namespace, ("phase", phase)];
            points.count("cluster_pods", &labels, Some(u64::from(count)));
        }
    }
    points.count(
        "cluster_container_restarts",
        &[namespace],
        Some(counts.restarts),
    );
}

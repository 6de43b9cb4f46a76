//! Counts for heartbeats, from watches: nodes, ready nodes, Pods.

use litemap::LiteMap;

use super::watch::Event;
use crate::wire::kube::Node;

/// Number of nodes. A cluster has few nodes, so each is remembered.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Nodes {
    ready: LiteMap<String, bool>,
    is_synced: bool,
}

impl Nodes {
    /// Updates from a watch event.
    pub fn update(&mut self, event: &Event<Node>) {
        match event {
            Event::Restarted => *self = Self::default(),
            Event::Added(node) | Event::Modified(node) => {
                self.ready
                    .insert(node.metadata.name.clone(), node.is_ready());
            }
            Event::Deleted(node) => {
                self.ready.remove(&node.metadata.name);
            }
            Event::Synced => self.is_synced = true,
            Event::Failed(_) => {}
        }
    }

    /// All nodes; `None` until the list was complete once.
    pub fn total(&self) -> Option<usize> {
        self.is_synced.then_some(self.ready.len())
    }

    /// The names of those that take no Pods.
    pub fn away(&self) -> impl Iterator<Item = &str> {
        self.ready
            .iter()
            .filter(|(_, is_ready)| !**is_ready)
            .map(|(name, _)| name.as_str())
    }

    /// Those whose kubelet says that they take Pods.
    pub fn ready(&self) -> Option<usize> {
        let ready = self.ready.values().filter(|ready| **ready).count();
        self.is_synced.then_some(ready)
    }
}

/// Number of Pods: one number, for a cluster may have many. The API reports each coming and going
/// once, and a gap begins with `Restarted`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Pods {
    total: usize,
    is_synced: bool,
}

impl Pods {
    /// Updates from a watch event.
    pub fn update<T>(&mut self, event: &Event<T>) {
        match event {
            Event::Restarted => *self = Self::default(),
            Event::Added(_) => self.total += 1,
            Event::Deleted(_) => self.total = self.total.saturating_sub(1),
            Event::Synced => self.is_synced = true,
            Event::Modified(_) | Event::Failed(_) => {}
        }
    }

    /// All Pods; `None` until the list was complete once.
    pub fn total(&self) -> Option<usize> {
        self.is_synced.then_some(self.total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::kube::{HeadOnly, Metadata, NodeCondition, NodeStatus};

    fn node(name: &str, status: &str) -> Node {
        Node {
            metadata: Metadata {
                name: name.to_owned(),
                ..Metadata::default()
            },
            status: NodeStatus {
                conditions: vec![NodeCondition {
                    kind: "Ready".to_owned(),
                    status: status.to_owned(),
                }],
                ..NodeStatus::default()
            },
        }
    }

    #[test]
    fn nodes_are_unknown_until_synced_and_then_follow_the_watch() {
        let mut nodes = Nodes::default();
        nodes.update(&Event::Restarted);
        nodes.update(&Event::Added(node("a", "True")));
        assert_eq!(nodes.total(), None);
        nodes.update(&Event::Synced);
        nodes.update(&Event::Added(node("b", "False")));
        assert_eq!((nodes.total(), nodes.ready()), (Some(2), Some(1)));
        nodes.update(&Event::Modified(node("b", "True")));
        nodes.update(&Event::Deleted(node("a", "True")));
        assert_eq!((nodes.total(), nodes.ready()), (Some(1), Some(1)));
    }

    #[test]
    fn pods_are_counted_anew_after_a_gap() {
        let mut pods = Pods::default();
        for event in [
            Event::Restarted,
            Event::Added(HeadOnly::default()),
            Event::Synced,
        ] {
            pods.update(&event);
        }
        pods.update(&Event::Modified(HeadOnly::default()));
        assert_eq!(pods.total(), Some(1));
        pods.update(&Event::<HeadOnly>::Restarted);
        assert_eq!(pods.total(), None);
        pods.update(&Event::Deleted(HeadOnly::default()));
        pods.update(&Event::<HeadOnly>::Synced);
        assert_eq!(pods.total(), Some(0));
    }
}

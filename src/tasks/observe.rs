//! Introduces the cluster to the board: nodes and pods are watched, so that every heartbeat has real numbers without asking again.
//!
//! Of a pod only its uid is kept, sixteen bytes: ten thousand of them are a few hundred kilobytes.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    rc::Rc,
};

use ring::digest::{SHA256, digest};
use smol::{
    channel::{Receiver, Sender, bounded},
    future,
};

use super::board::Board;
use crate::{
    core::health::Severity,
    error::Error as Told,
    kube::{
        Client, Error,
        watch::{Event, Watch},
    },
    wire::kube::{HeadOnly, Node, Object},
};

/// Nodes that are named in one sentence at most.
const NAMED_MAX: usize = 5;

/// Watches for ever.
pub async fn run(client: Client, board: Rc<Board>) {
    // One place: a second reason to ask for the version while the first still waits is the same reason.
    let (ask, asked) = bounded(1);
    let nodes = async {
        let mut nodes = Nodes {
            known: BTreeMap::new(),
            is_synced: false,
        };
        Watch::whole("/api/v1/nodes")
            .run(&client, |event| nodes.take(event, &board, &ask))
            .await;
    };
    let pods = async {
        let mut pods = Pods {
            known: BTreeSet::new(),
            is_synced: false,
        };
        Watch::heads("/api/v1/pods")
            .run(&client, |event| pods.take(event, &board))
            .await;
    };
    future::zip(future::zip(nodes, pods), versions(&client, &board, &asked)).await;
}

/// Asks for the version of the API server whenever it may have become another one.
async fn versions(client: &Client, board: &Board, asked: &Receiver<()>) {
    while asked.recv().await.is_ok() {
        match client.version().await {
            Ok(version) => board.cluster.borrow_mut().version = Some(version),
            Err(error) => log::debug!("cluster: no version: {error}"),
        }
    }
}

struct Nodes {
    known: BTreeMap<u128, (String, bool)>,
    is_synced: bool,
}

impl Nodes {
    fn take(&mut self, event: Event<Node>, board: &Board, ask: &Sender<()>) {
        match event {
            Event::Restarted => {
                self.known.clear();
                self.is_synced = false;
            }
            Event::Added(node) | Event::Modified(node) => {
                let state = (node.metadata().name.clone(), node.is_ready());
                match self.known.entry(key(&node)) {
                    Entry::Occupied(known) if *known.get() == state => return,
                    Entry::Occupied(mut known) => {
                        known.insert(state);
                    }
                    Entry::Vacant(place) => {
                        place.insert(state);
                    }
                }
            }
            Event::Deleted(node) => {
                self.known.remove(&key(&node));
            }
            Event::Synced => {
                self.is_synced = true;
                // Full: it is going to be asked anyway.
                ask.try_send(()).ok();
            }
            Event::Failed(error) => return failed(&error, board),
        }
        if self.is_synced {
            self.show(board);
        }
    }

    fn show(&self, board: &Board) {
        let ready = self
            .known
            .values()
            .filter(|(_, is_ready)| *is_ready)
            .count();
        {
            let mut view = board.cluster.borrow_mut();
            view.nodes = count(self.known.len());
            view.nodes_ready = count(ready);
            view.is_nodes_synced = true;
        }
        works(board);
        let away: Vec<_> = self
            .known
            .values()
            .filter(|(_, is_ready)| !is_ready)
            .map(|(name, _)| name.as_str())
            .collect();
        if away.is_empty() {
            return board.clear("cluster.node-not-ready");
        }
        let named = away.get(..NAMED_MAX).map_or_else(
            || away.join(", "),
            |some| format!("{} and {} more", some.join(", "), away.len() - NAMED_MAX),
        );
        let fix = format!(
            "kubectl describe node {}",
            away.first().copied().unwrap_or_default()
        );
        board.report(
            "cluster.node-not-ready",
            Severity::Warning,
            format!("not ready in the cluster: {named}"),
            Some(fix),
        );
    }
}

struct Pods {
    known: BTreeSet<u128>,
    is_synced: bool,
}

impl Pods {
    fn take(&mut self, event: Event<HeadOnly>, board: &Board) {
        match event {
            Event::Restarted => {
                self.known.clear();
                self.is_synced = false;
            }
            Event::Added(pod) => {
                self.known.insert(key(&pod));
            }
            Event::Modified(_) => return,
            Event::Deleted(pod) => {
                self.known.remove(&key(&pod));
            }
            Event::Synced => self.is_synced = true,
            Event::Failed(error) => return failed(&error, board),
        }
        if self.is_synced {
            let mut view = board.cluster.borrow_mut();
            view.pods = count(self.known.len());
            view.is_pods_synced = true;
            drop(view);
            works(board);
        }
    }
}

/// The API answered.
fn works(board: &Board) {
    board.cluster.borrow_mut().why = None;
    board.clear("cluster.unreachable");
}

fn failed(error: &Error, board: &Board) {
    let told = Told::from(error);
    let sentence = told.sentence();
    board.cluster.borrow_mut().why = Some(sentence.clone());
    let fix = told
        .fix
        .or_else(|| Some("journalctl -u k3s -n 50; the agent keeps trying".to_owned()));
    board.report(
        "cluster.unreachable",
        Severity::Warning,
        format!("the cluster's API does not answer: {sentence}"),
        fix,
    );
}

/// The uid as a number. It is a UUID; should it ever be something else, its hash does as well.
fn key(object: &impl Object) -> u128 {
    let uid = &object.metadata().uid;
    let hex: String = uid.chars().filter(|c| *c != '-').collect();
    if let (32, Ok(number)) = (hex.len(), u128::from_str_radix(&hex, 16)) {
        return number;
    }
    let hash = digest(&SHA256, uid.as_bytes());
    let first = hash
        .as_ref()
        .first_chunk::<16>()
        .copied()
        .unwrap_or_default();
    u128::from_be_bytes(first)
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        core::time::{Mono, Now, Wall},
        wire::kube::Metadata,
    };

    fn board() -> Board {
        Board::new(|| Now {
            mono: Mono::default(),
            wall: Wall::default(),
        })
    }

    fn pod(uid: &str) -> HeadOnly {
        HeadOnly {
            metadata: Metadata {
                uid: uid.to_owned(),
                ..Metadata::default()
            },
        }
    }

    #[test]
    fn pods_are_counted_once_each_whatever_the_order_of_the_news() {
        let (board, mut pods) = (
            board(),
            Pods {
                known: BTreeSet::new(),
                is_synced: false,
            },
        );
        let (a, b) = ("6f1f8b52-0000-4b0e-9a64-2f0c1f3f9b10", "not a uuid at all");
        pods.take(Event::Restarted, &board);
        for event in [
            Event::Added(pod(a)),
            Event::Added(pod(b)),
            Event::Added(pod(a)),
        ] {
            pods.take(event, &board);
        }
        assert!(
            !board.cluster.borrow().is_pods_synced,
            "half a list is no number"
        );
        pods.take(Event::Synced, &board);
        assert_eq!(board.cluster.borrow().pods, 2);
        for event in [
            Event::Modified(pod(a)),
            Event::Deleted(pod(b)),
            Event::Deleted(pod(b)),
        ] {
            pods.take(event, &board);
        }
        assert_eq!(board.cluster.borrow().pods, 1);
    }

    #[test]
    fn a_failed_watch_is_a_condition_until_the_api_answers() {
        let (board, mut pods) = (
            board(),
            Pods {
                known: BTreeSet::new(),
                is_synced: false,
            },
        );
        pods.take(Event::Failed(Error::BadRequest("x".to_owned())), &board);
        assert!(board.with_conditions(|list| list.get("cluster.unreachable").is_some()));
        pods.take(Event::Synced, &board);
        assert!(board.with_conditions(|list| list.get("cluster.unreachable").is_none()));
    }
}

//! Introduces the cluster to the board: nodes and pods are watched, so that every heartbeat has real numbers without asking again.

use std::rc::Rc;

use smol::{
    channel::{Receiver, bounded},
    future,
};

use super::{board::Board, cluster::Known, last_words::Tell};
use crate::{
    core::health::Severity,
    error::Error as Told,
    kube::{
        Client, Error,
        counts::{Nodes, Pods},
        watch::{Event, Watch},
    },
    wire::kube::{Node, Object as _, Pod},
};

/// Nodes that are named in one sentence at most.
const NAMED_MAX: usize = 5;

/// Watches for ever, keeps in `known` what figures of the cluster are made of, and tells of containers that failed.
pub async fn run(client: Client, board: Rc<Board>, known: Rc<Known>, failures: Tell) {
    // One place: a second reason to ask for the version while the first still waits is the same reason.
    let (ask, asked) = bounded(1);
    let nodes = async {
        let mut nodes = Nodes::default();
        let watch = Watch::whole("/api/v1/nodes");
        let take = |event: Event<Node>| {
            if event == Event::Synced {
                // Full: it is going to be asked anyway.
                ask.try_send(()).ok();
            }
            know_nodes(&known, &event);
            take_nodes(&mut nodes, &event, &board);
        };
        watch.run(&client, take).await;
    };
    let pods = async {
        let mut pods = Pods::default();
        let watch = Watch::whole("/api/v1/pods");
        let take = |event: Event<Pod>| {
            know_pods(&known, &event, &failures);
            take_pods(&mut pods, &event, &board);
        };
        watch.run(&client, take).await;
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

fn take_nodes(nodes: &mut Nodes, event: &Event<Node>, board: &Board) {
    nodes.take_in(event);
    if let Event::Failed(error) = event {
        return failed(error, board);
    }
    let (Some(total), Some(ready)) = (nodes.total(), nodes.ready()) else {
        return;
    };
    let mut view = board.cluster.borrow_mut();
    view.nodes = Some(count(total));
    view.nodes_ready = Some(count(ready));
    drop(view);
    works(board);
    let away: Vec<_> = nodes.away().collect();
    let Some(first) = away.first() else {
        return board.clear("cluster.node-not-ready");
    };
    let named = match away.get(..NAMED_MAX) {
        Some(some) if away.len() > NAMED_MAX => {
            format!("{} and {} more", some.join(", "), away.len() - NAMED_MAX)
        }
        Some(_) | None => away.join(", "),
    };
    let sentence = format!("not ready in the cluster: {named}");
    let fix = format!("kubectl describe node {first}");
    board.report(
        "cluster.node-not-ready",
        Severity::Warning,
        sentence,
        Some(fix),
    );
}

fn know_nodes(known: &Known, event: &Event<Node>) {
    let mut nodes = known.nodes.borrow_mut();
    match event {
        Event::Restarted => nodes.clear(),
        Event::Added(node) | Event::Modified(node) => {
            nodes.insert(node.metadata.name.clone(), node.sampled());
        }
        Event::Deleted(node) => {
            nodes.remove(&node.metadata.name);
        }
        Event::Synced | Event::Failed(_) => {}
    }
}

fn know_pods(known: &Known, event: &Event<Pod>, failures: &Tell) {
    let mut phases = known.phases.borrow_mut();
    match event {
        Event::Restarted => phases.begin_anew(),
        Event::Added(pod) | Event::Modified(pod) => {
            let head = pod.metadata();
            let phase = &pod.status.phase;
            let news = phases.tell(&head.uid, &head.namespace, phase, pod.restarts());
            if news > 0 {
                failures.restarted(pod);
            }
        }
        Event::Deleted(pod) => phases.forget(&pod.metadata.uid),
        Event::Synced => phases.complete(),
        Event::Failed(_) => {}
    }
}

fn take_pods<T>(pods: &mut Pods, event: &Event<T>, board: &Board) {
    pods.take_in(event);
    if let Event::Failed(error) = event {
        return failed(error, board);
    }
    if let Some(total) = pods.total() {
        board.cluster.borrow_mut().pods = Some(count(total));
        works(board);
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
    let sentence = format!("the cluster's API does not answer: {sentence}");
    board.report("cluster.unreachable", Severity::Warning, sentence, fix);
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::time::{Mono, Now, Wall};

    #[test]
    fn a_failed_watch_is_a_condition_until_the_api_answers() {
        let now = || Now {
            mono: Mono::default(),
            wall: Wall::default(),
        };
        let (board, mut pods) = (Board::new(now), Pods::default());
        let failure = Event::Failed(Error::BadRequest("x".to_owned()));
        take_pods::<Pod>(&mut pods, &failure, &board);
        assert!(board.with_conditions(|list| list.get("cluster.unreachable").is_some()));
        take_pods::<Pod>(&mut pods, &Event::Synced, &board);
        assert!(board.with_conditions(|list| list.get("cluster.unreachable").is_none()));
        assert_eq!(board.cluster.borrow().pods, Some(0));
    }
}

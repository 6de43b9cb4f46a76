//! Steps in words, for a plan and for the progress of a change.

use crate::{
    core::{
        format::size,
        k3s::step::{Extent, Step, When},
    },
    wire::keeper::{Act, PlannedStep},
};

/// The steps that somebody wants to know of.
pub(super) fn steps(steps: &[Step]) -> Vec<PlannedStep> {
    let shown = steps.iter().map(|step| {
        let (does, undo) = match step {
            Step::Directory { path } => (
                format!("make the directory {path}"),
                "removed where it is empty".to_owned(),
            ),
            Step::File {
                path,
                content,
                mode,
            } => (
                format!(
                    "write {path} ({}, mode {mode:o})",
                    size(u64::try_from(content.len()).unwrap_or(0))
                ),
                "restored, or removed".to_owned(),
            ),
            Step::Copy {
                path,
                bytes,
                mode,
                before,
                ..
            } => (
                format!("copy {path} ({}, mode {mode:o})", size(*bytes)),
                match before {
                    Some(_) => "the previous one is restored".to_owned(),
                    None => "removed".to_owned(),
                },
            ),
            Step::Link { path, target } => {
                (format!("link {path} to {target}"), "removed".to_owned())
            }
            Step::Made { path } => (
                format!("from now on {path} may be written"),
                "removed with all that is in it".to_owned(),
            ),
            Step::Run { forth, back } => (ran(forth), ran(back)),
            Step::Ready { node, when, .. } => waited(node, *when),
            Step::Move { from, to } => (format!("move {from} to {to}"), "moved back".to_owned()),
            Step::Datastore { path, copy } => (
                format!("copy {path} to {copy}"),
                "put back: what changed since is lost".to_owned(),
            ),
            Step::Cordon { node } => (
                format!("let the node {node} take no new Pods"),
                "it takes Pods again".to_owned(),
            ),
            Step::Drain { drain, .. } if drain.pods.is_empty() => (
                "evict nothing: no Pod needs to go".to_owned(),
                String::new(),
            ),
            Step::Drain { drain, .. } => {
                (format!("evict {}", drain.pods.join(", ")), String::new())
            }
            Step::Gone { path, extent } => (removed(path, *extent), String::new()),
        };
        PlannedStep { does, undo }
    });
    shown.filter(|step| !step.does.is_empty()).collect()
}

fn waited(node: &str, when: When) -> (String, String) {
    let wait = format!("wait until the node {node} is Ready");
    match when {
        When::Forth => (wait, String::new()),
        When::Back => (String::new(), wait),
    }
}

fn removed(path: &str, extent: Extent) -> String {
    match extent {
        Extent::Whole => format!("remove {path}"),
        Extent::Empty => format!("remove {path} if it is empty"),
    }
}

fn ran(words: &[String]) -> String {
    if words.is_empty() {
        return String::new();
    }
    format!("run {}", words.join(" "))
}

/// The undo of a change that was done, in its order.
pub(super) fn undo(acts: &[Act]) -> Vec<PlannedStep> {
    let steps = acts.iter().rev().filter_map(undo_of);
    let steps = steps.map(|does| PlannedStep {
        does,
        undo: String::new(),
    });
    steps.filter(|step| !step.does.is_empty()).collect()
}

fn undo_of(act: &Act) -> Option<String> {
    Some(match act {
        Act::Directory { path } => removed(path, Extent::Empty),
        Act::File { path, before, .. } => match before {
            Some(_) => format!("restore {path}"),
            None => removed(path, Extent::Whole),
        },
        Act::Value { path, before, .. } => format!("set {path} to {}", before.trim()),
        Act::Run { back, .. } => ran(back),
        Act::Copy { path, before, .. } => match before {
            Some(_) => format!("restore {path}"),
            None => removed(path, Extent::Whole),
        },
        Act::Link { path, .. } | Act::Made { path } => removed(path, Extent::Whole),
        Act::Ready { node, is_back, .. } => {
            let when = if *is_back { When::Back } else { When::Forth };
            waited(node, when).1
        }
        Act::Move { from, to } => format!("move {to} to {from}"),
        Act::Datastore { path, copy } => format!("put {copy} back to {path}"),
        Act::Cordon { node } => format!("let the node {node} take Pods again"),
        Act::Drain { .. } | Act::Gone { .. } => return None,
    })
}

/// An act that takes a while, for whoever waits for it.
pub(in super::super) fn act(act: &Act) -> Option<String> {
    Some(match act {
        Act::Copy { path, .. } => format!("copying {path}"),
        Act::Run { forth, .. } if !forth.is_empty() => format!("running {}", forth.join(" ")),
        Act::Ready {
            node,
            is_back: false,
            ..
        } => format!("waiting until the node {node} is Ready"),
        Act::Gone {
            path,
            only_empty: false,
        } => format!("removing {path}"),
        Act::File { path, .. } => format!("writing {path}"),
        Act::Drain { node, .. } => format!("evicting the Pods of {node}"),
        Act::Run { .. }
        | Act::Ready { .. }
        | Act::Gone { .. }
        | Act::Directory { .. }
        | Act::Value { .. }
        | Act::Link { .. }
        | Act::Move { .. }
        | Act::Datastore { .. }
        | Act::Cordon { .. }
        | Act::Made { .. } => return None,
    })
}

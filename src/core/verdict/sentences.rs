//! Sentences of the verdict and of the conditions that decide it. `sentences.txt` is the snapshot
//! of their wording.

use std::time::Duration;

use super::{Stage, roughly};

/// Nothing is wrong.
pub const OK: &str = "everything works";
/// No session yet, and nothing is known to be wrong.
pub const CONNECTING: &str = "connecting to the control plane";
/// Nothing is wrong, and the agent works without a control plane.
pub const OK_ALONE: &str = "everything works; no control plane is configured";
/// The settings name no control plane.
pub const NOT_CONFIGURED: &str = "no control plane is configured";
/// A gateway that cannot be reached. It is delivered, so it has nothing of what was found at the
/// address.
pub const GATEWAY_FAILED: &str = "the gateway that the control plane named cannot be reached; local work goes on and the agent keeps trying";
/// The agent may not ask kubelets.
pub const STATS_UNREAD: &str =
    "no usage data from nodes and Pods: the agent may not query kubelets through the API server";

/// Another agent of the same cluster has the link.
pub fn standing_by(why: &str) -> String {
    format!("standing by: {why}")
}

/// The control plane refuses the token.
pub fn link_refused(why: &str) -> String {
    format!("the control plane refuses the token: {why}; local work goes on")
}

/// The control plane cannot be reached.
pub fn link_down(why: &str) -> String {
    format!("no control plane: {why}; local work goes on and the agent keeps trying")
}

/// Something on this machine keeps the link from being made.
pub fn link_held(why: &str) -> String {
    format!("not linked: {why}")
}

/// No byte came from the API server for this long.
pub fn cluster_silent(silence: Duration) -> String {
    format!("the cluster has not answered for {}", roughly(silence))
}

/// The same as a condition, whose sentence must stay the same while it holds.
pub fn cluster_unreachable(why: &str) -> String {
    format!("the cluster does not answer: {why}")
}

/// The API server answers and refuses the agent.
pub fn cluster_refused(why: &str) -> String {
    format!("the API server rejects the agent's requests: {why}")
}

/// The API server answers, but nodes or Pods cannot be watched.
pub fn cluster_unwatched(why: &str) -> String {
    format!("cannot watch nodes and Pods: {why}")
}

/// Nodes that take no Pods.
pub fn nodes_not_ready(named: &str) -> String {
    format!("nodes not ready: {named}")
}

/// Pods that should serve and do not.
pub fn pods_not_ready(broken: usize, all: usize, pod: &str, why: &str) -> String {
    let are = if broken == 1 { "is" } else { "are" };
    let pods = if all == 1 { "Pod" } else { "Pods" };
    format!("{broken} of {all} {pods} {are} not ready: {pod} {why}")
}

/// Problems that the doctor found on this machine, without those that have a condition of their
/// own.
pub fn machine_problems(count: usize, title: &str, seen: &str) -> String {
    match count {
        1 => format!("the doctor found a problem: {title}: {seen}"),
        count => format!("the doctor found {count} problems; the first: {title}: {seen}"),
    }
}

/// The manifest of the agent is not in the cluster, or only a part of it.
pub fn rights_missing(named: &str) -> String {
    format!("calls from the control plane fail: the cluster lacks {named}")
}

/// The disk of the state directory does not answer.
pub fn store_hung(directory: &str, stage: Stage) -> String {
    let effect = match stage {
        Stage::Starting => "the agent waits for it before it links",
        Stage::Running => {
            "calls that must be recorded in the audit first are refused; the link and plain reads continue"
        }
    };
    format!("the disk of {directory} does not answer: {effect}")
}

/// The disk of other files does not answer.
pub fn files_hung(named: &str, stage: Stage) -> String {
    let effect = match stage {
        Stage::Starting => "the agent waits for it before it links",
        Stage::Running => "the agent continues with what it read before",
    };
    format!("the disk does not answer: {named} cannot be read; {effect}")
}

/// A source gives nothing new to an app.
pub fn app_not_kept(app: &str, why: &str) -> String {
    format!("app {app} is not updated: {why}")
}

/// The folder of apps cannot be used, or something in it.
pub fn app_folder(why: &str) -> String {
    format!("the folder of apps is not deployed: {why}")
}

/// An object of an app that held data was deleted.
pub fn app_lost(app: &str, object: &str) -> String {
    format!("{object} of app {app} was deleted; it held data, so it is not recreated automatically")
}

/// Somebody takes a field of an app back again and again.
pub fn app_field_left(app: &str, (object, field): (&str, &str), by: &str) -> String {
    format!(
        "{by} changed {field} of {object} (app {app}) back three times, so the agent leaves it alone"
    )
}

/// Somebody deletes an object of an app again and again.
pub fn app_object_left(app: &str, object: &str) -> String {
    format!(
        "{object} (app {app}) was deleted again after it was recreated three times, so the agent leaves it deleted"
    )
}

/// The first Secret of an app comes into a datastore that does not encrypt it.
pub const SECRETS_UNENCRYPTED: &str = "k3s stores Secrets unencrypted, so who can read its datastore can read them; one that is set up with secrets-encryption: true in its config.yaml encrypts them";

/// Somebody changed a chart.
pub fn app_chart_changed(app: &str, (object, field): (&str, &str), by: &str) -> String {
    format!(
        "{by} changed {field} of {object} (app {app}); changes to a chart are not reverted automatically"
    )
}

/// An object of an app cannot be put back.
pub fn app_not_put_back(app: &str, object: &str, why: &str) -> String {
    format!("{object} of app {app} was changed or deleted and cannot be reverted: {why}")
}

/// Changes of the objects of apps are not seen.
pub fn apps_not_watched(namespace: &str, why: &str) -> String {
    format!("manual changes to the apps in {namespace} are not reverted: {why}")
}

/// Sentence with the number of further conditions.
pub fn with_count(worst: &str, more: usize) -> String {
    match more {
        0 => worst.to_owned(),
        1 => format!("{worst}; and one more condition"),
        more => format!("{worst}; and {more} more conditions"),
    }
}

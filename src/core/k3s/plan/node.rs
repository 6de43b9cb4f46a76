//! Changes of a node: cordon, drain, and its removal from the cluster.

use super::resume::{no_resume, resume};
use crate::core::k3s::{
    servers::LEASE_LABEL,
    step::{Drain, Step, run},
    texts::Init,
};

/// Parts of a change of this node.
#[derive(Clone, Debug)]
pub struct Node {
    /// Service manager.
    pub init: Init,
    /// Path of this program.
    pub program: String,
    /// Data directory.
    pub data_dir: String,
    /// Name of the node.
    pub node: String,
    /// True if it takes no new Pods now, which an undo then leaves so.
    pub is_cordoned: bool,
    /// Its Pods go; `None`: they stay.
    pub drain: Option<Drain>,
}

/// The steps of a cordon or a drain.
pub fn node(wanted: &Node) -> Vec<Step> {
    let mut steps = resume(wanted.init, &wanted.program, &wanted.data_dir);
    steps.extend(moved(wanted));
    steps.extend(no_resume(wanted.init));
    steps
}

pub(super) fn moved(wanted: &Node) -> Vec<Step> {
    let mut steps = Vec::new();
    if !wanted.is_cordoned {
        steps.push(Step::Cordon {
            node: wanted.node.clone(),
        });
    }
    steps.extend(wanted.drain.iter().map(|drain| Step::Drain {
        node: wanted.node.clone(),
        drain: drain.clone(),
    }));
    steps
}

/// Removal of a worker from its cluster.
#[derive(Clone, Debug)]
pub struct NodeRemoval {
    /// The drain; `None`: its machine does not answer, or its node is gone.
    pub node: Option<Node>,
    /// Service manager.
    pub init: Init,
    /// Path of this program.
    pub program: String,
    /// Data directory of this server.
    pub data_dir: String,
    /// Name of the worker.
    pub worker: String,
    /// Address of the API that forgets it; `None`: that of this machine.
    pub api: Option<String>,
}

/// Steps that remove a worker from its cluster. The node comes first: k3s makes its
/// password again as long as there is one.
pub fn remove_node(wanted: &NodeRemoval) -> Vec<Step> {
    let mut steps = resume(wanted.init, &wanted.program, &wanted.data_dir);
    steps.extend(wanted.node.iter().flat_map(moved));
    let worker = &wanted.worker;
    let mut kubectl = KUBECTL.to_owned();
    if let Some(api) = &wanted.api {
        kubectl.push_str(" --server=");
        kubectl.push_str(api);
    }
    for what in [
        format!("delete node {worker}"),
        format!("-n kube-system delete secret {worker}.node-password.k3s"),
    ] {
        steps.push(run(
            &format!("{kubectl} {what} --ignore-not-found --timeout=60s"),
            "",
        ));
    }
    steps.extend(no_resume(wanted.init));
    steps
}

/// Client of the cluster.
pub(super) const KUBECTL: &str = "/usr/local/bin/k3s kubectl --cache-dir=/run/k3s/kubectl";

/// Command that gives the Lease of an upgrade back, where this node still has it.
pub(super) fn no_lease(node: &str) -> String {
    format!("{KUBECTL} -n kube-system delete lease -l {LEASE_LABEL}={node} --timeout=60s")
}

//! A machine for each check, changed so that it has the problem, and words that the answer must
//! have there.

use super::tree::Tree;

mod k3s;
mod kernel;
mod machine;
mod network;

pub(super) struct Case {
    pub(super) id: &'static str,
    pub(super) tree: Tree,
    pub(super) words: &'static [&'static str],
}

const fn case(id: &'static str, tree: Tree, words: &'static [&'static str]) -> Case {
    Case { id, tree, words }
}

const CONTROLLERS: &str = "sys/fs/cgroup/cgroup.controllers";
const MOUNTS: &str = "proc/self/mountinfo";

pub(super) fn all() -> Vec<Case> {
    [
        kernel::kernel(),
        machine::machine(),
        machine::clock(),
        machine::disk(),
        machine::logs(),
        network::network(),
        network::firewall(),
        network::names(),
        k3s::k3s(),
        k3s::agent(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

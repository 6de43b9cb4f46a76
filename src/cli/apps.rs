//! `apps`: what was deployed here, whether it works, and why not.

mod replay;

use super::table::Command;

/// `apps`.
pub(super) static COMMAND: Command = Command {
    name: "apps",
    about: "Find out why an app does not start",
    below: &[&replay::COMMAND],
    examples: &["pipeops-agent apps replay rollout.jsonl"],
    ..Command::BARE
};

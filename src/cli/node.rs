//! `node`: this node, out of service and back.

use super::{
    args::Args,
    changes, k3s,
    keeper::ROOT,
    output::Output,
    table::{CONFIG, Command, JSON, Opt, SET, Takes},
};
use crate::{
    error::{Exit, Result},
    keeper::k3s::{Node, Wish},
};

/// `node`.
pub(super) static COMMAND: Command = Command {
    name: "node",
    about: "Take this node of k3s out of service",
    options: &[CONFIG, SET, ROOT, JSON],
    below: &[&CORDON, &DRAIN],
    ..Command::BARE
};

static CORDON: Command = Command {
    name: "cordon",
    about: "Let this node take no new Pods",
    options: &[k3s::DRY_RUN],
    notes: "Pods that run go on. `pipeops-agent undo` lets it take Pods again.",
    examples: &["sudo pipeops-agent node cordon"],
    exit: "0 cordoned, 1 it failed and was undone, 2 the command could not run.",
    run: Some(|args, output| change(args, output, "node cordon", Wish::Cordon)),
    ..Command::BARE
};

static DRAIN: Command = Command {
    name: "drain",
    about: "Move the Pods of this node to others, before work on the machine",
    options: &[
        Opt::value("timeout", Takes::Text, "SECONDS", "Time for all Pods to go").default("300"),
        k3s::many("ignore", "CHECK", "Continue in spite of this finding"),
        k3s::DRY_RUN,
    ],
    notes: "PodDisruptionBudgets are respected, and Pods of DaemonSets stay. Volumes of the kind emptyDir are lost, and named.\n\
            A drain that does not end in time is undone. `pipeops-agent undo` lets the node take Pods again.",
    examples: &[
        "sudo pipeops-agent node drain --dry-run",
        "sudo pipeops-agent node drain --timeout 600",
    ],
    exit: "0 drained, 1 it failed and was undone, or --dry-run found a problem, 2 the command could not run.",
    run: Some(drain),
    ..Command::BARE
};

fn drain(args: &Args, output: &mut Output) -> Result<Exit> {
    change(
        args,
        output,
        "node drain",
        Wish::Drain(k3s::within(args, 300)?),
    )
}

fn change(args: &Args, output: &mut Output, command: &str, wish: Wish) -> Result<Exit> {
    let keeper = k3s::keeper(args, command)?;
    let wanted = Node {
        wish,
        ignored: args.all("ignore"),
        program: k3s::program()?,
    };
    if args.has(k3s::DRY_RUN.long) {
        let plan = keeper.k3s_node_plan(&wanted)?;
        k3s::report::plan(&plan, args, output);
        let is_fine = plan.refused.is_empty();
        return Ok(if is_fine { Exit::Fine } else { Exit::Problem });
    }
    let done = keeper.k3s_node(&wanted, &changes::who())?;
    Ok(k3s::tell(&done, args, output))
}

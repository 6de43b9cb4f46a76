//! `node`: cordons, drains and removes a node.

use super::{
    args::Args,
    ask, changes, k3s,
    keeper::ROOT,
    output::Output,
    table::{Argument, CONFIG, Command, JSON, Need, Opt, SET, Takes},
};
use crate::{
    error::{Exit, Result},
    keeper::k3s::{Leave, Maintenance, Node},
};

/// `node`.
pub(super) static COMMAND: Command = Command {
    name: "node",
    about: "Take a node of k3s out of service",
    options: &[CONFIG, SET, ROOT, JSON],
    below: &[&CORDON, &DRAIN, &LEAVE],
    ..Command::BARE
};

/// Seconds to wait until all Pods have moved.
const TIMEOUT: Opt = Opt::value(
    "timeout",
    Takes::Text,
    "SECONDS",
    "Seconds to wait until all Pods have moved",
)
.default("300");

static CORDON: Command = Command {
    name: "cordon",
    about: "Mark this node unschedulable: no new Pods start on it",
    options: &[k3s::DRY_RUN],
    notes: "Running Pods continue. `pipeops-agent undo` makes the node schedulable again.",
    examples: &["sudo pipeops-agent node cordon"],
    exit: "0 cordoned, 1 it failed and was undone, 2 the command could not run.",
    run: Some(|args, output| change(args, output, "node cordon", Maintenance::Cordon)),
    ..Command::BARE
};

static DRAIN: Command = Command {
    name: "drain",
    about: "Move the Pods of this node to other nodes, before maintenance",
    options: &[TIMEOUT, k3s::IGNORE, k3s::DRY_RUN],
    notes: "PodDisruptionBudgets are respected, and Pods of DaemonSets stay. emptyDir volumes are lost, and listed first.\n\
            A drain that times out is undone. `pipeops-agent undo` makes the node schedulable again.",
    examples: &[
        "sudo pipeops-agent node drain --dry-run",
        "sudo pipeops-agent node drain --timeout 600",
    ],
    exit: "0 drained, 1 it failed and was undone, or --dry-run found a problem, 2 the command could not run.",
    run: Some(drain),
    ..Command::BARE
};

static LEAVE: Command = Command {
    name: "leave",
    about: "Remove a node from its cluster: a worker on its server and then on itself, a server on itself",
    arguments: &[Argument {
        name: "NAME",
        takes: Takes::Text,
        need: Need::Maybe,
        help: "Node to remove, on a server: a worker, or a server that is gone for good",
    }],
    options: &[TIMEOUT, k3s::IGNORE, k3s::YES, k3s::DRY_RUN],
    notes: "To remove a worker, run `node leave NAME` on a server, which moves its Pods and removes its node and password; then `node leave` on the worker, which removes k3s.\n\
            To remove one of several servers, run `node leave` on it. To remove a server that is gone for good, run `node leave NAME` on another server.\n\
            The data of local volumes stays on the node, and is named with its bytes.",
    examples: &[
        "sudo pipeops-agent node leave pi2",
        "sudo pipeops-agent node leave --dry-run",
    ],
    exit: "0 the node has left, 1 cancelled, it failed, or --dry-run found a problem, 2 the command could not run.",
    run: Some(leave),
    ..Command::BARE
};

fn leave(args: &Args, output: &mut Output) -> Result<Exit> {
    let keeper = k3s::keeper(args, "node leave")?;
    let wanted = Leave {
        worker: args.text("NAME").map(str::to_owned),
        within: k3s::within(args, 300)?,
        ignored: args.all("ignore"),
        program: k3s::program()?,
    };
    let plan = keeper.k3s_leave_plan(&wanted)?;
    let is_fine = plan.refused.is_empty();
    if args.has(k3s::DRY_RUN.long) {
        k3s::report::plan(&plan, args, output);
        return Ok(if is_fine { Exit::Fine } else { Exit::Problem });
    }
    // JSON has one answer only: the outcome.
    if is_fine && !args.has("yes") && !args.has(JSON.long) {
        k3s::report::plan(&plan, args, output);
    }
    if is_fine && !ask::is_permitted(args, &format!("{}?", plan.does))? {
        return Ok(k3s::print_declined("Nothing was changed.", args, output));
    }
    let done = keeper.k3s_leave(&wanted, &changes::who())?;
    Ok(k3s::print_outcome(&done, args, output))
}

fn drain(args: &Args, output: &mut Output) -> Result<Exit> {
    change(
        args,
        output,
        "node drain",
        Maintenance::Drain(k3s::within(args, 300)?),
    )
}

fn change(
    args: &Args,
    output: &mut Output,
    command: &str,
    maintenance: Maintenance,
) -> Result<Exit> {
    let keeper = k3s::keeper(args, command)?;
    let wanted = Node {
        maintenance,
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
    Ok(k3s::print_outcome(&done, args, output))
}

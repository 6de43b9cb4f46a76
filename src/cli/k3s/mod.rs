//! `k3s`: Kubernetes on this machine. Root does it in this very process, under the lock of the root
//! helper.

mod adopt;
mod backup;
mod connect;
mod copies;
mod install;
mod join;
mod kubeconfig;
mod release;
pub(super) mod report;
mod restore;
mod token;
mod upgrade;
mod watch;

use std::{path::Path, time::Duration};

use nix::unistd::geteuid;
use serde_json::json;

use super::{
    args::Args,
    ask,
    changes::{self, Executor},
    keeper::ROOT,
    load,
    output::{Output, Tone, printable, size},
    table::{CONFIG, Command, JSON, Opt, SET, Takes},
};
use crate::{
    error::{Error, Exit, Result},
    keeper::{Keeper, k3s::Uninstall},
    wire::keeper::Done,
};

/// Shows the plan without carrying it out.
pub(super) const DRY_RUN: Opt = Opt::flag(
    "dry-run",
    "Show what would be done, and how to undo it, without doing it",
);

/// Findings that do not stop a change.
pub(super) const IGNORE: Opt = Opt::many("ignore", "CHECK", "Continue despite this finding");

/// Skips the confirmation.
pub(super) const YES: Opt = Opt::flag("yes", "Skip the confirmation").short('y');

/// Seconds to wait until the node is Ready: a Raspberry Pi 3 with a card takes minutes for its
/// first start, and imports images before.
const TIMEOUT: Opt = Opt::value(
    "timeout",
    Takes::Text,
    "SECONDS",
    "Seconds to wait until the node is Ready",
)
.default("900");

/// `k3s`.
pub(super) static COMMAND: Command = Command {
    name: "k3s",
    about: "Install, join, adopt, inspect, watch, upgrade, back up, restore and remove k3s",
    options: &[CONFIG, SET, ROOT, JSON],
    below: &[
        &install::COMMAND,
        &join::COMMAND,
        &token::COMMAND,
        &adopt::COMMAND,
        &STATUS,
        &upgrade::COMMAND,
        &backup::COMMAND,
        &restore::COMMAND,
        &connect::COMMAND,
        &watch::COMMAND,
        &kubeconfig::COMMAND,
        &UNINSTALL,
        &RESUME,
    ],
    ..Command::BARE
};

static STATUS: Command = Command {
    name: "status",
    about: "Show version, node, datastore, certificates and backups of k3s",
    options: &[Opt::flag(
        "dry-run",
        "Change nothing, as this command never does",
    )],
    examples: &["sudo pipeops-agent k3s status"],
    exit: "0 the node is Ready or there is no k3s, 1 it is not Ready, 2 the command could not run.",
    run: Some(status),
    ..Command::BARE
};

static UNINSTALL: Command = Command {
    name: "uninstall",
    about: "Remove k3s and everything it created",
    options: &[
        Opt::flag("keep-data", "Keep the data directory and the settings"),
        Opt::flag(
            "found",
            "Remove it although pipeops-agent did not install it",
        ),
        YES,
        DRY_RUN,
    ],
    notes: "Lists what will be removed, then asks. Data on other disks stays, and so does what was there before k3s.\n\
            It may be repeated until nothing is left. To remove a k3s that pipeops-agent did not install, add --found.",
    examples: &[
        "sudo pipeops-agent k3s uninstall --dry-run",
        "sudo pipeops-agent k3s uninstall --keep-data",
    ],
    exit: "0 removed, 1 cancelled or something could not be removed, 2 the command could not run.",
    run: Some(uninstall),
    ..Command::BARE
};

static RESUME: Command = Command {
    name: "resume",
    about: "Finish or undo an interrupted change of k3s",
    notes: "A change is interrupted by Ctrl-C, a lost SSH session or a power cut. The next boot finishes it, too.",
    examples: &["sudo pipeops-agent k3s resume"],
    exit: "0 nothing is unfinished, or it was finished, 1 it was undone or failed, 2 the command could not run.",
    run: Some(resume),
    ..Command::BARE
};

/// The keeper in this process, for root; `command` names for others what needs root.
pub(super) fn keeper(args: &Args, command: &str) -> Result<Keeper> {
    if !geteuid().is_root() {
        return Err(Error::new(format!("{command} needs root"))
            .fix(format!("sudo pipeops-agent {command}")));
    }
    let loaded = load(args);
    let group = connect::user(&loaded).map(|user| user.gid.as_raw());
    match Executor::of(&loaded, args)? {
        Executor::Own(keeper) if args.has(JSON.long) => Ok(keeper.shown_to(group)),
        Executor::Own(keeper) => Ok(keeper.shown_to(group).watched(print_progress)),
        Executor::Helper(_) => Err(Error::new(format!("{command} needs root"))),
    }
}

/// A line of progress, on standard error: standard output is for the result.
fn print_progress(text: &str) {
    Output::of_process().note(&printable(text));
}

/// Seconds of the option `timeout`.
pub(super) fn within(args: &Args, default: u64) -> Result<Duration> {
    let seconds = args.read(TIMEOUT.long, |text| {
        let seconds = text
            .parse::<u64>()
            .ok()
            .filter(|seconds| (10..=86_400).contains(seconds));
        seconds.ok_or_else(|| "it is a number of seconds, 10 to 86400".to_owned())
    })?;
    Ok(Duration::from_secs(seconds.unwrap_or(default)))
}

/// The path of this program, which a service calls after a power cut.
pub(super) fn program() -> Result<String> {
    let path = std::env::current_exe()
        .map_err(|error| Error::new("cannot find the path of this program").because(&error))?;
    Ok(path.display().to_string())
}

/// Prints the outcome of a change, and returns the exit code for it.
pub(super) fn print_outcome(done: &Done, args: &Args, output: &mut Output) -> Exit {
    if args.has(JSON.long) {
        output.json(&json!(done));
    } else {
        changes::print(done, output);
    }
    if done.outcome == "done" {
        Exit::Fine
    } else {
        Exit::Problem
    }
}

/// Says that a change was not permitted, and returns the exit code for it.
pub(super) fn print_declined(sentence: &str, args: &Args, output: &mut Output) -> Exit {
    if args.has(JSON.long) {
        output.json(&json!({ "outcome": "declined" }));
    } else {
        output.line(&output.toned(Tone::Faint, sentence));
    }
    Exit::Problem
}

fn status(args: &Args, output: &mut Output) -> Result<Exit> {
    let keeper = keeper(args, "k3s status")?;
    // Settings that are wrong are told by the watch.
    let usual = backup::usual(args).ok().map(|usual| usual.to);
    let mut status = keeper.k3s_status(usual.as_ref())?;
    status.copies = copies::of(args);
    let is_wrong = status.managed != "none" && !status.is_ready;
    if args.has(JSON.long) {
        output.json(&json!(status));
    } else {
        report::status(&status, output);
    }
    Ok(if is_wrong { Exit::Problem } else { Exit::Fine })
}

fn uninstall(args: &Args, output: &mut Output) -> Result<Exit> {
    let keeper = keeper(args, "k3s uninstall")?;
    let wanted = Uninstall {
        keeps_data: args.has("keep-data"),
        takes_found: args.has("found"),
        program: program()?,
    };
    let plan = keeper.k3s_uninstall_plan(&wanted)?;
    if args.has(DRY_RUN.long) {
        report::plan(&plan, args, output);
        return Ok(Exit::Fine);
    }
    // JSON has one answer only: the outcome.
    if !args.has("yes") && !args.has(JSON.long) {
        report::plan(&plan, args, output);
    }
    let question = format!("{}: {} for good?", plan.does, size(plan.bytes));
    if !ask::is_permitted(args, &question)? {
        return Ok(print_declined("Nothing was removed.", args, output));
    }
    let done = keeper.k3s_uninstall(&wanted, &changes::who())?;
    Ok(print_outcome(&done, args, output))
}

fn resume(args: &Args, output: &mut Output) -> Result<Exit> {
    let all = keeper(args, "k3s resume")?.k3s_resume()?;
    if args.has(JSON.long) {
        output.json(&json!({ "changes": all }));
    } else if all.is_empty() {
        output.line("No change of k3s is unfinished.");
    } else {
        for done in &all {
            changes::print(done, output);
        }
    }
    let is_fine = all.iter().all(|done| done.outcome == "done");
    Ok(if is_fine { Exit::Fine } else { Exit::Problem })
}

/// A file that this command line names, as text of at most 64 KiB.
fn text_of(path: &Path) -> Result<String> {
    let content = crate::files::read(path, 64 * 1024)?;
    String::from_utf8(content)
        .map_err(|error| Error::new(format!("{} is not text", path.display())).because(&error))
}

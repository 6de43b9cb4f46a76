//! `doctor --fix`: shows the repairs and applies them after confirmation.

use std::io::{BufRead, IsTerminal};

use serde_json::json;

use super::{
    args::Args,
    changes::{self, Executor},
    load,
    output::{Output, Tone, columns, printable},
    table::{Argument, JSON, Need, Opt, Takes},
};
use crate::{
    error::{Error, Exit, Result},
    wire::keeper::Plan,
};

/// `--fix` of the doctor.
pub(super) const FIX: Opt = Opt::flag(
    "fix",
    "Apply safe repairs: shows each repair and its undo, and asks for confirmation",
);
/// Skips the question.
pub(super) const YES: Opt = Opt::flag("yes", "Skip the confirmation").short('y');
/// Check to repair.
pub(super) const CHECK: Argument = Argument {
    name: "CHECK",
    takes: Takes::Text,
    need: Need::Maybe,
    help: "Run only this check; with --fix, repair only this",
};

/// Repairs these checks, one after the other.
pub(super) fn fix(args: &Args, output: &mut Output, checks: &[String]) -> Result<Exit> {
    let loaded = load(args);
    let executor = Executor::of(&loaded, args)?;
    let is_json = args.has(JSON.long);
    let mut plans = Vec::new();
    let mut failed: Vec<(Error, Vec<&str>)> = Vec::new();
    for check in checks {
        match executor.plan(check) {
            Ok(plan) if plan.is_needed => plans.push(plan),
            Ok(plan) if is_json => plans.push(plan),
            Ok(plan) => output.line(&format!("{check}: {}", printable(&plan.does))),
            // One that does not fit this machine holds up no other, unless it is the only one.
            Err(error) if checks.len() > 1 && !is_json => {
                match failed.iter_mut().find(|(known, _)| *known == error) {
                    Some((_, checks)) => checks.push(check),
                    None => failed.push((error, vec![check])),
                }
            }
            Err(error) => return Err(error),
        }
    }
    // Whatever concerns all of them is printed once.
    match failed.as_slice() {
        [(error, same)] if same.len() == checks.len() => return Err(error.clone()),
        _ => {}
    }
    let mut is_fine = failed.is_empty();
    for (error, checks) in failed {
        output.warning(&error.within(checks.join(", ")));
    }
    if is_json && !args.has(YES.long) {
        output.json(&json!({ "plans": plans }));
        return Ok(Exit::Fine);
    }
    if plans.is_empty() && checks.is_empty() && !is_json {
        output.line("There is nothing that can be repaired automatically.");
    }
    let mut all = Vec::new();
    for plan in plans.into_iter().filter(|plan| plan.is_needed) {
        if !is_json {
            show(&plan, output);
            if !args.has(YES.long) && !agreed(output)? {
                output.line("skipped\n");
                continue;
            }
        }
        let done = executor.fix(&plan.check)?;
        is_fine &= done.outcome == "done";
        if is_json {
            all.push(done);
        } else {
            changes::print(&done, output);
        }
    }
    if is_json {
        output.json(&json!({ "done": all }));
    }
    Ok(if is_fine { Exit::Fine } else { Exit::Problem })
}

fn show(plan: &Plan, output: &mut Output) {
    output.line(&output.toned(Tone::Strong, &printable(&plan.check)));
    let rows = [
        ("does", Some(&plan.does)),
        ("not touched", Some(&plan.leaves)),
        ("undo", Some(&plan.undo)),
        ("remains", plan.remains.as_ref()),
    ];
    let rows = rows
        .into_iter()
        .filter_map(|(name, text)| Some(vec![format!("  {name}"), printable(text?)]));
    for line in columns(&rows.collect::<Vec<_>>()) {
        output.line(&line);
    }
}

/// Asks on the terminal; without one the answer is no.
fn agreed(output: &mut Output) -> Result<bool> {
    let terminal = std::io::stdin();
    if !terminal.is_terminal() {
        return Err(Error::new("cannot ask for confirmation")
            .why("standard input is not a terminal")
            .fix("add --yes"));
    }
    output.line("Apply this repair? [y/N]");
    let mut answer = String::new();
    let read = terminal.lock().read_line(&mut answer);
    Ok(read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes"))
}

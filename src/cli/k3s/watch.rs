//! `k3s watch`: the watch over k3s, which repairs what is known to break.

use super::{
    super::{
        args::Args,
        changes, load,
        output::{Output, printable},
        table::{Command, Opt},
    },
    DRY_RUN, backup, connect, keeper, print_outcome, program, report,
};
use crate::{
    error::{Error, Exit, Result},
    keeper::{Keeper, k3s::WatchOptions},
    net::tls::build_date,
};

/// `k3s watch`.
pub(super) static COMMAND: Command = Command {
    name: "watch",
    about: "Monitor k3s, and repair known faults",
    options: &[
        DRY_RUN,
        Opt::flag(
            "now",
            "Check once, and repair what is due (used by its timer)",
        ),
    ],
    notes: "A timer checks every minute (with OpenRC, a service). docs/faults.md lists the faults, their repairs, and when nothing is repaired.\n\
            A k3s that somebody stopped stays stopped. Without repair in keeper.allow, faults are reported but not repaired.\n\
            `k3s install`, `join` and `adopt` set it up; this command does so for a k3s adopted by an earlier version. `pipeops-agent changes` lists every repair.",
    examples: &[
        "sudo pipeops-agent k3s watch --dry-run",
        "sudo pipeops-agent k3s watch",
    ],
    exit: "0 it is watched, 1 a step failed and was undone, or a repair failed, 2 the command could not run.",
    run: Some(watch),
    ..Command::BARE
};

fn watch(args: &Args, output: &mut Output) -> Result<Exit> {
    let keeper = keeper(args, "k3s watch")?;
    if args.has("now") {
        if args.has(DRY_RUN.long) {
            return Err(Error::new("--dry-run does not go with --now")
                .why("what a check repairs depends on what it finds")
                .fix("sudo pipeops-agent k3s status shows the faults that were found last"));
        }
        return look(&keeper, args, output);
    }
    if args.has(DRY_RUN.long) {
        report::plan(&keeper.k3s_watch_plan(&program()?)?, args, output);
        return Ok(Exit::Fine);
    }
    let done = keeper.k3s_watch(&program()?, &changes::who())?;
    Ok(print_outcome(&done, args, output))
}

fn look(keeper: &Keeper, args: &Args, output: &mut Output) -> Result<Exit> {
    let loaded = load(args);
    let allow = loaded.keeper().allow;
    let wanted = WatchOptions {
        repairs: allow.repair,
        backups: allow
            .backup
            .then(|| (loaded.k3s().backup_every, backup::by(&loaded))),
        window: loaded.k3s().window,
        group: connect::user(&loaded).map(|user| user.gid.as_raw()),
        built: build_date(),
    };
    Ok(match keeper.k3s_watch_once(&wanted)? {
        None => Exit::Fine,
        Some(repaired) => {
            output.line(&printable(&repaired.seen));
            print_outcome(&repaired.done, args, output)
        }
    })
}

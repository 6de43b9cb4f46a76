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
    config::Loaded,
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
    let wanted = options(&load(args));
    Ok(match keeper.k3s_watch_once(&wanted)? {
        None => Exit::Fine,
        Some(repaired) => {
            output.line(&printable(&repaired.seen));
            print_outcome(&repaired.done, args, output)
        }
    })
}

/// Options of a run by the settings. While one of them is in doubt nothing is repaired, and the
/// backup by schedule fails with the problem, so that a person hears of it.
fn options(loaded: &Loaded) -> WatchOptions {
    let (k3s, allow) = (loaded.k3s(), loaded.keeper().allow);
    let doubt = loaded.doubt("keeper");
    let backup = || doubt.map_or_else(|| backup::by(loaded), |problem| Err(problem.clone()));
    WatchOptions {
        repairs: allow.repair && loaded.doubt("k3s").is_none(),
        backups: (allow.backup || doubt.is_some()).then(|| (k3s.backup_every, backup())),
        window: k3s.window,
        group: connect::user(loaded).map(|user| user.gid.as_raw()),
        built: build_date(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{self, Sources};

    #[test]
    fn settings_in_doubt_repair_nothing_and_are_told_by_the_backup() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.toml");
        let options = |text: &str| {
            crate::files::replace(&file, text.as_bytes(), 0o644).unwrap();
            options(&config::load(&Sources::of_process(
                Some(file.clone()),
                Vec::new(),
            )))
        };
        for (text, repairs, backs_up) in [
            ("", true, true),
            ("[keeper]\nallow = [\"backup\"]", false, true),
            (
                "[keeper]\nallow = []\n[k3s]\nbackup_recipient = \"x\"",
                false,
                false,
            ),
        ] {
            let found = options(text);
            assert_eq!(
                (found.repairs, found.backups.is_some()),
                (repairs, backs_up),
                "{text}"
            );
        }
        for (text, word) in [
            ("[keeper]\nallow = [\"backups\"]", "keeper.allow"),
            ("[keeper]\nallow = \"none\"", "keeper.allow"),
            ("[k3s]\nbackup_recipient = \"x\"", "k3s.backup_recipient"),
            ("[k3s]\nwindow = \"noon\"", "k3s.window"),
            ("[k3s\n", "config.toml"),
        ] {
            let found = options(text);
            assert!(!found.repairs, "{text}");
            let (_, backup) = found.backups.unwrap();
            let told = backup.unwrap_err().sentence();
            assert!(told.contains(word), "{text}: {told}");
        }
    }
}

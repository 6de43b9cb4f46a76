//! `down`: stops the agent of this machine and, with `--purge`, removes everything that it made.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::{
    args::Args,
    ask, install, load,
    output::Output,
    service,
    socket::{self, Ask},
    table::{CONFIG, Command, JSON, Opt},
};
use crate::{
    config::{DEFAULT_FILE, Loaded},
    core::k3s::pins::PINS_MAX,
    error::{Error, Exit, Result},
    keeper::Keeper,
    wire::api::STATUS_PATH,
};

mod purge;

use purge::{Purge, PurgeScope};

/// `down`.
pub(super) static COMMAND: Command = Command {
    name: "down",
    about: "Stop the agent and disable its service",
    options: &[
        Opt::flag("purge", "Also remove its settings, token and data"),
        Opt::flag("yes", "Skip the confirmation").short('y'),
        CONFIG,
        JSON,
    ],
    notes: "k3s and its workloads are not touched. --purge ends the watch over k3s and its backups by schedule.\n\
            The agent's data stays, so that it keeps its identity after pipeops-agent up.\n\
            --purge removes what the agent created and nothing else, and says what it left and why. It may be repeated.",
    examples: &["sudo pipeops-agent down", "sudo pipeops-agent down --purge"],
    exit: "0 success, 1 cancelled or something could not be removed, 2 the command could not run.",
    run: Some(down),
    ..Command::BARE
};

fn down(args: &Args, output: &mut Output) -> Result<Exit> {
    let (file, loaded) = install::now(args);
    install::check_may_write(&file, "down")?;
    let is_usual = file == Path::new(DEFAULT_FILE);
    let keeper = Keeper::new(Path::new("/"), &loaded.keeper().state_dir);
    if is_usual {
        keeper.check_no_update_runs()?;
    }
    let purge = if args.has("purge") {
        Some(Purge::find(&subject(&file, &loaded)))
    } else {
        None
    };
    let found = purge.as_ref().map(Purge::paths).unwrap_or_default();
    if !found.is_empty() {
        let question = format!("Remove {} for good?", shown(&found));
        if !ask::is_permitted(args, &question)? {
            output.line("Nothing was removed, and nothing was stopped.");
            return Ok(Exit::Problem);
        }
    }
    let manager = service::manager(Path::new("/")).filter(|_| is_usual);
    if let Some(manager) = manager {
        manager.stop(Path::new("/"))?;
    }
    check_is_stopped(args)?;
    if purge.is_some() && is_usual {
        service::stop_for_k3s(Path::new("/"));
        unpin(&keeper);
    }
    let done = purge.map(Purge::remove).unwrap_or_default();
    let is_whole = done.failed.is_empty();
    let exit = if is_whole { Exit::Fine } else { Exit::Problem };
    if args.has("json") {
        let left = done.left.iter().chain(&done.failed);
        let left: Vec<_> = left
            .map(|left| json!({ "path": left.path, "why": left.why }))
            .collect();
        output.json(&json!({
            "stopped": manager.is_some(), "removed": done.removed, "left": left,
        }));
        return Ok(exit);
    }
    output.line(match manager {
        Some(_) => {
            "The agent is stopped and will not start at boot. k3s and its workloads keep running."
        }
        None => "No agent is running, and no service is installed.",
    });
    if !done.removed.is_empty() {
        output.line(&format!("Removed: {}.", shown(&done.removed)));
    } else if args.has("purge") {
        output.line("There is nothing to remove.");
    }
    for left in &done.left {
        output.line(&format!("Left: {}: {}.", left.path.display(), left.why));
    }
    for failed in &done.failed {
        let error = Error::new(format!("cannot remove {}", failed.path.display()));
        output.error(
            &error
                .why(failed.why.clone())
                .fix("remove it manually, or try again"),
        );
    }
    Ok(exit)
}

/// Takes our pins off the images in containerd. Where k3s does not run they stay, and keep images.
fn unpin(keeper: &Keeper) {
    for _ in 0..PINS_MAX {
        if !keeper.k3s_pin(&[]).is_ok_and(|pinned| pinned.left > 0) {
            return;
        }
    }
}

/// Places that `--purge` looks at.
fn subject(file: &Path, loaded: &Loaded) -> PurgeScope {
    let path = |key: &str| {
        let entry = loaded.entry(key)?;
        Some(PathBuf::from(entry.value.to_string()))
    };
    PurgeScope {
        file: file.to_owned(),
        is_usual: file == Path::new(DEFAULT_FILE),
        token: path("pipeops.token_file"),
        state: loaded.state_dir().to_owned(),
        socket: loaded.socket().to_owned(),
        keeper: loaded.keeper().state_dir,
        root: PathBuf::from("/"),
    }
}

fn check_is_stopped(args: &Args) -> Result<()> {
    let sockets = socket::candidates_of(&load(args));
    match socket::ask(&sockets, &Ask::Get(STATUS_PATH)) {
        Ok(_) => Err(Error::new("an agent still runs, so nothing was removed")
            .why("it was not started by a service")
            .fix("stop it where it was started, with Ctrl-C or kill, then try again")),
        Err(silence) if silence.is_down => Ok(()),
        // It is not known to be stopped.
        Err(silence) => Err(silence.error.fix("sudo pipeops-agent down")),
    }
}

fn shown(paths: &[PathBuf]) -> String {
    let paths: Vec<_> = paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    paths.join(", ")
}

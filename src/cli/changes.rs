//! `changes` and `undo`: lists the changes on this machine and reverts them.
//!
//! Root reverts a change in this process, everyone else through the root helper. Both use the same
//! code under one lock.

use std::path::{Path, PathBuf};

use nix::unistd::geteuid;
use serde_json::json;

use super::{
    args::Args,
    error_json,
    keeper::ROOT,
    load,
    output::{Output, Tone, ago, moment, printable},
    socket::{self, Ask},
    table::{Argument, CONFIG, Command, JSON, Need, SET, SOCKET, Takes},
};
use crate::{
    config::Loaded,
    core::order::OrderExt as _,
    error::{Error, Exit, Result},
    host::clock,
    keeper::{self, Keeper},
    tasks,
    wire::{
        api::{CHANGES_PATH, ChangeList, ChangeReport},
        keeper::{Done, Plan},
    },
};

pub(super) static CHANGES: Command = Command {
    name: "changes",
    about: "Show changes made to this machine, by whom, and how to undo them",
    options: &[SOCKET, ROOT, CONFIG, SET, JSON],
    examples: &[
        "sudo pipeops-agent changes",
        "sudo pipeops-agent changes --json",
    ],
    run: Some(changes),
    ..Command::BARE
};

pub(super) static UNDO: Command = Command {
    name: "undo",
    about: "Undo a change",
    options: &[SOCKET, ROOT, CONFIG, SET, JSON],
    arguments: &[Argument {
        name: "CHANGE",
        takes: Takes::Text,
        need: Need::One,
        help: "Id of the change, as shown by `pipeops-agent changes`",
    }],
    notes: "Restores exactly what was there before. Files that were changed since are left alone.",
    examples: &["sudo pipeops-agent undo limits-inotify-1"],
    exit: "0 undone, 1 could not be undone, 2 the command could not run.",
    run: Some(undo),
    ..Command::BARE
};

/// Executor of a change.
pub(super) enum Executor {
    /// This process, which is root.
    Own(Keeper),
    /// The root helper behind this socket.
    Helper(PathBuf),
}

impl Executor {
    /// This process for root, the root helper for everybody else.
    pub(super) fn of(loaded: &Loaded, args: &Args) -> Result<Self> {
        let settings = loaded.keeper();
        if !geteuid().is_root() {
            return Ok(Self::Helper(settings.socket));
        }
        keeper::trust_all(loaded.files())?;
        let root = args.path(ROOT.long);
        let root = root.as_deref().unwrap_or_else(|| Path::new("/"));
        Ok(Self::Own(Keeper::new(root, &settings.state_dir)))
    }

    /// Plan of a fix, without executing it.
    pub(super) fn plan(&self, check: &str) -> Result<Plan> {
        match self {
            Self::Own(keeper) => keeper.plan(check),
            Self::Helper(socket) => {
                smol::block_on(tasks::machine::keeper::Keeper::at(socket).plan(check))
            }
        }
    }

    /// Executes a fix.
    pub(super) fn fix(&self, check: &str) -> Result<Done> {
        match self {
            Self::Own(keeper) => keeper.fix(check, &who()),
            Self::Helper(socket) => {
                smol::block_on(tasks::machine::keeper::Keeper::at(socket).fix(check))
            }
        }
    }

    fn undo(&self, change: &str) -> Result<Done> {
        match self {
            Self::Own(keeper) => keeper.undo(change, &who()),
            Self::Helper(socket) => {
                smol::block_on(tasks::machine::keeper::Keeper::at(socket).undo(change))
            }
        }
    }

    fn changes(&self) -> Result<Vec<ChangeReport>> {
        match self {
            Self::Own(keeper) => keeper.changes(),
            Self::Helper(socket) => {
                smol::block_on(tasks::machine::keeper::Keeper::at(socket).changes())
            }
        }
    }
}

/// Root, with the user who called sudo, if known.
pub(super) fn who() -> String {
    let by = std::env::var_os("SUDO_USER").and_then(|user| user.into_string().ok());
    match by {
        Some(user) => format!("root (sudo, {})", user.chars().take(32).collect::<String>()),
        None => "root".to_owned(),
    }
}

/// Prints the result of a change.
pub(super) fn print(done: &Done, output: &mut Output) {
    let tone = if done.outcome == "failed" {
        Tone::Bad
    } else {
        Tone::Good
    };
    let word = output.toned(tone, &format!("{}:", done.outcome));
    output.line(&format!("{word} {}", printable(&done.sentence)));
    for (name, text) in [("remains", &done.remains), ("undo", &done.undo)] {
        if let Some(text) = text {
            output.line(&format!("  {name}: {}", printable(text)));
        }
    }
}

fn undo(args: &Args, output: &mut Output) -> Result<Exit> {
    let loaded = load(args);
    let executor = Executor::of(&loaded, args)?;
    let id = args.text("CHANGE").unwrap_or_default();
    let done = match executor.changes() {
        Ok(changes) if changes.iter().any(|change| change.id == id) => executor.undo(id)?,
        // All of root's are known, and the agent has none of that name either.
        Ok(_)
            if changes_of_agent(args, &loaded)
                .is_ok_and(|changes| changes.iter().all(|change| change.id != id)) =>
        {
            return Err(unknown(id));
        }
        // One of the agent, then; or nobody's.
        known => match ask_agent(args, &loaded, id) {
            Ok(done) => done,
            Err(error) => return Err(known.err().unwrap_or(error)),
        },
    };
    if args.has(JSON.long) {
        output.json(&json!(done));
    } else {
        print(&done, output);
    }
    Ok(if done.outcome == "failed" {
        Exit::Problem
    } else {
        Exit::Fine
    })
}

fn unknown(id: &str) -> Error {
    Error::new(format!("no such change: {id:?}")).fix("list them: sudo pipeops-agent changes")
}

fn ask_agent(args: &Args, loaded: &Loaded, id: &str) -> Result<Done> {
    let unknown = || unknown(id);
    if id.is_empty()
        || !id
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    {
        return Err(unknown());
    }
    let path = format!("{CHANGES_PATH}/{id}/undo");
    let asked = socket::ask(
        &socket::candidates(args, loaded),
        &Ask::Post(&path, json!({})),
    );
    let answer = asked.map_err(|silence| {
        if silence.is_down {
            unknown()
        } else {
            silence.error
        }
    })?;
    match answer.code {
        200 => answer.understood(),
        404 => Err(unknown()),
        _ => Err(answer.refusal(&format!("cannot undo {id}"))),
    }
}

fn changes(args: &Args, output: &mut Output) -> Result<Exit> {
    let loaded = load(args);
    let by_root = Executor::of(&loaded, args).and_then(|executor| executor.changes());
    let by_agent = changes_of_agent(args, &loaded);
    let is_json = args.has(JSON.long);
    let mut missing = Vec::new();
    let mut all: Vec<ChangeReport> = Vec::new();
    for found in [by_root, by_agent] {
        match found {
            Ok(found) => {
                for change in found {
                    if !all.iter().any(|known| known.id == change.id) {
                        all.push(change);
                    }
                }
            }
            Err(error) => missing.push(error),
        }
    }
    if missing.len() == 2 {
        return Err(missing.swap_remove(0));
    }
    // The newest first: stamps of one form sort as texts.
    all.order_by(|one, other| other.at.cmp(&one.at));
    if is_json {
        let missing: Vec<_> = missing.iter().map(error_json).collect();
        output.json(&json!({ "changes": all, "missing": missing }));
        return Ok(Exit::Fine);
    }
    for error in &missing {
        output.warning(&error.clone().within("the list is incomplete"));
    }
    if all.is_empty() {
        output.line("No changes were made to this machine.");
    }
    let now = clock::now().wall;
    for change in &all {
        let age = ago(&change.at, now).map(|age| format!("({age} ago)"));
        let head = [
            Some(change.id.clone()),
            Some(change.outcome.clone()),
            Some(moment(&change.at)),
            age,
            Some(format!("by {}", change.who)),
        ];
        let head: Vec<_> = head.into_iter().flatten().collect();
        let head = printable(&head.join("  "));
        output.line(&output.toned(Tone::Strong, &head));
        output.line(&format!("  {}", printable(&change.what)));
        for (name, text) in [("why", &change.why), ("undo", &change.undo.command)] {
            if let Some(text) = text {
                output.line(&format!("  {name}: {}", printable(text)));
            }
        }
    }
    Ok(Exit::Fine)
}

fn changes_of_agent(args: &Args, loaded: &Loaded) -> Result<Vec<ChangeReport>> {
    let asked = socket::ask(&socket::candidates(args, loaded), &Ask::Get(CHANGES_PATH));
    let answer = asked.map_err(|silence| silence.error)?;
    if answer.code != 200 {
        return Err(answer.refusal("the agent did not return its changes"));
    }
    let list: ChangeList = answer.understood()?;
    Ok(list.changes)
}

//! The command line: one file a command family.
//!
//! Like the daemon, a command may connect adapters to each other. Only this module prints.
//!
//! To add a command: a file here with a `static COMMAND: Command` (see `table.rs`) whose `run` is
//! `fn(&Args, &mut Output) -> Result<Exit>`; its `mod` line and its name in [`PROGRAM`] below.
//! `parser.rs` makes clap's commands of the rows, and help, manual and completion follow. Values
//! come from [`Args`] by the names of the row; errors are returned and printed here, as JSON on
//! request.

mod access;
mod apps;
mod args;
mod ask;
mod browse;
mod bundle;
mod changes;
mod completions;
mod config;
mod dashboard;
mod doctor;
mod down;
mod events;
mod expose;
mod follow;
mod install;
mod k3s;
mod keeper;
mod link;
mod logs;
mod man;
mod metrics;
mod node;
mod output;
mod parser;
mod rbac;
mod releases;
mod repair;
mod replace;
mod service;
mod socket;
mod status;
mod table;
mod token;
mod up;
mod update;
mod view;
mod why;

use std::{ffi::OsString, time::Duration};

use serde_json::json;

use self::{
    args::{Args, Invocation},
    output::Output,
    table::{CONFIG, Command, JSON, SET},
};
use crate::{
    config::{self as settings, Loaded, Sources, keys},
    core::{VERSION, stall::Job},
    daemon,
    error::{Error, Exit},
    files::Jobs,
    keeper::wait_for_connection,
    net::tls::build_date,
};

/// Time for the files of the settings: a disk that needs longer hangs, or is about to.
const LOAD_WITHIN: Duration = Duration::from_secs(3);

/// Optional parts of this build: none of the program can be left out so far.
const FEATURES: [&str; 0] = [];

/// The program with all its commands, in the order of the help.
static PROGRAM: Command = Command {
    name: "pipeops-agent",
    about: "Runs apps on this machine, looks after it and its k3s, and connects it to a control plane",
    below: &[
        &up::COMMAND,
        &down::COMMAND,
        &RUN,
        &status::COMMAND,
        &why::COMMAND,
        &apps::COMMAND,
        &link::COMMAND,
        &events::COMMAND,
        &logs::COMMAND,
        &dashboard::COMMAND,
        &doctor::COMMAND,
        &k3s::COMMAND,
        &node::COMMAND,
        &access::COMMAND,
        &metrics::COMMAND,
        &changes::CHANGES,
        &changes::UNDO,
        &update::COMMAND,
        &config::COMMAND,
        &token::COMMAND,
        &replace::COMMAND,
        &bundle::COMMAND,
        &rbac::COMMAND,
        &keeper::COMMAND,
        &completions::COMMAND,
        &man::COMMAND,
        &SHOW_VERSION,
    ],
    exit: "0 fine, 1 a problem was found, 2 the command could not run.",
    ..Command::BARE
};

static RUN: Command = Command {
    name: "run",
    about: "Run the agent in the foreground",
    options: &[CONFIG, SET],
    examples: &[
        "PIPEOPS_TOKEN_FILE=token PIPEOPS_STATE_DIR=state pipeops-agent run",
        "pipeops-agent run --config agent.toml --set log.level=debug",
    ],
    more: Some(("Settings", keys::help)),
    run: Some(|args, output| Ok(run(args, output))),
    ..Command::BARE
};

static SHOW_VERSION: Command = Command {
    name: "version",
    about: "Print the version",
    options: &[JSON],
    examples: &["pipeops-agent version --json"],
    run: Some(|args, output| Ok(version(args, output))),
    ..Command::BARE
};

/// Runs the command of these words, and returns how it ended.
pub fn main(words: impl Iterator<Item = OsString>) -> Exit {
    let mut words = words.skip(1).peekable();
    if words
        .peek()
        .is_some_and(|word| word == keeper::COMMAND.name)
    {
        wait_for_connection();
    }
    let mut output = Output::of_process();
    let words: Vec<_> = words.collect();
    // Nothing else is known of words that make no command.
    let is_json = words.iter().any(|word| word == "--json");
    match args::parse(words.into_iter()) {
        Ok(Invocation::Run(args)) => command(&args, &mut output),
        Ok(Invocation::Help(text)) => {
            output.help(&text);
            Exit::Fine
        }
        Ok(Invocation::Version(text)) => {
            output.line(&text);
            Exit::Fine
        }
        Ok(Invocation::Nothing(help)) => {
            output.note(&help);
            Exit::CouldNotRun
        }
        Err(error) => {
            if is_json {
                output.json(&json!({ "error": error_json(&error) }));
            } else {
                output.error(&error);
            }
            Exit::CouldNotRun
        }
    }
}

fn command(args: &Args, output: &mut Output) -> Exit {
    // A command without `run` is never given: see `Invocation::Nothing`.
    let Some(run) = args.command().run else {
        return Exit::CouldNotRun;
    };
    run(args, output).unwrap_or_else(|error| {
        print_error(&error, args, output);
        Exit::CouldNotRun
    })
}

/// An error in the form that was asked for.
fn print_error(error: &Error, args: &Args, output: &mut Output) {
    if args.has(JSON.long) {
        output.json(&json!({ "error": error_json(error) }));
    } else {
        output.error(error);
    }
}

/// The settings that hold for this command line; the command has `--config`, and often `--set`.
/// Where their disk does not answer, the command goes on with what the command line and the
/// environment say: the agent can still be asked.
fn load(args: &Args) -> Loaded {
    let sources = sources(args);
    let read = sources.clone();
    let jobs = Jobs::default();
    let read = jobs.run_within(LOAD_WITHIN, Job::Settings, move || settings::load(&read));
    smol::block_on(read).unwrap_or_else(|problem| settings::unread(&sources, problem))
}

fn sources(args: &Args) -> Sources {
    Sources::of_process(args.path("config"), args.all("set"))
}

fn run(args: &Args, output: &mut Output) -> Exit {
    daemon::run(sources(args)).unwrap_or_else(|problems| {
        for problem in &problems {
            output.error(problem);
        }
        Exit::CouldNotRun
    })
}

fn version(args: &Args, output: &mut Output) -> Exit {
    if args.has("json") {
        let commit = Some(env!("BUILD_COMMIT")).filter(|commit| !commit.is_empty());
        output.json(&json!({
            "version": VERSION,
            "commit": commit,
            "date": build_date().rfc3339(),
            "target": env!("BUILD_TARGET"),
            "compiler": env!("BUILD_COMPILER"),
            "features": FEATURES,
            "release_key": releases::built_in_key(),
        }));
    } else {
        output.line(&format!("pipeops-agent {VERSION}"));
    }
    Exit::Fine
}

/// An error as JSON, the same for every command.
fn error_json(error: &Error) -> serde_json::Value {
    json!({ "what": error.what, "why": error.why, "fix": error.fix })
}

#[cfg(test)]
mod tests;

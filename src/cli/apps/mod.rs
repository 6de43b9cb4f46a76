//! `apps`: deploys apps, explains their state, rolls them back.

mod apply;
mod deploy;
mod git;
mod inspect;
mod operate;
mod replay;
mod show;
mod suggest;

use serde_json::Value;

use super::{
    args::Args,
    output::Output,
    socket::{self, Ask},
    table::{Argument, CONFIG, Command, JSON, Need, Opt, SET, SOCKET, Takes},
};
use crate::error::Result;

/// `apps`.
pub(super) static COMMAND: Command = Command {
    name: "apps",
    about: "Deploy apps, find out why they do not work, roll them back",
    below: &[
        &apply::APPLY,
        &deploy::DEPLOY,
        &show::LIST,
        &show::SHOW,
        &show::WHY,
        &inspect::LOGS,
        &inspect::EVENTS,
        &inspect::DIFF,
        &show::HISTORY,
        &apply::ROLLBACK,
        &operate::RESTART,
        &operate::SCALE,
        &suggest::SUGGEST,
        &git::PULL,
        &operate::CANCEL,
        &operate::PAUSE,
        &operate::RESUME,
        &apply::REMOVE,
        &replay::COMMAND,
    ],
    examples: &[
        "sudo pipeops-agent apps apply -f web.yaml --namespace shop --wait",
        "pipeops-agent apps why web",
        "sudo pipeops-agent apps rollback web",
    ],
    ..Command::BARE
};

/// The name of an app.
const NAME: Argument = Argument {
    name: "NAME",
    takes: Takes::App,
    need: Need::One,
    help: "Name of the app",
};
/// Manifests.
const FILE: Opt = Opt::value(
    "file",
    Takes::File,
    "FILE",
    "File or folder of manifests, YAML or JSON, or - for standard input",
)
.short('f');
/// Namespace of manifests.
const NAMESPACE: Opt = Opt::value(
    "namespace",
    Takes::Text,
    "NAMESPACE",
    "Namespace (default: that of the manifests)",
);
/// Waiting for the verdict.
const WAIT: Opt = Opt::flag("wait", "Wait until it is good or bad");

/// Command about one app that changes no version of it.
const ONE: Command = Command {
    options: &[SOCKET, CONFIG, SET, JSON],
    arguments: &[NAME],
    ..Command::BARE
};

/// Command that makes a version of one app.
const VERSION: Command = Command {
    options: &[WAIT, SOCKET, CONFIG, SET, JSON],
    exit: "0 accepted (with --wait: good), 1 bad or rolled back, 2 nothing was changed.",
    ..ONE
};

/// Path of all apps.
const PATH: &str = "/api/v1/apps";

/// The path of one app.
fn path(name: &str, rest: &str) -> String {
    format!("{PATH}/{}{rest}", super::access::escaped(name))
}

/// Asks about one app, and prints the answer: as it is with `--json`, otherwise by `print`.
fn ask(
    args: &Args,
    output: &mut Output,
    (path, cannot): (&str, &str),
    print: impl FnOnce(&Value, &mut Output),
) -> Result<Value> {
    let answer = socket::request(args, &Ask::Test(path), cannot)?;
    if args.has("json") {
        output.json(&answer);
    } else {
        print(&answer, output);
    }
    Ok(answer)
}

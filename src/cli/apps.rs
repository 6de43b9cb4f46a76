//! `apps`: deploys apps, explains their state, rolls them back.

mod deploy;
mod inspect;
mod operate;
mod replay;
mod show;
mod simple;

use super::table::{Argument, Command, Need, Takes};

/// `apps`.
pub(super) static COMMAND: Command = Command {
    name: "apps",
    about: "Deploy apps, find out why they do not work, roll them back",
    below: &[
        &deploy::APPLY,
        &simple::DEPLOY,
        &show::LIST,
        &show::SHOW,
        &show::WHY,
        &inspect::LOGS,
        &inspect::EVENTS,
        &inspect::DIFF,
        &show::HISTORY,
        &deploy::ROLLBACK,
        &operate::RESTART,
        &operate::SCALE,
        &operate::PAUSE,
        &operate::RESUME,
        &deploy::REMOVE,
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
    takes: Takes::Text,
    need: Need::One,
    help: "Name of the app",
};

/// Path of all apps.
const PATH: &str = "/api/v1/apps";

/// The path of one app; a name that is none leads nowhere.
fn path(name: &str, rest: &str) -> String {
    format!("{PATH}/{}{rest}", super::access::escaped(name))
}

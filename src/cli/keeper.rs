//! `keeper`: runs the root helper, for its service.

use std::path::Path;

use super::{
    args::Args,
    load,
    output::Output,
    table::{CONFIG, Command, Opt, SET, Takes},
};
use crate::{
    daemon::keeper,
    error::{Exit, Result},
    host::signals,
};

/// Root directory, for trials.
pub(super) const ROOT: Opt = Opt::value(
    "root",
    Takes::Folder,
    "FOLDER",
    "Work below this folder as if it were /, for a trial",
)
.default("/");

/// `keeper`.
pub(super) static COMMAND: Command = Command {
    name: "keeper",
    about: "Run the root helper in the foreground (used by its service)",
    options: &[ROOT, CONFIG, SET],
    notes: "It applies and reverts the repairs of `pipeops-agent doctor --fix`, from a closed list.\n\
        It serves root and the agent's user (keeper.user) on its socket (keeper.socket), and does not use the network.",
    examples: &["sudo pipeops-agent keeper"],
    run: Some(run),
    ..Command::BARE
};

fn run(args: &Args, _: &mut Output) -> Result<Exit> {
    // Until the helper listens for them: the threads that start meanwhile leave them to this one.
    signals::block();
    let loaded = load(args);
    let variable = |name: &str| std::env::var_os(name);
    let (notify_socket, journal_stream) = (variable("NOTIFY_SOCKET"), variable("JOURNAL_STREAM"));
    keeper::run(keeper::Start {
        settings: &loaded.keeper(),
        files: loaded.files(),
        root: &args
            .path(ROOT.long)
            .unwrap_or_else(|| Path::new("/").to_owned()),
        notify_socket: notify_socket.as_deref(),
        journal_stream: journal_stream.as_deref().and_then(|stream| stream.to_str()),
    })
}

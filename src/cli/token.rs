//! `token rotate`: replaces the token and keeps the identity.

use serde_json::json;

use super::{
    args::Args,
    install::{self, Basis, Plan, TOKEN_FILE, UNCHECKED},
    output::Output,
    table::{CONFIG, Command, JSON},
};
use crate::error::{Error, Exit, Result};

/// `token`.
pub(super) static COMMAND: Command = Command {
    name: "token",
    about: "Manage the token of this cluster",
    below: &[&ROTATE],
    examples: &["sudo pipeops-agent token rotate --token-file /root/new-token"],
    ..Command::BARE
};

static ROTATE: Command = Command {
    name: "rotate",
    about: "Replace the token once the control plane has accepted the new one",
    options: &[TOKEN_FILE, UNCHECKED, CONFIG, JSON],
    notes: "The file keeps its owner and mode, the agent its identity. A running agent shows the new token at its next connection; restart it before the old one is revoked.\n\
            A token is never taken from the command line, where every user of the machine could read it.",
    examples: &[
        "sudo pipeops-agent token rotate",
        "sudo pipeops-agent token rotate --token-file /root/new-token",
    ],
    exit: "0 success, 2 the token was refused or cannot be written; the old one stays in use.",
    run: Some(rotate),
    ..Command::BARE
};

fn rotate(args: &Args, output: &mut Output) -> Result<Exit> {
    let (file, _) = install::now(args);
    let plan = Plan::new(file, Vec::new(), Basis::Process, output)?;
    let path = plan.token_file()?.to_owned();
    install::check_may_write(&path, "token rotate")?;
    let token = install::new_token(args, Some("New token of this cluster"))?
        .ok_or_else(|| Error::new("no new token was given"))?;
    let server = plan.settings.pipeops.control_plane()?;
    let is_same = server.token.read().is_ok_and(|old| old == token);
    plan.check(&token, args, output)?;
    if !is_same {
        plan.write_token(&token)?;
    }
    if args.has("json") {
        output.json(&json!({ "path": path, "changed": !is_same }));
    } else if is_same {
        output.line("This is the current token: nothing was changed.");
    } else {
        let hint = "a running agent uses it from its next connection on";
        output.line(&format!("New token written to {}; {hint}.", path.display()));
    }
    Ok(Exit::Fine)
}

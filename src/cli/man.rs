//! `man`: pages of the manual.

use serde_json::json;

use super::{
    PROGRAM, VERSION,
    given::Given,
    help,
    output::Output,
    table::{Argument, Command, JSON, Need, Takes},
};
use crate::{
    config::keys::nearest,
    error::{Error, Exit, Result},
};

/// `man`.
pub(super) static COMMAND: Command = Command {
    name: "man",
    about: "Print a page of the manual, for man",
    options: &[JSON],
    arguments: &[Argument {
        name: "COMMAND",
        takes: Takes::Text,
        need: Need::Any,
        help: "The command it is about; all of them without it",
    }],
    examples: &[
        "pipeops-agent man | man -l -",
        "pipeops-agent man access test | man -l -",
        "pipeops-agent man > /usr/local/share/man/man1/pipeops-agent.1",
    ],
    run: Some(man),
    ..Command::BARE
};

fn man(given: &Given, output: &mut Output) -> Result<Exit> {
    let mut path: Vec<&'static Command> = vec![&PROGRAM];
    let mut command: &'static Command = &PROGRAM;
    for word in given.all("COMMAND") {
        let Some(below) = command.below.iter().find(|below| below.name == word) else {
            let meant = nearest(&word, command.below.iter().map(|below| below.name));
            return Err(
                Error::new(format!("there is no command {word:?}")).fix(match meant {
                    Some(meant) => format!("did you mean {meant}?"),
                    None => "list them: pipeops-agent --help".to_owned(),
                }),
            );
        };
        path.push(below);
        command = below;
    }
    let page = help::page(&path, VERSION);
    if given.has("json") {
        output.json(&json!({ "page": page }));
    } else {
        output.line(page.trim_end());
    }
    Ok(Exit::Fine)
}

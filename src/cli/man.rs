//! `man`: pages of the manual.

use std::path::Path;

use serde_json::json;

use super::{
    PROGRAM, VERSION,
    args::Args,
    help::{self, Extent},
    output::Output,
    table::{Argument, Command, JSON, Need, Opt, Takes},
};
use crate::{
    config::keys::nearest,
    error::{Error, Exit, Result},
    files,
};

/// `man`.
pub(super) static COMMAND: Command = Command {
    name: "man",
    about: "Print the manual, or write a page for each command",
    options: &[OUTPUT, JSON],
    arguments: &[Argument {
        name: "COMMAND",
        takes: Takes::Text,
        need: Need::Any,
        help: "Command to print the page of (default: all)",
    }],
    examples: &[
        "pipeops-agent man | man -l -",
        "pipeops-agent man access test | man -l -",
        "pipeops-agent man > /usr/local/share/man/man1/pipeops-agent.1",
        "sudo pipeops-agent man --output /usr/local/share/man/man1",
    ],
    run: Some(man),
    ..Command::BARE
};

const OUTPUT: Opt = Opt::value(
    "output",
    Takes::Folder,
    "DIR",
    "Write a page for each command to this directory",
);

fn man(args: &Args, output: &mut Output) -> Result<Exit> {
    let mut path: Vec<&'static Command> = vec![&PROGRAM];
    let mut command: &'static Command = &PROGRAM;
    for word in args.all("COMMAND") {
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
    if let Some(folder) = args.path(OUTPUT.long) {
        return pages(&path, &folder, args, output);
    }
    let page = help::page(&path, Extent::Family, VERSION);
    if args.has("json") {
        output.json(&json!({ "page": page }));
    } else {
        output.line(page.trim_end());
    }
    Ok(Exit::Fine)
}

/// Writes a page for the last of these commands and for each below it.
fn pages(
    path: &[&'static Command],
    folder: &Path,
    args: &Args,
    output: &mut Output,
) -> Result<Exit> {
    let mut written = Vec::new();
    let mut waiting = vec![path.to_vec()];
    while let Some(path) = waiting.pop() {
        let file = folder.join(format!("{}.1", help::page_name(&path)));
        let page = help::page(&path, Extent::Alone, VERSION);
        files::replace(&file, page.as_bytes(), 0o644)?;
        written.push(file.display().to_string());
        let below = path.last().map_or(&[][..], |command| command.below);
        waiting.extend(
            below
                .iter()
                .map(|below| path.iter().copied().chain([*below]).collect()),
        );
    }
    written.sort();
    if args.has("json") {
        output.json(&json!({ "pages": written }));
    } else {
        output.line(&format!("{} pages in {}", written.len(), folder.display()));
    }
    Ok(Exit::Fine)
}

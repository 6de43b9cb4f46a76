//! `man`: manual pages, made by clap_mangen from the table.

use std::path::Path;

use clap_mangen::{
    Man,
    roff::{Roff, bold, roman},
};
use serde_json::json;

use super::{
    PROGRAM, VERSION,
    args::{Args, called},
    output::Output,
    parser,
    table::{Argument, Command, JSON, Need, Opt, Takes},
};
use crate::{
    core::{nearest::nearest, order::OrderExt as _},
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
    let mut below = PROGRAM.below;
    for word in args.all("COMMAND") {
        let Some(row) = below.iter().find(|row| row.name == word) else {
            let names = below.iter().filter(|row| !row.is_internal);
            let meant = nearest(&word, names.map(|row| row.name));
            let fix = meant.map_or_else(
                || "list them: pipeops-agent --help".to_owned(),
                |meant| format!("did you mean {meant}?"),
            );
            return Err(Error::new(format!("there is no command {word:?}")).fix(fix));
        };
        path.push(row);
        below = row.below;
    }
    let pages = pages(path)?;
    if let Some(folder) = args.path(OUTPUT.long) {
        return write(&pages, &folder, args, output);
    }
    let texts: Vec<_> = pages.iter().map(|(_, text)| text.as_str()).collect();
    if args.has("json") {
        output.json(&json!({ "page": texts.concat() }));
    } else {
        output.line(texts.concat().trim_end());
    }
    Ok(Exit::Fine)
}

/// Writes each page to a file of its name.
fn write(
    pages: &[(String, String)],
    folder: &Path,
    args: &Args,
    output: &mut Output,
) -> Result<Exit> {
    let mut written = Vec::new();
    for (name, text) in pages {
        let file = folder.join(format!("{name}.1"));
        files::replace(&file, text.as_bytes(), 0o644)?;
        written.push(file.display().to_string());
    }
    written.order();
    if args.has("json") {
        output.json(&json!({ "pages": written }));
    } else {
        output.line(&format!("{} pages in {}", written.len(), folder.display()));
    }
    Ok(Exit::Fine)
}

/// Pages of the last of these commands and of all below it, by name.
fn pages(path: Vec<&'static Command>) -> Result<Vec<(String, String)>> {
    let mut program = parser::program();
    program.build();
    let mut pages = Vec::new();
    let mut waiting = vec![path];
    while let Some(path) = waiting.pop() {
        let row = path.last().copied().unwrap_or(&PROGRAM);
        let command = parser::below(&program, &path);
        pages.push((page_name(&path), page(command, row, &path)?));
        let below = row.shown().collect::<Vec<_>>().into_iter().rev();
        waiting.extend(below.map(|below| path.iter().copied().chain([below]).collect()));
    }
    Ok(pages)
}

/// Name of a page: `pipeops-agent-access-test`.
fn page_name(path: &[&'static Command]) -> String {
    called(path).replace(' ', "-")
}

fn page(command: &clap::Command, row: &Command, path: &[&'static Command]) -> Result<String> {
    // Its chapters are below, each with its customary title.
    let command = command.clone().after_help(None).after_long_help(None);
    let command = command.long_about(format!("{}.\n\n{}", row.about, row.notes));
    let page = Man::new(command)
        .title(page_name(path).to_uppercase())
        .source(format!("pipeops-agent {VERSION}"))
        .manual("User Commands");
    let mut text = Vec::new();
    page.render(&mut text)
        .map_err(|error| Error::new("cannot make a page of the manual").because(&error))?;
    let mut chapters = Roff::new();
    let more = row.more.map(|(title, more)| (title.to_uppercase(), more()));
    let examples = ("EXAMPLES".to_owned(), row.examples.join("\n"));
    for (title, body) in [examples].into_iter().chain(more) {
        if !body.is_empty() {
            chapters.control("SH", [title.as_str()]).control("nf", []);
            for line in body.lines() {
                chapters.text([roman(line)]);
            }
            chapters.control("fi", []);
        }
    }
    if !row.exit.is_empty() {
        chapters
            .control("SH", ["EXIT STATUS"])
            .text([roman(row.exit)]);
    }
    if let Some((_, above @ [_, ..])) = path.split_last() {
        chapters
            .control("SH", ["SEE ALSO"])
            .text([bold(page_name(above)), roman("(1)")]);
    }
    text.extend(chapters.render().bytes());
    Ok(String::from_utf8_lossy(&text).into_owned())
}

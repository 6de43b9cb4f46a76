//! Parser of the command line: clap's commands, made from the table.

use std::{
    collections::VecDeque,
    ffi::{OsStr, OsString},
};

use clap::{
    Arg, ArgAction,
    builder::{PossibleValuesParser, ValueParser},
    value_parser,
};
use clap_complete::{ArgValueCompleter, CompletionCandidate};

use super::{
    PROGRAM, VERSION,
    table::{Argument, Command, Need, Opt, Takes, Times},
};
use crate::{config::keys::KEYS, core::apps::is_name};

/// Completion of a file name, which is left to the shell.
pub(super) const FILES: &str = ":files";
/// Completion of a directory name, which is left to the shell, too.
pub(super) const FOLDERS: &str = ":folders";

/// First place of options in the help that subcommands inherit.
const INHERITED: usize = 100;

/// The program with all its commands.
pub(super) fn program() -> clap::Command {
    assembled(PROGRAM.below.iter().map(|row| command(row)))
}

/// The program with the commands that these words may name; the others have a name and a
/// description only.
pub(super) fn program_for(words: &VecDeque<OsString>) -> clap::Command {
    // Building all of them takes a third of the time of a short command.
    assembled(PROGRAM.below.iter().map(|row| {
        if words.iter().any(|word| word == row.name) {
            command(row)
        } else {
            clap::Command::new(row.name).about(row.about)
        }
    }))
}

fn assembled(commands: impl Iterator<Item = clap::Command>) -> clap::Command {
    let version = Arg::new("version")
        .long("version")
        .short('V')
        .short_alias('v')
        .action(ArgAction::Version)
        .help("Print version");
    alone(&PROGRAM)
        .version(VERSION)
        .disable_version_flag(true)
        .arg(version)
        .subcommands(commands)
}

/// The last of these commands, in a program that was built.
pub(super) fn below<'a>(
    program: &'a clap::Command,
    path: &[&'static Command],
) -> &'a clap::Command {
    let names = path.iter().skip(1).map(|row| row.name);
    names.fold(program, |above, name| {
        above.find_subcommand(name).unwrap_or(above)
    })
}

fn command(row: &'static Command) -> clap::Command {
    alone(row).subcommands(row.below.iter().map(|below| command(below)))
}

/// A command without those below it.
fn alone(row: &'static Command) -> clap::Command {
    let notes = notes(row);
    // Options of a family come after those of the command itself.
    let order = if row.below.is_empty() { 0 } else { INHERITED };
    let in_order = |(row, place)| option(row).display_order(place);
    let command = clap::Command::new(row.name)
        .about(row.about)
        .after_help(&notes)
        .hide(row.is_internal)
        .disable_help_subcommand(true)
        .subcommand_required(row.run.is_none())
        .subcommand_value_name("COMMAND")
        .args(row.options.iter().zip(order..).map(in_order))
        .args(row.arguments.iter().map(argument));
    match row.more {
        Some((title, more)) => {
            command.after_long_help(format!("{notes}\n\n{}", section(title, &more())))
        }
        None => command,
    }
}

/// Sections of the help below the options.
fn notes(row: &Command) -> String {
    let sections = [
        ("Notes", row.notes.to_owned()),
        ("Examples", row.examples.join("\n")),
        ("Exit codes", row.exit.to_owned()),
    ];
    let sections = sections.iter().filter(|(_, body)| !body.is_empty());
    let sections: Vec<_> = sections.map(|(title, body)| section(title, body)).collect();
    sections.join("\n\n")
}

/// A title and the lines below it.
fn section(title: &str, body: &str) -> String {
    let lines = body.lines().map(|line| format!("\n  {line}"));
    format!("{title}:{}", lines.collect::<String>())
}

fn option(row: &'static Opt) -> Arg {
    let option = Arg::new(row.long)
        .long(row.long)
        .alias(row.former)
        .short(row.short)
        .help(row.help)
        .global(true)
        .default_value(row.default)
        .conflicts_with_all(row.against);
    let option = match (row.takes, row.times) {
        // A flag may be repeated.
        (Takes::Nothing, _) => {
            return option.action(ArgAction::SetTrue).overrides_with(row.long);
        }
        (_, Times::Once) => option.action(ArgAction::Set),
        (_, Times::Many) => option.action(ArgAction::Append),
    };
    taking(option.value_name(row.value), row.takes)
}

fn argument(row: &'static Argument) -> Arg {
    let argument = Arg::new(row.name).help(row.help);
    let argument = match row.need {
        Need::One => argument.required(true),
        Need::Maybe => argument,
        Need::Any => argument.action(ArgAction::Append).num_args(0..),
    };
    taking(argument, row.takes)
}

/// The argument with the values that it accepts, and their completion.
fn taking(argument: Arg, takes: Takes) -> Arg {
    let left_to_the_shell = |word: &'static str| {
        ArgValueCompleter::new(move |_: &OsStr| vec![CompletionCandidate::new(word)])
    };
    match takes {
        Takes::Nothing | Takes::Text => argument.value_parser(value_parser!(String)),
        Takes::File => argument
            .value_parser(ValueParser::os_string())
            .add(left_to_the_shell(FILES)),
        Takes::Folder => argument
            .value_parser(ValueParser::os_string())
            .add(left_to_the_shell(FOLDERS)),
        Takes::Word(words) => argument.value_parser(PossibleValuesParser::new(words)),
        Takes::Setting => argument
            .value_parser(value_parser!(String))
            .add(ArgValueCompleter::new(settings)),
        Takes::App => argument.value_parser(app),
    }
}

fn app(name: &str) -> Result<String, &'static str> {
    let name = is_name(name).then(|| name.to_owned());
    name.ok_or("names of apps have up to 40 lowercase letters, digits and dashes")
}

fn settings(begun: &OsStr) -> Vec<CompletionCandidate> {
    let keys = KEYS.iter().map(|key| (format!("{}=", key.path), key.doc));
    keys.filter(|(word, _)| begun.to_str().is_some_and(|begun| word.starts_with(begun)))
        .map(|(word, doc)| CompletionCandidate::new(word).help(Some(doc.into())))
        .collect()
}

//! The command line as clap read it, by the names of the table.
//!
//! A command line that makes no sense is an [`Error`] whose fix is a command line that does.

use std::{
    collections::VecDeque,
    error::Error as _,
    ffi::{OsStr, OsString},
    path::PathBuf,
};

use clap::{
    ArgMatches,
    error::{ContextKind, ContextValue, ErrorKind},
    parser::ValueSource,
};

use super::{
    PROGRAM, parser,
    table::{Command, JSON, Opt},
};
use crate::error::{Error, Result};

/// Maximum number of commands that the error for an unknown one lists.
const POSSIBLE_MAX: usize = 8;

/// Parsed command line.
#[derive(Debug)]
pub(super) enum Invocation {
    /// Run a command.
    Run(Args),
    /// Print this help.
    Help(String),
    /// Print this version.
    Version(String),
    /// Print this help as an error: a command below another one is missing.
    Nothing(String),
}

/// A command with its values.
#[derive(Debug)]
pub(super) struct Args {
    /// The command, after those that it is below of; the program is the first.
    path: Vec<&'static Command>,
    values: ArgMatches,
}

impl Args {
    pub(super) fn command(&self) -> &'static Command {
        last(&self.path)
    }

    /// True if the option `name` was given.
    pub(super) fn has(&self, name: &str) -> bool {
        // What prints errors asks every command for `json`.
        if name == JSON.long && self.values.try_get_raw(name).is_err() {
            return false;
        }
        self.raw(name).next().is_some()
            && self.values.value_source(name) == Some(ValueSource::CommandLine)
    }

    /// The value of `name`, or its default.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.raw(name).next()?.to_str()
    }

    /// All values of `name`; none for a command that takes none.
    pub(super) fn all(&self, name: &str) -> Vec<String> {
        let values = self.values.try_get_raw(name);
        let values = values.ok().flatten().into_iter().flatten();
        values
            .map(|value| value.to_string_lossy().into_owned())
            .collect()
    }

    /// The path `name`, of any bytes.
    pub(super) fn path(&self, name: &str) -> Option<PathBuf> {
        self.raw(name).next().map(PathBuf::from)
    }

    /// The value of `name` as `read` parses it; its error becomes the fix.
    pub(super) fn read<T>(
        &self,
        name: &str,
        read: fn(&str) -> std::result::Result<T, String>,
    ) -> Result<Option<T>> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        let shown = |option: &Opt| format!("--{} {}", option.long, option.value);
        let shown = option(&self.path, name).map_or_else(|| name.to_owned(), shown);
        match read(text) {
            Ok(value) => Ok(Some(value)),
            Err(fix) => Err(Error::new(format!("invalid value {text:?} for {shown}")).fix(fix)),
        }
    }

    fn raw(&self, name: &str) -> impl Iterator<Item = &OsStr> {
        let values = self.values.try_get_raw(name);
        debug_assert!(
            values.is_ok(),
            "{name} is unknown to {}",
            self.command().name
        );
        values.ok().flatten().into_iter().flatten()
    }
}

/// Reads the words after the name of the program.
pub(super) fn parse(words: impl Iterator<Item = OsString>) -> Result<Invocation> {
    let mut words: VecDeque<OsString> = words.collect();
    // `help COMMAND` is `COMMAND --help`.
    if words.front().is_some_and(|word| word == "help") {
        words.pop_front();
        words.push_back(OsString::from("--help"));
    }
    words.push_front(OsString::from(PROGRAM.name));
    match parser::program_for(&words).try_get_matches_from(&words) {
        Ok(values) => {
            let (path, values) = named(values);
            Ok(Invocation::Run(Args { path, values }))
        }
        Err(error) => refused(&error, &words),
    }
}

/// The command that was named, after those that it is below of, with its own values.
fn named(mut values: ArgMatches) -> (Vec<&'static Command>, ArgMatches) {
    let mut path: Vec<&'static Command> = vec![&PROGRAM];
    while let Some((name, below)) = values.remove_subcommand() {
        let mut rows = last(&path).below.iter();
        path.extend(rows.find(|row| row.name == name));
        values = below;
    }
    (path, values)
}

/// A command line that runs no command.
fn refused(error: &clap::Error, words: &VecDeque<OsString>) -> Result<Invocation> {
    let text = || error.to_string().trim_end().to_owned();
    if error.kind() == ErrorKind::DisplayHelp {
        return Ok(Invocation::Help(text()));
    }
    if error.kind() == ErrorKind::DisplayVersion {
        return Ok(Invocation::Version(text()));
    }
    // The error does not name the command that it is about.
    let partly = parser::program_for(words).ignore_errors(true);
    let path = partly
        .try_get_matches_from(words)
        .map_or_else(|_| vec![&PROGRAM], |values| named(values).0);
    if error.kind() == ErrorKind::MissingSubcommand {
        return Ok(Invocation::Nothing(help(&path)));
    }
    Err(explained(error, &path))
}

/// The short help of the last of these commands.
fn help(path: &[&'static Command]) -> String {
    let mut program = parser::program();
    program.build();
    let mut command = parser::below(&program, path).clone();
    command.render_help().to_string().trim_end().to_owned()
}

/// The mistake, and a command line that works or where to find one.
fn explained(error: &clap::Error, path: &[&'static Command]) -> Error {
    let texts = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text.as_str()],
        Some(ContextValue::Strings(texts)) => texts.iter().map(String::as_str).collect(),
        _ => Vec::new(),
    };
    let text = |kind| texts(kind).first().copied().unwrap_or_default();
    let (argument, value) = (
        text(ContextKind::InvalidArg),
        text(ContextKind::InvalidValue),
    );
    let called = called(path);
    let usage = format!("see {called} --help");
    let meant = |word: Option<&str>| {
        word.map_or_else(
            || usage.clone(),
            |word| format!("did you mean {word}? {usage}"),
        )
    };
    match error.kind() {
        ErrorKind::InvalidSubcommand => unknown_command(
            text(ContextKind::InvalidSubcommand),
            texts(ContextKind::SuggestedSubcommand),
            path,
        ),
        ErrorKind::UnknownArgument if argument.starts_with('-') => {
            let longer = longer(argument, last(path));
            let alike = texts(ContextKind::SuggestedArg).first().copied();
            Error::new(format!("unknown option {argument:?} of {called}"))
                .fix(meant(longer.as_deref().or(alike)))
        }
        ErrorKind::UnknownArgument => {
            Error::new(format!("unexpected argument {argument:?} of {called}")).fix(usage)
        }
        ErrorKind::InvalidValue if value.is_empty() => {
            Error::new(format!("{argument} needs a value")).fix(usage)
        }
        ErrorKind::InvalidValue => {
            let alike = texts(ContextKind::SuggestedValue).first().copied();
            let alike = alike.map_or_else(String::new, |word| format!("did you mean {word}? "));
            let possible = texts(ContextKind::ValidValue).join(", ");
            Error::new(format!("invalid value {value:?} for {argument}"))
                .fix(format!("{alike}possible values: {possible}"))
        }
        ErrorKind::TooManyValues => Error::new(format!("{argument} takes no value")).fix(usage),
        ErrorKind::ArgumentConflict => {
            Error::new(conflict(argument, text(ContextKind::PriorArg))).fix(usage)
        }
        ErrorKind::MissingRequiredArgument => {
            let name = argument.trim_matches(['<', '>']);
            let help = last(path).arguments.iter().find(|row| row.name == name);
            let help = help.map_or("", |row| row.help);
            Error::new(format!("{argument} is missing: {}", uncapitalized(help))).fix(usage)
        }
        ErrorKind::InvalidUtf8 => Error::new("an argument is not valid UTF-8").fix(usage),
        ErrorKind::ValueValidation => invalid(error, (value, argument), usage),
        ErrorKind::NoEquals
        | ErrorKind::TooFewValues
        | ErrorKind::WrongNumberOfValues
        | ErrorKind::MissingSubcommand
        | ErrorKind::DisplayHelp
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
        | ErrorKind::DisplayVersion
        | ErrorKind::Io
        | ErrorKind::Format
        | _ => Error::new(error.kind().to_string()).fix(usage),
    }
}

fn conflict(argument: &str, other: &str) -> String {
    if other == argument {
        format!("{argument} is repeated")
    } else {
        format!("{argument} and {other} cannot be combined")
    }
}

/// Options that have this one as a word: `--data-dir` for `--dir`.
fn longer(argument: &str, command: &Command) -> Option<String> {
    let word = argument.strip_prefix("--")?;
    let options = command.options.iter().map(|option| option.long);
    let options: Vec<_> = options
        .filter(|long| long.split('-').any(|part| part == word))
        .map(|long| format!("--{long}"))
        .collect();
    (!options.is_empty()).then(|| options.join(" or "))
}

/// A value that its own parser refuses; what that says is the fix.
fn invalid(error: &clap::Error, (value, argument): (&str, &str), usage: String) -> Error {
    let why = error.source().map_or(usage, ToString::to_string);
    Error::new(format!("invalid value {value:?} for {argument}")).fix(why)
}

/// `alike` are clap's suggestions, the best one last.
fn unknown_command(word: &str, alike: Vec<&str>, path: &[&'static Command]) -> Error {
    // Internal commands are no suggestions.
    let shown: Vec<_> = last(path).shown().map(|row| row.name).collect();
    let alike = alike.into_iter().rfind(|word| shown.contains(word));
    let called = called(path);
    let hint = match alike {
        Some(word) => format!("did you mean {word}?"),
        None if shown.len() <= POSSIBLE_MAX => format!("commands: {};", shown.join(", ")),
        None => String::new(),
    };
    let fix = format!("{hint} see {called} --help");
    Error::new(format!("unknown command {word:?} of {called}")).fix(fix.trim_start())
}

fn uncapitalized(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters
        .next()
        .map(|character| character.to_ascii_lowercase());
    first.into_iter().chain(letters).collect()
}

/// The words of the last of these commands.
pub(super) fn called(path: &[&'static Command]) -> String {
    let names: Vec<&str> = path.iter().map(|command| command.name).collect();
    names.join(" ")
}

/// The option of this name that the last of these commands takes.
fn option(path: &[&'static Command], long: &str) -> Option<&'static Opt> {
    let mut options = path.iter().flat_map(|command| command.options);
    options.find(|option| option.long == long)
}

fn last(path: &[&'static Command]) -> &'static Command {
    path.last().copied().unwrap_or(&PROGRAM)
}

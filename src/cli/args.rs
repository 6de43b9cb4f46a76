//! What was given on the command line, read by the table of commands.
//!
//! Values reach a command by the names that the table has for them, as text, as a path, or through a function that reads them.
//! A command line that makes no sense is an [`Error`] whose fix is a command line that does.

use std::{
    collections::VecDeque,
    ffi::{OsStr, OsString},
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::PathBuf,
};

use super::table::{Command, HELP, Need, Opt, Takes, Times, VERSION};
use crate::{
    config::keys::nearest,
    error::{Error, Result},
};

/// Commands that are named in place of one that is not known.
const POSSIBLE_MAX: usize = 8;

/// What the command line asks for.
#[derive(Debug)]
pub(super) enum Asked {
    /// A command.
    Run(Args),
    /// The help of the last of these commands, each below the one before.
    Help(Vec<&'static Command>, Length),
    /// The version.
    Version,
    /// A command below this one should have been named.
    Nothing(Vec<&'static Command>),
}

/// How much help.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Length {
    /// What fits on a screen.
    Short,
    /// Everything.
    Long,
}

/// A command with its values.
#[derive(Debug)]
pub(super) struct Args {
    /// The command and those that it is below of, the program first.
    path: Vec<&'static Command>,
    values: Vec<(&'static str, OsString)>,
}

impl Args {
    /// The command.
    pub(super) fn command(&self) -> &'static Command {
        // The program itself is always there.
        self.path.last().copied().unwrap_or(&Command::BARE)
    }

    /// Whether the option `name` is there.
    pub(super) fn has(&self, name: &str) -> bool {
        self.raw(name).is_some()
    }

    /// The value of `name`, or its default.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        let text = self.raw(name).and_then(|value| value.to_str());
        text.or_else(|| option(&self.path, name)?.default)
    }

    /// Every value of `name`.
    pub(super) fn all(&self, name: &str) -> Vec<String> {
        let named = self.values.iter().filter(|(known, _)| *known == name);
        named
            .map(|(_, value)| value.to_string_lossy().into_owned())
            .collect()
    }

    /// The path `name`, whatever bytes it is made of.
    pub(super) fn path(&self, name: &str) -> Option<PathBuf> {
        self.raw(name).map(PathBuf::from)
    }

    /// The value of `name` as `read` understands it; what `read` says where it does not is the reason of the error.
    pub(super) fn read<T>(
        &self,
        name: &str,
        read: fn(&str) -> std::result::Result<T, String>,
    ) -> Result<Option<T>> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        let shown = option(&self.path, name).map_or_else(|| name.to_owned(), shown);
        match read(text) {
            Ok(value) => Ok(Some(value)),
            Err(fix) => Err(Error::new(format!("invalid value {text:?} for {shown}")).fix(fix)),
        }
    }

    fn raw(&self, name: &str) -> Option<&OsStr> {
        debug_assert!(
            self.is_known(name),
            "{name} is not in the table of {}",
            self.command().name
        );
        let mut named = self.values.iter().filter(|(known, _)| *known == name);
        named.next().map(|(_, value)| value.as_os_str())
    }

    fn is_known(&self, name: &str) -> bool {
        // What prints errors asks every command for `json`.
        name == "json"
            || option(&self.path, name).is_some()
            || self.command().arguments.iter().any(|it| it.name == name)
    }
}

/// Reads the words after the name of the program.
pub(super) fn parse(
    program: &'static Command,
    words: impl Iterator<Item = OsString>,
) -> Result<Asked> {
    let mut reader = Reader {
        path: vec![program],
        values: Vec::new(),
        arguments: 0,
        words: words.collect(),
    };
    let mut is_plain = false;
    // `help COMMAND` is `COMMAND --help`.
    let is_help = reader.words.front().is_some_and(|word| word == HELP.long);
    if is_help {
        reader.words.pop_front();
        reader
            .words
            .push_back(OsString::from(format!("--{}", HELP.long)));
    }
    while let Some(word) = reader.words.pop_front() {
        let bytes = word.as_bytes();
        let asked = match bytes {
            _ if is_plain => reader.plain(word)?,
            b"--" => {
                is_plain = true;
                None
            }
            [b'-', b'-', name @ ..] => reader.long(name)?,
            [b'-', _, ..] => reader.letters(&word)?,
            _ => reader.plain(word)?,
        };
        if let Some(asked) = asked {
            return Ok(asked);
        }
    }
    reader.finish()
}

struct Reader {
    path: Vec<&'static Command>,
    values: Vec<(&'static str, OsString)>,
    /// How many words stand at places of their own.
    arguments: usize,
    words: VecDeque<OsString>,
}

impl Reader {
    fn command(&self) -> &'static Command {
        self.path.last().copied().unwrap_or(&Command::BARE)
    }

    fn long(&mut self, text: &[u8]) -> Result<Option<Asked>> {
        let (name, value) = match text.iter().position(|byte| *byte == b'=') {
            Some(at) => {
                let (name, value) = text.split_at(at);
                (name, value.get(1..))
            }
            None => (text, None),
        };
        let name = String::from_utf8_lossy(name);
        let Some(option) = option(&self.path, &name) else {
            return Err(self.unknown_option(&format!("--{name}")));
        };
        let value = value.map(|value| OsString::from_vec(value.to_vec()));
        self.option(option, value, Length::Long)
    }

    fn letters(&mut self, word: &OsStr) -> Result<Option<Asked>> {
        let letters = word.to_string_lossy();
        let mut letters = letters.chars().skip(1);
        while let Some(letter) = letters.next() {
            let known = options(&self.path).find(|option| option.short == Some(letter));
            let Some(option) = known else {
                return Err(self.unknown_option(&format!("-{letter}")));
            };
            // What stands behind the letter of an option with a value is its value.
            let rest: String = if option.takes == Takes::Nothing {
                String::new()
            } else {
                letters.by_ref().collect()
            };
            let value = Some(rest.strip_prefix('=').unwrap_or(&rest))
                .filter(|rest| !rest.is_empty())
                .map(OsString::from);
            let asked = self.option(option, value, Length::Short)?;
            if asked.is_some() {
                return Ok(asked);
            }
        }
        Ok(None)
    }

    fn option(
        &mut self,
        option: &'static Opt,
        value: Option<OsString>,
        length: Length,
    ) -> Result<Option<Asked>> {
        let shown = shown(option);
        let is_flag = option.takes == Takes::Nothing;
        if is_flag && value.is_some() {
            let what = format!("{shown} takes no value");
            return Err(Error::new(what).fix(self.usage()));
        }
        if option.long == HELP.long {
            return Ok(Some(Asked::Help(self.path.clone(), length)));
        }
        if option.long == VERSION.long {
            return Ok(Some(Asked::Version));
        }
        let is_again = self.values.iter().any(|(known, _)| *known == option.long);
        if is_again && is_flag {
            return Ok(None);
        }
        if is_again && option.times == Times::Once {
            return Err(Error::new(format!("{shown} is repeated")).fix(self.usage()));
        }
        let value = match value {
            Some(value) => value,
            None if is_flag => OsString::new(),
            None => self.value_of(option)?,
        };
        self.keep(option.long, &shown, option.takes, value)?;
        Ok(None)
    }

    /// The next word, unless that is an option: then this one was forgotten to be given its value.
    fn value_of(&mut self, option: &Opt) -> Result<OsString> {
        let is_value =
            |word: &OsString| !word.as_bytes().starts_with(b"-") || word.as_bytes() == b"-";
        match self.words.pop_front().filter(is_value) {
            Some(value) => Ok(value),
            None => Err(
                Error::new(format!("--{} needs a value, {}", option.long, option.value))
                    .fix(self.usage()),
            ),
        }
    }

    fn plain(&mut self, word: OsString) -> Result<Option<Asked>> {
        let command = self.command();
        if self.arguments == 0 {
            let below = command.below.iter().find(|below| word == below.name);
            if let Some(below) = below {
                self.path.push(below);
                return Ok(None);
            }
        }
        let place = command.arguments.get(self.arguments).or_else(|| {
            let last = command.arguments.last();
            last.filter(|argument| argument.need == Need::Any)
        });
        let Some(argument) = place else {
            return Err(self.unknown_word(&word));
        };
        self.arguments += 1;
        self.keep(argument.name, argument.name, argument.takes, word)?;
        Ok(None)
    }

    fn keep(
        &mut self,
        name: &'static str,
        shown: &str,
        takes: Takes,
        value: OsString,
    ) -> Result<()> {
        let told = value.to_string_lossy();
        match takes {
            Takes::Word(words) if !words.iter().any(|word| *word == told) => {
                let meant = nearest(&told, words.iter().copied());
                let meant = meant.map_or_else(String::new, |word| format!("did you mean {word}? "));
                return Err(Error::new(format!("invalid value {told:?} for {shown}"))
                    .fix(format!("{meant}possible values: {}", words.join(", "))));
            }
            Takes::Text | Takes::Setting if value.to_str().is_none() => {
                return Err(
                    Error::new(format!("the value of {shown} is not valid UTF-8"))
                        .why(format!("{told:?}"))
                        .fix(self.usage()),
                );
            }
            Takes::Nothing
            | Takes::Text
            | Takes::File
            | Takes::Folder
            | Takes::Word(_)
            | Takes::Setting => {}
        }
        self.values.push((name, value));
        Ok(())
    }

    fn finish(self) -> Result<Asked> {
        let command = self.command();
        if command.run.is_none() {
            return Ok(Asked::Nothing(self.path));
        }
        let missing = command.arguments.get(self.arguments);
        if let Some(argument) = missing.filter(|argument| argument.need == Need::One) {
            let mut help = argument.help.chars();
            let first = help.next().map(|letter| letter.to_ascii_lowercase());
            let help: String = first.into_iter().chain(help).collect();
            let what = format!("{} is missing: {help}", argument.name);
            return Err(Error::new(what).fix(self.usage()));
        }
        let is_there = |name: &str| self.values.iter().any(|(known, _)| *known == name);
        for option in options(&self.path).filter(|option| is_there(option.long)) {
            if let Some(other) = option.against.filter(|other| is_there(other)) {
                let what = format!("--{} and --{other} cannot be combined", option.long);
                return Err(Error::new(what).fix(self.usage()));
            }
        }
        Ok(Asked::Run(Args {
            path: self.path,
            values: self.values,
        }))
    }

    fn unknown_option(&self, name: &str) -> Error {
        let known: Vec<String> = options(&self.path)
            .map(|option| format!("--{}", option.long))
            .collect();
        // Half of a name is meant for it as often as one with a letter wrong.
        let begun = known
            .iter()
            .find(|option| name.len() > 3 && option.starts_with(name));
        let meant =
            nearest(name, known.iter().map(String::as_str)).or_else(|| begun.map(String::as_str));
        let error = Error::new(format!("unknown option {name:?} of {}", called(&self.path)));
        error.fix(self.suggestion(meant))
    }

    fn unknown_word(&self, word: &OsStr) -> Error {
        let word = word.to_string_lossy();
        let command = self.command();
        if command.below.is_empty() {
            let what = format!("unexpected argument {word:?} of {}", called(&self.path));
            return Error::new(what).fix(self.usage());
        }
        let meant = nearest(&word, command.shown().map(|below| below.name));
        let what = format!("unknown command {word:?} of {}", called(&self.path));
        let suggestion = || self.suggestion(meant);
        Error::new(what).fix(meant.map_or_else(|| self.possible(), |_| suggestion()))
    }

    fn suggestion(&self, meant: Option<&str>) -> String {
        match meant {
            Some(meant) => format!("did you mean {meant}? {}", self.usage()),
            None => self.usage(),
        }
    }

    /// Commands below this one, where they are few.
    fn possible(&self) -> String {
        let names: Vec<_> = self.command().shown().map(|below| below.name).collect();
        if names.len() > POSSIBLE_MAX {
            return self.usage();
        }
        format!("commands: {}; {}", names.join(", "), self.usage())
    }

    /// Where it says how this command is used.
    fn usage(&self) -> String {
        format!("see {} --help", called(&self.path))
    }
}

/// How an option is called where something is said about it.
fn shown(option: &Opt) -> String {
    format!("--{} {}", option.long, option.value)
        .trim_end()
        .to_owned()
}

/// The words that lead to the last of these commands.
pub(super) fn called(path: &[&'static Command]) -> String {
    let names: Vec<&str> = path.iter().map(|command| command.name).collect();
    names.join(" ")
}

/// Every option that the last of these commands takes, its own first.
pub(super) fn options(path: &[&'static Command]) -> impl Iterator<Item = &'static Opt> {
    // Named before any command: the program's own options hold nowhere else.
    let version: &'static [Opt] = if path.len() == 1 { &[VERSION] } else { &[] };
    let own = path.iter().rev().flat_map(|command| command.options);
    own.chain(&[HELP]).chain(version)
}

fn option(path: &[&'static Command], long: &str) -> Option<&'static Opt> {
    options(path).find(|option| option.long == long)
}

//! What a command is: one static value that is read by the parser, `--help`, the manual pages and the completion of shells alike.
//!
//! It parses nothing and prints nothing.

use super::{args::Args, output::Output};
use crate::error::{Exit, Result};

/// A command, or a family of them.
#[derive(Debug)]
pub(super) struct Command {
    /// The word.
    pub(super) name: &'static str,
    /// One line without a full stop, from the user's point of view.
    pub(super) about: &'static str,
    /// What it takes besides; commands below it take it, too.
    pub(super) options: &'static [Opt],
    /// What follows by position.
    pub(super) arguments: &'static [Argument],
    /// The commands below it.
    pub(super) below: &'static [&'static Self],
    /// What else a person should know: whole sentences, one a line. Empty where there is nothing.
    pub(super) notes: &'static str,
    /// Command lines that work as they stand.
    pub(super) examples: &'static [&'static str],
    /// What the exit codes mean here, as the end of a sentence. Empty where nothing is special.
    pub(super) exit: &'static str,
    /// More that only `--help` and the manual have, not `-h`: its title and its lines.
    pub(super) more: Option<More>,
    /// Called by our own scripts only: left out of help, manual, completions and suggestions.
    pub(super) is_internal: bool,
    /// What it does; `None` where a command below it must be named. An error that it returns is printed by the caller.
    pub(super) run: Option<fn(&Args, &mut Output) -> Result<Exit>>,
}

impl Command {
    /// Commands below this one that people use.
    pub(super) fn shown(&self) -> impl Iterator<Item = &'static Self> + use<> {
        let below = self.below.iter().copied();
        below.filter(|below| !below.is_internal)
    }

    /// What a command has that says nothing else.
    pub(super) const BARE: Self = Self {
        name: "",
        about: "",
        options: &[],
        arguments: &[],
        below: &[],
        notes: "",
        examples: &[],
        is_internal: false,
        exit: "",
        more: None,
        run: None,
    };
}

/// The title of what follows, and what makes its lines.
pub(super) type More = (&'static str, fn() -> String);

/// Something that begins with two dashes.
#[derive(Debug)]
pub(super) struct Opt {
    /// Its name without the dashes.
    pub(super) long: &'static str,
    /// Its letter.
    pub(super) short: Option<char>,
    /// What follows it.
    pub(super) takes: Takes,
    /// How that is called in the help.
    pub(super) value: &'static str,
    /// One line.
    pub(super) help: &'static str,
    /// What holds where it is not given.
    pub(super) default: Option<&'static str>,
    /// How often it may be given.
    pub(super) times: Times,
    /// The option that it cannot stand beside.
    pub(super) against: Option<&'static str>,
}

impl Opt {
    /// One that is there or not.
    pub(super) const fn flag(long: &'static str, help: &'static str) -> Self {
        Self::value(long, Takes::Nothing, "", help)
    }

    /// One with a value.
    pub(super) const fn value(
        long: &'static str,
        takes: Takes,
        value: &'static str,
        help: &'static str,
    ) -> Self {
        Self {
            long,
            short: None,
            takes,
            value,
            help,
            default: None,
            times: Times::Once,
            against: None,
        }
    }

    /// With a letter for those who type it often.
    pub(super) const fn short(mut self, letter: char) -> Self {
        self.short = Some(letter);
        self
    }

    /// With a value that holds where none is given.
    pub(super) const fn default(mut self, value: &'static str) -> Self {
        self.default = Some(value);
        self
    }

    /// Never beside the option of this name.
    pub(super) const fn against(mut self, other: &'static str) -> Self {
        self.against = Some(other);
        self
    }
}

/// Something that stands at a place of its own.
#[derive(Debug)]
pub(super) struct Argument {
    /// How it is called, in capitals.
    pub(super) name: &'static str,
    /// What it is.
    pub(super) takes: Takes,
    /// Whether it must be there.
    pub(super) need: Need,
    /// One line.
    pub(super) help: &'static str,
}

/// What an option or an argument takes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Takes {
    /// Nothing: a flag.
    Nothing,
    /// Any text.
    Text,
    /// A file, whatever its name is made of.
    File,
    /// A folder, likewise.
    Folder,
    /// One of these words.
    Word(&'static [&'static str]),
    /// A key of the settings with its value.
    Setting,
}

/// How often an option may be given.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Times {
    /// At most once.
    Once,
    /// As often as one likes.
    Many,
}

/// How many words an argument stands for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Need {
    /// One.
    One,
    /// One or none.
    Maybe,
    /// All that follow.
    Any,
}

/// The same answer for programs.
pub(super) const JSON: Opt = Opt::flag("json", "Print JSON for programs");

/// Which file the settings are in.
pub(super) const CONFIG: Opt = Opt::value(
    "config",
    Takes::File,
    "FILE",
    "Read this file instead of /etc/pipeops-agent/config.toml, and config.d/*.toml beside it",
);

/// A setting on the command line.
pub(super) const SET: Opt = Opt {
    times: Times::Many,
    ..Opt::value(
        "set",
        Takes::Setting,
        "KEY=VALUE",
        "Set one key, stronger than files and environment",
    )
};

/// Which agent is asked.
pub(super) const SOCKET: Opt = Opt::value(
    "socket",
    Takes::File,
    "PATH",
    "Ask the agent behind this socket",
);

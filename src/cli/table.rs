//! Command descriptions: static values that clap's parser, help, manual pages and completion are
//! made from.
//!
//! `parser.rs` translates them.

use super::{args::Args, output::Output};
use crate::error::{Exit, Result};

/// A command, or a family of them.
#[derive(Debug)]
pub(super) struct Command {
    pub(super) name: &'static str,
    /// One line without a full stop, from the user's point of view.
    pub(super) about: &'static str,
    /// Its options; commands below it accept them, too.
    pub(super) options: &'static [Opt],
    pub(super) arguments: &'static [Argument],
    /// Subcommands.
    pub(super) below: &'static [&'static Self],
    /// Further notes: sentences, one a line.
    pub(super) notes: &'static str,
    /// Command lines that work.
    pub(super) examples: &'static [&'static str],
    /// Meaning of its exit codes; empty if it is the usual one.
    pub(super) exit: &'static str,
    /// Section of `--help` and the manual that `-h` leaves out.
    pub(super) more: Option<More>,
    /// Internal: left out of help, manual, completions and suggestions.
    pub(super) is_internal: bool,
    /// Its function; `None` if a subcommand is required. The caller prints the error that it
    /// returns.
    pub(super) run: Option<fn(&Args, &mut Output) -> Result<Exit>>,
}

impl Command {
    /// Subcommands that are not internal.
    pub(super) fn shown(&self) -> impl Iterator<Item = &'static Self> + use<> {
        let below = self.below.iter().copied();
        below.filter(|below| !below.is_internal)
    }

    /// Defaults of a command.
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

/// Title of a section, and the function that returns its lines.
pub(super) type More = (&'static str, fn() -> String);

/// An option.
#[derive(Debug)]
pub(super) struct Opt {
    /// Long name, without dashes.
    pub(super) long: &'static str,
    /// Short name.
    pub(super) short: Option<char>,
    /// Kind of its value.
    pub(super) takes: Takes,
    /// Name of its value in the help.
    pub(super) value: &'static str,
    /// One line.
    pub(super) help: &'static str,
    /// Earlier long name, which is still accepted.
    pub(super) former: Option<&'static str>,
    /// Default value.
    pub(super) default: Option<&'static str>,
    /// Number of occurrences.
    pub(super) times: Times,
    /// An option that it conflicts with.
    pub(super) against: Option<&'static str>,
}

impl Opt {
    pub(super) const fn flag(long: &'static str, help: &'static str) -> Self {
        Self::value(long, Takes::Nothing, "", help)
    }

    /// An option with a value.
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
            former: None,
            default: None,
            times: Times::Once,
            against: None,
        }
    }

    /// An option with a text that may be given more than once.
    pub(super) const fn many(long: &'static str, value: &'static str, help: &'static str) -> Self {
        Self {
            times: Times::Many,
            ..Self::value(long, Takes::Text, value, help)
        }
    }

    /// Adds a short name.
    pub(super) const fn short(mut self, character: char) -> Self {
        self.short = Some(character);
        self
    }

    /// Adds a default value.
    pub(super) const fn default(mut self, value: &'static str) -> Self {
        self.default = Some(value);
        self
    }

    /// Adds a conflict with the option of this name.
    pub(super) const fn against(mut self, other: &'static str) -> Self {
        self.against = Some(other);
        self
    }
}

/// A positional argument.
#[derive(Debug)]
pub(super) struct Argument {
    /// Name in capitals.
    pub(super) name: &'static str,
    /// Kind of its value.
    pub(super) takes: Takes,
    /// Number of words.
    pub(super) need: Need,
    /// One line.
    pub(super) help: &'static str,
}

/// Kind of value of an option or an argument.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Takes {
    /// Nothing: a flag.
    Nothing,
    /// Any text.
    Text,
    /// A file name of any bytes.
    File,
    /// A directory name of any bytes.
    Folder,
    /// One of these words.
    Word(&'static [&'static str]),
    /// A key of the settings with a value.
    Setting,
    /// The name of an app.
    App,
}

/// Number of occurrences of an option.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Times {
    /// At most once.
    Once,
    /// Any number of times.
    Many,
}

/// Number of words of an argument.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Need {
    One,
    /// One or none.
    Maybe,
    /// All that follow.
    Any,
}

/// Output for programs.
pub(super) const JSON: Opt = Opt::flag("json", "Print JSON for programs");

/// Settings file.
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
        "Set one key; overrides files and environment",
    )
};

/// Socket of the agent.
pub(super) const SOCKET: Opt = Opt::value(
    "socket",
    Takes::File,
    "PATH",
    "Connect to the agent on this socket",
);

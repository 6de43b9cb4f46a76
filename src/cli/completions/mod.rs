//! `completions`: shell completion, computed by clap_complete from the table of commands.
//!
//! The scripts only pass words to `completions next` and its output back, so an update of the
//! program does not require new scripts.

use std::{ffi::OsString, iter, os::unix::ffi::OsStrExt};

use clap_complete::engine::complete;
use serde_json::json;

use super::{
    PROGRAM,
    args::Args,
    output::Output,
    parser::{self, FILES, FOLDERS},
    table::{Argument, Command, JSON, Need, Takes},
};
use crate::{core::packed, error::Exit};

const BASH: &str = "src/cli/completions/bash";
const ZSH: &str = "src/cli/completions/zsh";
const FISH: &str = "src/cli/completions/fish";

/// `completions`.
pub(super) static COMMAND: Command = Command {
    name: "completions",
    about: "Print the completion script for a shell",
    options: &[JSON],
    below: &[&OF_BASH, &OF_ZSH, &OF_FISH, &NEXT],
    examples: &[
        "pipeops-agent completions bash > /etc/bash_completion.d/pipeops-agent",
        "pipeops-agent completions zsh > /usr/local/share/zsh/site-functions/_pipeops-agent",
        "pipeops-agent completions fish > ~/.config/fish/completions/pipeops-agent.fish",
        "source <(pipeops-agent completions bash)",
    ],
    ..Command::BARE
};

static OF_BASH: Command = Command {
    name: "bash",
    about: "Print the script for bash",
    run: Some(|args, output| Ok(script(BASH, args, output))),
    ..Command::BARE
};

static OF_ZSH: Command = Command {
    name: "zsh",
    about: "Print the script for zsh",
    run: Some(|args, output| Ok(script(ZSH, args, output))),
    ..Command::BARE
};

static OF_FISH: Command = Command {
    name: "fish",
    about: "Print the script for fish",
    run: Some(|args, output| Ok(script(FISH, args, output))),
    ..Command::BARE
};

static NEXT: Command = Command {
    name: "next",
    about: "Print the words that may stand last in a command line, for the scripts",
    is_internal: true,
    arguments: &[Argument {
        name: "WORDS",
        takes: Takes::File,
        need: Need::Any,
        help: "The words of a command line after the name of the program",
    }],
    notes: "A line for each word: the word, a tab, what it means.\n\
            :files and :folders stand for names of files and folders, which the shell knows itself.",
    examples: &["pipeops-agent completions next -- status --"],
    run: Some(|args, output| Ok(next(args, output))),
    ..Command::BARE
};

fn script(source: &str, args: &Args, output: &mut Output) -> Exit {
    let text = packed::script(source);
    if args.has("json") {
        output.json(&json!({ "script": text }));
    } else {
        output.line(text.trim_end());
    }
    Exit::Fine
}

fn next(args: &Args, output: &mut Output) -> Exit {
    let mut words = args.all("WORDS");
    let last = words.pop().unwrap_or_default();
    let found = candidates(&words, &last);
    if args.has("json") {
        let found = found.iter();
        let found = found.map(|(word, meaning)| json!({ "word": word, "meaning": meaning }));
        output.json(&json!({ "candidates": found.collect::<Vec<_>>() }));
    } else {
        for (word, meaning) in found {
            output.line(format!("{word}\t{meaning}").trim_end());
        }
    }
    Exit::Fine
}

type Candidate = (String, String);

/// Candidates for `last`, after `words`.
fn candidates(words: &[String], last: &str) -> Vec<Candidate> {
    let line = words.iter().map(String::as_str).chain([last]);
    let line: Vec<_> = iter::once(PROGRAM.name)
        .chain(line)
        .map(OsString::from)
        .collect();
    let place = line.len().saturating_sub(1);
    let found = complete(&mut parser::program(), line, place, None).unwrap_or_default();
    // Options are offered once one was begun, and nothing else then.
    let wants_options = last.starts_with('-');
    let shown = found.iter().filter(|found| {
        let is_option = found.get_value().as_bytes().starts_with(b"-");
        !found.is_hide_set() && is_option == wants_options
    });
    let shown = shown.map(|found| {
        let word = found.get_value().to_string_lossy();
        let meaning = found.get_help().map(ToString::to_string);
        // File names have no prefix: the shell completes them.
        let left_to_the_shell = [FILES, FOLDERS].into_iter().find(|it| word.ends_with(it));
        let word = left_to_the_shell.map_or_else(|| word.to_string(), str::to_owned);
        (word, meaning.unwrap_or_default())
    });
    shown.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(line: &str) -> Vec<String> {
        let mut words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let last = words.pop().unwrap();
        let found = candidates(&words, &last);
        found.into_iter().map(|(word, _)| word).collect()
    }

    #[test]
    fn what_may_follow_follows_from_the_table() {
        assert_eq!(next("sta"), ["status"]);
        assert_eq!(next("metrics "), ["query", "export", "streams", "outbox"]);
        assert_eq!(next("metrics ex"), ["export"]);
        assert_eq!(next("metrics export --fo"), ["--format"]);
        assert_eq!(next("metrics export --format "), ["csv", "json"]);
        assert_eq!(next("metrics export --format=c"), ["--format=csv"]);
        assert_eq!(next("status --socket "), [":files"]);
        assert_eq!(next("status --socket=/r"), [":files"]);
        assert_eq!(next("k3s restore --config=/e"), [":files"]);
        assert!(next("k3s restore --json=").is_empty());
        assert_eq!(next("metrics --state-dir "), [":folders"]);
        assert_eq!(next("run --set log.l"), ["log.level="]);
    }

    #[test]
    fn internal_commands_are_not_offered() {
        assert_eq!(next("completions "), ["bash", "zsh", "fish"]);
        assert!(next("completions ne").is_empty());
    }

    #[test]
    fn nothing_is_offered_where_any_text_may_stand() {
        assert!(next("access test ").is_empty());
        assert!(next("status -- --").is_empty());
    }
}

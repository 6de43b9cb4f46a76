//! `completions`: shell completion, computed by the program itself from the table of commands.
//!
//! The scripts only pass words to `completions next` and its output back, so an update of the
//! program does not require new scripts.

use serde_json::json;

use super::{
    PROGRAM,
    args::{Args, options},
    output::Output,
    table::{Argument, Command, JSON, Need, Opt, Takes},
};
use crate::{config::keys::KEYS, error::Exit};

const BASH: &str = include_str!("completions/bash");
const ZSH: &str = include_str!("completions/zsh");
const FISH: &str = include_str!("completions/fish");

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

fn script(text: &str, args: &Args, output: &mut Output) -> Exit {
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
    let found = candidates(&PROGRAM, &words, &last);
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

/// What may stand in the place of `last`, after `words`.
fn candidates(program: &'static Command, words: &[String], last: &str) -> Vec<Candidate> {
    let mut place = Place {
        path: vec![program],
        ..Place::default()
    };
    for word in words {
        place.pass(word);
    }
    let mut found = place.candidates(last);
    found.retain(|(word, _)| word.starts_with(last) || word.starts_with(':'));
    found
}

/// Where on a command line one is.
#[derive(Default)]
struct Place {
    path: Vec<&'static Command>,
    arguments: usize,
    /// The option whose value comes next.
    awaits: Option<&'static Opt>,
    /// Whether nothing is an option any more.
    is_plain: bool,
}

impl Place {
    fn command(&self) -> &'static Command {
        self.path.last().copied().unwrap_or(&Command::BARE)
    }

    fn pass(&mut self, word: &str) {
        if self.awaits.take().is_some() {
            return;
        }
        if self.is_plain || !word.starts_with('-') {
            let command = self.command();
            let below = command.below.iter().find(|below| below.name == word);
            match below.filter(|_| self.arguments == 0) {
                Some(below) => self.path.push(below),
                None => self.arguments += 1,
            }
        } else if word == "--" {
            self.is_plain = true;
        } else {
            let is_it = |option: &&Opt| {
                word.strip_prefix("--") == Some(option.long)
                    || option
                        .short
                        .is_some_and(|letter| word.ends_with(letter) && word.len() == 2)
            };
            let option = options(&self.path).find(is_it);
            self.awaits = option.filter(|option| option.takes != Takes::Nothing);
        }
    }

    fn candidates(&self, last: &str) -> Vec<Candidate> {
        if let Some(option) = self.awaits {
            return values(option.takes);
        }
        if self.is_plain || !last.starts_with('-') {
            return self.words();
        }
        if let Some((name, _)) = last.split_once('=') {
            let is_it = |option: &&Opt| name.strip_prefix("--") == Some(option.long);
            let found = options(&self.path).find(is_it);
            let found = found.map_or_else(Vec::new, |option| values(option.takes));
            let whole = |(word, meaning): Candidate| {
                let is_special = word.starts_with(':');
                let word = if is_special {
                    word
                } else {
                    format!("{name}={word}")
                };
                (word, meaning)
            };
            return found.into_iter().map(whole).collect();
        }
        let told = |option: &Opt| (format!("--{}", option.long), option.help.to_owned());
        options(&self.path).map(told).collect()
    }

    fn words(&self) -> Vec<Candidate> {
        let command = self.command();
        let mut found = Vec::new();
        if self.arguments == 0 {
            let below = command.shown();
            found.extend(below.map(|below| (below.name.to_owned(), below.about.to_owned())));
        }
        let last = command.arguments.last();
        let last = last.filter(|argument| argument.need == Need::Any);
        if let Some(argument) = command.arguments.get(self.arguments).or(last) {
            found.extend(values(argument.takes));
        }
        found
    }
}

fn values(takes: Takes) -> Vec<Candidate> {
    let special = |word: &str| vec![(word.to_owned(), String::new())];
    match takes {
        Takes::Nothing | Takes::Text => Vec::new(),
        Takes::File => special(":files"),
        Takes::Folder => special(":folders"),
        Takes::Word(words) => words
            .iter()
            .map(|word| ((*word).to_owned(), String::new()))
            .collect(),
        Takes::Setting => KEYS
            .iter()
            .map(|key| (format!("{}=", key.path), key.doc.to_owned()))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(line: &str) -> Vec<String> {
        let mut words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let last = words.pop().unwrap();
        let found = candidates(&PROGRAM, &words, &last);
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
        assert_eq!(next("metrics --state-dir "), [":folders"]);
        assert_eq!(next("run --set log.l"), ["log.level="]);
    }

    #[test]
    fn a_value_is_not_taken_for_a_command() {
        assert_eq!(next("metrics --config export "), next("metrics "));
        assert!(next("access test ").is_empty());
        assert!(next("status -- --").is_empty());
    }
}

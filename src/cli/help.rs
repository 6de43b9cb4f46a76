//! What the table of commands says to people: as the text of `--help`, and as pages of the manual.

use super::{
    args::{Length, called, options},
    table::{Argument, Command, Need, Opt, Takes},
};

/// A part of the help.
#[derive(Debug)]
struct Section {
    title: &'static str,
    body: Body,
}

#[derive(Debug)]
enum Body {
    /// Lines as they are.
    Lines(Vec<String>),
    /// Whole sentences, one a line.
    Sentences(Vec<String>),
    /// Terms, and what each means.
    Terms(Vec<(String, String)>),
}

/// The help of the last of these commands; `title` may colour a title.
pub(super) fn text(
    path: &[&'static Command],
    length: Length,
    title: impl Fn(&str) -> String,
) -> String {
    let command = last(path);
    let mut lines = vec![command.about.to_owned()];
    let options: Vec<&Opt> = options(path).collect();
    for section in sections(path, &options, length) {
        lines.extend([String::new(), title(section.title)]);
        match section.body {
            Body::Lines(body) | Body::Sentences(body) => {
                lines.extend(body.iter().map(|line| indented(line)));
            }
            Body::Terms(terms) => {
                let width = terms.iter().map(|(term, _)| term.chars().count()).max();
                let width = width.unwrap_or(0);
                let told = |(term, meaning): &(String, String)| {
                    indented(&format!("{term:<width$}  {meaning}"))
                };
                lines.extend(terms.iter().map(told));
            }
        }
    }
    if length == Length::Short && command.more.is_some() {
        lines.extend([String::new(), "See --help for more.".to_owned()]);
    }
    lines.join("\n")
}

fn indented(line: &str) -> String {
    format!("  {line}").trim_end().to_owned()
}

/// Scope of a page of the manual.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Extent {
    /// A command with all that are below it, each as a chapter.
    Family,
    /// A command alone: those below it have pages of their own.
    Alone,
}

/// The name of the page of the last of these commands: `pipeops-agent-access-test`.
pub(super) fn page_name(path: &[&'static Command]) -> String {
    called(path).replace(' ', "-")
}

/// The page of the manual for the last of these commands; `version` is the program's.
pub(super) fn page(path: &[&'static Command], extent: Extent, version: &str) -> String {
    let name = page_name(path);
    let mut lines = vec![
        format!(
            ".TH {} 1 \"\" \"pipeops-agent {version}\" \"User Commands\"",
            name.to_uppercase()
        ),
        ".SH NAME".to_owned(),
        format!("{name} \\- {}", escaped(last(path).about)),
    ];
    chapter(path, ".SH", &mut lines);
    match extent {
        Extent::Family => families(path, &mut lines),
        Extent::Alone => lines.extend(see_also(path)),
    }
    lines.push(String::new());
    lines.join("\n")
}

/// Those below a command, each as a chapter of its own.
fn families(path: &[&'static Command], lines: &mut Vec<String>) {
    for below in last(path).shown() {
        let path: Vec<_> = path.iter().copied().chain([below]).collect();
        lines.push(format!(
            ".SH {}",
            called(&path).to_uppercase().replace('-', "\\-")
        ));
        lines.push(escaped(below.about));
        chapter(&path, ".SS", lines);
        families(&path, lines);
    }
}

/// The pages of the command above and of those below.
fn see_also(path: &[&'static Command]) -> Vec<String> {
    let above = path.split_last().map(|(_, above)| above.to_vec());
    let below = last(path).shown();
    let below = below.map(|below| path.iter().copied().chain([below]).collect());
    let pages = above
        .into_iter()
        .filter(|above| !above.is_empty())
        .chain(below);
    let pages: Vec<_> = pages
        .map(|path: Vec<_>| format!("\\fB{}\\fR(1)", escaped(&page_name(&path))))
        .collect();
    if pages.is_empty() {
        return Vec::new();
    }
    vec![".SH SEE ALSO".to_owned(), pages.join(",\n")]
}

/// All sections of a command.
fn chapter(path: &[&'static Command], mark: &str, lines: &mut Vec<String>) {
    // What holds for all of a family is said where the page begins.
    let options: Vec<&Opt> = match mark {
        ".SH" => options(path).collect(),
        _ => last(path).options.iter().collect(),
    };
    for section in sections(path, &options, Length::Long) {
        lines.push(format!("{mark} {}", customary(section.title)));
        match section.body {
            Body::Lines(body) => {
                lines.push(".nf".to_owned());
                lines.extend(body.iter().map(|line| escaped(line)));
                lines.push(".fi".to_owned());
            }
            Body::Sentences(body) => {
                let paragraphs = body.iter().map(|line| escaped(line));
                lines.extend(paragraphs.flat_map(|line| [".PP".to_owned(), line]));
            }
            Body::Terms(terms) => {
                for (term, meaning) in terms {
                    lines.push(".TP".to_owned());
                    lines.push(format!("\\fB{}\\fR", escaped(term.trim_start())));
                    lines.push(escaped(&meaning));
                }
            }
        }
    }
}

/// The title that a reader of manuals looks for.
fn customary(title: &str) -> String {
    match title {
        "Usage" => "SYNOPSIS".to_owned(),
        "Notes" => "DESCRIPTION".to_owned(),
        "Exit codes" => "EXIT STATUS".to_owned(),
        other => other.to_uppercase(),
    }
}

/// Text that troff prints as it is.
fn escaped(text: &str) -> String {
    let mut line = String::new();
    if text.starts_with(['.', '\'']) {
        line.push_str("\\&");
    }
    for letter in text.chars() {
        match letter {
            '\\' => line.push_str("\\e"),
            '-' => line.push_str("\\-"),
            '\'' => line.push_str("\\(aq"),
            '`' => line.push_str("\\(ga"),
            '^' => line.push_str("\\(ha"),
            '~' => line.push_str("\\(ti"),
            other => line.push(other),
        }
    }
    line
}

fn sections(path: &[&'static Command], options: &[&Opt], length: Length) -> Vec<Section> {
    let command = last(path);
    let terms = |title, terms| Section {
        title,
        body: Body::Terms(terms),
    };
    let lines = |title, lines| Section {
        title,
        body: Body::Lines(lines),
    };
    let sentences = |title, text: &str| Section {
        title,
        body: Body::Sentences(text.lines().map(str::to_owned).collect()),
    };
    let mut sections = vec![lines("Usage", vec![usage(path)])];
    if !command.below.is_empty() {
        let below = command.shown();
        let below = below.map(|below| (below.name.to_owned(), below.about.to_owned()));
        sections.push(terms("Commands", below.collect()));
    }
    if !command.arguments.is_empty() {
        let arguments = command.arguments.iter();
        let arguments = arguments.map(|it| (it.name.to_owned(), meaning(it.help, it.takes, None)));
        sections.push(terms("Arguments", arguments.collect()));
    }
    if !options.is_empty() {
        let options = options.iter().map(|it| option(it));
        sections.push(terms("Options", options.collect()));
    }
    if !command.notes.is_empty() {
        sections.push(sentences("Notes", command.notes));
    }
    if !command.examples.is_empty() {
        sections.push(lines(
            "Examples",
            command
                .examples
                .iter()
                .map(|line| (*line).to_owned())
                .collect(),
        ));
    }
    if !command.exit.is_empty() {
        sections.push(sentences("Exit codes", command.exit));
    }
    if let Some((title, more)) = command.more.filter(|_| length == Length::Long) {
        sections.push(lines(title, more().lines().map(str::to_owned).collect()));
    }
    sections
}

fn last(path: &[&'static Command]) -> &'static Command {
    path.last().copied().unwrap_or(&Command::BARE)
}

/// The line that says how a command is written.
pub(super) fn usage(path: &[&'static Command]) -> String {
    let command = last(path);
    let mut words = vec![called(path)];
    match (command.below.is_empty(), command.run) {
        (true, _) => {}
        (false, None) => words.push("COMMAND".to_owned()),
        (false, Some(_)) => words.push("[COMMAND]".to_owned()),
    }
    words.extend(command.arguments.iter().map(written));
    words.push("[OPTIONS]".to_owned());
    words.join(" ")
}

fn written(argument: &Argument) -> String {
    match argument.need {
        Need::One => argument.name.to_owned(),
        Need::Maybe => format!("[{}]", argument.name),
        Need::Any => format!("[{}...]", argument.name),
    }
}

fn option(option: &Opt) -> (String, String) {
    let letter = option
        .short
        .map_or_else(|| "    ".to_owned(), |letter| format!("-{letter}, "));
    let written = format!("{letter}--{} {}", option.long, option.value);
    (
        written.trim_end().to_owned(),
        meaning(option.help, option.takes, option.default),
    )
}

fn meaning(help: &str, takes: Takes, default: Option<&str>) -> String {
    let words = match takes {
        Takes::Word(words) => format!(": {}", words.join(", ")),
        Takes::Nothing | Takes::Text | Takes::File | Takes::Folder | Takes::Setting => {
            String::new()
        }
    };
    let default = default.map_or_else(String::new, |default| format!(" [default: {default}]"));
    format!("{help}{words}{default}")
}

//! Output of commands: plain text, colours on a terminal only, JSON on request.
//!
//! A closed pipe (`| head`) is not an error, because nobody is left to read one.

use std::{
    io::{IsTerminal, Write},
    os::fd::AsFd as _,
    time::Duration,
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

pub(super) use crate::core::{format::size, time::moment};
use crate::{
    core::{
        format::is_unprintable,
        time::{Wall, in_words},
    },
    error::{Error, Result},
};

/// The two streams of a command.
#[derive(Debug)]
pub(super) struct Output {
    out: std::io::Stdout,
    err: std::io::Stderr,
    colours_out: Colours,
    colours_err: Colours,
    is_dumb: bool,
    is_over: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Colours {
    On,
    Off,
}

/// Role of a piece of text, which decides its colour.
#[derive(Clone, Copy, Debug)]
pub(super) enum Tone {
    Strong,
    Faint,
    Good,
    Doubtful,
    Bad,
}

impl Tone {
    /// The tone of a condition, an event or a finding.
    pub(super) fn of_severity(severity: &str) -> Self {
        match severity {
            "critical" | "error" => Self::Bad,
            "note" | "info" | "debug" | "trace" => Self::Faint,
            _ => Self::Doubtful,
        }
    }

    fn code(self) -> &'static str {
        match self {
            Self::Strong => "1",
            Self::Faint => "2",
            Self::Good => "32",
            Self::Doubtful => "33",
            Self::Bad => "31",
        }
    }
}

impl Output {
    /// The streams of this process.
    pub(super) fn of_process() -> Self {
        let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let colours = |is_terminal: bool| {
            if is_terminal && !is_set("NO_COLOR") && !is_dumb {
                Colours::On
            } else {
                Colours::Off
            }
        };
        let (out, err) = (std::io::stdout(), std::io::stderr());
        Self {
            colours_out: colours(out.is_terminal()),
            colours_err: colours(err.is_terminal()),
            out,
            err,
            is_dumb,
            is_over: false,
        }
    }

    /// Without colours.
    #[cfg(test)]
    pub(super) fn plain() -> Self {
        Self {
            out: std::io::stdout(),
            err: std::io::stderr(),
            colours_out: Colours::Off,
            colours_err: Colours::Off,
            is_dumb: true,
            is_over: false,
        }
    }

    /// `text` in its tone, if standard output shows colours.
    pub(super) fn toned(&self, tone: Tone, text: &str) -> String {
        toned(self.colours_out, tone, text)
    }

    /// Width of the terminal behind standard output in columns; `None` without a terminal.
    pub(super) fn width(&self) -> Option<usize> {
        let size = rustix::termios::tcgetwinsize(&self.out).ok()?;
        Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
    }

    /// True if standard output is a terminal.
    pub(super) fn is_terminal(&self) -> bool {
        self.out.is_terminal()
    }

    /// True if standard output is a terminal that understands cursor movement.
    pub(super) fn is_drawn(&self) -> bool {
        self.is_terminal() && !self.is_dumb
    }

    /// Waits, and returns true while standard output still has a reader.
    pub(super) fn sleep(&mut self, time: Duration) -> bool {
        let mut reader = [PollFd::new(self.out.as_fd(), PollFlags::empty())];
        let wait = PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX);
        // No event is requested, so any event is the end of the reader.
        let is_over = matches!(poll(&mut reader, wait), Ok(1..));
        self.is_over |= is_over;
        !self.is_over
    }

    /// True once standard output has no reader.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Replaces the contents of the terminal with `text`.
    pub(super) fn draw(&mut self, text: &str) {
        // Home, the text with each line's old rest removed, and whatever was below it.
        let text = text.replace('\n', "\u{1b}[K\n");
        self.write(&format!("\u{1b}[H{text}\u{1b}[K\u{1b}[J"));
    }

    /// Line with the remedy, to be printed below a problem.
    pub(super) fn fix(&self, fix: Option<&str>) -> Option<String> {
        let word = self.toned(Tone::Strong, "fix:");
        fix.map(|fix| format!("  {word} {}", printable(fix)))
    }

    /// Help of a command on standard output, with its titles emphasized.
    pub(super) fn help(&mut self, text: &str) {
        let is_title = |line: &&str| line.ends_with(':') && !line.starts_with(' ');
        let lines = text.lines().map(|line| match Some(line).filter(is_title) {
            Some(title) => self.toned(Tone::Strong, title),
            None => line.to_owned(),
        });
        let lines: Vec<_> = lines.collect();
        self.line(&lines.join("\n"));
    }

    /// A line on standard output.
    pub(super) fn line(&mut self, text: &str) {
        self.write(&format!("{text}\n"));
    }

    fn write(&mut self, text: &str) {
        let written = self.out.write_all(text.as_bytes());
        self.is_over |= written.and_then(|()| self.out.flush()).is_err();
    }

    /// Content of a file on standard output. A reader that goes away before its end is an error.
    pub(super) fn bytes(&mut self, content: &[u8]) -> Result<()> {
        let written = self.out.write_all(content).and_then(|()| self.out.flush());
        written.map_err(|error| Error::new("cannot write to standard output").because(&error))
    }

    /// A value as JSON on standard output.
    pub(super) fn json(&mut self, value: &serde_json::Value) {
        self.line(&escaped_json(&format!("{value:#}")));
    }

    /// A value as JSON in a line of its own.
    pub(super) fn json_line(&mut self, value: &serde_json::Value) {
        self.line(&escaped_json(&value.to_string()));
    }

    /// An error with its fix on standard error.
    pub(super) fn error(&mut self, error: &Error) {
        self.problem(Tone::Bad, "error", error);
    }

    /// A warning with its fix on standard error.
    pub(super) fn warning(&mut self, warning: &Error) {
        self.problem(Tone::Doubtful, "warning", warning);
    }

    fn problem(&mut self, tone: Tone, word: &str, error: &Error) {
        let word = toned(self.colours_err, tone, &format!("{word}:"));
        let mut text = format!("{word} {}\n", printable(&error.sentence()));
        if let Some(fix) = &error.fix {
            let word = toned(self.colours_err, Tone::Strong, "fix:");
            text = format!("{text}  {word} {}\n", printable(fix));
        }
        write(&mut self.err, &text);
    }

    /// A line of progress on standard error: standard output is for the result.
    pub(super) fn note(&mut self, text: &str) {
        write(&mut self.err, &format!("{text}\n"));
    }
}

fn toned(colours: Colours, tone: Tone, text: &str) -> String {
    match colours {
        Colours::On => format!("\u{1b}[{}m{text}\u{1b}[0m", tone.code()),
        Colours::Off => text.to_owned(),
    }
}

fn write(stream: &mut dyn Write, text: &str) {
    // See the head of this file.
    drop(
        stream
            .write_all(text.as_bytes())
            .and_then(|()| stream.flush()),
    );
}

/// JSON without control sequences: they can occur in strings only, where an escape means the same.
fn escaped_json(json: &str) -> String {
    if !json.chars().any(is_harmful) {
        return json.to_owned();
    }
    let letters = json.chars().map(|character| {
        if is_harmful(character) {
            format!("\\u{:04x}", u32::from(character))
        } else {
            character.to_string()
        }
    });
    letters.collect()
}
/// Printable text of several lines, those after the first one indented.
pub(super) fn indented(text: &str) -> String {
    printable(text).replace('\n', "\n    ")
}

/// Text from outside (file names, answers) with control sequences escaped.
pub(super) fn printable(text: &str) -> String {
    if !text.chars().any(is_harmful) {
        return text.to_owned();
    }
    text.chars()
        .map(|c| {
            if is_harmful(c) {
                c.escape_default().to_string()
            } else {
                c.to_string()
            }
        })
        .collect()
}

/// True for control characters other than a line end.
fn is_harmful(character: char) -> bool {
    is_unprintable(character) && character != '\n'
}

/// Rows as lines of aligned columns, two spaces apart.
pub(super) fn columns(rows: &[Vec<String>]) -> Vec<String> {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..count).map(width).collect();
    rows.iter()
        .map(|row| {
            let cells = row
                .iter()
                .zip(&widths)
                .map(|(cell, width)| format!("{cell:<width$}"));
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        })
        .collect()
}

/// Time since a timestamp; `None` if it is invalid or in the future (a clock was set).
pub(super) fn ago(stamp: &str, now: Wall) -> Option<String> {
    let millis = now
        .millis()
        .checked_sub(Wall::parse_rfc3339(stamp)?.millis())?;
    u64::try_from(millis)
        .ok()
        .map(|millis| in_words(Duration::from_millis(millis)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_sequences_are_shown_not_obeyed() {
        assert_eq!(printable("a\u{1b}[2Jb\nc"), "a\\u{1b}[2Jb\nc");
        assert_eq!(printable("a\u{202e}b\u{9b}2J"), "a\\u{202e}b\\u{9b}2J");
        let value = serde_json::json!({ "a": "\u{1b}]0;x\u{7}\u{9b}\u{202e}é" });
        let text = escaped_json(&value.to_string());
        assert!(!text.chars().any(is_unprintable), "{text}");
        let read: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read, value);
    }

    #[test]
    fn columns_line_up() {
        let row = |a: &str, b: &str| vec![a.to_owned(), b.to_owned()];
        assert_eq!(columns(&[row("key", "1"), row("k", "")]), ["key  1", "k"]);
    }

    #[test]
    fn a_stamp_of_the_future_is_not_told_as_an_age() {
        let now = Wall::parse_rfc3339("2026-06-16T06:00:00Z").unwrap();
        assert_eq!(ago("2026-06-16T05:59:00Z", now).as_deref(), Some("1 min"));
        assert_eq!(ago("2030-01-01T00:00:00Z", now), None);
        assert_eq!(ago("soon", now), None);
    }
}

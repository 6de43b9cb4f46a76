//! Prompts on the terminal. In a pipe nothing is asked: a missing value is an error that names its
//! option.

use std::io::{BufRead, IsTerminal, Read, Write, stderr, stdin};

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

use super::args::Args;
use crate::{
    core::secret::Secret,
    error::{Error, Result},
};

/// Longest line that is read.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// True if there is a terminal to ask on.
pub(super) fn is_possible() -> bool {
    stdin().is_terminal() && stderr().is_terminal()
}

/// The trimmed answer to `question`; `usual` if it is empty.
pub(super) fn line(question: &str, usual: &str) -> Result<String> {
    let shown = match usual {
        "" => format!("{question}: "),
        usual => format!("{question} [{usual}]: "),
    };
    prompt(&shown);
    let typed = input()?;
    Ok(match typed.trim() {
        "" => usual.to_owned(),
        typed => typed.to_owned(),
    })
}

/// True if `question` is answered with yes.
pub(super) fn is_agreed(question: &str) -> Result<bool> {
    prompt(&format!("{question} [y/N] "));
    let typed = input()?.trim().to_lowercase();
    Ok(typed == "y" || typed == "yes")
}

/// Permission for a change that is hard to undo: `--yes`, or an answer. Without a terminal to ask
/// on it is an error.
pub(super) fn is_permitted(args: &Args, question: &str) -> Result<bool> {
    if args.has("yes") {
        return Ok(true);
    }
    if is_possible() {
        return is_agreed(question);
    }
    Err(Error::new("nothing was changed")
        .why(format!("cannot ask for confirmation: {question}"))
        .fix("confirm with --yes"))
}

/// Reads a secret without echo; from a pipe, its first line.
pub(super) fn secret(question: &str) -> Result<Secret> {
    if !is_possible() {
        return input().map(|line| Secret::new(line.trim_end_matches(['\r', '\n'])));
    }
    // First the terminal, then the question: what is typed at once is hidden, too, and not lost.
    let unseen = Unseen::begin()?;
    prompt(&format!("{question} (input is hidden): "));
    let typed = Unseen::read();
    drop(unseen);
    prompt("\n");
    typed.map(Secret::new)
}

fn prompt(text: &str) {
    // Without a terminal there is nobody who could read it.
    drop(
        stderr()
            .write_all(text.as_bytes())
            .and_then(|()| stderr().flush()),
    );
}

fn input() -> Result<String> {
    let mut line = Vec::new();
    let mut input = stdin().lock().take(LINE_BYTES_MAX);
    let read = input.read_until(b'\n', &mut line);
    read.map_err(|error| cannot().because(&error))?;
    String::from_utf8(line).map_err(|error| cannot().because(&error.utf8_error()))
}

fn cannot() -> Error {
    Error::new("cannot read from the terminal")
}

/// A terminal without echo; dropping this restores the echo.
struct Unseen {
    before: Termios,
}

impl Unseen {
    fn begin() -> Result<Self> {
        let unusable =
            |error: rustix::io::Errno| Error::new("cannot turn off terminal echo").because(&error);
        let before = tcgetattr(stdin()).map_err(unusable)?;
        let mut now = before.clone();
        // Also the signals of keys, which would end this program before it can switch everything on
        // again.
        now.local_modes
            .remove(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG);
        tcsetattr(stdin(), OptionalActions::Flush, &now).map_err(unusable)?;
        Ok(Self { before })
    }

    fn read() -> Result<String> {
        let mut typed = Vec::new();
        for byte in stdin().lock().bytes() {
            match byte.map_err(|error| cannot().because(&error))? {
                b'\r' | b'\n' | 0x04 => break,
                0x03 => return Err(Error::new("cancelled")),
                0x08 | 0x7f => {
                    // A character may be several bytes.
                    while typed.pop().is_some_and(|byte: u8| byte & 0xc0 == 0x80) {}
                }
                byte => typed.push(byte),
            }
        }
        String::from_utf8(typed).map_err(|error| cannot().because(&error.utf8_error()))
    }
}

impl Drop for Unseen {
    fn drop(&mut self) {
        tcsetattr(stdin(), OptionalActions::Flush, &self.before).ok();
    }
}

//! Commands that follow: they print events of the running agent as they happen, wait for an agent
//! that is gone, and continue where they were.

use std::time::Duration;

use serde_json::Value;

use super::{
    args::Args,
    output::Output,
    socket::{self, Flow, Lost},
    view::View,
};
use crate::{
    error::{Error, Exit, Result},
    wire::{api::STREAM_PATH, json},
};

/// Longest silence of a living agent: it sends a sign of life every 2 s.
const SILENCE: Duration = Duration::from_secs(15);
/// Interval between attempts to reach an agent that is gone.
pub(super) const RETRY_WAIT: Duration = Duration::from_secs(1);

/// Prints each item of a stream once.
pub(super) trait Printer {
    /// Reads the list of existing items: at the beginning, and after a gap.
    fn read(&mut self, output: &mut Output) -> Result<()>;

    /// Takes an item that is new, or that the list had already.
    fn hear(&mut self, message: &Value, output: &mut Output);
}

/// Prints a topic until it is interrupted or standard output has no reader. No agent at the
/// beginning is an error.
pub(super) fn follow(
    args: &Args,
    topic: &str,
    printer: &mut dyn Printer,
    output: &mut Output,
) -> Result<Exit> {
    let mut waiting = Waiting::default();
    let mut position = Position::default();
    loop {
        match session(args, topic, &mut position, printer, output, &mut waiting) {
            Ok(()) => return Ok(Exit::Fine),
            Err(error) if !position.has_begun => return Err(error),
            Err(error) => waiting.warn_once(&error, output),
        }
        if !output.sleep(RETRY_WAIT) {
            return Ok(Exit::Fine);
        }
    }
}

/// Position in the stream.
#[derive(Debug, Default)]
struct Position {
    last_id: Option<u64>,
    has_begun: bool,
}

/// Message that an agent is awaited, printed once.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    is_told: bool,
}

impl Waiting {
    /// Prints the reason once.
    pub(super) fn warn_once(&mut self, error: &Error, output: &mut Output) {
        if !std::mem::replace(&mut self.is_told, true) {
            let error = error.clone();
            output.warning(&error.within("waiting for the agent"));
        }
    }

    /// Ends the wait: items arrive again.
    pub(super) fn over(&mut self) {
        self.is_told = false;
    }
}

/// Prints until the stream ends, which is an error, or standard output has no reader.
fn session(
    args: &Args,
    topic: &str,
    position: &mut Position,
    printer: &mut dyn Printer,
    output: &mut Output,
    waiting: &mut Waiting,
) -> Result<()> {
    let path = format!("{STREAM_PATH}?topics={topic}");
    let cannot = "the agent refused to stream events";
    // Opened before the list is read, so that nothing is between the two.
    let mut flow = socket::flow(args, &path, (Some(SILENCE), position.last_id), cannot)?;
    // Without a number the agent cannot tell what was missed.
    if position.last_id.is_none() {
        printer.read(output)?;
        position.has_begun = true;
    }
    loop {
        let message = match message(&mut flow) {
            Ok(Some(message)) => message,
            Ok(None) => return Err(Error::new("the agent ended the stream: it is stopping")),
            Err(Lost::Reader) => return Ok(()),
            Err(Lost::Agent(error)) => return Err(error),
        };
        waiting.over();
        position.last_id = message.id.or(position.last_id);
        match message.name.as_str() {
            "reset" => printer.read(output)?,
            "beat" | "" => {}
            _ => printer.hear(&message.data, output),
        }
        if output.is_over() {
            return Ok(());
        }
    }
}

/// A message of a stream of server-sent events.
#[derive(Debug, Default)]
struct Message {
    id: Option<u64>,
    name: String,
    data: Value,
}

fn message(flow: &mut Flow) -> std::result::Result<Option<Message>, Lost> {
    let mut message = Message::default();
    loop {
        let Some(line) = flow.line()? else {
            return Ok(None);
        };
        match line.split_once(": ") {
            None if line.is_empty() => return Ok(Some(message)),
            Some(("id", id)) => message.id = id.parse().ok(),
            Some(("event", name)) => name.clone_into(&mut message.name),
            Some(("data", data)) => message.data = json::read(data).unwrap_or_default(),
            Some(_) | None => {}
        }
    }
}

/// Number of an item; `None` if an agent of another version does not number it.
pub(super) fn number(thing: &Value) -> Option<u64> {
    View::new(thing).count("id")
}

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

/// The agent says every 2 s that it is there. Longer silence than this is an agent that hangs, or one that is gone.
const SILENCE: Duration = Duration::from_secs(15);
/// How long an agent that is gone is left alone between two tries.
pub(super) const AGAIN: Duration = Duration::from_secs(1);

/// Tells what it hears, each thing once.
pub(super) trait Teller {
    /// Reads the list of what there is: at the beginning, and whenever something was missed.
    fn read(&mut self, output: &mut Output) -> Result<()>;

    /// Hears one thing that is new, or that the list had already.
    fn hear(&mut self, message: &Value, output: &mut Output);
}

/// Tells of a topic until somebody ends it, or nobody reads any more. That no agent is there at the beginning is an error.
pub(super) fn follow(
    args: &Args,
    topic: &str,
    teller: &mut dyn Teller,
    output: &mut Output,
) -> Result<Exit> {
    let mut waiting = Waiting::default();
    let mut place = Place::default();
    loop {
        match session(args, topic, &mut place, teller, output, &mut waiting) {
            Ok(()) => return Ok(Exit::Fine),
            Err(error) if !place.has_begun => return Err(error),
            Err(error) => waiting.say(&error, output),
        }
        if !output.rest(AGAIN) {
            return Ok(Exit::Fine);
        }
    }
}

/// Where in the stream it is.
#[derive(Debug, Default)]
struct Place {
    last_id: Option<u64>,
    has_begun: bool,
}

/// Whether somebody was told that an agent is waited for.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    is_told: bool,
}

impl Waiting {
    /// Says once why nothing comes.
    pub(super) fn say(&mut self, error: &Error, output: &mut Output) {
        if !std::mem::replace(&mut self.is_told, true) {
            let error = error.clone();
            output.warning(&error.within("waiting for the agent"));
        }
    }

    /// Something comes again.
    pub(super) fn over(&mut self) {
        self.is_told = false;
    }
}

/// Until the stream ends, which is an error, or nobody reads any more.
fn session(
    args: &Args,
    topic: &str,
    place: &mut Place,
    teller: &mut dyn Teller,
    output: &mut Output,
    waiting: &mut Waiting,
) -> Result<()> {
    let path = format!("{STREAM_PATH}?topics={topic}");
    let cannot = "the agent refused to stream events";
    // Opened before the list is read, so that nothing is between the two.
    let mut flow = socket::flow(args, &path, (Some(SILENCE), place.last_id), cannot)?;
    if !place.has_begun {
        teller.read(output)?;
        place.has_begun = true;
    }
    loop {
        let message = match message(&mut flow) {
            Ok(Some(message)) => message,
            Ok(None) => return Err(Error::new("the agent ended the stream: it is stopping")),
            Err(Lost::Reader) => return Ok(()),
            Err(Lost::Agent(error)) => return Err(error),
        };
        waiting.over();
        place.last_id = message.id.or(place.last_id);
        match message.name.as_str() {
            "reset" => teller.read(output)?,
            "beat" | "" => {}
            _ => teller.hear(&message.data, output),
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

/// The number of a thing; `None` for what an agent of another version does not number.
pub(super) fn number(thing: &Value) -> Option<u64> {
    View::new(thing).count("id")
}

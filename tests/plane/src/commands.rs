//! Commands for agents: what was sent, what was acknowledged, and how it ended.

use std::time::Duration;

use serde_json::{Value, json};

use crate::clock;
use crate::plane::{Plane, View};
use crate::record::Frame;
use crate::records::Record;

impl Plane {
    /// Sends the newest session a command that was issued now.
    pub fn command(&self, id: &str, verb: &str, args: &Value) {
        let payload =
            json!({ "id": id, "verb": verb, "args": args, "issued_at": clock::rfc3339() });
        self.send("edge_command", None, payload);
    }

    /// The answer to a command: the payload of the first `edge_command_ack` with this id since
    /// `mark`.
    pub fn answer(&self, mark: u64, id: &str, limit: Duration) -> Option<Value> {
        let wanted = Value::from(id);
        let is_it = move |frame: &Frame| {
            frame.is_from_agent("edge_command_ack")
                && payload(frame).is_some_and(|payload| payload.get("id") == Some(&wanted))
        };
        let found = self.wait_for(mark, limit, is_it)?;
        payload(&found)
    }

    /// Sends a command and waits for its answer.
    pub fn commanded(&self, id: &str, verb: &str, args: &Value, limit: Duration) -> Option<Value> {
        let mark = self.mark();
        self.command(id, verb, args);
        self.answer(mark, id, limit)
    }

    /// Outcome of a command: its record in the stream `outcomes`.
    pub fn outcome(&self, id: &str, limit: Duration) -> Option<Value> {
        let id = id.to_owned();
        self.until(limit, move |view| outcome(view, &id))
    }
}

fn payload(frame: &Frame) -> Option<Value> {
    frame.json()?.get("payload").cloned()
}

fn outcome(view: &View<'_>, id: &str) -> Option<Value> {
    let sources = view.records.sources.iter();
    let outcomes = sources.filter(|(source, _)| source.stream == "outcomes");
    outcomes
        .flat_map(|(_, received)| received.records.values())
        .find_map(|record| match record {
            Record::Row { body, .. } if body.get("id").is_some_and(|known| known == id) => {
                Some(body.clone())
            }
            Record::Row { .. } | Record::Minute(_) | Record::Gap { .. } => None,
        })
}

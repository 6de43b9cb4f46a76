//! Plan of a change: the body of its intent in the journal.

use serde_json::{Value, json};

use super::super::requester::Requester;
use crate::core::{
    apps::{LastChange, Owner, Stage},
    command::{self, Command},
    time::Wall,
};

/// Beginning of the kinds of our changes in the journal.
const KIND: &str = "app.";
/// Kind of all changes of a version before this one.
const KIND_BEFORE: &str = "app";

/// Returns whether a change of the journal is one of ours, with a plan.
pub(in crate::tasks::apps) fn is_ours(kind: &str) -> bool {
    kind == KIND_BEFORE || kind.starts_with(KIND)
}

/// Kind of a change.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::tasks::apps) enum Verb {
    /// A new revision.
    Apply,
    /// An earlier one.
    Rollback,
    /// None any more.
    Remove,
}

impl Verb {
    const ALL: [Self; 3] = [Self::Apply, Self::Rollback, Self::Remove];

    /// Word on disk and in the API.
    pub(in crate::tasks::apps) const fn as_str(self) -> &'static str {
        match self {
            Self::Apply => "apply",
            Self::Rollback => "rollback",
            Self::Remove => "remove",
        }
    }

    /// Kind of the change in the journal: the verb of the command that asks for it, else that of
    /// the plan.
    pub(in crate::tasks::apps) fn kind(self, requester: &Requester) -> String {
        match &requester.command {
            Some(command) => command.verb.as_str().to_owned(),
            None => format!("{KIND}{}", self.as_str()),
        }
    }

    /// Sentence for the time until there is a verdict.
    pub(in crate::tasks::apps) fn beginning(self, revision: u64) -> String {
        match self {
            Self::Apply | Self::Rollback => format!("revision {revision} is being written"),
            Self::Remove => "it is being removed".to_owned(),
        }
    }
}

/// Subject of a change: names and numbers, no values.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(in crate::tasks::apps) struct Plan {
    pub(in crate::tasks::apps) app: String,
    /// Owner whose authority the change has.
    pub(in crate::tasks::apps) owner: Owner,
    /// The command that asked for it.
    pub(in crate::tasks::apps) command: Option<Command>,
    pub(in crate::tasks::apps) verb: Verb,
    pub(in crate::tasks::apps) revision: u64,
    /// Revision that ran before; 0: none.
    pub(in crate::tasks::apps) before: u64,
    /// Revision to go back to; 0: none.
    pub(in crate::tasks::apps) back_to: u64,
}

impl Plan {
    /// The body of the intent.
    pub(in crate::tasks::apps) fn written(&self) -> String {
        let command = self.command.as_ref().map(|command| {
            json!({"id": command.id, "verb": command.verb.as_str(), "issued": command.issued.millis()})
        });
        json!({
            "app": self.app, "owner": self.owner.as_str(), "command": command, "verb": self.verb.as_str(),
            "revision": self.revision, "before": self.before, "back_to": self.back_to,
        })
        .to_string()
    }

    /// Requester of the change, for an agent that goes on with it.
    pub(in crate::tasks::apps) fn requester(&self, by: &str) -> Requester {
        Requester {
            by: by.to_owned(),
            owner: self.owner,
            is_root: false,
            command: self.command.clone(),
        }
    }

    /// The change as the record has it when it begins.
    pub(in crate::tasks::apps) fn last_change(&self, id: &str, by: &str) -> LastChange {
        LastChange {
            id: id.to_owned(),
            by: by.to_owned(),
            body: self.written(),
            stage: Stage::Write,
        }
    }

    /// Sentence for a change whose revision works.
    pub(in crate::tasks::apps) fn is_good(&self, why: &str) -> String {
        format!("revision {} is good: {why}", self.revision)
    }

    /// Sentence for a change whose revision does not work and was replaced by the one before.
    pub(in crate::tasks::apps) fn rolled_back(&self, why: &str) -> String {
        format!("rolled back to revision {}: {why}", self.back_to)
    }

    /// Reads the body of an intent.
    pub(in crate::tasks::apps) fn read(body: &str) -> Option<Self> {
        let body: Value = serde_json::from_slice(body.as_bytes()).ok()?;
        let number = |name: &str| body.get(name).and_then(Value::as_u64);
        let verb = body.get("verb").and_then(Value::as_str)?;
        // A plan of before there was a choice names none.
        let owner = body.get("owner").and_then(Value::as_str);
        Some(Self {
            app: body.get("app").and_then(Value::as_str)?.to_owned(),
            owner: owner.map_or(Some(Owner::Machine), Owner::of)?,
            command: body.get("command").and_then(command),
            verb: Verb::ALL.into_iter().find(|known| known.as_str() == verb)?,
            revision: number("revision")?,
            before: number("before")?,
            back_to: number("back_to")?,
        })
    }
}

fn command(written: &Value) -> Option<Command> {
    let text = |name: &str| written.get(name).and_then(Value::as_str);
    Some(Command {
        id: text("id")?.to_owned(),
        verb: command::Verb::of(text("verb")?)?,
        issued: Wall::from_millis(written.get("issued").and_then(Value::as_i64)?),
    })
}

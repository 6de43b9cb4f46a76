//! Plan of a change: the body of its intent in the journal.

use serde_json::{Value, json};

use crate::core::apps::{LastChange, Stage};

/// Kind of our changes in the journal.
pub(in crate::tasks::apps) const KIND: &str = "app";

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
        json!({"app": self.app, "verb": self.verb.as_str(), "revision": self.revision, "before": self.before, "back_to": self.back_to}).to_string()
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

    /// Reads the body of an intent.
    pub(in crate::tasks::apps) fn read(body: &str) -> Option<Self> {
        let body: Value = serde_json::from_slice(body.as_bytes()).ok()?;
        let number = |name: &str| body.get(name).and_then(Value::as_u64);
        let verb = body.get("verb").and_then(Value::as_str)?;
        Some(Self {
            app: body.get("app").and_then(Value::as_str)?.to_owned(),
            verb: Verb::ALL.into_iter().find(|known| known.as_str() == verb)?,
            revision: number("revision")?,
            before: number("before")?,
            back_to: number("back_to")?,
        })
    }
}

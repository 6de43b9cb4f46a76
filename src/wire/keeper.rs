//! The shapes of the keeper: what is asked on its socket, a JSON line each way, and what it keeps of a change on disk.
//!
//! Readers accept absent fields and unknown ones; a verb that is not known is refused.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::json::fields;
use crate::core::preflight::facts::Fact;

/// Where the keeper listens unless a setting says otherwise.
pub const SOCKET: &str = "/run/pipeops-keeper/keeper.sock";
/// The longest line, either way.
pub const LINE_BYTES_MAX: usize = 64 * 1024;

/// A request.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Ask {
    /// `inspect`, `plan`, `fix`, `undo` or `changes`.
    pub verb: String,
    /// The check that `plan` and `fix` are about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub check: Option<String>,
    /// The change that `undo` takes back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub change: Option<String>,
}
fields!(Ask {
    verb,
    check,
    change
});

/// The answer to `inspect`: what was found, under the names that the doctor has for it. Never a key, a token or a password.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Inspection {
    /// A text for each name; `null`: there is no such thing. What could not be read is absent.
    pub facts: BTreeMap<String, Option<String>>,
}
fields!(Inspection { facts });

impl Inspection {
    /// The same as the doctor reads it.
    pub fn by_root(self) -> BTreeMap<String, Fact> {
        let fact = |found: Option<String>| found.map_or(Fact::Missing, Fact::Text);
        let facts = self.facts.into_iter();
        facts.map(|(name, found)| (name, fact(found))).collect()
    }
}

/// The answer to `plan`: what a fix would do on this machine, now.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Plan {
    /// The check.
    pub check: String,
    /// Whether anything would be done at all; where not, `does` says why.
    pub is_needed: bool,
    /// What it would do.
    pub does: String,
    /// What it would leave alone.
    pub leaves: String,
    /// What undoing it would do.
    pub undo: String,
    /// What is left to a person after it.
    pub remains: Option<String>,
}
fields!(Plan {
    check,
    is_needed,
    does,
    leaves,
    undo,
    remains
});

/// The answer to `fix` and `undo`.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Done {
    /// The change; `None` where there was nothing to do.
    pub change: Option<String>,
    /// `done`, `undone` or `failed`.
    pub outcome: String,
    /// What was done, or why not.
    pub sentence: String,
    /// The command that takes it back; `None` where there is nothing to take back.
    pub undo: Option<String>,
    /// What is left to a person: a reboot.
    pub remains: Option<String>,
}
fields!(Done {
    change,
    outcome,
    sentence,
    undo,
    remains
});

/// A change as the keeper keeps it: one file each, written before the first effect and after every step.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Record {
    /// Its place in the order of changes, from 1.
    pub number: u64,
    /// The check that it repairs.
    pub check: String,
    /// Who asked for it.
    pub who: String,
    /// When it began, in milliseconds since 1970.
    pub at_ms: i64,
    /// What it does, for people.
    pub does: String,
    /// What is left to a person after it.
    pub remains: Option<String>,
    /// What is done, in this order; undone in the reverse order.
    pub acts: Vec<Act>,
    /// How far those are that were begun: the words of [`crate::core::journal::StepState`].
    pub steps: Vec<String>,
    /// Who wants it taken back, once somebody does.
    pub undone_by: Option<String>,
    /// Why it failed.
    pub why: Option<String>,
    /// How it ended: the words of [`crate::core::journal::Outcome`]. `None` while it is under way, back or forth.
    pub outcome: Option<String>,
}

/// One thing that is done. All paths are absolute, and below the keeper's root.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Act {
    /// A directory is made; undone where it is empty.
    Directory {
        /// Where.
        path: String,
    },
    /// A file gets a content.
    File {
        /// Where.
        path: String,
        /// The whole new content.
        content: String,
        /// Its permissions.
        mode: u32,
        /// What was there; `None`: nothing.
        before: Option<Before>,
    },
    /// A value of the kernel is set, below `/proc/sys`.
    Value {
        /// Where.
        path: String,
        /// What it was.
        before: String,
        /// What it becomes.
        after: String,
    },
    /// Programs are run, which may be done twice.
    Run {
        /// What is run; empty: nothing.
        forth: Vec<String>,
        /// What is run to take it back; empty: nothing.
        back: Vec<String>,
        /// How one sees that `forth` worked.
        seen: Option<Seen>,
    },
}

/// A file that was there before.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Before {
    /// The name of its copy in the keeper's directory.
    pub copy: String,
    /// SHA-256 of its content, in hexadecimal.
    pub sha256: String,
    /// Its permissions.
    pub mode: u32,
    /// Its group; `None` in records of earlier versions.
    #[serde(default)]
    pub group: Option<u32>,
    /// Its extended attributes by name, in Base64: access lists, labels.
    #[serde(default)]
    pub attributes: BTreeMap<String, String>,
}

/// How one sees that a program did what it should.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Seen {
    /// This path is there.
    Path(String),
    /// This file has this text in it.
    Text(String, String),
    /// This file has this text not in it.
    NoText(String, String),
    /// This program says exactly this.
    Says(Vec<String>, String),
}

impl Record {
    /// Its id, which people type: `limits-inotify-7`.
    pub fn id(&self) -> String {
        format!("{}-{}", self.check.replace('.', "-"), self.number)
    }
}

//! The verdict as the local API shows it.

use std::time::Duration;

use serde::Serialize;

use super::stamp;
use crate::{core::verdict, wire::json::fields};

/// State of everything: one code, one sentence, and the parts behind it.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Verdict {
    /// Stable name: `ok`, `link.connecting`, `link.standby`, or the id of the worst condition.
    pub code: String,
    /// The part that the sentence is about: `agent`, `link`, `machine`, `cluster` or `workloads`.
    pub part: String,
    /// `ok`, `unknown`, `note`, `warning` or `critical`.
    pub severity: String,
    /// The state in one sentence without a full stop: the summary of the status.
    pub sentence: String,
    /// Action for a person.
    pub fix: Option<String>,
    /// Time when it began: RFC 3339 in UTC; `null` while nothing is wrong.
    pub since: Option<String>,
    /// Age of what the sentence rests on.
    pub age_s: Option<u64>,
    /// The parts, always the same five in the same order.
    pub parts: Vec<PartVerdict>,
}
fields!(Verdict {
    code,
    part,
    severity,
    sentence,
    fix,
    since,
    age_s,
    parts
});

/// State of a part.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct PartVerdict {
    /// `agent`, `link`, `machine`, `cluster` or `workloads`.
    pub id: String,
    /// Stable name: `ok`, `unknown`, `none`, `link.connecting`, `link.standby`, or the id of a
    /// condition.
    pub code: String,
    /// `ok`, `unknown`, `note`, `warning` or `critical`.
    pub severity: String,
    /// The worst that is wrong with it.
    pub sentence: Option<String>,
    /// Time when that began: RFC 3339 in UTC.
    pub since: Option<String>,
    /// Age of what is known of it; `null`: nothing is.
    pub age_s: Option<u64>,
}
fields!(PartVerdict {
    id,
    code,
    severity,
    sentence,
    since,
    age_s
});

fn seconds(age: Option<Duration>) -> Option<u64> {
    age.map(|age| age.as_secs())
}

impl From<verdict::Verdict> for Verdict {
    fn from(verdict: verdict::Verdict) -> Self {
        Self {
            code: verdict.code.to_owned(),
            part: verdict.part.as_str().to_owned(),
            severity: verdict.level.as_str().to_owned(),
            sentence: verdict.sentence,
            fix: verdict.fix,
            since: verdict.since.map(stamp),
            age_s: seconds(verdict.age),
            parts: verdict.parts.into_iter().map(PartVerdict::from).collect(),
        }
    }
}

impl From<verdict::PartState> for PartVerdict {
    fn from(state: verdict::PartState) -> Self {
        Self {
            id: state.part.as_str().to_owned(),
            code: state.code.to_owned(),
            severity: state.level.as_str().to_owned(),
            sentence: state.sentence,
            since: state.since.map(stamp),
            age_s: seconds(state.age),
        }
    }
}

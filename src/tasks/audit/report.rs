//! Change report of an audit row, as viewers read it.

use crate::{
    core::audit::{AuditDecision, CONTROL_PLANE, in_words, outcome_and_why, reason_and_fix},
    store::AuditRow,
    wire::api::{ChangeReport, Undo},
};

/// Levels before and after, as "full -> off"; `None` unless the row is a change of the level.
pub fn level(row: &AuditRow) -> Option<&str> {
    let is_done = row.entry.decision() == AuditDecision::Permitted;
    row.entry.what().strip_prefix("access ").filter(|_| is_done)
}

/// Request in words, followed by its method and path.
pub fn what_in_words(what: &str) -> String {
    match in_words(what) {
        Some(words) => format!("{words}: {what}"),
        None => what.to_owned(),
    }
}

/// Audit row as a change. `is_newest`: no later row is of its kind.
pub fn change(row: &AuditRow, is_newest: bool) -> ChangeReport {
    let entry = &row.entry;
    let (reason, fix) = reason_and_fix(entry.why());
    let is_refused = entry.decision() == AuditDecision::Refused;
    let (outcome, reason) = match (&row.ended, is_refused) {
        (_, true) => ("refused", reason),
        (Some((text, _)), false) => {
            let (word, why) = outcome_and_why(text);
            (word, why.unwrap_or(reason))
        }
        (None, false) => ("running", reason),
    };
    let level = level(row);
    let before = level
        .and_then(|change| change.split(" -> ").next())
        .filter(|_| is_newest);
    ChangeReport {
        id: row.number.to_string(),
        at: row.at.rfc3339(),
        who: entry.who().to_owned(),
        from: from(entry.who()).to_owned(),
        what: what_in_words(entry.what()),
        outcome: outcome.to_owned(),
        why: Some(reason.to_owned()).filter(|reason| !reason.is_empty()),
        undo: Undo {
            possible: before.is_some(),
            command: before.map(|level| format!("sudo pipeops-agent access {level}")),
            why_not: match (before, is_refused) {
                (Some(_), _) => None,
                (None, true) => Some(fix.map_or_else(
                    || "nothing was done".to_owned(),
                    |fix| format!("not executed; to allow it: {fix}"),
                )),
                (None, false) if level.is_some() => Some("a later change replaced it".to_owned()),
                (None, false) if entry.who() == CONTROL_PLANE => {
                    Some("it happened in the cluster: revert it there, with kubectl".to_owned())
                }
                (None, false) => Some("nothing to undo".to_owned()),
            },
        },
    }
}

/// Origin of a caller, from the text that names it.
fn from(who: &str) -> &str {
    match who {
        CONTROL_PLANE => "control plane",
        _ => who
            .rsplit_once("from ")
            .map_or("this machine", |(_, address)| address),
    }
}

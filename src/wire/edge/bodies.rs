//! Bodies of audit rows and outcomes of changes, as JSON.

use serde::Serialize;

use crate::core::{command::Verb, journal::Change, time::Wall};

/// Steps of a change that are told, the last ones.
const STEPS_MAX: usize = 100;
/// The longest text of one field: what was seen belongs to the machine, a line of it to who reads.
const TEXT_BYTES_MAX: usize = 1024;

/// The longest log that was asked for.
pub const LOG_BYTES_MAX: usize = 16 * 1024;
/// The kind of change whose evidence is a log.
const LOGS: &str = Verb::Logs.as_str();

/// Body of an audit record: one request, or the sum of a kind of requests within a minute.
#[derive(Debug, Serialize)]
pub struct AuditBody<'a> {
    /// Requester.
    pub who: &'a str,
    /// Request.
    pub what: &'a str,
    /// Decision.
    pub verdict: &'a str,
    /// The rule that decided.
    pub why: &'a str,
    /// Outcome; `None` if unknown, and in a sum.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<&'a str>,
    /// Bytes that came in with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub received_bytes: Option<u64>,
    /// Bytes that went out with the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sent_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// Number of requests; `None` for one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
}

/// The body of a record of the audit.
pub fn asked(asked: &AuditBody<'_>) -> String {
    text(asked)
}

#[derive(Serialize)]
struct Outcome<'a> {
    id: &'a str,
    verb: &'a str,
    origin: &'a str,
    state: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<&'a str>,
    started: String,
    ended: String,
    evidence: Vec<Evidence<'a>>,
}

#[derive(Serialize)]
struct Evidence<'a> {
    name: &'a str,
    state: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<&'a str>,
}

/// Returns when a change ended, and the body of the record that says how; `None` while it is under
/// way. What was wanted in full and how it would have been taken back stay here: they may hold
/// secrets.
pub fn outcome(change: &Change) -> Option<(Wall, String)> {
    let (ended, ending) = change.ended.as_ref()?;
    let bytes_max = if change.intent.kind == LOGS {
        LOG_BYTES_MAX
    } else {
        TEXT_BYTES_MAX
    };
    let skipped = change.steps.len().saturating_sub(STEPS_MAX);
    let evidence = change.steps.iter().skip(skipped).map(|step| Evidence {
        name: cut(&step.name),
        state: step.state.as_str(),
        detail: step
            .detail
            .as_deref()
            .map(|text| shortened(text, bytes_max)),
    });
    let outcome = Outcome {
        id: cut(&change.id),
        verb: cut(&change.intent.kind),
        origin: cut(&change.intent.origin),
        state: ending.outcome.as_str(),
        why: ending.why.as_deref().map(cut),
        fix: ending.fix.as_deref().map(cut),
        started: change.started.rfc3339(),
        ended: ended.rfc3339(),
        evidence: evidence.collect(),
    };
    Some((*ended, text(&outcome)))
}

fn cut(text: &str) -> &str {
    shortened(text, TEXT_BYTES_MAX)
}

fn shortened(text: &str, bytes_max: usize) -> &str {
    text.get(..text.floor_char_boundary(bytes_max))
        .unwrap_or_default()
}

fn text(body: &impl Serialize) -> String {
    // Strings and numbers can always be written.
    serde_json::to_string(body).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::journal::{self, ChangeStep, Intent, StepState};

    #[test]
    fn an_outcome_says_what_was_seen_and_nothing_of_what_was_wanted() {
        let step = |position| ChangeStep {
            position,
            name: format!("step {position}"),
            state: StepState::Done,
            undo: Some("secret".to_owned()),
            detail: Some("ä".repeat(2000)),
        };
        let mut change = Change {
            id: "c".to_owned(),
            intent: Intent {
                origin: "control-plane".to_owned(),
                kind: "app.apply".to_owned(),
                body: "secret".to_owned(),
            },
            started: Wall::from_millis(0),
            ended: None,
            steps: (0..102).map(step).collect(),
        };
        assert_eq!(outcome(&change), None);
        let at = Wall::from_millis(1000);
        let ending = journal::ChangeEnd::new(journal::Outcome::Undone).why("no room");
        change.ended = Some((at, ending.fix(Some("make room".to_owned()))));
        let (ended, body) = outcome(&change).unwrap();
        assert_eq!(ended, at);
        assert!(!body.contains("secret"));
        let head = r#"{"id":"c","verb":"app.apply","origin":"control-plane","state":"undone","why":"no room","fix":"make room","started":"1970-01-01T00:00:00.000Z","ended":"1970-01-01T00:00:01.000Z","evidence":[{"name":"step 2","state":"done","detail":"ää"#;
        assert!(body.starts_with(head), "{body:.300}");
        let read: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(read["evidence"].as_array().unwrap().len(), STEPS_MAX);
        assert_eq!(read["evidence"][0]["detail"].as_str().unwrap().len(), 1024);
    }
}

//! Records other than samples: the JSON that is on disk, in a batch and in an export alike.

use serde::Serialize;

use super::{api::EventReport, json};
use crate::core::event::{Event, LogLine};

#[derive(Serialize)]
struct EventRecord<'a> {
    source: &'a str,
    severity: &'a str,
    subject: &'a str,
    reason: &'a str,
    message: &'a str,
    first: String,
    last: String,
    count: u32,
}

/// An event: `{"source","severity","subject","reason","message","first","last","count"}`, times by
/// RFC 3339.
pub fn event(event: &Event) -> String {
    text(&EventRecord {
        source: event.what.source.as_str(),
        severity: event.what.severity.as_str(),
        subject: &event.what.subject,
        reason: &event.what.reason,
        message: &event.what.message,
        first: event.first.rfc3339(),
        last: event.last.rfc3339(),
        count: event.count,
    })
}

/// Reads what [`event`] wrote, without its times. `None` for what is no such record.
pub fn read_event(record: &str) -> Option<EventReport> {
    json::shape(record.as_bytes()).ok()
}

#[derive(Serialize)]
struct LogRecord<'a> {
    at: String,
    subject: &'a str,
    text: &'a str,
}

/// A line of a container: `{"at","subject","text"}`.
pub fn log_line(line: &LogLine) -> String {
    text(&LogRecord {
        at: line.at.rfc3339(),
        subject: &line.subject,
        text: &line.text,
    })
}

fn text(record: &impl Serialize) -> String {
    // Strings and numbers can always be written.
    serde_json::to_string(record).unwrap_or_else(|_| "{}".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{
        event::{EventContent, Source},
        health::Severity,
        time::Wall,
    };

    #[test]
    fn a_record_is_one_line_of_json_whatever_it_says() {
        let event_record = event(&Event {
            number: 1,
            what: EventContent {
                source: Source::Cluster,
                severity: Severity::Warning,
                subject: "Pod/shop/web-0".to_owned(),
                reason: "BackOff".to_owned(),
                message: "a \"quoted\"\nline".to_owned(),
            },
            first: Wall::from_millis(0),
            last: Wall::from_millis(1_000),
            count: 3,
        });
        assert_eq!(
            event_record,
            r#"{"source":"cluster","severity":"warning","subject":"Pod/shop/web-0","reason":"BackOff","message":"a \"quoted\"\nline","first":"1970-01-01T00:00:00.000Z","last":"1970-01-01T00:00:01.000Z","count":3}"#
        );
        let line = log_line(&LogLine {
            at: Wall::from_millis(0),
            subject: "shop/web-0/app".to_owned(),
            text: "\u{1b}[31mfailed\u{0}".to_owned(),
        });
        assert_eq!(
            line,
            r#"{"at":"1970-01-01T00:00:00.000Z","subject":"shop/web-0/app","text":"\u001b[31mfailed\u0000"}"#
        );
    }
}

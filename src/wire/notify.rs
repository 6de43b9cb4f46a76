//! Formats of notifications: JSON for a program, text for ntfy, and the format of Slack and
//! compatible services.

use std::fmt::Write as _;

use litemap::LiteMap;
use serde::Serialize;
use serde_json::json;

use super::json::{self, AsObject, fields};
use crate::core::{
    format::one_line,
    health::Severity,
    notify::{Message, Notice, Notified, Transition},
    order::GatherExt as _,
    time::{Wall, in_words},
};

/// Conditions that one message names; of the others it tells the number.
const NOTICES_MAX: usize = 12;
/// Signs of one sentence.
const SENTENCE_MAX: usize = 220;
/// Maximum number of conditions that are remembered as reported.
const SHOWN_MAX: usize = 64;

/// Receiver of the notification.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ReceiverKind {
    /// A program.
    Webhook,
    /// A topic of ntfy.
    Ntfy,
    /// A channel of Slack, Mattermost or another that took over its form.
    Slack,
}

/// Request to post.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NotifyRequest {
    /// The type of its body.
    pub content_type: &'static str,
    /// Headers of its own.
    pub headers: Vec<(&'static str, String)>,
    pub body: String,
}

/// Writes a message for its reader. `host` is what the machine is called.
pub fn request(reader: ReceiverKind, message: &Message, host: &str, at: Wall) -> NotifyRequest {
    let text = text(message);
    match reader {
        ReceiverKind::Webhook => NotifyRequest {
            content_type: "application/json",
            headers: Vec::new(),
            body: webhook(message, host, at, &text).to_string(),
        },
        ReceiverKind::Ntfy => NotifyRequest {
            content_type: "text/plain; charset=utf-8",
            headers: ntfy_headers(message, host),
            body: text,
        },
        ReceiverKind::Slack => {
            let text = format!("{}: {text}", sentence_line(host));
            // The three signs that Slack gives a meaning to.
            let text = text
                .replace('&', "&amp;")
                .replace('<', "&lt;")
                .replace('>', "&gt;");
            NotifyRequest {
                content_type: "application/json",
                headers: Vec::new(),
                body: json!({ "text": text }).to_string(),
            }
        }
    }
}

fn webhook(message: &Message, host: &str, at: Wall, text: &str) -> serde_json::Value {
    let conditions: Vec<_> = message.notices.iter().map(condition).collect();
    json!({
        "source": "pipeops-agent",
        "host": sentence_line(host),
        "at": at.rfc3339(),
        "severity": worst(message).map(Severity::as_str),
        "text": text,
        "conditions": conditions,
        "came_and_went": AsObject(&message.missed),
        "late_s": message.late.map(|late| late.as_secs()),
    })
}

fn condition(notice: &Notice) -> serde_json::Value {
    json!({
        "id": notice.id,
        "change": notice.turn.as_str(),
        "severity": notice.severity.as_str(),
        "sentence": sentence_line(&notice.sentence),
        "fix": notice.fix.as_deref().map(sentence_line),
        "since": notice.since.rfc3339(),
    })
}

/// Worst severity of what began; `None` if all of it is good news.
fn worst(message: &Message) -> Option<Severity> {
    let bad = message
        .notices
        .iter()
        .filter(|notice| notice.turn != Transition::Ended);
    bad.map(|notice| notice.severity).max()
}

fn ntfy_headers(message: &Message, host: &str) -> Vec<(&'static str, String)> {
    let (priority, tag, word) = match worst(message) {
        Some(Severity::Critical) => ("5", "rotating_light", "critical"),
        Some(Severity::Warning) => ("3", "warning", "warning"),
        Some(Severity::Note) => ("2", "information_source", "note"),
        None => ("2", "white_check_mark", "over"),
    };
    // A header has ASCII only.
    let host: String = sentence_line(host).chars().filter(char::is_ascii).collect();
    vec![
        ("Title", format!("{host}: {word}")),
        ("Priority", priority.to_owned()),
        ("Tags", tag.to_owned()),
    ]
}

/// The message for people: a line for each condition.
fn text(message: &Message) -> String {
    let mut lines = Vec::new();
    for notice in message.notices.iter().take(NOTICES_MAX) {
        let sentence = sentence_line(&notice.sentence);
        lines.push(match notice.turn {
            Transition::Began => format!("{}: {sentence}", notice.severity.as_str()),
            Transition::Worse => format!("{} now: {sentence}", notice.severity.as_str()),
            Transition::Ended => format!("over: {sentence}"),
        });
        if let Some(fix) = &notice.fix {
            lines.push(format!("  fix: {}", sentence_line(fix)));
        }
    }
    let more = message.notices.len().saturating_sub(NOTICES_MAX);
    if more > 0 {
        lines.push(format!("and {more} more: pipeops-agent status"));
    }
    if let Some(late) = message.late {
        let mut line = format!("No notification could be sent for {}", in_words(late));
        if !message.missed.is_empty() {
            line.push_str("; these came and went meanwhile:");
        }
        for (id, count) in &message.missed {
            // Writing to a text never fails.
            let _written = write!(line, " {id} ({count}\u{d7})");
        }
        lines.push(line);
    }
    lines.join("\n")
}

/// Names and sentences may hold what others chose: no sign in them ends a line or moves a cursor,
/// and none is endless.
fn sentence_line(text: &str) -> String {
    one_line(text, SENTENCE_MAX)
}

#[derive(Default, Serialize)]
struct Stored {
    severity: String,
    sentence: String,
    since_ms: i64,
}
fields!(Stored {
    severity,
    sentence,
    since_ms
});

/// Reported conditions, for the disk.
pub fn kept(notified: &LiteMap<String, Notified>) -> String {
    let kept = |notified: &Notified| Stored {
        severity: notified.severity.as_str().to_owned(),
        sentence: sentence_line(&notified.sentence),
        since_ms: notified.since.millis(),
    };
    let all: LiteMap<_, _> = notified
        .iter()
        .take(SHOWN_MAX)
        .map(|(id, notified)| (id, kept(notified)))
        .gather();
    serde_json::to_string(&AsObject(&all)).unwrap_or_default()
}

/// The reverse of [`kept`]; what is not understood was not told.
pub fn read_kept(text: &str) -> LiteMap<String, Notified> {
    let all: LiteMap<String, Stored> = json::shape(text.as_bytes()).unwrap_or_default();
    let notified = |kept: Stored| {
        let severities = [Severity::Note, Severity::Warning, Severity::Critical];
        let severity = severities
            .into_iter()
            .find(|one| one.as_str() == kept.severity)?;
        Some(Notified {
            severity,
            sentence: kept.sentence,
            since: Wall::from_millis(kept.since_ms),
        })
    };
    all.into_iter()
        .filter_map(|(id, kept)| Some((id, notified(kept)?)))
        .gather()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn notice(turn: Transition, severity: Severity, sentence: &str) -> Notice {
        Notice {
            id: "disk.full".to_owned(),
            turn,
            severity,
            sentence: sentence.to_owned(),
            fix: None,
            since: Wall::default(),
        }
    }

    fn message(notices: Vec<Notice>) -> Message {
        Message {
            notices,
            ..Message::default()
        }
    }

    #[test]
    fn each_reader_gets_its_form() {
        let mut bad = notice(
            Transition::Began,
            Severity::Critical,
            "the disk <b> is full & \u{1b}[2Jwell\nnext",
        );
        bad.fix = Some("make room".to_owned());
        let message = message(vec![bad]);
        let text = "critical: the disk <b> is full &  [2Jwell next\n  fix: make room";
        let webhook = request(ReceiverKind::Webhook, &message, "edge", Wall::default());
        let body: serde_json::Value = serde_json::from_str(&webhook.body).unwrap();
        assert_eq!(
            (&body["text"], &body["severity"]),
            (&json!(text), &json!("critical"))
        );
        assert_eq!(body["conditions"][0]["change"], "began");
        let ntfy = request(
            ReceiverKind::Ntfy,
            &message,
            "b\u{e4}r\r\nX: y",
            Wall::default(),
        );
        assert_eq!(ntfy.body, text);
        assert_eq!(ntfy.headers[0], ("Title", "br  X: y: critical".to_owned()));
        assert_eq!(ntfy.headers[1].1, "5");
        let slack = request(ReceiverKind::Slack, &message, "edge", Wall::default());
        let body: serde_json::Value = serde_json::from_str(&slack.body).unwrap();
        let text = body["text"].as_str().unwrap();
        assert!(
            text.starts_with("edge: critical: the disk &lt;b&gt; is full &amp;"),
            "{text}"
        );
    }

    #[test]
    fn good_news_are_quiet_and_many_news_are_short() {
        let ended = message(vec![notice(
            Transition::Ended,
            Severity::Critical,
            "k3s is down",
        )]);
        let letter_of = |message| request(ReceiverKind::Ntfy, message, "edge", Wall::default());
        assert_eq!(letter_of(&ended).body, "over: k3s is down");
        assert_eq!(letter_of(&ended).headers[1].1, "2");
        let mut many = message(vec![
            notice(
                Transition::Began,
                Severity::Warning,
                &"x".repeat(5000)
            );
            40
        ]);
        many.late = Some(Duration::from_secs(7200));
        many.missed.insert("link.down".to_owned(), 3);
        let text = letter_of(&many).body;
        assert!(text.len() < 4096, "{}", text.len());
        assert!(text.contains("and 28 more"), "{text}");
        assert!(
            text.ends_with("for 2 h; these came and went meanwhile: link.down (3\u{d7})"),
            "{text}"
        );
    }

    #[test]
    fn what_was_told_is_read_back_and_nonsense_is_nothing() {
        let notified = Notified {
            severity: Severity::Warning,
            sentence: "the disk is full".to_owned(),
            since: Wall::from_millis(7),
        };
        let notified = LiteMap::from_iter([("disk.full".to_owned(), notified)]);
        assert_eq!(read_kept(&kept(&notified)), notified);
        for text in [
            "",
            "{",
            "[]",
            r#"{"a":{"severity":"odd","sentence":"","since_ms":0}}"#,
        ] {
            assert!(read_kept(text).is_empty(), "{text}");
        }
    }
}

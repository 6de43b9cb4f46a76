//! Page without JavaScript: everything that matters about the machine, in plain HTML.

use std::io::Write as _;

use flate2::{Compression, write::GzEncoder};
use hyper::header;
use serde::Serialize;

use super::reply::Reply;
use crate::{
    core::format::is_unprintable,
    wire::api::{Condition, Row, SessionReport, Status},
};

/// The frame, with [`MARK`] where the status belongs.
const INDEX: &str = include_str!("assets/index.html");
/// Placeholder of the status, for people.
const MARK: &str = "<!--status-->";
/// Placeholder of the initial data of the page's script.
const DATA: &str = "<!--initial-->";

/// Initial data of the page's script, so that it can be used before its first request. An
/// attribute: nothing of it can run.
#[derive(Serialize)]
struct PageData<'a> {
    session: &'a SessionReport,
    status: Option<&'a Status>,
}

/// The page for this viewer. No status for somebody who may not see how the box is. It counts in
/// what the page weighs, so it is packed for who reads gzip.
pub(super) fn page(session: &SessionReport, status: Option<&Status>, takes_gzip: bool) -> Reply {
    let mut data = String::new();
    // The shapes have text keys and finite numbers only, so this does not fail.
    let json = serde_json::to_string(&PageData { session, status }).unwrap_or_default();
    escape(&mut data, &json);
    let shown = match status {
        Some(status) => overview(status),
        None => "<h1>This dashboard requires a login</h1><p>On the machine, as root: <code>pipeops-agent dashboard open</code> prints an address that logs in once.</p>"
            .to_owned(),
    };
    let html = INDEX.replacen(MARK, &shown, 1).replacen(DATA, &data, 1);
    let kind = "text/html; charset=utf-8";
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    let packed = match encoder.write_all(html.as_bytes()) {
        Ok(()) if takes_gzip => encoder.finish().ok(),
        Ok(()) | Err(_) => None,
    };
    match packed {
        Some(packed) => Reply::whole(kind, packed).with(header::CONTENT_ENCODING, "gzip"),
        None => Reply::whole(kind, html),
    }
    .with(header::VARY, "accept-encoding")
}

fn overview(status: &Status) -> String {
    let mut html = String::new();
    let level = worst(&status.conditions);
    html.push_str("<h1 class=\"");
    html.push_str(level);
    html.push_str("\">");
    escape(&mut html, &capital(&status.summary));
    html.push_str("</h1>");
    if !status.conditions.is_empty() {
        html.push_str("<h2>Problems</h2><ul class=\"conditions\">");
        // One cause is told once, without what follows from it.
        let causes = status.conditions.iter();
        for condition in causes.filter(|condition| condition.because.is_none()) {
            tell(&mut html, condition);
        }
        html.push_str("</ul>");
    }
    list(&mut html, &status.rows);
    html.push_str(
        "<h2>More</h2><p>Charts, logs, events and changes require a login. On the machine, as root: <code>pipeops-agent dashboard open</code>. In a terminal: <code>pipeops-agent status</code>, <code>pipeops-agent doctor</code>.</p>",
    );
    html
}

fn worst(conditions: &[Condition]) -> &'static str {
    let has = |word: &str| {
        conditions
            .iter()
            .any(|condition| condition.severity == word)
    };
    match () {
        () if has("critical") => "critical",
        () if has("warning") => "warning",
        () => "ok",
    }
}

fn tell(html: &mut String, condition: &Condition) {
    html.push_str("<li><strong>");
    escape(html, &capital(&condition.severity));
    html.push_str(":</strong> ");
    escape(html, &condition.sentence);
    html.push_str(" <small>since <time>");
    escape(html, &condition.since);
    html.push_str("</time></small>");
    if let Some(fix) = &condition.fix {
        html.push_str("<br>Fix: <code>");
        escape(html, fix);
        html.push_str("</code>");
    }
    html.push_str("</li>");
}

/// The rows of the status.
fn list(html: &mut String, rows: &[Row]) {
    html.push_str("<h2>State</h2><dl>");
    for row in rows {
        html.push_str("<div><dt>");
        escape(html, &row.title);
        html.push_str("</dt><dd>");
        escape(html, &row.value);
        if let Some(since) = &row.since {
            html.push_str(" since <time>");
            escape(html, since);
            html.push_str("</time>");
        }
        for detail in &row.details {
            html.push_str(", ");
            escape(html, detail);
        }
        html.push_str("</dd></div>");
    }
    html.push_str("</dl>");
}

/// A sentence as it begins a line.
fn capital(sentence: &str) -> String {
    let mut letters = sentence.chars();
    match letters.next() {
        Some(first) => first.to_uppercase().chain(letters).collect(),
        None => String::new(),
    }
}

/// Writes text into HTML, between tags or between quotes. Control characters and marks that turn
/// text around are shown as what they are.
fn escape(html: &mut String, text: &str) {
    for character in text.chars() {
        match character {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            '\'' => html.push_str("&#39;"),
            character if is_unprintable(character) => html.push('\u{fffd}'),
            character => html.push(character),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::api::rows;

    fn html(status: Option<&Status>) -> String {
        let session = SessionReport::default();
        let page = page(&session, status, false);
        String::from_utf8(page.bytes().to_vec()).unwrap()
    }

    #[test]
    fn the_page_says_what_matters_and_nothing_that_is_not_known() {
        let condition = Condition {
            id: "link.refused".to_owned(),
            severity: "critical".to_owned(),
            since: "2026-05-01T10:00:00Z".to_owned(),
            sentence: "the token is refused".to_owned(),
            fix: Some("write a new one".to_owned()),
            because: None,
        };
        let mut status = Status {
            summary: "the token is refused".to_owned(),
            conditions: vec![condition],
            uptime_s: 90,
            ..Status::default()
        };
        status.host.cpu_percent = Some(12.5);
        status.rows = rows(&status);
        let html = html(Some(&status));
        for part in [
            "<h1 class=\"critical\">The token is refused</h1>",
            "<strong>Critical:</strong> the token is refused",
            "Fix: <code>write a new one</code>",
            "<dt>Usage</dt><dd>CPU 12 %</dd>",
        ] {
            assert!(html.contains(part), "{part}: {html}");
        }
        assert!(!html.contains("CPU 12 %, memory"), "{html}");
        assert!(!html.contains(MARK), "{html}");
        assert!(!html.contains(DATA), "{html}");
        // What the script begins with, as a browser reads the attribute.
        let (_, data) = html.split_once("data-initial=\"").unwrap();
        let (data, _) = data.split_once('"').unwrap();
        let data: serde_json::Value = serde_json::from_str(&data.replace("&quot;", "\"")).unwrap();
        assert_eq!(data["status"]["summary"], "the token is refused");
        assert_eq!(data["session"]["via"], "");
    }

    #[test]
    fn who_may_see_nothing_is_told_how_to_log_in() {
        let html = html(None);
        assert!(html.contains("pipeops-agent dashboard open"), "{html}");
        assert!(!html.contains("<dl>"), "{html}");
        assert!(html.contains("&quot;status&quot;:null}"), "{html}");
    }

    #[test]
    fn no_name_becomes_markup() {
        let evil = "\"><script>alert('1')</script>&lt;\u{202e}\u{200f}\u{61c}\u{1b}[2J";
        let mut status = Status {
            summary: evil.to_owned(),
            version: evil.to_owned(),
            cluster_name: Some(evil.to_owned()),
            conditions: vec![Condition {
                severity: evil.to_owned(),
                since: evil.to_owned(),
                sentence: evil.to_owned(),
                fix: Some(evil.to_owned()),
                ..Condition::default()
            }],
            ..Status::default()
        };
        status.link.why = Some(format!("because {evil}"));
        status.cluster.version = Some(evil.to_owned());
        status.host.hostname = Some(evil.to_owned());
        status.access.level = evil.to_owned();
        status.rows = rows(&status);
        let html = html(Some(&status));
        assert!(!html.contains("<script>"), "{html}");
        assert!(!html.contains("alert('"), "{html}");
        assert!(
            !html.contains(['\u{202e}', '\u{200f}', '\u{61c}', '\u{1b}']),
            "{html}"
        );
        let escaped = "&quot;&gt;&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;&amp;lt;";
        // The words, and what the script begins with, which has those of the rows twice.
        assert_eq!(html.matches(escaped).count(), 11 + 11 + 6, "{html}");
    }
}

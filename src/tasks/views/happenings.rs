//! Lists of what happened: the time line, the agent's own lines, the history of the link, what was done here.

use super::{Answer, silent};
use crate::{
    core::{
        audit::{Kind, Verdict, in_words, outcome_and_why, reason_and_fix},
        event::Source,
        health::Severity,
        outbox::{Backlog, Row, Stream},
        time::Wall,
    },
    store::{self, AuditRow, telemetry::Handle},
    tasks::{board::LINK_LOST, deliver::Databases},
    wire::{
        api::{ChangeReport, Destination, EventPage, EventReport, Link, LinkReport, Outage, Undo},
        record,
    },
};

/// Events of one page.
pub const EVENTS_MAX: u32 = 500;
/// Rows that are looked through for one page: a page of a rare kind may be shorter than was asked for.
const LOOKED_THROUGH_MAX: u32 = 5_000;
/// Rows of one question to the disk.
const AT_ONCE: u32 = 500;
/// Outages that are shown.
const OUTAGES_MAX: usize = 100;
/// Who it was where the control plane asked.
const CONTROL_PLANE: &str = "control-plane";
/// Time within which a client asks for an upgrade in another form.
const ASKED_AGAIN_WITHIN_MS: i64 = 5_000;
/// Changes that are shown.
const CHANGES_MAX: u32 = 200;

/// Which events are wanted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted {
    /// Those before this one.
    pub before: Option<u64>,
    /// So many.
    pub limit: u32,
    /// Of this source only.
    pub source: Option<Source>,
    /// That matter at least so much.
    pub severity: Option<Severity>,
    /// With this word for it only.
    pub reason: Option<&'static str>,
}

impl Wanted {
    fn has(&self, event: &EventReport) -> bool {
        let severity = Severity::of(&event.severity);
        self.source
            .is_none_or(|source| source.word() == event.source)
            && self.reason.is_none_or(|reason| reason == event.reason)
            && self
                .severity
                .is_none_or(|least| severity.is_none_or(|severity| severity >= least))
    }
}

/// A page of the time line.
pub async fn events(samples: &Handle, wanted: Wanted) -> Answer<EventPage> {
    let limit = usize::try_from(wanted.limit.clamp(1, EVENTS_MAX)).unwrap_or(1);
    let mut events: Vec<EventReport> = Vec::new();
    let mut before = wanted.before;
    for _ in 0..LOOKED_THROUGH_MAX / AT_ONCE {
        let rows = samples.recent(Stream::Events, before, AT_ONCE).await;
        let rows = rows.map_err(|failure| silent(&failure))?;
        let is_last = rows.len() < usize::try_from(AT_ONCE).unwrap_or(usize::MAX);
        for row in rows {
            before = Some(row.sequence);
            events.extend(shown(&row).filter(|event| wanted.has(event)));
            if events.len() == limit {
                let next = before;
                return Ok(EventPage { events, next });
            }
        }
        if is_last {
            return Ok(EventPage { events, next: None });
        }
    }
    Ok(EventPage {
        events,
        next: before,
    })
}

/// An event as it is shown; `None` for a row that nobody can read.
fn shown(row: &Row) -> Option<EventReport> {
    let mut event: EventReport = record::read_event(&row.body)?;
    event.id = row.sequence;
    event.at = row.at.rfc3339();
    Some(event)
}

/// The link now, before, and what waits for it.
pub async fn link(samples: &Handle, books: &Databases, link: Link) -> Answer<LinkReport> {
    let wanted = Wanted {
        limit: EVENTS_MAX,
        reason: Some(LINK_LOST),
        ..Wanted::default()
    };
    let mut rows = events(samples, wanted).await?.events;
    // Within a minute they are in no order.
    rows.sort_by(|one: &EventReport, other| other.at.cmp(&one.at));
    let is_down = link.state != "ready";
    let waiting = books.backlog().await.map_err(|failure| silent(&failure))?;
    Ok(LinkReport {
        outages: outages(&rows, is_down),
        destinations: waiting.into_iter().map(destination).collect(),
        link,
    })
}

/// Outages out of the events that began and ended them, the newest first as these.
fn outages(events: &[EventReport], is_down: bool) -> Vec<Outage> {
    let mut outages = Vec::new();
    let mut end: Option<&EventReport> = None;
    for event in events {
        if event.severity == Severity::Note.word() {
            // There was a session again.
            end = Some(event);
            continue;
        }
        let is_newest = outages.is_empty() && end.is_none();
        outages.push(Outage {
            from: event.at.clone(),
            to: end
                .take()
                .map(|end| end.at.clone())
                .filter(|_| !(is_newest && is_down)),
            why: event.message.clone(),
        });
        if outages.len() == OUTAGES_MAX {
            break;
        }
    }
    outages
}

/// What waits of a stream for somebody.
pub fn destination(backlog: Backlog) -> Destination {
    Destination {
        name: backlog.destination,
        stream: backlog.stream.word().to_owned(),
        records: backlog.records,
        oldest: backlog.oldest.map(Wall::rfc3339),
        lost: 0,
    }
}

/// What was done by way of this agent, the newest first: changes of the journal, and what the audit has row by row.
pub async fn changes(store: &store::Handle) -> Answer<Vec<ChangeReport>> {
    let rows = store
        .recent_audit(CHANGES_MAX)
        .await
        .map_err(|failure| silent(&failure))?;
    let mut has_level = false;
    let rows = once(&rows).map(|row| {
        // Only the last change of a level can be taken back: those before it were replaced.
        let is_newest = !has_level;
        has_level |= level(row).is_some();
        change(row, is_newest)
    });
    Ok(rows.collect())
}

/// Rows without those that were asked for again in another form: kubectl asks for an upgrade by GET, and by POST where that was rejected.
fn once(rows: &[AuditRow]) -> impl Iterator<Item = &AuditRow> {
    let mut newer: Option<&AuditRow> = None;
    rows.iter().filter(move |row| {
        let newer = newer.replace(row);
        !newer.is_some_and(|newer| is_asked_again(row, newer))
    })
}

fn is_asked_again(row: &AuditRow, newer: &AuditRow) -> bool {
    let path = |row: &AuditRow, method| {
        let path = row.entry.what().strip_prefix(method)?;
        (Kind::of_line(row.entry.what()) == Some(Kind::Exec)).then(|| path.to_owned())
    };
    let outcome = row.ended.as_ref().map(|(text, _)| outcome_and_why(text).0);
    let apart = newer.at.millis().saturating_sub(row.at.millis());
    matches!(outcome, Some("rejected" | "failed"))
        && (0..=ASKED_AGAIN_WITHIN_MS).contains(&apart)
        && path(row, "GET ").is_some_and(|asked| path(newer, "POST ") == Some(asked))
}

/// The level before and after, where that is what was changed.
fn level(row: &AuditRow) -> Option<&str> {
    let is_done = row.entry.verdict() == Verdict::Permitted;
    row.entry.what().strip_prefix("access ").filter(|_| is_done)
}

/// What was asked in words, with method and path behind it.
pub fn what_in_words(what: &str) -> String {
    match in_words(what) {
        Some(words) => format!("{words}: {what}"),
        None => what.to_owned(),
    }
}

/// A row of the audit as a change. `is_newest`: none of its kind came after it.
pub fn change(row: &AuditRow, is_newest: bool) -> ChangeReport {
    let entry = &row.entry;
    let (reason, fix) = reason_and_fix(entry.why());
    let is_refused = entry.verdict() == Verdict::Refused;
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
                    |fix| format!("nothing was done; to allow it: {fix}"),
                )),
                (None, false) if level.is_some() => Some("a later change replaced it".to_owned()),
                (None, false) if entry.who() == CONTROL_PLANE => {
                    Some("it was done in the cluster: take it back there, with kubectl".to_owned())
                }
                (None, false) => Some("there is nothing to take back".to_owned()),
            },
        },
    }
}

/// Where somebody is, by the words for who it is.
fn from(who: &str) -> &str {
    match who {
        CONTROL_PLANE => "control plane",
        _ => who
            .rsplit_once("from ")
            .map_or("this machine", |(_, address)| address),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::audit::{Effect, Entry};

    fn event(at: &str, severity: &str) -> EventReport {
        EventReport {
            at: at.to_owned(),
            severity: severity.to_owned(),
            message: format!("lost at {at}"),
            ..EventReport::default()
        }
    }

    fn row(number: i64, what: &str, outcome: &str) -> AuditRow {
        AuditRow {
            number,
            at: Wall::from_millis(number * 1_000),
            entry: Entry::new(
                CONTROL_PLANE,
                what,
                Verdict::Permitted,
                "access.level = full",
            ),
            ended: Some((outcome.to_owned(), Effect::default())),
        }
    }

    #[test]
    fn an_upgrade_that_was_asked_for_in_two_forms_is_told_once_and_in_words() {
        let exec = "/api/v1/namespaces/fixtures/pods/shell/exec";
        let (get, post) = (format!("GET {exec}"), format!("POST {exec}"));
        let rejected = "rejected: the API server answered with HTTP status 403";
        let rows = [
            row(40, &get, "done"),
            row(31, &post, "done"),
            row(30, &get, rejected),
            row(20, &get, "withdrawn: the namespace fixtures is not managed"),
        ];
        let shown: Vec<_> = once(&rows).map(|row| change(row, false)).collect();
        let told: Vec<_> = shown
            .iter()
            .map(|it| (it.id.as_str(), it.outcome.as_str()))
            .collect();
        assert_eq!(told, [("40", "done"), ("31", "done"), ("20", "withdrawn")]);
        assert_eq!(shown[1].what, format!("exec into fixtures/shell: {post}"));
        let why = shown[2].why.as_deref();
        assert_eq!(why, Some("the namespace fixtures is not managed"));
    }

    #[test]
    fn an_outage_ends_with_the_next_session_or_goes_on() {
        let newest_first = [
            event("5", "warning"),
            event("3", "note"),
            event("2", "warning"),
            event("1", "warning"),
        ];
        let told = |is_down| -> Vec<_> {
            let outages = outages(&newest_first, is_down).into_iter();
            outages.map(|outage| (outage.from, outage.to)).collect()
        };
        let pair = |from: &str, to: Option<&str>| (from.to_owned(), to.map(str::to_owned));
        // The one at 1 has no end: the agent stopped meanwhile.
        assert_eq!(
            told(true),
            [pair("5", None), pair("2", Some("3")), pair("1", None)]
        );
    }
}

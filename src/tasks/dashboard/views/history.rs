//! Lists of the past: the timeline, the agent's log lines, the history of the link, changes.

use super::{ViewResult, silent};
use crate::{
    core::{
        audit::{RequestKind, outcome_and_why},
        event::Source,
        health::Severity,
        link::LinkState,
        order::OrderExt as _,
        outbox::{Backlog, Row, Stream},
        time::Wall,
    },
    store::{self, AuditRow, telemetry::Handle},
    tasks::{audit::report, link::deliver::Databases, state::LINK_LOST},
    wire::{
        api::{ChangeReport, Destination, EventPage, EventReport, LinkReport, Outage, Status},
        record,
    },
};

/// Events of one page.
pub const EVENTS_MAX: u32 = 500;
/// Rows that are looked through for one page: a page of a rare kind may be shorter than was asked
/// for.
const LOOKED_THROUGH_MAX: u32 = 5_000;
/// Rows of one query.
const ROWS_MAX: u32 = 500;
/// Outages that are shown.
const OUTAGES_MAX: usize = 100;
/// Time within which a client asks for an upgrade in another form.
const ASKED_AGAIN_WITHIN_MS: i64 = 5_000;
/// Changes that are shown.
const CHANGES_MAX: u32 = 200;

/// Filter of events.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted {
    /// Events with a smaller number.
    pub before: Option<u64>,
    /// Maximum number of events.
    pub limit: u32,
    /// Source.
    pub source: Option<Source>,
    /// Minimum severity.
    pub severity: Option<Severity>,
    /// Reason.
    pub reason: Option<&'static str>,
}

impl Wanted {
    fn has(&self, event: &EventReport) -> bool {
        let severity = Severity::of(&event.severity);
        self.source
            .is_none_or(|source| source.as_str() == event.source)
            && self.reason.is_none_or(|reason| reason == event.reason)
            && self
                .severity
                .is_none_or(|least| severity.is_none_or(|severity| severity >= least))
    }
}

/// A page of the time line.
pub async fn events(samples: &Handle, wanted: Wanted) -> ViewResult<EventPage> {
    let limit = usize::try_from(wanted.limit.clamp(1, EVENTS_MAX)).unwrap_or(1);
    let mut events: Vec<EventReport> = Vec::new();
    let mut before = wanted.before;
    for _ in 0..LOOKED_THROUGH_MAX / ROWS_MAX {
        let rows = samples.recent(Stream::Events, before, ROWS_MAX).await;
        let rows = rows.map_err(|failure| silent(&failure))?;
        let is_last = rows.len() < usize::try_from(ROWS_MAX).unwrap_or(usize::MAX);
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
pub async fn link(
    samples: &Handle,
    databases: &Databases,
    status: Status,
) -> ViewResult<LinkReport> {
    let wanted = Wanted {
        limit: EVENTS_MAX,
        reason: Some(LINK_LOST),
        ..Wanted::default()
    };
    let mut rows = events(samples, wanted).await?.events;
    // Within a minute they are in no order.
    rows.order_by(|one: &EventReport, other| other.at.cmp(&one.at));
    let is_down = LinkState::of(&status.link.state) != Some(LinkState::Ready);
    let waiting = databases
        .backlog()
        .await
        .map_err(|failure| silent(&failure))?;
    let row = status.rows.into_iter().find(|row| row.id == "link");
    Ok(LinkReport {
        outages: outages(&rows, is_down),
        destinations: waiting.into_iter().map(destination).collect(),
        row: row.unwrap_or_default(),
        link: status.link,
    })
}

/// Outages out of the events that began and ended them, the newest first as these.
fn outages(events: &[EventReport], is_down: bool) -> Vec<Outage> {
    let mut outages = Vec::new();
    let mut end: Option<&EventReport> = None;
    for event in events {
        if event.severity == Severity::Note.as_str() {
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

/// Undelivered data of a stream for a destination.
pub fn destination(backlog: Backlog) -> Destination {
    Destination {
        name: backlog.destination,
        stream: backlog.stream.as_str().to_owned(),
        records: backlog.records,
        oldest: backlog.oldest.map(Wall::rfc3339),
        lost: 0,
    }
}

/// Changes through this agent, newest first: those of the journal, and rows of the audit.
pub async fn changes(store: &store::Handle) -> ViewResult<Vec<ChangeReport>> {
    let rows = store
        .recent_audit(CHANGES_MAX)
        .await
        .map_err(|failure| silent(&failure))?;
    let mut has_level = false;
    let rows = once(&rows).map(|row| {
        // Only the last change of a level can be taken back: those before it were replaced.
        let is_newest = !has_level;
        has_level |= report::level(row).is_some();
        report::change(row, is_newest)
    });
    Ok(rows.collect())
}

/// Rows without those that were asked for again in another form: kubectl asks for an upgrade by
/// GET, and by POST where that was rejected.
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
        (RequestKind::of_line(row.entry.what()) == Some(RequestKind::Exec)).then(|| path.to_owned())
    };
    let outcome = row.ended.as_ref().map(|(text, _)| outcome_and_why(text).0);
    let apart = newer.at.millis().saturating_sub(row.at.millis());
    matches!(outcome, Some("rejected" | "failed"))
        && (0..=ASKED_AGAIN_WITHIN_MS).contains(&apart)
        && path(row, "GET ").is_some_and(|asked| path(newer, "POST ") == Some(asked))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::audit::{AuditDecision, AuditEntry, Effect};

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
            entry: AuditEntry::new(
                "control-plane",
                what,
                AuditDecision::Permitted,
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
        let shown: Vec<_> = once(&rows).map(|row| report::change(row, false)).collect();
        let states: Vec<_> = shown
            .iter()
            .map(|it| (it.id.as_str(), it.outcome.as_str()))
            .collect();
        assert_eq!(
            states,
            [("40", "done"), ("31", "done"), ("20", "withdrawn")]
        );
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
        let states = |is_down| -> Vec<_> {
            let outages = outages(&newest_first, is_down).into_iter();
            outages.map(|outage| (outage.from, outage.to)).collect()
        };
        let pair = |from: &str, to: Option<&str>| (from.to_owned(), to.map(str::to_owned));
        // The one at 1 has no end: the agent stopped meanwhile.
        assert_eq!(
            states(true),
            [pair("5", None), pair("2", Some("3")), pair("1", None)]
        );
    }
}

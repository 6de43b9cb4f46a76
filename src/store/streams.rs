//! Audit rows and outcomes of changes as streams of records, for delivery.
//!
//! Gaps are derived from missing sequences: those records were pruned. Progress of each destination
//! is stored elsewhere.

use rusqlite::{Connection, Row as Line, params};

use super::{Failure, Handle, audit, journal};
use crate::{
    core::{
        outbox::{Batch, Body, Loss, Range, Row, Stream, StreamState},
        time::Wall,
    },
    wire::edge::bodies::{self, AuditBody},
};

/// Records that are looked at for one batch.
const RECORDS_MAX: i64 = 500;

impl Handle {
    /// Stored records of [`Stream::Audit`] or [`Stream::Outcomes`]. Other streams are not here.
    pub async fn stock(&self, stream: Stream) -> Result<StreamState, Failure> {
        let stream = own(stream)?;
        self.call(move |disk| disk.read(|connection| holdings(connection, stream)))
            .await
    }

    /// The first records of a range, as far as they fit into so many bytes: at least one. What was
    /// thinned is said as a gap.
    pub async fn read(
        &self,
        stream: Stream,
        range: Range,
        bytes_max: usize,
    ) -> Result<Batch, Failure> {
        let stream = own(stream)?;
        self.call(move |disk| {
            disk.read(|connection| {
                let found = match stream {
                    Own::Audit => asked(connection, range)?,
                    Own::Outcomes => ended(connection, range)?,
                };
                Ok(batch(found, range, bytes_max))
            })
        })
        .await
    }
}

/// The streams that lie here.
#[derive(Clone, Copy, Debug)]
enum Own {
    Audit,
    Outcomes,
}

fn own(stream: Stream) -> Result<Own, Failure> {
    match stream {
        Stream::Audit => Ok(Own::Audit),
        Stream::Outcomes => Ok(Own::Outcomes),
        Stream::Metrics | Stream::Events | Stream::Logs => {
            let word = stream.as_str();
            Err(Failure::Conflict(format!("{word} are not in state.db")))
        }
    }
}

fn holdings(connection: &Connection, stream: Own) -> rusqlite::Result<StreamState> {
    let (name, last, first) = match stream {
        Own::Audit => (
            Stream::Audit.as_str(),
            audit::last(connection)?,
            "SELECT min(ifnull((SELECT min(sequence) FROM audit WHERE sequence IS NOT NULL), ?1),
                        ifnull((SELECT min(sequence) FROM audit_sum), ?1))",
        ),
        Own::Outcomes => (
            Stream::Outcomes.as_str(),
            journal::last(connection)?,
            "SELECT ifnull((SELECT min(sequence) FROM change WHERE sequence IS NOT NULL), ?1)",
        ),
    };
    let epoch: i64 = connection
        .prepare_cached("SELECT epoch FROM stream WHERE name = ?1")?
        .query_row([name], |row| row.get(0))?;
    let first: i64 = connection
        .prepare_cached(first)?
        .query_row([last], |row| row.get(0))?;
    let mut holdings = StreamState {
        epoch: unsigned(epoch),
        last: unsigned(last),
        gaps: Vec::new(),
    };
    // Those further up show when they are read.
    if let Some(pruned) = Range::new(1, unsigned(first).saturating_sub(1)) {
        holdings.lose(pruned, Loss::Budget);
    }
    Ok(holdings)
}

/// Records that follow `range.from()` without a gap, as far as they fit; or the gap.
fn batch(found: Vec<Row>, range: Range, bytes_max: usize) -> Batch {
    let first = found.first().map(|row| row.sequence);
    if first != Some(range.from()) {
        let to = first.map_or_else(|| range.to(), |first| first.saturating_sub(1));
        return Batch {
            range: Range::new(range.from(), to).unwrap_or(range),
            body: Body::Gap(Loss::Budget),
        };
    }
    let mut rows: Vec<Row> = Vec::new();
    let mut bytes = 0_usize;
    for (row, sequence) in found.into_iter().zip(range.from()..) {
        bytes = bytes.saturating_add(row.body.len());
        if row.sequence != sequence || (bytes > bytes_max && !rows.is_empty()) {
            break;
        }
        rows.push(row);
    }
    let to = rows.last().map_or_else(|| range.from(), |row| row.sequence);
    Batch {
        range: Range::new(range.from(), to).unwrap_or(range),
        body: Body::Rows(rows),
    }
}

/// Rows and sums of the audit, in the order in which they ended.
fn asked(connection: &Connection, range: Range) -> rusqlite::Result<Vec<Row>> {
    let mut query = connection.prepare_cached(
        "SELECT sequence, at, who, what, verdict, why, outcome, received_bytes, sent_bytes, duration_ms, NULL
         FROM audit WHERE sequence >= ?1 AND sequence <= ?2
         UNION ALL
         SELECT sequence, minute, who, what, verdict, why, NULL, received_bytes, sent_bytes, duration_ms, count
         FROM audit_sum WHERE sequence >= ?1 AND sequence <= ?2
         ORDER BY sequence LIMIT ?3",
    )?;
    let values = params![signed(range.from()), signed(range.to()), RECORDS_MAX];
    let rows = query.query_map(values, asked_row)?;
    rows.collect()
}

fn asked_row(line: &Line<'_>) -> rusqlite::Result<Row> {
    let text = |column| line.get::<_, String>(column);
    let number = |column| {
        let found = line.get::<_, Option<i64>>(column)?;
        Ok::<_, rusqlite::Error>(found.map(unsigned))
    };
    let (who, what, verdict, why) = (text(2)?, text(3)?, text(4)?, text(5)?);
    let outcome: Option<String> = line.get(6)?;
    Ok(Row {
        sequence: unsigned(line.get(0)?),
        at: Wall::from_millis(line.get(1)?),
        body: bodies::asked(&AuditBody {
            who: &who,
            what: &what,
            verdict: &verdict,
            why: &why,
            outcome: outcome.as_deref(),
            received_bytes: number(7)?,
            sent_bytes: number(8)?,
            duration_ms: number(9)?,
            count: number(10)?,
        }),
    })
}

/// Outcomes of changes, in the order in which they ended.
fn ended(connection: &Connection, range: Range) -> rusqlite::Result<Vec<Row>> {
    let values = [signed(range.from()), signed(range.to())];
    let changes = journal::ended(connection, values, RECORDS_MAX)?;
    let row = |(sequence, change): (i64, _)| {
        let (at, body) = bodies::outcome(&change)?;
        Some(Row {
            sequence: unsigned(sequence),
            at,
            body,
        })
    };
    Ok(changes.into_iter().filter_map(row).collect())
}

/// A number as SQLite has it.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A number from SQLite. A negative one is not ours.
fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        core::{
            audit::{AuditDecision, AuditEntry, Effect, Sum},
            journal::{ChangeEnd, Intent, Journal, Outcome},
        },
        store::{DATABASE, Store, Ticket},
    };
    use serde_json::Value;
    use smol::block_on;
    use std::path::Path;

    const ALL: usize = usize::MAX;

    fn at(millis: i64) -> Wall {
        Wall::from_millis(millis)
    }

    fn entry(what: &str) -> AuditEntry {
        AuditEntry::new("control-plane", what, AuditDecision::Permitted, "full")
    }

    fn sum(minute: i64, count: u64) -> Sum {
        Sum {
            minute: at(minute),
            entry: entry("GET /"),
            count,
            effect: Effect::default(),
        }
    }

    fn open(directory: &Path) -> (Store, Handle) {
        let (store, _) = block_on(Store::open(directory, at(0))).unwrap();
        let handle = store.handle();
        (store, handle)
    }

    fn close(store: Store) {
        block_on(store.close()).unwrap();
    }

    fn begin(handle: &Handle, what: &str) -> Ticket {
        block_on(handle.audit_begin(entry(what), at(5))).unwrap()
    }

    fn end(handle: &Handle, ticket: Ticket) {
        let effect = Effect {
            received_bytes: 1,
            sent_bytes: 2,
            duration_ms: 3,
        };
        block_on(handle.audit_end(ticket, "200".to_owned(), effect)).unwrap();
    }

    fn stock(handle: &Handle, stream: Stream) -> StreamState {
        block_on(handle.stock(stream)).unwrap()
    }

    fn read(handle: &Handle, stream: Stream, range: (u64, u64), bytes_max: usize) -> Batch {
        let range = Range::new(range.0, range.1).unwrap();
        block_on(handle.read(stream, range, bytes_max)).unwrap()
    }

    /// Sequence and what it is about, of all that is there.
    fn said(handle: &Handle) -> Vec<(u64, String)> {
        let last = stock(handle, Stream::Audit).last;
        let Body::Rows(rows) = read(handle, Stream::Audit, (1, last), ALL).body else {
            panic!("a gap");
        };
        rows.into_iter()
            .map(|row| {
                let body: Value = serde_json::from_str(&row.body).unwrap();
                let what = body["what"].as_str().unwrap().to_owned();
                (row.sequence, what)
            })
            .collect()
    }

    #[test]
    fn a_row_is_a_record_when_it_is_over_and_stays_what_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let (store, handle) = open(directory.path());
        assert_eq!(stock(&handle, Stream::Audit).last, 0);
        let slow = begin(&handle, "PUT /slow");
        let fast = begin(&handle, "PUT /fast");
        begin(&handle, "PUT /never");
        end(&handle, fast);
        block_on(handle.audit_sums(vec![sum(60_000, 4)])).unwrap();
        end(&handle, slow);
        block_on(handle.audit_sums(vec![sum(60_000, 5)])).unwrap();
        // Once more: it was told already.
        end(&handle, fast);
        block_on(handle.tend(at(9))).unwrap();
        let before = ["PUT /fast", "GET /", "PUT /slow", "GET /"];
        let named = |said: Vec<(u64, String)>, wanted: &[&str]| {
            let wanted: Vec<(u64, String)> =
                (1..).zip(wanted.iter().map(|w| (*w).to_owned())).collect();
            assert_eq!(said, wanted);
        };
        named(said(&handle), &before);
        let Body::Rows(rows) = read(&handle, Stream::Audit, (1, 2), ALL).body else {
            panic!("a gap");
        };
        let bodies = [
            r#"{"who":"control-plane","what":"PUT /fast","verdict":"permitted","why":"full","outcome":"200","received_bytes":1,"sent_bytes":2,"duration_ms":3}"#,
            r#"{"who":"control-plane","what":"GET /","verdict":"permitted","why":"full","received_bytes":0,"sent_bytes":0,"duration_ms":0,"count":4}"#,
        ];
        // One is sent however large it is.
        let first = read(&handle, Stream::Audit, (1, 2), 1);
        assert_eq!(first.body, Body::Rows(vec![rows[0].clone()]));
        for (row, body) in rows.iter().zip(bodies) {
            assert_eq!(row.body, body);
        }
        let epoch = stock(&handle, Stream::Audit).epoch;
        close(store);
        // What nobody will end any more is over with the next start, and only then.
        let (store, handle) = open(directory.path());
        assert_eq!(stock(&handle, Stream::Audit).epoch, epoch);
        named(said(&handle), &[&before[..], &["PUT /never"]].concat());
        begin(&handle, "PUT /new");
        block_on(handle.tend(at(9))).unwrap();
        assert_eq!(stock(&handle, Stream::Audit).last, 5);
        close(store);
    }

    #[test]
    fn outcomes_come_in_the_order_in_which_changes_ended() {
        let directory = tempfile::tempdir().unwrap();
        let (store, handle) = open(directory.path());
        for id in ["a", "b", "c"] {
            let lock = Journal::new().lock(id).unwrap();
            block_on(handle.begin_change(&lock, Intent::default(), at(1))).unwrap();
        }
        for id in ["c", "a"] {
            let lock = Journal::new().lock(id).unwrap();
            for _ in 0..2 {
                block_on(handle.finish_change(&lock, ChangeEnd::new(Outcome::Done), at(2)))
                    .unwrap();
            }
        }
        let holdings = stock(&handle, Stream::Outcomes);
        assert_eq!((holdings.last, holdings.gaps.len()), (2, 0));
        assert!(holdings.epoch > 0 && holdings.epoch < 1 << 53);
        assert_ne!(holdings.epoch, stock(&handle, Stream::Audit).epoch);
        let batch = read(&handle, Stream::Outcomes, (1, 2), 1);
        assert_eq!(batch.range.to(), 1, "one at least");
        let Body::Rows(rows) = read(&handle, Stream::Outcomes, (1, 2), ALL).body else {
            panic!("a gap");
        };
        for (row, id) in rows.iter().zip([r#"{"id":"c""#, r#"{"id":"a""#]) {
            assert!(row.body.starts_with(id), "{}", row.body);
        }
        assert_eq!(rows[0].at, at(2));
        close(store);
    }

    #[test]
    fn what_was_thinned_is_a_gap_and_its_numbers_are_not_given_again() {
        let directory = tempfile::tempdir().unwrap();
        let (store, handle) = open(directory.path());
        let other = Connection::open(directory.path().join(DATABASE)).unwrap();
        other
            .execute_batch(
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20100)
                 INSERT INTO audit (number, at, who, what, verdict, why, outcome, sequence)
                 SELECT 30000 - i, i, 'a', 'b', 'permitted', '', 'x', i * 2 FROM n;
                 WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 50)
                 INSERT INTO audit_sum SELECT i * 2 - 1, 0, 'a', 'b', 'permitted', '', 1, 0, 0, 0 FROM n;
                 WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 300)
                 INSERT INTO change (id, origin, kind, body, started, ended, outcome, sequence)
                 SELECT i, '', '', '', 0, 1, 'done', 301 - i FROM n;",
            )
            .unwrap();
        block_on(handle.tend(at(9))).unwrap();
        let audit = stock(&handle, Stream::Audit);
        assert_eq!(
            (audit.last, audit.gaps.len()),
            (40_200, 0),
            "the first sum is there"
        );
        let lost = |stream, range, to: u64| {
            let batch = read(&handle, stream, range, ALL);
            assert_eq!(batch.body, Body::Gap(Loss::Budget));
            assert_eq!((batch.range.from(), batch.range.to()), (range.0, to));
        };
        lost(Stream::Audit, (2, 40_200), 2);
        lost(Stream::Audit, (100, 40_200), 201);
        lost(Stream::Audit, (100, 150), 150);
        let batch = read(&handle, Stream::Audit, (1, 40_200), ALL);
        assert_eq!(batch.range.to(), 1);
        let outcomes = stock(&handle, Stream::Outcomes);
        assert_eq!(outcomes.last, 300);
        assert_eq!(outcomes.gaps[0].range, Range::new(1, 100).unwrap());
        lost(Stream::Outcomes, (1, 300), 100);
        let newest = read(&handle, Stream::Outcomes, (300, 300), ALL);
        assert!(matches!(newest.body, Body::Rows(rows) if rows.len() == 1));
        let plan: Vec<String> = other
            .prepare(
                "EXPLAIN QUERY PLAN SELECT sequence FROM audit WHERE sequence >= 5 AND sequence <= 9
                 UNION ALL SELECT sequence FROM audit_sum WHERE sequence >= 5 AND sequence <= 9
                 ORDER BY sequence LIMIT 5",
            )
            .unwrap()
            .query_map([], |row| row.get(3))
            .unwrap()
            .collect::<Result<_, _>>()
            .unwrap();
        assert!(!plan.iter().any(|line| line.contains("SCAN")), "{plan:?}");
        close(store);
    }

    #[test]
    fn a_database_that_began_anew_has_another_epoch() {
        let directory = tempfile::tempdir().unwrap();
        let mut epochs = Vec::new();
        for _ in 0..2 {
            let (store, handle) = open(directory.path());
            epochs.push(stock(&handle, Stream::Audit).epoch);
            close(store);
            std::fs::remove_file(directory.path().join(DATABASE)).unwrap();
        }
        assert_ne!(epochs[0], epochs[1]);
    }
}

//! Summary of the audit, counted by SQLite, so that a day of it is never loaded into memory.

use rusqlite::{Connection, params};

use super::{Failure, Handle, settle, verdict_of};
use crate::core::{
    audit::{Counts, OTHERS, REFUSALS_SHOWN_MAX, Refused, RequestKind, Summary},
    time::Wall,
};

/// One row for each line and verdict. Rows and sums are of one shape here; `?2` is who asked, `?3`
/// stands for those without room of their own.
const COUNTS: &str = "
    SELECT what, verdict, sum(count), sum(received_bytes), sum(sent_bytes)
    FROM (SELECT what, verdict, 1 AS count, received_bytes, sent_bytes FROM audit WHERE at >= ?1 AND who = ?2
          UNION ALL
          SELECT what, verdict, count, received_bytes, sent_bytes FROM audit_sum WHERE minute >= ?1 AND who IN (?2, ?3))
    GROUP BY 1, 2";

const REFUSALS: &str = "
    SELECT what, why, max(at), sum(count)
    FROM (SELECT what, why, at, 1 AS count FROM audit WHERE at >= ?1 AND who = ?2 AND verdict = 'refused'
          UNION ALL
          SELECT what, why, minute, count FROM audit_sum WHERE minute >= ?1 AND who IN (?2, ?3) AND verdict = 'refused')
    GROUP BY what, why ORDER BY max(at) DESC, what LIMIT ?4";

impl Handle {
    /// Counts the requests of `who` since then, with the newest refusals.
    pub async fn audit_summary(&self, who: &'static str, since: Wall) -> Result<Summary, Failure> {
        self.call(move |disk| {
            settle(disk);
            disk.read(|connection| summary(connection, who, since))
        })
        .await
    }
}

fn summary(connection: &Connection, who: &str, since: Wall) -> rusqlite::Result<Summary> {
    let mut summary = Summary::default();
    let mut query = connection.prepare(COUNTS)?;
    let mut rows = query.query(params![since.millis(), who, OTHERS])?;
    while let Some(row) = rows.next()? {
        let (what, verdict): (String, String) = (row.get(0)?, row.get(1)?);
        summary.counts(RequestKind::of_line(&what)).add(Counts {
            received_bytes: count(row.get(3)?),
            sent_bytes: count(row.get(4)?),
            ..Counts::of(verdict_of(&verdict), count(row.get(2)?))
        });
    }
    let mut query = connection.prepare(REFUSALS)?;
    let limit = i64::try_from(REFUSALS_SHOWN_MAX).unwrap_or(0);
    let refusals = query.query_map(params![since.millis(), who, OTHERS, limit], |row| {
        Ok(Refused {
            what: row.get(0)?,
            why: row.get(1)?,
            last: Wall::from_millis(row.get(2)?),
            count: count(row.get(3)?),
        })
    })?;
    summary.refusals = refusals.collect::<Result<_, _>>()?;
    Ok(summary)
}

/// Reads a count. Requests that were cut off or still run have no bytes yet.
fn count(column: Option<i64>) -> u64 {
    u64::try_from(column.unwrap_or(0)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        core::audit::{AuditDecision, AuditEntry, Effect, Sum},
        store::Store,
    };
    use smol::block_on;

    const WHO: &str = "control-plane";

    fn effect(bytes: u64) -> Effect {
        Effect {
            received_bytes: bytes,
            sent_bytes: bytes * 2,
            duration_ms: 1,
        }
    }

    fn sum(minute: i64, what: &str, verdict: AuditDecision, count: u64) -> Sum {
        let who = if what == OTHERS { OTHERS } else { WHO };
        Sum {
            minute: Wall::from_millis(minute),
            entry: AuditEntry::new(who, what, verdict, "because"),
            count,
            effect: effect(5),
        }
    }

    #[test]
    fn a_day_is_counted_on_disk_as_it_would_be_in_memory() {
        let directory = tempfile::tempdir().unwrap();
        let now = Wall::from_millis(1_000_000);
        let (store, _) = block_on(Store::open(directory.path(), now)).unwrap();
        let handle = store.handle();
        let sums = vec![
            sum(60_000, "GET /old", AuditDecision::Permitted, 100),
            sum(120_000, "GET /api/v1/pods", AuditDecision::Permitted, 3),
            sum(180_000, "GET /api/v1/secrets", AuditDecision::Refused, 2),
            sum(180_000, OTHERS, AuditDecision::Permitted, 9),
            sum(
                240_000,
                "POST /api/v1/namespaces/a/pods/b/exec",
                AuditDecision::Refused,
                4,
            ),
            sum(
                240_000,
                "GET /api/v1/namespaces/a/pods/exec",
                AuditDecision::Permitted,
                1,
            ),
            sum(
                240_000,
                "GET shop/web:80/pods/exec",
                AuditDecision::Permitted,
                1,
            ),
        ];
        let mut wanted = Summary::default();
        for sum in sums.iter().skip(1) {
            wanted.add(sum);
        }
        block_on(handle.audit_sums(sums)).unwrap();
        let since = Wall::from_millis(120_000);
        let found = block_on(handle.audit_summary(WHO, since)).unwrap();
        assert_eq!(found, wanted);

        for (at, who, what, verdict) in [
            (1, WHO, "DELETE /old", AuditDecision::Permitted),
            (500_000, WHO, "DELETE /new", AuditDecision::Permitted),
            (600_000, WHO, "DELETE /b", AuditDecision::Refused),
            (
                700_000,
                "uid 0, pid 7",
                "access managed -> off",
                AuditDecision::Permitted,
            ),
        ] {
            let entry = AuditEntry::new(who, what, verdict, "because");
            let ticket = block_on(handle.audit_begin(entry, Wall::from_millis(at))).unwrap();
            if what == "DELETE /new" {
                block_on(handle.audit_end(ticket, "done".to_owned(), effect(7))).unwrap();
            }
        }
        let found = block_on(handle.audit_summary(WHO, since)).unwrap();
        let changes = Counts {
            permitted: 1,
            refused: 1,
            received_bytes: 7,
            sent_bytes: 14,
        };
        assert_eq!(found.changes, changes, "what is under way has no bytes yet");
        assert_eq!((found.reads, found.entries), (wanted.reads, wanted.entries));
        let newest = found.refusals.first().unwrap();
        assert_eq!((newest.what.as_str(), newest.count), ("DELETE /b", 1));
        assert_eq!(found.refusals.len(), 3);
    }

    #[test]
    fn refusals_of_one_reason_are_one_line_whether_rows_or_sums() {
        let directory = tempfile::tempdir().unwrap();
        let (store, _) = block_on(Store::open(directory.path(), Wall::default())).unwrap();
        let handle = store.handle();
        for n in 1..=40 {
            let entry = AuditEntry::new(
                WHO,
                &format!("POST /{}", n % 30),
                AuditDecision::Refused,
                "because",
            );
            block_on(handle.audit_begin(entry, Wall::from_millis(n * 1000))).unwrap();
        }
        block_on(handle.audit_sums(vec![sum(0, "POST /10", AuditDecision::Refused, 5)])).unwrap();
        let found = block_on(handle.audit_summary(WHO, Wall::default())).unwrap();
        assert_eq!(found.refusals.len(), REFUSALS_SHOWN_MAX);
        let newest = found.refusals.first().unwrap();
        assert_eq!((newest.what.as_str(), newest.count), ("POST /10", 7));
        assert_eq!(newest.last, Wall::from_millis(40_000));
        assert_eq!(found.changes.refused, 45);
    }
}

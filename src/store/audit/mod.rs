//! Audit log: a row before each effect, sums of the rest, both under a quota.

mod summary;

use std::collections::{BTreeMap, VecDeque};

use rusqlite::{Connection, Transaction, params};

use super::{
    Failure, Handle,
    disk::{Disk, NotCommitted},
};
use crate::core::{
    audit::{AuditDecision, AuditEntry, Effect, Sum},
    time::Wall,
};

/// Rows that are kept: 2,000 a day for ten days, at most 20 MB.
const ROWS_MAX: i64 = 20_000;
/// Sums that are kept.
const SUMS_MAX: i64 = 20_000;
/// Maximum number of rows that wait in memory while the disk is unavailable.
const WAITING_MAX: usize = 1_000;
/// Rows without an end that are remembered: far more than calls that run at once.
const OPEN_MAX: usize = 4_096;
/// Number of calls of [`Handle::tend`], one in 30 s, after which a row without an end counts as
/// over: a day. Its end was lost on the way, or its call has run for longer than that.
const OPEN_CHECKS_MAX: u16 = 2_880;
/// Ends of requests that wait for the next write: they are not worth one of their own.
const ENDS_MAX: usize = 64;
/// Outcome of a row that was written after its caller had given up.
const NOT_BEGUN: &str = "cancelled: the disk answered too late";

/// Names a row that was begun, so that its end can be written.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Ticket(i64);

impl Ticket {
    /// The number of its row: no other one of this machine has it.
    pub const fn number(self) -> i64 {
        self.0
    }
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub struct AuditRow {
    /// Its number: higher than those of all rows before it.
    pub number: i64,
    /// Time when it was asked.
    pub at: Wall,
    /// Request, requester and decision.
    pub entry: AuditEntry,
    /// Outcome and totals; `None` while it runs, or if the agent ended before it did.
    pub ended: Option<(String, Effect)>,
}

/// Rows that are not on disk yet.
#[derive(Debug)]
pub(super) struct Waiting {
    next: i64,
    rows: VecDeque<(i64, Wall, AuditEntry)>,
    /// Ends by the number of their row. One without an outcome is that of a row whose end nobody
    /// knows.
    ends: VecDeque<(i64, Option<String>, Effect)>,
    sums: VecDeque<Sum>,
    lost: u64,
    /// The highest number on disk.
    written: i64,
    /// Rows of this process without an end, and how often they were looked at since.
    open: BTreeMap<i64, u16>,
}

impl Waiting {
    /// Nothing waits. Numbers begin with the time, above those of a database that cannot be read
    /// now, and are put behind the newest one when it can.
    pub(super) fn new(now: Wall) -> Self {
        Self {
            next: now.millis().max(1).saturating_mul(1024),
            rows: VecDeque::new(),
            ends: VecDeque::new(),
            sums: VecDeque::new(),
            lost: 0,
            written: 0,
            open: BTreeMap::new(),
        }
    }

    /// Takes a row; returns its number.
    fn begin(&mut self, entry: AuditEntry, now: Wall) -> i64 {
        let number = self.next;
        self.next = number.saturating_add(1);
        self.rows.push_back((number, now, entry));
        self.open.insert(number, 0);
        if self.open.len() > OPEN_MAX
            && let Some((oldest, _)) = self.open.pop_first()
        {
            self.ends.push_back((oldest, None, Effect::default()));
        }
        number
    }

    /// Takes the end of a row.
    fn end(&mut self, number: i64, outcome: String, effect: Effect) {
        self.open.remove(&number);
        self.ends.push_back((number, Some(outcome), effect));
        if self.ends.len() > WAITING_MAX {
            self.forget_ends();
        }
    }

    /// Expires rows without an end that began a day ago.
    pub(super) fn expire_open(&mut self) {
        for checks in self.open.values_mut() {
            *checks = checks.saturating_add(1);
        }
        let old = self
            .open
            .extract_if(.., |_, checks| *checks >= OPEN_CHECKS_MAX);
        self.ends
            .extend(old.map(|(number, _)| (number, None, Effect::default())));
    }

    /// Drops the ends of rows for which there was no room. The others stay: a row on disk without
    /// its end would be kept for ever. They are as many as calls ran when the disk went, and as
    /// rows wait.
    fn forget_ends(&mut self) {
        let first = self.rows.front().map_or(i64::MAX, |(number, _, _)| *number);
        let written = self.written;
        let is_kept = |number: i64| number <= written || number >= first;
        self.ends.retain(|(number, _, _)| is_kept(*number));
        self.open.retain(|number, _| is_kept(*number));
    }

    /// Numbers go on behind `newest`, where nothing was numbered yet, and never below it.
    pub(super) fn start_after(&mut self, newest: i64) {
        self.next = self.next.max(newest.saturating_add(1));
        self.written = self.written.max(newest);
    }

    /// Number of lost rows, in words.
    pub(super) fn lost_in_words(&self) -> Option<String> {
        (self.lost > 0).then(|| {
            format!(
                "{} audit entries were lost since the start because the disk could not be written for too long",
                self.lost
            )
        })
    }

    fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.ends.is_empty() && self.sums.is_empty()
    }

    /// Drops the oldest over the bound. Rows and sums that go are counted.
    fn bound(&mut self) {
        while self.rows.len() > WAITING_MAX {
            self.rows.pop_front();
            self.lost = self.lost.saturating_add(1);
        }
        while self.sums.len() > WAITING_MAX {
            self.sums.pop_front();
            self.lost = self.lost.saturating_add(1);
        }
        self.forget_ends();
    }
}

impl Handle {
    /// Writes a row before its effect. Where the disk cannot be written the row waits in memory:
    /// this machine must stay reachable for the person who mends its disk.
    pub async fn audit_begin(&self, entry: AuditEntry, now: Wall) -> Result<Ticket, Failure> {
        self.queue(begin(entry, now)).await
    }

    /// As [`Handle::audit_begin`], for a call that does not go on without its row: a disk that
    /// hangs is not asked, and a row that nobody waited for gets its end.
    pub async fn audit_begin_call(&self, entry: AuditEntry, now: Wall) -> Result<Ticket, Failure> {
        if self.is_hung() {
            return Err(Failure::Hung);
        }
        // Whoever did not wait for the row was refused, or is gone.
        let undo = |disk: &mut Disk, Ticket(number)| {
            let outcome = NOT_BEGUN.to_owned();
            disk.audit.end(number, outcome, Effect::default());
        };
        self.post.queue_or_undo(begin(entry, now), undo).await
    }

    /// Says what came of a row. Written with the next row, or by `tend`: a power cut loses it.
    pub async fn audit_end(
        &self,
        Ticket(number): Ticket,
        outcome: String,
        effect: Effect,
    ) -> Result<(), Failure> {
        self.queue(move |disk| {
            disk.audit.end(number, outcome, effect);
            if disk.audit.ends.len() >= ENDS_MAX {
                settle(disk);
            }
            Ok(())
        })
        .await
    }

    /// Adds the sums of the minutes that are over.
    pub async fn audit_sums(&self, sums: Vec<Sum>) -> Result<(), Failure> {
        self.queue(move |disk| {
            disk.audit.sums.extend(sums);
            settle(disk);
            Ok(())
        })
        .await
    }

    /// The newest rows, the newest first.
    pub async fn recent_audit(&self, count_max: u32) -> Result<Vec<AuditRow>, Failure> {
        self.call(move |disk| {
            settle(disk);
            disk.read(|connection| select_rows(connection, count_max))
        })
        .await
    }

    /// The sums of the newest minutes, the newest first.
    #[cfg(feature = "internals")]
    pub async fn recent_sums(&self, count_max: u32) -> Result<Vec<Sum>, Failure> {
        self.call(move |disk| {
            settle(disk);
            disk.read(|connection| select_sums(connection, count_max))
        })
        .await
    }
}

fn begin(entry: AuditEntry, now: Wall) -> impl FnOnce(&mut Disk) -> Result<Ticket, Failure> + Send {
    move |disk| {
        disk.set_latest_time(now);
        let number = disk.audit.begin(entry, now);
        settle(disk);
        Ok(Ticket(number))
    }
}

/// Writes what waits; what cannot be written waits on.
pub(super) fn settle(disk: &mut Disk) {
    if disk.audit.is_empty() {
        return;
    }
    let waiting = std::mem::replace(&mut disk.audit, Waiting::new(Wall::default()));
    let is_first = !disk.are_old_rows_over;
    let written = disk.write(|transaction| {
        if is_first {
            end_old_rows(transaction)?;
        }
        insert(transaction, &waiting)
    });
    disk.are_old_rows_over |= written.is_ok();
    let next = waiting.next.max(disk.audit.next);
    disk.audit = match written {
        Ok(()) => Waiting {
            next,
            lost: waiting.lost,
            written: waiting.next.saturating_sub(1),
            open: waiting.open,
            ..Waiting::new(Wall::default())
        },
        Err(_) => Waiting { next, ..waiting },
    };
    disk.audit.bound();
}

/// Numbers the rows that an earlier process left without an end: it will not come any more. Only
/// before the first row of this process.
pub(super) fn end_old_rows(transaction: &Transaction<'_>) -> Result<(), NotCommitted> {
    let last = last(transaction)?;
    transaction.execute(
        "UPDATE audit SET sequence = ?1 + placed.place
         FROM (SELECT number AS row, row_number() OVER (ORDER BY number) AS place
               FROM audit WHERE sequence IS NULL) AS placed
         WHERE number = placed.row",
        [last],
    )?;
    Ok(())
}

/// The last sequence that was given.
pub(super) fn last(connection: &Connection) -> rusqlite::Result<i64> {
    connection
        .prepare_cached(
            "SELECT max(ifnull((SELECT max(sequence) FROM audit WHERE sequence IS NOT NULL), 0),
                        ifnull((SELECT max(sequence) FROM audit_sum), 0))",
        )?
        .query_row([], |row| row.get(0))
}

fn insert(transaction: &Transaction<'_>, waiting: &Waiting) -> Result<(), NotCommitted> {
    let mut last = last(transaction)?;
    let mut row = transaction.prepare_cached(
        "INSERT OR IGNORE INTO audit (number, at, who, what, verdict, why) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    )?;
    for (number, at, entry) in &waiting.rows {
        row.execute(params![
            number,
            at.millis(),
            entry.who(),
            entry.what(),
            entry.decision().as_str(),
            entry.why()
        ])?;
    }
    let mut end = transaction.prepare_cached(
        "UPDATE audit SET outcome = ?2, received_bytes = ?3, sent_bytes = ?4, duration_ms = ?5, sequence = ?6
         WHERE number = ?1 AND sequence IS NULL",
    )?;
    for (number, outcome, effect) in &waiting.ends {
        let [received, sent, duration] = columns(*effect);
        let next = last.saturating_add(1);
        // Its row may be one of those that there was no room for.
        if end.execute(params![number, outcome, received, sent, duration, next])? > 0 {
            last = next;
        }
    }
    let mut sum = transaction
        .prepare_cached("INSERT INTO audit_sum VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)")?;
    for Sum {
        minute,
        entry,
        count,
        effect,
    } in &waiting.sums
    {
        let [received, sent, duration] = columns(*effect);
        last = last.saturating_add(1);
        sum.execute(params![
            last,
            minute.millis(),
            entry.who(),
            entry.what(),
            entry.decision().as_str(),
            entry.why(),
            column(*count),
            received,
            sent,
            duration
        ])?;
    }
    Ok(())
}

/// The number of the newest row; 0 where there is none.
pub(super) fn newest(connection: &Connection) -> rusqlite::Result<i64> {
    connection.query_row("SELECT coalesce(max(number), 0) FROM audit", [], |row| {
        row.get(0)
    })
}

/// Removes the oldest over the quota, in the order in which they ended: the newest stays, and with
/// it the last sequence.
pub(super) fn prune(transaction: &Transaction<'_>) -> Result<(), NotCommitted> {
    transaction.execute(
        "DELETE FROM audit WHERE sequence <=
         (SELECT sequence FROM audit WHERE sequence IS NOT NULL ORDER BY sequence DESC LIMIT 1 OFFSET ?1)",
        [ROWS_MAX],
    )?;
    transaction.execute(
        "DELETE FROM audit_sum WHERE sequence <=
         (SELECT sequence FROM audit_sum ORDER BY sequence DESC LIMIT 1 OFFSET ?1)",
        [SUMS_MAX],
    )?;
    Ok(())
}

fn select_rows(connection: &Connection, count_max: u32) -> rusqlite::Result<Vec<AuditRow>> {
    let mut query = connection.prepare(
        "SELECT at, who, what, verdict, why, outcome, received_bytes, sent_bytes, duration_ms, number
         FROM audit ORDER BY number DESC LIMIT ?1",
    )?;
    let rows = query.query_map([count_max], |row| {
        let [who, what, verdict, why]: [String; 4] =
            [row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?];
        let outcome: Option<String> = row.get(5)?;
        let ended = match outcome {
            Some(outcome) => Some((outcome, effect([row.get(6)?, row.get(7)?, row.get(8)?]))),
            None => None,
        };
        Ok(AuditRow {
            number: row.get(9)?,
            at: Wall::from_millis(row.get(0)?),
            entry: AuditEntry::new(&who, &what, verdict_of(&verdict), &why),
            ended,
        })
    })?;
    rows.collect()
}

#[cfg(feature = "internals")]
fn select_sums(connection: &Connection, count_max: u32) -> rusqlite::Result<Vec<Sum>> {
    let mut query = connection.prepare(
        "SELECT minute, who, what, verdict, why, sum(count), sum(received_bytes), sum(sent_bytes), sum(duration_ms)
         FROM audit_sum GROUP BY minute, who, what, verdict, why ORDER BY minute DESC, who, what LIMIT ?1",
    )?;
    let rows = query.query_map([count_max], |row| {
        let [who, what, verdict, why]: [String; 4] =
            [row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?];
        Ok(Sum {
            minute: Wall::from_millis(row.get(0)?),
            entry: AuditEntry::new(&who, &what, verdict_of(&verdict), &why),
            count: u64::try_from(row.get::<_, i64>(5)?).unwrap_or(0),
            effect: effect([row.get(6)?, row.get(7)?, row.get(8)?]),
        })
    })?;
    rows.collect()
}

/// The table's check lets no other word in.
fn verdict_of(word: &str) -> AuditDecision {
    AuditDecision::of(word).unwrap_or(AuditDecision::Refused)
}

/// SQLite's integers have a sign, and a sum that overflows would be refused for ever. A petabyte is
/// as good as more.
fn column(count: u64) -> i64 {
    i64::try_from(count.min(1 << 50)).unwrap_or(0)
}

fn columns(effect: Effect) -> [i64; 3] {
    [effect.received_bytes, effect.sent_bytes, effect.duration_ms].map(column)
}

fn effect(columns: [Option<i64>; 3]) -> Effect {
    let [received_bytes, sent_bytes, duration_ms] =
        columns.map(|column| u64::try_from(column.unwrap_or(0)).unwrap_or(0));
    Effect {
        received_bytes,
        sent_bytes,
        duration_ms,
    }
}

#[cfg(test)]
mod tests;

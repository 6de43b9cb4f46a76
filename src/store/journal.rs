//! The change journal on disk: an intent before the first step, each step before its act, the
//! outcome before its report.

use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};

use super::{
    Failure, Handle,
    disk::{Disk, NotCommitted},
};
use crate::core::{
    journal::{Change, ChangeEnd, ChangeLock, ChangeStep, Intent, Outcome, StepState},
    time::Wall,
};

/// Finished changes that are kept.
const FINISHED_MAX: i64 = 200;
/// Unfinished changes that there may be. One is under way at a time; more are left where a kind of
/// change was given up by a newer version.
const UNFINISHED_MAX: i64 = 256;
/// Unfinished changes of one list: each may have an intent of a megabyte.
const UNFINISHED_LIST_MAX: u32 = 64;
/// The largest intent: what is larger belongs into a file of its own, with its hash in the intent.
const INTENT_BYTES_MAX: usize = 1 << 20;
/// Steps of one change.
const STEPS_MAX: u32 = 10_000;

/// Result of beginning a change.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Begun {
    /// Its intent is on disk now.
    New,
    /// A change of that id was there already: go on with it, or report its outcome again.
    Known(Change),
}

impl Handle {
    /// Writes the intent of the change that holds the lock. To begin the same id twice begins it
    /// once.
    pub async fn begin_change(
        &self,
        lock: &ChangeLock,
        intent: Intent,
        now: Wall,
    ) -> Result<Begun, Failure> {
        let id = lock.id().to_owned();
        small(&id, &intent)?;
        self.call(move |disk| {
            disk.set_latest_time(now);
            disk.write(|transaction| begin(transaction, &id, &intent, now))
        })
        .await
    }

    /// Writes that the step at `position` is about to act, and how it is taken back. Positions
    /// follow each other without a gap; a step that is on disk already is left as it is.
    pub async fn intend_step(
        &self,
        lock: &ChangeLock,
        step: ChangeStep,
        now: Wall,
    ) -> Result<(), Failure> {
        let id = lock.id().to_owned();
        self.call(move |disk| disk.write(|transaction| intend(transaction, &id, &step, now)))
            .await
    }

    /// Writes how far the step at `position` is.
    pub async fn advance_step(
        &self,
        lock: &ChangeLock,
        (position, to): (u32, StepState),
        detail: Option<String>,
        now: Wall,
    ) -> Result<(), Failure> {
        let id = lock.id().to_owned();
        self.queue(move |disk| {
            disk.write(|transaction| {
                advance(transaction, &id, (position, to), detail.as_deref(), now)
            })
        })
        .await
    }

    /// Writes how the change ended. Ending it twice the same way is once.
    pub async fn finish_change(
        &self,
        lock: &ChangeLock,
        ending: ChangeEnd,
        now: Wall,
    ) -> Result<(), Failure> {
        let id = lock.id().to_owned();
        self.queue(move |disk| disk.write(|transaction| finish(transaction, &id, &ending, now)))
            .await
    }

    /// The oldest changes that were begun and have no outcome, 64 at most: what a start goes on
    /// with. Once those are over, the next ones come.
    pub async fn unfinished_changes(&self) -> Result<Vec<Change>, Failure> {
        self.call(|disk| {
            list(
                disk,
                "WHERE ended IS NULL ORDER BY number",
                UNFINISHED_LIST_MAX,
            )
        })
        .await
    }

    /// The newest changes, the newest first.
    pub async fn recent_changes(&self, count_max: u32) -> Result<Vec<Change>, Failure> {
        self.call(move |disk| list(disk, "ORDER BY number DESC", count_max))
            .await
    }
}

/// Refuses an intent that is too large.
pub(super) fn small(id: &str, intent: &Intent) -> Result<(), Failure> {
    if intent.body.len() > INTENT_BYTES_MAX {
        return Err(Failure::Conflict(format!(
            "the intent of {id} is longer than {INTENT_BYTES_MAX} bytes"
        )));
    }
    Ok(())
}

pub(super) fn begin(
    transaction: &Transaction<'_>,
    id: &str,
    intent: &Intent,
    now: Wall,
) -> Result<Begun, NotCommitted> {
    let known = transaction
        .prepare_cached(&format!("{SELECT_CHANGE} WHERE id = ?1"))?
        .query_row([id], change)
        .optional()?;
    if let Some((number, mut known)) = known {
        known.steps = steps(transaction, number)?;
        return Ok(Begun::Known(known));
    }
    let unfinished: i64 = transaction
        .prepare_cached("SELECT count(*) FROM change WHERE ended IS NULL")?
        .query_row([], |row| row.get(0))?;
    if unfinished >= UNFINISHED_MAX {
        return Err(NotCommitted::Conflict(format!(
            "{unfinished} changes were begun and not finished, so {id} cannot begin: finish or undo them first"
        )));
    }
    transaction.execute(
        "INSERT INTO change (id, origin, kind, body, started) VALUES (?1, ?2, ?3, ?4, ?5)",
        params![id, intent.origin, intent.kind, intent.body, now.millis()],
    )?;
    Ok(Begun::New)
}

fn intend(
    transaction: &Transaction<'_>,
    id: &str,
    step: &ChangeStep,
    now: Wall,
) -> Result<(), NotCommitted> {
    let number = open_change(transaction, id)?;
    if state(transaction, number, step.position)?.is_some() {
        return Ok(());
    }
    let count: u32 = transaction.query_row(
        "SELECT count(*) FROM step WHERE change = ?1",
        [number],
        |row| row.get(0),
    )?;
    if step.position != count || count >= STEPS_MAX {
        let why = format!("{id}: step {} cannot follow {count} steps", step.position);
        return Err(NotCommitted::Conflict(why));
    }
    transaction.execute(
        "INSERT INTO step VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        params![
            number,
            step.position,
            step.name,
            StepState::Intended.as_str(),
            step.undo,
            step.detail,
            now.millis()
        ],
    )?;
    Ok(())
}

fn advance(
    transaction: &Transaction<'_>,
    id: &str,
    (position, to): (u32, StepState),
    detail: Option<&str>,
    now: Wall,
) -> Result<(), NotCommitted> {
    let number = open_change(transaction, id)?;
    let Some(from) = state(transaction, number, position)? else {
        return Err(NotCommitted::Conflict(format!(
            "{id} has no step {position}"
        )));
    };
    if !from.may_become(to) {
        let why = format!(
            "{id}: step {position} is {} and cannot become {}",
            from.as_str(),
            to.as_str()
        );
        return Err(NotCommitted::Conflict(why));
    }
    transaction.execute(
        "UPDATE step SET state = ?3, detail = coalesce(?4, detail), updated = ?5
         WHERE change = ?1 AND position = ?2",
        params![number, position, to.as_str(), detail, now.millis()],
    )?;
    Ok(())
}

fn finish(
    transaction: &Transaction<'_>,
    id: &str,
    ending: &ChangeEnd,
    now: Wall,
) -> Result<(), NotCommitted> {
    let ended: Option<Option<String>> = transaction
        .query_row("SELECT outcome FROM change WHERE id = ?1", [id], |row| {
            row.get(0)
        })
        .optional()?;
    let outcome = ending.outcome;
    match ended {
        None => return Err(NotCommitted::Conflict(format!("there is no change {id}"))),
        Some(Some(word)) if word == outcome.as_str() => return Ok(()),
        Some(Some(word)) => {
            let why = format!("{id} is {word} and cannot be {}", outcome.as_str());
            return Err(NotCommitted::Conflict(why));
        }
        Some(None) => {}
    }
    transaction.execute(
        "UPDATE change SET ended = ?2, outcome = ?3, why = ?4, fix = ?5, sequence = ?6 WHERE id = ?1",
        params![
            id,
            now.millis(),
            outcome.as_str(),
            ending.why,
            ending.fix,
            last(transaction)?.saturating_add(1)
        ],
    )?;
    Ok(())
}

/// Removes the oldest finished changes over the quota, in the order in which they ended: the newest
/// stays, and with it the last sequence. Unfinished ones stay.
pub(super) fn prune(transaction: &Transaction<'_>) -> Result<(), NotCommitted> {
    transaction.execute(
        "DELETE FROM change WHERE sequence <=
         (SELECT sequence FROM change WHERE sequence IS NOT NULL ORDER BY sequence DESC LIMIT 1 OFFSET ?1)",
        [FINISHED_MAX],
    )?;
    Ok(())
}

/// The last sequence that was given.
pub(super) fn last(connection: &Connection) -> rusqlite::Result<i64> {
    connection
        .prepare_cached("SELECT ifnull(max(sequence), 0) FROM change WHERE sequence IS NOT NULL")?
        .query_row([], |row| row.get(0))
}

/// The number of a change that is under way.
fn open_change(transaction: &Transaction<'_>, id: &str) -> Result<i64, NotCommitted> {
    let found: Option<(i64, Option<String>)> = transaction
        .query_row(
            "SELECT number, outcome FROM change WHERE id = ?1",
            [id],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .optional()?;
    match found {
        Some((number, None)) => Ok(number),
        Some((_, Some(outcome))) => Err(NotCommitted::Conflict(format!("{id} is over: {outcome}"))),
        None => Err(NotCommitted::Conflict(format!("there is no change {id}"))),
    }
}

fn state(
    transaction: &Transaction<'_>,
    change: i64,
    position: u32,
) -> rusqlite::Result<Option<StepState>> {
    let word: Option<String> = transaction
        .query_row(
            "SELECT state FROM step WHERE change = ?1 AND position = ?2",
            params![change, position],
            |row| row.get(0),
        )
        .optional()?;
    Ok(word.and_then(|word| StepState::of(&word)))
}

const SELECT_CHANGE: &str = "SELECT number, id, origin, kind, body, started, ended, outcome, why, sequence, fix FROM change";

fn list(disk: &mut Disk, order: &str, count_max: u32) -> Result<Vec<Change>, Failure> {
    disk.read(|connection| {
        let query = format!("{SELECT_CHANGE} {order} LIMIT ?1");
        let found = select(connection, &query, [i64::from(count_max)])?;
        Ok(found.into_iter().map(|(_, change)| change).collect())
    })
}

/// Ended changes with these sequences, in their order.
pub(super) fn ended(
    connection: &Connection,
    range: [i64; 2],
    count_max: i64,
) -> rusqlite::Result<Vec<(i64, Change)>> {
    let query = format!(
        "{SELECT_CHANGE} WHERE sequence >= ?1 AND sequence <= ?2 ORDER BY sequence LIMIT ?3"
    );
    select(connection, &query, [range[0], range[1], count_max])
}

/// Changes with their steps, each with its sequence; 0 where it has not ended.
fn select<const N: usize>(
    connection: &Connection,
    query: &str,
    values: [i64; N],
) -> rusqlite::Result<Vec<(i64, Change)>> {
    let mut query = connection.prepare(query)?;
    let found: Vec<_> = query
        .query_map(rusqlite::params_from_iter(values), |row| {
            Ok((row.get::<_, Option<i64>>(9)?, change(row)?))
        })?
        .collect::<Result<_, _>>()?;
    found
        .into_iter()
        .map(|(sequence, (number, change))| {
            let steps = steps(connection, number)?;
            Ok((sequence.unwrap_or(0), Change { steps, ..change }))
        })
        .collect()
}

fn change(row: &Row<'_>) -> rusqlite::Result<(i64, Change)> {
    let (ended, outcome): (Option<i64>, Option<String>) = (row.get(6)?, row.get(7)?);
    let (why, fix): (Option<String>, Option<String>) = (row.get(8)?, row.get(10)?);
    let ended = ended
        .zip(outcome.as_deref().and_then(Outcome::of))
        .map(|(ended, outcome)| (Wall::from_millis(ended), ChangeEnd { outcome, why, fix }));
    let change = Change {
        id: row.get(1)?,
        intent: Intent {
            origin: row.get(2)?,
            kind: row.get(3)?,
            body: row.get(4)?,
        },
        started: Wall::from_millis(row.get(5)?),
        ended,
        steps: Vec::new(),
    };
    Ok((row.get(0)?, change))
}

fn steps(connection: &Connection, change: i64) -> rusqlite::Result<Vec<ChangeStep>> {
    let mut query = connection.prepare_cached(
        "SELECT position, name, state, undo, detail FROM step WHERE change = ?1 ORDER BY position",
    )?;
    let found = query.query_map([change], |row| {
        let word: String = row.get(2)?;
        Ok(ChangeStep {
            position: row.get(0)?,
            name: row.get(1)?,
            // The table's check lets no other word in; a step that cannot be read is done again.
            state: StepState::of(&word).unwrap_or(StepState::Intended),
            undo: row.get(3)?,
            detail: row.get(4)?,
        })
    })?;
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        core::journal::Journal,
        store::{DATABASE, Store},
    };
    use smol::block_on;

    #[test]
    fn unfinished_changes_have_a_bound_and_room_again_once_one_is_over() {
        let directory = tempfile::tempdir().unwrap();
        let now = Wall::default();
        let (store, _) = block_on(Store::open(directory.path(), now)).unwrap();
        let handle = store.handle();
        let other = Connection::open(directory.path().join(DATABASE)).unwrap();
        other
            .execute_batch(
                "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 255)
                 INSERT INTO change (id, origin, kind, body, started) SELECT 'c' || i, '', '', '', 0 FROM n",
            )
            .unwrap();
        let begin = |id: &str| {
            let lock = Journal::new().lock(id).unwrap();
            block_on(handle.begin_change(&lock, Intent::default(), now))
        };
        let listed = block_on(handle.unfinished_changes()).unwrap();
        assert_eq!((listed.len(), listed[0].id.as_str()), (64, "c0"));
        let refused = begin("new").unwrap_err();
        assert!(
            refused.to_string().contains("256 changes were begun"),
            "{refused}"
        );
        assert!(matches!(begin("c7"), Ok(Begun::Known(_))), "it goes on");
        let lock = Journal::new().lock("c0").unwrap();
        block_on(handle.finish_change(&lock, ChangeEnd::new(Outcome::Undone), now)).unwrap();
        assert_eq!(begin("new"), Ok(Begun::New));
        let listed = block_on(handle.unfinished_changes()).unwrap();
        assert_eq!(listed[0].id, "c1");
        block_on(store.close()).unwrap();
    }

    #[test]
    fn a_change_begins_once_and_keeps_what_was_seen_within_its_bounds() {
        let directory = tempfile::tempdir().unwrap();
        let now = Wall::default();
        let (store, _) = block_on(Store::open(directory.path(), now)).unwrap();
        let handle = store.handle();
        let lock = Journal::new().lock("c").unwrap();
        let begin = |bytes: usize| {
            let body = "x".repeat(bytes);
            let intent = Intent {
                body,
                ..Intent::default()
            };
            block_on(handle.begin_change(&lock, intent, now))
        };
        let refused = begin(INTENT_BYTES_MAX + 1).unwrap_err();
        assert!(refused.to_string().contains("longer than"), "{refused}");
        assert_eq!(begin(INTENT_BYTES_MAX), Ok(Begun::New));

        let intend = |position| {
            let step = ChangeStep {
                position,
                name: "step".to_owned(),
                state: StepState::Intended,
                undo: None,
                detail: None,
            };
            block_on(handle.intend_step(&lock, step, now))
        };
        let advance = |state, detail: Option<&str>| {
            let detail = detail.map(str::to_owned);
            block_on(handle.advance_step(&lock, (0, state), detail, now)).unwrap();
        };
        intend(0).unwrap();
        advance(StepState::Acted, Some("seen"));
        advance(StepState::Verified, None);
        let detail = || {
            block_on(handle.recent_changes(1)).unwrap()[0].steps[0]
                .detail
                .clone()
        };
        assert_eq!(detail().as_deref(), Some("seen"));

        let other = Connection::open(directory.path().join(DATABASE)).unwrap();
        other
            .execute(
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
                 INSERT INTO step SELECT 1, i, '', 'done', NULL, NULL, 0 FROM n",
                [STEPS_MAX - 2],
            )
            .unwrap();
        intend(STEPS_MAX - 1).unwrap();
        assert!(matches!(intend(STEPS_MAX), Err(Failure::Conflict(_))));

        block_on(handle.finish_change(&lock, ChangeEnd::new(Outcome::Done), now)).unwrap();
        let Ok(Begun::Known(known)) = begin(1) else {
            panic!("it begins again");
        };
        assert_eq!(known.ended, Some((now, ChangeEnd::new(Outcome::Done))));
        block_on(store.close()).unwrap();
    }
}

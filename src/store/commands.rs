//! Commands of the control plane that were accepted: remembered by their ids, so that none is
//! carried out twice.

use rusqlite::{Connection, OptionalExtension, Transaction, params};

use super::{
    Begun, Failure, Handle,
    disk::NotCommitted,
    journal::{begin, small},
};
use crate::core::{
    journal::{ChangeLock, Intent},
    time::Wall,
};

/// Commands that are remembered.
const COMMANDS_MAX: i64 = 1_000;

/// History of a command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CommandHistory {
    /// It was never accepted.
    Never,
    /// It was accepted before.
    Before,
    /// Issued before the oldest command that is still known.
    Forgotten,
}

impl Handle {
    /// Looks up whether a command was accepted before.
    pub async fn seen_command(&self, id: &str, issued: Wall) -> Result<CommandHistory, Failure> {
        let id = id.to_owned();
        self.call(move |disk| disk.read(|connection| seen(connection, &id, issued)))
            .await
    }

    /// Writes the intent of a command, and remembers its id, in one step.
    pub async fn begin_command(
        &self,
        lock: &ChangeLock,
        intent: Intent,
        issued: Wall,
        now: Wall,
    ) -> Result<Begun, Failure> {
        let id = lock.id().to_owned();
        small(&id, &intent)?;
        self.call(move |disk| {
            disk.set_latest_time(now);
            disk.write(|transaction| {
                if seen(transaction, &id, issued)? != CommandHistory::Never {
                    return Err(NotCommitted::Conflict(format!("the command {id} is known")));
                }
                // No change has this id either, so it is a new one.
                let begun = begin(transaction, &id, &intent, now)?;
                remember(transaction, &id, issued)?;
                Ok(begun)
            })
        })
        .await
    }
}

fn seen(connection: &Connection, id: &str, issued: Wall) -> rusqlite::Result<CommandHistory> {
    let is_known = connection
        .prepare_cached(
            "SELECT 1 FROM command WHERE id = ?1 UNION ALL SELECT 1 FROM change WHERE id = ?1",
        )?
        .query_row([id], |_| Ok(()))
        .optional()?;
    if is_known.is_some() {
        return Ok(CommandHistory::Before);
    }
    let (count, first): (i64, Option<i64>) = connection
        .prepare_cached("SELECT count(*), min(issued) FROM command")?
        .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let is_forgotten = count >= COMMANDS_MAX && first.is_some_and(|first| issued.millis() <= first);
    Ok(if is_forgotten {
        CommandHistory::Forgotten
    } else {
        CommandHistory::Never
    })
}

fn remember(transaction: &Transaction<'_>, id: &str, issued: Wall) -> rusqlite::Result<()> {
    transaction.execute(
        "INSERT INTO command (id, issued) VALUES (?1, ?2)",
        params![id, issued.millis()],
    )?;
    transaction.execute(
        "DELETE FROM command WHERE id IN
         (SELECT id FROM command ORDER BY issued DESC LIMIT -1 OFFSET ?1)",
        [COMMANDS_MAX],
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        core::journal::{ChangeEnd, Journal, Outcome},
        store::Store,
    };
    use smol::block_on;

    #[test]
    fn a_command_is_begun_once_also_after_it_was_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let at = Wall::from_millis;
        let begin = |handle: &Handle, number: i64| {
            let lock = Journal::new().lock(&format!("c{number}")).unwrap();
            let begun = handle.begin_command(&lock, Intent::default(), at(number), at(9));
            let begun = block_on(begun);
            if begun == Ok(Begun::New) {
                let ended = handle.finish_change(&lock, ChangeEnd::new(Outcome::Done), at(9));
                block_on(ended).unwrap();
            }
            begun
        };
        let (store, _) = block_on(Store::open(directory.path(), at(0))).unwrap();
        let handle = store.handle();
        for number in 0..COMMANDS_MAX + 5 {
            assert_eq!(begin(&handle, number), Ok(Begun::New), "{number}");
        }
        // The changes that they began are forgotten much earlier.
        block_on(handle.tend(at(9))).unwrap();
        block_on(store.close()).unwrap();
        let (store, _) = block_on(Store::open(directory.path(), at(0))).unwrap();
        let handle = store.handle();
        for number in [0, 4, 5, 6, 900, COMMANDS_MAX + 4] {
            let refused = begin(&handle, number);
            assert!(matches!(refused, Err(Failure::Conflict(_))), "{number}");
        }
        let seen = |id: &str, issued| block_on(handle.seen_command(id, at(issued))).unwrap();
        assert_eq!(seen("c4", 4), CommandHistory::Forgotten);
        assert_eq!(seen("c900", 900), CommandHistory::Before);
        // What is late and was never heard of is still new, as long as none of its age was
        // forgotten.
        assert_eq!(seen("late", 6), CommandHistory::Never);
        assert_eq!(seen("late", 5), CommandHistory::Forgotten);
        block_on(store.close()).unwrap();
    }
}

//! Schema migrations: numbered steps from an empty file to the schema of this program. Each is
//! frozen once released, and runs in one transaction together with its number.
//!
//! An update may be undone after its migration, so a step only adds what the previous program can
//! ignore, and says so by its last line: `PRAGMA application_id = N`, the lowest schema whose
//! program may go on using the file. Without that line only the schema itself may. What is to be
//! removed goes one release after its last use.

use rusqlite::{Connection, TransactionBehavior};

/// The steps of `state.db` in order: the first makes schema 1 of an empty file.
pub(super) const STATE: [&str; 3] = [
    include_str!("migrations/0001.sql"),
    include_str!("migrations/0002.sql"),
    include_str!("migrations/0003.sql"),
];

/// The steps of `telemetry.db`.
pub(super) const TELEMETRY: [&str; 2] = [
    include_str!("telemetry/migrations/0001.sql"),
    include_str!("telemetry/migrations/0002.sql"),
];

/// Result of migrating a file.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum Migrated {
    /// This program can use the file: it has its schema now, or a later one that only added to it.
    Current,
    /// The file has a schema that this program does not know.
    Newer {
        /// The schema of the file.
        file: usize,
        /// The schema of this program.
        program: usize,
    },
}

/// Brings the file up to date.
pub(super) fn migrate(
    connection: &mut Connection,
    migrations: &[&str],
) -> rusqlite::Result<Migrated> {
    let program = migrations.len();
    loop {
        // The number is read under the write lock: another program may be migrating the same file.
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let file = version(&transaction)?;
        if file > program {
            return Ok(if is_usable(&transaction, program)? {
                Migrated::Current
            } else {
                Migrated::Newer { file, program }
            });
        }
        let Some(migration) = migrations.get(file) else {
            return Ok(Migrated::Current);
        };
        // What a step does not say itself holds for it no more.
        transaction.pragma_update(None, "application_id", 0)?;
        transaction.execute_batch(migration)?;
        let next = i64::try_from(file.saturating_add(1)).unwrap_or(i64::MAX);
        transaction.pragma_update(None, "user_version", next)?;
        transaction.commit()?;
    }
}

/// Schema of a file.
pub(super) fn version(connection: &Connection) -> rusqlite::Result<usize> {
    number(connection, "user_version")
}

/// Returns whether a program of that schema may use a file: one that has it, or a later one that
/// only added to it.
pub(super) fn is_usable(connection: &Connection, program: usize) -> rusqlite::Result<bool> {
    let file = version(connection)?;
    let lowest = number(connection, "application_id")?;
    Ok(file == program || (file > program && (1..=program).contains(&lowest)))
}

fn number(connection: &Connection, pragma: &str) -> rusqlite::Result<usize> {
    let number: i64 = connection.pragma_query_value(None, pragma, |row| row.get(0))?;
    // A negative number is none of ours.
    Ok(usize::try_from(number).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;
    use ring::digest::{SHA256, digest};

    fn version(connection: &Connection) -> usize {
        super::version(connection).unwrap()
    }

    #[test]
    fn an_empty_file_gets_the_schema_of_this_program_and_keeps_it() {
        let mut connection = Connection::open_in_memory().unwrap();
        for _ in 0..2 {
            assert_eq!(migrate(&mut connection, &STATE).unwrap(), Migrated::Current);
            assert_eq!(version(&connection), 3);
        }
    }

    #[test]
    fn files_of_every_schema_that_was_released_are_kept() {
        let released = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/released");
        for (name, steps) in [("state.db", STATE.len()), ("telemetry.db", TELEMETRY.len())] {
            let kept = fs::read_dir(&released).unwrap().map(|folder| {
                let file = folder.unwrap().path().join("state").join(name);
                version(&Connection::open(file).unwrap())
            });
            let newest = kept.max().unwrap();
            assert_eq!(
                newest, steps,
                "{name}: keep files of it (tests/it/released.rs)"
            );
        }
    }

    #[test]
    fn a_migration_that_fails_changes_nothing() {
        let mut connection = Connection::open_in_memory().unwrap();
        let steps = [
            "CREATE TABLE a (x) ;",
            "CREATE TABLE b (x); INSERT INTO nowhere VALUES (1);",
        ];
        assert!(migrate(&mut connection, &steps).is_err());
        assert_eq!(version(&connection), 1);
        let tables = "SELECT group_concat(name) FROM sqlite_schema WHERE type = 'table'";
        let names: String = connection.query_row(tables, [], |row| row.get(0)).unwrap();
        assert_eq!(names, "a");
        let mended = [steps[0], "CREATE TABLE b (x);"];
        assert_eq!(
            migrate(&mut connection, &mended).unwrap(),
            Migrated::Current
        );
        assert_eq!(version(&connection), 2);
    }

    #[test]
    fn a_newer_file_is_left_as_it_is() {
        let mut connection = Connection::open_in_memory().unwrap();
        connection.pragma_update(None, "user_version", 9).unwrap();
        let newer = Migrated::Newer {
            file: 9,
            program: 3,
        };
        assert_eq!(migrate(&mut connection, &STATE).unwrap(), newer);
        assert_eq!(version(&connection), 9);
    }

    #[test]
    fn a_program_goes_on_with_a_file_that_a_later_one_only_added_to() {
        let mut connection = Connection::open_in_memory().unwrap();
        let additive = "CREATE TABLE later (x); PRAGMA application_id = 2;";
        let [first, second, _] = STATE;
        let two = [first, second];
        let later = [first, second, additive];
        let opened =
            |connection: &mut Connection, steps: &[&str]| migrate(connection, steps).unwrap();
        assert_eq!(opened(&mut connection, &later), Migrated::Current);
        // The previous program, which leaves the file as it is.
        assert_eq!(opened(&mut connection, &two), Migrated::Current);
        assert_eq!(version(&connection), 3);
        // The one before that never knew what the second step did.
        let newer = Migrated::Newer {
            file: 3,
            program: 1,
        };
        assert_eq!(opened(&mut connection, &[first]), newer);
        // A later step that changes what is there says so by its own number.
        let changing = [first, second, additive, "PRAGMA application_id = 4;"];
        assert_eq!(opened(&mut connection, &changing), Migrated::Current);
        let newer = Migrated::Newer {
            file: 4,
            program: 3,
        };
        assert_eq!(opened(&mut connection, &later), newer);
    }

    #[test]
    fn what_has_been_released_is_not_edited() {
        let sums = |texts: &[&str]| -> Vec<String> {
            let sum = |text: &&str| digest(&SHA256, text.as_bytes());
            let sums = texts.iter().map(sum);
            sums.map(|sum| crate::core::format::hex(&sum.as_ref()[..8]))
                .collect()
        };
        assert_eq!(
            sums(&STATE),
            ["e4f6eab928634af9", "f5d97914499df4d1", "7dae5640cc452671"]
        );
        assert_eq!(sums(&TELEMETRY), ["f786265e2bf6b6df", "d4c030923aac08c1"]);
    }
}

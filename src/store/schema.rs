//! Schema migrations: numbered steps from an empty file to the schema of this program. Each is
//! frozen once released, and runs in one transaction together with its number.

use rusqlite::{Connection, TransactionBehavior};

/// The steps of `state.db` in order: the first makes schema 1 of an empty file.
pub(super) const STATE: [&str; 2] = [
    include_str!("migrations/0001.sql"),
    include_str!("migrations/0002.sql"),
];

/// The steps of `telemetry.db`.
pub(super) const TELEMETRY: [&str; 2] = [
    include_str!("telemetry/migrations/0001.sql"),
    include_str!("telemetry/migrations/0002.sql"),
];

/// Result of migrating a file.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum Migrated {
    /// The file has the schema of this program now.
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
        let file: i64 = transaction.pragma_query_value(None, "user_version", |row| row.get(0))?;
        let file = usize::try_from(file).unwrap_or(usize::MAX);
        if file > program {
            return Ok(Migrated::Newer { file, program });
        }
        let Some(migration) = migrations.get(file) else {
            return Ok(Migrated::Current);
        };
        transaction.execute_batch(migration)?;
        let next = i64::try_from(file.saturating_add(1)).unwrap_or(i64::MAX);
        transaction.pragma_update(None, "user_version", next)?;
        transaction.commit()?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring::digest::{SHA256, digest};

    fn version(connection: &Connection) -> i64 {
        connection
            .pragma_query_value(None, "user_version", |row| row.get(0))
            .unwrap()
    }

    #[test]
    fn an_empty_file_gets_the_schema_of_this_program_and_keeps_it() {
        let mut connection = Connection::open_in_memory().unwrap();
        for _ in 0..2 {
            assert_eq!(migrate(&mut connection, &STATE).unwrap(), Migrated::Current);
            assert_eq!(version(&connection), 2);
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
            program: 2,
        };
        assert_eq!(migrate(&mut connection, &STATE).unwrap(), newer);
        assert_eq!(version(&connection), 9);
    }

    #[test]
    fn what_has_been_released_is_not_edited() {
        let sums = |texts: &[&str]| -> Vec<String> {
            let sum = |text: &&str| digest(&SHA256, text.as_bytes());
            let sums = texts.iter().map(sum);
            sums.map(|sum| crate::core::words::hex(&sum.as_ref()[..8]))
                .collect()
        };
        assert_eq!(sums(&STATE), ["e4f6eab928634af9", "f5d97914499df4d1"]);
        assert_eq!(sums(&TELEMETRY), ["f786265e2bf6b6df", "d4c030923aac08c1"]);
    }
}

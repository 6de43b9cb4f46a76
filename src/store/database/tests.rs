//! Errors of a database: passing ones, damage, and remembered ones.

use std::cell::Cell;

use rusqlite::ffi::{self, SQLITE_CORRUPT, SQLITE_IOERR};

use super::*;

static FORM: Form = Form {
    file: "a.db",
    migrations: &["CREATE TABLE kept (x)"],
    pragmas: "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;",
    is_checked: true,
    damaged: Copies {
        count: 3,
        bytes: 1 << 20,
    },
};

fn database(directory: &Path) -> Database {
    let mut database = Database::new(directory.to_owned(), &FORM, None, Wall::default());
    assert!(database.recover());
    let insert = |transaction: &Transaction<'_>| {
        transaction.execute("INSERT INTO kept VALUES (1)", [])?;
        Ok(())
    };
    database.write(insert).unwrap();
    database
}

fn failed(code: i32) -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(ffi::Error::new(code), None)
}

fn count(connection: &Connection) -> rusqlite::Result<u32> {
    connection.query_row("SELECT count(*) FROM kept", [], |row| row.get(0))
}

#[test]
fn what_seemed_damaged_once_is_not_given_up() {
    let directory = tempfile::tempdir().unwrap();
    let mut database = database(directory.path());
    let looks = Cell::new(0);
    let first = |code| {
        looks.set(looks.get() + 1);
        if looks.get() == 1 {
            Err(failed(code))
        } else {
            Ok(())
        }
    };
    let read = database.read(|connection| {
        first(SQLITE_CORRUPT)?;
        count(connection)
    });
    assert_eq!((read, looks.replace(0)), (Ok(1), 2));
    let written = database.write(|transaction| {
        first(SQLITE_CORRUPT)?;
        Ok(count(transaction)?)
    });
    assert_eq!((written, looks.replace(0)), (Ok(1), 2));
    assert!(!database.was_replaced());
    assert_eq!(database.newest_damaged(), None);
}

#[test]
fn what_is_damaged_at_a_second_look_makes_way_for_an_empty_one() {
    let directory = tempfile::tempdir().unwrap();
    let mut database = database(directory.path());
    let looks = Cell::new(0);
    let read = database.read(|connection| {
        looks.set(looks.get() + 1);
        if looks.get() < 3 {
            return Err(failed(SQLITE_CORRUPT));
        }
        count(connection)
    });
    assert_eq!((read, looks.get()), (Ok(0), 3));
    assert!(database.was_replaced());
    assert!(database.newest_damaged().is_some());
}

#[test]
fn an_error_of_the_disk_is_no_damage_however_often_it_comes() {
    let directory = tempfile::tempdir().unwrap();
    let mut database = database(directory.path());
    for _ in 0..3 {
        let read = database.read(|_| Err::<(), _>(failed(SQLITE_IOERR)));
        assert!(matches!(read, Err(Failure::Disk(_))), "{read:?}");
        let written = database.write(|_| Err::<(), _>(failed(SQLITE_IOERR).into()));
        assert!(matches!(written, Err(Failure::Disk(_))), "{written:?}");
    }
    assert!(!database.was_replaced());
    assert_eq!(database.read(count), Ok(1));
}

#[test]
fn a_check_that_could_not_read_a_page_says_nothing_of_it() {
    let code = |verdict: &str| judged(verdict.to_owned()).unwrap_err().sqlite_error_code();
    assert_eq!(judged("ok".to_owned()), Ok(()));
    let unread = "*** in database main ***\nTree 2 page 3: unable to get the page. error code=266";
    assert_eq!(code(unread), Some(rusqlite::ErrorCode::SystemIoFailure));
    let damaged = "*** in database main ***\nTree 2 page 3: btreeInitPage() returns error code 11";
    assert_eq!(code(damaged), Some(rusqlite::ErrorCode::DatabaseCorrupt));
}

#[test]
fn a_write_that_failed_is_told_and_the_file_opened_again_until_one_works() {
    let directory = tempfile::tempdir().unwrap();
    let mut database = database(directory.path());
    let fails = |_: &Transaction<'_>| Err::<(), _>(failed(SQLITE_IOERR).into());
    assert!(!database.recover(), "nothing is wrong with it");
    database.write(fails).unwrap_err();
    assert!(matches!(database.state(), DatabaseState::Unwritable(_)));
    assert!(database.recover());
    assert!(matches!(database.state(), DatabaseState::Well));
    database.write(fails).unwrap_err();
    database.write(|_| Ok(())).unwrap();
    assert!(matches!(database.state(), DatabaseState::Well));
}

#[test]
fn a_file_is_not_made_smaller_while_somebody_reads_it() {
    use std::os::unix::fs::MetadataExt as _;
    let directory = tempfile::tempdir().unwrap();
    let mut database = database(directory.path());
    let file = || {
        std::fs::metadata(directory.path().join("a.db"))
            .unwrap()
            .ino()
    };
    let before = file();
    let reader = Connection::open(directory.path().join("a.db")).unwrap();
    assert_eq!(count(&reader), Ok(1));
    assert_eq!(database.rebuild(), Ok(false));
    assert_eq!(file(), before);
    assert_eq!(count(&reader), Ok(1));
    drop(reader);
    assert_eq!(database.rebuild(), Ok(true));
    assert_ne!(file(), before);
    assert_eq!(database.read(count), Ok(1));
}

//! Bounds of growing things, and shrinking when a bound does.

use super::*;

#[test]
fn the_list_of_series_comes_in_pages_with_the_live_ones_first() {
    let mut place = Machine::new();
    place.live(2);
    place.tick_of(&["a", "b", "c"]);
    place.flush();
    // Those of before are not measured any more after the second minute without them.
    for _ in 0..2 {
        place.tick_of(&["a", "c"]);
        place.flush();
    }
    place.tick_of(&["new"]);
    let mut search = Search {
        limit: 2,
        ..Search::default()
    };
    let mut pages = Vec::new();
    loop {
        let page = block_on(place.handle().series(search.clone())).unwrap();
        assert_eq!(page.total, 6);
        let last = page.series.last().cloned();
        let words = page
            .series
            .iter()
            .map(|one| (one.key.chars().take(1).collect::<String>(), one.has_ended));
        pages.push(words.collect::<Vec<_>>());
        if !page.has_more {
            break;
        }
        search.after = last;
    }
    let (live, ended) = (
        |key: &str| (key.to_owned(), false),
        |key: &str| (key.to_owned(), true),
    );
    let wanted = [
        vec![live("a"), live("c")],
        vec![live("n"), ended("b")],
        vec![ended("o"), ended("t")],
    ];
    assert_eq!(pages, wanted);
    let search = Search {
        contains: "host=\"pi\"".to_owned(),
        without: "o",
        limit: 9,
        ..Search::default()
    };
    assert_eq!(block_on(place.handle().series(search)).unwrap().total, 5);
}

#[test]
fn a_budget_that_was_lowered_makes_the_file_smaller_and_keeps_what_is_newest() {
    let mut place = Machine::new();
    // Enough series for some megabytes.
    let names: Vec<String> = (0..400).map(|index| format!("wide_{index}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    // Nine hours that are over, and the beginning of one.
    for minute in 0..550 {
        place.tick_of(&names);
        place.flush();
        if minute % 60 == 0 {
            block_on(place.handle().tend(place.now())).unwrap();
        }
    }
    place.close();
    let length = |place: &Machine| {
        std::fs::metadata(place.path().join(DATABASE))
            .unwrap()
            .len()
    };
    let before = length(&place);
    assert!(before > 1_700_000, "{before}");
    let newest = {
        place.open();
        let newest = place.newest("wide_7");
        place.close();
        newest
    };

    let budget = 512 << 10;
    place.options.disk_bytes_max = budget;
    place.open();
    // A reader that has the file open when it should shrink: it waits, and breaks nothing.
    let reader = TelemetryReader::open(place.path()).unwrap();
    for _ in 0..20 {
        block_on(place.handle().tend(place.now())).unwrap();
    }
    assert!(length(&place) > 1_700_000, "somebody reads it");
    drop(reader);
    place.close();
    place.open();
    assert_eq!(block_on(place.handle().tend(place.now())).unwrap(), []);
    assert!(length(&place) <= budget, "{}", length(&place));
    assert_eq!(place.newest("wide_7"), newest);
    // It goes on, and is what it was after a restart.
    place.tick_of(&names);
    place.flush();
    let newest = place.newest("wide_7");
    place.close();
    assert_eq!(place.open(), []);
    assert_eq!(place.newest("wide_7"), newest);
    let mode = std::fs::metadata(place.path().join(DATABASE)).unwrap();
    assert_eq!(
        std::os::unix::fs::PermissionsExt::mode(&mode.permissions()) & 0o777,
        0o600
    );
}

#[test]
fn a_damaged_file_counts_against_the_budget() {
    let mut place = Machine::new();
    place.live(3);
    place.close();
    let path = place.path().join(DATABASE);
    let budget = 200 << 10;
    place.options.disk_bytes_max = budget;
    crate::files::replace(&path, &vec![0x5a; 90 << 10], crate::files::PRIVATE).unwrap();
    place.open();
    let names: Vec<String> = (0..40).map(|index| format!("wide_{index}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for minute in 0..800 {
        place.tick_of(&names);
        place.flush();
        if minute % 20 == 0 {
            block_on(place.handle().tend(place.now())).unwrap();
        }
    }
    let all = std::fs::read_dir(place.path()).unwrap().flatten();
    let databases = all.filter(|entry| !entry.file_name().to_string_lossy().ends_with("-shm"));
    let taken: u64 = databases.map(|entry| entry.metadata().unwrap().len()).sum();
    // The log is cut when it is over a megabyte, so it is left out.
    let log = std::fs::metadata(place.path().join("telemetry.db-wal")).map_or(0, |log| log.len());
    assert!(taken - log < budget + (80 << 10), "{taken} {log}");
    place.close();
    // Larger than half of the budget: it is not kept, and that is said.
    crate::files::replace(&path, &vec![0x5a; 101 << 10], crate::files::PRIVATE).unwrap();
    let conditions = place.open();
    assert_eq!(conditions[0].id, "telemetry.damaged");
    assert!(
        conditions[0].sentence.contains("was deleted"),
        "{conditions:?}"
    );
    let names = std::fs::read_dir(place.path()).unwrap().flatten();
    let damaged = names.filter(|entry| entry.file_name().to_string_lossy().contains("damaged"));
    assert_eq!(damaged.count(), 0);
}

#[test]
fn a_file_of_the_first_schema_is_read_and_goes_on() {
    let mut place = Machine::new();
    place.live(200);
    place.close();
    let file = rusqlite::Connection::open(place.path().join(DATABASE)).unwrap();
    file.execute_batch(
        "ALTER TABLE series DROP COLUMN born; ALTER TABLE series DROP COLUMN seen;
         ALTER TABLE boot DROP COLUMN sequence_from; PRAGMA user_version = 1;",
    )
    .unwrap();
    drop(file);
    assert_eq!(place.open(), []);
    place.reboot();
    place.live(100);
    let quarters = place.query(Some(Duration::from_secs(900)));
    assert_alike(&quarters, &expected(&place.model, 15 * MINUTE_MS));
    let (got, gaps) = deliver(&place, "plane", Order::OldestFirst);
    assert_eq!((got, gaps), (place.model.clone(), vec![]));
    assert_eq!(place.list(9).total, 2, "no second number for either");
}

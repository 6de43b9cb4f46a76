//! The store on a real disk: what was answered is there after a restart, a kill and a damaged file.

use std::{
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Command, Stdio},
};

use pipeops_agent::{
    core::{
        audit::{AuditDecision, AuditEntry, Effect, Sum},
        health::Condition,
        identity::Identity,
        journal::{Change, ChangeEnd, ChangeLock, ChangeStep, Intent, Journal, Outcome, StepState},
        outbox::{Body, Range, Stream},
        time::Wall,
    },
    store::{Begun, DATABASE, Failure, Handle, IDENTITY, Loaded, Store, Stored},
};
use rusqlite::Connection;
use smol::{LocalExecutor, block_on};

/// Names the state directory to the child that a test runs of itself.
pub(crate) const CHILD: &str = "PIPEOPS_TEST_CHILD_DIRECTORY";

pub(crate) fn at(millis: i64) -> Wall {
    Wall::from_millis(1_781_589_028_000 + millis)
}

pub(crate) fn identity(generation: u64) -> Identity {
    Identity {
        generation,
        agent_id: "agent-0123456789abcdef".to_owned(),
        cluster_id: Some(format!("c-{generation}")),
        gateway_ws_url: Some("wss://gateway.example/ws".to_owned()),
        ..Identity::default()
    }
}

pub(crate) fn entry(what: &str) -> AuditEntry {
    AuditEntry::new("control-plane", what, AuditDecision::Permitted, "full")
}

pub(crate) async fn open(directory: &Path) -> (Store, Handle, Loaded) {
    let (store, loaded) = Store::open(directory, at(0)).await.unwrap();
    let handle = store.handle();
    (store, handle, loaded)
}

pub(crate) fn ids(conditions: &[Condition]) -> Vec<&'static str> {
    conditions.iter().map(|condition| condition.id).collect()
}

fn intent(body: &str) -> Intent {
    Intent {
        origin: "control-plane".to_owned(),
        kind: "deploy".to_owned(),
        body: body.to_owned(),
    }
}

fn step(position: u32) -> ChangeStep {
    ChangeStep {
        position,
        name: format!("step {position}"),
        state: StepState::Intended,
        undo: Some("put it back".to_owned()),
        detail: None,
    }
}

fn lock(id: &str) -> ChangeLock {
    Journal::new().lock(id).unwrap()
}

/// This test program again, for one test, behind the words of `before` (`strace …`, `unshare …`),
/// with the state directory in the environment.
pub(crate) fn again(test: &str, directory: &Path, before: &[&str]) -> Command {
    let own = std::env::current_exe().unwrap();
    let words: Vec<_> = before
        .iter()
        .map(Into::into)
        .chain([own.into_os_string()])
        .chain([test, "--exact", "--nocapture", "--test-threads=1"].map(Into::into))
        .collect();
    #[expect(
        clippy::disallowed_methods,
        reason = "the child is this test itself, killed on purpose"
    )]
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).env(CHILD, directory);
    command
}

/// Returns whether there is an strace that may look into other programs; where not, says so.
pub(crate) fn can_trace() -> bool {
    let dry = tempfile::tempdir().unwrap();
    let probe = again("no such test", dry.path(), &["strace", "-o", "/dev/null"]).output();
    let is_there = probe.is_ok_and(|probe| probe.status.success());
    if !is_there {
        println!("skipped: there is no strace that may trace (apt-get install strace)");
    }
    is_there
}

#[test]
fn an_identity_is_there_after_a_restart_in_both_places() {
    let directory = tempfile::tempdir().unwrap();
    block_on(async {
        let (store, handle, loaded) = open(directory.path()).await;
        assert_eq!(loaded, Loaded::default());
        for generation in 1..4 {
            let kept = handle.keep_identity(identity(generation), at(1)).await;
            assert_eq!(kept, Ok(Stored::OnDisk));
        }
        store.close().await.unwrap();
        let (store, _, loaded) = open(directory.path()).await;
        assert_eq!(loaded.database, Some(identity(3)));
        assert_eq!(loaded.file, Some(identity(3)));
        store.close().await.unwrap();
    });
}

#[test]
fn an_older_identity_never_replaces_a_newer_one() {
    let directory = tempfile::tempdir().unwrap();
    block_on(async {
        let (store, handle, _) = open(directory.path()).await;
        handle.keep_identity(identity(7), at(1)).await.unwrap();
        let refused = handle.keep_identity(identity(6), at(2)).await;
        assert!(matches!(refused, Err(Failure::Conflict(_))), "{refused:?}");
        store.close().await.unwrap();
        let (store, _, loaded) = open(directory.path()).await;
        assert_eq!(loaded.database, Some(identity(7)));
        assert_eq!(loaded.file, Some(identity(7)));
        store.close().await.unwrap();
    });
}

#[test]
fn all_files_are_private() {
    use std::os::unix::fs::PermissionsExt;
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("state");
    block_on(async {
        let (store, handle, _) = open(&directory).await;
        handle.keep_identity(identity(1), at(1)).await.unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&directory), 0o700);
        let entries = std::fs::read_dir(&directory).unwrap();
        let names: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        assert!(names.len() >= 4, "{names:?}");
        for path in names {
            assert_eq!(mode(&path), 0o600, "{}", path.display());
        }
        store.close().await.unwrap();
    });
}

#[test]
fn a_damaged_database_is_moved_aside_and_the_identity_outlives_it() {
    type Damage = fn(&mut Vec<u8>);
    let kinds: [(&str, Damage); 4] = [
        ("text", |content| {
            *content = b"this is not a database at all, and long enough".repeat(9)
        }),
        ("zeros", |content| content[..4096].fill(0)),
        ("a wild page", |content| content[4096..12_288].fill(0xee)),
        ("a cut file", |content| content.truncate(6000)),
    ];
    for (kind, damage) in kinds {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(DATABASE);
        block_on(async {
            let (store, handle, _) = open(directory.path()).await;
            handle.keep_identity(identity(4), at(1)).await.unwrap();
            let change = lock("c1");
            handle
                .begin_change(&change, intent("{}"), at(1))
                .await
                .unwrap();
            store.close().await.unwrap();
            let mut content = std::fs::read(&path).unwrap();
            damage(&mut content);
            pipeops_agent::files::replace(&path, &content, 0o600).unwrap();

            let (store, handle, loaded) = open(directory.path()).await;
            assert_eq!(ids(&loaded.conditions), ["store.damaged"], "{kind}");
            assert!(
                loaded.conditions[0]
                    .sentence
                    .contains("state.db.damaged-000001-2026"),
                "{kind}"
            );
            assert_eq!(
                (loaded.database, loaded.file),
                (None, Some(identity(4))),
                "{kind}"
            );
            // It works again, and the identity is in both places again.
            assert_eq!(
                ids(&handle.tend(at(2)).await.unwrap()),
                ["store.damaged"],
                "{kind}"
            );
            handle
                .begin_change(&change, intent("{}"), at(3))
                .await
                .unwrap();
            store.close().await.unwrap();
            let (store, _, loaded) = open(directory.path()).await;
            assert_eq!(loaded.database, Some(identity(4)), "{kind}");
            store.close().await.unwrap();
        });
        let aside = std::fs::read_dir(directory.path())
            .unwrap()
            .filter(|entry| {
                let name = entry.as_ref().unwrap().file_name();
                name.to_str().unwrap().starts_with("state.db.damaged-")
            });
        assert_eq!(aside.count(), 1, "{kind}");
    }
}

#[test]
fn a_database_that_is_damaged_while_it_is_used_is_begun_anew() {
    let directory = tempfile::tempdir().unwrap();
    block_on(async {
        let (store, handle, _) = open(directory.path()).await;
        handle.keep_identity(identity(1), at(1)).await.unwrap();
        let other = Connection::open(directory.path().join(DATABASE)).unwrap();
        // The page of the table is zeroed through SQLite itself, so that no cache hides it.
        other
            .execute_batch("PRAGMA wal_checkpoint(TRUNCATE)")
            .unwrap();
        drop(other);
        let file = std::fs::OpenOptions::new()
            .write(true)
            .open(directory.path().join(DATABASE));
        let length = file.as_ref().unwrap().metadata().unwrap().len();
        let garbage = vec![0xee; usize::try_from(length - 4096).unwrap()];
        std::os::unix::fs::FileExt::write_all_at(&file.unwrap(), &garbage, 4096).unwrap();
        // Another connection's write makes this one read its pages again.
        let toucher = Connection::open(directory.path().join(DATABASE)).unwrap();
        toucher.execute_batch("PRAGMA application_id = 7").unwrap();
        drop(toucher);

        let change = lock("c1");
        handle
            .begin_change(&change, intent("{}"), at(3))
            .await
            .unwrap();
        assert_eq!(ids(&handle.tend(at(4)).await.unwrap()), ["store.damaged"]);
        assert_eq!(handle.unfinished_changes().await.unwrap().len(), 1);
        store.close().await.unwrap();
        let (store, _, loaded) = open(directory.path()).await;
        assert_eq!(loaded.database, Some(identity(1)));
        store.close().await.unwrap();
    });
}

#[test]
fn a_damaged_identity_file_is_written_anew_from_the_database() {
    let directory = tempfile::tempdir().unwrap();
    block_on(async {
        let (store, handle, _) = open(directory.path()).await;
        handle.keep_identity(identity(2), at(1)).await.unwrap();
        store.close().await.unwrap();
        let path = directory.path().join(IDENTITY);
        pipeops_agent::files::replace(&path, b"{\"format\":1,\"ident", 0o600).unwrap();
        let (store, handle, loaded) = open(directory.path()).await;
        assert_eq!((loaded.database, loaded.file), (Some(identity(2)), None));
        handle.tend(at(2)).await.unwrap();
        store.close().await.unwrap();
        let (store, _, loaded) = open(directory.path()).await;
        assert_eq!(loaded.file, Some(identity(2)));
        store.close().await.unwrap();
    });
}

#[test]
fn what_a_newer_program_wrote_is_not_touched() {
    let directory = tempfile::tempdir().unwrap();
    block_on(async {
        let (store, handle, _) = open(directory.path()).await;
        handle.keep_identity(identity(2), at(1)).await.unwrap();
        store.close().await.unwrap();
        let path = directory.path().join(DATABASE);
        let newer = Connection::open(&path).unwrap();
        for number in ["user_version", "application_id"] {
            newer.pragma_update(None, number, 9).unwrap();
        }
        drop(newer);
        let before = std::fs::read(directory.path().join(IDENTITY)).unwrap();

        let (store, handle, loaded) = open(directory.path()).await;
        assert_eq!(ids(&loaded.conditions), ["store.newer"]);
        let condition = &loaded.conditions[0];
        assert!(
            condition
                .sentence
                .contains("schema 9, this program knows 3"),
            "{}",
            condition.sentence
        );
        assert!(
            condition
                .fix
                .as_ref()
                .unwrap()
                .contains("newer pipeops-agent")
        );
        assert_eq!(loaded.file, Some(identity(2)));
        let kept = handle.keep_identity(identity(3), at(2)).await.unwrap();
        assert!(matches!(kept, Stored::InMemory(_)), "{kept:?}");
        let change = handle.begin_change(&lock("c1"), intent("{}"), at(2)).await;
        assert!(matches!(change, Err(Failure::Disk(_))), "{change:?}");
        // Requests are still written down, in memory.
        handle.audit_begin(entry("GET /"), at(2)).await.unwrap();
        handle.tend(at(3)).await.unwrap();
        store.close().await.unwrap();
        assert_eq!(
            std::fs::read(directory.path().join(IDENTITY)).unwrap(),
            before
        );
        let connection = Connection::open(&path).unwrap();
        let rows: i64 = connection
            .query_row(
                "SELECT (SELECT count(*) FROM audit) + (SELECT count(*) FROM change)",
                [],
                |row| row.get(0),
            )
            .unwrap();
        assert_eq!(rows, 0);
    });
}

#[test]
fn a_database_of_schema_1_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let old = include_bytes!("../data/state-v1.db");
    pipeops_agent::files::replace(&directory.path().join(DATABASE), old, 0o600).unwrap();
    block_on(async {
        let (store, handle, loaded) = open(directory.path()).await;
        let identity = loaded.database.unwrap();
        assert_eq!(
            (identity.generation, identity.agent_id.as_str()),
            (3, "agent-00112233aabbccdd")
        );
        assert_eq!(identity.left_behind.unwrap().agent_id, "agent-before");
        let changes = handle.recent_changes(10).await.unwrap();
        let states: Vec<_> = changes
            .iter()
            .map(|change| {
                (
                    change.id.as_str(),
                    change.ended.is_some(),
                    change.steps.len(),
                )
            })
            .collect();
        assert_eq!(states, [("upgrade-1", false, 2), ("deploy-1", true, 1)]);
        assert_eq!(handle.recent_audit(10).await.unwrap().len(), 2);
        assert_eq!(handle.recent_sums(10).await.unwrap()[0].count, 42);
        for (stream, count) in [(Stream::Audit, 3), (Stream::Outcomes, 1)] {
            let holdings = handle.stock(stream).await.unwrap();
            assert_eq!((holdings.last, holdings.gaps.len()), (count, 0));
            let all = Range::new(1, count).unwrap();
            let batch = handle.read(stream, all, 1 << 20).await.unwrap();
            assert!(
                matches!(&batch.body, Body::Rows(_)) && batch.range == all,
                "{batch:?}"
            );
        }
        store.close().await.unwrap();
    });
}

#[test]
fn a_database_of_schema_2_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let old = include_bytes!("../data/state-v2.db");
    pipeops_agent::files::replace(&directory.path().join(DATABASE), old, 0o600).unwrap();
    block_on(async {
        let (store, handle, _) = open(directory.path()).await;
        // Two rows and a sum were there before, and a row that nobody will end any more.
        for (stream, epoch, count) in [
            (Stream::Audit, 1_234_567_890_123, 4),
            (Stream::Outcomes, 4_503_599_627_370_497, 2),
        ] {
            let holdings = handle.stock(stream).await.unwrap();
            assert_eq!((holdings.epoch, holdings.last), (epoch, count));
            let newest = Range::new(count, count).unwrap();
            let Body::Rows(rows) = handle.read(stream, newest, 1).await.unwrap().body else {
                panic!("the newest of {} is gone", stream.as_str());
            };
            let said = ["PUT /under-way", r#""id":"upgrade-1""#];
            assert!(said.iter().any(|said| rows[0].body.contains(said)));
        }
        store.close().await.unwrap();
    });
}

#[test]
fn two_agents_do_not_share_a_directory() {
    let directory = tempfile::tempdir().unwrap();
    block_on(async {
        let (store, _, _) = open(directory.path()).await;
        let error = Store::open(directory.path(), at(0)).await.unwrap_err();
        assert!(
            error.sentence().contains("another pipeops-agent uses"),
            "{error}"
        );
        assert!(error.fix.is_some());
        store.close().await.unwrap();
        let (store, _, _) = open(directory.path()).await;
        store.close().await.unwrap();
    });
}

#[test]
fn a_change_is_written_step_by_step_and_found_again() {
    let directory = tempfile::tempdir().unwrap();
    block_on(async {
        let (store, handle, _) = open(directory.path()).await;
        let change = lock("c1");
        assert_eq!(
            handle.begin_change(&change, intent("one"), at(1)).await,
            Ok(Begun::New)
        );
        for position in 0..2 {
            handle
                .intend_step(&change, step(position), at(2))
                .await
                .unwrap();
            // Written again after a restart: once is enough.
            handle
                .intend_step(&change, step(position), at(2))
                .await
                .unwrap();
        }
        for state in [StepState::Acted, StepState::Verified, StepState::Done] {
            handle
                .advance_step(&change, (0, state), Some("seen".to_owned()), at(3))
                .await
                .unwrap();
        }
        store.close().await.unwrap();

        let (store, handle, _) = open(directory.path()).await;
        let found = handle.unfinished_changes().await.unwrap();
        let [
            Change {
                id,
                intent: found_intent,
                steps,
                ..
            },
        ] = &found[..]
        else {
            panic!("{found:?}")
        };
        assert_eq!((id.as_str(), found_intent), ("c1", &intent("one")));
        assert_eq!(
            steps.iter().map(|step| step.state).collect::<Vec<_>>(),
            [StepState::Done, StepState::Intended]
        );
        assert_eq!(steps[0].detail.as_deref(), Some("seen"));
        assert_eq!(steps[1].undo.as_deref(), Some("put it back"));
        // Asked for again, by somebody who does not know: the same change goes on.
        let begun = handle
            .begin_change(&change, intent("other"), at(9))
            .await
            .unwrap();
        assert_eq!(begun, Begun::Known(found[0].clone()));
        for _ in 0..2 {
            handle
                .finish_change(&change, ChangeEnd::new(Outcome::Failed).why("power"), at(5))
                .await
                .unwrap();
        }
        assert!(handle.unfinished_changes().await.unwrap().is_empty());
        let recent = handle.recent_changes(5).await.unwrap();
        assert_eq!(
            recent[0].ended,
            Some((at(5), ChangeEnd::new(Outcome::Failed).why("power")))
        );
        store.close().await.unwrap();
    });
}

#[test]
fn what_does_not_follow_is_a_conflict_and_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    block_on(async {
        let (store, handle, _) = open(directory.path()).await;
        let (change, unknown) = (lock("c1"), lock("c2"));
        handle
            .begin_change(&change, intent(""), at(1))
            .await
            .unwrap();
        handle.intend_step(&change, step(0), at(1)).await.unwrap();
        let conflict = |result: Result<(), Failure>| {
            assert!(matches!(result, Err(Failure::Conflict(_))), "{result:?}")
        };
        conflict(handle.intend_step(&change, step(2), at(1)).await);
        conflict(handle.intend_step(&unknown, step(0), at(1)).await);
        conflict(
            handle
                .advance_step(&change, (1, StepState::Acted), None, at(1))
                .await,
        );
        conflict(
            handle
                .advance_step(&change, (0, StepState::Done), None, at(1))
                .await,
        );
        conflict(
            handle
                .finish_change(&unknown, ChangeEnd::new(Outcome::Done), at(1))
                .await,
        );
        let large = handle
            .begin_change(&unknown, intent(&"x".repeat((1 << 20) + 1)), at(1))
            .await;
        assert!(matches!(large, Err(Failure::Conflict(_))));
        handle
            .finish_change(&change, ChangeEnd::new(Outcome::Done), at(1))
            .await
            .unwrap();
        conflict(
            handle
                .finish_change(&change, ChangeEnd::new(Outcome::Undone), at(1))
                .await,
        );
        conflict(handle.intend_step(&change, step(1), at(1)).await);
        conflict(
            handle
                .advance_step(&change, (0, StepState::Acted), None, at(1))
                .await,
        );
        let [found] = &handle.recent_changes(9).await.unwrap()[..] else {
            panic!("one change")
        };
        assert_eq!(
            (found.steps.len(), found.steps[0].state),
            (1, StepState::Intended)
        );
        // No condition: the disk is well.
        assert!(handle.tend(at(2)).await.unwrap().is_empty());
        store.close().await.unwrap();
    });
}

#[test]
fn fifty_callers_at_once_each_get_their_own_row() {
    let directory = tempfile::tempdir().unwrap();
    let executor = LocalExecutor::new();
    block_on(executor.run(async {
        let (store, handle, _) = open(directory.path()).await;
        let calls: Vec<_> = (0..50_u64)
            .map(|n| {
                let handle = handle.clone();
                executor.spawn(async move {
                    let ticket = handle
                        .audit_begin(entry(&format!("PUT /{n}")), at(1))
                        .await
                        .unwrap();
                    let effect = Effect {
                        sent_bytes: n,
                        ..Effect::default()
                    };
                    handle
                        .audit_end(ticket, "200".to_owned(), effect)
                        .await
                        .unwrap();
                })
            })
            .collect();
        for call in calls {
            call.await;
        }
        let rows = handle.recent_audit(100).await.unwrap();
        assert_eq!(rows.len(), 50);
        for row in rows {
            let (outcome, effect) = row.ended.unwrap();
            assert_eq!(
                (row.entry.what(), outcome.as_str()),
                (format!("PUT /{}", effect.sent_bytes).as_str(), "200")
            );
        }
        store.close().await.unwrap();
    }));
}

#[test]
fn sums_of_one_minute_are_added_up() {
    let directory = tempfile::tempdir().unwrap();
    block_on(async {
        let (store, handle, _) = open(directory.path()).await;
        let sum = Sum {
            minute: at(0),
            entry: entry("GET /api"),
            count: 3,
            effect: Effect {
                received_bytes: 1,
                sent_bytes: u64::MAX,
                duration_ms: 2,
            },
        };
        for _ in 0..3 {
            handle
                .audit_sums(vec![sum.clone(), sum.clone()])
                .await
                .unwrap();
        }
        let [found] = &handle.recent_sums(9).await.unwrap()[..] else {
            panic!("one sum")
        };
        assert_eq!((found.count, found.effect.duration_ms), (18, 12));
        assert!(handle.tend(at(1)).await.unwrap().is_empty());
        store.close().await.unwrap();
    });
}

#[test]
fn the_oldest_rows_go_when_there_are_too_many() {
    let directory = tempfile::tempdir().unwrap();
    block_on(async {
        let (store, handle, _) = open(directory.path()).await;
        let mut other = Connection::open(directory.path().join(DATABASE)).unwrap();
        let transaction = other.transaction().unwrap();
        transaction
            .execute_batch(
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20100)
                 INSERT INTO audit (number, at, who, what, verdict, why, sequence) SELECT i, i, 'a', 'b', 'permitted', '', i FROM n;
                 WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 300)
                 INSERT INTO change (id, origin, kind, body, started, ended, outcome, sequence)
                 SELECT 'old ' || i, '', '', '', 0, CASE WHEN i > 10 THEN 1 END, CASE WHEN i > 10 THEN 'done' END,
                        CASE WHEN i > 10 THEN i - 10 END FROM n;",
            )
            .unwrap();
        transaction.commit().unwrap();
        assert!(handle.tend(at(1)).await.unwrap().is_empty());
        let count = |query: &str| {
            other
                .query_row(query, [], |row| row.get::<_, i64>(0))
                .unwrap()
        };
        assert_eq!(count("SELECT count(*) FROM audit"), 20_000);
        assert_eq!(count("SELECT min(number) FROM audit"), 101);
        assert_eq!(
            count("SELECT count(*) FROM change WHERE ended IS NOT NULL"),
            200
        );
        assert_eq!(count("SELECT count(*) FROM change WHERE ended IS NULL"), 10);
        store.close().await.unwrap();
    });
}

#[test]
fn a_full_queue_is_busy_and_a_close_writes_what_was_taken() {
    let directory = tempfile::tempdir().unwrap();
    let executor = LocalExecutor::new();
    block_on(executor.run(async {
        let (store, handle, _) = open(directory.path()).await;
        // Another program holds the write lock: the thread is stuck with the first job for a while.
        let other = Connection::open(directory.path().join(DATABASE)).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        let calls: Vec<_> = (0..100)
            .map(|n| {
                let handle = handle.clone();
                executor
                    .spawn(async move { handle.audit_begin(entry(&format!("{n}")), at(1)).await })
            })
            .collect();
        while executor.try_tick() {}
        other.execute_batch("ROLLBACK").unwrap();
        store.close().await.unwrap();
        let mut taken = 0;
        for call in calls {
            match call.await {
                Ok(_) => taken += 1,
                Err(failure) => assert_eq!(failure, Failure::Busy),
            }
        }
        assert!((64..=66).contains(&taken), "{taken}");
        assert_eq!(
            handle.audit_begin(entry("late"), at(2)).await,
            Err(Failure::Closed)
        );
        let (store, handle, _) = open(directory.path()).await;
        assert_eq!(handle.recent_audit(200).await.unwrap().len(), taken);
        store.close().await.unwrap();
    }));
}

#[test]
fn a_close_leaves_one_file_without_a_log() {
    let directory = tempfile::tempdir().unwrap();
    block_on(async {
        let (store, handle, _) = open(directory.path()).await;
        handle.keep_identity(identity(1), at(1)).await.unwrap();
        store.close().await.unwrap();
    });
    assert!(!directory.path().join("state.db-wal").exists());
    assert!(!directory.path().join("state.db-shm").exists());
}

/// What the child of the next test does: changes without end, each told when it was answered.
fn change_without_end(directory: &Path) {
    block_on(async {
        let (_store, handle, loaded) = open(directory).await;
        let first = loaded.database.map_or(0, |identity| identity.generation);
        for generation in first + 1.. {
            let change = lock(&format!("c{generation}"));
            handle
                .begin_change(&change, intent("x"), at(1))
                .await
                .unwrap();
            handle.intend_step(&change, step(0), at(1)).await.unwrap();
            handle
                .keep_identity(identity(generation), at(1))
                .await
                .unwrap();
            println!("answered {generation}");
        }
    });
}

#[test]
fn what_was_answered_is_there_after_kill_9() {
    const TEST: &str = "store::what_was_answered_is_there_after_kill_9";
    if let Some(directory) = std::env::var_os(CHILD) {
        change_without_end(Path::new(&directory));
    }
    let directory = tempfile::tempdir().unwrap();
    let mut answered = 0;
    for round in 1..=8_u64 {
        let mut child = again(TEST, directory.path(), &[])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let wanted = answered + round * 3;
        while answered < wanted {
            let line = lines.next().expect("the child lives").unwrap();
            if let Some(number) = line.rsplit_once("answered ") {
                answered = number.1.parse().unwrap();
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        block_on(async {
            let (store, handle, loaded) = open(directory.path()).await;
            assert_eq!(ids(&loaded.conditions), [""; 0], "round {round}");
            let (database, file) = (loaded.database.unwrap(), loaded.file.unwrap());
            assert!(
                database.generation >= answered && file.generation >= answered,
                "round {round}"
            );
            assert!(
                file.generation - database.generation <= 1,
                "the file is first"
            );
            let changes = handle.recent_changes(1000).await.unwrap();
            for generation in 1..=answered {
                let id = format!("c{generation}");
                let change = changes.iter().find(|change| change.id == id).unwrap();
                assert_eq!(change.steps.len(), 1, "{id}");
            }
            assert!(std::fs::read_dir(directory.path()).unwrap().all(|entry| {
                !entry
                    .unwrap()
                    .file_name()
                    .to_str()
                    .unwrap()
                    .ends_with(".unfinished")
            }));
            store.close().await.unwrap();
        });
        answered = answered.max(1);
    }
}

#[test]
fn a_database_that_another_program_locks_is_a_condition_and_not_a_hang() {
    let directory = tempfile::tempdir().unwrap();
    block_on(async {
        let (store, handle, _) = open(directory.path()).await;
        let other = Connection::open(directory.path().join(DATABASE)).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        // Longer than SQLite waits for a lock: an answer comes, and it is not that all is well.
        let begun = handle.begin_change(&lock("c1"), intent(""), at(1)).await;
        assert!(matches!(begun, Err(Failure::Disk(_))), "{begun:?}");
        assert_eq!(
            ids(&handle.tend(at(2)).await.unwrap()),
            ["store.unwritable"]
        );
        other.execute_batch("ROLLBACK").unwrap();
        assert!(handle.tend(at(3)).await.unwrap().is_empty());
        handle
            .begin_change(&lock("c1"), intent(""), at(4))
            .await
            .unwrap();
        store.close().await.unwrap();
    });
}

/// Everything that a child says, once it has ended well.
pub(crate) fn said(mut command: Command) -> String {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut errors = child.stderr.take().unwrap();
    let reader = std::thread::Builder::new()
        .spawn(move || {
            let mut text = String::new();
            errors.read_to_string(&mut text).map(|_| text)
        })
        .unwrap();
    let mut text = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    let ended = child.wait().unwrap();
    let errors = reader.join().unwrap().unwrap();
    assert!(ended.success(), "{ended}\n{text}\n{errors}");
    text
}

#[test]
fn a_directory_that_comes_late_gets_what_was_kept_in_memory() {
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("disk/state");
    block_on(async {
        let (store, handle, loaded) = open(&directory).await;
        assert_eq!(ids(&loaded.conditions), ["store.unwritable"]);
        let condition = &loaded.conditions[0];
        assert!(
            condition.fix.as_ref().unwrap().contains("mounted"),
            "{condition:?}"
        );
        let kept = handle.keep_identity(identity(1), at(1)).await.unwrap();
        assert!(matches!(kept, Stored::InMemory(_)), "{kept:?}");
        let ticket = handle.audit_begin(entry("PUT /x"), at(1)).await.unwrap();
        handle
            .audit_end(ticket, "200".to_owned(), Effect::default())
            .await
            .unwrap();
        let begun = handle.begin_change(&lock("c1"), intent(""), at(1)).await;
        assert!(
            matches!(begun, Err(Failure::Disk(_))),
            "no change without its intent on disk"
        );

        std::fs::create_dir(parent.path().join("disk")).unwrap();
        assert!(handle.tend(at(2)).await.unwrap().is_empty());
        handle
            .begin_change(&lock("c1"), intent(""), at(3))
            .await
            .unwrap();
        store.close().await.unwrap();
        let (store, handle, loaded) = open(&directory).await;
        assert_eq!(
            (loaded.database, loaded.file),
            (Some(identity(1)), Some(identity(1)))
        );
        let rows = handle.recent_audit(9).await.unwrap();
        assert_eq!((rows.len(), rows[0].ended.is_some()), (1, true));
        store.close().await.unwrap();
    });
}

#[test]
fn a_disk_that_comes_back_with_a_newer_identity_keeps_it() {
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("disk/state");
    let elsewhere = parent.path().join("elsewhere");
    block_on(async {
        let real = Identity {
            agent_id: "agent-real".to_owned(),
            ..identity(9)
        };
        let (store, handle, _) = open(&elsewhere).await;
        handle.keep_identity(real.clone(), at(1)).await.unwrap();
        store.close().await.unwrap();

        let (store, handle, _) = open(&directory).await;
        handle.keep_identity(identity(1), at(1)).await.unwrap();
        std::fs::create_dir(parent.path().join("disk")).unwrap();
        std::fs::rename(&elsewhere, &directory).unwrap();
        let conditions = handle.tend(at(2)).await.unwrap();
        assert_eq!(ids(&conditions), ["store.other-identity"]);
        assert!(
            conditions[0].sentence.contains("agent-real"),
            "{conditions:?}"
        );
        store.close().await.unwrap();
        let (store, _, loaded) = open(&directory).await;
        assert_eq!(
            (loaded.database, loaded.file),
            (Some(real.clone()), Some(real))
        );
        store.close().await.unwrap();
    });
}

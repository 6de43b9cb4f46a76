//! I/O errors in the place of each system call of a whole minute's work, put there by strace.

use std::path::Path;

use smol::block_on;

use super::{check, live, now, open, told};
use crate::store::{CHILD, again, can_trace, said};

const TEST: &str = "telemetry::faults::an_error_at_any_call_of_a_minute_costs_no_sample";

/// What may fail, how, and which calls of it are enough for a quick look.
const CALLS: [(&str, &str); 6] = [
    ("pwrite64", "EIO"),
    ("pwrite64", "ENOSPC"),
    ("fdatasync", "EIO"),
    ("ftruncate", "EIO"),
    ("pread64", "EIO"),
    ("openat", "EROFS"),
];
/// Every how manyth call fails in a quick look.
const QUICK: usize = 11;

/// What the child does: a new database, minutes until after the hour, a restart. A minute that
/// could not be written is tried again.
fn work(directory: &Path) {
    block_on(async {
        let mut tick = 1;
        for minutes in [14, 3] {
            let (telemetry, _) = open(directory, "boot", tick).await;
            let handle = telemetry.handle();
            tick = live(&handle, tick, minutes).await;
            handle.tend(now(tick)).await.unwrap();
            if handle.flush(now(tick), true).await.is_ok() {
                println!("told flushed {}", tick - 1);
            }
            telemetry.close().await.ok();
        }
    });
    println!("told the end");
}

/// Runs the child with one fault; what it told, and whether the fault was met.
fn run(directory: &Path, inject: &str) -> (String, bool) {
    let trace = directory.join("trace");
    let state = directory.join("state");
    // Only calls about these files: whatever the program needs to start is left alone.
    let files =
        ["", "-wal", "-shm"].map(|ending| format!("{}/telemetry.db{ending}", state.display()));
    let mut before = vec![
        "strace",
        "-f",
        "-qq",
        "-o",
        trace.to_str().unwrap(),
        "-e",
        inject,
    ];
    for file in &files {
        before.extend(["-P", file]);
    }
    let told = said(again(TEST, &state, &before));
    let trace = std::fs::read_to_string(&trace).unwrap();
    (told, trace.contains("INJECTED"))
}

#[test]
fn an_error_at_any_call_of_a_minute_costs_no_sample() {
    if let Some(directory) = std::env::var_os(CHILD) {
        work(Path::new(&directory));
        return;
    }
    if !can_trace() {
        return;
    }
    let step = if std::env::var_os("PIPEOPS_TORTURE").is_some() {
        1
    } else {
        QUICK
    };
    for (call, error) in CALLS {
        let mut met = 0;
        for when in (1..).step_by(step) {
            let directory = tempfile::tempdir().unwrap();
            let what = format!("inject={call}:error={error}:when={when}");
            let (text, was_met) = run(directory.path(), &what);
            if !was_met || met >= 400 {
                break;
            }
            met += 1;
            assert!(text.contains("told the end"), "{what}: {text}");
            // One error passes: what waited is written with the next minute at the latest.
            assert_eq!(told(&text), 17 * 4, "{what}: {text}");
            block_on(check(&directory.path().join("state"), told(&text), &what));
        }
        println!("{call} {error}: {met} faults");
        assert!(met > 0, "{call}");
    }
}

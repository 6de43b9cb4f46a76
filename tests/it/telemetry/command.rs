//! `pipeops-agent metrics`, on the files of an agent that is not there any more.

use std::{path::Path, process::Output};

use pipeops_agent::core::{outbox::Stream, series::decimal};
use serde_json::Value;
use smol::block_on;

use super::{NEW_YEAR_MS, PLANE, live, open};

#[expect(
    clippy::disallowed_methods,
    reason = "the command ends by itself: it reads files"
)]
fn metrics(directory: &Path, words: &[&str]) -> Output {
    std::process::Command::new(env!("CARGO_BIN_EXE_pipeops-agent"))
        .arg("metrics")
        .args(words)
        .arg("--state-dir")
        .arg(directory)
        .env_clear()
        .output()
        .unwrap()
}

fn text(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The files of two hours and a half, as a kill leaves them.
fn files() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let killed = tempfile::tempdir().unwrap();
    block_on(async {
        let (telemetry, _) = open(directory.path(), "boot", 1).await;
        live(&telemetry.handle(), 1, 150).await;
        for entry in std::fs::read_dir(directory.path()).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), killed.path().join(entry.file_name())).unwrap();
        }
        telemetry.close().await.unwrap();
    });
    killed
}

const ALL: [&str; 4] = [
    "--from",
    "2026-01-01T00:00:00Z",
    "--to",
    "2026-01-01T03:00:00Z",
];

#[test]
fn what_is_exported_is_what_was_measured() {
    let directory = files();
    let csv = text(&metrics(
        directory.path(),
        &[&["export", "number"], &ALL[..]].concat(),
    ));
    let mut lines = csv.lines();
    assert_eq!(lines.next(), Some("time,series,value,min,max,count"));
    for (tick, line) in (1..=600).zip(lines.by_ref()) {
        let at = pipeops_agent::core::time::Wall::from_millis(NEW_YEAR_MS + tick * 15_000);
        let value = decimal(tick, 1);
        assert_eq!(
            line,
            format!(
                "{},\"number{{device=\"\"sd\\\"\"a\"\"}}\",{value},{value},{value},1",
                at.rfc3339()
            )
        );
    }
    assert_eq!(lines.next(), None);
    let words = [&["export", "--format", "json", "--step", "1h"], &ALL[..]].concat();
    let json = text(&metrics(directory.path(), &words));
    let rows: Vec<Value> = json
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(rows.len(), 11 * 3);
    let counted: u64 = rows.iter().map(|row| row["count"].as_u64().unwrap()).sum();
    assert_eq!(counted, 11 * 600);
}

#[test]
fn a_chart_a_list_and_what_waits_are_told_to_people_and_programs() {
    let directory = files();
    let list = text(&metrics(directory.path(), &[&["query"], &ALL[..]].concat()));
    assert_eq!(list.lines().count(), 11);
    assert!(list.contains("number{device=\"sd\\\"a\"}   60"), "{list}");
    let chart = text(&metrics(
        directory.path(),
        &[&["query", "number"], &ALL[..]].concat(),
    ));
    assert!(chart.contains("         60 ⠀"), "{chart}");
    assert!(chart.contains("2026-01-01 00:00"), "{chart}");
    let one = text(&metrics(
        directory.path(),
        &[
            &[
                "query",
                "number{device=\"sd\\\"a\"}",
                "--json",
                "--step",
                "15min",
            ],
            &ALL[..],
        ]
        .concat(),
    ));
    let value: Value = serde_json::from_str(&one).unwrap();
    assert_eq!(value[0]["values"][1]["count"], 60);
    let waiting = text(&metrics(directory.path(), &["outbox"]));
    let row = waiting.lines().nth(1).unwrap();
    let row: Vec<_> = row.split_whitespace().collect();
    assert_eq!(row[..3], [PLANE, Stream::Metrics.as_str(), "1"]);
    let streams: Value =
        serde_json::from_str(&text(&metrics(directory.path(), &["streams", "--json"]))).unwrap();
    assert_eq!(streams["streams"][0]["last"], 150);
    assert_eq!(streams["samples"][0]["level"], "single values");
}

#[test]
fn what_cannot_be_shown_says_why_and_what_helps() {
    let empty = tempfile::tempdir().unwrap();
    let directory = files();
    let (nowhere, empty, here) = (Path::new("/dev/null"), empty.path(), directory.path());
    for (directory, words, complaint) in [
        (empty, &["outbox"][..], "telemetry.db is not there"),
        (nowhere, &["outbox"], "cannot read /dev/null/telemetry.db: "),
        (
            here,
            &["query", "no_such_metric"],
            "there is no series no_such_metric",
        ),
        (here, &["query", "9{"], "is not a series"),
        (
            here,
            &["export", "--last", "soon"],
            "write a number and s, min, h or d",
        ),
        (here, &["query", "numbre"], "did you mean number?"),
        (here, &["export", "numb"], "did you mean number?"),
        (
            here,
            &["export", "number{device=\"sdb\"}"],
            "no series of number has these labels\n  fix: there is number{device=",
        ),
    ] {
        let output = metrics(directory, words);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(told.contains(complaint), "{words:?}: {told}");
    }
    let before = std::fs::read(directory.path().join("telemetry.db")).unwrap();
    text(&metrics(directory.path(), &["streams"]));
    assert_eq!(
        std::fs::read(directory.path().join("telemetry.db")).unwrap(),
        before
    );
}

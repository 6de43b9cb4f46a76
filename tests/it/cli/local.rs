//! Commands that ask the running agent: against an agent that says what a test wants, and against a
//! real one.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::UnixListener,
};

use pipeops_agent::wire::api::{
    Condition, Destination, Diagnosis, EventPage, EventReport, Link, LinkReport, LogEntry, LogPage,
    Outage, PartStatus, Probe, Readiness, Row, Status,
};
use serde_json::{Value, json};

use super::{agent, code, json as answer, text};

const STATUS: &str = "/api/v1/status";
const DIAGNOSIS: &str = "/api/v1/diagnosis";

/// An agent that gives these answers, and what it was asked: the first line and the body of each
/// request.
pub(crate) fn said(
    answers: &[(&str, Value)],
    words: &[&str],
) -> (std::process::Output, Vec<(String, String)>) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("agent.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let answers: BTreeMap<&str, &Value> =
        answers.iter().map(|(path, value)| (*path, value)).collect();
    let mut asked = Vec::new();
    let output = std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            let mut asked = Vec::new();
            loop {
                let (stream, _) = listener.accept().unwrap();
                let mut reader = BufReader::new(&stream);
                let mut first = String::new();
                reader.read_line(&mut first).unwrap();
                if first.starts_with("end") {
                    return asked;
                }
                let mut length = 0;
                loop {
                    let mut line = String::new();
                    reader.read_line(&mut line).unwrap();
                    if let Some(value) = line.strip_prefix("content-length: ") {
                        length = value.trim().parse().unwrap();
                    }
                    if line.trim().is_empty() {
                        break;
                    }
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                let path = first.split(' ').nth(1).unwrap();
                let path = path.split('?').next().unwrap();
                let (status, value) = match answers.get(path) {
                    Some(value) => ("200 OK", (*value).clone()),
                    None => ("404 Not Found", json!({ "error": "there is no such page" })),
                };
                let value = value.to_string();
                // In two chunks, as the real one may send it.
                let (one, two) = value.split_at(value.len() / 2);
                let chunks = [one, two].map(|part| match part.len() {
                    0 => String::new(),
                    length => format!("{length:x}\r\n{part}\r\n"),
                });
                let head = format!("HTTP/1.1 {status}\r\nTransfer-Encoding: chunked\r\n\r\n");
                let whole = format!("{head}{}0\r\n\r\n", chunks.concat());
                (&stream).write_all(whole.as_bytes()).ok();
                asked.push((first.trim().to_owned(), String::from_utf8(body).unwrap()));
            }
        });
        let mut all: Vec<&str> = words.to_vec();
        all.extend(["--socket", socket.to_str().unwrap()]);
        let output = agent(
            &all,
            &[
                ("USER", "pi"),
                ("SSH_CONNECTION", "192.0.2.1 5 192.0.2.7 22"),
            ],
        );
        let mut last = std::os::unix::net::UnixStream::connect(&socket).unwrap();
        last.write_all(b"end\n").unwrap();
        asked = server.join().unwrap();
        output
    });
    (output, asked)
}

fn value(shape: impl serde::Serialize) -> Value {
    serde_json::to_value(shape).unwrap()
}

fn refused() -> Value {
    value(Status {
        summary: "the control plane refuses the token".to_owned(),
        conditions: vec![Condition {
            id: "link.refused".to_owned(),
            severity: "critical".to_owned(),
            since: "2026-06-16T05:00:00Z".to_owned(),
            sentence: "the control plane refuses the token: 401".to_owned(),
            fix: Some("pipeops-agent token rotate".to_owned()),
            because: None,
        }],
        readiness: Readiness {
            parts: vec![PartStatus {
                id: "link".to_owned(),
                ready: false,
                sentence: Some("the control plane refuses the token: 401".to_owned()),
            }],
            ..Readiness::default()
        },
        ..Status::default()
    })
}

fn ladder() -> Value {
    value(Diagnosis {
        side: "control plane".to_owned(),
        sentence: "the control plane refuses us".to_owned(),
        steps: vec![
            Probe {
                title: "cable".to_owned(),
                outcome: "ok".to_owned(),
                seen: "eth0 is up".to_owned(),
                ..Probe::default()
            },
            Probe {
                title: "answer".to_owned(),
                outcome: "failed".to_owned(),
                seen: "401".to_owned(),
                took_ms: Some(12.4),
                fix: Some("pipeops-agent token rotate".to_owned()),
                ..Probe::default()
            },
        ],
        ..Diagnosis::default()
    })
}

fn happened() -> Value {
    let event = |id, reason: &str, message: &str| EventReport {
        id,
        at: format!("2026-06-16T05:00:0{id}Z"),
        source: "agent".to_owned(),
        severity: "critical".to_owned(),
        subject: "link".to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        count: 1,
    };
    value(EventPage {
        events: vec![
            event(2, "link.refused", "the token is\u{1b}[2J refused"),
            event(1, "link.lost", "the session was lost"),
        ],
        next: None,
    })
}

#[test]
fn why_shows_what_stands_behind_a_sentence() {
    let lines = value(LogPage {
        lines: vec![
            LogEntry {
                id: 1,
                at: "2026-06-16T05:00:00Z".to_owned(),
                level: "warn".to_owned(),
                text: "link: dialing -> refused".to_owned(),
            },
            LogEntry {
                id: 2,
                at: "2026-06-16T05:00:00Z".to_owned(),
                level: "info".to_owned(),
                text: "store: flushed".to_owned(),
            },
        ],
    });
    let answers = [
        (STATUS, refused()),
        ("/api/v1/events", happened()),
        ("/api/v1/logs", lines),
        (DIAGNOSIS, ladder()),
    ];
    for words in [
        vec!["why"],
        vec!["why", "link"],
        vec!["why", "link.refused"],
        vec!["why", "TOKEN"],
    ] {
        let (output, _) = said(&answers, &words);
        let told = text(&output.stdout);
        assert_eq!(code(&output), 1, "{words:?}: {told}");
        for wanted in [
            "critical: the control plane refuses the token: 401",
            "fix: pipeops-agent token rotate",
            "known as link.refused since 2026-06-16T05:00:00Z",
        ] {
            assert!(told.contains(wanted), "{words:?}: {told}");
        }
        assert!(
            !told.contains('\u{1b}') && !told.contains("flushed"),
            "{told}"
        );
        if words.last() != Some(&"TOKEN") {
            for wanted in [
                "link is not ready",
                "link.refused: the token is",
                "dialing -> refused",
                "401 (12 ms)",
            ] {
                assert!(told.contains(wanted), "{words:?}: {wanted}: {told}");
            }
        }
    }
    let (output, _) = said(&answers, &["why", "linkk"]);
    assert_eq!(code(&output), 2);
    assert!(text(&output.stderr).contains("did you mean link?"));
    let (output, _) = said(&answers, &["why", "--json"]);
    assert_eq!(
        answer(&output)["evidence"][0]["conditions"][0]["id"],
        "link.refused"
    );
}

#[test]
fn the_link_is_told_with_its_ladder_its_outages_and_what_waits() {
    let report = value(LinkReport {
        link: Link {
            state: "waiting".to_owned(),
            ..Link::default()
        },
        row: Row {
            value: "waiting".to_owned(),
            details: vec!["401".to_owned()],
            ..Row::default()
        },
        outages: vec![Outage {
            from: "2026-06-16T05:00:00Z".to_owned(),
            to: Some("2026-06-16T05:12:00Z".to_owned()),
            why: "no pong for 20 s".to_owned(),
        }],
        destinations: vec![Destination {
            name: "control plane".to_owned(),
            stream: "metrics".to_owned(),
            records: 4210,
            ..Destination::default()
        }],
    });
    let answers = [("/api/v1/link", report), (DIAGNOSIS, ladder())];
    let (output, _) = said(&answers, &["link"]);
    let told = text(&output.stdout);
    assert_eq!(code(&output), 1, "{told}");
    let wanted = "Waiting\n\n\
        The control plane refuses us\n\
        \x20 ok      cable   eth0 is up\n\
        \x20 failed  answer  401 (12 ms)\n\
        \x20   fix: pipeops-agent token rotate\n\n\
        Outages, newest first\n\
        \x20 2026-06-16T05:00:00Z  for 12 min  no pong for 20 s\n\n\
        DESTINATION    STREAM   WAITING  OLDEST  LOST\n\
        control plane  metrics  4210     -       0\n";
    assert_eq!(told, wanted);
    // An agent that cannot test its way tells the rest.
    let (output, _) = said(&answers[..1], &["link", "--json"]);
    assert_eq!(answer(&output)["destinations"][0]["records"], 4210);
    assert_eq!(
        answer(&output)["diagnosis"]["error"]["why"][0],
        "there is no such page"
    );
}

#[test]
fn events_are_told_in_their_order_and_only_those_that_were_asked_for() {
    let (output, asked) = said(
        &[("/api/v1/events", happened())],
        &["events", "--severity", "critical", "-n", "2"],
    );
    let told = text(&output.stdout);
    assert_eq!(
        told,
        "2026-06-16T05:00:01Z  critical  link link.lost: the session was lost\n\
         2026-06-16T05:00:02Z  critical  link link.refused: the token is\\u{1b}[2J refused\n"
    );
    assert_eq!(
        asked[0].0,
        "GET /api/v1/events?limit=2&severity=critical HTTP/1.1"
    );
    let (output, _) = said(
        &[("/api/v1/events", happened())],
        &["events", "--since", "2026-06-16T05:00:02Z", "--json"],
    );
    assert_eq!(answer(&output)["events"].as_array().unwrap().len(), 1);
}

#[test]
fn log_lines_are_told_and_a_pod_is_asked_for_by_its_name() {
    let lines = json!({ "lines": [{ "at": "2026-06-16T05:00:00Z", "level": "info", "text": "link: ready" }] });
    let (output, _) = said(&[("/api/v1/logs", lines)], &["logs", "--tail=5"]);
    assert_eq!(
        text(&output.stdout),
        "2026-06-16T05:00:00Z  info   link: ready\n"
    );
    let (output, asked) = said(
        &[("/api/v1/cluster/logs", json!("one\ntwo\u{1b}[2J"))],
        &["logs", "--pod", "shop/web 1", "-c", "app", "--previous"],
    );
    assert_eq!(
        asked[0].0,
        "GET /api/v1/cluster/logs?namespace=shop&pod=web%201&tail=100&container=app&previous=1 HTTP/1.1"
    );
    assert!(!text(&output.stdout).contains('\u{1b}'));
    let (output, _) = said(&[], &["logs", "--pod", "web"]);
    assert_eq!(code(&output), 2);
    assert!(text(&output.stderr).contains("fix: --pod default/web"));
}

#[test]
fn the_page_is_opened_by_a_line_of_ssh_where_there_is_no_screen() {
    let token = json!({
        "token": "abc", "url": "http://127.0.0.1:7480/#token=abc", "role": "operator", "until": "2026-06-16T06:00:00Z",
    });
    let answers = [
        ("/api/v1/tokens", token),
        ("/api/v1/sessions", json!({})),
        ("/api/v1/password", json!({"has_password": false})),
    ];
    let (output, asked) = said(&answers, &["dashboard", "open"]);
    assert_eq!(
        text(&output.stdout),
        "http://127.0.0.1:7480/#token=abc\n\n\
         From your own machine run this, then open the address above:\n  ssh -L 7480:127.0.0.1:7480 pi@192.0.2.7\n"
    );
    assert_eq!(
        asked,
        [(
            "POST /api/v1/tokens HTTP/1.1".to_owned(),
            "{\"role\":\"operator\"}".to_owned()
        )]
    );
    let (output, asked) = said(&answers, &["dashboard", "token", "--role", "viewer"]);
    assert_eq!(text(&output.stdout), "abc\n");
    assert_eq!(asked[0].1, "{\"role\":\"viewer\"}");
    let (_, asked) = said(&answers, &["dashboard", "password", "--remove"]);
    assert_eq!(asked[0].1, "{\"password\":null,\"role\":\"operator\"}");
    let (_, asked) = said(&answers, &["dashboard", "logout"]);
    assert_eq!(asked[0].0, "DELETE /api/v1/sessions HTTP/1.1");
}

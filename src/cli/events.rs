//! `events`: the time line of the machine and its cluster, the newest at the end, where a terminal shows it.

use std::time::Duration;

use serde_json::{Value, json};
use smol::{Timer, block_on};

use super::{
    given::Given,
    output::{Output, Tone, printable},
    said::Said,
    socket::{self, Ask},
    table::{CONFIG, Command, JSON, Opt, SET, SOCKET, Takes},
};
use crate::{
    config::value::length,
    core::time::Wall,
    error::{Exit, Result},
    host::clock,
    wire::api::EVENTS_PATH,
};

/// How often `--follow` asks. Events are written once a minute, the agent's own at once.
const FOLLOW_EVERY: Duration = Duration::from_secs(2);
/// Events of one answer.
const PAGE: usize = 500;
/// Events of one command: a year of a busy cluster is for `metrics export` and other programs.
const EVENTS_MAX: usize = 10_000;

/// `events`.
pub(super) static COMMAND: Command = Command {
    name: "events",
    about: "Show what happened: on this machine, to the agent, in the cluster",
    options: &[
        Opt::flag("follow", "Go on with what happens from now on").short('f'),
        Opt::value(
            "since",
            Takes::Text,
            "WHEN",
            "From this moment on: a length like 2h, or 2026-06-16T05:00:00Z",
        ),
        Opt::value("tail", Takes::Text, "N", "So many of the newest")
            .short('n')
            .default("50")
            .against("since"),
        Opt::value(
            "source",
            Takes::Word(&["agent", "cluster"]),
            "SOURCE",
            "Only what this one says",
        ),
        Opt::value(
            "severity",
            Takes::Word(&["note", "warning", "critical"]),
            "SEVERITY",
            "Only those of this severity",
        ),
        SOCKET,
        CONFIG,
        SET,
        JSON,
    ],
    examples: &[
        "pipeops-agent events",
        "pipeops-agent events --since 2h --severity critical",
        "pipeops-agent events --follow",
    ],
    exit: "0 when it is told, 2 when no agent answers.",
    run: Some(events),
    ..Command::BARE
};

/// A moment, or how long ago it was.
fn moment(text: &str) -> std::result::Result<Wall, String> {
    let back = length(text).map(|length| {
        let millis = i64::try_from(length.as_millis()).unwrap_or(i64::MAX);
        Wall::from_millis(clock::now().wall.millis().saturating_sub(millis))
    });
    back.or_else(|| Wall::parse_rfc3339(text))
        .ok_or_else(|| "write a length like 2h, or a moment like 2026-06-16T05:00:00Z".to_owned())
}

/// A number of lines.
pub(super) fn lines(text: &str) -> std::result::Result<usize, String> {
    text.parse()
        .ok()
        .ok_or_else(|| "write a number, like 100".to_owned())
}

fn events(given: &Given, output: &mut Output) -> Result<Exit> {
    let since = given.read("since", moment)?;
    let most = match since {
        Some(_) => EVENTS_MAX,
        None => given.read("tail", lines)?.unwrap_or(PAGE).min(EVENTS_MAX),
    };
    let found = pages(given, since, most)?;
    if given.has("follow") {
        return Ok(follow(given, &found, output));
    }
    if given.has("json") {
        output.json(&json!({ "events": found }));
    } else {
        for event in &found {
            output.line(&line(Said::new(event), output));
        }
        if found.is_empty() {
            output.line("Nothing happened in that time.");
        }
    }
    Ok(Exit::Fine)
}

/// At most so many events, the oldest first.
fn pages(given: &Given, since: Option<Wall>, most: usize) -> Result<Vec<Value>> {
    let mut found: Vec<Value> = Vec::new();
    let mut before = String::new();
    while found.len() < most {
        let limit = PAGE.min(most.saturating_sub(found.len())).max(1);
        let page = page(given, &format!("limit={limit}{before}"))?;
        let said = Said::new(&page);
        let is_wanted = |event: &Said<'_>| {
            let at = Wall::parse_rfc3339(event.text("at"));
            since.is_none_or(|since| at.is_none_or(|at| at >= since))
        };
        let wanted = said.list("events").filter(is_wanted);
        let wanted: Vec<Value> = wanted.map(|event| event.json().clone()).collect();
        let is_whole = wanted.len() == said.list("events").count();
        found.extend(wanted);
        match said.count("next").filter(|_| is_whole) {
            Some(next) => before = format!("&before={next}"),
            None => break,
        }
    }
    found.truncate(most);
    found.reverse();
    Ok(found)
}

fn page(given: &Given, query: &str) -> Result<Value> {
    let mut path = format!("{EVENTS_PATH}?{query}");
    for name in ["source", "severity"] {
        if let Some(word) = given.text(name) {
            path = format!("{path}&{name}={word}");
        }
    }
    socket::say(
        given,
        &Ask::Get(&path),
        "the agent refuses to tell what happened",
    )
}

/// Until somebody ends it, or nobody reads any more. An agent that is gone is waited for.
fn follow(given: &Given, found: &[Value], output: &mut Output) -> Exit {
    let mut last = 0;
    let mut is_gone = false;
    let mut tell = |events: &[Value], output: &mut Output| {
        for event in events {
            let said = Said::new(event);
            let id = said.count("id").unwrap_or(0);
            if id > last {
                last = id;
                let text = line(said, output);
                output.line(&if given.has("json") {
                    event.to_string()
                } else {
                    text
                });
            }
        }
    };
    tell(found, output);
    while !output.is_over() {
        block_on(Timer::after(FOLLOW_EVERY));
        match pages(given, None, PAGE) {
            Ok(events) => {
                is_gone = false;
                tell(&events, output);
            }
            Err(error) if !is_gone => {
                is_gone = true;
                output.warning(&error);
            }
            Err(_) => {}
        }
    }
    Exit::Fine
}

/// An event in a line.
pub(super) fn line(event: Said<'_>, output: &Output) -> String {
    let severity = event.text("severity");
    let often = match event.count("count") {
        None | Some(0 | 1) => String::new(),
        Some(count) => format!(" ({count} times)"),
    };
    let what = format!(
        "{} {}: {}{often}",
        event.text("subject"),
        event.text("reason"),
        event.text("message")
    );
    format!(
        "{}  {}  {}",
        output.toned(Tone::Faint, &printable(event.text("at"))),
        output.toned(
            Tone::of_severity(severity),
            &printable(&format!("{severity:<8}"))
        ),
        printable(&what).replace('\n', " ")
    )
}

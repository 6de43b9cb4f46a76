//! `events`: the timeline of the machine and its cluster, newest last.

use std::collections::VecDeque;

use serde_json::{Value, json};

use super::{
    args::Args,
    follow::{Printer, follow, number},
    output::{Output, Tone, printable},
    socket::{self, Ask},
    table::{CONFIG, Command, JSON, Opt, SET, SOCKET, Takes},
    view::View,
};
use crate::{
    config::value::length,
    core::{health::Severity, time::Wall},
    error::{Exit, Result},
    host::clock,
    wire::api::EVENTS_PATH,
};

/// Events that are remembered so that none is printed twice: more than one answer has.
const SHOWN_MAX: usize = 600;
/// Events of one answer.
const PAGE_EVENTS: usize = 500;
/// Events of one command: a year of a busy cluster is for `metrics export` and other programs.
const EVENTS_MAX: usize = 10_000;

/// `events`.
pub(super) static COMMAND: Command = Command {
    name: "events",
    about: "Show events of the machine, the agent and the cluster",
    options: &[
        Opt::flag("follow", "Keep showing new events").short('f'),
        Opt::value(
            "since",
            Takes::Text,
            "WHEN",
            "Start: a duration like 2h, or a time like 2026-06-16T05:00:00Z",
        ),
        Opt::value("tail", Takes::Text, "N", "Show the newest N")
            .short('n')
            .default("50")
            .against("since"),
        Opt::value(
            "source",
            Takes::Word(&["agent", "cluster"]),
            "SOURCE",
            "Only events of this source",
        ),
        Opt::value(
            "severity",
            Takes::Word(&["note", "warning", "critical"]),
            "SEVERITY",
            "Only events of at least this severity",
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
    exit: "0 success, 2 no agent answers. With --follow, Ctrl-C ends it (130).",
    run: Some(events),
    ..Command::BARE
};

/// A timestamp, or an age.
fn moment(text: &str) -> std::result::Result<Wall, String> {
    let back = length(text).map(|length| {
        let millis = i64::try_from(length.as_millis()).unwrap_or(i64::MAX);
        Wall::from_millis(clock::now().wall.millis().saturating_sub(millis))
    });
    back.or_else(|| Wall::parse_rfc3339(text))
        .ok_or_else(|| "write a duration like 2h, or a time like 2026-06-16T05:00:00Z".to_owned())
}

/// A number of lines.
pub(super) fn lines(text: &str) -> std::result::Result<usize, String> {
    text.parse()
        .ok()
        .ok_or_else(|| "write a number, like 100".to_owned())
}

fn events(args: &Args, output: &mut Output) -> Result<Exit> {
    let since = args.read("since", moment)?;
    let most = match since {
        Some(_) => EVENTS_MAX,
        None => args
            .read("tail", lines)?
            .unwrap_or(PAGE_EVENTS)
            .min(EVENTS_MAX),
    };
    if args.has("follow") {
        return follow_on(args, since, most, output);
    }
    let found = pages(args, since, most)?;
    if args.has("json") {
        output.json(&json!({ "events": found }));
    } else {
        for event in &found {
            output.line(&line(View::new(event), output));
        }
        if found.is_empty() {
            output.line("No events in that time.");
        }
    }
    Ok(Exit::Fine)
}

/// At most `most` events, the oldest first.
fn pages(args: &Args, since: Option<Wall>, most: usize) -> Result<Vec<Value>> {
    let mut found: Vec<Value> = Vec::new();
    let mut before = String::new();
    while found.len() < most {
        let limit = PAGE_EVENTS.min(most.saturating_sub(found.len())).max(1);
        let page = page(args, &format!("limit={limit}{before}"))?;
        let view = View::new(&page);
        let is_wanted = |event: &View<'_>| {
            let at = Wall::parse_rfc3339(event.text("at"));
            since.is_none_or(|since| at.is_none_or(|at| at >= since))
        };
        let wanted = view.list("events").filter(is_wanted);
        let wanted: Vec<Value> = wanted.map(|event| event.json().clone()).collect();
        let is_whole = wanted.len() == view.list("events").count();
        found.extend(wanted);
        match view.count("next").filter(|_| is_whole) {
            Some(next) => before = format!("&before={next}"),
            None => break,
        }
    }
    found.truncate(most);
    found.reverse();
    Ok(found)
}

fn page(args: &Args, query: &str) -> Result<Value> {
    let mut path = format!("{EVENTS_PATH}?{query}");
    for name in ["source", "severity"] {
        if let Some(word) = args.text(name) {
            path = format!("{path}&{name}={word}");
        }
    }
    socket::request(args, &Ask::Get(&path), "the agent refused to return events")
}

/// Stream of events, by number. A repetition within the minute arrives again, with its count.
struct EventStream<'a> {
    args: &'a Args,
    /// Events printed last, so that none is printed twice.
    shown: VecDeque<Value>,
    /// Events up to this number are skipped.
    floor: u64,
}

impl EventStream<'_> {
    fn print(&mut self, event: &Value, output: &mut Output) {
        if self.shown.contains(event) {
            return;
        }
        if self.args.has("json") {
            output.json_line(event);
        } else {
            let line = line(View::new(event), output);
            output.line(&line);
        }
        self.shown.push_back(event.clone());
        if self.shown.len() > SHOWN_MAX {
            self.shown.pop_front();
        }
    }

    /// True if the options select this event.
    fn is_wanted(&self, event: View<'_>) -> bool {
        let least = self.args.text("severity").and_then(Severity::of);
        let severity = Severity::of(event.text("severity"));
        self.args
            .text("source")
            .is_none_or(|source| source == event.text("source"))
            && least.is_none_or(|least| severity.is_none_or(|severity| severity >= least))
    }
}

impl Printer for EventStream<'_> {
    fn read(&mut self, output: &mut Output) -> Result<()> {
        for event in pages(self.args, None, PAGE_EVENTS)? {
            if number(&event).is_none_or(|number| number > self.floor) {
                self.print(&event, output);
            }
        }
        Ok(())
    }

    fn hear(&mut self, message: &Value, output: &mut Output) {
        if self.is_wanted(View::new(message)) {
            self.print(message, output);
        }
    }
}

fn follow_on(args: &Args, since: Option<Wall>, most: usize, output: &mut Output) -> Result<Exit> {
    let found = pages(args, since, most)?;
    let newest = found.last().and_then(number).unwrap_or(0);
    let before = found
        .first()
        .and_then(number)
        .map(|first| first.saturating_sub(1));
    let mut stream = EventStream {
        args,
        shown: VecDeque::new(),
        floor: before.unwrap_or(newest),
    };
    for event in &found {
        stream.print(event, output);
    }
    follow(args, "events", &mut stream, output)
}

/// An event in a line.
pub(super) fn line(event: View<'_>, output: &Output) -> String {
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

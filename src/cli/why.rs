//! `why`: explains a status message: since when, the evidence, related events, and what to do.

use serde_json::{Value, json};

use super::{
    args::Args,
    events, link, logs,
    output::{Output, Tone, printable},
    socket::{self, Ask},
    status,
    table::{Argument, CONFIG, Command, JSON, Need, SET, SOCKET, Takes},
    view::View,
};
use crate::{
    core::time::Wall,
    core::{nearest::nearest, order::OrderExt as _},
    error::{Error, Exit, Result},
    host::clock,
    wire::api::{EVENTS_PATH, HOST_PATH, LOGS_PATH, PROBLEMS_PATH},
};

/// Maximum number of events and log lines shown.
const RELATED_MAX: usize = 8;

/// `why`.
pub(super) static COMMAND: Command = Command {
    name: "why",
    about: "Explain a status message: evidence, since when, what to do",
    options: &[SOCKET, CONFIG, SET, JSON],
    arguments: &[Argument {
        name: "THING",
        takes: Takes::Text,
        need: Need::Maybe,
        help: "A condition (link.refused), component (link, store), card (disk, clock), check, or word (default: all problems)",
    }],
    examples: &[
        "pipeops-agent why",
        "pipeops-agent why link",
        "pipeops-agent why disk --json",
    ],
    exit: "0 no problem, 1 a problem was found, 2 no agent answers or THING is unknown.",
    run: Some(why),
    ..Command::BARE
};

/// Answers of the agent that explanations are drawn from.
struct Known {
    status: Value,
    host: Value,
    problems: Value,
    events: Value,
    logs: Value,
}

impl Known {
    fn ask(args: &Args) -> Result<Self> {
        let status = status::fetch(args)?;
        // An agent of another version, or a broken part of it: the rest is shown all the same.
        let part = |ask| socket::request(args, &ask, "").unwrap_or_default();
        Ok(Self {
            status,
            host: part(Ask::Test(HOST_PATH)),
            problems: part(Ask::Test(PROBLEMS_PATH)),
            events: part(Ask::Get(&format!("{EVENTS_PATH}?limit=500"))),
            logs: part(Ask::Get(&format!("{LOGS_PATH}?tail=500"))),
        })
    }

    fn conditions(&self) -> impl Iterator<Item = View<'_>> {
        View::new(&self.status).list("conditions")
    }

    fn parts(&self) -> impl Iterator<Item = View<'_>> {
        View::new(&self.status).at("readiness").list("parts")
    }

    fn figures(&self) -> impl Iterator<Item = View<'_>> {
        View::new(&self.host).list("figures")
    }

    fn checks(&self) -> impl Iterator<Item = View<'_>> {
        View::new(&self.problems).list("checks")
    }

    /// All ids that can be explained.
    fn ids(&self) -> Vec<&str> {
        let all = self.conditions().chain(self.parts()).chain(self.figures());
        let all = all.chain(self.checks()).map(|it| it.text("id"));
        let mut ids: Vec<&str> = all.filter(|id| !id.is_empty()).collect();
        ids.order();
        ids.dedup();
        ids
    }
}

/// Evidence about one id.
struct Evidence<'a> {
    about: String,
    conditions: Vec<View<'a>>,
    parts: Vec<View<'a>>,
    figures: Vec<View<'a>>,
    checks: Vec<View<'a>>,
    events: Vec<View<'a>>,
    logs: Vec<View<'a>>,
}

fn why(args: &Args, output: &mut Output) -> Result<Exit> {
    let known = Known::ask(args)?;
    let wrong = || known.conditions().map(|it| it.text("id").to_owned());
    let named = args.text("THING").map(|thing| vec![thing.to_lowercase()]);
    let things = named.unwrap_or_else(|| wrong().collect());
    if things.is_empty() {
        return Ok(nothing_wrong(&known, args, output));
    }
    let evidence: Vec<Evidence<'_>> = things.iter().map(|thing| gather(&known, thing)).collect();
    if let Some(unknown) = evidence.iter().find(|it| it.is_empty()) {
        let ids = known.ids();
        let meant = nearest(&unknown.about, ids.iter().copied());
        let error = Error::new(format!("unknown: {:?}", unknown.about));
        return Err(error.fix(match meant {
            Some(meant) => format!("did you mean {meant}?"),
            None => format!("one of: {}", ids.join(", ")),
        }));
    }
    let is_about_link = evidence.iter().any(|it| part(&it.about) == "link");
    let diagnosis = is_about_link.then(|| link::diagnosis(args).ok()).flatten();
    if args.has("json") {
        let evidence: Vec<Value> = evidence.iter().map(Evidence::json).collect();
        output.json(&json!({ "evidence": evidence, "diagnosis": diagnosis }));
    } else {
        for (index, evidence) in evidence.iter().enumerate() {
            if index > 0 {
                output.line("");
            }
            evidence.print(clock::now().wall, output);
        }
        if let Some(diagnosis) = &diagnosis {
            heading("Connection to the control plane", output);
            for line in link::steps(View::new(diagnosis), output) {
                output.line(&line);
            }
        }
    }
    let is_wrong = evidence.iter().any(Evidence::is_wrong);
    Ok(if is_wrong { Exit::Problem } else { Exit::Fine })
}

fn nothing_wrong(known: &Known, args: &Args, output: &mut Output) -> Exit {
    let status = View::new(&known.status);
    if args.has("json") {
        output.json(&json!({ "evidence": [], "summary": status.text("summary") }));
        return Exit::Fine;
    }
    let sentence = status::sentence(status.text("summary"));
    output.line(&output.toned(Tone::Good, &printable(&sentence)));
    let ready: Vec<&str> = known.parts().map(|part| part.text("id")).collect();
    if !ready.is_empty() {
        let line = format!("OK: {}.", ready.join(", "));
        output.line(&printable(&line));
    }
    for figure in known.figures() {
        output.line(&figure_line(figure));
    }
    Exit::Fine
}

/// Prefix of a condition's id: `link` of `link.refused`.
fn part(id: &str) -> &str {
    id.split('.').next().unwrap_or(id)
}

fn gather<'a>(known: &'a Known, thing: &str) -> Evidence<'a> {
    let is_it = |it: &View<'_>| {
        let id = it.text("id");
        id == thing || (!thing.contains('.') && part(id) == thing)
    };
    let mut conditions: Vec<_> = known.conditions().filter(is_it).collect();
    let parts: Vec<_> = known
        .parts()
        .filter(|it| it.text("id") == part(thing))
        .collect();
    let figures: Vec<_> = known
        .figures()
        .filter(|it| it.text("id") == part(thing))
        .collect();
    let mut checks: Vec<_> = known.checks().filter(is_it).collect();
    if conditions.is_empty() && parts.is_empty() && figures.is_empty() && checks.is_empty() {
        // A word out of a sentence.
        let says = |text: &str| text.to_lowercase().contains(thing);
        conditions = known
            .conditions()
            .filter(|it| says(it.text("sentence")))
            .collect();
        checks = known
            .checks()
            .filter(|it| it.text("outcome") == "problem")
            .filter(|it| says(it.text("title")) || says(it.text("seen")))
            .collect();
    }
    let ids: Vec<&str> = conditions.iter().map(|it| it.text("id")).collect();
    let is_named = |text: &str| ids.contains(&text) || part(text) == part(thing);
    let events = View::new(&known.events).list("events");
    let events = events.filter(|it| is_named(it.text("reason")) || is_named(it.text("subject")));
    let start = format!("{}:", part(thing));
    let logs = View::new(&known.logs).list("lines");
    let logs = logs.filter(|it| {
        let text = it.text("text");
        text.starts_with(&start) || ids.iter().any(|id| text.contains(id))
    });
    let mut logs: Vec<_> = logs.rev().take(RELATED_MAX).collect();
    logs.reverse();
    let mut events: Vec<_> = events.take(RELATED_MAX).collect();
    events.reverse();
    Evidence {
        about: thing.to_owned(),
        conditions,
        parts,
        figures,
        checks,
        events,
        logs,
    }
}

impl Evidence<'_> {
    fn is_empty(&self) -> bool {
        self.conditions.is_empty()
            && self.parts.is_empty()
            && self.figures.is_empty()
            && self.checks.is_empty()
    }

    fn is_wrong(&self) -> bool {
        let is_bad = |it: &View<'_>| it.text("severity") != "note";
        self.conditions.iter().any(is_bad)
            || self.parts.iter().any(|it| it.flag("ready") == Some(false))
            || self
                .figures
                .iter()
                .any(|it| matches!(it.text("state"), "warning" | "critical"))
            || self
                .checks
                .iter()
                .any(|it| it.text("outcome") == "problem" && is_bad(it))
    }

    fn json(&self) -> Value {
        let list =
            |list: &[View<'_>]| -> Value { list.iter().map(|it| it.json().clone()).collect() };
        json!({
            "about": self.about,
            "conditions": list(&self.conditions),
            "parts": list(&self.parts),
            "figures": list(&self.figures),
            "checks": list(&self.checks),
            "events": list(&self.events),
            "log": list(&self.logs),
        })
    }

    fn print(&self, now: Wall, output: &mut Output) {
        for condition in &self.conditions {
            for line in status::condition_lines(*condition, now, output) {
                output.line(&line);
            }
            let known = format!(
                "  known as {} since {}",
                condition.text("id"),
                condition.text("since")
            );
            output.line(&output.toned(Tone::Faint, &printable(&known)));
        }
        let sentences: Vec<&str> = self
            .conditions
            .iter()
            .map(|it| it.text("sentence"))
            .collect();
        // Each sentence is printed once: events and log lines begin with the same words.
        let once = |line: String| {
            let view = sentences.iter().filter(|sentence| !sentence.is_empty());
            view.fold(line, |line, sentence| {
                line.replace(&printable(sentence), "as above")
            })
        };
        for part in &self.parts {
            let word = match part.flag("ready") {
                Some(true) => "OK".to_owned(),
                Some(false) if sentences.contains(&part.text("sentence")) => {
                    "is not ready".to_owned()
                }
                Some(false) => format!("is not ready: {}", part.text("sentence")),
                None => "readiness is unknown".to_owned(),
            };
            output.line(&printable(&format!("{} {word}", part.text("id"))));
        }
        for figure in &self.figures {
            output.line(&figure_line(*figure));
        }
        for check in &self.checks {
            print_check(*check, output);
        }
        if !self.events.is_empty() {
            heading("Events", output);
            for event in &self.events {
                output.line(&once(format!("  {}", events::line(*event, output))));
            }
        }
        if !self.logs.is_empty() {
            heading("Log", output);
            for entry in &self.logs {
                output.line(&once(format!("  {}", logs::line(*entry, output))));
            }
        }
    }
}

fn heading(text: &str, output: &mut Output) {
    output.line("");
    output.line(&output.toned(Tone::Strong, text));
}

fn figure_line(figure: View<'_>) -> String {
    let detail = figure.maybe("detail");
    let detail = detail.map_or_else(String::new, |detail| format!(", {detail}"));
    let age = figure.count("age_s");
    let age = age.map_or_else(String::new, |age| format!(", {age} s ago"));
    printable(&format!(
        "{}: {}{detail} ({}{age})",
        figure.text("title"),
        figure.text("value"),
        figure.text("source")
    ))
}

fn print_check(check: View<'_>, output: &mut Output) {
    let is_problem = check.text("outcome") == "problem";
    let word = match check.text("outcome") {
        "problem" => check.text("severity"),
        other => other,
    };
    let tone = if is_problem {
        Tone::of_severity(word)
    } else {
        Tone::Faint
    };
    let word = output.toned(tone, &printable(&format!("{word}:")));
    let text = format!("{}: {}", check.text("title"), check.text("seen"));
    output.line(&format!("{word} {}", printable(&text)));
    if !is_problem {
        return;
    }
    output.line(&printable(&format!("  {}", check.text("why"))));
    if let Some(fix) = output.fix(check.maybe("fix")) {
        output.line(&fix);
    }
}

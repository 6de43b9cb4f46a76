//! `link`: state of the connection to the control plane, the side that is broken, earlier sessions,
//! and undelivered data.

use serde_json::{Value, json};

use super::{
    args::Args,
    output::{Output, Tone, ago, columns, printable},
    socket::{self, Ask},
    status,
    table::{CONFIG, Command, JSON, SET, SOCKET},
    view::View,
};
use crate::{
    core::{
        link::LinkState,
        time::{Wall, in_words},
    },
    error::{Exit, Result},
    host::clock,
    wire::api::{DIAGNOSIS_PATH, LINK_PATH},
};

/// Maximum number of outages shown; `--json` has all.
const OUTAGES_MAX: usize = 10;

/// `link`.
pub(super) static COMMAND: Command = Command {
    name: "link",
    about: "Show the link to the control plane, and test the connection",
    options: &[SOCKET, CONFIG, SET, JSON],
    notes: "Tests each step from the network interface to the control plane; takes a few seconds if something is broken.",
    examples: &["pipeops-agent link", "pipeops-agent link --json"],
    exit: "0 the link is up or no control plane is configured, 1 it is down, 2 no agent answers.",
    run: Some(link),
    ..Command::BARE
};

fn link(args: &Args, output: &mut Output) -> Result<Exit> {
    let cannot = "the agent refused to return the state of its link";
    let report = socket::request(args, &Ask::Get(LINK_PATH), cannot)?;
    // The other facts are printed even if the connection cannot be tested.
    let diagnosis = diagnosis(args);
    let view = View::new(&report);
    let state = view.at("link").text("state");
    let known = LinkState::of(state);
    let is_off = known == Some(LinkState::Off);
    let is_up = known == Some(LinkState::Ready);
    if args.has("json") {
        let diagnosis =
            diagnosis.unwrap_or_else(|error| json!({ "error": super::error_json(&error) }));
        let mut whole = report.clone();
        if let Some(fields) = whole.as_object_mut() {
            fields.insert("diagnosis".to_owned(), diagnosis);
        }
        output.json(&whole);
    } else {
        let now = clock::now().wall;
        let tone = match state {
            _ if is_up => Tone::Good,
            _ if is_off => Tone::Faint,
            _ => Tone::Bad,
        };
        let steps = diagnosis
            .as_ref()
            .map(|it| connection(View::new(it), output));
        let mut above = steps
            .as_ref()
            .map_or_else(|_| String::new(), |steps| steps.join("\n"));
        // The reason stands at the failed step, and nowhere else.
        let state = status::sentence(&status::row(view.at("row"), now, &above));
        output.line(&output.toned(tone, &printable(&state)));
        output.line("");
        above.push_str(&state);
        match &steps {
            Ok(lines) => lines.iter().for_each(|line| output.line(line)),
            Err(error) => output.warning(error),
        }
        print_outages(view, (now, &above), output);
        print_waiting(view, now, output);
    }
    Ok(if is_up || is_off {
        Exit::Fine
    } else {
        Exit::Problem
    })
}

/// Connection to the control plane, tested step by step.
pub(super) fn diagnosis(args: &Args) -> Result<Value> {
    let cannot = "the agent refused to test the connection to the control plane";
    socket::request(args, &Ask::Test(DIAGNOSIS_PATH), cannot)
}

/// The broken side, and every step; the reason is at its step only.
fn connection(diagnosis: View<'_>, output: &Output) -> Vec<String> {
    let sentence = diagnosis.text("sentence");
    let mut steps = steps(diagnosis, output);
    let is_in_a_step = |why: &str| steps.iter().any(|line| line.contains(&printable(why)));
    let heading = match sentence.split_once(": ") {
        Some((who, why)) if is_in_a_step(why) => who,
        Some(_) | None => sentence,
    };
    let heading = printable(&status::sentence(heading));
    steps.insert(0, output.toned(Tone::Strong, &heading));
    steps
}

/// The steps in lines, with the fix below those that failed.
pub(super) fn steps(diagnosis: View<'_>, output: &Output) -> Vec<String> {
    let steps = diagnosis.list("steps");
    let rows: Vec<_> = steps.clone().map(step).collect();
    let lines = columns(&rows).into_iter().zip(steps);
    let lines = lines.flat_map(|(line, step)| {
        let tone = match step.text("outcome") {
            "ok" => None,
            "failed" => Some(Tone::Bad),
            _ => Some(Tone::Faint),
        };
        let line = format!("  {line}");
        let line = tone.map_or_else(|| line.clone(), |tone| output.toned(tone, &line));
        std::iter::once(line).chain(output.fix(step.maybe("fix")).map(|fix| format!("  {fix}")))
    });
    lines.collect()
}

fn step(step: View<'_>) -> Vec<String> {
    let took = step.number("took_ms");
    let took = took.map_or_else(String::new, |took| format!(" ({took:.0} ms)"));
    let seen = format!("{}{took}", step.text("seen"));
    let cells = [step.text("outcome"), step.text("title"), &seen];
    cells.map(printable).to_vec()
}

fn print_outages(report: View<'_>, (now, above): (Wall, &str), output: &mut Output) {
    let outages = report.list("outages");
    let count = outages.clone().count();
    if count == 0 {
        return;
    }
    output.line("");
    output.line(&output.toned(Tone::Strong, "Outages, newest first"));
    for outage in outages.take(OUTAGES_MAX) {
        let from = Wall::parse_rfc3339(outage.text("from"));
        let to = outage.maybe("to").and_then(Wall::parse_rfc3339);
        let lasted = from
            .zip(Some(to.unwrap_or(now)))
            .and_then(|(from, to)| u64::try_from(to.millis().saturating_sub(from.millis())).ok())
            .map(|millis| in_words(std::time::Duration::from_millis(millis)));
        let lasted = lasted.unwrap_or_else(|| "some time".to_owned());
        let end = if to.is_some() { "" } else { " so far" };
        let why = outage.text("why");
        let why = if status::is_told(why, above) { "" } else { why };
        let line = format!("  {}  for {lasted}{end}  {why}", outage.text("from"));
        let line = line.trim_end();
        output.line(&printable(line));
    }
    if count > OUTAGES_MAX {
        output.line("  more: pipeops-agent link --json");
    }
}

fn print_waiting(report: View<'_>, now: Wall, output: &mut Output) {
    let waiting = report.list("destinations");
    let heads = ["DESTINATION", "STREAM", "WAITING", "OLDEST", "LOST"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    rows.extend(waiting.map(|waiting| {
        let oldest = waiting.maybe("oldest").and_then(|oldest| ago(oldest, now));
        let count = |name: &str| waiting.count(name).unwrap_or(0).to_string();
        vec![
            printable(waiting.text("name")),
            printable(waiting.text("stream")),
            count("records"),
            oldest.map_or_else(|| "-".to_owned(), |ago| format!("{ago} ago")),
            count("lost"),
        ]
    }));
    if rows.len() == 1 {
        return;
    }
    output.line("");
    for (index, line) in columns(&rows).iter().enumerate() {
        let line = match index {
            0 => output.toned(Tone::Strong, line),
            _ => line.clone(),
        };
        output.line(&line);
    }
}

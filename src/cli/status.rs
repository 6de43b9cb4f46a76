//! `status`: the verdict, then problems with their fixes, then the rows. `--watch` repeats it.

use std::time::Duration;

use serde_json::Value;

use super::{
    args::Args,
    load,
    output::{Output, Tone, ago, columns, printable},
    socket::{self, Ask},
    table::{CONFIG, Command, JSON, Opt, SET, SOCKET},
    view::View,
};
use crate::{
    core::{
        format::joined,
        time::Wall,
        verdict::{UNREACHABLE, roughly},
    },
    error::{Error, Exit, Result},
    host::clock,
    wire::api,
};

/// Interval of `--watch`.
const WATCH_EVERY: Duration = Duration::from_secs(2);

/// `status`.
pub(super) static COMMAND: Command = Command {
    name: "status",
    about: "Show the agent's status",
    options: &[
        Opt::flag(
            "watch",
            "Keep watching: redraws on a terminal, prints a line for each change in a pipe",
        )
        .short('w'),
        Opt::flag(
            "alive",
            "Only check that the agent answers within five seconds (used by its service)",
        ),
        SOCKET,
        CONFIG,
        SET,
        JSON,
    ],
    examples: &[
        "pipeops-agent status",
        "pipeops-agent status --watch",
        "pipeops-agent status --json",
    ],
    notes: "To explain a message: pipeops-agent why.",
    exit: "0 healthy, 1 a problem was found, 2 no agent answers. With --watch, Ctrl-C ends it (130). With --alive: 0 it answers, 1 it does not.",
    run: Some(status),
    ..Command::BARE
};

fn status(args: &Args, output: &mut Output) -> Result<Exit> {
    if args.has("watch") {
        return Ok(watch(args, output));
    }
    if args.has("alive") {
        return Ok(alive(args, output));
    }
    let status = asked(args, &Ask::Test(api::STATUS_FRESH_PATH))?;
    if args.has("json") {
        // As received: a newer agent may send more than this program knows.
        output.json(&status);
    } else {
        for line in lines(View::new(&status), clock::now().wall, output) {
            output.line(&line);
        }
    }
    Ok(if is_wrong(View::new(&status)) {
        Exit::Problem
    } else {
        Exit::Fine
    })
}

/// Prints the sentence of an agent whose main loop answers.
fn alive(args: &Args, output: &mut Output) -> Exit {
    let (exit, text) = match asked(args, &Ask::Get(api::STATUS_PATH)) {
        Ok(status) => (Exit::Fine, sentence(View::new(&status).text("summary"))),
        Err(error) => (Exit::Problem, error.sentence()),
    };
    output.line(&printable(&text));
    exit
}

/// The agent's status.
pub(super) fn fetch(args: &Args) -> Result<Value> {
    asked(args, &Ask::Test(api::STATUS_PATH))
}

fn asked(args: &Args, ask: &Ask<'_>) -> Result<Value> {
    let sockets = socket::candidates(args, &load(args));
    let answer = socket::ask(&sockets, ask).map_err(|silence| silence.error)?;
    let status = answer.fine("the agent refused to return its status")?;
    // Absent fields are accepted, so any JSON would do; but an agent has always something to say
    // about itself.
    if View::new(&status).text("summary").is_empty() {
        return Err(socket::unexpected("it has no summary"));
    }
    Ok(status)
}

/// Prints the status until it is interrupted or standard output has no reader.
fn watch(args: &Args, output: &mut Output) -> Exit {
    let is_drawn = output.is_drawn() && !args.has("json");
    let mut last = String::new();
    while !output.is_over() {
        let asked = fetch(args);
        let now = clock::now().wall;
        let shown = match &asked {
            Ok(status) if is_drawn => lines(View::new(status), now, output).join("\n"),
            Ok(status) => line(View::new(status)),
            Err(error) if args.has("json") => {
                serde_json::json!({ "error": super::error_json(error) }).to_string()
            }
            Err(error) => silent(error, output),
        };
        let news = match &asked {
            Ok(status) => changes(View::new(status)).to_string(),
            Err(_) => shown.clone(),
        };
        if is_drawn {
            let hint = format!("{}; ends with ctrl-C", now.rfc3339());
            output.draw(&format!("{shown}\n\n{}", output.toned(Tone::Faint, &hint)));
        } else if news != last {
            match &asked {
                // The whole status: the part that was compared is smaller.
                Ok(status) if args.has("json") => output.json_line(status),
                Err(error) if args.has("json") => {
                    output.json_line(&serde_json::json!({ "error": super::error_json(error) }));
                }
                Ok(_) | Err(_) => output.line(&format!("{} {shown}", now.rfc3339())),
            }
            last = news;
        }
        output.sleep(WATCH_EVERY);
    }
    Exit::Fine
}

fn silent(error: &Error, output: &Output) -> String {
    output.toned(Tone::Bad, &printable(&sentence(&error.sentence())))
}

/// Part of the status that counts as a change: without ages and counters, which always differ.
fn changes(status: View<'_>) -> Value {
    let code = code(status).unwrap_or_else(|| status.text("summary"));
    let parts = [
        status.at("conditions"),
        status.at("readiness").at("parts"),
        status.at("access"),
        status.at("link").at("state"),
    ];
    let parts = parts.iter().map(|part| part.json().clone());
    std::iter::once(Value::from(code)).chain(parts).collect()
}

/// The status in a line.
fn line(status: View<'_>) -> String {
    let summary = sentence(status.text("summary"));
    let rows = status.list("rows");
    let rows = rows.filter(|row| matches!(row.text("id"), "link" | "cluster"));
    let rows = rows.map(|row| format!("{} {}", row.text("id"), row.text("value")));
    let rows = rows.collect::<Vec<_>>().join(", ");
    printable(&format!("{summary} ({rows})"))
}

/// True if there is a problem; notes are none.
pub(super) fn is_wrong(status: View<'_>) -> bool {
    let mut conditions = status.list("conditions");
    conditions.any(|condition| condition.text("severity") != "note")
}

fn lines(status: View<'_>, now: Wall, output: &Output) -> Vec<String> {
    let mut lines = verdict(status, now, output);
    lines.push(String::new());
    let others = status.list("conditions").filter(|condition| {
        condition.maybe("because").is_none() && !is_verdict(*condition, status)
    });
    lines.extend(
        others
            .clone()
            .flat_map(|it| condition_lines(it, now, output)),
    );
    if others.clone().next().is_some() {
        lines.push(String::new());
    }
    let rows = status.list("rows").map(|it| {
        let text = row(it, now, "");
        vec![
            printable(&it.text("title").to_lowercase()),
            printable(&text),
        ]
    });
    lines.extend(columns(&rows.collect::<Vec<_>>()));
    lines
}

/// The verdict with its duration, the age of its evidence, its reason and its fix.
pub(super) fn verdict(status: View<'_>, now: Wall, output: &Output) -> Vec<String> {
    let verdict = status.at("verdict");
    let tone = match is_wrong(status) {
        true if status
            .list("conditions")
            .any(|it| it.text("severity") == "critical") =>
        {
            Tone::Bad
        }
        true => Tone::Doubtful,
        false => Tone::Good,
    };
    let summary = printable(&sentence(status.text("summary")));
    let mut lines = vec![format!(
        "{}{}",
        output.toned(tone, &summary),
        ages(verdict, now)
    )];
    let Some(worst) = status.list("conditions").find(|it| is_verdict(*it, status)) else {
        return lines;
    };
    let reason = printable(&sentence(worst.text("sentence")));
    if !summary.starts_with(&reason) {
        lines.push(format!("  {reason}"));
    }
    lines.extend(output.fix(worst.maybe("fix")));
    let follow = status.list("conditions");
    let follow = follow.filter(|it| it.maybe("because") == Some(worst.text("id")));
    let ids: Vec<_> = follow.map(|it| printable(it.text("id"))).collect();
    if !ids.is_empty() {
        let line = format!("  this also causes: {}", ids.join(", "));
        lines.push(output.toned(Tone::Faint, &line));
    }
    lines
}

/// The code of the verdict; `None` from an older agent.
fn code(status: View<'_>) -> Option<&str> {
    let code = status.at("verdict").maybe("code");
    code.filter(|code| !code.is_empty())
}

/// True if the verdict is about this condition.
fn is_verdict(condition: View<'_>, status: View<'_>) -> bool {
    match code(status) {
        Some(code) => condition.text("id") == code,
        None => condition.text("sentence") == status.text("summary"),
    }
}

/// Duration of the verdict and age of its evidence: ` (for 1 h, checked 8 s ago)`.
fn ages(verdict: View<'_>, now: Wall) -> String {
    // The sentence of a silent cluster has its age.
    let is_told = verdict.text("code") == UNREACHABLE;
    let since = verdict.maybe("since").filter(|_| !is_told);
    let since = since.and_then(|since| ago(since, now));
    let is_ok = verdict.text("severity") == "ok";
    let age = verdict.count("age_s").filter(|age| is_ok || *age > 0);
    let age = age.filter(|_| !is_told).map(Duration::from_secs);
    let parts = [
        since.map(|ago| format!("for {ago}")),
        age.map(|age| format!("checked {} ago", roughly(age))),
    ];
    match joined(parts).unwrap_or_default() {
        parts if parts.is_empty() => parts,
        parts => format!(" ({parts})"),
    }
}

/// True if the text is contained in a line above.
pub(super) fn is_told(text: &str, above: &str) -> bool {
    let text = printable(text);
    above.contains(&text) || above.contains(&sentence(&text))
}

/// The summary as a sentence that stands alone.
pub(super) fn sentence(summary: &str) -> String {
    let mut letters = summary.chars();
    match letters.next() {
        Some(first) => first.to_uppercase().chain(letters).collect(),
        None => "The agent returned no summary".to_owned(),
    }
}

/// A condition with how long it has held, and its fix below it.
pub(super) fn condition_lines(condition: View<'_>, now: Wall, output: &Output) -> Vec<String> {
    let severity = condition.text("severity");
    let word = output.toned(
        Tone::of_severity(severity),
        &printable(&format!("{severity}:")),
    );
    let since = ago(condition.text("since"), now);
    let since = since.map_or_else(String::new, |ago| format!(" (for {ago})"));
    let sentence = printable(condition.text("sentence"));
    let mut lines = vec![format!("{word} {sentence}{since}")];
    lines.extend(output.fix(condition.maybe("fix")));
    lines
}

/// A row in a line, without details that are contained in the lines above.
pub(super) fn row(row: View<'_>, now: Wall, above: &str) -> String {
    let since = row.maybe("since").and_then(|since| ago(since, now));
    let value = match since {
        Some(ago) => format!("{} for {ago}", row.text("value")),
        None => row.text("value").to_owned(),
    };
    let details = row.list("details").filter_map(|it| it.json().as_str());
    let details = details.filter(|detail| !is_told(detail, above));
    let parts = std::iter::once(value.as_str()).chain(details);
    parts.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::api::{Condition, Link, PartStatus, Readiness, Status, Verdict};

    fn now() -> Wall {
        Wall::parse_rfc3339("2026-06-16T06:00:00Z").unwrap()
    }

    fn view(status: &Status) -> Value {
        serde_json::to_value(status).unwrap()
    }

    fn text(status: &Status) -> String {
        let mut status = status.clone();
        status.rows = api::rows(&status);
        lines(View::new(&view(&status)), now(), &Output::plain()).join("\n")
    }

    #[test]
    fn the_truth_comes_first_then_what_to_do_about_it() {
        let status = Status {
            summary: "the control plane refuses the token; and one more condition".to_owned(),
            verdict: Verdict {
                code: "link.refused".to_owned(),
                severity: "critical".to_owned(),
                since: Some("2026-06-16T05:00:00Z".to_owned()),
                age_s: Some(3),
                ..Verdict::default()
            },
            conditions: vec![Condition {
                id: "link.refused".to_owned(),
                severity: "critical".to_owned(),
                since: "2026-06-16T05:00:00Z".to_owned(),
                sentence: "the control plane refuses the token: 401".to_owned(),
                fix: Some("write a new token".to_owned()),
                because: None,
            }],
            ..Status::default()
        };
        let text = text(&status);
        let wanted = "The control plane refuses the token; and one more condition (for 1 h, checked 3 s ago)\n  \
                      The control plane refuses the token: 401\n  fix: write a new token\n\n";
        assert!(text.starts_with(wanted), "{text}");
        assert!(is_wrong(View::new(&view(&status))));
    }

    #[test]
    fn nothing_is_said_twice_and_what_follows_from_a_cause_is_only_named() {
        let condition = |id: &str, sentence: &str, because: Option<&str>| Condition {
            id: id.to_owned(),
            severity: "warning".to_owned(),
            sentence: sentence.to_owned(),
            because: because.map(str::to_owned),
            ..Condition::default()
        };
        let status = Status {
            summary: "no control plane: connection refused".to_owned(),
            verdict: Verdict {
                code: "link.down".to_owned(),
                ..Verdict::default()
            },
            conditions: vec![
                condition("link.down", "no control plane: connection refused", None),
                condition("lease.rbac", "no Lease", Some("link.down")),
            ],
            link: Link {
                state: "waiting".to_owned(),
                why: Some("connection refused".to_owned()),
                outages: 1,
                last_outage_why: Some("connection refused".to_owned()),
                ..Link::default()
            },
            readiness: Readiness {
                parts: vec![PartStatus {
                    id: "link".to_owned(),
                    ready: false,
                    sentence: Some("no control plane: connection refused".to_owned()),
                }],
                ..Readiness::default()
            },
            ..Status::default()
        };
        let text = text(&status);
        assert_eq!(text.matches("connection refused").count(), 1, "{text}");
        assert!(text.contains("this also causes: lease.rbac"), "{text}");
        assert!(!text.contains("no Lease"), "{text}");
    }

    #[test]
    fn a_note_is_told_but_nothing_is_wrong() {
        let status = Status {
            conditions: vec![Condition {
                severity: "note".to_owned(),
                ..Condition::default()
            }],
            ..Status::default()
        };
        assert!(!is_wrong(View::new(&view(&status))));
    }

    #[test]
    fn what_is_not_known_is_left_out_and_never_invented() {
        let text = text(&Status {
            summary: "everything works".to_owned(),
            ..Status::default()
        });
        assert!(text.starts_with("Everything works\n"), "{text}");
        assert!(
            !text.contains('%') && !text.contains("null") && !text.contains("nodes"),
            "{text}"
        );
    }

    #[test]
    fn an_agent_cannot_command_the_terminal() {
        let status = Status {
            summary: "a\u{1b}[2Jb".to_owned(),
            ..Status::default()
        };
        assert!(!text(&status).contains('\u{1b}'));
    }

    #[test]
    fn the_page_is_told_with_what_is_compared_where_others_reach_it() {
        let mut status = Status::default();
        status.dashboard.urls = vec!["http://127.0.0.1:7480".to_owned()];
        let here = text(&status);
        assert!(here.ends_with("dashboard  http://127.0.0.1:7480"), "{here}");
        status.dashboard.urls = vec!["https://192.0.2.7:7480".to_owned()];
        status.dashboard.fingerprint = Some("AB:CD".to_owned());
        let open = text(&status);
        let wanted = "dashboard  https://192.0.2.7:7480, SHA-256 AB:CD";
        assert!(open.ends_with(wanted), "{open}");
    }

    #[test]
    fn ages_and_counters_are_no_change() {
        let mut status = Status::default();
        let before = changes(View::new(&view(&status)));
        status.uptime_s = 9;
        status.link.sent_bytes = 9;
        assert_eq!(changes(View::new(&view(&status))), before);
        status.link.state = "waiting".to_owned();
        assert_ne!(changes(View::new(&view(&status))), before);
    }
}

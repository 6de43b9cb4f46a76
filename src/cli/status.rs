//! `status`: the verdict, then problems with their fixes, then the parts. `--watch` repeats it.

use std::time::Duration;

use serde_json::Value;

use super::{
    args::Args,
    load,
    output::{Output, Tone, ago, columns, printable, size},
    socket::{self, Ask},
    table::{CONFIG, Command, JSON, Opt, SET, SOCKET},
    view::View,
};
use crate::{
    core::{
        link::OFF,
        time::{Wall, in_words},
        verdict::{UNREACHABLE, roughly},
    },
    error::{Error, Exit, Result},
    host::clock,
    wire::api,
};

/// Interval of `--watch`.
const WATCH_EVERY: Duration = Duration::from_secs(2);
/// Age from which numbers of the cluster are shown with it.
const AGED: Duration = Duration::from_secs(10);

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
    exit: "0 healthy, 1 a problem was found, 2 no agent answers. With --watch, Ctrl-C ends it (130).",
    run: Some(status),
    ..Command::BARE
};

fn status(args: &Args, output: &mut Output) -> Result<Exit> {
    if args.has("watch") {
        return Ok(watch(args, output));
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

/// The agent's status.
pub(super) fn fetch(args: &Args) -> Result<Value> {
    asked(args, &Ask::Test(api::STATUS_PATH))
}

fn asked(args: &Args, ask: &Ask<'_>) -> Result<Value> {
    let sockets = socket::candidates(args, &load(args));
    let answer = socket::ask(&sockets, ask).map_err(|silence| silence.error)?;
    let status = answer.fine("the agent refused to return its status")?;
    // Absent fields are accepted, so any JSON would do; but an agent has always something to say about itself.
    if View::new(&status).text("summary").is_empty() {
        return Err(socket::odd("it has no summary"));
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
        output.rest(WATCH_EVERY);
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
    let (link, cluster) = (status.at("link"), status.at("cluster"));
    let parts = [("link", link), ("cluster", cluster)];
    let parts = parts.map(|(name, part)| format!("{name} {}", part.text("state")));
    printable(&format!(
        "{} ({})",
        sentence(status.text("summary")),
        parts.join(", ")
    ))
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
        condition.maybe("because").is_none() && !is_the_verdict(*condition, status)
    });
    lines.extend(
        others
            .clone()
            .flat_map(|it| condition_lines(it, now, output)),
    );
    if others.clone().next().is_some() {
        lines.push(String::new());
    }
    // Nothing is repeated.
    let above = lines.join("\n");
    let link_part = status.at("link");
    let rows = [
        ("link", link(link_part, now, &above)),
        ("cluster", cluster(status.at("cluster"), &above)),
        ("host", host(status.at("host"))),
        ("access", access(status.at("access"))),
        ("traffic", traffic(status.at("load"), link_part)),
        ("agent", agent(status)),
    ];
    let page = page(status.at("dashboard"));
    let unready = unready(status.at("readiness"), &above);
    let rows = rows
        .into_iter()
        .chain(page)
        .chain(unready.map(|text| ("not ready", text)));
    let rows = rows.map(|(name, text)| vec![name.to_owned(), printable(&text)]);
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
    let Some(worst) = status
        .list("conditions")
        .find(|it| is_the_verdict(*it, status))
    else {
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
fn is_the_verdict(condition: View<'_>, status: View<'_>) -> bool {
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
    match joined(parts) {
        parts if parts.is_empty() => parts,
        parts => format!(" ({parts})"),
    }
}

/// Parts that are not ready, with reasons that are not shown above; `None` if all are ready.
fn unready(readiness: View<'_>, above: &str) -> Option<String> {
    let parts = readiness.list("parts");
    let parts = parts.filter(|part| part.flag("ready") == Some(false));
    let parts = parts.filter_map(|part| match part.maybe("sentence") {
        Some(why) if is_told(why, above) => None,
        Some(why) => Some(format!("{} ({why})", part.text("id"))),
        None => Some(part.text("id").to_owned()),
    });
    let parts = parts.collect::<Vec<_>>().join(", ");
    (!parts.is_empty()).then_some(parts)
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
        None => "The agent returned no version".to_owned(),
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

/// The parts that are known, with commas between them.
fn joined<const N: usize>(parts: [Option<String>; N]) -> String {
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn named(part: View<'_>, name: &str) -> Option<String> {
    part.maybe(name).map(str::to_owned)
}

fn duration(part: View<'_>, name: &str) -> Option<String> {
    let seconds = Duration::try_from_secs_f64(part.number(name)?).ok()?;
    Some(in_words(seconds))
}

/// The link in a line.
pub(super) fn link(link: View<'_>, now: Wall, above: &str) -> String {
    let state = link.text("state");
    let since = link.maybe("since").and_then(|since| ago(since, now));
    joined([
        Some(match since {
            Some(ago) => format!("{state} for {ago}"),
            None => state.to_owned(),
        }),
        named(link, "why").filter(|why| !is_told(why, above)),
        named(link, "endpoint"),
        duration(link, "next_attempt_s").map(|wait| format!("next attempt in {wait}")),
        link.number("rtt_ms")
            .map(|rtt| format!("round trip {rtt:.1} ms")),
        match (link.count("outages"), link.maybe("last_outage_why")) {
            (None | Some(0), _) => None,
            (Some(1), Some(why)) if !is_told(why, above) => Some(format!("1 outage ({why})")),
            (Some(count), Some(why)) if !is_told(why, above) => {
                Some(format!("{count} outages (the last: {why})"))
            }
            (Some(count), Some(_) | None) => Some(format!("outages: {count}")),
        },
    ])
}

fn cluster(cluster: View<'_>, above: &str) -> String {
    joined([
        Some(match cluster.text("state") {
            "none" => "no cluster; name one with KUBECONFIG or agent.kubeconfig".to_owned(),
            state => state.to_owned(),
        }),
        named(cluster, "why").filter(|why| !is_told(why, above)),
        numbers(cluster),
        cluster
            .maybe("version")
            .map(|version| format!("Kubernetes {version}")),
        named(cluster, "server"),
    ])
}

/// Nodes and Pods, with their age where it is more than that of a cluster that answers.
fn numbers(cluster: View<'_>) -> Option<String> {
    let nodes = match (cluster.count("nodes_ready"), cluster.count("nodes")) {
        (Some(ready), Some(nodes)) => Some(format!("{ready} of {nodes} nodes ready")),
        (None, Some(nodes)) => Some(format!("{nodes} nodes")),
        (_, None) => None,
    };
    let broken = cluster.count("pods_not_ready").filter(|broken| *broken > 0);
    let pods = cluster.count("pods").map(|pods| match broken {
        Some(broken) => format!("{pods} pods, {broken} of them not ready"),
        None => format!("{pods} pods"),
    });
    let text = Some(joined([nodes, pods])).filter(|text| !text.is_empty())?;
    let age = cluster.count("age_s").map(Duration::from_secs);
    Some(match age.filter(|age| *age >= AGED) {
        Some(age) => format!("{text}, {} ago", roughly(age)),
        None => text,
    })
}

fn host(host: View<'_>) -> String {
    let share = |name: &str, percent: &str, bytes: &str| {
        let percent = host.number(percent)?;
        Some(match host.count(bytes) {
            Some(bytes) => format!("{name} {percent:.0} % of {}", size(bytes)),
            None => format!("{name} {percent:.0} %"),
        })
    };
    joined([
        named(host, "hostname"),
        named(host, "os"),
        host.count("cores").map(|cores| match cores {
            1 => "1 core".to_owned(),
            _ => format!("{cores} cores"),
        }),
        share("CPU", "cpu_percent", ""),
        share("memory", "memory_percent", "memory_bytes"),
        share("disk", "disk_percent", "disk_bytes"),
        named(host, "address"),
        duration(host, "uptime_s").map(|time| format!("up {time}")),
    ])
}

fn access(access: View<'_>) -> String {
    match (access.text("level"), access.maybe("tightened_from")) {
        ("", _) => "not known".to_owned(),
        (level, None) => level.to_owned(),
        (level, Some(configured)) => {
            format!("{level}, restricted on this machine; configured: {configured}")
        }
    }
}

/// Address of the page, and the fingerprint to compare from another machine.
fn page(dashboard: View<'_>) -> Vec<(&'static str, String)> {
    let urls = dashboard.list("urls");
    let urls: Vec<_> = urls.filter_map(|url| url.json().as_str()).collect();
    let mut rows = Vec::new();
    if !urls.is_empty() {
        rows.push(("page", urls.join(", ")));
    }
    if let Some(fingerprint) = dashboard.maybe("fingerprint") {
        rows.push(("", format!("SHA-256 {fingerprint}")));
    }
    rows
}

fn traffic(load: View<'_>, link: View<'_>) -> String {
    let some = |name: &str| load.count(name).filter(|count| *count > 0);
    let bytes = |name: &str| size(link.count(name).unwrap_or(0));
    joined([
        Some(match load.count("requests").unwrap_or(0) {
            1 => "1 request".to_owned(),
            count => format!("{count} requests"),
        }),
        some("exchanges").map(|count| format!("{count} running")),
        some("waiting").map(|count| format!("{count} waiting")),
        some("streams").map(|count| format!("{count} streams")),
        some("queued_bytes").map(|bytes| format!("{} queued", size(bytes))),
        some("spooled_bytes").map(|bytes| format!("{} spooled", size(bytes))),
        Some(format!("{} in", bytes("received_bytes"))),
        Some(format!("{} out", bytes("sent_bytes"))),
    ])
}

fn agent(status: View<'_>) -> String {
    joined([
        Some(format!("version {}", status.text("version"))),
        named(status, "agent_id"),
        match (status.maybe("cluster_name"), status.maybe("cluster_id")) {
            (Some(name), Some(id)) => Some(format!("cluster {name} ({id})")),
            (Some(name), None) if status.at("link").text("state") == OFF => Some(name.to_owned()),
            (Some(name), None) => Some(format!("cluster {name}, not registered yet")),
            (None, Some(id)) => Some(format!("cluster {id}")),
            (None, None) => None,
        },
        duration(status, "uptime_s").map(|time| format!("up {time}")),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::api::{Cluster, Condition, Link, Part, Readiness, Status, Verdict};

    fn now() -> Wall {
        Wall::parse_rfc3339("2026-06-16T06:00:00Z").unwrap()
    }

    fn view(status: &Status) -> Value {
        serde_json::to_value(status).unwrap()
    }

    fn text(status: &Status) -> String {
        lines(View::new(&view(status)), now(), &Output::plain()).join("\n")
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
                parts: vec![Part {
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
    fn numbers_of_a_cluster_that_is_silent_have_their_age() {
        let cluster = Cluster {
            state: "ready".to_owned(),
            nodes: Some(1),
            nodes_ready: Some(1),
            pods: Some(7),
            age_s: Some(40),
            ..Cluster::default()
        };
        let mut status = Status {
            cluster,
            ..Status::default()
        };
        let aged = "1 of 1 nodes ready, 7 pods, 40 s ago";
        assert!(text(&status).contains(aged), "{}", text(&status));
        status.cluster.age_s = Some(3);
        assert!(!text(&status).contains("ago"), "{}", text(&status));
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
    fn what_was_tightened_here_shows() {
        let mut status = Status::default();
        status.access.level = "off".to_owned();
        assert!(
            text(&status).contains("access   off\n"),
            "{}",
            text(&status)
        );
        status.access.tightened_from = Some("managed".to_owned());
        let wanted = "access   off, restricted on this machine; configured: managed\n";
        assert!(text(&status).contains(wanted), "{}", text(&status));
    }

    #[test]
    fn a_part_that_is_not_ready_is_named_with_its_reason() {
        let part = |id: &str, ready, sentence: Option<&str>| Part {
            id: id.to_owned(),
            ready,
            sentence: sentence.map(str::to_owned),
        };
        let status = Status {
            readiness: Readiness {
                parts: vec![
                    part("link", false, Some("the token is refused")),
                    part("store", true, None),
                ],
                ..Readiness::default()
            },
            ..Status::default()
        };
        let text = text(&status);
        assert!(
            text.ends_with("not ready  link (the token is refused)"),
            "{text}"
        );
    }

    #[test]
    fn the_page_is_told_with_what_is_compared_where_others_reach_it() {
        let mut status = Status::default();
        status.dashboard.urls = vec!["http://127.0.0.1:7480".to_owned()];
        let here = text(&status);
        assert!(here.ends_with("page     http://127.0.0.1:7480"), "{here}");
        status.dashboard.urls = vec!["https://192.0.2.7:7480".to_owned()];
        status.dashboard.fingerprint = Some("AB:CD".to_owned());
        let open = text(&status);
        let wanted = "page     https://192.0.2.7:7480\n         SHA-256 AB:CD";
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

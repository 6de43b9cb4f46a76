//! `status`: asks the agent on its socket and tells it in the order in which a tired person needs it: the sentence of truth,
//! then what is wrong with its fix, then the parts.

use std::{path::PathBuf, time::Duration};

use serde::Deserialize;

use super::{
    given::Given,
    load,
    output::{Output, Tone, ago, columns, printable, size},
    socket::{self, Ask},
    table::{CONFIG, Command, JSON, SET, SOCKET},
};
use crate::{
    core::time::{Wall, in_words},
    error::{Exit, Result},
    host::clock,
    wire::api::{self, Cluster, Condition, Host, Link, Load, Status},
};

/// `status`.
pub(super) static COMMAND: Command = Command {
    name: "status",
    about: "Say how the agent of this machine is doing",
    options: &[SOCKET, CONFIG, SET, JSON],
    examples: &["pipeops-agent status", "pipeops-agent status --json"],
    exit: "0 when everything works, 1 when something does not, 2 when no agent answers.",
    run: Some(status),
    ..Command::BARE
};

fn status(given: &Given, output: &mut Output) -> Result<Exit> {
    let loaded = load(given);
    let (status, body) = fetch(&socket::candidates(given, &loaded))?;
    if given.has("json") {
        // As the agent said it: it may know more than this program.
        output.json(&body);
    } else {
        for line in told(&status, clock::now().wall, output) {
            output.line(&line);
        }
    }
    Ok(if is_wrong(&status) {
        Exit::Problem
    } else {
        Exit::Fine
    })
}

fn fetch(sockets: &[PathBuf]) -> Result<(Status, serde_json::Value)> {
    let answer =
        socket::ask(sockets, Ask::Get(api::STATUS_PATH)).map_err(|silence| silence.error)?;
    if answer.code != 200 {
        return Err(answer.refusal("the agent refuses to tell its status"));
    }
    let body = answer.json()?;
    let status = Status::deserialize(&body).map_err(|error| socket::odd(error.to_string()))?;
    // Absent fields are accepted, so any JSON would do; but an agent has always something to say about itself.
    if status.summary.is_empty() {
        return Err(socket::odd("it has no summary"));
    }
    Ok((status, body))
}

/// Notes are told, but nothing is wrong with them.
fn is_wrong(status: &Status) -> bool {
    status
        .conditions
        .iter()
        .any(|condition| condition.severity != "note")
}

fn told(status: &Status, now: Wall, output: &Output) -> Vec<String> {
    let tone = match is_wrong(status) {
        true if status.conditions.iter().any(|c| c.severity == "critical") => Tone::Bad,
        true => Tone::Doubtful,
        false => Tone::Good,
    };
    let mut lines = vec![
        output.toned(tone, &printable(&sentence(&status.summary))),
        String::new(),
    ];
    for condition in &status.conditions {
        lines.extend(told_condition(condition, now, output));
    }
    if !status.conditions.is_empty() {
        lines.push(String::new());
    }
    let rows = [
        ("link", link(&status.link, now)),
        ("cluster", cluster(&status.cluster)),
        ("host", host(&status.host)),
        ("access", access(status)),
        ("traffic", traffic(&status.load, &status.link)),
        ("agent", agent(status)),
    ];
    let rows = rows.map(|(name, text)| vec![name.to_owned(), printable(&text)]);
    lines.extend(columns(&rows));
    lines
}

/// The summary as a sentence that stands alone.
fn sentence(summary: &str) -> String {
    let mut letters = summary.chars();
    match letters.next() {
        Some(first) => first.to_uppercase().chain(letters).collect(),
        None => "The agent says nothing about itself".to_owned(),
    }
}

fn told_condition(condition: &Condition, now: Wall, output: &Output) -> Vec<String> {
    let tone = match condition.severity.as_str() {
        "critical" => Tone::Bad,
        "note" => Tone::Faint,
        _ => Tone::Doubtful,
    };
    let word = output.toned(tone, &printable(&format!("{}:", condition.severity)));
    let since = ago(&condition.since, now).map_or_else(String::new, |ago| format!(" (for {ago})"));
    let mut lines = vec![format!("{word} {}{since}", printable(&condition.sentence))];
    if let Some(fix) = &condition.fix {
        lines.push(format!(
            "  {} {}",
            output.toned(Tone::Strong, "fix:"),
            printable(fix)
        ));
    }
    lines
}

/// The parts that are known, with commas between them.
fn joined(parts: impl IntoIterator<Item = Option<String>>) -> String {
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn link(link: &Link, now: Wall) -> String {
    let since = link.since.as_deref().and_then(|since| ago(since, now));
    let state = match since {
        Some(ago) => format!("{} for {ago}", link.state),
        None => link.state.clone(),
    };
    joined([
        Some(state),
        link.why.clone(),
        link.endpoint.clone(),
        link.next_attempt_s
            .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
            .map(|wait| format!("next attempt in {}", in_words(wait))),
        link.rtt_ms.map(|rtt| format!("round trip {rtt:.1} ms")),
        match (link.outages, &link.last_outage_why) {
            (0, _) => None,
            (1, Some(why)) => Some(format!("1 outage ({why})")),
            (count, Some(why)) => Some(format!("{count} outages (the last: {why})")),
            (count, None) => Some(format!("outages: {count}")),
        },
    ])
}

fn cluster(cluster: &Cluster) -> String {
    joined([
        Some(match cluster.state.as_str() {
            "none" => "no cluster; name one with KUBECONFIG or agent.kubeconfig".to_owned(),
            state => state.to_owned(),
        }),
        cluster.why.clone(),
        match (cluster.nodes_ready, cluster.nodes) {
            (Some(ready), Some(nodes)) => Some(format!("{ready} of {nodes} nodes ready")),
            (None, Some(nodes)) => Some(format!("{nodes} nodes")),
            (_, None) => None,
        },
        cluster.pods.map(|pods| format!("{pods} pods")),
        cluster
            .version
            .as_ref()
            .map(|version| format!("Kubernetes {version}")),
        cluster.server.clone(),
    ])
}

fn host(host: &Host) -> String {
    let share = |name: &str, percent: Option<f64>, bytes: Option<u64>| match (percent, bytes) {
        (Some(percent), Some(bytes)) => Some(format!("{name} {percent:.0} % of {}", size(bytes))),
        (Some(percent), None) => Some(format!("{name} {percent:.0} %")),
        (None, _) => None,
    };
    joined([
        host.hostname.clone(),
        host.os.clone(),
        host.cores.map(|cores| match cores {
            1 => "1 core".to_owned(),
            _ => format!("{cores} cores"),
        }),
        share("CPU", host.cpu_percent, None),
        share("memory", host.memory_percent, host.memory_bytes),
        share("disk", host.disk_percent, host.disk_bytes),
        host.address.clone(),
        host.uptime_s
            .map(|seconds| format!("up {}", in_words(Duration::from_secs(seconds)))),
    ])
}

fn access(status: &Status) -> String {
    let access = &status.access;
    match (access.level.as_str(), &access.tightened_from) {
        ("", _) => "not known".to_owned(),
        (level, None) => level.to_owned(),
        (level, Some(configured)) => {
            format!("{level}, tightened here; the configuration says {configured}")
        }
    }
}

fn traffic(load: &Load, link: &Link) -> String {
    joined([
        Some(format!("{} requests", load.exchanges)),
        (load.waiting > 0).then(|| format!("{} waiting", load.waiting)),
        (load.streams > 0).then(|| format!("{} streams", load.streams)),
        (load.queued_bytes > 0).then(|| format!("{} queued", size(load.queued_bytes))),
        (load.spooled_bytes > 0).then(|| format!("{} spooled", size(load.spooled_bytes))),
        Some(format!("{} in", size(link.received_bytes))),
        Some(format!("{} out", size(link.sent_bytes))),
    ])
}

fn agent(status: &Status) -> String {
    joined([
        Some(format!("version {}", status.version)),
        status.agent_id.clone(),
        match (&status.cluster_name, &status.cluster_id) {
            (Some(name), Some(id)) => Some(format!("cluster {name} ({id})")),
            (Some(name), None) => Some(format!("cluster {name}, not registered yet")),
            (None, Some(id)) => Some(format!("cluster {id}")),
            (None, None) => None,
        },
        Some(format!(
            "up {}",
            in_words(Duration::from_secs(status.uptime_s))
        )),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Wall {
        Wall::parse_rfc3339("2026-06-16T06:00:00Z").unwrap()
    }

    fn text(status: &Status) -> String {
        told(status, now(), &Output::plain()).join("\n")
    }

    #[test]
    fn the_truth_comes_first_then_what_to_do_about_it() {
        let status = Status {
            summary: "the control plane refuses the token".to_owned(),
            conditions: vec![Condition {
                id: "link.refused".to_owned(),
                severity: "critical".to_owned(),
                since: "2026-06-16T05:00:00Z".to_owned(),
                sentence: "the control plane refuses the token: 401".to_owned(),
                fix: Some("write a new token".to_owned()),
            }],
            ..Status::default()
        };
        let text = text(&status);
        assert!(text.starts_with(
            "The control plane refuses the token\n\n\
             critical: the control plane refuses the token: 401 (for 1 h)\n  fix: write a new token\n"
        ), "{text}");
        assert!(is_wrong(&status));
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
        assert!(!is_wrong(&status));
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
        let wanted = "access   off, tightened here; the configuration says managed\n";
        assert!(text(&status).contains(wanted), "{}", text(&status));
    }
}

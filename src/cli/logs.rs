//! `logs`: the newest lines of the agent itself, or of a container of the cluster.

use std::{collections::VecDeque, time::Duration};

use serde_json::{Value, json};
use smol::{Timer, block_on};

use super::{
    access::escaped,
    events::lines,
    given::Given,
    output::{Output, Tone, printable},
    said::Said,
    socket::{self, Ask},
    table::{CONFIG, Command, JSON, Opt, SET, SOCKET, Takes},
};
use crate::{
    error::{Error, Exit, Result},
    wire::api::{LOGS_PATH, POD_LOGS_PATH},
};

/// How often `--follow` asks for the agent's own lines.
const FOLLOW_EVERY: Duration = Duration::from_secs(1);
/// Lines that are asked for each time.
const AT_ONCE: usize = 200;
/// How long a container may say nothing before the answer that does not follow is given up.
const SILENCE: Duration = Duration::from_secs(30);

/// `logs`.
pub(super) static COMMAND: Command = Command {
    name: "logs",
    about: "Show log lines of the agent, or of a container in the cluster",
    options: &[
        Opt::flag("follow", "Go on with what is written from now on").short('f'),
        Opt::value(
            "pod",
            Takes::Text,
            "NAMESPACE/POD",
            "The lines of this Pod instead of the agent's own",
        ),
        Opt::value(
            "container",
            Takes::Text,
            "NAME",
            "This container of the Pod; its first without it",
        )
        .short('c'),
        Opt::flag(
            "previous",
            "What the container wrote before it was started anew",
        ),
        Opt::value("tail", Takes::Text, "N", "So many of the newest")
            .short('n')
            .default("100"),
        SOCKET,
        CONFIG,
        SET,
        JSON,
    ],
    notes: "The agent's own older lines are in the journal: journalctl -u pipeops-agent.",
    examples: &[
        "pipeops-agent logs --tail 20",
        "pipeops-agent logs -f --pod shop/web-5d4f8",
        "pipeops-agent logs --pod kube-system/coredns-1 --previous",
    ],
    exit: "0 when they are told, 2 when no agent answers or there is no such Pod.",
    run: Some(logs),
    ..Command::BARE
};

fn logs(given: &Given, output: &mut Output) -> Result<Exit> {
    let tail = given.read("tail", lines)?.unwrap_or(AT_ONCE);
    match given.text("pod") {
        Some(pod) => of_pod(pod, tail, given, output),
        None if given.has("container") || given.has("previous") => {
            Err(Error::new("no Pod is named").fix("pipeops-agent logs --pod NAMESPACE/POD"))
        }
        None => of_agent(tail, given, output),
    }
}

fn of_agent(tail: usize, given: &Given, output: &mut Output) -> Result<Exit> {
    let found = newest(given, tail)?;
    if !given.has("follow") {
        if given.has("json") {
            output.json(&found);
        } else {
            for entry in Said::new(&found).list("lines") {
                output.line(&line(entry, output));
            }
        }
        return Ok(Exit::Fine);
    }
    let mut told: VecDeque<Value> = VecDeque::new();
    let mut next = Ok(found);
    let mut is_gone = false;
    while !output.is_over() {
        match next {
            Ok(found) => {
                is_gone = false;
                tell_new(&found, &mut told, given, output);
            }
            Err(error) if !is_gone => {
                is_gone = true;
                output.warning(&error);
            }
            Err(_) => {}
        }
        block_on(Timer::after(FOLLOW_EVERY));
        next = newest(given, AT_ONCE);
    }
    Ok(Exit::Fine)
}

fn newest(given: &Given, tail: usize) -> Result<Value> {
    let path = format!("{LOGS_PATH}?tail={tail}");
    socket::say(
        given,
        &Ask::Get(&path),
        "the agent refuses to show its log lines",
    )
}

/// Tells what follows the newest line that was told. Lines have no numbers: the last few that were told are looked for together.
fn tell_new(found: &Value, told: &mut VecDeque<Value>, given: &Given, output: &mut Output) {
    let found: Vec<&Value> = Said::new(found).list("lines").map(Said::json).collect();
    let known = (0..=found.len()).rev().find(|end| {
        let before = found.iter().take(*end).rev();
        let pairs = before.zip(told.iter().rev());
        *end == 0 || (!told.is_empty() && pairs.clone().all(|(new, old)| *new == old))
    });
    for entry in found.into_iter().skip(known.unwrap_or(0)) {
        let text = line(Said::new(entry), output);
        output.line(&if given.has("json") {
            entry.to_string()
        } else {
            text
        });
        told.push_back(entry.clone());
        if told.len() > 4 {
            told.pop_front();
        }
    }
}

/// A log line of the agent.
pub(super) fn line(entry: Said<'_>, output: &Output) -> String {
    let level = entry.text("level");
    format!(
        "{}  {}  {}",
        output.toned(Tone::Faint, &printable(entry.text("at"))),
        output.toned(Tone::of_severity(level), &printable(&format!("{level:<5}"))),
        printable(entry.text("text")).replace('\n', " ")
    )
}

fn of_pod(pod: &str, tail: usize, given: &Given, output: &mut Output) -> Result<Exit> {
    let Some((namespace, name)) = pod.split_once('/') else {
        return Err(
            Error::new(format!("{pod:?} does not say which namespace it is in"))
                .fix(format!("--pod default/{pod}")),
        );
    };
    let mut path = format!(
        "{POD_LOGS_PATH}?namespace={}&pod={}&tail={tail}",
        escaped(namespace),
        escaped(name)
    );
    if let Some(container) = given.text("container") {
        path = format!("{path}&container={}", escaped(container));
    }
    for (option, word) in [("follow", "&follow=1"), ("previous", "&previous=1")] {
        if given.has(option) {
            path.push_str(word);
        }
    }
    // A container that is followed may say nothing for days.
    let silence = (!given.has("follow")).then_some(SILENCE);
    let cannot = format!("cannot show the log of {pod}");
    let mut flow = socket::flow(given, &path, silence, &cannot)?;
    let mut all = Vec::new();
    while let Some(text) = flow.line() {
        let is_json = given.has("json");
        match given.has("follow") {
            true if is_json => output.line(&json!({ "text": text }).to_string()),
            false if is_json => all.push(text),
            _ => output.line(&printable(&text)),
        }
        if output.is_over() {
            return Ok(Exit::Fine);
        }
    }
    if given.has("json") && !given.has("follow") {
        output.json(&json!({ "lines": all }));
    }
    Ok(Exit::Fine)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(told: &mut VecDeque<Value>, lines: &[&str]) -> usize {
        let given =
            match super::super::given::parse(&super::super::PROGRAM, ["logs".into()].into_iter()) {
                Ok(super::super::given::Asked::Run(given)) => given,
                other => panic!("{other:?}"),
            };
        let lines: Vec<Value> = lines.iter().map(|text| json!({ "text": text })).collect();
        let before = told.back().cloned();
        tell_new(
            &json!({ "lines": lines }),
            told,
            &given,
            &mut Output::plain(),
        );
        let at = lines.iter().rposition(|line| Some(line) == before.as_ref());
        lines.len() - at.map_or(0, |at| at + 1)
    }

    #[test]
    fn only_what_is_new_is_told_and_a_line_may_come_twice() {
        let mut last = VecDeque::new();
        assert_eq!(told(&mut last, &["a", "b"]), 2);
        assert_eq!(told(&mut last, &["a", "b"]), 0);
        assert_eq!(last, [json!({ "text": "a" }), json!({ "text": "b" })]);
        told(&mut last, &["a", "b", "b"]);
        assert_eq!(last.len(), 3);
        told(&mut last, &["b", "b", "c"]);
        assert_eq!(last.back(), Some(&json!({ "text": "c" })));
        assert_eq!(last.len(), 4);
        // Too much was written meanwhile: all of it is new.
        told(&mut last, &["x", "y"]);
        assert_eq!(last.back(), Some(&json!({ "text": "y" })));
    }
}

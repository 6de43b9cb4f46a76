//! `logs`: the newest lines of the agent itself or of a container.

use std::time::Duration;

use serde_json::{Value, json};

use super::{
    access::escaped,
    args::Args,
    events::lines,
    follow::{Printer, RETRY_WAIT, Waiting, follow, number},
    output::{Output, Tone, printable},
    socket::{self, Ask, Flow, Lost},
    table::{CONFIG, Command, JSON, Opt, SET, SOCKET, Takes},
    view::View,
};
use crate::{
    core::time::Wall,
    error::{Error, Exit, Result, Retry},
    wire::api::{LOGS_PATH, POD_LOGS_PATH},
};

/// Lines of one request.
const LINES_MAX: usize = 200;
/// Longest silence of a container in an answer that does not follow.
const SILENCE: Duration = Duration::from_secs(30);

/// Option for new lines; `apps logs` has these, too.
pub(super) const FOLLOW: Opt = Opt::flag("follow", "Keep showing new lines").short('f');
/// Option for one container of several.
pub(super) const CONTAINER: Opt = Opt::value(
    "container",
    Takes::Text,
    "NAME",
    "Container of the Pod (default: the first)",
)
.short('c');
/// Option for the instance before the last restart.
pub(super) const PREVIOUS: Opt =
    Opt::flag("previous", "Logs of the previous instance of the container");
/// Option for the number of lines.
pub(super) const TAIL: Opt = Opt::value("tail", Takes::Text, "N", "Show the newest N")
    .short('n')
    .default("100");

/// `logs`.
pub(super) static COMMAND: Command = Command {
    name: "logs",
    about: "Show logs of the agent or of a container",
    options: &[
        FOLLOW,
        Opt::value(
            "pod",
            Takes::Text,
            "NAMESPACE/POD",
            "Logs of this Pod instead of the agent",
        ),
        CONTAINER,
        PREVIOUS,
        TAIL,
        SOCKET,
        CONFIG,
        SET,
        JSON,
    ],
    notes: "Older lines of the agent: journalctl -u pipeops-agent; with OpenRC /var/log/pipeops-agent.log.",
    examples: &[
        "pipeops-agent logs --tail 20",
        "pipeops-agent logs -f --pod shop/web-5d4f8",
        "pipeops-agent logs --pod kube-system/coredns-1 --previous",
    ],
    exit: "0 success, 2 no agent answers or there is no such Pod. With --follow, Ctrl-C ends it (130).",
    run: Some(logs),
    ..Command::BARE
};

fn logs(args: &Args, output: &mut Output) -> Result<Exit> {
    let tail = args.read("tail", lines)?.unwrap_or(LINES_MAX);
    match args.text("pod") {
        Some(pod) => match pod.split_once('/') {
            Some((namespace, name)) => {
                let container = args.text("container").unwrap_or_default();
                of_pod((namespace, name, container), tail, args, output)
            }
            None => Err(Error::new(format!("{pod:?} names no namespace"))
                .fix(format!("--pod default/{pod}"))),
        },
        None if args.has("container") || args.has("previous") => {
            Err(Error::new("no Pod is named").fix("pipeops-agent logs --pod NAMESPACE/POD"))
        }
        None => of_agent(tail, args, output),
    }
}

fn of_agent(tail: usize, args: &Args, output: &mut Output) -> Result<Exit> {
    let found = newest(args, tail.max(1))?;
    if !args.has("follow") {
        if args.has("json") {
            output.json(&found);
        } else {
            for entry in View::new(&found).list("lines").take(tail) {
                output.line(&line(entry, output));
            }
        }
        return Ok(Exit::Fine);
    }
    let last = View::new(&found).list("lines").next_back();
    let mut lines = OwnLines {
        args,
        last: last.map(|last| last.json().clone()),
    };
    let shown = View::new(&found).list("lines").rev().take(tail);
    for entry in shown.collect::<Vec<_>>().into_iter().rev() {
        lines.print(entry.json(), output);
    }
    follow(args, "logs", &mut lines, output)
}

/// Stream of the agent's own lines. Their numbers begin again with each start of the agent.
struct OwnLines<'a> {
    args: &'a Args,
    last: Option<Value>,
}

impl OwnLines<'_> {
    fn print(&self, entry: &Value, output: &mut Output) {
        if self.args.has("json") {
            output.json_line(entry);
        } else {
            let line = line(View::new(entry), output);
            output.line(&line);
        }
    }
}

impl Printer for OwnLines<'_> {
    fn read(&mut self, output: &mut Output) -> Result<()> {
        let found = newest(self.args, LINES_MAX)?;
        for entry in after(&found, self.last.as_ref()) {
            self.print(entry, output);
        }
        if let Some(last) = View::new(&found).list("lines").next_back() {
            self.last = Some(last.json().clone());
        }
        Ok(())
    }

    fn hear(&mut self, message: &Value, output: &mut Output) {
        let last = self.last.as_ref().and_then(number);
        if number(message).is_none_or(|number| last.is_none_or(|last| number > last)) {
            self.print(message, output);
            self.last = Some(message.clone());
        }
    }
}

/// Lines after the last printed one. If it is missing, lines were lost or the agent restarted: all
/// are new.
fn after<'a>(found: &'a Value, last: Option<&Value>) -> Vec<&'a Value> {
    let lines: Vec<&Value> = View::new(found).list("lines").map(View::json).collect();
    let place = lines.iter().position(|line| Some(*line) == last);
    lines
        .into_iter()
        .skip(place.map_or(0, |place| place + 1))
        .collect()
}

fn newest(args: &Args, tail: usize) -> Result<Value> {
    let path = format!("{LOGS_PATH}?tail={tail}");
    socket::request(
        args,
        &Ask::Get(&path),
        "the agent refused to return its log",
    )
}

/// A log line of the agent.
pub(super) fn line(entry: View<'_>, output: &Output) -> String {
    let level = entry.text("level");
    format!(
        "{}  {}  {}",
        output.toned(Tone::Faint, &printable(entry.text("at"))),
        output.toned(Tone::of_severity(level), &printable(&format!("{level:<5}"))),
        printable(entry.text("text")).replace('\n', " ")
    )
}

/// The log of a container: of this namespace, Pod and container, where one is named.
pub(super) fn of_pod(
    (namespace, name, container): (&str, &str, &str),
    tail: usize,
    args: &Args,
    output: &mut Output,
) -> Result<Exit> {
    let mut path = format!(
        "{POD_LOGS_PATH}?namespace={}&pod={}&tail={tail}",
        escaped(namespace),
        escaped(name)
    );
    if !container.is_empty() {
        path = format!("{path}&container={}", escaped(container));
    }
    for (option, word) in [("follow", "&follow=1"), ("previous", "&previous=1")] {
        if args.has(option) {
            path.push_str(word);
        }
    }
    let cannot = format!("cannot show the log of {namespace}/{name}");
    if args.has("follow") {
        return follow_pod(args, &path, &cannot, output);
    }
    let mut flow = socket::flow(args, &path, (Some(SILENCE), None), &cannot)?;
    let mut all = Vec::new();
    let mut is_empty = true;
    loop {
        let line = flow.line();
        is_empty &= !matches!(line, Ok(Some(_)));
        match line {
            Ok(Some(text)) if args.has("json") => all.push(text),
            Ok(Some(text)) => output.line(&printable(&text)),
            Ok(None) => {
                if is_empty && !args.has("json") {
                    let from = printable(&format!("{namespace}/{name} {container}"));
                    output.note(&format!("{} has written nothing", from.trim_end()));
                }
                break;
            }
            Err(Lost::Reader) => return Ok(Exit::Fine),
            // The part that came is worth more than nothing.
            Err(Lost::Agent(error)) => {
                output.warning(&error.within("the log is incomplete"));
                break;
            }
        }
        if output.is_over() {
            return Ok(Exit::Fine);
        }
    }
    if args.has("json") {
        output.json(&json!({ "lines": all }));
    }
    Ok(Exit::Fine)
}

/// Prints until the container ends or standard output has no reader. Lines written while the agent
/// is away are read later.
fn follow_pod(args: &Args, path: &str, cannot: &str, output: &mut Output) -> Result<Exit> {
    let mut waiting = Waiting::default();
    let mut last: Option<String> = None;
    let mut has_begun = false;
    loop {
        let path = match last.as_deref().and_then(second) {
            Some(second) => format!("{path}&since={second}"),
            None => path.to_owned(),
        };
        // A container that is followed may be silent for days.
        let opened = socket::flow(args, &path, (None, None), cannot);
        let error = match opened {
            Ok(mut flow) => {
                has_begun = true;
                waiting.over();
                match print_pod(&mut flow, &mut last, args, output) {
                    Err(Lost::Agent(error)) => error,
                    Ok(()) | Err(Lost::Reader) => return Ok(Exit::Fine),
                }
            }
            // Without `retry` it is an answer: there is no such Pod any more.
            Err(error) if !has_begun || error.retry != Retry::Soon => {
                return Err(error);
            }
            Err(error) => error,
        };
        waiting.warn_once(&error, output);
        if !output.sleep(RETRY_WAIT) {
            return Ok(Exit::Fine);
        }
    }
}

/// Prints the lines of a container after the last printed one.
fn print_pod(
    flow: &mut Flow,
    last: &mut Option<String>,
    args: &Args,
    output: &mut Output,
) -> std::result::Result<(), Lost> {
    let seen = last.clone();
    while let Some(text) = flow.line()? {
        let stamp = text.split(' ').next().unwrap_or_default();
        // The API counts from whole seconds: printed lines of the last one arrive again. Its
        // timestamps have one length.
        if Wall::parse_rfc3339(stamp).is_some() {
            if seen.as_deref().is_some_and(|seen| stamp <= seen) {
                continue;
            }
            *last = Some(stamp.to_owned());
        }
        if args.has("json") {
            output.json_line(&json!({ "text": text }));
        } else {
            output.line(&printable(&text));
        }
        if output.is_over() {
            return Err(Lost::Reader);
        }
    }
    Ok(())
}

/// The whole second of a stamp, as the API is asked for it.
fn second(stamp: &str) -> Option<String> {
    let (second, _) = stamp.split_once(['.', 'Z'])?;
    Some(format!("{second}Z"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_behind_the_last_line_is_told() {
        let line = |id: u64, text: &str| json!({ "id": id, "text": text });
        let found = json!({ "lines": [line(1, "a"), line(2, "a"), line(3, "b")] });
        let numbers = |last: Option<&Value>| {
            let lines = after(&found, last);
            lines.into_iter().filter_map(number).collect::<Vec<_>>()
        };
        assert_eq!(numbers(None), [1, 2, 3]);
        assert_eq!(numbers(Some(&line(2, "a"))), [3]);
        assert_eq!(numbers(Some(&line(3, "b"))), [0; 0]);
        // Of an agent that ran before.
        assert_eq!(numbers(Some(&line(2, "z"))), [1, 2, 3]);
    }

    #[test]
    fn a_stamp_is_asked_for_by_its_whole_second() {
        let stamp = "2026-06-16T05:00:01.123456789Z";
        assert_eq!(second(stamp).as_deref(), Some("2026-06-16T05:00:01Z"));
        assert_eq!(second("no stamp"), None);
    }
}

//! `apps logs`, `events` and `diff`.

use serde_json::{Value, json};

use super::{
    super::{
        args::Args,
        events::{line, lines},
        logs::{self, CONTAINER, FOLLOW, PREVIOUS, TAIL},
        output::{Output, printable},
        socket::{self, Ask},
        table::{CONFIG, Command, JSON, Opt, SET, SOCKET, Takes},
        view::View,
    },
    FILE, NAME, NAMESPACE, ONE, ask, path,
};
use crate::{
    error::{Error, Exit, Result},
    host::manifests::manifests,
};

/// Characters of a value that are shown in a difference.
const VALUE_CHARS_MAX: usize = 120;

/// `apps logs`.
pub(super) static LOGS: Command = Command {
    name: "logs",
    about: "Show the log of an app",
    options: &[
        FOLLOW,
        Opt::value(
            "pod",
            Takes::Text,
            "POD",
            "This Pod (default: the newest that is not ready, else the newest)",
        ),
        Opt {
            help: "Container of the Pod (default: the most telling one)",
            ..CONTAINER
        },
        PREVIOUS,
        TAIL,
        SOCKET,
        CONFIG,
        SET,
        JSON,
    ],
    arguments: &[NAME],
    examples: &[
        "pipeops-agent apps logs web",
        "pipeops-agent apps logs web --previous --tail 20",
    ],
    exit: "0 success, 2 there is no such app or no log. With --follow, Ctrl-C ends it (130).",
    run: Some(show_log),
    ..Command::BARE
};

/// `apps events`.
pub(super) static EVENTS: Command = Command {
    name: "events",
    about: "Show the cluster's events about an app and its Pods",
    notes: "The cluster deletes events after an hour; 'pipeops-agent events' has older ones.",
    examples: &["pipeops-agent apps events web"],
    run: Some(events),
    ..ONE
};

/// `apps diff`.
pub(super) static DIFF: Command = Command {
    name: "diff",
    about: "Show what manifests would change",
    options: &[
        FILE,
        Opt::value("app", Takes::Text, "NAME", "Name of the app"),
        NAMESPACE,
        SOCKET,
        CONFIG,
        SET,
        JSON,
    ],
    notes: "A server-side dry run: nothing is stored. Values of Secrets are not shown.",
    examples: &["sudo pipeops-agent apps diff -f web.yaml --app web"],
    exit: "0 no difference, 1 something would change, 2 it could not be tried.",
    run: Some(diff),
    ..Command::BARE
};

fn show_log(args: &Args, output: &mut Output) -> Result<Exit> {
    let app = args.text("NAME").unwrap_or_default();
    let tail = args.read("tail", lines)?.unwrap_or_default();
    let cannot = format!("cannot show the log of {app}");
    let found = socket::request(args, &Ask::Test(&path(app, "/pods")), &cannot)?;
    let pods: Vec<_> = View::new(&found).list("pods").collect();
    let asked = args.text("pod");
    let is_meant = |pod: &&View<'_>| asked.is_none_or(|name| pod.text("name") == name);
    let Some(pod) = pods.iter().find(is_meant) else {
        let names: Vec<_> = pods.iter().map(|pod| pod.text("name")).collect();
        let error = Error::new(cannot);
        return Err(match (asked, names.is_empty()) {
            (_, true) => error
                .why("it has no Pods")
                .fix(format!("pipeops-agent apps why {app}")),
            (_, false) => error
                .why("it has no such Pod")
                .fix(format!("--pod {}", names.join(" or --pod "))),
        });
    };
    if asked.is_none() && pods.len() > 1 && !args.has("json") {
        let name = printable(pod.text("name"));
        output.note(&format!("{name}, one of {} Pods: --pod POD", pods.len()));
    }
    let containers = pod.json().get("containers").and_then(Value::as_array);
    let first = containers.and_then(|all| all.first()?.as_str());
    let container = args.text("container").or(first).unwrap_or_default();
    let place = (pod.text("namespace"), pod.text("name"), container);
    logs::of_pod(place, tail, args, output)
}

fn events(args: &Args, output: &mut Output) -> Result<Exit> {
    let app = args.text("NAME").unwrap_or_default();
    let what = (path(app, "/events"), "the events are not shown");
    ask(args, output, (&what.0, what.1), |found, output| {
        output.line(&event_lines(found, output));
    })?;
    Ok(Exit::Fine)
}

fn event_lines(found: &Value, output: &Output) -> String {
    let events = View::new(found).list("events");
    let lines: Vec<_> = events.map(|event| line(event, output)).collect();
    if lines.is_empty() {
        return "no events: the cluster deletes them after an hour".to_owned();
    }
    lines.join("\n")
}

fn diff(args: &Args, output: &mut Output) -> Result<Exit> {
    let file = args.path("file");
    let (Some(file), Some(app)) = (file, args.text("app")) else {
        return Err(Error::new("no manifests or no app were named")
            .fix("sudo pipeops-agent apps diff -f FILE --app NAME"));
    };
    let body = json!({
        "namespace": args.text("namespace").unwrap_or_default(),
        "manifests": manifests(&file)?,
    });
    compare(args, output, (app, body))
}

/// Shows what the manifests of a body would change.
pub(super) fn compare(
    args: &Args,
    output: &mut Output,
    (app, body): (&str, Value),
) -> Result<Exit> {
    let ask = Ask::Fetch(&path(app, "/diff"), body);
    let found = socket::request(args, &ask, &format!("{app} was not tried"))?;
    let is_same = |object: &View<'_>| object.text("change") == "unchanged";
    let objects = || {
        View::new(&found)
            .list("objects")
            .filter(|one| !is_same(one))
    };
    let exit = if objects().next().is_none() {
        Exit::Fine
    } else {
        Exit::Problem
    };
    if args.has("json") {
        output.json(&found);
        return Ok(exit);
    }
    self::objects(&objects().collect::<Vec<_>>(), "", output);
    if exit == Exit::Fine {
        output.line("nothing would change");
    }
    Ok(exit)
}

/// Prints what changes of each object.
pub(super) fn objects(objects: &[View<'_>], indent: &str, output: &mut Output) {
    for object in objects {
        let (name, change) = (object.text("object"), object.text("change"));
        output.line(&printable(&format!("{indent}{name} {change}")));
        for field in object.list("fields") {
            let value = |name: &str| shortened(field.json().get(name));
            let mut text = format!("{indent}  {}", field.text("field"));
            if field.json().get("from").is_some() {
                text = format!("{text}: {} -> {}", value("from"), value("to"));
            }
            if let Some(why) = field.maybe("why") {
                text = format!("{text} ({why})");
            }
            output.line(&printable(&text));
        }
        if let Some(more) = object.count("more").filter(|more| *more > 0) {
            output.line(&format!("{indent}  and {more} fields more"));
        }
    }
}

/// A value in a line; a dash where there is none.
fn shortened(value: Option<&Value>) -> String {
    let text = match value {
        None | Some(Value::Null) => "-".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
    };
    let mut short: String = text.chars().take(VALUE_CHARS_MAX).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_app_without_events_is_told_so() {
        let output = Output::plain();
        let none = event_lines(&json!({ "events": [] }), &output);
        assert!(none.starts_with("no events: "), "{none}");
        let event = json!({"subject": "Pod web-1", "message": "it was killed"});
        let lines = event_lines(&json!({ "events": [event, event] }), &output);
        assert_eq!(lines.matches("it was killed").count(), 2, "{lines}");
    }
}

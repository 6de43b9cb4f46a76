//! `apps suggest`.

use serde_json::{Value, json};

use super::{
    super::{
        args::Args,
        output::{Output, indented, printable},
        socket::{self, Ask},
        table::{CONFIG, Command, JSON, Opt, SET, SOCKET},
        view::View,
    },
    ONE, WAIT,
    apply::follow,
    path,
};
use crate::error::{Exit, Result};

/// `apps suggest`.
pub(super) static SUGGEST: Command = Command {
    name: "suggest",
    about: "Suggest requests and limits that fit the usage of an app",
    options: &[
        Opt::flag("apply", "Deploy what is suggested"),
        WAIT,
        SOCKET,
        CONFIG,
        SET,
        JSON,
    ],
    notes: "A suggestion needs a day of usage of the version that runs. --apply makes a revision of its own: where it does not work, the last\n\
        good one is put back. Its sizes stay when the app is deployed again, for as long as the manifests say the same about a container.",
    examples: &[
        "pipeops-agent apps suggest web",
        "sudo pipeops-agent apps suggest web --apply --wait",
    ],
    exit: "0 suggested, or nothing to change (with --apply: accepted; with --wait: good), 1 bad or rolled back, 2 it cannot be said.",
    run: Some(suggest),
    ..ONE
};

fn suggest(args: &Args, output: &mut Output) -> Result<Exit> {
    let app = args.text("NAME").unwrap_or_default();
    let path = path(app, "/suggest");
    let cannot = format!("no requests and limits are suggested for {app}");
    let ask = if args.has("apply") {
        Ask::Fetch(&path, json!({}))
    } else {
        Ask::Test(&path)
    };
    let answer = socket::request(args, &ask, &cannot)?;
    let view = View::new(&answer);
    let is_accepted = view.maybe("change").is_some();
    if !args.has("json") {
        for container in view.list("containers") {
            print(container, output);
        }
        if is_accepted {
            output.line(&format!("undo: {}", printable(view.text("undo"))));
        } else {
            output.line(&printable(view.text("sentence")));
        }
    }
    if is_accepted {
        return follow(args, output, (app, &answer));
    }
    if args.has("json") {
        output.json(&answer);
    }
    let has = |state: &str| {
        view.list("containers")
            .any(|one| one.text("state") == state)
    };
    if has("change") && !args.has("json") {
        output.line(&format!(
            "apply: sudo pipeops-agent apps suggest {} --apply",
            printable(app)
        ));
    }
    Ok(if has("change") || has("fits") {
        Exit::Fine
    } else {
        Exit::CouldNotRun
    })
}

/// Prints the sizes of a container, and those that would fit.
fn print(container: View<'_>, output: &mut Output) {
    let [workload, name] = ["workload", "container"].map(|name| printable(container.text(name)));
    output.line(&format!("{workload}, container {name}"));
    let (now, suggested) = (container.at("now"), container.at("suggested"));
    for (words, field) in [
        ("CPU request", "cpu_request"),
        ("memory request", "memory_request"),
        ("CPU limit", "cpu_limit"),
        ("memory limit", "memory_limit"),
    ] {
        let of = |sizes: View<'_>| printable(sizes.maybe(field).unwrap_or("none"));
        let (from, to) = (of(now), of(suggested));
        output.line(&if *suggested.json() == Value::Null || from == to {
            format!("  {words}: {from}")
        } else {
            format!("  {words}: {from} -> {to}")
        });
    }
    output.line(&indented(&format!(
        "  {}",
        printable(container.text("why"))
    )));
}

//! `apps restart`, `scale`, `cancel`, `pause` and `resume`.

use serde_json::{Value, json};

use super::{
    super::{
        args::Args,
        output::{Output, printable},
        socket::{self, Ask},
        table::{CONFIG, Command, JSON, Opt, SET, SOCKET, Takes},
        view::View,
    },
    ONE, VERSION, WAIT,
    apply::follow,
    path,
};
use crate::error::{Error, Exit, Result};

/// Word for the number of Pods that the manifest has.
const MANIFEST: &str = "manifest";

/// `apps restart`.
pub(super) static RESTART: Command = Command {
    name: "restart",
    about: "Replace the Pods of an app",
    notes: "It is a revision of its own: where it does not work, the last good one is restored.",
    examples: &["sudo pipeops-agent apps restart web --wait"],
    run: Some(restart),
    ..VERSION
};

/// `apps scale`.
pub(super) static SCALE: Command = Command {
    name: "scale",
    about: "Change the number of Pods of an app",
    options: &[
        Opt::value(
            "to",
            Takes::Text,
            "N",
            "Number of Pods, or 'manifest' for the number of the manifest",
        ),
        Opt::value(
            "workload",
            Takes::Text,
            "KIND/NAME",
            "Deployment or StatefulSet (default: the only one)",
        ),
        WAIT,
        SOCKET,
        CONFIG,
        SET,
        JSON,
    ],
    notes: "The number stays when the app is deployed again, until '--to manifest'. A workload with a HorizontalPodAutoscaler is refused.",
    examples: &[
        "sudo pipeops-agent apps scale web --to 3 --wait",
        "sudo pipeops-agent apps scale web --to manifest",
    ],
    run: Some(scale),
    ..VERSION
};

/// `apps cancel`.
pub(super) static CANCEL: Command = Command {
    name: "cancel",
    about: "Cancel the change of an app that is under way",
    notes: "A change of which nothing is written yet is dropped. Any other goes back to the last good version; without one it stays as it is.",
    examples: &["sudo pipeops-agent apps cancel web"],
    exit: "0 cancelled, 2 nothing was changed.",
    run: Some(cancel),
    ..ONE
};

/// `apps pause`.
pub(super) static PAUSE: Command = Command {
    name: "pause",
    about: "Leave an app alone: no automatic rollback, no updates from its source, no drift repair",
    notes: "A version that does not work stays until 'apps rollback', or until 'apps resume' and another version.",
    examples: &["sudo pipeops-agent apps pause web"],
    exit: "0 paused, 2 nothing was changed.",
    run: Some(pause),
    ..ONE
};

/// `apps resume`.
pub(super) static RESUME: Command = Command {
    name: "resume",
    about: "Resume automatic rollback, updates from the source and drift repair",
    examples: &["sudo pipeops-agent apps resume web"],
    exit: "0 resumed, 2 nothing was changed.",
    run: Some(resume),
    ..ONE
};

fn restart(args: &Args, output: &mut Output) -> Result<Exit> {
    let app = args.text("NAME").unwrap_or_default();
    let accepted = post(args, (app, "restart"), json!({}))?;
    follow(args, output, (app, &accepted))
}

fn scale(args: &Args, output: &mut Output) -> Result<Exit> {
    let app = args.text("NAME").unwrap_or_default();
    let to = args.read("to", |text| match text {
        MANIFEST => Ok(None),
        text => text
            .parse::<u64>()
            .map(Some)
            .map_err(|_number| "use a number of Pods, or 'manifest'".to_owned()),
    })?;
    let to = to.ok_or_else(|| {
        Error::new("no number of Pods was named")
            .fix(format!("sudo pipeops-agent apps scale {app} --to N"))
    })?;
    let workload = args.text("workload").unwrap_or_default();
    let body = json!({"to": to, "workload": workload});
    let accepted = post(args, (app, "scale"), body)?;
    follow(args, output, (app, &accepted))
}

fn cancel(args: &Args, output: &mut Output) -> Result<Exit> {
    at_once(args, output, "cancel")
}

fn pause(args: &Args, output: &mut Output) -> Result<Exit> {
    at_once(args, output, "pause")
}

fn resume(args: &Args, output: &mut Output) -> Result<Exit> {
    at_once(args, output, "resume")
}

/// Asks for what is done when its answer comes.
fn at_once(args: &Args, output: &mut Output, verb: &str) -> Result<Exit> {
    let app = args.text("NAME").unwrap_or_default();
    let answer = post(args, (app, verb), json!({}))?;
    if args.has("json") {
        output.json(&answer);
    } else {
        let sentence = printable(View::new(&answer).text("sentence"));
        output.line(&format!("{}: {sentence}", printable(app)));
    }
    Ok(Exit::Fine)
}

fn post(args: &Args, (app, verb): (&str, &str), body: Value) -> Result<Value> {
    let path = path(app, &format!("/{verb}"));
    let cannot = format!("{verb} of {app} was not accepted");
    let ask = match verb {
        "restart" | "scale" => Ask::Fetch(&path, body),
        _ => Ask::Slow(&path, body),
    };
    socket::request(args, &ask, &cannot)
}

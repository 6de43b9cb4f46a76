//! `apps apply`, `rollback` and `remove`.

use std::{path::Path, time::Duration};

use serde_json::{Value, json};

use super::{
    super::{
        args::Args,
        output::{Output, printable},
        socket::{self, Ask},
        table::{CONFIG, Command, JSON, Opt, SET, SOCKET, Takes},
        view::View,
    },
    FILE, NAMESPACE, ONE, PATH, VERSION, WAIT,
    inspect::compare,
    path,
    show::{FAILED, print_change, verdict},
};
use crate::{
    core::rollout::RolloutVerdict,
    error::{Error, Exit, Result, Retry},
    host::{clock, manifests::manifests},
};

/// Time between two looks of `--wait`.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Time for which `--wait` asks again where nothing is known: the agent is restarted by its update,
/// or answers late.
const PATIENCE: Duration = Duration::from_secs(60);

/// Consent to lose most of an app.
pub(super) const PRUNE_MOST: Opt = Opt::flag(
    "prune-most",
    "Allow more than half of the app to be deleted",
);

/// `apps apply`.
pub(super) static APPLY: Command = Command {
    name: "apply",
    about: "Deploy manifests as an app",
    options: &[
        FILE,
        Opt::value(
            "app",
            Takes::Text,
            "NAME",
            "Name of the app (default: that of the file or folder)",
        ),
        NAMESPACE,
        WAIT,
        PRUNE_MOST,
        Opt::flag(
            "adopt",
            "Take over objects that exist and do not belong to the app",
        ),
        Opt::flag("dry-run", "Show what would change, and change nothing"),
        SOCKET,
        CONFIG,
        SET,
        JSON,
    ],
    notes: "A dry run of everything comes first. A version that does not work is rolled back to the last good one.\n\
        Objects that the manifests no longer have are deleted once the new version is good; volume claims never are.\n\
        Objects that do not belong to the app are refused. With --adopt they become the app's: fields that 'kubectl apply' set and the manifests\n\
        do not have are removed, and 'apps remove' deletes them. The difference is shown first.",
    examples: &[
        "sudo pipeops-agent apps apply -f web.yaml --namespace shop --wait",
        "sudo pipeops-agent apps apply -f shop/ --app shop",
        "sudo pipeops-agent apps apply -f shop/ --app shop --adopt --dry-run",
    ],
    exit: "0 accepted (with --wait: good; with --dry-run: no difference), 1 bad or rolled back (with --dry-run: something would change),\n\
        2 nothing was deployed.",
    run: Some(apply),
    ..Command::BARE
};

/// `apps rollback`.
pub(super) static ROLLBACK: Command = Command {
    name: "rollback",
    about: "Roll an app back to an earlier version",
    options: &[
        Opt::value(
            "to",
            Takes::Text,
            "REVISION",
            "Revision (default: the last good one before this)",
        ),
        Opt::value(
            "auto",
            Takes::Text,
            "on|off",
            "Turn automatic rollback of the app on or off, and roll back nothing now",
        ),
        WAIT,
        SOCKET,
        CONFIG,
        SET,
        JSON,
    ],
    notes: "Jobs are not run again, and Secrets keep the values of the version that runs.",
    examples: &[
        "sudo pipeops-agent apps rollback web --wait",
        "sudo pipeops-agent apps rollback web --to 3",
        "sudo pipeops-agent apps rollback web --auto off",
    ],
    exit: "0 accepted (with --wait: good), 1 bad, 2 nothing was changed.",
    run: Some(rollback),
    ..VERSION
};

/// `apps remove`.
pub(super) static REMOVE: Command = Command {
    name: "remove",
    about: "Delete an app; its volume claims stay",
    examples: &["sudo pipeops-agent apps remove web"],
    exit: "0 removed, 2 it is still there.",
    run: Some(remove),
    ..ONE
};

fn apply(args: &Args, output: &mut Output) -> Result<Exit> {
    let file = args.path("file").ok_or_else(|| {
        Error::new("no manifests were named").fix("sudo pipeops-agent apps apply -f FILE")
    })?;
    let app = match args.text("app") {
        Some(app) => app.to_owned(),
        None => name_of(&file)?,
    };
    let body = json!({
        "app": app,
        "namespace": args.text("namespace").unwrap_or_default(),
        "manifests": manifests(&file)?,
        "prune_most": args.has("prune-most"),
        "adopt": args.has("adopt"),
    });
    let is_dry = args.has("dry-run");
    if is_dry || (args.has("adopt") && !args.has("json")) {
        let exit = compare(args, output, (&app, body.clone()))?;
        if is_dry {
            return Ok(exit);
        }
    }
    let accepted = socket::request(
        args,
        &Ask::Fetch(PATH, body),
        &format!("{app} was not deployed"),
    )?;
    follow(args, output, (&app, &accepted))
}

fn rollback(args: &Args, output: &mut Output) -> Result<Exit> {
    let app = args.text("NAME").unwrap_or_default();
    let to = args.read("to", |text| {
        text.parse::<u64>().map_err(|_number| {
            "use the number of a revision: pipeops-agent apps history NAME".to_owned()
        })
    })?;
    let auto = args.read("auto", |text| match text {
        "on" | "off" => Ok(text.to_owned()),
        _ => Err("use 'on' or 'off'".to_owned()),
    })?;
    if auto.is_some() && (to.is_some() || args.has("wait")) {
        return Err(
            Error::new("--auto changes a setting and rolls nothing back")
                .fix("leave out --to and --wait"),
        );
    }
    let body = json!({ "to": to.unwrap_or(0), "auto": auto.as_deref().unwrap_or_default() });
    let accepted = socket::request(
        args,
        &Ask::Slow(&path(app, "/rollback"), body),
        &match &auto {
            Some(_) => format!("automatic rollback of {app} stays as it is"),
            None => format!("{app} was not rolled back"),
        },
    )?;
    if auto.is_some() {
        if args.has("json") {
            output.json(&accepted);
        } else {
            let sentence = printable(View::new(&accepted).text("sentence"));
            output.line(&format!("{}: {sentence}", printable(app)));
        }
        return Ok(Exit::Fine);
    }
    follow(args, output, (app, &accepted))
}

fn remove(args: &Args, output: &mut Output) -> Result<Exit> {
    let app = args.text("NAME").unwrap_or_default();
    let removed = socket::request(
        args,
        &Ask::Delete(&path(app, "")),
        &format!("{app} was not removed"),
    )?;
    if args.has("json") {
        output.json(&removed);
        return Ok(Exit::Fine);
    }
    output.line(&format!("{} is removed", printable(app)));
    let kept = removed
        .get("kept")
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default();
    for object in kept.iter().filter_map(Value::as_str) {
        output.line(&format!("  kept: {}", printable(object)));
    }
    Ok(Exit::Fine)
}

/// The name of a file or folder as that of an app.
fn name_of(file: &Path) -> Result<String> {
    let whole = file
        .canonicalize()
        .unwrap_or_else(|_missing| file.to_path_buf());
    let name = whole
        .file_stem()
        .map(|name| name.to_string_lossy().into_owned());
    name.filter(|name| crate::core::apps::is_name(name))
        .ok_or_else(|| {
            Error::new(format!("{} does not name an app", file.display()))
                .fix("add --app NAME: lowercase letters, digits and dashes")
        })
}

/// Says that a change was accepted; with `--wait` until it is over.
pub(super) fn follow(
    args: &Args,
    output: &mut Output,
    (app, accepted): (&str, &Value),
) -> Result<Exit> {
    let change = View::new(accepted).text("change").to_owned();
    let notice = View::new(accepted).text("notice");
    if !notice.is_empty() && !args.has("json") {
        output.line(&format!("note: {}", printable(notice)));
    }
    if !args.has("wait") {
        if args.has("json") {
            output.json(accepted);
        } else {
            let revision = View::new(accepted).count("revision").unwrap_or(0);
            output.line(&format!(
                "revision {revision} of {} is being deployed: pipeops-agent apps why {}",
                printable(app),
                printable(app)
            ));
        }
        return Ok(Exit::Fine);
    }
    wait(args, output, (app, &change))
}

/// Waits for the end of a change, which goes on while the agent does not answer.
fn wait(args: &Args, output: &mut Output, (app, change): (&str, &str)) -> Result<Exit> {
    let mut said = [String::new(), String::new()];
    let mut until = clock::now().mono.after(PATIENCE);
    loop {
        match look(args, app) {
            Ok(value) => {
                let state = View::new(&value).at("change");
                if state.text("id") != change {
                    return Err(Error::new(format!(
                        "{app} was changed by somebody else meanwhile"
                    ))
                    .fix(format!("pipeops-agent apps why {app}")));
                }
                if state.text("state") != "under way" {
                    return Ok(over(args, output, &value));
                }
                let now = progress(&value);
                for (said, before) in now.iter().zip(&said) {
                    if is_new(said, before) && !args.has("json") {
                        output.line(&printable(said));
                    }
                }
                said = now;
                until = clock::now().mono.after(PATIENCE);
            }
            Err(error) if error.retry == Retry::Soon && clock::now().mono < until => {}
            Err(error) => return Err(error),
        }
        if output.is_over() || !output.sleep(POLL_INTERVAL) {
            return Ok(Exit::CouldNotRun);
        }
    }
}

/// Reads the verdict on the last change of an app, with that change.
fn look(args: &Args, app: &str) -> Result<Value> {
    let cannot = "the verdict is not known";
    let value = socket::request(args, &Ask::Test(&path(app, "/why")), cannot)?;
    if View::new(&value).at("change").maybe("id").is_none() {
        return Err(Error::new(cannot)
            .why("the agent cannot read its journal now")
            .fix(format!("pipeops-agent apps why {app}"))
            .retry(Retry::Soon));
    }
    Ok(value)
}

/// Lines about the last change, and about the revision that it goes back to; empty where it does
/// not.
fn progress(value: &Value) -> [String; 2] {
    let line = |judged: View<'_>| {
        let verdict = verdict(judged.json()).as_str();
        format!("{verdict}: {}", judged.text("sentence"))
    };
    let app = View::new(value);
    let back = app.at("rollback");
    let number = back.count("revision");
    let back = number.map(|number| format!("going back to revision {number}, {}", line(back)));
    [line(app), back.unwrap_or_default()]
}

/// Returns whether a line is printed after the one before. The countdown of a soak is not.
fn is_new(said: &str, before: &str) -> bool {
    let is_soaking = |line: &str| {
        let verdict = line.split_once(": ").map(|(verdict, _)| verdict);
        verdict.is_some_and(|it| it.ends_with(RolloutVerdict::Soaking.as_str()))
    };
    !said.is_empty() && said != before && !(is_soaking(said) && is_soaking(before))
}

fn over(args: &Args, output: &mut Output, value: &Value) -> Exit {
    let change = View::new(value).at("change");
    let state = change.text("state");
    if args.has("json") {
        output.json(value);
    } else {
        print_change(value, output);
        // Where it failed that is told already.
        if state != FAILED {
            output.line(&printable(change.text("why")));
        }
    }
    if state == "done" {
        Exit::Fine
    } else {
        Exit::Problem
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        os::unix::net::UnixListener,
        thread,
    };

    use super::{
        super::super::args::{Invocation, parse},
        *,
    };

    #[test]
    #[expect(
        clippy::disallowed_methods,
        reason = "the agent of a test has a thread of its own"
    )]
    fn a_wait_outlasts_an_agent_that_does_not_answer_for_a_moment() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("agent.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let answer = |code: u16, body: &Value| {
            let body = body.to_string();
            let length = body.len();
            format!("HTTP/1.1 {code} x\r\ncontent-length: {length}\r\n\r\n{body}")
        };
        let late = json!({"error": "the agent did not answer in time"});
        let end = json!({"change": {"id": "c1", "state": "done", "why": "it is good"}});
        let answers = [
            String::new(),
            answer(503, &late),
            answer(200, &json!({ "change": null })),
            answer(200, &end),
        ];
        let agent = thread::spawn(move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let read = stream.read(&mut [0; 1024]).unwrap();
                assert!(read > 0);
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        let words = ["apps", "restart", "web", "--socket"];
        let words = words.into_iter().map(Into::into).chain([socket.into()]);
        let Ok(Invocation::Run(args)) = parse(words) else {
            panic!("the command line is wrong");
        };
        let waited = wait(&args, &mut Output::plain(), ("web", "c1"));
        assert_eq!(waited.unwrap(), Exit::Fine);
        agent.join().unwrap();
    }

    #[test]
    fn the_way_back_is_told_beside_the_reason_for_it() {
        let mut value =
            json!({"verdict": "bad", "sentence": "container web keeps exiting", "rollback": null});
        let bad = "bad: container web keeps exiting";
        assert_eq!(progress(&value), [bad, ""]);
        value["rollback"] =
            json!({"revision": 1, "verdict": "soaking", "sentence": "ready for 2 s"});
        let back = "going back to revision 1, soaking: ready for 2 s";
        assert_eq!(progress(&value), [bad, back]);
        assert!(is_new(back, "") && is_new(bad, "") && !is_new("", bad));
        assert!(!is_new(
            "going back to revision 1, soaking: ready for 3 s",
            back
        ));
        assert!(is_new(
            "going back to revision 1, progressing: 0 of 1",
            back
        ));
        assert!(is_new(
            "bad: the log says soaking: 3",
            "bad: the log says soaking: 2"
        ));
    }
}

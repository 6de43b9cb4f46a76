//! `apps list`, `show`, `why` and `history`.

use std::time::Duration;

use serde_json::Value;

use super::{
    super::{
        args::Args,
        output::{Output, columns, indented, moment, printable},
        socket::{self, Ask},
        table::{CONFIG, Command, JSON, SET, SOCKET},
        view::View,
    },
    ONE, PATH, ask,
    inspect::objects,
    path,
    replay::{exit, tone},
};
use crate::{
    core::{apps::Owner, rollout::RolloutVerdict, time::in_words},
    error::{Exit, Result},
};

/// Addition to the sentence of an app that is left alone.
const PAUSED: &str = " (paused)";

/// Addition to the sentence of an app that is rolled back by people only.
const BY_HAND: &str = " (automatic rollback is off)";

/// State of a change whose version neither works nor was taken back.
pub(super) const FAILED: &str = "failed";

/// Addition to the sentence of the revision that runs.
const RUNS: &str = " (runs)";

/// `apps list`.
pub(super) static LIST: Command = Command {
    name: "list",
    about: "List the apps with their verdicts",
    options: &[SOCKET, CONFIG, SET, JSON],
    examples: &["pipeops-agent apps list"],
    run: Some(list),
    ..Command::BARE
};

/// `apps show`.
pub(super) static SHOW: Command = Command {
    name: "show",
    about: "Show an app: its verdict and its objects",
    examples: &["pipeops-agent apps show web"],
    run: Some(show),
    ..ONE
};

/// `apps why`.
pub(super) static WHY: Command = Command {
    name: "why",
    about: "Explain why an app does not work",
    notes: "The verdict is that of the last change; what runs now has one of its own.",
    examples: &[
        "pipeops-agent apps why web",
        "pipeops-agent apps why web --json",
    ],
    exit: "0 good, 1 bad (the last change, or what runs since), 2 neither, or it cannot be said.",
    run: Some(why),
    ..ONE
};

/// `apps history`.
pub(super) static HISTORY: Command = Command {
    name: "history",
    about: "List the revisions of an app and what each changed",
    notes: "Values are shown to those who may deploy the app; those of Secrets to nobody.",
    examples: &["pipeops-agent apps history web"],
    run: Some(history),
    ..ONE
};

fn list(args: &Args, output: &mut Output) -> Result<Exit> {
    let what = (PATH, "the apps are not listed");
    ask(args, output, what, |value, output| {
        let rows: Vec<_> = View::new(value).list("apps").map(row).collect();
        if rows.is_empty() {
            output.line("no apps: sudo pipeops-agent apps apply -f FILE --namespace NAME");
        }
        for line in columns(&rows) {
            output.line(&line);
        }
        let waits = View::new(value).list("apps").next();
        standing_by(waits.and_then(|app| app.maybe("standing_by")), output);
    })?;
    Ok(Exit::Fine)
}

/// Prints the reason why another agent takes care of the apps.
fn standing_by(why: Option<&str>, output: &mut Output) {
    if let Some(why) = why {
        output.line(&format!(
            "  this agent changes and judges no apps now: {}",
            printable(why)
        ));
    }
}

/// Number of the revision that runs in the place of the last one.
fn runs_instead(app: View<'_>) -> Option<u64> {
    let runs = app.count("runs").filter(|runs| *runs > 0);
    runs.filter(|runs| app.count("revision") != Some(*runs))
}

fn row(app: View<'_>) -> Vec<String> {
    let [namespace, name, verdict, mut sentence] =
        ["namespace", "app", "verdict", "sentence"].map(|name| printable(app.text(name)));
    if let Some(runs) = runs_instead(app).filter(|_| verdict == "bad") {
        sentence.extend([" (revision ", &runs.to_string(), " runs)"]);
    }
    if app.flag("paused") == Some(true) {
        sentence.push_str(PAUSED);
    } else if app.flag("auto_rollback") == Some(false) {
        sentence.push_str(BY_HAND);
    }
    vec![namespace, name, origin(app).to_owned(), verdict, sentence]
}

/// The origin of an app in a word.
fn origin(app: View<'_>) -> &'static str {
    let source = app.at("source");
    if source.maybe("git").is_some() {
        "git"
    } else if source.maybe("folder").is_some() {
        "folder"
    } else if app.text("owner") == Owner::ControlPlane.as_str() {
        "control-plane"
    } else {
        "manual"
    }
}

fn show(args: &Args, output: &mut Output) -> Result<Exit> {
    let path = path(args.text("NAME").unwrap_or_default(), "");
    let what = (path.as_str(), "the app is not shown");
    ask(args, output, what, |value, output| {
        print_change(value, output);
        let app = View::new(value);
        for object in app.list("objects") {
            let (kind, name) = (object.text("kind"), object.text("name"));
            output.line(&format!("  {} {}", printable(kind), printable(name)));
        }
        let runs = app.count("runs");
        if let Some(runs) = runs_instead(app) {
            output.line(&format!("revision {runs} runs"));
        }
        for running in app
            .list("revisions")
            .filter(|it| it.count("number") == runs)
        {
            images(running, output);
        }
    })?;
    Ok(Exit::Fine)
}

fn history(args: &Args, output: &mut Output) -> Result<Exit> {
    let path = path(args.text("NAME").unwrap_or_default(), "?changes=1");
    let value = socket::request(args, &Ask::Test(&path), "the history is not shown")?;
    if args.has("json") {
        output.json(value.get("revisions").unwrap_or(&Value::Null));
        return Ok(Exit::Fine);
    }
    let revisions: Vec<_> = View::new(&value).list("revisions").collect();
    let runs = View::new(&value).count("runs");
    let row = |revision: &View<'_>| {
        let number = revision.count("number");
        let at = moment(revision.text("at"));
        let [verdict, by, mut sentence] =
            ["verdict", "by", "sentence"].map(|name| printable(revision.text(name)));
        if number == runs {
            sentence.push_str(RUNS);
        }
        let number = number.unwrap_or(0).to_string();
        vec![number, at, verdict, by, sentence]
    };
    let rows: Vec<_> = revisions.iter().map(row).collect();
    for (line, revision) in columns(&rows).iter().zip(revisions) {
        output.line(line);
        let changes = revision.at("changes");
        objects(&changes.list("objects").collect::<Vec<_>>(), "  ", output);
        if let Some(more) = changes.count("more").filter(|more| *more > 0) {
            output.line(&format!("  and {more} objects more"));
        }
        images(revision, output);
    }
    Ok(Exit::Fine)
}

/// Prints the digests of a revision, and what it does not go back to.
fn images(revision: View<'_>, output: &mut Output) {
    for image in revision.list("images") {
        let name = printable(image.text("image"));
        let digest = image.maybe("digest").map(printable);
        output.line(&match digest {
            Some(digest) if image.flag("kept") == Some(true) => {
                format!("  {name} was {digest}, which stays on this node")
            }
            Some(digest) => format!("  {name} was {digest}"),
            None => format!(
                "  {name} rolls back to whatever image has that tag then: {}",
                printable(image.text("why"))
            ),
        });
    }
    let pinned = revision.json().get("pinned").and_then(Value::as_array);
    for workload in pinned.into_iter().flatten().filter_map(Value::as_str) {
        output.line(&format!(
            "  {} went back by digest, until the app is deployed again",
            printable(workload)
        ));
    }
}

fn why(args: &Args, output: &mut Output) -> Result<Exit> {
    let path = path(args.text("NAME").unwrap_or_default(), "/why");
    let what = (path.as_str(), "the verdict is not known");
    let value = ask(args, output, what, |value, output| {
        print_change(value, output);
        print_inputs(View::new(value), output);
    })?;
    // The last change may have been good, and what runs may crash since.
    let is_bad_now =
        View::new(&value).at("running").text("verdict") == RolloutVerdict::Bad.as_str();
    let verdict = verdict(&value);
    Ok(if verdict == RolloutVerdict::Good && is_bad_now {
        Exit::Problem
    } else {
        exit(verdict)
    })
}

/// Prints what the verdict on the last change read, and that on what runs where it is another one.
fn print_inputs(app: View<'_>, output: &mut Output) {
    let running = app.at("running");
    let is_same = running.count("revision") == app.count("revision");
    let has_own = app.list("inputs").next().is_some();
    for (of, inputs, is_shown) in [
        ("this verdict", app, true),
        ("the verdict on what runs", running, !is_same || !has_own),
    ] {
        let mut lines = inputs.list("inputs").filter(|_| is_shown).peekable();
        if lines.peek().is_some() {
            output.line(&format!("  inputs of {of}:"));
        }
        for line in lines {
            let line = printable(line.json().as_str().unwrap_or_default());
            output.line(&format!("    {line}"));
        }
    }
}

/// The verdict of an answer; one that is not known is none.
pub(super) fn verdict(value: &Value) -> RolloutVerdict {
    RolloutVerdict::of(View::new(value).text("verdict")).unwrap_or(RolloutVerdict::Waiting)
}

/// Prints the part of an answer about the last change, and that about what runs.
pub(super) fn print_change(value: &Value, output: &mut Output) {
    let app = View::new(value);
    let revision = app.count("revision").unwrap_or(0);
    let word = output.toned(tone(verdict(value)), app.text("verdict"));
    output.line(&format!(
        "{} revision {revision} is {word}: {}",
        printable(app.text("app")),
        printable(app.text("sentence"))
    ));
    if app.flag("paused") == Some(true) {
        let name = printable(app.text("app"));
        output.line(&format!(
            "  paused: it is not rolled back automatically (sudo pipeops-agent apps resume {name})"
        ));
    }
    if app.flag("auto_rollback") == Some(false) {
        let name = printable(app.text("app"));
        output.line(&format!(
            "  automatic rollback is off (sudo pipeops-agent apps rollback {name} --auto on)"
        ));
    }
    if let Some(number) = app.at("rollback").count("revision") {
        let [verdict, sentence] =
            ["verdict", "sentence"].map(|name| printable(app.at("rollback").text(name)));
        output.line(&format!(
            "  going back to revision {number}, which is {verdict}: {sentence}"
        ));
    }
    let is_awaited = matches!(app.text("verdict"), "waiting" | "progressing");
    if let Some(usual) = app.count("usually_s").filter(|_| is_awaited) {
        let usual = in_words(Duration::from_secs(usual));
        output.line(&format!("  usually takes about {usual} until it is ready"));
    }
    if let Some(why) = failure(app) {
        output.line(&format!("  {}", printable(why)));
    }
    print_fields(app, &REASONS, output);
    from(app.at("source"), output);
    standing_by(app.maybe("standing_by"), output);
    drifted(app.at("drift"), output);
    for need in app.list("offline") {
        let [image, object, why, fix] =
            ["image", "object", "why", "fix"].map(|name| printable(need.text(name)));
        output.line(&format!(
            "  needs its registry: {image} of {object}: {why}\n    fix: {fix}"
        ));
    }
    print_running(value, output);
}

/// Outcome of a last change that failed: why its version stays, and how to go back.
fn failure(app: View<'_>) -> Option<&str> {
    let change = app.at("change");
    let why = change.maybe("why");
    why.filter(|_| change.text("state") == FAILED)
}

/// Prints how what runs is now, where that is another revision or no longer what the last change
/// came to.
fn print_running(value: &Value, output: &mut Output) {
    let (app, running) = (View::new(value), View::new(value).at("running"));
    if app.at("rollback").count("revision") == running.count("revision") {
        // It is told already, with what it waits for.
        return;
    }
    let is_other_now = verdict(value).is_final() && running.text("verdict") != app.text("verdict");
    let is_told = |runs: &u64| app.count("revision") != Some(*runs) || is_other_now;
    let Some(runs) = running.count("revision").filter(is_told) else {
        return;
    };
    output.line(&format!(
        "revision {runs} runs and is {}: {}",
        printable(running.text("verdict")),
        printable(running.text("sentence"))
    ));
    if is_other_now {
        let [cause, _, seen, fix] = REASONS;
        print_fields(running, &[cause, seen, fix], output);
    }
}

/// Labels of the fields that give reasons for a verdict.
const REASONS: [(&str, &str); 4] = [
    ("cause", "cause"),
    ("object", "object"),
    ("seen", "evidence"),
    ("fix", "fix"),
];

fn print_fields(judged: View<'_>, fields: &[(&str, &str)], output: &mut Output) {
    for (label, field) in fields {
        if let Some(text) = judged.maybe(field) {
            output.line(&format!("  {label}: {}", indented(text)));
        }
    }
}

/// Prints what somebody changed of an app, and what came of it.
fn drifted(drift: View<'_>, output: &mut Output) {
    let what = |it: View<'_>| {
        let (object, field) = (printable(it.text("object")), printable(it.text("field")));
        match field.as_str() {
            "" => format!("{object}, which was deleted"),
            field => format!(
                "{field} of {object}, changed by {}",
                printable(it.text("by"))
            ),
        }
    };
    for it in drift.list("repaired") {
        let at = moment(it.text("at"));
        output.line(&format!("  put back {at}: {}", what(it)));
    }
    for it in drift.list("left") {
        output.line(&format!(
            "  left alone, because it was taken back three times: {}",
            what(it)
        ));
    }
    let missing = drift.list("missing");
    for object in missing.filter_map(|it| it.json().as_str()) {
        output.line(&format!(
            "  deleted, and not recreated because it held data: {}",
            printable(object)
        ));
    }
    for it in drift.list("stuck") {
        output.line(&format!(
            "  not put back: {}",
            printable(it.text("sentence"))
        ));
    }
}

/// Prints the source of an app, and what is wrong with it.
fn from(source: View<'_>, output: &mut Output) {
    let mut line = match (source.maybe("folder"), source.maybe("git")) {
        (Some(folder), _) => format!("  source: {}", printable(folder)),
        (None, Some(url)) => {
            let commit: String = source.text("commit").chars().take(12).collect();
            format!(
                "  source: {}, {} at {}",
                printable(url),
                printable(source.text("ref")),
                printable(&commit)
            )
        }
        (None, None) => return,
    };
    if let Some(path) = source.maybe("path").filter(|path| !path.is_empty()) {
        line.push_str(", ");
        line.push_str(&printable(path));
    }
    output.line(&line);
    let failure = source.at("failure");
    if let Some(sentence) = failure.maybe("sentence") {
        output.line(&format!("  not up to date: {}", printable(sentence)));
    }
    if let Some(fix) = failure.maybe("fix") {
        output.line(&format!("  fix: {}", printable(fix)));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_version_that_stays_says_why_and_what_was_taken_back_does_not() {
        let stays = "revision 2 does not work and stays, because the app is paused";
        let app = |state: &str| json!({"change": {"state": state, "why": stays}});
        assert_eq!(failure(View::new(&app(FAILED))), Some(stays));
        for state in ["done", "undone", "under way"] {
            assert_eq!(failure(View::new(&app(state))), None);
        }
        assert_eq!(failure(View::new(&json!({"change": null}))), None);
    }
}

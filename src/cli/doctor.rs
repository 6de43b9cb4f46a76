//! `doctor`: looks at this machine and tells what is wrong with it and what to do, without asking a running agent.

use super::{
    given::Given,
    keeper::ROOT,
    load,
    output::{Output, Tone, printable},
    repair,
    table::{CONFIG, Command, JSON, SET},
};
use crate::{
    daemon,
    error::{Error, Exit, Result},
    tasks::doctor,
    wire::api::{Check, Doctor, Environment},
};

/// `doctor`.
pub(super) static COMMAND: Command = Command {
    name: "doctor",
    about: "Say what is wrong with this machine, and what to do about it",
    options: &[repair::FIX, repair::YES, ROOT, CONFIG, SET, JSON],
    arguments: &[repair::CHECK],
    notes: "It needs no running agent and changes nothing without --fix. As root it sees more.\n\
        With --fix each repair is shown before it is done, and `pipeops-agent undo` takes it back.",
    examples: &[
        "sudo pipeops-agent doctor",
        "pipeops-agent doctor --json",
        "sudo pipeops-agent doctor --fix",
        "sudo pipeops-agent doctor --fix limits.inotify --yes",
    ],
    exit: "0 when nothing is wrong, 1 when something is, 2 when it could not look.",
    run: Some(run),
    ..Command::BARE
};

fn run(given: &Given, output: &mut Output) -> Result<Exit> {
    let is_fix = given.has(repair::FIX.long);
    match given.text(repair::CHECK.name) {
        Some(check) if is_fix => return repair::fix(given, output, &[check.to_owned()]),
        Some(check) => {
            let fix = format!("sudo pipeops-agent doctor --fix {check}");
            return Err(Error::new("a check is named only to repair it").fix(fix));
        }
        None => {}
    }
    let loaded = load(given);
    let keeper = loaded.keeper().socket;
    let settings = loaded.settings();
    let mut subject = daemon::doctor::subject(settings.as_ref().map_err(Vec::as_slice), &keeper);
    if let Some(root) = given.path(ROOT.long) {
        subject.place.root = root;
    }
    let report = smol::block_on(doctor::look(&subject));
    let told = report.told();
    if is_fix {
        let problems = told
            .checks
            .iter()
            .filter(|check| check.outcome == "problem");
        let checks = problems.filter(|check| check.automatic.is_some());
        let checks: Vec<_> = checks.map(|check| check.id.clone()).collect();
        return repair::fix(given, output, &checks);
    }
    if given.has(JSON.long) {
        let body = serde_json::to_value(&told)
            .map_err(|error| Error::new("cannot write JSON").because(&error))?;
        output.json(&body);
    } else {
        for line in lines(&told, output) {
            output.line(&line);
        }
    }
    Ok(if told.is_wrong() {
        Exit::Problem
    } else {
        Exit::Fine
    })
}

/// Problems first, then what could not be seen, then in one line what is well.
fn lines(told: &Doctor, output: &Output) -> Vec<String> {
    let of = |outcome: &str| -> Vec<&Check> {
        let checks = told.checks.iter();
        checks.filter(|check| check.outcome == outcome).collect()
    };
    let (problems, unseen, skipped) = (of("problem"), of("unknown"), of("skipped"));
    let mut lines = vec![printable(&environment(&told.environment)), String::new()];
    for check in &problems {
        lines.extend(problem(check, &skipped, output));
        lines.push(String::new());
    }
    for note in &told.environment.notes {
        let word = output.toned(Tone::Strong, "here:");
        lines.push(format!("{word} {}; {}", note.works, note.change));
        lines.push(String::new());
    }
    if !unseen.is_empty() {
        lines.push(output.toned(Tone::Strong, "not seen:"));
        for check in &unseen {
            lines.push(format!("  {}: {}", check.title, printable(&check.seen)));
        }
        lines.push(String::new());
    }
    let tone = if told.is_wrong() {
        Tone::Faint
    } else {
        Tone::Good
    };
    let fine = of("ok").len();
    let summary = match problems.len() {
        0 => format!("Nothing is wrong: {fine} checks are fine"),
        1 => format!("1 problem; {fine} checks are fine"),
        count => format!("{count} problems; {fine} checks are fine"),
    };
    lines.push(format!(
        "{} ({} ms)",
        output.toned(tone, &summary),
        told.took_ms
    ));
    lines
}

fn environment(environment: &Environment) -> String {
    let parts = [
        environment.board.as_deref(),
        environment.distribution.as_deref(),
        Some(environment.init.as_str()).filter(|init| *init != "other"),
        environment.architecture.as_deref(),
        Some(environment.virtualisation.as_str()).filter(|kind| *kind != "bare"),
        environment.nas.as_deref(),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn problem(check: &Check, skipped: &[&Check], output: &Output) -> Vec<String> {
    let tone = match check.severity.as_str() {
        "critical" => Tone::Bad,
        "note" => Tone::Faint,
        _ => Tone::Doubtful,
    };
    let word = output.toned(tone, &printable(&format!("{}:", check.severity)));
    let mut lines = vec![
        format!("{word} {}: {}", check.title, printable(&check.seen)),
        format!("  {} {}", output.toned(Tone::Strong, "why:"), check.why),
    ];
    if let Some(fix) = &check.fix {
        let word = output.toned(Tone::Strong, "fix:");
        lines.push(format!("  {word} {}", printable(fix)));
    }
    lines.extend(
        check
            .commands
            .iter()
            .map(|command| format!("    {}", printable(command))),
    );
    if check.automatic.is_some() {
        lines.push(format!(
            "  or: sudo pipeops-agent doctor --fix {}",
            check.id
        ));
    }
    let waiting = skipped
        .iter()
        .filter(|other| other.because.as_deref() == Some(&check.id));
    let waiting: Vec<_> = waiting.map(|other| other.title.as_str()).collect();
    if !waiting.is_empty() {
        lines.push(format!(
            "  not looked at because of it: {}",
            waiting.join(", ")
        ));
    }
    lines
}

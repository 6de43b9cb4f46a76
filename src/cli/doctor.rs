//! `doctor`: problems of this machine and their fixes, from the running agent or checked by this
//! command.

use nix::unistd::geteuid;

use super::{
    args::Args,
    keeper::ROOT,
    load,
    output::{Output, Tone, printable},
    repair,
    socket::{self, Ask},
    status,
    table::{CONFIG, Command, JSON, SET, SOCKET},
    view::View,
};
use crate::{
    config::Loaded,
    core::doctor::checks,
    core::{nearest::nearest, order::OrderExt as _},
    daemon,
    error::{Error, Exit, Result},
    host::clock,
    tasks::{dashboard::status::SETTINGS_CONDITION, machine::doctor},
    wire::api::{Check, Doctor, Environment, PROBLEMS_PATH, STATUS_PATH},
};

/// `doctor`.
pub(super) static COMMAND: Command = Command {
    name: "doctor",
    about: "Check this machine and show a fix for each problem",
    options: &[repair::FIX, repair::YES, SOCKET, ROOT, CONFIG, SET, JSON],
    arguments: &[repair::CHECK],
    notes: "It asks the agent that runs here; without one, or with --config, --set or --root, it runs the checks itself. Some checks need root.\n\
        It changes nothing without --fix.\n\
        With --fix each repair is shown before it is applied, and `pipeops-agent undo` reverts it.",
    examples: &[
        "sudo pipeops-agent doctor",
        "pipeops-agent doctor --json",
        "pipeops-agent doctor limits.inotify",
        "sudo pipeops-agent doctor --fix",
        "sudo pipeops-agent doctor --fix limits.inotify --yes",
    ],
    exit: "0 no problems, 1 problems were found, 2 the command could not run.",
    run: Some(run),
    ..Command::BARE
};

fn run(args: &Args, output: &mut Output) -> Result<Exit> {
    let is_fix = args.has(repair::FIX.long);
    let named = args.text(repair::CHECK.name);
    if let Some(check) = named {
        check_is_known(check)?;
        if is_fix {
            return repair::fix(args, output, &[check.to_owned()]);
        }
    }
    if let Some(root) = args.path(ROOT.long).filter(|root| !root.is_dir()) {
        return Err(Error::new(format!("no such directory: {}", root.display()))
            .fix("name the folder that stands for the root of a machine: --root FOLDER"));
    }
    let mut report = look(args, output)?;
    if is_fix {
        let problems = report.checks.iter().filter(|check| check.is_problem());
        let checks = problems.filter(|check| check.automatic.is_some());
        let checks: Vec<_> = checks.map(|check| check.id.clone()).collect();
        return repair::fix(args, output, &checks);
    }
    if let Some(named) = named {
        report.checks.retain(|check| check.id == named);
    }
    if args.has(JSON.long) {
        let body = serde_json::to_value(&report)
            .map_err(|error| Error::new("cannot write JSON").because(&error))?;
        output.json(&body);
    } else {
        // The first line is that of the running agent, where there is one.
        let verdict = report.verdict.as_ref().filter(|_| named.is_none());
        if let Some(status) = verdict.and_then(|_| status::fetch(args).ok()) {
            let now = clock::now().wall;
            for line in status::verdict(View::new(&status), now, output) {
                output.line(&line);
            }
            output.line("");
        }
        let lines = match named {
            Some(_) => report
                .checks
                .iter()
                .flat_map(|check| one(check, output))
                .collect(),
            None => lines(&report, output),
        };
        for line in lines {
            output.line(&line);
        }
    }
    Ok(if report.is_wrong() {
        Exit::Problem
    } else {
        Exit::Fine
    })
}

fn check_is_known(named: &str) -> Result<()> {
    let ids = || checks().map(|check| check.id);
    if ids().any(|id| id == named) {
        return Ok(());
    }
    let part = named.split('.').next().unwrap_or_default();
    let near: Vec<_> = ids()
        .filter(|id| id.split('.').next() == Some(part))
        .collect();
    let fix = match nearest(named, ids()) {
        Some(meant) => format!("did you mean {meant}?"),
        None if !near.is_empty() => format!("did you mean one of {}?", near.join(", ")),
        None => "pipeops-agent doctor --json names all checks".to_owned(),
    };
    Err(Error::new(format!("no such check: {named:?}")).fix(fix))
}

/// Findings of the running agent, completed by those that only root can see; without an agent,
/// those of this command.
fn look(args: &Args, output: &mut Output) -> Result<Doctor> {
    let loaded = load(args);
    // Other settings than the agent's are to be looked at, or another machine.
    let is_apart = [ROOT.long, CONFIG.long, SET.long]
        .iter()
        .any(|name| args.has(name));
    if is_apart && !args.has(SOCKET.long) {
        return Ok(own_look(args, loaded));
    }
    let asked = socket::ask(
        &socket::candidates(args, &loaded),
        &Ask::Test(PROBLEMS_PATH),
    );
    match asked {
        Ok(answer) if answer.code == 200 => {
            let mut report: Doctor = answer.understood()?;
            let is_unseen = |check: &Check| check.is_unknown() && check.needs_root;
            if geteuid().is_root() && report.checks.iter().any(is_unseen) {
                complete(&mut report, own_look(args, loaded));
            }
            Ok(report)
        }
        Ok(answer) => {
            let refusal = answer.refusal("the running agent did not return its findings");
            output.warning(&refusal);
            let is_unusable = waits_for_settings(&socket::candidates(args, &loaded));
            let own = own_look(args, loaded);
            Ok(if is_unusable { own } else { beside(own) })
        }
        Err(silence) if silence.is_down => Ok(own_look(args, loaded)),
        Err(silence) => {
            output.warning(&silence.error.within("the running agent was not asked"));
            Ok(beside(own_look(args, loaded)))
        }
    }
}

/// Returns whether the agent runs only to say that its settings have a mistake.
fn waits_for_settings(sockets: &socket::Sockets) -> bool {
    let status = socket::ask(sockets, &Ask::Get(STATUS_PATH));
    let status = status.ok().and_then(|answer| answer.json().ok());
    status.is_some_and(|status| View::new(&status).at("verdict").text("code") == SETTINGS_CONDITION)
}

fn own_look(args: &Args, loaded: Loaded) -> Doctor {
    let keeper = loaded.keeper().socket;
    let settings = loaded.settings();
    let mut subject = daemon::doctor::subject(settings.as_ref().map_err(Vec::as_slice), &keeper);
    if let Some(root) = args.path(ROOT.long) {
        subject.paths.root = root;
    }
    smol::block_on(doctor::run(&subject)).to_wire()
}

/// Replaces checks that the agent could not make by those of root. The agent's checks of itself
/// stay.
fn complete(report: &mut Doctor, mut own: Doctor) {
    for check in &mut report.checks {
        if check.outcome != "unknown" || !check.needs_root {
            continue;
        }
        let mut seen = own.checks.iter_mut().filter(|own| own.id == check.id);
        if let Some(seen) = seen.find(|own| own.outcome != "unknown") {
            std::mem::swap(check, seen);
        }
    }
    let order = ["problem", "unknown", "skipped", "ok"];
    let severities = ["critical", "warning", "note"];
    let place = |words: &[&str], word: &str| words.iter().position(|known| *known == word);
    report.checks.order_by_key(|check| {
        let severity = check
            .is_problem()
            .then(|| place(&severities, &check.severity));
        (place(&order, &check.outcome), severity)
    });
}

/// Findings of a command whose settings differ from the agent's: those about settings are left out.
fn beside(mut own: Doctor) -> Doctor {
    for check in &mut own.checks {
        if check.id == "agent.settings" && check.is_problem() {
            "unknown".clone_into(&mut check.outcome);
            "an agent is running with its own settings".clone_into(&mut check.seen);
        }
    }
    own
}

/// Lines of one check.
fn one(check: &Check, output: &Output) -> Vec<String> {
    if check.is_problem() {
        return problem(check, &[], output);
    }
    let word = output.toned(Tone::Strong, &printable(&format!("{}:", check.outcome)));
    vec![
        format!("{word} {}: {}", check.title, printable(&check.seen)),
        format!("  {} {}", output.toned(Tone::Strong, "why:"), check.why),
    ]
}

/// Problems first, then unknown results, then passed checks in one line.
fn lines(report: &Doctor, output: &Output) -> Vec<String> {
    let of = |outcome: &str| -> Vec<&Check> {
        let checks = report.checks.iter();
        checks.filter(|check| check.outcome == outcome).collect()
    };
    let (problems, unseen, skipped) = (of("problem"), of("unknown"), of("skipped"));
    let mut lines = vec![printable(&environment(&report.environment)), String::new()];
    for check in &problems {
        lines.extend(problem(check, &skipped, output));
        lines.push(String::new());
    }
    for note in &report.environment.notes {
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
    let tone = if report.is_wrong() {
        Tone::Faint
    } else {
        Tone::Good
    };
    let fine = of("ok").len();
    let summary = match problems.len() {
        0 => format!("No problems: {fine} checks passed"),
        1 => format!("1 problem; {fine} checks passed"),
        count => format!("{count} problems; {fine} checks passed"),
    };
    lines.push(format!(
        "{} ({} ms)",
        output.toned(tone, &summary),
        report.took_ms
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
        lines.push(format!("  skipped because of it: {}", waiting.join(", ")));
    }
    lines
}

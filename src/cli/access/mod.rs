//! `access`: shows and changes the access level, and explains decisions.

mod decision;
mod report;

pub(super) use decision::escaped;
use serde_json::json;

use super::{
    args::Args,
    load,
    output::{Output, columns, printable},
    print_error,
    socket::{self, Ask},
    table::{Argument, CONFIG, Command, JSON, Need, SET, SOCKET, Takes},
};
use crate::{
    core::{format::joined, policy::Level},
    error::{Error, Exit, Result},
    host::clock,
    wire::api::{ACCESS_PATH, AccessChange, AccessReport},
};

/// `access`.
pub(super) static COMMAND: Command = Command {
    name: "access",
    about: "Show or restrict what the control plane may do, explain a decision",
    options: &[SOCKET, CONFIG, SET, JSON],
    below: &[&FULL, &MANAGED, &READ_ONLY, &OFF, &TEST],
    notes: "Without a command it shows the current level, its reason, and the requests of the last day.\n\
            A level that is set here applies immediately and after a restart, and never exceeds access.level of the settings.\n\
            The agent's own user can only make it stricter; root can also relax it.",
    examples: &[
        "pipeops-agent access",
        "pipeops-agent access read-only",
        "sudo pipeops-agent access managed",
        "pipeops-agent access test GET /api/v1/pods",
    ],
    exit: "0 success, 1 refused or a problem was found, 2 no agent answers.",
    run: Some(show),
    ..Command::BARE
};

static FULL: Command = Command {
    name: Level::Full.as_str(),
    about: "Allow everything that the cluster's RBAC allows",
    run: Some(set),
    ..Command::BARE
};

static MANAGED: Command = Command {
    name: Level::Managed.as_str(),
    about: "Allow reading everything except Secrets, and changes in managed namespaces",
    run: Some(set),
    ..Command::BARE
};

static READ_ONLY: Command = Command {
    name: Level::ReadOnly.as_str(),
    about: "Allow reading everything except Secrets, and nothing else",
    run: Some(set),
    ..Command::BARE
};

static OFF: Command = Command {
    name: Level::Off.as_str(),
    about: "Allow nothing",
    run: Some(set),
    ..Command::BARE
};

static TEST: Command = Command {
    name: "test",
    about: "Explain whether a request would be allowed",
    arguments: &[
        Argument {
            name: "METHOD",
            takes: Takes::Text,
            need: Need::One,
            help: "HTTP method, such as GET",
        },
        Argument {
            name: "PATH",
            takes: Takes::Text,
            need: Need::One,
            help: "Path of the Kubernetes API with its query, or NAMESPACE/SERVICE:PORT/PATH",
        },
    ],
    notes: "Without a running agent, only the settings are taken into account.",
    examples: &[
        "pipeops-agent access test GET /api/v1/pods",
        "pipeops-agent access test PATCH /apis/apps/v1/namespaces/shop/deployments/web",
        "pipeops-agent access test GET '/api/v1/namespaces/shop/secrets?watch=1'",
        "pipeops-agent access test GET shop/web:80/index.html",
    ],
    exit: "0 allowed, 1 refused, 2 cannot be determined.",
    run: Some(decision::test),
    ..Command::BARE
};

fn sockets(args: &Args) -> socket::Sockets {
    socket::candidates(args, &load(args))
}

fn show(args: &Args, output: &mut Output) -> Result<Exit> {
    let asked = socket::ask(&sockets(args), &Ask::Get(ACCESS_PATH));
    let answer = asked.map_err(|silence| silence.error)?;
    let value = answer.fine("the agent refused to return its access level")?;
    let report: AccessReport = socket::understood(&value)?;
    if report.level.is_empty() {
        return Err(socket::unexpected("it has no level"));
    }
    if args.has("json") {
        output.json(&value);
    } else {
        for line in report::lines(&report, clock::now().wall, output) {
            output.line(&line);
        }
    }
    let is_unknown = report
        .by_hand
        .is_some_and(|by_hand| by_hand.level.is_none());
    Ok(if is_unknown {
        Exit::Problem
    } else {
        Exit::Fine
    })
}

fn set(args: &Args, output: &mut Output) -> Result<Exit> {
    let level = args.command().name;
    let cannot = format!("cannot set access to {level}");
    let body = json!({ "level": level });
    let asked = socket::ask(&sockets(args), &Ask::Post(ACCESS_PATH, body));
    let answer = asked.map_err(|silence| silence.error.within(&cannot))?;
    if matches!(answer.code, 403 | 409) {
        let mut error = answer.refusal(&cannot);
        if answer.code == 403 {
            error.fix = Some(format!("sudo pipeops-agent access {level}"));
        }
        print_error(&error, args, output);
        return Ok(Exit::Problem);
    }
    let value = answer.fine(&cannot)?;
    let change: AccessChange = socket::understood(&value)?;
    if args.has("json") {
        output.json(&value);
    } else {
        output.line(&printable(&changed(&change)));
        if let Some(trouble) = &change.trouble {
            output.warning(
                &Error::new(trouble.clone())
                    .fix("fix the disk; the level is then saved automatically"),
            );
        }
    }
    Ok(if change.trouble.is_none() {
        Exit::Fine
    } else {
        Exit::Problem
    })
}

fn changed(change: &AccessChange) -> String {
    if change.level == change.before {
        return format!("access is {}, as it was", change.level);
    }
    let cut = counted(change.cut, "running call was cut", "running calls were cut");
    let cut = cut.map_or_else(String::new, |cut| format!("; {cut}"));
    format!(
        "access is {} now; it was {}{cut}",
        change.level, change.before
    )
}

fn table(rows: Vec<(&'static str, String)>) -> Vec<String> {
    let row = |(name, text): (&str, String)| vec![name.to_owned(), printable(&text)];
    columns(&rows.into_iter().map(row).collect::<Vec<_>>())
}

fn counted(count: u64, one: &str, many: &str) -> Option<String> {
    match count {
        0 => None,
        1 => Some(format!("1 {one}")),
        count => Some(format!("{count} {many}")),
    }
}

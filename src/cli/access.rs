//! `access`: how strict this box is and why, what was asked and refused; a switch; and the reasons of a decision.

mod decision;
mod report;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    error_json,
    output::{Output, columns, printable},
    socket::{self, Answer, Ask},
};
use crate::{
    config::{self, Sources},
    core::{access::Inquiry, policy::Level},
    error::{Error, Exit, Result},
    host::clock,
    wire::api::{ACCESS_PATH, AccessChange, AccessReport, AccessWish},
};

/// What may be asked.
#[derive(Args, Debug)]
pub(super) struct Wanted {
    #[command(subcommand)]
    act: Option<Act>,
    /// Ask the agent behind this socket
    #[arg(long, global = true, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Read this file instead of /etc/pipeops-agent/config.toml, and config.d/*.toml beside it
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Set one key, stronger than files and environment
    #[arg(long = "set", global = true, value_name = "KEY=VALUE")]
    assignments: Vec<String>,
    /// Print JSON for programs
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Act {
    /// Permit whatever the cluster's own rules permit
    Full,
    /// Permit reads of all but Secrets, and changes in managed namespaces
    Managed,
    /// Permit reads of all but Secrets, and nothing else
    ReadOnly,
    /// Permit nothing
    Off,
    /// Explain what would become of a request
    #[command(after_help = "Examples:\n  \
        pipeops-agent access test GET /api/v1/pods\n  \
        pipeops-agent access test PATCH /apis/apps/v1/namespaces/shop/deployments/web\n  \
        pipeops-agent access test GET '/api/v1/namespaces/shop/secrets?watch=1'\n  \
        pipeops-agent access test GET shop/web:80/index.html\n\n\
        Exit code 0 when it would run, 1 when it would be refused, 2 when that cannot be said.\n\
        Without a running agent the settings are judged by alone.")]
    Test {
        /// The method, such as GET
        method: String,
        /// A path of the Kubernetes API with its query, or NAMESPACE/SERVICE:PORT/PATH
        path: String,
    },
}

/// Runs the command.
pub(super) fn access(wanted: Wanted, output: &mut Output) -> Exit {
    let loaded = config::load(&Sources::of_process(wanted.config, wanted.assignments));
    let sockets = socket::candidates(wanted.socket, loaded.socket());
    let done = match wanted.act {
        None => show(&sockets, wanted.json, output),
        Some(Act::Full) => set(Level::Full, &sockets, wanted.json, output),
        Some(Act::Managed) => set(Level::Managed, &sockets, wanted.json, output),
        Some(Act::ReadOnly) => set(Level::ReadOnly, &sockets, wanted.json, output),
        Some(Act::Off) => set(Level::Off, &sockets, wanted.json, output),
        Some(Act::Test { method, path }) => {
            let inquiry = Inquiry {
                method,
                target: path,
            };
            decision::test(&inquiry, &loaded, &sockets, wanted.json, output)
        }
    };
    done.unwrap_or_else(|error| {
        tell_error(&error, wanted.json, output);
        Exit::CouldNotRun
    })
}

fn tell_error(error: &Error, is_json: bool, output: &mut Output) {
    if is_json {
        output.json(&json!({ "error": error_json(error) }));
    } else {
        output.error(error);
    }
}

/// An answer as the agent said it, and as far as this program understands it.
fn understood<'a, T: Deserialize<'a>>(value: &'a Value) -> Result<T> {
    T::deserialize(value).map_err(|error| socket::odd(error.to_string()))
}

fn fine(answer: Answer, what: &str) -> Result<Answer> {
    if answer.code == 200 {
        Ok(answer)
    } else {
        Err(answer.refusal(what))
    }
}

fn show(sockets: &[PathBuf], is_json: bool, output: &mut Output) -> Result<Exit> {
    let answer = socket::ask(sockets, Ask::Get(ACCESS_PATH)).map_err(|silence| silence.error)?;
    let value = fine(answer, "the agent refuses to tell how strict it is")?.json()?;
    let report: AccessReport = understood(&value)?;
    if report.level.is_empty() {
        return Err(socket::odd("it has no level"));
    }
    if is_json {
        output.json(&value);
    } else {
        for line in report::told(&report, clock::now().wall, output) {
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

fn set(level: Level, sockets: &[PathBuf], is_json: bool, output: &mut Output) -> Result<Exit> {
    let wish = AccessWish {
        level: level.word().to_owned(),
    };
    let cannot = format!("cannot set access to {}", level.word());
    let body = serde_json::to_vec(&wish).map_err(|error| Error::new(&cannot).because(&error))?;
    let asked = socket::ask(sockets, Ask::Post(ACCESS_PATH, body));
    let answer = asked.map_err(|silence| silence.error.within(&cannot))?;
    if matches!(answer.code, 403 | 409) {
        let mut error = answer.refusal(&cannot);
        if answer.code == 403 {
            error.fix = Some(format!("sudo pipeops-agent access {}", level.word()));
        }
        tell_error(&error, is_json, output);
        return Ok(Exit::Problem);
    }
    let value = fine(answer, &cannot)?.json()?;
    let change: AccessChange = understood(&value)?;
    if is_json {
        output.json(&value);
    } else {
        output.line(&printable(&changed(&change)));
        if let Some(trouble) = &change.trouble {
            output.warning(
                &Error::new(trouble.clone()).fix("mend the disk; then it is kept by itself"),
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

/// The parts that there are, with commas between them.
fn joined(parts: impl IntoIterator<Item = Option<String>>) -> Option<String> {
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

fn counted(count: u64, one: &str, many: &str) -> Option<String> {
    match count {
        0 => None,
        1 => Some(format!("1 {one}")),
        count => Some(format!("{count} {many}")),
    }
}

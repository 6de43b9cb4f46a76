//! `up`: sets up the agent on this machine, from nothing to running.

use std::{path::Path, time::Duration};

use serde_json::json;
use smol::{Timer, block_on};

use super::{
    args::Args,
    ask,
    install::{self, Basis, Plan, TOKEN_FILE, UNCHECKED},
    load,
    output::{Output, Tone, printable},
    service,
    socket::{self, Ask},
    status,
    table::{CONFIG, Command, JSON, Opt, Takes},
    view::View,
};
use crate::{
    config::{Loaded, Override},
    core::secret::Secret,
    error::{Error, Exit, Result},
    host::{clock, facts::hostname},
    wire::api::STATUS_PATH,
};

/// Deadline for the first answer of a started agent: opening databases on a slow card takes long.
const ANSWERS_WITHIN: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// States of a link that is being established.
const BUSY: [&str; 3] = ["waiting", "dialing", "registering"];

/// `up`.
pub(super) static COMMAND: Command = Command {
    name: "up",
    about: "Set up this machine: settings, token, service",
    options: &[
        TOKEN_FILE,
        Opt::value(
            "cluster-name",
            Takes::Text,
            "NAME",
            "Name of this cluster at the control plane",
        ),
        Opt::value(
            "api-url",
            Takes::Text,
            "URL",
            "Address of the control plane; off: none",
        ),
        Opt::value(
            "access",
            Takes::Word(&["full", "managed", "read-only", "off"]),
            "LEVEL",
            "Access level of the control plane",
        ),
        Opt::flag(
            "no-start",
            "Write the configuration without starting the service",
        ),
        UNCHECKED,
        CONFIG,
        JSON,
    ],
    notes: "Prompts for what is missing; existing settings are kept.\n\
            Settings in the environment of this command (HTTPS_PROXY, PIPEOPS_TLS_CA_FILE, …) are written, too.\n\
            Nothing is written until the control plane has accepted the token.\n\
            Without a control plane (--api-url off) no token is needed.\n\
            The opposite: pipeops-agent down.",
    examples: &[
        "sudo pipeops-agent up",
        "sudo pipeops-agent up --api-url off",
        "sudo pipeops-agent up --token-file /root/token --cluster-name berlin-3",
    ],
    exit: "0 success, 1 the agent was started but is not healthy, 2 the command could not run.",
    run: Some(up),
    ..Command::BARE
};

fn up(args: &Args, output: &mut Output) -> Result<Exit> {
    let (file, before) = install::now(args);
    install::check_may_write(&file, "up")?;
    let mut keys = overrides(args, &file, &before);
    let plan = Plan::new(file.clone(), keys.clone(), Basis::Files, output)?;
    if let Err(error) = plan.settings.pipeops.control_plane() {
        let is_asked_for = args.has("api-url");
        if !is_asked_for && install::is_token_given(args) {
            return Err(error.within("this token has no use, so nothing was changed"));
        }
        let exit = finish(&plan, None, args, output)?;
        if !is_asked_for {
            output.warning(&error);
        }
        return Ok(exit);
    }
    let read = |plan: &Plan| plan.settings.pipeops.control_plane()?.token.read();
    let has_token = read(&plan).is_ok();
    if !has_token && !ask::is_possible() && !install::is_token_given(args) {
        return Err(Error::new("no token was given")
            .why("standard input is not a terminal, so it cannot be prompted for")
            .fix("pass it in a file: sudo pipeops-agent up --token-file FILE"));
    }
    if plan.settings.pipeops.cluster_name.is_none() && ask::is_possible() {
        let usual = hostname(Path::new("/")).unwrap_or_default();
        let name = ask::line("Name of this cluster", &usual)?;
        keys.push(install::override_of(
            "pipeops.cluster_name",
            name,
            "the name that was typed",
        ));
    }
    let token = install::new_token(args, (!has_token).then_some("Token of this cluster"))?;
    let plan = Plan::new(file, keys, Basis::Files, output)?;
    let shown = match &token {
        Some(token) => token.clone(),
        None => read(&plan)?,
    };
    plan.check(&shown, args, output)?;
    finish(&plan, token.as_ref(), args, output)
}

/// Writes the configuration and starts the service.
fn finish(plan: &Plan, token: Option<&Secret>, args: &Args, output: &mut Output) -> Result<Exit> {
    if let Some(token) = token {
        plan.write_token(token)?;
    }
    let written = plan.write_keys()?;
    warn_of_unreadable(plan, output);
    let line = if args.has("no-start") {
        None
    } else {
        install::start(plan)?
    };
    if !args.has("json") {
        if let Some(written) = &written {
            output.line(&format!("Settings written to {}.", written.display()));
        }
        if token.is_some() {
            output.line(&format!(
                "Token written to {}.",
                plan.token_file()?.display()
            ));
        }
    }
    let is_started = !args.has("no-start") && line.is_none();
    if args.has("json") {
        output.json(&json!({ "settings": written, "started": is_started, "run": line }));
    }
    if let Some(line) = line.filter(|_| !args.has("json")) {
        output.line(&format!(
            "No service is installed, so the agent will not start at boot. Run it: {line}"
        ));
    }
    if is_started {
        return first_words(args, output);
    }
    Ok(Exit::Fine)
}

/// Keys to write: from options, from the environment, and those that a new machine needs.
fn overrides(args: &Args, file: &Path, before: &Loaded) -> Vec<Override> {
    let mut keys = install::from_environment(before, false);
    for (name, option, key) in [
        ("api-url", "--api-url", "pipeops.api_url"),
        ("cluster-name", "--cluster-name", "pipeops.cluster_name"),
        ("access", "--access", "access.level"),
    ] {
        if let Some(value) = args.text(name) {
            keys.retain(|entry| entry.key != key);
            keys.push(install::override_of(key, value, option));
        }
    }
    let wanted = keys.iter().find(|entry| entry.key == "pipeops.api_url");
    let known = before.entry("pipeops.api_url");
    let url = wanted
        .map(|entry| entry.text.clone())
        .or_else(|| known.map(|entry| entry.value.to_string()));
    if url.as_deref() == Some("off") {
        return keys;
    }
    if before.entry("pipeops.token_file").is_none() && before.entry("pipeops.token").is_none() {
        let path = file.with_file_name("token");
        let path = path.display().to_string();
        keys.push(install::override_of(
            "pipeops.token_file",
            path,
            "this command",
        ));
    }
    keys
}

/// Warns of files in the settings that the agent's user cannot read: the check ran as root.
fn warn_of_unreadable(plan: &Plan, output: &mut Output) {
    for path in plan.unreadable() {
        let path = path.display();
        let warning = Error::new(format!("the agent cannot read {path}"))
            .why("it runs as another user without read permission")
            .fix(format!(
                "let its group read it: sudo chgrp pipeops-agent {path} && sudo chmod g+r {path}"
            ));
        output.warning(&warning);
    }
}

/// Prints the status of the started agent once its link is up, or at the deadline.
fn first_words(args: &Args, output: &mut Output) -> Result<Exit> {
    let sockets = socket::candidates_of(&load(args));
    let until = clock::now().mono.after(ANSWERS_WITHIN);
    loop {
        let asked = socket::ask(&sockets, &Ask::Get(STATUS_PATH)).map_err(|silence| silence.error);
        match asked.and_then(|answer| answer.fine("the agent did not return its status")) {
            Ok(value) => {
                let view = View::new(&value);
                let is_wrong = status::is_wrong(view);
                let is_early = !until.since(clock::now().mono).is_zero();
                if is_early && BUSY.contains(&view.at("link").text("state")) {
                    block_on(Timer::after(POLL_INTERVAL));
                    continue;
                }
                if !args.has("json") {
                    let tone = if is_wrong { Tone::Doubtful } else { Tone::Good };
                    let sentence = status::sentence(view.text("summary"));
                    output.line(&output.toned(tone, &printable(&sentence)));
                }
                return Ok(if is_wrong { Exit::Problem } else { Exit::Fine });
            }
            Err(error) if until.since(clock::now().mono).is_zero() => {
                return Err(error
                    .within("the agent was started but does not answer")
                    .fix(service::log_line()));
            }
            Err(_) => block_on(Timer::after(POLL_INTERVAL)),
        };
    }
}

//! `up` and `down`: the agent of this machine from nothing to running, and back.

use std::{path::Path, time::Duration};

use serde_json::json;
use smol::{Timer, block_on};

use super::{
    ask,
    given::Given,
    install::{self, Plan, TOKEN_FILE, UNCHECKED},
    load,
    output::{Output, Tone, printable},
    said::Said,
    service,
    socket::{self, Ask},
    status,
    table::{CONFIG, Command, JSON, Opt, Takes},
};
use crate::{
    config::{DEFAULT_FILE, Loaded},
    error::{Error, Exit, Result},
    files,
    host::{clock, facts::hostname},
    store,
    wire::api::STATUS_PATH,
};

/// How long a started agent may take to answer: a slow card takes long to open its databases.
const ANSWERS_WITHIN: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// `up`.
pub(super) static COMMAND: Command = Command {
    name: "up",
    about: "Set this machine up: settings, token, service",
    options: &[
        TOKEN_FILE,
        Opt::value(
            "cluster-name",
            Takes::Text,
            "NAME",
            "How the control plane is to call this cluster",
        ),
        Opt::value("api-url", Takes::Text, "URL", "The control plane"),
        Opt::value(
            "access",
            Takes::Word(&["full", "managed", "read-only", "off"]),
            "LEVEL",
            "What the control plane may do with the cluster",
        ),
        Opt::flag("no-start", "Write everything, start nothing"),
        UNCHECKED,
        CONFIG,
        JSON,
    ],
    notes: "What is not given is asked for on a terminal; what is set already stays as it is.\n\
            Nothing is written before the control plane takes the token.\n\
            The opposite: pipeops-agent down.",
    examples: &[
        "sudo pipeops-agent up",
        "sudo pipeops-agent up --token-file /root/token --cluster-name berlin-3",
    ],
    exit: "0 when it is done, 1 when the agent was started and something is wrong with it, 2 when it cannot be done.",
    run: Some(up),
    ..Command::BARE
};

/// `down`.
pub(super) static DOWN: Command = Command {
    name: "down",
    about: "Stop the agent of this machine, now and after every boot",
    options: &[
        Opt::flag(
            "purge",
            "Remove its settings, its token and all that it kept, too",
        ),
        Opt::flag("yes", "Do not ask").short('y'),
        CONFIG,
        JSON,
    ],
    notes: "k3s and what runs in it are not touched.\n\
            What the agent kept stays, so that it is the same agent after pipeops-agent up.",
    examples: &["sudo pipeops-agent down", "sudo pipeops-agent down --purge"],
    exit: "0 when it is done, 1 when it was given up, 2 when it cannot be done.",
    run: Some(down),
    ..Command::BARE
};

fn up(given: &Given, output: &mut Output) -> Result<Exit> {
    let (file, before) = install::now(given);
    let keys = wishes(given, &file, &before)?;
    let has_token = |loaded: Loaded| {
        loaded
            .settings()
            .is_ok_and(|settings| settings.pipeops.token.read().is_ok())
    };
    let is_asked = ask::is_possible() && !has_token(before);
    let token = install::new_token(given, is_asked.then_some("Token of this cluster"))?;
    let plan = Plan::new(file, keys, output)?;
    let shown = match &token {
        Some(token) => token.clone(),
        None => plan.settings.pipeops.token.read().map_err(|error| {
            let is_forbidden = error.why.iter().any(|why| why.contains("ermission denied"));
            error.fix(if is_forbidden {
                "sudo pipeops-agent up"
            } else {
                "give one: --token-file FILE, or PIPEOPS_TOKEN in the environment"
            })
        })?,
    };
    plan.check(&shown, given, output)?;
    if let Some(token) = &token {
        plan.write_token(token)?;
    }
    let written = plan.write_keys()?;
    let line = if given.has("no-start") {
        None
    } else {
        install::start(&plan)?
    };
    if !given.has("json") {
        if let Some(written) = &written {
            output.line(&format!("The settings are in {}.", written.display()));
        }
        if token.is_some() {
            output.line(&format!(
                "The token is in {}.",
                plan.token_file()?.display()
            ));
        }
    }
    let is_started = !given.has("no-start") && line.is_none();
    if given.has("json") {
        output.json(&json!({ "settings": written, "started": is_started, "run": line }));
    }
    if let Some(line) = line.filter(|_| !given.has("json")) {
        output.line(&format!(
            "The agent is no service of this machine. Run it: {line}"
        ));
    }
    if is_started {
        return first_words(given, output);
    }
    Ok(Exit::Fine)
}

/// What is to be written: what was given, and what a new machine needs.
fn wishes(given: &Given, file: &Path, before: &Loaded) -> Result<Vec<(&'static str, String)>> {
    let shown = before.shown();
    let is_set = |key: &str| {
        let found = shown.iter().find(|shown| shown.key.path == key);
        found.is_some_and(|shown| shown.value.is_some())
    };
    let mut keys = Vec::new();
    for (option, key) in [
        ("api-url", "pipeops.api_url"),
        ("cluster-name", "pipeops.cluster_name"),
        ("access", "access.level"),
    ] {
        if let Some(value) = given.text(option) {
            keys.push((key, value.to_owned()));
        }
    }
    let is_named = given.has("cluster-name") || is_set("pipeops.cluster_name");
    if !is_named && ask::is_possible() {
        let usual = hostname(Path::new("/")).unwrap_or_default();
        keys.push((
            "pipeops.cluster_name",
            ask::line("Name of this cluster", &usual)?,
        ));
    }
    if !is_set("pipeops.token_file") && !is_set("pipeops.token") {
        let path = file.with_file_name("token");
        keys.push(("pipeops.token_file", path.display().to_string()));
    }
    Ok(keys)
}

/// The status of the agent that was just started, as soon as it answers.
fn first_words(given: &Given, output: &mut Output) -> Result<Exit> {
    let sockets = socket::candidates_of(&load(given));
    let until = clock::now().mono.after(ANSWERS_WITHIN);
    loop {
        let asked = socket::ask(&sockets, &Ask::Get(STATUS_PATH)).map_err(|silence| silence.error);
        match asked.and_then(|answer| answer.fine("the agent does not say how it is")) {
            Ok(value) => {
                let said = Said::new(&value);
                let is_wrong = status::is_wrong(said);
                if !given.has("json") {
                    let tone = if is_wrong { Tone::Doubtful } else { Tone::Good };
                    let sentence = status::sentence(said.text("summary"));
                    output.line(&output.toned(tone, &printable(&sentence)));
                }
                return Ok(if is_wrong { Exit::Problem } else { Exit::Fine });
            }
            Err(error) if until.since(clock::now().mono).is_zero() => {
                return Err(error
                    .within("the agent was started and does not answer")
                    .fix(service::log_line()));
            }
            Err(_) => block_on(Timer::after(LOOK_EVERY)),
        };
    }
}

fn down(given: &Given, output: &mut Output) -> Result<Exit> {
    let (file, loaded) = install::now(given);
    let is_usual = file == Path::new(DEFAULT_FILE);
    let state = loaded.state_dir().to_owned();
    let purged: Vec<_> = [
        state,
        file.clone(),
        file.with_file_name("config.d"),
        file.with_file_name("token"),
    ]
    .into_iter()
    .filter(|path| given.has("purge") && path.exists())
    .collect();
    let paths: Vec<String> = purged
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    if !purged.is_empty() {
        // Somebody's settings may name any folder: only what the agent itself made is removed whole.
        check_is_ours(loaded.state_dir())?;
        let question = format!("Remove {} for good?", paths.join(", "));
        if !ask::is_permitted(given, &question)? {
            output.line("Nothing was removed, and nothing was stopped.");
            return Ok(Exit::Problem);
        }
    }
    let manager = service::manager(Path::new("/")).filter(|_| is_usual);
    if let Some(manager) = manager {
        manager.stop(Path::new("/"))?;
    }
    let sockets = socket::candidates_of(&loaded);
    match socket::ask(&sockets, &Ask::Get(STATUS_PATH)) {
        Ok(_) => {
            return Err(Error::new("an agent still runs")
                .why("it is no service of this machine")
                .fix("end it where it was started, by ctrl-C or kill; then again"));
        }
        Err(silence) if silence.is_down => {}
        // It is not known to be stopped.
        Err(silence) => return Err(silence.error.fix("sudo pipeops-agent down")),
    }
    for path in &purged {
        remove(path)?;
    }
    if given.has("json") {
        output.json(&json!({ "stopped": manager.is_some(), "removed": paths }));
        return Ok(Exit::Fine);
    }
    output.line(match manager {
        Some(_) => "The agent is stopped and starts at no boot. k3s and what runs in it goes on.",
        None => "No agent runs here, and none is a service of this machine.",
    });
    if !paths.is_empty() {
        output.line(&format!("Removed: {}.", paths.join(", ")));
    }
    Ok(Exit::Fine)
}

/// Whether a folder is one of the agent's.
fn check_is_ours(folder: &Path) -> Result<()> {
    let is_ours = !folder.exists() || folder.join(store::IDENTITY).exists();
    if is_ours && folder.components().count() > 2 {
        return Ok(());
    }
    Err(Error::new(format!("{} is not removed", folder.display()))
        .why(format!(
            "there is no {} in it, so it may be somebody else's",
            store::IDENTITY
        ))
        .fix("remove it by hand, if it is the agent's"))
}

fn remove(path: &Path) -> Result<()> {
    let removed = if path.is_dir() {
        std::fs::remove_dir_all(path)
    } else {
        std::fs::remove_file(path)
    };
    removed.map_err(|error| files::explain(format!("cannot remove {}", path.display()), &error))
}

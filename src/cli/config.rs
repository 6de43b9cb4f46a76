//! `config check`, `config show` and `config example`.

use serde_json::json;

use super::{
    args::Args,
    error_json, load,
    output::{Output, Tone, columns, printable},
    table::{CONFIG, Command, JSON, SET},
};
use crate::{
    config::{Loaded, Origin, Shown, keys},
    error::Exit,
};

/// `config`.
pub(super) static COMMAND: Command = Command {
    name: "config",
    about: "Check and show settings",
    options: &[JSON],
    below: &[&CHECK, &SHOW, &EXAMPLE],
    ..Command::BARE
};

static CHECK: Command = Command {
    name: "check",
    about: "Check the settings and report all errors",
    options: &[CONFIG, SET],
    examples: &[
        "pipeops-agent config check",
        "pipeops-agent config check --config /tmp/new.toml --json",
    ],
    exit: "0 the agent can run with these settings, 1 it cannot.",
    run: Some(|args, output| Ok(check(args, output))),
    ..Command::BARE
};

static SHOW: Command = Command {
    name: "show",
    about: "Print every setting, its value and its source",
    options: &[CONFIG, SET],
    examples: &[
        "pipeops-agent config show",
        "pipeops-agent config show --set access.level=off --json",
    ],
    exit: "0 the agent can run with these settings, 1 it cannot.",
    run: Some(|args, output| Ok(show(args, output))),
    ..Command::BARE
};

static EXAMPLE: Command = Command {
    name: "example",
    about: "Print an example file with all settings and their defaults",
    examples: &["pipeops-agent config example > /etc/pipeops-agent/config.toml"],
    run: Some(|args, output| Ok(example(args, output))),
    ..Command::BARE
};

fn check(args: &Args, output: &mut Output) -> Exit {
    let loaded = load(args);
    let (problems, warnings) = (loaded.problems(), loaded.warnings());
    if args.has("json") {
        output.json(&json!({
            "problems": problems.iter().map(error_json).collect::<Vec<_>>(),
            "warnings": warnings.iter().map(error_json).collect::<Vec<_>>(),
        }));
        return exit(&loaded);
    }
    print(&loaded, output);
    output.line(&match (problems.len(), warnings.len()) {
        (0, 0) => "the settings are fine".to_owned(),
        (0, count) => format!(
            "the agent can run with these settings; {}",
            counted(count, "warning")
        ),
        (count, _) => format!(
            "the agent cannot run with these settings: {}",
            counted(count, "problem")
        ),
    });
    exit(&loaded)
}

fn show(args: &Args, output: &mut Output) -> Exit {
    let loaded = load(args);
    let shown = loaded.shown();
    if args.has("json") {
        output.json(&shown_json(&loaded, &shown));
        return exit(&loaded);
    }
    let rows: Vec<_> = shown.iter().map(|setting| row(setting, &loaded)).collect();
    let head = vec!["KEY".to_owned(), "VALUE".to_owned(), "FROM".to_owned()];
    let lines = columns(&std::iter::once(head).chain(rows).collect::<Vec<_>>());
    let mut lines = lines.into_iter();
    if let Some(head) = lines.next() {
        let head = output.toned(Tone::Strong, &head);
        output.line(&head);
    }
    for (line, setting) in lines.zip(&shown) {
        let line = match setting.origin {
            Origin::Default => output.toned(Tone::Faint, &line),
            Origin::File { .. } | Origin::Environment(_) | Origin::Flag(_) => line,
        };
        output.line(&line);
    }
    print(&loaded, output);
    exit(&loaded)
}

fn shown_json(loaded: &Loaded, shown: &[Shown]) -> serde_json::Value {
    let settings: Vec<_> = shown
        .iter()
        .map(|setting| {
            json!({
                "key": setting.key.path,
                "value": setting.value,
                "from": setting.origin.to_string(),
                "default": setting.key.default,
                "variable": setting.key.variable(),
                "doc": setting.key.doc,
            })
        })
        .collect();
    json!({
        "settings": settings,
        "socket": loaded.socket(),
        "problems": loaded.problems().iter().map(error_json).collect::<Vec<_>>(),
        "warnings": loaded.warnings().iter().map(error_json).collect::<Vec<_>>(),
    })
}

fn example(args: &Args, output: &mut Output) -> Exit {
    if args.has("json") {
        output.json(&json!({ "file": keys::example_file() }));
    } else {
        output.line(keys::example_file().trim_end());
    }
    Exit::Fine
}

fn row(setting: &Shown, loaded: &Loaded) -> Vec<String> {
    let value = match &setting.value {
        Some(value) => printable(value),
        None if setting.key.path == "dashboard.socket" => loaded.socket().display().to_string(),
        None => "-".to_owned(),
    };
    vec![
        setting.key.path.to_owned(),
        value,
        setting.origin.to_string(),
    ]
}

fn print(loaded: &Loaded, output: &mut Output) {
    for problem in loaded.problems() {
        output.error(problem);
    }
    for warning in loaded.warnings() {
        output.warning(warning);
    }
}

fn exit(loaded: &Loaded) -> Exit {
    if loaded.problems().is_empty() {
        Exit::Fine
    } else {
        Exit::Problem
    }
}

fn counted(count: usize, word: &str) -> String {
    match count {
        1 => format!("1 {word}"),
        _ => format!("{count} {word}s"),
    }
}

//! Commands with their options and values, as the program tells a shell and a person; their JSON;
//! their exit codes.

use std::{collections::BTreeSet, process::Output};

use serde_json::Value;

use super::{
    describe, hold,
    local_api::{answer, description, differences},
};
use crate::{
    agent::{command, put},
    cli::local::said,
};

fn program(words: &[&str]) -> Output {
    command(env!("CARGO_BIN_EXE_pipeops-agent"))
        .args(words)
        .env_clear()
        .output()
        .unwrap()
}

/// Candidates for the last word of a command line.
fn next(words: &[&str]) -> Vec<String> {
    let all: Vec<_> = ["completions", "next", "--"]
        .iter()
        .chain(words)
        .copied()
        .collect();
    let output = program(&all);
    assert!(output.status.success(), "{words:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines()
        .map(|line| line.split('\t').next().unwrap().to_owned())
        .collect()
}

/// The terms of a section of the help, each with the default that its meaning ends with.
fn terms(help: &str, title: &str) -> Vec<String> {
    let lines = help
        .lines()
        .skip_while(|line| line.strip_suffix(':') != Some(title))
        .skip(1);
    let lines = lines.take_while(|line| line.starts_with("  "));
    lines
        .map(|line| {
            let line = line.trim();
            let term = line.split("  ").next().unwrap();
            let default = line
                .split_once(" [default: ")
                .and_then(|(_, it)| it.split_once(']'))
                .map_or(String::new(), |(it, _)| format!(" [default: {it}]"));
            format!("{term}{default}")
        })
        .collect()
}

/// These words and one more.
fn with<'a>(path: &[&'a str], word: &'a str) -> Vec<&'a str> {
    path.iter().copied().chain([word]).collect()
}

/// The values that an option is known to take.
fn values(path: &[&str], option: &str) -> String {
    let given = format!("{option}=");
    let values = next(&with(path, &given));
    let values: Vec<_> = values
        .iter()
        .map(|it| it.strip_prefix(&given).unwrap_or(it))
        .collect();
    match values.as_slice() {
        [] => String::new(),
        // Every setting there is: they are held elsewhere.
        all if all.len() > 20 => " (settings)".to_owned(),
        some => format!(" ({})", some.join(", ")),
    }
}

fn walk(path: &[&str], lines: &mut Vec<String>) {
    let output = program(&with(path, "-h"));
    let help = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{path:?}");
    let usage = help.lines().find_map(|line| line.strip_prefix("Usage: "));
    let usage = usage.unwrap();
    lines.push(usage.trim().to_owned());
    let arguments = terms(&help, "Arguments");
    lines.extend(arguments.into_iter().map(|it| format!("  {it}")));
    for option in terms(&help, "Options") {
        let long = option.split([' ', ',']).find(|word| word.starts_with("--"));
        let values = values(path, long.unwrap());
        lines.push(format!("  {option}{values}"));
    }
    for below in terms(&help, "Commands") {
        walk(&with(path, &below), lines);
    }
}

#[test]
fn commands_keep_their_names_options_and_values() {
    let mut lines = Vec::new();
    walk(&[], &mut lines);
    assert!(lines.len() > 100);
    hold("commands.txt", lines);
}

#[test]
fn exit_codes_stay() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (socket, config) = (path("agent.sock"), path("config.toml"));
    put(&folder.path().join("config.toml"), "");
    let lines: [&[&str]; 20] = [
        &[],
        &["--help"],
        &["-h"],
        &["help"],
        &["help", "status"],
        &["--version"],
        &["-V"],
        &["version"],
        &["stats"],
        &["help", "stats"],
        &["status", "--jsn"],
        &["metrics"],
        &["metrics", "-h"],
        &["status", "--socket", &socket],
        &["status", "--socket", &socket, "--json"],
        &["access", "test"],
        &["config", "check", "--config", &config],
        &["run", "--config", &config],
        &["config", "example"],
        &["completions", "tcsh"],
    ];
    let lines = lines.map(|words| {
        let output = program(words);
        let place = match (output.stdout.is_empty(), output.stderr.is_empty()) {
            (false, true) => "stdout",
            (true, false) => "stderr",
            (true, true) => "silent",
            (false, false) => "stdout and stderr",
        };
        let words: Vec<_> = words
            .iter()
            .map(|word| if word.starts_with('/') { "PATH" } else { word })
            .collect();
        format!(
            "pipeops-agent {}: {}, {place}",
            words.join(" "),
            output.status.code().unwrap()
        )
    });
    hold("exit-codes.txt", lines);
}

/// The schemas of the local API that describe an object, by its fields alone.
fn schema_of(value: &Value) -> Option<String> {
    let fields: BTreeSet<&str> = value.as_object()?.keys().map(String::as_str).collect();
    let description = description();
    let mut found = Vec::new();
    for (name, schema) in description["components"]["schemas"].as_object()? {
        let known: BTreeSet<&str> = schema["properties"]
            .as_object()?
            .keys()
            .map(String::as_str)
            .collect();
        let required = schema["required"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str);
        let required: BTreeSet<&str> = required.collect();
        if !fields.is_empty() && fields.is_subset(&known) && required.is_subset(&fields) {
            let mut differ = Vec::new();
            differences(value, schema, name, &mut differ);
            assert!(differ.is_empty(), "{differ:#?}");
            found.push(name.clone());
        }
    }
    (!found.is_empty()).then(|| found.join(" or "))
}

/// The JSON that a command printed, as lines.
fn lines_of(words: &[&str], output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    let value: Value = serde_json::from_str(&text)
        .unwrap_or_else(|error| panic!("{words:?}: {error}: {text}{stderr}"));
    let mut found = BTreeSet::new();
    describe(&value, "", &schema_of, &mut found);
    // There is none where the program was not built from a checkout.
    found.retain(|line| !line.starts_with(".commit: "));
    let found = found.into_iter().map(|line| format!("  {line}"));
    [words.join(" ")].into_iter().chain(found).collect()
}

#[test]
fn json_of_commands_without_an_agent_stays() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.toml").display().to_string();
    put(
        &folder.path().join("config.toml"),
        "[pipeops]\ntoken = \"clt_1\"\nfrobnicate = 1\n",
    );
    let output = folder.path().join("bundle.tar.gz").display().to_string();
    let socket = folder.path().join("agent.sock").display().to_string();
    let commands: [(&[&str], &[&str]); 10] = [
        (&["version"], &[]),
        (&["config", "check"], &["--config", &config]),
        (&["config", "show"], &["--config", &config]),
        (&["config", "example"], &[]),
        (&["rbac"], &[]),
        (&["man", "version"], &[]),
        (&["completions", "bash"], &[]),
        (&["completions", "next"], &["--", "versio"]),
        (&["status"], &["--socket", &socket]),
        (&["bundle"], &["--config", &config, "--output", &output]),
    ];
    let mut lines = Vec::new();
    for (words, more) in commands {
        let all: Vec<_> = words
            .iter()
            .chain(&["--json"])
            .chain(more)
            .copied()
            .collect();
        lines.extend(lines_of(words, &program(&all)));
    }
    hold("json-of-commands-alone.txt", lines);
}

#[test]
fn json_of_commands_that_ask_the_agent_stays() {
    let routes = [
        "/api/v1/status",
        "/api/v1/host",
        "/api/v1/diagnosis",
        "/api/v1/cluster",
        "/api/v1/logs",
        "/api/v1/events",
        "/api/v1/k3s",
        "/api/v1/link",
        "/api/v1/settings",
        "/api/v1/problems",
        "/api/v1/changes",
        "/api/v1/access",
        "/api/v1/access/decision",
    ];
    let commands: [(&[&str], &str, &str); 13] = [
        (&["status"], "", ""),
        (&["why"], "", ""),
        (&["link"], "", ""),
        (&["events"], "", ""),
        (&["logs"], "", ""),
        (&["doctor"], "", ""),
        (&["access"], "", ""),
        (&["access", "read-only"], "post", "/api/v1/access"),
        (&["changes"], "", ""),
        (&["undo", "a-1"], "post", "/api/v1/changes/{id}/undo"),
        (&["dashboard", "token"], "post", "/api/v1/tokens"),
        (
            &["dashboard", "password", "--remove"],
            "put",
            "/api/v1/password",
        ),
        (&["dashboard", "logout"], "delete", "/api/v1/sessions"),
    ];
    let mut lines = Vec::new();
    for (words, method, path) in commands {
        let mut answers: Vec<_> = routes
            .iter()
            .map(|path| (*path, answer("get", path)))
            .collect();
        let changed = path.replace("{id}", "a-1");
        if !path.is_empty() {
            answers.retain(|(known, _)| *known != changed);
            answers.push((&changed, answer(method, path)));
        }
        let all: Vec<_> = words.iter().chain(&["--json"]).copied().collect();
        let (output, _) = said(&answers, &all);
        lines.extend(lines_of(words, &output));
    }
    hold("json-of-commands.txt", lines);
}

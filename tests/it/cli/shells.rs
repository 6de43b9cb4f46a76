//! Completion in real shells, and the manual in what shows manuals. A program that is not installed
//! is said and passed over.

use std::{
    fmt::Write as _,
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

use super::{agent, text};

/// What somebody types before the tab, after it, and what must stand on the line in the end.
const LINES: &[(&str, &str, &str)] = &[
    ("sta", "", "status"),
    ("metrics ex", "", "metrics export"),
    ("metrics export --fo", "j\t", "metrics export --format json"),
    ("status --socket some", "", "status --socket some file.toml"),
    ("run --set log.l", "x", "run --set log.level=x"),
    ("access test GET a:b --js", "", "access test GET a:b --json"),
];

#[test]
fn bash_completes_what_is_typed() {
    let mut lines: Vec<_> = LINES.to_vec();
    // bash alone takes words apart at = and :.
    lines.push((
        "metrics export --format=c",
        "",
        "metrics export --format=csv",
    ));
    lines.push(("status --socket=some", "", "status --socket=some file.toml"));
    typed("bash", &["bash", "--norc", "--noprofile", "-i"], &lines);
}

#[test]
fn zsh_completes_what_is_typed() {
    // Its line editor wants a terminal, which `script` has.
    let words = ["script", "-qec", "zsh -f -i", "/dev/null"];
    typed("zsh", &words, LINES);
}

#[test]
fn fish_completes_what_is_typed() {
    if !is_installed("fish") {
        return;
    }
    let folder = folder("fish");
    for (before, _, wanted) in LINES.iter().filter(|(_, after, _)| after.is_empty()) {
        let line = format!("source fish; complete -C 'pipeops-agent {before}'");
        let output = shell(&["fish", "--no-config", "-c", &line], folder.path(), "");
        let last = wanted.split_once(before.rsplit_once(' ').map_or("", |(first, _)| first));
        let last = last.unwrap().1.trim();
        let found = output.lines().map(|line| line.split('\t').next().unwrap());
        assert!(
            found.into_iter().any(|word| word == last),
            "{before}: {output}"
        );
    }
}

/// A folder with the script of a shell, and a file whose name has a space in it.
fn folder(shell: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let script = agent(&["completions", shell], &[]).stdout;
    pipeops_agent::files::replace(&folder.path().join(shell), &script, 0o600).unwrap();
    pipeops_agent::files::replace(&folder.path().join("some file.toml"), b"", 0o600).unwrap();
    folder
}

/// Types lines into an interactive shell. Each is made an argument list of `show` before it runs,
/// by ctrl-A.
fn typed(name: &str, words: &[&str], lines: &[(&str, &str, &str)]) {
    if !is_installed(name) || !is_installed(words[0]) {
        return;
    }
    let folder = folder(name);
    let mut input = match name {
        "zsh" => "autoload -Uz compinit; compinit -u -D\n".to_owned(),
        _ => String::new(),
    };
    writeln!(
        input,
        "source ./{name}\nshow() {{ print=\"$*\"; echo \"line: $print.\"; }}"
    )
    .unwrap();
    for (before, after, _) in lines {
        writeln!(input, "pipeops-agent {before}\t{after}\u{1}show ").unwrap();
    }
    input.push_str("exit\n");
    let output = shell(words, folder.path(), &input);
    for (before, _, wanted) in lines {
        let wanted = format!("line: pipeops-agent {wanted}.");
        assert!(output.contains(&wanted), "{before}: {wanted}: {output}");
    }
}

/// Returns whether a program can be tried; says so where it cannot.
fn is_installed(name: &str) -> bool {
    let folders = std::env::var_os("PATH").unwrap();
    let is_there = std::env::split_paths(&folders).any(|folder| folder.join(name).exists());
    if !is_there {
        eprintln!("skipped: {name} is not installed");
    }
    is_there
}

/// What a program says that finds the agent.
#[expect(clippy::disallowed_methods, reason = "a shell ends with its input")]
fn shell(words: &[&str], folder: &Path, input: &str) -> String {
    let program = Path::new(env!("CARGO_BIN_EXE_pipeops-agent")).parent();
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{path}", program.unwrap().display());
    let mut child = Command::new(words[0])
        .args(&words[1..])
        .current_dir(folder)
        .env_clear()
        .env("PATH", path)
        .env("HOME", folder)
        .envs([("TERM", "dumb"), ("LC_ALL", "C.UTF-8"), ("MANWIDTH", "100")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    drop(stdin);
    text(&child.wait_with_output().unwrap().stdout)
}

#[test]
fn every_command_has_a_page_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let told = agent(&["man", "--output", path, "--json"], &[]).stdout;
    let told: serde_json::Value = serde_json::from_slice(&told).unwrap();
    let pages = told["pages"].as_array().unwrap();
    assert!(pages.len() > 40, "{told}");
    let can_lint = is_installed("mandoc");
    for page in pages {
        let page = Path::new(page.as_str().unwrap());
        let name = page.file_stem().unwrap().to_str().unwrap();
        let content = std::fs::read_to_string(page).unwrap();
        let head = format!("\n.TH {} 1 ", name.to_uppercase());
        assert!(content.contains(&head), "{name}: {content}");
        // Pages that it refers to exist.
        let mentioned = content.split("(1)").map(|before| {
            let name = before.rsplit(['\n', 'B']).next().unwrap();
            name.trim_end_matches("\\fR").replace("\\-", "-")
        });
        let mut mentioned = mentioned.filter(|it| it.starts_with("pipeops-agent"));
        let missing = mentioned.find(|it| !folder.path().join(format!("{it}.1")).exists());
        assert_eq!(missing, None, "{name}");
        if can_lint {
            let lint = ["mandoc", "-T", "lint", "-W", "error"];
            assert_eq!(shell(&lint, folder.path(), &content), "", "{name}");
        }
    }
    let missing = format!("{path}/missing");
    let output = agent(&["man", "--output", &missing], &[]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_page_of_the_manual_has_no_faults() {
    let page = text(&agent(&["man"], &[]).stdout);
    let folder = tempfile::tempdir().unwrap();
    for words in [
        vec!["man", "--warnings", "-l", "-"],
        vec!["mandoc", "-T", "utf8"],
    ] {
        if !is_installed(words[0]) {
            continue;
        }
        let shown = shell(&words, folder.path(), &page);
        // Bold letters are typed over.
        let mut plain = String::new();
        for letter in shown.chars() {
            if letter == '\u{8}' {
                plain.pop();
            } else {
                plain.push(letter);
            }
        }
        for wanted in [
            "SYNOPSIS",
            "EXIT STATUS",
            "--socket <PATH>",
            "PIPEOPS_TOKEN_FILE",
            "| kubectl apply -f -",
        ] {
            assert!(plain.contains(wanted), "{words:?}: {wanted}: {plain}");
        }
    }
    if is_installed("mandoc") {
        let lint = ["mandoc", "-T", "lint", "-W", "error"];
        assert_eq!(shell(&lint, folder.path(), &page), "");
    }
    let one = text(&agent(&["man", "access", "test"], &[]).stdout);
    assert!(one.contains("\n.TH PIPEOPS-AGENT-ACCESS-TEST 1 "), "{one}");
    let unknown = agent(&["man", "acess"], &[]);
    assert!(text(&unknown.stderr).contains("did you mean access?"));
}

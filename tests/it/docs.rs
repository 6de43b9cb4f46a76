//! The commands in the README and the documentation: each one is understood by the program, and
//! those that only look are run against an agent.

use std::{fs, path::Path};

use plane::{Options, Plane};

use crate::{
    agent::{Agent, command},
    tidy::rust_files,
};

/// Texts with commands for people.
const PAGES: &[&str] = &[
    "README.md",
    "SECURITY.md",
    "docs/access.md",
    "docs/apps.md",
    "docs/configure.md",
    "docs/dashboard.md",
    "docs/faults.md",
    "docs/install.md",
    "docs/k3s.md",
    "docs/metrics.md",
    "docs/notify.md",
    "docs/operate.md",
    "docs/remote-write.md",
    "docs/update.md",
];

/// Commands that change nothing and end by themselves, by their first words.
const LOOKS: &[&str] = &[
    "access test",
    "changes",
    "config check",
    "config example",
    "config show",
    "events",
    "link",
    "metrics outbox",
    "metrics streams",
    "rbac",
    "status",
    "why link",
];

/// Words that a person replaces.
const BLANKS: &[&str] = &["ID", "TYPES"];

/// The commands of a page: in a block, fenced or indented, and between backquotes.
fn commands(page: &str) -> Vec<String> {
    let mut is_fenced = false;
    let mut found = Vec::new();
    for line in page.lines() {
        if line.starts_with("```") {
            is_fenced = !is_fenced;
            continue;
        }
        let pieces: Vec<&str> = if is_fenced || line.starts_with("    ") {
            line.split("&& ").map(str::trim_start).collect()
        } else {
            line.split('`').skip(1).step_by(2).collect()
        };
        for piece in pieces {
            let piece = piece.trim_start_matches("sudo ");
            if let Some(words) = piece.strip_prefix("pipeops-agent ") {
                // What the shell does with its output, and what is said about it.
                let words = words.split([';', '|', '>', '<', '#', '\\']).next();
                found.push(words.unwrap_or_default().trim().to_owned());
            }
        }
    }
    found
}

fn all() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let pages = PAGES
        .iter()
        .map(|page| fs::read_to_string(root.join(page)).unwrap());
    let mut all: Vec<String> = pages.flat_map(|page| commands(&page)).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Words as a shell takes them: the pages have single quotes only.
fn words(command: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (number, piece) in command.split('\'').enumerate() {
        if number % 2 == 1 {
            words.push(piece.to_owned());
        } else {
            words.extend(piece.split_whitespace().map(str::to_owned));
        }
    }
    words
}

#[test]
fn every_command_of_the_documentation_is_one_of_the_program() {
    let all = all();
    assert!(all.len() > 40, "{all:#?}");
    for line in all {
        let run = command(env!("CARGO_BIN_EXE_pipeops-agent"))
            .args(words(&line))
            .arg("--help")
            .env_clear()
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&run.stderr);
        assert!(run.status.success(), "pipeops-agent {line}: {said}");
    }
}

#[test]
fn commands_of_the_documentation_that_only_look_answer() {
    let plane = Plane::start(Options::default()).unwrap();
    let mut agent = Agent::new(&plane);
    agent.start();
    agent.until_linked();
    let mut tried = 0;
    for line in all() {
        let words = words(&line);
        if !LOOKS.iter().any(|looks| line.starts_with(looks))
            || words.iter().any(|word| BLANKS.contains(&word.as_str()))
        {
            continue;
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let (code, said) = agent.cli(&words);
        // 1: it found a problem, as it does on a machine without a cluster.
        assert!(
            matches!(code, 0 | 1),
            "pipeops-agent {line}: {code}: {said}"
        );
        tried += 1;
    }
    assert!(tried > 12, "{tried} commands");
}

#[test]
fn every_attack_that_the_documentation_names_has_a_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sources: String = ["src", "tests/it"]
        .iter()
        .flat_map(|folder| rust_files(&root.join(folder)))
        .map(|path| fs::read_to_string(path).unwrap())
        .collect();
    let page = fs::read_to_string(root.join("docs/update.md")).unwrap();
    let (_, table) = page.split_once("| Attack | Answer | Test |\n").unwrap();
    let rows: Vec<&str> = table
        .lines()
        .skip(1)
        .take_while(|line| line.starts_with('|'))
        .collect();
    assert!(rows.len() > 8, "{rows:#?}");
    for row in rows {
        let cell = row.trim_end_matches(['|', ' ']).rsplit('|').next();
        let tests: Vec<&str> = cell.unwrap().split('`').skip(1).step_by(2).collect();
        assert!(!tests.is_empty(), "no test: {row}");
        for test in tests {
            let head = format!("#[test]\nfn {test}()");
            let nested = format!("#[test]\n    fn {test}()");
            assert!(
                sources.contains(&head) || sources.contains(&nested),
                "there is no test {test}, for {row}"
            );
        }
    }
}

//! Contracts with the outside: names, types and defaults of everything that leaves the program, as
//! files in `tests/data/contract`.
//!
//! A change of one of these files is a change that somebody outside can notice. `UPDATE_EXPECT=1`
//! writes them again.

mod commands;
mod disk;
mod local_api;
mod metrics;
mod names;
mod wire;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use serde_json::Value;

/// Holds lines against their file.
fn hold(name: &str, lines: impl IntoIterator<Item = String>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/contract");
    let mut text = lines.into_iter().collect::<Vec<_>>().join("\n");
    text.push('\n');
    expect_test::expect_file![path.join(name)].assert_eq(&text);
}

/// The names and types of a JSON value, a line for each leaf; elements of a list are taken
/// together. `name` knows objects that are described elsewhere.
fn describe(
    value: &Value,
    path: &str,
    name: &dyn Fn(&Value) -> Option<String>,
    lines: &mut BTreeSet<String>,
) {
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(all) if all.is_empty() => "[]",
        Value::Array(all) => {
            for each in all {
                describe(each, &format!("{path}[]"), name, lines);
            }
            return;
        }
        Value::Object(fields) => {
            if let Some(name) = name(value) {
                lines.insert(format!("{path}: {name}"));
                return;
            }
            for (field, value) in fields {
                describe(value, &format!("{path}.{field}"), name, lines);
            }
            return;
        }
    };
    lines.insert(format!("{path}: {kind}"));
}

/// The words of a family, in one line.
fn words(family: &str, words: impl IntoIterator<Item: Into<String>>) -> String {
    let words: Vec<String> = words.into_iter().map(Into::into).collect();
    format!("{family}: {}", words.join(", "))
}

/// Every source file of the program without its tests: what stands before `#[cfg(test)]`.
fn sources() -> Vec<String> {
    let mut folders = vec![PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src")];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            let is_test = matches!(name, "tests.rs" | "tests" | "simulation.rs" | "fixtures.rs");
            if path.is_dir() && !is_test {
                folders.push(path);
            } else if path.extension().is_some_and(|it| it == "rs") && !is_test {
                let text = std::fs::read_to_string(&path).unwrap();
                let code = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap();
                found.push(code.to_owned());
            }
        }
    }
    found
}

/// The texts in quotes of all code, without those in comments.
fn quoted() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for code in sources() {
        for line in code
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"))
        {
            let pieces = line.split('"');
            found.extend(pieces.skip(1).step_by(2).map(str::to_owned));
        }
    }
    found
}

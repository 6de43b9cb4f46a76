//! `docs/configure.md`, which is generated from the table of settings. `UPDATE_EXPECT=1` writes it.

use std::fmt::Write as _;

use expect_test::expect_file;
use pipeops_agent::config::{
    keys::{KEYS, Key, SECTIONS, Secrecy},
    value::ValueKind,
};

const HEAD: &str = "\
# Settings

Every setting of `pipeops-agent`. This page is generated from the table in `src/config/keys.rs`.

Settings come from these places; the later one wins:

1. the default,
2. `/etc/pipeops-agent/config.toml` (another file: `--config FILE`),
3. the files of `config.d` beside it, in the order of their names,
4. the environment,
5. `--set SECTION.KEY=VALUE` on the command line.

```toml
[pipeops]
cluster_name = \"attic\"

[access]
level = \"read-only\"
```

`pipeops-agent config check` names every mistake with its line and its fix, `pipeops-agent config show` prints the settings
that are in force and where each comes from, and `pipeops-agent config example` prints a file to start from. Restart the
agent after a change: `sudo systemctl restart pipeops-agent`, or `sudo rc-service pipeops-agent restart`.
";

#[test]
fn the_page_of_settings_is_what_the_table_says() {
    expect_file!["../../docs/configure.md"].assert_eq(&page());
}

fn page() -> String {
    let mut page = HEAD.to_owned();
    for (section, about) in SECTIONS {
        let keys: Vec<&Key> = KEYS
            .iter()
            .filter(|key| key.section() == *section)
            .collect();
        write!(page, "\n## `[{section}]`\n\n{about}\n").unwrap();
        for key in keys {
            page.push_str(&entry(key));
        }
    }
    page
}

fn entry(key: &Key) -> String {
    let mut entry = format!("\n### `{}`\n\n{}\n\n", key.path, key.doc);
    let default = match key.default {
        Some(default) => format!("`{default}`"),
        None => "none".to_owned(),
    };
    let names: Vec<String> = [key.variable()]
        .into_iter()
        .chain(key.older_names.iter().map(|name| (*name).to_owned()))
        .map(|name| format!("`{name}`"))
        .collect();
    let (value, names) = (value(&key.kind), names.join(", "));
    writeln!(
        entry,
        "* Value: {value}\n* Default: {default}\n* Environment: {names}"
    )
    .unwrap();
    match key.secrecy {
        Secrecy::Open => {}
        Secrecy::Hidden => {
            entry.push_str("* Secret: it is never printed, and not accepted on the command line.\n")
        }
        Secrecy::Password => {
            entry.push_str("* May hold a password, which is never printed.\n");
        }
    }
    entry
}

fn value(kind: &ValueKind) -> String {
    let words = |words: &[&str]| {
        let words: Vec<_> = words.iter().map(|word| format!("`{word}`")).collect();
        words.join(", ")
    };
    match kind {
        ValueKind::Text => "text".to_owned(),
        ValueKind::Path => "path of a file or folder".to_owned(),
        ValueKind::Flag => "`true` or `false`".to_owned(),
        ValueKind::Time { min_s, max_s } => {
            format!("length of time such as `30s`, `5m`, `2h`; from {min_s} s to {max_s} s")
        }
        ValueKind::Bytes { min } => {
            format!("number of bytes such as `200MB`; at least {min}")
        }
        ValueKind::Choice(choices) => format!("one of {}", words(choices)),
        ValueKind::Words(choices) => format!(
            "list of {}; in the environment with commas between them",
            words(choices)
        ),
        ValueKind::Ip => "IP address".to_owned(),
        ValueKind::Address => "IP address with a port, or `off`".to_owned(),
        ValueKind::Labels => "table of names and texts; in the environment `a=1,b=2`".to_owned(),
    }
}

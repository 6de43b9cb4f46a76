//! `config check`, `config show` and `config example`.

use serde_json::json;

use super::{
    Form, error_json,
    output::{Output, Tone, columns, printable},
};
use crate::{
    config::{Loaded, Origin, Shown, keys},
    error::Exit,
};

/// Says everything that is wrong with the settings.
pub(super) fn check(loaded: &Loaded, form: Form, output: &mut Output) -> Exit {
    let (problems, warnings) = (loaded.problems(), loaded.warnings());
    if form.json {
        output.json(&json!({
            "problems": problems.iter().map(error_json).collect::<Vec<_>>(),
            "warnings": warnings.iter().map(error_json).collect::<Vec<_>>(),
        }));
        return exit(loaded);
    }
    tell(loaded, output);
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
    exit(loaded)
}

/// Prints every setting, its value and where it came from.
pub(super) fn show(loaded: &Loaded, form: Form, output: &mut Output) -> Exit {
    let shown = loaded.shown();
    if form.json {
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
        output.json(&json!({
            "settings": settings,
            "socket": loaded.socket(),
            "problems": loaded.problems().iter().map(error_json).collect::<Vec<_>>(),
            "warnings": loaded.warnings().iter().map(error_json).collect::<Vec<_>>(),
        }));
        return exit(loaded);
    }
    let rows: Vec<_> = shown.iter().map(|setting| row(setting, loaded)).collect();
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
            Origin::File { .. } | Origin::Environment(_) | Origin::Flag => line,
        };
        output.line(&line);
    }
    tell(loaded, output);
    exit(loaded)
}

/// Prints the documented file.
pub(super) fn example(form: Form, output: &mut Output) -> Exit {
    if form.json {
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

fn tell(loaded: &Loaded, output: &mut Output) {
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

//! Recordings of rollouts: a line of JSON for the scope, then one for each observation that differs
//! from the one before.

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Value, json};

use crate::core::{
    order::GatherExt as _,
    rollout::{Finding, JudgedRollout, Key, Object, Observation, Scope},
    time::Mono,
};

/// Lines of a recording. One of an hour with a change every second has 3,600.
const LINES_MAX: usize = 100_000;

/// Writes a recording, line by line.
#[cfg(feature = "internals")]
#[derive(Debug, Default)]
pub struct Recorder {
    last: Option<Observation>,
    is_begun: bool,
}

#[cfg(feature = "internals")]
impl Recorder {
    /// The first line.
    pub fn scope(scope: &Scope) -> String {
        let targets: Vec<_> = scope
            .targets
            .iter()
            .map(|(key, generation)| {
                let mut target = written(key);
                if let Value::Object(fields) = &mut target {
                    fields.insert("generation".to_owned(), json!(generation));
                }
                target
            })
            .collect();
        json!({
            "targets": targets,
            "deadline_s": scope.deadline.as_secs(),
            "soak_s": scope.soak.as_secs(),
        })
        .to_string()
    }

    /// The last line: nothing has changed until this moment.
    pub fn end(at: Duration) -> String {
        let at_ms = u64::try_from(at.as_millis()).unwrap_or(u64::MAX);
        json!({"at_ms": at_ms, "set": [], "gone": []}).to_string()
    }

    /// The line of an observation; `None` where nothing has changed. `seen` is `None` if the
    /// cluster could not be seen.
    pub fn line(&mut self, at: Duration, seen: Option<&Observation>) -> Option<String> {
        let at_ms = u64::try_from(at.as_millis()).unwrap_or(u64::MAX);
        let line = match (seen, &self.last) {
            (None, None) if self.is_begun => None,
            (None, _) => Some(json!({"at_ms": at_ms, "blind": true})),
            (Some(seen), last) => changes(at_ms, seen, last.as_ref()),
        };
        self.is_begun = true;
        self.last = seen.cloned();
        line.map(|line| line.to_string())
    }
}

#[cfg(feature = "internals")]
fn changes(at_ms: u64, seen: &Observation, last: Option<&Observation>) -> Option<Value> {
    let set: Vec<_> = seen
        .all()
        .filter(|object| last.and_then(|last| last.get(&object.key())) != Some(object))
        .map(Object::value)
        .collect();
    let gone: Vec<_> = last
        .into_iter()
        .flat_map(Observation::all)
        .map(Object::key)
        .filter(|key| seen.get(key).is_none())
        .map(|key| written(&key))
        .collect();
    let is_same = set.is_empty() && gone.is_empty() && last.is_some();
    (!is_same).then(|| json!({"at_ms": at_ms, "set": set, "gone": gone}))
}

#[cfg(feature = "internals")]
fn written(key: &Key) -> Value {
    json!({"kind": key.kind, "namespace": key.namespace, "name": key.name})
}

fn key(value: &Value) -> Key {
    let text = |name: &str| {
        let field = value.get(name).and_then(Value::as_str);
        field.unwrap_or_default().to_owned()
    };
    Key {
        kind: text("kind"),
        namespace: text("namespace"),
        name: text("name"),
    }
}

/// A judgement as the API and the command line show it, without the names of app and revision.
pub fn shown(judgement: &JudgedRollout) -> Value {
    let mut shown = finding(judgement.finding.as_ref());
    if let Value::Object(fields) = &mut shown {
        fields.insert("verdict".to_owned(), json!(judgement.verdict.as_str()));
        fields.insert("sentence".to_owned(), json!(judgement.sentence));
    }
    shown
}

/// Cause, object, evidence and fix; `null` where there is none.
fn finding(found: Option<&Finding>) -> Value {
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    json!({
        "cause": found.map(|found| found.cause.id()),
        "object": found.and_then(|found| text(&found.object)),
        "evidence": found.and_then(|found| text(&found.evidence)),
        "fix": found.and_then(|found| text(&found.fix)),
    })
}

/// A recording that was read.
#[derive(Clone, Debug)]
pub struct Recording {
    /// Objects and times.
    pub scope: Scope,
    /// Observations, each from its moment until the next one; `None` if the cluster could not be
    /// seen.
    pub frames: Vec<(Mono, Option<Observation>)>,
}

/// Reads a recording.
///
/// # Errors
/// The line that makes no sense, and why.
pub fn read(text: &str) -> Result<Recording, String> {
    let mut lines = text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty());
    let parsed = |(number, line): (usize, &str)| {
        serde_json::from_slice::<Value>(line.as_bytes())
            .map_err(|error| format!("line {}: {error}", number.saturating_add(1)))
    };
    let head = parsed(lines.next().ok_or("it is empty")?)?;
    let scope = scope(&head)?;
    let mut frames: Vec<(Mono, Option<Observation>)> = Vec::new();
    for (number, line) in lines {
        if frames.len() >= LINES_MAX {
            return Err(format!("it has more than {LINES_MAX} lines"));
        }
        let line = parsed((number, line))?;
        let at = line.get("at_ms").and_then(Value::as_u64);
        let at =
            at.ok_or_else(|| format!("line {}: at_ms is missing", number.saturating_add(1)))?;
        let at = Mono::since_boot(Duration::from_millis(at));
        if line.get("blind").is_some() {
            frames.push((at, None));
            continue;
        }
        let mut seen = frames
            .last()
            .and_then(|(_, seen)| seen.clone())
            .unwrap_or_default();
        let items = |name: &str| {
            line.get(name)
                .and_then(Value::as_array)
                .cloned()
                .unwrap_or_default()
        };
        for object in items("set") {
            seen.add(Object::recorded(&object));
        }
        for gone in items("gone") {
            seen.remove(&key(&gone));
        }
        frames.push((at, Some(seen)));
    }
    Ok(Recording { scope, frames })
}

fn scope(head: &Value) -> Result<Scope, String> {
    let seconds = |name: &str| {
        let number = head.get(name).and_then(Value::as_u64);
        number
            .map(Duration::from_secs)
            .ok_or_else(|| format!("line 1: {name} is missing"))
    };
    let targets = head
        .get("targets")
        .and_then(Value::as_array)
        .ok_or("line 1: targets are missing")?;
    let target = |target: &Value| {
        let generation = target.get("generation").and_then(Value::as_u64);
        (key(target), generation.unwrap_or(0))
    };
    Ok(Scope {
        targets: targets.iter().map(target).gather::<BTreeMap<_, _>>(),
        deadline: seconds("deadline_s")?,
        soak: seconds("soak_s")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(names: &[&str]) -> Observation {
        let mut seen = Observation::default();
        for name in names {
            seen.add(Object::reduced("Pod", &json!({"metadata": {"name": name}})));
        }
        seen
    }

    #[test]
    fn what_was_recorded_is_read_back_and_only_changes_are_written() {
        let pod = Key {
            kind: "Pod".to_owned(),
            namespace: String::new(),
            name: "a".to_owned(),
        };
        let scope = Scope {
            targets: BTreeMap::from([(pod, 3)]),
            deadline: Duration::from_secs(30),
            soak: Duration::from_secs(10),
        };
        let mut recorder = Recorder::default();
        let moments = [
            Some(seen(&["a"])),
            Some(seen(&["a"])),
            None,
            None,
            Some(seen(&["b"])),
        ];
        let mut text = Recorder::scope(&scope);
        for (second, moment) in (0..).zip(&moments) {
            if let Some(line) = recorder.line(Duration::from_secs(second), moment.as_ref()) {
                text.push('\n');
                text.push_str(&line);
            }
        }
        let recording = read(&text).unwrap();
        assert_eq!(recording.scope, scope);
        let at = |second| Mono::since_boot(Duration::from_secs(second));
        assert_eq!(
            recording.frames,
            [
                (at(0), Some(seen(&["a"]))),
                (at(2), None),
                (at(4), Some(seen(&["b"])))
            ]
        );
    }

    #[test]
    fn nonsense_is_named_with_its_line() {
        let head = r#"{"targets":[],"deadline_s":1,"soak_s":1}"#;
        for (text, wanted) in [
            ("", "it is empty"),
            ("{}", "line 1: targets are missing"),
            (r#"{"targets":[]}"#, "line 1: deadline_s is missing"),
        ] {
            assert_eq!(read(text).unwrap_err(), wanted);
        }
        assert_eq!(
            read(&format!("{head}\n{{}}")).unwrap_err(),
            "line 2: at_ms is missing"
        );
        assert!(
            read(&format!("{head}\n{{"))
                .unwrap_err()
                .starts_with("line 2: ")
        );
    }
}

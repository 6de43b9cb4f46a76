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

/// A recording.
#[derive(Clone, Debug)]
pub struct Recording<'a> {
    /// Objects and times.
    pub scope: Scope,
    text: &'a str,
}

impl Recording<'_> {
    /// Reads one observation after the other, each from its moment until the next one; `None` if
    /// the cluster could not be seen. All of an hour at once do not fit into memory.
    ///
    /// # Errors
    /// The line that makes no sense, and why.
    pub fn frames(
        &self,
    ) -> impl Iterator<Item = Result<(Mono, Option<Observation>), String>> + use<'_> {
        let mut seen = Observation::default();
        let numbered = lines(self.text).skip(1).enumerate();
        numbered.map(move |(count, line)| {
            if count >= LINES_MAX {
                return Err(format!("it has more than {LINES_MAX} lines"));
            }
            frame(line, &mut seen)
        })
    }
}

/// Begins to read a recording.
///
/// # Errors
/// The reason why its first line makes no sense.
pub fn read(text: &str) -> Result<Recording<'_>, String> {
    let head = lines(text).next().ok_or("it is empty")?;
    let scope = scope(&parsed(head)?)?;
    Ok(Recording { scope, text })
}

/// Lines with their numbers.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let numbered = (1..).zip(text.lines());
    numbered.filter(|(_, line)| !line.trim().is_empty())
}

fn parsed((number, line): (usize, &str)) -> Result<Value, String> {
    serde_json::from_slice(line.as_bytes()).map_err(|error| format!("line {number}: {error}"))
}

/// The observation of a line, by what was seen before it.
fn frame(
    line: (usize, &str),
    seen: &mut Observation,
) -> Result<(Mono, Option<Observation>), String> {
    let (number, _) = line;
    let line = parsed(line)?;
    let at = line.get("at_ms").and_then(Value::as_u64);
    let at = at.ok_or_else(|| format!("line {number}: at_ms is missing"))?;
    let at = Mono::since_boot(Duration::from_millis(at));
    if line.get("blind").is_some() {
        *seen = Observation::default();
        return Ok((at, None));
    }
    let items = |name: &str| {
        let items = line.get(name).and_then(Value::as_array);
        items.into_iter().flatten()
    };
    for object in items("set") {
        seen.add(Object::recorded(object));
    }
    for gone in items("gone") {
        seen.remove(&key(gone));
    }
    Ok((at, Some(seen.clone())))
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
            recording.frames().collect::<Result<Vec<_>, _>>().unwrap(),
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
        let first = |line: &str| {
            let text = format!("\n{head}\n\n{line}");
            read(&text).unwrap().frames().next().unwrap().unwrap_err()
        };
        assert_eq!(first("{}"), "line 4: at_ms is missing");
        assert!(first("{").starts_with("line 4: "));
    }
}

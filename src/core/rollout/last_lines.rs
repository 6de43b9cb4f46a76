//! Last lines of containers that died: which ones are worth asking for, and what of them is kept.

use std::{cmp::Reverse, collections::BTreeMap};

use serde_json::{Value, json};

use super::{
    super::{
        lines::Lines,
        order::OrderExt as _,
        redact::{HIDDEN, redacted},
        secret::Secret,
    },
    Cause, Finding, Key, Object, Observation, Scope,
    containers::count_of,
    evidence::{LAST_LINES, key},
    messages::on_one_line,
    object::text,
    pods, workloads,
};

/// Lines that are kept of one container.
pub const LINES_MAX: usize = 5;
/// Bytes of one line.
const LINE_BYTES_MAX: usize = 400;
/// Mark at the end of a line that is longer.
const CUT: char = '…';
/// A shorter value of a Secret is hidden as a word, because it stands in many others.
const VALUE_BYTES_MIN: usize = 6;
/// A shorter piece of a value at the end of what was cut is no secret.
const PIECE_BYTES_MIN: usize = 3;
/// Words of the kubelet in the place of a log that is gone.
const NO_LOG: &str = "unable to retrieve container logs for ";

/// A container that ended and did not do its work.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Died {
    /// Namespace of its Pod.
    pub namespace: String,
    /// Name of its Pod.
    pub pod: String,
    /// Its name.
    pub container: String,
    /// Id that the container runtime gave it.
    pub id: String,
    /// True once the kubelet has put another one in its place, or waits to.
    pub is_previous: bool,
}

impl Died {
    /// Key of its lines in an observation.
    pub fn key(&self) -> Key {
        key(&self.namespace, &self.pod, &self.container)
    }

    /// Its lines.
    pub fn wrote(&self, lines: &[String]) -> Object {
        self.object(&json!({"lines": lines}))
    }

    /// The reason why its lines are not shown.
    pub fn is_hidden(&self, why: &str) -> Object {
        self.object(&json!({"hidden": why}))
    }

    fn object(&self, content: &Value) -> Object {
        let Key {
            namespace, name, ..
        } = self.key();
        let metadata = json!({"name": name, "namespace": namespace});
        let mut whole = json!({"metadata": metadata, "id": self.id});
        if let (Value::Object(whole), Value::Object(content)) = (&mut whole, content) {
            whole.extend(content.clone());
        }
        Object::reduced(LAST_LINES, &whole)
    }
}

/// Containers whose last lines tell most: of each container of a workload one, in the Pod where it
/// died most often, because the Pods of a version fail alike; of a Job, in the Pod where it died
/// last.
pub fn died(scope: &Scope, seen: &Observation) -> Vec<Died> {
    let mut most = BTreeMap::new();
    for (target, generation) in &scope.targets {
        let Some(object) = seen.get(target) else {
            continue;
        };
        for pod in workloads::state(object, *generation, seen).pods {
            for (status, end) in pods::ends(pod, seen) {
                let name = text(status, "/name");
                let when = if target.kind == "Job" {
                    text(end.terminated, "/finishedAt")
                } else {
                    ""
                };
                let rank = (count_of(status), when.to_owned());
                let died = Died {
                    namespace: pod.text("/metadata/namespace").to_owned(),
                    pod: pod.name().to_owned(),
                    container: name.to_owned(),
                    id: text(end.terminated, "/containerID").to_owned(),
                    is_previous: end.is_previous,
                };
                let known = most.get(&(target, name));
                if known.is_none_or(|(best, _)| *best < rank) {
                    most.insert((target, name), (rank, died));
                }
            }
        }
    }
    most.into_values().map(|(_, died)| died).collect()
}

/// The last lines of a log, and not too long.
pub fn last_lines(bytes: &[u8], is_whole: bool, known: &[Secret]) -> Vec<String> {
    let clean = shown_log(bytes, is_whole, known);
    let mut last: Vec<_> = clean
        .lines()
        .map(str::trim_end)
        .rev()
        .filter(|line| !line.is_empty() && !line.starts_with(NO_LOG))
        .take(LINES_MAX)
        .map(shortened)
        .collect();
    last.reverse();
    last
}

/// A log as it is shown: without what commands a terminal, and without secrets. `is_whole` is false
/// where the text was cut off at its end: a piece of a line may be a piece of a secret, which
/// nobody recognises.
pub fn shown_log(bytes: &[u8], is_whole: bool, known: &[Secret]) -> String {
    let mut raw = String::from_utf8_lossy(bytes).into_owned();
    if !is_whole {
        raw.truncate(raw.rfind('\n').map_or(0, |at| at.saturating_add(1)));
    }
    // Before lines are cut, and once more: a control character may stand in the middle of a value.
    let raw = without(&raw, known);
    let (mut lines, mut clean) = (Lines::default(), String::new());
    lines.take(raw.as_bytes(), &mut clean);
    lines.finish(&mut clean);
    without(&clean, known)
}

fn shortened(line: &str) -> String {
    if line.len() <= LINE_BYTES_MAX {
        return line.to_owned();
    }
    let end = line.floor_char_boundary(LINE_BYTES_MAX - CUT.len_utf8());
    let mut short = line.get(..end).unwrap_or_default().to_owned();
    short.push(CUT);
    short
}

impl Finding {
    /// Returns whether words of the app's programs may stand in its evidence: the message that a
    /// container left behind, the output of a probe.
    pub const fn quotes(&self) -> bool {
        matches!(
            self.cause,
            Cause::Oom
                | Cause::ContainerStart
                | Cause::ImagePlatform
                | Cause::InitCrash
                | Cause::CrashLoop
                | Cause::ProbeStartup
                | Cause::ProbeLiveness
                | Cause::ProbeReadiness
                | Cause::NodePressure
                | Cause::DnsUnavailable
                | Cause::JobFailed
                | Cause::CustomStalled
                | Cause::CustomNotReady
        )
    }

    /// Hides secrets in its evidence, as in the lines of a log.
    pub fn hide(&mut self, known: &[Secret]) {
        let folded = known
            .iter()
            .map(|value| Secret::new(on_one_line(value.reveal())));
        let folded: Vec<_> = folded.collect();
        let mut safe = String::new();
        for part in without(&self.evidence, &folded).split_inclusive(CUT) {
            match part.strip_suffix(CUT) {
                Some(kept) => {
                    safe.push_str(&without_piece(kept, &folded));
                    safe.push(CUT);
                }
                None => safe.push_str(part),
            }
        }
        self.evidence = safe;
    }
}

/// A text that was cut, without the longest piece of a value at its end.
fn without_piece(text: &str, known: &[Secret]) -> String {
    let before = known.iter().map(Secret::reveal).filter_map(|value| {
        let ends = value.char_indices().map(|(end, _)| end).rev();
        let mut pieces = ends
            .filter(|end| *end >= PIECE_BYTES_MIN)
            .filter_map(|end| value.get(..end));
        pieces.find_map(|piece| text.strip_suffix(piece))
    });
    let shortest = before.min_by_key(|before| before.len());
    shortest.map_or_else(|| text.to_owned(), |before| format!("{before}{HIDDEN}"))
}

fn without(text: &str, known: &[Secret]) -> String {
    let mut text = text.to_owned();
    let mut values: Vec<_> = known.iter().map(Secret::reveal).collect();
    // A value may be a part of another one.
    values.order_by_key(|value| Reverse(value.len()));
    for value in values {
        text = if value.len() < VALUE_BYTES_MIN {
            without_word(&text, value)
        } else {
            text.replace(value, HIDDEN)
        };
    }
    // What stands behind a name of a secret may be hidden already.
    redacted(&text, &[]).replace("(hidden))", HIDDEN)
}

/// Replaces a value where it is not a part of a longer word.
fn without_word(text: &str, value: &str) -> String {
    if value.is_empty() {
        return text.to_owned();
    }
    let (mut safe, mut rest, mut last) = (String::new(), text, None);
    while let Some((before, after)) = rest.split_once(value) {
        let is_joined = |letter: Option<char>| letter.is_some_and(char::is_alphanumeric);
        let is_part =
            is_joined(before.chars().next_back().or(last)) || is_joined(after.chars().next());
        safe.push_str(before);
        safe.push_str(if is_part { value } else { HIDDEN });
        (rest, last) = (after, value.chars().next_back());
    }
    safe + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str, known: &[&str]) -> Vec<String> {
        let known: Vec<_> = known.iter().map(|value| Secret::new(*value)).collect();
        last_lines(text.as_bytes(), true, &known)
    }

    #[test]
    fn of_a_value_that_holds_another_one_nothing_is_left() {
        let known = ["hunter2", "postgres://app:hunter2@db/shop?sslkey=s3cr3t"];
        let text = "connecting to postgres://app:hunter2@db/shop?sslkey=s3cr3t";
        assert_eq!(shown(text, &known), ["connecting to (hidden)"]);
    }

    #[test]
    fn the_last_lines_are_few_short_and_clean() {
        let text = "1\n2\n3\n\n4\n\u{1b}[31m5\u{1b}[0m\n6\n";
        assert_eq!(shown(text, &[]), ["2", "3", "4", "5", "6"]);
        let long = shown(&"é".repeat(500), &[]);
        assert_eq!(long.len(), 1);
        assert!(
            long[0].len() <= LINE_BYTES_MAX && long[0].ends_with("é…"),
            "{long:?}"
        );
        for none in [
            "",
            "unable to retrieve container logs for containerd://69b7",
        ] {
            assert_eq!(shown(none, &[]), Vec::<String>::new());
        }
        assert_eq!(last_lines(b"whole\nhalf of a sec", false, &[]), ["whole"]);
        assert_eq!(
            last_lines(b"half of a sec", false, &[]),
            Vec::<String>::new()
        );
    }

    #[test]
    fn evidence_shows_no_secret_that_a_program_left_there_and_no_piece_of_one() {
        let hidden = |message: &str, known: &[&str]| {
            let mut found = Finding {
                cause: Cause::CrashLoop,
                object: String::new(),
                sentence: String::new(),
                evidence: crate::core::rollout::messages::evidence("Error", message),
                fix: String::new(),
                is_definite: true,
            };
            assert!(found.quotes());
            let known: Vec<_> = known.iter().map(|value| Secret::new(*value)).collect();
            found.hide(&known);
            found.evidence
        };
        assert_eq!(
            hidden("no login with s3ed-4f1c9e\nas x", &["s3ed-4f1c9e"]),
            "Error: no login with (hidden) as x"
        );
        assert_eq!(
            hidden("a  horse\t battery", &["horse\t battery"]),
            "Error: a (hidden)"
        );
        let long = format!("{} s3ed-4f1c9e", "x".repeat(385));
        assert!(
            hidden(&long, &["s3ed-4f1c9e"]).ends_with("x (hidden)…"),
            "{}",
            hidden(&long, &["s3ed-4f1c9e"])
        );
        // Of several values that may have begun here the one with the most of it.
        let most = format!("{} s3ed-4f1", "x".repeat(388));
        for known in [["4f1c9e77", "s3ed-4f1c9e"], ["s3ed-4f1c9e", "4f1c9e77"]] {
            let safe = hidden(&most, &known);
            assert!(safe.ends_with("x (hidden)…"), "{safe}");
        }
        assert_eq!(hidden("token=abcdefgh", &[]), "Error: token=(hidden)");
    }

    #[test]
    fn values_of_secrets_are_hidden_however_long_they_are_and_however_they_stand() {
        let long = "x1y2".repeat(2000);
        for (text, known, wanted) in [
            (
                "cannot log in with s3ed-4f1c9e!",
                "s3ed-4f1c9e",
                "cannot log in with (hidden)!",
            ),
            ("a\u{1b}[0ms3ed-4f\u{1b}[1m1c9e", "s3ed-4f1c9e", "a(hidden)"),
            (
                "pin 42, 421 tries, x42, 42",
                "42",
                "pin (hidden), 421 tries, x42, (hidden)",
            ),
            (&format!("key {long}."), &long, "key (hidden)."),
            ("password=hunter2222", "", "password=(hidden)"),
        ] {
            assert_eq!(shown(text, &[known]), [wanted]);
        }
    }
}

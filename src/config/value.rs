//! Kinds of values: their form in a file, in the environment, and in output.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use litemap::LiteMap;
use toml::de::DeValue;

use crate::core::{format::quoted, nearest::nearest, order::OrderExt as _, time::in_words};

/// Kind of value that a key takes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ValueKind {
    /// One line of text.
    Text,
    /// A file or folder.
    Path,
    /// `true` or `false`.
    Flag,
    /// A length of time between two limits, in seconds.
    Time {
        /// The shortest that is accepted, in seconds.
        min_s: u64,
        /// The longest that is accepted, in seconds.
        max_s: u64,
    },
    /// A number of bytes that is at least this.
    Bytes {
        /// The fewest bytes that are accepted.
        min: u64,
    },
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Some of these words: a list in the file, `a,b` in the environment.
    Words(&'static [&'static str]),
    /// An IP address.
    Ip,
    /// An IP address with a port, or `off`.
    Address,
    /// Names with texts: a table in the file, `a=1,b=2` in the environment.
    Labels,
}

/// A value of its kind.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Value {
    /// For [`ValueKind::Text`] and [`ValueKind::Choice`].
    Text(String),
    /// For [`ValueKind::Words`], in the order of the table.
    Words(Vec<&'static str>),
    /// For [`ValueKind::Path`]; always absolute.
    Path(PathBuf),
    /// For [`ValueKind::Flag`].
    Flag(bool),
    /// For [`ValueKind::Time`].
    Time(Duration),
    /// For [`ValueKind::Bytes`].
    Bytes(u64),
    /// For [`ValueKind::Ip`].
    Ip(IpAddr),
    /// For [`ValueKind::Address`]; `None` is `off`.
    Address(Option<SocketAddr>),
    /// For [`ValueKind::Labels`].
    Labels(LiteMap<String, String>),
}

/// Reason why a value is not accepted, and what would be.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct InvalidValue {
    /// Reason, as the end of a sentence that begins with the key.
    pub why: String,
    pub fix: String,
}

fn refuse<T>(why: impl Into<String>, fix: impl Into<String>) -> Result<T, InvalidValue> {
    Err(InvalidValue {
        why: why.into(),
        fix: fix.into(),
    })
}

// Texts of settings end up in HTTP headers and JSON; a kilobyte is far above anything that is
// meant.
const TEXT_BYTES_MAX: usize = 4096;
const LABELS_MAX: usize = 64;
const LABEL_BYTES_MAX: usize = 253;

impl ValueKind {
    /// Reads the value as it is written in the environment or behind `--set`. Relative paths are
    /// below `folder`.
    pub fn read_text(self, text: &str, folder: &Path) -> Result<Value, InvalidValue> {
        let text = text.trim();
        if text.len() > TEXT_BYTES_MAX {
            return refuse(
                format!("is longer than {TEXT_BYTES_MAX} bytes"),
                "shorten it",
            );
        }
        if text.chars().any(char::is_control) {
            return refuse(
                "contains a control character",
                "remove line ends and tabs from it",
            );
        }
        match self {
            Self::Text => Ok(Value::Text(text.to_owned())),
            Self::Path => path(text, folder),
            Self::Flag => match text.to_ascii_lowercase().as_str() {
                "true" | "1" | "yes" | "on" => Ok(Value::Flag(true)),
                "false" | "0" | "no" | "off" => Ok(Value::Flag(false)),
                _ => refuse("is neither true nor false", "write true or false"),
            },
            Self::Time { min_s, max_s } => time(text, min_s, max_s),
            Self::Bytes { min } => bytes(text, min),
            Self::Choice(words) => choice(text, words),
            Self::Words(known) => words(&text.split(',').collect::<Vec<_>>(), known),
            Self::Ip => text
                .parse()
                .map(Value::Ip)
                .or_else(|_| refuse("is not an IP address", "write it like 203.0.113.7")),
            Self::Address if text == "off" => Ok(Value::Address(None)),
            Self::Address => text.parse().map(Some).map(Value::Address).or_else(|_| {
                refuse(
                    "is not an address with a port",
                    "write it like 127.0.0.1:7480 or [::1]:7480, or off",
                )
            }),
            Self::Labels => labels(text),
        }
    }

    /// Reads the value as it is written in a file.
    pub fn read_toml(self, value: &DeValue<'_>) -> Result<Value, InvalidValue> {
        match (self, value) {
            (Self::Flag, DeValue::Boolean(flag)) => Ok(Value::Flag(*flag)),
            (Self::Flag, DeValue::String(_)) => refuse(
                "must be true or false, found a text",
                "remove the quotes: write true or false",
            ),
            (Self::Labels, DeValue::Table(table)) => {
                let mut found = LiteMap::new();
                for (name, value) in table {
                    let DeValue::String(text) = value.get_ref() else {
                        return refuse(
                            format!(
                                "must contain strings only, {:?} is {}",
                                name.get_ref(),
                                noun(value.get_ref())
                            ),
                            "put the value between quotes",
                        );
                    };
                    found.insert(name.get_ref().to_string(), text.to_string());
                }
                checked_labels(found)
            }
            (Self::Labels, other) => refuse(
                format!("must be a table of strings, found {}", noun(other)),
                "write it like { site = \"berlin\" }",
            ),
            (Self::Words(known), DeValue::Array(list)) => {
                let mut named = Vec::new();
                for item in list {
                    let DeValue::String(text) = item.get_ref() else {
                        return refuse(
                            format!("must contain strings only, found {}", noun(item.get_ref())),
                            "put each value between quotes",
                        );
                    };
                    named.push(text.as_ref());
                }
                words(&named, known)
            }
            (Self::Path, DeValue::String(text)) if !Path::new(text.as_ref()).is_absolute() => {
                refuse(
                    format!("must be an absolute path, found {text:?}"),
                    "begin it with /",
                )
            }
            (kind, DeValue::String(text)) => kind.read_text(text, Path::new("/")),
            (kind, other) => {
                let (wanted, example) = kind.wanted();
                refuse(
                    format!("must be {wanted}, found {}", noun(other)),
                    format!("write it like {example}"),
                )
            }
        }
    }

    /// The kind in words, and an example as it is written in a file.
    fn wanted(self) -> (&'static str, String) {
        match self {
            Self::Text => ("a text", "\"text\"".to_owned()),
            Self::Path => ("a path", "\"/path/to/it\"".to_owned()),
            Self::Flag => ("true or false", "true".to_owned()),
            Self::Time { min_s, .. } => {
                ("a duration with a unit", format!("\"{}s\"", min_s.max(15)))
            }
            Self::Bytes { .. } => ("a size with a unit", "\"256MB\"".to_owned()),
            Self::Choice(words) => (
                "one of its words",
                format!("{:?}", words.first().copied().unwrap_or_default()),
            ),
            Self::Words(words) => ("a list of words", format!("{words:?}")),
            Self::Ip => ("an IP address", "\"203.0.113.7\"".to_owned()),
            Self::Address => ("an address with a port", "\"127.0.0.1:7480\"".to_owned()),
            Self::Labels => ("a table of strings", "{ site = \"berlin\" }".to_owned()),
        }
    }

    /// Accepted values, for the documentation of a key.
    pub fn accepts(self) -> String {
        match self {
            Self::Text => "text".to_owned(),
            Self::Path => "path".to_owned(),
            Self::Flag => "true or false".to_owned(),
            Self::Time { min_s, max_s } => format!(
                "time, {} to {}",
                in_words(Duration::from_secs(min_s)),
                in_words(Duration::from_secs(max_s))
            ),
            Self::Bytes { min } => format!("size, at least {}", size_in_words(min)),
            Self::Choice(words) => words.join(" | "),
            Self::Words(words) => format!("list of {}", words.join(", ")),
            Self::Ip => "IP address".to_owned(),
            Self::Address => "address:port, or off".to_owned(),
            Self::Labels => "table of strings".to_owned(),
        }
    }
}

fn noun(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) | DeValue::Float(_) => "a bare number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

fn path(text: &str, folder: &Path) -> Result<Value, InvalidValue> {
    if text.is_empty() {
        return refuse("is empty", "name a path, or remove the key");
    }
    if text == "~" || text.starts_with("~/") {
        return refuse(
            "begins with ~, which only shells expand",
            "write the full path",
        );
    }
    Ok(Value::Path(folder.join(text)))
}

fn choice(text: &str, words: &'static [&'static str]) -> Result<Value, InvalidValue> {
    if words.contains(&text) {
        return Ok(Value::Text(text.to_owned()));
    }
    let fix = nearest(text, words.iter().copied()).map_or_else(
        || format!("write one of {}", words.join(", ")),
        |word| format!("did you mean {word}? (known: {})", words.join(", ")),
    );
    refuse(format!("cannot be {text:?}"), fix)
}

fn time(text: &str, min_s: u64, max_s: u64) -> Result<Value, InvalidValue> {
    let range = format!(
        "{} to {}",
        in_words(Duration::from_secs(min_s)),
        in_words(Duration::from_secs(max_s))
    );
    let Some(length) = length(text) else {
        return refuse(
            format!("is not a duration: {text:?}"),
            format!("write a number and ms, s, min, h or d, like \"15s\" ({range})"),
        );
    };
    if length < Duration::from_secs(min_s) || length > Duration::from_secs(max_s) {
        return refuse(
            format!("is out of range: {}", in_words(length)),
            format!("use {range}"),
        );
    }
    Ok(Value::Time(length))
}

fn bytes(text: &str, min: u64) -> Result<Value, InvalidValue> {
    let Some(bytes) = sum_of(text, |unit| match unit.to_ascii_lowercase().as_str() {
        "b" => Some(1),
        "kb" => Some(1000),
        "mb" => Some(1_000_000),
        "gb" => Some(1_000_000_000),
        "kib" => Some(1 << 10),
        "mib" => Some(1 << 20),
        "gib" => Some(1 << 30),
        _ => None,
    }) else {
        return refuse(
            format!("is not a size: {text:?}"),
            "write a number and B, KB, MB, GB, KiB, MiB or GiB, like \"256MB\"",
        );
    };
    if bytes < min {
        return refuse(
            format!("is too small: {}", size_in_words(bytes)),
            format!("use {} or more", size_in_words(min)),
        );
    }
    Ok(Value::Bytes(bytes))
}

/// A length of time as people write it: `15s`, `3 min 20 s`, `30d`.
pub fn length(text: &str) -> Option<Duration> {
    let millis = sum_of(text, |unit| match unit {
        "ms" => Some(1),
        "s" | "sec" => Some(1000),
        "m" | "min" => Some(60_000),
        "h" => Some(3_600_000),
        "d" => Some(86_400_000),
        _ => None,
    });
    millis.map(Duration::from_millis)
}

/// Adds up `3 min 20 s`: numbers, each with a unit behind it.
fn sum_of(text: &str, unit_size: impl Fn(&str) -> Option<u64>) -> Option<u64> {
    let mut rest = text.trim();
    let mut sum = None;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit())?;
        let (number, behind) = rest.split_at_checked(end)?;
        let behind = behind.trim_start();
        let end = behind
            .find(|c: char| !c.is_ascii_alphabetic())
            .unwrap_or(behind.len());
        let (unit, behind) = behind.split_at_checked(end)?;
        let part = number.parse::<u64>().ok()?.checked_mul(unit_size(unit)?)?;
        sum = Some(sum.unwrap_or(0_u64).checked_add(part)?);
        rest = behind.trim_start();
    }
    sum
}

fn size_in_words(bytes: u64) -> String {
    for (unit, size) in [("GB", 1_000_000_000), ("MB", 1_000_000), ("KB", 1000)] {
        if bytes >= size && bytes.is_multiple_of(size) {
            return format!("{} {unit}", bytes / size);
        }
    }
    format!("{bytes} B")
}

fn labels(text: &str) -> Result<Value, InvalidValue> {
    let mut found = LiteMap::new();
    for part in text.split(',').filter(|part| !part.trim().is_empty()) {
        let Some((name, value)) = part.split_once('=') else {
            return refuse(
                format!("has a label without a value: {part:?}"),
                "write labels like site=berlin,rack=4",
            );
        };
        found.insert(name.trim().to_owned(), value.trim().to_owned());
    }
    checked_labels(found)
}

/// Some of the known words, each once.
fn words(named: &[&str], known: &'static [&'static str]) -> Result<Value, InvalidValue> {
    let mut found = Vec::new();
    for word in named {
        let word = word.trim();
        match known.iter().find(|known| **known == word) {
            Some(word) if found.contains(word) => {}
            Some(word) => found.push(*word),
            None if word.is_empty() => {}
            None => {
                return refuse(
                    format!("has no {word:?}"),
                    format!("write some of: {}", known.join(", ")),
                );
            }
        }
    }
    found.order_by_key(|word| known.iter().position(|known| known == word));
    Ok(Value::Words(found))
}

fn checked_labels(labels: LiteMap<String, String>) -> Result<Value, InvalidValue> {
    if labels.len() > LABELS_MAX {
        return refuse(
            format!("has {} labels", labels.len()),
            format!("use at most {LABELS_MAX}"),
        );
    }
    for (name, value) in &labels {
        let is_wrong =
            |text: &str| text.len() > LABEL_BYTES_MAX || text.chars().any(char::is_control);
        if name.is_empty() || is_wrong(name) || is_wrong(value) {
            return refuse(
                format!("has a label that cannot be sent: {name:?}"),
                format!("names and values are 1 to {LABEL_BYTES_MAX} bytes on one line"),
            );
        }
    }
    Ok(Value::Labels(labels))
}

impl Value {
    /// The value as it is written in a file.
    pub fn toml(&self) -> String {
        match self {
            Self::Flag(flag) => flag.to_string(),
            Self::Words(words) => {
                let items: Vec<_> = words.iter().map(|word| quoted(word)).collect();
                format!("[{}]", items.join(", "))
            }
            Self::Labels(labels) => {
                let pairs = labels
                    .iter()
                    .map(|(name, text)| format!("{} = {}", quoted(name), quoted(text)));
                format!("{{ {} }}", pairs.collect::<Vec<_>>().join(", "))
            }
            Self::Text(_)
            | Self::Path(_)
            | Self::Time(_)
            | Self::Bytes(_)
            | Self::Ip(_)
            | Self::Address(_) => quoted(&self.to_string()),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Words(words) => f.write_str(&words.join(",")),
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::Time(length) => f.write_str(&in_words(*length)),
            Self::Bytes(bytes) => f.write_str(&size_in_words(*bytes)),
            Self::Ip(ip) => write!(f, "{ip}"),
            Self::Address(Some(address)) => write!(f, "{address}"),
            Self::Address(None) => f.write_str("off"),
            Self::Labels(labels) => {
                for (index, (name, value)) in labels.iter().enumerate() {
                    let comma = if index == 0 { "" } else { "," };
                    write!(f, "{comma}{name}={value}")?;
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(kind: ValueKind, text: &str) -> Result<Value, InvalidValue> {
        kind.read_text(text, Path::new("/here"))
    }

    #[test]
    fn words_are_known_and_kept_once_in_their_order() {
        let kind = ValueKind::Words(&["NodePort", "LoadBalancer"]);
        for (written, wanted) in [
            ("", &[][..]),
            ("LoadBalancer", &["LoadBalancer"]),
            (
                " LoadBalancer , NodePort,NodePort",
                &["NodePort", "LoadBalancer"],
            ),
        ] {
            assert_eq!(text(kind, written), Ok(Value::Words(wanted.to_vec())));
        }
        for wrong in ["nodeport", "NodePort;LoadBalancer", "all"] {
            assert!(text(kind, wrong).is_err(), "{wrong}");
        }
        for (written, wanted) in [
            ("x = [\"LoadBalancer\"]", Some("LoadBalancer")),
            ("x = []", Some("")),
            ("x = \"NodePort\"", Some("NodePort")),
            ("x = [1]", None),
            ("x = [\"Other\"]", None),
            ("x = true", None),
        ] {
            let table = toml::de::DeTable::parse(written).unwrap();
            let value = kind.read_toml(table.get_ref().get("x").unwrap().get_ref());
            assert_eq!(value.ok().map(|value| value.to_string()).as_deref(), wanted);
        }
    }

    #[test]
    fn times_and_sizes_need_a_unit() {
        let kind = ValueKind::Time {
            min_s: 1,
            max_s: 7200,
        };
        for (written, seconds) in [
            ("15s", 15),
            ("5 min", 300),
            ("1h 30min", 5400),
            ("2000ms", 2),
        ] {
            assert_eq!(
                text(kind, written),
                Ok(Value::Time(Duration::from_secs(seconds)))
            );
        }
        for wrong in [
            "15",
            "",
            "s",
            "15 parsecs",
            "-3s",
            "1.5s",
            "99999999999999999999s",
            "3h",
        ] {
            assert!(text(kind, wrong).is_err(), "{wrong}");
        }
        let kind = ValueKind::Bytes { min: 1000 };
        assert_eq!(text(kind, "256MB"), Ok(Value::Bytes(256_000_000)));
        assert_eq!(text(kind, "1 MiB"), Ok(Value::Bytes(1_048_576)));
        for wrong in ["256", "99 B", "18446744073709551615GB", "1XB"] {
            assert!(text(kind, wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_shown_time_can_be_written_back() {
        let kind = ValueKind::Time {
            min_s: 1,
            max_s: 400_000,
        };
        for seconds in [1, 59, 60, 200, 3600, 11_520, 352_800] {
            let value = Value::Time(Duration::from_secs(seconds));
            assert_eq!(text(kind, &value.to_string()), Ok(value));
        }
    }

    #[test]
    fn relative_paths_are_below_the_folder_where_the_command_was_given() {
        assert_eq!(
            text(ValueKind::Path, "state"),
            Ok(Value::Path("/here/state".into()))
        );
        assert_eq!(
            text(ValueKind::Path, "/abs"),
            Ok(Value::Path("/abs".into()))
        );
        assert!(text(ValueKind::Path, "~/state").is_err());
    }

    #[test]
    fn a_wrong_word_is_answered_with_the_nearest_right_one() {
        let refusal = text(
            ValueKind::Choice(&["full", "managed", "read-only", "off"]),
            "readonly",
        );
        assert_eq!(
            refusal.unwrap_err().fix,
            "did you mean read-only? (known: full, managed, read-only, off)"
        );
    }

    #[test]
    fn labels_that_cannot_be_sent_are_refused() {
        assert_eq!(
            text(ValueKind::Labels, "site=berlin, rack=4"),
            Ok(Value::Labels(LiteMap::from_iter([
                ("rack".to_owned(), "4".to_owned()),
                ("site".to_owned(), "berlin".to_owned()),
            ])))
        );
        let long = format!("{}=x", "n".repeat(254));
        for wrong in ["site", "=x", "a=b\nc=d", long.as_str()] {
            assert!(text(ValueKind::Labels, wrong).is_err(), "{wrong}");
        }
    }
}

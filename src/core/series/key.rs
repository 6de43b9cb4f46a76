//! Names and labels of series, by the rules of Prometheus' data model.

use std::{error, fmt};

use crate::core::order::OrderExt as _;

/// The longest name of a metric or a label.
const NAME_BYTES_MAX: usize = 128;
/// The longest value of a label. Names of Pods and paths of mounts have 253 and 4,096; what is
/// longer is cut.
const VALUE_BYTES_MAX: usize = 256;
/// Labels of one series.
const LABELS_MAX: usize = 12;

/// Name and labels of a series. Labels are in the order of their names, each name is there once,
/// none has an empty value.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Key {
    name: Box<str>,
    labels: Box<[(Box<str>, Box<str>)]>,
}

/// Reasons why something is not the key of a series.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum KeyError {
    /// A name that Prometheus would refuse, or longer than 128 bytes.
    Name,
    /// A label twice, or more labels than 12.
    Labels,
    /// Text that is not of the form `name{label="value",…}`.
    Text,
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Name => {
                "names have letters, digits and underscores, and do not begin with a digit"
            }
            Self::Labels => "a label is there twice, or there are too many",
            Self::Text => "a series is written name{label=\"value\"}",
        })
    }
}

impl error::Error for KeyError {}

impl Key {
    /// A key of these parts. Labels with an empty value are none (as in Prometheus); a longer value
    /// is cut.
    pub fn new(name: &str, labels: &[(&str, &str)]) -> Result<Self, KeyError> {
        let mut kept = Vec::with_capacity(labels.len());
        for (label, value) in labels {
            if !is_name(label) {
                return Err(KeyError::Name);
            }
            if !value.is_empty() {
                let value = value.get(..value.floor_char_boundary(VALUE_BYTES_MAX));
                kept.push((Box::from(*label), Box::from(value.unwrap_or_default())));
            }
        }
        kept.order();
        let is_twice = kept.windows(2).any(|pair| match pair {
            [one, next] => one.0 == next.0,
            _ => false,
        });
        if is_twice || kept.len() > LABELS_MAX {
            return Err(KeyError::Labels);
        }
        if !is_name(name) {
            return Err(KeyError::Name);
        }
        Ok(Self {
            name: name.into(),
            labels: kept.into(),
        })
    }

    /// The metric's name.
    pub const fn name(&self) -> &str {
        &self.name
    }

    /// The labels in the order of their names.
    pub fn labels(&self) -> impl Iterator<Item = (&str, &str)> {
        self.labels.iter().map(|(name, value)| (&**name, &**value))
    }

    /// The value of one label.
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels()
            .find_map(|(known, value)| (known == name).then_some(value))
    }

    /// Reads what [`fmt::Display`] writes.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let Some((name, rest)) = text.split_once('{') else {
            return Self::new(text, &[]);
        };
        let mut rest = rest.strip_suffix('}').ok_or(KeyError::Text)?;
        let mut labels = Vec::new();
        while !rest.is_empty() {
            let (label, quoted) = rest.split_once("=\"").ok_or(KeyError::Text)?;
            let (value, after) = unquoted(quoted).ok_or(KeyError::Text)?;
            labels.push((label.to_owned(), value));
            rest = match after.strip_prefix(',') {
                Some(next) if !next.is_empty() => next,
                None if after.is_empty() => after,
                _ => return Err(KeyError::Text),
            };
        }
        let labels: Vec<_> = labels
            .iter()
            .map(|(label, value)| (label.as_str(), value.as_str()))
            .collect();
        Self::new(name, &labels)
    }
}

/// `name{label="value"}`, with quotes, backslashes and line breaks escaped as in the text format of
/// Prometheus.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        for (index, (label, value)) in self.labels().enumerate() {
            let value = value
                .replace('\\', "\\\\")
                .replace('"', "\\\"")
                .replace('\n', "\\n");
            let before = if index == 0 { '{' } else { ',' };
            write!(f, "{before}{label}=\"{value}\"")?;
        }
        if !self.labels.is_empty() {
            f.write_str("}")?;
        }
        Ok(())
    }
}

fn is_name(text: &str) -> bool {
    let mut bytes = text.bytes();
    let begins = bytes
        .next()
        .is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
    begins
        && text.len() <= NAME_BYTES_MAX
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// The text up to the closing quote, and what follows that.
fn unquoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut signs = text.char_indices();
    while let Some((at, sign)) = signs.next() {
        match sign {
            '"' => return Some((value, text.get(at + 1..)?)),
            '\\' => value.push(match signs.next()?.1 {
                'n' => '\n',
                other => other,
            }),
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn labels_are_in_order_and_empty_ones_are_none() {
        let key = Key::new("a_bytes", &[("z", "1"), ("b", "x\"\n\\"), ("c", "")]).unwrap();
        assert_eq!(key.to_string(), "a_bytes{b=\"x\\\"\\n\\\\\",z=\"1\"}");
        assert_eq!(Key::parse(&key.to_string()), Ok(key));
        assert_eq!(Key::new("up", &[]).unwrap().to_string(), "up");
    }

    #[test]
    fn what_prometheus_would_refuse_is_refused() {
        for (name, labels, error) in [
            ("", [("a", "1"), ("b", "2")], KeyError::Name),
            ("9a", [("a", "1"), ("b", "2")], KeyError::Name),
            ("a b", [("a", "1"), ("b", "2")], KeyError::Name),
            ("a", [("a-b", "1"), ("b", "2")], KeyError::Name),
            ("a", [("a", "1"), ("a", "2")], KeyError::Labels),
        ] {
            assert_eq!(Key::new(name, &labels), Err(error), "{name} {labels:?}");
        }
        for text in [
            "a{",
            "a{b}",
            "a{b=\"1\"",
            "a{b=\"1\",}",
            "a{b=\"1\"x}",
            "a}",
        ] {
            assert!(Key::parse(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_value_survives_its_text(value in "\\PC{1,40}", more in "[\\\\\"\n,{}=]{1,9}") {
            let key = Key::new("m", &[("a", &value), ("b", &more)]).unwrap();
            prop_assert_eq!(Key::parse(&key.to_string()), Ok(key));
        }
    }
}

//! YAML as far as kubeconfigs and manifests need it: one document of maps, lists and scalars,
//! turned into a JSON value.
//!
//! The events come from saphyr-parser. Anchors, aliases and tags are refused: no tool writes them
//! into a kubeconfig, and an alias is how a kilobyte of text becomes a gigabyte of tree.

use std::borrow::Cow;

use saphyr_parser::{Event, Input, Parser, ScalarStyle};
use serde_json::{Map, Value};

/// Nodes of a document. The largest kubeconfig seen (400 clusters) has 8,000.
const NODES_MAX: usize = 100_000;

/// A kubeconfig nests five levels, a CronJob with a projected volume sixteen, the CRD of a
/// ClusterIssuer 38. `serde_json` reads 128.
const DEPTH_MAX: usize = 64;

/// Types of plain scalars.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Scalars {
    /// Null, booleans and text: in a kubeconfig a token of digits is a token.
    Text,
    /// Numbers as well; what YAML 1.1 and 1.2 read in two ways is refused.
    Typed,
}

/// Treatment of documents behind the first one.
#[derive(Clone, Copy, PartialEq)]
enum Rest {
    Left,
    Refused,
}

/// Keys that are there twice.
#[derive(Clone, Copy, PartialEq)]
enum Twice {
    Refused,
    LastCounts,
}

/// A map or list that is not closed yet.
enum Open {
    List(Vec<Value>),
    Map(Map<String, Value>, Option<String>),
}

/// Reads the first document. Plain `null`, `~` and nothing are null, plain `true` and `false` are
/// booleans, and every other scalar stays text: a token of digits is a token.
///
/// # Errors
/// What is not allowed, with its line.
pub fn parse(text: &str) -> Result<Value, String> {
    document(text, (Scalars::Text, Rest::Left, Twice::Refused), 0)
}

/// As [`parse`], for the settings of k3s, which takes the last of two that have the same key.
///
/// # Errors
/// As [`parse`].
pub fn parse_settings(text: &str) -> Result<Value, String> {
    document(text, (Scalars::Text, Rest::Left, Twice::LastCounts), 0)
}

/// Reads the first document of a manifest, with numbers. Whoever sends the result on as JSON leaves
/// the other end nothing to read in its own way: merge keys are refused, and plain scalars that
/// YAML 1.1 takes for something else than YAML 1.2 (`yes`, `017`).
///
/// # Errors
/// As [`parse`].
pub fn parse_manifest(text: &str) -> Result<Value, String> {
    document(text, (Scalars::Typed, Rest::Left, Twice::Refused), 0)
}

/// As [`parse_manifest`], for the only document of a text that has so many lines of its file before
/// it: nothing of it may be lost.
///
/// # Errors
/// As [`parse`], with lines of the file.
pub fn parse_manifest_below(text: &str, lines_before: usize) -> Result<Value, String> {
    document(
        text,
        (Scalars::Typed, Rest::Refused, Twice::Refused),
        lines_before,
    )
}

fn document(
    text: &str,
    (scalars, rest, twice): (Scalars, Rest, Twice),
    lines_before: usize,
) -> Result<Value, String> {
    let mut open: Vec<Open> = Vec::new();
    let mut nodes = 0_usize;
    let text = joined(text);
    let mut parser = Parser::new_from_str(&text);
    while let Some(event) = parser.next_event() {
        let (event, span) = event.map_err(|error| {
            let line = error.marker().line().saturating_add(lines_before);
            format!("line {line}: {}", error.info())
        })?;
        let line = span.start.line().saturating_add(lines_before);
        nodes += 1;
        if nodes > NODES_MAX {
            return Err(format!("more than {NODES_MAX} nodes"));
        }
        let done = match event {
            Event::Nothing | Event::StreamStart | Event::DocumentStart(_) => continue,
            Event::StreamEnd | Event::DocumentEnd => return Ok(Value::Null),
            Event::Alias(_) => return Err(refused("an alias", line)),
            Event::Scalar(_, _, anchor, tag) if anchor != 0 || tag.is_some() => {
                return Err(refused("an anchor or tag", line));
            }
            Event::SequenceStart(anchor, tag) | Event::MappingStart(anchor, tag)
                if anchor != 0 || tag.is_some() =>
            {
                return Err(refused("an anchor or tag", line));
            }
            Event::SequenceStart(..) | Event::MappingStart(..) if open.len() >= DEPTH_MAX => {
                return Err(format!("line {line}: nested deeper than {DEPTH_MAX}"));
            }
            Event::SequenceStart(..) => {
                open.push(Open::List(Vec::new()));
                continue;
            }
            Event::MappingStart(..) => {
                open.push(Open::Map(Map::new(), None));
                continue;
            }
            Event::Scalar(text, style, ..) => match open.last_mut() {
                Some(Open::Map(_, None)) if scalars == Scalars::Typed && text == "<<" => {
                    return Err(refused("a merge key", line));
                }
                Some(Open::Map(_, key @ None)) => {
                    *key = Some(text.into_owned());
                    continue;
                }
                _ if scalars == Scalars::Typed && style == ScalarStyle::Plain => {
                    typed(&text).map_err(|why| format!("line {line}: {why}"))?
                }
                _ => scalar(&text, style),
            },
            Event::SequenceEnd | Event::MappingEnd => match open.pop() {
                Some(Open::List(list)) => Value::Array(list),
                Some(Open::Map(map, _)) => Value::Object(map),
                None => return Err(format!("line {line}: an end without a beginning")),
            },
        };
        match open.last_mut() {
            None if rest == Rest::Left => return Ok(done),
            None => return nothing_more(parser, lines_before).map(|()| done),
            Some(Open::List(list)) => list.push(done),
            Some(Open::Map(map, key)) => {
                insert(map, key.take(), done, twice)
                    .map_err(|why| format!("line {line}: {why}"))?;
            }
        }
    }
    Ok(Value::Null)
}

/// A text of JSON with each character that it writes as two surrogates (`\ud83d\ude00`) in one
/// piece: YAML has no such escapes.
fn joined(text: &str) -> Cow<'_, str> {
    let is_meant = text.contains("\\ud") || text.contains("\\uD");
    // In other YAML a backslash may stand for itself.
    if !is_meant || serde_json::from_slice::<Value>(text.as_bytes()).is_err() {
        return Cow::Borrowed(text);
    }
    let (mut whole, mut rest) = (String::new(), text);
    while let Some((before, escape)) = rest.split_once('\\') {
        whole.push_str(before);
        let unit = |at: usize, mark: &str| {
            let digits = escape.get(at..)?.strip_prefix(mark)?.get(..4)?;
            u16::from_str_radix(digits, 16).ok()
        };
        let pair = unit(0, "u").zip(unit(5, "\\u"));
        let letter = pair.and_then(|(one, two)| char::decode_utf16([one, two]).next()?.ok());
        let letter = letter.filter(|letter| letter.len_utf16() == 2);
        let taken = if letter.is_some() { 11 } else { 1 };
        if letter.is_none() {
            // A backslash behind this one stands for itself.
            whole.push('\\');
            whole.push_str(escape.get(..taken).unwrap_or_default());
        }
        whole.extend(letter);
        rest = escape.get(taken..).unwrap_or_default();
    }
    whole.push_str(rest);
    Cow::Owned(whole)
}

fn insert(
    map: &mut Map<String, Value>,
    key: Option<String>,
    value: Value,
    twice: Twice,
) -> Result<(), String> {
    let key = key.ok_or("a key that is not text")?;
    if twice == Twice::Refused && map.contains_key(&key) {
        return Err(format!("{key:?} is there twice"));
    }
    map.insert(key, value);
    Ok(())
}

/// Refuses whatever comes after a document.
fn nothing_more(parser: Parser<'_, impl Input>, lines_before: usize) -> Result<(), String> {
    for event in parser {
        let (event, line) = match event {
            Ok((event, span)) => (Some(event), span.start.line()),
            Err(error) => (None, error.marker().line()),
        };
        if !matches!(
            event,
            Some(Event::Nothing | Event::DocumentEnd | Event::StreamEnd)
        ) {
            let line = line.saturating_add(lines_before);
            return Err(format!(
                "line {line}: another document begins here, without --- before it"
            ));
        }
    }
    Ok(())
}

/// Words of a value that may be a list, or a text with commas.
pub fn words(value: &Value) -> Vec<String> {
    let texts: Vec<_> = match value {
        Value::Array(all) => all.iter().filter_map(Value::as_str).collect(),
        Value::String(text) => vec![text],
        Value::Bool(true) => vec!["true"],
        Value::Bool(false) => vec!["false"],
        Value::Null | Value::Number(_) | Value::Object(_) => Vec::new(),
    };
    let words = texts.iter().flat_map(|text| text.split(',')).map(str::trim);
    words
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
}

fn refused(what: &str, line: usize) -> String {
    format!("line {line}: {what}, which is not supported here")
}

fn scalar(text: &str, style: ScalarStyle) -> Value {
    if style != ScalarStyle::Plain {
        return Value::String(text.to_owned());
    }
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        _ => Value::String(text.to_owned()),
    }
}

/// A plain scalar with its type, where YAML 1.1 and 1.2 agree about it.
fn typed(text: &str) -> Result<Value, String> {
    let word = scalar(text, ScalarStyle::Plain);
    if !word.is_string() {
        return Ok(word);
    }
    let unclear = || {
        // `defaultMode: 0644`: in quotes it would be no number.
        let digits = text.strip_prefix("0o").or_else(|| text.strip_prefix('0'));
        let octal = digits.and_then(|digits| u32::from_str_radix(digits, 8).ok());
        let number = octal.map_or_else(String::new, |number| {
            format!("write {number} if it is an octal number such as a mode, or ")
        });
        format!(
            "{text} without quotes is read differently by different programs; {number}put it in quotes"
        )
    };
    let is_word = ["y", "yes", "n", "no", "on", "off"]
        .iter()
        .any(|word| word.eq_ignore_ascii_case(text));
    if is_word {
        return Err(unclear());
    }
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    if !unsigned.starts_with(|first: char| first.is_ascii_digit() || first == '.') {
        return Ok(word);
    }
    // JSON's own grammar of numbers is what all versions agree on.
    if let Ok(number) = text.parse::<serde_json::Number>() {
        return Ok(Value::Number(number));
    }
    let has_base = ["0x", "0X", "0o", "0O", "0b", "0B"]
        .iter()
        .any(|base| unsigned.starts_with(base));
    let is_decimal = unsigned
        .bytes()
        .all(|byte| byte.is_ascii_digit() || b"_.eE+".contains(&byte));
    let is_number_elsewhere = has_base || (is_decimal && unsigned.matches('.').count() < 2);
    let is_special = [".inf", ".nan"]
        .iter()
        .any(|word| word.eq_ignore_ascii_case(unsigned));
    if is_number_elsewhere || is_special {
        return Err(unclear());
    }
    Ok(word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn maps_lists_and_scalars_become_json() {
        let text = "# a comment\na: 1\nb:\n- x: true\n  y: \"true\"\n- ~\n- 'it''s'\nc: |\n  two\n  lines\nd: {e: [1, 2]}\n---\nsecond: document\n";
        let wanted = json!({"a": "1", "b": [{"x": true, "y": "true"}, null, "it's"], "c": "two\nlines\n", "d": {"e": ["1", "2"]}});
        assert_eq!(parse(text).unwrap(), wanted);
    }

    #[test]
    fn json_is_yaml() {
        let text = r#"{"apiVersion":"v1","clusters":[{"name":"a","cluster":{"server":"https://[::1]:6443"}}],"x":null}"#;
        let wanted: Value = serde_json::from_str(text).unwrap();
        assert_eq!(parse(text).unwrap(), wanted);
    }

    #[test]
    fn characters_that_json_writes_as_two_surrogates_are_read_and_checks_stay() {
        let text =
            r#"{"\ud83d\uDE00":["\ud83d\ude00\ud83c\udf89 \\ud83d\\ude00 \u00e9\\","ä\n"],"b":1}"#;
        let wanted: Value = serde_json::from_str(text).unwrap();
        assert_eq!(parse_manifest(text).unwrap(), wanted);
        for refused in [
            r#"{"a":"\ud83d"}"#,
            r#"{"a":"\ude00\ud83d"}"#,
            r#"{"a":"\ud83d\ude00","a":1}"#,
            r#"{"😀":1,"\ud83d\ude00":1}"#,
        ] {
            assert!(parse_manifest(refused).is_err(), "{refused}");
        }
        let single = r"{a: '\ud83d\ude00'}";
        assert_eq!(parse(single).unwrap(), json!({"a": "\\ud83d\\ude00"}));
    }

    #[test]
    fn a_manifest_has_numbers_and_nothing_that_can_be_read_in_two_ways() {
        let text =
            "a: 3\nb: -1.5e3\nc: '3'\nd: 10Gi\ne: 1.2.3\nf: 2024-01-01\ng: ~\nh: \"no\"\ni: v1\n";
        let wanted = json!({"a": 3, "b": -1.5e3, "c": "3", "d": "10Gi", "e": "1.2.3", "f": "2024-01-01", "g": null, "h": "no", "i": "v1"});
        assert_eq!(parse_manifest(text).unwrap(), wanted);
        let json = r#"{"spec":{"replicas":3,"x":[1,2.5,"y",true,null]}}"#;
        let wanted: Value = serde_json::from_str(json).unwrap();
        assert_eq!(parse_manifest(json).unwrap(), wanted);
        for unclear in [
            "yes", "No", "on", "017", "0x1F", "0o7", "1_000", "+5", ".5", "5.", "-.inf", ".NaN",
        ] {
            assert!(
                parse_manifest(&format!("a: {unclear}")).is_err(),
                "{unclear}"
            );
            assert!(
                parse_manifest(&format!("a: \"{unclear}\"")).is_ok(),
                "{unclear}"
            );
        }
        for octal in ["0644", "0o644"] {
            let why = parse_manifest_below(&format!("a: 1\nb: {octal}"), 10).unwrap_err();
            assert_eq!(
                why,
                format!(
                    "line 12: {octal} without quotes is read differently by different programs; write 420 if it is an octal number such as a mode, or put it in quotes"
                )
            );
        }
        assert_eq!(
            parse_manifest_below("a: b\n c: d", 3).unwrap_err(),
            "line 5: mapping values are not allowed in this context"
        );
        for merge in ["a:\n  <<: {b: c}", "{\"<<\": {\"b\": 1}}", "? <<\n: {b: c}"] {
            assert!(parse_manifest(merge).is_err(), "{merge}");
        }
    }

    #[test]
    fn a_definition_of_custom_resources_may_nest_as_deep_as_those_of_cert_manager() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(parse_manifest(&nested(38)).is_ok());
        let why = parse_manifest(&nested(65)).unwrap_err();
        assert_eq!(why, "line 1: nested deeper than 64");
    }

    #[test]
    fn what_could_explode_or_confuse_is_refused() {
        let deep = "[".repeat(100);
        for text in [
            "a: &x 1\nb: *x",
            "a: !!binary aGk=",
            "a: 1\na: 2",
            "? [a]\n: 1",
            &deep,
            "a: [1",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        let twice = parse_settings("a: 1\nb: 2\na: 3").unwrap();
        assert_eq!(twice, json!({"a": "3", "b": "2"}));
        assert!(parse_settings("a: &x 1\nb: *x").is_err());
        let wide = "- a\n".repeat(NODES_MAX);
        assert!(parse(&wide).is_err());
    }

    proptest! {
        #[test]
        fn garbage_never_panics(text in ".{0,200}") {
            prop_assert!(parse(&text).map_or_else(|why| !why.is_empty(), |_| true));
        }

        #[test]
        fn garbage_of_yaml_signs_never_panics(text in "[-a:\\[\\]{}&*!|>'\"%@,#?~\n \t]{0,80}") {
            prop_assert!(parse(&text).map_or_else(|why| !why.is_empty(), |_| true));
            prop_assert!(parse_manifest(&text).map_or_else(|why| !why.is_empty(), |_| true));
        }
    }
}

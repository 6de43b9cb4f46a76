//! YAML as far as a kubeconfig needs it: one document of maps, lists and scalars, turned into a JSON value for serde.
//!
//! The events come from saphyr-parser. Anchors, aliases and tags are refused: no tool writes them into a kubeconfig, and an alias
//! is how a kilobyte of text becomes a gigabyte of tree.

use saphyr_parser::{Event, Parser, ScalarStyle};
use serde_json::{Map, Value};

/// Nodes of a document. The largest kubeconfig seen (400 clusters) has 8,000.
const NODES_MAX: usize = 100_000;

/// A kubeconfig nests five levels; an exec plugin's settings a few more.
const DEPTH_MAX: usize = 32;

/// A map or list that is not closed yet.
enum Open {
    List(Vec<Value>),
    Map(Map<String, Value>, Option<String>),
}

/// Reads the first document. Plain `null`, `~` and nothing are null, plain `true` and `false` are booleans, and every other scalar
/// stays text: a token of digits is a token.
///
/// # Errors
/// What is not allowed, with its line.
pub(super) fn parse(text: &str) -> Result<Value, String> {
    let mut open: Vec<Open> = Vec::new();
    let mut nodes = 0_usize;
    let mut parser = Parser::new_from_str(text);
    while let Some(event) = parser.next_event() {
        let (event, span) = event.map_err(|error| error.to_string())?;
        let line = span.start.line();
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
                Some(Open::Map(_, key @ None)) => {
                    *key = Some(text.into_owned());
                    continue;
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
            None => return Ok(done),
            Some(Open::List(list)) => list.push(done),
            Some(Open::Map(map, key)) => {
                let Some(key) = key.take() else {
                    return Err(format!("line {line}: a key that is not text"));
                };
                if map.contains_key(&key) {
                    return Err(format!("line {line}: {key:?} is there twice"));
                }
                map.insert(key, done);
            }
        }
    }
    Ok(Value::Null)
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
        }
    }
}

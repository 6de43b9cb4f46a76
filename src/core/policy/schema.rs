//! Schemas: the fields of an object that a judgement reads, for JSON and Kubernetes' protobuf
//! alike.
//!
//! One reader per format walks a body along its schema and keeps these fields as a small tree.
//! Everything else is skipped, so a body of megabytes takes no memory. Ambiguous input is an error.

use std::{cell::Cell, fmt};

use serde::{
    Deserializer,
    de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Number, Value};

/// Values that are kept of one body. A Pod of 100 containers with every field set has about 3,000.
const VALUES_MAX: usize = 20_000;

/// The fields of an object that are kept.
#[derive(Debug)]
pub(super) struct Schema {
    pub(super) fields: &'static [Field],
    pub(super) others: Others,
}

/// Treatment of fields that are not listed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Others {
    /// Read over.
    Skip,
    /// Kept whole: the judgement wants to know everything that is set.
    Keep,
}

#[derive(Debug)]
pub(super) struct Field {
    /// Its name in JSON.
    pub(super) name: &'static str,
    /// Its number in protobuf; 0 where only JSON has it.
    pub(super) number: u64,
    pub(super) kind: FieldKind,
}

/// The value of a field.
#[derive(Clone, Copy, Debug)]
pub(super) enum FieldKind {
    /// A string.
    Text,
    /// A boolean.
    Flag,
    /// An integer.
    Number,
    /// A list of strings.
    Texts,
    Object(&'static Schema),
    /// A list of objects.
    Objects(&'static Schema),
    /// A map of strings; kept are the keys that begin with one of these.
    TextMap(&'static [&'static str]),
    /// A map of anything; only its keys are kept, as a list.
    Names,
    /// Anything; kept as `true` when it is there.
    Presence,
    /// Anything, kept as it is.
    Whole,
    /// Protobuf only: an object whose fields are those of the parent in JSON.
    Inline(&'static Schema),
}

/// A field, for the tables of shapes.
pub(super) const fn field(name: &'static str, number: u64, kind: FieldKind) -> Field {
    Field { name, number, kind }
}

impl Schema {
    /// A shape that reads over what it does not list.
    pub(super) const fn of(fields: &'static [Field]) -> Self {
        Self {
            fields,
            others: Others::Skip,
        }
    }

    /// The field of this name, also where it lies in an inlined object.
    fn named(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find_map(|field| {
            if let FieldKind::Inline(inner) = field.kind {
                inner.named(name)
            } else {
                (field.name == name).then_some(field)
            }
        })
    }

    /// A listed field whose name differs from this one in capitals only.
    fn nearly_named(&self, name: &str) -> Option<&'static str> {
        self.fields.iter().find_map(|field| {
            if let FieldKind::Inline(inner) = field.kind {
                inner.nearly_named(name)
            } else {
                let is_near = field.name.eq_ignore_ascii_case(name);
                is_near.then_some(field.name)
            }
        })
    }

    fn others(&self) -> Others {
        let mut all = self.fields.iter();
        let keeps = all.any(
            |field| matches!(field.kind, FieldKind::Inline(inner) if inner.others == Others::Keep),
        );
        if keeps { Others::Keep } else { self.others }
    }
}

/// Counts the values that are kept.
#[derive(Debug, Default)]
pub(super) struct Budget(Cell<usize>);

impl Budget {
    /// Counts one more.
    pub(super) fn take(&self) -> Result<(), String> {
        self.0.set(self.0.get() + 1);
        if self.0.get() > VALUES_MAX {
            return Err(format!("it has more than {VALUES_MAX} values to judge"));
        }
        Ok(())
    }
}

/// Reads an object in JSON along a shape.
///
/// # Errors
/// It is not JSON or not UTF-8, which some readers mend and others do not, or it could be read in
/// two ways.
pub(super) fn read_json(body: &[u8], schema: &'static Schema) -> Result<Value, String> {
    let text = std::str::from_utf8(body).map_err(|error| format!("it is not UTF-8: {error}"))?;
    let budget = Budget::default();
    let seed = Seed {
        kind: FieldKind::Object(schema),
        budget: &budget,
    };
    let mut reader = serde_json::Deserializer::from_str(text);
    let value = seed
        .deserialize(&mut reader)
        .and_then(|value| reader.end().map(|()| value))
        .map_err(|error| error.to_string())?;
    if value.is_object() {
        Ok(value)
    } else {
        Err("it is not an object".to_owned())
    }
}

#[derive(Clone, Copy)]
struct Seed<'b> {
    kind: FieldKind,
    budget: &'b Budget,
}

impl Seed<'_> {
    fn of(self, kind: FieldKind) -> Self {
        Self { kind, ..self }
    }

    fn kept<E: Error>(self, value: Value) -> Result<Value, E> {
        self.budget.take().map_err(E::custom)?;
        Ok(value)
    }

    /// Error for a value of another type than this one.
    fn type_mismatch<T, E: Error>(self, what: &str) -> Result<T, E> {
        Err(E::custom(format_args!("{what} where {self} belongs")))
    }

    /// The fields of an object.
    fn fields<'de, A: MapAccess<'de>>(
        self,
        schema: &'static Schema,
        mut map: A,
    ) -> Result<Value, A::Error> {
        let mut kept = Map::new();
        let mut nulls: Vec<&'static str> = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            let Some(field) = schema.named(&name) else {
                if let Some(right) = schema.nearly_named(&name) {
                    return Err(A::Error::custom(format_args!(
                        "{name:?} is written {right:?}"
                    )));
                }
                if schema.others() == Others::Skip {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
                let value = map.next_value_seed(self.of(FieldKind::Whole))?;
                if kept.insert(name.clone(), value).is_some() {
                    return Err(twice(&name));
                }
                continue;
            };
            if kept.contains_key(field.name) || nulls.contains(&field.name) {
                return Err(twice(&name));
            }
            let value = map.next_value_seed(self.of(field.kind))?;
            if value.is_null() {
                nulls.push(field.name);
            } else {
                kept.insert(name, value);
            }
        }
        kept.retain(|_, value| !value.is_null());
        self.kept(Value::Object(kept))
    }

    fn texts<'de, A: MapAccess<'de>>(
        self,
        prefixes: &'static [&'static str],
        mut map: A,
    ) -> Result<Value, A::Error> {
        let mut kept = Map::new();
        while let Some(name) = map.next_key::<String>()? {
            if !prefixes.iter().any(|prefix| name.starts_with(prefix)) {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let value = map.next_value_seed(self.of(FieldKind::Text))?;
            if kept.insert(name.clone(), value).is_some() {
                return Err(twice(&name));
            }
        }
        self.kept(Value::Object(kept))
    }
}

fn twice<E: Error>(name: &str) -> E {
    E::custom(format_args!("{name:?} is there twice"))
}

impl fmt::Display for Seed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            FieldKind::Text => "a string",
            FieldKind::Flag => "a boolean",
            FieldKind::Number => "an integer",
            FieldKind::Texts | FieldKind::Objects(_) => "a list",
            FieldKind::Object(_)
            | FieldKind::TextMap(_)
            | FieldKind::Names
            | FieldKind::Inline(_) => "an object",
            FieldKind::Presence | FieldKind::Whole => "any value",
        })
    }
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        if matches!(self.kind, FieldKind::Flag | FieldKind::Whole) {
            self.kept(Value::Bool(value))
        } else {
            self.present("a boolean")
        }
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        self.number(Number::from(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        self.number(Number::from(value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        match (self.kind, Number::from_f64(value)) {
            (FieldKind::Whole, Some(number)) => self.kept(Value::Number(number)),
            _ => self.present("a number"),
        }
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        if matches!(self.kind, FieldKind::Text | FieldKind::Whole) {
            self.kept(Value::String(value.to_owned()))
        } else {
            self.present("a string")
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let item = match self.kind {
            FieldKind::Texts => FieldKind::Text,
            FieldKind::Objects(schema) => FieldKind::Object(schema),
            FieldKind::Whole => FieldKind::Whole,
            FieldKind::Presence => {
                while list.next_element::<IgnoredAny>()?.is_some() {}
                return self.kept(Value::Bool(true));
            }
            FieldKind::Text
            | FieldKind::Flag
            | FieldKind::Number
            | FieldKind::Object(_)
            | FieldKind::TextMap(_)
            | FieldKind::Names
            | FieldKind::Inline(_) => return self.type_mismatch("a list"),
        };
        let mut kept = Vec::new();
        while let Some(value) = list.next_element_seed(self.of(item))? {
            // A null in a list is an empty value there.
            kept.push(self.kept(value)?);
        }
        Ok(Value::Array(kept))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        match self.kind {
            FieldKind::Object(schema) => self.fields(schema, map),
            FieldKind::TextMap(prefixes) => self.texts(prefixes, map),
            FieldKind::Names => {
                let mut names = Vec::new();
                while let Some((name, _)) = map.next_entry::<String, IgnoredAny>()? {
                    names.push(self.kept(Value::String(name))?);
                }
                Ok(Value::Array(names))
            }
            FieldKind::Whole => {
                let mut kept = Map::new();
                while let Some(name) = map.next_key::<String>()? {
                    let value = map.next_value_seed(self)?;
                    if kept.insert(name.clone(), value).is_some() {
                        return Err(twice(&name));
                    }
                }
                self.kept(Value::Object(kept))
            }
            FieldKind::Presence => {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                self.kept(Value::Bool(true))
            }
            FieldKind::Text
            | FieldKind::Flag
            | FieldKind::Number
            | FieldKind::Texts
            | FieldKind::Objects(_)
            | FieldKind::Inline(_) => self.type_mismatch("an object"),
        }
    }
}

impl Seed<'_> {
    fn number<E: Error>(self, number: Number) -> Result<Value, E> {
        if matches!(self.kind, FieldKind::Number | FieldKind::Whole) {
            self.kept(Value::Number(number))
        } else {
            self.present("a number")
        }
    }

    /// `true` where any value will do.
    fn present<E: Error>(self, what: &str) -> Result<Value, E> {
        if matches!(self.kind, FieldKind::Presence) {
            self.kept(Value::Bool(true))
        } else {
            self.type_mismatch(what)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    static INNER: Schema = Schema {
        fields: &[
            field("name", 1, FieldKind::Text),
            field("dir", 2, FieldKind::Presence),
        ],
        others: Others::Keep,
    };
    static OUTER: Schema = Schema::of(&[
        field("type", 1, FieldKind::Text),
        field("on", 2, FieldKind::Flag),
        field("list", 3, FieldKind::Texts),
        field("items", 4, FieldKind::Objects(&INNER)),
        field("notes", 5, FieldKind::TextMap(&["a/"])),
        field("limits", 6, FieldKind::Names),
        field("uid", 7, FieldKind::Number),
    ]);

    fn read(text: &str) -> Result<Value, String> {
        read_json(text.as_bytes(), &OUTER)
    }

    #[test]
    fn only_what_the_shape_lists_is_kept() {
        let text = r#"{"type":"x","else":{"type":[1]},"on":true,"list":["a",null],"limits":{"cpu":1,"a/b":"2"},
            "notes":{"a/b":"1","c":2},"items":[{"name":"n","dir":{"x":[1]},"nfs":{"server":"s","n":1.5}}]}"#;
        let wanted = json!({"type": "x", "on": true, "list": ["a", null], "limits": ["cpu", "a/b"], "notes": {"a/b": "1"},
            "items": [{"name": "n", "dir": true, "nfs": {"server": "s", "n": 1.5}}]});
        assert_eq!(read(text), Ok(wanted));
        assert_eq!(read(r#"{"type":null,"items":null}"#), Ok(json!({})));
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_an_error() {
        for text in [
            r#"{"type":"a","type":"b"}"#,
            r#"{"type":null,"type":"b"}"#,
            r#"{"type":"b","type":null}"#,
            r#"{"\u0074ype":"a","type":"b"}"#,
            r#"{"Type":"a"}"#,
            r#"{"TYPE":"a","type":"b"}"#,
            r#"{"type":1}"#,
            r#"{"type":["a"]}"#,
            r#"{"on":"true"}"#,
            r#"{"list":"a"}"#,
            r#"{"list":{"0":"a"}}"#,
            r#"{"items":[{"nfs":{},"nfs":{}}]}"#,
            r#"{"items":[{"nfs":{"a":1,"a":2}}]}"#,
            r#"{"items":[{"Dir":{}}]}"#,
            r#"{"items":[1]}"#,
            r#"{"notes":{"a/b":"1","a/b":"2"}}"#,
            r#"{"notes":{"a/b":1}}"#,
            r#"{"limits":["a"]}"#,
            "[]",
            "null",
            "",
            "{} {}",
            "{\"type\":\"\u{0}\"}",
        ] {
            assert!(read(text).is_err(), "{text}: {:?}", read(text));
        }
        assert!(read_json(b"{\"type\":\"\xff\"}", &OUTER).is_err());
        assert!(
            read_json(b"\xef\xbb\xbf{}", &OUTER).is_err(),
            "a byte order mark"
        );
    }

    #[test]
    fn bytes_that_are_no_text_are_an_error_also_where_nothing_is_judged() {
        for body in [
            &b"{\"else\":\"\x89\"}"[..],
            b"{\"el\xc3se\":1}",
            b"{\"type\":\"x\xff\"}",
        ] {
            let why = read_json(body, &OUTER).unwrap_err();
            assert!(why.contains("not UTF-8"), "{why}");
        }
    }

    #[test]
    fn negative_numbers_are_kept_and_a_wrong_type_is_named() {
        assert_eq!(read(r#"{"uid":-1}"#), Ok(json!({"uid": -1})));
        assert_eq!(read(r#"{"uid":null}"#), Ok(json!({})));
        for (body, wanted) in [
            (r#"{"type":1}"#, "a string"),
            (r#"{"on":"yes"}"#, "a boolean"),
            (r#"{"uid":"1"}"#, "an integer"),
            (r#"{"items":{}}"#, "a list"),
            ("[]", "an object"),
        ] {
            let why = read(body).unwrap_err();
            assert!(why.contains(wanted), "{body}: {why}");
        }
    }

    #[test]
    fn a_body_that_is_all_values_is_an_error_and_no_memory() {
        let many = format!(r#"{{"items":[{}{{}}]}}"#, "{},".repeat(VALUES_MAX));
        assert!(read(&many).unwrap_err().contains("more than"));
        let budget = Budget::default();
        let taken = (0..=VALUES_MAX).map(|_| budget.take().is_ok());
        assert_eq!(taken.filter(|is_taken| *is_taken).count(), VALUES_MAX);
        let deep = format!(r#"{{"items":[{{"x":{}"#, "[".repeat(100_000));
        assert!(read(&deep).is_err());
    }
}

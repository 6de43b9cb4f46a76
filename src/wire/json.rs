//! Reader of JSON into structs.
//!
//! Fields may be absent or `null`, which is the same: they keep their default. A struct names its
//! fields with [`fields!`](fields), which gives each value its [`Place`]; unknown ones are skipped.
//! One reader fills all structs, without building a tree. (Derived readers are code for each
//! struct: they were 6 % of the agent.)
//!
//! Structs with required fields are derived, and read by the same byte reader.

use std::fmt;

use litemap::LiteMap;
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Unexpected, Visitor},
};
use serde_json::Value;

/// Reads a text by the reader of bytes: with a reader of texts beside it, its code would be in the
/// program twice.
///
/// # Errors
/// What [`serde_json`] says of a text that is not of this shape.
pub fn read<'a, T: Deserialize<'a>>(text: &'a str) -> serde_json::Result<T> {
    serde_json::from_slice(text.as_bytes())
}

/// Reads a shape.
///
/// # Errors
/// As [`read`].
pub fn shape<T: Shape + Default>(text: &[u8]) -> serde_json::Result<T> {
    let mut shape = T::default();
    fill(shape.place(), text)?;
    Ok(shape)
}

fn fill(place: Place<'_>, text: &[u8]) -> serde_json::Result<()> {
    let mut reader = serde_json::Deserializer::from_slice(text);
    place.deserialize(&mut reader)?;
    reader.end()
}

/// Writes a map as an object, also where it is empty: litemap's own way makes an array of that.
pub fn object<K: Serialize, V: Serialize, S: Serializer>(
    map: &LiteMap<K, V>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(map.iter())
}

/// Map that is written by [`object`].
#[derive(Debug)]
pub struct AsObject<'a, K, V>(pub &'a LiteMap<K, V>);

impl<K: Serialize, V: Serialize> Serialize for AsObject<'_, K, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        object(self.0, serializer)
    }
}

/// Shape that can be read in place.
pub trait Shape {
    /// Place of its value.
    fn place(&mut self) -> Place<'_>;
}

/// Place of a value, in the sense of miniserde: where it is written.
pub enum Place<'a> {
    Text(&'a mut String),
    /// `true` or `false`.
    Truth(&'a mut bool),
    Number(&'a mut dyn Number),
    /// Something that may be absent.
    Optional(&'a mut dyn Optional),
    Object(&'a mut dyn Fields),
    List(&'a mut dyn List),
    /// Any value.
    Tree(&'a mut Value),
    /// Nobody wants it: it is read over.
    Nowhere,
}

/// Receiver of an object.
pub trait Fields {
    /// The place of the field of this name.
    fn field(&mut self, name: &str) -> Place<'_>;
}

/// Receiver of a list.
pub trait List {
    /// Forgets all items.
    fn clear(&mut self);
    /// The place of one more item.
    fn add(&mut self) -> Place<'_>;
}

/// Receiver of a number.
pub trait Number {
    /// Takes the number, or says that it does not fit.
    fn set(&mut self, number: &serde_json::Number) -> bool;
}

/// Optional value.
pub trait Optional {
    /// It is absent.
    fn none(&mut self);
    /// It is there, and this is its place.
    fn some(&mut self) -> Place<'_>;
}

/// Names the fields of a struct that is read from JSON: all of them, each with its name there where
/// that is another.
macro_rules! fields {
    ($shape:ident { $($field:ident $(: $name:literal)?),* $(,)? }) => {
        impl $crate::wire::json::Fields for $shape {
            fn field(&mut self, name: &str) -> $crate::wire::json::Place<'_> {
                let Self { $($field),* } = self;
                match name {
                    $($crate::wire::json::fields!(@ $field $($name)?) => {
                        $crate::wire::json::Shape::place($field)
                    })*
                    _ => $crate::wire::json::Place::Nowhere,
                }
            }
        }

        impl $crate::wire::json::Shape for $shape {
            fn place(&mut self) -> $crate::wire::json::Place<'_> {
                $crate::wire::json::Place::Object(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $shape {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
                $crate::wire::json::filled(deserializer)
            }
        }
    };
    (@ $field:ident) => { stringify!($field) };
    (@ $field:ident $name:literal) => { $name };
}
pub(crate) use fields;

/// A shape that is filled.
pub(crate) fn filled<'de, D: Deserializer<'de>, T: Shape + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    let mut shape = T::default();
    shape.place().deserialize(deserializer)?;
    Ok(shape)
}

/// For what nobody wants to know.
impl Shape for () {
    fn place(&mut self) -> Place<'_> {
        Place::Nowhere
    }
}

impl Shape for Value {
    fn place(&mut self) -> Place<'_> {
        Place::Tree(self)
    }
}

impl Shape for String {
    fn place(&mut self) -> Place<'_> {
        Place::Text(self)
    }
}

impl Shape for bool {
    fn place(&mut self) -> Place<'_> {
        Place::Truth(self)
    }
}

impl<T: Shape + Default> Shape for Option<T> {
    fn place(&mut self) -> Place<'_> {
        Place::Optional(self)
    }
}

impl<T: Shape + Default> Optional for Option<T> {
    fn none(&mut self) {
        *self = None;
    }

    fn some(&mut self) -> Place<'_> {
        self.insert(T::default()).place()
    }
}

impl<T: Shape + Default> Shape for Vec<T> {
    fn place(&mut self) -> Place<'_> {
        Place::List(self)
    }
}

impl<T: Shape + Default> List for Vec<T> {
    fn clear(&mut self) {
        self.clear();
    }

    fn add(&mut self) -> Place<'_> {
        self.push(T::default());
        self.last_mut().map_or(Place::Nowhere, T::place)
    }
}

impl<T: Shape + Default> Shape for LiteMap<String, T> {
    fn place(&mut self) -> Place<'_> {
        Place::Object(self)
    }
}

impl<T: Shape + Default> Fields for LiteMap<String, T> {
    fn field(&mut self, name: &str) -> Place<'_> {
        self.entry(name.to_owned()).or_default().place()
    }
}

macro_rules! number {
    ($($number:ty: $reading:ident),*) => {
        $(
            impl Shape for $number {
                fn place(&mut self) -> Place<'_> {
                    Place::Number(self)
                }
            }

            impl Number for $number {
                fn set(&mut self, number: &serde_json::Number) -> bool {
                    let fitting = number.$reading().and_then(|number| number.try_into().ok());
                    fitting.map(|number| *self = number).is_some()
                }
            }
        )*
    };
}
number!(u16: as_u64, u32: as_u64, u64: as_u64, i64: as_i64, f64: as_f64);

/// Expected type of a place.
impl fmt::Debug for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Place::Text(_) => "a text",
            Place::Truth(_) => "true or false",
            Place::Number(_) => "a number",
            Place::Object(_) => "an object",
            Place::List(_) => "a list",
            Place::Tree(_) | Place::Optional(_) | Place::Nowhere => "anything",
        })
    }
}

impl Place<'_> {
    fn take<E: Error>(self, number: &serde_json::Number) -> Result<(), E> {
        let what = format!("number {number}");
        let Place::Number(place) = self else {
            return Err(E::invalid_type(Unexpected::Other(&what), &self));
        };
        if !place.set(number) {
            return Err(E::custom(format_args!("{what} is out of range")));
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Place<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        match self {
            Place::Nowhere => deserializer
                .deserialize_ignored_any(IgnoredAny)
                .map(|IgnoredAny| ()),
            Place::Tree(tree) => {
                *tree = Value::deserialize(deserializer)?;
                Ok(())
            }
            Place::Optional(optional) => deserializer.deserialize_option(Maybe(optional)),
            Place::Text(_)
            | Place::Truth(_)
            | Place::Number(_)
            | Place::Object(_)
            | Place::List(_) => deserializer.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for Place<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E: Error>(self, truth: bool) -> Result<(), E> {
        let Place::Truth(place) = self else {
            return Err(E::invalid_type(Unexpected::Bool(truth), &self));
        };
        *place = truth;
        Ok(())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        let Place::Text(place) = self else {
            return Err(E::invalid_type(Unexpected::Str(text), &self));
        };
        text.clone_into(place);
        Ok(())
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<(), E> {
        self.take(&number.into())
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<(), E> {
        self.take(&number.into())
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<(), E> {
        let finite = serde_json::Number::from_f64(number);
        self.take(&finite.ok_or_else(|| E::custom("not a finite number"))?)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Place::Object(object) = self else {
            return Err(A::Error::invalid_type(Unexpected::Map, &self));
        };
        while let Some(place) = map.next_key_seed(Name(object))? {
            map.next_value_seed(place)?;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let Place::List(list) = self else {
            return Err(A::Error::invalid_type(Unexpected::Seq, &self));
        };
        list.clear();
        while seq.next_element_seed(Item(list))?.is_some() {}
        Ok(())
    }
}

/// Optional value: its place is made only if it is present.
struct Maybe<'a>(&'a mut dyn Optional);

impl<'de> Visitor<'de> for Maybe<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    fn visit_none<E: Error>(self) -> Result<(), E> {
        self.0.none();
        Ok(())
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        self.0.some().deserialize(deserializer)
    }
}

/// The name of a field: it becomes the field's place.
struct Name<'a>(&'a mut dyn Fields);

impl<'de, 'a> DeserializeSeed<'de> for Name<'a> {
    type Value = Place<'a>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Place<'a>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'a> Visitor<'_> for Name<'a> {
    type Value = Place<'a>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Place<'a>, E> {
        Ok(self.0.field(name))
    }
}

/// One more item: its place is made only where there is one.
struct Item<'a>(&'a mut dyn List);

impl<'de> DeserializeSeed<'de> for Item<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        self.0.add().deserialize(deserializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default, PartialEq)]
    struct All {
        text: String,
        is_true: bool,
        small: u16,
        signed: i64,
        share: Option<f64>,
        inner: Option<Box<Inner>>,
        list: Vec<Inner>,
        map: LiteMap<String, Option<u32>>,
    }
    fields!(All {
        text,
        is_true: "isTrue",
        small,
        signed,
        share,
        inner,
        list,
        map
    });

    #[derive(Debug, Default, PartialEq)]
    struct Inner {
        kind: String,
    }
    fields!(Inner { kind: "type" });

    impl Shape for Box<Inner> {
        fn place(&mut self) -> Place<'_> {
            (**self).place()
        }
    }

    fn inner(kind: &str) -> Inner {
        Inner {
            kind: kind.to_owned(),
        }
    }

    #[test]
    fn every_value_goes_to_its_place_and_others_are_read_over() {
        let all: All = shape(
            br#"{"text":"a\n\u00e9","isTrue":true,"is_true":7,"small":65535,"signed":-9223372036854775808,"share":1,"inner":{"type":"x","y":[{}]},
            "list":[{"type":"a"},{"t\u0079pe":"b"},null],"map":{"k":1,"none":null},"more":{"deep":[[1.5,"x",null]]}}"#,
        )
        .unwrap();
        let wanted = All {
            text: "a\né".to_owned(),
            is_true: true,
            small: 65535,
            signed: i64::MIN,
            share: Some(1.0),
            inner: Some(Box::new(inner("x"))),
            list: vec![inner("a"), inner("b"), Inner::default()],
            map: LiteMap::from_iter([("k".to_owned(), Some(1)), ("none".to_owned(), None)]),
        };
        assert_eq!(all, wanted);
    }

    #[test]
    fn what_is_null_or_absent_keeps_its_default() {
        for text in [
            "{}",
            "null",
            r#"{"text":null,"isTrue":null,"small":null,"inner":null,"list":null,"map":null}"#,
        ] {
            assert_eq!(
                shape::<All>(text.as_bytes()).unwrap(),
                All::default(),
                "{text}"
            );
        }
    }

    #[test]
    fn of_a_field_that_comes_twice_the_last_one_counts() {
        let all: All = shape(
            br#"{"text":"a","text":"b","list":[{"type":"a"}],"list":[{}],"share":1,"share":null,"inner":{"type":"x"},"inner":{}}"#,
        )
        .unwrap();
        let wanted = All {
            text: "b".to_owned(),
            list: vec![Inner::default()],
            inner: Some(Box::default()),
            ..All::default()
        };
        assert_eq!(all, wanted);
    }

    #[test]
    fn what_does_not_fit_is_an_error_that_says_where() {
        for (text, wanted) in [
            (
                r#"{"text":1}"#,
                "invalid type: number 1, expected a text at line 1 column 9",
            ),
            (
                r#"{"isTrue":"x"}"#,
                r#"invalid type: string "x", expected true or false"#,
            ),
            (r#"{"small":65536}"#, "number 65536 is out of range"),
            (r#"{"small":1.5}"#, "number 1.5 is out of range"),
            (
                r#"{"share":true}"#,
                "invalid type: boolean `true`, expected a number",
            ),
            (r#"{"list":{}}"#, "invalid type: map, expected a list"),
            (
                r#"{"inner":[]}"#,
                "invalid type: sequence, expected an object",
            ),
            ("[]", "invalid type: sequence, expected an object"),
            (r#"{"text":"a"} x"#, "trailing characters"),
            (r#"{"text":"a""#, "EOF while parsing an object"),
        ] {
            let error = shape::<All>(text.as_bytes()).unwrap_err();
            let message = error.to_string();
            assert!(message.starts_with(wanted), "{text}: {message}");
        }
        let deep = format!("{}{}", "[".repeat(1000), "]".repeat(1000));
        let deep = format!(r#"{{"more":{deep}}}"#);
        assert!(
            shape::<All>(deep.as_bytes()).is_ok(),
            "what is read over is not nested on the stack"
        );
    }
}

//! Reader of Kubernetes' protobuf form of an object, along a schema.
//!
//! The input is four bytes, then a message `Unknown` (apimachinery, `runtime/generated.proto`) with
//! the object's type and its bytes. A decoder takes the last of two values, or merges them;
//! duplicates are an error here, so that nothing can be read in two ways.

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use serde_json::{Map, Value};

use super::schema::{Budget, Field, FieldKind, Others, Schema, field};

/// Metadata of an object, and the fields of its shape.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Read {
    pub(super) kind: String,
    pub(super) api_version: String,
    pub(super) object: Value,
}

const MAGIC: &[u8] = b"k8s\0";

static TYPE: Schema = Schema::of(&[
    field("apiVersion", 1, FieldKind::Text),
    field("kind", 2, FieldKind::Text),
]);

/// Reads an object along its shape.
pub(super) fn read(body: &[u8], schema: &Schema) -> Result<Read, String> {
    let budget = Budget::default();
    let unknown = body
        .strip_prefix(MAGIC)
        .ok_or("it does not begin as Kubernetes' protobuf does")?;
    let (mut kind, mut raw) = (None, None);
    for part in Message(unknown) {
        let part = part?;
        match (part.number, part.payload) {
            (1, Payload::Bytes(bytes)) if kind.is_none() => {
                kind = Some(fields(bytes, &TYPE, &budget)?);
            }
            (2, Payload::Bytes(bytes)) if raw.is_none() => {
                raw = Some(fields(bytes, schema, &budget)?);
            }
            // Encoding and type of the content: what is not said is protobuf as it is.
            (3 | 4, Payload::Bytes([])) => {}
            (number, _) => return Err(format!("its envelope has an odd field {number}")),
        }
    }
    let mut kind = kind.unwrap_or_default();
    let mut text = |name: &str| match kind.remove(name) {
        Some(Value::String(text)) => text,
        _ => String::new(),
    };
    Ok(Read {
        kind: text("kind"),
        api_version: text("apiVersion"),
        object: Value::Object(raw.unwrap_or_default()),
    })
}

/// Reads the fields of a message. Shapes are static and finite, and so is the depth.
fn fields(message: &[u8], schema: &Schema, budget: &Budget) -> Result<Map<String, Value>, String> {
    let mut kept = Map::new();
    for part in Message(message) {
        let Part { number, payload } = part?;
        let listed = schema.fields.iter().find(|field| field.number == number);
        let Some(field) = listed else {
            if schema.others == Others::Keep {
                budget.take()?;
                let name = format!("field {number}");
                once(&mut kept, name, payload.whole())?;
            }
            continue;
        };
        keep(&mut kept, field, payload, budget)?;
    }
    Ok(kept)
}

fn keep(
    kept: &mut Map<String, Value>,
    field: &Field,
    payload: Payload<'_>,
    budget: &Budget,
) -> Result<(), String> {
    budget.take()?;
    let name = field.name.to_owned();
    let odd = || format!("{name} is not of its type");
    let bytes = match payload {
        Payload::Bytes(bytes) => Ok(bytes),
        Payload::Number(_) | Payload::Fixed(_) => Err(odd()),
    };
    let value = match field.kind {
        FieldKind::Text => Value::String(text(bytes?)?),
        FieldKind::Object(schema) => Value::Object(fields(bytes?, schema, budget)?),
        FieldKind::Presence => bytes.map(|_| Value::Bool(true))?,
        FieldKind::Whole => bytes.map(|_| payload.whole())?,
        FieldKind::Flag | FieldKind::Number => match (payload, field.kind) {
            (Payload::Number(number), FieldKind::Flag) => Value::Bool(number != 0),
            (Payload::Number(number), _) => Value::from(number.cast_signed()),
            (Payload::Bytes(_) | Payload::Fixed(_), _) => return Err(odd()),
        },
        FieldKind::Texts => return add(kept, name, Value::String(text(bytes?)?)),
        FieldKind::Objects(schema) => {
            let object = fields(bytes?, schema, budget)?;
            return add(kept, name, Value::Object(object));
        }
        FieldKind::Names => {
            let (key, _) = entry(bytes?)?;
            return add(kept, name, Value::String(key));
        }
        FieldKind::TextMap(prefixes) => {
            let (key, value) = entry(bytes?)?;
            if !prefixes.iter().any(|prefix| key.starts_with(prefix)) {
                return Ok(());
            }
            let map = kept.entry(name).or_insert_with(|| Map::new().into());
            return match map.as_object_mut() {
                Some(map) => once(map, key, Value::String(text(value)?)),
                None => Err("a map is malformed".to_owned()),
            };
        }
        FieldKind::Inline(schema) => {
            // Marked, so that a second one is seen.
            once(kept, name, Value::Bool(true))?;
            for (name, value) in fields(bytes?, schema, budget)? {
                once(kept, name, value)?;
            }
            return Ok(());
        }
    };
    once(kept, name, value)
}

fn once(kept: &mut Map<String, Value>, name: String, value: Value) -> Result<(), String> {
    if kept.contains_key(&name) {
        return Err(format!("{name} is there twice"));
    }
    kept.insert(name, value);
    Ok(())
}

fn add(kept: &mut Map<String, Value>, name: String, value: Value) -> Result<(), String> {
    let list = kept
        .entry(name)
        .or_insert_with(|| Vec::<Value>::new().into());
    let list = list.as_array_mut().ok_or("a list is malformed")?;
    list.push(value);
    Ok(())
}

/// Key and value of an entry of a map.
fn entry(bytes: &[u8]) -> Result<(String, &[u8]), String> {
    let (mut key, mut value) = (None, None);
    for part in Message(bytes) {
        let part = part?;
        match (part.number, part.payload) {
            (1, Payload::Bytes(bytes)) if key.is_none() => key = Some(bytes),
            (2, Payload::Bytes(bytes)) if value.is_none() => value = Some(bytes),
            (number, _) => return Err(format!("an entry of a map has an odd field {number}")),
        }
    }
    Ok((text(key.unwrap_or_default())?, value.unwrap_or_default()))
}

fn text(bytes: &[u8]) -> Result<String, String> {
    let text = std::str::from_utf8(bytes);
    text.map(str::to_owned)
        .map_err(|error| format!("a string is not UTF-8: {error}"))
}

/// The fields of a message, in their order. Ends after the first error.
struct Message<'a>(&'a [u8]);

struct Part<'a> {
    number: u64,
    payload: Payload<'a>,
}

#[derive(Clone, Copy)]
enum Payload<'a> {
    Number(u64),
    Fixed(&'a [u8]),
    Bytes(&'a [u8]),
}

impl Payload<'_> {
    /// The payload as it is, for a comparison.
    fn whole(self) -> Value {
        match self {
            Self::Number(number) => Value::from(number),
            Self::Fixed(bytes) | Self::Bytes(bytes) => {
                Value::String(BASE64_URL_SAFE_NO_PAD.encode(bytes))
            }
        }
    }
}

impl<'a> Iterator for Message<'a> {
    type Item = Result<Part<'a>, String>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let Some((part, rest)) = part(self.0) else {
            self.0 = &[];
            return Some(Err("a field is broken".to_owned()));
        };
        self.0 = rest;
        Some(Ok(part))
    }
}

/// The first field of a message, and the rest; `None` where it is broken, or a group, which
/// Kubernetes does not use.
fn part(message: &[u8]) -> Option<(Part<'_>, &[u8])> {
    let (tag, after) = varint(message)?;
    // Decoders take the number of a field for 32 bits.
    let number = tag >> 3;
    if number == 0 || number > u64::from(u32::MAX >> 3) {
        return None;
    }
    let (payload, rest) = match tag & 7 {
        0 => {
            let (value, rest) = varint(after)?;
            (Payload::Number(value), rest)
        }
        1 => {
            let (bytes, rest) = after.split_at_checked(8)?;
            (Payload::Fixed(bytes), rest)
        }
        2 => {
            let (length, after) = varint(after)?;
            let (bytes, rest) = after.split_at_checked(usize::try_from(length).ok()?)?;
            (Payload::Bytes(bytes), rest)
        }
        5 => {
            let (bytes, rest) = after.split_at_checked(4)?;
            (Payload::Fixed(bytes), rest)
        }
        _ => return None,
    };
    Some((Part { number, payload }, rest))
}

/// A number in base 128, the low digits first. Negative ones take ten bytes.
fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0_u64;
    for (place, byte) in bytes.iter().enumerate().take(10) {
        let digit = u64::from(byte & 0x7f);
        // The tenth byte has room for one bit.
        if place == 9 && digit > 1 {
            return None;
        }
        value |= digit << (7 * place);
        if byte & 0x80 == 0 {
            return Some((value, bytes.get(place + 1..)?));
        }
    }
    None
}

/// Writes protobuf, for the tests of those who read it.
#[cfg(test)]
pub(super) mod write {
    /// A field of bytes.
    pub(in crate::core::policy) fn field(number: u64, content: &[u8]) -> Vec<u8> {
        let mut bytes = varint(number << 3 | 2);
        bytes.extend(varint(u64::try_from(content.len()).unwrap()));
        bytes.extend_from_slice(content);
        bytes
    }

    /// A number as it is on the wire.
    pub(in crate::core::policy) fn varint(mut value: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        while value > 0x7f {
            bytes.push(u8::try_from(value & 0x7f).unwrap() | 0x80);
            value >>= 7;
        }
        bytes.push(u8::try_from(value).unwrap());
        bytes
    }

    /// An object in its envelope.
    pub(in crate::core::policy) fn object(version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
        let what = [field(1, version.as_bytes()), field(2, kind.as_bytes())].concat();
        let unknown = [field(1, &what), field(2, raw), field(3, b""), field(4, b"")];
        [super::MAGIC, &unknown.concat()].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::{
        write::{field as written, object},
        *,
    };
    use proptest::prelude::*;
    use serde_json::json;

    static META: Schema = Schema::of(&[
        field("name", 1, FieldKind::Text),
        field("generation", 7, FieldKind::Number),
        field("isHeld", 8, FieldKind::Flag),
        field("annotations", 12, FieldKind::TextMap(&["a/"])),
    ]);
    static SOURCE: Schema = Schema {
        fields: &[field("emptyDir", 2, FieldKind::Presence)],
        others: Others::Keep,
    };
    static VOLUME: Schema = Schema::of(&[
        field("name", 1, FieldKind::Text),
        field("volumeSource", 2, FieldKind::Inline(&SOURCE)),
    ]);
    static WHOLE: Schema = Schema::of(&[
        field("metadata", 1, FieldKind::Object(&META)),
        field("volumes", 2, FieldKind::Objects(&VOLUME)),
    ]);

    fn of(raw: &[u8]) -> Result<Value, String> {
        read(&object("v1", "Thing", raw), &WHOLE).map(|read| read.object)
    }

    #[test]
    fn a_message_becomes_what_the_same_object_is_in_json() {
        let annotation = |key: &str| [written(1, key.as_bytes()), written(2, b"1")].concat();
        let metadata = [
            written(1, b"shop"),
            // -1 takes ten bytes.
            [vec![7 << 3], write::varint(u64::MAX)].concat(),
            written(12, &annotation("a/b")),
            written(12, &annotation("c")),
        ];
        let volume = [
            written(1, b"v"),
            written(2, &[written(2, b""), written(7, b"\x0a\x01s")].concat()),
        ];
        let raw = [written(1, &metadata.concat()), written(2, &volume.concat())].concat();
        let wanted = json!({
            "metadata": {"name": "shop", "generation": -1, "annotations": {"a/b": "1"}},
            "volumes": [{"name": "v", "volumeSource": true, "emptyDir": true, "field 7": "CgFz"}],
        });
        assert_eq!(of(&raw), Ok(wanted));
        let read = read(&object("v1", "Thing", &raw), &WHOLE).unwrap();
        assert_eq!(
            (read.kind.as_str(), read.api_version.as_str()),
            ("Thing", "v1")
        );
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_refused() {
        let twice = [written(1, b"shop"), written(1, b"kube-system")].concat();
        let number = vec![1 << 3, 7];
        let group = vec![1 << 3 | 3];
        let long = vec![1 << 3 | 2, 200, b'x'];
        let zero = vec![2, 1, b'x'];
        let entries = written(12, &[written(1, b"a/b"), written(1, b"a/c")].concat());
        let same = [
            written(12, &written(1, b"a/b")),
            written(12, &written(1, b"a/b")),
        ];
        for metadata in [twice, number, group, long, zero, entries, same.concat()] {
            assert!(of(&written(1, &metadata)).is_err(), "{metadata:?}");
        }
        let source = written(2, &written(2, b""));
        let volume = written(2, &[&source[..], &source].concat());
        assert!(of(&volume).is_err(), "an inlined message twice");
        let whole = object("v1", "Thing", &written(1, &written(1, b"shop")));
        for number in [1, 2] {
            let again = [&whole[..], &written(number, b"")].concat();
            assert!(read(&again, &WHOLE).is_err(), "field {number} twice");
        }
        let encoded = [&whole[..], &written(3, b"gzip")].concat();
        assert!(read(&encoded, &WHOLE).is_err());
        assert!(read(b"k8s", &WHOLE).is_err());
        assert!(read(br#"{"metadata":{"name":"a"}}"#, &WHOLE).is_err());
    }

    #[test]
    fn an_entry_of_a_map_has_one_key_and_one_value() {
        let key = written(1, b"a/b");
        let value = |text: &[u8]| written(2, text);
        let annotated = |entry: &[u8]| of(&written(1, &written(12, entry)));
        assert!(annotated(&[&key[..], &value(b"1")].concat()).is_ok());
        assert!(annotated(&[&key[..], &value(b"1"), &value(b"2")].concat()).is_err());
        assert!(annotated(&[&key[..], &key].concat()).is_err());
    }

    #[test]
    fn a_flag_is_set_by_any_number_but_zero() {
        for (number, is_set) in [(0, false), (1, true), (2, true)] {
            let metadata = [vec![8 << 3], write::varint(number)].concat();
            let wanted = json!({"metadata": {"isHeld": is_set}});
            assert_eq!(of(&written(1, &metadata)), Ok(wanted), "{number}");
        }
    }

    #[test]
    fn fields_of_every_form_are_passed_over() {
        let wanted = json!({"metadata": {"name": "shop"}});
        let name = written(1, b"shop");
        let most = u64::from(u32::MAX >> 3);
        for other in [
            [write::varint(99 << 3 | 1), vec![0; 8]].concat(),
            [write::varint(99 << 3 | 5), vec![0; 4]].concat(),
            [write::varint(99 << 3), write::varint(7)].concat(),
            written(most, b"x"),
        ] {
            let metadata = [&other[..], &name].concat();
            assert_eq!(of(&written(1, &metadata)), Ok(wanted.clone()), "{other:?}");
        }
        let past = written(most + 1, b"x");
        assert!(of(&written(1, &past)).is_err(), "a number past 29 bits");
    }

    #[test]
    fn a_number_has_at_most_64_bits() {
        let digits = |last: u8| [&[0xff; 9][..], &[last]].concat();
        assert_eq!(varint(&digits(1)), Some((u64::MAX, &[][..])));
        assert_eq!(varint(&digits(0)), Some((u64::MAX >> 1, &[][..])));
        assert_eq!(varint(&digits(2)), None);
        assert_eq!(varint(&[0xff; 11]), None);
        assert_eq!(varint(&[0x80]), None);
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(read(&bytes, &WHOLE).map_or_else(|why| !why.is_empty(), |_| true));
            let enclosed = object("v1", "Thing", &bytes);
            prop_assert!(read(&enclosed, &WHOLE).map_or_else(|why| !why.is_empty(), |_| true));
        }
    }
}

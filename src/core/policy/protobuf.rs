//! Kubernetes' own binary form of an object, as far as its kind and name: `kubectl create namespace` sends it.
//!
//! Four bytes, then a message `Unknown` (apimachinery, `runtime/generated.proto`) that says what the object is and holds its bytes. Nothing
//! here is passed on, so what could be read in two ways is refused.

/// What an object says of itself.
#[derive(Debug, Default, Eq, PartialEq)]
pub(super) struct Head {
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) generate_name: String,
}

const MAGIC: &[u8] = b"k8s\0";

/// Reads the head of an object; `None` where it is none, or could be read in two ways.
pub(super) fn head(body: &[u8]) -> Option<Head> {
    let unknown = body.strip_prefix(MAGIC)?;
    let kind = Message(part(unknown, 1)?).text(2)?;
    let metadata = part(part(unknown, 2)?, 1)?;
    let metadata = Message(metadata);
    Some(Head {
        kind,
        name: metadata.text(1)?,
        generate_name: metadata.text(2)?,
    })
}

/// A message within a message; empty where it is not there.
fn part(message: &[u8], number: u64) -> Option<&[u8]> {
    Message(message).only(number)
}

/// A message that is not read yet.
#[derive(Clone, Copy)]
struct Message<'a>(&'a [u8]);

impl<'a> Message<'a> {
    /// The one field of this number, of bytes; empty where there is none, `None` where there are two.
    fn only(self, number: u64) -> Option<&'a [u8]> {
        let mut rest = self.0;
        let mut found = None;
        while !rest.is_empty() {
            let (tag, after) = varint(rest)?;
            let (bytes, after) = match tag & 7 {
                0 => (&[][..], varint(after)?.1),
                1 => after.split_at_checked(8)?,
                2 => {
                    let (length, after) = varint(after)?;
                    after.split_at_checked(usize::try_from(length).ok()?)?
                }
                5 => after.split_at_checked(4)?,
                _ => return None,
            };
            rest = after;
            if tag >> 3 == number && (tag & 7 != 2 || found.replace(bytes).is_some()) {
                return None;
            }
        }
        Some(found.unwrap_or_default())
    }

    fn text(self, number: u64) -> Option<String> {
        String::from_utf8(self.only(number)?.to_vec()).ok()
    }
}

/// A number in base 128, the low digits first.
fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0;
    for (place, byte) in bytes.iter().enumerate().take(9) {
        value |= u64::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            return Some((value, bytes.get(place + 1..)?));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn field(number: u8, content: &[u8]) -> Vec<u8> {
        let mut bytes = vec![number << 3 | 2, u8::try_from(content.len()).unwrap()];
        bytes.extend_from_slice(content);
        bytes
    }

    fn object(kind: &[u8], metadata: &[u8]) -> Vec<u8> {
        let what = [field(1, b"v1"), field(2, kind)].concat();
        let raw = [field(1, metadata), field(2, b""), field(3, b"")].concat();
        let unknown = [
            field(1, &what),
            field(2, &raw),
            field(3, b""),
            field(4, b""),
        ]
        .concat();
        [MAGIC, &unknown].concat()
    }

    #[test]
    fn what_kubectl_sends_is_read() {
        // `kubectl create namespace shop` of v1.34.4, without the labels that nobody gave it: creationTimestamp is an empty message.
        let metadata = [
            field(1, b"shop"),
            field(2, b""),
            field(3, b""),
            field(4, b""),
            field(5, b""),
            field(6, b""),
            vec![7 << 3, 0],
            field(8, b""),
        ];
        let wanted = Head {
            kind: "Namespace".to_owned(),
            name: "shop".to_owned(),
            generate_name: String::new(),
        };
        assert_eq!(
            head(&object(b"Namespace", &metadata.concat())),
            Some(wanted)
        );
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_refused() {
        let twice = [field(1, b"shop"), field(1, b"kube-system")].concat();
        let number = [vec![1 << 3, 7]].concat();
        let group = [vec![1 << 3 | 3]].concat();
        let long = [1 << 3 | 2, 200, b'x'];
        for metadata in [&twice, &number, &group, &long.to_vec()] {
            assert_eq!(head(&object(b"Namespace", metadata)), None, "{metadata:?}");
        }
        let whole = object(b"Namespace", &field(1, b"shop"));
        let doubled = [&whole[..], &whole[MAGIC.len()..]].concat();
        assert_eq!(head(&doubled), None);
        assert_eq!(head(b"k8s"), None);
        assert_eq!(head(br#"{"metadata":{"name":"a"}}"#), None);
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            head(&bytes);
            head(&[MAGIC, &bytes].concat());
        }
    }
}

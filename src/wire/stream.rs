//! The header that begins every stream, all big-endian: `u8 version · u8 kind · u16 port · u16 n +
//! n bytes service · u16 n + n bytes namespace · u16 n + n bytes id` (docs/protocol.md, Stream
//! header).
//!
//! Version 1 knows TCP and UDP; nothing goes back before the payload. Version 2 adds HTTP, and a
//! status byte in front of what a TCP or UDP target says. The reader takes the bytes as they come
//! and refuses at the first byte that makes a header impossible: a length is judged before what it
//! announces is stored.

use std::{fmt, num::NonZeroU16};

/// Longest label of a Kubernetes name (RFC 1123).
const LABEL_BYTES_MAX: usize = 63;
/// Longest id: a UUID, a gateway's name (253) and a port fit twice.
const ID_BYTES_MAX: usize = 512;

/// Header of a stream.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Header {
    /// Version, which decides on the rules after the header.
    pub version: Version,
    /// Target of its bytes.
    pub target: StreamTarget,
    /// The peer's name for what it opened the stream for, for the log: printable ASCII, may be
    /// empty.
    pub id: String,
}

/// The version of the header.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Version {
    /// Without a word back: a target that cannot be reached is a stream that is closed.
    One,
    /// A TCP or UDP stream is answered with a status first.
    Two,
}

/// Target of a stream.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum StreamTarget {
    /// Bytes to a TCP port of a service.
    Tcp(Service),
    /// Datagrams to a UDP port of a service.
    Udp(Service),
    /// HTTP/1.1 requests for the Kubernetes API. Port and names of the header mean nothing.
    Kubernetes,
    /// HTTP/1.1 requests for a service.
    Http(Service),
}

/// A port of a service.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Service {
    /// Its namespace, a valid label.
    pub namespace: String,
    /// Its name, a valid label.
    pub name: String,
    /// The port of the service.
    pub port: NonZeroU16,
}

/// Reasons why bytes are no header.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Invalid {
    /// A version that does not exist.
    Version(u8),
    /// A kind that this version does not have.
    Kind(u8),
    /// Port 0.
    Port,
    /// Not the name of a service.
    Service,
    /// Not the name of a namespace.
    Namespace,
    /// An id that is too long or not printable.
    Id,
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version(version) => write!(f, "version {version} is neither 1 nor 2"),
            Self::Kind(kind) => write!(f, "kind {kind} does not exist in this version"),
            Self::Port => f.write_str("port 0"),
            Self::Service => f.write_str("the service's name is not a DNS label"),
            Self::Namespace => f.write_str("the namespace's name is not a DNS label"),
            Self::Id => write!(
                f,
                "the id is not printable ASCII of at most {ID_BYTES_MAX} bytes"
            ),
        }
    }
}

impl std::error::Error for Invalid {}

/// Collects a header out of pieces of any size.
#[derive(Debug, Default)]
pub struct HeaderReader {
    have: Vec<u8>,
}

impl HeaderReader {
    /// Reads on. Says how many bytes belong to the header, and the header when it is complete.
    pub fn read(&mut self, bytes: &[u8]) -> (usize, Result<Option<Header>, Invalid>) {
        let mut used = 0;
        loop {
            match parse(&self.have) {
                Err(invalid) => return (used, Err(invalid)),
                Ok(Parsed::Whole(header)) => return (used, Ok(Some(header))),
                Ok(Parsed::Needs(more)) => {
                    let rest = bytes.get(used..).unwrap_or_default();
                    let Some(next) = rest.get(..more.min(rest.len())) else {
                        return (used, Ok(None));
                    };
                    if next.is_empty() {
                        return (used, Ok(None));
                    }
                    self.have.extend_from_slice(next);
                    used += next.len();
                }
            }
        }
    }
}

enum Parsed {
    Whole(Header),
    /// At least so many bytes more, all of them part of the header.
    Needs(usize),
}

/// Point at which the reading of a header stopped.
enum Stop {
    Needs(usize),
    Invalid(Invalid),
}

impl From<Invalid> for Stop {
    fn from(invalid: Invalid) -> Self {
        Self::Invalid(invalid)
    }
}

fn parse(bytes: &[u8]) -> Result<Parsed, Invalid> {
    match header(&mut Cursor { rest: bytes }) {
        Ok(header) => Ok(Parsed::Whole(header)),
        Err(Stop::Needs(more)) => Ok(Parsed::Needs(more)),
        Err(Stop::Invalid(invalid)) => Err(invalid),
    }
}

fn header(cursor: &mut Cursor<'_>) -> Result<Header, Stop> {
    let version = match cursor.u8()? {
        1 => Version::One,
        2 => Version::Two,
        other => return Err(Invalid::Version(other).into()),
    };
    let kind = cursor.u8()?;
    if kind == 0 || kind > 4 || (version == Version::One && kind > 2) {
        return Err(Invalid::Kind(kind).into());
    }
    let needs_service = kind != 3;
    let port = NonZeroU16::new(cursor.u16()?);
    if needs_service && port.is_none() {
        return Err(Invalid::Port.into());
    }
    let is_name = |name: &str| is_label(name) || (!needs_service && name.is_empty());
    let name = cursor.text(LABEL_BYTES_MAX, is_name, Invalid::Service)?;
    let namespace = cursor.text(LABEL_BYTES_MAX, is_name, Invalid::Namespace)?;
    let id = cursor.text(ID_BYTES_MAX, is_printable, Invalid::Id)?;
    let target = match (kind, port) {
        (3, _) => StreamTarget::Kubernetes,
        (_, None) => return Err(Invalid::Port.into()),
        (kind, Some(port)) => {
            let service = Service {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                port,
            };
            match kind {
                1 => StreamTarget::Tcp(service),
                2 => StreamTarget::Udp(service),
                _ => StreamTarget::Http(service),
            }
        }
    };
    Ok(Header {
        version,
        target,
        id: id.to_owned(),
    })
}

fn is_printable(text: &str) -> bool {
    text.bytes()
        .all(|byte| byte == b' ' || byte.is_ascii_graphic())
}

/// Returns whether this is a label of RFC 1123: what Kubernetes accepts as a namespace, and as a
/// service in any of its versions.
fn is_label(name: &str) -> bool {
    let is_end = |byte: Option<u8>| {
        byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    name.len() <= LABEL_BYTES_MAX
        && is_end(name.bytes().next())
        && is_end(name.bytes().last())
        && name.bytes().all(|byte| byte == b'-' || is_end(Some(byte)))
}

struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Stop> {
        match self.rest.split_at_checked(count) {
            Some((taken, rest)) => {
                self.rest = rest;
                Ok(taken)
            }
            None => Err(Stop::Needs(count - self.rest.len())),
        }
    }

    fn u8(&mut self) -> Result<u8, Stop> {
        let byte = self.take(1)?;
        Ok(byte.iter().fold(0, |_, byte| *byte))
    }

    fn u16(&mut self) -> Result<u16, Stop> {
        let bytes = self.take(2)?;
        Ok(bytes
            .iter()
            .fold(0, |value, byte| (value << 8) | u16::from(*byte)))
    }

    /// A text with its length in front. The length is judged before the text is waited for.
    fn text(
        &mut self,
        most: usize,
        is_valid: impl Fn(&str) -> bool,
        invalid: Invalid,
    ) -> Result<&'a str, Stop> {
        let length = usize::from(self.u16()?);
        if length > most {
            return Err(invalid.into());
        }
        match std::str::from_utf8(self.take(length)?) {
            Ok(text) if is_valid(text) => Ok(text),
            Ok(_) | Err(_) => Err(invalid.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(version: u8, kind: u8, port: u16, texts: [&str; 3]) -> Vec<u8> {
        let mut bytes = vec![version, kind];
        bytes.extend(port.to_be_bytes());
        for text in texts {
            bytes.extend(u16::try_from(text.len()).unwrap().to_be_bytes());
            bytes.extend(text.as_bytes());
        }
        bytes
    }

    fn read(bytes: &[u8]) -> (usize, Result<Option<Header>, Invalid>) {
        HeaderReader::default().read(bytes)
    }

    fn service(namespace: &str, name: &str, port: u16) -> Service {
        Service {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            port: NonZeroU16::new(port).unwrap(),
        }
    }

    #[test]
    fn the_example_of_the_protocol_is_read() {
        let example = [
            0x01, 0x01, 0x15, 0x38, 0x00, 0x08, 0x70, 0x6f, 0x73, 0x74, 0x67, 0x72, 0x65, 0x73,
            0x00, 0x09, 0x64, 0x61, 0x74, 0x61, 0x62, 0x61, 0x73, 0x65, 0x73, 0x00, 0x0d, 0x74,
            0x75, 0x6e, 0x6e, 0x65, 0x6c, 0x2d, 0x61, 0x62, 0x63, 0x31, 0x32, 0x33,
        ];
        let header = Header {
            version: Version::One,
            target: StreamTarget::Tcp(service("databases", "postgres", 5432)),
            id: "tunnel-abc123".to_owned(),
        };
        assert_eq!(read(&example), (40, Ok(Some(header))));
    }

    #[test]
    fn what_follows_the_header_is_left_alone() {
        let mut stream = bytes(2, 3, 0, ["", "", "req-1"]);
        let length = stream.len();
        stream.extend(b"GET / HTTP/1.1\r\n");
        let (used, header) = read(&stream);
        assert_eq!(used, length);
        assert_eq!(header.unwrap().unwrap().target, StreamTarget::Kubernetes);
    }

    #[test]
    fn each_kind_of_each_version_is_known() {
        let web = service("shop", "web", 80);
        let cases = [
            (1, 1, Ok(StreamTarget::Tcp(web.clone()))),
            (1, 2, Ok(StreamTarget::Udp(web.clone()))),
            (1, 3, Err(Invalid::Kind(3))),
            (1, 0, Err(Invalid::Kind(0))),
            (2, 1, Ok(StreamTarget::Tcp(web.clone()))),
            (2, 2, Ok(StreamTarget::Udp(web.clone()))),
            (2, 3, Ok(StreamTarget::Kubernetes)),
            (2, 4, Ok(StreamTarget::Http(web))),
            (2, 5, Err(Invalid::Kind(5))),
            (0, 1, Err(Invalid::Version(0))),
            (3, 1, Err(Invalid::Version(3))),
        ];
        for (version, kind, expected) in cases {
            let (_, read) = read(&bytes(version, kind, 80, ["web", "shop", ""]));
            let target = read.map(|header| header.unwrap().target);
            assert_eq!(target, expected, "version {version}, kind {kind}");
        }
    }

    #[test]
    fn names_that_are_no_labels_are_refused() {
        let long = "a".repeat(64);
        for name in [
            "",
            "-a",
            "a-",
            "A",
            "a.b",
            "a/b",
            "a\0",
            "ä",
            "..",
            long.as_str(),
        ] {
            let wrong_service = read(&bytes(2, 4, 80, [name, "shop", ""])).1;
            assert_eq!(wrong_service, Err(Invalid::Service), "{name:?}");
            let wrong_namespace = read(&bytes(2, 4, 80, ["web", name, ""])).1;
            assert_eq!(wrong_namespace, Err(Invalid::Namespace), "{name:?}");
        }
        assert_eq!(
            read(&bytes(2, 4, 0, ["web", "shop", ""])).1,
            Err(Invalid::Port)
        );
        assert_eq!(
            read(&bytes(2, 4, 80, ["web", "shop", "a\nb"])).1,
            Err(Invalid::Id)
        );
    }

    #[test]
    fn a_length_is_refused_before_its_bytes_are_waited_for() {
        let mut reader = HeaderReader::default();
        let (used, refused) = reader.read(&[1, 1, 0, 80, 0xff, 0xff, b'a', b'b']);
        assert_eq!((used, refused), (6, Err(Invalid::Service)));
        assert!(reader.have.len() <= 6);
    }

    fn label() -> impl Strategy<Value = String> {
        "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
    }

    proptest! {
        #[test]
        fn where_the_bytes_are_cut_means_nothing(
            kind in 1..=4_u8, port in 1..=u16::MAX, name in label(), namespace in label(),
            id in "[ -~]{0,512}", cuts in prop::collection::vec(1..40_usize, 1..40), tail: Vec<u8>,
        ) {
            let mut stream = bytes(2, kind, port, [&name, &namespace, &id]);
            let length = stream.len();
            stream.extend(&tail);
            let mut reader = HeaderReader::default();
            let mut rest = stream.as_slice();
            let mut cuts = cuts.iter().cycle();
            let header = loop {
                let (used, read) = reader.read(&rest[..rest.len().min(*cuts.next().unwrap())]);
                rest = &rest[used..];
                if let Some(header) = read.unwrap() {
                    break header;
                }
            };
            prop_assert_eq!(rest, tail.as_slice());
            prop_assert_eq!(stream.len() - rest.len(), length);
            prop_assert_eq!(&header.id, &id);
            let expected = service(&namespace, &name, port);
            match header.target {
                StreamTarget::Tcp(service) | StreamTarget::Udp(service) | StreamTarget::Http(service) => {
                    prop_assert_eq!(service, expected);
                }
                StreamTarget::Kubernetes => prop_assert_eq!(kind, 3),
            }
        }

        #[test]
        fn no_bytes_make_it_store_more_than_a_header(bytes: Vec<u8>, version in 0..4_u8, kind in 0..6_u8) {
            let mut reader = HeaderReader::default();
            let mut stream = vec![version, kind];
            stream.extend(bytes);
            let (used, read) = reader.read(&stream);
            prop_assert!(used <= stream.len());
            prop_assert_eq!(used, reader.have.len());
            prop_assert!(used <= 10 + 2 * LABEL_BYTES_MAX + ID_BYTES_MAX);
            if let Ok(Some(header)) = read {
                prop_assert!(is_printable(&header.id));
            }
        }
    }
}

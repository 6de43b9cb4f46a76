//! X.509, as far as it is needed (RFC 5280, section 4.1): writes the dashboard's self-signed
//! certificate, and reads the validity of others.
//!
//! It is written by hand because a crate for it costs the program more than these hundred lines.
//! Signing is elsewhere.

use std::net::IpAddr;

use crate::core::time::Wall;

/// Fields of a self-signed certificate: its subject is its issuer.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a> {
    /// Any number that no other one has.
    pub serial: [u8; 16],
    /// Name in lists of certificates.
    pub common_name: &'a str,
    /// The names that it is for.
    pub names: &'a [String],
    /// The addresses that it is for.
    pub addresses: &'a [IpAddr],
    /// Start of validity.
    pub from: Wall,
    /// End of validity.
    pub to: Wall,
    /// A point on P-256, not compressed.
    pub public_key: &'a [u8],
}

// Object identifiers, with their tag and length: RFC 5280, RFC 5480, RFC 5758.
const ECDSA_WITH_SHA256: &[u8] = b"\x06\x08\x2a\x86\x48\xce\x3d\x04\x03\x02";
const EC_PUBLIC_KEY: &[u8] = b"\x06\x07\x2a\x86\x48\xce\x3d\x02\x01";
const P256: &[u8] = b"\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07";
const COMMON_NAME: &[u8] = b"\x06\x03\x55\x04\x03";
const SUBJECT_ALT_NAME: &[u8] = b"\x06\x03\x55\x1d\x11";
const BASIC_CONSTRAINTS: &[u8] = b"\x06\x03\x55\x1d\x13";
const KEY_USAGE: &[u8] = b"\x06\x03\x55\x1d\x0f";
const EXTENDED_KEY_USAGE: &[u8] = b"\x06\x03\x55\x1d\x25";
const SERVER_AUTH: &[u8] = b"\x06\x08\x2b\x06\x01\x05\x05\x07\x03\x01";
const TRUE: &[u8] = b"\x01\x01\xff";
/// `digitalSignature` alone.
const SIGNS: &[u8] = b"\x03\x02\x07\x80";

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// RFC 5280: a common name is no longer.
const COMMON_NAME_CHARS_MAX: usize = 64;

/// The part that is signed.
pub fn to_be_signed(fields: &Fields<'_>) -> Vec<u8> {
    let common_name: String = fields
        .common_name
        .chars()
        .take(COMMON_NAME_CHARS_MAX)
        .collect();
    let common_name = [COMMON_NAME, &tagged(0x0c, &[common_name.as_bytes()])];
    let name = sequence(&[&tagged(0x31, &[&sequence(&common_name)])]);
    // The highest bit is the sign, and the first byte is not to be 0: it is a positive number
    // without leading zeros.
    let mut serial = fields.serial;
    serial[0] = serial[0] & 0x3f | 0x40;
    sequence(&[
        // Version 3.
        &tagged(VERSION, &[b"\x02\x01\x02"]),
        &tagged(INTEGER, &[&serial]),
        &sequence(&[ECDSA_WITH_SHA256]),
        &name,
        &sequence(&[&time(fields.from), &time(fields.to)]),
        &name,
        &sequence(&[&sequence(&[EC_PUBLIC_KEY, P256]), &bits(fields.public_key)]),
        &tagged(0xa3, &[&extensions(fields)]),
    ])
}

/// The certificate, of the part that is signed and its signature: ECDSA with SHA-256, in ASN.1.
pub fn signed(to_be_signed: &[u8], signature: &[u8]) -> Vec<u8> {
    sequence(&[
        to_be_signed,
        &sequence(&[ECDSA_WITH_SHA256]),
        &bits(signature),
    ])
}

fn extensions(fields: &Fields<'_>) -> Vec<u8> {
    let names = fields.names.iter();
    let names = names.map(|name| tagged(0x82, &[name.as_bytes()]));
    let addresses = fields.addresses.iter().map(|address| match address {
        IpAddr::V4(address) => tagged(0x87, &[&address.octets()]),
        IpAddr::V6(address) => tagged(0x87, &[&address.octets()]),
    });
    let alternatives: Vec<u8> = names.chain(addresses).flatten().collect();
    let octets = |value: &[u8]| tagged(0x04, &[value]);
    sequence(&[
        &sequence(&[BASIC_CONSTRAINTS, TRUE, &octets(&sequence(&[]))]),
        &sequence(&[KEY_USAGE, TRUE, &octets(SIGNS)]),
        &sequence(&[EXTENDED_KEY_USAGE, &octets(&sequence(&[SERVER_AUTH]))]),
        &sequence(&[SUBJECT_ALT_NAME, &octets(&sequence(&[&alternatives]))]),
    ])
}

/// `GeneralizedTime` from 2050 on, `UTCTime` before.
fn time(wall: Wall) -> Vec<u8> {
    let text = wall.rfc3339();
    let digits: String = text
        .chars()
        .take(19)
        .filter(char::is_ascii_digit)
        .chain(['Z'])
        .collect();
    match digits.strip_prefix("20") {
        Some(short) if short < "50" => tagged(UTC_TIME, &[short.as_bytes()]),
        Some(_) | None => tagged(GENERALIZED_TIME, &[digits.as_bytes()]),
    }
}

fn sequence(parts: &[&[u8]]) -> Vec<u8> {
    tagged(SEQUENCE, parts)
}

fn bits(bytes: &[u8]) -> Vec<u8> {
    tagged(0x03, &[&[0], bytes])
}

/// A value of DER with its tag and length.
fn tagged(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let mut value = vec![tag];
    let bytes = length.to_be_bytes();
    let significant = bytes.iter().position(|byte| *byte != 0);
    let bytes = significant
        .and_then(|first| bytes.get(first..))
        .unwrap_or(&[0]);
    if length >= 0x80 {
        value.push(0x80 | u8::try_from(bytes.len()).unwrap_or(0x7f));
    }
    value.extend_from_slice(bytes);
    for part in parts {
        value.extend_from_slice(part);
    }
    value
}

/// Validity of a certificate; `None`: it cannot be parsed.
pub fn validity(certificate: &[u8]) -> Option<(Wall, Wall)> {
    let (certificate, _) = within(certificate, SEQUENCE)?;
    let (body, _) = within(certificate, SEQUENCE)?;
    // One of version 1 does not say so.
    let body = within(body, VERSION).map_or(body, |(_, rest)| rest);
    let (_serial, body) = within(body, INTEGER)?;
    let (_algorithm, body) = within(body, SEQUENCE)?;
    let (_issuer, body) = within(body, SEQUENCE)?;
    let (validity, _) = within(body, SEQUENCE)?;
    let (from, rest) = moment(validity)?;
    let (to, _) = moment(rest)?;
    Some((from, to))
}

/// The content of the first value, which has this tag, and what follows it.
fn within(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<2>()?;
    let [found, length] = *head;
    let (length, rest) = if length < 0x80 {
        (usize::from(length), rest)
    } else {
        // Three bytes of length are 16 MiB.
        let count = usize::from(length & 0x7f);
        let (digits, rest) = rest.split_at_checked(count).filter(|_| count <= 3)?;
        let length = digits
            .iter()
            .fold(0, |length, byte| length << 8 | usize::from(*byte));
        (length, rest)
    };
    (found == tag).then(|| rest.split_at_checked(length))?
}

fn moment(bytes: &[u8]) -> Option<(Wall, &[u8])> {
    let short = within(bytes, UTC_TIME);
    let (digits, rest) = short.or_else(|| within(bytes, GENERALIZED_TIME))?;
    let digits = std::str::from_utf8(digits).ok()?;
    let digits = match short {
        Some(_) if digits < "50" => format!("20{digits}"),
        Some(_) => format!("19{digits}"),
        None => digits.to_owned(),
    };
    let part = |from: usize| digits.get(from..from + 2);
    let text = format!(
        "{}-{}-{}T{}:{}:{}Z",
        digits.get(..4)?,
        part(4)?,
        part(6)?,
        part(8)?,
        part(10)?,
        part(12)?
    );
    Some((Wall::parse_rfc3339(&text)?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Wall {
        Wall::parse_rfc3339(text).unwrap()
    }

    fn fields(names: &[String], from: Wall, to: Wall) -> Fields<'_> {
        Fields {
            serial: [0xff; 16],
            common_name: "edge-7",
            names,
            addresses: &[],
            from,
            to,
            public_key: &[4; 65],
        }
    }

    #[test]
    fn lengths_and_times_are_those_of_der() {
        assert_eq!(tagged(0x30, &[]), [0x30, 0]);
        assert_eq!(tagged(4, &[&[1; 0x7f]])[..2], [4, 0x7f]);
        assert_eq!(tagged(4, &[&[1; 0x80]])[..3], [4, 0x81, 0x80]);
        assert_eq!(tagged(4, &[&[1; 0x1234]])[..4], [4, 0x82, 0x12, 0x34]);
        let time = |text| time(at(text));
        assert_eq!(time("2049-12-31T23:59:59Z"), b"\x17\x0d491231235959Z");
        assert_eq!(time("2050-01-01T00:00:00Z"), b"\x18\x0f20500101000000Z");
        assert_eq!(time("1970-01-01T00:00:00Z"), b"\x18\x0f19700101000000Z");
    }

    #[test]
    fn what_is_written_is_read_back_and_nothing_else_is_read_as_it() {
        let names: Vec<_> = (0..100).map(|n| format!("edge-{n}.example")).collect();
        for (from, to) in [
            ("2026-11-21T22:00:00Z", "2029-02-18T22:00:00Z"),
            ("2049-12-31T23:59:59Z", "2052-01-01T00:00:01Z"),
        ] {
            let body = to_be_signed(&fields(&names, at(from), at(to)));
            let whole = signed(&body, b"signature");
            assert_eq!(validity(&whole), Some((at(from), at(to))));
            for end in 0..whole.len() {
                assert_eq!(validity(&whole[..end]), None, "{end}");
            }
        }
        for nothing in [&b""[..], b"\x30", b"\x30\x84\xff\xff\xff\xff", &[0x30; 99]] {
            assert_eq!(validity(nothing), None);
        }
    }

    #[test]
    fn a_serial_is_positive_and_a_common_name_no_longer_than_it_may_be() {
        let long = "x".repeat(70);
        for first in [0, 0x80, 0xff] {
            let body = to_be_signed(&Fields {
                serial: [first; 16],
                common_name: &long,
                ..fields(&[], Wall::default(), Wall::default())
            });
            let (body, _) = within(&body, SEQUENCE).unwrap();
            let (_, body) = within(body, VERSION).unwrap();
            let (serial, _) = within(body, INTEGER).unwrap();
            assert!((0x40..0x80).contains(&serial[0]), "{serial:?}");
            assert!(body.windows(64).any(|part| part == &long.as_bytes()[..64]));
            assert!(!body.windows(65).any(|part| part == &long.as_bytes()[..65]));
        }
    }
}

//! The validity of a certificate: the two times of its DER form, and nothing else of it.

use std::path::Path;

use base64::Engine;

use crate::{
    core::{preflight::facts::Fact, time::Wall},
    files,
};

/// A chain of k3s has 2 KB.
const BYTES_MAX: usize = 256 * 1024;

/// `not_before not_after`, in milliseconds, of the first certificate of a PEM file.
pub(super) fn dates(path: &Path) -> Fact {
    let content = match files::read(path, BYTES_MAX) {
        Ok(content) => content,
        Err(error) => {
            return match std::fs::File::open(path) {
                Ok(_) => Fact::Failed(error.why.join(": ")),
                Err(error) => super::failed(&error),
            };
        }
    };
    if content.is_empty() {
        return Fact::Failed("it is empty".to_owned());
    }
    match of_pem(&content) {
        Some((from, to)) => Fact::Text(format!("{} {}", from.millis(), to.millis())),
        None => Fact::Failed("it holds no certificate".to_owned()),
    }
}

/// The first and the last moment of the first certificate in a text of PEM.
pub fn of_pem(content: &[u8]) -> Option<(Wall, Wall)> {
    let text = String::from_utf8_lossy(content);
    let (_, rest) = text.split_once("-----BEGIN CERTIFICATE-----")?;
    let (body, _) = rest.split_once("-----END CERTIFICATE-----")?;
    let body: String = body.split_ascii_whitespace().collect();
    let der = base64::engine::general_purpose::STANDARD
        .decode(body)
        .ok()?;
    validity(&der)
}

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// `Certificate ::= SEQUENCE { TBSCertificate ::= SEQUENCE { [0] version, serial, algorithm, issuer, Validity ::= SEQUENCE { two times }` …
fn validity(der: &[u8]) -> Option<(Wall, Wall)> {
    let (_, certificate, _) = element(der)?;
    let (_, mut rest, _) = element(certificate)?;
    let mut next = |wanted: u8| {
        let (tag, content, behind) = element(rest)?;
        (tag == wanted).then(|| {
            rest = behind;
            content
        })
    };
    // Certificates of version 1 do not say so.
    let _version = next(VERSION);
    next(INTEGER)?;
    next(SEQUENCE)?;
    next(SEQUENCE)?;
    let times = next(SEQUENCE)?;
    let (tag, from, behind) = element(times)?;
    let (other, to, _) = element(behind)?;
    Some((time(tag, from)?, time(other, to)?))
}

/// The first element of DER: its tag, its content, and what stands behind it.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = if first < 0x80 {
        (usize::from(first), rest)
    } else {
        let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
        // Four bytes are more than a file here can have.
        let is_sane = (1..=4).contains(&bytes.len());
        let length = bytes.iter().try_fold(0_usize, |sum, byte| {
            sum.checked_mul(256)?.checked_add(usize::from(*byte))
        });
        (length.filter(|_| is_sane)?, rest)
    };
    let (content, behind) = rest.split_at_checked(length)?;
    Some((tag, content, behind))
}

/// `YYMMDDHHMMSSZ` (50 and later are of the last century) or `YYYYMMDDHHMMSSZ`, always in UTC.
fn time(tag: u8, content: &[u8]) -> Option<Wall> {
    let text = std::str::from_utf8(content).ok()?;
    let (year, rest) = match tag {
        UTC_TIME => {
            let (year, rest) = text.split_at_checked(2)?;
            let century = if year < "50" { "20" } else { "19" };
            (format!("{century}{year}"), rest)
        }
        GENERALIZED_TIME => {
            let (year, rest) = text.split_at_checked(4)?;
            (year.to_owned(), rest)
        }
        _ => return None,
    };
    let part = |at: usize| rest.get(at..at + 2);
    Wall::parse_rfc3339(&format!(
        "{year}-{}-{}T{}:{}:{}Z",
        part(0)?,
        part(2)?,
        part(4)?,
        part(6)?,
        part(8)?
    ))
}

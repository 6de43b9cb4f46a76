//! From when and until when a certificate is good: the one thing of X.509 that people ask about.
//!
//! It checks nothing else: not who signed it, not whether it is well formed beyond its dates.

use base64::{Engine, engine::general_purpose::STANDARD};

use super::time::Wall;

const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// The first and the last moment of the first certificate in a PEM file. `None` where there is none.
pub fn dates(pem: &[u8]) -> Option<(Wall, Wall)> {
    let text = std::str::from_utf8(pem).ok()?;
    let (_, rest) = text.split_once("-----BEGIN CERTIFICATE-----")?;
    let (body, _) = rest.split_once("-----END CERTIFICATE-----")?;
    let body: String = body.split_ascii_whitespace().collect();
    dates_of_der(&STANDARD.decode(body).ok()?)
}

/// `Certificate { tbs { [version], serial, algorithm, issuer, validity { from, to }, … }, … }`
fn dates_of_der(der: &[u8]) -> Option<(Wall, Wall)> {
    let (certificate, _) = expect(der, SEQUENCE)?;
    let (mut rest, _) = expect(certificate, SEQUENCE)?;
    if rest.first() == Some(&VERSION) {
        rest = element(rest)?.2;
    }
    for _ in ["serial", "algorithm", "issuer"] {
        rest = element(rest)?.2;
    }
    let (validity, _) = expect(rest, SEQUENCE)?;
    let (from_tag, from, validity) = element(validity)?;
    let (to_tag, to, _) = element(validity)?;
    Some((time(from_tag, from)?, time(to_tag, to)?))
}

/// Tag, content and what follows.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, rest) = der.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(*first), rest),
        // Two bytes of length are 64 KiB: no part of a certificate has more.
        0x81 => {
            let (length, rest) = rest.split_first()?;
            (usize::from(*length), rest)
        }
        0x82 => {
            let (length, rest) = rest.split_first_chunk::<2>()?;
            (usize::from(u16::from_be_bytes(*length)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((*tag, content, rest))
}

fn expect(der: &[u8], wanted: u8) -> Option<(&[u8], &[u8])> {
    let (tag, content, rest) = element(der)?;
    (tag == wanted).then_some((content, rest))
}

/// `YYMMDDhhmmssZ`, or with four digits of the year: the two forms that RFC 5280 permits.
fn time(tag: u8, content: &[u8]) -> Option<Wall> {
    let text = std::str::from_utf8(content).ok()?;
    let year_and_rest = match tag {
        // 50 to 99 are of the last century.
        UTC_TIME if text.as_bytes().first()? < &b'5' => format!("20{text}"),
        UTC_TIME => format!("19{text}"),
        GENERALIZED_TIME => text.to_owned(),
        _ => return None,
    };
    let part = |from: usize, to: usize| year_and_rest.get(from..to);
    if year_and_rest.len() != 15 {
        return None;
    }
    Wall::parse_rfc3339(&format!(
        "{}-{}-{}T{}:{}:{}Z",
        part(0, 4)?,
        part(4, 6)?,
        part(6, 8)?,
        part(8, 10)?,
        part(10, 12)?,
        part(12, 14)?
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(from: i32, to: i32) -> String {
        let mut parameters = rcgen::CertificateParams::new(vec!["k3s".to_owned()]).unwrap();
        parameters.not_before = rcgen::date_time_ymd(from, 3, 1);
        parameters.not_after = rcgen::date_time_ymd(to, 2, 28);
        let key = rcgen::KeyPair::generate().unwrap();
        parameters.self_signed(&key).unwrap().pem()
    }

    #[test]
    fn dates_of_certificates_are_read_in_both_forms() {
        for (from, to) in [(1975, 2026), (2025, 2049), (2049, 2060), (2024, 4096)] {
            let (first, last) = dates(certificate(from, to).as_bytes()).unwrap();
            assert_eq!(first.rfc3339(), format!("{from}-03-01T00:00:00.000Z"));
            assert_eq!(last.rfc3339(), format!("{to}-02-28T00:00:00.000Z"));
        }
    }

    #[test]
    fn what_is_no_certificate_has_no_dates_and_no_cut_of_one_harms() {
        assert_eq!(dates(b""), None);
        assert_eq!(
            dates(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"),
            None
        );
        let pem = certificate(2025, 2026);
        let body: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
        let der = STANDARD.decode(body).unwrap();
        let end = der.len();
        for length in 0..end {
            // Only what has its dates whole may be read.
            let _read = dates_of_der(&der[..length]);
        }
        let mut broken = der.clone();
        for position in 0..end {
            broken[position] ^= 0xff;
            let _read = dates_of_der(&broken);
            broken[position] ^= 0xff;
        }
        assert!(dates_of_der(&der).is_some());
    }
}

//! Records as an agent packs them, read by the words of `docs/protocol.md` alone.
//!
//! Input is foreign: nothing here trusts a length, and what unpacks without end is an error.

use std::io::Read;

use flate2::bufread::DeflateDecoder;
use serde::Deserialize;
use serde_json::value::RawValue;

/// 64 MiB: what the records of one batch may be unpacked.
const UNPACKED_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Series, ticks or minutes of one batch.
const COUNT_MAX: u64 = 1 << 20;

/// The samples of a batch.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Samples {
    pub(crate) boot: u64,
    pub(crate) wall_offset_ms: i64,
    pub(crate) clock_is_set: bool,
    pub(crate) ticks: Vec<u64>,
    pub(crate) minutes: Vec<(u64, u64)>,
    pub(crate) lines: Vec<Line>,
}

/// The values of one series, one for each tick.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) key: String,
    pub(crate) digits: u8,
    pub(crate) values: Vec<Option<i64>>,
}

/// One row of a batch.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Row {
    pub(crate) sequence: u64,
    pub(crate) at: String,
    pub(crate) body: Box<RawValue>,
}

/// Reads `samples+deflate`.
pub(crate) fn samples(packed: &[u8]) -> Result<Samples, String> {
    let plain = inflate(packed)?;
    let mut rest = Rest(&plain);
    rest.form("names")?;
    let mut names = Vec::new();
    for _ in 0..rest.count("series")? {
        let number = rest.number()?;
        let digits = u8::try_from(rest.number()?).map_err(|_large| "digits above 255")?;
        let length = rest.count("bytes of a name")?;
        let key = String::from_utf8(rest.bytes(length)?.to_vec());
        let key = key.map_err(|_bytes| "a name is not UTF-8")?;
        names.push((number, key, digits));
    }
    rest.form("samples")?;
    let mut samples = Samples {
        boot: rest.number()?,
        wall_offset_ms: rest.signed()?,
        clock_is_set: match rest.number()? {
            0 => false,
            1 => true,
            other => return Err(format!("the flag of the clock is {other}")),
        },
        ..Samples::default()
    };
    let (mut tick, mut step) = (0_u64, 0_u64);
    for _ in 0..rest.count("ticks")? {
        step = step.wrapping_add_signed(rest.signed()?);
        tick = tick.wrapping_add(step);
        samples.ticks.push(tick);
    }
    let mut sequence = 0_u64;
    for _ in 0..rest.count("minutes")? {
        sequence = sequence.wrapping_add(rest.number()?);
        samples.minutes.push((sequence, rest.number()?));
    }
    let mut number = 0_u64;
    for _ in 0..rest.count("columns")? {
        number = number.wrapping_add(rest.number()?);
        let found = names.iter().find(|(known, ..)| *known == number);
        let (_, key, digits) = found.ok_or_else(|| format!("series {number} has no name"))?;
        samples.lines.push(Line {
            key: key.clone(),
            digits: *digits,
            values: rest.column(samples.ticks.len())?,
        });
    }
    if !rest.0.is_empty() {
        return Err(format!("{} bytes follow the samples", rest.0.len()));
    }
    Ok(samples)
}

/// Reads `rows+deflate`.
pub(crate) fn rows(packed: &[u8]) -> Result<Vec<Row>, String> {
    let text = String::from_utf8(inflate(packed)?).map_err(|_bytes| "rows are not UTF-8")?;
    let read = |line: &str| {
        serde_json::from_str(line).map_err(|error| format!("a line is no row: {error}"))
    };
    if !text.ends_with('\n') {
        return Err("the last row has no line break".to_owned());
    }
    text.lines().map(read).collect()
}

fn inflate(packed: &[u8]) -> Result<Vec<u8>, String> {
    let mut decoder = DeflateDecoder::new(packed);
    let mut plain = Vec::new();
    (&mut decoder)
        .take(UNPACKED_BYTES_MAX + 1)
        .read_to_end(&mut plain)
        .map_err(|error| format!("data is not deflated: {error}"))?;
    if u64::try_from(plain.len()).is_ok_and(|length| length > UNPACKED_BYTES_MAX) {
        return Err("data unpacks without end".to_owned());
    }
    if !decoder.into_inner().is_empty() {
        return Err("bytes follow the deflated data".to_owned());
    }
    Ok(plain)
}

/// What is still to be read.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn bytes(&mut self, length: usize) -> Result<&'a [u8], String> {
        let (bytes, rest) = self.0.split_at_checked(length).ok_or("it ends too early")?;
        self.0 = rest;
        Ok(bytes)
    }

    /// Seven bits a byte, the lowest first.
    fn number(&mut self) -> Result<u64, String> {
        let mut number = 0_u64;
        for shift in 0..10 {
            let &[byte] = self.bytes(1)? else {
                return Err("it ends too early".to_owned());
            };
            let bits = u64::from(byte & 0x7f);
            let shifted = bits.checked_mul(1 << (7 * shift));
            number |= shifted.ok_or("a number has more than 64 bits")?;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err("a number has more than ten bytes".to_owned())
    }

    /// 0, -1, 1, -2, 2 …
    fn signed(&mut self) -> Result<i64, String> {
        let number = self.number()?;
        let half = (number / 2).cast_signed();
        Ok(if number.is_multiple_of(2) {
            half
        } else {
            -half - 1
        })
    }

    fn count(&mut self, what: &str) -> Result<usize, String> {
        let count = self.number()?;
        let known = usize::try_from(count).ok().filter(|_| count <= COUNT_MAX);
        known.ok_or_else(|| format!("{count} {what}"))
    }

    fn form(&mut self, what: &str) -> Result<(), String> {
        match self.number()? {
            1 => Ok(()),
            other => Err(format!("the {what} are in form {other}")),
        }
    }

    fn column(&mut self, length: usize) -> Result<Vec<Option<i64>>, String> {
        let bits = match self.number()? {
            0 => None,
            1 => Some(self.bytes(length.div_ceil(8))?),
            other => return Err(format!("the flag of a column is {other}")),
        };
        let mut value = 0_i64;
        let mut values = Vec::new();
        for place in 0..length {
            let is_there = bits.is_none_or(|bits| {
                let byte = bits.get(place / 8).copied().unwrap_or_default();
                (byte >> (place % 8)) % 2 == 1
            });
            if is_there {
                value = value.wrapping_add(self.signed()?);
            }
            values.push(is_there.then_some(value));
        }
        Ok(values)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::DeflateEncoder;

    use super::*;

    fn deflate(plain: &[u8]) -> Vec<u8> {
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(plain).unwrap();
        encoder.finish().unwrap()
    }

    /// The example of `docs/protocol.md`, byte by byte.
    const EXAMPLE: &[u8] = b"\x01\x01\x05\x02\x02up\
        \x01\x03\xd0\x0f\x01\x03\xe8\x07\x00\x00\x02\x07\x02\x01\x01\x01\x05\x01\x05\x0e\x03";

    #[test]
    fn the_example_of_the_protocol_is_read() {
        let read = samples(&deflate(EXAMPLE)).unwrap();
        let wanted = Samples {
            boot: 3,
            wall_offset_ms: 1000,
            clock_is_set: true,
            ticks: vec![500, 1000, 1500],
            minutes: vec![(7, 2), (8, 1)],
            lines: vec![Line {
                key: "up".to_owned(),
                digits: 2,
                values: vec![Some(7), None, Some(5)],
            }],
        };
        assert_eq!(read, wanted);
    }

    #[test]
    fn what_is_not_whole_is_an_error_and_never_a_panic() {
        for end in 0..EXAMPLE.len() {
            assert!(samples(&deflate(&EXAMPLE[..end])).is_err(), "{end}");
        }
        for place in 0..EXAMPLE.len() {
            for byte in 0..=255 {
                let mut spoilt = EXAMPLE.to_vec();
                spoilt[place] = byte;
                drop(samples(&deflate(&spoilt)));
            }
        }
        assert!(samples(b"no deflate").is_err());
        assert!(rows(&deflate(b"{}\n")).is_err());
        assert!(rows(&deflate(br#"{"sequence":1,"at":"","body":{}}"#)).is_err());
        assert_eq!(
            rows(&deflate(b"{\"sequence\":1,\"at\":\"\",\"body\":{}}\n"))
                .unwrap()
                .len(),
            1
        );
    }
}

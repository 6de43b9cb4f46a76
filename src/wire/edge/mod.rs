//! Records on their way to a control plane: `data` of an `edge_batch` before base64, in the format
//! of `docs/protocol.md`.
//!
//! They are self-contained: names of series, digits, times. Reading them back is for receivers;
//! `wire::control` cuts them into messages.

pub mod bodies;

use super::json;
use crate::core::{
    outbox::{Row, Samples},
    series::block,
};
use serde_json::{Map, Value};

/// The first number of samples: the form that this program writes.
const FORMAT: u64 = 1;

/// Samples as bytes: the names first, then the block.
pub fn samples(samples: &Samples) -> Vec<u8> {
    let mut plain = Vec::new();
    block::put(&mut plain, FORMAT);
    block::put(&mut plain, count(samples.series.len()));
    for (number, series) in &samples.series {
        block::put(&mut plain, u64::from(*number));
        block::put(&mut plain, u64::from(series.digits));
        let key = series.key.to_string();
        block::put(&mut plain, count(key.len()));
        plain.extend(key.into_bytes());
    }
    samples.block.put(&mut plain);
    block::pack(&plain)
}

/// Rows as bytes: a JSON object and a line break for each.
pub fn rows(rows: &[Row]) -> Vec<u8> {
    let mut plain = String::new();
    for row in rows {
        plain.push_str(&line(row));
        plain.push('\n');
    }
    block::pack(plain.as_bytes())
}

fn line(row: &Row) -> String {
    let (sequence, at) = (row.sequence, row.at.rfc3339());
    // What a failing disk made of a body must not make a message that no receiver can read, and
    // that is sent again for ever.
    let is_object = json::read::<Map<String, Value>>(&row.body).is_ok();
    if is_object && !row.body.contains(['\r', '\n']) {
        let body = &row.body;
        return format!(r#"{{"sequence":{sequence},"at":"{at}","body":{body}}}"#);
    }
    serde_json::json!({ "sequence": sequence, "at": at, "body": row.body }).to_string()
}

fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{
        series::{Key, Series, block::Block},
        time::Wall,
    };
    use std::io::Read;

    fn unpacked(bytes: &[u8]) -> Vec<u8> {
        let mut plain = Vec::new();
        flate2::bufread::DeflateDecoder::new(bytes)
            .read_to_end(&mut plain)
            .unwrap();
        plain
    }

    #[test]
    fn samples_begin_with_the_names_of_their_series() {
        let said = Samples {
            series: vec![(
                300,
                Series {
                    key: Key::new("up", &[("job", "a\"b")]).unwrap(),
                    digits: 2,
                },
            )],
            block: Block {
                ticks: vec![5],
                columns: vec![(300, vec![Some(-7)])],
                ..Block::default()
            },
        };
        let plain = unpacked(&samples(&said));
        let names = b"\x01\x01\xac\x02\x02\x0eup{job=\"a\\\"b\"}";
        assert_eq!(plain[..names.len()], *names);
        let block = block::pack(&plain[names.len()..]);
        assert_eq!(Block::decode(&block), Ok(said.block));
    }

    #[test]
    fn a_body_that_is_no_object_does_not_spoil_the_line() {
        let row = |body: &str| Row {
            sequence: 7,
            at: Wall::from_millis(0),
            body: body.to_owned(),
        };
        let said = rows(&[row(r#"{"a":1}"#), row("{\"a\":\n1}"), row(r#"{"a"#)]);
        let text = String::from_utf8(unpacked(&said)).unwrap();
        let head = r#""sequence":7"#;
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines[0],
            format!(r#"{{{head},"at":"1970-01-01T00:00:00.000Z","body":{{"a":1}}}}"#)
        );
        for line in &lines[1..] {
            let read: Value = serde_json::from_str(line).unwrap();
            assert!(read["body"].is_string(), "{line}");
        }
        assert_eq!(lines.len(), 3);
    }
}

//! Write request of Prometheus' remote write, version 1: series with their samples in protobuf,
//! compressed with snappy.
//!
//! Four small messages that are only written, and once: the bytes go straight into the request,
//! without a tree of messages. Field numbers are those of Prometheus' `remote.proto` and
//! `types.proto`.

use crate::core::{
    bisect::Piece,
    order::GatherExt as _,
    outbox::Samples,
    series::{Series, block::Column, float},
};
use litemap::LiteMap;

/// Content type of a request.
pub const CONTENT_TYPE: &str = "application/x-protobuf";
/// Compression of a request.
pub const CONTENT_ENCODING: &str = "snappy";
/// The version of the protocol, as `X-Prometheus-Remote-Write-Version`.
pub const VERSION: &str = "0.1.0";

/// `WriteRequest.timeseries`.
const TIMESERIES: u8 = 1;
/// `TimeSeries.labels` and `TimeSeries.samples`.
const LABELS: u8 = 1;
const SAMPLES: u8 = 2;
/// `Label.name` and `Label.value`.
const NAME: u8 = 1;
const VALUE: u8 = 2;
/// `Sample.value` and `Sample.timestamp`.
const NUMBER: u8 = 1;
const TIMESTAMP: u8 = 2;

/// Wire type of a field: the lower bits of its tag.
const VARINT: u8 = 0;
const FIXED64: u8 = 1;
const BYTES: u8 = 2;

/// A batch from which requests are written, each with a part of it.
#[derive(Debug)]
pub struct Requests<'a> {
    times_ms: Vec<i64>,
    columns: Vec<Option<Timeseries<'a>>>,
}

/// One series, with its labels as they are written.
#[derive(Debug)]
struct Timeseries<'a> {
    labels: Vec<u8>,
    digits: u8,
    values: &'a Column,
}

impl<'a> Requests<'a> {
    /// Requests with these samples. `labels` are added to every series that has none of the same
    /// name.
    pub fn new(samples: &'a Samples, labels: &LiteMap<String, String>) -> Self {
        let series: LiteMap<u32, &Series> = samples
            .series
            .iter()
            .map(|(number, series)| (*number, series))
            .gather();
        let block = &samples.block;
        let columns = block.columns.iter().map(|(number, values)| {
            let series = series.get(number)?;
            Some(Timeseries {
                labels: labels_of(series, labels),
                digits: series.digits,
                values,
            })
        });
        Self {
            times_ms: block
                .ticks
                .iter()
                .map(|tick| block.wall_ms(*tick))
                .collect(),
            columns: columns.collect(),
        }
    }

    /// The body of the request with this part.
    pub fn body(&self, piece: &Piece) -> Vec<u8> {
        let mut plain = Vec::new();
        let columns = self.columns.get(piece.columns.clone()).unwrap_or_default();
        for series in columns.iter().flatten() {
            let message = self.timeseries(series, piece);
            if !message.is_empty() {
                put_bytes(&mut plain, TIMESERIES, &message);
            }
        }
        compressed(&plain)
    }

    fn timeseries(&self, series: &Timeseries<'_>, piece: &Piece) -> Vec<u8> {
        let mut samples = Vec::new();
        for tick in piece.ticks.clone() {
            if let (Some(Some(value)), Some(at_ms)) =
                (series.values.get(tick), self.times_ms.get(tick))
            {
                put_bytes(
                    &mut samples,
                    SAMPLES,
                    &sample(*value, series.digits, *at_ms),
                );
            }
        }
        if samples.is_empty() {
            return samples;
        }
        let mut message = series.labels.clone();
        message.extend(samples);
        message
    }
}

/// The body of a request without samples: whoever takes it is a receiver, whatever it thinks of our
/// samples.
pub fn empty_body() -> Vec<u8> {
    compressed(&[])
}

/// Labels in the order of their names, as receivers want them; the metric's name is one of them.
fn labels_of(series: &Series, more: &LiteMap<String, String>) -> Vec<u8> {
    let more = more.iter();
    let more = more.map(|(name, value)| (name.as_str(), value.as_str()));
    let mut labels: LiteMap<&str, &str> = more.chain(series.key.labels()).gather();
    labels.insert("__name__", series.key.name());
    let mut all = Vec::new();
    // An empty label is none, for Prometheus; a receiver may refuse one that is written all the
    // same.
    for (name, value) in labels.into_iter().filter(|(_, value)| !value.is_empty()) {
        let mut label = Vec::new();
        put_bytes(&mut label, NAME, name.as_bytes());
        put_bytes(&mut label, VALUE, value.as_bytes());
        put_bytes(&mut all, LABELS, &label);
    }
    all
}

fn sample(value: i64, digits: u8, at_ms: i64) -> Vec<u8> {
    let mut message = Vec::with_capacity(20);
    put_tag(&mut message, NUMBER, FIXED64);
    message.extend(float(value, digits).to_le_bytes());
    put_tag(&mut message, TIMESTAMP, VARINT);
    put_varint(&mut message, at_ms.cast_unsigned());
    message
}

fn compressed(plain: &[u8]) -> Vec<u8> {
    // It fails above 4 GiB only.
    snap::raw::Encoder::new()
        .compress_vec(plain)
        .unwrap_or_default()
}

fn put_bytes(message: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    put_tag(message, field, BYTES);
    put_varint(message, u64::try_from(bytes.len()).unwrap_or(u64::MAX));
    message.extend(bytes);
}

fn put_tag(message: &mut Vec<u8>, field: u8, form: u8) {
    message.push((field << 3) | form);
}

/// Seven bits a byte, the lowest first; the highest bit says that more follow.
fn put_varint(message: &mut Vec<u8>, mut number: u64) {
    while number > 0x7f {
        message.push(u8::try_from(number & 0x7f).unwrap_or_default() | 0x80);
        number >>= 7;
    }
    message.push(u8::try_from(number).unwrap_or_default());
}

/// The same messages for a reader that others have written.
#[cfg(test)]
pub(crate) mod reader {
    use prost::Message;

    #[derive(Clone, PartialEq, Message)]
    pub(crate) struct WriteRequest {
        #[prost(message, repeated, tag = "1")]
        pub(crate) timeseries: Vec<TimeSeries>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(crate) struct TimeSeries {
        #[prost(message, repeated, tag = "1")]
        pub(crate) labels: Vec<Label>,
        #[prost(message, repeated, tag = "2")]
        pub(crate) samples: Vec<Sample>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(crate) struct Label {
        #[prost(string, tag = "1")]
        pub(crate) name: String,
        #[prost(string, tag = "2")]
        pub(crate) value: String,
    }

    #[derive(Clone, Copy, PartialEq, Message)]
    pub(crate) struct Sample {
        #[prost(double, tag = "1")]
        pub(crate) value: f64,
        #[prost(int64, tag = "2")]
        pub(crate) timestamp: i64,
    }

    /// The series of a request's body.
    pub(crate) fn read(body: &[u8]) -> Vec<TimeSeries> {
        let plain = snap::raw::Decoder::new().decompress_vec(body).unwrap();
        WriteRequest::decode(plain.as_slice()).unwrap().timeseries
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{
        reader::{Sample, TimeSeries, read},
        *,
    };
    use crate::core::series::{Key, block::Block};

    fn labels(of: &TimeSeries) -> Vec<(&str, &str)> {
        let pairs = of.labels.iter();
        pairs
            .map(|label| (label.name.as_str(), label.value.as_str()))
            .collect()
    }

    fn samples() -> Samples {
        let series = |name, labels: &[_], digits| Series {
            key: Key::new(name, labels).unwrap(),
            digits,
        };
        Samples {
            series: vec![
                (
                    3,
                    series("cpu_share", &[("Mode", "idle"), ("instance", "own")], 4),
                ),
                (9, series("load", &[], 2)),
            ],
            block: Block {
                wall_offset_ms: 1_700_000_000_000,
                ticks: vec![5_000, 20_000, 35_000],
                columns: vec![
                    (3, vec![Some(1234), None, Some(-1)]),
                    (7, vec![Some(1), Some(2), Some(3)]),
                    (9, vec![None, None, Some(150)]),
                ],
                ..Block::default()
            },
        }
    }

    fn piece(columns: std::ops::Range<usize>, ticks: std::ops::Range<usize>) -> Piece {
        Piece { columns, ticks }
    }

    #[test]
    fn another_reader_of_protobuf_finds_labels_in_order_and_samples_in_time() {
        let samples = samples();
        let more = LiteMap::from_iter([
            ("agent_id".to_owned(), "a-1".to_owned()),
            ("instance".to_owned(), "edge".to_owned()),
            ("none".to_owned(), String::new()),
        ]);
        let requests = Requests::new(&samples, &more);
        let read = read(&requests.body(&piece(0..3, 0..3)));
        let [cpu, load] = read.as_slice() else {
            panic!("{read:?}");
        };
        let cpu_labels = [
            ("Mode", "idle"),
            ("__name__", "cpu_share"),
            ("agent_id", "a-1"),
            ("instance", "own"),
        ];
        assert_eq!(labels(cpu), cpu_labels, "a series keeps its own label");
        let load_labels = [
            ("__name__", "load"),
            ("agent_id", "a-1"),
            ("instance", "edge"),
        ];
        assert_eq!(labels(load), load_labels);
        let of = |value, timestamp| Sample { value, timestamp };
        let cpu_samples = [
            of(0.1234, 1_700_000_005_000),
            of(-0.0001, 1_700_000_035_000),
        ];
        assert_eq!(cpu.samples, cpu_samples);
        assert_eq!(load.samples, [of(1.5, 1_700_000_035_000)]);
    }

    #[test]
    fn a_part_has_only_its_own_samples() {
        let samples = samples();
        let requests = Requests::new(&samples, &LiteMap::new());
        let body = |columns, ticks| read(&requests.body(&piece(columns, ticks)));
        let one = body(0..1, 2..3);
        assert_eq!(one.len(), 1);
        assert_eq!(one[0].samples.len(), 1);
        assert_eq!(
            body(0..3, 1..2),
            [],
            "a series that is not known is left out"
        );
        assert_eq!(body(5..9, 7..8), []);
        assert_eq!(read(&empty_body()), []);
    }

    proptest! {
        #[test]
        fn any_value_and_time_is_read_as_it_was(value: i64, digits in 0_u8..=6, tick: u64, offset: i64) {
            let mut samples = samples();
            samples.series[1].1.digits = digits;
            samples.block.wall_offset_ms = offset;
            samples.block.ticks = vec![tick];
            samples.block.columns = vec![(9, vec![Some(value)])];
            let requests = Requests::new(&samples, &LiteMap::new());
            let read = read(&requests.body(&piece(0..1, 0..1)));
            let wanted = Sample { value: float(value, digits), timestamp: samples.block.wall_ms(tick) };
            prop_assert_eq!(&read[0].samples, &[wanted]);
        }
    }
}

//! Messages of the extension: offers of a control plane, records, acknowledgements.

use serde::Serialize;
use serde_json::value::RawValue;

use base64::Engine;

use super::{
    fields::{BASE64, Field, Fields, string},
    outbound::message,
};
use crate::{
    core::{
        outbox::{Acknowledgement, Loss, Range, Stream},
        time::Wall,
    },
    wire::json,
};

/// The largest message with records: on a link of 8 Mbit/s it delays what waits behind it by 33 ms.
pub const BATCH_BYTES_MAX: usize = 32 * 1024;
/// The smallest one that a receiver may ask for. Below that the envelope is most of it.
const BATCH_BYTES_MIN: u64 = 4 * 1024;
/// Messages of one batch: 6 MiB of a single record.
const PARTS_MAX: usize = 256;
/// Bytes of the list of streams in `edge_hello`.
const STREAMS_BYTES_MAX: usize = 4 * 1024;

/// The payload of `edge_hello`.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct EdgeHello {
    /// The highest version that the control plane knows; 0: ignore the message, no answer.
    pub version: u32,
    /// The streams that it takes, of those that are known here.
    pub streams: Vec<Stream>,
    /// The largest message with records that it takes; `None`: it takes none as small as it says.
    pub batch_bytes_max: Option<usize>,
}

impl EdgeHello {
    pub(super) fn of(fields: &Fields<'_>) -> Self {
        let limits = Fields::of_object(fields.raw(Field::Limits));
        let most = u64::try_from(BATCH_BYTES_MAX).unwrap_or(u64::MAX);
        let batch_bytes_max = match limits.integer(Field::BatchBytesMax) {
            None => Some(BATCH_BYTES_MAX),
            Some(bytes) => u64::try_from(bytes)
                .ok()
                .filter(|bytes| *bytes >= BATCH_BYTES_MIN)
                .and_then(|bytes| usize::try_from(bytes.min(most)).ok()),
        };
        Self {
            version: fields
                .integer(Field::Version)
                .and_then(|version| u32::try_from(version).ok())
                .unwrap_or(0),
            streams: streams(fields.raw(Field::Streams)),
            batch_bytes_max,
        }
    }
}

/// The known streams of a list, in the order in which they are served.
fn streams(raw: Option<&RawValue>) -> Vec<Stream> {
    let Some(raw) = raw.filter(|raw| raw.get().len() <= STREAMS_BYTES_MAX) else {
        return Vec::new();
    };
    let named: Vec<&RawValue> = json::read(raw.get()).unwrap_or_default();
    let named: Vec<_> = named.into_iter().filter_map(string).collect();
    Stream::ALL
        .into_iter()
        .filter(|stream| named.iter().any(|name| name == stream.as_str()))
        .collect()
}

/// Reads `edge_ack`; `None` where it names no stream or no numbers.
pub(super) fn acknowledgement(fields: &Fields<'_>) -> Option<(Stream, Acknowledgement)> {
    let number = |field| u64::try_from(fields.integer(field)?).ok();
    let stream = Stream::of(&fields.word(Field::Stream)?)?;
    let said = Acknowledgement {
        epoch: number(Field::Epoch)?,
        from: number(Field::From)?,
        to: number(Field::To)?,
    };
    Some((stream, said))
}

/// Encoded records of a message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Records {
    /// Made by `wire::edge::samples`.
    Samples,
    /// Made by `wire::edge::rows`.
    Rows,
}

impl Records {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Samples => "samples+deflate",
            Self::Rows => "rows+deflate",
        }
    }
}

/// Range of records of a message, and the agent that they belong to.
#[derive(Clone, Copy, Debug)]
pub struct About<'a> {
    /// The agent that they are of.
    pub agent_id: &'a str,
    /// Their stream.
    pub stream: Stream,
    /// The epoch of their sequences.
    pub epoch: u64,
    /// Their sequences.
    pub range: Range,
}

#[derive(Serialize)]
struct Batch<'a> {
    agent_id: &'a str,
    data: &'a str,
    encoding: &'a str,
    epoch: u64,
    from: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    part: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parts: Option<usize>,
    stream: &'a str,
    to: u64,
}

/// A batch, cut into messages.
#[derive(Debug)]
pub struct Messages<'a> {
    about: About<'a>,
    records: Records,
    data: &'a [u8],
    room: usize,
}

impl<'a> Messages<'a> {
    /// The messages of at most `bytes_max` that carry `data`; `None` where they would be too many.
    pub fn new(
        about: About<'a>,
        records: Records,
        data: &'a [u8],
        bytes_max: usize,
    ) -> Option<Self> {
        // As long as an empty one gets: with its part, and the longest stamp.
        let empty = edge_batch(about, records, &[], Some((PARTS_MAX, PARTS_MAX)), STAMP).len();
        // Whole groups of four characters, which are three bytes each.
        let room = bytes_max.checked_sub(empty)? / 4 * 3;
        let messages = Self {
            about,
            records,
            data,
            room,
        };
        (room > 0 && messages.count() <= PARTS_MAX).then_some(messages)
    }

    /// Number of messages: one, unless a single record is larger than a message.
    pub fn count(&self) -> usize {
        self.data.len().div_ceil(self.room).max(1)
    }

    /// One of them, from 0.
    pub fn get(&self, index: usize, now: Wall) -> String {
        let count = self.count();
        let piece = self.data.chunks(self.room).nth(index).unwrap_or_default();
        let part = (count > 1).then_some((index + 1, count));
        edge_batch(self.about, self.records, piece, part, now)
    }
}

/// A stamp that is as long as any.
const STAMP: Wall = Wall::from_millis(0);

fn edge_batch(
    about: About<'_>,
    records: Records,
    data: &[u8],
    part: Option<(usize, usize)>,
    now: Wall,
) -> String {
    let (part, parts) = part.unzip();
    let payload = Batch {
        agent_id: about.agent_id,
        data: &BASE64.encode(data),
        encoding: records.as_str(),
        epoch: about.epoch,
        from: about.range.from(),
        part,
        parts,
        stream: about.stream.as_str(),
        to: about.range.to(),
    };
    message("edge_batch", "", payload, now)
}

/// `edge_gap`: these records will never come.
pub fn edge_gap(about: About<'_>, loss: Loss, now: Wall) -> String {
    #[derive(Serialize)]
    struct Gap<'a> {
        agent_id: &'a str,
        epoch: u64,
        from: u64,
        reason: &'a str,
        stream: &'a str,
        to: u64,
    }
    let payload = Gap {
        agent_id: about.agent_id,
        epoch: about.epoch,
        from: about.range.from(),
        reason: loss.as_str(),
        stream: about.stream.as_str(),
        to: about.range.to(),
    };
    message("edge_gap", "", payload, now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::control::{Inbound, decode};
    use proptest::prelude::*;
    use serde_json::{Value, json};

    const NOW: Wall = Wall::from_millis(1_781_589_028_123);

    fn about(range: Range) -> About<'static> {
        About {
            agent_id: "agent-3f1c9a0be2d47788",
            stream: Stream::Metrics,
            epoch: (1 << 53) - 1,
            range,
        }
    }

    fn hello(payload: &Value) -> EdgeHello {
        let text = json!({ "type": "edge_hello", "payload": payload }).to_string();
        match decode(text.as_bytes()) {
            Ok(Inbound::EdgeHello(hello)) => hello,
            other => panic!("{other:?}"),
        }
    }

    fn ack(payload: &Value) -> Option<(Stream, Acknowledgement)> {
        let text = json!({ "type": "edge_ack", "payload": payload }).to_string();
        match decode(text.as_bytes()) {
            Ok(Inbound::EdgeAck(ack)) => ack,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_hello_says_which_streams_are_taken_and_how_large_a_message_may_be() {
        let said = hello(&json!({
            "version": 1, "streams": ["logs", "metrics", "dreams", 7, null], "limits": {"batch_bytes_max": 9000},
        }));
        assert_eq!(
            said,
            EdgeHello {
                version: 1,
                streams: vec![Stream::Metrics, Stream::Logs],
                batch_bytes_max: Some(9000),
            }
        );
        for (payload, streams, bytes) in [
            (json!({}), 0, Some(BATCH_BYTES_MAX)),
            (json!({"streams": "metrics"}), 0, Some(BATCH_BYTES_MAX)),
            (
                json!({"streams": ["audit", "x".repeat(5000)]}),
                0,
                Some(BATCH_BYTES_MAX),
            ),
            (
                json!({"streams": ["audit", "audit"], "limits": {"batch_bytes_max": 1e9}}),
                1,
                Some(BATCH_BYTES_MAX),
            ),
            (json!({"limits": {"batch_bytes_max": 100}}), 0, None),
            (json!({"limits": {"batch_bytes_max": -1}}), 0, None),
        ] {
            let said = hello(&payload);
            assert_eq!(
                (said.streams.len(), said.batch_bytes_max),
                (streams, bytes),
                "{payload}"
            );
        }
    }

    #[test]
    fn an_acknowledgement_needs_a_stream_and_numbers() {
        let said = Acknowledgement {
            epoch: (1 << 53) - 1,
            from: 3,
            to: 9,
        };
        let good = json!({"stream": "audit", "epoch": said.epoch, "from": 3, "to": 9, "more": {}});
        assert_eq!(ack(&good), Some((Stream::Audit, said)));
        for (name, value) in [
            ("stream", json!("dreams")),
            ("stream", json!(null)),
            ("epoch", json!("7")),
            ("epoch", json!(1_u64 << 53)),
            ("from", json!(-1)),
            ("to", json!(1e300)),
            ("to", json!([])),
        ] {
            let mut bad = good.clone();
            bad[name] = value;
            assert_eq!(ack(&bad), None, "{bad}");
        }
    }

    #[test]
    fn a_gap_is_as_the_protocol_has_it() {
        let range = Range::new(3, 9).unwrap();
        expect_test::expect![[r#"{"type":"edge_gap","payload":{"agent_id":"agent-3f1c9a0be2d47788","epoch":9007199254740991,"from":3,"reason":"disk budget","stream":"metrics","to":9},"timestamp":"2026-06-16T05:50:28.123Z"}"#]]
            .assert_eq(&edge_gap(about(range), Loss::Budget, NOW));
    }

    #[test]
    fn a_small_batch_is_one_message() {
        let messages = Messages::new(
            about(Range::new(3, 9).unwrap()),
            Records::Rows,
            b"abc",
            BATCH_BYTES_MAX,
        );
        let messages = messages.unwrap();
        assert_eq!(messages.count(), 1);
        expect_test::expect![[r#"{"type":"edge_batch","payload":{"agent_id":"agent-3f1c9a0be2d47788","data":"YWJj","encoding":"rows+deflate","epoch":9007199254740991,"from":3,"stream":"metrics","to":9},"timestamp":"2026-06-16T05:50:28.123Z"}"#]]
            .assert_eq(&messages.get(0, NOW));
    }

    proptest! {
        #[test]
        fn no_message_is_longer_than_allowed_and_all_of_the_data_is_in_them(
            length in 0_usize..200_000, bytes_max in 4096..=BATCH_BYTES_MAX, from in 1..u64::MAX / 2
        ) {
            let data: Vec<u8> = (0..length).map(|n| u8::try_from(n % 251).unwrap()).collect();
            let range = Range::new(from, from).unwrap();
            let messages = Messages::new(about(range), Records::Samples, &data, bytes_max).unwrap();
            let mut received = Vec::new();
            for index in 0..messages.count() {
                let text = messages.get(index, NOW);
                prop_assert!(text.len() <= bytes_max, "{} > {bytes_max}", text.len());
                let read: Value = serde_json::from_str(&text).unwrap();
                let payload = &read["payload"];
                if messages.count() > 1 {
                    prop_assert_eq!(&payload["part"], &json!(index + 1));
                    prop_assert_eq!(&payload["parts"], &json!(messages.count()));
                }
                received.extend(BASE64.decode(payload["data"].as_str().unwrap()).unwrap());
            }
            prop_assert_eq!(received, data);
        }
    }

    #[test]
    fn what_would_be_too_many_messages_is_none() {
        let range = Range::new(1, 1).unwrap();
        let data = vec![0; PARTS_MAX * 4096];
        assert!(Messages::new(about(range), Records::Samples, &data, 4096).is_none());
        assert!(Messages::new(about(range), Records::Samples, &[], 100).is_none());
    }
}

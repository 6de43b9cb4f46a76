//! The agent's peer in yamux, by hand: it sends what it likes, and books what comes back.

use std::collections::BTreeMap;

use pipeops_agent::core::yamux::frame::{Flags, FrameType, HEADER_BYTES, Head, Header};
use plane::{BinaryMessages, Plane, StreamHeader};
use serde_json::json;

use crate::agent::{SOON, clock};

/// What is kept of what the agent says on one stream; the rest is counted.
const KEPT_BYTES_MAX: usize = 64 * 1024;

/// What the agent has done on one stream.
#[derive(Debug, Default)]
pub(super) struct Stream {
    pub(super) is_accepted: bool,
    pub(super) is_finished: bool,
    pub(super) is_reset: bool,
    /// Bytes that came.
    pub(super) bytes: usize,
    /// The first of them.
    data: Vec<u8>,
}

impl Stream {
    pub(super) const fn is_over(&self) -> bool {
        self.is_finished || self.is_reset
    }

    /// What came, as far as it is text.
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.data).into_owned()
    }
}

/// All that the agent has done.
#[derive(Debug, Default)]
pub(super) struct Heard {
    pub(super) streams: BTreeMap<u32, Stream>,
    pub(super) pongs: usize,
    pub(super) go_away: Option<u32>,
}

impl Heard {
    /// Returns whether all that is known of the stream has this.
    pub(super) fn has(&self, id: u32, level: impl Fn(&Stream) -> bool) -> bool {
        self.streams.get(&id).is_some_and(level)
    }

    /// How many streams have this.
    pub(super) fn count(&self, level: impl Fn(&Stream) -> bool) -> usize {
        self.streams.values().filter(|stream| level(stream)).count()
    }
}

/// The peer.
pub(super) struct Peer<'a> {
    plane: &'a Plane,
    messages: BinaryMessages,
    rest: Vec<u8>,
    next_id: u32,
    pub(super) heard: Heard,
}

impl<'a> Peer<'a> {
    /// Takes the place of the control plane's own yamux.
    pub(super) fn instead_of(plane: &'a Plane) -> Self {
        let mut peer = Self::silent(plane);
        peer.hello();
        peer
    }

    /// The same, with nothing said yet.
    pub(super) fn silent(plane: &'a Plane) -> Self {
        Self {
            plane,
            messages: plane.take_binary(),
            rest: Vec::new(),
            next_id: 2,
            heard: Heard::default(),
        }
    }

    /// `gateway_hello`, and its answer: both begin anew.
    pub(super) fn hello(&mut self) {
        let mark = self.plane.mark();
        self.plane.gateway_hello(json!({ "use_yamux": true }));
        let is_ack = |frame: &plane::Frame| frame.is_from_agent("gateway_hello_ack");
        let ack = self.plane.wait_for(mark, SOON, is_ack);
        assert!(ack.is_some(), "gateway_hello is answered");
        // What came until here belongs to what was before.
        while self.messages.next(std::time::Duration::ZERO).is_some() {}
        self.rest.clear();
        self.next_id = 2;
        self.heard = Heard::default();
    }

    /// One message.
    pub(super) fn sends(&self, bytes: &[u8]) {
        self.plane.send_binary(bytes);
    }

    /// One frame without payload.
    pub(super) fn says(&self, kind: FrameType, flags: Flags, stream: u32, length: u32) {
        self.sends(&head(kind, flags, stream, length));
    }

    /// Data on a stream, in as many frames as it takes.
    pub(super) fn writes(&self, stream: u32, data: &[u8]) {
        for part in data.chunks(32 * 1024) {
            self.sends(&frame(Flags::NONE, stream, part));
        }
    }

    /// Ids that were not used before.
    pub(super) fn ids(&mut self, count: u32) -> Vec<u32> {
        let first = self.next_id;
        self.next_id += 2 * count;
        (first..self.next_id).step_by(2).collect()
    }

    /// Opens a stream that begins with this.
    pub(super) fn open(&mut self, data: &[u8]) -> u32 {
        let id = self.ids(1)[0];
        self.sends(&frame(Flags::SYN, id, data));
        id
    }

    /// Resets streams.
    pub(super) fn reset(&self, streams: &[u32]) {
        let resets = streams
            .iter()
            .flat_map(|id| head(FrameType::Window, Flags::RST, *id, 0));
        self.sends(&resets.collect::<Vec<_>>());
    }

    /// Hears until something is so; panics with what was awaited.
    pub(super) fn until(&mut self, what: &str, level: impl Fn(&Heard) -> bool) {
        let deadline = clock() + SOON;
        while !level(&self.heard) {
            let left = deadline.saturating_duration_since(clock());
            let Some(message) = self.messages.next(left) else {
                let last: Vec<_> = self.heard.streams.iter().rev().take(3).collect();
                panic!("not in time: {what}; the last streams: {last:?}");
            };
            self.hear(&message);
            while let Some(message) = self.messages.next(std::time::Duration::ZERO) {
                self.hear(&message);
            }
        }
    }

    /// Hears what the agent has to say to all that was sent until here, data apart.
    pub(super) fn settle(&mut self) {
        // The first answer may go out in front of the resets that belong before it.
        for _ in 0..2 {
            let before = self.heard.pongs;
            self.says(FrameType::Ping, Flags::SYN, 0, 7);
            self.until("a pong", |heard| heard.pongs > before);
        }
    }

    /// One request on a stream of its own.
    pub(super) fn ask(&mut self, path: &str) -> u32 {
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        self.open(&[kubernetes(), request.into_bytes()].concat())
    }

    /// The same, answered as it should be.
    pub(super) fn get(&mut self, path: &str) {
        let id = self.ask(path);
        self.until("an answer on a stream", |heard| {
            heard.has(id, Stream::is_over)
        });
        let stream = &self.heard.streams[&id];
        assert!(stream.is_finished, "{stream:?}");
        let text = stream.text();
        assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
        self.says(FrameType::Data, Flags::FIN, id, 0);
    }

    fn hear(&mut self, message: &[u8]) {
        self.rest.extend_from_slice(message);
        let mut at = 0;
        while let Some((start, after)) = self.rest[at..].split_first_chunk::<HEADER_BYTES>() {
            let header = Header::decode(*start).expect("the agent sends frames");
            let length = match header.kind {
                FrameType::Data => usize::try_from(header.length).unwrap(),
                FrameType::Window | FrameType::Ping | FrameType::GoAway => 0,
            };
            let Some(payload) = after.get(..length) else {
                break;
            };
            book(&mut self.heard, header, payload);
            at += HEADER_BYTES + length;
        }
        self.rest.drain(..at);
    }
}

fn book(heard: &mut Heard, header: Header, payload: &[u8]) {
    match header.kind {
        FrameType::Ping => heard.pongs += 1,
        FrameType::GoAway => heard.go_away = Some(header.length),
        FrameType::Data | FrameType::Window => {
            let stream = heard.streams.entry(header.stream).or_default();
            stream.is_accepted |= header.flags.has(Flags::ACK);
            stream.is_finished |= header.flags.has(Flags::FIN);
            stream.is_reset |= header.flags.has(Flags::RST);
            stream.bytes += payload.len();
            let room = KEPT_BYTES_MAX.saturating_sub(stream.data.len());
            let kept = payload.len().min(room);
            stream.data.extend_from_slice(&payload[..kept]);
        }
    }
}

/// The head of a frame.
pub(super) fn head(kind: FrameType, flags: Flags, stream: u32, length: u32) -> Head {
    Header {
        kind,
        flags,
        stream,
        length,
    }
    .encode()
}

/// A frame of data.
pub(super) fn frame(flags: Flags, stream: u32, data: &[u8]) -> Vec<u8> {
    let length = u32::try_from(data.len()).unwrap();
    let head = head(FrameType::Data, flags, stream, length);
    [&head, data].concat()
}

/// How a stream to the Kubernetes API begins.
pub(super) fn kubernetes() -> Vec<u8> {
    StreamHeader::kubernetes("hostile").bytes()
}

/// How a stream to the echo server of the fixtures begins.
pub(super) fn echo() -> Vec<u8> {
    StreamHeader::service("fixtures", "echo", 80).bytes()
}

//! One yamux session as a machine: which stream a byte belongs to, who may send how much, and what
//! is answered.
//!
//! It sees payloads only as ranges and lengths: [`Yamux::receive`] says which part of the input
//! belongs to which stream, [`Yamux::write`] gives the header that goes in front of so many bytes.
//! Nothing that a peer opens, sends, withholds or repeats ends the session, but a byte where a
//! header should begin that is none: from there on the framing is lost.
//!
//! Decisions where the protocol leaves room:
//! * Over the limit of streams a SYN is answered with RST and counted. A stream takes its slot
//!   until [`Yamux::release`], also after its end: a peer that opens and resets cannot pile up work
//!   faster than it is dropped.
//! * A SYN for an id that is in use resets that stream: the two sides no longer agree on what the
//!   id names.
//! * A peer that breaks the rules of one stream (more than its window, data after FIN, a window
//!   above 32 bits) loses that stream.
//! * Payload for a stream that does not exist is skipped without being stored, however long it says
//!   it is, and answered with one RST. A frame without payload for such a stream is what is left of
//!   one that has ended, and is not answered.
//! * A stream that was finished here and then let go is forgotten as TCP does it: what it sent
//!   still goes out, and RST answers only if more data comes, or if data lies here that nobody will
//!   read.

use std::{
    collections::{BTreeSet, VecDeque},
    ops::Range,
};

use litemap::LiteMap;

use crate::core::lanes::LANE_FRAMES_MAX;

mod event;
pub mod frame;
mod resets;
#[cfg(test)]
mod simulation;
mod stream;
#[cfg(test)]
mod tests;

pub use event::{Event, GoAway, Load, Received, ResetReason, StreamKey, Write};
use frame::{Flags, FrameType, HEADER_BYTES, Head, Header, Unreadable};
use resets::Resets;
use stream::Stream;

/// The window of a stream in each direction: the protocol's initial one. Ours never grows, so that
/// a peer that sends to a slow reader costs this much and no more; the peer tunes its own.
pub const WINDOW: u32 = 256 * 1024;
/// Payload of one frame at most, so that one message of bulk delays a small one by the time of 32
/// KiB.
pub const PAYLOAD_MAX: usize = 32 * 1024;
/// Payload of one frame when many streams run.
const PAYLOAD_MIN: usize = 4 * 1024;
/// Maximum of all streams' bytes in their lanes, from which the payload of a frame follows: 128
/// streams with eight frames of 4 KiB are 4 MiB.
const OUTGOING_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Pings that wait for their answer. An honest peer waits for one before it sends the next.
const PONGS_MAX: usize = 16;
/// The limits of a session.
#[derive(Clone, Copy, Debug)]
pub struct MuxLimits {
    /// Streams at once, counted until they are released.
    pub streams_max: usize,
    /// Bytes received and not yet consumed, of all streams.
    pub buffered_bytes_max: usize,
}

impl Default for MuxLimits {
    /// 128 streams; 8 MiB, which are 32 full windows.
    fn default() -> Self {
        Self {
            streams_max: 128,
            buffered_bytes_max: 8 * 1024 * 1024,
        }
    }
}

/// Meaning of the next byte of input.
#[derive(Debug)]
enum Reading {
    Header {
        head: Head,
        have: usize,
    },
    Payload {
        left: u32,
        /// `None` for bytes that nobody wants.
        to: Option<StreamKey>,
        is_last: bool,
    },
    /// The framing is lost.
    Nothing,
}

impl Reading {
    const START: Self = Self::Header {
        head: [0; HEADER_BYTES],
        have: 0,
    };
}

/// The machine. See the module.
#[derive(Debug)]
pub struct Yamux {
    limits: MuxLimits,
    reading: Reading,
    streams: LiteMap<u32, Stream>,
    slots: usize,
    buffered: usize,
    /// Counts everything that needs an order: streams and consumptions.
    serial: u64,
    events: VecDeque<Event>,
    /// Streams whose window or ACK waits to go out. Always a subset of `streams`.
    updates: BTreeSet<u32>,
    resets: Resets,
    pongs: VecDeque<u32>,
    /// True if the GoAway of lost framing waits to go out.
    says_go_away: bool,
    refused: u64,
    unanswered_pings: u64,
    cut: u64,
}

impl Yamux {
    /// A session without streams.
    pub const fn new(limits: MuxLimits) -> Self {
        Self {
            limits,
            reading: Reading::START,
            streams: LiteMap::new(),
            slots: 0,
            buffered: 0,
            serial: 0,
            events: VecDeque::new(),
            updates: BTreeSet::new(),
            resets: Resets::new(),
            pongs: VecDeque::new(),
            says_go_away: false,
            refused: 0,
            unanswered_pings: 0,
            cut: 0,
        }
    }

    /// Reads on. To be called with the rest of the input until there is no event: `used` bytes are
    /// dealt with, and the range of an [`Event::Data`] is a range of *this* input.
    pub fn receive(&mut self, input: &[u8]) -> Received {
        let mut used = 0;
        loop {
            if let Some(event) = self.events.pop_front() {
                let event = Some(event);
                return Received { used, event };
            }
            let rest = input.get(used..).unwrap_or_default();
            if rest.is_empty() {
                return Received { used, event: None };
            }
            match &mut self.reading {
                Reading::Nothing => used = input.len(),
                Reading::Header { head, have } => {
                    used += fill(head, have, rest);
                    if *have == HEADER_BYTES {
                        let head = *head;
                        self.reading = Reading::START;
                        self.begin(head);
                    }
                }
                Reading::Payload { left, to, is_last } => {
                    let part = u32::try_from(rest.len()).unwrap_or(u32::MAX).min(*left);
                    *left -= part;
                    let (to, is_last, left) = (*to, *is_last, *left);
                    if left == 0 {
                        self.reading = Reading::START;
                    }
                    let from = used;
                    used += usize::try_from(part).unwrap_or(rest.len());
                    let Some(key) = to else { continue };
                    let event = self.update(key, part, is_last && left == 0, from..used);
                    if event.is_some() {
                        return Received { used, event };
                    }
                }
            }
        }
    }

    /// The reader of the stream took so many bytes.
    pub fn consumed(&mut self, key: StreamKey, bytes: usize) {
        let serial = self.next_serial();
        let Some(stream) = alive(&mut self.streams, key) else {
            return;
        };
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let bytes = stream.consume(bytes, serial);
        if stream.owes() {
            self.updates.insert(key.id);
        }
        self.buffered -= usize::try_from(bytes).unwrap_or(0);
    }

    /// Asks to send `wanted` bytes (more than 0) on a stream. A frame that is given out has to be
    /// sent, in this order.
    pub fn write(&mut self, key: StreamKey, wanted: usize) -> Write {
        debug_assert!(wanted > 0, "an empty frame says nothing");
        let most = self.payload_max();
        let Some(stream) = alive(&mut self.streams, key).filter(|stream| !stream.finished_here)
        else {
            return Write::Closed;
        };
        let length = u32::try_from(wanted.min(most))
            .unwrap_or(u32::MAX)
            .min(stream.send_window);
        if length == 0 {
            return Write::Blocked;
        }
        stream.send_window -= length;
        let flags = self.take_ack(key);
        let head = header(FrameType::Data, flags, key.id, length);
        Write::Frame(head, usize::try_from(length).unwrap_or(most))
    }

    /// No more data from us: the frame that says so, to be sent after the data. `None` where that
    /// was said, or the stream is over.
    pub fn finish(&mut self, key: StreamKey) -> Option<Head> {
        let stream = alive(&mut self.streams, key).filter(|stream| !stream.finished_here)?;
        stream.finished_here = true;
        let flags = self.take_ack(key).with(Flags::FIN);
        Some(header(FrameType::Data, flags, key.id, 0))
    }

    /// Ends a stream in both directions at once. It still has to be released.
    pub fn reset(&mut self, key: StreamKey) {
        if alive(&mut self.streams, key).is_some() {
            self.forget(key.id);
            self.resets.end(key.id);
        }
    }

    /// Releases a stream that is no longer used, with its slot. The peer gets an RST if it cannot
    /// know.
    /// To be called once for each stream that was opened, also after its reset.
    pub fn release(&mut self, key: StreamKey) {
        debug_assert!(self.slots > 0, "a stream is released once");
        self.slots = self.slots.saturating_sub(1);
        let Some(stream) = alive(&mut self.streams, key) else {
            return;
        };
        if stream.finished_here && (stream.finished_there || stream.buffered() == 0) {
            self.forget(key.id);
        } else {
            self.reset(key);
        }
    }

    /// The next frame that belongs to no lane: GoAway, pongs, resets, windows. They wait in small
    /// tables, not in a queue, so that a peer that does not read does not make them grow.
    pub fn next_control(&mut self) -> Option<Head> {
        if std::mem::take(&mut self.says_go_away) {
            let code = GoAway::ProtocolError.code();
            return Some(header(FrameType::GoAway, Flags::NONE, 0, code));
        }
        if let Some(value) = self.pongs.pop_front() {
            return Some(header(FrameType::Ping, Flags::ACK, 0, value));
        }
        if let Some(id) = self.resets.next() {
            return Some(header(FrameType::Window, Flags::RST, id, 0));
        }
        while let Some(id) = self.updates.pop_first() {
            let Some(stream) = self.streams.get_mut(&id) else {
                debug_assert!(false, "only streams that exist have updates");
                continue;
            };
            let (flags, delta) = (stream.take_ack(), stream.grant());
            if flags != Flags::NONE || delta > 0 {
                return Some(header(FrameType::Window, flags, id, delta));
            }
        }
        None
    }

    /// Returns whether [`Self::next_control`] has something.
    pub fn has_control(&self) -> bool {
        self.control_frames() > 0
    }

    /// Returns whether the framing is lost.
    #[cfg(feature = "internals")]
    pub const fn is_ended(&self) -> bool {
        matches!(self.reading, Reading::Nothing)
    }

    /// Current load, and numbers of refusals.
    pub fn load(&self) -> Load {
        Load {
            streams: self.slots,
            buffered_bytes: self.buffered,
            control_frames: self.control_frames(),
            refused: self.refused,
            unanswered: self.unanswered_pings + self.resets.unanswered(),
            cut: self.cut,
        }
    }

    fn control_frames(&self) -> usize {
        usize::from(self.says_go_away) + self.pongs.len() + self.resets.len() + self.updates.len()
    }

    fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// Fewer bytes a frame when more streams run, because each may have a full lane.
    fn payload_max(&self) -> usize {
        (OUTGOING_BYTES_MAX / LANE_FRAMES_MAX / self.slots.max(1)).clamp(PAYLOAD_MIN, PAYLOAD_MAX)
    }

    /// ACK for the first frame of a stream, and nothing for later ones.
    fn take_ack(&mut self, key: StreamKey) -> Flags {
        let Some(stream) = alive(&mut self.streams, key) else {
            return Flags::NONE;
        };
        let flags = stream.take_ack();
        if flags != Flags::NONE && !stream.owes() {
            self.updates.remove(&key.id);
        }
        flags
    }

    /// A header is complete.
    fn begin(&mut self, head: Head) {
        let header = match Header::decode(head) {
            Ok(header) => header,
            Err(unreadable) => return self.end(unreadable),
        };
        match header.kind {
            FrameType::Data => {
                let to = self.address(&header).and_then(|key| {
                    let is_allowed = self.allows(key, header.length);
                    is_allowed.then_some(key)
                });
                let is_last = header.flags.has(Flags::FIN);
                match (header.length, to) {
                    (0, Some(key)) if is_last => self.finish_there(key),
                    (0, _) => {}
                    (left, to) => self.reading = Reading::Payload { left, to, is_last },
                }
            }
            FrameType::Window => {
                if let Some(key) = self.address(&header) {
                    self.widen(key, header.length);
                    if header.flags.has(Flags::FIN) {
                        self.finish_there(key);
                    }
                }
            }
            FrameType::Ping => {
                if header.flags.has(Flags::SYN) {
                    if self.pongs.len() >= PONGS_MAX {
                        self.pongs.pop_front();
                        self.unanswered_pings += 1;
                    }
                    self.pongs.push_back(header.length);
                }
            }
            FrameType::GoAway => {
                let reason = GoAway::from_code(header.length);
                self.events.push_back(Event::GoAway(reason));
            }
        }
    }

    /// The stream that a frame is for, after SYN and RST have had their effect.
    fn address(&mut self, header: &Header) -> Option<StreamKey> {
        let id = header.stream;
        let known = self.streams.get(&id).map(|stream| stream.key(id));
        if header.flags.has(Flags::RST) {
            // Never answered, or two sides could send each other RST for ever.
            if let Some(key) = known {
                self.drop_stream(key, ResetReason::Peer);
            }
            return None;
        }
        if header.flags.has(Flags::SYN) {
            return match known {
                Some(key) => {
                    self.cut(key, ResetReason::IdReused);
                    None
                }
                None => self.welcome(id),
            };
        }
        if known.is_none() && header.kind == FrameType::Data && header.length > 0 {
            self.resets.refuse_once(id);
        }
        known
    }

    /// A SYN for an id that is free.
    fn welcome(&mut self, id: u32) -> Option<StreamKey> {
        let is_full = self.slots >= self.limits.streams_max
            || self.resets.is_full()
            || self.resets.is_waiting(id);
        if id == 0 || is_full {
            self.refused += 1;
            if id != 0 {
                self.resets.refuse(id);
            }
            return None;
        }
        self.resets.forget(id);
        let serial = self.next_serial();
        self.streams.insert(id, Stream::new(serial));
        self.slots += 1;
        let key = StreamKey { serial, id };
        // At once, not with the first data: a hashicorp peer ends the session when a stream is not
        // acknowledged in 75 s.
        self.updates.insert(id);
        self.events.push_back(Event::Opened(key));
        Some(key)
    }

    /// Returns whether so much payload may come; where not, the stream is cut.
    fn allows(&mut self, key: StreamKey, length: u32) -> bool {
        let Some(stream) = alive(&mut self.streams, key) else {
            return false;
        };
        let reason = if length > 0 && stream.finished_there {
            ResetReason::DataAfterFinish
        } else if !stream.may_receive(length) {
            ResetReason::WindowExceeded
        } else {
            return true;
        };
        self.cut(key, reason);
        false
    }

    /// Payload has come for a stream that was allowed to get it.
    fn update(
        &mut self,
        key: StreamKey,
        bytes: u32,
        is_last: bool,
        at: Range<usize>,
    ) -> Option<Event> {
        // It may have been released or reset since the header.
        let stream = alive(&mut self.streams, key)?;
        stream.receive(bytes);
        self.buffered += at.len();
        while self.buffered > self.limits.buffered_bytes_max {
            let Some(stalled) = self.stalled() else { break };
            self.cut(stalled, ResetReason::BufferFull);
        }
        alive(&mut self.streams, key)?;
        if is_last {
            self.finish_there(key);
        }
        Some(Event::Data(key, at))
    }

    /// Of the streams that hold about as much as the fullest, the one that was not read for the
    /// longest time. Not simply the fullest: a stream that moves is full at some moment too, and
    /// one byte more should not cost it its life.
    fn stalled(&self) -> Option<StreamKey> {
        let most = self.streams.values().map(Stream::buffered).max()?;
        let (id, stream) = self
            .streams
            .iter()
            .filter(|(_, stream)| stream.buffered() > most / 2)
            .min_by_key(|(_, stream)| stream.last_read)?;
        Some(stream.key(*id))
    }

    fn widen(&mut self, key: StreamKey, delta: u32) {
        let Some(stream) = alive(&mut self.streams, key) else {
            return;
        };
        match stream.send_window.checked_add(delta) {
            Some(window) => {
                if stream.send_window == 0 && delta > 0 {
                    self.events.push_back(Event::Room(key));
                }
                stream.send_window = window;
            }
            None => self.cut(key, ResetReason::WindowOverflow),
        }
    }

    fn finish_there(&mut self, key: StreamKey) {
        let Some(stream) = alive(&mut self.streams, key) else {
            return;
        };
        // A second FIN says nothing new.
        if !stream.finished_there {
            stream.finished_there = true;
            self.events.push_back(Event::Finished(key));
        }
    }

    /// Ends a stream from this side, and tells the peer.
    fn cut(&mut self, key: StreamKey, reason: ResetReason) {
        self.cut += 1;
        self.resets.refuse(key.id);
        self.drop_stream(key, reason);
    }

    fn drop_stream(&mut self, key: StreamKey, reason: ResetReason) {
        self.forget(key.id);
        self.events.push_back(Event::Reset(key, reason));
    }

    fn forget(&mut self, id: u32) {
        if let Some(stream) = self.streams.remove(&id) {
            self.buffered -= usize::try_from(stream.buffered()).unwrap_or(0);
        }
        self.updates.remove(&id);
        debug_assert!(self.streams.len() <= self.slots, "a stream has a slot");
    }

    fn end(&mut self, unreadable: Unreadable) {
        self.reading = Reading::Nothing;
        self.streams.clear();
        self.buffered = 0;
        self.updates.clear();
        self.resets.clear();
        self.pongs.clear();
        self.says_go_away = true;
        self.events.push_back(Event::Ended(unreadable));
    }
}

fn alive(streams: &mut LiteMap<u32, Stream>, key: StreamKey) -> Option<&mut Stream> {
    streams
        .get_mut(&key.id)
        .filter(|stream| stream.serial == key.serial)
}

fn header(kind: FrameType, flags: Flags, stream: u32, length: u32) -> Head {
    Header {
        kind,
        flags,
        stream,
        length,
    }
    .encode()
}

/// Moves what is missing of a header out of the input; says how much that was.
fn fill(head: &mut Head, have: &mut usize, input: &[u8]) -> usize {
    let room = head.get_mut(*have..).unwrap_or_default();
    let count = room.len().min(input.len());
    for (to, from) in room.iter_mut().zip(input) {
        *to = *from;
    }
    *have += count;
    count
}

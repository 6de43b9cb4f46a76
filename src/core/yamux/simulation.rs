//! Thousands of sessions against a model of a peer that opens, sends, stalls, resets and breaks
//! every rule, cut into messages anywhere. After each step the invariants of [`World::check`] hold;
//! a failure prints its seed.

use super::*;
use std::{collections::BTreeMap, rc::Rc};

const LIMITS: MuxLimits = MuxLimits {
    streams_max: 12,
    // Less than twelve windows, so that memory runs out too.
    buffered_bytes_max: 2 * 256 * 1024 + 77,
};

/// A stream as the peer knows it.
#[derive(Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "four facts of a stream that the model checks one by one"
)]
struct Theirs {
    /// Credit that we granted and the peer has not used.
    may_send: u64,
    sent: u64,
    finished: bool,
    /// Credit that the peer granted and we have not used.
    granted: u64,
    /// Acknowledged parts: first frame seen, FIN seen.
    acknowledged: bool,
    finished_here: bool,
    /// They broke a rule on it: it may be reset at any time.
    was_rude: bool,
}

/// A stream as its user on our side knows it.
#[derive(Debug, Default)]
struct Ours {
    received: u64,
    unread: usize,
    finished_there: bool,
    reset: Option<ResetReason>,
}

struct World {
    seed: u64,
    random: fastrand::Rng,
    yamux: Yamux,
    /// Sent by the peer and not received yet.
    wire: Vec<u8>,
    noise: Rc<Vec<u8>>,
    theirs: BTreeMap<u32, Theirs>,
    ours: BTreeMap<StreamKey, Ours>,
    /// Streams that ended in order, and those that were cut for their memory.
    completed: u64,
    cut_for_memory: u64,
    next_id: u32,
}

/// Bytes for all streams; see [`World::pattern`].
fn noise() -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(0);
    let block: Vec<u8> = (0..NOISE_BYTES).map(|_| random.u8(..)).collect();
    block.repeat(1 + 512 * 1024 / NOISE_BYTES)
}

/// A prime, so that no frame size fits it.
const NOISE_BYTES: usize = 65_521;

impl World {
    fn new(seed: u64, noise: Rc<Vec<u8>>) -> Self {
        Self {
            seed,
            random: fastrand::Rng::with_seed(seed),
            yamux: Yamux::new(LIMITS),
            wire: Vec::new(),
            noise,
            theirs: BTreeMap::new(),
            ours: BTreeMap::new(),
            completed: 0,
            cut_for_memory: 0,
            next_id: 2,
        }
    }

    /// The bytes of a stream from an offset on, so that a byte in the wrong place or stream is
    /// seen.
    fn pattern(&self, id: u32, from: u64, length: usize) -> &[u8] {
        let start = from + u64::from(id) * 7919;
        let start = usize::try_from(start).unwrap() % NOISE_BYTES;
        &self.noise[start..start + length]
    }

    fn says(&mut self, kind: FrameType, flags: Flags, id: u32, length: u32) {
        self.wire.extend(header(kind, flags, id, length));
    }

    fn any_of_theirs(&mut self) -> Option<u32> {
        let ids: Vec<u32> = self.theirs.keys().copied().collect();
        self.random.choice(ids)
    }

    /// The peer keeps to the rules.
    fn peer_step(&mut self) {
        match self.random.u8(..10) {
            0..3 => {
                let id = self.next_id;
                self.next_id += 2;
                self.says(FrameType::Window, Flags::SYN, id, 0);
                let fresh = Theirs {
                    may_send: u64::from(WINDOW),
                    granted: u64::from(WINDOW),
                    ..Theirs::default()
                };
                self.theirs.insert(id, fresh);
            }
            3..7 => self.peer_sends(),
            7 => {
                let delta = self.random.u32(1..100_000);
                if let Some(id) = self.any_of_theirs() {
                    self.says(FrameType::Window, Flags::NONE, id, delta);
                    self.theirs.get_mut(&id).unwrap().granted += u64::from(delta);
                }
            }
            8 => {
                if let Some(id) = self.any_of_theirs() {
                    self.says(FrameType::Data, Flags::FIN, id, 0);
                    self.theirs.get_mut(&id).unwrap().finished = true;
                }
            }
            _ => {
                let value = self.random.u32(..);
                self.says(FrameType::Ping, Flags::SYN, 0, value);
            }
        }
    }

    fn peer_sends(&mut self) {
        let Some(id) = self.any_of_theirs() else {
            return;
        };
        let theirs = self.theirs.get_mut(&id).unwrap();
        if theirs.finished || theirs.may_send == 0 {
            return;
        }
        let length = match self.random.u8(..4) {
            0 => theirs.may_send.min(200_000),
            _ => self.random.u64(1..=theirs.may_send.min(20_000)),
        };
        let from = theirs.sent;
        theirs.sent += length;
        theirs.may_send -= length;
        theirs.finished = self.random.u8(..8) == 0;
        let flags = if theirs.finished {
            Flags::FIN
        } else {
            Flags::NONE
        };
        self.says(FrameType::Data, flags, id, u32::try_from(length).unwrap());
        let bytes = self.pattern(id, from, usize::try_from(length).unwrap());
        let bytes = bytes.to_vec();
        self.wire.extend(bytes);
    }

    /// The peer breaks a rule.
    fn peer_is_rude(&mut self) {
        // Ids that the peer's honest streams never have, and the session's own.
        let strange = [0, 1, 3, 5, 7, 9, 11, u32::MAX];
        let id = if self.random.bool() {
            self.any_of_theirs()
        } else {
            self.random.choice(strange)
        };
        let id = id.unwrap_or(0);
        if let Some(theirs) = self.theirs.get_mut(&id) {
            theirs.was_rude = true;
            theirs.granted = u64::MAX / 2;
        }
        match self.random.u8(..10) {
            0 => {
                let length = WINDOW + self.random.u32(1..100_000);
                self.says(FrameType::Data, Flags::NONE, id, length);
                let length = usize::try_from(length).unwrap();
                self.wire.extend(std::iter::repeat_n(0xaa, length));
            }
            1 => self.says(FrameType::Window, Flags::SYN, id, 9),
            2 => self.says(FrameType::Window, Flags::SYN.with(Flags::RST), id, 0),
            3 => self.says(FrameType::Window, Flags::RST, id, 0),
            4 => self.says(FrameType::Window, Flags::NONE, id, u32::MAX),
            5 => self.says(FrameType::Data, Flags::SYN.with(Flags::FIN), id, 0),
            6 => {
                self.says(FrameType::Data, Flags::FIN, id, 3);
                self.wire.extend([1, 2, 3]);
                self.says(FrameType::Data, Flags::NONE, id, 3);
                self.wire.extend([1, 2, 3]);
            }
            7 => self.says(FrameType::Data, Flags::ACK, id, 0),
            8 => (0..50).for_each(|n| self.says(FrameType::Ping, Flags::SYN, id, n)),
            _ => self.says(FrameType::GoAway, Flags::SYN, id, id),
        }
    }

    fn receive(&mut self) {
        let most = match self.random.u8(..3) {
            0 => 30,
            1 => 5_000,
            _ => 400_000,
        };
        let count = self.random.usize(0..=most).min(self.wire.len());
        let message: Vec<u8> = self.wire.drain(..count).collect();
        let mut rest = message.as_slice();
        loop {
            let Received { used, event } = self.yamux.receive(rest);
            let Some(event) = event else { break };
            self.happens(event, rest);
            rest = &rest[used..];
        }
    }

    fn happens(&mut self, event: Event, input: &[u8]) {
        let seed = self.seed;
        match event {
            Event::Opened(key) => {
                let was_there = self.ours.insert(key, Ours::default()).is_some();
                assert!(!was_there, "seed {seed}: a key came back");
            }
            Event::Data(key, at) => {
                let received = self.ours[&key].received;
                let expected = self.pattern(key.id, received, at.len()).to_vec();
                let ours = self.ours.get_mut(&key).unwrap();
                assert!(ours.reset.is_none() && !ours.finished_there, "seed {seed}");
                let theirs = self.theirs.get(&key.id);
                if theirs.is_some_and(|theirs| !theirs.was_rude) {
                    assert!(input[at.clone()] == *expected, "seed {seed}: {key:?}");
                }
                ours.received += u64::try_from(at.len()).unwrap();
                ours.unread += at.len();
            }
            Event::Finished(key) => {
                let ours = self.ours.get_mut(&key).unwrap();
                assert!(!ours.finished_there, "seed {seed}: FIN is told once");
                ours.finished_there = true;
                if let Some(theirs) = self.theirs.get(&key.id)
                    && !theirs.was_rude
                {
                    assert_eq!(
                        ours.received, theirs.sent,
                        "seed {seed}: all came before FIN"
                    );
                    self.completed += 1;
                }
            }
            Event::Reset(key, reason) => {
                let ours = self.ours.get_mut(&key).unwrap();
                assert!(ours.reset.is_none(), "seed {seed}: a reset is told once");
                ours.reset = Some(reason);
                ours.unread = 0;
                let was_rude = self
                    .theirs
                    .remove(&key.id)
                    .is_none_or(|theirs| theirs.was_rude);
                if reason == ResetReason::BufferFull {
                    self.cut_for_memory += 1;
                } else {
                    assert!(
                        was_rude,
                        "seed {seed}: {reason:?} of a stream without fault"
                    );
                }
            }
            Event::Room(_) | Event::GoAway(_) => {}
            Event::Ended(_) => panic!("seed {seed}: the framing was never broken"),
        }
    }

    /// The users of the streams on our side.
    fn our_step(&mut self) {
        let keys: Vec<StreamKey> = self.ours.keys().copied().collect();
        let Some(key) = self.random.choice(keys) else {
            return;
        };
        let unread = self.ours[&key].unread;
        match self.random.u8(..12) {
            0..5 => {
                let count = self.random.usize(0..=unread);
                self.yamux.consumed(key, count);
                self.ours.get_mut(&key).unwrap().unread -= count;
            }
            5..9 => {
                let wanted = self.random.usize(1..100_000);
                if let Write::Frame(head, count) = self.yamux.write(key, wanted) {
                    assert!(count <= wanted && count <= PAYLOAD_MAX);
                    self.peer_hears(head);
                }
            }
            9 => {
                if let Some(head) = self.yamux.finish(key) {
                    self.peer_hears(head);
                }
            }
            _ => {
                self.yamux.release(key);
                self.ours.remove(&key);
                // The peer may not know it yet: what it still sends is skipped.
                if let Some(theirs) = self.theirs.get_mut(&key.id) {
                    theirs.was_rude = true;
                }
            }
        }
    }

    /// Reaction of the peer to one of our frames.
    fn peer_hears(&mut self, frame: Head) {
        let seed = self.seed;
        let heard = Header::decode(frame).unwrap();
        if heard.kind == FrameType::Ping || heard.kind == FrameType::GoAway {
            return;
        }
        if heard.flags.has(Flags::RST) {
            self.theirs.remove(&heard.stream);
            return;
        }
        let Some(theirs) = self.theirs.get_mut(&heard.stream) else {
            return;
        };
        if theirs.was_rude {
            return;
        }
        assert_eq!(
            heard.flags.has(Flags::ACK),
            !std::mem::replace(&mut theirs.acknowledged, true),
            "seed {seed}: the first frame and no other acknowledges"
        );
        if heard.kind == FrameType::Window {
            theirs.may_send += u64::from(heard.length);
            assert!(theirs.may_send <= u64::from(WINDOW), "seed {seed}: window");
            return;
        }
        assert!(!theirs.finished_here, "seed {seed}: data after our FIN");
        theirs.finished_here = heard.flags.has(Flags::FIN);
        let length = u64::from(heard.length);
        assert!(length <= theirs.granted, "seed {seed}: more than granted");
        theirs.granted -= length;
    }

    fn check(&self) {
        let seed = self.seed;
        let load = self.yamux.load();
        let unread: usize = self.ours.values().map(|ours| ours.unread).sum();
        assert_eq!(
            load.buffered_bytes, unread,
            "seed {seed}: memory is counted"
        );
        assert!(
            load.buffered_bytes <= LIMITS.buffered_bytes_max,
            "seed {seed}"
        );
        assert_eq!(load.streams, self.ours.len(), "seed {seed}: slots");
        assert!(load.streams <= LIMITS.streams_max, "seed {seed}");
        let most = resets::WAITING_MAX + PONGS_MAX + 2 * LIMITS.streams_max + 2;
        assert!(load.control_frames <= most, "seed {seed}: {load:?}");
        assert!(
            self.yamux.events.is_empty(),
            "seed {seed}: all events were told"
        );
        for id in &self.yamux.updates {
            assert!(self.yamux.streams.contains_key(id), "seed {seed}: {id}");
        }
        assert!(
            !self.yamux.is_ended(),
            "seed {seed}: nothing ended the session"
        );
    }

    fn step(&mut self) {
        match self.random.u8(..20) {
            0..6 => self.peer_step(),
            6 => self.peer_is_rude(),
            7..12 => self.receive(),
            12..17 => self.our_step(),
            _ => {
                for _ in 0..self.random.u8(..6) {
                    if let Some(head) = self.yamux.next_control() {
                        self.peer_hears(head);
                    }
                }
            }
        }
        self.check();
    }

    /// Everybody leaves: nothing may be left.
    fn end(&mut self) {
        while !self.wire.is_empty() {
            self.receive();
        }
        for key in std::mem::take(&mut self.ours).into_keys() {
            self.yamux.release(key);
        }
        while self.yamux.next_control().is_some() {}
        let load = self.yamux.load();
        let left = (load.streams, load.buffered_bytes, load.control_frames);
        assert_eq!(left, (0, 0, 0), "seed {}", self.seed);
        assert!(self.yamux.streams.is_empty(), "seed {}", self.seed);
    }
}

#[test]
fn no_peer_ends_the_session_or_gets_more_than_its_share() {
    let (mut completed, mut cut_for_memory, mut refused) = (0, 0, 0);
    let noise = Rc::new(noise());
    for seed in 0..60 {
        let mut world = World::new(seed, Rc::clone(&noise));
        for _ in 0..500 {
            world.step();
        }
        world.end();
        completed += world.completed;
        cut_for_memory += world.cut_for_memory;
        refused += world.yamux.load().refused;
    }
    // The model reaches what it is for.
    assert!(completed > 500, "{completed} streams completed");
    assert!(cut_for_memory > 20, "{cut_for_memory} were cut for memory");
    assert!(refused > 500, "{refused} were refused");
}

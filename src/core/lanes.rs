//! Scheduler of outgoing frames: control before small answers before bulk before background; no
//! lane delays another.
//!
//! A lane is the outgoing queue of one exchange. It starts as *small* and becomes *bulk* once it
//! has sent more than a small answer, or is *background* from the beginning to the end; within a
//! class lanes take turns. It knows nothing of WebSockets: a frame is anything that has a weight.

use std::collections::VecDeque;

use litemap::LiteMap;

/// Frames that wait in one lane at most. With frames of 32 KiB: 256 KiB of bulk wait in the agent,
/// the rest in the API server.
pub const LANE_FRAMES_MAX: usize = 8;
/// Control frames that wait at most. They are heartbeats, pongs and errors: so many wait only when
/// the socket is dead.
pub const CONTROL_FRAMES_MAX: usize = 256;
/// Frames that wait in a background lane: the next is made when it has gone out, of what is there
/// then.
const BACKGROUND_FRAMES_MAX: usize = 1;
/// A lane that has sent more than this is bulk: two full frames are a small answer.
const SMALL_BYTES_MAX: usize = 64 * 1024;

/// Frame of a lane.
pub trait Weight: Sized {
    /// Bytes on the wire, about.
    fn weight(&self) -> usize;
    /// Returns whether the message ends with this frame. After a frame that does not end its
    /// message only frames of the same lane may go out (RFC 6455, 5.4: fragments of messages are
    /// not interleaved).
    fn ends_message(&self) -> bool;
    /// A frame that ends a message whose sender gave up. The peer reads a message that it cannot
    /// decode.
    fn broken_end() -> Self;
}

/// Names a lane of one session.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct LaneId(u64);

/// Reasons why a frame was not taken.
#[derive(Debug, Eq, PartialEq)]
pub enum Refused<F> {
    /// The lane is full; the frame is given back.
    Full(F),
    /// There is no such lane (any more).
    NoLane,
}

/// Purpose of a lane.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Purpose {
    /// A response that its caller waits for.
    Answer,
    /// Background data: sent when all other lanes are empty.
    Background,
}

#[derive(Debug)]
struct Lane<F> {
    purpose: Purpose,
    queue: VecDeque<F>,
    sent_bytes: usize,
    is_finished: bool,
}

impl<F> Lane<F> {
    const fn frames_max(&self) -> usize {
        match self.purpose {
            Purpose::Answer => LANE_FRAMES_MAX,
            Purpose::Background => BACKGROUND_FRAMES_MAX,
        }
    }
}

/// The lanes of one session.
///
/// Invariant: a lane is in exactly one turn queue while it has frames, and in none while it is
/// empty.
#[derive(Debug)]
pub struct Lanes<F> {
    control: VecDeque<F>,
    open: LiteMap<LaneId, Lane<F>>,
    small: VecDeque<LaneId>,
    bulk: VecDeque<LaneId>,
    background: VecDeque<LaneId>,
    /// The lane whose message is half out.
    within: Option<LaneId>,
    next_id: u64,
}

impl<F: Weight> Default for Lanes<F> {
    fn default() -> Self {
        Self::new()
    }
}

impl<F: Weight> Lanes<F> {
    /// No lanes, nothing to send.
    pub const fn new() -> Self {
        Self {
            control: VecDeque::new(),
            open: LiteMap::new(),
            small: VecDeque::new(),
            bulk: VecDeque::new(),
            background: VecDeque::new(),
            within: None,
            next_id: 0,
        }
    }

    /// Opens a lane.
    pub fn open(&mut self, purpose: Purpose) -> LaneId {
        let id = LaneId(self.next_id);
        self.next_id += 1;
        self.open.insert(
            id,
            Lane {
                purpose,
                queue: VecDeque::new(),
                sent_bytes: 0,
                is_finished: false,
            },
        );
        id
    }

    /// Queues a control frame; `Full` means that the socket is dead.
    pub fn push_control(&mut self, frame: F) -> Result<(), Refused<F>> {
        debug_assert!(
            frame.ends_message(),
            "control messages are never fragmented"
        );
        if self.control.len() >= CONTROL_FRAMES_MAX {
            return Err(Refused::Full(frame));
        }
        self.control.push_back(frame);
        Ok(())
    }

    /// Queues a frame in its lane.
    pub fn push(&mut self, id: LaneId, frame: F) -> Result<(), Refused<F>> {
        let Some(lane) = self.open.get_mut(&id) else {
            return Err(Refused::NoLane);
        };
        if lane.is_finished {
            return Err(Refused::NoLane);
        }
        if lane.queue.len() >= lane.frames_max() {
            return Err(Refused::Full(frame));
        }
        lane.queue.push_back(frame);
        if lane.queue.len() == 1 {
            self.enqueue(id);
        }
        Ok(())
    }

    /// Appends a lane that has frames to the queue of its class.
    fn enqueue(&mut self, id: LaneId) {
        let Some(lane) = self.open.get(&id) else {
            return;
        };
        let turns = match lane.purpose {
            Purpose::Background => &mut self.background,
            Purpose::Answer if lane.sent_bytes > SMALL_BYTES_MAX => &mut self.bulk,
            Purpose::Answer => &mut self.small,
        };
        turns.push_back(id);
    }

    fn dequeue(&mut self, id: LaneId) {
        for turns in [&mut self.small, &mut self.bulk, &mut self.background] {
            turns.retain(|other| *other != id);
        }
    }

    /// Returns whether nothing waits in a lane.
    pub fn is_empty(&self, id: LaneId) -> bool {
        self.open.get(&id).is_none_or(|lane| lane.queue.is_empty())
    }

    /// Nothing more will be pushed; what is queued still goes out.
    pub fn finish(&mut self, id: LaneId) {
        let Some(lane) = self.open.get_mut(&id) else {
            return;
        };
        lane.is_finished = true;
        if !lane.queue.is_empty() {
            return;
        }
        self.open.remove(&id);
        self.end_broken_message(id);
    }

    /// Drops a lane whose sender went away without finishing it; a finished lane still sends what
    /// it has.
    pub fn abort_unfinished(&mut self, id: LaneId) {
        if self.open.get(&id).is_some_and(|lane| !lane.is_finished) {
            self.abort(id);
        }
    }

    /// Drops a lane and what is queued in it.
    pub fn abort(&mut self, id: LaneId) {
        self.open.remove(&id);
        self.dequeue(id);
        self.end_broken_message(id);
    }

    fn end_broken_message(&mut self, id: LaneId) {
        if self.within == Some(id) {
            self.within = None;
            // In front: it must go out before any other message begins.
            self.control.push_front(F::broken_end());
        }
    }

    /// The frame that goes out next, and the lane that has room again.
    pub fn next_frame(&mut self) -> Option<(F, Option<LaneId>)> {
        if let Some(id) = self.within {
            return self.take(id);
        }
        if let Some(frame) = self.control.pop_front() {
            return Some((frame, None));
        }
        let classes = [&mut self.small, &mut self.bulk, &mut self.background];
        let id = classes.into_iter().find_map(VecDeque::pop_front)?;
        let taken = self.take(id);
        debug_assert!(taken.is_some(), "a lane with a turn has a frame");
        taken
    }

    /// Takes a frame of a lane and gives the lane its next turn.
    fn take(&mut self, id: LaneId) -> Option<(F, Option<LaneId>)> {
        let lane = self.open.get_mut(&id)?;
        let frame = lane.queue.pop_front()?;
        lane.sent_bytes = lane.sent_bytes.saturating_add(frame.weight());
        let (has_more, is_finished) = (!lane.queue.is_empty(), lane.is_finished);
        self.within = (!frame.ends_message()).then_some(id);
        self.dequeue(id);
        if has_more {
            self.enqueue(id);
        } else if is_finished {
            self.open.remove(&id);
            self.end_broken_message(id);
        }
        Some((frame, Some(id)))
    }

    /// Lanes that are open or still have frames.
    pub fn open_count(&self) -> usize {
        self.open.len()
    }

    /// Bytes that wait, in all lanes.
    pub fn queued_bytes(&self) -> usize {
        let control: usize = self.control.iter().map(Weight::weight).sum();
        self.open
            .values()
            .flat_map(|lane| &lane.queue)
            .fold(control, |sum, frame| sum + frame.weight())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug, Eq, PartialEq)]
    struct Frame(&'static str, usize, bool);

    impl Weight for Frame {
        fn weight(&self) -> usize {
            self.1
        }
        fn ends_message(&self) -> bool {
            self.2
        }
        fn broken_end() -> Self {
            Self("broken", 0, true)
        }
    }

    fn whole(name: &'static str, weight: usize) -> Frame {
        Frame(name, weight, true)
    }

    fn drain(lanes: &mut Lanes<Frame>) -> Vec<&'static str> {
        std::iter::from_fn(|| lanes.next_frame())
            .map(|(frame, _)| frame.0)
            .collect()
    }

    #[test]
    fn control_goes_before_answers_and_small_before_bulk() {
        let mut lanes = Lanes::new();
        let (download, answer) = (lanes.open(Purpose::Answer), lanes.open(Purpose::Answer));
        for _ in 0..3 {
            lanes.push(download, whole("old", 32 * 1024)).unwrap();
        }
        assert_eq!(drain(&mut lanes), ["old"; 3]);
        lanes.push(download, whole("bulk", 32 * 1024)).unwrap();
        lanes.push(answer, whole("small", 100)).unwrap();
        lanes.push_control(whole("beat", 10)).unwrap();
        assert_eq!(drain(&mut lanes), ["beat", "small", "bulk"]);
    }

    #[test]
    fn lanes_of_a_class_take_turns() {
        let mut lanes = Lanes::new();
        let (one, two) = (lanes.open(Purpose::Answer), lanes.open(Purpose::Answer));
        for _ in 0..2 {
            lanes.push(one, whole("one", 1)).unwrap();
        }
        for _ in 0..2 {
            lanes.push(two, whole("two", 1)).unwrap();
        }
        assert_eq!(drain(&mut lanes), ["one", "two", "one", "two"]);
    }

    #[test]
    fn what_nobody_waits_for_goes_last_and_is_one_frame_at_a_time() {
        let mut lanes = Lanes::new();
        let records = lanes.open(Purpose::Background);
        let (download, answer) = (lanes.open(Purpose::Answer), lanes.open(Purpose::Answer));
        for _ in 0..3 {
            lanes.push(download, whole("old", 32 * 1024)).unwrap();
        }
        assert_eq!(drain(&mut lanes), ["old"; 3]);
        lanes.push(records, whole("records", 1)).unwrap();
        let second = lanes.push(records, whole("more", 1));
        assert_eq!(second, Err(Refused::Full(whole("more", 1))));
        lanes.push(download, whole("bulk", 32 * 1024)).unwrap();
        lanes.push(answer, whole("small", 1)).unwrap();
        lanes.push_control(whole("beat", 1)).unwrap();
        assert!(!lanes.is_empty(records));
        assert_eq!(drain(&mut lanes), ["beat", "small", "bulk", "records"]);
        assert!(lanes.is_empty(records));
        lanes.push(records, whole("more", 1)).unwrap();
        lanes.abort(records);
        assert_eq!(lanes.next_frame(), None);
    }

    #[test]
    fn a_full_lane_refuses_and_leaves_the_others_alone() {
        let mut lanes = Lanes::new();
        let (full, other) = (lanes.open(Purpose::Answer), lanes.open(Purpose::Answer));
        for _ in 0..LANE_FRAMES_MAX {
            lanes.push(full, whole("x", 1)).unwrap();
        }
        assert_eq!(
            lanes.push(full, whole("y", 1)),
            Err(Refused::Full(whole("y", 1)))
        );
        lanes.push(other, whole("z", 1)).unwrap();
        let (_, room) = lanes.next_frame().unwrap();
        assert_eq!(room, Some(full));
        lanes.push(full, whole("y", 1)).unwrap();
    }

    #[test]
    fn nothing_comes_between_the_fragments_of_a_message() {
        let mut lanes = Lanes::new();
        let spooled = lanes.open(Purpose::Answer);
        lanes.push(spooled, Frame("first", 9, false)).unwrap();
        assert_eq!(lanes.next_frame().unwrap().0.0, "first");
        lanes.push_control(whole("beat", 1)).unwrap();
        assert_eq!(
            lanes.next_frame(),
            None,
            "the rest of the message is not there yet"
        );
        lanes.push(spooled, Frame("last", 9, true)).unwrap();
        assert_eq!(drain(&mut lanes), ["last", "beat"]);
    }

    #[test]
    fn a_message_whose_sender_gave_up_is_ended() {
        for give_up in [Lanes::abort, Lanes::finish] {
            let mut lanes = Lanes::new();
            let spooled = lanes.open(Purpose::Answer);
            lanes.push(spooled, Frame("first", 9, false)).unwrap();
            lanes.next_frame();
            lanes.push_control(whole("beat", 1)).unwrap();
            give_up(&mut lanes, spooled);
            assert_eq!(drain(&mut lanes), ["broken", "beat"]);
            assert_eq!(lanes.open_count(), 0);
        }
    }

    #[test]
    fn a_finished_lane_sends_what_it_has_and_is_gone() {
        let mut lanes = Lanes::new();
        let lane = lanes.open(Purpose::Answer);
        lanes.push(lane, whole("last", 1)).unwrap();
        lanes.finish(lane);
        assert_eq!(lanes.push(lane, whole("late", 1)), Err(Refused::NoLane));
        assert_eq!(drain(&mut lanes), ["last"]);
        assert_eq!((lanes.open_count(), lanes.queued_bytes()), (0, 0));
    }

    #[test]
    fn an_aborted_lane_sends_nothing_more() {
        let mut lanes = Lanes::new();
        let (dead, alive) = (lanes.open(Purpose::Answer), lanes.open(Purpose::Answer));
        lanes.push(dead, whole("dead", 1)).unwrap();
        lanes.push(alive, whole("alive", 1)).unwrap();
        lanes.abort(dead);
        assert_eq!(drain(&mut lanes), ["alive"]);
    }

    #[test]
    fn a_dead_socket_shows_as_full_control() {
        let mut lanes = Lanes::new();
        for _ in 0..CONTROL_FRAMES_MAX {
            lanes.push_control(whole("beat", 1)).unwrap();
        }
        assert!(matches!(
            lanes.push_control(whole("beat", 1)),
            Err(Refused::Full(_))
        ));
    }
}

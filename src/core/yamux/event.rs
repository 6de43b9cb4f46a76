//! Names of streams, events, reasons and figures of a session.

use std::{fmt, ops::Range};

use super::frame::{Head, Unreadable};

/// Names one stream of one session. An id may come back, a key does not.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct StreamKey {
    pub(super) serial: u64,
    pub(super) id: u32,
}

impl StreamKey {
    /// The id on the wire.
    pub const fn id(self) -> u32 {
        self.id
    }
}

/// Reasons why a stream ended before both sides finished it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ResetReason {
    /// The peer reset it.
    Peer,
    /// All streams together held too much that nobody had read, and this one much of it for the
    /// longest time.
    BufferFull,
    /// The peer sent more than it was allowed to.
    WindowExceeded,
    /// The peer granted more than 2³² − 1 bytes.
    WindowOverflow,
    /// The peer sent data after it had said that there is no more.
    DataAfterFinish,
    /// The peer opened a stream with the id of this one.
    IdReused,
}

impl fmt::Display for ResetReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Peer => "the peer reset the stream",
            Self::BufferFull => {
                "all streams held too much unread data, and this one was left unread the longest"
            }
            Self::WindowExceeded => "the peer sent more than the window of the stream",
            Self::WindowOverflow => "the peer granted a window of more than 32 bits",
            Self::DataAfterFinish => "the peer sent data after it had finished the stream",
            Self::IdReused => "the peer opened another stream with the same id",
        })
    }
}

/// Reason of a GoAway.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum GoAway {
    /// 0: no new streams, those that run go on.
    Normal,
    /// 1: the framing was broken.
    ProtocolError,
    /// 2: something else broke.
    InternalError,
    /// Any other code.
    Other(u32),
}

impl GoAway {
    pub(super) const fn code(self) -> u32 {
        match self {
            Self::Normal => 0,
            Self::ProtocolError => 1,
            Self::InternalError => 2,
            Self::Other(code) => code,
        }
    }

    pub(super) const fn from_code(code: u32) -> Self {
        match code {
            0 => Self::Normal,
            1 => Self::ProtocolError,
            2 => Self::InternalError,
            other => Self::Other(other),
        }
    }
}

/// Events of received bytes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Event {
    /// The peer opened a stream. It takes a slot until it is released.
    Opened(StreamKey),
    /// This part of the input belongs to the stream.
    Data(StreamKey, Range<usize>),
    /// The peer lets us send again.
    Room(StreamKey),
    /// The peer sends no more data.
    Finished(StreamKey),
    /// The stream is over; what was received and not consumed no longer counts. It still has to be
    /// released.
    Reset(StreamKey, ResetReason),
    /// The peer wants no more streams. We open none, so nothing changes.
    GoAway(GoAway),
    /// The framing is lost: all streams are over, and all input from here on is skipped.
    Ended(Unreadable),
}

/// Progress of [`Yamux::receive`](super::Yamux::receive).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Received {
    /// Bytes of the input that are dealt with.
    pub used: usize,
    /// Event; `None` when all input is used.
    pub event: Option<Event>,
}

/// The answer to [`Yamux::write`](super::Yamux::write).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Write {
    /// Send this header and so many bytes in one frame.
    Frame(Head, usize),
    /// The peer's window is used up; [`Event::Room`] says when to go on.
    Blocked,
    /// The stream is over, or finished by us.
    Closed,
}

/// Load of a session, and numbers of refusals.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Load {
    /// Slots that are taken.
    pub streams: usize,
    /// Bytes received and not consumed.
    pub buffered_bytes: usize,
    /// Control frames that wait to go out.
    pub control_frames: usize,
    /// Streams that were refused because there were too many, or because we go away.
    pub refused: u64,
    /// Frames that got no answer because too many answers waited already.
    pub unanswered: u64,
    /// Streams that were reset because the peer broke a rule, or to free memory.
    pub cut: u64,
}

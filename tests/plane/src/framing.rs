//! The frames of a yamux session, read off its bytes beside the crate that speaks it.
//!
//! The crate tells a stream's reset from its end to nobody, and cannot reset one that it finished:
//! what was really sent and received is known only on the wire. Nothing is checked here; what is
//! no frame makes the crate give up.

/// The bytes of a frame's header (docs/protocol.md, yamux frames).
const HEADER_BYTES: usize = 12;

/// What a frame is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Data,
    Window,
    Ping,
    GoAway,
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    flags: u16,
    pub(crate) stream: u32,
    pub(crate) length: u32,
}

impl Header {
    /// Opens the stream.
    pub(crate) const fn is_syn(&self) -> bool {
        self.flags & 1 != 0
    }

    /// The sender sends no more on the stream.
    pub(crate) const fn is_fin(&self) -> bool {
        self.flags & 4 != 0
    }

    /// The stream is over at once.
    pub(crate) const fn is_rst(&self) -> bool {
        self.flags & 8 != 0
    }

    fn parse(bytes: [u8; HEADER_BYTES]) -> Option<Self> {
        let [version, kind, flags @ .., s0, s1, s2, s3, l0, l1, l2, l3] = bytes;
        let kind = match (version, kind) {
            (0, 0) => Kind::Data,
            (0, 1) => Kind::Window,
            (0, 2) => Kind::Ping,
            (0, 3) => Kind::GoAway,
            _ => return None,
        };
        Some(Self {
            kind,
            flags: u16::from_be_bytes(flags),
            stream: u32::from_be_bytes([s0, s1, s2, s3]),
            length: u32::from_be_bytes([l0, l1, l2, l3]),
        })
    }
}

/// A frame that ends a stream at once.
pub(crate) fn reset(stream: u32) -> [u8; HEADER_BYTES] {
    let mut frame = [0; HEADER_BYTES];
    let [_version, kind, _high, flags, rest @ ..] = &mut frame;
    *kind = 1;
    *flags = 8;
    let [s0, s1, s2, s3, ..] = rest;
    [*s0, *s1, *s2, *s3] = stream.to_be_bytes();
    frame
}

/// One direction of a session, cut into frames.
#[derive(Debug, Default)]
pub(crate) struct Framing {
    head: [u8; HEADER_BYTES],
    have: usize,
    body_left: u64,
    is_lost: bool,
}

impl Framing {
    /// Reads on; tells each header as soon as it is whole.
    pub(crate) fn read(&mut self, mut bytes: &[u8], mut tell: impl FnMut(Header)) {
        while !bytes.is_empty() && !self.is_lost {
            let left = usize::try_from(self.body_left).unwrap_or(usize::MAX);
            let (body, rest) = bytes.split_at(left.min(bytes.len()));
            self.body_left -= u64::try_from(body.len()).unwrap_or(self.body_left);
            let room = self.head.get_mut(self.have..).unwrap_or_default();
            let (head, rest) = rest.split_at(room.len().min(rest.len()));
            for (place, byte) in room.iter_mut().zip(head) {
                *place = *byte;
            }
            self.have += head.len();
            bytes = rest;
            if self.have == HEADER_BYTES {
                self.have = 0;
                match Header::parse(self.head) {
                    Some(header) => {
                        if header.kind == Kind::Data {
                            self.body_left = header.length.into();
                        }
                        tell(header);
                    }
                    None => self.is_lost = true,
                }
            }
        }
    }

    /// Returns whether the next byte begins a frame.
    pub(crate) const fn is_between(&self) -> bool {
        self.have == 0 && self.body_left == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_found_whatever_the_pieces() {
        let mut bytes = vec![0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3];
        bytes.extend(b"abc");
        bytes.extend([0, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9]);
        bytes.extend(reset(258));
        bytes.extend([0, 0, 0, 4, 0, 0, 0, 2, 0, 0, 0, 0]);
        for size in [1, 2, 5, 12, 13, bytes.len()] {
            let mut framing = Framing::default();
            let mut found = Vec::new();
            for piece in bytes.chunks(size) {
                framing.read(piece, |header| found.push(header));
            }
            assert!(framing.is_between());
            let [data, ping, reset, end] = found[..] else {
                panic!("{found:?}")
            };
            assert!(data.kind == Kind::Data && data.is_syn() && data.length == 3);
            assert!(ping.kind == Kind::Ping && ping.length == 9);
            assert!(reset.is_rst() && reset.stream == 258 && reset.kind == Kind::Window);
            assert!(end.is_fin() && end.stream == 2);
        }
    }

    #[test]
    fn after_what_is_no_frame_nothing_is_told() {
        let mut framing = Framing::default();
        framing.read(&[1; 12], |header| panic!("{header:?}"));
        framing.read(&reset(2), |header| panic!("{header:?}"));
    }
}

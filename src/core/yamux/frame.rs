//! The twelve bytes in front of every yamux frame (version 0, as hashicorp/yamux 0.1.2 speaks it),
//! all big-endian: `u8 version · u8 type · u16 flags · u32 stream id · u32 length`.

/// Bytes of a header.
pub const HEADER_BYTES: usize = 12;
/// A header as it is on the wire.
pub type Head = [u8; HEADER_BYTES];

const VERSION: u8 = 0;

/// Type of a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FrameType {
    /// `length` bytes of payload follow.
    Data,
    /// The sender may be sent `length` bytes more.
    Window,
    /// `length` is an opaque value that comes back.
    Ping,
    /// `length` says why no more streams are welcome.
    GoAway,
}

/// The flags of a frame. Bits that have no meaning are kept and ignored.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Flags(u16);

impl Flags {
    /// No flag.
    pub const NONE: Self = Self(0);
    /// Opens a stream; on a ping: the question.
    pub const SYN: Self = Self(1);
    /// Accepts a stream; on a ping: the answer.
    pub const ACK: Self = Self(2);
    /// The sender sends no more data on this stream.
    pub const FIN: Self = Self(4);
    /// The stream is over in both directions.
    pub const RST: Self = Self(8);

    /// Returns whether all flags of `other` are set.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both together.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Header {
    /// Type.
    pub kind: FrameType,
    pub flags: Flags,
    /// The stream; 0 for the session.
    pub stream: u32,
    /// See [`FrameType`].
    pub length: u32,
}

/// Bytes that are no header: the framing is lost, and with it every byte that follows.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Unreadable {
    /// Another version than 0.
    Version(u8),
    /// A type above 3.
    Kind(u8),
}

impl Header {
    /// Reads a header.
    ///
    /// # Errors
    /// For a version or a type that does not exist; every other value of the twelve bytes is a
    /// header.
    pub const fn decode(head: Head) -> Result<Self, Unreadable> {
        let [version, kind, flags @ .., s0, s1, s2, s3, l0, l1, l2, l3] = head;
        if version != VERSION {
            return Err(Unreadable::Version(version));
        }
        let kind = match kind {
            0 => FrameType::Data,
            1 => FrameType::Window,
            2 => FrameType::Ping,
            3 => FrameType::GoAway,
            other => return Err(Unreadable::Kind(other)),
        };
        Ok(Self {
            kind,
            flags: Flags(u16::from_be_bytes(flags)),
            stream: u32::from_be_bytes([s0, s1, s2, s3]),
            length: u32::from_be_bytes([l0, l1, l2, l3]),
        })
    }

    /// The header as it goes out.
    pub const fn encode(self) -> Head {
        let kind = match self.kind {
            FrameType::Data => 0,
            FrameType::Window => 1,
            FrameType::Ping => 2,
            FrameType::GoAway => 3,
        };
        let [f0, f1] = self.flags.0.to_be_bytes();
        let [s0, s1, s2, s3] = self.stream.to_be_bytes();
        let [l0, l1, l2, l3] = self.length.to_be_bytes();
        [VERSION, kind, f0, f1, s0, s1, s2, s3, l0, l1, l2, l3]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_header_is_laid_out_as_the_protocol_says() {
        let header = Header {
            kind: FrameType::Window,
            flags: Flags::SYN.with(Flags::FIN),
            stream: 0x0102_0304,
            length: 0x0506_0708,
        };
        assert_eq!(header.encode(), [0, 1, 0, 5, 1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn another_version_or_type_is_no_header() {
        let mut head = [0; HEADER_BYTES];
        head[1] = 4;
        assert_eq!(Header::decode(head), Err(Unreadable::Kind(4)));
        head[0] = 1;
        assert_eq!(Header::decode(head), Err(Unreadable::Version(1)));
    }

    proptest! {
        #[test]
        fn what_is_read_is_what_would_be_written(head: Head) {
            if let Ok(header) = Header::decode(head) {
                prop_assert_eq!(header.encode(), head);
            } else {
                prop_assert!(head[0] != 0 || head[1] > 3);
            }
        }
    }
}

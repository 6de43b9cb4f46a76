//! WebSocket frames of the server's side (RFC 6455), read and written by hand.
//!
//! By hand, because a test needs what a library rightly refuses: a server that does not answer
//! pings, messages in odd fragments, frames that are wrong on purpose. It does not negotiate
//! extensions, and it does not decide anything about messages.

use std::cell::Cell;
use std::io;
use std::rc::Rc;

use hyper::body::Bytes;
use smol::io::{AsyncRead, AsyncReadExt};

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Opcode {
    /// A further fragment of a message.
    Continuation,
    /// UTF-8 text.
    Text,
    /// Bytes.
    Binary,
    /// The end of the connection.
    Close,
    /// Asks for a pong.
    Ping,
    /// Answers a ping.
    Pong,
}

impl Opcode {
    /// The number on the wire.
    pub const fn code(self) -> u8 {
        match self {
            Self::Continuation => 0,
            Self::Text => 1,
            Self::Binary => 2,
            Self::Close => 8,
            Self::Ping => 9,
            Self::Pong => 10,
        }
    }

    /// The opcode of a number, if it is one of RFC 6455.
    pub const fn of(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Continuation),
            1 => Some(Self::Text),
            2 => Some(Self::Binary),
            8 => Some(Self::Close),
            9 => Some(Self::Ping),
            10 => Some(Self::Pong),
            _ => None,
        }
    }

    const fn is_control(self) -> bool {
        matches!(self, Self::Close | Self::Ping | Self::Pong)
    }
}

/// A whole message or a control frame.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) opcode: Opcode,
    pub(crate) data: Bytes,
}

/// Why nothing more can be read.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The peer closed the connection without a close frame.
    Ended,
    /// The connection broke.
    Broken(io::Error),
    /// The peer broke RFC 6455.
    Protocol(&'static str),
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ended => f.write_str("the peer closed the connection"),
            Self::Broken(error) => write!(f, "the connection broke: {error}"),
            Self::Protocol(what) => f.write_str(what),
        }
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            Self::Ended
        } else {
            Self::Broken(error)
        }
    }
}

struct Header {
    is_last: bool,
    opcode: Opcode,
    mask: [u8; 4],
    bytes: usize,
}

/// Reads masked client frames and puts fragments together.
#[derive(Debug)]
pub(crate) struct Reader<R> {
    io: R,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    parts: Vec<u8>,
    opcode: Option<Opcode>,
    bytes_max: usize,
    received: Rc<Cell<u64>>,
}

/// 64 KiB: one chunk of 32 KiB in base64 with its envelope arrives with one system call.
const BUFFER_BYTES: usize = 64 * 1024;

impl<R: AsyncRead + Unpin> Reader<R> {
    /// A reader that starts with what was already read (`read_before`).
    pub(crate) fn new(io: R, read_before: &[u8], bytes_max: usize) -> Self {
        let mut buffer = read_before.to_vec();
        let end = buffer.len();
        buffer.resize(BUFFER_BYTES.max(end), 0);
        Self {
            io,
            buffer,
            start: 0,
            end,
            parts: Vec::new(),
            opcode: None,
            bytes_max,
            received: Rc::default(),
        }
    }

    /// Counts reads that brought something.
    pub(crate) fn counter(&self) -> Rc<Cell<u64>> {
        Rc::clone(&self.received)
    }

    /// The next whole message or control frame. Control frames come between fragments.
    /// Not safe to drop half-way: a message that was being read is lost.
    pub(crate) async fn next(&mut self) -> Result<Message, Fault> {
        loop {
            let header = self.header().await?;
            if header.opcode.is_control() {
                let mut data = Vec::new();
                self.payload(&header, &mut data).await?;
                return Ok(Message {
                    opcode: header.opcode,
                    data: data.into(),
                });
            }
            self.begin(&header)?;
            let mut parts = std::mem::take(&mut self.parts);
            if parts.len().saturating_add(header.bytes) > self.bytes_max {
                return Err(Fault::Protocol("the message is larger than allowed"));
            }
            self.payload(&header, &mut parts).await?;
            if !header.is_last {
                self.parts = parts;
                continue;
            }
            if let Some(opcode) = self.opcode.take() {
                return Ok(Message {
                    opcode,
                    data: parts.into(),
                });
            }
        }
    }

    fn begin(&mut self, header: &Header) -> Result<(), Fault> {
        match (self.opcode, header.opcode) {
            (Some(_), Opcode::Continuation) => Ok(()),
            (Some(_), _) => Err(Fault::Protocol(
                "a new message began inside a fragmented one",
            )),
            (None, Opcode::Continuation) => Err(Fault::Protocol("a fragment continues nothing")),
            (None, opcode) => {
                self.opcode = Some(opcode);
                Ok(())
            }
        }
    }

    async fn header(&mut self) -> Result<Header, Fault> {
        let [first, second] = self.take::<2>().await?;
        if first & 0x70 != 0 {
            return Err(Fault::Protocol("a reserved bit is set"));
        }
        let opcode = Opcode::of(first & 0x0f).ok_or(Fault::Protocol("unknown opcode"))?;
        let is_last = first & 0x80 != 0;
        if second & 0x80 == 0 {
            return Err(Fault::Protocol("a client frame is not masked"));
        }
        let short = second & 0x7f;
        if opcode.is_control() && (!is_last || short > 125) {
            return Err(Fault::Protocol("a control frame is fragmented or too long"));
        }
        let bytes = match short {
            126 => usize::from(u16::from_be_bytes(self.take().await?)),
            127 => usize::try_from(u64::from_be_bytes(self.take().await?)).unwrap_or(usize::MAX),
            bytes => usize::from(bytes),
        };
        let mask = self.take().await?;
        Ok(Header {
            is_last,
            opcode,
            mask,
            bytes,
        })
    }

    async fn take<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        while self.end - self.start < N {
            self.fill().await?;
        }
        let mut taken = [0; N];
        if let Some(source) = self.buffer.get(self.start..self.start + N) {
            taken.copy_from_slice(source);
        }
        self.start += N;
        Ok(taken)
    }

    async fn fill(&mut self) -> Result<(), Fault> {
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        } else if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let free = self.buffer.get_mut(self.end..).unwrap_or_default();
        match self.io.read(free).await? {
            0 => Err(Fault::Ended),
            bytes => {
                self.end += bytes;
                self.received.set(self.received.get().wrapping_add(1));
                Ok(())
            }
        }
    }

    async fn payload(&mut self, header: &Header, out: &mut Vec<u8>) -> Result<(), Fault> {
        let from = out.len();
        // What is announced is not believed before it comes: 1 MiB is reserved at most.
        out.reserve(header.bytes.min(1024 * 1024));
        let mut missing = header.bytes;
        while missing > 0 {
            if self.start == self.end {
                self.fill().await?;
            }
            let end = self.end.min(self.start.saturating_add(missing));
            let piece = self.buffer.get(self.start..end).unwrap_or_default();
            out.extend_from_slice(piece);
            missing -= piece.len();
            self.start = end;
        }
        unmask(out.get_mut(from..).unwrap_or_default(), header.mask);
        Ok(())
    }
}

/// Applies the client's mask, eight bytes at a time.
fn unmask(data: &mut [u8], mask: [u8; 4]) {
    let [a, b, c, d] = mask;
    let wide = u64::from_ne_bytes([a, b, c, d, a, b, c, d]);
    let (chunks, rest) = data.as_chunks_mut::<8>();
    for chunk in chunks {
        *chunk = (u64::from_ne_bytes(*chunk) ^ wide).to_ne_bytes();
    }
    for (byte, mask) in rest.iter_mut().zip(mask.iter().cycle()) {
        *byte ^= mask;
    }
}

/// Appends one unmasked frame to `out`.
pub(crate) fn put_frame(out: &mut Vec<u8>, opcode: Opcode, data: &[u8], last: Last) {
    let first = opcode.code() | if last == Last::Yes { 0x80 } else { 0 };
    out.reserve(data.len().saturating_add(10));
    out.push(first);
    match (u8::try_from(data.len()), u16::try_from(data.len())) {
        (Ok(bytes), _) if bytes < 126 => out.push(bytes),
        (_, Ok(bytes)) => {
            out.push(126);
            out.extend_from_slice(&bytes.to_be_bytes());
        }
        _ => {
            out.push(127);
            let bytes = u64::try_from(data.len()).unwrap_or(u64::MAX);
            out.extend_from_slice(&bytes.to_be_bytes());
        }
    }
    out.extend_from_slice(data);
}

/// True if a frame is the last of its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Last {
    /// The message is complete with it.
    Yes,
    /// A continuation follows.
    No,
}

/// Appends a message, cut into fragments of `fragment_bytes` if given.
pub(crate) fn put_message(
    out: &mut Vec<u8>,
    opcode: Opcode,
    data: &[u8],
    fragment_bytes: Option<usize>,
) {
    let Some(size) = fragment_bytes.filter(|size| *size > 0 && *size < data.len()) else {
        return put_frame(out, opcode, data, Last::Yes);
    };
    let mut pieces = data.chunks(size).peekable();
    let mut opcode = opcode;
    while let Some(piece) = pieces.next() {
        let last = if pieces.peek().is_none() {
            Last::Yes
        } else {
            Last::No
        };
        put_frame(out, opcode, piece, last);
        opcode = Opcode::Continuation;
    }
}

/// The payload of a close frame.
pub(crate) fn close_payload(code: u16, reason: &str) -> Vec<u8> {
    let mut data = code.to_be_bytes().to_vec();
    // A control frame holds 125 bytes, two of which are the code.
    data.extend(reason.bytes().take(123));
    data
}

/// The code and the reason in a close frame.
pub(crate) fn close_code(data: &[u8]) -> (Option<u16>, String) {
    match data.split_first_chunk::<2>() {
        Some((code, reason)) => (
            Some(u16::from_be_bytes(*code)),
            String::from_utf8_lossy(reason).into_owned(),
        ),
        None => (None, String::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masked(first: u8, data: &[u8]) -> Vec<u8> {
        let mask = [1_u8, 2, 3, 4];
        let mut out = vec![first, 0x80 | u8::try_from(data.len()).unwrap()];
        out.extend(mask);
        out.extend(data.iter().zip(mask.iter().cycle()).map(|(b, m)| b ^ m));
        out
    }

    #[test]
    fn fragments_become_one_message_and_a_ping_between_them_comes_first() {
        let mut input = masked(0x01, b"hello ");
        input.extend(masked(0x89, b"p"));
        input.extend(masked(0x80, b"wide world"));
        let mut reader = Reader::new(&input[3..], &input[..3], 100);
        smol::block_on(async {
            let ping = reader.next().await.unwrap();
            assert_eq!((ping.opcode, &ping.data[..]), (Opcode::Ping, &b"p"[..]));
            let text = reader.next().await.unwrap();
            assert_eq!(text.opcode, Opcode::Text);
            assert_eq!(&text.data[..], b"hello wide world");
            assert!(matches!(reader.next().await, Err(Fault::Ended)));
        });
    }

    #[test]
    fn what_breaks_the_framing_is_a_fault() {
        for (input, what) in [
            (vec![0x81, 0x01, b'a'], "not masked"),
            (masked(0x80, b"x"), "continues nothing"),
            (masked(0xc1, b"x"), "reserved"),
            (masked(0x83, b"x"), "unknown opcode"),
            (masked(0x09, b"x"), "control frame"),
            (masked(0x82, &[0; 101]), "larger"),
        ] {
            let fault = smol::block_on(Reader::new(&input[..], &[], 100).next()).unwrap_err();
            assert!(fault.to_string().contains(what), "{fault} for {what}");
        }
    }

    #[test]
    fn long_lengths_are_written_in_two_and_in_eight_bytes() {
        let mut out = Vec::new();
        put_frame(&mut out, Opcode::Binary, &[7; 126], Last::Yes);
        assert_eq!(&out[..4], [0x82, 126, 0, 126]);
        out.clear();
        put_frame(&mut out, Opcode::Text, &vec![7; 70_000], Last::No);
        assert_eq!(&out[..10], [0x01, 127, 0, 0, 0, 0, 0, 1, 0x11, 0x70]);
        out.clear();
        put_message(&mut out, Opcode::Text, b"abcde", Some(2));
        assert_eq!(out, b"\x01\x02ab\x00\x02cd\x80\x01e");
    }
}

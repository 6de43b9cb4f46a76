//! A stream of a yamux session: bytes both ways, and how it ended.
//!
//! Dropping one that was not finished resets it. Unlike the crate's own stream, reading one tells
//! a reset and a lost session from an end.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use hyper::rt::ReadBufCursor;
use smol::io::{AsyncRead, AsyncWrite};
use smol::stream::Stream as _;
use yamux::{Packet, Stream};

/// How the agent's half of a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Not yet.
    Open,
    /// It said that nothing more comes.
    Finished,
    /// It reset the stream.
    Reset,
    /// The session ended first.
    Lost,
}

/// What became of the plane's half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// Somebody reads and writes.
    Holds,
    /// Nobody does any more; the agent may finish its half.
    Left,
    /// Nobody does any more, and nobody wants the rest.
    Aborted,
}

/// What is known of a stream beside its bytes. Atomic because hyper wants streams that may cross
/// threads; these do not.
#[derive(Debug, Default)]
pub(crate) struct Fate {
    end: AtomicU8,
    holder: AtomicU8,
    received: AtomicU64,
}

impl Fate {
    pub(crate) fn end(&self) -> End {
        match self.end.load(Ordering::Relaxed) {
            0 => End::Open,
            1 => End::Finished,
            2 => End::Reset,
            _ => End::Lost,
        }
    }

    /// The agent's half ended; the first end counts.
    pub(crate) fn ended(&self, end: End) {
        let code = match end {
            End::Open => return,
            End::Finished => 1,
            End::Reset => 2,
            End::Lost => 3,
        };
        if self.end() == End::Open {
            self.end.store(code, Ordering::Relaxed);
        }
    }

    pub(crate) fn holder(&self) -> Holder {
        match self.holder.load(Ordering::Relaxed) {
            0 => Holder::Holds,
            1 => Holder::Left,
            _ => Holder::Aborted,
        }
    }

    /// Once the stream is dropped it is reset, also if the plane's half was finished.
    pub(crate) fn abort(&self) {
        self.holder.store(2, Ordering::Relaxed);
    }

    /// Bytes of payload that came.
    pub(crate) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    pub(crate) fn came(&self, bytes: u32) {
        self.received.fetch_add(bytes.into(), Ordering::Relaxed);
    }
}

/// A stream.
#[derive(Debug)]
pub(crate) struct Wire {
    stream: Stream,
    /// What was taken from the stream, and how much of it was read.
    packet: Option<(Packet, usize)>,
    pub(crate) fate: Arc<Fate>,
}

impl Wire {
    pub(crate) const fn new(stream: Stream, fate: Arc<Fate>) -> Self {
        Self {
            stream,
            packet: None,
            fate,
        }
    }

    /// Its id on the wire.
    pub(crate) fn id(&self) -> u32 {
        self.stream.id().val()
    }

    /// Takes up to `bytes_max` bytes by `take`; 0 bytes are the end.
    fn poll_take(
        &mut self,
        context: &mut Context<'_>,
        bytes_max: usize,
        take: impl FnOnce(&[u8]),
    ) -> Poll<io::Result<usize>> {
        loop {
            if let Some((packet, read)) = &mut self.packet {
                let rest = packet.as_ref().get(*read..).unwrap_or_default();
                if !rest.is_empty() {
                    let part = rest.get(..bytes_max).unwrap_or(rest);
                    take(part);
                    *read += part.len();
                    return Poll::Ready(Ok(part.len()));
                }
            }
            self.packet = match ready!(Pin::new(&mut self.stream).poll_next(context)) {
                Some(Ok(packet)) => Some((packet, 0)),
                Some(Err(_)) | None => return Poll::Ready(self.at_end()),
            };
        }
    }

    fn at_end(&self) -> io::Result<usize> {
        let (kind, what) = match self.fate.end() {
            End::Finished => return Ok(0),
            End::Reset => (io::ErrorKind::ConnectionReset, "the agent reset the stream"),
            End::Open | End::Lost => (
                io::ErrorKind::ConnectionAborted,
                "the agent's session ended",
            ),
        };
        Err(io::Error::new(kind, what))
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        if self.fate.holder() == Holder::Holds {
            self.fate.holder.store(1, Ordering::Relaxed);
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let bytes_max = buffer.len();
        self.get_mut().poll_take(context, bytes_max, |part| {
            if let Some(room) = buffer.get_mut(..part.len()) {
                room.copy_from_slice(part);
            }
        })
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, data)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_close(context)
    }
}

impl hyper::rt::Read for Wire {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        mut cursor: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let bytes_max = cursor.remaining();
        self.get_mut()
            .poll_take(context, bytes_max, |part| cursor.put_slice(part))
            .map_ok(drop)
    }
}

impl hyper::rt::Write for Wire {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        AsyncWrite::poll_write(self, context, data)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        AsyncWrite::poll_flush(self, context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        AsyncWrite::poll_close(self, context)
    }
}

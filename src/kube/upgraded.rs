//! Connection after a 101: a raw stream, starting with the bytes that came together with the
//! answer.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::Response;
use hyper::body::Bytes;
use smol::io::{AsyncRead, AsyncWrite};
use smol_hyper::rt::FuturesIo;

use crate::net::Body;
use crate::net::Stream;

/// The answer to a request for an upgrade.
#[derive(Debug)]
pub enum Upgraded {
    /// 101: the head of the answer, and the stream that follows it.
    Switched(Box<hyper::http::response::Parts>, UpgradedStream),
    /// Any other answer, with its body.
    Refused(Response<Body>),
}

/// The raw stream after 101. Dropping it closes the connection.
pub struct UpgradedStream {
    /// Read before the switch, and not yet given out.
    early: Bytes,
    stream: Stream,
}

impl UpgradedStream {
    /// Takes the stream out of hyper.
    ///
    /// # Errors
    /// The connection was not made by this module, which cannot happen.
    pub(super) fn new(upgraded: hyper::upgrade::Upgraded) -> io::Result<Self> {
        let parts = upgraded
            .downcast::<FuturesIo<Stream>>()
            .map_err(|_not_ours| {
                io::Error::other("the upgraded connection has an unexpected type")
            })?;
        Ok(Self {
            early: parts.read_buf,
            stream: parts.io.into_inner(),
        })
    }

    /// The connection below.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }
}

impl fmt::Debug for UpgradedStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UpgradedStream({} bytes early)", self.early.len())
    }
}

impl AsyncRead for UpgradedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        if self.early.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buffer);
        }
        let count = self.early.len().min(buffer.len());
        let now = self.early.split_to(count);
        if let Some(room) = buffer.get_mut(..count) {
            room.copy_from_slice(&now);
        }
        Poll::Ready(Ok(count))
    }
}

impl AsyncWrite for UpgradedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_close(cx)
    }
}

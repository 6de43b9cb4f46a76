//! One stream: read, write, close, reset.

use std::{
    fmt,
    future::poll_fn,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use smol::io::{AsyncRead, AsyncWrite};

use super::{Mux, Port, State, StreamEnd, remember};
use crate::core::yamux::{StreamKey, Write, frame::HEADER_BYTES};
use crate::wire::stream::{Header, HeaderReader, Invalid};

/// A stream that the peer opened.
///
/// * Read: 0 bytes is the peer's FIN; a reset is `ConnectionReset` with its reason, the end of the
///   session `ConnectionAborted`.
/// * Write: waits while the peer's window or the lane is full.
/// * Close sends FIN after what was written; the peer may go on sending.
/// * Dropping it without close sends RST, and drops what was written and is not out yet: that is
///   how a stream is cancelled. Dropped after close, what was written goes out, and RST tells the
///   peer only if it has sent or sends what nobody reads.
pub struct MuxStream {
    mux: Mux,
    key: StreamKey,
    is_closed: bool,
}

impl fmt::Debug for MuxStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MuxStream({})", self.key.id())
    }
}

/// Reasons why there is no stream header.
#[derive(Debug)]
pub enum HeaderError {
    /// The stream ended within its header.
    Truncated,
    /// It was reset, or the session ended.
    Broken(io::Error),
    /// The bytes are not a header.
    Invalid(Invalid),
}

impl fmt::Display for HeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => f.write_str("the stream ended within its header"),
            Self::Broken(error) => write!(f, "the stream broke within its header: {error}"),
            Self::Invalid(invalid) => write!(f, "the stream's header is invalid: {invalid}"),
        }
    }
}

impl std::error::Error for HeaderError {}

impl MuxStream {
    pub(super) const fn new(mux: Mux, key: StreamKey) -> Self {
        Self {
            mux,
            key,
            is_closed: false,
        }
    }

    /// Reads the header that begins the stream, and not one byte more. The caller sets the
    /// deadline.
    ///
    /// # Errors
    /// See [`HeaderError`]. After an error nothing is said to the peer yet: close or drop the
    /// stream.
    pub async fn read_header(&mut self) -> Result<Header, HeaderError> {
        let mut reader = HeaderReader::default();
        poll_fn(|context| {
            loop {
                let mut state = self.mux.state.borrow_mut();
                let State { machine, ports, .. } = &mut *state;
                let Some(port) = ports.get_mut(&self.key) else {
                    return Poll::Ready(Err(HeaderError::Truncated));
                };
                if let Some(error) = port.end.and_then(StreamEnd::error) {
                    return Poll::Ready(Err(HeaderError::Broken(error)));
                }
                let bytes = port.inbox.peek();
                if bytes.is_empty() {
                    if port.end.is_some() {
                        return Poll::Ready(Err(HeaderError::Truncated));
                    }
                    remember(&mut port.reader, context);
                    return Poll::Pending;
                }
                let (used, read) = reader.read(bytes);
                port.inbox.skip(used);
                machine.consumed(self.key, used);
                match read {
                    Ok(None) => {}
                    Ok(Some(header)) => return Poll::Ready(Ok(header)),
                    Err(invalid) => return Poll::Ready(Err(HeaderError::Invalid(invalid))),
                }
            }
        })
        .await
    }

    /// A handle that learns of the end of the peer's half without reading: for what runs on behalf
    /// of a stream while its reader is not asked, such as a response body of a connection with a
    /// pipelined request in its buffer.
    pub fn watch(&self) -> StreamWatch {
        StreamWatch {
            mux: self.mux.clone(),
            key: self.key,
        }
    }

    /// Waits until the stream holds no frame that is not in its lane.
    fn poll_ready(&self, context: &Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.mux.state.borrow_mut();
        let port = port(&mut state, self.key)?;
        if port.held.is_none() {
            return Poll::Ready(Ok(()));
        }
        remember(&mut port.writer, context);
        Poll::Pending
    }
}

/// The port of a stream that is not broken.
fn port(state: &mut State, key: StreamKey) -> io::Result<&mut Port> {
    let Some(port) = state.ports.get_mut(&key) else {
        return Err(io::ErrorKind::BrokenPipe.into());
    };
    port.end.and_then(StreamEnd::error).map_or(Ok(port), Err)
}

impl AsyncRead for MuxStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut state = self.mux.state.borrow_mut();
        let port = port(&mut state, self.key)?;
        if buffer.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let count = port.inbox.read(buffer);
        if count == 0 && port.end.is_none() {
            remember(&mut port.reader, context);
            return Poll::Pending;
        }
        if count > 0 {
            state.machine.consumed(self.key, count);
            state.wake_driver();
        }
        Poll::Ready(Ok(count))
    }
}

impl AsyncWrite for MuxStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        ready!(self.poll_ready(context))?;
        let mut state = self.mux.state.borrow_mut();
        let (head, count) = match state.machine.write(self.key, bytes.len()) {
            Write::Frame(head, count) => (head, count),
            Write::Blocked => {
                remember(&mut port(&mut state, self.key)?.writer, context);
                return Poll::Pending;
            }
            Write::Closed => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        };
        let payload = bytes.get(..count).unwrap_or(bytes);
        let mut frame = Vec::with_capacity(HEADER_BYTES + payload.len());
        frame.extend_from_slice(&head);
        frame.extend_from_slice(payload);
        state.send(self.key, frame.into())?;
        Poll::Ready(Ok(payload.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_ready(context)
    }

    fn poll_close(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_closed {
            return Poll::Ready(Ok(()));
        }
        ready!(self.poll_ready(context))?;
        let finished = {
            let mut state = self.mux.state.borrow_mut();
            let finished = state.machine.finish(self.key);
            if let Some(head) = finished {
                state.send(self.key, head.to_vec().into())?;
            }
            finished
        };
        if finished.is_some() {
            ready!(self.poll_ready(context))?;
        }
        let mut state = self.mux.state.borrow_mut();
        if let Some(lane) = port(&mut state, self.key)?.lane.take() {
            lane.finish();
        }
        drop(state);
        self.is_closed = true;
        Poll::Ready(Ok(()))
    }
}

impl Drop for MuxStream {
    fn drop(&mut self) {
        let mut state = self.mux.state.borrow_mut();
        if !self.is_closed {
            state.machine.reset(self.key);
        }
        state.machine.release(self.key);
        state.ports.remove(&self.key);
        state.stuck.remove(&self.key);
        state.wake_driver();
    }
}

/// Learns of the end of a stream's incoming half. One of them waits at a time.
#[derive(Clone, Debug)]
pub struct StreamWatch {
    mux: Mux,
    key: StreamKey,
}

impl StreamWatch {
    /// Ready when the peer has finished or reset the stream, when the mux is over, or (as `None`)
    /// when the stream was dropped here.
    pub fn poll_ended(&self, context: &Context<'_>) -> Poll<Option<StreamEnd>> {
        let mut state = self.mux.state.borrow_mut();
        match state.ports.get_mut(&self.key) {
            None => Poll::Ready(None),
            Some(port) if port.end.is_some() => Poll::Ready(port.end),
            Some(port) => {
                remember(&mut port.watcher, context);
                Poll::Pending
            }
        }
    }

    /// Waits until the stream is over in both directions, or was dropped here.
    pub async fn broken(&self) {
        poll_fn(|context| match self.poll_ended(context) {
            Poll::Ready(Some(StreamEnd::Finished)) => {
                // Finished is not over: the next word is awaited.
                if let Some(port) = self.mux.state.borrow_mut().ports.get_mut(&self.key) {
                    remember(&mut port.watcher, context);
                }
                Poll::Pending
            }
            Poll::Ready(_) => Poll::Ready(()),
            Poll::Pending => Poll::Pending,
        })
        .await;
    }

    /// Waits for it.
    pub async fn ended(&self) -> Option<StreamEnd> {
        poll_fn(|context| self.poll_ended(context)).await
    }
}

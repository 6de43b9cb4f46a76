//! Handles returned by a running plane: answers and streams that are read from other threads.

use std::time::Duration;

use hyper::body::Bytes;
use smol::channel::{Receiver, Sender, bounded};

use crate::bell::within;
use crate::exchange::{Failed, Received};
use crate::json::LiveStream;
use crate::shape::Head;

/// An answer: its head, and its body as it comes. Dropping it cancels the request.
#[derive(Debug)]
pub struct Response {
    /// Status and headers.
    pub head: Head,
    /// The body.
    pub body: Body,
}

/// The body of an answer. The plane keeps what is not read, up to `spool_bytes_max`.
#[derive(Debug)]
pub struct Body {
    pub(crate) chunks: Receiver<Result<Bytes, Failed>>,
}

impl Body {
    /// The next piece; `None` at the end.
    pub fn next(&mut self, limit: Duration) -> Option<Result<Bytes, Failed>> {
        match smol::block_on(within(limit, self.chunks.recv())) {
            Some(Ok(chunk)) => Some(chunk),
            Some(Err(_closed)) => None,
            None => Some(Err(Failed::Late)),
        }
    }

    /// The whole rest; `limit` is for each piece.
    pub fn read_all(mut self, limit: Duration) -> Result<Vec<u8>, Failed> {
        let mut all = Vec::new();
        while let Some(piece) = self.next(limit) {
            all.extend_from_slice(&piece?);
        }
        Ok(all)
    }
}

/// A stream of WebSocket frames. Dropping it closes the stream.
#[derive(Debug)]
pub struct StreamHandle {
    frames: Sender<(u8, Vec<u8>)>,
    received: Receiver<Received>,
}

/// The plane's side of a [`StreamHandle`].
#[derive(Debug)]
pub(crate) struct Ends {
    frames: Receiver<(u8, Vec<u8>)>,
    received: Sender<Received>,
}

impl StreamHandle {
    pub(crate) fn pair() -> (Self, Ends) {
        let (frames, frames_out) = bounded(16);
        let (received_in, received) = bounded(16);
        let ends = Ends {
            frames: frames_out,
            received: received_in,
        };
        (Self { frames, received }, ends)
    }

    /// Sends a frame: 1 is text, 2 is binary (on exec: with the channel byte first). Says
    /// whether it could be handed over in time.
    pub fn send(&self, opcode: u8, data: &[u8], limit: Duration) -> bool {
        let frame = (opcode, data.to_vec());
        matches!(
            smol::block_on(within(limit, self.frames.send(frame))),
            Some(Ok(()))
        )
    }

    /// The next thing that the stream brings; `None` after its end or the limit.
    pub fn receive(&self, limit: Duration) -> Option<Received> {
        smol::block_on(within(limit, self.received.recv()))?.ok()
    }
}

impl Ends {
    /// Carries frames until the stream ends or its handle is dropped.
    pub(crate) async fn carry(self, stream: LiveStream) {
        let up = async {
            while let Ok((opcode, data)) = self.frames.recv().await {
                stream.send(opcode, &data).await;
            }
        };
        let down = async {
            while let Some(received) = stream.receive().await {
                if self.received.send(received).await.is_err() {
                    break;
                }
            }
        };
        smol::future::or(up, down).await;
    }
}

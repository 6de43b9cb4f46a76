//! Port-forward to a Pod through the API server, for hosts outside the Pod network.
//!
//! The kubelet speaks `v4.channel.k8s.io` for this: a WebSocket whose messages begin with the
//! number of a channel, 0 for the bytes of the port and 1 for an error in words. The first message
//! of each repeats the port.

use std::{
    fmt, io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use async_tungstenite::tungstenite::Message;
use futures_sink::Sink as _;
use hyper::{body::Bytes, header::HeaderMap};
use smol::{
    io::{AsyncRead, AsyncWrite},
    stream::Stream as _,
};

use super::{
    client::{Client, Identity},
    error::Error,
    socket::{self, Ask, Opened, Socket},
};
use crate::{
    core::format::is_unprintable,
    net::{Carrier, Stream},
};

const PROTOCOL: &str = "v4.channel.k8s.io";
/// The channel of the bytes.
const DATA: u8 = 0;
/// Bytes of one message.
const PIECE_BYTES: usize = 16 * 1024;
/// Maximum length of the kubelet's error text.
const TEXT_CHARS_MAX: usize = 300;

/// Opens a port of a Pod.
///
/// # Errors
/// What the API server or the kubelet says, or that it took longer than `limit`.
pub(super) async fn open(
    client: &Client,
    identity: &Identity,
    (namespace, pod, port): (&str, &str, u16),
    limit: Duration,
) -> Result<Stream, Error> {
    let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}/portforward?ports={port}");
    let protocols = [PROTOCOL.to_owned()];
    let ask = Ask {
        path: &path,
        headers: HeaderMap::new(),
        protocols: &protocols,
    };
    let opened = Box::pin(socket::open(client, identity, ask, limit)).await?;
    match opened {
        Opened::Open(socket) => Ok(Stream::Carried(Box::new(Forward {
            socket,
            unread: Bytes::new(),
            has_begun: [false; 2],
            needs_flush: false,
        }))),
        Opened::Refused(answer) => Err(Error::Broken {
            call: format!("port-forward to {namespace}/{pod}:{port}"),
            why: format!("the API server answered {}", answer.status()),
        }),
    }
}

/// The bytes of a port.
struct Forward {
    socket: Box<Socket>,
    unread: Bytes,
    /// State of each channel: whether its first message was seen.
    has_begun: [bool; 2],
    needs_flush: bool,
}

impl fmt::Debug for Forward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Forward({} bytes unread)", self.unread.len())
    }
}

impl Carrier for Forward {
    fn below(&self) -> &Stream {
        self.socket.messages.get_ref().stream()
    }
}

impl Forward {
    /// Payload of a message; `None` if it is nothing for the reader.
    fn take(&mut self, mut message: Bytes) -> io::Result<Option<Bytes>> {
        if message.is_empty() {
            return Ok(None);
        }
        let channel = message.split_to(1).first().copied().unwrap_or(DATA);
        let Some(has_begun) = self.has_begun.get_mut(usize::from(channel)) else {
            return Ok(None);
        };
        if !*has_begun {
            // The port, which we know.
            *has_begun = true;
            message = message.split_off(message.len().min(2));
        }
        if message.is_empty() {
            return Ok(None);
        }
        if channel == DATA {
            return Ok(Some(message));
        }
        let text = String::from_utf8_lossy(&message);
        let text: String = text
            .chars()
            .filter(|character| !is_unprintable(*character))
            .take(TEXT_CHARS_MAX)
            .collect();
        Err(io::Error::other(text))
    }
}

fn broken(error: async_tungstenite::tungstenite::Error) -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, error)
}

impl AsyncRead for Forward {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        while self.unread.is_empty() {
            let next = Pin::new(&mut self.socket.messages).poll_next(context);
            match ready!(next) {
                Some(Ok(Message::Binary(message))) => {
                    if let Some(bytes) = self.take(message)? {
                        self.unread = bytes;
                    }
                }
                Some(Ok(Message::Close(_))) | None => return Poll::Ready(Ok(0)),
                Some(Ok(
                    Message::Text(_) | Message::Ping(_) | Message::Pong(_) | Message::Frame(_),
                )) => {}
                Some(Err(error)) => return Poll::Ready(Err(broken(error))),
            }
        }
        let count = self.unread.len().min(buffer.len());
        let now = self.unread.split_to(count);
        if let Some(room) = buffer.get_mut(..count) {
            room.copy_from_slice(&now);
        }
        Poll::Ready(Ok(count))
    }
}

impl AsyncWrite for Forward {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut messages = Pin::new(&mut self.socket.messages);
        ready!(messages.as_mut().poll_ready(context)).map_err(broken)?;
        let piece = bytes.get(..PIECE_BYTES).unwrap_or(bytes);
        let mut message = Vec::with_capacity(1 + piece.len());
        message.push(DATA);
        message.extend_from_slice(piece);
        messages
            .start_send(Message::Binary(message.into()))
            .map_err(broken)?;
        self.needs_flush = true;
        Poll::Ready(Ok(piece.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.needs_flush {
            return Poll::Ready(Ok(()));
        }
        ready!(Pin::new(&mut self.socket.messages).poll_flush(context)).map_err(broken)?;
        self.needs_flush = false;
        Poll::Ready(Ok(()))
    }

    fn poll_close(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket.messages)
            .poll_close(context)
            .map_err(broken)
    }
}

//! One open WebSocket: passes incoming messages on and sends the frames of the outlet.
//!
//! It decides nothing: `core::link` and the proxy interpret messages, `core::lanes` orders frames.

use std::{
    future::poll_fn,
    net::IpAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker, ready},
    time::Duration,
};

use async_tungstenite::{
    WebSocketStream,
    tungstenite::{
        self, Message,
        error::CapacityError,
        protocol::{
            CloseFrame, WebSocketConfig,
            frame::{
                Frame as RawFrame,
                coding::{CloseCode, Data, OpCode},
            },
        },
    },
};
use futures_sink::Sink as _;
use hyper::body::Bytes;
use smol::stream::Stream as _;

use super::outlet::{Fragment, Frame, Outlet};
use crate::core::{format::is_unprintable, time::Wall};
use crate::net::{Stream, deadline};

/// A larger inbound message ends the session. The largest legitimate one is a request body in
/// base64.
pub const MESSAGE_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Frames that one turn may write: a fast socket must not keep the reader from its turn.
const FRAMES_A_TURN: usize = 16;
/// Time for a close frame to be sent before the socket is dropped.
const CLOSE_DEADLINE: Duration = Duration::from_secs(2);

/// The limits of the control connection.
pub fn limits() -> WebSocketConfig {
    WebSocketConfig::default()
        .read_buffer_size(16 * 1024)
        // Small messages that are due together leave in one write; a bulk frame leaves at once.
        .write_buffer_size(16 * 1024)
        .max_write_buffer_size(1024 * 1024)
        .max_message_size(Some(MESSAGE_BYTES_MAX))
        .max_frame_size(Some(MESSAGE_BYTES_MAX))
}

/// Received event.
#[derive(Debug)]
pub enum Event {
    /// A whole text or binary message.
    Message(Bytes, MessageKind),
    /// A ping: nothing but a sign of life. Its answer is on its way.
    Ping,
    /// The answer to one of our pings.
    Pong,
    /// The session is over.
    Ended(SessionEnd),
}

/// Reason why a session is over.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SessionEnd {
    /// For the log and the status.
    pub why: String,
    /// The close code and reason that the peer is owed, where it broke the rules and can still hear
    /// us.
    pub owed: Option<(u16, &'static str)>,
}

impl SessionEnd {
    fn new(why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            owed: None,
        }
    }
}

/// Framing of a message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MessageKind {
    /// Always JSON.
    Text,
    /// JSON, or the body of the request before it.
    Binary,
}

/// Bytes and messages of a session, for the status.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Traffic {
    /// Messages received.
    pub messages_in: u64,
    /// Frames sent.
    pub frames_out: u64,
    /// Payload bytes received.
    pub bytes_in: u64,
    /// Payload bytes sent.
    pub bytes_out: u64,
}

/// An open WebSocket and its outlet.
#[derive(Debug)]
pub struct Session {
    socket: WebSocketStream<Stream>,
    outlet: Outlet,
    is_ping_due: bool,
    needs_flush: bool,
    /// The waker that the socket has for its reader.
    reader: Option<Arc<Reader>>,
    read: ReadState,
    traffic: Traffic,
    certified_since: Option<Wall>,
}

/// State of the reading.
#[derive(Debug, Default)]
struct ReadState {
    /// True if the socket may have more than what was read last.
    has_more: bool,
    /// True if bytes came in that are no whole message yet.
    has_part: bool,
}

/// Waker of the task that also notes whether the socket may have something to read: each frame that
/// goes out wakes the same task, and a read that finds nothing is a system call.
#[derive(Debug)]
struct Reader {
    task: Waker,
    is_due: AtomicBool,
}

impl Wake for Reader {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is_due.store(true, Ordering::Release);
        self.task.wake_by_ref();
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.outlet.lose();
    }
}

impl Session {
    /// Takes an open socket over.
    pub fn new(socket: WebSocketStream<Stream>) -> Self {
        Self {
            socket,
            outlet: Outlet::new(),
            is_ping_due: false,
            needs_flush: false,
            reader: None,
            read: ReadState::default(),
            traffic: Traffic::default(),
            certified_since: None,
        }
    }

    /// The same session, whose peer showed a certificate with this first moment.
    #[must_use]
    pub fn certified(mut self, since: Option<Wall>) -> Self {
        self.certified_since = since;
        self
    }

    /// The first moment of the verified certificate of the other end. `None` without TLS.
    pub const fn certified_since(&self) -> Option<Wall> {
        self.certified_since
    }

    /// The way out.
    pub const fn outlet(&self) -> &Outlet {
        &self.outlet
    }

    /// The address of this machine on the way to the control plane.
    pub fn local_ip(&self) -> Option<IpAddr> {
        self.socket
            .get_ref()
            .local_address()
            .ok()
            .map(|address| address.ip())
    }

    /// Traffic so far.
    pub const fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// Returns whether a part of a message came in since the last call. A large one on a slow link
    /// takes minutes, and nothing else can come between.
    pub const fn takes_part(&mut self) -> bool {
        std::mem::replace(&mut self.read.has_part, false)
    }

    /// Sends an empty ping before anything else; it may even go between the parts of a message.
    pub fn ping(&mut self) {
        self.is_ping_due = true;
    }

    /// The next thing that comes in. While waiting for it, what is in the outlet goes out.
    /// Cancel-safe.
    pub async fn next(&mut self) -> Event {
        poll_fn(|context| self.poll(context)).await
    }

    /// Says good-bye: a close frame with a deadline, then the socket is dropped.
    pub async fn close(mut self, code: u16, reason: &'static str) {
        self.outlet.lose();
        let frame = CloseFrame {
            code: CloseCode::from(code),
            reason: reason.into(),
        };
        // What comes of it does not matter: the socket is dropped next.
        deadline(CLOSE_DEADLINE, self.socket.close(Some(frame)))
            .await
            .ok();
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        if let Poll::Ready(ending) = self.poll_out(context) {
            return Poll::Ready(Event::Ended(ending));
        }
        self.poll_in(context)
    }

    /// Writes what the outlet has, as far as the socket takes it. Ready only with the end of the
    /// session.
    ///
    /// Every way to `Pending` leaves a waker behind: with the socket where it is full, with the
    /// outlet where that is empty.
    fn poll_out(&mut self, context: &mut Context<'_>) -> Poll<SessionEnd> {
        for _ in 0..FRAMES_A_TURN {
            // A socket that is full is flushed by this call, and wakes us when there is room again.
            if let Err(error) = ready!(Pin::new(&mut self.socket).poll_ready(context)) {
                return Poll::Ready(ending(&error));
            }
            let message = match self.poll_frame(context) {
                Poll::Pending => return self.poll_flush(context),
                Poll::Ready(None) => {
                    return Poll::Ready(SessionEnd::new("control messages no longer get out"));
                }
                Poll::Ready(Some(message)) => message,
            };
            self.needs_flush = true;
            if let Err(error) = Pin::new(&mut self.socket).start_send(message) {
                return Poll::Ready(ending(&error));
            }
        }
        // The reader's turn; then on with the rest.
        context.waker().wake_by_ref();
        Poll::Pending
    }

    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<SessionEnd> {
        if !self.needs_flush {
            return Poll::Pending;
        }
        match ready!(Pin::new(&mut self.socket).poll_flush(context)) {
            Ok(()) => {
                self.needs_flush = false;
                Poll::Pending
            }
            Err(error) => Poll::Ready(ending(&error)),
        }
    }

    fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Option<Message>> {
        if std::mem::take(&mut self.is_ping_due) {
            return Poll::Ready(Some(Message::Ping(Bytes::new())));
        }
        let Some(frame) = ready!(self.outlet.poll_next(context)) else {
            return Poll::Ready(None);
        };
        self.traffic.frames_out += 1;
        let message = match frame {
            Frame::Text(text) => Message::Text(text.into()),
            Frame::Binary(data) => Message::Binary(data),
            Frame::Part {
                kind,
                data,
                is_last,
            } => {
                let code = match kind {
                    Fragment::FirstText => Data::Text,
                    Fragment::FirstBinary => Data::Binary,
                    Fragment::Next => Data::Continue,
                };
                Message::Frame(RawFrame::message(data, OpCode::Data(code), is_last))
            }
        };
        self.traffic.bytes_out += u64::try_from(message.len()).unwrap_or(u64::MAX);
        Poll::Ready(Some(message))
    }

    /// Reads what the socket has. Cheap while it has said nothing since it was found empty.
    fn poll_read(
        &mut self,
        context: &Context<'_>,
    ) -> Poll<Option<Result<Message, tungstenite::Error>>> {
        let known = self.reader.take();
        let known = known.filter(|reader| reader.task.will_wake(context.waker()));
        let reader = known.unwrap_or_else(|| {
            Arc::new(Reader {
                task: context.waker().clone(),
                is_due: AtomicBool::new(true),
            })
        });
        let mut read = Poll::Pending;
        let is_woken = reader.is_due.swap(false, Ordering::AcqRel);
        if std::mem::take(&mut self.read.has_more) || is_woken {
            let waker = Waker::from(Arc::clone(&reader));
            read = Pin::new(&mut self.socket).poll_next(&mut Context::from_waker(&waker));
            self.read.has_more = read.is_ready();
            self.read.has_part |= is_woken && read.is_pending();
        }
        self.reader = Some(reader);
        read
    }

    fn poll_in(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        let message = match ready!(self.poll_read(context)) {
            Some(Ok(message)) => message,
            Some(Err(error)) => return Poll::Ready(Event::Ended(ending(&error))),
            None => {
                return Poll::Ready(Event::Ended(SessionEnd::new(
                    "the control plane closed the connection",
                )));
            }
        };
        self.traffic.messages_in += 1;
        self.traffic.bytes_in += u64::try_from(message.len()).unwrap_or(u64::MAX);
        let event = match message {
            Message::Text(text) => Event::Message(text.into(), MessageKind::Text),
            Message::Binary(data) => Event::Message(data, MessageKind::Binary),
            Message::Ping(_) => {
                // The answer is already queued inside the socket.
                self.needs_flush = true;
                context.waker().wake_by_ref();
                Event::Ping
            }
            Message::Pong(_) => Event::Pong,
            Message::Close(frame) => Event::Ended(SessionEnd::new(close_reason(frame.as_ref()))),
            Message::Frame(_) => Event::Ended(SessionEnd::new("a raw frame came in")),
        };
        Poll::Ready(event)
    }
}

fn close_reason(frame: Option<&CloseFrame>) -> String {
    match frame {
        None => "the control plane closed the session".to_owned(),
        Some(frame) if frame.reason.is_empty() => {
            format!(
                "the control plane closed the session with code {}",
                u16::from(frame.code)
            )
        }
        Some(frame) => {
            let reason: String = frame
                .reason
                .chars()
                .filter(|c| !is_unprintable(*c))
                .take(120)
                .collect();
            format!(
                "the control plane closed the session with code {}: {reason}",
                u16::from(frame.code)
            )
        }
    }
}

fn ending(error: &tungstenite::Error) -> SessionEnd {
    if let tungstenite::Error::Capacity(CapacityError::MessageTooLong { size, .. }) = error {
        let why = format!("a message of {size} bytes came in; the limit is {MESSAGE_BYTES_MAX}");
        return SessionEnd {
            why,
            owed: Some((1009, "message over 32 MiB")),
        };
    }
    let owed = match error {
        tungstenite::Error::Utf8(_) => Some((1007, "text that is not UTF-8")),
        tungstenite::Error::Protocol(
            tungstenite::error::ProtocolError::ResetWithoutClosingHandshake,
        ) => None,
        tungstenite::Error::Protocol(_) => Some((1002, "protocol error")),
        tungstenite::Error::ConnectionClosed
        | tungstenite::Error::AlreadyClosed
        | tungstenite::Error::Io(_)
        | tungstenite::Error::Tls(_)
        | tungstenite::Error::Capacity(_)
        | tungstenite::Error::WriteBufferFull(_)
        | tungstenite::Error::AttackAttempt
        | tungstenite::Error::Url(_)
        | tungstenite::Error::Http(_)
        | tungstenite::Error::HttpFormat(_) => None,
    };
    SessionEnd {
        why: error.to_string().to_lowercase(),
        owed,
    }
}

#[cfg(test)]
mod tests {
    use async_tungstenite::tungstenite::protocol::Role;
    use smol::{
        block_on,
        io::AsyncWriteExt as _,
        net::{TcpListener, TcpStream},
    };

    use super::*;

    #[test]
    fn a_part_of_a_message_is_a_sign_of_life() {
        block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let socket = Stream::Plain(TcpStream::connect(address).await.unwrap());
            let socket =
                WebSocketStream::from_raw_socket(socket, Role::Client, Some(limits())).await;
            let mut session = Session::new(socket);
            let (mut peer, _) = listener.accept().await.unwrap();
            let turn = Duration::from_millis(100);
            // Nothing but the head of a text of four bytes, then half of it.
            for (bytes, is_part) in [(&[][..], true), (&[], false), (&[0x81, 4, b'a'], true)] {
                peer.write_all(bytes).await.unwrap();
                assert!(deadline(turn, session.next()).await.is_err());
                assert_eq!(session.takes_part(), is_part, "{bytes:?}");
            }
            assert!(deadline(turn, session.next()).await.is_err());
            assert!(!session.takes_part(), "nothing came since");
            peer.write_all(b"bcd").await.unwrap();
            let Event::Message(text, MessageKind::Text) = session.next().await else {
                panic!("no message")
            };
            assert_eq!(text.as_ref(), b"abcd");
        });
    }
}

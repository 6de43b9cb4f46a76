//! One WebSocket from its handshake to its close: exec, attach and port-forward of the Kubernetes
//! API, or an application's.

use std::{cell::OnceCell, rc::Rc, time::Duration};

use async_tungstenite::{
    WebSocketReceiver, WebSocketSender,
    tungstenite::{
        Message, Utf8Bytes,
        protocol::{CloseFrame, frame::coding::CloseCode},
    },
};
use hyper::body::Bytes;
use smol::{future::FutureExt as _, stream::StreamExt};

use super::{
    answer::{Failure, Reply},
    frames::{FrameIn, Frames, Opcode, QueueEnd, StreamKind},
    table::ExchangeSlot,
};
use crate::{
    core::{
        audit::RequestOutcome,
        proxy::{CallTarget, Form, Limits, end_to_end},
    },
    host::clock,
    kube::{
        Body, UpgradedStream, services,
        socket::{self, Ask, Opened, Socket},
    },
    link::outlet::{Lost, Outlet},
    tasks::proxy::{
        admission::Pass,
        audit::Record,
        authorization::{Admitted, Authorization},
        deadline::until,
        denial::DEADLINE,
        upstream::{self, every_header, header_list},
    },
    wire::control::{self, AnswerForm},
};

/// Interval between pings of an application's backend (docs/protocol.md, WebSockets of services).
const PING_EVERY: Duration = Duration::from_secs(30);
/// Maximum silence in spite of pings.
const SILENCE_MAX: Duration = Duration::from_secs(150);
/// Time for the last frames and the close.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);

/// An admitted WebSocket.
#[derive(Debug)]
pub(in crate::tasks::proxy) struct SocketExchange {
    pub(in crate::tasks::proxy) slot: ExchangeSlot,
    pub(in crate::tasks::proxy) pass: Pass,
    pub(in crate::tasks::proxy) limits: Limits,
    /// [`AnswerForm::Socket`] where it began with a start message: then there is no answer to a
    /// request.
    pub(in crate::tasks::proxy) answer: AnswerForm,
    pub(in crate::tasks::proxy) outlet: Outlet,
    pub(in crate::tasks::proxy) kind: StreamKind,
    pub(in crate::tasks::proxy) frames: Rc<Frames>,
}

/// Side that ended an open stream.
#[derive(Debug)]
enum Over {
    /// The control plane.
    ByCaller,
    /// The backend, or what lies between.
    ByBackend,
    /// It cannot go on, for this reason.
    Failed(String),
    /// The session is lost.
    Lost,
}

impl Over {
    const fn outcome(&self) -> RequestOutcome {
        match self {
            Self::ByCaller | Self::ByBackend => RequestOutcome::Done,
            Self::Failed(_) => RequestOutcome::Failed,
            Self::Lost => RequestOutcome::LinkLost,
        }
    }
}

impl From<Lost> for Over {
    fn from(Lost: Lost) -> Self {
        Self::Lost
    }
}

impl SocketExchange {
    /// Runs it to its end. Dropping the future closes the connection.
    pub(in crate::tasks::proxy) async fn run(self, admitted: Admitted) {
        let mut reply = Reply::new(&self.slot.id, self.answer, &self.outlet);
        let ended = async {
            self.frames.ended().await;
            Err("closed before the backend answered".to_owned().into())
        };
        let written = OnceCell::new();
        let opening = async {
            let shared = &self.slot.shared;
            let authorization = shared.authorization(admitted, &self.pass, &written).await?;
            self.open(&authorization, &mut reply, &written).await
        };
        let cut = async { Err(self.pass.cut().await.into()) };
        let opened = Box::pin(opening).or(ended).or(cut).await;
        let say_ended = |outcome| {
            if let Some(record) = written.get() {
                record.ended(outcome);
            }
        };
        let socket = match opened {
            Ok(socket) => socket,
            Err(Failure::Reported(text)) => {
                say_ended(RequestOutcome::Failed);
                return self.refused(reply, &text).await;
            }
            Err(Failure::Lost) => return say_ended(RequestOutcome::LinkLost),
        };
        if self.send_open(&mut reply, &socket).await.is_err() {
            return;
        }
        // It was written down before it was opened.
        let Some(record) = written.get() else {
            return;
        };
        let relay = self.relay(&mut reply, *socket, record);
        let relay = async {
            match self.limits.total {
                Some(total) => until(total, relay)
                    .await
                    .unwrap_or_else(|| Over::Failed(DEADLINE.to_owned())),
                None => relay.await,
            }
        };
        let cut = async { Over::Failed(self.pass.cut().await.text) };
        let over = relay.or(cut).await;
        record.ended(over.outcome());
        record.received_bytes.set(self.frames.received_bytes());
        if self.send_close(&mut reply, over).await.is_ok() {
            reply.finish();
        }
    }

    /// The handshake. A refusal of the backend's is passed on.
    async fn open(
        &self,
        authorization: &Authorization,
        reply: &mut Reply,
        written: &OnceCell<Record>,
    ) -> Result<Box<Socket>, Failure> {
        let what = match self.kind {
            StreamKind::Application => "failed to connect to service WebSocket",
            StreamKind::Kubernetes => "failed to connect to K8s API",
        };
        let Some(client) = &self.slot.shared.dependencies.client else {
            return Err("kubernetes client not initialized".to_owned().into());
        };
        let left = self.limits.head.since(clock::now().mono);
        let request = upstream::request(&authorization.call, Body::empty())?;
        let path = request.uri().to_string();
        let protocols = match &authorization.call.form {
            Form::Plain | Form::Upgrade(_) => &[],
            Form::Socket(protocols) => protocols.as_slice(),
        };
        let ask = Ask {
            path: &path,
            headers: request.headers().clone(),
            protocols,
        };
        let opening = async {
            match &authorization.call.target {
                CallTarget::Kubernetes(_) => {
                    let identity = &authorization.identity;
                    let opened = socket::open(client, identity, ask, left).await;
                    opened.map_err(|error| format!("{what}: {error}"))
                }
                CallTarget::Service(service) => {
                    let shared = &self.slot.shared;
                    let address = upstream::address((shared, client), service, authorization)
                        .await
                        .map_err(|denial| format!("{what}: {}", denial.text))?;
                    let to = (&address, upstream::scheme(service));
                    let opened = services::open_socket(client, to, ask, left).await;
                    opened.map_err(|error| format!("{what}: {error}"))
                }
            }
        };
        let opened = until(self.limits.head, Box::pin(opening)).await;
        match opened.ok_or_else(|| format!("{what}: {DEADLINE}"))?? {
            Opened::Open(socket) => Ok(socket),
            Opened::Refused(response) => {
                let status = response.status().as_u16();
                if let Some(record) = written.get() {
                    record.answered(&authorization.call.target, status);
                }
                if self.answer == AnswerForm::Streaming {
                    let headers = header_list(response.headers());
                    reply.head(status, &headers).await?;
                }
                Err(Failure::Reported(format!(
                    "{what}: refused (status: {status})"
                )))
            }
        }
    }

    /// Says that the stream did not open.
    async fn refused(&self, mut reply: Reply, text: &str) {
        log::debug!("proxy: a WebSocket did not open: {text}");
        let id = &self.slot.id;
        if self.answer != AnswerForm::Socket {
            return reply.fail(text).await;
        }
        let now = clock::now().wall;
        let is_told = reply
            .text(control::stream_error(id, text, now))
            .await
            .is_ok()
            && reply.text(control::socket_close(id, now)).await.is_ok();
        if is_told {
            reply.finish();
        }
    }

    /// The 101, strictly before the first data. A stream that began with a start message gets none.
    async fn send_open(&self, reply: &mut Reply, socket: &Socket) -> Result<(), Lost> {
        let mut headers = end_to_end(&every_header(&socket.head.headers));
        headers.push(("Upgrade".to_owned(), vec!["websocket".to_owned()]));
        headers.push(("Connection".to_owned(), vec!["Upgrade".to_owned()]));
        let (id, now) = (&self.slot.id, clock::now().wall);
        match self.answer {
            AnswerForm::Socket => Ok(()),
            AnswerForm::Streaming => {
                reply.head(101, &headers).await?;
                reply.text(control::proxy_response_end(id, now)).await
            }
            AnswerForm::Buffered => {
                let nothing = (&[][..], control::Encoding::Base64);
                reply
                    .text(control::proxy_response(id, 101, &headers, nothing, now))
                    .await
            }
        }
    }

    /// Exactly one close for every stream that was open; a reason before it where it ended by
    /// force. An application's client that closed knows that it did.
    async fn send_close(&self, reply: &mut Reply, over: Over) -> Result<(), Lost> {
        let (id, now) = (&self.slot.id, clock::now().wall);
        match (self.kind, over) {
            (_, Over::Lost) => return Err(Lost),
            (StreamKind::Application, Over::ByCaller) => return Ok(()),
            (StreamKind::Kubernetes, Over::ByCaller) | (_, Over::ByBackend) => {}
            (_, Over::Failed(text)) => {
                log::debug!("proxy: a WebSocket was ended: {text}");
                reply.text(control::stream_error(id, &text, now)).await?;
            }
        }
        reply.text(control::socket_close(id, now)).await
    }

    /// Carries frames both ways until one side ends.
    async fn relay(&self, reply: &mut Reply, socket: Socket, record: &Record) -> Over {
        let translation = Translation::of(self.kind, socket.protocol.as_deref());
        let (mut sender, mut receiver) = socket.messages.split();
        let up = self.carry_up(&mut sender, translation);
        let down = self.carry_down(&mut receiver, translation, (reply, record));
        let over = smol::future::or(Box::pin(up), Box::pin(down)).await;
        let code = match &over {
            Over::ByCaller => CloseCode::Normal,
            Over::ByBackend => return over,
            Over::Failed(_) | Over::Lost => CloseCode::Away,
        };
        let close = CloseFrame {
            code,
            reason: Utf8Bytes::default(),
        };
        let deadline = clock::now().mono.after(CLOSE_WITHIN);
        if until(deadline, sender.close(Some(close))).await.is_none() {
            log::debug!("proxy: a backend did not take its close");
        }
        over
    }

    async fn carry_up(
        &self,
        sender: &mut WebSocketSender<UpgradedStream>,
        translation: Translation,
    ) -> Over {
        let mut ping_at = clock::now().mono.after(PING_EVERY);
        let mut is_broken = false;
        loop {
            let next = match self.kind {
                StreamKind::Application => until(ping_at, self.frames.next()).await,
                StreamKind::Kubernetes => Some(self.frames.next().await),
            };
            let message = match next {
                None => {
                    ping_at = clock::now().mono.after(PING_EVERY);
                    Message::Ping(Bytes::new())
                }
                Some(Err(QueueEnd::Closed)) => return Over::ByCaller,
                Some(Err(QueueEnd::Failed(text))) => return Over::Failed(text),
                Some(Ok(frame)) => match translation.upward(frame) {
                    Some(Message::Close(_)) => return Over::ByCaller,
                    Some(message) => message,
                    None => return Over::Failed("a text frame is not UTF-8".to_owned()),
                },
            };
            if is_broken {
                continue;
            }
            if let Err(error) = sender.send(message).await {
                log::debug!("proxy: a WebSocket's backend takes no more: {error}");
                // What it sent before is still carried down, and its end comes after that.
                is_broken = true;
            }
        }
    }

    async fn carry_down(
        &self,
        receiver: &mut WebSocketReceiver<UpgradedStream>,
        translation: Translation,
        way_back: (&mut Reply, &Record),
    ) -> Over {
        let (reply, record) = way_back;
        loop {
            // Only the wait for the backend counts as its silence, not our own for a slow caller.
            let silence = match self.kind {
                StreamKind::Application => SILENCE_MAX,
                StreamKind::Kubernetes => self.limits.idle,
            };
            let moment = clock::now().mono.after(silence);
            let Some(next) = until(moment, receiver.next()).await else {
                return Over::Failed("the backend does not answer pings".to_owned());
            };
            let message = match next {
                Some(Ok(message)) => message,
                Some(Err(error)) => {
                    log::debug!("proxy: a WebSocket's backend broke: {error}");
                    return Over::ByBackend;
                }
                None => return Over::ByBackend,
            };
            let (opcode, payload) = match message {
                Message::Text(text) => (1, Bytes::from(text)),
                Message::Binary(data) => translation.downward(data),
                Message::Close(_) => return Over::ByBackend,
                Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => continue,
            };
            let (id, now) = (&self.slot.id, clock::now().wall);
            let text = match self.kind {
                StreamKind::Application => control::app_socket_data(id, opcode, &payload, now),
                StreamKind::Kubernetes => control::kube_socket_data(id, opcode, &payload, now),
            };
            record.sent(payload.len());
            drop(payload);
            if let Err(lost) = reply.large_text(text).await {
                return lost.into();
            }
        }
    }
}

/// Translation of frames.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Translation {
    /// No translation.
    None,
    /// Translated for `channel.k8s.io` (docs/protocol.md, WebSockets of the Kubernetes API).
    Channels,
}

impl Translation {
    fn of(kind: StreamKind, protocol: Option<&str>) -> Self {
        let has_channels = protocol.is_some_and(|protocol| {
            protocol == "channel.k8s.io" || protocol.ends_with(".channel.k8s.io")
        });
        if kind == StreamKind::Kubernetes && has_channels {
            Self::Channels
        } else {
            Self::None
        }
    }

    /// `None` for a text that is none.
    fn upward(self, frame: FrameIn) -> Option<Message> {
        let FrameIn { opcode, payload } = frame;
        Some(match (opcode, self) {
            (Opcode::Text, Self::Channels) => {
                let mut stdin = Vec::with_capacity(payload.len() + 1);
                stdin.push(0);
                stdin.extend_from_slice(&payload);
                Message::Binary(stdin.into())
            }
            (Opcode::Text, Self::None) => Message::Text(Utf8Bytes::try_from(payload).ok()?),
            (Opcode::Binary, _) => Message::Binary(payload),
            (Opcode::Close, _) => Message::Close(None),
            (Opcode::Ping, _) => Message::Ping(payload.slice(..payload.len().min(125))),
            (Opcode::Pong, _) => Message::Pong(payload.slice(..payload.len().min(125))),
        })
    }

    /// Opcode and payload of a binary message.
    fn downward(self, data: Bytes) -> (u8, Bytes) {
        match (self, data.first()) {
            (Self::Channels, Some(0..=3)) => (1, data.slice(1..)),
            (Self::Channels | Self::None, _) => (2, data),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(opcode: Opcode, payload: &'static [u8]) -> FrameIn {
        FrameIn {
            opcode,
            payload: Bytes::from_static(payload),
        }
    }

    #[test]
    fn channels_are_translated_as_the_protocol_says() {
        let channels = Translation::of(StreamKind::Kubernetes, Some("v4.channel.k8s.io"));
        let up = |opcode, payload| channels.upward(frame(opcode, payload));
        assert_eq!(
            up(Opcode::Text, b"ls\n"),
            Some(Message::Binary(Bytes::from_static(b"\0ls\n")))
        );
        assert_eq!(
            up(Opcode::Binary, b"\x04{}"),
            Some(Message::Binary(Bytes::from_static(b"\x04{}")))
        );
        for (data, wanted) in [
            (b"\x01out".as_slice(), (1, b"out".as_slice())),
            (b"\x02err", (1, b"err")),
            (b"\x03{}", (1, b"{}")),
            (b"\x00", (1, b"")),
            (b"\x04x", (2, b"\x04x")),
            (b"", (2, b"")),
        ] {
            let (opcode, payload) = channels.downward(Bytes::from_static(data));
            assert_eq!((opcode, payload.as_ref()), wanted);
        }
    }

    #[test]
    fn without_channels_nothing_is_changed() {
        for (kind, protocol) in [
            (StreamKind::Kubernetes, None),
            (StreamKind::Kubernetes, Some("portforward.k8s.io")),
            (StreamKind::Application, Some("v4.channel.k8s.io")),
        ] {
            let translation = Translation::of(kind, protocol);
            assert_eq!(
                translation.upward(frame(Opcode::Text, b"x")),
                Some(Message::text("x"))
            );
            assert_eq!(translation.upward(frame(Opcode::Text, b"\xff")), None);
            let data = Bytes::from_static(b"\x01x");
            assert_eq!(translation.downward(data.clone()), (2, data));
        }
    }
}

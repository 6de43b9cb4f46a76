//! One plain request from its turn to the end of its answer.

use std::{cell::OnceCell, rc::Rc};

use hyper::body::Bytes;
use smol::channel::Receiver;

use super::{
    Permit,
    answer::{Failure, Reply},
    audit::Record,
    body::{Held, Pipe},
    table::Place,
    upstream::{self, DEADLINE, header_list, until},
};
use crate::{
    core::{
        proxy::{HeaderList, Limits, first},
        time::Mono,
    },
    kube::Body,
    link::outlet::Outlet,
    wire::control::Answer,
};

/// Where the body of a request comes from.
#[derive(Debug)]
pub(super) enum Source {
    /// There is none.
    None,
    /// It was in the message.
    Inline(Bytes, Held),
    /// It is the next binary message.
    NextBinary(Rc<Pipe>),
    /// It arrives in pieces.
    Chunked {
        /// Where they come out.
        pipe: Rc<Pipe>,
        /// The length that the caller declared.
        length: Option<u64>,
    },
}

impl Source {
    /// The way in, for bodies that are still to come.
    pub(super) fn pipe(&self) -> Option<Rc<Pipe>> {
        match self {
            Self::None | Self::Inline(..) => None,
            Self::NextBinary(pipe) | Self::Chunked { pipe, .. } => Some(Rc::clone(pipe)),
        }
    }
}

/// The `Content-Length` of a request whose body arrives in pieces. HTTP holds the sender to it: more is not sent, less ends the connection.
pub(super) fn declared_length(headers: &HeaderList) -> Option<u64> {
    let text = first(headers, "content-length")?;
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

/// A permitted request and what its answer needs.
#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) place: Place,
    /// Where it has to wait: until when, and who says that its turn has come.
    pub(super) turn: Option<(Mono, Receiver<()>)>,
    pub(super) permit: Permit,
    pub(super) limits: Limits,
    pub(super) answer: Answer,
    pub(super) outlet: Outlet,
}

impl Exchange {
    /// Runs it to its end. Dropping the future cancels it.
    pub(super) async fn run(self, source: Source) {
        let pipe = source.pipe();
        let mut reply = Reply::new(&self.place.id, self.answer, &self.outlet);
        let book: OnceCell<Record> = OnceCell::new();
        let conversation = async {
            match self.limits.total {
                Some(total) => until(total, self.converse(source, &mut reply, &book))
                    .await
                    .unwrap_or_else(|| Err(Failure::Told(DEADLINE.to_owned()))),
                None => self.converse(source, &mut reply, &book).await,
            }
        };
        let broken_body = async {
            match &pipe {
                Some(pipe) => Err(Failure::Told(pipe.failed().await)),
                None => std::future::pending().await,
            }
        };
        let outcome = smol::future::or(conversation, broken_body).await;
        if let (Some(record), Some(pipe)) = (book.get(), &pipe) {
            record.received_bytes.set(pipe.received_bytes());
        }
        let say_ended = |how| {
            if let Some(record) = book.get() {
                record.ended(how);
            }
        };
        match outcome {
            Ok(Some(whole)) => {
                say_ended("done");
                // Complete and local: no limit of the caller's can cut the message in its middle any more.
                reply.send_whole(whole).await;
            }
            Ok(None) => {
                say_ended("done");
                reply.finish();
            }
            Err(Failure::Told(text)) => {
                say_ended("failed");
                log::debug!("proxy: {} failed: {text}", self.permit.call.method);
                reply.fail(&text).await;
            }
            Err(Failure::Lost) => say_ended("link lost"),
        }
    }

    async fn converse(
        &self,
        source: Source,
        reply: &mut Reply,
        book: &OnceCell<Record>,
    ) -> Result<Option<super::answer::Whole>, Failure> {
        self.wait_for_turn().await?;
        let record = self.place.shared.audit.permit(&self.permit.call).await?;
        let record = book.get_or_init(|| record);
        let (body, held) = match source {
            Source::None => (Body::empty(), None),
            Source::Inline(bytes, held) => {
                let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
                record.received_bytes.set(length);
                (Body::full(bytes), Some(held))
            }
            Source::NextBinary(pipe) => (Body::of_io(pipe.reader(None)), None),
            Source::Chunked { pipe, length } => (Body::of_io(pipe.reader(length)), None),
        };
        let shared = &self.place.shared;
        let response = upstream::send(shared, &self.permit, &self.limits, body).await?;
        // An answer has begun, so the request's bytes are out or of no use any more.
        drop(held);
        let status = response.status().as_u16();
        let headers = header_list(response.headers());
        let target = &self.permit.call.target;
        match self.answer {
            Answer::Streaming => {
                reply
                    .stream(
                        record,
                        (status, &headers),
                        response.into_body(),
                        target,
                        self.limits.idle,
                    )
                    .await?;
                Ok(None)
            }
            Answer::Buffered | Answer::Socket => {
                let spool = &shared.parts.spool;
                let whole = super::answer::collect(
                    (status, headers),
                    response.into_body(),
                    spool,
                    target,
                    self.limits.idle,
                );
                let whole = whole.await?;
                record.sent(whole.body_bytes());
                Ok(Some(whole))
            }
        }
    }

    async fn wait_for_turn(&self) -> Result<(), Failure> {
        let Some((moment, turn)) = &self.turn else {
            return Ok(());
        };
        match until(*moment, turn.recv()).await {
            Some(Ok(())) => Ok(()),
            Some(Err(_)) | None => Err(Failure::Told(super::BUSY.to_owned())),
        }
    }
}

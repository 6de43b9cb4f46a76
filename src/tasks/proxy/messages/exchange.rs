//! One HTTP exchange, from its turn to the end of its response.

use std::{cell::OnceCell, rc::Rc};

use hyper::body::Bytes;
use smol::future::FutureExt as _;

use super::{
    answer::{Failure, Reply, Whole, collect},
    table::ExchangeSlot,
};
use crate::{
    core::{
        audit::RequestOutcome,
        proxy::{HeaderList, Limits, first},
    },
    kube::Body,
    link::outlet::Outlet,
    tasks::proxy::{
        Shared,
        admission::Pass,
        audit::Record,
        authorization::{Admitted, Authorization},
        body::{Pipe, Reservation},
        deadline::until,
        denial::late,
        upstream::{self, header_list},
    },
    wire::control::AnswerForm,
};

/// Source of the body of a request.
#[derive(Debug)]
pub(in crate::tasks::proxy) enum Source {
    /// There is none.
    None,
    /// It was in the message.
    Inline(Bytes, Reservation),
    /// It is the next binary message.
    NextBinary(Rc<Pipe>),
    /// It arrives in pieces.
    Chunked {
        /// Pipe that delivers them.
        pipe: Rc<Pipe>,
        /// The length that the caller declared.
        length: Option<u64>,
    },
}

impl Source {
    /// The way in, for bodies that are still to come.
    pub(in crate::tasks::proxy) fn pipe(&self) -> Option<Rc<Pipe>> {
        match self {
            Self::None | Self::Inline(..) => None,
            Self::NextBinary(pipe) | Self::Chunked { pipe, .. } => Some(Rc::clone(pipe)),
        }
    }
}

/// The `Content-Length` of a request whose body arrives in pieces. HTTP holds the sender to it:
/// more is not sent, less ends the connection.
pub(in crate::tasks::proxy) fn declared_length(headers: &HeaderList) -> Option<u64> {
    let text = first(headers, "content-length")?;
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

/// A permitted request and what its answer needs.
#[derive(Debug)]
pub(in crate::tasks::proxy) struct Exchange {
    pub(in crate::tasks::proxy) slot: ExchangeSlot,
    pub(in crate::tasks::proxy) pass: Pass,
    pub(in crate::tasks::proxy) admitted: Admitted,
    pub(in crate::tasks::proxy) limits: Limits,
    pub(in crate::tasks::proxy) answer: AnswerForm,
    pub(in crate::tasks::proxy) outlet: Outlet,
}

impl Exchange {
    /// Runs it to its end. Dropping the future cancels it.
    pub(in crate::tasks::proxy) async fn run(self, source: Source) {
        let Self {
            slot,
            pass,
            admitted,
            limits,
            answer,
            outlet,
        } = self;
        let pipe = source.pipe();
        let mut reply = Reply::new(&slot.id, answer, &outlet);
        let written: OnceCell<Record> = OnceCell::new();
        let conversation = async {
            let shared = &slot.shared;
            let authorization = shared.authorization(admitted, &pass, &written).await?;
            let talk = Conversation {
                shared,
                authorization: &authorization,
                limits: &limits,
                answer,
            };
            talk.run(source, &mut reply, &written).await
        };
        let conversation = async {
            match limits.total {
                Some(total) => until(total, conversation)
                    .await
                    .unwrap_or_else(|| Err(late().into())),
                None => conversation.await,
            }
        };
        let broken_body = async {
            match &pipe {
                Some(pipe) => Err(Failure::Reported(pipe.failed().await)),
                None => std::future::pending().await,
            }
        };
        let cut = async { Err(pass.cut().await.into()) };
        let outcome = Box::pin(conversation).or(broken_body).or(cut).await;
        if let (Some(record), Some(pipe)) = (written.get(), &pipe) {
            record.received_bytes.set(pipe.received_bytes());
        }
        let say_ended = |how| {
            if let Some(record) = written.get() {
                record.ended(how);
            }
        };
        match outcome {
            Ok(Some(whole)) => {
                say_ended(RequestOutcome::Done);
                // Complete and local: no limit of the caller's can cut the message in its middle
                // any more.
                reply.send_whole(whole).await;
            }
            Ok(None) => {
                say_ended(RequestOutcome::Done);
                reply.finish();
            }
            Err(Failure::Reported(text)) => {
                say_ended(RequestOutcome::Failed);
                log::debug!("proxy: a request failed: {text}");
                reply.fail(&text).await;
            }
            Err(Failure::Lost) => say_ended(RequestOutcome::LinkLost),
        }
    }
}

/// A permitted request on its way.
#[derive(Clone, Copy)]
struct Conversation<'a> {
    shared: &'a Shared,
    authorization: &'a Authorization,
    limits: &'a Limits,
    answer: AnswerForm,
}

impl Conversation<'_> {
    async fn run(
        self,
        source: Source,
        reply: &mut Reply,
        written: &OnceCell<Record>,
    ) -> Result<Option<Whole>, Failure> {
        let (body, held) = match source {
            Source::None => (Body::empty(), None),
            Source::Inline(bytes, held) => {
                if let Some(record) = written.get() {
                    record.received(bytes.len());
                }
                (Body::full(bytes), Some(held))
            }
            Source::NextBinary(pipe) => (Body::of_io(pipe.reader(None)), None),
            Source::Chunked { pipe, length } => (Body::of_io(pipe.reader(length)), None),
        };
        let response = upstream::send(self.shared, self.authorization, self.limits, body).await?;
        // An answer has begun, so the request's bytes are out or of no use any more.
        drop(held);
        let status = response.status().as_u16();
        let headers = header_list(response.headers());
        let (target, idle) = (&self.authorization.call.target, self.limits.idle);
        if let Some(record) = written.get() {
            record.answered(target, status);
        }
        let body = response.into_body();
        let sent = |bytes| {
            if let Some(record) = written.get() {
                record.sent(bytes);
            }
        };
        match self.answer {
            AnswerForm::Streaming => {
                reply
                    .stream(sent, (status, &headers), body, target, idle)
                    .await?;
                Ok(None)
            }
            AnswerForm::Buffered | AnswerForm::Socket => {
                let spool = &self.shared.dependencies.spool;
                let whole = collect((status, headers), body, spool, target, idle).await?;
                sent(whole.body_bytes());
                Ok(Some(whole))
            }
        }
    }
}

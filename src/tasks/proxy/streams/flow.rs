//! Bodies in transit: counted, ended by silence or by a stricter level, and slowed down by their
//! reader.

use std::{
    cell::OnceCell,
    io,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
    time::Duration,
};

use hyper::body::{Body as HttpBody, Bytes, Frame, Incoming, SizeHint};
use smol::Timer;

use crate::{
    core::{audit::Outcome, time::in_words},
    kube::Body,
    tasks::proxy::{
        admission::{Cut, Pass},
        audit::Record,
    },
};

/// The body of a request, counted.
pub(super) struct Counted {
    body: Incoming,
    written: Rc<OnceCell<Record>>,
}

impl Counted {
    pub(super) fn new(body: Incoming, written: Rc<OnceCell<Record>>) -> Self {
        Self { body, written }
    }
}

impl HttpBody for Counted {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if let (Some(Ok(frame)), Some(record)) = (&frame, self.written.get()) {
            record.received(frame.data_ref().map_or(0, Bytes::len));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of an answer. An error of it ends the stream by a reset, so that nobody takes a part
/// for the whole.
pub(in crate::tasks::proxy) struct Flow {
    body: Body,
    written: Rc<OnceCell<Record>>,
    cut: Cut,
    /// Maximum silence of the backend. A caller that does not read is not the backend's silence.
    idle: Duration,
    silence: Option<Timer>,
    _pass: Box<Pass>,
}

impl Flow {
    pub(in crate::tasks::proxy) fn new(
        body: Body,
        pass: Pass,
        written: Rc<OnceCell<Record>>,
        idle: Duration,
    ) -> Self {
        Self {
            body,
            written,
            cut: pass.watch_cut(),
            idle,
            silence: None,
            _pass: Box::new(pass),
        }
    }

    fn ended(&self, how: Outcome) {
        if let Some(record) = self.written.get() {
            record.ended(how);
        }
    }

    fn fail(&self, text: String) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        self.ended(Outcome::Failed);
        log::debug!("proxy: an answer was cut short: {text}");
        Poll::Ready(Some(Err(io::Error::other(text))))
    }
}

impl HttpBody for Flow {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let flow = &mut *self;
        if let Poll::Ready(denial) = flow.cut.poll(context) {
            return flow.fail(denial.text);
        }
        let Poll::Ready(frame) = Pin::new(&mut flow.body).poll_frame(context) else {
            let idle = flow.idle;
            let silence = flow.silence.get_or_insert_with(|| Timer::after(idle));
            ready!(Pin::new(silence).poll(context));
            return flow.fail(format!("no byte from the backend for {}", in_words(idle)));
        };
        flow.silence = None;
        match &frame {
            None => flow.ended(Outcome::Done),
            Some(Ok(frame)) => {
                if let Some(record) = flow.written.get() {
                    record.sent(frame.data_ref().map_or(0, Bytes::len));
                }
                if flow.body.is_end_stream() {
                    flow.ended(Outcome::Done);
                }
            }
            Some(Err(error)) => {
                let text = error.to_string();
                return flow.fail(text);
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        let is_over = self.body.is_end_stream();
        if is_over {
            self.ended(Outcome::Done);
        }
        is_over
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

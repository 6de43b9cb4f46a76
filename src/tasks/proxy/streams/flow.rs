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
    core::{
        audit::RequestOutcome,
        time::{Mono, in_words},
    },
    host::clock,
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

/// Limit of the time in which the backend of an answer sends nothing. A caller that does not read
/// is not the backend's silence.
///
/// The timer outlives each silence, because every new one wakes the thread of the reactor: with one
/// for each piece of a download that was a system call in six.
struct Silence {
    limit: Duration,
    since: Option<Mono>,
    timer: Option<Timer>,
}

impl Silence {
    const fn new(limit: Duration) -> Self {
        Self {
            limit,
            since: None,
            timer: None,
        }
    }

    /// Waits for the limit, from the first call after the last byte on; gives it.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Duration> {
        let since = *self.since.get_or_insert_with(|| clock::now().mono);
        let timer = self.timer.get_or_insert_with(|| Timer::after(self.limit));
        loop {
            ready!(Pin::new(&mut *timer).poll(context));
            let left = since.after(self.limit).since(clock::now().mono);
            if left.is_zero() {
                return Poll::Ready(self.limit);
            }
            timer.set_after(left);
        }
    }

    const fn end(&mut self) {
        self.since = None;
    }
}

/// The body of an answer. An error of it ends the stream by a reset, so that nobody takes a part
/// for the whole.
pub(in crate::tasks::proxy) struct Flow {
    body: Body,
    written: Rc<OnceCell<Record>>,
    cut: Cut,
    silence: Silence,
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
            silence: Silence::new(idle),
            _pass: Box::new(pass),
        }
    }

    fn ended(&self, how: RequestOutcome) {
        if let Some(record) = self.written.get() {
            record.ended(how);
        }
    }

    fn fail(&self, text: String) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        self.ended(RequestOutcome::Failed);
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
            let limit = ready!(flow.silence.poll(context));
            return flow.fail(format!("no byte from the backend for {}", in_words(limit)));
        };
        flow.silence.end();
        match &frame {
            None => flow.ended(RequestOutcome::Done),
            Some(Ok(frame)) => {
                if let Some(record) = flow.written.get() {
                    record.sent(frame.data_ref().map_or(0, Bytes::len));
                }
                if flow.body.is_end_stream() {
                    flow.ended(RequestOutcome::Done);
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
            self.ended(RequestOutcome::Done);
        }
        is_over
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smol::future::{block_on, poll_once};
    use std::future::poll_fn;

    #[test]
    fn silence_counts_from_the_last_byte_and_not_from_the_first_wait() {
        let limit = Duration::from_millis(60);
        let mut silence = Silence::new(limit);
        let begin = clock::now().mono;
        block_on(async {
            while clock::now().mono.since(begin) < limit * 3 {
                assert_eq!(poll_once(poll_fn(|cx| silence.poll(cx))).await, None);
                silence.end();
                Timer::after(limit / 3).await;
            }
            let last = clock::now().mono;
            assert_eq!(poll_fn(|cx| silence.poll(cx)).await, limit);
            assert!(clock::now().mono.since(last) >= limit);
        });
    }
}

//! Bodies on their way through: counted, ended by silence or by stricter rules, and held back by whoever does not read.

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
    core::time::{Mono, in_words},
    host::clock,
    kube::Body,
    tasks::proxy::{
        audit::Record,
        gate::{Cut, Pass},
    },
};

/// The body of a request, counted.
pub(super) struct Counted {
    body: Incoming,
    book: Rc<OnceCell<Record>>,
}

impl Counted {
    pub(super) fn new(body: Incoming, book: Rc<OnceCell<Record>>) -> Self {
        Self { body, book }
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
        if let (Some(Ok(frame)), Some(record)) = (&frame, self.book.get()) {
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

/// How long the backend is asked for its next byte and gives none. A caller that does not read is not the backend's silence.
struct Silence {
    limit: Duration,
    since: Option<Mono>,
    /// Set once in `limit` and not for each piece: setting one wakes the thread that waits for sockets.
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

    /// The backend has said something.
    const fn is_broken(&mut self) {
        self.since = None;
    }

    /// Ready when this silence, which begins with the first call, has lasted as long as it may.
    fn poll_too_long(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let now = clock::now().mono;
        let over = self.since.get_or_insert(now).after(self.limit);
        let timer = self.timer.get_or_insert_with(|| Timer::after(self.limit));
        loop {
            ready!(Pin::new(&mut *timer).poll(context));
            let left = over.since(now);
            if left.is_zero() {
                return Poll::Ready(());
            }
            // It was set for an earlier silence.
            timer.set_after(left);
        }
    }
}

/// The body of an answer. An error of it ends the stream by a reset, so that nobody takes a part for the whole.
pub(super) struct Flow {
    body: Body,
    book: Rc<OnceCell<Record>>,
    cut: Cut,
    silence: Silence,
    _pass: Box<Pass>,
}

impl Flow {
    pub(super) fn new(body: Body, pass: Pass, book: Rc<OnceCell<Record>>, idle: Duration) -> Self {
        Self {
            body,
            book,
            cut: pass.watch_cut(),
            silence: Silence::new(idle),
            _pass: Box::new(pass),
        }
    }

    fn ended(&self, how: &'static str) {
        if let Some(record) = self.book.get() {
            record.ended(how);
        }
    }

    fn fail(&self, text: String) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        self.ended("failed");
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
            ready!(flow.silence.poll_too_long(context));
            let limit = in_words(flow.silence.limit);
            return flow.fail(format!("no byte from the backend for {limit}"));
        };
        flow.silence.is_broken();
        match &frame {
            None => flow.ended("done"),
            Some(Ok(frame)) => {
                if let Some(record) = flow.book.get() {
                    record.sent(frame.data_ref().map_or(0, Bytes::len));
                }
                if flow.body.is_end_stream() {
                    flow.ended("done");
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
            self.ended("done");
        }
        is_over
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use smol::future::{block_on, poll_once};

    use super::*;

    #[test]
    fn a_silence_counts_from_its_own_beginning() {
        let mut silence = Silence::new(Duration::from_millis(50));
        let asked = block_on(poll_once(poll_fn(|context| silence.poll_too_long(context))));
        assert_eq!(asked, None);
        silence.is_broken();
        // The timer of the first silence runs off while nobody asks.
        smol::block_on(Timer::after(silence.limit));
        let begun = clock::now().mono;
        smol::block_on(poll_fn(|context| silence.poll_too_long(context)));
        assert!(clock::now().mono.since(begun) >= silence.limit);
    }
}

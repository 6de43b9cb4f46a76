//! Request bodies while they arrive: the link adds pieces without waiting, the backend takes them
//! as fast as it can. Buffered bytes count against one budget for all requests.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    future::poll_fn,
    io,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker},
};

use hyper::body::{Body, Bytes, Frame, SizeHint};

/// Bytes of request bodies that are held, over all requests.
pub(super) const HELD_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Cost of a piece besides its bytes, so that a million pieces of one byte are not free.
const PIECE_COST_BYTES: usize = 64;

/// The bytes of request bodies that are held now.
#[derive(Clone, Debug, Default)]
pub(super) struct Budget {
    held_bytes: Rc<Cell<usize>>,
}

impl Budget {
    /// Takes room for `bytes`; `None` where there is not enough.
    pub(super) fn take(&self, bytes: usize) -> Option<Reservation> {
        let bytes = bytes.saturating_add(PIECE_COST_BYTES);
        let held = self.held_bytes.get().saturating_add(bytes);
        // One body of the largest size that a message may carry must fit where nothing else is
        // held.
        if held > HELD_BYTES_MAX + PIECE_COST_BYTES {
            return None;
        }
        self.held_bytes.set(held);
        Some(Reservation {
            bytes,
            budget: self.clone(),
        })
    }

    pub(super) fn held_bytes(&self) -> usize {
        self.held_bytes.get()
    }
}

/// Room in the budget; given back when it is dropped.
#[derive(Debug)]
pub(super) struct Reservation {
    bytes: usize,
    budget: Budget,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let held = &self.budget.held_bytes;
        held.set(held.get().saturating_sub(self.bytes));
    }
}

#[derive(Debug, Default)]
struct State {
    pieces: VecDeque<(Bytes, Reservation)>,
    received_bytes: u64,
    is_complete: bool,
    /// The backend wants no more of it.
    is_abandoned: bool,
    failure: Option<String>,
    reader: Option<Waker>,
    watcher: Option<Waker>,
}

impl State {
    fn wake(&mut self) {
        for waker in [self.reader.take(), self.watcher.take()]
            .into_iter()
            .flatten()
        {
            waker.wake();
        }
    }
}

/// One request body on its way.
#[derive(Debug)]
pub(super) struct Pipe {
    state: RefCell<State>,
    budget: Budget,
}

/// Result of pushing a piece.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum Pushed {
    /// It is on its way.
    Taken,
    /// The body has no reader any more or was complete: the piece is dropped.
    Stray,
    /// There is no room; the request has failed.
    NoRoom,
}

impl Pipe {
    pub(super) fn new(budget: &Budget) -> Rc<Self> {
        Rc::new(Self {
            state: RefCell::default(),
            budget: budget.clone(),
        })
    }

    /// Adds a piece. Never waits: where there is no room the request fails, because a body with a
    /// hole must not arrive.
    pub(super) fn push(&self, piece: Bytes) -> Pushed {
        let mut state = self.state.borrow_mut();
        if state.is_complete || state.is_abandoned || state.failure.is_some() {
            return Pushed::Stray;
        }
        if piece.is_empty() {
            return Pushed::Taken;
        }
        let Some(held) = self.budget.take(piece.len()) else {
            state.failure = Some(busy_with_bodies());
            state.pieces.clear();
            state.wake();
            return Pushed::NoRoom;
        };
        let bytes = u64::try_from(piece.len()).unwrap_or(u64::MAX);
        state.received_bytes = state.received_bytes.saturating_add(bytes);
        state.pieces.push_back((piece, held));
        state.wake();
        Pushed::Taken
    }

    /// No more pieces will come.
    pub(super) fn complete(&self) {
        let mut state = self.state.borrow_mut();
        state.is_complete = true;
        state.wake();
    }

    /// The rest of the body cannot arrive.
    pub(super) fn fail(&self, why: String) {
        let mut state = self.state.borrow_mut();
        if state.is_complete || state.failure.is_some() {
            return;
        }
        state.pieces.clear();
        state.failure = Some(why);
        state.wake();
    }

    /// Bytes that came in so far.
    pub(super) fn received_bytes(&self) -> u64 {
        self.state.borrow().received_bytes
    }

    /// Waits until the body has failed; for ever where it does not.
    pub(super) async fn failed(&self) -> String {
        poll_fn(|context| {
            let mut state = self.state.borrow_mut();
            if let Some(why) = &state.failure {
                return Poll::Ready(why.clone());
            }
            state.watcher = Some(context.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// The body for the backend; `length` is its length where that is known before.
    pub(super) fn reader(self: &Rc<Self>, length: Option<u64>) -> BodyReader {
        BodyReader {
            pipe: Rc::clone(self),
            length,
        }
    }
}

/// Returns why a body is not taken when too many are held.
pub(super) fn busy_with_bodies() -> String {
    format!(
        "busy: request bodies hold {} MiB already; try again",
        HELD_BYTES_MAX >> 20
    )
}

/// The end of the pipe that the backend's connection polls.
#[derive(Debug)]
pub(super) struct BodyReader {
    pipe: Rc<Pipe>,
    length: Option<u64>,
}

impl Body for BodyReader {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let mut state = self.pipe.state.borrow_mut();
        if let Some(why) = &state.failure {
            return Poll::Ready(Some(Err(io::Error::other(why.clone()))));
        }
        if let Some((piece, _held)) = state.pieces.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        if state.is_complete {
            return Poll::Ready(None);
        }
        state.reader = Some(context.waker().clone());
        Poll::Pending
    }

    fn size_hint(&self) -> SizeHint {
        self.length
            .map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl Drop for BodyReader {
    fn drop(&mut self) {
        let mut state = self.pipe.state.borrow_mut();
        state.is_abandoned = true;
        state.pieces.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;
    use smol::future::{block_on, poll_once};

    fn piece(bytes: usize) -> Bytes {
        Bytes::from(vec![7; bytes])
    }

    #[test]
    fn pieces_come_out_in_order_and_give_their_room_back() {
        let budget = Budget::default();
        let pipe = Pipe::new(&budget);
        let mut reader = pipe.reader(None);
        assert_eq!(pipe.push(Bytes::from_static(b"a")), Pushed::Taken);
        assert_eq!(pipe.push(Bytes::from_static(b"b")), Pushed::Taken);
        assert!(budget.held_bytes() > 2);
        pipe.complete();
        assert_eq!(pipe.push(Bytes::from_static(b"c")), Pushed::Stray);
        let mut body = Vec::new();
        while let Some(frame) = block_on(reader.frame()) {
            body.extend(frame.unwrap().into_data().unwrap());
        }
        assert_eq!(body, b"ab");
        assert_eq!(budget.held_bytes(), 0);
    }

    #[test]
    fn too_much_fails_the_request_that_brought_it_and_no_other() {
        let budget = Budget::default();
        let (large, small) = (Pipe::new(&budget), Pipe::new(&budget));
        assert_eq!(small.push(piece(10)), Pushed::Taken);
        let mut pushed = Pushed::Taken;
        for _ in 0..9 {
            pushed = large.push(piece(1 << 20));
        }
        assert_eq!(pushed, Pushed::Stray, "after the failure");
        assert!(block_on(large.failed()).starts_with("busy"));
        assert!(block_on(poll_once(small.failed())).is_none());
        assert_eq!(budget.held_bytes(), 10 + PIECE_COST_BYTES);
    }

    #[test]
    fn tiny_pieces_are_not_free() {
        let budget = Budget::default();
        let pipe = Pipe::new(&budget);
        let count = (0..1_000_000)
            .take_while(|_| pipe.push(piece(1)) == Pushed::Taken)
            .count();
        assert!(count < 200_000, "{count}");
        assert_eq!(budget.held_bytes(), 0);
    }

    #[test]
    fn a_reader_that_goes_away_drops_what_waits() {
        let budget = Budget::default();
        let pipe = Pipe::new(&budget);
        let reader = pipe.reader(None);
        assert_eq!(pipe.push(piece(100)), Pushed::Taken);
        drop(reader);
        assert_eq!(budget.held_bytes(), 0);
        assert_eq!(pipe.push(piece(100)), Pushed::Stray);
    }

    #[test]
    fn one_body_of_the_largest_size_fits() {
        let budget = Budget::default();
        let pipe = Pipe::new(&budget);
        assert_eq!(pipe.push(piece(HELD_BYTES_MAX)), Pushed::Taken);
        assert_eq!(pipe.push(piece(1)), Pushed::NoRoom);
    }
}

//! Who runs, who waits for its turn, and who has to go because the rules have become stricter. The same for every form of request.

use std::{
    cell::RefCell,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
};

use litemap::LiteMap;
use smol::{
    channel::{Receiver, Sender, bounded},
    stream::Stream as _,
};

use super::{
    denial::{Cause, Denial},
    upstream::until,
};
use crate::{
    core::{
        proxy::{Admission, Call, Class, Refusal, Slots},
        time::Mono,
    },
    host::clock,
};

/// The gate that every exchange goes through.
#[derive(Debug, Default)]
pub(super) struct Gate {
    state: RefCell<State>,
}

#[derive(Debug, Default)]
struct State {
    slots: Slots,
    guests: LiteMap<u64, Guest>,
    numbers: u64,
}

/// One that is inside or waits. Each channel holds one word and gets one.
#[derive(Debug)]
struct Guest {
    call: Rc<Call>,
    turn: Sender<()>,
    cut: Sender<Refusal>,
}

/// A place inside, or in the queue; given up when it is dropped.
#[derive(Debug)]
pub(super) struct Pass {
    gate: Rc<Gate>,
    number: u64,
    class: Class,
    /// Until when it waits for its turn; `None`: it may run.
    waits_until: Option<Mono>,
    turn: Receiver<()>,
    cut: Receiver<Refusal>,
}

impl Gate {
    /// A place for a call, or the word that there is none.
    pub(super) fn ask(self: &Rc<Self>, call: &Rc<Call>) -> Result<Pass, Denial> {
        let mut state = self.state.borrow_mut();
        state.numbers += 1;
        let number = state.numbers;
        let waits_until = match state.slots.ask(number, call.class, clock::now().mono) {
            Admission::Busy => return Err(busy()),
            Admission::Run => None,
            Admission::Wait(until) => Some(until),
        };
        let (turn, told_turn) = bounded(1);
        let (cut, told_cut) = bounded(1);
        let guest = Guest {
            call: Rc::clone(call),
            turn,
            cut,
        };
        state.guests.insert(number, guest);
        Ok(Pass {
            gate: Rc::clone(self),
            number,
            class: call.class,
            waits_until,
            turn: told_turn,
            cut: told_cut,
        })
    }

    /// Tells everybody who may not be here any more to go. Returns how many were told.
    pub(super) fn review(&self, judge: impl Fn(&Call) -> Result<(), Refusal>) -> usize {
        let state = self.state.borrow();
        let refused = state.guests.values().filter_map(|guest| {
            let refusal = judge(&guest.call).err()?;
            // One that was told before is on its way.
            guest.cut.try_send(refusal).ok()
        });
        refused.count()
    }

    /// How many are inside or wait.
    pub(super) fn count(&self) -> usize {
        self.state.borrow().guests.len()
    }

    /// Short ones running, short ones waiting, long ones running.
    pub(super) fn load(&self) -> (usize, usize, usize) {
        self.state.borrow().slots.load()
    }

    fn leave(&self, number: u64) {
        let mut state = self.state.borrow_mut();
        let Some(next) = state.slots.leave(number) else {
            return;
        };
        // Where the next one gives up at this moment, its own end passes the turn on.
        let told = state.guests.get(&next).map(|next| next.turn.try_send(()));
        if !matches!(told, Some(Ok(()))) {
            log::debug!("proxy: a request that gave up got its turn");
        }
    }
}

impl Pass {
    /// Waits for the turn.
    pub(super) async fn turn(&self) -> Result<(), Denial> {
        let Some(moment) = self.waits_until else {
            return Ok(());
        };
        match until(moment, self.turn.recv()).await {
            Some(Ok(())) => Ok(()),
            Some(Err(_)) | None => Err(busy()),
        }
    }

    /// Waits until the rules have become too strict for this call; for ever where they do not.
    pub(super) async fn cut(&self) -> Denial {
        match self.cut.recv().await {
            Ok(refusal) => refusal.into(),
            Err(_) => std::future::pending().await,
        }
    }

    /// The same for what is polled.
    pub(super) fn watch_cut(&self) -> Cut {
        Cut(Box::pin(self.cut.clone()))
    }

    /// Lets the next short one in, although this one still goes on: it holds nobody up any more. Long ones stay counted.
    pub(super) fn step_aside(&self) {
        if self.class == Class::Short {
            self.gate.leave(self.number);
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.gate.leave(self.number);
        let guest = self.gate.state.borrow_mut().guests.remove(&self.number);
        drop(guest);
    }
}

/// Learns that the rules have become too strict.
#[derive(Debug)]
pub(super) struct Cut(Pin<Box<Receiver<Refusal>>>);

impl Cut {
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Denial> {
        match self.0.as_mut().poll_next(context) {
            Poll::Ready(Some(refusal)) => Poll::Ready(refusal.into()),
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }
}

fn busy() -> Denial {
    Denial::new(
        Cause::Busy,
        "busy: too many requests run already; try again",
    )
}

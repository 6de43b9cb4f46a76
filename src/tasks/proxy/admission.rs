//! Admission: running and waiting calls, and those that end because their permission was withdrawn.
//! The same for every form of request.

use std::{
    cell::{OnceCell, RefCell},
    convert::Infallible,
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
    deadline::until,
    denial::{Cause, Denial},
};
use crate::{
    core::{
        access::reason,
        policy::{
            Rules, Terms,
            standing::{CallTerms, Dependency, Grant, Observed, first_look_at_grant},
        },
        proxy::{Admission, Call, Class, Refusal, Slots},
        time::Mono,
    },
    host::clock,
};

/// The gate that every exchange goes through.
#[derive(Debug)]
pub(super) struct AdmissionQueue {
    state: RefCell<State>,
    /// Signals that calls rely on something else than before.
    changed: (Sender<()>, Receiver<()>),
}

impl Default for AdmissionQueue {
    fn default() -> Self {
        Self {
            state: RefCell::default(),
            changed: bounded(1),
        }
    }
}

#[derive(Debug, Default)]
struct State {
    slots: Slots,
    running_calls: LiteMap<u64, RunningCall>,
    numbers: u64,
}

impl State {
    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }
}

/// One that is inside or waits.
#[derive(Debug)]
struct RunningCall {
    call: Rc<Call>,
    turn: Sender<()>,
    /// Closed when the permission is withdrawn.
    cut: Sender<Infallible>,
    withdrawal: Rc<OnceCell<Withdrawal>>,
    standing: CallTerms,
    /// The right of the control plane's account that the call needs, and when to look at it.
    grant: Option<(Grant, Mono)>,
}

/// Reason why the permission of a running call was withdrawn.
#[derive(Clone, Debug)]
pub(super) struct Withdrawal {
    refusal: Refusal,
    /// The reason in the audit.
    pub(super) why: String,
}

impl RunningCall {
    /// Ends the call where it may not go on. Returns whether it was this that ended it.
    fn apply(&self, verdict: Result<(), Refusal>) -> bool {
        let Err(refusal) = verdict else {
            return false;
        };
        let why = reason(Some(&self.call), &refusal);
        log::info!("proxy: {} is terminated: {why}", self.call.line());
        let is_first = self.withdrawal.set(Withdrawal { refusal, why }).is_ok();
        self.cut.close();
        is_first
    }
}

/// A place inside, or in the queue; given up when it is dropped.
#[derive(Debug)]
pub(super) struct Pass {
    admission: Rc<AdmissionQueue>,
    number: u64,
    class: Class,
    /// Until when it waits for its turn; `None`: it may run.
    waits_until: Option<Mono>,
    turn: Receiver<()>,
    cut: Cut,
}

impl AdmissionQueue {
    /// A place for a call, or the word that there is none.
    pub(super) fn ask(self: &Rc<Self>, call: &Rc<Call>) -> Result<Pass, Denial> {
        let mut state = self.state.borrow_mut();
        let number = state.number();
        let waits_until = match state.slots.ask(number, call.class, clock::now().mono) {
            Admission::Busy => return Err(busy()),
            Admission::Run => None,
            Admission::Wait(until) => Some(until),
        };
        Ok(self.pass(&mut state, (number, call), waits_until))
    }

    /// A place for a call that others have counted: it takes nobody's turn.
    pub(super) fn enter(self: &Rc<Self>, call: &Rc<Call>) -> Pass {
        let mut state = self.state.borrow_mut();
        let number = state.number();
        self.pass(&mut state, (number, call), None)
    }

    fn pass(
        self: &Rc<Self>,
        state: &mut State,
        (number, call): (u64, &Rc<Call>),
        waits_until: Option<Mono>,
    ) -> Pass {
        let (turn, told_turn) = bounded(1);
        let (cut, told_cut) = bounded(1);
        let running_call = RunningCall {
            call: Rc::clone(call),
            turn,
            cut,
            withdrawal: Rc::default(),
            standing: CallTerms::Waiting,
            grant: None,
        };
        let cut = Cut {
            closed: Box::pin(told_cut),
            withdrawal: Rc::clone(&running_call.withdrawal),
        };
        state.running_calls.insert(number, running_call);
        Pass {
            admission: Rc::clone(self),
            number,
            class: call.class,
            waits_until,
            turn: told_turn,
            cut,
        }
    }

    /// Evaluates the terms of every call again under changed rules. Returns how many calls that
    /// ended.
    pub(super) fn review(&self, judge: impl Fn(&Call) -> Result<Terms, Refusal>) -> usize {
        let now = clock::now().mono;
        let count = self.each(|running_call| {
            let terms = judge(&running_call.call)?;
            running_call.standing.revise(terms, now)
        });
        self.wake();
        count
    }

    /// Records what a look at a namespace found. Returns how many calls that ended.
    pub(super) fn observed(
        &self,
        rules: Rules,
        name: &str,
        found: Option<&Observed>,
        seen: Mono,
    ) -> usize {
        self.each(|running_call| running_call.standing.observe(&rules, name, found, seen))
    }

    /// Records whether the control plane's account has a right. Returns how many calls that ended.
    pub(super) fn granted(&self, asked: &Grant, is_granted: bool, account: &str) -> usize {
        let now = clock::now().mono;
        self.each(|running_call| {
            if let Some((grant, due)) = &mut running_call.grant
                && grant == asked
            {
                *due = first_look_at_grant(now);
                if !is_granted {
                    return Err(grant.withdrawn(account));
                }
            }
            Ok(())
        })
    }

    /// Ends calls that rely on what was not confirmed in time. Returns how many those were.
    pub(super) fn expire(&self, now: Mono) -> usize {
        self.each(|running_call| running_call.standing.check_age(now))
    }

    fn each(&self, mut judge: impl FnMut(&mut RunningCall) -> Result<(), Refusal>) -> usize {
        let mut state = self.state.borrow_mut();
        let all = state
            .running_calls
            .iter_mut()
            .map(|(_, running_call)| running_call);
        // One that was told before is on its way.
        let alive = all.filter(|running_call| running_call.withdrawal.get().is_none());
        let cut = alive.map(|running_call| {
            let verdict = judge(running_call);
            running_call.apply(verdict)
        });
        cut.filter(|is_cut| *is_cut).count()
    }

    /// Subjects outside this machine that running calls depend on, and the time of the next look.
    pub(super) fn relied_on(&self) -> LiteMap<Dependency, Mono> {
        let mut all: LiteMap<Dependency, Mono> = LiteMap::new();
        let state = self.state.borrow();
        let alive = state.running_calls.values();
        for running_call in alive.filter(|running_call| running_call.withdrawal.get().is_none()) {
            let grant = running_call.grant.clone();
            let grant = grant.map(|(grant, due)| (Dependency::Grant(grant), due));
            for (subject, due) in running_call.standing.next_look().into_iter().chain(grant) {
                let wanted = all.entry(subject).or_insert(due);
                *wanted = due.min(*wanted);
            }
        }
        all
    }

    /// Moment of the next [`AdmissionQueue::expire`] that may end a call.
    pub(super) fn expires(&self) -> Option<Mono> {
        let state = self.state.borrow();
        let alive = state.running_calls.values();
        let alive = alive.filter(|running_call| running_call.withdrawal.get().is_none());
        alive
            .filter_map(|running_call| running_call.standing.good_until())
            .min()
    }

    /// Waits until calls rely on something else than before.
    pub(super) async fn changed(&self) {
        if self.changed.1.recv().await.is_err() {
            std::future::pending().await
        }
    }

    fn wake(&self) {
        // Full: somebody is on the way to look.
        self.changed.0.try_send(()).ok();
    }

    /// Number of running and waiting calls.
    pub(super) fn count(&self) -> usize {
        self.state.borrow().running_calls.len()
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
        let woken = state
            .running_calls
            .get(&next)
            .map(|next| next.turn.try_send(()));
        if !matches!(woken, Some(Ok(()))) {
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

    /// Keeps the terms on which the call starts, and the right that its account needs.
    pub(super) fn rely(&self, standing: CallTerms, grant: Option<Grant>) {
        let mut state = self.admission.state.borrow_mut();
        let Some(running_call) = state.running_calls.get_mut(&self.number) else {
            return;
        };
        let first_look = first_look_at_grant(clock::now().mono);
        let is_looked_at = standing.next_look().is_some() || grant.is_some();
        running_call.grant = grant.map(|grant| (grant, first_look));
        running_call.standing = standing;
        drop(state);
        if is_looked_at {
            self.admission.wake();
        }
    }

    /// Waits until the permission is withdrawn; for ever where it is not.
    pub(super) async fn cut(&self) -> Denial {
        self.watch_cut().cut().await
    }

    /// The same for somebody else than the holder of the place.
    pub(super) fn watch_cut(&self) -> Cut {
        self.cut.clone()
    }

    /// Lets the next short one in, although this one still goes on: it holds nobody up any more.
    /// Long ones stay counted.
    pub(super) fn step_aside(&self) {
        if self.class == Class::Short {
            self.admission.leave(self.number);
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.admission.leave(self.number);
        let running_call = self
            .admission
            .state
            .borrow_mut()
            .running_calls
            .remove(&self.number);
        drop(running_call);
    }
}

/// Learns that the permission of a call was withdrawn. Any number may listen.
#[derive(Clone, Debug)]
pub(super) struct Cut {
    closed: Pin<Box<Receiver<Infallible>>>,
    withdrawal: Rc<OnceCell<Withdrawal>>,
}

impl Cut {
    /// Returns why the permission was withdrawn, once it was.
    pub(super) fn withdrawal(&self) -> Rc<OnceCell<Withdrawal>> {
        Rc::clone(&self.withdrawal)
    }

    /// Waits until the permission is withdrawn; for ever where the call ends before.
    pub(super) async fn cut(&mut self) -> Denial {
        std::future::poll_fn(|context| self.poll(context)).await
    }

    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Denial> {
        match self.closed.as_mut().poll_next(context) {
            Poll::Ready(_closed) => match self.withdrawal.get() {
                Some(Withdrawal { refusal, .. }) => Poll::Ready(refusal.clone().into()),
                None => Poll::Pending,
            },
            Poll::Pending => Poll::Pending,
        }
    }
}

fn busy() -> Denial {
    Denial::new(
        Cause::Busy,
        "busy: too many requests run already; try again",
    )
}

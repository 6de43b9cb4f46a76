//! Changes under way: begun, superseded, and how far they are.

use std::{cell::Cell, mem, pin::Pin, rc::Rc, time::Duration};

use smol::{
    Task, Timer,
    channel::{Receiver, bounded},
    future::BoxedLocal,
};

use super::{
    Apps,
    accept::Accepted,
    change::{Plan, Start, Work},
    slots::{AT_ONCE, BACK_AT_ONCE, Direction, Slot, is_free},
    verdict::concluded,
    watched::Watched,
};
use crate::{
    core::{
        apps::{App, Owner, RevisionOutcome},
        journal::{Journal, Outcome},
        rollout::{ClusterView, JudgedRollout, POLL_INTERVAL, RolloutVerdict, inputs},
        time::Now,
    },
    error::{Error, Result, Retry},
    net::deadline,
};

/// Changes of one owner that are under way or wait for their turn when a new version is accepted. A
/// rollback and a removal are always accepted: there is one of them for each app.
const CHANGES_MAX: usize = 32;
/// Time that a request waits while an app is being written.
const FREE_WITHIN: Duration = Duration::from_secs(10);
/// Interval at which it looks.
const FREE_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The next change of an app while it is being accepted.
pub(super) struct AppLock {
    _task: Task<()>,
    /// Closed at its end; nothing comes by it.
    end: Receiver<()>,
}

pub(super) struct ActiveChange {
    change: String,
    plan: Plan,
    /// Revision that is judged now; another one than the plan's on the way back.
    revision: u64,
    /// True while another change may take its place: nothing is lost by that.
    may_stop: bool,
    slot: Slot,
    /// State of that revision.
    outcome: RevisionOutcome,
    /// The namespace, while the revision is judged.
    watched: Option<Rc<Watched>>,
    _task: Task<()>,
}

impl ActiveChange {
    const fn waits_for_slot(&self) -> bool {
        matches!(self.slot, Slot::Awaited(..))
    }

    /// True once its own revision was bad, and an earlier one is put back.
    const fn is_rolling_back(&self) -> bool {
        self.revision != self.plan.revision
    }

    /// The revision that is put back and its state; `None`: it is not on the way back.
    pub(super) fn rollback(&self) -> Option<(u64, &RevisionOutcome)> {
        self.is_rolling_back()
            .then_some((self.revision, &self.outcome))
    }

    /// State of its own revision while that is judged; `None`: it is on the way back.
    pub(super) fn rollout(&self) -> Option<(u64, &RevisionOutcome)> {
        (!self.is_rolling_back()).then_some((self.revision, &self.outcome))
    }
}

impl Apps {
    /// Begins the next change of an app: one at a time, because two would be given the same number,
    /// and to its end, because a client that goes away in between would leave the change before it
    /// ended and the new one not begun.
    pub(super) async fn with_app_lock<T: 'static>(
        self: &Rc<Self>,
        app: &str,
        work: impl Future<Output = Result<T>> + 'static,
    ) -> Result<T> {
        self.wait_for_app(app).await?;
        let answer = Rc::new(Cell::new(None));
        let answered = Rc::clone(&answer);
        let answers = async move { answered.set(Some(work.await)) };
        // An error is the end.
        self.hold_app(app, Box::pin(answers)).recv().await.ok();
        answer.take().unwrap_or_else(|| Err(busy(app)))
    }

    /// Does something with an app while no change of it begins. What it returns is closed at the
    /// end.
    pub(super) fn hold_app(self: &Rc<Self>, app: &str, work: BoxedLocal<()>) -> Receiver<()> {
        let (ends, end) = bounded(1);
        let (apps, name) = (Rc::clone(self), app.to_owned());
        let task = self.executor.spawn(async move {
            work.await;
            // Its own task: it ends here.
            drop(apps.app_locks.borrow_mut().remove(&name));
            drop(ends);
        });
        let lock = AppLock {
            _task: task,
            end: end.clone(),
        };
        self.app_locks.borrow_mut().insert(app.to_owned(), lock);
        end
    }

    /// Waits while the next change of an app is being accepted.
    ///
    /// # Errors
    /// The app is not free in time.
    pub(super) async fn wait_for_app(&self, app: &str) -> Result<()> {
        let free = async {
            while let Some(end) = self.being_written(app) {
                // An error is the end.
                end.recv().await.ok();
            }
        };
        deadline(FREE_WITHIN, free)
            .await
            .map_err(|_elapsed| busy(app))
    }

    fn being_written(&self, app: &str) -> Option<Receiver<()>> {
        let locks = self.app_locks.borrow();
        locks.get(app).map(|lock| lock.end.clone())
    }

    pub(super) fn start(self: Rc<Self>, id: &str, plan: Plan, from: Start) -> Result<()> {
        let journal = Journal::new();
        let lock = journal
            .lock(id)
            .map_err(|occupied| Error::new(format!("{} is under way", occupied.by)))?;
        let work = Work {
            apps: Rc::clone(&self),
            lock,
            plan: plan.clone(),
        };
        let active = ActiveChange {
            change: id.to_owned(),
            revision: plan.revision,
            may_stop: false,
            slot: Slot::Unasked,
            outcome: progressing(plan.verb.beginning(plan.revision), self.now()),
            watched: None,
            _task: self.executor.spawn(work.run(from)),
            plan,
        };
        self.active_changes
            .borrow_mut()
            .insert(active.plan.app.clone(), active);
        Ok(())
    }

    /// Refuses a new version of an owner who has too many changes that wait already.
    pub(super) fn has_room(&self, app: &str, owner: Owner) -> Result<()> {
        let active = self.active_changes.borrow();
        let owners = active.values().map(|active| active.plan.owner);
        if active.contains_key(app) || !is_full(owners, owner) {
            return Ok(());
        }
        Err(Error::new(format!("{app} was not changed"))
            .why(format!("{CHANGES_MAX} changes of other apps are under way"))
            .fix("try again when one of them is over: pipeops-agent apps list")
            .retry(Retry::Soon))
    }

    /// Waits until a change has a slot. Until then another one may take its place.
    pub(super) async fn wait_for_slot(&self, plan: &Plan, direction: Direction) {
        if self.try_slot(plan, direction) {
            return;
        }
        let show = |verdict, sentence| {
            let (since, finding) = (self.now().mono, None);
            let judgement = JudgedRollout {
                verdict,
                sentence,
                finding,
                since,
            };
            self.show(&plan.app, &judgement);
        };
        let (written, most) = match direction {
            Direction::Forward => ("it", AT_ONCE),
            Direction::Back => ("it is written, and its verdict", AT_ONCE + BACK_AT_ONCE),
        };
        show(
            RolloutVerdict::Waiting,
            format!("{written} waits for its turn: {most} changes of other apps are under way"),
        );
        while !self.try_slot(plan, direction) {
            Timer::after(POLL_INTERVAL).await;
        }
        let begins = match direction {
            Direction::Forward => plan.verb.beginning(plan.revision),
            Direction::Back => "it is written".to_owned(),
        };
        show(RolloutVerdict::Progressing, begins);
    }

    /// Takes a free slot for a change, or lets it wait for one. Returns whether it has one.
    fn try_slot(&self, plan: &Plan, direction: Direction) -> bool {
        let mut active = self.active_changes.borrow_mut();
        let others = active.values().filter(|it| it.plan.app != plan.app);
        let others: Vec<_> = others.map(|it| (it.plan.owner, it.slot)).collect();
        let Some(own) = active.get_mut(&plan.app) else {
            return true;
        };
        let since = match own.slot {
            Slot::Taken(_) => return true,
            Slot::Awaited(_, since) => since,
            Slot::Unasked => self.now().mono,
        };
        let is_free = is_free(plan.owner, (direction, since), &others);
        own.may_stop = !is_free;
        own.slot = if is_free {
            Slot::Taken(direction)
        } else {
            Slot::Awaited(direction, since)
        };
        is_free
    }

    /// Releases the slot of a change for another one.
    pub(super) fn release_slot(&self, app: &str) {
        self.with_active(app, |active| active.slot = Slot::Unasked);
    }

    /// Returns whether another change of an owner waits for a slot.
    pub(super) fn is_slot_wanted(&self, owner: Owner) -> bool {
        let active = self.active_changes.borrow();
        let mut of_owner = active.values().filter(|it| it.plan.owner == owner);
        of_owner.any(ActiveChange::waits_for_slot)
    }

    /// Begins a change in the place of the one that is under way, if that only waits for a verdict:
    /// it ends once the new one is accepted, and goes on where that is not.
    pub(super) async fn supersede(
        self: Rc<Self>,
        app: &str,
        why: &str,
        acceptance: Pin<Box<dyn Future<Output = Result<Accepted>> + '_>>,
    ) -> Result<Accepted> {
        let before = self.stop(app).await?;
        let accepted = match (acceptance.await, before) {
            (Ok(accepted), before) => {
                if let Some((id, _)) = before {
                    self.end_stopped(&id, why).await;
                }
                accepted
            }
            (Err(error), Some((id, plan))) => {
                self.start(&id, plan, Start::Again)?;
                return Err(error);
            }
            (Err(error), None) => return Err(error),
        };
        let plan = accepted.plan.clone();
        self.start(&accepted.id, plan, Start::New)?;
        Ok(accepted)
    }

    /// Ends a change that was stopped, and whose place another one has.
    pub(super) async fn end_stopped(&self, id: &str, why: &str) {
        if let Err(error) = self.finish(id, Outcome::Failed, why).await {
            // The record says it: the next start ends it.
            log::warn!("how the change {id} ended is not on disk: {error}");
        }
    }

    /// Waits until something is no longer so.
    ///
    /// # Errors
    /// It is still so after [`FREE_WITHIN`].
    async fn wait_while(&self, app: &str, is_so: impl Fn(&Self) -> bool) -> Result<()> {
        let over = async {
            while is_so(self) {
                Timer::after(FREE_POLL_INTERVAL).await;
            }
        };
        deadline(FREE_WITHIN, over)
            .await
            .map_err(|_elapsed| busy(app))
    }

    /// Stops the change of an app that is under way, once it only waits for a verdict. In the
    /// journal it goes on.
    pub(super) async fn stop(&self, app: &str) -> Result<Option<(String, Plan)>> {
        self.wait_while(app, |apps| {
            let active = apps.active_changes.borrow();
            active.get(app).is_some_and(|active| !active.may_stop)
        })
        .await?;
        let stopped = self.active_changes.borrow_mut().remove(app);
        // With its task it stops to look.
        Ok(stopped.map(|active| (active.change, active.plan)))
    }

    /// Takes the change of an app that is under way off the list, and returns its id.
    pub(super) fn take_active(&self, app: &str) -> Option<String> {
        let active = self.active_changes.borrow_mut().remove(app);
        active.map(|active| active.change)
    }

    /// The state of a change; `None`: it is over.
    pub(super) fn under_way(&self, app: &str, change: &str) -> Option<RevisionOutcome> {
        let active = self.active_changes.borrow();
        let active = active.get(app).filter(|active| active.change == change);
        active.map(|active| active.outcome.clone())
    }

    /// Returns whether a change is between reading and writing the record of an app.
    fn is_writing(&self, app: &str) -> bool {
        let active = self.active_changes.borrow();
        active
            .get(app)
            .is_some_and(|active| active.watched.is_none() && !active.waits_for_slot())
    }

    /// Waits until no change holds the record of an app.
    ///
    /// # Errors
    /// One still does after some time.
    pub(super) async fn wait_for_writes(&self, app: &str) -> Result<()> {
        self.wait_for_app(app).await?;
        self.wait_while(app, |apps| apps.is_writing(app)).await
    }

    fn with_active(&self, app: &str, change: impl FnOnce(&mut ActiveChange)) {
        if let Some(active) = self.active_changes.borrow_mut().get_mut(app) {
            change(active);
        }
    }

    pub(super) fn set_stoppable(&self, app: &str, may_stop: bool) {
        self.with_active(app, |active| active.may_stop = may_stop);
    }

    pub(super) fn set_watched(&self, app: &str, watched: &Rc<Watched>) {
        self.with_active(app, |active| active.watched = Some(Rc::clone(watched)));
    }

    /// Keeps what the verdict on a change read, and ends its watches.
    pub(super) fn end_watch(&self, app: &str) {
        let inputs = self.inputs(app).unwrap_or_default();
        self.with_active(app, |active| {
            active.watched = None;
            active.outcome.inputs = inputs;
        });
    }

    /// Inputs of the verdict on the revision of a change; `None`: it is not judged any more.
    pub(super) fn inputs(&self, app: &str) -> Option<Vec<String>> {
        let active = self.active_changes.borrow();
        let active = active.get(app).filter(|it| !it.is_rolling_back())?;
        match &active.watched {
            Some(watched) => watched.look(|view| inputs(&watched.scope, view)),
            None => Some(active.outcome.inputs.clone()),
        }
    }

    /// Looks at what runs by the watches of a change that judges it; `None`: there are none.
    pub(super) fn look_by_watches<T>(
        &self,
        app: &App,
        look: impl FnOnce(ClusterView<'_>) -> T,
    ) -> Option<T> {
        let active = self.active_changes.borrow();
        let active = active.get(&app.name)?;
        let watched = active.watched.as_ref()?;
        if active.revision != app.running {
            return None;
        }
        watched.look(look)
    }

    /// Notes that a change puts an earlier revision back, which is judged from now on.
    pub(super) fn turn_back(&self, app: &str, to: u64) {
        let begins = progressing(format!("revision {to} is being written"), self.now());
        self.with_active(app, |active| {
            active.revision = to;
            active.outcome = begins;
        });
    }

    pub(super) fn show(&self, app: &str, judgement: &JudgedRollout) {
        let outcome = concluded(judgement, self.now());
        self.with_active(app, |active| {
            let is_same = (&active.outcome.verdict, &active.outcome.cause)
                == (&outcome.verdict, &outcome.cause);
            let since = if is_same {
                active.outcome.since
            } else {
                outcome.since
            };
            active.outcome = RevisionOutcome {
                since,
                inputs: mem::take(&mut active.outcome.inputs),
                ..outcome
            };
        });
    }

    pub(super) fn show_blind(&self, app: &str, error: &Error) {
        let judgement = JudgedRollout {
            verdict: RolloutVerdict::Blind,
            sentence: error.sentence(),
            finding: None,
            since: self.now().mono,
        };
        self.show(app, &judgement);
    }

    /// Forgets a change that is over.
    pub(super) fn forget_active(&self, app: &str, change: &str) {
        let mut active = self.active_changes.borrow_mut();
        if active
            .get(app)
            .is_some_and(|active| active.change == change)
        {
            // Its task is the one that calls this: it ends by itself.
            drop(active.remove(app));
            self.drift.wake();
            self.pins.wake();
        }
    }
}

/// The state of a revision of which nothing was seen yet.
fn progressing(sentence: String, now: Now) -> RevisionOutcome {
    RevisionOutcome {
        verdict: Some(RolloutVerdict::Progressing),
        sentence,
        since: now.wall,
        ..RevisionOutcome::default()
    }
}

/// Returns whether an owner has as many changes as there may be, by the owners of all.
fn is_full(all: impl Iterator<Item = Owner>, owner: Owner) -> bool {
    all.filter(|other| *other == owner).count() >= CHANGES_MAX
}

/// The refusal to begin a change while another one is being written.
fn busy(app: &str) -> Error {
    Error::new(format!("{app} is being written right now"))
        .fix("try again in a few seconds")
        .retry(Retry::Soon)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_control_plane_takes_no_place_of_the_machine() {
        let many = || std::iter::repeat_n(Owner::ControlPlane, CHANGES_MAX);
        assert!(is_full(many(), Owner::ControlPlane));
        assert!(!is_full(many(), Owner::Machine));
    }
}

//! Charge of the apps: of several agents that serve one cluster the one that holds the Lease
//! changes and judges them. It goes on with what its own journal and the records have under way;
//! the others wait.

use std::{
    collections::{BTreeSet, VecDeque},
    rc::Rc,
    time::Duration,
};

use smol::{Timer, future::FutureExt as _};

use super::{
    Apps,
    change::{Plan, Start, Verb, is_ours},
    ledger::AppRecord,
};
use crate::{
    core::{
        apps::{App, Stage},
        backoff::Backoff,
        journal::{Change, Outcome},
        order::GatherExt as _,
        rollout::RolloutVerdict,
    },
    error::{Error, Result, Retry},
};

/// Time between two tries to read what is under way, and to go on with it.
const RETRY_FIRST: Duration = Duration::from_secs(2);
const RETRY_LONGEST: Duration = Duration::from_secs(30);
/// Time that a request waits until the agent knows what is under way.
const READY_WITHIN: Duration = Duration::from_secs(5);
/// Changes of our journal among which one of a record is looked for.
const RECENT: u32 = 64;
/// Reason for the end of a change without a step that is in no record.
const CUT_OFF: &str = "it was cut off before it began, and nothing of it was done";
const READY_EVERY: Duration = Duration::from_millis(100);

impl Apps {
    /// Carries out changes while this agent is the one that does.
    #[expect(clippy::infinite_loop, reason = "it ends when its task is dropped")]
    pub async fn lead(self: Rc<Self>) {
        loop {
            self.until(Self::may_write).await;
            let found = async { Some(self.all_under_way().await) };
            let refused = async {
                self.until(|apps| !apps.may_write()).await;
                None
            };
            if let Some((changes, apps)) = found.or(refused).await {
                self.resume(changes, &apps).await;
                self.is_ready.set(true);
                self.drift.wake();
                self.pins.wake();
                self.until(|apps| !apps.may_write()).await;
            }
            self.stand_by();
        }
    }

    /// Waits for a permission or its end.
    async fn until(&self, is_so: fn(&Self) -> bool) {
        while !is_so(self) {
            self.lease_gate.changed(self.now().mono).await;
        }
    }

    fn may_write(&self) -> bool {
        self.lease_gate.is_open(self.now().mono)
    }

    /// Returns whether this agent is the one that changes apps.
    pub(super) fn is_leader(&self) -> bool {
        self.is_ready.get() && self.may_write()
    }

    /// Reason why another agent changes and judges apps; `None`: this one does.
    pub(super) fn stands_by(&self) -> Option<String> {
        (!self.may_write()).then(|| self.lease_gate.why())
    }

    /// Refuses a request that another agent carries out.
    pub(super) async fn require_leadership(&self) -> Result<()> {
        let deadline = self.now().mono.after(READY_WITHIN);
        loop {
            let checked = self.lease_gate.check(self.now().mono);
            checked.map_err(|error| error.within("nothing was changed"))?;
            if self.is_ready.get() {
                return Ok(());
            }
            if self.now().mono >= deadline {
                return Err(Error::new("nothing was changed")
                    .why("the agent does not know yet what is under way, because the records of the apps cannot be read")
                    .fix("pipeops-agent doctor")
                    .retry(Retry::Soon));
            }
            Timer::after(READY_EVERY).await;
        }
    }

    /// Ends the tasks of changes, as a power cut would: what they did stands in the records.
    fn stand_by(&self) {
        self.is_ready.set(false);
        self.forget_failures();
        let active = self.active_changes.take();
        let locks = self.app_locks.take();
        for app in active.keys() {
            log::info!(
                "app {app}: another agent goes on: {}",
                self.lease_gate.why()
            );
        }
        drop((active, locks));
        self.stop_drift();
    }

    /// Reads what the journal and the records have under way, for as long as it takes.
    async fn all_under_way(&self) -> (Vec<Change>, Vec<App>) {
        loop {
            match (
                self.store.unfinished_changes().await,
                self.ledger().list().await,
            ) {
                (Ok(mut changes), Ok(apps)) => {
                    changes.retain(|change| is_ours(&change.intent.kind));
                    return (changes, apps);
                }
                (Err(failure), _) => log::debug!("unfinished changes of apps: {failure}"),
                (_, Err(error)) => log::debug!("records of apps: {error}"),
            }
            Timer::after(RETRY_FIRST).await;
        }
    }

    /// Goes on with what a restart, a power cut or the end of another agent interrupted. No
    /// request about an app is accepted until it goes on.
    async fn resume(self: &Rc<Self>, changes: Vec<Change>, apps: &[App]) {
        // Those that another agent removed meanwhile are not known any more.
        self.known.take();
        for app in apps {
            self.remember(app);
        }
        let mut plans = Vec::new();
        for change in changes {
            match Plan::read(&change.intent.body) {
                Some(plan) => plans.push((change, plan)),
                None => self.ends_without_plan(&change).await,
            }
        }
        let open = apps.iter().filter(|app| app.under_way().is_some());
        let open = open.map(|app| &app.name);
        let names: BTreeSet<_> = open.chain(plans.iter().map(|(_, plan)| &plan.app)).gather();
        for app in names {
            let of_app = plans.iter().filter(|(_, plan)| plan.app == *app);
            let (of_app, apps, app) = (of_app.cloned().collect(), Rc::clone(self), app.clone());
            self.hold_app(
                &app.clone(),
                Box::pin(async move { apps.goes_on(&app, of_app).await }),
            );
        }
    }

    /// Goes on with what is under way of an app: with our own changes, then with the one of another
    /// agent. Each is tried for as long as trying again can help.
    async fn goes_on(self: Rc<Self>, app: &str, mut own: VecDeque<(Change, Plan)>) {
        let mut backoff = Backoff::new(RETRY_FIRST, RETRY_LONGEST);
        let mut begun = None;
        loop {
            let went_on = match own.front() {
                Some((change, plan)) => self.go_on(change, plan).await,
                None => self.take_over(app, &mut begun).await,
            };
            let mut is_over = true;
            if let Err(error) = went_on {
                let why = error.sentence();
                log::warn!("app {app} does not go on with what was under way: {why}");
                is_over = error.retry == Retry::Never;
            }
            if !is_over {
                Timer::after(backoff.next(fastrand::u16(..))).await;
            } else if own.pop_front().is_none() {
                return;
            }
        }
    }

    /// Ends a change of our journal of which there is nothing to go on with.
    async fn ends_without_plan(&self, change: &Change) {
        let ended = if change.intent.body.is_empty() {
            let why = "it was carried out";
            self.finish(&change.id, Outcome::Done, why).await
        } else {
            let why = "it was written by another version of this program and is left alone";
            Err(Error::new(why))
        };
        if let Err(error) = ended {
            log::warn!("change {} of an app: {}", change.id, error.sentence());
        }
    }

    /// Goes on with a change of our journal, unless the record says that it is over.
    async fn go_on(self: &Rc<Self>, change: &Change, plan: &Plan) -> Result<()> {
        let record = self.record(&plan.app).await?.map(|read| read.app);
        let last = record
            .as_ref()
            .and_then(|app| Some((app, app.change.as_ref()?)));
        match last {
            Some((_, last)) if last.id != change.id => {
                let why = if change.steps.is_empty() {
                    CUT_OFF
                } else {
                    "another change took its place"
                };
                return self.finish(&change.id, Outcome::Failed, why).await;
            }
            Some((app, last)) if last.stage == Stage::Over => {
                let (outcome, why) = outcome_of(app, plan);
                return self.finish(&change.id, outcome, &why).await;
            }
            None if plan.verb != Verb::Remove && change.steps.is_empty() => {
                return self.finish(&change.id, Outcome::Failed, CUT_OFF).await;
            }
            Some(_) | None => {}
        }
        let stage = last.map_or(Stage::Write, |(_, last)| last.stage);
        // Two are left where a version before this one was killed between them.
        if let Some(older) = self.take_active(&plan.app) {
            let why = "a later change took its place";
            self.finish(&older, Outcome::Failed, why).await?;
        }
        log::info!(
            "app {}: going on with {} of revision {}",
            plan.app,
            plan.verb.as_str(),
            plan.revision
        );
        let from = Start::Known(Box::new(change.clone()), stage);
        Rc::clone(self).start(&change.id, plan.clone(), from)
    }

    /// Goes on with a change of another agent, as one of our own. `begun` is its id in our journal,
    /// from the first try on.
    async fn take_over(self: &Rc<Self>, app: &str, begun: &mut Option<String>) -> Result<()> {
        if self.active_changes.borrow().contains_key(app) {
            return Ok(());
        }
        let Some(mut read) = self.record(app).await? else {
            return Ok(());
        };
        let Some(last) = read.app.under_way().cloned() else {
            return Ok(());
        };
        let plan = Plan::read(&last.body).filter(|plan| plan.app == app);
        let plan = plan.ok_or_else(|| {
            Error::new("the unfinished change was written by another version of this program").fix(
                format!("deploy it again: sudo pipeops-agent apps apply --app {app} -f FILE"),
            )
        })?;
        // A write whose answer was lost has noted it already.
        if begun.as_ref() != Some(&last.id) {
            if self.has_ended_here(&last.id).await? {
                // Whoever asked for it heard that it is over.
                read.app.set_stage(&last.id, Stage::Over);
                return self.note_last(&mut read).await;
            }
            if begun.is_none() {
                *begun = Some(self.begin(&plan, &plan.requester(&last.by)).await?);
            }
            if let (Some(id), Some(last)) = (&begun, &mut read.app.change) {
                last.id.clone_from(id);
            }
            self.note_last(&mut read).await?;
        }
        log::info!(
            "app {app}: taking over {} of revision {}",
            plan.verb.as_str(),
            plan.revision
        );
        let stage = match plan.verb {
            Verb::Apply | Verb::Rollback => last.stage,
            Verb::Remove => Stage::Write,
        };
        let id = begun.take().unwrap_or(last.id);
        Rc::clone(self).start(&id, plan, Start::TakenOver(stage))
    }

    /// Writes a record. What refuses it may let it pass later, and nobody else goes on with the
    /// change.
    async fn note_last(&self, read: &mut AppRecord) -> Result<()> {
        let written = self.ledger().write(read).await;
        written.map_err(|error| error.retry(Retry::Later))?;
        self.remember(&read.app);
        Ok(())
    }

    /// Returns whether our journal has the end of a change.
    async fn has_ended_here(&self, id: &str) -> Result<bool> {
        let changes = self.store.recent_changes(RECENT).await?;
        let found = changes.iter().find(|change| change.id == id);
        Ok(found.is_some_and(|change| change.ended.is_some()))
    }
}

/// Outcome of a change that is over by the record of its app: another agent may have ended it, or
/// the journal have missed its end.
fn outcome_of(app: &App, plan: &Plan) -> (Outcome, String) {
    let outcome = app.revision(plan.revision).map(|it| &it.outcome);
    let sentence = outcome.map_or("", |outcome| &outcome.sentence);
    let is_good = outcome.is_some_and(|it| it.verdict == Some(RolloutVerdict::Good));
    if plan.verb == Verb::Remove {
        (Outcome::Failed, "it was not removed".to_owned())
    } else if is_good && app.running == plan.revision {
        (Outcome::Done, plan.is_good(sentence))
    } else if plan.back_to != 0 && app.running == plan.back_to {
        (Outcome::Undone, plan.rolled_back(sentence))
    } else {
        (Outcome::Failed, sentence.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::apps::{Owner, Revision};

    #[test]
    fn a_change_that_is_over_ended_as_its_record_says() {
        let plan = |verb, revision, back_to| Plan {
            app: "web".to_owned(),
            owner: Owner::Machine,
            command: None,
            verb,
            revision,
            before: back_to,
            back_to,
        };
        let ended = |running, verdict, plan: &Plan| {
            let mut app = App {
                running,
                ..App::default()
            };
            for number in 1..=2 {
                app.revisions.push(Revision {
                    number,
                    ..Revision::default()
                });
            }
            app.revision_mut(plan.revision).unwrap().outcome.verdict = verdict;
            outcome_of(&app, plan).0
        };
        let apply = plan(Verb::Apply, 2, 1);
        let (good, bad) = (Some(RolloutVerdict::Good), Some(RolloutVerdict::Bad));
        assert_eq!(ended(2, good, &apply), Outcome::Done);
        assert_eq!(ended(1, bad, &apply), Outcome::Undone);
        // Automatic rollback is off, or it was cancelled before it was judged.
        assert_eq!(ended(2, bad, &apply), Outcome::Failed);
        assert_eq!(ended(2, None, &plan(Verb::Apply, 2, 0)), Outcome::Failed);
        // Somebody went back to a version that was good once, and it was not written.
        let back = plan(Verb::Rollback, 1, 0);
        assert_eq!(ended(1, good, &back), Outcome::Done);
        assert_eq!(ended(2, good, &back), Outcome::Failed);
        assert_eq!(ended(2, good, &plan(Verb::Remove, 2, 0)), Outcome::Failed);
    }
}

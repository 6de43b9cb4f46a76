//! One change of an app, step by step: write, judge, keep or go back. The journal has each step
//! before its act, so that the next start goes on where a power cut ended it.

mod judge;
mod last_lines;
mod plan;
mod remove;
mod retry;
mod version;
mod write;

use std::rc::Rc;

pub(super) use self::plan::{Plan, Verb, is_ours};
use self::{
    judge::{Part, Proof},
    retry::{RETRY_FIRST, RETRY_LONGEST},
};
use super::{
    Apps,
    cluster::Cluster,
    fail_points,
    ledger::{AppRecord, api_error},
    slots::Direction,
    verdict::{concluded, refusal, unjudged},
};
use crate::{
    core::{
        apps::{self, LastChange, Stage},
        backoff::Backoff,
        journal::{Change, ChangeEnd, ChangeLock, ChangeStep, Next, Outcome, StepState},
        rollout::{Cause, JudgedRollout, RolloutVerdict},
    },
    error::{Error, Result, Retry},
    store::Failure,
};

/// Steps of a change.
const WRITE: u32 = 0;
const JUDGE: u32 = 1;
const PRUNE: u32 = 2;
const STEPS: [(u32, &str); 3] = [(WRITE, "write"), (JUDGE, "judge"), (PRUNE, "prune")];

/// Point from which a change is carried out.
pub(super) enum Start {
    New,
    /// The one in our journal, and its progress in the record.
    Known(Box<Change>, Stage),
    /// The one in our journal that was stopped for another one, which was not accepted.
    Again,
    /// The one in the record: another agent began it.
    TakenOver(Stage),
}

/// Part of a change that a restart, or the end of another agent, interrupted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Resumed {
    Yes,
    No,
}

/// A change that is being carried out.
pub(super) struct Work {
    pub(super) apps: Rc<Apps>,
    pub(super) lock: ChangeLock,
    pub(super) plan: Plan,
}

impl Work {
    /// Carries the change out, from where it is.
    pub(super) async fn run(self, from: Start) {
        let next = match from {
            Start::New => Next::Forward(WRITE),
            Start::Known(change, stage) => match change.next() {
                // The record is written right after an act, the journal after that.
                Next::Forward(_) if stage != Stage::Write => self.skip_to(stage).await,
                next @ (Next::Forward(_) | Next::Undo(_) | Next::AllUndone | Next::Over) => next,
            },
            Start::Again => self.stopped().await,
            Start::TakenOver(stage) => self.skip_to(stage).await,
        };
        let ended = match next {
            Next::Over => return,
            Next::AllUndone => Ok((Outcome::Undone, self.rolled_back())),
            Next::Undo(_) => {
                self.go_back(&self.known_outcome().sentence, Resumed::Yes)
                    .await
            }
            Next::Forward(step) if self.plan.verb == Verb::Remove => self.remove(step).await,
            Next::Forward(step) => self.go_forward(step).await,
        };
        let ending = match ended {
            Ok((Outcome::Done, why)) => ChangeEnd::new(Outcome::Done).why(why),
            Ok((outcome, why)) => ChangeEnd::new(outcome).why(why).fix(self.known_fix()),
            Err(error) => ChangeEnd::new(Outcome::Failed)
                .why(error.sentence())
                .fix(error.fix),
        };
        let failed = (ending.outcome == Outcome::Failed).then(|| ending.clone());
        let now = self.apps.now().wall;
        log::info!(
            "app {}: {} of revision {} is {}: {}",
            self.plan.app,
            self.plan.verb.as_str(),
            self.plan.revision,
            ending.outcome.as_str(),
            ending.why.as_deref().unwrap_or_default()
        );
        let finished = self.apps.store().finish_change(&self.lock, ending, now);
        if let Err(failure) = finished.await {
            log::warn!(
                "how the change {} ended is not on disk: {failure}",
                self.lock.id()
            );
        }
        fail_points::after("journal: end");
        // The journal comes first: a record that says that it is over speaks of a change that
        // worked, or was rolled back.
        if let Some(failed) = failed
            && let Err(error) = self.close(&failed).await
        {
            log::warn!(
                "app {}: its record does not say that its change is over: {}",
                self.plan.app,
                error.sentence()
            );
        }
        self.apps.forget_active(&self.plan.app, self.lock.id());
        (self.apps.has_ended)();
    }

    /// The fix that was found for the revision of this change.
    fn known_fix(&self) -> Option<String> {
        let fix = self.known_outcome().fix;
        (!fix.is_empty()).then_some(fix)
    }

    /// Result of the revision of this change, as far as it is known.
    fn known_outcome(&self) -> apps::RevisionOutcome {
        let known = self.apps.known.borrow();
        let app = known.get(&self.plan.app);
        let revision = app.and_then(|app| app.revision(self.plan.revision));
        revision
            .map(|revision| revision.outcome.clone())
            .unwrap_or_default()
    }

    fn rolled_back(&self) -> String {
        self.plan.rolled_back(&self.known_outcome().sentence)
    }

    /// The step at which the change was stopped. The journal is asked until it answers.
    async fn stopped(&self) -> Next {
        let mut backoff = Backoff::new(RETRY_FIRST, RETRY_LONGEST);
        loop {
            match self.apps.store().unfinished_changes().await {
                Ok(changes) => {
                    let own = changes.iter().find(|change| change.id == self.lock.id());
                    return own.map_or(Next::Over, Change::next);
                }
                Err(failure) => {
                    // It is no answer of the API server, which could be about rights.
                    let error = Error::from(failure).retry(Retry::Soon);
                    self.waits(&error, &mut backoff).await;
                }
            }
        }
    }

    /// Notes the steps of a change that another agent did, and returns what is next.
    async fn skip_to(&self, stage: Stage) -> Next {
        let (done, next) = match stage {
            Stage::Write => (&STEPS[..0], Next::Forward(WRITE)),
            Stage::Judge => (&STEPS[..1], Next::Forward(JUDGE)),
            Stage::Prune => (&STEPS[..2], Next::Forward(PRUNE)),
            Stage::Back => (&STEPS[..1], Next::Undo(JUDGE)),
            Stage::Over => (&STEPS[..0], Next::Over),
        };
        for (position, name) in done {
            self.intend(*position, name).await;
            self.done(*position).await;
        }
        if stage == Stage::Back {
            self.intend(JUDGE, "judge").await;
            self.advance(JUDGE, StepState::Failed, None).await;
        }
        next
    }

    /// Notes in the record that the change is over, and why where its version was never judged: no
    /// other agent goes on with it.
    async fn close(&self, ending: &ChangeEnd) -> Result<()> {
        self.apps.set_stoppable(&self.plan.app, true);
        let mut read = self.record().await?;
        let is_open = |last: &LastChange| last.id == self.lock.id();
        if read.app.under_way().is_some_and(is_open) {
            read.app.set_stage(self.lock.id(), Stage::Over);
            let cause = match self.is_still_allowed(&read).await {
                Ok(()) => None,
                Err(_refusal) => Some(Cause::AccessRefused),
            };
            let revision = read.app.revision_mut(self.plan.revision);
            if let Some(revision) = revision.filter(|it| it.outcome.verdict.is_none()) {
                revision.outcome = concluded(&unjudged(ending, cause), self.apps.now());
            }
            self.keep(&mut read).await?;
        }
        Ok(())
    }

    fn cluster(&self) -> Cluster<'_> {
        self.apps.cluster(self.plan.owner)
    }

    async fn go_forward(&self, step: u32) -> Result<(Outcome, String)> {
        if (step, self.plan.verb) == (WRITE, Verb::Apply) {
            self.apps
                .wait_for_slot(&self.plan, Direction::Forward)
                .await;
        }
        let version = self
            .version(
                self.plan.revision,
                self.plan.before,
                self.plan.verb == Verb::Rollback,
            )
            .await?;
        if step == WRITE {
            self.intend(WRITE, "write").await;
            let failed = match self.write(&version, self.plan.revision).await {
                Ok(failed) => failed,
                Err(error) => {
                    self.is_still_allowed(&self.record().await?).await?;
                    Some(refusal(&error))
                }
            };
            if let Some(failed) = failed {
                return self.failed(WRITE, &failed).await;
            }
            self.done(WRITE).await;
        }
        let mut verdict = self.known_outcome().sentence;
        if step <= JUDGE {
            self.intend(JUDGE, "judge").await;
            let (judged, proof) = self.judge(&version, Part::Whole).await?;
            if judged.verdict == RolloutVerdict::Bad {
                return self.failed(JUDGE, &judged).await;
            }
            verdict.clone_from(&judged.sentence);
            self.conclude(self.plan.revision, &judged, Some(proof))
                .await?;
            self.done(JUDGE).await;
        }
        self.intend(PRUNE, "prune").await;
        self.prune(&version).await?;
        self.done(PRUNE).await;
        Ok((Outcome::Done, self.plan.is_good(&verdict)))
    }

    /// The version does not work: its evidence is kept first, then the last good one is put back.
    async fn failed(&self, step: u32, judged: &JudgedRollout) -> Result<(Outcome, String)> {
        self.conclude(self.plan.revision, judged, None).await?;
        let detail = judged
            .finding
            .as_ref()
            .map(|found| format!("{}: {}", found.cause.id(), judged.sentence));
        self.advance(step, StepState::Failed, detail).await;
        self.go_back(&judged.sentence, Resumed::No).await
    }

    /// Judges whether the owner may still change the app: the level of access may have been lowered
    /// since the change began. That says nothing against its version.
    async fn is_still_allowed(&self, read: &AppRecord) -> Result<()> {
        match self.apps.may_change(read).await {
            Err(refusal) if refusal.retry == Retry::Never => Err(refusal),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    async fn go_back(&self, why: &str, resumed: Resumed) -> Result<(Outcome, String)> {
        let (bad, good) = (self.plan.revision, self.plan.back_to);
        if good == 0 || good == bad {
            return Ok((
                Outcome::Failed,
                format!("revision {bad} does not work and stays for inspection: {why}"),
            ));
        }
        let app = self.record().await?.app;
        // Where it was written before an interruption, nothing is left to be decided.
        let is_written = resumed == Resumed::Yes && app.running == good;
        if let Some(reason) = app.no_rollback_reason().filter(|_| !is_written) {
            return Ok((
                Outcome::Failed,
                format!(
                    "revision {bad} does not work and stays, because {reason}: {why}; sudo pipeops-agent apps rollback {}",
                    self.plan.app
                ),
            ));
        }
        let version = self.version(good, bad, true).await?;
        let failed = self.version(bad, good, false).await?;
        let stays = failed.stays_before(&version, &app);
        if let Some(reason) = stays.filter(|_| !is_written) {
            let fix = format!("sudo pipeops-agent apps rollback {}", self.plan.app);
            return Ok((
                Outcome::Failed,
                format!(
                    "revision {bad} does not work: {why}; it is not rolled back automatically, because {reason}: {fix}"
                ),
            ));
        }
        log::warn!(
            "app {}: revision {bad} does not work, going back to {good}: {why}",
            self.plan.app
        );
        self.apps.turn_back(&self.plan.app, good);
        if let Err(error) = self.write(&version, good).await {
            self.still_runs(bad).await;
            return Ok((
                Outcome::Failed,
                format!(
                    "revision {bad} does not work: {why}; revision {good} cannot be restored: {}",
                    error.sentence()
                ),
            ));
        }
        let (judged, _) = self.judge(&version, Part::Whole).await?;
        if judged.verdict == RolloutVerdict::Bad {
            return Ok((
                Outcome::Failed,
                format!(
                    "revision {bad} does not work: {why}; revision {good}, which was good, does not work either: {}",
                    judged.sentence
                ),
            ));
        }
        self.prune(&version).await?;
        for step in [JUDGE, WRITE] {
            self.advance(step, StepState::Undone, None).await;
        }
        Ok((Outcome::Undone, self.plan.rolled_back(why)))
    }

    /// Notes that this revision still runs, because no other one could be put back: drift of that
    /// one would be repaired.
    async fn still_runs(&self, number: u64) {
        let noted = async {
            let mut read = self.record().await?;
            read.app.running = number;
            self.keep(&mut read).await
        };
        if let Err(error) = noted.await {
            log::warn!("app {}: {}", self.plan.app, error.sentence());
        }
    }

    /// Notes the result of a revision. One that is good has its proof.
    async fn conclude(
        &self,
        number: u64,
        judged: &JudgedRollout,
        good_with: Option<Proof>,
    ) -> Result<()> {
        let mut read = self.record().await?;
        let mut stage = Stage::Back;
        let mut inputs = Vec::new();
        if good_with.is_some() {
            read.app.mark_good(number);
            stage = Stage::Prune;
        } else {
            inputs = self.apps.inputs(&self.plan.app).unwrap_or_default();
        }
        // Only those of the last verdict are asked for, and the record has a limit.
        for revision in &mut read.app.revisions {
            revision.outcome.inputs.clear();
        }
        if let Some(revision) = read.app.revision_mut(number) {
            revision.outcome = concluded(judged, self.apps.now());
            revision.outcome.inputs = inputs;
            let proof = good_with.unwrap_or_default();
            revision.took_s = proof.took_s;
            revision.overlay.keep_digests(proof.digests);
        }
        read.app.set_stage(self.lock.id(), stage);
        self.keep(&mut read).await
    }

    async fn record(&self) -> Result<AppRecord> {
        let read = self.known_record().await?;
        read.ok_or_else(|| {
            Error::new(format!("the record of the app {} is gone", self.plan.app))
                .fix("deploy it again: sudo pipeops-agent apps apply")
        })
    }

    /// The record of the app; `None`: it is gone.
    async fn known_record(&self) -> Result<Option<AppRecord>> {
        let (ledger, app) = (self.apps.ledger(), &self.plan.app);
        self.with_retries(async || ledger.read(app).await.map_err(api_error))
            .await
    }

    async fn keep(&self, read: &mut AppRecord) -> Result<()> {
        let ledger = self.apps.ledger();
        self.with_retries(async || ledger.write_for(self.lock.id(), read).await)
            .await?;
        self.apps.remember(&read.app);
        Ok(())
    }

    async fn intend(&self, position: u32, name: &str) {
        let step = ChangeStep {
            position,
            name: name.to_owned(),
            state: StepState::Intended,
            undo: Some(self.plan.back_to.to_string()),
            detail: None,
        };
        let now = self.apps.now().wall;
        let intended = self.apps.store().intend_step(&self.lock, step, now).await;
        fail_points::after("journal: intent of a step");
        self.noted(position, intended);
    }

    async fn done(&self, position: u32) {
        for state in [StepState::Acted, StepState::Verified, StepState::Done] {
            self.advance(position, state, None).await;
        }
    }

    async fn advance(&self, position: u32, state: StepState, detail: Option<String>) {
        let now = self.apps.now().wall;
        let step = (position, state);
        let store = self.apps.store();
        let advanced = store.advance_step(&self.lock, step, detail, now).await;
        fail_points::after("journal: progress of a step");
        self.noted(position, advanced);
    }

    /// Takes the result of noting a step. A disk that fails does not end the change: its record has
    /// the stage before the journal has the step, and the next start goes on by that.
    fn noted(&self, position: u32, noted: std::result::Result<(), Failure>) {
        match noted {
            Ok(()) => {}
            // After a restart it may be further already, and one that was never begun has nothing
            // to be taken back.
            Err(Failure::Conflict(why)) => log::debug!("step {position}: {why}"),
            Err(failure) => log::warn!(
                "app {}: step {position} of its change is not on disk: {failure}",
                self.plan.app
            ),
        }
    }
}

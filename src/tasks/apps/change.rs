//! One change of an app, step by step: write, judge, keep or go back. The journal has each step before its act, so that the next start
//! goes on where a power cut ended it.

use std::{rc::Rc, time::Duration};

use serde_json::{Value, json};
use smol::Timer;

use super::{
    Apps,
    cluster::{Cluster, Targets, key},
    ledger::Read,
    watched::Watched,
};
use crate::{
    core::{
        apps::{App, Entry, Manifest, Outcome as Concluded},
        backoff::Backoff,
        journal::{Change, ChangeLock, Next, Outcome, Step, StepState},
        rollout::{
            Cause, DEADLINE, Finding, Judgement, LOOK_EVERY, Observation, Rollout, SOAK, Scope,
            Sight, Verdict, stuck,
        },
        time::{Mono, Now},
    },
    error::{Error, Result, Retry},
};

/// Kind of our changes in the journal.
pub(super) const KIND: &str = "app";
/// Pauses before a call is repeated that found no API server, or no rights.
const AGAIN: Duration = Duration::from_secs(1);
const AGAIN_MAX: Duration = Duration::from_secs(10);
/// Time for an old Job to be gone.
const JOB_GONE_WITHIN: Duration = Duration::from_secs(60);
/// Steps of a change.
const WRITE: u32 = 0;
const JUDGE: u32 = 1;
const PRUNE: u32 = 2;
/// Steps of a removal.
const DELETE: u32 = 0;
const FORGET: u32 = 1;

/// Kind of a change.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Verb {
    /// A new revision.
    Apply,
    /// An earlier one.
    Rollback,
    /// None any more.
    Remove,
}

impl Verb {
    const ALL: [Self; 3] = [Self::Apply, Self::Rollback, Self::Remove];

    /// Word on disk and in the API.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Apply => "apply",
            Self::Rollback => "rollback",
            Self::Remove => "remove",
        }
    }

    /// Sentence for the time until there is a verdict.
    pub(super) fn beginning(self, revision: u64) -> String {
        match self {
            Self::Apply | Self::Rollback => format!("revision {revision} is being written"),
            Self::Remove => "it is being removed".to_owned(),
        }
    }
}

/// Subject of a change: names and numbers, no values.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Plan {
    pub(super) app: String,
    pub(super) verb: Verb,
    pub(super) revision: u64,
    /// Revision that ran before; 0: none.
    pub(super) before: u64,
    /// Revision to go back to; 0: none.
    pub(super) back_to: u64,
}

impl Plan {
    /// The body of the intent.
    pub(super) fn written(&self) -> String {
        json!({"app": self.app, "verb": self.verb.as_str(), "revision": self.revision, "before": self.before, "back_to": self.back_to}).to_string()
    }

    /// Reads the body of an intent.
    pub(super) fn read(body: &str) -> Option<Self> {
        let body: Value = serde_json::from_slice(body.as_bytes()).ok()?;
        let number = |name: &str| body.get(name).and_then(Value::as_u64);
        let verb = body.get("verb").and_then(Value::as_str)?;
        Some(Self {
            app: body.get("app").and_then(Value::as_str)?.to_owned(),
            verb: Verb::ALL.into_iter().find(|known| known.as_str() == verb)?,
            revision: number("revision")?,
            before: number("before")?,
            back_to: number("back_to")?,
        })
    }
}

/// A change that is being carried out.
pub(super) struct Work {
    pub(super) apps: Rc<Apps>,
    pub(super) lock: ChangeLock,
    pub(super) plan: Plan,
}

/// A version, with what of it is written.
struct Version {
    manifests: Vec<Manifest>,
    /// The version before, where it is known.
    before: Vec<Manifest>,
    is_back: bool,
}

impl Version {
    /// Jobs run once for each content and never on the way back; on the way back a Secret keeps its value of today unless it was changed.
    fn is_written(&self, manifest: &Manifest) -> bool {
        let is_same = self.before.contains(manifest);
        match manifest.kind.name {
            "Job" => !self.is_back && !is_same,
            "Secret" => !self.is_back || !is_same,
            _ => true,
        }
    }
}

impl Work {
    /// Carries the change out, from where the journal says.
    pub(super) async fn run(self, known: Option<Change>) {
        let next = known.as_ref().map_or(Next::Forward(WRITE), Change::next);
        let ended = match next {
            Next::Over => return,
            Next::AllUndone => Ok((Outcome::Undone, "it was taken back".to_owned())),
            Next::Undo(_) => self.go_back("it did not work").await,
            Next::Forward(step) if self.plan.verb == Verb::Remove => self.remove(step).await,
            Next::Forward(step) => self.go_forward(step).await,
        };
        let (outcome, why) = ended.unwrap_or_else(|error| (Outcome::Failed, error.sentence()));
        let now = self.apps.now().wall;
        log::info!(
            "app {}: {} of revision {} is {}: {why}",
            self.plan.app,
            self.plan.verb.as_str(),
            self.plan.revision,
            outcome.as_str()
        );
        let finished = self
            .apps
            .store()
            .finish_change(&self.lock, outcome, Some(why), now);
        if let Err(failure) = finished.await {
            log::warn!(
                "how the change {} ended is not on disk: {failure}",
                self.lock.id()
            );
        }
        self.apps.ended(&self.plan.app, self.lock.id());
    }

    fn cluster(&self) -> Cluster<'_> {
        self.apps.cluster(self.lock.id())
    }

    async fn go_forward(&self, step: u32) -> Result<(Outcome, String)> {
        let version = self
            .version(
                self.plan.revision,
                self.plan.before,
                self.plan.verb == Verb::Rollback,
            )
            .await?;
        if step == WRITE {
            self.intend(WRITE, "write").await?;
            if let Err(error) = self.write(&version, self.plan.revision).await {
                return self.failed(WRITE, &refusal(&error)).await;
            }
            self.done(WRITE).await?;
        }
        let mut verdict = "it is good".to_owned();
        if step <= JUDGE {
            self.intend(JUDGE, "judge").await?;
            let judged = self.judge(&version).await?;
            if judged.verdict == Verdict::Bad {
                return self.failed(JUDGE, &judged).await;
            }
            verdict.clone_from(&judged.sentence);
            self.conclude(self.plan.revision, &judged, IsGood::Yes)
                .await?;
            self.done(JUDGE).await?;
        }
        self.intend(PRUNE, "prune").await?;
        self.prune(&version).await?;
        self.done(PRUNE).await?;
        Ok((
            Outcome::Done,
            format!("revision {} is good: {verdict}", self.plan.revision),
        ))
    }

    /// The version does not work: its evidence is kept first, then the last good one is put back.
    async fn failed(&self, step: u32, judged: &Judgement) -> Result<(Outcome, String)> {
        self.conclude(self.plan.revision, judged, IsGood::No)
            .await?;
        let detail = judged
            .finding
            .as_ref()
            .map(|found| format!("{}: {}", found.cause.id(), judged.sentence));
        self.advance(step, StepState::Failed, detail).await?;
        self.go_back(&judged.sentence).await
    }

    async fn go_back(&self, why: &str) -> Result<(Outcome, String)> {
        let (bad, good) = (self.plan.revision, self.plan.back_to);
        if good == 0 || good == bad {
            return Ok((
                Outcome::Failed,
                format!("revision {bad} does not work and stays for inspection: {why}"),
            ));
        }
        if self.record().await?.app.is_paused {
            return Ok((
                Outcome::Failed,
                format!(
                    "revision {bad} does not work and stays, because the app is paused: {why}; pipeops-agent apps rollback {}",
                    self.plan.app
                ),
            ));
        }
        let version = self.version(good, bad, true).await?;
        let failed = self.version(bad, good, false).await?;
        let job = failed
            .manifests
            .iter()
            .find(|manifest| manifest.kind.name == "Job" && !version.manifests.contains(manifest));
        if let Some(job) = job {
            let fix = format!("pipeops-agent apps rollback {}", self.plan.app);
            return Ok((
                Outcome::Failed,
                format!(
                    "revision {bad} does not work: {why}; it is not rolled back by itself, because {} may have changed data: {fix}",
                    job.in_words()
                ),
            ));
        }
        log::warn!(
            "app {}: revision {bad} does not work, going back to {good}: {why}",
            self.plan.app
        );
        self.apps.goes_back(&self.plan.app, good);
        if let Err(error) = self.write(&version, good).await {
            return Ok((
                Outcome::Failed,
                format!(
                    "revision {bad} does not work: {why}; revision {good} cannot be put back: {}",
                    error.sentence()
                ),
            ));
        }
        let judged = self.judge(&version).await?;
        if judged.verdict == Verdict::Bad {
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
            // A step that was never begun has nothing to be taken back.
            if let Err(error) = self.advance(step, StepState::Undone, None).await {
                log::debug!("step {step} of {}: {}", self.lock.id(), error.sentence());
            }
        }
        Ok((
            Outcome::Undone,
            format!("rolled back to revision {good}: {why}"),
        ))
    }

    /// A revision, and the one that it replaces.
    async fn version(&self, number: u64, before: u64, is_back: bool) -> Result<Version> {
        let ledger = self.apps.ledger();
        let app = &self.plan.app;
        let kept = self
            .patiently(async || ledger.manifests(app, number).await.map_err(of_api))
            .await?;
        let mut manifests = kept.ok_or_else(|| {
            Error::new(format!("revision {number} of {app} was not kept"))
                .fix("deploy it again: pipeops-agent apps apply")
        })?;
        self.record().await?.app.overlay(number).lay(&mut manifests);
        let before = if before == 0 {
            None
        } else {
            self.patiently(async || ledger.manifests(app, before).await.map_err(of_api))
                .await?
        };
        Ok(Version {
            manifests,
            before: before.unwrap_or_default(),
            is_back,
        })
    }

    /// Deletes everything that is ours but claims, then the record. It goes on for as long as a finalizer keeps something.
    async fn remove(&self, step: u32) -> Result<(Outcome, String)> {
        let (ledger, app) = (self.apps.ledger(), &self.plan.app);
        let read = self
            .patiently(async || ledger.read(app).await.map_err(of_api))
            .await?;
        let removed = (Outcome::Done, "it is removed".to_owned());
        // A power cut came between the last act and its note.
        let Some(read) = read else {
            return Ok(removed);
        };
        if step == DELETE {
            self.intend(DELETE, "delete").await?;
            self.apps.may_stop(app, true);
            self.delete_all(&read.app).await?;
            self.apps.may_stop(app, false);
            self.done(DELETE).await?;
        }
        self.intend(FORGET, "forget").await?;
        self.patiently(async || ledger.drop_app(&read.app).await.map_err(of_api))
            .await?;
        self.apps.forget(app);
        self.done(FORGET).await?;
        Ok(removed)
    }

    async fn delete_all(&self, app: &App) -> Result<()> {
        let cluster = self.cluster();
        let goes = || app.inventory.iter().filter(|entry| !entry.is_kept());
        // What leads to others goes before them.
        for entry in goes().rev() {
            self.patiently(async || cluster.delete(app, entry).await)
                .await?;
        }
        let mut backoff = Backoff::new(AGAIN / 4, AGAIN_MAX);
        for entry in goes() {
            while let Some(left) = self
                .patiently(async || cluster.remains(app, entry).await)
                .await?
            {
                let finding = Finding {
                    cause: Cause::Finalizer,
                    object: entry.in_words(&app.namespace),
                    sentence: format!("{left} is still there"),
                    evidence: String::new(),
                    fix: "its controller has to end it; removing goes on by itself".to_owned(),
                    is_definite: false,
                };
                self.apps
                    .show(&app.name, &waiting(finding, self.apps.now()));
                Timer::after(backoff.next(fastrand::u16(..))).await;
            }
        }
        Ok(())
    }

    /// Writes a version, for as long as the account is not let in. Until then another change may take its place: what was written is kept.
    async fn write(&self, version: &Version, number: u64) -> Result<()> {
        let mut backoff = Backoff::new(AGAIN, AGAIN_MAX);
        loop {
            match self.write_all(version, number).await {
                Err(error) if error.retry == Retry::Later => {
                    self.apps.may_stop(&self.plan.app, true);
                    self.waits(&error, &mut backoff).await;
                    self.apps.may_stop(&self.plan.app, false);
                }
                done => return done,
            }
        }
    }

    /// Writes a version, object by object. The inventory knows each one before.
    async fn write_all(&self, version: &Version, number: u64) -> Result<()> {
        let mut read = self.record().await?;
        read.app.plan(&version.manifests);
        read.app.running = number;
        self.keep(&mut read).await?;
        let cluster = self.cluster();
        let mut written = Ok(());
        for manifest in version
            .manifests
            .iter()
            .filter(|manifest| version.is_written(manifest))
        {
            if let Err(error) = self.write_one(&cluster, &mut read.app, manifest).await {
                written = Err(error);
                break;
            }
        }
        // What was never written is not ours.
        let unwritten: Vec<_> = read
            .app
            .inventory
            .iter()
            .filter(|entry| entry.uid.is_empty())
            .cloned()
            .collect();
        read.app.forget(&unwritten);
        self.keep(&mut read).await?;
        written
    }

    async fn write_one(
        &self,
        cluster: &Cluster<'_>,
        app: &mut App,
        manifest: &Manifest,
    ) -> Result<()> {
        let entry = Entry::of(manifest);
        if manifest.kind.name == "Job" && app.uid(&entry).is_some() {
            self.remove_job(cluster, app, &entry).await?;
        }
        let shown = &*app;
        let uid = self
            .while_silent(async || cluster.write(shown, manifest).await)
            .await?;
        app.own(&entry, &uid);
        Ok(())
    }

    /// A Job cannot be changed: it is made again.
    async fn remove_job(&self, cluster: &Cluster<'_>, app: &mut App, entry: &Entry) -> Result<()> {
        let deadline = self.apps.now().mono.after(JOB_GONE_WITHIN);
        let shown = &*app;
        self.while_silent(async || cluster.delete(shown, entry).await)
            .await?;
        while let Some(left) = self
            .while_silent(async || cluster.remains(shown, entry).await)
            .await?
        {
            if self.apps.now().mono >= deadline {
                return Err(Error::new(format!(
                    "{left} is still there, so it cannot be made again"
                ))
                .fix("kubectl describe job shows what keeps it"));
            }
            Timer::after(LOOK_EVERY).await;
        }
        app.own(entry, "");
        Ok(())
    }

    /// Looks until the version is good or bad.
    async fn judge(&self, version: &Version) -> Result<Judgement> {
        let read = self.record().await?;
        // A Job that is not run again was judged before.
        let is_judged =
            |manifest: &&Manifest| manifest.kind.name != "Job" || version.is_written(manifest);
        let judged: Vec<_> = version.manifests.iter().filter(is_judged).collect();
        let scope = scope(&judged);
        let cluster = self.cluster();
        let mut rollout = Rollout::new(scope.clone(), self.apps.now().mono);
        let watched = Rc::new(Watched::new(
            &self.apps,
            &read.app.namespace,
            &scope.targets,
        ));
        self.apps.watches(&self.plan.app, &watched);
        self.apps.may_stop(&self.plan.app, true);
        let judged = loop {
            let pods = watched.look(|sight| match sight {
                Sight::Seen(seen) if version.is_back => stuck(&scope, seen),
                Sight::Seen(_) | Sight::Refused(_) | Sight::Blind => Vec::new(),
            });
            self.unstick(&cluster, pods.unwrap_or_default()).await;
            let judgement = watched.look(|sight| rollout.observe(sight, self.apps.now().mono));
            if let Some(judgement) = judgement {
                self.apps.show(&self.plan.app, &judgement);
                if judgement.verdict.is_final() {
                    break judgement;
                }
            }
            Timer::after(LOOK_EVERY).await;
        };
        self.apps.may_stop(&self.plan.app, false);
        self.apps.stops_to_watch(&self.plan.app);
        Ok(judged)
    }

    /// The controller of a StatefulSet waits for a Pod of the bad version for ever: it is deleted, as the documentation of Kubernetes says.
    async fn unstick(&self, cluster: &Cluster<'_>, pods: Vec<(String, String, String)>) {
        for (namespace, name, uid) in pods {
            log::info!(
                "app {}: Pod {namespace}/{name} of the bad version is deleted",
                self.plan.app
            );
            if let Err(error) = cluster.delete_pod(&namespace, &name, &uid).await {
                log::debug!(
                    "Pod {namespace}/{name} is not deleted: {}",
                    error.sentence()
                );
            }
        }
    }

    /// Deletes what the version no longer has, and forgets the oldest revisions.
    async fn prune(&self, version: &Version) -> Result<()> {
        let mut read = self.record().await?;
        let surplus = read.app.surplus(&version.manifests);
        let cluster = self.cluster();
        // An object that is deleted and still known is found to be gone by the next change.
        self.apps.may_stop(&self.plan.app, true);
        for entry in &surplus {
            let app = &read.app;
            self.patiently(async || cluster.delete(app, entry).await)
                .await?;
        }
        self.apps.may_stop(&self.plan.app, false);
        read.app.forget(&surplus);
        let gone = read.app.prune();
        self.keep(&mut read).await?;
        let ledger = self.apps.ledger();
        for number in gone {
            self.patiently(async || {
                ledger
                    .drop_revision(&self.plan.app, number)
                    .await
                    .map_err(of_api)
            })
            .await?;
        }
        Ok(())
    }

    async fn conclude(&self, number: u64, judged: &Judgement, is_good: IsGood) -> Result<()> {
        let mut read = self.record().await?;
        read.app
            .conclude(number, concluded(judged, self.apps.now()));
        if is_good == IsGood::Yes {
            read.app.good = number;
        }
        self.keep(&mut read).await
    }

    async fn record(&self) -> Result<Read> {
        let (ledger, app) = (self.apps.ledger(), &self.plan.app);
        let read = self
            .patiently(async || ledger.read(app).await.map_err(of_api))
            .await?;
        read.ok_or_else(|| {
            Error::new(format!("the record of the app {app} is gone"))
                .fix("deploy it again: pipeops-agent apps apply")
        })
    }

    async fn keep(&self, read: &mut Read) -> Result<()> {
        let ledger = self.apps.ledger();
        self.patiently(async || ledger.write(read).await.map_err(of_api))
            .await?;
        self.apps.remember(&read.app);
        Ok(())
    }

    /// Repeats a call for as long as the API server is away, or a right is missing.
    async fn patiently<T>(&self, call: impl AsyncFnMut() -> Result<T>) -> Result<T> {
        self.until(|error| error.retry == Retry::Never, call).await
    }

    /// Repeats a call for as long as the API server is away.
    async fn while_silent<T>(&self, call: impl AsyncFnMut() -> Result<T>) -> Result<T> {
        self.until(|error| error.retry != Retry::Soon, call).await
    }

    async fn until<T>(
        &self,
        is_over: fn(&Error) -> bool,
        mut call: impl AsyncFnMut() -> Result<T>,
    ) -> Result<T> {
        let mut backoff = Backoff::new(AGAIN, AGAIN_MAX);
        loop {
            match call().await {
                Err(error) if !is_over(&error) => self.waits(&error, &mut backoff).await,
                done => return done,
            }
        }
    }

    async fn waits(&self, error: &Error, backoff: &mut Backoff) {
        log::debug!("app {}: {}", self.plan.app, error.sentence());
        match refused(error) {
            Some(finding) => {
                let judgement = waiting(finding, self.apps.now());
                self.apps.show(&self.plan.app, &judgement);
            }
            None => self.apps.blind(&self.plan.app, error),
        }
        Timer::after(backoff.next(fastrand::u16(..))).await;
    }

    async fn intend(&self, position: u32, name: &str) -> Result<()> {
        let step = Step {
            position,
            name: name.to_owned(),
            state: StepState::Intended,
            undo: Some(self.plan.back_to.to_string()),
            detail: None,
        };
        Ok(self
            .apps
            .store()
            .intend_step(&self.lock, step, self.apps.now().wall)
            .await?)
    }

    async fn done(&self, position: u32) -> Result<()> {
        for state in [StepState::Acted, StepState::Verified, StepState::Done] {
            // After a restart it may be further already.
            if let Err(error) = self.advance(position, state, None).await {
                log::debug!(
                    "step {position} of {}: {}",
                    self.lock.id(),
                    error.sentence()
                );
            }
        }
        Ok(())
    }

    async fn advance(&self, position: u32, state: StepState, detail: Option<String>) -> Result<()> {
        let now = self.apps.now().wall;
        Ok(self
            .apps
            .store()
            .advance_step(&self.lock, (position, state), detail, now)
            .await?)
    }
}

#[derive(Clone, Copy, Eq, PartialEq)]
enum IsGood {
    Yes,
    No,
}

/// An error of the API as one that says whether trying again can help.
#[expect(
    clippy::needless_pass_by_value,
    reason = "it is what map_err hands over"
)]
pub(super) fn of_api(error: crate::kube::Error) -> Error {
    use crate::kube::Error as Api;
    let retry = match &error {
        Api::Refused {
            status: 401 | 403, ..
        } => {
            return Error::new("the agent may not read and write the records of its apps")
                .why(error.to_string())
                .fix("pipeops-agent rbac | kubectl apply -f -")
                .retry(Retry::Later);
        }
        Api::Refused { status, .. } if !matches!(status, 429 | 500..=599) => Retry::Never,
        Api::BadRequest(_) | Api::TooLarge { .. } | Api::Undecodable { .. } => Retry::Never,
        Api::Refused { .. }
        | Api::Unconfigured(_)
        | Api::Connection(_)
        | Api::NoAnswer { .. }
        | Api::Broken { .. }
        | Api::Service { .. } => Retry::Soon,
    };
    Error::new("the record of the app cannot be read or written")
        .why(error.to_string())
        .retry(retry)
}

/// The finding of an error that ends as soon as somebody gives the rights that are missing; `None`: it is another one.
pub(super) fn refused(error: &Error) -> Option<Finding> {
    (error.retry == Retry::Later).then(|| Finding {
        cause: Cause::AccessRefused,
        object: String::new(),
        sentence: error.what.clone(),
        evidence: error.why.join(": "),
        fix: error.fix.clone().unwrap_or_default(),
        is_definite: false,
    })
}

/// The view of the cluster that a look gave: an observation, a refusal, or nothing.
pub(super) const fn sight(seen: &std::result::Result<Observation, Option<Finding>>) -> Sight<'_> {
    match seen {
        Ok(seen) => Sight::Seen(seen),
        Err(Some(found)) => Sight::Refused(found),
        Err(None) => Sight::Blind,
    }
}

fn waiting(finding: Finding, now: Now) -> Judgement {
    Judgement {
        verdict: Verdict::Waiting,
        sentence: finding.sentence.clone(),
        finding: Some(finding),
        since: now.mono,
    }
}

/// The judgement on a version that the API server refuses.
fn refusal(error: &Error) -> Judgement {
    let finding = Finding {
        cause: Cause::Admission,
        object: error.what.trim_end_matches(" is not deployed").to_owned(),
        sentence: error.sentence(),
        evidence: error.why.join(": "),
        fix: error.fix.clone().unwrap_or_default(),
        is_definite: true,
    };
    Judgement {
        verdict: Verdict::Bad,
        sentence: finding.sentence.clone(),
        finding: Some(finding),
        since: Mono::default(),
    }
}

/// A judgement as it is kept with its revision.
pub(super) fn concluded(judged: &Judgement, now: Now) -> Concluded {
    let found = judged.finding.as_ref();
    Concluded {
        verdict: judged.verdict.as_str().to_owned(),
        cause: found
            .map(|found| found.cause.id().to_owned())
            .unwrap_or_default(),
        object: found.map(|found| found.object.clone()).unwrap_or_default(),
        sentence: judged.sentence.clone(),
        evidence: found
            .map(|found| found.evidence.clone())
            .unwrap_or_default(),
        fix: found.map(|found| found.fix.clone()).unwrap_or_default(),
        since: now.wall,
    }
}

/// Objects and times of a version. A generation of 0 is that of the object when it is seen.
pub(super) fn scope(manifests: &[&Manifest]) -> Scope {
    let mut targets = Targets::new();
    let mut deadline = None;
    for manifest in manifests {
        targets.insert(key(manifest), 0);
        let given = manifest
            .object
            .pointer("/spec/progressDeadlineSeconds")
            .and_then(Value::as_u64);
        deadline = deadline.max(given.map(Duration::from_secs));
    }
    Scope {
        targets,
        deadline: deadline.unwrap_or(DEADLINE),
        soak: SOAK,
    }
}

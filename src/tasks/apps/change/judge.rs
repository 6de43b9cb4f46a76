//! Judging of a version: watches it until it is good or bad.

use std::{rc::Rc, time::Duration};

use litemap::LiteMap;
use smol::Timer;

use super::{
    super::{
        cluster::key,
        verdict::{kinds, scope_within},
        watched::Watched,
    },
    Work,
    last_lines::LastLines,
    version::Version,
};
use crate::{
    core::{
        apps::{App, InventoryEntry, Kind, Manifest, digests},
        rollout::{
            ClusterView, DEADLINE, JobEnd, JudgedRollout, POLL_INTERVAL, Rollout, RolloutVerdict,
            Scope, Stuck, job_end, stuck,
        },
        time::Mono,
    },
    error::Result,
};

/// Time after which a change that waits gives its turn to another one.
const GIVES_WAY_AFTER: Duration = Duration::from_secs(30);

/// Figures that a revision is kept with once it became good.
#[derive(Debug, Default)]
pub(super) struct Proof {
    /// Digests of its images.
    pub(super) digests: LiteMap<String, String>,
    /// Seconds until everything was ready.
    pub(super) took_s: u64,
}

/// Part of a version that is written and judged.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Part {
    /// Jobs that run first, until they have succeeded.
    First,
    /// All of it.
    Whole,
}

/// Returns whether all of these Jobs have succeeded.
fn are_done(scope: &Scope, view: ClusterView<'_>) -> bool {
    let ClusterView::Seen(seen) = view else {
        return false;
    };
    let mut jobs = scope.targets.keys().map(|key| seen.get(key));
    jobs.all(|job| job.is_some_and(|job| job_end(job) == JobEnd::Done))
}

/// Judging of a part of a version.
struct Judging<'a> {
    version: &'a Version,
    part: Part,
    namespace: String,
    kinds: Vec<Kind>,
    scope: Scope,
    rollout: Rollout,
    /// Jobs in the record that have succeeded.
    noted: usize,
    lines: LastLines,
    stuck: Stuck,
}

impl<'a> Judging<'a> {
    fn new(app: &App, (version, part, before): (&'a Version, Part, u64), now: Mono) -> Self {
        let is_judged = |manifest: &&Manifest| version.is_judged(manifest);
        let judged: Vec<_> = match part {
            Part::First => version.first().collect(),
            Part::Whole => version.manifests.iter().filter(is_judged).collect(),
        };
        let scope = scope_within(&judged, app.patience(DEADLINE));
        let mut rollout = Rollout::new(scope.clone(), now);
        rollout.mark_done(version.jobs(|job| app.has_job_succeeded(job, version.number)));
        Self {
            version,
            part,
            namespace: app.namespace.clone(),
            kinds: kinds(&judged),
            scope,
            noted: rollout.done().len(),
            rollout,
            lines: LastLines::default(),
            stuck: if version.is_back {
                Stuck::NotReady
            } else {
                stuck_before(app, before)
            },
        }
    }

    fn is_over(&self, watched: &Watched, judgement: &JudgedRollout) -> bool {
        judgement.verdict.is_final()
            || self.part == Part::First
                && watched.look(|view| are_done(&self.scope, view)) == Some(true)
    }

    fn proof(&self, watched: &Watched) -> Proof {
        let digests = watched.look(|view| match view {
            ClusterView::Seen(seen) => digests(&self.version.manifests, seen),
            ClusterView::Refused(_) | ClusterView::Blind => LiteMap::new(),
        });
        Proof {
            digests: digests.unwrap_or_default(),
            took_s: self.rollout.took().as_secs(),
        }
    }
}

impl Work {
    /// Looks until the version is good or bad. Returns what a good one is kept with as well.
    pub(super) async fn judge(
        &self,
        version: &Version,
        part: Part,
    ) -> Result<(JudgedRollout, Proof)> {
        self.apps
            .wait_for_slot(&self.plan, version.direction())
            .await;
        let app = self.record().await?.app;
        let mut judging = Judging::new(
            &app,
            (version, part, self.plan.before),
            self.apps.now().mono,
        );
        loop {
            let found = self.look(&mut judging).await;
            self.apps.set_stoppable(&self.plan.app, false);
            self.apps.end_watch(&self.plan.app);
            if let Some(judged) = found? {
                return Ok(judged);
            }
            self.apps.release_slot(&self.plan.app);
            self.apps
                .wait_for_slot(&self.plan, version.direction())
                .await;
        }
    }

    /// Watches until the version is judged. Another change may take the place of this one
    /// meanwhile. `None`: it waits, and another change for its turn.
    async fn look(&self, judging: &mut Judging<'_>) -> Result<Option<(JudgedRollout, Proof)>> {
        let place = (judging.namespace.as_str(), self.plan.owner);
        let what = (judging.kinds.as_slice(), judging.scope.clone());
        let watched = Rc::new(Watched::new(&self.apps, place, what));
        self.apps.set_watched(&self.plan.app, &watched);
        self.apps.set_stoppable(&self.plan.app, true);
        let began = self.apps.now().mono;
        loop {
            if let Some(refusal) = watched.refusal() {
                return Err(refusal);
            }
            self.unstick(&watched, judging).await;
            self.hear(judging.version, &watched, &mut judging.lines)
                .await;
            let now = self.apps.now().mono;
            if let Some(mut judgement) = watched.look(|view| judging.rollout.observe(view, now)) {
                let of = (judging.version, judging.namespace.as_str());
                self.redact(of, &mut judgement, &mut judging.lines).await;
                // Jobs that have succeeded say nothing of workloads that are not written yet.
                let is_early = judging.part == Part::First
                    && matches!(
                        judgement.verdict,
                        RolloutVerdict::Soaking | RolloutVerdict::Good
                    );
                if !is_early {
                    self.apps.show(&self.plan.app, &judgement);
                }
                self.note_done(judging).await?;
                if judging.is_over(&watched, &judgement) {
                    return Ok(Some((judgement, judging.proof(&watched))));
                }
                if waits_for_others(judgement.verdict)
                    && now.since(began) >= GIVES_WAY_AFTER
                    && self.apps.is_slot_wanted(self.plan.owner)
                {
                    return Ok(None);
                }
            }
            Timer::after(POLL_INTERVAL).await;
        }
    }

    /// Notes Jobs that have succeeded: with a TTL they are gone soon, and would be run again.
    async fn note_done(&self, judging: &mut Judging<'_>) -> Result<()> {
        let (version, done) = (judging.version, judging.rollout.done());
        if version.is_back || done.len() <= judging.noted {
            return Ok(());
        }
        judging.noted = done.len();
        self.apps.set_stoppable(&self.plan.app, false);
        let mut read = self.record().await?;
        for job in &version.manifests {
            if done.contains(&key(job)) {
                read.app
                    .record_job_success(&InventoryEntry::of(job), version.number);
            }
        }
        self.keep(&mut read).await?;
        self.apps.set_stoppable(&self.plan.app, true);
        Ok(())
    }

    /// The controller of a StatefulSet waits for a Pod of a bad version for ever, also where the
    /// version that follows is right: it is deleted, as the documentation of Kubernetes says.
    async fn unstick(&self, watched: &Watched, judging: &Judging<'_>) {
        let pods = watched.look(|view| match view {
            ClusterView::Seen(seen) => stuck(&judging.scope, judging.stuck, seen),
            ClusterView::Refused(_) | ClusterView::Blind => Vec::new(),
        });
        for (namespace, name, uid) in pods.unwrap_or_default() {
            log::info!(
                "app {}: Pod {namespace}/{name} of an earlier version is deleted: its StatefulSet waits for it",
                self.plan.app
            );
            if let Err(error) = self.cluster().delete_pod(&namespace, &name, &uid).await {
                log::debug!(
                    "Pod {namespace}/{name} is not deleted: {}",
                    error.sentence()
                );
            }
        }
    }
}

/// Pods of earlier versions that are in the way of one that follows revision `before`.
fn stuck_before(app: &App, before: u64) -> Stuck {
    let was_bad = app
        .revision(before)
        .is_some_and(|before| before.outcome.verdict == Some(RolloutVerdict::Bad));
    match (was_bad, app.good) {
        (true, 0) => Stuck::NotReady,
        (true, _) => Stuck::NotCurrent,
        (false, _) => Stuck::Failing,
    }
}

/// Returns whether a version waits for something outside, or for a person.
const fn waits_for_others(verdict: RolloutVerdict) -> bool {
    matches!(verdict, RolloutVerdict::Waiting | RolloutVerdict::Paused)
}

//! Judging of a version: watches it until it is good or bad.

use std::{collections::BTreeSet, rc::Rc};

use litemap::LiteMap;
use smol::Timer;

use super::{
    super::{
        cluster::{Cluster, key},
        verdict::{kinds, scope_within},
        watched::Watched,
    },
    Work,
    last_lines::LastLines,
    version::Version,
};
use crate::{
    core::{
        apps::{InventoryEntry, Manifest, digests},
        rollout::{
            DEADLINE, JobEnd, JudgedRollout, Key, LOOK_EVERY, Rollout, Scope, Sight, job_end, stuck,
        },
    },
    error::Result,
};

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
fn are_done(scope: &Scope, sight: Sight<'_>) -> bool {
    let Sight::Seen(seen) = sight else {
        return false;
    };
    let mut jobs = scope.targets.keys().map(|key| seen.get(key));
    jobs.all(|job| job.is_some_and(|job| job_end(job) == JobEnd::Done))
}

impl Work {
    /// Looks until the version is good or bad. Returns what a good one is kept with as well.
    pub(super) async fn judge(
        &self,
        version: &Version,
        part: Part,
    ) -> Result<(JudgedRollout, Proof)> {
        let read = self.record().await?;
        let is_judged = |manifest: &&Manifest| version.is_judged(manifest);
        let judged: Vec<_> = match part {
            Part::First => version.first().collect(),
            Part::Whole => version.manifests.iter().filter(is_judged).collect(),
        };
        let scope = scope_within(&judged, read.app.patience(DEADLINE));
        let cluster = self.cluster();
        let mut rollout = Rollout::new(scope.clone(), self.apps.now().mono);
        rollout.knows_done(version.jobs(|job| read.app.has_succeeded(job, version.number)));
        let mut noted = rollout.done().len();
        let watched = Rc::new(Watched::new(
            &self.apps,
            (&read.app.namespace, self.plan.owner),
            &kinds(&judged),
        ));
        let mut lines = LastLines::default();
        self.apps.watches(&self.plan.app, &watched);
        self.apps.may_stop(&self.plan.app, true);
        let judged = loop {
            if let Some(refusal) = watched.refusal() {
                return Err(refusal);
            }
            let pods = watched.look(|sight| match sight {
                Sight::Seen(seen) if version.is_back => stuck(&scope, seen),
                Sight::Seen(_) | Sight::Refused(_) | Sight::Blind => Vec::new(),
            });
            self.unstick(&cluster, pods.unwrap_or_default()).await;
            self.hear(version, (&watched, &scope), &mut lines).await;
            let judgement = watched.look(|sight| rollout.observe(sight, self.apps.now().mono));
            if let Some(mut judgement) = judgement {
                let of = (version, read.app.namespace.as_str());
                self.veil(of, &mut judgement, &mut lines).await;
                self.apps.show(&self.plan.app, &judgement);
                if rollout.done().len() > noted {
                    noted = rollout.done().len();
                    self.note_done(version, rollout.done()).await?;
                }
                let is_over = part == Part::First
                    && watched.look(|sight| are_done(&scope, sight)) == Some(true);
                if judgement.verdict.is_final() || is_over {
                    let digests = watched.look(|sight| match sight {
                        Sight::Seen(seen) => digests(&version.manifests, seen),
                        Sight::Refused(_) | Sight::Blind => LiteMap::new(),
                    });
                    let proof = Proof {
                        digests: digests.unwrap_or_default(),
                        took_s: rollout.took().as_secs(),
                    };
                    break (judgement, proof);
                }
            }
            Timer::after(LOOK_EVERY).await;
        };
        self.apps.may_stop(&self.plan.app, false);
        self.apps.stops_to_watch(&self.plan.app);
        Ok(judged)
    }

    /// Notes Jobs that have succeeded: with a TTL they are gone soon, and would be run again.
    async fn note_done(&self, version: &Version, done: &BTreeSet<Key>) -> Result<()> {
        if version.is_back {
            return Ok(());
        }
        self.apps.may_stop(&self.plan.app, false);
        let mut read = self.record().await?;
        for job in &version.manifests {
            if done.contains(&key(job)) {
                read.app.succeed(&InventoryEntry::of(job), version.number);
            }
        }
        self.keep(&mut read).await?;
        self.apps.may_stop(&self.plan.app, true);
        Ok(())
    }

    /// The controller of a StatefulSet waits for a Pod of the bad version for ever: it is deleted,
    /// as the documentation of Kubernetes says.
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
}

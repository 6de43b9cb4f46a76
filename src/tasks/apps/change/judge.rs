//! Judging of a version: watches it until it is good or bad.

use std::{collections::BTreeSet, rc::Rc, time::Duration};

use litemap::LiteMap;
use serde_json::Value;
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
        order::GatherExt as _,
        rollout::{
            ClusterView, DEADLINE, JobEnd, JudgedRollout, Key, Object, Observation, POLL_INTERVAL,
            Rollout, RolloutVerdict, Scope, Stuck, job_end, stuck,
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

/// Returns whether all of these Jobs have succeeded: now, or before they were gone.
fn are_done(scope: &Scope, done: &BTreeSet<Key>, view: ClusterView<'_>) -> bool {
    let ClusterView::Seen(seen) = view else {
        return false;
    };
    scope.targets.keys().all(|key| match seen.get(key) {
        Some(job) => job_end(job) == JobEnd::Done,
        None => done.contains(key),
    })
}

/// Judging of a part of a version.
struct Judging<'a> {
    version: &'a Version,
    part: Part,
    namespace: String,
    kinds: Vec<Kind>,
    scope: Scope,
    rollout: Rollout,
    /// Jobs that this revision has run, by their UIDs.
    run: LiteMap<String, Key>,
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
        let has_run = |job: &&&Manifest| app.has_job_run(&InventoryEntry::of(job), version.number);
        let uid = |job: &Manifest| app.uid(&InventoryEntry::of(job)).map(str::to_owned);
        let run = judged.iter().filter(has_run);
        let run = run.filter_map(|job| Some((uid(job)?, key(job)))).gather();
        Self {
            run,
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
                && watched.look(|view| are_done(&self.scope, self.rollout.done(), view))
                    == Some(true)
    }

    /// Notes Jobs that have succeeded while nobody watched, and that their TTL has deleted.
    fn mark_completed(&mut self, watched: &Watched) {
        let completed = watched.look(|view| match view {
            ClusterView::Seen(seen) => completed(&self.run, seen),
            ClusterView::Refused(_) | ClusterView::Blind => Vec::new(),
        });
        self.rollout.mark_done(completed.unwrap_or_default());
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
            judging.mark_completed(&watched);
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

/// Jobs, by their UIDs, of which nothing is left but the event that they have succeeded.
fn completed(run: &LiteMap<String, Key>, seen: &Observation) -> Vec<Key> {
    let text = |event: &Object, field: &str| {
        let found = event.value().pointer(field).and_then(Value::as_str);
        found.unwrap_or_default().to_owned()
    };
    let events = seen.of_kind("Event");
    let completed = events.filter(|event| text(event, "/reason") == "Completed");
    let jobs = completed.filter_map(|event| run.get(&text(event, "/involvedObject/uid")));
    jobs.filter(|job| seen.get(job).is_none())
        .cloned()
        .collect()
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_job_that_is_gone_succeeded_if_its_event_says_so() {
        let job = |name: &str| Key {
            kind: "Job".to_owned(),
            namespace: "shop".to_owned(),
            name: name.to_owned(),
        };
        let run = [
            ("u1".to_owned(), job("migrate")),
            ("u2".to_owned(), job("seed")),
        ];
        let run: LiteMap<_, _> = run.into_iter().gather();
        let mut seen = Observation::default();
        let event = |name: &str, uid: &str, reason: &str| {
            Object::reduced(
                "Event",
                &json!({"metadata": {"name": name, "namespace": "shop"}, "reason": reason,
                    "involvedObject": {"kind": "Job", "uid": uid}}),
            )
        };
        seen.add(event("a", "u1", "SuccessfulCreate"));
        seen.add(event("b", "u3", "Completed"));
        assert_eq!(completed(&run, &seen), []);
        seen.add(event("c", "u1", "Completed"));
        assert_eq!(completed(&run, &seen), [job("migrate")]);
        // One that is there speaks for itself.
        let there = json!({"metadata": {"name": "migrate", "namespace": "shop"}});
        seen.add(Object::reduced("Job", &there));
        assert_eq!(completed(&run, &seen), []);
        let scope = |keys: &[Key]| Scope {
            targets: keys.iter().map(|key| (key.clone(), 0)).gather(),
            deadline: Duration::ZERO,
            soak: Duration::ZERO,
        };
        let done = BTreeSet::from([job("seed")]);
        let view = ClusterView::Seen(&seen);
        assert!(are_done(&scope(&[job("seed")]), &done, view));
        assert!(!are_done(&scope(&[job("migrate")]), &done, view));
        assert!(!are_done(&scope(&[job("other")]), &done, view));
    }
}

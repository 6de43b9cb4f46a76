//! Version: the manifests of a revision, with what of them is written.

use super::{
    super::{cluster::key, ledger::api_error, slots::Direction, verdict::kinds},
    Work,
};
use crate::{
    core::{
        apps::{App, InventoryEntry, JOB, Manifest, Overlay, Owner, digests, unpinned, workload},
        rollout::{JobEnd, Key, Observation, RolloutVerdict, job_end},
    },
    error::{Error, Result},
};

/// A version, with what of it is written.
pub(super) struct Version {
    /// Number of the revision.
    pub(super) number: u64,
    pub(super) manifests: Vec<Manifest>,
    /// The version before, where it is known.
    before: Vec<Manifest>,
    /// Jobs of the version before that did not succeed, with how they are now.
    unfinished: Vec<(Key, JobEnd)>,
    /// Workloads that are written with their images by digest.
    pub(super) pinned: Vec<String>,
    /// Secrets that keep the value that somebody gave them, and what cannot go back.
    pub(super) kept: Vec<String>,
    pub(super) is_back: bool,
}

/// Annotation of a Job that has to succeed before the workloads of its version are written.
const RUN_FIRST: &str = "pipeops.io/run-first";

impl Version {
    pub(super) const fn direction(&self) -> Direction {
        if self.is_back {
            Direction::Back
        } else {
            Direction::Forward
        }
    }

    /// Jobs that have to succeed before the workloads are written, as far as they run for this
    /// version; none on the way back.
    pub(super) fn first(&self) -> impl Iterator<Item = &Manifest> {
        let is_first = |manifest: &&Manifest| {
            let annotations = manifest.object.pointer("/metadata/annotations");
            let wanted = annotations.and_then(|all| all.get(RUN_FIRST)?.as_str());
            !self.is_back
                && manifest.kind.name == "Job"
                && wanted == Some("true")
                && self.is_judged(manifest)
        };
        self.manifests.iter().filter(is_first)
    }

    /// Returns whether an object is written before the Jobs that run first have succeeded: what
    /// they may read, and the Jobs themselves.
    pub(super) fn is_early(manifest: &Manifest) -> bool {
        manifest.kind.order() <= JOB.order()
    }

    /// Jobs run once for each content, again where they failed, and never on the way back; on the
    /// way back a Secret keeps its value of today unless it was changed.
    pub(super) fn is_written(&self, manifest: &Manifest) -> bool {
        let is_same = self.before.contains(manifest);
        match &*manifest.kind.name {
            "Job" if is_same => !self.is_back && self.end(manifest) == Some(JobEnd::Failed),
            "Job" => !self.is_back,
            "Secret" if self.is_back && is_same => false,
            _ => !self.kept.contains(&workload(manifest)),
        }
    }

    /// A Job that is not run again was judged before, unless it still runs.
    pub(super) fn is_judged(&self, manifest: &Manifest) -> bool {
        manifest.kind.name != "Job"
            || self.is_written(manifest)
            || self.end(manifest) == Some(JobEnd::Open)
    }

    /// Keys of the Jobs for which this holds.
    pub(super) fn jobs(&self, holds: impl Fn(&InventoryEntry) -> bool) -> Vec<Key> {
        let jobs = self.manifests.iter().filter(|it| it.kind.name == "Job");
        let jobs = jobs.filter(|job| holds(&InventoryEntry::of(job)));
        jobs.map(key).collect()
    }

    /// Jobs that are not run for this version, because they have succeeded in the one before.
    pub(super) fn succeeded(&self) -> impl Iterator<Item = &Manifest> {
        let is_done = |manifest: &&Manifest| {
            !self.is_back && manifest.kind.name == "Job" && !self.is_judged(manifest)
        };
        self.manifests.iter().filter(is_done)
    }

    /// Reason why only a person replaces this version by an earlier one; `None`: it goes back by
    /// itself.
    pub(super) fn stays_before(&self, earlier: &Self, app: &App) -> Option<String> {
        // It need not be of this version: another one that was bad may have come in between.
        let job = Some(&app.unproven_job).filter(|job| !job.is_empty());
        let mut all = self.manifests.iter().chain(&earlier.manifests);
        // Also one that is the same: its release may have failed, and is left to a person then.
        let chart = || all.find(|it| it.kind.is_chart()).map(Manifest::in_words);
        let found = job.cloned().or_else(chart)?;
        Some(format!("{found} may have changed data"))
    }

    fn end(&self, manifest: &Manifest) -> Option<JobEnd> {
        let mut ends = self.unfinished.iter();
        let is_meant = |(key, _): &&(Key, JobEnd)| key.name == manifest.name;
        ends.find(is_meant).map(|(_, end)| *end)
    }
}

impl Work {
    /// A revision, and the one that it replaces.
    pub(super) async fn version(&self, number: u64, before: u64, is_back: bool) -> Result<Version> {
        let lost = || {
            Error::new(format!(
                "revision {number} of {} was not kept",
                self.plan.app
            ))
            .fix("deploy it again: sudo pipeops-agent apps apply")
        };
        let mut manifests = self.manifests(number).await?.ok_or_else(lost)?;
        let app = self.record().await?.app;
        if app.revision(number).is_none() {
            // A power cut came before it was accepted.
            return Err(lost());
        }
        let earlier = if before == 0 {
            None
        } else {
            self.manifests(before).await?
        };
        let earlier = earlier.unwrap_or_default();
        let unfinished = self.unfinished_jobs(&app, before, &earlier).await?;
        let mut overlay = app.overlay(number);
        // After a power cut its Pods are being replaced already: the record has the choice.
        if is_back && (app.running != number || before == number) {
            overlay.pinned.clear();
            let version = (manifests.as_slice(), earlier.as_slice());
            overlay.pinned = self.to_pin(&app, (&overlay, before), version).await;
            overlay.kept = self.kept_as_is(&app, version).await;
        }
        overlay.apply(&mut manifests);
        Ok(Version {
            number,
            manifests,
            pinned: overlay.pinned,
            kept: overlay.kept,
            before: earlier,
            unfinished,
            is_back,
        })
    }

    /// Manifests of a revision; `None`: they are not kept.
    async fn manifests(&self, number: u64) -> Result<Option<Vec<Manifest>>> {
        let (ledger, app) = (self.apps.ledger(), &self.plan.app);
        self.with_retries(async || ledger.manifests(app, number).await.map_err(api_error))
            .await
    }

    /// Objects of these manifests, and what belongs to them, as they are now.
    async fn observe(&self, app: &App, manifests: &[&Manifest]) -> Result<Observation> {
        let (cluster, kinds) = (self.cluster(), kinds(manifests));
        self.with_retries(async || cluster.observe(&app.namespace, &kinds).await)
            .await
    }

    /// Objects that stay as they are on the way back: Secrets that are not written and not as they
    /// were deployed, and what the API server does not change back, such as a claim that has grown
    /// or a ConfigMap that became immutable.
    async fn kept_as_is(
        &self,
        app: &App,
        (manifests, earlier): (&[Manifest], &[Manifest]),
    ) -> Vec<String> {
        let mut kept = Vec::new();
        for manifest in manifests {
            let is_same = earlier.contains(manifest);
            if !may_stay(manifest, is_same, app.owner) {
                continue;
            }
            let cluster = self.cluster();
            let drifted = self
                .with_retries(async || cluster.drifted(app, manifest).await)
                .await;
            let is_kept = match drifted {
                Ok(drifted) => is_same && drifted.is_some(),
                // It is refused, or nobody can say how it is.
                Err(error) => {
                    log::warn!("app {}: {}", app.name, error.sentence());
                    true
                }
            };
            if is_kept {
                kept.push(workload(manifest));
            }
        }
        kept
    }

    /// Workloads of a version that go back by digest from the one before.
    async fn to_pin(
        &self,
        app: &App,
        (overlay, before): (&Overlay, u64),
        (manifests, earlier): (&[Manifest], &[Manifest]),
    ) -> Vec<String> {
        if !overlay
            .digests
            .values()
            .any(|kept| unpinned(kept).is_none())
        {
            return Vec::new();
        }
        let (mut version, mut current) = (manifests.to_vec(), earlier.to_vec());
        overlay.apply(&mut version);
        app.overlay(before).apply(&mut current);
        let seen = self.observe(app, &version.iter().collect::<Vec<_>>()).await;
        // Where nothing can be seen, everything goes by digest.
        let running = digests(&version, &seen.unwrap_or_default());
        overlay.to_pin((&version, &current), &running)
    }

    /// Jobs of a version that was not good, as far as they have not succeeded.
    async fn unfinished_jobs(
        &self,
        app: &App,
        number: u64,
        manifests: &[Manifest],
    ) -> Result<Vec<(Key, JobEnd)>> {
        let was_good = |number| {
            let found = app.revision(number);
            found.is_none_or(|found| found.outcome.verdict == Some(RolloutVerdict::Good))
        };
        let jobs = open_jobs(app, number, manifests);
        if jobs.is_empty() || was_good(number) {
            return Ok(Vec::new());
        }
        let seen = self.observe(app, &jobs).await?;
        let end = |key: Key| {
            // One that is gone did not succeed before it went.
            let end = seen.get(&key).map_or(JobEnd::Failed, job_end);
            (key, end)
        };
        let ends = jobs.into_iter().map(key).map(end);
        Ok(ends.filter(|(_, end)| *end != JobEnd::Done).collect())
    }
}

/// Returns whether an object may have to stay as it is on the way back: a Secret of today, or what
/// the API server or a webhook does not change again.
fn may_stay(manifest: &Manifest, is_same: bool, owner: Owner) -> bool {
    match &*manifest.kind.name {
        // Nobody puts back what is changed of the other apps.
        "Secret" if is_same => owner == Owner::Machine,
        "Secret" | "ConfigMap" | "PersistentVolumeClaim" => !is_same,
        // Its controller may refuse it, such as a volume that shrinks.
        _ => manifest.kind.is_custom() && !is_same,
    }
}

/// Jobs of a revision of which nobody has seen that they succeeded. One that did may be gone by its
/// TTL.
fn open_jobs<'a>(app: &App, number: u64, manifests: &'a [Manifest]) -> Vec<&'a Manifest> {
    let is_open = |manifest: &&Manifest| {
        manifest.kind.name == "Job" && !app.has_job_succeeded(&InventoryEntry::of(manifest), number)
    };
    manifests.iter().filter(is_open).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::apps::{Kind, parse};

    #[test]
    fn a_job_that_succeeded_is_not_asked_after_again() {
        let all = manifests("one", "x");
        let job = InventoryEntry::of(&all[1]);
        let mut app = App::default();
        app.plan(&all, std::iter::repeat(String::new()));
        app.record_job_run(&job, 1);
        assert_eq!(open_jobs(&app, 1, &all), [&all[1]]);
        app.record_job_success(&job, 1);
        assert_eq!(open_jobs(&app, 1, &all), Vec::<&Manifest>::new());
        // The next version has the same one.
        let next = version(all.clone(), all.clone(), false);
        assert_eq!(next.succeeded().collect::<Vec<_>>(), [&all[1]]);
        let changed = version(manifests("one", "y"), all.clone(), false);
        assert_eq!(changed.succeeded().count(), 0);
        let back = version(all.clone(), all, true);
        assert_eq!(back.succeeded().count(), 0);
    }

    fn manifests(key: &str, script: &str) -> Vec<Manifest> {
        let text = format!(
            "apiVersion: v1\nkind: Secret\nmetadata: {{name: key}}\nstringData: {{k: {key}}}\n---\n\
             apiVersion: batch/v1\nkind: Job\nmetadata: {{name: once, annotations: {{pipeops.io/run-first: \"true\"}}}}\nspec: {{a: \"{script}\"}}\n---\n\
             apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: web}}\n"
        );
        parse(&text, Some("shop")).unwrap()
    }

    fn version(manifests: Vec<Manifest>, before: Vec<Manifest>, is_back: bool) -> Version {
        Version {
            number: 1,
            manifests,
            before,
            unfinished: Vec::new(),
            pinned: Vec::new(),
            kept: Vec::new(),
            is_back,
        }
    }

    #[test]
    fn a_job_of_a_bad_version_in_between_leaves_going_back_to_a_person() {
        let plain = || {
            let manifests = manifests("one", "x").into_iter();
            manifests.filter(|it| it.kind.name != "Job").collect()
        };
        let (first, third) = (
            version(plain(), Vec::new(), true),
            version(plain(), Vec::new(), false),
        );
        let mut app = App::default();
        app.mark_good(1);
        assert_eq!(third.stays_before(&first, &app), None);
        app.unproven_job = "Job shop/once".to_owned();
        assert_eq!(
            third.stays_before(&first, &app).as_deref(),
            Some("Job shop/once may have changed data")
        );
        // A person went back, and it works.
        app.mark_good(1);
        assert_eq!(third.stays_before(&first, &app), None);
    }

    fn written(version: &Version) -> Vec<&str> {
        let all = version.manifests.iter();
        let written = all.filter(|manifest| version.is_written(manifest));
        written.map(|manifest| &*manifest.kind.name).collect()
    }

    #[test]
    fn on_the_way_back_only_a_secret_that_was_changed_is_written() {
        let (old, new) = (manifests("one", "x"), manifests("two", "y"));
        let back = version(old.clone(), new.clone(), true);
        assert_eq!(written(&back), ["Secret", "Deployment"]);
        // The value of today may be another one than that of both.
        let back = version(old.clone(), manifests("one", "y"), true);
        assert_eq!(written(&back), ["Deployment"]);
        let mut on = version(new, old, false);
        assert_eq!(written(&on), ["Secret", "Job", "Deployment"]);
        on.kept.push("Secret/key".to_owned());
        assert_eq!(written(&on), ["Job", "Deployment"]);
        // What cannot go back keeps nothing else from it.
        let mut back = version(manifests("one", "x"), manifests("two", "y"), true);
        back.kept.push("Secret/key".to_owned());
        assert_eq!(written(&back), ["Deployment"]);
    }

    #[test]
    fn what_may_not_go_back_is_asked_before_anything_is_written() {
        let text = "apiVersion: v1\nkind: Secret\nmetadata: {name: key}\n---\n\
             apiVersion: v1\nkind: ConfigMap\nmetadata: {name: map}\n---\n\
             apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data}\n---\n\
             apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\n";
        let mut all = parse(text, Some("shop")).unwrap();
        let mut custom = all[3].clone();
        let (version, name) = ("postgresql.cnpg.io/v1", "clusters.postgresql.cnpg.io");
        custom.kind = Kind::custom(version, name).unwrap();
        all.push(custom);
        let asked = |is_same: bool, owner: Owner| {
            let asked = all.iter().filter(|it| may_stay(it, is_same, owner));
            asked.map(|it| &*it.kind.name).collect::<Vec<_>>()
        };
        let changed = ["Secret", "ConfigMap", "PersistentVolumeClaim", name];
        assert_eq!(asked(false, Owner::Machine), changed);
        assert_eq!(asked(false, Owner::ControlPlane), changed);
        assert_eq!(asked(true, Owner::Machine), ["Secret"]);
        assert_eq!(asked(true, Owner::ControlPlane), Vec::<&str>::new());
    }

    #[test]
    fn jobs_run_first_where_they_run_at_all() {
        let first = |version: &Version| version.first().count();
        let new = || manifests("one", "x");
        assert_eq!(first(&version(new(), Vec::new(), false)), 1);
        assert_eq!(first(&version(new(), new(), false)), 0);
        assert_eq!(first(&version(new(), Vec::new(), true)), 0);
        // The same one may still run.
        let mut open = version(new(), new(), false);
        let job = key(&open.manifests[1]);
        open.unfinished.push((job, JobEnd::Open));
        assert_eq!(first(&open), 1);
        let is_early = |manifest: &Manifest| Version::is_early(manifest);
        let early: Vec<_> = open.manifests.iter().map(is_early).collect();
        assert_eq!(early, [true, true, false]);
    }
}

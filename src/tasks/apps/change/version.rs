//! Version: the manifests of a revision, with what of them is written.

use super::{
    super::{cluster::key, ledger::of_api, verdict::kinds},
    Work,
};
use crate::{
    core::{
        apps::{App, Manifest, Overlay, digests, unpinned},
        rollout::{JobEnd, Key, RolloutVerdict, job_end},
    },
    error::{Error, Result},
};

/// A version, with what of it is written.
pub(super) struct Version {
    pub(super) manifests: Vec<Manifest>,
    /// The version before, where it is known.
    before: Vec<Manifest>,
    /// Jobs of the version before that did not succeed, with how they are now.
    unfinished: Vec<(Key, JobEnd)>,
    /// Workloads that are written with their images by digest.
    pub(super) pinned: Vec<String>,
    pub(super) is_back: bool,
}

impl Version {
    /// Jobs run once for each content, again where they failed, and never on the way back; on the
    /// way back a Secret keeps its value of today unless it was changed.
    pub(super) fn is_written(&self, manifest: &Manifest) -> bool {
        let is_same = self.before.contains(manifest);
        match &*manifest.kind.name {
            "Job" if is_same => !self.is_back && self.end(manifest) == Some(JobEnd::Failed),
            "Job" => !self.is_back,
            "Secret" => !self.is_back || !is_same,
            _ => true,
        }
    }

    /// A Job that is not run again was judged before, unless it still runs.
    pub(super) fn is_judged(&self, manifest: &Manifest) -> bool {
        manifest.kind.name != "Job"
            || self.is_written(manifest)
            || self.end(manifest) == Some(JobEnd::Open)
    }

    /// Reason why only a person replaces this version by an earlier one; `None`: it goes back by
    /// itself.
    pub(super) fn stays_before(&self, earlier: &Self) -> Option<String> {
        let is_new_job = |it: &&Manifest| it.kind.name == "Job" && !earlier.manifests.contains(it);
        let job = self.manifests.iter().find(is_new_job);
        let mut all = self.manifests.iter().chain(&earlier.manifests);
        // Also one that is the same: its release may have failed, and is left to a person then.
        let chart = all.find(|it| it.kind.is_chart());
        let found = job.or(chart)?;
        Some(format!("{} may have changed data", found.in_words()))
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
        let ledger = self.apps.ledger();
        let app = &self.plan.app;
        let kept = self
            .patiently(async || ledger.manifests(app, number).await.map_err(of_api))
            .await?;
        let lost = || {
            Error::new(format!(
                "revision {number} of {} was not kept",
                self.plan.app
            ))
            .fix("deploy it again: pipeops-agent apps apply")
        };
        let mut manifests = kept.ok_or_else(lost)?;
        let app = self.record().await?.app;
        if app.revision(number).is_none() {
            // A power cut came before it was accepted.
            return Err(lost());
        }
        let earlier = if before == 0 {
            None
        } else {
            let name = &self.plan.app;
            self.patiently(async || ledger.manifests(name, before).await.map_err(of_api))
                .await?
        };
        let earlier = earlier.unwrap_or_default();
        let unfinished = self.unfinished_jobs(&app, before, &earlier).await?;
        let mut overlay = app.overlay(number);
        // After a power cut its Pods are being replaced already: the record has the choice.
        if is_back && (app.running != number || before == number) {
            overlay.pinned.clear();
            let version = (manifests.as_slice(), earlier.as_slice());
            overlay.pinned = self.to_pin(&app, (&overlay, before), version).await;
        }
        overlay.lay(&mut manifests);
        Ok(Version {
            manifests,
            pinned: overlay.pinned,
            before: earlier,
            unfinished,
            is_back,
        })
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
        overlay.lay(&mut version);
        app.overlay(before).lay(&mut current);
        let kinds = kinds(&version.iter().collect::<Vec<_>>());
        let cluster = self.cluster();
        let seen = self
            .patiently(async || cluster.observe(&app.namespace, &kinds).await)
            .await;
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
            found.is_none_or(|found| found.outcome.verdict == RolloutVerdict::Good.as_str())
        };
        let jobs = manifests
            .iter()
            .filter(|manifest| manifest.kind.name == "Job");
        let jobs: Vec<_> = jobs.collect();
        if jobs.is_empty() || was_good(number) {
            return Ok(Vec::new());
        }
        let kinds = kinds(&jobs);
        let cluster = self.cluster();
        let seen = self
            .patiently(async || cluster.observe(&app.namespace, &kinds).await)
            .await?;
        let end = |key: Key| {
            // One that is gone did not succeed before it went.
            let end = seen.get(&key).map_or(JobEnd::Failed, job_end);
            (key, end)
        };
        let ends = jobs.into_iter().map(key).map(end);
        Ok(ends.filter(|(_, end)| *end != JobEnd::Done).collect())
    }
}

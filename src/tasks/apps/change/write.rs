//! Writing of a version, object by object.

use super::{
    super::{cluster::Cluster, ledger::AppRecord},
    Work,
    judge::Part,
    retry::{RETRY_FIRST, RETRY_LONGEST},
    version::Version,
};
use crate::{
    core::{
        apps::{App, InventoryEntry, Manifest, Stage},
        backoff::Backoff,
        rollout::{JudgedRollout, RolloutVerdict},
    },
    error::{Error, Result, Retry},
    host::random,
    kube::Propagation,
};

impl Work {
    /// Writes a version. Where Jobs of it run first, workloads are written once these have
    /// succeeded; the judgement on one that has not is returned, and nothing more is written.
    pub(super) async fn write(
        &self,
        version: &Version,
        number: u64,
    ) -> Result<Option<JudgedRollout>> {
        if version.first().next().is_some() {
            // Until it is written as ours, an object of others is not: also where this ends here.
            let adopted = self.record().await?.app.adopted();
            self.write_part(version, (number, Part::First)).await?;
            let (judged, _) = self.judge(version, Part::First).await?;
            if judged.verdict == RolloutVerdict::Bad {
                return Ok(Some(judged));
            }
            self.adopt_again(&adopted).await?;
        }
        self.write_part(version, (number, Part::Whole)).await?;
        Ok(None)
    }

    /// Takes objects of others into the inventory that are still to be written as ours.
    async fn adopt_again(&self, adopted: &[InventoryEntry]) -> Result<()> {
        if adopted.is_empty() {
            return Ok(());
        }
        let mut read = self.record().await?;
        for entry in adopted {
            if read.app.uid(entry).is_none() {
                read.app.adopt(entry, &entry.uid, entry.adopted_in);
            }
        }
        self.keep(&mut read).await
    }

    /// Writes a part of a version, for as long as the account is not let in. Until then another
    /// change may take its place: what was written is kept.
    async fn write_part(&self, version: &Version, part: (u64, Part)) -> Result<()> {
        let mut backoff = Backoff::new(RETRY_FIRST, RETRY_LONGEST);
        loop {
            match self.write_all(version, part).await {
                Err(error) if error.retry == Retry::Later => {
                    self.apps.set_stoppable(&self.plan.app, true);
                    self.waits(&error, &mut backoff).await;
                    self.apps.set_stoppable(&self.plan.app, false);
                }
                done => return done,
            }
        }
    }

    /// Writes a version, object by object. The inventory knows each one before.
    async fn write_all(&self, version: &Version, (number, part): (u64, Part)) -> Result<()> {
        let mut read = self.record().await?;
        let nonces = version.manifests.iter().map(|_| random::hex::<16>());
        read.app
            .plan(&version.manifests, nonces.collect::<Result<Vec<_>>>()?);
        for job in version.succeeded() {
            read.app
                .record_job_success(&InventoryEntry::of(job), number);
        }
        let before = read.app.running;
        read.app.running = number;
        if let Some(revision) = read.app.revision_mut(number) {
            revision.overlay.pinned.clone_from(&version.pinned);
            revision.overlay.kept.clone_from(&version.kept);
        }
        self.keep(&mut read).await?;
        let cluster = self.cluster();
        let (mut written, mut unsure, mut is_written) = (Ok(()), None, false);
        for manifest in version
            .manifests
            .iter()
            .filter(|manifest| version.is_written(manifest))
            .filter(|manifest| part == Part::Whole || Version::is_early(manifest))
        {
            let of_version = (manifest, version.manifests.as_slice());
            let unproven = read.app.unproven_job.clone();
            let was_there = read.app.uid(&InventoryEntry::of(manifest)).is_some();
            if let Err(error) = self.write_one(&cluster, &mut read, of_version).await {
                written = Err(error);
                unsure = self.unsure(&cluster, &mut read.app, manifest).await;
                let is_there = read.app.uid(&InventoryEntry::of(manifest)).is_some();
                if unsure.is_none() && !is_there {
                    // A Job that was refused has changed nothing.
                    read.app.unproven_job = unproven;
                }
                is_written |= is_there && !was_there;
                break;
            }
            is_written = true;
        }
        if written.is_err() && !is_written && unsure.is_none() && before != 0 {
            // Its first object was refused: nothing of it runs.
            read.app.running = before;
        }
        // What was never written is not ours.
        let unwritten: Vec<_> = read
            .app
            .inventory
            .iter()
            .filter(|entry| entry.uid.is_empty() || entry.is_adopted)
            .filter(|entry| !unsure.as_ref().is_some_and(|unsure| unsure.is(entry)))
            .cloned()
            .collect();
        read.app.forget(&unwritten);
        read.app.clear_nonces();
        if written.is_ok() && part == Part::Whole && number == self.plan.revision {
            read.app.set_stage(self.lock.id(), Stage::Judge);
        }
        self.keep(&mut read).await?;
        written
    }

    /// Looks for an object whose write failed: it may have been created all the same, as where the
    /// call was cut or the next one is refused. Returns the object where nobody can say now.
    async fn unsure(
        &self,
        cluster: &Cluster<'_>,
        app: &mut App,
        manifest: &Manifest,
    ) -> Option<InventoryEntry> {
        let entry = InventoryEntry::of(manifest);
        if app.uid(&entry).is_some() {
            return None;
        }
        match cluster.uid(app, &entry).await {
            Ok(uid) => {
                app.record_uid(&entry, &uid.unwrap_or_default());
                None
            }
            Err(error) => {
                log::debug!("app {}: {}", app.name, error.sentence());
                Some(entry)
            }
        }
    }

    async fn write_one(
        &self,
        cluster: &Cluster<'_>,
        read: &mut AppRecord,
        (manifest, all): (&Manifest, &[Manifest]),
    ) -> Result<()> {
        let entry = InventoryEntry::of(manifest);
        let is_job = manifest.kind.name == "Job";
        if is_job && read.app.has_job_run(&entry, self.plan.revision) {
            // A later object could not be written, and all of them are written again.
            return Ok(());
        }
        if is_job && read.app.uid(&entry).is_some() {
            self.remove_job(cluster, read, &entry).await?;
        }
        if is_job {
            // It may run as soon as it is there, and a power cut may come right then.
            read.app.unproven_job = manifest.in_words();
            self.keep(read).await?;
        }
        let mut backoff = Backoff::new(RETRY_FIRST, RETRY_LONGEST);
        let uid = loop {
            match cluster.write(&read.app, (manifest, all)).await {
                Err(error) if error.retry == Retry::Soon => {
                    self.unsure(cluster, &mut read.app, manifest).await;
                    self.pauses(read, &error, &mut backoff).await?;
                }
                written => break written?,
            }
        };
        read.app.record_uid(&entry, &uid);
        if is_job {
            read.app.record_job_run(&entry, self.plan.revision);
        }
        Ok(())
    }

    /// Waits before a write is repeated. Another change may take the place of this one meanwhile:
    /// what was written is kept.
    async fn pauses(
        &self,
        read: &mut AppRecord,
        error: &Error,
        backoff: &mut Backoff,
    ) -> Result<()> {
        self.keep(read).await?;
        self.apps.set_stoppable(&self.plan.app, true);
        self.waits(error, backoff).await;
        self.apps.set_stoppable(&self.plan.app, false);
        Ok(())
    }

    /// A Job cannot be changed: it is made again, once its Pods have ended. Another change may take
    /// the place of this one meanwhile: what was written is kept.
    async fn remove_job(
        &self,
        cluster: &Cluster<'_>,
        read: &mut AppRecord,
        entry: &InventoryEntry,
    ) -> Result<()> {
        // Two that run at once may spoil their data.
        let policy = Propagation::Foreground;
        self.while_silent(async || cluster.delete(&read.app, entry, policy).await)
            .await?;
        self.keep(read).await?;
        self.apps.set_stoppable(&self.plan.app, true);
        let gone = self.until_gone(&read.app, entry).await;
        self.apps.set_stoppable(&self.plan.app, false);
        read.app.record_uid(entry, "");
        gone
    }
}

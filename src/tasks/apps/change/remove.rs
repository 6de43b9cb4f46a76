//! Removal: of a whole app, or of what a version no longer has.

use smol::Timer;

use super::{
    super::verdict::waiting,
    Work,
    retry::{RETRY_FIRST, RETRY_LONGEST},
    version::Version,
};
use crate::{
    core::{
        apps::{App, InventoryEntry, Manifest, Overlay, Stage},
        backoff::Backoff,
        journal::Outcome,
        rollout::{Cause, Finding},
    },
    error::{Error, Result, Retry},
    kube::Propagation,
};

/// Steps of a removal.
const DELETE: u32 = 0;
const FORGET: u32 = 1;

const AUTOSCALER: &str = "HorizontalPodAutoscaler";

impl Work {
    /// Deletes everything that is ours but claims, then the record. It goes on for as long as a
    /// finalizer keeps something.
    pub(super) async fn remove(&self, step: u32) -> Result<(Outcome, String)> {
        let (ledger, app) = (self.apps.ledger(), &self.plan.app);
        let removed = (Outcome::Done, "it is removed".to_owned());
        // A power cut came between the last act and its note.
        let Some(read) = self.known_record().await? else {
            return Ok(removed);
        };
        if step == DELETE {
            self.intend(DELETE, "delete").await;
            self.apps.set_stoppable(app, true);
            self.delete_all(&read.app).await?;
            self.apps.set_stoppable(app, false);
            self.done(DELETE).await;
        }
        self.intend(FORGET, "forget").await;
        self.with_retries(async || ledger.drop_app(&read.app).await)
            .await?;
        self.apps.forget(app);
        self.done(FORGET).await;
        Ok(removed)
    }

    async fn delete_all(&self, app: &App) -> Result<()> {
        // What was to be taken over from others, and was never written, is still theirs.
        let goes = || {
            let all = app.inventory.iter();
            all.filter(|entry| !entry.is_kept() && !entry.is_adopted)
        };
        // What leads to others goes before them.
        for entry in goes().rev() {
            self.delete(app, entry).await?;
        }
        for entry in goes() {
            self.until_gone(app, entry).await?;
        }
        Ok(())
    }

    /// Waits until an object that was deleted is gone: a finalizer may keep it.
    pub(super) async fn until_gone(&self, app: &App, entry: &InventoryEntry) -> Result<()> {
        let mut backoff = Backoff::new(RETRY_FIRST / 4, RETRY_LONGEST);
        while let Some(left) = self.remains(app, entry).await? {
            let finding = Finding {
                cause: Cause::Finalizer,
                object: entry.in_words(&app.namespace),
                sentence: format!("{left} is still there"),
                evidence: String::new(),
                fix: "its controller has to end it; the change then continues automatically"
                    .to_owned(),
                is_definite: false,
            };
            self.apps
                .show(&app.name, &waiting(finding, self.apps.now()));
            Timer::after(backoff.next(fastrand::u16(..))).await;
        }
        Ok(())
    }

    /// Returns the remainder of an object that was deleted, in words; `None`: it is gone.
    async fn remains(&self, app: &App, entry: &InventoryEntry) -> Result<Option<String>> {
        let cluster = self.cluster();
        self.with_retries(async || match cluster.remains(app, entry).await {
            Err(error) if self.is_gone_with_namespace(app, &error).await => Ok(None),
            remains => remains,
        })
        .await
    }

    async fn delete(&self, app: &App, entry: &InventoryEntry) -> Result<()> {
        let cluster = self.cluster();
        self.with_retries(async || {
            match cluster.delete(app, entry, Propagation::Background).await {
                Err(error) if self.is_gone_with_namespace(app, &error).await => Ok(()),
                deleted => deleted,
            }
        })
        .await
    }

    /// Returns whether the rights that an error is about are gone with the namespace, and with it
    /// everything that was in it.
    async fn is_gone_with_namespace(&self, app: &App, error: &Error) -> bool {
        error.retry == Retry::Later && self.apps.is_namespace_gone(&app.namespace).await
    }

    /// Gives workloads the number of Pods of their manifests, which was left out for as long as
    /// there was an autoscaler.
    async fn rescale(&self, app: &App, version: &Version) {
        let cluster = self.cluster();
        let has_number = |it: &&Manifest| {
            Overlay::key(it).is_some() && it.object.pointer("/spec/replicas").is_some()
        };
        for manifest in version.manifests.iter().filter(has_number) {
            let of_version = (manifest, version.manifests.as_slice());
            let written = self.with_retries(async || cluster.write(app, of_version).await);
            if let Err(error) = written.await {
                log::warn!("app {}: {}", app.name, error.sentence());
            }
        }
    }

    /// Deletes what the version no longer has, and forgets the oldest revisions. With that the
    /// change is over.
    pub(super) async fn prune(&self, version: &Version) -> Result<()> {
        let mut read = self.record().await?;
        read.app.give_back(&version.manifests, version.number);
        let surplus = read.app.surplus(&version.manifests);
        // An object that is deleted and still known is found to be gone by the next change.
        self.apps.set_stoppable(&self.plan.app, true);
        let mut gone = Vec::new();
        for entry in &surplus {
            self.delete(&read.app, entry).await?;
            // What a finalizer keeps stays ours, and is deleted again with the next version.
            if self.remains(&read.app, entry).await?.is_none() {
                gone.push(entry.clone());
            }
        }
        self.apps.set_stoppable(&self.plan.app, false);
        if surplus.iter().any(|it| it.kind == AUTOSCALER) {
            self.rescale(&read.app, version).await;
        }
        read.app.forget(&gone);
        let gone = read.app.prune();
        let ledger = self.apps.ledger();
        for number in gone {
            let app = &self.plan.app;
            self.with_retries(async || ledger.drop_revision(app, number).await)
                .await?;
        }
        read.app.set_stage(self.lock.id(), Stage::Over);
        self.keep(&mut read).await
    }
}

//! Version: the manifests of a revision, with what of them is written.

use super::{super::ledger::of_api, Work};
use crate::{
    core::apps::Manifest,
    error::{Error, Result},
};

/// A version, with what of it is written.
pub(super) struct Version {
    pub(super) manifests: Vec<Manifest>,
    /// The version before, where it is known.
    before: Vec<Manifest>,
    pub(super) is_back: bool,
}

impl Version {
    /// Jobs run once for each content and never on the way back; on the way back a Secret keeps its value of today unless it was changed.
    pub(super) fn is_written(&self, manifest: &Manifest) -> bool {
        let is_same = self.before.contains(manifest);
        match manifest.kind.name {
            "Job" => !self.is_back && !is_same,
            "Secret" => !self.is_back || !is_same,
            _ => true,
        }
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
}

//! Judging of a version: watches it until it is good or bad.

use std::{collections::BTreeMap, rc::Rc};

use smol::Timer;

use super::{
    super::{
        cluster::Cluster,
        verdict::{kinds, scope},
        watched::Watched,
    },
    Work,
    last_lines::LastLines,
    version::Version,
};
use crate::{
    core::{
        apps::{Manifest, digests},
        rollout::{JudgedRollout, LOOK_EVERY, Rollout, Sight, stuck},
    },
    error::Result,
};

impl Work {
    /// Looks until the version is good or bad. Returns the digests of its images as well.
    pub(super) async fn judge(
        &self,
        version: &Version,
    ) -> Result<(JudgedRollout, BTreeMap<String, String>)> {
        let read = self.record().await?;
        let is_judged = |manifest: &&Manifest| version.is_judged(manifest);
        let judged: Vec<_> = version.manifests.iter().filter(is_judged).collect();
        let scope = scope(&judged);
        let cluster = self.cluster();
        let mut rollout = Rollout::new(scope.clone(), self.apps.now().mono);
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
                if judgement.verdict.is_final() {
                    let digests = watched.look(|sight| match sight {
                        Sight::Seen(seen) => digests(&version.manifests, seen),
                        Sight::Refused(_) | Sight::Blind => BTreeMap::new(),
                    });
                    break (judgement, digests.unwrap_or_default());
                }
            }
            Timer::after(LOOK_EVERY).await;
        };
        self.apps.may_stop(&self.plan.app, false);
        self.apps.stops_to_watch(&self.plan.app);
        Ok(judged)
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

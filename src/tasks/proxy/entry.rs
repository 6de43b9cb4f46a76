//! Pods that a call leads into: whether they meet the standard that the namespace must enforce. Pod
//! Security admission does not look at what ran before the namespace was labelled.

use super::{Shared, authorization::no_cluster, denial::Denial};
use crate::{
    core::{
        policy::{self, Breach, Entered, Level, PodSecurity, Rules},
        proxy::{Call, Refusal},
    },
    kube::services::Pod,
    tasks::rights::delegate::Delegate,
};

/// Pods of a service that are looked at and kept: one is needed, the others are for those that do
/// not answer.
const PODS_KEPT: usize = 3;

/// Returns whether these rules ask anything of a Pod.
fn asks(rules: Rules) -> bool {
    rules.level != Level::Full && rules.pod_security != PodSecurity::Privileged
}

impl Shared {
    /// Writes down a refusal, and makes it an answer.
    pub(super) async fn refuse(&self, call: &Call, refusal: Refusal) -> Denial {
        if let Some(row) = self.audit.refuse(call, &refusal) {
            self.audit.refused(row).await;
        }
        refusal.into()
    }

    /// Judges the Pods that a call for the Kubernetes API leads into.
    pub(super) async fn enter(&self, call: &Call, namespace: &str) -> Result<(), Denial> {
        let rules = self.rules.get();
        if !asks(rules) {
            return Ok(());
        }
        let entered = match policy::entered(call) {
            Ok(None) => return Ok(()),
            Ok(Some(entered)) => entered,
            Err(refusal) => return Err(self.refuse(call, refusal).await),
        };
        let (Some(delegate), Some(client)) =
            (&self.dependencies.delegate, &self.dependencies.client)
        else {
            return Err(no_cluster());
        };
        let names = match entered {
            Entered::Pod(name) => vec![name],
            Entered::Service(name) => {
                let names = client.pods_behind(namespace, &name).await;
                names.map_err(|error| Denial::backend(error.to_string()))?
            }
        };
        for name in names {
            let breaches = breaches(delegate, namespace, &name, rules).await?;
            // What is gone is the API server's to say.
            let breaches = breaches.unwrap_or_default();
            if let Err(refusal) = policy::settle_pod(&rules, (namespace, &name), &breaches) {
                return Err(self.refuse(call, refusal).await);
            }
        }
        Ok(())
    }

    /// The Pods of a service that may be entered, in their order; a refusal where there is none.
    pub(super) async fn enterable(
        &self,
        call: &Call,
        namespace: &str,
        pods: Vec<Pod>,
    ) -> Result<Vec<Pod>, Denial> {
        let rules = self.rules.get();
        if !asks(rules) {
            return Ok(pods);
        }
        let Some(delegate) = &self.dependencies.delegate else {
            return Err(no_cluster());
        };
        let mut kept = Vec::new();
        let mut refused = None;
        for pod in pods {
            let found = breaches(delegate, namespace, &pod.name, rules).await?;
            let Some(found) = found else { continue };
            match policy::settle_pod(&rules, (namespace, &pod.name), &found) {
                Ok(()) => kept.push(pod),
                Err(refusal) => refused = refused.or(Some(refusal)),
            }
            if kept.len() == PODS_KEPT {
                break;
            }
        }
        match refused {
            Some(refusal) if kept.is_empty() => Err(self.refuse(call, refusal).await),
            Some(_) | None => Ok(kept),
        }
    }
}

async fn breaches(
    delegate: &Delegate,
    namespace: &str,
    name: &str,
    rules: Rules,
) -> Result<Option<Vec<Breach>>, Denial> {
    let found = delegate.breaches(namespace, name, rules.pod_security);
    found.await.map_err(Denial::backend)
}

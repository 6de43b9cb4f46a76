//! Requests of the machine's owner to the proxy.

use std::time::Duration;

use super::{Proxy, deadline::until};
use crate::{
    core::{
        access::{Explanation, Inquiry, NamespaceLookup, explain},
        audit::Summary,
        policy::Rules,
        time::Wall,
    },
    host::clock,
    store::Failure,
};

/// Time for the cluster to describe a namespace: somebody waits for it in front of a screen.
const LOOK_WITHIN: Duration = Duration::from_secs(3);

impl Proxy {
    /// The rules that hold now.
    pub fn rules(&self) -> Rules {
        self.shared.rules.get()
    }

    /// Changes the rules. What runs and would not be admitted any more is ended. Returns how many
    /// that were.
    pub fn set_rules(&self, rules: Rules) -> usize {
        self.shared.rules.set(rules);
        let shared = &self.shared;
        if let Some(delegate) = &shared.dependencies.delegate {
            delegate.set_level(rules.level);
        }
        shared.admission.review(|call| shared.review(call))
    }

    /// Dry run of a request now.
    pub async fn explain(&self, inquiry: &Inquiry) -> Explanation {
        let explanation = explain(&self.rules(), inquiry);
        let Some(name) = explanation.awaits() else {
            return explanation;
        };
        let look = self.look(name).await;
        explanation.settled(&self.rules(), look)
    }

    async fn look(&self, namespace: &str) -> NamespaceLookup {
        let Some(delegate) = &self.shared.dependencies.delegate else {
            return NamespaceLookup::Unknown("no cluster is configured".to_owned());
        };
        let moment = clock::now().mono.after(LOOK_WITHIN);
        match until(moment, delegate.namespace(namespace)).await {
            Some(Ok(Some(found))) => NamespaceLookup::Found(found),
            Some(Ok(None)) => NamespaceLookup::Missing,
            Some(Err(why)) => NamespaceLookup::Unknown(why),
            None => NamespaceLookup::Unknown(format!(
                "the cluster did not answer about namespace {namespace} within {} s",
                LOOK_WITHIN.as_secs()
            )),
        }
    }

    /// The account that calls of the control plane run under; `None`: there is no cluster.
    pub fn account(&self) -> Option<String> {
        let delegate = self.shared.dependencies.delegate.as_ref()?;
        Some(delegate.account())
    }

    /// Requests of the control plane since then. `None`: there is no audit.
    pub async fn asked_since(&self, since: Wall) -> Option<Result<Summary, Failure>> {
        self.shared.audit.summary(since).await
    }
}

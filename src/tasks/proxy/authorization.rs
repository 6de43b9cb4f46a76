//! Authorization of a call: route, decision, audit row, identity. The only way in for every form of
//! request.

use std::{cell::OnceCell, rc::Rc, time::Duration};

use super::{
    Shared,
    admission::Pass,
    audit::Record,
    denial::{Cause, Denial},
};
use crate::{
    core::{
        audit::AuditEntry,
        policy::{
            self, PROTECTED, Policies, PolicyChange, Terms, Written,
            standing::{CallTerms, Grant, Observed},
        },
        proxy::{Call, CallTarget, Cluster, RawRequest, Refusal},
        secret::Secret,
        time::Mono,
    },
    kube::{Identity, query_escaped},
    wire::{
        json,
        kube::{HeadOnly, List},
    },
};

/// Time to look at what a change of NetworkPolicies would change.
const FENCE_WITHIN: Duration = Duration::from_secs(10);

/// Routing function of a form of request.
pub(super) type Route = fn(&RawRequest, Cluster) -> Result<Call, Refusal>;

/// Reason why a request does not run, and its row for the audit where it gets one.
#[derive(Debug)]
pub(super) struct Denied {
    pub(super) denial: Denial,
    pub(super) row: Option<AuditEntry>,
}

/// A call that may run as far as it says itself. It is judged again when its turn comes.
#[derive(Debug)]
pub(super) struct Admitted {
    pub(super) call: Rc<Call>,
}

/// Identity of a call.
#[derive(Clone, Debug)]
enum Caller {
    ControlPlane,
    Foreign(Secret),
    Itself,
}

/// A call that may run, and as whom.
#[derive(Debug)]
pub(super) struct Authorization {
    pub(super) call: Rc<Call>,
    pub(super) identity: Identity,
    /// Under whose identity the API server is asked for a way to a service's Pod, where there is no
    /// other.
    pub(super) forward_as: Option<Identity>,
    /// True if its body names a namespace that the agent makes in its own way.
    pub(super) makes_namespace: bool,
    /// Subject by which its body is judged; `None` if nothing in it matters.
    pub(super) writes: Option<Written>,
    /// True if the token of the identity is the delegate's, who can get another one.
    pub(super) is_delegated: bool,
}

impl Shared {
    /// Routes a request and judges what it says itself.
    pub(super) fn admit(&self, request: &RawRequest, route: Route) -> Result<Admitted, Denied> {
        self.requests.set(self.requests.get().saturating_add(1));
        let cluster = match self.dependencies.client {
            Some(_) => Cluster::Known,
            None => Cluster::None,
        };
        let call = route(request, cluster).map_err(|Refusal(text)| Denied {
            denial: Denial::new(Cause::Invalid, text),
            row: None,
        })?;
        match self.judge(&call) {
            Ok(_) => Ok(Admitted {
                call: Rc::new(call),
            }),
            Err(refusal) => Err(Denied {
                row: self.audit.refuse(&call, &refusal),
                denial: refusal.into(),
            }),
        }
    }

    /// The terms on which a call would be admitted now.
    pub(super) fn review(&self, call: &Call) -> Result<Terms, Refusal> {
        self.judge(call).map(|(terms, _)| terms)
    }

    fn judge(&self, call: &Call) -> Result<(Terms, Caller), Refusal> {
        let rules = self.rules.get();
        let terms = policy::decide(&rules, call)?;
        let caller = match policy::identity(&rules, |bearer| self.is_ours(bearer), call)? {
            policy::Identity::ControlPlane => Caller::ControlPlane,
            policy::Identity::Caller => Caller::Itself,
            policy::Identity::Foreign(value) => match value.strip_prefix("Bearer ") {
                Some(token) => Caller::Foreign(Secret::new(token)),
                None => {
                    return Err(Refusal(
                        "refused by the agent: only Bearer tokens are passed on".to_owned(),
                    ));
                }
            },
        };
        Ok((terms, caller))
    }

    /// Returns whether the control plane has this bearer from us.
    fn is_ours(&self, bearer: &str) -> bool {
        let delegate = self.dependencies.delegate.as_ref();
        delegate.is_some_and(|delegate| delegate.is_handle(bearer))
    }

    /// Waits for the turn of an admitted call, judges it by the rules of then, asks the cluster
    /// what is still open, writes a row into the audit, and gets it an identity.
    pub(super) async fn authorization(
        &self,
        admitted: Admitted,
        pass: &Pass,
        written: &OnceCell<Record>,
    ) -> Result<Authorization, Denial> {
        pass.turn().await?;
        let Admitted { call } = admitted;
        let (terms, caller) = match self.judge(&call) {
            Ok(judged) => judged,
            Err(refusal) => return Err(self.refuse(&call, refusal).await),
        };
        let grant = match caller {
            Caller::ControlPlane => Grant::of(&call),
            Caller::Foreign(_) | Caller::Itself => None,
        };
        let mut writes = None;
        match &terms {
            Terms::Free => pass.rely(CallTerms::Free, grant),
            Terms::NewNamespace => pass.rely(CallTerms::NewNamespace, grant),
            Terms::InManaged(namespace) => {
                let (found, seen) = self.settle(&call, namespace).await?;
                // From here on a change of the labels ends the call, whether it has started or not.
                pass.rely(CallTerms::in_managed(namespace, &found, seen), grant);
                self.bind(&call, namespace, &found).await?;
                writes = policy::written(&call);
            }
        }
        let record = self
            .audit
            .authorization(&call, pass.watch_cut().withdrawal())
            .await;
        let record = record.map_err(|text| Denial::new(Cause::Busy, text))?;
        written.get_or_init(|| record);
        let is_delegated = matches!(caller, Caller::ControlPlane);
        let forward_as = match call.target {
            // Not to be had is no reason to refuse: most hosts reach their Pods by themselves.
            CallTarget::Service(_) => self.delegated_token().await.ok().map(Identity::Bearer),
            CallTarget::Kubernetes(_) => None,
        };
        let identity = match caller {
            Caller::ControlPlane => Identity::Bearer(self.delegated_token().await?),
            Caller::Foreign(token) => Identity::Bearer(token),
            Caller::Itself => Identity::Anonymous,
        };
        Ok(Authorization {
            call,
            identity,
            forward_as,
            makes_namespace: terms == Terms::NewNamespace,
            writes,
            is_delegated,
        })
    }

    /// A token of the control plane's account.
    pub(super) async fn delegated_token(&self) -> Result<Secret, Denial> {
        let Some(delegate) = &self.dependencies.delegate else {
            return Err(no_cluster());
        };
        delegate.token().await.map_err(Denial::backend)
    }

    /// Asks the cluster whether a namespace is one where the call may run. The moment is the one at
    /// which the look began.
    pub(super) async fn settle(
        &self,
        call: &Call,
        namespace: &str,
    ) -> Result<(Observed, Mono), Denial> {
        let Some(delegate) = &self.dependencies.delegate else {
            return Err(no_cluster());
        };
        let found = delegate.observed(namespace).await;
        let (found, seen) = found.map_err(Denial::backend)?;
        // The rules of now: they may have changed while the cluster was asked.
        let labels = found.as_ref().map(|found| &found.namespace);
        let settled = policy::settle(&self.rules.get(), namespace, labels);
        let fenced = PolicyChange::of(call);
        let settled = match &fenced {
            Some(fenced) => settled.and_then(|()| fenced.settle(labels)),
            None => settled,
        };
        let settled = match (settled, &fenced) {
            (Ok(()), Some(fenced)) => self.look_at_fence(fenced).await?,
            (settled, _) => settled,
        };
        match settled {
            Ok(()) => Ok((found.unwrap_or_default(), seen)),
            Err(refusal) => Err(self.refuse(call, refusal).await),
        }
    }

    /// Lets the control plane's account into a managed namespace, where that was not done before.
    async fn bind(&self, call: &Call, namespace: &str, found: &Observed) -> Result<(), Denial> {
        let Some(delegate) = &self.dependencies.delegate else {
            return Err(no_cluster());
        };
        let bound = delegate.bind(namespace, found).await;
        match call.target {
            CallTarget::Kubernetes(_) => {
                bound.map_err(Denial::backend)?;
                self.enter(call, namespace).await
            }
            // Needed where the way leads through the API server, and most hosts reach their Pods by
            // themselves.
            CallTarget::Service(_) => Ok(()),
        }
    }
}

impl Shared {
    /// Returns whether the NetworkPolicies that a call changes are protected, as the control
    /// plane's account sees them.
    async fn look_at_fence(&self, fenced: &PolicyChange) -> Result<Result<(), Refusal>, Denial> {
        let list = format!(
            "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
            fenced.namespace
        );
        let path = match &fenced.which {
            Policies::New => return Ok(Ok(())),
            Policies::One(name) => format!("{list}/{}", query_escaped(name)),
            Policies::All => format!("{list}?limit=1&labelSelector={PROTECTED}%3Dtrue"),
        };
        let Some(client) = &self.dependencies.client else {
            return Err(no_cluster());
        };
        let account = Identity::Bearer(self.delegated_token().await?);
        let cannot =
            |why: String| Denial::backend(format!("cannot read the NetworkPolicies: {why}"));
        let found = match client.read_as(&account, &path, FENCE_WITHIN).await {
            Ok(found) => found,
            Err(error) if error.is_not_found() => return Ok(Ok(())),
            Err(error) => return Err(cannot(error.to_string())),
        };
        let protected = match &fenced.which {
            Policies::New => None,
            Policies::One(name) => {
                let head: HeadOnly =
                    json::shape(&found).map_err(|error| cannot(error.to_string()))?;
                let label = head.metadata.labels.get(PROTECTED);
                label
                    .is_some_and(|value| value == "true")
                    .then(|| name.clone())
            }
            Policies::All => {
                let list: List<HeadOnly> =
                    json::shape(&found).map_err(|error| cannot(error.to_string()))?;
                let first = list.items.into_iter().next();
                first.map(|head| head.metadata.name)
            }
        };
        Ok(protected.map_or(Ok(()), |name| Err(fenced.refusal(&name))))
    }
}

pub(super) fn no_cluster() -> Denial {
    Denial::backend("kubernetes client not initialized")
}

//! Protected NetworkPolicies, which the control plane may not change.
//!
//! NetworkPolicies are additive, so a new one could allow what a protected one blocks. To prevent
//! that, an owner protects the whole namespace.

use super::{Attributes, Namespace, Verb};
use crate::core::proxy::{Call, CallTarget, Refusal};

/// The label of an object, or of a whole namespace, whose NetworkPolicies the control plane does
/// not change.
pub const PROTECTED: &str = "pipeops.io/protected";

/// A change of NetworkPolicies.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PolicyChange {
    pub namespace: String,
    /// The policies that are changed.
    pub which: Policies,
}

/// The policies that a call changes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Policies {
    New,
    /// The one of this name.
    One(String),
    /// All that a selector finds.
    All,
}

impl PolicyChange {
    /// The change that a call makes, where it is one of NetworkPolicies.
    pub fn of(call: &Call) -> Option<Self> {
        let CallTarget::Kubernetes(path) = &call.target else {
            return None;
        };
        let Attributes::Object(object) = Attributes::of(&call.method, path, &call.query)? else {
            return None;
        };
        if object.group != "networking.k8s.io" || object.resource != "networkpolicies" {
            return None;
        }
        let which = match object.verb {
            Verb::Get | Verb::List | Verb::Watch => return None,
            Verb::Create => Policies::New,
            Verb::Update | Verb::Patch | Verb::Delete => Policies::One(object.name.into_owned()),
            Verb::DeleteCollection | Verb::Proxy | Verb::None => Policies::All,
        };
        Some(Self {
            namespace: object.namespace.into_owned(),
            which,
        })
    }

    /// Returns whether the namespace lets it through; why not otherwise.
    pub fn settle(&self, found: Option<&Namespace>) -> Result<(), Refusal> {
        if found.is_some_and(|found| found.is_protected) {
            let what = format!("the NetworkPolicies of namespace {}", self.namespace);
            return Err(refusal(&what, &format!("namespace {}", self.namespace)));
        }
        Ok(())
    }

    /// Returns why it is refused: a policy of this name is protected.
    pub fn refusal(&self, name: &str) -> Refusal {
        let what = format!("the NetworkPolicy {name} in namespace {}", self.namespace);
        let object = format!("networkpolicy {name} --namespace {}", self.namespace);
        refusal(&what, &object)
    }
}

fn refusal(what: &str, object: &str) -> Refusal {
    Refusal(format!(
        "refused by the agent: {what} is protected by its owner; fix, on the box: kubectl label {object} {PROTECTED}-"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::proxy::{Cluster, RawRequest, route};

    fn call(request: &str) -> Call {
        let (method, path) = request.split_once(' ').unwrap();
        let asked = RawRequest::kubernetes(method, path, "");
        route(&asked, Cluster::Known).unwrap()
    }

    #[test]
    fn changes_of_network_policies_are_told_from_everything_else() {
        let below = "/apis/networking.k8s.io/v1/namespaces/shop/networkpolicies";
        for (request, wanted) in [
            (format!("GET {below}/x"), None),
            (format!("POST {below}"), Some(Policies::New)),
            (
                format!("PUT {below}/x"),
                Some(Policies::One("x".to_owned())),
            ),
            (
                format!("PATCH {below}/x"),
                Some(Policies::One("x".to_owned())),
            ),
            (
                format!("DELETE {below}/x"),
                Some(Policies::One("x".to_owned())),
            ),
            (format!("DELETE {below}"), Some(Policies::All)),
            ("POST /api/v1/namespaces/shop/pods".to_owned(), None),
            (
                "DELETE /apis/networking.k8s.io/v1/namespaces/shop/ingresses/x".to_owned(),
                None,
            ),
        ] {
            let found = PolicyChange::of(&call(&request)).map(|fenced| fenced.which);
            assert_eq!(found, wanted, "{request}");
        }
    }

    #[test]
    fn a_protected_namespace_lets_no_change_through() {
        let fenced = PolicyChange {
            namespace: "shop".to_owned(),
            which: Policies::New,
        };
        let mut found = Namespace::default();
        assert_eq!(fenced.settle(Some(&found)), Ok(()));
        found.is_protected = true;
        let Refusal(text) = fenced.settle(Some(&found)).unwrap_err();
        assert!(text.contains("kubectl label namespace shop pipeops.io/protected-"));
    }
}

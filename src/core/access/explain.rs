//! Dry run of a request: the same decision as for a real one, without executing it.

use crate::core::{
    policy::{Attributes, Level, Namespace, Rules, Terms, decide, settle},
    proxy::{Call, CallTarget, Cluster, RawRequest, Refusal, route},
};

/// Hypothetical request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Inquiry {
    pub method: String,
    /// A path of the Kubernetes API with its query, or `namespace/service:port/path`, as the audit
    /// writes it.
    pub target: String,
}

/// Result of a dry run.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DryRunResult {
    /// It runs.
    Permitted,
    /// It does not.
    Refused,
    /// It depends on a namespace that was not read.
    Open,
}

impl DryRunResult {
    /// The word in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Permitted => "permitted",
            Self::Refused => "refused",
            Self::Open => "depends",
        }
    }
}

/// Result of looking up a namespace.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum NamespaceLookup {
    /// It was not read, with the reason.
    Unknown(String),
    /// There is none of that name.
    Missing,
    Found(Namespace),
}

/// A decision with its reasons.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Explanation {
    /// Result for the request.
    pub finding: DryRunResult,
    /// Reason.
    pub why: String,
    /// Change that would lead to another result; `None`: none needed.
    pub fix: Option<String>,
    /// The request as it is judged and sent; `None`: it makes no sense.
    pub call: Option<Call>,
    /// The namespace that it depends on, and what was found of it.
    pub namespace: Option<(String, NamespaceLookup)>,
}

/// Judges a request by what it says itself. Where that depends on a namespace,
/// [`Explanation::settled`] goes on.
pub fn explain(rules: &Rules, inquiry: &Inquiry) -> Explanation {
    // Whether there is a cluster changes nothing of what is permitted.
    let call = match route(&inquiry.raw_request(), Cluster::Known) {
        Ok(call) => call,
        Err(refusal) => return Explanation::refused(None, &refusal),
    };
    let terms = match decide(rules, &call) {
        Ok(terms) => terms,
        Err(refusal) => return Explanation::refused(Some(call), &refusal),
    };
    let level = rules.level.as_str();
    let (finding, why, namespace) = match terms {
        Terms::Free if rules.level == Level::Full => (
            DryRunResult::Permitted,
            "at the level full only the cluster's own rules decide".to_owned(),
            None,
        ),
        Terms::Free => (
            DryRunResult::Permitted,
            format!("at the level {level} this is allowed in every namespace"),
            None,
        ),
        Terms::NewNamespace => (
            DryRunResult::Permitted,
            "the agent creates the namespace itself, with both labels; default, kube-* and its own are refused".to_owned(),
            None,
        ),
        Terms::InManaged(name) => (
            DryRunResult::Open,
            format!("at the level {level} this is allowed in managed namespaces"),
            Some((name, NamespaceLookup::Unknown("the namespace was not checked".to_owned()))),
        ),
    };
    Explanation {
        finding,
        why,
        fix: None,
        call: Some(call),
        namespace,
    }
}

impl Explanation {
    fn refused(call: Option<Call>, refusal: &Refusal) -> Self {
        Self {
            finding: DryRunResult::Refused,
            why: reason(call.as_ref(), refusal),
            fix: refusal.fix().map(str::to_owned),
            call,
            namespace: None,
        }
    }

    /// Name of the namespace that has to be read first.
    pub fn awaits(&self) -> Option<&str> {
        let (name, look) = self.namespace.as_ref()?;
        matches!(look, NamespaceLookup::Unknown(_)).then_some(name)
    }

    /// The same with what was found of the namespace that it awaits.
    #[must_use]
    pub fn settled(mut self, rules: &Rules, look: NamespaceLookup) -> Self {
        let Some((name, _)) = self.namespace.take() else {
            return self;
        };
        let found = match &look {
            NamespaceLookup::Unknown(why) => {
                self.why = format!("{}; {why}", self.why);
                self.namespace = Some((name, look));
                return self;
            }
            NamespaceLookup::Missing => None,
            NamespaceLookup::Found(namespace) => Some(namespace),
        };
        match settle(rules, &name, found) {
            Ok(()) => {
                self.finding = DryRunResult::Permitted;
                self.why = format!("{}, and {name} is one", self.why);
            }
            Err(refusal) => {
                self.finding = DryRunResult::Refused;
                self.why = reason(self.call.as_ref(), &refusal);
                self.fix = refusal.fix().map(str::to_owned);
            }
        }
        self.namespace = Some((name, look));
        self
    }

    /// Attributes by which the API server authorizes the request; `None` for services, and for
    /// invalid requests.
    pub fn attributes(&self) -> Option<Attributes<'_>> {
        attributes(self.call.as_ref()?)
    }

    /// Returns whether the agent's account for the control plane would make the call; a service
    /// gets the caller's own words and nothing else.
    pub fn is_delegated(&self) -> bool {
        let target = self.call.as_ref().map(|call| &call.target);
        matches!(target, Some(CallTarget::Kubernetes(_)))
    }
}

fn attributes(call: &Call) -> Option<Attributes<'_>> {
    match &call.target {
        CallTarget::Kubernetes(path) => Attributes::of(&call.method, path, &call.query),
        CallTarget::Service(_) => None,
    }
}

/// Returns why a call is refused, without who refused what: the reader knows that, and what the
/// caller wrote stays out of it.
pub fn reason(call: Option<&Call>, refusal: &Refusal) -> String {
    let sentence = refusal.sentence();
    let Some(reason) = sentence.strip_prefix("refused by the agent: ") else {
        return sentence.to_owned();
    };
    let reason = reason.strip_prefix("call a service: ").unwrap_or(reason);
    let line = call.map(Call::line);
    let taken_for = call.and_then(attributes).map(|it| it.to_string());
    let mut what = [line, taken_for].into_iter().flatten();
    let short = what.find_map(|what| reason.strip_prefix(&what)?.strip_prefix(": "));
    short.unwrap_or(reason).to_owned()
}

impl Inquiry {
    /// The same as it would be asked for.
    pub fn raw_request(&self) -> RawRequest {
        let (path, query) = self
            .target
            .split_once('?')
            .unwrap_or((self.target.as_str(), ""));
        let service = service(path);
        let (namespace, name, port, path) = service.unwrap_or(("", "", 0, path));
        RawRequest {
            namespace: namespace.to_owned(),
            service: name.to_owned(),
            port,
            ..RawRequest::kubernetes(&self.method, path, query)
        }
    }
}

/// `namespace/service:port/path` in its parts.
fn service(target: &str) -> Option<(&str, &str, i64, &str)> {
    let (namespace, rest) = target
        .split_once('/')
        .filter(|(first, _)| !first.is_empty())?;
    let (name, rest) = rest.split_once(':')?;
    if name.contains('/') {
        return None;
    }
    let end = rest.find('/').unwrap_or(rest.len());
    let (port, path) = rest.split_at_checked(end)?;
    Some((namespace, name, port.parse().ok()?, path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::policy::PodSecurity;

    fn explained(level: Level, request: &str, look: Option<NamespaceLookup>) -> Explanation {
        let rules = Rules {
            level,
            ..Rules::default()
        };
        let (method, target) = request.split_once(' ').unwrap();
        let inquiry = Inquiry {
            method: method.to_owned(),
            target: target.to_owned(),
        };
        let explanation = explain(&rules, &inquiry);
        match look {
            Some(look) => explanation.settled(&rules, look),
            None => explanation,
        }
    }

    fn found(is_managed: bool) -> NamespaceLookup {
        NamespaceLookup::Found(Namespace {
            is_managed,
            enforces: Some(PodSecurity::Baseline),
            is_protected: false,
        })
    }

    #[test]
    fn findings_have_the_words_of_the_api() {
        let words = [
            DryRunResult::Permitted,
            DryRunResult::Refused,
            DryRunResult::Open,
        ]
        .map(DryRunResult::as_str);
        assert_eq!(words, ["permitted", "refused", "depends"]);
    }

    #[test]
    fn the_reason_tells_what_is_looked_at_next() {
        let shop = "PATCH /apis/apps/v1/namespaces/shop/deployments/web";
        let open = explained(Level::Managed, shop, None);
        assert_eq!(open.awaits(), Some("shop"));
        assert_eq!(
            explained(Level::Managed, shop, Some(found(true))).awaits(),
            None
        );
        let free = explained(Level::Full, "GET /api/v1/nodes", None);
        assert_eq!(free.awaits(), None);
        assert!(free.why.contains("cluster's own rules"), "{}", free.why);
        let listed = explained(Level::ReadOnly, "GET /api/v1/pods", None);
        assert!(listed.why.contains("read-only"), "{}", listed.why);
    }

    #[test]
    fn only_calls_to_kubernetes_are_made_by_the_account_of_the_control_plane() {
        for (request, is_delegated) in [
            ("GET /api/v1/pods", true),
            ("GET shop/web:80/index", false),
            ("CONNECT /api", false),
        ] {
            let explanation = explained(Level::Full, request, None);
            assert_eq!(explanation.is_delegated(), is_delegated, "{request}");
        }
    }

    #[test]
    fn a_request_is_explained_as_it_would_be_decided() {
        use DryRunResult::{Open, Permitted, Refused};
        use Level::{Full, Managed, Off, ReadOnly};
        let shop = "PATCH /apis/apps/v1/namespaces/shop/deployments/web";
        for (level, request, look, finding) in [
            (Full, "DELETE /api/v1/nodes/a", None, Permitted),
            (ReadOnly, "GET /api/v1/pods?watch=1", None, Permitted),
            (ReadOnly, shop, None, Refused),
            (Off, "GET /version", None, Refused),
            (Managed, "POST /api/v1/namespaces", None, Permitted),
            (Managed, shop, None, Open),
            (
                Managed,
                shop,
                Some(NamespaceLookup::Unknown("it is away".to_owned())),
                Open,
            ),
            (Managed, shop, Some(NamespaceLookup::Missing), Refused),
            (Managed, shop, Some(found(false)), Refused),
            (Managed, shop, Some(found(true)), Permitted),
            (
                Managed,
                "GET shop/web:80/index?a=b",
                Some(found(true)),
                Permitted,
            ),
            (ReadOnly, "GET shop/web:80", None, Refused),
            (Full, "GET /api/v1/%2e%2e/x", None, Refused),
            (Full, "GET pods", None, Refused),
            (Full, "GET shop/web:http/", None, Refused),
            (Full, "CONNECT /api", None, Refused),
        ] {
            let explanation = explained(level, request, look);
            assert_eq!(
                explanation.finding, finding,
                "{level:?} {request}: {explanation:?}"
            );
            assert!(!explanation.why.is_empty(), "{request}");
        }
    }

    #[test]
    fn a_refusal_names_what_would_change_it() {
        let refused = explained(
            Level::Managed,
            "POST /api/v1/namespaces/shop/pods",
            Some(found(false)),
        );
        assert_eq!(refused.why, "the namespace shop is not managed");
        let read_only = explained(Level::ReadOnly, "POST /api/v1/namespaces/shop/pods", None);
        let service = explained(Level::ReadOnly, "GET shop/web:80/", None);
        for refused in [read_only, service] {
            assert_eq!(
                refused.why,
                "access.level is \"read-only\", so changes and exec are refused"
            );
        }
        let fix = refused.fix.unwrap();
        assert!(
            fix.starts_with("kubectl label --overwrite namespace shop "),
            "{fix}"
        );
    }

    #[test]
    fn the_path_is_the_one_that_would_be_sent() {
        let explanation = explained(Level::Full, "get //api/v1/p%6Fds?watch=1", None);
        let attributes = explanation.attributes().unwrap().to_string();
        assert_eq!(attributes, "watch pods");
        let call = explanation.call.unwrap();
        assert_eq!(
            (call.line().as_str(), call.query.as_str()),
            ("GET /api/v1/pods", "watch=1")
        );
    }
}

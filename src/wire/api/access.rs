//! Access levels and decisions: the types of `/api/v1/access`.

use serde::{Deserialize, Serialize};

use super::stamp;
use crate::core::{
    access::{Explanation, NamespaceLookup},
    audit::{Counts, Refused, Summary, reason_and_fix},
    policy::Attributes,
    proxy::CallTarget,
};
use crate::wire::json::fields;

/// Path of the access level, which POST sets.
pub const ACCESS_PATH: &str = "/api/v1/access";
/// Path of the dry run of a request: `?method=GET&path=/api/v1/pods`.
pub const DECISION_PATH: &str = "/api/v1/access/decision";

/// Access level in force, its origin, and its effects.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct AccessReport {
    /// The level that holds: `full`, `managed`, `read-only` or `off`.
    pub level: String,
    /// The level of the configuration.
    pub configured: Configured,
    /// Level that was set on this machine; `null`: none.
    pub by_hand: Option<ByHand>,
    /// Requests of the last 24 hours; `null`: the audit cannot be read.
    pub last_day: Option<LastDay>,
    /// Reason why the audit cannot be read.
    pub last_day_why: Option<String>,
    /// Running calls.
    pub running: Running,
}
fields!(AccessReport {
    level,
    configured,
    by_hand,
    last_day,
    last_day_why,
    running
});

/// The level of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Configured {
    pub level: String,
    /// Origin: `FILE:LINE`, the name of a variable, `--set`, or `default`.
    pub from: String,
}
fields!(Configured { level, from });

/// A level that was set here by hand.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ByHand {
    /// The level; `null`: it is not known, so that nothing passes.
    pub level: Option<String>,
    /// True if it is what holds. Otherwise the configuration is stricter.
    pub is_in_force: bool,
    /// Time when it was set: RFC 3339 in UTC.
    pub since: Option<String>,
    /// User and process that set it, as in the audit.
    pub by: Option<String>,
}
fields!(ByHand {
    level,
    is_in_force,
    since,
    by
});

/// Requests of the last 24 hours.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LastDay {
    /// All of it.
    pub total: RequestCounts,
    /// Requests that only read.
    pub reads: RequestCounts,
    /// Requests that change something.
    pub changes: RequestCounts,
    /// Ways into containers: exec, attach, port-forward.
    pub entries: RequestCounts,
    /// Requests beyond the limits of a minute, which have no kind.
    pub others: RequestCounts,
    /// The newest refusals, the newest first.
    pub refusals: Vec<RefusedCall>,
}
fields!(LastDay {
    total,
    reads,
    changes,
    entries,
    others,
    refusals
});

/// Counts of requests of one kind.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
pub struct RequestCounts {
    /// Number of requests.
    pub count: u64,
    /// Number of permitted requests.
    pub permitted: u64,
    /// Number of refused requests.
    pub refused: u64,
    /// Bytes that came in with them.
    pub received_bytes: u64,
    /// Bytes that went out with their answers.
    pub sent_bytes: u64,
}
fields!(RequestCounts {
    count,
    permitted,
    refused,
    received_bytes,
    sent_bytes
});

/// Refused requests with the same reason.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RefusedCall {
    /// Method and path.
    pub what: String,
    /// Reason.
    pub why: String,
    /// Change that would have allowed it.
    pub fix: Option<String>,
    /// Time when it was asked the last time: RFC 3339 in UTC. Of what is summed it is the minute.
    pub last: String,
    /// Number of requests.
    pub count: u64,
}
fields!(RefusedCall {
    what,
    why,
    fix,
    last,
    count
});

/// Running calls, by class.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Running {
    /// Short requests.
    pub short: u64,
    /// Short requests that wait for their turn.
    pub waiting: u64,
    /// Watches, followed logs, exec and other upgrades.
    pub long: u64,
}
fields!(Running {
    short,
    waiting,
    long
});

/// Request to set a level.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct AccessRequest {
    /// The level that is wanted.
    pub level: String,
}

/// Result of setting a level.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct AccessChange {
    /// The level that holds now.
    pub level: String,
    /// The level that held before.
    pub before: String,
    /// Running calls that were cut, because they do not pass any more.
    pub cut: u64,
    /// True if it will hold after a restart, too.
    pub is_kept: bool,
    /// Problem with the disk, if any.
    pub trouble: Option<String>,
}
fields!(AccessChange {
    level,
    before,
    cut,
    is_kept,
    trouble
});

/// Decision on a request, with its reason.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Decision {
    /// `permitted`, `refused`, or `depends` where the cluster does not say what it knows of a
    /// namespace.
    pub verdict: String,
    /// Reason.
    pub why: String,
    /// The setting, the label or the command that would change it.
    pub fix: Option<String>,
    /// The level by which it was judged.
    pub level: String,
    /// The method as it is judged and sent.
    pub method: String,
    /// The path as it is judged and sent.
    pub path: String,
    /// Attributes by which the API server authorizes it; `null` for a service or an invalid
    /// request.
    pub request: Option<Request>,
    /// The service that it is for.
    pub service: Option<Service>,
    /// The namespace that it depends on.
    pub namespace: Option<Namespace>,
    /// The account that it would run under; `null`: none of the agent's.
    pub identity: Option<String>,
}
fields!(Decision {
    verdict,
    why,
    fix,
    level,
    method,
    path,
    request,
    service,
    namespace,
    identity
});

/// Attributes by which the API server authorizes a request; empty where absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Request {
    /// The API server's word for what is done.
    pub verb: String,
    /// The API group; empty for the core.
    pub group: String,
    /// The kind of objects, in its plural; empty for paths that name none.
    pub resource: String,
    /// The part of the object, or the act on it.
    pub subresource: String,
    /// The namespace; empty for what belongs to the whole cluster.
    pub namespace: String,
    /// The object's name.
    pub name: String,
}
fields!(Request {
    verb,
    group,
    resource,
    subresource,
    namespace,
    name
});

/// A service in the cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Service {
    pub namespace: String,
    pub name: String,
    pub port: u16,
}
fields!(Service {
    namespace,
    name,
    port
});

/// State of a namespace in the cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Namespace {
    pub name: String,
    /// Existence; `null`: unknown.
    pub exists: Option<bool>,
    /// Presence of the label of a managed namespace.
    pub is_managed: Option<bool>,
    /// The Pod Security level that it enforces; `null`: none, or not known.
    pub enforces: Option<String>,
}
fields!(Namespace {
    name,
    exists,
    is_managed,
    enforces
});

impl From<&Summary> for LastDay {
    fn from(summary: &Summary) -> Self {
        Self {
            total: (&summary.total()).into(),
            reads: (&summary.reads).into(),
            changes: (&summary.changes).into(),
            entries: (&summary.entries).into(),
            others: (&summary.others).into(),
            refusals: summary.refusals.iter().map(RefusedCall::from).collect(),
        }
    }
}

impl From<&Counts> for RequestCounts {
    fn from(counts: &Counts) -> Self {
        Self {
            count: counts.permitted.saturating_add(counts.refused),
            permitted: counts.permitted,
            refused: counts.refused,
            received_bytes: counts.received_bytes,
            sent_bytes: counts.sent_bytes,
        }
    }
}

impl From<&Refused> for RefusedCall {
    fn from(refused: &Refused) -> Self {
        let (why, fix) = reason_and_fix(&refused.why);
        Self {
            what: refused.what.clone(),
            why: why.to_owned(),
            fix: fix.map(str::to_owned),
            last: stamp(refused.last),
            count: refused.count,
        }
    }
}

impl From<&Explanation> for Decision {
    /// Without the level and the account, which an explanation does not know.
    fn from(explanation: &Explanation) -> Self {
        let target = explanation.call.as_ref().map(|call| &call.target);
        let (path, service) = match target {
            Some(CallTarget::Kubernetes(path)) => (path.as_str().to_owned(), None),
            Some(CallTarget::Service(service)) => (
                service.path.clone(),
                Some(Service {
                    namespace: service.namespace.clone(),
                    name: service.name.clone(),
                    port: service.port,
                }),
            ),
            None => (String::new(), None),
        };
        let method = explanation.call.as_ref().map(|call| call.method.clone());
        Self {
            verdict: explanation.finding.as_str().to_owned(),
            why: explanation.why.clone(),
            fix: explanation.fix.clone(),
            method: method.unwrap_or_default(),
            path,
            request: explanation.attributes().as_ref().map(Request::from),
            service,
            namespace: explanation
                .namespace
                .as_ref()
                .map(|(name, look)| Namespace::of(name, look)),
            ..Self::default()
        }
    }
}

impl From<&Attributes<'_>> for Request {
    fn from(attributes: &Attributes<'_>) -> Self {
        match attributes {
            Attributes::Path { verb, .. } => Self {
                verb: verb.clone(),
                ..Self::default()
            },
            Attributes::Object(object) => Self {
                verb: object.verb.as_str().to_owned(),
                group: object.group.to_string(),
                resource: object.resource.to_string(),
                subresource: object.subresource.to_string(),
                namespace: object.namespace.to_string(),
                name: object.name.to_string(),
            },
        }
    }
}

impl Namespace {
    fn of(name: &str, look: &NamespaceLookup) -> Self {
        let found = match look {
            NamespaceLookup::Found(found) => Some(found),
            NamespaceLookup::Missing | NamespaceLookup::Unknown(_) => None,
        };
        Self {
            name: name.to_owned(),
            exists: match look {
                NamespaceLookup::Found(_) => Some(true),
                NamespaceLookup::Missing => Some(false),
                NamespaceLookup::Unknown(_) => None,
            },
            is_managed: found.map(|found| found.is_managed),
            enforces: found.and_then(|found| Some(found.enforces?.as_str().to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{
        access::{Inquiry, explain},
        policy::{self, Rules},
        time::Wall,
    };

    fn decision(target: &str, look: NamespaceLookup) -> Decision {
        let inquiry = Inquiry {
            method: "PATCH".to_owned(),
            target: target.to_owned(),
        };
        let rules = Rules::default();
        (&explain(&rules, &inquiry).settled(&rules, look)).into()
    }

    #[test]
    fn a_decision_shows_what_was_asked_and_what_it_depends_on() {
        let found = NamespaceLookup::Found(policy::Namespace::default());
        let shown = decision("/apis/apps/v1/namespaces/shop/deployments/web?x=1", found);
        assert_eq!(shown.verdict, "refused");
        assert_eq!(shown.path, "/apis/apps/v1/namespaces/shop/deployments/web");
        let request = shown.request.unwrap();
        assert_eq!(
            (
                request.verb.as_str(),
                request.group.as_str(),
                request.name.as_str()
            ),
            ("patch", "apps", "web")
        );
        let namespace = shown.namespace.unwrap();
        assert_eq!(
            (namespace.exists, namespace.is_managed),
            (Some(true), Some(false))
        );

        let shown = decision("shop/web:80/x", NamespaceLookup::Missing);
        assert_eq!(shown.service.unwrap().port, 80);
        assert_eq!(shown.namespace.unwrap().exists, Some(false));

        let shown = decision("/api/../x", NamespaceLookup::Missing);
        assert_eq!((shown.request, shown.method.as_str()), (None, ""));
    }

    #[test]
    fn a_refusal_of_the_audit_comes_apart_into_reason_and_fix() {
        let refused = Refused {
            what: "GET /version".to_owned(),
            why: "it is off; fix: switch it on".to_owned(),
            last: Wall::from_millis(0),
            count: 3,
        };
        let shown = RefusedCall::from(&refused);
        assert_eq!(
            (shown.why.as_str(), shown.fix.as_deref()),
            ("it is off", Some("switch it on"))
        );
    }
}

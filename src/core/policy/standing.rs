//! Standing permissions: the conditions that a running call relies on, and when it must end because
//! they no longer hold.
//!
//! [`decide`] and [`settle`] judge a call before it starts. A [`CallTerms`] keeps the terms of that
//! decision, takes in later observations, and turns into a refusal once the call would no longer be
//! admitted. [`Rounds`] says what to check and when.

use std::time::Duration;

use litemap::LiteMap;

use super::{Attributes, Level, Namespace, Rules, Terms, decide, settle};
use crate::core::{
    proxy::{Call, CallTarget, Refusal},
    time::Mono,
};

/// Maximum age of the knowledge about a namespace that a running call relies on.
pub const FRESH_MAX: Duration = Duration::from_secs(30);
/// Time for the first look at a namespace that a stricter level makes a running call rely on. The
/// call ends within 5 s of the change.
const FIRST_LOOK_WITHIN: Duration = Duration::from_secs(4);
/// Interval between two looks at a namespace that running calls rely on.
const NAMESPACE_EVERY: Duration = Duration::from_secs(5);
/// Interval between two looks at a right that running calls rely on.
const GRANT_EVERY: Duration = Duration::from_secs(10);
/// Minimum time between two looks at a namespace, also after a failed one.
const NAMESPACE_INTERVAL_MIN: Duration = Duration::from_secs(1);

/// A namespace as the cluster describes it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Observed {
    /// UID of the object: a namespace that was deleted and created again has another one.
    pub uid: String,
    /// Labels that matter.
    pub namespace: Namespace,
}

/// The terms on which a call runs.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum CallTerms {
    /// The call waits for its turn and is judged again before it starts.
    #[default]
    Waiting,
    /// The call relies on the level alone.
    Free,
    /// The agent makes the namespace that the call names.
    NewNamespace,
    /// The call relies on a managed namespace.
    InManaged {
        /// Name of the namespace.
        namespace: String,
        /// UID that the namespace had at the first look.
        uid: Option<String>,
        /// Moment of the last look; `None` before the first one.
        seen: Option<Mono>,
        /// The call ends at this moment unless another look succeeds before.
        good_until: Mono,
    },
}

impl CallTerms {
    /// Terms of a call that is about to start in a managed namespace, which was observed at `seen`.
    pub fn in_managed(namespace: &str, observed: &Observed, seen: Mono) -> Self {
        Self::InManaged {
            namespace: namespace.to_owned(),
            uid: Some(observed.uid.clone()),
            seen: Some(seen),
            good_until: seen.after(FRESH_MAX),
        }
    }

    /// Applies the terms of the current rules; looser ones end nothing.
    ///
    /// # Errors
    /// The call cannot go on under these terms.
    pub fn revise(&mut self, terms: Terms, now: Mono) -> Result<(), Refusal> {
        match (&*self, terms) {
            (Self::Waiting, _) | (Self::NewNamespace, Terms::NewNamespace) => {}
            (_, Terms::Free) => *self = Self::Free,
            (Self::InManaged { namespace, .. }, Terms::InManaged(name)) if *namespace == name => {}
            (_, Terms::InManaged(namespace)) => {
                *self = Self::InManaged {
                    namespace,
                    uid: None,
                    seen: None,
                    good_until: now.after(FIRST_LOOK_WITHIN),
                };
            }
            (_, Terms::NewNamespace) => {
                return Err(Refusal(
                    "refused by the agent: at this level the agent itself makes the namespace; fix: try again"
                        .to_owned(),
                ));
            }
        }
        Ok(())
    }

    /// Applies the result of a namespace query; `None`: the cluster has none of that name.
    /// `seen_now` is the time at which the query began.
    ///
    /// # Errors
    /// The call relies on that namespace and would not be admitted there any more.
    pub fn observe(
        &mut self,
        rules: &Rules,
        name: &str,
        found: Option<&Observed>,
        seen_now: Mono,
    ) -> Result<(), Refusal> {
        let Self::InManaged {
            namespace,
            uid,
            seen,
            good_until,
        } = self
        else {
            return Ok(());
        };
        if namespace != name || seen.is_some_and(|seen| seen_now < seen) {
            return Ok(());
        }
        settle(rules, name, found.map(|found| &found.namespace))?;
        let Some(found) = found else {
            return Ok(());
        };
        if uid.as_ref().is_some_and(|uid| *uid != found.uid) {
            return Err(Refusal(format!(
                "refused by the agent: the namespace {name} was deleted and created again; fix: try again"
            )));
        }
        *uid = Some(found.uid.clone());
        *seen = Some(seen_now);
        *good_until = seen_now.after(FRESH_MAX);
        Ok(())
    }

    /// Checks that the knowledge is not too old.
    ///
    /// # Errors
    /// The call must end, because nothing fresh is known of its namespace.
    pub fn check_age(&self, now: Mono) -> Result<(), Refusal> {
        let Self::InManaged {
            namespace,
            good_until,
            ..
        } = self
        else {
            return Ok(());
        };
        if now < *good_until {
            return Ok(());
        }
        Err(Refusal(format!(
            "refused by the agent: the cluster does not report whether the namespace {namespace} is still managed; fix: try again when its API answers"
        )))
    }

    /// Moment at which the call ends unless another look succeeds before.
    pub const fn good_until(&self) -> Option<Mono> {
        match self {
            Self::InManaged { good_until, .. } => Some(*good_until),
            Self::Waiting | Self::Free | Self::NewNamespace => None,
        }
    }

    /// The namespace that is to be looked at, and when.
    pub fn next_look(&self) -> Option<(Dependency, Mono)> {
        match self {
            Self::InManaged {
                namespace, seen, ..
            } => {
                let due = seen.map_or_else(Mono::default, |seen| seen.after(NAMESPACE_EVERY));
                Some((Dependency::Namespace(namespace.clone()), due))
            }
            Self::Waiting | Self::Free | Self::NewNamespace => None,
        }
    }
}

/// A right in the cluster, in the words of an access review.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Grant {
    /// Verb, such as `watch`.
    pub verb: String,
    /// API group; empty for the core.
    pub group: String,
    /// Resource in its plural.
    pub resource: String,
    /// Subresource; may be empty.
    pub subresource: String,
    /// Namespace; empty for all.
    pub namespace: String,
    /// Name of the object; empty for all.
    pub name: String,
}

impl Grant {
    /// The right that the account of the control plane needs for a call. `None` for services, for
    /// paths without an object, and for calls that every level but `off` permits: rights to read
    /// what is not secret are compared with the manifest every ten minutes.
    pub fn of(call: &Call) -> Option<Self> {
        let CallTarget::Kubernetes(path) = &call.target else {
            return None;
        };
        let readers = Rules {
            level: Level::ReadOnly,
            ..Rules::default()
        };
        if decide(&readers, call).is_ok() {
            return None;
        }
        match Attributes::of(&call.method, path, &call.query)? {
            Attributes::Path { .. } => None,
            Attributes::Object(object) => Some(Self {
                verb: object.verb.as_str().to_owned(),
                group: object.group.into_owned(),
                resource: object.resource.into_owned(),
                subresource: object.subresource.into_owned(),
                namespace: object.namespace.into_owned(),
                name: object.name.into_owned(),
            }),
        }
    }

    /// The refusal of a running call whose account has lost this right.
    pub fn withdrawn(&self, account: &str) -> Refusal {
        let part = if self.subresource.is_empty() {
            String::new()
        } else {
            format!("/{}", self.subresource)
        };
        let place = if self.namespace.is_empty() {
            String::new()
        } else {
            format!(" in namespace {}", self.namespace)
        };
        Refusal(format!(
            "refused by the agent: the cluster no longer permits {account} to {} {}{part}{place}; fix: kubectl get rolebindings,clusterrolebindings -A -o wide | grep {account}",
            self.verb, self.resource
        ))
    }
}

/// Subjects outside this machine that running calls depend on.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Dependency {
    /// The labels of a namespace.
    Namespace(String),
    /// A right of the control plane's account.
    Grant(Grant),
}

impl Dependency {
    const fn apart(&self) -> Duration {
        match self {
            Self::Namespace(_) => NAMESPACE_INTERVAL_MIN,
            Self::Grant(_) => GRANT_EVERY,
        }
    }
}

/// First look at a right of a call that was admitted at this moment.
pub fn first_look_at_grant(admitted: Mono) -> Mono {
    admitted.after(GRANT_EVERY)
}

/// Schedule of looks at the subjects: only while a call depends on them, one look at a time for
/// each.
#[derive(Debug, Default)]
pub struct Rounds {
    checks: LiteMap<Dependency, PendingCheck>,
}

#[derive(Clone, Copy, Debug)]
struct PendingCheck {
    began: Mono,
    is_under_way: bool,
}

impl Rounds {
    /// Begins the looks that are due and returns their subjects. `relied_on` has every subject that
    /// running calls rely on, with the moment from which another look is wanted.
    pub fn begin(&mut self, relied_on: &LiteMap<Dependency, Mono>, now: Mono) -> Vec<Dependency> {
        self.checks
            .retain(|subject, look| look.is_under_way || relied_on.contains_key(subject));
        let due: Vec<Dependency> = relied_on
            .iter()
            .filter(|(subject, wanted)| self.due(subject, **wanted).is_some_and(|due| due <= now))
            .map(|(subject, _)| subject.clone())
            .collect();
        for subject in &due {
            let look = PendingCheck {
                began: now,
                is_under_way: true,
            };
            self.checks.insert(subject.clone(), look);
        }
        due
    }

    /// Ends the look at a subject, whatever it found.
    pub fn end(&mut self, subject: &Dependency) {
        if let Some(look) = self.checks.get_mut(subject) {
            look.is_under_way = false;
        }
    }

    /// Moment of the next look; `None` where nothing is relied on, or all looks are under way.
    pub fn next(&self, relied_on: &LiteMap<Dependency, Mono>) -> Option<Mono> {
        let all = relied_on.iter();
        all.filter_map(|(subject, wanted)| self.due(subject, *wanted))
            .min()
    }

    fn due(&self, subject: &Dependency, wanted: Mono) -> Option<Mono> {
        match self.checks.get(subject) {
            Some(look) if look.is_under_way => None,
            Some(look) => Some(wanted.max(look.began.after(subject.apart()))),
            None => Some(wanted),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{
        policy::PodSecurity,
        proxy::{Cluster, RawRequest, route},
    };

    fn at(seconds: u64) -> Mono {
        Mono::since_boot(Duration::from_secs(seconds))
    }

    fn observed(uid: &str, is_managed: bool, enforces: Option<PodSecurity>) -> Observed {
        Observed {
            uid: uid.to_owned(),
            namespace: Namespace {
                is_managed,
                enforces,
                ..Namespace::default()
            },
        }
    }

    fn managed() -> Observed {
        observed("1", true, Some(PodSecurity::Baseline))
    }

    fn in_shop() -> CallTerms {
        CallTerms::in_managed("shop", &managed(), at(100))
    }

    #[test]
    fn a_look_that_finds_the_same_keeps_a_call_for_another_while() {
        let rules = Rules::default();
        let mut standing = in_shop();
        assert!(standing.check_age(at(129)).is_ok());
        for second in [105, 110, 140] {
            let look = standing.observe(&rules, "shop", Some(&managed()), at(second));
            assert_eq!(look, Ok(()));
        }
        assert_eq!(standing.good_until(), Some(at(170)));
        assert!(standing.check_age(at(169)).is_ok());
        let Refusal(text) = standing.check_age(at(170)).unwrap_err();
        assert!(
            text.contains("does not report whether the namespace shop"),
            "{text}"
        );
    }

    #[test]
    fn whatever_would_not_be_admitted_any_more_ends() {
        let (baseline, privileged) = (Some(PodSecurity::Baseline), Some(PodSecurity::Privileged));
        for (found, why) in [
            (None, "there is no namespace shop"),
            (Some(observed("1", false, baseline)), "is not managed"),
            (Some(observed("1", true, privileged)), "enforces only"),
            (Some(observed("1", true, None)), "enforces only"),
            (Some(observed("2", true, baseline)), "created again"),
        ] {
            let mut standing = in_shop();
            let look = standing.observe(&Rules::default(), "shop", found.as_ref(), at(105));
            let Refusal(text) = look.unwrap_err();
            assert!(text.contains(why), "{found:?}: {text}");
        }
    }

    #[test]
    fn looks_at_others_and_late_answers_change_nothing() {
        let mut standing = in_shop();
        let rules = Rules::default();
        assert_eq!(standing.observe(&rules, "other", None, at(200)), Ok(()));
        assert_eq!(standing.observe(&rules, "shop", None, at(99)), Ok(()));
        assert_eq!(standing, in_shop());
        let mut free = CallTerms::Free;
        assert_eq!(free.observe(&rules, "shop", None, at(200)), Ok(()));
        assert_eq!(free.next_look(), None);
    }

    #[test]
    fn a_stricter_level_makes_a_running_call_rely_on_its_namespace_within_seconds() {
        let mut standing = CallTerms::Free;
        let terms = || Terms::InManaged("shop".to_owned());
        assert_eq!(standing.revise(terms(), at(100)), Ok(()));
        let due = (Dependency::Namespace("shop".to_owned()), Mono::default());
        assert_eq!(standing.next_look(), Some(due), "at once");
        assert!(standing.check_age(at(103)).is_ok());
        assert!(standing.check_age(at(104)).is_err(), "before 5 s are over");
        let look = standing.observe(&Rules::default(), "shop", Some(&managed()), at(101));
        assert_eq!(look, Ok(()));
        assert!(standing.check_age(at(130)).is_ok());
        // The same terms again are no reason to look again.
        let before = standing.clone();
        assert_eq!(standing.revise(terms(), at(102)), Ok(()));
        assert_eq!(standing, before);
    }

    #[test]
    fn looser_terms_end_nothing_and_a_namespace_that_is_sent_as_it_is_ends() {
        let mut standing = in_shop();
        assert_eq!(standing.revise(Terms::Free, at(101)), Ok(()));
        assert_eq!(standing, CallTerms::Free);
        assert!(standing.revise(Terms::NewNamespace, at(101)).is_err());
        let mut made = CallTerms::NewNamespace;
        assert_eq!(made.revise(Terms::NewNamespace, at(101)), Ok(()));
        let mut waiting = CallTerms::Waiting;
        assert_eq!(waiting.revise(Terms::NewNamespace, at(101)), Ok(()));
        assert_eq!(waiting, CallTerms::Waiting);
    }

    #[test]
    fn nothing_is_looked_at_that_nobody_relies_on_and_never_twice_at_once() {
        let mut rounds = Rounds::default();
        assert_eq!(rounds.next(&LiteMap::new()), None);
        let (subject, due) = in_shop().next_look().unwrap();
        let relied_on = LiteMap::from_iter([(subject.clone(), due)]);
        assert_eq!(rounds.begin(&relied_on, at(104)), Vec::<Dependency>::new());
        assert_eq!(rounds.next(&relied_on), Some(at(105)));
        assert_eq!(
            rounds.begin(&relied_on, at(105)),
            std::slice::from_ref(&subject)
        );
        assert_eq!(rounds.begin(&relied_on, at(106)), Vec::<Dependency>::new());
        assert_eq!(rounds.next(&relied_on), None, "it is under way");
        rounds.end(&subject);
        // It failed: again, but not in a loop.
        assert_eq!(rounds.next(&relied_on), Some(at(106)));
        assert_eq!(rounds.begin(&LiteMap::new(), at(107)), Vec::new());
        assert!(rounds.checks.is_empty());
    }

    #[test]
    fn a_right_is_looked_at_for_calls_that_need_more_than_reading() {
        let grant = |request: &str| {
            let (method, path) = request.split_once(' ').unwrap();
            let (path, query) = path.split_once('?').unwrap_or((path, ""));
            let call = route(&RawRequest::kubernetes(method, path, query), Cluster::Known).unwrap();
            Grant::of(&call)
        };
        for free in [
            "GET /version",
            "GET /api/v1/pods?watch=1",
            "GET /api/v1/namespaces/a/pods/b/log?follow=true",
        ] {
            assert_eq!(grant(free), None, "{free}");
        }
        let secrets = grant("GET /api/v1/namespaces/shop/secrets?watch=1").unwrap();
        let Refusal(text) = secrets.withdrawn("pipeops-cp");
        assert!(
            text.contains("no longer permits pipeops-cp to watch secrets in namespace shop;"),
            "{text}"
        );
        let exec = grant("POST /api/v1/namespaces/shop/pods/web/exec").unwrap();
        assert_eq!(
            (exec.subresource.as_str(), exec.name.as_str()),
            ("exec", "web")
        );
    }

    #[test]
    fn a_call_whose_namespace_changes_relies_on_the_new_one() {
        let mut standing = in_shop();
        let terms = Terms::InManaged("other".to_owned());
        assert_eq!(standing.revise(terms, at(101)), Ok(()));
        let due = (Dependency::Namespace("other".to_owned()), Mono::default());
        assert_eq!(standing.next_look(), Some(due));
    }

    #[test]
    fn a_look_of_the_same_moment_counts() {
        let mut standing = in_shop();
        let look = standing.observe(&Rules::default(), "shop", None, at(100));
        assert!(look.is_err(), "{look:?}");
    }

    #[test]
    fn a_right_is_looked_at_first_after_its_interval() {
        assert_eq!(first_look_at_grant(at(100)), at(100).after(GRANT_EVERY));
    }

    #[test]
    fn a_look_under_way_is_not_begun_again_by_a_call_that_comes_back() {
        let mut rounds = Rounds::default();
        let (subject, due) = in_shop().next_look().unwrap();
        let relied_on = LiteMap::from_iter([(subject.clone(), due)]);
        assert_eq!(rounds.begin(&relied_on, at(105)), [subject]);
        assert_eq!(rounds.begin(&LiteMap::new(), at(106)), Vec::new());
        assert_eq!(rounds.begin(&relied_on, at(120)), Vec::new());
    }
}

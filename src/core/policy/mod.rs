//! The on-box policy: whether a proxied call may run, and under whose identity. The only room that decides this, asked for every form
//! of request.
//!
//! [`decide`] judges what the call itself says; where that depends on a namespace, [`settle`] judges what the cluster says of it.
//! Nothing here can be changed from the link.

use crate::core::proxy::{Call, HeaderList, Refusal, Target};

/// What the owner of the box permits (`access.level`). The greater, the stricter.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub enum Level {
    /// Everything that the cluster's own rules permit.
    Full,
    /// Reads, and changes in managed namespaces.
    #[default]
    Managed,
    /// Reads only.
    ReadOnly,
    /// Nothing.
    Off,
}

impl Level {
    /// The word in the configuration.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Managed => "managed",
            Self::ReadOnly => "read-only",
            Self::Off => "off",
        }
    }

    /// The level of a word; `None` for any other.
    pub fn from_word(word: &str) -> Option<Self> {
        [Self::Full, Self::Managed, Self::ReadOnly, Self::Off]
            .into_iter()
            .find(|level| level.word() == word)
    }
}

/// The levels of the Pod Security Standards that a namespace can enforce, and none. The greater, the stricter.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub enum PodSecurity {
    /// Anything may run.
    Privileged,
    /// No way to the host.
    #[default]
    Baseline,
    /// Hardened Pods only.
    Restricted,
}

impl PodSecurity {
    /// The word in the configuration and in the namespace's label.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Privileged => "privileged",
            Self::Baseline => "baseline",
            Self::Restricted => "restricted",
        }
    }

    /// The level of a word; `None` for any other.
    pub fn from_word(word: &str) -> Option<Self> {
        [Self::Privileged, Self::Baseline, Self::Restricted]
            .into_iter()
            .find(|level| level.word() == word)
    }
}

/// The rules of this box.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Rules {
    /// What is permitted.
    pub level: Level,
    /// What a managed namespace must enforce at least (`access.pod_security`).
    pub pod_security: PodSecurity,
    /// Whether calls may bring an `Authorization` of their own (`access.foreign_tokens`).
    pub accepts_foreign_tokens: bool,
}

/// What a call that may run still depends on.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Terms {
    /// On nothing.
    Free,
    /// On this namespace being a managed one: [`settle`] says.
    InManaged(String),
    /// On the namespace that its body names: [`new_namespace`] makes the object that is sent instead.
    NewNamespace,
}

/// What the cluster says of a namespace.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Namespace {
    /// Whether it carries `pipeops.io/managed=true`.
    pub is_managed: bool,
    /// What it enforces; `None` where it has no such label.
    pub enforces: Option<PodSecurity>,
}

/// Decides whether a call may run, by what it says itself.
pub fn decide(rules: &Rules, _call: &Call) -> Result<Terms, Refusal> {
    match rules.level {
        Level::Full => Ok(Terms::Free),
        Level::Managed | Level::ReadOnly => Err(Refusal(format!(
            "refused by the agent: access.level is \"{}\", and this version proxies calls only with access.level = \"full\"",
            rules.level.word()
        ))),
        Level::Off => Err(Refusal(
            "refused by the agent: access.level is \"off\"".to_owned(),
        )),
    }
}

/// Under whose identity a call runs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Identity<'a> {
    /// The narrow account of the control plane, whose token never leaves the box. An `Authorization` of the caller's stays behind.
    ControlPlane,
    /// Whoever this value of `Authorization` belongs to.
    Foreign(&'a str),
    /// None of ours: an application decides by what the caller sent, `Authorization` and cookies included.
    Caller,
}

/// Chooses the identity of a call. `handle` is what the control plane was given in place of a token.
pub fn identity<'a>(rules: &Rules, handle: &str, call: &'a Call) -> Result<Identity<'a>, Refusal> {
    if matches!(call.target, Target::Service(_)) {
        return Ok(Identity::Caller);
    }
    match authorizations(&call.headers).as_slice() {
        [] => Ok(Identity::ControlPlane),
        [value] if value.strip_prefix("Bearer ") == Some(handle) => Ok(Identity::ControlPlane),
        [value] if rules.accepts_foreign_tokens => Ok(Identity::Foreign(value)),
        [_] => Err(Refusal(
            "refused by the agent: the request brings an Authorization of its own, and access.foreign_tokens is false".to_owned(),
        )),
        _ => Err(Refusal(
            "refused by the agent: the request brings more than one Authorization".to_owned(),
        )),
    }
}

fn authorizations(headers: &HeaderList) -> Vec<&str> {
    headers
        .iter()
        .filter(|(name, _)| name.eq_ignore_ascii_case("authorization"))
        .flat_map(|(_, values)| values)
        .map(String::as_str)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::proxy::{Asked, Cluster, Limit, Scheme, route};

    fn call(namespace: &str, path: &str) -> Call {
        let asked = Asked {
            method: String::new(),
            path: path.to_owned(),
            query: String::new(),
            headers: Vec::new(),
            scheme: Scheme::Http,
            namespace: namespace.to_owned(),
            service: namespace.to_owned(),
            port: i64::from(!namespace.is_empty()),
            is_websocket: false,
            protocol: String::new(),
            limit: Limit::Default,
        };
        route(&asked, Cluster::Known).unwrap()
    }

    fn rules(level: Level) -> Rules {
        Rules {
            level,
            ..Rules::default()
        }
    }

    #[test]
    fn only_full_permits_and_a_refusal_names_the_setting() {
        let call = call("", "/api/v1/pods");
        assert_eq!(decide(&rules(Level::Full), &call), Ok(Terms::Free));
        for level in [Level::Managed, Level::ReadOnly, Level::Off] {
            let Refusal(text) = decide(&rules(level), &call).unwrap_err();
            assert!(text.contains("access.level"), "{text}");
            assert!(text.contains(level.word()), "{text}");
        }
    }

    #[test]
    fn what_a_call_brings_along_decides_who_it_is() {
        let mut asked = call("", "/api/v1/pods");
        let found = |call: &Call, accepts| {
            let rules = Rules {
                accepts_foreign_tokens: accepts,
                ..Rules::default()
            };
            identity(&rules, "handle", call).map(|identity| format!("{identity:?}"))
        };
        assert_eq!(found(&asked, false).unwrap(), "ControlPlane");
        asked.headers = vec![("authorization".into(), vec!["Bearer handle".into()])];
        assert_eq!(found(&asked, false).unwrap(), "ControlPlane");
        asked.headers = vec![("AUTHORIZATION".into(), vec!["Bearer other".into()])];
        assert!(found(&asked, false).is_err());
        assert_eq!(found(&asked, true).unwrap(), "Foreign(\"Bearer other\")");
        asked
            .headers
            .push(("Authorization".into(), vec!["Bearer handle".into()]));
        assert!(found(&asked, true).is_err());
        assert_eq!(found(&call("shop", "/x"), false).unwrap(), "Caller");
    }

    #[test]
    fn words_name_levels_and_nothing_else_does() {
        for level in [Level::Full, Level::Managed, Level::ReadOnly, Level::Off] {
            assert_eq!(Level::from_word(level.word()), Some(level));
        }
        assert_eq!(Level::from_word("Full"), None);
        assert_eq!(Level::default(), Level::Managed);
        assert!(Level::Off > Level::ReadOnly && Level::Managed > Level::Full);
    }
}

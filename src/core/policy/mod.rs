//! The on-box policy: whether a proxied call may run, and under whose identity. Only this module
//! decides it, for every form of request.
//!
//! [`decide`] judges what the call itself says; where that depends on a namespace, [`settle`]
//! judges what the cluster says of it. Nothing here can be changed from the link. The lists are in
//! `tables.rs`; what is on none of them is refused.
//!
//! | a call that | `read-only` | `managed` | `full` |
//! |---|---|---|---|
//! | reads what is on the list: get, list, watch, logs, discovery, health | yes | yes | yes |
//! | asks about itself: `kubectl auth can-i`, `whoami` | yes | yes | yes |
//! | reads Secrets, or an API group on no list | no | in managed namespaces | yes |
//! | changes what is on the list | no | in managed namespaces | yes |
//! | enters: exec, attach, port-forward, proxy, a service | no | in managed namespaces | yes |
//! | creates a namespace | no | one with both labels | yes |
//! | does anything else, or impersonates | no | no | yes |
//!
//! A managed namespace carries `pipeops.io/managed=true` and enforces a Pod Security level of at
//! least `access.pod_security`. `default`, `kube-*` and `pipeops-system` never are. `off` permits
//! nothing. Under `full` the cluster's own rules decide alone.

mod attributes;
mod bodies;
mod fence;
mod identity;
mod judge;
mod namespace;
mod pods;
mod protobuf;
mod reserved_names;
mod schema;
pub mod standing;
mod tables;

pub use attributes::{Attributes, Object, Verb};
pub use bodies::{
    BODY_BYTES_MAX, BodyKind, Content, Expose, Fault, Judged, Write, Written, judge as judge_body,
    judge_existing, settle_body, unlocked, written,
};
pub use fence::{PROTECTED, Policies, PolicyChange};
pub use identity::{Identity, identity};
pub use judge::{CallKind, call_kind, decide};
pub use namespace::{NewNamespace, new_namespace, settle};
pub use pods::{Breach, Entered, breaches, entered, settle_pod};
pub use reserved_names::{Bound, inherits, lies_in, unknown_bindings};

/// Access level (`access.level`). The greater, the stricter.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub enum Level {
    /// Everything that the cluster's own rules permit.
    Full,
    /// Reads, and changes in managed namespaces.
    #[default]
    Managed,
    ReadOnly,
    /// Nothing.
    Off,
}

impl Level {
    /// The word in the configuration.
    pub const fn as_str(self) -> &'static str {
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
            .find(|level| level.as_str() == word)
    }
}

/// The levels of the Pod Security Standards that a namespace can enforce, and none. The greater,
/// the stricter.
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
    pub const fn as_str(self) -> &'static str {
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
            .find(|level| level.as_str() == word)
    }
}

/// The rules of this box.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Rules {
    /// Level in force.
    pub level: Level,
    /// Level of the configuration, if a stricter one was set on this machine.
    pub tightened_from: Option<Level>,
    /// Minimum Pod Security of a managed namespace (`access.pod_security`).
    pub pod_security: PodSecurity,
    /// True if calls may bring an `Authorization` of their own (`access.foreign_tokens`).
    pub accepts_foreign_tokens: bool,
    /// Services that open ports outside the cluster's network (`access.expose`).
    pub expose: Expose,
}

/// Terms on which a running call still depends.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Terms {
    /// On nothing.
    Free,
    /// On this namespace being a managed one: [`settle`] says.
    InManaged(String),
    /// On the namespace that its body names: [`new_namespace`] makes the object that is sent
    /// instead.
    NewNamespace,
}

/// Labels of a namespace in the cluster.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Namespace {
    /// True if it carries `pipeops.io/managed=true`.
    pub is_managed: bool,
    /// Enforced Pod Security; `None` without such a label.
    pub enforces: Option<PodSecurity>,
    /// True if its owner protected its NetworkPolicies.
    pub is_protected: bool,
}

/// Path of the configuration, for the text of a refusal.
const CONFIG: &str = "/etc/pipeops-agent/config.toml";

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod properties;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pod_security_is_read_from_the_words_that_it_is_written_with() {
        use PodSecurity::{Baseline, Privileged, Restricted};
        for (level, word) in [
            (Privileged, "privileged"),
            (Baseline, "baseline"),
            (Restricted, "restricted"),
        ] {
            assert_eq!(level.as_str(), word);
            assert_eq!(PodSecurity::from_word(word), Some(level));
        }
        assert_eq!(PodSecurity::from_word("Baseline"), None);
    }

    #[test]
    fn words_name_levels_and_nothing_else_does() {
        for level in [Level::Full, Level::Managed, Level::ReadOnly, Level::Off] {
            assert_eq!(Level::from_word(level.as_str()), Some(level));
        }
        assert_eq!(Level::from_word("Full"), None);
        assert_eq!(Level::default(), Level::Managed);
        assert!(Level::Off > Level::ReadOnly && Level::Managed > Level::Full);
    }
}

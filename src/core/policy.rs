//! The on-box policy: whether a proxied call may run, and under whose identity. The only two functions that decide this, called for every
//! form of request.
//!
//! Nothing here can be changed from the link.

use crate::core::proxy::{Call, Refusal, Target};

/// What the owner of the box permits (`access.level`).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Level {
    /// Everything, under the agent's own identity.
    Full,
    /// Managed namespaces only.
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

/// Decides whether a call may run.
///
/// Only `full` permits calls in this version; what the levels between will permit is not guessed before they are built.
pub fn decide(level: Level, _call: &Call) -> Result<(), Refusal> {
    match level {
        Level::Full => Ok(()),
        Level::Managed | Level::ReadOnly => Err(Refusal(format!(
            "refused by the agent: access.level is \"{}\", and this version proxies calls only with access.level = \"full\"",
            level.word()
        ))),
        Level::Off => Err(Refusal(
            "refused by the agent: access.level is \"off\"".to_owned(),
        )),
    }
}

/// Under whose identity a call runs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Identity {
    /// The agent's own kubeconfig. An `Authorization` header of the caller's stays behind: the API server would see it beside the client
    /// certificate, and which of the two counts is not ours to guess.
    Agent,
    /// None of ours: an application decides by what the caller sent, `Authorization` and cookies included.
    Caller,
}

/// Chooses the identity of a permitted call.
pub fn identity(_level: Level, call: &Call) -> Identity {
    match call.target {
        Target::Kubernetes(_) => Identity::Agent,
        Target::Service(_) => Identity::Caller,
    }
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

    #[test]
    fn only_full_permits_and_a_refusal_names_the_setting() {
        let call = call("", "/api/v1/pods");
        assert_eq!(decide(Level::Full, &call), Ok(()));
        for level in [Level::Managed, Level::ReadOnly, Level::Off] {
            let Refusal(text) = decide(level, &call).unwrap_err();
            assert!(text.contains("access.level"), "{text}");
            assert!(text.contains(level.word()), "{text}");
        }
    }

    #[test]
    fn the_agents_credentials_go_to_the_api_server_and_nowhere_else() {
        assert_eq!(
            identity(Level::Full, &call("", "/api/v1/pods")),
            Identity::Agent
        );
        assert_eq!(
            identity(Level::Full, &call("shop", "/api/v1/pods")),
            Identity::Caller
        );
    }

    #[test]
    fn words_name_levels_and_nothing_else_does() {
        for level in [Level::Full, Level::Managed, Level::ReadOnly, Level::Off] {
            assert_eq!(Level::from_word(level.word()), Some(level));
        }
        assert_eq!(Level::from_word("Full"), None);
        assert_eq!(Level::default(), Level::Managed);
    }
}

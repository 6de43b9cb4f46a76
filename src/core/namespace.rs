//! The namespace that the agent has for itself.

use std::fmt;

/// The name of a namespace that may be the agent's own: nothing else is in it, so that it can come
/// and go with the agent.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct OwnNamespace(String);

impl OwnNamespace {
    pub const USUAL: &str = "pipeops-system";

    /// Reads a name.
    ///
    /// # Errors
    /// Why it cannot be the agent's own.
    pub fn parse(name: &str) -> Result<Self, &'static str> {
        let is_inside =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let is_name = (1..=63).contains(&name.len())
            && name.bytes().all(is_inside)
            && !name.starts_with('-')
            && !name.ends_with('-');
        if !is_name {
            return Err("a namespace has 1 to 63 lowercase letters, digits and dashes");
        }
        if name == "default" || name.starts_with("kube-") {
            return Err("the agent needs its own namespace");
        }
        Ok(Self(name.to_owned()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether it is the usual one.
    pub fn is_usual(&self) -> bool {
        self.0 == Self::USUAL
    }
}

impl Default for OwnNamespace {
    fn default() -> Self {
        Self(Self::USUAL.to_owned())
    }
}

impl fmt::Display for OwnNamespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_that_others_need_is_not_ours() {
        assert!(OwnNamespace::parse("edge-1").is_ok());
        assert_eq!(
            OwnNamespace::parse(OwnNamespace::USUAL),
            Ok(OwnNamespace::default())
        );
        for name in [
            "",
            "default",
            "kube-system",
            "A",
            "a_b",
            "-a",
            "a-",
            "a\nb",
            "a.b",
        ] {
            assert!(OwnNamespace::parse(name).is_err(), "{name}");
        }
    }
}

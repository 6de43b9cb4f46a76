//! Secret text, which prints as `(hidden)`.

use std::fmt;

/// A token or password. Only [`Secret::reveal`] gives the text, so that every place that uses it
/// can be found.
#[derive(Clone, Eq, PartialEq)]
pub struct Secret(String);

impl Secret {
    /// Hides `text`.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself: for the request that needs it, never for a log line.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_not_shown_by_accident() {
        let secret = Secret::new("clt_1234");
        assert_eq!(format!("{secret} {secret:?}"), "(hidden) (hidden)");
        assert_eq!(secret.reveal(), "clt_1234");
    }
}

//! Error for people: what failed, why, how to fix it, and whether a retry can help.
//!
//! Modules may have closed error enums of their own where a caller decides by kind; they are
//! converted to this type before a person reads them.

use std::fmt;

/// Chance that another try helps.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Retry {
    /// The cause is short-lived (a busy queue, a reset connection).
    Soon,
    /// The cause may go away by itself, but not at once (no network, a full disk).
    Later,
    /// Only a change by a person helps.
    Never,
}

/// An error with its three answers. Shown as `what: why`, with the fix in a line of its own.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Error {
    /// Failed operation, with the thing's name: lower case, no full stop.
    pub what: String,
    /// Reasons, from the nearest cause to the farthest.
    pub why: Vec<String>,
    /// Action for a person.
    pub fix: Option<String>,
    /// Chance that trying again helps.
    pub retry: Retry,
}

/// Result of most fallible functions.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error that only a person can end, until [`Error::retry`] says otherwise.
    pub fn new(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            why: Vec::new(),
            fix: None,
            retry: Retry::Never,
        }
    }

    /// Adds a cause and the causes of that cause.
    #[must_use]
    pub fn because(mut self, cause: &(dyn std::error::Error + 'static)) -> Self {
        let mut next = Some(cause);
        while let Some(error) = next {
            let text = error.to_string();
            // Many crates print their source in their own text: saying it twice helps nobody.
            if !self.why.iter().any(|said| said.contains(&text)) {
                self.why.push(text);
            }
            next = error.source();
        }
        self
    }

    /// Adds a cause in words.
    #[must_use]
    pub fn why(mut self, why: impl Into<String>) -> Self {
        self.why.push(why.into());
        self
    }

    /// Says what a person can do.
    #[must_use]
    pub fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }

    /// Says whether trying again can help.
    #[must_use]
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// The same error seen from one level up: `what` becomes the first cause.
    #[must_use]
    pub fn within(mut self, what: impl Into<String>) -> Self {
        let inner = std::mem::replace(&mut self.what, what.into());
        self.why.insert(0, inner);
        self
    }

    /// Returns whether the operating system refused access to this user; another one may have it.
    pub fn is_denied(&self) -> bool {
        self.why.iter().any(|why| why.contains("ermission denied"))
    }

    /// The sentence without the fix, for log lines and conditions.
    pub fn sentence(&self) -> String {
        let mut text = self.what.clone();
        for why in &self.why {
            text.push_str(": ");
            text.push_str(why);
        }
        text
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence())?;
        if let Some(fix) = &self.fix {
            write!(f, "\nfix: {fix}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

/// Exit codes of the program, which scripts rely on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Exit {
    /// 0: fine.
    Fine,
    /// 1: the command ran and found a problem.
    Problem,
    /// 2: the command could not run (wrong arguments, unreadable configuration, no agent to ask).
    CouldNotRun,
}

impl Exit {
    /// The number that the shell sees.
    pub fn code(self) -> u8 {
        match self {
            Self::Fine => 0,
            Self::Problem => 1,
            Self::CouldNotRun => 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_reads_what_why_and_fix_in_that_order() {
        let io = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
        let error = Error::new("cannot read /etc/x")
            .because(&io)
            .fix("run as root");
        assert_eq!(
            error.to_string(),
            "cannot read /etc/x: permission denied\nfix: run as root"
        );
    }

    #[test]
    fn an_outer_level_keeps_the_inner_sentence() {
        let error = Error::new("no answer")
            .why("connection reset")
            .within("cannot list nodes");
        assert_eq!(
            error.sentence(),
            "cannot list nodes: no answer: connection reset"
        );
    }
}

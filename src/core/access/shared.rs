//! Shared tokens: the levels that permit sharing one, and when shared tokens must be invalidated.

use crate::core::policy::Level;

/// Tokens that may still be good, as a note on disk. It is written before a token is made and
/// removed after its account was.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Issued {
    /// Level under which the newest one was made.
    pub level: Level,
    /// UID of the account that they belong to; empty where that is not known.
    pub account_uid: String,
}

/// Returns whether a token of the control plane's account permits no more than a level does. The
/// account reads what is not secret, and it may create namespaces: at `read-only` that is too much.
pub const fn permits_sharing(level: Level) -> bool {
    match level {
        Level::Full | Level::Managed => true,
        Level::ReadOnly | Level::Off => false,
    }
}

impl Issued {
    /// Reads a note. What cannot be understood may have been anything.
    pub fn from_note(note: &str) -> Self {
        let (level, account_uid) = note.split_once(' ').unwrap_or((note, ""));
        Self {
            level: Level::from_word(level).unwrap_or(Level::Full),
            account_uid: account_uid.to_owned(),
        }
    }

    pub fn note(&self) -> String {
        format!("{} {}", self.level.as_str(), self.account_uid)
    }

    /// Returns whether these tokens permit more than is permitted now. `shares`: whether the
    /// settings share tokens at all.
    pub fn must_go(&self, level: Level, shares: bool) -> bool {
        !shares || !permits_sharing(level) || level > self.level
    }

    /// Returns whether an account of this UID is the one that the tokens belong to.
    pub fn is_of(&self, account_uid: &str) -> bool {
        self.account_uid.is_empty() || self.account_uid == account_uid
    }

    /// These tokens and another one, made under `level` for the account of this UID.
    #[must_use]
    pub fn and(before: Option<&Self>, level: Level, account_uid: &str) -> Self {
        // The least strict of them counts: it is the most that somebody may hold.
        let of_same = before.filter(|before| before.is_of(account_uid));
        Self {
            level: of_same.map_or(level, |before| before.level.min(level)),
            account_uid: account_uid.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Level::{Full, Managed, Off, ReadOnly};

    fn issued(level: Level) -> Issued {
        Issued {
            level,
            account_uid: "1-2".to_owned(),
        }
    }

    #[test]
    fn tokens_go_with_a_stricter_level_and_stay_with_a_looser_one() {
        for (made, now, goes) in [
            (Full, Full, false),
            (Full, Managed, true),
            (Full, Off, true),
            (Managed, Full, false),
            (Managed, Managed, false),
            (Managed, ReadOnly, true),
            (Managed, Off, true),
        ] {
            assert_eq!(issued(made).must_go(now, true), goes, "{made:?} {now:?}");
            assert!(issued(made).must_go(now, false), "nothing is shared now");
        }
    }

    #[test]
    fn a_note_says_what_was_said_and_a_broken_one_the_worst() {
        assert_eq!(Issued::from_note(&issued(Managed).note()), issued(Managed));
        let broken = Issued::from_note("what");
        assert!(broken.must_go(Managed, true) && broken.is_of("any"));
    }

    #[test]
    fn the_loosest_token_of_an_account_counts_until_the_account_is_another() {
        let before = issued(Full);
        assert_eq!(Issued::and(Some(&before), Managed, "1-2").level, Full);
        assert_eq!(Issued::and(Some(&before), Managed, "3-4").level, Managed);
        assert_eq!(Issued::and(None, Managed, "1-2"), issued(Managed));
        assert!(!before.is_of("3-4"));
    }
}

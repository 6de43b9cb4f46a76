//! Access level: the level in force, its origin, and who may change it.
//!
//! The stricter of two levels applies: `access.level` of the configuration, and the level set by
//! hand on this machine. Calls are judged elsewhere, in [`policy`](crate::core::policy).

mod explain;
mod shared;

pub use explain::{DryRunResult, Explanation, Inquiry, NamespaceLookup, explain, reason};
pub use shared::{Issued, permits_sharing};

use crate::core::{
    policy::{Level, Rules},
    time::Wall,
};

/// Access level that was set on this machine.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum Override {
    /// Nothing.
    #[default]
    None,
    Known(Tightened),
    /// An override may exist but cannot be read: the strictest level applies until one is set.
    Unknown,
}

/// A level that was set by hand.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Tightened {
    pub level: Level,
    /// Time when it was set; `None`: that is not known.
    pub since: Option<Wall>,
    /// User and process that set it, as in the audit; `None`: unknown.
    pub by: Option<String>,
}

/// Word of an override that cannot be read.
const UNKNOWN: &str = "unknown";

impl Override {
    /// Reads a note; what cannot be understood may have been anything.
    pub fn from_note(note: Option<&str>) -> Self {
        let Some(note) = note else {
            return Self::None;
        };
        let mut words = note.splitn(3, ' ');
        let Some(level) = words.next().and_then(Level::from_word) else {
            return Self::Unknown;
        };
        Self::Known(Tightened {
            level,
            since: words.next().and_then(Wall::parse_rfc3339),
            by: words.next().filter(|by| *by != "-").map(str::to_owned),
        })
    }

    /// The note that it is kept as: level, time and author in one, so that they cannot come apart.
    pub fn note(&self) -> Option<String> {
        match self {
            Self::None => None,
            Self::Unknown => Some(UNKNOWN.to_owned()),
            Self::Known(Tightened { level, since, by }) => {
                let since = since.map_or_else(|| "-".to_owned(), Wall::rfc3339);
                let by = by.as_deref().unwrap_or("-");
                Some(format!("{} {since} {by}", level.as_str()))
            }
        }
    }

    /// Level to apply; `None`: not set.
    const fn level(&self) -> Option<Level> {
        match self {
            Self::None => None,
            Self::Known(tightened) => Some(tightened.level),
            Self::Unknown => Some(Level::Off),
        }
    }
}

/// Access level in force, and its origin.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct EffectiveLevel {
    /// Level of the configuration.
    pub configured: Level,
    /// Level that was set on this machine.
    pub by_hand: Override,
}

/// Requester of a change.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Authority {
    /// Root: may do what the configuration permits.
    Owner,
    /// The agent's own user: may make it stricter.
    Operator,
}

/// Effect of a requested level.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Change {
    /// No change.
    Nothing,
    /// New level set by hand.
    ByHand(Override),
}

/// Reasons why a request is not granted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Denied {
    /// The configuration does not permit this level.
    BeyondConfiguration,
    /// Only root makes it less strict.
    OwnerOnly,
}

impl EffectiveLevel {
    /// The level that holds: the stricter of the two.
    pub fn level(&self) -> Level {
        let by_hand = self.by_hand.level().unwrap_or(self.configured);
        self.configured.max(by_hand)
    }

    /// Returns whether what was switched by hand is what makes it so strict.
    pub fn is_tightened(&self) -> bool {
        self.level() > self.configured
    }

    /// The rules that hold, where these are configured.
    pub fn rules(&self, configured: Rules) -> Rules {
        Rules {
            level: self.level(),
            tightened_from: self.is_tightened().then_some(self.configured),
            ..configured
        }
    }

    /// Decides on a requested level, which comes with its time and requester, for the note.
    pub fn change(&self, request: Tightened, authority: Authority) -> Result<Change, Denied> {
        let (wanted, held) = (request.level, self.level());
        if wanted < self.configured {
            return Err(Denied::BeyondConfiguration);
        }
        if wanted < held && authority == Authority::Operator {
            return Err(Denied::OwnerOnly);
        }
        if wanted == held && self.by_hand != Override::Unknown {
            return Ok(Change::Nothing);
        }
        // Back to the configuration is no override; but who says "off" while nobody knows, wants it
        // to stay.
        let by_hand = if wanted < held && wanted == self.configured {
            Override::None
        } else {
            Override::Known(request)
        };
        Ok(Change::ByHand(by_hand))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Level::{Full, Managed, Off, ReadOnly};

    fn request(level: Level) -> Tightened {
        Tightened {
            level,
            since: Some(Wall::from_millis(1000)),
            by: Some("uid 0, pid 7".to_owned()),
        }
    }

    fn known(level: Level) -> Override {
        Override::Known(request(level))
    }

    fn standing(configured: Level, by_hand: Override) -> EffectiveLevel {
        EffectiveLevel {
            configured,
            by_hand,
        }
    }

    #[test]
    fn the_stricter_of_both_holds() {
        for (configured, by_hand, level, is_tightened) in [
            (Managed, Override::None, Managed, false),
            (Managed, known(Off), Off, true),
            (Off, known(ReadOnly), Off, false),
            (Full, known(Full), Full, false),
            (Full, Override::Unknown, Off, true),
            (Off, Override::Unknown, Off, false),
        ] {
            let standing = standing(configured, by_hand);
            assert_eq!(standing.level(), level, "{standing:?}");
            assert_eq!(standing.is_tightened(), is_tightened, "{standing:?}");
        }
    }

    #[test]
    fn the_rules_have_the_level_that_holds_and_what_it_was_tightened_from() {
        let configured = Rules {
            level: Full,
            accepts_foreign_tokens: true,
            ..Rules::default()
        };
        for (by_hand, level, tightened_from) in [
            (Override::None, Full, None),
            (known(ReadOnly), ReadOnly, Some(Full)),
            (Override::Unknown, Off, Some(Full)),
        ] {
            let expected = Rules {
                level,
                tightened_from,
                ..configured
            };
            assert_eq!(standing(Full, by_hand).rules(configured), expected);
        }
    }

    /// Outcome of a request, as a word.
    fn came_of(standing: &EffectiveLevel, level: Level, authority: Authority) -> &'static str {
        match standing.change(request(level), authority) {
            Ok(Change::Nothing) => "nothing",
            Ok(Change::ByHand(Override::None)) => "cleared",
            Ok(Change::ByHand(by_hand)) if by_hand == known(level) => "set",
            Ok(Change::ByHand(_)) => "something else",
            Err(Denied::BeyondConfiguration) => "beyond",
            Err(Denied::OwnerOnly) => "root only",
        }
    }

    #[test]
    fn the_agents_user_tightens_and_root_loosens_up_to_the_configuration() {
        for (configured, by_hand, wanted, operator, owner) in [
            (Managed, Override::None, ReadOnly, "set", "set"),
            (Managed, Override::None, Managed, "nothing", "nothing"),
            (Managed, Override::None, Full, "beyond", "beyond"),
            (Managed, known(ReadOnly), Off, "set", "set"),
            (Managed, known(Off), ReadOnly, "root only", "set"),
            (Managed, known(Off), Managed, "root only", "cleared"),
            (Managed, known(Off), Full, "beyond", "beyond"),
            (Managed, known(Off), Off, "nothing", "nothing"),
            // The configuration became stricter: what was set by hand waits behind it and is not
            // forgotten.
            (Off, known(ReadOnly), Off, "nothing", "nothing"),
            (Off, known(ReadOnly), ReadOnly, "beyond", "beyond"),
            (Managed, Override::Unknown, Off, "set", "set"),
            (Managed, Override::Unknown, ReadOnly, "root only", "set"),
            (Managed, Override::Unknown, Managed, "root only", "cleared"),
            (Off, Override::Unknown, Off, "set", "set"),
        ] {
            let standing = standing(configured, by_hand);
            for (authority, awaited) in [(Authority::Operator, operator), (Authority::Owner, owner)]
            {
                let found = came_of(&standing, wanted, authority);
                assert_eq!(found, awaited, "{standing:?} {wanted:?} {authority:?}");
            }
        }
    }

    #[test]
    fn a_note_says_what_was_said() {
        for by_hand in [
            Override::None,
            Override::Unknown,
            known(ReadOnly),
            Override::Known(Tightened {
                by: None,
                since: None,
                level: Off,
            }),
        ] {
            let note = by_hand.note();
            assert_eq!(Override::from_note(note.as_deref()), by_hand);
        }
        assert_eq!(
            known(ReadOnly).note().as_deref(),
            Some("read-only 1970-01-01T00:00:01.000Z uid 0, pid 7")
        );
        assert!(matches!(
            Override::from_note(Some("off")),
            Override::Known(Tightened {
                level: Off,
                since: None,
                by: None
            })
        ));
        for odd in ["", "OFF", " off", "loose", "unknown"] {
            assert_eq!(Override::from_note(Some(odd)), Override::Unknown, "{odd:?}");
        }
    }
}

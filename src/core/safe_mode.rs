//! Safe mode: the functions of a start after several crashes in a row.
//!
//! A service manager restarts a crashed agent again and again. After [`EARLY_ENDS_MAX`] early ends
//! the next start only runs the link and the local page, so that people see the problem; from time
//! to time it tries everything again.

use std::{fmt, time::Duration};

use super::time::in_words;

/// Name of the record of starts, in the runtime directory.
pub const RECORD: &str = "starts";
/// Condition of an agent in safe mode.
pub const CONDITION: &str = "agent.safe-mode";
/// Early ends in a row before a start in safe mode.
pub const EARLY_ENDS_MAX: u32 = 4;
/// Running time after which a start has succeeded. What is done seldom (a flush, a look at the
/// disk) was done several times by then.
pub const SETTLED_AFTER: Duration = Duration::from_secs(600);
/// Time until the first try to run everything again; it doubles each time.
const RETRY_FIRST: Duration = Duration::from_secs(3600);
/// Longest such time.
const RETRY_MAX: Duration = Duration::from_secs(24 * 3600);

/// Extent of what an agent runs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mode {
    /// Everything.
    Normal,
    /// The link and the local page.
    Safe {
        /// Early ends in a row.
        early_ends: u32,
        /// Time until everything is tried again.
        retry_after: Duration,
    },
}

impl Mode {
    /// Returns whether everything runs.
    pub const fn is_normal(self) -> bool {
        match self {
            Self::Normal => true,
            Self::Safe { .. } => false,
        }
    }
}

/// Record of the starts since the last one that succeeded: two numbers in one line.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Starts {
    /// Starts that have not succeeded, the current one included.
    count: u32,
    /// Tries to leave safe mode.
    retries: u32,
}

impl Starts {
    /// Reads a record. Without a readable one this is the first start.
    pub fn parse(text: &str) -> Self {
        let mut numbers = text.split_whitespace().map(str::parse);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(count)), Some(Ok(retries))) => Self { count, retries },
            _ => Self::default(),
        }
    }

    /// A start: the record to keep until it has succeeded, and what it may run.
    pub fn begin(self) -> (Self, Mode) {
        let mode = if self.count < EARLY_ENDS_MAX {
            Mode::Normal
        } else {
            let doubled = RETRY_FIRST.saturating_mul(1 << self.retries.min(8));
            Mode::Safe {
                early_ends: self.count,
                retry_after: doubled.min(RETRY_MAX),
            }
        };
        let count = self.count.saturating_add(1);
        (Self { count, ..self }, mode)
    }

    /// The record with which the next start runs everything, and the one after it is in safe mode
    /// again unless that one succeeds.
    #[must_use]
    pub const fn retry(self) -> Self {
        Self {
            count: EARLY_ENDS_MAX - 1,
            retries: self.retries.saturating_add(1),
        }
    }
}

impl fmt::Display for Starts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} {}", self.count, self.retries)
    }
}

/// The sentence of [`CONDITION`].
pub fn sentence(early_ends: u32) -> String {
    format!(
        "safe mode: the agent crashed or was killed {early_ends} times in a row within {} of its start, so only the link and the local page run",
        in_words(SETTLED_AFTER)
    )
}

/// The fix of [`CONDITION`]; `log` and `restart` are commands.
pub fn fix(log: &str, restart: &str, retry_after: Duration) -> String {
    format!(
        "see the last lines before each start: {log}; after a repair: {restart} (otherwise everything is tried again after {})",
        in_words(retry_after)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_safe(starts: Starts) -> bool {
        !starts.begin().1.is_normal()
    }

    fn after(early_ends: u32) -> Starts {
        (0..early_ends).fold(Starts::default(), |starts, _| starts.begin().0)
    }

    #[test]
    fn the_fifth_start_in_a_row_is_in_safe_mode() {
        for early_ends in 0..EARLY_ENDS_MAX {
            assert!(!is_safe(after(early_ends)), "after {early_ends}");
        }
        assert_eq!(
            after(EARLY_ENDS_MAX).begin().1,
            Mode::Safe {
                early_ends: 4,
                retry_after: RETRY_FIRST
            }
        );
    }

    #[test]
    fn safe_mode_that_crashes_stays_safe_mode() {
        assert!(is_safe(after(EARLY_ENDS_MAX + 30)));
        let starts = Starts {
            count: u32::MAX,
            retries: u32::MAX,
        };
        assert!(is_safe(starts.begin().0));
    }

    #[test]
    fn one_crash_of_a_retry_leads_back_and_the_next_retry_is_later() {
        let mut starts = after(EARLY_ENDS_MAX);
        let mut waits = Vec::new();
        for _ in 0..7 {
            let (begun, mode) = starts.begin();
            let Mode::Safe { retry_after, .. } = mode else {
                panic!("{starts:?} is not in safe mode");
            };
            waits.push(retry_after.as_secs() / 3600);
            let (tried, mode) = begun.retry().begin();
            assert!(mode.is_normal());
            starts = tried;
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 24, 24]);
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let starts = after(3).retry();
        assert_eq!(Starts::parse(&starts.to_string()), starts);
        for text in ["", "4", "four 0", "-1 0", "\0\0\0\0", "4,0"] {
            assert_eq!(Starts::parse(text), Starts::default(), "{text:?}");
        }
    }
}

//! Retention: resolutions of samples and their lifetimes.
//!
//! Age is counted in measured minutes, not by a clock: one that jumps ten years must not delete
//! anything.

use std::time::Duration;

use super::time::DAY_MS;

/// Resolution of stored samples. A finer level is copied into the next one while it still exists
/// itself.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Resolution {
    /// Each value.
    Raw,
    /// Steps of a minute.
    Minutes,
    /// Steps of a quarter of an hour.
    Quarters,
    /// Steps of six hours.
    SixHours,
}

const MINUTES_OF_DAY: u64 = 1_440;
const MINUTE_MS: i64 = 60_000;
const HOUR_MS: i64 = 60 * MINUTE_MS;

impl Resolution {
    /// All, the finest first.
    pub const ALL: [Self; 4] = [Self::Raw, Self::Minutes, Self::Quarters, Self::SixHours];

    /// The number on disk.
    pub const fn number(self) -> i64 {
        match self {
            Self::Raw => 0,
            Self::Minutes => 1,
            Self::Quarters => 2,
            Self::SixHours => 3,
        }
    }

    /// The level of that number.
    pub fn of(number: i64) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.number() == number)
    }

    /// For people.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Raw => "single values",
            Self::Minutes => "steps of a minute",
            Self::Quarters => "steps of 15 minutes",
            Self::SixHours => "steps of six hours",
        }
    }

    /// Length of a step; single values have none.
    pub const fn step_ms(self) -> Option<i64> {
        match self {
            Self::Raw => None,
            Self::Minutes => Some(MINUTE_MS),
            Self::Quarters => Some(15 * MINUTE_MS),
            Self::SixHours => Some(6 * HOUR_MS),
        }
    }

    /// The level that this one becomes.
    pub const fn coarser(self) -> Option<Self> {
        match self {
            Self::Raw => Some(Self::Minutes),
            Self::Minutes => Some(Self::Quarters),
            Self::Quarters => Some(Self::SixHours),
            Self::SixHours => None,
        }
    }

    /// Pieces of this level that begin in the same span become one piece of the next. Single values
    /// become minutes piece by piece.
    pub const fn span_ms(self) -> Option<i64> {
        match self {
            Self::Raw | Self::SixHours => None,
            Self::Minutes => Some(DAY_MS),
            Self::Quarters => Some(30 * DAY_MS),
        }
    }

    /// Number of measured minutes that it is kept for: 48 hours, 30 days, a year, five years.
    pub const fn kept_minutes(self) -> u64 {
        match self {
            Self::Raw => 2 * MINUTES_OF_DAY,
            Self::Minutes => 30 * MINUTES_OF_DAY,
            Self::Quarters => 366 * MINUTES_OF_DAY,
            Self::SixHours => 5 * 366 * MINUTES_OF_DAY,
        }
    }

    /// Minimum life of a series, in measured minutes, to be kept at this level: a few minutes mean
    /// nothing in a step of six hours, and a month may have thousands of such series.
    pub const fn life_minutes(self) -> u64 {
        match self {
            Self::Raw | Self::Minutes => 0,
            Self::Quarters => 60,
            Self::SixHours => MINUTES_OF_DAY,
        }
    }

    /// The coarsest level that still has a value for each step of this length.
    pub fn for_step(step: Option<Duration>) -> Self {
        let asked = step.map_or(0, |step| {
            i64::try_from(step.as_millis()).unwrap_or(i64::MAX)
        });
        Self::ALL
            .into_iter()
            .rev()
            .find(|level| level.step_ms().unwrap_or(0) <= asked)
            .unwrap_or(Self::Raw)
    }
}

/// Limits of everything in the archive that grows with time.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Bounds {
    /// Minutes that each level is kept for.
    pub kept_minutes: [u64; 4],
    /// Series that are known, ended ones included. Above it those that lasted an hour at most go
    /// first, then Pods, the oldest before newer ones.
    pub series_max: usize,
    /// Boots that are known.
    pub boots_max: usize,
}

impl Bounds {
    /// Minutes that a level is kept for.
    pub fn kept_minutes(&self, level: Resolution) -> u64 {
        let levels = Resolution::ALL.into_iter().zip(self.kept_minutes);
        let mut kept = levels.filter_map(|(of, minutes)| (of == level).then_some(minutes));
        kept.next().unwrap_or_else(|| level.kept_minutes())
    }
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            kept_minutes: Resolution::ALL.map(Resolution::kept_minutes),
            // Five times what is measured at once at most; a list of them takes 3 MB.
            series_max: 10_000,
            // A boot every three minutes for two days, which is how long single values need their
            // boot.
            boots_max: 1_000,
        }
    }
}

/// Disk budget of samples: the setting, but at most a twentieth of the disk.
pub fn budget_bytes(setting: u64, disk_bytes: Option<u64>) -> u64 {
    disk_bytes.map_or(setting, |disk| setting.min(disk / 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_answered_from_the_coarsest_level_that_has_it() {
        for (seconds, level) in [
            (None, Resolution::Raw),
            (Some(15), Resolution::Raw),
            (Some(60), Resolution::Minutes),
            (Some(899), Resolution::Minutes),
            (Some(900), Resolution::Quarters),
            (Some(86_400), Resolution::SixHours),
        ] {
            assert_eq!(
                Resolution::for_step(seconds.map(Duration::from_secs)),
                level,
                "{seconds:?}"
            );
        }
    }

    #[test]
    fn each_level_is_kept_longer_than_the_finer_one_and_its_span_is_whole_steps() {
        for pair in Resolution::ALL.windows(2) {
            assert!(pair[0].kept_minutes() < pair[1].kept_minutes());
            assert_eq!(pair[0].coarser(), Some(pair[1]));
            assert_eq!(Resolution::of(pair[1].number()), Some(pair[1]));
            if let Some(span) = pair[0].span_ms() {
                assert_eq!(span % pair[1].step_ms().unwrap(), 0);
            }
        }
    }

    #[test]
    fn each_level_is_kept_as_long_as_the_documentation_says() {
        let days = |level: Resolution| Bounds::default().kept_minutes(level) / MINUTES_OF_DAY;
        assert_eq!(Resolution::ALL.map(days), [2, 30, 366, 5 * 366]);
        let metrics = include_str!("../../docs/metrics.md");
        for row in [
            "| single values | 48 hours |",
            "| steps of a minute | 30 days |",
            "| steps of 15 minutes | a year |",
            "| steps of six hours | five years |",
        ] {
            assert!(metrics.contains(row), "{row}");
        }
    }

    #[test]
    fn the_budget_is_a_twentieth_of_a_small_disk() {
        assert_eq!(budget_bytes(256 << 20, Some(1 << 30)), (1 << 30) / 20);
        assert_eq!(budget_bytes(256 << 20, Some(1 << 40)), 256 << 20);
        assert_eq!(budget_bytes(256 << 20, None), 256 << 20);
    }
}

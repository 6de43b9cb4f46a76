//! Monotonic and wall clock in one value. `mono` is for deadlines and intervals, `wall` only for
//! timestamps: boards without a battery-backed clock start in 1970.

use std::time::Duration;

/// Milliseconds of a day.
pub const DAY_MS: i64 = 86_400_000;

/// A point on the clock that only moves forward, also through suspend: time since boot.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct Mono(Duration);

impl Mono {
    /// From the time since boot.
    pub const fn since_boot(elapsed: Duration) -> Self {
        Self(elapsed)
    }

    /// The time since boot.
    pub const fn elapsed_since_boot(self) -> Duration {
        self.0
    }

    /// The time from `earlier` to here; zero where `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// This point moved forward; stays at the end of time where it would pass it.
    #[must_use]
    pub fn after(self, wait: Duration) -> Self {
        Self(self.0.saturating_add(wait))
    }
}

/// A stamp of the wall clock in milliseconds since 1970-01-01T00:00:00Z. May jump and lie; never
/// compare two for a deadline.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct Wall(i64);

impl Wall {
    /// From milliseconds since the epoch.
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// Milliseconds since the epoch.
    pub const fn millis(self) -> i64 {
        self.0
    }

    /// RFC 3339 in UTC with milliseconds, as the wire and our API write it:
    /// `2026-06-16T05:50:28.123Z`. Years outside 0..=9999 are clamped, so the text is always valid.
    pub fn rfc3339(self) -> String {
        let millis = self.0.clamp(YEAR_0_MS, YEAR_9999_MS);
        let (seconds, fraction) = (millis.div_euclid(1000), millis.rem_euclid(1000));
        let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
        let (year, month, day) = civil(days);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{fraction:03}Z")
    }

    /// Basic format of ISO 8601 in UTC, to the second: `20260616T055028Z`.
    pub fn basic(self) -> String {
        let text = self.rfc3339();
        let seconds = text.split('.').next().unwrap_or_default();
        let digits = seconds.chars().filter(|c| !"-:".contains(*c));
        digits.chain(['Z']).collect()
    }

    /// Reads RFC 3339 with any offset and up to nanoseconds. `None` for anything else.
    pub fn parse_rfc3339(text: &str) -> Option<Self> {
        let (date, rest) = text.split_at_checked(10)?;
        let mut date = date.splitn(3, '-').map(digits);
        let (year, month, day) = (date.next()??, date.next()??, date.next()??);
        let rest = rest.strip_prefix(['T', 't', ' '])?;
        let (clock, rest) = rest.split_at_checked(8)?;
        let mut clock = clock.splitn(3, ':').map(digits);
        let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
        // A leap second (60) is read as the second after.
        if !(1..=12).contains(&month)
            || !(1..=31).contains(&day)
            || hour > 23
            || minute > 59
            || second > 60
        {
            return None;
        }
        let (millis, zone) = fraction(rest)?;
        let offset = offset_s(zone)?;
        let days = days(year, month, day);
        let seconds = days * 86_400 + hour * 3600 + minute * 60 + second - offset;
        Some(Self(seconds * 1000 + millis))
    }
}

const YEAR_0_MS: i64 = -62_167_219_200_000;
const YEAR_9999_MS: i64 = 253_402_300_799_999;

fn digits(text: &str) -> Option<i64> {
    // A sign would be read, too.
    let is_digits = text.bytes().all(|byte| byte.is_ascii_digit());
    is_digits.then(|| text.parse().ok())?
}

/// Splits `.123456Z` into milliseconds and the zone.
fn fraction(text: &str) -> Option<(i64, &str)> {
    let Some(rest) = text.strip_prefix('.') else {
        return Some((0, text));
    };
    let end = rest.find(|c: char| !c.is_ascii_digit())?;
    let (number, zone) = rest.split_at_checked(end)?;
    if number.is_empty() || number.len() > 9 {
        return None;
    }
    let padded = format!("{number:0<3}");
    Some((digits(padded.get(..3)?)?, zone))
}

fn offset_s(zone: &str) -> Option<i64> {
    if zone.eq_ignore_ascii_case("z") {
        return Some(0);
    }
    let (sign, clock) = match zone.as_bytes().first()? {
        b'+' => (1, zone.get(1..)?),
        b'-' => (-1, zone.get(1..)?),
        _ => return None,
    };
    let (hours, minutes) = clock.split_once(':')?;
    let (hours, minutes) = (digits(hours)?, digits(minutes)?);
    (hours < 24 && minutes < 60 && clock.len() == 5).then_some(sign * (hours * 3600 + minutes * 60))
}

/// Days since 1970-01-01 to year, month, day of the proleptic Gregorian calendar. Eras of 400 years
/// that begin in March, so that the leap day is the last day of a year.
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 {
        march_month + 3
    } else {
        march_month - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

/// The reverse of [`civil`].
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let march_month = (month + 9) % 12;
    let day_of_year = (153 * march_month + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// Both clocks, read together.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Now {
    /// For deadlines and intervals.
    pub mono: Mono,
    /// For stamps.
    pub wall: Wall,
}

/// A length of time as people say it: `850 ms`, `12 s`, `3 min 20 s`, `3 h 12 min`, `4 d 2 h`.
pub fn in_words(length: Duration) -> String {
    let seconds = length.as_secs();
    match seconds {
        0 => format!("{} ms", length.subsec_millis()),
        1..=9 if length.subsec_millis() >= 100 => {
            format!("{seconds}.{} s", length.subsec_millis() / 100)
        }
        1..=59 => format!("{seconds} s"),
        60..=3599 => two(seconds / 60, "min", seconds % 60, "s"),
        3600..=86_399 => two(seconds / 3600, "h", seconds / 60 % 60, "min"),
        _ => two(seconds / 86_400, "d", seconds / 3600 % 24, "h"),
    }
}

fn two(large: u64, large_unit: &str, small: u64, small_unit: &str) -> String {
    if small == 0 {
        format!("{large} {large_unit}")
    } else {
        format!("{large} {large_unit} {small} {small_unit}")
    }
}

/// Timestamp to the second, for lists: `2026-06-16 05:50:28Z`.
pub fn moment(stamp: &str) -> String {
    let whole = Wall::parse_rfc3339(stamp).map(Wall::rfc3339);
    let text = whole.as_deref().unwrap_or(stamp);
    match (text.get(..10), text.get(11..19)) {
        (Some(date), Some(time)) => format!("{date} {time}Z"),
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_written_and_read_back() {
        for (text, millis) in [
            ("1970-01-01T00:00:00.000Z", 0),
            ("2026-06-16T05:50:28.123Z", 1_781_589_028_123),
            ("2000-02-29T23:59:59.999Z", 951_868_799_999),
            ("1969-12-31T23:59:59.999Z", -1),
            ("9999-12-31T23:59:59.999Z", YEAR_9999_MS),
            // Centuries have no leap day but every fourth.
            ("2100-03-01T00:00:00.000Z", 4_107_542_400_000),
            ("1900-02-28T23:59:59.000Z", -2_203_891_201_000),
        ] {
            assert_eq!(Wall::from_millis(millis).rfc3339(), text);
            assert_eq!(Wall::parse_rfc3339(text), Some(Wall::from_millis(millis)));
        }
    }

    #[test]
    fn offsets_and_fractions_of_other_writers_are_understood() {
        let wanted = Some(Wall::from_millis(1_781_589_028_120));
        for text in [
            "2026-06-16T05:50:28.12Z",
            "2026-06-16T07:50:28.120000001+02:00",
            "2026-06-16t00:20:28.12-05:30",
            "2026-06-16 05:50:28.12z",
        ] {
            assert_eq!(Wall::parse_rfc3339(text), wanted, "{text}");
        }
        let leap_second = Wall::parse_rfc3339("2016-12-31T23:59:60Z");
        assert_eq!(leap_second, Wall::parse_rfc3339("2017-01-01T00:00:00Z"));
        assert_eq!(leap_second, Some(Wall::from_millis(1_483_228_800_000)));
    }

    #[test]
    fn what_is_not_a_stamp_is_refused() {
        for text in [
            "",
            "2026-06-16",
            "2026-13-16T05:50:28Z",
            "2026-06-32T05:50:28Z",
            "2026-06-16T24:50:28Z",
            "2026-06-16T05:60:28Z",
            "2026-06-16T05:50:61Z",
            "2026-06--1T05:50:28Z",
            "2026-06-16T05:50:28",
            "2026-06-16T05:50:28.Z",
            "2026-06-16T05:50:28+2:00",
            "2026-06-16T05:50:28+24:00",
            "2026-06-16T05:50:28+02:60",
            "yesterday, at noon",
            "2026-06-16T05:50:28.1234567890Z",
            "é026-06-16T05:50:28Z",
        ] {
            assert_eq!(Wall::parse_rfc3339(text), None, "{text}");
        }
    }

    #[test]
    fn a_point_before_another_is_no_time_after_it_and_the_end_is_the_end() {
        let at = |seconds| Mono::since_boot(Duration::from_secs(seconds));
        assert_eq!(at(5).since(at(3)), Duration::from_secs(2));
        assert_eq!(at(3).since(at(5)), Duration::ZERO);
        let end = Mono::since_boot(Duration::MAX);
        assert_eq!(at(3).after(Duration::MAX), end);
        assert_eq!(end.after(Duration::from_secs(1)), end);
    }

    #[test]
    fn the_end_of_time_is_still_a_valid_stamp() {
        assert_eq!(
            Wall::from_millis(i64::MAX).rfc3339(),
            "9999-12-31T23:59:59.999Z"
        );
        assert_eq!(
            Wall::from_millis(i64::MIN).rfc3339(),
            "0000-01-01T00:00:00.000Z"
        );
    }

    #[test]
    fn lengths_are_said_in_two_units_at_most() {
        for (millis, text) in [
            (850, "850 ms"),
            (4_200, "4.2 s"),
            (4_099, "4 s"),
            (10_900, "10 s"),
            (12_400, "12 s"),
            (200_000, "3 min 20 s"),
            (11_520_000, "3 h 12 min"),
            (352_800_000, "4 d 2 h"),
            (3_600_000, "1 h"),
        ] {
            assert_eq!(in_words(Duration::from_millis(millis)), text);
        }
    }

    #[test]
    fn a_moment_is_told_to_the_second() {
        assert_eq!(
            moment("2026-06-16T07:50:28.5+02:00"),
            "2026-06-16 05:50:28Z"
        );
        assert_eq!(moment("never"), "never");
    }
}

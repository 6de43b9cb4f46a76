//! The only place of this crate that reads the time.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Now, on the clock that only goes forward.
#[expect(
    clippy::disallowed_methods,
    reason = "the one reader of the monotonic clock here"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// The time since 1970 in UTC; zero on a clock that stands before it.
#[expect(
    clippy::disallowed_methods,
    reason = "the one reader of the wall clock here"
)]
pub(crate) fn since_1970() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

/// The wall clock as RFC 3339 with milliseconds in UTC, as the envelope's `timestamp` wants it.
pub(crate) fn rfc3339() -> String {
    format_rfc3339(since_1970())
}

fn format_rfc3339(since: Duration) -> String {
    let seconds = since.as_secs();
    let (year, month, day) = civil(seconds / 86_400);
    let of_day = seconds % 86_400;
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:03}Z",
        of_day / 3_600,
        of_day / 60 % 60,
        of_day % 60,
        since.subsec_millis(),
    )
}

/// Days since 1970-01-01 as (year, month, day) in the Gregorian calendar: whole cycles of
/// 400 years have 146,097 days, and counting a year from March puts the leap day at its end.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timestamp_is_rfc_3339_in_utc() {
        let leap_day = Duration::from_millis(1_709_210_096_007);
        assert_eq!(format_rfc3339(leap_day), "2024-02-29T12:34:56.007Z");
        assert_eq!(format_rfc3339(Duration::ZERO), "1970-01-01T00:00:00.000Z");
    }
}

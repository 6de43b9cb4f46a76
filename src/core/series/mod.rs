//! Series of scaled integers, with names as in Prometheus.
//!
//! A value is an integer and the number of its decimal digits, so that it is written, added up,
//! printed and compared exactly: a share of 0.1234 with four digits is 1234.

pub mod block;
mod join;
mod key;
mod query;
pub mod steps;

pub use key::{Key, KeyError};
pub use query::{Aggregate, Known, Line, Listed, Page, Query, Search, Select};

use crate::core::time::{Mono, Now};

/// Decimal digits of a value at most: a share in millionths.
pub const DIGITS_MAX: u8 = 6;

/// One series: what it is called and how its integers are read.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Series {
    /// Name and labels.
    pub key: Key,
    /// Digits of its values after the decimal point: at most [`DIGITS_MAX`].
    pub digits: u8,
}

/// One value of one series.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Point {
    /// Series that was measured.
    pub series: Series,
    /// The value times `10^digits`.
    pub value: i64,
}

/// All that was measured at one moment.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Tick {
    /// Both clocks of that moment. A board without a battery starts in 1970: the wall clock counts
    /// only where `clock_is_set`.
    pub at: Now,
    /// True if the wall clock can be believed.
    pub clock_is_set: bool,
    /// The values: each series once at most.
    pub points: Vec<Point>,
}

impl Tick {
    /// The moment on the clock that never goes back within one boot.
    pub const fn mono(&self) -> Mono {
        self.at.mono
    }
}

/// Unit of a metric's values, by the suffix of its name as in Prometheus; empty: a number of
/// things.
pub fn unit(metric: &str) -> &'static str {
    // Longer ends before those that they end with.
    const ENDS: [&str; 12] = [
        "bytes_per_second",
        "bits_per_second",
        "bytes",
        "ratio",
        "celsius",
        "rpm",
        "per_second",
        "seconds",
        "volts",
        "watts",
        "cores",
        "hertz",
    ];
    let has = |end: &&&str| {
        metric
            .strip_suffix(**end)
            .is_some_and(|rest| rest.ends_with('_'))
    };
    ENDS.iter().find(has).copied().unwrap_or_default()
}

/// A value as people and receivers read it: `1234` with four digits is `0.1234`.
pub fn decimal(value: i64, digits: u8) -> String {
    let digits = usize::from(digits.min(DIGITS_MAX));
    if digits == 0 {
        return value.to_string();
    }
    let sign = if value < 0 { "-" } else { "" };
    let all = format!("{:0width$}", value.unsigned_abs(), width = digits + 1);
    let (whole, part) = all.split_at(all.len() - digits);
    let part = part.trim_end_matches('0');
    let dot = if part.is_empty() { "" } else { "." };
    format!("{sign}{whole}{dot}{part}")
}

/// The same as a floating-point number: the one nearest to [`decimal`].
pub fn float(value: i64, digits: u8) -> f64 {
    decimal(value, digits).parse().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_name_says_the_unit() {
        for (metric, wanted) in [
            ("host_cpu_ratio", "ratio"),
            ("host_network_receive_bytes_per_second", "bytes_per_second"),
            ("host_disk_reads_per_second", "per_second"),
            ("host_memory_available_bytes", "bytes"),
            ("host_load1", ""),
            ("bytes", ""),
        ] {
            assert_eq!(unit(metric), wanted, "{metric}");
        }
    }

    #[test]
    fn a_value_is_read_back_as_it_was_written() {
        for (value, digits, text) in [
            (0, 4, "0"),
            (1234, 4, "0.1234"),
            (-5, 3, "-0.005"),
            (12_000, 3, "12"),
            (i64::MAX, 0, "9223372036854775807"),
            (i64::MIN, 6, "-9223372036854.775808"),
        ] {
            assert_eq!(decimal(value, digits), text);
        }
        assert!((float(123_456_789, 6) - 123.456_789).abs() < f64::EPSILON);
    }
}

//! Values with units for people, by the unit at the end of a metric's name.

use std::time::Duration;

use crate::{cli::output::size, core::time::in_words as length};

/// A value of a metric with its unit: `0.31` of `…_ratio` is `31 %`.
pub(super) fn in_words(metric: &str, value: &str) -> String {
    let ends = |ending: &str| metric.ends_with(ending);
    if ends("_ratio") {
        return format!("{} %", percent(value));
    }
    if ends("_bytes") {
        return whole(value).map_or_else(|| value.to_owned(), size);
    }
    if ends("_bytes_per_second") {
        return whole(value).map_or_else(|| value.to_owned(), |bytes| format!("{}/s", size(bytes)));
    }
    if ends("_bits_per_second") {
        return whole(value).map_or_else(
            || value.to_owned(),
            |bits| format!("{} Mbit/s", bits / 1_000_000),
        );
    }
    if ends("_celsius") {
        return format!("{value} °C");
    }
    if ends("_rpm") {
        return format!("{value} rpm");
    }
    if ends("_seconds") {
        return match whole(value) {
            Some(seconds) if seconds >= 10 => length(Duration::from_secs(seconds)),
            _ => format!("{value} s"),
        };
    }
    if ends("_per_second") {
        return format!("{value}/s");
    }
    value.to_owned()
}

/// The whole part of a number that is not negative.
fn whole(value: &str) -> Option<u64> {
    value.split('.').next()?.parse().ok()
}

/// A share in hundredths: the point moves two places to the right.
fn percent(value: &str) -> String {
    let (sign, value) = value
        .strip_prefix('-')
        .map_or(("", value), |rest| ("-", rest));
    let (whole, part) = value.split_once('.').unwrap_or((value, ""));
    let part = format!("{part:0<2}");
    let (hundredths, rest) = part.split_at_checked(2).unwrap_or((&part, ""));
    let all = format!("{whole}{hundredths}");
    let all = all.trim_start_matches('0');
    let all = if all.is_empty() { "0" } else { all };
    let dot = if rest.is_empty() { "" } else { "." };
    format!("{sign}{all}{dot}{rest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_said_with_the_unit_of_its_name() {
        for (metric, value, words) in [
            ("host_cpu_ratio", "0.1234", "12.34 %"),
            ("host_cpu_ratio", "0", "0 %"),
            ("host_cpu_ratio", "1", "100 %"),
            ("host_cpu_ratio", "0.005", "0.5 %"),
            ("host_memory_available_bytes", "4123456789", "4.1 GB"),
            ("host_disk_read_bytes_per_second", "1234.5", "1.2 KB/s"),
            (
                "host_network_speed_bits_per_second",
                "1000000000",
                "1000 Mbit/s",
            ),
            ("host_temperature_celsius", "48.5", "48.5 °C"),
            ("host_uptime_seconds", "93784", "1 d 2 h"),
            ("host_disk_read_seconds", "0.004", "0.004 s"),
            ("host_load1", "0.52", "0.52"),
            ("host_clock_offset_seconds", "-0.004", "-0.004 s"),
        ] {
            assert_eq!(in_words(metric, value), words, "{metric}");
        }
    }
}

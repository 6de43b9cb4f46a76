//! Memory: `/proc/meminfo`, `/proc/vmstat`, `/proc/swaps`, `/proc/pressure` (`psi.rst`).

use super::behind;
use crate::core::rates::MemoryUse;

/// Values of `/proc/meminfo`, in bytes. `None` without even the total.
pub fn meminfo(meminfo: &str) -> Option<MemoryUse> {
    let bytes = |name| bytes(meminfo, name);
    let memory = MemoryUse {
        total: bytes("MemTotal:"),
        free: bytes("MemFree:"),
        buffers: bytes("Buffers:"),
        cached: bytes("Cached:"),
        available: bytes("MemAvailable:"),
        swap_total: bytes("SwapTotal:"),
        swap_free: bytes("SwapFree:"),
    };
    memory.total.map(|_| memory)
}

/// The bytes behind a name, which `/proc/meminfo` and `smaps_rollup` have as `1024 kB`.
pub fn bytes(text: &str, name: &str) -> Option<u64> {
    let kibibytes = behind(text, name)?.trim().strip_suffix(" kB")?.trim();
    kibibytes.parse::<u64>().ok()?.checked_mul(1024)
}

/// `oom_kill` of `/proc/vmstat`, which is there since Linux 4.13.
pub fn oom_kills(vmstat: &str) -> Option<u64> {
    behind(vmstat, "oom_kill ")?.trim().parse().ok()
}

/// An active swap.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Swap<'a> {
    /// The file or device.
    pub path: &'a str,
    /// True if it is a file, and the device is that of its file system.
    pub is_file: bool,
    /// Used space, in KiB.
    pub used_kib: u64,
}

/// The lines of `/proc/swaps`.
pub fn swaps(swaps: &str) -> impl Iterator<Item = Swap<'_>> {
    swaps.lines().skip(1).filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        Some(Swap {
            path: words.next()?,
            is_file: words.next()? == "file",
            used_kib: words.nth(1)?.parse().ok()?,
        })
    })
}

/// A line of a file below `/proc/pressure`: `some` of the programs stood still, or all of them
/// (`full`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Pressure {
    /// `some` or `full`. Before Linux 5.13 the processor has no `full`.
    pub kind: &'static str,
    /// Share of the last minute, in whole percent.
    pub minute_percent: Option<u64>,
    /// Time since boot, in microseconds.
    pub total_us: Option<u64>,
}

/// The lines of one file below `/proc/pressure`.
pub fn pressure(pressure: &str) -> impl Iterator<Item = Pressure> {
    ["some", "full"].into_iter().filter_map(move |kind| {
        let line = behind(pressure, kind)?.strip_prefix(' ')?;
        let value = |name: &str| {
            let mut words = line.split_ascii_whitespace();
            words.find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
        };
        Some(Pressure {
            kind,
            minute_percent: value("avg60").and_then(|share| share.split('.').next()?.parse().ok()),
            total_us: value("total").and_then(|total| total.parse().ok()),
        })
    })
}

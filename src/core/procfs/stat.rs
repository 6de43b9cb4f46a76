//! Processors, load and disks: `/proc/stat`, `/proc/loadavg`, `/proc/uptime`, `/proc/diskstats`
//! (`iostats.rst`).

use super::{behind, numbers};
use crate::core::rates::{Cpu, Disk, Transfers};

/// `/proc/diskstats` counts in these, whatever the disk's own sectors are.
const SECTOR_BYTES: u64 = 512;

/// The line of all processors of `/proc/stat`. The four first columns are there since Linux 2.4.
pub fn cpu(stat: &str) -> Option<Cpu> {
    let numbers = numbers(behind(stat, "cpu ")?);
    let mut cpu = Cpu::default();
    for (slot, number) in cpu.ticks.iter_mut().zip(&numbers) {
        *slot = (*number)?;
    }
    (numbers.len() >= 4).then_some(cpu)
}

/// Number of processors that are on line, by `/proc/stat`.
pub fn cores(stat: &str) -> Option<u64> {
    let count = stat
        .lines()
        .filter_map(|line| line.strip_prefix("cpu"))
        .filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        .count();
    u64::try_from(count).ok().filter(|count| *count > 0)
}

/// Number behind `name` that has a line of `/proc/stat` to itself.
pub fn number(stat: &str, name: &str) -> Option<u64> {
    behind(stat, name)?.trim().parse().ok()
}

/// The three averages of `/proc/loadavg` and, where it says so, the number of threads.
pub fn load(loadavg: &str) -> Option<([u64; 3], Option<u64>)> {
    let mut words = loadavg.split_ascii_whitespace();
    let averages = [(); 3].map(|()| words.next().and_then(hundredths));
    let [Some(one), Some(five), Some(fifteen)] = averages else {
        return None;
    };
    let tasks = words
        .next()
        .and_then(|word| word.split_once('/')?.1.parse().ok());
    Some(([one, five, fifteen], tasks))
}

/// `12.34` is 1234.
fn hundredths(text: &str) -> Option<u64> {
    let (whole, part) = text.split_once('.')?;
    let part = Some(part).filter(|part| part.len() == 2)?;
    let (whole, part): (u64, u64) = (whole.parse().ok()?, part.parse().ok()?);
    whole.checked_mul(100)?.checked_add(part)
}

/// Time since the machine booted by `/proc/uptime`, in whole seconds.
pub fn uptime_s(uptime: &str) -> Option<u64> {
    uptime.trim_start().split_once('.')?.0.parse().ok()
}

/// Devices of `/proc/diskstats` by their names.
pub fn disks(diskstats: &str) -> impl Iterator<Item = (&str, Disk)> {
    diskstats.lines().filter_map(disk)
}

fn disk(line: &str) -> Option<(&str, Disk)> {
    let mut words = line.split_ascii_whitespace();
    let number = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let name = words.next()?;
    let mut counts = words.map(|word| word.parse::<u64>().ok());
    let mut transfers = || {
        let operations = counts.next()??;
        let _merged = counts.next()??;
        let sectors = counts.next()??;
        Some(Transfers {
            operations,
            bytes: sectors.checked_mul(SECTOR_BYTES)?,
            took_ms: counts.next()??,
        })
    };
    let (reads, writes) = (transfers()?, transfers()?);
    let _under_way = counts.next()??;
    let disk = Disk {
        number,
        reads,
        writes,
        busy_ms: counts.next()??,
        life_used_tenths: None,
        pre_eol: None,
    };
    Some((name, disk))
}

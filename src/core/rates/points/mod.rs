//! Points of the host's series, from two readings. There is no value where the readings do not
//! belong together or a counter went back.

use std::time::Duration;

use super::reading::{AgentUsage, CPU_MODES, Cpu, Disk, FileSystem, Network, Reading, Transfers};
use crate::core::{
    series::{Key, Point, Series},
    time::Now,
};

/// Two readings further apart say nothing about the time between them: three of the longest
/// intervals.
const APART_MAX: Duration = Duration::from_secs(900);
/// Largest difference of the two clocks between two readings without a suspend: they are read one
/// after the other.
const ASLEEP_MAX: Duration = Duration::from_secs(1);
/// The two directions of a network interface, in the order of its counters.
const DIRECTIONS: [&str; 2] = ["receive", "transmit"];

/// Points at the time of `later`: levels always; rates if `earlier` is of the same boot, the
/// machine was not suspended in between, and the device is the same.
pub fn points(earlier: Option<&Reading>, later: &Reading) -> Vec<Point> {
    let mut points = Points::default();
    levels(later, &mut points);
    let before = earlier.and_then(|earlier| Some((earlier, interval(earlier, later)?)));
    if let Some((earlier, interval)) = before {
        rates(earlier, later, interval, &mut points);
    }
    points.list
}

/// The time between two readings, where there is a rate over it.
fn interval(earlier: &Reading, later: &Reading) -> Option<Duration> {
    let apart = later.at.mono.since(earlier.at.mono);
    let awake = later.awake.checked_sub(earlier.awake)?;
    let is_whole = earlier.boot_id == later.boot_id
        && apart >= Duration::from_secs(1)
        && apart <= APART_MAX
        && apart.saturating_sub(awake) <= ASLEEP_MAX;
    is_whole.then_some(apart)
}

fn levels(now: &Reading, points: &mut Points) {
    points.count("host_uptime_seconds", &[], now.uptime_s);
    for (index, name) in ["host_load1", "host_load5", "host_load15"]
        .iter()
        .enumerate()
    {
        let load = now
            .load_hundredths
            .and_then(|load| load.get(index).copied());
        points.add(name, &[], 2, load);
    }
    for (name, value) in [
        ("host_tasks", now.tasks),
        ("host_processes", now.processes),
        ("host_tasks_running", now.running),
        ("host_tasks_blocked", now.blocked),
        (
            "host_clock_synchronised",
            now.is_clock_synchronised.map(u64::from),
        ),
        ("agent_memory_pss_bytes", now.own.pss),
    ] {
        points.count(name, &[], value);
    }
    points.count("host_memory_total_bytes", &[], now.memory.total);
    points.count("host_memory_available_bytes", &[], now.memory.available);
    points.count("host_swap_total_bytes", &[], now.memory.swap_total);
    points.count("host_swap_free_bytes", &[], now.memory.swap_free);
    points.count("host_open_files", &[], now.files.map(|files| files.0));
    points.count("host_open_files_max", &[], now.files.map(|files| files.1));
    for (mount, file_system) in &now.file_systems {
        levels_of_file_system(mount, file_system, points);
    }
    for (device, zram) in &now.zram {
        let labels = [("device", device.as_str())];
        points.count("host_zram_original_bytes", &labels, Some(zram.original));
        points.count("host_zram_compressed_bytes", &labels, Some(zram.compressed));
        points.count("host_zram_memory_bytes", &labels, Some(zram.memory));
    }
    for (device, disk) in &now.disks {
        let labels = [("device", device.as_str())];
        let life = disk.life_used_tenths;
        points.add("host_disk_life_used_ratio", &labels, 1, life);
        points.count("host_disk_pre_eol", &labels, disk.pre_eol);
    }
    for (device, network) in &now.networks {
        let speed = network
            .speed_mbit
            .and_then(|speed| speed.checked_mul(1_000_000));
        points.count(
            "host_network_speed_bits_per_second",
            &[("device", device)],
            speed,
        );
    }
    for (sensor, value) in &now.temperatures_milli {
        points.push("host_temperature_celsius", &[("sensor", sensor)], 3, *value);
    }
    for (sensor, value) in &now.fans_rpm {
        points.count("host_fan_rpm", &[("sensor", sensor)], Some(*value));
    }
    points.count(
        "host_under_voltage",
        &[],
        now.is_under_voltage.map(u64::from),
    );
    points.count("host_throttled", &[], now.is_throttled.map(u64::from));
}

fn levels_of_file_system(mount: &str, now: &FileSystem, points: &mut Points) {
    let labels = [("mount", mount)];
    let space = now.space;
    for (name, value) in [
        ("host_filesystem_size_bytes", space.size),
        ("host_filesystem_free_bytes", space.free),
        ("host_filesystem_available_bytes", space.available),
        ("host_filesystem_read_only", u64::from(now.is_read_only)),
    ] {
        points.count(name, &labels, Some(value));
    }
    if space.inodes > 0 {
        points.count("host_filesystem_inodes", &labels, Some(space.inodes));
        points.count(
            "host_filesystem_inodes_free",
            &labels,
            Some(space.inodes_free),
        );
    }
}

fn rates(earlier: &Reading, later: &Reading, interval: Duration, points: &mut Points) {
    if let (Some(one), Some(two)) = (earlier.cpu, later.cpu) {
        cpu(one, two, points);
    }
    for ((resource, kind), total) in &later.stalled_us {
        let before = earlier.stalled_us.get(&(*resource, *kind));
        let stalled = before.and_then(|before| total.checked_sub(*before));
        let share = stalled.map(|stalled| share(stalled, micros(interval), 4));
        let labels = [("kind", *kind), ("resource", *resource)];
        points.add("host_pressure_ratio", &labels, 4, share);
    }
    points.count(
        "host_oom_kills",
        &[],
        since(earlier.oom_kills, later.oom_kills),
    );
    let forks = since(earlier.forks, later.forks);
    let forks = forks.map(|forks| per_second(forks, interval, 2));
    points.add("host_forks_per_second", &[], 2, forks);
    points.push(
        "host_clock_step_seconds",
        &[],
        3,
        clock_step_ms(earlier.at, later.at),
    );
    own(&earlier.own, &later.own, interval, points);
    for (device, two) in &later.disks {
        if let Some(since) = earlier
            .disks
            .get(device)
            .and_then(|one| disk_since(one, two))
        {
            disk(device, &since, interval, points);
        }
    }
    for (device, two) in &later.networks {
        if let Some(since) = earlier
            .networks
            .get(device)
            .and_then(|one| network_since(one, two))
        {
            network(device, &since, interval, points);
        }
    }
}

/// Increase of a counter; `None` if it went back or is unknown.
fn since(earlier: Option<u64>, later: Option<u64>) -> Option<u64> {
    later?.checked_sub(earlier?)
}

/// By how much somebody set the clock between two moments, in milliseconds. What a time server
/// corrects little by little shows on both clocks alike.
fn clock_step_ms(earlier: Now, later: Now) -> i64 {
    let by_wall = later.wall.millis().saturating_sub(earlier.wall.millis());
    let apart = later.mono.since(earlier.mono).as_millis();
    let step = by_wall.saturating_sub(i64::try_from(apart).unwrap_or(i64::MAX));
    // The clocks are read one after the other. Time servers step from an eighth of a second
    // upwards.
    if step.unsigned_abs() < 100 { 0 } else { step }
}

/// Usage of this program between the readings.
fn own(earlier: &AgentUsage, later: &AgentUsage, interval: Duration, points: &mut Points) {
    let cpu = since(earlier.cpu_us, later.cpu_us);
    let cpu = cpu.map(|used| share(used, micros(interval), 6));
    points.add("agent_cpu_ratio", &[], 6, cpu);
    for (name, digits, count) in [
        (
            "agent_written_bytes_per_second",
            0,
            since(earlier.written, later.written),
        ),
        (
            "agent_wakeups_per_second",
            2,
            since(earlier.wakeups, later.wakeups),
        ),
    ] {
        let rate = count.map(|count| per_second(count, interval, digits));
        points.add(name, &[], digits, rate);
    }
}

/// The shares of the modes. The kernel lets idle and iowait go back a little (proc_stat(5)); any
/// other that goes back is not of this boot.
fn cpu(earlier: Cpu, later: Cpu, points: &mut Points) {
    let mut since = [0; 8];
    for (index, slot) in since.iter_mut().enumerate() {
        let (Some(one), Some(two)) = (earlier.ticks.get(index), later.ticks.get(index)) else {
            return;
        };
        *slot = match two.checked_sub(*one) {
            Some(ticks) => ticks,
            None if matches!(index, 3 | 4) => 0,
            None => return,
        };
    }
    let Some(all) = since
        .iter()
        .try_fold(0_u64, |sum, ticks| sum.checked_add(*ticks))
    else {
        return;
    };
    if all > 0 {
        for (mode, ticks) in CPU_MODES.iter().zip(since) {
            points.add(
                "host_cpu_ratio",
                &[("mode", mode)],
                4,
                Some(share(ticks, all, 4)),
            );
        }
    }
}

/// Increase of a disk's counters between the readings; `None` for another disk, or if any counter
/// went back, because then none can be trusted.
fn disk_since(earlier: &Disk, later: &Disk) -> Option<Disk> {
    let transfers = |one: Transfers, two: Transfers| {
        Some(Transfers {
            operations: two.operations.checked_sub(one.operations)?,
            bytes: two.bytes.checked_sub(one.bytes)?,
            took_ms: two.took_ms.checked_sub(one.took_ms)?,
        })
    };
    if earlier.number != later.number {
        return None;
    }
    Some(Disk {
        reads: transfers(earlier.reads, later.reads)?,
        writes: transfers(earlier.writes, later.writes)?,
        busy_ms: later.busy_ms.checked_sub(earlier.busy_ms)?,
        ..later.clone()
    })
}

fn disk(device: &str, since: &Disk, interval: Duration, points: &mut Points) {
    let labels = [("device", device)];
    for (bytes, operations, latency, done) in [
        (
            "host_disk_read_bytes_per_second",
            "host_disk_reads_per_second",
            "host_disk_read_seconds",
            since.reads,
        ),
        (
            "host_disk_written_bytes_per_second",
            "host_disk_writes_per_second",
            "host_disk_write_seconds",
            since.writes,
        ),
    ] {
        points.add(bytes, &labels, 0, Some(per_second(done.bytes, interval, 0)));
        points.add(
            operations,
            &labels,
            2,
            Some(per_second(done.operations, interval, 2)),
        );
        // Of no operation there is no latency. Milliseconds over operations are thousandths of
        // seconds.
        let took = (done.operations > 0).then(|| share(done.took_ms, done.operations, 3));
        points.add(latency, &labels, 6, took);
    }
    let busy = share(since.busy_ms.saturating_mul(1000), micros(interval), 4);
    // The kernel counts in jiffies, so that a disk at work all the time can seem to have had more
    // time than there was.
    points.add("host_disk_busy_ratio", &labels, 4, Some(busy.min(10_000)));
}

/// Increase of an interface's counters between the readings, in the same way.
fn network_since(earlier: &Network, later: &Network) -> Option<Network> {
    if earlier.index != later.index {
        return None;
    }
    let counted = |one: [u64; 2], two: [u64; 2]| {
        let ([one_in, one_out], [two_in, two_out]) = (one, two);
        Some([two_in.checked_sub(one_in)?, two_out.checked_sub(one_out)?])
    };
    Some(Network {
        bytes: counted(earlier.bytes, later.bytes)?,
        errors: counted(earlier.errors, later.errors)?,
        drops: counted(earlier.drops, later.drops)?,
        ..*later
    })
}

fn network(device: &str, since: &Network, interval: Duration, points: &mut Points) {
    for (name, digits, counts) in [
        ("host_network_bytes_per_second", 0, since.bytes),
        ("host_network_errors_per_second", 3, since.errors),
        ("host_network_drops_per_second", 3, since.drops),
    ] {
        for (direction, count) in DIRECTIONS.iter().zip(counts) {
            let labels = [("device", device), ("direction", direction)];
            points.add(
                name,
                &labels,
                digits,
                Some(per_second(count, interval, digits)),
            );
        }
    }
}

/// Points that are put together.
#[derive(Debug, Default)]
pub(in crate::core) struct Points {
    pub(in crate::core) list: Vec<Point>,
}

impl Points {
    /// A whole number, where it is known.
    pub(in crate::core) fn count(
        &mut self,
        name: &str,
        labels: &[(&str, &str)],
        value: Option<u64>,
    ) {
        self.add(name, labels, 0, value);
    }

    /// A scaled number, where it is known. One that no signed integer holds is not: no machine has
    /// it.
    pub(in crate::core) fn add(
        &mut self,
        name: &str,
        labels: &[(&str, &str)],
        digits: u8,
        value: Option<u64>,
    ) {
        if let Some(value) = value.and_then(|value| i64::try_from(value).ok()) {
            self.push(name, labels, digits, value);
        }
    }

    fn push(&mut self, name: &str, labels: &[(&str, &str)], digits: u8, value: i64) {
        if let Ok(key) = Key::new(name, labels) {
            let series = Series { key, digits };
            self.list.push(Point { series, value });
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// `count` a second, with that many digits.
pub(in crate::core) fn per_second(count: u64, time: Duration, digits: u8) -> u64 {
    let scaled = u128::from(count) * 1_000_000 * 10_u128.pow(u32::from(digits));
    rounded(scaled, u128::from(micros(time)))
}

/// `part / whole` with that many digits.
fn share(part: u64, whole: u64, digits: u8) -> u64 {
    rounded(
        u128::from(part) * 10_u128.pow(u32::from(digits)),
        u128::from(whole),
    )
}

fn rounded(part: u128, whole: u128) -> u64 {
    let whole = whole.max(1);
    u64::try_from((part + whole / 2) / whole).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;

//! Rates from counters. The first reading, a counter that went back and a pause give no value,
//! never a spike.
//!
//! [`points()`] makes the series of the host from two readings; the ratios here go into heartbeats.

mod points;
mod reading;

pub use points::points;
pub(in crate::core) use points::{Points, per_second};
pub use reading::{
    AgentUsage, CPU_MODES, Cpu, Disk, FileSystem, MemoryUse, Network, Reading, Space, Transfers,
    Zram,
};

/// Processor times since boot, in ticks of the kernel, over all cores.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct CpuTimes {
    /// Ticks in which a core worked: user, nice, system, interrupts, stolen by the hypervisor.
    pub busy: u64,
    /// Ticks in which a core had nothing to do, or waited for a disk.
    pub idle: u64,
}

impl From<Cpu> for CpuTimes {
    fn from(cpu: Cpu) -> Self {
        let [user, nice, system, idle, iowait, irq, softirq, steal] = cpu.ticks;
        let sum = |ticks: &[u64]| ticks.iter().copied().fold(0, u64::saturating_add);
        Self {
            busy: sum(&[user, nice, system, irq, softirq, steal]),
            idle: sum(&[idle, iowait]),
        }
    }
}

/// The share of all cores that was busy between two readings, between 0 and 1. `None` where the
/// readings are not of the same boot in the right order, or less than a tick apart.
pub fn cpu_share(earlier: CpuTimes, later: CpuTimes) -> Option<f64> {
    let busy = later.busy.checked_sub(earlier.busy)?;
    // The kernel lets idle time of single cores go back a little (proc_stat(5)); the busy part is
    // still right.
    let idle = later.idle.saturating_sub(earlier.idle);
    let total = busy.checked_add(idle)?;
    (total > 0).then(|| ratio(busy, total))
}

/// Use of the memory.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Memory {
    /// All that the kernel has.
    pub total_bytes: u64,
    /// Bytes available to new programs without swapping.
    pub available_bytes: u64,
}

impl Memory {
    /// The share in use, between 0 and 1. `None` where the total is not known.
    pub fn used_share(self) -> Option<f64> {
        let used = self.total_bytes.saturating_sub(self.available_bytes);
        (self.total_bytes > 0).then(|| ratio(used, self.total_bytes))
    }
}

/// The size of a file system and what is left of it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct DiskSpace {
    /// All blocks.
    pub total_bytes: u64,
    /// Blocks that something is in.
    pub used_bytes: u64,
    /// Bytes that unprivileged programs can still write.
    pub available_bytes: u64,
}

impl From<Space> for DiskSpace {
    fn from(space: Space) -> Self {
        Self {
            total_bytes: space.size,
            used_bytes: space.size.saturating_sub(space.free),
            available_bytes: space.available,
        }
    }
}

impl DiskSpace {
    /// The share in use, between 0 and 1, of what programs without privileges can have: as df(1)
    /// counts. `None` where the size is not known.
    pub fn used_share(self) -> Option<f64> {
        let all = self.used_bytes.saturating_add(self.available_bytes);
        (all > 0).then(|| ratio(self.used_bytes, all))
    }
}

/// `part / whole` in 1/1,000,000 exactly, so that counters of any size keep their value.
fn ratio(part: u64, whole: u64) -> f64 {
    let millionths = u128::from(part) * 1_000_000 / u128::from(whole.max(1));
    f64::from(u32::try_from(millionths).unwrap_or(1_000_000)) / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn times(busy: u64, idle: u64) -> CpuTimes {
        CpuTimes { busy, idle }
    }

    #[test]
    fn the_share_is_of_the_time_between_the_readings() {
        for (earlier, later, share) in [
            (times(0, 0), times(50, 50), Some(0.5)),
            (times(1_000_000, 0), times(1_000_000, 400), Some(0.0)),
            (times(100, 100), times(400, 200), Some(0.75)),
            // Less than a tick apart.
            (times(100, 100), times(100, 100), None),
            // A reboot, or readings in the wrong order.
            (times(500, 900), times(20, 30), None),
            // Idle time that went back a little.
            (times(100, 900), times(150, 899), Some(1.0)),
            // Years on many cores.
            (times(u64::MAX - 100, 0), times(u64::MAX, 300), Some(0.25)),
        ] {
            assert_eq!(cpu_share(earlier, later), share, "{earlier:?} {later:?}");
        }
    }

    #[test]
    fn used_is_what_is_not_available() {
        let memory = Memory {
            total_bytes: 8_000_000_000,
            available_bytes: 6_000_000_000,
        };
        assert_eq!(memory.used_share(), Some(0.25));
        assert_eq!(Memory::default().used_share(), None);
        // Of 100 blocks 20 are kept for root.
        let disk = DiskSpace {
            total_bytes: 100,
            used_bytes: 20,
            available_bytes: 60,
        };
        assert_eq!(disk.used_share(), Some(0.25));
        assert_eq!(DiskSpace::default().used_share(), None);
    }
}

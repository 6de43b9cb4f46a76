//! Raw counters of the machine at one moment, as the kernel keeps them. Values that could not be
//! read are `None` or absent.

use std::time::Duration;

use litemap::LiteMap;

use super::{DiskSpace, Memory};
use crate::core::time::Now;

/// Everything of one moment.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Reading {
    /// Time, on both clocks.
    pub at: Now,
    /// The same moment on the clock that stands still in suspend: its distance to `at.mono` grows
    /// only while the machine sleeps.
    pub awake: Duration,
    pub boot_id: Option<String>,
    /// Time since boot, in seconds.
    pub uptime_s: Option<u64>,
    /// State of time synchronization.
    pub is_clock_synchronised: Option<bool>,
    /// Processor times since boot, over all cores.
    pub cpu: Option<Cpu>,
    /// Averages of the run queue, in hundredths, over 1, 5 and 15 minutes.
    pub load_hundredths: Option<[u64; 3]>,
    /// Threads that there are.
    pub tasks: Option<u64>,
    /// Processes that there are.
    pub processes: Option<u64>,
    /// Threads that have a processor or wait for one.
    pub running: Option<u64>,
    /// Threads that wait for a disk, and nothing can wake them before.
    pub blocked: Option<u64>,
    /// Processes and threads that were started since boot.
    pub forks: Option<u64>,
    /// Pressure by resource (`cpu`, `memory`, `io`) and kind (`some`, `full`): stalled time since
    /// boot, in microseconds.
    pub stalled_us: LiteMap<(&'static str, &'static str), u64>,
    /// Use of the memory.
    pub memory: MemoryUse,
    /// Processes that were killed for want of memory since boot.
    pub oom_kills: Option<u64>,
    /// Open files: in use, and at most.
    pub files: Option<(u64, u64)>,
    /// The file system at the root.
    pub root: Option<DiskSpace>,
    /// File systems on disks of this machine, by the path where they are mounted.
    pub file_systems: LiteMap<String, FileSystem>,
    /// Compressed memory by device.
    pub zram: LiteMap<String, Zram>,
    /// Whole disks by name.
    pub disks: LiteMap<String, Disk>,
    /// Network interfaces by name, without those of Pods.
    pub networks: LiteMap<String, Network>,
    /// Temperatures by sensor, in thousandths of a degree Celsius.
    pub temperatures_milli: LiteMap<String, i64>,
    /// Fans by sensor, in turns a minute.
    pub fans_rpm: LiteMap<String, u64>,
    /// State of a Raspberry Pi's supply: below 4.63 V right now.
    pub is_under_voltage: Option<bool>,
    /// State of a Raspberry Pi's processor: throttled right now.
    pub is_throttled: Option<bool>,
    /// This program.
    pub own: AgentUsage,
    /// Values that every machine should have and that could not be read, with the reason.
    pub unread: LiteMap<&'static str, String>,
}

/// Ticks of the processors since boot, by what they were spent on.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Cpu {
    /// In the order of [`CPU_MODES`].
    pub ticks: [u64; 8],
}

/// The columns of `/proc/stat` (proc_stat(5)). Guest time is contained in user and nice.
pub const CPU_MODES: [&str; 8] = [
    "user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal",
];

/// Memory in bytes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct MemoryUse {
    /// All that the kernel has.
    pub total: Option<u64>,
    /// Unused memory.
    pub free: Option<u64>,
    /// Caches of devices.
    pub buffers: Option<u64>,
    /// Caches of files.
    pub cached: Option<u64>,
    /// Memory available to new programs without swapping.
    pub available: Option<u64>,
    /// Swap space.
    pub swap_total: Option<u64>,
    /// Free part of it.
    pub swap_free: Option<u64>,
}

impl MemoryUse {
    /// Total and available memory.
    pub fn in_short(&self) -> Option<Memory> {
        // Kernels before 3.14 do not say what is available; this is what they would say, about.
        let about = || {
            let parts = [self.free?, self.buffers?, self.cached?];
            Some(parts.into_iter().fold(0, u64::saturating_add))
        };
        Some(Memory {
            total_bytes: self.total?,
            available_bytes: self.available.or_else(about)?,
        })
    }
}

#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct FileSystem {
    /// Device, as the kernel calls it: `/dev/mmcblk0p2`.
    pub device: String,
    /// File system: `ext4`.
    pub kind: String,
    /// True if nothing can be written to it. An ext4 that saw an error of its disk becomes so by
    /// itself.
    pub is_read_only: bool,
    /// Used and free space.
    pub space: Space,
}

/// Used and free space of a file system.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Space {
    /// All bytes.
    pub size: u64,
    /// Bytes that are free.
    pub free: u64,
    /// Part of it that unprivileged programs can still write.
    pub available: u64,
    /// Inodes: as many files and folders as there can be. 0 where the file system has no such
    /// limit.
    pub inodes: u64,
    pub inodes_free: u64,
}

/// Content of one zram device, in bytes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Zram {
    /// As it was written.
    pub original: u64,
    pub compressed: u64,
    /// The memory that it takes, with what the allocator needs.
    pub memory: u64,
}

/// Usage of this program itself.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct AgentUsage {
    /// Memory in bytes, with its share of what it has in common with others.
    pub pss: Option<u64>,
    /// Time of processors since its start, in microseconds.
    pub cpu_us: Option<u64>,
    /// Times that one of its threads waited and was woken, since its start.
    pub wakeups: Option<u64>,
    /// Bytes that it gave to disks since its start.
    pub written: Option<u64>,
}

/// Counters of one disk since it appeared.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Disk {
    /// Major and minor number: another device of the same name has another one, mostly.
    pub number: (u64, u64),
    /// Reads that ended, bytes of them, and the time that they took together in milliseconds.
    pub reads: Transfers,
    /// Writes, in the same way.
    pub writes: Transfers,
    /// Milliseconds in which at least one of either was under way.
    pub busy_ms: u64,
    /// Used life of an eMMC in tenths, as it reports it; the worse of its two kinds of memory.
    pub life_used_tenths: Option<u64>,
    /// Spare blocks of an eMMC: 1 is normal, 2 is 80 % used, 3 is 90 %.
    pub pre_eol: Option<u64>,
}

/// Operations of one direction.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Transfers {
    /// Number of completed operations.
    pub operations: u64,
    /// Bytes transferred.
    pub bytes: u64,
    /// Total duration, in milliseconds.
    pub took_ms: u64,
}

/// Counters of one network interface since it appeared.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Network {
    /// The kernel's number of it: an interface that came back under its name has another one.
    pub index: Option<u64>,
    /// Received and sent.
    pub bytes: [u64; 2],
    /// Received in error, and not sent for one.
    pub errors: [u64; 2],
    /// Dropped on the way in, and on the way out.
    pub drops: [u64; 2],
    /// The speed of the link, where it has one, in millions of bits a second.
    pub speed_mbit: Option<u64>,
}

//! The machine, under the names of node_exporter.

use super::{
    MetricType::{Counter, Gauge},
    Page, flag, scaled, whole,
};
use crate::core::{
    rates::{CPU_MODES, Disk, FileSystem, Network, Reading, Zram},
    series::decimal,
};

pub(super) fn write(now: &Reading, page: &mut Page) {
    whole_machine(now, page);
    memory(now, page);
    pressure(now, page);
    file_systems(now, page);
    disks(now, page);
    networks(now, page);
    sensors(now, page);
}

fn whole_machine(now: &Reading, page: &mut Page) {
    let modes = now.cpu.iter().flat_map(|cpu| {
        let modes = CPU_MODES.iter().zip(cpu.ticks);
        // A tick that programs see is a hundredth of a second on every machine (USER_HZ).
        modes.map(|(mode, ticks)| ([("mode", *mode)], scaled(Some(ticks), 2)))
    });
    page.family(
        (
            "node_cpu_seconds_total",
            Counter,
            "Seconds that the processors spent in each mode, all of them together.",
        ),
        modes,
    );
    levels(now, page);
    let forks = "Processes and threads that were started.";
    page.one(("node_forks_total", Counter, forks), whole(now.forks));
    // A counter by what it is; its name at node_exporter does not end like one.
    let kills = "Processes killed by the out-of-memory killer since boot.";
    page.one(
        ("node_vmstat_oom_kill", Counter, kills),
        whole(now.oom_kills),
    );
}

fn levels(now: &Reading, page: &mut Page) {
    let load = |index: usize| {
        let load = now
            .load_hundredths
            .and_then(|load| load.get(index).copied());
        scaled(load, 2)
    };
    let booted = now.uptime_s.and_then(|_| {
        let since = i64::try_from(now.at.mono.elapsed_since_boot().as_millis()).ok()?;
        u64::try_from(now.at.wall.millis().checked_sub(since)?).ok()
    });
    for (name, help, value) in [
        (
            "node_boot_time_seconds",
            "Boot time of the machine, by the current clock.",
            scaled(booted.map(|millis| millis / 1000), 0),
        ),
        (
            "node_time_seconds",
            "The clock of the machine.",
            scaled(u64::try_from(now.at.wall.millis()).ok(), 3),
        ),
        (
            "node_timex_sync_status",
            "Whether the clock follows a time server.",
            flag(now.is_clock_synchronised),
        ),
        ("node_load1", "Load over 1 minute.", load(0)),
        ("node_load5", "Load over 5 minutes.", load(1)),
        ("node_load15", "Load over 15 minutes.", load(2)),
        (
            "node_procs_running",
            "Threads that have a processor or wait for one.",
            whole(now.running),
        ),
        (
            "node_procs_blocked",
            "Threads that wait for a disk.",
            whole(now.blocked),
        ),
        ("node_processes_pids", "Processes.", whole(now.processes)),
        ("node_processes_threads", "Threads.", whole(now.tasks)),
        (
            "node_filefd_allocated",
            "Open files.",
            whole(now.files.map(|files| files.0)),
        ),
        (
            "node_filefd_maximum",
            "Open files at most.",
            whole(now.files.map(|files| files.1)),
        ),
    ] {
        page.one((name, Gauge, help), value);
    }
}

fn memory(now: &Reading, page: &mut Page) {
    type Part = fn(&Zram) -> u64;
    let memory = now.memory;
    for (name, help, value) in [
        ("node_memory_MemTotal_bytes", "All memory.", memory.total),
        (
            "node_memory_MemFree_bytes",
            "Memory that nothing uses.",
            memory.free,
        ),
        (
            "node_memory_MemAvailable_bytes",
            "Memory available to new programs without swapping.",
            memory.available,
        ),
        (
            "node_memory_Buffers_bytes",
            "Caches of devices.",
            memory.buffers,
        ),
        (
            "node_memory_Cached_bytes",
            "Caches of files.",
            memory.cached,
        ),
        ("node_memory_SwapTotal_bytes", "Swap.", memory.swap_total),
        (
            "node_memory_SwapFree_bytes",
            "Swap that is free.",
            memory.swap_free,
        ),
    ] {
        page.one((name, Gauge, help), whole(value));
    }
    let parts: [(&str, &str, Part); 3] = [
        (
            "pipeops_host_zram_original_bytes",
            "Uncompressed size of the data in zram.",
            |zram| zram.original,
        ),
        (
            "pipeops_host_zram_compressed_bytes",
            "Compressed size of the data in zram.",
            |zram| zram.compressed,
        ),
        (
            "pipeops_host_zram_memory_bytes",
            "Memory used by zram, with overhead.",
            |zram| zram.memory,
        ),
    ];
    for (name, help, part) in parts {
        let devices = now.zram.iter();
        let series =
            devices.map(|(device, zram)| ([("device", device.as_str())], whole(Some(part(zram)))));
        page.family((name, Gauge, help), series);
    }
}

fn pressure(now: &Reading, page: &mut Page) {
    for (name, resource, kind, help) in [
        (
            "node_pressure_cpu_waiting_seconds_total",
            "cpu",
            "some",
            "Time in which something waited for a processor.",
        ),
        (
            "node_pressure_memory_waiting_seconds_total",
            "memory",
            "some",
            "Time in which something waited for memory.",
        ),
        (
            "node_pressure_memory_stalled_seconds_total",
            "memory",
            "full",
            "Time in which all tasks were stalled on memory.",
        ),
        (
            "node_pressure_io_waiting_seconds_total",
            "io",
            "some",
            "Time in which something waited for a disk.",
        ),
        (
            "node_pressure_io_stalled_seconds_total",
            "io",
            "full",
            "Time in which all tasks were stalled on I/O.",
        ),
    ] {
        let stalled = now.stalled_us.get(&(resource, kind)).copied();
        page.one((name, Counter, help), scaled(stalled, 6));
    }
}

fn file_systems(now: &Reading, page: &mut Page) {
    type Part = fn(&FileSystem) -> u64;
    let parts: [(&str, &str, Part); 6] = [
        (
            "node_filesystem_size_bytes",
            "The size of a file system.",
            |known| known.space.size,
        ),
        (
            "node_filesystem_free_bytes",
            "Free space of a file system.",
            |known| known.space.free,
        ),
        (
            "node_filesystem_avail_bytes",
            "Space of a file system available to unprivileged users.",
            |known| known.space.available,
        ),
        (
            "node_filesystem_files",
            "Inodes of a file system.",
            |known| known.space.inodes,
        ),
        (
            "node_filesystem_files_free",
            "Inodes that are free.",
            |known| known.space.inodes_free,
        ),
        (
            "node_filesystem_readonly",
            "Whether nothing can be written to a file system.",
            |known| u64::from(known.is_read_only),
        ),
    ];
    for (name, help, part) in parts {
        let series = now.file_systems.iter().map(|(path, known)| {
            let labels = [
                ("device", known.device.as_str()),
                ("fstype", known.kind.as_str()),
                ("mountpoint", path.as_str()),
            ];
            (labels, whole(Some(part(known))))
        });
        page.family((name, Gauge, help), series);
    }
}

fn disks(now: &Reading, page: &mut Page) {
    // The counter, and the digits of its seconds.
    type Part = fn(&Disk) -> (u64, u8);
    let parts: [(&str, &str, Part); 7] = [
        (
            "node_disk_reads_completed_total",
            "Reads that ended.",
            |disk| (disk.reads.operations, 0),
        ),
        ("node_disk_read_bytes_total", "Bytes read.", |disk| {
            (disk.reads.bytes, 0)
        }),
        (
            "node_disk_read_time_seconds_total",
            "Time that all reads took.",
            |disk| (disk.reads.took_ms, 3),
        ),
        (
            "node_disk_writes_completed_total",
            "Writes that ended.",
            |disk| (disk.writes.operations, 0),
        ),
        ("node_disk_written_bytes_total", "Bytes written.", |disk| {
            (disk.writes.bytes, 0)
        }),
        (
            "node_disk_write_time_seconds_total",
            "Time that all writes took.",
            |disk| (disk.writes.took_ms, 3),
        ),
        (
            "node_disk_io_time_seconds_total",
            "Time in which the disk had something to do.",
            |disk| (disk.busy_ms, 3),
        ),
    ];
    for (name, help, part) in parts {
        let series = now.disks.iter().map(|(device, disk)| {
            let (value, digits) = part(disk);
            ([("device", device.as_str())], scaled(Some(value), digits))
        });
        page.family((name, Counter, help), series);
    }
    let life = now.disks.iter().map(|(device, disk)| {
        let labels = [("device", device.as_str())];
        (labels, scaled(disk.life_used_tenths, 1))
    });
    let used = "Share of an eMMC's life that is used, as it reports.";
    page.family(("pipeops_host_disk_life_used_ratio", Gauge, used), life);
    let spare = now
        .disks
        .iter()
        .map(|(device, disk)| ([("device", device.as_str())], whole(disk.pre_eol)));
    let left = "Spare blocks of an eMMC: 1 is normal, 2 is 80 % used, 3 is 90 %.";
    page.family(("pipeops_host_disk_pre_eol", Gauge, left), spare);
}

fn networks(now: &Reading, page: &mut Page) {
    type Part = fn(&Network) -> [u64; 2];
    let parts: [([&str; 2], &str, Part); 3] = [
        (
            [
                "node_network_receive_bytes_total",
                "node_network_transmit_bytes_total",
            ],
            "Bytes of a network interface.",
            |network| network.bytes,
        ),
        (
            [
                "node_network_receive_errs_total",
                "node_network_transmit_errs_total",
            ],
            "Packets with errors.",
            |network| network.errors,
        ),
        (
            [
                "node_network_receive_drop_total",
                "node_network_transmit_drop_total",
            ],
            "Packets that were dropped.",
            |network| network.drops,
        ),
    ];
    for (names, help, part) in parts {
        for (direction, name) in names.into_iter().enumerate() {
            let series = now.networks.iter().map(|(device, network)| {
                let value = part(network).get(direction).copied();
                ([("device", device.as_str())], whole(value))
            });
            page.family((name, Counter, help), series);
        }
    }
    let speed = now.networks.iter().map(|(device, network)| {
        // A million bits is 125,000 bytes.
        let bytes = network
            .speed_mbit
            .and_then(|mbit| mbit.checked_mul(125_000));
        ([("device", device.as_str())], whole(bytes))
    });
    let help = "Bytes a second that a link can carry.";
    page.family(("node_network_speed_bytes", Gauge, help), speed);
}

fn sensors(now: &Reading, page: &mut Page) {
    fn labels(name: &str) -> [(&'static str, &str); 2] {
        // A thermal zone is not of a chip: a label without value is none.
        let (chip, sensor) = name.split_once('/').unwrap_or(("", name));
        [("chip", chip), ("sensor", sensor)]
    }
    let temperatures = now
        .temperatures_milli
        .iter()
        .map(|(name, milli)| (labels(name), Some(decimal(*milli, 3))));
    let help = "Temperature of a chip or a thermal zone.";
    page.family(("node_hwmon_temp_celsius", Gauge, help), temperatures);
    let fans = now
        .fans_rpm
        .iter()
        .map(|(name, turns)| (labels(name), whole(Some(*turns))));
    page.family(
        ("node_hwmon_fan_rpm", Gauge, "Turns of a fan a minute."),
        fans,
    );
    for (name, help, value) in [
        (
            "pipeops_host_under_voltage",
            "Whether a Raspberry Pi's supply is too weak right now.",
            now.is_under_voltage,
        ),
        (
            "pipeops_host_throttled",
            "Whether a Raspberry Pi slows its processor down right now.",
            now.is_throttled,
        ),
    ] {
        page.one((name, Gauge, help), flag(value));
    }
}

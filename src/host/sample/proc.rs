//! The files of `/proc`, as text: proc(5), the kernel's `iostats.rst` and `psi.rst`.

use std::collections::BTreeMap;

use crate::core::rates::{Cpu, Disk, MemoryUse, Network, Transfers};

/// Disks and interfaces that are kept. A box with more has its first ones in the order of the kernel.
const DEVICES_MAX: usize = 64;
/// `/proc/diskstats` counts in these, whatever the disk's own sectors are.
const SECTOR_BYTES: u64 = 512;
/// Interfaces that are the machine's alone, ends of tunnels that modules make by themselves, or those of containers: they come and go by the
/// hundred.
const INNER: [&str; 26] = [
    "antrea",
    "br-",
    "cali",
    "cilium",
    "cni",
    "docker",
    "dummy",
    "erspan",
    "flannel",
    "gre",
    "ifb",
    "ip6_vti",
    "ip6gre",
    "ip6tnl",
    "ip_vti",
    "kube-",
    "lxc",
    "lxd",
    "nodelocaldns",
    "podman",
    "sit",
    "tunl",
    "veth",
    "virbr",
    "vnet",
    "vxlan.calico",
];

/// The line of all processors of `/proc/stat`. The four first columns are there since Linux 2.4.
pub(super) fn cpu(stat: &str) -> Option<Cpu> {
    let all = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let numbers = numbers(all);
    let mut cpu = Cpu::default();
    for (slot, number) in cpu.ticks.iter_mut().zip(&numbers) {
        *slot = (*number)?;
    }
    (numbers.len() >= 4).then_some(cpu)
}

/// One number of `/proc/stat` that has a line to itself.
pub(super) fn stat_number(stat: &str, name: &str) -> Option<u64> {
    let line = stat.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().parse().ok()
}

/// The three averages of `/proc/loadavg` and, where it says so, the number of threads.
pub(super) fn load(loadavg: &str) -> Option<([u64; 3], Option<u64>)> {
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

/// Values of `/proc/meminfo`, in bytes. `None` without even the total.
pub(super) fn memory(meminfo: &str) -> Option<MemoryUse> {
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

/// The bytes behind a name, which the kernel writes as `1024 kB`.
pub(super) fn bytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// `oom_kill` of `/proc/vmstat`, which is there since Linux 4.13.
pub(super) fn oom_kills(vmstat: &str) -> Option<u64> {
    let kills = vmstat
        .lines()
        .find_map(|line| line.strip_prefix("oom_kill "))?;
    kills.trim().parse().ok()
}

/// The first and the last number of `/proc/sys/fs/file-nr`: open, and at most.
pub(super) fn open_files(file_nr: &str) -> Option<(u64, u64)> {
    match numbers(file_nr).as_slice() {
        [Some(open), _, Some(most)] => Some((*open, *most)),
        _ => None,
    }
}

/// The totals of one file below `/proc/pressure`, in microseconds.
pub(super) fn stalled(pressure: &str) -> Vec<(&'static str, u64)> {
    let total = |kind: &str| {
        let line = pressure.lines().find_map(|line| line.strip_prefix(kind))?;
        line.rsplit_once(" total=")?.1.trim().parse().ok()
    };
    ["some", "full"]
        .into_iter()
        .filter_map(|kind| Some((kind, total(kind)?)))
        .collect()
}

/// The lines of `/proc/diskstats` about whole disks, which are those in `/sys/block`; not what is made of memory or of files.
pub(super) fn disks(diskstats: &str, whole: &[String]) -> BTreeMap<String, Disk> {
    let is_wanted = |name: &str| {
        let is_made_up = ["loop", "ram", "zram"].iter().any(|kind| {
            let number = name.strip_prefix(kind);
            number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
        });
        // A `/` in the name of a device is a `!` in the name of its folder.
        !is_made_up && whole.contains(&name.replace('/', "!"))
    };
    let disks = diskstats.lines().filter_map(disk);
    disks
        .filter(|(name, _)| is_wanted(name))
        .take(DEVICES_MAX)
        .collect()
}

fn disk(line: &str) -> Option<(String, Disk)> {
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
    Some((name.to_owned(), disk))
}

/// The interfaces of `/proc/net/dev` through which the machine speaks with others.
pub(super) fn networks(dev: &str) -> BTreeMap<String, Network> {
    let networks = dev.lines().filter_map(network);
    networks
        .filter(|(name, _)| name != "lo" && !INNER.iter().any(|inner| name.starts_with(inner)))
        .take(DEVICES_MAX)
        .collect()
}

fn network(line: &str) -> Option<(String, Network)> {
    let (name, counts) = line.split_once(':')?;
    let name = name.trim();
    // The name becomes part of a path: no kernel gives one with a slash.
    if name.is_empty() || name == "." || name == ".." || name.contains('/') {
        return None;
    }
    let numbers = numbers(counts);
    let number = |column: usize| numbers.get(column).copied().flatten();
    // Received: bytes packets errors drops fifo frame compressed multicast; then sent: bytes packets errors drops …
    let network = Network {
        bytes: [number(0)?, number(8)?],
        errors: [number(2)?, number(10)?],
        drops: [number(3)?, number(11)?],
        ..Network::default()
    };
    Some((name.to_owned(), network))
}

/// The words of a line as numbers; at most as many as any line here has.
fn numbers(line: &str) -> Vec<Option<u64>> {
    let words = line.split_ascii_whitespace().take(20);
    words.map(|word| word.parse().ok()).collect()
}

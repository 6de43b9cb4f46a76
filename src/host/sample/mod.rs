//! What the machine's counters say at one moment, read below a root path.
//!
//! It computes nothing: readings become values in [`crate::core::rates`]. Every file is read with a cap, every folder to a bound, and what
//! cannot be read, or is not what the kernel documents, is not there.

use std::path::Path;

use super::clock;
use crate::{core::rates::Reading, files};

mod proc;
mod sys;

/// More than any of the files here has, on a machine with a thousand cores.
const FILE_BYTES_MAX: usize = 512 * 1024;
/// Entries of one folder that are looked at; the rest of a larger one is left out.
const ENTRIES_MAX: usize = 256;

/// Reads everything. `root` is `/`, or a captured tree. It takes some hundred system calls: call it in the blocking pool.
pub fn read(root: &Path) -> Reading {
    let mut reading = Reading {
        at: clock::now().mono,
        awake: clock::awake(),
        boot_id: clock::boot_id_below(root),
        uptime_s: super::facts::uptime_s(root),
        ..Reading::default()
    };
    from_proc(root, &mut reading);
    from_sys(root, &mut reading);
    reading
}

fn from_proc(root: &Path, reading: &mut Reading) {
    let file = |path: &str| text(root, path).unwrap_or_default();
    reading.cpu = proc::cpu(&file("proc/stat"));
    (reading.load_hundredths, reading.tasks) = proc::load(&file("proc/loadavg"));
    reading.memory = proc::memory(&file("proc/meminfo"));
    reading.oom_kills = proc::oom_kills(&file("proc/vmstat"));
    reading.files = proc::open_files(&file("proc/sys/fs/file-nr"));
    reading.networks = proc::networks(&file("proc/net/dev"));
    for resource in ["cpu", "memory", "io"] {
        let pressure = file(&format!("proc/pressure/{resource}"));
        for (kind, total) in proc::stalled(&pressure) {
            reading.stalled_us.insert((resource, kind), total);
        }
    }
    let disks = entries(root, "sys/block");
    reading.disks = proc::disks(&file("proc/diskstats"), &disks);
}

fn from_sys(root: &Path, reading: &mut Reading) {
    for (name, disk) in &mut reading.disks {
        let path = format!("sys/block/{}/device/life_time", name.replace('/', "!"));
        disk.life_used_tenths = text(root, &path).and_then(|text| sys::life_used_tenths(&text));
    }
    for (name, network) in &mut reading.networks {
        let speed = text(root, &format!("sys/class/net/{name}/speed"));
        // A link that is down says -1, which is no unsigned number, or 4,294,967,295.
        network.speed_mbit = speed
            .and_then(|text| text.trim().parse().ok())
            .filter(|speed| (1..u64::from(u32::MAX)).contains(speed));
    }
    sys::sensors(root, reading);
    if let Some(flags) = text(root, "sys/devices/platform/soc/soc:firmware/get_throttled")
        .and_then(|text| sys::throttled(&text))
    {
        reading.is_under_voltage = Some(flags.is_under_voltage);
        reading.is_throttled = Some(flags.is_throttled);
    }
}

fn text(root: &Path, path: &str) -> Option<String> {
    let content = files::read(&root.join(path), FILE_BYTES_MAX).ok()?;
    Some(String::from_utf8_lossy(&content).into_owned())
}

/// The names in a folder, in order.
fn entries(root: &Path, path: &str) -> Vec<String> {
    let Ok(folder) = std::fs::read_dir(root.join(path)) else {
        return Vec::new();
    };
    let names = folder.take(ENTRIES_MAX).flatten();
    let mut names: Vec<_> = names
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests;

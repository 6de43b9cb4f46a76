//! Counters of the machine at one moment, read below a root path.
//!
//! It computes nothing: readings become values in [`crate::core::rates`]. Every file is read with a
//! cap, every folder to a bound. What cannot be read, or is not what the kernel documents, is not
//! there; and where every machine has it, the reading says why not.

use std::path::Path;

use litemap::LiteMap;

use super::{
    clock,
    facts::{self, FILE_BYTES_MAX},
};
use crate::{
    core::{
        order::OrderExt as _,
        procfs::{kernel, memory, stat},
        rates::{Reading, Space},
    },
    files,
};

mod devices;
mod mounts;
mod own;
mod sys;

/// Entries of one folder that are looked at; the rest of a larger one is left out.
const ENTRIES_MAX: usize = 256;
/// Processes that are counted.
const PROCESSES_MAX: usize = 100_000;
/// Directory in which systemd-timesyncd shows that it runs, and that it is synchronized.
const TIME_CLIENT: &str = "run/systemd/timesync";

/// Reads everything of this machine. It takes some hundred system calls: call it in the blocking
/// pool. `pss` is the memory of this program where it is known: no other file costs the kernel as
/// much.
pub fn read(pss: Option<u64>) -> Reading {
    Reading {
        root: facts::disk_space(Path::new("/")),
        ..read_all(Path::new("/"), &space, pss)
    }
}

/// Like [`read`] below a root path, which is `/` or a captured tree. `space` tells how full the
/// file system is that is mounted at a path; it is asked for disks of this machine only, never for
/// what comes over a network.
pub fn read_below(root: &Path, space: &dyn Fn(&str) -> Option<Space>) -> Reading {
    read_all(root, space, None)
}

fn read_all(root: &Path, space: &dyn Fn(&str) -> Option<Space>, pss: Option<u64>) -> Reading {
    let mut reading = Reading {
        at: clock::now(),
        awake: clock::awake(),
        boot_id: clock::boot_id_below(root),
        uptime_s: facts::uptime_s(root),
        ..Reading::default()
    };
    let mut tree = Tree {
        root,
        unread: LiteMap::new(),
    };
    from_proc(&mut tree, &mut reading);
    from_mounts(&mut tree, space, &mut reading);
    from_devices(&mut tree, &mut reading);
    sys::firmware(&tree, &mut reading);
    sys::sensors(&tree, &mut reading);
    reading.is_clock_synchronised = is_clock_synchronised(&mut tree);
    reading.own = own::read(&mut tree, pss);
    reading.unread = tree.unread;
    reading
}

/// Space of the file system at a path. Never call it for a network mount: a server that is gone
/// would hold the call for ever.
pub fn space(path: &str) -> Option<Space> {
    facts::space(Path::new(path))
}

fn from_proc(tree: &mut Tree<'_>, reading: &mut Reading) {
    let stat = tree.fact("processors", "proc/stat", |text| {
        let number = |name| stat::number(text, name);
        let tasks = [
            number("procs_running "),
            number("procs_blocked "),
            number("processes "),
        ];
        Some((stat::cpu(text)?, tasks))
    });
    if let Some((cpu, tasks)) = stat {
        reading.cpu = Some(cpu);
        [reading.running, reading.blocked, reading.forks] = tasks;
    }
    let load = tree.fact("load", "proc/loadavg", stat::load);
    reading.load_hundredths = load.map(|(averages, _)| averages);
    reading.tasks = load.and_then(|(_, tasks)| tasks);
    let memory = tree.fact("memory", "proc/meminfo", memory::meminfo);
    reading.memory = memory.unwrap_or_default();
    reading.oom_kills = tree.fact("out-of-memory kills", "proc/vmstat", memory::oom_kills);
    reading.files = tree.fact("open files", "proc/sys/fs/file-nr", kernel::open_files);
    for (resource, path) in [
        ("cpu", "proc/pressure/cpu"),
        ("memory", "proc/pressure/memory"),
        ("io", "proc/pressure/io"),
    ] {
        let read = |text: &str| {
            let totals =
                memory::pressure(text).filter_map(|line| Some((line.kind, line.total_us?)));
            Some(totals.collect::<Vec<_>>()).filter(|totals| !totals.is_empty())
        };
        for (kind, total) in tree.fact("pressure", path, read).unwrap_or_default() {
            reading.stalled_us.insert((resource, kind), total);
        }
    }
}

fn from_mounts(tree: &mut Tree<'_>, space: &dyn Fn(&str) -> Option<Space>, reading: &mut Reading) {
    let mounts = tree.fact("file systems", "proc/self/mountinfo", mounts::read);
    let mounts = mounts.unwrap_or_default();
    for (path, mut file_system) in mounts.file_systems {
        match space(&path) {
            Some(space) if space.size > 0 => {
                file_system.space = space;
                reading.file_systems.insert(path, file_system);
            }
            // It has no size, or was unmounted a moment ago.
            Some(_) | None => {}
        }
    }
    if mounts.hides_processes {
        tree.cannot(
            "processes",
            "/proc shows not all of them (hidepid)".to_owned(),
        );
    } else {
        reading.processes = tree.processes();
    }
}

fn from_devices(tree: &mut Tree<'_>, reading: &mut Reading) {
    let whole = tree.entries("sys/block");
    let read = |text: &str| Some(devices::disks(text, &whole));
    reading.disks = tree
        .fact("disks", "proc/diskstats", read)
        .unwrap_or_default();
    for (name, disk) in &mut reading.disks {
        // Others have no such folder, or nothing of the kind in it.
        if name.starts_with("mmcblk") {
            let of_card = |name: &str, file| tree.text(&format!("sys/block/{name}/device/{file}"));
            let life = of_card(name, "life_time");
            disk.life_used_tenths = life.and_then(|text| sys::life_used_tenths(&text));
            disk.pre_eol = of_card(name, "pre_eol_info").and_then(|text| sys::pre_eol(&text));
        }
    }
    for name in whole.iter().filter(|name| name.starts_with("zram")) {
        // One that has no size is there and not used.
        let is_used = tree
            .text(&format!("sys/block/{name}/disksize"))
            .is_some_and(|size| size.trim() != "0");
        let statistics = tree.text(&format!("sys/block/{name}/mm_stat"));
        if let (true, Some(zram)) = (is_used, statistics.and_then(|text| sys::zram(&text))) {
            reading.zram.insert(name.clone(), zram);
        }
    }
    let read = |text: &str| Some(devices::networks(text));
    let networks = tree.fact("network interfaces", "proc/net/dev", read);
    reading.networks = networks.unwrap_or_default();
    for (name, network) in &mut reading.networks {
        let number = |file| {
            let text = tree.text(&format!("sys/class/net/{name}/{file}"));
            text.and_then(|text| text.trim().parse().ok())
        };
        network.index = number("ifindex");
        // A link that is down says -1, which is no unsigned number, or 4,294,967,295.
        let speed = number("speed");
        network.speed_mbit = speed.filter(|speed| (1..u64::from(u32::MAX)).contains(speed));
    }
}

/// State of systemd-timesyncd. The kernel's own answer needs a system call that no safe library
/// offers.
fn is_clock_synchronised(tree: &mut Tree<'_>) -> Option<bool> {
    let client = tree.root.join(TIME_CLIENT);
    if client.is_dir() {
        return Some(client.join("synchronized").exists());
    }
    let why = "only systemd-timesyncd reports it in a file, and it is not running";
    tree.cannot("clock synchronization", why.to_owned());
    None
}

/// The root path, and what could not be read below it.
struct Tree<'a> {
    root: &'a Path,
    unread: LiteMap<&'static str, String>,
}

impl Tree<'_> {
    /// Applies `read` to a file that every machine has, and remembers the reason if it is missing;
    /// of several files for one fact, the first missing one is named.
    fn fact<T>(
        &mut self,
        what: &'static str,
        path: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        let why = match files::read(&self.root.join(path), FILE_BYTES_MAX) {
            Ok(content) => match read(&String::from_utf8_lossy(&content)) {
                Some(fact) => return Some(fact),
                None => format!("/{path} does not report it"),
            },
            Err(error) => format!("/{path}: {}", error.why.join(": ")),
        };
        self.cannot(what, why);
        None
    }

    fn cannot(&mut self, what: &'static str, why: String) {
        self.unread.entry(what).or_insert(why);
    }

    /// A file that only some machines have.
    fn text(&self, path: &str) -> Option<String> {
        facts::text(self.root, path)
    }

    /// The names in a folder, in order.
    fn entries(&self, path: &str) -> Vec<String> {
        let Ok(folder) = std::fs::read_dir(self.root.join(path)) else {
            return Vec::new();
        };
        let names = folder.take(ENTRIES_MAX).flatten();
        let mut names: Vec<_> = names
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.order();
        names
    }

    /// Number of processes: each has a directory with its number.
    fn processes(&self) -> Option<u64> {
        let folder = std::fs::read_dir(self.root.join("proc")).ok()?;
        let is_number =
            |name: &std::ffi::OsStr| name.as_encoded_bytes().iter().all(u8::is_ascii_digit);
        let entries = folder.take(PROCESSES_MAX).flatten();
        let count = entries
            .filter(|entry| is_number(&entry.file_name()))
            .count();
        u64::try_from(count).ok().filter(|count| *count > 0)
    }
}

#[cfg(test)]
mod tests;

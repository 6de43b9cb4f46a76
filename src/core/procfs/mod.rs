//! Files of `/proc` as values: one parser for each file, shared by facts, samples, the doctor and
//! the keeper.
//!
//! Formats are those of proc(5) and of the kernel's documentation. A line or a number that is
//! missing or broken is absent; the rest of its file counts. Nothing is copied but where an escape
//! has to be read.

pub mod kernel;
pub mod memory;
pub mod mounts;
pub mod net;
pub mod stat;

/// The words of a line as numbers; at most as many as any line here has.
fn numbers(line: &str) -> Vec<Option<u64>> {
    let words = line.split_ascii_whitespace().take(20);
    words.map(|word| word.parse().ok()).collect()
}

/// The rest of the first line that begins with `name`.
fn behind<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name))
}

/// Captured machines, read by procfs-core as well.
#[cfg(test)]
mod tests {
    use procfs_core::{
        DiskStats, ExplicitSystemInfo, FromBufRead, FromBufReadSI, FromRead, KernelStats,
        LoadAverage, Meminfo, Uptime, VmStat, net::InterfaceDeviceStatus, process::MountInfos,
    };

    use super::*;

    const HERE: ExplicitSystemInfo = ExplicitSystemInfo {
        boot_time_secs: 0,
        ticks_per_second: 100,
        page_size: 4096,
        is_little_endian: true,
    };

    /// The files of all trees: path and text.
    fn files() -> Vec<(String, String)> {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/trees");
        let entries = std::fs::read_dir(folder).unwrap().flatten();
        let trees = entries.filter(|entry| entry.file_name().to_string_lossy().ends_with(".txt"));
        let texts = trees.map(|entry| std::fs::read_to_string(entry.path()).unwrap());
        let files = texts.flat_map(|text| {
            let parts = text.split("\n==> ").skip(1).map(|part| {
                let (path, text) = part.split_once(" <==\n").unwrap();
                let path = path.trim_start_matches("later/").to_owned();
                (path, format!("{}\n", text.trim_end()))
            });
            parts.collect::<Vec<_>>()
        });
        files.collect()
    }

    #[test]
    fn another_reader_finds_the_same_in_the_captured_trees() {
        let mut compared = 0;
        for (path, text) in files() {
            let bytes = text.as_bytes();
            match path.as_str() {
                "proc/meminfo" => {
                    let theirs = Meminfo::from_buf_read(bytes).unwrap();
                    let ours = memory::meminfo(&text).unwrap();
                    assert_eq!(ours.total, Some(theirs.mem_total));
                    assert_eq!(ours.available, theirs.mem_available);
                    assert_eq!(ours.swap_free, Some(theirs.swap_free));
                }
                "proc/stat" => {
                    let theirs = KernelStats::from_buf_read(bytes, &HERE).unwrap();
                    let ticks = stat::cpu(&text).unwrap().ticks;
                    assert_eq!([theirs.total.user, theirs.total.idle], [ticks[0], ticks[3]]);
                    let cores = u64::try_from(theirs.cpu_time.len()).unwrap();
                    assert_eq!(stat::cores(&text), Some(cores));
                }
                "proc/loadavg" => {
                    let theirs = LoadAverage::from_read(bytes).unwrap();
                    let (_, threads) = stat::load(&text).unwrap();
                    assert_eq!(threads, Some(theirs.max.into()));
                }
                "proc/uptime" => {
                    let theirs = Uptime::from_read(bytes).unwrap().uptime_duration();
                    assert_eq!(stat::uptime_s(&text), Some(theirs.as_secs()));
                }
                "proc/vmstat" => {
                    let theirs = VmStat::from_buf_read(bytes).unwrap().0;
                    let kills = theirs.get("oom_kill").copied().map(i64::cast_unsigned);
                    assert_eq!(memory::oom_kills(&text), kills);
                }
                "proc/diskstats" => {
                    let theirs = DiskStats::from_buf_read(bytes).unwrap().0;
                    let ours: Vec<_> = stat::disks(&text).collect();
                    assert_eq!(ours.len(), theirs.len());
                    for ((name, ours), theirs) in ours.into_iter().zip(theirs) {
                        assert_eq!((name, ours.reads.operations), (&*theirs.name, theirs.reads));
                        assert_eq!(ours.writes.bytes, theirs.sectors_written * 512);
                    }
                }
                "proc/net/dev" => {
                    let theirs = InterfaceDeviceStatus::from_buf_read(bytes).unwrap().0;
                    assert_eq!(net::interfaces(&text).count(), theirs.len());
                    for (name, ours) in net::interfaces(&text) {
                        let theirs = &theirs[name];
                        assert_eq!(ours.bytes, [theirs.recv_bytes, theirs.sent_bytes]);
                    }
                }
                "proc/self/mountinfo" => {
                    let theirs = MountInfos::from_buf_read(bytes).unwrap().0;
                    assert_eq!(mounts::mounts(&text).count(), theirs.len());
                    for (ours, theirs) in mounts::mounts(&text).zip(theirs) {
                        assert_eq!(
                            (ours.number, ours.kind),
                            (&*theirs.majmin, &*theirs.fs_type)
                        );
                    }
                }
                _ => continue,
            }
            compared += 1;
        }
        assert!(compared > 60, "{compared}");
    }
}

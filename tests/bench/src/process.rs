//! Cost of a running process: memory, processor time, wake-ups.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;

use crate::os;

/// Memory of a process, in MB of a million bytes (as the figures are promised).
pub(crate) fn pss_mb(pid: u32) -> Result<f64, String> {
    field_mb(pid, "smaps_rollup", "Pss:")
}

/// What of it belongs to files, most of all the program itself: the kernel can take it back.
pub(crate) fn pss_of_files_mb(pid: u32) -> Result<f64, String> {
    field_mb(pid, "smaps_rollup", "Pss_File:")
}

/// Memory that belongs to no file, so that the kernel can only swap it.
pub(crate) fn anonymous_mb(pid: u32) -> Result<f64, String> {
    field_mb(pid, "smaps_rollup", "Anonymous:")
}

/// The largest resident size so far, or since [`forget_peak`], in MB.
pub(crate) fn peak_mb(pid: u32) -> Result<f64, String> {
    field_mb(pid, "status", "VmHWM:")
}

/// Lets the peak start anew at what is resident now.
pub(crate) fn forget_peak(pid: u32) -> Result<(), String> {
    let path = format!("/proc/{pid}/clear_refs");
    os::write(std::path::Path::new(&path), "5")
}

fn field_mb(pid: u32, file: &str, name: &str) -> Result<f64, String> {
    let path = format!("/proc/{pid}/{file}");
    let text = fs::read_to_string(&path).map_err(|error| format!("cannot read {path}: {error}"))?;
    let kib = field(&text, name).ok_or_else(|| format!("{path} has no {name}"))?;
    Ok(os::float(kib) * 1024.0 / 1e6)
}

/// The number behind a name in the files of procfs.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Processor time of a process: all threads, those that ended too, and its ended children.
pub(crate) fn cpu_time(pid: u32) -> Result<Duration, String> {
    let id = i32::try_from(pid).map_err(|error| format!("process {pid}: {error}"))?;
    let clock = clock_getcpuclockid(Pid::from_raw(id))
        .and_then(clock_gettime)
        .map_err(|error| format!("cannot read the processor time of {pid}: {error}"))?;
    let path = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&path).map_err(|error| format!("cannot read {path}: {error}"))?;
    let children = children_ticks(&text).ok_or_else(|| format!("{path} is not as expected"))?;
    // Linux shows ticks of 10 ms to programs, whatever it counts in.
    Ok(Duration::from(clock) + Duration::from_millis(children.saturating_mul(10)))
}

/// `cutime` and `cstime`, the fields 16 and 17 of stat; the name in field 2 may hold blanks.
fn children_ticks(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace().skip(13);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user.saturating_add(system))
}

/// Context switches of one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Switches {
    /// The thread had waited and was woken.
    voluntary: u64,
    /// The kernel gave its turn to another.
    forced: u64,
}

fn switches(status: &str) -> Option<Switches> {
    Some(Switches {
        voluntary: field(status, "voluntary_ctxt_switches:")?,
        forced: field(status, "nonvoluntary_ctxt_switches:")?,
    })
}

/// Counts the wake-ups of a process whose threads come and go: what each thread was last seen
/// with counts, even when it has ended since.
#[derive(Debug, Default)]
pub(crate) struct WakeUps {
    first: BTreeMap<u32, Switches>,
    last: BTreeMap<u32, Switches>,
}

impl WakeUps {
    /// Looks for the first time: what was before does not count.
    pub(crate) fn start(pid: u32) -> Self {
        let first = threads(pid);
        Self {
            last: first.clone(),
            first,
        }
    }

    /// Looks again.
    pub(crate) fn look(&mut self, pid: u32) {
        self.last.extend(threads(pid));
    }

    /// Voluntary switches since the start.
    pub(crate) fn voluntary(&self) -> u64 {
        self.sum(|switches| switches.voluntary)
    }

    /// Forced switches since the start: the noise of other programs.
    pub(crate) fn forced(&self) -> u64 {
        self.sum(|switches| switches.forced)
    }

    fn sum(&self, of: impl Fn(&Switches) -> u64) -> u64 {
        let since = |thread: &u32, now: &Switches| {
            of(now).saturating_sub(self.first.get(thread).map_or(0, &of))
        };
        self.last
            .iter()
            .map(|(thread, now)| since(thread, now))
            .sum()
    }
}

/// Number of threads of a process.
pub(crate) fn thread_count(pid: u32) -> usize {
    threads(pid).len()
}

fn threads(pid: u32) -> BTreeMap<u32, Switches> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return BTreeMap::new();
    };
    // A thread may end between the list and the look.
    entries
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let id = path.file_name()?.to_str()?.parse().ok()?;
            let status = fs::read_to_string(path.join("status")).ok()?;
            Some((id, switches(&status)?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Name:\tagent\nVmHWM:\t    2048 kB\nvoluntary_ctxt_switches:\t17\n\
                          nonvoluntary_ctxt_switches:\t3\n";

    #[test]
    fn fields_of_procfs_are_read_by_their_whole_name() {
        assert_eq!(field(STATUS, "VmHWM:"), Some(2048));
        assert_eq!(field(STATUS, "VmPeak:"), None);
        let read = Switches {
            voluntary: 17,
            forced: 3,
        };
        assert_eq!(switches(STATUS), Some(read));
    }

    #[test]
    fn the_time_of_children_is_found_behind_a_name_with_blanks() {
        let stat = "12 (a) b (c) S 1 12 12 0 -1 4194560 1 2 3 4 50 60 7 8 20 0 1 0 99 1 1";
        assert_eq!(children_ticks(stat), Some(15));
        assert_eq!(children_ticks("12 (a"), None);
    }

    #[test]
    fn threads_that_ended_and_threads_that_came_count() {
        let of = |voluntary| Switches {
            voluntary,
            forced: 0,
        };
        let wake_ups = WakeUps {
            first: BTreeMap::from([(1, of(10)), (2, of(5))]),
            // 2 ended after its 6th switch, 3 came after the start.
            last: BTreeMap::from([(1, of(14)), (2, of(6)), (3, of(7))]),
        };
        assert_eq!(wake_ups.voluntary(), 4 + 1 + 7);
    }

    #[test]
    fn this_process_has_memory_and_uses_its_processor() {
        let own = std::process::id();
        assert!(pss_mb(own).unwrap() > 0.1);
        assert!(peak_mb(own).unwrap() > 0.1);
        let anonymous = anonymous_mb(own).unwrap();
        assert!(anonymous > 0.1 && anonymous < peak_mb(own).unwrap());
        let before = cpu_time(own).unwrap();
        let mut wake_ups = WakeUps::start(own);
        let mut sum = 0_u64;
        while cpu_time(own).unwrap() < before + Duration::from_millis(20) {
            sum = (0..100_000).fold(sum, |a, b| std::hint::black_box(a ^ b));
        }
        os::pause(Duration::from_millis(2));
        wake_ups.look(own);
        assert!(wake_ups.voluntary() >= 1, "{wake_ups:?} {sum}");
    }
}

//! Usage of this program itself.

use nix::sys::{
    resource::{Usage, UsageWho, getrusage},
    time::TimeVal,
};

use super::Tree;
use crate::core::{procfs::memory, rates::AgentUsage};

/// Reads it, without the memory where that is known. Processor time and wake-ups are asked of the
/// kernel, not read below the root: that sums up threads that ended, too.
pub(super) fn read(tree: &mut Tree<'_>, pss: Option<u64>) -> AgentUsage {
    let rolled_up = |rollup: &str| memory::bytes(rollup, "Pss:");
    let written = |io: &str| {
        let line = io
            .lines()
            .find_map(|line| line.strip_prefix("write_bytes:"));
        line?.trim().parse().ok()
    };
    let usage = getrusage(UsageWho::RUSAGE_SELF).ok();
    AgentUsage {
        pss: pss.or_else(|| tree.fact("its own memory", "proc/self/smaps_rollup", rolled_up)),
        written: tree.fact("its own writes", "proc/self/io", written),
        cpu_us: usage.as_ref().and_then(cpu_us),
        wakeups: usage.and_then(|usage| u64::try_from(usage.voluntary_context_switches()).ok()),
    }
}

fn cpu_us(usage: &Usage) -> Option<u64> {
    micros(usage.user_time())?.checked_add(micros(usage.system_time())?)
}

fn micros(time: TimeVal) -> Option<u64> {
    let whole = u64::try_from(time.tv_sec()).ok()?.checked_mul(1_000_000)?;
    whole.checked_add(u64::try_from(time.tv_usec()).ok()?)
}

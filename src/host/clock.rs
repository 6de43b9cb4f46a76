//! The only place that reads time.

use std::{path::Path, time::Duration};

use nix::{
    poll::{PollTimeout, poll},
    time::{ClockId, clock_gettime},
};

use crate::{
    core::time::{Mono, Now, Wall},
    files,
};

/// Both clocks, now. `mono` counts through suspend, so that a deadline means the same before and
/// after.
pub fn now() -> Now {
    Now {
        mono: Mono::since_boot(read(ClockId::CLOCK_BOOTTIME)),
        wall: Wall::from_millis(
            i64::try_from(read(ClockId::CLOCK_REALTIME).as_millis()).unwrap_or(i64::MAX),
        ),
    }
}

/// Time since boot without the time that the machine was suspended. Only its difference to [`now`]
/// is of use.
pub fn awake() -> Duration {
    read(ClockId::CLOCK_MONOTONIC)
}

/// Waits until the clock has reached `deadline`, also where the machine slept in between: timers of
/// the executor stand still in suspend, so the clock is asked again after each.
pub async fn until(deadline: Mono) {
    loop {
        let left = deadline.since(now().mono);
        if left.is_zero() {
            return;
        }
        // A minute at most: a machine that woke up is at most so late.
        smol::Timer::after(left.min(Duration::from_secs(60))).await;
    }
}

/// Waits for the next multiple of `period` of the machine's time awake: what looks every few
/// seconds looks at the same moment, and wakes the processor once for all.
pub async fn tick(period: Duration) {
    let into = awake().as_nanos().checked_rem(period.as_nanos());
    let into = u64::try_from(into.unwrap_or_default()).unwrap_or_default();
    smol::Timer::after(period.saturating_sub(Duration::from_nanos(into))).await;
}

/// Blocks the calling thread for a while: between two looks of threads that have no executor.
pub fn pause(length: Duration) {
    let length = PollTimeout::try_from(length).unwrap_or(PollTimeout::MAX);
    // No descriptor is polled. A signal ends the pause early, and the caller looks sooner.
    let _paused = poll(&mut [], length).is_ok();
}

/// The kernel's id of this boot: what [`Mono`] counts from. `None` where /proc is not there.
pub fn boot_id() -> Option<String> {
    boot_id_below(Path::new("/"))
}

/// Like [`boot_id`], below a root path.
pub fn boot_id_below(root: &Path) -> Option<String> {
    let content = files::read(&root.join("proc/sys/kernel/random/boot_id"), 64).ok()?;
    let id = String::from_utf8(content).ok()?.trim().to_owned();
    let is_uuid = id.len() == 36
        && id
            .bytes()
            .all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    is_uuid.then_some(id)
}

fn read(clock: ClockId) -> Duration {
    // It fails only for a clock that the kernel does not have; both are older than any kernel that
    // runs k3s.
    clock_gettime(clock).map_or(Duration::ZERO, Duration::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_clocks_run() {
        let first = now();
        assert!(first.mono.elapsed_since_boot() > Duration::ZERO);
        // 2024-01-01: the machine that runs this test has its clock set.
        assert!(first.wall.millis() > 1_704_067_200_000);
        assert!(now().mono >= first.mono);
    }

    #[test]
    fn a_wait_ends_at_its_deadline_and_not_before() {
        let deadline = now().mono.after(Duration::from_millis(30));
        smol::block_on(until(deadline));
        assert!(now().mono >= deadline);
        smol::block_on(until(Mono::default()));
    }

    #[test]
    fn the_boot_id_is_a_uuid_or_nothing() {
        assert_eq!(boot_id().unwrap().len(), 36);
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(boot_id_below(directory.path()), None);
        let random = directory.path().join("proc/sys/kernel/random");
        std::fs::create_dir_all(&random).unwrap();
        files::replace(&random.join("boot_id"), b"no uuid\n", files::PRIVATE).unwrap();
        assert_eq!(boot_id_below(directory.path()), None);
    }
}

//! Injections of tests: the end of the process right after a write, and a shorter soak. The program
//! that is shipped has none of it.

use std::time::Duration;

use crate::core::rollout::SOAK;

#[cfg(feature = "internals")]
#[expect(
    clippy::disallowed_methods,
    reason = "only tests have these variables, and no setting names them"
)]
fn of_test(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Ends the process if this is the write that a test waits for: the file of
/// `PIPEOPS_TEST_CUT_FILE` has a byte for each write until then.
#[cfg(feature = "internals")]
pub(super) fn after(write: &str) {
    let Some(path) = of_test("PIPEOPS_TEST_CUT_FILE") else {
        return;
    };
    let Ok(file) = std::fs::OpenOptions::new().write(true).open(path) else {
        return;
    };
    let left = file.metadata().map_or(0, |metadata| metadata.len());
    if left > 0 && file.set_len(left.saturating_sub(1)).is_ok() && left == 1 {
        log::error!("cut after: {write}");
        std::process::abort();
    }
}

#[cfg(not(feature = "internals"))]
pub(super) const fn after(_write: &str) {}

/// Time for which everything must stay ready: that of `PIPEOPS_TEST_SOAK_MS` in tests.
#[cfg(feature = "internals")]
pub(super) fn soak() -> Duration {
    let given = of_test("PIPEOPS_TEST_SOAK_MS").and_then(|given| given.parse().ok());
    given.map_or(SOAK, Duration::from_millis)
}

#[cfg(not(feature = "internals"))]
pub(super) const fn soak() -> Duration {
    SOAK
}

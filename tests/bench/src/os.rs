//! The clock, the pauses, the threads, the programs and the environment of the bench: the few
//! calls that the agent itself may not make, each in one place.

use std::io::Write;
use std::process::Command;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The time, for durations.
#[expect(
    clippy::disallowed_methods,
    reason = "the bench measures time; the agent takes it as an argument"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// The wall clock, for samples that end now.
#[expect(
    clippy::disallowed_methods,
    reason = "the agent takes the time as an argument"
)]
pub(crate) fn since_1970() -> Result<Duration, String> {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_err(|error| format!("the clock is before 1970: {error}"))
}

/// How long ago `start` was.
pub(crate) fn since(start: Instant) -> Duration {
    now().saturating_duration_since(start)
}

/// Waits. A measurement over a time is the one thing that no level can be waited for.
#[expect(
    clippy::disallowed_methods,
    reason = "figures per second need seconds to pass"
)]
pub(crate) fn pause(duration: Duration) {
    std::thread::sleep(duration);
}

/// A thread whose end the caller waits for.
#[expect(
    clippy::disallowed_methods,
    reason = "blocking clients are the simplest ones; each is joined by who started it"
)]
pub(crate) fn thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    std::thread::spawn(work)
}

/// A program to start.
#[expect(
    clippy::disallowed_methods,
    reason = "the bench starts agents, planes and clusters; who starts one ends it"
)]
pub(crate) fn program(path: impl AsRef<std::ffi::OsStr>) -> Command {
    Command::new(path)
}

/// A variable of the environment, unless it is missing or empty.
#[expect(clippy::disallowed_methods, reason = "the bench has no other settings")]
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Replaces a file's content.
#[expect(
    clippy::disallowed_methods,
    reason = "nothing here has to survive a power cut"
)]
pub(crate) fn write(path: &std::path::Path, content: &str) -> Result<(), String> {
    std::fs::write(path, content)
        .map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// A line for the reader of the figures.
pub(crate) fn say(line: &str) {
    // Nobody can be told when the terminal is gone.
    drop(writeln!(std::io::stdout(), "{line}"));
}

/// A line for whoever waits for them.
pub(crate) fn progress(line: &str) {
    drop(writeln!(std::io::stderr(), "bench: {line}"));
}

/// For ratios and units; figures are printed with a few digits.
#[expect(
    clippy::as_conversions,
    clippy::cast_precision_loss,
    reason = "counts of bytes and nanoseconds are far below 2^52, and printed with few digits"
)]
pub(crate) const fn float(count: u64) -> f64 {
    count as f64
}

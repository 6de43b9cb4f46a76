//! What lives for as long as somebody looks. `make soak` looks for longer than every time-out on the way.

use std::time::Duration;

use super::{bench::Bench, running::Running};
use crate::agent::clock;

/// How long a followed log and a quiet watch are held: `make soak` sets more than every time-out on the way.
#[expect(
    clippy::disallowed_methods,
    reason = "the one variable that makes a test longer"
)]
fn held_for() -> Duration {
    let seconds = std::env::var("PIPEOPS_TEST_HELD_S").ok();
    Duration::from_secs(seconds.map_or(5, |seconds| seconds.parse().unwrap()))
}

#[test]
fn a_followed_log_and_a_quiet_watch_live_as_long_as_somebody_looks() {
    let Some(bench) = Bench::calm() else { return };
    let quiet = ["get", "secrets", "-n", "default", "-w", "-o", "name"];
    let mut watch = Running::start(bench.kubectl(&quiet));
    let log =
        Running::start(bench.kubectl(&["logs", "-f", "logger", "-n", "fixtures", "--tail=1"]));
    let number = |line: String| {
        line.split(' ')
            .nth(1)
            .and_then(|n| n.parse::<u64>().ok())
            .unwrap()
    };
    let mut last = number(log.line("a line", |line| line.starts_with("line ")));
    let end = clock() + held_for();
    while clock() < end {
        let next = number(log.line("the next line", |line| line.starts_with("line ")));
        assert_eq!(next, last + 1, "no line is lost and none comes twice");
        last = next;
    }
    assert!(
        watch.child.try_wait().unwrap().is_none(),
        "the watch still runs"
    );
    bench.text(&["create", "secret", "generic", "late", "-n", "default"]);
    watch.line("what happens after a long silence", |line| {
        line == "secret/late"
    });
    bench.text(&["delete", "secret", "late", "-n", "default"]);
    assert_eq!(bench.agent.status()["link"]["outages"], 0);
}

//! Watcher of the live stream: publishes the status and new log lines while there are viewers.

use std::time::Duration;

use crate::{
    core::time::Now,
    dashboard::Topic,
    tasks::stream::Stream,
    wire::api::{self, LogEntry, Status},
};

/// Interval between looks at the status and the log.
const TURN: Duration = Duration::from_secs(1);
/// Turns between heartbeats and status messages: a page sees within five seconds that the agent
/// is gone.
const BEAT_TURNS: u32 = 2;
/// Turns between status messages in which only figures changed.
const FIGURES_TURNS: u32 = 30;
/// Turns for which messages are kept after the last viewer left: a page may reload, a network may
/// come back.
const LINGER_TURNS: u32 = 60;

/// Reads the agent's own log lines after a number; returns them with the number of the last.
pub type LinesAfter<'a> = &'a dyn Fn(u64) -> (Vec<LogEntry>, u64);

/// Watcher of what viewers see change.
pub struct Watcher<'a> {
    /// Stream that the messages go to.
    pub stream: &'a Stream,
    /// Reads the status.
    pub status: &'a dyn Fn() -> Status,
    /// Reads the clock.
    pub now: &'a dyn Fn() -> Now,
    /// Reads new log lines.
    pub lines_after: LinesAfter<'a>,
}

impl std::fmt::Debug for Watcher<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watcher")
    }
}

impl Watcher<'_> {
    /// Publishes changes while there are viewers.
    #[expect(clippy::infinite_loop, reason = "it ends when its task is dropped")]
    pub async fn run(&self) {
        let hub = self.stream.hub();
        loop {
            hub.watched().await;
            let (_, mut seen) = (self.lines_after)(u64::MAX);
            let mut last = Status::default();
            let (mut turn, mut left) = (0_u32, 0_u32);
            while hub.is_heard() {
                let (lines, newest) = (self.lines_after)(seen);
                seen = newest;
                for line in &lines {
                    self.stream.publish(Topic::Logs, line);
                }
                if turn.is_multiple_of(BEAT_TURNS) {
                    self.status(&mut last, turn.is_multiple_of(FIGURES_TURNS));
                    hub.beat((self.now)().wall.millis().div_euclid(1000));
                }
                turn = turn.wrapping_add(1);
                smol::Timer::after(TURN).await;
                left = if hub.viewers() > 0 { 0 } else { left + 1 };
                if left > LINGER_TURNS {
                    hub.drop_backlog();
                }
            }
        }
    }

    fn status(&self, last: &mut Status, with_figures: bool) {
        let status = (self.status)();
        let at_rest = at_rest(&status);
        if with_figures || at_rest != *last {
            self.stream.publish(Topic::Status, &status);
            *last = at_rest;
        }
    }
}

/// A status without the figures that change all the time.
fn at_rest(status: &Status) -> Status {
    let mut calm = status.clone();
    calm.uptime_s = 0;
    calm.load = api::Load::default();
    // Made of the rest.
    calm.rows.clear();
    calm.verdict.age_s = None;
    calm.cluster.age_s = None;
    for part in &mut calm.verdict.parts {
        part.age_s = None;
    }
    let (link, host) = (&mut calm.link, &mut calm.host);
    (link.received_bytes, link.sent_bytes) = (0, 0);
    (link.rtt_ms, link.next_attempt_s) = (None, None);
    link.last_heartbeat = None;
    (host.cpu_percent, host.memory_percent) = (None, None);
    (host.disk_percent, host.uptime_s) = (None, None);
    calm
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_alone_are_no_change() {
        let mut status = Status::default();
        let before = at_rest(&status);
        status.uptime_s = 9;
        status.link.sent_bytes = 9;
        status.host.cpu_percent = Some(1.0);
        assert_eq!(at_rest(&status), before);
        status.link.state = "waiting".to_owned();
        assert_ne!(at_rest(&status), before);
    }
}

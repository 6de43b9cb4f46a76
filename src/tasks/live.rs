//! Tells viewers what changes, while there are any: nobody is woken and nothing is compared while nobody watches.

use std::{rc::Rc, time::Duration};

use serde::Serialize;

use super::{board::Board, local::Local};
use crate::{
    core::{event::Event, series::Tick},
    dashboard::{Answers, Hub, Topic},
    wire::api::{self, ChangeReport, EventReport, LogEntry, Status},
};

/// How often it is looked what is new.
const TURN: Duration = Duration::from_secs(1);
/// A sign of life, and a status that changed, in every so many turns: a page knows within five seconds that the agent is gone.
const BEAT_TURNS: u32 = 2;
/// A status of which only the figures changed that change all the time.
const FIGURES_TURNS: u32 = 30;
/// How long messages are kept for the last viewer that went: a page that is loaded anew, a network that was away for a moment.
const LINGER_TURNS: u32 = 60;

/// The agent's own log lines that came after a number, with the number of the last.
pub type LinesAfter<'a> = &'a dyn Fn(u64) -> (Vec<LogEntry>, u64);

/// What is told to viewers as it happens.
pub struct Live {
    hub: Rc<Hub>,
    board: Rc<Board>,
}

impl std::fmt::Debug for Live {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Live for {} viewers", self.hub.viewers())
    }
}

impl Live {
    /// Nobody watches yet.
    pub fn new(board: Rc<Board>) -> Self {
        let first_id = u64::try_from(board.started().wall.millis()).unwrap_or(0);
        Self {
            hub: Rc::new(Hub::new(first_id)),
            board,
        }
    }

    /// Where viewers read.
    pub fn hub(&self) -> Rc<Hub> {
        Rc::clone(&self.hub)
    }

    /// Tells what was measured.
    pub fn measured(&self, topic: Topic, tick: &Tick) {
        if !self.hub.is_heard() {
            return;
        }
        let values = tick.points.iter().map(|point| {
            let (digits, value) = (point.series.digits, point.value);
            let number = crate::core::series::float(value, digits);
            (point.series.key.to_string(), number.into())
        });
        let values: serde_json::Map<_, _> = values.collect();
        let time = tick.at.wall.millis().div_euclid(1000);
        self.tell(topic, &serde_json::json!({"time": time, "values": values}));
    }

    /// Tells what happened, under the number that it is kept by. What is told again under a number replaces what was told before.
    pub fn happened(&self, id: u64, event: &Event) {
        if self.hub.is_heard() {
            self.tell(Topic::Events, &shape(id, event));
        }
    }

    /// Tells of a change: when it begins, and when it ends.
    pub fn changed(&self, change: &ChangeReport) {
        self.tell(Topic::Changes, change);
    }

    fn tell(&self, topic: Topic, shape: &impl Serialize) {
        match serde_json::to_string(shape) {
            Ok(json) => self.hub.publish(topic, &json),
            Err(error) => log::debug!("viewers are not told: {error}"),
        }
    }

    /// Tells what changes, for as long as somebody watches.
    #[expect(clippy::infinite_loop, reason = "it ends when its task is dropped")]
    pub async fn run(&self, local: &Local, lines_after: LinesAfter<'_>) {
        loop {
            self.hub.watched().await;
            let (_, mut seen) = lines_after(u64::MAX);
            let mut last = Status::default();
            let (mut turn, mut left) = (0_u32, 0_u32);
            while self.hub.is_heard() {
                let (lines, newest) = lines_after(seen);
                seen = newest;
                for line in &lines {
                    self.tell(Topic::Logs, line);
                }
                if turn.is_multiple_of(BEAT_TURNS) {
                    self.status(local, &mut last, turn.is_multiple_of(FIGURES_TURNS));
                    let time_s = self.board.now().wall.millis().div_euclid(1000);
                    self.hub.beat(time_s);
                }
                turn = turn.wrapping_add(1);
                smol::Timer::after(TURN).await;
                left = if self.hub.viewers() > 0 { 0 } else { left + 1 };
                if left > LINGER_TURNS {
                    self.hub.rest();
                }
            }
        }
    }

    fn status(&self, local: &Local, last: &mut Status, with_figures: bool) {
        let status = local.status();
        let at_rest = at_rest(&status);
        if with_figures || at_rest != *last {
            self.tell(Topic::Status, &status);
            *last = at_rest;
        }
    }
}

/// A status without the figures that change all the time.
fn at_rest(status: &Status) -> Status {
    let mut calm = status.clone();
    calm.uptime_s = 0;
    calm.load = api::Load::default();
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

fn shape(id: u64, event: &Event) -> EventReport {
    EventReport {
        id,
        at: api::stamp(event.last),
        source: event.what.source.word().to_owned(),
        severity: event.what.severity.word().to_owned(),
        subject: event.what.subject.clone(),
        reason: event.what.reason.clone(),
        message: event.what.message.clone(),
        count: event.count,
    }
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

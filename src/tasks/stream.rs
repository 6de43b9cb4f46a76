//! Event stream: publishes samples, events and changes to the viewers of the page and of
//! `--follow`.
//!
//! Nothing is serialized without viewers.

use std::rc::Rc;

use serde::Serialize;

use crate::{
    core::{
        event::Event,
        order::GatherExt as _,
        series::{self, Tick},
        time::Wall,
    },
    dashboard::{Hub, Topic},
    wire::api::{self, ChangeReport, EventReport},
};

/// Stream of messages to viewers.
pub struct Stream {
    hub: Rc<Hub>,
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Stream for {} viewers", self.hub.viewers())
    }
}

impl Stream {
    /// A stream without viewers. Message numbers begin at the time of the start, so that they grow
    /// over restarts.
    pub fn new(started: Wall) -> Self {
        let first_id = u64::try_from(started.millis()).unwrap_or(0);
        Self {
            hub: Rc::new(Hub::new(first_id)),
        }
    }

    /// Hub that viewers read from.
    pub fn hub(&self) -> Rc<Hub> {
        Rc::clone(&self.hub)
    }

    /// Publishes the samples of a tick.
    pub fn measured(&self, topic: Topic, tick: &Tick) {
        if !self.hub.is_heard() {
            return;
        }
        let values = tick.points.iter().map(|point| {
            let (digits, value) = (point.series.digits, point.value);
            let number = series::float(value, digits);
            (point.series.key.to_string(), number.into())
        });
        let values: serde_json::Map<_, _> = values.gather();
        let time = tick.at.wall.millis().div_euclid(1000);
        self.publish(topic, &serde_json::json!({"time": time, "values": values}));
    }

    /// Publishes an event under its number in the archive. A later message of the same number
    /// replaces the earlier one.
    pub fn happened(&self, id: u64, event: &Event) {
        if self.hub.is_heard() {
            self.publish(Topic::Events, &event_report(id, event));
        }
    }

    /// Publishes a change, when it begins and when it ends.
    pub fn changed(&self, change: &ChangeReport) {
        self.publish(Topic::Changes, change);
    }

    /// Publishes a value as JSON.
    pub(super) fn publish(&self, topic: Topic, value: &impl Serialize) {
        match serde_json::to_string(value) {
            Ok(json) => self.hub.publish(topic, &json),
            Err(error) => log::debug!("a message to viewers cannot be serialised: {error}"),
        }
    }
}

fn event_report(id: u64, event: &Event) -> EventReport {
    EventReport {
        id,
        at: api::stamp(event.last),
        source: event.what.source.as_str().to_owned(),
        severity: event.what.severity.as_str().to_owned(),
        subject: event.what.subject.clone(),
        reason: event.what.reason.clone(),
        message: event.what.message.clone(),
        count: event.count,
    }
}

//! Publishes new events to the archive and to live viewers, under one number from the start.
//!
//! An event is on disk with the flush of its minute. With viewers it is published within a second,
//! otherwise with that flush.

use std::{rc::Rc, time::Duration};

use smol::{Timer, lock::Mutex};

use super::events::Events;
use crate::{core::event::Event, store::telemetry::Handle, tasks::stream::Stream};

/// Interval between checks for new events while there are viewers.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Publishes new events to the archive and to live viewers.
#[derive(Debug)]
pub struct Publisher {
    events: Events,
    samples: Handle,
    stream: Rc<Stream>,
    /// Serializes publishing: news are noted before the minute that they belong to ends.
    one_at_a_time: Mutex<()>,
}

impl Publisher {
    /// Of these events; they are kept in `samples`.
    pub fn new(events: Events, samples: Handle, stream: Rc<Stream>) -> Self {
        Self {
            events,
            samples,
            stream,
            one_at_a_time: Mutex::new(()),
        }
    }

    /// Source of events.
    pub const fn events(&self) -> &Events {
        &self.events
    }

    /// Publishes new events: from now on the archive has them and viewers receive them.
    pub async fn look(&self) {
        let _one = self.one_at_a_time.lock().await;
        let changed = self.events.take_changed();
        if !self.note(changed).await {
            self.events.mark_unpublished();
        }
    }

    /// Ends a minute: the same thing again is another event. Call it before each flush.
    pub async fn end_minute(&self) {
        let _one = self.one_at_a_time.lock().await;
        let changed = self.events.take();
        if !self.note(changed).await {
            log::warn!("events of the last minute were lost: the archive does not answer");
        }
    }

    /// Publishes new events as long as there are viewers.
    #[expect(clippy::infinite_loop, reason = "it ends when its task is dropped")]
    pub async fn run(&self) {
        let hub = self.stream.hub();
        loop {
            hub.watched().await;
            self.look().await;
            Timer::after(POLL_INTERVAL).await;
        }
    }

    /// Returns whether the archive has them.
    async fn note(&self, events: Vec<Event>) -> bool {
        if events.is_empty() {
            return true;
        }
        let noted = self.samples.note_events(events.clone()).await;
        match noted {
            Ok(numbers) => {
                for (number, event) in numbers.into_iter().zip(&events) {
                    self.stream.happened(number, event);
                }
                true
            }
            Err(failure) => {
                log::debug!("an event is not stored yet: {failure}");
                false
            }
        }
    }
}

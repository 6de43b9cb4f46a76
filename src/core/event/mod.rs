//! Events of the cluster and of the agent, and log lines of failed containers.
//!
//! The same thing again within a minute is one event with a count; who reports it adds it up
//! ([`Tally`]).

mod deduplication;

pub use deduplication::{Arrival, Deduplication, Sighting};

use std::collections::BTreeMap;

use crate::core::order::OrderExt as _;

use super::{health::Severity, time::Wall};

/// Kinds of events that one minute keeps apart. What is beyond them is counted.
const KINDS_MAX: usize = 256;
/// The longest message of an event.
const MESSAGE_BYTES_MAX: usize = 1024;
/// The longest subject: a kind, a namespace of 63 bytes and a name of 253 of them.
const SUBJECT_BYTES_MAX: usize = 512;
/// The longest reason. Kubernetes allows 128.
const REASON_BYTES_MAX: usize = 128;

/// Source of an event.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Source {
    /// Kubernetes, in an Event object.
    Cluster,
    Agent,
}

impl Source {
    /// The word on the wire, on disk and for people.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cluster => "cluster",
            Self::Agent => "agent",
        }
    }

    /// The source of that word.
    pub fn of(word: &str) -> Option<Self> {
        [Self::Cluster, Self::Agent]
            .into_iter()
            .find(|source| source.as_str() == word)
    }
}

/// Content of an event: what two events have in common to be counted as one.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct EventContent {
    pub source: Source,
    pub severity: Severity,
    /// Subject: `Pod/shop/web-0`, `Node/pi`, `link`.
    pub subject: String,
    /// A word for it: `BackOff`, `link.refused`.
    pub reason: String,
    /// Message, one sentence.
    pub message: String,
}

/// Event with its count within a minute.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Event {
    /// Tells it from the same thing of another minute, for as long as this program runs.
    pub number: u64,
    /// The event.
    pub what: EventContent,
    /// Time when it was first seen.
    pub first: Wall,
    /// Time when it was last seen.
    pub last: Wall,
    /// Number of occurrences.
    pub count: u32,
}

/// A line that a container wrote before it failed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LogLine {
    /// Time of the line.
    pub at: Wall,
    /// Container that wrote it: `shop/web-0/app`.
    pub subject: String,
    /// Text of the line.
    pub text: String,
}

/// Distinct events of a minute.
#[derive(Debug, Default)]
pub struct Tally {
    events: BTreeMap<EventContent, Times>,
    /// Number of distinct events so far.
    numbers: u64,
    dropped: u64,
}

/// Times and count of an event.
#[derive(Clone, Copy, Debug)]
struct Times {
    number: u64,
    first: Wall,
    last: Wall,
    count: u32,
    is_unpublished: bool,
}

impl Tally {
    /// Counts something that happened `count` times, the last time at `at`. Texts that are too long
    /// are cut.
    pub fn add(&mut self, mut what: EventContent, at: Wall, count: u32) {
        cut(&mut what.message, MESSAGE_BYTES_MAX);
        cut(&mut what.subject, SUBJECT_BYTES_MAX);
        cut(&mut what.reason, REASON_BYTES_MAX);
        if let Some(times) = self.events.get_mut(&what) {
            times.first = times.first.min(at);
            times.last = times.last.max(at);
            times.count = times.count.saturating_add(count);
            times.is_unpublished = true;
        } else if self.events.len() >= KINDS_MAX {
            self.dropped = self.dropped.saturating_add(u64::from(count));
        } else {
            self.numbers = self.numbers.saturating_add(1);
            let times = Times {
                number: self.numbers,
                first: at,
                last: at,
                count,
                is_unpublished: true,
            };
            self.events.insert(what, times);
        }
    }

    /// Events that changed since the last call, oldest first, each with its totals of this minute.
    pub fn take_changed(&mut self) -> Vec<Event> {
        let changed = self
            .events
            .iter_mut()
            .filter(|(_, times)| times.is_unpublished);
        let mut changed: Vec<Event> = changed
            .map(|(what, times)| {
                times.is_unpublished = false;
                Event {
                    number: times.number,
                    what: what.clone(),
                    first: times.first,
                    last: times.last,
                    count: times.count,
                }
            })
            .collect();
        changed.order_by_key(|event| event.first);
        changed
    }

    /// Marks all events of this minute as unpublished, because their receiver failed.
    pub fn mark_unpublished(&mut self) {
        for times in self.events.values_mut() {
            times.is_unpublished = true;
        }
    }

    /// Ends the minute: what was added to since the last [`Tally::take_changed`] is taken out, and
    /// the same thing again is another event.
    pub fn take(&mut self) -> Vec<Event> {
        let changed = self.take_changed();
        self.events.clear();
        changed
    }

    /// Number of events dropped since the start because a minute had too many distinct ones.
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }
}

fn cut(text: &mut String, bytes_max: usize) {
    text.truncate(text.floor_char_boundary(bytes_max));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn happening(reason: &str) -> EventContent {
        EventContent {
            source: Source::Cluster,
            severity: Severity::Warning,
            subject: "Pod/shop/web-0".to_owned(),
            reason: reason.to_owned(),
            message: "ä".repeat(MESSAGE_BYTES_MAX),
        }
    }

    #[test]
    fn the_same_thing_again_is_counted_and_a_flood_is_bounded() {
        let mut tally = Tally::default();
        for (at, count) in [(5_000, 1), (2_000, 3), (9_000, 1)] {
            tally.add(happening("BackOff"), Wall::from_millis(at), count);
        }
        for index in 0..2 * KINDS_MAX {
            tally.add(happening(&index.to_string()), Wall::from_millis(9_000), 1);
        }
        let events = tally.take();
        assert_eq!(events.len(), KINDS_MAX);
        let first = &events[0];
        assert_eq!(
            (first.first.millis(), first.last.millis(), first.count),
            (2_000, 9_000, 5)
        );
        assert_eq!(first.what.message.len(), MESSAGE_BYTES_MAX);
        assert_eq!(tally.dropped(), u64::try_from(KINDS_MAX).unwrap() + 1);
        assert!(tally.take().is_empty());
    }

    #[test]
    fn news_say_all_of_the_minute_under_one_number() {
        let mut tally = Tally::default();
        let at = Wall::from_millis;
        tally.add(happening("BackOff"), at(1_000), 1);
        tally.add(happening("Pulled"), at(1_500), 1);
        let first = tally.take_changed();
        assert_eq!(first.len(), 2);
        assert!(tally.take_changed().is_empty());
        tally.add(happening("BackOff"), at(2_000), 2);
        let again = tally.take_changed();
        assert_eq!((again.len(), again[0].count), (1, 3));
        assert_eq!(again[0].number, first[0].number);
        // Nobody could take them: all are told once more.
        tally.mark_unpublished();
        assert_eq!(tally.take_changed().len(), 2);
        assert!(tally.take().is_empty());
        tally.add(happening("BackOff"), at(3_000), 1);
        let next_minute = tally.take();
        assert_eq!(next_minute[0].count, 1);
        assert!(
            first
                .iter()
                .all(|event| event.number != next_minute[0].number)
        );
    }
}

//! What happened: events of the cluster and of the agent, and lines that a failing container wrote.
//!
//! The same thing again within a minute is one event with a count; who reports it adds it up ([`Tally`]).

use std::collections::BTreeMap;

use super::{health::Severity, time::Wall};

/// Kinds of events that one minute keeps apart. What is beyond them is counted.
const KINDS_MAX: usize = 256;
/// The longest message of an event.
const MESSAGE_BYTES_MAX: usize = 1024;

/// Who says it.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Source {
    /// Kubernetes, in an Event object.
    Cluster,
    /// This agent.
    Agent,
}

impl Source {
    /// The word on the wire, on disk and for people.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Cluster => "cluster",
            Self::Agent => "agent",
        }
    }

    /// The source of that word.
    pub fn of(word: &str) -> Option<Self> {
        [Self::Cluster, Self::Agent]
            .into_iter()
            .find(|source| source.word() == word)
    }
}

/// What happened, without how often.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Happening {
    /// Who says it.
    pub source: Source,
    /// How much it matters.
    pub severity: Severity,
    /// What it happened to: `Pod/shop/web-0`, `Node/pi`, `link`.
    pub subject: String,
    /// A word for it: `BackOff`, `link.refused`.
    pub reason: String,
    /// What happened, in a sentence.
    pub message: String,
}

/// What happened, and how often within a minute.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Event {
    /// What.
    pub what: Happening,
    /// When it was first seen.
    pub first: Wall,
    /// When it was last seen.
    pub last: Wall,
    /// How often.
    pub count: u32,
}

/// A line that a container wrote before it failed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LogLine {
    /// When.
    pub at: Wall,
    /// Who wrote it: `shop/web-0/app`.
    pub subject: String,
    /// What it wrote.
    pub text: String,
}

/// What happened within a minute, each thing once.
#[derive(Debug, Default)]
pub struct Tally {
    events: BTreeMap<Happening, Event>,
    dropped: u64,
}

impl Tally {
    /// Counts something that happened `count` times, the last time at `at`. A message that is too long is cut.
    pub fn add(&mut self, mut what: Happening, at: Wall, count: u32) {
        let end = what.message.floor_char_boundary(MESSAGE_BYTES_MAX);
        what.message.truncate(end);
        if let Some(event) = self.events.get_mut(&what) {
            event.first = event.first.min(at);
            event.last = event.last.max(at);
            event.count = event.count.saturating_add(count);
        } else if self.events.len() >= KINDS_MAX {
            self.dropped = self.dropped.saturating_add(u64::from(count));
        } else {
            let event = Event {
                what: what.clone(),
                first: at,
                last: at,
                count,
            };
            self.events.insert(what, event);
        }
    }

    /// Takes all events out, the oldest first.
    pub fn take(&mut self) -> Vec<Event> {
        let mut events: Vec<Event> = std::mem::take(&mut self.events).into_values().collect();
        events.sort_by_key(|event| event.first);
        events
    }

    /// How many were not kept since the start, because too many different things happened at once.
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn happening(reason: &str) -> Happening {
        Happening {
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
}

//! What happened: events of the cluster and of the agent, and lines that a failing container wrote.
//!
//! The same thing again within a minute is one event with a count; who reports it adds it up ([`Tally`]).

mod sightings;

pub use sightings::{Sighting, Sightings, Told};

use std::collections::BTreeMap;

use super::{health::Severity, time::Wall};

/// Kinds of events that one minute keeps apart. What is beyond them is counted.
const KINDS_MAX: usize = 256;
/// The longest message of an event.
const MESSAGE_BYTES_MAX: usize = 1024;
/// The longest subject: a kind, a namespace of 63 bytes and a name of 253 of them.
const SUBJECT_BYTES_MAX: usize = 512;
/// The longest reason. Kubernetes allows 128.
const REASON_BYTES_MAX: usize = 128;

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
    events: BTreeMap<Happening, Times>,
    dropped: u64,
}

/// When and how often.
#[derive(Clone, Copy, Debug)]
struct Times {
    first: Wall,
    last: Wall,
    count: u32,
}

impl Tally {
    /// Counts something that happened `count` times, the last time at `at`. Texts that are too long are cut.
    pub fn add(&mut self, mut what: Happening, at: Wall, count: u32) {
        cut(&mut what.message, MESSAGE_BYTES_MAX);
        cut(&mut what.subject, SUBJECT_BYTES_MAX);
        cut(&mut what.reason, REASON_BYTES_MAX);
        if let Some(times) = self.events.get_mut(&what) {
            times.first = times.first.min(at);
            times.last = times.last.max(at);
            times.count = times.count.saturating_add(count);
        } else if self.events.len() >= KINDS_MAX {
            self.dropped = self.dropped.saturating_add(u64::from(count));
        } else {
            let times = Times {
                first: at,
                last: at,
                count,
            };
            self.events.insert(what, times);
        }
    }

    /// Takes all events out, the oldest first.
    pub fn take(&mut self) -> Vec<Event> {
        let events = std::mem::take(&mut self.events).into_iter();
        let mut events: Vec<Event> = events
            .map(|(what, times)| Event {
                what,
                first: times.first,
                last: times.last,
                count: times.count,
            })
            .collect();
        events.sort_by_key(|event| event.first);
        events
    }

    /// How many were not kept since the start, because too many different things happened at once.
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

//! Deduplication of Event objects: Kubernetes counts repetitions in one object, and lists all
//! objects of the last hour on every new watch.

use std::collections::BTreeMap;

use crate::core::{hash::id_hash, time::Wall};

/// Objects that are remembered, in each of two halves: 2 × 2,048 of 12 bytes take some 100 KB. Of
/// what is forgotten a change counts once.
const HALF_MAX: usize = 2048;

/// An Event object as it is now.
#[derive(Clone, Copy, Debug)]
pub struct Sighting<'a> {
    /// Unique for ever.
    pub id: &'a str,
    /// Occurrences since the object exists.
    pub count: u32,
    /// Time when it happened first.
    pub first: Wall,
    /// Time when it happened last.
    pub last: Wall,
}

/// Source of an object: list or watch.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Arrival {
    /// It is in the list of those that there are.
    Listed,
    /// It has just been made, or changed.
    Live,
}

/// The objects that were seen, with their counts.
#[derive(Debug)]
pub struct Deduplication {
    young: BTreeMap<u64, u32>,
    old: BTreeMap<u64, u32>,
    /// Time before which unknown occurrences were counted already.
    since: Wall,
    newest: Wall,
}

impl Deduplication {
    /// Knows nothing, and takes what happened before `since` as counted.
    pub const fn new(since: Wall) -> Self {
        Self {
            young: BTreeMap::new(),
            old: BTreeMap::new(),
            since,
            newest: since,
        }
    }

    /// Returns the new occurrences since the object was last seen. `now` is the wall clock: an
    /// object from the future counts as of now.
    pub fn occurrences(&mut self, seen: Sighting<'_>, origin: Arrival, now: Wall) -> u32 {
        self.newest = self.newest.max(seen.last.min(now));
        let id = id_hash(seen.id);
        let before = self.young.remove(&id).or_else(|| self.old.remove(&id));
        self.remember(id, seen.count);
        let occurrences = match before {
            Some(before) => seen.count.saturating_sub(before),
            None if seen.first >= self.since => seen.count,
            // A part of its count is from before; how much is not known.
            None if origin == Arrival::Live || seen.last >= self.since => 1,
            None => 0,
        };
        if origin == Arrival::Live {
            self.up_to_date();
        }
        occurrences
    }

    /// All that there is was told: what a later list has of before this moment, and is not known
    /// any more, was counted.
    pub fn up_to_date(&mut self) {
        self.since = self.newest;
    }

    /// The object is gone.
    pub fn forget(&mut self, id: &str) {
        let id = id_hash(id);
        self.young.remove(&id);
        self.old.remove(&id);
    }

    fn remember(&mut self, id: u64, count: u32) {
        if self.young.len() >= HALF_MAX {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(id, count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Wall {
        Wall::from_millis(second * 1000)
    }

    fn seen(id: &str, count: u32, first: i64, last: i64) -> Sighting<'_> {
        Sighting {
            id,
            count,
            first: at(first),
            last: at(last),
        }
    }

    const NOW: i64 = 1000;

    fn listed(deduplication: &mut Deduplication, seen: Sighting<'_>) -> u32 {
        deduplication.occurrences(seen, Arrival::Listed, at(NOW))
    }

    fn live(deduplication: &mut Deduplication, seen: Sighting<'_>) -> u32 {
        deduplication.occurrences(seen, Arrival::Live, at(NOW))
    }

    #[test]
    fn only_the_difference_of_a_growing_count_is_new() {
        let mut deduplication = Deduplication::new(at(100));
        assert_eq!(live(&mut deduplication, seen("a", 1, 110, 110)), 1);
        assert_eq!(live(&mut deduplication, seen("a", 4, 110, 120)), 3);
        assert_eq!(live(&mut deduplication, seen("a", 4, 110, 120)), 0);
        // It was counted down by hand: nothing happened, and the next one counts again.
        assert_eq!(live(&mut deduplication, seen("a", 1, 110, 120)), 0);
        assert_eq!(live(&mut deduplication, seen("a", 2, 110, 130)), 1);
    }

    #[test]
    fn what_happened_before_the_start_is_not_counted_again() {
        let mut deduplication = Deduplication::new(at(100));
        assert_eq!(listed(&mut deduplication, seen("old", 9, 10, 99)), 0);
        assert_eq!(listed(&mut deduplication, seen("goes-on", 9, 10, 100)), 1);
        assert_eq!(listed(&mut deduplication, seen("new", 3, 100, 105)), 3);
        deduplication.up_to_date();
        assert_eq!(live(&mut deduplication, seen("old", 11, 10, 130)), 2);
    }

    #[test]
    fn after_a_gap_what_is_known_counts_by_difference_and_what_is_not_by_time() {
        let mut deduplication = Deduplication::new(at(100));
        listed(&mut deduplication, seen("a", 1, 110, 110));
        deduplication.up_to_date();
        live(&mut deduplication, seen("b", 5, 150, 200));
        assert_eq!(listed(&mut deduplication, seen("a", 3, 110, 220)), 2);
        assert_eq!(listed(&mut deduplication, seen("b", 5, 150, 200)), 0);
        assert_eq!(
            listed(&mut deduplication, seen("forgotten", 5, 120, 190)),
            0
        );
        assert_eq!(
            listed(&mut deduplication, seen("in-the-gap", 5, 205, 210)),
            5
        );
    }

    #[test]
    fn an_object_that_says_it_is_of_the_future_hides_nothing() {
        let mut deduplication = Deduplication::new(at(100));
        assert_eq!(live(&mut deduplication, seen("liar", 1, 99_999, 99_999)), 1);
        assert_eq!(listed(&mut deduplication, seen("a", 2, NOW, NOW + 1)), 2);
    }

    #[test]
    fn memory_is_bounded_and_what_is_forgotten_counts_once() {
        let mut deduplication = Deduplication::new(at(100));
        for index in 0..5 * HALF_MAX {
            listed(&mut deduplication, seen(&index.to_string(), 7, 50, 60));
        }
        assert!(deduplication.young.len() + deduplication.old.len() <= 2 * HALF_MAX);
        assert_eq!(live(&mut deduplication, seen("0", 8, 50, 300)), 1);
        deduplication.forget("0");
        assert_eq!(live(&mut deduplication, seen("0", 9, 50, 300)), 1);
    }
}

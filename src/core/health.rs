//! Conditions: what is wrong now, as one list that everything reports into and everything shows.
//!
//! A condition is a level, not an event: reporting the same sentence again changes nothing, and
//! what is no longer true is cleared.

use std::time::Duration;

use litemap::LiteMap;

use crate::core::{
    order::OrderExt as _,
    time::{Mono, Wall},
};

/// Severity of a condition.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Severity {
    /// Worth knowing; nothing is broken.
    Note,
    /// Something is degraded, or will break.
    Warning,
    /// A promise is broken; a person must act, or the agent is waiting for something it cannot do
    /// without.
    Critical,
}

impl Severity {
    /// The word in the API, the log and the tests.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }

    /// The severity of that word.
    pub fn of(word: &str) -> Option<Self> {
        [Self::Note, Self::Warning, Self::Critical]
            .into_iter()
            .find(|severity| severity.as_str() == word)
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Condition {
    /// Stable id, `part.name`: `link.refused`, `store.full`.
    pub id: &'static str,
    pub severity: Severity,
    /// Time when it began, by the wall clock of that moment.
    pub since: Wall,
    /// Problem and reason, in one sentence without a full stop.
    pub sentence: String,
    /// Action for a person; `None` if none is needed.
    pub fix: Option<String>,
}

/// Effect of a report on the list.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Change {
    /// New condition.
    Began,
    /// Its sentence, severity or fix changed, which is worth a line in the log.
    Changed,
    /// Its sentence or fix changed, soon after its last line in the log: a count that goes up and
    /// down.
    Varied,
    /// Nothing changed.
    Same,
}

/// Time after a line in the log until a changed sentence of the same severity gets another one.
const LOG_EVERY: Duration = Duration::from_secs(600);

/// The list. At most one condition an id.
#[derive(Debug, Default)]
pub struct Conditions {
    list: LiteMap<&'static str, Held>,
}

/// A condition that holds.
#[derive(Debug)]
struct Held {
    condition: Condition,
    /// Time of its last line in the log.
    logged: Mono,
}

impl Conditions {
    /// Says that a condition holds. A condition that already holds keeps its `since`.
    pub fn report(&mut self, mut condition: Condition, now: Mono) -> Change {
        let (change, logged) = match self.list.get(condition.id) {
            None => (Change::Began, now),
            Some(held) => {
                condition.since = held.condition.since;
                if held.condition == condition {
                    return Change::Same;
                }
                let is_recent = now < held.logged.after(LOG_EVERY);
                if is_recent && held.condition.severity == condition.severity {
                    (Change::Varied, held.logged)
                } else {
                    (Change::Changed, now)
                }
            }
        };
        self.list.insert(condition.id, Held { condition, logged });
        change
    }

    /// Says that a condition no longer holds; returns it where it did.
    pub fn clear(&mut self, id: &str) -> Option<Condition> {
        let ended = self.list.remove(id);
        ended.map(|held| held.condition)
    }

    /// The condition of that id, where it holds.
    pub fn get(&self, id: &str) -> Option<&Condition> {
        self.list.get(id).map(|held| &held.condition)
    }

    /// All that hold, the worst first, then by id.
    pub fn worst_first(&self) -> Vec<&Condition> {
        let mut all: Vec<_> = self.list.values().map(|held| &held.condition).collect();
        all.order_by_key(|condition| std::cmp::Reverse(condition.severity));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(severity: Severity, since: i64, sentence: &str) -> Condition {
        Condition {
            id: "link.down",
            severity,
            since: Wall::from_millis(since),
            sentence: sentence.to_owned(),
            fix: None,
        }
    }

    const START: Mono = Mono::since_boot(Duration::ZERO);

    #[test]
    fn a_condition_keeps_the_time_it_began() {
        let mut list = Conditions::default();
        assert_eq!(
            list.report(condition(Severity::Warning, 1, "no answer"), START),
            Change::Began
        );
        assert_eq!(
            list.report(
                condition(Severity::Critical, 2, "no answer for an hour"),
                START
            ),
            Change::Changed
        );
        assert_eq!(
            list.get("link.down").map(|c| c.since),
            Some(Wall::from_millis(1))
        );
    }

    #[test]
    fn the_same_report_again_changes_nothing() {
        let mut list = Conditions::default();
        list.report(condition(Severity::Warning, 1, "no answer"), START);
        assert_eq!(
            list.report(condition(Severity::Warning, 9, "no answer"), START),
            Change::Same
        );
    }

    #[test]
    fn a_count_that_goes_up_and_down_is_logged_every_ten_minutes_and_a_severity_at_once() {
        let mut list = Conditions::default();
        let mut report = |severity, sentence: &str, after_s| {
            let now = START.after(Duration::from_secs(after_s));
            list.report(condition(severity, 1, sentence), now)
        };
        assert_eq!(report(Severity::Warning, "1 Pod", 0), Change::Began);
        assert_eq!(report(Severity::Warning, "2 Pods", 599), Change::Varied);
        assert_eq!(report(Severity::Warning, "3 Pods", 600), Change::Changed);
        assert_eq!(report(Severity::Warning, "1 Pod", 601), Change::Varied);
        assert_eq!(report(Severity::Critical, "1 Pod", 602), Change::Changed);
        assert_eq!(report(Severity::Critical, "1 Pod", 9999), Change::Same);
    }

    #[test]
    fn what_is_cleared_begins_anew() {
        let mut list = Conditions::default();
        list.report(condition(Severity::Warning, 1, "no answer"), START);
        assert!(list.clear("link.down").is_some());
        assert!(list.clear("link.down").is_none());
        list.report(condition(Severity::Warning, 5, "no answer"), START);
        assert_eq!(
            list.get("link.down").map(|c| c.since),
            Some(Wall::from_millis(5))
        );
    }

    #[test]
    fn the_worst_is_first() {
        let mut list = Conditions::default();
        list.report(condition(Severity::Note, 1, "a"), START);
        list.report(
            Condition {
                id: "zoo.fire",
                ..condition(Severity::Critical, 1, "b")
            },
            START,
        );
        let ids: Vec<_> = list.worst_first().iter().map(|c| c.id).collect();
        assert_eq!(ids, ["zoo.fire", "link.down"]);
    }
}

//! Records Events of the cluster: repetitions within a minute become one event with a count.
//!
//! An agent that stands by watches, so that it knows old events when it takes over, and records
//! nothing.

use std::{cell::RefCell, fmt, rc::Rc};

use crate::{
    core::{
        event::{self, Arrival, Deduplication, Tally},
        health::Severity,
        order::OrderExt as _,
        time::Wall,
    },
    kube::{
        Client,
        watch::{Event, Watch},
    },
    tasks::state::SharedState,
    wire::kube::{Object as _, event::Event as Seen},
};

/// The condition of events that may not be read.
const HIDDEN: &str = "cluster.events-hidden";
/// The condition of a minute in which more happened than is kept.
const FLOOD: &str = "telemetry.events-dropped";

pub struct Events {
    shared_state: Rc<SharedState>,
    counted: RefCell<Counted>,
}

#[derive(Default)]
struct Counted {
    tally: Tally,
    /// Number of dropped events that were reported.
    reported: u64,
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Events")
    }
}

impl Events {
    /// Nothing has happened yet. What the shared state says is among it.
    pub fn new(shared_state: Rc<SharedState>) -> Self {
        Self {
            shared_state,
            counted: RefCell::default(),
        }
    }

    /// Watches the cluster for ever. `fix` is what gives the agent the right to.
    pub async fn run(&self, client: &Client, fix: &str) {
        let mut deduplication = None;
        let mut origin = Arrival::Listed;
        let watch = Watch::whole("/api/v1/events");
        let take = |event: Event<Seen>| match event {
            Event::Restarted => {
                origin = Arrival::Listed;
                deduplication.get_or_insert_with(|| Deduplication::new(self.started()));
            }
            Event::Added(seen) | Event::Modified(seen) => {
                if let Some(deduplication) = &mut deduplication {
                    self.count(deduplication, seen, origin);
                }
            }
            Event::Deleted(seen) => {
                if let Some(deduplication) = &mut deduplication {
                    deduplication.forget(&seen.metadata().uid);
                }
            }
            Event::Synced => {
                origin = Arrival::Live;
                self.shared_state.clear(HIDDEN);
                if let Some(deduplication) = &mut deduplication {
                    deduplication.up_to_date();
                }
            }
            Event::Failed(error) if error.is_forbidden() => {
                let sentence =
                    "the agent may not read the events of the cluster, so none are stored";
                let fix = Some(fix.to_owned());
                self.shared_state
                    .report(HIDDEN, Severity::Note, sentence, fix);
            }
            // That the API does not answer is said by those who watch nodes and Pods.
            Event::Failed(error) => log::debug!("events: {error}"),
        };
        watch.run(client, take).await;
    }

    /// Events since the last call, of the cluster and of this agent: each with its totals of this
    /// minute.
    pub fn take_changed(&self) -> Vec<event::Event> {
        self.gathered(Tally::take_changed)
    }

    /// Takes back the events of [`Events::take_changed`] that could not be stored.
    pub fn mark_unpublished(&self) {
        self.gathered(|tally| {
            tally.mark_unpublished();
            Vec::new()
        });
    }

    fn gathered(&self, how: fn(&mut Tally) -> Vec<event::Event>) -> Vec<event::Event> {
        let mut events = how(&mut self.counted.borrow_mut().tally);
        if self.shared_state.stands_by() {
            events.clear();
        }
        events.extend(self.shared_state.take_events(how));
        events.order_by_key(|event| event.first);
        events
    }

    /// Ends a minute: returns what is new since [`Events::take_changed`]. Call it once a minute.
    pub fn take(&self) -> Vec<event::Event> {
        let events = self.gathered(Tally::take);
        let is_left_to_another = self.shared_state.stands_by();
        let mut counted = self.counted.borrow_mut();
        let dropped = counted.tally.dropped() + self.shared_state.dropped_events();
        let dropped_since = dropped.saturating_sub(counted.reported);
        counted.reported = dropped;
        if dropped_since == 0 || is_left_to_another {
            self.shared_state.clear(FLOOD);
        } else {
            let sentence = format!(
                "{dropped_since} events of the last minute were dropped: too many different events at once"
            );
            let fix = "kubectl get events -A --sort-by=.lastTimestamp";
            self.shared_state
                .report(FLOOD, Severity::Warning, sentence, Some(fix.to_owned()));
        }
        events
    }

    fn count(&self, deduplication: &mut Deduplication, seen: Seen, origin: Arrival) {
        let now = self.shared_state.now().wall;
        let sighting = seen.sighting(now);
        let last = sighting.last;
        let occurrences = deduplication.occurrences(sighting, origin, now);
        if occurrences > 0 {
            let tally = &mut self.counted.borrow_mut().tally;
            tally.add(seen.happening(), last, occurrences);
        }
    }

    /// Returns when this agent started, by what the wall clock says now: it may have been set
    /// since. Kubernetes writes whole seconds.
    fn started(&self) -> Wall {
        let now = self.shared_state.now();
        let ago = now.mono.since(self.shared_state.started().mono).as_millis();
        let ago = i64::try_from(ago).unwrap_or(i64::MAX);
        let started = now.wall.millis().saturating_sub(ago);
        Wall::from_millis(started.saturating_sub(started.rem_euclid(1000)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::time::{Mono, Now};
    use std::time::Duration;

    fn ten_seconds_after_boot() -> Now {
        Now {
            mono: Mono::since_boot(Duration::from_secs(10)),
            wall: Wall::from_millis(100_900),
        }
    }

    fn events() -> (Rc<SharedState>, Events) {
        let shared_state = Rc::new(SharedState::new(ten_seconds_after_boot));
        (Rc::clone(&shared_state), Events::new(shared_state))
    }

    fn seen(reason: &str) -> Seen {
        let text = format!(
            r#"{{"metadata":{{"uid":"{reason}"}},"reason":"{reason}","type":"Warning","firstTimestamp":"1970-01-01T00:01:40Z"}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn what_happens_in_the_second_of_the_start_counts() {
        let (_board, events) = events();
        let mut deduplication = Deduplication::new(events.started());
        events.count(&mut deduplication, seen("BackOff"), Arrival::Listed);
        let taken = events.take();
        assert_eq!((taken.len(), taken[0].count), (1, 1));
        assert!(events.take().is_empty());
    }

    #[test]
    fn who_stands_by_keeps_what_happens_to_itself_only() {
        let (shared_state, events) = events();
        let mut deduplication = Deduplication::new(events.started());
        shared_state.report("lease.standby", Severity::Note, "b holds the link", None);
        events.count(&mut deduplication, seen("BackOff"), Arrival::Live);
        let taken = events.take();
        assert_eq!(taken.len(), 1);
        assert_eq!(taken[0].what.reason, "lease.standby");
    }

    #[test]
    fn a_flood_is_a_condition_for_as_long_as_it_lasts() {
        let (shared_state, events) = events();
        let holds = || shared_state.with_conditions(|list| list.get(FLOOD).is_some());
        let mut deduplication = Deduplication::new(events.started());
        for index in 0..300 {
            events.count(&mut deduplication, seen(&index.to_string()), Arrival::Live);
        }
        assert_eq!(events.take().len(), 256);
        assert!(holds());
        events.take();
        assert!(!holds());
    }
}

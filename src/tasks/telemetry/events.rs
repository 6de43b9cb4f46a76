//! Introduces the Events of the cluster to whoever keeps them: the same thing again within a minute is one of them, with a count.
//!
//! An agent that leaves the cluster to another one watches, to know what is old should it take over, and counts nothing.

use std::{cell::RefCell, fmt, rc::Rc};

use crate::{
    core::{
        event::{self, Sightings, Tally, Told},
        health::Severity,
        time::Wall,
    },
    kube::{
        Client,
        watch::{Event, Watch},
    },
    tasks::state::Board,
    wire::kube::{Object as _, event::Event as Seen},
};

/// The condition of events that may not be read.
const HIDDEN: &str = "cluster.events-hidden";
/// The condition of a minute in which more happened than is kept.
const FLOOD: &str = "telemetry.events-dropped";

/// Events.
pub struct Events {
    board: Rc<Board>,
    counted: RefCell<Counted>,
}

#[derive(Default)]
struct Counted {
    tally: Tally,
    /// Number of dropped events that were reported.
    told: u64,
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Events")
    }
}

impl Events {
    /// Nothing has happened yet. What the board says is among it.
    pub fn new(board: Rc<Board>) -> Self {
        Self {
            board,
            counted: RefCell::default(),
        }
    }

    /// Watches the cluster for ever. `fix` is what gives the agent the right to.
    pub async fn run(&self, client: &Client, fix: &str) {
        let mut sightings = None;
        let mut told = Told::Listed;
        let watch = Watch::whole("/api/v1/events");
        let take = |event: Event<Seen>| match event {
            Event::Restarted => {
                told = Told::Listed;
                sightings.get_or_insert_with(|| Sightings::new(self.started()));
            }
            Event::Added(seen) | Event::Modified(seen) => {
                if let Some(sightings) = &mut sightings {
                    self.count(sightings, seen, told);
                }
            }
            Event::Deleted(seen) => {
                if let Some(sightings) = &mut sightings {
                    sightings.forget(&seen.metadata().uid);
                }
            }
            Event::Synced => {
                told = Told::Live;
                self.board.clear(HIDDEN);
                if let Some(sightings) = &mut sightings {
                    sightings.up_to_date();
                }
            }
            Event::Failed(error) if error.is_forbidden() => {
                let sentence =
                    "the agent may not read the events of the cluster, so none are stored";
                let fix = Some(fix.to_owned());
                self.board.report(HIDDEN, Severity::Note, sentence, fix);
            }
            // That the API does not answer is said by those who watch nodes and Pods.
            Event::Failed(error) => log::debug!("events: {error}"),
        };
        watch.run(client, take).await;
    }

    /// Events since the last call, of the cluster and of this agent: each with its totals of this
    /// minute.
    pub fn news(&self) -> Vec<event::Event> {
        self.gathered(Tally::news)
    }

    /// Takes back the events of [`Events::news`] that could not be stored.
    pub fn again(&self) {
        self.gathered(|tally| {
            tally.again();
            Vec::new()
        });
    }

    fn gathered(&self, how: fn(&mut Tally) -> Vec<event::Event>) -> Vec<event::Event> {
        let mut events = how(&mut self.counted.borrow_mut().tally);
        if self.board.stands_by() {
            events.clear();
        }
        events.extend(self.board.take_events(how));
        events.sort_by_key(|event| event.first);
        events
    }

    /// Ends a minute: returns what is new since [`Events::news`]. Call it once a minute.
    pub fn take(&self) -> Vec<event::Event> {
        let events = self.gathered(Tally::take);
        let is_left_to_another = self.board.stands_by();
        let mut counted = self.counted.borrow_mut();
        let dropped = counted.tally.dropped() + self.board.dropped_events();
        let news = dropped.saturating_sub(counted.told);
        counted.told = dropped;
        if news == 0 || is_left_to_another {
            self.board.clear(FLOOD);
        } else {
            let sentence = format!(
                "{news} events of the last minute were dropped: too many different events at once"
            );
            let fix = "kubectl get events -A --sort-by=.lastTimestamp";
            self.board
                .report(FLOOD, Severity::Warning, sentence, Some(fix.to_owned()));
        }
        events
    }

    fn count(&self, sightings: &mut Sightings, seen: Seen, told: Told) {
        let now = self.board.now().wall;
        let sighting = seen.sighting(now);
        let last = sighting.last;
        let news = sightings.news(sighting, told, now);
        if news > 0 {
            let tally = &mut self.counted.borrow_mut().tally;
            tally.add(seen.happening(), last, news);
        }
    }

    /// Returns when this agent started, by what the wall clock says now: it may have been set
    /// since. Kubernetes writes whole seconds.
    fn started(&self) -> Wall {
        let now = self.board.now();
        let ago = now.mono.since(self.board.started().mono).as_millis();
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

    fn events() -> (Rc<Board>, Events) {
        let board = Rc::new(Board::new(ten_seconds_after_boot));
        (Rc::clone(&board), Events::new(board))
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
        let mut sightings = Sightings::new(events.started());
        events.count(&mut sightings, seen("BackOff"), Told::Listed);
        let taken = events.take();
        assert_eq!((taken.len(), taken[0].count), (1, 1));
        assert!(events.take().is_empty());
    }

    #[test]
    fn who_stands_by_keeps_what_happens_to_itself_only() {
        let (board, events) = events();
        let mut sightings = Sightings::new(events.started());
        board.report("lease.standby", Severity::Note, "b holds the link", None);
        events.count(&mut sightings, seen("BackOff"), Told::Live);
        let taken = events.take();
        assert_eq!(taken.len(), 1);
        assert_eq!(taken[0].what.reason, "lease.standby");
    }

    #[test]
    fn a_flood_is_a_condition_for_as_long_as_it_lasts() {
        let (board, events) = events();
        let holds = || board.with_conditions(|list| list.get(FLOOD).is_some());
        let mut sightings = Sightings::new(events.started());
        for index in 0..300 {
            events.count(&mut sightings, seen(&index.to_string()), Told::Live);
        }
        assert_eq!(events.take().len(), 256);
        assert!(holds());
        events.take();
        assert!(!holds());
    }
}

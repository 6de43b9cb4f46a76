//! Namespace that is watched while a change is judged: lists once, then only what changes. A look
//! costs the API server nothing.

use std::{cell::RefCell, collections::BTreeSet, rc::Rc, time::Duration};

use litemap::LiteMap;
use serde_json::Value;
use smol::{Task, Timer};

use super::{Apps, observe::make_room, verdict::refused};
use crate::{
    core::{
        apps::{Kind, Owner, read_for},
        backoff::Backoff,
        rollout::{ClusterView, JobEnd, Key, LAST_LINES, Object, Observation, Scope, job_end},
    },
    error::{Error, Retry},
    host::clock,
    kube::watch::Event,
};

/// Pauses before a watch is begun again.
const RETRY_FIRST: Duration = Duration::from_millis(500);
const RETRY_LONGEST: Duration = Duration::from_secs(10);
/// Time between two looks at the rights of the account: the API server lets an open watch go on for
/// minutes after they were taken away.
const RIGHTS_EVERY: Duration = Duration::from_secs(5);

/// A namespace with everything that verdicts on some objects read. Dropping it ends the watches.
pub(super) struct Watched {
    state: Rc<RefCell<State>>,
    /// Objects that are judged.
    pub(super) scope: Scope,
    _task: Task<()>,
}

#[derive(Default)]
struct State {
    seen: Observation,
    kinds: LiteMap<String, Part>,
}

/// Watch of one kind.
#[derive(Default)]
struct Part {
    is_complete: bool,
    /// Objects of a list while it is read.
    listed: Option<BTreeSet<Key>>,
    count: usize,
    failure: Option<Error>,
}

impl Watched {
    /// Begins to watch what verdicts on objects of these kinds read.
    pub(super) fn new(
        apps: &Rc<Apps>,
        (namespace, owner): (&str, Owner),
        (kinds, scope): (&[Kind], Scope),
    ) -> Self {
        let state = Rc::<RefCell<State>>::default();
        let kinds = read_for(kinds);
        for kind in &kinds {
            state.borrow_mut().part(&kind.name);
        }
        let watches = keep(
            Rc::clone(apps),
            (kinds, namespace.to_owned(), owner),
            Rc::clone(&state),
        );
        Self {
            state,
            scope,
            _task: apps.executor.spawn(watches),
        }
    }

    /// The refusal of a look that no waiting changes: the access policy does not let it pass.
    pub(super) fn refusal(&self) -> Option<Error> {
        let state = self.state.borrow();
        let mut failures = state
            .kinds
            .values()
            .filter_map(|part| part.failure.as_ref());
        failures.find(|it| it.retry == Retry::Never).cloned()
    }

    /// Adds the last lines of a container to what is seen.
    pub(super) fn take_lines(&self, lines: Object) {
        self.state.borrow_mut().seen.add(lines);
    }

    /// Forgets last lines, except these.
    pub(super) fn keep_lines(&self, keys: &BTreeSet<Key>) {
        self.state.borrow_mut().seen.keep(LAST_LINES, keys);
    }

    /// Gives what is seen now to `look`; `None` until the first lists are complete.
    pub(super) fn look<T>(&self, look: impl FnOnce(ClusterView<'_>) -> T) -> Option<T> {
        let (mut look, mut found) = (Some(look), None);
        self.show(&mut |view| found = look.take().map(|look| look(view)));
        found
    }

    /// The same, compiled once for all looks.
    fn show(&self, look: &mut dyn FnMut(ClusterView<'_>)) {
        let state = self.state.borrow();
        let failures = || {
            let kinds = state.kinds.values();
            kinds.filter_map(|part| part.failure.as_ref())
        };
        // A right that is missing says more than an answer that is.
        let failure = failures()
            .find(|failure| failure.retry == Retry::Later)
            .or_else(|| failures().next());
        match failure.map(refused) {
            Some(Some(found)) => look(ClusterView::Refused(&found)),
            Some(None) => look(ClusterView::Blind),
            None if state.kinds.values().all(|part| part.is_complete) => {
                look(ClusterView::Seen(&state.seen));
            }
            None => {}
        }
    }
}

impl State {
    fn part(&mut self, kind: &str) -> &mut Part {
        self.kinds.entry(kind.to_owned()).or_default()
    }

    fn take(&mut self, kind: &str, event: Event<Value>) {
        let Self { seen, kinds } = self;
        let part = kinds.entry(kind.to_owned()).or_default();
        match event {
            Event::Restarted => part.listed = Some(BTreeSet::new()),
            Event::Added(whole) | Event::Modified(whole) => {
                let object = Object::reduced(kind, &whole);
                let key = object.key();
                if seen.get(&key).is_none() {
                    let Some(room) = make_room(seen, kind, part.count) else {
                        return;
                    };
                    part.count = room.saturating_add(1);
                }
                part.listed.as_mut().map(|listed| listed.insert(key));
                seen.add(object);
            }
            Event::Deleted(whole) => {
                let object = Object::reduced(kind, &whole);
                let key = object.key();
                let is_known = seen.get(&key).is_some();
                // Its TTL may have it deleted as soon as it has ended, between two looks.
                if is_known && kind == "Job" && job_end(&object) != JobEnd::Open {
                    seen.add(object);
                    return;
                }
                part.count = part.count.saturating_sub(usize::from(is_known));
                seen.remove(&key);
            }
            Event::Synced => {
                let listed = part.listed.take().unwrap_or_default();
                seen.keep(kind, &listed);
                // Of those that were listed some may have made room for others.
                part.count = seen.of_kind(kind).count();
                part.is_complete = true;
                part.failure = None;
            }
            Event::Failed(_) => {}
        }
    }

    fn failed(&mut self, kind: &str, error: Error) {
        self.part(kind).failure = Some(error);
    }
}

/// Watches under the rights of now: when they change, every watch is begun again, and refused where
/// they are gone.
#[expect(clippy::infinite_loop, reason = "it ends when its task is dropped")]
async fn keep(
    apps: Rc<Apps>,
    (kinds, namespace, owner): (Vec<Kind>, String, Owner),
    state: Rc<RefCell<State>>,
) {
    let executor = Rc::clone(&apps.executor);
    loop {
        let known = rights(&apps, (&namespace, owner)).await.flatten();
        let begin = |kind: &Kind| {
            let (kind, namespace) = (kind.clone(), namespace.clone());
            let (apps, state) = (Rc::clone(&apps), Rc::clone(&state));
            let watch = async move { watch(&apps, (&kind, &namespace, owner), &state).await };
            executor.spawn(watch)
        };
        let _watches: Vec<_> = kinds.iter().map(begin).collect();
        loop {
            clock::tick(RIGHTS_EVERY).await;
            if rights(&apps, (&namespace, owner))
                .await
                .is_some_and(|now| now != known)
            {
                break;
            }
        }
    }
}

/// Rights of the account: `None`, the API server does not say; `Some(None)`, the account itself is
/// gone.
async fn rights(apps: &Apps, (namespace, owner): (&str, Owner)) -> Option<Option<Vec<String>>> {
    match apps.cluster(owner).rights(namespace).await {
        Ok(rights) => Some(Some(rights)),
        Err(error) if error.retry == Retry::Later => Some(None),
        Err(_silence) => None,
    }
}

#[expect(clippy::infinite_loop, reason = "it ends when its task is dropped")]
async fn watch(
    apps: &Apps,
    (kind, namespace, owner): (&Kind, &str, Owner),
    state: &RefCell<State>,
) {
    let mut version = None;
    let mut backoff = Backoff::new(RETRY_FIRST, RETRY_LONGEST);
    loop {
        let cluster = apps.cluster(owner);
        let take = |event| state.borrow_mut().take(&kind.name, event);
        match cluster.watch((kind, namespace), &mut version, take).await {
            // A server that ends every watch at once is not asked in a loop.
            Ok(0) => {}
            Ok(_lines) => backoff.reset(),
            Err(error) => {
                state.borrow_mut().failed(&kind.name, error);
                // Only a new list tells that the API server answers again.
                version = None;
            }
        }
        Timer::after(backoff.next(fastrand::u16(..))).await;
    }
}

#[cfg(test)]
mod tests {
    use super::{super::verdict::scope, *};
    use crate::tasks::apps::observe::OBJECTS_MAX;
    use serde_json::json;

    fn pod(name: &str) -> Value {
        json!({"metadata": {"name": name}})
    }

    fn names(state: &State) -> Vec<&str> {
        state.seen.all().map(Object::name).collect()
    }

    #[test]
    fn a_list_that_is_read_again_takes_the_place_of_what_was_known_once_it_is_complete() {
        let mut state = State::default();
        let mut take = |events: Vec<Event<Value>>| {
            for event in events {
                state.take("Pod", event);
            }
            names(&state).join(" ")
        };
        let first = [Event::Restarted, Event::Added(pod("a")), Event::Synced];
        assert_eq!(take(first.into()), "a");
        assert_eq!(take(vec![Event::Added(pod("b"))]), "a b");
        // What is missing from a list is gone when the list is complete, not before.
        assert_eq!(
            take(vec![Event::Restarted, Event::Added(pod("c"))]),
            "a b c"
        );
        assert_eq!(take(vec![Event::Synced]), "c");
        assert_eq!(take(vec![Event::Deleted(pod("c"))]), "");
        let many = (0..OBJECTS_MAX + 9).map(|number| Event::Added(pod(&number.to_string())));
        take(many.collect());
        assert_eq!(state.seen.all().count(), OBJECTS_MAX);
    }

    #[test]
    fn a_job_that_goes_once_it_has_ended_is_still_seen_to_have_ended() {
        let job = |name: &str, kind: &str| json!({"metadata": {"name": name}, "status": {"conditions": [{"type": kind, "status": "True"}]}});
        let ends = |state: &State| {
            let all = state.seen.all();
            all.map(|job| (job.name().to_owned(), job_end(job)))
                .collect::<Vec<_>>()
        };
        let failed = |end: JobEnd| ("failed".to_owned(), end);
        let mut state = State::default();
        for event in [
            Event::Restarted,
            Event::Added(pod("done")),
            Event::Added(pod("failed")),
            Event::Synced,
            Event::Deleted(job("done", "Complete")),
            Event::Deleted(job("failed", "Failed")),
            Event::Deleted(job("unknown", "Complete")),
        ] {
            state.take("Job", event);
        }
        // Without the one that failed nothing would say so before the deadline.
        let done = ("done".to_owned(), JobEnd::Done);
        assert_eq!(ends(&state), [done.clone(), failed(JobEnd::Failed)]);
        // One of its name that is made again takes its place.
        state.take("Job", Event::Added(pod("failed")));
        assert_eq!(ends(&state), [done.clone(), failed(JobEnd::Open)]);
        state.take("Job", Event::Deleted(job("failed", "Failed")));
        for event in [Event::Restarted, Event::Added(pod("failed"))] {
            state.take("Job", event);
        }
        assert_eq!(ends(&state), [done, failed(JobEnd::Open)]);
        // One that is deleted while it runs has not ended.
        state.take("Job", Event::Deleted(pod("failed")));
        assert_eq!(names(&state), ["done"]);
        // A list says what is there.
        state.take("Job", Event::Restarted);
        state.take("Job", Event::Synced);
        assert_eq!(names(&state), Vec::<&str>::new());
        assert_eq!(state.part("Job").count, 0);
    }

    #[test]
    fn of_too_many_events_the_newest_are_seen() {
        let mut state = State::default();
        let event = |number: usize| {
            let (hour, rest) = (number / 3600, number % 3600);
            let at = format!("2026-11-26T{hour:02}:{:02}:{:02}Z", rest / 60, rest % 60);
            // Lists come in the order of names, which says nothing.
            let name = format!("e{:04}", number * 7919 % 10_007);
            Event::Added(json!({"metadata": {"name": name}, "lastTimestamp": at}))
        };
        state.take("Event", Event::Restarted);
        let all = OBJECTS_MAX + OBJECTS_MAX / 2;
        (0..all).for_each(|number| state.take("Event", event(number)));
        state.take("Event", Event::Synced);
        let is_seen = |state: &State, number: usize| {
            let Event::Added(whole) = event(number) else {
                return false;
            };
            let key = Object::reduced("Event", &whole).key();
            state.seen.get(&key).is_some()
        };
        let newest = OBJECTS_MAX / 2;
        assert!((all - newest..all).all(|number| is_seen(&state, number)));
        assert!(!is_seen(&state, 0));
        (all..all + OBJECTS_MAX).for_each(|number| state.take("Event", event(number)));
        let last = all + OBJECTS_MAX;
        assert!((last - newest..last).all(|number| is_seen(&state, number)));
        let count = state.seen.all().count();
        assert!(count <= OBJECTS_MAX, "{count}");
        assert_eq!(state.part("Event").count, count);
    }

    #[test]
    fn nothing_is_seen_before_the_lists_are_complete_nor_after_a_failure() {
        let state = Rc::<RefCell<State>>::default();
        let watched = Watched {
            state: Rc::clone(&state),
            scope: scope(&[]),
            _task: smol::LocalExecutor::new().spawn(async {}),
        };
        let look = || {
            watched.look(|view| match view {
                ClusterView::Seen(_) => "seen",
                ClusterView::Refused(_) => "refused",
                ClusterView::Blind => "blind",
            })
        };
        state.borrow_mut().take("Pod", Event::Restarted);
        assert_eq!(look(), None);
        state.borrow_mut().take("Pod", Event::Synced);
        assert_eq!(look(), Some("seen"));
        let silent = Error::new("no answer").retry(Retry::Soon);
        state.borrow_mut().failed("Pod", silent);
        assert_eq!(look(), Some("blind"));
        let refused = Error::new("it may not").retry(Retry::Later);
        state.borrow_mut().failed("Event", refused);
        assert_eq!(look(), Some("refused"));
        for kind in ["Pod", "Event"] {
            state.borrow_mut().take(kind, Event::Synced);
        }
        assert_eq!(look(), Some("seen"));
    }
}

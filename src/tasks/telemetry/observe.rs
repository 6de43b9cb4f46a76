//! Watches nodes and Pods, so that every heartbeat has current numbers without a query.

use std::{cell::RefCell, rc::Rc, time::Duration};

use smol::{
    Timer,
    channel::{Receiver, bounded},
    future::{self, FutureExt as _},
};

use super::{cluster::Known, last_words::FailureSender};
use crate::{
    core::{
        cluster::pods::Trouble,
        health::Severity,
        time::{Mono, Now},
        verdict::{PODS, sentences},
    },
    error::Error as Shown,
    host::clock,
    kube::{
        Client, Error,
        counts::{Nodes, Pods},
        services::is_name,
        watch::{Event, Watch},
    },
    tasks::state::SharedState,
    wire::kube::{Node, Object as _, Pod},
};

/// Help for a failure that says nothing itself.
const FIX: &str =
    "journalctl -u k3s -n 50 (with OpenRC: tail -n 50 /var/log/k3s.log); the agent keeps trying";
/// Nodes that are named in one sentence at most.
const NAMED_MAX: usize = 5;

/// Conditions of watches that fail although the API server answers.
const REFUSED: &str = "cluster.refused";
const UNWATCHED: &str = "cluster.unwatched";
/// Time in which several changes of Pods are one look at them.
const BURST: Duration = Duration::from_millis(300);

/// Watches for ever, keeps in `known` what figures of the cluster are made of, and tells of
/// containers that failed.
pub async fn run(
    client: Client,
    shared_state: Rc<SharedState>,
    known: Rc<Known>,
    failures: FailureSender,
) {
    // One place: a second reason to ask for the version while the first still waits is the same
    // reason.
    let (ask, asked) = bounded(1);
    // Likewise for looks at the Pods.
    let (change, changed) = bounded(1);
    let watches = Watches::new(&shared_state);
    let nodes = async {
        let mut nodes = Nodes::default();
        let watch = Watch::whole("/api/v1/nodes");
        let take = |event: Event<Node>| {
            if event == Event::Synced {
                // Full: it is going to be asked anyway.
                ask.try_send(()).ok();
            }
            know_nodes(&known, &event);
            take_nodes(&mut nodes, &event, &watches);
            change.try_send(()).ok();
        };
        watch.run(&client, take).await;
    };
    let pods = async {
        let mut pods = Pods::default();
        let watch = Watch::whole("/api/v1/pods");
        let take = |event: Event<Pod>| {
            if know_pods(&known, &event, &failures, shared_state.now()) {
                change.try_send(()).ok();
            }
            take_pods(&mut pods, &event, &watches);
        };
        watch.run(&client, take).await;
    };
    let looks = look_at_pods(&known, &shared_state, &changed);
    let all = future::zip(future::zip(nodes, pods), looks);
    future::zip(all, versions(&client, &shared_state, &asked)).await;
}

/// Says which Pods are a problem whenever that may have changed: by what the API says, or because
/// the time to start is over.
#[expect(clippy::infinite_loop, reason = "it ends when its task is dropped")]
async fn look_at_pods(known: &Known, shared_state: &SharedState, changed: &Receiver<()>) {
    loop {
        let due = report_pods(known, shared_state);
        let time = async {
            match due {
                Some(due) => clock::until(due).await,
                None => future::pending().await,
            }
        };
        let change = async {
            changed.recv().await.ok();
            Timer::after(BURST).await;
        };
        time.or(change).await;
    }
}

/// Says which Pods are a problem; returns when another one becomes one.
fn report_pods(known: &Known, shared_state: &SharedState) -> Option<Mono> {
    let (nodes, pods) = (known.nodes.borrow(), known.pods.borrow());
    let is_away = |name: &str| nodes.get(name).is_some_and(|node| !node.is_ready);
    // Until the list is complete, what was said before holds.
    let (expected, unready) = known.phases.borrow().expected()?;
    let look = pods.look(shared_state.now().mono, is_away);
    let broken = if look.is_full {
        unready
    } else {
        look.broken.len()
    };
    shared_state.cluster.borrow_mut().workloads = Some((count(expected), count(broken)));
    let Some(worst) = look.broken.first() else {
        shared_state.clear(PODS);
        return look.due;
    };
    let (namespace, name) = (&worst.namespace, &worst.name);
    let pod = format!("{namespace}/{name}");
    let sentence = sentences::pods_not_ready(broken, expected, &pod, worst.trouble.words());
    // Names are data: what no shell should see is not part of a command.
    let fix = (is_name(namespace) && is_name(name)).then(|| match worst.trouble {
        Trouble::Crash => format!("kubectl -n {namespace} logs {name} --all-containers --previous"),
        Trouble::Image
        | Trouble::Configuration
        | Trouble::Unplaced
        | Trouble::Starting
        | Trouble::Unready => format!("kubectl -n {namespace} describe pod {name}"),
    });
    shared_state.report(PODS, Severity::Warning, sentence, fix);
    look.due
}

/// Asks for the version of the API server whenever it may have become another one.
async fn versions(client: &Client, shared_state: &SharedState, asked: &Receiver<()>) {
    while asked.recv().await.is_ok() {
        match client.version().await {
            Ok(version) => shared_state.cluster.borrow_mut().version = Some(version),
            Err(error) => log::debug!("cluster: no version: {error}"),
        }
    }
}

fn take_nodes(nodes: &mut Nodes, event: &Event<Node>, watches: &Watches<'_>) {
    nodes.update(event);
    let shared_state = watches.shared_state;
    if let Event::Failed(error) = event {
        return watches.failed(WatchKind::Nodes, error);
    }
    let (Some(total), Some(ready)) = (nodes.total(), nodes.ready()) else {
        return;
    };
    let mut view = shared_state.cluster.borrow_mut();
    view.nodes = Some(count(total));
    view.nodes_ready = Some(count(ready));
    drop(view);
    watches.works(WatchKind::Nodes);
    let away: Vec<_> = nodes.away().collect();
    let Some(first) = away.first() else {
        return shared_state.clear("cluster.node-not-ready");
    };
    let named = match away.get(..NAMED_MAX) {
        Some(some) if away.len() > NAMED_MAX => {
            format!("{} and {} more", some.join(", "), away.len() - NAMED_MAX)
        }
        Some(_) | None => away.join(", "),
    };
    let sentence = sentences::nodes_not_ready(&named);
    let fix = format!("kubectl describe node {first}");
    shared_state.report(
        "cluster.node-not-ready",
        Severity::Warning,
        sentence,
        Some(fix),
    );
}

fn know_nodes(known: &Known, event: &Event<Node>) {
    let mut nodes = known.nodes.borrow_mut();
    match event {
        Event::Restarted => nodes.clear(),
        Event::Added(node) | Event::Modified(node) => {
            nodes.insert(node.metadata.name.clone(), node.sampled());
        }
        Event::Deleted(node) => {
            nodes.remove(&node.metadata.name);
        }
        Event::Synced | Event::Failed(_) => {}
    }
}

/// Keeps what an event says. Returns whether other Pods than before may be a problem.
fn know_pods(known: &Known, event: &Event<Pod>, failures: &FailureSender, now: Now) -> bool {
    let (mut phases, mut pods) = (known.phases.borrow_mut(), known.pods.borrow_mut());
    match event {
        Event::Restarted => {
            phases.reset();
            pods.reset();
            false
        }
        Event::Added(pod) | Event::Modified(pod) => {
            let head = pod.metadata();
            let phase = &pod.status.phase;
            let news = phases.tell(&head.uid, &head.namespace, phase, pod.restarts());
            if news > 0 {
                failures.restarted(pod);
            }
            let readiness = pod.readiness(now.wall);
            let is_marked = phases.mark(&head.uid, readiness);
            let place = (&*head.namespace, &*head.name, &*pod.spec.node_name);
            pods.tell(&head.uid, place, readiness, now.mono) || is_marked
        }
        Event::Deleted(pod) => {
            phases.forget(&pod.metadata.uid);
            pods.forget(&pod.metadata.uid);
            true
        }
        Event::Synced => {
            phases.complete();
            true
        }
        Event::Failed(_) => false,
    }
}

fn take_pods<T>(pods: &mut Pods, event: &Event<T>, watches: &Watches<'_>) {
    pods.update(event);
    if let Event::Failed(error) = event {
        return watches.failed(WatchKind::Pods, error);
    }
    if let Some(total) = pods.total() {
        watches.shared_state.cluster.borrow_mut().pods = Some(count(total));
        watches.works(WatchKind::Pods);
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum WatchKind {
    Nodes,
    Pods,
}

/// Watches with their failures. That the API server does not answer at all is found out and told by
/// [`super::liveness`].
struct Watches<'a> {
    shared_state: &'a SharedState,
    failing: [RefCell<Option<Error>>; 2],
}

impl<'a> Watches<'a> {
    fn new(shared_state: &'a SharedState) -> Self {
        Self {
            shared_state,
            failing: Default::default(),
        }
    }

    fn of(&self, kind: WatchKind) -> &RefCell<Option<Error>> {
        let [nodes, pods] = &self.failing;
        match kind {
            WatchKind::Nodes => nodes,
            WatchKind::Pods => pods,
        }
    }

    fn works(&self, kind: WatchKind) {
        if self.of(kind).take().is_some() {
            self.report_failing();
        }
    }

    fn failed(&self, kind: WatchKind, error: &Error) {
        if !error.is_silence() {
            self.of(kind).replace(Some(error.clone()));
            self.report_failing();
        }
    }

    fn report_failing(&self) {
        let worst = self.failing.iter().find_map(|one| one.borrow().clone());
        let shown = worst.as_ref().map(Shown::from);
        self.shared_state.cluster.borrow_mut().why = shown.as_ref().map(Shown::sentence);
        let Some((error, shown)) = worst.zip(shown) else {
            return self
                .shared_state
                .show_all(&[REFUSED, UNWATCHED], Vec::new());
        };
        let why = shown.sentence();
        let is_refused = matches!(
            error,
            Error::Refused {
                status: 401 | 403,
                ..
            }
        );
        let (id, other, sentence) = if is_refused {
            (REFUSED, UNWATCHED, sentences::cluster_refused(&why))
        } else {
            (UNWATCHED, REFUSED, sentences::cluster_unwatched(&why))
        };
        self.shared_state.clear(other);
        let fix = shown.fix.unwrap_or_else(|| FIX.to_owned());
        self.shared_state
            .report(id, Severity::Warning, sentence, Some(fix));
    }
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{core::time::Wall, tasks::telemetry::last_words};

    fn shared_state() -> SharedState {
        SharedState::new(|| Now {
            mono: Mono::since_boot(Duration::from_secs(1000)),
            wall: Wall::default(),
        })
    }

    fn holds(shared_state: &SharedState, id: &str) -> bool {
        shared_state.with_conditions(|list| list.get(id).is_some())
    }

    #[test]
    fn a_watch_that_fails_is_a_condition_until_this_watch_works() {
        let shared_state = shared_state();
        let watches = Watches::new(&shared_state);
        let (mut pods, mut nodes) = (Pods::default(), Nodes::default());
        let failure = Event::Failed(Error::BadRequest("x".to_owned()));
        take_pods::<Pod>(&mut pods, &failure, &watches);
        take_nodes(&mut nodes, &Event::Synced, &watches);
        assert!(holds(&shared_state, UNWATCHED));
        take_pods::<Pod>(&mut pods, &Event::Synced, &watches);
        assert!(!holds(&shared_state, UNWATCHED));
        assert_eq!(shared_state.cluster.borrow().pods, Some(0));
        let refused = Event::Failed(Error::Refused {
            call: "GET /api/v1/pods".to_owned(),
            status: 403,
            reason: "Forbidden".to_owned(),
            message: String::new(),
        });
        take_pods::<Pod>(&mut pods, &refused, &watches);
        assert!(holds(&shared_state, REFUSED) && !holds(&shared_state, UNWATCHED));
    }

    #[test]
    fn a_watch_that_gets_no_answer_leaves_the_word_to_the_pulse() {
        let shared_state = shared_state();
        let watches = Watches::new(&shared_state);
        let failure = Event::Failed(Error::NoAnswer {
            call: "GET /api/v1/pods".to_owned(),
            limit: Duration::from_secs(1),
        });
        take_pods::<Pod>(&mut Pods::default(), &failure, &watches);
        assert!(shared_state.with_conditions(|list| list.worst_first().is_empty()));
    }

    #[test]
    fn broken_pods_are_named_and_what_has_ended_is_not_counted() {
        let shared_state = shared_state();
        let known = Known::default();
        let (failures, _kept) = last_words::channel();
        let pod = |name: &str, status: &str| -> Pod {
            let text = format!(
                r#"{{"metadata":{{"uid":"{name}","name":"{name}","namespace":"demo"}},"status":{status}}}"#
            );
            serde_json::from_str(&text).unwrap()
        };
        let ready = r#"{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}"#;
        let broken = r#"{"phase":"Pending","containerStatuses":[{"name":"a","state":{"waiting":{"reason":"ImagePullBackOff"}}}]}"#;
        let tell = |event| know_pods(&known, &event, &failures, shared_state.now());
        tell(Event::Restarted);
        tell(Event::Added(pod("done", r#"{"phase":"Succeeded"}"#)));
        tell(Event::Added(pod("api", ready)));
        tell(Event::Added(pod("web", broken)));
        assert_eq!(report_pods(&known, &shared_state), None);
        assert!(!holds(&shared_state, PODS), "the list is not complete");
        tell(Event::Synced);
        report_pods(&known, &shared_state);
        let wanted = sentences::pods_not_ready(1, 2, "demo/web", Trouble::Image.words());
        shared_state.with_conditions(|list| {
            let condition = list.get(PODS).unwrap();
            assert_eq!(condition.sentence, wanted);
            assert_eq!(
                condition.fix.as_deref(),
                Some("kubectl -n demo describe pod web")
            );
        });
        assert!(tell(Event::Modified(pod("web", ready))));
        report_pods(&known, &shared_state);
        assert!(!holds(&shared_state, PODS));
        assert_eq!(shared_state.cluster.borrow().workloads, Some((2, 0)));
    }
}

//! Events of a real cluster, as the agent's own account sees it: each thing once, across
//! restarts of the agent.

use std::cell::RefCell;
use std::rc::Rc;

use pipeops_agent::core::event::Event;
use pipeops_agent::core::health::Severity;
use pipeops_agent::host::clock;
use pipeops_agent::tasks::{state::SharedState, telemetry::events::Events};

use super::real::{client_of, run, until};
use super::{Executor, wall};
use crate::accounts::{Accounts, GrantScope};
use crate::cluster::{calm, kubectl, leave};

const NAMESPACE: &str = "happenings";

/// An agent that watches, from its start to its end.
struct Watching {
    events: Rc<Events>,
    shared_state: Rc<SharedState>,
    kept: RefCell<Vec<Event>>,
    _task: smol::Task<()>,
}

impl Watching {
    fn start(executor: &Executor, accounts: &Accounts) -> Self {
        let shared_state = Rc::new(SharedState::new(clock::now));
        let events = Rc::new(Events::new(Rc::clone(&shared_state)));
        let client = client_of(executor, &accounts.kubeconfig("pipeops-agent"));
        let watching = Rc::clone(&events);
        Self {
            events,
            shared_state,
            kept: RefCell::default(),
            _task: executor.spawn(async move { watching.run(&client, "apply it").await }),
        }
    }

    /// How often it happened, as far as it was heard.
    fn count(&self, reason: &str) -> u32 {
        let mut kept = self.kept.borrow_mut();
        kept.extend(self.events.take());
        let of_it = kept.iter().filter(|event| event.what.reason == reason);
        of_it.map(|event| event.count).sum()
    }

    async fn until(&self, reason: &str, count: u32) {
        until(reason, || self.count(reason) == count).await;
    }
}

/// An Event object as a component of Kubernetes writes it.
fn happens(accounts: &Accounts, reason: &str, count: u32) {
    let now = clock::now().wall.rfc3339();
    // Whole seconds, as Go writes them.
    let now = format!("{}Z", now.split('.').next().unwrap());
    let name = reason.to_lowercase();
    let text = format!(
        r#"{{"apiVersion":"v1","kind":"Event","metadata":{{"name":"{name}","namespace":"{NAMESPACE}"}},
        "involvedObject":{{"apiVersion":"v1","kind":"Pod","namespace":"{NAMESPACE}","name":"web-0"}},
        "reason":"{reason}","message":"\"app\"\nfailed","type":"Warning","count":{count},
        "firstTimestamp":"{now}","lastTimestamp":"{now}"}}"#
    );
    accounts.apply(&text);
}

/// Kubernetes writes whole seconds: what happened in the second of a start counts.
async fn until_next_second() {
    let happened = wall().millis() / 1000;
    until("the next second begins", || {
        wall().millis() / 1000 > happened
    })
    .await;
}

#[test]
fn an_event_that_goes_on_is_counted_by_difference_and_never_again_after_a_restart() {
    let Some(_guard) = calm() else { return };
    let accounts = Accounts::new(GrantScope::Managed);
    kubectl(&["create", "namespace", NAMESPACE]);
    happens(&accounts, "Earlier", 7);
    run(|executor| async move {
        until_next_second().await;
        let first = Watching::start(&executor, &accounts);
        happens(&accounts, "Failing", 2);
        first.until("Failing", 2).await;
        happens(&accounts, "Failing", 5);
        first.until("Failing", 5).await;
        assert_eq!(first.count("Earlier"), 0);
        // Other tests leave events as well.
        let subject = "Pod/happenings/web-0";
        let grown = |event: &&Event| event.count == 3 && event.what.subject == subject;
        let what = first
            .kept
            .borrow()
            .iter()
            .find(grown)
            .cloned()
            .unwrap()
            .what;
        assert_eq!(what.severity, Severity::Warning);
        assert_eq!(what.message, "\"app\"\nfailed");
        drop(first);

        until_next_second().await;
        let second = Watching::start(&executor, &accounts);
        happens(&accounts, "Marker", 1);
        second.until("Marker", 1).await;
        assert_eq!(second.count("Failing"), 0);
        let hidden = "cluster.events-hidden";
        assert!(
            second
                .shared_state
                .with_conditions(|list| list.get(hidden).is_none())
        );
    });
    leave(NAMESPACE);
}

#[test]
fn events_that_may_not_be_read_are_a_note_with_the_way_out() {
    let Some(_guard) = calm() else { return };
    let accounts = Accounts::planned(GrantScope::Managed);
    accounts.apply(&accounts.manifest(&[]).replace(
        "  resources: [events]\n  verbs: [list, watch]",
        "  resources: [pods]\n  verbs: [list]",
    ));
    run(|executor| async move {
        let watching = Watching::start(&executor, &accounts);
        let found = || {
            watching.shared_state.with_conditions(|list| {
                let hidden = list.get("cluster.events-hidden")?;
                Some((hidden.severity, hidden.fix.clone()))
            })
        };
        until("the condition", || found().is_some()).await;
        let wanted = (Severity::Note, Some("apply it".to_owned()));
        assert_eq!(found(), Some(wanted));
    });
}

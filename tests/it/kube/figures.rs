//! Usage of a real cluster: its API server, its kubelet, and the agent's own account with and
//! without the right to ask that one.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use pipeops_agent::core::health::Severity;
use pipeops_agent::core::series::Point;
use pipeops_agent::host::clock;
use pipeops_agent::kube::Client;
use pipeops_agent::tasks::{
    state::SharedState,
    telemetry::{
        cluster::{self, Collector, Known},
        last_words, observe,
    },
};
use smol::Task;

use super::Executor;
use super::real::{client_of, run, until};
use crate::accounts::{Accounts, GrantScope};
use crate::cluster::{calm, kubectl, variable};

const UNREAD: &str = "cluster.stats-unread";

/// An agent that samples without pause.
struct Sampling {
    shared_state: Rc<SharedState>,
    newest: Rc<RefCell<Vec<Point>>>,
    _tasks: [Task<()>; 2],
}

impl Sampling {
    fn start(executor: &Executor, client: &Client) -> Self {
        let (shared_state, known) = (
            Rc::new(SharedState::new(clock::now)),
            Rc::new(Known::default()),
        );
        let observed = observe::run(
            client.clone(),
            Rc::clone(&shared_state),
            Rc::clone(&known),
            last_words::channel().0,
        );
        let parts = Collector {
            client: client.clone(),
            known,
            shared_state: Rc::clone(&shared_state),
            is_believed: Box::new(|_| true),
            fix: "apply it".to_owned(),
        };
        let newest = Rc::default();
        let kept = Rc::clone(&newest);
        let sampled = async move {
            let keep = async |tick: pipeops_agent::core::series::Tick| {
                assert!(tick.clock_is_set);
                *RefCell::borrow_mut(&kept) = tick.points;
            };
            cluster::run(&parts, Duration::from_millis(100), keep).await;
        };
        Self {
            shared_state,
            newest,
            _tasks: [executor.spawn(observed), executor.spawn(sampled)],
        }
    }

    fn value(&self, key: &str) -> Option<i64> {
        let points = self.newest.borrow();
        let found = points
            .iter()
            .find(|point| point.series.key.to_string() == key)?;
        Some(found.value)
    }

    fn condition(&self) -> Option<(Severity, Option<String>)> {
        self.shared_state.with_conditions(|list| {
            let found = list.get(UNREAD)?;
            Some((found.severity, found.fix.clone()))
        })
    }
}

#[test]
fn a_kubelet_is_asked_once_the_agent_may_and_until_then_it_says_how() {
    let Some(_guard) = calm() else { return };
    let accounts = Accounts::new(GrantScope::Managed);
    run(|executor| async move {
        let client = client_of(&executor, &accounts.kubeconfig("pipeops-agent"));
        let sampling = Sampling::start(&executor, &client);
        let node = variable("NODE_NAME");
        let ready = format!("cluster_node_ready{{node=\"{node}\"}}");
        let cpu = format!("cluster_node_cpu_cores{{node=\"{node}\"}}");
        let running = "cluster_pods{namespace=\"fixtures\",phase=\"Running\"}";
        // The first round may come before the first list.
        until("a sample of nodes and Pods", || {
            sampling.value(&ready) == Some(1)
                && sampling.value(running).is_some_and(|count| count >= 5)
        })
        .await;
        assert_eq!(sampling.value(&cpu), None);
        assert_eq!(
            sampling.condition(),
            Some((Severity::Note, Some("apply it".to_owned())))
        );

        let allowed = accounts.manifest(&["--node-stats"]);
        accounts.apply(&allowed);
        until("the kubelet is asked", || sampling.value(&cpu).is_some()).await;
        assert_eq!(sampling.condition(), None);
        let memory = format!("cluster_node_memory_working_set_bytes{{node=\"{node}\"}}");
        assert!(sampling.value(&memory).is_some_and(|bytes| bytes > 1 << 20));
        let allocatable = format!("cluster_node_allocatable_memory_bytes{{node=\"{node}\"}}");
        assert!(
            sampling
                .value(&allocatable)
                .is_some_and(|bytes| bytes > 1 << 20)
        );
        let is_of_a_pod = |point: &Point| {
            let key = &point.series.key;
            key.name() == "cluster_pod_memory_working_set_bytes"
                && key.label("namespace") == Some("fixtures")
        };
        assert!(sampling.newest.borrow().iter().any(is_of_a_pod));
        drop(sampling);
        let role = format!("pipeops-agent-node-stats.{}", accounts.namespace());
        kubectl(&["delete", "clusterrole,clusterrolebinding", &role]);
    });
}

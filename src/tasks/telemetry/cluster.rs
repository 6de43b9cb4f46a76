//! Samples the cluster once a minute, from the watches and the kubelets.
//!
//! Kubelets are queried one after the other through the API server, each with a deadline, all of
//! them within one. An agent that stands by queries none.

use std::{cell::RefCell, fmt, rc::Rc, time::Duration};

use litemap::LiteMap;
use smol::future::FutureExt as _;

use super::sample::following;
use crate::{
    core::{
        cluster::{Cluster, NODES_MAX, Node, PODS_MAX, Phases, Round, Unlisted, pods::Pods},
        health::Severity,
        series::Tick,
        time::{Mono, Wall},
        verdict::sentences,
    },
    host::clock,
    kube::{Client, Error},
    tasks::state::SharedState,
    wire::kube::summary,
};

/// Time between two rounds.
pub const EVERY: Duration = Duration::from_secs(60);
/// Time for one kubelet. It answers in some 100 ms.
const KUBELET_WITHIN: Duration = Duration::from_secs(10);
/// Time for all of them together: the next round follows.
const ROUND_WITHIN: Duration = Duration::from_secs(45);
/// Rounds that pass before a refused right is asked for again: each refusal is a line in the audit
/// of the cluster.
const ROUNDS_REFUSED: u32 = 10;
/// The condition of kubelets that say nothing.
const UNREAD: &str = "cluster.stats-unread";
/// The condition of a cluster that is larger than what is kept of it.
const PARTLY: &str = "cluster.sampled-in-part";

/// State of the watches of nodes and Pods.
#[derive(Debug, Default)]
pub struct Known {
    pub nodes: RefCell<LiteMap<String, Node>>,
    /// The Pods.
    pub phases: RefCell<Phases>,
    /// Those that are not ready.
    pub pods: RefCell<Pods>,
}

/// Collector of the cluster's measurements.
pub struct Collector {
    /// The way to the API.
    pub client: Client,
    /// State of the watches.
    pub known: Rc<Known>,
    /// State for its conditions.
    pub shared_state: Rc<SharedState>,
    /// True if a wall clock that shows this can be believed.
    pub is_believed: Box<dyn Fn(Wall) -> bool>,
    /// Fix that grants the right to ask kubelets.
    pub fix: String,
}

impl fmt::Debug for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Collector of the cluster's figures")
    }
}

/// Samples until it is dropped, and gives each sample to `keep`.
#[expect(clippy::infinite_loop, reason = "it ends when its task is dropped")]
pub async fn run(collector: &Collector, every: Duration, mut keep: impl AsyncFnMut(Tick)) {
    let mut cluster = Cluster::default();
    let mut refused = 0_u32;
    let mut chances = collector.client.heard().chances();
    let mut due = collector.shared_state.now().mono;
    loop {
        due = following(due, every, collector.shared_state.now().mono);
        while !collector.wait(due, &mut chances).await {
            // Rights may be other ones now: what was refused is tried, and said at once where it
            // works.
            if refused > 0 && collector.may_ask().await {
                refused = 0;
                collector.shared_state.clear(UNREAD);
            }
        }
        if collector.shared_state.stands_by() {
            cluster = Cluster::default();
            collector
                .shared_state
                .show_all(&[UNREAD, PARTLY], Vec::new());
            continue;
        }
        let nodes = collector.known.nodes.borrow().clone();
        let counts = collector.known.phases.borrow_mut().take();
        // Before the first complete list nothing is known, and nothing is no zero.
        let Some(counts) = counts else {
            continue;
        };
        let mut round = Round::default();
        refused = refused.saturating_sub(1);
        if refused == 0 && !collector.ask(&cluster, &nodes, &mut round).await {
            refused = ROUNDS_REFUSED;
        }
        let at = collector.shared_state.now();
        let (points, left) = cluster.points(round, &nodes, &counts, at.mono);
        collector.report_left(nodes.len(), left);
        let clock_is_set = (collector.is_believed)(at.wall);
        keep(Tick {
            at,
            clock_is_set,
            points,
        })
        .await;
    }
}

impl Collector {
    /// Waits until a round is due; false where rights may have changed before.
    async fn wait(&self, due: Mono, chances: &mut u64) -> bool {
        let heard = self.client.heard();
        clock::until(due).or(heard.chance(*chances)).await;
        *chances = heard.chances();
        self.shared_state.now().mono >= due
    }

    /// Returns whether one kubelet answers the agent.
    async fn may_ask(&self) -> bool {
        let node = self.known.nodes.borrow().keys().next().cloned();
        let Some(name) = node else {
            return false;
        };
        let path = format!("/api/v1/nodes/{name}/proxy/stats/summary");
        self.client.read(&path, KUBELET_WITHIN).await.is_ok()
    }

    /// Asks the kubelets that are there. False where the agent may not.
    async fn ask(
        &self,
        cluster: &Cluster,
        nodes: &LiteMap<String, Node>,
        round: &mut Round,
    ) -> bool {
        let until = self.shared_state.now().mono.after(ROUND_WITHIN);
        let mut silent = Vec::new();
        for (name, _) in nodes
            .iter()
            .take(NODES_MAX)
            .filter(|(_, node)| node.is_ready)
        {
            if self.shared_state.now().mono >= until {
                silent.push((name, "no time left in this round".to_owned()));
                continue;
            }
            let path = format!("/api/v1/nodes/{name}/proxy/stats/summary");
            let answer = self.client.read(&path, KUBELET_WITHIN).await;
            match answer.map(|bytes| summary::read(&bytes)) {
                Ok(Ok(summary)) => cluster.add(round, name, summary),
                Ok(Err(error)) => {
                    silent.push((name, format!("it does not answer like a kubelet: {error}")))
                }
                Err(error) if error.is_forbidden() => {
                    self.report_forbidden();
                    return false;
                }
                Err(error) => silent.push((name, Error::to_string(&error))),
            }
        }
        self.report_silent(&silent);
        true
    }

    fn report_forbidden(&self) {
        let fix = Some(self.fix.clone());
        self.shared_state
            .report(UNREAD, Severity::Note, sentences::STATS_UNREAD, fix);
    }

    fn report_silent(&self, silent: &[(&String, String)]) {
        let Some((name, why)) = silent.first() else {
            return self.shared_state.clear(UNREAD);
        };
        let more = match silent.len() - 1 {
            0 => String::new(),
            more => format!(" and {more} more nodes"),
        };
        let sentence = format!("no usage data from node {name}{more}: {why}");
        let fix = format!("kubectl get --raw /api/v1/nodes/{name}/proxy/stats/summary");
        self.shared_state
            .report(UNREAD, Severity::Note, sentence, Some(fix));
    }

    fn report_left(&self, nodes: usize, pods: Unlisted) {
        let mut left = Vec::new();
        if nodes > NODES_MAX {
            left.push(format!("{NODES_MAX} nodes"));
        }
        if pods.small > 0 {
            left.push(format!(
                "the {PODS_MAX} largest Pods, and the sum of the others"
            ));
        }
        if left.is_empty() && pods.new > 0 {
            let sentence = "Pods are replaced too quickly: beyond 12 new ones an hour, they are measured as one sum";
            return self
                .shared_state
                .report(PARTLY, Severity::Note, sentence, None);
        }
        if left.is_empty() {
            return self.shared_state.clear(PARTLY);
        }
        // Without how many there are: that changes each minute, and would be told each time.
        let sentence = format!(
            "this cluster is large: measurements are limited to {}",
            left.join(" and ")
        );
        self.shared_state
            .report(PARTLY, Severity::Note, sentence, None);
    }
}

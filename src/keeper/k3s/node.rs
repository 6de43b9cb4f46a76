//! Cordon and drain of this node, each as a change of the journal.

use std::time::Duration;

use super::{
    super::{Keeper, now, system::System},
    describe,
    inspect::FindingSet,
    refuse,
};
use crate::{
    core::{
        k3s::{
            BINARY,
            drain::{self, Fate},
            plan,
            step::{Drain, Step},
        },
        time::in_words,
    },
    error::{Error, Result},
    host::{
        clock,
        exec::{self, Limits},
    },
    wire::keeper::{Done, Finding, K3sPlan, Record},
};

/// A wanted change of this node.
#[derive(Clone, Debug)]
pub struct Node {
    /// Change.
    pub maintenance: Maintenance,
    /// Findings to ignore (`--ignore`).
    pub ignored: Vec<String>,
    /// Path of this program.
    pub program: String,
}

/// Change of a node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Maintenance {
    /// It takes no new Pods.
    Cordon,
    /// Its Pods go, too, within this time.
    Drain(Duration),
}

/// Finding that Pods have no controller; to ignore it ends them for good.
pub(super) const BARE: &str = "drain.bare";
/// Time for the API to answer: after a reboot it comes up beside the change that goes on.
const API_WITHIN: Duration = Duration::from_secs(300);
const PAUSE: Duration = Duration::from_secs(2);

struct Prepared {
    node: String,
    steps: Vec<Step>,
    findings: FindingSet,
}

impl Keeper {
    /// The plan of a change of this node.
    pub fn k3s_node_plan(&self, wanted: &Node) -> Result<K3sPlan> {
        let prepared = self.prepare_node(wanted)?;
        Ok(K3sPlan {
            does: sentence(wanted, &prepared.node),
            refused: prepared.findings.refused,
            warned: prepared.findings.warned,
            steps: describe::steps(&prepared.steps),
            bytes: 0,
            undo: "sudo pipeops-agent undo ID: the node takes Pods again".to_owned(),
            ..K3sPlan::default()
        })
    }

    /// Cordons or drains this node. A drain that does not come to its end is undone: the node takes
    /// Pods again.
    pub fn k3s_node(&self, wanted: &Node, who: &str) -> Result<Done> {
        let journal = self.open()?;
        self.settle(&journal)?;
        let prepared = self.prepare_node(wanted)?;
        if let Some(error) = refuse("the node cannot be drained", &prepared.findings.refused) {
            return Err(error);
        }
        let check = match wanted.maintenance {
            Maintenance::Cordon => "node.cordon",
            Maintenance::Drain(_) => "node.drain",
        };
        let does = sentence(wanted, &prepared.node);
        let record = Record::new(check, who, now(), does);
        self.begin_steps(&journal, record, prepared.steps, Duration::ZERO)
    }

    fn prepare_node(&self, wanted: &Node) -> Result<Prepared> {
        if !self.system.is_there(BINARY) {
            return Err(Error::new("there is no k3s on this machine")
                .fix("on a node of another Kubernetes: kubectl cordon, kubectl drain"));
        }
        let managed = self.managed()?;
        let data_dir = self.data_dir(managed.as_ref());
        let node = managed.map_or_else(|| self.node_name(None), |found| Ok(found.node))?;
        let found = self.system.node(&node).map_err(|why| {
            Error::new(format!("cannot look at the node {node}"))
                .why(why)
                .fix("sudo pipeops-agent k3s status")
        })?;
        let (mut findings, mut pods) = (FindingSet::default(), Vec::new());
        if let Maintenance::Drain(_) = wanted.maintenance {
            self.only_on_servers("node drain")?;
            pods = self.system.pods(&node)?;
            findings = drain_findings(&pods, self.system.is_relieved(&node));
        }
        let is_forced = wanted.ignored.iter().any(|id| id == BARE);
        findings.ignore(&wanted.ignored);
        let going = pods.iter().filter(|pod| pod.fate != Fate::Stays);
        let steps = plan::node(&plan::Node {
            init: self.system.init()?,
            program: wanted.program.clone(),
            data_dir,
            is_cordoned: found.is_cordoned,
            drain: match wanted.maintenance {
                Maintenance::Cordon => None,
                Maintenance::Drain(within) => Some(Drain {
                    within,
                    is_forced,
                    pods: going.map(|pod| pod.name.clone()).collect(),
                }),
            },
            node: node.clone(),
        });
        Ok(Prepared {
            node,
            steps,
            findings,
        })
    }
}

/// Findings about a drain of a node with these Pods.
pub(super) fn drain_findings(pods: &[drain::Pod], is_relieved: bool) -> FindingSet {
    let finding = |id: &str, what: String, fix: &str| Finding {
        id: id.to_owned(),
        what,
        fix: fix.to_owned(),
    };
    let named = |wanted: Fate| {
        let found = pods.iter().filter(move |pod| pod.fate == wanted);
        found.map(|pod| pod.name.clone()).collect::<Vec<_>>()
    };
    let bare = named(Fate::Ends);
    let refused = (!bare.is_empty()).then(|| {
        finding(
            BARE,
            format!("nothing would start these Pods again: {}", bare.join(", ")),
            "delete them, or give them a Deployment",
        )
    });
    let mut warned = Vec::new();
    let going = pods.iter().filter(|pod| pod.fate != Fate::Stays);
    for pod in going.filter(|pod| !pod.empty_dirs.is_empty()) {
        let what = format!(
            "{} loses the data of its emptyDir volumes: {}",
            pod.name,
            pod.empty_dirs.join(", ")
        );
        warned.push(finding("drain.empty-dir", what, "copy what matters first"));
    }
    if !is_relieved {
        warned.push(finding(
            "drain.alone",
            "no other node can take the Pods: they wait until this one takes Pods again".to_owned(),
            "",
        ));
    }
    FindingSet {
        refused: refused.into_iter().collect(),
        warned,
    }
}

fn sentence(wanted: &Node, node: &str) -> String {
    match wanted.maintenance {
        Maintenance::Cordon => format!("cordon the node {node}: it accepts no new Pods"),
        Maintenance::Drain(within) => format!(
            "drain the node {node} within {}: its Pods are evicted, and it accepts no new ones",
            in_words(within)
        ),
    }
}

impl System {
    /// Pods of a node that have not ended.
    pub(super) fn pods(&self, node: &str) -> Result<Vec<drain::Pod>> {
        let selector = format!("--field-selector=spec.nodeName={node}");
        let jsonpath = format!("jsonpath={}", drain::JSONPATH);
        let ended = self.kubectl(&["get", "pods", "-A", &selector, "-o", &jsonpath])?;
        if ended.success() {
            return Ok(drain::pods(&ended.stdout));
        }
        let why: String = ended.stderr.trim().chars().take(200).collect();
        Err(Error::new(format!("cannot list the Pods of {node}"))
            .why(why)
            .fix("sudo pipeops-agent k3s status"))
    }

    /// Waits until the API of this machine answers.
    fn wait_api(&self) -> Result<()> {
        let started = clock::now().mono;
        while !self.is_api_ready() {
            if clock::now().mono.since(started) >= API_WITHIN {
                return Err(Error::new("the API of this machine does not answer")
                    .fix("sudo pipeops-agent k3s status; then: sudo pipeops-agent k3s resume"));
            }
            clock::pause(PAUSE);
        }
        Ok(())
    }

    /// Lets a node take Pods, or not.
    pub(in super::super) fn cordon(&self, node: &str, word: &str) -> Result<()> {
        self.wait_api()?;
        let mut argv = self.client();
        argv.extend([word, node].map(str::to_owned));
        self.run(&argv).map(drop)
    }

    /// Evicts the Pods of a node, as far as their budgets allow it.
    pub(in super::super) fn drain(
        &self,
        node: &str,
        within: Duration,
        is_forced: bool,
    ) -> Result<()> {
        self.wait_api()?;
        let timeout = format!("--timeout={}s", within.as_secs());
        let client = self.client();
        let mut argv: Vec<_> = client.iter().map(String::as_str).collect();
        argv.extend([
            "drain",
            node,
            "--ignore-daemonsets",
            "--delete-emptydir-data",
            &timeout,
        ]);
        if is_forced {
            argv.push("--force");
        }
        let limits = Limits {
            within: within.saturating_add(Duration::from_secs(60)),
            ..Limits::SHORT
        };
        let ended = exec::run(self.root(), &argv, limits)?;
        if ended.success() {
            return Ok(());
        }
        let cannot = Error::new(format!("the node {node} was not drained"));
        let held = drain::held(&ended.stderr);
        if held.is_empty() {
            let last = ended.stderr.lines().rfind(|line| !line.trim().is_empty());
            let why: String = last.unwrap_or_default().trim().chars().take(200).collect();
            return Err(cannot.why(why));
        }
        Err(cannot
            .why(format!(
                "a PodDisruptionBudget blocked {} for {}",
                held.join(", "),
                in_words(within)
            ))
            .fix("give the app more replicas, or change its budget: sudo /usr/local/bin/k3s kubectl get poddisruptionbudgets -A"))
    }
}

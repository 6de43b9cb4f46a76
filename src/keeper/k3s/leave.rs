//! Removal of a node from its cluster: on a server, which moves its Pods and removes it, and on the
//! node itself, which removes k3s.

use std::time::Duration;

use super::{
    super::{Keeper, journal::LockedJournal, now},
    Uninstall, describe,
    inspect::FindingSet,
    join::finding,
    node::{self, BARE},
    refuse,
};
use crate::{
    core::{
        format::size,
        journal::Outcome,
        k3s::{
            Role,
            drain::Fate,
            is_node_name, leave, plan,
            servers::{Datastore, ServerNode, leave_doubt},
            step::{Drain, Step},
        },
    },
    error::{Error, Result},
    wire::keeper::{Done, Finding, K3sPlan, Record},
};

/// A wanted leave.
#[derive(Clone, Debug)]
pub struct Leave {
    /// The worker, on a server; `None`: this machine.
    pub worker: Option<String>,
    /// Time for its Pods to go.
    pub within: Duration,
    /// Findings to ignore (`--ignore`).
    pub ignored: Vec<String>,
    /// Path of this program.
    pub program: String,
}

/// Finding about a volume on a disk of the node.
const VOLUME: &str = "leave.volume";
/// Finding that Pods run on the worker, which only its server can move.
const PODS: &str = "leave.pods";

impl Keeper {
    /// The plan of a leave.
    pub fn k3s_leave_plan(&self, wanted: &Leave) -> Result<K3sPlan> {
        match self.side(wanted)? {
            Side::Itself(servers) => {
                let (node, steps, mut findings) = self.own_removal(wanted, &servers)?;
                let (removal, stay) = self.departure(wanted)?;
                let plan = self.removal_plan(&uninstall(wanted), &removal)?;
                findings.ignore(&wanted.ignored);
                let stay = stay.warned.into_iter();
                findings
                    .warned
                    .extend(stay.filter(|finding| finding.id == VOLUME));
                let mut steps = describe::steps(&steps);
                steps.extend(plan.steps);
                Ok(K3sPlan {
                    does: format!("{}; then {DEPARTURE}", removal_sentence(&node)),
                    refused: findings.refused,
                    warned: findings.warned,
                    steps,
                    undo: "a drain that fails is undone automatically; later: join again"
                        .to_owned(),
                    ..plan
                })
            }
            Side::Server(worker) => {
                let (steps, findings) = self.node_removal(wanted, worker, None)?;
                Ok(K3sPlan {
                    does: removal_sentence(worker),
                    refused: findings.refused,
                    warned: findings.warned,
                    steps: describe::steps(&steps),
                    undo:
                        "a drain that fails is undone automatically; later: join again with a new token"
                            .to_owned(),
                    ..K3sPlan::default()
                })
            }
            Side::Worker => {
                let (removal, findings) = self.departure(wanted)?;
                let plan = self.removal_plan(&uninstall(wanted), &removal)?;
                Ok(K3sPlan {
                    does: DEPARTURE.to_owned(),
                    refused: findings.refused,
                    warned: findings.warned,
                    ..plan
                })
            }
        }
    }

    /// On a server: moves the Pods of a worker, and removes its node. On a worker: removes k3s, and
    /// leaves the data of volumes.
    pub fn k3s_leave(&self, wanted: &Leave, who: &str) -> Result<Done> {
        let journal = self.open()?;
        self.settle(&journal)?;
        match self.side(wanted)? {
            Side::Itself(servers) => {
                let (node, steps, findings) = self.own_removal(wanted, &servers)?;
                if let Some(error) = refuse("this server cannot leave yet", &findings.refused) {
                    return Err(error);
                }
                let (removal, ..) = self.departure(wanted)?;
                let record = removal_record(&node, who);
                let done = self.begin_steps(&journal, record, steps, Duration::ZERO)?;
                if done.outcome != Outcome::Done.as_str() {
                    return Ok(done);
                }
                // At once: a server that the others have forgotten joins again when it starts.
                self.depart(&journal, &removal, who)
            }
            Side::Server(worker) => {
                let (steps, findings) = self.node_removal(wanted, worker, None)?;
                if let Some(error) = refuse("the node cannot leave yet", &findings.refused) {
                    return Err(error);
                }
                let record = removal_record(worker, who);
                self.begin_steps(&journal, record, steps, Duration::ZERO)
            }
            Side::Worker => {
                let (removal, findings) = self.departure(wanted)?;
                if let Some(error) = refuse("this machine cannot leave yet", &findings.refused) {
                    return Err(error);
                }
                self.depart(&journal, &removal, who)
            }
        }
    }

    fn depart(
        &self,
        journal: &LockedJournal,
        removal: &plan::Uninstall,
        who: &str,
    ) -> Result<Done> {
        let record = Record {
            is_one_way: true,
            ..Record::new("k3s.uninstall", who, now(), DEPARTURE.to_owned())
        };
        self.remove_k3s(journal, record, removal)
    }

    fn side<'a>(&self, wanted: &'a Leave) -> Result<Side<'a>> {
        match (self.system.role(), &wanted.worker) {
            (Role::Worker, None) => Ok(Side::Worker),
            (Role::Worker, Some(_)) => {
                self.only_on_servers("node leave NAME")?;
                Ok(Side::Worker)
            }
            (Role::Server, Some(worker)) if is_node_name(worker) => Ok(Side::Server(worker)),
            (Role::Server, Some(worker)) => Err(Error::new(format!("{worker:?} is not a valid node name"))
                .fix("list them: sudo /usr/local/bin/k3s kubectl get nodes")),
            (Role::Server, None) if self.has_etcd()? => match self.system.servers() {
                None => Err(Error::new("this server cannot leave")
                    .why("its API does not answer, so that the others cannot be told")
                    .fix("on another server: sudo pipeops-agent node leave NAME; then here: sudo pipeops-agent k3s uninstall")),
                Some(servers) if servers.len() == 1 => Err(Error::new("this machine is the only server of its cluster")
                    .fix("name the worker that leaves: sudo pipeops-agent node leave NAME; or remove k3s from here: sudo pipeops-agent k3s uninstall")),
                Some(servers) => Ok(Side::Itself(servers)),
            },
            (Role::Server, None) => Err(Error::new("this machine is not a k3s worker")
                .fix("name the worker that leaves: sudo pipeops-agent node leave NAME; or remove k3s from here: sudo pipeops-agent k3s uninstall")),
        }
    }

    /// Finding that a removal leaves a member of an etcd behind, which the other servers keep.
    pub(super) fn abandoned(&self, removal: &plan::Uninstall) -> Option<Finding> {
        let is_member = removal.role == Role::Server
            && self.system.datastore(&removal.data_dir) == Datastore::Etcd;
        let servers = is_member.then(|| self.system.servers())?;
        let what = match servers.map(|servers| servers.len()) {
            None => "the API does not answer, so it is unknown whether there are other servers; they would keep this one as an unreachable member of etcd".to_owned(),
            Some(0 | 1) => return None,
            Some(servers) => format!("the cluster has {servers} servers; the others would keep this one as an unreachable member of etcd"),
        };
        Some(Finding {
            id: "uninstall.member".to_owned(),
            what,
            fix: "let it leave, which also removes k3s: sudo pipeops-agent node leave".to_owned(),
        })
    }

    fn has_etcd(&self) -> Result<bool> {
        let managed = self.managed()?;
        let data_dir = self.data_dir(managed.as_ref());
        Ok(self.system.datastore(&data_dir) == Datastore::Etcd)
    }

    /// Name of this node, and the steps by which this server leaves the others: they remove it, by
    /// the API of one of them, because its own ends with its member of etcd.
    fn own_removal(
        &self,
        wanted: &Leave,
        servers: &[ServerNode],
    ) -> Result<(String, Vec<Step>, FindingSet)> {
        let managed = self.managed()?;
        let own = managed.map_or_else(|| self.node_name(None), |note| Ok(note.node))?;
        let other = servers.iter().find(|it| it.is_ready && it.name != own);
        let other = other.ok_or_else(|| {
            Error::new("this server cannot leave")
                .why("no other server is Ready")
                .fix("sudo /usr/local/bin/k3s kubectl get nodes")
        })?;
        let api = self.system.server_at(&other.address);
        let (steps, findings) = self.node_removal(wanted, &own, Some(api))?;
        Ok((own, steps, findings))
    }

    /// The steps of a server; `api` is that of another one, by which this one itself leaves.
    fn node_removal(
        &self,
        wanted: &Leave,
        worker: &str,
        api: Option<String>,
    ) -> Result<(Vec<Step>, FindingSet)> {
        let managed = self.managed()?;
        let data_dir = self.data_dir(managed.as_ref());
        let own = managed.map_or_else(|| self.node_name(None), |note| Ok(note.node))?;
        if own == worker && api.is_none() {
            return Err(Error::new(format!("{worker} is this server itself"))
                .fix("let it leave other servers: sudo pipeops-agent node leave; or remove it with its cluster: sudo pipeops-agent k3s uninstall"));
        }
        if !self.system.is_api_ready() {
            return Err(Error::new("the API of this machine does not answer")
                .fix("sudo pipeops-agent k3s status"));
        }
        let (mut findings, mut pods) = (FindingSet::default(), Vec::new());
        let found = self.system.node(worker).ok();
        let is_ready = found.as_ref().is_some_and(|found| found.is_ready);
        if is_ready {
            pods = self.system.pods(worker)?;
            findings = node::drain_findings(&pods, self.system.is_relieved(worker));
        } else {
            findings.warned.push(Finding {
                id: "leave.away".to_owned(),
                what: match found {
                    Some(_) => {
                        format!("{worker} is not reachable: its Pods are abandoned, not moved")
                    }
                    None => format!("the cluster has no node {worker}: only its password goes"),
                },
                fix: String::new(),
            });
        }
        let servers = self.servers_beside(worker)?;
        if servers.iter().any(|server| server.name == worker) {
            let doubt = leave_doubt(&servers, worker).map(finding);
            findings.refused.extend(doubt);
            if is_ready && api.is_none() {
                findings.refused.push(Finding {
                    id: "leave.server-runs".to_owned(),
                    what: format!(
                        "{worker} is a server that runs: it would join again when it starts"
                    ),
                    fix: format!("on {worker}: sudo pipeops-agent node leave"),
                });
            }
        }
        findings.warned.extend(self.volumes_left(worker)?);
        let is_forced = wanted.ignored.iter().any(|id| id == BARE);
        findings.ignore(&wanted.ignored);
        let init = self.system.init()?;
        let going = pods.iter().filter(|pod| pod.fate != Fate::Stays);
        let drain = Drain {
            within: wanted.within,
            is_forced,
            pods: going.map(|pod| pod.name.clone()).collect(),
        };
        let node = found.filter(|_| is_ready).map(|found| plan::Node {
            init,
            program: wanted.program.clone(),
            data_dir: data_dir.clone(),
            node: worker.to_owned(),
            is_cordoned: found.is_cordoned,
            drain: Some(drain),
        });
        let steps = plan::remove_node(&plan::NodeRemoval {
            node,
            init,
            program: wanted.program.clone(),
            data_dir,
            worker: worker.to_owned(),
            api,
        });
        Ok((steps, findings))
    }

    /// Servers of the cluster that a node leaves; none where the API does not say it and no etcd
    /// counts them.
    fn servers_beside(&self, leaving: &str) -> Result<Vec<ServerNode>> {
        match self.system.servers() {
            Some(servers) => Ok(servers),
            None if self.has_etcd()? => Err(Error::new(format!("{leaving} cannot leave"))
                .why("the API does not say which nodes are servers, so that nobody knows whether a majority stays")
                .fix("sudo /usr/local/bin/k3s kubectl get nodes; then try again")),
            None => Ok(Vec::new()),
        }
    }

    /// Volumes that are on the disk of a worker.
    fn volumes_left(&self, worker: &str) -> Result<Vec<Finding>> {
        let jsonpath = format!("jsonpath={}", leave::JSONPATH);
        let ended = self.system.kubectl(&["get", "pv", "-o", &jsonpath])?;
        let found = leave::volumes(&ended.stdout, worker).into_iter();
        let found = found.map(|volume| Finding {
            id: VOLUME.to_owned(),
            what: format!(
                "{} ({}) is in {} on {worker}: its data stays there, and no other node has it",
                volume.claim, volume.capacity, volume.path
            ),
            fix: "copy what matters first".to_owned(),
        });
        Ok(found.collect())
    }

    /// The removal from a worker, without the data of its volumes.
    fn departure(&self, wanted: &Leave) -> Result<(plan::Uninstall, FindingSet)> {
        let mut removal = self.removal(&uninstall(wanted))?;
        let volumes = self.system.volumes(&removal.data_dir);
        let storage = format!("{}/storage", removal.data_dir);
        if volumes
            .iter()
            .any(|volume| volume.path.starts_with(&storage))
        {
            removal.data.retain(|path| *path != storage);
        }
        let warned = volumes.into_iter().map(|volume| Finding {
            id: VOLUME.to_owned(),
            what: format!("{} stays: {}", volume.path, size(volume.bytes)),
            fix: "remove it if nothing needs it".to_owned(),
        });
        let mut findings = FindingSet {
            refused: Vec::new(),
            warned: warned.collect(),
        };
        let managed = self.managed()?;
        let node = managed.map_or_else(|| self.node_name(None), |note| Ok(note.node))?;
        let on_server = format!("sudo pipeops-agent node leave {node}");
        match self.system.pods(&node) {
            Ok(pods) => {
                let going = pods.iter().filter(|pod| pod.fate != Fate::Stays);
                let going: Vec<_> = going.map(|pod| pod.name.clone()).collect();
                if !going.is_empty() {
                    findings.refused.push(Finding {
                        id: PODS.to_owned(),
                        what: format!(
                            "Pods run here, and a worker has no right to move all of them: {}",
                            going.join(", ")
                        ),
                        fix: format!("on the server, first: {on_server}"),
                    });
                } else if self.system.node(&node).is_ok() {
                    findings.warned.push(Finding {
                        id: "leave.node".to_owned(),
                        what: format!("the server still has the node {node}"),
                        fix: format!("on the server: {on_server}"),
                    });
                }
            }
            // A server that is gone keeps nobody.
            Err(_) => findings.warned.push(Finding {
                id: "leave.server".to_owned(),
                what:
                    "the server does not answer, so it is unknown whether it still lists this node"
                        .to_owned(),
                fix: format!("on the server, if it is still there: {on_server}"),
            }),
        }
        findings.ignore(&wanted.ignored);
        Ok((removal, findings))
    }
}

/// Machine on which the command runs.
enum Side<'a> {
    /// A server, and the other node that it means.
    Server(&'a str),
    /// One of several servers, and all of them.
    Itself(Vec<ServerNode>),
    /// The worker itself.
    Worker,
}

const DEPARTURE: &str =
    "leave the cluster: remove k3s from this machine, and leave the data of volumes";

fn uninstall(wanted: &Leave) -> Uninstall {
    Uninstall {
        keeps_data: false,
        takes_found: false,
        program: wanted.program.clone(),
    }
}

fn removal_record(node: &str, who: &str) -> Record {
    Record {
        opposite: Some(format!(
            "sudo pipeops-agent k3s token, and k3s join on {node}"
        )),
        ..Record::new("node.leave", who, now(), removal_sentence(node))
    }
}

fn removal_sentence(worker: &str) -> String {
    format!("let {worker} leave: move its Pods, then forget its node and its password")
}

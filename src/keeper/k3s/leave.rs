//! Leaving of a worker: from its server, which moves its Pods and forgets it, and from the worker
//! itself, which removes k3s.

use std::time::Duration;

use super::{
    super::{Keeper, now},
    Uninstall, describe,
    node::{self, BARE},
    refuse,
};
use crate::{
    core::{
        k3s::{
            Role,
            drain::Fate,
            is_node_name, leave,
            plan::{self, Step},
        },
        words::size,
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
    /// Findings that hold nothing up.
    pub ignored: Vec<String>,
    /// Path of this program.
    pub program: String,
}

/// Finding that Pods run on the worker, which only its server can move.
const PODS: &str = "leave.pods";

impl Keeper {
    /// The plan of a leave.
    pub fn k3s_leave_plan(&self, wanted: &Leave) -> Result<K3sPlan> {
        match self.side(wanted)? {
            Side::Server(worker) => {
                let (steps, refused, warned) = self.farewell(wanted, worker)?;
                Ok(K3sPlan {
                    does: farewell_sentence(worker),
                    refused,
                    warned,
                    steps: describe::steps(&steps),
                    undo:
                        "a drain that fails is undone by itself; later: join again with a new token"
                            .to_owned(),
                    ..K3sPlan::default()
                })
            }
            Side::Worker => {
                let (removal, refused, warned) = self.departure(wanted)?;
                let plan = self.removal_plan(&uninstall(wanted), &removal)?;
                Ok(K3sPlan {
                    does: DEPARTURE.to_owned(),
                    refused,
                    warned,
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
            Side::Server(worker) => {
                let (steps, refused, _) = self.farewell(wanted, worker)?;
                if let Some(error) = refuse("the worker cannot leave yet", &refused) {
                    return Err(error);
                }
                let record = Record {
                    opposite: Some(format!(
                        "sudo pipeops-agent k3s token, and k3s join on {worker}"
                    )),
                    ..Record::new("node.leave", who, now(), farewell_sentence(worker))
                };
                self.begin_steps(&journal, record, steps, Duration::ZERO)
            }
            Side::Worker => {
                let (removal, refused, _) = self.departure(wanted)?;
                if let Some(error) = refuse("this machine cannot leave yet", &refused) {
                    return Err(error);
                }
                let record = Record {
                    is_one_way: true,
                    ..Record::new("k3s.uninstall", who, now(), DEPARTURE.to_owned())
                };
                self.remove_k3s(&journal, record, &removal)
            }
        }
    }

    fn side<'a>(&self, wanted: &'a Leave) -> Result<Side<'a>> {
        match (self.system.role(), &wanted.worker) {
            (Role::Worker, None) => Ok(Side::Worker),
            (Role::Worker, Some(_)) => {
                self.only_on_servers("node leave NAME")?;
                Ok(Side::Worker)
            }
            (Role::Server, Some(worker)) if is_node_name(worker) => Ok(Side::Server(worker)),
            (Role::Server, Some(worker)) => Err(Error::new(format!("{worker:?} is no name of a node"))
                .fix("list them: sudo k3s kubectl get nodes")),
            (Role::Server, None) => Err(Error::new("this machine is no worker of k3s")
                .fix("name the worker that leaves: sudo pipeops-agent node leave NAME; or remove k3s from here: sudo pipeops-agent k3s uninstall")),
        }
    }

    /// The steps of a server.
    fn farewell(
        &self,
        wanted: &Leave,
        worker: &str,
    ) -> Result<(Vec<Step>, Vec<Finding>, Vec<Finding>)> {
        let managed = self.managed()?;
        let data_dir = self.data_dir(managed.as_ref());
        let own = managed.map_or_else(|| self.node_name(None), |note| Ok(note.node))?;
        if own == worker {
            return Err(Error::new(format!("{worker} is this server itself"))
                .fix("remove it with its cluster: sudo pipeops-agent k3s uninstall"));
        }
        if !self.system.is_api_ready() {
            return Err(Error::new("the API of this machine does not answer")
                .fix("sudo pipeops-agent k3s status"));
        }
        let (mut refused, mut warned, mut pods) = (Vec::new(), Vec::new(), Vec::new());
        let found = self.system.node(worker).ok();
        let is_ready = found.as_ref().is_some_and(|found| found.is_ready);
        if is_ready {
            pods = self.system.pods(worker)?;
            (refused, warned) = node::findings(&pods, self.system.has_other_nodes(worker));
        } else {
            warned.push(Finding {
                id: "leave.away".to_owned(),
                what: match found {
                    Some(_) => {
                        format!("{worker} does not report: its Pods are given up, not moved")
                    }
                    None => format!("the cluster has no node {worker}: only its password goes"),
                },
                fix: String::new(),
            });
        }
        warned.extend(self.stranded(worker)?);
        let is_forced = wanted.ignored.iter().any(|id| id == BARE);
        refused.retain(|finding| !wanted.ignored.contains(&finding.id));
        let init = self.system.init()?;
        let going = pods.iter().filter(|pod| pod.fate != Fate::Stays);
        let drain = plan::Drain {
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
        let steps = plan::farewell(&plan::Farewell {
            node,
            init,
            program: wanted.program.clone(),
            data_dir,
            worker: worker.to_owned(),
        });
        Ok((steps, refused, warned))
    }

    /// Volumes that are on the disk of a worker.
    fn stranded(&self, worker: &str) -> Result<Vec<Finding>> {
        let question = format!("jsonpath={}", leave::QUESTION);
        let ended = self.system.kubectl(&["get", "pv", "-o", &question])?;
        let found = leave::volumes(&ended.output, worker).into_iter();
        let found = found.map(|volume| Finding {
            id: "leave.volume".to_owned(),
            what: format!(
                "{} ({}) is in {} on {worker}: its data stays there, and no other node has it",
                volume.claim, volume.capacity, volume.path
            ),
            fix: "copy what matters first".to_owned(),
        });
        Ok(found.collect())
    }

    /// The removal from a worker, without the data of its volumes.
    fn departure(&self, wanted: &Leave) -> Result<(plan::Uninstall, Vec<Finding>, Vec<Finding>)> {
        let mut removal = self.removal(&uninstall(wanted))?;
        let volumes = self.system.volumes(&removal.data_dir);
        let storage = format!("{}/storage", removal.data_dir);
        if volumes
            .iter()
            .any(|volume| volume.path.starts_with(&storage))
        {
            removal.data = self.system.list(&removal.data_dir, "");
            removal.data.retain(|path| *path != storage);
        }
        let warned = volumes.into_iter().map(|volume| Finding {
            id: "leave.volume".to_owned(),
            what: format!("{} stays: {}", volume.path, size(volume.bytes)),
            fix: "remove it by hand where nobody needs it".to_owned(),
        });
        let mut warned: Vec<_> = warned.collect();
        let mut refused = Vec::new();
        let managed = self.managed()?;
        let node = managed.map_or_else(|| self.node_name(None), |note| Ok(note.node))?;
        let on_server = format!("sudo pipeops-agent node leave {node}");
        match self.system.pods(&node) {
            Ok(pods) => {
                let going = pods.iter().filter(|pod| pod.fate != Fate::Stays);
                let going: Vec<_> = going.map(|pod| pod.name.clone()).collect();
                if !going.is_empty() {
                    refused.push(Finding {
                        id: PODS.to_owned(),
                        what: format!(
                            "Pods run here, and a worker has no right to move all of them: {}",
                            going.join(", ")
                        ),
                        fix: format!("on the server, first: {on_server}"),
                    });
                } else if self.system.node(&node).is_ok() {
                    warned.push(Finding {
                        id: "leave.node".to_owned(),
                        what: format!("the server still has the node {node}"),
                        fix: format!("on the server: {on_server}"),
                    });
                }
            }
            // A server that is gone keeps nobody.
            Err(_) => warned.push(Finding {
                id: "leave.server".to_owned(),
                what: "the server does not answer this machine: whether it knows it is not known"
                    .to_owned(),
                fix: format!("on the server, if it is still there: {on_server}"),
            }),
        }
        refused.retain(|finding| !wanted.ignored.contains(&finding.id));
        Ok((removal, refused, warned))
    }
}

/// Machine on which the command runs.
enum Side<'a> {
    /// A server, and the worker that it means.
    Server(&'a str),
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

fn farewell_sentence(worker: &str) -> String {
    format!("let {worker} leave: move its Pods, then forget its node and its password")
}

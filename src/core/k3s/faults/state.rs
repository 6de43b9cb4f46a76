//! State of k3s at one moment, which the detectors judge.

use std::net::IpAddr;

use super::{Component, Service};
use crate::core::{
    k3s::{Role, images::Archives, texts::Init},
    time::Wall,
};

/// State of k3s at one moment.
#[derive(Clone, Debug, Default)]
pub struct K3sState {
    pub service: Service,
    /// Restarts of the last ten minutes.
    pub restarts: u32,
    /// Last lines of the log; empty while the service is well.
    pub log: String,
    /// Seconds since the machine started.
    pub up_s: u64,
    /// The API of this machine; `None`: it was not asked.
    pub api: Option<Api>,
    /// The certificate that ends first: its file, and days until then.
    pub certificate: Option<(String, i64)>,
    /// Addresses of this machine.
    pub addresses: Vec<IpAddr>,
    /// The service manager.
    pub init: Init,
    /// The part of a cluster that this machine is; the API of a worker is its server's.
    pub role: Role,
    /// True if it has a default route, without which k3s finds no address for its node.
    pub has_route: bool,
    /// True if the settings fix the address of the node.
    pub has_fixed_address: bool,
    /// The name that k3s takes for the node at its next start, where it is another one.
    pub renamed: Option<String>,
    /// Seconds by which the wall clock was set since the last look.
    pub jumped_s: i64,
    /// Bytes of the datastore, and of its write-ahead log; `None`: this machine has no file of it.
    pub datastore: Option<[u64; 2]>,
    /// Firewall rules that are there more than once; `None`: they were not counted.
    pub duplicates: Option<u64>,
    /// State of the Pods of CoreDNS, where none is ready.
    pub dns: String,
    /// The image that they wait for, where the archive of a release has it.
    pub lacks_image: Option<String>,
    /// Archives of images; `None`: they were not looked at.
    pub archives: Option<Archives>,
    /// The Pod or program that has most of the memory, where the node runs out of it.
    pub consumer: Option<String>,
    /// Damage of the datastore that a check of it found.
    pub damage: Option<String>,
    /// Time of this machine.
    pub wall: Wall,
}

/// Answer of the API of this machine.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Api {
    /// The node of this machine.
    Node(Node),
    /// There is no such node.
    NoNode,
    /// No answer.
    Silent(String),
}

/// The node of this machine, as its API has it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Node {
    /// Conditions: type, status, and message.
    pub conditions: Vec<[String; 3]>,
    /// Its address inside the cluster.
    pub address: Option<IpAddr>,
    /// True if there is CoreDNS, wanted by its Deployment, and none of its Pods is ready.
    pub lacks_dns: bool,
    /// Time of the last report of its kubelet.
    pub reported: Option<Wall>,
}

/// Template whose output [`Node::parse`] reads, for `kubectl get -o jsonpath=`: a server asks for
/// its node and for the Deployment of CoreDNS at once, and a worker may see its node only.
pub fn jsonpath(role: Role) -> String {
    let (node, dns) = match role {
        Role::Server => (
            ".items[?(@.kind==\"Node\")]",
            "{range .items[?(@.kind==\"Deployment\")]}dns|{.spec.replicas}|{.status.readyReplicas}{\"\\n\"}{end}",
        ),
        Role::Worker => ("", ""),
    };
    format!(
        "{{range {node}.status.conditions[*]}}condition|{{.type}}|{{.status}}|{{.message}}{{\"\\n\"}}{{end}}\
        {{range {node}.status.conditions[?(@.type==\"Ready\")]}}reported|{{.lastHeartbeatTime}}{{\"\\n\"}}{{end}}\
        {{range {node}.status.addresses[*]}}address|{{.type}}|{{.address}}{{\"\\n\"}}{{end}}{dns}"
    )
}

/// Template about the Pods of CoreDNS, for [`pods_state`].
pub const PODS_JSONPATH: &str = "{range .items[*]}{.metadata.name}{\" on \"}{.spec.nodeName}|{.status.phase}|\
    {.status.conditions[?(@.type==\"PodScheduled\")].message}|\
    {.status.containerStatuses[*].state.waiting.reason}|{.status.containerStatuses[*].state.waiting.message}|\
    {.status.containerStatuses[*].lastState.terminated.reason}{\"\\n\\n\"}{end}";

/// State of one of these Pods, with the reasons that it has.
pub fn pods_state(answer: &str) -> String {
    let pod = answer.trim().rsplit("\n\n").next().unwrap_or_default();
    let mut fields = pod.split('|').filter(|field| !field.is_empty());
    match fields.next() {
        Some(name) => {
            // One that is not scheduled is on no node.
            let name = name.trim_end_matches(" on ");
            format!("Pod {name}: {}", fields.collect::<Vec<_>>().join(", "))
        }
        None => "it has no Pod".to_owned(),
    }
}

/// Time for a k3s to come up that does not say when it has, and to import images from a slow card:
/// five minutes were seen.
const COMES_UP_S: u64 = 900;

impl K3sState {
    /// The node of this machine, where its API told of it.
    pub(super) fn node(&self) -> Option<&Node> {
        match self.api.as_ref()? {
            Api::Node(node) => Some(node),
            Api::NoNode | Api::Silent(_) => None,
        }
    }

    /// Seconds since the process of k3s was started.
    fn age_s(&self) -> Option<u64> {
        Some(self.up_s.saturating_sub(self.service.started_s?))
    }

    /// Returns whether k3s has had the time to come up, where nobody says that it has.
    pub(super) fn has_come_up(&self) -> bool {
        let is_told = self.init == Init::Systemd;
        is_told || self.age_s().is_none_or(|age| age >= COMES_UP_S)
    }

    /// Returns whether k3s may still be importing images: its kubelet, which it starts after that,
    /// has not reported since its own start.
    pub(super) fn may_import(&self) -> bool {
        let Some((node, age_s)) = self.node().zip(self.age_s()) else {
            return false;
        };
        let since_start = i64::try_from(age_s.saturating_mul(1000)).unwrap_or(i64::MAX);
        let started_ms = self.wall.millis().saturating_sub(since_start);
        let has_reported = node.reported.is_some_and(|at| at.millis() >= started_ms);
        age_s < COMES_UP_S && !has_reported
    }

    /// Returns whether it shows a part at all.
    pub fn shows(&self, part: Component) -> bool {
        match part {
            Component::Service | Component::Datastore => true,
            Component::Firewall => self.duplicates.is_some(),
            Component::Images => self.archives.is_some(),
            // A worker of another name may not ask for the node of before.
            Component::Node if self.renamed.is_some() => true,
            Component::Api | Component::Node | Component::Certificates | Component::Dns => {
                self.api.is_some()
            }
        }
    }
}

impl Node {
    /// Reads the output of [`jsonpath`].
    pub fn parse(text: &str) -> Option<Self> {
        let mut node = Self::default();
        for line in text.lines() {
            let mut parts = line.splitn(4, '|');
            let mut next = || parts.next().unwrap_or_default().to_owned();
            match (next().as_str(), [next(), next(), next()]) {
                ("condition", condition) => node.conditions.push(condition),
                ("reported", [at, ..]) => node.reported = Wall::parse_rfc3339(&at),
                ("address", [kind, address, _]) if kind == "InternalIP" => {
                    node.address = node.address.or_else(|| address.parse().ok());
                }
                ("dns", [wanted, ready, _]) => {
                    node.lacks_dns = wanted != "0" && matches!(ready.as_str(), "" | "0");
                }
                _ => {}
            }
        }
        (!node.conditions.is_empty()).then_some(node)
    }

    /// Returns whether it reports that it is Ready.
    pub fn is_ready(&self) -> bool {
        self.has("Ready", "True").is_some()
    }

    /// Returns whether it runs out of memory.
    pub fn lacks_memory(&self) -> bool {
        self.has("MemoryPressure", "True").is_some()
    }

    pub(super) fn has(&self, kind: &str, status: &str) -> Option<&str> {
        let found = self
            .conditions
            .iter()
            .find(|[found, is, _]| found == kind && is == status);
        found.map(|[_, _, message]| message.as_str())
    }
}

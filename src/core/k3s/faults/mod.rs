//! Faults of a k3s that runs on this machine: a table with the detector, the repair and the grace
//! period of each.
//!
//! A detector reads nothing: it judges a [`K3sState`].
//!
//! The watch owns what happens to a running k3s, because nobody has to ask for its look: also the
//! size of the datastore, duplicate firewall rules, images of archives and CoreDNS. The doctor,
//! which looks when it is asked, owns what this machine brings along: programs, files, settings,
//! name servers; `OF_THE_DOCTOR` names those of k3s. It shows size and duplicates, too, for a k3s
//! that nobody watches.

mod service;
mod state;
mod table;

pub use self::{
    service::{PROPERTIES, Service},
    state::{Api, K3sState, Node, PODS_JSONPATH, jsonpath, pods_state},
    table::{FAULTS, RENEWED_DAYS, is_set_back},
};
use super::{Role, texts::Init};
use crate::core::health::Severity;

/// One thing that can go wrong.
#[derive(Debug)]
pub struct Fault {
    /// Stable name.
    pub id: &'static str,
    /// Part of k3s that it is of.
    pub part: Component,
    /// Severity, once it is left to a person.
    pub severity: Severity,
    /// Certainty of the detector.
    #[cfg_attr(
        not(feature = "internals"),
        expect(dead_code, reason = "docs/faults.md tells it")
    )]
    pub confidence: Confidence,
    /// Evidence, for people.
    #[cfg_attr(
        not(feature = "internals"),
        expect(dead_code, reason = "docs/faults.md tells it")
    )]
    pub from: &'static str,
    /// The judgement: an observation in one sentence, where the fault is there.
    pub detect: fn(&K3sState) -> Option<String>,
    /// Seconds that it must last before anything is done.
    pub grace_s: u32,
    /// The repair; `None`: a person decides.
    pub repair: Option<Repair>,
    /// Fix for a person.
    pub fix: &'static str,
}

/// Part of k3s. A fault of one explains what is wrong with those behind it.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Component {
    /// Service of the service manager.
    Service,
    /// API of this machine.
    Api,
    /// Node of this machine.
    Node,
    /// Certificates that end soon.
    Certificates,
    /// Datastore on the disk.
    Datastore,
    /// Firewall rules of this machine.
    Firewall,
    /// Images of archives.
    Images,
    /// Cluster DNS.
    Dns,
}

impl Component {
    /// Returns whether a fault of this part explains those of another one, so that they are not
    /// judged.
    pub fn explains(self, other: Self) -> bool {
        let stands_alone = matches!(other, Self::Datastore | Self::Firewall);
        self < other && self <= Self::Node && !stands_alone
    }
}

/// Certainty of a detector.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Confidence {
    /// Nothing else looks like it.
    Certain,
    /// Something else may look like it, and the repair does no harm then.
    Likely,
}

/// Repairs of k3s: the closed list of what happens without a person.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Repair {
    /// Start the service.
    Start,
    /// Restart the service.
    Restart,
    /// Restart the service, and have it import all archives of images.
    Import,
}

/// All of them.
#[cfg(feature = "internals")]
pub const REPAIRS: [Repair; 3] = [Repair::Start, Repair::Restart, Repair::Import];

impl Repair {
    /// The end of the name of such a change.
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Restart => "restart",
            Self::Import => "import",
        }
    }

    /// The action, for people.
    pub const fn does(self) -> &'static str {
        match self {
            Self::Start => "start k3s",
            Self::Restart => "restart k3s",
            Self::Import => "have k3s import its archives of images again",
        }
    }

    /// Things that it touches.
    #[cfg(feature = "internals")]
    pub const fn touches(self) -> &'static str {
        match self {
            Self::Start | Self::Restart => "the service k3s; Pods go on",
            Self::Import => {
                "the service k3s, images in containerd, and agent/images/.cache.json, which is emptied if it is there; Pods go on"
            }
        }
    }

    #[cfg(feature = "internals")]
    pub const fn undo(self) -> &'static str {
        match self {
            Self::Start => "none is needed; to stop it: sudo systemctl stop k3s",
            Self::Restart | Self::Import => "none is needed",
        }
    }

    /// Seconds from a try to the next, doubled by each failure.
    pub const fn back_off_s(self) -> u32 {
        match self {
            Self::Start | Self::Restart | Self::Import => 600,
        }
    }
}

/// A fix for the service manager and the part of the cluster that this machine has; in the table it
/// is that of a server with systemd.
pub fn fix(text: &str, init: Init, role: Role) -> String {
    let name = role.name();
    let mut text = text.replace("-u k3s ", &format!("-u {name} "));
    for verb in ["start", "stop", "restart", "status", "reset-failed"] {
        let known = format!("systemctl {verb} k3s");
        let own = match (init, verb) {
            (Init::Systemd, _) => format!("systemctl {verb} {name}"),
            (Init::OpenRc, "reset-failed") => format!("rc-service {name} zap"),
            (Init::OpenRc, _) => format!("rc-service {name} {verb}"),
        };
        text = text.replace(&known, &own);
    }
    if init == Init::OpenRc {
        for lines in ["50", "100"] {
            let log = format!("tail -n {lines} /var/log/k3s.log");
            text = text.replace(&format!("journalctl -u {name} -n {lines}"), &log);
        }
        text = text.replace("timedatectl set-ntp true", "rc-service chronyd start");
    }
    text
}

/// Checks of the doctor about k3s and what it stands on, which it tells of by itself: they are not
/// looked at twice.
#[cfg(feature = "internals")]
pub const OF_THE_DOCTOR: [&str; 12] = [
    "k3s.program",
    "k3s.config",
    "k3s.empty-files",
    "k3s.kubeconfig-mode",
    "network.iptables",
    "network.backends",
    "host.name",
    "host.machine-id",
    "disk.space",
    "disk.read-only",
    "clock.sync",
    "dns.pods",
];

/// The row of that name.
pub fn of(id: &str) -> Option<&'static Fault> {
    FAULTS.iter().find(|fault| fault.id == id)
}

#[cfg(test)]
mod tests;

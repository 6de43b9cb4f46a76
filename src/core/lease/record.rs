//! The Lease as the agents of a cluster use it: who holds the link, who stands by, and what each of
//! their writes changes.
//!
//! It carries no times: whoever reads it measures with a clock of its own.

use std::time::Duration;

/// Promise of a holder with rivals: within this time it renews, or has no link.
pub const SHORT: Duration = Duration::from_secs(12);
/// Promise of a holder without rivals: within this time it answers a rival that announces itself,
/// or has no link.
pub const LONG: Duration = Duration::from_secs(30);
/// A longer promise is not waited for.
const LONGEST: Duration = Duration::from_secs(300);
/// Agents that stand by in one Lease at most: 64 of them take 10 KB. One more would stand by
/// without saying so.
const STANDBY_MAX: usize = 64;

/// An agent that competes for the Lease.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Candidate {
    /// Tells it from all others, also from those that were given the same agent id: by their
    /// settings, or by the installation that they took over.
    pub id: String,
    /// Its agent id, for people.
    pub agent: String,
    /// The name of its host, for people.
    pub host: String,
}

impl Candidate {
    /// The words for people: `agent edge-1 on host pi-3`.
    pub fn words(&self) -> String {
        let agent = if self.agent.is_empty() {
            &self.id
        } else {
            &self.agent
        };
        match self.host.as_str() {
            "" => format!("agent {agent}"),
            host => format!("agent {agent} on host {host}"),
        }
    }
}

/// An agent that stands by.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Standby {
    /// The agent.
    pub party: Candidate,
    /// Changes whenever it says so again.
    pub beat: u64,
}

/// Content of the Lease.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Record {
    /// Resource version; a write names the version that it replaces.
    pub version: String,
    /// Holder of the link; `None` after an orderly stop.
    pub holder: Option<Candidate>,
    /// Changes whenever a holder writes.
    pub beat: u64,
    /// Promise of the holder: [`SHORT`] or [`LONG`].
    pub duration: Duration,
    /// Number of changes of the holder.
    pub transitions: u32,
    /// Id of this cluster at the control plane.
    pub cluster_id: Option<String>,
    /// The agent whose registration the control plane surely heard last: what it shows in place of
    /// a credential means something there only.
    pub registered: Option<String>,
    /// Agents that stand by.
    pub standby: Vec<Standby>,
}

impl Record {
    /// Returns whether this agent holds the link.
    pub fn is_held_by(&self, id: &str) -> bool {
        self.holder.as_ref().is_some_and(|holder| holder.id == id)
    }

    /// Returns whether its holder has no rivals, or did not see them yet.
    pub fn is_quiet(&self) -> bool {
        self.duration > SHORT
    }

    /// Time to wait for a holder without a sign of life. A value that no agent writes does not
    /// shorten it.
    pub fn patience(&self) -> Duration {
        if self.is_quiet() {
            self.duration.clamp(LONG, LONGEST)
        } else {
            SHORT
        }
    }

    /// Those that stand by, without this one.
    pub fn others(&self, id: &str) -> Vec<Standby> {
        let others = self.standby.iter().filter(|other| other.party.id != id);
        others.take(STANDBY_MAX).cloned().collect()
    }

    /// The beat under which this agent stands by.
    pub fn announced(&self, id: &str) -> Option<u64> {
        let mut all = self.standby.iter();
        all.find(|other| other.party.id == id)
            .map(|known| known.beat)
    }

    /// Held by `holder`, with these rivals; a new holder waits for nobody's old promise.
    pub(super) fn held(&self, holder: &Candidate, rivals: Vec<Standby>) -> Self {
        let is_new = !self.is_held_by(&holder.id);
        Self {
            version: self.version.clone(),
            holder: Some(holder.clone()),
            beat: self.beat.wrapping_add(1),
            duration: if rivals.is_empty() { LONG } else { SHORT },
            transitions: self.transitions.saturating_add(u32::from(is_new)),
            cluster_id: self.cluster_id.clone(),
            registered: self.registered.clone(),
            standby: rivals,
        }
    }

    /// With this agent among those that stand by; `None` where there are too many.
    pub(super) fn with(&self, party: &Candidate, beat: u64) -> Option<Self> {
        let mut standby = self.others(&party.id);
        if standby.len() >= STANDBY_MAX {
            return None;
        }
        standby.push(Standby {
            party: party.clone(),
            beat,
        });
        Some(Self {
            standby,
            ..self.clone()
        })
    }

    /// Without this agent, neither as its holder nor as one that stands by.
    pub(super) fn without(&self, id: &str) -> Self {
        let was_holder = self.is_held_by(id);
        Self {
            holder: self.holder.clone().filter(|_| !was_holder),
            beat: self.beat.wrapping_add(u64::from(was_holder)),
            standby: self.others(id),
            ..self.clone()
        }
    }
}

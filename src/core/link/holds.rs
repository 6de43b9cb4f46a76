//! Reasons to hold the link back because another agent has it or may have it, and what that agent
//! reports.

use crate::core::time::Now;

use super::{Link, Membership, Output, State};

/// For whose sake there is no link. Several may hold it at once, and each releases it for itself.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Holder {
    /// The Go agent, which runs in the cluster.
    GoAgent,
    /// Another agent of the same cluster; see [`crate::core::lease`].
    Lease,
}

impl Link {
    /// Returns whether there is no link for this one's sake.
    pub fn is_held_by(&self, holder: Holder) -> bool {
        self.holds.contains_key(&holder)
    }

    pub(super) fn suspend(&mut self, holder: Holder, why: String, now: Now) {
        self.holds.insert(holder, why);
        let why = self.held_why();
        if matches!(self.state, State::Held) {
            self.why = why;
            return;
        }
        self.end_socket("standing by");
        self.down(why.clone(), now);
        self.transition(State::Held, &why);
    }

    pub(super) fn release(&mut self, holder: Holder, now: Now) {
        self.holds.remove(&holder);
        if !matches!(self.state, State::Held) {
            return;
        }
        if self.holds.is_empty() {
            self.transition(State::Waiting { until: now.mono }, "the link is ours");
        } else {
            self.why = self.held_why();
        }
    }

    fn held_why(&self) -> String {
        let why = self.holds.first().map(|(_, why)| why.clone());
        why.unwrap_or_default()
    }

    /// A cluster that registered before registers as itself, whichever of its agents does. Only the
    /// id is believed: where the gateway is, the token's way, is said by the controller alone.
    pub(super) fn adopt_cluster_id(&mut self, cluster_id: String) {
        if self.membership.is_some() || cluster_id.is_empty() {
            return;
        }
        self.log(format!(
            "link: this cluster is known as {cluster_id} through another of its agents"
        ));
        let membership = Membership {
            cluster_uuid: cluster_id.clone(),
            cluster_id,
            gateway_url: None,
        };
        self.push(Output::Persist(membership.clone()));
        self.membership = Some(membership);
    }
}

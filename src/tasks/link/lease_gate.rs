//! Lease gate: permission to link, written by the task that talks to the cluster and read by the
//! uplink before it does anything.
//!
//! A permission expires by itself: no task has to run for it to end.

use std::cell::RefCell;

use crate::core::time::Mono;

/// Current permission.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Permission {
    /// No other agent shares the link.
    Always,
    /// A link until then, unless it is given again.
    Until(Mono),
    /// No link, because of this.
    Not(String),
}

/// The permit.
#[derive(Debug)]
pub struct LeaseGate {
    permission: RefCell<Permission>,
}

impl LeaseGate {
    /// A permit that begins like this.
    pub const fn new(permission: Permission) -> Self {
        Self {
            permission: RefCell::new(permission),
        }
    }

    /// From now on this is permitted. Returns what was before.
    pub fn set(&self, permission: Permission) -> Permission {
        self.permission.replace(permission)
    }

    /// Returns whether there may be a link now.
    pub fn is_open(&self, now: Mono) -> bool {
        match &*self.permission.borrow() {
            Permission::Always => true,
            Permission::Until(until) => now < *until,
            Permission::Not(_) => false,
        }
    }

    /// Returns why there may be none.
    pub fn why(&self) -> String {
        match &*self.permission.borrow() {
            Permission::Always | Permission::Until(_) => {
                "the lease of the link expired: this agent was stopped, or its cluster did not answer"
                    .to_owned()
            }
            Permission::Not(why) => why.clone(),
        }
    }

    /// Returns when an open permit ends; `None` where it does not, or has ended.
    pub fn until(&self, now: Mono) -> Option<Mono> {
        match &*self.permission.borrow() {
            Permission::Until(until) if now < *until => Some(*until),
            Permission::Always | Permission::Until(_) | Permission::Not(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_permit_ends_by_itself() {
        let at = |seconds| Mono::since_boot(Duration::from_secs(seconds));
        let lease_gate = LeaseGate::new(Permission::Not("not asked yet".to_owned()));
        assert!(!lease_gate.is_open(at(1)));
        assert_eq!(lease_gate.why(), "not asked yet");
        lease_gate.set(Permission::Until(at(5)));
        assert!(lease_gate.is_open(at(4)));
        assert_eq!(lease_gate.until(at(4)), Some(at(5)));
        assert!(!lease_gate.is_open(at(5)));
        assert!(lease_gate.why().contains("expired"));
        assert_eq!(lease_gate.until(at(5)), None);
    }
}

//! Lease gate: permission to link and to change apps, written by the task that talks to the
//! cluster; the uplink reads it before it does anything, and apps before each write.
//!
//! A permission expires by itself: no task has to run for it to end.

use std::cell::RefCell;

use smol::{
    channel::{Receiver, Sender, bounded},
    future::{self, FutureExt as _},
};

use crate::{
    core::time::Mono,
    error::{Error, Result, Retry},
    host::clock,
};

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

/// Permission with a signal of its changes.
#[derive(Debug)]
pub struct LeaseGate {
    permission: RefCell<Permission>,
    /// Signal of a change, for the task that waits for one.
    changes: (Sender<()>, Receiver<()>),
}

impl LeaseGate {
    /// Creates a gate with this permission.
    pub fn new(permission: Permission) -> Self {
        Self {
            permission: RefCell::new(permission),
            changes: bounded(1),
        }
    }

    /// Replaces the permission, and returns the previous one.
    pub fn set(&self, permission: Permission) -> Permission {
        let before = self.permission.replace(permission);
        // A signal that waits already says the same.
        self.changes.0.try_send(()).ok();
        before
    }

    /// Waits until the permission was replaced or expired. For one task.
    pub async fn changed(&self, now: Mono) {
        let given = async {
            // It is never closed: both ends are here.
            self.changes.1.recv().await.ok();
        };
        let ended = async {
            match self.until(now) {
                Some(until) => clock::until(until).await,
                None => future::pending().await,
            }
        };
        given.or(ended).await;
    }

    /// Refuses what only the agent with the lease may do.
    ///
    /// # Errors
    /// Reason why this agent may not.
    pub fn check(&self, now: Mono) -> Result<()> {
        if self.is_open(now) {
            return Ok(());
        }
        Err(Error::new("this agent changes no apps now")
            .why(self.why())
            .fix("apps are changed on the machine whose agent holds the link; pipeops-agent status shows the link of this one")
            .retry(Retry::Soon))
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

    /// Returns when the permission ends; `None` where it does not, or has ended.
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
    fn a_permission_expires() {
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

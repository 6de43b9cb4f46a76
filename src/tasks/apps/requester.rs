//! Requesters of changes, and whose apps they may change.

use super::ledger::AppRecord;
use crate::{
    core::{
        apps::{App, Owner, Source},
        command::Command,
        rollout::RolloutVerdict,
    },
    error::{Error, Result},
};

/// Requester of a change.
#[derive(Clone, Debug)]
pub struct Requester {
    /// Name in the audit and in the history.
    pub by: String,
    /// Owner whose authority the change has.
    pub owner: Owner,
    /// True for root on this machine, by the command line: nobody else has objects of the whole
    /// cluster created.
    pub is_root: bool,
    /// The command that asks for it; `None`: somebody on this machine, or a repository.
    pub command: Option<Command>,
}

/// Submission of a version: its requester, and its origin.
#[derive(Debug)]
pub(super) struct Submission<'a> {
    pub(super) requester: &'a Requester,
    pub(super) origin: Origin,
}

/// Origin of a version, and what it means for the source of its app.
#[derive(Debug)]
pub(super) enum Origin {
    /// Manifests: the app has no source from then on.
    Manifests,
    /// A source, which the app has from then on.
    Source(Source),
    /// The source that the app has, which has something new: why it was asked. Not taken any more
    /// where it was changed while it answered.
    Update(Source, Trigger),
    /// A version that there is: the app keeps the source that it has.
    Known,
}

/// Trigger of a poll.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Trigger {
    /// A person's request: what failed is tried again.
    ByPerson { prune_most: bool },
    /// Time has passed.
    ByTime,
}

impl Trigger {
    /// Returns whether what was taken last is tried again: a person asks, and it does not run,
    /// because it was bad or somebody went back.
    pub(super) fn retries(self, app: &App) -> bool {
        let is_unsettled = app.revisions.last().is_none_or(|last| {
            last.number != app.running || last.outcome.verdict == Some(RolloutVerdict::Bad)
        });
        self != Self::ByTime && is_unsettled
    }
}

impl Requester {
    /// Somebody on this machine.
    pub fn here(by: &str) -> Self {
        Self {
            by: by.to_owned(),
            owner: Owner::Machine,
            is_root: false,
            command: None,
        }
    }

    /// The control plane.
    pub fn commanding(command: &Command) -> Self {
        Self {
            by: Owner::ControlPlane.as_str().to_owned(),
            owner: Owner::ControlPlane,
            is_root: false,
            command: Some(command.clone()),
        }
    }

    /// The repository of an app, which has the authority of who set it.
    pub(super) fn repository(by: &str, owner: Owner) -> Self {
        Self {
            owner,
            ..Self::here(by)
        }
    }

    /// Reason of the permission in the audit.
    pub(super) fn why(&self) -> String {
        match (&self.command, self.owner) {
            (Some(command), _) => format!("the command {}", command.id),
            (None, Owner::ControlPlane) => "asked for by the control plane".to_owned(),
            (None, Owner::Machine) => "asked for on this machine".to_owned(),
        }
    }

    /// Refuses the app of somebody else.
    pub(super) fn owns(&self, read: &AppRecord) -> Result<()> {
        let app = &read.app.name;
        match (read.app.owner, self.owner) {
            (Owner::Machine, Owner::Machine) | (Owner::ControlPlane, Owner::ControlPlane) => Ok(()),
            // Its record is about to be made.
            _ if read.app.revisions.is_empty() => Ok(()),
            (Owner::Machine, Owner::ControlPlane) => Err(Error::new(format!(
                "{app} is not changed"
            ))
            .why("it was deployed on the machine, by its owner")
            .fix(format!(
                "use another name, or have it removed there: sudo pipeops-agent apps remove {app}"
            ))),
            (Owner::ControlPlane, Owner::Machine) => Err(Error::new(format!(
                "{app} is not changed"
            ))
            .why("it comes from the control plane")
            .fix(format!(
                "change it there, or take it over: sudo pipeops-agent apps deploy {app} --git none"
            ))),
        }
    }
}

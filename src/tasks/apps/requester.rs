//! Requesters of changes, and whose apps they may change.

use super::{
    change::{Plan, Verb},
    ledger::AppRecord,
};
use crate::{
    core::{
        apps::{App, Owner, Source},
        command::Command,
        rollout::RolloutVerdict,
    },
    error::{Error, Result, Retry},
};

/// Requester of a change.
#[derive(Clone, Debug)]
pub struct Requester {
    /// Name in the audit.
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
    /// True if it only changes some of what there was when it was read: it is refused where another
    /// version was accepted since, which it would take back.
    pub(super) is_partial: bool,
}

impl Submission<'_> {
    /// Refuses a version that would take back what was accepted since `next`, the number of the
    /// next revision then, or end a removal although nobody means to deploy the app anew.
    pub(super) fn may_follow(&self, app: &App, next: u64) -> Result<()> {
        let is_meant = match &self.origin {
            Origin::Manifests | Origin::Source(_) => true,
            Origin::Update(_, reason) => *reason != Trigger::ByTime,
            Origin::Known => false,
        };
        let plan = app.under_way().and_then(|last| Plan::read(&last.body));
        let is_being_removed = plan.is_some_and(|plan| plan.verb == Verb::Remove);
        let why = if is_being_removed && !is_meant {
            "it is being removed"
        } else if self.is_partial && app.next_number() != next {
            "another version of it was accepted meanwhile"
        } else {
            return Ok(());
        };
        Err(Error::new(format!("{} was not changed", app.name))
            .why(why)
            .fix(format!(
                "pipeops-agent apps why {}, then try again",
                app.name
            ))
            .retry(Retry::Soon))
    }
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
    /// Returns whether what was taken last is tried again: its change ended before it was judged,
    /// or a person asks, and it does not run, because it was bad or somebody went back.
    pub(super) fn retries(self, app: &App) -> bool {
        let last = app.revisions.last();
        let verdict = last.and_then(|last| last.outcome.verdict);
        let is_unjudged = verdict == Some(RolloutVerdict::Waiting) && app.under_way().is_none();
        let is_unsettled = verdict == Some(RolloutVerdict::Bad)
            || last.is_none_or(|last| last.number != app.running);
        is_unjudged || (self != Self::ByTime && is_unsettled)
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

    /// Name in the history: a process of this machine is gone by the time that it is read, so its
    /// user is named.
    pub(super) fn person(&self) -> &str {
        match self.by.split_once(", pid ") {
            Some(("uid 0", _)) => "root",
            Some((user, _)) => user,
            None => &self.by,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::apps::{LastChange, Revision, Upstream};

    #[test]
    fn what_only_changes_some_of_a_version_does_not_take_back_one_that_came_since() {
        let requester = Requester::here("root");
        let submission = |origin, is_partial| Submission {
            requester: &requester,
            origin,
            is_partial,
        };
        let mut app = App::default();
        app.revisions.push(Revision {
            number: 3,
            ..Revision::default()
        });
        assert!(submission(Origin::Known, true).may_follow(&app, 4).is_ok());
        let refused = submission(Origin::Known, true).may_follow(&app, 3);
        assert!(refused.unwrap_err().sentence().contains("meanwhile"));
        assert!(
            submission(Origin::Manifests, true)
                .may_follow(&app, 3)
                .is_err()
        );
        // Whole manifests take the place of whatever there is.
        assert!(
            submission(Origin::Manifests, false)
                .may_follow(&app, 3)
                .is_ok()
        );
    }

    #[test]
    fn time_alone_ends_no_removal() {
        let requester = Requester::here("root");
        let source = Source {
            upstream: Upstream::Folder("web".to_owned()),
            taken: String::new(),
        };
        let plan = |verb: Verb| Plan {
            app: "web".to_owned(),
            owner: Owner::Machine,
            command: None,
            verb,
            revision: 1,
            before: 0,
            back_to: 0,
        };
        let refused = |verb: Verb, origin: Origin| {
            let app = App {
                change: Some(LastChange {
                    body: plan(verb).written(),
                    ..LastChange::default()
                }),
                ..App::default()
            };
            let submission = Submission {
                requester: &requester,
                origin,
                is_partial: false,
            };
            submission.may_follow(&app, 1).is_err()
        };
        let by_person = Trigger::ByPerson { prune_most: false };
        assert!(refused(
            Verb::Remove,
            Origin::Update(source.clone(), Trigger::ByTime)
        ));
        assert!(refused(Verb::Remove, Origin::Known));
        assert!(!refused(
            Verb::Remove,
            Origin::Update(source.clone(), by_person)
        ));
        assert!(!refused(Verb::Remove, Origin::Manifests));
        assert!(!refused(
            Verb::Apply,
            Origin::Update(source, Trigger::ByTime)
        ));
    }

    #[test]
    fn a_version_that_was_never_judged_is_tried_again() {
        let mut app = App {
            running: 1,
            ..App::default()
        };
        app.revisions.push(Revision {
            number: 1,
            ..Revision::default()
        });
        let mut judged = |verdict| {
            app.revisions[0].outcome.verdict = Some(verdict);
            Trigger::ByTime.retries(&app)
        };
        assert!(judged(RolloutVerdict::Waiting));
        assert!(!judged(RolloutVerdict::Good) && !judged(RolloutVerdict::Bad));
        app.change = Some(LastChange::default());
        app.revisions[0].outcome.verdict = Some(RolloutVerdict::Waiting);
        assert!(!Trigger::ByTime.retries(&app));
    }

    #[test]
    fn the_history_names_people_and_no_processes() {
        let person = |by: &str| Requester::here(by).person().to_owned();
        assert_eq!(person("uid 0, pid 2857"), "root");
        assert_eq!(person("uid 1000, pid 2857"), "uid 1000");
        let session = "session 3f2a (operator), from 192.0.2.7";
        assert_eq!(person(session), session);
    }
}

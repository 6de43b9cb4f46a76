//! Cancellation of the change of an app that is under way.

use std::rc::Rc;

use serde_json::{Value, json};

use super::{
    Apps, Requester,
    change::{Plan, Start, Verb},
    charts::without_charts,
    ledger::{AppRecord, api_error},
};
use crate::{
    core::{
        apps::{App, RevisionOutcome, Stage},
        rollout::RolloutVerdict,
    },
    error::{Error, Result},
};

/// State of a change of which nothing goes back, in the API.
pub(super) const CANCELLED: &str = "cancelled";

impl Apps {
    /// Cancels the change of an app that is under way: one that is not written yet is dropped, any
    /// other goes back to the last good version, and stays where there is none.
    ///
    /// # Errors
    /// Reason why nothing was changed.
    pub async fn cancel(self: Rc<Self>, app: &str, requester: &Requester) -> Result<Value> {
        self.require_leadership().await?;
        let (apps, name, requester) = (Rc::clone(&self), app.to_owned(), requester.clone());
        let cancelled = async move { Box::pin(apps.begin_cancel(&name, &requester)).await };
        self.with_app_lock(app, cancelled).await
    }

    async fn begin_cancel(self: Rc<Self>, app: &str, requester: &Requester) -> Result<Value> {
        let read = self.require_record(app).await?;
        requester.owns(&read)?;
        self.may_change(&read).await?;
        cancellable(&read.app)?;
        let stopped = self.stop(app).await?;
        let (id, plan) = stopped.ok_or_else(|| nothing(app))?;
        let ended = Rc::clone(&self)
            .end_cancelled((&id, &plan), requester)
            .await;
        if ended.is_err() {
            self.start(&id, plan, Start::Again)?;
        }
        ended
    }

    /// Ends a change that was stopped.
    async fn end_cancelled(
        self: Rc<Self>,
        (id, plan): (&str, &Plan),
        requester: &Requester,
    ) -> Result<Value> {
        // It may have gone on until it was stopped.
        let mut read = self.require_record(&plan.app).await?;
        cancellable(&read.app)?;
        let why = format!(
            "revision {} was cancelled by {}",
            plan.revision,
            requester.person()
        );
        if plan.verb == Verb::Apply
            && let Some(revision) = read.app.revision_mut(plan.revision)
        {
            revision.outcome = RevisionOutcome {
                verdict: Some(RolloutVerdict::Bad),
                sentence: why.clone(),
                since: self.now().wall,
                ..RevisionOutcome::default()
            };
        }
        if read.app.running != plan.revision {
            let adopted = read.app.adopted();
            read.app.forget(&adopted);
            let why = format!("{why} before anything of it was written");
            return self.drop_change((id, plan), (read, &why), requester).await;
        }
        let good = read.app.good;
        if good == 0 || good == plan.revision {
            let why = format!("{why}, and stays as it is, because no other version was good");
            return self.drop_change((id, plan), (read, &why), requester).await;
        }
        let kept = self.ledger().manifests(&plan.app, good).await;
        let kept = kept.map_err(api_error)?.unwrap_or_default();
        if !requester.is_root {
            without_charts(&read.app, &kept)?;
        }
        self.check_chart_namespace(&kept).await?;
        let back = Plan {
            command: requester.command.clone(),
            verb: Verb::Rollback,
            revision: good,
            before: plan.revision,
            back_to: 0,
            ..plan.clone()
        };
        let accepted = self.begin_noted((back, read), None, requester).await?;
        self.end_stopped(id, &why).await;
        let answer = json!({
            "app": plan.app, "change": accepted.id, "revision": good, "state": "accepted",
            "sentence": format!("{why}, and revision {good} is put back"),
        });
        let back = accepted.plan.clone();
        Rc::clone(&self).start(&accepted.id, back, Start::New)?;
        Ok(answer)
    }

    /// Ends a change of which nothing goes back.
    async fn drop_change(
        &self,
        (id, plan): (&str, &Plan),
        (mut read, why): (AppRecord, &str),
        requester: &Requester,
    ) -> Result<Value> {
        let write = async { self.ledger().write(&mut read).await };
        self.audited(
            (requester, &format!("cancel the change of app {}", plan.app)),
            write,
        )
        .await?;
        // The journal comes first: a record that says that it is over speaks of a change that
        // worked, or was rolled back.
        self.end_stopped(id, why).await;
        read.app.set_stage(id, Stage::Over);
        if let Err(error) = self.ledger().write(&mut read).await {
            // The next start sees in the journal that it is over.
            log::warn!("app {}: {}", plan.app, error.sentence());
        }
        self.remember(&read.app);
        self.drift.wake();
        Ok(json!({
            "app": plan.app, "change": id, "revision": plan.revision, "state": CANCELLED, "sentence": why,
        }))
    }
}

/// Refuses to cancel what is not under way, or no longer to be stopped.
fn cancellable(app: &App) -> Result<()> {
    let name = &app.name;
    let last = app.under_way().ok_or_else(|| nothing(name))?;
    let plan = Plan::read(&last.body);
    let why = match (plan.map(|plan| plan.verb), last.stage) {
        (Some(Verb::Remove), _) => "it is being removed, and is not whole any more",
        (_, Stage::Back) => "it goes back to its last good version already",
        (_, Stage::Prune) => "its new version is good already",
        (_, Stage::Write | Stage::Judge | Stage::Over) => return Ok(()),
    };
    Err(
        Error::new(format!("the change of {name} cannot be cancelled"))
            .why(why)
            .fix(format!("pipeops-agent apps why {name}")),
    )
}

fn nothing(app: &str) -> Error {
    Error::new(format!("no change of {app} is under way")).fix(format!(
        "to put an earlier version back: sudo pipeops-agent apps rollback {app}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::apps::LastChange;

    #[test]
    fn only_what_is_written_or_judged_is_cancelled() {
        let of = |verb: &str, stage: Stage| App {
            name: "web".to_owned(),
            change: Some(LastChange {
                body: json!({"app": "web", "verb": verb, "revision": 2, "before": 1, "back_to": 1})
                    .to_string(),
                stage,
                ..LastChange::default()
            }),
            ..App::default()
        };
        for verb in ["apply", "rollback"] {
            for stage in [Stage::Write, Stage::Judge] {
                assert_eq!(cancellable(&of(verb, stage)), Ok(()));
            }
        }
        for (verb, stage, why) in [
            ("remove", Stage::Write, "being removed"),
            ("apply", Stage::Back, "goes back"),
            ("apply", Stage::Prune, "good already"),
            ("apply", Stage::Over, "no change of web is under way"),
        ] {
            let error = cancellable(&of(verb, stage)).unwrap_err();
            assert!(error.sentence().contains(why), "{error:?}");
        }
    }
}

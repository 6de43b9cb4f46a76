//! Acceptance of a request: everything is tried, the intent is on disk and the content kept before
//! it becomes a change.

use std::{collections::BTreeSet, rc::Rc, time::Duration};

use serde_json::{Value, json};
use smol::Timer;

use super::{
    Apps,
    change::{Plan, Verb},
    charts::without_charts,
    check_name, fail_points,
    ledger::{AppRecord, api_error},
    problem_error,
    requester::{Origin, Requester, Submission},
    source::still_follows,
};
use crate::{
    core::{
        apps::{
            App, InventoryEntry, Manifest, Overlay, Owner, Revision, RevisionOutcome, judged,
            objects, refused_namespace, take_values,
        },
        audit::{AuditDecision, AuditEntry, Effect},
        journal::{Change, ChangeEnd, Intent, Journal, Outcome},
        order::GatherExt as _,
        verdict::sentences,
    },
    error::{Error, Result, Retry},
    host::random,
    kube::query_escaped,
    store::Begun,
    wire::apps::ApplyRequest,
};

/// Apps of each owner. Their records are all read at a start and stay in memory, 1 KB for each ten
/// objects.
const MACHINE_APPS_MAX: usize = 500;
const CONTROL_PLANE_APPS_MAX: usize = 250;

/// Time that removing waits for objects to be gone.
const GONE_WITHIN: Duration = Duration::from_secs(10);

/// A change that was accepted: its intent is on disk, and the record of the app has it.
pub(super) struct Accepted {
    pub(super) id: String,
    pub(super) plan: Plan,
    /// The record of the app, as it is from then on.
    read: AppRecord,
}

impl Accepted {
    fn answer(&self, notice: Option<&str>) -> Value {
        let Self { id, plan, .. } = self;
        let sentence = format!("revision {} is being deployed", plan.revision);
        json!({"app": plan.app, "change": id, "revision": plan.revision, "state": "accepted", "sentence": sentence, "notice": notice})
    }
}

impl Apps {
    /// Deploys manifests. Returns when the intent and the content are kept; the rest goes on by
    /// itself.
    ///
    /// # Errors
    /// Reason why nothing was changed.
    pub async fn apply(
        self: Rc<Self>,
        request: &ApplyRequest,
        requester: &Requester,
    ) -> Result<Value> {
        self.require_leadership().await?;
        let found = self.record(&request.app).await?;
        if let Some(read) = &found {
            requester.owns(read)?;
            if requester.owner == Owner::Machine {
                Self::refuse_if_sourced(read)?;
            }
        }
        let submission = Submission {
            requester,
            origin: Origin::Manifests,
            is_partial: false,
        };
        Box::pin(self.deploy_manifests(request, submission)).await
    }

    /// Deploys manifests of any origin.
    pub(super) async fn deploy_manifests(
        self: Rc<Self>,
        request: &ApplyRequest,
        submission: Submission<'_>,
    ) -> Result<Value> {
        let (manifests, namespace, staged) = self.read(request, Some(submission.requester)).await?;
        let mut read = self.record_or_new(&request.app, &namespace).await?;
        read.app.stage(&staged);
        submission.requester.owns(&read)?;
        check_replacement(&read.app, &manifests, request)?;
        let running = read.app.running;
        let mut overlay = read.app.overlay(running);
        overlay.fit(&manifests);
        if running != 0 {
            let before = self.ledger().manifests(&request.app, running).await;
            let before = before.map_err(api_error)?.unwrap_or_default();
            overlay.reconfigure(&before, &manifests, self.now().wall);
        }
        if request.adopt {
            self.adopt(&mut read.app, &manifests).await?;
        }
        let adopted = read.app.adopted();
        let requester = submission.requester;
        let accept = Rc::clone(&self).accept(read, (manifests, overlay), submission);
        if adopted.is_empty() {
            return accept.await;
        }
        let names: Vec<_> = adopted
            .iter()
            .map(|entry| entry.in_words(&namespace))
            .collect();
        let what = format!("adopt into app {}: {}", request.app, names.join(", "));
        self.audited((requester, &what), accept).await
    }

    /// Takes objects of others into the inventory of an app.
    pub(super) async fn adopt(&self, app: &mut App, manifests: &[Manifest]) -> Result<()> {
        let apps = self.ledger().list().await.map_err(api_error)?;
        let cluster = self.cluster(app.owner);
        let others = apps.iter().filter(|other| other.name != app.name);
        let taken = others
            .flat_map(|other| &other.inventory)
            .map(|entry| entry.uid.clone());
        let taken: BTreeSet<_> = taken.gather();
        cluster.adopt(app, manifests, &taken).await
    }

    /// Accepts a new revision once everything was tried, the intent is on disk and the content
    /// kept.
    pub(super) async fn accept(
        self: Rc<Self>,
        mut read: AppRecord,
        (manifests, overlay): (Vec<Manifest>, Overlay),
        submission: Submission<'_>,
    ) -> Result<Value> {
        let (app, namespace) = (read.app.name.clone(), read.app.namespace.clone());
        let requester = submission.requester;
        requester.owns(&read)?;
        submission.may_deploy(&read.app, &manifests)?;
        if read.app.revisions.is_empty() {
            read.app.owner = requester.owner;
            self.has_namespace(&namespace, requester.owner).await?;
        }
        self.check_chart_namespace(&manifests).await?;
        let notice = self.unencrypted_notice(&read.app, &manifests);
        let cluster = self.cluster(requester.owner);
        let mut applied = manifests.clone();
        overlay.apply(&mut applied);
        cluster.only_ours(&mut read.app, &applied).await?;
        // What stays as it is need not be possible.
        applied.retain(|manifest| !overlay.keeps(manifest));
        cluster.dry_run(&read.app, &applied).await?;
        let is_new = |entry: &&InventoryEntry| entry.is_adopted || entry.is_staged();
        let adopted: Vec<_> = read.app.inventory.iter().filter(is_new).cloned().collect();
        let apps = Rc::clone(&self);
        let (requester, origin) = (requester.clone(), submission.origin);
        let is_partial = submission.is_partial;
        let next = read.app.next_number();
        let parts = (manifests, overlay);
        self.with_app_lock(&app.clone(), async move {
            let submission = Submission {
                requester: &requester,
                origin,
                is_partial,
            };
            let names = (app.as_str(), namespace.as_str());
            let accepted = Box::pin(apps.accept_tried(names, (parts, adopted, next), submission));
            apps.has_room(&app, requester.owner)?;
            let why = "another version was deployed";
            let accepted = Rc::clone(&apps).supersede(&app, why, accepted).await?;
            Ok(accepted.answer(notice))
        })
        .await
    }

    /// Notice for the first version of an app that has a Secret, where root's watch of k3s knows
    /// that the datastore keeps it as it is.
    fn unencrypted_notice(&self, app: &App, manifests: &[Manifest]) -> Option<&'static str> {
        let has_secret = manifests.iter().any(|it| it.kind.name == "Secret");
        let had_one = app.inventory.iter().any(|it| it.kind == "Secret");
        let seen = self.shared_state.k3s.borrow();
        let is_encrypted = seen.as_ref()?.encrypts_secrets?;
        (has_secret && !had_one && !is_encrypted).then_some(sentences::SECRETS_UNENCRYPTED)
    }

    /// Accepts a new revision that was tried.
    async fn accept_tried(
        &self,
        (app, namespace): (&str, &str),
        ((manifests, overlay), adopted, next): ((Vec<Manifest>, Overlay), Vec<InventoryEntry>, u64),
        submission: Submission<'_>,
    ) -> Result<Accepted> {
        // It may have been written since.
        let mut read = self.record_or_new(app, namespace).await?;
        submission.may_deploy(&read.app, &manifests)?;
        submission.may_follow(&read.app, next)?;
        let Submission {
            requester, origin, ..
        } = submission;
        requester.owns(&read)?;
        if read.app.revisions.is_empty() {
            let owners = self.known.borrow();
            check_app_quota(app, owners.values().map(|app| app.owner), requester.owner)?;
            drop(owners);
            read.app.owner = requester.owner;
        }
        let (adopted, staged): (Vec<_>, Vec<_>) =
            adopted.into_iter().partition(|entry| entry.is_adopted);
        let number = read.app.next_number();
        for entry in &adopted {
            read.app.adopt(entry, &entry.uid, number);
        }
        read.app.stage(&staged);
        match origin {
            Origin::Manifests => {
                if read.app.source.take().is_some() {
                    self.clear_failure(app);
                }
            }
            Origin::Source(source) => read.app.source = Some(source),
            Origin::Update(source, reason) => {
                still_follows(&read.app, &source, reason)?;
                read.app.source = Some(source);
            }
            Origin::Known => {}
        }
        let revision = Revision {
            number,
            at: self.now().wall,
            by: requester.person().to_owned(),
            overlay,
            outcome: RevisionOutcome::default(),
            took_s: 0,
        };
        let plan = Plan {
            app: app.to_owned(),
            owner: requester.owner,
            command: requester.command.clone(),
            verb: Verb::Apply,
            revision: revision.number,
            before: read.app.running,
            back_to: read.app.good,
        };
        let content = Some((revision, manifests.as_slice()));
        self.begin_noted((plan, read), content, requester).await
    }

    /// The manifests of a request, with their namespace: the one that is named, else that of the
    /// app. With what comes before them, which is created where somebody asks for it.
    pub(super) async fn read(
        &self,
        request: &ApplyRequest,
        requester: Option<&Requester>,
    ) -> Result<(Vec<Manifest>, String, Vec<InventoryEntry>)> {
        check_name(&request.app)?;
        let given = if request.namespace.is_empty() {
            self.record(&request.app)
                .await?
                .map(|read| read.app.namespace)
        } else {
            Some(request.namespace.clone())
        };
        let mut objects = objects(&request.manifests).map_err(problem_error)?;
        let parts = (request.app.as_str(), &mut objects, given.as_deref());
        let staged = Box::pin(self.stage(parts, requester)).await?;
        let owner = requester.map_or(Owner::Machine, |requester| requester.owner);
        let customs = self.customs(&objects, owner).await?;
        let manifests = judged(objects, given.as_deref(), &customs).map_err(problem_error)?;
        let first = manifests.first();
        let namespace = first
            .map(|manifest| manifest.namespace.clone())
            .unwrap_or_default();
        self.allowed(&namespace)?;
        Ok((manifests, namespace, staged))
    }

    /// Refuses the namespaces of the cluster and of the agent.
    pub(super) fn allowed(&self, namespace: &str) -> Result<()> {
        match refused_namespace(namespace, self.account(Owner::Machine).own_namespace()) {
            Some(why) => Err(Error::new("nothing was deployed")
                .why(why)
                .fix("use a separate namespace for the app")),
            None => Ok(()),
        }
    }

    /// Refuses a namespace that is not there. Where that cannot be said, the dry run says what is
    /// wrong.
    async fn has_namespace(&self, namespace: &str, owner: Owner) -> Result<()> {
        if !self.is_namespace_gone(namespace).await {
            return Ok(());
        }
        let binding = self.account(owner).binding_command(namespace);
        Err(Error::new("nothing was deployed")
            .why(format!("there is no namespace {namespace}"))
            .fix(format!("kubectl create namespace {namespace} && {binding}")))
    }

    /// Returns whether a namespace is known not to be there.
    pub(super) async fn is_namespace_gone(&self, namespace: &str) -> bool {
        let path = format!("/api/v1/namespaces/{}", query_escaped(namespace));
        let found = self.client.get::<Value>(&path).await;
        found.is_err_and(|error| error.is_not_found())
    }

    /// Refuses what the policy would not let happen to an app.
    pub(super) async fn may_change(&self, read: &AppRecord) -> Result<()> {
        let App {
            name,
            namespace,
            owner,
            ..
        } = &read.app;
        self.account(*owner).may_change((namespace, name)).await
    }

    pub(super) async fn record_or_new(&self, app: &str, namespace: &str) -> Result<AppRecord> {
        let found = self.record(app).await?;
        Ok(found.unwrap_or_else(|| AppRecord::new(app, namespace)))
    }

    /// Puts an earlier revision back: `to`, or the last good one.
    ///
    /// # Errors
    /// Reason why nothing was changed.
    pub async fn rollback(
        self: Rc<Self>,
        app: &str,
        to: u64,
        requester: &Requester,
    ) -> Result<Value> {
        self.require_leadership().await?;
        let (apps, name, requester) = (Rc::clone(&self), app.to_owned(), requester.clone());
        self.with_app_lock(app, async move {
            Box::pin(apps.begin_rollback(&name, to, &requester)).await
        })
        .await
    }

    async fn begin_rollback(
        self: Rc<Self>,
        app: &str,
        to: u64,
        requester: &Requester,
    ) -> Result<Value> {
        let read = self.require_record(app).await?;
        requester.owns(&read)?;
        self.may_change(&read).await?;
        let running = read.app.running;
        let to = match to {
            0 => read.app.rollback_target(),
            to => to,
        };
        if to == 0 || read.app.revision(to).is_none() {
            return Err(Error::new("nothing was changed")
                .why(match to {
                    0 => "no earlier revision was good".to_owned(),
                    to => format!("there is no revision {to}"),
                })
                .fix(format!("pipeops-agent apps history {app}")));
        }
        let kept = self.ledger().manifests(app, to).await.map_err(api_error)?;
        let kept = kept.unwrap_or_default();
        if !requester.is_root {
            without_charts(&read.app, &kept)?;
        }
        self.check_chart_namespace(&kept).await?;
        let plan = Plan {
            app: app.to_owned(),
            owner: requester.owner,
            command: requester.command.clone(),
            verb: Verb::Rollback,
            revision: to,
            before: running,
            // Who asks for a version keeps it.
            back_to: 0,
        };
        let acceptance = async {
            // It may have been written since.
            let read = self.require_record(app).await?;
            requester.owns(&read)?;
            self.keep_secrets(&read.app, to).await?;
            self.begin_noted((plan, read), None, requester).await
        };
        let why = "it was rolled back";
        let accepted = Rc::clone(&self)
            .supersede(app, why, Box::pin(acceptance))
            .await?;
        Ok(accepted.answer(None))
    }

    /// Has a revision, to which an app goes back, keep the Secrets of today. Its own values may be
    /// revoked by now, and nobody goes back to them from here on.
    async fn keep_secrets(&self, app: &App, to: u64) -> Result<()> {
        let today = app.secrets_revision();
        if today == to || to == app.running {
            return Ok(());
        }
        let today = self.ledger().manifests(&app.name, today).await;
        let kept = self.ledger().manifests(&app.name, to).await;
        let (today, kept) = (today.map_err(api_error)?, kept.map_err(api_error)?);
        let mut kept = kept.unwrap_or_default();
        if take_values(&mut kept, &today.unwrap_or_default()) {
            self.ledger().keep(&app.name, to, &kept).await?;
        }
        Ok(())
    }

    /// Deletes an app: everything that is ours but claims, which hold data. Waits a while for it;
    /// after that it goes on by itself.
    ///
    /// # Errors
    /// Reason why it is still there.
    pub async fn remove(self: Rc<Self>, app: &str, requester: &Requester) -> Result<Value> {
        let (id, read) = Rc::clone(&self).start_removal(app, requester).await?;
        let deadline = self.now().mono.after(GONE_WITHIN);
        while let Some(left) = self.under_way(app, &id) {
            if self.now().mono >= deadline {
                return Err(Error::new(format!("{app} is not removed yet"))
                    .why(left.sentence)
                    .fix(format!(
                        "the removal then continues automatically: pipeops-agent apps why {app}"
                    ))
                    .retry(Retry::Later));
            }
            Timer::after(Duration::from_millis(200)).await;
        }
        check_removed(app, self.last_change(app).await)?;
        let stays = |entry: &&InventoryEntry| entry.is_kept() || entry.is_adopted;
        let kept = read.app.inventory.iter().filter(stays);
        let kept: Vec<_> = kept
            .map(|entry| entry.in_words(&read.app.namespace))
            .collect();
        Ok(json!({"app": app, "state": "removed", "kept": kept}))
    }

    /// Begins to delete an app. Returns the id of the change, and the record as it was.
    pub(super) async fn start_removal(
        self: Rc<Self>,
        app: &str,
        requester: &Requester,
    ) -> Result<(String, AppRecord)> {
        self.require_leadership().await?;
        let (apps, name, requester) = (Rc::clone(&self), app.to_owned(), requester.clone());
        let begun = async move { Box::pin(apps.begin_removal(&name, &requester)).await };
        self.with_app_lock(app, begun).await
    }

    async fn begin_removal(
        self: Rc<Self>,
        app: &str,
        requester: &Requester,
    ) -> Result<(String, AppRecord)> {
        let read = self.require_record(app).await?;
        requester.owns(&read)?;
        if !requester.is_root {
            without_charts(&read.app, &[])?;
        }
        self.refuse_if_in_folder(&read.app).await?;
        self.may_change(&read).await?;
        let acceptance = async {
            // It may have been written since.
            let read = self.require_record(app).await?;
            requester.owns(&read)?;
            let plan = Plan {
                app: app.to_owned(),
                owner: requester.owner,
                command: requester.command.clone(),
                verb: Verb::Remove,
                revision: read.app.running,
                before: 0,
                back_to: 0,
            };
            self.begin_noted((plan, read), None, requester).await
        };
        let why = "the app was removed";
        let accepted = Rc::clone(&self)
            .supersede(app, why, Box::pin(acceptance))
            .await?;
        Ok((accepted.id, accepted.read))
    }

    /// Writes an intent, keeps the content of a new revision, and notes both in the record, for the
    /// agent that may have to go on.
    pub(super) async fn begin_noted(
        &self,
        (plan, mut read): (Plan, AppRecord),
        content: Option<(Revision, &[Manifest])>,
        requester: &Requester,
    ) -> Result<Accepted> {
        let id = self.begin(&plan, requester).await?;
        read.app.change = Some(plan.last_change(&id, &requester.by));
        let mut gone = Vec::new();
        let kept = async {
            if let Some((revision, manifests)) = content {
                let number = revision.number;
                self.ledger.keep(&plan.app, number, manifests).await?;
                read.app.revisions.push(revision);
                // Also where none becomes good.
                gone = read.app.prune();
            }
            self.note_change(&id, &mut read).await
        };
        if let Err(error) = kept.await {
            let why = format!("it was not accepted: {}", error.sentence());
            if let Err(failure) = self.finish(&id, Outcome::Failed, &why).await {
                // The record does not have it: the next start ends it.
                log::warn!("how the change {id} ended is not on disk: {failure}");
            }
            return Err(error);
        }
        for number in gone {
            // The record has no longer any of them.
            if let Err(error) = self.ledger.drop_revision(&plan.app, number).await {
                log::warn!(
                    "app {}: revision {number} is still kept: {}",
                    plan.app,
                    error.sentence()
                );
            }
        }
        self.remember(&read.app);
        Ok(Accepted { id, plan, read })
    }

    /// Writes the record that has a change for the first time. It may have been written also where
    /// the answer was lost.
    async fn note_change(&self, id: &str, read: &mut AppRecord) -> Result<()> {
        let Err(error) = self.ledger.write(read).await else {
            return Ok(());
        };
        if error.retry == Retry::Soon
            && let Ok(Some(found)) = self.ledger.read(&read.app.name).await
            && found.app.change.as_ref().is_some_and(|last| last.id == id)
        {
            *read = found;
            return Ok(());
        }
        Err(error)
    }

    /// Writes an intent, with its row in the audit around it. Returns the id of the change.
    pub(super) async fn begin(&self, plan: &Plan, requester: &Requester) -> Result<String> {
        let id = change_id(requester)?;
        let what = format!(
            "{} app {} revision {}",
            plan.verb.as_str(),
            plan.app,
            plan.revision
        );
        let intent = Intent {
            origin: requester.by.clone(),
            kind: plan.verb.kind(requester),
            body: plan.written(),
        };
        let journal = Journal::new();
        let lock = journal
            .lock(&id)
            .map_err(|occupied| Error::new(format!("{} is under way", occupied.by)))?;
        let kept = async {
            let now = self.now().wall;
            let begun = match &requester.command {
                None => self.store.begin_change(&lock, intent, now).await?,
                Some(command) => {
                    let begun = self.store.begin_command(&lock, intent, command.issued, now);
                    begun.await?
                }
            };
            fail_points::after("journal: begin");
            Ok(begun)
        };
        match self.audited((requester, &what), kept).await? {
            Begun::New => Ok(id),
            Begun::Known(known) => Err(Error::new(format!("the change {} is known", known.id))),
        }
    }

    /// Does something with its row in the audit around it.
    pub(super) async fn audited<T>(
        &self,
        (requester, what): (&Requester, &str),
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let permitted = AuditDecision::Permitted;
        let entry = AuditEntry::new(&requester.by, what, permitted, &requester.why());
        let begun = self.audit.begin(entry, self.now().wall).await?;
        let done = work.await;
        let outcome = if done.is_ok() { "accepted" } else { "failed" };
        if let Err(failure) = self.audit.end(begun, outcome, Effect::default()).await {
            log::warn!("how {what} ended is not in the audit: {failure}");
        }
        done
    }

    /// Ends a change without its task.
    pub(super) async fn finish(&self, id: &str, outcome: Outcome, why: &str) -> Result<()> {
        let journal = Journal::new();
        let Ok(lock) = journal.lock(id) else {
            return Ok(());
        };
        let now = self.now().wall;
        let ended = self
            .store
            .finish_change(&lock, ChangeEnd::new(outcome).why(why), now);
        ended.await?;
        fail_points::after("journal: end");
        (self.has_ended)();
        Ok(())
    }
}

/// Returns whether a new version may take the place of what is there.
fn check_replacement(app: &App, manifests: &[Manifest], request: &ApplyRequest) -> Result<()> {
    let namespace = manifests
        .first()
        .map(|manifest| manifest.namespace.as_str());
    if namespace != Some(app.namespace.as_str()) {
        let what = format!("the app {} is in namespace {}", app.name, app.namespace);
        return Err(Error::new(what).fix("deploy it under another name: --app NAME"));
    }
    if app.loses_most(manifests) && !request.prune_most {
        let surplus = app.surplus(manifests);
        let names: Vec<_> = surplus
            .iter()
            .map(|entry| format!("{} {}", entry.kind, entry.name))
            .collect();
        return Err(Error::new("nothing was deployed")
            .why(format!(
                "more than half of the app would be deleted: {}",
                names.join(", ")
            ))
            .fix(match &app.source {
                None => "if that is meant, add --prune-most".to_owned(),
                Some(_) => format!(
                    "if that is meant: sudo pipeops-agent apps pull {} --prune-most",
                    app.name
                ),
            }));
    }
    Ok(())
}

/// Refuses a new app where its owner has too many already, by the owners of all.
fn check_app_quota(app: &str, all: impl Iterator<Item = Owner>, owner: Owner) -> Result<()> {
    let (most, whose) = match owner {
        Owner::Machine => (MACHINE_APPS_MAX, "this machine"),
        Owner::ControlPlane => (CONTROL_PLANE_APPS_MAX, "the control plane"),
    };
    if all.filter(|other| *other == owner).count() < most {
        return Ok(());
    }
    Err(Error::new(format!("{app} is not deployed"))
        .why(format!("{whose} has {most} apps, and more are not kept"))
        .fix("remove one that is no longer needed, or deploy several as one app"))
}

/// Refuses unless the last change of an app is a removal that was carried out.
fn check_removed(app: &str, last: Result<Option<Change>>) -> Result<()> {
    let last = last.map_err(|error| {
        error.within(format!("the result of the removal of {app} cannot be read"))
    })?;
    let ended = last.and_then(|change| change.ended);
    match ended.map(|(_, ending)| ending) {
        Some(ending) if ending.outcome == Outcome::Done => Ok(()),
        ending => {
            let why = ending.and_then(|ending| ending.why);
            let why = why.unwrap_or_else(|| "another change took its place".to_owned());
            Err(Error::new(format!("{app} is not removed"))
                .why(why)
                .fix("remove it again"))
        }
    }
}

/// Id of a change: that of the command which asks for it, else one of our own.
pub(super) fn change_id(requester: &Requester) -> Result<String> {
    match &requester.command {
        Some(command) => Ok(command.id.clone()),
        None => Ok(format!("app-{}", random::hex::<8>()?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::time::Wall;

    #[test]
    fn a_removal_whose_result_cannot_be_read_is_not_said_to_have_failed() {
        let busy = Error::new("the database is busy").retry(Retry::Soon);
        let error = check_removed("web", Err(busy)).unwrap_err();
        assert_eq!(
            error.sentence(),
            "the result of the removal of web cannot be read: the database is busy"
        );
        let change = |ended: Option<ChangeEnd>| Change {
            id: "app-1".to_owned(),
            intent: Intent {
                kind: "app.remove".to_owned(),
                origin: "root".to_owned(),
                body: String::new(),
            },
            started: Wall::from_millis(0),
            ended: ended.map(|end| (Wall::from_millis(1), end)),
            steps: Vec::new(),
        };
        let of = |end| check_removed("web", Ok(Some(change(end)))).map_err(|it| it.sentence());
        assert_eq!(of(Some(ChangeEnd::new(Outcome::Done))), Ok(()));
        let failed = ChangeEnd::new(Outcome::Failed).why("the API is away");
        assert_eq!(
            of(Some(failed)),
            Err("web is not removed: the API is away".to_owned())
        );
        let other = "web is not removed: another change took its place".to_owned();
        assert_eq!(of(None), Err(other.clone()));
        assert_eq!(
            check_removed("web", Ok(None)).map_err(|it| it.sentence()),
            Err(other)
        );
    }

    #[test]
    fn apps_of_the_control_plane_take_no_place_of_those_of_the_machine() {
        let most = || std::iter::repeat_n(Owner::ControlPlane, CONTROL_PLANE_APPS_MAX);
        let error = check_app_quota("web", most(), Owner::ControlPlane).unwrap_err();
        assert_eq!(
            error.sentence(),
            "web is not deployed: the control plane has 250 apps, and more are not kept"
        );
        assert!(check_app_quota("web", most().skip(1), Owner::ControlPlane).is_ok());
        assert!(check_app_quota("web", most(), Owner::Machine).is_ok());
    }
}

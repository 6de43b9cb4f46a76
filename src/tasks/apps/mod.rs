//! Apps: what is deployed here, whether it works, why not, and back to what worked.
//!
//! One path for every change: read and judge the manifests, compare with the inventory, try everything, write the intent, and only then
//! write to the cluster ([`change`]).

pub mod account;
mod change;
pub mod cluster;
mod inspect;
pub mod ledger;
pub mod observe;
mod operate;
mod watched;

use std::{cell::RefCell, collections::BTreeMap, rc::Rc, time::Duration};

use serde_json::{Value, json};
use smol::{LocalExecutor, Task, Timer};

pub use self::operate::Care;
use self::{
    account::Account,
    change::{KIND, Plan, Verb, Work, of_api, refused, scope, sight},
    cluster::Cluster,
    ledger::{Ledger, Read},
    watched::Watched,
};
use super::audit::AuditWriter;
use crate::{
    core::{
        apps::{
            App, Manifest, Outcome as Concluded, Overlay, Problem, Revision, is_name, parse,
            refused_namespace,
        },
        audit::{Effect, Entry as AuditEntry, Verdict as Permission},
        journal::{Change, Intent, Journal, Outcome},
        rollout::{Finding, Judgement, Scope, Verdict, standing},
        time::{Now, Wall},
    },
    error::{Error, Result, Retry},
    host::random,
    kube::Client,
    store::{self, Begun},
    wire::{apps::ApplyWish, rollout::shown},
};

/// Time between two tries to go on with what a restart interrupted.
const RESUME_EVERY: Duration = Duration::from_secs(5);
/// Time that removing waits for objects to be gone.
const GONE_WITHIN: Duration = Duration::from_secs(10);
/// Changes of the journal that are looked through for the last one of an app.
const CHANGES_MAX: u32 = 200;

/// The apps of this cluster.
pub struct Apps {
    client: Client,
    account: Account,
    ledger: Ledger,
    store: store::Handle,
    audit: AuditWriter,
    executor: Rc<LocalExecutor<'static>>,
    now: fn() -> Now,
    /// Changes under way, by app.
    running: RefCell<BTreeMap<String, Running>>,
    /// Records as they were read or written last, for the time when the API server is away.
    known: RefCell<BTreeMap<String, App>>,
}

struct Running {
    change: String,
    plan: Plan,
    /// Revision that is judged now; another one than the plan's on the way back.
    revision: u64,
    /// True while another change may take its place: nothing is lost by that.
    may_stop: bool,
    outcome: Concluded,
    /// The namespace, while the revision is judged.
    watched: Option<Rc<Watched>>,
    _task: Task<()>,
}

impl std::fmt::Debug for Apps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Apps")
    }
}

/// Parts of [`Apps`].
#[derive(Debug)]
pub struct Parts {
    /// Connection to the cluster.
    pub client: Client,
    /// Account that deploys.
    pub account: Account,
    /// Journal.
    pub store: store::Handle,
    /// Audit.
    pub audit: AuditWriter,
    /// Runs the changes.
    pub executor: Rc<LocalExecutor<'static>>,
    /// Both clocks.
    pub now: fn() -> Now,
}

impl Apps {
    /// The apps of a cluster. Asks nothing yet.
    pub fn new(parts: Parts) -> Self {
        let ledger = Ledger::new(parts.client.clone(), parts.account.own_namespace());
        Self {
            client: parts.client,
            account: parts.account,
            ledger,
            store: parts.store,
            audit: parts.audit,
            executor: parts.executor,
            now: parts.now,
            running: RefCell::default(),
            known: RefCell::default(),
        }
    }

    fn now(&self) -> Now {
        (self.now)()
    }

    const fn store(&self) -> &store::Handle {
        &self.store
    }

    const fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    const fn cluster<'a>(&'a self, change: &'a str) -> Cluster<'a> {
        Cluster {
            client: &self.client,
            account: &self.account,
            change,
        }
    }

    /// Goes on with what a restart or a power cut interrupted.
    pub async fn resume(self: Rc<Self>) {
        let changes = loop {
            match self.store.unfinished_changes().await {
                Ok(changes) => break changes,
                Err(failure) => log::debug!("unfinished changes of apps: {failure}"),
            }
            Timer::after(RESUME_EVERY).await;
        };
        for change in changes
            .into_iter()
            .filter(|change| change.intent.kind == KIND)
        {
            let Some(plan) = Plan::read(&change.intent.body) else {
                log::warn!(
                    "the change {} of an app is of another version of this program and is left alone",
                    change.id
                );
                continue;
            };
            log::info!(
                "app {}: going on with {} of revision {}",
                plan.app,
                plan.verb.as_str(),
                plan.revision
            );
            if let Err(error) = Rc::clone(&self).start(&change.id, plan, Some(change.clone())) {
                log::warn!("{}", error.sentence());
            }
        }
    }

    /// Deploys manifests. Returns when the intent and the content are kept; the rest goes on by itself.
    ///
    /// # Errors
    /// Reason why nothing was changed.
    pub async fn apply(self: Rc<Self>, wish: &ApplyWish, by: &str) -> Result<Value> {
        let (manifests, namespace) = self.read(wish)?;
        let read = self.kept(&wish.app, &namespace).await?;
        fits(&read.app, &manifests, wish)?;
        let mut overlay = read.app.overlay(read.app.running);
        overlay.fit(&manifests);
        self.accept(read, (manifests, overlay), by).await
    }

    /// Accepts a new revision once everything was tried, the intent is on disk and the content kept.
    async fn accept(
        self: Rc<Self>,
        mut read: Read,
        (manifests, overlay): (Vec<Manifest>, Overlay),
        by: &str,
    ) -> Result<Value> {
        let (app, namespace) = (read.app.name.clone(), read.app.namespace.clone());
        let id = change_id()?;
        let cluster = self.cluster(&id);
        let mut laid = manifests.clone();
        overlay.lay(&mut laid);
        cluster.only_ours(&mut read.app, &laid).await?;
        cluster.dry_run(&read.app, &laid).await?;
        self.supersede(&app, "another version was deployed").await?;
        // It may have been written since.
        let mut read = self.kept(&app, &namespace).await?;
        let revision = Revision {
            number: read.app.next(),
            at: self.now().wall,
            by: by.to_owned(),
            overlay,
            outcome: Concluded::default(),
        };
        let plan = Plan {
            app,
            verb: Verb::Apply,
            revision: revision.number,
            before: read.app.running,
            back_to: read.app.good,
        };
        self.begin(&id, &plan, by).await?;
        let kept = self.keep(revision, &mut read, &manifests).await;
        if let Err(error) = kept {
            self.give_up(&id, "its content could not be kept").await?;
            return Err(error);
        }
        self.start(&id, plan.clone(), None)?;
        Ok(accepted(&id, &plan))
    }

    /// The manifests of a wish, with their namespace.
    fn read(&self, wish: &ApplyWish) -> Result<(Vec<Manifest>, String)> {
        named(&wish.app)?;
        let asked = Some(wish.namespace.as_str()).filter(|namespace| !namespace.is_empty());
        let manifests = parse(&wish.manifests, asked).map_err(of_problem)?;
        let first = manifests.first();
        let namespace = first
            .map(|manifest| manifest.namespace.clone())
            .unwrap_or_default();
        self.allowed(&namespace)?;
        Ok((manifests, namespace))
    }

    /// Refuses the namespaces of the cluster and of the agent.
    fn allowed(&self, namespace: &str) -> Result<()> {
        match refused_namespace(namespace, self.account.own_namespace()) {
            Some(why) => Err(Error::new("nothing was deployed")
                .why(why)
                .fix("use a namespace of its own for the app")),
            None => Ok(()),
        }
    }

    async fn kept(&self, app: &str, namespace: &str) -> Result<Read> {
        let found = self.record(app).await?;
        Ok(found.unwrap_or_else(|| Read::new(app, namespace)))
    }

    /// Keeps the content of a revision, and that there is one.
    async fn keep(
        &self,
        revision: Revision,
        read: &mut Read,
        manifests: &[Manifest],
    ) -> Result<()> {
        let kept = self
            .ledger
            .keep(&read.app.name, revision.number, manifests)
            .await;
        kept.map_err(of_api)?;
        read.app.revisions.push(revision);
        self.ledger.write(read).await.map_err(of_api)?;
        self.remember(&read.app);
        Ok(())
    }

    async fn give_up(&self, id: &str, why: &str) -> Result<()> {
        let journal = Journal::new();
        let Ok(lock) = journal.lock(id) else {
            return Ok(());
        };
        let now = self.now().wall;
        let ended = self
            .store
            .finish_change(&lock, Outcome::Failed, Some(why.to_owned()), now);
        Ok(ended.await?)
    }

    /// Puts an earlier revision back: `to`, or the last good one.
    ///
    /// # Errors
    /// Reason why nothing was changed.
    pub async fn rollback(self: Rc<Self>, app: &str, to: u64, by: &str) -> Result<Value> {
        let read = self.existing(app).await?;
        let running = read.app.running;
        let earlier = |revision: &&Revision| {
            revision.number != running && revision.outcome.verdict == Verdict::Good.as_str()
        };
        let to = match to {
            0 if read.app.good != running => read.app.good,
            0 => read
                .app
                .revisions
                .iter()
                .rev()
                .find(earlier)
                .map_or(0, |revision| revision.number),
            to => to,
        };
        if to == 0 || read.app.revision(to).is_none() {
            return Err(Error::new(format!("{app} is not rolled back"))
                .why("there is no such revision, or none that was good")
                .fix(format!("pipeops-agent apps history {app}")));
        }
        self.supersede(app, "it was rolled back").await?;
        let id = change_id()?;
        let plan = Plan {
            app: app.to_owned(),
            verb: Verb::Rollback,
            revision: to,
            before: running,
            // Who asks for a version keeps it.
            back_to: 0,
        };
        self.begin(&id, &plan, by).await?;
        self.start(&id, plan.clone(), None)?;
        Ok(accepted(&id, &plan))
    }

    /// Deletes an app: everything that is ours but claims, which hold data. Waits a while for it; after that it goes on by itself.
    ///
    /// # Errors
    /// Reason why it is still there.
    pub async fn remove(self: Rc<Self>, app: &str, by: &str) -> Result<Value> {
        let read = self.existing(app).await?;
        self.supersede(app, "the app was removed").await?;
        let id = change_id()?;
        let plan = Plan {
            app: app.to_owned(),
            verb: Verb::Remove,
            revision: read.app.running,
            before: 0,
            back_to: 0,
        };
        self.begin(&id, &plan, by).await?;
        Rc::clone(&self).start(&id, plan, None)?;
        let deadline = self.now().mono.after(GONE_WITHIN);
        while let Some(left) = self.under_way(app, &id) {
            if self.now().mono >= deadline {
                return Err(Error::new(format!("{app} is not removed yet"))
                    .why(left.sentence)
                    .fix(format!(
                        "removing goes on by itself: pipeops-agent apps why {app}"
                    ))
                    .retry(Retry::Later));
            }
            Timer::after(Duration::from_millis(200)).await;
        }
        let change = self.last_change(app).await;
        if change.get("state").and_then(Value::as_str) != Some(Outcome::Done.as_str()) {
            let why = change.get("why").and_then(Value::as_str);
            return Err(Error::new(format!("{app} is not removed"))
                .why(why.unwrap_or("another change took its place"))
                .fix("remove it again"));
        }
        let kept = read.app.inventory.iter().filter(|entry| entry.is_kept());
        let kept: Vec<_> = kept
            .map(|entry| entry.in_words(&read.app.namespace))
            .collect();
        Ok(json!({"app": app, "state": "removed", "kept": kept}))
    }

    /// The state of a change; `None`: it is over.
    fn under_way(&self, app: &str, change: &str) -> Option<Concluded> {
        let running = self.running.borrow();
        let running = running.get(app).filter(|running| running.change == change);
        running.map(|running| running.outcome.clone())
    }

    /// Every app, in short.
    ///
    /// # Errors
    /// Reason why they are not known.
    pub async fn list(&self) -> Result<Value> {
        let apps = self.ledger.list().await.map_err(of_api)?;
        let apps: Vec<_> = apps.iter().map(|app| self.told(app)).collect();
        Ok(json!({ "apps": apps }))
    }

    /// One app: its objects and its revisions.
    ///
    /// # Errors
    /// There is no such app, or it is not known.
    pub async fn describe(&self, app: &str) -> Result<Value> {
        let read = self.existing(app).await?;
        let mut told = self.told(&read.app);
        let objects: Vec<_> = read
            .app
            .inventory
            .iter()
            .map(|entry| json!({"kind": entry.kind, "name": entry.name, "uid": entry.uid}))
            .collect();
        let revisions: Vec<_> = read.app.revisions.iter().map(revision).collect();
        if let Value::Object(fields) = &mut told {
            fields.insert("objects".to_owned(), json!(objects));
            fields.insert("revisions".to_owned(), json!(revisions));
        }
        Ok(told)
    }

    /// Verdict on the last change, with what runs.
    ///
    /// # Errors
    /// There is no such app, or it is not known.
    pub async fn why(&self, app: &str) -> Result<Value> {
        let read = match self.record(app).await {
            Ok(found) => found.map(|read| read.app),
            Err(error) => {
                let known = self.known.borrow().get(app).cloned();
                Some(known.ok_or(error)?)
            }
        };
        let Some(read) = read else {
            return Err(unknown(app));
        };
        let running = self.what_runs(&read).await;
        let mut told = self.told(&read);
        let last = self.last_change(app).await;
        if let Value::Object(fields) = &mut told {
            fields.insert("running".to_owned(), running);
            fields.insert("change".to_owned(), last);
        }
        Ok(told)
    }

    async fn what_runs(&self, app: &App) -> Value {
        let manifests = self
            .ledger
            .manifests(&app.name, app.running)
            .await
            .ok()
            .flatten();
        let Some(manifests) = manifests else {
            return json!({"revision": app.running, "verdict": Verdict::Blind.as_str()});
        };
        let services: Vec<_> = manifests
            .iter()
            .filter(|manifest| manifest.kind.name != "Job")
            .collect();
        let scope = scope(&services);
        let known = self.watched_standing(app, &scope);
        let (verdict, sentence, finding) = if let Some(known) = known {
            known
        } else {
            let cluster = self.cluster("");
            let seen = cluster.observe(&app.namespace, &scope.targets).await;
            let seen = seen.map_err(|error| refused(&error));
            standing(&scope, sight(&seen))
        };
        let judgement = Judgement {
            verdict,
            sentence,
            finding,
            since: self.now().mono,
        };
        let mut told = shown(&judgement);
        if let Value::Object(fields) = &mut told {
            fields.insert("revision".to_owned(), json!(app.running));
        }
        told
    }

    async fn last_change(&self, app: &str) -> Value {
        let changes = self
            .store
            .recent_changes(CHANGES_MAX)
            .await
            .unwrap_or_default();
        let of_app = |change: &&Change| {
            change.intent.kind == KIND
                && Plan::read(&change.intent.body).is_some_and(|plan| plan.app == app)
        };
        changes.iter().find(of_app).map_or(Value::Null, |change| {
            let (state, why) = match &change.ended {
                None => ("under way", None),
                Some((_, outcome, why)) => (outcome.as_str(), why.clone()),
            };
            json!({"id": change.id, "state": state, "why": why, "by": change.intent.origin})
        })
    }

    /// Answer about the last change, in the order of what is known best: live, then kept.
    fn told(&self, app: &App) -> Value {
        let running = self.running.borrow();
        let live = running
            .get(&app.name)
            .map(|running| (running.revision, &running.outcome));
        let last = app
            .revisions
            .last()
            .map(|revision| (revision.number, &revision.outcome));
        let (number, outcome) = live
            .or(last)
            .map(|(number, outcome)| (number, outcome.clone()))
            .unwrap_or_default();
        json!({
            "app": app.name, "namespace": app.namespace, "revision": number,
            "verdict": text(&outcome.verdict).unwrap_or(Verdict::Waiting.as_str()),
            "cause": text(&outcome.cause), "object": text(&outcome.object),
            "sentence": text(&outcome.sentence).unwrap_or("it was not looked at yet"),
            "evidence": text(&outcome.evidence), "fix": text(&outcome.fix),
            "since": (outcome.since != Wall::default()).then(|| outcome.since.rfc3339()),
            "good": app.good, "paused": app.is_paused,
        })
    }

    async fn record(&self, app: &str) -> Result<Option<Read>> {
        if !is_name(app) {
            return Ok(None);
        }
        let found = self.ledger.read(app).await.map_err(of_api)?;
        if let Some(read) = &found {
            self.remember(&read.app);
        }
        Ok(found)
    }

    async fn existing(&self, app: &str) -> Result<Read> {
        self.record(app).await?.ok_or_else(|| unknown(app))
    }

    /// Ends the change of an app that is under way, if it only waits for a verdict.
    async fn supersede(&self, app: &str, why: &str) -> Result<()> {
        let Some(running) = self.running.borrow_mut().remove(app) else {
            return Ok(());
        };
        if !running.may_stop {
            let busy = Error::new(format!("{app} is being written right now"))
                .fix("try again in a few seconds")
                .retry(Retry::Soon);
            self.running.borrow_mut().insert(app.to_owned(), running);
            return Err(busy);
        }
        let id = running.change.clone();
        // With its task it stops to look.
        drop(running);
        self.give_up(&id, why).await
    }

    /// Writes an intent, with its row in the audit around it.
    async fn begin(&self, id: &str, plan: &Plan, by: &str) -> Result<()> {
        let what = format!(
            "{} app {} revision {}",
            plan.verb.as_str(),
            plan.app,
            plan.revision
        );
        let intent = Intent {
            origin: by.to_owned(),
            kind: KIND.to_owned(),
            body: plan.written(),
        };
        let journal = Journal::new();
        let lock = journal
            .lock(id)
            .map_err(|occupied| Error::new(format!("{} is under way", occupied.by)))?;
        let kept = async {
            let begun = self.store.begin_change(&lock, intent, self.now().wall);
            Ok(begun.await?)
        };
        match self.audited((by, &what), kept).await? {
            Begun::New => Ok(()),
            Begun::Known(known) => Err(Error::new(format!("the change {} is known", known.id))),
        }
    }

    /// Does something with its row in the audit around it.
    async fn audited<T>(
        &self,
        (by, what): (&str, &str),
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let permitted = Permission::Permitted;
        let entry = AuditEntry::new(by, what, permitted, "asked for on this machine");
        let begun = self.audit.begin(entry, self.now().wall).await?;
        let done = work.await;
        let outcome = if done.is_ok() { "accepted" } else { "failed" };
        if let Err(failure) = self.audit.end(begun, outcome, Effect::default()).await {
            log::warn!("how {what} ended is not in the audit: {failure}");
        }
        done
    }

    fn start(self: Rc<Self>, id: &str, plan: Plan, known: Option<Change>) -> Result<()> {
        let journal = Journal::new();
        let lock = journal
            .lock(id)
            .map_err(|occupied| Error::new(format!("{} is under way", occupied.by)))?;
        let work = Work {
            apps: Rc::clone(&self),
            lock,
            plan: plan.clone(),
        };
        let running = Running {
            change: id.to_owned(),
            revision: plan.revision,
            may_stop: false,
            outcome: Concluded {
                verdict: Verdict::Progressing.as_str().to_owned(),
                sentence: plan.verb.beginning(plan.revision),
                since: self.now().wall,
                ..Concluded::default()
            },
            watched: None,
            _task: self.executor.spawn(work.run(known)),
            plan,
        };
        self.running
            .borrow_mut()
            .insert(running.plan.app.clone(), running);
        Ok(())
    }

    fn with_running(&self, app: &str, change: impl FnOnce(&mut Running)) {
        if let Some(running) = self.running.borrow_mut().get_mut(app) {
            change(running);
        }
    }

    fn may_stop(&self, app: &str, may_stop: bool) {
        self.with_running(app, |running| running.may_stop = may_stop);
    }

    fn watches(&self, app: &str, watched: &Rc<Watched>) {
        self.with_running(app, |running| running.watched = Some(Rc::clone(watched)));
    }

    /// Returns whether a change is between reading and writing the record of an app.
    fn is_writing(&self, app: &str) -> bool {
        let running = self.running.borrow();
        running
            .get(app)
            .is_some_and(|running| running.watched.is_none())
    }

    fn stops_to_watch(&self, app: &str) {
        self.with_running(app, |running| running.watched = None);
    }

    /// Verdict on what runs by the watches of a change that judges it; `None`: there are none.
    fn watched_standing(
        &self,
        app: &App,
        scope: &Scope,
    ) -> Option<(Verdict, String, Option<Finding>)> {
        let running = self.running.borrow();
        let running = running.get(&app.name)?;
        let watched = running.watched.as_ref()?;
        if running.revision != app.running {
            return None;
        }
        watched.look(|sight| standing(scope, sight))
    }

    fn goes_back(&self, app: &str, to: u64) {
        self.with_running(app, |running| running.revision = to);
    }

    fn show(&self, app: &str, judgement: &Judgement) {
        let outcome = change::concluded(judgement, self.now());
        self.with_running(app, |running| {
            let is_same = (&running.outcome.verdict, &running.outcome.cause)
                == (&outcome.verdict, &outcome.cause);
            let since = if is_same {
                running.outcome.since
            } else {
                outcome.since
            };
            running.outcome = Concluded { since, ..outcome };
        });
    }

    fn blind(&self, app: &str, error: &Error) {
        let now = self.now().wall;
        self.with_running(app, |running| {
            running.outcome = Concluded {
                verdict: Verdict::Blind.as_str().to_owned(),
                sentence: error.sentence(),
                since: now,
                ..Concluded::default()
            };
        });
    }

    fn remember(&self, app: &App) {
        self.known
            .borrow_mut()
            .insert(app.name.clone(), app.clone());
    }

    fn forget(&self, app: &str) {
        self.known.borrow_mut().remove(app);
    }

    /// Forgets a change that is over.
    fn ended(&self, app: &str, change: &str) {
        let mut running = self.running.borrow_mut();
        if running
            .get(app)
            .is_some_and(|running| running.change == change)
        {
            // Its task is the one that calls this: it ends by itself.
            drop(running.remove(app));
        }
    }
}

/// Refuses what cannot be the name of an app.
fn named(app: &str) -> Result<()> {
    if is_name(app) {
        return Ok(());
    }
    let what = format!("{app:?} cannot be the name of an app");
    Err(Error::new(what).fix("use up to 40 small letters, digits and dashes"))
}

fn of_problem(problem: Problem) -> Error {
    Error::new(problem.what).why(problem.why).fix(problem.fix)
}

/// Returns whether a new version may take the place of what is there.
fn fits(app: &App, manifests: &[Manifest], wish: &ApplyWish) -> Result<()> {
    let namespace = manifests
        .first()
        .map(|manifest| manifest.namespace.as_str());
    if namespace != Some(app.namespace.as_str()) {
        let what = format!(
            "the app {} lies in the namespace {}",
            app.name, app.namespace
        );
        return Err(Error::new(what).fix("deploy it under another name: --app NAME"));
    }
    if app.loses_most(manifests) && !wish.prune_most {
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
            .fix("if that is meant, add --prune-most"));
    }
    Ok(())
}

fn unknown(app: &str) -> Error {
    Error::new(format!("there is no app {app}")).fix("pipeops-agent apps list")
}

fn change_id() -> Result<String> {
    Ok(format!("app-{}", random::hex::<8>()?))
}

/// A text; `None` where it is empty.
fn text(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

fn accepted(id: &str, plan: &Plan) -> Value {
    json!({"app": plan.app, "change": id, "revision": plan.revision, "state": "accepted"})
}

fn revision(revision: &Revision) -> Value {
    let outcome = &revision.outcome;
    json!({
        "number": revision.number, "at": revision.at.rfc3339(), "by": revision.by, "verdict": text(&outcome.verdict),
        "cause": text(&outcome.cause), "sentence": text(&outcome.sentence),
    })
}

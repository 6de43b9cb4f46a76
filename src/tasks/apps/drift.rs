//! Drift: puts back what somebody changed or deleted of a good revision. What somebody takes back
//! again and again, volume claims, and whatever others own or added are left alone.
//!
//! Watches of heads tell which object to look at: our entry in its managed fields changes when
//! somebody takes a field of ours. Only then the API server is asked what writing it would change.

use std::{
    cell::RefCell,
    collections::{BTreeSet, VecDeque},
    rc::Rc,
    time::Duration,
};

use litemap::LiteMap;
use serde_json::{Value, json};
use smol::{
    Task, Timer,
    channel::{Receiver, Sender, bounded},
};

use super::{
    Apps,
    cluster::Drifted,
    ledger::{AppRecord, api_error},
    requester::Requester,
};
use crate::{
    core::{
        apps::{
            App, Contested, InventoryEntry, Kind, Manifest, Overlay, Owner, REPLICAS, keep_left,
            our_fields,
        },
        backoff::Backoff,
        health::Severity,
        order::GatherExt as _,
        time::{Mono, Wall},
        verdict::sentences,
    },
    error::{Error, Result, Retry},
    host::random,
    kube::watch::Event,
};

/// Condition: something is not as it was deployed, and stays so.
const CONDITION: &str = "apps.drift";
/// Requester in the audit.
const BY: &str = "agent";
/// Time for more to come before an app is looked at.
const SETTLES: Duration = Duration::from_secs(1);
/// Pauses before a watch is begun again, and before an app is looked at again that could not be.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_LONGEST: Duration = Duration::from_secs(60);
/// Number of times that a field, or an object that is deleted, is put back.
const TAKEN_BACK_MAX: u32 = 3;
/// Time after which what was put back counts as settled.
const FORGET: Duration = Duration::from_secs(600);
/// Number of tries after which an object that cannot be put back is reported although another try
/// may succeed: the API server may only be busy.
const REPORT_AFTER: u32 = 3;
/// Field of what is gone as a whole.
const DELETED: &str = "";
/// Name of who deletes: nothing of the object is left that would say it.
const SOMEBODY: &str = "somebody";
/// Repairs of one app that are drift.
const REPAIRS_MAX: usize = 10;

/// An object, by namespace, kind and name.
type Name = (String, String, String);

/// State of the objects of apps, and the repairs that were made.
#[derive(Debug)]
pub(super) struct Drift {
    wakeups: (Sender<()>, Receiver<()>),
    watches: RefCell<LiteMap<(String, String), Watched>>,
    seen: RefCell<LiteMap<Name, ObjectFingerprint>>,
    /// Objects as they were when nothing was to be put back.
    verified: RefCell<LiteMap<Name, ObjectFingerprint>>,
    by_app: RefCell<LiteMap<String, AppDrift>>,
}

/// Version of an object, as far as drift depends on it.
#[derive(Clone, Debug, Eq, PartialEq)]
struct ObjectFingerprint {
    uid: String,
    /// Fields that are ours.
    ours: u64,
}

#[derive(Debug)]
struct Watched {
    /// Objects of apps; all others are not kept in memory.
    names: BTreeSet<String>,
    is_complete: bool,
    failure: Option<Error>,
    _task: Task<()>,
}

/// Repairs and deviations of one app, for answers and the condition.
#[derive(Debug, Default)]
struct AppDrift {
    repairs: VecDeque<Repair>,
    counts: LiteMap<(String, String), (u32, Mono)>,
    missing: Vec<String>,
    /// Objects that could not be put back, with the number of tries and the last error.
    stuck: LiteMap<String, (u32, Error)>,
}

impl AppDrift {
    /// Objects that could not be put back and are told.
    fn stuck(&self) -> impl Iterator<Item = (&String, &Error)> {
        let told = self
            .stuck
            .iter()
            .filter(|(_, (tries, error))| error.retry != Retry::Soon || *tries >= REPORT_AFTER);
        told.map(|(object, (_, error))| (object, error))
    }
}

#[derive(Clone, Debug)]
struct Repair {
    object: String,
    field: String,
    by: String,
    at: Wall,
}

impl Default for Drift {
    fn default() -> Self {
        Self {
            wakeups: bounded(1),
            watches: RefCell::default(),
            seen: RefCell::default(),
            verified: RefCell::default(),
            by_app: RefCell::default(),
        }
    }
}

impl Drift {
    /// Wakes the comparison of the apps.
    pub(super) fn wake(&self) {
        // A word that waits already says the same.
        self.wakeups.0.try_send(()).ok();
    }

    fn take(&self, (namespace, kind): (&str, &str), event: Event<Value>, listed: &mut Listed) {
        let head = |head: &Value| {
            let text = |pointer| head.pointer(pointer).and_then(Value::as_str);
            let name = text("/metadata/name").unwrap_or_default().to_owned();
            let seen = ObjectFingerprint {
                uid: text("/metadata/uid").unwrap_or_default().to_owned(),
                ours: our_fields(head),
            };
            ((namespace.to_owned(), kind.to_owned(), name), seen)
        };
        match event {
            Event::Restarted => *listed = Some(BTreeSet::new()),
            Event::Added(object) | Event::Modified(object) => {
                let (name, seen) = head(&object);
                if !self.is_wanted(&name) {
                    return;
                }
                if let Some(listed) = listed {
                    listed.insert(name.clone());
                }
                let before = self.seen.borrow_mut().insert(name, seen.clone());
                if before.as_ref() == Some(&seen) {
                    return;
                }
            }
            Event::Deleted(object) => {
                self.seen.borrow_mut().remove(&head(&object).0);
            }
            Event::Synced => {
                let listed = listed.take().unwrap_or_default();
                let is_of_list = |name: &Name| name.0 == namespace && name.1 == kind;
                let mut seen = self.seen.borrow_mut();
                seen.retain(|name, _| !is_of_list(name) || listed.contains(name));
                drop(seen);
                self.with_watch((namespace, kind), |watched| {
                    watched.is_complete = true;
                    watched.failure = None;
                });
            }
            Event::Failed(_) => return,
        }
        self.wake();
    }

    fn with_watch(&self, (namespace, kind): (&str, &str), change: impl FnOnce(&mut Watched)) {
        let key = (namespace.to_owned(), kind.to_owned());
        if let Some(watched) = self.watches.borrow_mut().get_mut(&key) {
            change(watched);
        }
    }

    fn is_wanted(&self, (namespace, kind, name): &Name) -> bool {
        let watches = self.watches.borrow();
        let found = watches.get(&(namespace.clone(), kind.clone()));
        found.is_some_and(|found| found.names.contains(name))
    }

    fn is_seen(&self, namespace: &str, kind: &str) -> bool {
        let key = (namespace.to_owned(), kind.to_owned());
        let watches = self.watches.borrow();
        watches
            .get(&key)
            .is_some_and(|watched| watched.is_complete && watched.failure.is_none())
    }
}

/// Objects of a list while it is read.
type Listed = Option<BTreeSet<Name>>;

impl Apps {
    /// Keeps good revisions as they were deployed, while this agent is the one that changes apps.
    #[expect(clippy::infinite_loop, reason = "it ends when its task is dropped")]
    pub async fn keep_as_deployed(self: Rc<Self>) {
        let mut backoff = Backoff::new(RETRY_FIRST, RETRY_LONGEST);
        loop {
            self.drift.wakeups.1.recv().await.ok();
            Timer::after(SETTLES).await;
            let kept = self.kept_apps();
            self.watch_kinds_of(&kept);
            let mut is_done = true;
            for app in &kept {
                if let Err(error) = self.keep_app(app).await {
                    log::debug!("app {} is not looked at: {}", app.name, error.sentence());
                    is_done = false;
                }
            }
            self.report_drift();
            if is_done {
                backoff.reset();
            } else {
                self.drift.wake();
                Timer::after(backoff.next(fastrand::u16(..))).await;
            }
        }
    }

    /// Apps whose drift is repaired now.
    fn kept_apps(&self) -> Vec<App> {
        if !self.is_leader() {
            return Vec::new();
        }
        let (active, locks) = (self.active_changes.borrow(), self.app_locks.borrow());
        let is_repaired = |app: &&App| {
            app.is_repaired() && !active.contains_key(&app.name) && !locks.contains_key(&app.name)
        };
        let known = self.known.borrow();
        known.values().filter(is_repaired).cloned().collect()
    }

    /// Begins the watches that these apps need, and ends all others.
    fn watch_kinds_of(self: &Rc<Self>, apps: &[App]) {
        let kinds = |app: &App| {
            let namespace = app.namespace.clone();
            let kinds = app.inventory.iter().filter(|entry| entry.kind != "Job");
            let kinds: Vec<_> = kinds
                .filter_map(|entry| {
                    let kind = entry.known_kind()?;
                    Some((namespace.clone(), kind, entry.name.clone()))
                })
                .collect();
            kinds
        };
        let mut wanted = LiteMap::<_, (_, BTreeSet<String>)>::new();
        for (namespace, kind, name) in apps.iter().flat_map(kinds) {
            let key = (namespace, kind.name.to_string());
            let (_, names) = wanted.entry(key).or_insert((kind, BTreeSet::new()));
            names.insert(name);
        }
        let mut watches = self.drift.watches.borrow_mut();
        // An object that is new is read by a new list.
        watches.retain(|key, watched| {
            let names = wanted.get(key).map(|(_, names)| names);
            names == Some(&watched.names)
        });
        for (key, (kind, names)) in wanted {
            let (apps, namespace) = (Rc::clone(self), key.0.clone());
            let begin = || {
                let watch = async move { apps.watch_heads(&kind, &namespace).await };
                Watched {
                    names,
                    is_complete: false,
                    failure: None,
                    _task: self.executor.spawn(watch),
                }
            };
            watches.entry(key).or_insert_with(begin);
        }
    }

    /// Watches the heads of a kind for as long as its task lives.
    #[expect(clippy::infinite_loop, reason = "it ends when its task is dropped")]
    async fn watch_heads(&self, kind: &Kind, namespace: &str) {
        let key = (namespace, &*kind.name);
        let mut listed = None;
        let mut version = None;
        let mut backoff = Backoff::new(RETRY_FIRST, RETRY_LONGEST);
        loop {
            let cluster = self.cluster(Owner::Machine);
            let take = |event| self.drift.take(key, event, &mut listed);
            match cluster
                .watch_heads((kind, namespace), &mut version, take)
                .await
            {
                // A server that ends every watch at once is not asked in a loop.
                Ok(0) => {}
                Ok(_lines) => backoff.reset(),
                Err(error) => {
                    version = None;
                    self.drift.with_watch(key, |watched| {
                        watched.is_complete = false;
                        watched.failure = Some(error);
                    });
                    self.report_drift();
                }
            }
            Timer::after(backoff.next(fastrand::u16(..))).await;
        }
    }

    /// Looks at the objects of an app that are not as they were, and puts back what is not as it
    /// was deployed.
    async fn keep_app(self: &Rc<Self>, app: &App) -> Result<()> {
        if !app
            .inventory
            .iter()
            .any(|entry| self.is_changed(app, entry))
        {
            let mut by_app = self.drift.by_app.borrow_mut();
            if let Some(drift) = by_app.get_mut(&app.name) {
                drift.stuck.clear();
            }
            return Ok(());
        }
        let (apps, name) = (Rc::clone(self), app.name.clone());
        // No change begins meanwhile.
        self.with_app_lock(&app.name, async move {
            let Some(read) = apps.record(&name).await? else {
                return Ok(());
            };
            if !read.app.is_repaired() {
                return Ok(());
            }
            apps.repair(read).await
        })
        .await
    }

    /// Returns whether an object may not be as it was when it was looked at last.
    fn is_changed(&self, app: &App, entry: &InventoryEntry) -> bool {
        if entry.kind == "Job" || !self.drift.is_seen(&app.namespace, &entry.kind) {
            return false;
        }
        let name = name(app, entry);
        let seen = self.drift.seen.borrow();
        if let Some(seen) = seen.get(&name) {
            return self.drift.verified.borrow().get(&name) != Some(seen);
        }
        let object = entry.in_words(&app.namespace);
        !app.leaves(&object, DELETED) && !self.is_told_missing(app, &object)
    }

    fn is_told_missing(&self, app: &App, object: &str) -> bool {
        let by_app = self.drift.by_app.borrow();
        let drift = by_app.get(&app.name);
        drift.is_some_and(|drift| drift.missing.iter().any(|missing| missing == object))
    }

    async fn repair(&self, mut read: AppRecord) -> Result<()> {
        let (name, running) = (read.app.name.clone(), read.app.running);
        let kept = self.ledger().manifests(&name, running).await;
        let Some(mut manifests) = kept.map_err(api_error)? else {
            return Ok(());
        };
        read.app.overlay(running).apply(&mut manifests);
        let objects: Vec<_> = manifests.iter().map(Manifest::in_words).collect();
        self.with_app(&name, |drift| {
            drift.stuck.retain(|object, _| objects.contains(object))
        });
        let mut last = Ok(());
        for (manifest, object) in manifests.iter().zip(objects) {
            let repaired = self.repair_one(&mut read, manifest).await;
            self.with_app(&name, |drift| match &repaired {
                Ok(()) => drop(drift.stuck.remove(&object)),
                Err(error) => {
                    let known = drift.stuck.get(&object);
                    let tries = known.map_or(1, |(tries, _)| tries.saturating_add(1));
                    drift.stuck.insert(object, (tries, error.clone()));
                }
            });
            // Those behind it do not wait for it.
            last = last.and(repaired);
        }
        last
    }

    async fn repair_one(&self, read: &mut AppRecord, manifest: &Manifest) -> Result<()> {
        let entry = InventoryEntry::of(manifest);
        if !self.is_changed(&read.app, &entry) {
            return Ok(());
        }
        let key = name(&read.app, &entry);
        let seen = self.drift.seen.borrow().get(&key).cloned();
        if seen.is_some() {
            self.recognise(read, &entry).await?;
            let object = manifest.in_words();
            self.with_app(&read.app.name, |drift| {
                drift.missing.retain(|it| *it != object)
            });
        }
        match seen {
            None => self.repair_missing(read, manifest).await?,
            Some(seen) if read.app.uid(&entry) != Some(&seen.uid) => {
                // Somebody else's lies in its place.
                self.drift.verified.borrow_mut().insert(key, seen);
            }
            Some(seen) => {
                if self.repair_fields(read, manifest).await? {
                    self.drift.verified.borrow_mut().insert(key, seen);
                }
            }
        }
        Ok(())
    }

    /// Notes the UID of an object that was created again right before a power cut.
    async fn recognise(&self, read: &mut AppRecord, entry: &InventoryEntry) -> Result<()> {
        if read.app.uid(entry).is_some() || read.app.nonce(entry).is_none() {
            return Ok(());
        }
        let cluster = self.cluster(Owner::Machine);
        let Some(uid) = cluster.uid(&read.app, entry).await? else {
            return Ok(());
        };
        read.app.record_uid(entry, &uid);
        read.app.clear_nonces();
        self.ledger().write(read).await?;
        self.remember(&read.app);
        Ok(())
    }

    /// Creates again what somebody deleted. What held data is only drift: an empty claim in its
    /// place would hide the loss, and so would a chart.
    async fn repair_missing(&self, read: &mut AppRecord, manifest: &Manifest) -> Result<()> {
        let entry = InventoryEntry::of(manifest);
        let object = manifest.in_words();
        if manifest.kind.is_kept() || manifest.kind.is_chart() {
            log::warn!("app {}: {object} was deleted", read.app.name);
            self.with_app(&read.app.name, |drift| drift.missing.push(object));
            return Ok(());
        }
        if self.is_contested(&read.app.name, (&object, DELETED)) {
            let left = Contested {
                object,
                field: DELETED.to_owned(),
                by: SOMEBODY.to_owned(),
            };
            return self.leave(read, vec![left]).await;
        }
        let what = format!("create {object} of app {} again", read.app.name);
        let write = async {
            read.app.record_uid(&entry, "");
            let nonce = random::hex::<16>()?;
            read.app.plan(std::slice::from_ref(manifest), [nonce]);
            self.ledger().write(read).await?;
            let uid = self
                .cluster(Owner::Machine)
                .write(&read.app, (manifest, &[]))
                .await?;
            read.app.record_uid(&entry, &uid);
            read.app.clear_nonces();
            self.ledger().write(read).await?;
            Ok(uid)
        };
        let uid = self.audited((&Requester::here(BY), &what), write).await?;
        self.remember(&read.app);
        // Its event may come later.
        let seen = ObjectFingerprint { uid, ours: 0 };
        let mut known = self.drift.seen.borrow_mut();
        known.entry(name(&read.app, &entry)).or_insert(seen);
        drop(known);
        self.repaired(&read.app.name, &object, (DELETED, SOMEBODY));
        Ok(())
    }

    /// Puts back fields of ours that somebody changed. Returns whether nothing was to be put back.
    async fn repair_fields(&self, read: &mut AppRecord, manifest: &Manifest) -> Result<bool> {
        if read.app.overlay(read.app.running).keeps(manifest) {
            return Ok(true);
        }
        let Some(drifted) = self
            .cluster(Owner::Machine)
            .drifted(&read.app, manifest)
            .await?
        else {
            return Ok(true);
        };
        let object = manifest.in_words();
        let mut left = self.left_to_others(&read.app, manifest, &drifted).await?;
        let mut taken = Vec::new();
        for difference in &drifted.fields {
            let field = &difference.field;
            if left.contains(field) {
                continue;
            }
            // A chart never goes back by itself.
            if manifest.kind.is_chart() || self.is_contested(&read.app.name, (&object, field)) {
                left.insert(field.clone());
                taken.push(Contested {
                    object: object.clone(),
                    field: field.clone(),
                    by: drifted.by.clone(),
                });
            }
        }
        if !taken.is_empty() {
            self.leave(read, taken).await?;
        }
        let fields = drifted.fields.iter().map(|found| &found.field);
        let fields: Vec<_> = fields.filter(|field| !left.contains(*field)).collect();
        if fields.is_empty() {
            return Ok(true);
        }
        let mut manifest = manifest.clone();
        keep_left(&mut manifest.object, &drifted.live, &|field| {
            left.contains(field)
        });
        let names: Vec<_> = fields.iter().map(|field| field.as_str()).collect();
        let what = format!(
            "put back {} of {object} of app {}, which {} changed",
            names.join(", "),
            read.app.name,
            drifted.by
        );
        let app = &read.app;
        let cluster = self.cluster(Owner::Machine);
        let write = async { cluster.write(app, (&manifest, &[])).await };
        self.audited((&Requester::here(BY), &what), write).await?;
        for field in fields {
            self.repaired(&app.name, &object, (field, &drifted.by));
        }
        Ok(false)
    }

    /// Leaves fields and objects to those who take them back again and again.
    async fn leave(&self, read: &mut AppRecord, mut taken: Vec<Contested>) -> Result<()> {
        for Contested { object, field, by } in &taken {
            let name = &read.app.name;
            match field.as_str() {
                DELETED => log::warn!("app {name}: {object} was deleted again and is left so"),
                field => log::warn!("app {name}: {field} of {object} is left to {by}"),
            }
        }
        read.app.left.append(&mut taken);
        self.ledger().write(read).await?;
        self.remember(&read.app);
        Ok(())
    }

    /// Fields of an object that are not put back: those that are left already, and the number of
    /// Pods under an autoscaler.
    async fn left_to_others(
        &self,
        app: &App,
        manifest: &Manifest,
        drifted: &Drifted,
    ) -> Result<BTreeSet<String>> {
        let object = manifest.in_words();
        let fields = drifted.fields.iter().map(|found| found.field.clone());
        let mut left: BTreeSet<_> = fields.filter(|field| app.leaves(&object, field)).gather();
        let is_scaled = drifted.fields.iter().any(|found| found.field == REPLICAS);
        if is_scaled && Overlay::key(manifest).is_some() {
            let workload = (&*manifest.kind.name, manifest.name.as_str());
            let scaler = self
                .cluster(Owner::Machine)
                .autoscaler(&app.namespace, workload)
                .await?;
            left.extend(scaler.map(|_| REPLICAS.to_owned()));
        }
        Ok(left)
    }

    /// Returns whether a field or an object was put back so often that it is left alone.
    fn is_contested(&self, app: &str, (object, field): (&str, &str)) -> bool {
        let key = (object.to_owned(), field.to_owned());
        let by_app = self.drift.by_app.borrow();
        let found = by_app.get(app).and_then(|drift| drift.counts.get(&key));
        let now = self.now().mono;
        found.is_some_and(|(count, last)| *count >= TAKEN_BACK_MAX && now.since(*last) < FORGET)
    }

    fn repaired(&self, app: &str, object: &str, (field, by): (&str, &str)) {
        let repair = Repair {
            object: object.to_owned(),
            field: field.to_owned(),
            by: by.to_owned(),
            at: self.now().wall,
        };
        log::warn!("app {app}: {object} {field} was changed by {by} and is reverted");
        let now = self.now().mono;
        let key = (object.to_owned(), field.to_owned());
        self.with_app(app, |drift| {
            drift
                .counts
                .retain(|_, (_, last)| now.since(*last) < FORGET);
            let (count, last) = drift.counts.entry(key).or_insert((0, now));
            (*count, *last) = (count.saturating_add(1), now);
            drift.repairs.push_back(repair);
            if drift.repairs.len() > REPAIRS_MAX {
                drift.repairs.pop_front();
            }
        });
    }

    fn with_app(&self, app: &str, change: impl FnOnce(&mut AppDrift)) {
        change(
            self.drift
                .by_app
                .borrow_mut()
                .entry(app.to_owned())
                .or_default(),
        );
    }

    /// Has what is left alone tried again.
    pub(super) fn forget_drift(&self, app: &str) {
        self.drift.by_app.borrow_mut().remove(app);
        let known = self.known.borrow();
        let inventory = known.get(app).map(|app| (app, app.inventory.iter()));
        let mut verified = self.drift.verified.borrow_mut();
        for (app, entry) in inventory
            .into_iter()
            .flat_map(|(app, all)| all.map(move |it| (app, it)))
        {
            verified.remove(&name(app, entry));
        }
        drop((known, verified));
        self.drift.wake();
    }

    /// Ends the watches, for as long as another agent keeps the apps as they were deployed.
    pub(super) fn stop_drift(&self) {
        self.drift.watches.take();
        self.drift.seen.take();
        self.drift.verified.take();
        self.drift.by_app.take();
        self.report_drift();
    }

    /// One condition for everything that is not as it was deployed and stays so.
    fn report_drift(&self) {
        let mut sentences = Vec::new();
        for (app, drift) in &*self.drift.by_app.borrow() {
            let missing = drift.missing.iter();
            sentences.extend(missing.map(|object| {
                (
                    sentences::app_lost(app, object),
                    format!(
                        "restore {object} from a backup, or deploy {app} again for an empty one"
                    ),
                )
            }));
            sentences.extend(drift.stuck().map(|(object, error)| {
                let sentence = sentences::app_not_put_back(app, object, &error.sentence());
                (sentence, error.fix.clone().unwrap_or_default())
            }));
        }
        for app in self.known.borrow().values() {
            let left = app.left.iter();
            sentences.extend(left.map(|left| {
                let field = (left.object.as_str(), left.field.as_str());
                let (sentence, fix) = if left.field == DELETED {
                    (
                        sentences::app_object_left(&app.name, &left.object),
                        "take it out of the manifests, or end what deletes it and",
                    )
                } else if left.object.starts_with("HelmChart") {
                    (
                        sentences::app_chart_changed(&app.name, field, &left.by),
                        "have the manifests say the same, or deploy them again, and then",
                    )
                } else {
                    (
                        sentences::app_field_left(&app.name, field, &left.by),
                        "take the field out of the manifests, or end what changes it and",
                    )
                };
                (
                    sentence,
                    format!("{fix} sudo pipeops-agent apps resume {}", app.name),
                )
            }));
        }
        for ((namespace, _), watched) in &*self.drift.watches.borrow() {
            if let Some(failure) = watched
                .failure
                .as_ref()
                .filter(|it| it.retry == Retry::Later)
            {
                let sentence = sentences::apps_not_watched(namespace, &failure.what);
                sentences.push((sentence, failure.fix.clone().unwrap_or_default()));
            }
        }
        let more = sentences.len().saturating_sub(1);
        match sentences.into_iter().next() {
            None => self.shared_state.clear(CONDITION),
            Some((sentence, fix)) => {
                let sentence = sentences::with_count(&sentence, more);
                self.shared_state
                    .report(CONDITION, Severity::Warning, sentence, Some(fix));
            }
        }
    }

    /// Repairs and fields that are left alone, for answers.
    pub(super) fn drift_of(&self, app: &App) -> Value {
        let by_app = self.drift.by_app.borrow();
        let drift = by_app.get(&app.name);
        let repairs = drift.map(|drift| &drift.repairs).into_iter().flatten();
        let repairs: Vec<_> = repairs
            .map(|it| json!({"object": it.object, "field": it.field, "by": it.by, "at": it.at.rfc3339()}))
            .collect();
        let left: Vec<_> = app
            .left
            .iter()
            .map(|it| json!({"object": it.object, "field": it.field, "by": it.by}))
            .collect();
        let missing = drift.map(|drift| drift.missing.clone()).unwrap_or_default();
        let stuck = drift.map(|drift| {
            drift.stuck().map(|(object, error)| {
            json!({"object": object, "sentence": error.sentence(), "fix": error.fix})
        })
        });
        let stuck: Vec<_> = stuck.into_iter().flatten().collect();
        json!({"repaired": repairs, "left": left, "missing": missing, "stuck": stuck})
    }
}

/// The object of an entry.
fn name(app: &App, entry: &InventoryEntry) -> Name {
    (
        app.namespace.clone(),
        entry.kind.clone(),
        entry.name.clone(),
    )
}

//! Cluster as an app may change it, object by object, as the account that deploys: compare, try,
//! write, delete. Ours only.
//!
//! Each write looks at the Lease right before it is sent, and names the UID of its object and the
//! version that it changes: a Lease does not stop a process that was paused in between.
//!
//! Errors say by [`Retry`] what they are: `Soon`, the API server does not answer; `Later`, somebody
//! has to let the account in first; `Never`, it refuses this.

use std::{collections::BTreeSet, time::Duration};

use litemap::LiteMap;
use serde_json::{Value, json};

use super::{
    super::lease_gate::LeaseGate,
    account::Account,
    fail_points,
    observe::{has_none, observe},
};
use crate::{
    core::{
        apps::{
            App, CREATE_FIRST, Difference, HOLDER, Head, InventoryEntry, Kind, MANAGER, Manifest,
            NONCE, Overlay, Ownership, REPLICAS, adopted, as_applied, differences, handed_over,
            is_autoscaled, last_changed_by, lost, managed_fields, owns_replicas, place,
            without_replicas,
        },
        order::OrderExt as _,
        rollout::{Key, Observation},
    },
    error::{Error, Retry},
    host::clock,
    kube::{
        Client, Detail, Error as ApiError, Identity, Patch, Propagation,
        watch::{Event, Watch},
    },
    wire::{json::fields, kube::rights::RULES_REVIEWS},
};

/// Tries to change an object, while its controllers change it as well.
const TRIES_MAX: usize = 8;

/// Time for the kubelet to answer with a log.
const LOG_WITHIN: Duration = Duration::from_secs(15);

/// Head of an object, as far as it says whose it is.
#[derive(Debug, Default)]
struct LiveObject {
    metadata: LiveMetadata,
}
fields!(LiveObject { metadata });

#[derive(Debug, Default)]
struct LiveMetadata {
    uid: String,
    resource_version: String,
    annotations: LiteMap<String, String>,
    finalizers: Vec<String>,
    owner_references: Vec<Value>,
    managed_fields: Vec<Value>,
}
fields!(LiveMetadata {
    uid,
    resource_version: "resourceVersion",
    annotations,
    finalizers,
    owner_references: "ownerReferences",
    managed_fields: "managedFields"
});

impl LiveObject {
    fn head(&self) -> Head<'_> {
        let nonce = self.metadata.annotations.get(NONCE);
        Head {
            uid: &self.metadata.uid,
            nonce: nonce.map(String::as_str).unwrap_or_default(),
        }
    }
}

/// Failure of a call under the account.
pub(super) enum CallError {
    /// It was not sent: there is no token, or another agent holds the Lease.
    NotSent(Error),
    /// The API server refuses the call, or does not answer.
    Api(ApiError),
}

impl From<Error> for CallError {
    fn from(error: Error) -> Self {
        Self::NotSent(error)
    }
}

/// The cluster, as one account may change it.
#[derive(Debug)]
pub struct Cluster<'a> {
    /// Connection.
    pub client: &'a Client,
    pub account: &'a Account,
    /// Permission to write.
    pub lease_gate: &'a LeaseGate,
}

/// An object of ours that is not as it was deployed.
#[derive(Debug)]
pub struct Drifted {
    /// Fields that differ.
    pub fields: Vec<Difference>,
    /// Field manager that changed it last.
    pub by: String,
    /// The object as it is.
    pub live: Value,
}

/// Generations of the objects of a version.
pub type Targets = std::collections::BTreeMap<Key, u64>;

/// Key of a manifest's object in an observation.
pub fn key(manifest: &Manifest) -> Key {
    Key {
        kind: manifest.kind.name.to_string(),
        namespace: manifest.namespace.clone(),
        name: manifest.name.clone(),
    }
}

impl Cluster<'_> {
    /// Makes a call as the account; once more with a new token where this one is not accepted.
    pub(super) async fn call<T>(
        &self,
        call: impl AsyncFnMut(&Identity) -> Result<T, ApiError>,
    ) -> Result<T, CallError> {
        self.call_after(|| Ok(()), call).await
    }

    /// Makes a call that writes.
    pub(super) async fn write_call<T>(
        &self,
        call: impl AsyncFnMut(&Identity) -> Result<T, ApiError>,
    ) -> Result<T, CallError> {
        let check = || self.lease_gate.check(clock::now().mono);
        let called = self.call_after(check, call).await;
        if called.is_ok() {
            fail_points::after("object");
        }
        called
    }

    /// Makes a call after a check that comes last, because a token may take its time.
    async fn call_after<T>(
        &self,
        check: impl Fn() -> Result<(), Error>,
        mut call: impl AsyncFnMut(&Identity) -> Result<T, ApiError>,
    ) -> Result<T, CallError> {
        let identity = self.account.identity().await?;
        check()?;
        let first = call(&identity).await;
        if !matches!(first, Err(ApiError::Refused { status: 401, .. })) {
            return first.map_err(CallError::Api);
        }
        self.account.refused();
        let identity = self.account.identity().await?;
        check()?;
        call(&identity).await.map_err(CallError::Api)
    }

    async fn find(&self, path: &str) -> Result<Option<LiveObject>, CallError> {
        let found = self
            .call(async |identity| self.client.get_as::<LiveObject>(identity, path).await)
            .await;
        match found {
            Err(CallError::Api(error)) if error.is_not_found() => Ok(None),
            found => found.map(Some),
        }
    }

    /// Refuses objects that exist and are not ours, before anything is written. Objects of ours
    /// that somebody deleted are forgotten, so that they are created again.
    pub async fn only_ours(&self, app: &mut App, manifests: &[Manifest]) -> Result<(), Error> {
        for manifest in manifests {
            self.account.may_have(&manifest.kind)?;
            let found = self.find(&manifest.path()).await;
            let found = found.map_err(|failed| self.explained(manifest, failed))?;
            let entry = InventoryEntry::of(manifest);
            match app.ownership(&entry, found.as_ref().map(LiveObject::head)) {
                Ownership::Ours(_) => {}
                Ownership::Free => app.record_uid(&entry, ""),
                Ownership::Others => return Err(foreign(app, manifest)),
            }
        }
        Ok(())
    }

    /// Takes objects of others into the inventory, but none of another app (`taken`, by UID) and
    /// none that a controller made.
    pub async fn adopt(
        &self,
        app: &mut App,
        manifests: &[Manifest],
        taken: &BTreeSet<String>,
    ) -> Result<(), Error> {
        for manifest in manifests {
            self.account.may_have(&manifest.kind)?;
            let found = self.find(&manifest.path()).await;
            let found = found.map_err(|failed| self.explained(manifest, failed))?;
            let entry = InventoryEntry::of(manifest);
            let (Some(found), Ownership::Others) = (
                &found,
                app.ownership(&entry, found.as_ref().map(LiveObject::head)),
            ) else {
                continue;
            };
            let uid = &found.metadata.uid;
            let refused =
                |why: &str| Error::new(format!("{} is not adopted", manifest.in_words())).why(why);
            if manifest.kind.name == "Job" {
                return Err(refused("a Job cannot be changed, so it would run again")
                    .fix("give it another name in the manifest"));
            }
            if taken.contains(uid) {
                return Err(refused("it belongs to another app")
                    .fix("remove it from the manifests of one of them"));
            }
            if !found.metadata.owner_references.is_empty() {
                return Err(refused(
                    "another object owns it (ownerReferences) and would delete it",
                )
                .fix("give it another name in the manifest"));
            }
            app.adopt(&entry, uid, app.next_number());
        }
        Ok(())
    }

    /// Has the API server try everything without keeping it. No object is bound to its UID: one
    /// that is recreated meanwhile is no mistake of the manifest, and each write looks at it again.
    pub async fn dry_run(&self, app: &App, manifests: &[Manifest]) -> Result<(), Error> {
        for manifest in manifests {
            self.account.may_have(&manifest.kind)?;
            let is_there = app.uid(&InventoryEntry::of(manifest)).is_some();
            if manifest.kind.name == "Job" && is_there {
                self.try_again(manifest).await?;
                continue;
            }
            let mut object = manifest.object.clone();
            if let Some((field, _)) = without_rolling(manifest) {
                // What stands in its way goes before it is written.
                place(&mut object, &["spec", field], json!({}));
            }
            let tried = self.call(async |identity| {
                let path = format!("{}&dryRun=All", applied(manifest));
                self.client
                    .patch_as::<_, LiveObject>(identity, &path, Patch::Apply, &object)
                    .await
            });
            let tried = tried.await;
            tried.map_err(|failed| self.explained(manifest, failed))?;
        }
        Ok(())
    }

    /// Tries a Job that is there. It cannot be changed and is made again, so another one like it is
    /// tried; a quota that counts both of them says nothing.
    async fn try_again(&self, manifest: &Manifest) -> Result<(), Error> {
        let mut object = manifest.object.clone();
        if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
            metadata.remove("name");
            metadata.insert(
                "generateName".to_owned(),
                json!(format!("{}-", manifest.name)),
            );
        }
        let path = manifest.kind.path(&manifest.namespace, "");
        let path = format!("{path}?fieldManager={MANAGER}&dryRun=All");
        let tried = self.call(async |identity| {
            self.client
                .create_as::<_, LiveObject>(identity, &path, &object)
                .await
        });
        match tried.await {
            Err(
                failed @ CallError::Api(ApiError::Refused {
                    status: 400 | 422, ..
                }),
            ) => Err(self.explained(manifest, failed)),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Differences between our object and what was deployed; `None`: there are none, or it is not
    /// ours.
    pub async fn drifted(&self, app: &App, manifest: &Manifest) -> Result<Option<Drifted>, Error> {
        let found = self.tried(app, manifest).await?;
        Ok(found.and_then(|(live, tried)| {
            let fields = differences(&live, &tried);
            let by = last_changed_by(&live).to_owned();
            (!fields.is_empty()).then_some(Drifted { fields, by, live })
        }))
    }

    /// Differences that writing an object would make; none where it is not there yet.
    pub async fn differences(
        &self,
        app: &App,
        manifest: &Manifest,
    ) -> Result<Vec<Difference>, Error> {
        let entry = InventoryEntry::of(manifest);
        let Some((live, tried)) = self.tried(app, manifest).await? else {
            return Ok(Vec::new());
        };
        let mut found = differences(&live, &tried);
        let is_replicas = |difference: &Difference| difference.field == REPLICAS;
        if found.iter().any(is_replicas) && self.is_scaled(manifest, &[]).await? {
            found.retain(|difference| !is_replicas(difference));
        }
        if app.is_adopted(&entry) {
            let gone = |field| Difference {
                field,
                from: json!("(set by kubectl)"),
                to: Value::Null,
            };
            let lost = lost(managed_fields(&live), managed_fields(&tried));
            found.extend(lost.into_iter().map(gone));
        }
        Ok(found)
    }

    /// An object as it is, and as writing it would make it; `None` where it is not there yet, or is
    /// a Job.
    async fn tried(&self, app: &App, manifest: &Manifest) -> Result<Option<(Value, Value)>, Error> {
        self.account.may_have(&manifest.kind)?;
        let uid = app.uid(&InventoryEntry::of(manifest));
        let path = format!("{}&dryRun=All", applied(manifest));
        let object = bound(manifest, uid);
        let explained = |failed| self.explained(manifest, failed);
        if uid.is_some() && manifest.kind.name == "Job" {
            // It is made again, because it cannot be changed: nothing can be tried.
            return Ok(None);
        }
        let tried = self.call(async |identity| {
            let apply = Patch::Apply;
            self.client
                .patch_as::<_, Value>(identity, &path, apply, &object)
                .await
        });
        let tried = tried.await.map_err(explained)?;
        if uid.is_none() {
            return Ok(None);
        }
        let path = manifest.path();
        let live = self.call(async |identity| self.client.get_as::<Value>(identity, &path).await);
        let live = live.await.map_err(explained)?;
        Ok(Some((live, tried)))
    }

    /// Name of the HorizontalPodAutoscaler of a workload.
    pub async fn autoscaler(
        &self,
        namespace: &str,
        (kind, name): (&str, &str),
    ) -> Result<Option<String>, Error> {
        let path = format!("/apis/autoscaling/v2/namespaces/{namespace}/horizontalpodautoscalers");
        let mut found = None;
        let listed = self
            .call(async |identity| {
                let each = |scaler: Value| {
                    let text = |pointer: &str| scaler.pointer(pointer).and_then(Value::as_str);
                    let is_meant = text("/spec/scaleTargetRef/kind") == Some(kind)
                        && text("/spec/scaleTargetRef/name") == Some(name);
                    if is_meant {
                        found = text("/metadata/name").map(str::to_owned);
                    }
                };
                self.client
                    .list_as(identity, &path, Detail::Whole, each)
                    .await
            })
            .await;
        listed.map_err(|failed| self.failed(namespace, failed))?;
        Ok(found)
    }

    /// Returns whether a HorizontalPodAutoscaler, of these manifests or of the cluster, sets the
    /// number of Pods of a workload.
    async fn is_scaled(&self, manifest: &Manifest, all: &[Manifest]) -> Result<bool, Error> {
        if Overlay::key(manifest).is_none() {
            return Ok(false);
        }
        let workload = (&*manifest.kind.name, manifest.name.as_str());
        Ok(is_autoscaled(all, manifest)
            || self
                .autoscaler(&manifest.namespace, workload)
                .await?
                .is_some())
    }

    /// Gives the number of Pods of a workload to another field manager, as it is. Returns the
    /// version of the object then.
    async fn hand_over(&self, manifest: &Manifest, uid: &str) -> Result<Option<String>, CallError> {
        let path = manifest.path();
        let live = self.call(async |identity| self.client.get_as::<Value>(identity, &path).await);
        let Some(object) = handed_over(manifest, &live.await?) else {
            return Ok(None);
        };
        if object.pointer("/metadata/uid").and_then(Value::as_str) != Some(uid) {
            return Ok(None);
        }
        let path = format!("{path}?fieldManager={HOLDER}");
        let handed = self
            .write_call(async |identity| {
                self.client
                    .patch_as::<_, LiveObject>(identity, &path, Patch::Apply, &object)
                    .await
            })
            .await?;
        Ok(Some(handed.metadata.resource_version))
    }

    /// Writes one object of a version (`all`), and returns its UID. What is not there is created
    /// and never applied: where somebody was faster, this fails and their object stays as it is.
    /// The number of Pods of a workload that is there and has an autoscaler stays as that left it.
    pub async fn write(
        &self,
        app: &App,
        (manifest, all): (&Manifest, &[Manifest]),
    ) -> Result<String, Error> {
        self.account.may_have(&manifest.kind)?;
        let entry = InventoryEntry::of(manifest);
        let is_scaled = self.is_scaled(manifest, all).await?;
        let form = if app.is_adopted(&entry) {
            adopted
        } else {
            as_applied
        };
        for _ in 0..TRIES_MAX {
            let found = self.find(&manifest.path()).await;
            let found = found.map_err(|failed| self.explained(manifest, failed))?;
            let Some(found) = found else {
                let nonce = app.nonce(&entry).unwrap_or_default();
                let created = match self.create(manifest, nonce).await {
                    // Somebody was faster, or a quota is being counted by others as well.
                    Err(CallError::Api(error)) if error.is_conflict() => continue,
                    created => created.map_err(|failed| self.explained(manifest, failed))?,
                };
                self.note(manifest, &created, as_applied).await?;
                return Ok(created.metadata.uid);
            };
            if app.ownership(&entry, Some(found.head())) == Ownership::Others {
                return Err(foreign(app, manifest));
            }
            let version = self.note(manifest, &found, form).await?;
            let (uid, fields) = (found.metadata.uid, &found.metadata.managed_fields);
            let version = match self.clear_strategy(manifest, (&uid, version)).await {
                Ok(version) => version,
                Err(CallError::Api(error)) if error.is_conflict() => continue,
                Err(failed) => return Err(self.explained(manifest, failed)),
            };
            let applied = if is_scaled {
                let noted = form(fields).unwrap_or_else(|| fields.clone());
                let is_owned = owns_replicas(&noted);
                self.apply_scaled(manifest, (&uid, version), is_owned).await
            } else {
                self.apply(manifest, (&uid, &version)).await
            };
            match applied {
                Ok(()) => return Ok(uid),
                // It was changed since it was looked at, or replaced.
                Err(CallError::Api(error)) if error.is_conflict() => {}
                Err(failed) => return Err(self.explained(manifest, failed)),
            }
        }
        Err(busy(manifest))
    }

    /// Takes `rollingUpdate` from a workload that is to have a strategy without it. The API server
    /// has set it, nobody owns it, so applying leaves it there, and both are refused. Returns the
    /// version of the object then.
    async fn clear_strategy(
        &self,
        manifest: &Manifest,
        (uid, version): (&str, String),
    ) -> Result<String, CallError> {
        let Some((field, strategy)) = without_rolling(manifest) else {
            return Ok(version);
        };
        let path = manifest.path();
        let live = self.call(async |identity| self.client.get_as::<Value>(identity, &path).await);
        let live = live.await?;
        let rolling = format!("/spec/{field}/rollingUpdate");
        if live.pointer(&rolling).is_none() {
            return Ok(version);
        }
        let path = format!("{path}?fieldManager={MANAGER}");
        let strategy = json!({
            "metadata": {"uid": uid, "resourceVersion": version},
            "spec": {field: {"type": strategy, "rollingUpdate": null}},
        });
        let cleared = self
            .write_call(async |identity| {
                self.client
                    .patch_as::<_, LiveObject>(identity, &path, Patch::Merge, &strategy)
                    .await
            })
            .await?;
        Ok(cleared.metadata.resource_version)
    }

    async fn create(&self, manifest: &Manifest, nonce: &str) -> Result<LiveObject, CallError> {
        let path = format!(
            "{}?fieldManager={MANAGER}",
            manifest.kind.path(&manifest.namespace, "")
        );
        let object = marked(manifest, nonce);
        self.write_call(async |identity| self.client.create_as(identity, &path, &object).await)
            .await
    }

    async fn apply(
        &self,
        manifest: &Manifest,
        (uid, version): (&str, &str),
    ) -> Result<(), CallError> {
        let path = applied(manifest);
        let mut object = bound(manifest, Some(uid));
        place(
            &mut object,
            &["metadata", "resourceVersion"],
            json!(version),
        );
        self.write_call(async |identity| {
            self.client
                .patch_as(identity, &path, Patch::Apply, &object)
                .await
        })
        .await
    }

    /// Applies a workload without its number of Pods, which is handed over first where it is ours.
    async fn apply_scaled(
        &self,
        manifest: &Manifest,
        (uid, mut version): (&str, String),
        is_owned: bool,
    ) -> Result<(), CallError> {
        if is_owned && let Some(newer) = self.hand_over(manifest, uid).await? {
            version = newer;
        }
        self.apply(&without_replicas(manifest), (uid, &version))
            .await
    }

    /// Notes an object that was created or adopted as applied, and returns its version then.
    async fn note(
        &self,
        manifest: &Manifest,
        found: &LiveObject,
        form: fn(&[Value]) -> Option<Vec<Value>>,
    ) -> Result<String, Error> {
        let path = manifest.path();
        let mut newest = None;
        for _ in 0..TRIES_MAX {
            let head = &newest.as_ref().unwrap_or(found).metadata;
            let Some(fields) = form(&head.managed_fields) else {
                return Ok(head.resource_version.clone());
            };
            let note = json!({"metadata": {
                "uid": found.metadata.uid, "resourceVersion": head.resource_version, "managedFields": fields,
            }});
            let noted = self
                .write_call(async |identity| {
                    let path = format!("{path}?fieldManager={MANAGER}");
                    self.client
                        .patch_as::<_, LiveObject>(identity, &path, Patch::Merge, &note)
                        .await
                })
                .await;
            match noted {
                Ok(noted) => return Ok(noted.metadata.resource_version),
                Err(CallError::Api(error)) if error.is_conflict() => {}
                Err(failed) => return Err(self.explained(manifest, failed)),
            }
            let found = self.find(&path).await;
            newest = found.map_err(|failed| self.explained(manifest, failed))?;
        }
        Err(busy(manifest))
    }

    /// UID of an object of the inventory; one that an interrupted write created is found by its
    /// nonce. `None`: it was never created, or is somebody else's.
    pub async fn uid(&self, app: &App, entry: &InventoryEntry) -> Result<Option<String>, Error> {
        if let Some(uid) = app.uid(entry) {
            return Ok(Some(uid.to_owned()));
        }
        let (Some(_nonce), Some(path)) = (app.nonce(entry), self.path(app, entry)?) else {
            return Ok(None);
        };
        let found = self.find(&path).await;
        let found = found.map_err(|failed| self.failed(&app.namespace, failed))?;
        let head = found.as_ref().map(LiveObject::head);
        Ok(match app.ownership(entry, head) {
            Ownership::Ours(uid) => Some(uid.to_owned()),
            Ownership::Free | Ownership::Others => None,
        })
    }

    /// Path of an object of the inventory, if the account may have it; `None`: a newer version of
    /// the agent knows its kind.
    fn path(&self, app: &App, entry: &InventoryEntry) -> Result<Option<String>, Error> {
        let Some(kind) = entry.known_kind() else {
            return Ok(None);
        };
        self.account.may_have(&kind)?;
        Ok(Some(kind.path(&app.namespace, &entry.name)))
    }

    /// Returns what keeps an object of the inventory from being gone: its finalizers, or that it is
    /// still there; `None`: it is gone.
    pub async fn remains(
        &self,
        app: &App,
        entry: &InventoryEntry,
    ) -> Result<Option<String>, Error> {
        let (Some(path), Some(uid)) = (self.path(app, entry)?, self.uid(app, entry).await?) else {
            return Ok(None);
        };
        let found = self.find(&path).await;
        let found = found.map_err(|failed| self.failed(&app.namespace, failed))?;
        let Some(found) = found.filter(|found| found.metadata.uid == uid) else {
            return Ok(None);
        };
        let name = entry.in_words(&app.namespace);
        let finalizers = found.metadata.finalizers.join(", ");
        Ok(Some(match finalizers.as_str() {
            "" => name,
            finalizers => format!("{name} (finalizers: {finalizers})"),
        }))
    }

    /// Deletes a Pod that keeps a controller from going on, if it is still the same one.
    pub async fn delete_pod(&self, namespace: &str, name: &str, uid: &str) -> Result<(), Error> {
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
        let policy = Propagation::Background;
        self.delete_exactly(namespace, (&path, uid), policy).await
    }

    /// Deletes an object of the inventory, if it is still the same one.
    pub async fn delete(
        &self,
        app: &App,
        entry: &InventoryEntry,
        policy: Propagation,
    ) -> Result<(), Error> {
        let (Some(path), Some(uid)) = (self.path(app, entry)?, self.uid(app, entry).await?) else {
            return Ok(());
        };
        let object = (path.as_str(), uid.as_str());
        let deleted = self.delete_exactly(&app.namespace, object, policy).await;
        deleted.map_err(|error| {
            let name = entry.in_words(&app.namespace);
            error.within(format!("{name} is not deleted"))
        })
    }

    async fn delete_exactly(
        &self,
        namespace: &str,
        object: (&str, &str),
        policy: Propagation,
    ) -> Result<(), Error> {
        let delete = async |identity: &Identity| {
            let client = self.client;
            client.delete_exactly_as(identity, object, policy).await
        };
        let deleted = self.write_call(delete).await;
        match deleted {
            Ok(()) => Ok(()),
            // Gone already, or replaced by somebody else's.
            Err(CallError::Api(error)) if error.is_not_found() || error.is_conflict() => Ok(()),
            Err(failed) => Err(self.failed(namespace, failed)),
        }
    }

    /// Everything that a verdict on objects of these kinds reads.
    pub async fn observe(&self, namespace: &str, kinds: &[Kind]) -> Result<Observation, Error> {
        for kind in kinds {
            self.account.may_have(kind)?;
        }
        let seen = self
            .call(async |identity| observe(self.client, identity, namespace, kinds).await)
            .await;
        seen.map_err(|failed| self.failed(namespace, failed))
    }

    /// Reads the end of the log of a container; of the one that ran before where that is meant.
    pub async fn log(&self, (namespace, pod): (&str, &str), query: &str) -> Result<Vec<u8>, Error> {
        let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}/log?{query}");
        let read = self
            .call(async |identity| self.client.read_as(identity, &path, LOG_WITHIN).await)
            .await;
        read.map_err(|failed| self.failed(namespace, failed))
    }

    /// A Secret; `None`: there is none of this name.
    pub async fn secret(&self, namespace: &str, name: &str) -> Result<Option<Value>, Error> {
        let path = format!("/api/v1/namespaces/{namespace}/secrets/{name}");
        let found = self
            .call(async |identity| self.client.get_as::<Value>(identity, &path).await)
            .await;
        match found {
            Err(CallError::Api(error)) if error.is_not_found() => Ok(None),
            found => found
                .map(Some)
                .map_err(|failed| self.failed(namespace, failed)),
        }
    }

    /// Lists a kind of this namespace and watches it until the watch ends; what belongs to the
    /// whole cluster as the agent itself. Leaves in `version` where to resume, and returns how many
    /// lines came.
    pub async fn watch(
        &self,
        (kind, namespace): (&Kind, &str),
        version: &mut Option<String>,
        mut on: impl FnMut(Event<Value>),
    ) -> Result<u32, Error> {
        self.account.may_have(kind)?;
        let of_cluster = kind.is_of_cluster();
        let path = kind.path(if of_cluster { "" } else { namespace }, "");
        let watch = Watch::whole(path);
        let mut lines = 0;
        let watched = if of_cluster {
            let as_agent = (self.client, &Identity::Agent);
            let round = watch.round(as_agent, version, &mut lines, &mut on);
            Box::pin(round).await.map_err(CallError::Api)
        } else {
            self.call(async |identity| {
                let round = watch.round((self.client, identity), version, &mut lines, &mut on);
                Box::pin(round).await
            })
            .await
        };
        match watched {
            Err(CallError::Api(error)) if has_none(kind, &error) => {
                on(Event::Restarted);
                on(Event::Synced);
                Ok(0)
            }
            watched => watched
                .map(|()| lines)
                .map_err(|failed| self.failed(namespace, failed)),
        }
    }

    /// The same with the heads of the objects only, as the account.
    pub async fn watch_heads(
        &self,
        (kind, namespace): (&Kind, &str),
        version: &mut Option<String>,
        mut on: impl FnMut(Event<Value>),
    ) -> Result<u32, Error> {
        self.account.may_have(kind)?;
        let watch = Watch::heads_whole(kind.path(namespace, ""));
        let mut lines = 0;
        let watched = self.call(async |identity| {
            let round = watch.round((self.client, identity), version, &mut lines, &mut on);
            Box::pin(round).await
        });
        let watched = watched.await;
        watched
            .map(|()| lines)
            .map_err(|failed| self.failed(namespace, failed))
    }

    /// Rights of the account in a namespace, in a form that compares.
    pub async fn rights(&self, namespace: &str) -> Result<Vec<String>, Error> {
        let ask = json!({"spec": {"namespace": namespace}});
        let answer = self
            .call(async |identity| {
                self.client
                    .create_as::<_, Value>(identity, RULES_REVIEWS, &ask)
                    .await
            })
            .await;
        let answer = answer.map_err(|failed| self.failed(namespace, failed))?;
        let rules = answer.pointer("/status/resourceRules");
        let rules = rules.and_then(Value::as_array).into_iter().flatten();
        let mut rules: Vec<_> = rules.map(Value::to_string).collect();
        rules.order();
        Ok(rules)
    }

    /// The error of a call that is about a whole namespace.
    fn failed(&self, namespace: &str, failed: CallError) -> Error {
        match failed {
            CallError::NotSent(error) => error,
            CallError::Api(error) => self
                .account
                .missing_rights(namespace, &error)
                .unwrap_or_else(|| Error::new(error.to_string()).retry(Retry::Soon)),
        }
    }

    /// The refusal of the API server about an object, with its fix. Values of Secrets and charts
    /// are not repeated: the API server quotes what it cannot read.
    fn explained(&self, manifest: &Manifest, failed: CallError) -> Error {
        let not_deployed = format!("{} is not deployed", manifest.in_words());
        let error = match failed {
            CallError::NotSent(error) => return error.within(not_deployed),
            CallError::Api(error) => error,
        };
        let namespace = &manifest.namespace;
        if let Some(error) = self.account.missing_rights(namespace, &error) {
            return error.within(not_deployed);
        }
        let what = Error::new(not_deployed);
        let ApiError::Refused {
            status, message, ..
        } = &error
        else {
            return what.why(error.to_string()).retry(Retry::Soon);
        };
        let is_confidential = manifest.kind.is_confidential();
        let why = if is_confidential {
            format!(
                "the API server refuses it (status {status}); its text is not shown, because it may quote values of the {}",
                manifest.kind.name
            )
        } else {
            message.clone()
        };
        match status {
            403 if message.contains("exceeded quota") => what
                .why(why)
                .fix(format!("kubectl -n {namespace} describe resourcequota")),
            403 => what
                .why(why)
                .fix("the text names what refuses it: a policy, a webhook, or a namespace that is being deleted"),
            // Of a kind that is not there nothing more is said.
            404 if !message.contains("namespaces ") => what.why(why).fix(CREATE_FIRST).retry(Retry::Later),
            404 => what
                .why(why)
                .fix(format!("kubectl create namespace {namespace}; {}", self.account.binding_command(namespace))),
            409 => what.why(why).fix(REPLACED),
            422 if message.contains("metadata.uid: ") => {
                what.why(why).fix(REPLACED).retry(Retry::Soon)
            }
            429 | 500..=599 if !is_of_manifest(message) => what.why(why).retry(Retry::Soon),
            _ if is_confidential => what
                .why(why)
                .fix(format!("kubectl -n {namespace} create --dry-run=server -f FILE shows it")),
            _ if is_for_ever(message) => what.why(why).fix(
                "it cannot be changed later: put its old value back, or give the object another name",
            ),
            _ => what.why(why).fix("correct the manifest"),
        }
    }
}

/// Returns whether a failure is the manifest's: the API server calls a field that it does not know,
/// or a size that it cannot read, an error of its own.
fn is_of_manifest(message: &str) -> bool {
    const WORDS: [&str; 2] = [
        "failed to create typed patch object",
        "unable to convert unstructured object",
    ];
    WORDS.iter().any(|word| message.contains(word))
}

/// Returns whether the API server refuses to change a field that is fixed once an object exists.
fn is_for_ever(message: &str) -> bool {
    const WORDS: [&str; 2] = [
        "immutable",
        "updates to statefulset spec for fields other than",
    ];
    WORDS.iter().any(|word| message.contains(word))
}

/// Fix of a refusal because the object is another than the one that was looked at.
const REPLACED: &str =
    "it was created, changed or replaced by something else meanwhile: look at it, and deploy again";

/// Field and name of the strategy of an object, where it is one that has no `rollingUpdate`.
fn without_rolling(manifest: &Manifest) -> Option<(&'static str, &'static str)> {
    let (field, strategy) = match &*manifest.kind.name {
        "Deployment" => ("strategy", "Recreate"),
        "StatefulSet" => ("updateStrategy", "OnDelete"),
        _ => return None,
    };
    let wanted = manifest.object.pointer(&format!("/spec/{field}/type"));
    (wanted.and_then(Value::as_str) == Some(strategy)).then_some((field, strategy))
}

/// Path under which an object is applied.
fn applied(manifest: &Manifest) -> String {
    format!("{}?fieldManager={MANAGER}&force=true", manifest.path())
}

fn busy(manifest: &Manifest) -> Error {
    Error::new(format!("{} keeps changing", manifest.in_words())).retry(Retry::Soon)
}

/// The object as it is applied: bound to the UID where there is one.
fn bound(manifest: &Manifest, uid: Option<&str>) -> Value {
    let mut object = manifest.object.clone();
    if let Some(uid) = uid {
        place(&mut object, &["metadata", "uid"], json!(uid));
    }
    object
}

/// The object as it is created: with its nonce.
fn marked(manifest: &Manifest, nonce: &str) -> Value {
    let mut object = manifest.object.clone();
    let path = ["metadata", "annotations", NONCE];
    place(&mut object, &path, json!(nonce));
    object
}

/// The refusal to touch an object of somebody else.
fn foreign(app: &App, manifest: &Manifest) -> Error {
    Error::new(format!("{} is not deployed", manifest.in_words()))
        .why(format!("it exists and does not belong to the app {}", app.name))
        .fix(format!(
            "give it another name in the manifest, or take it over: sudo pipeops-agent apps apply -f FILE --app {} --adopt --dry-run shows what that changes",
            app.name
        ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_manifest_is_to_blame_for_is_known_by_the_words_of_the_api_server() {
        assert!(is_of_manifest(
            "failed to convert new object (shop/web-data; /v1, Kind=PersistentVolumeClaim) to proper version: unable to convert unstructured object to /v1, Kind=PersistentVolumeClaim: quantities must match the regular expression"
        ));
        assert!(!is_of_manifest("etcdserver: request timed out"));
        for refusal in [
            "Deployment.apps \"web\" is invalid: spec.selector: Invalid value: {}: field is immutable",
            "PersistentVolumeClaim \"data\" is invalid: spec: Forbidden: spec is immutable after creation except resources.requests",
            "StatefulSet.apps \"db\" is invalid: spec: Forbidden: updates to statefulset spec for fields other than 'replicas', 'template' are forbidden",
        ] {
            assert!(is_for_ever(refusal), "{refusal}");
        }
    }
}

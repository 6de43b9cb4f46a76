//! What an app does to the cluster, object by object, as the account that deploys: compare, try, write, delete. Ours only.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{account::Account, observe::observe};
use crate::{
    core::{
        apps::{App, CHANGE, Entry, MANAGER, Manifest},
        rollout::{Key, Observation},
    },
    error::{Error, Retry},
    kube::{Client, Error as Refusal, Identity},
    wire::json::fields,
};

/// Head of an object, as far as it says whose it is.
#[derive(Debug, Default)]
struct Found {
    metadata: FoundMetadata,
}
fields!(Found { metadata });

#[derive(Debug, Default)]
struct FoundMetadata {
    uid: String,
    generation: u64,
    annotations: BTreeMap<String, String>,
    finalizers: Vec<String>,
}
fields!(FoundMetadata {
    uid,
    generation,
    annotations,
    finalizers
});

/// The cluster, as one account may change it.
#[derive(Debug)]
pub struct Cluster<'a> {
    /// Connection.
    pub client: &'a Client,
    /// Account.
    pub account: &'a Account,
    /// Id of the change.
    pub change: &'a str,
}

/// Generations of the objects of a version.
pub type Targets = BTreeMap<Key, u64>;

/// Key of a manifest's object in an observation.
pub fn key(manifest: &Manifest) -> Key {
    Key {
        kind: manifest.kind.name.to_owned(),
        namespace: manifest.namespace.clone(),
        name: manifest.name.clone(),
    }
}

impl Cluster<'_> {
    async fn identity(&self) -> Result<Identity, Error> {
        self.account.identity().await.map_err(|why| {
            let (why, fix) = why.split_once("; fix: ").unwrap_or((&why, ""));
            Error::new("the account that deploys apps cannot be used")
                .why(why)
                .fix(fix)
                .retry(Retry::Later)
        })
    }

    /// Refuses objects that exist and are not ours, before anything is written.
    pub async fn only_ours(&self, app: &App, manifests: &[Manifest]) -> Result<(), Error> {
        let identity = self.identity().await?;
        for manifest in manifests {
            let found = self
                .client
                .get_as::<Found>(&identity, &manifest.path())
                .await;
            let found = match found {
                Err(error) if error.is_not_found() => continue,
                found => found.map_err(|error| self.explained(manifest, &error))?,
            };
            let uid = app.uid(&Entry::of(manifest));
            let is_ours = match uid {
                Some("") => {
                    found.metadata.annotations.get(CHANGE).map(String::as_str) == Some(self.change)
                }
                Some(uid) => uid == found.metadata.uid,
                None => false,
            };
            if !is_ours {
                let object = manifest.in_words();
                return Err(Error::new(format!("{object} is not deployed"))
                    .why(format!("it exists and does not belong to the app {}", app.name))
                    .fix(format!("give it another name in the manifest, or delete the other one first: kubectl -n {} delete {} {}", manifest.namespace, manifest.kind.plural, manifest.name))
                    .retry(Retry::Never));
            }
        }
        Ok(())
    }

    /// Has the API server try everything without keeping it.
    pub async fn dry_run(&self, app: &App, manifests: &[Manifest]) -> Result<(), Error> {
        let identity = self.identity().await?;
        // A Job that is there is made again, because it cannot be changed.
        let is_tried = |manifest: &&Manifest| {
            let is_there = app
                .uid(&Entry::of(manifest))
                .is_some_and(|uid| !uid.is_empty());
            manifest.kind.name != "Job" || !is_there
        };
        for manifest in manifests.iter().filter(is_tried) {
            let path = format!(
                "{}?fieldManager={MANAGER}&force=true&dryRun=All",
                manifest.path()
            );
            let object = self.object(app, manifest);
            let tried: Result<(), _> = self.client.apply_as(&identity, &path, &object).await;
            tried.map_err(|error| self.explained(manifest, &error))?;
        }
        Ok(())
    }

    /// Writes one object, and returns its UID and generation. What is not ours yet is not forced: where somebody made it in between, their
    /// values win and this fails.
    pub async fn apply(&self, app: &App, manifest: &Manifest) -> Result<(String, u64), Error> {
        let identity = self.identity().await?;
        let is_known = app
            .uid(&Entry::of(manifest))
            .is_some_and(|uid| !uid.is_empty());
        let force = if is_known { "&force=true" } else { "" };
        let path = format!("{}?fieldManager={MANAGER}{force}", manifest.path());
        let object = self.object(app, manifest);
        let written: Result<Found, _> = self.client.apply_as(&identity, &path, &object).await;
        let written = written.map_err(|error| self.explained(manifest, &error))?;
        Ok((written.metadata.uid, written.metadata.generation))
    }

    /// Returns what keeps an object of the inventory from being gone: its finalizers, or that it is still there; `None`: it is gone.
    pub async fn remains(&self, app: &App, entry: &Entry) -> Result<Option<String>, Error> {
        let (Some(path), false) = (entry.path(&app.namespace), entry.uid.is_empty()) else {
            return Ok(None);
        };
        let identity = self.identity().await?;
        let found = match self.client.get_as::<Found>(&identity, &path).await {
            Err(error) if error.is_not_found() => return Ok(None),
            found => found.map_err(|error| Error::new(error.to_string()).retry(Retry::Soon))?,
        };
        let name = format!("{} {}/{}", entry.kind, app.namespace, entry.name);
        let finalizers = found.metadata.finalizers.join(", ");
        Ok(
            (found.metadata.uid == entry.uid).then(|| match finalizers.as_str() {
                "" => name,
                finalizers => format!("{name} (finalizers: {finalizers})"),
            }),
        )
    }

    /// Deletes a Pod that keeps a controller from going on, if it is still the same one.
    pub async fn delete_pod(&self, namespace: &str, name: &str, uid: &str) -> Result<(), Error> {
        let identity = self.identity().await?;
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
        let deleted = self.client.delete_exactly_as(&identity, &path, uid).await;
        deleted.map_err(|error| Error::new(error.to_string()).retry(Retry::Soon))
    }

    /// Everything that a verdict on these objects reads.
    pub async fn observe(&self, namespace: &str, targets: &Targets) -> Result<Observation, Error> {
        let identity = self.identity().await?;
        let kinds = targets.keys().map(|key| key.kind.as_str()).collect();
        let seen = observe(self.client, &identity, namespace, &kinds).await;
        seen.map_err(|error| {
            if matches!(error, Refusal::Refused { status: 401, .. }) {
                self.account.refused();
            }
            Error::new(error.to_string()).retry(Retry::Soon)
        })
    }

    /// Deletes an object of the inventory, if it is still the same one.
    pub async fn delete(&self, app: &App, entry: &Entry) -> Result<(), Error> {
        let (Some(path), false) = (entry.path(&app.namespace), entry.uid.is_empty()) else {
            return Ok(());
        };
        let identity = self.identity().await?;
        match self
            .client
            .delete_exactly_as(&identity, &path, &entry.uid)
            .await
        {
            Ok(()) => Ok(()),
            // Gone already, or replaced by somebody else's.
            Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
            Err(error) => Err(Error::new(format!(
                "{} {}/{} is not deleted",
                entry.kind, app.namespace, entry.name
            ))
            .why(error.to_string())
            .retry(Retry::Soon)),
        }
    }

    /// The object as it is sent: marked with the change, and bound to the UID where there is one.
    fn object(&self, app: &App, manifest: &Manifest) -> Value {
        let mut object = manifest.object.clone();
        let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else {
            return object;
        };
        let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
        if let Some(annotations) = annotations.as_object_mut() {
            annotations.insert(CHANGE.to_owned(), json!(self.change));
        }
        if let Some(uid) = app.uid(&Entry::of(manifest)).filter(|uid| !uid.is_empty()) {
            metadata.insert("uid".to_owned(), json!(uid));
        }
        object
    }

    /// The refusal of the API server about an object, with its fix. Values of Secrets are not repeated: the API server quotes what it cannot
    /// read.
    fn explained(&self, manifest: &Manifest, error: &Refusal) -> Error {
        let what = Error::new(format!("{} is not deployed", manifest.in_words()));
        let Refusal::Refused {
            status,
            reason,
            message,
            ..
        } = error
        else {
            return what.why(error.to_string()).retry(Retry::Soon);
        };
        let is_secret = manifest.kind.name == "Secret";
        let why = if is_secret {
            format!(
                "the API server refuses it ({status} {reason}); its text is not shown, because it may quote the Secret"
            )
        } else {
            message.clone()
        };
        let namespace = &manifest.namespace;
        match status {
            401 => {
                self.account.refused();
                what.why(why).retry(Retry::Soon)
            }
            403 if message.contains("exceeded quota") => what
                .why(why)
                .fix(format!("kubectl -n {namespace} describe resourcequota"))
                .retry(Retry::Never),
            403 => what
                .why(why)
                .fix(format!("where the account may not deploy there yet: {}", self.account.binding_command(namespace)))
                .retry(Retry::Never),
            404 => what
                .why(why)
                .fix(format!("kubectl create namespace {namespace}; {}", self.account.binding_command(namespace)))
                .retry(Retry::Never),
            409 => what
                .why(why)
                .fix("it was changed or replaced by somebody else meanwhile: look at it, and deploy again")
                .retry(Retry::Never),
            429 | 500..=599 => what.why(why).retry(Retry::Soon),
            _ => what.why(why).fix("correct the manifest").retry(Retry::Never),
        }
    }
}

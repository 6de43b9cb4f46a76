//! Records and revisions of apps in the agent's namespace, read and written by the agent itself;
//! written only while it holds the Lease.

use std::rc::Rc;

use serde_json::Value;

use super::{super::lease_gate::LeaseGate, fail_points};
use crate::{
    core::{
        apps::{App, Manifest, place},
        order::OrderExt as _,
    },
    error::{self, Retry},
    host::clock,
    kube::{Client, Detail, Error, query_escaped},
    wire::{
        apps::{
            self, LABEL, Stored, is_record, pack, read_record, record_name, revision_name, unpack,
        },
        kube::{HeadOnly, Metadata},
    },
};

/// The place of the records.
#[derive(Clone, Debug)]
pub struct Ledger {
    client: Client,
    lease_gate: Rc<LeaseGate>,
    namespace: String,
}

/// A record with the version that a write must know.
#[derive(Clone, Debug, Default)]
pub struct AppRecord {
    /// The record.
    pub app: App,
    version: String,
}

impl AppRecord {
    /// The record of an app that is new.
    pub fn new(app: &str, namespace: &str) -> Self {
        Self {
            app: App {
                name: app.to_owned(),
                namespace: namespace.to_owned(),
                ..App::default()
            },
            version: String::new(),
        }
    }
}

impl Ledger {
    /// Records in the agent's namespace.
    pub fn new(client: Client, lease_gate: Rc<LeaseGate>, namespace: &str) -> Self {
        Self {
            client,
            lease_gate,
            namespace: namespace.to_owned(),
        }
    }

    fn path(&self, name: &str) -> String {
        format!("/api/v1/namespaces/{}/secrets/{name}", self.namespace)
    }

    fn all(&self) -> String {
        format!("/api/v1/namespaces/{}/secrets", self.namespace)
    }

    /// Reads a record; `None`: there is no such app.
    pub async fn read(&self, app: &str) -> Result<Option<AppRecord>, Error> {
        let Some(stored) = self.get(&record_name(app)).await? else {
            return Ok(None);
        };
        Ok(Some(AppRecord {
            app: read_record(&stored).map_err(Error::BadRequest)?,
            version: stored.metadata.resource_version,
        }))
    }

    async fn get(&self, name: &str) -> Result<Option<Stored>, Error> {
        match self.client.get(&self.path(name)).await {
            Err(error) if error.is_not_found() => Ok(None),
            found => found.map(Some),
        }
    }

    /// All apps, in the order of their names. Revisions have the same label and are not read: a
    /// page of them may be larger than any answer that is taken.
    pub async fn list(&self) -> Result<Vec<App>, Error> {
        let selector = query_escaped(&format!("{}={}", LABEL.0, LABEL.1));
        let path = format!("{}?labelSelector={selector}", self.all());
        let mut names = Vec::new();
        let each = |head: HeadOnly| {
            if is_record(&head.metadata.name) {
                names.push(head.metadata.name);
            }
        };
        self.client.list(&path, Detail::Head, each).await?;
        names.order();
        let mut apps = Vec::new();
        for name in names {
            let stored = self.get(&name).await?;
            apps.extend(stored.and_then(|stored| read_record(&stored).ok()));
        }
        Ok(apps)
    }

    /// Writes a record. It fails where somebody else wrote it since it was read.
    ///
    /// # Errors
    /// Reason why it is not written.
    pub async fn write(&self, read: &mut AppRecord) -> error::Result<()> {
        self.lease_gate.check(clock::now().mono)?;
        self.put(read).await.map_err(api_error)
    }

    /// Writes a record for a change, which goes on where the record was written since it was read:
    /// by its owner, or by a call of ours whose answer was lost.
    ///
    /// # Errors
    /// Reason why it is not written: among others, another change took the place of this one.
    pub async fn write_for(&self, change: &str, read: &mut AppRecord) -> error::Result<()> {
        self.lease_gate.check(clock::now().mono)?;
        match self.put(read).await {
            Err(error) if error.is_conflict() => {}
            put => return put.map_err(api_error),
        }
        let Some(written) = self.read(&read.app.name).await.map_err(api_error)? else {
            return Err(error::Error::new("the record of the app is gone"));
        };
        let last = written.app.change.as_ref();
        if last.is_some_and(|last| last.id != change) {
            return Err(error::Error::new(
                "another change of the app took its place",
            ));
        }
        read.version = written.version;
        read.app.take_owner_settings(written.app);
        self.write(read).await
    }

    async fn put(&self, read: &mut AppRecord) -> Result<(), Error> {
        let secret = apps::record(&read.app, &self.namespace, &read.version);
        let stored: Stored = if read.version.is_empty() {
            self.client.create(&self.all(), &secret).await?
        } else {
            let path = self.path(&record_name(&read.app.name));
            self.client.replace(&path, &secret).await?
        };
        read.version = stored.metadata.resource_version;
        fail_points::after("record");
        Ok(())
    }

    /// Keeps the content of a revision, in the place of what is kept under its number: that of a
    /// change that was cut off before it was accepted, or the same with Secrets of another day.
    ///
    /// # Errors
    /// Reason why it is not kept.
    pub async fn keep(&self, app: &str, number: u64, manifests: &[Manifest]) -> error::Result<()> {
        self.lease_gate.check(clock::now().mono)?;
        let secret = pack(app, number, &self.namespace, manifests);
        let mut secret = secret.map_err(|why| api_error(Error::BadRequest(why)))?;
        let kept = match self.client.create::<_, Stored>(&self.all(), &secret).await {
            Err(error) if error.is_conflict() => {
                let name = revision_name(app, number);
                if let Some(left) = self.version_of(&name).await? {
                    let version = Value::from(left.resource_version);
                    place(&mut secret, &["metadata", "resourceVersion"], version);
                }
                let path = self.path(&name);
                self.client.replace::<_, Stored>(&path, &secret).await
            }
            kept => kept,
        };
        fail_points::after("content of a revision");
        kept.map(drop).map_err(api_error)
    }

    /// The version of a Secret that is about to be written or deleted; `None`: it is gone. It is
    /// read before the Lease is looked at: an agent that is stopped right after that writes over
    /// nothing that another one wrote meanwhile.
    async fn version_of(&self, name: &str) -> error::Result<Option<Metadata>> {
        let found = self.get(name).await.map_err(api_error)?;
        self.lease_gate.check(clock::now().mono)?;
        Ok(found.map(|stored| stored.metadata))
    }

    /// The manifests of a revision; `None`: it is not kept.
    pub async fn manifests(&self, app: &str, number: u64) -> Result<Option<Vec<Manifest>>, Error> {
        let stored = self.get(&revision_name(app, number)).await?;
        let manifests = stored.as_ref().map(unpack).transpose();
        manifests.map_err(Error::BadRequest)
    }

    /// Forgets a revision.
    ///
    /// # Errors
    /// Reason why it is still there.
    pub async fn drop_revision(&self, app: &str, number: u64) -> error::Result<()> {
        self.delete(&revision_name(app, number)).await
    }

    /// Forgets an app with all its revisions.
    ///
    /// # Errors
    /// Reason why it is still there.
    pub async fn drop_app(&self, app: &App) -> error::Result<()> {
        for revision in &app.revisions {
            self.drop_revision(&app.name, revision.number).await?;
        }
        self.delete(&record_name(&app.name)).await
    }

    async fn delete(&self, name: &str) -> error::Result<()> {
        let Some(found) = self.version_of(name).await? else {
            return Ok(());
        };
        let version = (found.uid.as_str(), found.resource_version.as_str());
        let deleted = self.client.delete_version(&self.path(name), version).await;
        fail_points::after("deletion of a record or a revision");
        match deleted {
            Err(error) if error.is_not_found() => Ok(()),
            deleted => deleted.map_err(api_error),
        }
    }
}

/// An error of the API as one that says whether trying again can help.
#[expect(
    clippy::needless_pass_by_value,
    reason = "it is what map_err hands over"
)]
pub(super) fn api_error(failure: Error) -> error::Error {
    let retry = match &failure {
        Error::Refused {
            status: 401 | 403, ..
        } => {
            return error::Error::new("the agent may not read and write the records of its apps")
                .why(failure.to_string())
                .fix("pipeops-agent rbac | kubectl apply -f -")
                .retry(Retry::Later);
        }
        // It was written meanwhile: whoever tries again reads it first.
        Error::Refused { status, .. } if !matches!(status, 409 | 429 | 500..=599) => Retry::Never,
        Error::BadRequest(_) | Error::TooLarge { .. } | Error::Undecodable { .. } => Retry::Never,
        Error::Refused { .. }
        | Error::Unconfigured(_)
        | Error::Connection(_)
        | Error::NoAnswer { .. }
        | Error::Broken { .. }
        | Error::Service { .. } => Retry::Soon,
    };
    error::Error::new("the record of the app cannot be read or written")
        .why(failure.to_string())
        .fix("pipeops-agent doctor")
        .retry(retry)
}

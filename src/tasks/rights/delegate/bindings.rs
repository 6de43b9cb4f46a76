//! Bindings of the control plane's account in managed namespaces: created and removed.
//!
//! A binding is created when it is first needed. It is ours if it has our label and binds our role
//! to our account; no other binding is ever changed or removed.

use std::{cell::RefCell, time::Duration};

use litemap::LiteMap;
use smol::{Timer, lock::Mutex};

use crate::{
    core::{order::GatherExt as _, secret::Secret, time::Mono},
    host::clock,
    kube::{
        Client, Detail, Error, Identity,
        rbac::{ACCOUNT, MANAGED, Manifest},
    },
    wire::kube::{
        Metadata,
        rights::{
            ACCESS_REVIEWS, AccessReviewSpec, GROUP, ResourceAttributes, RoleBinding, RoleRef,
            SelfSubjectAccessReview, Subject,
        },
    },
};

/// Time for which a binding is trusted without another look.
const FRESH: Duration = Duration::from_secs(300);
/// Namespaces that are remembered.
const KNOWN_MAX: usize = 256;
/// Bindings that one sweep removes; the next one removes the rest.
const SWEPT_MAX: usize = 500;
/// Time until a new binding is effective. The API server learns of it through its own watch.
const IN_FORCE_WITHIN: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(50);
const LABEL: (&str, &str) = ("app.kubernetes.io/managed-by", "pipeops-agent");

/// The bindings of one agent.
#[derive(Debug)]
pub(super) struct Bindings {
    client: Client,
    manifest: Manifest,
    /// Namespaces with a binding that was seen: the UID of each, and until when that counts.
    known: RefCell<LiteMap<String, (String, Mono)>>,
    /// One at a time: calls that need the same one come together.
    making: Mutex<()>,
}

/// A namespace by name and UID: one that was deleted and created again has another UID.
#[derive(Clone, Copy, Debug)]
pub(super) struct NamespaceRef<'a> {
    pub(super) namespace: &'a str,
    pub(super) uid: &'a str,
}

impl Bindings {
    pub(super) fn new(client: Client, manifest: Manifest) -> Self {
        Self {
            client,
            manifest,
            known: RefCell::default(),
            making: Mutex::new(()),
        }
    }

    /// Returns whether one was seen here a short time ago.
    pub(super) fn is_known(&self, namespace_ref: NamespaceRef<'_>) -> bool {
        let now = clock::now().mono;
        let known = self.known.borrow();
        let found = known.get(namespace_ref.namespace);
        found.is_some_and(|(uid, until)| uid == namespace_ref.uid && now < *until)
    }

    /// Makes the binding of this namespace where it is missing. `token` is the account's.
    pub(super) async fn make(
        &self,
        namespace_ref: NamespaceRef<'_>,
        token: &Secret,
    ) -> Result<(), String> {
        let _one_at_a_time = self.making.lock().await;
        if self.is_known(namespace_ref) {
            return Ok(());
        }
        let namespace = namespace_ref.namespace;
        let wanted = self.wanted(namespace);
        let found = match self.found(namespace).await {
            Err(error) if error.is_not_found() => self.create(namespace, &wanted, token).await,
            found => found,
        };
        let found = found.map_err(|error| {
            format!(
                "{ACCOUNT} cannot be let into the namespace {namespace}: {error}; fix: {}",
                self.manifest.command()
            )
        })?;
        if !gives_the_same(&found, &wanted) {
            return Err(format!(
                "the RoleBinding {ACCOUNT} in the namespace {namespace} is not the agent's: it gives {} {}; fix: kubectl -n {namespace} delete rolebinding {ACCOUNT}",
                found.role_ref.kind, found.role_ref.name
            ));
        }
        self.remember(namespace_ref);
        Ok(())
    }

    async fn found(&self, namespace: &str) -> Result<RoleBinding, Error> {
        self.client.get(&path(namespace, ACCOUNT)).await
    }

    async fn create(
        &self,
        namespace: &str,
        wanted: &RoleBinding,
        token: &Secret,
    ) -> Result<RoleBinding, Error> {
        match self.client.create(&path(namespace, ""), wanted).await {
            Ok(made) => {
                log::info!("{ACCOUNT} was let into the namespace {namespace}");
                self.until_in_force(namespace, token).await;
                Ok(made)
            }
            // Another agent, or the same one before its restart, was faster.
            Err(error) if error.is_conflict() => self.found(namespace).await,
            Err(error) => Err(error),
        }
    }

    /// A call that comes too early would be refused; one that waited in vain is told why by the API
    /// server itself.
    async fn until_in_force(&self, namespace: &str, token: &Secret) {
        let question = SelfSubjectAccessReview {
            spec: AccessReviewSpec {
                resource_attributes: ResourceAttributes {
                    namespace: namespace.to_owned(),
                    verb: "create".to_owned(),
                    resource: "pods".to_owned(),
                    ..ResourceAttributes::default()
                },
            },
            ..SelfSubjectAccessReview::default()
        };
        let identity = Identity::Bearer(token.clone());
        let deadline = clock::now().mono.after(IN_FORCE_WITHIN);
        while clock::now().mono < deadline {
            let answer: Result<SelfSubjectAccessReview, _> = self
                .client
                .create_as(&identity, ACCESS_REVIEWS, &question)
                .await;
            match answer {
                Ok(answer) if answer.status.allowed => return,
                Ok(_) => Timer::after(LOOK_AGAIN).await,
                Err(error) => {
                    log::debug!("whether the binding in {namespace} is in force: {error}");
                    return;
                }
            };
        }
        log::warn!("the binding in the namespace {namespace} is not in force yet");
    }

    fn remember(&self, namespace_ref: NamespaceRef<'_>) {
        let now = clock::now().mono;
        let mut known = self.known.borrow_mut();
        known.retain(|_, (_, until)| now < *until);
        if known.len() < KNOWN_MAX {
            let seen = (namespace_ref.uid.to_owned(), now.after(FRESH));
            known.insert(namespace_ref.namespace.to_owned(), seen);
        }
    }

    /// Forgets that one was seen here: the next call that needs it looks again.
    pub(super) fn forget(&self, namespace: &str) {
        self.known.borrow_mut().remove(namespace);
    }

    /// The namespaces in which there is a binding of ours.
    pub(super) async fn ours(&self) -> Result<Vec<String>, Error> {
        let path = format!(
            "/apis/{GROUP}/v1/rolebindings?labelSelector={}%3D{}",
            LABEL.0.replace('/', "%2F"),
            LABEL.1
        );
        let mut namespaces = Vec::new();
        let each = |found: RoleBinding| {
            let namespace = found.metadata.namespace.clone();
            if self.is_ours(&found) && namespaces.len() < SWEPT_MAX {
                namespaces.push(namespace);
            }
        };
        self.client.list(&path, Detail::Whole, each).await?;
        Ok(namespaces)
    }

    fn is_ours(&self, found: &RoleBinding) -> bool {
        let label = found.metadata.labels.get(LABEL.0).map(String::as_str);
        found.metadata.name == ACCOUNT
            && label == Some(LABEL.1)
            && gives_the_same(found, &self.wanted(&found.metadata.namespace))
    }

    /// Removes ours, which [`Bindings::ours`] has named.
    pub(super) async fn remove(&self, namespace: &str) -> Result<(), Error> {
        let _one_at_a_time = self.making.lock().await;
        self.known.borrow_mut().remove(namespace);
        match self.client.delete(&path(namespace, ACCOUNT)).await {
            Err(error) if !error.is_not_found() => Err(error),
            Ok(()) | Err(_) => {
                log::info!("{ACCOUNT} is no longer let into the namespace {namespace}");
                Ok(())
            }
        }
    }

    /// Removes the binding that makes the account cluster-admin, where it is ours: that role, for
    /// this account alone.
    pub(super) async fn remove_full(&self, name: &str) -> Result<(), Error> {
        let path = format!("/apis/{GROUP}/v1/clusterrolebindings/{name}");
        let found: RoleBinding = match self.client.get(&path).await {
            Err(error) if error.is_not_found() => return Ok(()),
            found => found?,
        };
        let is_ours =
            found.role_ref.name == "cluster-admin" && found.subjects == self.wanted("").subjects;
        if !is_ours {
            return Err(Error::BadRequest(format!(
                "it is not the agent's: it gives {}",
                found.role_ref.name
            )));
        }
        match self.client.delete(&path).await {
            Err(error) if !error.is_not_found() => Err(error),
            Ok(()) | Err(_) => {
                log::warn!("{name} was removed: {ACCOUNT} is no longer cluster-admin");
                Ok(())
            }
        }
    }

    fn wanted(&self, namespace: &str) -> RoleBinding {
        RoleBinding {
            api_version: format!("{GROUP}/v1"),
            kind: "RoleBinding".to_owned(),
            metadata: Metadata {
                name: ACCOUNT.to_owned(),
                namespace: namespace.to_owned(),
                labels: std::iter::once((LABEL.0.to_owned(), LABEL.1.to_owned())).gather(),
                ..Metadata::default()
            },
            role_ref: RoleRef {
                api_group: GROUP.to_owned(),
                kind: "ClusterRole".to_owned(),
                name: self.manifest.wide(MANAGED),
            },
            subjects: vec![Subject {
                kind: "ServiceAccount".to_owned(),
                name: ACCOUNT.to_owned(),
                namespace: self.manifest.namespace().to_string(),
            }],
        }
    }
}

fn gives_the_same(found: &RoleBinding, wanted: &RoleBinding) -> bool {
    found.role_ref == wanted.role_ref && found.subjects == wanted.subjects
}

fn path(namespace: &str, name: &str) -> String {
    let path = format!("/apis/{GROUP}/v1/namespaces/{namespace}/rolebindings");
    if name.is_empty() {
        path
    } else {
        format!("{path}/{name}")
    }
}

//! Cluster queries for decisions about a call, cached for a moment: the lock, Pods, bindings.

use std::{cell::RefCell, time::Duration};

use litemap::LiteMap;
use serde_json::json;
use smol::lock::Mutex;

use super::Delegate;
use crate::{
    core::{
        policy::{self, Bound, Breach, PodSecurity},
        time::Mono,
    },
    host::clock,
    kube::{
        Detail, Error, Identity,
        rbac::{CLAIMS_NO_ADDRESS, check},
    },
    wire::kube::rights::{GROUP, RoleBinding},
};

/// Time for which the admission policies are trusted to be in force.
const LOCK_FRESH: Duration = Duration::from_secs(5);
/// The same where it does not: somebody may be mending it.
const OPEN_FRESH: Duration = Duration::from_secs(2);
/// Time for which a Pod is not read again. The judged fields do not change while it runs.
const POD_FRESH: Duration = Duration::from_secs(10);
/// Pods that are remembered.
const PODS_MAX: usize = 128;
/// Time for the API server to return a Pod.
const POD_WITHIN: Duration = Duration::from_secs(10);

/// Recent queries of the cluster.
#[derive(Debug, Default)]
pub(super) struct CachedQueries {
    lock: RefCell<Option<(Result<(), String>, Mono)>>,
    /// One look at the lock at a time.
    looking: Mutex<()>,
    pods: RefCell<LiteMap<PodKey, (Vec<Breach>, Mono)>>,
}

/// Namespace and name of a Pod, and the standard that it was judged by.
type PodKey = (String, String, PodSecurity);

impl CachedQueries {
    fn lock(&self) -> Option<Result<(), String>> {
        let now = clock::now().mono;
        let lock = self.lock.borrow();
        let (found, until) = lock.as_ref()?;
        (now < *until).then(|| found.clone())
    }

    fn pod(&self, key: &PodKey) -> Option<Vec<Breach>> {
        let now = clock::now().mono;
        let pods = self.pods.borrow();
        let (found, until) = pods.get(key)?;
        (now < *until).then(|| found.clone())
    }
}

impl Delegate {
    /// Returns whether the API server holds the account to the manifest's policy; an error says why
    /// it does not. `namespace` is a managed one.
    pub async fn lock(&self, namespace: &str) -> Result<(), String> {
        if let Some(found) = self.queries.lock() {
            return found;
        }
        let _one_at_a_time = self.queries.looking.lock().await;
        if let Some(found) = self.queries.lock() {
            return found;
        }
        let found = self.look_at_lock(namespace).await;
        let fresh = if found.is_ok() {
            LOCK_FRESH
        } else {
            OPEN_FRESH
        };
        let until = clock::now().mono.after(fresh);
        self.queries.lock.replace(Some((found.clone(), until)));
        found
    }

    /// The policy is as the manifest has it, and the API server goes by it: it may have been
    /// started without admission policies.
    async fn look_at_lock(&self, namespace: &str) -> Result<(), String> {
        let policy = self.manifest.wide("pipeops-cp-lock");
        let findings = check::compare_lock(&self.client, &self.manifest()).await;
        let findings = findings.map_err(|error| format!("cannot inspect {policy}: {error}"))?;
        if let Some(finding) = findings.first() {
            return Err(format!(
                "the {} is not as this agent's manifest has it",
                finding.object
            ));
        }
        let attempt = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "pipeops-attempt"},
            "spec": {"ports": [{"port": 1}], "externalIPs": ["192.0.2.1"]},
        });
        let path = format!("/api/v1/namespaces/{namespace}/services?dryRun=All");
        let identity = Identity::Bearer(self.token().await?);
        let answer: Result<(), Error> = self.client.create_as(&identity, &path, &attempt).await;
        match answer {
            Ok(()) => Err(format!(
                "the API server does not go by the ValidatingAdmissionPolicy {policy}"
            )),
            Err(Error::Refused { message, .. })
                if message.contains(&policy) && message.contains(CLAIMS_NO_ADDRESS) =>
            {
                Ok(())
            }
            Err(error) => Err(format!(
                "whether the API server goes by {policy} is not known: {error}"
            )),
        }
    }

    /// The fields of a Pod that a standard forbids; `None` where there is no such Pod.
    pub async fn breaches(
        &self,
        namespace: &str,
        name: &str,
        standard: PodSecurity,
    ) -> Result<Option<Vec<Breach>>, String> {
        let key = (namespace.to_owned(), name.to_owned(), standard);
        if let Some(found) = self.queries.pod(&key) {
            return Ok(Some(found));
        }
        let identity = Identity::Bearer(self.token().await?);
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
        let cannot = |why: String| {
            format!(
                "cannot inspect the Pod {namespace}/{name}: {why}; fix: {}",
                self.manifest().command()
            )
        };
        let pod = match self.client.read_as(&identity, &path, POD_WITHIN).await {
            Ok(pod) => pod,
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(cannot(error.to_string())),
        };
        let found = policy::breaches(&pod, standard).map_err(cannot)?;
        let now = clock::now().mono;
        let mut pods = self.queries.pods.borrow_mut();
        pods.retain(|_, (_, until)| now < *until);
        if pods.len() < PODS_MAX {
            pods.insert(key, (found.clone(), now.after(POD_FRESH)));
        }
        Ok(Some(found))
    }

    /// A binding that gives rights to accounts of a namespace of this name, by its kind and name;
    /// `None` where there is none.
    pub async fn binding_for(&self, namespace: &str) -> Result<Option<String>, String> {
        for (resource, kind) in [
            ("clusterrolebindings", "ClusterRoleBinding"),
            ("rolebindings", "RoleBinding"),
        ] {
            let mut found = None;
            let each = |binding: RoleBinding| {
                let gives = binding.subjects.iter().any(|subject| {
                    let subject = Bound {
                        kind: &subject.kind,
                        name: &subject.name,
                        namespace: &subject.namespace,
                    };
                    policy::lies_in(subject, namespace)
                });
                if gives && found.is_none() {
                    found = Some(binding.metadata.key());
                }
            };
            let path = format!("/apis/{GROUP}/v1/{resource}");
            let listed = self.client.list(&path, Detail::Whole, each).await;
            listed.map_err(|error| error.to_string())?;
            if let Some(name) = found {
                return Ok(Some(format!("the {kind} {name}")));
            }
        }
        Ok(None)
    }
}

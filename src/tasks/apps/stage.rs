//! Staging: namespaces and definitions of custom resources are created before the rest of an app is
//! tried, where root asks for it and has let the account do that. What is there is never changed.

use std::time::Duration;

use serde_json::Value;
use smol::Timer;

use super::{
    Apps,
    cluster::{CallError, Cluster},
    custom::{possible, resources},
    problem_error,
    requester::Requester,
};
use crate::{
    core::{
        apps::{
            Customs, InventoryEntry, MANAGER, Manifest, Owner, Staged, common_namespace, judged,
            not_built_in, staged,
        },
        rollout::POLL_INTERVAL,
    },
    error::{Error, Result, Retry},
    kube::query_escaped,
};

/// Time for the API server to serve what a definition defines.
const SERVED_WITHIN: Duration = Duration::from_secs(30);

impl Apps {
    /// Takes namespaces and definitions out of the objects of an app and has what is missing
    /// created, once all of it was tried. Returns them as they are then. Without somebody who asks
    /// for it nothing is created.
    ///
    /// # Errors
    /// Reason why the rest cannot be tried.
    pub(super) async fn stage(
        &self,
        (app, objects, namespace): (&str, &mut Vec<Value>, Option<&str>),
        requester: Option<&Requester>,
    ) -> Result<Vec<InventoryEntry>> {
        if requester.is_some_and(|requester| requester.owner != Owner::Machine) {
            return Ok(Vec::new());
        }
        let staged = staged(objects).map_err(problem_error)?;
        let Some(requester) = requester.filter(|_| !staged.is_empty()) else {
            return Ok(Vec::new());
        };
        let namespace = common_namespace(objects, namespace).map_err(problem_error)?;
        self.allowed(&namespace)?;
        let cluster = self.cluster(Owner::Machine);
        let (mut entries, mut missing) = (Vec::new(), Vec::new());
        for one in &staged {
            one.may_come(&namespace, objects).map_err(problem_error)?;
            match cluster.staged(one).await? {
                Some(uid) => entries.push(one.entry(&uid)),
                None => missing.push(one),
            }
        }
        if objects.is_empty() {
            return Err(Error::new("there is nothing to deploy")
                .why("the manifests hold only what comes before an app")
                .fix("kubectl apply -f FILE creates these alone")
                .retry(Retry::Later));
        }
        if missing.is_empty() {
            return Ok(entries);
        }
        let names: Vec<_> = missing.iter().map(|one| one.in_words()).collect();
        let names = names.join(", ");
        if !requester.is_root {
            return Err(Error::new("nothing was deployed")
                .why(format!(
                    "only root creates what belongs to the whole cluster: {names}"
                ))
                .fix("sudo pipeops-agent apps apply -f FILE, or kubectl apply")
                .retry(Retry::Later));
        }
        let rest = self.remainder(objects, &namespace)?;
        if !missing.iter().any(|one| one.is_namespace()) {
            let known = self.record_or_new(app, &namespace).await?.app;
            cluster.dry_run(&known, &rest).await?;
        }
        for one in &missing {
            cluster.create_staged(one, "&dryRun=All").await?;
        }
        let create = async {
            for one in missing {
                let uid = cluster.create_staged(one, "").await?;
                entries.push(one.entry(&uid));
                for api_version in one.serves(objects) {
                    self.until_served(one, &api_version).await?;
                }
            }
            Ok(entries)
        };
        self.audited((requester, &format!("create {names}")), create)
            .await
    }

    /// Judges the rest of an app by itself, before what it needs is there. Returns the objects that
    /// are built in.
    fn remainder(&self, objects: &[Value], namespace: &str) -> Result<Vec<Manifest>> {
        let mut customs = Customs::new();
        for (api_version, kind) in not_built_in(objects) {
            if let Some(any) = possible(&api_version, &kind) {
                self.account(Owner::Machine).may_have(&any)?;
                customs.insert((api_version, kind), any);
            }
        }
        let all = judged(objects.to_vec(), Some(namespace), &customs);
        let mut all = all.map_err(problem_error)?;
        all.retain(|manifest| !manifest.kind.is_custom());
        Ok(all)
    }

    /// Waits until the API server serves what a definition defines, in one version.
    async fn until_served(&self, one: &Staged, api_version: &str) -> Result<()> {
        let deadline = self.now().mono.after(SERVED_WITHIN);
        loop {
            let found = resources(&self.client, api_version).await;
            let all = found.as_ref().ok().and_then(|list| list.get("resources"));
            let mut all = all.and_then(Value::as_array).into_iter().flatten();
            if all.any(|it| it.get("name").and_then(Value::as_str) == Some(one.plural())) {
                return Ok(());
            }
            if self.now().mono >= deadline {
                return Err(Error::new(format!(
                    "nothing was deployed: {} is there, but {api_version} is not served",
                    one.in_words()
                ))
                .fix(format!("kubectl describe crd {} says why", one.name)));
            }
            Timer::after(POLL_INTERVAL).await;
        }
    }
}

impl Cluster<'_> {
    /// The UID of an object that comes before an app; `None`: it is not there.
    async fn staged(&self, one: &Staged) -> Result<Option<String>> {
        let path = format!("{}/{}", one.collection(), query_escaped(&one.name));
        let found = self
            .call(async |identity| self.client.get_as::<Value>(identity, &path).await)
            .await;
        let found = match found {
            Err(CallError::Api(error)) if error.is_not_found() => return Ok(None),
            found => found.map_err(|failed| self.not_staged(one, failed))?,
        };
        if let Some(field) = one.differs(&found).filter(|_| !one.is_namespace()) {
            return Err(Error::new(format!(
                "{} is there and has another {field}",
                one.in_words()
            ))
            .why("apps change no definition, because objects of others depend on it")
            .fix("kubectl apply -f FILE, or take it out of the manifests"));
        }
        let uid = found.pointer("/metadata/uid").and_then(Value::as_str);
        Ok(Some(uid.unwrap_or_default().to_owned()))
    }

    /// Creates an object that comes before an app, and returns its UID.
    async fn create_staged(&self, one: &Staged, query: &str) -> Result<String> {
        let path = format!("{}?fieldManager={MANAGER}{query}", one.collection());
        let created = self
            .write_call(async |identity| {
                self.client
                    .create_as::<_, Value>(identity, &path, &one.object)
                    .await
            })
            .await;
        let created = created.map_err(|failed| self.not_staged(one, failed))?;
        let uid = created.pointer("/metadata/uid").and_then(Value::as_str);
        Ok(uid.unwrap_or_default().to_owned())
    }

    fn not_staged(&self, one: &Staged, failed: CallError) -> Error {
        let what = format!("{} is not created", one.in_words());
        let error = match failed {
            CallError::NotSent(error) => return error.within(what),
            CallError::Api(error) => error,
        };
        let not_created = Error::new(what).why(error.to_string());
        if error.is_forbidden() {
            not_created
                .fix(self.account.stage_command())
                .retry(Retry::Later)
        } else if error.is_silence() {
            not_created.retry(Retry::Soon)
        } else {
            not_created.fix("correct the manifest, or kubectl apply")
        }
    }
}

//! Account of the control plane in the cluster: calls from the link run under it, and its tokens
//! never leave this machine.

mod bindings;
mod queries;

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::Duration,
};

use litemap::LiteMap;
use smol::{
    channel::{Receiver, Sender, bounded},
    lock::Mutex,
};

use super::credential::{Credential, Token};
use crate::{
    core::{
        policy::{
            self, Level, Namespace, PROTECTED, PodSecurity, Rules,
            standing::{Grant, Observed},
        },
        secret::Secret,
        time::{Mono, in_words},
    },
    host::clock,
    kube::{
        Client, Error, Identity, Patch,
        rbac::{
            ACCOUNT, FULL_BINDING, Manifest,
            check::{self, Deviation, DeviationKind},
        },
    },
    wire::kube::{
        HeadOnly, TokenRequest,
        rights::{ACCESS_REVIEWS, AccessReviewSpec, ResourceAttributes, SelfSubjectAccessReview},
        token_life,
    },
};
use bindings::{Bindings, NamespaceRef};
use queries::CachedQueries;

/// Lifetime of a token. The API server's minimum is ten minutes.
const TOKEN_LIFE: Duration = Duration::from_secs(3600);
/// Time before a failed request for a token is repeated: a flood of calls must not become one of
/// requests.
const ASK_AGAIN: Duration = Duration::from_secs(2);
/// Time for which an answer about a namespace is trusted.
const NAMESPACE_FRESH: Duration = Duration::from_secs(1);
/// Namespaces that are remembered.
const NAMESPACES_MAX: usize = 64;

/// The account, seen from the agent.
#[derive(Debug)]
pub struct Delegate {
    client: Client,
    manifest: Manifest,
    credential: Rc<Credential>,
    token: RefCell<Option<(Secret, Mono)>>,
    /// Reason why there is no token, and until when it is not asked for again.
    failure: RefCell<Option<(String, Mono)>>,
    /// One request for a token at a time; the others wait for its answer.
    asking: Mutex<()>,
    /// Namespaces, each with the moment at which the look at it began.
    namespaces: RefCell<LiteMap<String, (Option<Observed>, Mono)>>,
    bindings: Bindings,
    queries: CachedQueries,
    was_refused: Cell<bool>,
    /// True if the cluster seems to lack rights, so that a call that works is news.
    is_doubted: Cell<bool>,
    /// True if the cluster had no such account when a token was asked for last.
    lacks_account: Cell<bool>,
    changed: (Sender<()>, Receiver<()>),
    /// Signals a change of the level to the revocation of shared tokens.
    levels: (Sender<()>, Receiver<()>),
    held: Cell<Option<Level>>,
    /// True if the binding that makes the account cluster-admin was seen to be gone.
    is_full_gone: Cell<bool>,
}

impl Delegate {
    /// The account of the manifest, in the cluster of this client; the control plane is given this
    /// credential in its place. Asks nothing yet.
    pub fn new(client: Client, manifest: Manifest, credential: Rc<Credential>) -> Self {
        Self {
            bindings: Bindings::new(client.clone(), manifest.managed()),
            queries: CachedQueries::default(),
            client,
            manifest,
            credential,
            token: RefCell::new(None),
            failure: RefCell::new(None),
            asking: Mutex::new(()),
            namespaces: RefCell::default(),
            was_refused: Cell::new(false),
            is_doubted: Cell::new(false),
            lacks_account: Cell::new(false),
            changed: bounded(1),
            levels: bounded(1),
            held: Cell::new(None),
            is_full_gone: Cell::new(false),
        }
    }

    /// Holds a level from now on: what the control plane is offered follows it at once.
    pub fn set_level(&self, level: Level) {
        self.credential.set_level(level);
        if level == Level::Off {
            self.token.replace(None);
        }
        if level == Level::Full {
            self.is_full_gone.set(false);
        }
        // Full: somebody is on the way to look.
        self.levels.0.try_send(()).ok();
        let before = self.held.replace(Some(level));
        if before.is_some_and(|before| before != level) {
            self.changed.0.try_send(()).ok();
        }
    }

    /// The level that is held.
    pub fn level(&self) -> Level {
        self.credential.level()
    }

    /// Waits until another level may be held.
    pub async fn level_changed(&self) {
        if self.levels.1.recv().await.is_err() {
            std::future::pending().await
        }
    }

    /// The account's name in the cluster.
    pub fn account(&self) -> String {
        let namespace = self.manifest.namespace();
        format!("system:serviceaccount:{namespace}:{ACCOUNT}")
    }

    /// A token of the account; an error says what is missing and how to mend it.
    pub async fn token(&self) -> Result<Secret, String> {
        if let Some(token) = self.fresh_token() {
            return Ok(token);
        }
        let _one_at_a_time = self.asking.lock().await;
        if let Some(token) = self.fresh_token() {
            return Ok(token);
        }
        if let Some((why, until)) = self.failure.borrow().as_ref()
            && clock::now().mono < *until
        {
            return Err(why.clone());
        }
        let asked = self.ask().await;
        let now = clock::now().mono;
        let asked = asked.inspect_err(|why| {
            self.failure
                .replace(Some((why.clone(), now.after(ASK_AGAIN))));
        })?;
        // Replaced before it ends, whatever the clocks say.
        let life = token_life(&asked).unwrap_or(TOKEN_LIFE).min(TOKEN_LIFE);
        self.token
            .replace(Some((asked.clone(), now.after(life * 3 / 4))));
        Ok(asked)
    }

    /// A token of the account for the control plane itself: not the one that calls run with, and
    /// good for an hour at most.
    pub async fn shared_token(&self) -> Result<Token, String> {
        let secret = self.ask().await?;
        match token_life(&secret) {
            Some(life) if life <= TOKEN_LIFE => Ok(Token { secret, life }),
            Some(life) => Err(format!(
                "the API server issues tokens for {}, and one for more than an hour is not shared",
                in_words(life)
            )),
            None => Err(
                "the API server issues tokens without an expiry, which are not shared".to_owned(),
            ),
        }
    }

    /// Credential of the control plane.
    pub fn credential(&self) -> Rc<Credential> {
        Rc::clone(&self.credential)
    }

    /// Returns whether the control plane has this bearer from us.
    pub fn is_handle(&self, bearer: &str) -> bool {
        self.credential.is_ours(bearer)
    }

    async fn ask(&self) -> Result<Secret, String> {
        let namespace = self.manifest.namespace();
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{ACCOUNT}/token");
        let ask = TokenRequest::lasting(TOKEN_LIFE);
        let answer: Result<TokenRequest, _> = self.client.create(&path, &ask).await;
        let is_refused = matches!(answer, Err(Error::Refused { .. }));
        self.lacks_account
            .set(answer.as_ref().is_err_and(Error::is_not_found));
        if is_refused || self.was_refused.replace(false) {
            self.was_refused.set(is_refused);
            // Full: somebody is on the way to look.
            self.changed.0.try_send(()).ok();
        }
        match answer {
            Ok(answer) => Ok(Secret::new(answer.status.token)),
            Err(error) => Err(format!(
                "cannot get a token of {namespace}/{ACCOUNT}, the account of the control plane's requests: {error}; fix: {}",
                self.manifest().command()
            )),
        }
    }

    /// Sets whether the cluster seems to lack rights.
    pub fn set_doubted(&self, is_doubted: bool) {
        self.is_doubted.set(is_doubted);
    }

    /// Notes that the cluster took a call of the account: where rights seemed to be missing, that
    /// is looked at again.
    pub fn worked(&self) {
        if self.is_doubted.replace(false) {
            // Full: somebody is on the way to look.
            self.changed.0.try_send(()).ok();
        }
    }

    /// Has everybody who was refused in the cluster try again.
    pub fn rights_changed(&self) {
        self.client.heard().try_again();
    }

    /// Waits until the cluster has refused a token, or gives one again, or until the level has
    /// changed: something may have to be mended or taken back.
    pub async fn changed(&self) {
        if self.changed.1.recv().await.is_err() {
            std::future::pending().await
        }
    }

    fn fresh_token(&self) -> Option<Secret> {
        let now = clock::now().mono;
        let token = self.token.borrow();
        let (token, good_until) = token.as_ref()?;
        (now < *good_until).then(|| token.clone())
    }

    /// The API server refused this token: the next call gets another one.
    pub fn refused(&self, refused: &Secret) {
        let mut token = self.token.borrow_mut();
        if token.as_ref().is_some_and(|(token, _)| token == refused) {
            *token = None;
        }
    }

    /// The labels of a namespace, at most a second old; `None` where there is none.
    pub async fn namespace(&self, name: &str) -> Result<Option<Namespace>, String> {
        let (found, _) = self.observed(name).await?;
        Ok(found.map(|found| found.namespace))
    }

    /// A namespace, at most a second old, and the moment at which the look at it began; `None`
    /// where there is none.
    pub async fn observed(&self, name: &str) -> Result<(Option<Observed>, Mono), String> {
        let now = clock::now().mono;
        if let Some((found, began)) = self.namespaces.borrow().get(name)
            && now < began.after(NAMESPACE_FRESH)
        {
            return Ok((found.clone(), *began));
        }
        self.observe(name).await
    }

    /// Looks at a namespace now. The moment is the one at which the look began.
    pub async fn observe(&self, name: &str) -> Result<(Option<Observed>, Mono), String> {
        let began = clock::now().mono;
        let path = format!("/api/v1/namespaces/{name}");
        let found = match self.client.get::<HeadOnly>(&path).await {
            Ok(head) => Some(Observed {
                namespace: self.judged(&head),
                uid: head.metadata.uid,
            }),
            Err(error) if error.is_not_found() => None,
            Err(error) => return Err(format!("cannot read the namespace {name}: {error}")),
        };
        let now = clock::now().mono;
        let mut namespaces = self.namespaces.borrow_mut();
        namespaces.retain(|_, (_, began)| now < began.after(NAMESPACE_FRESH));
        if namespaces.len() < NAMESPACES_MAX {
            namespaces.insert(name.to_owned(), (found.clone(), began));
        }
        Ok((found, began))
    }

    /// Asks the API server whether the account still has a right. Where it has lost it, the next
    /// call looks for its binding again.
    pub async fn is_granted(&self, grant: &Grant) -> Result<bool, String> {
        let is_granted = self.ask_for(grant).await?;
        if !is_granted {
            self.bindings.forget(&grant.namespace);
        }
        Ok(is_granted)
    }

    /// A token that is not believed any more is replaced once.
    async fn ask_for(&self, grant: &Grant) -> Result<bool, String> {
        let question = SelfSubjectAccessReview {
            spec: AccessReviewSpec {
                resource_attributes: ResourceAttributes {
                    namespace: grant.namespace.clone(),
                    verb: grant.verb.clone(),
                    group: grant.group.clone(),
                    resource: grant.resource.clone(),
                    subresource: grant.subresource.clone(),
                    name: grant.name.clone(),
                },
            },
            ..SelfSubjectAccessReview::default()
        };
        for _ in 0..2 {
            let token = match self.token().await {
                Ok(token) => token,
                Err(_) if self.lacks_account.get() => return Ok(false),
                Err(why) => return Err(why),
            };
            let identity = Identity::Bearer(token.clone());
            let answer: Result<SelfSubjectAccessReview, _> = self
                .client
                .create_as(&identity, ACCESS_REVIEWS, &question)
                .await;
            match answer {
                Ok(answer) => return Ok(answer.status.allowed),
                Err(Error::Refused { status: 401, .. }) => self.refused(&token),
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(false)
    }

    fn judged(&self, head: &HeadOnly) -> Namespace {
        let label = |name: &str| head.metadata.labels.get(name).map(String::as_str);
        // The agent's own is never managed, whatever its labels say: what is there leads to the
        // agent's rights.
        let is_own = head.metadata.name == self.manifest.namespace().as_str();
        Namespace {
            is_managed: label("pipeops.io/managed") == Some("true") && !is_own,
            enforces: label("pod-security.kubernetes.io/enforce").and_then(PodSecurity::from_word),
            is_protected: label(PROTECTED) == Some("true"),
        }
    }

    /// Lets the account into a managed namespace, where that was not done before. Whether the
    /// namespace is managed was asked before; an error says what to do.
    pub async fn bind(&self, namespace: &str, observed: &Observed) -> Result<(), String> {
        let namespace_ref = NamespaceRef {
            namespace,
            uid: &observed.uid,
        };
        if self.bindings.is_known(namespace_ref) {
            return Ok(());
        }
        let token = self.token().await?;
        self.bindings.make(namespace_ref, &token).await
    }

    fn account_path(&self) -> String {
        let namespace = self.manifest.namespace();
        format!("/api/v1/namespaces/{namespace}/serviceaccounts/{ACCOUNT}")
    }

    /// UID of the account; `None`: the cluster has none.
    pub async fn account_uid(&self) -> Result<Option<String>, String> {
        match self.client.get::<HeadOnly>(&self.account_path()).await {
            Ok(head) => Ok(Some(head.metadata.uid)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(format!("cannot read the account: {error}")),
        }
    }

    /// Makes the account again, so that its tokens stop working. `uid` is that of the account which
    /// has to go; `None`: it is gone.
    pub async fn recreate_account(&self, uid: Option<&str>) -> Result<(), String> {
        let path = self.account_path();
        if let Some(uid) = uid {
            match self.client.delete_exactly(&path, uid).await {
                // Somebody else was faster.
                Err(error) if error.is_not_found() || error.is_conflict() => {}
                deleted => {
                    deleted.map_err(|error| format!("{ACCOUNT} cannot be deleted: {error}"))?;
                }
            }
        }
        self.token.replace(None);
        let account = self
            .manifest
            .account()
            .ok_or("the manifest has no account")?;
        let apply = format!("{path}?fieldManager=pipeops-agent&force=true");
        let made: Result<HeadOnly, _> = self.client.patch(&apply, Patch::Apply, &account).await;
        made.map_err(|error| format!("{ACCOUNT} cannot be made again: {error}"))?;
        log::info!("{ACCOUNT} was made again: its earlier tokens no longer work");
        Ok(())
    }

    /// Returns whether the cluster lets the agent make the account again.
    pub async fn may_recreate_account(&self) -> Result<bool, String> {
        for verb in ["delete", "create", "patch"] {
            let question = SelfSubjectAccessReview {
                spec: AccessReviewSpec {
                    resource_attributes: ResourceAttributes {
                        namespace: self.manifest.namespace().to_string(),
                        verb: verb.to_owned(),
                        resource: "serviceaccounts".to_owned(),
                        name: ACCOUNT.to_owned(),
                        ..ResourceAttributes::default()
                    },
                },
                ..SelfSubjectAccessReview::default()
            };
            let answer: Result<SelfSubjectAccessReview, _> =
                self.client.create(ACCESS_REVIEWS, &question).await;
            let answer = answer.map_err(|error| error.to_string())?;
            if !answer.status.allowed {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Removes the binding that makes the account cluster-admin, where it is there.
    pub async fn remove_full_binding(&self) -> Result<(), String> {
        if self.is_full_gone.get() {
            return Ok(());
        }
        let name = self.manifest.wide(FULL_BINDING);
        let removed = self.bindings.remove_full(&name).await;
        removed.map_err(|error| format!("cannot remove the ClusterRoleBinding {name}: {error}"))?;
        self.is_full_gone.set(true);
        Ok(())
    }

    /// Takes back what [`Delegate::bind`] gave in namespaces that are not managed any more, or in
    /// all of them where the level needs no bindings; and the binding of `full` at any other level.
    pub async fn sweep(&self) -> Result<(), String> {
        let full = match self.level() {
            Level::Full => Ok(()),
            Level::Managed | Level::ReadOnly | Level::Off => self.remove_full_binding().await,
        };
        self.sweep_namespaces().await?;
        full
    }

    /// The rules of now, as far as bindings depend on them.
    fn rules(&self) -> Rules {
        Rules {
            level: self.level(),
            pod_security: self.manifest.pod_security(),
            ..Rules::default()
        }
    }

    async fn sweep_namespaces(&self) -> Result<(), String> {
        let ours = self.bindings.ours().await;
        let ours = ours.map_err(|error| format!("cannot list bindings: {error}"))?;
        for namespace in ours {
            // The level of now: it may have changed since the last namespace.
            if self.level() == Level::Managed {
                let (found, _) = self.observe(&namespace).await?;
                let labels = found.as_ref().map(|found| &found.namespace);
                if policy::settle(&self.rules(), &namespace, labels).is_ok() {
                    continue;
                }
            }
            let removed = self.bindings.remove(&namespace).await;
            removed.map_err(|error| {
                format!(
                    "cannot remove the RoleBinding {ACCOUNT} in the namespace {namespace}: {error}"
                )
            })?;
        }
        Ok(())
    }

    /// Differences of the cluster from the manifest.
    pub async fn compare(&self) -> Result<Vec<Deviation>, Error> {
        let findings = check::compare(&self.client, &self.manifest()).await?;
        if findings
            .iter()
            .any(|found| found.state == DeviationKind::Unwanted)
        {
            self.is_full_gone.set(false);
        }
        Ok(findings)
    }

    /// Returns whether the account reaches Secrets that the manifest does not give it; `None` where
    /// that cannot be asked.
    pub async fn reaches_secrets(&self) -> Option<bool> {
        let token = self.token().await.ok()?;
        check::reaches_secrets(&self.client, &self.manifest(), &token)
            .await
            .ok()
    }

    /// Manifest of the agent for the level that is held: one that the settings allow everything may
    /// have been tightened since.
    pub fn manifest(&self) -> Manifest {
        match self.level() {
            Level::Full => self.manifest.clone(),
            Level::Managed | Level::ReadOnly | Level::Off => self.manifest.managed(),
        }
    }
}

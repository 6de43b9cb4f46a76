//! The control plane's account in the cluster: calls from the link run under it, and its tokens never leave the box.

mod bindings;
mod looks;

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
        policy::{self, Level, Namespace, PROTECTED, PodSecurity, Rules},
        secret::Secret,
        time::{Mono, in_words},
    },
    host::clock,
    kube::{
        Client, Error,
        rbac::{
            ACCOUNT, Manifest,
            check::{self, Finding},
        },
    },
    wire::kube::{HeadOnly, TokenRequest, token_life},
};
use bindings::Bindings;
use looks::Looks;

/// How long a token is good for. The API server gives ten minutes at least.
const TOKEN_LIFE: Duration = Duration::from_secs(3600);
/// How long a call waits before the same failed request for a token is made again: a flood of calls is not one of requests.
const ASK_AGAIN: Duration = Duration::from_secs(2);
/// How long an answer about a namespace is believed.
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
    /// Why there is no token, and until when it is not asked for again.
    failure: RefCell<Option<(String, Mono)>>,
    /// One request for a token at a time; the others wait for its answer.
    asking: Mutex<()>,
    namespaces: RefCell<LiteMap<String, (Option<Namespace>, Mono)>>,
    bindings: Bindings,
    looks: Looks,
    was_refused: Cell<bool>,
    /// Whether the cluster seems to lack rights, so that a call that works is news.
    is_doubted: Cell<bool>,
    news: (Sender<()>, Receiver<()>),
}

impl Delegate {
    /// The account of the manifest, in the cluster of this client; the control plane is given this credential in its place. Asks
    /// nothing yet.
    pub fn new(client: Client, manifest: Manifest, credential: Rc<Credential>) -> Self {
        Self {
            bindings: Bindings::new(client.clone(), manifest.clone()),
            looks: Looks::default(),
            client,
            manifest,
            credential,
            token: RefCell::new(None),
            failure: RefCell::new(None),
            asking: Mutex::new(()),
            namespaces: RefCell::default(),
            was_refused: Cell::new(false),
            is_doubted: Cell::new(false),
            news: bounded(1),
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

    /// A token of the account for the control plane itself: not the one that calls run with, and good for an hour at most.
    pub async fn shared_token(&self) -> Result<Token, String> {
        let secret = self.ask().await?;
        match token_life(&secret) {
            Some(life) if life <= TOKEN_LIFE => Ok(Token { secret, life }),
            Some(life) => Err(format!(
                "the API server gives tokens for {}, and one for more than an hour is not shared",
                in_words(life)
            )),
            None => Err(
                "the API server gives tokens that do not say when they end, and such a one is not shared".to_owned(),
            ),
        }
    }

    /// What the control plane is given in place of a credential.
    pub fn credential(&self) -> Rc<Credential> {
        Rc::clone(&self.credential)
    }

    /// Whether the control plane has this bearer from us.
    pub fn is_handle(&self, bearer: &str) -> bool {
        self.credential.is_ours(bearer)
    }

    async fn ask(&self) -> Result<Secret, String> {
        let namespace = self.manifest.namespace();
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{ACCOUNT}/token");
        let ask = TokenRequest::lasting(TOKEN_LIFE);
        let answer: Result<TokenRequest, _> = self.client.create(&path, &ask).await;
        let is_refused = matches!(answer, Err(Error::Refused { .. }));
        if is_refused || self.was_refused.replace(false) {
            self.was_refused.set(is_refused);
            // Full: somebody is on the way to look.
            self.news.0.try_send(()).ok();
        }
        match answer {
            Ok(answer) => Ok(Secret::new(answer.status.token)),
            Err(error) => Err(format!(
                "no token of {namespace}/{ACCOUNT}, under which calls of the control plane run: {error}; fix: {}",
                self.manifest.command()
            )),
        }
    }

    /// Notes whether the cluster seems to lack rights.
    pub fn doubt(&self, is_doubted: bool) {
        self.is_doubted.set(is_doubted);
    }

    /// Notes that the cluster took a call of the account: where rights seemed to be missing, that is looked at again.
    pub fn worked(&self) {
        if self.is_doubted.replace(false) {
            // Full: somebody is on the way to look.
            self.news.0.try_send(()).ok();
        }
    }

    /// Has everybody who was refused in the cluster try again.
    pub fn rights_changed(&self) {
        self.client.heard().try_again();
    }

    /// Waits until the cluster has refused a token, or gives one again: something in it is not as it was.
    pub async fn news(&self) {
        if self.news.1.recv().await.is_err() {
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

    /// What the cluster says of a namespace now; `None` where there is none.
    pub async fn namespace(&self, name: &str) -> Result<Option<Namespace>, String> {
        let now = clock::now().mono;
        if let Some((found, until)) = self.namespaces.borrow().get(name)
            && now < *until
        {
            return Ok(found.clone());
        }
        let path = format!("/api/v1/namespaces/{name}");
        let found = match self.client.get::<HeadOnly>(&path).await {
            Ok(head) => Some(self.judged(&head)),
            Err(error) if error.is_not_found() => None,
            Err(error) => return Err(format!("the namespace {name} cannot be looked at: {error}")),
        };
        let mut namespaces = self.namespaces.borrow_mut();
        namespaces.retain(|_, (_, until)| now < *until);
        if namespaces.len() < NAMESPACES_MAX {
            let until = clock::now().mono.after(NAMESPACE_FRESH);
            namespaces.insert(name.to_owned(), (found.clone(), until));
        }
        Ok(found)
    }

    fn judged(&self, head: &HeadOnly) -> Namespace {
        let label = |name: &str| head.metadata.labels.get(name).map(String::as_str);
        // The agent's own is never managed, whatever its labels say: what is there leads to the agent's rights.
        let is_own = head.metadata.name == self.manifest.namespace().as_str();
        Namespace {
            is_managed: label("pipeops.io/managed") == Some("true") && !is_own,
            enforces: label("pod-security.kubernetes.io/enforce").and_then(PodSecurity::from_word),
            is_protected: label(PROTECTED) == Some("true"),
        }
    }

    /// Lets the account into a managed namespace, where that was not done before. Whether the namespace is managed was asked before;
    /// an error says what to do.
    pub async fn bind(&self, namespace: &str) -> Result<(), String> {
        if self.bindings.is_known(namespace) {
            return Ok(());
        }
        let token = self.token().await?;
        self.bindings.make(namespace, &token).await
    }

    /// Takes back what [`Delegate::bind`] gave in namespaces that are not managed any more, or in all of them where these rules need no
    /// bindings.
    pub async fn sweep(&self, rules: &Rules) -> Result<(), String> {
        let ours = self.bindings.ours().await;
        let ours = ours.map_err(|error| format!("bindings cannot be looked at: {error}"))?;
        for namespace in ours {
            if rules.level == Level::Managed {
                let found = self.namespace(&namespace).await?;
                if policy::settle(rules, &namespace, found.as_ref()).is_ok() {
                    continue;
                }
            }
            let removed = self.bindings.remove(&namespace).await;
            removed.map_err(|error| {
                format!("the RoleBinding {ACCOUNT} in the namespace {namespace} cannot be removed: {error}")
            })?;
        }
        Ok(())
    }

    /// What in the cluster is not as the manifest has it.
    pub async fn compare(&self) -> Result<Vec<Finding>, Error> {
        check::compare(&self.client, &self.manifest).await
    }

    /// Whether the account reaches Secrets that the manifest does not give it; `None` where that cannot be asked.
    pub async fn reaches_secrets(&self) -> Option<bool> {
        let token = self.token().await.ok()?;
        check::reaches_secrets(&self.client, &self.manifest, &token)
            .await
            .ok()
    }

    /// What the agent needs in the cluster.
    pub const fn manifest(&self) -> &Manifest {
        &self.manifest
    }
}

//! The control plane's account in the cluster: calls from the link run under it, and its tokens never leave the box.

use std::{cell::RefCell, collections::BTreeMap, time::Duration};

use smol::lock::Mutex;

use crate::{
    core::{
        policy::{Namespace, PodSecurity},
        secret::Secret,
        time::Mono,
    },
    host::clock,
    kube::Client,
    wire::kube::{HeadOnly, TokenRequest},
};

/// Where the account lives.
pub const NAMESPACE: &str = "pipeops-system";
/// Its name.
pub const ACCOUNT: &str = "pipeops-cp";
/// How long a token is good for. The API server gives ten minutes at least.
const TOKEN_LIFE: Duration = Duration::from_secs(3600);
/// When a token is replaced: before it ends, whatever the clocks say.
const TOKEN_USE: Duration = Duration::from_secs(2700);
/// How long an answer about a namespace is believed.
const NAMESPACE_FRESH: Duration = Duration::from_secs(1);
/// Namespaces that are remembered.
const NAMESPACES_MAX: usize = 64;

/// The account, seen from the agent.
#[derive(Debug)]
pub struct Delegate {
    client: Client,
    token: RefCell<Option<(Secret, Mono)>>,
    /// One request for a token at a time; the others wait for its answer.
    asking: Mutex<()>,
    namespaces: RefCell<BTreeMap<String, (Option<Namespace>, Mono)>>,
}

impl Delegate {
    /// The account in the cluster of this client. Asks nothing yet.
    pub fn new(client: Client) -> Self {
        Self {
            client,
            token: RefCell::new(None),
            asking: Mutex::new(()),
            namespaces: RefCell::default(),
        }
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
        let path = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{ACCOUNT}/token");
        let ask = TokenRequest::lasting(TOKEN_LIFE);
        let answer: Result<TokenRequest, _> = self.client.create(&path, &ask).await;
        let answer = answer.map_err(|error| {
            format!("no token of {NAMESPACE}/{ACCOUNT}, under which calls of the control plane run: {error}; fix: pipeops-agent rbac | kubectl apply -f -")
        })?;
        let token = Secret::new(answer.status.token);
        let good_until = clock::now().mono.after(TOKEN_USE);
        self.token.replace(Some((token.clone(), good_until)));
        Ok(token)
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
            Ok(head) => Some(namespace(&head)),
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
}

fn namespace(head: &HeadOnly) -> Namespace {
    let label = |name: &str| head.metadata.labels.get(name).map(String::as_str);
    Namespace {
        is_managed: label("pipeops.io/managed") == Some("true"),
        enforces: label("pod-security.kubernetes.io/enforce").and_then(PodSecurity::from_word),
    }
}

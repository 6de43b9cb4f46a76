//! The account under which local sources deploy: its tokens, which never leave this machine.

use std::{cell::RefCell, time::Duration};

use smol::lock::Mutex;

use crate::{
    core::{secret::Secret, time::Mono},
    error::{Error, Retry},
    host::clock,
    kube::{
        Client, Error as Refusal, Identity,
        rbac::{APPS_ACCOUNT, Manifest},
    },
    wire::kube::{TokenRequest, token_life},
};

/// Lifetime of a token.
const TOKEN_LIFE: Duration = Duration::from_secs(3600);

/// The account `pipeops-apps`.
#[derive(Debug)]
pub struct Account {
    client: Client,
    manifest: Manifest,
    token: RefCell<Option<(Secret, Mono)>>,
    asking: Mutex<()>,
}

impl Account {
    /// The account of this manifest. Asks nothing yet.
    pub fn new(client: Client, manifest: Manifest) -> Self {
        Self {
            client,
            manifest,
            token: RefCell::new(None),
            asking: Mutex::new(()),
        }
    }

    /// The account as the identity of a call.
    ///
    /// # Errors
    /// Reason why there is no token, and what to do.
    pub async fn identity(&self) -> Result<Identity, Error> {
        let _one_at_a_time = self.asking.lock().await;
        let now = clock::now().mono;
        if let Some((token, until)) = self.token.borrow().as_ref()
            && now < *until
        {
            return Ok(Identity::Bearer(token.clone()));
        }
        let namespace = self.manifest.namespace();
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{APPS_ACCOUNT}/token");
        let ask = TokenRequest::lasting(TOKEN_LIFE);
        let answer: Result<TokenRequest, _> = self.client.create(&path, &ask).await;
        let answer = answer.map_err(|error| self.without_token(&error))?;
        let token = Secret::new(answer.status.token);
        let life = token_life(&token).unwrap_or(TOKEN_LIFE).min(TOKEN_LIFE);
        self.token
            .replace(Some((token.clone(), now.after(life * 3 / 4))));
        Ok(Identity::Bearer(token))
    }

    fn without_token(&self, error: &Refusal) -> Error {
        // Neither the account nor the right to use it comes by itself.
        let retry = if error.is_forbidden() || error.is_not_found() {
            Retry::Later
        } else {
            Retry::Soon
        };
        let namespace = self.manifest.namespace();
        Error::new(format!(
            "there is no token of {namespace}/{APPS_ACCOUNT}, the account that deploys apps"
        ))
        .why(error.to_string())
        .fix(self.manifest.command())
        .retry(retry)
    }

    /// The API server refused the token: the next call gets another one.
    pub fn refused(&self) {
        self.token.replace(None);
    }

    /// The line that lets the account into a namespace.
    pub fn binding_command(&self, namespace: &str) -> String {
        let own = self.manifest.namespace();
        format!(
            "kubectl -n {namespace} create rolebinding {APPS_ACCOUNT} --clusterrole={} --serviceaccount={own}:{APPS_ACCOUNT}",
            self.manifest.wide(crate::kube::rbac::APPS_ROLE)
        )
    }

    /// The line that makes the account and its rights.
    pub fn manifest_command(&self) -> String {
        self.manifest.command()
    }

    /// Namespace of the agent, where records lie.
    pub fn own_namespace(&self) -> &str {
        self.manifest.namespace().as_str()
    }
}

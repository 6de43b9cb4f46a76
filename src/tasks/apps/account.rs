//! Accounts under which apps are deployed: that of local sources, whose tokens never leave this
//! machine, and that of the control plane, whose every request passes the gate.

use std::{cell::RefCell, rc::Rc, time::Duration};

use hyper::{Method, Request};
use smol::lock::Mutex;

use crate::{
    core::{
        apps::{CHARTS, GATEWAY, Kind, denied, granted_apart},
        proxy::Refusal,
        secret::Secret,
        time::Mono,
    },
    error::{Error, Retry},
    host::clock,
    kube::{
        Body, Client, Error as ApiError, Identity,
        gate::{Gate, Judged, REFUSED},
        rbac::{ACCOUNT, APPS_ACCOUNT, APPS_ROLE, APPS_STAGE, Manifest},
    },
    wire::kube::{TokenRequest, token_life},
};

/// Lifetime of a token.
const TOKEN_LIFE: Duration = Duration::from_secs(3600);

/// An account that deploys.
#[derive(Debug)]
pub struct Account {
    manifest: Manifest,
    source: IdentitySource,
}

/// Source of an identity.
#[derive(Debug)]
enum IdentitySource {
    /// `pipeops-apps`, which root binds to namespaces, with the groups whose custom resources root
    /// allows.
    Local(Tokens, Vec<String>),
    /// `pipeops-cp`, under the access policy.
    Judged(Judged),
}

/// Tokens of the account `pipeops-apps`.
#[derive(Debug)]
struct Tokens {
    client: Client,
    token: RefCell<Option<(Secret, Mono)>>,
    asking: Mutex<()>,
}

impl Account {
    /// The account of local sources, with the groups whose custom resources they may have. Asks
    /// nothing yet.
    pub fn new(client: Client, manifest: Manifest, groups: Vec<String>) -> Self {
        let tokens = Tokens {
            client,
            token: RefCell::new(None),
            asking: Mutex::new(()),
        };
        Self {
            manifest,
            source: IdentitySource::Local(tokens, groups),
        }
    }

    /// The account of the control plane, behind its gate.
    pub fn judged(gate: Rc<dyn Gate>, manifest: Manifest) -> Self {
        Self {
            manifest,
            source: IdentitySource::Judged(Judged(gate)),
        }
    }

    /// The account as the identity of a call.
    ///
    /// # Errors
    /// Reason why there is no token, and what to do.
    pub async fn identity(&self) -> Result<Identity, Error> {
        match &self.source {
            IdentitySource::Local(tokens, _) => tokens.identity(&self.manifest).await,
            IdentitySource::Judged(judged) => Ok(Identity::Judged(judged.clone())),
        }
    }

    /// The API server refused the token: the next call gets another one.
    pub fn refused(&self) {
        match &self.source {
            IdentitySource::Local(tokens, _) => drop(tokens.token.replace(None)),
            // The gate knows its tokens.
            IdentitySource::Judged(_) => {}
        }
    }

    /// Judges whether objects of a kind may be touched: charts, and of custom resources those of
    /// groups that root allows, by local sources alone.
    ///
    /// # Errors
    /// They may not.
    pub fn may_have(&self, kind: &Kind) -> Result<(), Error> {
        if !kind.is_defined() {
            return Ok(());
        }
        let group = kind.group();
        let refused = |why: String| Error::new(format!("{} is not deployed", kind.name)).why(why);
        match &self.source {
            IdentitySource::Local(..) if kind.is_chart() => Ok(()),
            IdentitySource::Local(..) if self.allows_group(group) => Ok(()),
            IdentitySource::Local(_, groups) => {
                Err(refused(format!("apps.groups does not list {group}"))
                    .fix(group_fix(groups, group))
                    .retry(Retry::Later))
            }
            IdentitySource::Judged(_) => Err(refused(
                "the control plane deploys no charts and no other custom resources".to_owned(),
            )
            .fix("deploy it from the machine: sudo pipeops-agent apps apply -f FILE")),
        }
    }

    /// Returns whether objects of a group may be deployed that no role of the manifest names.
    fn allows_group(&self, group: &str) -> bool {
        match &self.source {
            IdentitySource::Local(_, groups) => {
                [GATEWAY, CHARTS].contains(&group) || groups.iter().any(|known| known == group)
            }
            IdentitySource::Judged(_) => group == GATEWAY,
        }
    }

    /// Judges whether a change in a namespace is worth beginning. A local account finds out when it
    /// writes: it waits until it is let in.
    ///
    /// # Errors
    /// The policy refuses it.
    pub async fn may_change(&self, (namespace, app): (&str, &str)) -> Result<(), Error> {
        let IdentitySource::Judged(Judged(gate)) = &self.source else {
            return Ok(());
        };
        let request = Request::builder()
            .method(Method::PATCH)
            .uri(format!(
                "/apis/apps/v1/namespaces/{namespace}/deployments/{app}"
            ))
            .body(Body::empty());
        let request =
            request.map_err(|error| Error::new("nothing was changed").why(error.to_string()))?;
        let judged = gate.judge(request).await;
        judged.map_err(|error| {
            let found = self.missing_rights(namespace, &error);
            found.unwrap_or_else(|| Error::new(error.to_string()).retry(Retry::Soon))
        })
    }

    /// Error of an account that lacks rights, with the fix that grants them; `None`: another
    /// failure.
    pub fn missing_rights(&self, namespace: &str, error: &ApiError) -> Option<Error> {
        let ApiError::Refused {
            status,
            message,
            reason,
            ..
        } = error
        else {
            return None;
        };
        if reason == REFUSED {
            let denial = Refusal(message.clone());
            let mut error = Error::new(denial.sentence());
            error.fix = denial.fix().map(str::to_owned);
            return Some(error);
        }
        let (name, fix, retry) = match &self.source {
            IdentitySource::Local(..) => {
                (APPS_ACCOUNT, self.binding_command(namespace), Retry::Later)
            }
            // Nobody waits here for rights: who asked is told, and asks again.
            IdentitySource::Judged(_) => (ACCOUNT, self.manifest_command(), Retry::Never),
        };
        // Nodes are read by the agent itself.
        let is_of_agent = !message.contains(name);
        let found = denied(message);
        // The message may be that of a webhook, or of somebody's API.
        let apart = found
            .filter(|(_, _, group)| self.allows_group(group))
            .and_then(|(_, resource, group)| granted_apart(resource, group));
        let (what, fix) = match (status, found) {
            (401, _) => (
                format!("the API server does not accept the account {name}"),
                self.manifest_command(),
            ),
            (403, Some((verb, resource, _))) if is_of_agent => (
                format!("the agent may not {verb} {resource}"),
                self.manifest_command(),
            ),
            // Who may do the rest and not this has the role of an older manifest.
            (403, Some((verb, resource, _)))
                if apart.is_none() && (verb == "watch" || resource == "pods/log") =>
            {
                (
                    format!(
                        "the account {name} may not {verb} {resource} in the namespace {namespace}"
                    ),
                    self.manifest_command(),
                )
            }
            (403, Some((verb, resource, _))) => (
                format!(
                    "the account {name} may not {verb} {resource} in the namespace {namespace}"
                ),
                match (apart, &self.source) {
                    (Some(resource), IdentitySource::Local(..)) => {
                        self.role_command(namespace, &resource)
                    }
                    (Some(_), IdentitySource::Judged(_)) | (None, _) => fix,
                },
            ),
            _ => return None,
        };
        Some(Error::new(what).why(message.clone()).fix(fix).retry(retry))
    }

    /// The line that lets the account have a resource in a namespace that its role does not name.
    fn role_command(&self, namespace: &str, resource: &str) -> String {
        let (own, role) = (
            self.manifest.namespace(),
            format!("{APPS_ACCOUNT}.{resource}"),
        );
        format!(
            "kubectl -n {namespace} create role {role} --verb=get,list,watch,create,patch,delete --resource={resource} && \
             kubectl -n {namespace} create rolebinding {role} --role={role} --serviceaccount={own}:{APPS_ACCOUNT}"
        )
    }

    /// The line that lets the account create what comes before an app, and change nothing there.
    pub fn stage_command(&self) -> String {
        let (own, role) = (self.manifest.namespace(), self.manifest.wide(APPS_STAGE));
        format!(
            "kubectl create clusterrole {role} --verb=get,create --resource=namespaces,customresourcedefinitions.apiextensions.k8s.io && \
             kubectl create clusterrolebinding {role} --clusterrole={role} --serviceaccount={own}:{APPS_ACCOUNT}"
        )
    }

    /// The line that lets the account into a namespace.
    pub fn binding_command(&self, namespace: &str) -> String {
        match &self.source {
            IdentitySource::Local(..) => {
                let own = self.manifest.namespace();
                format!(
                    "kubectl -n {namespace} create rolebinding {APPS_ACCOUNT} --clusterrole={} --serviceaccount={own}:{APPS_ACCOUNT}",
                    self.manifest.wide(APPS_ROLE)
                )
            }
            IdentitySource::Judged(_) => format!(
                "kubectl label namespace {namespace} pipeops.io/managed=true pod-security.kubernetes.io/enforce={}",
                self.manifest.pod_security().as_str()
            ),
        }
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

impl Tokens {
    async fn identity(&self, manifest: &Manifest) -> Result<Identity, Error> {
        let _one_at_a_time = self.asking.lock().await;
        let now = clock::now().mono;
        if let Some((token, until)) = self.token.borrow().as_ref()
            && now < *until
        {
            return Ok(Identity::Bearer(token.clone()));
        }
        let namespace = manifest.namespace();
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{APPS_ACCOUNT}/token");
        let ask = TokenRequest::lasting(TOKEN_LIFE);
        let answer: Result<TokenRequest, _> = self.client.create(&path, &ask).await;
        let answer = answer.map_err(|error| without_token(manifest, &error))?;
        let token = Secret::new(answer.status.token);
        let life = token_life(&token).unwrap_or(TOKEN_LIFE).min(TOKEN_LIFE);
        self.token
            .replace(Some((token.clone(), now.after(life * 3 / 4))));
        Ok(Identity::Bearer(token))
    }
}

/// The line that allows one group more.
fn group_fix(groups: &[String], group: &str) -> String {
    let groups = groups.iter().map(String::as_str).chain([group]);
    let groups: Vec<_> = groups.collect();
    format!(
        "if apps may have its objects, as root: groups = {:?} in [apps] of /etc/pipeops-agent/config.toml, then restart the agent",
        groups.join(", ")
    )
}

fn without_token(manifest: &Manifest, error: &ApiError) -> Error {
    // Neither the account nor the right to use it comes by itself.
    let retry = if error.is_forbidden() || error.is_not_found() {
        Retry::Later
    } else {
        Retry::Soon
    };
    let namespace = manifest.namespace();
    Error::new(format!(
        "there is no token of {namespace}/{APPS_ACCOUNT}, the account that deploys apps"
    ))
    .why(error.to_string())
    .fix(manifest.command())
    .retry(retry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_added_to_those_that_are_allowed() {
        let line = |groups: &[&str]| {
            let groups: Vec<_> = groups.iter().map(|it| (*it).to_owned()).collect();
            group_fix(&groups, "example.com")
        };
        assert!(line(&[]).contains("groups = \"example.com\" in [apps]"));
        let both = "groups = \"cert-manager.io, example.com\" in [apps]";
        assert!(line(&["cert-manager.io"]).contains(both));
    }
}

//! Kubeconfigs of k3s for people: a read-only one that expires, and the administrator's.

use std::time::Duration;

use super::{
    super::{Keeper, journal::Journal},
    connect::Credential,
};
use crate::{
    core::k3s::{
        self,
        viewer::{ACCOUNT, MANIFEST, NAMESPACE, ROLE},
    },
    error::{Error, Result, Retry},
    host::clock,
    wire::keeper::{K3sPlan, PlannedStep},
};

/// Looks at the role before it is given up, and the pause between two: half a minute beside k3s'
/// own time.
const ROLE_TRIES_MAX: u32 = 30;
const PAUSE: Duration = Duration::from_secs(1);

/// A wanted kubeconfig for looking.
#[derive(Clone, Debug)]
pub struct View {
    /// Hours until its token ends.
    pub hours: u32,
    /// Address of the API; `None`: that of this machine for itself.
    pub server: Option<String>,
}

impl Keeper {
    /// A kubeconfig whose token reads what the role `view` shows, and ends. The account is made
    /// where it is missing.
    pub fn k3s_view(&self, wanted: &View) -> Result<String> {
        self.can_view()?;
        // Its directory, where this is the first thing that the keeper does here.
        drop(Journal::open(&self.directory)?);
        self.apply(MANIFEST, cannot)?;
        self.wait_for_role()?;
        let note = format!(
            "Made by pipeops-agent k3s kubeconfig; the token ends after {} h.",
            wanted.hours
        );
        let server = wanted.server.as_deref().map(|server| {
            let address = server.strip_prefix("https://").unwrap_or(server);
            match address.trim_end_matches('/') {
                path if path.contains('/') => server.to_owned(),
                host => self.system.server_at(host),
            }
        });
        let credential = Credential {
            namespace: NAMESPACE,
            account: ACCOUNT,
            lifetime: &format!("{}h", wanted.hours),
            server: server.as_deref(),
            note: &note,
        };
        self.credential(&credential, cannot)
    }

    /// The plan of such a kubeconfig.
    pub fn k3s_view_plan(&self, wanted: &View) -> Result<K3sPlan> {
        self.can_view()?;
        let of = format!("{NAMESPACE}/{ACCOUNT}");
        let step = |does: String, undo: &str| PlannedStep {
            does,
            undo: undo.to_owned(),
        };
        Ok(K3sPlan {
            does: format!(
                "print a kubeconfig with the role {ROLE} that ends after {} h",
                wanted.hours
            ),
            steps: vec![
                step(
                    format!(
                        "create the account {of} and its binding to the role {ROLE}, unless they are there"
                    ),
                    "none: both stay for the next one",
                ),
                step(
                    format!("create a token of {of}, valid for {} h", wanted.hours),
                    "it expires on its own",
                ),
            ],
            undo: format!(
                "sudo /usr/local/bin/k3s kubectl -n {NAMESPACE} delete serviceaccount {ACCOUNT}: ends all of these kubeconfigs"
            ),
            ..K3sPlan::default()
        })
    }

    fn can_view(&self) -> Result<()> {
        self.only_on_servers("k3s kubeconfig")?;
        if self.system.is_there(k3s::BINARY) {
            return Ok(());
        }
        Err(cannot()
            .why("there is no k3s on this machine")
            .fix("sudo pipeops-agent k3s install"))
    }

    /// Waits until the role of the account has rules: after its first start k3s fills it in from
    /// others, which takes seconds.
    fn wait_for_role(&self) -> Result<()> {
        let ask = ["get", "clusterrole", ROLE, "-o=jsonpath={.rules}"];
        for turn in 0..ROLE_TRIES_MAX {
            let found = self.kubectl_patiently(&ask)?;
            // One that cannot be read is no reason to wait.
            if !found.success() || !matches!(found.stdout.trim(), "" | "[]" | "null") {
                return Ok(());
            }
            if turn == 0 {
                self.system
                    .tell("waiting until k3s has filled the role view in");
            }
            clock::pause(PAUSE);
        }
        Err(cannot()
            .why("the role view has no rules yet, so that nothing could be read with it")
            .fix("try again in a minute: k3s fills it in when it starts")
            .retry(Retry::Soon))
    }

    /// The administrator's kubeconfig.
    pub fn k3s_admin(&self) -> Result<String> {
        self.only_on_servers("k3s kubeconfig")?;
        self.system.text(k3s::KUBECONFIG).ok_or_else(|| {
            Error::new(format!("cannot read {}", k3s::KUBECONFIG))
                .fix("k3s writes it when it starts: sudo pipeops-agent k3s status")
        })
    }
}

fn cannot() -> Error {
    Error::new("cannot make a kubeconfig")
}

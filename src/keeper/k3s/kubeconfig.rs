//! Kubeconfigs of k3s for people: one for looking that ends by itself, and the administrator's.

use super::{
    super::{Keeper, journal::Journal},
    connect::Credential,
};
use crate::{
    core::k3s::{
        self,
        viewer::{ACCOUNT, MANIFEST, NAMESPACE},
    },
    error::{Error, Result},
};

/// A wanted kubeconfig for looking.
#[derive(Clone, Debug)]
pub struct View {
    /// Hours until its token ends.
    pub hours: u32,
    /// Address of the API; `None`: that of this machine for itself.
    pub server: Option<String>,
}

impl Keeper {
    /// A kubeconfig whose token reads what the role `view` shows, and ends. The account is made where it is missing.
    pub fn k3s_view(&self, wanted: &View) -> Result<String> {
        self.only_on_servers("k3s kubeconfig")?;
        if !self.place.is_there(k3s::BINARY) {
            return Err(cannot()
                .why("there is no k3s on this machine")
                .fix("sudo pipeops-agent k3s install"));
        }
        // Its directory, where this is the first thing that the keeper does here.
        drop(Journal::open(&self.directory)?);
        self.apply(MANIFEST, cannot)?;
        let note = format!(
            "Made by pipeops-agent k3s kubeconfig; the token ends after {} h.",
            wanted.hours
        );
        let credential = Credential {
            namespace: NAMESPACE,
            account: ACCOUNT,
            lifetime: &format!("{}h", wanted.hours),
            server: wanted.server.as_deref(),
            note: &note,
        };
        self.credential(&credential, cannot)
    }

    /// The administrator's kubeconfig.
    pub fn k3s_admin(&self) -> Result<String> {
        self.only_on_servers("k3s kubeconfig")?;
        self.place.text(k3s::KUBECONFIG).ok_or_else(|| {
            Error::new(format!("cannot read {}", k3s::KUBECONFIG))
                .fix("k3s writes it when it starts: sudo pipeops-agent k3s status")
        })
    }
}

fn cannot() -> Error {
    Error::new("cannot make a kubeconfig")
}

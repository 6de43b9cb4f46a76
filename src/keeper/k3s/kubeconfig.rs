//! Kubeconfigs of k3s for people: one for looking that ends by itself, and the administrator's.

use super::super::{Keeper, journal::Journal};
use crate::{
    core::k3s::{
        self,
        connect::{self, Bearer, QUESTION},
        viewer::{ACCOUNT, MANIFEST, NAMESPACE},
    },
    error::{Error, Result, Retry},
    files,
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
        let file = self.directory.join("viewer.yaml");
        files::replace(&file, MANIFEST.as_bytes(), files::PRIVATE)?;
        let applied = self.said(&["apply", "-f", &file.display().to_string()]);
        // What stays has no secret, and is replaced by the next one.
        drop(std::fs::remove_file(&file));
        applied?;
        let question = format!("-o=jsonpath={QUESTION}");
        let found = self.said(&["config", "view", "--raw", "--minify", &question])?;
        let found = match (&wanted.server, found.trim().split_once(' ')) {
            (Some(server), Some((_, ca))) => format!("{server} {ca}"),
            (None, _) | (_, None) => found,
        };
        let duration = format!("--duration={}h", wanted.hours);
        let token = self.said(&["-n", NAMESPACE, "create", "token", ACCOUNT, &duration])?;
        let note = format!(
            "Made by pipeops-agent k3s kubeconfig; the token ends after {} h.",
            wanted.hours
        );
        connect::kubeconfig(
            &found,
            &Bearer {
                account: ACCOUNT,
                token: &token,
                note: &note,
            },
        )
        .ok_or_else(|| cannot().why("k3s' own kubeconfig has no address with a CA"))
    }

    /// The administrator's kubeconfig.
    pub fn k3s_admin(&self) -> Result<String> {
        self.only_on_servers("k3s kubeconfig")?;
        self.place.text(k3s::KUBECONFIG).ok_or_else(|| {
            Error::new(format!("cannot read {}", k3s::KUBECONFIG))
                .fix("k3s writes it when it starts: sudo pipeops-agent k3s status")
        })
    }

    /// Output of k3s' own client, if all went well.
    fn said(&self, arguments: &[&str]) -> Result<String> {
        let ended = self.kubectl_patiently(arguments)?;
        if ended.is_fine() {
            return Ok(ended.output);
        }
        let why: String = ended.complaints.trim().chars().take(300).collect();
        Err(cannot()
            .why(why)
            .fix("sudo pipeops-agent k3s status says how k3s is")
            .retry(Retry::Soon))
    }
}

fn cannot() -> Error {
    Error::new("cannot make a kubeconfig")
}

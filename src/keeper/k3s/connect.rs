//! The agent's credential for the k3s of this machine: its account, a token that ends, and what
//! makes the next one.

use std::{fs::Permissions, os::unix::fs::PermissionsExt, path::Path, time::Duration};

use nix::unistd::{Gid, Uid, chown};

use super::{
    super::{Keeper, now},
    describe,
};
use crate::{
    core::k3s::{
        BINARY,
        connect::{self, ACCOUNT, Bearer, LIFETIME},
        step::Step,
    },
    error::{Error, Result, Retry},
    files,
    host::exec::{Limits, ProcessOutput},
    wire::keeper::{Done, K3sPlan, Record},
};

/// A wanted credential.
#[derive(Clone, Debug)]
pub struct Connect {
    /// Namespace of the agent's account.
    pub namespace: String,
    /// Objects of the agent in the cluster, which are applied where its account is missing.
    pub manifest: String,
    /// Group of the agent.
    pub group: u32,
    /// Path of this program.
    pub program: String,
}

const DOES: &str = "give the agent its own credential for k3s, and renew it twice a day";
/// The first call of k3s' own client on a slow card unpacks it.
const WITHIN: Limits = Limits {
    within: Duration::from_secs(120),
    output_bytes_max: 64 * 1024,
};
/// Files made in the directory belong to its group.
const DIRECTORY_MODE: u32 = 0o2750;
const FILE_MODE: u32 = 0o640;

/// A wanted credential: a token of an account, in a kubeconfig.
pub(super) struct Credential<'a> {
    /// Namespace of the account.
    pub(super) namespace: &'a str,
    pub(super) account: &'a str,
    /// Time until its token ends, as kubectl writes it.
    pub(super) lifetime: &'a str,
    /// Address of the API; `None`: that of this machine for itself.
    pub(super) server: Option<&'a str>,
    /// Line of comment at the beginning.
    pub(super) note: &'a str,
}

impl Keeper {
    /// The plan of a connection.
    pub fn k3s_connect_plan(&self, wanted: &Connect) -> Result<K3sPlan> {
        self.can_connect()?;
        Ok(K3sPlan {
            does: DOES.to_owned(),
            steps: describe::steps(&self.connect_steps(wanted)?),
            undo: "sudo pipeops-agent undo ID; the account stays in the cluster: pipeops-agent rbac | k3s kubectl delete -f -"
                .to_owned(),
            ..K3sPlan::default()
        })
    }

    /// Gives the agent its credential, and has it renewed.
    pub fn k3s_connect(&self, wanted: &Connect, who: &str) -> Result<Done> {
        let journal = self.open()?;
        self.settle(&journal)?;
        self.can_connect()?;
        // Before anything is set up: what does not work now would fail twice a day.
        self.k3s_renew(wanted)?;
        if self
            .system
            .is_there(connect::unit_path(self.system.init()?))
        {
            return Ok(Done {
                outcome: "done".to_owned(),
                sentence: "the agent has a new credential; it is renewed already".to_owned(),
                ..Done::default()
            });
        }
        let record = Record::new("k3s.connect", who, now(), DOES.to_owned());
        let steps = self.connect_steps(wanted)?;
        self.begin_steps(&journal, record, steps, Duration::ZERO)
    }

    /// Makes a credential, and the rights for it where there are none.
    pub fn k3s_renew(&self, wanted: &Connect) -> Result<()> {
        let account = ["get", "serviceaccount", ACCOUNT, "-n", &wanted.namespace];
        let account = [&account[..], &["--ignore-not-found", "-o", "name"]].concat();
        if !self.kubectl_patiently(&["get", "--raw=/readyz"])?.success() {
            return Err(cannot()
                .why("k3s does not answer, or is not ready")
                .fix("sudo pipeops-agent k3s status")
                .retry(Retry::Soon));
        }
        if self.answer(&account, cannot)?.trim().is_empty() {
            self.system
                .tell("applying the manifest of the agent's rights");
            // The account is what says next time that all of it was applied.
            let (first, last) = connect::account_last(&wanted.manifest);
            self.apply(&first, cannot)?;
            self.apply(&last, cannot)?;
        }
        let credential = Credential {
            namespace: &wanted.namespace,
            account: ACCOUNT,
            lifetime: LIFETIME,
            server: None,
            note: "Made by pipeops-k3s-connect; the token ends after a week.",
        };
        let text = self.credential(&credential, cannot)?;
        let directory = self.system.path(connect::DIRECTORY);
        files::create_directory(&directory)?;
        open_to(&directory, wanted.group)?;
        files::replace(
            &self.system.path(connect::KUBECONFIG),
            text.as_bytes(),
            FILE_MODE,
        )
    }

    fn connect_steps(&self, wanted: &Connect) -> Result<Vec<Step>> {
        let init = self.system.init()?;
        let is_there = |path: &str| self.system.is_there(path);
        Ok(connect::steps(init, &wanted.program, &is_there))
    }

    fn can_connect(&self) -> Result<()> {
        self.only_on_servers("k3s connect")?;
        if self.system.is_there(BINARY) {
            return Ok(());
        }
        Err(cannot()
            .why("there is no k3s")
            .fix("install it: sudo pipeops-agent k3s install"))
    }

    /// Makes a token, and the kubeconfig for it. `cannot` heads an error.
    pub(super) fn credential(
        &self,
        wanted: &Credential<'_>,
        cannot: fn() -> Error,
    ) -> Result<String> {
        let jsonpath = format!("-o=jsonpath={}", connect::JSONPATH);
        let view = ["config", "view", "--raw", "--minify", &jsonpath];
        let found = self.answer(&view, cannot)?;
        let found = match (wanted.server, found.trim().split_once(' ')) {
            (Some(server), Some((_, ca))) => format!("{server} {ca}"),
            (None, _) | (_, None) => found,
        };
        let account = wanted.account;
        let duration = format!("--duration={}", wanted.lifetime);
        let create = [
            "-n",
            wanted.namespace,
            "create",
            "token",
            account,
            &duration,
        ];
        let bearer = Bearer {
            account,
            token: &self.answer(&create, cannot)?,
            note: wanted.note,
        };
        connect::kubeconfig(&found, &bearer)
            .ok_or_else(|| cannot().why("k3s' own kubeconfig has no address with a CA"))
    }

    /// Applies a manifest. `cannot` heads an error.
    pub(super) fn apply(&self, manifest: &str, cannot: fn() -> Error) -> Result<()> {
        self.send("apply", manifest, cannot)
    }

    /// Does with a manifest what the verb says. `cannot` heads an error.
    pub(super) fn send(&self, verb: &str, manifest: &str, cannot: fn() -> Error) -> Result<()> {
        let file = self.directory.join("rbac.yaml");
        files::replace(&file, manifest.as_bytes(), files::PRIVATE)?;
        let applied = self.answer(&[verb, "-f", &file.display().to_string()], cannot);
        // What stays has no secret, and is replaced by the next one.
        drop(std::fs::remove_file(&file));
        applied.map(drop)
    }

    /// Output of k3s' own client, if all went well. `cannot` heads an error.
    pub(super) fn answer(&self, arguments: &[&str], cannot: fn() -> Error) -> Result<String> {
        let ended = self.kubectl_patiently(arguments)?;
        if ended.success() {
            return Ok(ended.stdout);
        }
        let why: String = ended.stderr.trim().chars().take(300).collect();
        Err(cannot().why(why).fix("sudo pipeops-agent k3s status"))
    }

    /// Asks k3s' own client, with the time of a slow card.
    pub(super) fn kubectl_patiently(&self, arguments: &[&str]) -> Result<ProcessOutput> {
        self.system.kubectl_within("30s", WITHIN, arguments)
    }
}

fn cannot() -> Error {
    Error::new("cannot give the agent a credential for k3s")
}

/// Lets a group look into a directory of root's.
pub(super) fn open_to(directory: &Path, group: u32) -> Result<()> {
    let explained = |error: std::io::Error| {
        files::explain(format!("cannot set up {}", directory.display()), &error)
    };
    chown(
        directory,
        Some(Uid::effective()),
        Some(Gid::from_raw(group)),
    )
    .map_err(|errno| explained(errno.into()))?;
    std::fs::set_permissions(directory, Permissions::from_mode(DIRECTORY_MODE)).map_err(explained)
}

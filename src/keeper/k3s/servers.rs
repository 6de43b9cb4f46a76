//! Several servers: which there are, the Lease by which they are upgraded one at a time, and the
//! snapshot of the etcd that they share.

use std::{path::Path, time::Duration};

use super::{
    super::{Keeper, now, system::System},
    Install, datastore,
    join::finding,
    watch::SERVERS,
};
use crate::{
    core::k3s::{
        self, BINARY, Role,
        servers::{self, Datastore, LEASE, LEASE_JSONPATH, LEASE_LABEL, ServerNode, card_doubt},
    },
    error::{Error, Result},
    files,
    host::exec::ProcessOutput,
    wire::keeper::Finding,
};

/// Beginning of the name of a snapshot that k3s makes for a backup.
const NAME: &str = "pipeops";

impl System {
    /// Kind of the datastore of this server. k3s looks for the same folder: that of etcd itself is
    /// there with SQLite as well, with a name that k3s makes at each start (k3s 13728).
    pub(super) fn datastore(&self, data_dir: &str) -> Datastore {
        let endpoint = self.k3s_value("datastore-endpoint", "K3S_DATASTORE_ENDPOINT");
        if endpoint.is_some() {
            Datastore::Elsewhere
        } else if self.is_there(&format!("{data_dir}/server/db/etcd/member/wal")) {
            Datastore::Etcd
        } else {
            Datastore::Sqlite
        }
    }

    /// Returns whether the datastore encrypts Secrets; `None` where this is no server, and where
    /// nobody can say.
    pub(super) fn encrypts_secrets(&self, data_dir: &str) -> Option<bool> {
        let folder = format!("{data_dir}/server/cred");
        let path = format!("{folder}/encryption-config.json");
        let settings = self.text(&path);
        if self.role() != Role::Server
            || !self.is_there(&folder)
            || (settings.is_none() && self.is_there(&path))
        {
            return None;
        }
        k3s::encrypts_secrets(settings.as_deref())
    }

    /// The servers of the cluster, at least one; `None` where its API does not say which there are.
    pub(super) fn servers(&self) -> Option<Vec<ServerNode>> {
        let jsonpath = format!("jsonpath={}", servers::JSONPATH);
        let asked = self.kubectl(&["get", "nodes", "-l", SERVERS, "-o", &jsonpath]);
        let ended = asked.ok().filter(ProcessOutput::success)?;
        Some(servers::servers(&ended.stdout)).filter(|found| !found.is_empty())
    }

    /// Finding that the etcd of an installation would be on a card.
    pub(super) fn etcd_on_card(&self, wanted: &Install, data_dir: &str) -> Option<Finding> {
        let options = &wanted.options;
        let has_etcd = options.has_etcd || options.shared.is_some();
        let (_, device) = self.mounted(data_dir).filter(|_| has_etcd)?;
        let found = card_doubt(&device, data_dir).map(finding);
        found.filter(|found| !wanted.ignored.contains(&found.id))
    }

    /// Has k3s write a snapshot of etcd into the directory of `to`, and checks it.
    pub(super) fn snapshot(&self, data_dir: &str, to: &Path) -> Result<()> {
        let cannot = || Error::new("cannot make a snapshot of etcd");
        let real = to.parent().unwrap_or(to);
        let below = real.strip_prefix(self.root()).unwrap_or(real);
        let folder = format!("/{}", below.display());
        let mut argv = Vec::new();
        let supervisor = self.supervisor();
        // The unit of the watch reaches the loopback interface only, and this is another address.
        if supervisor.is_some() && self.is_there("/run/systemd/system") {
            argv.extend(["systemd-run", "--quiet", "--wait", "--collect"]);
        }
        argv.extend([BINARY, "etcd-snapshot", "save", "--name", NAME, "--dir"]);
        // An adopted k3s may have its data directory from its command line only.
        argv.extend([folder.as_str(), "--data-dir", data_dir]);
        // Settings of the snapshots that k3s makes by itself: compressed, or sent away, this one
        // would not be what is looked for.
        argv.extend(["--etcd-snapshot-compress=false", "--etcd-s3=false"]);
        if let Some(supervisor) = &supervisor {
            argv.extend(["--etcd-server", supervisor]);
        }
        self.run(&argv).map_err(|error| {
            error.within("cannot make a snapshot of etcd").fix(
                "sudo pipeops-agent k3s status; then: sudo /usr/local/bin/k3s etcd-snapshot save",
            )
        })?;
        let made = self.list(&folder, "").into_iter();
        let mut made = made.filter(|path| {
            path.rsplit('/')
                .next()
                .is_some_and(|it| it.starts_with(NAME))
        });
        let made = made
            .next()
            .ok_or_else(|| cannot().why(format!("k3s left none in {folder}")))?;
        std::fs::rename(self.path(&made), to)
            .map_err(|error| files::explain(format!("cannot move {made}"), &error))?;
        datastore::check_snapshot(to)
    }
}

impl Keeper {
    /// State of the Lease: an answer for [`Self::take_lease`], and the finding that another server
    /// has it.
    pub(super) fn lease(&self, node: &str) -> Result<(String, Option<Finding>)> {
        let jsonpath = format!("jsonpath={LEASE_JSONPATH}");
        let get = ["-n", "kube-system", "get", "lease", LEASE];
        let get = [&get[..], &["--ignore-not-found", "-o", &jsonpath]].concat();
        let answer = self.answer(&get, cannot)?;
        let held = servers::held(&answer, node, now()).map(|(holder, until)| Finding {
            id: "upgrade.lease".to_owned(),
            what: format!(
                "the server {holder} is upgraded now: it has the Lease {LEASE} in kube-system until {} at the latest",
                until.rfc3339()
            ),
            fix: format!("wait until it is Ready with the new version: sudo /usr/local/bin/k3s kubectl get nodes; if it is gone for good: sudo /usr/local/bin/k3s kubectl -n kube-system delete lease {LEASE}"),
        });
        Ok((answer, held))
    }

    /// Takes the Lease, unless somebody else has changed it since the answer.
    pub(super) fn take_lease(&self, answer: &str, node: &str, within: Duration) -> Result<()> {
        // There and back, each with a start of k3s; and the backup before.
        let seconds = within.as_secs().saturating_mul(2).saturating_add(600);
        let before = Some(answer).filter(|answer| !answer.trim().is_empty());
        let verb = before.map_or("create", |_| "replace");
        let manifest = servers::lease(node, now(), seconds, before);
        self.send(verb, &manifest, cannot)
    }

    /// Gives the Lease back. One that stays ends by itself.
    pub(super) fn leave_lease(&self, node: &str) {
        let label = format!("{LEASE_LABEL}={node}");
        let delete = ["-n", "kube-system", "delete", "lease", "-l", &label];
        drop(self.kubectl_patiently(&delete));
    }
}

fn cannot() -> Error {
    Error::new("cannot take the Lease by which servers are upgraded one at a time")
}

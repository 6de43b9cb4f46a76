//! Upgrade of k3s to a version from a folder. The old program, and after a minor version its
//! datastore, wait for the undo.

use std::{path::Path, time::Duration};

use super::{
    super::{Keeper, now, system::System},
    Program, Source,
    acts::COPY_BYTES_MAX,
    backup::Backup,
    datastore, describe,
    inspect::FindingSet,
    join::finding,
    node::drain_findings,
    refuse,
};
use crate::{
    core::{
        k3s::{
            self, BINARY, Change, Role, Version,
            drain::{self, Fate},
            join, plan,
            servers::{Datastore, ServerNode, brings_new_etcd, etcd_doubt, upgrade_doubts},
            step::{self, Drain, Staged},
        },
        time::Wall,
    },
    error::{Error, Result},
    files,
    host::exec,
    wire::keeper::{Done, Finding, K3sPlan, Managed, Record},
};

/// A wanted upgrade.
#[derive(Clone, Debug)]
pub struct Upgrade {
    /// The program.
    pub binary: Program,
    /// Archives of images.
    pub images: Vec<Source>,
    /// Version that the program must have; `None`: whichever it is.
    pub version: Option<Version>,
    /// Findings to ignore (`--ignore`).
    pub ignored: Vec<String>,
    /// The backup that is made first.
    pub backup: Backup,
    /// Time for the node to become Ready.
    pub within: Duration,
    /// Path of this program.
    pub program: String,
    /// Date of this program: the clock is wrong where it is earlier.
    pub built: Wall,
}

/// Checks of the doctor whose findings block an upgrade; k3s runs in spite of the others.
const REFUSED: [&str; 3] = ["clock.wrong", "disk.read-only", "disk.space"];
/// Finding by which the Pods stay on the node during an upgrade.
const DRAIN: &str = "upgrade.drain";
/// Time for the Pods to move before an upgrade.
/// Time for k3s to become Ready after an undo.
const RESTART_WITHIN: Duration = Duration::from_secs(900);
const DRAIN_WITHIN: Duration = Duration::from_secs(300);
/// The program of before, in the keeper's directory.
pub(super) const BEFORE: &str = "k3s.before";

struct Prepared {
    note: Managed,
    from: Version,
    to: Version,
    kind: plan::Kind,
    binary: Staged,
    images: Vec<(String, Staged)>,
    datastore: Datastore,
    /// Number of servers; 0: nobody says it.
    servers: usize,
    /// State of the Lease of several servers.
    lease: Option<String>,
    /// Eviction of the Pods of this node; `None`: they stay.
    drain: Option<Drain>,
    findings: FindingSet,
}

impl Keeper {
    /// The plan of an upgrade.
    pub fn k3s_upgrade_plan(&self, wanted: &Upgrade) -> Result<K3sPlan> {
        let _lock = self.open()?;
        self.only_settled()?;
        let prepared = self.prepare_upgrade(wanted);
        self.unstage();
        let prepared = prepared?;
        let before = Staged {
            path: self.own(BEFORE),
            sha256: String::new(),
            bytes: 0,
        };
        let upgrade = self.upgrade(&prepared, wanted, before)?;
        let steps = plan::upgrade(&upgrade);
        let is_etcd = prepared.datastore == Datastore::Etcd;
        let lost = if upgrade.keeps_datastore() {
            "; it takes the datastore back to the moment of the upgrade"
        } else if !upgrade.changes_datastore() {
            ""
        } else if is_etcd && brings_new_etcd(prepared.from, prepared.to) {
            "; the datastore stays, and once all servers have etcd 3.6, the old version does not read it"
        } else if is_etcd && prepared.servers == 0 {
            "; the datastore stays: other servers may have it, too"
        } else {
            "; the datastore stays: other servers have it, too"
        };
        Ok(K3sPlan {
            does: sentence(&prepared),
            bytes: step::bytes(&steps),
            steps: describe::steps(&steps),
            undo: format!(
                "a failure on the way is undone automatically; later: sudo pipeops-agent undo ID{lost}"
            ),
            refused: prepared.findings.refused,
            warned: prepared.findings.warned,
            ..K3sPlan::default()
        })
    }

    /// Backs k3s up, upgrades it, and waits until its node is Ready with the new version. What
    /// fails ends on the old one.
    pub fn k3s_upgrade(&self, wanted: &Upgrade, who: &str) -> Result<Done> {
        let journal = self.open()?;
        self.settle(&journal)?;
        let prepared = self
            .prepare_upgrade(wanted)
            .inspect_err(|_| self.unstage())?;
        if let Some(error) = refuse("k3s cannot be upgraded now", &prepared.findings.refused) {
            self.unstage();
            return Err(error);
        }
        let node = &prepared.note.node;
        if let Some(lease) = &prepared.lease {
            let taken = self.take_lease(lease, node, wanted.within);
            taken.inspect_err(|_| self.unstage())?;
        }
        let begun = (|| {
            // A worker has no datastore.
            if self.system.role() == Role::Server {
                self.back_up_unasked(&wanted.backup)
                    .map_err(|error| error.within("k3s is not upgraded without a backup"))?;
            }
            self.supersede(&journal, &prepared.note.data_dir)?;
            let before = files::copy(
                &self.system.path(BINARY),
                &self.directory.join(BEFORE),
                0o700,
                None,
                (COPY_BYTES_MAX, &mut |_| {}),
            )?;
            let before = Staged {
                path: self.own(BEFORE),
                sha256: before.sha256,
                bytes: before.bytes,
            };
            let steps = plan::upgrade(&self.upgrade(&prepared, wanted, before)?);
            let record = Record::new("k3s.upgrade", who, now(), sentence(&prepared));
            self.begin_steps(&journal, record, steps, wanted.within)
        })();
        // A change that stays open needs its files: the resume removes them.
        if journal
            .records()?
            .iter()
            .all(|record| record.outcome.is_some())
        {
            self.unstage();
            if prepared.lease.is_some() && begun.is_err() {
                self.leave_lease(node);
            }
        }
        begun
    }

    /// Takes the Lease for the undo of an upgrade, where there are several servers. An API that
    /// does not answer is what it may mend.
    pub(in super::super) fn take_turn_to_undo(&self, record: &Record) -> Result<()> {
        if record.check != "k3s.upgrade" || self.system.role() == Role::Worker {
            return Ok(());
        }
        let servers = self.system.servers().unwrap_or_default();
        if servers.len() < 2 {
            return Ok(());
        }
        let note = self.managed()?;
        let own = note.map_or_else(String::new, |note| note.node);
        let (answer, held) = self.lease(&own)?;
        let away = servers.iter().find(|it| !it.is_ready && it.name != own);
        let away = away.map(|it| Finding {
            id: String::new(),
            what: format!(
                "the server {} is not Ready, and each that restarts beside it may be one too many",
                it.name
            ),
            fix: "inspect it there: sudo pipeops-agent k3s status".to_owned(),
        });
        match held.or(away) {
            Some(found) => Err(Error::new(found.what).fix(found.fix)),
            None => self.take_lease(&answer, &own, RESTART_WITHIN),
        }
    }

    fn prepare_upgrade(&self, wanted: &Upgrade) -> Result<Prepared> {
        let cannot = || Error::new("k3s cannot be upgraded");
        let note = self.managed()?.ok_or_else(|| {
            cannot()
                .why("pipeops-agent does not manage a k3s on this machine")
                .fix("sudo pipeops-agent k3s status")
        })?;
        let role = self.system.role();
        let (mut datastore, mut counted) = (Datastore::Elsewhere, None);
        if role == Role::Server {
            datastore = self
                .system
                .check_datastore(&note.data_dir)
                .map_err(|error| error.within("k3s cannot be upgraded"))?;
            counted = self.system.servers();
        }
        let from = self.k3s_version().ok_or_else(|| {
            cannot()
                .why("the k3s on this machine does not say its version")
                .fix("sudo pipeops-agent k3s status")
        })?;
        let (binary, to) = self.stage_binary(&wanted.binary, wanted.version)?;
        let kind = match k3s::change(from, to) {
            Change::Patch => plan::Kind::Patch,
            Change::Minor => plan::Kind::Minor,
            Change::None => {
                return Err(Error::new(format!("k3s {to} is installed already"))
                    .fix("nothing needs to be done"));
            }
            Change::Refused(why) => {
                return Err(Error::new(format!("k3s {from} cannot become {to}"))
                    .why(why)
                    .fix("take the next minor version, or a later patch of this one"));
            }
        };
        let mut findings = self
            .system
            .inspect(&note.data_dir, &wanted.ignored, wanted.built);
        findings
            .refused
            .retain(|finding| REFUSED.contains(&finding.id.as_str()));
        findings.warned.clear();
        findings
            .refused
            .extend(self.system.refuses(to, &note.data_dir, &wanted.ignored));
        let (mut cluster, lease) =
            self.cluster_doubts(&note, (datastore, counted.as_deref()), (from, to))?;
        cluster.retain(|finding| !wanted.ignored.contains(&finding.id));
        findings.refused.extend(cluster);
        let (drain, warned) =
            self.system
                .moves_pods(&note.node, (role, kind, to), &wanted.ignored)?;
        findings.warned.extend(warned);
        let images = wanted.images.iter();
        let images = images.map(|source| Ok((source.name.clone(), self.stage(source, 0o600)?)));
        Ok(Prepared {
            images: images.collect::<Result<_>>()?,
            note,
            from,
            to,
            kind,
            binary,
            datastore,
            servers: counted.map_or(0, |servers| servers.len()),
            lease,
            drain,
            findings,
        })
    }

    /// Findings about the cluster that block an upgrade, and the state of the Lease of several
    /// servers.
    fn cluster_doubts(
        &self,
        managed: &Managed,
        (datastore, counted): (Datastore, Option<&[ServerNode]>),
        (from, to): (Version, Version),
    ) -> Result<(Vec<Finding>, Option<String>)> {
        let (node, servers) = (&managed.node, counted.unwrap_or_default());
        let mut found = self.system.cluster_refuses(node);
        if datastore == Datastore::Etcd {
            found.extend(counted.is_none().then(uncounted));
            found.extend(etcd_doubt(servers, (node, from), to).map(finding));
        }
        let renamed = self.renamed(managed);
        found.extend(renamed.map(|name| another_name(node, &name)));
        if self.system.role() == Role::Worker {
            found.extend(self.newer_than_server(to)?);
        }
        found.extend(upgrade_doubts(servers, node, to).into_iter().map(finding));
        let mut lease = None;
        if servers.len() > 1 {
            let (answer, held) = self.lease(node)?;
            lease = Some(answer);
            found.extend(held);
        }
        Ok((found, lease))
    }

    /// The finding that a worker would be newer than its server.
    fn newer_than_server(&self, to: Version) -> Result<Option<Finding>> {
        let asked = self.system.kubectl(&["get", "--raw=/version"])?;
        let words = asked.stdout.replace(['"', ',', ':'], " ");
        let server = k3s::version_in(&words).ok_or_else(|| {
            Error::new("k3s cannot be upgraded")
                .why("the server does not say its version")
                .fix("is it reachable? sudo pipeops-agent k3s status")
        })?;
        let doubt = join::skew(to, server);
        Ok(doubt.map(|(_, what, _)| Finding {
            id: "upgrade.server".to_owned(),
            what,
            fix: "upgrade the server first: sudo pipeops-agent k3s upgrade there".to_owned(),
        }))
    }

    fn upgrade(
        &self,
        prepared: &Prepared,
        wanted: &Upgrade,
        before: Staged,
    ) -> Result<plan::Upgrade> {
        let data_dir = &prepared.note.data_dir;
        let is_there = |name: &str| {
            self.system
                .is_there(&format!("{data_dir}/agent/images/{name}"))
        };
        let images = prepared.images.iter();
        let images = images.map(|(name, staged)| plan::Image {
            is_there: is_there(name),
            name: name.clone(),
            staged: staged.clone(),
        });
        Ok(plan::Upgrade {
            init: self.system.init()?,
            role: self.system.role(),
            program: wanted.program.clone(),
            data_dir: data_dir.clone(),
            node: prepared.note.node.clone(),
            is_enabled: self.system.starts_at_boot()?,
            from: prepared.from,
            to: prepared.to,
            kind: prepared.kind,
            binary: prepared.binary.clone(),
            before,
            images: images.collect(),
            servers: prepared.servers,
            datastore: prepared.datastore,
            drain: prepared.drain.clone(),
        })
    }
}

/// Finding that nobody knows how many servers there are, and so whether the Lease is needed.
fn uncounted() -> Finding {
    Finding {
        id: "upgrade.servers".to_owned(),
        what: "the API does not say how many servers the cluster has, and several are upgraded one at a time".to_owned(),
        fix: "see that it answers: sudo /usr/local/bin/k3s kubectl get nodes; if this is the only server, nothing is in the way".to_owned(),
    }
}

/// Finding that k3s would start as another node than the one that is waited for.
fn another_name(node: &str, name: &str) -> Finding {
    Finding {
        id: "upgrade.renamed".to_owned(),
        what: format!(
            "k3s would start as the node {name}, and not as {node}: the machine has another name now"
        ),
        fix: format!(
            "keep the name: node-name: {node} in {}; or go on with the new one: sudo systemctl restart k3s; sudo pipeops-agent k3s adopt",
            k3s::CONFIG
        ),
    }
}

fn sentence(prepared: &Prepared) -> String {
    format!("upgrade k3s from {} to {}", prepared.from, prepared.to)
}

impl System {
    /// Eviction of the Pods of this node before an upgrade to a minor version, if it is open now
    /// and another node can take them; and what is to be known of it. Pods that nobody would start
    /// again keep it from being done, because an upgrade ends none.
    fn moves_pods(
        &self,
        node: &str,
        (role, kind, to): (Role, plan::Kind, Version),
        ignored: &[String],
    ) -> Result<(Option<Drain>, Vec<Finding>)> {
        if kind == plan::Kind::Patch {
            return Ok((None, Vec::new()));
        }
        let finding = |id: &str, what: &str, fix: String| Finding {
            id: id.to_owned(),
            what: format!("{to} is another minor version: {what}"),
            fix,
        };
        let stays = finding(
            "upgrade.minor",
            "containers may restart",
            "upgrade when an interruption does not matter".to_owned(),
        );
        let is_open = self.node(node).is_ok_and(|found| !found.is_cordoned);
        let is_wanted = role == Role::Server && is_open && !ignored.iter().any(|id| id == DRAIN);
        if !is_wanted || !self.is_relieved(node) {
            return Ok((None, vec![stays]));
        }
        let pods = self.pods(node)?;
        let FindingSet {
            refused: mut held,
            mut warned,
        } = drain_findings(&pods, true);
        if !held.is_empty() {
            held.insert(0, stays);
            return Ok((None, held));
        }
        warned.insert(
            0,
            finding(
                DRAIN,
                "the Pods move to other nodes first, and this node takes Pods again afterwards",
                format!(
                    "--ignore {DRAIN} leaves them where they are: their containers may restart"
                ),
            ),
        );
        let moving = pods.iter().filter(|pod| pod.fate != Fate::Stays);
        let drain = Drain {
            within: DRAIN_WITHIN,
            is_forced: false,
            pods: moving.map(|pod| pod.name.clone()).collect(),
        };
        Ok((Some(drain), warned))
    }

    /// Returns whether another node can take the Pods of this one.
    pub(super) fn is_relieved(&self, node: &str) -> bool {
        let jsonpath = format!("jsonpath={}", drain::NODES);
        let asked = self.kubectl(&["get", "nodes", "-o", &jsonpath]);
        let ended = asked.ok().filter(exec::ProcessOutput::success);
        ended.is_some_and(|ended| drain::takes_pods(&ended.stdout, node))
    }

    /// Findings about the cluster that block an upgrade.
    fn cluster_refuses(&self, node: &str) -> Vec<Finding> {
        let mut found = Vec::new();
        let mut add = |id: &str, what: String, fix: &str| {
            found.push(Finding {
                id: id.to_owned(),
                what,
                fix: fix.to_owned(),
            });
        };
        match self.node(node) {
            Ok(found) if found.is_ready => {}
            Ok(_) => add(
                "upgrade.node",
                format!("the node {node} is not Ready, and an upgrade repairs nothing"),
                "sudo pipeops-agent k3s status",
            ),
            Err(why) => add("upgrade.node", why, "sudo pipeops-agent k3s status"),
        }
        // The kind does not exist where nobody installed that controller.
        if self.names(&["plans.upgrade.cattle.io", "-A"]) > 0 {
            add(
                "upgrade.plans",
                "the system-upgrade-controller has plans for this cluster".to_owned(),
                "let it upgrade k3s, or remove its plans: kubectl get plans.upgrade.cattle.io -A",
            );
        }
        found
    }

    /// Keeps a copy of the datastore of a k3s that is stopped.
    pub(in super::super) fn keep_datastore(&self, path: &str, copy: &str) -> Result<()> {
        let (real, kept) = (self.path(path), self.path(copy));
        if kept.exists() {
            return Ok(());
        }
        let unfinished = self.path(&format!("{copy}.new"));
        if real.is_dir() {
            drop(std::fs::remove_dir_all(&unfinished));
            copy_tree(&real, &unfinished)?;
        } else {
            datastore::copy(&real, &unfinished)?;
        }
        std::fs::rename(&unfinished, &kept)
            .and_then(|()| super::super::acts::sync_above(&kept))
            .map_err(|error| files::explain(format!("cannot keep {path}"), &error))
    }

    /// Puts that copy back. Without one nothing has happened, or all of it.
    pub(in super::super) fn restore_datastore(&self, path: &str, copy: &str) -> Result<()> {
        let (real, kept) = (self.path(path), self.path(copy));
        let unfinished = self.path(&format!("{copy}.new"));
        drop(std::fs::remove_file(&unfinished));
        drop(std::fs::remove_dir_all(&unfinished));
        if !kept.exists() {
            return Ok(());
        }
        if kept.is_dir() {
            self.remove(path, false)?;
        }
        // The log of another database would be taken for one of this.
        for ending in ["-wal", "-shm"] {
            drop(std::fs::remove_file(self.path(&format!("{path}{ending}"))));
        }
        std::fs::rename(&kept, &real)
            .and_then(|()| super::super::acts::sync_above(&real))
            .and_then(|()| super::super::acts::sync_above(&kept))
            .map_err(|error| files::explain(format!("cannot restore {path}"), &error))
    }
}

/// Copies a member of etcd, which has two levels of folders.
fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    let cannot =
        |error: &std::io::Error| files::explain(format!("cannot copy {}", from.display()), error);
    files::create_directory(to)?;
    for entry in std::fs::read_dir(from).map_err(|error| cannot(&error))? {
        let entry = entry.map_err(|error| cannot(&error))?;
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            copy_tree(&path, &target)?;
        } else {
            files::copy(
                &path,
                &target,
                files::PRIVATE,
                None,
                (COPY_BYTES_MAX, &mut |_| {}),
            )?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_member_of_an_etcd_is_kept_and_put_back_whole() {
        let root = tempfile::tempdir().unwrap();
        let system = System::new(root.path());
        let member = root.path().join("db/etcd/member");
        std::fs::create_dir_all(member.join("snap")).unwrap();
        files::replace(&member.join("snap/db"), b"old", files::PRIVATE).unwrap();
        std::fs::create_dir(root.path().join("kept")).unwrap();
        // Of an attempt that was cut off.
        std::fs::create_dir_all(root.path().join("kept/etcd.new/wal")).unwrap();
        system.keep_datastore("/db/etcd", "/kept/etcd").unwrap();
        files::replace(&member.join("snap/db"), b"new", files::PRIVATE).unwrap();
        std::fs::create_dir(member.join("wal")).unwrap();
        system.restore_datastore("/db/etcd", "/kept/etcd").unwrap();
        assert_eq!(std::fs::read(member.join("snap/db")).unwrap(), b"old");
        assert!(!member.join("wal").exists() && !root.path().join("kept/etcd").exists());
        // Done already.
        system.restore_datastore("/db/etcd", "/kept/etcd").unwrap();
        assert!(member.exists());
    }
}

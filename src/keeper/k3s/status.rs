//! State of k3s: looked at for `k3s status`, and left by each look of the watch for the agent,
//! which shows it and decides nothing by it.

use super::{
    super::{
        Keeper, change,
        journal::Journal,
        now,
        system::{System, plain},
    },
    Target,
    connect::open_to,
    is_k3s, watch,
};
use crate::{
    core::{
        k3s::{
            self, BINARY, Role,
            connect::DIRECTORY,
            faults::{Api, K3sState},
            servers::Datastore,
            watch::{PROGRESS, STATE_MODE, STATUS, STATUS_BYTES_MAX, WatchState},
        },
        time::Wall,
    },
    error::Result,
    files,
    wire::{
        backup::BackupEntry,
        json,
        keeper::{Doing, K3sStatus, Managed, Record},
    },
};

/// Maximum number of changes in the status.
const CHANGES_MAX: usize = 5;
/// Volumes, and backups, that are left for the agent.
const LISTED_MAX: usize = 300;
/// Time after which volumes are measured again: that reads all their directories.
const MEASURED_EVERY_MS: i64 = 3_600_000;
const DOING_BYTES_MAX: usize = 4096;

impl Keeper {
    /// State of k3s; `folder` is the directory that settings name for backups.
    pub fn k3s_status(&self, folder: Option<&Target>) -> Result<K3sStatus> {
        let note = self.managed()?;
        if !self.system.is_there(BINARY) && note.is_none() {
            let other = self.system.other_distributions();
            return Ok(K3sStatus {
                managed: "none".to_owned(),
                at: now().rfc3339(),
                backups: self.all_backups(folder, &[]),
                other: other.first().map(|other| other.name.to_owned()),
                unfinished: self.unfinished()?,
                ..K3sStatus::default()
            });
        }
        let named = note
            .as_ref()
            .map_or_else(|| self.node_name(None), |note| Ok(note.node.clone()))?;
        let (is_ready, why) = match self.system.node(&named) {
            Ok(found) if found.is_ready && found.is_cordoned => {
                (true, Some("it is cordoned: kubectl uncordon".to_owned()))
            }
            Ok(found) if found.is_ready => (true, None),
            Ok(_) => (false, Some("the node is not Ready".to_owned())),
            Err(why) => (false, Some(why)),
        };
        let known = self.known(note.as_ref(), &self.watch_state(), folder, &[])?;
        Ok(self.measured(K3sStatus {
            node: Some(named),
            is_ready,
            why,
            service: self.system.service_state(),
            ..known
        }))
    }

    /// Everything that costs a few small files. `earlier` are backups whose manifests were read
    /// before.
    fn known(
        &self,
        note: Option<&Managed>,
        watch_state: &WatchState,
        folder: Option<&Target>,
        earlier: &[BackupEntry],
    ) -> Result<K3sStatus> {
        let data_dir = self.data_dir(note);
        let certificate = self.system.first_end(&data_dir);
        let other = self.system.other_distributions();
        Ok(K3sStatus {
            managed: note.map_or_else(|| "found".to_owned(), |note| note.how.clone()),
            at: now().rfc3339(),
            server: match self.system.role() {
                Role::Server => None,
                Role::Worker => k3s::setting(&self.system.k3s_settings(), "server"),
            },
            other: other.first().map(|other| other.name.to_owned()),
            datastore: (self.system.role() == Role::Server)
                .then(|| self.system.datastore(&data_dir).as_str().to_owned()),
            datastore_bytes: self.system.datastore_bytes(&data_dir),
            encrypts_secrets: self.system.encrypts_secrets(&data_dir),
            data_dir: Some(data_dir),
            certificate_ends: certificate.as_ref().map(|(_, end)| end.rfc3339()),
            certificate: certificate.map(|(file, _)| file),
            backups: self.all_backups(folder, earlier),
            doing: {
                let journal = Journal::open(&self.directory)?;
                // One that was killed left its progress behind.
                self.system.doing().filter(|_| journal.is_locked())
            },
            unfinished: self.unfinished()?,
            next_backup: watch_state.next_backup_ms.map(stamp),
            looked: watch_state.last_run_ms().map(stamp),
            open: watch_state.open().map(str::to_owned).collect(),
            faults: watch_state
                .escalated()
                .into_iter()
                .map(watch::finding)
                .collect(),
            changes: {
                let records = Journal::open(&self.directory)?.records()?;
                let own = records.iter().rev().filter(|record| is_k3s(record));
                own.take(CHANGES_MAX).map(change).collect()
            },
            ..K3sStatus::default()
        })
    }

    /// With what starts a program, and reads the directories of all volumes.
    fn measured(&self, status: K3sStatus) -> K3sStatus {
        let data_dir = status.data_dir.as_deref().unwrap_or_default();
        let has_etcd = status.datastore.as_deref() == Some(Datastore::Etcd.as_str());
        K3sStatus {
            servers: if has_etcd {
                let servers = self.system.servers();
                servers.map_or(0, |servers| u64::try_from(servers.len()).unwrap_or(0))
            } else {
                0
            },
            version: self.k3s_version().map(|version| version.to_string()),
            volumes: self.system.volumes(data_dir),
            measured: status.at.clone(),
            ..status
        }
    }

    fn all_backups(&self, folder: Option<&Target>, earlier: &[BackupEntry]) -> Vec<BackupEntry> {
        let disk = folder.filter(|folder| matches!(folder, Target::Disk(_)));
        let folders = disk.into_iter().chain([&Target::Usual]);
        folders
            .flat_map(|folder| self.backups_in(folder, earlier))
            .collect()
    }

    pub(super) fn unfinished(&self) -> Result<Option<String>> {
        let records = Journal::open(&self.directory)?.records()?;
        let mut open = records.iter().filter(|record| record.outcome.is_none());
        Ok(open.next().map(Record::id))
    }

    /// Leaves the state for the agent, as a look saw it. `is_mended` is true after a repair that
    /// k3s came up from.
    pub(super) fn leave(
        &self,
        state: &K3sState,
        note: &Managed,
        watch_state: &WatchState,
        (folder, is_mended): (Option<&Target>, bool),
    ) -> Result<()> {
        let earlier = self.system.left();
        let before = earlier.as_ref();
        let backups = before.map_or(&[][..], |before| &before.backups);
        let known = self.known(Some(note), watch_state, folder, backups)?;
        let (is_ready, why) = match ready(state) {
            _ if is_mended => (true, None),
            Some(found) => found,
            // Nobody asked this time.
            None => before.map_or((false, None), |before| {
                (before.is_ready, before.why.clone())
            }),
        };
        let status = K3sStatus {
            node: Some(note.node.clone()),
            is_ready,
            why,
            service: Some(state.service.active.clone()),
            ..known
        };
        // A change may have brought another version, and taken volumes away.
        let is_fresh = |before: &&K3sStatus| {
            let measured = Wall::parse_rfc3339(&before.measured);
            let age = measured.map(|measured| now().millis() - measured.millis());
            before.changes == status.changes
                && age.is_some_and(|age| (0..MEASURED_EVERY_MS).contains(&age))
        };
        let mut status = match before.filter(is_fresh) {
            Some(before) => K3sStatus {
                version: before.version.clone(),
                servers: before.servers,
                volumes: before.volumes.clone(),
                measured: before.measured.clone(),
                ..status
            },
            None => self.measured(status),
        };
        status.volumes.truncate(LISTED_MAX);
        status.backups.truncate(LISTED_MAX);
        self.system.put(STATUS, &serde_json::to_vec(&status))
    }

    /// The same while a change is under way or was interrupted: k3s may be down on purpose, so only
    /// that is told.
    pub(super) fn leave_unjudged(&self, is_running: bool) -> Result<()> {
        if !is_running {
            // Of a process that was killed.
            drop(std::fs::remove_file(self.system.path(PROGRESS)));
        }
        let Some(before) = self.system.left() else {
            return Ok(());
        };
        let status = K3sStatus {
            at: now().rfc3339(),
            unfinished: self.unfinished()?,
            doing: None,
            ..before
        };
        self.system.put(STATUS, &serde_json::to_vec(&status))
    }
}

/// Progress file of a change, for the agent; removed on drop.
#[derive(Debug)]
pub(in super::super) struct ProgressFile<'a>(&'a System);

impl Drop for ProgressFile<'_> {
    fn drop(&mut self) {
        drop(std::fs::remove_file(self.0.path(PROGRESS)));
        // Only where it is empty: whoever needs it makes it. One that was killed may have made it.
        drop(std::fs::remove_dir(self.0.path(DIRECTORY)));
    }
}

impl System {
    /// Begins to tell the agent of a change, where there is an agent.
    pub(in super::super) fn begin_telling(&self, does: &str) -> ProgressFile<'_> {
        let doing = Doing {
            does: plain(does),
            since: now().rfc3339(),
            ..Doing::default()
        };
        let is_first = !self.is_there(DIRECTORY) && self.open_directory();
        if is_first || self.is_there(STATUS) {
            self.put_doing(&doing);
        }
        ProgressFile(self)
    }

    /// Makes the directory that the agent reads. False where there is no agent, or no room for it:
    /// nothing depends on it.
    fn open_directory(&self) -> bool {
        let directory = self.path(DIRECTORY);
        let open =
            |group| files::create_directory(&directory).and_then(|()| open_to(&directory, group));
        self.group.is_some_and(|group| open(group).is_ok())
    }

    /// Tells whoever hears this change, and the agent, what it is doing.
    pub(in super::super) fn tell(&self, step: &str) {
        (self.watch)(step);
        if let Some(doing) = self.doing() {
            let step = plain(step);
            self.put_doing(&Doing { step, ..doing });
        }
    }

    /// Nothing depends on it, so a full memory blocks no change.
    fn put_doing(&self, doing: &Doing) {
        if let Err(error) = self.put(PROGRESS, &serde_json::to_vec(doing)) {
            log::debug!("{}", error.sentence());
        }
    }

    fn doing(&self) -> Option<Doing> {
        let text = files::read_if_there(&self.path(PROGRESS), DOING_BYTES_MAX);
        json::shape(&text.ok()??).ok()
    }

    /// State that an earlier run left; none that can be understood is as none.
    fn left(&self) -> Option<K3sStatus> {
        let text = files::read_if_there(&self.path(STATUS), STATUS_BYTES_MAX);
        json::shape(&text.ok()??).ok()
    }

    fn put(&self, path: &str, text: &serde_json::Result<Vec<u8>>) -> Result<()> {
        // The shapes have text keys and whole numbers only, so this does not fail.
        let text = text.as_deref().unwrap_or_default();
        files::replace(&self.path(path), text, STATE_MODE)
    }
}

/// Readiness of the node with its reason; `None`: not asked.
fn ready(state: &K3sState) -> Option<(bool, Option<String>)> {
    let no = |why: String| Some((false, Some(why)));
    match &state.api {
        Some(Api::Node(node)) if node.is_ready() => Some((true, None)),
        Some(Api::Node(_)) => no("the node is not Ready".to_owned()),
        Some(Api::NoNode) => no("the cluster has no node of this name".to_owned()),
        Some(Api::Silent(why)) => no(format!("its API does not answer ({why})")),
        None if !state.service.is_running() => {
            no(format!("its service is {}", state.service.active))
        }
        None => None,
    }
}

fn stamp(millis: i64) -> String {
    Wall::from_millis(millis).rfc3339()
}

//! Restoring a backup: what is there is moved aside first, and moved back by the undo.

use std::{
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    super::{Keeper, journal::LockedJournal, now, system::System},
    acts::COPY_BYTES_MAX,
    archive,
    backup::{DATASTORE, make_above, not_in_it},
    datastore, describe,
};
use crate::{
    core::{
        age::Identity,
        format::size,
        journal::Outcome,
        k3s::{
            self, Version,
            backup::{Origin, refusal},
            data,
            plan::{self, Content, SNAPSHOT, SettingsFile},
            servers::{Datastore, NOT_ENCRYPTED, lasting},
            step::{Replaced, Staged, Step},
        },
        order::OrderExt as _,
        time::Wall,
    },
    error::{Error, Result},
    files::{self, age::DecryptionKey},
    host::{facts, network},
    wire::{
        backup::{Manifest, Packed},
        keeper::{Act, Done, Finding, K3sPlan, Managed, Record},
    },
};

/// A wanted restore.
#[derive(Clone, Debug)]
pub struct Restore {
    /// The archive.
    pub file: PathBuf,
    /// Private keys, for one that is encrypted.
    pub identities: Vec<Identity>,
    /// Findings to ignore (`--ignore`).
    pub ignored: Vec<String>,
    /// Time for the node to become Ready.
    pub within: Duration,
    /// Path of this program.
    pub program: String,
}

impl Restore {
    fn means(&self) -> DecryptionKey<'_> {
        DecryptionKey::Identities(&self.identities)
    }
}

/// Finding that the datastore depends on other settings than k3s would have here.
const SETTINGS: &str = "restore.settings";
/// Finding that nobody knows how many servers there are.
const UNCOUNTED: &str = "restore.servers";
/// Longest text that goes through the journal, as everywhere in the keeper.
const TEXT_BYTES_MAX: u64 = 64 * 1024;
/// All of them together; the rest is copied.
const TEXTS_BYTES_MAX: u64 = 128 * 1024;
/// Longest file of settings that is understood.
const SETTINGS_BYTES_MAX: usize = 16 << 20;
/// Room that is left on the disk.
const RESERVE: u64 = 64 << 20;

struct Target {
    note: Managed,
    version: Version,
    datastore: Datastore,
}

impl Keeper {
    /// The plan of a restore: the archive is read and judged, and nothing is written.
    pub fn k3s_restore_plan(&self, wanted: &Restore) -> Result<K3sPlan> {
        self.only_on_servers("k3s restore")?;
        let target = self.target(&wanted.ignored)?;
        let manifest = archive::unpack(&wanted.file, None, wanted.means())?;
        target.judge(&manifest)?;
        self.check_lasting(&manifest, &wanted.ignored)?;
        let volumes = manifest.volumes.iter().map(not_in_it);
        let steps = self.restore_steps(wanted, &target, &manifest, named(&manifest))?;
        Ok(K3sPlan {
            does: sentence(&manifest),
            warned: self.foreign_addresses(&manifest).chain(volumes).collect(),
            steps: describe::steps(&steps),
            bytes: bytes_of(&manifest),
            undo: format!(
                "sudo pipeops-agent undo ID: the current cluster is kept in {}",
                data::aside(&target.note.data_dir)
            ),
            ..K3sPlan::default()
        })
    }

    /// Restores a backup, and waits until the node is Ready. What fails is undone.
    pub fn k3s_restore(&self, wanted: &Restore, who: &str) -> Result<Done> {
        self.only_on_servers("k3s restore")?;
        let journal = self.open()?;
        self.settle(&journal)?;
        let target = self.target(&wanted.ignored)?;
        let manifest = archive::manifest(&wanted.file, &wanted.identities)?;
        target.judge(&manifest)?;
        self.check_lasting(&manifest, &wanted.ignored)?;
        let unpacked = self.system.path(&data::unpacked(&target.note.data_dir));
        let read = self
            .unpack(wanted, &target, &unpacked)
            .and_then(|manifest| {
                let settings = self.settings(&manifest, &target, &unpacked)?;
                self.check_places(&settings)?;
                self.supersede(&journal, &target.note.data_dir)?;
                Ok((manifest, self.keep_replaced(settings, &target)?))
            });
        let (manifest, settings) = read.inspect_err(|_| {
            // What stays is removed by the next one.
            drop(std::fs::remove_dir_all(&unpacked));
        })?;
        let steps = self.restore_steps(wanted, &target, &manifest, settings)?;
        let record = Record::new("k3s.restore", who, now(), sentence(&manifest));
        self.begin_steps(&journal, record, steps, wanted.within)
    }

    /// The k3s that a backup may go to.
    fn target(&self, ignored: &[String]) -> Result<Target> {
        let cannot = || Error::new("no backup can be restored here");
        let note = self.managed()?.ok_or_else(|| {
            cannot()
                .why("pipeops-agent does not manage a k3s on this machine")
                .fix("install k3s first: sudo pipeops-agent k3s install --from FOLDER --node-name NAME")
        })?;
        let version = self.k3s_version().ok_or_else(|| {
            cannot()
                .why("the k3s on this machine does not say its version")
                .fix("sudo pipeops-agent k3s status")
        })?;
        let datastore = self.system.datastore(&note.data_dir);
        if datastore == Datastore::Etcd {
            self.can_reset(ignored)?;
        }
        Ok(Target {
            note,
            version,
            datastore,
        })
    }

    /// Refuses to reset an etcd that other servers have a part in, or may have.
    fn can_reset(&self, ignored: &[String]) -> Result<()> {
        let cannot = Error::new("no backup can be restored here");
        let servers = self.system.servers();
        if let Some(servers) = servers.as_ref().filter(|servers| servers.len() > 1) {
            let names: Vec<_> = servers.iter().map(|it| it.name.as_str()).collect();
            return Err(cannot
                .why(format!(
                    "the cluster has {} servers, {}, and a restore ends the etcd of all but one",
                    servers.len(),
                    names.join(", ")
                ))
                .fix("let the others leave (sudo pipeops-agent node leave, on each), restore here, then join them again (sudo pipeops-agent k3s join --server-role)"));
        }
        // k3s says so itself, once everything is stopped.
        let settings = self.system.k3s_settings();
        if let Some(server) = k3s::setting(&settings, "server") {
            return Err(cannot
                .why(format!("this server joined {server}, and k3s resets none whose settings name another"))
                .fix(format!("restore there; or, if that one is gone for good, remove the lines server and token-file from {}", k3s::DROP_IN)));
        }
        if servers.is_some() || ignored.iter().any(|id| id == UNCOUNTED) {
            return Ok(());
        }
        Err(cannot
            .why("the API does not say how many servers the cluster has, and a restore ends the etcd of all but one")
            .fix(format!("start k3s, so that it answers: sudo pipeops-agent k3s status; or, if this is the only server, or the others are gone for good: --ignore {UNCOUNTED}")))
    }

    /// Files of k3s' settings that a restore leaves here.
    fn staying_settings(&self, manifest: &Manifest) -> Vec<String> {
        let is_replaced = |path: &str| {
            let mut names = manifest.files.iter().map(|file| file.name.as_str());
            path != k3s::DROP_IN && names.any(|name| path.strip_prefix('/') == Some(name))
        };
        let files = self.system.settings_files().into_iter();
        files
            .filter(|path| !is_replaced(path))
            .filter_map(|path| self.system.text(&path))
            .collect()
    }

    /// Refuses a datastore that depends on other settings than k3s will have here.
    fn check_lasting(&self, manifest: &Manifest, ignored: &[String]) -> Result<()> {
        let stay = self.staying_settings(manifest);
        let of_files = |key: &str| {
            let mut lines = manifest.file_settings.iter();
            let value = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
            value.map(str::to_owned)
        };
        let then = lasting(|key| {
            self.system
                .k3s_value_by(&stay, key)
                .or_else(|| of_files(key))
        });
        // Backups of earlier versions say nothing.
        let mut wanted = manifest.settings.iter();
        let differs = wanted.find(|line| line.as_str() != NOT_ENCRYPTED && !then.contains(line));
        match differs.filter(|_| !ignored.iter().any(|id| id == SETTINGS)) {
            None => Ok(()),
            Some(line) => Err(Error::new("the backup cannot be restored here")
                .why(format!("its cluster has {line}, and k3s here would not, so that it could not use the datastore"))
                .fix(format!(
                    "write that line into /etc/rancher/k3s/config.yaml.d/60-restored.yaml, which the restore leaves there, and take other values of it from the command line of k3s; or, if it is meant: --ignore {SETTINGS}"
                ))),
        }
    }

    /// Findings about addresses of another machine in the settings of a backup.
    fn foreign_addresses(&self, manifest: &Manifest) -> impl Iterator<Item = Finding> {
        let stay = self.staying_settings(manifest);
        let own = network::all_addresses(self.system.root()).unwrap_or_default();
        manifest.file_settings.iter().filter_map(move |line| {
            let (key, value) = line.split_once(": ")?;
            let mut values = value.split(',');
            let is_here = match key {
                "node-ip" => values.any(|it| it.parse().is_ok_and(|it| own.contains(&it))),
                "flannel-iface" => self.system.is_there(&format!("/sys/class/net/{value}")),
                _ => true,
            };
            let is_foreign = !is_here && self.system.k3s_value_by(&stay, key).is_none();
            is_foreign.then(|| Finding {
                id: "restore.address".to_owned(),
                what: format!("the backup has {line}, which this machine has not: k3s may not start with it"),
                fix: format!("write the {key} of this machine into /etc/rancher/k3s/config.yaml.d/60-restored.yaml, which the restore leaves there"),
            })
        })
    }

    /// Writes the files of the archive beside those that they replace.
    fn unpack(&self, wanted: &Restore, target: &Target, into: &Path) -> Result<Manifest> {
        drop(std::fs::remove_dir_all(into));
        let server = format!("{}/server", target.note.data_dir);
        self.system.guard(&server)?;
        let manifest = archive::manifest(&wanted.file, &wanted.identities)?;
        let bytes = bytes_of(&manifest).saturating_add(RESERVE);
        let space = facts::disk_space(&self.system.nearest(&server));
        if let Some(space) = space.filter(|space| space.available_bytes < bytes) {
            return Err(Error::new(format!("no room for the backup in {server}"))
                .why(format!(
                    "it takes {}, and {} are free",
                    size(bytes),
                    size(space.available_bytes)
                ))
                .fix("make room: du -xh / | sort -h | tail"));
        }
        self.system
            .tell(&format!("checking {}", wanted.file.display()));
        // A k3s that never started has none.
        files::create_directory(&self.system.path(&server))?;
        files::create_directory(into)?;
        let manifest = archive::unpack(&wanted.file, Some(into), wanted.means())?;
        target.judge(&manifest)?;
        match target.datastore {
            Datastore::Etcd => datastore::check_snapshot(&into.join(SNAPSHOT))?,
            Datastore::Sqlite | Datastore::Elsewhere => {
                datastore::check(&into.join(DATASTORE))?;
            }
        }
        Ok(manifest)
    }

    /// Settings of the backup. Ours are of the installation that is here, and stay.
    fn settings(
        &self,
        manifest: &Manifest,
        target: &Target,
        unpacked: &Path,
    ) -> Result<Vec<SettingsFile>> {
        let files = manifest.files.iter();
        let files = files.filter(|file| file.name.starts_with("etc/"));
        let (mut settings, mut all, mut texts_bytes) = (Vec::new(), Vec::new(), 0_u64);
        for file in files {
            let path = format!("/{}", file.name);
            if path == k3s::DROP_IN {
                continue;
            }
            if path == k3s::CONFIG || path.contains("/config.yaml.d/") {
                let content = files::read(&unpacked.join(&file.name), SETTINGS_BYTES_MAX)?;
                all.push(String::from_utf8_lossy(&content).into_owned());
            }
            let text = self.short_text(file, &path, unpacked)?;
            let together = texts_bytes.saturating_add(file.bytes);
            let content = match text.filter(|_| together <= TEXTS_BYTES_MAX) {
                Some(text) => {
                    texts_bytes = together;
                    Content::Text(text)
                }
                None => Content::Checked {
                    copy: Staged {
                        path: format!("{}{path}", data::unpacked(&target.note.data_dir)),
                        sha256: file.sha256.clone(),
                        bytes: file.bytes,
                    },
                    before: None,
                },
            };
            settings.push(SettingsFile { path, content });
        }
        // They must not lead k3s away from the node and the data that are managed here.
        all.extend(self.system.text(k3s::DROP_IN));
        for (key, here) in [
            ("data-dir", &target.note.data_dir),
            ("node-name", &target.note.node),
        ] {
            if let Some(value) = k3s::setting(&all, key).filter(|value| value != here) {
                return Err(Error::new("the backup cannot be restored here")
                    .why(format!(
                        "its settings have {key} {value}, and k3s here has {here}"
                    ))
                    .fix(format!("install k3s here with --{key} {value}")));
            }
        }
        Ok(settings)
    }

    /// The text of a file that the journal can hold, with the file that it replaces.
    fn short_text(&self, file: &Packed, path: &str, unpacked: &Path) -> Result<Option<String>> {
        let there = std::fs::symlink_metadata(self.system.path(path));
        let replaced_bytes = there.map_or(0, |found| found.len());
        if file.bytes.max(replaced_bytes) > TEXT_BYTES_MAX {
            return Ok(None);
        }
        let content = files::read(&unpacked.join(&file.name), SETTINGS_BYTES_MAX)?;
        // Others become six letters each in the journal.
        let is_plain = |letter: char| !letter.is_control() || matches!(letter, '\n' | '\r' | '\t');
        let text = String::from_utf8(content).ok();
        Ok(text.filter(|text| text.chars().all(is_plain)))
    }

    /// Refuses to put a file where something else is, before anything is given up for it.
    fn check_places(&self, settings: &[SettingsFile]) -> Result<()> {
        for SettingsFile { path, .. } in settings {
            let found = std::fs::symlink_metadata(self.system.path(path));
            if found.is_ok_and(|found| !found.is_file()) {
                return Err(Error::new(format!("cannot restore {path}"))
                    .why("there is something else in its place, which is not a regular file")
                    .fix(format!("inspect it, and move it away: ls -ld {path}")));
            }
        }
        Ok(())
    }

    /// Keeps copies of the files that are replaced by copies, for the undo.
    fn keep_replaced(
        &self,
        mut settings: Vec<SettingsFile>,
        target: &Target,
    ) -> Result<Vec<SettingsFile>> {
        let aside = data::settings_aside(&target.note.data_dir);
        for SettingsFile { path, content } in &mut settings {
            let Content::Checked { before, .. } = content else {
                continue;
            };
            let real = self.system.path(path);
            let Ok(metadata) = std::fs::symlink_metadata(&real) else {
                continue;
            };
            let copy = format!("{aside}{path}");
            let kept = self.system.path(&copy);
            files::create_directory(&self.system.path(&aside))?;
            make_above(&kept)?;
            let sum = files::copy(
                &real,
                &kept,
                files::PRIVATE,
                None,
                (COPY_BYTES_MAX, &mut |_| {}),
            )?;
            *before = Some(Replaced {
                copy: Staged {
                    path: copy,
                    sha256: sum.sha256,
                    bytes: sum.bytes,
                },
                mode: metadata.permissions().mode() & 0o7777,
            });
        }
        Ok(settings)
    }

    fn restore_steps(
        &self,
        wanted: &Restore,
        target: &Target,
        manifest: &Manifest,
        settings: Vec<SettingsFile>,
    ) -> Result<Vec<Step>> {
        let server = format!("{}/server", target.note.data_dir);
        let items = manifest
            .files
            .iter()
            .filter_map(|file| file.name.strip_prefix("data/server/"))
            .filter_map(|name| name.split('/').next());
        let mut items: Vec<_> = items.map(str::to_owned).collect();
        items.order();
        items.dedup();
        let mut there = items.clone();
        if target.datastore == Datastore::Etcd {
            // k3s makes the member of the snapshot, and snapshots of its own stay beside it.
            items.retain(|item| item != "db");
            there.clone_from(&items);
            there.push("db/etcd".to_owned());
        }
        let is_there = |item: &&String| {
            std::fs::symlink_metadata(self.system.path(&format!("{server}/{item}"))).is_ok()
        };
        let restore = plan::Restore {
            init: self.system.init()?,
            program: wanted.program.clone(),
            data_dir: target.note.data_dir.clone(),
            node: target.note.node.clone(),
            is_enabled: self.system.starts_at_boot()?,
            version: target.version,
            there: there.iter().filter(is_there).cloned().collect(),
            items,
            settings,
            datastore: target.datastore,
            options: self.system.node_options(),
        };
        let is_there = |path: &str| self.system.is_there(path);
        Ok(plan::restore(&restore, &is_there))
    }

    /// Ends the possibility to undo earlier upgrades and restores: what their undo needs makes room
    /// for that of the next.
    pub(super) fn supersede(&self, journal: &LockedJournal, data_dir: &str) -> Result<()> {
        let is_such =
            |record: &Record| ["k3s.restore", "k3s.upgrade"].contains(&record.check.as_str());
        let such: Vec<_> = journal.records()?.into_iter().filter(is_such).collect();
        let kept = data::kept(data_dir);
        let stopped = such
            .last()
            .filter(|last| last.outcome.as_deref() == Some(Outcome::Failed.as_str()));
        let left = kept.iter().find(|path| self.system.is_there(path));
        if let Some((stopped, left)) = stopped.zip(left) {
            let id = stopped.id();
            return Err(Error::new("there is no room for what an undo would need")
                .why(format!("{id} stopped halfway, and {left} may be the only copy of what was there before it"))
                .fix(format!("look at it, then move it: sudo mv {left} {left}.{id}")));
        }
        for mut earlier in such {
            let is_done = earlier.outcome.as_deref() == Some(Outcome::Done.as_str());
            if is_done && !earlier.is_one_way {
                earlier.is_one_way = true;
                journal.write(&earlier)?;
            }
        }
        kept.iter()
            .try_for_each(|path| self.system.remove(path, false))
    }
}

impl Target {
    fn judge(&self, manifest: &Manifest) -> Result<()> {
        let cannot = || Error::new("the backup cannot be restored here");
        let version = manifest
            .version
            .parse()
            .map_err(|()| cannot().why(format!("{:?} is not a k3s version", manifest.version)))?;
        let has = |name: &str| manifest.files.iter().any(|file| file.name == name);
        let (wanted, fix) = match self.datastore {
            Datastore::Etcd => (SNAPSHOT, "install k3s without --cluster-init"),
            Datastore::Sqlite | Datastore::Elsewhere => {
                (DATASTORE, "install k3s with --cluster-init")
            }
        };
        match (has(DATASTORE), has(SNAPSHOT)) {
            (false, false) => return Err(cannot().why("it has no datastore")),
            _ if has(wanted) => {}
            (has_sqlite, _) => {
                let found = if has_sqlite {
                    Datastore::Sqlite
                } else {
                    Datastore::Etcd
                };
                return Err(cannot()
                    .why(format!(
                        "its datastore is {}, and k3s here has {}",
                        found.as_str(),
                        self.datastore.as_str()
                    ))
                    .fix(fix));
            }
        }
        let backup = Origin {
            version,
            node: manifest.node.clone(),
        };
        let here = Origin {
            version: self.version,
            node: self.note.node.clone(),
        };
        match refusal(&backup, &here) {
            Some((why, fix)) => Err(cannot().why(why).fix(fix)),
            None => Ok(()),
        }
    }
}

/// Settings of a backup, by their names and lengths: enough for a plan.
fn named(manifest: &Manifest) -> Vec<SettingsFile> {
    let files = manifest.files.iter().map(|file| {
        let bytes = usize::try_from(file.bytes.min(TEXT_BYTES_MAX)).unwrap_or(0);
        SettingsFile {
            path: format!("/{}", file.name),
            content: Content::Text(" ".repeat(bytes)),
        }
    });
    let is_restored =
        |file: &SettingsFile| file.path.starts_with("/etc/") && file.path != k3s::DROP_IN;
    files.filter(is_restored).collect()
}

fn bytes_of(manifest: &Manifest) -> u64 {
    let bytes = manifest.files.iter().map(|file| file.bytes);
    bytes.fold(0, u64::saturating_add)
}

fn sentence(manifest: &Manifest) -> String {
    format!(
        "restore k3s {} of the node {} as it was at {}",
        manifest.version,
        manifest.node,
        Wall::from_millis(manifest.at_ms).rfc3339()
    )
}

impl System {
    /// Renames a file or a tree on its disk, where nothing is in its way.
    pub(in super::super) fn rename(&self, from: &str, to: &str) -> Result<()> {
        let (here, there) = (self.path(from), self.path(to));
        let cannot =
            |error: &std::io::Error| files::explain(format!("cannot move {from} to {to}"), error);
        let is = |path: &Path| std::fs::symlink_metadata(path).is_ok();
        match (is(&here), is(&there)) {
            (false, true) => return Ok(()),
            (true, true) => return Err(super::super::acts::changed(to)),
            (true | false, false) => {}
        }
        let above = there.parent().unwrap_or(&there);
        std::fs::create_dir_all(above)
            .and_then(|()| std::fs::rename(&here, &there))
            .and_then(|()| super::super::acts::sync_above(&here))
            .and_then(|()| super::super::acts::sync_above(&there))
            .map_err(|error| cannot(&error))
    }

    /// Returns whether it was renamed.
    pub(in super::super) fn is_renamed(&self, from: &str, to: &str) -> bool {
        let is = |path: &str| std::fs::symlink_metadata(self.path(path)).is_ok();
        is(to) && !is(from)
    }
}

/// An undo of a change of k3s is resumed at the next start of the machine, as the change was.
pub(in super::super) fn guards(record: &Record) -> impl Iterator<Item = &Act> {
    let is_made = |act: &&Act| is_of_guard(act) && !matches!(act, Act::Gone { .. });
    record.acts.iter().filter(is_made)
}

/// Returns whether an act makes or removes the service that goes on after a power cut.
pub(super) fn is_of_guard(act: &Act) -> bool {
    matches!(act, Act::File { path, .. } | Act::Link { path, .. } | Act::Gone { path, .. }
        if plan::is_resume(path))
}

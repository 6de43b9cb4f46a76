//! Backups of k3s: datastore, token, certificates and settings in one file that only root can read.

use std::{
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use super::{
    super::{Keeper, now, system::System},
    archive, datastore,
    inspect::first_paths,
};
use crate::{
    core::{
        age::Recipient,
        format::size,
        k3s::{
            self, Version,
            backup::{
                CLUSTER_DIGITS, FOLDER, Form, Kept, Limits, NamedLimits, Owner, name, parse_name,
                sort_newest_first, surplus,
            },
            plan::SNAPSHOT,
            servers::{Datastore, lasting},
        },
        order::OrderExt as _,
        procfs::mounts::mount_of,
        time::Wall,
    },
    error::{Error, Result},
    files,
    host::facts,
    wire::{
        backup::{BackupEntry, BackupReport, FORMAT, Manifest, Packed, Volume},
        keeper::{Finding, K3sPlan, Managed, PlannedStep},
    },
};

/// A wanted backup.
#[derive(Clone, Debug)]
pub struct Backup {
    /// Directory.
    pub to: Target,
    /// Backups that stay there.
    pub limits: Limits,
    /// Age recipients that can decrypt it; none: it is not encrypted.
    pub recipients: Vec<Recipient>,
    /// Group of the agent, which copies it elsewhere.
    pub copied_by: Option<u32>,
}

/// Directory of a backup.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum Target {
    /// [`FOLDER`].
    #[default]
    Usual,
    Folder(String),
    /// This one, on another disk than the system: a disk that is not mounted is a refusal, and
    /// fills no other.
    Disk(String),
}

impl Target {
    pub(super) fn folder(&self) -> &str {
        match self {
            Self::Usual => FOLDER,
            Self::Folder(folder) | Self::Disk(folder) => folder,
        }
    }
}

impl Backup {
    fn form(&self) -> Form {
        if self.recipients.is_empty() {
            Form::Plain
        } else {
            Form::Encrypted
        }
    }
}

/// The change, for whoever hears of it.
pub(super) const DOES: &str = "back k3s up";
/// Note of the limits that a person gave, in the keeper's directory.
const LIMITS_NOTE: &str = "k3s.kept";
const LIMITS_NOTE_BYTES_MAX: usize = 256 * 1024;
/// Folder for the files of a backup before they are packed, in its directory.
const WORK: &str = ".work";
/// Files and folders below `server` that a backup has, besides the datastore.
const SECRETS: [&str; 5] = ["token", "agent-token", "node-token", "tls", "cred"];
/// Manifests that k3s writes at each start.
const BUNDLED: [&str; 7] = [
    "ccm.yaml",
    "coredns.yaml",
    "local-storage.yaml",
    "metrics-server",
    "rolebindings.yaml",
    "runtimes.yaml",
    "traefik.yaml",
];
/// Certificates, keys and kubeconfigs of a server are about 60; each of them is short.
const FILES_MAX: usize = 1000;
/// Longest file among k3s' settings: people keep bundles of CAs and key stores there.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// Room that is left on the disk.
const RESERVE: u64 = 64 << 20;
const CONTENTS: &str = "it has the keys and secrets of the cluster";
/// Settings that are of one machine.
const ADDRESS: [&str; 2] = ["node-ip", "flannel-iface"];
/// Fix where a plain backup is refused.
const ENCRYPT: &str = "set k3s.backup_recipients to the public key of an identity that is kept elsewhere (age-keygen makes one), so that it is encrypted";
/// File systems that keep no owner of a file, or are other machines.
const FOREIGN: [&str; 12] = [
    "vfat", "msdos", "exfat", "ntfs", "ntfs3", "fuseblk", "nfs", "nfs4", "cifs", "smb3", "9p",
    "virtiofs",
];

/// Contents of a backup that is about to be made.
struct BackupPlan {
    version: Version,
    node: String,
    cluster: String,
    data_dir: String,
    datastore: Datastore,
    /// Settings, and those of the files alone, as in [`Manifest`].
    settings: [Vec<String>; 2],
    /// Names in the archive, with the paths on the machine.
    files: Vec<(String, String)>,
    volumes: Vec<Volume>,
}

impl BackupPlan {
    fn owner(&self) -> Owner<'_> {
        Owner {
            node: &self.node,
            cluster: &self.cluster,
        }
    }
}

impl Keeper {
    /// The plan of a backup.
    pub fn k3s_backup_plan(&self, wanted: &Backup) -> Result<K3sPlan> {
        self.only_on_servers("k3s backup")?;
        let plan = self.plan_backup()?;
        let folder = wanted.to.folder();
        self.check_target(wanted)?;
        let bytes = self.system.datastore_bytes(&plan.data_dir).unwrap_or(0);
        let file = name(plan.owner(), now(), wanted.form());
        let recipients = texts(&wanted.recipients).join(" and ");
        let encrypted = match wanted.form() {
            Form::Plain => String::new(),
            Form::Encrypted => format!(", encrypted to {recipients}"),
        };
        let step = |does: String| PlannedStep {
            does,
            undo: String::new(),
        };
        Ok(K3sPlan {
            does: format!("back up k3s {} of node {}", plan.version, plan.node),
            warned: {
                let own = self.system.own_files(&plan.data_dir);
                plan.volumes.iter().map(not_in_it).chain(own).collect()
            },
            steps: vec![
                step(format!(
                    "copy the datastore ({}, {}), while k3s runs",
                    plan.datastore.as_str(),
                    size(bytes)
                )),
                step("check the copy, reading all of it".to_owned()),
                step(format!(
                    "pack it with {} files: token, certificates, settings",
                    plan.files.len()
                )),
                step(format!("write {folder}/{file} (mode 600){encrypted}")),
                step(format!(
                    "remove all but {} backups, those older than {} days, and what is over {} together; the newest stays, and the newest three at any age",
                    wanted.limits.count,
                    wanted.limits.days,
                    size(wanted.limits.bytes)
                )),
            ],
            bytes,
            undo: format!("sudo rm {folder}/{file}"),
            ..K3sPlan::default()
        })
    }

    /// Makes a backup, reads it back, and removes those that are too many.
    pub fn k3s_backup(&self, wanted: &Backup) -> Result<BackupReport> {
        self.only_on_servers("k3s backup")?;
        let journal = self.open()?;
        self.settle(&journal)?;
        let telling = self.system.begin_telling(DOES);
        let report = self.back_up(wanted)?;
        drop(telling);
        let mut named = self.named_limits();
        named.name(wanted.to.folder(), wanted.limits);
        let note = self.directory.join(LIMITS_NOTE);
        files::replace(&note, named.text().as_bytes(), files::PRIVATE)?;
        if wanted.copied_by.is_some() {
            let data_dir = self.data_dir(self.managed()?.as_ref());
            let handed = self.hand_over(wanted, &report.node, &data_dir);
            handed.map_err(|error| {
                let what = format!("{} is made, but not left to the agent", report.file);
                error.within(what)
            })?;
        }
        Ok(report)
    }

    fn named_limits(&self) -> NamedLimits {
        let note = self.directory.join(LIMITS_NOTE);
        let text = files::read_if_there(&note, LIMITS_NOTE_BYTES_MAX);
        let text = text.ok().flatten().unwrap_or_default();
        NamedLimits::parse(&String::from_utf8_lossy(&text))
    }

    /// The same for a change that has the lock, and for the schedule: what a person kept stays.
    pub(super) fn back_up_unasked(&self, wanted: &Backup) -> Result<BackupReport> {
        let limits = self.named_limits().widen(wanted.to.folder(), wanted.limits);
        self.back_up(&Backup {
            limits,
            ..wanted.clone()
        })
    }

    fn back_up(&self, wanted: &Backup) -> Result<BackupReport> {
        let plan = self.plan_backup()?;
        let folder = wanted.to.folder();
        self.check_target(wanted)?;
        self.make_folder(folder)?;
        let here = self.system.path(folder);
        // Plain files never go where only encrypted ones may.
        let own = match wanted.form() {
            Form::Plain => here.clone(),
            Form::Encrypted => {
                self.make_folder(FOLDER)?;
                self.system.path(FOLDER)
            }
        };
        let work = own.join(WORK);
        // One that was interrupted.
        drop(std::fs::remove_dir_all(&work));
        let made = self.pack(&plan, wanted, &here, &own);
        // What stays is removed with the next backup.
        drop(std::fs::remove_dir_all(&work));
        let (file, bytes, manifest) = made?;
        let removed = self.prune(&here, plan.owner(), wanted.limits);
        // The first of all files.
        let datastore = manifest.files.first();
        Ok(BackupReport {
            file: format!("{folder}/{file}"),
            bytes,
            datastore_bytes: datastore.map_or(0, |packed| packed.bytes),
            version: manifest.version,
            node: manifest.node,
            revision: manifest.revision,
            files: manifest.files.len(),
            recipients: texts(&wanted.recipients),
            volumes: manifest.volumes,
            removed,
        })
    }

    fn plan_backup(&self) -> Result<BackupPlan> {
        let cannot = || Error::new("k3s cannot be backed up");
        let version = self.k3s_version().ok_or_else(|| {
            cannot()
                .why("there is no k3s on this machine")
                .fix("sudo pipeops-agent k3s status")
        })?;
        let managed = self.managed()?;
        let data_dir = self.data_dir(managed.as_ref());
        let node = managed.map_or_else(|| self.node_name(None), |found| Ok(found.node))?;
        let datastore = self
            .system
            .check_datastore(&data_dir)
            .map_err(|error| error.within("k3s cannot be backed up"))?;
        let mut files = Vec::new();
        for name in SECRETS {
            let path = format!("{data_dir}/server/{name}");
            self.system
                .collect(&path, &format!("data/server/{name}"), &mut files)?;
        }
        for name in ["etc/rancher/k3s", "etc/rancher/node"] {
            self.system.collect(&format!("/{name}"), name, &mut files)?;
        }
        let volumes = self.system.volumes(&data_dir);
        Ok(BackupPlan {
            version,
            node,
            cluster: self.system.cluster(&data_dir),
            data_dir,
            datastore,
            settings: self.system.lasting_settings(),
            files,
            volumes,
        })
    }

    /// Removes what is over the limits, and nothing for its age while nobody vouches for the clock.
    /// Files that cannot be removed are tried again with the next backup.
    fn prune(&self, here: &Path, owner: Owner<'_>, mut limits: Limits) -> Vec<String> {
        if !self.system.is_clock_synchronized() {
            limits.days = u32::MAX;
        }
        let gone = surplus(kept(here, Some(owner)), now(), limits).into_iter();
        gone.filter(|name| std::fs::remove_file(here.join(name)).is_ok())
            .collect()
    }

    pub(super) fn check_target(&self, wanted: &Backup) -> Result<()> {
        let folder = wanted.to.folder();
        self.check_folder(folder, wanted.form())?;
        let is_with_system = self.system.is_with_system(folder);
        let cannot = || Error::new(format!("no backup is written to {folder}"));
        match (&wanted.to, wanted.form()) {
            (Target::Disk(_), _) if is_with_system => Err(cannot()
                .why("no disk is mounted there: it is on the same one as the system")
                .fix(format!(
                    "mount the disk (findmnt shows those that are), or remove k3s.backup_dir: backups then go to {FOLDER}"
                ))),
            (Target::Disk(_) | Target::Folder(_), Form::Plain) if !is_with_system => Err(cannot()
                .why(format!("{CONTENTS}, and that disk can be carried away without this machine"))
                .fix(ENCRYPT)),
            (Target::Usual | Target::Disk(_) | Target::Folder(_), _) => Ok(()),
        }
    }

    /// Refuses a directory that others could change, and for a backup that is not encrypted also
    /// one that others could read.
    fn check_folder(&self, folder: &str, form: Form) -> Result<()> {
        let cannot = || Error::new(format!("no backup is written to {folder}"));
        if !folder.starts_with('/') || folder.split('/').any(|part| part == "..") {
            return Err(cannot().why("it is not an absolute path"));
        }
        self.system.guard(folder).map_err(|error| {
            error
                .within(format!("no backup is written to {folder}"))
                .why(CONTENTS)
        })?;
        // As /tmp: what others make there could be taken for the directory of our work.
        let found = std::fs::metadata(self.system.nearest(folder)).ok();
        if found.is_some_and(|found| found.permissions().mode() & 0o022 != 0) {
            return Err(cannot()
                .why(format!("{CONTENTS}; users other than root may write there"))
                .fix(format!(
                    "choose a directory that is root's, such as {FOLDER}"
                )));
        }
        let kind = match form {
            Form::Plain => self.system.file_system(folder),
            Form::Encrypted => None,
        };
        match kind.filter(|kind| FOREIGN.contains(&kind.as_str()) || kind.starts_with("fuse.")) {
            Some(kind) => Err(cannot()
                .why(format!(
                    "{CONTENTS}, and the file system there ({kind}) would show them to others"
                ))
                .fix(ENCRYPT)),
            None => Ok(()),
        }
    }

    fn make_folder(&self, folder: &str) -> Result<()> {
        if folder == FOLDER {
            // Debian has it, others do not.
            self.system.make_directory("/var/backups")?;
        }
        files::create_directory(&self.system.path(folder))
    }

    /// Packs a backup into `here`, by way of files in `own`.
    fn pack(
        &self,
        plan: &BackupPlan,
        wanted: &Backup,
        here: &Path,
        own: &Path,
    ) -> Result<(String, u64, Manifest)> {
        let bytes = self.system.datastore_bytes(&plan.data_dir).unwrap_or(0);
        for folder in [here, own] {
            has_room(folder, bytes.saturating_mul(2).saturating_add(RESERVE))?;
        }
        let at = now();
        let [settings, file_settings] = plan.settings.clone();
        let work = &own.join(WORK);
        files::create_directory(work)?;
        self.system.tell("copying the datastore");
        let name_of = match plan.datastore {
            Datastore::Sqlite | Datastore::Elsewhere => DATASTORE,
            Datastore::Etcd => SNAPSHOT,
        };
        let target = work.join(name_of);
        make_above(&target)?;
        let revision = match plan.datastore {
            Datastore::Sqlite | Datastore::Elsewhere => {
                let source = format!("{}/{STATE}", plan.data_dir);
                datastore::copy(&self.system.path(&source), &target)?
            }
            Datastore::Etcd => {
                self.system.snapshot(&plan.data_dir, &target)?;
                0
            }
        };
        let mut packed = vec![Self::packed(name_of, &target)?];
        for (name, path) in &plan.files {
            let target = work.join(name);
            make_above(&target)?;
            let from = self.system.path(path);
            files::copy(
                &from,
                &target,
                files::PRIVATE,
                None,
                (FILE_BYTES_MAX, &mut |_| {}),
            )?;
            packed.push(Self::packed(name, &target)?);
        }
        let manifest = Manifest {
            format: FORMAT,
            version: plan.version.to_string(),
            node: plan.node.clone(),
            at_ms: at.millis(),
            data_dir: plan.data_dir.clone(),
            revision,
            settings,
            file_settings,
            files: packed,
            volumes: plan.volumes.clone(),
        };
        let file = name(plan.owner(), at, wanted.form());
        self.system.tell("packing and checking");
        let bytes = archive::write(&here.join(&file), &manifest, work, &wanted.recipients)?;
        Ok((file, bytes, manifest))
    }

    fn packed(name: &str, path: &Path) -> Result<Packed> {
        let sum = files::sum(path)?
            .ok_or_else(|| Error::new(format!("{} is gone", path.display())).fix("try again"))?;
        Ok(Packed {
            name: name.to_owned(),
            sha256: sum.sha256,
            bytes: sum.bytes,
            mode: files::PRIVATE,
        })
    }

    /// Backups in a directory, the newest first. `earlier` are some whose manifests were read
    /// before.
    pub(super) fn backups_in(&self, target: &Target, earlier: &[BackupEntry]) -> Vec<BackupEntry> {
        let here = self.system.path(target.folder());
        let mut found = kept(&here, None);
        sort_newest_first(&mut found, now());
        let entries = found.into_iter().map(|kept| {
            let path = here.join(&kept.name);
            let name = match target {
                Target::Usual => kept.name,
                Target::Folder(folder) | Target::Disk(folder) => format!("{folder}/{}", kept.name),
            };
            let is_it = |entry: &&BackupEntry| entry.name == name && entry.bytes == kept.bytes;
            if let Some(known) = earlier.iter().find(is_it) {
                return known.clone();
            }
            let manifest = archive::manifest(&path, &[]).ok();
            BackupEntry {
                is_encrypted: archive::is_encrypted(&path),
                at: kept.at.rfc3339(),
                bytes: kept.bytes,
                version: manifest.map(|manifest| manifest.version),
                name,
            }
        });
        entries.collect()
    }
}

/// Path of the datastore below the data directory, and in an archive.
pub(super) const STATE: &str = "server/db/state.db";
/// Name of the datastore in an archive.
pub(super) const DATASTORE: &str = "data/server/db/state.db";

/// A volume that is not in a backup.
pub(super) fn not_in_it(volume: &Volume) -> Finding {
    Finding {
        id: "backup.volume".to_owned(),
        what: format!("not in a backup: {} ({})", volume.path, size(volume.bytes)),
        fix: "copy what is in it by a means of the app that uses it".to_owned(),
    }
}

pub(super) fn has_room(folder: &Path, need: u64) -> Result<()> {
    let space = facts::disk_space(folder);
    match space.filter(|space| space.available_bytes < need) {
        Some(space) => Err(
            Error::new(format!("no room for a backup in {}", folder.display()))
                .why(format!(
                    "it takes up to {}, and {} are free",
                    size(need),
                    size(space.available_bytes)
                ))
                .fix("remove old backups, or choose another disk: --to DIR"),
        ),
        None => Ok(()),
    }
}

fn texts(recipients: &[Recipient]) -> Vec<String> {
    let texts = recipients.iter().map(Recipient::text);
    texts.map(str::to_owned).collect()
}

pub(super) fn make_above(path: &Path) -> Result<()> {
    let above = path.parent().unwrap_or(path);
    std::fs::create_dir_all(above)
        .map_err(|error| files::explain(format!("cannot make {}", above.display()), &error))
}

/// Backups in a directory, of that owner or of any.
pub(super) fn kept(here: &Path, wanted: Option<Owner<'_>>) -> Vec<Kept> {
    let entries = std::fs::read_dir(here).into_iter().flatten().flatten();
    let found = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let (owner, at) = parse_name(&name)?;
        let metadata = entry.metadata().ok().filter(std::fs::Metadata::is_file)?;
        wanted.is_none_or(|wanted| wanted == owner).then_some(())?;
        Some(Kept {
            at,
            bytes: metadata.len(),
            name,
        })
    });
    found.collect()
}

impl System {
    /// The datastore; one that is another program is refused.
    pub(super) fn check_datastore(&self, data_dir: &str) -> Result<Datastore> {
        let found = self.datastore(data_dir);
        match found {
            Datastore::Elsewhere => Err(Error::new("its datastore is another server")
                .fix("back that server up by its own means")),
            Datastore::Sqlite if !self.is_there(&format!("{data_dir}/{STATE}")) => {
                Err(Error::new(format!("there is no datastore in {data_dir}"))
                    .fix("k3s makes one when it starts: sudo pipeops-agent k3s status"))
            }
            Datastore::Sqlite | Datastore::Etcd => Ok(found),
        }
    }

    /// Plain files at `path` or below it, under the names that they get. Settings that k3s reads
    /// may be links.
    fn collect(&self, top: &str, name: &str, files: &mut Vec<(String, String)>) -> Result<()> {
        let mut open = vec![(top.to_owned(), name.to_owned())];
        let mut looked = 0_usize;
        while let Some((path, name)) = open.pop() {
            let real = self.path(&path);
            let is_followed = is_setting(&path) && real.is_symlink();
            let found = if is_followed {
                std::fs::metadata(&real)
            } else {
                std::fs::symlink_metadata(&real)
            };
            looked += 1;
            // The administrator's, which k3s writes itself.
            let Some(metadata) = found.ok().filter(|_| path != k3s::KUBECONFIG) else {
                if is_followed && path != k3s::KUBECONFIG {
                    return Err(Error::new("k3s cannot be backed up")
                        .why(format!("{path} is a link that leads nowhere"))
                        .fix("put the file there that it leads to, or remove the link"));
                }
                continue;
            };
            if metadata.is_file() {
                // Left out, it would be missing after a restore, and nobody would know.
                if metadata.len() > FILE_BYTES_MAX {
                    return Err(Error::new("k3s cannot be backed up")
                        .why(format!(
                            "{path} has {}, and a backup takes files of {} at most from there",
                            size(metadata.len()),
                            size(FILE_BYTES_MAX)
                        ))
                        .fix(format!("move it to another directory than {top}")));
                }
                files.push((name, path));
            } else if metadata.is_dir() {
                let names = self.list(&path, "");
                let parts = names.into_iter().filter_map(|path| {
                    let part = path.rsplit('/').next()?.to_owned();
                    Some((path, format!("{name}/{part}")))
                });
                open.extend(parts);
            }
            if looked > FILES_MAX {
                return Err(
                    Error::new(format!("there are more than {FILES_MAX} files in {top}"))
                        .fix("inspect what is there: k3s did not make it"),
                );
            }
        }
        files.order();
        Ok(())
    }

    /// Volumes of the local-path provisioner: directories of this machine that no backup has.
    pub(super) fn volumes(&self, data_dir: &str) -> Vec<Volume> {
        let set = self.k3s_value("default-local-storage-path", "");
        let folder = set.unwrap_or_else(|| format!("{data_dir}/storage"));
        let found = self.list(&folder, "").into_iter();
        let found = found.filter(|path| self.path(path).is_dir());
        found
            .map(|path| Volume {
                bytes: self.bytes_of(&path),
                path,
            })
            .collect()
    }

    /// Finding that the data directory has files of people that are in no backup: manifests, static
    /// Pods, templates of containerd.
    fn own_files(&self, data_dir: &str) -> Option<Finding> {
        let in_folder = |folder: &str| self.list(&format!("{data_dir}/{folder}"), "");
        let is_own = |path: &String| {
            let name = path.rsplit('/').next().unwrap_or_default();
            !BUNDLED.contains(&name)
        };
        let manifests = in_folder("server/manifests").into_iter().filter(is_own);
        let templates = in_folder("agent/etc/containerd").into_iter();
        let templates = templates.filter(|path| path.rsplit('.').next() == Some("tmpl"));
        let all = manifests
            .chain(in_folder("agent/pod-manifests"))
            .chain(templates);
        let all: Vec<_> = all.collect();
        (!all.is_empty()).then(|| Finding {
            id: "backup.files".to_owned(),
            what: format!("not in a backup: {}", first_paths(&all)),
            fix: "keep a copy of these files elsewhere".to_owned(),
        })
    }

    /// Returns whether a path is, or would be, on the disk of the system.
    fn is_with_system(&self, path: &str) -> bool {
        let disk = |path: &Path| std::fs::metadata(path).map(|found| found.dev()).ok();
        disk(&self.nearest(path)) == disk(&self.path("/"))
    }

    /// Time of the newest backup of this machine in a directory; one of a clock that was ahead
    /// counts where there is no other.
    pub(super) fn last_backup(&self, note: &Managed, target: &Target) -> Option<Wall> {
        let owner = Owner {
            node: &note.node,
            cluster: &self.cluster(&note.data_dir),
        };
        let mut found = kept(&self.path(target.folder()), Some(owner));
        sort_newest_first(&mut found, now());
        found.first().map(|kept| kept.at)
    }

    /// Settings that the datastore depends on, and those of them in the files of a backup.
    fn lasting_settings(&self) -> [Vec<String>; 2] {
        let (all, files) = (self.k3s_settings(), self.user_settings());
        let mut of_files = lasting(|key| k3s::setting(&files, key));
        let address = |key: &str| Some(format!("{key}: {}", k3s::setting(&files, key)?));
        of_files.extend(ADDRESS.into_iter().filter_map(address));
        [lasting(|key| self.k3s_value_by(&all, key)), of_files]
    }

    /// The part of the names of backups that stands for the cluster.
    pub(super) fn cluster(&self, data_dir: &str) -> String {
        let ca = self.path(&format!("{data_dir}/server/tls/server-ca.crt"));
        let sum = files::sum(&ca).ok().flatten();
        let mut digits = sum.map_or_else(String::new, |sum| sum.sha256);
        digits.truncate(CLUSTER_DIGITS);
        digits
    }

    /// Kind of the file system that has `path`, or will.
    fn file_system(&self, path: &str) -> Option<String> {
        self.mounted(path).map(|(kind, _)| kind)
    }

    /// Kind and device of the file system that has `path`, or will.
    pub(super) fn mounted(&self, path: &str) -> Option<(String, String)> {
        let real: PathBuf = self.nearest(path);
        let real = std::fs::canonicalize(&real).unwrap_or(real);
        let mountinfo = Self::mountinfo().ok()?;
        let mountinfo = String::from_utf8_lossy(&mountinfo);
        let mount = mount_of(&mountinfo, &real.to_string_lossy())?;
        Some((mount.kind.to_owned(), mount.device.to_owned()))
    }
}

/// Returns whether this is a file that k3s reads its settings from, or their folder.
fn is_setting(path: &str) -> bool {
    let Some(name) = path.strip_prefix("/etc/rancher/k3s/") else {
        return false;
    };
    let part = name.strip_prefix("config.yaml.d/");
    let ending = part.and_then(|part| part.rsplit_once('.'));
    matches!(name, "config.yaml" | "config.yaml.d" | "registries.yaml")
        || ending
            .is_some_and(|(stem, ending)| !stem.contains('/') && matches!(ending, "yaml" | "yml"))
}

//! Removal of the agent's files: those that are its own by their names, and folders that are empty
//! then.
//!
//! It follows no symbolic link and removes nothing that the agent does not write. A file that is
//! already missing is no error, so a second run completes an interrupted one.

use std::{
    ffi::{OsStr, OsString},
    fs, io,
    path::{Path, PathBuf},
};

use super::super::install;
use crate::{
    core::{order::OrderExt as _, safe_mode::RECORD},
    dashboard, files,
    host::git,
    store,
};

/// Places to search for the agent's files.
#[derive(Debug)]
pub(super) struct PurgeScope {
    /// The file of settings.
    pub(super) file: PathBuf,
    /// True for the default file, whose folder belongs to the agent alone.
    pub(super) is_usual: bool,
    /// The token that the settings name.
    pub(super) token: Option<PathBuf>,
    /// The folder of the agent's files.
    pub(super) state: PathBuf,
    /// The socket of the agent.
    pub(super) socket: PathBuf,
    /// The folder of the root helper's journal.
    pub(super) keeper: PathBuf,
    /// The root of the machine.
    pub(super) root: PathBuf,
}

/// Something that stays.
#[derive(Debug)]
pub(super) struct Left {
    pub(super) path: PathBuf,
    pub(super) why: String,
}

/// Services that `pipeops-agent k3s` made: links first, so that an interrupted removal leaves none
/// that leads nowhere.
const SERVICES_OF_K3S: [&str; 14] = [
    "etc/systemd/system/timers.target.wants/pipeops-k3s-watch.timer",
    "etc/systemd/system/timers.target.wants/pipeops-k3s-connect.timer",
    "etc/systemd/system/multi-user.target.wants/pipeops-k3s-resume.service",
    "etc/systemd/system/pipeops-k3s-watch.timer",
    "etc/systemd/system/pipeops-k3s-watch.service",
    "etc/systemd/system/pipeops-k3s-connect.timer",
    "etc/systemd/system/pipeops-k3s-connect.service",
    "etc/systemd/system/pipeops-k3s-resume.service",
    "etc/runlevels/default/pipeops-k3s-watch",
    "etc/runlevels/default/pipeops-k3s-connect",
    "etc/runlevels/default/pipeops-k3s-resume",
    "etc/init.d/pipeops-k3s-watch",
    "etc/init.d/pipeops-k3s-connect",
    "etc/init.d/pipeops-k3s-resume",
];
/// Folders of those services: the credential and the state in memory, and copies of backups on
/// their way to a bucket.
const FOLDERS_OF_K3S: [&str; 2] = ["run/pipeops-k3s", "var/spool/pipeops-k3s"];

/// Files of the root helper that undo nothing.
const KEEPER: [&str; 3] = ["lock", "updates.json", "k3s.index"];

/// Files and folders to remove, in order.
#[derive(Debug, Default)]
pub(super) struct Purge {
    files: Vec<PathBuf>,
    /// Folders that go with all that is in them.
    trees: Vec<PathBuf>,
    /// Folders that are removed where they are empty by then, and what stands in them that is not
    /// the agent's.
    folders: Vec<(PathBuf, Vec<PathBuf>)>,
    left: Vec<Left>,
}

/// Result of a removal.
#[derive(Debug, Default)]
pub(super) struct Done {
    pub(super) removed: Vec<PathBuf>,
    pub(super) left: Vec<Left>,
    pub(super) failed: Vec<Left>,
}

impl Purge {
    /// Finds everything that belongs to the agent.
    pub(super) fn find(subject: &PurgeScope) -> Self {
        let mut purge = Self::default();
        let settings = subject.file.parent().unwrap_or_else(|| Path::new("/"));
        purge.token(subject, settings);
        purge.state(&subject.state);
        purge.file(&subject.socket);
        if let Some(folder) = subject.socket.parent()
            && folder.ends_with("pipeops-agent")
            && folder != subject.state
        {
            // A stop removes the folder; without a service manager the times of starts stay.
            purge.folder(folder, |name| is_of(name, |name| name == RECORD));
        }
        let drop_ins = settings.join("config.d");
        if subject.is_usual || subject.file.exists() {
            purge.folder(&drop_ins, |name| {
                is_of(name, |name| {
                    Path::new(name)
                        .extension()
                        .is_some_and(|ending| ending == "toml")
                })
            });
            let copies: Vec<String> = install::copy_names().collect();
            let is_ours =
                |name: &str| copies.iter().any(|copy| copy == name) || name == "go-agent.json";
            if subject.is_usual {
                let is_settings = |name: &str| name == "config.toml" || name == "token";
                purge.folder(settings, |name| {
                    is_of(name, |name| is_ours(name) || is_settings(name))
                });
            } else {
                // Others may keep things in this folder: it stays.
                for name in names(settings).iter().filter(|name| is_of(name, is_ours)) {
                    purge.file(&settings.join(name));
                }
            }
        }
        // Last, because it names the other places: the next attempt finishes one that stopped
        // half-way.
        purge.file(&subject.file);
        purge.last(&subject.file);
        if subject.is_usual {
            purge.k3s_services(&subject.root);
            purge.keeper(&subject.keeper);
        }
        purge
    }

    fn token(&mut self, subject: &PurgeScope, settings: &Path) {
        let Some(token) = &subject.token else {
            return;
        };
        if token.parent() == Some(settings) {
            self.file(token);
        } else if token.symlink_metadata().is_ok() {
            self.left.push(Left {
                path: token.clone(),
                why: "it is outside the agent's folders; the settings name it as the token"
                    .to_owned(),
            });
        }
    }

    fn state(&mut self, folder: &Path) {
        let names = names(folder);
        // A fetch that was killed.
        let scratch = folder.join(git::SCRATCH);
        if scratch.symlink_metadata().is_ok_and(|found| found.is_dir()) {
            self.trees.push(scratch);
        }
        let is_ours = |name: &OsStr| {
            is_of(name, |name| {
                store::is_own_file(name)
                    || [dashboard::OWN_FILE, "agent.sock", git::SCRATCH].contains(&name)
            })
        };
        // Names that others use as well count only where the folder is the agent's without doubt.
        let is_marked = names.iter().any(|name| {
            name.to_str().is_some_and(|name| {
                [store::DATABASE, store::IDENTITY, store::telemetry::DATABASE].contains(&name)
            })
        });
        if is_marked || names.iter().all(|name| is_ours(name)) {
            self.folder(folder, is_ours);
        } else if !names.is_empty() {
            self.left.push(Left {
                path: folder.to_owned(),
                why: format!(
                    "there is no {} in it, so it may be somebody else's",
                    store::IDENTITY
                ),
            });
        }
    }

    /// Services that `pipeops-agent k3s` made, and what they keep beside k3s, which stays.
    fn k3s_services(&mut self, root: &Path) {
        for path in SERVICES_OF_K3S {
            self.file(&root.join(path));
        }
        for folder in FOLDERS_OF_K3S {
            self.folder(&root.join(folder), |_| true);
        }
    }

    /// Directory of the root helper. It stays as it is if a change is recorded there, because that
    /// may have to be undone.
    fn keeper(&mut self, folder: &Path) {
        let is_change = |name: &OsString| is_of(name, |name| name.starts_with(char::is_numeric));
        if !names(folder).iter().any(is_change) {
            for below in ["update", "download"] {
                self.folder(&folder.join(below), |_| true);
            }
            return self.folder(folder, |name| is_of(name, |name| KEEPER.contains(&name)));
        }
        self.left.push(Left {
            path: folder.to_owned(),
            why: "it is needed to undo repairs of this machine (sudo pipeops-agent changes)"
                .to_owned(),
        });
    }

    fn file(&mut self, path: &Path) {
        let is_there = path.symlink_metadata().is_ok_and(|found| !found.is_dir());
        if is_there && !self.files.iter().any(|known| known == path) {
            self.files.push(path.to_owned());
        }
    }

    /// Moves a file to the end.
    fn last(&mut self, path: &Path) {
        let count = self.files.len();
        self.files.retain(|known| known != path);
        if self.files.len() < count {
            self.files.push(path.to_owned());
        }
    }

    /// Files of a folder that are the agent's, and the folder where nothing else is in it.
    fn folder(&mut self, folder: &Path, is_ours: impl Fn(&OsStr) -> bool) {
        let Ok(found) = folder.symlink_metadata() else {
            return;
        };
        if found.is_symlink() {
            let target = fs::read_link(folder).unwrap_or_default();
            self.left.push(Left {
                path: folder.to_owned(),
                why: format!(
                    "it is a link to {}, and links are not followed",
                    target.display()
                ),
            });
            return;
        }
        if !found.is_dir() || self.folders.iter().any(|(known, _)| known == folder) {
            return;
        }
        let mut foreign = Vec::new();
        for name in names(folder) {
            let path = folder.join(&name);
            let is_folder = path.symlink_metadata().is_ok_and(|found| found.is_dir());
            if is_ours(&name) && !is_folder {
                self.file(&path);
            } else if !self.files.contains(&path) && !self.is_emptied(&path) {
                foreign.push(path);
            }
        }
        self.folders.push((folder.to_owned(), foreign));
    }

    /// True if the folder is among those to be removed.
    fn is_emptied(&self, path: &Path) -> bool {
        if self.trees.iter().any(|tree| tree == path) {
            return true;
        }
        let mut known = self.folders.iter().filter(|(folder, _)| folder == path);
        known.any(|(_, foreign)| foreign.is_empty())
    }

    /// Paths for the confirmation: whole folders, and files in folders that stay.
    pub(super) fn paths(&self) -> Vec<PathBuf> {
        let whole = self
            .folders
            .iter()
            .filter(|(_, foreign)| foreign.is_empty());
        let whole: Vec<_> = whole
            .map(|(folder, _)| folder)
            .chain(&self.trees)
            .cloned()
            .collect();
        let is_below = |path: &Path| {
            whole
                .iter()
                .any(|folder| path != folder && path.starts_with(folder))
        };
        let mut paths: Vec<_> = whole.iter().chain(&self.files).cloned().collect();
        paths.retain(|path| !is_below(path));
        paths.order();
        paths
    }

    /// Removes it, as far as that is possible.
    pub(super) fn remove(self) -> Done {
        let shown = self.paths();
        let mut done = Done {
            left: self.left,
            ..Done::default()
        };
        for file in &self.files {
            done.note(file, fs::remove_file(file));
        }
        for tree in &self.trees {
            done.note(tree, fs::remove_dir_all(tree));
        }
        for (folder, foreign) in &self.folders {
            if foreign.is_empty() {
                done.note(folder, fs::remove_dir(folder));
            }
            // Contents of a folder that is searched itself are listed there.
            let is_known = |path: &PathBuf| self.folders.iter().any(|(known, _)| known == path);
            let foreign = foreign.iter().filter(|path| !is_known(path));
            done.left.extend(foreign.map(|path| Left {
                path: path.clone(),
                why: "the agent did not make it".to_owned(),
            }));
        }
        let failed = done.failed.iter().map(|left| left.path.clone());
        let failed: Vec<_> = failed.collect();
        let is_gone = |path: &PathBuf| !failed.iter().any(|failed| failed.starts_with(path));
        done.removed = shown.into_iter().filter(is_gone).collect();
        done
    }
}

impl Done {
    fn note(&mut self, path: &Path, removed: io::Result<()>) {
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                self.failed.push(Left {
                    path: path.to_owned(),
                    why: error.to_string(),
                });
            }
            Ok(()) | Err(_) => {}
        }
    }
}

/// Names in a folder, sorted; none behind a link.
fn names(folder: &Path) -> Vec<OsString> {
    if folder.is_symlink() {
        return Vec::new();
    }
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name()).collect();
    names.order();
    names
}

/// True if a name, or the name that an interrupted write of it left, is the agent's.
fn is_of(name: &OsStr, is_ours: impl Fn(&str) -> bool) -> bool {
    let Some(name) = name.to_str() else {
        return false;
    };
    is_ours(name)
        || name.strip_suffix(".new").is_some_and(&is_ours)
        || files::written_name(name)
            .is_some_and(|name| is_ours(name) || name.strip_suffix(".new").is_some_and(&is_ours))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::k3s::{connect, plan, step::Step, texts::Init, watch};

    #[test]
    fn every_service_for_k3s_is_known_here_and_to_the_package() {
        let inits = [Init::Systemd, Init::OpenRc];
        let made =
            inits.map(|init| [watch::created_paths(init), connect::created_paths(init)].concat());
        let resume = inits.map(plan::no_resume).concat();
        let resume = resume.iter().filter_map(|step| {
            let Step::Gone { path, .. } = step else {
                return None;
            };
            Some(path.as_str())
        });
        for path in made.concat().into_iter().chain(resume) {
            let path = path.trim_start_matches('/');
            let is_below = |folder: &&str| path.starts_with(*folder);
            let is_known = SERVICES_OF_K3S.contains(&path) || FOLDERS_OF_K3S.iter().any(is_below);
            assert!(is_known, "{path} stays after a purge");
        }
        let script = include_str!("../../../packaging/deb/postrm");
        for name in FOLDERS_OF_K3S {
            assert!(script.contains(&format!(" /{name}")), "{name}");
        }
        for name in ["watch", "connect", "resume"] {
            assert!(script.contains(&format!(" pipeops-k3s-{name}")), "{name}");
        }
    }

    /// The package's own purge runs when this program is gone already.
    #[test]
    fn the_package_knows_every_name_that_a_purge_removes() {
        let script = include_str!("../../../packaging/deb/postrm");
        let is_between = |character: char| character.is_whitespace() || ";\"/".contains(character);
        let words: Vec<&str> = script.split(is_between).collect();
        let settings = ["config.toml", "token", "go-agent.json"].map(str::to_owned);
        let state = [
            store::DATABASE,
            store::telemetry::DATABASE,
            store::IDENTITY,
            dashboard::OWN_FILE,
            "agent.sock",
            git::SCRATCH,
        ];
        let state = state.map(str::to_owned);
        let names = settings
            .into_iter()
            .chain(state)
            .chain(KEEPER.map(str::to_owned))
            .chain(install::copy_names());
        for name in names {
            assert!(
                words.contains(&name.as_str()),
                "postrm does not know {name}"
            );
        }
        for name in ["clock", "notes.json", "reserve"] {
            assert!(store::is_own_file(name) && words.contains(&name), "{name}");
        }
    }
}

//! Units and init scripts that come with a program: an update of the tarball's program replaces
//! them, and puts them back with it.
//!
//! Only a file that is as a version of this program placed it is replaced. One that was changed by
//! hand, linked or removed is its owner's.

use std::{fs, path::Path, time::Duration};

use super::super::Keeper;
use crate::{
    core::packed::script, error::Result, files, host::exec::Limits, wire::keeper::ServiceFile,
};

/// Files that the tarball placed, for its removal.
const PLACED: &str = "/usr/share/pipeops-agent/placed";
const ASK: Limits = Limits {
    within: Duration::from_secs(10),
    output_bytes_max: 128 * 1024,
};
/// Folders that may get a file, with the sign that their service manager runs here.
const FOLDERS: [(&str, Option<&str>); 4] = [
    ("/etc/systemd/system/", Some("/run/systemd/system")),
    ("/etc/init.d/", Some("/run/openrc")),
    // The update once a day has one of these places, by distribution, and is never created by an
    // update.
    ("/etc/periodic/daily/", None),
    ("/etc/cron.daily/", None),
];

/// Places of the files, with those that they have in the sources.
const OWN: [(&str, &str); 9] = [
    (
        "/etc/systemd/system/pipeops-agent.service",
        "systemd/pipeops-agent.service",
    ),
    (
        "/etc/systemd/system/pipeops-keeper.service",
        "systemd/pipeops-keeper.service",
    ),
    (
        "/etc/systemd/system/pipeops-keeper.socket",
        "systemd/pipeops-keeper.socket",
    ),
    (
        "/etc/systemd/system/pipeops-agent-update.service",
        "systemd/pipeops-agent-update.service",
    ),
    (
        "/etc/systemd/system/pipeops-agent-update.timer",
        "systemd/pipeops-agent-update.timer",
    ),
    ("/etc/init.d/pipeops-agent", "openrc/pipeops-agent"),
    ("/etc/init.d/pipeops-keeper", "openrc/pipeops-keeper"),
    (
        "/etc/periodic/daily/pipeops-agent-update",
        "openrc/pipeops-agent-update",
    ),
    (
        "/etc/cron.daily/pipeops-agent-update",
        "openrc/pipeops-agent-update",
    ),
];

/// Returns the units and init scripts of this program.
#[must_use]
pub fn own() -> Vec<ServiceFile> {
    let file = |(path, source): (&str, &str)| ServiceFile {
        path: path.to_owned(),
        mode: if source.starts_with("openrc/") {
            0o755
        } else {
            0o644
        },
        text: script(source),
    };
    OWN.into_iter().map(file).collect()
}

/// Returns whether a version of this program may bring that file.
fn is_ours(file: &ServiceFile) -> bool {
    let name = FOLDERS
        .iter()
        .find_map(|(folder, _)| file.path.strip_prefix(folder));
    file.mode & !0o755 == 0
        && name.is_some_and(|name| name.starts_with("pipeops-") && !name.contains('/'))
}

impl Keeper {
    /// Asks a staged program for its units and init scripts. One that does not answer brings none:
    /// it fails its trial then.
    pub(super) fn services_of(&self, program: &Path) -> Vec<ServiceFile> {
        let program = program.display().to_string();
        let command = [program.as_str(), "update", "--services"];
        let asked = self.system.run_unattended(&command, ASK, &[]);
        let files: Vec<ServiceFile> = asked
            .ok()
            .and_then(|ended| serde_json::from_str(&ended.stdout).ok())
            .unwrap_or_default();
        files.into_iter().filter(is_ours).collect()
    }

    /// Replaces the files of one version by those of another. Each step may be done twice.
    pub(super) fn exchange_services(&self, from: &[ServiceFile], to: &[ServiceFile]) -> Result<()> {
        for file in to {
            let old = from.iter().find(|old| old.path == file.path);
            if self.is_as_placed(file, old) {
                self.place_service(file)?;
            }
        }
        for old in from {
            let is_gone = to.iter().all(|file| file.path != old.path);
            if is_gone && self.is_unchanged(old) {
                let removed = fs::remove_file(self.system.path(&old.path));
                removed.map_err(|error| {
                    files::explain(format!("cannot remove {}", old.path), &error)
                })?;
            }
        }
        if self.has_systemd() {
            self.system.run(&["systemctl", "daemon-reload"])?;
        }
        Ok(())
    }

    /// Returns whether a file is to be placed: its old version is there, or it is new and its
    /// service manager runs here.
    fn is_as_placed(&self, file: &ServiceFile, old: Option<&ServiceFile>) -> bool {
        match (self.system.found(&file.path), old) {
            (Ok(Some(found)), _) if found.content == file.text.as_bytes() => false,
            (Ok(Some(found)), Some(old)) if found.content == old.text.as_bytes() => true,
            (Ok(Some(_)) | Err(_), _) => {
                (self.system.watch)(&format!("{} was changed by hand and stays", file.path));
                false
            }
            (Ok(None), Some(_)) => false,
            (Ok(None), None) => FOLDERS.iter().any(|(folder, sign)| {
                file.path.starts_with(folder) && sign.is_some_and(|sign| self.system.is_there(sign))
            }),
        }
    }

    fn place_service(&self, file: &ServiceFile) -> Result<()> {
        self.system.guard(&file.path)?;
        let mut placed = self.system.text(PLACED).unwrap_or_default();
        if !placed.is_empty() && !placed.lines().any(|line| line == file.path) {
            placed.push_str(&file.path);
            placed.push('\n');
            files::replace(&self.system.path(PLACED), placed.as_bytes(), 0o644)?;
        }
        files::replace(
            &self.system.path(&file.path),
            file.text.as_bytes(),
            file.mode,
        )?;
        #[cfg(test)]
        super::super::journal::cut::after()?;
        Ok(())
    }

    /// Returns whether a file is as it was placed.
    fn is_unchanged(&self, file: &ServiceFile) -> bool {
        let found = self.system.found(&file.path).ok().flatten();
        found.is_some_and(|found| found.content == file.text.as_bytes())
    }
}

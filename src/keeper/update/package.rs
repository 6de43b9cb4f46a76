//! Packages: where a package manager owns the program, an update goes through that.
//!
//! Forward by the tool that people use (apt-get, dnf): it respects holds, and waits for its lock.
//! Back by the one below it (dpkg, rpm): it needs no network, and mends what a power cut left half
//! done.

use std::{path::PathBuf, time::Duration};

use super::{NewProgram, PROGRAM, Watched};
use crate::{
    core::update::list::PROGRAM_BYTES_MAX,
    error::{Error, Result, Retry},
    files::{self, PRIVATE},
    host::exec::{Limits, ProcessOutput},
    keeper::Keeper,
    wire::keeper::{PackageKind, Update},
};

const NAME: &str = "pipeops-agent";
/// Time to wait for another package manager: an upgrade of the system on a slow card, at its start
/// or at night.
const LOCK_PATIENCE: Duration = Duration::from_secs(1800);
const LOCK_REST: Duration = Duration::from_secs(5);
/// The same for apt-get, which waits by itself.
const APT_PATIENCE: &str = "DPkg::Lock::Timeout=1800";
/// Time for an installation: the wait for the lock, and a slow card after it.
pub const INSTALL_WITHIN: Duration = Duration::from_secs(2700);
const INSTALL: Limits = Limits {
    within: INSTALL_WITHIN,
    output_bytes_max: 64 * 1024,
};
/// Nothing is asked, and the scripts of the package leave the restart to the update, which judges
/// it.
const UNATTENDED: [(&str, &str); 4] = [
    ("PIPEOPS_UPDATE", "1"),
    ("DEBIAN_FRONTEND", "noninteractive"),
    ("APT_LISTCHANGES_FRONTEND", "none"),
    ("NEEDRESTART_SUSPEND", "1"),
];

/// The package of the version that is installed, which comes back if the new one fails.
#[derive(Clone, Debug)]
pub struct PreviousPackage {
    /// Kind of it, and of the new one.
    pub kind: PackageKind,
    /// Its file. Root's own copy of it is what is checked and used.
    pub file: PathBuf,
    /// SHA-256 by the signed list of its release.
    pub sha256: String,
}

/// Side of an update.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Side {
    Next,
    Previous,
}

/// State of the package by its package manager.
#[derive(Debug, Default)]
struct Installed {
    version: String,
    is_whole: bool,
    is_held: bool,
}

impl Installed {
    fn is(&self, version: &str) -> bool {
        self.is_whole && self.version == version
    }
}

impl Keeper {
    /// Kind of package that the program belongs to, if any.
    pub fn package_kind(&self) -> Option<PackageKind> {
        let owns = |argv: &[&str]| self.system.run(argv).is_ok();
        if owns(&["dpkg", "--search", PROGRAM]) {
            Some(PackageKind::Deb)
        } else if owns(&["rpm", "--query", "--file", PROGRAM]) {
            Some(PackageKind::Rpm)
        } else {
            None
        }
    }

    /// Checks both packages in root's own directory, and that the package manager would install one
    /// over the other.
    pub(super) fn stage_packages(
        &self,
        new: &NewProgram,
        previous: &PreviousPackage,
    ) -> Result<()> {
        let kind = previous.kind;
        let installed = self.installed(kind)?;
        if installed.is_held {
            return Err(
                Error::new(format!("{NAME} is held at {}", installed.version))
                    .why("it is held in the package manager")
                    .fix("let it go: sudo apt-mark unhold pipeops-agent"),
            );
        }
        if !installed.is(&new.previous) {
            return Err(Error::new(format!(
                "this program is {}, and its package manager has {} of {NAME}",
                new.previous,
                if installed.is_whole {
                    installed.version.as_str()
                } else {
                    "a half-installed version"
                },
            ))
            .why("they must agree, so that there is a way back")
            .fix(match kind {
                PackageKind::Deb => "sudo apt-get install --reinstall pipeops-agent",
                PackageKind::Rpm => "sudo dnf reinstall pipeops-agent",
            }));
        }
        for (side, file, sha256, version) in [
            (Side::Next, &new.file, &new.sha256, &new.version),
            (
                Side::Previous,
                &previous.file,
                &previous.sha256,
                &new.previous,
            ),
        ] {
            let copy = self.package(side, kind);
            files::remove_unfinished_of(&copy)?;
            let limits: (u64, &mut dyn FnMut(u64)) = (PROGRAM_BYTES_MAX, &mut |_| {});
            files::copy(file, &copy, PRIVATE, Some(sha256), limits)?;
            self.check_package(side, kind, version)?;
        }
        Ok(())
    }

    /// Installs the new package.
    pub(super) fn install_next(
        &self,
        update: &Update,
        kind: PackageKind,
        watched: &dyn Watched,
    ) -> Result<()> {
        if self.installed(kind)?.is(&update.version) {
            return Ok(());
        }
        let file = self.verified(Side::Next, kind, &update.sha256)?;
        let (tool, argv): (_, &[&str]) = match kind {
            PackageKind::Deb => (
                "apt-get",
                &[
                    "apt-get",
                    "install",
                    "--yes",
                    "--quiet",
                    "--no-install-recommends",
                    "-o",
                    APT_PATIENCE,
                    "-o",
                    "Dpkg::Options::=--force-confdef",
                    "-o",
                    "Dpkg::Options::=--force-confold",
                    &file,
                ],
            ),
            PackageKind::Rpm => (
                "dnf",
                // Its hash is in the signed list: it needs no repository, and no other signature.
                &[
                    "dnf",
                    "install",
                    "--assumeyes",
                    "--quiet",
                    "--disablerepo=*",
                    "--setopt=localpkg_gpgcheck=0",
                    &file,
                ],
            ),
        };
        // After a power cut in the middle apt-get would only ask for `dpkg --configure -a`.
        if update.starts > 1 || !self.system.has(tool) {
            self.install(kind, &file, watched)?;
        } else {
            (self.system.watch)(&format!("{tool} installs {}", update.version));
            self.run_unlocked(argv, watched)?;
        }
        let installed = self.installed(kind)?;
        if installed.is(&update.version) {
            return Ok(());
        }
        Err(Error::new(format!(
            "{tool} installed {} and not {}",
            installed.version, update.version
        )))
    }

    /// Installs the previous package again, unless nothing was changed.
    pub(super) fn install_previous(
        &self,
        update: &Update,
        kind: PackageKind,
        watched: &dyn Watched,
    ) -> Result<()> {
        let is_same = || -> Result<bool> {
            let copy = files::sum(&self.folder().join("prev"))?;
            Ok(files::sum(&self.system.path(PROGRAM))? == copy)
        };
        if self.installed(kind)?.is(&update.previous) && is_same()? {
            return Ok(());
        }
        let file = self.verified(Side::Previous, kind, &update.previous_sha256)?;
        self.install(kind, &file, watched)
    }

    /// Returns whether the package manager has a whole package of another version than
    /// those of these sides.
    pub(super) fn has_other_package(
        &self,
        update: &Update,
        kind: PackageKind,
        sides: &[Side],
    ) -> Result<bool> {
        let installed = self.installed(kind)?;
        let is_of = |side: &Side| match side {
            Side::Next => installed.version == update.version,
            Side::Previous => installed.version == update.previous,
        };
        Ok(installed.is_whole && !sides.iter().any(is_of))
    }

    /// Removes the copies of the packages, once nothing needs them any more.
    pub(super) fn remove_packages(&self, kind: PackageKind) {
        for side in [Side::Next, Side::Previous] {
            drop(std::fs::remove_file(self.package(side, kind)));
        }
    }

    /// Installs by the tool that takes any version over any other, and over half of one.
    fn install(&self, kind: PackageKind, file: &str, watched: &dyn Watched) -> Result<()> {
        let argv: &[&str] = match kind {
            PackageKind::Deb => &["dpkg", "--install", "--force-confold", file],
            // rpm waits for its lock by itself.
            // Its hash is in the signed list; packages of a release have no signature of their own.
            PackageKind::Rpm => &[
                "rpm",
                "--upgrade",
                "--oldpackage",
                "--replacepkgs",
                "--nosignature",
                file,
            ],
        };
        self.run_unlocked(argv, watched)
    }

    /// Runs a package manager, again and again while another one holds its lock.
    fn run_unlocked(&self, argv: &[&str], watched: &dyn Watched) -> Result<()> {
        let until = watched.wait(Duration::ZERO).after(LOCK_PATIENCE);
        loop {
            match self.system.run_unattended(argv, INSTALL, &UNATTENDED) {
                Err(error) if error.retry == Retry::Soon && watched.wait(LOCK_REST) < until => {}
                ended => return ended.map(drop),
            }
        }
    }

    fn installed(&self, kind: PackageKind) -> Result<Installed> {
        match kind {
            PackageKind::Deb => {
                let format = "--showformat=${db:Status-Want} ${db:Status-Status} ${Version}";
                let said = self.system.run(&["dpkg-query", format, "--show", NAME])?;
                let mut words = said.stdout.split_whitespace();
                let (want, status) = (words.next(), words.next());
                Ok(Installed {
                    is_held: want == Some("hold"),
                    is_whole: status == Some("installed"),
                    version: without_revision(words.next().unwrap_or_default()).to_owned(),
                })
            }
            PackageKind::Rpm => {
                let said =
                    self.system
                        .run(&["rpm", "--query", "--queryformat", "%{VERSION}\\n", NAME])?;
                let mut lines = said.stdout.lines();
                Ok(Installed {
                    version: lines.next().unwrap_or_default().to_owned(),
                    // After a power cut it may know both.
                    is_whole: lines.next().is_none(),
                    is_held: false,
                })
            }
        }
    }

    /// Refuses a package that is another than its list says.
    fn check_package(&self, side: Side, kind: PackageKind, version: &str) -> Result<()> {
        let path = self.package(side, kind).display().to_string();
        let said: ProcessOutput = match kind {
            PackageKind::Deb => {
                let format = "--showformat=${Package} ${Version}";
                self.system.run(&["dpkg-deb", format, "--show", &path])?
            }
            PackageKind::Rpm => {
                let format = "%{NAME} %{VERSION}";
                self.system.run(&[
                    "rpm",
                    "--query",
                    "--package",
                    "--queryformat",
                    format,
                    &path,
                ])?
            }
        };
        let found = match kind {
            PackageKind::Deb => without_revision(said.stdout.trim()),
            PackageKind::Rpm => said.stdout.trim(),
        };
        if found == format!("{NAME} {version}") {
            return Ok(());
        }
        Err(Error::new(format!(
            "the package of {version} is {found}, so nothing was changed"
        )))
    }

    /// The copy of a package, which is still the one that was checked.
    fn verified(&self, side: Side, kind: PackageKind, sha256: &str) -> Result<String> {
        let file = self.package(side, kind);
        let found = files::sum(&file)?;
        if found.is_some_and(|found| found.sha256 == sha256) {
            return Ok(file.display().to_string());
        }
        Err(
            Error::new(format!("{} is not as it was staged", file.display()))
                .fix("check the disk, and update again"),
        )
    }

    pub(super) fn package(&self, side: Side, kind: PackageKind) -> PathBuf {
        let name = match side {
            Side::Next => "next",
            Side::Previous => "prev",
        };
        let ending = match kind {
            PackageKind::Deb => "deb",
            PackageKind::Rpm => "rpm",
        };
        self.folder().join(format!("{name}.{ending}"))
    }
}

/// A version of Debian without the revision of its package.
fn without_revision(version: &str) -> &str {
    version
        .rsplit_once('-')
        .map_or(version, |(upstream, _)| upstream)
}

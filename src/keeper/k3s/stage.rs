//! Copies in the keeper's own directory, checked there before anything is installed from them.

use std::{io::Read as _, path::PathBuf};

use super::{
    super::{Keeper, system::sha256},
    acts::COPY_BYTES_MAX,
};
use crate::{
    core::k3s::{self, Version, step::Staged},
    error::{Error, Result},
    files,
    host::{
        exec::{self, Limits},
        facts,
    },
};

/// A file to install, and what it must hash to.
#[derive(Clone, Debug)]
pub struct Source {
    /// Path, which anybody may have written: it is copied before it is checked.
    pub path: PathBuf,
    /// SHA-256, in hexadecimal.
    pub sha256: String,
    /// Name that it gets.
    pub name: String,
}

/// The program of a release.
#[derive(Clone, Debug)]
pub enum Program {
    /// Its file is on this machine.
    Here(Source),
    /// A file that is fetched later: enough for a plan.
    Promised {
        version: Version,
        /// SHA-256, in hexadecimal.
        sha256: String,
        /// Length; 0 if nobody knows it yet.
        bytes: u64,
    },
}

impl Keeper {
    /// The program in a place of root's, and the version that it says.
    pub(super) fn stage_binary(
        &self,
        program: &Program,
        pinned: Option<Version>,
    ) -> Result<(Staged, Version)> {
        let source = match program {
            Program::Here(source) => source,
            Program::Promised {
                version,
                sha256,
                bytes,
            } => {
                let staged = Staged {
                    path: self.own(&format!("{STAGED}/k3s")),
                    sha256: sha256.clone(),
                    bytes: *bytes,
                };
                return Ok((staged, *version));
            }
        };
        let binary = self.stage(source, 0o700)?;
        self.check_processor(source)?;
        let argv = [binary.path.as_str(), "--version"];
        let said = exec::run(self.system.root(), &argv, Limits::SHORT).map_err(|error| {
            if self.system.is_noexec(&binary.path) {
                let what = "this k3s cannot be tried: the keeper's directory is mounted noexec";
                let fix = "mount it without noexec meanwhile: sudo mount -o remount,exec /var; or set keeper.state_dir to another disk";
                return error.within(what).fix(fix);
            }
            error.within("this k3s does not run on this machine: is it for another processor?")
        })?;
        let version = k3s::version_in(&said.stdout).ok_or_else(|| {
            Error::new("cannot read the k3s version of this program")
                .why(said.stdout.chars().take(80).collect::<String>())
        })?;
        match pinned.filter(|pinned| *pinned != version) {
            Some(pinned) => Err(Error::new(format!("this is k3s {version}, not {pinned}"))
                .fix("name the version that it is, or fetch the other one")),
            None => Ok((binary, version)),
        }
    }

    /// Refuses a checked copy that is for another processor.
    pub(super) fn check_processor(&self, source: &Source) -> Result<()> {
        let mut head = Vec::new();
        let copy = self.directory.join(STAGED).join(&source.name);
        let read = std::fs::File::open(&copy)
            .and_then(|file| file.take(HEAD_BYTES).read_to_end(&mut head));
        read.map_err(|error| files::explain(format!("cannot read {}", copy.display()), &error))?;
        let machine = facts::architecture().unwrap_or_default();
        if k3s::is_for(&machine, &head) {
            return Ok(());
        }
        Err(Error::new("this k3s is for another processor")
            .why(format!("this machine is {machine}"))
            .fix("take the program of the release that docs/k3s.md names for it"))
    }

    /// A copy in the keeper's own directory that has that hash.
    pub(super) fn stage(&self, source: &Source, mode: u32) -> Result<Staged> {
        let folder = self.directory.join(STAGED);
        files::create_directory(&folder)?;
        files::remove_unfinished(&folder)?;
        self.system
            .tell(&format!("checking {}", source.path.display()));
        let sum = files::copy(
            &source.path,
            &folder.join(&source.name),
            mode,
            Some(&source.sha256),
            (COPY_BYTES_MAX, &mut |_| {}),
        )?;
        Ok(Staged {
            path: self.own(&format!("{STAGED}/{}", source.name)),
            sha256: sum.sha256,
            bytes: sum.bytes,
        })
    }

    /// A text with a secret in a place of root's. The journal has its hash only.
    pub(super) fn stage_text(&self, name: &str, text: &str) -> Result<Staged> {
        let folder = self.directory.join(STAGED);
        files::create_directory(&folder)?;
        files::replace(&folder.join(name), text.as_bytes(), files::PRIVATE)?;
        Ok(Staged {
            path: self.own(&format!("{STAGED}/{name}")),
            sha256: sha256(text.as_bytes()),
            bytes: u64::try_from(text.len()).unwrap_or(0),
        })
    }

    /// Removes the checked copies; what stays takes room and does no harm.
    pub(super) fn unstage(&self) {
        drop(std::fs::remove_dir_all(self.directory.join(STAGED)));
    }
}

/// Bytes at the beginning of a program that name its processor.
pub(super) const HEAD_BYTES: u64 = 20;

/// The folder of checked copies there.
pub(super) const STAGED: &str = "staged";

//! The few things that the keeper does to a machine: how each is done, seen and taken back. Each
//! may be done twice.

use std::{
    fs::{DirBuilder, OpenOptions},
    io::{ErrorKind, Write},
    os::unix::fs::DirBuilderExt,
    path::Path,
    time::Duration,
};

use super::system::{FileSnapshot, System, attributes, sha256};
use crate::{
    error::{Error, Result},
    files::{self, Attributes},
    wire::keeper::{Act, Before, Earlier, Expectation},
};

/// Knowledge about the step that is undone.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Certainty {
    /// It was done.
    Sure,
    /// It was begun: it may have done nothing, or found what it did not expect.
    Unsure,
}

impl System {
    /// Refuses an act at a place that root must not touch.
    pub(super) fn check(&self, act: &Act) -> Result<()> {
        match act {
            Act::Directory { path }
            | Act::File { path, .. }
            | Act::Value { path, .. }
            | Act::Copy { path, .. }
            | Act::Link { path, .. }
            | Act::Made { path }
            | Act::Gone { path, .. } => self.guard(path),
            Act::Move {
                from: one,
                to: other,
            }
            | Act::Datastore {
                path: one,
                copy: other,
            } => self.guard(one).and_then(|()| self.guard(other)),
            Act::Run { .. } | Act::Ready { .. } | Act::Cordon { .. } | Act::Drain { .. } => Ok(()),
        }
    }

    /// Does it.
    pub(super) fn act(&self, act: &Act) -> Result<()> {
        self.check(act)?;
        match act {
            Act::Directory { path } => self.make_directory(path),
            Act::File {
                path,
                content,
                mode,
                before,
            } => {
                files::remove_unfinished_of(&self.path(path))?;
                let found = self.found(path)?;
                if is(found.as_ref(), content.as_bytes()) {
                    return Ok(());
                }
                if !was(found.as_ref(), before.as_ref()) {
                    return Err(changed(path));
                }
                let attributes = match before {
                    // Only its content changes.
                    Some(before) => Attributes {
                        mode: *mode,
                        ..attributes(before)
                    },
                    None => Attributes::of_mode(*mode),
                };
                files::replace_with(&self.path(path), content.as_bytes(), &attributes)
            }
            Act::Value { path, after, .. } => self.set(path, after),
            Act::Run { forth, .. } if forth.is_empty() => Ok(()),
            Act::Run { forth, .. } => self.run(forth).map(drop),
            Act::Copy {
                from,
                path,
                sha256,
                mode,
                before,
            } => self.copy((from, path), sha256, *mode, before.as_ref()),
            Act::Link { path, target } => self.link(path, target),
            Act::Made { .. } | Act::Ready { is_back: true, .. } => Ok(()),
            Act::Ready {
                node,
                version,
                within_s,
                is_back: false,
            } => self.wait_ready(node, version.as_deref(), Duration::from_secs(*within_s)),
            Act::Move { from, to } => self.rename(from, to),
            Act::Datastore { path, copy } => self.keep_datastore(path, copy),
            Act::Cordon { node } => self.cordon(node, "cordon"),
            Act::Drain {
                node,
                within_s,
                is_forced,
            } => self.drain(node, Duration::from_secs(*within_s), *is_forced),
            Act::Gone { path, only_empty } => self.remove(path, *only_empty),
        }
    }

    /// Returns whether it worked.
    pub(super) fn see(&self, act: &Act) -> Result<()> {
        let (holds, what) = match act {
            Act::Directory { path } => (self.path(path).is_dir(), path.clone()),
            Act::File { path, content, .. } => {
                let found = self.found(path)?;
                (is(found.as_ref(), content.as_bytes()), path.clone())
            }
            Act::Value { path, after, .. } => {
                (self.line(path).as_ref() == Some(after), path.clone())
            }
            Act::Run { forth, seen, .. } => {
                let holds = seen.as_ref().map_or(Ok(true), |seen| self.sees(seen))?;
                (holds, format!("{:?}", forth.join(" ")))
            }
            Act::Copy { path, sha256, .. } => (self.is_copied(path, sha256)?, path.clone()),
            Act::Link { path, target } => (self.is_link(path, target), path.clone()),
            Act::Move { from, to } => (self.is_renamed(from, to), format!("moving {from}")),
            Act::Datastore { copy, .. } => (self.is_there(copy), format!("keeping {copy}")),
            // What stays of a tree is another disk's, which was told.
            Act::Made { .. }
            | Act::Ready { .. }
            | Act::Cordon { .. }
            | Act::Drain { .. }
            | Act::Gone { .. } => return Ok(()),
        };
        if holds {
            return Ok(());
        }
        Err(Error::new(format!("{what} had no effect"))
            .fix("journalctl -u pipeops-keeper -n 50 (with OpenRC: tail -n 50 /var/log/pipeops-keeper.log); dmesg | tail"))
    }

    fn sees(&self, seen: &Expectation) -> Result<bool> {
        Ok(match seen {
            Expectation::Path(path) => self.is_there(path),
            Expectation::Text(path, text) => self.long_text(path).contains(text.as_str()),
            Expectation::NoText(path, text) => !self.long_text(path).contains(text.as_str()),
            Expectation::Says(argv, text) => self.run(argv)?.stdout.trim() == text,
        })
    }

    /// A file of programs, which may be long; what cannot be read has no text.
    fn long_text(&self, path: &str) -> String {
        let content = files::read(&self.path(path), 4 << 20).unwrap_or_default();
        String::from_utf8_lossy(&content).into_owned()
    }

    /// Refuses to take back what somebody else changed since.
    pub(super) fn check_undo(&self, act: &Act, directory: &Path) -> Result<()> {
        let (path, content, before) = match act {
            Act::File {
                path,
                content,
                before,
                ..
            } => (path, content, before),
            // It lay there for its way back.
            Act::Move { to: kept, .. }
            | Act::Datastore { copy: kept, .. }
            | Act::Copy {
                before: Some(Earlier { copy: kept, .. }),
                ..
            } if std::fs::symlink_metadata(self.path(kept)).is_err() => {
                return Err(Error::new(format!("{kept} no longer exists")));
            }
            Act::Directory { .. }
            | Act::Value { .. }
            | Act::Run { .. }
            | Act::Copy { .. }
            | Act::Link { .. }
            | Act::Made { .. }
            | Act::Ready { .. }
            | Act::Move { .. }
            | Act::Datastore { .. }
            | Act::Cordon { .. }
            | Act::Drain { .. }
            | Act::Gone { .. } => return Ok(()),
        };
        let found = self.found(path)?;
        if is(found.as_ref(), content.as_bytes()) || was(found.as_ref(), before.as_ref()) {
            return Ok(());
        }
        let error = changed(path);
        Err(match before {
            Some(before) => error.fix(format!(
                "its previous content is in {}: compare, and copy what you want to keep",
                directory.join(&before.copy).display()
            )),
            None => error.fix(format!(
                "it was not there before: remove it if you do not want it: sudo rm {path}"
            )),
        })
    }

    /// Takes it back.
    pub(super) fn undo(&self, act: &Act, directory: &Path, certainty: Certainty) -> Result<()> {
        self.check(act)?;
        match act {
            Act::Directory { path } => match std::fs::remove_dir(self.path(path)) {
                Err(error)
                    if !matches!(
                        error.kind(),
                        // Somebody else has something in it now: then it stays.
                        ErrorKind::NotFound | ErrorKind::DirectoryNotEmpty
                    ) =>
                {
                    Err(files::explain(format!("cannot remove {path}"), &error))
                }
                Ok(()) | Err(_) => Ok(()),
            },
            Act::File {
                path,
                content,
                before,
                ..
            } => {
                files::remove_unfinished_of(&self.path(path))?;
                let found = self.found(path)?;
                if was(found.as_ref(), before.as_ref()) {
                    return Ok(());
                }
                if is(found.as_ref(), content.as_bytes()) {
                    return self.restore(path, before.as_ref(), directory);
                }
                match certainty {
                    Certainty::Sure => Err(changed(path)),
                    // It stopped because it found this: nothing of it is ours.
                    Certainty::Unsure => Ok(()),
                }
            }
            Act::Value {
                path,
                before,
                after,
            } => {
                // What somebody else set since stays as it is.
                if self.line(path).as_ref() == Some(after) {
                    self.set(path, before)
                } else {
                    Ok(())
                }
            }
            Act::Run { back, .. } if back.is_empty() => Ok(()),
            Act::Run { back, .. } => self.run(back).map(drop),
            Act::Copy {
                path,
                sha256,
                before,
                ..
            } => self.uncopy(path, sha256, before.as_ref(), certainty),
            Act::Link { path, target } => self.unlink(path, target),
            Act::Made { path } => self.remove(path, false),
            Act::Move { from, to } => self.rename(to, from),
            Act::Datastore { path, copy } => self.restore_datastore(path, copy),
            Act::Ready {
                node,
                version,
                within_s,
                is_back: true,
            } => self.wait_ready(node, version.as_deref(), Duration::from_secs(*within_s)),
            Act::Cordon { node } => self.cordon(node, "uncordon"),
            Act::Ready { is_back: false, .. } | Act::Drain { .. } | Act::Gone { .. } => Ok(()),
        }
    }

    fn restore(&self, path: &str, before: Option<&Before>, directory: &Path) -> Result<()> {
        let real = self.path(path);
        let Some(before) = before else {
            let removed = std::fs::remove_file(&real).and_then(|()| sync_above(&real));
            return removed
                .map_err(|error| files::explain(format!("cannot remove {path}"), &error));
        };
        let copy = directory.join(&before.copy);
        let content = files::read(&copy, 64 * 1024)?;
        if sha256(&content) != before.sha256 {
            return Err(Error::new(format!("cannot restore {path}"))
                .why(format!("its copy {} is not what was kept", copy.display()))
                .fix(format!("repair {path} manually")));
        }
        files::replace_with(&real, &content, &attributes(before))
    }

    pub(super) fn make_directory(&self, path: &str) -> Result<()> {
        let real = self.path(path);
        let made = match DirBuilder::new().mode(0o755).create(&real) {
            Err(error) if !real.is_dir() => Err(error),
            Ok(()) | Err(_) => sync_above(&real),
        };
        made.map_err(|error| files::explain(format!("cannot make {path}"), &error))
    }

    /// Writes a value of the kernel: in place, because there is nothing to replace.
    fn set(&self, path: &str, value: &str) -> Result<()> {
        let options = OpenOptions::new()
            .write(true)
            .truncate(true)
            .open(self.path(path));
        options
            .and_then(|mut file| file.write_all(format!("{value}\n").as_bytes()))
            .map_err(|error| {
                let error = Error::new(format!("cannot set {path} to {value}")).because(&error);
                error.fix("in a container it is set on the host")
            })
    }
}

fn is(found: Option<&FileSnapshot>, content: &[u8]) -> bool {
    found.is_some_and(|found| found.content == content)
}

fn was(found: Option<&FileSnapshot>, before: Option<&Before>) -> bool {
    match (found, before) {
        (None, None) => true,
        (Some(found), Some(before)) => found.sha256() == before.sha256,
        (Some(_), None) | (None, Some(_)) => false,
    }
}

pub(super) fn changed(path: &str) -> Error {
    Error::new(format!(
        "{path} was changed by something else in the meantime"
    ))
    .fix(format!("inspect it: ls -l {path}"))
}

/// Makes a name durable that was made or removed. Where its directory is gone, so is the name.
pub(super) fn sync_above(real: &Path) -> std::io::Result<()> {
    let parent = real.parent().unwrap_or_else(|| Path::new("/"));
    match files::sync_directory(parent) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        synced => synced,
    }
}

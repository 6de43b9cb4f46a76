//! Acts that changes of k3s need besides those of repairs: long files, links, trees, and the wait
//! for the node; and which of its steps is which act.

use std::{io::ErrorKind, path::Path, time::Duration};

use super::{
    super::{
        acts::{Certainty, changed, sync_above},
        system::{SELINUX, System},
    },
    tree::{self, MountPoints},
};
use crate::{
    core::{
        format::size,
        k3s::step::{Extent, Step, When},
    },
    error::Result,
    files,
    wire::keeper::{Act, Earlier},
};

/// Limit of a copied file: a k3s program has 70 MB, an archive of its images 200 to 700.
pub(super) const COPY_BYTES_MAX: u64 = 8 << 30;
/// Bytes between progress reports of a copy.
const PROGRESS_BYTES: u64 = 64 << 20;

impl System {
    fn sum(&self, path: &str) -> Result<Option<String>> {
        Ok(files::sum(&self.path(path))?.map(|sum| sum.sha256))
    }

    /// Copies a checked file to its place, where what is there is what was there before.
    pub(in super::super) fn copy(
        &self,
        (from, path): (&str, &str),
        sha256: &str,
        mode: u32,
        before: Option<&Earlier>,
    ) -> Result<()> {
        files::remove_unfinished_of(&self.path(path))?;
        let found = self.sum(path)?;
        if found.as_deref() == Some(sha256) {
            return Ok(());
        }
        if found.as_deref() != before.map(|before| before.sha256.as_str()) {
            return Err(changed(path));
        }
        self.place_copy((from, path), sha256, mode)
    }

    fn place_copy(&self, (from, path): (&str, &str), sha256: &str, mode: u32) -> Result<()> {
        let mut next = PROGRESS_BYTES;
        let mut progress = |bytes: u64| {
            if bytes >= next {
                next = bytes.saturating_add(PROGRESS_BYTES);
                self.tell(&format!("{} of {path}", size(bytes)));
            }
        };
        let (from, to) = (self.path(from), self.path(path));
        files::copy(
            &from,
            &to,
            mode,
            Some(sha256),
            (COPY_BYTES_MAX, &mut progress),
        )?;
        // A new file has the label of its directory, and with that of programs in general k3s would
        // not run in the domain of the policy k3s-selinux.
        if self.is_there(SELINUX)
            && let Err(error) = self.run(&["restorecon", path])
        {
            log::warn!("{}", error.sentence());
        }
        Ok(())
    }

    pub(in super::super) fn is_copied(&self, path: &str, sha256: &str) -> Result<bool> {
        Ok(self.sum(path)?.as_deref() == Some(sha256))
    }

    pub(in super::super) fn uncopy(
        &self,
        path: &str,
        sha256: &str,
        before: Option<&Earlier>,
        certainty: Certainty,
    ) -> Result<()> {
        files::remove_unfinished_of(&self.path(path))?;
        let found = self.sum(path)?;
        if found.as_deref() == before.map(|before| before.sha256.as_str()) {
            return Ok(());
        }
        match (found.as_deref() == Some(sha256), before, certainty) {
            (true, Some(before), _) => {
                self.place_copy((&before.copy, path), &before.sha256, before.mode)
            }
            (true, None, _) => self.remove_file(path),
            (false, _, Certainty::Sure) => Err(changed(path)),
            // It stopped because it found this: nothing of it is ours.
            (false, _, Certainty::Unsure) => Ok(()),
        }
    }

    fn remove_file(&self, path: &str) -> Result<()> {
        let real = self.path(path);
        match std::fs::remove_file(&real) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(files::explain(format!("cannot remove {path}"), &error))
            }
            Ok(()) | Err(_) => sync_above(&real)
                .map_err(|error| files::explain(format!("cannot remove {path}"), &error)),
        }
    }

    pub(in super::super) fn link(&self, path: &str, target: &str) -> Result<()> {
        let real = self.path(path);
        let made = match std::os::unix::fs::symlink(target, &real) {
            Err(_) if self.is_link(path, target) => Ok(()),
            made => made.and_then(|()| sync_above(&real)),
        };
        made.map_err(|error| files::explain(format!("cannot make the link {path}"), &error))
    }

    pub(in super::super) fn is_link(&self, path: &str, target: &str) -> bool {
        std::fs::read_link(self.path(path)).is_ok_and(|found| found == Path::new(target))
    }

    pub(in super::super) fn unlink(&self, path: &str, target: &str) -> Result<()> {
        // What somebody else put there stays.
        if self.is_link(path, target) {
            self.remove_file(path)
        } else {
            Ok(())
        }
    }

    /// Removes a file or a tree, but nothing of another file system below it, nor a mount point.
    /// `only_empty`: a directory, if nothing is in it.
    pub(in super::super) fn remove(&self, path: &str, only_empty: bool) -> Result<()> {
        let real = self.path(path);
        let metadata = match std::fs::symlink_metadata(&real) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(files::explain(format!("cannot look at {path}"), &error)),
        };
        if !metadata.is_dir() {
            return if only_empty {
                Ok(())
            } else {
                self.remove_file(path)
            };
        }
        if !only_empty {
            let mounts = MountPoints::of(&Self::mountinfo()?);
            // The kernel names mount points without links. The last part is no link now, and is not
            // followed if somebody makes it one.
            let above = real.parent().unwrap_or(&real).canonicalize();
            let above =
                above.map_err(|error| files::explain(format!("cannot look at {path}"), &error))?;
            let real = above.join(real.file_name().unwrap_or_default());
            let left = |path: &Path| {
                self.tell(&format!("left, it is on another disk: {}", path.display()));
            };
            if mounts.has(&real) {
                left(&real);
                return Ok(());
            }
            tree::empty(&real, &mounts, &left)?;
        }
        remove_folder(&real, path)?;
        sync_above(&real).map_err(|error| files::explain(format!("cannot remove {path}"), &error))
    }

    /// Text of the mounts, as this process sees them.
    pub(super) fn mountinfo() -> Result<Vec<u8>> {
        files::read(Path::new("/proc/self/mountinfo"), 4 << 20)
    }
}

fn remove_folder(real: &Path, path: &str) -> Result<()> {
    match std::fs::remove_dir(real) {
        Err(error)
            if !matches!(
                error.kind(),
                // Something of another disk is in it, or it is a mount point: it stays.
                ErrorKind::NotFound | ErrorKind::DirectoryNotEmpty | ErrorKind::ResourceBusy
            ) =>
        {
            Err(files::explain(format!("cannot remove {path}"), &error))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}
impl System {
    /// A step as an act, with what is there before it.
    pub(super) fn act_of(&self, step: Step, within: Duration) -> Result<Act> {
        Ok(match step {
            Step::Directory { path } => Act::Directory { path },
            Step::File {
                path,
                content,
                mode,
            } => {
                let before = self.found(&path)?;
                Act::File {
                    path,
                    content,
                    mode,
                    before: before.as_ref().map(super::super::system::before),
                }
            }
            Step::Copy {
                from,
                path,
                sha256,
                mode,
                before,
                bytes: _,
            } => Act::Copy {
                from,
                path,
                sha256,
                mode,
                before: before.map(|replaced| Earlier {
                    copy: replaced.copy.path,
                    sha256: replaced.copy.sha256,
                    mode: replaced.mode,
                }),
            },
            Step::Link { path, target } => Act::Link { path, target },
            Step::Made { path } => Act::Made { path },
            Step::Run { forth, back } => Act::Run {
                forth,
                back,
                seen: None,
            },
            Step::Ready {
                node,
                version,
                when,
            } => Act::Ready {
                node,
                version: version.map(|version| version.to_string()),
                within_s: within.as_secs(),
                is_back: when == When::Back,
            },
            Step::Move { from, to } => Act::Move { from, to },
            Step::Datastore { path, copy } => Act::Datastore { path, copy },
            Step::Cordon { node } => Act::Cordon { node },
            Step::Drain { node, drain } => Act::Drain {
                node,
                within_s: drain.within.as_secs(),
                is_forced: drain.is_forced,
            },
            Step::Gone { path, extent } => Act::Gone {
                path,
                only_empty: extent == Extent::Empty,
            },
        })
    }
}

//! Removal of a tree that others write to: volumes of Pods lie below the data directory of k3s,
//! open to every user.
//!
//! Each directory is opened below the one before it and without following links, so that nobody
//! leads the removal out of the tree by exchanging a directory for a link.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

use rustix::{
    fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, fstat, openat, statat, unlinkat},
    io::Errno,
};

use crate::{
    core::{order::GatherExt as _, procfs::mounts::mounts},
    error::{Error, Result},
    files,
};

/// Mount points of this process. In names that are not UTF-8 the odd bytes are replaced, here as in
/// what is compared.
#[derive(Debug, Default)]
pub(super) struct MountPoints(BTreeSet<String>);

impl MountPoints {
    /// Reads them from the text of `/proc/self/mountinfo`.
    pub(super) fn of(mountinfo: &[u8]) -> Self {
        let text = String::from_utf8_lossy(mountinfo);
        let points = mounts(&text).map(|mount| mount.point.into_owned());
        Self(points.gather())
    }

    /// Returns whether something is mounted at `path`, which has no links in it.
    pub(super) fn has(&self, path: &Path) -> bool {
        self.0.contains(path.to_string_lossy().as_ref())
    }
}

/// Removes everything in `folder`, but nothing of another file system, nor a mount point: `left`
/// hears of these.
pub(super) fn empty(folder: &Path, mounts: &MountPoints, left: &dyn Fn(&Path)) -> Result<()> {
    let opened = match open(CWD, folder.as_os_str()) {
        Err(Errno::NOENT) => return Ok(()),
        opened => opened.map_err(|error| cannot(folder, error))?,
    };
    let removal = Removal {
        device: fstat(&opened)
            .map_err(|error| cannot(folder, error))?
            .st_dev,
        mounts,
        left,
    };
    removal.empty(&opened, folder)
}

/// A removal that runs.
struct Removal<'a> {
    /// Number of the file system.
    device: u64,
    mounts: &'a MountPoints,
    left: &'a dyn Fn(&Path),
}

impl Removal<'_> {
    fn empty(&self, folder: &OwnedFd, path: &Path) -> Result<()> {
        for entry in Dir::read_from(folder).map_err(|error| cannot(path, error))? {
            let entry = entry.map_err(|error| cannot(path, error))?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name != "." && name != ".." {
                self.remove(folder, name, &path.join(name))?;
            }
        }
        Ok(())
    }

    fn remove(&self, folder: &OwnedFd, name: &OsStr, path: &Path) -> Result<()> {
        let found = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW);
        let found = match found {
            // Somebody else removed it.
            Err(Errno::NOENT) => return Ok(()),
            found => found.map_err(|error| cannot(path, error))?,
        };
        let is_folder = FileType::from_raw_mode(found.st_mode) == FileType::Directory;
        // Files of an overlay have the number of the layer that they are in: only a directory
        // tells.
        if (is_folder && found.st_dev != self.device) || self.mounts.has(path) {
            (self.left)(path);
            return Ok(());
        }
        let mut how = AtFlags::empty();
        if is_folder {
            let inner = open(folder.as_fd(), name).map_err(|error| cannot(path, error))?;
            self.empty(&inner, path)?;
            how = AtFlags::REMOVEDIR;
        }
        match unlinkat(folder, name, how) {
            // What was left keeps the directories above it.
            Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
            Err(error) => Err(cannot(path, error)),
        }
    }
}

/// Opens a directory; a link to one is refused.
fn open(folder: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(folder, name, flags, Mode::empty())
}

fn cannot(path: &Path, error: Errno) -> Error {
    files::explain(format!("cannot remove {}", path.display()), &error.into())
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn links_go_and_their_targets_stay() {
        let directory = tempfile::tempdir().unwrap();
        let (tree, outside) = (directory.path().join("tree"), directory.path().join("etc"));
        fs::create_dir_all(tree.join("volume/deep")).unwrap();
        fs::create_dir(&outside).unwrap();
        files::replace(&outside.join("passwd"), b"root", 0o600).unwrap();
        symlink(&outside, tree.join("volume/deep/link")).unwrap();
        empty(&tree, &MountPoints::default(), &|_| {
            panic!("nothing is left")
        })
        .unwrap();
        assert_eq!(fs::read_dir(&tree).unwrap().count(), 0);
        assert!(outside.join("passwd").exists());
        assert!(empty(&tree.join("gone"), &MountPoints::default(), &|_| ()).is_ok());
    }

    #[test]
    fn a_mount_point_of_the_same_file_system_stays_with_all_above_it() {
        let directory = tempfile::tempdir().unwrap();
        let (tree, disk) = (directory.path(), directory.path().join("a/my disk"));
        fs::create_dir_all(disk.join("photos")).unwrap();
        fs::create_dir_all(tree.join("a/b")).unwrap();
        let escaped = disk.display().to_string().replace(' ', "\\040");
        let mountinfo = format!("36 35 98:0 / {escaped} rw shared:1 - ext4 /dev/sda1 rw\n");
        let left = std::cell::RefCell::new(Vec::new());
        let leave = |path: &Path| left.borrow_mut().push(path.to_owned());
        empty(tree, &MountPoints::of(mountinfo.as_bytes()), &leave).unwrap();
        assert_eq!(left.take(), std::slice::from_ref(&disk));
        assert!(disk.join("photos").exists());
        assert!(!tree.join("a/b").exists());
    }

    #[test]
    fn a_directory_that_became_a_link_after_the_look_is_not_opened() {
        let directory = tempfile::tempdir().unwrap();
        symlink("/etc", directory.path().join("volume")).unwrap();
        let tree = open(CWD, directory.path().as_os_str()).unwrap();
        let error = open(tree.as_fd(), OsStr::new("volume")).unwrap_err();
        assert!(matches!(error, Errno::LOOP | Errno::NOTDIR), "{error}");
    }
}

//! Attributes of a file besides its content: mode, group, extended attributes (access lists,
//! labels, user attributes).

use std::{
    fs::{File, Permissions},
    io,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
};

use litemap::LiteMap;
use rustix::fs::{XattrFlags, fsetxattr, lgetxattr, llistxattr, lsetxattr};

/// Maximum size of the list of names and of each value: the kernel's own limit for both.
const BYTES_MAX: usize = 64 * 1024;
/// Attributes that the kernel computes from the content. A copy of them would be wrong for another
/// content.
const OF_CONTENT: [&str; 2] = ["security.ima", "security.evm"];

/// Label of SELinux.
const LABEL: &str = "security.selinux";

/// Attributes of one file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Attributes {
    /// Permissions, with the bits for another user and group.
    pub mode: u32,
    /// Numeric group; `None`: that of this process.
    pub group: Option<u32>,
    /// Extended attributes by name.
    pub extended: LiteMap<String, Vec<u8>>,
}

impl Attributes {
    /// This mode, and nothing else.
    pub const fn of_mode(mode: u32) -> Self {
        Self {
            mode,
            group: None,
            extended: LiteMap::new(),
        }
    }

    /// Reads the attributes of the file at `path`. A symbolic link is not followed.
    pub fn of(path: &Path) -> io::Result<Self> {
        let metadata = std::fs::symlink_metadata(path)?;
        Ok(Self {
            mode: metadata.mode() & 0o7777,
            group: Some(metadata.gid()),
            extended: extended(path)?,
        })
    }

    /// Gives them to an open file. Its content has to be there already: a write takes some of them
    /// away again.
    pub(super) fn give(&self, file: &File) -> io::Result<()> {
        if let Some(group) = self.group {
            std::os::unix::fs::fchown(file, None, Some(group))?;
        }
        // After the group: a new group clears the set-user-id and set-group-id bits.
        file.set_permissions(Permissions::from_mode(self.mode))?;
        for (name, value) in &self.extended {
            fsetxattr(file, name.as_str(), value, XattrFlags::empty())?;
        }
        Ok(())
    }
}

/// Gives the file at `to` the label of SELinux that the one at `from` has.
pub fn copy_label(from: &Path, to: &Path) -> io::Result<()> {
    let mut label = vec![0; BYTES_MAX];
    let length = lgetxattr(from, LABEL, label.as_mut_slice())?;
    label.truncate(length);
    Ok(lsetxattr(to, LABEL, &label, XattrFlags::empty())?)
}

fn extended(path: &Path) -> io::Result<LiteMap<String, Vec<u8>>> {
    let mut list = vec![0; BYTES_MAX];
    let length = match llistxattr(path, list.as_mut_slice()) {
        Ok(length) => length,
        // A file system without them.
        Err(rustix::io::Errno::NOTSUP) => return Ok(LiteMap::new()),
        Err(error) => return Err(error.into()),
    };
    let names = list.get(..length).unwrap_or_default();
    let mut found = LiteMap::new();
    for name in names.split(|byte| *byte == 0) {
        let name = String::from_utf8_lossy(name).into_owned();
        if name.is_empty() || OF_CONTENT.contains(&name.as_str()) {
            continue;
        }
        let mut value = vec![0; BYTES_MAX];
        let length = lgetxattr(path, name.as_str(), value.as_mut_slice())?;
        value.truncate(length);
        found.insert(name, value);
    }
    Ok(found)
}

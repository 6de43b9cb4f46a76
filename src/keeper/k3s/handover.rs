//! Handover of encrypted backups to the agent, which copies them to a bucket: nothing plain, and
//! nothing that it could change.

use std::{
    fs::{Metadata, Permissions},
    io::ErrorKind,
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    path::Path,
};

use super::{
    super::{Keeper, now, system::System},
    Backup, archive,
    backup::{has_room, kept},
    connect::open_to,
};
use crate::{
    core::k3s::{
        backup::{ENCRYPTED, Kept, Owner, sort_newest_first},
        copies::{SPOOL, SPOOLED_MAX},
    },
    error::{Error, Result},
    files,
};

/// Readable by the agent's group.
const MODE: u32 = 0o640;
/// Longest backup, as elsewhere.
const BYTES_MAX: u64 = 5 << 30;

impl Keeper {
    /// Leaves the newest encrypted backups of a node to the agent where they are to be copied, and
    /// nothing where not. It costs a look at two directories while nothing is new.
    pub(super) fn hand_over(&self, wanted: &Backup, node: &str, data_dir: &str) -> Result<()> {
        let spool = self.system.path(SPOOL);
        let Some(group) = wanted.copied_by else {
            return remove(&spool);
        };
        let here = self.system.path(wanted.to.folder());
        // A disk that is away, or broken, shows none of the backups that are on it.
        if self.check_target(wanted).is_err() || std::fs::read_dir(&here).is_err() {
            return Ok(());
        }
        let cluster = self.system.cluster(data_dir);
        // Without the data of k3s it is not known whose backups they are.
        if cluster.is_empty() {
            return Ok(());
        }
        let mut backups = kept(
            &here,
            Some(Owner {
                node,
                cluster: &cluster,
            }),
        );
        backups.retain(|kept| kept.name.ends_with(ENCRYPTED));
        sort_newest_first(&mut backups, now());
        backups.truncate(SPOOLED_MAX);
        self.system.make_spool(group)?;
        let there = kept(&spool, None);
        for old in there.iter().filter(|old| !backups.contains(old)) {
            let path = spool.join(&old.name);
            std::fs::remove_file(&path).map_err(|error| {
                files::explain(format!("cannot remove {}", path.display()), &error)
            })?;
        }
        for new in backups.iter().filter(|new| !there.contains(new)) {
            give(&here, &spool, new, group)?;
        }
        Ok(())
    }
}

/// A second name for the same file where both are on one disk, else a copy.
fn give(here: &Path, spool: &Path, kept: &Kept, group: u32) -> Result<()> {
    let (from, to) = (here.join(&kept.name), spool.join(&kept.name));
    if !archive::is_encrypted(&from) {
        return Err(
            Error::new(format!("{} is not left to the agent", from.display()))
                .why("it has the name of an encrypted backup, and is none")
                .fix("move it away"),
        );
    }
    let linked = chown(&from, None, Some(group))
        .and_then(|()| std::fs::set_permissions(&from, Permissions::from_mode(MODE)))
        .and_then(|()| std::fs::hard_link(&from, &to));
    match linked {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        // Another disk, or a file system without owners or links.
        Err(_) => {
            has_room(spool, kept.bytes)?;
            files::remove_unfinished(spool)?;
            // Its group is that of the directory.
            files::copy(&from, &to, MODE, None, (BYTES_MAX, &mut |_| {})).map(drop)
        }
    }
}

fn remove(spool: &Path) -> Result<()> {
    match std::fs::remove_dir_all(spool) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(files::explain(
            format!("cannot remove {}", spool.display()),
            &error,
        )),
        Ok(()) | Err(_) => Ok(()),
    }
}

impl System {
    fn make_spool(&self, group: u32) -> Result<()> {
        self.guard(SPOOL)?;
        let spool = self.path(SPOOL);
        let is_open = |found: Metadata| found.gid() == group && found.mode() & 0o777 == 0o750;
        // Each minute: what is right is not written again.
        if std::fs::metadata(&spool).is_ok_and(is_open) {
            return Ok(());
        }
        self.make_directory("/var/spool")?;
        files::create_directory(&spool)?;
        open_to(&spool, group)
    }
}

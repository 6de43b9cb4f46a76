//! Unix socket of the command line: created with its final mode, and never taken from a running
//! agent.

use std::{
    io,
    os::unix::{
        fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt},
        net::UnixStream as Plain,
    },
    path::{Path, PathBuf},
};

use smol::net::unix::UnixListener;

use crate::{
    error::{Error, Result},
    files,
};

/// The socket is for the agent's user and its group.
const MODE: u32 = 0o660;

/// A listening socket. Dropping it removes its path.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) listener: UnixListener,
    path: PathBuf,
    inode: Option<u64>,
}

impl Socket {
    /// Listens at `path`. Its directory is made where it is missing. A socket that a dead agent
    /// left is replaced; one on which somebody answers is not.
    pub(super) fn bind(path: &Path) -> Result<Self> {
        let what = || format!("cannot listen on {}", path.display());
        let cannot = |error: io::Error| files::explain(what(), &error);
        make_directory(path).map_err(cannot)?;
        refuse_taken(path)?;
        // Made beside it and renamed, so that it is never there with another mode, nor gone in
        // between.
        let mut beside = path.to_owned().into_os_string();
        beside.push("~");
        let beside = PathBuf::from(beside);
        match std::fs::remove_file(&beside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(cannot(error)),
            Ok(()) | Err(_) => {}
        }
        let listener = UnixListener::bind(&beside).map_err(|error| {
            let explained = cannot(error);
            if path.as_os_str().len() > 100 {
                return explained.fix("use a path below 100 characters: dashboard.socket");
            }
            explained
        })?;
        std::fs::set_permissions(&beside, std::fs::Permissions::from_mode(MODE))
            .and_then(|()| std::fs::rename(&beside, path))
            .map_err(cannot)?;
        Ok(Self {
            listener,
            inode: inode(path),
            path: path.to_owned(),
        })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // Another agent may have taken the path in the meantime.
        if self.inode.is_some() && inode(&self.path) == self.inode {
            drop(std::fs::remove_file(&self.path));
        }
    }
}

fn make_directory(path: &Path) -> io::Result<()> {
    let Some(directory) = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
    else {
        return Ok(());
    };
    // The group may enter: it may use the socket. Not create_dir_all: a path that is missing
    // altogether is a mistake.
    match std::fs::DirBuilder::new().mode(0o750).create(directory) {
        Err(error) if !directory.is_dir() => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Leaves alone what is not the socket of a dead agent.
fn refuse_taken(path: &Path) -> Result<()> {
    let what = || format!("cannot listen on {}", path.display());
    let Ok(found) = std::fs::symlink_metadata(path) else {
        return Ok(());
    };
    if !found.file_type().is_socket() {
        return Err(Error::new(what())
            .why("it is not a socket")
            .fix(format!("inspect it, then: rm {}", path.display())));
    }
    match Plain::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // A full backlog is somebody too, and so is one that this user may not ask.
        Ok(_) | Err(_) => Err(Error::new(what())
            .why("another agent answers there")
            .fix("pipeops-agent status shows it; stop it: sudo systemctl stop pipeops-agent (with OpenRC: sudo rc-service pipeops-agent stop); or give this one its own path: PIPEOPS_DASHBOARD_SOCKET")),
    }
}

fn inode(path: &Path) -> Option<u64> {
    std::fs::symlink_metadata(path)
        .ok()
        .map(|found| found.ino())
}

//! Reserved disk space, released when the disk is full so that the state can still be written: 200
//! changes of identity or 100 audit rows.

use std::{
    fs::OpenOptions,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use super::trouble::free_bytes;
use crate::files;

pub(super) const FILE: &str = "reserve";
const BYTES: usize = 1 << 20;
/// Free space above which the reserve is taken (again).
const FREE_BYTES: u64 = 4 << 20;

/// The reserve of one directory.
#[derive(Debug)]
pub(super) struct Reserve {
    directory: PathBuf,
    is_spent: bool,
}

impl Reserve {
    pub(super) const fn new(directory: PathBuf) -> Self {
        Self {
            directory,
            is_spent: false,
        }
    }

    /// Returns whether it is not there, because the disk is full.
    pub(super) const fn is_spent(&self) -> bool {
        self.is_spent
    }

    /// Takes the reserve where there is room for it.
    pub(super) fn take(&mut self) {
        let path = self.directory.join(FILE);
        let length = std::fs::metadata(&path).map_or(0, |metadata| metadata.len());
        if length >= u64::try_from(BYTES).unwrap_or(u64::MAX) {
            self.is_spent = false;
            return;
        }
        let has_room = free_bytes(&self.directory).is_some_and(|free| free >= FREE_BYTES);
        self.is_spent = !has_room || fill(&path).is_err_and(|error| is_no_room(&error));
    }

    /// Makes room. `false` where there was no reserve any more.
    pub(super) fn give_up(&mut self) -> bool {
        self.is_spent = true;
        std::fs::remove_file(self.directory.join(FILE)).is_ok()
    }
}

/// Returns whether an I/O error says that there is no room.
fn is_no_room(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded)
}

/// Writes the reserve for real: a hole would take no room.
fn fill(path: &Path) -> std::io::Result<()> {
    // A half-written one is removed first; a missing one is no error.
    drop(std::fs::remove_file(path));
    let filled = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(files::PRIVATE)
        .open(path)
        .and_then(|mut file| {
            let piece = [0xa5; 4096];
            for _ in 0..BYTES / piece.len() {
                file.write_all(&piece)?;
            }
            file.sync_all()
        });
    if filled.is_err() {
        drop(std::fs::remove_file(path));
    }
    filled
}

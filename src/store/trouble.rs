//! Problems of a database and its disk, with sentences for people.

use std::path::Path;

use nix::sys::statvfs::statvfs;
use rusqlite::ErrorCode;

use crate::error::{Error, Retry};

/// A disk with less free space is full: SQLite asks for its log in pieces of 32 KiB.
pub(super) const FULL_FREE_BYTES: u64 = 256 * 1024;

/// Returns whether SQLite says that the file is damaged. It says so of a read that failed, too.
pub(super) fn is_damage(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
    )
}

/// A full disk shows as an I/O error where SQLite needs room for its shared memory.
pub(super) fn is_full(error: &rusqlite::Error, directory: &Path) -> bool {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => true,
        Some(ErrorCode::SystemIoFailure | ErrorCode::CannotOpen) => has_no_room(directory),
        Some(_) | None => false,
    }
}

/// Returns whether there is no room for a write.
pub(super) fn has_no_room(directory: &Path) -> bool {
    free_bytes(directory).is_some_and(|free| free < FULL_FREE_BYTES)
}

/// Error of a full disk, with its fix.
pub(super) fn full(directory: &Path) -> Error {
    Error::new(format!(
        "the disk that holds {} is full",
        directory.display()
    ))
    .fix(format!(
        "make room: df -h {}; du -xh / | sort -h | tail",
        directory.display()
    ))
    .retry(Retry::Later)
}

/// Explains SQLite's error about the file at `path`, with a fix.
pub(super) fn explain(path: &Path, error: &rusqlite::Error) -> Error {
    let directory = path.parent().unwrap_or(path);
    if is_full(error, directory) {
        return full(directory).because(error);
    }
    let explained = Error::new(format!("cannot use {}", path.display())).because(error);
    match error.sqlite_error_code() {
        Some(ErrorCode::ReadOnly) => explained
            .fix("the file system is read-only or the file belongs to another user: dmesg | tail; ls -l")
            .retry(Retry::Later),
        Some(ErrorCode::SystemIoFailure) => explained
            .fix("the disk reports errors: dmesg | tail; replace the card or disk")
            .retry(Retry::Later),
        Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => explained
            .fix("check that the directory exists, is mounted and belongs to the agent's user")
            .retry(Retry::Later),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => explained
            .fix("another program holds the database: fuser -v on the file")
            .retry(Retry::Soon),
        Some(_) | None => explained,
    }
}

/// Bytes that unprivileged programs can still write; `None` if the file system does not report it.
pub(super) fn free_bytes(directory: &Path) -> Option<u64> {
    bytes(directory).map(|(free, _)| free)
}

/// The size of the file system.
pub(super) fn size_bytes(directory: &Path) -> Option<u64> {
    bytes(directory).map(|(_, size)| size)
}

fn bytes(directory: &Path) -> Option<(u64, u64)> {
    let space = statvfs(directory).ok()?;
    #[expect(
        clippy::useless_conversion,
        reason = "the fields have 32 bit on 32-bit machines"
    )]
    let (block, available, all) = (
        u64::from(space.fragment_size()),
        u64::from(space.blocks_available()),
        u64::from(space.blocks()),
    );
    Some((available.saturating_mul(block), all.saturating_mul(block)))
}

//! Damaged databases: moved aside, so that they can be looked at and a new one can begin.

use std::path::{Path, PathBuf};

use crate::{core::time::Wall, error::Result, files};

/// What SQLite keeps beside a database.
const COMPANIONS: [&str; 2] = ["-wal", "-shm"];

/// Renames the database `file` and its log. Of those that were moved before, the newest say most: `kept` stay in all.
pub(super) fn move_aside(directory: &Path, file: &str, kept: usize, wall: Wall) -> Result<()> {
    let stamp: String = wall
        .rfc3339()
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .collect();
    let what = || format!("cannot move the damaged {file} aside");
    let aside = directory.join(format!("{file}.damaged-{stamp}"));
    for ending in COMPANIONS.into_iter().chain([""]) {
        let from = directory.join(format!("{file}{ending}"));
        let mut to = aside.clone().into_os_string();
        to.push(ending);
        match std::fs::rename(&from, PathBuf::from(to)) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(files::explain(what(), &error)),
        }
    }
    files::sync_directory(directory).map_err(|error| files::explain(what(), &error))?;
    for old in damaged(directory, file).iter().rev().skip(kept) {
        for ending in ["", "-wal", "-shm"] {
            // What cannot be removed is tried again with the next damaged one.
            drop(std::fs::remove_file(
                directory.join(format!("{old}{ending}")),
            ));
        }
    }
    Ok(())
}

/// The names of damaged databases that were moved aside, the oldest first.
pub(super) fn damaged(directory: &Path, file: &str) -> Vec<String> {
    let prefix = format!("{file}.damaged-");
    let mut names: Vec<_> = std::fs::read_dir(directory)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| {
            name.starts_with(&prefix) && !COMPANIONS.iter().any(|ending| name.ends_with(ending))
        })
        .collect();
    names.sort();
    names
}

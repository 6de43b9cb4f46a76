//! Quarantine of damaged databases: moves them aside for inspection, so that a new one can be
//! created.
//!
//! Their names count up, because a board without a battery-backed clock may have any time.

use std::path::{Path, PathBuf};

use crate::{
    core::{order::OrderExt as _, time::Wall},
    error::Result,
    files,
};

/// The endings of what is moved: the database, and what SQLite keeps beside it.
const ENDINGS: [&str; 3] = ["-wal", "-shm", ""];

/// Number and size of the damaged databases that are kept.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Copies {
    pub(super) count: usize,
    pub(super) bytes: u64,
}

/// Renames the database `file` and its log. Returns whether it is still there: of what was moved,
/// the oldest go until the rest is within bounds, and it may be larger than that alone.
pub(super) fn move_aside(directory: &Path, file: &str, kept: Copies, wall: Wall) -> Result<bool> {
    let stamp: String = wall
        .rfc3339()
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .collect();
    let what = || format!("cannot move the damaged {file} aside");
    let newest = damaged(directory, file).pop();
    let number = newest.map_or(0, |newest| number(file, &newest));
    let name = format!("{file}.damaged-{:06}-{stamp}", number.saturating_add(1));
    for ending in ENDINGS {
        let from = directory.join(format!("{file}{ending}"));
        match std::fs::rename(&from, directory.join(format!("{name}{ending}"))) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(files::explain(what(), &error)),
        }
    }
    files::sync_directory(directory).map_err(|error| files::explain(what(), &error))?;
    bound(directory, file, kept);
    Ok(directory.join(name).exists())
}

/// Removes the oldest damaged databases until the rest is within bounds.
pub(super) fn bound(directory: &Path, file: &str, kept: Copies) {
    let (mut count, mut bytes) = (0, 0_u64);
    for name in damaged(directory, file).iter().rev() {
        count += 1;
        bytes = bytes.saturating_add(size(directory, name));
        if count > kept.count || bytes > kept.bytes {
            for path in parts(directory, name) {
                // What cannot be removed is tried again with the next look.
                drop(std::fs::remove_file(path));
            }
        }
    }
}

/// Size of all damaged databases.
pub(super) fn bytes(directory: &Path, file: &str) -> u64 {
    let names = damaged(directory, file);
    names.iter().map(|name| size(directory, name)).sum()
}

fn parts(directory: &Path, name: &str) -> [PathBuf; 3] {
    ENDINGS.map(|ending| directory.join(format!("{name}{ending}")))
}

fn size(directory: &Path, name: &str) -> u64 {
    let parts = parts(directory, name).into_iter();
    parts
        .filter_map(|path| Some(std::fs::metadata(path).ok()?.len()))
        .sum()
}

/// The names of damaged databases that were moved aside, the oldest first.
pub(super) fn damaged(directory: &Path, file: &str) -> Vec<String> {
    let prefix = format!("{file}.damaged-");
    let mut names: Vec<_> = std::fs::read_dir(directory)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| {
            let is_companion = |ending: &str| !ending.is_empty() && name.ends_with(ending);
            name.starts_with(&prefix) && !ENDINGS.iter().any(|ending| is_companion(ending))
        })
        .collect();
    names.order_by_key(|name| (number(file, name), name.clone()));
    names
}

/// The place of a name in their order; 0 for those of earlier versions, which have a time alone.
fn number(file: &str, name: &str) -> u64 {
    let rest = name
        .strip_prefix(file)
        .and_then(|rest| rest.strip_prefix(".damaged-"));
    let digits = rest.and_then(|rest| Some(rest.split_once('-')?.0));
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "a.db";
    const ALL: Copies = Copies {
        count: 3,
        bytes: 1 << 20,
    };

    fn damage(directory: &Path, content: &[u8], kept: Copies, wall: i64) -> bool {
        files::replace(&directory.join(FILE), content, files::PRIVATE).unwrap();
        move_aside(directory, FILE, kept, Wall::from_millis(wall)).unwrap()
    }

    #[test]
    fn the_newest_is_the_one_that_was_moved_last_whatever_the_clock_says() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path();
        let legacy = "a.db.damaged-20991231T235959000Z";
        files::replace(&place.join(legacy), b"old", files::PRIVATE).unwrap();
        // Ten years ahead, at the beginning of time, and in between.
        for (at, wall) in [4_000_000_000_000, 0, 1_781_589_028_000].iter().enumerate() {
            assert!(damage(place, at.to_string().as_bytes(), ALL, *wall));
        }
        let names = damaged(place, FILE);
        let contents: Vec<_> = names
            .iter()
            .map(|name| std::fs::read_to_string(place.join(name)).unwrap())
            .collect();
        assert_eq!(contents, ["0", "1", "2"], "{names:?}");
        assert!(damage(place, b"3", ALL, 7));
        assert!(!place.join(&names[0]).exists(), "the oldest goes");
    }

    #[test]
    fn copies_take_no_more_than_their_part_of_the_disk() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path();
        let kept = Copies {
            count: 3,
            bytes: 1_000,
        };
        assert!(damage(place, &[1; 400], kept, 1));
        files::replace(&place.join("a.db-wal"), &[2; 300], files::PRIVATE).unwrap();
        assert!(damage(place, &[2; 200], kept, 1));
        assert_eq!(bytes(place, FILE), 900);
        // The oldest goes, with its log.
        assert!(damage(place, &[3; 450], kept, 1));
        assert_eq!(bytes(place, FILE), 950);
        // It is larger than all of them may be.
        assert!(!damage(place, &[4; 1_001], kept, 1));
        assert_eq!(bytes(place, FILE), 0);
        assert_eq!(damaged(place, FILE), Vec::<String>::new());
    }
}

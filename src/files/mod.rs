//! Small files that survive a power cut, and large responses that wait on disk under a quota.
//!
//! It knows no format and no path of its own. The adapters build on it.

use std::{
    ffi::OsString,
    fs::{DirBuilder, File, Metadata, OpenOptions, TryLockError},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    unistd::{Gid, Group},
};
use ring::rand::{SecureRandom, SystemRandom};

use crate::error::{Error, Result, Retry};

pub mod age;
mod attributes;
mod copy;
mod jobs;
mod spool;
pub mod tar;

pub use attributes::{Attributes, copy_label};
pub use copy::{Sum, copy, pass, sum};
pub use jobs::{GivenUp, Jobs};
pub use spool::{SPOOLED_BYTES_MAX, SPOOLED_FILE_BYTES_MAX, Spool, SpoolFailure, SpoolFile};

/// Mode of files that only the owner may read and write.
pub const PRIVATE: u32 = 0o600;
/// Suffix of a file that was being written when the power was lost.
pub const UNFINISHED: &str = ".unfinished";

/// Name of a file that never exists.
const NO_FILE: &str = ".touched";

/// Comes back once the disk below `directory` answers, and writes nothing: a frozen file system
/// holds up the removal even of a file that is not there, and a hung device the read of a block
/// past the cache.
pub fn touch(directory: &Path, small_file: &str) {
    // A directory that is not there yet will be made in one that is.
    let there = directory.ancestors().find(|place| place.is_dir());
    // Not there, or a read-only file system: it answered.
    drop(std::fs::remove_file(
        there.unwrap_or(directory).join(NO_FILE),
    ));
    drop(read_block(&directory.join(small_file)));
}

/// Reads the first block of a file from the device, where the file system can leave out the cache.
fn read_block(path: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options
        .read(true)
        .custom_flags(nix::fcntl::OFlag::O_DIRECT.bits())
        .open(path)?;
    // Twice the size, so that an aligned block is in it.
    let mut buffer = vec![0_u8; 2 * BLOCK];
    let start = buffer.as_ptr().align_offset(BLOCK);
    let block = buffer
        .get_mut(start..)
        .and_then(|rest| rest.get_mut(..BLOCK));
    file.read(block.unwrap_or_default()).map(drop)
}

/// Alignment that every device takes.
const BLOCK: usize = 4096;

/// Puts `content` at `path`, so that a reader, or a power cut at any point, sees the old file or
/// the new one and nothing between.
///
/// The new file gets exactly `mode`, whatever the umask is. The directory must exist. A symbolic
/// link at `path` is replaced, not followed.
pub fn replace(path: &Path, content: &[u8], mode: u32) -> Result<()> {
    replace_with(path, content, &Attributes::of_mode(mode))
}

/// Like [`replace`], with more attributes than the mode. Where the file system or the kernel
/// refuses one of them, the old file stays.
pub fn replace_with(path: &Path, content: &[u8], attributes: &Attributes) -> Result<()> {
    let what = || format!("cannot write {}", path.display());
    let (directory, name) = split(path).ok_or_else(|| Error::new(what()).why("not a file name"))?;
    let unfinished = directory.join(unfinished_name(name));
    let written = write_new(&unfinished, content, attributes)
        .and_then(|()| std::fs::rename(&unfinished, path))
        // Without this the new name may be lost with the power although the content is safe.
        .and_then(|()| sync_directory(directory));
    written.map_err(|error| {
        // The first error is the one to tell; what cannot be removed now is removed by
        // `remove_unfinished`.
        drop(std::fs::remove_file(&unfinished));
        explain(what(), &error)
    })
}

/// Like [`replace`], but the new file has the mode, owner and group of the old one, and a symbolic
/// link stays one. Where there is no old file it gets `mode` and this owner, where one is given.
pub fn replace_as_it_was(
    path: &Path,
    content: &[u8],
    mode: u32,
    owner: Option<(u32, u32)>,
) -> Result<()> {
    let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let old = std::fs::metadata(&path).ok();
    let mode = old.as_ref().map_or(mode, |old| old.mode() & 0o7777);
    let owner = old.map(|old| (old.uid(), old.gid())).or(owner);
    put(&path, content, mode, owner)
}

/// Like [`replace`] for a secret: only its owner may read it afterwards, whatever the mode of the
/// old file was. `owner` is its user and group; without one they are those of the old file. A
/// symbolic link stays one.
pub fn replace_secret(path: &Path, content: &[u8], owner: Option<(u32, u32)>) -> Result<()> {
    let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let old = std::fs::metadata(&path).ok();
    // Root's file that a group reads, and no user is known who could own it in place of that:
    // whoever reads it by that group is the agent.
    let is_by_group = |old: &Metadata| {
        owner.is_none() && old.uid() == 0 && old.gid() != 0 && old.mode() & 0o040 != 0
    };
    let mode = match &old {
        Some(old) if is_by_group(old) => old.mode() & 0o640,
        Some(_) | None => PRIVATE,
    };
    let owner = owner.or_else(|| old.map(|old| (old.uid(), old.gid())));
    put(&path, content, mode, owner)
}

fn put(path: &Path, content: &[u8], mode: u32, owner: Option<(u32, u32)>) -> Result<()> {
    let mut name = path.to_owned().into_os_string();
    name.push(".new");
    let new = PathBuf::from(name);
    replace(&new, content, mode)?;
    let what = || format!("cannot write {}", path.display());
    let moved = || {
        if let Some((user, group)) = owner {
            std::os::unix::fs::chown(&new, Some(user), Some(group))?;
        }
        std::fs::rename(&new, path)?;
        path.parent().map_or(Ok(()), sync_directory)
    };
    moved().map_err(|error| {
        // It may hold a secret; the first error is the one to tell.
        drop(std::fs::remove_file(&new));
        explain(what(), &error)
    })
}

/// Takes a lock on a directory, which ends with this process at the latest; `None`: another process
/// has it.
pub fn lock_directory(directory: &Path) -> Result<Option<File>> {
    let what = || format!("cannot lock {}", directory.display());
    let file = File::open(directory).map_err(|error| explain(what(), &error))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(explain(what(), &error)),
    }
}

/// Removes what an interrupted [`replace`] of the files in `directory` left behind. Call it before
/// the first write of a run.
pub fn remove_unfinished(directory: &Path) -> Result<()> {
    let what = || format!("cannot tidy {}", directory.display());
    let entries = std::fs::read_dir(directory).map_err(|error| explain(what(), &error))?;
    for entry in entries {
        let entry = entry.map_err(|error| explain(what(), &error))?;
        let name = entry.file_name();
        let is_ours = name
            .to_str()
            .is_some_and(|name| name.starts_with('.') && name.ends_with(UNFINISHED));
        if is_ours {
            std::fs::remove_file(entry.path()).map_err(|error| explain(what(), &error))?;
        }
    }
    Ok(())
}

/// Removes what an interrupted [`replace`] of this one file left behind, in a directory that others
/// share.
pub fn remove_unfinished_of(path: &Path) -> Result<()> {
    let what = || format!("cannot tidy beside {}", path.display());
    let Some((directory, name)) = split(path) else {
        return Ok(());
    };
    let begin = format!(".{}.", name.display());
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(|error| explain(what(), &error))?,
    };
    for entry in entries {
        let entry = entry.map_err(|error| explain(what(), &error))?;
        let found = entry.file_name();
        let middle = found
            .to_str()
            .and_then(|found| found.strip_prefix(&begin)?.strip_suffix(UNFINISHED));
        if middle.is_some_and(|middle| middle.bytes().all(|byte| byte.is_ascii_hexdigit())) {
            std::fs::remove_file(entry.path()).map_err(|error| explain(what(), &error))?;
        }
    }
    Ok(())
}

/// Makes a directory that only its owner may enter, where it is missing.
///
/// The parent must exist: if it is missing, somebody unmounted the data disk, and writing to the
/// root disk would hide that.
pub fn create_directory(path: &Path) -> Result<()> {
    let what = || format!("cannot create the directory {}", path.display());
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => {
            // A directory that is lost with the power takes its files with it.
            let parent = path
                .parent()
                .filter(|parent| !parent.as_os_str().is_empty());
            sync_directory(parent.unwrap_or_else(|| Path::new(".")))
                .map_err(|error| explain(what(), &error))
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(error) => Err(explain(what(), &error)),
    }
}

/// Reads a small file whole; one that is longer than `bytes_max` is an error, not a part.
pub fn read(path: &Path, bytes_max: usize) -> Result<Vec<u8>> {
    whole(path, bytes_max, read_at_most(path, bytes_max))
}

/// Like [`read`], but `None` where there is no such file. A link that leads nowhere is an error.
pub fn read_if_there(path: &Path, bytes_max: usize) -> Result<Option<Vec<u8>>> {
    match read_at_most(path, bytes_max) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && !path.is_symlink() => Ok(None),
        read => whole(path, bytes_max, read).map(Some),
    }
}

fn whole(path: &Path, bytes_max: usize, read: io::Result<Option<Vec<u8>>>) -> Result<Vec<u8>> {
    let what = || format!("cannot read {}", path.display());
    let content = read.map_err(|error| explain(what(), &error))?;
    content.ok_or_else(|| Error::new(what()).why(format!("it is longer than {bytes_max} bytes")))
}

/// A secret in `path` that others than its owner and root can read: the sentence and the fix.
/// `None` where nobody else can, or where the file cannot be looked at.
pub fn exposed(path: &Path) -> Option<Error> {
    let found = std::fs::metadata(path).ok()?;
    let name = path.display();
    if found.mode() & 0o004 != 0 {
        let what = format!("every user of this machine can read the secret in {name}");
        return Some(Error::new(what).fix(format!("chmod 600 {name}")));
    }
    // The group of root has no members that are not root.
    if found.mode() & 0o040 == 0 || found.gid() == 0 {
        return None;
    }
    let group = Group::from_gid(Gid::from_raw(found.gid())).ok().flatten();
    let group = group.map_or_else(|| found.gid().to_string(), |group| group.name);
    let what = format!("members of the group {group} can read the secret in {name}");
    let fix = format!("chown pipeops-agent {name}; chmod 600 {name}");
    Some(Error::new(what).fix(fix))
}

/// Refuses a file or folder that another user than root could change or replace: it and all folders
/// above have to be root's. Whoever controls one of them controls what is read here.
pub fn only_roots(path: &Path) -> Result<()> {
    let name = path.display();
    let explained = |error: &io::Error| explain(format!("cannot read {name}"), error);
    let real = path.canonicalize().map_err(|error| explained(&error))?;
    if real != path {
        return Err(Error::new(format!("a symbolic link leads to {name}"))
            .fix(format!("name the place itself: {}", real.display())));
    }
    for step in path.ancestors() {
        let found = std::fs::metadata(step).map_err(|error| explained(&error))?;
        // In a folder like /tmp nobody can replace what is root's.
        let is_sticky = step != path && found.mode() & 0o1000 != 0;
        if found.uid() != 0 || (found.mode() & 0o022 != 0 && !is_sticky) {
            let step = step.display();
            return Err(Error::new(format!("{name} is not used"))
                .why(format!("users other than root can change {step}"))
                .fix(format!("chown root {step}; chmod go-w {step}")));
        }
    }
    Ok(())
}

/// Makes the names in a directory durable: what was created, renamed or removed in it.
pub fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// An I/O error with the fix that fits its number.
pub fn explain(what: impl Into<String>, error: &io::Error) -> Error {
    let explained = Error::new(what).because(error);
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOSPC | Errno::EDQUOT) => explained
            .fix("make room on that disk: df -h; du -xh / | sort -h | tail")
            .retry(Retry::Later),
        Some(Errno::EROFS) => explained
            .fix("the file system is mounted read-only, often after an error of the disk: dmesg | tail; then: mount -o remount,rw")
            .retry(Retry::Later),
        Some(Errno::EIO) => explained
            .fix("the disk reports errors: dmesg | tail; replace the card or disk")
            .retry(Retry::Later),
        Some(Errno::EACCES | Errno::EPERM) => {
            explained.fix("run as the owner of that path, or change its owner")
        }
        Some(Errno::ENOENT) => {
            explained.fix("create it, or check that the disk that holds it is mounted")
        }
        Some(Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM) => explained.retry(Retry::Soon),
        Some(_) | None => explained,
    }
}

fn split(path: &Path) -> Option<(&Path, &std::ffi::OsStr)> {
    let directory = path.parent()?;
    let directory = if directory.as_os_str().is_empty() {
        Path::new(".")
    } else {
        directory
    };
    Some((directory, path.file_name()?))
}

/// Name of the file that an interrupted write left this one of.
pub fn written_name(unfinished: &str) -> Option<&str> {
    let (name, random) = unfinished
        .strip_prefix('.')?
        .strip_suffix(UNFINISHED)?
        .rsplit_once('.')?;
    random
        .bytes()
        .all(|byte| byte.is_ascii_hexdigit())
        .then_some(name)
}

/// A name of its own for each writer: two that share one could rename each other's half.
fn unfinished_name(name: &std::ffi::OsStr) -> PathBuf {
    let mut bytes = [0_u8; 8];
    // Without randomness the name is still exclusive by O_EXCL: the second writer fails instead of
    // mixing.
    let _filled = SystemRandom::new().fill(&mut bytes).is_ok();
    let mut unfinished = OsString::from(".");
    unfinished.push(name);
    unfinished.push(format!(".{:016x}{UNFINISHED}", u64::from_le_bytes(bytes)));
    PathBuf::from(unfinished)
}

fn write_new(path: &Path, content: &[u8], attributes: &Attributes) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(PRIVATE)
        .open(path)?;
    file.write_all(content)?;
    attributes.give(&file)?;
    file.sync_all()
}

fn read_at_most(path: &Path, bytes_max: usize) -> io::Result<Option<Vec<u8>>> {
    // Sizes in /proc are 0, so the length is found by reading.
    at_most(File::open(path)?, bytes_max)
}

/// Reads to the end; `None`: there are more than `bytes_max`.
///
/// # Errors
/// The error of the reader.
pub fn at_most(from: impl Read, bytes_max: usize) -> io::Result<Option<Vec<u8>>> {
    let limit = u64::try_from(bytes_max).unwrap_or(u64::MAX);
    // Most files are smaller: one call reads them, where an empty buffer would grow by 32 bytes.
    let mut content = Vec::with_capacity(BLOCK.min(bytes_max.saturating_add(1)));
    // One byte more tells a full one from a longer one.
    from.take(limit.saturating_add(1))
        .read_to_end(&mut content)?;
    Ok((content.len() <= bytes_max).then_some(content))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<_> = std::fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn a_replaced_file_has_the_new_content_and_exactly_the_mode() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("identity.json");
        replace(&path, b"one", 0o644).unwrap();
        replace(&path, b"two", PRIVATE).unwrap();
        assert_eq!(read(&path, 100).unwrap(), b"two");
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, PRIVATE);
        assert_eq!(names(directory.path()), ["identity.json"]);
    }

    #[test]
    fn a_link_is_replaced_and_what_it_points_to_stays() {
        let directory = tempfile::tempdir().unwrap();
        let (target, path) = (
            directory.path().join("target"),
            directory.path().join("link"),
        );
        replace(&target, b"mine", PRIVATE).unwrap();
        std::os::unix::fs::symlink(&target, &path).unwrap();
        replace(&path, b"new", PRIVATE).unwrap();
        assert_eq!(read(&target, 100).unwrap(), b"mine");
        assert_eq!(read(&path, 100).unwrap(), b"new");
    }

    #[test]
    fn a_failed_replace_leaves_the_old_file_and_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("busy");
        // A directory with something in it cannot be renamed over: the last step fails.
        std::fs::create_dir_all(path.join("inside")).unwrap();
        let error = replace(&path, b"new", PRIVATE).unwrap_err();
        assert!(error.what.contains("busy"), "{error}");
        assert_eq!(names(directory.path()), ["busy"]);
    }

    #[test]
    fn what_an_interrupted_replace_left_is_removed_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        for name in [".identity.json.00ff.unfinished", ".hidden", "state.db"] {
            replace(&directory.path().join(name), b"x", PRIVATE).unwrap();
        }
        remove_unfinished(directory.path()).unwrap();
        assert_eq!(names(directory.path()), [".hidden", "state.db"]);
    }

    #[test]
    fn what_is_left_of_one_file_is_removed_and_not_what_is_left_of_others() {
        let directory = tempfile::tempdir().unwrap();
        let left = [
            ".a.conf.00ff00ff00ff00ff.unfinished",
            ".b.conf.00ff00ff00ff00ff.unfinished",
            ".a.conf.mine.unfinished",
            "a.conf",
        ];
        for name in left {
            replace(&directory.path().join(name), b"x", PRIVATE).unwrap();
        }
        remove_unfinished_of(&directory.path().join("a.conf")).unwrap();
        let wanted = [left[2], left[1], left[3]];
        assert_eq!(names(directory.path()), wanted);
        remove_unfinished_of(&directory.path().join("gone/a.conf")).unwrap();
    }

    #[test]
    fn readers_see_the_old_or_the_new_file_and_nothing_between() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let (old, new) = (vec![b'o'; 50_000], vec![b'n'; 70_000]);
        replace(&path, &old, PRIVATE).unwrap();
        std::thread::scope(|scope| {
            let writers: Vec<_> = [&old, &new]
                .map(|content| {
                    let path = &path;
                    scope.spawn(move || {
                        for _ in 0..40 {
                            replace(path, content, PRIVATE).unwrap();
                        }
                    })
                })
                .into();
            while writers.iter().any(|writer| !writer.is_finished()) {
                let seen = read(&path, 100_000).unwrap();
                assert!(seen == old || seen == new, "{} bytes", seen.len());
            }
        });
        assert_eq!(names(directory.path()), ["file"]);
    }

    #[test]
    fn a_directory_is_private_and_a_missing_parent_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state");
        create_directory(&path).unwrap();
        create_directory(&path).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        let error = create_directory(&directory.path().join("disk/state")).unwrap_err();
        assert!(error.fix.is_some_and(|fix| fix.contains("mounted")));
        replace(&directory.path().join("file"), b"", PRIVATE).unwrap();
        assert!(create_directory(&directory.path().join("file")).is_err());
    }

    #[test]
    fn a_file_over_the_cap_is_an_error_and_not_a_part() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        replace(&path, b"12345", PRIVATE).unwrap();
        assert_eq!(read(&path, 5).unwrap(), b"12345");
        let error = read(&path, 4).unwrap_err();
        assert!(error.sentence().contains("longer than 4 bytes"), "{error}");
        let missing = directory.path().join("missing");
        assert_eq!(read_if_there(&missing, 4).unwrap(), None);
        assert!(read(&missing, 4).is_err());
    }

    #[test]
    fn each_kind_of_disk_trouble_has_its_fix() {
        for (number, word, retry) in [
            (Errno::ENOSPC, "room", Retry::Later),
            (Errno::EROFS, "read-only", Retry::Later),
            (Errno::EIO, "dmesg", Retry::Later),
            (Errno::EACCES, "owner", Retry::Never),
        ] {
            let error = explain("cannot write x", &io::Error::from(number));
            assert!(
                error.fix.as_ref().is_some_and(|fix| fix.contains(word)),
                "{error}"
            );
            assert_eq!(error.retry, retry);
        }
    }
}

//! Facts for the doctor, read below a root path: see [`crate::core::facts`] for the
//! names.
//!
//! Each fact goes out as soon as it is read, so that a file that hangs costs those behind it and
//! nothing else. Every file is read with a cap, every folder to a bound. Nothing secret leaves: of
//! certificates only their dates, of other files that belong to root their size.

use std::{
    collections::BTreeSet,
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    unistd::{AccessFlags, SysconfVar, access, geteuid, sysconf},
};

use crate::{
    core::{doctor::checks, facts::Fact},
    core::{
        environment,
        order::{GatherExt as _, OrderExt as _},
    },
    files,
};

pub mod certificate;
mod kernel_log;
pub mod modules;
mod packages;
mod ports;

/// More than any text here has, on a machine with a thousand mounts or sockets.
const TEXT_BYTES_MAX: usize = 512 * 1024;
/// Names of a folder that are looked at. `/usr/bin` of a desktop has 4,000.
const NAMES_MAX: usize = 20_000;
/// Maximum number of matches of a pattern.
const MATCHES_MAX: usize = 4096;

/// All names that checks and the environment ask for and that are found on disk.
pub fn names() -> BTreeSet<&'static str> {
    let of_checks = checks().flat_map(|check| check.reads);
    let all = environment::READS.iter().chain(of_checks);
    all.copied().filter(|name| is_on_disk(name)).gather()
}

fn is_on_disk(name: &str) -> bool {
    let kinds = ["module ", "package ", "page size", "holders of ports"];
    // The agent's own folder is where its settings say: see `state`.
    let is_path = name.contains('/') || kinds.iter().any(|kind| name.starts_with(kind));
    is_path && !name.contains("{state}")
}

/// Reads everything of `names` below `root`, which is `/` or a captured tree, and tells each fact
/// as it comes; ends early where nobody listens any more (`tell` says so by `false`).
pub fn read(
    root: &Path,
    names: impl IntoIterator<Item = &'static str>,
    mut tell: impl FnMut(String, Fact) -> bool,
) {
    let release = match text(&root.join("proc/sys/kernel/osrelease")) {
        Fact::Text(release) => release.trim().to_owned(),
        Fact::Missing | Fact::Forbidden | Fact::Failed(_) => String::new(),
    };
    let modules = modules::Modules::new(root, &release);
    for name in names {
        let goes_on = if let Some(module) = name.strip_prefix("module ") {
            tell(name.to_owned(), modules.fact(module))
        } else if let Some(package) = name.strip_prefix("package ") {
            tell(name.to_owned(), packages::version(root, package))
        } else if name == "page size" {
            tell(name.to_owned(), page_size(root))
        } else if name == "holders of ports" {
            tell(name.to_owned(), ports::holders(root))
        } else {
            let (kind, path) = name.rsplit_once(' ').unwrap_or(("", name));
            matching(root, path).into_iter().all(|path| {
                let fact = fact(root, kind, &path);
                let prefix = if kind.is_empty() { "" } else { " " };
                tell(format!("{kind}{prefix}{path}"), fact)
            })
        };
        if !goes_on {
            return;
        }
    }
}

/// Returns whether the agent's folder can be written, as a fact with its name.
pub fn state(root: &Path, state_dir: &Path) -> (String, Fact) {
    let name = format!("write {}", state_dir.display());
    (name, writable(&below(root, state_dir)))
}

/// Returns whether a folder belongs to the user of this process.
pub fn is_mine(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|about| about.uid() == geteuid().as_raw())
}

fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Returns whether this user may write into a folder: its owner, where so. Whoever is neither its
/// owner nor root cannot tell for the agent.
fn writable(path: &Path) -> Fact {
    let about = match std::fs::metadata(path) {
        Ok(about) if about.is_dir() => about,
        Ok(_) => return Fact::Failed("it is not a directory".to_owned()),
        Err(error) => return failed(&error),
    };
    let me = geteuid();
    match access(path, AccessFlags::W_OK | AccessFlags::X_OK) {
        Ok(()) => Fact::Text(about.uid().to_string()),
        Err(Errno::EACCES) if !me.is_root() && me.as_raw() != about.uid() => Fact::Forbidden,
        Err(error) => Fact::Failed(error.desc().to_lowercase()),
    }
}

fn fact(root: &Path, kind: &str, path: &str) -> Fact {
    let below = below(root, Path::new(path));
    match kind {
        _ if path == "/dev/kmsg" && kind.is_empty() => kernel_log::read(&below),
        "stat" => stat(&below),
        "elf" => elf(&below),
        "dates" => certificate::dates(&below),
        _ if path.ends_with('/') => listed(&below),
        _ => text(&below),
    }
}

/// The paths that a pattern stands for; a path without `*` stands for itself, whether it is there
/// or not. A folder on the way that may not be listed stands for itself too, so that it shows.
fn matching(root: &Path, pattern: &str) -> Vec<String> {
    let Some((before, after)) = pattern.split_once('*') else {
        return vec![pattern.to_owned()];
    };
    let (folder, start) = before.rsplit_once('/').unwrap_or(("", before));
    let (end, rest) = after
        .split_once('/')
        .map_or((after, None), |(end, rest)| (end, Some(rest)));
    let names = match listed(&root.join(folder.trim_start_matches('/'))) {
        Fact::Text(names) => names,
        Fact::Missing => return Vec::new(),
        Fact::Forbidden | Fact::Failed(_) => return vec![format!("{folder}/")],
    };
    let names = names.lines().filter(|name| {
        name.strip_prefix(start)
            .is_some_and(|name| name.ends_with(end))
    });
    let paths = names.take(MATCHES_MAX).flat_map(|name| match rest {
        None => vec![format!("{folder}/{name}")],
        Some(rest) => matching(root, &format!("{folder}/{name}/{rest}")),
    });
    paths.collect()
}

fn text(path: &Path) -> Fact {
    match files::read(path, TEXT_BYTES_MAX) {
        Ok(content) => Fact::Text(String::from_utf8_lossy(&content).into_owned()),
        Err(error) => match std::fs::File::open(path) {
            Ok(_) => Fact::Failed(error.why.join(": ")),
            Err(error) => failed(&error),
        },
    }
}

fn listed(path: &Path) -> Fact {
    let folder = match std::fs::read_dir(path) {
        Ok(folder) => folder,
        Err(error) => return failed(&error),
    };
    let names = folder.take(NAMES_MAX).flatten();
    let mut names: Vec<_> = names
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| !name.contains('\n'))
        .collect();
    names.order();
    Fact::Text(names.join("\n"))
}

fn stat(path: &Path) -> Fact {
    match std::fs::metadata(path) {
        Ok(about) => Fact::Text(format!(
            "{:o} {} {} {} {}",
            about.mode() & 0o7777,
            about.uid(),
            about.gid(),
            about.size(),
            about.mtime()
        )),
        Err(error) => failed(&error),
    }
}

/// Word size of a program: the fifth byte of an ELF file.
fn elf(path: &Path) -> Fact {
    let mut head = [0; 5];
    let read =
        std::fs::File::open(path).and_then(|mut file| io::Read::read_exact(&mut file, &mut head));
    match (read, head) {
        (Err(error), _) => failed(&error),
        (Ok(()), [0x7f, b'E', b'L', b'F', 1]) => Fact::Text("32".to_owned()),
        (Ok(()), [0x7f, b'E', b'L', b'F', 2]) => Fact::Text("64".to_owned()),
        (Ok(()), _) => Fact::Failed("it is not a program".to_owned()),
    }
}

fn page_size(root: &Path) -> Fact {
    // A captured tree has the number in a file, which no kernel has.
    if root != Path::new("/") {
        return text(&root.join("page size"));
    }
    match sysconf(SysconfVar::PAGE_SIZE) {
        Ok(Some(bytes)) => Fact::Text(bytes.to_string()),
        Ok(None) | Err(_) => Fact::Missing,
    }
}

fn failed(error: &io::Error) -> Fact {
    let kind = error.kind();
    if matches!(kind, io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) {
        Fact::Missing
    } else if kind == io::ErrorKind::PermissionDenied {
        Fact::Forbidden
    } else {
        Fact::Failed(error.to_string())
    }
}

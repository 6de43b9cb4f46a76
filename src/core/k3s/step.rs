//! Steps of the plans for k3s, and how each is undone.

use std::time::Duration;

use super::Version;

/// One step. All paths are absolute.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Step {
    /// A directory is made, and removed by the undo where it is empty.
    Directory { path: String },
    /// A file gets this content.
    File {
        path: String,
        /// Whole content.
        content: String,
        /// Its permissions.
        mode: u32,
    },
    /// A file that was checked is copied to its place.
    Copy {
        /// The checked copy.
        from: String,
        path: String,
        /// SHA-256, in hexadecimal.
        sha256: String,
        /// Length.
        bytes: u64,
        /// Its permissions.
        mode: u32,
        /// The file that it replaces; `None`: there is none.
        before: Option<Replaced>,
    },
    /// A symbolic link.
    Link { path: String, target: String },
    /// Place that k3s fills by itself: nothing is done, and the undo removes it.
    Made { path: String },
    /// Programs are run.
    Run {
        /// Command; empty: none.
        forth: Vec<String>,
        /// Command of the undo; empty: none.
        back: Vec<String>,
    },
    /// The node becomes Ready with this version.
    Ready {
        /// Its name.
        node: String,
        /// Version; `None`: whichever.
        version: Option<Version>,
        /// Direction in which this is waited for.
        when: When,
    },
    /// A file or a tree is renamed, and back by the undo.
    Move {
        /// Path.
        from: String,
        /// New path, on the same disk.
        to: String,
    },
    /// The datastore of a k3s that is stopped is kept in a copy; the undo puts it back.
    Datastore {
        path: String,
        /// Path of the copy.
        copy: String,
    },
    /// A node takes no new Pods, and takes them again by the undo.
    Cordon {
        /// Its name.
        node: String,
    },
    /// The Pods of a node are evicted.
    Drain {
        /// Its name.
        node: String,
        /// Extent of the eviction.
        drain: Drain,
    },
    /// A file or a tree goes, without what other disks hold below it.
    Gone {
        path: String,
        /// Part of it.
        extent: Extent,
    },
}

/// Part of a path that goes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Extent {
    /// All that is in it.
    Whole,
    /// A directory that is empty; any other stays.
    Empty,
}

/// Direction of a change.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum When {
    /// While it is done.
    Forth,
    /// While it is undone.
    Back,
}

/// Eviction of the Pods of a node.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Drain {
    /// Time that it may take.
    pub within: Duration,
    /// True if Pods go, too, that nobody starts again.
    pub is_forced: bool,
    /// Pods of now that go.
    pub pods: Vec<String>,
}

/// A file that was copied into a place of root's and checked there.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Staged {
    pub path: String,
    /// SHA-256, in hexadecimal.
    pub sha256: String,
    /// Length.
    pub bytes: u64,
}

/// A file that a copy replaces.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Replaced {
    /// Copy of it, for the undo.
    pub copy: Staged,
    /// Its permissions.
    pub mode: u32,
}

/// Directories on the way to `path` and itself, as far as they are missing.
pub(super) fn directories(steps: &mut Vec<Step>, path: &str, is_there: &dyn Fn(&str) -> bool) {
    let ends = path.match_indices('/').map(|(at, _)| at).skip(1);
    for end in ends.chain([path.len()]) {
        let folder = path.get(..end).unwrap_or_default().to_owned();
        let is_planned = steps
            .iter()
            .any(|step| matches!(step, Step::Directory { path } if *path == folder));
        if !folder.is_empty() && !is_planned && !is_there(&folder) {
            steps.push(Step::Directory { path: folder });
        }
    }
}

/// Step that writes a file.
pub fn file(path: &str, content: String, mode: u32) -> Step {
    Step::File {
        path: path.to_owned(),
        content,
        mode,
    }
}

/// Step that runs a command, with the command of its undo. Empty: none.
pub fn run(forth: &str, back: &str) -> Step {
    Step::Run {
        forth: words(forth),
        back: words(back),
    }
}

/// The words of a command.
pub fn words(text: &str) -> Vec<String> {
    text.split(' ')
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
}

/// The copy of a checked file to a path where nothing is.
pub(super) fn copy(staged: &Staged, path: String, mode: u32) -> Step {
    Step::Copy {
        from: staged.path.clone(),
        path,
        sha256: staged.sha256.clone(),
        bytes: staged.bytes,
        mode,
        before: None,
    }
}

/// Removal of a file, or of a whole tree.
pub(super) fn gone(path: &str) -> Step {
    Step::Gone {
        path: path.to_owned(),
        extent: Extent::Whole,
    }
}

/// Removal of a directory that is empty.
pub(super) fn empty(path: &str) -> Step {
    Step::Gone {
        path: path.to_owned(),
        extent: Extent::Empty,
    }
}

/// Bytes that steps write.
pub fn bytes(steps: &[Step]) -> u64 {
    let bytes = steps.iter().map(|step| match step {
        Step::Copy { bytes, .. } => *bytes,
        Step::File { content, .. } => u64::try_from(content.len()).unwrap_or(0),
        Step::Directory { .. }
        | Step::Link { .. }
        | Step::Made { .. }
        | Step::Run { .. }
        | Step::Ready { .. }
        | Step::Move { .. }
        | Step::Datastore { .. }
        | Step::Cordon { .. }
        | Step::Drain { .. }
        | Step::Gone { .. } => 0,
    });
    bytes.fold(0, u64::saturating_add)
}

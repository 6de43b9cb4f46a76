//! Modules of the kernel: loaded, built in, on disk, or absent.

use std::{
    fs::File,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
};

use crate::core::{
    facts::Fact,
    procfs::kernel::{listed_module, modules},
};

/// `modules.dep` of a kernel of a distribution has a megabyte.
const INDEX_BYTES_MAX: u64 = 8 << 20;

/// State of a module.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ModuleState {
    Loaded,
    /// It is a part of the kernel.
    BuiltIn,
    /// It is on disk.
    Installed,
    /// It is not on this machine.
    Absent,
    /// There is no index of the running kernel's modules.
    Unindexed,
}

/// Modules of a kernel: those that are loaded, and its indexes.
#[derive(Debug)]
pub struct Modules {
    folder: PathBuf,
    loaded: String,
    built_in: Vec<String>,
    on_disk: Option<Vec<String>>,
}

impl Modules {
    /// Reads the lists of a release below a root path.
    pub fn new(root: &Path, release: &str) -> Self {
        let folder = root.join("lib/modules").join(release);
        let loaded = super::text(&root.join("proc/modules"));
        Self {
            folder: root.join("sys/module"),
            loaded: match loaded {
                Fact::Text(text) => text,
                Fact::Missing | Fact::Forbidden | Fact::Failed(_) => String::new(),
            },
            built_in: index(&folder.join("modules.builtin")).unwrap_or_default(),
            on_disk: index(&folder.join("modules.dep")),
        }
    }

    /// Returns the state of a module.
    pub fn state(&self, name: &str) -> ModuleState {
        let has = |list: &[String]| list.iter().any(|module| module == name);
        let is_listed = modules(&self.loaded).any(|module| module.name == name);
        // Where the list cannot be read, and for what was loaded since.
        let is_loaded = is_listed || self.folder.join(name).exists();
        match &self.on_disk {
            _ if has(&self.built_in) => ModuleState::BuiltIn,
            _ if is_loaded => ModuleState::Loaded,
            Some(modules) if has(modules) => ModuleState::Installed,
            Some(_) => ModuleState::Absent,
            None => ModuleState::Unindexed,
        }
    }

    /// The same as a fact: `loaded`, `built in`, `there` or `absent`; missing without an index.
    pub(super) fn fact(&self, name: &str) -> Fact {
        let state = match self.state(name) {
            ModuleState::Loaded => "loaded",
            ModuleState::BuiltIn => "built in",
            ModuleState::Installed => "there",
            ModuleState::Absent => "absent",
            ModuleState::Unindexed => return Fact::Missing,
        };
        Fact::Text(state.to_owned())
    }
}

/// Names of an index.
fn index(path: &Path) -> Option<Vec<String>> {
    let lines = BufReader::new(File::open(path).ok()?.take(INDEX_BYTES_MAX)).lines();
    let names = lines.map_while(Result::ok);
    Some(names.filter_map(|line| listed_module(&line)).collect())
}

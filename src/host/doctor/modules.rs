//! Modules of the kernel: loaded, built in, on disk, or absent.

use std::{
    fs::File,
    io::{BufRead, BufReader, Read},
    path::Path,
};

use crate::core::{facts::Fact, procfs::kernel::modules};

/// `modules.dep` of a kernel of a distribution has a megabyte.
const INDEX_BYTES_MAX: u64 = 8 << 20;

/// Indexes of a kernel's modules.
#[derive(Debug)]
pub(super) struct Modules {
    loaded: String,
    built_in: Vec<String>,
    on_disk: Option<Vec<String>>,
}

impl Modules {
    pub(super) fn new(root: &Path, release: &str) -> Self {
        let folder = root.join("lib/modules").join(release);
        let loaded = super::text(&root.join("proc/modules"));
        Self {
            loaded: match loaded {
                Fact::Text(text) => text,
                Fact::Missing | Fact::Forbidden | Fact::Failed(_) => String::new(),
            },
            built_in: index(&folder.join("modules.builtin")).unwrap_or_default(),
            on_disk: index(&folder.join("modules.dep")),
        }
    }

    /// `loaded`, `built in`, `there` or `absent`; missing where there is no index.
    pub(super) fn state(&self, name: &str) -> Fact {
        let has = |list: &[String]| list.iter().any(|module| module == name);
        let is_loaded = modules(&self.loaded).any(|module| module.name == name);
        Fact::Text(
            match &self.on_disk {
                _ if is_loaded => "loaded",
                _ if has(&self.built_in) => "built in",
                Some(modules) if has(modules) => "there",
                Some(_) => "absent",
                None => return Fact::Missing,
            }
            .to_owned(),
        )
    }
}

/// `kernel/drivers/net/vxlan/vxlan.ko.xz: kernel/net/…`: the names, as the kernel writes them.
fn index(path: &Path) -> Option<Vec<String>> {
    let lines = BufReader::new(File::open(path).ok()?.take(INDEX_BYTES_MAX)).lines();
    let names = lines.map_while(Result::ok).filter_map(|line| {
        let file = line.split(':').next()?.rsplit('/').next()?;
        Some(file.split(".ko").next()?.replace('-', "_"))
    });
    Some(names.collect())
}

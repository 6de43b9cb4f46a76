//! Places that k3s shares with other container runtimes, as they are at a removal.

use super::{super::system::System, inspect::finding_of};
use crate::{
    core::k3s::{
        plan,
        runtimes::{self, Process, Use},
    },
    wire::keeper::Finding,
};

impl System {
    /// Uses of k3s' places by others.
    pub(super) fn uses(&self, data_dir: &str) -> Vec<Use> {
        runtimes::uses(&self.processes(), data_dir, &|folder| self.list(folder, ""))
    }

    /// Findings that a removal leaves places to others.
    pub(super) fn left_to_others(&self, removal: &plan::Uninstall) -> Vec<Finding> {
        let left = removal.shared.iter().filter(|it| self.is_there(it.path));
        let left = left.filter(|it| !removal.kept.iter().any(|kept| kept == it.path));
        let found =
            left.map(|it| finding_of("uninstall.shared", format!("{} stays: {}", it.path, it.why)));
        found.collect()
    }

    fn processes(&self) -> Vec<Process> {
        let folders = self.list("/proc", "").into_iter();
        let found = folders.filter_map(|folder| {
            let id = folder.rsplit('/').next()?.parse().ok()?;
            let program = std::fs::read_link(self.path(&format!("{folder}/exe")));
            Some(Process {
                id,
                name: self.line(&format!("{folder}/comm"))?,
                program: program.map_or_else(|_| String::new(), |it| it.display().to_string()),
                command: self
                    .text(&format!("{folder}/cmdline"))
                    .unwrap_or_default()
                    .replace('\0', " "),
            })
        });
        found.collect()
    }
}

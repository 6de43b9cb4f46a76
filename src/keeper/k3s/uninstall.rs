//! Removal of k3s, and what stays of it.

use std::time::Duration;

use super::{
    super::{Keeper, end, journal::LockedJournal, now, system::System},
    NOTE, adopt, describe,
    inspect::{finding_of, first_paths},
    upgrade,
};
use crate::{
    core::{
        journal::Outcome,
        k3s::{
            self, BINARY, Role,
            plan::{self, Keep},
        },
    },
    error::{Error, Result},
    wire::keeper::{Done, Finding, K3sPlan, Record},
};

/// A wanted removal.
#[derive(Clone, Debug)]
pub struct Uninstall {
    /// True if data and settings stay.
    pub keeps_data: bool,
    /// True if a k3s goes, too, that was not installed by this program.
    pub takes_found: bool,
    /// Path of this program.
    pub program: String,
}

impl Keeper {
    /// The plan of a removal.
    pub fn k3s_uninstall_plan(&self, wanted: &Uninstall) -> Result<K3sPlan> {
        let removal = self.removal(wanted)?;
        self.removal_plan(wanted, &removal)
    }

    pub(super) fn removal_plan(
        &self,
        wanted: &Uninstall,
        removal: &plan::Uninstall,
    ) -> Result<K3sPlan> {
        let is_there = |path: &str| self.system.is_there(path);
        let mut trees = plan::trees(removal, &is_there);
        trees.extend(removal.links.iter().cloned());
        let bytes = trees.iter().map(|path| self.system.bytes_of(path)).sum();
        Ok(K3sPlan {
            does: removal_sentence(wanted),
            warned: {
                let mut warned = adopt::removal(self.managed()?.as_ref());
                warned.extend(self.abandoned(removal));
                warned.extend(self.system.stays(removal));
                warned.extend(self.system.left_to_others(removal));
                warned
            },
            steps: describe::steps(&plan::uninstall(removal, &is_there)),
            bytes,
            undo: if removal.role == Role::Worker {
                "there is none: join again with a new token of the server".to_owned()
            } else if wanted.keeps_data {
                format!(
                    "install it again over the data in {}: sudo pipeops-agent k3s install --reuse-data",
                    removal.data_dir
                )
            } else {
                "there is none: the cluster and its data are gone then".to_owned()
            },
            ..K3sPlan::default()
        })
    }

    /// Removes k3s. It may be repeated until nothing is left.
    pub fn k3s_uninstall(&self, wanted: &Uninstall, who: &str) -> Result<Done> {
        let journal = self.open()?;
        self.settle(&journal)?;
        let removal = self.removal(wanted)?;
        let record = Record {
            is_one_way: true,
            ..Record::new("k3s.uninstall", who, now(), removal_sentence(wanted))
        };
        self.remove_k3s(&journal, record, &removal)
    }

    pub(super) fn remove_k3s(
        &self,
        journal: &LockedJournal,
        record: Record,
        removal: &plan::Uninstall,
    ) -> Result<Done> {
        let steps = plan::uninstall(removal, &|path| self.system.is_there(path));
        for left in self
            .system
            .stays(removal)
            .iter()
            .chain(&self.system.left_to_others(removal))
        {
            self.system.tell(&left.what);
        }
        let done = self.begin_steps(journal, record, steps, Duration::ZERO)?;
        // What an installation did is no longer in force.
        for mut earlier in journal.records()? {
            if earlier.check.starts_with("k3s.")
                && earlier.outcome.as_deref() == Some(Outcome::Done.as_str())
                && done.outcome == Outcome::Done.as_str()
                && Some(earlier.id()) != done.change
            {
                end(&mut earlier, Outcome::Undone);
                journal.write(&earlier)?;
            }
        }
        if done.outcome == Outcome::Done.as_str() {
            // What stays takes room and does no harm.
            drop(std::fs::remove_file(self.directory.join(upgrade::BEFORE)));
        }
        Ok(done)
    }

    pub(super) fn removal(&self, wanted: &Uninstall) -> Result<plan::Uninstall> {
        let note = self.managed()?;
        let half = Role::ALL.map(|role| {
            [
                role.unit_path(),
                role.init_script(),
                role.uninstall_script(),
            ]
        });
        let is_half = half.iter().flatten().any(|path| self.system.is_there(path));
        if note.is_none() && !is_half && !self.system.is_there(BINARY) {
            return Err(
                Error::new("there is no k3s on this machine").fix("nothing needs to be done")
            );
        }
        if note.is_none() && !wanted.takes_found {
            return Err(Error::new("k3s is not removed")
                .why("pipeops-agent did not install it")
                .fix("see what would go: sudo pipeops-agent k3s uninstall --found --dry-run; then the same without --dry-run"));
        }
        if let Some(path) = self.system.named_services().first() {
            return Err(Error::new("k3s is not removed")
                .why(format!(
                    "{path} is a service of the same program, and would stay without it"
                ))
                .fix(
                    "remove that one first, by its own script: ls /usr/local/bin/k3s-*uninstall.sh",
                ));
        }
        let links = k3s::LINKS.into_iter().flat_map(|name| {
            ["/usr/local/bin", "/usr/bin"].map(|folder| format!("{folder}/{name}"))
        });
        let links = links
            .filter(|path| self.system.is_link(path, "k3s") || self.system.is_link(path, BINARY));
        let data_dir = self.data_dir(note.as_ref());
        Ok(plan::Uninstall {
            init: self.system.init()?,
            role: self.system.role(),
            data: self.system.data_entries(&data_dir).own,
            shared: self.system.uses(&data_dir),
            data_dir,
            program: wanted.program.clone(),
            note: self.own(NOTE),
            kept: note.map_or_else(adopt::shared, |note| note.kept),
            keep: if wanted.keeps_data {
                Keep::Data
            } else {
                Keep::Nothing
            },
            links: links.collect(),
        })
    }
}

pub(super) fn removal_sentence(wanted: &Uninstall) -> String {
    if wanted.keeps_data {
        "remove k3s, and keep its data and settings".to_owned()
    } else {
        "remove k3s with its data".to_owned()
    }
}

impl System {
    /// Finding that a removal leaves files of others in the data directory.
    pub(super) fn stays(&self, removal: &plan::Uninstall) -> Option<Finding> {
        let others = self.data_entries(&removal.data_dir).others;
        let what = format!(
            "k3s did not make this, and it stays: {}",
            first_paths(&others)
        );
        (!others.is_empty() && removal.keep == Keep::Nothing)
            .then(|| finding_of("uninstall.others", what))
    }
}

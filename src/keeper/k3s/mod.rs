//! k3s on this machine, each change of it in a file of its own, and in the keeper's journal.

mod acts;
mod adopt;
mod archive;
mod backup;
mod connect;
mod datastore;
mod describe;
mod handover;
mod images;
mod inspect;
mod install;
mod join;
mod kubeconfig;
mod leave;
mod node;
mod node_name;
mod pins;
mod ready;
mod restore;
mod servers;
mod shared;
mod stage;
mod status;
mod tree;
mod uninstall;
mod upgrade;
mod watch;

use std::time::Duration;

pub(super) use self::restore::guards;
pub use self::{
    backup::{Backup, Target},
    connect::Connect,
    install::Install,
    join::{Invitation, InviteRequest, Join},
    kubeconfig::View,
    leave::Leave,
    node::{Maintenance, Node},
    restore::Restore,
    stage::{Program, Source},
    uninstall::Uninstall,
    upgrade::Upgrade,
    watch::{Repaired, WatchOptions},
};
use super::{Keeper, journal::LockedJournal, now, system::System};
use crate::{
    core::{
        k3s::{self, BINARY, Role, Version, data, plan, step::Step, texts::Init},
        update::signed::remembered,
    },
    error::{Error, Result},
    files,
    host::exec::{self, Limits},
    wire::keeper::{Act, Done, Finding, IndexNote, Managed, Record},
};

impl Keeper {
    /// Finishes or undoes what was interrupted, with all that this takes: not for a process in a
    /// sandbox.
    pub fn k3s_resume(&self) -> Result<Vec<Done>> {
        let journal = self.open()?;
        let done = self.settle(&journal)?;
        self.unstage();
        Ok(done)
    }

    /// Refuses a plan while a change is unfinished: that one comes to its end first, and the
    /// machine is another one then.
    fn only_settled(&self) -> Result<()> {
        let Some(id) = self.unfinished()? else {
            return Ok(());
        };
        Err(Error::new("nothing can be planned yet")
            .why(format!("the change {id} was interrupted and must be finished first"))
            .fix("sudo pipeops-agent k3s resume finishes or undoes it; the command without --dry-run does so, too"))
    }

    /// Refuses what only a server can do.
    fn only_on_servers(&self, command: &str) -> Result<()> {
        if self.system.role() == Role::Server {
            return Ok(());
        }
        let server = k3s::setting(&self.system.k3s_settings(), "server").unwrap_or_default();
        Err(Error::new(format!("{command} needs a server of k3s"))
            .why(format!("this machine is a worker of {server}"))
            .fix(format!("run it there: sudo pipeops-agent {command}")))
    }

    /// The signed index of k3s, as far as it was seen.
    pub fn k3s_index(&self) -> Result<IndexNote> {
        let note = files::read_if_there(&self.directory.join(INDEX_NOTE), 4096)?;
        // A broken note is as none: the signature and the end of the index stay.
        let note = note.and_then(|content| serde_json::from_slice(&content).ok());
        Ok(note.unwrap_or_default())
    }

    /// Records that this index was seen: an older one is refused from now on.
    pub fn k3s_index_seen(&self, note: IndexNote) -> Result<()> {
        let _lock = self.open()?;
        let note = IndexNote {
            sequence: remembered(note.sequence, now()),
            ..note
        };
        let text = serde_json::to_vec(&note).map_err(|error| {
            Error::new("cannot write down which index of k3s was seen").because(&error)
        })?;
        files::replace(&self.directory.join(INDEX_NOTE), &text, files::PRIVATE)
    }

    /// The version of the installed program.
    pub fn k3s_version(&self) -> Option<Version> {
        let ended = exec::run(self.system.root(), &[BINARY, "--version"], Limits::SHORT).ok()?;
        k3s::version_in(&ended.stdout)
    }

    /// A path in the keeper's own directory, as the machine has it.
    fn own(&self, name: &str) -> String {
        let below = self.directory.strip_prefix(self.system.root());
        let below = below.unwrap_or(&self.directory);
        format!("/{}/{name}", below.display())
    }

    fn managed(&self) -> Result<Option<Managed>> {
        let path = self.directory.join(NOTE);
        let Some(content) = files::read_if_there(&path, 64 * 1024)? else {
            return Ok(None);
        };
        let note = serde_json::from_slice(&content).map_err(|error| {
            Error::new(format!("cannot understand {}", path.display()))
                .because(&error)
                .fix("it was written by a newer version, or is damaged: move it away, then: sudo pipeops-agent k3s adopt")
        })?;
        Ok(Some(note))
    }

    fn data_dir(&self, note: Option<&Managed>) -> String {
        let found = || self.system.k3s_value("data-dir", "K3S_DATA_DIR");
        let usual = || k3s::DATA_DIR.to_owned();
        note.map_or_else(
            || found().unwrap_or_else(usual),
            |note| note.data_dir.clone(),
        )
    }

    /// Writes a change of these steps down and carries it out.
    fn begin_steps(
        &self,
        journal: &LockedJournal,
        record: Record,
        steps: Vec<Step>,
        within: Duration,
    ) -> Result<Done> {
        let acts = steps
            .into_iter()
            .map(|step| self.system.act_of(step, within));
        let acts = acts.collect::<Result<Vec<_>>>()?;
        self.begin(journal, record, acts)
    }
}

/// Error of a change that findings block.
fn refuse(cannot: &str, refused: &[Finding]) -> Option<Error> {
    let (first, others) = refused.split_first()?;
    let error = Error::new(cannot).why(first.what.clone()).fix(format!(
        "{}; or continue anyway: --ignore {}",
        first.fix, first.id
    ));
    Some(match others.len() {
        0 => error,
        more => error.why(format!("and {more} more: see --dry-run")),
    })
}

/// The note that k3s is managed, in the keeper's directory.
const NOTE: &str = "k3s.managed";
/// The note about the signed index, in the same place.
const INDEX_NOTE: &str = "k3s.index";

fn note_text(note: &Managed) -> Result<String> {
    serde_json::to_string_pretty(note)
        .map_err(|error| Error::new("cannot write down that k3s is managed").because(&error))
}

impl System {
    /// Entries of a data directory.
    fn data_entries(&self, data_dir: &str) -> data::Entries {
        data::entries(data_dir, &|folder| self.list(folder, ""))
    }

    /// Part of a cluster that the k3s of this machine is.
    pub(super) fn role(&self) -> Role {
        let worker = Role::Worker;
        let marks = [
            worker.unit_path(),
            worker.init_script(),
            worker.uninstall_script(),
        ];
        let server = [Role::Server.unit_path(), Role::Server.init_script()];
        let is_there = |path: &&str| self.is_there(path);
        // Of a server that was a worker once.
        if marks.iter().any(is_there) && !server.iter().any(is_there) {
            Role::Worker
        } else {
            Role::Server
        }
    }

    /// Returns whether k3s starts with this machine.
    fn starts_at_boot(&self) -> Result<bool> {
        Ok(self.is_there(&plan::enabled_path(self.init()?, self.role())))
    }

    /// The service manager of this machine.
    fn init(&self) -> Result<Init> {
        if self.is_there("/run/systemd/system") {
            return Ok(Init::Systemd);
        }
        if self.is_there("/run/openrc") && self.has("rc-service") {
            return Ok(Init::OpenRc);
        }
        Err(Error::new("k3s cannot be managed here")
            .why("this machine runs neither systemd nor OpenRC")
            .fix("start k3s by hand, and let the agent connect to it by its kubeconfig"))
    }
}

/// An act in words, for whoever waits for it.
pub(super) fn describe_act(act: &Act) -> Option<String> {
    describe::act(act)
}

/// Returns whether a change is one of k3s, which a sandbox cannot carry out.
pub(super) fn is_k3s(record: &Record) -> bool {
    ["k3s.", "node."]
        .iter()
        .any(|begin| record.check.starts_with(begin))
}

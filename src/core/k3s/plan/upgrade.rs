//! Upgrade of k3s, with a way back.

use super::{
    kept_from_boot,
    node::{KUBECTL, no_lease},
    resume::{no_resume, resume},
    start, started_again, stop,
};
use crate::core::k3s::{
    BINARY, Role, Version,
    data::kept,
    servers::{Datastore, brings_new_etcd},
    step::{Drain, Replaced, Staged, Step, When, copy, run},
    texts::Init,
};

/// Kind of an upgrade.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// Both versions read the same datastore.
    Patch,
    /// The old version does not read what the new one wrote.
    Minor,
}

/// An archive of images of an upgrade.
#[derive(Clone, Debug)]
pub struct Image {
    pub name: String,
    /// The checked copy.
    pub staged: Staged,
    /// True if one of that name is there already.
    pub is_there: bool,
}

/// Parts of an upgrade.
#[derive(Clone, Debug)]
pub struct Upgrade {
    /// Service manager.
    pub init: Init,
    /// Part of a cluster.
    pub role: Role,
    /// Path of this program.
    pub program: String,
    /// Data directory.
    pub data_dir: String,
    /// Name of the node.
    pub node: String,
    /// True if k3s starts at boot.
    pub is_enabled: bool,
    /// Version of now.
    pub from: Version,
    /// Version of then.
    pub to: Version,
    /// Step between them.
    pub kind: Kind,
    /// The new program.
    pub binary: Staged,
    /// Copy of the old program.
    pub before: Staged,
    /// Archives of images.
    pub images: Vec<Image>,
    /// Number of servers; 0 where the cluster does not say it.
    pub servers: usize,
    /// Datastore of a server.
    pub datastore: Datastore,
    /// Eviction of the Pods before k3s stops; `None`: they stay, and may restart.
    pub drain: Option<Drain>,
}

impl Upgrade {
    /// Returns whether the old version may not read what the new one writes.
    pub fn changes_datastore(&self) -> bool {
        let has_etcd = self.datastore == Datastore::Etcd;
        self.role == Role::Server
            && (self.kind == Kind::Minor || (has_etcd && brings_new_etcd(self.from, self.to)))
    }

    /// Returns whether a copy of the datastore is kept for the undo. That of several servers is no
    /// single one's to put back.
    pub fn keeps_datastore(&self) -> bool {
        let is_alone = match self.datastore {
            Datastore::Sqlite => true,
            Datastore::Etcd => self.servers == 1,
            Datastore::Elsewhere => false,
        };
        self.changes_datastore() && is_alone
    }
}

/// The steps of an upgrade. Undone from the end, the old version runs; after a minor version with
/// the datastore that it left.
pub fn upgrade(wanted: &Upgrade) -> Vec<Step> {
    let [_, _, before, _] = kept(&wanted.data_dir);
    let ready = |version: Version, when: When| Step::Ready {
        node: wanted.node.clone(),
        version: Some(version),
        when,
    };
    let directory = |path: &str| Step::Directory {
        path: path.to_owned(),
    };
    let mut steps = resume(wanted.init, &wanted.program, &wanted.data_dir);
    if wanted.drain.is_some() {
        // Undone last, when the old version answers again.
        steps.push(Step::Cordon {
            node: wanted.node.clone(),
        });
    }
    let is_one_of_many = wanted.role == Role::Server && wanted.servers > 1;
    if is_one_of_many {
        steps.push(run("", &no_lease(&wanted.node)));
    }
    steps.push(ready(wanted.from, When::Back));
    steps.push(run("", &start(wanted.init, wanted.role)));
    steps.extend(new_images(wanted));
    steps.extend(wanted.drain.iter().map(|drain| Step::Drain {
        node: wanted.node.clone(),
        drain: drain.clone(),
    }));
    let (init, role) = (wanted.init, wanted.role);
    let stop = stop(init, role);
    steps.extend(kept_from_boot(init, role, wanted.is_enabled));
    steps.push(run(&stop, ""));
    if wanted.keeps_datastore() {
        let name = match wanted.datastore {
            Datastore::Sqlite | Datastore::Elsewhere => "state.db",
            Datastore::Etcd => "etcd",
        };
        steps.push(directory(&before));
        steps.push(Step::Datastore {
            path: format!("{}/server/db/{name}", wanted.data_dir),
            copy: format!("{before}/{name}"),
        });
    }
    steps.push(Step::Copy {
        from: wanted.binary.path.clone(),
        path: BINARY.to_owned(),
        sha256: wanted.binary.sha256.clone(),
        bytes: wanted.binary.bytes,
        mode: 0o755,
        before: Some(Replaced {
            copy: wanted.before.clone(),
            mode: 0o755,
        }),
    });
    steps.extend(started_again(init, role, &stop, wanted.is_enabled));
    steps.push(ready(wanted.to, When::Forth));
    if wanted.drain.is_some() {
        steps.push(run(&format!("{KUBECTL} uncordon {}", wanted.node), ""));
    }
    if is_one_of_many {
        steps.push(run(&no_lease(&wanted.node), ""));
    }
    steps.extend(no_resume(wanted.init));
    steps
}

/// Archives of images take the place of those of the same names.
pub(super) fn new_images(wanted: &Upgrade) -> Vec<Step> {
    let [_, _, _, before] = kept(&wanted.data_dir);
    let images = format!("{}/agent/images", wanted.data_dir);
    let mut steps = Vec::new();
    if !wanted.images.is_empty() {
        let directories = [&images, &before].map(|path| Step::Directory { path: path.clone() });
        steps.extend(directories);
    }
    for image in &wanted.images {
        let path = format!("{images}/{}", image.name);
        if image.is_there {
            steps.push(Step::Move {
                from: path.clone(),
                to: format!("{before}/{}", image.name),
            });
        }
        steps.push(copy(&image.staged, path, 0o600));
    }
    steps
}

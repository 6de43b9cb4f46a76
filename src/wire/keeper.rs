//! Messages on the keeper's socket, one line of JSON each way, and its records of a change on disk.
//!
//! Readers accept absent and unknown fields; an unknown verb is refused.

use std::collections::BTreeMap;

use litemap::LiteMap;
use serde::{Deserialize, Serialize};

use super::{
    backup::{BackupEntry, Copies, Volume},
    change::ChangeReport,
    json::{fields, object},
};
use crate::core::{facts::Fact, order::GatherExt as _, time::Wall};

/// The longest line, either way.
pub const LINE_BYTES_MAX: usize = 64 * 1024;

/// A request.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Ask {
    /// `inspect`, `plan`, `fix`, `undo`, `changes` or `pin`.
    pub verb: String,
    /// The check that `plan` and `fix` are about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub check: Option<String>,
    /// The change that `undo` takes back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub change: Option<String>,
    /// Digests of the images that `pin` is about: `sha256:…`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub images: Option<Vec<String>>,
}
fields!(Ask {
    verb,
    check,
    change,
    images
});

/// The answer to `pin`.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Pinned {
    /// Digests of the images that are pinned on this node, of those that were named.
    pub images: Vec<String>,
    /// Number of labels that the same request again writes.
    pub left: u64,
}
fields!(Pinned { images, left });

/// The answer to `inspect`: what was found, under the names that the doctor has for it. Never a
/// key, a token or a password.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Inspection {
    /// A text for each name; `null`: there is no such thing. What could not be read is absent.
    #[serde(serialize_with = "object")]
    pub facts: LiteMap<String, Option<String>>,
}
fields!(Inspection { facts });

impl Inspection {
    /// The same as the doctor reads it.
    pub fn by_root(self) -> BTreeMap<String, Fact> {
        let fact = |found: Option<String>| found.map_or(Fact::Missing, Fact::Text);
        let facts = self.facts.into_iter();
        facts.map(|(name, found)| (name, fact(found))).gather()
    }
}

/// The answer to `plan`: what a fix would do on this machine, now.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Plan {
    pub check: String,
    /// True if anything would be done at all; where not, `does` says why.
    pub is_needed: bool,
    /// Description of the change.
    pub does: String,
    /// Description of what it leaves alone.
    pub leaves: String,
    /// Description of the undo.
    pub undo: String,
    /// Task that remains for a person.
    pub remains: Option<String>,
}
fields!(Plan {
    check,
    is_needed,
    does,
    leaves,
    undo,
    remains
});

/// The answer to `fix` and `undo`.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Done {
    /// The change; `None` where there was nothing to do.
    pub change: Option<String>,
    /// `done`, `undone` or `failed`.
    pub outcome: String,
    /// Result, or the reason of a failure.
    pub sentence: String,
    /// The command that takes it back; `None` where there is nothing to take back.
    pub undo: Option<String>,
    /// Task that remains for a person: a reboot.
    pub remains: Option<String>,
}
fields!(Done {
    change,
    outcome,
    sentence,
    undo,
    remains
});

/// A change as the keeper keeps it: one file each, written before the first effect and after every
/// step.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Record {
    /// Its place in the order of changes, from 1.
    pub number: u64,
    /// The check that it repairs.
    pub check: String,
    /// Requester.
    pub who: String,
    /// Time when it began, in milliseconds since 1970.
    pub at_ms: i64,
    /// Description of the change, for people.
    pub does: String,
    /// Task that remains for a person.
    pub remains: Option<String>,
    /// Acts in order; undone in reverse order.
    pub acts: Vec<Act>,
    /// State of each act that was begun: the words of [`crate::core::journal::StepState`].
    pub steps: Vec<String>,
    /// Requester of the undo, if any.
    pub undone_by: Option<String>,
    /// Reason why it failed.
    pub why: Option<String>,
    /// Outcome: the words of [`crate::core::journal::Outcome`]. `None` while it is being done or
    /// undone.
    pub outcome: Option<String>,
    /// True if it cannot be undone: a step that fails ends it, and the whole change is repeated.
    #[serde(default)]
    pub is_one_way: bool,
    /// Command that takes it back in place of `undo`, where that is another one.
    #[serde(default)]
    pub opposite: Option<String>,
    /// Condition awaited after the last act of a repair, and its start; the change is done
    /// otherwise, and blocks nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<String>,
}

/// One thing that is done. All paths are absolute, and below the keeper's root.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Act {
    /// A directory is made; undone where it is empty.
    Directory { path: String },
    /// A file gets a content.
    File {
        path: String,
        /// The whole new content.
        content: String,
        /// Permissions, as in chmod.
        mode: u32,
        /// Previous content; `None`: there was none.
        before: Option<Before>,
    },
    /// A value of the kernel is set, below `/proc/sys`.
    Value {
        path: String,
        /// Previous content.
        before: String,
        /// New content.
        after: String,
    },
    /// Programs are run, which may be done twice.
    Run {
        /// Command to run; empty: none.
        forth: Vec<String>,
        /// Command that undoes it; empty: none.
        back: Vec<String>,
        /// Proof that `forth` worked.
        seen: Option<Expectation>,
    },
    /// A file that was checked is copied to its place.
    Copy {
        /// The checked copy, in a directory of root's.
        from: String,
        path: String,
        /// SHA-256 of it, in hexadecimal.
        sha256: String,
        /// Permissions, as in chmod.
        mode: u32,
        /// Previous file; `None`: there was none.
        before: Option<Earlier>,
    },
    /// A symbolic link is made.
    Link { path: String, target: String },
    /// A program that is started makes this, and the undo removes it with all that is in it.
    Made { path: String },
    /// The node of k3s is waited for.
    Ready {
        node: String,
        /// Version that it must have; `None`: whichever.
        version: Option<String>,
        /// Seconds that it may take.
        within_s: u64,
        /// True if it is waited for while the change is undone, and not while it is done.
        is_back: bool,
    },
    /// A file or a tree is renamed.
    Move {
        /// Path.
        from: String,
        /// New path, on the same disk.
        to: String,
    },
    /// The datastore of a k3s that is stopped is kept in a copy, which the undo puts back.
    Datastore {
        path: String,
        /// Path of the copy.
        copy: String,
    },
    /// A node takes no new Pods.
    Cordon { node: String },
    /// The Pods of a node are evicted. There is no way back for a Pod.
    Drain {
        node: String,
        /// Seconds that it may take.
        within_s: u64,
        /// True if Pods go, too, that nobody starts again.
        is_forced: bool,
    },
    /// Something is removed, without what other disks hold below it. There is no way back.
    Gone {
        path: String,
        /// True if a directory stays that is not empty.
        only_empty: bool,
    },
}

/// A long file that was there before, and is kept elsewhere.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Earlier {
    /// Path of its copy.
    pub copy: String,
    /// SHA-256 of it, in hexadecimal.
    pub sha256: String,
    /// Permissions, as in chmod.
    pub mode: u32,
}

/// A file that was there before.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Before {
    /// The name of its copy in the keeper's directory.
    pub copy: String,
    /// SHA-256 of its content, in hexadecimal.
    pub sha256: String,
    /// Permissions, as in chmod.
    pub mode: u32,
    /// Its group; `None` in records of earlier versions.
    #[serde(default)]
    pub group: Option<u32>,
    /// Its extended attributes by name, in Base64: access lists, labels.
    #[serde(default)]
    pub attributes: BTreeMap<String, String>,
}

/// State that proves that a program did its work.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Expectation {
    /// This path is there.
    Path(String),
    /// This file has this text in it.
    Text(String, String),
    /// This file has this text not in it.
    NoText(String, String),
    /// This program says exactly this.
    Says(Vec<String>, String),
}

impl Record {
    /// A change without acts that nobody has begun.
    pub fn new(check: &str, who: &str, at: Wall, does: String) -> Self {
        Self {
            number: 0,
            check: check.to_owned(),
            who: who.to_owned(),
            at_ms: at.millis(),
            does,
            remains: None,
            acts: Vec::new(),
            steps: Vec::new(),
            undone_by: None,
            why: None,
            outcome: None,
            is_one_way: false,
            opposite: None,
            waits: None,
        }
    }

    /// Its id, which people type: `limits-inotify-7`.
    pub fn id(&self) -> String {
        format!("{}-{}", self.check.replace('.', "-"), self.number)
    }
}

/// Plan of a change of k3s on this machine, now.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct K3sPlan {
    /// Description of the change.
    pub does: String,
    /// Blocking findings.
    pub refused: Vec<Finding>,
    /// Findings that do not.
    pub warned: Vec<Finding>,
    /// Steps in order.
    pub steps: Vec<PlannedStep>,
    /// Bytes that are written.
    pub bytes: u64,
    /// Description of the undo.
    pub undo: String,
    /// Parts that are managed from then on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub manages: Vec<String>,
    /// Files and settings that stay as they are.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unchanged: Vec<String>,
    /// Download that precedes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub download: Option<Download>,
}

/// A download that precedes a change.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Download {
    /// Address.
    pub url: String,
    /// Length; none where only the server knows it.
    pub bytes: Option<u64>,
    /// SHA-256 in hexadecimal.
    pub sha256: String,
    /// Origin of that hash.
    pub hash_of: String,
    /// File of root's that it goes to.
    pub to: String,
}

/// Something that was found before a change.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Finding {
    /// Its id, which `--ignore` takes.
    pub id: String,
    /// Observation.
    pub what: String,
    pub fix: String,
}
fields!(Finding { id, what, fix });

/// A step of a plan, for people.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct PlannedStep {
    /// The action.
    pub does: String,
    /// Its undo; empty: it needs none.
    pub undo: String,
}

/// The note that k3s is managed on this machine.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Managed {
    /// `installed` or `adopted`.
    pub how: String,
    /// Data directory.
    pub data_dir: String,
    /// Name of the node.
    pub node: String,
    /// Places of k3s that were there before it, and stay.
    pub kept: Vec<String>,
}

/// State of k3s on this machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct K3sStatus {
    /// `installed`, `adopted`, `found` (k3s is here, and not managed) or `none`.
    pub managed: String,
    /// Time of this look, in RFC 3339.
    pub at: String,
    /// Address of the server that a worker joined; none on a server.
    pub server: Option<String>,
    /// Another distribution that is here: it is recognised and not managed.
    pub other: Option<String>,
    /// Version of the program.
    pub version: Option<String>,
    /// State of its service, in the words of the service manager.
    pub service: Option<String>,
    /// Name of the node.
    pub node: Option<String>,
    /// True if the node is Ready.
    pub is_ready: bool,
    /// The reason that it is not.
    pub why: Option<String>,
    /// Data directory.
    pub data_dir: Option<String>,
    /// Kind of the datastore of a server: `SQLite`, `etcd` or `elsewhere`.
    pub datastore: Option<String>,
    /// Servers of an etcd, counted when the version was looked at; 0: nobody could count them.
    pub servers: u64,
    /// Length of the datastore, with its write-ahead log.
    pub datastore_bytes: Option<u64>,
    /// True if the datastore of a server encrypts Secrets; none: nobody knows.
    pub encrypts_secrets: Option<bool>,
    /// The certificate that ends first: its file.
    pub certificate: Option<String>,
    /// Its end, in RFC 3339.
    pub certificate_ends: Option<String>,
    /// Backups in the usual directory, the newest first.
    pub backups: Vec<BackupEntry>,
    /// Copies of them elsewhere, as the agent knows them; none if no setting asks for them, and
    /// in what root leaves for the agent.
    pub copies: Option<Copies>,
    /// Volumes on this machine, which are in no backup.
    pub volumes: Vec<Volume>,
    /// Time when version and volumes were looked at, which the watch does once an hour: RFC 3339.
    pub measured: String,
    /// Change that is under way.
    pub doing: Option<Doing>,
    /// Id of a change that was interrupted and goes on with the next start or `k3s resume`.
    pub unfinished: Option<String>,
    /// Next backup by schedule, in RFC 3339.
    pub next_backup: Option<String>,
    /// Last look of the watch, in RFC 3339; none where nobody watches.
    pub looked: Option<String>,
    /// Faults that it repairs, or that have not lasted long enough for it.
    pub open: Vec<String>,
    /// Faults that it leaves to a person.
    pub faults: Vec<Finding>,
    /// Latest changes of k3s and of this node, the newest first.
    pub changes: Vec<ChangeReport>,
}
fields!(K3sStatus {
    managed,
    at,
    server,
    other,
    version,
    service,
    node,
    is_ready,
    why,
    data_dir,
    datastore,
    servers,
    datastore_bytes,
    encrypts_secrets,
    certificate,
    certificate_ends,
    backups,
    copies,
    volumes,
    measured,
    doing,
    unfinished,
    next_backup,
    looked,
    open,
    faults,
    changes
});

/// Change of k3s that is under way.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Doing {
    /// Description of the change.
    pub does: String,
    /// Its running step; empty: it has just begun.
    pub step: String,
    /// Time when it began, in RFC 3339.
    pub since: String,
}
fields!(Doing { does, step, since });

/// An update that is carried out, on disk before and after each step.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Update {
    /// New version.
    pub version: String,
    /// SHA-256 of its program, or of its package.
    pub sha256: String,
    /// Version before it.
    pub previous: String,
    /// SHA-256 of the program, or of the package, of that one.
    pub previous_sha256: String,
    /// Kind of package that the program belongs to. None where it belongs to no package manager.
    #[serde(default)]
    pub package: Option<PackageKind>,
    /// True if that one was linked.
    pub was_linked: bool,
    /// Seconds for the new version to prove itself.
    pub within_s: u64,
    /// The step that comes next.
    pub step: UpdateStep,
    /// Starts of the service that carries it out.
    pub starts: u32,
    /// Reason why the previous version comes back.
    pub why: Option<String>,
    /// True if that is the fault of the new version.
    pub is_banned: bool,
}

/// A unit or an init script that comes with a program.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct ServiceFile {
    /// Path on the machine.
    pub path: String,
    /// Permissions, as in chmod.
    pub mode: u32,
    pub text: String,
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PackageKind {
    /// `.deb`, of dpkg.
    Deb,
    /// `.rpm`, of rpm.
    Rpm,
}

/// Step of an update.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum UpdateStep {
    /// The new program is put in place.
    Staged,
    /// The agent is started again with it.
    Switched,
    /// It must prove itself.
    Trying,
    /// It did.
    Kept,
    /// The previous program is put back.
    Returning,
    /// The agent is started again with that.
    Returned,
}

/// Everything about updates that outlives them.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct UpdateNote {
    /// Highest sequence number of a list.
    pub sequence: u64,
    /// Changes of the signing key.
    pub keys: u32,
    /// Versions that the list with that number withdraws.
    pub withdrawn: Vec<String>,
    /// Versions that failed on this machine.
    pub banned: Vec<String>,
    /// Time of the next automatic try, in milliseconds since 1970.
    pub not_before_ms: i64,
    /// The last update.
    pub last: Option<LastUpdate>,
}

/// Newest signed index of k3s that this machine has seen.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct IndexNote {
    /// Highest sequence number.
    pub sequence: u64,
    /// Changes of the signing key.
    pub keys: u32,
}

/// The last update of a machine.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct LastUpdate {
    /// The version that was tried.
    pub version: String,
    /// True if it was kept.
    pub is_kept: bool,
    /// Reason why not, or why nothing is known of it.
    pub why: Option<String>,
    /// Time of its end: RFC 3339 in UTC.
    pub at: String,
}

impl LastUpdate {
    /// The end of the update in words.
    pub fn in_words(&self) -> String {
        let Self { version, at, .. } = self;
        match (self.is_kept, self.why.as_deref()) {
            (true, None) => format!("{version} was tried and kept at {at}"),
            (true, Some(why)) => format!("{version} was tried and not judged at {at}: {why}"),
            (false, why) => {
                let why = why.unwrap_or_default();
                format!("{version} was tried and rolled back at {at}: {why}")
            }
        }
    }
}

//! Restore of a backup.

use super::{
    kept_from_boot,
    resume::{no_resume, resume},
    start, started_again,
};
use crate::core::k3s::{
    BINARY, KILLALL, Role, Version, connect,
    data::{aside, settings_aside, unpacked},
    servers::Datastore,
    step::{Replaced, Staged, Step, When, directories, file, gone, run},
    texts::Init,
};

/// Parts of a restore.
#[derive(Clone, Debug)]
pub struct Restore {
    /// Service manager.
    pub init: Init,
    /// Path of this program.
    pub program: String,
    /// Data directory.
    pub data_dir: String,
    /// Name of the node.
    pub node: String,
    /// True if k3s starts at boot.
    pub is_enabled: bool,
    /// Version of the program that is here.
    pub version: Version,
    /// Names below `server` that the backup has.
    pub items: Vec<String>,
    /// Those of them that are there.
    pub there: Vec<String>,
    /// Settings of the backup.
    pub settings: Vec<SettingsFile>,
    /// Datastore of the backup.
    pub datastore: Datastore,
    /// Options of the node that only the command line of its service has.
    pub options: Vec<String>,
}

/// A file of settings of a backup.
#[derive(Clone, Debug)]
pub struct SettingsFile {
    pub path: String,
    pub content: Content,
}

/// Content of a file of settings.
#[derive(Clone, Debug)]
pub enum Content {
    /// A short text, which the journal can hold.
    Text(String),
    /// Anything else: bytes that are no text, and what is long.
    Checked {
        /// The checked copy.
        copy: Staged,
        /// The file that it replaces; `None`: there is none.
        before: Option<Replaced>,
    },
}

/// The steps of a restore. Undone from the end, the cluster of before runs again.
pub fn restore(wanted: &Restore, is_there: &dyn Fn(&str) -> bool) -> Vec<Step> {
    let server = format!("{}/server", wanted.data_dir);
    let (aside, unpacked) = (aside(&wanted.data_dir), unpacked(&wanted.data_dir));
    let ready = |when: When| Step::Ready {
        node: wanted.node.clone(),
        version: Some(wanted.version),
        when,
    };
    let mut steps = resume(wanted.init, &wanted.program, &wanted.data_dir);
    let keeps = |settings: &SettingsFile| {
        matches!(
            settings.content,
            Content::Checked {
                before: Some(_),
                ..
            }
        )
    };
    if wanted.settings.iter().any(keeps) {
        // Its undo comes last: until then the copies are needed.
        steps.push(Step::Made {
            path: settings_aside(&wanted.data_dir),
        });
    }
    steps.push(Step::Made {
        path: unpacked.clone(),
    });
    // The cluster of before and the restored one know other accounts and keys.
    let connects = is_there(connect::unit_path(wanted.init)).then(|| connect::again(wanted.init));
    steps.extend(connects.map(|again| run("", again)));
    let (init, role) = (wanted.init, Role::Server);
    steps.extend([ready(When::Back), run("", &start(init, role))]);
    steps.extend(kept_from_boot(init, role, wanted.is_enabled));
    steps.extend([
        run(KILLALL, ""),
        Step::Directory {
            path: aside.clone(),
        },
    ]);
    if wanted.datastore == Datastore::Etcd {
        // Of the member, which is moved without the snapshots beside it.
        steps.push(Step::Directory {
            path: format!("{aside}/db"),
        });
    }
    steps.extend(wanted.there.iter().map(|item| Step::Move {
        from: format!("{server}/{item}"),
        to: format!("{aside}/{item}"),
    }));
    steps.extend(wanted.items.iter().map(|item| Step::Move {
        from: format!("{unpacked}/data/server/{item}"),
        to: format!("{server}/{item}"),
    }));
    settings(&mut steps, &wanted.settings, is_there);
    if wanted.datastore == Datastore::Etcd {
        steps.extend(reset(wanted));
    }
    steps.extend(started_again(init, role, KILLALL, wanted.is_enabled));
    steps.push(ready(When::Forth));
    steps.extend(connects.map(|again| run(again, "")));
    steps.push(gone(&unpacked));
    steps.extend(no_resume(wanted.init));
    steps
}

pub(super) fn settings(
    steps: &mut Vec<Step>,
    files: &[SettingsFile],
    is_there: &dyn Fn(&str) -> bool,
) {
    for SettingsFile { path, content } in files {
        let (above, _) = path.rsplit_once('/').unwrap_or_default();
        directories(steps, above, is_there);
        steps.push(match content {
            Content::Text(text) => file(path, text.clone(), 0o600),
            Content::Checked {
                copy: staged,
                before,
            } => Step::Copy {
                from: staged.path.clone(),
                path: path.clone(),
                sha256: staged.sha256.clone(),
                bytes: staged.bytes,
                mode: 0o600,
                before: before.clone(),
            },
        });
    }
}

/// Name of the snapshot of etcd in a backup.
pub const SNAPSHOT: &str = "data/server/db/etcd-snapshot";

/// The steps that make a cluster of one member of a snapshot, the token and the CA being there.
pub(super) fn reset(wanted: &Restore) -> [Step; 3] {
    let data_dir = &wanted.data_dir;
    let snapshot = format!("{}/{SNAPSHOT}", unpacked(data_dir));
    // An adopted k3s may have its data directory, and what its member of etcd is called and reached
    // at, from its command line only. With a bucket in its settings it would look for the snapshot
    // there.
    let command = [
        format!(
            "{BINARY} server --data-dir={data_dir} --cluster-reset --cluster-reset-restore-path={snapshot} --etcd-s3=false"
        ),
        wanted.options.join(" "),
    ];
    [
        Step::Made {
            path: format!("{data_dir}/server/db/etcd"),
        },
        // k3s refuses a second reset without a start between them; this one may be repeated.
        gone(&format!("{data_dir}/server/db/reset-flag")),
        run(command.join(" ").trim_end(), ""),
    ]
}

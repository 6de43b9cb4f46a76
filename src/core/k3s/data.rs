//! Entries of the data directory: those that k3s makes, which a removal takes, and those of others,
//! which it leaves.
//!
//! `texts/uninstall.sh` has the same list.

/// Entries that are k3s' own with all that is in them.
pub const WHOLE: [&str; 3] = ["agent", "server", "storage"];
/// Directory that k3s unpacks its programs into. Its name is a common one: only what k3s unpacks is
/// k3s' own.
pub const PROGRAMS: &str = "data";
/// Entries of `agent` and `server` that k3s makes, or reads where they are there before it.
const KNOWN: [&str; 16] = [
    "agent-token",
    "containerd",
    "cred",
    "db",
    "etc",
    "images",
    "kine.sock",
    "kubelet",
    "manifests",
    "node-token",
    "pod-manifests",
    "registry",
    "static",
    "stargz",
    "tls",
    "token",
];
/// Endings of the files there.
const ENDINGS: [&str; 4] = [".crt", ".key", ".kubeconfig", ".json"];

/// Directories of what the undo of an upgrade or a restore needs, below the data directory.
pub fn kept(data_dir: &str) -> [String; 4] {
    [
        aside(data_dir),
        settings_aside(data_dir),
        format!("{data_dir}/server/before-upgrade"),
        format!("{data_dir}/agent/images-before"),
    ]
}

/// Directory of the cluster that a restore replaced.
pub fn aside(data_dir: &str) -> String {
    format!("{data_dir}/server/before-restore")
}

/// Directory of the settings that a restore replaced, as far as the journal does not hold them.
pub fn settings_aside(data_dir: &str) -> String {
    format!("{data_dir}/server/settings-before-restore")
}

/// Directory of the files of a backup that is being restored.
pub fn unpacked(data_dir: &str) -> String {
    format!("{data_dir}/server/restoring")
}

/// The entries of a data directory, by who made them.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Entries {
    /// Paths of k3s.
    pub own: Vec<String>,
    /// Paths of others.
    pub others: Vec<String>,
}

/// Sorts the entries of a data directory; `list` gives the paths in a directory.
pub fn entries(data_dir: &str, list: &dyn Fn(&str) -> Vec<String>) -> Entries {
    let mut found = Entries::default();
    for path in list(data_dir) {
        let name = name(&path);
        if name == PROGRAMS {
            let (own, others) = list(&path)
                .into_iter()
                .partition::<Vec<_>, _>(|path| is_unpacked(self::name(path)));
            found.own.extend(own);
            found.others.extend(others);
        } else if WHOLE.contains(&name) {
            found.own.push(path);
        } else if name != "lost+found" {
            found.others.push(path);
        }
    }
    found
}

/// The first directory of a data directory that has a name of k3s and something in it that k3s does
/// not make: a removal would take it.
pub fn taken(data_dir: &str, list: &dyn Fn(&str) -> Vec<String>) -> Option<String> {
    let folders = WHOLE.map(|name| format!("{data_dir}/{name}"));
    let (kept, unpacked) = (kept(data_dir), unpacked(data_dir));
    let is_ours = |path: &String| kept.contains(path) || *path == unpacked;
    folders.into_iter().find(|folder| {
        let is_volumes = folder.ends_with("/storage");
        list(folder).iter().any(|path| {
            let name = name(path);
            let is_known = KNOWN.contains(&name)
                || ENDINGS.iter().any(|end| name.ends_with(end))
                || is_ours(path);
            // The provisioner names a volume by its claim.
            !(if is_volumes {
                name.starts_with("pvc-")
            } else {
                is_known
            })
        })
    })
}

/// Returns whether k3s makes that name in the directory of its programs: one directory for each
/// version, named by a SHA-256, with links to it.
fn is_unpacked(name: &str) -> bool {
    let hash = name.strip_suffix("-tmp").unwrap_or(name);
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let is_hash = hash.len() == 64 && hash.bytes().all(is_digit);
    is_hash || ["current", "previous", "cni", ".lock"].contains(&name)
}

fn name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(paths: &[&str]) -> (Entries, Option<String>) {
        let list = |folder: &str| {
            let inner = paths.iter().filter_map(|path| {
                let (name, _) = path
                    .strip_prefix(folder)?
                    .strip_prefix('/')?
                    .split_once('/')?;
                Some(format!("{folder}/{name}"))
            });
            let mut inner: Vec<_> = inner.collect();
            inner.dedup();
            inner
        };
        (entries("/d", &list), taken("/d", &list))
    }

    #[test]
    fn what_k3s_does_not_make_is_of_others() {
        let program = format!("/d/data/{}/", "0a".repeat(32));
        let (found, taken) = sorted(&[
            "/d/agent/images/",
            "/d/data/current/",
            "/d/data/films/",
            &program,
            "/d/lost+found/",
            "/d/photos/",
            "/d/server/db/",
            "/d/storage/pvc-1_shop_db/",
        ]);
        let program = program.trim_end_matches('/').to_owned();
        assert_eq!(found.others, ["/d/data/films", "/d/photos"]);
        let own = [
            "/d/agent",
            "/d/data/current",
            &program,
            "/d/server",
            "/d/storage",
        ];
        assert_eq!(found.own, own);
        assert_eq!(taken, None);
    }

    #[test]
    fn a_directory_of_others_with_a_name_of_k3s_is_noticed() {
        for (path, wanted) in [
            ("/d/server/minecraft/", Some("/d/server")),
            ("/d/storage/films/", Some("/d/storage")),
            ("/d/agent/notes/", Some("/d/agent")),
            ("/d/server/manifests/", None),
            ("/d/server/settings-before-restore/", None),
            ("/d/server/restoring/", None),
            ("/d/agent/images-before/", None),
            ("/d/agent/client-kubelet.crt/", None),
            ("/d/films/", None),
        ] {
            assert_eq!(sorted(&[path]).1.as_deref(), wanted, "{path}");
        }
    }
}

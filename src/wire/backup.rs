//! Backups of k3s: the manifest in the archive, and the reports about them and their copies.

use serde::{Deserialize, Serialize};

use super::json::fields;

/// Form of the manifest that this program writes. A later one is not read.
pub const FORMAT: u32 = 1;
/// Name of the manifest, which is the first file of the archive.
pub const MANIFEST: &str = "manifest.json";
/// The longest manifest: some hundred files.
pub const MANIFEST_BYTES_MAX: u64 = 1 << 20;

/// Contents of a backup.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Manifest {
    pub format: u32,
    /// Version of k3s.
    pub version: String,
    /// Name of the node.
    pub node: String,
    /// Time at which it was taken, in milliseconds since 1970.
    pub at_ms: i64,
    /// Data directory.
    pub data_dir: String,
    /// Last revision in the datastore.
    pub revision: i64,
    /// Settings that the datastore depends on, as k3s had them: lines of YAML. Those of its command
    /// line and of an installation are in no file of the backup.
    #[serde(default)]
    pub settings: Vec<String>,
    /// The same by the files of the backup alone, with the address of the node where they name one.
    #[serde(default)]
    pub file_settings: Vec<String>,
    /// Files in the order of the archive.
    pub files: Vec<Packed>,
    /// Volumes on this machine, which are not in the backup.
    pub volumes: Vec<Volume>,
}

/// A file of a backup.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Packed {
    /// Name in the archive.
    pub name: String,
    /// SHA-256, in hexadecimal.
    pub sha256: String,
    /// Length.
    pub bytes: u64,
    /// Permissions.
    pub mode: u32,
}

/// Data of a persistent volume, in a directory of this machine.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Volume {
    /// Directory.
    pub path: String,
    /// Bytes on disk.
    pub bytes: u64,
}
fields!(Volume { path, bytes });

/// Result of `k3s backup`.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct BackupReport {
    /// Path of the archive.
    pub file: String,
    /// Length.
    pub bytes: u64,
    /// Length of the datastore in it.
    pub datastore_bytes: u64,
    /// Version of k3s.
    pub version: String,
    /// Name of the node.
    pub node: String,
    /// Last revision in the datastore.
    pub revision: i64,
    /// Number of files in it.
    pub files: usize,
    /// Recipients that it is encrypted to; none: it is not encrypted.
    pub recipients: Vec<String>,
    /// Volumes that are not in it.
    pub volumes: Vec<Volume>,
    /// Older backups that were removed.
    pub removed: Vec<String>,
}

/// A backup that is there.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct BackupEntry {
    /// Name, which `k3s restore` takes.
    pub name: String,
    /// Time at which it was taken, in RFC 3339.
    pub at: String,
    /// Length.
    pub bytes: u64,
    /// True if only the identity of a recipient can read it.
    pub is_encrypted: bool,
    /// Version of k3s; `None`: it is encrypted, or its manifest cannot be read.
    pub version: Option<String>,
}
fields!(BackupEntry {
    name,
    at,
    bytes,
    is_encrypted,
    version
});

impl BackupEntry {
    /// Its version, or the reason that there is none.
    pub fn word(&self) -> &str {
        match &self.version {
            Some(version) => version,
            None if self.is_encrypted => "encrypted",
            None => "damaged",
        }
    }
}

/// Copies of backups in a bucket.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Copies {
    /// Address of the bucket.
    pub at: String,
    /// Name of the newest backup there; `null`: there is none, or the bucket was not listed yet.
    pub newest: Option<String>,
    /// Time of that backup: RFC 3339 in UTC.
    pub newest_at: Option<String>,
    /// Number of copies of this node.
    pub count: u64,
    /// Length of all of them.
    pub bytes: u64,
    /// True if the server lets none be removed, so that older ones stay.
    pub keeps_all: bool,
    /// Time when the bucket was listed last: RFC 3339 in UTC.
    pub checked_at: Option<String>,
    /// Work that is under way.
    pub doing: Option<String>,
    /// Reason why the last try failed.
    pub why: Option<String>,
}
fields!(Copies {
    at,
    newest,
    newest_at,
    count,
    bytes,
    keeps_all,
    checked_at,
    doing,
    why
});

//! k3s of this machine: `/api/v1/k3s`.

use serde::Serialize;

use crate::wire::json::fields;

/// Path of it.
pub const K3S_PATH: &str = "/api/v1/k3s";

/// k3s of this machine, as far as the agent knows it.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct K3sReport {
    /// Copies of backups elsewhere; `null`: no setting asks for them.
    pub copies: Option<Copies>,
}
fields!(K3sReport { copies });

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

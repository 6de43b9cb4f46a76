//! Apps: manifests that are read and judged, the inventory of what is ours, and what a change has
//! to do.
//!
//! Nothing here knows values: an inventory holds names and UIDs, a plan refers to manifests by
//! their place.

mod adoption;
mod autoscaling;
mod charts;
mod difference;
mod digests;
mod discovery;
mod drift;
mod git_host;
mod kinds;
mod managed_fields;
mod manifests;
mod overlay;
mod ownership;
mod record;
pub mod repository;
mod simple;
mod staged;
pub mod suggest;
mod values;

pub use adoption::{adopted, lost};
pub use autoscaling::{
    HOLDER, REPLICAS, handed_over, is_autoscaled, owns_replicas, without_replicas,
};
pub use charts::account_of_chart;
pub use difference::{Difference, differences};
pub use digests::{Need, digests, images_to_keep, needs, pod_of, unpinned, workload};
pub use discovery::{CREATE_FIRST, discovered};
pub use drift::{Contested, keep_left, last_changed_by, our_fields};
pub use git_host::GitHost;
pub use kinds::{CHARTS, GATEWAY, JOB, Kind, granted_apart, is_custom_group, kind_of, read_for};
pub use managed_fields::managed_fields;
#[cfg(any(test, feature = "internals"))]
pub use manifests::parse;
pub use manifests::{
    Customs, Manifest, Problem, common_namespace, joined, judged, not_built_in, objects,
};
pub use overlay::{Overlay, containers, place};
pub use ownership::{Head, Ownership, as_applied, denied};
pub use record::{
    App, InventoryEntry, LastChange, Owner, Revision, RevisionOutcome, Source, Stage, Upstream,
};
pub use simple::{Simple, deployed};
pub use staged::{Staged, staged};
pub use values::{secret_names, take_values, values};

/// Objects of one app.
pub const OBJECTS_MAX: usize = 1_000;

/// The field manager of all writes.
pub const MANAGER: &str = "pipeops-apps";

/// Annotation with the nonce under which an object was created. It tells ours from others where a
/// power cut came between the write and the note of its UID: until the object exists, the nonce
/// stands in the record alone, which no other account reads.
pub const NONCE: &str = "pipeops.io/created-by";

/// Returns whether a name can be that of an app: a DNS label of 40 characters at most, because
/// Secrets are named by it.
pub fn is_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=40).contains(&name.len())
        && name.bytes().all(is_plain)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

/// Reason why nothing is deployed into a namespace, whoever asks.
pub fn refused_namespace(namespace: &str, own: &str) -> Option<String> {
    (namespace.starts_with("kube-") || namespace == own)
        .then(|| format!("{namespace} belongs to the cluster or to the agent"))
}

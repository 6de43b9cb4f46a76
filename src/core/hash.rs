//! Hash of an id, for maps that remember many of them.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

/// Hash that stands in for an id, in eight bytes.
pub fn id_hash(id: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    hasher.finish()
}

//! What people are shown, view by view: each asks whoever knows, makes one shape of the local API of it and keeps nothing.

pub mod cluster;
pub mod diagnosis;
pub mod figures;
pub mod happenings;
pub mod kept;
pub mod series;

use crate::store::Failure;

/// What a view could not find out, in words.
pub type Answer<T> = Result<T, String>;

/// Why the store says nothing.
fn silent(failure: &Failure) -> String {
    failure.to_string()
}

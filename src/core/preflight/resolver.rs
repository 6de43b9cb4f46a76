//! Checks of this part.

use super::Check;
/// The table.
pub(super) const CHECKS: &[Check] = &[];

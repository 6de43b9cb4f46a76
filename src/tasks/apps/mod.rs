//! Apps: what they run and whether that works.

pub mod observe;

//! Introductions: short loops that introduce a machine of `core` to one or more parties.

pub mod proxy;

//! Rights in the cluster: the manifest, the account that calls run under, its tokens.

pub mod credential;
pub mod delegate;
pub mod manifest;
pub mod revocation;

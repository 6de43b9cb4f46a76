//! Adapter for the Kubernetes API: client, watches, streams, services. The only module that holds
//! Kubernetes credentials.
//!
//! Everything goes out through [`Client`]: the agent's own typed calls and, with [`Client::send`]
//! and [`Client::upgrade`], proxied calls, which never use the certificate of the kubeconfig. It
//! does not decide what is permitted.

mod access;
mod calls;
mod client;
pub mod counts;
mod error;
mod forward;
pub mod gate;
mod heard;
pub mod join;
pub mod kubeconfig;
mod pool;
pub mod rbac;
pub mod services;
pub mod socket;
mod upgraded;
pub mod watch;

pub use crate::net::{Body, Bytes};
pub use access::Settings;
pub use calls::{Detail, Patch, Propagation, query_escaped};
pub use client::{Client, Identity, strip_hop_by_hop};
pub use error::{Error, START_K3S};
pub use heard::Heard;
pub use upgraded::{Upgraded, UpgradedStream};

//! The main job: stock kubectl and curl through control plane, link and agent to a real Kubernetes,
//! and what a cut does to them.
//!
//! A case runs in every form of request that can carry it: over streams, and in JSON.

mod attach;
mod bench;
mod cancel;
mod copies;
mod cuts;
mod exec;
mod forward;
mod held;
mod hostile;
mod outages;
mod reads;
pub(crate) mod running;
mod services;
mod takeover;

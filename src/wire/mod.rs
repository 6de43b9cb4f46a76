//! Serialized types: data that crosses a border. Conversions are here, so that the types of `core`
//! are never serializable.

pub mod api;
pub mod apps;
pub mod backup;
pub mod certificate;
pub mod change;
pub mod control;
pub mod edge;
pub mod exposition;
pub mod handshake;
pub mod json;
pub mod keeper;
pub mod keys;
pub mod kube;
pub mod lease;
pub mod notify;
pub mod record;
pub mod remote_write;
pub mod rollout;
pub mod s3;
pub mod state;
pub mod stream;

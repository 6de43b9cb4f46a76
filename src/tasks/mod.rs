//! Tasks: short loops that join a decision of `core` to one or more outside systems, grouped by
//! the flow of data that they serve.

pub mod apps;
pub mod audit;
pub mod dashboard;
pub mod lease_gate;
pub mod link;
pub mod machine;
pub mod proxy;
pub mod rights;
pub mod state;
pub mod stream;
pub mod telemetry;

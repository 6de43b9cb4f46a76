//! Answers of the local API: handlers, views, login, live stream, metrics.

pub mod handlers;
pub mod login;
pub mod metrics;
pub mod status;
pub mod stream;
pub mod views;

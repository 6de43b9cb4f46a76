//! Answers of the local API: handlers, views, login, live stream, metrics.

use serde::de::{DeserializeOwned, Error as _};

pub mod handlers;
pub mod login;
pub mod metrics;
pub mod status;
pub mod stream;
pub mod views;

/// Reads a body that must be an object: serde takes an array for a struct as well.
fn object<T: DeserializeOwned>(body: &[u8]) -> serde_json::Result<T> {
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(serde_json::Error::custom("it is not an object"));
    }
    serde_json::from_slice(body)
}

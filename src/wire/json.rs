//! Text that is JSON. What is in bytes is read by [`serde_json::from_slice`] itself.

use serde::Deserialize;

/// Reads a text by the reader of bytes: with a reader of texts beside it, the code of every shape would be in the program twice.
///
/// # Errors
/// What [`serde_json`] says of a text that is not of this shape.
pub fn read<'a, T: Deserialize<'a>>(text: &'a str) -> serde_json::Result<T> {
    serde_json::from_slice(text.as_bytes())
}

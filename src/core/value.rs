//! Values of JSON: fields by their pointers.

use serde_json::Value;

/// A text in a value; empty where there is none.
pub fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

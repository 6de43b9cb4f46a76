//! Managed fields of an object: which field manager set what.

use serde_json::Value;

/// Entries of the managed fields of an object.
pub fn managed_fields(object: &Value) -> &[Value] {
    let fields = object.pointer("/metadata/managedFields");
    fields
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default()
}

/// Text of a field of an entry; empty where there is none.
pub(super) fn field_text<'a>(entry: &'a Value, name: &str) -> &'a str {
    entry.get(name).and_then(Value::as_str).unwrap_or_default()
}

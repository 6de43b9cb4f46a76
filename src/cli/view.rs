//! Responses of the agent, read by names. A missing field is absent, never invented.
//!
//! The types of `wire::api` are not used: an agent of another version may have more or fewer
//! fields, and derived readers for ten types are 60 KB of program. Tests compare these names with
//! those types.

use serde_json::Value;

/// A value somewhere in an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct View<'a>(&'a Value);

impl<'a> View<'a> {
    /// The whole answer.
    pub(super) fn new(value: &'a Value) -> Self {
        Self(value)
    }

    /// The member of this name.
    pub(super) fn at(self, name: &str) -> Self {
        Self(self.0.get(name).unwrap_or(&Value::Null))
    }

    /// The text of this name; empty if there is none.
    pub(super) fn text(self, name: &str) -> &'a str {
        self.maybe(name).unwrap_or_default()
    }

    /// The text of this name.
    pub(super) fn maybe(self, name: &str) -> Option<&'a str> {
        self.0.get(name)?.as_str()
    }

    /// The count of this name.
    pub(super) fn count(self, name: &str) -> Option<u64> {
        self.0.get(name)?.as_u64()
    }

    /// The number of this name.
    pub(super) fn number(self, name: &str) -> Option<f64> {
        self.0.get(name)?.as_f64()
    }

    /// The flag of this name; `None` if it is absent.
    pub(super) fn flag(self, name: &str) -> Option<bool> {
        self.0.get(name)?.as_bool()
    }

    /// Every part of the list of this name.
    pub(super) fn list(self, name: &str) -> impl DoubleEndedIterator<Item = View<'a>> + Clone {
        let list = self.0.get(name).and_then(Value::as_array);
        list.map_or(&[][..], Vec::as_slice).iter().map(View)
    }

    /// The JSON itself.
    pub(super) fn json(self) -> &'a Value {
        self.0
    }
}

//! Queries on the samples, and their results.

use std::time::Duration;

use super::Series;
use crate::core::time::Wall;

/// A question.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Query {
    /// Selected series.
    pub select: Select,
    /// The first moment.
    pub from: Wall,
    /// The moment after the last.
    pub to: Wall,
    /// Minimum distance between values of the result; `None`: as fine as stored.
    pub step: Option<Duration>,
}

/// Selection of series.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Select {
    All,
    /// Those of a metric, by its name, that have all of these labels.
    Matching(String, Vec<(String, String)>),
    /// Those of these keys, written as [`super::Key`] is, whatever their digits.
    Keys(Vec<String>),
}

/// A series that has values.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Known {
    /// Its number in this database, for as long as it has samples there.
    pub number: u32,
    /// Name and labels.
    pub series: Series,
}

/// The values of one series, the oldest first.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Line {
    /// The series.
    pub known: Known,
    /// Values. Moments without a value are left out.
    pub aggregates: Vec<Aggregate>,
}

/// Values of a series at a moment, or over a step that begins with it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Aggregate {
    /// The moment, or the beginning of the step.
    pub at: Wall,
    /// The smallest value.
    pub min: i64,
    /// The mean, rounded to the nearest.
    pub mean: i64,
    /// The largest value.
    pub max: i64,
    /// Number of values.
    pub count: u32,
}

/// Query for the list of series: live ones first, then those that ended, each by key.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Search {
    /// A part of the key, in lower case; empty: all.
    pub contains: String,
    /// The beginning of names that are left out; empty: none.
    pub without: &'static str,
    /// Only those behind this one.
    pub after: Option<Listed>,
    /// Maximum number of series in the answer.
    pub limit: usize,
}

/// A series of the list.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Listed {
    /// True if it is not measured any more.
    pub has_ended: bool,
    /// Name and labels, as [`super::Key`] writes them.
    pub key: String,
}

/// A part of the list of series.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Page {
    pub series: Vec<Listed>,
    /// Number of matches on all pages.
    pub total: usize,
    /// True if more follow.
    pub has_more: bool,
}

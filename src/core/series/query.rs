//! What can be asked of the samples, and what is answered.

use std::time::Duration;

use super::Series;
use crate::core::time::Wall;

/// A question.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Query {
    /// Which series.
    pub select: Select,
    /// The first moment.
    pub from: Wall,
    /// The moment after the last.
    pub to: Wall,
    /// How far apart the answer's values are, at least; `None`: as fine as they were kept.
    pub step: Option<Duration>,
}

/// Which series are meant.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Select {
    /// All.
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
    /// What it is called.
    pub series: Series,
}

/// The values of one series, the oldest first.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Line {
    /// Which.
    pub known: Known,
    /// What was measured. A moment without a value is not among them.
    pub spots: Vec<Spot>,
}

/// What a series was at a moment, or over a step that begins with it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Spot {
    /// The moment, or the beginning of the step.
    pub at: Wall,
    /// The smallest value.
    pub min: i64,
    /// The mean, rounded to the nearest.
    pub mean: i64,
    /// The largest value.
    pub max: i64,
    /// How many values there were.
    pub count: u32,
}

/// A question for the list of series: live ones first, then those that ended, each by key.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Search {
    /// A part of the key, in small letters; empty: all.
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
    /// Whether it is not measured any more.
    pub has_ended: bool,
    /// Name and labels, as [`super::Key`] writes them.
    pub key: String,
}

/// A part of the list of series.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Page {
    /// The series.
    pub series: Vec<Listed>,
    /// How many match the question, with those of other pages.
    pub total: usize,
    /// Whether more follow.
    pub has_more: bool,
}

//! Samples for charts: columns of numbers with their times.
//!
//! Times of charts are whole seconds since 1970, unlike the times of everything else.

use serde::{Deserialize, Serialize};

/// Series that have samples: those that are measured now, then those that ended.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct SeriesList {
    /// By key, the live ones before the ended ones.
    pub series: Vec<SeriesHead>,
    /// Number of series that match, with those of other pages.
    pub total: usize,
    /// Asks for the next page; `null`: this is the last.
    #[serde(rename = "continue")]
    pub next: Option<String>,
}

/// Description of a series.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct SeriesHead {
    /// Metric and labels, as a question names them: `host_cpu_ratio{mode="idle"}`.
    pub key: String,
    pub metric: String,
    /// Its labels as `name="value"`, in the order of the key.
    pub labels: Vec<(String, String)>,
    /// Unit: `bytes`, `bytes_per_second`, `ratio`, `celsius` …; empty: none.
    pub unit: String,
    /// `host` or `cluster`.
    pub subject: String,
    /// True if it is measured now.
    pub live: bool,
}

/// Values of some series at the same times.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct Values {
    /// The first moment that was asked for.
    pub from: i64,
    /// The moment after the last.
    pub to: i64,
    /// Distance between times.
    pub step_s: u64,
    /// The times, each the beginning of its step.
    pub times: Vec<i64>,
    /// One column for each key that there is.
    pub series: Vec<Column>,
    /// Marks in this range.
    pub marks: Vec<Mark>,
}

/// One series at the times of [`Values`]. `null`: nothing was measured.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct Column {
    /// Series.
    pub key: String,
    /// As in [`SeriesHead`].
    pub unit: String,
    /// The mean of each step.
    pub mean: Vec<Option<f64>>,
    pub min: Vec<Option<f64>>,
    pub max: Vec<Option<f64>>,
}

/// Something that a chart should show beside its values.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct Mark {
    pub time: i64,
    /// `boot`, `throttled`, `deploy` or `gap`.
    pub kind: String,
    /// Description.
    pub text: String,
}

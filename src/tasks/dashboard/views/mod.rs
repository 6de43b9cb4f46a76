//! Views: each queries its sources, makes one type of the local API and stores nothing.

pub mod cached;
pub mod cluster;
pub mod diagnosis;
pub mod figures;
pub mod history;
pub mod k3s;
pub mod series;

use crate::{
    core::{
        series::{Aggregate, Known, Query, Select},
        time::Wall,
    },
    store::{Failure, telemetry::Handle},
};

/// Result of a view; the error is a sentence.
pub type ViewResult<T> = Result<T, String>;

/// The newest value of each series of a metric, no older than so many milliseconds. One question,
/// however many series there are: each unpacks the whole journal.
async fn newest(
    samples: &Handle,
    metric: &str,
    now: Wall,
    within_ms: i64,
) -> Vec<(Known, Aggregate)> {
    let query = Query {
        select: Select::Matching(metric.to_owned(), Vec::new()),
        from: Wall::from_millis(now.millis().saturating_sub(within_ms)),
        to: Wall::from_millis(now.millis().saturating_add(1)),
        step: None,
    };
    let lines = samples.query(query).await.unwrap_or_default().into_iter();
    let newest = lines.filter_map(|line| Some((line.known, *line.aggregates.last()?)));
    newest.collect()
}

/// Returns why the store says nothing.
fn silent(failure: &Failure) -> String {
    failure.to_string()
}

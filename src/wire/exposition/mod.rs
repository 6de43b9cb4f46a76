//! Exposition for Prometheus: the text format 0.0.4, with the names and units of node_exporter
//! where it has one.
//!
//! Counters stand here as the kernel keeps them: whoever scrapes computes rates over its own
//! interval.

use std::fmt::Write;

use crate::core::{
    rates::Reading,
    series::{Key, decimal},
};

mod agent;
mod host;

pub use agent::{Agent, Cluster, Link};

/// Media type of the metrics.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Series on the page at most, so that a machine with many disks costs no receiver more than this.
const SERIES_MAX: usize = 200;

/// The whole page.
pub fn page(agent: &Agent<'_>, reading: &Reading) -> String {
    let mut page = Page::default();
    agent::write(agent, &reading.own, &mut page);
    host::write(reading, &mut page);
    page.finish()
}

/// Type of a metric family.
#[derive(Clone, Copy, Debug)]
enum MetricType {
    /// It only grows, until its machine or program restarts.
    Counter,
    /// It goes up and down.
    Gauge,
}

/// A page that is being written.
#[derive(Debug, Default)]
struct Page {
    text: String,
    series: usize,
    left_out: usize,
}

impl Page {
    /// One family: each of its series with its labels and its value. One without series is not
    /// mentioned.
    fn family<'a, L: AsRef<[(&'a str, &'a str)]>>(
        &mut self,
        (name, kind, help): (&str, MetricType, &str),
        series: impl IntoIterator<Item = (L, Option<String>)>,
    ) {
        let mut is_introduced = false;
        for (labels, value) in series {
            let (Ok(key), Some(value)) = (Key::new(name, labels.as_ref()), value) else {
                continue;
            };
            // One place is kept for the number of those that have none.
            if self.series + 1 >= SERIES_MAX {
                self.left_out += 1;
                continue;
            }
            if !is_introduced {
                let kind = match kind {
                    MetricType::Counter => "counter",
                    MetricType::Gauge => "gauge",
                };
                self.line(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}"));
                is_introduced = true;
            }
            self.line(format_args!("{key} {value}"));
            self.series += 1;
        }
    }

    /// A family of one series without labels.
    fn one(&mut self, family: (&str, MetricType, &str), value: Option<String>) {
        self.family(family, [([], value)]);
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // A text takes all that is written.
        let _written = writeln!(self.text, "{line}").is_ok();
    }

    fn finish(mut self) -> String {
        let left_out = self.left_out;
        if left_out > 0 {
            let name = "pipeops_agent_metrics_left_out";
            let help = format!("Series that are not here: a page has at most {SERIES_MAX}.");
            self.line(format_args!(
                "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {left_out}"
            ));
        }
        self.text
    }
}

/// A whole number, where it is known.
fn whole(value: Option<u64>) -> Option<String> {
    value.map(|value| value.to_string())
}

/// A number with that many digits after the point, where it is known.
fn scaled(value: Option<u64>, digits: u8) -> Option<String> {
    let value = i64::try_from(value?).ok()?;
    Some(decimal(value, digits))
}

/// 1 or 0, where it is known.
fn flag(value: Option<bool>) -> Option<String> {
    whole(value.map(u64::from))
}

#[cfg(test)]
mod tests;

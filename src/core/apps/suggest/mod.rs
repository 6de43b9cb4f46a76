//! Requests and limits that fit the measured usage of a container, with the reason for them.
//!
//! Too little usage gives no suggestion, never a guess.

use std::{collections::BTreeSet, fmt, time::Duration};

use serde_json::{Value, json};

use crate::core::{
    order::OrderExt as _,
    quantity,
    series::{Aggregate, Line},
    time::{Wall, in_words},
};

/// Containers of one app that are judged.
pub const CONTAINERS_MAX: usize = 20;
/// Period of usage that is looked at.
pub const PERIOD: Duration = Duration::from_secs(14 * DAY_S);
/// Step of the usage.
pub const STEP: Duration = Duration::from_secs(900);

const DAY_S: u64 = 86_400;
const STEP_MS: i64 = 900_000;
const HOUR_MS: i64 = 3_600_000;
/// Steps with a value at least: half a day, because a box may be off at night.
const STEPS_MIN: usize = 48;
/// Runs of a CronJob at least.
const RUNS_MIN: usize = 3;
/// Usage that a memory limit is lowered by: it has seen every day of the week.
const WEEK_MS: i64 = 7 * 24 * HOUR_MS;
/// Head-room in tenths: of a request above p95, of a memory limit above the peak, and of a limit
/// that was reached.
const REQUEST: u64 = 12;
const LIMIT: u64 = 13;
const RAISED: u64 = 15;
/// The smallest request of memory, and of CPU in thousandths of a core.
const MEMORY_MIN: u64 = 16 * MI;
const CPU_MIN: u64 = 10;
const MI: u64 = 1 << 20;
/// Letters with which Kubernetes makes names unique.
const RANDOM: &str = "bcdfghjklmnpqrstvwxz2456789";

/// Requests and limits of a container: CPU in thousandths of a core, memory in bytes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Sizes {
    pub cpu_request: Option<u64>,
    pub memory_request: Option<u64>,
    pub cpu_limit: Option<u64>,
    pub memory_limit: Option<u64>,
}

impl Sizes {
    /// Sizes that a container of a manifest or a Pod has.
    pub fn of(container: &Value) -> Self {
        let amount = |list: &str, resource: &str| {
            let amount = container.pointer(&format!("/resources/{list}/{resource}"))?;
            let text = amount.as_str().map(str::to_owned);
            let text = text.unwrap_or_else(|| amount.to_string());
            if resource == "cpu" {
                quantity::milli(&text)
            } else {
                quantity::whole(&text)
            }
        };
        Self {
            cpu_request: amount("requests", "cpu"),
            memory_request: amount("requests", "memory"),
            cpu_limit: amount("limits", "cpu"),
            memory_limit: amount("limits", "memory"),
        }
    }

    /// Quantities of Kubernetes, each with its place below `resources`.
    pub fn quantities(&self) -> [(&'static str, &'static str, Option<String>); 4] {
        [
            ("requests", "cpu", self.cpu_request.map(cores)),
            ("requests", "memory", self.memory_request.map(bytes)),
            ("limits", "cpu", self.cpu_limit.map(cores)),
            ("limits", "memory", self.memory_limit.map(bytes)),
        ]
    }

    /// Sizes in the local API.
    pub fn shown(&self) -> Value {
        let [cpu_request, memory_request, cpu_limit, memory_limit] =
            self.quantities().map(|(_, _, amount)| amount);
        json!({"cpu_request": cpu_request, "memory_request": memory_request,
            "cpu_limit": cpu_limit, "memory_limit": memory_limit})
    }
}

/// Four quantities, `-` where there is none.
impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let amounts = self.quantities().map(|(_, _, amount)| amount);
        let words = amounts.map(|amount| amount.unwrap_or_else(|| "-".to_owned()));
        f.write_str(&words.join(" "))
    }
}

/// CPU as a quantity.
fn cores(milli: u64) -> String {
    format!("{milli}m")
}

/// Memory as a quantity.
fn bytes(bytes: u64) -> String {
    if bytes > 0 && bytes.is_multiple_of(MI) {
        format!("{}Mi", bytes / MI)
    } else {
        bytes.to_string()
    }
}

/// Everything that a suggestion is made of.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    /// Sizes that the container has.
    pub now: Sizes,
    /// CPU of its Pods, a line each, in steps of [`STEP`].
    pub cpu: &'a [Line],
    /// Working set of its Pods.
    pub memory: &'a [Line],
    /// True if it ran out of memory with the limit that it has.
    pub ran_out: bool,
    /// True if each of its Pods is a run that ends.
    pub is_run: bool,
    /// HorizontalPodAutoscaler that compares its usage with its requests; empty: none.
    pub autoscaler: &'a str,
}

/// Suggestion, and the usage behind it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Suggestion {
    /// Sizes that fit; those that it has where nothing should change.
    pub sizes: Sizes,
    /// Usage in the local API.
    pub usage: Value,
    /// Reason in one sentence.
    pub why: String,
}

/// Usage of one resource in short.
struct Figure {
    /// 95th percentile of the hour of the day in which that is highest.
    p95: u64,
    /// That hour, UTC.
    hour: usize,
    peak: u64,
}

/// Suggests sizes.
///
/// # Errors
/// Reason why nothing can be said.
pub fn suggest(seen: &Observed<'_>) -> Result<Suggestion, String> {
    let (from, to) = span(seen)?;
    let memory = figure(seen.memory, 0, |aggregate| aggregate.max);
    let cpu = figure(seen.cpu, 3, |aggregate| aggregate.mean);
    let (Some(memory), Some(cpu)) = (memory, cpu) else {
        return Err("its CPU usage is not stored".to_owned());
    };
    let length = to.saturating_sub(from);
    let sizes = sizes(seen, (&cpu, &memory), length);
    let pods = seen.memory.len();
    let usage = json!({
        "from": Wall::from_millis(from).rfc3339(), "to": Wall::from_millis(to).rfc3339(), "pods": pods,
        "cpu_p95_millicores": cpu.p95, "cpu_peak_millicores": cpu.peak, "cpu_hour": cpu.hour,
        "memory_p95_bytes": memory.p95, "memory_peak_bytes": memory.peak, "memory_hour": memory.hour,
        "out_of_memory": seen.ran_out,
    });
    let mut why = format!(
        "over {} of {pods} Pod{}, p95 of the busiest hour is {}m CPU ({:02}:00 UTC) and {} memory ({:02}:00 UTC), \
         the peaks are {}m and {}",
        in_words(duration(length)),
        if pods == 1 { "" } else { "s" },
        cpu.p95,
        cpu.hour,
        whole_mi(memory.p95),
        memory.hour,
        cpu.peak,
        whole_mi(memory.peak),
    );
    match (seen.ran_out, seen.now.memory_limit) {
        (true, Some(limit)) => {
            why = format!(
                "{why}, and it ran out of memory at its limit of {}",
                bytes(limit)
            );
        }
        (true, None) => why.push_str(", and it was killed because the machine ran out of memory"),
        (false, _) => {}
    }
    if seen
        .now
        .cpu_limit
        .is_some_and(|limit| is_reached(&cpu, limit))
    {
        why.push_str(", and its CPU limit is reached");
    }
    if !seen.autoscaler.is_empty() {
        let keeps = "its requests stay, because the HorizontalPodAutoscaler";
        why = format!("{why}; {keeps} {} may scale by them", seen.autoscaler);
    }
    let is_high = |limit: u64| times(memory.peak, LIMIT) < limit / 10 * 9;
    if length < WEEK_MS
        && sizes.memory_limit == seen.now.memory_limit
        && sizes.memory_limit.is_some_and(is_high)
    {
        why.push_str("; a memory limit is lowered after a week of usage");
    }
    Ok(Suggestion { sizes, usage, why })
}

/// First and last moment of the usage, if there is enough of it.
fn span(seen: &Observed<'_>) -> Result<(i64, i64), String> {
    let aggregates = || seen.memory.iter().flat_map(|line| &line.aggregates);
    let mut steps = BTreeSet::new();
    steps.extend(aggregates().map(|aggregate| aggregate.at.millis().div_euclid(STEP_MS)));
    let (Some(first), Some(last)) = (steps.first(), steps.last()) else {
        return Err("no usage of this version is stored".to_owned());
    };
    let (from, to) = (first * STEP_MS, (last + 1) * STEP_MS);
    let length = duration(to.saturating_sub(from));
    if length.as_secs() < DAY_S {
        let length = in_words(length);
        return Err(format!(
            "usage of this version is stored for {length}, and a day is needed"
        ));
    }
    let (count, needed, unit) = if seen.is_run {
        (seen.memory.len(), RUNS_MIN, "runs")
    } else {
        (steps.len(), STEPS_MIN, "quarters of an hour")
    };
    if count < needed {
        return Err(format!(
            "usage of {count} {unit} is stored, and {needed} are needed"
        ));
    }
    Ok((from, to))
}

fn duration(millis: i64) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}

/// Figure of some lines, as integers with so many decimal digits, rounded up.
fn figure(lines: &[Line], digits: u8, usual: impl Fn(&Aggregate) -> i64) -> Option<Figure> {
    let mut hours: [Vec<u64>; 24] = Default::default();
    let mut peak = 0;
    for line in lines {
        let has = line.known.series.digits;
        let scaled = |value: i64| {
            let value = u64::try_from(value).unwrap_or(0);
            let power = |digits: u8| 10_u64.saturating_pow(u32::from(digits));
            value
                .saturating_mul(power(digits.saturating_sub(has)))
                .div_ceil(power(has.saturating_sub(digits)))
        };
        for aggregate in &line.aggregates {
            let hour = aggregate.at.millis().div_euclid(HOUR_MS).rem_euclid(24);
            let values = usize::try_from(hour)
                .ok()
                .and_then(|hour| hours.get_mut(hour));
            values?.push(scaled(usual(aggregate)));
            peak = peak.max(scaled(aggregate.max));
        }
    }
    let mut busiest: Option<Figure> = None;
    for (hour, values) in hours.iter_mut().enumerate() {
        values.order();
        // The nearest rank.
        let rank = values.len().saturating_mul(95).div_ceil(100);
        let p95 = rank.checked_sub(1).and_then(|rank| values.get(rank));
        if let Some(p95) = p95.copied()
            && busiest.as_ref().is_none_or(|busiest| p95 > busiest.p95)
        {
            busiest = Some(Figure { p95, hour, peak });
        }
    }
    busiest
}

fn sizes(seen: &Observed<'_>, (cpu, memory): (&Figure, &Figure), length: i64) -> Sizes {
    let now = seen.now;
    let mut sizes = now;
    if seen.autoscaler.is_empty() {
        let request = times(cpu.p95, REQUEST).max(CPU_MIN);
        sizes.cpu_request = fitting(now.cpu_request, up(request, cpu_step(request)));
        let request = times(memory.p95, REQUEST).max(MEMORY_MIN);
        sizes.memory_request = fitting(now.memory_request, up(request, memory_step(request)));
    }
    let mut limit = times(memory.peak, LIMIT).max(sizes.memory_request.unwrap_or(0));
    if let (true, Some(had)) = (seen.ran_out, now.memory_limit) {
        limit = limit.max(times(had, RAISED));
    }
    if length < WEEK_MS {
        limit = limit.max(now.memory_limit.unwrap_or(0));
    }
    let limit = fitting(now.memory_limit, up(limit, memory_step(limit)));
    sizes.memory_limit = limit.max(sizes.memory_request);
    if let Some(had) = now.cpu_limit {
        let limit = if is_reached(cpu, had) {
            times(had, RAISED)
        } else {
            had
        };
        let limit = limit.max(sizes.cpu_request.unwrap_or(0));
        sizes.cpu_limit = fitting(now.cpu_limit, up(limit, cpu_step(limit)));
        sizes.cpu_limit = sizes.cpu_limit.max(sizes.cpu_request);
    }
    sizes
}

/// Returns whether a limit of CPU slows a container down.
const fn is_reached(cpu: &Figure, limit: u64) -> bool {
    cpu.peak.saturating_mul(10) >= limit.saturating_mul(9)
}

/// A value times tenths.
const fn times(value: u64, tenths: u64) -> u64 {
    value.saturating_mul(tenths).div_ceil(10)
}

/// A value rounded up to a multiple of a step.
const fn up(value: u64, step: u64) -> u64 {
    value.div_ceil(step).saturating_mul(step)
}

const fn cpu_step(milli: u64) -> u64 {
    if milli < 1000 { 10 } else { 50 }
}

const fn memory_step(bytes: u64) -> u64 {
    match bytes / MI {
        0..=127 => 4 * MI,
        128..=1023 => 16 * MI,
        _ => 64 * MI,
    }
}

/// The present size where it is no further than a tenth from the one that fits: Pods are not
/// replaced for that.
fn fitting(now: Option<u64>, fits: u64) -> Option<u64> {
    let is_close = |now: &u64| now.abs_diff(fits).saturating_mul(10) <= *now;
    now.filter(is_close).or(Some(fits))
}

fn whole_mi(bytes: u64) -> String {
    format!("{}Mi", bytes.div_ceil(MI))
}

/// Beginning of the time for which a workload has run without a break as it runs now. Each revision
/// has its times, the last of which is when it was judged, and whether the workload is the same in
/// it.
pub fn unchanged_since(revisions: &[([Wall; 2], bool)]) -> Option<Wall> {
    let times = |is_same: bool| {
        let of = revisions.iter().filter(move |(_, same)| *same == is_same);
        of.flat_map(|(times, _)| *times)
    };
    let other = times(false).max().unwrap_or_default();
    times(true).filter(|time| *time > other).min()
}

/// Returns whether a Pod of this name is one of a workload. A Deployment makes them by its sets.
pub fn is_pod_of((kind, name): (&str, &str), sets: &[&str], pod: &str) -> bool {
    let rest = |of: &str| pod.strip_prefix(of)?.strip_prefix('-');
    let is_random = |rest: &str| rest.len() == 5 && rest.chars().all(|c| RANDOM.contains(c));
    let is_number = |rest: &str| !rest.is_empty() && rest.bytes().all(|c| c.is_ascii_digit());
    match kind {
        "Deployment" => sets.iter().any(|set| rest(set).is_some_and(is_random)),
        "StatefulSet" => rest(name).is_some_and(is_number),
        "DaemonSet" => rest(name).is_some_and(is_random),
        "CronJob" => {
            let parts = rest(name).and_then(|rest| rest.split_once('-'));
            parts.is_some_and(|(number, rest)| is_number(number) && is_random(rest))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests;

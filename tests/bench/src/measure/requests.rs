//! Small requests: through the link against directly, and beside a slow reader.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{Bench, Group, Results, all, each, peak_during};
use crate::agent::Agent;
use crate::cluster::Cluster;
use crate::https::{Connection, Go};
use crate::options::Options;
use crate::os;
use crate::stats::Samples;
use crate::table::{Figure, Measured, number};

pub(crate) const LATENCY: Group = Group {
    name: "latency",
    about: "a small GET through the link against the same GET at the API server",
    figures: &[
        Figure {
            name: "GET through the link, added, p50",
            unit: "ms",
            published: Some(1.0),
        },
        Figure {
            name: "GET through the link, added, p99",
            unit: "ms",
            published: Some(1.9),
        },
    ],
    measure: latency,
};

pub(crate) const SLOW_READER: Group = Group {
    name: "slow-reader",
    about: "small requests and memory while 1 GB goes to a reader of 1 MB/s",
    figures: &[
        Figure::new("small GETs beside a slow reader, p99", "ms"),
        Figure::new("peak memory beside a slow reader", "MB"),
    ],
    measure: slow_reader,
};

/// A small object that the API server reads from its datastore.
const SMALL: &str = "/api/v1/namespaces/default";

/// 30 s: a request that takes longer has failed.
const DEADLINE: Duration = Duration::from_secs(30);

/// Blocks of requests whose figures show the spread.
const BLOCKS: usize = 5;

fn latency(bench: &mut Bench) -> Results {
    all(bench, |bench| {
        // The direct one first; each has one connection, kept open.
        let mut connections = vec![Connection::open(&bench.cluster.api()?, DEADLINE)?];
        for agent in &bench.agents {
            connections.push(Connection::open(agent.link()?, DEADLINE)?);
        }
        for connection in &mut connections {
            for _ in 0..100 {
                timed(connection)?;
            }
        }
        let mut times = vec![Vec::with_capacity(bench.options.pairs); connections.len()];
        for round in 0..bench.options.pairs {
            // A B C, B C A, C A B: none always follows the same one.
            for turn in 0..connections.len() {
                let place = round.wrapping_add(turn) % connections.len();
                if let (Some(connection), Some(times)) =
                    (connections.get_mut(place), times.get_mut(place))
                {
                    times.push(timed(connection)?);
                }
            }
        }
        let mut times = times.into_iter();
        let direct = times.next().unwrap_or_default();
        Ok(times.map(|link| added(&direct, &link)).collect())
    })
}

/// The ms of one small GET.
fn timed(connection: &mut Connection) -> Result<f64, String> {
    let start = os::now();
    let (status, _) = connection.get(SMALL)?;
    let ms = os::since(start).as_secs_f64() * 1e3;
    match status {
        200 => Ok(ms),
        other => Err(format!("GET {SMALL} was answered {other}")),
    }
}

/// How much longer the link takes, as a whole and in blocks of neighbours in time.
fn added(direct: &[f64], link: &[f64]) -> Vec<Measured> {
    let difference = |direct: &[f64], link: &[f64], permille| {
        let direct = Samples::of(direct.to_vec()).permille(permille);
        Samples::of(link.to_vec()).permille(permille) - direct
    };
    let size = direct.len().div_ceil(BLOCKS).max(1);
    let blocks = || direct.chunks(size).zip(link.chunks(size));
    let measured = |permille: usize| {
        let parts = blocks().map(|(direct, link)| difference(direct, link, permille));
        let parts = Samples::of(parts.collect());
        let base = Samples::of(direct.to_vec()).permille(permille);
        let note = format!(
            "direct {} ms; blocks {} to {}; {} pairs",
            number(base),
            number(parts.smallest()),
            number(parts.largest()),
            link.len()
        );
        Measured::new(difference(direct, link, permille), note)
    };
    vec![measured(500), measured(990)]
}

/// 1 GB, of which only what the time allows is read.
const LARGE_BYTES: u64 = 1_000_000_000;

/// 1 MB/s, taken in helpings twenty times a second.
const HELPING_BYTES: usize = 50_000;
const HELPING: Duration = Duration::from_millis(50);

/// 100 ms between small requests, so that a hundred of them take ten seconds.
const PACE: Duration = Duration::from_millis(100);

fn slow_reader(bench: &mut Bench) -> Results {
    each(bench, |options, _, agent| {
        let alone = paced(agent, options.slow / 4)?;
        let ((beside, read), peak) = peak_during(agent, |agent| beside_slow(options, agent))?;
        let note = format!(
            "{} GETs, p50 {}, largest {}; without the reader p99 {}",
            beside.len(),
            number(beside.median()),
            number(beside.largest()),
            number(alone.permille(990))
        );
        let read_note = format!(
            "{} MB of 1 GB read in {} s",
            number(os::float(read) / 1e6),
            options.slow.as_secs()
        );
        Ok(vec![
            Measured::new(beside.permille(990), note),
            Measured::new(peak, read_note),
        ])
    })
}

fn beside_slow(options: &Options, agent: &Agent) -> Result<(Samples, u64), String> {
    let address = agent.link()?.clone();
    let limit = options.slow;
    let is_over = Arc::new(AtomicBool::new(false));
    let is_over_too = Arc::clone(&is_over);
    let reader = os::thread(move || {
        let mut connection = Connection::open(&address, DEADLINE)?;
        let path = format!("{}/bytes?n={LARGE_BYTES}", Cluster::service_path());
        let head = connection.begin(&path)?;
        if head.status != 200 {
            return Err(format!("the large body was answered {}", head.status));
        }
        let mut helping = 0;
        connection.body(head, |bytes| {
            helping += bytes;
            while helping >= HELPING_BYTES {
                helping = helping.saturating_sub(HELPING_BYTES);
                os::pause(HELPING);
            }
            Go::until(&is_over_too)
        })
    });
    let times = paced(agent, limit);
    is_over.store(true, Ordering::Relaxed);
    let read = reader
        .join()
        .map_err(|_panic| "the slow reader panicked".to_owned())?;
    Ok((times?, read?))
}

/// Small requests, one every [`PACE`], for so long.
fn paced(agent: &Agent, limit: Duration) -> Result<Samples, String> {
    let mut connection = Connection::open(agent.link()?, DEADLINE)?;
    let mut times = Vec::new();
    let start = os::now();
    while os::since(start) < limit {
        let began = os::now();
        times.push(timed(&mut connection)?);
        os::pause(PACE.saturating_sub(os::since(began)));
    }
    Ok(Samples::of(times))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_link_adds_is_the_difference_of_the_same_percentile() {
        let direct: Vec<f64> = (1..=100).map(f64::from).collect();
        let link: Vec<f64> = direct.iter().map(|ms| ms + 0.5).collect();
        let added = added(&direct, &link);
        for measured in &added {
            assert!((measured.value.unwrap() - 0.5).abs() < 1e-9);
        }
        assert!(
            added[0].note.contains("direct 50.0 ms"),
            "{}",
            added[0].note
        );
        assert!(
            added[1].note.contains("direct 99.0 ms"),
            "{}",
            added[1].note
        );
    }
}

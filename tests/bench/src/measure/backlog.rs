//! Latency of control messages while a week of samples is delivered over a slow link.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use pipeops_agent::core::outbox::Stream;
use pipeops_agent::core::series::{Key, Point, Series, Tick};
use pipeops_agent::core::time::{Mono, Now, Wall};
use pipeops_agent::store::telemetry::{Options, Telemetry};
use pipeops_agent::tasks::link::deliver::DESTINATION;
use smol::block_on;

use super::{Bench, Group, Results};
use crate::agent::{Dashboard, Kind};
use crate::child::Running;
use crate::os;
use crate::plane::PlaneProcess;
use crate::stats::Samples;
use crate::table::{Figure, Measured};

pub(crate) const BACKLOG: Group = Group {
    name: "backlog",
    about: "pings while a week of 60 series at 15 s is delivered at 8 Mbit/s",
    figures: &[
        Figure::new("ping behind a backlog, p50", "ms"),
        Figure::new("ping behind a backlog, p99", "ms"),
    ],
    measure,
};

const MINUTES: u64 = 7 * 1_440;
const SERIES: u64 = 60;
const TICKS: u64 = 4;
const PINGS: u32 = 200;
const BYTES_PER_S: u32 = 1_000_000;
const LINK_LIMIT: Duration = Duration::from_secs(60);

fn measure(bench: &mut Bench) -> Results {
    let ours = bench
        .agents
        .iter()
        .find(|agent| agent.kind == Kind::Ours)
        .map(|agent| (agent.binary.clone(), agent.dir.join("backlog")));
    let measured = ours
        .ok_or_else(|| "it could not be started".to_owned())
        .and_then(|(binary, folder)| measured(&binary, &folder));
    vec![(Kind::Ours, measured)]
}

fn measured(binary: &Path, folder: &Path) -> Result<Vec<Measured>, String> {
    // Left by an earlier run, and delivered by now.
    drop(std::fs::remove_dir_all(folder));
    std::fs::create_dir_all(folder)
        .map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    block_on(week(folder.join("state")))?;
    let mut plane = PlaneProcess::start(&folder.join("plane"))?;
    let mut command = os::program(binary);
    command
        .arg("run")
        .env_clear()
        .env("PIPEOPS_API_URL", plane.text("api_url")?)
        .env("PIPEOPS_TOKEN_FILE", plane.file("token"))
        .env("PIPEOPS_TLS_CA_FILE", plane.file("ca.pem"))
        .env("PIPEOPS_CLUSTER_NAME", "backlog")
        .env("PIPEOPS_STATE_DIR", folder.join("state"))
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    Dashboard::new(folder)?.name(&mut command);
    let mut agent = Running::start("the agent with a backlog", &mut command)?;
    plane.linked(LINK_LIMIT)?;
    let (waits, behind) = plane.pings(PINGS, BYTES_PER_S)?;
    agent.check()?;
    if behind == 0 {
        return Err("no ping met a batch: the backlog was delivered before".to_owned());
    }
    let waits = Samples::of(waits);
    let note = format!(
        "{behind} of {} behind a batch; {}",
        waits.len(),
        waits.spread()
    );
    Ok(vec![
        Measured::new(waits.median(), ""),
        Measured::new(waits.permille(990), note),
    ])
}

/// Writes the samples of a week that ends now, none of them delivered.
async fn week(folder: PathBuf) -> Result<(), String> {
    let began = os::since_1970()?.saturating_sub(Duration::from_secs(MINUTES * 60));
    let at = |seconds: u64| {
        let mono = Duration::from_secs(seconds);
        let wall = i64::try_from((began + mono).as_millis()).unwrap_or(i64::MAX);
        Now {
            mono: Mono::since_boot(mono),
            wall: Wall::from_millis(wall),
        }
    };
    let options = Options {
        disk_bytes_max: 1 << 30,
        boot_id: "bench".to_owned(),
        epoch: 1,
    };
    let (telemetry, _) = Telemetry::open(folder, options, at(0))
        .await
        .map_err(|error| error.sentence())?;
    let handle = telemetry.handle();
    for stream in Stream::ALL {
        let position = handle.position(DESTINATION.to_owned(), stream).await;
        position.map_err(|failure| failure.to_string())?;
    }
    for minute in 1..=MINUTES {
        for tick in 0..TICKS {
            let seconds = minute * 60 + tick * 60 / TICKS;
            let tick = Tick {
                at: at(seconds),
                clock_is_set: true,
                points: points(seconds)?,
            };
            let taken = handle.take(tick).await;
            taken.map_err(|failure| failure.to_string())?;
        }
        let flushed = handle.flush(at(minute * 60 + 59), true).await;
        flushed.map_err(|failure| failure.to_string())?;
        if minute % 60 == 0 {
            let tended = handle.tend(at(minute * 60 + 59)).await;
            tended.map_err(|failure| failure.to_string())?;
        }
    }
    telemetry
        .close()
        .await
        .map_err(|failure| failure.to_string())
}

/// Values that do not compress.
fn points(seconds: u64) -> Result<Vec<Point>, String> {
    let point = |number: u64| {
        let name = number.to_string();
        let key = Key::new("bench_value", &[("series", &name)]);
        let value = (seconds ^ (number << 40)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 44;
        Ok(Point {
            series: Series {
                key: key.map_err(|error| error.to_string())?,
                digits: 0,
            },
            value: i64::try_from(value).unwrap_or(0),
        })
    };
    (0..SERIES).map(point).collect()
}

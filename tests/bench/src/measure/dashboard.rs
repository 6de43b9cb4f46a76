//! Cost and start-up time of the dashboard, and the time until the command line has an answer.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use pipeops_agent::core::series::{Key, Point, Series, Tick};
use pipeops_agent::core::time::{Mono, Now, Wall};
use pipeops_agent::store::Failure;
use pipeops_agent::store::telemetry::{Options, Telemetry};
use serde::Deserialize;
use smol::block_on;

use super::{Bench, Group, Results};
use crate::agent::{Agent, Dashboard, Kind};
use crate::child::Running;
use crate::os;
use crate::process;
use crate::stats::Samples;
use crate::table::{Figure, Measured};

pub(crate) const DASHBOARD: Group = Group {
    name: "dashboard",
    about: "the page in a browser before a year of samples, five viewers, status and doctor (takes two minutes)",
    figures: &[
        Figure::new("PSS with five viewers of the stream", "MB"),
        Figure::new("a viewer at rest", "KB/s"),
        Figure::new("pipeops-agent status", "ms"),
        Figure::new("pipeops-agent doctor --json", "ms"),
        Figure::new("the whole page over the wire", "KB"),
        Figure::new("files of the page", ""),
        Figure::new("page usable after", "ms"),
        Figure::new("first chart of 24 h after", "ms"),
        Figure::new("chart of 1 y after a click", "ms"),
    ],
    measure,
};

const VIEWERS: usize = 5;
/// Series of the history: those of one chart, and another.
const SERIES: [(&str, u8); 4] = [
    ("host_load1", 2),
    ("host_load5", 2),
    ("host_load15", 2),
    ("host_memory_available_bytes", 0),
];
const YEAR_MINUTES: u64 = 365 * 1_440;

fn measure(bench: &mut Bench) -> Results {
    let measured = measured(bench);
    vec![(Kind::Ours, measured)]
}

fn measured(bench: &mut Bench) -> Result<Vec<Measured>, String> {
    let idle = bench.options.idle;
    let agent = bench
        .agents
        .iter_mut()
        .find(|agent| agent.kind == Kind::Ours)
        .ok_or("it does not run")?;
    let mut rows = viewers(agent, idle)?;
    let dashboard = &agent.dashboard;
    rows.push(answered(&agent.binary, dashboard, &["status"])?);
    rows.push(answered(&agent.binary, dashboard, &["doctor", "--json"])?);
    match page(&agent.binary, &agent.dir) {
        Ok(figures) => rows.extend(figures),
        Err(why) => rows.extend(std::iter::repeat_n(Measured::missing(why), 5)),
    }
    Ok(rows)
}

/// Memory with five viewers who read all that there is, and what each of them gets.
fn viewers(agent: &mut Agent, time: Duration) -> Result<Vec<Measured>, String> {
    let mut streams = Vec::new();
    for _ in 0..VIEWERS {
        streams.push(viewer(&agent.dashboard.socket)?);
    }
    let start = os::now();
    let mut bytes = 0;
    let mut pss = Vec::new();
    while os::since(start) < time {
        os::pause(Duration::from_millis(250));
        for stream in &mut streams {
            bytes += drain(stream)?;
        }
        pss.push(process::pss_mb(agent.pid()?)?);
    }
    let seconds = os::since(start).as_secs_f64();
    let pss = Samples::of(pss);
    let each = os::float(u64::try_from(bytes).unwrap_or(u64::MAX)) / 5e3 / seconds;
    Ok(vec![
        Measured::new(pss.median(), pss.spread()),
        Measured::new(
            each,
            format!("over {seconds:.0} s, the first status included"),
        ),
    ])
}

fn viewer(socket: &Path) -> Result<UnixStream, String> {
    let fault = |error: std::io::Error| format!("cannot view {}: {error}", socket.display());
    let mut stream = UnixStream::connect(socket).map_err(fault)?;
    stream
        .write_all(b"GET /api/v1/stream?topics=status,ticks,events,logs HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .map_err(fault)?;
    stream.set_nonblocking(true).map_err(fault)?;
    Ok(stream)
}

/// How many bytes have come.
fn drain(stream: &mut UnixStream) -> Result<usize, String> {
    let mut buffer = [0; 16 * 1024];
    let mut bytes = 0;
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return Err("the stream of events ended".to_owned()),
            Ok(read) => bytes += read,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(bytes),
            Err(error) => return Err(format!("the stream of events broke: {error}")),
        }
    }
}

/// How long a command takes, from its start to its end.
fn answered(binary: &Path, dashboard: &Dashboard, words: &[&str]) -> Result<Measured, String> {
    let mut took = Vec::new();
    for _ in 0..15 {
        let mut command = os::program(binary);
        command
            .args(words)
            .env("PIPEOPS_DASHBOARD_SOCKET", &dashboard.socket)
            .stdin(Stdio::null());
        let start = os::now();
        let output = command.output().map_err(|error| error.to_string())?;
        took.push(os::since(start).as_secs_f64() * 1e3);
        // 1 is an answer as well: a problem was found.
        if !matches!(output.status.code(), Some(0 | 1)) || output.stdout.is_empty() {
            let told = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{words:?}: {}, {}", output.status, told.trim()));
        }
    }
    let took = Samples::of(took);
    Ok(Measured::new(took.median(), took.spread()))
}

/// What `tests/browser/run figures` prints.
#[derive(Debug, Deserialize)]
struct Page {
    files: u64,
    bytes: u64,
    usable_ms: Vec<f64>,
    chart_day_ms: Vec<f64>,
    chart_year_ms: Vec<f64>,
}

/// The page of an agent with a year behind it, which has neither control plane nor cluster: what it
/// has to show comes from the disk.
fn page(binary: &Path, folder: &Path) -> Result<Vec<Measured>, String> {
    let folder = folder.join("year");
    // Of an earlier run: its year ended then.
    drop(std::fs::remove_dir_all(&folder));
    std::fs::create_dir_all(&folder)
        .map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    os::progress("dashboard: writing a year of samples");
    block_on(year(folder.join("state")))?;
    let dashboard = Dashboard::new(&folder)?;
    let token = folder.join("token");
    os::write(&token, "none")?;
    let mut command = os::program(binary);
    command
        .arg("run")
        .env_clear()
        .env("PIPEOPS_API_URL", "https://127.0.0.1:9")
        .env("PIPEOPS_TOKEN_FILE", &token)
        .env("PIPEOPS_CLUSTER_NAME", "year")
        .env("PIPEOPS_STATE_DIR", folder.join("state"))
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    dashboard.name(&mut command);
    let mut agent = Running::start("the agent with a year", &mut command)?;
    dashboard.answers(&mut agent)?;
    os::progress("dashboard: the page in a browser");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../browser/run");
    let output = os::program(script)
        .args(["figures", &format!("http://{}", dashboard.listen)])
        .output()
        .map_err(|error| format!("cannot run the browser: {error}"))?;
    let told = String::from_utf8_lossy(&output.stdout);
    let page: Page = serde_json::from_str(told.trim()).map_err(|error| {
        let errors = String::from_utf8_lossy(&output.stderr);
        format!(
            "no figures of the page ({error}): {} {}",
            told.trim(),
            errors.trim()
        )
    })?;
    let times = |times| {
        let times = Samples::of(times);
        Measured::new(times.median(), times.spread())
    };
    Ok(vec![
        Measured::new(os::float(page.bytes) / 1e3, "bodies, compressed"),
        Measured::new(os::float(page.files), ""),
        times(page.usable_ms),
        times(page.chart_day_ms),
        times(page.chart_year_ms),
    ])
}

/// Four series at a minute, up to now.
async fn year(folder: PathBuf) -> Result<(), String> {
    let told = |failure: Failure| failure.to_string();
    let began = os::since_1970()?.saturating_sub(Duration::from_secs(YEAR_MINUTES * 60));
    let at = |minute: u64| {
        let mono = Duration::from_secs(minute * 60);
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
    for minute in 1..=YEAR_MINUTES {
        let tick = Tick {
            at: at(minute),
            clock_is_set: true,
            points: points(minute)?,
        };
        handle.take(tick).await.map_err(told)?;
        // An hour at once: what is measured is the reading.
        if minute % 60 == 0 {
            handle.flush(at(minute), true).await.map_err(told)?;
            handle.tend(at(minute)).await.map_err(told)?;
        }
    }
    telemetry.close().await.map_err(told)
}

fn points(minute: u64) -> Result<Vec<Point>, String> {
    let point = |(number, (name, digits)): (u64, (&str, u8))| {
        let key = Key::new(name, &[]).map_err(|error| error.to_string())?;
        let value = (minute ^ (number << 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54;
        Ok(Point {
            series: Series { key, digits },
            value: i64::try_from(value).unwrap_or(0),
        })
    };
    (0..).zip(SERIES).map(point).collect()
}

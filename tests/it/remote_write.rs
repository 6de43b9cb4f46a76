//! Samples of the running agent in a real Prometheus and a real VictoriaMetrics, beside what the
//! agent exports itself.

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    process::Child,
    time::Duration,
};

use pipeops_agent::core::time::Wall;
use plane::Plane;
use serde_json::Value;

use crate::agent::{Agent, command, has, put, until};

/// The first samples go out a minute after the start, when they are on disk.
const ON_DISK: Duration = Duration::from_secs(180);

/// Series, and its values by their moments in milliseconds.
type Lines = BTreeMap<String, BTreeMap<i64, f64>>;

/// A receiver of samples. Dropping it ends it.
struct Server {
    folder: tempfile::TempDir,
    port: u16,
    child: Child,
}

impl Server {
    fn start(program: &str, arguments: impl Fn(&str, u16) -> Vec<String>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(folder.path().join("log"))
            .unwrap();
        let child = command(program)
            .args(arguments(&folder.path().display().to_string(), port))
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let server = Self {
            folder,
            port,
            child,
        };
        until("the receiver is ready", Duration::from_secs(60), || {
            let page = server.get("/-/ready").or_else(|| server.get("/health"));
            page.map(drop)
        });
        server
    }

    /// A Prometheus with more lines in its configuration.
    fn prometheus(configuration: &str) -> Self {
        Self::start("prometheus", |folder, port| {
            let file = format!("{folder}/prometheus.yml");
            let configuration = configuration.replace("PORT", &port.to_string());
            put(file.as_ref(), &configuration);
            vec![
                format!("--config.file={file}"),
                format!("--storage.tsdb.path={folder}/tsdb"),
                format!("--web.listen-address=127.0.0.1:{port}"),
                "--web.enable-remote-write-receiver".to_owned(),
            ]
        })
    }

    fn victoria_metrics() -> Self {
        Self::start("victoria-metrics", |folder, port| {
            vec![
                format!("-storageDataPath={folder}/data"),
                format!("-httpListenAddr=127.0.0.1:{port}"),
            ]
        })
    }

    /// The body of a page, however it comes.
    fn get(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).ok()?;
        write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let status = head.split(' ').nth(1)?;
        (status == "200").then(|| body.to_owned())
    }

    /// Everything that Prometheus has from an agent.
    fn in_prometheus(&self) -> Lines {
        let path = "/api/v1/query?query=%7Bagent_id!=%22%22%7D%5B1d%5D";
        let answer: Value = serde_json::from_str(&self.get(path).unwrap()).unwrap();
        let mut lines = Lines::new();
        for result in answer["data"]["result"].as_array().unwrap() {
            let values = result["values"].as_array().unwrap().iter().map(|pair| {
                let at = format!("{:.3}", pair[0].as_f64().unwrap()).replace('.', "");
                (at.parse().unwrap(), number(&pair[1]))
            });
            lines.insert(name(&result["metric"]), values.collect());
        }
        lines
    }

    /// Everything that VictoriaMetrics has from an agent.
    fn in_victoria_metrics(&self) -> Lines {
        // What it has just taken shows a little later, unless it is told.
        self.get("/internal/force_flush").unwrap();
        let path = "/api/v1/export?match[]=%7Bagent_id!=%22%22%7D";
        let mut lines = Lines::new();
        for line in self.get(path).unwrap().lines() {
            let line: Value = serde_json::from_str(line).unwrap();
            let moments = line["timestamps"].as_array().unwrap().iter();
            let values = line["values"].as_array().unwrap().iter();
            let pairs = moments.zip(values);
            let pairs = pairs.map(|(at, value)| (at.as_i64().unwrap(), number(value)));
            lines.insert(name(&line["metric"]), pairs.collect());
        }
        lines
    }

    fn agent(&self, path: &str) -> (Plane, Agent) {
        let plane = Plane::start(plane::Options::default()).unwrap();
        let url = format!("http://127.0.0.1:{}{path}", self.port);
        let agent = Agent::new(&plane)
            .with("PIPEOPS_TELEMETRY_REMOTE_WRITE_URL", url)
            .with("PIPEOPS_TELEMETRY_REMOTE_WRITE_LABELS", "site=berlin")
            .with("PIPEOPS_TELEMETRY_INTERVAL", "5s");
        (plane, agent)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.folder.path().join("log"));
            eprintln!("--- log of the receiver\n{}", log.unwrap_or_default());
        }
    }
}

fn number(value: &Value) -> f64 {
    let text = value.as_str().map(str::to_owned);
    text.unwrap_or_else(|| value.to_string()).parse().unwrap()
}

/// The series as the agent writes it: without the labels that only receivers see.
fn name(metric: &Value) -> String {
    let metric = metric.as_object().unwrap();
    assert_eq!(metric["site"], "berlin");
    assert!(metric.contains_key("instance"), "{metric:?}");
    let own = ["__name__", "site", "instance", "agent_id"];
    let labels = metric
        .iter()
        .filter(|(label, _)| !own.contains(&label.as_str()));
    let labels: Vec<(&str, &str)> = labels
        .map(|(label, value)| (label.as_str(), value.as_str().unwrap()))
        .collect();
    let name = metric["__name__"].as_str().unwrap();
    pipeops_agent::core::series::Key::new(name, &labels)
        .unwrap()
        .to_string()
}

/// What `metrics export` prints.
fn exported(agent: &Agent) -> Lines {
    let output = command(env!("CARGO_BIN_EXE_pipeops-agent"))
        .args([
            "metrics",
            "export",
            "--last",
            "1d",
            "--format",
            "json",
            "--state-dir",
        ])
        .arg(agent.folder().join("state"))
        .env_clear()
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let mut lines = Lines::new();
    for row in String::from_utf8(output.stdout).unwrap().lines() {
        let row: Value = serde_json::from_str(row).unwrap();
        let at = Wall::parse_rfc3339(row["time"].as_str().unwrap()).unwrap();
        let series = row["series"].as_str().unwrap().to_owned();
        let line = lines.entry(series).or_default();
        line.insert(at.millis(), number(&row["value"]));
    }
    lines
}

/// Of every series, what was there up to a moment.
fn up_to(lines: &Lines, last_ms: i64) -> Lines {
    let cut = |line: &BTreeMap<i64, f64>| {
        let kept = line.range(..=last_ms);
        kept.map(|(at, value)| (*at, *value)).collect()
    };
    let all = lines.iter().map(|(name, line)| (name.clone(), cut(line)));
    all.filter(|(_, line): &(String, BTreeMap<i64, f64>)| !line.is_empty())
        .collect()
}

/// Lets an agent measure and send, and compares what arrived with what it exports.
fn arrives(server: &Server, path: &str, received: impl Fn() -> Lines) {
    let (_plane, mut agent) = server.agent(path);
    agent.start();
    until("samples arrive", ON_DISK, || {
        (received().len() > 40).then_some(())
    });
    agent.stop();
    let there = received();
    let last_ms = there.values().filter_map(|line| line.keys().last()).max();
    // What was flushed at the stop goes out after the next start.
    let own = up_to(&exported(&agent), *last_ms.unwrap());
    assert_eq!(
        there.keys().collect::<Vec<_>>(),
        own.keys().collect::<Vec<_>>()
    );
    assert_eq!(there, own);
    let count: usize = own.values().map(BTreeMap::len).sum();
    assert!(count > 300, "{count} samples of {} series", own.len());
}

#[test]
fn prometheus_has_the_values_that_the_agent_exports() {
    if !has("prometheus") {
        return;
    }
    let server = Server::prometheus("storage:\n  tsdb:\n    out_of_order_time_window: 30d\n");
    arrives(&server, "/api/v1/write", || server.in_prometheus());
}

#[test]
fn victoria_metrics_has_the_values_that_the_agent_exports() {
    if !has("victoria-metrics") {
        return;
    }
    let server = Server::victoria_metrics();
    arrives(&server, "/api/v1/write", || server.in_victoria_metrics());
}

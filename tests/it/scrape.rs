//! The page for a Prometheus, read by Prometheus itself.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::unix::net::UnixStream,
    path::Path,
    process::{Child, Stdio},
    time::Duration,
};

use plane::Plane;
use serde_json::Value;

use crate::agent::{Agent, SOON, command, has, put, until};

/// An agent that Prometheus can scrape, and its port.
fn agent() -> (Plane, Agent, u16) {
    let plane = Plane::start(plane::Options::default()).unwrap();
    let mut agent = Agent::new(&plane).with("PIPEOPS_DASHBOARD_LISTEN", "127.0.0.1:0");
    agent.start();
    let port = until("the agent listens", SOON, || {
        let log = agent.log();
        let (_, rest) = log.split_once("http://127.0.0.1:")?;
        rest.split_once('/')?.0.parse().ok()
    });
    (plane, agent, port)
}

fn scrape(port: u16, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()?;
    talk(&mut stream, path)
}

fn talk(stream: &mut (impl Read + Write), path: &str) -> Option<String> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    head.starts_with("HTTP/1.1 200").then(|| body.to_owned())
}

#[test]
fn promtool_has_nothing_to_say_about_the_page() {
    if !has("promtool") {
        return;
    }
    let (_plane, agent, port) = agent();
    agent.until_linked();
    let mut socket = UnixStream::connect(agent.folder().join("agent.sock")).unwrap();
    let over_socket = talk(&mut socket, "/metrics").unwrap();
    for page in [over_socket, scrape(port, "/metrics").unwrap()] {
        let mut check = command("promtool")
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = check.stdin.take().unwrap();
        stdin.write_all(page.as_bytes()).unwrap();
        drop(stdin);
        let output = check.wait_with_output().unwrap();
        let mut said = String::from_utf8_lossy(&output.stdout).into_owned();
        said.push_str(&String::from_utf8_lossy(&output.stderr));
        // These names are node_exporter's own, which everybody's dashboards ask for.
        let is_given = |line: &str| {
            (line.starts_with("node_memory_") && line.ends_with("not 'camelCase'"))
                || line == "node_vmstat_oom_kill counter metrics should have \"_total\" suffix"
        };
        let said: Vec<_> = said.lines().filter(|line| !is_given(line)).collect();
        assert_eq!(said, [""; 0], "{page}");
        let series = page.lines().filter(|line| !line.starts_with('#')).count();
        assert!((40..=200).contains(&series), "{series} series\n{page}");
        assert!(page.contains("pipeops_agent_link_up 1\n"), "{page}");
    }
}

/// A Prometheus that scrapes one port. Dropping it ends it.
struct Prometheus {
    folder: tempfile::TempDir,
    port: u16,
    child: Child,
}

impl Prometheus {
    fn scraping(target: u16) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("prometheus.yml");
        put(
            &config,
            &format!(
                "scrape_configs:\n- job_name: agent\n  scrape_interval: 1s\n  static_configs:\n  - targets: ['127.0.0.1:{target}']\n"
            ),
        );
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(folder.path().join("log"))
            .unwrap();
        let child = command("prometheus")
            .arg(format!("--config.file={}", config.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                folder.path().join("tsdb").display()
            ))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Self {
            folder,
            port,
            child,
        }
    }

    /// The value of an expression that is one series.
    fn value(&self, expression: &str) -> Option<f64> {
        let answer = scrape(self.port, &format!("/api/v1/query?query={expression}"))?;
        // The answer may come in chunks: the JSON is between the braces.
        let json = answer.get(answer.find('{')?..=answer.rfind('}')?)?;
        let answer: Value = serde_json::from_str(json).ok()?;
        answer["data"]["result"][0]["value"][1]
            .as_str()?
            .parse()
            .ok()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.folder.path().join("log"));
            eprintln!("--- log of Prometheus\n{}", log.unwrap_or_default());
        }
    }
}

#[test]
fn a_real_prometheus_scrapes_the_agent() {
    if !has("prometheus") {
        return;
    }
    let (_plane, _agent, port) = agent();
    let prometheus = Prometheus::scraping(port);
    let limit = Duration::from_secs(60);
    until("the agent is up in Prometheus", limit, || {
        (prometheus.value("up")? > 0.5).then_some(())
    });
    let meminfo = std::fs::read_to_string(Path::new("/proc/meminfo")).unwrap();
    let total = meminfo.lines().find_map(|line| {
        let kibibytes = line.strip_prefix("MemTotal:")?.strip_suffix(" kB")?.trim();
        kibibytes.parse::<f64>().ok()
    });
    let scraped = until("a value", limit, || {
        prometheus.value("node_memory_MemTotal_bytes")
    });
    assert_eq!(Some(scraped), total.map(|kibibytes| kibibytes * 1024.0));
    let count = until("a count", limit, || {
        prometheus.value("scrape_samples_scraped")
    });
    assert!((40.0..=200.0).contains(&count), "{count} series");
    // It is a counter to Prometheus too: a rate over what was scraped exists.
    until("a rate", limit, || {
        prometheus.value("sum(rate(node_cpu_seconds_total[30s]))")
    });
}

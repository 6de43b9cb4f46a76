//! A cluster whose workloads mean harm: what their names, events and log lines say reaches no
//! terminal and no page raw.

use std::{
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use base64::Engine;
use plane::Plane;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};

use super::Running;
use crate::{
    agent::{Agent, SOON, put, until},
    kube::certificates::{Authority, Valid},
};

/// What a person must never have on the terminal, in one text.
const HARM: &str =
    "\u{1b}]0;owned\u{7}\u{1b}[2J\u{9b}31m<script>alert(1)</script>\u{202e}gpj.exe\r\u{8}";

/// The letters of it that a terminal obeys.
fn obeyed(text: &str) -> Option<char> {
    let is_bidi = |c: char| matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars()
        .find(|c| (c.is_control() && *c != '\n' && *c != '\t') || is_bidi(*c))
}

/// The API of a cluster with one Pod, until it is dropped.
struct Cluster {
    address: SocketAddr,
    is_over: Arc<AtomicBool>,
}

impl Cluster {
    #[expect(
        clippy::disallowed_methods,
        reason = "a server of the test; its threads end with their connections"
    )]
    fn start(tls: Arc<ServerConfig>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                let tls = ServerConnection::new(Arc::clone(&tls)).unwrap();
                let over = Arc::clone(&over);
                std::thread::spawn(move || serve(StreamOwned::new(tls, stream), &over));
            }
        });
        Self { address, is_over }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        TcpStream::connect(self.address).ok();
    }
}

fn serve(stream: StreamOwned<ServerConnection, TcpStream>, over: &AtomicBool) {
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    let mut line = String::new();
    // The head alone: nothing here has a body that matters.
    while reader.read_line(&mut line).is_ok_and(|read| read > 2) {
        if first.is_empty() {
            first.clone_from(&line);
        }
        line.clear();
    }
    let path = first.split(' ').nth(1).unwrap_or_default();
    let mut stream = reader.into_inner();
    let mut send = |bytes: &[u8]| stream.write_all(bytes).and_then(|()| stream.flush());
    if path.contains("/log?") {
        send(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\nconnection: close\r\n\r\n").ok();
        for (number, text) in log_lines().iter().enumerate() {
            let stamp = format!("2026-06-16T05:00:0{number}.123456789Z ");
            let is_new = !path.contains("sinceTime") || number > 0;
            if is_new && send(&[stamp.as_bytes(), text, b"\n"].concat()).is_err() {
                return;
            }
        }
        if path.contains("sinceTime") {
            // Written while the agent was away.
            send(b"2026-06-16T05:00:06.123456789Z meanwhile\n").ok();
        }
        if path.contains("follow=true") {
            hold(over);
        }
        return;
    }
    if path.contains("watch=true") {
        send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n")
            .ok();
        return hold(over);
    }
    let body = answer(path).to_string();
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    send(head.as_bytes())
        .and_then(|()| send(body.as_bytes()))
        .ok();
}

/// Says nothing more.
fn hold(over: &AtomicBool) {
    until("the test is over", Duration::from_secs(120), || {
        over.load(Ordering::Relaxed).then_some(())
    });
}

fn log_lines() -> Vec<Vec<u8>> {
    vec![
        b"first".to_vec(),
        HARM.as_bytes().to_vec(),
        b"broken \xff\xfe \xc3".to_vec(),
        b"A".repeat(1 << 20),
        b"last".to_vec(),
    ]
}

fn answer(path: &str) -> Value {
    let list = |kind: &str, items: Value| json!({"kind": kind, "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items});
    let path = path.split('?').next().unwrap_or_default();
    match path {
        "/version" => json!({"major": "1", "minor": "31", "gitVersion": "v1.31.0"}),
        "/api/v1/nodes" => list(
            "NodeList",
            json!([{"metadata": {"name": HARM, "uid": "n"}, "status": {"conditions": [{"type": "Ready", "status": "False", "message": HARM}]}}]),
        ),
        "/api/v1/pods" => list(
            "PodList",
            json!([{
                "metadata": {"name": "web-0", "namespace": "shop", "uid": "p", "labels": {"x": HARM}},
                "spec": {"containers": [{"name": HARM}], "nodeName": HARM},
                "status": {"phase": HARM, "reason": HARM}
            }]),
        ),
        "/api/v1/events" => list(
            "EventList",
            json!([{
                "metadata": {"name": "e", "namespace": "shop", "uid": "e"},
                "involvedObject": {"kind": "Pod", "namespace": "shop", "name": HARM},
                "reason": HARM, "message": HARM, "type": "Warning",
                "firstTimestamp": "2099-01-01T00:00:00Z", "lastTimestamp": "2099-01-01T00:00:00Z", "count": 1
            }]),
        ),
        _ => list("List", json!([])),
    }
}

/// An agent that has seen that cluster.
fn harmed(plane: &Plane) -> (Cluster, Agent) {
    let authority = Authority::new();
    let cluster = Cluster::start(authority.server(Valid::Now));
    let agent = Agent::new(plane);
    let ca = base64::engine::general_purpose::STANDARD.encode(authority.pem());
    let kubeconfig = agent.folder().join("kubeconfig");
    put(
        &kubeconfig,
        &format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts:\n- name: c\n  context: {{cluster: c, user: u}}\nclusters:\n- name: c\n  cluster:\n    server: https://{}\n    certificate-authority-data: {ca}\nusers:\n- name: u\n  user: {{token: t}}\n",
            cluster.address
        ),
    );
    let mut agent = agent.with("KUBECONFIG", kubeconfig.display().to_string());
    agent.start();
    agent.until("the cluster is seen", SOON, |status| {
        (status["cluster"]["state"] == "ready").then_some(())
    });
    agent.until_condition("cluster.node-not-ready", SOON);
    agent.until("the event is told", SOON, |_| {
        let events = agent.view("/api/v1/events?source=cluster");
        (!events["events"].as_array()?.is_empty()).then_some(())
    });
    (cluster, agent)
}

#[test]
fn nothing_that_a_workload_says_is_obeyed_by_a_terminal_or_a_page() {
    let plane = Plane::start(plane::Options::default()).unwrap();
    let (_cluster, agent) = harmed(&plane);
    let pod = ["logs", "--pod", "shop/web-0"];
    for words in [
        &pod[..],
        &["logs", "--pod", "shop/web-0", "--json"],
        &["events"],
        &["events", "--json"],
        &["status"],
        &["status", "--json"],
        &["why"],
        &["why", "--json"],
        &["logs", "--tail", "200"],
        &["logs", "--tail", "200", "--json"],
        &["changes"],
        &["bundle", "--list"],
    ] {
        let (_, told) = agent.cli(words);
        assert_eq!(obeyed(&told), None, "{words:?}: {told:?}");
        if words.last() == Some(&"--json") {
            serde_json::from_str::<Value>(&told).unwrap();
        }
    }
    let (code, told) = agent.cli(&pod);
    assert_eq!(code, 0, "{told}");
    let lines: Vec<_> = told.lines().collect();
    assert_eq!(lines.len(), 5, "{lines:?}");
    assert!(lines.iter().all(|line| line.len() < 5000));
    assert!(
        lines[2].contains("broken") && lines[3].ends_with("(cut)") && lines[4].ends_with("last")
    );

    // A page that is written by the server, and what a page reads.
    let (_, page) = agent.get("/").unwrap();
    assert!(!page.contains("<script>alert"), "{page}");
    assert!(page.contains("&lt;script&gt;alert"), "{page}");
    for path in [
        "/api/v1/status",
        "/api/v1/events",
        "/api/v1/cluster",
        "/api/v1/cluster/pods",
        "/readyz",
    ] {
        let (_, body) = agent.get(path).unwrap();
        let value: Value = serde_json::from_str(&body).unwrap();
        assert!(value.is_object(), "{path}");
        assert!(!body.contains('\u{1b}'), "{path}: {body:?}");
    }
}

#[test]
fn a_log_goes_on_where_it_was_when_the_agent_is_back() {
    let plane = Plane::start(plane::Options::default()).unwrap();
    let (_cluster, mut agent) = harmed(&plane);
    let followed = Running::start(agent.command(&["logs", "-f", "--json", "--pod", "shop/web-0"]));
    followed.until_out("last\"");
    agent.kill();
    followed.until_err("waiting for the agent");
    agent.start();
    followed.until_out("meanwhile\"");
    // What was told before the kill came again from the cluster, and is not told again.
    assert_eq!(followed.objects().len(), 6, "{}", followed.out());
    assert_eq!(obeyed(&followed.out()), None);
}

//! The main job: stock kubectl and curl through control plane, link and agent to a real Kubernetes, and what a cut does to them.

use std::{
    io::{BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::mpsc::{Receiver, channel},
    time::Duration,
};

use plane::{Cut, Mode, Options, Plane, ProxyRequest, Received, Service, Sessions};
use serde_json::Value;

use crate::{
    accounts::{Accounts, Reach},
    agent::{Agent, SOON, clock, command, put, until},
    cluster::{Shared, admin, alone, calm, kubectl, must, variable},
};

/// A cut must show to the user within a minute.
const CUT_SHOWS_WITHIN: Duration = Duration::from_secs(60);

/// Control plane, agent and cluster, linked.
struct Bench {
    plane: Plane,
    agent: Agent,
    kubeconfig: PathBuf,
    _accounts: Accounts,
    _cluster: Shared<'static>,
}

impl Bench {
    /// Everything linked to the shared cluster; `None` where no cluster can be had.
    fn calm() -> Option<Self> {
        calm().map(Self::linked)
    }

    /// The same for a test that breaks the cluster.
    fn alone() -> Option<Self> {
        alone().map(Self::linked)
    }

    fn linked(held: Shared<'static>) -> Self {
        let plane = Plane::start(Options::default()).unwrap();
        let accounts = Accounts::new(Reach::Full);
        let mut agent = Agent::new(&plane)
            .with("KUBECONFIG", admin().display().to_string())
            .with("PIPEOPS_AGENT_NAMESPACE", accounts.namespace());
        agent.start();
        let status = agent.until(
            "link and cluster are ready",
            Duration::from_secs(30),
            |status| {
                let is_ready =
                    status["link"]["state"] == "ready" && status["cluster"]["state"] == "ready";
                is_ready.then(|| status.clone())
            },
        );
        let kubeconfig = agent.folder().join("through-the-link.yaml");
        put(
            &kubeconfig,
            &plane.kubeconfig(status["cluster_id"].as_str().unwrap()),
        );
        Self {
            plane,
            agent,
            kubeconfig,
            _accounts: accounts,
            _cluster: held,
        }
    }

    fn kubectl(&self, arguments: &[&str]) -> Command {
        let mut kubectl = command(variable("KUBECTL"));
        // Its cache of the API's groups would outlive the test; both before the arguments, which may hold a `--`.
        kubectl.arg("--kubeconfig").arg(&self.kubeconfig);
        kubectl
            .arg("--cache-dir")
            .arg(self.agent.folder().join("cache"));
        kubectl.args(arguments);
        kubectl
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.kubectl(arguments)
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    /// Runs a command that must succeed; returns what it printed.
    fn text(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "kubectl {arguments:?}: {text}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        text
    }

    /// Nothing of any request is left in the agent. Streams that wait for a next one have a lane each for some seconds, and the windows of all
    /// have one.
    fn nothing_is_left(&self) {
        self.agent
            .until("nothing is left of the requests", 2 * SOON, |status| {
                let load = &status["load"];
                let is_empty = [
                    "exchanges",
                    "waiting",
                    "streams",
                    "queued_bytes",
                    "spooled_bytes",
                ]
                .iter()
                .all(|part| load[part] == 0);
                (is_empty && load["lanes"].as_u64() <= Some(1)).then_some(())
            });
    }

    /// How many files and sockets the agent has open.
    fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.agent.pid()))
            .unwrap()
            .count()
    }
}

/// A command that prints for a long time, line by line.
struct Running {
    child: Child,
    lines: Receiver<String>,
}

impl Running {
    #[expect(
        clippy::disallowed_methods,
        reason = "a reader for each long-running command; it ends with its pipe"
    )]
    fn start(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, lines) = channel();
        let outputs: [Box<dyn Read + Send>; 2] = [
            Box::new(child.stdout.take().unwrap()),
            Box::new(child.stderr.take().unwrap()),
        ];
        for output in outputs {
            let sender = sender.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    if sender.send(line).is_err() {
                        return;
                    }
                }
            });
        }
        Self { child, lines }
    }

    fn line(&self, what: &str, is_it: impl Fn(&str) -> bool) -> String {
        let deadline = clock() + SOON;
        loop {
            let left = deadline.saturating_duration_since(clock());
            match self.lines.recv_timeout(left) {
                Ok(line) if is_it(&line) => return line,
                Ok(_) => {}
                Err(error) => panic!("{what}: {error}"),
            }
        }
    }

    /// The user sees an end, and how long that took.
    fn ends(&mut self, limit: Duration) -> (bool, Duration) {
        let began = clock();
        let status = until("the command ends", limit, || self.child.try_wait().unwrap());
        (status.success(), clock() - began)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[test]
fn kubectl_gets_describes_applies_and_deletes() {
    let Some(bench) = Bench::calm() else { return };
    assert!(bench.text(&["get", "nodes"]).contains(" Ready "));
    assert!(
        bench
            .text(&["describe", "pod", "shell", "-n", "fixtures"])
            .contains("Container ID:")
    );
    let manifest = bench.agent.folder().join("map.yaml");
    put(
        &manifest,
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: through, namespace: fixtures}\ndata: {letter: \"ä/ß\"}\n",
    );
    let file = manifest.display().to_string();
    assert!(bench.text(&["apply", "-f", &file]).contains("created"));
    assert_eq!(
        bench.text(&["get", "-f", &file, "-o", "jsonpath={.data.letter}"]),
        "ä/ß"
    );
    assert!(
        bench
            .text(&["apply", "-f", &file, "--server-side", "--force-conflicts"])
            .contains("serverside-applied")
    );
    assert!(bench.text(&["delete", "-f", &file]).contains("deleted"));
    let gone = bench.run(&["get", "-f", &file]);
    assert!(!gone.status.success() && String::from_utf8_lossy(&gone.stderr).contains("NotFound"));
    bench.nothing_is_left();
    assert_eq!(bench.plane.violations(), Vec::<String>::new());
}

#[test]
fn a_heartbeat_carries_the_numbers_of_the_cluster() {
    let Some(bench) = Bench::calm() else { return };
    // The first one may go out before both lists are complete.
    let beat = bench.plane.until(Duration::from_secs(45), |view| {
        let beat = view.heartbeats.back()?;
        let is_whole =
            beat["metadata"]["k8s_nodes"] == 1 && beat["metadata"]["k8s_pods"].as_u64() >= Some(5);
        is_whole.then(|| beat.clone())
    });
    let beat = beat.expect("a heartbeat with one node and its pods");
    let version = beat["metadata"]["k8s_version"].as_str().unwrap();
    assert!(version.starts_with("v1."), "{beat}");
}

#[test]
fn a_watch_and_a_followed_log_arrive_as_they_happen() {
    let Some(bench) = Bench::calm() else { return };
    let watch =
        Running::start(bench.kubectl(&["get", "configmaps", "-n", "fixtures", "-w", "-o", "name"]));
    let log =
        Running::start(bench.kubectl(&["logs", "-f", "logger", "-n", "fixtures", "--tail=1"]));
    log.line("a line of the log", |line| line.starts_with("line "));
    log.line("the line after it", |line| line.starts_with("line "));
    bench.text(&["create", "configmap", "watched", "-n", "fixtures"]);
    watch.line("the new object", |line| line == "configmap/watched");
    bench.text(&["delete", "configmap", "watched", "-n", "fixtures"]);
    watch.line("its end", |line| line == "configmap/watched");
    drop(watch);
    drop(log);
    bench.nothing_is_left();
}

#[test]
fn exec_carries_input_output_and_large_data() {
    let Some(bench) = Bench::calm() else { return };
    let mut cat = bench.kubectl(&["exec", "-i", "shell", "-n", "fixtures", "--", "cat"]);
    let mut cat = cat
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let said: Vec<u8> = (0..200_000_u32)
        .map(|number| b'a' + u8::try_from(number % 26).unwrap())
        .collect();
    cat.stdin.take().unwrap().write_all(&said).unwrap();
    let heard = cat.wait_with_output().unwrap();
    assert!(
        heard.status.success(),
        "{}",
        String::from_utf8_lossy(&heard.stderr)
    );
    assert!(
        heard.stdout == said,
        "{} bytes came back of {}",
        heard.stdout.len(),
        said.len()
    );
    assert_eq!(
        bench
            .text(&["exec", "shell", "-n", "fixtures", "--", "echo", "hello"])
            .trim(),
        "hello"
    );
    bench.nothing_is_left();
}

#[test]
fn a_service_answers_http_and_a_pod_echoes_a_websocket() {
    let Some(bench) = Bench::calm() else { return };
    let cluster_id = bench.agent.status()["cluster_id"]
        .as_str()
        .unwrap()
        .to_owned();
    let url = format!(
        "{}/api/v1/namespaces/fixtures/services/http:echo:80/proxy/hello?a=1",
        bench.plane.cluster_url(&cluster_id)
    );
    let ca = bench.agent.folder().join("ca.pem");
    let authorization = format!("Authorization: Bearer {}", bench.plane.user_token());
    let curl = command("curl")
        .args(["-sS", "--max-time", "20", "--cacert"])
        .arg(ca)
        .args(["-H", &authorization, &url])
        .output()
        .unwrap();
    let answer: Value = serde_json::from_slice(&curl.stdout).unwrap_or_else(|_| panic!("{curl:?}"));
    assert_eq!(answer["path"], "/hello");
    assert_eq!(answer["query"]["a"][0], "1");
    let mut request = ProxyRequest::get("/ws");
    request.service = Some(echo());
    let (_, socket) = bench
        .plane
        .websocket(request, SOON)
        .expect("a WebSocket through the link");
    assert!(socket.send(1, b"are you there", SOON));
    let echo = until("the echo", SOON, || socket.receive(Duration::from_secs(1)));
    assert!(
        matches!(&echo, Received::Data { opcode: 1, data } if &data[..] == b"are you there"),
        "{echo:?}"
    );
}

#[test]
fn buffered_answers_of_all_sizes_are_the_bytes_that_were_asked_for() {
    let Some(mut bench) = Bench::calm() else {
        return;
    };
    bench.plane.set(|behaviour| behaviour.mode = Mode::Buffered);
    for size in [0_usize, 1, 10_239, 10_240, 70_000, 20_000_000] {
        let mut request = ProxyRequest::get(&format!("/bytes?n={size}"));
        request.service = Some(echo());
        request.mode = Mode::Buffered;
        let answer = bench
            .plane
            .request(request, Duration::from_secs(60))
            .unwrap();
        let body = answer.body.read_all(Duration::from_secs(60)).unwrap();
        assert_eq!(body.len(), size);
        assert!(
            body.iter()
                .enumerate()
                .all(|(at, byte)| usize::from(*byte) == at % 251),
            "{size}"
        );
    }
    bench.nothing_is_left();
}

#[test]
fn every_kind_of_cut_ends_what_runs_within_a_minute_and_leaks_nothing() {
    let Some(bench) = Bench::calm() else { return };
    bench.text(&["get", "pods", "-n", "fixtures"]);
    bench.nothing_is_left();
    let before = bench.descriptors();
    for cut in [
        Cut::Reset,
        Cut::Fin,
        Cut::Close(1012, "restart".to_owned()),
        Cut::BlackHole,
    ] {
        let mut running = [
            Running::start(bench.kubectl(&["get", "configmaps", "-n", "fixtures", "-w"])),
            Running::start(bench.kubectl(&["logs", "-f", "logger", "-n", "fixtures"])),
            Running::start(bench.kubectl(&["exec", "-i", "shell", "-n", "fixtures", "--", "cat"])),
        ];
        running[1].line("the log runs", |line| line.starts_with("line "));
        bench.agent.until("all three run", SOON, |status| {
            (status["load"]["exchanges"].as_u64() >= Some(3)).then_some(())
        });
        bench.plane.cut(Sessions::All, cut.clone());
        for command in &mut running {
            let (_, took) = command.ends(CUT_SHOWS_WITHIN);
            assert!(took <= CUT_SHOWS_WITHIN, "{cut:?}: {took:?}");
        }
        until("kubectl works again", CUT_SHOWS_WITHIN, || {
            let pods = bench.run(&["get", "pods", "-n", "fixtures", "--request-timeout=5s"]);
            String::from_utf8_lossy(&pods.stdout)
                .contains("shell")
                .then_some(())
        });
        bench.nothing_is_left();
        until("no descriptor is left", SOON, || {
            (bench.descriptors() <= before + 2).then_some(())
        });
    }
}

#[test]
fn an_api_server_that_restarts_is_served_again_without_a_restart_of_the_agent() {
    let Some(bench) = Bench::alone() else { return };
    must("stop-apiserver", &[]);
    let condition = bench
        .agent
        .until_condition("cluster.unreachable", Duration::from_secs(30));
    assert!(condition["fix"].is_string(), "{condition}");
    let refused = bench.run(&["get", "nodes", "--request-timeout=10s"]);
    assert!(!refused.status.success());
    must("start-apiserver", &[]);
    bench.agent.until(
        "the cluster is ready again",
        Duration::from_secs(90),
        |status| (status["cluster"]["state"] == "ready").then_some(()),
    );
    assert!(bench.text(&["get", "nodes"]).contains("bench"));
}

#[test]
fn a_changed_serving_certificate_changes_nothing() {
    let Some(bench) = Bench::alone() else { return };
    must("rotate-serving-cert", &[]);
    until("kubectl works", Duration::from_secs(30), || {
        bench
            .run(&["get", "nodes", "--request-timeout=10s"])
            .status
            .success()
            .then_some(())
    });
}

#[test]
fn an_agent_started_before_its_kubeconfig_exists_finds_the_cluster_later() {
    let Some(_held) = calm() else { return };
    let plane = Plane::start(Options::default()).unwrap();
    let mut agent = Agent::new(&plane);
    let late = agent.folder().join("late.yaml");
    agent = agent.with("KUBECONFIG", late.display().to_string());
    agent.start();
    agent.until(
        "the link is ready, cluster or not",
        Duration::from_secs(40),
        |status| (status["link"]["state"] == "ready").then_some(()),
    );
    put(&late, &read(&admin()));
    agent.until("the cluster is ready", Duration::from_secs(90), |status| {
        (status["cluster"]["state"] == "ready").then_some(())
    });
}

/// The echo server of the fixtures.
fn echo() -> Service {
    Service {
        namespace: "fixtures".to_owned(),
        name: "echo".to_owned(),
        port: 80,
        scheme: None,
    }
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

/// What an installation of the Go agent leaves in a cluster, and a Pod that looks like it.
fn install_go_agent() {
    kubectl(&["create", "namespace", "pipeops-system"]);
    kubectl(&[
        "create",
        "configmap",
        "pipeops-agent-state",
        "-n",
        "pipeops-system",
        "--from-literal=agent_id=agent-old",
        "--from-literal=cluster_id=7d1f0b52-6a1e-4b0e-9a64-2f0c1f3f9b10",
        "--from-literal=gateway_ws_url=",
    ]);
    kubectl(&[
        "run",
        "go-agent",
        "-n",
        "pipeops-system",
        "--image",
        &variable("IMAGE"),
        "--image-pull-policy=Never",
        "--labels=app.kubernetes.io/name=pipeops-agent",
        "--command",
        "--",
        "/bin/sleep",
        "1000",
    ]);
    kubectl(&[
        "wait",
        "pod/go-agent",
        "-n",
        "pipeops-system",
        "--for=condition=Ready",
        "--timeout=60s",
    ]);
}

#[test]
fn an_installation_of_the_go_agent_is_taken_over_once_it_no_longer_runs() {
    let Some(_held) = alone() else { return };
    install_go_agent();
    let plane = Plane::start(Options::default()).unwrap();
    let mut agent = Agent::new(&plane).with("KUBECONFIG", admin().display().to_string());
    agent.start();
    agent.until_condition("identity.go-agent-runs", Duration::from_secs(30));
    assert!(
        plane.handshakes().is_empty(),
        "no second link while it runs"
    );
    kubectl(&[
        "delete",
        "pod",
        "go-agent",
        "-n",
        "pipeops-system",
        "--grace-period=0",
        "--force",
    ]);
    let status = agent.until("the link is ready", Duration::from_secs(60), |status| {
        (status["link"]["state"] == "ready").then(|| status.clone())
    });
    assert_eq!(status["agent_id"], "agent-old");
    assert_eq!(status["cluster_id"], "7d1f0b52-6a1e-4b0e-9a64-2f0c1f3f9b10");
    // Gone before others use the cluster: they would take it over too.
    kubectl(&["delete", "namespace", "pipeops-system", "--timeout=60s"]);
}

/// How long a followed log and a quiet watch are held: `make soak` sets more than every time-out on the way.
#[expect(
    clippy::disallowed_methods,
    reason = "the one variable that makes a test longer"
)]
fn held_for() -> Duration {
    let seconds = std::env::var("PIPEOPS_TEST_HELD_S").ok();
    Duration::from_secs(seconds.map_or(5, |seconds| seconds.parse().unwrap()))
}

#[test]
fn a_followed_log_and_a_quiet_watch_live_as_long_as_somebody_looks() {
    let Some(bench) = Bench::calm() else { return };
    let quiet = ["get", "secrets", "-n", "default", "-w", "-o", "name"];
    let mut watch = Running::start(bench.kubectl(&quiet));
    let log =
        Running::start(bench.kubectl(&["logs", "-f", "logger", "-n", "fixtures", "--tail=1"]));
    let number = |line: String| {
        line.split(' ')
            .nth(1)
            .and_then(|n| n.parse::<u64>().ok())
            .unwrap()
    };
    let mut last = number(log.line("a line", |line| line.starts_with("line ")));
    let end = clock() + held_for();
    while clock() < end {
        let next = number(log.line("the next line", |line| line.starts_with("line ")));
        assert_eq!(next, last + 1, "no line is lost and none comes twice");
        last = next;
    }
    assert!(
        watch.child.try_wait().unwrap().is_none(),
        "the watch still runs"
    );
    bench.text(&["create", "secret", "generic", "late", "-n", "default"]);
    watch.line("what happens after a long silence", |line| {
        line == "secret/late"
    });
    bench.text(&["delete", "secret", "late", "-n", "default"]);
    assert_eq!(bench.agent.status()["link"]["outages"], 0);
}

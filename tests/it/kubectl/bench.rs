//! Control plane, agent and cluster, linked; and what a test wants to know of them.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::Duration,
};

use plane::{Options, Plane, Service, Streams};

use crate::{
    accounts::{Accounts, GrantScope},
    agent::{Agent, SOON, command, put},
    cluster::{Held, admin, alone, calm, variable},
};

/// How the control plane sends requests to the agent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Form {
    /// HTTP on streams of yamux.
    Streams,
    /// Messages of JSON.
    Json,
}

/// How kubectl speaks in exec, attach and port-forward.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Upgrade {
    WebSocket,
    Spdy,
}

impl Upgrade {
    /// What a form can carry.
    pub(super) fn of(form: Form) -> &'static [Self] {
        match form {
            Form::Streams => &[Self::WebSocket, Self::Spdy],
            Form::Json => &[Self::WebSocket],
        }
    }

    /// Tells kubectl. Told to use SPDY it tries nothing else; told to use WebSockets it would fall
    /// back, and says so.
    pub(super) fn on(self, mut kubectl: Command) -> Command {
        let word = match self {
            Self::WebSocket => "true",
            Self::Spdy => "false",
        };
        for name in ["REMOTE_COMMAND", "PORT_FORWARD"] {
            kubectl.env(format!("KUBECTL_{name}_WEBSOCKETS"), word);
        }
        kubectl
    }
}

/// What was used of either form until a moment.
pub(super) struct Used {
    frames: u64,
    streams: u64,
}

/// Control plane, agent and cluster, linked.
pub(super) struct Bench {
    pub(super) plane: Plane,
    pub(super) agent: Agent,
    kubeconfig: PathBuf,
    cluster_id: String,
    _accounts: Accounts,
    _cluster: Held,
}

impl Bench {
    /// Everything linked to the shared cluster; `None` where no cluster can be had.
    pub(super) fn calm() -> Option<Self> {
        calm().map(Self::linked)
    }

    /// The same for a test that breaks the cluster, or counts what goes on there.
    pub(super) fn alone() -> Option<Self> {
        alone().map(Self::linked)
    }

    fn linked(held: Held) -> Self {
        let plane = Plane::start(Options::default()).unwrap();
        let accounts = Accounts::new(GrantScope::Full);
        let mut agent = Agent::new(&plane)
            .with("KUBECONFIG", admin().display().to_string())
            .with("PIPEOPS_AGENT_NAMESPACE", accounts.namespace())
            .with("PIPEOPS_AGENT_HEARTBEAT_INTERVAL_CONNECTED", "5s");
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
        let cluster_id = status["cluster_id"].as_str().unwrap().to_owned();
        let kubeconfig = agent.folder().join("through-the-link.yaml");
        put(&kubeconfig, &plane.kubeconfig(&cluster_id));
        Self {
            plane,
            agent,
            kubeconfig,
            cluster_id,
            _accounts: accounts,
            _cluster: held,
        }
    }

    /// What is begun from here on goes in this form.
    pub(super) fn use_form(&mut self, form: Form) {
        let streams = match form {
            Form::Streams => Streams::Preferred,
            Form::Json => Streams::Off,
        };
        self.plane.set(|behaviour| behaviour.streams = streams);
        if form == Form::Streams {
            let session = self.plane.wait_streams(SOON);
            assert!(session.is_some(), "the agent agrees on streams");
        }
    }

    /// Runs a case over streams and then in JSON. Each has to have gone that way and no other.
    pub(super) fn in_both_forms(&mut self, case: impl Fn(&Self, Form)) {
        for form in [Form::Streams, Form::Json] {
            self.use_form(form);
            let before = self.used();
            case(self, form);
            self.went(form, &before);
        }
        self.nothing_is_left();
    }

    /// What was used of either form until now.
    pub(super) fn used(&self) -> Used {
        Used {
            frames: self.plane.mark(),
            streams: self.streams_opened(),
        }
    }

    /// Everything since then has to have gone this way and no other.
    pub(super) fn went(&self, form: Form, before: &Used) {
        let messages = self.plane.frames().into_iter().filter(|frame| {
            let kinds = ["proxy_request", "proxy_websocket_start", "ws_start"];
            frame.number >= before.frames && kinds.contains(&frame.kind.as_ref())
        });
        let (messages, opened) = (messages.count(), self.streams_opened() - before.streams);
        match form {
            Form::Streams => assert!(messages == 0 && opened > 0, "{messages} messages"),
            Form::Json => assert!(messages > 0 && opened == 0, "{opened} streams"),
        }
    }

    fn streams_opened(&self) -> u64 {
        let sessions = self.plane.sessions();
        sessions.iter().map(|session| session.streams_opened).sum()
    }

    pub(super) fn kubectl(&self, arguments: &[&str]) -> Command {
        let mut kubectl = command(program());
        // Its cache of the API's groups would outlive the test; both before the arguments, which
        // may hold a `--`.
        kubectl.arg("--kubeconfig").arg(&self.kubeconfig);
        kubectl
            .arg("--cache-dir")
            .arg(self.agent.folder().join("cache"));
        kubectl.args(arguments);
        kubectl
    }

    /// What a client of the control plane is given.
    pub(super) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    pub(super) fn run(&self, arguments: &[&str]) -> Output {
        self.kubectl(arguments)
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    /// Runs a command that must succeed; returns what it printed.
    pub(super) fn text(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "kubectl {arguments:?}: {text}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        text
    }

    /// curl as the user of the control plane, with a path of the cluster's API at its end.
    pub(super) fn curl(&self, options: &[&str], path: &str) -> Command {
        let mut curl = command("curl");
        curl.arg("--cacert").arg(self.agent.folder().join("ca.pem"));
        let authorization = format!("Authorization: Bearer {}", self.plane.user_token());
        curl.args(["-sS", "-H", &authorization]).args(options);
        let url = self.plane.cluster_url(&self.cluster_id);
        curl.arg(format!("{url}{path}"));
        curl
    }

    /// Nothing of any request is left in the agent. Streams that wait for a next one have a lane
    /// each for some seconds; the windows of all have one, and so have the records that are
    /// delivered and the answers to commands.
    pub(super) fn nothing_is_left(&self) {
        self.agent
            .until("nothing is left of the requests", SOON, |status| {
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
                (is_empty && load["lanes"].as_u64() <= Some(3)).then_some(())
            });
    }

    /// The most memory that the agent has held at once.
    pub(super) fn memory_peak_kb(&self) -> u64 {
        let status = format!("/proc/{}/status", self.agent.pid());
        let status = std::fs::read_to_string(status).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let words = line.unwrap().split_whitespace().next();
        words.unwrap().parse().unwrap()
    }

    /// How many files and sockets the agent has open.
    pub(super) fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.agent.pid()))
            .unwrap()
            .count()
    }
}

/// Stock kubectl: the cluster's own, or another one that the tests are to use.
#[expect(
    clippy::disallowed_methods,
    reason = "the one variable that names another kubectl"
)]
fn program() -> String {
    std::env::var("PIPEOPS_TEST_KUBECTL").unwrap_or_else(|_| variable("KUBECTL"))
}

/// The echo server of the fixtures.
pub(super) fn echo() -> Service {
    Service {
        namespace: "fixtures".to_owned(),
        name: "echo".to_owned(),
        port: 80,
        scheme: None,
    }
}
